"""A reader of the one schema ``photometry/1/0``, which also says where each field lies.

Single-star messages come by the hundred thousand a second. `layout_of` finds the fields of one, so
that `broker_filter.decode.alike` can read others of the same layout without parsing them.
`read_photometry` returns what `decode_strict` returns for the same bytes. Both refuse a little
more: union and enum indices that are negative or written in more bytes than needed, which no
writer makes.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from broker_filter.decode.avro.primitives import forward, read_long
from broker_filter.schemas import MAX_MESSAGE_BYTES, read_whole

__all__ = ["Layout", "layout_of", "read_photometry"]

_unpack_double = struct.Struct("<d").unpack_from
_KIND = {0: "total", 2: "difference"}  # an Avro index i is written as the byte 2 i
_UNIT = {0: "nJy", 2: "baseline"}


class Layout(NamedTuple):
    """Where the fields of a record lie, without their lengths and union indices.

    Fields that are null are None. ``text`` says that the star's id is text, ``end`` is the byte at
    which the record ends, and ``choices`` are the two bytes of ``kind`` and ``unit``.
    """

    survey: slice
    text: bool
    star: slice
    ra: slice | None
    dec: slice | None
    band: slice
    source: slice
    choices: slice
    times: slice
    flux: slice
    flux_err: slice
    flags: slice | None
    ref_flux: slice | None
    ref_flux_err: slice | None
    end: int


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


def layout_of(value: bytes) -> Layout:
    """Find the fields in the schema's order.

    Raises
    ------
    IndexError
        The record ends before its fields do.
    ValueError
        It is no such record.
    """
    survey = _bytes(value, 0)
    text = _second(value, survey.stop)
    star = _bytes(value, survey.stop + 1) if text else _long(value, survey.stop + 1)
    ra, at = _optional_double(value, star.stop)
    dec, at = _optional_double(value, at)
    band = _bytes(value, at)
    source = _bytes(value, band.stop)
    choices = slice(source.stop, source.stop + 2)
    times = _bytes(value, choices.stop)
    flux = _bytes(value, times.stop)
    flux_err = _bytes(value, flux.stop)
    at = flux_err.stop + 1
    flags = _bytes(value, at) if _second(value, flux_err.stop) else None
    ref_flux, at = _optional_double(value, at if flags is None else flags.stop)
    ref_flux_err, at = _optional_double(value, at)
    return Layout(
        *(survey, text, star, ra, dec, band, source, choices),
        *(times, flux, flux_err, flags, ref_flux, ref_flux_err, at),
    )


def _record(value: bytes) -> tuple[dict[str, Any], int]:
    at = layout_of(value)
    kind, unit = value[at.choices]
    record = {
        "survey": value[at.survey].decode(),
        "starId": value[at.star].decode() if at.text else read_long(value, at.star.start)[0],
        "ra": _double(value, at.ra),
        "dec": _double(value, at.dec),
        "band": value[at.band].decode(),
        "source": value[at.source].decode(),
        "kind": _KIND[kind],
        "unit": _UNIT[unit],
        "mjdTai": value[at.times],
        "flux": value[at.flux],
        "fluxErr": value[at.flux_err],
        "flags": None if at.flags is None else value[at.flags],
        "refFlux": _double(value, at.ref_flux),
        "refFluxErr": _double(value, at.ref_flux_err),
    }
    return record, at.end


def _second(value: bytes, at: int) -> bool:
    """Whether a union of two holds its second type."""
    index = value[at]
    if index not in (0, 2):
        raise ValueError(f"union index {index:#x} at byte {at}")
    return index == 2


def _bytes(value: bytes, at: int) -> slice:
    """Where bytes lie behind their length."""
    length = value[at]
    if length > 0x7F or length & 1:
        length, at = read_long(value, at)
    else:  # the common case: 0 to 63 bytes
        length, at = length >> 1, at + 1
    return slice(at, forward(value, at, length))


def _long(value: bytes, at: int) -> slice:
    return slice(at, read_long(value, at)[1])


def _optional_double(value: bytes, at: int) -> tuple[slice | None, int]:
    """Where a double lies that may be null, and where what follows begins."""
    if not _second(value, at):
        return None, at + 1
    end = forward(value, at + 1, 8)
    return slice(at + 1, end), end


def _double(value: bytes, at: slice | None) -> float | None:
    number: float | None = None if at is None else _unpack_double(value, at.start)[0]
    return number
