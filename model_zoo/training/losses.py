"""Losses of the evidence head and of the flow, for training and for the choice of weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from broker_filter.inference.posterior import flow_loss, prior_of

__all__ = ["LN_K_CLIP", "Losses", "lpop_loss", "relative_nll"]

LN_K_CLIP = 50.0


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one network.

    Parameters
    ----------
    nll : float
        Of the flow, relative to the prior, in nats.
    evidence : float
        l-POP loss of the evidence head.
    """

    nll: float
    evidence: float

    def total(self, evidence_weight: float) -> float:
        """What the training minimises."""
        return self.nll + evidence_weight * self.evidence

    def __str__(self) -> str:
        return f"nll {self.nll:.3f}, evidence {self.evidence:.4f}"


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
    whatever the share of events in a batch; ln K is clipped, beyond which the gradient is zero.
    """
    exponent = torch.where(event, -0.5, 0.5) * ln_k.clamp(-LN_K_CLIP, LN_K_CLIP)
    loss = exponent.exp()
    return 0.5 * (loss[event].mean() + loss[~event].mean())


def relative_nll(estimator: nn.Module, theta: Tensor, s: Tensor) -> Tensor:
    """Mean of ln prior - ln flow at ``theta``, shape (B, 5), given ``s``, in nats.

    It is 0 for a flow that only repeats the prior, whatever the flow's coordinates, and minus what
    a window says of its event, on average, for a perfect one.
    """
    prior = prior_of(estimator).log_density(theta)
    return (flow_loss(estimator, theta, s) + prior).mean()
