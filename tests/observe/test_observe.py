from __future__ import annotations

import io
import json
import logging
import socket
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from broker_filter.errors import ConfigError
from broker_filter.observe import metrics as observe
from broker_filter.observe.metrics import (
    Health,
    Metrics,
    ObserveServer,
    configure_logging,
)
from broker_filter.observe.table import METRICS, PROCESS_METRICS, markdown_table


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def health(clock):
    return Health(clock=clock)


@pytest.fixture
def server(health):
    with ObserveServer(Metrics(), health, "127.0.0.1", 0) as server:
        yield server


def get(server, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class TestMetrics:
    def test_scrape_over_http_gives_every_metric(self, health):
        metrics = Metrics()
        metrics.inc("records_consumed_total", 3, topic="photometry")
        metrics.inc("records_consumed_total", topic="photometry")
        metrics.set("consumer_lag_records", 7, topic="photometry", partition=2)
        with ObserveServer(metrics, health, "127.0.0.1", 0) as server:
            status, text = get(server, "/metrics")
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert status == 200
        for metric in METRICS:
            assert f"broker_filter_{metric.name.removesuffix('_total')}" in families
        (sample,) = families["broker_filter_records_consumed"].samples
        assert (sample.labels, sample.value) == ({"topic": "photometry"}, 4.0)
        (sample,) = families["broker_filter_consumer_lag_records"].samples
        assert (sample.labels, sample.value) == ({"topic": "photometry", "partition": "2"}, 7.0)

    @pytest.mark.skipif(sys.platform != "linux", reason="the client measures it on Linux only")
    def test_the_process_is_measured_too(self):
        families = {family.name: family for family in Metrics().registry.collect()}
        for metric in PROCESS_METRICS:
            family = families[metric.name.removesuffix("_total")]
            assert family.type == metric.kind
            assert family.samples[0].value > 0

    def test_known_series_begin_at_zero(self):
        registry = Metrics().registry
        for metric in METRICS:
            suffix = "_count" if metric.kind == "histogram" else ""
            for value in metric.known:
                (label,) = metric.labels
                name = f"broker_filter_{metric.name}{suffix}"
                assert registry.get_sample_value(name, {label: value}) == 0.0

    def test_series_are_bounded(self, monkeypatch):
        monkeypatch.setattr(observe, "MAX_SERIES", 3)
        metrics = Metrics()
        for topic in "abcdebc":
            metrics.inc("records_consumed_total", topic=topic)
        counts = {
            topic: metrics.value("records_consumed_total", topic=topic)
            for topic in ("a", "b", "c", "d", "e", "other")
        }
        assert counts == {"a": 1, "b": 2, "c": 2, "d": 0, "e": 0, "other": 2}

    def test_histogram_counts_up_to_and_with_each_bound(self):
        metrics = Metrics()
        metrics.observe("batch_fill_ratio", np.array([[0.1, 0.15], [1.0, 7.0]]))
        metrics.observe("batch_fill_ratio", np.nan)
        metrics.observe("batch_fill_ratio", 0.2)

        def sample(name, **labels):
            return metrics.registry.get_sample_value(
                f"broker_filter_batch_fill_ratio_{name}", labels
            )

        assert sample("bucket", le="0.1") == 1
        assert sample("bucket", le="0.2") == 3
        assert sample("bucket", le="1.0") == 4
        assert sample("bucket", le="+Inf") == sample("count") == 5
        assert sample("sum") == pytest.approx(8.45)
        assert metrics.value("batch_fill_ratio") == 5

    def test_instances_are_independent(self):
        one, two = Metrics(), Metrics()
        one.inc("backpressure_seconds_total", 2.5)
        assert (
            one.value("backpressure_seconds_total"),
            two.value("backpressure_seconds_total"),
        ) == (
            2.5,
            0.0,
        )

    def test_a_forgotten_series_is_gone(self):
        metrics = Metrics()
        where = {"topic": "t", "partition": 0}
        metrics.set("consumer_lag_records", 7, **where)
        metrics.forget("consumer_lag_records", **where)
        assert (
            metrics.registry.get_sample_value("broker_filter_consumer_lag_records", where) is None
        )

    def test_misuse_is_refused(self):
        metrics = Metrics()
        with pytest.raises(KeyError, match="record_consumed"):
            metrics.inc("record_consumed")
        with pytest.raises(ValueError, match="labels"):
            metrics.inc("records_consumed_total", star="12")
        with pytest.raises(ValueError, match="is a gauge"):
            metrics.inc("windows")
        with pytest.raises(ValueError, match="cannot go down"):
            metrics.inc("backpressure_seconds_total", -1)

    def test_names_follow_prometheus(self):
        for metric in METRICS:
            assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
            assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
            assert list(metric.buckets) == sorted(set(metric.buckets))
        assert len({metric.name for metric in METRICS}) == len(METRICS)

    def test_markdown_has_a_row_for_each(self):
        rows = markdown_table().splitlines()[2:]
        assert [row.split("`")[1] for row in rows] == [
            *(f"broker_filter_{m.name}" for m in METRICS),
            *(m.name for m in PROCESS_METRICS),
        ]
        assert {row.count("|") for row in rows} == {6}


class TestHealth:
    def test_health_flips_when_the_loop_stalls_and_back(self, server, health, clock):
        health.beat()
        assert get(server, "/healthz") == (200, "ok\n")
        clock.now += 29
        assert get(server, "/healthz")[0] == 200
        clock.now += 2
        assert get(server, "/healthz") == (503, "main loop has not turned for 31 s\n")
        health.beat()
        assert get(server, "/healthz")[0] == 200

    def test_a_start_may_take_longer_than_a_turn(self, server, clock):
        clock.now += 299
        assert get(server, "/healthz")[0] == 200
        clock.now += 2
        assert get(server, "/healthz") == (503, "main loop has not turned for 301 s\n")

    def test_ready_once_nothing_is_missing(self, server, health):
        assert get(server, "/readyz") == (503, "waiting for model, partitions, broker\n")
        for need in ("model", "partitions", "broker"):
            health.set_ready(need)
        assert get(server, "/readyz") == (200, "ok\n")
        health.set_ready("partitions", False)
        assert get(server, "/readyz") == (503, "waiting for partitions\n")

    def test_an_unknown_need_is_refused(self, health):
        with pytest.raises(KeyError, match="modle"):
            health.set_ready("modle")


class TestServer:
    def test_unknown_path(self, server):
        assert get(server, "/etc/passwd")[0] == 404

    def send(self, server, request):
        """The whole answer to raw bytes, empty if the connection was cut."""
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            try:
                connection.sendall(request)
                return b"".join(iter(lambda: connection.recv(65536), b""))
            except (ConnectionResetError, BrokenPipeError):
                return b""

    def test_only_get_is_answered(self, server):
        answer = self.send(server, b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        assert answer.split()[1] == b"501"

    def test_a_long_request_is_cut_off(self, server):
        head = b"GET /healthz HTTP/1.1\r\nX: "
        assert self.send(server, head + b"x" * 4000 + b"\r\n\r\n").split()[1] == b"200"
        assert self.send(server, head + b"x" * 9000 + b"\r\n\r\n") == b""

    def test_a_slow_request_is_cut_off(self, server, monkeypatch):
        monkeypatch.setattr(observe, "MAX_REQUEST_S", 0.2)
        assert self.send(server, b"GET /healthz HTTP/1.1\r\n") == b""

    def test_connections_are_bounded(self, health, monkeypatch):
        monkeypatch.setattr(observe, "MAX_REQUESTS", 2)
        with ObserveServer(Metrics(), health, "127.0.0.1", 0) as server, ExitStack() as stack:
            idle = [
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                for _ in range(2)
            ]
            assert self.send(server, b"GET /healthz HTTP/1.1\r\n\r\n") == b""
            for connection in idle:
                connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                assert connection.recv(100).split()[1] == b"200"

    @pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
    def test_listens_on_ipv6(self, health):
        try:
            server = ObserveServer(Metrics(), health, "::1", 0)
        except ConfigError as error:
            pytest.skip(str(error))
        with server, socket.create_connection(("::1", server.port), timeout=5) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert connection.recv(100).split()[1] == b"200"

    def test_a_failure_of_ours_is_logged(self, health, caplog, monkeypatch):
        monkeypatch.setattr(logging.getLogger("broker_filter"), "propagate", True)
        monkeypatch.setattr(health, "missing", lambda: 1 / 0)
        with ObserveServer(Metrics(), health, "127.0.0.1", 0) as server:
            assert self.send(server, b"GET /readyz HTTP/1.0\r\n\r\n") == b""
        assert "ZeroDivisionError" in caplog.text

    def test_taken_port_is_named(self, server, health):
        with pytest.raises(ConfigError, match=f"metrics.port = {server.port}: Address already in"):
            ObserveServer(Metrics(), health, "127.0.0.1", server.port)

    def test_close_frees_the_port(self, server):
        server.close()
        server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=2)


class TestLogging:
    @pytest.fixture
    def stream(self):
        logger = logging.getLogger("broker_filter")
        before = logger.handlers[:], logger.level, logger.propagate
        yield io.StringIO()
        logger.handlers[:], logger.propagate = before[0], before[2]
        logger.setLevel(before[1])

    def lines(self, stream):
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    def test_json_line_carries_the_fields(self, stream):
        configure_logging("info", "json", stream)
        logging.getLogger("broker_filter.service.loop").info(
            "alert_published",
            extra={"topic": "t", "partition": np.int64(3), "duration_s": np.float32(0.5)},
        )
        (line,) = self.lines(stream)
        assert line.pop("time").endswith("+00:00")
        assert line == {
            "level": "info",
            "logger": "broker_filter.service.loop",
            "event": "alert_published",
            "topic": "t",
            "partition": 3,
            "duration_s": 0.5,
        }

    def test_a_named_event_keeps_its_sentence(self, stream):
        configure_logging("info", "json", stream)
        logger = logging.getLogger("broker_filter")
        logger.error("no turn for %d s:\n%s", 31, "stack\n" * 1000, extra={"event": "stalled"})
        logger.info("stopped", extra={"event": "stopped"})
        stalled, stopped = self.lines(stream)
        assert stalled["event"] == "stalled"
        assert stalled["message"] == "no turn for 31 s:\n" + "stack\n" * 1000
        assert "message" not in stopped

    def test_secrets_are_masked(self, stream):
        configure_logging("info", "json", stream)
        logging.getLogger("broker_filter").info(
            "login", extra={"sasl_password": "hunter2", "held": SecretStr("hunter2")}
        )
        assert "hunter2" not in stream.getvalue()
        assert self.lines(stream)[0]["sasl_password"] == "*" * 10

    def test_lines_stay_valid_and_bounded(self, stream):
        configure_logging("info", "json", stream)
        logger = logging.getLogger("broker_filter")
        logger.info(
            "two\nlines %s", "x" * 100_000, extra={"nan": float("nan"), "raw": b"\xff" * 9999}
        )
        try:
            raise ValueError("bad \udcff")
        except ValueError:
            logger.exception("failed")
        first, second = self.lines(stream)
        assert len(str(first)) < 5000
        assert first["nan"] == "nan"
        assert "ValueError" in second["traceback"]

    def test_level_and_text(self, stream):
        configure_logging("warning", "json", io.StringIO())
        configure_logging("warning", "text", stream)
        logger = logging.getLogger("broker_filter.kafka.source")
        logger.info("quiet")
        logger.warning("loud", extra={"topic": "t"})
        (line,) = stream.getvalue().splitlines()
        assert line.endswith("warning loud topic=t")
