"""The HTTP server: what it answers, and that no client can keep others from it."""

from __future__ import annotations

import gzip
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker_filter.errors import ConfigError
from broker_filter.observe import server as module
from broker_filter.observe.health import Health
from broker_filter.observe.metrics import Metrics
from broker_filter.observe.server import ObserveServer

PROBE = b"GET /healthz HTTP/1.1\r\n\r\n"


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def start(metrics: Metrics, health: Health) -> Iterator[Callable[[], ObserveServer]]:
    """Starts a server with the limits that hold then."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(ObserveServer(metrics.registry, health, "127.0.0.1", 0))


@pytest.fixture
def server(start: Callable[[], ObserveServer]) -> ObserveServer:
    return start()


def get(server: ObserveServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def connect(server: ObserveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=5)


def send(server: ObserveServer, request: bytes) -> bytes:
    """The whole answer to raw bytes, empty if the connection was cut."""
    with connect(server) as connection:
        try:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except (ConnectionResetError, BrokenPipeError):
            return b""


def status(answer: bytes) -> bytes:
    """Of a whole answer; empty if the connection was cut."""
    return b"".join(answer.split()[1:2])


def test_scrape_gives_the_metrics(server: ObserveServer, metrics: Metrics) -> None:
    metrics.inc("records_consumed_total", 3, topic="photometry")
    metrics.set("consumer_lag_records", 7, topic="photometry", partition=2)
    code, text = get(server, "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert code == 200
    (sample,) = families["broker_filter_records_consumed"].samples
    assert (sample.labels, sample.value) == ({"topic": "photometry"}, 3.0)
    (sample,) = families["broker_filter_consumer_lag_records"].samples
    assert (sample.labels, sample.value) == ({"topic": "photometry", "partition": "2"}, 7.0)


def test_a_scrape_may_be_compressed(server: ObserveServer) -> None:
    request = b"GET /metrics HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n"
    head, _, body = send(server, request).partition(b"\r\n\r\n")
    assert b"Content-Encoding: gzip" in head
    assert b"broker_filter_windows" in gzip.decompress(body)


def test_probes_follow_the_health(
    server: ObserveServer, health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get(server, "/healthz") == (200, "ok\n")
    assert get(server, "/readyz?verbose") == (503, "waiting for model, partitions, broker\n")
    for need in ("model", "partitions", "broker"):
        health.set_ready(need)
    monkeypatch.setattr(health, "stalled_s", lambda: 31.0)
    assert get(server, "/readyz") == (200, "ok\n")
    assert get(server, "/healthz") == (503, "no pass of the main loop for 31 s\n")


def test_unknown_path(server: ObserveServer) -> None:
    assert get(server, "/etc/passwd")[0] == 404


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"TRACE"])
@pytest.mark.parametrize("path", [b"/metrics", b"/healthz"])
def test_only_get_is_answered(server: ObserveServer, method: bytes, path: bytes) -> None:
    answer = send(server, method + b" " + path + b" HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
    assert status(answer) == b"405"


def test_a_long_request_is_cut_off(server: ObserveServer) -> None:
    head = b"GET /healthz HTTP/1.1\r\nX: "
    assert status(send(server, head + b"x" * 4000 + b"\r\n\r\n")) == b"200"
    assert send(server, head + b"x" * 9000 + b"\r\n\r\n") == b""


def test_a_slow_request_is_cut_off(server: ObserveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REQUEST_S", 0.2)
    assert send(server, b"GET /healthz HTTP/1.1\r\n") == b""


def test_garbage_is_answered_and_logged_nowhere(
    server: ObserveServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    assert b"400" in send(server, b"\x00\xff\r\n\r\n")
    assert status(send(server, PROBE)) == b"200"
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")


def test_one_connection_too_many_cuts_off_the_oldest(
    start: Callable[[], ObserveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 2)
    server = start()
    with connect(server) as oldest, connect(server) as younger:
        assert status(send(server, PROBE)) == b"200"
        assert oldest.recv(100) == b""
        younger.sendall(PROBE)
        assert status(younger.recv(100)) == b"200"


def test_probes_are_answered_while_slow_clients_come_again_and_again(
    server: ObserveServer,
) -> None:
    stop = threading.Event()

    def be_slow() -> None:
        while not stop.is_set():
            with suppress(OSError), connect(server) as connection:
                connection.sendall(b"GET /he")
                connection.recv(1)  # until it is cut off

    clients = [threading.Thread(target=be_slow) for _ in range(40)]
    before = threading.active_count() + len(clients)
    for client in clients:
        client.start()
    try:
        answers = []
        for _ in range(50):
            answers.append(status(send(server, PROBE)))
            assert threading.active_count() <= before + module.MAX_CONNECTIONS + 1
    finally:
        stop.set()
        server.close()
        for client in clients:
            client.join()
    assert answers == [b"200"] * 50


def test_what_is_no_host_is_named(metrics: Metrics, health: Health) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.host = a\0b"):
        ObserveServer(metrics.registry, health, "a\0b", 0)


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_listens_on_ipv6(metrics: Metrics, health: Health) -> None:
    try:
        server = ObserveServer(metrics.registry, health, "::1", 0)
    except ConfigError as error:
        pytest.skip(str(error))
    with server, socket.create_connection(("::1", server.port), timeout=5) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert status(connection.recv(100)) == b"200"


def test_a_failure_of_ours_is_logged(
    server: ObserveServer,
    health: Health,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("broker_filter"), "propagate", True)
    monkeypatch.setattr(health, "missing", lambda: 1 / 0)
    answer = send(server, b"GET /readyz HTTP/1.0\r\n\r\n")
    assert status(answer) == b"500"
    assert b"ZeroDivision" not in answer
    assert "ZeroDivisionError" in caplog.text


def test_taken_port_is_named(server: ObserveServer, metrics: Metrics, health: Health) -> None:
    with pytest.raises(ConfigError, match=f"metrics.port = {server.port}: Address already in"):
        ObserveServer(metrics.registry, health, "127.0.0.1", server.port)


def test_close_frees_the_port(server: ObserveServer) -> None:
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        connect(server)
