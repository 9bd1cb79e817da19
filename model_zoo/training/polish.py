"""Last stage of a training: evidence head and flow alone, on summaries that are computed once.

While the encoder still moves, both follow a moving target with small steps, and the head is too
careful where events are rare. With the encoder frozen a curve is encoded once and seen many times,
in batches so large that the few that decide, events that look like noise, are in all of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model_zoo.progress import Progress
from model_zoo.simulate.curves import Kind
from model_zoo.training.fit import Fitted, fit
from model_zoo.training.losses import Losses, lpop_loss, relative_nll
from model_zoo.training.train import Trainer, draw_batch

__all__ = ["Encoded", "encoded", "polish"]

# Of the time that is left then: to encode the curves, and to train the flow on them.
ENCODING, FLOW = 0.45, 0.8


@dataclass(frozen=True, slots=True)
class Encoded:
    """Fresh curves as the frozen encoder has them, as many events as of each other kind.

    ``s`` has shape (n, d), ``kind``, as of `Kind`, shape (n,), and ``theta`` shape (n, 5), NaN for
    all but events.
    """

    s: Tensor
    kind: Tensor
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
    sizes, began = trainer.config.polish, trainer.clock()
    if not sizes.curves:
        return None
    trainer.network.eval()
    s = trainer.validation.summaries(trainer.encode)

    def losses() -> Losses:
        return trainer.validation.losses(trainer.network, s)

    asked = trainer.clock()
    before = losses()
    loss_seconds = trainer.clock() - asked

    def left(fits: int) -> float:
        """Seconds for so many fits: each measures the losses twice and ends by a checkpoint."""
        others = (2 * fits + 1) * loss_seconds + (fits + 1) * trainer.save_seconds
        return max(seconds - (trainer.clock() - began) - others, 0.0)

    second = trainer.network.lookalikes
    heads = 1 if second is None else 2
    time_to_encode = ENCODING * left(heads + bool(sizes.flow_epochs))
    data = encoded(trainer, sizes.curves, seconds=time_to_encode, quiet=quiet)
    trainer.save()  # with the time that is spent
    if sizes.flow_epochs:
        flow: nn.Module = trainer.network.estimator.net
        with _kept_if_better(flow, lambda: losses().nll):
            _fit_flow(trainer, data, FLOW * left(1 + heads), quiet=quiet)
        trainer.save()
    first, limit = trainer.network.evidence, left(heads) / heads
    with _kept_if_better(first, lambda: losses().evidence):
        fitted = _fit_head(trainer, first, data, Kind.NOISE, limit, quiet=quiet)
    if second is not None:
        with _kept_if_better(second, lambda: losses().lookalikes):
            _fit_head(trainer, second, data, Kind.LOOKALIKE, left(1), quiet=quiet)
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
    event = data.kind == Kind.EVENT
    s, theta = data.s[event], data.theta[event]
    batch = min(sizes.flow_batch, len(s))
    generator = torch.Generator().manual_seed(trainer.config.seed)

    def loss() -> Tensor:
        rows = torch.randint(len(s), (batch,), generator=generator)
        return relative_nll(estimator, theta[rows], s[rows])

    return fit(
        estimator.net,
        loss,
        round(sizes.flow_epochs * len(s) / batch),
        "flow",
        rate=sizes.flow_rate,
        seconds=seconds,
        quiet=quiet,
        clock=trainer.clock,
    )


def _fit_head(
    trainer: Trainer, head: nn.Module, data: Encoded, other: Kind, seconds: float, *, quiet: bool
) -> Fitted:
    """Fit the head for events against another kind."""
    sizes, event = trainer.config.polish, data.kind == Kind.EVENT
    classes = [torch.nonzero(mask).flatten() for mask in (event, data.kind == other)]
    s, n = data.s, sum(map(len, classes))
    batch = min(sizes.batch, n)
    generator = torch.Generator().manual_seed(trainer.config.seed)

    def some(rows: Tensor) -> Tensor:
        return rows[torch.randint(len(rows), (batch // 2,), generator=generator)]

    def loss() -> Tensor:
        chosen = torch.cat([some(rows) for rows in classes])
        return lpop_loss(head(s[chosen]), event[chosen])

    return fit(
        head,
        loss,
        round(sizes.epochs * n / batch),
        "evidence head",
        rate=sizes.rate,
        seconds=seconds,
        quiet=quiet,
        clock=trainer.clock,
    )


@torch.no_grad()
def encoded(trainer: Trainer, n: int, *, seconds: float = math.inf, quiet: bool = False) -> Encoded:
    """``n`` fresh curves; fewer if the seconds run out before."""
    batch, began = min(trainer.config.training.batch, n), trainer.clock()
    trainer.network.eval()
    shares = (0.5, 0.0) if trainer.network.lookalikes is None else (1 / 3, 1 / 3)
    parts = []
    with Progress("summaries", n, "curves", quiet=quiet, clock=trainer.clock) as shown:
        for _ in range(-(-n // batch)):
            curves, kind = draw_batch(trainer.simulator, batch, shares, trainer.generator)
            parts.append((trainer.encode(curves).float(), kind, curves.theta))
            shown.add(batch)
            if trainer.clock() - began >= seconds:
                break
    return Encoded(*(torch.cat(column)[:n] for column in zip(*parts, strict=True)))
