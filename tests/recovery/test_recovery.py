"""Recovery: efficiency, false alarms and latency of made-up alerts whose numbers are known."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path

import fastavro
import pytest

from broker_filter.commands.recovery import add_arguments, run
from broker_filter.config import Kafka
from broker_filter.errors import ConfigError
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.sink import KafkaSink
from broker_filter.recovery.efficiency import count_interval, report, wilson
from broker_filter.recovery.files import read_alerts, read_truth
from broker_filter.schemas import SCHEMA_HEADER, decode_strict, load_schema, schema_folder

SCHEMAS = schema_folder() / "alert"
T0 = 60_000.0
RUN = {
    "kind": "run",
    "window_days": 20.0,
    "detectable_snr": 12.0,
    "untouched_windows": 4000,
}


def event(star: str, band: str = "I", **changes) -> dict:
    line = {"kind": "event", "star": star, "band": band, "t0": T0, "u0": 0.3, "tE": 2.0}
    line |= {"rho": 0.01, "f_s": 1.0, "snr": 30.0, "first_detectable_mjd": T0 - 1.0}
    return line | changes


def alert(star: str, mjd: float, state: str = "new", **changes) -> dict:
    return {
        "alertId": f"{star}-{mjd}-{state}",
        "starId": star,
        "state": state,
        "lastEpochMjdTai": mjd,
        "log10KThreshold": 2.0,
        "receivedMs": 1000,
        "createdMs": 1500,
    } | changes


@pytest.fixture
def files(tmp_path):
    def write(events: list[dict], alerts: list[dict]):
        truth, saved = tmp_path / "truth.jsonl", tmp_path / "alerts.jsonl"
        truth.write_text("".join(json.dumps(line) + "\n" for line in [RUN, *events]))
        saved.write_text("".join(json.dumps(line) + "\n" for line in alerts))
        return truth, saved

    return write


def compared(files, events, alerts, **options) -> dict:
    truth, saved = files(events, alerts)
    return report(read_truth(truth), read_alerts(str(saved)), **options)


class TestEfficiency:
    def test_an_alert_while_the_event_lasts_recovers_it(self, files):
        events = [event(star) for star in "abcd"]
        alerts = [alert("a", T0), alert("b", T0 - 11.0), alert("c", T0 + 19.0)]
        found = compared(files, events, [*alerts, alert("d", T0 + 21.0)])
        assert found["events"]["injected"]["found"] == 2  # a and c
        assert found["events"]["alerted_at_another_time_only"] == 2

    def test_retractions_and_finals_recover_nothing(self, files):
        alerts = [alert("a", T0, "retraction"), alert("b", T0, "final"), alert("c", T0, "update")]
        found = compared(files, [event(star) for star in "abc"], alerts)
        assert found["events"]["injected"]["found"] == 1

    def test_bins_hold_every_event_once(self, files):
        events = [
            event(str(n), tE=tE, snr=snr)
            for n, (tE, snr) in enumerate([(0.05, 1), (0.2, 9), (2, 14), (2.5, 40), (40, 400)])
        ]
        found = compared(files, events, [alert("2", T0), alert("3", T0)])
        for bins in found["efficiency"].values():
            assert sum(one["n"] for one in bins) == 5
        [of_tE] = [one for one in found["efficiency"]["tE"] if one["low"] == 1]
        assert (of_tE["found"], of_tE["n"], of_tE["share"]) == (2, 2, 1.0)
        assert (of_tE["low68"], of_tE["high68"]) == wilson(2, 2)
        assert found["efficiency"]["snr"][-1]["high"] is None

    def test_what_is_known_by_then_counts_detectable_events(self, files):
        events = [event(star) for star in "abc"] + [event("d", first_detectable_mjd=None)]
        found = compared(files, events, [alert("a", T0 - 1.0), alert("b", T0 + 2.0)])
        by = {one["tE_after_peak"]: (one["found"], one["n"]) for one in found["from_peak"]}
        assert (by[-1.0], by[-0.5], by[0.5], by[1.0]) == ((0, 3), (1, 3), (1, 3), (2, 3))

    def test_two_bands_of_a_star_are_one_event(self, files):
        events = [
            event("a", snr=5.0, first_detectable_mjd=None),
            event("a", "V", snr=20.0, first_detectable_mjd=T0 + 0.5),
        ]
        found = compared(files, events, [alert("a", T0 + 1.0)])
        assert found["events"]["injected"]["n"] == found["events"]["detectable"]["n"] == 1
        assert found["latency"]["days"]["median"] == pytest.approx(0.5)


class TestFalseAlarms:
    def test_rate_beside_what_k_promises(self, files):
        alerts = [alert("x", T0), alert("x", T0 + 50), alert("y", T0), alert("x", T0, "update")]
        found = compared(files, [event("a")], alerts)["false_alarms"]
        assert (found["alerts"], found["stars"]) == (3, 2)
        assert found["star_days"] == 20_000.0  # 4,000 windows, 5 days each
        assert found["per_star_day"] == pytest.approx(1.5e-4)
        # At most one in (T/4) k days.
        assert found["bound_per_star_day"] == pytest.approx(1 / (100 * 5.0))
        assert found["bound_alerts"] == pytest.approx(40.0)

    def test_the_threshold_may_be_given(self, files):
        found = compared(files, [event("a")], [], log10_k=3.0)["false_alarms"]
        assert (found["alerts"], found["bound_alerts"]) == (0, pytest.approx(4.0))
        assert found["high68"] > 0

    def test_an_injected_star_is_no_false_alarm(self, files):
        found = compared(files, [event("a")], [alert("a", T0 + 500)])
        assert found["false_alarms"]["alerts"] == 0


class TestLatency:
    def test_from_the_first_detectable_epoch_to_the_first_alert(self, files):
        events = [event("a"), event("b"), event("c", first_detectable_mjd=T0 + 2)]
        alerts = [alert("a", T0 + 1), alert("a", T0), alert("b", T0), alert("c", T0)]
        latency = compared(files, events, alerts)["latency"]
        assert latency["days"]["median"] == pytest.approx(1.0)
        assert latency["before_detectable"] == 1
        assert latency["processing_s"]["median"] == pytest.approx(0.5)

    def test_a_rounded_epoch_is_the_epoch_itself(self, files):
        found = compared(files, [event("a")], [alert("a", T0 - 1.0 - 4e-7)])
        assert found["latency"]["before_detectable"] == 0
        assert found["latency"]["days"]["median"] == 0.0

    def test_nothing_found(self, files):
        found = compared(files, [event("a")], [])
        assert found["latency"]["days"] is None
        assert found["events"]["injected"]["share"] == 0.0


class TestSources:
    def test_an_alert_that_came_twice_counts_once(self, files):
        _, saved = files([], [alert("a", T0), alert("a", T0)])
        assert len(list(read_alerts(str(saved)))) == 1

    def test_avro_containers(self, tmp_path):
        sample = decode_strict("alert", (SCHEMAS / "1/2/sample.avro").read_bytes())
        many = [sample | alert("a", T0 + i) for i in range(3)]
        with (tmp_path / "1.avro").open("wb") as file:
            fastavro.writer(file, load_schema("alert"), many, codec="deflate")
        with (tmp_path / "2.avro").open("wb") as file:
            fastavro.writer(file, load_schema("alert"), many[:1])
        found = list(read_alerts(str(tmp_path)))
        assert [(one.star, one.last_epoch_mjd) for one in found] == [
            ("a", T0 + i) for i in range(3)
        ]

    def test_a_container_of_something_else_is_named(self, tmp_path):
        (tmp_path / "x.avro").write_bytes(b"")
        with pytest.raises(ConfigError, match=r"x\.avro: not an alert: the file is empty"):
            list(read_alerts(str(tmp_path)))

    @pytest.mark.parametrize("text", ['{"a": 1}', "{broken", ""])
    def test_a_file_that_is_no_truth(self, tmp_path, text):
        path = tmp_path / "t.jsonl"
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"t\.jsonl"):
            read_truth(path)

    def test_a_file_that_holds_no_alerts(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"starId": "a"}\n')
        with pytest.raises(ConfigError, match=r"a\.jsonl:1: not an alert"):
            list(read_alerts(str(path)))


class TestCommand:
    def run(self, *arguments) -> int:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        return run(parser.parse_args(list(map(str, arguments))))

    def test_table_and_json_and_figure(self, files, tmp_path, capsys):
        truth, saved = files([event("a"), event("b")], [alert("a", T0), alert("x", T0)])
        picture = tmp_path / "r.png"
        assert self.run(truth, saved, "--plot", picture) == 0
        table = capsys.readouterr().out
        assert "50.0 %" in table
        assert "false alarms: 1 of 1 stars" in table
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert self.run(truth, saved, "--json") == 0
        assert json.loads(capsys.readouterr().out)["events"]["injected"]["found"] == 1


def test_intervals_of_counts_agree_with_the_tables_of_gehrels():
    # Gehrels 1986, tables 1 and 2, 1 sigma: 0: 0 to 1.841; 1: 0.173 to 3.300; 10: 6.891 to 14.27
    assert count_interval(0) == pytest.approx((0.0, 1.866), abs=0.03)
    assert count_interval(1) == pytest.approx((0.173, 3.300), abs=0.03)
    assert count_interval(10) == pytest.approx((6.891, 14.27), rel=0.01)


def test_alerts_of_a_topic_as_the_filter_publishes_them():
    value = (Path(__file__).parents[2] / "schemas/alert/1/0/sample.avro").read_bytes()
    with EmbeddedBroker() as broker:
        broker.create_topic("alerts", 1)
        kafka = Kafka(bootstrap_servers=broker.bootstrap_servers, input_topics=("alerts",))
        with closing(KafkaSink(kafka)) as sink:
            sink.produce("alerts", b"star", b"no alert", ())
            sink.produce("alerts", b"star", value, ((SCHEMA_HEADER, b"alert/1/0"),))
        [one] = read_alerts(f"kafka://{broker.bootstrap_servers}/alerts")
    record = decode_strict("alert", value, "1/0")
    assert (one.alert_id, one.star) == (record["alertId"], str(record["starId"]))
    assert one.last_epoch_mjd == record["lastEpochMjdTai"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"kind": "run", "window_days": 20.0}, ":2: not a line of a truth file: 'untouched_w"),
        (RUN | {"window_days": "20"}, ":2: not a line of a truth file: '20' is no number"),
        (event("a", tE="2"), ":2: not a line of a truth file: '2' is no number"),
        (event("a", snr=float("nan")), ":2: not a line of a truth file: nan is no number"),
        (event("a", first_detectable_mjd=[]), ":2: not a line of a truth file"),
        ([], ":2: not a line of a truth file"),
        (event("a", tE=10**400), ":2: not a line of a truth file: int too large"),
    ],
)
def test_a_line_that_is_no_truth_is_named(files, line, said):
    truth, _ = files([line], [])
    with pytest.raises(ConfigError, match=f"{truth}{said}"):
        read_truth(truth)


def test_a_line_nested_too_deeply_is_named(files):
    truth, _ = files([], [])
    truth.write_text(json.dumps(RUN) + "\n" + "[" * 100_000)
    with pytest.raises(ConfigError, match=f"{truth}:2: not JSON lines"):
        read_truth(truth)


def test_a_line_without_end_is_named(files, monkeypatch):
    monkeypatch.setattr("broker_filter.recovery.files.MAX_LINE", 2000)
    truth, _ = files([], [])
    truth.write_text(json.dumps(RUN) + "\n" + "x" * 2001)
    with pytest.raises(ConfigError, match=f"{truth}:2: not JSON lines: a line of more than 2000"):
        read_truth(truth)


@pytest.mark.parametrize("changes", [{"lastEpochMjdTai": float("nan")}, {"createdMs": 1e999}])
def test_a_line_that_is_no_alert_is_named(files, changes):
    _, saved = files([], [alert("a", T0, **changes)])
    with pytest.raises(ConfigError, match=f"{saved}:1: not an alert"):
        list(read_alerts(str(saved)))
