"""K of one star as plain numbers, by `broker_filter.score`; a bad light curve gives a reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from broker_filter.errors import SchemaError
from broker_filter.scoring.result import Result
from broker_filter.scoring.score import score
from broker_filter.types import StarId

__all__ = ["MIN_EPOCHS", "Evidence", "evidence", "lsst_columns"]

MIN_EPOCHS: Final = 10
"""K needs so many epochs of a band within a window."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the filter says of a star; NaN and an empty text where it says nothing.

    Parameters
    ----------
    log10_k : float
        The largest of the network over the windows.
    log10_k_certified, log10_k_certified_error : float
        Of the last alert: they are computed where K passes the threshold.
    alerted : bool
        Whether K passed the threshold.
    verdict : str
    t0 : float, MJD TAI
    u0, tE, rho, f_s : float, Einstein radii, days, Einstein radii, 1
        Medians of the last alert.
    days_to_peak : float, days
    magnitude_now : float, AB
    reason : str
        Why there is no K; empty where there is one.
    """

    log10_k: float = math.nan
    log10_k_certified: float = math.nan
    log10_k_certified_error: float = math.nan
    alerted: bool = False
    verdict: str = ""
    t0: float = math.nan
    u0: float = math.nan
    tE: float = math.nan  # noqa: N815  the field's own name for it
    rho: float = math.nan
    f_s: float = math.nan
    days_to_peak: float = math.nan
    magnitude_now: float = math.nan
    reason: str = ""

    def known(self) -> dict[str, Any]:
        """What is known, by name: no NaN and no empty text."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value != "" and not (isinstance(value, float) and not math.isfinite(value))
        }


def evidence(
    star: StarId,
    time: ArrayLike,
    flux: ArrayLike,
    error: ArrayLike,
    band: str | Sequence[str],
    *,
    survey: str,
    time_system: str = "mjd_tai",
    zero_point: float | None = None,
) -> Evidence:
    """Score one light curve of total flux; parameters as of `broker_filter.score`.

    A light curve that cannot be scored gives an `Evidence` with the reason: a broker calls this for
    every star, and one must not end it.
    """
    if len(np.atleast_1d(np.asarray(time, dtype=object))) < MIN_EPOCHS:
        return Evidence(reason=f"fewer than {MIN_EPOCHS} epochs")
    try:
        result = score(
            time, flux, error,
            band=band, star=star, survey=survey, time_system=time_system, zero_point=zero_point,
        )  # fmt: skip
    except SchemaError as problem:
        return Evidence(reason=str(problem))
    return _of(result)


def _of(result: Result) -> Evidence:
    reason = "" if len(result.last_epoch) else f"no window has {MIN_EPOCHS} epochs"
    if (alert := result.alert) is None:
        return Evidence(log10_k=result.log10_k, reason=reason)
    certified, verdict = alert.certified, alert.verdict
    medians = {one.name: one.median for one in alert.summary}
    days, magnitude = alert.days_to_peak, alert.magnitude_now
    return Evidence(
        log10_k=result.log10_k,
        log10_k_certified=math.nan if certified is None else certified.log10_k,
        log10_k_certified_error=math.nan if certified is None else certified.log10_k_error,
        alerted=True,
        verdict="" if verdict is None else verdict.verdict,
        t0=medians["t0"],
        u0=medians["u0"],
        tE=medians["tE"],
        rho=medians["rho"],
        f_s=medians["f_s"],
        days_to_peak=math.nan if days is None else days,
        magnitude_now=math.nan if magnitude is None else magnitude,
    )


def lsst_columns(
    records: Iterable[Mapping[str, Any]],
) -> tuple[list[float], list[float], list[float], list[str]]:
    """Time (MJD TAI), total flux, error (nJy) and band of LSST's diaSources or forced sources.

    The total flux is ``scienceFlux``; where that is missing, difference and template together. A
    record that has neither is left out, since K needs the star and not its difference alone.
    """
    rows = sorted(row for row in map(_lsst_epoch, records) if row is not None)
    return (
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        [row[3] for row in rows],
    )


def _lsst_epoch(record: Mapping[str, Any]) -> tuple[float, float, float, str] | None:
    flux, error = record.get("scienceFlux"), record.get("scienceFluxErr")
    difference, template = record.get("psfFlux"), record.get("templateFlux")
    if flux is None and difference is not None and template is not None:
        flux, error = difference + template, record.get("psfFluxErr")
    time, band = record.get("midpointMjdTai"), record.get("band")
    if flux is None or error is None or time is None or band is None:
        return None
    return float(time), float(flux), float(error), str(band)
