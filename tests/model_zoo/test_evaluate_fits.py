"""The fit beside the flow: both are right where they must be, and the figures are whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from broker_filter.inference.network import Network
from broker_filter.types import PARAMETERS
from model_zoo.evaluate.draw.fits import draw_fits
from model_zoo.evaluate.measure.fits import (
    Problem,
    fitted_events,
    measure_fits,
    of_all_kinds,
    of_the_gate,
    peak_in_data,
)
from model_zoo.evaluate.report.fits import fit_tables
from model_zoo.evaluate.sets import SEEDS, curves
from model_zoo.simulate.curves import Simulator
from model_zoo.simulate.prior import PAPER_GATE, PAPER_PRIOR

ENCODER = {"name": "compact", "width": 16, "layers": 1, "heads": 2, "feed_forward": 32}
CONFIG = {
    "encoder": ENCODER,
    "evidence": {},
    "flow": {"transforms": 1, "hidden": [16], "bins": 8},
    "prior": PAPER_PRIOR.to_config(),
    "window": {"days": 20.0},
}
SIMULATOR = Simulator(length=128)


@pytest.fixture(scope="module")
def measured() -> dict:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = Network(CONFIG)
    return measure_fits(network, CONFIG, SIMULATOR, 8, quiet=True)


def test_the_fit_finds_what_an_untrained_flow_cannot(measured: dict) -> None:
    for name in ("t0", "log10_tE"):
        assert measured["fit"]["median_error"][name] < 0.3 * measured["flow"]["median_error"][name]


def test_figures_are_whole(measured: dict, tmp_path: Path) -> None:
    assert json.loads(json.dumps(measured)) == measured
    assert measured["fit"]["n"] == measured["flow"]["n"] == 8 - measured["not_fitted"]
    assert sum(row["n"] for row in measured["by_snr"]) == measured["fit"]["n"]
    peak = [row["n"] for row in measured["by_snr"] if row["peak_in_data"]]
    assert sum(peak) == measured["n_peak"]
    for side in ("fit", "flow"):
        for key in ("rmse", "median_error", "coverage68", "coverage95", "ranks"):
            assert set(measured[side][key]) == set(PARAMETERS)
        # Bins of the signal-to-noise together give the share of the whole.
        rows = [(row["n"], row[side]["coverage95"]["t0"]) for row in measured["by_snr"]]
        together = sum(n * share for n, share in rows) / measured["fit"]["n"]
        assert together == pytest.approx(measured[side]["coverage95"]["t0"], abs=1e-3)
    assert all(path.stat().st_size > 5_000 for path in draw_fits(measured, tmp_path))


def test_the_report_has_fit_and_flow_in_one_table(measured: dict) -> None:
    lines = fit_tables(measured, {"rmse": [0.445, 0.222, 0.064, 0.436, 0.131]})
    head = "| parameter | bias, fit | bias, flow | RMSE, fit | RMSE, flow | paper | RMSE of means"
    assert any(line.startswith(head) for line in lines)
    (row,) = [line for line in lines if line.startswith("| log10_tE | ") and line.count("|") == 15]
    assert " | 0.064 | " in row
    assert f"{measured['fit']['rmse']['log10_tE']:.4g}" in row
    assert any(line.startswith("Peak in the data;") for line in lines)


def test_a_peak_is_in_the_data_between_first_and_last_epoch() -> None:
    events = curves(SIMULATOR.events, 2, SEEDS["events"], "events", quiet=True)
    for t0, inside in ((-0.5, False), (10.0, True), (20.5, False)):
        events.theta[:, 0] = t0
        assert peak_in_data(events, 20.0).tolist() == [inside, inside]


def test_samples_that_the_gate_bars_are_replaced_by_those_that_pass() -> None:
    event = curves(SIMULATOR.events, 1, SEEDS["events"], "events", quiet=True)
    short = event.theta.numpy().repeat(300, 0)
    short[:, 2] = -0.5
    mixed = short.copy()
    mixed[::3, 2] = 1.3  # no epoch is 3 tE away
    passing = of_the_gate(mixed, event.x[0], SIMULATOR)
    assert passing.shape == mixed.shape
    assert (passing[:, 2] == np.float32(-0.5)).all()
    assert PAPER_GATE is SIMULATOR.gate
    ungated = Simulator(length=128, gate=None)
    assert of_the_gate(mixed, event.x[0], ungated) is mixed
    barred = np.repeat(mixed[:1], 300, 0)
    assert of_the_gate(barred, event.x[0], SIMULATOR) is barred  # none is left to take


def test_events_of_all_kinds_go_from_faint_to_bright() -> None:
    index = of_all_kinds(SIMULATOR, 4)
    whole = curves(SIMULATOR.events, 500, SEEDS["events"], "events", quiet=True)
    snr = whole.snr.numpy()[index]
    assert (np.diff(snr) > 0).all()
    assert snr[0] < 30
    assert snr[-1] > 300


def test_fits_read_all_epochs_of_bright_events_and_not_the_means_of_networks() -> None:
    """Where the limb of the source passes between two epochs, their mean is on no curve."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = Network(CONFIG)
    brightest = of_all_kinds(SIMULATOR, 20)[-3:]
    fitted = fitted_events(
        network, Problem.of(CONFIG), SIMULATOR, brightest, seed=1, title="", quiet=True
    )
    for one in fitted:
        assert len(one.likelihood) > SIMULATOR.length
        lenses = torch.from_numpy(np.stack([one.theta[:4], one.fit.best[:4]]))
        truth, best = one.likelihood.profile(one.likelihood.sums(lenses)).tolist()
        assert best - truth < 15  # half of a chi2 of five parameters
