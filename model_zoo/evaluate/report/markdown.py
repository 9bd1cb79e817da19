"""Markdown of whatever an evaluation returned: nested dictionaries become headings and tables.

Nothing that JSON can hold makes it fail; what would be too long is summed up in one cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker_filter.observe.text import markdown_table

__all__ = ["cell", "render", "table"]

Value = Any  # whatever JSON holds

LONGEST_LIST, MOST_ROWS, DEEPEST = 12, 40, 6


def cell(value: Value) -> str:
    """One value as it stands in a table; numbers to four significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        return " ".join(value.split()).replace("|", "\\|")
    return _list_cell(list(value)) if isinstance(value, list | tuple) else f"{len(value)} entries"


def table(header: Sequence[str], rows: Sequence[Sequence[Value]]) -> list[str]:
    """Lines of a table; beyond `MOST_ROWS` rows the rest is counted.

    Parameters
    ----------
    header : sequence of str
    rows : sequence of sequences
        As long as the header; values go through `cell`.
    """
    lines = markdown_table(header, [list(map(cell, row)) for row in rows[:MOST_ROWS]]).split("\n")
    if len(rows) > MOST_ROWS:
        lines += ["", f"... and {len(rows) - MOST_ROWS:,} more rows in the JSON."]
    return [*lines, ""]


def render(value: Value, depth: int = 3) -> list[str]:
    """Lines for any nested value.

    Parameters
    ----------
    value : anything that JSON can hold
    depth : int
        Level of the headings of nested parts.
    """
    if not isinstance(value, Mapping):
        return _render_list(value)
    plain = {key: item for key, item in value.items() if not _is_nested(item)}
    lines = table(["", "value"], list(plain.items())) if plain else []
    for key, item in value.items():
        if _is_nested(item):
            lines += [f"{'#' * min(depth, DEEPEST)} {_title(key)}", "", *_nested(item, depth + 1)]
    return lines


def _nested(value: Value, depth: int) -> list[str]:
    if not isinstance(value, Mapping):
        return _render_list(value)
    parts = list(value.values())
    if all(_is_record(part) for part in parts):
        return _records(parts, list(value))
    if parts and all(_is_column(part) for part in parts) and len({len(p) for p in parts}) == 1:
        return table(list(map(_title, value)), list(zip(*parts, strict=True)))
    return render(value, depth)


def _render_list(value: Value) -> list[str]:
    if isinstance(value, list) and value and all(_is_record(item) for item in value):
        return _records(value)
    return [cell(value), ""]


def _records(records: Sequence[Mapping[str, Value]], names: Sequence[str] = ()) -> list[str]:
    """Records as rows, their keys as columns."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    rows = [[record.get(key) for key in keys] for record in records]
    if names:
        keys, rows = ["", *keys], [[name, *row] for name, row in zip(names, rows, strict=True)]
    return table(list(map(_title, keys)), rows)


def _is_nested(value: Value) -> bool:
    """Whether a value needs more than a cell."""
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, list) and any(isinstance(item, Mapping) for item in value)


def _is_record(value: Value) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and not any(_is_nested(item) for item in value.values())
    )


def _is_column(value: Value) -> bool:
    return isinstance(value, list) and not any(isinstance(item, list | Mapping) for item in value)


def _list_cell(values: Sequence[Value]) -> str:
    if len(values) <= LONGEST_LIST:
        return ", ".join(map(cell, values))
    if all(isinstance(value, int | float) for value in values):
        return f"{len(values)} values from {cell(min(values))} to {cell(max(values))}"
    return f"{len(values)} entries"


def _title(key: object) -> str:
    return cell(str(key).replace("_", " "))
