"""What the list shows: which events, in which order, and what of a request cannot be so."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final
from urllib.parse import urlencode

from broker_filter.alerts.verdict import VERDICTS
from broker_filter.errors import ConfigError
from broker_filter.types import STATES

__all__ = ["COLUMNS", "Listed", "Wanted", "events", "wanted"]

PER_PAGE: Final = 50
MAX_PAGE: Final = 100_000
MAX_TEXT: Final = 200

COLUMNS: Final[Mapping[str, str]] = {
    "star": "Star",
    "state": "State",
    "verdict": "Verdict",
    "log10_k": "log K",
    "certified": "log K certified",
    "t0": "t0 (MJD)",
    "tE": "tE (d)",
    "magnitude": "mag now",
    "days_to_peak": "to peak (d)",
    "ra": "RA",
    "dec": "Dec",
    "received_ms": "Received",
}
"""Columns of the list, by which it can be sorted, and their titles."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody wants to see.

    Parameters
    ----------
    state, verdict : str
        Empty for all.
    min_k : float or None
        Lowest log10 K: the certified one where there is one.
    text : str
        Part of a star, survey, identifier or note.
    hidden : bool
        Show hidden events instead of the others.
    sort : str
        One of `COLUMNS`.
    down : bool
        Largest first.
    page : int
        From 1.
    """

    state: str = ""
    verdict: str = ""
    min_k: float | None = None
    text: str = ""
    hidden: bool = False
    sort: str = "received_ms"
    down: bool = True
    page: int = 1

    def url(self, **changes: str | float | None) -> str:
        """The list's address with some of it changed."""
        changed, plain = replace(self, **dict[str, Any](changes)), Wanted()
        found = {
            one.name: value if not isinstance(value, bool) else int(value)
            for one in fields(changed)
            if (value := getattr(changed, one.name)) != getattr(plain, one.name)
        }
        return f"/?{urlencode(found, errors='replace')}" if found else "/"

    def sorted_by(self, column: str) -> str:
        """The address of the list sorted by a column; by the same one, the other way round."""
        down = not self.down if column == self.sort else column not in ("star", "state", "verdict")
        return self.url(sort=column, down=down, page=1)


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of the list, and how many events and pages there are."""

    rows: Sequence[sqlite3.Row]
    total: int
    pages: int


def wanted(query: Mapping[str, str]) -> Wanted:
    """Read a request's query.

    Raises
    ------
    ConfigError
        A value that cannot be; the message names it.
    """
    if unknown := set(query) - {one.name for one in fields(Wanted)}:
        raise ConfigError(f"the list knows no {', '.join(sorted(unknown))[:MAX_TEXT]!r}")
    return Wanted(
        state=_one_of(query, "state", STATES),
        verdict=_one_of(query, "verdict", VERDICTS),
        min_k=_number(query.get("min_k", "")),
        text=query.get("text", "")[:MAX_TEXT],
        hidden=_flag(query, "hidden", plain=False),
        sort=_one_of(query, "sort", tuple(COLUMNS)) or "received_ms",
        down=_flag(query, "down", plain=True),
        page=_page(query.get("page", "1")),
    )


def _one_of(query: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    value = query.get(name, "")
    if value and value not in known:
        raise ConfigError(f"{name} is one of {', '.join(known)}, not {value[:60]!r}")
    return value


def _flag(query: Mapping[str, str], name: str, *, plain: bool) -> bool:
    value = query.get(name, str(int(plain)))
    if value not in ("0", "1"):
        raise ConfigError(f"{name} is 0 or 1, not {value[:60]!r}")
    return value == "1"


def _number(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"min_k is a number, not {text[:60]!r}")
    return value


def _page(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_PAGE:
        raise ConfigError(f"page is a number from 1 to {MAX_PAGE}, not {text[:60]!r}")
    return int(text[:9])


def events(connection: sqlite3.Connection, want: Wanted) -> Listed:
    """One page of the events that are wanted; the last one where there are not so many."""
    where, values = _conditions(want)
    source = f"FROM events LEFT JOIN marks USING (event_id) WHERE {where}"
    total = int(connection.execute(f"SELECT count(*) {source}", values).fetchone()[0])
    pages = max(1, -(-total // PER_PAGE))
    first = (min(want.page, pages) - 1) * PER_PAGE
    way = "DESC" if want.down else "ASC"
    # What is not known comes last, whichever way.
    order = f"ORDER BY {want.sort} IS NULL, {want.sort} {way}, event_id"
    # Sorting numbers of rows rather than whole rows takes two thirds of the time.
    sql = (  # of our own words; values stand apart
        "SELECT events.*, coalesce(note, '') AS note FROM events LEFT JOIN marks USING (event_id)"  # noqa: S608
        f" WHERE events.rowid IN (SELECT events.rowid {source} {order} LIMIT ? OFFSET ?) {order}"
    )
    return Listed(connection.execute(sql, [*values, PER_PAGE, first]).fetchall(), total, pages)


def _conditions(want: Wanted) -> tuple[str, list[Any]]:
    found: list[tuple[str, list[Any]]] = [("coalesce(hidden, 0) = ?", [int(want.hidden)])]
    if want.state:
        found.append(("state = ?", [want.state]))
    if want.verdict:
        found.append(("verdict = ?", [want.verdict]))
    if want.min_k is not None:
        found.append(("coalesce(certified, log10_k) >= ?", [want.min_k]))
    if want.text:
        escaped = want.text.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
        part = f"%{escaped.encode(errors='replace').decode()}%"
        names = ("star", "survey", "band", "event_id", "coalesce(note, '')")
        likes = " OR ".join(rf"{name} LIKE ? ESCAPE '\'" for name in names)
        found.append((f"({likes})", [part] * len(names)))
    return " AND ".join(text for text, _ in found), [one for _, some in found for one in some]
