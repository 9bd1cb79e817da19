"""The verdict: from evidences, rates and the star's record, and honest where these do not do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_filter.alerts.verdict import (
    CLASSES,
    VERDICTS,
    Findings,
    Rates,
    Record,
    is_established,
    is_quiet,
    verdict_of,
)
from broker_filter.config import RateSettings

RIVALS = ("flare", "outburst", "periodic", "smooth", "trend", "dip", "artefact", "constant")
RATES = Rates()


def found(**evidence: float) -> Findings:
    """Evidence over that of the lens, in dex; rivals that are not named are far behind."""
    return Findings({"lens": 0.0} | dict.fromkeys(RIVALS, -30.0) | evidence)


@pytest.mark.parametrize(
    ("model", "verdict"),
    [
        ("flare", "flare"),
        ("outburst", "outburst"),
        ("periodic", "variable"),
        ("dip", "variable"),
        ("artefact", "artefact"),
        ("constant", "artefact"),
        ("anomalous", "anomalous-lens"),
    ],
)
def test_the_class_of_the_best_model_is_the_verdict(model: str, verdict: str) -> None:
    said = verdict_of(found(**{model: 8.0}), Record(), RATES)
    assert said.verdict == verdict
    assert said.probabilities[verdict] > 0.99
    assert set(said.probabilities) == set(CLASSES)
    assert sum(said.probabilities.values()) == pytest.approx(1)
    assert said.reason


def test_a_lens_ahead_of_all_is_microlensing() -> None:
    said = verdict_of(found(), Record(), RATES)
    assert said.verdict == "microlensing"
    assert "one lens describes all data" in said.reason


@pytest.mark.parametrize("model", ["lens", "anomalous", "flare", "periodic"])
def test_as_few_epochs_as_a_lens_has_parameters_are_unclear(model: str) -> None:
    said = verdict_of(replace(found(**{model: 8.0}), spare_epochs=0), Record(), RATES)
    assert said.verdict == "unclear"
    assert "more epochs settle it" in said.reason


def test_a_wrong_epoch_is_one_among_few_too() -> None:
    few = replace(found(artefact=8.0), spare_epochs=-4)
    assert verdict_of(few, Record(), RATES).verdict == "artefact"


def test_evidence_that_does_not_decide_is_unclear_and_says_what_would_settle_it() -> None:
    said = verdict_of(found(outburst=0.0), Record(), RATES)
    assert said.verdict == "unclear"
    assert "spectrum" in said.reason
    rising = replace(found(outburst=0.0), days_to_peak=2.5)
    assert "2.5 d" in verdict_of(rising, Record(), RATES).reason


def test_rates_weigh_the_evidence() -> None:
    close = found(outburst=1.5)
    assert verdict_of(close, Record(), Rates(outburst=1e-4)).verdict == "microlensing"
    assert verdict_of(close, Record(), Rates(outburst=1e4)).verdict == "outburst"


def test_rates_alone_make_no_look_alike() -> None:
    said = verdict_of(found(periodic=0.5), Record(earlier_events=2), RATES)
    assert said.verdict == "unclear"
    assert said.probabilities["variable"] > 0.9


def test_an_event_is_one_where_noise_does_not_describe_it() -> None:
    assert is_established(found(flare=1.0))
    assert not is_established(found(constant=-2.0))
    assert not is_established(found(artefact=5.0))
    assert is_established(found(constant=-7.0), 6.6)
    assert not is_established(found(constant=-6.0), 6.6)
    assert not is_established(found(constant=-2.0), 1.0)


def test_a_star_with_wrong_epochs_alone_is_not_quiet() -> None:
    assert is_quiet(found(constant=-2.0))
    assert is_quiet(found(constant=1.0))
    assert not is_quiet(found(artefact=5.0))


def test_a_star_that_had_events_before_is_hardly_lensed_again() -> None:
    close = found(outburst=-2.0)
    assert verdict_of(close, Record(), RATES).verdict == "microlensing"
    assert verdict_of(close, Record(earlier_events=1), RATES).verdict == "unclear"
    far = verdict_of(found(), Record(earlier_events=2), RATES)
    assert far.verdict == "unclear"
    assert "2 events before" in far.reason
    close = found(outburst=1.2)
    again = verdict_of(close, Record(earlier_events=2), RATES)
    assert again.verdict == "outburst"
    assert "earlier events of the star: 2" in again.reason


def test_wrong_epochs_come_by_chance_and_flares_repeat() -> None:
    close = found(flare=20.0, artefact=20.0)
    first = verdict_of(close, Record(), RATES)
    assert first.verdict == "unclear"
    assert first.probabilities["artefact"] > first.probabilities["flare"]
    again = verdict_of(close, Record(earlier_events=2), RATES)
    assert again.verdict == "flare"


def test_a_lens_needs_a_probability_of_19_in_20() -> None:
    said = verdict_of(found(outburst=-1.5), Record(), RATES)
    assert 0.9 < said.probabilities["microlensing"] < 0.95
    assert said.verdict == "unclear"
    other = verdict_of(found(outburst=1.5), Record(), RATES)
    assert other.probabilities["outburst"] > 0.9
    assert other.verdict == "outburst"


def test_a_lens_that_may_be_anomalous_is_one_all_the_same() -> None:
    for lead, verdict in ((0.8, "microlensing"), (1.2, "anomalous-lens")):
        said = verdict_of(found(anomalous=lead), Record(), RATES)
        assert said.verdict == verdict
        assert said.probabilities[verdict] < 0.7
    doubtful = verdict_of(found(anomalous=0.8, outburst=-1.0), Record(), RATES)
    assert doubtful.verdict == "unclear"
    assert doubtful.reason.startswith("a lens (84%) or outburst")


def test_lenses_of_both_classes_are_named_before_a_class_that_is_less_probable() -> None:
    said = verdict_of(found(anomalous=0.9, outburst=-0.4), Record(), RATES)
    assert max(said.probabilities, key=said.probabilities.__getitem__) == "outburst"
    assert said.verdict == "unclear"
    assert said.reason.startswith("a lens (60%) or outburst")


def test_how_far_a_more_usual_class_is_behind_is_said() -> None:
    said = verdict_of(found(periodic=1.5, flare=3.5), Record(label="RR Lyrae"), RATES)
    assert said.verdict == "variable"
    assert "10^2.0 times less well than a flare, but is the more usual" in said.reason


@pytest.mark.parametrize("about", [{}, {"anomalous": 8.0}, {"outburst": 0.0}])
def test_epochs_that_were_left_out_are_not_among_those_described(about: dict[str, float]) -> None:
    said = verdict_of(replace(found(**about), left_out=2), Record(), RATES)
    assert said.reason.endswith("left out as wrong: 2 of the epochs")
    assert "all data" not in said.reason


def test_a_catalogued_variable_needs_more_evidence() -> None:
    close = found(periodic=-3.0)
    assert verdict_of(close, Record(), RATES).verdict == "microlensing"
    known = verdict_of(found(periodic=1.2), Record(label="RR Lyrae"), RATES)
    assert known.verdict == "variable"
    assert "RR Lyrae" in known.reason


def test_a_bump_that_only_smooth_light_describes_is_no_variable() -> None:
    bump = found(smooth=20.0)
    assert verdict_of(bump, Record(), RATES).verdict == "unclear"
    rise = replace(found(trend=5.0), days_to_peak=3.0)
    assert "3.0 d away" in verdict_of(rise, Record(), RATES).reason
    assert verdict_of(replace(bump, goes_below=True), Record(), RATES).verdict == "variable"
    assert verdict_of(bump, Record(label="LPV"), RATES).verdict == "variable"
    assert verdict_of(bump, Record(earlier_events=1), RATES).verdict == "unclear"
    assert verdict_of(bump, Record(earlier_events=2), RATES).verdict == "variable"


def test_a_lens_that_does_not_describe_the_data_is_unclear() -> None:
    assert verdict_of(replace(found(), scale=1.5), Record(), RATES).verdict == "microlensing"
    assert verdict_of(replace(found(), scale=2.0), Record(), RATES).verdict == "unclear"
    overfitted = replace(found(), scale=1.0, least_scale=0.5)
    assert verdict_of(overfitted, Record(), RATES).verdict == "microlensing"
    poor = replace(found(), scale=4.0, least_scale=4.0)
    said = verdict_of(poor, Record(), RATES)
    assert said.verdict == "unclear"
    assert "4.0 times" in said.reason


def test_where_the_lens_is_at_the_edge_of_its_prior_a_longer_one_is_not_excluded() -> None:
    edge = replace(found(outburst=5.0), too_long=True)
    said = verdict_of(edge, Record(), RATES)
    assert said.verdict == "unclear"
    assert "longer" in said.reason
    assert verdict_of(edge, Record(label="dwarf nova"), RATES).verdict == "outburst"


def test_a_lens_as_long_as_its_prior_allows_is_unclear() -> None:
    said = verdict_of(replace(found(), too_long=True), Record(), RATES)
    assert said.verdict == "unclear"
    assert "microlensing" in said.reason


@pytest.mark.parametrize(
    ("about", "verdict"),
    [({"anomalous": 8.0}, "anomalous-lens"), ({}, "microlensing")],
)
def test_a_slow_lens_and_an_anomalous_one_are_unclear_until_their_light_has_fallen(
    about: dict[str, float], verdict: str
) -> None:
    high = replace(found(**about), t_einstein=80.0, light_left=0.8)
    said = verdict_of(high, Record(), RATES)
    assert said.verdict == "unclear"
    assert "fallen by half" in said.reason
    assert verdict_of(replace(high, light_left=0.4), Record(), RATES).verdict == verdict
    quick = replace(high, t_einstein=8.0)
    expected = "unclear" if about else "microlensing"
    assert verdict_of(quick, Record(), RATES).verdict == expected


def test_rates_of_the_settings_are_those_of_the_verdict() -> None:
    assert Rates(**RateSettings().model_dump()) == Rates()
    assert "unclear" in VERDICTS
