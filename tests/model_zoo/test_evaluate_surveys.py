"""Long events in the cadence of surveys, measured with networks whose K is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.network_input import split_padding
from model_zoo.evaluate.measure.surveys import measure_surveys
from model_zoo.evaluate.report.tables import survey_tables
from model_zoo.evaluate.sets import QUICK
from model_zoo.simulate.curves import Simulator
from model_zoo.simulate.pattern import PatternConfig
from model_zoo.simulate.prior import SPARSE_PRIOR
from model_zoo.simulate.visits import WIDE_VISITS

PATTERN = PatternConfig(days=180.0, stream_sigma=(0.003, 0.25), visits=WIDE_VISITS)
SIMULATOR = Simulator(
    prior=SPARSE_PRIOR, gate=None, pattern=PATTERN, baseline_error=(0.001, 0.02), length=256
)


class Fixed(nn.Module):
    """A network whose log10 K is a number, or the largest excess over the baseline in sigma / 3."""

    def __init__(self, log10_k: float | None) -> None:
        super().__init__()
        self.log10_k = log10_k

    def forward(self, x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        x, valid = split_padding(x)
        sigma = torch.where(valid, x[..., 2], 1.0)
        highest = (torch.where(valid, x[..., 1] - 1, 0.0) / sigma).amax(1) / 3
        k = highest if self.log10_k is None else torch.full_like(highest, self.log10_k)
        return LN_10 * k, x[:, 0]


def found(log10_k: float | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = measure_surveys(
        Fixed(log10_k),
        SIMULATOR,
        QUICK,
        quiet=True,  # type: ignore[arg-type]
    )["rows"]
    return rows


def test_both_surveys_are_measured_on_events_that_the_sets_hold() -> None:
    rows = found(2.9)
    assert [row["survey"] for row in rows] == ["ZTF", "LSST"]
    for row in rows:
        assert row["at_all"]["n"] > 30
        assert row["at_all"]["found"] == 0


def test_a_network_that_is_always_sure_finds_all_before_their_peaks() -> None:
    for row in found(3.1):
        assert row["before_peak"]["share"] == row["at_all"]["share"] == 1


def test_some_that_are_found_are_found_after_their_peak() -> None:
    rows = found(None)
    for row in rows:
        assert 0 < row["before_peak"]["share"] < row["at_all"]["share"]
    lines = survey_tables({"log10_k": 3.0, "rows": rows})
    assert f"{100 * rows[1]['at_all']['share']:.1f} % of {rows[1]['at_all']['n']}" in lines[3]


def test_a_simulator_without_visits_has_no_rows() -> None:
    assert measure_surveys(Fixed(9.0), replace(SIMULATOR, pattern=PatternConfig()), QUICK) == {
        "log10_k": pytest.approx(3.0), "rows": [],
    }  # fmt: skip
