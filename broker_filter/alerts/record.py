"""An alert as the record of the current schema (names in camelCase, columns as bytes), and back."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.parts import (
    QUANTILES,
    UNITS,
    Best,
    CertifiedK,
    Draws,
    FitQuality,
    Interval,
    Noise,
    OtherBand,
    Rival,
    Source,
    Verdict,
)
from broker_filter.types import PARAMETERS

__all__ = ["from_record", "to_record"]

_SHAPED = {
    "alert_id",
    "event_id",
    "best_constrained_alert_id",
    "other_bands",
    "certified",
    "parameters",
    "samples",
    "summary",
    "covariance",
    "network",
    "fit",
    "mjd_tai",
    "flux",
    "sigma",
    "source",
    "sources",
    "rivals",
    "verdict",
    "noise",
}
# All others go into the record as they are, under their own name in camelCase.
_PLAIN = tuple(field.name for field in fields(Alert) if field.name not in _SHAPED)
_CERTIFIED = {
    "log10KCertified": "log10_k",
    "log10KCertifiedError": "log10_k_error",
    "certifiedEffectiveSampleSize": "effective_sample_size",
    "certifiedLook": "look",
}
_INTERVAL = ("name", "unit", *QUANTILES)
_NUMBERS = tuple(field.name for field in fields(Alert) if field.type == "float")
_DATES = ("window_start_mjd_tai", "first_epoch_mjd_tai", "last_epoch_mjd_tai", "t0_mjd_tai")
_CALENDAR = (-678_000.0, 2_973_000.0)  # years that Python's dates know, MJD
_MJD_1970, _DAY_MS = 40_587, 86_400_000
_FAR, _FAR_LOG10 = 1e6, 30.0  # from 0, for any number of a lens, and for logarithms
_LOG10_RHO = 1.0  # of the largest source that has a curve


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _flat(part: Any) -> dict[str, Any]:  # noqa: ANN401  any dataclass of an alert
    """A part of an alert as a record, its own fields under their names in camelCase."""
    return {_camel(field.name): getattr(part, field.name) for field in fields(part)}


def _unflat(kind: type, record: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a part of an alert, from its record."""
    return {field.name: record[_camel(field.name)] for field in fields(kind)}


def to_record(alert: Alert) -> dict[str, Any]:
    """Make the record of the schema: camelCase names, columns as little-endian bytes."""
    best_constrained = alert.best_constrained_alert_id
    return {
        "alertId": str(alert.alert_id),
        "eventId": str(alert.event_id),
        "bestConstrainedAlertId": best_constrained and str(best_constrained),
        "otherBands": [_flat(one) for one in alert.other_bands],
        **{_camel(name): getattr(alert, name) for name in _PLAIN},
        **{key: getattr(alert.certified, name, None) for key, name in _CERTIFIED.items()},
        "posterior": _draws_record(alert.draws),
        "network": alert.network and _draws_record(alert.network),
        "fit": alert.fit and _fit_record(alert.fit),
        "lightCurve": {
            "mjdTai": _pack(alert.mjd_tai, "<f8"),
            "flux": _pack(alert.flux, "<f4"),
            "sigma": _pack(alert.sigma, "<f4"),
            "source": None if alert.source is None else _pack(alert.source, "<i2"),
        },
        "sources": [_flat(one) for one in alert.sources],
        "rivals": [_rival_record(one) for one in alert.rivals],
        "verdict": alert.verdict and _flat(alert.verdict),
        "noise": alert.noise and _flat(alert.noise),
    }


def _draws_record(draws: Draws) -> dict[str, Any]:
    return {
        "parameters": list(draws.parameters),
        "shape": list(draws.samples.shape),
        "samples": _pack(draws.samples, "<f4"),
        "summary": [{key: getattr(one, key) for key in _INTERVAL} for one in draws.summary],
        "covariance": draws.covariance.ravel().tolist(),
    }


def _fit_record(fit: FitQuality) -> dict[str, Any]:
    return _flat(fit) | {"best": _flat(fit.best), "leftOut": list(fit.left_out)}


def _rival_record(rival: Rival) -> dict[str, Any]:
    curve = None if rival.curve is None else _pack(rival.curve, "<f4")
    return _flat(rival) | {"parameters": dict(rival.parameters), "curve": curve}


def from_record(record: Mapping[str, Any]) -> Alert:
    """Read a record of the current schema.

    Raises
    ------
    ValueError
        Its columns contradict the numbers that describe them; or what every alert knows is no
        number, or no date.
    """
    alert = _of_record(record)
    _check(alert)
    return alert


def _of_record(record: Mapping[str, Any]) -> Alert:
    curve, n = record["lightCurve"], record["nEpochs"]
    posterior, network = _draws(record["posterior"]), record["network"]
    best_constrained = record["bestConstrainedAlertId"]
    return Alert(
        alert_id=uuid.UUID(record["alertId"]),
        event_id=uuid.UUID(record["eventId"]),
        best_constrained_alert_id=None if best_constrained is None else uuid.UUID(best_constrained),
        other_bands=tuple(OtherBand(**_unflat(OtherBand, one)) for one in record["otherBands"]),
        certified=_certified(record),
        parameters=posterior.parameters,
        samples=posterior.samples,
        summary=posterior.summary,
        covariance=posterior.covariance,
        network=None if network is None else _draws(network),
        fit=_fit(record["fit"], n, len(record["sources"])),
        mjd_tai=_unpack("mjdTai", curve["mjdTai"], "<f8", [n]),
        flux=_unpack("flux", curve["flux"], "<f4", [n]),
        sigma=_unpack("sigma", curve["sigma"], "<f4", [n]),
        source=_source_column(curve["source"], n, len(record["sources"])),
        sources=tuple(Source(**_unflat(Source, one)) for one in record["sources"]),
        rivals=tuple(_rival(one, n) for one in record["rivals"]),
        verdict=record["verdict"] and Verdict(**_unflat(Verdict, record["verdict"])),
        noise=record["noise"] and Noise(**_unflat(Noise, record["noise"])),
        **{name: record[_camel(name)] for name in _PLAIN},
    )


