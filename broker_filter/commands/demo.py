"""The demo: a simulated archive through a Kafka broker, the filter and a subscriber.

Everything is the real thing, in one process: block messages, the embedded broker, the service with
its consumer group, the alert topic, a subscriber. Only the stars are made up, so that the truth is
known: most are constant, some are magnified.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.threshold import CERTIFIED_THRESHOLD
from broker_filter.client.corner import plot_corner
from broker_filter.client.plot import plot_light_curve
from broker_filter.client.save import avro_files
from broker_filter.commands.demo_archive import SHARDS, SURVEY, MadeUpField, Truth
from broker_filter.commands.demo_progress import Progress
from broker_filter.commands.demo_verdict import expected_false_stars, most_false_stars
from broker_filter.config import (
    AlertSettings,
    Batch,
    Kafka,
    MetricsSettings,
    Model,
    NoiseSettings,
    ScheduleSettings,
    Settings,
    SurveyNoise,
)
from broker_filter.decode.native import encode_block
from broker_filter.errors import ConfigError
from broker_filter.inference.threads import use_one_thread
from broker_filter.inference.zoo import Entry
from broker_filter.kafka.sink import Sink
from broker_filter.observe.logs import configure_logging
from broker_filter.observe.metrics import Metrics
from broker_filter.observe.text import aligned_table
from broker_filter.schemas import schema_header
from broker_filter.service.assembly import open_entry
from broker_filter.service.rehearsal import rehearse
from broker_filter.service.signals import stop_on_signals

__all__ = ["run"]

DETECTABLE_SNR = 12.0
WHITE = SurveyNoise(error_scale=(0.85, 1.25), red_noise=0.05)
"""The made-up stars have the noise of their errors; so much is allowed for."""
FIGURES = 6
SAVED = "alerts"
"""Folder of the alerts as Avro, inside that of the demo."""
INPUT, ALERTS, DEAD = "demo-photometry", "demo-alerts", "demo-dead-letters"


def run(args: argparse.Namespace) -> int:
    """Run the demo; what it has when it fails or is interrupted is written all the same.

    Returns
    -------
    int
        0 where every detectable event was alerted, and not clearly more constant stars than the
        threshold lets pass (`broker_filter.commands.demo_verdict`); else 1.

    Raises
    ------
    ConfigError, ModelError
        There are more events than stars, or the model is not there.
    """
    stop_on_signals(_interrupt)  # so that SIGTERM, too, leaves what there is
    if args.injected > args.stars:
        raise ConfigError(f"--injected {args.injected} is more than --stars {args.stars}")
    args.out.mkdir(parents=True, exist_ok=True)  # what cannot be written is said at once
    began = time.monotonic()
    configure_logging("error", "text")
    use_one_thread()
    entry = open_entry(_settings("127.0.0.1:0", args.model))
    field = MadeUpField(
        args.stars, args.injected, args.seed, entry.config["prior"], entry.window_days
    )
    metrics, alerts, failure = Metrics(), list[Alert](), ""
    try:
        _rehearse(args, field, entry, metrics, alerts)
    except BaseException as error:
        failure = str(error) or type(error).__name__
        raise
    finally:
        summary = _summary(field, list(alerts), metrics, entry, began, failure)
        _report(args, field, list(alerts), summary)
    return 0 if summary["passed"] else 1


def _interrupt() -> None:
    raise KeyboardInterrupt


def _rehearse(
    args: argparse.Namespace,
    field: MadeUpField,
    entry: Entry,
    metrics: Metrics,
    alerts: list[Alert],
) -> None:
    with Progress(metrics, field.messages) as progress:
        rehearse(
            lambda address: _settings(address, args.model),
            entry,
            lambda sink: _publish(field, sink, progress),
            metrics,
            partitions=SHARDS,
            on_alert=alerts.append,
        )


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
            # A machine may be so busy that its only member sends no heartbeat for long.
            session_timeout_ms=120_000,
            max_poll_interval_ms=3_600_000,
        ),
        model=Model() if model_id is None else Model(id=model_id),
        alert=AlertSettings(noise=NoiseSettings(surveys={SURVEY: WHITE})),
        schedule=ScheduleSettings(every_days=0.25),
        batch=Batch(flush_windows=1024, max_wait_s=1.0),
        metrics=MetricsSettings(enabled=False),
    )


def _publish(field: MadeUpField, sink: Sink, progress: Progress) -> None:
    header = schema_header("photometry_block")
    for shard, block in field.exposures():
        sink.produce(INPUT, None, encode_block(block), (header,), shard)
        progress.sent(len(block))


def _summary(
    field: MadeUpField,
    alerts: list[Alert],
    metrics: Metrics,
    entry: Entry,
    began: float,
    failure: str,
) -> dict[str, Any]:
    alerted = {int(alert.star_id) for alert in alerts}
    detectable = {star for star, lens in field.truth.items() if lens.snr >= DETECTABLE_SNR}
    false_stars = len(alerted - set(field.truth))
    settled = metrics.value("windows_settled_total")
    evaluations = int(metrics.value("log_bayes_factor") + settled)
    constant = len(field.star) - len(field.truth)
    windows = constant * field.windows(entry.window_days)
    expected = expected_false_stars(CERTIFIED_THRESHOLD, windows)
    most = most_false_stars(expected)
    return {
        "stars": len(field.star),
        "epochs": int(metrics.value("points_inserted_total", outcome="inserted")),
        "injected": len(field.truth),
        "detectable": len(detectable),
        "detectable_alerted": len(detectable & alerted),
        "injected_alerted": len(alerted & set(field.truth)),
        "false_alert_stars": false_stars,
        "false_alert_stars_expected": round(expected, 3),
        "false_alert_stars_allowed": most,
        "alerts": len(alerts),
        "windows_evaluated": evaluations,
        "dead_letters": int(metrics.total("records_dead_total")),
        "seconds": round(time.monotonic() - began, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "model_id": entry.model_id,
        "looks": int(metrics.value("looks_total")),
        "log10_k_threshold": CERTIFIED_THRESHOLD,
        "failure": failure or None,
        "passed": not failure and detectable <= alerted and false_stars <= most,
    }


def _report(
    args: argparse.Namespace, field: MadeUpField, alerts: list[Alert], summary: dict[str, Any]
) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary, indent=1)
    (args.out / "summary.json").write_text(text + "\n")
    save = avro_files(args.out / SAVED)
    for alert in alerts:
        save(alert)
    latest = _latest(alerts)
    shown = _table(field, latest) + _sentence(args, summary) + _offer(args, alerts)
    sys.stdout.write(text + "\n" if args.json else shown)
    sys.stdout.flush()
    if not args.no_plots:
        _plot(latest, args.out)


def _sentence(args: argparse.Namespace, summary: dict[str, Any]) -> str:
    head = "not finished: " if summary["failure"] else ""
    return (
        f"\n{head}{summary['detectable_alerted']} of {summary['detectable']} detectable events"
        f" alerted ({summary['injected_alerted']} of all {summary['injected']}),"
        f" {summary['false_alert_stars']} of {summary['stars'] - summary['injected']} constant"
        f" stars (at most {summary['false_alert_stars_expected']:.2g} expected,"
        f" {summary['false_alert_stars_allowed']} allowed); {summary['epochs']:,} epochs,"
        f" {summary['alerts']} alerts in {summary['seconds']} s, {summary['peak_rss_mb']} MB;"
        f" see {args.out}/\n"
    )


def _offer(args: argparse.Namespace, alerts: list[Alert]) -> str:
    """How to look at the alerts, where there are any."""
    # In an environment that is not activated, the command is known by its path alone.
    program = "broker-filter" if shutil.which("broker-filter") else shlex.quote(sys.argv[0])
    folder = shlex.quote(str(args.out / SAVED))
    return f"look at them: {program} page --archive {folder}\n" if alerts else ""


def _latest(alerts: list[Alert]) -> list[Alert]:
    """The last alert of each star that reported an event, in order of falling K."""
    latest = {int(a.star_id): a for a in alerts if a.state in ("new", "update")}
    return sorted(latest.values(), key=lambda alert: -_log10_k(alert))


def _log10_k(alert: Alert) -> float:
    """What decided: certified K, or the network's where that could not be computed."""
    return alert.log10_k if alert.certified is None else alert.certified.log10_k


