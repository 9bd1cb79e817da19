"""From epochs of a window to what the networks read: one function for training and serving.

Network input is ``x``, shape (B, L, 3), float32, with channels (t_norm, F, sigma); rows beyond a
window's epochs are -2 in all three.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["PADDING", "network_input", "split_padding", "thin"]

PADDING = -2.0
# Epochs closer than this share of the window may be merged before any wider pair is.
CLOSE_PAIR = 1 / 500


def network_input(
    t: Tensor, flux: Tensor, sigma: Tensor, n: Tensor, *, days: float, length: int
) -> Tensor:
    """Thin, normalise and pad windows for the networks.

    Parameters
    ----------
    t : Tensor, shape (B, N), float64, days
        Time since the start of the window; the first ``n[i]`` of each row are sorted epochs.
    flux, sigma : Tensor, shape (B, N), float32
        Flux and its error in units of the star's baseline.
    n : Tensor, shape (B,), int64
        Number of epochs.
    days : float
        Length of the window.
    length : int
        Bucket length L; windows with more epochs are thinned to it.

    Returns
    -------
    Tensor, shape (B, L, 3), float32
    """
    if t.shape[1] > length:
        t, flux, sigma, n = thin(t, flux, sigma, n, length, close=days * CLOSE_PAIR)
    x = torch.full((t.shape[0], length, 3), PADDING, dtype=torch.float32, device=t.device)
    width = min(t.shape[1], length)
    valid = torch.arange(width, device=t.device) < n[:, None]
    columns = ((2 * t / days - 1).float(), flux, sigma)
    for channel, column in enumerate(columns):
        x[:, :width, channel] = torch.where(valid, column[:, :width], PADDING)
    return x


def thin(
    t: Tensor, flux: Tensor, sigma: Tensor, n: Tensor, length: int, *, close: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Merge neighbouring epochs by inverse variance until no window has more than ``length``.

    Windows of more than twice ``length`` are halved pair by pair first. Then just as many pairs
    merge as there are epochs too many: pairs nearer in time than ``close`` from the oldest on, and
    wider ones only when those run out. No chance is involved: equal epochs give equal windows.

    Parameters
    ----------
    t, flux, sigma, n
        As in `network_input`.
    length : int
        Most epochs that a window may keep.
    close : float, days

    Returns
    -------
    tuple of Tensor
        t, flux, sigma, shape (B, min(N, length)), and n, shape (B,).
    """
    while t.shape[1] > length:
        surplus = torch.where(n > 2 * length, n // 2, (n - length).clamp(min=0))
        t, flux, sigma, n = _merge_pairs(t, flux, sigma, n, surplus, close)
        width = max(int(n.max()), 1)
        t, flux, sigma = t[:, :width], flux[:, :width], sigma[:, :width]
    return t, flux, sigma, n


def split_padding(x: Tensor) -> tuple[Tensor, Tensor]:
    """Distinguish epochs from padding; a row with NaN or infinity counts as padding.

    Parameters
    ----------
    x : Tensor, shape (B, L, 3), float32

    Returns
    -------
    x : Tensor, shape (B, L, 3)
        With zeros where there is no epoch, so that nothing leaks through a mask.
    valid : Tensor, shape (B, L), bool
    """
    valid = (x[..., 2] > 0) & torch.isfinite(x).all(dim=-1)
    return torch.where(valid[..., None], x, 0.0), valid


def _merge_pairs(
    t: Tensor, flux: Tensor, sigma: Tensor, n: Tensor, surplus: Tensor, close: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Merge ``surplus[i]`` of the pairs (0, 1), (2, 3), ... of each window."""
    end = t.shape[1] // 2 * 2
    exists = torch.arange(1, end, 2, device=t.device) < n[:, None]
    near = exists & (t[:, 1:end:2] - t[:, 0:end:2] <= close)
    far = exists & ~near
    rank = torch.where(near, near.cumsum(1), near.sum(1, keepdim=True) + far.cumsum(1))
    merged = exists & (rank <= surplus[:, None])

    w0, w1 = sigma[:, 0:end:2].double() ** -2, sigma[:, 1:end:2].double() ** -2
    total = w0 + w1

    def pair_mean(values: Tensor) -> Tensor:
        """The column with each merged pair's mean in the place of its first epoch."""
        mean = (w0 * values[:, 0:end:2] + w1 * values[:, 1:end:2]) / total
        return _with_firsts(values, torch.where(merged, mean.to(values.dtype), values[:, 0:end:2]))

    firsts = torch.where(merged, total.rsqrt().float(), sigma[:, 0:end:2])
    kept = torch.ones_like(t, dtype=torch.bool)
    kept[:, 1:end:2] = ~merged
    place = torch.where(kept, kept.cumsum(1) - 1, t.shape[1])
    return (
        _move(pair_mean(t), place),
        _move(pair_mean(flux), place),
        _move(_with_firsts(sigma, firsts), place),
        n - merged.sum(1),
    )


def _with_firsts(values: Tensor, firsts: Tensor) -> Tensor:
    changed = values.clone()
    changed[:, 0 : 2 * firsts.shape[1] : 2] = firsts
    return changed


def _move(values: Tensor, place: Tensor) -> Tensor:
    """Each value at its new place; those sent to the spare last place are dropped."""
    spare = values.new_zeros(values.shape[0], values.shape[1] + 1)
    return spare.scatter_(1, place, values)[:, :-1]
