"""The running filter: the main loop, the inference worker, signals and rebalances.

The main thread polls, decodes, fills windows and publishes; one worker evaluates. Between them are
two short queues. Offsets are committed only after the alerts of all messages before them have been
delivered, so a crash repeats alerts (with the same ids) and never loses one.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext, suppress
from types import FrameType

from broker_filter.alert import Provenance, to_message
from broker_filter.batcher import Batcher, Work
from broker_filter.config import Settings
from broker_filter.dead_letter import encode_dead_letter
from broker_filter.decode import Decoder
from broker_filter.errors import StateError, TransientError
from broker_filter.lens import magnification
from broker_filter.observe import Health, Metrics, ObserveServer
from broker_filter.photometry import Limits
from broker_filter.pipeline import Assessment, AssessmentOptions, Intake, Outputs
from broker_filter.schedule import Schedule
from broker_filter.schema import software_version
from broker_filter.scorer import Scorer
from broker_filter.sink import KafkaSink, Sink
from broker_filter.source import KafkaSource, Partition, Source
from broker_filter.types import DeadLetter, Message, OutgoingMessage
from broker_filter.window import WindowStore
from broker_filter.zoo import Entry, find, verify

__all__ = ["Service", "make_assessment", "make_intake", "open_entry", "run"]

_log = logging.getLogger(__name__)

POLL_S = 0.1
MAX_POLL_MESSAGES = 10_000
REPORT_S = 2.0
DRAIN_S = 25.0


def open_entry(settings: Settings) -> Entry:
    """The verified zoo entry that the settings name."""
    return verify(settings.model.path or find(settings.model.id))


def make_intake(settings: Settings, entry: Entry, metrics: Metrics) -> Intake:
    """First half of the pipeline, as the settings say."""
    window, schedule = settings.window, settings.schedule
    return Intake(
        Decoder(settings.input.format, max_bytes=settings.input.max_message_bytes),
        Limits(settings.input.mjd_min, settings.input.mjd_max, settings.input.flag_mask),
        Batcher(settings.batch.flush_windows, settings.batch.max_wait_s),
        lambda: WindowStore(entry.window_days, window.max_points),
        lambda: Schedule(schedule.every_days, schedule.min_points),
        metrics,
    )


def make_assessment(settings: Settings, entry: Entry, metrics: Metrics) -> Assessment:
    """Second half of the pipeline, with the network loaded and warm."""
    model, alert = settings.model, settings.alert
    scorer = Scorer(
        entry,
        device=model.device,
        precision=model.precision,
        chunk=settings.batch.chunk,
        threads=model.threads,
    )
    scorer.warm_up()
    threshold = entry.threshold if alert.log10_k is None else alert.log10_k
    version = software_version()
    metrics.set("build_info", 1, version=version, model=entry.model_id)
    return Assessment(
        scorer,
        AssessmentOptions(threshold, alert.prior_odds, alert.posterior_samples, alert.seed),
        magnification,
        Provenance(entry.model_id, entry.sha256, version, entry.window_days),
        metrics,
    )


class Service:
    """The main loop around a source and a sink.

    Parameters
    ----------
    settings : Settings
    make_source : callable
        Opens the source, given a callback for partitions that go to other members.
    sink : Sink
    intake, assessment
        The two halves of the pipeline; the second is used by the worker thread only.
    metrics, health
        What the outside may see.
    """

    def __init__(
        self,
        settings: Settings,
        make_source: Callable[[Callable[[Iterable[Partition]], None]], Source],
        sink: Sink,
        intake: Intake,
        assessment: Assessment,
        metrics: Metrics,
        health: Health,
    ) -> None:
        self._settings, self._sink, self._intake = settings, sink, intake
        self._metrics, self._health = metrics, health
        self._worker = _Worker(assessment, settings.batch.queue_depth)
        self._dead = _DeadLetterGuard(
            settings.dead_letters.max_ratio, settings.dead_letters.max_consecutive
        )
        self._stop = threading.Event()
        self._source = make_source(self._give_up)
        self._undelivered: dict[Partition, int] = {}
        self._failed = False
        self._last_commit = self._last_report = time.monotonic()

    def stop(self) -> None:
        """Ask the loop to drain and end; may be called from a signal handler or a thread."""
        self._stop.set()

    def run(self) -> None:
        """Turn until `stop`; then finish what was taken, commit and close.

        Raises
        ------
        BrokerFilterError
            Whatever no retry can mend; nothing that is not delivered has been committed.
        """
        self._worker.start()
        self._health.set_ready("broker")
        try:
            while not self._stop.is_set():
                self._turn()
            self._drain()
        except BaseException:
            self._failed = True
            raise
        finally:
            self._close()
        _log.info("stopped", extra={"event": "stopped"})

    def _close(self) -> None:
        self._worker.close()
        self._source.close()
        # After a failure its own error must reach the caller, not what the sink says besides.
        with suppress(TransientError) if self._failed else nullcontext():
            self._sink.close()

    def _turn(self) -> None:
        self._health.beat()
        self._health.set_ready("partitions", bool(self._source.assigned()))
        began = time.monotonic()
        messages = self._source.poll(MAX_POLL_MESSAGES, POLL_S)
        self._take(messages)
        if self._intake.due(time.monotonic()) and not self._worker.full():
            self._submit()
        self._hold_back(began)
        for outputs in self._worker.finished():
            self._publish(outputs)
        self._commit(force=False)
        self._report()

    def _take(self, messages: list[Message]) -> None:
        if not messages:
            return
        dead = self._intake.take(messages, time.monotonic())
        self._bury(dead)
        self._dead.count(messages, dead)
        self._metrics.set("last_record_timestamp_seconds", messages[-1].timestamp_ms / 1000)

    def _submit(self) -> None:
        work = self._intake.flush()
        if work is not None:
            self._worker.submit(work)
            self._metrics.set("gpu_queue_batches", self._worker.waiting())

    def _hold_back(self, began: float) -> None:
        """While the network is behind, take nothing new but keep polling."""
        if self._worker.full() and self._intake.due(time.monotonic()):
            self._source.pause()
            self._metrics.inc("backpressure_seconds_total", time.monotonic() - began)
        else:
            self._source.resume()

    def _publish(self, outputs: Outputs) -> None:
        for alert in outputs.alerts:
            self._send(to_message(alert, self._settings.kafka.alert_topic))
            self._metrics.inc("alerts_published_total", schema="alert/1/0")
            if alert.received_ms is not None:
                passed = time.time() - alert.received_ms / 1000
                self._metrics.observe("event_to_alert_seconds", passed)
            _log.info(
                "alert",
                extra={
                    "event": "alert",
                    "alert_id": str(alert.alert_id),
                    "state": alert.state,
                    "log10_k": round(alert.log10_k, 2),
                    "model_id": alert.model_id,
                },
            )
        self._undelivered |= outputs.offsets

    def _bury(self, dead: list[DeadLetter]) -> None:
        for letter in dead:
            message = letter.message
            _log.warning(
                letter.detail,
                extra={
                    "event": "dead_letter",
                    "reason": letter.reason,
                    "topic": message.topic,
                    "partition": message.partition,
                    "offset": message.offset,
                },
            )
            topic = self._settings.kafka.dead_letter_topic
            self._send(encode_dead_letter(letter, time.time(), topic=topic))

    def _send(self, message: OutgoingMessage) -> None:
        self._sink.produce(message.topic, message.key, message.value, message.headers)

    def _commit(self, *, force: bool) -> None:
        """Commit what is settled, after all that was produced so far has been delivered."""
        now = time.monotonic()
        if force or now - self._last_commit >= self._settings.kafka.commit_interval_s:
            self._last_commit = now
            if self._undelivered:
                self._sink.flush(self._settings.kafka.delivery_timeout_s)
                self._source.commit(self._undelivered)
                self._undelivered = {}

    def _drain(self) -> None:
        """Finish what was taken, publish and commit it."""
        _log.info("draining", extra={"event": "draining"})
        self._submit()
        deadline = time.monotonic() + DRAIN_S
        while self._worker.busy():
            for outputs in self._worker.finished(wait_s=POLL_S):
                self._publish(outputs)
            if time.monotonic() > deadline:
                raise StateError(f"the network did not finish within {DRAIN_S:g} s of the stop")
        self._commit(force=True)

    def _give_up(self, partitions: Iterable[Partition]) -> None:
        """Settle what was taken from partitions that go, then forget their windows."""
        gone = list(partitions)
        # After a failure something may be lost on its way out: the next owner reads it again.
        if not self._failed:
            self._settle()
        self._intake.drop(gone)
        self._metrics.inc("rebalances_total", kind="revoked")
        for topic, partition in gone:
            self._metrics.forget("consumer_lag_records", topic=topic, partition=partition)

    def _settle(self) -> None:
        self._submit()
        deadline = time.monotonic() + 0.2 * self._settings.kafka.max_poll_interval_ms / 1000
        while self._worker.busy() and time.monotonic() < deadline:
            for outputs in self._worker.finished(wait_s=POLL_S):
                self._publish(outputs)
        self._commit(force=True)

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._last_report < REPORT_S:
            return
        self._last_report = now
        self._intake.report()
        self._metrics.set("gpu_queue_batches", self._worker.waiting())
        for (topic, partition), lag in self._source.lag().items():
            self._metrics.set("consumer_lag_records", lag, topic=topic, partition=partition)


class _Worker:
    """One thread that evaluates work in order, behind a short queue."""

    def __init__(self, assessment: Assessment, depth: int) -> None:
        self._assessment = assessment
        self._todo: queue.Queue[Work | None] = queue.Queue()
        self._done: queue.Queue[Outputs | BaseException] = queue.Queue()
        self._depth, self._open = depth, 0
        self._thread = threading.Thread(target=self._loop, name="inference", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._open += 1
        self._todo.put(work)

    def waiting(self) -> int:
        return self._todo.qsize()

    def full(self) -> bool:
        return self._todo.qsize() >= self._depth

    def busy(self) -> bool:
        return self._open > 0

    def finished(self, wait_s: float = 0.0) -> list[Outputs]:
        """What has been done since the last call, in order; raises what the worker raised."""
        outputs: list[Outputs] = []
        while True:
            try:
                done = self._done.get(timeout=wait_s) if wait_s else self._done.get_nowait()
            except queue.Empty:
                return outputs
            if isinstance(done, BaseException):
                raise done
            self._open -= 1
            wait_s = 0.0
            outputs.append(done)

    def close(self) -> None:
        self._todo.put(None)
        if self._thread.is_alive():
            self._thread.join(DRAIN_S)

    def _loop(self) -> None:
        while (work := self._todo.get()) is not None:
            try:
                self._done.put(self._assessment.assess(work, round(1000 * time.time())))
            except BaseException as error:  # noqa: BLE001  handed to the main thread
                self._done.put(error)
                return


class _DeadLetterGuard:
    """Stops the consumer where a stream is bad as a whole."""

    MIN_MESSAGES = 1000

    def __init__(self, max_ratio: float, max_consecutive: int) -> None:
        self._max_ratio, self._max_consecutive = max_ratio, max_consecutive
        self._messages = self._dead = self._row = 0

    def count(self, messages: list[Message], dead: list[DeadLetter]) -> None:
        """Take note of a poll; raises StateError past the limits."""
        self._messages += len(messages)
        self._dead += len(dead)
        longest = self._longest_row(messages, dead)
        too_many = self._dead > self._max_ratio * max(self._messages, self.MIN_MESSAGES)
        if longest >= self._max_consecutive or (dead and too_many):
            raise StateError(
                f"{self._dead} of {self._messages} messages could not be used, the last because"
                f" {dead[-1].reason}: {dead[-1].detail}. Check input.format and the topic, or raise"
                " dead_letters.max_ratio and dead_letters.max_consecutive"
            )

    def _longest_row(self, messages: list[Message], dead: list[DeadLetter]) -> int:
        """Most unusable messages in a row, those of the polls before included."""
        if not dead:
            self._row = 0
            return 0
        longest, letters = 0, {id(letter.message) for letter in dead}
        for message in messages:
            self._row = self._row + 1 if id(message) in letters else 0
            longest = max(longest, self._row)
        return longest


def run(settings: Settings) -> int:
    """Run the filter until SIGTERM or SIGINT; the exit status is 0 after a clean drain."""
    metrics, health = Metrics(), Health()
    entry = open_entry(settings)
    with ExitStack() as stack:
        if settings.metrics.enabled:
            server = ObserveServer(metrics, health, settings.metrics.host, settings.metrics.port)
            stack.enter_context(server)
            _log.info("observing", extra={"event": "observing", "port": server.port})
        sink = KafkaSink(settings.kafka)
        stack.callback(sink.close)
        intake = make_intake(settings, entry, metrics)
        assessment = make_assessment(settings, entry, metrics)
        health.set_ready("model")

        def make_source(on_gone: Callable[[Iterable[Partition]], None]) -> Source:
            return KafkaSource(settings.kafka, on_revoke=on_gone, on_lost=intake.drop)

        service = Service(settings, make_source, sink, intake, assessment, metrics, health)
        _stop_on_signals(service)
        _log.info("started", extra={"event": "started", "model_id": entry.model_id})
        service.run()
    return 0


def _stop_on_signals(service: Service) -> None:
    """First signal drains; a second one ends the process at once."""

    def handle(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        service.stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
