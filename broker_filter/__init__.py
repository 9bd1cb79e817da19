"""A streaming microlensing filter for alert brokers: Kafka in, Bayes factors and posteriors out.

The names below are all that other programs need. Each is imported when it is first used, so that
``import broker_filter`` alone costs next to nothing::

    subscribe     an iterator over the alerts of a topic (`Subscription` of `Alert`)
    read_alert    one alert from a file
    score         K of one light curve, without a broker (`Result`); `score_table` of many
    publish       sends `Photometry` to the topic that a filter reads

What goes wrong is a `BrokerFilterError`: `ConfigError` for settings, `SchemaError` for photometry
that cannot be written, `TransientError` where the brokers do not answer for now.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker_filter.alerts.alert import Alert
    from broker_filter.client.publish import publish
    from broker_filter.client.read import read_alert
    from broker_filter.client.subscribe import Subscription, subscribe
    from broker_filter.errors import (
        BrokerFilterError,
        ConfigError,
        SchemaError,
        TransientError,
    )
    from broker_filter.scoring.result import Result
    from broker_filter.scoring.score import score
    from broker_filter.scoring.table import score_table
    from broker_filter.types import Photometry

    __version__: str

__all__ = [
    "Alert",
    "BrokerFilterError",
    "ConfigError",
    "Photometry",
    "Result",
    "SchemaError",
    "Subscription",
    "TransientError",
    "__version__",
    "publish",
    "read_alert",
    "score",
    "score_table",
    "subscribe",
]

_MODULES = {
    "Alert": "alerts.alert",
    "BrokerFilterError": "errors",
    "ConfigError": "errors",
    "Photometry": "types",
    "Result": "scoring.result",
    "SchemaError": "errors",
    "Subscription": "client.subscribe",
    "TransientError": "errors",
    "publish": "client.publish",
    "read_alert": "client.read",
    "score": "scoring.score",
    "score_table": "scoring.table",
    "subscribe": "client.subscribe",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name == "__version__":
        from broker_filter.schemas import software_version

        return software_version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
