"""From the epochs that a packet carries to its photometry: sorted, each once, part by part.

One visit gives one point, whichever lists of the packet hold it. Of several the first by this rule
stays: total flux before difference flux, forced photometry before a detection, then the smaller
(error, flux), which is also how windows settle an epoch that comes again in a later packet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broker_filter.decode.native import star_fault
from broker_filter.decode.selection import Packet
from broker_filter.errors import PoisonMessage
from broker_filter.photometry.times import SECONDS_PER_DAY
from broker_filter.photometry.usable import Limits, accept
from broker_filter.types import FloatArray, IntArray, Photometry, StarId

__all__ = ["SAME_EPOCH_DAYS", "Epochs", "Star", "epochs_of", "make_packet", "useless"]

SAME_EPOCH_DAYS: Final = 1.0 / SECONDS_PER_DAY
"""Epochs of one band that are closer than this are one."""


@dataclass(frozen=True, slots=True)
class Star:
    """Whose epochs a packet carries.

    Parameters
    ----------
    survey : str
    name : str or int
    ra, dec : float
        Degrees; NaN or out of range where they are unknown.
    same_epoch_s : float
        See `Photometry`.
    """

    survey: str
    name: StarId
    ra: float
    dec: float
    same_epoch_s: float = 0.0

    @property
    def coordinates(self) -> dict[StarId, tuple[float, float]]:
        """As `Photometry` holds them: empty where they are unknown."""
        known = 0 <= self.ra <= 360 and -90 <= self.dec <= 90
        return {self.name: (self.ra, self.dec)} if known else {}


@dataclass(frozen=True, slots=True)
class Epochs:
    """Epochs of one star, shape (n,) each.

    Parameters
    ----------
    mjd_tai : ndarray, float64, days
        Mid-exposure.
    flux, flux_err : ndarray, float64, nJy
    band : ndarray of str
    total : ndarray, bool
        Total flux, or difference flux.
    forced : ndarray, bool
        Measured where the star is known to be, or where something was detected.
    source : ndarray, int64
        Code of the camera or reference image that the baseline belongs to.
    visit : ndarray, int64
        Exposure and detector; -1 where unknown.
    ref_flux, ref_flux_err : ndarray, float64, nJy
        Flux of the star in the reference image; NaN where unknown.
    """

    mjd_tai: FloatArray
    flux: FloatArray
    flux_err: FloatArray
    band: NDArray[Any]
    total: NDArray[np.bool_]
    forced: NDArray[np.bool_]
    source: IntArray
    visit: IntArray
    ref_flux: FloatArray
    ref_flux_err: FloatArray

    def __len__(self) -> int:
        return len(self.mjd_tai)

    def take(self, rows: NDArray[Any]) -> Epochs:
        """Some of the rows."""
        return Epochs(*[column[rows] for column in _columns_of(self)])


_columns_of: Final = attrgetter(*(field.name for field in fields(Epochs)))


def epochs_of(
    mjd_tai: FloatArray,
    flux: FloatArray,
    flux_err: FloatArray,
    band: NDArray[Any],
    *,
    total: ArrayLike,
    forced: bool,
    source: ArrayLike = 0,
    visit: ArrayLike = -1,
    ref_flux: ArrayLike = np.nan,
    ref_flux_err: ArrayLike = np.nan,
) -> Epochs:
    """Epochs of which some columns hold one value throughout; see `Epochs`."""
    columns = (mjd_tai, flux, flux_err, band, total, forced, source, visit, ref_flux, ref_flux_err)
    n = len(mjd_tai)
    whole: list[Any] = [c if isinstance(c, np.ndarray) else np.full(n, c) for c in columns]
    return Epochs(*whole)


def useless(reason: str) -> Packet:
    """A packet that holds nothing of use, for one reason."""
    return Packet((), Counter({reason: 1}))


def make_packet(
    star: Star,
    parts: Sequence[Epochs],
    rejected: Counter[str],
    source_name: Callable[[int], str] = lambda _: "",
) -> Packet:
    """Sort epochs, leave out the unusable and the doubled, and part them by band, kind and source.

    Parameters
    ----------
    star : Star
    parts : sequence of Epochs
    rejected : Counter
        Epochs left out so far; those of here are added under the reasons of
        `broker_filter.photometry.usable.accept`, and ``duplicate``.
    source_name : callable
        From the code of a source to its name.

    Returns
    -------
    Packet
        Its parts are in order of their newest epoch, so that the window moves no further than it
        must before the last of them comes.

    Raises
    ------
    PoisonMessage
        ``bad_star_id`` where the star's name is longer than 64 bytes, ends in NUL or is no text.
    """
    if isinstance(star.name, str) and (fault := star_fault(star.name)):
        raise PoisonMessage("bad_star_id", f"{fault}: {star.name[:80]!r}")
    epochs = _usable(_joined(parts), rejected)
    once = _once_each(epochs)
    if len(once) < len(epochs):
        rejected["duplicate"] += len(epochs) - len(once)
    photometry = [_photometry(star, part, source_name) for part in _parted(once)]
    photometry.sort(key=lambda part: float(part.mjd_tai[-1]))
    return Packet(tuple(photometry), rejected)


def _joined(parts: Sequence[Epochs]) -> Epochs:
    return Epochs(*map(np.concatenate, zip(*map(_columns_of, parts), strict=True)))


def _usable(epochs: Epochs, rejected: Counter[str]) -> Epochs:
    """Drop what cannot be used before it can take the place of what can."""
    row: list[StarId] = list(range(len(epochs)))
    columns = epochs.mjd_tai, epochs.flux, epochs.flux_err, np.zeros(len(row), np.uint32)
    references = epochs.ref_flux, epochs.ref_flux_err
    accepted = accept(Photometry("", "", "", row, *columns, *references), Limits())
    if not accepted.rejected:
        return epochs
    rejected.update(accepted.rejected)
    return epochs.take(np.array(accepted.photometry.star, np.int64))


def _once_each(epochs: Epochs) -> Epochs:
    """One epoch of each visit and band, in order of time."""
    band, time = _codes(epochs.band), epochs.mjd_tai
    named = np.flatnonzero(epochs.visit >= 0)
    best = _best(epochs, named, band, epochs.visit[named])
    rows = np.concatenate([best, np.flatnonzero(epochs.visit < 0)])
    rows = rows[np.lexsort((time[rows], band[rows]))]
    again = np.diff(time[rows], prepend=-np.inf) < SAME_EPOCH_DAYS
    again &= ~_first(band[rows])
    if again.any():
        rows = _best(epochs, rows, band, np.cumsum(~again))
    return epochs.take(rows[np.argsort(time[rows], kind="stable")])


def _best(epochs: Epochs, rows: IntArray, band: IntArray, group: IntArray) -> IntArray:
    """The best of these rows in each group, one of each row, and band."""
    if not len(rows):
        return rows
    rank, band = 2 * ~epochs.total[rows] + ~epochs.forced[rows], band[rows]
    order = np.lexsort((epochs.flux[rows], epochs.flux_err[rows], rank, group, band))
    return np.asarray(rows[order[_first(band[order]) | _first(group[order])]])


def _first(values: IntArray) -> NDArray[np.bool_]:
    """Which differ from the one before."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


def _codes(values: NDArray[Any]) -> IntArray:
    """Number of each value in the order of all that occur; they are few, unlike the epochs."""
    listed = values.tolist()
    code = {value: i for i, value in enumerate(sorted(set(listed)))}
    return np.fromiter(map(code.__getitem__, listed), np.int64, len(listed))


def _parted(epochs: Epochs) -> list[Epochs]:
    """Parts of one band, source and kind."""
    key = (_codes(epochs.band) * len(epochs) + _codes(epochs.source)) * 2 + epochs.total
    return [epochs.take(np.flatnonzero(key == value)) for value in np.unique(key)]


def _photometry(star: Star, part: Epochs, source_name: Callable[[int], str]) -> Photometry:
    return Photometry(
        survey=star.survey,
        band=str(part.band[0]),
        source=source_name(int(part.source[0])),
        star=[star.name] * len(part),
        mjd_tai=part.mjd_tai,
        flux=part.flux,
        flux_err=part.flux_err,
        flags=np.zeros(len(part), np.uint32),
        ref_flux=part.ref_flux,
        ref_flux_err=part.ref_flux_err,
        kind="total" if part.total[0] else "difference",
        coordinates=star.coordinates,
        same_epoch_s=star.same_epoch_s,
    )
