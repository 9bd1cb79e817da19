"""Encoders: a window ``x``, shape (B, L, 3), becomes a summary ``s``, shape (B, d).

Two of them sit behind one call. ``paper`` is the encoder of Smyth, Perreault-Levasseur & Hezaveh
(ICML 2026): one token an epoch. ``compact`` cuts the window into patches of consecutive epochs,
which makes it hundreds of times cheaper; it is made for CPUs and for streams.

Both give the same ``s`` whatever the padding, the bucket length and the other rows of the batch. A
window without any usable epoch gives the finite summary of an empty window.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from broker_filter.errors import ModelError
from broker_filter.inference.matched_filter import LensScan
from broker_filter.inference.network_input import split_padding

__all__ = ["STAR_NOISE", "CompactEncoder", "Encoder", "PaperEncoder", "build_encoder"]

STAR_NOISE = ("error_scale", "red_noise", "nights")
"""Columns of what a star's history shows of its noise, NaN without a history: the factor by which
its errors are too small; the noise of whole nights, in typical errors, as an estimate or an upper
limit; the number of nights behind both."""


class CompactEncoder(nn.Module):
    """Transformer over patches of consecutive epochs.

    Parameters
    ----------
    width : int
        Size of the tokens, and of what the summary holds of them.
    layers, heads, feed_forward : int
        Shape of the transformer.
    patch : int
        Epochs per patch.
    hidden : int
        Units of the MLP that makes a token of a patch.
    scan : bool
        Whether the summary ends with the features of
        `broker_filter.inference.matched_filter.LensScan`.
    star_noise : bool
        Whether the encoder reads what is known of the star's noise.

    Notes
    -----
    A patch is described by its weighted mean (the slow signal) and by each epoch's residual from
    that mean (the fast one). The first layers run in float32 whatever the autocast: bfloat16's
    eight bits would lose the 1-sigma detail of a peak that is 1,000 sigma high.
    """

    time_waves: Tensor
    flux_waves: Tensor
    POINT_FEATURES = 6
    TIME_FREQUENCIES, FLUX_FREQUENCIES = 24, 16
    PATCH_FEATURES = 2 * (TIME_FREQUENCIES + FLUX_FREQUENCIES) + 5

    def __init__(
        self,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        feed_forward: int = 384,
        patch: int = 50,
        hidden: int = 256,
        scan: bool = False,
        star_noise: bool = False,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.scan = LensScan() if scan else None
        self.summary_width = width + scan * (2 * self.TIME_FREQUENCIES + LensScan.WIDTH)
        features = patch * self.POINT_FEATURES + self.PATCH_FEATURES
        self.embed = nn.Sequential(nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.summary = nn.Parameter(0.02 * torch.randn(width))
        self.baseline = _BaselineToken(width)
        self.star = _StarToken(width) if star_noise else None
        self.layers = nn.ModuleList(_Layer(width, heads, feed_forward) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("time_waves", _waves(self.TIME_FREQUENCIES, 60.0), persistent=False)
        self.register_buffer("flux_waves", _waves(self.FLUX_FREQUENCIES, 8.0), persistent=False)

    def forward(
        self, x: Tensor, baseline_error: Tensor | None = None, star_noise: Tensor | None = None
    ) -> Tensor:
        """Summaries ``s``, shape (B, summary_width), float32.

        Parameters
        ----------
        x : Tensor, shape (B, L, 3), float32
            Sorted by time.
        baseline_error : Tensor, shape (B,), float32, optional
            1-sigma relative error of the baselines; exact ones if left out.
        star_noise : Tensor, shape (B, 3), float32, optional
            Columns `STAR_NOISE`; nothing known if left out, and not read without the option.
        """
        with torch.autocast(x.device.type, enabled=False):
            x, valid = split_padding(x.float())
            features, filled = self._features(x, valid)
            tokens = self.embed(features)
            summary = self.summary + self.baseline(x, baseline_error)
            if self.star is not None and star_noise is not None:
                summary = summary + self.star(star_noise)
            scan = self._scan(x, valid, baseline_error)
        h = torch.cat([summary[:, None], tokens], dim=1)
        mask = nn.functional.pad(filled, (1, 0), value=True)
        for layer in self.layers:
            h = layer(h, mask)
        s: Tensor = self.norm(h[:, 0].float())
        return torch.cat([s, *scan], dim=1)

    def _scan(self, x: Tensor, valid: Tensor, baseline_error: Tensor | None) -> list[Tensor]:
        """What the matched filter found, after its time in waves, which the flow reads finely."""
        if self.scan is None:
            return []
        found = self.scan(x, valid, baseline_error)
        return [_fourier(found[:, :1], self.time_waves), found]

    def _features(self, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Features of each patch, shape (B, P, f), and whether it holds any epoch, shape (B, P)."""
        extra = -x.shape[1] % self.patch
        x = nn.functional.pad(x, (0, 0, 0, extra)).reshape(len(x), -1, self.patch, 3)
        valid = nn.functional.pad(valid, (0, extra)).reshape(len(x), -1, self.patch)
        t, flux, sigma = x.unbind(-1)
        sigma = torch.where(valid, sigma, 1.0)
        count = valid.sum(-1, keepdim=True).clamp(min=1)
        weight = torch.where(valid, sigma**-2, 0.0)
        total = weight.sum(-1, keepdim=True)
        scale = torch.where(total > 0, total, 1.0)
        mean_t = torch.where(valid, t, 0.0).sum(-1, keepdim=True) / count
        change = torch.where(valid, flux - 1, 0.0)
        mean = (weight * change).sum(-1, keepdim=True) / scale
        error = scale.rsqrt()
        points = torch.stack(
            [
                torch.asinh((change - mean) / sigma),
                torch.asinh(change / sigma),
                torch.asinh(50 * change),
                torch.log10(sigma / 0.005),
                20 * (t - mean_t),
                torch.ones_like(t),
            ],
            dim=-1,
        )
        points = torch.where(valid[..., None], points, 0.0).flatten(-2)
        span = (torch.where(valid, t, -1e9).amax(-1, True) - mean_t).clamp(min=0)
        patches = [
            _fourier(mean_t, self.time_waves),
            _fourier(torch.asinh(300 * mean), self.flux_waves),
            torch.asinh(mean / error),
            torch.asinh(50 * mean),
            torch.log10(error / 0.001),
            valid.float().mean(-1, keepdim=True),
            10 * span,
        ]
        return torch.cat([points, *patches], dim=-1), valid.any(-1)


