"""The main loop: what is committed has been delivered, whatever fails, stops or moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from broker_filter.alert import Alert, from_avro
from broker_filter.batcher import Batcher, Work
from broker_filter.config import Settings
from broker_filter.decode import Decoder
from broker_filter.errors import BrokerFilterError, ModelError, StateError, TransientError
from broker_filter.observe import Health, Metrics
from broker_filter.photometry import Limits
from broker_filter.pipeline import Intake, Outputs
from broker_filter.schedule import Schedule
from broker_filter.schema import schema_folder
from broker_filter.service import Service
from broker_filter.sink import MemorySink
from broker_filter.source import MemorySource, Partition
from broker_filter.types import Message, OutgoingMessage
from broker_filter.window import WindowStore

PARTITION = ("epochs", 0)
PATIENCE_S = 10.0
GOOD = (schema_folder() / "photometry/1/0/sample.avro").read_bytes()
ALERT = from_avro((schema_folder() / "alert/1/0/sample.avro").read_bytes())


def good(offset: int, partition: int = 0) -> Message:
    return Message("epochs", partition, offset, None, GOOD)


def bad(offset: int) -> Message:
    return Message("epochs", 0, offset, None, b"?")


class Judge:
    """Stands in for the network: an alert for each piece of work, once the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.works: list[Work] = []

    def assess(self, work: Work, now_ms: int) -> Outputs:
        assert now_ms > 0
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.works.append(work)
        alerts: list[Alert] = [ALERT]
        return Outputs(alerts, offsets=work.offsets)


class Outlet:
    """A sink that tells what was queued from what was delivered, and can lose it once."""

    def __init__(self) -> None:
        self.queued = MemorySink()
        self.delivered: list[OutgoingMessage] = []
        self.lose_next = False

    def produce(self, *message: Any) -> None:
        self.queued.produce(*message)

    def flush(self, timeout_s: float = 30.0) -> None:
        assert timeout_s > 0
        waiting, self.queued.messages = self.queued.messages, []
        if waiting and self.lose_next:
            self.lose_next = False
            raise TransientError(f"{len(waiting)} messages undelivered")
        self.delivered += waiting

    def close(self) -> None:
        self.flush()

    def topics(self) -> list[str]:
        return [message.topic for message in self.delivered]


class Stream:
    """A source whose owner can act between two polls, in the service's own thread."""

    def __init__(self, outlet: Outlet, on_gone: Callable[[Iterable[Partition]], None]) -> None:
        self.memory = MemorySource(on_revoke=on_gone)
        self.memory.assign(PARTITION)
        self.outlet = outlet
        self.paused = False
        self.script: list[Callable[[], object]] = []
        self.undelivered_at_commit: list[int] = []

    def poll(self, max_messages: int, timeout_s: float) -> list[Message]:
        if self.script:
            self.script.pop(0)()
        messages = self.memory.poll(max_messages, timeout_s)
        if not messages:
            time.sleep(0.001)
        return messages

    def commit(self, offsets: dict[Partition, int]) -> None:
        self.undelivered_at_commit.append(len(self.outlet.queued.messages))
        self.memory.commit(offsets)

    def pause(self) -> None:
        self.paused = True
        self.memory.pause()

    def resume(self) -> None:
        self.paused = False
        self.memory.resume()

    def lag(self) -> dict[Partition, int]:
        return self.memory.lag()

    def assigned(self) -> set[Partition]:
        return self.memory.assigned()

    def close(self) -> None:
        self.memory.close()


class Bench:
    """A service with all its neighbours in memory."""

    def __init__(self, **sections: dict[str, Any]) -> None:
        tree: dict[str, Any] = {
            "kafka": {
                "bootstrap_servers": "memory:1",
                "input_topics": ["epochs"],
                "commit_interval_s": 1e-3,
            },
            "batch": {"flush_windows": 1, "max_wait_s": 0},
            **sections,
        }
        settings = Settings.model_validate(tree)
        self.judge, self.outlet, self.metrics = Judge(), Outlet(), Metrics()
        self.intake = Intake(
            Decoder("photometry"),
            Limits(),
            Batcher(settings.batch.flush_windows, settings.batch.max_wait_s),
            WindowStore,
            lambda: Schedule(0, 1),
            self.metrics,
        )
        judge: Any = self.judge
        self.service = Service(
            settings, self._open, self.outlet, self.intake, judge, self.metrics, Health()
        )

    def _open(self, on_gone: Callable[[Iterable[Partition]], None]) -> Any:
        self.stream = Stream(self.outlet, on_gone)
        return self.stream

    @property
    def committed(self) -> int:
        return self.stream.memory.committed.get(PARTITION, 0)

    def do(self, action: Callable[[], object]) -> None:
        """Act between two polls, and wait until it is done."""
        done = threading.Event()
        self.stream.script += [action, done.set]
        assert done.wait(PATIENCE_S)

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
    bench.outlet.lose_next = True
    with bench.running() as end:
        bench.stream.memory.push(good(0))
        with pytest.raises(TransientError, match="undelivered"):
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
    bench.outlet.lose_next = True
    with bench.running() as end:
        bench.stream.memory.push(bad(0))
        with pytest.raises(StateError):
            end()


def test_intake_pauses_while_the_network_is_behind_and_loses_nothing() -> None:
    bench = Bench(batch={"flush_windows": 1, "max_wait_s": 0, "queue_depth": 1})
    bench.judge.gate.clear()
    with bench.running():
        sent = 0
        while not bench.stream.paused:
            assert sent < 100
            bench.stream.memory.push(good(sent))
            sent += 1
            bench.do(lambda: None)
        bench.stream.memory.push(good(sent))
        bench.do(lambda: None)
        assert bench.stream.lag() == {PARTITION: 1}
        assert bench.committed == 0
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
        kafka={
            "bootstrap_servers": "memory:1",
            "input_topics": ["epochs"],
            "commit_interval_s": 60,
        },
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
    bench.outlet.lose_next = True
    with bench.running() as end:
        bench.do(lambda: bench.stream.memory.push(good(0)))
        bench.do(lambda: None)
        bench.stream.script.append(lambda: bench.stream.memory.revoke(PARTITION))
        with pytest.raises(BrokerFilterError, match="undelivered"):
            end()
    assert bench.committed == 0
