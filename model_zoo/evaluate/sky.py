"""The filter on labelled stars of the real sky: what alerts, and what it is called.

Each star goes through the service's own path, from its epochs in the order in which they happened
to the alerts, with default settings. `broker_filter` reads its files as ``replay`` does.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from scipy.stats import chi2

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.certifications import Certification
from broker_filter.alerts.verdict import LENSES, VERDICTS
from broker_filter.config import AlertSettings, Settings
from broker_filter.errors import BrokerFilterError, ConfigError
from broker_filter.inference.scorer import Scored, Scorer
from broker_filter.inference.zoo import Entry
from broker_filter.observe.metrics import Metrics
from broker_filter.observe.text import aligned_table
from broker_filter.replay.lightcurves.file import read_lightcurve
from broker_filter.replay.lightcurves.stream import LightCurves, load
from broker_filter.service.watched import watched_pipeline
from broker_filter.types import (
    ALL_BANDS,
    Fit,
    Message,
    NotFitted,
    Photometry,
    StarEpochs,
    WindowBatch,
)
from model_zoo.evaluate.labels import LabelledStar
from model_zoo.evaluate.measure.cuts import CUTS
from model_zoo.evaluate.measure.point_lens import GOOD_CHI2, LEAST_DELTA_CHI2, point_lens_of
from model_zoo.evaluate.measure.wavelet import Wavelet, find_wavelet
from model_zoo.evaluate.measure.window_cuts import WindowCuts

__all__ = [
    "AlertRecord",
    "Filter",
    "StarRecord",
    "WindowRecord",
    "evaluate_sky",
    "read_causes",
    "read_star",
    "sky_table",
    "summary",
]

EVENT: Final = "microlensing"
QUIET: Final = "quiet"
FAR: Final = 5.0
"""Einstein times and, on top, one window from the peak, beyond which the star of an event is quiet.
"""
CAUSES: Final = Path(__file__).parent / "sky_causes.csv"
"""False alarms that were looked at by eye, and what they come from."""
TRIGGER: Final = AlertSettings().trigger_log10_k
YEAR: Final = 365.25
GAP_DAYS: Final = 20.0
TOPIC: Final = "sky"
WAVELET_EVERY: Final = 40
"""One window in so many is shown to the detector by wavelets, which takes longer than all else."""


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
    """

    star: LabelledStar
    years: float = 0.0
    windows: list[WindowRecord] = field(default_factory=list)
    alerts: list[AlertRecord] = field(default_factory=list)
    problem: str = ""


