"""K over time: which looks there are, what the network sees at each, and what strides may miss."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from broker_filter.inference.network import Network
from broker_filter.inference.network_input import split_padding
from model_zoo.evaluate.draw.calibration import draw_streams
from model_zoo.evaluate.measure.streams import (
    STREAM_POWERS,
    choose_stride,
    look_at,
    measure_streams,
    stream_looks,
)
from model_zoo.evaluate.sets import QUICK, SEEDS, curves
from model_zoo.simulate.curves import Simulator
from model_zoo.simulate.pattern import GRID
from model_zoo.simulate.prior import PAPER_PRIOR

DAYS = 20.0
SIMULATOR = Simulator()


class Told(nn.Module):
    """A network that says what a function of the valid epochs says."""

    def __init__(self, ln_k: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.ln_k = ln_k

    def forward(self, x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        x, valid = split_padding(x)
        return self.ln_k(x, valid), torch.empty(len(x), 0)


def total_significance(x: Tensor, valid: Tensor) -> Tensor:
    """Exact ln K for events whose flux is one sigma / 16 higher, all the time."""
    z = torch.where(valid, (x[..., 1] - 1) / x[..., 2].clamp(min=1e-9), 0).double()
    return (z / 16 - valid / 512).sum(1)


@pytest.fixture(scope="module")
def streams():
    long = replace(SIMULATOR, length=GRID)
    return curves(long.noise, 40, SEEDS["streams"], "x", quiet=True)


def test_there_is_a_look_after_each_exposure_of_the_last_quarter(streams) -> None:
    looks = stream_looks(streams, DAYS)
    t = (streams.x[..., 0].double() + 1) * DAYS / 2
    assert len(looks) == int(((streams.x[..., 2] > 0) & (t >= 15)).sum())
    assert looks.day.min() >= 15
    assert looks.day.max() <= 20 + 1e-6
    seen = t[torch.from_numpy(looks.stream), torch.from_numpy(looks.epochs) - 1]
    assert looks.day == pytest.approx(seen.numpy())
    assert (np.diff(looks.day)[np.diff(looks.stream) == 0] > 0).all()


def test_strides_keep_every_last_look(streams) -> None:
    looks = stream_looks(streams, DAYS)
    some = looks.strided(7)
    assert len(looks) / 7 <= len(some) <= len(looks) / 7 + 40
    for stream in np.unique(looks.stream):
        every, kept = (v.epochs[v.stream == stream] for v in (looks, some))
        assert kept.tolist() == every[::-1][::7][::-1].tolist()
    assert len(looks.strided(1)) == len(looks)


def test_a_look_sees_the_epochs_so_far_and_nothing_later(streams) -> None:
    looks = stream_looks(streams, DAYS)
    latest = Told(lambda x, valid: torch.where(valid, x[..., 0], -1).amax(1))
    seen = look_at(latest, streams, looks, SIMULATOR)
    now = seen.log10_k * math.log(10)
    # Beyond 1,000 epochs the oldest merge, and the last ones stay as they are.
    assert (now + 1) * DAYS / 2 == pytest.approx(looks.day, abs=1e-4)
    weight = Told(lambda x, valid: torch.where(valid, x[..., 2] ** -2.0, 0).sum(1))
    total = look_at(weight, streams, looks, SIMULATOR).log10_k * math.log(10)
    sigma = streams.x[looks.stream, 0, 2].numpy()
    assert total * sigma**2 == pytest.approx(looks.epochs, rel=1e-4)


def test_looks_do_not_depend_on_their_mates(streams) -> None:
    network, looks = Told(total_significance), stream_looks(streams, DAYS)
    every = look_at(network, streams, looks, SIMULATOR)
    few = look_at(network, streams, looks[np.arange(5, len(looks), 97)], SIMULATOR)
    assert few.log10_k == pytest.approx(every.log10_k[5::97], abs=1e-3)


@pytest.mark.parametrize(
    ("full", "left", "stride"), [(10, 10, 1), (10, 6.1, 2), (10, 3, 8), (100, 0, 64), (0, 0, 1)]
)
def test_strides_are_as_narrow_as_time_allows(full: float, left: float, stride: int) -> None:
    assert choose_stride(full, left) == stride


def test_the_sup_of_an_exact_k_keeps_to_ville_s_bound() -> None:
    result = measure_streams(
        Told(total_significance), SIMULATOR, replace(QUICK, streams=120), quiet=True
    )
    assert result["holds"]
    assert result["stride"] == 1
    assert [row["k"] for row in result["sup_tail"]] == pytest.approx(
        [10**p for p in STREAM_POWERS], rel=1e-5
    )
    # A sup over many looks comes near to the bound; one look alone would not.
    assert result["sup_tail"][0]["observed"] > 0.2
    for row, alarms in zip(result["sup_tail"], result["false_alarms"], strict=True):
        assert alarms["observed"] == pytest.approx(row["observed"] / 5)
        assert alarms["bound"] == pytest.approx(1 / (5 * row["k"]), rel=1e-5)


def test_an_exaggerated_k_breaks_it() -> None:
    network = Told(lambda x, valid: 4 * total_significance(x, valid) + 4)
    result = measure_streams(network, SIMULATOR, replace(QUICK, streams=120), quiet=True)
    assert not result["holds"]


@pytest.mark.slow
def test_strides_find_what_every_exposure_finds_above_their_limit() -> None:
    network, sizes = Told(total_significance), replace(QUICK, streams=300)
    wide = measure_streams(network, SIMULATOR, sizes, quiet=True, minutes=0)
    every = measure_streams(network, SIMULATOR, sizes, quiet=True, minutes=60)
    assert wide["stride"] == 64
    assert wide["refined"] == 5
    assert wide["looks"] < 0.95 * every["looks"]
    assert wide["largest_rise"] > 0
    for some, all_ in zip(wide["sup_tail"], every["sup_tail"], strict=True):
        assert some["count"] <= all_["count"]
        if math.log10(some["k"]) > wide["complete_above"]:
            assert some["count"] == all_["count"]


def test_an_entry_is_measured_and_drawn(tmp_path: Path) -> None:
    torch.manual_seed(1)
    encoder = {"name": "compact", "width": 16, "layers": 1, "heads": 2, "feed_forward": 32}
    prior = PAPER_PRIOR.to_config()
    flow = {"transforms": 1, "hidden": [16], "bins": 8}
    network = Network({"encoder": encoder, "evidence": {}, "flow": flow, "prior": prior}).eval()
    result = measure_streams(network, SIMULATOR, replace(QUICK, streams=4), quiet=True)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["star_days"] == 20
    for path in draw_streams(result, tmp_path):
        assert path.read_bytes().startswith(b"\x89PNG")
