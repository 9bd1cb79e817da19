"""Epochs of a star over a whole event, which lasts longer than a window.

A window does not hold what lies before its start; a fit needs rise, peak and decline. So while an
event is open, what its windows held is kept here: each new window replaces what is known of its own
span, and adds to it what came before. Flux is kept in units of the baselines as they were when the
event opened, since the running baselines take up the event's own light later on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.lifecycle import EventKey
from broker_filter.state.columns import (
    Column,
    Columns,
    arrays_of,
    packed,
    packed_keys,
    reading,
    unpacked,
    unpacked_keys,
)
from broker_filter.types import (
    HISTORY,
    FloatArray,
    IntArray,
    SourceHistory,
    StarEpochs,
    WindowBatch,
)

__all__ = ["MAX_EPOCHS", "epochs_from_columns", "epochs_to_columns", "extended", "with_history_of"]

MAX_EPOCHS: Final = 2000
"""Most epochs kept of one event; beyond, neighbours of one source are merged."""

OLDER: Final = 100.0
"""So many times cheaper is a pair that has left the newest window."""

STEEP: Final = 3.0
"""Errors by which neighbours may differ before their mean is worth less than both."""

UNKNOWN: Final = SourceHistory(0.0, 0.0, 1.0, 0.0, 0.0)
"""History of a source of which nothing is known."""


def extended(
    known: StarEpochs | None, batch: WindowBatch, row: int, limit: int = MAX_EPOCHS
) -> StarEpochs:
    """Epochs of an event with those of another window of one of its bands.

    Parameters
    ----------
    known : StarEpochs or None
        None at the start of an event.
    batch : WindowBatch
    row : int
        The window: all that is known of its band from its start on is replaced by what it holds.
    limit : int
        Most epochs to keep. Older ones are merged first, but for those of an event: before these,
        the window's own.

    Returns
    -------
    StarEpochs
        In units of the baselines that ``known`` has; a source that is new brings its own.
    """
    window = batch.epochs(row)
    if known is None:
        return _thinned(window, limit, len(window))
    own_band = known.of_band(batch.band[row])
    earlier = known.take((known.mjd_tai < batch.t_start[row]) | ~own_band)
    joined = _joined(earlier, window)
    order = np.argsort(joined.mjd_tai, kind="stable")
    own = order >= len(earlier)
    return _thinned(joined.take(order), limit, int(own.sum()))


def with_history_of(window: StarEpochs, known: StarEpochs | None) -> StarEpochs:
    """A window's epochs, with the noise that its sources had when their event began."""
    if known is None:
        return window
    histories = dict(zip(known.sources, _histories(known), strict=True))
    own = zip(window.sources, _histories(window), strict=True)
    return replace(window, history=tuple(histories.get(source, each) for source, each in own))


def _joined(known: StarEpochs, window: StarEpochs) -> StarEpochs:
    """Both, one after the other, each source in the unit in which it is known."""
    index = {source: i for i, source in enumerate(known.sources)}
    new = [i for i, source in enumerate(window.sources) if source not in index]
    index |= {window.sources[i]: len(known.sources) + at for at, i in enumerate(new)}
    mine = np.array([index[source] for source in window.sources], np.int16)
    level = np.concatenate([known.level, window.level[new]])
    error = np.concatenate([known.error, window.error[new]])
    # A source whose baseline was not known has no points so far: it begins now.
    begins = ~np.isfinite(level[mine])
    level[mine[begins]], error[mine[begins]] = window.level[begins], window.error[begins]
    history = [*_histories(known), *(_histories(window)[i] for i in new)]
    for i in np.flatnonzero(begins).tolist():
        history[mine[i]] = _histories(window)[i]
    factor = np.nan_to_num(window.level / level[mine], nan=1.0)[window.source].astype(np.float32)
    return StarEpochs(
        tuple(index),
        level,
        error,
        np.concatenate([known.mjd_tai, window.mjd_tai]),
        np.concatenate([known.flux, window.flux * factor]),
        np.concatenate([known.sigma, window.sigma * factor]),
        np.concatenate([known.source, mine[window.source]]),
        tuple(history),
        known.survey,
    )


def _histories(epochs: StarEpochs) -> tuple[SourceHistory, ...]:
    """Of each source, also where nothing is known of any."""
    return epochs.history or (UNKNOWN,) * len(epochs.sources)


def _thinned(epochs: StarEpochs, limit: int, newest: int) -> StarEpochs:
    """No more than ``limit`` epochs (but one a source).

    Parameters
    ----------
    epochs : StarEpochs
        In order of time.
    limit : int
    newest : int
        So many epochs at the end are spared as long as the others can go without loss.
    """
    while len(epochs) > limit:
        before = len(epochs)
        epochs = _merged(epochs, before - limit, before - newest)
        if len(epochs) == before:
            break
    return epochs