def _check(alert: Alert) -> None:
    """ValueError for what no reader could draw, sort or date; what may be unknown may be NaN."""
    for name in _NUMBERS:
        _check_finite(name, getattr(alert, name))
    for name in ("mjd_tai", "flux", "sigma"):
        _check_finite(name, getattr(alert, name))
    for entry in alert.summary:
        _check_finite(f"summary of {entry.name}", [getattr(entry, one) for one in QUANTILES])
    end = alert.window_start_mjd_tai + alert.window_days
    for name in (*_DATES, "mjd_tai"):
        _check_dates(name, getattr(alert, name))
    _check_dates("the window's end", end)
    for name in ("received_ms", "evaluated_ms", "created_ms"):
        if (ms := getattr(alert, name)) is not None:
            _check_dates(name, _MJD_1970 + ms / _DAY_MS)
    if not (alert.sigma > 0).all():
        raise ValueError("sigma is not above 0")
    for one in alert.sources:
        if not 0 < one.baseline_flux < math.inf:
            raise ValueError(f"baselineFlux of {one.source!r:.40} is not above 0")
    _check_lenses(alert)


def _check_lenses(alert: Alert) -> None:
    """ValueError for lenses of which there is no curve."""
    for draws in (alert.draws, alert.network):
        if draws is None:
            continue
        tE, rho = (
            draws.samples[:, draws.parameters.index(name)] for name in ("log10_tE", "log10_rho")
        )
        if not (np.abs(draws.samples) < _FAR).all() or (np.abs([tE, rho]) > _FAR_LOG10).any():
            raise ValueError("samples hold what is no lens")
    rho = alert.samples[:, alert.parameters.index("log10_rho")]
    if (rho > _LOG10_RHO).any():
        raise ValueError("samples hold sources of which there is no curve")
    best = alert.fit and alert.fit.best
    if best and not (
        abs(best.t0_mjd_tai) < math.inf
        and abs(best.u0) < _FAR
        and 0 < best.tE < math.inf
        and 0 < best.rho <= 10**_LOG10_RHO
    ):
        raise ValueError("the fit's best is no lens")


def _check_finite(name: str, values: ArrayLike) -> None:
    if not np.isfinite(values).all():
        raise ValueError(f"{name} is not finite")


def _check_dates(name: str, mjd: ArrayLike) -> None:
    first, last = _CALENDAR
    if not np.all((np.asarray(mjd) > first) & (np.asarray(mjd) < last)):
        raise ValueError(f"{name} is no date")


def _draws(record: Mapping[str, Any]) -> Draws:
    """Samples and what sums them up; ValueError where they contradict each other."""
    names = tuple(record["parameters"])
    samples = _unpack("samples", record["samples"], "<f4", record["shape"])
    if samples.ndim != 2 or samples.shape[1] != len(names):
        raise ValueError(f"samples of shape {samples.shape} for {len(names)} names")
    if missing := set(PARAMETERS) - set(names):
        raise ValueError(f"samples lack {', '.join(sorted(missing))}")
    if missing := set(UNITS) - {entry["name"] for entry in record["summary"]}:
        raise ValueError(f"summary lacks {', '.join(sorted(missing))}")
    covariance = np.array(record["covariance"]).reshape(3, 3)
    return Draws(names, samples, tuple(Interval(**one) for one in record["summary"]), covariance)


def _fit(record: Mapping[str, Any] | None, n: int, sources: int) -> FitQuality | None:
    if record is None:
        return None
    if not 0 <= record["mainSource"] < sources:
        raise ValueError(f"mainSource: {record['mainSource']} is none of the {sources} sources")
    best, left_out = Best(**_unflat(Best, record["best"])), tuple(record["leftOut"])
    if not all(0 <= row < n for row in left_out):
        raise ValueError(f"leftOut: {left_out!s:.40} are not all among the {n} epochs")
    return FitQuality(**_unflat(FitQuality, record) | {"best": best, "left_out": left_out})


def _rival(record: Mapping[str, Any], n: int) -> Rival:
    rival = Rival(**_unflat(Rival, record))
    if rival.curve is None:
        return rival
    return replace(rival, curve=_unpack("curve", record["curve"], "<f4", [n]))


def _source_column(column: bytes | None, n: int, sources: int) -> NDArray[np.int16] | None:
    """Index of each epoch's source; ValueError where there is no such source."""
    if column is None:
        return None
    found = _unpack("source", column, "<i2", [n])
    if n and not 0 <= int(found.min()) <= int(found.max()) < sources:
        raise ValueError(f"source: an epoch is of none of the {sources} sources")
    return found


def _certified(record: Mapping[str, Any]) -> CertifiedK | None:
    values = {name: record[key] for key, name in _CERTIFIED.items()}
    return None if None in values.values() else CertifiedK(**values)


def _pack(column: ArrayLike, dtype: str) -> bytes:
    return np.asarray(column, dtype).tobytes()


def _unpack(name: str, column: bytes, dtype: str, shape: list[int]) -> NDArray[Any]:
    size = np.dtype(dtype).itemsize
    if min(shape, default=-1) < 0 or len(column) != size * math.prod(shape):
        raise ValueError(f"{name}: {len(column)} bytes do not hold {shape} numbers of {size} bytes")
    return np.frombuffer(column, dtype).reshape(shape).astype(np.dtype(dtype).newbyteorder("="))
