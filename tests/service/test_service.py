"""The main loop: what is committed has been delivered, whatever fails, stops or moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_filter.alerts.alert import Alert
from broker_filter.config import Settings
from broker_filter.decode.decoder import Decoder
from broker_filter.errors import BrokerFilterError, ModelError, StateError, TransientError
from broker_filter.kafka.delivery import AtLeastOnce, Delivery, MemoryTransactions
from broker_filter.kafka.memory import MemorySource
from broker_filter.kafka.progress import MemoryProgress
from broker_filter.kafka.sink import MemorySink
from broker_filter.kafka.source import OnChange
from broker_filter.observe.health import Health
from broker_filter.observe.metrics import Metrics
from broker_filter.photometry.usable import Limits
from broker_filter.pipeline.assessment import Outputs
from broker_filter.pipeline.batcher import Batcher, Work
from broker_filter.pipeline.intake import Intake
from broker_filter.schemas import schema_folder
from broker_filter.service.loop import Service
from broker_filter.service.pace import LEAST
from broker_filter.service.restore import Restorer, find_start
from broker_filter.service.snapshots import SnapshotWriter
from broker_filter.state.partition import PartitionState
from broker_filter.state.store import SnapshotStore
from broker_filter.types import Message, OutgoingMessage, Partition
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.store import WindowStore
from tests import build

PARTITION = ("epochs", 0)
PATIENCE_S = 60.0
GOOD = (schema_folder() / "photometry/1/0/sample.avro").read_bytes()
ALERT = build.alert()


def good(offset: int, partition: int = 0) -> Message:
    return build.message(GOOD, offset, partition=partition)


def of_a_new_star(offset: int) -> Message:
    return build.message(build.photometry(60_000.0, offset), offset)


def bad(offset: int) -> Message:
    return build.message(b"?", offset)


class Turnstile:
    """A gate that lets so many through."""

    def __init__(self) -> None:
        self._left = threading.Semaphore(0)

    def wait(self, timeout_s: float) -> bool:
        return self._left.acquire(timeout=timeout_s)

    def set(self, n: int = 1000) -> None:
        self._left.release(n)


class Judge:
    """Stands in for the network: an alert for each piece of work, once the gate is open."""

    def __init__(self) -> None:
        self.gate: Any = threading.Event()
        self.gate.set()
        self.begun = 0
        self.error: BaseException | None = None
        self.works: list[Work] = []
        self.seconds_a_window = 0.0
        self.restored: list[tuple[Partition, int | None]] = []

    def warm_up(self) -> None: ...

    def assess(self, work: Work, now_ms: int) -> Outputs:
        assert now_ms > 0
        self.begun += 1
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.works.append(work)
        time.sleep(self.seconds_a_window * len(work.windows or ()))
        alerts: list[Alert] = [ALERT] if work.offsets else []  # none for what is silent
        return Outputs(alerts, offsets=work.offsets, captured=work.captured)

    def sizes(self) -> list[int]:
        """Windows of each batch so far."""
        return [len(work.windows) for work in self.works if work.windows is not None]

    def restore(self, partition: Partition, state: PartitionState | None) -> None:
        self.restored.append((partition, None if state is None else state.offset))

    def drop(self, partitions: Iterable[Partition]) -> None:
        self.restored = [pair for pair in self.restored if pair[0] not in partitions]


class Outlet:
    """A sink that tells what was queued from what was delivered, and can lose it once."""

    def __init__(self) -> None:
        self.queued = MemorySink()
        self.delivered: list[OutgoingMessage] = []
        self.failures: list[BrokerFilterError] = []

    def produce(self, *message: Any) -> None:
        self.queued.produce(*message)

    def flush(self, timeout_s: float = 30.0) -> None:
        assert timeout_s <= 30  # the liveness probe must not find the loop asleep
        if self.failures:
            raise self.failures.pop(0)
        waiting, self.queued.messages = self.queued.messages, []
        self.delivered += waiting

    def close(self) -> None:
        self.flush()

    def topics(self) -> list[str]:
        return [message.topic for message in self.delivered]


class Stream:
    """A source whose owner can act between two polls, in the service's own thread."""

    def __init__(self, outlet: Outlet, *callbacks: OnChange) -> None:
        on_assign, on_revoke, on_lost = callbacks
        self.memory = MemorySource(on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        self.outlet = outlet
        self.paused = False
        self.script: list[Callable[[], object]] = [lambda: self.memory.assign(PARTITION)]
        self.undelivered_at_commit: list[int] = []

    def poll(self, max_messages: int, timeout_s: float) -> list[Message]:
        if self.script:
            self.script.pop(0)()
        messages = self.memory.poll(max_messages, timeout_s)
        if not messages:
            time.sleep(0.001)
        return messages

    def commit(self, offsets: dict[Partition, int], *, wait: bool = False) -> None:
        self.undelivered_at_commit.append(len(self.outlet.queued.messages))
        self.memory.commit(offsets, wait=wait)

    def pause(self) -> None:
        self.paused = True
        self.memory.pause()

    def resume(self) -> None:
        self.paused = False
        self.memory.resume()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)


