"""Text for people: tables, and names from outside made fit for a terminal, a log line or a plot.

A star or field may be named anything that is text: with control characters that clear a terminal or
begin a new log line, with marks that reverse the direction of writing, or with ``$``, at which
matplotlib begins a formula.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "aligned_table",
    "json_line",
    "markdown_table",
    "plot_text",
    "printable",
    "printable_lines",
]


def printable(text: object, limit: int | None = None) -> str:
    """Put ``?`` in place of each character that does not print.

    Parameters
    ----------
    text : object
        Text, or what has one (a path, a number).
    limit : int, optional
        Longest result, characters; a longer text is cut and ends with ``...``.

    Returns
    -------
    str
        One line without control characters, marks of direction or lone surrogates.
    """
    shown = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return shown if limit is None or len(shown) <= limit else shown[: max(limit - 3, 0)] + "..."


def printable_lines(text: object) -> str:
    """Do as `printable` with each line of a text that may have several, such as an error's."""
    return "\n".join(printable(line) for line in str(text).split("\n"))


def plot_text(text: object, limit: int | None = None) -> str:
    r"""Do as `printable`, and let matplotlib show ``$`` as it is (written ``\$``)."""
    return printable(text, limit).replace("$", r"\$")


def markdown_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Write a Markdown table; a ``|`` inside a cell is the caller's to escape."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def aligned_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Write a table for a terminal: first column to the left, the others to the right.

    Parameters
    ----------
    head : sequence
    rows : iterable of sequences
        As long as the head; a shorter one is a heading inside the table.
    """
    lines = [[str(cell) for cell in line] for line in (head, *rows)]
    full = [line for line in lines if len(line) == len(head)]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    others = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=False)]
    return "  ".join([line[0].ljust(widths[0]), *others]).rstrip()


def json_line(record: Mapping[str, Any]) -> str:
    """Write one line of JSON in ASCII, in which no control character stands as it is.

    Raises
    ------
    ValueError
        A number is NaN or infinite, for which JSON has no word.
    """
    # ASCII escapes every control character but this one.
    return json.dumps(record, allow_nan=False).replace("\x7f", r"\u007f")
