"""Prior of the lensing parameters: a box, in which f_s may be log-uniform."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["BoxPrior"]

F_S = 4


@dataclass(frozen=True, slots=True)
class BoxPrior:
    """Independent priors in the order t0 (days in the window), u0, log10 tE, log10 rho, f_s.

    Parameters
    ----------
    name : str
        Name and version, for the card.
    low, high : tuple of 5 floats
        Edges of the box.
    log_f_s : bool
        Whether f_s is uniform in its logarithm; all else is uniform.
    """

    name: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    log_f_s: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BoxPrior:
        """From the ``prior`` section of an entry's config.json."""
        return cls(
            config["name"],
            tuple(config["low"]),
            tuple(config["high"]),
            bool(config.get("log_f_s", False)),
        )

    def to_config(self) -> dict[str, Any]:
        """The section of config.json from which `from_config` makes this prior again."""
        return {
            "name": self.name,
            "low": list(self.low),
            "high": list(self.high),
            "log_f_s": self.log_f_s,
        }

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draws, shape (n, 5), float32, on the generator's device."""
        unit = torch.rand(n, 5, generator=generator, device=generator.device)
        low, high = (torch.tensor(edge, device=unit.device) for edge in (self.low, self.high))
        theta = low + (high - low) * unit
        if self.log_f_s:
            theta[:, F_S] = low[F_S] * (high[F_S] / low[F_S]) ** unit[:, F_S]
        return theta

    def flow_box(self) -> BoxPrior:
        """The box in the coordinates in which the prior is uniform, as the flow has it."""
        if not self.log_f_s:
            return self
        low, high = ((*edge[:F_S], math.log10(edge[F_S])) for edge in (self.low, self.high))
        return BoxPrior(self.name, low, high)

    def to_flow(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """``theta``, shape (..., 5), in the flow's coordinates, and ln of their Jacobian.

        The density of theta is that of the coordinates times the exponential of the latter.
        """
        if not self.log_f_s:
            return theta, torch.zeros_like(theta[..., 0])
        f_s = theta[..., F_S]
        z = torch.cat([theta[..., :F_S], f_s.log10()[..., None]], -1)
        return z, -(f_s * math.log(10)).log()

    def from_flow(self, z: Tensor) -> Tensor:
        """The inverse of `to_flow`; inside the box in spite of rounding."""
        if not self.log_f_s:
            return z
        f_s = (10 ** z[..., F_S]).clamp(self.low[F_S], self.high[F_S])
        return torch.cat([z[..., :F_S], f_s[..., None]], -1)

    def log_density(self, theta: Tensor) -> Tensor:
        """Natural log of the density at ``theta``, shape (..., 5); minus infinity outside."""
        low, high = (torch.tensor(edge, device=theta.device) for edge in (self.low, self.high))
        inside = ((theta >= low) & (theta <= high)).all(-1)
        width = [b - a for a, b in zip(self.low, self.high, strict=True)]
        log = torch.full_like(theta[..., 0], -sum(math.log(w) for w in width))
        if self.log_f_s:
            span = math.log(self.high[F_S] / self.low[F_S])
            log = log + math.log(width[F_S] / span) - torch.log(theta[..., F_S])
        return torch.where(inside, log, -math.inf)
