"""The frozen encoder against a dedicated network: same curves, honest thresholds and times."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from model_zoo.evaluate.measure.sharing import SharingSizes, labelled, measure_sharing
from model_zoo.evaluate.sets import SEEDS, curves
from model_zoo.simulate.curves import Simulator
from model_zoo.simulate.prior import PAPER_GATE
from model_zoo.training.fit import fit
from tests.model_zoo.networks import make_network

ENCODER = {"name": "compact", "width": 32, "layers": 1, "heads": 2, "feed_forward": 32}
SIMULATOR = Simulator(length=128)


def test_a_fit_finds_the_minimum_and_stops_on_time() -> None:
    line = torch.nn.Linear(1, 1)
    x = torch.linspace(-1, 1, 50)[:, None]

    def loss() -> torch.Tensor:
        return (line(x) - (3 * x - 1)).square().mean()

    assert fit(line, loss, 400, "line", rate=0.1, quiet=True).steps == 400
    assert line.weight.item() == pytest.approx(3, abs=0.05)
    assert line.bias.item() == pytest.approx(-1, abs=0.05)
    assert fit(line, loss, 10**9, "line", rate=0.1, seconds=0.1, quiet=True).steps < 10**6


def test_labelled_curves_are_the_frozen_ones_half_and_half_from_the_start() -> None:
    data = labelled(SIMULATOR, 40, SEEDS["events"], SEEDS["noise"], quiet=True)
    events = curves(SIMULATOR.events, 20, SEEDS["events"], "", quiet=True)
    noise = curves(SIMULATOR.noise, 20, SEEDS["noise"], "", quiet=True)
    assert data.event[:6].tolist() == [True, False] * 3
    assert torch.equal(data.x[::2], events.x)
    assert torch.equal(data.x[1::2], noise.x)
    assert torch.allclose(data.rho[::2], 10 ** events.theta[:, 3])
    assert bool(data.rho[1::2].isnan().all())
    assert data.first(6).event.sum() == 3


def test_without_events_all_is_noise() -> None:
    data = labelled(SIMULATOR, 30, None, SEEDS["noise"], quiet=True)
    assert not data.event.any()
    assert torch.equal(data.x, curves(SIMULATOR.noise, 30, SEEDS["noise"], "", quiet=True).x)


def test_a_budget_below_one_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 256"):
        SharingSizes((100,), head_epochs=1, epochs=1, seconds=1, test=10)


def test_both_kinds_learn_from_labels_and_leave_the_entry_as_it_was() -> None:
    network = make_network(ENCODER)
    before = {name: p.clone() for name, p in network.state_dict().items()}
    sizes = SharingSizes((256, 512), head_epochs=60, epochs=12, seconds=30, test=250)
    bright = Simulator(length=128, gate=replace(PAPER_GATE, min_snr=50))
    figures = measure_sharing(network, bright, ENCODER, sizes, quiet=True)
    assert json.loads(json.dumps(figures)) == figures
    rows = figures["rows"]
    assert [(row["kind"], row["curves"]) for row in rows] == [
        (kind, n) for n in (256, 512) for kind in ("transfer", "dedicated")
    ]
    assert [row["steps"] for row in rows] == [60, 12, 120, 24]
    assert all(row["seconds"] > 0 and row["false_alarms"] <= 10 for row in rows)
    # Bright events are easy for whoever can learn; an encoder that never learned, frozen, cannot.
    transfer, dedicated = ([row["tpr"] for row in rows[i::2]] for i in (0, 1))
    assert min(dedicated) > 0.8
    assert min(transfer) > 0.1
    assert max(transfer) < min(dedicated)
    after = network.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_dedicated_network_stops_when_its_time_is_up() -> None:
    sizes = SharingSizes((256,), head_epochs=1, epochs=10_000, seconds=0.5, test=10)
    row = measure_sharing(make_network(ENCODER), SIMULATOR, ENCODER, sizes, quiet=True)["rows"][1]
    assert row["kind"] == "dedicated"
    assert 0 < row["steps"] < 10_000
    assert row["seconds"] < 60
