"""Random numbers for many curves at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["Draw"]


class Draw:
    """Draws with one row a curve, on the generator's device.

    Parameters
    ----------
    n : int
        Curves.
    generator : torch.Generator
    """

    def __init__(self, n: int, generator: torch.Generator) -> None:
        self.n, self.generator = n, generator

    def uniform(self, low: float, high: float, width: int = 1) -> Tensor:
        """Shape (n, width), float32."""
        unit = torch.rand(self.n, width, generator=self.generator, device=self.generator.device)
        return low + (high - low) * unit

    def log_uniform(self, low: float, high: float, width: int = 1) -> Tensor:
        """Shape (n, width), float32."""
        return self.uniform(math.log(low), math.log(high), width).exp()

    def normal(self, width: int = 1) -> Tensor:
        """Shape (n, width), float32."""
        return torch.randn(self.n, width, generator=self.generator, device=self.generator.device)

    def log_normal(self, median: float, scatter: float, width: int = 1) -> Tensor:
        """Shape (n, width), float32; ``scatter`` in nats."""
        return median * (scatter * self.normal(width)).exp()

    def happens(self, share: float, width: int = 1) -> Tensor:
        """Shape (n, width), bool."""
        return self.uniform(0, 1, width) < share

    def sign(self) -> Tensor:
        """-1 or 1, shape (n, 1), float32."""
        return 1 - 2 * self.happens(0.5).float()
