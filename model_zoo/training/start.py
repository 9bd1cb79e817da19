"""What a training takes over from an entry of the zoo."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from broker_filter.errors import ConfigError
from broker_filter.inference import zoo
from broker_filter.inference.network import Network
from model_zoo.training.config import TrainConfig

__all__ = ["start_from"]

_FLOW = "estimator.net."
"""Prefix of the flow's weights in a network."""


def start_from(network: Network, config: TrainConfig) -> str:
    """Take encoder, evidence head and flow from an entry of the zoo; what was taken, in words.

    Weights of inputs that the entry did not have start at zero. The flow is taken from an entry of
    another prior too: it is off at first, since it has learned parameters by their place in the
    box, but then learns faster than a new one. A flow of other coordinates or of another shape is
    not taken. Nor is an evidence head that has learned other noise: one of white noise gives a
    large K to what real noise does as well.

    Raises
    ------
    ConfigError
        If the encoder of the entry does not fit.
    """
    name = cast("str", config.start_from)
    entry = zoo.verify(zoo.find(name))
    trained = zoo.load(entry)
    former = entry.card.training.get("config", {}).get("simulator", {}).get("noise")
    new_head = config.simulator.noise != former
    taken, offered = network.state_dict(), trained.state_dict()
    problem = _flow_problem(network, trained)
    for key, value in offered.items():
        if key.endswith(".mask") or (problem and key.startswith(_FLOW)):
            continue
        if new_head and key.startswith("evidence."):
            continue
        try:
            taken[key] = _widened(value, taken[key].shape)
        except (KeyError, ValueError) as error:
            raise ConfigError(f"start_from: {name}: {key} does not fit: {error}") from error
    network.load_state_dict(taken)
    kept = ["encoder"] + ["evidence head"] * (not new_head) + ["flow"] * (not problem)
    new = ["the evidence head is new, as its noise is"] * new_head
    new += [f"the flow is new, as {problem}"] * bool(problem)
    return "; ".join([f"{_listed(kept)} of {name}", *new])


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _flow_problem(network: Network, trained: Network) -> str | None:
    """Why a flow cannot be taken, or None if it can."""
    ours, theirs = network.estimator.coordinates, trained.estimator.coordinates
    if ours != theirs:
        return f"its coordinates are {ours} and were {theirs}"
    sizes, former = _flow_sizes(network), _flow_sizes(trained)
    return None if sizes == former else f"it has {sum(sizes)} outputs and had {sum(former)}"


def _flow_sizes(network: Network) -> list[int]:
    """Outputs of each layer; inputs may grow with the summary, see `_widened`."""
    state = network.state_dict()
    return [len(w) for key, w in state.items() if key.startswith(_FLOW) and key.endswith(".bias")]


def _widened(value: Tensor, shape: torch.Size) -> Tensor:
    """Weights with zeros for inputs that come last and are new."""
    missing = shape[-1] - value.shape[-1] if value.ndim and value.ndim == len(shape) else 0
    if value.shape[:-1] != shape[:-1] or missing < 0 or (value.ndim < 2 and missing):
        raise ValueError(f"{tuple(value.shape)} for {tuple(shape)}")
    return nn.functional.pad(value, (0, missing)) if missing else value
