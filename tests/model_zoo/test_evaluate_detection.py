"""Detection figures: rates with known answers, and the whole part on a detector made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from broker_filter.inference.network_input import split_padding
from model_zoo.evaluate.draw.figures import draw_detection
from model_zoo.evaluate.measure import rates
from model_zoo.evaluate.measure.cuts import as_pattern
from model_zoo.evaluate.measure.detection import gates_of, measure_detection
from model_zoo.evaluate.measure.rising import PHASES, cut_off
from model_zoo.evaluate.sets import QUICK
from model_zoo.simulate.curves import Simulator
from model_zoo.simulate.prior import BLENDED_GATE

SIZES = replace(QUICK, events=60, noise=80)


class BumpFinder:
    """Stands in for a network: ln K grows with the highest mean of 8 epochs in a row."""

    def eval(self) -> BumpFinder:
        return self

    def __call__(self, x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        x, valid = split_padding(x)
        z = torch.where(valid, (x[..., 1] - 1) / x[..., 2].clamp(min=1e-9), 0.0)
        bump = torch.nn.functional.avg_pool1d(z[:, None], 8, 1)[:, 0].amax(1) * 8**0.5
        return 3 * (bump - 3.5), bump[:, None]


@pytest.fixture(scope="module")
def paper() -> dict[str, Any]:
    return measure_detection(BumpFinder(), Simulator(), SIZES, quiet=True)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ungated() -> dict[str, Any]:
    simulator = Simulator(gate=None)
    return measure_detection(BumpFinder(), simulator, SIZES, quiet=True)  # type: ignore[arg-type]


def test_wilson_interval_has_its_published_form() -> None:
    low, high = rates.wilson(5, 10)
    half = (5 * 5 / 10 + 0.25) ** 0.5 / 11
    assert (low, high) == (pytest.approx(0.5 - half), pytest.approx(0.5 + half))
    assert rates.wilson(0, 20)[0] == 0
    assert rates.wilson(20, 20)[1] == 1
    assert rates.wilson(3, 20)[0] == pytest.approx(1 - rates.wilson(17, 20)[1])
    assert rates.wilson(0, 0) == (0.0, 1.0)


def test_wilson_interval_covers_as_often_as_it_says() -> None:
    found = np.random.default_rng(1).binomial(200, 0.3, 4000)
    covered = [low < 0.3 < high for low, high in (rates.wilson(int(k), 200) for k in found)]
    assert np.mean(covered) == pytest.approx(0.683, abs=0.04)


def test_upper_limit_is_the_papers() -> None:
    """None of 5,000 leaves 6e-4; the other value is the exact beta quantile."""
    assert rates.upper_limit(0, 5000) == pytest.approx(5.99e-4, rel=2e-3)
    assert rates.upper_limit(4, 100) == pytest.approx(0.08920, abs=2e-4)
    assert rates.upper_limit(7, 7) == 1


def test_area_of_two_normal_distributions() -> None:
    """One sigma apart the area is Phi(1 / sqrt 2) = 0.7602."""
    rng = np.random.default_rng(2)
    curve = rates.roc(rng.normal(1, 1, 20_000), rng.normal(0, 1, 20_000))
    assert curve["auc"] == pytest.approx(0.7602, abs=0.008)
    assert curve["fpr"] == sorted(curve["fpr"])
    assert curve["tpr"] == sorted(curve["tpr"])
    same = np.zeros(10)
    assert rates.roc(same, same)["auc"] == 0.5
    assert rates.roc(same + 1, same) == {"fpr": [0.0] * 10 + [1.0], "tpr": [1.0] * 11, "auc": 1.0}


def test_roc_of_a_told_template_is_that_of_one_normal_variable() -> None:
    """Reference: Phi(d / sqrt 2), and Phi(d - 3.540) at a false positive rate of 2e-4."""
    assert rates.known_template_roc(np.ones(3), 100)["auc"] == pytest.approx(0.7602, abs=1e-3)
    strong = rates.known_template_roc(np.full(3, 5.0), 4999)
    assert strong["tpr_zero_fp"] == pytest.approx(0.9279, abs=2e-3)


def test_a_mixture_of_told_templates_beats_each_threshold_on_its_own_signal() -> None:
    """By simulation: ln L of events and noise, at the same mixture of signals."""
    rng = np.random.default_rng(3)
    snr = np.repeat([0.5, 2.0, 4.0, 30.0], 50_000)
    z = rng.standard_normal((2, len(snr)))
    simulated = rates.roc(snr * z[0] + snr**2 / 2, snr * z[1] - snr**2 / 2)
    exact = rates.known_template_roc(snr[::5000], 1000)
    assert exact["auc"] == pytest.approx(simulated["auc"], abs=0.003)


def test_efficiency_by_bin() -> None:
    values = np.array([-1.0, 0.5, 0.6, 2.5, 99.0])
    found = {"a": np.array([True, True, False, False, True])}
    table = rates.efficiency(values, [0, 1, 2, 3], found)
    assert table["n"] == [3, 0, 2]
    assert table["a"]["share"] == [0.66667, None, 0.5]
    assert table["a"]["low68"][2] < 0.5 < table["a"]["high68"][2]


def test_every_gate_is_measured_once() -> None:
    assert list(gates_of(Simulator())) == ["own", "ungated", "blended"]
    assert list(gates_of(Simulator(gate=BLENDED_GATE))) == ["own", "ungated"]
    assert list(gates_of(Simulator(gate=None))) == ["own"]


def test_figures_are_json_and_agree_with_each_other(paper: dict[str, Any]) -> None:
    assert json.loads(json.dumps(paper, allow_nan=False)) == paper
    assert {name: part["gate"] for name, part in paper["sets"].items()} == {
        "own": "paper-1",
        "ungated": "none",
        "blended": "paper-blended-1",
    }
    for part in paper["sets"].values():
        for name, table in part["efficiency"].items():
            assert sum(table["n"]) == 60, name
            found = sum(
                n * share
                for n, share in zip(table["n"], table["mroz_2017"]["share"], strict=True)
                if n
            )
            assert found == pytest.approx(part["detectors"]["mroz_2017"]["all"]["found"], abs=0.01)
    noise = paper["k_distribution"]["noise"]
    assert sum(noise) == paper["n_noise"] == 80


def test_thresholds_come_from_validation_noise(paper: dict[str, Any]) -> None:
    """On it no rule gives an alarm; on the test's noise few do."""
    lenient = paper["rules"]["network_zero_fp"]["threshold"] < 0.8
    alarms = {name: row["false_alarms"] for name, row in paper["false_alarms"].items()}
    own = {
        n: row["all"]["found"]
        for n, row in paper["sets"]["own"]["detectors"].items()
        if "found" in row["all"]
    }
    assert (own["network_zero_fp"] >= own["network_0.8"]) == lenient
    assert all(count <= 4 for count in alarms.values())
    assert own["johnson_2020_tuned"] >= own["johnson_2020"]
    assert own["mroz_2017_tuned"] >= own["mroz_2017"] >= own["sumi_2011"]


