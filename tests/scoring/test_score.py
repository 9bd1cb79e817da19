"""K of an own light curve: the same as the service's, from whatever holds the arrays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import to_avro
from broker_filter.errors import SchemaError
from broker_filter.inference.magnification import excess
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.core import Pipeline
from broker_filter.replay.lightcurves.stream import LightCurves
from broker_filter.scoring import star_scorer
from broker_filter.scoring.columns import photometry_of
from broker_filter.scoring.score import score
from broker_filter.scoring.star_scorer import StarScorer, settings_for
from broker_filter.service.assembly import make_assessment, make_intake, open_entry
from broker_filter.types import Message

TIME = np.arange(60_000.0, 60_006.0, 0.1)
FLUX = 1000 + 10 * np.random.default_rng(4).standard_normal(len(TIME))
ERROR = np.full(len(TIME), 10.0)
PLAIN: dict[str, Any] = {"star": 1, "survey": "own", "band": None, "source": None, "flags": None}
PLAIN |= {"baseline": 1000.0, "time_system": "mjd_tai", "zero_point": None}
DARK = PLAIN | {"baseline": None}


def settings(entry: Path) -> Any:
    alert = {"log10_k": -10.0, "posterior_samples": 20, "certified": False}
    return settings_for(entry, alert=alert, schedule={"every_days": 1.0})


@pytest.fixture(scope="module")
def scorer(tiny_entry: Path) -> StarScorer:
    return StarScorer(settings(tiny_entry))


@pytest.fixture
def own(scorer: StarScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(star_scorer, "scorer_of", lambda *_: scorer)


def parts(**changes: Any) -> Any:
    return photometry_of(TIME, FLUX, ERROR, **PLAIN | {"star": "star", "band": "r"} | changes)


def of_the_service(chosen: Any, curves: Any = None) -> list[Alert]:
    metrics, entry = Metrics(), open_entry(chosen)
    intake = make_intake(chosen, entry, metrics)
    pipeline = Pipeline(intake, make_assessment(chosen, entry, metrics))
    found = []
    for i, record in enumerate(LightCurves(curves or parts()).read(print)):
        message = Message("photometry", 3, i, record.key, record.value, headers=record.headers)
        found += pipeline.step([message], 0.0, flush=True).alerts
    return found


def in_avro(alerts: Iterable[Alert]) -> list[bytes]:
    times = {"received_ms": None, "evaluated_ms": 0, "created_ms": 0}
    return [to_avro(replace(alert, **times)) for alert in alerts]


def test_alerts_are_those_of_the_service_to_the_bit(tiny_entry: Path, scorer: StarScorer) -> None:
    expected, found = of_the_service(settings(tiny_entry)), scorer(parts())
    assert expected
    assert in_avro(found.alerts) == in_avro(expected)
    assert found.log10_k >= max(alert.log10_k for alert in expected)


def test_rivals_that_are_computed_later_are_those_of_the_service(tiny_entry: Path) -> None:
    alert = {"log10_k": -10.0, "trigger_log10_k": -10.0, "posterior_samples": 20}
    chosen = settings_for(tiny_entry, alert=alert, schedule={"every_days": 2.0})
    expected, found = of_the_service(chosen), StarScorer(chosen)(parts())
    assert expected[-1].rivals
    assert in_avro([found.alerts[-1]]) == in_avro([expected[-1]])
    assert in_avro(found.alerts) == in_avro(expected)


def test_alerts_of_a_planet_beside_a_wrong_epoch_have_the_planets_fit() -> None:
    time = np.arange(60_000.0, 60_040.0, 0.05)
    flux = 1 + 0.15 * excess(np.hypot(0.3, (time - 60_033.0) / 0.4), 0.01)
    flux += 0.03 * np.random.default_rng(6).standard_normal(len(time))
    wrong = int(np.abs(time - 60_030.5).argmin())
    flux[wrong] += 1.5
    star = photometry_of(time, 1000 * flux, np.full(len(time), 30.0), **PLAIN | {"band": "r"})
    chosen = settings_for(alert={"posterior_samples": 20}, schedule={"every_days": 2.0})
    alerts = of_the_service(chosen, star)
    last = alerts[-1]
    assert last.fit is not None
    assert last.verdict is not None
    assert last.mjd_tai[list(last.fit.left_out)] == pytest.approx([time[wrong]])
    assert last.t0_mjd_tai == pytest.approx(60_033.0, abs=0.1)
    assert last.verdict.verdict == "microlensing"
    assert in_avro(StarScorer(chosen)(star).alerts) == in_avro(alerts)


def test_loading_imports_no_package_that_takes_seconds_and_is_not_needed() -> None:
    code = (
        "import sys; import broker_filter.scoring.star_scorer\n"
        "print({'sbi', 'matplotlib', 'pandas', 'scipy.stats'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_one_look_at_the_last_window_sees_what_the_stream_sees_there(tiny_entry: Path) -> None:
    alert = {"log10_k": -10.0, "posterior_samples": 20, "certified": False}
    often = StarScorer(settings_for(tiny_entry, alert=alert, schedule={"every_days": 0.01}))
    time = np.arange(60_000.0, 60_060.0, 0.5)
    flux = 1000 + 10 * np.random.default_rng(5).standard_normal(len(time))
    bands = np.where(np.arange(len(time)) % 2, "r", "i").tolist()
    for band, windows in ((None, 1), (bands, 2)):
        chosen = photometry_of(time, flux, np.full(len(time), 10.0), **PLAIN | {"band": band})
        streamed, found = (often(chosen, now=now) for now in (False, True))
        assert len(found.last_epoch) == len(found.alerts) == windows < len(streamed.last_epoch)
        assert found.last_epoch.max() == streamed.last_epoch[-1]
        assert streamed.log10_k_now in found.log10_k_of_windows
        assert found.rejected == {}


def test_one_star_leaves_nothing_to_the_next(scorer: StarScorer) -> None:
    first, again = scorer(parts()), scorer(parts())
    assert again.log10_k_of_windows.tolist() == first.log10_k_of_windows.tolist()
    assert [one.alert_id for one in again.alerts] == [one.alert_id for one in first.alerts]


@pytest.mark.usefixtures("own")
def test_order_of_rows_does_not_matter_and_what_is_unusable_is_counted() -> None:
    whole = score(TIME, FLUX, ERROR, baseline=1000.0)
    order = np.random.default_rng(1).permutation(len(TIME))
    time = np.r_[TIME[order], TIME[:3], 60_001.05]
    flux = np.r_[FLUX[order], FLUX[:3], np.nan]
    error = np.r_[ERROR[order], ERROR[:3], 10.0]
    found = score(time, flux, error, baseline=1000.0)
    assert found.rejected == {"nan_flux": 1, "duplicate": 3}
    assert found.epochs == len(TIME) + 4
    assert found.log10_k == whole.log10_k
    assert "3 duplicate, 1 nan_flux" in str(found)


@pytest.mark.usefixtures("own")
def test_a_hostile_name_is_printed_without_control_characters(scorer: StarScorer) -> None:
    result = scorer(parts(star="\x1b[31m\n<b>"))
    assert result.star == "\x1b[31m\n<b>"
    assert str(result).startswith("?[31m?<b>: 60 epochs")


def test_the_text_says_which_k_was_compared_with_what(scorer: StarScorer) -> None:
    alone = scorer(parts())
    assert "against noise" in str(alone)
    quiet = replace(alone, alerts=(), threshold=3.05)
    assert str(quiet).endswith(f"{quiet.log10_k:.2f} of the network, threshold 3.05, no alert")
    certified = replace(quiet, threshold=3.0, trigger=2.0)
    assert str(certified).endswith("threshold 3.00 of certified K, no alert")
    settled = replace(certified, log10_k_of_windows=np.full(len(alone.last_epoch), np.nan))
    assert str(settled).endswith("log10 K below 2.00 by the matched filter alone")


def test_a_wrong_magnitude_costs_its_epoch_alone() -> None:
    magnitudes = np.full(len(TIME), 20.0)
    magnitudes[3] = -999.0
    found = photometry_of(TIME, magnitudes, ERROR / 1000, **DARK | {"zero_point": 31.4})[0]
    assert np.isinf(found.flux[3])
    assert np.isfinite(np.delete(found.flux, 3)).all()


def test_a_star_without_light_has_no_k(scorer: StarScorer) -> None:
    for flux in (-FLUX, 0 * FLUX):
        assert "baseline above 0" in str(scorer(photometry_of(TIME, flux, ERROR, **DARK)))


def test_too_few_epochs_have_no_k() -> None:
    found = score(TIME[:9], FLUX[:9], ERROR[:9])
    assert np.isnan(found.log10_k)
    assert found.alert is None
    assert "10 epochs" in repr(found)


@pytest.mark.usefixtures("own")
def test_magnitudes_with_a_zero_point_are_flux() -> None:
    mag, mag_error = 31.4 - 2.5 * np.log10(FLUX), 2.5 / np.log(10) * ERROR / FLUX
    found = score(TIME, mag, mag_error, zero_point=31.4, baseline="median")
    plain = score(TIME, FLUX, ERROR, baseline="median")
    assert found.log10_k == pytest.approx(plain.log10_k, abs=1e-3)


@pytest.mark.usefixtures("own")
def test_a_table_and_calendar_dates_are_read() -> None:
    import pandas as pd

    dates = pd.to_datetime((TIME - 40_587) * 86_400 - 37, unit="s")
    frame = pd.DataFrame({"time": dates, "flux": FLUX, "flux_err": ERROR})
    found = score(frame, baseline=1000.0)
    assert found.log10_k == pytest.approx(score(TIME, FLUX, ERROR, baseline=1000.0).log10_k, 1e-3)
    assert found.posterior is not None
    assert list(found.posterior)[:3] == ["t0", "u0", "tE"]


def flagged(**columns: list[Any]) -> list[int]:
    """Flags of four epochs in a table with these columns."""
    import pandas as pd

    frame = pd.DataFrame({"time": TIME[:4], "flux": FLUX[:4], "flux_err": ERROR[:4], **columns})
    (found,) = photometry_of(frame, None, None, **PLAIN)
    return found.flags.tolist()


def test_columns_of_flags_and_limits_mark_rows_by_the_names_that_replay_knows() -> None:
    assert flagged() == [0, 0, 0, 0]
    assert flagged(catflags=[0, 32768, 0, 2**40]) == [0, 32768, 0, 1 << 31]
    assert flagged(quality=[0.0, np.nan, 4.0, 0.0]) == [0, 0, 4, 0]
    assert flagged(isGood=[True, True, False, True]) == [0, 0, 1, 0]
    assert flagged(flag=["G", "B", "g", ""], saturated=[2, 0, 0, 0]) == [2, 1, 0, 0]
    assert flagged(upperlimit=["F", "T", "F", "F"]) == [0, 1, 0, 0]
    assert flagged(limit=[20.5, 20.4, 20.6, 20.1]) == [0, 0, 0, 0]  # depths
    with pytest.raises(SchemaError, match="column flag holds 'odd'"):
        flagged(flag=["odd", "G", "G", "G"])


def test_flags_in_every_row_and_of_another_kind_are_refused() -> None:
    import pandas as pd

    frame = pd.DataFrame({"time": TIME, "flux": FLUX, "flux_err": ERROR, "flag": 1})
    with pytest.raises(SchemaError, match="column flag marks every row"):
        photometry_of(frame, None, None, **PLAIN)
    (found,) = photometry_of(frame, None, None, **PLAIN | {"flags": np.arange(len(TIME)) > 1})
    assert found.flags[:3].tolist() == [0, 0, 1]
    for flags in (np.zeros(3, np.int64), np.zeros(len(TIME)), ["G"] * len(TIME)):
        with pytest.raises(SchemaError, match="0 where an epoch is good"):
            photometry_of(TIME, FLUX, ERROR, **PLAIN | {"flags": flags})


@pytest.mark.usefixtures("own")
def test_a_flagged_epoch_counts_neither_for_k_nor_for_the_median() -> None:
    wild = np.where(np.arange(len(TIME)) % 3, FLUX, 50 * FLUX)
    found = score(TIME, wild, ERROR, flags=wild != FLUX, baseline="median")
    good = wild == FLUX
    alone = score(TIME[good], FLUX[good], ERROR[good], baseline="median")
    assert found.rejected["flagged"] == np.count_nonzero(~good)
    assert found.log10_k == alone.log10_k


def test_columns_of_a_table_tell_bands_and_sites_apart_and_stars_are_refused() -> None:
    import pandas as pd

    frame = pd.DataFrame({"time": TIME, "flux": FLUX, "flux_err": ERROR})
    frame["filter"] = np.where(np.arange(len(TIME)) % 2, "g", "r")
    frame["Site"] = "SAAO"
    found = photometry_of(frame, None, None, **PLAIN)
    assert [(part.band, part.source, len(part)) for part in found] == [
        ("g", "SAAO", len(TIME) // 2),
        ("r", "SAAO", len(TIME) - len(TIME) // 2),
    ]
    (one,) = photometry_of(frame, None, None, **PLAIN | {"band": "i"})
    assert one.band == "i"
    frame["star_id"] = np.arange(len(TIME)) % 3
    with pytest.raises(SchemaError, match="3 stars: use score_table"):
        photometry_of(frame, None, None, **PLAIN)


@pytest.mark.parametrize(
    ("time", "flux", "error", "changes", "says"),
    [
        (TIME, FLUX, ERROR[:-1], {}, "must agree"),
        ([], [], [], {}, "empty"),
        (TIME, FLUX, None, {}, "no errors"),
        (TIME, 17 + 0 * FLUX, 0.02 + 0 * ERROR, {}, "looks like a magnitude"),
        (TIME + 2_400_000.5, FLUX, ERROR, {}, "give time_system"),
        (TIME, FLUX, ERROR, {"time_system": "days"}, "none of HJD"),
        (TIME, FLUX, ERROR, {"baseline": -1.0}, "not above 0"),
        (TIME, FLUX, ERROR, {"baseline": "mean"}, "neither a number nor 'median'"),
        (TIME, FLUX, ERROR, {"baseline": np.inf}, "not finite"),
        (TIME, FLUX, ERROR, {"baseline": (1000.0, -1.0)}, "error -1 is below 0"),
        (TIME, FLUX, ERROR, {"baseline": (1.0, 2.0, 3.0)}, "3 values"),
        (TIME, FLUX, ERROR, {"zero_point": 31.4}, "no magnitudes: leave zero_point out"),
        (TIME, FLUX, ERROR, {"zero_point": np.nan}, "zero_point nan"),
        (TIME, FLUX, ERROR, {"survey": "x" * 65}, "survey has 65 characters"),
        (TIME, FLUX, ERROR, {"star": "\ud800"}, "star id is no text"),
        (TIME, FLUX, ERROR, {"time_system": None}, "none of HJD"),
        (TIME, FLUX + 1j, ERROR, {}, "complex"),
        (TIME, FLUX, ERROR, {"band": ["r"]}, "1 names"),
        (TIME, FLUX, ERROR, {"flags": np.ones(60, np.int64)}, "60 flagged"),
        (TIME, np.full(len(TIME), np.nan), ERROR, {}, "none of the 60 epochs"),
        (TIME, ["x"] * len(TIME), ERROR, {}, "no number"),
        ({"a": 1}, None, None, {}, "needed are time, flux and error"),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_cannot_be_scored_is_refused(
    time: Any, flux: Any, error: Any, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(SchemaError, match=says):
        score(time, flux, error, **changes)
