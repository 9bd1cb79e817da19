"""Which epochs can be used, and which difference flux a reference flux makes total."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import Photometry

__all__ = [
    "MAX_FLUX",
    "MAX_SIGNIFICANCE",
    "REASONS",
    "Accepted",
    "Limits",
    "accept",
    "by_reference",
    "plausible",
]

_LARGEST: Final = float(np.finfo(np.float32).max)
_SMALLEST: Final = float(np.finfo(np.float32).tiny)

MAX_SIGNAL_TO_NOISE: Final = 1e6
"""No photometry is so good: a flux of so many errors is a wrong flux or a wrong error."""

MAX_FLUX: Final = 1e9
MAX_SIGNIFICANCE: Final = 1e7
"""Points that are not between these bounds, in baselines and in errors, are left out: products of
their squares leave the range of float32, and no star does such a thing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an epoch must satisfy to be used.

    Parameters
    ----------
    mjd_min, mjd_max : float
        Times outside are errors of the sender (MJD TAI); one epoch in the far future would
        close a star's window to all the real ones.
    flag_mask : int
        An epoch is dropped where ``flags & flag_mask`` is not zero.
    """

    mjd_min: float = 40_000.0
    mjd_max: float = 80_000.0
    flag_mask: int = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Accepted:
    """The usable epochs, and how many were dropped for each reason."""

    photometry: Photometry
    rejected: dict[str, int]


# Each rule takes the photometry and the limits and marks the epochs that it rejects, shape (n,).
_RULES: Final[dict[str, Callable[[Photometry, Limits], NDArray[np.bool_]]]] = {
    "nan_time": lambda p, _: np.isnan(p.mjd_tai),
    "time_out_of_range": lambda p, m: ~((p.mjd_tai >= m.mjd_min) & (p.mjd_tai <= m.mjd_max)),
    "nan_flux": lambda p, _: np.isnan(p.flux),
    "infinite_flux": lambda p, _: ~(np.abs(p.flux) <= _LARGEST),
    "bad_error": lambda p, _: ~((p.flux_err >= _SMALLEST) & (p.flux_err <= _LARGEST)),
    "implausible": lambda p, _: np.abs(p.flux) > MAX_SIGNAL_TO_NOISE * p.flux_err,
    "flagged": lambda p, m: (p.flags & np.uint32(m.flag_mask)) != 0,
}

REASONS: Final = tuple(_RULES)
"""The words under which `accept` counts what it drops, in order of precedence."""


def accept(photometry: Photometry, limits: Limits) -> Accepted:
    """Drop the epochs that cannot be used.

    Parameters
    ----------
    photometry : Photometry
        As decoded; not changed.
    limits : Limits
        What an epoch must satisfy.

    Returns
    -------
    Accepted
        The usable epochs, and the dropped ones counted by the first of `REASONS` that applies.
        Fluxes and errors beyond the range of float32 count as infinite or bad.
    """
    good = np.ones(len(photometry), bool)
    rejected: dict[str, int] = {}
    for reason, rule in _RULES.items():
        bad = good & rule(photometry, limits)
        if bad.any():
            rejected[reason] = int(bad.sum())
            good &= ~bad
    return Accepted(_select(photometry, good) if rejected else photometry, rejected)


def by_reference(photometry: Photometry) -> tuple[Photometry, ...]:
    """Part difference flux into what its reference flux makes total, and what has none.

    Parameters
    ----------
    photometry : Photometry
        Total flux is returned as it is.

    Returns
    -------
    tuple of Photometry
        No empty ones, of kind "total" and "difference" in this order.
    """
    if photometry.kind == "total":
        return (photometry,)
    known = np.isfinite(photometry.ref_flux)
    total = _select(photometry, known)
    total = replace(total, flux=total.flux + total.ref_flux, kind="total")
    return tuple(part for part in (total, _select(photometry, ~known)) if len(part))


def _select(photometry: Photometry, good: NDArray[np.bool_]) -> Photometry:
    columns = ("mjd_tai", "flux", "flux_err", "flags", "ref_flux", "ref_flux_err")
    kept: dict[str, Any] = {name: getattr(photometry, name)[good] for name in columns}
    return replace(photometry, star=list(compress(photometry.star, good.tolist())), **kept)


def plausible(
    flux: NDArray[np.floating[Any]], sigma: NDArray[np.floating[Any]]
) -> NDArray[np.bool_]:
    """Which points, in units of their baselines, a star can give; no NaN is one of them."""
    with np.errstate(invalid="ignore", over="ignore"):
        good = (np.abs(flux) <= MAX_FLUX) & (sigma <= MAX_FLUX)
        good &= np.maximum(np.abs(flux - 1), 1) <= MAX_SIGNIFICANCE * sigma
    return np.asarray(good)
