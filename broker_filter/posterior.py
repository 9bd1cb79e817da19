"""Neural posterior: samples of (t0, u0, log10 tE, log10 rho, f_s) given a window.

The flow is built by sbi around a zuko spline flow, in coordinates that map the prior box onto all
of space: no sample can leave the prior, so sampling never has to reject and try again.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from sbi.neural_nets import posterior_nn
from sbi.utils import BoxUniform
from torch import Tensor, nn

__all__ = ["PARAMETERS", "build_estimator", "flow_loss"]

PARAMETERS = ("t0", "u0", "log10_tE", "log10_rho", "f_s")


def build_estimator(
    encoder: nn.Module,
    low: Sequence[float],
    high: Sequence[float],
    *,
    transforms: int = 6,
    hidden: Sequence[int] = (256, 256, 256),
    bins: int = 8,
    passes: int = 5,
) -> nn.Module:
    """An untrained sbi estimator with ``encoder`` as its embedding net.

    Parameters
    ----------
    encoder : Module
        Maps x, shape (B, L, 3), to s, shape (B, d).
    low, high : sequence of 5 floats
        Prior box in the order of `PARAMETERS`; t0 in days from the start of the window.
    transforms, hidden, bins : int
        Shape of the neural spline flow.
    passes : int
        5 makes each transform autoregressive, 2 makes it a coupling, which samples faster.
    """
    prior = BoxUniform(torch.tensor(low), torch.tensor(high))
    theta = prior.sample((16,))
    x = torch.tensor([0.0, 1.0, 0.01]).expand(16, 64, 3).clone()
    x[:, :, 0] = torch.linspace(-1, 1, 64)
    with warnings.catch_warnings():
        # sbi does not know `passes` and says that it hands it on, which is what is wanted.
        warnings.filterwarnings("ignore", message="Unknown kwargs passed", category=UserWarning)
        build: Any = posterior_nn(
            model="zuko_nsf",
            embedding_net=encoder,
            z_score_x="none",
            z_score_theta="transform_to_unconstrained",
            x_dist=prior,
            hidden_features=list(hidden),
            num_transforms=transforms,
            num_bins=bins,
            passes=passes,
        )
    estimator: nn.Module = build(theta, x)
    return estimator


def flow_loss(estimator: nn.Module, theta: Tensor, s: Tensor) -> Tensor:
    """Negative log density of ``theta``, shape (B, 5), given summaries ``s``; shape (B,)."""
    loss: Tensor = -_flow(estimator, s).log_prob(theta)
    return loss


def _flow(estimator: nn.Module, s: Tensor) -> Any:  # noqa: ANN401  zuko has no types for mypy
    """The flow's distribution given summaries, with sbi's embedding left out."""
    net: Any = estimator.net
    return net(s)
