"""Where alerts go that a target did not take: a file, or a topic."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import to_json_dict, to_message
from broker_filter.errors import StateError
from broker_filter.kafka.sink import Sink
from broker_filter.observe.text import json_line

__all__ = ["Letters", "letters_file", "letters_topic"]

Letters = Callable[[Alert, str, str], None]
"""Sets an alert aside, with a short reason and a sentence; returns once it is kept."""


def letters_file(path: Path, target: str) -> Letters:
    """Append a line of JSON for each alert: time, target, reason, detail, and the alert."""

    def keep(alert: Alert, reason: str, detail: str) -> None:
        record = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "target": target,
            "reason": reason,
            "detail": detail,
            "alert": to_json_dict(alert, light_curve=True, samples=True),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json_line(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StateError(f"{path}: no dead letter can be kept: {error.strerror}") from error

    return keep


def letters_topic(sink: Sink, topic: str, target: str) -> Letters:
    """Send the alert's own message to a topic, with target, reason and detail in its headers.

    A subscriber reads such a topic like any other topic of alerts.
    """

    def keep(alert: Alert, reason: str, detail: str) -> None:
        message = to_message(alert, topic)
        why = {"target": target, "reason": reason, "detail": detail}
        headers = (*message.headers, *((name, text.encode()) for name, text in why.items()))
        sink.produce(topic, message.key, message.value, headers)
        sink.flush()

    return keep
