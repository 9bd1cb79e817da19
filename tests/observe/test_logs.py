"""Log lines in JSON and in text."""

from __future__ import annotations

import io
import json
import logging

import numpy as np
import pytest
from pydantic import SecretStr

from broker_filter.observe.logs import configure_logging

HOSTILE = "star\x1b[2J\x9b31m\r\u202e\udcff\n2026-01-01 error forged"


@pytest.fixture
def stream():
    logger = logging.getLogger("broker_filter")
    before = logger.handlers[:], logger.level, logger.propagate
    yield io.StringIO()
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_line_carries_the_fields(stream):
    configure_logging("info", "json", stream)
    logging.getLogger("broker_filter.service.loop").info(
        "alert_published",
        extra={"topic": "t", "partition": np.int64(3), "duration_s": np.float32(0.5)},
    )
    (line,) = lines(stream)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "broker_filter.service.loop",
        "event": "alert_published",
        "topic": "t",
        "partition": 3,
        "duration_s": 0.5,
    }


def test_a_named_event_keeps_its_sentence(stream):
    configure_logging("info", "json", stream)
    logger = logging.getLogger("broker_filter")
    logger.error("no turn for %d s:\n%s", 31, "stack\n" * 1000, extra={"event": "stalled"})
    logger.info("stopped", extra={"event": "stopped"})
    stalled, stopped = lines(stream)
    assert stalled["event"] == "stalled"
    assert stalled["message"] == "no turn for 31 s:\n" + "stack\n" * 1000
    assert "message" not in stopped


def test_secrets_are_masked(stream):
    configure_logging("info", "json", stream)
    logging.getLogger("broker_filter").info(
        "login", extra={"sasl_password": "hunter2", "held": SecretStr("hunter2")}
    )
    assert "hunter2" not in stream.getvalue()
    assert lines(stream)[0]["sasl_password"] == "*" * 10


def test_lines_stay_valid_and_bounded(stream):
    configure_logging("info", "json", stream)
    logger = logging.getLogger("broker_filter")
    logger.info("two\nlines %s", "x" * 100_000, extra={"nan": float("nan"), "raw": b"\xff" * 9999})
    try:
        raise ValueError("bad \udcff")
    except ValueError:
        logger.exception("failed")
    first, second = lines(stream)
    assert len(str(first)) < 5000
    assert first["nan"] == "nan"
    assert "ValueError" in second["traceback"]


def test_level_and_text(stream):
    configure_logging("warning", "json", io.StringIO())
    configure_logging("warning", "text", stream)
    logger = logging.getLogger("broker_filter.kafka.source")
    logger.info("quiet")
    logger.warning("loud", extra={"topic": "t"})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("warning loud topic=t")


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_name_from_outside_cannot_act_on_a_terminal(stream, form):
    configure_logging("info", form, stream)
    logger = logging.getLogger("broker_filter")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("star %s failed", HOSTILE, extra={"star": HOSTILE, HOSTILE: "key"})
    text = stream.getvalue()
    assert "forged" in text
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    text.encode()  # no lone surrogate


def test_text_cannot_begin_a_line_of_its_own(stream):
    configure_logging("info", "text", stream)
    logging.getLogger("broker_filter").info("star %s", HOSTILE, extra={"star": HOSTILE})
    first, *others = stream.getvalue().splitlines()
    assert " info star star?" in first
    assert all(line.startswith("  ") for line in others)


def test_text_shows_stacks_over_several_lines(stream):
    configure_logging("info", "text", stream)
    logger = logging.getLogger("broker_filter")
    try:
        raise ValueError("bad")
    except ValueError:
        logger.exception("failed")
    first, *others = stream.getvalue().splitlines()
    assert first.endswith("error failed")
    assert others[0] == "  Traceback (most recent call last):"
    assert others[-1] == "  ValueError: bad"
