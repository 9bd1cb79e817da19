"""Does sharing the encoder help? A head on the frozen encoder against a network of its own.

The frozen encoder of an entry gives summaries, and a new head learns ln K from them. A dedicated
network of the same architecture learns from the same labelled curves, from scratch. After Smyth,
Perreault-Levasseur & Hezaveh (ICML 2026), appendix "Does sharing the encoder help?".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from broker_filter.inference.encoder import build_encoder
from broker_filter.inference.evidence import LN_10, EvidenceHead
from broker_filter.inference.network import Network
from model_zoo.evaluate.sets import SEEDS, batches, progress
from model_zoo.simulate.curves import Simulator
from model_zoo.training.fit import fit
from model_zoo.training.losses import lpop_loss
from model_zoo.training.train import choose_precision

__all__ = [
    "FULL_SHARING",
    "QUICK_SHARING",
    "Labelled",
    "SharingSizes",
    "labelled",
    "measure_sharing",
]

Array = NDArray[np.float64]

EVENT_SEED, NOISE_SEED, SHUFFLE_SEED = 9_301, 9_302, 9_303
BATCH = 256
RATE, HEAD_RATE = 1e-3, 3e-3


@dataclass(frozen=True, slots=True)
class SharingSizes:
    """How much is trained and tested.

    ``budgets`` of labelled curves, half of them events; ``head_epochs`` of the head, ``epochs`` of
    the dedicated network, for at most ``seconds`` a budget; ``test`` events, as many noise curves,
    and as many more to set the threshold.
    """

    budgets: tuple[int, ...]
    head_epochs: int
    epochs: int
    seconds: float
    test: int

    def __post_init__(self) -> None:
        if min(self.budgets) < BATCH:
            raise ValueError(f"budgets {self.budgets}: each needs at least {BATCH} curves")


FULL_SHARING = SharingSizes((20_000, 100_000), head_epochs=60, epochs=60, seconds=200, test=5_000)
QUICK_SHARING = SharingSizes((500,), head_epochs=20, epochs=1, seconds=3, test=250)


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labelled curves.

    ``x`` has shape (n, L, 3), ``baseline_error`` (n,), both float32; ``event`` (n,), bool;
    ``rho`` (n,), NaN for noise.
    """

    x: Tensor
    baseline_error: Tensor
    event: Tensor
    rho: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def first(self, n: int) -> Labelled:
        """The first ``n``."""
        return Labelled(self.x[:n], self.baseline_error[:n], self.event[:n], self.rho[:n])


