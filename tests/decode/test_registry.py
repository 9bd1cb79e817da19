"""Schemas by number: from folders, and from a registry that may be away for a while."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from broker_filter.decode.avro.schema import load_folder, parse_document, parse_json
from broker_filter.decode.registry import MAX_IDS, TIMEOUT_S, Registry, chained, filed_schemas
from broker_filter.errors import ConfigError, SchemaError, TransientError
from broker_filter.observe.health import STALL_S

INNER = {"type": "record", "name": "a.inner", "fields": [{"name": "x", "type": "double"}]}
OUTER = {"type": "record", "name": "a.outer", "fields": [{"name": "inner", "type": "a.inner"}]}
ALONE = {"type": "record", "name": "a.alone", "fields": [{"name": "y", "type": "long"}]}


def filed(folder: Path, *documents: Any) -> Path:
    folder.mkdir(parents=True)
    for document in documents:
        (folder / f"{document['name']}.avsc").write_text(json.dumps(document))
    return folder


# Folders


def test_a_packet_is_put_together_from_its_files(tmp_path: Path) -> None:
    schema = load_folder(filed(tmp_path / "1/0", OUTER, INNER, ALONE))
    assert (schema.name, set(schema.named)) == ("a.outer", {"a.outer", "a.inner"})


def test_folders_that_do_not_say_which_is_the_packet(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"a\.alone, a\.inner|a\.inner, a\.alone"):
        load_folder(filed(tmp_path / "two", INNER, ALONE))
    with pytest.raises(SchemaError, match="none"):
        load_folder(filed(tmp_path / "empty"))


def test_numbers_follow_from_the_folders(tmp_path: Path) -> None:
    filed(tmp_path / "lsst/11/1", ALONE)
    filed(tmp_path / "rapid/01/00", OUTER, INNER)
    filed(tmp_path / "ztf/4_02", ALONE)
    schemas = filed_schemas(tmp_path)
    assert {number: schema.name for number, schema in schemas.items()} == {
        1101: "a.alone",
        100: "a.outer",
    }


def test_a_number_that_two_folders_have_must_be_settled(tmp_path: Path) -> None:
    filed(tmp_path / "one/1/0", ALONE)
    other = filed(tmp_path / "two/1/0", OUTER, INNER)
    with pytest.raises(ConfigError, match="both have number 100"):
        filed_schemas(tmp_path)
    assert filed_schemas(tmp_path, {100: other})[100].name == "a.outer"


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        filed_schemas(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "document",
    [
        "long",
        {"type": "array", "items": "long"},
        {"type": "record", "name": "p", "fields": [{"name": "x", "type": "unheard_of"}]},
        {"type": "record", "fields": []},
        {"type": "enum", "name": "e", "symbols": ["A", "A"]},
        [],
        None,
    ],
)
def test_what_is_no_schema_of_a_record(document: Any) -> None:
    with pytest.raises(SchemaError):
        parse_document(document)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b" " * (3 << 20)], ids=len)
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(SchemaError):
        parse_json(text)


@pytest.mark.shared_data
def test_the_schemas_of_the_surveys(shared_data: Path) -> None:
    names = {n: s.name for n, s in filed_schemas(shared_data / "alerts/avsc").items()}
    assert names[1101] == "lsst.v11_1.alert"
    assert names[701] == "lsst.v7_1.alert"
    assert names[100] == "rapid.v01_00.alert"
    assert load_folder(shared_data / "alerts/avsc/ztf/4_02").name == "ztf.alert"


# Registries


UNKNOWN = (404, b'{"error_code": 40403, "message": "Schema not found"}')


class Answers:
    """What a registry answers to each request in turn; the last for ever."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers, self.paths = list(answers), []  # type: tuple[list[Any], list[str]]
        self.logins: list[str | None] = []

    def next(self, path: str, login: str | None) -> tuple[int, bytes]:
        self.paths.append(path)
        self.logins.append(login)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def serve() -> Iterator[Any]:
    servers = []

    def start(answers: Answers) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.next(self.path, self.headers["Authorization"])
                self.send_response(status)
                if status == 204:
                    self.end_headers()
                    return
                if status == 302:
                    self.send_header("Location", body.decode())
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def known(document: Any) -> tuple[int, bytes]:
    return 200, json.dumps({"schema": json.dumps(document)}).encode()


