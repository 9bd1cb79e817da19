"""How many false alerts a demo may show.

A threshold on K lets some constant stars pass by right, so a run of many stars has some false
alerts. At most how many is stated, and only clearly more of them are a fault.
"""

from __future__ import annotations

__all__ = ["CHANCE", "expected_false_stars", "most_false_stars"]

CHANCE = 1e-3
"""How often a run that is as good as stated may be called bad."""


def expected_false_stars(threshold: float, windows: int) -> float:
    """At most how many constant stars are expected to be alerted.

    P(certified K >= k) <= 1/k holds for a window, however often it is looked at.

    Parameters
    ----------
    threshold : float
        log10 K.
    windows : int
        How many windows all constant stars together had.
    """
    return float(windows / 10.0**threshold)


def most_false_stars(expected: float) -> int:
    """The number that a Poisson count of this mean exceeds with a chance below `CHANCE`."""
    from scipy.stats import poisson

    return int(poisson.isf(CHANCE, expected))