class Bench:
    """A service with all its neighbours in memory."""

    def __init__(
        self,
        delivery: Callable[[Outlet], Delivery] = AtLeastOnce,
        store: SnapshotStore | None = None,
        interval_s: float = 3600,
        **sections: dict[str, Any],
    ) -> None:
        tree: dict[str, Any] = {
            "batch": {"flush_windows": 1, "max_wait_s": 0},
            **sections,
            "kafka": {
                "bootstrap_servers": "memory:1",
                "input_topics": ["epochs"],
                "commit_interval_s": 1e-3,
                **sections.get("kafka", {}),
            },
        }
        self.settings = Settings.model_validate(tree)
        batch = self.settings.batch
        self.judge, self.outlet, self.metrics = Judge(), Outlet(), Metrics()
        self.delivery = delivery(self.outlet)
        self.health = Health()
        self.intake = Intake(
            Decoder("photometry"),
            Limits(),
            Batcher(batch.flush_windows, batch.max_wait_s),
            WindowStore,
            lambda: Schedule(0, 1),
            self.metrics,
        )
        judge: Any = self.judge
        self.writer = None
        if store is not None:
            self.writer = SnapshotWriter(store, self.metrics, interval_s=interval_s)
            self.writer.start()
        restorer = Restorer(
            lambda key, partitions, snapshots: find_start(
                key,
                partitions,
                MemoryProgress(self.stream.memory),
                store if snapshots else None,
                WindowStore().window_days,
                "earliest",
            ),
            PATIENCE_S,
        )
        self.service = Service(
            self.settings,
            self._open,
            self.delivery,
            self.intake,
            judge,
            restorer,
            self.writer,
            self.metrics,
            self.health,
        )

    def _open(self, *callbacks: OnChange) -> Any:
        self.stream = Stream(self.outlet, *callbacks)
        return self.stream

    @property
    def committed(self) -> int:
        return self.stream.memory.stored.get(PARTITION, 0)

    def do(self, action: Callable[[], object]) -> None:
        """Act between two polls, and wait until it is done."""
        done = threading.Event()
        self.stream.script += [action, done.set]
        assert done.wait(PATIENCE_S)

    def begun(self) -> None:
        """Wait until all that we own has begun."""
        until(lambda: set(self.stream.memory.positions()) == self.stream.assigned() != set())

    def take_two(self) -> None:
        """Own a second partition, and take a message of either."""
        self.do(lambda: self.stream.memory.assign(("epochs", 1)))
        self.begun()
        self.stream.memory.push(good(0), good(0, partition=1))
        self.do(lambda: None)

    @contextmanager
    def running(self) -> Iterator[Callable[[], None]]:
        """Run in a thread; gives a function that waits for the end and raises what ended it."""
        ends: list[BaseException] = []

        def run() -> None:
            try:
                self.service.run()
            except BaseException as error:  # noqa: BLE001  handed to the test
                ends.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def end() -> None:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
            for error in ends:
                raise error

        try:
            self.begun()
            yield end
        finally:
            self.judge.gate.set()
            self.service.stop()
            thread.join(PATIENCE_S)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def test_offsets_are_committed_once_all_before_them_is_delivered() -> None:
    bench = Bench(dead_letters={"max_ratio": 1})
    with bench.running() as end:
        for offset in range(0, 20, 2):
            bench.stream.memory.push(good(offset), bad(offset + 1))
            until(lambda: bench.committed == offset + 2)  # noqa: B023  waited for at once
        bench.service.stop()
        end()
    assert set(bench.stream.undelivered_at_commit) == {0}
    assert bench.outlet.topics().count("microlensing-alerts") == len(bench.judge.works)
    assert bench.outlet.topics().count("microlensing-dead-letters") == 10


