"""Stars whose windows are dropped: what is known of them goes too, and memory stays bounded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.alerts.alert import Alert
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.core import Pipeline
from broker_filter.state.columns import arrays_of
from broker_filter.types import Message
from tests.pipeline.test_pipeline import epoch, last_first, make_pipeline

LIMIT, STARS = 8, 20
START = 60_000.0


def flares() -> list[Message]:
    """A new star every day; each is seen for six days and flares on the fifth, star 0 twice."""
    epochs = [
        (START + star + day, str(star), 1600.0 if 4 < day < 5 else 1000.0)
        for star in range(STARS)
        for day in np.arange(0.0, 6.0, 0.3).tolist()
    ]
    epochs += [(START + STARS + 6 + day, "0", 1000.0 + 60 * day) for day in range(10)]
    return [epoch(i, mjd, flux, star) for i, (mjd, star, flux) in enumerate(sorted(epochs))]


STREAM = flares()


def run(stream: Sequence[Message], pipeline: Pipeline, cuts: Sequence[int] = ()) -> list[Alert]:
    edges = [0, *sorted(cuts), len(stream)]
    steps = [
        pipeline.step(stream[first:last], 0.0, flush=True)
        for first, last in itertools.pairwise(edges)
    ]
    return [alert for step in steps for alert in step.alerts]


def n_events(pipeline: Pipeline) -> int:
    state = pipeline.assessment.state(("epochs", 0))
    sizes = {len(arrays_of({"n": state[name]})["n"]) for name in ("event/closed", "epochs/count")}
    assert len(sizes) == 1
    return sizes.pop()


def test_no_more_events_are_remembered_than_there_may_be_windows() -> None:
    metrics = Metrics()
    bounded, unbounded = make_pipeline(max_stars=LIMIT, metrics=metrics), make_pipeline()
    for message in STREAM:
        bounded.step([message], 0.0, flush=True)
        assert n_events(bounded) <= LIMIT
    run(STREAM, unbounded)
    assert n_events(unbounded) == STARS
    assert metrics.total("events_dropped_total") >= STARS - LIMIT - 1


def test_an_event_that_was_dropped_is_another_when_its_star_returns() -> None:
    """Where its window stayed it goes on: as the same event after so short a gap, or by a final."""
    ids: dict[str, list[tuple[str, str]]] = {}
    for name, limit in (("kept", None), ("dropped", LIMIT)):
        alerts = run(STREAM, make_pipeline(max_stars=limit), range(1, len(STREAM)))
        ids[name] = [(a.state, str(a.event_id)) for a in alerts if a.star_id == "0"]
    assert [state for state, _ in ids["dropped"]].count("new") == 2
    assert len({event for _, event in ids["dropped"]}) == 2
    assert len({event for _, event in ids["kept"]}) == 1


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
@settings(max_examples=5, deadline=None)
def test_how_the_stream_is_cut_does_not_change_what_is_forgotten(cuts: list[int]) -> None:
    found, whole = (
        {
            (str(alert.alert_id), str(alert.event_id), alert.state)
            for alert in run(STREAM, make_pipeline(max_stars=LIMIT), where)
        }
        for where in (cuts, ())
    )
    assert found == whole


def test_in_which_order_stars_are_taken_up_does_not_change_what_is_forgotten() -> None:
    found = []
    for each_star in (map, last_first):
        metrics = Metrics()
        pipeline = make_pipeline(max_stars=LIMIT, metrics=metrics, each_star=each_star)
        alerts = run(STREAM, pipeline, range(0, len(STREAM), 50))
        ids = [(str(alert.alert_id), str(alert.event_id), alert.state) for alert in alerts]
        found.append((ids, n_events(pipeline), metrics.total("events_dropped_total")))
    assert found[0] == found[1]
    assert found[0][2] > 0


def test_a_restored_state_forgets_the_same() -> None:
    half = len(STREAM) // 2
    whole = run(STREAM, make_pipeline(max_stars=LIMIT), [half])
    first, second = make_pipeline(max_stars=LIMIT), make_pipeline(max_stars=LIMIT)
    taken = first.step(STREAM[:half], 0.0, capture=[("epochs", 0)])
    state = taken.captured["epochs", 0]
    second.restore(("epochs", 0), state, state.offsets, {})
    both = taken.alerts + run(STREAM[half:], second)
    assert {alert.alert_id for alert in both} == {alert.alert_id for alert in whole}
    assert n_events(second) <= LIMIT
