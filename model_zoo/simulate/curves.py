"""Light curves with and without a lens, from patterns, prior and gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum

import torch
from torch import Tensor

from broker_filter.inference.lens import excess
from broker_filter.inference.network_input import network_input
from broker_filter.inference.prior import BoxPrior
from model_zoo.simulate.draw import Draw
from model_zoo.simulate.lookalikes import Lookalikes, draw_lookalikes
from model_zoo.simulate.noise import Noise, NoiseModel, draw_noise, unknown_noise
from model_zoo.simulate.pattern import Pattern, PatternConfig, draw_patterns
from model_zoo.simulate.prior import PAPER_GATE, PAPER_PRIOR, Gate

__all__ = [
    "Curves",
    "Kind",
    "Simulator",
    "baselines_of_bands",
    "matched_filter_snr",
    "signal_of",
]

BAND_BASELINES = 0.5
"""Scatter of the errors of the baselines of one star's bands, nats."""


class Kind(IntEnum):
    """What a curve was simulated as."""

    NOISE = 0
    EVENT = 1
    LOOKALIKE = 2


@dataclass(frozen=True, slots=True)
class Curves:
    """Simulated curves.

    Parameters
    ----------
    x : Tensor, shape (B, L, 3), float32
        Network input.
    baseline_error : Tensor, shape (B,), float32
        1-sigma relative error of the baseline in whose units the curve is.
    theta : Tensor, shape (B, 5), float32
        In the order of `broker_filter.types.PARAMETERS`; NaN for noise.
    snr : Tensor, shape (B,), float32
        Matched-filter signal-to-noise for an exactly known baseline; 0 for noise.
    star_noise : Tensor, shape (B, 3), float32
        What the filter knows of the star's noise; see `broker_filter.inference.encoder`.
    """

    x: Tensor
    baseline_error: Tensor
    theta: Tensor
    snr: Tensor
    star_noise: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: slice | Tensor) -> Curves:
        return Curves(*(getattr(self, f.name)[rows] for f in fields(Curves)))

    def to(self, device: torch.device) -> Curves:
        """The same curves on another device."""
        return Curves(*(getattr(self, f.name).to(device) for f in fields(Curves)))

    @classmethod
    def join(cls, parts: Sequence[Curves]) -> Curves:
        """All curves of several, which must be of one length."""
        return cls(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(cls)))


