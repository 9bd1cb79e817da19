"""The demo: a simulated archive through a Kafka broker, the filter and a subscriber.

Everything is the real thing, in one process: block messages, the embedded broker, the service with
its consumer group, the alert topic, a subscriber. Only the stars are made up, so that the truth is
known: most are constant, some are magnified.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from broker_filter.alerts.alert import Alert
from broker_filter.client.plot import plot_corner, plot_light_curve
from broker_filter.config import Batch, Kafka, MetricsSettings, Model, ScheduleSettings, Settings
from broker_filter.decode.native import encode_block
from broker_filter.inference.magnification import magnification
from broker_filter.inference.threads import use_one_thread
from broker_filter.inference.zoo import Entry
from broker_filter.kafka.sink import Sink
from broker_filter.observe.metrics import Metrics, configure_logging
from broker_filter.schemas import schema_header
from broker_filter.service.assembly import open_entry
from broker_filter.service.rehearsal import rehearse
from broker_filter.types import FloatArray, IntArray, Photometry

__all__ = ["Archive", "run"]

MJD_START, DAYS, CADENCE = 61_000.0, 30.0, 15 / 1440
SHARDS = 4
CATALOGUE_ERROR = 0.001
DETECTABLE_SNR = 12.0
MAX_FALSE_STARS = 1
FIGURES = 6
INPUT, ALERTS, DEAD = "demo-photometry", "demo-alerts", "demo-dead-letters"


@dataclass(frozen=True, slots=True)
class Truth:
    """The lens of one star; ``snr`` is the largest matched-filter value in any one window."""

    star: int
    t0: float
    u0: float
    tE: float  # noqa: N815  the field's own name for it
    rho: float
    f_s: float
    snr: float


class Archive:
    """A simulated archive: a season of exposures of one field, some stars magnified.

    Parameters
    ----------
    stars, injected : int
        Number of stars, and how many of them are magnified.
    seed : int
    prior : mapping
        ``low`` and ``high`` of the model's prior; tE is limited to 6 d and the peak must exceed 5
        sigma, as the gate of the training demands.
    window_days : float
    """

    def __init__(
        self, stars: int, injected: int, seed: int, prior: dict[str, Any], window_days: float
    ) -> None:
        rng = np.random.default_rng(seed)
        self._rng = rng
        self.times = _exposures(rng)
        self.star = np.arange(stars) + 1_000_000
        self.sigma = rng.uniform(0.001, 0.02, stars)
        self.flux = 10 ** rng.uniform(4.0, 6.0, stars)
        self.catalogue = self.flux * (1 + CATALOGUE_ERROR * rng.standard_normal(stars))
        chosen = rng.choice(stars, injected, replace=False)
        self.truth = {
            int(self.star[i]): _draw_lens(rng, int(self.star[i]), prior, self, i, window_days)
            for i in chosen
        }
        self._curves = np.ones((stars, len(self.times)), dtype=np.float32)
        for i in chosen:
            self._curves[i] = _curve(self.truth[int(self.star[i])], self.times)

    def exposures(self) -> Iterator[tuple[int, Photometry]]:
        """Blocks in order of time: the shard and its photometry of one exposure."""
        shard_of = self.star % SHARDS
        for k, mjd in enumerate(self.times):
            seen = self._rng.random(len(self.star)) > 0.05
            for shard in range(SHARDS):
                rows = np.flatnonzero(seen & (shard_of == shard))
                if len(rows):
                    yield shard, self._block(k, float(mjd), rows)

    def _block(self, k: int, mjd: float, rows: IntArray) -> Photometry:
        error = self.sigma[rows] * self.flux[rows]
        mean = self._curves[rows, k] * self.flux[rows]
        n = len(rows)
        return Photometry(
            survey="demo",
            band="F146",
            source="",
            star=self.star[rows].tolist(),
            mjd_tai=np.full(n, mjd),
            flux=mean + error * self._rng.standard_normal(n),
            flux_err=error,
            flags=np.zeros(n, dtype=np.uint32),
            ref_flux=self.catalogue[rows],
            ref_flux_err=CATALOGUE_ERROR * self.catalogue[rows],
        )


def run(args: argparse.Namespace) -> int:
    """Run the demo.

    Returns
    -------
    int
        0 where every detectable event was alerted and at most one constant star was; else 1.
    """
    began = time.monotonic()
    configure_logging("error", "text")
    use_one_thread()
    entry = open_entry(_settings("127.0.0.1:0", args.model))
    archive = Archive(
        args.stars, args.injected, args.seed, entry.config["prior"], entry.window_days
    )
    metrics = Metrics()
    alerts = rehearse(
        lambda address: _settings(address, args.model),
        entry,
        lambda sink: _publish(archive, sink),
        metrics,
        partitions=SHARDS,
    )
    summary = _summary(archive, alerts, metrics, entry, began)
    _report(args, archive, alerts, summary)
    good = summary["detectable_alerted"] == summary["detectable"]
    return 0 if good and summary["false_alert_stars"] <= MAX_FALSE_STARS else 1


def _settings(bootstrap_servers: str, model_id: str | None) -> Settings:
    return Settings(
        kafka=Kafka(
            bootstrap_servers=bootstrap_servers,
            group_id="demo",
            input_topics=(INPUT,),
            alert_topic=ALERTS,
            dead_letter_topic=DEAD,
            auto_offset_reset="earliest",
            commit_interval_s=0.25,
            session_timeout_ms=6000,
        ),
        model=Model() if model_id is None else Model(id=model_id),
        schedule=ScheduleSettings(every_days=0.25),
        batch=Batch(flush_windows=1024, max_wait_s=1.0),
        metrics=MetricsSettings(enabled=False),
    )


def _publish(archive: Archive, sink: Sink) -> None:
    header = schema_header("photometry_block")
    total = len(archive.times) * len(archive.star)
    with tqdm(total=total, unit="epoch", unit_scale=True, disable=None) as bar:
        for shard, block in archive.exposures():
            sink.produce(INPUT, None, encode_block(block), (header,), shard)
            bar.update(len(block))


def _summary(
    archive: Archive, alerts: list[Alert], metrics: Metrics, entry: Entry, began: float
) -> dict[str, Any]:
    alerted = {int(alert.star_id) for alert in alerts}
    detectable = {star for star, lens in archive.truth.items() if lens.snr >= DETECTABLE_SNR}
    return {
        "stars": len(archive.star),
        "epochs": int(metrics.value("points_inserted_total", outcome="inserted")),
        "injected": len(archive.truth),
        "detectable": len(detectable),
        "detectable_alerted": len(detectable & alerted),
        "injected_alerted": len(alerted & set(archive.truth)),
        "false_alert_stars": len(alerted - set(archive.truth)),
        "alerts": len(alerts),
        "windows_evaluated": int(metrics.value("log_bayes_factor")),
        "dead_letters": int(metrics.total("records_dead_total")),
        "seconds": round(time.monotonic() - began, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "model_id": entry.model_id,
        "log10_k_threshold": entry.threshold,
    }


def _report(
    args: argparse.Namespace, archive: Archive, alerts: list[Alert], summary: dict[str, Any]
) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary, indent=1)
    (args.out / "summary.json").write_text(text + "\n")
    latest = _latest(alerts)
    if not args.no_plots:
        _plot(latest, args.out)
    if args.json:
        sys.stdout.write(text + "\n")
        return
    sys.stdout.write(_table(archive, latest))
    sys.stdout.write(
        f"\n{summary['detectable_alerted']} of {summary['detectable']} detectable events alerted"
        f" ({summary['injected_alerted']} of all {summary['injected']}),"
        f" {summary['false_alert_stars']} of {summary['stars'] - summary['injected']} constant"
        f" stars; {summary['epochs']:,} epochs, {summary['alerts']} alerts in"
        f" {summary['seconds']} s, {summary['peak_rss_mb']} MB; see {args.out}/\n"
    )


def _latest(alerts: list[Alert]) -> list[Alert]:
    """The last alert of each star that told of an event, in order of falling K."""
    latest = {int(a.star_id): a for a in alerts if a.state in ("new", "update")}
    return sorted(latest.values(), key=lambda alert: -alert.log10_k)


def _table(archive: Archive, latest: list[Alert]) -> str:
    """One line a star: log10 K, and t0, tE, rho with 68 % intervals beside the truth."""
    head = f"{'star':>8} {'log10 K':>8} {'t0 (MJD)':>26} {'tE (d)':>22} {'rho':>22} {'S/N':>7}\n"
    found = {int(alert.star_id): alert for alert in latest}
    missed = [star for star in archive.truth if star not in found]
    return head + "".join(
        _row(archive.truth.get(star), found.get(star), star) for star in [*found, *missed]
    )


def _row(truth: Truth | None, alert: Alert | None, star: int) -> str:
    def cell(name: str, width: int) -> str:
        true = "  none" if truth is None else f"{getattr(truth, name):.5g}"
        if name == "t0" and truth is not None:
            true = f"{truth.t0:.2f}"
        if alert is None:
            return f"{'- = ' + true:>{width}}"
        value = alert.interval(name)
        digits = 2 if name == "t0" else 3
        half = (value.p84 - value.p16) / 2
        return f"{f'{value.median:.{digits}f} ± {half:.{digits}f} = {true}':>{width}}"

    log10_k = "-" if alert is None else f"{alert.log10_k:.1f}"
    snr = "-" if truth is None else f"{truth.snr:.0f}"
    return f"{star:>8} {log10_k:>8} {cell('t0', 26)} {cell('tE', 22)} {cell('rho', 22)} {snr:>7}\n"


def _plot(latest: list[Alert], out: Path) -> None:
    for alert in tqdm(latest[:FIGURES], disable=None, desc="figures", unit="star"):
        plot_light_curve(alert, out / f"{alert.star_id}-light-curve.png")
        plot_corner(alert, out / f"{alert.star_id}-corner.png")


def _exposures(rng: np.random.Generator) -> FloatArray:
    """Times of the season's exposures: every 15 minutes, with one long gap and some short ones."""
    offset = np.arange(0, DAYS, CADENCE)
    kept = np.ones(len(offset), dtype=bool)
    for length in (2.0, 0.5, 0.5, 0.25):
        start = rng.uniform(3, DAYS - 3)
        kept &= (offset < start) | (offset > start + length)
    return MJD_START + offset[kept]


