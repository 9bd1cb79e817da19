"""Which log10 K makes an alert: value, budget or card; opening, ending, certifying."""

from __future__ import annotations

import math

import pytest

from broker_filter.alerts.threshold import Rule, budget_threshold, make_rule
from broker_filter.config import AlertSettings

CARD, DAYS = 4.5, 20.0


def test_a_budget_gives_the_threshold_of_the_design() -> None:
    """Ten false alarms a night over 200 million stars and windows of 20 days: log10 k = 6.6."""
    assert budget_threshold(200_000_000, 10, 20.0) == pytest.approx(6.602, abs=1e-3)
    assert budget_threshold(10, 10, 20.0) == pytest.approx(math.log10(1 / 5))


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({}, Rule(CARD)),
        ({"decide_on": "certified"}, Rule(3.0, 1.0)),
        ({"log10_k": 2.0}, Rule(2.0)),
        ({"log10_k": 2.0, "decide_on": "certified", "trigger_log10_k": 0.5}, Rule(2.0, 0.5)),
        (
            {"decide_on": "certified", "stars": 10, "false_alarms_per_night": 10},
            Rule(math.log10(1 / 5), 1.0),
        ),
        (
            {"decide_on": "certified", "stars": 10, "bands": 6, "false_alarms_per_night": 10},
            Rule(math.log10(6 / 5), 1.0),
        ),
    ],
    ids=[
        "the card's",
        "certified",
        "a value",
        "a certified value",
        "a budget",
        "a budget of six bands",
    ],
)
def test_settings_give_the_rule(settings: dict[str, object], rule: Rule) -> None:
    made = make_rule(AlertSettings.model_validate(settings), card_threshold=CARD, window_days=DAYS)
    assert (made.threshold, made.trigger) == (pytest.approx(rule.threshold), rule.trigger)
    assert made.certified_decides == (rule.trigger is not None)


def test_an_event_opens_at_the_threshold_and_ends_a_step_below_it() -> None:
    rule = Rule(3.0, hysteresis=0.5)
    assert [k for k in (2.0, 2.49, 2.5, 2.99, 3.0, 9.0) if rule.opens(k)] == [3.0, 9.0]
    assert [k for k in (2.0, 2.49, 2.5, 2.99, 3.0, 9.0) if rule.ends(k)] == [2.0, 2.49]


def test_windows_are_certified_from_the_trigger_on_and_else_from_the_threshold() -> None:
    assert Rule(3.0).certify_from == 3.0
    assert Rule(3.0, trigger=1.0).certify_from == 1.0
    assert Rule(3.0, trigger=1.0).forgets(-0.01)
    assert not Rule(3.0, trigger=1.0).forgets(0.0)
