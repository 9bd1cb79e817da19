"""Our own two message formats, read and written: one star a message, or one exposure a message.

``photometry`` carries one star with one or more epochs; ``photometry_block`` carries one exposure
of one shard of the sky, one epoch of each of many stars, and is far cheaper a point. Both hold
their columns as little-endian bytes, so that no point becomes a Python object on its way, its
star's id excepted.

Flux and error travel as float32: a round trip rounds them to 24 bits (6e-8 relative), far below any
survey's errors. Times, reference fluxes and coordinates travel as float64 and come back as they
were. Values are taken as they are: what is wrong inside an epoch (NaN, negative errors, absurd
times) is judged and counted later, while a message that contradicts itself is poison.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from broker_filter.decode.native_reader import read_photometry
from broker_filter.errors import PoisonMessage, SchemaError
from broker_filter.schemas import MAX_MESSAGE_BYTES, decode_strict, encode
from broker_filter.types import FloatArray, Photometry, StarId

__all__ = [
    "MAX_NAME_CHARACTERS",
    "MAX_STAR_ID_BYTES",
    "decode_block",
    "decode_photometry",
    "encode_block",
    "encode_photometry",
    "star_fault",
]

MAX_STAR_ID_BYTES = 64
MAX_NAME_CHARACTERS = 64

T = TypeVar("T")

_F4, _F8, _U4, _I8 = (np.dtype(name) for name in ("<f4", "<f8", "<u4", "<i8"))

# The types that each column of a block may have, by the name that the message uses.
_FLUX = {"<f4": _F4, "<f8": _F8}
_EXACT = {"<f8": _F8}
_FLAGS = {"<u4": _U4}
_STAR = {"<i8": _I8} | {f"|S{n}": np.dtype(f"S{n}") for n in range(1, MAX_STAR_ID_BYTES + 1)}

_pack_double = struct.Struct("<d").pack
_unpack_float = struct.Struct("<f").unpack
_NAN = _pack_double(np.nan)


def decode_photometry(value: bytes, *, max_bytes: int = MAX_MESSAGE_BYTES) -> Photometry:
    """Read a ``photometry`` message: one star, one or more epochs.

    Parameters
    ----------
    value : bytes
        Avro without container or framing.
    max_bytes : int
        Longer values are refused unread.

    Returns
    -------
    Photometry
        Its columns may be read-only.

    Raises
    ------
    PoisonMessage
        What `read_photometry` raises; ``no_epochs``, ``column_length``, ``bad_star_id``,
        ``bad_name``.
    """
    record = read_photometry(value, max_bytes=max_bytes)
    star, times, flux, flux_err = (
        record["starId"],
        record["mjdTai"],
        record["flux"],
        record["fluxErr"],
    )
    n = len(times) // 8
    flags = bytes(4 * n) if record["flags"] is None else record["flags"]
    if not times:
        raise PoisonMessage("no_epochs", "mjdTai is empty; a message holds at least one epoch")
    if not len(times) == 2 * len(flux) == 2 * len(flux_err) == 2 * len(flags) == 8 * n:
        raise PoisonMessage(
            "column_length",
            f"mjdTai, flux, fluxErr and flags hold {len(times)}, {len(flux)}, {len(flux_err)} and "
            f"{len(flags)} bytes; an epoch takes 8, 4, 4 and 4",
        )
    if isinstance(star, str) and (fault := star_fault(star)):
        raise PoisonMessage("bad_star_id", fault)
    _check_names(record)
    ra, dec = record["ra"], record["dec"]
    known = ra is not None and dec is not None and 0 <= ra <= 360 and -90 <= dec <= 90
    return Photometry(
        survey=record["survey"],
        band=record["band"],
        source=record["source"],
        star=[star] * n,
        mjd_tai=np.frombuffer(times, _F8),
        flux=_widen(flux),
        flux_err=_widen(flux_err),
        flags=np.frombuffer(flags, _U4),
        ref_flux=_repeat(record["refFlux"], n),
        ref_flux_err=_repeat(record["refFluxErr"], n),
        kind=record["kind"],
        relative=record["unit"] == "baseline",
        coordinates={star: (ra, dec)} if known else {},
    )


def decode_block(value: bytes, *, max_bytes: int = MAX_MESSAGE_BYTES) -> Photometry:
    """Read a ``photometry_block`` message: one exposure, one row a star.

    Parameters
    ----------
    value : bytes
        Avro without container or framing.
    max_bytes : int
        Longer values are refused unread.

    Returns
    -------
    Photometry
        Its columns may be read-only.

    Raises
    ------
    PoisonMessage
        What `decode_strict` raises; ``no_epochs``, ``column_length`` (also where ``nStars`` is not
        the number of rows), ``bad_dtype``, ``bad_star_id``, ``bad_name``.
    """
    block = decode_strict("photometry_block", value, max_bytes=max_bytes)
    if block["nStars"] < 1:
        raise PoisonMessage(
            "no_epochs", f"nStars is {block['nStars']}; a block holds at least one star"
        )
    _check_names(block)
    # Flux first: a column that is always there bounds nStars by the message's length, before an
    # absent one is filled with so many values.
    flux = _floats(block, "flux")
    star = _stars(block)
    return Photometry(
        survey=block["survey"],
        band=block["band"],
        source=block["source"],
        star=star,
        mjd_tai=_times(block),
        flux=flux,
        flux_err=_floats(block, "fluxErr"),
        flags=_column(block, "flags", _FLAGS, absent=0).astype(np.uint32, copy=False),
        ref_flux=_floats(block, "refFlux"),
        ref_flux_err=_floats(block, "refFluxErr"),
        kind=block["kind"],
        relative=block["unit"] == "baseline",
        coordinates=_coordinates(block, star),
    )


def encode_photometry(photometry: Photometry) -> bytes:
    """Write the epochs of one star as a ``photometry`` message.

    Flux and error are rounded to float32. Send it with the header ``schema_header("photometry")``.

    Raises
    ------
    SchemaError
        There is no epoch, more than one star, or more than one reference flux; the star's id is
        empty or too long.
    """
    star = _one(photometry.star, "star")
    ra, dec = photometry.coordinates.get(star, (None, None))
    return encode(
        "photometry",
        _head(photometry)
        | {
            "starId": _encodable(star),
            "ra": ra,
            "dec": dec,
            "mjdTai": _bytes(photometry.mjd_tai, _F8),
            "flux": _bytes(photometry.flux, _F4),
            "fluxErr": _bytes(photometry.flux_err, _F4),
            "flags": _bytes(photometry.flags, _U4) if photometry.flags.any() else None,
            "refFlux": _one_or_none(photometry.ref_flux, "ref_flux"),
            "refFluxErr": _one_or_none(photometry.ref_flux_err, "ref_flux_err"),
        },
    )


def encode_block(photometry: Photometry) -> bytes:
    """Write many stars, one row each, as a ``photometry_block`` message.

    Flux and error are rounded to float32; one time for all is sent once; columns that say nothing
    (flags all zero, reference flux unknown for all) are left out. Send it with the header
    ``schema_header("photometry_block")``.

    Raises
    ------
    SchemaError
        There is no row; ids are empty, too long, or some int and some str.
    """
    times = photometry.mjd_tai
    if not len(photometry):
        raise SchemaError("a block holds at least one star, this photometry has none")
    block = _head(photometry) | {
        "nStars": len(photometry),
        "mjdTai": float(times[0]) if (times == times[0]).all() else _as_column(times, _F8),
        "starId": _star_column(photometry.star),
        "flux": _as_column(photometry.flux, _F4),
        "fluxErr": _as_column(photometry.flux_err, _F4),
    }
    if photometry.flags.any():
        block["flags"] = _as_column(photometry.flags, _U4)
    if not np.isnan(photometry.ref_flux).all():
        block["refFlux"] = _as_column(photometry.ref_flux, _F8)
    if not np.isnan(photometry.ref_flux_err).all():
        block["refFluxErr"] = _as_column(photometry.ref_flux_err, _F8)
    if photometry.coordinates:
        unknown = (np.nan, np.nan)
        positions = np.array(
            [photometry.coordinates.get(star, unknown) for star in photometry.star]
        )
        block |= {"ra": _as_column(positions[:, 0], _F8), "dec": _as_column(positions[:, 1], _F8)}
    return encode("photometry_block", block)


# Reading


def _check_names(record: Mapping[str, Any]) -> None:
    for name in ("survey", "band", "source"):
        length = len(record[name])
        if length > MAX_NAME_CHARACTERS or (not length and name != "source"):
            raise PoisonMessage(
                "bad_name",
                f"{name} has {length} characters, 1 to {MAX_NAME_CHARACTERS} are allowed",
            )


def star_fault(star: str) -> str | None:
    """Say what is wrong with a star's name, if anything is."""
    try:
        length = len(star.encode())
    except UnicodeEncodeError as error:
        return f"star id is no text: {error}"
    if not 0 < length <= MAX_STAR_ID_BYTES:
        return f"star id has {length} bytes, 1 to {MAX_STAR_ID_BYTES} are allowed"
    # Blocks pad ids with NUL, so that such an id would be another star there.
    return "star id ends in NUL" if star[-1] == "\0" else None


