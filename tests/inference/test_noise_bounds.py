"""Bounds of the family of noise: as wide as the star's nights leave them."""

from __future__ import annotations

import math

import pytest

from broker_filter.inference.noise_bounds import NoiseBounds
from broker_filter.inference.noise_family import NoiseFamily
from broker_filter.types import SourceHistory

GROUND = NoiseFamily(scale=(0.7, 2.0), red_noise=0.6)
SPACE = NoiseFamily(scale=(0.85, 1.25), red_noise=0.05)
BOUNDS = NoiseBounds(GROUND, {"roman": SPACE})


def nights(
    n: float, *, scale: float = 1.0, red_noise: float = 0.0, each: int = 10
) -> SourceHistory:
    squares = scale**2 / each + red_noise**2
    return SourceHistory(n, n * (each - 1), scale, squares, 1 / each)


def test_without_a_history_the_survey_decides() -> None:
    assert BOUNDS.family("ogle", None) == GROUND
    assert BOUNDS.family("Roman", nights(0)) == SPACE


def test_many_quiet_nights_leave_little_room() -> None:
    found = BOUNDS.family("ogle", nights(1000))
    assert found.red_noise < 0.15
    assert found.nights == 1000
    assert 0.8 < found.scale[0] < 1 < found.scale[1] < 1.3
    assert found.likely_scale == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("red_noise", [0.3, 1.0, 3.0])
def test_the_bound_is_above_the_scatter_of_nights(red_noise: float) -> None:
    found = BOUNDS.family("roman", nights(400, red_noise=red_noise))
    assert red_noise < found.red_noise < 1.2 * red_noise


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.8])
def test_the_factor_on_the_errors_is_inside_its_bounds(scale: float) -> None:
    low, high = BOUNDS.family("ogle", nights(400, scale=scale)).scale
    assert low < scale < high
    assert high / low < 1.8


def test_few_nights_give_way_to_the_survey() -> None:
    wide = [BOUNDS.family("ogle", nights(n)).red_noise for n in (1, 10, 100, 1000)]
    assert wide == sorted(wide, reverse=True)
    assert wide[0] < 1.05 * GROUND.red_noise
    assert math.isclose(
        BOUNDS.family("roman", nights(3, red_noise=2.0)).red_noise, 1.5, rel_tol=0.3
    )


def test_nights_of_one_epoch_say_nothing_of_the_factor() -> None:
    found = BOUNDS.family("ogle", nights(50, each=1))
    assert found.scale == GROUND.scale


def test_the_red_noise_that_nights_had_is_likely() -> None:
    found = BOUNDS.family("ogle", nights(100, scale=1.5, red_noise=0.4))
    assert found.likely_red_noise == pytest.approx(0.4)
    assert BOUNDS.family("ogle", nights(100)).likely_red_noise == pytest.approx(0, abs=1e-6)
    assert BOUNDS.family("ogle", None).likely_red_noise is None
