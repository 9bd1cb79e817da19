"""Alerts with a fit: whose samples they carry, and fluxes and magnitudes of each source."""

from __future__ import annotations

import math
import uuid
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.build import (
    Common,
    Evaluation,
    ProcessingTimes,
    Provenance,
    build_alert,
    refitted,
)
from broker_filter.alerts.codec import from_avro, from_message, to_avro, to_json_dict
from broker_filter.alerts.lifecycle import EventState
from broker_filter.alerts.parts import Best, CertifiedK, Noise, Rival, Source, Verdict
from broker_filter.alerts.record import from_record, to_record
from broker_filter.schemas import known_versions, schema_folder
from broker_filter.types import (
    Fit,
    FloatArray,
    Message,
    NotFitted,
    SourceFit,
    StarEpochs,
    WindowBatch,
)

START, N = 61000.0, 12


def point_source(u: FloatArray, _rho: FloatArray) -> FloatArray:
    return np.asarray((u * u + 2) / (u * np.sqrt(u * u + 4)))


def window(*, relative: bool = False) -> WindowBatch:
    """Two sites of a star in one band, the second a tenth brighter; a third has no epoch."""
    level = np.array([[1.0, 1.0, np.nan]] if relative else [[1000.0, 1100.0, np.nan]])
    return WindowBatch(
        slot=np.array([0]),
        star=[7],
        survey=["kmt"],
        band=["I"],
        coordinates=[None],
        t_start=np.array([START]),
        mjd_tai=START + np.arange(1.0, N + 1)[None],
        flux=np.ones((1, N), np.float32),
        sigma=np.full((1, N), 0.01, np.float32),
        n=np.array([N]),
        baseline=level[:, 1],
        baseline_err=0.002 * level[:, 1],
        baseline_error=np.array([0.001]),
        relative=np.array([relative]),
        source=(np.arange(N, dtype=np.int16) % 2)[None],
        sources=[(("I", "A"), ("I", "C"), ("I", "S"))],
        source_level=level,
        source_error=np.array([[0.001, 0.002, np.nan]]),
        source_history=np.zeros((1, 3, 6)),
    )


def fit(**changes: Any) -> Fit:
    """t0 on day 9 of the window in a fit that counts from 40 days before; A says most."""
    lens = np.array([49.0, 0.5, 0.5, -1.5, 0.8])
    return Fit(
        **{
            "t_start": START - 40,
            "samples": np.tile(lens, (10, 1)).astype(np.float32),
            "sources": (
                SourceFit("I", "A", 6, 0.75, 1.01, 5.5),
                SourceFit("I", "C", 6, 0.25, 0.99, 6.5),
            ),
            "f_s": np.tile([0.8, 0.3], (10, 1)).astype(np.float32),
            "log10_k": 12.5,
            "log10_k_error": 0.05,
            "effective_sample_size": 250.0,
            "converged": True,
            "reason": "",
            "best": np.array([49.25, 0.4, 0.25, -2.0, 0.75]),
            "chi2": 12.0,
            "degrees_of_freedom": 6,
            "p_value": 0.06,
            "autocorrelation": 0.1,
        }
        | changes
    )


def build(batch: WindowBatch | None = None, **found: Any) -> Alert:
    event = EventState(START + 9, "fspl-1", START + 12, 6.5, START + 12)
    samples = np.tile([8.0, 0.6, 0.2, -1.0, 0.5], (20, 1))
    common = Common(Provenance("fspl-1", "ab" * 32, "0.1.0", 20.0), 3.0, 1e-6, point_source)
    evaluation = Evaluation(event, "update", 6.5, **found)
    return build_alert(
        batch or window(), 0, evaluation, samples, ProcessingTimes(None, 1, 2), common
    )


def magnitude(njy: float) -> float:
    return 31.4 - 2.5 * math.log10(njy)


def test_samples_are_the_fits_and_the_networks_stand_beside() -> None:
    alert = build(fit=fit())
    assert alert.posterior_from == "fit"
    assert alert.posterior["t0"].tolist() == [START + 9] * 10
    assert alert.interval("t0").median == alert.t0_mjd_tai == START + 9
    assert alert.network_posterior["t0"].tolist() == [START + 8] * 20
    assert alert.days_to_peak == -3.0
    assert alert.fit.best == Best(START + 9.25, 0.4, 10**0.25, 0.01)
    assert (alert.fit.main_source, alert.fit.converged, alert.fit.p_value) == (0, True, 0.06)
    assert alert.reduced_chi2 == 2.0


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, None),
        (NotFitted("not fitted: one night"), "not fitted: one night"),
        (fit(chi2=math.nan), "not fitted: the result is not finite"),
        (fit(samples=np.full((10, 5), np.inf, np.float32)), "not fitted: the result is not finite"),
    ],
    ids=["none asked for", "not fitted", "chi2 is NaN", "samples are infinite"],
)
def test_without_a_fit_the_samples_are_the_networks(found: Any, reason: str | None) -> None:
    alert = build(fit=found)
    assert (alert.posterior_from, alert.fit, alert.network) == ("network", None, None)
    assert alert.not_fitted == reason
    assert alert.t0_mjd_tai == START + 8
    np.testing.assert_array_equal(alert.network_posterior, alert.posterior)


