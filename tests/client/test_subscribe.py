"""Subscribers: what comes, what is passed over, and when it ends."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pandas as pd
import pytest
from confluent_kafka import Producer

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_message, to_avro, to_message
from broker_filter.alerts.parts import Noise, Verdict
from broker_filter.client.save import parquet_file
from broker_filter.client.subscribe import Subscription, subscribe
from broker_filter.client.text import format_alert
from broker_filter.commands.subscribe import add_arguments, run
from broker_filter.errors import ConfigError, TransientError
from broker_filter.kafka import reader
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.reader import TopicReader
from broker_filter.schemas import schema_folder
from broker_filter.types import AlertState, Message
from tests import build

# The package's function of the same name hides the module.
module = importlib.import_module("broker_filter.client.subscribe")

SILENCE_S = 1.0
SAMPLE = build.alert()


def alert(log10_k: float = 9.0, state: AlertState = "new", star: str | int = 1) -> Alert:
    name = uuid.uuid5(uuid.NAMESPACE_OID, f"{star} {state} {log10_k}")
    return build.alert(alert_id=name, log10_k=log10_k, state=state, star_id=star)


def message(content: Alert | bytes, **headers: bytes | None) -> Message:
    """An alert as a subscriber gets it; a header given as None is missing."""
    if isinstance(content, bytes):
        return build.message(content, topic="alerts", key=b"1")
    sent = to_message(content, "alerts")
    given = {k: v for k, v in (dict(sent.headers) | headers).items() if v is not None}
    return Message("alerts", 0, 0, sent.key, sent.value, headers=tuple(given.items()))


@dataclass
class Script:
    """A reader that plays messages, and then is silent."""

    messages: Iterable[Message | BaseException | None]
    closed: int = 0
    done: int = 0
    waits: list[float] = field(default_factory=list)

    def poll(self, timeout: float) -> Message | None:
        self.waits.append(timeout)
        self.messages = iter(self.messages)
        step = next(self.messages, None)
        if isinstance(step, BaseException):
            raise step
        return step

    def mark_done(self) -> None:
        self.done += 1

    def close(self) -> None:
        self.closed += 1


def listen(*messages: Message | BaseException | None, **wanted: Any) -> Subscription:
    return Subscription(Script(messages), timeout_s=0.01, **wanted)


def judged(verdict: str, star: int) -> Alert:
    said = Verdict(verdict, {verdict: 1.0}, "because")
    return replace(alert(star=star), verdict=said)


def test_only_wanted_verdicts_come() -> None:
    alerts = [judged("microlensing", 1), judged("flare", 2), replace(alert(star=3), verdict=None)]
    subscription = listen(*map(message, alerts), verdicts=("microlensing", "anomalous-lens"))
    assert [one.star_id for one in subscription] == [1]
    assert subscription.unwanted == 2


def test_a_verdict_in_the_headers_is_enough_to_pass_over() -> None:
    broken = replace(message(judged("flare", 1)), value=b"broken")
    subscription = listen(broken, verdicts=("microlensing",))
    assert list(subscription) == []
    assert (subscription.unwanted, subscription.broken) == (1, 0)


def test_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(ConfigError, match="anomalous-lens"):
        subscribe("127.0.0.1:1", verdicts=("planet",))
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--verdict", "microlensing,planet"])
    args = parser.parse_args(["--verdict", "microlensing,anomalous-lens"])
    assert args.verdicts == ("microlensing", "anomalous-lens")


# The iterator


def test_alerts_come_in_order() -> None:
    subscription = listen(message(alert(5)), None, message(alert(7)))
    assert [one.log10_k for one in subscription] == [5, 7]
    assert subscription.reader.closed == 1


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [(2, "new"), (8, "update"), (1, "retraction")]),
        ({"min_log10_k": 2}, [(2, "new"), (8, "update")]),
        ({"states": {"update", "retraction"}}, [(8, "update"), (1, "retraction")]),
        ({"min_log10_k": 3, "states": ["new"]}, []),
    ],
)
@pytest.mark.parametrize(
    "headers",
    # A header that is null comes from the client as empty.
    [{}, {"log10K": None, "state": None}, {"log10K": b"", "state": b"", "verdict": b""}],
    ids=["headers", "none", "null"],
)
def test_only_what_is_wanted_comes(
    wanted: dict[str, Any], expected: list[Any], headers: dict[str, bytes | None]
) -> None:
    sent = [alert(2), alert(8, "update"), alert(1, "retraction")]
    subscription = listen(*(message(one, **headers) for one in sent), **wanted)
    assert [(one.log10_k, one.state) for one in subscription] == expected
    assert subscription.received == 3
    assert subscription.unwanted == 3 - len(expected)


def test_what_headers_rule_out_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    monkeypatch.setattr(
        module, "from_message", lambda m: decoded.append(m.value) or from_message(m)
    )
    assert len(list(listen(message(alert(2)), message(alert(8)), min_log10_k=5))) == 1
    assert len(decoded) == 1


@pytest.mark.parametrize(
    "broken",
    [
        message(b""),
        message(b"junk"),
        message(to_avro(SAMPLE) + b"!"),
        message(to_avro(SAMPLE)[:-1]),
        replace(message(SAMPLE), value=None),
        message(SAMPLE, log10K=b"high"),
        message(SAMPLE, state=b"\xff"),
    ],
    ids=["empty", "junk", "longer", "shorter", "tombstone", "header", "header bytes"],
)
def test_a_broken_message_is_logged_and_passed_over(
    broken: Message, caplog: pytest.LogCaptureFixture
) -> None:
    subscription = listen(replace(broken, offset=41), message(alert(5)))
    assert [one.log10_k for one in subscription] == [5]
    assert subscription.broken == 1
    assert "alerts[0] offset 41" in caplog.text


def test_a_stream_of_broken_messages_does_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subscription = listen(*[message(b"junk")] * 2000)
    assert list(subscription) == []
    assert subscription.broken == 2000
    assert len(caplog.records) == 12


def test_ctrl_c_ends_the_iteration_and_closes() -> None:
    subscription = listen(message(alert(5)), KeyboardInterrupt(), message(alert(6)))
    assert [one.log10_k for one in subscription] == [5]
    assert subscription.reader.closed == 1
    assert list(subscription) == []


def test_a_failing_reader_is_closed_and_its_error_told() -> None:
    subscription = listen(TransientError("gone"))
    with pytest.raises(TransientError, match="gone"):
        next(subscription)
    assert subscription.reader.closed == 1


def test_waiting_is_cut_short_so_that_signals_are_served() -> None:
    reader = Script([None, None, KeyboardInterrupt()])
    assert list(Subscription(reader, timeout_s=None)) == []
    assert max(reader.waits) <= 0.5


def test_leaving_the_context_closes_once() -> None:
    with listen(message(alert(5))) as subscription:
        next(subscription)
    subscription.close()
    assert subscription.reader.closed == 1


def test_an_unknown_state_is_refused_before_connecting() -> None:
    with pytest.raises(ConfigError, match=r"unknown alert state old; .*retraction"):
        subscribe("127.0.0.1:1", states=["new", "old"])


# Kafka


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def producer(servers: str) -> Producer:
    return Producer({"bootstrap.servers": servers}, logger=logging.getLogger("test-producer"))


@pytest.fixture
def topic() -> str:
    return f"alerts-{uuid.uuid4().hex[:8]}"


def send(producer: Producer, topic: str, *contents: Alert | bytes) -> None:
    for content in contents:
        if isinstance(content, bytes):
            producer.produce(topic, content)
        else:
            sent = to_message(content, topic)
            producer.produce(topic, sent.value, sent.key, headers=list(sent.headers))
    assert producer.flush(10) == 0


def test_from_the_beginning_everything_comes(producer: Producer, servers: str, topic: str) -> None:
    send(producer, topic, alert(4), b"junk", alert(6), alert(8))
    subscription = subscribe(
        servers, topic, from_beginning=True, min_log10_k=5, timeout_s=SILENCE_S
    )
    got = sorted(subscription, key=lambda one: one.log10_k)
    assert [to_avro(one) for one in got] == [to_avro(alert(6)), to_avro(alert(8))]
    assert (subscription.received, subscription.unwanted, subscription.broken) == (4, 1, 1)


def test_from_now_only_what_is_sent_later_comes(
    producer: Producer, servers: str, topic: str
) -> None:
    send(producer, topic, alert(4))
    subscription = subscribe(servers, topic, timeout_s=SILENCE_S)
    send(producer, topic, alert(6))
    assert [one.log10_k for one in subscription] == [6]


def test_a_topic_that_does_not_exist_yet_is_waited_for(
    producer: Producer, servers: str, topic: str
) -> None:
    subscription = subscribe(servers, topic, timeout_s=10)
    send(producer, topic, alert(6), alert(7))
    with subscription:
        assert {next(subscription).log10_k, next(subscription).log10_k} == {6, 7}


def test_a_group_goes_on_after_the_last_alert_that_was_handled(topic: str) -> None:
    def join(broker: EmbeddedBroker) -> Subscription:
        # The mock broker lets a member in only when the session of the one that left is over.
        fast = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 100}
        servers = broker.bootstrap_servers
        return subscribe(servers, topic, "g", from_beginning=True, timeout_s=20, config=fast)

    with EmbeddedBroker({topic: 1}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        send(producer, topic, *(alert(k) for k in (1, 2, 3)))
        with join(broker) as first:  # the second alert is fetched, but its handling does not end
            assert [next(first).log10_k, next(first).log10_k] == [1, 2]
        with join(broker) as second:
            assert [next(second).log10_k, next(second).log10_k] == [2, 3]
            second.mark_done()
        send(producer, topic, alert(4))
        with join(broker) as third:
            assert next(third).log10_k == 4


def test_no_broker_is_one_message_that_says_where_why_and_the_way_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CONNECT_S", 0.5)
    said = r"no Kafka broker answers at 127\.0\.0\.1:1 .*Connection refused.* --bootstrap-servers"
    with pytest.raises(TransientError, match=said):
        TopicReader("127.0.0.1:1", "alerts")
    assert caplog.records == []


def test_a_wrong_property_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        TopicReader("127.0.0.1:1", "alerts", config={"no.such.setting": 1})


# The command


def arguments(servers: str, topic: str, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    fixed = ["--bootstrap-servers", servers, "--topic", topic, "--from-beginning"]
    return parser.parse_args([*fixed, "--timeout", str(SILENCE_S), *more])


def test_command_prints_a_line_an_alert(
    producer: Producer, servers: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    send(producer, topic, alert(4), alert(6, "update"), b"junk", alert(8, "final"))
    status = run(arguments(servers, topic, "--state", "update", "--state", "final"))
    assert status == 0
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == sorted([format_alert(alert(6, "update")), format_alert(alert(8, "final"))])


def test_command_prints_json_and_stops_after_so_many(
    producer: Producer, servers: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    send(producer, topic, *(alert(k, star="x") for k in (1, 2, 3)))
    assert run(arguments(servers, topic, "--json", "--max-alerts", "2")) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["log10K"] for one in told] == [1, 2]
    assert "lightCurve" not in told[0]


def test_json_holds_light_curve_and_samples_where_asked(
    producer: Producer, servers: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    send(producer, topic, alert())
    options = ["--json", "--max-alerts", "1", "--with", "light-curve,samples"]
    assert run(arguments(servers, topic, *options)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["lightCurve"]["source"] == SAMPLE.source.tolist()
    np.testing.assert_array_equal(np.float32(told["posterior"]["samples"]), SAMPLE.samples)
    network = np.float32(told["network"]["samples"])
    np.testing.assert_array_equal(network, SAMPLE.network.samples)


def test_unknown_columns_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments("localhost:1", "alerts", "--with", "samples,corner")
    assert "'corner' is not of light-curve, samples" in capsys.readouterr().err


def test_command_saves_avro_parquet_and_plots(
    producer: Producer, servers: str, topic: str, tmp_path: Path
) -> None:
    sent = [alert(4, star="a"), alert(6, star=7)]
    send(producer, topic, *sent)
    avro, parquet, plots = tmp_path / "a" / "avro", tmp_path / "p" / "x.parquet", tmp_path / "plots"
    options = ["--avro", str(avro), "--parquet", str(parquet), "--plot", str(plots)]
    assert run(arguments(servers, topic, *options)) == 0
    for one in sent:
        with (avro / f"{one.alert_id}.avro").open("rb") as file:
            (record,) = fastavro.reader(file)
        assert (record["starId"], record["log10K"]) == (one.star_id, one.log10_k)
        assert (plots / f"{one.alert_id}-light-curve.png").stat().st_size > 10_000
        assert (plots / f"{one.alert_id}-corner.png").stat().st_size > 10_000
    table = pd.read_parquet(parquet).set_index("star_id").loc[["a", "7"]]
    assert table["log10_k"].tolist() == [4, 6]
    assert table["tE_p84"].iloc[0] == SAMPLE.interval("tE").p84
    np.testing.assert_array_equal(table["sample_t0"].iloc[1], SAMPLE.posterior["t0"])
    np.testing.assert_array_equal(table["mjd_tai"].iloc[1], SAMPLE.mjd_tai)
    assert table["certified_log10_k"].tolist() == [SAMPLE.certified.log10_k] * 2
    assert list(tmp_path.rglob("*.part")) == []


@pytest.mark.parametrize("n", [0, 100, 101])
def test_parquet_holds_all_rows_whatever_their_number(tmp_path: Path, n: int) -> None:
    path = tmp_path / "x.parquet"
    with parquet_file(path) as save:
        for k in range(n):
            save(alert(float(k)))
    assert pd.read_parquet(path)["log10_k"].tolist() == [float(k) for k in range(n)]


def test_parquet_keeps_all_fields(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    verdict = Verdict("flare", {"flare": 0.75}, "It rises too fast.")
    fit = replace(SAMPLE.fit, left_out=(3, 5))
    full = replace(SAMPLE, fit=fit, verdict=verdict, noise=Noise(1.25, 0.003, nights=40))
    none = replace(SAMPLE, fit=None, network=None, not_fitted="not fitted: one night", source=None)
    with parquet_file(path) as save:
        save(full)
        save(none)
    one, other = (row for _, row in pd.read_parquet(path).iterrows())
    held = {"alert_id", "network_posterior", "posterior", "light_curve", "draws"}
    held |= {"certified", "fit", "network", "samples", "summary", "parameters"}
    assert {each.name for each in fields(Alert)} - held <= set(one.index)
    assert one["fit_converged"]
    assert one["fit_best_tE"] == SAMPLE.fit.best.tE
    assert one["fit_left_out"].tolist() == [3, 5]
    assert one["network_tE_p84"] == SAMPLE.network.summary[2].p84
    assert len(one["network_sample_u0"]) == len(SAMPLE.network.samples)
    assert one["covariance"].tolist() == SAMPLE.covariance.ravel().tolist()
    assert one["source"].tolist() == SAMPLE.source.tolist()
    assert [each["source"] for each in json.loads(one["sources"])] == ["WFI03", "WFI11"]
    assert json.loads(one["verdict"])["probabilities"] == {"flare": 0.75}
    assert json.loads(one["noise"])["nights"] == 40
    assert other["not_fitted"] == "not fitted: one night"
    gone = ["fit_chi2", "fit_reason", "fit_left_out", "network_sample_u0", "source", "verdict"]
    assert other[[*gone, "noise"]].isna().all()


def test_parquet_without_pyarrow_tells_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        pytest.raises(ConfigError, match=r"pip install 'broker-filter\[parquet\]'"),
        parquet_file(tmp_path / "x.parquet"),
    ):
        pass


def test_parquet_into_a_folder_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a folder"), parquet_file(tmp_path):
        pass


# Whatever started the tests may ignore Ctrl-C, as a shell does for what runs in its background.
COMMAND = (
    "import argparse, signal, sys\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from broker_filter.commands.subscribe import add_arguments, run\n"
    "parser = argparse.ArgumentParser()\n"
    "add_arguments(parser)\n"
    "sys.exit(run(parser.parse_args()))\n"
)


def start_command(servers: str, topic: str) -> subprocess.Popen[str]:
    command = ["--bootstrap-servers", servers, "--topic", topic, "--from-beginning"]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=schema_folder().parent,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    watchdog = threading.Timer(30, process.kill)
    watchdog.start()
    _, errors = process.communicate()
    watchdog.cancel()
    return process.returncode, errors


def test_ctrl_c_ends_the_command_with_status_0(
    producer: Producer, servers: str, topic: str
) -> None:
    send(producer, topic, alert(4))
    process = start_command(servers, topic)
    assert process.stdout is not None
    assert "log10 K 4.00" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert finish(process) == (0, "")


def test_a_reader_of_the_output_that_leaves_ends_the_command_quietly(
    producer: Producer, servers: str, topic: str
) -> None:
    send(producer, topic, alert(4, star="x"))
    process = start_command(servers, topic)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    send(producer, topic, alert(5, star="x"))
    watchdog = threading.Timer(30, process.kill)
    watchdog.start()
    assert process.wait() == 0
    watchdog.cancel()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