def _widen(column: bytes) -> FloatArray:
    """Read a column of float32 as float64."""
    if len(column) == _F4.itemsize:  # one epoch is the common case, and this way the faster
        return np.frombuffer(_pack_double(*_unpack_float(column)), _F8)
    return _as_float64(np.frombuffer(column, _F4))


@np.errstate(invalid="ignore")
def _as_float64(column: NDArray[Any]) -> FloatArray:
    """Cast without the warning that a signalling NaN gives: it is a NaN like any other."""
    return column.astype(np.float64, copy=False)


def _repeat(value: float | None, n: int) -> FloatArray:
    """Repeat one value n times; at n = 1 twice as fast as `numpy.full`."""
    return np.frombuffer((_NAN if value is None else _pack_double(value)) * n, _F8)


def _column(
    block: Mapping[str, Any], name: str, dtypes: Mapping[str, np.dtype[Any]], absent: float = np.nan
) -> NDArray[Any]:
    """One column of a block, shape (nStars,); full of ``absent`` where the message left it out."""
    n, column = block["nStars"], block[name]
    if column is None:
        return np.full(n, absent)
    dtype = dtypes.get(column["dtype"])
    if dtype is None:
        raise PoisonMessage(
            "bad_dtype", f"{name} is {column['dtype'][:16]!r}; known: {', '.join(list(dtypes)[:2])}"
        )
    if len(column["data"]) != n * dtype.itemsize:
        raise PoisonMessage(
            "column_length",
            f"{name} holds {len(column['data'])} bytes; {n} stars of {column['dtype']} are "
            f"{n * dtype.itemsize}",
        )
    return np.frombuffer(column["data"], dtype)


