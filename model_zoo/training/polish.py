"""Last stage of a training: the evidence head alone, on summaries that are computed once.

While encoder and flow still move, the head follows a moving target with small steps, and is too
careful where events are rare. With both frozen a curve is encoded once and seen many times, in
batches so large that the few that decide, events that look like noise, are in all of them.
"""

from __future__ import annotations

import copy
import math
import time

import torch
from torch import Tensor
from tqdm import tqdm

from model_zoo.training.fit import Fitted, fit
from model_zoo.training.losses import lpop_loss
from model_zoo.training.train import Trainer, draw_batch

__all__ = ["encoded", "polish"]

ENCODING = 0.75  # of the time


def polish(trainer: Trainer, *, seconds: float = math.inf, quiet: bool = False) -> Fitted | None:
    """Train the head of a trained network as ``config.polish`` says; None if that is nothing.

    Parameters
    ----------
    trainer : Trainer
        After its run. Its former head stays if the new one is worse on the validation set.
    seconds : float
        Limit on the wall time; as many curves are encoded as most of it allows.
    """
    sizes, began = trainer.config.polish, time.monotonic()
    if not sizes.curves:
        return None
    validation, network = trainer.validation, trainer.network.eval()
    s_validation = validation.summaries(trainer.encode)
    before = validation.losses(network, s_validation)
    former = copy.deepcopy(network.evidence.state_dict())
    s, event = encoded(trainer, sizes.curves, seconds=ENCODING * seconds, quiet=quiet)
    fitted = _fit_head(trainer, s, event, seconds - (time.monotonic() - began), quiet=quiet)
    after = validation.losses(network, s_validation)
    if after.evidence > before.evidence:
        network.evidence.load_state_dict(former)
    trainer.note_polish(before, after)
    return fitted


def _fit_head(trainer: Trainer, s: Tensor, event: Tensor, seconds: float, *, quiet: bool) -> Fitted:
    sizes, head = trainer.config.polish, trainer.network.evidence
    batch = min(sizes.batch, len(s))
    # Half of a batch is events, as of all curves.
    classes = [torch.nonzero(mask).flatten() for mask in (event, ~event)]
    generator = torch.Generator().manual_seed(trainer.config.seed)

    def some(rows: Tensor) -> Tensor:
        return rows[torch.randint(len(rows), (batch // 2,), generator=generator)]

    def loss() -> Tensor:
        chosen = torch.cat([some(rows) for rows in classes])
        return lpop_loss(head(s[chosen]), event[chosen])

    steps = round(sizes.epochs * len(s) / batch)
    limit = max(seconds, 1.0)
    return fit(head, loss, steps, "evidence head", rate=sizes.rate, seconds=limit, quiet=quiet)


@torch.no_grad()
def encoded(
    trainer: Trainer, n: int, *, seconds: float = math.inf, quiet: bool = False
) -> tuple[Tensor, Tensor]:
    """Summaries of fresh curves, shape (n, d), half of them of events, and which; shape (n,).

    Fewer than ``n`` if the seconds run out before.
    """
    batch, began = min(trainer.config.training.batch, n), time.monotonic()
    trainer.network.eval()
    parts, events = [], []
    with tqdm(total=n, desc="summaries", unit="curve", disable=quiet or None) as bar:
        for _ in range(-(-n // batch)):
            curves, event = draw_batch(trainer.simulator, batch, 0.5, trainer.generator)
            parts.append(trainer.encode(curves).float().cpu())
            events.append(event.cpu())
            bar.update(batch)
            if time.monotonic() - began > seconds:
                break
    return torch.cat(parts)[:n], torch.cat(events)[:n]
