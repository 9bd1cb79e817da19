"""Tables of labelled stars: which files, what the star is, and what is known of its event.

A table is CSV with the columns

- ``path``: of a light curve under the folder of the data, or of a member of a zip archive there
  (``archive.zip/member``);
- ``star``: its name; files of one name are one star, seen by several sites;
- ``band``: empty where the file says it;
- ``class``: ``quiet``, ``microlensing``, or any name of a kind of look-alike, such as ``flare``;
- ``survey``;
- ``t0``, ``tE``: of its event, MJD TAI and days; empty where there is none, or none is known.

``model_zoo/evaluate/sky_labels.csv`` is such a table.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from broker_filter.errors import ConfigError

__all__ = ["COLUMNS", "LABELS", "Half", "LabelledStar", "read_labels", "some_of_each"]

MJD_RANGE: Final = (40_000.0, 100_000.0)  # 1968 to 2132, as light curves are read
COLUMNS: Final = ("path", "star", "band", "class", "survey", "t0", "tE")
LABELS: Final = Path(__file__).parent / "sky_labels.csv"
Half = Literal["tune", "report"]


@dataclass(frozen=True, slots=True)
class LabelledStar:
    """One star of a table.

    Parameters
    ----------
    name, kind, survey : str
    files : tuple of (str, str)
        Path under the folder of the data, and band.
    t0, tE : float or None
        MJD TAI, days.
    """

    name: str
    kind: str
    survey: str
    files: tuple[tuple[str, str], ...]
    t0: float | None
    tE: float | None  # noqa: N815  the field's own name for it

    @property
    def half(self) -> Half:
        """Half of the stars may be looked at to tune what is measured; the others are reported."""
        return "tune" if _digest(self.name)[0] % 2 else "report"


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def read_labels(path: Path) -> list[LabelledStar]:
    """Read a table.

    Raises
    ------
    ConfigError
        It cannot be read, has no star, lacks a column or a cell, has a NUL, or a number that is
        none, or says two things of one star, or one file twice.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
            columns = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"--labels: {path} cannot be read: {error}") from None
    if missing := set(COLUMNS) - set(columns):
        raise ConfigError(f"--labels: {path} lacks the columns {', '.join(sorted(missing))}")
    if not rows:
        raise ConfigError(f"--labels: {path} has no star")
    stars: dict[str, list[dict[str, str]]] = {}
    for line, row in rows:
        if None in row or None in row.values():
            raise ConfigError(f"--labels: {path}: line {line} has too few cells, or too many")
        if "\0" in "".join(row.values()):
            raise ConfigError(f"--labels: {path}: line {line} has a NUL, which no name can have")
        stars.setdefault(row["star"], []).append(row)
    return [_star(path, name, rows) for name, rows in stars.items()]


def _star(path: Path, name: str, rows: Sequence[dict[str, str]]) -> LabelledStar:
    said = {(row["class"], row["survey"], row["t0"], row["tE"]) for row in rows}
    if len(said) > 1:
        raise ConfigError(f"--labels: {path}: the rows of star {name!r} contradict each other")
    kind, survey, t0, t_einstein = said.pop()
    files = tuple((row["path"], row["band"]) for row in rows)
    if len({path for path, _ in files}) < len(files):
        raise ConfigError(f"--labels: {path}: star {name!r} has a file twice")
    try:
        peak, days = _number(t0), _number(t_einstein)
    except ValueError:
        raise ConfigError(f"--labels: {path}: star {name!r}: t0 or tE is no number") from None
    if peak is not None and not MJD_RANGE[0] < peak < MJD_RANGE[1]:
        raise ConfigError(f"--labels: {path}: star {name!r}: t0 = {t0} is no MJD")
    if days is not None and not 0 < days < math.inf:
        raise ConfigError(
            f"--labels: {path}: star {name!r}: tE = {t_einstein} is no length in days"
        )
    return LabelledStar(name, kind, survey, files, peak, days)


def _number(text: str) -> float | None:
    return float(text) if text.strip() else None


def some_of_each(stars: Iterable[LabelledStar], most: int) -> list[LabelledStar]:
    """At most so many stars of each class and survey, the same ones each time."""
    groups: dict[tuple[str, str], list[LabelledStar]] = {}
    for star in sorted(stars, key=lambda one: _digest(one.name)):
        groups.setdefault((star.kind, star.survey), []).append(star)
    return [star for group in groups.values() for star in group[:most]]
