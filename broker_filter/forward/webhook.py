"""Any web server that takes JSON: an alert under the schema's names.

The alert's id goes along as ``Idempotency-Key``, the same each time, so that the server can know a
second hand-over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import to_json_dict
from broker_filter.alerts.words import in_words
from broker_filter.forward.post import Server
from broker_filter.forward.target import Options
from broker_filter.observe.text import printable

__all__ = ["Webhook", "message"]


def message(alert: Alert) -> dict[str, Any]:
    """The alert with its light curve, without samples, and the event in ``words``."""
    return {"words": printable(in_words(alert)), "alert": to_json_dict(alert, light_curve=True)}


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that takes JSON, with a bearer's token if there is a secret."""

    options: Options
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.options.need("url")
        object.__setattr__(self, "server", Server.of(self.options, "Bearer"))

    def send(self, alert: Alert, _earlier: Sequence[str] = ()) -> str:
        """See `Target.send`."""
        answer = self.server.post("", message(alert), key=str(alert.alert_id))
        return printable(answer.get("id", ""), 100)

    def close(self) -> None:
        """See `Target.close`."""