def test_nothing_is_committed_before_the_network_has_spoken() -> None:
    bench = Bench()
    bench.judge.gate.clear()
    with bench.running():
        bench.stream.memory.push(good(0))
        bench.do(lambda: None)
        bench.do(lambda: None)
        assert bench.committed == 0
        bench.judge.gate.set()
        until(lambda: bench.committed == 1)


def test_what_the_sink_loses_is_never_committed() -> None:
    """Also not on the way out, where a second flush has nothing left to complain of."""
    bench = Bench()
    bench.outlet.failures.append(StateError("1 messages undelivered"))
    with bench.running() as end:
        bench.stream.memory.push(good(0))
        with pytest.raises(StateError, match="undelivered"):
            end()
    assert bench.committed == 0
    assert bench.stream.assigned() == set()


def test_an_error_of_the_worker_reaches_the_caller_at_once() -> None:
    bench = Bench()
    bench.judge.error = ModelError("K is NaN")
    with bench.running() as end:
        # The second message waits in the intake when the first one's work fails.
        bench.stream.memory.push(good(0))
        bench.stream.memory.push(good(1))
        with pytest.raises(ModelError, match="K is NaN"):
            end()
    assert bench.committed == 0
    assert bench.stream.assigned() == set()


def test_a_failing_sink_does_not_hide_the_error_before_it() -> None:
    bench = Bench(dead_letters={"max_consecutive": 1})
    bench.outlet.failures.append(StateError("1 messages undelivered"))
    with bench.running() as end:
        bench.stream.memory.push(bad(0))
        with pytest.raises(StateError):
            end()


def test_intake_pauses_while_the_network_is_behind_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker_filter.service.loop.PAUSE_S", 0.0)
    monkeypatch.setattr("broker_filter.service.loop.SLICE_BYTES", 1)
    bench = Bench(batch={"flush_windows": 1, "max_wait_s": 0, "queue_depth": 1})
    bench.judge.gate.clear()
    with bench.running():
        sent = 6  # one for the network, one to wait for it; the others stay in the inbox
        bench.stream.memory.push(*(good(offset) for offset in range(sent)))
        until(lambda: bench.stream.paused and bench.stream.positions()[PARTITION] == sent)
        bench.stream.memory.push(good(sent))
        bench.do(lambda: None)
        assert bench.stream.positions() == {PARTITION: sent}
        assert bench.stream.lag()[PARTITION] > 1  # what was taken is not decided on
        assert bench.committed < sent
        bench.judge.gate.set()
        until(lambda: bench.committed == sent + 1)
        assert not bench.stream.paused
    assert bench.metrics.value("backpressure_seconds_total") > 0


@pytest.mark.parametrize(
    ("limits", "messages"),
    [
        pytest.param({"max_ratio": 1, "max_consecutive": 5}, [bad(i) for i in range(5)], id="row"),
        pytest.param(
            {"max_ratio": 1, "max_consecutive": 5},
            [good(0), *(bad(i) for i in range(1, 6)), good(6)],
            id="row between good ones",
        ),
        pytest.param(
            {"max_ratio": 0.01},
            [good(i) if i % 2 else bad(i) for i in range(22)],
            id="ratio",
        ),
    ],
)
def test_a_stream_that_is_bad_as_a_whole_stops_the_consumer(
    limits: dict[str, Any], messages: list[Message]
) -> None:
    bench = Bench(dead_letters=limits)
    with bench.running() as end:
        bench.stream.memory.push(*messages)
        with pytest.raises(StateError, match=r"could not be used.*undecodable.*input\.format"):
            end()


def test_a_row_goes_on_over_polls_and_a_good_message_ends_it() -> None:
    bench = Bench(dead_letters={"max_ratio": 1, "max_consecutive": 3})
    with bench.running() as end:
        for offset in range(20):
            message = good(offset) if offset % 3 == 2 else bad(offset)
            bench.do(lambda: bench.stream.memory.push(message))  # noqa: B023  done at once
        until(lambda: bench.committed == 20)
        bench.stream.memory.push(bad(20))
        with pytest.raises(StateError, match="max_consecutive"):
            end()


def test_partitions_that_go_are_settled_before_and_forgotten_after() -> None:
    bench = Bench(batch={"flush_windows": 1000, "max_wait_s": 60})
    with bench.running():
        bench.do(lambda: bench.stream.memory.assign(("epochs", 1)))
        bench.begun()
        bench.do(lambda: bench.stream.memory.push(good(0), good(1), good(0, partition=1)))
        bench.do(lambda: None)
        assert bench.committed == 0
        bench.do(lambda: bench.stream.memory.revoke(PARTITION))
        assert bench.committed == 2
        assert bench.outlet.topics() == ["microlensing-alerts"]
        bench.do(bench.intake.report)
        assert bench.metrics.value("windows") == 1
    assert bench.metrics.value("rebalances_total", kind="revoked") == 2