@dataclass(frozen=True, slots=True)
class Simulator:
    """Draws events and noise curves; the generator decides the device.

    Parameters
    ----------
    prior, gate, pattern
        What is drawn. With no gate every draw of the prior counts.
    baseline_error : (float, float)
        Range of the 1-sigma relative error of the baseline in whose units a curve is given;
        log-uniform. (0, 0) stands for baselines that are known exactly.
    length : int
        Longest network input; denser curves are thinned.
    noise_model : NoiseModel, optional
        Noise of all curves; white, with correct errors and nothing known of it, if left out.
    variables : Lookalikes, optional
        What `lookalikes` draws.
    """

    prior: BoxPrior = PAPER_PRIOR
    gate: Gate | None = PAPER_GATE
    pattern: PatternConfig = field(default_factory=PatternConfig)
    baseline_error: tuple[float, float] = (0.0, 0.0)
    length: int = 1000
    noise_model: NoiseModel | None = None
    variables: Lookalikes | None = None

    @property
    def unthinned(self) -> Simulator:
        """The same with curves of all their epochs; one seed gives the same curves to both."""
        return replace(self, length=max(self.length, self.pattern.grid))

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
        pattern, theta = Pattern.join(patterns), torch.cat(thetas)
        signal = signal_of(theta, pattern)
        snr = matched_filter_snr(signal, pattern)
        return self._observe(signal, pattern, generator, theta, snr)

    def noise(self, n: int, generator: torch.Generator) -> Curves:
        """Draw ``n`` curves of constant stars with the same patterns and errors."""
        pattern = draw_patterns(n, self.pattern, generator)
        return self._observe(torch.zeros_like(pattern.t), pattern, generator)

    def lookalikes(self, n: int, generator: torch.Generator) -> Curves:
        """Draw ``n`` curves of variable stars with the same patterns and errors.

        Raises
        ------
        ValueError
            If ``variables`` was left out.
        """
        if self.variables is None:
            raise ValueError("a simulator without variables draws no look-alikes")
        pattern = draw_patterns(n, self.pattern, generator)
        signal = draw_lookalikes(self.variables, pattern, self.pattern.days, generator)
        return self._observe(signal, pattern, generator)

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

    def _observe(
        self,
        signal: Tensor,
        pattern: Pattern,
        generator: torch.Generator,
        theta: Tensor | None = None,
        snr: Tensor | None = None,
    ) -> Curves:
        """Curves with noise and a baseline that is off.

        Errors are given in units of the assumed baseline. That differs from the true one by a
        factor g = 1 + b N(0, 1), so a curve is g times its model, plus the noise.
        """
        device, n = signal.device, len(pattern.n)
        if self.noise_model is None:
            flux = torch.randn(signal.shape, generator=generator, device=device) * pattern.sigma
            noise = Noise(flux, torch.ones(n, device=device), unknown_noise(n, device))
        else:
            noise = draw_noise(self.noise_model, pattern, generator)
        b = self._baseline_errors(n, generator)
        if self.pattern.visits is None:
            unit = torch.randn(n, generator=generator, device=device)
            g = (1 + b * noise.baseline * unit)[:, None]
        else:
            b, change = baselines_of_bands(b, pattern, generator)
            g = 1 + noise.baseline[:, None] * change
        x = network_input(
            torch.where(pattern.valid, pattern.t, 0).double(),
            (1 + signal) * g + noise.flux,
            pattern.sigma,
            pattern.n,
            days=self.pattern.days,
            length=self.length,
        )
        if theta is None or snr is None:
            theta = torch.full((n, 5), float("nan"), device=device)
            snr = torch.zeros(n, device=device)
        return Curves(x, b, theta, snr, noise.star)

    def _baseline_errors(self, n: int, generator: torch.Generator) -> Tensor:
        low, high = self.baseline_error
        unit = torch.rand(n, generator=generator, device=generator.device)
        return low * (high / low) ** unit if low > 0 else torch.zeros_like(unit)


def signal_of(theta: Tensor, pattern: Pattern) -> Tensor:
    """F(t) - 1 = f_s (A(u(t), rho) - 1), shape (B, N), float32; zero in the padding."""
    t0, u0, tE, rho, f_s = (column[:, None] for column in theta.unbind(-1))
    t = torch.where(pattern.valid, pattern.t, t0)
    u = torch.sqrt(u0**2 + ((t - t0) / 10**tE) ** 2)
    return torch.where(pattern.valid, f_s * excess(u, 10**rho), 0.0)


def matched_filter_snr(signal: Tensor, pattern: Pattern) -> Tensor:
    """Signal-to-noise of the best possible filter, shape (B,), for an exactly known baseline."""
    return (signal / pattern.sigma).square().sum(1).sqrt()


def baselines_of_bands(
    b: Tensor, pattern: Pattern, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Give each band of a curve a baseline with an error of its own, around ``b``, shape (B,).

    Returns
    -------
    error : Tensor, shape (B,), float32
        Of the weighted mean of the baselines; see `broker_filter.windows.readout`.
    change : Tensor, shape (B, N), float32
        Relative error of the baseline of each epoch's band.
    """
    bands = int(pattern.band.max()) + 1
    draw = Draw(len(b), generator)
    errors = b[:, None] * draw.log_normal(1.0, BAND_BASELINES, bands)
    change = (errors * draw.normal(bands)).gather(1, pattern.band)
    weight = torch.where(pattern.valid, pattern.sigma**-2, 0.0)
    shares = torch.zeros_like(errors).scatter_add_(1, pattern.band, weight)
    shares /= shares.sum(1, keepdim=True)
    return (shares * errors).square().sum(1).sqrt(), change
