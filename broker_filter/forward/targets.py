"""All targets, by the name that the command line gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker_filter.forward.hermes import Hermes
from broker_filter.forward.hopskotch import Hopskotch
from broker_filter.forward.lasair import Lasair
from broker_filter.forward.rogue_db import RogueDb
from broker_filter.forward.slack import Slack
from broker_filter.forward.target import Options, Target
from broker_filter.forward.tom import Tom
from broker_filter.forward.voevent import VOEventBroker
from broker_filter.forward.webhook import Webhook

__all__ = ["TARGETS"]

TARGETS: Final[Mapping[str, Callable[[Options], Target]]] = {
    "rogue-db": RogueDb,
    "hermes": Hermes,
    "hopskotch": Hopskotch,
    "lasair": Lasair,
    "tom": Tom,
    "voevent": VOEventBroker,
    "slack": Slack,
    "webhook": Webhook,
}
"""Each raises ConfigError where its options do not suffice."""
