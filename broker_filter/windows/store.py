"""Windows of one partition: the newest epochs of each star and band, and what came before them.

A window of T days is anchored to a grid of T/4: it starts at floor(t_newest / (T/4)) T/4 - 3T/4, so
its end lies in the future. When the anchor moves on, the epochs before the new start leave and fold
into the running statistics of their track: one source of one star and band, with a baseline
and an error scale of its own.

Windows are kept in order of time, so that a known epoch is found by binary search and a read is a
copy. A message is inserted by array operations alone; nothing here is a Python object per point.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.errors import StateError
from broker_filter.photometry.times import SECONDS_PER_DAY
from broker_filter.photometry.usable import by_reference
from broker_filter.state.columns import (
    Column,
    Columns,
    arrays_of,
    packed,
    packed_stars,
    unpacked,
    unpacked_stars,
)
from broker_filter.types import FloatArray, IntArray, Photometry, StarId, WindowBatch
from broker_filter.windows.instruments import SourceTable
from broker_filter.windows.points import PagedPoints, grown, spans
from broker_filter.windows.readout import Readout
from broker_filter.windows.tracks import COLUMNS, Tracks

__all__ = ["WindowStore"]

TICKS_PER_DAY: Final = 1e6
"""Times are kept to the tick (0.09 s): epochs of one track in the same tick are one epoch."""

NEVER: Final = -(1 << 40)
CHUNK_POINTS: Final = 1 << 21
MOST_HELD: Final = 16
"""Points held for each epoch to be found up to which it is faster to look at all of them."""

_ONE: Final = np.ones(1, np.bool_)

_OWN: Final = ("book", "newest", "anchor", "place")
"""What the store itself keeps of each window."""


@dataclass(frozen=True, slots=True)
class _Epochs:
    """Epochs of one source, those of one slot together and in order of time."""

    slot: IntArray
    time: FloatArray
    cell: IntArray
    flux: NDArray[np.float32]
    error: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.slot)

    def take(self, rows: IntArray | NDArray[np.bool_]) -> _Epochs:
        return _Epochs(
            *(self.slot[rows], self.time[rows], self.cell[rows]),
            *(self.flux[rows], self.error[rows]),
        )

    def runs(self) -> tuple[IntArray, IntArray]:
        """First row of each slot, and how many it has."""
        bounds = np.flatnonzero(np.concatenate([_ONE, _changes(self.slot), _ONE]))
        return bounds[:-1], bounds[1:] - bounds[:-1]

    def by_cell(self, cell: IntArray) -> list[_Epochs]:
        """Part ``i`` holds what each slot has in the ``i``-th of its cells, which are in order."""
        group = np.cumsum(np.concatenate([~_ONE, _changes(self.slot) | _changes(cell)]))
        first, size = self.runs()
        if group[-1] == len(first) - 1:
            return [self]
        rank = group - np.repeat(group[first], size)
        by_rank = np.argsort(rank, kind="stable")
        return [self.take(rows) for rows in np.split(by_rank, np.cumsum(np.bincount(rank))[:-1])]

    def in_order(self) -> _Epochs:
        """The epochs of each slot together, by (time, error, flux)."""
        slot, time = self.slot, self.time
        later = (slot[1:] == slot[:-1]) & (time[1:] > time[:-1])
        if (later | (slot[1:] > slot[:-1])).all():
            return self
        return self.take(np.lexsort((self.flux, self.error, time, slot)))


class WindowStore:
    """All windows of one partition.

    Parameters
    ----------
    window_days : float
        Length T of a window.
    max_points : int
        Most epochs that a window may hold; the newest beyond are rejected as ``window_full``.
    baseline_floor : float
        Smallest relative error of a baseline: flat fields and skies are no better.
    """

    def __init__(
        self, window_days: float = 20.0, max_points: int = 4096, baseline_floor: float = 1e-4
    ) -> None:
        self.window_days = window_days
        self.max_points = max_points
        self.star: list[StarId] = []
        self._step = window_days / 4
        self._counts: Counter[str] = Counter()
        self._slot_of: dict[tuple[str, str], dict[StarId, int]] = {}
        self._books: list[tuple[str, str]] = []
        self._book = np.zeros(0, np.uint16)
        self._sources = SourceTable()
        self._newest = np.zeros(0)
        self._anchor = np.zeros(0, np.int64)
        self._place = np.zeros((0, 2))
        self._turn = np.zeros(0, np.int32)
        self._points = PagedPoints()
        self._tracks = Tracks(baseline_floor)
        self._readout = Readout(self._points, self._tracks, self._sources)

    def __len__(self) -> int:
        return len(self.star)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, bytes."""
        own = (self._newest, self._anchor, self._place, self._book, self._turn)
        return self._points.nbytes + self._tracks.nbytes + sum(array.nbytes for array in own)

    @property
    def pages(self) -> int:
        """Pages of 64 points in use."""
        return self._points.pages_in_use

    @property
    def newest(self) -> FloatArray:
        """Newest epoch of each window, shape (len(self),), MJD TAI."""
        return self._newest[: len(self)]

    @property
    def count(self) -> NDArray[np.int32]:
        """Epochs in each window, shape (len(self),)."""
        return self._points.count[: len(self)]

    def wanted_from(
        self, survey: str, star: StarId, look_back_days: float = math.inf
    ) -> dict[str, float]:
        """From when on epochs of a star can still be taken: older ones would be ``late``.

        Parameters
        ----------
        survey : str
        star : str or int
        look_back_days : float
            Leave out what is older than a band's newest epoch by more, too.

        Returns
        -------
        dict of str to float
            By band, MJD TAI; bands of which nothing is known are not in it.
        """
        wanted = {}
        for (its_survey, band), slot_of in self._slot_of.items():
            slot = slot_of.get(star) if its_survey == survey else None
            if slot is not None:
                start = (self._anchor[slot] - 3) * self._step - 1 / TICKS_PER_DAY
                wanted[band] = float(max(start, self._newest[slot] - look_back_days))
        return wanted

    def take_counts(self) -> dict[str, int]:
        """Epochs by outcome since the last call; every epoch has exactly one.

        ``inserted``, ``duplicate``, ``late`` (older than its window's start), ``window_full``,
        ``too_many_sources``. Besides, ``no_baseline`` counts the sources of windows that could
        not be read, ``difference_without_reference`` those of them that are difference flux of a
        star whose total flux is not known, and ``not_finite`` the points left out because no star
        can be so many baselines bright or so many errors away from its baseline.
        """
        counts, self._counts = self._counts, Counter()
        return {outcome: n for outcome, n in counts.items() if n}

    def siblings(self, slots: IntArray) -> tuple[IntArray, IntArray]:
        """Windows of the same stars in other bands of the same survey.

        Returns
        -------
        owner, sibling : ndarray, shape (m,), int64
            Place in ``slots`` and slot of each; those of one owner in order of their bands' names.
        """
        owner: list[int] = []
        sibling: list[int] = []
        for book in np.unique(self._book[slots]).tolist():
            survey, band = self._books[book]
            others = sorted(key for key in self._books if key[0] == survey and key[1] != band)
            for row in np.flatnonzero(self._book[slots] == book).tolist() if others else ():
                star = self.star[slots[row]]
                found = [self._slot_of[key][star] for key in others if star in self._slot_of[key]]
                owner += [row] * len(found)
                sibling += found
        return np.array(owner, np.int64), np.array(sibling, np.int64)

    def insert(self, photometry: Photometry) -> IntArray:
        """Insert the epochs of a message.

        Parameters
        ----------
        photometry : Photometry
            Usable epochs (`broker_filter.photometry.usable.accept`), in any order.

        Returns
        -------
        ndarray, shape (m,), int64
            Slots whose newest epoch is new, each once, sorted.

        Notes
        -----
        Windows and histories are functions of the set of epochs alone, as long as none comes after
        its window has moved past it (such are ``late``): the order, the messages and the
        steps in which they come leave no trace. Of epochs of one track in the same tick the
        one of smallest (error, flux) stays, and of total and difference flux of one camera in the
        same tick total flux. Where the times of one exposure differ from message to message
        (``same_epoch_s``), that which came first stays.
        """
        moved = [self._insert(part) for part in by_reference(photometry)]
        if len(moved) == 1:
            return moved[0]
        return np.unique(np.concatenate([np.empty(0, np.int64), *moved]))

    def _insert(self, photometry: Photometry) -> IntArray:
        source = self._sources.code(photometry)
        if source < 0:
            self._counts["too_many_sources"] += len(photometry)
        if source < 0 or not len(photometry):
            return np.empty(0, np.int64)
        slot = self._slots(photometry)
        track = self._tracks.of(slot, source)
        if np.isfinite(photometry.ref_flux).any():
            self._tracks.refer(track, photometry.ref_flux, photometry.ref_flux_err)
        time = np.rint(photometry.mjd_tai * TICKS_PER_DAY) / TICKS_PER_DAY
        if photometry.same_epoch_s:
            time = self._as_known(slot, time, source, photometry.same_epoch_s / SECONDS_PER_DAY)
        epochs = _Epochs(
            *(slot, time, self._cell(time)),
            *(photometry.flux.astype(np.float32), photometry.flux_err.astype(np.float32)),
        )
        distinct = self._distinct(slot)
        if not distinct:
            epochs = epochs.in_order()
            slot = epochs.slot[epochs.runs()[0]]
        before = self._newest[slot]
        epochs = epochs if distinct else self._fold_past(epochs, source)
        for part in self._steps(epochs, distinct=distinct):
            self._insert_step(part, source)
        moved = slot[self._newest[slot] > before]
        return np.sort(moved) if distinct else moved

    def _as_known(
        self, slot: IntArray, time: FloatArray, source: int, within_days: float
    ) -> FloatArray:
        """The times under which windows hold these epochs, where those differ by no more."""
        points, held = self._points, self._points.count[slot].astype(np.int64)
        after = points.search(slot, lambda place: points.time[place] < time)
        known = time
        for at in (after - 1, after):
            inside = (at >= 0) & (at < held)
            place = points.place(slot, np.where(inside, at, 0))
            code = points.source[place]
            same = inside & ((code == source) | (code == self._sources.other[source]))
            same &= np.abs(points.time[place] - time) <= within_days
            known = np.where(same, points.time[place], known)
        return known

    def _distinct(self, slot: IntArray) -> bool:
        """Whether no slot occurs twice; `_turn` is room to note who came last."""
        turn = np.arange(len(slot), dtype=np.int32)
        self._turn[slot] = turn
        return bool((self._turn[slot] == turn).all())

    def _slots(self, photometry: Photometry) -> IntArray:
        """Slot of each epoch; new ones come into being."""
        key, star = (photometry.survey, photometry.band), photometry.star
        slot_of = self._slot_of.setdefault(key, {})
        slot = np.fromiter(map(slot_of.get, star, repeat(-1)), np.int64, len(star))
        missing = np.flatnonzero(slot < 0)
        if len(missing):
            self._welcome(key, list(dict.fromkeys(star[i] for i in missing.tolist())))
            slot[missing] = [slot_of[star[i]] for i in missing.tolist()]
        if photometry.coordinates and np.isnan(self._place[slot, 0]).any():
            for name, place in photometry.coordinates.items():
                self._place[slot_of[name]] = place
        return slot

    def _welcome(self, key: tuple[str, str], stars: list[StarId]) -> None:
        if key not in self._books:
            self._books.append(key)
        first, size = len(self), len(self) + len(stars)
        self.star += stars
        self._slot_of[key].update(zip(stars, range(first, size), strict=True))
        self._make_room(size)
        self._book[first:size] = self._books.index(key)

    def _make_room(self, size: int) -> None:
        self._newest = grown(self._newest, size, -np.inf)
        self._anchor = grown(self._anchor, size, NEVER)
        self._place = grown(self._place, size, np.nan)
        self._book = grown(self._book, size)
        self._turn = grown(self._turn, size)
        self._points.add_rows(size)
        self._tracks.add_rows(size)

    def _cell(self, time: FloatArray) -> IntArray:
        return np.floor(time / self._step).astype(np.int64)

    def _steps(self, epochs: _Epochs, *, distinct: bool) -> list[_Epochs]:
        """Epochs in the order of time in which their windows must see them.

        Step ``i`` holds what each slot has in the ``i``-th cell that its window has to move to.
        Those in cells that it has been moved to already move nothing, and go together.
        """
        if distinct:
            return [epochs]
        return epochs.by_cell(np.maximum(epochs.cell, self._anchor[epochs.slot]))

    def _insert_step(self, epochs: _Epochs, source: int) -> None:
        """Insert epochs that move each window once at most, and then are all ahead of it."""
        late = epochs.cell < self._anchor[epochs.slot] - 3
        if late.any():
            self._counts["late"] += int(late.sum())
            epochs = epochs.take(~late)
        epochs = self._once_a_tick(epochs)
        ahead = epochs.time > self._newest[epochs.slot]
        if not ahead.all():
            self._merge(epochs.take(~ahead), source)
            epochs = epochs.take(ahead)
        if len(epochs):
            self._append(epochs, source)

    def _once_a_tick(self, epochs: _Epochs) -> _Epochs:
        """The first epoch of each slot and tick, which is the best one; the others are counted."""
        known = ~(_changes(epochs.slot) | _changes(epochs.time))
        if not known.any():
            return epochs
        self._counts["duplicate"] += int(known.sum())
        return epochs.take(np.concatenate([_ONE, ~known]))

    def _fold_past(self, epochs: _Epochs, source: int) -> _Epochs:
        """Fold the history of stars that were not seen before; what their windows hold is left.

        What would only pass through the window goes straight into its track, cell by cell.
        """
        first, size = epochs.runs()
        slot, newest = epochs.slot[first], epochs.cell[first + size - 1]
        new = (self._newest[slot] == -np.inf) & (size <= self.max_points)
        past = epochs.cell < np.repeat(np.where(new, newest - 3, NEVER), size)
        if not past.any():
            return epochs
        self._anchor[slot[new]] = newest[new]
        history = self._once_a_tick(epochs.take(past))
        self._counts["inserted"] += len(history)
        for part in history.by_cell(history.cell):
            track = self._tracks.of(part.slot, source)
            self._tracks.fold(track, part.time, part.flux, part.error)
        return epochs.take(~past)

    def _advance(self, slot: IntArray, cell: IntArray) -> None:
        """Move windows on, cell by cell, and fold what leaves them into their tracks."""
        moved = cell > self._anchor[slot]
        slot, cell = slot[moved], cell[moved]
        self._anchor[slot] = cell
        while len(slot):
            oldest = self._cell(self._points.time[self._points.place(slot, 0)])
            leaving = (self._points.count[slot] > 0) & (oldest < cell - 3)
            slot, cell, oldest = slot[leaving], cell[leaving], oldest[leaving]
            points = int(self._points.count[slot].sum())
            for rows in np.array_split(np.arange(len(slot)), 1 + points // CHUNK_POINTS):
                self._fold(slot[rows], oldest[rows])

    def _fold(self, slot: IntArray, oldest: IntArray) -> None:
        """Fold all points of the oldest cell of each window."""
        n = self._points.search(slot, lambda p: self._cell(self._points.time[p]) <= oldest)
        owner, position = spans(np.zeros_like(n), n)
        place = self._points.place(slot[owner], position)
        time, flux, error, source = self._points.columns(place)
        for code in np.unique(source).tolist():
            of = np.flatnonzero(source == code)
            track = self._tracks.of(slot[owner[of]], code)
            self._tracks.fold(track, time[of], flux[of], error[of])
        self._points.drop_front(slot, n)

    def _append(self, epochs: _Epochs, source: int) -> None:
        """Add epochs that are newer than all that their windows have seen."""
        first, size = epochs.runs()
        slot = epochs.slot[first]
        self._advance(slot, epochs.cell[first])
        self._newest[slot] = epochs.time[first + size - 1]
        held = self._points.count[slot].astype(np.int64)
        total = np.minimum(held + size, self.max_points)
        taken = int((total - held).sum())
        self._counts["inserted"] += taken
        self._counts["window_full"] += len(epochs) - taken
        self._points.lengthen(slot, total)
        owner, position = spans(held, total)
        if taken < len(epochs):
            epochs = epochs.take(first[owner] + position - held[owner])
        code = np.full(taken, source, np.uint16)
        columns = epochs.time, epochs.flux, epochs.error, code
        self._points.write(self._points.place(epochs.slot, position), columns)

    def _merge(self, epochs: _Epochs, source: int) -> None:
        """Put epochs at their places in the order of (time, source); settle those known."""
        points = self._points
        epochs = self._of_one_kind(epochs, source)
        if not len(epochs):
            return
        position = self._position(epochs, source)
        inside = position < points.count[epochs.slot]
        place = points.place(epochs.slot, np.where(inside, position, 0))
        known = inside & (points.time[place] == epochs.time) & (points.source[place] == source)
        if known.all():
            self._settle(place, epochs)
            return
        self._settle(place[known], epochs.take(known))
        self._splice(epochs.take(~known), position[~known], source)

    def _of_one_kind(self, epochs: _Epochs, source: int) -> _Epochs:
        """Settle epochs that windows hold as the camera's other kind of flux: total flux stays."""
        points, other = self._points, int(self._sources.other[source])
        if other < 0:
            return epochs
        position = self._position(epochs, other)
        inside = position < points.count[epochs.slot]
        place = points.place(epochs.slot, np.where(inside, position, 0))
        known = inside & (points.time[place] == epochs.time) & (points.source[place] == other)
        if not known.any():
            return epochs
        self._counts["duplicate"] += int(known.sum())
        if self._sources.difference[other]:
            total = epochs.take(known)
            code = np.full(len(total), source, np.uint16)
            points.write(place[known], (total.time, total.flux, total.error, code))
        return epochs.take(~known)

    def _position(self, epochs: _Epochs, source: int) -> IntArray:
        """How many points of its window come before each epoch."""
        points, rank = self._points, self._sources.rank

        def before(place: IntArray) -> NDArray[np.bool_]:
            held = points.time[place]
            same_time = (held == epochs.time) & (rank[points.source[place]] < rank[source])
            return np.asarray((held < epochs.time) | same_time)

        first, size = epochs.runs()
        slot = epochs.slot[first]
        held = points.count[slot].astype(np.int64)
        if held.sum() > MOST_HELD * len(epochs):
            return points.search(epochs.slot, before)
        # A history that comes again: all points are looked at, in one go.
        owner, at = spans(np.zeros_like(held), held)
        place = points.place(slot[owner], at)
        window = np.repeat(np.arange(len(slot)), size)
        key, wanted = owner + 1j * points.time[place], window + 1j * epochs.time
        position = np.searchsorted(key, wanted)
        found = np.minimum(position, len(key) - 1)
        if ((key[found] == wanted) & (points.source[place[found]] != source)).any():
            return points.search(epochs.slot, before)
        return np.asarray(position - (np.cumsum(held) - held)[window])

    def _settle(self, place: IntArray, epochs: _Epochs) -> None:
        """Of two values of one epoch the smaller (error, flux) stays."""
        self._counts["duplicate"] += len(place)
        flux, error = self._points.flux[place], self._points.error[place]
        better = (epochs.error < error) | ((epochs.error == error) & (epochs.flux < flux))
        if better.any():
            place, epochs = place[better], epochs.take(better)
            time, _, _, source = self._points.columns(place)
            self._points.write(place, (time, epochs.flux, epochs.error, source))

    def _splice(self, epochs: _Epochs, position: IntArray, source: int) -> None:
        """Insert new epochs before the points at ``position``: only what follows is rewritten."""
        first, size = epochs.runs()
        slot, start = epochs.slot[first], position[first]
        held = self._points.count[slot].astype(np.int64)
        total = np.minimum(held + size, self.max_points)
        owner, tail = spans(start, held)
        old = self._points.columns(self._points.place(slot[owner], tail))
        code = np.full(len(epochs.slot), source, np.uint16)
        new = epochs.time, epochs.flux, epochs.error, code
        time, flux, error, sources = (
            *(np.concatenate([old[0], new[0]]), np.concatenate([old[1], new[1]])),
            *(np.concatenate([old[2], new[2]]), np.concatenate([old[3], new[3]])),
        )
        owner = np.concatenate([owner, np.repeat(np.arange(len(slot)), size)])
        order = np.lexsort((self._sources.rank[sources], time, owner))
        owner, at = spans(start, held + size)
        kept = at < total[owner]
        order, owner, at = order[kept], owner[kept], at[kept]
        self._points.lengthen(slot, total)
        place = self._points.place(slot[owner], at)
        self._points.write(place, (time[order], flux[order], error[order], sources[order]))
        self._counts["inserted"] += int((total - held).sum())
        self._counts["window_full"] += int((held + size - total).sum())

    def read(self, slots: IntArray, *, count: bool = True) -> WindowBatch:
        """Read windows in units of their baselines, each source in units of its own.

        Parameters
        ----------
        slots : ndarray, shape (B,), int64
        count : bool
            Whether what cannot be read is counted.

        Returns
        -------
        WindowBatch
            In the order of ``slots``. Points of a source without a usable baseline are left out,
            and so are windows that hold no others; both are counted as ``no_baseline`` or
            ``difference_without_reference``.
        """
        reading = self._readout(slots)
        if count:
            self._counts.update(reading.losses)
        kept = np.flatnonzero(reading.window.n)
        slot, part = slots[kept], reading.window.take(kept)
        # The newest source speaks for the window.
        newest = self._points.place(slot, self._points.count[slot].astype(np.int64) - 1)
        books = [self._books[book] for book in self._book[slot].tolist()]
        return WindowBatch(
            slot=slot,
            star=[self.star[i] for i in slot.tolist()],
            survey=[survey for survey, _ in books],
            band=[band for _, band in books],
            coordinates=[
                None if math.isnan(ra) else (ra, dec) for ra, dec in self._place[slot].tolist()
            ],
            t_start=(self._anchor[slot] - 3).astype(np.float64) * self._step,
            mjd_tai=part.time,
            flux=part.flux.astype(np.float32, copy=False),
            sigma=part.error.astype(np.float32, copy=False),
            n=part.n,
            baseline=reading.newest(reading.units.level)[kept],
            baseline_err=reading.newest(reading.units.level_err)[kept],
            baseline_error=reading.common_error()[kept],
            relative=self._sources.relative[self._points.source[newest]],
            source=reading.source()[kept][:, : part.time.shape[1]],
            sources=[
                self._sources.names(code for code in row if code >= 0)
                for row in reading.code[kept].tolist()
            ],
            source_level=reading.units.level[kept],
            source_error=reading.units.error[kept],
        )

    def state(self) -> dict[str, Column]:
        """A copy of all that the store holds, as columns for a snapshot."""
        size = len(self)
        tracks = {f"track.{name}": getattr(self._tracks, name) for name in COLUMNS}
        return {
            **packed_stars("star", self.star),
            **packed("books", [text for book in self._books for text in book]),
            **self._sources.state(),
            **{name: getattr(self, f"_{name}")[:size].copy() for name in _OWN},
            **{name: array[: self._tracks.size].copy() for name, array in tracks.items()},
            **self._points.state(size),
        }

    def restore(self, columns: Columns) -> None:
        """Take over what another store of the same window length held; this one must be empty.

        ``max_points`` and the baseline's floor are those of this store: of a window that holds more
        than ``max_points`` the first stay.

        Parameters
        ----------
        columns : mapping of str to array or Streamed
            What `state` gave.

        Raises
        ------
        StateError
            If columns are missing or contradict each other.
        """
        try:
            self._restore(arrays_of(columns))
        except (LookupError, ValueError, TypeError) as error:
            raise StateError(f"the windows of the snapshot cannot be used: {error!r}") from error

    def _restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        books = unpacked("books", columns)
        self._books = list(zip(books[::2], books[1::2], strict=True))
        self._sources.restore(columns)
        self.star = unpacked_stars("star", columns)
        self._make_room(len(self))
        for name in _OWN:
            getattr(self, f"_{name}")[: len(self)] = columns[name]
        for slot, (star, book) in enumerate(zip(self.star, columns["book"].tolist(), strict=True)):
            self._slot_of.setdefault(self._books[book], {})[star] = slot
        self._tracks.restore({name: columns[f"track.{name}"] for name in COLUMNS})
        self._points.restore(columns, self.max_points)


def _changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each value but the first differs from the one before it."""
    return np.asarray(values[1:] != values[:-1])
