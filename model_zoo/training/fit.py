"""Training of small networks: shuffled or fresh batches, one falling learning rate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model_zoo.progress import Clock, Progress

__all__ = ["Fitted", "fit"]


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a training took: steps and wall time."""

    steps: int
    seconds: float


def fit(
    network: nn.Module,
    loss: Callable[[], Tensor],
    steps: int,
    name: str,
    *,
    rate: float,
    seconds: float = math.inf,
    quiet: bool = False,
    clock: Clock = time.monotonic,
) -> Fitted:
    """Minimise ``loss()`` over the network's parameters with AdamW.

    Parameters
    ----------
    network : Module
        Changed in place.
    loss : callable
        Loss of the next batch.
    steps : int
        How many steps, unless ``seconds`` run out before; the learning rate warms up over the
        first 5 % of whichever ends first, then falls as a cosine to nothing.
    name : str
        For the progress.
    rate : float
        Highest learning rate.
    seconds : float
        Limit on the wall time; there is always one step.
    clock : callable
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.01)
    began, taken = clock(), 0
    with Progress(name, steps, "steps", quiet=quiet, clock=clock) as shown:
        for step in range(steps):
            spent = clock() - began
            if step and spent >= seconds:
                break
            for group in optimizer.param_groups:
                group["lr"] = rate * _share(max(step / steps, spent / seconds if step else 0.0))
            optimizer.zero_grad(set_to_none=True)
            value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            taken += 1
            shown.update(taken)
    return Fitted(taken, clock() - began)


def _share(done: float) -> float:
    """Of the highest learning rate: warm-up, then a cosine down to nothing."""
    return min(1.0, 20 * done + 1e-3) * 0.5 * (1 + math.cos(math.pi * done))