def _draw_lens(
    rng: np.random.Generator,
    star: int,
    prior: dict[str, Any],
    archive: Archive,
    row: int,
    window_days: float,
) -> Truth:
    """Draw from the prior until the peak is bright enough, as in the gate of the training."""
    low, high = np.array(prior["low"]), np.array(prior["high"])
    high[2] = min(high[2], np.log10(6.0))
    while True:
        _, u0, log10_tE, log10_rho, f_s = low + (high - low) * rng.random(5)
        t0 = MJD_START + rng.uniform(0, DAYS)
        lens = Truth(star, t0, u0, 10**log10_tE, 10**log10_rho, f_s, 0.0)
        peak = float(magnification(np.array([u0]), lens.rho)[0]) - 1
        near = np.abs(archive.times - t0) < 1.5 * lens.tE
        if peak > 5 * archive.sigma[row] and near.sum() >= 5:
            snr = _largest_snr(_curve(lens, archive.times), archive, row, window_days)
            return Truth(star, t0, u0, lens.tE, lens.rho, f_s, snr)


def _curve(lens: Truth, times: FloatArray) -> NDArray[np.float32]:
    u = np.hypot(lens.u0, (times - lens.t0) / lens.tE)
    return (1 + lens.f_s * (magnification(u, lens.rho) - 1)).astype(np.float32)


def _largest_snr(
    curve: NDArray[np.float32], archive: Archive, row: int, window_days: float
) -> float:
    """Largest matched-filter signal-to-noise in any of the windows of the star."""
    step = window_days / 4
    squares = ((curve - 1) / archive.sigma[row]) ** 2
    anchors = np.unique(np.floor(archive.times / step)) * step
    inside = [
        squares[(archive.times >= a - 3 * step) & (archive.times < a + step)] for a in anchors
    ]
    return float(np.sqrt(max(part.sum() for part in inside)))
