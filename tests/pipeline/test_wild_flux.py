"""One absurd epoch of a quiet star, through the whole filter with its default model."""

from __future__ import annotations

import numpy as np
import pytest

from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.assessment import Assessment
from broker_filter.service.assembly import make_assessment, make_intake, open_entry
from broker_filter.types import FloatArray, Message
from tests import build

N, WILD = 400, 350
SETTINGS = build.settings(kafka={"input_topics": ["e"]}, model={"threads": 1})


METRICS = Metrics()


@pytest.fixture(scope="module")
def assessment() -> Assessment:
    return make_assessment(SETTINGS, open_entry(SETTINGS), METRICS)


def message(offset: int, mjd: FloatArray, flux: FloatArray, error: FloatArray) -> Message:
    epochs = build.photometry(mjd, 5, survey="roman", band="F146", flux=flux, flux_err=error)
    return build.message(epochs, offset, topic="e", timestamp_ms=1, schema="photometry")


def looked_at() -> float:
    """Windows that filter or network gave a K, a number or a bound on it."""
    infinite = METRICS.registry.get_sample_value(
        "broker_filter_log_bayes_factor_bucket", {"le": "+Inf"}
    )
    return METRICS.value("windows_settled_total") + (infinite or 0.0)


@pytest.mark.parametrize(
    ("rows", "flux", "error"),
    [
        (slice(WILD, WILD + 1), 1e5, None),
        (slice(WILD, WILD + 1), 1e10, None),
        (slice(WILD, WILD + 1), 1e18, None),
        (slice(WILD, WILD + 1), 1e20, None),
        (slice(WILD, WILD + 1), 3e38, None),
        (slice(WILD, WILD + 1), 1e20, 1e17),
        (slice(WILD, WILD + 3), 1000.0, 1e-12),
        (slice(WILD - 10, WILD + 10), 1e7, None),
        (slice(WILD, WILD + 1), None, 1e-30),
        (slice(WILD, WILD + 1), None, 1e-4),
    ],
)
def test_the_filter_goes_on_and_absurd_epochs_of_a_quiet_star_bring_no_alert(
    assessment: Assessment, rows: slice, flux: float | None, error: float | None
) -> None:
    rng = np.random.default_rng(1)
    mjd = 61_000 + np.sort(rng.random(N) * 18)
    fluxes, errors = 100 + rng.normal(size=N), np.ones(N)
    if flux is not None:
        fluxes[rows] = flux
    if error is not None:
        errors[rows] = error
    intake = make_intake(SETTINGS, open_entry(SETTINGS), Metrics())
    assessment.drop([("e", 0)])
    before = looked_at()
    for offset, part in enumerate(np.array_split(np.arange(N), 8)):
        assert intake.take([message(offset, mjd[part], fluxes[part], errors[part])], 1.0) == []
        work = intake.flush()
        assert work is not None
        assert assessment.assess(work, 1).alerts == []
    assert looked_at() == before + 8
