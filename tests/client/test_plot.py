"""The pictures: what they show, on real figures, and what they do without matplotlib."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from broker_filter.alerts.alert import Alert, mjd_to_datetime
from broker_filter.client.plot import mass_levels, plot_corner, plot_light_curve
from broker_filter.errors import ConfigError
from broker_filter.schemas import schema_folder, schema_id
from broker_filter.types import FloatArray
from tests import build


def point_source(u: FloatArray, _rho: FloatArray) -> FloatArray:
    u = np.maximum(u, 1e-6)
    return np.asarray((u * u + 2) / (u * np.sqrt(u * u + 4)))


@pytest.fixture
def alert() -> Alert:
    return build.alert()


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """The figures that are saved."""
    saved: list[Figure] = []
    save = Figure.savefig

    def remember(figure: Figure, *args: Any, **kwargs: Any) -> None:
        saved.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", remember)
    return saved


def test_light_curve_shows_data_model_band_and_title(
    alert: Alert, tmp_path: Path, figures: list[Figure]
) -> None:
    plot_light_curve(alert, tmp_path / "new" / "curve.png", point_source)
    assert imread(tmp_path / "new" / "curve.png").shape[:2] == (810, 1200)
    top = figures[0].axes[0]
    labels = {text.get_text() for text in top.get_legend().get_texts()}
    assert labels == {"median model", "68 %", f"{alert.n_epochs} epochs"}
    assert str(alert.star_id) in top.get_title()
    assert f"{alert.log10_k:.2f}" in top.get_title()
    assert alert.interval("tE").rounded()[0] in top.get_title()


def test_light_curve_draws_every_epoch_where_it_belongs(
    alert: Alert, tmp_path: Path, figures: list[Figure]
) -> None:
    plot_light_curve(alert, tmp_path / "curve.png", point_source)
    data = figures[0].axes[0].containers[0].lines[0]
    np.testing.assert_array_equal(data.get_ydata(), alert.flux)
    assert data.get_xdata()[-1] == mjd_to_datetime(alert.last_epoch_mjd_tai)


def test_magnitudes_at_the_right_agree_with_the_flux(
    alert: Alert, tmp_path: Path, figures: list[Figure]
) -> None:
    plot_light_curve(alert, tmp_path / "curve.png", point_source)
    (right,) = [axes for axes in figures[0].axes if axes.get_ylabel() == "AB magnitude"]
    assert len(right.get_yticks()) >= 2
    for flux, mark in zip(right.get_yticks(), right.get_yticklabels(), strict=True):
        magnitude = alert.baseline_magnitude - 2.5 * np.log10(flux)
        assert float(mark.get_text()) == pytest.approx(magnitude, abs=0.006)


def test_relative_photometry_has_no_magnitude_axis(
    alert: Alert, tmp_path: Path, figures: list[Figure]
) -> None:
    plot_light_curve(replace(alert, baseline_flux=None), tmp_path / "curve.png", point_source)
    assert "AB magnitude" not in {axes.get_ylabel() for axes in figures[0].axes}


def test_corner_titles_give_the_quantiles_of_the_summary(
    alert: Alert, tmp_path: Path, figures: list[Figure]
) -> None:
    plot_corner(alert, tmp_path / "corner.png")
    titles = [axes.get_title() for axes in figures[0].axes if axes.get_title()]
    assert len(titles) == 5
    for entry, title in zip(alert.summary, titles, strict=True):
        assert all(number in title for number in entry.rounded())


@pytest.mark.parametrize("size", [2, 64])
def test_narrow_and_small_posteriors_can_be_drawn(alert: Alert, tmp_path: Path, size: int) -> None:
    samples = np.repeat(alert.samples[:1], size, axis=0)
    narrow = replace(alert, samples=samples)
    plot_corner(narrow, tmp_path / "corner.png")
    plot_light_curve(narrow, tmp_path / "curve.png", point_source)
    assert (tmp_path / "corner.png").stat().st_size > 10_000


def test_default_magnification_is_the_finite_source_table(alert: Alert, tmp_path: Path) -> None:
    plot_light_curve(alert, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").exists()


def test_drawing_touches_neither_pyplot_nor_the_users_style(tmp_path: Path) -> None:
    program = (
        "import sys, matplotlib\n"
        "from pathlib import Path\n"
        "from broker_filter.alerts.codec import from_avro\n"
        "from broker_filter.client.plot import plot_corner\n"
        "style = lambda: [matplotlib.rcParams[k] for k in ('font.size', 'axes.linewidth')]\n"
        "before = style()\n"
        "plot_corner(from_avro(Path(sys.argv[1]).read_bytes()), sys.argv[2])\n"
        "assert style() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    sample = schema_folder() / schema_id("alert") / "sample.avro"
    subprocess.run(
        [sys.executable, "-c", program, str(sample), str(tmp_path / "corner.png")],
        check=True,
        cwd=schema_folder().parent,
    )


def test_without_matplotlib_the_message_tells_how_to_get_it(
    alert: Alert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'broker-filter\[plot\]'"):
        plot_corner(alert, tmp_path / "corner.png")


def test_mass_levels_of_a_gaussian() -> None:
    # Of a two-dimensional Gaussian, a share s lies where the density exceeds (1 - s) of its peak.
    axis = np.linspace(-6, 6, 1201)
    density = np.exp(-0.5 * (axis[:, None] ** 2 + axis**2))
    assert mass_levels(density, (0.95, 0.68)) == pytest.approx([0.05, 0.32], rel=2e-3)


def test_mass_levels_increase_even_where_one_cell_holds_all() -> None:
    outer, inner = mass_levels(np.eye(1, 9), (0.95, 0.68))
    assert outer < inner
