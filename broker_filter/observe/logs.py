"""Logs: one line for each event, in JSON for machines or in text for people."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import numpy as np

from broker_filter.observe.text import printable, printable_lines

__all__ = ["configure_logging"]

MAX_TEXT = 2000

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_SECRET = re.compile(r"password|secret|token|credential", re.IGNORECASE)


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, event, and what the call gave as ``extra``.

    A line that names its event there has a sentence for people beside it, as ``message``. What is
    not ASCII is escaped, so that no name from outside reaches a terminal as it is.
    """

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        line = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _bounded(text),
            **_extra(record),
        }
        if getattr(record, "event", text) != text:
            line["message"] = _bounded(text, 8 * MAX_TEXT)  # it may be the stacks of all threads
        if record.exc_info:
            line["traceback"] = _traceback(self, record)
        return json.dumps(line)


class _TextFormatter(logging.Formatter):
    """The same for people: time, level, event, key=value.

    Further lines of a message are indented, so that no name from outside can look like an event.
    """

    def format(self, record: logging.LogRecord) -> str:
        words = [_iso(record.created), record.levelname.lower()]
        words.append(_lines(_bounded(record.getMessage(), 8 * MAX_TEXT)))
        words += [printable(f"{key}={value}") for key, value in _extra(record).items()]
        trace = f"\n{_traceback(self, record)}" if record.exc_info else ""
        return " ".join(words) + _lines(trace)


def _lines(text: str) -> str:
    return printable_lines(text).replace("\n", "\n  ")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info)[-8 * MAX_TEXT :] if record.exc_info else ""


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {
        key: "**********" if _SECRET.search(key) else _plain(value)
        for key, value in vars(record).items()
        if key not in _STANDARD
    }


def _plain(value: object) -> object:
    """Turn anything into what JSON can hold, bounded in length."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return _bounded(str(value))


def _bounded(text: str, limit: int = MAX_TEXT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def configure_logging(
    level: str,
    format: Literal["json", "text"],  # noqa: A002
    stream: TextIO | None = None,
) -> None:
    """Send the logs of this package to a stream (stderr by default); a second call replaces it.

    Give what a line should carry as ``extra``: topic, partition, offset, alert_id, model_id,
    duration_s and the like. Fields that hold secrets, by their names, are masked.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if format == "json" else _TextFormatter())
    logger = logging.getLogger("broker_filter")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
