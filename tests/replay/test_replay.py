"""Replay: order, pace, keys and headers of what is published; exit status of the command."""

from __future__ import annotations

import argparse
import json
import math
import zipfile
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_filter.commands.replay import expand, publish_archive, run
from broker_filter.commands.replay_options import add_arguments
from broker_filter.config import Input
from broker_filter.decode.native import decode_photometry
from broker_filter.errors import ConfigError, TransientError
from broker_filter.kafka.sink import MemorySink
from broker_filter.replay.lightcurves.stream import LightCurves, load
from broker_filter.replay.publish import OFFSET_HEADER, Archive, Pace, publish, replay
from broker_filter.service.decoding import make_decoder
from broker_filter.types import Message, Photometry
from tests import build


def curve(times, star="A", source="x", **changes) -> Photometry:
    plain = {"survey": "archive", "band": "I", "source": source, "flux_err": 0.1}
    plain["flux"] = np.arange(1.0, len(times) + 1)
    return build.photometry(times, star, **plain | changes)


def published(sink: MemorySink) -> list[Photometry]:
    return [decode_photometry(message.value) for message in sink.messages]


class FakeClock:
    """A clock that only moves when it is slept on; it notes what had been sent by then."""

    def __init__(self, sink: MemorySink) -> None:
        self.now = 1000.0
        self.sink = sink
        self.sent: list[tuple[float, int]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.sent.append((self.now - 1000.0, len(self.sink.messages)))
        self.now += seconds


class TestOrder:
    def test_epochs_of_all_parts_go_out_by_time(self):
        sink = MemorySink()
        report = replay([curve([1, 4, 5]), curve([2, 3, 6], "B")], sink, "t")
        assert [part.mjd_tai.tolist() for part in published(sink)] == [[1], [2], [3], [4], [5], [6]]
        assert [message.key for message in sink.messages] == [b"A", b"B", b"B", b"A", b"A", b"B"]
        assert (report.epochs, report.messages) == (6, 6)
        assert (report.first_mjd, report.last_mjd) == (1, 6)

    def test_neighbours_share_a_message_only_where_nothing_lies_between(self):
        sink = MemorySink()
        parts = [curve([1, 4, 5, 7, 8]), curve([2, 3, 6], "B")]
        report = replay(parts, sink, "t", epochs_per_message=2)
        assert [part.mjd_tai.tolist() for part in published(sink)] == [
            [1],
            [2, 3],
            [4, 5],
            [6],
            [7, 8],
        ]
        assert (report.epochs, report.messages) == (8, 5)

    def test_columns_stay_together(self):
        sink = MemorySink()
        flags = np.array([0, 7, 0], dtype=np.uint32)
        part = curve([3, 1, 2], flags=flags, coordinates={"A": (268.5, -29.0)})
        replay([part], sink, "t", epochs_per_message=3)
        [message] = published(sink)
        assert message.mjd_tai.tolist() == [1, 2, 3]
        assert message.flux.tolist() == [2, 3, 1]
        assert message.flags.tolist() == [7, 0, 0]
        assert message.coordinates == {"A": (268.5, -29.0)}
        assert (message.survey, message.band, message.source) == ("archive", "I", "x")

    @given(
        times=st.lists(st.lists(st.integers(0, 20), max_size=8), max_size=4),
        limit=st.integers(1, 5),
    )
    def test_every_epoch_once_in_order(self, times, limit):
        sink = MemorySink()
        parts = [curve(sorted(epochs), str(i)) for i, epochs in enumerate(times)]
        report = replay(parts, sink, "t", epochs_per_message=limit)
        sent = [(t, p.star[0]) for p in published(sink) for t in p.mjd_tai.tolist()]
        assert sent == sorted(sent)
        assert sorted(sent) == sorted((t, str(i)) for i, epochs in enumerate(times) for t in epochs)
        assert all(len(part) <= limit for part in published(sink))
        assert report.epochs == len(sent)

    def test_start_is_inclusive_and_stop_is_not(self):
        sink = MemorySink()
        replay([curve([1, 2, 3, 4])], sink, "t", start=2, stop=4)
        assert [part.mjd_tai[0] for part in published(sink)] == [2, 3]

    def test_nothing_to_publish(self):
        report = replay([curve([1, 2])], MemorySink(), "t", start=5)
        assert (report.epochs, report.messages) == (0, 0)
        assert math.isnan(report.first_mjd)
        assert replay([], MemorySink(), "t").messages == 0


class TestMessages:
    def test_headers_name_the_schema_and_the_event_time(self):
        sink = MemorySink()
        replay([curve([58000.0, 58000.5])], sink, "photometry")
        assert {message.topic for message in sink.messages} == {"photometry"}
        assert [dict(message.headers) for message in sink.messages] == [
            {"schema": b"photometry/1/0", OFFSET_HEADER: b"0.000"},
            {"schema": b"photometry/1/0", OFFSET_HEADER: b"43200.000"},
        ]

    def test_key_is_the_star_in_utf8(self):
        sink = MemorySink()
        replay([curve([1], "étoile"), curve([2], 7)], sink, "t")
        assert [message.key for message in sink.messages] == ["étoile".encode(), b"7"]

    def test_history_leaves_the_reference_open_and_median_gives_it(self):
        rng = np.random.default_rng(5)
        flux = rng.normal(1000.0, 10.0, 400)
        part = curve(np.arange(400), flux=flux, flux_err=np.full(400, 1.0))
        open_, given_ = MemorySink(), MemorySink()
        replay([part], open_, "t")
        replay([part], given_, "t", baseline="median")
        assert np.isnan(published(open_)[0].ref_flux).all()
        [reference], [error] = published(given_)[0].ref_flux, published(given_)[0].ref_flux_err
        assert reference == pytest.approx(np.median(flux))
        # The median of n Gaussian values scatters by sqrt(pi / 2 / n) sigma.
        assert error == pytest.approx(10.0 * math.sqrt(math.pi / 2 / 400), rel=0.15)

    def test_a_difference_flux_has_no_median_reference(self):
        sink = MemorySink()
        replay([curve([1, 2, 3], kind="difference")], sink, "t", baseline="median")
        assert np.isnan(published(sink)[0].ref_flux).all()


class TestPace:
    def test_messages_leave_when_their_last_epoch_is_due(self):
        sink = MemorySink()
        clock = FakeClock(sink)
        times = [0.0, 1 / 86400, 11 / 86400, 12 / 86400]  # 0, 1, 11 and 12 s
        report = replay([curve(times)], sink, "t", speed=2.0, clock=clock, sleep=clock.sleep)
        assert [at for at, _ in clock.sent] == pytest.approx([0.0, 0.5, 5.5])
        assert [sent for _, sent in clock.sent] == [1, 2, 3]
        assert report.seconds == pytest.approx(6.0)

    def test_max_never_sleeps(self):
        sink = MemorySink()
        clock = FakeClock(sink)
        replay([curve([0, 1000])], sink, "t", clock=clock, sleep=clock.sleep)
        assert not clock.sent

    def test_a_slow_broker_is_not_waited_for_twice(self):
        clock = FakeClock(sink := MemorySink())

        def encode(_):
            clock.now += 10.0
            return b""

        times = [0.0, 5 / 86400, 40 / 86400]
        replay([curve(times)], sink, "t", speed=1, encode=encode, clock=clock, sleep=clock.sleep)
        # The clock begins with the first message, which took 10 s to make.
        assert clock.sent == [(30.0, 2)]
        assert clock.now - 1000 == pytest.approx(50.0)

    def test_a_failed_broker_is_noticed_before_a_long_pause(self):
        sink = MemorySink()
        sink.failure = TransientError("broker is gone")
        clock = FakeClock(sink)
        with pytest.raises(TransientError):
            replay([curve([0, 100])], sink, "t", speed=1, clock=clock, sleep=clock.sleep)
        assert len(sink.messages) == 1
        assert not clock.sent

    @pytest.mark.parametrize(
        "options", [{"speed": 0}, {"speed": -1}, {"speed": math.nan}, {"epochs_per_message": 0}]
    )
    def test_settings_out_of_range(self, options):
        with pytest.raises(ConfigError):
            replay([curve([1])], MemorySink(), "t", **options)


GOOD = "2455260.5 18.0 0.01\n2455262.5 18.2 0.03\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "one_I.dat").write_text(GOOD)
    (tmp_path / "two_I.dat").write_text("2455261.5 18.1 0.02\n2455263.5 18 -1\n")
    (tmp_path / "README.md").write_text("no light curve\n")
    return tmp_path


def command(*arguments, sink=None) -> tuple[int, MemorySink]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    sink = sink or MemorySink()
    return publish_archive(parser.parse_args([*map(str, arguments), "--topic", "t"]), sink), sink


class TestCommand:
    def test_a_folder_is_replayed_and_its_notes_are_not_light_curves(self, folder, capsys):
        status, sink = command(folder)
        assert status == 0
        assert [message.key for message in sink.messages] == [b"one_I", b"two_I", b"one_I"]
        out, err = capsys.readouterr()
        assert "3 epochs in 3 messages from 2 files" in out
        assert "1 rows rejected" in out
        assert f"{folder / 'two_I.dat'}:2: bad error" in err
        assert "HJD (UTC" in err

    def test_a_bad_file_does_not_keep_the_others_from_going_out(self, folder, capsys):
        (folder / "bad.dat").write_text("")
        status, sink = command(folder)
        assert status == 3
        assert len(sink.messages) == 3
        assert f"{folder / 'bad.dat'}: no row" in capsys.readouterr().err

    def test_sources_of_one_star(self, folder):
        _, sink = command(folder, "--star", "KMT-2019-BLG-2073")
        assert {message.key for message in sink.messages} == {b"KMT-2019-BLG-2073"}
        assert {part.source for part in published(sink)} == {"one_I", "two_I"}

    def test_star_from_folder(self, folder):
        _, sink = command(folder, "--star-from-folder")
        assert {message.key for message in sink.messages} == {folder.name.encode()}

    def test_two_files_of_one_name_are_not_mixed(self, folder):
        (folder / "deeper").mkdir()
        (folder / "deeper" / "one_I.dat").write_text(GOOD)
        with pytest.raises(ConfigError, match="--star-from-folder"):
            command(folder)
        status, sink = command(folder, "--star-from-folder")
        assert (status, len(sink.messages)) == (0, 5)

    def test_nothing_to_publish_is_status_1(self, folder):
        assert command(folder, "--start", "99999")[0] == 1

    def test_json(self, folder, capsys):
        command(folder, "--json", "--start", "99999")
        report = json.loads(capsys.readouterr().out)
        assert report["messages"] == 0
        assert report["first_mjd"] is None
        assert report["rejected"] == {"bad_error": 1}
        assert report["unreadable"] == []

    def test_many_rejections_are_counted_not_listed(self, folder, capsys):
        (folder / "two_I.dat").write_text(GOOD + "2455261.5 18.1 0\n" * 1000)
        command(folder)
        err = capsys.readouterr().err
        assert err.count("two_I.dat") < 10
        assert "1000 rows rejected in all: 1000 bad error" in err

    @pytest.mark.parametrize("speed", ["0", "-1", "nan", "fast"])
    def test_a_wrong_speed_is_refused(self, folder, speed, capsys):
        with pytest.raises(SystemExit):
            command(folder, f"--speed={speed}")
        assert "--speed" in capsys.readouterr().err

    def test_a_missing_source(self, tmp_path):
        with pytest.raises(ConfigError, match="no such file"):
            expand([tmp_path / "none"])
        with pytest.raises(ConfigError, match="no file with suffix"):
            expand([tmp_path])

    def test_an_empty_source_is_not_the_folder_we_run_in(self):
        with pytest.raises(ConfigError, match="'': no such file"):
            expand([""])

    @pytest.mark.parametrize(
        ("option", "said"),
        [
            ("--star=\udcff", "star '?' is not UTF-8"),
            (f"--star={'ü' * 33}", "is empty, or longer than 64 bytes"),
            (f"--survey={'s' * 65}", "is empty, or longer than 64 characters"),
            ("--survey=", "survey '' is empty"),
        ],
    )
    def test_names_that_no_message_holds_are_refused(self, folder, option, said, capsys):
        status, sink = command(folder, option)
        assert (status, sink.messages) == (3, [])
        assert said in capsys.readouterr().err

    def test_a_file_whose_name_is_not_utf_8_does_not_end_the_replay(self, folder):
        others = command(folder)[1].messages
        (folder / "three\udcff_I.dat").write_text(GOOD)
        status, sink = command(folder)
        assert (status, sink.messages) == (3, others)

    def test_a_position_that_cannot_be_kept_is_said_first(self, folder):
        sink = MemorySink()
        with pytest.raises(ConfigError, match="there is no folder"):
            command(folder, f"--resume={folder}/none/position", sink=sink)
        assert not sink.messages

    def test_a_file_named_twice_is_read_once(self, folder):
        assert expand([folder / "one_I.dat", folder]) == [
            folder / "one_I.dat",
            folder / "two_I.dat",
        ]


def packet_file(path, times) -> None:
    lines = (json.dumps({"diaSource": {"midpointMjdTai": time}}) for time in times)
    path.write_text("\n".join(lines))


def times_of(sink: MemorySink) -> list[float]:
    return [json.loads(m.value)["diaSource"]["midpointMjdTai"] for m in sink.messages]


class TestPackets:
    def test_files_are_merged_by_time_and_keep_their_bytes(self, tmp_path, capsys):
        packet_file(tmp_path / "a.jsonl", [61000.0, 61002.0])
        packet_file(tmp_path / "b.jsonl", [61001.0, 61003.0])
        status, sink = command(tmp_path)
        assert status == 0
        assert times_of(sink) == [61000.0, 61001.0, 61002.0, 61003.0]
        assert sink.messages[1].value == b'{"diaSource": {"midpointMjdTai": 61001.0}}'
        assert dict(sink.messages[1].headers) == {OFFSET_HEADER: b"86400.000"}
        assert "4 messages from 2 files" in capsys.readouterr().out

    def test_beside_light_curves(self, folder):
        time = read_time(folder / "one_I.dat")
        packet_file(folder / "p.jsonl", [time + 0.5])
        _, sink = command(folder)
        assert [m.key for m in sink.messages] == [b"one_I", None, b"two_I", b"one_I"]

    def test_a_broken_one_is_reported_and_the_others_go_out(self, tmp_path, capsys):
        packet_file(tmp_path / "a.jsonl", [61000.0, 1480360995.0, 61002.0])
        (tmp_path / "b.avro").write_bytes(b"Obj\1 damaged")
        status, sink = command(tmp_path, "--json")
        assert (status, times_of(sink)) == (3, [61000.0, 61002.0])
        report = json.loads(capsys.readouterr().out)
        assert report["faults"] == 2
        assert any("a.jsonl:2: time_out_of_range" in line for line in report["unreadable"])

    def test_start_and_stop_in_event_time(self, tmp_path):
        packet_file(tmp_path / "a.jsonl", [61000.0, 61001.0, 61002.0, 61003.0])
        _, sink = command(tmp_path, "--start", "61001", "--stop", "61003")
        assert times_of(sink) == [61001.0, 61002.0]

    def test_out_of_order_beyond_the_window_is_counted(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr("broker_filter.replay.publish.SORT_BYTES", 64 * 1200)
        times = [61000.0 + n for n in range(500)]
        packet_file(tmp_path / "a.jsonl", [*times[:400], 61000.5, *times[400:]])
        status, sink = command(tmp_path)
        assert (status, len(sink.messages)) == (0, 501)
        assert "1 out of order" in capsys.readouterr().out


def read_time(path) -> float:
    [curve], _ = load([path])
    return float(curve.parts[0].mjd_tai[0])


class TestRate:
    def test_no_more_than_so_many_messages_a_second(self):
        sink = MemorySink()
        clock = FakeClock(sink)
        archive = Archive([LightCurves([curve([1, 2, 3, 4, 5])])], pytest.fail)
        publish(archive, sink, "t", Pace(rate=2.0), clock=clock, sleep=clock.sleep)
        assert [at for at, _ in clock.sent] == pytest.approx([0.0, 0.5, 1.0, 1.5])

    @pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
    def test_out_of_range(self, rate):
        with pytest.raises(ConfigError, match="rate"):
            Pace(rate=rate)


class TestLoop:
    def test_photometry_moves_on_by_whole_days(self, folder):
        _, sink = command(folder, "--loop", "3")
        sent = published(sink)
        first = [part.mjd_tai[0] for part in sent[:3]]
        assert [part.mjd_tai[0] for part in sent[3:6]] == pytest.approx([t + 2 for t in first])
        assert [part.mjd_tai[0] for part in sent[6:]] == pytest.approx([t + 4 for t in first])
        offsets = [float(dict(m.headers)[OFFSET_HEADER]) for m in sink.messages]
        assert offsets == pytest.approx([86400.0 * n for n in (0, 1, 2, 2, 3, 4, 4, 5, 6)])

    def test_packets_keep_their_bytes_and_only_the_offset_moves_on(self, tmp_path):
        packet_file(tmp_path / "a.jsonl", [61000.0, 61000.5])
        _, sink = command(tmp_path, "--loop", "2")
        assert times_of(sink) == [61000.0, 61000.5, 61000.0, 61000.5]
        offsets = [float(dict(m.headers)[OFFSET_HEADER]) for m in sink.messages]
        assert offsets == [0.0, 43200.0, 86400.0, 129600.0]

    def test_forever_ends_only_by_the_reader(self, folder):
        sink = Full(20)
        with pytest.raises(KeyboardInterrupt):
            command(folder, "--loop", "forever", sink=sink)
        assert len(sink.messages) == 20

    def test_nothing_to_publish_ends_even_forever(self, folder):
        assert command(folder, "--loop", "forever", "--start", "99999")[0] == 1

    @pytest.mark.parametrize("text", ["0", "-1", "ever"])
    def test_a_wrong_number_is_refused(self, folder, text):
        with pytest.raises(SystemExit):
            command(folder, f"--loop={text}")


class Full(MemorySink):
    """A sink at which somebody presses Ctrl-C after so many messages."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def produce(self, *arguments, **named) -> None:
        if len(self.messages) == self.limit:
            raise KeyboardInterrupt
        super().produce(*arguments, **named)


class TestResume:
    @pytest.mark.parametrize("cut", [0, 1, 3, 6, 7, 8, 13])
    def test_an_interrupted_replay_goes_on_where_it_stopped(self, cut, tmp_path):
        folder = tmp_path
        packet_file(folder / "a.jsonl", [61000.0, 61002.0, 61001.0, 61007.0])
        packet_file(folder / "b.jsonl", [61001.0, 61003.0, 61004.0])
        position = folder / "position"
        whole = command(folder, "--loop", 2)[1].messages
        assert len(whole) == 14
        options = (folder, "--loop", 2, "--resume", position)
        first = Full(cut)
        with pytest.raises(KeyboardInterrupt):
            command(*options, sink=first)
        status, rest = command(*options)
        assert status == 0
        assert first.messages + rest.messages == whole
        assert not position.exists()

    def test_the_report_counts_both_runs(self, tmp_path, capsys):
        packet_file(tmp_path / "a.jsonl", [61000.0, 61001.0, 61002.0])
        options = (tmp_path / "a.jsonl", "--resume", tmp_path / "p", "--json")
        with pytest.raises(KeyboardInterrupt):
            command(*options, sink=Full(2))
        command(*options)
        report = json.loads(capsys.readouterr().out)
        assert (report["messages"], report["first_mjd"]) == (3, 61000.0)

    def test_a_position_of_other_sources_is_refused(self, tmp_path):
        packet_file(tmp_path / "a.jsonl", [61000.0, 61001.0])
        position = tmp_path / "p"
        with pytest.raises(KeyboardInterrupt):
            command(tmp_path / "a.jsonl", "--resume", position, sink=Full(1))
        with pytest.raises(ConfigError, match="other sources or options"):
            command(tmp_path / "a.jsonl", "--resume", position, "--start", "1")
        position.write_text("{}")
        with pytest.raises(ConfigError, match="no position of a replay"):
            command(tmp_path / "a.jsonl", "--resume", position)

    def test_what_was_saved_has_been_acknowledged(self, tmp_path, monkeypatch):
        monkeypatch.setattr("broker_filter.replay.publish.SAVE_S", -1.0)
        packet_file(tmp_path / "a.jsonl", [61000.0, 61001.0, 61002.0])
        sink = MemorySink()
        sink.failure = TransientError("broker is gone")
        position = tmp_path / "p"
        with pytest.raises(TransientError):
            command(tmp_path / "a.jsonl", "--resume", position, sink=sink)
        assert not position.exists()


class TestInjection:
    def test_truth_is_written_and_the_flux_is_magnified(self, tmp_path):
        rows = (f"{2455260.5 + n / 10:.2f} 18.0 0.01" for n in range(400))
        (tmp_path / "star_I.dat").write_text("\n".join(rows))
        config = tmp_path / "inject.yaml"
        config.write_text("share: 1.0\nu0: {low: 0.1, high: 0.1}\nf_s: {low: 1, high: 1}\n")
        status, sink = command(tmp_path / "star_I.dat", "--inject", config)
        run_line, event = map(
            json.loads, (tmp_path / "inject.truth.jsonl").read_text().splitlines()
        )
        assert status == 0
        assert (run_line["kind"], event["star"], event["epochs"]) == ("run", "star_I", 400)
        flux = np.array([part.flux[0] for part in published(sink)])
        plain = np.array([part.flux[0] for part in published(command(tmp_path / "star_I.dat")[1])])
        assert flux.max() > 2 * plain.max()

    @pytest.mark.parametrize("option", [("--loop", "2"), ("--resume", "p")])
    def test_goes_with_neither_loop_nor_resume(self, folder, option):
        (folder / "inject.yaml").write_text("share: 0.5")
        with pytest.raises(ConfigError, match="--inject"):
            command(folder, "--inject", folder / "inject.yaml", *option)

    def test_times_lie_in_what_is_replayed(self, tmp_path, capsys):
        """One star lies outside of it, and of the other only its middle is replayed."""
        rows = [f"{2455260.5 + n} 18.0 0.01" for n in range(100)]
        (tmp_path / "long_I.dat").write_text("\n".join(rows))
        (tmp_path / "early_I.dat").write_text("2455200.5 18.0 0.01\n2455201.5 18.1 0.01\n")
        (tmp_path / "config").mkdir()
        config = tmp_path / "config" / "inject.yaml"
        for seed in range(5):
            config.write_text(f"share: 1.0\nseed: {seed}\n")
            limits = ("--start", "55300", "--stop", "55310.5")
            files = tmp_path / "long_I.dat", tmp_path / "early_I.dat"
            status, _ = command(*files, "--inject", config, *limits, "--json")
            truth = config.with_suffix(".truth.jsonl")
            _, event = map(json.loads, truth.read_text().splitlines())
            assert status == 0
            assert 55300 <= event["t0"] <= 55310.5
            found = json.loads(capsys.readouterr().out)
            assert (found["lensed"], found["stars"]) == (1, 1)

    def test_says_how_many_stars_were_lensed(self, tmp_path, capsys):
        (tmp_path / "star_I.dat").write_text("2455260.5 18.0 0.01\n2455261.5 18.1 0.01\n")
        config = tmp_path / "inject.yaml"
        config.write_text("share: 1.0e-9\n")
        command(tmp_path / "star_I.dat", "--inject", config)
        assert "0 of 1 stars were lensed" in capsys.readouterr().err

    def test_a_time_outside_of_what_is_replayed_is_refused(self, folder, tmp_path_factory):
        config = tmp_path_factory.mktemp("config") / "inject.yaml"
        config.write_text("share: 1.0\nt0: {low: 61000, high: 61010}\n")
        with pytest.raises(ConfigError, match="t0 from 61000 to 61010 lies outside"):
            command(folder, "--inject", config, "--stop", "60000")


class TestWhatIsLeftOut:
    def test_copies_under_other_names_are_named_and_left_out(self, tmp_path, capsys):
        rows = [f"{2455260.5 + n} 18.{n % 7} 0.01" for n in range(40)]
        for name, kept in (("a.dat", rows), ("copy of a.dat", rows), ("older.txt", rows[:35])):
            (tmp_path / name).write_text("\n".join(kept))
        other = [row.replace(" 18.", " 17.") for row in rows]
        (tmp_path / "b.dat").write_text("\n".join(other))
        status, sink = command(tmp_path, "--star", "S", "--epochs-per-message", "100")
        assert status == 0
        assert sum(map(len, published(sink))) == 80
        err = capsys.readouterr().err
        for name in ("copy of a.dat", "older.txt"):
            assert (
                f"{tmp_path / name}: left out, its epochs are those of {tmp_path / 'a.dat'}" in err
            )

    def test_half_a_file_in_common_is_no_copy(self, tmp_path):
        rows = [f"{2455260.5 + n} 18.{n % 7} 0.01" for n in range(40)]
        (tmp_path / "a.dat").write_text("\n".join(rows[:30]))
        (tmp_path / "b.dat").write_text("\n".join(rows[15:]))
        _, sink = command(tmp_path)
        assert sum(map(len, published(sink))) == 55

    def test_hidden_files_and_folders(self, tmp_path, capsys):
        for place in (".ipynb_checkpoints/a.dat", "__MACOSX/a.dat", ".git/x.dat", "._b.dat"):
            (tmp_path / place).parent.mkdir(exist_ok=True)
            (tmp_path / place).write_text("2455260.5 17.0 0.01\n2455261.5 17.1 0.01\n")
        (tmp_path / "a.dat").write_text("2455260.5 18.0 0.01\n")
        status, sink = command(tmp_path)
        assert (status, len(sink.messages)) == (0, 1)
        assert "4 hidden files left out" in capsys.readouterr().err
        _, sink = command(tmp_path / "._b.dat")  # named, so it is wanted
        assert len(sink.messages) == 2

    def test_hidden_members_of_a_zip(self, tmp_path, capsys):
        path = tmp_path / "a.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/a.dat", "2455260.5 18.0 0.01\n")
            archive.writestr("__MACOSX/x/._a.dat", "\0\5\x16\7")
        status, sink = command(path)
        assert (status, len(sink.messages)) == (0, 1)
        assert "1 hidden files left out" in capsys.readouterr().err


class TestWhatAColumnHolds:
    def test_the_caller_says_what_is_measured(self, tmp_path, capsys):
        path = tmp_path / "norm.dat"
        path.write_text("".join(f"{2458000.5 + n} {1 - n / 100} 0.002\n" for n in range(9)))
        status, sink = command(path)
        assert (status, len(sink.messages)) == (3, 0)
        assert "--quantity" in capsys.readouterr().err
        status, sink = command(path, "--quantity", "flux")
        assert [part.flux[0] for part in published(sink)] == pytest.approx(1 - np.arange(9) / 100)

    def test_a_column_may_be_left_unread(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("mjd,mag,err,quality\n58000,18,0.1,0.7\n58001,18,0.1,0.9\n")
        assert command(path)[0] == 3
        assert command(path, "--ignore-column", "Quality")[0] == 0

    def test_names_of_stars_do_not_reach_the_terminal_as_they_are(self, tmp_path, capsys):
        path = tmp_path / "a.csv"
        path.write_text("star,mjd,mag,err\na\x1b[2J,58000,18,0.1\n")
        assert command(path)[0] == 0
        err = capsys.readouterr().err
        assert "a?[2J" in err
        assert "\x1b[2J" not in err


def test_a_damaged_zip_is_named_and_the_rest_is_sent(folder, capsys):
    others = command(folder)[1].messages
    path = folder / "damaged.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("three_I.dat", GOOD)
    content = path.read_bytes()
    damage = [content[: len(content) // 2] + content[-40:]]
    for index in range(len(content)):
        spoilt = bytearray(content)
        spoilt[index] ^= 0xFF
        damage.append(bytes(spoilt))
    for spoilt in damage:
        path.write_bytes(spoilt)
        status, sink = command(folder)
        sent = [message for message in sink.messages if message.key != b"three_I"]
        assert sent == others
        assert status in (0, 3)
    assert "damaged.zip" in capsys.readouterr().err


def test_a_zip_of_light_curves(folder, tmp_path_factory, capsys):
    path = tmp_path_factory.mktemp("zip") / "curves.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"inner/{file.name}")
        archive.writestr("inner/bad.dat", "")
    status, sink = command(path)
    assert [m.key for m in sink.messages] == [b"one_I", b"two_I", b"one_I"]
    assert status == 3
    err = capsys.readouterr().err
    assert "curves.zip/inner/bad.dat: no row" in err
    assert "curves.zip/inner/two_I.dat:2: bad error" in err


def test_a_missing_topic_is_said_by_its_option_before_anything_is_sent(folder, monkeypatch):
    class NoTopic(MemorySink):
        def require(self, topics):
            raise ConfigError(f"there is no topic: {topics}")

    sink = NoTopic()
    monkeypatch.setattr("broker_filter.commands.replay.open_sink", lambda *_: sink)
    monkeypatch.setattr("broker_filter.commands.replay.stop_on_signals", lambda _: None)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(ConfigError, match="'t': '--topic'"):
        run(parser.parse_args([str(folder), "--topic", "t"]))
    assert sink.messages == []


def test_a_topic_cannot_be_replayed_into_itself():
    with pytest.raises(ConfigError, match="into itself"):
        command("kafka://127.0.0.1:1/t")


@pytest.mark.shared_data
def test_kmt_2019_blg_2073_goes_out_whole(shared_data):
    """Six files as six sources of one star: every row of theirs, by time."""
    folder = shared_data / "photometry" / "kmt_2019_blg_2073"
    rows = sum(len(path.read_text().splitlines()) - 1 for path in folder.iterdir())
    status, sink = command(folder, "--star", "KMT-2019-BLG-2073", "--survey", "kmtnet")
    sent = published(sink)
    assert status == 0
    assert sum(map(len, sent)) == rows
    assert len({part.source for part in sent}) == 6
    assert (np.diff([part.mjd_tai[0] for part in sent]) >= 0).all()


@pytest.mark.shared_data
def test_ogle_2005_blg_390_goes_out_whole(shared_data):
    curves, unreadable = load(expand([shared_data / "photometry" / "mulensmodel" / "OB05390"]))
    assert not unreadable
    report = replay([part for c in curves for part in c.parts], MemorySink(), "t")
    assert report.epochs == 12 + 151 + 52 + 28 + 342 + 65


@pytest.mark.shared_data
def test_real_packets_with_events_have_the_epochs_that_they_had(shared_data, tmp_path):
    alerts = shared_data / "alerts"
    sources = [*sorted((alerts / "ztf").glob("v4*.avro")), *sorted((alerts / "lsst").glob("v10*"))]
    config = tmp_path / "inject.yaml"
    config.write_text("share: 1\nt0: {low: 61000, high: 61000}\ntE: {low: 9, high: 9}\n")
    arguments = (*sources, "--schema-folder", alerts / "avsc")
    plain, lensed = command(*arguments), command(*arguments, "--inject", config)
    assert plain[0] == lensed[0] == 0
    one, other = (epochs(sink, alerts / "avsc") for _, sink in (plain, lensed))
    assert one.keys() == other.keys()
    changed = {epoch[0] for epoch, flux in one.items() if other[epoch] != np.float32(flux)}
    truth = list(map(json.loads, (tmp_path / "inject.truth.jsonl").read_text().splitlines()))
    assert {str(star) for star in changed} == {line["star"] for line in truth[1:]}
    assert len(changed) > 3


def epochs(sink: MemorySink, schemas) -> dict[tuple[object, str, float], float]:
    """Flux of each epoch that a filter finds in what was published."""
    decoder = make_decoder(Input(schema_folder=schemas))
    found: dict[tuple[object, str, float], float] = {}
    for sent in sink.messages:
        message = Message("t", 0, 0, sent.key, sent.value, headers=sent.headers)
        for part in decoder.decode(message).photometry:
            keys = zip(part.star, repeat(part.band), part.mjd_tai.tolist(), strict=False)
            found.update(zip(keys, part.flux.tolist(), strict=True))
    return found
