"""The same alerts in however many threads, and on a GPU."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from broker_filter.alerts.alert import Alert
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.by_star import EachStar
from broker_filter.pipeline.core import Pipeline
from broker_filter.service.assembly import (
    MOST_STARS,
    make_assessment,
    make_intake,
    open_entry,
    star_threads,
)
from broker_filter.types import Message
from tests import build, pretended

STARS = 6


def stream(stars: int) -> list[Message]:
    """Point lenses of as many stars, of different length and height."""
    rng = np.random.default_rng(1)
    messages = []
    for star in range(stars):
        mjd = 61_000 + np.sort(rng.random(200) * 18)
        u = np.hypot(0.1 + 0.05 * star, (mjd - 61_009) / (0.5 + 0.3 * star))
        flux = 100 * (u**2 + 2) / (u * np.sqrt(u**2 + 4)) + rng.normal(size=len(mjd))
        epochs = build.photometry(mjd, star, survey="roman", band="F146", flux=flux)
        messages.append(build.message(epochs, star, topic="e", timestamp_ms=1, schema="photometry"))
    return messages


def alerts_of(stars: int, device: str = "cpu", each_star: EachStar = map) -> list[Alert]:
    model = {"threads": 1, "device": device}
    settings = build.settings(kafka={"input_topics": ["e"]}, model=model, batch={"chunk": 16})
    entry, metrics = open_entry(settings), Metrics()
    assessment = make_assessment(settings, entry, metrics, each_star=each_star)
    assessment.warm_up()
    pipeline = Pipeline(make_intake(settings, entry, metrics), assessment)
    return pipeline.step(stream(stars), 0.0, flush=True).alerts


def test_alerts_are_the_same_in_however_many_threads() -> None:
    one, several = alerts_of(STARS), alerts_of(STARS, each_star=star_threads(MOST_STARS))
    assert len(one) == STARS
    for alert, other in zip(one, several, strict=True):
        assert (alert.alert_id, alert.star_id) == (other.alert_id, other.star_id)
        assert alert.samples.tobytes() == other.samples.tobytes()
        assert (alert.certified, alert.verdict) == (other.certified, other.verdict)
        assert [(r.name, r.log10_k, r.parameters) for r in alert.rivals] == [
            (r.name, r.log10_k, r.parameters) for r in other.rivals
        ]


def test_alerts_of_a_gpu_are_those_of_the_processor() -> None:
    (expected,) = alerts_of(1)
    with pretended.gpu():
        (alert,) = alerts_of(1, device="cuda")
    assert alert.alert_id == expected.alert_id
    assert alert.log10_k == pytest.approx(expected.log10_k, rel=1e-3)
    assert alert.verdict is not None
    assert expected.verdict is not None
    assert alert.verdict.verdict == expected.verdict.verdict
    medians, errors = np.median(expected.samples, axis=0), expected.samples.std(axis=0)
    assert (np.abs(np.median(alert.samples, axis=0) - medians) < 0.3 * errors).all()


@pytest.mark.parametrize("threads", [2, MOST_STARS, 64])
def test_several_stars_are_taken_up_at_a_time_but_not_too_many(threads: int) -> None:
    """Each waits until all that may be taken up at a time have been."""
    met = threading.Barrier(min(threads, MOST_STARS))
    begun: set[str] = set()

    def take_up(rows: list[int]) -> list[tuple[int, Alert | None]]:
        begun.add(threading.current_thread().name)
        met.wait(timeout=30)
        return [(row, None) for row in rows]

    each_star = star_threads(threads)
    stars = [[row] for row in range(4 * met.parties)]
    assert list(each_star(take_up, stars)) == [[(row, None)] for (row,) in stars]
    assert len(begun) == met.parties


def test_one_thread_is_the_callers() -> None:
    found = star_threads(1)(lambda rows: [(threading.get_ident(), None)] * len(rows), [[0], [1]])
    assert {ident for star in found for ident, _ in star} == {threading.get_ident()}
