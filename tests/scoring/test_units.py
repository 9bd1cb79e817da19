"""Fluxes with units of astropy, where it is installed, and magnitudes, as nJy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from broker_filter.errors import SchemaError
from broker_filter.scoring.columns import photometry_of
from broker_filter.scoring.units import flat, flux_values

FLUX, ERROR = np.array([1000.0, 2000.0, 3000.0]), np.array([10.0, 20.0, 30.0])
MAG, MAG_ERROR = 31.4 - 2.5 * np.log10(FLUX), ERROR / FLUX * 2.5 / np.log(10)
PLAIN: dict[str, Any] = {"star": 1, "survey": "own", "band": None, "source": None, "flags": None}
PLAIN |= {"baseline": None, "time_system": "mjd_tai", "zero_point": None}


def units() -> Any:
    return pytest.importorskip("astropy.units")


def of(values: Any, unit: str) -> Any:
    """Values in a unit of astropy by its name; plain for none."""
    u = units()
    named = {"ABmag": u.ABmag, "STmag": u.STmag, "mag(1)": u.mag(u.one), "dex(nJy)": u.dex(u.nJy)}
    return values * named[unit] if unit in named else u.Quantity(values, unit) if unit else values


@pytest.mark.parametrize(
    ("flux", "flux_unit", "error", "error_unit", "zero_point"),
    [
        (FLUX, "nJy", ERROR, "nJy", None),
        (FLUX / 1e3, "uJy", ERROR / 1e6, "mJy", None),
        (FLUX, "electron / s", ERROR / 1e3, "electron / ms", None),
        (FLUX, "", ERROR, "", None),
        (MAG, "ABmag", MAG_ERROR, "mag", None),
        (MAG, "ABmag", MAG_ERROR, "ABmag", None),  # astropy would make 3631 Jy of 0 ABmag
        (MAG, "ABmag", MAG_ERROR, "", None),
        (MAG, "ABmag", MAG_ERROR / 2.5, "dex", None),
        (MAG, "ABmag", MAG_ERROR * 4, "dB", None),
        (np.log10(FLUX), "dex(nJy)", MAG_ERROR, "mag", None),
        (MAG, "mag", MAG_ERROR, "mag", 31.4),
        (MAG, "mag(1)", MAG_ERROR, "mag(1)", 31.4),
        (MAG, "", MAG_ERROR, "", 31.4),
        (MAG, "", MAG_ERROR, "mag", 31.4),
    ],
)
def test_flux_and_error_of_any_units_that_fit(
    flux: Any, flux_unit: str, error: Any, error_unit: str, zero_point: float | None
) -> None:
    if flux_unit or error_unit:
        flux, error = of(flux, flux_unit), of(error, error_unit)
    value, sigma = flux_values(flux, error, zero_point)
    assert value == pytest.approx(FLUX)
    assert sigma == pytest.approx(ERROR)


@pytest.mark.parametrize(
    ("flux_unit", "error_unit", "zero_point", "says"),
    [
        ("nJy", "s", None, "error is in s, which is no nJy"),
        ("nJy", "%", None, "error is in %"),
        ("nJy", "", None, "flux is in nJy and error has no unit"),
        ("", "nJy", None, "error is in nJy and flux has no unit"),
        ("nJy", "nJy", 31.4, "leave zero_point out"),
        ("ABmag", "mag", 31.4, "leave zero_point out"),
        ("ABmag", "nJy", None, "give it in mag"),
        ("mag", "mag", None, "give zero_point"),
    ],
)
def test_units_that_do_not_fit_are_refused(
    flux_unit: str, error_unit: str, zero_point: float | None, says: str
) -> None:
    with pytest.raises(SchemaError, match=says):
        flux_values(of(FLUX, flux_unit), of(ERROR, error_unit), zero_point)


def test_masked_values_and_columns_of_tables() -> None:
    u = units()
    from astropy.table import MaskedColumn, Table

    table = Table({"flux": MaskedColumn(FLUX, unit="nJy", mask=[False, True, False])})
    table["flux_err"] = ERROR / 1000 * u.uJy
    table["time"] = np.array([60_000.0, 60_001.0, 60_002.0]) * 24 * u.h
    found = photometry_of(table, None, None, **PLAIN)[0]
    assert found.mjd_tai == pytest.approx([60_000, 60_001, 60_002])
    assert found.flux == pytest.approx([1000, np.nan, 3000], nan_ok=True)
    assert found.flux_err == pytest.approx(ERROR)


def test_a_baseline_without_a_unit_is_in_that_of_the_flux() -> None:
    u = units()
    time, flux, error = np.arange(60_000.0, 60_003), FLUX / 1e9 * u.Jy, ERROR / 1e9 * u.Jy
    for baseline in (1e-6, (1e-6, 1e-8), 1 * u.uJy, (1 * u.uJy, 10 * u.nJy)):
        found = photometry_of(time, flux, error, **PLAIN | {"baseline": baseline})[0]
        assert found.ref_flux == pytest.approx(1000)
    assert found.ref_flux_err == pytest.approx(10)
    magnitudes = {"baseline": (31.4 - 7.5, MAG_ERROR[0])}
    found = photometry_of(time, MAG * u.ABmag, MAG_ERROR * u.mag, **PLAIN | magnitudes)[0]
    assert found.ref_flux == pytest.approx(1000)
    assert found.ref_flux_err == pytest.approx(10)


def test_what_is_missing_in_a_column_is_nan() -> None:
    whole = np.ma.masked_equal([1, 2, 3], 2)
    assert flat("flux", whole) == pytest.approx([1, np.nan, 3], nan_ok=True)
    for dtype in ("Int64", "Float64"):
        column = pd.Series([1, None, 3], dtype=dtype)
        assert flat("flux", column) == pytest.approx([1, np.nan, 3], nan_ok=True)