def _merged(epochs: StarEpochs, surplus: int, older: int) -> StarEpochs:
    """Merge up to ``surplus`` pairs of neighbours of one source, those that cost least.

    The cost of a pair is a product:

    - of the time between the two: what is dense is thinned, and what is rare stays;
    - of 1 + S^2, where their mean lies S errors of a single epoch away from the baseline: a short
      event stays whole in a long history without one;
    - of the square of their difference over `STEEP` errors, if that is above 1: where light turns
      between two epochs, as at the limb of the source, their mean lies on no curve;
    - and of 1 / `OLDER` among the first ``older`` epochs.

    No epoch is in two pairs, and the last of each source is in none.
    """
    # Not on the grid of `broker_filter.windows.thinning`: that one has to know of every late epoch
    # whether it was merged already. Here each window comes whole, so the pairs may be free.
    first, second = _pairs(epochs)
    if not len(first):
        return epochs
    weight = epochs.sigma.astype(np.float64) ** -2
    total = weight[first] + weight[second]

    def mean(values: NDArray[Any]) -> FloatArray:
        return np.asarray((weight[first] * values[first] + weight[second] * values[second]) / total)

    gap = epochs.mjd_tai[second] - epochs.mjd_tai[first]
    cost = gap * (1 + ((mean(epochs.flux) - 1) / np.median(epochs.sigma)) ** 2)
    difference = (epochs.flux[second] - epochs.flux[first]) * np.sqrt(
        weight[first] * weight[second] / total
    )
    cost *= np.maximum(np.abs(difference) / STEEP, 1) ** 2
    cost[second < older] /= OLDER
    # Few at a time: what is merged of them may be cheaper than the next ones.
    most = min(surplus, 1 + len(cost) // 8)
    chosen = np.argsort(cost, kind="stable")[:most]
    first, second, total = first[chosen], second[chosen], total[chosen]
    time, flux, sigma = epochs.mjd_tai.copy(), epochs.flux.copy(), epochs.sigma.copy()
    time[first], flux[first], sigma[first] = mean(time), mean(epochs.flux), total**-0.5
    kept = np.ones(len(epochs), np.bool_)
    kept[second] = False
    merged = replace(epochs, mjd_tai=time, flux=flux, sigma=sigma).take(kept)
    return merged.take(np.argsort(merged.mjd_tai, kind="stable"))


def _pairs(epochs: StarEpochs) -> tuple[IntArray, IntArray]:
    """Rows of neighbouring epochs of each source: its first and second, third and fourth, ..."""
    first, second = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for source in range(len(epochs.sources)):
        mine = np.flatnonzero(epochs.source == source)[:-1]
        pairs = mine[: len(mine) // 2 * 2].reshape(-1, 2)
        first.append(pairs[:, 0])
        second.append(pairs[:, 1])
    return np.concatenate(first), np.concatenate(second)


_PER_EPOCH: Final = ("mjd_tai", "flux", "sigma", "source")


def epochs_to_columns(found: Mapping[EventKey, StarEpochs]) -> dict[str, Column]:
    """Write the epochs of events as columns for a snapshot."""
    each = list(found.values())
    sources = [source for one in each for source in one.sources]
    return {
        **packed_keys(found),
        **packed("source_band", [band for band, _ in sources]),
        **packed("source_name", [name for _, name in sources]),
        "sources": np.array([len(one.sources) for one in each], np.int64),
        "count": np.array([len(one) for one in each], np.int64),
        "level": _stacked([one.level for one in each], np.float64),
        "error": _stacked([one.error for one in each], np.float64),
        "mjd_tai": _stacked([one.mjd_tai for one in each], np.float64),
        "flux": _stacked([one.flux for one in each], np.float32),
        "sigma": _stacked([one.sigma for one in each], np.float32),
        "source": _stacked([one.source for one in each], np.int16),
        "history": np.array(
            [astuple(past) for one in each for past in _histories(one)], np.float64
        ).reshape(-1, len(HISTORY)),
    }


def _stacked(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *parts])


def epochs_from_columns(columns: Columns) -> dict[EventKey, StarEpochs]:
    """Read what `epochs_to_columns` wrote; nothing where a snapshot is older than these columns.

    Raises
    ------
    StateError
        If columns are missing or contradict each other.
    """
    if not columns:
        return {}
    with reading("event epochs"):
        arrays = arrays_of(columns)
        found = zip(unpacked_keys(arrays), _unstacked(arrays), strict=True)
        return {key: replace(epochs, survey=key[0]) for key, epochs in found}


def _unstacked(arrays: Mapping[str, NDArray[Any]]) -> Iterator[StarEpochs]:
    names = list(zip(unpacked("source_band", arrays), unpacked("source_name", arrays), strict=True))
    of_source = _spans(arrays["sources"], len(names))
    # Older snapshots do not have them.
    histories = arrays.get("history", np.tile(astuple(UNKNOWN), (len(names), 1)))
    for by_source, by_epoch in zip(
        of_source, _spans(arrays["count"], len(arrays["mjd_tai"])), strict=True
    ):
        columns = {name: arrays[name][by_epoch] for name in _PER_EPOCH}
        sources = tuple(names[by_source])
        if len({len(column) for column in columns.values()}) > 1:
            raise ValueError("its columns differ in length")
        if len(columns["source"]) and not 0 <= int(columns["source"].max()) < len(sources):
            raise ValueError("an epoch is of no known source")
        level, error = arrays["level"][by_source], arrays["error"][by_source]
        past = tuple(SourceHistory(*row) for row in histories[by_source].tolist())
        t, flux, sigma, source = columns.values()
        yield StarEpochs(sources, level, error, t, flux, sigma, source, past)


def _spans(counts: NDArray[Any], total: int) -> list[slice]:
    ends = np.concatenate([[0], np.cumsum(counts)]).tolist()
    if (counts < 0).any() or ends[-1] != total:
        raise ValueError(f"{ends[-1]} of {total} rows are accounted for")
    return [slice(first, last) for first, last in pairwise(ends)]