class _Watch:
    """Stands in for a scorer and notes its results.

    Parameters
    ----------
    scorer : Scorer
    cuts : callable
        Names of the cuts that a window passes.
    wavelet : callable, optional
        Whether a window has a peak.
    """

    def __init__(self, scorer: Scorer, cuts: WindowCuts, wavelet: Wavelet | None) -> None:
        self._scorer, self._cuts, self._wavelet = scorer, cuts, wavelet
        self.windows: dict[tuple[str, float], WindowRecord] = {}
        self._looks: Counter[tuple[str, float]] = Counter()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever a scorer has
        return getattr(self._scorer, name)

    def clear(self) -> None:
        self.windows = {}
        self._looks.clear()

    def score(self, batch: WindowBatch) -> Scored:
        scored = self._scorer.score(batch)
        for row, log10_k in enumerate(scored.log10_k.tolist()):
            last = float(batch.mjd_tai[row, batch.n[row] - 1])
            self.windows[batch.band[row], last] = self._record(batch, row, last, log10_k)
        return scored

    def _record(self, batch: WindowBatch, row: int, last: float, log10_k: float) -> WindowRecord:
        lens = point_lens_of(batch, row)
        shown = len(self.windows) % WAVELET_EVERY == 0
        return WindowRecord(
            last,
            log10_k,
            cuts=self._cuts(batch, row),
            point_lens=(round(lens.delta_chi2, 2), round(lens.chi2, 4)),
            wavelet=self._wavelet(batch, row) if shown and self._wavelet else None,
        )

    def fit(
        self,
        epochs: StarEpochs,
        t_start: float,
        *window: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> Fit | NotFitted:
        fit = self._scorer.fit(epochs, t_start, *window, **options)
        if isinstance(fit, Fit) and not options.get("whole_event"):
            band, last = epochs.sources[0][0], float(epochs.mjd_tai[-1])
            if (ALL_BANDS, last) in self.windows:  # of all bands, the first of which may change
                band = ALL_BANDS
            self._looks[band, t_start] += 1
            j = self._looks[band, t_start]
            key = band, last
            family, white = (
                Certification(t_start, j, 0.0, k.log10_k, 0.0, 1.0).charged
                for k in (fit.robust or fit, fit)
            )
            if key in self.windows:
                self.windows[key] = replace(self.windows[key], certified=family, white=white)
        return fit


class Filter:
    """The service's two halves in one thread; each star has a partition of its own.

    Parameters
    ----------
    entry : Entry
    every_days : float
        Days between two evaluations of a star.
    """

    def __init__(self, entry: Entry, *, every_days: float = 1.0) -> None:
        settings = Settings.model_validate(
            {
                "kafka": {"bootstrap_servers": "localhost:9092", "input_topics": [TOPIC]},
                "schedule": {"every_days": every_days},
                "model": {"id": entry.model_id, "threads": 1, "cascade": False},
                "batch": {"chunk": 1},
            }
        )
        wavelet = find_wavelet(entry.window_days)
        watch = partial(_Watch, cuts=WindowCuts(entry), wavelet=wavelet)
        self._pipeline, self._watch = watched_pipeline(settings, entry, Metrics(), watch)
        self._stars = 0

    def __call__(self, star: LabelledStar, parts: Sequence[Photometry]) -> StarRecord:
        """Send the epochs of one star through the filter."""
        self._watch.clear()
        records = LightCurves(parts, epochs_per_message=1).read(lambda _: None)
        alerts: list[AlertRecord] = []
        for offset, record in enumerate(records):
            message = Message(
                *(TOPIC, self._stars, offset, record.key, record.value), headers=record.headers
            )
            out = self._pipeline.step([message], float(offset), flush=True)
            alerts += map(AlertRecord.of, out.alerts)
        self._stars += 1
        return StarRecord(star, _years(parts), list(self._watch.windows.values()), alerts)


def _years(parts: Sequence[Photometry]) -> float:
    t = np.sort(np.concatenate([part.mjd_tai for part in parts]))
    step = np.diff(t)
    return float(step[step < GAP_DAYS].sum()) / YEAR


def read_star(folder: Path, star: LabelledStar) -> list[Photometry]:
    """The photometry of all files of a star.

    Raises
    ------
    ConfigError
        A file is missing or cannot be read.
    """
    parts: list[Photometry] = []
    for path, band in star.files:
        read = partial(read_lightcurve, star=star.name, band=band or None, survey=star.survey)
        with tempfile.TemporaryDirectory() as unpacked:
            curves, problems = load([_file(folder, path, Path(unpacked))], read)
        if problems:
            raise ConfigError(f"{star.name}: {problems[0]}")
        parts += [part for curve in curves for part in curve.parts]
    return parts


def _file(folder: Path, path: str, unpacked: Path) -> Path:
    """A file under the folder, or a member of an archive, unpacked."""
    archive, dot_zip, member = path.partition(".zip/")
    if not dot_zip:
        return folder / path
    try:
        with zipfile.ZipFile(folder / f"{archive}.zip") as opened:
            target = unpacked / Path(member).name
            target.write_bytes(opened.read(member))
            return target
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def evaluate_sky(
    filter_star: Filter, folder: Path, stars: Iterable[LabelledStar], out: Path
) -> list[StarRecord]:
    """Send stars through the filter; each is written to ``out`` (JSON lines) as it is done.

    Stars that are there from an earlier run are not sent again.
    """
    done = {one.star.name: one for one in _earlier(out)}
    out.parent.mkdir(parents=True, exist_ok=True)
    records = []
    for star in stars:
        if star.name in done:
            records.append(done[star.name])
            continue
        try:
            record = filter_star(star, read_star(folder, star))
        except BrokerFilterError as error:
            record = StarRecord(star, problem=str(error))
        records.append(record)
        with out.open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")
    return records


def read_causes(path: Path = CAUSES) -> list[dict[str, str]]:
    """A table of false alarms: star, mjd, log10_k, verdict and cause, all as text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _earlier(path: Path) -> list[StarRecord]:
    if not path.exists():
        return []
    return [_record(json.loads(line)) for line in path.read_text().splitlines()]


def _record(said: Mapping[str, Any]) -> StarRecord:
    star = dict(said["star"])
    star["files"] = tuple(tuple(one) for one in star["files"])
    return StarRecord(
        LabelledStar(**star),
        said["years"],
        [_window(one) for one in said["windows"]],
        [AlertRecord(**one) for one in said["alerts"]],
        said["problem"],
    )


def _window(said: Mapping[str, Any]) -> WindowRecord:
    lens = said.get("point_lens")
    return WindowRecord(
        **{**said, "cuts": tuple(said["cuts"]), "point_lens": lens and (lens[0], lens[1])}
    )


def summary(
    records: Sequence[StarRecord],
    window_days: float,
    threshold: float,
    causes: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """What sky.json holds.

    Parameters
    ----------
    records : sequence of StarRecord
    window_days : float
        Length of a window.
    threshold : float
        log10 K of the network from which on a window would alert by the network alone.
    causes : sequence of mapping
        Rows of `read_causes`.
    """
    stars = {one.star.name: one.star for one in records}
    groups: defaultdict[tuple[str, str], list[StarRecord]] = defaultdict(list)
    for one in records:
        if one.problem:
            continue
        for kind, part in _by_class(one, window_days):
            groups[kind, one.star.survey].append(part)
    return {
        "stars": len(records),
        "classes": [
            _class_row(kind, survey, part, threshold)
            for (kind, survey), part in sorted(groups.items())
        ],
        "events": [
            _event_row(one, window_days)
            for one in records
            if one.star.kind == EVENT and one.star.t0 is not None and not one.problem
        ],
        "looked_at": [
            {**row, "class": stars[row["star"]].kind} for row in causes if row["star"] in stars
        ],
        "unreadable": [
            {"name": one.star.name, "problem": one.problem} for one in records if one.problem
        ],
    }


def _by_class(one: StarRecord, window_days: float) -> list[tuple[str, StarRecord]]:
    """The star under its class; that of an event of known length far from it as a quiet one."""
    star = one.star
    if star.kind != EVENT or star.t0 is None or star.tE is None:
        return [(star.kind, one)]
    far = FAR * star.tE + window_days

    def part(*, near: bool) -> StarRecord:
        def kept(mjd: float) -> bool:
            return (abs(mjd - cast("float", star.t0)) <= far) == near

        windows = [w for w in one.windows if kept(w.last)]
        share = len(windows) / max(len(one.windows), 1)
        alerts = [a for a in one.alerts if kept(a.mjd)]
        return StarRecord(star, one.years * share, windows, alerts)

    return [(EVENT, part(near=True)), (QUIET, part(near=False))]


def _class_row(
    kind: str, survey: str, records: Sequence[StarRecord], threshold: float
) -> dict[str, Any]:
    windows = [window for one in records for window in one.windows]
    certified, white = (
        [k for k in (getattr(w, name) for w in windows) if k is not None]
        for name in ("certified", "white")
    )
    alerts = [alert for one in records for alert in one.alerts]
    years = sum(one.years for one in records)
    events = sum(len({alert.event for alert in one.alerts}) for one in records)
    return {
        "class": kind,
        "survey": survey,
        "stars": len(records),
        "windows": len(windows),
        "star_years": round(years, 3),
        "triggered": sum(window.network >= TRIGGER for window in windows),
        "network_above": sum(window.network >= threshold for window in windows),
        "certified_above_3": sum(k > 3 for k in certified),
        "certified_above_6_6": sum(k > 6.6 for k in certified),
        "highest_certified": round(max(certified), 2) if certified else None,
        "white_above_3": sum(k > 3 for k in white),
        "cuts": {name: sum(name in w.cuts for w in windows) for name in CUTS},
        "searches": _searches(windows),
        "events": events,
        "events_per_star_year": round(events / years, 4) if years else None,
        "events_per_star_year_below": round(_upper_limit(events) / years, 4) if years else None,
        "verdicts": dict(sorted(Counter(alert.verdict for alert in alerts).items())),
        "stars_with_verdict_microlensing": sum(
            any(alert.verdict in LENSES for alert in one.alerts) for one in records
        ),
    }


def _searches(windows: Sequence[WindowRecord]) -> dict[str, dict[str, int]]:
    """How many windows other searches pass, of those that were shown to them."""
    lenses = [w.point_lens for w in windows if w.point_lens is not None]
    above = [chi2 for delta_chi2, chi2 in lenses if delta_chi2 >= LEAST_DELTA_CHI2]
    peaks = [w.wavelet for w in windows if w.wavelet is not None]
    return {
        "point_lens": {"passed": len(above), "of": len(lenses)},
        "good_point_lens": {"passed": sum(c <= GOOD_CHI2 for c in above), "of": len(lenses)},
        "microwavelet": {"passed": sum(peaks), "of": len(peaks)},
    }


def _upper_limit(count: int, confidence: float = 0.95) -> float:
    """Of a Poisson mean."""
    return float(chi2.ppf(confidence, 2 * count + 2) / 2)


def _event_row(one: StarRecord, window_days: float) -> dict[str, Any]:
    """What the filter found of one published event; its verdict is that of the last alert."""
    star = one.star
    far = math.inf if star.tE is None else FAR * star.tE + window_days
    near = [a for a in one.alerts if abs(a.mjd - (star.t0 or 0.0)) <= far]
    said = [a for a in near if a.verdict != "none"]
    last = said[-1] if said else None
    return {
        "name": star.name,
        "survey": star.survey,
        "found": bool(near),
        "first_alert_mjd": near[0].mjd if near else None,
        "t0": last and last.t0[1],
        "t0_p16": last and last.t0[0],
        "t0_p84": last and last.t0[2],
        "tE": last and last.tE,
        "published_t0": star.t0,
        "published_tE": star.tE,
        "verdict": last.verdict if last else "none",
        "verdicts": dict(Counter(alert.verdict for alert in near)),
    }


def sky_table(found: Mapping[str, Any]) -> str:
    """The classes of sky.json and their verdicts, for a terminal."""
    head = ("class", "survey", "stars", "windows", "network", "K > 3", *VERDICTS)
    rows = (
        (
            *(row["class"], row["survey"], str(row["stars"]), str(row["windows"])),
            *(str(row["network_above"]), str(row["certified_above_3"])),
            *(str(row["verdicts"].get(name, 0)) for name in VERDICTS),
        )
        for row in found["classes"]
    )
    return aligned_table(head, rows)
