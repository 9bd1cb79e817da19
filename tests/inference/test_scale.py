"""The scale above the threshold: nothing below it, no jump, the same order of windows."""

from __future__ import annotations

import numpy as np
import pytest

from broker_filter.inference import zoo
from broker_filter.inference.scale import rescaled

SCALE = {"network": [3.0, 5.0, 10.0], "certified": [3.0, 6.0, 21.0]}


def test_up_to_the_first_pair_nothing_changes() -> None:
    log10_k = np.array([-40.0, 0.0, 2.9, 3.0])
    np.testing.assert_array_equal(rescaled(log10_k, SCALE), log10_k)


def test_between_and_beyond_it_is_straight() -> None:
    found = rescaled(np.array([4.0, 5.0, 7.5, 10.0, 11.0]), SCALE)
    np.testing.assert_allclose(found, [4.5, 6.0, 13.5, 21.0, 24.0])


def test_what_no_network_was_asked_stays_so() -> None:
    assert np.isnan(rescaled(np.array([np.nan]), SCALE)).all()


@pytest.mark.parametrize("model_id", zoo.model_ids())
def test_scales_of_the_zoo_keep_order_and_false_alarms(model_id: str) -> None:
    entry = zoo.verify(zoo.find(model_id))
    scale = entry.card.outputs.get("log10_k_scale")
    if scale is None:
        pytest.skip("has none")
    assert scale["network"][0] == scale["certified"][0] >= max(3.0, entry.threshold)
    grid = np.linspace(-10, 300, 3000)
    found = entry.rescaled(grid)
    assert (np.diff(found) > 0).all()
    np.testing.assert_array_equal(found[grid <= entry.threshold], grid[grid <= entry.threshold])
