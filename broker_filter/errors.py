"""Every error that broker_filter raises on purpose.

::

    BrokerFilterError
    ├── ConfigError       a setting is wrong; the message names the key and the way out
    ├── SchemaError       a schema is missing, unknown or does not fit
    ├── PoisonMessage     one message cannot be used; it goes to the dead-letter topic
    ├── StateError        windows, snapshots or offsets contradict each other
    ├── ModelError        a zoo entry is missing, damaged or does not fit
    └── TransientError    the outside world failed for now; retry with back-off

Three policies and no more: ``PoisonMessage`` becomes a dead letter, ``TransientError`` is
retried with back-off, and everything else ends the process with one clear message.
"""

from __future__ import annotations

__all__ = [
    "BrokerFilterError",
    "ConfigError",
    "ModelError",
    "PoisonMessage",
    "SchemaError",
    "StateError",
    "TransientError",
]


class BrokerFilterError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(BrokerFilterError):
    """A setting is wrong; the message names the key and the way out."""


class SchemaError(BrokerFilterError):
    """A schema is missing, unknown, or does not fit what is to be written."""


class PoisonMessage(BrokerFilterError):  # noqa: N818  the field's word for it
    """One message cannot be used; the consumer goes on without it.

    Parameters
    ----------
    reason : str
        A short stable word for metrics, such as ``"truncated"`` (one of a bounded set).
    detail : str
        One sentence for people: what was wrong, at which byte, row or field.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class StateError(BrokerFilterError):
    """Windows, snapshots or offsets contradict each other."""


class ModelError(BrokerFilterError):
    """A zoo entry is missing, damaged, or does not fit this version."""


class TransientError(BrokerFilterError):
    """The outside world failed for now; the caller retries with back-off."""