class PaperEncoder(nn.Module):
    """The paper's encoder: one token an epoch, 6 layers of 8 heads, summary token.

    Parameters
    ----------
    width, layers, heads, feed_forward : int
        256, 6, 8 and 512 in the paper.
    max_length : int
        Longest bucket, for the sinusoidal positions over the index of the epoch.
    """

    positions: Tensor

    def __init__(
        self,
        width: int = 256,
        layers: int = 6,
        heads: int = 8,
        feed_forward: int = 512,
        max_length: int = 1000,
    ) -> None:
        super().__init__()
        self.summary_width = width
        self.embed = nn.Linear(3, width)
        self.summary = nn.Parameter(0.02 * torch.randn(width))
        self.baseline = _BaselineToken(width)
        self.layers = nn.ModuleList(
            _Layer(width, heads, feed_forward, pre_norm=False) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.register_buffer("positions", _sinusoids(max_length, width), persistent=False)

    def forward(
        self,
        x: Tensor,
        baseline_error: Tensor | None = None,
        star_noise: Tensor | None = None,  # noqa: ARG002
    ) -> Tensor:
        """Summaries ``s``, shape (B, width), as of `CompactEncoder`; ``star_noise`` is not read."""
        summary = self.summary + self.baseline(x, baseline_error)
        x, valid = split_padding(x.float())
        h = self.embed(x) * math.sqrt(self.summary.shape[0]) + self.positions[: x.shape[1]]
        # The summary goes first so that padding never moves it.
        h = torch.cat([summary[:, None], h], dim=1)
        mask = nn.functional.pad(valid, (1, 0), value=True)
        for layer in self.layers:
            h = layer(h, mask)
        s: Tensor = self.norm(h[:, 0].float())
        return s


class _BaselineToken(nn.Module):
    """Adds what is known of the baseline's error to the summary token; nothing at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor, error: Tensor | None) -> Tensor:
        """``error``, shape (B,), relative -> shape (B, width)."""
        error = x.new_zeros(len(x)) if error is None else error.float()
        # From -2 for an exact baseline to 1 for one that is off by 1 %.
        z = torch.log10((error + 1e-5) / 1e-3)
        features = [z, z * z, (math.pi * z).sin(), (math.pi * z).cos()]
        token: Tensor = self.linear(torch.stack(features, dim=-1))
        return token


class _StarToken(nn.Module):
    """Adds what is known of the star's noise to the summary token; nothing at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(6, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, star_noise: Tensor) -> Tensor:
        """``star_noise``, shape (B, 3) -> shape (B, width); a constant for unknown stars."""
        known = torch.isfinite(star_noise).all(-1)
        found = torch.where(known[:, None], star_noise.float(), 1.0).clamp(min=0)
        scale, red, nights = found.unbind(-1)
        z = torch.stack(
            [
                torch.ones_like(scale),
                4 * scale.clamp(min=0.1).log(),
                (10 * red).asinh(),
                red.clamp(max=3),
                nights.clamp(1).log10(),
                (10 * red).asinh() * nights.clamp(1).log10(),
            ],
            dim=-1,
        )
        token: Tensor = self.linear(torch.where(known[:, None], z, 0.0))
        return token


class _Layer(nn.Module):
    """Transformer layer; pre-norm with GELU, or post-norm with ReLU as in the paper.

    Attention is written out: on CPUs the fused one is pathological in bfloat16 when it trains.
    """

    def __init__(self, width: int, heads: int, feed_forward: int, *, pre_norm: bool = True) -> None:
        super().__init__()
        self.heads, self.pre_norm = heads, pre_norm
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, feed_forward), nn.Linear(feed_forward, width)

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        if self.pre_norm:
            h = h + self._attend(self.attention_norm(h), mask)
            grown: Tensor = h + self.down(nn.functional.gelu(self.up(self.mlp_norm(h))))
            return grown
        h = self.attention_norm(h + self._attend(h, mask))
        normed: Tensor = self.mlp_norm(h + self.down(nn.functional.relu(self.up(h))))
        return normed

    def _attend(self, h: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = h.shape
        q, k, v = self.qkv(h).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        mixed = scores.softmax(-1).to(v.dtype) @ v
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


Encoder = CompactEncoder | PaperEncoder

_BUILDERS: dict[str, Callable[..., Encoder]] = {
    "compact": CompactEncoder,
    "paper": PaperEncoder,
}


def build_encoder(name: str, **options: int) -> Encoder:
    """Make an encoder by name.

    Raises
    ------
    ModelError
        For an unknown name or option.
    """
    try:
        return _BUILDERS[name](**options)
    except (KeyError, TypeError) as error:
        known = ", ".join(sorted(_BUILDERS))
        raise ModelError(f"encoder {name!r} with {options}: {error}; known are {known}") from error


def _waves(n: int, highest: float) -> Tensor:
    return torch.logspace(math.log10(0.5), math.log10(highest), n) * math.pi


def _fourier(value: Tensor, waves: Tensor) -> Tensor:
    angle = value * waves
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def _sinusoids(length: int, width: int) -> Tensor:
    """Positions of Vaswani et al. 2017, arXiv:1706.03762, shape (length, width)."""
    index = torch.arange(length)[:, None]
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    table = torch.zeros(length, width)
    table[:, 0::2], table[:, 1::2] = torch.sin(index * rate), torch.cos(index * rate)
    return table
