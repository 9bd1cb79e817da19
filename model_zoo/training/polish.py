"""Last stage of a training: the evidence head alone, on summaries that are computed once.

While encoder and flow still move, the head follows a moving target with small steps, and is too
careful where events are rare. With both frozen a curve is encoded once and seen many times, in
batches so large that the few that decide, events that look like noise, are in all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from tqdm import tqdm

from model_zoo.training.fit import Fitted, fit
from model_zoo.training.train import Trainer, draw_batch, lpop_loss, summaries

__all__ = ["encoded", "polish"]


def polish(trainer: Trainer, *, quiet: bool = False) -> Fitted | None:
    """Train the head of a trained network as ``config.polish`` says; None if that is nothing."""
    sizes = trainer.config.polish
    if not sizes.curves:
        return None
    s, event = encoded(trainer, sizes.curves, quiet=quiet)
    head, batch = trainer.network.evidence, min(sizes.batch, len(s))
    # Half of a batch is events, as of all curves.
    classes = [torch.nonzero(mask).flatten() for mask in (event, ~event)]
    generator = torch.Generator().manual_seed(trainer.config.seed)

    def some(rows: Tensor) -> Tensor:
        return rows[torch.randint(len(rows), (batch // 2,), generator=generator)]

    def loss() -> Tensor:
        chosen = torch.cat([some(rows) for rows in classes])
        return lpop_loss(head(s[chosen]), event[chosen])

    steps = round(sizes.epochs * len(s) / batch)
    return fit(head, loss, steps, "evidence head", rate=sizes.rate, quiet=quiet)


@torch.no_grad()
def encoded(trainer: Trainer, n: int, *, quiet: bool = False) -> tuple[Tensor, Tensor]:
    """Summaries of fresh curves, shape (n, d), half of them of events, and which; shape (n,)."""
    batch = min(trainer.config.training.batch, n)
    trainer.network.eval()
    parts, events = [], []
    with tqdm(total=n, desc="summaries", unit="curve", disable=quiet or None) as bar:
        for _ in range(-(-n // batch)):
            curves, event = draw_batch(trainer.simulator, batch, 0.5, trainer.generator)
            with trainer.autocast():
                parts.append(summaries(trainer.network.encoder, curves).float().cpu())
            events.append(event.cpu())
            bar.update(batch)
    return torch.cat(parts)[:n], torch.cat(events)[:n]
