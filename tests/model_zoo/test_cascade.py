"""What the cascade costs is counted as the filter settles windows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from broker_filter.config import Model
from broker_filter.inference import zoo
from model_zoo.evaluate.measure.cascade import THRESHOLDS, _row, measure_cascade, visible_snr
from model_zoo.evaluate.sets import QUICK
from model_zoo.evaluate.suite import config_of, simulator_of
from model_zoo.simulate.curves import Simulator


def test_lost_is_what_passes_the_threshold_and_not_the_filter() -> None:
    log10_k = np.array([5.0, 3.5, 3.2, 2.0, 9.0])
    most, snr = np.array([6.0, 2.9, 2.0, 1.0, 8.0]), np.array([7.0, 5.0, 6.5, 2.0, 9.0])
    row = _row(3.0, (log10_k, most, snr), np.array([1.0, 2.0, 3.0, 5.0]))
    assert (row["found"], row["lost"], row["lost_up_to_snr"]) == (4, 2, 6.5)
    assert row["share"] == 0.5 < row["below"]
    assert row["lost_by_snr"] == [0, 1, 1, 0]
    assert row["passed"] == 0.5


def test_a_baseline_that_is_unknown_hides_what_it_could_explain() -> None:
    simulator = Simulator(gate=None, baseline_error=(0.0, 0.0))
    curves = simulator.events(200, torch.Generator().manual_seed(1))
    snr = visible_snr(curves, simulator.pattern.days)
    torch.testing.assert_close(snr, curves.snr, rtol=0.02, atol=0.1)  # those of thinned curves
    unknown = replace(curves, baseline_error=torch.full((200,), 0.3))
    assert (visible_snr(unknown, simulator.pattern.days) <= snr).all()


@pytest.mark.parametrize("name", ["fspl-paper-1.0.0", "fspl-roman-1.0.0", "fspl-roman-1.1.0"])
def test_the_entry_lost_few_events(name: str) -> None:
    rows = zoo.verify(zoo.find(name)).card.evaluation["cascade"]
    assert [row["log10_k"] for row in rows] == list(THRESHOLDS)
    for row in rows:
        assert row["lost"] < 1e-3 * row["found"] or row["log10_k"] > 4


def test_the_usual_entry_lost_no_event_that_is_clear() -> None:
    rows = zoo.verify(zoo.find(Model().id)).card.evaluation["cascade"]
    assert all(row["lost_up_to_snr"] < 8 for row in rows)


@pytest.mark.slow
def test_the_network_is_measured_on_frozen_curves() -> None:
    entry = zoo.verify(zoo.find("fspl-roman-1.0.0"))
    network, simulator = zoo.load(entry), simulator_of(config_of(entry))
    part = measure_cascade(network, simulator, QUICK, quiet=True)
    assert part["n_events"] == 4 * QUICK.events
    assert part["rows"][2]["lost"] <= 2
    assert part["rows"][2]["passed"] < 0.2
