"""Untrained networks that are small enough for tests."""

from __future__ import annotations

from typing import Any

import torch

from broker_filter.inference.network import Network
from model_zoo.simulate.prior import PAPER_PRIOR

__all__ = ["ENCODER", "make_network"]

ENCODER = {"name": "compact", "width": 16, "layers": 1, "heads": 2, "feed_forward": 32}


def make_network(encoder: dict[str, Any] = ENCODER) -> Network:
    """The same network each time, with a flow of one transform."""
    torch.manual_seed(1)
    prior, flow = PAPER_PRIOR.to_config(), {"transforms": 1, "hidden": [16], "bins": 8}
    return Network({"encoder": encoder, "evidence": {}, "flow": flow, "prior": prior}).eval()
