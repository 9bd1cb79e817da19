"""Intervals of counted things: of a share, and of a number of rare events."""

from __future__ import annotations

__all__ = ["counts", "wilson"]


def wilson(found: int, n: int) -> tuple[float, float]:
    """68.3 % interval of a share of which ``found`` of ``n`` were seen.

    Notes
    -----
    The score interval of Wilson 1927, JASA 22, 209, with z = 1.
    """
    centre = (found + 0.5) / (n + 1)
    half = (found * (n - found) / n + 0.25 if n else 0.25) ** 0.5 / (n + 1)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def counts(found: int) -> tuple[float, float]:
    """68.3 % interval of the expected number where ``found`` events were counted.

    Notes
    -----
    Gehrels 1986, ApJ 303, 336, equations 7 and 14 for one sigma: good to a few per cent.
    """
    high = found + (found + 0.75) ** 0.5 + 1
    low = found * (1 - 1 / (9 * found) - 1 / (3 * found**0.5)) ** 3 if found else 0.0
    return low, high
