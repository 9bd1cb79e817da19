"""Light curves with and without a lens, from patterns, prior and gate."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from broker_filter.lens import excess
from broker_filter.network_input import network_input
from model_zoo.simulate.pattern import Pattern, PatternConfig, draw_patterns
from model_zoo.simulate.prior import PAPER_GATE, PAPER_PRIOR, BoxPrior, Gate

__all__ = ["Curves", "Simulator", "matched_filter_snr"]


@dataclass(frozen=True, slots=True)
class Curves:
    """Simulated curves.

    Parameters
    ----------
    x : Tensor, shape (B, L, 3), float32
        Network input.
    theta : Tensor, shape (B, 5), float32
        In the order of ``broker_filter.posterior.PARAMETERS``; NaN for noise.
    snr : Tensor, shape (B,), float32
        Matched-filter signal-to-noise for an exactly known baseline; 0 for noise.
    """

    x: Tensor
    theta: Tensor
    snr: Tensor


@dataclass(frozen=True, slots=True)
class Simulator:
    """Draws events and noise curves; the generator decides the device.

    Parameters
    ----------
    prior, gate, pattern
        What is drawn. With no gate every draw of the prior counts.
    baseline_error : float
        1-sigma relative error of the baseline by which a whole curve was divided.
    length : int
        Longest network input; denser curves are thinned.
    """

    prior: BoxPrior = PAPER_PRIOR
    gate: Gate | None = PAPER_GATE
    pattern: PatternConfig = field(default_factory=PatternConfig)
    baseline_error: float = 0.0
    length: int = 1000

    def events(self, n: int, generator: torch.Generator) -> Curves:
        """Draw ``n`` events that pass the gate."""
        patterns, thetas, missing = [], [], n
        while missing > 0:
            pattern = draw_patterns(int(1.1 * missing) + 8, self.pattern, generator)
            theta, passed = self._draw_theta(pattern, generator)
            rows = passed.nonzero()[:missing, 0]
            patterns.append(pattern[rows])
            thetas.append(theta[rows])
            missing -= len(rows)
        pattern, theta = _join(patterns), torch.cat(thetas)
        signal = signal_of(theta, pattern)
        return Curves(
            self._observe(signal, pattern, generator), theta, matched_filter_snr(signal, pattern)
        )

    def noise(self, n: int, generator: torch.Generator) -> Curves:
        """Draw ``n`` curves of constant stars with the same patterns and errors."""
        pattern = draw_patterns(n, self.pattern, generator)
        x = self._observe(torch.zeros_like(pattern.t), pattern, generator)
        zero = torch.zeros(n, device=x.device)
        return Curves(x, torch.full((n, 5), float("nan"), device=x.device), zero)

    def _draw_theta(self, pattern: Pattern, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """For each pattern the first of a few draws that passes the gate, and whether any does.

        Drawing theta anew for a given pattern keeps the patterns of events those of noise: the
        Bayes factor is conditional on the pattern.
        """
        n, tries = len(pattern.n), 1 if self.gate is None else 16
        theta = self.prior.sample(n * tries, generator).reshape(n, tries, 5)
        if self.gate is None:
            return theta[:, 0], torch.ones(n, dtype=torch.bool, device=theta.device)
        passes = self.gate.passes(theta, pattern.t, pattern.n, pattern.level)
        first = passes.int().argmax(1)
        return theta[torch.arange(n, device=theta.device), first], passes.any(1)

    def _observe(self, signal: Tensor, pattern: Pattern, generator: torch.Generator) -> Tensor:
        device = signal.device
        noise = torch.randn(signal.shape, generator=generator, device=device)
        flux = 1 + signal + noise * pattern.sigma
        scale = 1 + self.baseline_error * torch.randn(
            len(pattern.n), 1, generator=generator, device=device
        )
        t = torch.where(pattern.valid, pattern.t, 0).double()
        return network_input(
            t,
            flux / scale,
            pattern.sigma / scale,
            pattern.n,
            days=self.pattern.days,
            length=self.length,
        )


def signal_of(theta: Tensor, pattern: Pattern) -> Tensor:
    """F(t) - 1 = f_s (A(u(t), rho) - 1), shape (B, N), float32; zero in the padding."""
    t0, u0, tE, rho, f_s = (column[:, None] for column in theta.unbind(-1))
    t = torch.where(pattern.valid, pattern.t, t0)
    u = torch.sqrt(u0**2 + ((t - t0) / 10**tE) ** 2)
    return torch.where(pattern.valid, f_s * excess(u, 10**rho), 0.0)


def matched_filter_snr(signal: Tensor, pattern: Pattern) -> Tensor:
    """Signal-to-noise of the best possible filter, shape (B,), for an exactly known baseline."""
    return (signal / pattern.sigma).square().sum(1).sqrt()


def _join(patterns: list[Pattern]) -> Pattern:
    width = max(pattern.t.shape[1] for pattern in patterns)

    def pad(column: Tensor, value: float) -> Tensor:
        return torch.nn.functional.pad(column, (0, width - column.shape[1]), value=value)

    return Pattern(
        torch.cat([pad(p.t, float("inf")) for p in patterns]),
        torch.cat([pad(p.sigma, 1.0) for p in patterns]),
        torch.cat([p.n for p in patterns]),
        torch.cat([p.level for p in patterns]),
    )