def test_stop_finishes_what_was_taken() -> None:
    bench = Bench(
        batch={"flush_windows": 1000, "max_wait_s": 60},
        kafka={"commit_interval_s": 60},
    )
    with bench.running() as end:
        bench.stream.memory.push(good(0), good(1))
        until(lambda: bench.metrics.value("records_consumed_total", topic="epochs") == 2)
        assert bench.committed == 0
        bench.service.stop()
        end()
    assert bench.committed == 2
    assert bench.outlet.topics() == ["microlensing-alerts"]


def test_a_broken_callback_is_an_error_of_the_service() -> None:
    bench = Bench(batch={"flush_windows": 1000, "max_wait_s": 60})
    bench.outlet.failures.append(StateError("1 messages undelivered"))
    with bench.running() as end:
        bench.do(lambda: bench.stream.memory.push(good(0)))
        bench.do(lambda: None)
        bench.stream.script.append(lambda: bench.stream.memory.revoke(PARTITION))
        with pytest.raises(BrokerFilterError, match="undelivered"):
            end()
    assert bench.committed == 0


def exactly_once(outlet: Outlet) -> Delivery:
    assert not outlet.failures
    return MemoryTransactions()


def test_an_aborted_transaction_is_tried_again_and_nothing_is_doubled() -> None:
    bench = Bench(exactly_once, dead_letters={"max_ratio": 1})
    transactions: Any = bench.delivery
    with bench.running():
        transactions.failures += [TransientError("aborted"), TransientError("aborted again")]
        bench.stream.memory.push(good(0), bad(1))
        until(lambda: bench.committed == 2)
        bench.stream.memory.push(good(2))
        until(lambda: bench.committed == 3)
    topics = [message.topic for message in transactions.messages]
    assert topics == ["microlensing-dead-letters", "microlensing-alerts", "microlensing-alerts"]
    assert len(transactions.aborted) == 4
    assert bench.judge.restored == [(PARTITION, None)]  # once, on the start


def test_while_nothing_goes_out_intake_stands_still_and_polls() -> None:
    bench = Bench(exactly_once)
    transactions: Any = bench.delivery
    with bench.running():
        transactions.failures += [TransientError("down")] * 3
        bench.stream.memory.push(good(0))
        until(lambda: bench.stream.paused)
        assert "broker" in bench.health.missing()
        until(lambda: bench.committed == 1)
        until(lambda: not bench.stream.paused)
        assert "broker" not in bench.health.missing()


def test_a_way_out_that_stays_shut_ends_the_process() -> None:
    bench = Bench(exactly_once, kafka={"delivery_timeout_s": 1})
    transactions: Any = bench.delivery
    with bench.running() as end:
        transactions.failures += [TransientError("coordinator is gone")] * 100
        bench.stream.memory.push(good(0))
        with pytest.raises(TransientError, match="coordinator is gone"):
            end()
    assert bench.committed == 0
    assert transactions.messages == []


def test_nothing_of_lost_partitions_goes_out() -> None:
    bench = Bench(exactly_once, batch={"flush_windows": 1, "max_wait_s": 0})
    transactions: Any = bench.delivery
    bench.judge.gate.clear()
    with bench.running():
        bench.take_two()
        bench.do(lambda: bench.stream.memory.lose(PARTITION))
        bench.judge.gate.set()
        # The partition that stays is read again, from what it had committed.
        until(lambda: bench.stream.memory.stored.get(("epochs", 1)) == 1)
    assert PARTITION not in bench.stream.memory.stored
    assert len(transactions.messages) == 1
    assert bench.metrics.value("rebalances_total", kind="lost") == 1


def test_messages_in_hand_go_with_their_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_filter.service.loop.PAUSE_S", 0.0)
    monkeypatch.setattr("broker_filter.service.loop.SLICE_BYTES", 1)
    bench = Bench(exactly_once, batch={"flush_windows": 1, "max_wait_s": 0, "queue_depth": 1})
    bench.judge.gate.clear()
    with bench.running():
        bench.stream.memory.push(*(good(offset) for offset in range(20)))
        until(lambda: bench.stream.paused and bench.stream.positions()[PARTITION] == 20)
        bench.do(lambda: bench.stream.memory.lose(PARTITION))
        bench.judge.gate.set()
        until(lambda: not bench.stream.paused)
        bench.do(lambda: None)
    assert bench.metrics.value("records_consumed_total", topic="epochs") < 5
    assert bench.stream.memory.stored == {}


