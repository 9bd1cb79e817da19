"""Counters, gauges and histograms."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from broker_filter.observe import metrics as module
from broker_filter.observe.metrics import Metrics
from broker_filter.observe.table import METRICS, PREFIX, PROCESS_METRICS


@pytest.mark.skipif(sys.platform != "linux", reason="the client measures it on Linux only")
def test_the_process_is_measured_too():
    families = {family.name: family for family in Metrics().registry.collect()}
    for metric in PROCESS_METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert family.type == metric.kind
        assert family.samples[0].value > 0


def test_known_series_begin_at_zero():
    registry = Metrics().registry
    for metric in METRICS:
        suffix = "_count" if metric.kind == "histogram" else ""
        for value in metric.known:
            (label,) = metric.labels
            name = f"broker_filter_{metric.name}{suffix}"
            assert registry.get_sample_value(name, {label: value}) == 0.0


def test_series_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_SERIES", 3)
    metrics = Metrics()
    for topic in "abcdebc":
        metrics.inc("records_consumed_total", topic=topic)
    counts = {
        topic: metrics.value("records_consumed_total", topic=topic)
        for topic in ("a", "b", "c", "d", "e", "other")
    }
    assert counts == {"a": 1, "b": 2, "c": 2, "d": 0, "e": 0, "other": 2}


def test_histogram_counts_up_to_and_with_each_bound():
    metrics = Metrics()
    metrics.observe("batch_fill_ratio", np.array([[0.1, 0.15], [1.0, 7.0]]))
    metrics.observe("batch_fill_ratio", np.nan)
    metrics.observe("batch_fill_ratio", 0.2)

    def sample(name, **labels):
        return metrics.registry.get_sample_value(f"broker_filter_batch_fill_ratio_{name}", labels)

    assert sample("bucket", le="0.1") == 1
    assert sample("bucket", le="0.2") == 3
    assert sample("bucket", le="1.0") == 4
    assert sample("bucket", le="+Inf") == sample("count") == 5
    assert sample("sum") == pytest.approx(8.45)
    assert metrics.value("batch_fill_ratio") == 5


@pytest.mark.parametrize("name", ["batch_windows", "log_bayes_factor"])
def test_the_value_of_a_histogram_is_how_many_it_holds(name):
    metrics = Metrics()
    assert metrics.value(name) == 0
    metrics.observe(name, [-3.0, 0.0, 1e9])
    assert metrics.value(name) == 3


def test_instances_are_independent():
    one, two = Metrics(), Metrics()
    one.inc("backpressure_seconds_total", 2.5)
    assert one.value("backpressure_seconds_total") == 2.5
    assert two.value("backpressure_seconds_total") == 0.0


def test_a_forgotten_series_is_gone_until_it_is_set_again():
    metrics = Metrics()
    where, other = {"topic": "t", "partition": 0}, {"partition": 1, "topic": "t"}
    for labels in (where, other):
        metrics.set("consumer_lag_records", 7, **labels)

    def sample(labels):
        labels = {name: str(value) for name, value in labels.items()}
        return metrics.registry.get_sample_value("broker_filter_consumer_lag_records", labels)

    metrics.forget("consumer_lag_records", **dict(reversed(where.items())))
    assert (sample(where), sample(other)) == (None, 7)
    metrics.forget("consumer_lag_records", **where)
    metrics.set("consumer_lag_records", 8, **where)
    metrics.set("consumer_lag_records", 9, **other)
    assert (sample(where), sample(other)) == (8, 9)


def test_misuse_is_refused():
    metrics = Metrics()
    with pytest.raises(KeyError, match="record_consumed"):
        metrics.inc("record_consumed")
    with pytest.raises(ValueError, match="labels"):
        metrics.inc("records_consumed_total", star="12")
    with pytest.raises(ValueError, match="labels"):
        metrics.inc("records_consumed_total")
    with pytest.raises(ValueError, match="labels"):
        metrics.observe("batch_windows", 1, stage="evidence")
    with pytest.raises(KeyError, match="windows"):
        metrics.inc("windows")
    with pytest.raises(KeyError, match="window"):
        metrics.value("window")
    with pytest.raises(ValueError, match="non-negative"):
        metrics.inc("backpressure_seconds_total", -1)


def test_the_order_of_labels_is_of_no_account():
    metrics = Metrics()
    metrics.set("consumer_lag_records", 7, topic="t", partition=2)
    metrics.set("consumer_lag_records", 8, partition=2, topic="t")
    assert metrics.value("consumer_lag_records", topic="t", partition=2) == 8


def test_total_is_the_sum_over_the_labels():
    metrics = Metrics()
    assert metrics.total("records_dead_total") == 0
    metrics.inc("records_dead_total", 3, reason="empty")
    metrics.inc("records_dead_total", reason="new one")
    assert metrics.total("records_dead_total") == 4


def test_a_histogram_reads_as_that_of_prometheus_client():
    """Ours takes arrays; what it shows is the same to the letter."""
    (metric,) = [metric for metric in METRICS if metric.name == "inference_seconds"]
    values = np.random.default_rng(5).lognormal(-3, 3, 500)
    ours = Metrics()
    ours.observe(metric.name, values, stage="evidence")
    theirs = CollectorRegistry()
    histogram = Histogram(
        PREFIX + metric.name,
        metric.meaning,
        metric.labels,
        buckets=metric.buckets,
        registry=theirs,
    )
    for stage in metric.known:
        histogram.labels(stage)
    for value in values:
        histogram.labels("evidence").observe(value)

    def shown(registry):
        name = PREFIX + metric.name
        lines = [line for line in generate_latest(registry).decode().splitlines() if name in line]
        sums = [line for line in lines if line.startswith(f"{name}_sum")]
        return [line for line in lines if line not in sums], sums

    (lines, ours_sum), (expected, their_sum) = shown(ours.registry), shown(theirs)
    assert lines == expected
    for mine, other in zip(ours_sum, their_sum, strict=True):
        assert mine.split()[0] == other.split()[0]
        assert float(mine.split()[1]) == pytest.approx(float(other.split()[1]))


def test_a_scrape_holds_every_metric_and_nothing_else():
    text = generate_latest(Metrics().registry).decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    named = {PREFIX + metric.name.removesuffix("_total") for metric in METRICS}
    assert {name for name in families if name.startswith(PREFIX)} == named


def test_threads_lose_no_count():
    metrics = Metrics()

    def work():
        for _ in range(2000):
            metrics.inc("points_inserted_total", outcome="inserted")
            metrics.observe("batch_windows", [1, 2])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.value("points_inserted_total", outcome="inserted") == 8000
    assert metrics.value("batch_windows") == 16_000
