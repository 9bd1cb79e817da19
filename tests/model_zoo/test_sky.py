"""The record on labelled stars: tables, files in archives, and what is counted."""

from __future__ import annotations

import json
import multiprocessing
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from broker_filter.errors import ConfigError
from broker_filter.inference import zoo
from model_zoo.cli import main
from model_zoo.evaluate.labels import LABELS, LabelledStar, read_labels, some_of_each
from model_zoo.evaluate.measure.service_path import START, one_star
from model_zoo.evaluate.served import SERVED, serving
from model_zoo.evaluate.sky import Filter, Filters, _sent, evaluate_sky
from model_zoo.evaluate.sky_files import digest, read_star
from model_zoo.evaluate.sky_records import (
    AlertRecord,
    StarRecord,
    WindowRecord,
    append_record,
    read_records,
)
from model_zoo.evaluate.sky_summary import sky_table, summary
from model_zoo.evaluate.suite import add_part

HEAD = "path,star,band,class,survey,t0,tE\n"
SHARED = Path(__file__).parents[3] / "shared" / "data"


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    return path


def test_files_of_one_name_are_one_star(tmp_path: Path) -> None:
    rows = "a.dat,x,I,microlensing,KMT,59000.5,1.5\nb.dat,x,V,microlensing,KMT,59000.5,1.5\n"
    assert read_labels(table(tmp_path, HEAD + rows)) == [
        LabelledStar("x", "microlensing", "KMT", (("a.dat", "I"), ("b.dat", "V")), 59000.5, 1.5)
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("path,star\na,x\n", "lacks the columns"),
        (HEAD + "a,x,I,quiet,KMT,,\nb,x,I,flare,KMT,,\n", "contradict"),
        (HEAD + "a,x,I,quiet,KMT,soon,\n", "no number"),
        (HEAD + "a,x,I,quiet,KMT,nan,\n", "no MJD"),
        (HEAD + "a,x,I,quiet,KMT,2459000,3\n", "no MJD"),
        (HEAD + "a,x,I,quiet,KMT,59000,-3\n", "no length"),
        (HEAD + "a,x,I,quiet,KMT\n", "line 2 has too few cells"),
        (HEAD + "a,x,I,quiet,KMT,,,,\n", "or too many"),
        (HEAD + "a,x,I,quiet,KMT,,\na,x,V,quiet,KMT,,\n", "a file twice"),
        (HEAD + "a,x,I,quiet,KMT,,\nb\0.dat,y,I,quiet,KMT,,\n", "line 3 has a NUL"),
        (HEAD, "has no star"),
        ("", "lacks the columns"),
        ("path,star\n", "lacks the columns"),
    ],
)
def test_tables_that_do_not_do_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_labels(table(tmp_path, text))


def test_the_kept_table_is_one_and_its_halves_are_frozen() -> None:
    stars = read_labels(LABELS)
    assert len(stars) > 300
    halves = {one.name: one.half for one in stars}
    assert halves["OGLE-2005-BLG-390"] == "tune"
    assert 0.4 < sum(half == "tune" for half in halves.values()) / len(halves) < 0.6


def test_some_of_each_are_the_same_each_time() -> None:
    stars = read_labels(LABELS)
    few = some_of_each(stars, 2)
    assert few == some_of_each(reversed(stars), 2)
    groups = [(one.kind, one.survey) for one in few]
    assert max(groups.count(group) for group in set(groups)) == 2


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
def test_all_files_of_the_kept_table_are_there() -> None:
    for star in read_labels(LABELS):
        for path, _ in star.files:
            assert (
                (SHARED / path.partition(".zip/")[0])
                .with_suffix(".zip" if ".zip/" in path else Path(path).suffix)
                .exists()
            ), path


def test_members_of_an_archive_are_read(tmp_path: Path) -> None:
    rows = "".join(f"{2455262.5 + i:.5f} 18.{i % 7}00 0.020\n" for i in range(40))
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("deep/star.dat", rows)
    star = LabelledStar("s", "quiet", "OGLE", (("some.zip/deep/star.dat", "I"),), None, None)
    (part,) = read_star(tmp_path, star)
    assert (part.star[0], part.band, part.survey, len(part)) == ("s", "I", "OGLE", 40)
    missing = LabelledStar("s", "quiet", "OGLE", (("some.zip/no.dat", "I"),), None, None)
    with pytest.raises(ConfigError, match=r"no\.dat"):
        read_star(tmp_path, missing)


