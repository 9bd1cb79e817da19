"""Draws posterior samples from a trained flow, with their densities, many times faster than zuko.

In a transform of the flow the first group of parameters depends on the window alone, and so does
every hidden unit that no parameter reaches: all these are computed once a window, not once a
sample. What is left for each sample is a thinner network, of which each unit is computed once, as
soon as the parameters are known that reach it; and each spline is inverted once. The density at
given parameters is found in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, relu

from broker_filter.inference import spline_loops
from broker_filter.inference.posterior import Estimator, transforms_of
from broker_filter.inference.spline_loops import BOUND, SLOPE
from broker_filter.types import PARAMETERS

__all__ = ["LN_2_PI", "FlowSampler", "spline", "spline_inverse"]

LN_2_PI = math.log(2 * math.pi)


class FlowSampler:
    """Samples of the posteriors of one estimator.

    Parameters
    ----------
    estimator : Estimator
        Its weights are copied.
    """

    def __init__(self, estimator: Estimator) -> None:
        self._box, transforms = transforms_of(estimator)
        self._prior = estimator.prior
        with torch.no_grad():
            self._steps = [_Step.of(transform) for transform in reversed(transforms)]

    @torch.inference_mode()
    def __call__(
        self, s: Tensor, n: int, seeds: Sequence[int], *, known: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Samples of several windows, each from a random stream of its own.

        Parameters
        ----------
        s : Tensor, shape (B, d), float32
            Summaries of the windows.
        n : int
            Samples a window.
        seeds : sequence of int, length B
            One seed a window, so that its samples do not depend on its batch mates.
        known : int
            Samples of each stream that are left out, as they were drawn before: a multiple of 16,
            of which the generator makes the same whatever ``n`` is.

        Returns
        -------
        theta : Tensor, shape (B, n - known, 5), float32
            In the order of `broker_filter.types.PARAMETERS`, inside the prior.
        log_density : Tensor, shape (B, n - known), float32
            Natural log of the flow's density there.
        """
        noise = [
            torch.randn(n, len(PARAMETERS), generator=torch.Generator().manual_seed(seed))[known:]
            for seed in seeds
        ]
        y = torch.stack(noise).to(s.device)
        log_density = -0.5 * (y.square() + LN_2_PI).sum(-1)
        context = s[:, None]
        for step in self._steps:
            y, log_slope = step.inverse(y, context)
            log_density = log_density - log_slope
        z: Tensor = self._box.inv(y)
        theta = self._prior.from_flow(z)
        log_density = log_density + self._box.log_abs_det_jacobian(z, y)
        return theta, log_density + self._prior.to_flow(theta)[1]

    @torch.inference_mode()
    def log_density(self, s: Tensor, theta: Tensor) -> Tensor:
        """Natural log of the flow's density at ``theta``, shape (n, 5), of one window; shape (n,).

        Minus infinity where it is none that a float32 can hold, as on the edges of the prior.
        """
        z, log_density = self._prior.to_flow(theta[None])
        y: Tensor = self._box(z)
        log_density = log_density + self._box.log_abs_det_jacobian(z, y)
        for step in reversed(self._steps):
            y, log_slope = step.forward(y, s[:, None])
            log_density = log_density + log_slope
        density: Tensor = log_density[0] - 0.5 * (y[0].square() + LN_2_PI).sum(-1)
        return density.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)


