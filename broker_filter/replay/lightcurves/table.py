r"""Text tables of any make, read line by line within bounds: header candidates, rows, rejections.

The meaning of the columns is found elsewhere (`broker_filter.replay.lightcurves.file`). Read are

* comments (``#``, ``%``, ``!``, ``;``, ``//``), one of which may name the columns;
* a first line without any number, which names them for certain;
* IPAC tables: ``\KEYWORD = "value"`` lines and ``|`` lines, cells cut at the bars;
* cells parted by commas, semicolons, tabs or blanks, with or without quotes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

from broker_filter.errors import SchemaError
from broker_filter.observe.text import printable

__all__ = ["MISSING", "Reason", "Rejection", "TextTable", "read_table"]

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
MAX_LINE_BYTES: Final = 4096
MAX_HEADERS: Final = 100
SAMPLE_ROWS: Final = 20
SHOWN: Final = 80  # characters of a row that is rejected

MISSING: Final = frozenset({"", "na", "n/a", "nan", "-nan", "null", "none", "inf-inf", "--"})
Reason = Literal[
    "too_long", "too_few_columns", "not_a_number", "missing", "bad_error", "out_of_range", "limit"
]
_COMMENTS: Final = ("#", "%", "!", ";", "//")
_KEYWORD: Final = re.compile(r"\\\s*(\w+)\s*=\s*(.*)")
_Splitter = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class Rejection:
    """One row that could not be used.

    Parameters
    ----------
    file : Path
    line : int
        Counted from 1.
    reason : str
        One of a bounded set (`Reason`).
    text : str
        The beginning of the row, printable.
    """

    file: Path
    line: int
    reason: Reason
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason.replace('_', ' ')}: {self.text}"


@dataclass(frozen=True, slots=True)
class TextTable:
    """The cells of one file, uninterpreted.

    Parameters
    ----------
    path : Path
    headers : list of list of str
        Candidates for the names of the columns, the most credible first.
    named : bool
        True where the file names its columns for certain, so that one header must be understood.
    ipac : bool
        True for a table with ``|`` lines.
    delimited : bool
        True where an empty cell is one (commas, bars), false where blanks part the cells.
    keywords : dict
        IPAC keywords and their values without quotes.
    rows : list of (int, list of str)
        Line number and cells of each row.
    rejected : list of Rejection
    """

    path: Path
    headers: list[list[str]] = field(default_factory=list)
    named: bool = False
    ipac: bool = False
    delimited: bool = False
    keywords: dict[str, str] = field(default_factory=dict)
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)

    def reject(self, line: int, reason: Reason, text: str) -> None:
        """Note a row that cannot be used."""
        self.rejected.append(Rejection(self.path, line, reason, printable(text.strip()[:SHOWN])))


def read_table(path: Path) -> TextTable:
    """Read the cells of a text table.

    Memory is bounded: by 256 MiB a file and 4 KiB a line (a longer line is a rejection).

    Raises
    ------
    SchemaError
        The file is missing, unreadable, too large, empty, or not text.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise SchemaError(f"{path}: expected a file, found a folder or a device")
        if size > MAX_FILE_BYTES:
            raise SchemaError(
                f"{path}: expected a file of at most {MAX_FILE_BYTES} bytes, found {size}: "
                "split it by star"
            )
        return _read(path)
    except OSError as error:
        raise SchemaError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read(path: Path) -> TextTable:
    comments: list[str] = []
    names: str | None = None  # the line that names the columns for certain
    rejected: list[Rejection] = []
    keywords: dict[str, str] = {}
    body: list[tuple[int, str]] = []
    for number, line in _lines(path, rejected):
        if line.startswith("\\"):
            if match := _KEYWORD.match(line):
                keywords[match[1].upper()] = match[2].strip().strip("\"'")
        elif line.startswith("|"):
            names = names or line  # further bars hold types and units
        elif line.lstrip().startswith(_COMMENTS):
            if not body and len(comments) < MAX_HEADERS:
                comments.append(line.lstrip("".join(_COMMENTS) + " \t"))
        elif names is None and not body and _names_columns(line):
            names = line
        else:
            body.append((number, line))
    if not body and not rejected:
        raise SchemaError(f"{path}: no row: expected a light curve, found an empty body")
    return _assemble(path, names, comments, keywords, body, rejected)


def _assemble(
    path: Path,
    names: str | None,
    comments: list[str],
    keywords: dict[str, str],
    body: list[tuple[int, str]],
    rejected: list[Rejection],
) -> TextTable:
    ipac = names is not None and names.startswith("|")
    headers = [_split_names(line) for line in ([names] if names else reversed(comments))]
    if names is not None and ipac:
        split = _cells_at_bars(names)
    else:
        split = _splitter([line for _, line in body[:SAMPLE_ROWS]], tabs="\t" in (names or ""))
    rows = [(number, split(line)) for number, line in body]
    delimited = split is not _at_blanks
    return TextTable(path, headers, names is not None, ipac, delimited, keywords, rows, rejected)


def _lines(path: Path, rejected: list[Rejection]) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank; over-long lines are rejected unread."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES):
            number += 1
            if b"\0" in raw:
                raise SchemaError(
                    f"{path}:{number}: expected text, found NUL bytes: "
                    "unpack it if it is an archive, re-encode it as UTF-8 if it is UTF-16"
                )
            long = False
            rest = raw
            while not rest.endswith(b"\n") and (rest := file.readline(MAX_LINE_BYTES)):
                long = True
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace").rstrip()
            if long:
                rejected.append(
                    Rejection(path, number, "too_long", printable(text.strip()[:SHOWN]))
                )
            elif text:
                yield number, text


def _names_columns(line: str) -> bool:
    """Whether a line has two words or more, none of which is a number."""
    cells = _split_names(line)
    return len(cells) > 1 and not any(_is_number(cell) for cell in cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.lower() in MISSING - {""}
    return True


def _split_names(line: str) -> list[str]:
    if line.startswith("|"):
        return [cell.strip() for cell in line.strip("| \t").split("|")]
    return _splitter([line], tabs="\t" in line)(line)


def _splitter(sample: list[str], *, tabs: bool) -> _Splitter:
    """Choose how to part cells, by what most lines of a sample hold.

    A run of tabs is mere padding in tables without a header, but an empty cell in those with one.
    """
    for delimiter in ",;\t" if tabs else ",;":
        if 2 * sum(delimiter in line for line in sample) > len(sample):
            return partial(_delimited, delimiter=delimiter)
    return _at_blanks


def _at_blanks(line: str) -> list[str]:
    return [cell.strip("\"'") for cell in line.split()]


def _delimited(line: str, delimiter: str) -> list[str]:
    try:
        cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:  # a carriage return inside the line
        return []
    return [cell.strip() for cell in cells]


def _cells_at_bars(header: str) -> _Splitter:
    """Cut at the bars of an IPAC header: a blank cell stays a cell, and the last one is open."""
    bars = [place for place, letter in enumerate(header) if letter == "|"]
    ends: list[int | None] = [*bars[1:-1], None]
    return lambda line: [line[a:b].strip() for a, b in zip(bars, ends, strict=False)]
