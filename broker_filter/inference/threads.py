"""How many threads torch uses in the calling thread.

Each thread that calls torch has a team of OpenMP threads of its own, of which each waits for all
the others after every operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread", "use_one_thread"]


def use_one_thread() -> None:
    """Let torch compute in the calling thread alone.

    A second team beside that of the network would compete for the same cores (see
    `broker_filter.inference.scorer`).
    """
    torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """The same within a block, for many small operations.

    A team gains nothing by them, and where other processes need the cores it waits for them after
    each: a fit of 835 points took 30 times the CPU with two threads on two busy cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
