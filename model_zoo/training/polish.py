"""Last stage of a training: evidence head and flow alone, on summaries that are computed once.

While the encoder still moves, both follow a moving target with small steps, and the head is too
careful where events are rare. With the encoder frozen a curve is encoded once and seen many times,
in batches so large that the few that decide, events that look like noise, are in all of them.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from tqdm import tqdm

from model_zoo.training.fit import Fitted, fit
from model_zoo.training.losses import Losses, lpop_loss, relative_nll
from model_zoo.training.train import Trainer, draw_batch

__all__ = ["Encoded", "encoded", "polish"]

# Of the time: until the curves are encoded, and until the flow is trained on them.
ENCODED, FLOW_TRAINED = 0.45, 0.9
LEAST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Encoded:
    """Fresh curves as the frozen encoder has them, half of them events.

    ``s`` has shape (n, d), ``event`` shape (n,), and ``theta`` shape (n, 5), NaN for noise.
    """

    s: Tensor
    event: Tensor
    theta: Tensor


def polish(trainer: Trainer, *, seconds: float = math.inf, quiet: bool = False) -> Fitted | None:
    """Train the heads of a trained network as ``config.polish`` says; None if that is nothing.

    Parameters
    ----------
    trainer : Trainer
        After its run. A head that is worse on the validation set than before stays as it was.
    seconds : float
        Limit on the wall time; as many curves are encoded as its share allows.

    Returns
    -------
    Fitted, optional
        Of the evidence head.
    """
    sizes, began = trainer.config.polish, time.monotonic()
    if not sizes.curves:
        return None
    trainer.network.eval()
    s = trainer.validation.summaries(trainer.encode)

    def losses() -> Losses:
        return trainer.validation.losses(trainer.network, s)

    def until(share: float) -> float:
        return share * seconds - (time.monotonic() - began)

    data = encoded(trainer, sizes.curves, seconds=until(ENCODED), quiet=quiet)
    before = losses()
    if sizes.flow_epochs:
        flow: nn.Module = trainer.network.estimator.net
        with _kept_if_better(flow, lambda: losses().nll):
            _fit_flow(trainer, data, until(FLOW_TRAINED), quiet=quiet)
    with _kept_if_better(trainer.network.evidence, lambda: losses().evidence):
        fitted = _fit_head(trainer, data, until(1.0), quiet=quiet)
    trainer.note_polish(before, losses())
    return fitted


@contextmanager
def _kept_if_better(head: nn.Module, loss: Callable[[], float]) -> Iterator[None]:
    """Put the weights of a head back if what was done to it did not lower its loss."""
    former, before = copy.deepcopy(head.state_dict()), loss()
    yield
    if not loss() < before:
        head.load_state_dict(former)


def _fit_flow(trainer: Trainer, data: Encoded, seconds: float, *, quiet: bool) -> Fitted:
    sizes, estimator = trainer.config.polish, trainer.network.estimator
    s, theta = data.s[data.event], data.theta[data.event]
    batch = min(sizes.flow_batch, len(s))
    generator = torch.Generator().manual_seed(trainer.config.seed)

    def loss() -> Tensor:
        rows = torch.randint(len(s), (batch,), generator=generator)
        return relative_nll(estimator, theta[rows], s[rows])

    steps, limit = round(sizes.flow_epochs * len(s) / batch), max(seconds, LEAST_SECONDS)
    net: nn.Module = estimator.net
    return fit(net, loss, steps, "flow", rate=sizes.flow_rate, seconds=limit, quiet=quiet)


def _fit_head(trainer: Trainer, data: Encoded, seconds: float, *, quiet: bool) -> Fitted:
    sizes, head = trainer.config.polish, trainer.network.evidence
    s, event = data.s, data.event
    batch = min(sizes.batch, len(s))
    # Half of a batch is events, as of all curves.
    classes = [torch.nonzero(mask).flatten() for mask in (event, ~event)]
    generator = torch.Generator().manual_seed(trainer.config.seed)

    def some(rows: Tensor) -> Tensor:
        return rows[torch.randint(len(rows), (batch // 2,), generator=generator)]

    def loss() -> Tensor:
        chosen = torch.cat([some(rows) for rows in classes])
        return lpop_loss(head(s[chosen]), event[chosen])

    steps, limit = round(sizes.epochs * len(s) / batch), max(seconds, LEAST_SECONDS)
    return fit(head, loss, steps, "evidence head", rate=sizes.rate, seconds=limit, quiet=quiet)


@torch.no_grad()
def encoded(trainer: Trainer, n: int, *, seconds: float = math.inf, quiet: bool = False) -> Encoded:
    """``n`` fresh curves; fewer if the seconds run out before."""
    batch, began = min(trainer.config.training.batch, n), time.monotonic()
    trainer.network.eval()
    parts = []
    with tqdm(total=n, desc="summaries", unit="curve", disable=quiet or None) as bar:
        for _ in range(-(-n // batch)):
            curves, event = draw_batch(trainer.simulator, batch, 0.5, trainer.generator)
            parts.append((trainer.encode(curves).float(), event, curves.theta))
            bar.update(batch)
            if time.monotonic() - began > seconds:
                break
    return Encoded(*(torch.cat(column)[:n] for column in zip(*parts, strict=True)))
