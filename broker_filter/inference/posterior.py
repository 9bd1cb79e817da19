"""Neural posterior: samples of (t0, u0, log10 tE, log10 rho, f_s) given a window.

A spline flow of zuko, in coordinates that map the prior box onto all of space (see `coordinates`):
no sample can leave the prior, so sampling never has to reject and try again. It is the flow that
sbi's ``posterior_nn("zuko_nsf")`` builds, with the same names of weights. sbi itself, whose import
takes longer than torch's, is what the tests hold it against, and what the evaluation tests with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import biject_to, constraints
from zuko.flows import NSF, Flow

from broker_filter.inference.coordinates import COORDINATES, BoxMap, ProbitBox
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import PARAMETERS

__all__ = [
    "Estimator",
    "build_estimator",
    "flow_loss",
    "transforms_of",
]


class Estimator(nn.Module):
    """A flow with the encoder whose summaries it is given.

    Parameters
    ----------
    net : Flow
        Of zuko; its context are the summaries.
    embedding_net : Module
        Maps x, shape (B, L, 3), to s, shape (B, d).
    prior : BoxPrior
    coordinates : str
        Which of `COORDINATES` the flow works in.
    """

    def __init__(
        self, net: nn.Module, embedding_net: nn.Module, prior: BoxPrior, coordinates: str
    ) -> None:
        super().__init__()
        self.net = net
        self._embedding_net = embedding_net  # the name that sbi gives its weights
        self.prior, self.coordinates = prior, coordinates

    @property
    def embedding_net(self) -> nn.Module:
        """The encoder."""
        return self._embedding_net


def build_estimator(
    encoder: nn.Module,
    prior: BoxPrior,
    *,
    transforms: int = 6,
    hidden: Sequence[int] = (256, 256, 256),
    bins: int = 8,
    passes: int = 5,
    coordinates: str = "logit",
) -> Estimator:
    """An untrained estimator with ``encoder`` as its embedding net.

    Parameters
    ----------
    encoder : Module
        Maps x, shape (B, L, 3), to s, shape (B, d); has the width d as ``summary_width``.
    prior : BoxPrior
        In the order of `PARAMETERS`; t0 in days from the start of the window. The flow works in
        the coordinates in which it is uniform, and keeps it as ``estimator.prior``.
    transforms, hidden, bins : int
        Shape of the neural spline flow.
    passes : int
        5 makes each transform autoregressive, 2 makes it a coupling, which samples faster.
    coordinates : str
        ``logit``, as sbi has them, or ``probit``, in which the prior is the flow's own Gaussian.

    Raises
    ------
    ValueError
        For other coordinates.
    """
    if coordinates not in COORDINATES:
        raise ValueError(f"flow coordinates {coordinates!r} are not among {COORDINATES}")
    width: Any = encoder.summary_width
    flow = NSF(
        len(PARAMETERS),
        width,
        bins=bins,
        transforms=transforms,
        hidden_features=list(hidden),
        passes=passes,
    )
    steps = list(flow.transform.transforms)
    if coordinates == "logit":
        steps.insert(0, _Logit(prior))
    return Estimator(Flow(steps, flow.base), encoder, prior, coordinates)


class _Logit(nn.Module):
    """The map of a prior's box onto all of space, which moves with the flow to its device."""

    def __init__(self, prior: BoxPrior) -> None:
        super().__init__()
        box = prior.flow_box()
        self.register_buffer("low", torch.tensor(box.low), persistent=False)
        self.register_buffer("high", torch.tensor(box.high), persistent=False)

    def forward(self, _context: Tensor | None = None) -> Any:  # noqa: ANN401  of torch, untyped
        box = constraints.independent(constraints.interval(self.low, self.high), 1)  # type: ignore[no-untyped-call]
        return biject_to(box).inv


def transforms_of(estimator: Estimator) -> tuple[BoxMap, list[nn.Module]]:
    """The map of the flow's box onto all of space, and the transforms that follow it."""
    net: Any = estimator.net
    if estimator.coordinates == "probit":
        return _probit(estimator), list(net.transform.transforms)
    to_unconstrained, *transforms = net.transform.transforms
    return to_unconstrained(None), transforms


def flow_loss(estimator: Estimator, theta: Tensor, s: Tensor) -> Tensor:
    """Negative log density of ``theta``, shape (B, 5), given summaries ``s``; shape (B,)."""
    z, log_jacobian = estimator.prior.to_flow(theta)
    if estimator.coordinates == "probit":
        box = _probit(estimator)
        y = box(z)
        log_jacobian = log_jacobian + box.log_abs_det_jacobian(z, y)
        z = y
    flow: Any = estimator.net(s)  # of probit coordinates if it works in them, else of its box
    density: Tensor = flow.log_prob(z)
    return -density - log_jacobian


def _probit(estimator: Estimator) -> ProbitBox:
    box = estimator.prior.flow_box()
    return ProbitBox(box.low, box.high)
