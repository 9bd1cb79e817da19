"""The report page: it renders whatever it is given, and sets the paper's figures beside ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_zoo.evaluate.draw.figures import allowed_log10_k
from model_zoo.evaluate.report.markdown import MOST_ROWS, cell, render, table
from model_zoo.evaluate.report.report import PAPER, TITLES, about, write_report
from model_zoo.evaluate.sets import QUICK, SEEDS

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
NESTED = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=25,
)
NAMES = ("t0", "u0", "log10_tE", "log10_rho", "f_s")


def columns(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line)) - 1


def check_tables(lines: list[str]) -> None:
    """Every row of a table is as wide as its header."""
    for block in "\n".join(lines).split("\n\n"):
        rows = [line for line in block.split("\n") if line.startswith("|")]
        assert len({columns(row) for row in rows}) <= 1, block


def share(value: float) -> dict[str, float]:
    return {"found": 9, "n": 10, "share": value, "low68": value - 0.01, "high68": value}


def detection() -> dict[str, Any]:
    bins = {"share": [0.1, None], "low68": [0.0, 0.0], "high68": [0.2, 1.0]}
    detectors = ("network_zero_fp", "johnson_2020", "snr2_ge_25")
    measured = {
        "gate": "paper-1",
        "n": 10,
        "n_rho_ge_5": 0,
        "detectors": {
            "network_0.8": {"all": share(0.9987), "rho_ge_5": {"share": None}},
            "known_template": {"all": {"share": 0.9991}},
        },
        "roc": {"network": {"auc": 0.99987}},
        "efficiency": {"snr": {"edges": [0, 5, 10], "n": [7, 0], **dict.fromkeys(detectors, bins)}},
    }
    return {
        "n_noise": 4_321,
        "sets": {"own": measured},
        "rules": {"network_0.8": {"statistic": "log10_k", "threshold": 0.8}},
        "false_alarms": {"network_0.8": {"false_alarms": 3, "of": 4_321, "rate_upper95": 0.0018}},
        "gallery": {"n": 0, "of": 10, "curves": []},
    }


@settings(max_examples=60, deadline=None)
@given(value=NESTED)
def test_whatever_json_holds_becomes_whole_tables(value: Any) -> None:
    check_tables(render(value))


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from([*TITLES, "unheard_of"]), value=NESTED)
def test_a_part_of_another_shape_still_gets_its_section(name: str, value: Any) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        text = write_report({"model_id": "x", name: value}, Path(folder)).read_text()
    check_tables(text.split("\n"))
    assert name not in TITLES or f"## {TITLES[name]}" in text


def test_cells() -> None:
    assert cell(1_234_567) == "1,234,567"
    assert cell(0.000123456) == "0.0001235"
    assert cell(True) == "yes"
    assert cell(None) == ""
    assert cell("a|b\nc") == "a\\|b c"
    assert cell([1, 2]) == "1, 2"
    assert cell([float(i) for i in range(100)]) == "100 values from 0 to 99"


def test_a_long_table_says_what_it_leaves_out() -> None:
    lines = table(["n"], [[i] for i in range(MOST_ROWS + 5)])
    assert "... and 5 more rows in the JSON." in lines
    assert f"| {MOST_ROWS - 1} |" in lines


def test_records_share_one_table() -> None:
    lines = render({"rows": [{"kind": "a", "n": 1}, {"kind": "b", "tpr": 0.5}]})
    assert "| kind | n | tpr |" in lines
    assert "| b |  | 0.5 |" in lines


def test_detection_stands_beside_the_paper(tmp_path: Path) -> None:
    text = write_report({"model_id": "m", "detection": detection()}, tmp_path).read_text()
    row = next(line for line in text.split("\n") if line.startswith("| network_0.8 | 99.87 %"))
    assert [part.strip() for part in row.split("|")][-4:-1] == ["3", "99.92 %", "95.00 %"]
    assert "alarms in 4,321" in text
    assert "| 0 to 5 | 7 | 10.00 % | 0.00 to 20.00 |" in text
    assert "| 5 to 10 |" not in text


def test_posteriors_stand_beside_the_paper(tmp_path: Path) -> None:
    measures = ("bias", "rmse", "r", "coverage68", "coverage95")
    part = {key: dict.fromkeys(NAMES, 0.123) for key in measures} | {"tarp_max_deviation": 0.0173}
    text = write_report({"posteriors": part}, tmp_path).read_text()
    assert (
        "| log10_tE | 0.123 | -0.018 | 0.123 | 0.064 | 0.123 | 0.994 | 0.123 | 0.661 "
        "| 0.123 | 0.931 |" in text
    )
    assert "0.0173" in text


def test_tail_of_noise_stands_beside_its_bound(tmp_path: Path) -> None:
    tail = [
        {"k": 10, "observed": 0.02, "bound": 0.1},
        {"k": 100, "observed": 0.03, "bound": 0.01},
    ]
    part = {"k_tail": tail, "mean_k_noise": 0.87}
    text = write_report({"calibration": part}, tmp_path).read_text()
    assert "| 10 | 0.02 | 0.1 | yes |" in text
    assert "| 100 | 0.03 | 0.01 | no |" in text
    assert "0.87" in text


def off(bias: float) -> dict[str, Any]:
    return {"n": 40, "bias": bias, "bias_error": 0.01, "scatter": 0.2, "median": 0.0}


def test_exact_evidence_has_a_row_a_range_of_k(tmp_path: Path) -> None:
    names = ("small_k", "large_k", "negative_k", "events", "noise")
    part: dict[str, Any] = {name: off(i / 100) for i, name in enumerate(names)}
    part |= {"by_snr": [{"snr_low": 5.0, "snr_high": 6.0, **off(0.07)}], "holds": True}
    part["curves"] = {"network": [0.1] * 80}
    text = write_report({"exact": part}, tmp_path).read_text()
    check_tables(text.split("\n"))
    assert "| \\|log10 K\\| < 3 | 40 | 0 | 0.01 | 0.2 | 0 |" in text
    assert "| log10 K <= -3 | 40 | 0.02 |" in text
    assert "| 5 | 6 | 40 | 0.07 |" in text
    assert "80 values" not in text


def test_streams_stand_beside_their_bound(tmp_path: Path) -> None:
    bound = {"k": 10.0, "observed": 0.2, "low": 0.15, "high": 0.25, "bound": 0.1, "holds": False}
    part = {
        "n_streams": 500,
        "sup_tail": [bound | {"count": 100}],
        "false_alarms": [bound | {"observed": 0.04, "bound": 0.02}],
        "over_time": {"day": [15.0]},
        "paths": [{"day": [15.0], "log10_k": [1.0]}],
    }
    text = write_report({"streams": part}, tmp_path).read_text()
    check_tables(text.split("\n"))
    assert "| 10 | 100 | 0.2 | 0.15 | 0.25 | 0.1 | no |" in text
    assert "| 10 | 0.04 | 0.15 | 0.25 | 0.02 | no |" in text
    assert "| n_streams | 500 |" in text


def test_certified_k_shows_budgets_and_refined_posteriors(tmp_path: Path) -> None:
    row = {"stars": 2e8, "false_alarms_per_night": 10.0, "threshold": 6.602}
    row |= {"efficiency_network": 0.998, "efficiency_certified": 0.9971}
    measures = ("bias", "rmse", "r", "coverage68", "coverage95")
    part = {
        "tpr_certified_6_6": 0.9981,
        "budgets": [row],
        "noise": {"n": 1000, "mean_k": 0.4},
        "refined": {key: dict.fromkeys(NAMES, 0.123) for key in measures},
    }
    text = write_report({"certified": part}, tmp_path).read_text()
    check_tables(text.split("\n"))
    assert "| 200,000,000 | 10 | 6.602 | 99.80 % | 99.71 % |" in text
    assert text.index("## Certified K") < text.index("### Refined posteriors")
    assert "| log10_tE | 0.123 | -0.018 | 0.123 | 0.064 |" in text
    assert "| mean_k | 0.4 |" in text


def test_pictures_are_linked_in_the_section_of_their_part(tmp_path: Path) -> None:
    for name in ("detection_roc.png", "posterior_tarp.png", "stray.png"):
        (tmp_path / name).write_bytes(b"")
    results = {"toy": {"auc": 0.7}, "posteriors": {"n": 1}, "detection": detection()}
    text = write_report(results, tmp_path).read_text()
    places = [
        text.index(part)
        for part in (
            "## Detection",
            "](detection_roc.png)",
            "## Posteriors",
            "](posterior_tarp.png)",
            "## Toy problem",
            "## More pictures",
            "](stray.png)",
        )
    ]
    assert places == sorted(places)


def test_a_picture_belongs_to_the_part_that_its_name_says_most_of(tmp_path: Path) -> None:
    for name in ("calibration_tail.png", "calibration_exact.png"):
        (tmp_path / name).write_bytes(b"")
    text = write_report({"calibration": {"n": 1}, "exact": {"n": 1}}, tmp_path).read_text()
    places = [
        text.index(part)
        for part in ("(calibration_tail.png)", "## K against exact", "(calibration_exact.png)")
    ]
    assert places == sorted(places)
    assert "More pictures" not in text


def test_an_unknown_part_comes_after_those_known(tmp_path: Path) -> None:
    results = {"red_noise": {"alarms": {"a": 1}}, "speed": {"threads": 2}}
    text = write_report(results, tmp_path).read_text()
    assert text.index("## Speed") < text.index("## Red noise")
    assert "16,400" in text


def test_a_report_says_how_it_came_about(tmp_path: Path) -> None:
    results = about("fspl-paper-1.0.0", QUICK)
    text = write_report(results, tmp_path).read_text()
    assert text.startswith("# Evaluation of fspl-paper-1.0.0\n")
    for said in (results["machine"], results["date"], "| posterior_events | 100 |"):
        assert said in text
    assert f"| validation_noise | {SEEDS['validation_noise']:,} |" in text


def test_a_report_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_report({"model_id": "old"}, tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_report({"model_id": "new"}, tmp_path)
    assert "old" in path.read_text()


def test_paper_figures_cover_every_parameter() -> None:
    assert {len(values) for values in PAPER["posteriors"].values()} == {len(NAMES)}


def test_k_of_the_gallery_is_no_higher_than_delta_chi2_allows(tmp_path: Path) -> None:
    """exp(delta chi2 / 2) is the likelihood ratio of the best lens, and no mean exceeds it."""
    assert allowed_log10_k({"log10_k": 3.0, "delta_chi2": 9.21034}) == pytest.approx(2.0, abs=1e-5)
    assert allowed_log10_k({"log10_k": 1.0, "delta_chi2": 9.21034}) == 1.0
    assert allowed_log10_k({"log10_k": 1.0, "delta_chi2": -4.0}) == 0.0
    part = detection()
    curve = {"index": 7, "log10_k": 5.0, "snr": 4.0, "delta_chi2": 9.21034, "run": 2}
    part["gallery"] = {"n": 1, "of": 10, "curves": [{**curve, "theta": [1.0] * 5}]}
    text = write_report({"detection": part}, tmp_path).read_text()
    assert "| 7 | 2 | 4 | 9.21 | 2 |" in text
