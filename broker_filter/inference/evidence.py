"""Evidence head: the summary of a window becomes ln K, microlensing against none.

An Evidence Network (Jeffrey & Wandelt 2024, Mach. Learn.: Sci. Technol. 5, 015008) learns the
Bayes factor from labels alone: the l-POP transform is its last layer, and under the exponential
loss the minimum is ln K itself.
"""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["LN_10", "EvidenceHead", "lpop"]

LN_10 = 2.302585092994046


class EvidenceHead(nn.Module):
    """MLP on the summary with the l-POP transform as its last layer.

    Parameters
    ----------
    width : int
        Size of the summary.
    hidden : int
        Size of the hidden layer.
    """

    def __init__(self, width: int, hidden: int = 128) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, s: Tensor) -> Tensor:
        """``s``, shape (B, width), float32 -> ln K, shape (B,), float32.

        The scale and shift make training start near ln K = 0, where the exponential loss is tame.
        """
        z: Tensor = self.mlp(s.float()).squeeze(-1)
        return lpop(0.1 * z + 0.001)


def lpop(z: Tensor) -> Tensor:
    """J(z) = z + z|z|, the l-POP transform with exponent 2."""
    return z + z * z.abs()
