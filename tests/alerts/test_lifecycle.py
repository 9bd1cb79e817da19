"""The life of an event: a table of looks and the alerts that they give."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_filter.alerts.alert import CertifiedK
from broker_filter.alerts.build import alert_id, event_id
from broker_filter.alerts.estimate import Estimate
from broker_filter.alerts.event_columns import events_from_columns, events_to_columns
from broker_filter.alerts.lifecycle import EventState, decide, evidence_of, published
from broker_filter.alerts.threshold import Rule
from broker_filter.errors import ModelError

RULE, WINDOW, MODEL = Rule(3.0), 20.0, "model-1.0.0"
KEY = ("roman", 7, "F146")

Look = tuple[float, float]  # last epoch, log10 K


def anchor(mjd: float) -> float:
    """Start of the window that holds an epoch: on a grid of a quarter of its length."""
    return math.floor(mjd / 5) * 5 - 15.0


def live(
    looks: list[Look],
    t0: float = 100.0,
    tE: float = math.nan,
    rule: Rule = RULE,
    restart: int | None = None,
) -> list[tuple[float, str, str]]:
    """Last epoch, kind and event id of every alert that a row of looks gives.

    Before the look of number ``restart`` the state goes through columns, as a snapshot holds it.
    """
    state: EventState | None = None
    alerts: list[tuple[float, str, str]] = []
    for number, (mjd, log10_k) in enumerate(looks):
        if number == restart:
            held = {} if state is None else {KEY: state}
            state = events_from_columns(events_to_columns(held)).get(KEY)
        state, alert = decide(
            state, log10_k, mjd, anchor(mjd), rule, window_days=WINDOW, model_id=MODEL
        )
        if alert is not None:
            assert state is not None
            state = published(state, t0, tE, log10_k, None)
            event = event_id(*KEY, state.opened_mjd, state.opened_by)
            alerts.append((mjd, alert, str(event)))
    return alerts


def kinds(looks: list[Look], **about: Any) -> list[tuple[float, str]]:
    return [(mjd, alert) for mjd, alert, _ in live(looks, **about)]


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        pytest.param([(100, 2.99)], [], id="below the threshold"),
        pytest.param([(100, 3.0)], [(100, "new")], id="at the threshold"),
        pytest.param([(100, 3), (100.1, 3.9), (100.2, 2.1)], [(100, "new")], id="little change"),
        pytest.param(
            [(100, 3), (100.1, 4.4), (100.11, 4.5), (100.12, 6.7), (100.13, 6.75)],
            [(100, "new"), (100.11, "update"), (100.13, "update")],
            id="growth by half since the last alert",
        ),
        pytest.param(
            [(100, 3), (101, 8), (101.1, 5), (101.2, 8.5), (101.3, 12)],
            [(100, "new"), (101, "update"), (101.3, "update")],
            id="growth counts from the last alert, not from the last look",
        ),
        pytest.param(
            [(100, 3), (100.2, 3), (100.25, 3), (100.4, 3), (100.5, 3), (101, 2.9), (102, 3)],
            [(100, "new"), (100.25, "update"), (100.5, "update"), (102, "update")],
            id="twice as old, above the threshold",
        ),
        pytest.param([(100, 3), (101, 2.0)], [(100, "new")], id="at the edge of hysteresis"),
        pytest.param([(100, 3), (101, 1.9)], [(100, "new"), (101, "retraction")], id="retraction"),
        pytest.param(
            [(100, 3), (101, 1.9), (102, 2.9), (103, 1)],
            [(100, "new"), (101, "retraction")],
            id="an ended event says no more below the threshold",
        ),
        pytest.param(
            [(100, 9), (114, 9), (115, -1)],
            [(100, "new"), (114, "update"), (115, "final")],
            id="final",
        ),
        pytest.param(
            [(100, 9), (109.9, -1)],
            [(100, "new"), (109.9, "retraction")],
            id="the same fall while the peak is inside the window",
        ),
        pytest.param(
            [(100, 9), (300, -1), (301, -1)],
            [(100, "new"), (300, "final")],
            id="a season's gap ends the event",
        ),
        pytest.param(
            [(100, 9), (300, 9), (301, 9)],
            [(100, "new"), (300, "final"), (301, "new")],
            id="an event after a season's gap is another one",
        ),
        pytest.param(
            [(100, 9), (125, 37), (126, 37), (127, 0)],
            [(100, "new"), (125, "update"), (127, "final")],
            id="a long event goes on after a gap longer than its window",
        ),
        pytest.param(
            [(100, 9), (220, 9), (221, 9)],
            [(100, "new"), (220, "update")],
            id="a long event goes on after the gap between two seasons",
        ),
        pytest.param(
            [(100, 9), (125, 2.9)],
            [(100, "new"), (125, "final")],
            id="a gap after which nothing is left ends the event",
        ),
        pytest.param(
            [(100, 9), (125, 0.1), (126, 9), (127, 9)],
            [(100, "new"), (125, "final"), (126, "update")],
            id="what begins faint after a gap of its data is the same event",
        ),
        pytest.param(
            [(100, 9), (101, 1), (103, 2.5), (121, 9)],
            [(100, "new"), (101, "retraction"), (121, "update")],
            id="a fall and return within the window's length is one event",
        ),
        pytest.param(
            [(100, 9), (101, 1), (103, 2.5), (121.1, 9)],
            [(100, "new"), (101, "retraction"), (121.1, "new")],
            id="a return later than the window's length is another event",
        ),
        pytest.param(
            [(100, 9), (114, 9), (115, -1), (119, 9), (126, -1), (147, 9)],
            [
                (100, "new"),
                (114, "update"),
                (115, "final"),
                (119, "update"),
                (126, "final"),
                (147, "new"),
            ],
            id="the window moves on",
        ),
    ],
)
def test_looks_give_alerts(looks: list[Look], expected: list[tuple[float, str]]) -> None:
    assert kinds(looks) == expected


def test_a_second_look_at_the_same_epochs_waits_for_the_next_epoch() -> None:
    assert kinds([(100, 3), (100, 1), (100, 7), (101, 7)]) == [(100, "new"), (101, "update")]
    # Also after the end: else a new event's alert would bear the retraction's id.
    assert kinds([(100, 3), (101, 1), (101, 9), (102, 9)]) == [
        (100, "new"),
        (101, "retraction"),
        (102, "update"),
    ]


def test_alerts_of_one_event_share_its_id_and_the_next_event_has_its_own() -> None:
    looks: list[Look] = [(100, 3), (101, 5), (102, 1), (103, 4), (103.1, 1), (124, 4)]
    alerts = live(looks)
    states = [kind for _, kind, _ in alerts]
    assert states == ["new", "update", "retraction", "update", "retraction", "new"]
    ids = [event for _, _, event in alerts]
    assert len(set(ids[:5])) == 1
    assert ids[5] != ids[0]


def test_the_peak_that_passes_is_news_once() -> None:
    looks = [(100 + day, 9.0) for day in (0, 0.25, 0.3, 0.4, 0.45)]
    assert kinds(looks, t0=100.35) == [(100, "new"), (100.25, "update"), (100.4, "update")]


def test_each_day_near_the_peak_is_news_and_far_from_it_is_none() -> None:
    looks = [(100 + day / 2, 9.0) for day in range(17)]
    near = [mjd for mjd, _ in kinds(looks, t0=99.0, tE=6.5)]
    far = [mjd for mjd, _ in kinds(looks, t0=99.0, tE=0.5)]
    assert near == [100, 100.5, 101, 102, 103, 104, 105]
    assert far == [100, 100.5, 101, 102, 104, 108]


def test_a_long_event_gives_its_updates_over_all_of_its_length() -> None:
    looks = [(100.0 + day, 9.0) for day in range(30)]
    found = [mjd for mjd, _ in kinds(looks, t0=121.0, tE=40.0)]
    assert found == [100, 101, 102, 104, 108, 112, 116, 120, 121, 125, 129]


def test_a_quarter_of_the_updates_is_kept_for_after_the_peak() -> None:
    looks: list[Look] = [(110.0 + day / 10, 10.0 * 2**day) for day in range(12)]
    opened: list[Look] = [(100.0, 9.0), (109.9, 9.0)]  # by age, so that none is due for that
    found = kinds([*opened, *looks], t0=110.95, rule=Rule(3.0, max_updates=5))
    assert [mjd for mjd, _ in found] == pytest.approx([100, 109.9, 110.1, 110.2, 110.3, 111])


def test_an_event_whose_peak_was_expected_too_late_goes_on_by_age() -> None:
    looks: list[Look] = [(100.0 + day, 10.0 * 2**day) for day in range(12)]
    found = kinds([*looks, (125.0, 9e9)], t0=400.0, rule=Rule(3.0, max_updates=4))
    assert [mjd for mjd, _ in found] == [100, 101, 102, 103, 106]


def moving(t0s: list[float], rule: Rule = RULE) -> list[float]:
    """Epochs of the alerts of looks an hour apart, all of one K, whose median of t0 moves so."""
    state: EventState | None = None
    found = []
    for number, t0 in enumerate(t0s):
        mjd = 100 + number / 24
        here = Estimate((t0, 0.3, 5.0, 0.01, 0.8), (0.5, 0.1, 1.0, 0.01, 0.1))
        state, alert = decide(
            state,
            9.0,
            mjd,
            85,
            rule,
            window_days=WINDOW,
            model_id=MODEL,
            estimate=lambda here=here: here,
        )
        if alert is not None:
            assert state is not None
            state = published(state, 150.0, 0.1, 9.0, None, here)
            found.append(number)
    return found


def test_a_median_that_moves_by_more_than_a_sigma_since_the_last_alert_is_news() -> None:
    assert moving([150.0, 150.4, 150.49, 150.51, 150.9, 151.02]) == [0, 3, 5]


def test_moves_give_no_more_than_half_of_the_updates() -> None:
    # The last is of an event that has become old enough, a quarter of a day.
    assert moving([150.0 + i for i in range(7)], Rule(3.0, max_updates=6)) == [0, 1, 2, 3, 6]


def test_updates_are_bounded_and_the_end_comes_all_the_same() -> None:
    looks: list[Look] = [(100.0 + day, 10.0 * 2**day) for day in range(12)] + [
        (112, 1.0),
        (113, 9.0),
    ]
    found = kinds(looks, rule=Rule(3.0, max_updates=4))
    assert [kind for _, kind in found] == ["new", *["update"] * 4, "retraction"]


def test_a_final_says_the_k_of_the_window_that_held_the_peak() -> None:
    certified = CertifiedK(30.0, 0.1, 500.0, 2)
    state, _ = decide(None, 5, 100, 85, RULE, window_days=WINDOW, model_id=MODEL)
    assert state is not None
    state = published(state, 100.0, 5.0, 5.0, None)
    state = published(state, 100.0, 5.0, 31.0, certified)
    state = published(state, 100.0, 5.0, 8.0, None)
    # The next light after a season is another event's, however high its K.
    state, alert = decide(state, 37, 300, 285, RULE, window_days=WINDOW, model_id=MODEL)
    assert state is not None
    assert (alert, state.seen_mjd) == ("final", 100)
    assert evidence_of(state, "final", 37.0, None) == (31.0, certified)
    assert evidence_of(state, "retraction", 1.0, None) == (1.0, None)
    _, alert = decide(state, 37, 301, 285, RULE, window_days=WINDOW, model_id=MODEL)
    assert alert == "new"


def test_an_event_keeps_its_id_when_the_model_changes() -> None:
    state, _ = decide(None, 3, 100, 85, RULE, window_days=WINDOW, model_id="old")
    state, alert = decide(state, 9, 101, 85, RULE, window_days=WINDOW, model_id="new")
    assert alert == "update"
    assert state is not None
    assert (state.opened_mjd, state.opened_by) == (100, "old")


def test_an_event_without_a_known_peak_is_retracted() -> None:
    state, _ = decide(None, 3, 100, 85, RULE, window_days=WINDOW, model_id=MODEL)
    _, alert = decide(state, 0, 101, 85, RULE, window_days=WINDOW, model_id=MODEL)
    assert alert == "retraction"


def test_a_final_alert_does_not_move_the_peak() -> None:
    state = EventState(100, MODEL, 115, -1, 115, t0=100.0, closed=True, tE=2.0)
    assert published(state, 117.0, 1.0, 9.0, None) == EventState(
        100, MODEL, 115, -1, 115, t0=100.0, closed=True, tE=2.0
    )


def test_an_ended_event_is_forgotten_when_it_cannot_return() -> None:
    closed = EventState(100, MODEL, 101, 1, 101, t0=100.0, closed=True)
    kept, alert = decide(closed, 0, 121, 105, RULE, window_days=WINDOW, model_id=MODEL)
    assert (kept is closed, alert) == (True, None)
    assert decide(closed, 0, 121.1, 105, RULE, window_days=WINDOW, model_id=MODEL) == (None, None)


def test_a_k_that_is_not_a_number_stops_the_service() -> None:
    with pytest.raises(ModelError, match="model-1"):
        decide(None, math.nan, 100, 85, RULE, window_days=WINDOW, model_id=MODEL)


log10_k = st.floats(-5, 20)
steps = st.lists(st.tuples(st.sampled_from([0.0, 0.01, 1.0, 30.0]), log10_k), max_size=60)


def looks_of(moves: list[tuple[float, float]]) -> list[Look]:
    mjd, looks = 100.0, []
    for step, value in moves:
        mjd += step
        looks.append((mjd, value))
    return looks


@given(steps, st.integers(0, 60))
def test_a_restart_leaves_the_alerts_and_their_ids_as_they_are(
    moves: list[tuple[float, float]], restart: int
) -> None:
    looks = looks_of(moves)
    assert live(looks, restart=restart) == live(looks)


@given(steps)
def test_every_event_begins_new_and_an_end_holds_unless_it_is_back(
    moves: list[tuple[float, float]],
) -> None:
    events: dict[str, list[tuple[float, str]]] = {}
    for mjd, kind, event in live(looks_of(moves)):
        events.setdefault(event, []).append((mjd, kind))
    for life in events.values():
        states = [kind for _, kind in life]
        assert states[0] == "new"
        assert states.count("new") == 1
        assert states.count("update") <= RULE.max_updates
        for (mjd, before), (back, after) in pairwise(life):
            if before in ("final", "retraction"):
                assert after == "update"
                assert back - mjd <= WINDOW


@given(steps)
def test_no_two_alerts_of_a_star_share_their_id(moves: list[tuple[float, float]]) -> None:
    alerts = live(looks_of(moves))
    ids = {alert_id(*KEY, mjd, MODEL) for mjd, _, _ in alerts}
    assert len(ids) == len(alerts)


states = st.builds(
    EventState,
    opened_mjd=st.floats(),
    opened_by=st.text(st.characters(codec="utf-8"), max_size=5),
    alerted_mjd=st.floats(),
    alerted_log10_k=st.floats(),
    seen_mjd=st.floats(),
    t0=st.floats(),
    closed=st.booleans(),
    tE=st.floats(),
    updates=st.integers(0, 1000),
    best_log10_k=st.floats(),
    best_certified=st.none()
    | st.builds(CertifiedK, st.floats(), st.floats(), st.floats(), st.integers(1, 1000)),
    estimate=st.none() | st.builds(Estimate, *2 * [st.tuples(*5 * [st.floats(0, 1e5)])]),
)
keys = st.tuples(st.text("abζ"), st.one_of(st.integers(0, 2**63 - 1), st.text("ab7")), st.text("r"))


@given(st.dictionaries(keys, states, max_size=8))
def test_event_states_come_back_from_columns(events: dict[Any, EventState]) -> None:
    assert repr(events_from_columns(events_to_columns(events))) == repr(events)


def test_a_snapshot_of_an_older_version_is_read() -> None:
    event = EventState(100, MODEL, 101, 4.5, 102, t0=100.5, tE=3.0, updates=2, best_log10_k=7.0)
    later = ("tE", "updates", "best_", "estimate_")
    columns = events_to_columns({KEY: event})
    old = {name: column for name, column in columns.items() if not name.startswith(later)}
    assert len(old) == len(columns) - 9
    (found,) = events_from_columns(old).values()
    assert (found.opened_mjd, found.t0, found.updates) == (100, 100.5, 0)
    assert found.best_certified is None
    assert found.estimate is None
    assert math.isnan(found.tE)
    assert math.isnan(found.best_log10_k)
