"""The page's HTML: templates that escape all they are given, and the words beside the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from broker_filter.alerts.alert import Alert, mjd_to_datetime
from broker_filter.observe.text import printable

__all__ = ["ASSETS", "describe", "links", "render"]

ASSETS: Final = Path(__file__).parent / "assets"
UNKNOWN: Final = "–"


@cache
def _templates() -> Environment:
    found = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    found.filters |= {"number": _number, "shown": printable, "date": _date, "when": _when}
    return found


def render(template: str, **values: Any) -> str:  # noqa: ANN401  what the template names
    """Fill a template; everything in it is escaped."""
    return _templates().get_template(template).render(values)


def _number(value: float | None, digits: int = 2) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.{digits}f}".replace("-", "−")


def _date(mjd: float) -> str:
    """Calendar date and minute of an MJD, on its own clock."""
    try:
        return mjd_to_datetime(mjd).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError):
        return UNKNOWN


def _when(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def links(alert: Alert) -> Mapping[str, str]:
    """Where else the star's place can be looked up, by name."""
    if alert.ra is None or alert.dec is None:
        return {}
    place = f"{alert.ra:.6f} {alert.dec:+.6f}"
    found = {
        "SIMBAD": "https://simbad.cds.unistra.fr/simbad/sim-coo?"
        + urlencode({"Coord": place, "Radius": 5, "Radius.unit": "arcsec"}),
        "Aladin": "https://aladin.cds.unistra.fr/AladinLite/?"
        + urlencode({"target": place, "fov": 0.05}),
        "VizieR": "https://vizier.cds.unistra.fr/viz-bin/VizieR?"
        + urlencode({"-c": place, "-c.rs": 5}),
    }
    if alert.survey.lower().startswith("ztf"):
        circle = f"CIRCLE {alert.ra:.6f} {alert.dec:.6f} 0.0006"
        found["ZTF light curves"] = (
            "https://irsa.ipac.caltech.edu/cgi-bin/ZTF/nph_light_curves?"
            + urlencode({"POS": circle, "FORMAT": "html"})
        )
    return found


def describe(alert: Alert, alerts: int) -> Mapping[str, str]:
    """What each figure shows, for who does not see it."""
    tE, t0 = alert.interval("tE"), alert.interval("t0")
    now = "" if alert.magnitude_now is None else f" It is at {alert.magnitude_now:.2f} mag now."
    certified = alert.certified
    other = "" if certified is None else f", certified {certified.log10_k:.2f}"
    kind = "a fit" if alert.fit is not None else "the network"
    return {
        "light_curve": (
            f"{alert.n_epochs} epochs of {max(1, len(alert.sources))} source(s) from"
            f" {_date(alert.first_epoch_mjd_tai)} to {_date(alert.last_epoch_mjd_tai)} TAI, with"
            f" the curve of a lens that peaks at MJD {t0.median:.3f} ({_date(t0.median)}) and has"
            f" an Einstein time of {tE.median:.3g} days.{now}"
        ),
        "history": (
            f"{alerts} alert(s) of this event. The newest has log10 K {alert.log10_k:.2f}{other};"
            f" the threshold is {alert.log10_k_threshold:.2f}."
        ),
        "corner": (
            f"{len(alert.samples)} samples of {kind}: each parameter as a histogram, and each"
            " pair with the cells that hold 68 and 95 % of them. The table has the intervals."
        ),
    }
