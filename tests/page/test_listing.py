"""The list: filters, order, pages, and queries that cannot be."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from broker_filter.alerts.parts import Verdict
from broker_filter.errors import ConfigError
from broker_filter.page import kept
from broker_filter.page.database import Database
from broker_filter.page.listing import COLUMNS, PER_PAGE, Wanted, events, wanted
from tests import build


def put(base: Database, *stars: str, **changes: Any) -> None:
    with base.write() as connection:
        for star in stars:
            new = {"alert_id": uuid.uuid4(), "event_id": uuid.uuid4(), "star_id": star}
            kept.keep(connection, build.alert(**new | changes))


def stars(base: Database, **query: str) -> list[str]:
    with base.read() as connection:
        return [row["star"] for row in events(connection, wanted(query)).rows]


@pytest.fixture
def base(tmp_path: Path) -> Database:
    return Database(tmp_path / "page.sqlite")


def test_filters(base: Database) -> None:
    flare = Verdict("flare", {"flare": 1.0}, "because")
    put(base, "first", log10_k=5.0, certified=None)
    put(base, "second", log10_k=9.0, certified=None, state="update", verdict=flare)
    assert stars(base, state="update") == ["second"]
    assert stars(base, verdict="flare") == ["second"]
    assert stars(base, min_k="5", sort="star", down="0") == ["first", "second"]
    assert stars(base, min_k="5.1") == ["second"]
    assert stars(base, text="FIR") == ["first"]


def test_text_has_no_wild_cards_and_no_sql(base: Database) -> None:
    put(base, "a_b", "axb", "50%", "quote'", "back\\slash")
    assert stars(base, text="a_b") == ["a_b"]
    assert stars(base, text="%") == ["50%"]
    assert stars(base, text="'") == ["quote'"]
    assert stars(base, text="\\") == ["back\\slash"]
    assert stars(base, text="\ud800") == []


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_can_be_sorted_by_with_the_unknown_last(base: Database, column: str) -> None:
    put(base, "1", "2")
    put(base, "3", ra=None, dec=None, magnitude_now=None, days_to_peak=None, certified=None)
    for down in "01":
        found = stars(base, sort=column, down=down)
        assert sorted(found) == ["1", "2", "3"]
        if column in ("certified", "magnitude", "days_to_peak", "ra", "dec"):
            assert found[-1] == "3"


def test_pages_part_the_events_and_the_last_stands_for_those_behind_it(base: Database) -> None:
    names = [f"{i:03}" for i in range(PER_PAGE + 3)]
    put(base, *names)
    found = [stars(base, sort="star", down="0", page=page) for page in ("1", "2", "9")]
    assert found == [names[:PER_PAGE], names[PER_PAGE:], names[PER_PAGE:]]


def test_hidden_events_are_apart(base: Database) -> None:
    put(base, "a", "b")
    with base.write() as connection:
        row = connection.execute("SELECT event_id FROM events WHERE star = 'a'").fetchone()
        kept.set_hidden(connection, row[0], True)
    assert (stars(base), stars(base, hidden="1")) == (["b"], ["a"])


@pytest.mark.parametrize(
    "query",
    [
        {"state": "old"},
        {"verdict": "planet"},
        {"min_k": "many"},
        {"min_k": "nan"},
        {"sort": "star; DROP TABLE events"},
        {"down": "yes"},
        {"hidden": "2"},
        {"page": "0"},
        {"page": "-1"},
        {"page": "²"},
        {"page": "9" * 40},
        {"colour": "red"},
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(query))):
        wanted(query)


def test_addresses_hold_what_differs_from_the_plain_list() -> None:
    assert Wanted().url() == "/"
    assert Wanted(text="a&b").url(page=2) == "/?text=a%26b&page=2"
    assert Wanted(sort="star", down=False).sorted_by("star") == "/?sort=star"
    assert Wanted().sorted_by("star") == "/?sort=star&down=0"