def test_two_files_of_one_source_are_not_one_light_curve(tmp_path: Path) -> None:
    rows = "".join(f"{2455262.5 + i:.5f} 18.{i % 7}00 0.020\n" for i in range(40))
    for site in ("chile", "africa"):
        (tmp_path / site).mkdir()
        (tmp_path / site / "I.dat").write_text(rows)
    files = (("chile/I.dat", "I"), ("africa/I.dat", "I"))
    with pytest.raises(ConfigError, match=r"chile/I\.dat and africa/I\.dat both are band 'I'"):
        read_star(tmp_path, LabelledStar("s", "quiet", "KMT", files, None, None))


def test_a_star_of_which_every_epoch_is_refused_is_none_without_events(tmp_path: Path) -> None:
    rows = "".join(f"{2455262.5 + i:.5f} 18.{i % 7}00 0.020\n" for i in range(4))
    (tmp_path / "a.dat").write_text(rows)
    star = LabelledStar("a", "quiet", "", (("a.dat", "I"),), None, None)
    assert "survey" in Filters(tmp_path, entry_of)(star).problem


def test_a_folder_is_no_light_curve(tmp_path: Path) -> None:
    star = LabelledStar("a", "quiet", "OGLE", ((".", "I"),), None, None)
    with pytest.raises(ConfigError, match="found a folder"):
        read_star(tmp_path, star)


def test_a_damaged_member_of_an_archive_is_a_problem_of_its_star(tmp_path: Path) -> None:
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("star.dat", "2455262.5 18.1 0.02\n" * 500)
    data = bytearray(path.read_bytes())
    data[38:48] = bytes(10)
    path.write_bytes(data)
    star = LabelledStar("s", "quiet", "OGLE", (("some.zip/star.dat", "I"),), None, None)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_star(tmp_path, star)


def alert(mjd: float, verdict: str, event: str = "e") -> AlertRecord:
    spread = (mjd - 0.1, mjd, mjd + 0.1)
    return AlertRecord(mjd, event, "new", 9.0, verdict, "", {}, {}, spread, 2.0)


def entry_of(_: LabelledStar) -> zoo.Entry:
    return zoo.verify(zoo.find("fspl-roman-1.0.0"))


def test_summary_counts_windows_alerts_and_verdicts() -> None:
    nova = LabelledStar("n", "dwarf-nova", "OGLE", (), None, None)
    windows = [WindowRecord(t, k, c) for t, k, c in [(1, 0.0, None), (2, 4.0, 7.0), (3, 5.0, 4.0)]]
    alerts = [alert(2, "outburst"), alert(3, "microlensing", "f")]
    unread = StarRecord(LabelledStar("u", "flare", "TESS", (), None, None), problem="no such file")
    found = summary([StarRecord(nova, 2.0, windows, alerts), unread], entry_of)
    (row,) = found["classes"]
    assert (row["class"], row["stars"], row["windows"], row["network_above"]) == (
        *("dwarf-nova", 1),
        *(3, 2),
    )
    assert (row["certified_above_3"], row["certified_above_6_6"]) == (2, 1)
    assert row["verdicts"] == {"microlensing": 1, "outburst": 1}
    assert row["stars_with_verdict_microlensing"] == 1
    assert (row["events"], row["events_called_lens"]) == (2, 1)
    assert row["events_per_star_year"] == 1.0
    assert 3 < row["events_per_star_year_below"] < 3.3
    assert found["unreadable"] == [{"name": "u", "problem": "no such file"}]
    assert "dwarf-nova" in sky_table(found)


def test_a_window_begins_every_quarter_of_its_length_whatever_the_evaluations() -> None:
    star = LabelledStar("q", "quiet", "OGLE", (), None, None)
    windows = [WindowRecord(t, 0.0) for t in (1000.0, 1002.0, 1004.0, 1006.0, 1200.0)]
    (row,) = summary([StarRecord(star, 2.0, windows)], entry_of)["classes"]
    assert (row["windows"], row["windows_begun"]) == (5, 3)  # of 20 d: one in 5 d


def test_bright_stars_count_by_their_last_verdict() -> None:
    def one(delta_chi2: float, *verdicts: str) -> StarRecord:
        star = LabelledStar("s", "dwarf-nova", "OGLE", (), None, None)
        windows = [WindowRecord(1.0, 0.0, point_lens=(delta_chi2, 1.0)), WindowRecord(2.0, 0.0)]
        return StarRecord(star, 1.0, windows, [alert(2, verdict) for verdict in verdicts])

    records = [one(700.0, "outburst", "unclear", "none"), one(700.0), one(600.0, "microlensing")]
    (row,) = summary(records, entry_of)["classes"]
    assert row["bright_stars"] == {"none": 1, "unclear": 1}


