"""Toy problem with a known Bayes factor, which loss and head must find from labels alone.

A bump of known shape and unknown height A ~ N(mu, s_A^2) lies in white noise of size s, or not.
With the template g of unit norm and the matched filter ahat = g . d,

    ln K = -1/2 ln(1 + a) + ahat^2 / (2 s^2) - (ahat - mu)^2 / (2 (s^2 + s_A^2)),   a = s_A^2 / s^2.

(Smyth, Perreault-Levasseur & Hezaveh, ICML 2026, appendix A, print the form for mu = 0.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from broker_filter.inference.encoder import CompactEncoder
from broker_filter.inference.evidence import LN_10, EvidenceHead
from model_zoo.evaluate.sets import progress
from model_zoo.training.fit import fit
from model_zoo.training.losses import lpop_loss

__all__ = [
    "FULL_TOY",
    "LOSSES",
    "NOISE",
    "QUICK_TOY",
    "ToyExample",
    "ToySizes",
    "auc",
    "draw_toy",
    "exact_ln_k",
    "measure_toy",
    "toy_examples",
    "train_toy",
]

Array = NDArray[np.float64]
Loss = Callable[[Tensor, Tensor], Tensor]

POINTS, DAYS, BUMP_WIDTH = 200, 20.0, 1.5
NOISE, MEAN, SPREAD = 0.1, 0.1, 0.1
WIDTH = 64
TRAIN_SEED, TEST_SEED = 9_201, 9_202
FALSE_ALARMS = (0.01, 0.05, 0.10)
CALIBRATION_BINS = 20
EXAMPLES = 2_000  # curves among which those of the figure are


def _cross_entropy(ln_k: Tensor, event: Tensor) -> Tensor:
    """With equal class shares the logit of the best classifier is ln K too."""
    return binary_cross_entropy_with_logits(ln_k, event.float())


LOSSES: dict[str, Loss] = {"lpop": lpop_loss, "cross_entropy": _cross_entropy}


@dataclass(frozen=True, slots=True)
class ToySizes:
    """How much is trained and tested.

    ``steps`` of ``batch`` fresh curves, half of them events, at the learning rate ``rate``;
    ``layers`` of the encoder, with ``inner`` units in their MLPs; ``test`` curves of each class.
    """

    steps: int
    batch: int
    rate: float
    layers: int
    inner: int
    test: int


FULL_TOY = ToySizes(2_000, 512, rate=2e-3, layers=2, inner=128, test=100_000)
QUICK_TOY = ToySizes(450, 256, rate=3e-3, layers=1, inner=64, test=20_000)


@dataclass(frozen=True, slots=True)
class ToyExample:
    """One toy curve: days, flux and the true model, each of shape (200,), and its exact log10 K."""

    t: Array
    flux: Array
    signal: Array
    log10_k: float


class _Detector(nn.Module):
    """The encoder and the head of the zoo, small: ln K of each curve."""

    def __init__(self, layers: int, inner: int) -> None:
        super().__init__()
        # Ten epochs a patch: a day, of a bump three days wide.
        self.encoder = CompactEncoder(WIDTH, layers, 4, inner, patch=10, hidden=inner)
        self.head = EvidenceHead(WIDTH, hidden=WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        ln_k: Tensor = self.head(self.encoder(x))
        return ln_k


def measure_toy(sizes: ToySizes = FULL_TOY, *, quiet: bool = False) -> dict[str, Any]:
    """Train with each loss and set the networks beside the exact Bayes factor."""
    generator = torch.Generator().manual_seed(TEST_SEED)
    x, event = draw_toy(2 * sizes.test, generator)
    exact, labels = exact_ln_k(x).double().numpy(), event.numpy()
    figures: dict[str, Any] = {"sizes": asdict(sizes), "oracle": _detection(exact, labels)}
    for name in LOSSES:
        network, seconds = train_toy(sizes, name, quiet=quiet)
        ln_k = _evaluate(network, x, quiet=quiet)
        figures[name] = {
            "seconds": round(seconds, 1),
            **_detection(ln_k, labels),
            **_against_exact(ln_k, exact),
            "calibration": _calibration(ln_k, labels),
        }
    return figures


def train_toy(
    sizes: ToySizes, loss: str = "lpop", *, seed: int = TRAIN_SEED, quiet: bool = False
) -> tuple[nn.Module, float]:
    """A network that maps toy curves x to ln K, trained from labels alone, and its wall time."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = _Detector(sizes.layers, sizes.inner)
    generator = torch.Generator().manual_seed(seed)

    def batch() -> Tensor:
        x, event = draw_toy(sizes.batch, generator, paired=True)
        return LOSSES[loss](network(x), event)

    fitted = fit(network, batch, sizes.steps, f"toy, {loss}", rate=sizes.rate, quiet=quiet)
    return network.eval(), fitted.seconds


def draw_toy(n: int, generator: torch.Generator, *, paired: bool = False) -> tuple[Tensor, Tensor]:
    """Network input, shape (n, 200, 3), and whether it is an event, shape (n,); half are.

    ``paired`` gives each event the noise of one of the noise curves: the loss has the same mean,
    and a gradient that is less noisy.
    """
    x, height = _draw(n, generator, paired=paired)
    return x, height != 0


