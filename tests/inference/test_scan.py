"""The compiled scan finds the S of the network's matched filter, and overlooks none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from broker_filter.inference import scan
from broker_filter.inference.matched_filter import LEVELS, LensScan
from broker_filter.inference.network_input import network_input, split_padding
from broker_filter.types import FloatArray, WindowBatch
from tests.inference.test_scorer import DAYS, make_batch, take

LENGTHS = [1, 2, 5, 20, 20, 20, 60, 128, 300, 700, 835, 900, 1000] * 8


def of_the_network(batch: WindowBatch) -> FloatArray:
    columns = (batch.mjd_tai - batch.t_start[:, None], batch.flux, batch.sigma, batch.n)
    x = network_input(*map(torch.from_numpy, columns), days=DAYS, length=1000)
    error = torch.from_numpy(batch.baseline_error.astype(np.float32))
    return LensScan().largest(*split_padding(x), error).double().numpy()


@pytest.fixture(scope="module", params=[1e-5, 1e-3, 0.03], ids="baseline known to {}".format)
def windows(request: pytest.FixtureRequest) -> WindowBatch:
    """Windows of all lengths, with events and without."""
    batch = make_batch([*LENGTHS, *LENGTHS], seed=7)
    noise = np.random.default_rng(0).standard_normal(batch.flux[::2].shape)
    batch.flux[::2] = 1 + batch.sigma[::2] * noise
    batch.baseline_error[:] = request.param
    return batch


def test_s_is_that_of_the_network(windows: WindowBatch) -> None:
    found = scan.significance(windows, DAYS)
    np.testing.assert_allclose(found, of_the_network(windows).max(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("log10_k", [0.0, 3.05, 6.0])
def test_what_can_reach_a_threshold_is_told_apart_and_exact(
    windows: WindowBatch, log10_k: float
) -> None:
    whole, found = scan.ceiling(windows, DAYS), scan.ceiling(windows, DAYS, log10_k)
    reaches = whole >= log10_k
    assert 0 < reaches.sum() < len(windows)
    np.testing.assert_array_equal(found[reaches], whole[reaches])
    assert (found[~reaches] < log10_k).all()
    np.testing.assert_allclose(whole, scan.ceiling_of(of_the_network(windows)), rtol=1e-3, atol=0.1)


def test_a_window_depends_on_no_other_and_on_no_number_of_threads(windows: WindowBatch) -> None:
    together = scan.ceiling(windows, DAYS, 3.0)
    np.testing.assert_array_equal(scan.ceiling(windows, DAYS, 3.0, threads=3), together)
    for row in (0, 7, 12):
        alone = take(windows, [row], width=1000)
        assert scan.ceiling(alone, DAYS, 3.0)[0] == together[row]


def test_windows_longer_than_the_network_reads_are_read_whole() -> None:
    batch = make_batch([1500, 2500, 4096], seed=2)
    batch.flux[:] = np.where(batch.sigma > 0, batch.flux, 1)
    found = scan.significance(batch, DAYS)
    np.testing.assert_allclose(found, of_the_network(batch).max(1), rtol=0.02, atol=0.2)


def test_a_dip_and_an_empty_window_have_none() -> None:
    batch = make_batch([300, 300])
    batch.flux[:] = 0.5
    batch.n[1] = 0
    assert scan.significance(batch, DAYS).tolist() == [0, 0]


def test_a_short_event_must_stand_out_more_than_a_long_one() -> None:
    s = np.diag(np.full(LEVELS, 5.0))
    most = scan.ceiling_of(s)
    assert (np.diff(most) > 0).all()
    assert most[-1] == pytest.approx((25 - 1.5) / (2 * math.log(10)))