def test_other_searches_count_the_windows_that_were_shown_to_them() -> None:
    nova = LabelledStar("n", "dwarf-nova", "OGLE", (), None, None)
    windows = [
        WindowRecord(1, 0.0, point_lens=(600.0, 1.5), wavelet=True),
        WindowRecord(2, 0.0, point_lens=(900.0, 7.0)),
        WindowRecord(3, 0.0, point_lens=(20.0, 1.0), wavelet=False),
        WindowRecord(4, 0.0),
    ]
    (row,) = summary([StarRecord(nova, 2.0, windows)], entry_of)["classes"]
    assert row["searches"] == {
        "point_lens": {"passed": 2, "of": 3},
        "good_point_lens": {"passed": 1, "of": 3},
        "microwavelet": {"passed": 1, "of": 2},
    }


def test_stars_are_chosen_by_how_their_survey_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"no.dat,{s},I,quiet,{s},,\n" for s in ("OGLE-II LMC", "KMT raw", "ZTF"))
    labels = table(tmp_path, HEAD + rows)
    asked = ["evaluate", "fspl-roman-1.0.0", "--sky", str(tmp_path), "--labels", str(labels)]
    out = tmp_path / "out"
    main([*asked, "--half", "all", "--jobs", "1", "--surveys", "ogle,KMT", "--out", str(out)])
    found = json.loads((out / "sky.json").read_text())
    assert [one["name"] for one in found["unreadable"]] == ["OGLE-II LMC", "KMT raw"]
    assert found["surveys"] == ["ogle", "kmt"]
    assert "sky.json" in capsys.readouterr().out


@pytest.mark.parametrize("there", ["{", "[]", '{"sizes": {}}', '{"sizes": {"tail": "x"}}'])
def test_a_folder_with_another_report_is_refused_before_stars_are_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str
) -> None:
    (tmp_path / "results.json").write_text(there)
    labels = table(tmp_path, HEAD + "no.dat,a,I,quiet,OGLE,,\n")
    command = ["evaluate", "fspl-roman-1.0.0", "--sky", str(tmp_path), "--labels", str(labels)]
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert not (tmp_path / "sky_stars.jsonl").exists()


