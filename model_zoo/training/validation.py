"""Validation set of a training: frozen curves that it never learns from.

The evidence loss is heavy-tailed and the flow's scatters from batch to batch, so weights are
compared by their losses on the same events and constant stars.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from broker_filter.inference.network import Network
from model_zoo.simulate.curves import Curves, Kind, Simulator
from model_zoo.training.losses import Losses, evidence_losses, relative_nll

__all__ = ["Validation"]

SEED = 9_101  # not of the evaluation's sets, which the choice of weights must not touch
BATCH = 256


class Validation:
    """Events, and as many constant stars and, where the simulator has them, variable ones.

    Parameters
    ----------
    simulator : Simulator
        Of the training.
    n : int
        Events.
    """

    def __init__(self, simulator: Simulator, n: int) -> None:
        generator = torch.Generator().manual_seed(SEED)
        sizes = [min(BATCH, n - first) for first in range(0, n, BATCH)]
        self._events = [_sorted(simulator.events(size, generator)) for size in sizes]
        self._others = [_sorted(simulator.noise(size, generator)) for size in sizes]
        kinds = [Kind.EVENT, Kind.NOISE]
        if simulator.variables is not None:
            self._others += [_sorted(simulator.lookalikes(size, generator)) for size in sizes]
            kinds.append(Kind.LOOKALIKE)
        self._kind = torch.tensor(kinds).repeat_interleave(n)
        self._theta = torch.cat([curves.theta for curves in self._events])

    @torch.no_grad()
    def summaries(self, encode: Callable[[Curves], Tensor]) -> Tensor:
        """Summaries, shape (2 n or 3 n, d), float32: events, constant stars, variable ones."""
        return torch.cat([encode(curves).float() for curves in (*self._events, *self._others)])

    @torch.no_grad()
    def losses(self, network: Network, s: Tensor) -> Losses:
        """Losses of flow and heads of a network whose `summaries` are ``s``."""
        theta = self._theta.to(s.device)
        nll = relative_nll(network.estimator, theta, s[: len(theta)])
        evidence, lookalikes = evidence_losses(network, s, self._kind.to(s.device))
        return Losses(float(nll), float(evidence), float(lookalikes))


def _sorted(curves: Curves) -> Curves:
    """In order of their number of epochs, so that little padding is encoded."""
    return curves[(curves.x[..., 2] > 0).sum(1).argsort()]
