"""The table of metrics."""

from __future__ import annotations

from broker_filter.observe.table import METRICS, PROCESS_METRICS
from tests import pages


def test_names_follow_prometheus():
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets))
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_markdown_has_a_row_for_each():
    rows = pages.metrics().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [
        *(f"broker_filter_{m.name}" for m in METRICS),
        *(m.name for m in PROCESS_METRICS),
    ]
    assert {row.count("|") for row in rows} == {6}
