"""The suite: what it runs, what it writes, and what reaches the card."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_filter.errors import ConfigError
from broker_filter.inference import zoo
from model_zoo import cli
from model_zoo.evaluate import parts, suite
from model_zoo.evaluate.parts import PARTS
from model_zoo.evaluate.report.card import ACCURACY, card_figures
from model_zoo.evaluate.sets import Sizes
from model_zoo.evaluate.suite import evaluate
from model_zoo.training.entry import gate_of, refile

SMALL = Sizes(60, 60, 250, 2, 10, 20, 30)


@pytest.fixture(scope="module")
def entry() -> zoo.Entry:
    return zoo.verify(zoo.find("fspl-paper-1.0.0"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "QUICK", SMALL)


@pytest.mark.usefixtures("small")
def test_parts_are_written_one_by_one_and_kept(entry: zoo.Entry, tmp_path: Path) -> None:
    first = evaluate(entry, tmp_path, parts=["calibration"], quick=True, quiet=True)
    both = evaluate(entry, tmp_path, parts=["posteriors"], quick=True, quiet=True)
    assert json.loads((tmp_path / "results.json").read_text()) == both
    assert both["calibration"] == first["calibration"]
    assert (both["calibration"]["n_tail"], both["posteriors"]["n_posterior"]) == (250, 20)
    report = (tmp_path / "report.md").read_text()
    assert "## Calibration of K" in report
    assert "## Posteriors" in report
    assert list(tmp_path.glob("calibration*.png"))


@pytest.mark.usefixtures("small")
def test_pictures_are_drawn_anew_from_results_alone(entry: zoo.Entry, tmp_path: Path) -> None:
    measured = evaluate(entry, tmp_path, parts=["calibration"], quick=True, quiet=True)
    for picture in tmp_path.glob("*.png"):
        picture.unlink()
    assert evaluate(entry, tmp_path, quick=True, redraw=True, quiet=True) == measured
    assert list(tmp_path.glob("calibration*.png"))


def test_the_card_has_fit_and_flow_with_the_same_figures() -> None:
    by_name = dict.fromkeys(("t0", "u0", "log10_tE", "log10_rho", "f_s"), 0.1)
    keys = ("rmse", "median_error", "coverage68", "coverage95")
    side = {"n": 500, "seconds_median": 0.2, "ranks": {}, **dict.fromkeys(keys, by_name)}
    part = {"fit": {"converged": 0.97, **side}, "flow": side}
    figures = card_figures({"fit": part})
    assert set(figures["flow"]) == {"n", "seconds_median", *keys}
    assert set(figures["fit"]) == {*figures["flow"], "converged"}
    nested = {"within_3": 48, "n": 50, "width_ratio_median": 1.01}
    figures = card_figures({"fit": part, "nested": nested, "emcee": {"ratio_median": 90.0}})
    assert (figures["fit"]["lnz_within_3"], figures["fit"]["lnz_events"]) == (48, 50)
    assert figures["fit"]["emcee_over_fit"] == 90.0


def test_an_unknown_part_is_refused(entry: zoo.Entry, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\['weather'\] are not among detection"):
        evaluate(entry, tmp_path, parts=["weather"], quick=True, quiet=True)


def test_parts_of_white_noise_are_refused_for_other_noise(tmp_path: Path) -> None:
    ground = zoo.verify(zoo.find("fspl-ground-1.0.0"))
    with pytest.raises(ConfigError, match=r"exact: of white noise only, and fspl-ground-1\.0\.0"):
        evaluate(ground, tmp_path, parts=["exact", "streams"], quick=True, quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("held", ['{"model_id": "other-1.0.0", "sizes": {}}', "{", "{}"])
def test_results_of_something_else_are_not_overwritten(
    entry: zoo.Entry, tmp_path: Path, held: str
) -> None:
    (tmp_path / "results.json").write_text(held)
    with pytest.raises(ConfigError, match="choose another --out"):
        evaluate(entry, tmp_path, parts=["calibration"], quick=True, quiet=True)
    assert (tmp_path / "results.json").read_text() == held


def results(**changes: Any) -> dict[str, Any]:
    """As the parts give them, with round numbers."""
    share = {"share": 0.99}
    detectors = {
        name: {"all": share, "rho_ge_5": {"share": 0.9}}
        for name in ("network_zero_fp", "network_0.8")
    }
    by_name = dict.fromkeys(("t0", "u0", "log10_tE", "log10_rho", "f_s"), 0.1)
    posteriors = dict.fromkeys(
        ("bias", "rmse", "median_abs_error", "r", "coverage68", "coverage95"), by_name
    )
    return {
        "model_id": "fspl-paper-1.0.0",
        "detection": {
            "n_noise": 50,
            "false_alarms": {"network_zero_fp": {"false_alarms": 1}},
            "sets": {"own": {"n": 40, "detectors": detectors}},
        },
        "calibration": {
            "n_tail": 250,
            "k_tail": [{"k": 10.0, "observed": 0.0, "bound": 0.1, "count": 0}],
            "mean_k_noise": 0.5,
            "highest_log10_k": [4.2, 1.0],
        },
        "posteriors": {"n_posterior": 20, "tarp_max_deviation": 0.02, **posteriors},
        **changes,
    }


def test_a_card_gets_the_figures_of_the_parts_that_ran() -> None:
    figures = card_figures(results())
    assert figures["tpr_zero_fp"] == 0.99
    assert figures["fp_noise"] == 1
    assert figures["tpr_rho_ge_5"] == 0.9
    assert figures["k_tail"] == [{"k": 10.0, "observed": 0.0, "bound": 0.1}]
    assert figures["rmse"]["f_s"] == 0.1
    assert "npe_10k_ms" not in figures
    assert "tpr_certified_6_6" not in figures
    assert set(PARTS) > {"certified", "exact", "streams", "speed", "sharing", "toy"}


def test_the_alert_threshold_does_not_move_with_the_size_of_the_test() -> None:
    rng = np.random.default_rng(0)
    gates = []
    for n in (100_000, 400_000, 2_000_000):
        highest = np.sort(-np.log10(rng.uniform(size=n)))[::-1][:20]
        gates.append(gate_of({"highest_log10_k": highest.tolist(), "n_tail": n})["log10_k"])
    assert max(gates) - min(gates) < 1.0
    assert gate_of({"highest_log10_k": [4.5, 3.4, 2.0], "n_tail": 200_000})["log10_k"] == 3.4
    assert gate_of({"highest_log10_k": [2.9, 2.0], "n_tail": 4_000})["log10_k"] == 3.0


def test_a_card_without_a_gate_tells_efficiency_by_brightness_length_and_time() -> None:
    part = results()["detection"]
    bins = {"share": [None, 0.8], "low68": [0.0, 0.7], "high68": [1.0, 0.9]}
    table = {"edges": [0.0, 5.0, 10.0], "n": [0, 30], "network_zero_fp": bins, "other": bins}
    part["sets"]["own"]["efficiency"] = {"snr": table, "log10_tE": table}
    assert "efficiency_by_snr" not in card_figures({"detection": part})
    figures = card_figures({"detection": part | {"rising": {"n": 7}}})
    row = {"n": 30, "share": 0.8, "low68": 0.7, "high68": 0.9}
    assert figures["efficiency_by_snr"] == [{"snr_low": 5.0, "snr_high": 10.0, **row}]
    assert figures["efficiency_by_tE"] == [{"log10_tE_low": 5.0, "log10_tE_high": 10.0, **row}]
    assert figures["rising"] == {"n": 7}


@pytest.mark.parametrize("holds", [True, False])
def test_k_that_fails_on_noise_comes_with_a_map_that_mends_it(
    entry: zoo.Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds: bool
) -> None:
    class Mended:
        def to_card(self) -> dict[str, Any]:
            return {"raw": [0.0, 1.0], "log10_k": [0.0, 0.5], "n_noise": 25}

    measured = results()["calibration"] | {"tail_holds": holds, "mean_k_holds": True}
    monkeypatch.setattr(parts, "measure_calibration", lambda *_, **__: dict(measured))
    monkeypatch.setattr(parts, "measure_recalibration", lambda *_, **__: Mended())
    monkeypatch.setitem(suite.PICTURES, "calibration", lambda *_: None)
    found = evaluate(entry, tmp_path, parts=["calibration"], quick=True, quiet=True)
    assert ("recalibration" in found["calibration"]) is not holds
    assert ("recalibration" in card_figures(found)) is not holds


def test_an_interrupt_keeps_the_parts_that_were_done(
    entry: zoo.Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setitem(PARTS, "exact", lambda _: {"n": 3})
    monkeypatch.setitem(PARTS, "streams", interrupted)
    monkeypatch.delitem(suite.PICTURES, "exact")
    arguments = ["evaluate", str(entry.path), "--out", str(tmp_path), "--quick", "--quiet"]
    assert cli.main([*arguments, "--parts", "exact,streams"]) == 130
    assert json.loads((tmp_path / "results.json").read_text())["exact"]["n"] == 3
    assert "## K against exact evidence" in (tmp_path / "report.md").read_text()
    assert not list(tmp_path.glob("*part*"))


def test_the_command_prints_budgets_and_their_efficiencies(
    entry: zoo.Entry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"stars": 2e8, "false_alarms_per_night": 10.0, "threshold": 6.602}
    row |= {"efficiency_network": 0.998, "efficiency_certified": 0.9971}
    part = {"tpr_certified_6_6": 0.9981, "n_events": 100, "budgets": [row]}
    part["refined"] = {name: {"t0": 0.5} for name in ("rmse_of_means", "r", "median_abs_error")}
    part["refined"] |= {name: {"t0": 0.5} for name in ACCURACY}
    monkeypatch.setitem(PARTS, "certified", lambda _: dict(part))
    arguments = ["--parts", "certified", "--quick", "--quiet", "--out", str(tmp_path)]
    assert cli.main(["evaluate", str(entry.path), *arguments]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["tpr_certified_6_6", "0.9981"] in words
    assert ["10", "200,000,000", "6.60", "99.80%", "99.71%"] in words


def copy_of(entry: zoo.Entry, folder: Path) -> zoo.Entry:
    return zoo.verify(Path(shutil.copytree(entry.path, folder / entry.model_id)))


def test_a_card_keeps_the_figures_of_parts_that_did_not_run(
    entry: zoo.Entry, tmp_path: Path
) -> None:
    copy = copy_of(entry, tmp_path)
    measured = results()["posteriors"]
    card = refile(copy, {"model_id": entry.model_id, "posteriors": measured})
    kept = {"tpr_zero_fp", "k_tail", "npe_10k_ms"}
    before = entry.card.evaluation
    assert {name: card.evaluation[name] for name in kept} == {name: before[name] for name in kept}
    assert card.evaluation["coverage68"] == measured["coverage68"] != before["coverage68"]
    assert card.gate == entry.card.gate


def test_a_full_disk_leaves_the_card_as_it_was(
    entry: zoo.Entry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = copy_of(entry, tmp_path / "zoo")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setitem(PARTS, "exact", lambda _: {"n": 3})
    monkeypatch.delitem(suite.PICTURES, "exact")
    monkeypatch.setattr("safetensors.torch.save_file", full)
    arguments = ["--parts", "exact", "--quick", "--quiet", "--update-card"]
    out = ["--out", str(tmp_path / "report")]
    assert cli.main(["evaluate", str(copy.path), *arguments, *out]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert "not written" in message
    assert "No space left" in message
    assert zoo.verify(copy.path).card == entry.card
    assert [path.name for path in (tmp_path / "zoo").iterdir()] == [entry.model_id]


def test_a_card_of_another_version_says_so_before_anything_is_measured(
    entry: zoo.Entry, tmp_path: Path
) -> None:
    training = {"config": entry.card.training["config"] | {"colour": "blue"}}
    for held in (training, {}):
        other = replace(entry, card=entry.card.model_copy(update={"training": held}))
        with pytest.raises(ConfigError, match=r"card\.json: training\.config is not one that"):
            evaluate(other, tmp_path / "out", quick=True, quiet=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("small")
def test_results_of_other_weights_are_not_mixed_in(entry: zoo.Entry, tmp_path: Path) -> None:
    evaluate(entry, tmp_path, parts=["posteriors"], quick=True, quiet=True)
    retrained = replace(entry, sha256="0" * 64)
    with pytest.raises(ConfigError, match="of other weights"):
        evaluate(retrained, tmp_path, parts=["posteriors"], quick=True, quiet=True)


def test_an_entry_is_filed_anew_with_its_figures(entry: zoo.Entry, tmp_path: Path) -> None:
    copy = copy_of(entry, tmp_path)
    refile(copy, results())
    once = zoo.verify(copy.path)
    refile(once, results())
    again = zoo.verify(copy.path)
    assert again.sha256 == once.sha256
    assert again.card.evaluation["tpr_zero_fp"] == 0.99
    assert again.threshold == 4.2
    with pytest.raises(ConfigError, match="not of fspl-paper"):
        refile(again, results(model_id="fspl-other-1.0.0"))
    assert zoo.verify(copy.path).card == again.card
