"""What the answer of a web server means for an alert, and what no message shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_filter.errors import ConfigError, PoisonMessage, TransientError
from broker_filter.forward.post import Server
from broker_filter.forward.target import Busy, Options
from tests.forward.stand_in import Answer, StandIn, stand_in

SECRET = "s3cret-token"  # noqa: S105  of a stand-in


@pytest.fixture
def target() -> Iterator[StandIn]:
    with stand_in() as server:
        yield server


def server(target: StandIn, timeout_s: float = 30.0) -> Server:
    return Server.of(Options(target.url, secret=SECRET, timeout_s=timeout_s), "Token")


def test_json_goes_out_with_login_and_key(target: StandIn) -> None:
    target.script = [Answer(201, b'{"id": 3}')]
    assert server(target).post("/path", {"a": 1}, key="key") == {"id": 3}
    (request,) = target.requests
    assert (request.method, request.path, request.body) == ("POST", "/path", {"a": 1})
    assert request.headers["authorization"] == f"Token {SECRET}"
    assert request.headers["idempotency-key"] == "key"
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize("body", [b"", b"ok", b"[1]", b"\xff"], ids=str)
def test_an_answer_without_json_is_an_answer(target: StandIn, body: bytes) -> None:
    target.script = [Answer(200, body)]
    assert server(target).post("", {}) == {}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, PoisonMessage),
        (413, PoisonMessage),
        (422, PoisonMessage),
        (401, ConfigError),
        (403, ConfigError),
        (404, ConfigError),
        (301, ConfigError),
        (408, TransientError),
        (409, TransientError),
        (429, Busy),
        (500, TransientError),
        (502, TransientError),
        (503, Busy),
    ],
)
def test_a_status_says_what_becomes_of_the_alert(
    target: StandIn, status: int, error: type[Exception]
) -> None:
    target.script = [Answer(status, f"no {SECRET}".encode(), {"Location": "http://other/"})]
    with pytest.raises(error) as caught:
        server(target).post("", {})
    assert type(caught.value) is error
    assert str(status) in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("given", "wait"), [("7", 7), ("9999", 300), ("soon", 0), ("", 0)])
def test_a_busy_server_says_for_how_long(target: StandIn, given: str, wait: float) -> None:
    target.script = [Answer(429, b"", {"Retry-After": given})]
    with pytest.raises(Busy) as caught:
        server(target).post("", {})
    assert caught.value.wait_s == wait


def test_a_lost_answer_is_a_transient_error(target: StandIn) -> None:
    target.script = [Answer(breaks=True), Answer(hangs=True)]
    with pytest.raises(TransientError):
        server(target).post("", {})
    with pytest.raises(TransientError):
        server(target, timeout_s=0.05).post("", {})
    assert len(target.requests) == 2


def test_an_answer_that_comes_twice_counts_once(target: StandIn) -> None:
    target.script = [Answer(200, b'{"id": 1}', twice=True), Answer(200, b'{"id": 2}')]
    assert [server(target).post("", {})["id"] for _ in range(2)] == [1, 2]
    assert len(target.requests) == 2


def test_a_server_that_is_not_there() -> None:
    address = f"http://127.0.0.1:1/{SECRET}"
    with pytest.raises(TransientError) as caught:
        Server(address, hidden=(address,)).post("", {})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["http://example.org", "ftp://example.org", "example.org", ""])
def test_a_secret_goes_to_no_address_in_clear(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        Server.of(Options(url, secret=SECRET), "Token")


def test_a_secret_is_not_shown() -> None:
    options = Options("https://example.org", secret=SECRET)
    assert SECRET not in repr(options) + repr(Server.of(options, "Token"))