class _Dedicated(nn.Module):
    """Encoder and head of one architecture, untrained."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.encoder = build_encoder(**options)
        self.head = EvidenceHead(self.encoder.summary_width)

    def forward(self, x: Tensor, baseline_error: Tensor) -> Tensor:
        ln_k: Tensor = self.head(self.encoder(x, baseline_error))
        return ln_k


def measure_sharing(
    network: Network,
    simulator: Simulator,
    encoder: dict[str, Any],
    sizes: SharingSizes = FULL_SHARING,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """True positive rate where validation noise gives no alarm, and training times.

    Parameters
    ----------
    network : Network
        Its encoder is frozen; its own evidence head is left out.
    simulator : Simulator
    encoder : dict
        The ``encoder`` section of the entry's config, from which the dedicated network is built.
    sizes : SharingSizes

    Returns
    -------
    dict
        ``rows``, one for each budget (``curves``) and ``kind`` (transfer or dedicated):
        ``log10_k`` of the threshold, ``tpr``, ``tpr_rho_ge_5``, ``false_alarms`` among the test's
        noise, ``seconds`` of training and its ``steps``. A transfer's seconds include its curves'
        way through the frozen encoder.
    """
    frozen = network.eval().encoder
    training = labelled(simulator, max(sizes.budgets), EVENT_SEED, NOISE_SEED, quiet=quiet)
    test = labelled(simulator, 2 * sizes.test, SEEDS["events"], SEEDS["noise"], quiet=quiet)
    validation = labelled(simulator, sizes.test, None, SEEDS["validation_noise"], quiet=quiet)
    began = time.perf_counter()
    summaries = _apply(frozen, training.x, training.baseline_error, quiet=quiet)
    encoding = time.perf_counter() - began
    looks = [(_apply(frozen, c.x, c.baseline_error, quiet=quiet), c) for c in (test, validation)]
    rows = []
    for n in sizes.budgets:
        data = training.first(n)
        head, steps, seconds = _train_head(summaries[:n], data.event, sizes, quiet=quiet)
        found = [_apply(head, s, quiet=quiet) for s, _ in looks]
        took = seconds + encoding * n / len(training)
        rows.append(_row("transfer", n, steps, took, test, *found))
        own, steps, seconds = _train_dedicated(encoder, data, sizes, quiet=quiet)
        found = [_apply(own, c.x, c.baseline_error, quiet=quiet) for _, c in looks]
        rows.append(_row("dedicated", n, steps, seconds, test, *found))
    return {"sizes": asdict(sizes) | {"budgets": list(sizes.budgets)}, "rows": rows}


def labelled(
    simulator: Simulator, n: int, event_seed: int | None, noise_seed: int, *, quiet: bool = False
) -> Labelled:
    """``n`` curves, by turns event and noise so that any beginning is half and half.

    With no ``event_seed`` all are noise.
    """
    x = torch.empty(n, simulator.length, 3)
    data = Labelled(x, torch.empty(n), torch.zeros(n, dtype=torch.bool), torch.full((n,), np.nan))
    if event_seed is None:
        _fill(data, slice(0, n, 1), simulator.noise, noise_seed, quiet=quiet)
        return data
    data.event[::2] = True
    _fill(data, slice(0, n, 2), simulator.events, event_seed, quiet=quiet)
    _fill(data, slice(1, n, 2), simulator.noise, noise_seed, quiet=quiet)
    return data


def _fill(data: Labelled, rows: slice, draw: Any, seed: int, *, quiet: bool) -> None:  # noqa: ANN401
    x, error, rho = data.x[rows], data.baseline_error[rows], data.rho[rows]
    first = 0
    for part in batches(draw, len(x), seed, draw.__name__, quiet=quiet):
        here = slice(first, first + len(part))
        x[here], error[here], rho[here] = part.x, part.baseline_error, 10 ** part.theta[:, 3]
        first += len(part)


def _train_head(
    s: Tensor, event: Tensor, sizes: SharingSizes, *, quiet: bool
) -> tuple[nn.Module, int, float]:
    with torch.random.fork_rng():
        torch.manual_seed(SHUFFLE_SEED)
        head = EvidenceHead(s.shape[1])
    rows = _shuffled(len(s))
    steps = sizes.head_epochs * (len(s) // BATCH)

    def loss() -> Tensor:
        chosen = next(rows)
        return lpop_loss(head(s[chosen]), event[chosen])

    fitted = fit(head, loss, steps, f"head, {len(s):,}", rate=HEAD_RATE, quiet=quiet)
    return head, fitted.steps, fitted.seconds


def _train_dedicated(
    options: dict[str, Any], data: Labelled, sizes: SharingSizes, *, quiet: bool
) -> tuple[nn.Module, int, float]:
    with torch.random.fork_rng():
        torch.manual_seed(SHUFFLE_SEED)
        network = _Dedicated(options)
    precision = choose_precision(network.encoder, torch.device("cpu"))
    rows = _shuffled(len(data))
    steps = sizes.epochs * (len(data) // BATCH)

    def loss() -> Tensor:
        chosen = next(rows)
        with torch.autocast("cpu", precision, precision != torch.float32):
            s = network.encoder(data.x[chosen], data.baseline_error[chosen])
        return lpop_loss(network.head(s), data.event[chosen])

    name = f"dedicated, {len(data):,}"
    fitted = fit(network, loss, steps, name, rate=RATE, seconds=sizes.seconds, quiet=quiet)
    return network, fitted.steps, fitted.seconds


def _shuffled(n: int) -> Iterator[Tensor]:
    """Batches of row numbers, each row once an epoch, for ever."""
    generator = torch.Generator().manual_seed(SHUFFLE_SEED)
    while True:
        order = torch.randperm(n, generator=generator)
        yield from order[: n - n % BATCH].reshape(-1, BATCH)


@torch.inference_mode()
def _apply(network: Callable[..., Tensor], *columns: Tensor, quiet: bool) -> Tensor:
    """The network's output for all rows of its inputs, in batches."""
    parts, first = [], 0
    for size in progress(len(columns[0]), "scoring", quiet=quiet):
        parts.append(network(*(column[first : first + size] for column in columns)))
        first += size
    return torch.cat(parts)


def _row(
    kind: str, n: int, steps: int, seconds: float, test: Labelled, ln_k: Tensor, validation: Tensor
) -> dict[str, Any]:
    threshold = float(validation.max())
    found, large = ln_k > threshold, test.rho >= 5
    return {
        "kind": kind,
        "curves": n,
        "log10_k": round(threshold / LN_10, 3),
        "tpr": round(float(found[test.event].double().mean()), 5),
        "tpr_rho_ge_5": round(float(found[large].double().mean()), 5)
        if bool(large.any())
        else None,
        "false_alarms": int(found[~test.event].sum()),
        "seconds": round(seconds, 2),
        "steps": steps,
    }
