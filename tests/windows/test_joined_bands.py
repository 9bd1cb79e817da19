"""Windows that hold the epochs of all bands of their star, each in units of its own baseline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker_filter.errors import StateError
from broker_filter.types import ALL_BANDS, Photometry
from broker_filter.windows.store import WindowStore
from tests import build

START = 60_000.0
LEVEL = {"g": 1000.0, "r": 4000.0}
TIMES = START + np.arange(40) / 2


def of_band(band: str, mjd: np.ndarray, factor: float = 1.0, source: str = "") -> Photometry:
    return build.photometry(
        mjd, "star", band=band, source=source, flux=factor * LEVEL[band], ref_flux=LEVEL[band],
        ref_flux_err=0.001 * LEVEL[band],
    )  # fmt: skip


def joined() -> WindowStore:
    store = WindowStore(joined=True)
    for band, mjd in (("g", TIMES[::2]), ("r", TIMES[1::2])):
        store.insert(of_band(band, mjd, 1.5))
    return store


def test_a_star_has_one_window_and_each_band_a_baseline_of_its_own() -> None:
    batch = joined().read(np.arange(1))
    assert batch.band == [ALL_BANDS]
    np.testing.assert_allclose(batch.mjd_tai[0], TIMES, atol=1e-5)
    np.testing.assert_allclose(batch.flux[0], 1.5, rtol=1e-6)
    level = dict(zip(batch.sources[0], batch.source_level[0].tolist(), strict=True))
    assert level == pytest.approx({("g", ""): 1000.0, ("r", ""): 4000.0}, rel=1e-6)
    bands = [batch.sources[0][i][0] for i in batch.source[0]]
    assert bands == ["g", "r"] * 20


def test_apart_the_same_epochs_are_two_windows() -> None:
    store = WindowStore()
    for band in LEVEL:
        store.insert(of_band(band, TIMES))
    assert store.read(np.arange(2)).band == ["g", "r"]


def test_an_epoch_of_another_band_makes_the_star_due() -> None:
    store = joined()
    assert store.insert(of_band("g", TIMES[-1:] + 1)).tolist() == [0]
    assert store.newest.tolist() == [TIMES[-1] + 1]


def test_one_camera_in_two_bands_at_one_time_gives_two_epochs() -> None:
    store = WindowStore(joined=True)
    for band in LEVEL:
        store.insert(of_band(band, TIMES, source="camera"))
    batch = store.read(np.arange(1))
    assert batch.n.tolist() == [2 * len(TIMES)]
    assert store.take_counts() == {"inserted": 2 * len(TIMES)}


def test_difference_flux_is_in_units_of_the_total_flux_of_its_own_band() -> None:
    store = WindowStore(joined=True)
    for band in LEVEL:
        store.insert(of_band(band, TIMES[:2], source="total"))
    times = START + np.arange(15, 35, 0.1)
    rise = np.where(times > START + 30, 500.0, 0.0)
    change = build.photometry(times, "star", band="g", flux=200 + rise)
    store.insert(replace(change, kind="difference"))
    batch = store.read(np.arange(1))
    n = batch.n[0]
    np.testing.assert_allclose(batch.flux[0, n - 40 : n], 1.5, atol=0.02)


def test_what_is_wanted_of_a_star_is_the_same_in_each_of_the_bands() -> None:
    store = joined()
    wanted = store.wanted_from("test", "star")
    assert set(wanted) == {"g", "r"}
    assert len(set(wanted.values())) == 1
    assert store.wanted_from("test", "another") == {}


def test_a_restored_store_goes_on_alike() -> None:
    store, other = joined(), WindowStore(joined=True)
    other.restore(store.state())
    for one in (store, other):
        one.insert(of_band("r", TIMES + 0.25, 1.2))
    one, two = store.read(np.arange(1)), other.read(np.arange(1))
    np.testing.assert_array_equal(one.flux, two.flux)
    assert one.sources == two.sources


def test_a_snapshot_of_the_other_kind_is_refused_with_both_named() -> None:
    apart = WindowStore()
    apart.insert(of_band("g", TIMES))
    with pytest.raises(StateError, match="hold single bands, not all bands of a star"):
        WindowStore(joined=True).restore(apart.state())
    with pytest.raises(StateError, match="hold all bands of a star, not single bands"):
        WindowStore().restore(joined().state())


def test_bands_that_a_new_star_brings_one_after_another_are_as_in_order_of_time() -> None:
    mjd = START + np.arange(0, 100, 0.25)  # five windows long
    bands = np.where(np.arange(len(mjd)) % 3 == 0, "g", "r")
    factor = 1 + 0.01 * np.random.default_rng(2).standard_normal(len(mjd))

    def of(rows: np.ndarray, band: str) -> Photometry:
        known = of_band(band, mjd[rows])
        none = np.full(len(rows), np.nan, np.float32)  # so that the level comes from the history
        flux = (LEVEL[band] * factor[rows]).astype(np.float32)
        return replace(known, flux=flux, ref_flux=none, ref_flux_err=none)

    together, in_order = WindowStore(joined=True), WindowStore(joined=True)
    for band in LEVEL:
        together.insert(of(np.flatnonzero(bands == band), band))
    for row, band in enumerate(bands):
        in_order.insert(of(np.array([row]), band))
    assert together.take_counts() == in_order.take_counts() == {"inserted": len(mjd)}
    one, other = together.read(np.arange(1)), in_order.read(np.arange(1))
    for name in ("mjd_tai", "flux", "sigma"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), 1e-6, err_msg=name)
    for name in ("source_level", "source_error"):
        level, expected = (
            dict(zip(batch.sources[0], getattr(batch, name)[0].tolist(), strict=True))
            for batch in (one, other)
        )
        assert level == pytest.approx(expected, rel=1e-6), name


def test_one_epoch_before_the_window_is_late_even_of_a_new_band() -> None:
    store = WindowStore(joined=True)
    store.insert(of_band("g", START + np.arange(90.0, 100.0)))
    store.insert(of_band("r", np.array([START])))
    assert store.take_counts()["late"] == 1
