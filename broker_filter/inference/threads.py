"""How many threads torch uses in the calling thread."""

from __future__ import annotations

import torch

__all__ = ["use_one_thread"]


def use_one_thread() -> None:
    """Let torch compute in the calling thread alone.

    Each thread that calls torch has a team of OpenMP threads of its own; a second team beside that
    of the network would compete for the same cores (see `broker_filter.inference.scorer`).
    """
    torch.set_num_threads(1)