def test_all_stars_of_another_table_go_each_through_the_entry_of_its_survey(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(
        f"no.dat,star {i},I,quiet,{s},,\n" for i, s in enumerate(("KMT", "ZTF", "Roman"))
    )
    labels, out = table(tmp_path, HEAD + rows), tmp_path / "out"
    assert not main(
        ["evaluate", "--sky", str(tmp_path), "--labels", str(labels), "--out", str(out)]
    )
    found = json.loads((out / "sky.json").read_text())
    assert found["models"] == {
        "KMT": "fspl-ground-1.0.0",
        "ZTF": "fspl-sparse-1.0.0",
        "Roman": "fspl-roman-1.0.0",
    }
    assert len(found["unreadable"]) == 3
    assert "| ZTF | fspl-sparse-1.0.0 |" in (out / "report.md").read_text()
    assert "sky.json" in capsys.readouterr().out
    assert main(["evaluate"]) == 2
    assert "which entry?" in capsys.readouterr().err


def test_all_entries_that_serve_surveys_are_in_the_zoo() -> None:
    for name in SERVED:
        assert zoo.find(name).is_dir()
    assert serving("KMT raw") == "fspl-ground-1.0.0"
    assert serving("Roman simulation") == "fspl-roman-1.0.0"


def test_processes_find_what_one_finds_and_a_second_run_goes_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for name in ("a", "b"):
        lines = [f"{2455262.5 + i / 3:.5f} {18 + rng.normal(0, 0.02):.4f} 0.02" for i in range(90)]
        (tmp_path / f"{name}.dat").write_text("\n".join(lines) + "\n")
    stars = [
        LabelledStar(name, "quiet", "OGLE", ((f"{name}.dat", "I"),), None, None)
        for name in ("a", "b", "missing")
    ]
    filters = Filters(tmp_path, entry_of, every_days=5.0)
    one = evaluate_sky(filters, stars, tmp_path / "one.jsonl")
    two = evaluate_sky(filters, stars, tmp_path / "two.jsonl", jobs=2)
    assert [record.star.name for record in two] == ["a", "b", "missing"]
    assert two == one
    assert two[0].windows
    assert "missing.dat" in two[2].problem
    for star in stars[:2]:
        (tmp_path / star.files[0][0]).unlink()
    assert evaluate_sky(filters, stars, tmp_path / "one.jsonl") == one


def test_a_star_of_which_a_file_was_edited_is_sent_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    star = LabelledStar("a", "quiet", "OGLE", (("a.dat", "I"), ("b.dat", "V")), None, None)
    for path, _ in star.files:
        (tmp_path / path).write_text("no light curve")
    filters, out = Filters(tmp_path, entry_of), tmp_path / "stars.jsonl"
    known = StarRecord(star, 1.0, photometry=digest(tmp_path, star.files))
    append_record(out, known)
    assert evaluate_sky(filters, [star], out, quiet=False) == [known]
    assert "have changed" not in capsys.readouterr().err
    (tmp_path / "b.dat").write_text("another one")
    (found,) = evaluate_sky(filters, [star], out, quiet=False)
    assert "b.dat" in found.problem or "a.dat" in found.problem
    assert found.photometry == digest(tmp_path, star.files) != known.photometry
    assert "sent again, as files have changed: a" in capsys.readouterr().err


def test_the_digest_of_a_star_is_of_what_its_files_hold(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text("18.1")
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("deep/a.dat", "18.1")
    plain = digest(tmp_path, [("a.dat", "I")])
    assert digest(tmp_path, [("some.zip/deep/a.dat", "")]) == plain
    assert digest(tmp_path, [("a.dat", "I")] * 2) != plain
    for missing in ("b.dat", "some.zip/b.dat", "no.zip/a.dat", "a.dat.zip/a.dat", "."):
        assert not digest(tmp_path, [("a.dat", "I"), (missing, "I")])


def test_only_records_that_would_come_out_again_are_kept(tmp_path: Path) -> None:
    star = LabelledStar("a", "quiet", "OGLE", (("no.dat", "I"),), None, None)
    filters = Filters(tmp_path, entry_of, every_days=5.0)
    sha256 = entry_of(star).sha256
    kept = StarRecord(star, 1.0, entry=sha256, every_days=5.0)
    older = StarRecord(star, 1.0)
    flare = replace(star, kind="flare")
    for record, now, same in (
        (kept, star, True),
        (older, star, True),
        (kept, flare, True),
        (replace(kept, entry="another"), star, False),
        (replace(kept, every_days=1.0), star, False),
        (replace(kept, problem="no such file"), star, False),
        (kept, replace(star, survey="ZTF"), False),
        (kept, replace(star, files=(("b.dat", "I"),)), False),
    ):
        out = tmp_path / "stars.jsonl"
        out.unlink(missing_ok=True)
        append_record(out, record)
        (found,) = evaluate_sky(filters, [now], out)
        assert found.star == now
        assert bool(found.problem) is not same
        assert same or (found.entry, found.every_days) == (sha256, 5.0)


def test_a_line_that_a_killed_run_left_unfinished_is_written_again(tmp_path: Path) -> None:
    out = tmp_path / "stars.jsonl"
    star = LabelledStar("a", "quiet", "OGLE", (("no.dat", "I"),), None, None)
    first, second = StarRecord(star, 1.0), StarRecord(replace(star, name="b"), 2.0)
    append_record(out, first)
    whole = out.read_text()
    out.write_text(whole + whole[: len(whole) // 2])
    assert read_records(out) == [first]
    append_record(out, second)
    assert read_records(out) == [first, second]


def _first_only(star: LabelledStar) -> zoo.Entry:
    if star.name != "0":
        threading.Event().wait(100)
    return entry_of(star)


def test_an_interruption_does_not_wait_for_the_stars_that_are_left(tmp_path: Path) -> None:
    files = (("no.dat", "I"),)
    stars = [LabelledStar(str(i), "quiet", "OGLE", files, None, None) for i in range(9)]

    def interrupt(record: StarRecord) -> None:
        raise KeyboardInterrupt(record.star.name)

    with pytest.raises(KeyboardInterrupt, match="0"):
        list(map(interrupt, _sent(Filters(tmp_path, _first_only), stars, 2)))
    assert not multiprocessing.active_children()


def test_the_star_of_an_event_is_quiet_far_from_it() -> None:
    star = LabelledStar("e", "microlensing", "KMT", (), 1000.0, 2.0)
    windows = [WindowRecord(float(t), 0.0) for t in np.arange(800, 1200, 5)]
    alerts = [alert(999, "unclear"), alert(1003, "microlensing"), alert(900, "artefact", "f")]
    found = summary([StarRecord(star, 1.0, windows, alerts)], entry_of)
    event, quiet = found["classes"]
    assert (event["class"], event["windows"]) == ("microlensing", 13)
    assert (quiet["class"], quiet["windows"]) == ("quiet", 67)
    assert quiet["verdicts"] == {"artefact": 1}
    (row,) = found["events"]
    assert row["found"]
    assert row["first_alert_mjd"] == 999
    assert row["verdict"] == "microlensing"
    assert (row["t0_p16"], row["t0"], row["t0_p84"]) == (1002.9, 1003, 1003.1)


def test_the_record_becomes_a_part_of_the_entrys_report(tmp_path: Path) -> None:
    entry = zoo.verify(zoo.find("fspl-roman-1.0.0"))
    event = LabelledStar("e", "microlensing", "KMT", (), 1000.0, 2.0)
    windows = [WindowRecord(999.0, 4.0, 5.0, 30.0, ("sumi_2011",), (700.0, 1.2), True)]
    records = [StarRecord(event, 1.0, windows, [alert(999, "microlensing")])]
    causes = [{"star": "e", "mjd": "999", "log10_k": "5", "verdict": "unclear", "cause": "clouds"}]
    found = summary(records, entry_of, causes)
    add_part(entry, tmp_path, "sky", {"half": "report", "of_stars": 9, "every_days": 1.0} | found)
    page = (tmp_path / "report.md").read_text()
    assert "| e | microlensing | 999 | 5 | unclear | clouds |" in page
    assert "1 of the 9 stars of the half (report)" in page
    assert "sky_record.png" in page
    assert "| microlensing | KMT | 1 of 1 | 1 of 1 | 1 of 1 |" in page
    assert (tmp_path / "sky_record.png").stat().st_size > 1000
    add_part(entry, tmp_path, "other", {"n": 1})
    assert {"sky", "other"} <= set(json.loads((tmp_path / "results.json").read_text()))


def test_windows_note_what_fits_and_cuts_say_of_them() -> None:
    rng = np.random.default_rng(1)
    t = np.arange(0, 40, 0.25)
    event = 1 + 2 * np.exp(-0.5 * ((t - 32) / 1.5) ** 2)
    flux = event + 0.02 * rng.standard_normal(len(t))
    part = one_star(t, flux, np.full(len(t), 0.02), (1.0, 1e-3), survey="roman")
    star = LabelledStar("star", "variable", "roman", (), None, None)
    found = Filter(zoo.verify(zoo.find("fspl-roman-1.0.0")))(star, [part])
    assert not any(window.cuts for window in found.windows if window.last < START + 25)
    assert any("mroz_2017" in window.cuts for window in found.windows)
    lenses = [window.point_lens or (0.0, 0.0) for window in found.windows]
    before = [lens[0] for lens, w in zip(lenses, found.windows, strict=True) if w.last < START + 25]
    assert max(before) < 100
    assert max(delta_chi2 for delta_chi2, _ in lenses) > 500
    looks = [w for w in found.windows if w.certified is not None and w.white is not None]
    assert max(w.certified or 0 for w in looks) > 3
    assert max(w.white or 0 for w in looks) > max(w.certified or 0 for w in looks)
    assert found.alerts


def test_the_star_of_an_event_of_unknown_length_is_nowhere_quiet() -> None:
    star = LabelledStar("e", "microlensing", "OGLE", (), 1000.0, None)
    windows = [WindowRecord(1050.0, 9.0, 8.0)]
    found = summary([StarRecord(star, 1.0, windows, [alert(1050, "unclear")])], entry_of)
    assert [row["class"] for row in found["classes"]] == ["microlensing"]
    assert found["events"][0]["found"]


def test_fits_of_windows_of_all_bands_are_noted() -> None:
    rng = np.random.default_rng(2)
    t = np.arange(0, 170, 1.5)
    flux = 1 + 3 * np.exp(-0.5 * ((t - 140) / 8) ** 2) + 0.02 * rng.standard_normal(len(t))
    part = one_star(t, flux, np.full(len(t), 0.02), (1.0, 1e-3), survey="ztf")
    star = LabelledStar("star", "variable", "ztf", (), None, None)
    found = Filter(zoo.verify(zoo.find("fspl-sparse-1.0.0")), every_days=10)(star, [part])
    assert found.alerts
    assert any((window.certified or 0) > 3 for window in found.windows)
