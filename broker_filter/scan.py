"""Significance of runs of epochs: what a box-shaped filter sees, at every length and place.

A network has to learn sums over hundreds of epochs, and learns them imperfectly; here they are
exact. The largest significance S of a run is close to the signal-to-noise of an event, and
ln K grows as S^2 / 2, so the evidence head can follow it far beyond what it met in training.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["SCAN_WIDTH", "box_scan"]

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SCAN_WIDTH = 3 * len(LENGTHS) + 1
HIGHEST = 300.0


def box_scan(x: Tensor, valid: Tensor, baseline_error: Tensor | None = None) -> Tensor:
    """Largest and smallest significance over runs of 1, 2, 4, ... 512 epochs.

    Parameters
    ----------
    x : Tensor, shape (B, L, 3), float32
        Network input, zero where there is no epoch.
    valid : Tensor, shape (B, L), bool
    baseline_error : Tensor, shape (B,), float32, optional
        1-sigma relative error b of the baselines; exact ones if left out.

    Returns
    -------
    Tensor, shape (B, SCAN_WIDTH), float32
        asinh of the largest S, the largest S itself (in units of 10) and asinh of the smallest S,
        by length; last the asinh of the mean likelihood ratio of all runs, as a significance.

    Notes
    -----
    S = 1' C^-1 y / sqrt(1' C^-1 1) for the indicator 1 of a run, y = F - 1, and the covariance
    C = diag(sigma^2) + b^2 of errors with a common baseline, inverted by Sherman and Morrison.
    Runs overlap by half. Padding is in no run.
    """
    y = torch.where(valid, x[..., 1] - 1, 0.0).double()
    sigma = torch.where(valid, x[..., 2], 1.0).double()
    weight = torch.where(valid, sigma**-2, 0.0)
    sums = pad(torch.stack([weight * y, weight]).cumsum(-1), (1, 0))
    sums = pad(sums, (0, LENGTHS[-1]), mode="replicate")
    total, total_weight = sums[..., -1:]
    b2 = 0.0 if baseline_error is None else baseline_error.double()[:, None] ** 2
    common = b2 / (1 + b2 * total_weight)
    highest, lowest, every = [], [], []
    for length in LENGTHS:
        in_run, run_weight = _runs(sums, length)
        empty = run_weight <= 0
        signal = in_run - common * run_weight * total
        power = run_weight - common * run_weight**2
        s = (signal * power.clamp(min=1e-12).rsqrt()).float().clamp(-HIGHEST, HIGHEST)
        highest.append(s.masked_fill(empty, -HIGHEST).amax(-1))
        lowest.append(s.masked_fill(empty, HIGHEST).amin(-1))
        likelihood = (0.5 * s.clamp(min=0).square()).masked_fill(empty, -torch.inf)
        every.append(likelihood.logsumexp(-1) - (~empty).sum(-1).clamp(min=1).log())
    high, low = torch.stack(highest, -1), torch.stack(lowest, -1)
    mean = torch.stack(every, -1).logsumexp(-1, keepdim=True).clamp(min=0)
    scan = torch.cat([high.asinh(), high / 10, low.asinh(), (2 * mean).sqrt().asinh()], -1)
    return scan.masked_fill(~valid.any(-1, keepdim=True), 0.0)


def _runs(sums: Tensor, length: int) -> Tensor:
    """Sums over the runs [i, i + length) for i in steps of half a run.

    ``sums``, shape (2, B, 1 + L + LENGTHS[-1]), are cumulative, and stay the same beyond L.
    """
    last = sums.shape[-1] - 1 - LENGTHS[-1]
    step = max(length // 2, 1)
    return sums[..., length : length + last : step] - sums[..., :last:step]
