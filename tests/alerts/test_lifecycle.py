"""The life of an event: a table of looks and the alerts that they give."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_filter.alerts.build import alert_id, event_id
from broker_filter.alerts.lifecycle import (
    EventState,
    decide,
    events_from_columns,
    events_to_columns,
    with_peak,
)
from broker_filter.alerts.threshold import Rule
from broker_filter.errors import ModelError

RULE, WINDOW, MODEL = Rule(3.0), 20.0, "model-1.0.0"
KEY = ("roman", 7, "F146")

Look = tuple[float, float]  # last epoch, log10 K


def anchor(mjd: float) -> float:
    """Start of the window that holds an epoch: on a grid of a quarter of its length."""
    return math.floor(mjd / 5) * 5 - 15.0


def live(
    looks: list[Look], t0: float = 100.0, model: str = MODEL, restart: int | None = None
) -> list[tuple[float, str, str]]:
    """Last epoch, kind and event id of every alert that a row of looks gives.

    Before the look of number ``restart`` the state goes through columns, as a snapshot holds it.
    """
    state: EventState | None = None
    alerts = []
    for number, (mjd, log10_k) in enumerate(looks):
        if number == restart:
            held = {} if state is None else {KEY: state}
            state = events_from_columns(events_to_columns(held)).get(KEY)
        state, alert = decide(
            state, log10_k, mjd, anchor(mjd), RULE, window_days=WINDOW, model_id=model
        )
        if alert is not None:
            assert state is not None
            state = with_peak(state, t0)
            event = event_id(*KEY, state.opened_mjd, state.opened_by)
            alerts.append((mjd, alert, str(event)))
    return alerts


def kinds(looks: list[Look], t0: float = 100.0) -> list[tuple[float, str]]:
    return [(mjd, alert) for mjd, alert, _ in live(looks, t0)]


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
            id="a closed event says no more",
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
            [(100, 9), (125, 2.9)],
            [(100, "new"), (125, "final")],
            id="a gap after which nothing is left ends the event",
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
        (102, "new"),
    ]


def test_alerts_of_one_event_share_its_id_and_the_next_event_has_its_own() -> None:
    ids = [event for _, _, event in live([(100, 3), (101, 5), (102, 1), (103, 4)])]
    assert ids[0] == ids[1] == ids[2] != ids[3]


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
    state = EventState(100, MODEL, 115, -1, 115, t0=100.0, closed=True)
    assert with_peak(state, 117.0).t0 == 100.0


def test_a_closed_event_is_forgotten_at_the_next_epoch() -> None:
    closed = EventState(100, MODEL, 101, 1, 101, t0=100.0, closed=True)
    assert decide(closed, 0, 102, 85, RULE, window_days=WINDOW, model_id=MODEL) == (None, None)


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
def test_every_event_begins_new_and_ends_once(moves: list[tuple[float, float]]) -> None:
    events: dict[str, list[str]] = {}
    for _, kind, event in live(looks_of(moves)):
        events.setdefault(event, []).append(kind)
    for life in events.values():
        assert life[0] == "new"
        assert life.count("new") == 1
        assert not {"final", "retraction"} & set(life[:-1])


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
)
keys = st.tuples(st.text("abζ"), st.one_of(st.integers(0, 2**63 - 1), st.text("ab7")), st.text("r"))


@given(st.dictionaries(keys, states, max_size=8))
def test_event_states_come_back_from_columns(events: dict[Any, EventState]) -> None:
    assert repr(events_from_columns(events_to_columns(events))) == repr(events)
