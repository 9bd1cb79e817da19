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
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.errors import StateError
from broker_filter.photometry.times import SECONDS_PER_DAY
from broker_filter.photometry.usable import by_reference
from broker_filter.state.columns import Column, Columns, arrays_of, reading
from broker_filter.types import (
    ALL_BANDS,
    FloatArray,
    IntArray,
    Photometry,
    StarId,
    WindowBatch,
)
from broker_filter.windows.arrays import grown
from broker_filter.windows.compact import rounded_error
from broker_filter.windows.epochs import TICKS_PER_DAY, Epochs
from broker_filter.windows.folding import Folding
from broker_filter.windows.insertion import Insertion
from broker_filter.windows.instruments import Instruments
from broker_filter.windows.news import News
from broker_filter.windows.points import PagedPoints
from broker_filter.windows.readout import Readout
from broker_filter.windows.shedding import SHARE, Shed, quietest
from broker_filter.windows.stars import Stars
from broker_filter.windows.thinning import Thinning
from broker_filter.windows.tracks import COLUMNS, Tracks

__all__ = ["WindowStore"]


class WindowStore:
    """All windows of one partition.

    Parameters
    ----------
    window_days : float
        Length T of a window.
    max_points : int
        Most points that a window may hold; where more epochs come, neighbours of one source are
        merged (`broker_filter.windows.thinning`).
    baseline_floor : float
        Smallest relative error of a baseline: flat fields and skies are no better.
    max_stars : int or None
        Most windows to be held once `shed` has been called.
    joined : bool
        Whether a window holds the epochs of all bands of its star, each a source of its own.
    rise : float
        By how much S^2 must be able to have risen since a window was read for it to be news.
    """

    def __init__(
        self,
        window_days: float = 20.0,
        max_points: int = 4096,
        baseline_floor: float = 1e-4,
        max_stars: int | None = None,
        *,
        joined: bool = False,
        rise: float = math.inf,
    ) -> None:
        self.window_days, self.joined = window_days, joined
        self.max_points, self._max_stars = max_points, max_stars
        step_days = window_days / 4
        self._counts: Counter[str] = Counter()
        self._stars = Stars()
        self._instruments = Instruments()
        self._newest = np.zeros(0)
        self._last_row = np.zeros(0, np.int32)
        self._news = News(rise)
        self._points = PagedPoints()
        self._tracks = Tracks(baseline_floor)
        self._thinning = Thinning(self._points, self._instruments, step_days, max_points)
        self._folding = Folding(self._points, self._tracks, self._thinning, step_days)
        self._insertion = Insertion(self._points, self._instruments, self._thinning, self._counts)
        self._readout = Readout(self._points, self._tracks, self._instruments)

    def __len__(self) -> int:
        return len(self._stars)

    @property
    def star(self) -> list[StarId]:
        """Star of each window."""
        return self._stars.name

    @property
    def nbytes(self) -> int:
        """Memory of all that is held, spare room included, bytes."""
        own = (self._newest, self._folding.anchor, self._last_row, self._thinning.level)
        parts = (self._stars, self._points, self._tracks, self._news)
        return sum(array.nbytes for array in own) + sum(part.nbytes for part in parts)

    @property
    def room(self) -> int:
        """Points that the pages in use have room for."""
        return self._points.points_in_use

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
        bands = dict(self._stars.bands(survey, star))
        slot = np.fromiter(bands.values(), np.int64, len(bands))
        start = self._folding.start(slot) - 1 / TICKS_PER_DAY
        wanted = np.maximum(start, self._newest[slot] - look_back_days)
        found = dict(zip(bands, wanted.tolist(), strict=True))
        if ALL_BANDS in found and self.joined:
            return dict.fromkeys(self._instruments.bands, found[ALL_BANDS])
        return found

    def take_counts(self) -> dict[str, int]:
        """Epochs by outcome since the last call; every epoch has exactly one.

        - ``inserted``
        - ``thinned``: taken by a window that is full, and merged with its neighbours now or when
          newer ones come
        - ``duplicate``
        - ``late``: older than its window's start
        - ``window_full``: of more sources than a window can hold
        - ``too_many_sources``: of a source that is one too many for its window, or for the store

        Besides, what could not be read is counted: ``no_baseline``, sources of windows without a
        baseline; ``difference_without_reference``, those of them that are difference flux of a star
        whose total flux is not known; ``not_finite``, points that are too many baselines bright, or
        too many errors away from the baseline, for any star.
        """
        counts = {outcome: n for outcome, n in self._counts.items() if n}
        self._counts.clear()
        return counts

    def is_news(self, slots: IntArray) -> NDArray[np.bool_]:
        """Which windows can have become more significant by ``rise`` since they were read."""
        return self._news.of(slots)

    def siblings(self, slots: IntArray) -> tuple[IntArray, IntArray]:
        """Windows of the same stars in other bands; see `Stars.siblings`."""
        return self._stars.siblings(slots)

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

        Of a window that is thinned this holds up to rounding, and as long as the epochs of a source
        come in order of time: one that comes later than its neighbours did, into a cell in which
        epochs are merged, counts as ``duplicate``, since which epochs those were is not kept. The
        history of a new star, or of a new source of a star, that comes in one message is folded
        without being thinned.
        """
        moved = [self._insert(part) for part in by_reference(photometry)]
        if len(moved) == 1:
            return moved[0]
        return np.unique(np.concatenate([np.empty(0, np.int64), *moved]))

    def _insert(self, photometry: Photometry) -> IntArray:
        source = self._instruments.code(photometry, photometry.band if self.joined else "")
        if source < 0:
            self._counts["too_many_sources"] += len(photometry)
        if source < 0 or not len(photometry):
            return np.empty(0, np.int64)
        known = len(self)
        if self.joined:
            photometry = replace(photometry, band=ALL_BANDS)
        slot = self._stars.slots(photometry)
        if len(self) > known:
            self._make_room(len(self))
        seen = self._tracks.size
        track = self._tracks.of(slot, source)
        if len(taken := np.flatnonzero(track >= 0)) < len(track):
            self._counts["too_many_sources"] += len(track) - len(taken)
            photometry, slot, track = photometry.take(taken), slot[taken], track[taken]
            if not len(taken):
                return np.empty(0, np.int64)
        if np.isfinite(photometry.ref_flux).any():
            self._tracks.refer(track, photometry.ref_flux, photometry.ref_flux_err)
        time = np.rint(photometry.mjd_tai * TICKS_PER_DAY) / TICKS_PER_DAY
        if photometry.same_epoch_s:
            within_days = photometry.same_epoch_s / SECONDS_PER_DAY
            time = self._insertion.known_times(slot, time, source, within_days)
        epochs = Epochs(
            *(slot, time, self._folding.cell(time)),
            photometry.flux.astype(np.float32),
            rounded_error(photometry.flux_err.astype(np.float32)),
        )
        self._news.add(epochs, self._newest, track, self._tracks.quiet, self._tracks.unit)
        distinct = self._distinct(slot)
        if not distinct:
            epochs = epochs.in_order()
            slot = epochs.slot[epochs.runs()[0]]
        before = self._newest[slot]
        epochs = epochs if distinct else self._fold_past(epochs, source, seen)
        for part in [epochs] if distinct else self._folding.steps(epochs):
            self._insert_step(part, source)
        moved = slot[self._newest[slot] > before]
        return np.sort(moved) if distinct else moved

    def _distinct(self, slot: IntArray) -> bool:
        """Whether no slot occurs twice; `_last_row` is room to note the last row of each."""
        row = np.arange(len(slot), dtype=np.int32)
        self._last_row[slot] = row
        return bool((self._last_row[slot] == row).all())

    def _make_room(self, size: int) -> None:
        self._newest = grown(self._newest, size, -np.inf)
        self._last_row = grown(self._last_row, size)
        for part in (self._points, self._folding, self._thinning, self._tracks, self._news):
            part.add_rows(size)

    def _insert_step(self, epochs: Epochs, source: int) -> None:
        """Insert epochs that move each window once at most, and then are all ahead of it."""
        late = self._folding.is_late(epochs)
        if late.any():
            self._counts["late"] += int(late.sum())
            epochs = epochs.take(~late)
        epochs = self._once_a_tick(epochs)
        ahead = epochs.time > self._newest[epochs.slot]
        if not ahead.all():
            self._insertion.merge(epochs.take(~ahead), source)
            epochs = epochs.take(ahead)
        if len(epochs):
            first, size = epochs.runs()
            slot = epochs.slot[first]
            self._folding.advance(slot, epochs.cell[first])
            self._newest[slot] = epochs.time[first + size - 1]
            self._insertion.append(epochs, source)

    def _once_a_tick(self, epochs: Epochs) -> Epochs:
        """The best epoch of each slot and tick; the others are counted."""
        best = epochs.once_a_tick()
        self._counts["duplicate"] += len(epochs) - len(best)
        return best

    def _fold_past(self, epochs: Epochs, source: int, seen: int) -> Epochs:
        """Fold the history of what was not seen before; what windows hold is left.

        What would only pass through the window goes straight into its track, cell by cell. Of a
        source that is new to its window, a second band say, that is all before the window; one
        epoch alone is late, whatever it comes with. Tracks from the ``seen``-th on are new.
        """
        first, size = epochs.runs()
        slot = epochs.slot[first]
        new = (self._newest[slot] == -np.inf) & (size <= self.max_points)
        past = self._folding.begin(epochs, new)
        begun = (self._tracks.of(slot, source) >= seen) & (size > 1)
        past |= np.repeat(begun, size) & self._folding.is_late(epochs)
        if not past.any():
            return epochs
        history = self._once_a_tick(epochs.take(past))
        self._counts["inserted"] += len(history)
        self._folding.fold(history, source)
        return epochs.take(~past)

    def has_room(self, n: int) -> bool:
        """Whether so many new windows would leave nothing to `shed`."""
        return self._max_stars is None or len(self) + n <= self._max_stars

    def shed(self) -> Shed | None:
        """Drop the windows that have been quiet longest, if there are more than ``max_stars``."""
        if self._max_stars is None or len(self) <= self._max_stars:
            return None
        n = len(self) - self._max_stars + self._max_stars // SHARE
        gone = quietest(self.newest, n, self._stars.label)
        observed = int((self.newest[gone] > self.newest.max() - self.window_days).sum())
        kept, keys = np.delete(np.arange(len(self)), gone), self._stars.keys(gone)
        self._keep(kept)
        return Shed(kept, n - observed, observed, keys)

    def _keep(self, slots: IntArray) -> None:
        self._newest, self._last_row = self._newest[slots], self._last_row[slots]
        stars, tracks = self._stars, self._tracks
        for part in (stars, self._folding, self._thinning, tracks, self._points, self._news):
            part.keep(slots)

    def read(self, slots: IntArray, *, count: bool = True) -> WindowBatch:
        """Read windows in units of their baselines, each source in units of its own.

        Parameters
        ----------
        slots : ndarray, shape (B,), int64
        count : bool
            Whether what cannot be read is counted, and windows that are read are news no more.

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
            units, window = reading.units, reading.window
            self._tracks.see(reading.track, units.level - units.offset, units.scale)
            self._news.note(slots, window.flux, window.error, window.n)
        kept = np.flatnonzero(reading.window.n)
        slot, part = slots[kept], reading.window.take(kept)
        # A window has the baseline of its newest source.
        newest = self._points.index(slot, self._points.count[slot].astype(np.int64) - 1)
        series = self._stars.series(slot)
        bands = [band for _, band in series]
        return WindowBatch(
            slot=slot,
            star=self._stars.names(slot),
            survey=[survey for survey, _ in series],
            band=bands,
            coordinates=self._stars.coordinates(slot),
            t_start=self._folding.start(slot),
            mjd_tai=part.time,
            flux=part.flux.astype(np.float32, copy=False),
            sigma=part.error.astype(np.float32, copy=False),
            n=part.n,
            baseline=reading.newest(reading.units.level)[kept],
            baseline_err=reading.newest(reading.units.level_err)[kept],
            baseline_error=reading.common_error()[kept],
            relative=self._instruments.relative[self._points.source(newest)],
            source=reading.source()[kept][:, : part.time.shape[1]],
            sources=self._instruments.names(reading.code[kept], bands),
            source_level=reading.units.level[kept],
            source_error=reading.units.error[kept],
            source_history=reading.units.history[kept],
        )

    def state(self) -> dict[str, Column]:
        """A copy of all that the store holds, as columns for a snapshot."""
        size = len(self)
        tracks = self._tracks.state()
        return {
            **self._stars.state(),
            **self._instruments.state(),
            "newest": self._newest[:size].copy(),
            "anchor": self._folding.anchor[:size].copy(),
            "level": self._thinning.level[:size].copy(),
            **{f"track.{name}": column for name, column in tracks.items()},
            **self._news.state(size),
            **self._points.state(size),
        }

    def restore(self, columns: Columns) -> None:
        """Take over what another store of the same window length held; this one must be empty.

        ``max_points`` and the baseline's floor are those of this store: a window that holds more
        than ``max_points`` is thinned.

        Parameters
        ----------
        columns : mapping of str to array or Streamed
            What `state` gave.

        Raises
        ------
        StateError
            If columns are missing or contradict each other, or if its windows hold single bands and
            those of this store all bands, or the reverse.
        """
        with reading("windows"):
            self._restore(arrays_of(columns))

    def _restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._stars.restore(columns)
        self._instruments.restore(columns)
        if len(self) and bool(self._instruments.bands) != self.joined:
            kinds = ("single bands", "all bands of a star")
            raise StateError(f"its windows hold {kinds[not self.joined]}, not {kinds[self.joined]}")
        self._make_room(len(self))
        self._newest[: len(self)] = columns["newest"]
        self._folding.anchor[: len(self)] = columns["anchor"]
        found = {name: columns.get(f"track.{name}") for name in COLUMNS}
        self._tracks.restore({name: column for name, column in found.items() if column is not None})
        self._points.restore(columns)
        if "level" in columns:  # older snapshots hold no merged points
            self._thinning.level[: len(self)] = columns["level"]
        self._news.restore(columns, len(self))
        self._thinning.fit(np.arange(len(self)))
