"""Which log10 K makes an alert: value, budget or card; opening, ending, certifying."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from broker_filter.alerts.threshold import Discovery, Rule, budget_threshold, make_rule
from broker_filter.config import AlertSettings
from broker_filter.types import FloatArray

CARD, DAYS = 4.5, 20.0


def test_a_budget_gives_the_threshold_of_the_design() -> None:
    """Ten false alarms a night over 200 million stars and windows of 20 days: log10 k = 6.6."""
    assert budget_threshold(200_000_000, 10, 20.0) == pytest.approx(6.602, abs=1e-3)
    assert budget_threshold(10, 10, 20.0) == pytest.approx(math.log10(1 / 5))


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({}, Rule(3.0, 2.0)),
        ({"certified": False, "rivals": False}, Rule(CARD)),
        ({"decide_on": "network"}, Rule(CARD)),
        ({"log10_k": 4.0}, Rule(4.0, 2.0)),
        ({"log10_k": 1.5}, Rule(1.5, 1.5)),
        ({"log10_k": 2.0, "decide_on": "network"}, Rule(2.0)),
        ({"log10_k": 2.0, "decide_on": "certified", "trigger_log10_k": 0.5}, Rule(2.0, 0.5)),
        (
            {"decide_on": "certified", "stars": 10, "false_alarms_per_night": 10},
            Rule(math.log10(1 / 5), math.log10(1 / 5)),
        ),
        (
            {"decide_on": "certified", "stars": 10, "bands": 6, "false_alarms_per_night": 10},
            Rule(math.log10(6 / 5), math.log10(6 / 5)),
        ),
    ],
    ids=[
        "the default",
        "nothing certified: the card's",
        "the network: the card's",
        "a value",
        "a value below the trigger",
        "a value for the network",
        "a certified value",
        "a budget",
        "a budget of six bands",
    ],
)
def test_settings_give_the_rule(settings: dict[str, object], rule: Rule) -> None:
    made = make_rule(AlertSettings.model_validate(settings), card_threshold=CARD, window_days=DAYS)
    assert (made.threshold, made.trigger) == (
        pytest.approx(rule.threshold),
        rule.trigger and pytest.approx(rule.trigger),
    )
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


def test_a_share_of_false_ones_asks_less_the_more_events_have_opened() -> None:
    settings = {"false_discovery_rate": 0.1, "stars": 100_000, "bands": 2}
    rule = make_rule(AlertSettings.model_validate(settings), card_threshold=CARD, window_days=DAYS)
    assert rule.certified_decides
    assert rule.after(0).threshold == pytest.approx(math.log10(2e6))
    assert rule.after(9).threshold == pytest.approx(math.log10(2e5))
    assert rule.threshold == 3.0  # of open events
    assert Rule(5.0).after(9) == Rule(5.0)


def test_stars_that_were_counted_too_low_do_not_open_all_the_others() -> None:
    rule = Discovery(0.1, 100)
    assert rule.threshold(98) > rule.threshold(99) == rule.threshold(10**6) == pytest.approx(1.0)


def false_share(
    k: FloatArray, constant: NDArray[np.bool_], rule: Discovery, partitions: int = 1
) -> float:
    """Share of constant stars among the windows that open events, one after the other."""
    opened, false = [0] * partitions, 0
    for i in np.flatnonzero(k >= 1).tolist():
        if math.log10(k[i]) >= rule.threshold(opened[i % partitions]) - 1e-9:
            opened[i % partitions] += 1
            false += bool(constant[i])
    return false / max(sum(opened), 1)


N, RATE, NIGHTS = 200, 0.2, 2_000


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("events", [0, 20])
@pytest.mark.parametrize("noise", ["independent", "all alike", "just enough"])
def test_the_share_of_false_ones_keeps_to_its_rate(
    noise: str, events: int, partitions: int
) -> None:
    """For K of constant stars whose expectation is 1, among events that are sure."""
    rng, rule = np.random.default_rng(3), Discovery(RATE, N)
    shares = []
    for _ in range(NIGHTS):
        constant = rng.permutation(np.arange(N) >= events)
        unit = np.full(N, rng.random()) if noise == "all alike" else rng.random(N)
        if noise == "just enough":  # to open one after all events, and else nothing
            height = N / RATE / (1 + events // partitions)
            k = np.where(unit < 1 / height, height, 0.0)
        else:
            k = 0.5 / np.sqrt(unit)
        shares.append(false_share(np.where(constant, k, 1e9), constant, rule, partitions))
    error = np.std(shares) / math.sqrt(NIGHTS)
    assert np.mean(shares) <= RATE + 3 * error


def test_the_rate_breaks_where_only_windows_that_were_looked_at_are_counted() -> None:
    """What N is for: windows are looked at because of the data that make their K large."""
    rng = np.random.default_rng(4)
    shares = []
    for _ in range(NIGHTS):
        k = np.where(rng.random(N) < 1 / 50, 50.0, 0.0)
        rule = Discovery(RATE, max(int((k > 1).sum()), 1))
        shares.append(false_share(k, np.ones(N, np.bool_), rule))
    assert np.mean(shares) > 2 * RATE


@pytest.mark.parametrize(
    ("settings", "matched"),
    [
        ({}, 50.0),
        ({"trigger_matched": 9.0}, 9.0),
        ({"trigger_matched": None}, math.inf),
        ({"decide_on": "network"}, math.inf),
    ],
)
def test_the_matched_filter_calls_for_looks_where_certified_k_decides(
    settings: dict[str, object], matched: float
) -> None:
    made = make_rule(AlertSettings.model_validate(settings), card_threshold=CARD, window_days=DAYS)
    assert made.matched == matched
