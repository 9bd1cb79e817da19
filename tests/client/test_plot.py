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
from broker_filter.alerts.parts import Rival
from broker_filter.client.corner import mass_levels, plot_corner
from broker_filter.client.plot import plot_light_curve
from broker_filter.client.read import read_alert
from broker_filter.client.shown import bulk_limits, shown_curve
from broker_filter.errors import ConfigError
from broker_filter.schemas import known_versions, schema_folder, schema_id
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
    assert labels == {"best fit", "68 %", "WFI03, 29 epochs", "WFI11, 14 epochs"}
    assert str(alert.star_id) in top.get_title()
    assert rf"{alert.certified.log10_k:.2f} \pm" in top.get_title()
    assert alert.interval("tE").rounded()[0] in top.get_title()


def without_fit(alert: Alert) -> Alert:
    return replace(alert, fit=None, network=None, posterior_from="network", certified=None)


def test_every_epoch_is_drawn_where_it_belongs(
    alert: Alert, tmp_path: Path, figures: list[Figure]
) -> None:
    plot_light_curve(without_fit(alert), tmp_path / "curve.png", point_source)
    containers = figures[0].axes[0].containers
    assert len(containers) == len(alert.sources)
    for i, drawn in enumerate(containers):
        data = drawn.lines[0]
        np.testing.assert_array_equal(data.get_ydata(), alert.flux[alert.source == i])
        last = alert.mjd_tai[alert.source == i][-1]
        assert data.get_xdata()[-1] == mjd_to_datetime(last)


def test_sources_have_colours_of_their_own(
    alert: Alert, tmp_path: Path, figures: list[Figure]
) -> None:
    plot_light_curve(alert, tmp_path / "curve.png", point_source)
    colours = {drawn.lines[0].get_color() for drawn in figures[0].axes[0].containers}
    assert len(colours) == len(alert.sources) == 2


def test_a_source_is_drawn_as_the_main_one_would_see_it(alert: Alert) -> None:
    # F = g (1 + f_s (A - 1)): noiseless points of two sources with different f_s and g.
    own = ((0.8, 1.01), (0.2, 0.98))
    sources = tuple(
        replace(one, best_f_s=f_s, best_baseline=g)
        for one, (f_s, g) in zip(alert.sources, own, strict=True)
    )
    best = alert.fit.best
    u = np.hypot(best.u0, (alert.mjd_tai - best.t0_mjd_tai) / best.tE)
    excess = point_source(u, u) - 1
    f_s, g = (np.array(column)[alert.source] for column in zip(*own, strict=True))
    fit = replace(alert.fit, main_source=0)
    exact = replace(alert, sources=sources, fit=fit, flux=g * (1 + f_s * excess))
    shown = shown_curve(exact, point_source)
    np.testing.assert_allclose(shown.flux, 1 + 0.8 * excess, rtol=1e-9)
    np.testing.assert_allclose(shown.residual, 0, atol=1e-7)
    np.testing.assert_allclose(shown.sigma, alert.sigma * 0.8 / (f_s * g), rtol=1e-6)
    assert shown.baseline == pytest.approx(15_000 * 1.01)


def test_one_outlier_does_not_make_the_event_invisible(
    alert: Alert, tmp_path: Path, figures: list[Figure]
) -> None:
    flux = alert.flux.copy()
    flux[3], flux[7] = 62.0, -40.0
    plot_light_curve(replace(alert, flux=flux), tmp_path / "curve.png", point_source)
    top, bottom = figures[0].axes[:2]
    low, high = top.get_ylim()
    assert 0.5 < low < 1.0
    assert 1.4 < high < 2.0
    assert bottom.get_ylim()[1] < 10
    marked = [line for line in top.lines if line.get_marker() in "^v" and len(line.get_xdata())]
    assert sorted(float(line.get_ydata()[0]) for line in marked) == [low, high]


