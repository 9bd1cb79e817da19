"""What `compare` finds: it must see each kind of fault that the chaos table says is absent."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from broker_filter.alerts.alert import Alert, CertifiedK
from broker_filter.alerts.codec import from_avro
from broker_filter.schemas import schema_folder, schema_id
from tests.integration.outcome import Letter, Outcome, Verdict, compare

ALERT = from_avro((schema_folder() / schema_id("alert") / "sample.avro").read_bytes())
NAME = str(ALERT.alert_id)
LETTER: Letter = (0, 7, "truncated")
WHOLE = Outcome((ALERT,), (LETTER,))


def seen(**fields: Any) -> Outcome:
    """The right outcome, with an alert in which some fields are others."""
    return Outcome((replace(ALERT, **fields),), (LETTER,))


def test_the_same_outcome_is_good() -> None:
    assert compare(WHOLE, seen(created_ms=ALERT.created_ms + 1, software_version="other"))


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome((), (LETTER,)), Verdict(lost=[NAME])),
        (Outcome((ALERT,)), Verdict(lost=["letter 0[7] truncated"])),
        (Outcome((ALERT, ALERT), (LETTER,)), Verdict(doubled=[NAME])),
        (Outcome((ALERT,), (LETTER, LETTER)), Verdict(doubled=["letter 0[7] truncated"])),
        (
            Outcome((ALERT,), (LETTER, (0, 8, "schema"))),
            Verdict(unknown=["letter 0[8] schema"]),
        ),
    ],
)
def test_what_is_lost_doubled_or_made_up_is_named(outcome: Outcome, verdict: Verdict) -> None:
    assert compare(WHOLE, outcome) == verdict
    assert not verdict


def moved(samples: np.ndarray) -> np.ndarray:
    other = samples.copy()
    other[-1, -1] *= 1.1
    return other


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("event_id", uuid.UUID(int=1)),
        ("state", "final"),
        ("star_id", "other"),
        ("log10_k", ALERT.log10_k + 1e-5),
        ("certified", CertifiedK(9.0, 0.1, 100.0, 1)),
        ("samples", moved(ALERT.samples)),
    ],
)
def test_an_alert_that_has_changed_is_named_with_the_field(field: str, value: Any) -> None:
    assert compare(WHOLE, seen(**{field: value})) == Verdict(changed=[f"{NAME}: {field}"])


def test_one_alert_of_two_with_the_same_id_that_has_changed_is_found() -> None:
    other: Alert = replace(ALERT, log10_k=0.0)
    verdict = compare(WHOLE, Outcome((ALERT, other), (LETTER,)))
    assert (verdict.doubled, verdict.changed) == ([NAME], [f"{NAME}: log10_k"])
