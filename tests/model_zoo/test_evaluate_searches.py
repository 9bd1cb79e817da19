"""Other searches on windows of the service: a point lens by least squares, and MicroWavelet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from broker_filter.types import FloatArray, WindowBatch
from model_zoo.evaluate.measure.point_lens import fit_point_lens, point_lens_of
from model_zoo.evaluate.measure.wavelet import Wavelet, find_wavelet

DAYS = 60.0


def lensed(t: FloatArray, t0: float, t_einstein: float, u0: float) -> FloatArray:
    u = np.hypot(u0, (t - t0) / t_einstein)
    return np.asarray((u * u + 2) / (u * np.sqrt(u * u + 4)))


def batch_of(t: FloatArray, flux: FloatArray, sigma: FloatArray) -> WindowBatch:
    """One window, whose epochs are in turn of two bands."""
    n = len(t)
    one = np.ones(1)
    return WindowBatch(
        slot=np.zeros(1, np.int64),
        star=["s"],
        survey=["ztf"],
        band=["all"],
        coordinates=[None],
        t_start=np.array([1000.0]),
        mjd_tai=1000.0 + t[None],
        flux=flux[None].astype(np.float32),
        sigma=sigma[None].astype(np.float32),
        n=np.array([n]),
        baseline=one,
        baseline_err=one,
        baseline_error=0.01 * one,
        relative=np.ones(1, np.bool_),
        source=(np.arange(n) % 2).astype(np.int16)[None],
        sources=[(("g", ""), ("r", ""))],
        source_level=np.ones((1, 2)),
        source_error=np.full((1, 2), 0.01),
        source_history=np.zeros((1, 2, 6)),
    )


@pytest.mark.parametrize(("t_einstein", "u0", "n"), [(0.5, 0.3, 1000), (20.0, 0.1, 60)])
def test_a_point_lens_explains_what_the_true_one_does(t_einstein: float, u0: float, n: int) -> None:
    rng = np.random.default_rng(n)
    t = np.sort(rng.uniform(0, DAYS, n))
    truth = 0.6 + 0.4 * lensed(t, 33.3, t_einstein, u0)
    sigma = np.full(n, 0.02)
    flux = truth + sigma * rng.standard_normal(n)
    found = fit_point_lens(t, flux, sigma, 1e-4)
    gain = np.square((flux - 1) / sigma).sum() - np.square((flux - truth) / sigma).sum()
    assert 0.999 * gain < found.delta_chi2 < gain + 20
    assert 0.6 < found.chi2 < 1.4


def test_a_dip_and_a_constant_star_are_no_point_lens() -> None:
    rng = np.random.default_rng(3)
    t, sigma = np.sort(rng.uniform(0, DAYS, 300)), np.full(300, 0.02)
    noise = sigma * rng.standard_normal(300)
    assert fit_point_lens(t, 1 + noise, sigma, 0.01).delta_chi2 < 30
    dip = np.where(np.abs(t - 30) < 2, -0.5, 0.0)
    assert fit_point_lens(t, 1 + dip + noise, sigma, 0.01).chi2 > 5


def test_a_star_that_is_bright_all_through_a_window_is_not_a_constant_one() -> None:
    """As a Be star in outburst is: only its baseline tells."""
    t, sigma = np.linspace(0, DAYS, 25), np.full(25, 0.02)
    rng = np.random.default_rng(4)
    flux = 1.35 + sigma * rng.standard_normal(25)
    assert fit_point_lens(t, flux, sigma, 0.003).delta_chi2 > 3000
    assert fit_point_lens(t, flux, sigma, 10.0).delta_chi2 < 30  # nothing is known of it


def test_a_window_is_fitted_in_its_own_time() -> None:
    t = np.linspace(1, 59, 200)
    sigma = np.full(200, 0.02)
    flux = lensed(t, 30, 3, 0.2)
    # A window's flux is float32.
    alone = fit_point_lens(
        t, flux.astype(np.float32).astype(float), sigma.astype(np.float32).astype(float), 0.01
    )
    assert point_lens_of(batch_of(t, flux, sigma), 0).delta_chi2 == pytest.approx(
        alone.delta_chi2, rel=1e-6
    )


def test_the_detector_by_wavelets_sees_bands_apart() -> None:
    seen: list[Any] = []

    def analyze(bands: Any, *, dt: float) -> dict[str, Any]:
        seen.append((bands, dt))
        return {"anomalies": [{"type": kind} for kind in ("dip", "peak")]}

    t = np.arange(20.0)
    assert Wavelet(analyze, DAYS)(batch_of(t, 1 + t, t + 1), 0) is True
    ((bands, dt),) = seen
    assert dt == 0.06
    assert set(bands) == {"g", "r"}
    assert bands["r"]["t"].tolist() == t[1::2].tolist()
    assert bands["r"]["y"].tolist() == (1 + t[1::2]).tolist()


def test_dips_are_no_peaks_and_what_fails_is_not_counted() -> None:
    t = np.arange(20.0)
    window = batch_of(t, 1 + t, t + 1)

    def fails(*_: Any, **__: Any) -> dict[str, Any]:
        raise ValueError("too few epochs")

    assert Wavelet(lambda *_, **__: {"anomalies": [{"type": "dip"}]}, DAYS)(window, 0) is False
    assert Wavelet(fails, DAYS)(window, 0) is None
    assert Wavelet(fails, DAYS)(batch_of(t[:4], t[:4], t[:4] + 1), 0) is None


def test_without_the_package_no_window_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_zoo.evaluate.measure.wavelet.find_spec", lambda _: None)
    assert find_wavelet(DAYS) is None
