"""Losses of the evidence head and of the flow, for training and for the choice of weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from broker_filter.inference.network import Network
from broker_filter.inference.posterior import Estimator, flow_loss
from model_zoo.simulate.curves import Kind

__all__ = ["LINEAR_FROM", "Losses", "evidence_losses", "lpop_loss", "relative_nll"]

LINEAR_FROM = 20.0
"""Of ln K in favour of the wrong class; the loss is linear beyond."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one network.

    Parameters
    ----------
    nll : float
        Of the flow, relative to the prior, in nats.
    evidence : float
        l-POP loss of the evidence head.
    lookalikes : float
        The same of the head for lens against variable star; 0 without one.
    """

    nll: float
    evidence: float
    lookalikes: float = 0.0

    def total(self, evidence_weight: float) -> float:
        """What the training minimises."""
        return self.nll + evidence_weight * (self.evidence + self.lookalikes)

    def __str__(self) -> str:
        text = f"nll {self.nll:.3f}, evidence {self.evidence:.4f}"
        return f"{text}, look-alikes {self.lookalikes:.4f}" if self.lookalikes else text


def lpop_loss(ln_k: Tensor, event: Tensor) -> Tensor:
    """Exponential loss exp((1/2 - m) ln K) with equal weight for both classes.

    Parameters
    ----------
    ln_k : Tensor, shape (B,), float32
    event : Tensor, shape (B,), bool
        m = 1 for events, 0 for noise.

    Notes
    -----
    Jeffrey & Wandelt 2024. Each class is averaged by itself, so that K keeps equal prior odds
    whatever the share of events in a batch. Where ln K is `LINEAR_FROM` on the wrong side the loss
    goes on as a line: one curve cannot outweigh all others, and still has a gradient.
    """
    exponent = torch.where(event, -0.5, 0.5) * ln_k
    most = LINEAR_FROM / 2
    loss = exponent.clamp(max=most).exp() * (1 + (exponent - most).clamp(min=0))
    return 0.5 * (loss[event].mean() + loss[~event].mean())


def evidence_losses(network: Network, s: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
    """`lpop_loss` of both evidence heads; 0 for the second where there is none.

    Parameters
    ----------
    network : Network
    s : Tensor, shape (B, d)
        Summaries.
    kind : Tensor, shape (B,), int64
        As of `model_zoo.simulate.curves.Kind`.
    """
    event, constant, variable = (kind == k for k in (Kind.EVENT, Kind.NOISE, Kind.LOOKALIKE))
    first = event | constant
    noise = lpop_loss(network.evidence(s[first]), event[first])
    if network.lookalikes is None:
        return noise, torch.zeros_like(noise)
    second = event | variable
    return noise, lpop_loss(network.lookalikes(s[second]), event[second])


def relative_nll(estimator: Estimator, theta: Tensor, s: Tensor) -> Tensor:
    """Mean of ln prior - ln flow at ``theta``, shape (B, 5), given ``s``, in nats.

    It is 0 for a flow that only repeats the prior, whatever the flow's coordinates, and minus what
    a window says of its event, on average, for a perfect one.
    """
    prior = estimator.prior.log_density(theta)
    return (flow_loss(estimator, theta, s) + prior).mean()