class Time:
    """A clock that only sleep moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def registry(url: str, time: Time) -> Registry:
    return Registry(url, patience_s=20.0, sleep=time.sleep, clock=time)


def test_a_registry_is_asked_once_for_each_number(serve: Any) -> None:
    answers = Answers(known(ALONE))
    find = registry(serve(answers) + "/", Time())
    schemas = [find(7), find(7), find(8)]
    assert [schema.name for schema in schemas if schema] == ["a.alone"] * 3
    assert schemas[0] is schemas[1]
    assert answers.paths == ["/schemas/ids/7", "/schemas/ids/8"]


def test_a_number_that_a_registry_does_not_know_is_asked_again_later(serve: Any) -> None:
    answers, time = Answers(UNKNOWN, known(ALONE)), Time()
    find = registry(serve(answers), time)
    assert find(7) is None
    assert find(7) is None
    time.sleep(301)
    assert find(7) is not None
    assert len(answers.paths) == 2


def test_a_registry_gets_the_login_that_a_file_holds(serve: Any, tmp_path: Path) -> None:
    answers, file = Answers(known(ALONE)), tmp_path / "login"
    file.write_text("reader:pass:word\n")
    assert Registry(serve(answers), login_file=file)(7) is not None
    assert answers.logins == ["Basic cmVhZGVyOnBhc3M6d29yZA=="]


def test_a_login_does_not_follow_a_redirect(serve: Any, tmp_path: Path) -> None:
    there, file = Answers(known(ALONE)), tmp_path / "login"
    file.write_text("reader:hunter2")
    here = Answers((302, f"{serve(there)}/elsewhere".encode()))
    assert Registry(serve(here), login_file=file)(7) is not None
    assert here.logins != [None]
    assert there.logins == [None]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_login_ends_at_once_with_the_setting_to_look_at(
    serve: Any, tmp_path: Path, status: int
) -> None:
    file = tmp_path / "login"
    file.write_text("reader:hunter2")
    answers = Answers((status, b""))
    with pytest.raises(ConfigError, match="schema_registry_login_file") as caught:
        Registry(serve(answers), login_file=file)(7)
    assert len(answers.paths) == 1
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [None, b"", b"hunter2", b":hunter2", b"a:b\nhunter2:c", b"\xff"]
)
def test_a_file_without_a_login_is_told_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "login"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{file}: ") as caught:
        Registry("https://registry.example.org", login_file=file)
    assert "hunter2" not in str(caught.value)


def test_a_registry_that_is_away_for_a_moment_is_waited_for(serve: Any) -> None:
    answers, time = Answers((503, b""), (500, b""), known(ALONE)), Time()
    assert registry(serve(answers), time)(7) is not None
    assert time.now == 1.5


def test_the_caller_hears_of_each_attempt_while_a_registry_is_away(serve: Any) -> None:
    """The main loop beats then, so that the liveness probe does not end the process."""
    time, beats = Time(), []  # type: tuple[Time, list[float]]
    url = serve(Answers((503, b"")))
    find = Registry(
        url, patience_s=60.0, sleep=time.sleep, clock=time, waiting=lambda: beats.append(time.now)
    )
    with pytest.raises(TransientError):
        find(7)
    assert beats[-1] == pytest.approx(60)
    assert max(b - a for a, b in pairwise(beats)) + TIMEOUT_S < STALL_S


def test_the_caller_may_end_the_wait_within_a_second(serve: Any) -> None:
    time = Time()

    def waiting() -> None:
        if time.now >= 7.2:
            raise TransientError("stopped")

    url = serve(Answers((503, b"")))
    find = Registry(url, patience_s=60.0, sleep=time.sleep, clock=time, waiting=waiting)
    with pytest.raises(TransientError, match="stopped"):
        find(7)
    assert time.now <= 8.2


def test_a_registry_that_stays_away_is_a_transient_error(serve: Any) -> None:
    time = Time()
    with pytest.raises(TransientError, match="503"):
        registry(serve(Answers((503, b""))), time)(7)
    assert 0 < time.now <= 20
    with pytest.raises(TransientError, match="cannot be reached"):
        registry("http://127.0.0.1:1", Time())(7)


@pytest.mark.parametrize(
    "answer",
    [
        (200, b'{"schema": "not json"}'),
        (200, b'{"schema": "{}", "references": [{"name": "other"}]}'),
        (200, b" " * (5 << 20)),
    ],
    ids=range(3),
)
def test_an_answer_that_is_no_schema_is_asked_for_once(
    serve: Any, answer: tuple[int, bytes]
) -> None:
    answers = Answers(answer)
    find = registry(serve(answers), Time())
    with pytest.raises(SchemaError):
        find(7)
    assert find(7) is None
    assert len(answers.paths) == 1


@pytest.mark.parametrize(
    "answer",
    [
        (404, b"<html>no such page</html>"),
        (404, b"{}"),
        (404, b""),
        (200, b"<html>please log in</html>"),
        (200, b"not json"),
        (200, b"[]"),
        (200, b'{"schema": null}'),
        (200, b'{"schema": '),
        (204, b""),
        (429, b"slowly"),
        (302, b"file:///etc/passwd"),
        (302, b"http://127.0.0.1:1/elsewhere"),
    ],
    ids=str,
)
def test_what_no_registry_answers_is_asked_again_until_one_does(
    serve: Any, answer: tuple[int, bytes]
) -> None:
    find = registry(serve(Answers(answer, known(ALONE))), Time())
    assert find(7) is not None
    find = registry(serve(Answers(answer)), Time())
    for _ in range(2):  # nor is it remembered
        with pytest.raises(TransientError, match="/schemas/ids/7"):
            find(7)


GOOD = known(ALONE)[1]


def wake(address: Any) -> None:
    """Let a server that waits for somebody go on."""
    socket.create_connection(address).close()


@pytest.fixture
def serve_raw() -> Iterator[Callable[[bytes], str]]:
    """Starts a server that sends these bytes, whatever it is asked, and closes."""
    with contextlib.ExitStack() as stack:

        def start(answer: bytes, pause_s: float = 0.0) -> str:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def run() -> None:
                while not closing.is_set():
                    with contextlib.suppress(OSError), server.accept()[0] as connection:
                        connection.recv(1 << 16)
                        for piece in pieces:
                            connection.sendall(piece)
                            closing.wait(pause_s)

            pieces = [bytes([byte]) for byte in answer] if pause_s else [answer]
            closing, thread = threading.Event(), threading.Thread(target=run, daemon=True)
            stack.callback(thread.join)
            stack.callback(wake, server.getsockname())
            stack.callback(closing.set)
            thread.start()
            return f"http://127.0.0.1:{server.getsockname()[1]}"

        yield start


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\xffgarbage\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + GOOD,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + GOOD[:9],
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 1000\r\n\r\n" + UNKNOWN[1],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n" + GOOD,
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 200 + b"\r\n" + GOOD,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1/\r\n\r\n",
    ],
    ids=lambda answer: repr(answer[:60]),
)
def test_bytes_that_are_no_whole_answer(serve_raw: Any, answer: bytes) -> None:
    with pytest.raises(TransientError, match="/schemas/ids/7"):
        registry(serve_raw(answer), Time())(7)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + GOOD,
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1000,
    ],
    ids=["body", "header"],
)
def test_an_answer_that_drips_has_an_end(serve_raw: Any, answer: bytes) -> None:
    """Each byte comes in time, all of them do not."""
    url, began = serve_raw(answer, pause_s=0.05), monotonic()
    with pytest.raises(TransientError, match=r"takes too long|timed out"):
        Registry(url, patience_s=0.0, timeout_s=0.4)(7)
    assert monotonic() - began < 5  # whole, it would take a minute


def test_what_is_remembered_is_bounded(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_filter.decode.registry.MAX_IDS", 3)
    answers = Answers(UNKNOWN)
    find = registry(serve(answers), Time())
    for number in range(10):
        assert find(number) is None
    assert len(find._unknown) <= 3 < MAX_IDS


def test_the_first_source_that_knows_a_number_wins() -> None:
    one, two = parse_document(ALONE), parse_document(INNER)
    find = chained({1: one}.get, {1: two, 2: two}.get)
    assert [find(1), find(2), find(3)] == [one, two, None]
