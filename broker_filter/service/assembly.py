"""Puts the service together from its settings, and runs it as a process."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Literal

from broker_filter.alerts.build import Provenance
from broker_filter.alerts.known_variables import KnownVariables, read_known_variables
from broker_filter.alerts.threshold import make_rule
from broker_filter.alerts.verdict import Rates
from broker_filter.backoff import Backoff
from broker_filter.config import AlertSettings, NoiseSettings, Settings, SurveyNoise
from broker_filter.errors import TransientError
from broker_filter.inference.magnification import magnification
from broker_filter.inference.noise_bounds import NoiseBounds
from broker_filter.inference.noise_family import NoiseFamily
from broker_filter.inference.scorer import OWN_CHOICE, Scorer
from broker_filter.inference.threads import use_one_thread
from broker_filter.inference.zoo import Entry
from broker_filter.kafka.consumer import KafkaSource
from broker_filter.kafka.delivery import Delivery
from broker_filter.kafka.progress import GroupProgress
from broker_filter.kafka.sharing import key_of
from broker_filter.kafka.source import OnChange, Source
from broker_filter.kafka.topic_ids import TopicIds
from broker_filter.kafka.transaction import open_delivery
from broker_filter.observe.health import Health
from broker_filter.observe.metrics import Metrics
from broker_filter.observe.server import ObserveServer
from broker_filter.photometry.usable import Limits
from broker_filter.pipeline.assessment import Assessment
from broker_filter.pipeline.batcher import Batcher
from broker_filter.pipeline.by_star import EachStar
from broker_filter.pipeline.intake import Intake
from broker_filter.pipeline.judge import JudgeOptions
from broker_filter.pipeline.options import AssessmentOptions
from broker_filter.schemas import software_version
from broker_filter.service.alert_schema import make_framing
from broker_filter.service.decoding import make_decoder, unknown_surveys
from broker_filter.service.entries import open_entry, survey_entries
from broker_filter.service.garbage import collect_rarely
from broker_filter.service.loop import REVOKE_SHARE, Service
from broker_filter.service.restore import UNREACHABLE_S, Restorer, Start, find_start
from broker_filter.service.signals import stop_on_signals
from broker_filter.service.snapshots import SnapshotWriter
from broker_filter.service.watchdog import Watchdog
from broker_filter.state.store import SnapshotStore
from broker_filter.types import Partition, StateKey
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.store import WindowStore

__all__ = ["make_assessment", "make_intake", "make_service", "open_entry", "run"]

_log = logging.getLogger(__name__)

HANG_S = 60.0
"""Added to all that may hold up one pass of the main loop for good reason."""

CHUNK = {"cpu": 16, "cuda": 1024}
"""Windows per call of the network, by device."""

MOST_STARS = 3
"""Stars that are fitted and judged at a time."""


def make_intake(
    settings: Settings,
    entry: Entry,
    metrics: Metrics,
    waiting: Callable[[], object] = lambda: None,
) -> Intake:
    """First half of the pipeline, as the settings say; ``waiting`` as of `make_decoder`."""
    window, schedule = settings.window, settings.schedule
    return Intake(
        make_decoder(settings.input, waiting),
        Limits(settings.input.mjd_min, settings.input.mjd_max, settings.input.flag_mask),
        Batcher(settings.batch.flush_windows, settings.batch.max_wait_s),
        lambda: WindowStore(
            entry.window_days,
            window.max_points,
            max_stars=window.max_stars,
            joined=entry.joins_bands,
            rise=math.inf if schedule.rise is None else schedule.rise,
        ),
        lambda: Schedule(schedule.every_days, schedule.min_points),
        metrics,
        key_of(settings.kafka),
    )


def make_assessment(
    settings: Settings,
    entry: Entry,
    metrics: Metrics,
    watched: Callable[[Scorer], Scorer] = lambda scorer: scorer,
    each_star: EachStar = map,
) -> Assessment:
    """Second half of the pipeline, with the network loaded.

    ``watched`` may put something in the scorer's place that notes what goes through it;
    ``each_star`` is as of `Assessment`.
    """
    model, alert = settings.model, settings.alert
    entries = survey_entries(settings, entry)

    scorer = Scorer(
        entry,
        device=model.device,
        precision=model.precision,
        chunk=settings.batch.chunk or CHUNK[model.device],
        threads=model.threads,
        noise=noise_bounds(alert.noise),
        surveys=entries,
    )
    rule = make_rule(
        alert,
        card_threshold=max(one.threshold for one in (entry, *entries.values())),
        window_days=entry.window_days,
    )
    decides = "certified" if rule.certified_decides else "network"
    said = {"log10_k": round(rule.after(0).threshold, 3), "decide_on": decides}
    _log.info("threshold", extra={"event": "threshold", **said})
    version = software_version()

    def provenance(entry: Entry) -> Provenance:
        return Provenance(entry.model_id, entry.sha256, version, entry.window_days)

    metrics.set("build_info", 1, version=version, model=entry.model_id)
    return Assessment(
        watched(scorer),
        AssessmentOptions(
            rule,
            alert.prior_odds,
            alert.posterior_samples,
            alert.seed,
            certified=alert.certified,
            cascade=model.cascade,
            judge=judge_options(alert),
        ),
        magnification,
        provenance(entry),
        metrics,
        {name: provenance(other) for name, other in entries.items()},
        each_star,
    )


def star_threads(threads: int) -> EachStar:
    """Fits and judges stars side by side, in up to so many threads.

    A third of that work holds Python's lock, so that no more than three gain anything.
    """
    if threads < 2:
        return map
    return ThreadPoolExecutor(min(threads, MOST_STARS), "stars", use_one_thread).map


def judge_options(alert: AlertSettings) -> JudgeOptions | None:
    """How alerts are judged; None for alerts without rivals and verdict.

    Raises
    ------
    ConfigError
        The table of known variables cannot be used.
    """
    if not alert.rivals:
        return None
    path = alert.known_variables
    known = KnownVariables() if path is None else read_known_variables(path)
    return JudgeOptions(Rates(**alert.rates.model_dump()), known=known)


def noise_bounds(settings: NoiseSettings | Literal["white"]) -> NoiseBounds | None:
    """The constant stars that certified K allows for; None for white noise alone."""
    if settings == "white":
        return None

    def family(usual: SurveyNoise) -> NoiseFamily:
        return NoiseFamily(
            scale=usual.error_scale,
            red_noise=usual.red_noise,
            tau_days=settings.red_noise_days,
            wrong_epochs=settings.wrong_epochs,
            wrong_nights=settings.wrong_nights,
        )

    surveys = {name.lower(): family(usual) for name, usual in settings.surveys.items()}
    return NoiseBounds(family(settings.usual), surveys)


def make_service(
    settings: Settings, entry: Entry, delivery: Delivery, metrics: Metrics, health: Health
) -> Service:
    """The service on a Kafka broker, with the network loaded.

    Parameters
    ----------
    settings : Settings
    entry : Entry
        Model to use.
    delivery : Delivery
        Its way out; closed with the service.
    metrics, health
        Filled while it runs.
    """
    kafka = settings.kafka
    stop = threading.Event()

    def waiting() -> None:
        """Called while a registry is waited for: a stop must not wait for it."""
        health.beat()
        if stop.is_set():
            raise TransientError("the stop came while a schema registry was waited for")

    framing = make_framing(kafka)
    intake = make_intake(settings, entry, metrics, waiting)
    each_star = star_threads(settings.model.threads or OWN_CHOICE)
    assessment = make_assessment(settings, entry, metrics, each_star=each_star)
    store = _open_store(settings)
    progress, backoff = GroupProgress(kafka), Backoff(UNREACHABLE_S)

    def find(key: StateKey, partitions: Collection[Partition], snapshots: bool) -> Start:
        trusted, reset = store if snapshots else None, kafka.auto_offset_reset
        days = entry.window_days
        return find_start(key, partitions, progress, trusted, days, reset, backoff)

    def make_source(on_assign: OnChange, on_revoke: OnChange, on_lost: OnChange) -> Source:
        return KafkaSource(kafka, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    writer = None
    if store is not None:
        writer = SnapshotWriter(store, metrics, interval_s=settings.snapshot.interval_s)
        writer.start()
    restorer = Restorer(find, kafka.delivery_timeout_s)
    return Service(
        settings,
        make_source,
        delivery,
        intake,
        assessment,
        restorer,
        writer,
        metrics,
        health,
        TopicIds(kafka),
        key_of(kafka),
        stop,
        framing,
    )


def _open_store(settings: Settings) -> SnapshotStore | None:
    url = settings.snapshot.url
    if url is None:
        return None
    return SnapshotStore(f"{url.rstrip('/')}/{settings.kafka.group_id}")


def run(settings: Settings) -> int:
    """Run the filter until SIGTERM or SIGINT; the exit status is 0 after a clean drain."""
    metrics, health = Metrics(), Health()
    for line in unknown_surveys(settings):
        _log.warning("%s", line, extra={"event": "unknown_survey"})
    entry = open_entry(settings)
    kafka = settings.kafka
    with ExitStack() as stack:
        if settings.metrics.enabled:
            where = settings.metrics
            server = ObserveServer(metrics.registry, health, where.host, where.port)
            stack.enter_context(server)
            _log.info("observing", extra={"event": "observing", "port": server.port})
        delivery = open_delivery(kafka, metrics)
        service = make_service(settings, entry, delivery, metrics, health)
        stop_on_signals(service.stop)
        limit_s = kafka.delivery_timeout_s + REVOKE_SHARE * kafka.max_poll_interval_ms / 1000
        stack.enter_context(Watchdog(health.stalled_s, limit_s + HANG_S))
        collect_rarely()
        _log.info("started", extra={"event": "started", "model_id": entry.model_id})
        service.run()
    return 0
