"""What a target is: something that takes an alert, refuses it, or is away for a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from broker_filter.alerts.alert import Alert
from broker_filter.errors import ConfigError, TransientError

__all__ = ["Busy", "Options", "Target"]


class Busy(TransientError):  # noqa: N818  it says what the target is
    """The target asks for a pause.

    Parameters
    ----------
    wait_s : float, seconds
    """

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Target(Protocol):
    """One system that alerts are handed over to."""

    def send(self, alert: Alert, earlier: Sequence[str] = (), /) -> str:
        """Hand one alert over; gives what the target calls it, for the log.

        ``earlier`` is what it calls the alerts of the same event that it took before.

        Blocks for one attempt, ``timeout_s`` at most. Raises PoisonMessage where the target will
        never take this alert, ConfigError where it takes none from us (login, address), and
        TransientError where it may take it later, or may have taken it and the answer was lost.
        """
        ...

    def close(self) -> None:
        """Let go of it; a second call does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """Where and how alerts are handed over.

    Parameters
    ----------
    url : str
        Address of the target, in the target's own form.
    topic : str
        Of the target, where it has topics.
    submitter : str
        Who hands over, where the target wants a name.
    secret : str or None
        Token or secret address; never shown.
    timeout_s : float, seconds
        For one attempt.
    properties : mapping
        Of librdkafka, for targets that are a Kafka.
    """

    url: str = ""
    topic: str = ""
    submitter: str = ""
    secret: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0
    properties: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def need(self, *names: str) -> None:
        """Check that options are given.

        Raises
        ------
        ConfigError
            One is not; the message names it.
        """
        missing = [_OPTION[name] for name in names if not getattr(self, name)]
        if missing:
            raise ConfigError(f"this target needs {' and '.join(missing)}")

    @property
    def folder(self) -> Path:
        """The address as a folder."""
        return Path(self.url)


SECRET_VARIABLE = "BROKER_FILTER_FORWARD_SECRET"  # noqa: S105  its name
_OPTION = {
    "url": "--url",
    "topic": "--target-topic",
    "submitter": "--submitter",
    "secret": f"a secret, in {SECRET_VARIABLE} or --secret-file",
}