def _table(field: MadeUpField, latest: list[Alert]) -> str:
    """One line a star: certified log10 K, t0, tE, rho with 68 % intervals, and the truth."""
    found = {int(alert.star_id): alert for alert in latest}
    missed = [star for star in field.truth if star not in found]
    rows = [_row(field.truth.get(star), found.get(star), star) for star in [*found, *missed]]
    head = ("star", "log10 K", "t0, MJD (true)", "tE, d (true)", "rho (true)", "S/N")
    return aligned_table(head, rows) + "\n"


def _row(truth: Truth | None, alert: Alert | None, star: int) -> tuple[str, ...]:
    log10_k = "-" if alert is None else f"{_log10_k(alert):.1f}"
    values = (_found_and_true(truth, alert, name) for name in ("t0", "tE", "rho"))
    return str(star), log10_k, *values, "-" if truth is None else f"{truth.snr:.0f}"


def _found_and_true(truth: Truth | None, alert: Alert | None, name: str) -> str:
    digits, exact = (2, ".2f") if name == "t0" else (3, ".5g")
    true = "none" if truth is None else f"{getattr(truth, name):{exact}}"
    if alert is None:
        return f"- ({true})"
    value = alert.interval(name)
    return f"{value.median:.{digits}f} ± {(value.p84 - value.p16) / 2:.{digits}f} ({true})"


def _plot(latest: list[Alert], out: Path) -> None:
    for alert in tqdm(latest[:FIGURES], disable=None, desc="figures", unit="star"):
        plot_light_curve(alert, out / f"{alert.star_id}-light-curve.png")
        plot_corner(alert, out / f"{alert.star_id}-corner.png")