def test_another_fit_takes_the_place_of_the_fit_and_of_nothing_else() -> None:
    claim, batch = CertifiedK(12.5, 0.05, 250.0, 2), window()
    first = build(batch, fit=fit(), certified=claim)
    best = np.array([45.25, 0.2, 0.25, -2.0, 0.75])
    lens = np.tile([45.0, 0.3, 0.25, -2.0, 0.8], (10, 1)).astype(np.float32)
    other = fit(best=best, samples=lens, chi2=10.0, degrees_of_freedom=4, log10_k=20.0)
    alert = refitted(first, batch, 0, batch.epochs(0), other, (2, 5), point_source)
    assert alert.fit.left_out == (2, 5)
    assert (alert.fit.best.t0_mjd_tai, alert.fit.log10_k) == (START + 5.25, 20.0)
    assert alert.t0_mjd_tai == alert.interval("t0").median == START + 5
    assert (alert.days_to_peak, alert.reduced_chi2) == (-7.0, 2.5)
    assert alert.magnitude_peak < first.magnitude_peak
    same = ("alert_id", "log10_k", "certified", "p_event", "network", "n_epochs", "flux")
    assert all(getattr(alert, name) is getattr(first, name) for name in same)
    assert to_record(from_avro(to_avro(alert))) == to_record(alert)
    assert to_json_dict(alert)["fit"]["leftOut"] == [2, 5]


def test_another_fit_that_is_not_finite_is_not_taken() -> None:
    first, batch = build(fit=fit()), window()
    other = fit(chi2=math.inf)
    assert refitted(first, batch, 0, batch.epochs(0), other, (2,), point_source) is first
    first = build(fit=other)
    assert refitted(first, batch, 0, batch.epochs(0), fit(), (2,), point_source) is first


def test_fluxes_of_source_and_blend_are_those_of_each_site() -> None:
    # 1000 nJy x 1.01 = 1010 at rest, of which 0.8 is lensed; 1100 x 0.99 = 1089, of which 0.3.
    first, second = build(fit=fit()).sources
    assert (first.band, first.source, first.n_epochs, first.system) == ("I", "A", 6, "AB")
    assert first.source_flux == pytest.approx(808.0)
    assert first.blend_flux == pytest.approx(202.0)
    assert second.source_flux == pytest.approx(326.7)
    assert second.blend_flux == pytest.approx(762.3)
    assert (second.best_f_s, second.best_baseline, second.chi2) == (0.25, 0.99, 6.5)
    assert second.baseline_relative_error == 0.002


def test_error_of_the_source_flux_is_half_its_68_percent_interval() -> None:
    f_s = np.stack([np.linspace(0.5, 0.7, 101), np.full(101, 0.3)], axis=1)
    samples = np.tile([49.0, 0.5, 0.5, -1.5, 0.6], (101, 1))
    wide = fit(samples=samples.astype(np.float32), f_s=f_s.astype(np.float32))
    first, second = build(fit=wide).sources
    assert first.source_flux_error == pytest.approx(1010 * 0.2 * 0.68 / 2, rel=1e-5)
    assert second.source_flux_error == 0.0


def test_magnitudes_are_those_of_the_newest_source_now_and_at_the_peak() -> None:
    alert = build(fit=fit())  # the last epoch is of C
    u = math.hypot(0.5, 3 / 10**0.5)
    now, peak = (float(point_source(np.array(x), np.array(x))) for x in (u, 0.5))
    assert alert.baseline_magnitude == pytest.approx(magnitude(1089))
    assert alert.source_magnitude == pytest.approx(magnitude(326.7))
    assert alert.blend_magnitude == pytest.approx(magnitude(762.3))
    assert alert.magnitude_now == pytest.approx(magnitude(1089 * (1 + 0.3 * (now - 1))))
    assert alert.magnitude_peak == pytest.approx(magnitude(1089 * (1 + 0.3 * (peak - 1))))


def test_relative_photometry_has_fluxes_in_units_of_the_baseline_and_no_magnitudes() -> None:
    alert = build(window(relative=True), fit=fit())
    assert [one.system for one in alert.sources] == [None, None]
    assert alert.sources[1].source_flux == pytest.approx(0.99 * 0.3)
    assert (alert.magnitude_now, alert.magnitude_peak, alert.source_magnitude) == (None,) * 3


def test_without_a_fit_the_networks_share_holds_for_all_sources() -> None:
    first, second = build().sources
    assert (first.source_flux, first.blend_flux) == (500.0, 500.0)
    assert (second.source_flux, second.best_f_s, second.chi2) == (550.0, None, None)