def test_the_picture_of_a_short_event_that_is_over_is_around_its_peak() -> None:
    plain = build.alert()
    t0 = plain.t0_mjd_tai
    later = {"last_epoch_mjd_tai": t0 + 60, "window_start_mjd_tai": t0 + 45}
    running = shown_curve(build.alert(state="update", **later), point_source).limits
    over = shown_curve(build.alert(state="final", **later), point_source).limits
    assert running[1] >= t0 + 60
    half = max(8 * plain.interval("tE").median, 2.0)
    assert over == (max(plain.first_epoch_mjd_tai, t0 - half), t0 + half)


def test_limits_hold_curve_and_bulk() -> None:
    values = np.concatenate([np.linspace(0.9, 1.1, 98), [50.0, -50.0]])
    low, high = bulk_limits(values, np.array([1.0, 3.0]))
    assert 0.6 < low < 0.9
    assert 3.0 < high < 3.3
    assert np.isfinite(bulk_limits(np.ones(1), np.ones(1))).all()
    assert np.isfinite(bulk_limits(np.ones(2), np.ones(1))).all()
    assert np.isfinite(bulk_limits(np.ones(0), np.ones(1))).all()


def test_names_with_a_dollar_are_drawn_as_they_are(
    alert: Alert, tmp_path: Path, figures: list[Figure]
) -> None:
    sources = tuple(replace(one, source="$\\frac{$") for one in alert.sources)
    odd = replace(alert, star_id="a$x_$", survey="$\\oops", model_id="$", sources=sources)
    plot_light_curve(odd, tmp_path / "curve.png", point_source)
    plot_corner(odd, tmp_path / "corner.png")
    assert r"a\$x_\$" in figures[0].axes[0].get_title()


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
    sources = tuple(replace(one, system=None) for one in alert.sources)
    relative = replace(alert, baseline_flux=None, sources=sources)
    plot_light_curve(relative, tmp_path / "curve.png", point_source)
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
    narrow = replace(without_fit(alert), samples=samples)
    plot_corner(narrow, tmp_path / "corner.png")
    plot_light_curve(narrow, tmp_path / "curve.png", point_source)
    assert (tmp_path / "corner.png").stat().st_size > 10_000


@pytest.mark.parametrize("version", known_versions("alert"))
def test_alerts_of_every_version_can_be_drawn(version: str, tmp_path: Path) -> None:
    alert = read_alert(schema_folder() / "alert" / version / "sample.avro")
    plot_light_curve(alert, tmp_path / "curve.png", point_source)
    plot_corner(alert, tmp_path / "corner.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000


def test_the_corner_shows_the_network_beside_the_fit(
    alert: Alert, tmp_path: Path, figures: list[Figure]
) -> None:
    plot_corner(alert, tmp_path / "fit.png")
    plot_corner(without_fit(alert), tmp_path / "network.png")
    (both,), (alone,) = ([text.get_text() for text in one.texts] for one in figures)
    assert f"blue: {alert.model_id}" in both
    assert "of the fit" in both
    assert f"64 samples of {alert.model_id}" in alone


def test_default_magnification_is_the_finite_source_table(alert: Alert, tmp_path: Path) -> None:
    plot_light_curve(alert, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").exists()


def test_drawing_touches_neither_pyplot_nor_the_users_style(tmp_path: Path) -> None:
    program = (
        "import sys, matplotlib\n"
        "from pathlib import Path\n"
        "from broker_filter.alerts.codec import from_avro\n"
        "from broker_filter.client.corner import plot_corner\n"
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


def test_the_best_rival_is_dashed(alert: Alert, tmp_path: Path, figures: list[Figure]) -> None:
    curve = np.full(alert.n_epochs, 1.1, np.float32)
    rivals = (Rival("out$burst", 3.0, 0.1, {}, curve), Rival("flare", 9.0, 0.1, {}))
    plot_light_curve(replace(alert, rivals=rivals), tmp_path / "curve.png", point_source)
    dashed = [line for line in figures[0].axes[0].get_lines() if line.get_linestyle() == "--"]
    assert len(dashed) == 1
    assert np.allclose(dashed[0].get_ydata(), 1.1)
