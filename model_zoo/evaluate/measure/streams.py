"""Streams of noise through anchored windows: K at one exposure after the other.

A service looks at a window again and again as it fills. Its start is anchored to a grid of T/4, so
the window lives from day 3T/4 to day T of its own, and K at successive exposures is one sequential
test: for an exact K, P(sup over time of K >= k | no event) <= 1/k (Ville 1939). One stream here is
the life of one window, T/4 star-days; a star that is watched for longer has one after the other,
and its false alarms add up.

Every exposure of every stream would be millions of calls. So a sub-sample is looked at at every
exposure; the rest in strides, and in each batch again at every exposure those streams that came
highest. What strides can miss is measured on the sub-sample and reported.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.network import Network
from broker_filter.inference.network_input import network_input, split_padding
from model_zoo.evaluate.measure.calibration import bound_held, has_bfloat16
from model_zoo.evaluate.measure.rates import as_list
from model_zoo.evaluate.sets import BATCH, SEEDS, Sizes, batches
from model_zoo.simulate.curves import Curves, Simulator

__all__ = ["STREAM_POWERS", "Looks", "choose_stride", "look_at", "measure_streams", "stream_looks"]

Floats = NDArray[np.float64]

STREAM_POWERS = tuple(i / 2 for i in range(7))
"""log10 k of the bound: 1 to 1,000 in half-decades."""
STRIDES = (1, 2, 4, 8, 16, 32, 64)
SUB_SAMPLE = 20  # one stream in so many is looked at at every exposure, in batches
REFINED = 10  # of the rest one in so many, the highest of each batch
CHUNK = 256
STEP = 64  # lengths of network input are multiples of it
PATHS = 12


@dataclass(frozen=True, slots=True)
class Looks:
    """Looks at streams, in the order of streams and time; every field has shape (n,).

    ``stream`` is the row of the stream, ``epochs`` the number of epochs seen by then, ``day`` that
    of the last one, ``log10_k`` that of the network (zero before its first evaluation).
    """

    stream: NDArray[np.int64]
    epochs: NDArray[np.int64]
    day: Floats
    log10_k: Floats

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, rows: NDArray[Any]) -> Looks:
        return Looks(*(getattr(self, f.name)[rows] for f in fields(Looks)))

    def strided(self, stride: int) -> Looks:
        """Every so many-th look at each stream, and the last one."""
        ends = np.flatnonzero(np.diff(self.stream, append=-1))
        from_end = ends[np.searchsorted(ends, np.arange(len(self)))] - np.arange(len(self))
        return self[from_end % stride == 0]

    def highest(self, n: int) -> Floats:
        """The highest log10 K of each of ``n`` streams; minus infinity without a look."""
        top = np.full(n, -np.inf)
        np.maximum.at(top, self.stream, self.log10_k)
        return top


def measure_streams(
    network: Network,
    simulator: Simulator,
    sizes: Sizes,
    *,
    quiet: bool = False,
    minutes: float = 6.0,
) -> dict[str, Any]:
    """How often K of a star without an event ever reaches k.

    Parameters
    ----------
    network : Network
    simulator : Simulator
    sizes : Sizes
        ``streams``.
    minutes : float
        About how long it may take on this machine; a short time makes for wide strides.

    Returns
    -------
    dict
        ``n_streams``, ``star_days``, ``without_looks`` (no exposure after day 3T/4), ``looks``
        (calls of the network), ``n_every_exposure`` (the sub-sample), and of the rest ``stride``
        and ``refined``; ``largest_rise``, by how many dex in the sub-sample the sup over all
        exposures exceeds that over strides, and ``complete_above``, the log10 K above which
        therefore none should have been overlooked; ``sup_tail``, by k the share of streams whose
        sup reached it beside 1/k as of `calibration.bound_held`, and whether all ``holds``;
        ``false_alarms`` per star-day beside the bound 1 / (k T/4). For the figure, of the
        sub-sample: ``over_time``, the sup so far by day, and ``paths``, the highest streams.
    """
    network.eval()
    days, began = simulator.pattern.days, time.perf_counter()
    every = -(-sizes.streams // (SUB_SAMPLE * BATCH))
    drawn = batches(
        simulator.unthinned.noise, sizes.streams, SEEDS["streams"], "streams", quiet=quiet
    )
    watch, sup, sub = _Watch(network, simulator), [], list[Looks]()
    for i, batch in enumerate(drawn):
        if i < every:
            sub.append(watch.look(batch))
            sup.append(sub[-1].highest(len(batch)))
            continue
        if i == every:
            spent = time.perf_counter() - began
            full = spent / every * (sizes.streams / BATCH - every)
            watch.stride = choose_stride(full, 60 * minutes - spent)
        sup.append(watch.highest(batch))
    highest, first, stride = np.concatenate(sup), sup[:every], watch.stride
    rise = max(_rise(f, stride, len(top)) for f, top in zip(sub, first, strict=True))
    rows = [bound_held(int((highest >= p).sum()), len(highest), 10**p) for p in STREAM_POWERS]
    return {
        "n_streams": len(highest),
        "star_days": len(highest) * days / 4,
        "without_looks": int(np.isneginf(highest).sum()),
        "looks": watch.looks,
        "n_every_exposure": sum(map(len, first)) if stride > 1 else len(highest),
        "stride": stride,
        "refined": watch.refined,
        "largest_rise": rise,
        "complete_above": float(watch.left_out) + rise if watch.refined else None,
        "sup_tail": rows,
        "holds": all(row["holds"] for row in rows),
        "false_alarms": [_alarms(row, days / 4) for row in rows],
        "over_time": _over_time(sub, [len(top) for top in first], days),
        "paths": _paths(sub, [len(top) for top in first]),
    }


class _Watch:
    """Looks at streams, and counts them: at every exposure until ``stride`` is widened.

    Attributes
    ----------
    looks : int
        Calls of the network so far.
    refined : int
        Streams looked at in strides and then at every exposure.
    left_out : float
        The highest log10 K, over strides, of a stream that was looked at in strides alone.
    """

    def __init__(self, network: Network, simulator: Simulator) -> None:
        self.network, self.simulator = network, simulator
        self.stride, self.looks, self.refined, self.left_out = 1, 0, 0, -np.inf

    def look(self, batch: Curves) -> Looks:
        """Looks at all streams of a batch, in strides."""
        return self._at(batch, self._all(batch).strided(self.stride))

    def highest(self, batch: Curves) -> Floats:
        """The highest log10 K of each stream; the streams that come highest in strides again."""
        top = self.look(batch).highest(len(batch))
        if self.stride == 1:
            return top
        order, n = np.argsort(top)[::-1], len(top) // REFINED
        self.left_out = max(self.left_out, top[order[n]])
        self.refined += n
        looks = self._all(batch)
        again = self._at(batch, looks[np.isin(looks.stream, order[:n])])
        return np.maximum(top, again.highest(len(batch)))

    def _all(self, batch: Curves) -> Looks:
        return stream_looks(batch, self.simulator.pattern.days)

    def _at(self, batch: Curves, looks: Looks) -> Looks:
        self.looks += len(looks)
        return look_at(self.network, batch, looks, self.simulator)


def choose_stride(full: float, left: float) -> int:
    """The narrowest stride for which the rest takes no longer than is ``left``, both in seconds.

    ``full`` is what it would take at every exposure. Looking again at the highest adds to it.
    """
    for stride in STRIDES:
        share = 1 / stride + (1 / REFINED if stride > 1 else 0)
        if full * share <= left:
            return stride
    return STRIDES[-1]


def stream_looks(curves: Curves, days: float) -> Looks:
    """All looks at streams: one after each epoch while the window's end lies in the future.

    ``curves`` have epochs that were not thinned, sorted by time. A window is looked at from
    day 3T/4 on; before that another one, which began earlier, is the star's.
    """
    _, valid = split_padding(curves.x)
    t = ((curves.x[..., 0].double() + 1) * (days / 2)).numpy()
    stream, row = np.nonzero(valid.numpy() & (t >= 0.75 * days))
    return Looks(stream, row + 1, t[stream, row], np.zeros(len(row)))


@torch.inference_mode()
def look_at(network: Network, curves: Curves, looks: Looks, simulator: Simulator) -> Looks:
    """The same looks with the log10 K that a service would have had.

    The epochs seen by then go through `network_input`, thinning included. Windows of like length
    are evaluated together, so that short ones are not padded to the longest.
    """
    log10_k = np.zeros(len(looks))
    order = np.argsort(looks.epochs, kind="stable")
    for first in range(0, len(order), CHUNK):
        rows = order[first : first + CHUNK]
        stream, n = torch.from_numpy(looks.stream[rows]), torch.from_numpy(looks.epochs[rows])
        x = _input(curves.x[stream, : int(n.max())], n, simulator)
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
            ln_k, _ = network(x, curves.baseline_error[stream], curves.star_noise[stream])
        log10_k[rows] = ln_k.double().numpy() / LN_10
    return replace(looks, log10_k=log10_k)


def _input(x: Tensor, n: Tensor, simulator: Simulator) -> Tensor:
    """Network input of the first ``n`` epochs of each row."""
    days, t_norm = simulator.pattern.days, x[..., 0].double()
    length = min(-(-x.shape[1] // STEP) * STEP, simulator.length)
    t = torch.where(torch.arange(x.shape[1]) < n[:, None], (t_norm + 1) * (days / 2), 0.0)
    return network_input(t, x[..., 1], x[..., 2], n, days=days, length=length)


def _rise(found: Looks, stride: int, n: int) -> float:
    """By how much the sup over all looks exceeds that over strides, at most."""
    highest = found.highest(n)
    seen = np.isfinite(highest)
    rise = highest[seen] - found.strided(stride).highest(n)[seen]
    return float(rise.max(initial=0.0))


def _alarms(row: dict[str, Any], days: float) -> dict[str, Any]:
    """False alarms per star-day at one k: a window of so many days gives at most one."""
    rates = {key: row[key] / days for key in ("observed", "low", "high", "bound")}
    return {"k": row["k"], "holds": row["holds"]} | rates


def _over_time(sub: list[Looks], sizes: list[int], days: float) -> dict[str, Any]:
    """Median, 99th percentile and largest of the sup so far, by day; None before any look."""
    grid = np.linspace(0.75 * days, days, 41)
    table: dict[str, Any] = {"day": as_list(grid), "median": [], "p99": [], "highest": []}
    for day in grid:
        tops = [f[f.day <= day].highest(n) for f, n in zip(sub, sizes, strict=True)]
        known = np.concatenate(tops)
        known = known[np.isfinite(known)]
        for key, q in (("median", 0.5), ("p99", 0.99), ("highest", 1.0)):
            table[key].append(float(np.quantile(known, q)) if len(known) else None)
    return table


def _paths(sub: list[Looks], sizes: list[int]) -> list[dict[str, list[float]]]:
    """log10 K over time of the streams of the sub-sample that came highest."""
    tops = [
        (top, i, stream)
        for i, (f, n) in enumerate(zip(sub, sizes, strict=True))
        for stream, top in enumerate(f.highest(n))
        if np.isfinite(top)
    ]
    paths = []
    for _, i, stream in sorted(tops, reverse=True)[:PATHS]:
        path = sub[i][sub[i].stream == stream]
        paths.append({"day": as_list(path.day), "log10_k": as_list(path.log10_k, 4)})
    return paths