@dataclass(frozen=True, slots=True)
class _Layer:
    """New units of a layer: their weights for inputs that samples reach, and for all others."""

    live: Tensor
    fixed: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class _Step:
    """One masked autoregressive transform of zuko, cut up by group of parameters.

    ``full`` has the masked weights and biases of its network; ``groups`` the parameters of each
    pass in turn; ``first`` the outputs for those of the first; ``new`` the layers that each pass
    after the first adds, and ``fixed_units`` the units of each layer's input that no sample
    reaches.
    """

    full: list[tuple[Tensor, Tensor]]
    groups: list[Tensor]
    first: Tensor
    new: list[list[_Layer]]
    fixed_units: list[Tensor]

    @classmethod
    def of(cls, transform: Any) -> _Step:  # noqa: ANN401  zuko has no types for mypy
        layers: list[Any] = [layer for layer in transform.hyper if isinstance(layer, nn.Linear)]
        masks: list[Tensor] = [layer.mask for layer in layers]
        full = [(layer.mask * layer.weight, layer.bias.clone()) for layer in layers]
        reached = [torch.arange(masks[0].shape[1], device=masks[0].device) < len(PARAMETERS)]
        for mask in masks[:-1]:
            reached.append(mask[:, reached[-1]].any(1))
        groups = [(transform.order == i).nonzero()[:, 0] for i in range(transform.passes)]
        outputs = [_rows(group, transform.total) for group in groups]
        fixed = [(~units).nonzero()[:, 0] for units in reached]
        units = _needed(masks, reached, outputs[1:])
        return cls(full, groups, outputs[0], _added(full, units, fixed), fixed)

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Values of y and ln dy/dx, summed over parameters, for x of shape (B, n, 5)."""
        y, log_slope = torch.zeros_like(x), x.new_zeros(x.shape[:-1])
        for group, phi in self._splines(x, context):
            y[..., group], slope = _along(spline_loops.forward, spline, phi, x[..., group])
            log_slope = log_slope + slope.sum(-1)
        return y, log_slope

    def inverse(self, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Values of x and ln dx/dy, summed over parameters, for y of shape (B, n, 5)."""
        x, log_slope = torch.zeros_like(y), y.new_zeros(y.shape[:-1])
        for group, phi in self._splines(x, context):
            x[..., group], slope = _along(spline_loops.inverse, spline_inverse, phi, y[..., group])
            log_slope = log_slope + slope.sum(-1)
        return x, log_slope

    def _splines(self, x: Tensor, context: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each group of parameters and its splines, which the ``x`` of those before it decide."""
        activations = self._once(context)
        yield self.groups[0], _by_group(activations[-1][..., self.first], self.groups[0])
        sizes = [layer.live.shape[1] for layer in self.new[-1][1:]] if self.new else []
        hidden = [x.new_empty(*x.shape[:-1], size) for size in sizes]
        for group, layers in zip(self.groups[1:], self.new, strict=True):
            yield group, _by_group(self._each(layers, x, hidden, activations), group)

    def _once(self, context: Tensor) -> list[Tensor]:
        """Inputs of each layer and the output, right for what no sample reaches; (B, 1, units)."""
        h = pad(context, (len(PARAMETERS), 0))
        activations = [h]
        for i, (weight, bias) in enumerate(self.full):
            h = linear(h, weight, bias)
            h = relu(h) if i < len(self.full) - 1 else h
            activations.append(h)
        return activations

    def _each(
        self, layers: list[_Layer], x: Tensor, hidden: list[Tensor], activations: list[Tensor]
    ) -> Tensor:
        """The outputs of one pass; units that it adds are written behind those of ``hidden``."""
        h = x
        for i, (layer, fixed) in enumerate(zip(layers, self.fixed_units, strict=True)):
            new = linear(h, layer.live)
            new += linear(activations[i][..., fixed], layer.fixed, layer.bias)
            if i == len(hidden):
                break
            end = layers[i + 1].live.shape[1]
            hidden[i][..., end - len(layer.live) : end] = new.relu_()
            h = hidden[i][..., :end]
        return new


def _along(
    loop: Callable[..., None],
    anywhere: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    phi: Tensor,
    x: Tensor,
) -> tuple[Tensor, Tensor]:
    """Splines at x, shape (B, n, g): by the compiled loop on a CPU, by array operations else."""
    if x.device.type != "cpu":
        return anywhere(phi, x)
    y, log_slope = torch.empty_like(x), torch.empty_like(x)
    loop(phi.numpy(), x.numpy(), y.numpy(), log_slope.numpy())
    return y, log_slope


def _by_group(phi: Tensor, group: Tensor) -> Tensor:
    """Parameters of splines, shape (B, 1 or n, parameters of a group, of one spline)."""
    return phi.reshape(*phi.shape[:-1], len(group), -1)


def _needed(
    masks: list[Tensor], reached: list[Tensor], outputs: list[Tensor]
) -> list[list[Tensor]]:
    """Units that each pass adds: those of each layer, in order, that no pass before it needed."""
    left = [units.clone() for units in reached]
    found = []
    for rows in outputs:
        units = [rows]
        wanted = torch.zeros_like(masks[-1][:, 0]).index_fill(0, rows, True)
        for i in reversed(range(1, len(masks))):
            wanted = masks[i][wanted].any(0)
            units.append((wanted & left[i]).nonzero()[:, 0])
            left[i] &= ~wanted
        found.append(units[::-1])
    return found


def _added(
    full: list[tuple[Tensor, Tensor]], units: list[list[Tensor]], fixed: list[Tensor]
) -> list[list[_Layer]]:
    """The layers of `_needed`; inputs are in the order in which passes add them."""
    # The parameters themselves come as they are, all five of them.
    parameters = torch.arange(len(PARAMETERS), device=fixed[0].device)
    inputs = [parameters, *[rows[:0] for rows in units[0][:-1]]] if units else []
    passes = []
    for new in units:
        layers: list[_Layer] = []
        for i, ((weight, bias), own) in enumerate(zip(full, new, strict=True)):
            rows = weight[own]
            layers.append(_Layer(rows[:, inputs[i]].clone(), rows[:, fixed[i]].clone(), bias[own]))
            if i + 1 < len(full):
                inputs[i + 1] = torch.cat([inputs[i + 1], own])
        passes.append(layers)
    return passes


def _rows(group: Tensor, total: int) -> Tensor:
    """Outputs of the network that belong to some parameters, ``total`` to each."""
    return (group[:, None] * total + torch.arange(total, device=group.device)).flatten()


def spline(phi: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Zuko's monotonic rational-quadratic spline, and ln dy/dx.

    Parameters
    ----------
    phi : Tensor, shape (..., 3 K - 1), broadcast against ``x[..., None]``
        Unconstrained widths, heights and derivatives of K bins.
    x : Tensor, shape (...)

    Returns
    -------
    y, log_slope : Tensor, shape (...)

    Notes
    -----
    Durkan et al. 2019, arXiv:1906.04032, equations 4 and 5; the identity outside of [-5, 5].
    """
    bin_ = _Bin.of(phi, x, axis=0)
    z = torch.where(bin_.inside, (x - bin_.x0) / bin_.width, 0.5)
    height = bin_.height * (bin_.s * z * z + bin_.d0 * z * (1 - z)) / bin_.below(z)
    y = torch.where(bin_.inside, bin_.y0 + height, x)
    return y, torch.where(bin_.inside, bin_.slope(z).log(), 0.0)


def spline_inverse(phi: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse of `spline`, and ln dx/dy, for ``y`` of shape (...).

    Notes
    -----
    Durkan et al. 2019, arXiv:1906.04032, equations 6 to 8.
    """
    bin_ = _Bin.of(phi, y, axis=1)
    off = torch.where(bin_.inside, y - bin_.y0, 0.0)
    a = bin_.height * (bin_.s - bin_.d0) + off * bin_.bend
    b, c = bin_.height * bin_.d0 - off * bin_.bend, -bin_.s * off
    z = 2 * c / (-b - (b * b - 4 * a * c).sqrt())
    x = torch.where(bin_.inside, bin_.x0 + z * bin_.width, y)
    return x, torch.where(bin_.inside, -bin_.slope(z).log(), 0.0)


@dataclass(frozen=True, slots=True)
class _Bin:
    """The bin of a spline that each value lies in; shape (...) each.

    ``x0``, ``y0`` is its lower corner, ``d0`` the slope there, ``s`` the mean slope, and ``bend``
    the sum of the slopes at both ends, less twice ``s``.
    """

    inside: Tensor
    x0: Tensor
    y0: Tensor
    width: Tensor
    height: Tensor
    d0: Tensor
    d1: Tensor
    s: Tensor
    bend: Tensor

    @classmethod
    def of(cls, phi: Tensor, value: Tensor, axis: int) -> _Bin:
        """The bins of values of x (axis 0) or of y (axis 1)."""
        bins = (phi.shape[-1] + 1) // 3
        widths, heights, slopes = torch.split(phi, [bins, bins, bins - 1], dim=-1)
        derivatives = pad((slopes / (1 + (slopes / SLOPE).abs())).exp(), (1, 1), value=1.0)
        knots = torch.stack([_knots(widths), _knots(heights), derivatives])
        knots = knots.expand(3, *value.shape, bins + 1)
        k = (knots[axis] < value[..., None]).sum(-1) - 1
        at = k.clamp(0, bins - 1)[..., None].expand(3, *value.shape, 1)
        (x0, y0, d0), (x1, y1, d1) = (knots.gather(-1, at + i)[..., 0] for i in (0, 1))
        s = (y1 - y0) / (x1 - x0)
        return cls((k >= 0) & (k < bins), x0, y0, x1 - x0, y1 - y0, d0, d1, s, d0 + d1 - 2 * s)

    def below(self, z: Tensor) -> Tensor:
        """What the spline is divided by, at the share ``z`` of the bin's width."""
        return self.s + self.bend * z * (1 - z)

    def slope(self, z: Tensor) -> Tensor:
        """dy/dx at the share ``z`` of the bin's width."""
        grown = self.d1 * z * z + 2 * self.s * z * (1 - z) + self.d0 * (1 - z) ** 2
        return self.s * self.s * grown / self.below(z) ** 2


def _knots(raw: Tensor) -> Tensor:
    share = (raw / (1 + (2 * raw / SLOPE).abs())).softmax(-1)
    return BOUND * (2 * pad(share, (1, 0)).cumsum(-1) - 1)
