"""How many false alerts a demo may show, by the rates on the model's card.

A threshold on K lets a known share of constant stars pass, so a run of many stars has some false
alerts by right. How many are expected is stated, and only clearly more of them are a fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["CHANCE", "expected_false_stars", "most_false_stars"]

CHANCE = 1e-3
"""How often a run that is as good as stated may be called bad."""


def expected_false_stars(
    k_tail: Sequence[Mapping[str, float]], threshold: float, *, evaluations: int, windows: int
) -> float:
    """At most how many constant stars are expected to be alerted.

    Parameters
    ----------
    k_tail : sequence of mapping
        Of the card: the share ``observed`` of simulated windows without an event of which K reached
        ``k``. That share times the number of evaluations is more than the stars that any of them
        alerts, since those of one window are much alike. Where the card has none, P(K >= k) <= 1/k
        holds for a window, however often it is evaluated.
    threshold : float
        log10 K.
    evaluations, windows : int
        Evaluations of constant stars, and how many windows they had.
    """
    k = 10.0**threshold
    known = [row["observed"] for row in k_tail if row["observed"] > 0 and row["k"] <= k]
    bound = windows / k
    return float(min(evaluations * min(known), bound)) if known else bound


def most_false_stars(expected: float) -> int:
    """The number that a Poisson count of this mean exceeds with a chance below `CHANCE`."""
    from scipy.stats import poisson

    return int(poisson.isf(CHANCE, expected))
