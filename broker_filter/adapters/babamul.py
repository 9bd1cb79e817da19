"""Babamul, BOOM's public stream: a consumer that passes its alerts on to a filter.

A filter reads Babamul's topics by itself where it may log in to that Kafka (``input_topics``
``^babamul.*``). This is for who has only the Python client: alerts come as its models and go out as
our photometry. Histories are differences, and ZTF's count millionths of what their label says; the
reference flux of the alert's own band goes along for ZTF, and LSST has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np

from broker_filter.decode.surveys.babamul import ZTF_UNIT_NJY
from broker_filter.photometry.magnitudes import flux_error, flux_of
from broker_filter.photometry.times import MJD_ZERO, TIME_SYSTEMS, to_mjd_tai
from broker_filter.types import FloatArray, Photometry

__all__ = ["photometry_of", "relay"]

_UTC: Final = TIME_SYSTEMS["MJD"]


def relay(alerts: Iterable[Any], send: Callable[[Iterable[Photometry]], int]) -> int:
    """Pass alerts on, as they come; gives the number of messages.

    Parameters
    ----------
    alerts : iterable
        ``babamul.AlertConsumer``.
    send : callable
        Such as ``functools.partial(broker_filter.publish, bootstrap_servers=..., topic=...)``.
    """
    return sum(send(list(photometry_of(alert))) for alert in alerts)


def photometry_of(alert: Any) -> Iterator[Photometry]:  # noqa: ANN401  babamul's model
    """Difference flux of an alert's history and own epoch, band by band.

    Parameters
    ----------
    alert : babamul.ZtfAlert or babamul.LsstAlert
    """
    ztf = hasattr(alert.candidate, "magnr")
    points = [one for one in alert.get_photometry() if one.psfFlux is not None]
    for band in sorted({str(getattr(one.band, "value", one.band)) for one in points}):
        mine = [one for one in points if str(getattr(one.band, "value", one.band)) == band]
        yield _photometry(alert, band, mine, ztf=ztf)


def _photometry(alert: Any, band: str, points: list[Any], *, ztf: bool) -> Photometry:  # noqa: ANN401
    """One band; ``jd`` is UTC for ZTF and TAI for LSST."""
    jd = np.array([one.jd for one in points])
    unit = ZTF_UNIT_NJY if ztf else 1.0
    reference, its_error = _reference(alert, band) if ztf else (np.nan, np.nan)
    n = len(points)
    return Photometry(
        survey="babamul-ztf" if ztf else "babamul-lsst",
        band=band,
        source="",
        star=[str(alert.objectId)] * n,
        mjd_tai=to_mjd_tai(jd - MJD_ZERO, _UTC) if ztf else jd - MJD_ZERO,
        flux=np.array([one.psfFlux for one in points]) * unit,
        flux_err=np.array([one.psfFluxErr for one in points]) * unit,
        flags=np.zeros(n, np.uint32),
        ref_flux=np.full(n, reference),
        ref_flux_err=np.full(n, its_error),
        kind="difference",
        coordinates={str(alert.objectId): (alert.candidate.ra, alert.candidate.dec)},
    )


def _reference(alert: Any, band: str) -> tuple[float, float]:  # noqa: ANN401
    """Flux of the reference image's star and its error, in the alert's own band alone."""
    candidate = alert.candidate
    if str(getattr(candidate.band, "value", candidate.band)) != band or candidate.magnr is None:
        return np.nan, np.nan
    flux: FloatArray = flux_of(np.array([candidate.magnr]))
    error = flux_error(flux, np.array([candidate.sigmagnr or 0.0]))
    return float(flux[0]), float(error[0])
