"""An entry beside those that it started from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_filter.inference import zoo
from model_zoo.evaluate.measure import ancestors
from model_zoo.evaluate.measure.ancestors import lineage, measure_ancestors
from model_zoo.evaluate.report.tables import ancestor_tables
from model_zoo.evaluate.sets import QUICK
from model_zoo.evaluate.suite import config_of, simulator_of


@pytest.fixture(scope="module")
def roman() -> zoo.Entry:
    return zoo.verify(zoo.find("fspl-roman-2.0.0"))


def test_the_line_ends_where_the_prior_is_another(roman: zoo.Entry) -> None:
    assert [entry.model_id for entry in lineage(roman)] == [
        "fspl-roman-2.0.0",
        "fspl-roman-1.1.0",
        "fspl-roman-1.0.0",
    ]


def test_only_what_learned_real_noise_knows_it(
    roman: zoo.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = list(lineage(roman))[:2]
    monkeypatch.setattr(ancestors, "lineage", lambda _: line)
    sizes = replace(QUICK, events=200, noise=400)
    part = measure_ancestors(roman, simulator_of(config_of(roman)), sizes, quiet=True)
    real, former, white, white_former = part["rows"]
    assert [row["noise"] for row in part["rows"]] == ["sky-1", "sky-1", "white", "white"]
    assert real["false"]["share"] < 0.01 < former["false"]["share"]
    assert real["found_passing"]["share"] > former["found_passing"]["share"]
    assert max(white["false"]["share"], white_former["false"]["share"]) < 0.01
    lines = ancestor_tables(part)
    assert "fspl-roman-1.1.0" in lines[3]
