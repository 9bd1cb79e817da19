"""The suite: what it runs, what it writes, and what reaches the card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker_filter import zoo
from broker_filter.errors import ConfigError
from model_zoo.entry import refile
from model_zoo.evaluate import suite
from model_zoo.evaluate.sets import Sizes
from model_zoo.evaluate.suite import PARTS, card_figures, evaluate

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


def test_an_unknown_part_is_refused(entry: zoo.Entry, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\['weather'\] are not among detection"):
        evaluate(entry, tmp_path, parts=["weather"], quick=True, quiet=True)


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


def test_an_entry_is_filed_anew_with_its_figures(entry: zoo.Entry, tmp_path: Path) -> None:
    import shutil

    copy = zoo.verify(Path(shutil.copytree(entry.path, tmp_path / entry.model_id)))
    refile(copy, results())
    once = zoo.verify(copy.path)
    refile(once, results())
    again = zoo.verify(copy.path)
    assert again.sha256 == once.sha256
    assert again.card.evaluation["tpr_zero_fp"] == 0.99
    assert again.threshold == 4.7
    with pytest.raises(ConfigError, match="not of fspl-paper"):
        refile(again, results(model_id="fspl-other-1.0.0"))
    assert zoo.verify(copy.path).card == again.card