def _floats(block: Mapping[str, Any], name: str) -> FloatArray:
    return _as_float64(_column(block, name, _FLUX))


def _times(block: Mapping[str, Any]) -> FloatArray:
    time = block["mjdTai"]
    if isinstance(time, float):
        return np.full(block["nStars"], time)
    return _column(block, "mjdTai", _EXACT)


def _stars(block: Mapping[str, Any]) -> list[StarId]:
    """Ids of all rows; text is padded with NUL and read as UTF-8."""
    dtype = block["starId"]["dtype"]
    if dtype.startswith("|S") and dtype not in _STAR:
        raise PoisonMessage(
            "bad_star_id",
            f"star ids are {dtype[:16]!r}; 1 to {MAX_STAR_ID_BYTES} bytes are allowed",
        )
    return _star_ids(dtype, _column(block, "starId", _STAR).tobytes())


@lru_cache(maxsize=1)
def _star_ids(dtype: str, data: bytes) -> list[StarId]:
    """Ids of a column; those of the column before, if it is the same, as of one field's exposures.

    The list is shared and must not be changed.
    """
    ids: list[Any] = np.frombuffer(data, _STAR[dtype]).tolist()
    if dtype == "<i8":
        return ids
    if not all(ids):
        raise PoisonMessage("bad_star_id", f"star id of row {ids.index(b'')} is empty")
    try:
        return list(map(bytes.decode, ids))
    except UnicodeDecodeError as error:
        raise PoisonMessage(
            "bad_star_id", f"star id of row {ids.index(error.object)} is not UTF-8: {error}"
        ) from None


def _coordinates(block: Mapping[str, Any], star: list[StarId]) -> dict[StarId, tuple[float, float]]:
    """(ra, dec) of the stars that have both, on the sky."""
    if block["ra"] is None and block["dec"] is None:
        return {}
    ra, dec = _column(block, "ra", _EXACT), _column(block, "dec", _EXACT)
    known = (ra >= 0) & (ra <= 360) & (dec >= -90) & (dec <= 90)
    positions = zip(star, zip(ra.tolist(), dec.tolist(), strict=True), strict=True)
    return dict(compress(positions, known.tolist()))


# Writing


def _head(photometry: Photometry) -> dict[str, Any]:
    return {
        "survey": photometry.survey,
        "band": photometry.band,
        "source": photometry.source,
        "kind": photometry.kind,
        "unit": "baseline" if photometry.relative else "nJy",
    }


@np.errstate(over="ignore", invalid="ignore")  # beyond float32 means infinite, which readers reject
def _bytes(values: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    return np.asarray(values).astype(dtype).tobytes()


def _as_column(values: NDArray[Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    return {"dtype": dtype.str, "data": _bytes(values, dtype)}


def _one(values: Sequence[T], name: str) -> T:
    """Return the one value that all epochs share."""
    if len(set(values)) != 1:
        raise SchemaError(
            f"a photometry message holds one {name}, this photometry has {len(set(values))}"
        )
    return values[0]


def _one_or_none(column: FloatArray, name: str) -> float | None:
    return None if np.isnan(column).all() else _one(column.tolist(), name)


def _encodable(star: StarId) -> StarId:
    if isinstance(star, str) and (fault := star_fault(star)):
        raise SchemaError(f"{fault}: {star[:80]!r}")
    return star


def _star_column(stars: list[StarId]) -> dict[str, Any]:
    kinds = set(map(type, stars))
    if kinds == {int}:
        try:
            return {"dtype": "<i8", "data": np.array(stars, _I8).tobytes()}
        except OverflowError:
            raise SchemaError("a star id takes more than 64 bits; send such ids as text") from None
    if kinds != {str}:
        raise SchemaError(f"star ids of one block are all int or all str, not {kinds}")
    ids = [str(_encodable(star)).encode() for star in stars]
    column = np.array(ids)
    return {"dtype": column.dtype.str, "data": column.tobytes()}