def _draw(n: int, generator: torch.Generator, *, paired: bool) -> tuple[Tensor, Tensor]:
    """Curves, and the height of the bump in each; 0 in noise."""
    event = torch.arange(n) < n // 2
    height = (MEAN + SPREAD * torch.randn(n, generator=generator)) * event
    noise = NOISE * torch.randn(n // 2 if paired else n, POINTS, generator=generator)
    noise = noise.repeat(2, 1) if paired else noise
    x = torch.empty(n, POINTS, 3)
    x[..., 0] = torch.linspace(-1, 1, POINTS)
    x[..., 1] = 1 + height[:, None] * _template() + noise
    x[..., 2] = NOISE
    return x, height


def toy_examples(n: int) -> tuple[list[ToyExample], list[ToyExample]]:
    """``n`` curves of noise, and ``n`` events of high K: every tenth of those that have most."""
    x, height = _draw(EXAMPLES, torch.Generator().manual_seed(TEST_SEED), paired=False)
    log10_k = exact_ln_k(x) / LN_10
    half = EXAMPLES // 2
    highest = log10_k[:half].argsort(descending=True)[: 10 * n : 10].tolist()
    t = torch.linspace(0, DAYS, POINTS).double().numpy()

    def example(i: int) -> ToyExample:
        flux, signal = x[i, :, 1], 1 + height[i] * _template()
        return ToyExample(t, flux.double().numpy(), signal.double().numpy(), float(log10_k[i]))

    return [example(half + i) for i in range(n)], [example(i) for i in highest]


def exact_ln_k(x: Tensor) -> Tensor:
    """Closed form of ln K, shape (n,), for toy curves ``x``, shape (n, 200, 3)."""
    ahat = (x[..., 1] - 1) @ _template()
    grown = NOISE**2 + SPREAD**2
    scale = -0.5 * math.log(1 + (SPREAD / NOISE) ** 2)
    return scale + 0.5 * (ahat / NOISE) ** 2 - 0.5 * (ahat - MEAN) ** 2 / grown


def auc(score: Array, event: NDArray[np.bool_]) -> float:
    """Area under the ROC curve: the chance that an event scores above a noise curve."""
    rank = rankdata(score)
    n, m = int(event.sum()), int((~event).sum())
    return float((rank[event].sum() - n * (n + 1) / 2) / (n * m))


def _template() -> Tensor:
    t = torch.linspace(-DAYS / 2, DAYS / 2, POINTS)
    g = torch.exp(-0.5 * (t / BUMP_WIDTH) ** 2)
    return torch.nn.functional.normalize(g, dim=0)


@torch.inference_mode()
def _evaluate(network: nn.Module, x: Tensor, *, quiet: bool) -> Array:
    parts, first = [], 0
    for size in progress(len(x), "toy", quiet=quiet, batch=1_000):
        parts.append(network(x[first : first + size]))
        first += size
    ln_k: Array = torch.cat(parts).double().numpy()
    return ln_k


def _detection(ln_k: Array, event: NDArray[np.bool_]) -> dict[str, Any]:
    """AUC, true positive rates at fixed false positive rates, and a ROC curve to draw."""
    fpr = np.geomspace(1e-3, 1, 40)
    return {
        "auc": round(auc(ln_k, event), 5),
        "tpr": {f"{share:g}": round(_tpr(ln_k, event, share), 5) for share in FALSE_ALARMS},
        "roc": {
            "fpr": [round(float(share), 5) for share in fpr],
            "tpr": [round(_tpr(ln_k, event, float(share)), 5) for share in fpr],
        },
    }


def _tpr(ln_k: Array, event: NDArray[np.bool_], fpr: float) -> float:
    threshold = np.quantile(ln_k[~event], 1 - fpr)
    return float((ln_k[event] > threshold).mean()) if fpr < 1 else 1.0


def _against_exact(ln_k: Array, exact: Array) -> dict[str, float]:
    """Correlation, slope of ln K on the exact one, mean and scatter of the difference (dex)."""
    slope = np.polyfit(exact, ln_k, 1)[0]
    off = (ln_k - exact) / math.log(10)
    return {
        "r": round(float(np.corrcoef(ln_k, exact)[0, 1]), 5),
        "slope": round(float(slope), 4),
        "bias_dex": round(float(off.mean()), 4),
        "scatter_dex": round(float(off.std()), 4),
    }


def _calibration(ln_k: Array, event: NDArray[np.bool_]) -> dict[str, list[float]]:
    """Share of events where p = K / (1 + K) lies in each bin, with its binomial error."""
    p = 1 / (1 + np.exp(-ln_k))
    bins = np.minimum((p * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    rows = []
    for i in range(CALIBRATION_BINS):
        inside = bins == i
        if (n := int(inside.sum())) >= CALIBRATION_BINS:
            share = float(event[inside].mean())
            rows.append((float(p[inside].mean()), share, math.sqrt(share * (1 - share) / n), n))
    columns = zip(*rows, strict=True)
    names = ("predicted", "observed", "error", "n")
    return {k: [round(v, 5) for v in c] for k, c in zip(names, columns, strict=True)}
