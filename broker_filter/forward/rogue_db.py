"""rogue_db, the event database of the Roman microlensing team (github.com/rges-pit/rogue_db).

It takes a folder of JSON files, one an alert, by its own command ``ingest_alerts``; so that folder
is the target. A file has the alert's number as its name and appears whole or not at all, so a
second hand-over of the same alert changes nothing.

The file is a packet as rogue_db's serializer of alerts wants it. All that it does not read is kept
by it in ``alert_contents``; there the fields of its tables RGESAlert and RogueTarget stand ready,
filled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.verdict import LENSES
from broker_filter.alerts.words import in_words
from broker_filter.errors import ConfigError, PoisonMessage, TransientError
from broker_filter.forward.model_fields import chi2_gain, jd_utc, lens, target_fields
from broker_filter.forward.target import Options
from broker_filter.observe.text import printable
from broker_filter.photometry.magnitudes import AB_ZERO_POINT
from broker_filter.schemas import software_version

__all__ = ["RogueDb", "alert_number", "packet", "rges_alert"]

BANDS: Final = ("F087", "F146", "F213")
MAIN_BAND: Final = "F146"
ZERO_POINT: Final = 25.0
"""Magnitude of flux 1 in rogue_db."""
_CLASSES: Final = {
    "microlensing": "Microlensing",
    "anomalous-lens": "Microlensing",
    "flare": "Flare",
    "outburst": "Variable star",
    "variable": "Variable star",
    "artefact": "Other",
}
LONGEST_NAME: Final = 49
"""Its events are called star_number, in 60 characters."""
LARGEST_CHI2: Final = 9_999_999.0
FREE_FLOATING_DAYS: Final = 2.0
"""Longest Einstein time of a candidate for a free-floating planet."""


def alert_number(alert: Alert) -> int:
    """A number for rogue_db's column of 31 bits, which holds no UUID."""
    return alert.alert_id.int >> (128 - 31)


def packet(alert: Alert) -> dict[str, Any]:
    """The packet of an alert, light curve included.

    Raises
    ------
    PoisonMessage
        ``not_roman``, ``no_magnitudes``, ``long_name``, ``no_position`` or ``no_epoch``: rogue_db's
        command would break off at it.
    """
    _check(alert)
    model = lens(alert)
    number = alert_number(alert)
    return {
        "id": str(number),
        "objname": printable(alert.star_id, 100),
        "ra": alert.ra,
        "dec": alert.dec,
        "metadata": {
            "t0lens1": model["t0"],
            "u0lens1": model["u0"],
            "tE_ref": model["tE"],
            "rho": model["rho"],
            "Source_F146": alert.source_magnitude,
            "EventID": float(alert.event_id.int >> (128 - 31)),
        },
        "light_curves": _light_curves(alert),
        "rges_alert": rges_alert(alert),
        "rogue_target": target_fields(alert),
        "alertId": str(alert.alert_id),
        "eventId": str(alert.event_id),
        "state": alert.state,
        "classifier": printable(f"broker-filter {software_version()} {alert.model_id}", 200),
    }


def rges_alert(alert: Alert) -> dict[str, Any]:
    """The fields of rogue_db's table RGESAlert, within its limits."""
    model, gain = lens(alert), chi2_gain(alert)
    verdict = "" if alert.verdict is None else alert.verdict.verdict
    magnitudes = {"peak": alert.magnitude_peak, "baseline": alert.baseline_magnitude}
    return {
        "alert_id": alert_number(alert),
        "roman_id": printable(alert.star_id, 100),
        "ra": alert.ra,
        "dec": alert.dec,
        "alert_neural_network_confidence": round(100 * _lens_probability(alert), 1),
        "alert_delta_chi2": None if gain is None else round(min(gain, LARGEST_CHI2), 3),
        "alert_classification": _CLASSES.get(verdict, "Unknown"),
        "ffp_candidate": model["tE"] < FREE_FLOATING_DAYS,
        "alert_origin": "neural network",
        "alert_notes": printable(in_words(alert)),
        "alert_t0": round(model["t0"], 5),
        "alert_tE": round(model["tE"], 5),
        "alert_u0": round(model["u0"], 6),
        "alert_rho": round(min(model["rho"], 99.0), 4),
        **{
            f"alert_{name}_mag": None if value is None else round(value, 3)
            for name, value in magnitudes.items()
        },
        "alert_mag_passband": alert.magnitude_band[:15],
        "alert_timestamp": datetime.fromtimestamp(alert.created_ms / 1000, UTC).isoformat(),
    }


def _lens_probability(alert: Alert) -> float:
    """That it is a lens at all: against noise, and where there is a verdict against all else."""
    if alert.verdict is None:
        return alert.p_event
    classes = alert.verdict.probabilities
    return min(1.0, sum(classes.get(name, 0.0) for name in LENSES))


def _check(alert: Alert) -> None:
    if alert.band != MAIN_BAND:
        raise PoisonMessage("not_roman", f"rogue_db needs band {MAIN_BAND}, not {alert.band}")
    if alert.source_magnitude is None:
        raise PoisonMessage("no_magnitudes", "rogue_db needs the source's magnitude")
    if len(str(alert.star_id)) > LONGEST_NAME:
        raise PoisonMessage("long_name", f"rogue_db takes {LONGEST_NAME} characters of a name")
    if alert.ra is None or alert.dec is None:
        raise PoisonMessage("no_position", "rogue_db needs right ascension and declination")
    t0, tE = alert.interval("t0").median, alert.interval("tE").median
    if not (np.abs(alert.mjd_tai - t0) < 2 * tE).any():
        raise PoisonMessage(
            "no_epoch", f"rogue_db needs an epoch of {MAIN_BAND} within two tE of the peak"
        )


def _light_curves(alert: Alert) -> dict[str, dict[str, list[float]]]:
    """Time (JD UTC), flux and error by band, scaled to rogue_db's zero point."""
    level = np.full(alert.n_epochs, alert.baseline_flux or 1.0)
    band = np.full(alert.n_epochs, alert.band, dtype=object)
    if alert.source is not None:
        level = np.array([one.baseline_flux for one in alert.sources])[alert.source]
        band = np.array([one.band for one in alert.sources], dtype=object)[alert.source]
    unit = level * 10 ** (0.4 * (ZERO_POINT - AB_ZERO_POINT))
    columns = {
        "time": jd_utc(alert.mjd_tai),
        "flux": alert.flux * unit,
        "flux_err": alert.sigma * unit,
    }
    return {
        one: {name: values[band == one].tolist() for name, values in columns.items()}
        for one in BANDS
    }


@dataclass(frozen=True, slots=True)
class RogueDb:
    """The folder that rogue_db's ``ingest_alerts`` reads."""

    options: Options

    def __post_init__(self) -> None:
        self.options.need("url")
        if not self.options.folder.is_dir():
            raise ConfigError(f"--url {self.options.url}: there is no such folder")

    def send(self, alert: Alert, _earlier: Sequence[str] = ()) -> str:
        """See `Target.send`."""
        text = json.dumps(packet(alert), allow_nan=False)
        path = self.options.folder / f"{alert.alert_id}.json"
        part = path.with_suffix(".part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise TransientError(f"{part}: cannot be written: {error.strerror}") from error
        return path.name

    def close(self) -> None:
        """See `Target.close`."""
