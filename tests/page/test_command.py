"""``broker-filter page`` as a process: it serves, ends with status 0, and says what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker_filter.cli import main
from broker_filter.client.save import avro_files
from broker_filter.observe import logs
from tests.page.night import night

LONGEST_S = 60.0


@contextmanager
def page(*options: object) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "broker_filter.cli", "page", "--port", "0", *map(str, options)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as found:  # noqa: S310  our own address
        return str(found.read().decode())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_shows_a_folder_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    save = avro_files(tmp_path)
    for alert in night(3):
        save(alert)
    with page("--archive", tmp_path) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        end = time.monotonic() + LONGEST_S
        while "3 events" not in answer(address):
            assert time.monotonic() < end
        process.send_signal(number)
        assert process.wait(LONGEST_S) == 0
    assert (tmp_path / "page.sqlite").exists()


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BROKER_FILTER_PAGE_PASSWORD", raising=False)
    monkeypatch.setattr(logs, "configure_logging", lambda *_: None)


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--archive", "none"], "no such folder"),
        (["--archive", ".", "--host", "0.0.0.0"], "password"),  # noqa: S104
        (["--archive", ".", "--password-file", "none"], "cannot be read"),
        (["--archive", ".", "--database", "text"], "not a database"),
        (["--archive", ".", "--host", "256.1.1.1"], "password"),
        (["--client-config", "none"], "none"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text").write_text("no database at all, but long enough to be read as one" * 20)
    assert main(["page", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.usefixtures("_here")
def test_what_is_no_host_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_FILTER_PAGE_PASSWORD", "twelve letters")
    assert main(["page", "--archive", ".", "--host", "a" * 64]) == 2
    assert f"cannot listen on {'a' * 64} port" in capsys.readouterr().err


@pytest.mark.usefixtures("_here")
def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["page", "--archive", ".", "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err
