"""Neural posterior: samples of (t0, u0, log10 tE, log10 rho, f_s) given a window.

The flow is built by sbi around a zuko spline flow, in coordinates that map the prior box onto all
of space (see `coordinates`): no sample can leave the prior, so sampling never has to reject and
try again.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from sbi.neural_nets import posterior_nn
from sbi.utils import BoxUniform
from torch import Tensor, nn

from broker_filter.inference.coordinates import COORDINATES, BoxMap, ProbitBox
from broker_filter.inference.prior import BoxPrior

__all__ = [
    "build_estimator",
    "coordinates_of",
    "flow_loss",
    "prior_of",
    "transforms_of",
]


def build_estimator(
    encoder: nn.Module,
    prior: BoxPrior,
    *,
    transforms: int = 6,
    hidden: Sequence[int] = (256, 256, 256),
    bins: int = 8,
    passes: int = 5,
    coordinates: str = "logit",
) -> nn.Module:
    """An untrained sbi estimator with ``encoder`` as its embedding net.

    Parameters
    ----------
    encoder : Module
        Maps x, shape (B, L, 3), to s, shape (B, d).
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
    flow_box = prior.flow_box()
    box = BoxUniform(torch.tensor(flow_box.low), torch.tensor(flow_box.high))
    theta = box.sample((16,))
    x = torch.tensor([0.0, 1.0, 0.01]).expand(16, 64, 3).clone()
    x[:, :, 0] = torch.linspace(-1, 1, 64)
    with warnings.catch_warnings():
        # sbi does not know `passes` and says that it hands it on, which is what is wanted.
        warnings.filterwarnings("ignore", message="Unknown kwargs passed", category=UserWarning)
        build: Any = posterior_nn(
            model="zuko_nsf",
            embedding_net=encoder,
            z_score_x="none",
            z_score_theta="transform_to_unconstrained" if coordinates == "logit" else "none",
            x_dist=box,
            hidden_features=list(hidden),
            num_transforms=transforms,
            num_bins=bins,
            passes=passes,
        )
    estimator: Any = build(theta, x)
    estimator.prior, estimator.coordinates = prior, coordinates
    return cast("nn.Module", estimator)


def prior_of(estimator: nn.Module) -> BoxPrior:
    """The prior that an estimator of `build_estimator` was made for."""
    return cast("BoxPrior", estimator.prior)


def coordinates_of(estimator: nn.Module) -> str:
    """Which of `COORDINATES` the flow works in."""
    return cast("str", estimator.coordinates)


def transforms_of(estimator: nn.Module) -> tuple[BoxMap, list[nn.Module]]:
    """The map of the flow's box onto all of space, and the transforms that follow it."""
    net: Any = estimator.net
    if coordinates_of(estimator) == "probit":
        return _probit(estimator), list(net.transform.transforms)
    to_unconstrained, *transforms = net.transform.transforms
    return to_unconstrained(None), transforms


def flow_loss(estimator: nn.Module, theta: Tensor, s: Tensor) -> Tensor:
    """Negative log density of ``theta``, shape (B, 5), given summaries ``s``; shape (B,)."""
    z, log_jacobian = prior_of(estimator).to_flow(theta)
    if coordinates_of(estimator) == "probit":
        box = _probit(estimator)
        y = box(z)
        log_jacobian = log_jacobian + box.log_abs_det_jacobian(z, y)
        z = y
    density: Tensor = _flow(estimator, s).log_prob(z)
    return -density - log_jacobian


def _probit(estimator: nn.Module) -> ProbitBox:
    box = prior_of(estimator).flow_box()
    return ProbitBox(box.low, box.high)


def _flow(estimator: nn.Module, s: Tensor) -> Any:  # noqa: ANN401  zuko has no types for mypy
    """The flow's distribution given summaries, with sbi's embedding left out.

    Of probit coordinates if the flow works in them, else of the flow's box.
    """
    net: Any = estimator.net
    return net(s)
