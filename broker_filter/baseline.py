"""Baselines and error scales of tracks; a track is one source of one star and band.

Epochs that leave a window are folded into their track: each batch of them gives one robust level,
weighed by its error, so that a batch that was not quiet hardly counts. Together the levels are the
star's history. Until there is one, a catalogue flux serves, and where there is none either, the
window itself.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.pages import Columns, Points
from broker_filter.photometry import (
    RESIDUAL_BINS,
    combine,
    quiet_level,
    residual_bin,
    residual_scale,
    roughness_scale,
)
from broker_filter.types import FloatArray, IntArray

__all__ = ["MIN_HISTORY", "Tracks"]

MIN_HISTORY: Final = 30
"""Epochs that must have left the window before they count as the star's history."""

LEVEL_FLOOR: Final = 1e-4
"""Smallest relative error of a baseline: flat fields and skies are no better."""

MAX_ERROR_SCALE: Final = 5.0


class Tracks:
    """What is known of the quiet light of each track."""

    def __init__(self) -> None:
        self._table = Columns(
            reference=(np.float64, np.nan, ()),
            reference_err=(np.float64, np.nan, ()),
            level=(np.float64, np.nan, ()),
            level_err=(np.float64, np.nan, ()),
            history=(np.int64, 0, ()),
            residuals=(np.uint32, 0, (RESIDUAL_BINS,)),
        )

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, bytes."""
        return self._table.nbytes

    def grow(self, n: int) -> IntArray:
        """Make ``n`` more tracks, of which nothing is known; their places."""
        return self._table.grow(n)

    def set_reference(self, tracks: IntArray, flux: FloatArray, error: FloatArray) -> None:
        """Take catalogue fluxes with 1-sigma errors; those that are not finite say nothing."""
        known = np.isfinite(flux) & (error > 0)
        self._table["reference"][tracks[known]] = flux[known]
        self._table["reference_err"][tracks[known]] = error[known]

    def fold(self, points: Points) -> None:
        """Take points that have left their windows, in order of time within a track."""
        table = self._table
        ids, group = np.unique(points.track, return_inverse=True)
        flux, error, n = _rows_of(group, len(ids), points.flux, points.error)
        index = np.broadcast_to(np.arange(flux.shape[1], dtype=np.float64), flux.shape)
        scale = np.clip(roughness_scale(index, flux, error, n), 1.0, MAX_ERROR_SCALE)
        level, level_err = quiet_level(flux, error, n, scale)
        table["level"][ids], table["level_err"][ids] = combine(
            table["level"][ids], table["level_err"][ids], level, level_err
        )
        table["history"][ids] += n
        residual = (points.flux - level[group]) / points.error
        np.add.at(table["residuals"], (points.track, residual_bin(residual)), 1)

    def of_points(
        self, points: Points, valid: NDArray[np.bool_]
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Baseline, its error and the error scale of each point's track.

        Parameters
        ----------
        points : Points, shape (B, N)
            Windows as rows, in order of time.
        valid : ndarray, shape (B, N), bool

        Returns
        -------
        level, level_err, scale : ndarray, shape (B, N), float64
            NaN where not valid.
        """
        ids, group = np.unique(points.track[valid], return_inverse=True)
        columns = []
        for values in self._of_tracks(ids, group, points[valid]):
            column = np.full(valid.shape, np.nan)
            column[valid] = values[group]
            columns.append(column)
        return columns[0], columns[1], columns[2]

    def _of_tracks(
        self, ids: NDArray[np.int32], group: IntArray, points: Points
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """History and catalogue together; the window itself where there is neither."""
        table = self._table
        old = table["history"][ids] >= MIN_HISTORY
        scale = _significant(residual_scale(table["residuals"][ids]), table["history"][ids])
        level, level_err = combine(
            np.where(old, table["level"][ids], np.nan),
            np.where(old, table["level_err"][ids], np.nan),
            table["reference"][ids],
            table["reference_err"][ids],
        )
        young = np.flatnonzero(~old)
        if len(young):
            place = np.full(len(ids), -1)
            place[young] = np.arange(len(young))
            mine = place[group] >= 0
            few = points[mine]
            time, flux, error, n = _rows_of(
                place[group[mine]], len(young), few.time, few.flux, few.error
            )
            scale[young] = _significant(roughness_scale(time, flux, error, n), n)
            lost = np.flatnonzero(np.isnan(level[young]))
            rows = young[lost]
            if len(rows):
                level[rows], level_err[rows] = quiet_level(
                    flux[lost], error[lost], n[lost], scale[rows]
                )
        return level, np.maximum(level_err, LEVEL_FLOOR * np.abs(level)), scale


def _rows_of(group: IntArray, n_groups: int, *columns: NDArray[Any]) -> tuple[Any, ...]:
    """Values by group as padded rows, shape (n_groups, longest), and the length of each."""
    n = np.bincount(group, minlength=n_groups)
    order = np.argsort(group, kind="stable")
    first = np.r_[0, np.cumsum(n)[:-1]]
    place = np.arange(len(group)) - np.repeat(first, n)
    rows = []
    for column in columns:
        padded = np.zeros((n_groups, max(int(n.max(initial=0)), 3)), np.float64)
        padded[group[order], place] = column[order]
        rows.append(padded)
    return (*rows, n)


def _significant(scale: FloatArray, n: IntArray) -> FloatArray:
    """An error scale, or 1 where it differs from it by no more than chance makes it."""
    chance = 1 + 3 / np.sqrt(np.maximum(n, 1))
    return np.where(scale > chance, np.minimum(scale, MAX_ERROR_SCALE), 1.0)
