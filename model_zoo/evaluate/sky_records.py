"""What is kept of labelled stars that went through the filter, one line of JSON a star."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from broker_filter.alerts.alert import Alert
from model_zoo.evaluate.labels import LabelledStar
from model_zoo.json_lines import append_line, read_lines

__all__ = ["AlertRecord", "StarRecord", "WindowRecord", "append_record", "read_records"]


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """One evaluated window.

    Parameters
    ----------
    last : float, MJD TAI
        Its last epoch.
    network : float
        log10 K.
    certified, white : float or None
        The same of its fit if it had one, after the charge for looks: of the family of noise, and
        of white noise.
    cuts : tuple of str
        The hard cuts that it passes.
    point_lens : (float, float) or None
        Delta chi2 of the best point lens against a constant star, and chi2 per degree of freedom
        of that lens; None where an older record did not measure it.
    wavelet : bool or None
        Whether MicroWavelet has a peak in it; None where it was not shown to it.
    """

    last: float
    network: float
    certified: float | None = None
    white: float | None = None
    cuts: tuple[str, ...] = ()
    point_lens: tuple[float, float] | None = None
    wavelet: bool | None = None


@dataclass(frozen=True, slots=True)
class AlertRecord:
    """What is kept of an alert."""

    mjd: float
    event: str
    state: str
    log10_k: float
    verdict: str
    reason: str
    probabilities: Mapping[str, float]
    rivals: Mapping[str, float]
    t0: tuple[float, float, float]
    tE: float  # noqa: N815  the field's own name for it

    @classmethod
    def of(cls, alert: Alert) -> AlertRecord:
        """From an alert; without a verdict it is "none"."""
        t0, said = alert.interval("t0"), alert.verdict
        return cls(
            alert.last_epoch_mjd_tai,
            str(alert.event_id),
            alert.state,
            alert.log10_k,
            "none" if said is None else said.verdict,
            "" if said is None else said.reason,
            {} if said is None else dict(said.probabilities),
            {rival.name: rival.log10_k for rival in alert.rivals},
            (t0.p16, t0.median, t0.p84),
            alert.interval("tE").median,
        )


@dataclass(frozen=True, slots=True)
class StarRecord:
    """What came of one star.

    Parameters
    ----------
    star : LabelledStar
    years : float
        In which it was observed.
    windows : list of WindowRecord
    alerts : list of AlertRecord
    problem : str
        Why its files could not be read; empty where they could.
    entry : str
        sha256 of the entry that it went through; empty where an older record does not say it.
    every_days : float or None
        Days between two evaluations; None where an older record does not say it.
    photometry : str
        sha256 of what its files held; empty where an older record does not say it.
    """

    star: LabelledStar
    years: float = 0.0
    windows: list[WindowRecord] = field(default_factory=list)
    alerts: list[AlertRecord] = field(default_factory=list)
    problem: str = ""
    entry: str = ""
    every_days: float | None = None
    photometry: str = ""


def append_record(path: Path, record: StarRecord) -> None:
    """Add a star to a file, as `append_line` does."""
    append_line(path, asdict(record))


def read_records(path: Path) -> list[StarRecord]:
    """The stars of a file, as `read_lines` gives them."""
    return [_record(said) for said in read_lines(path)]


def _record(said: Mapping[str, Any]) -> StarRecord:
    star = dict(said["star"])
    star["files"] = tuple(tuple(one) for one in star["files"])
    return StarRecord(
        LabelledStar(**star),
        said["years"],
        [_window(one) for one in said["windows"]],
        [AlertRecord(**one) for one in said["alerts"]],
        said["problem"],
        said.get("entry", ""),
        said.get("every_days"),
        said.get("photometry", ""),
    )


def _window(said: Mapping[str, Any]) -> WindowRecord:
    lens = said.get("point_lens")
    return WindowRecord(
        **{**said, "cuts": tuple(said["cuts"]), "point_lens": lens and (lens[0], lens[1])}
    )
