"""An alert in words: what is known is said, what is not is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_filter.alerts.parts import CertifiedK, Rival, Verdict
from broker_filter.alerts.words import in_words
from tests import build

T0 = build.alert().interval("t0")
SUMMARY = tuple(
    replace(one, p16=T0.median - 0.1, p84=T0.median + 0.1) if one.name == "t0" else one
    for one in build.alert().summary
)
FULL = build.alert(
    band="I",
    summary=SUMMARY,
    days_to_peak=0.4,
    magnitude_peak=17.93,
    certified=CertifiedK(41.2, 0.1, 900.0, 1),
    verdict=Verdict("microlensing", {"microlensing": 0.99}, "A lens."),
    rivals=(
        Rival("constant", 41.0, 0.1, {}),
        Rival("artefact", 3.0, 0.1, {}),
        Rival("flare", 18.1, 0.1, {}),
        Rival("smooth", 25.0, 0.1, {}),
    ),
)


def test_all_that_is_known_is_said() -> None:
    assert in_words(FULL) == (
        "microlensing, rising, peaks in 0.4 d (+-0.1) at I = 17.9; log10 K 41.2 against noise,"
        " 18.1 against a flare"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"days_to_peak": -2.0}, "falling, peaked 2.0 d ago (+-0.1) at I = 17.9;"),
        ({"magnitude_peak": None}, "peaks in 0.4 d (+-0.1); log10 K"),
        ({"verdict": None, "days_to_peak": None}, "event; log10 K"),
        ({"certified": None, "log10_k": 6.25, "rivals": ()}, "log10 K 6.25 against noise"),
    ],
)
def test_what_is_not_known_is_left_out(changes: dict[str, object], said: str) -> None:
    assert said in in_words(replace(FULL, **changes))  # type: ignore[arg-type]
