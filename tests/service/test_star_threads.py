"""Stars of one batch that are fitted and judged in several threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from broker_filter.alerts.alert import Alert
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.assessment import EachStar
from broker_filter.pipeline.core import Pipeline
from broker_filter.service.assembly import (
    MOST_STARS,
    make_assessment,
    make_intake,
    open_entry,
    star_threads,
)
from broker_filter.types import Message
from tests import build

SETTINGS = build.settings(kafka={"input_topics": ["e"]}, model={"threads": 1})
STARS = 6


def stream() -> list[Message]:
    """Point lenses of as many stars, of different length and height."""
    rng = np.random.default_rng(1)
    messages = []
    for star in range(STARS):
        mjd = 61_000 + np.sort(rng.random(200) * 18)
        u = np.hypot(0.1 + 0.05 * star, (mjd - 61_009) / (0.5 + 0.3 * star))
        flux = 100 * (u**2 + 2) / (u * np.sqrt(u**2 + 4)) + rng.normal(size=len(mjd))
        epochs = build.photometry(mjd, star, survey="roman", band="F146", flux=flux)
        messages.append(build.message(epochs, star, topic="e", timestamp_ms=1, schema="photometry"))
    return messages


def alerts_of(each_star: EachStar) -> list[Alert]:
    entry, metrics = open_entry(SETTINGS), Metrics()
    assessment = make_assessment(SETTINGS, entry, metrics, each_star=each_star)
    return (
        Pipeline(make_intake(SETTINGS, entry, metrics), assessment)
        .step(stream(), 0.0, flush=True)
        .alerts
    )


def test_alerts_are_the_same_in_however_many_threads() -> None:
    one, several = alerts_of(map), alerts_of(star_threads(MOST_STARS))
    assert len(one) == STARS
    for alert, other in zip(one, several, strict=True):
        assert (alert.alert_id, alert.star_id) == (other.alert_id, other.star_id)
        assert alert.samples.tobytes() == other.samples.tobytes()
        assert (alert.certified, alert.verdict) == (other.certified, other.verdict)
        assert [(r.name, r.log10_k, r.parameters) for r in alert.rivals] == [
            (r.name, r.log10_k, r.parameters) for r in other.rivals
        ]


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
