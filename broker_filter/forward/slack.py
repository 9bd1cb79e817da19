"""A channel of Slack, by an incoming webhook, whose address is the secret.

Slack compares nothing, so an alert whose answer was lost comes a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.words import in_words
from broker_filter.forward.model_fields import target_name
from broker_filter.forward.post import Server
from broker_filter.forward.target import Options
from broker_filter.observe.text import printable

__all__ = ["Slack", "message"]


def message(alert: Alert) -> dict[str, Any]:
    """An alert as a message: the event in words, and where it is."""
    where = "" if alert.ra is None else f" at {alert.ra:.5f} {alert.dec:+.5f}"
    head = _escaped(f"{alert.state}: {target_name(alert)} {alert.band}{where}")
    text = f"{head}\n{_escaped(in_words(alert))}"
    # A block of plain text knows no markup, so no name can link, ping or shape anything.
    block = {"type": "plain_text", "text": _plain(alert, where), "emoji": False}
    return {"text": text, "blocks": [{"type": "section", "text": block}]}


def _plain(alert: Alert, where: str) -> str:
    head = f"{alert.state}: {target_name(alert)} {printable(alert.band)}{where}"
    return f"{head}\n{printable(in_words(alert))}\nalert {alert.alert_id}"


def _escaped(text: str) -> str:
    """Text in which Slack finds no link and no mention."""
    safe = printable(text)
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        safe = safe.replace(sign, entity)
    return safe


@dataclass(frozen=True, slots=True)
class Slack:
    """An incoming webhook of Slack."""

    options: Options
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.options.need("secret")
        address = self.options.secret or ""
        hidden = (address,)
        object.__setattr__(
            self, "server", Server(address, timeout_s=self.options.timeout_s, hidden=hidden)
        )

    def send(self, alert: Alert, _earlier: Sequence[str] = ()) -> str:
        """See `Target.send`."""
        self.server.post("", message(alert))
        return ""

    def close(self) -> None:
        """See `Target.close`."""
