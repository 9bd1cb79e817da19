"""Baselines and error scales of tracks: a track is one source's light curve of one star."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.photometry.statistics import combine, quiet_level, roughness_scale
from broker_filter.types import HISTORY, FloatArray, IntArray
from broker_filter.windows.arrays import grown
from broker_filter.windows.histories import (
    HISTORY_COLUMNS,
    MIN_HISTORY,
    Histories,
    significant,
)
from broker_filter.windows.series import Series

__all__ = ["COLUMNS", "MAX_TRACKS", "Calibration", "Tracks"]

MAX_TRACKS: Final = 1024
"""Most sources of one window: far more than a star has, and few enough to count in int16."""

SEEN_COLUMNS: Final = ("quiet", "unit")

TRACK_COLUMNS: Final = (
    *("slot", "following", "source", "reference", "reference_err"),
    *SEEN_COLUMNS,
)

COLUMNS: Final = (*TRACK_COLUMNS, *HISTORY_COLUMNS)
"""All that a snapshot needs of `Tracks`, one row a track. Older ones lack those of nights,
and what was seen."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the points of a track are measured against.

    Parameters
    ----------
    level, level_err : ndarray, shape (B,), float64, the source's unit
        Baseline flux and its 1-sigma error; NaN where there is none.
    scale : ndarray, shape (B,), float64
        Factor on the error bars, 1 to 5.
    history : ndarray, shape (B, 6), float64
        Columns `broker_filter.types.HISTORY`.
    """

    level: FloatArray
    level_err: FloatArray
    scale: FloatArray
    history: FloatArray


class Tracks:
    """The running statistics of all tracks of a store, and which track a point belongs to.

    The tracks of one window form a linked list: a star has few sources, and only those take memory.

    Parameters
    ----------
    floor : float
        Smallest relative error of a baseline.

    Notes
    -----
    Columns have at least ``size`` rows, one a track. ``history`` is its row among the `Histories`,
    which it has once an epoch of it was folded; 0 for none. Fluxes are in the source's own unit:
    nJy, or the star's baseline where the source is relative.

    ===============  ===========  ===========  ====================================================
    column           dtype        unit         meaning
    ===============  ===========  ===========  ====================================================
    slot             int32                     window of the track
    following        int32                     another track of the same window; -1 for none
    source           uint16                    code of the source (`Instruments`)
    history          int32                     row of its history
    reference        float64      flux         catalogue flux; NaN where unknown
    reference_err    float64      flux         its 1-sigma error
    quiet            float32      flux         quiet star when the window was last read, or NaN
    unit             float32                   factor on the errors, at the same time
    ===============  ===========  ===========  ====================================================
    """

    __slots__ = ("_head", "_histories", "floor", "history", "size", *TRACK_COLUMNS)

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.size = 0
        self._head = np.full(1, -1, np.int32)
        self.slot = np.zeros(1, np.int32)
        self.following = np.zeros(1, np.int32)
        self.source = np.zeros(1, np.uint16)
        self.quiet = np.zeros(1, np.float32)
        self.unit = np.zeros(1, np.float32)
        self.history = np.zeros(1, np.int32)
        self.reference = np.zeros(1)
        self.reference_err = np.zeros(1)
        self._histories = Histories()

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        own: int = sum(getattr(self, name).nbytes for name in ("_head", "history", *TRACK_COLUMNS))
        return own + self._histories.nbytes

    def add_rows(self, n_slots: int) -> None:
        """Make room for windows 0 to ``n_slots - 1``."""
        self._head = grown(self._head, n_slots, fill=-1)

    def first(self, slot: IntArray) -> IntArray:
        """One track of each window, -1 where it has none; `following` leads to the others."""
        return self._head[slot].astype(np.int64)

    def after(self, track: IntArray) -> IntArray:
        """The next track of the same window, -1 where there is none (or no track)."""
        return np.where(track >= 0, self.following[track], -1).astype(np.int64)

    def state(self) -> dict[str, NDArray[Any]]:
        """A copy of all tracks, as columns by the names of `COLUMNS`.

        They are in order of windows and sources, whatever the order in which they came.
        """
        order = np.lexsort((self.source[: self.size], self.slot[: self.size]))
        own = {name: getattr(self, name)[order] for name in TRACK_COLUMNS}
        same = np.diff(own["slot"], prepend=-1) == 0
        own["following"] = np.where(same, np.arange(self.size) - 1, -1).astype(np.int32)
        return own | self._histories.state(self.history[order].astype(np.int64))

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` gave, as the first tracks.

        Raises
        ------
        ValueError
            The columns are not of one length.
        """
        self.size = len(columns["slot"])
        if any(len(column) != self.size for column in columns.values()):
            raise ValueError("columns of tracks are of several lengths")
        for name in TRACK_COLUMNS:
            setattr(self, name, grown(getattr(self, name), self.size))
            unseen = np.nan if name in SEEN_COLUMNS else None
            getattr(self, name)[: self.size] = columns.get(name, unseen)
        self.history = grown(self.history, self.size)
        folded = np.flatnonzero(columns["count"])
        rows = self._history_of(folded)
        self._histories.restore(
            rows, {name: columns[name][folded] for name in HISTORY_COLUMNS if name in columns}
        )
        self._lead()

    def _history_of(self, track: IntArray) -> IntArray:
        """Row of the history of each track (no repeats), new where there was none."""
        new = track[self.history[track] == 0]
        self.history[new] = self._histories.add(len(new))
        return self.history[track].astype(np.int64)

    def _lead(self) -> None:
        """Let each window lead to its last track, which leads to its earlier ones."""
        self._head[self.slot[: self.size]] = np.arange(self.size)

    def keep(self, slots: IntArray) -> None:
        """Keep the tracks of ``slots`` (ascending) alone, whose i-th becomes window i."""
        renumbered = np.full(len(self._head), -1)
        renumbered[slots] = np.arange(len(slots))
        kept = np.flatnonzero(renumbered[self.slot[: self.size]] >= 0)
        track = np.full(self.size + 1, -1)  # the last is for a track that no other follows
        track[kept] = np.arange(len(kept))
        for name in ("history", *TRACK_COLUMNS):
            setattr(self, name, getattr(self, name)[kept])
        self._keep_histories()
        self.slot = renumbered[self.slot].astype(np.int32)
        self.following = track[self.following].astype(np.int32)
        self._head = np.full(len(slots), -1, np.int32)
        self.size = len(kept)
        self._lead()

    def _keep_histories(self) -> None:
        """Keep the histories of the tracks alone."""
        having = np.flatnonzero(self.history)
        self._histories.keep(self.history[having].astype(np.int64))
        self.history[having] = np.arange(1, len(having) + 1)

    def of(self, slot: IntArray, source: int) -> IntArray:
        """The track of one source in each window, new where there was none and there is room.

        Parameters
        ----------
        slot : ndarray, shape (n,), int64
        source : int
            Code of the source.

        Returns
        -------
        ndarray, shape (n,), int64
            -1 in windows of `MAX_TRACKS` other sources.
        """
        track = self._find(slot, source)
        missing = track < 0
        if missing.any():
            new = np.unique(slot[missing])
            self._add(new[self._has_room(new)], source)
            track[missing] = self._find(slot[missing], source)
        return track

    def _has_room(self, slot: IntArray) -> NDArray[np.bool_]:
        track = self.first(slot)
        for _ in range(MAX_TRACKS - 1):
            if (track < 0).all():
                break
            track = self.after(track)
        return track < 0

    def _find(self, slot: IntArray, source: int) -> IntArray:
        track = self.first(slot)
        while (other := (track >= 0) & (self.source[track] != source)).any():
            track[other] = self.following[track[other]]
        return track

    def _add(self, slot: IntArray, source: int) -> None:
        start, self.size = self.size, self.size + len(slot)
        for name in ("history", *TRACK_COLUMNS):
            setattr(self, name, grown(getattr(self, name), self.size))
        new = slice(start, self.size)
        self.slot[new] = slot
        self.source[new] = source
        self.following[new] = self._head[slot]
        self.reference[new] = self.reference_err[new] = np.nan
        self.quiet[new] = self.unit[new] = np.nan
        self._head[slot] = np.arange(start, self.size)

    def see(self, track: IntArray, quiet: FloatArray, unit: FloatArray) -> None:
        """Note what tracks were read with; rows of -1 are none, those not finite are not known."""
        real = track >= 0
        self.quiet[track[real]], self.unit[track[real]] = quiet[real], unit[real]

    def refer(self, track: IntArray, flux: FloatArray, error: FloatArray) -> None:
        """Take note of catalogue fluxes; of several, the one of smallest (error, flux) stays.

        Parameters
        ----------
        track : ndarray, shape (n,), int64
        flux, error : ndarray, shape (n,), float64
            Catalogue flux and error; ignored where either is not finite or not positive.
        """
        with np.errstate(invalid="ignore"):
            usable = (flux > 0) & (flux < np.inf) & (error > 0) & (error < np.inf)
            held, held_err = self.reference[track], self.reference_err[track]
            worse = (error > held_err) | ((error == held_err) & (flux >= held))
        better = np.flatnonzero(usable & ~worse)
        # The best comes last: of repeated indices numpy assigns the last.
        better = better[np.lexsort((flux[better], error[better]))[::-1]]
        self.reference[track[better]] = flux[better]
        self.reference_err[track[better]] = error[better]

    def fold(
        self,
        track: IntArray,
        time: FloatArray,
        flux: NDArray[np.floating[Any]],
        error: NDArray[np.floating[Any]],
    ) -> None:
        """Add epochs that left their window to the statistics of their tracks.

        Parameters
        ----------
        track : ndarray, shape (n,), int64
            Equal ones stand together.
        time, flux, error : ndarray, shape (n,)
            In order of time within a track; all the epochs that the track has in one cell.
        """
        start = np.flatnonzero(np.diff(track, prepend=-1))
        n = np.diff(start, append=len(track))
        self._histories.fold(self._history_of(track[start]), n, time, flux, error)

    def known(self, track: IntArray) -> tuple[FloatArray, FloatArray]:
        """Baseline and error from outside the window; NaN where there is none.

        The mean of the track's history from 30 points on, and the catalogue's flux, together by
        inverse variance.

        Parameters
        ----------
        track : ndarray, shape (B,), int64
        """
        reference = self.reference[track], self.reference_err[track]
        history = self.history[track].astype(np.int64)
        return combine(*self._histories.past(history, MIN_HISTORY), *reference)

    def calibrate(self, track: IntArray, window: Series) -> Calibration:
        """Baseline and error scale of tracks at this moment.

        The baseline is the `known` one; where there is none, the quiet level of the window
        itself. The error scale comes from the history, else from the window.

        Parameters
        ----------
        track : ndarray, shape (B,), int64
        window : Series
            What the window holds of each track; at least one epoch a row.
        """
        level, error = self.known(track)
        history = self.history[track].astype(np.int64)
        scale, is_young = np.ones(len(track)), self._histories.count[history] < MIN_HISTORY
        scale[~is_young] = self._histories.scale(history[~is_young])
        if len(young := np.flatnonzero(is_young)):
            part = window.take(young)
            rough = roughness_scale(part.time, part.flux, part.error, part.n)
            scale[young] = significant(rough, part.n)
        unknown = np.flatnonzero(np.isnan(level))
        if len(unknown):
            part = window.take(unknown)
            level[unknown], error[unknown] = quiet_level(
                part.flux, part.error, part.n, scale[unknown]
            )
        error = np.maximum(error, self.floor * np.abs(level))
        past = self._histories.noise(history, scale)
        past[:, HISTORY.index("catalogue")] = np.isfinite(self.reference[track])
        return Calibration(level, error, scale, past)