def test_the_gate_of_blended_light_makes_events_easier(paper: dict[str, Any]) -> None:
    found = {
        name: part["detectors"]["sumi_2011"]["all"]["share"] for name, part in paper["sets"].items()
    }
    assert found["ungated"] < found["own"] <= found["blended"]


def test_gallery_holds_what_only_the_network_finds(paper: dict[str, Any]) -> None:
    gallery = paper["gallery"]
    assert gallery["n"] == len(gallery["index"]) == len(gallery["theta"]["t0"])
    assert min(gallery["log10_k"], default=99) > paper["rules"]["network_zero_fp"]["threshold"]
    for curve in gallery["curves"]:
        assert curve["index"] in gallery["index"]
        assert curve["delta_chi2"] < 300 or curve["run"] < 6
        assert len(curve["t"]) == len(curve["flux"]) == len(curve["sigma"]) <= 256
        assert curve["t"] == sorted(curve["t"])


def test_the_same_sets_whatever_the_size(paper: dict[str, Any]) -> None:
    """A smaller run looks at the first curves of a larger one."""
    fewer = replace(SIZES, events=10)
    small = measure_detection(BumpFinder(), Simulator(), fewer, quiet=True)  # type: ignore[arg-type]
    first = [i for i in paper["gallery"]["index"] if i < 10]
    assert small["rules"]["network_zero_fp"] == paper["rules"]["network_zero_fp"]
    assert small["gallery"]["index"] == first


def test_without_a_gate_the_time_to_the_peak_counts(ungated: dict[str, Any]) -> None:
    assert list(ungated["sets"]) == ["own"]
    assert {"phase", "phase_bright", "snr"} <= set(ungated["sets"]["own"]["efficiency"])
    rising = ungated["rising"]
    for key in ("found", "snr2_ge_25"):
        assert len(rising[key]["share"]) == len(PHASES)
        assert rising[key]["share"] == sorted(rising[key]["share"])
    assert rising["snr2_ge_25"]["share"][-1] > 0.9
    assert sum(row["before_peak"]["n"] for row in rising["by_tE"]) == rising["n"] > 5
    assert json.loads(json.dumps(ungated, allow_nan=False)) == ungated


def test_a_young_window_holds_the_epochs_before_it_and_no_other() -> None:
    curves = Simulator(gate=None).events(8, torch.Generator().manual_seed(4))
    young = cut_off(curves, -0.5, days=20.0)
    t, t_young = (as_pattern(c.x, days=20.0).t for c in (curves, young))
    end = curves.theta[:, 0] - 0.5 * 10 ** curves.theta[:, 2]
    for i in range(8):
        kept = t[i][t[i] <= end[i]]
        assert torch.equal(t_young[i][t_young[i].isfinite()], kept)
        assert torch.equal(young.x[i, : len(kept)], curves.x[i, : len(kept)])


def test_figures_are_drawn_and_small(
    paper: dict[str, Any], ungated: dict[str, Any], tmp_path: Any
) -> None:
    own = paper | {"sets": {"own": paper["sets"]["own"]}}
    drawn = draw_detection(own, tmp_path / "a") + draw_detection(ungated, tmp_path / "b")
    names = {path.name for path in drawn}
    assert {"detection_roc.png", "detection_k_distribution.png"} <= names
    assert {"detection_gallery.png", "detection_rising.png"} <= names
    assert all(1_000 < path.stat().st_size < 300_000 for path in drawn)