def test_the_light_curve_is_that_of_the_whole_event() -> None:
    batch = window()
    earlier = StarEpochs(
        (("I", "C"), ("V", "C")),
        np.array([1100.0, 900.0]),
        np.array([0.002, 0.003]),
        START + np.array([-30.0, -20.0, 12.0]),
        np.array([1.5, 1.4, 1.3], np.float32),
        np.full(3, 0.01, np.float32),
        np.array([0, 1, 0], np.int16),
    )
    alert = build(batch, epochs=earlier)
    assert (alert.n_epochs, alert.first_epoch_mjd_tai) == (3, START - 30)
    assert alert.last_epoch_mjd_tai == START + 12
    curve = alert.light_curve
    assert curve["band"].tolist() == ["I", "V", "I"]
    assert curve["source"].tolist() == ["C"] * 3
    assert from_avro(to_avro(alert)).light_curve.equals(curve)


def test_sources_without_an_epoch_are_left_out() -> None:
    alert = build()
    assert [one.source for one in alert.sources] == ["A", "C"]
    assert alert.source.tolist() == [0, 1] * 6


@pytest.mark.parametrize(("samples", "claimed"), [(250.0, 6.0), (3.0, 4.5)])
def test_probability_rests_on_a_lower_bound_where_few_samples_count(
    samples: float, claimed: float
) -> None:
    alert = build(certified=CertifiedK(6.0, 1.5, samples, 1))
    assert alert.p_event == pytest.approx(10 ** (claimed - 6) / (1 + 10 ** (claimed - 6)))


def full() -> Alert:
    curve = np.linspace(1, 2, N).astype(np.float32)
    return build(
        fit=fit(),
        certified=CertifiedK(12.5, 0.05, 250.0, 2),
        best_constrained=uuid.UUID(int=5),
        rivals=(
            Rival("flare", 5.5, 0.1, {"t0": START, "amplitude": 0.5}, curve),
            Rival("periodic", 7.5, None, {}),
        ),
        verdict=Verdict("microlensing", {"microlensing": 0.9, "flare": 0.1}, "It fits best."),
        noise=Noise(1.2, 0.004, red_noise_max=0.006, red_noise_time=0.5, nights=40),
    )


@pytest.mark.parametrize("alert", [full(), build(), build(fit=NotFitted("not fitted: gap"))])
def test_all_that_an_alert_holds_survives_its_bytes(alert: Alert) -> None:
    back = from_avro(to_avro(alert))
    assert to_record(back) == to_record(alert)
    assert repr(back) == repr(alert)
    assert {one.name for one in fields(Source)} == set(Source.__dataclass_fields__)


def test_json_leaves_curves_and_samples_out_unless_asked() -> None:
    short = to_json_dict(full())
    assert "samples" not in short["network"]
    assert "curve" not in short["rivals"][0]
    assert short["fit"]["best"]["u0"] == 0.4
    assert short["bestConstrainedAlertId"] == str(uuid.UUID(int=5))
    whole = to_json_dict(full(), light_curve=True, samples=True)
    assert len(whole["network"]["samples"]) == 20
    assert whole["rivals"][0]["curve"][-1] == 2.0
    assert whole["rivals"][1]["curve"] is None


@pytest.mark.parametrize("version", [v for v in known_versions("alert") if v < "1/2"])
def test_alerts_of_older_schemas_lack_what_is_new(version: str) -> None:
    value = (schema_folder() / "alert" / version / "sample.avro").read_bytes()
    header = (("schema", f"alert/{version}".encode()),)
    alert = from_message(Message("alerts", 0, 0, None, value, headers=header))
    assert alert.posterior_from == "network"
    new = ("network", "fit", "not_fitted", "days_to_peak", "magnitude_peak", "source", "verdict")
    assert [getattr(alert, name) for name in new] == [None] * len(new)
    assert (alert.sources, alert.rivals, alert.noise) == ((), (), None)
    assert set(alert.light_curve["band"]) == {alert.band}
    assert len(alert.network_posterior) == len(alert.samples)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sources": []}, "source"),
        ({"lightCurve": {"source": b"\0"}}, "source"),
        ({"fit": {"mainSource": 2}}, "mainSource"),
        ({"fit": {"leftOut": [0, N]}}, "leftOut"),
        ({"fit": {"leftOut": [-1]}}, "leftOut"),
        ({"network": {"shape": [1, 5]}}, "samples"),
    ],
    ids=str,
)
def test_parts_that_contradict_each_other_are_refused(change: dict[str, Any], said: str) -> None:
    record = to_record(full())
    for key, value in change.items():
        record[key] = record[key] | value if isinstance(value, dict) else value
    with pytest.raises(ValueError, match=said):
        from_record(record)


def test_a_source_that_the_fit_does_not_have_has_no_best_curve() -> None:
    one = fit()
    alone = replace(one, sources=one.sources[:1], f_s=one.f_s[:, :1])
    first, second = build(fit=alone).sources
    assert first.best_f_s == 0.75
    assert (second.best_f_s, second.best_baseline) == (None, None)