def test_partitions_that_cannot_be_settled_in_time_are_left_to_the_next_owner() -> None:
    bench = Bench(exactly_once, kafka={"max_poll_interval_ms": 1000, "session_timeout_ms": 1000})
    transactions: Any = bench.delivery
    bench.judge.gate.clear()
    with bench.running():
        bench.take_two()
        began = time.monotonic()
        bench.do(lambda: bench.stream.memory.revoke(PARTITION))
        assert time.monotonic() - began < 10
        bench.judge.gate.set()
        until(lambda: bench.stream.memory.stored.get(("epochs", 1)) == 1)
    assert PARTITION not in bench.stream.memory.stored
    assert len(transactions.messages) == 1


def test_state_is_saved_on_stop_and_taken_up_again(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    first = Bench(exactly_once, store)
    with first.running():
        first.stream.memory.push(good(0), good(1))
        until(lambda: first.committed == 2)
    second = Bench(exactly_once, store)
    second.stream.memory.log += [good(0), good(1), good(2)]
    second.stream.memory.stored[PARTITION] = 2
    with second.running():
        until(lambda: second.committed == 3)
        second.do(second.intake.report)
        assert second.metrics.value("windows") == 1
        assert second.judge.restored == [(PARTITION, 2)]
    assert second.metrics.value("restores_total", outcome="snapshot") == 1
    assert second.metrics.value("records_consumed_total", topic="epochs") == 1


def test_snapshots_are_taken_while_the_worker_is_never_idle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("broker_filter.service.loop.SLICE_BYTES", 1)
    monkeypatch.setattr("broker_filter.service.loop.PAUSE_S", 0.0)
    batch = {"flush_windows": 1, "max_wait_s": 0, "queue_depth": 1}
    bench = Bench(exactly_once, SnapshotStore(str(tmp_path)), 1e-6, batch=batch)
    judge, turnstile = bench.judge, Turnstile()
    judge.gate = turnstile

    def finish_one() -> None:  # so the queue has room, until the loop fills it in this turn
        done = len(judge.works)
        turnstile.set(1)
        until(lambda: judge.begun - 1 == len(judge.works) == done + 1)

    with bench.running():
        bench.stream.memory.push(*(good(offset) for offset in range(100)))
        # The first piece of work may be a copy of what there is before the messages.
        until(lambda: judge.begun == 1 and bench.service._worker.full())
        for _ in range(20):
            bench.do(finish_one)
        assert any(work.captured for work in judge.works[10:])
        assert bench.committed < 100


def test_without_a_snapshot_the_topic_is_replayed_in_silence() -> None:
    bench = Bench(exactly_once)
    transactions: Any = bench.delivery
    bench.stream.memory.log += [good(0), bad(1), good(2)]
    bench.stream.memory.stored[PARTITION] = 2
    with bench.running():
        until(lambda: bench.committed == 3)
    assert bench.metrics.value("records_consumed_total", topic="epochs") == 3
    assert bench.metrics.value("restores_total", outcome="disabled") == 1
    assert len(transactions.messages) == 1


def test_large_messages_are_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_filter.service.loop.SLICE_BYTES", 2 * len(GOOD))
    monkeypatch.setattr("broker_filter.service.loop.PAUSE_S", 0.0)
    bench = Bench(exactly_once, batch={"flush_windows": 1, "max_wait_s": 0, "queue_depth": 1})
    bench.judge.gate.clear()
    with bench.running():
        bench.stream.memory.push(*(good(offset) for offset in range(20)))
        bench.do(lambda: None)
        until(lambda: bench.metrics.value("records_consumed_total", topic="epochs") >= 4)
        taken = bench.metrics.value("records_consumed_total", topic="epochs")
        assert taken <= 6
        bench.judge.gate.set()
        until(lambda: bench.committed == 20)


def test_batches_become_small_while_most_windows_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that neither the first alert nor a stop waits long for those beside it."""
    monkeypatch.setattr("broker_filter.service.pace.BATCH_S", 0.02)
    monkeypatch.setattr("broker_filter.service.loop.SLICE_MESSAGES", 100)
    bench = Bench(batch={"flush_windows": 512, "max_wait_s": 0.01})
    bench.judge.seconds_a_window = 0.005
    with bench.running():
        for first, last in ((0, 100), (100, 300)):
            bench.stream.memory.push(*map(of_a_new_star, range(first, last)))
            until(lambda last=last: bench.committed == last)
        slow = bench.judge.sizes()
        assert sum(slow) == 300
        assert slow[0] <= 100
        assert slow[-40:] == [LEAST] * 40
        bench.judge.seconds_a_window = 0.0
        bench.stream.memory.push(*map(of_a_new_star, range(300, 6000)))
        until(lambda: bench.committed == 6000)
        fast = bench.judge.sizes()[len(slow) :]
        assert sum(fast) == 5700
        assert 512 <= max(fast) < 612


def test_readiness_waits_for_the_partitions_to_be_live() -> None:
    bench = Bench(exactly_once)
    with bench.running():
        until(lambda: "partitions" not in bench.health.missing())
        bench.do(lambda: bench.stream.memory.revoke(PARTITION))
        until(lambda: "partitions" in bench.health.missing())


def test_dead_letters_are_out_before_a_stream_that_is_bad_stops_the_consumer() -> None:
    bench = Bench(dead_letters={"max_ratio": 1, "max_consecutive": 3})
    with bench.running() as end:
        bench.stream.memory.push(good(0), bad(1), bad(2), bad(3))
        with pytest.raises(StateError, match="max_consecutive"):
            end()
    assert bench.outlet.topics().count("microlensing-dead-letters") == 3
    assert bench.committed == 4  # the next start does not meet them again


def test_tombstones_are_no_dead_letters() -> None:
    bench = Bench(dead_letters={"max_ratio": 0.001, "max_consecutive": 2})
    with bench.running() as end:
        bench.stream.memory.push(*(Message("epochs", 0, n, b"key", None) for n in range(11)))
        until(lambda: bench.committed == 11)
        bench.service.stop()
        end()
    assert bench.outlet.topics() == ["microlensing-alerts"]  # of the stand-in for the network
    assert bench.metrics.value("records_tombstone_total") == 11
    assert bench.metrics.total("records_dead_total") == 0


def test_a_stop_amid_a_backlog_ends_in_time_and_commits_what_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker_filter.service.loop.STOP_S", 1.0)
    monkeypatch.setattr("broker_filter.service.loop.SAVE_S", 0.5)
    monkeypatch.setattr("broker_filter.service.loop.CLOSE_S", 0.1)
    bench = Bench()
    with bench.running() as end:
        bench.stream.memory.push(good(0))
        until(lambda: bench.committed == 1)
        bench.judge.gate.clear()  # from here on the network takes longer than the stop may
        bench.stream.memory.push(good(1))
        until(lambda: bench.metrics.value("records_consumed_total", topic="epochs") == 2)
        bench.service.stop()
        end()
    assert bench.committed == 1


def test_a_stop_ends_a_wait_within_a_turn_and_saves_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A schema registry is away, say: what was taken is read again, and the status is 0."""
    bench = Bench(store=SnapshotStore(str(tmp_path)))
    waiting = threading.Event()

    def take(*_: object) -> Any:
        waiting.set()
        until(bench.service._stop.is_set)
        raise TransientError("the stop came while a schema registry was waited for")

    with bench.running() as end:
        bench.stream.memory.push(good(0))
        until(lambda: bench.committed == 1)
        monkeypatch.setattr(bench.intake, "take", take)
        bench.stream.memory.push(good(1))
        until(waiting.is_set)
        bench.service.stop()
        end()
    assert bench.committed == 1
    assert not list(tmp_path.rglob("manifest*"))


def test_a_stop_while_nothing_goes_out_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_filter.service.loop.STOP_S", 1.0)
    monkeypatch.setattr("broker_filter.service.loop.SAVE_S", 0.5)
    bench = Bench(exactly_once)
    transactions: Any = bench.delivery
    with bench.running() as end:
        transactions.failures += [TransientError("coordinator is gone")] * 100
        bench.stream.memory.push(good(0))
        until(lambda: len(transactions.failures) < 100)
        bench.service.stop()
        with pytest.raises(StateError, match="nothing goes out"):
            end()


def test_not_ready_while_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    with bench.running():
        until(lambda: bench.health.missing() == [])
        monkeypatch.setattr(bench.stream.memory, "reachable", lambda: False)
        until(lambda: bench.health.missing() == ["broker"])
        monkeypatch.setattr(bench.stream.memory, "reachable", lambda: True)
        until(lambda: bench.health.missing() == [])
