"""The metrics of `table`, as objects of prometheus_client."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from broker_filter.observe.table import METRICS, PREFIX, Metric

__all__ = ["Metrics"]

MAX_SERIES = 4096

_Kind = TypeVar("_Kind", Counter, Gauge)


class Metrics:
    """All metrics of one process; two instances share nothing.

    Names are those of `METRICS`, without the prefix. All methods may be called from any thread and
    raise KeyError for a name that is not in the table, or is of another kind there, and ValueError
    for labels that do not fit it.

    Attributes
    ----------
    registry : CollectorRegistry
        Holds these metrics and those of the process.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more per counter
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._counters: dict[str, _Series[Counter]] = {}
        self._gauges: dict[str, _Series[Gauge]] = {}
        self._histograms: dict[str, _Histogram] = {}
        for metric in METRICS:
            self._add(metric)

    def _add(self, metric: Metric) -> None:
        """Register a metric, with the series that are known beforehand at zero."""
        about = (PREFIX + metric.name, metric.meaning, metric.labels)
        known = [{metric.labels[0]: value} for value in metric.known]
        if metric.kind == "counter":
            self._counters[metric.name] = _Series(Counter(*about, registry=self.registry), metric)
            for labels in known:
                self.inc(metric.name, 0, **labels)
        elif metric.kind == "gauge":
            self._gauges[metric.name] = _Series(Gauge(*about, registry=self.registry), metric)
        else:
            self._histograms[metric.name] = _Histogram(metric)
            self.registry.register(self._histograms[metric.name])
            for labels in known or [{}]:
                self.observe(metric.name, [], **labels)

    def inc(self, name: str, amount: float = 1.0, **labels: object) -> None:
        """Add to a counter."""
        self._counters[name].of(labels).inc(amount)

    def set(self, name: str, value: float, **labels: object) -> None:
        """Set a gauge."""
        self._gauges[name].of(labels).set(value)

    def observe(self, name: str, values: ArrayLike, **labels: object) -> None:
        """Add one value, or an array of any shape, to a histogram; NaN is left out."""
        self._histograms[name].observe(values, labels)

    def forget(self, name: str, **labels: object) -> None:
        """Drop one series of a gauge, such as that of a partition that went to another member."""
        self._gauges[name].remove(labels)

    def value(self, name: str, **labels: object) -> float:
        """Return a counter, a gauge, or how many values a histogram holds; 0 before the first."""
        key = dict(zip(_TABLE[name].labels, _label_values(_TABLE[name], labels), strict=True))
        suffix = ""
        if _TABLE[name].kind == "histogram":  # one with negative bounds has no sample _count
            suffix, key = "_bucket", {**key, "le": "+Inf"}
        return self.registry.get_sample_value(PREFIX + name + suffix, key) or 0.0

    def total(self, name: str) -> float:
        """Return the sum of a counter over all its labels."""
        (family,) = self._counters[name].parent.collect()
        return sum(sample.value for sample in family.samples)


_TABLE = {metric.name: metric for metric in METRICS}


def _label_values(metric: Metric, labels: Mapping[str, object]) -> tuple[str, ...]:
    if set(labels) != set(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}, not {tuple(labels)}")
    return tuple(str(labels[label]) for label in metric.labels)


class _Series(Generic[_Kind]):
    """The series of a counter or gauge; from `MAX_SERIES` on, new ones count as ``other``.

    They are kept by their labels as given: prometheus_client's own look-up takes twice the time of
    the increment.
    """

    def __init__(self, parent: _Kind, metric: Metric) -> None:
        self.parent: _Kind = parent
        self._metric = metric
        self._kept: dict[tuple[tuple[str, object], ...], _Kind] = {}

    def of(self, labels: Mapping[str, object]) -> _Kind:
        found = self._kept.get(tuple(labels.items()))
        return self._find(labels) if found is None else found

    def _find(self, labels: Mapping[str, object]) -> _Kind:
        values = _label_values(self._metric, labels)
        if len(self._kept) >= MAX_SERIES:
            return self.parent.labels(*("other" for _ in values))
        found = self.parent.labels(*values) if values else self.parent
        self._kept[tuple(labels.items())] = found
        return found

    def remove(self, labels: Mapping[str, object]) -> None:
        self._kept.clear()  # the order of labels may differ, and the others are soon found again
        self.parent.remove(*_label_values(self._metric, labels))


class _Histogram(Collector):
    """A histogram that takes arrays.

    That of prometheus_client takes one value at a time: 0.65 ms for the 1,024 of a batch, which a
    GPU evaluates in some 10 ms; this one takes 0.01 ms.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._lock = threading.Lock()
        self._series: dict[tuple[str, ...], tuple[NDArray[np.int64], float]] = {}

    def observe(self, values: ArrayLike, labels: Mapping[str, object]) -> None:
        key = _label_values(self._metric, labels)
        data = np.asarray(values, dtype=np.float64).ravel()
        data = data[~np.isnan(data)]
        bins = np.searchsorted(self._metric.buckets, data, side="left")  # a bucket has its bound
        counts = np.bincount(bins, minlength=len(self._metric.buckets) + 1)
        total = float(data[np.isfinite(data)].sum())
        with self._lock:
            before = self._series.get(key, (0, 0.0))
            self._series[key] = (before[0] + counts, before[1] + total)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        metric = self._metric
        family = HistogramMetricFamily(PREFIX + metric.name, metric.meaning, labels=metric.labels)
        bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
        with self._lock:
            series = dict(self._series)
        for key, (counts, total) in series.items():
            family.add_metric(key, list(zip(bounds, counts.cumsum().tolist(), strict=True)), total)
        yield family
