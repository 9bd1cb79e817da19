"""Reads single-star messages together where they are alike.

The messages of one producer differ in their numbers: star, position, times, fluxes, errors, flags.
All the rest (names, lengths, which optional fields are there) is the same bytes at the same places.
So one message is read field by field, those that equal it in all other bytes are laid below each
other as the rows of a matrix, and their numbers are its columns. What is like no other is left to
`broker_filter.decode.native.decode_photometry`, which gives the same photometry for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from broker_filter.decode.native import MAX_STAR_ID_BYTES, decode_photometry, star_fault
from broker_filter.decode.native_reader import Layout, layout_of
from broker_filter.errors import PoisonMessage
from broker_filter.types import FloatArray, IntArray, Photometry, StarId

__all__ = ["read_alike"]

FEWEST: Final = 4
"""Fewer messages are read one by one in the same time."""

MOST_KINDS: Final = 16
"""Kinds of messages of one length; more are a stream of no pattern, read one by one."""

MAX_BYTES: Final = 4096
"""Longer messages hold so many epochs that nothing is gained."""

LONGEST_ID: Final = 9
"""Bytes of an integer of 63 bits; those of 64 are read one by one."""

ASCII: Final = 0x80

_Bytes: TypeAlias = NDArray[np.uint8]


def read_alike(values: Sequence[bytes]) -> Iterator[tuple[IntArray, Photometry]]:
    """Read those of many ``photometry`` messages that are like others.

    Parameters
    ----------
    values : sequence of bytes
        Records without a container or framing; they may hold anything.

    Yields
    ------
    ndarray, shape (m,), int64
        Which of the values; each comes once at most, and those with a fault never do.
    Photometry
        Their epochs, the same number of each, in this order.
    """
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for i, value in enumerate(values):
        by_length[len(value)].append(i)
    for length, rows in by_length.items():
        left = np.array(rows)
        for _ in range(MOST_KINDS if length <= MAX_BYTES else 0):
            if len(left) < FEWEST:
                break
            alike, photometry = _read_like_first([values[i] for i in left.tolist()])
            if photometry is not None:
                yield left[alike], photometry
            left = left[~alike]


def _read_like_first(values: Sequence[bytes]) -> tuple[NDArray[np.bool_], Photometry | None]:
    """Which of messages of one length are like the first, itself included, and what they hold."""
    alike = np.zeros(len(values), bool)
    alike[0] = True
    try:
        first = decode_photometry(values[0])
    except PoisonMessage:
        return alike, None
    layout = layout_of(values[0])
    matrix = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
    alike = _same_frame(matrix, layout)
    star: list[StarId] | None
    if layout.text:
        star, alike = _text_ids(matrix[:, layout.star], alike)
    else:
        star = _integer_ids(matrix[alike][:, layout.star])
    if not star:
        alike[0] = True
        return alike, None
    return alike, _photometry(first, star, matrix[alike], layout)


def _same_frame(matrix: _Bytes, layout: Layout) -> NDArray[np.bool_]:
    """Which rows equal the first one but for numbers and ids."""
    framing = np.ones(matrix.shape[1], bool)
    numbers = (layout.ra, layout.dec, layout.times, layout.flux, layout.flux_err, layout.flags)
    for span in (layout.star, *numbers, layout.ref_flux, layout.ref_flux_err):
        if span is not None:
            framing[span] = False
    alike = (matrix[:, framing] == matrix[0, framing]).all(axis=1)
    if not layout.text:  # an integer is of the same length where its bytes go on at the same places
        goes_on = matrix[:, layout.star] > 0x7F
        alike &= (goes_on == goes_on[0]).all(axis=1)
    return np.asarray(alike)


def _text_ids(names: _Bytes, alike: NDArray[np.bool_]) -> tuple[list[StarId], NDArray[np.bool_]]:
    """The names of stars, a row of UTF-8 each, and which messages have good ones."""
    plain = (names < ASCII).all() and names[:, -1].all() and names.shape[1] <= MAX_STAR_ID_BYTES
    if plain:  # a character a byte
        text, width = names[alike].tobytes().decode(), names.shape[1]
        return [text[i : i + width] for i in range(0, len(text), width)], alike
    star: list[StarId] = []
    good = alike.copy()
    for i in np.flatnonzero(alike).tolist():
        try:
            name = names[i].tobytes().decode()
        except UnicodeDecodeError:
            name = ""
        if not name or star_fault(name):
            good[i] = False
        else:
            star.append(name)
    return star, good


def _integer_ids(digits: _Bytes) -> list[StarId] | None:
    """Read zig-zag integers of one length, a row each; None where they may take 64 bits."""
    if digits.shape[1] > LONGEST_ID:
        return None
    shift = 7 * np.arange(digits.shape[1], dtype=np.uint64)
    raw = ((digits & 0x7F).astype(np.uint64) << shift).sum(axis=1, dtype=np.uint64)
    half, sign = (raw >> np.uint64(1)).astype(np.int64), (raw & np.uint64(1)).astype(np.int64)
    ids: list[StarId] = (half ^ -sign).tolist()
    return ids


def _photometry(
    first: Photometry, star: Sequence[StarId], rows: _Bytes, layout: Layout
) -> Photometry:
    """The epochs of messages that are like the one that ``first`` came from."""
    n, epochs = len(star), len(first)

    def column(span: slice, dtype: str) -> NDArray[Any]:
        return np.ascontiguousarray(rows[:, span]).view(dtype).reshape(-1)

    def reference(span: slice | None) -> FloatArray:
        each = np.full(n, np.nan) if span is None else column(span, "<f8")
        return np.repeat(each, epochs)

    with np.errstate(invalid="ignore"):  # a signalling NaN is one like any other
        flux = column(layout.flux, "<f4").astype(np.float64)
        flux_err = column(layout.flux_err, "<f4").astype(np.float64)
    none = np.zeros(n * epochs, np.uint32)
    return Photometry(
        survey=first.survey,
        band=first.band,
        source=first.source,
        star=[one for one in star for _ in range(epochs)],
        mjd_tai=column(layout.times, "<f8"),
        flux=flux,
        flux_err=flux_err,
        flags=none if layout.flags is None else column(layout.flags, "<u4"),
        ref_flux=reference(layout.ref_flux),
        ref_flux_err=reference(layout.ref_flux_err),
        kind=first.kind,
        relative=first.relative,
        coordinates=_places(star, rows, layout),
    )


def _places(
    star: Sequence[StarId], rows: _Bytes, layout: Layout
) -> dict[StarId, tuple[float, float]]:
    """Where the stars are whose messages say so."""
    if layout.ra is None or layout.dec is None:
        return {}
    spans = (layout.ra, layout.dec)
    ra, dec = (np.ascontiguousarray(rows[:, span]).view("<f8")[:, 0] for span in spans)
    known = ((ra >= 0) & (ra <= 360) & (dec >= -90) & (dec <= 90)).tolist()
    places = zip(star, zip(ra.tolist(), dec.tolist(), strict=True), known, strict=True)
    return {one: place for one, place, is_known in places if is_known}
