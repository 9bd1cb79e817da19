"""Light curves as a stream of ``photometry`` messages, in the order in which epochs happened.

Unlike packets, light curves are held in memory, as columns of about 60 bytes an epoch. A zip of
light curves is read member by member, each through a temporary file of its own.
"""

from __future__ import annotations

import lzma
import math
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import numpy as np

from broker_filter.decode.native import encode_photometry
from broker_filter.errors import ConfigError, SchemaError
from broker_filter.photometry.statistics import median_level
from broker_filter.replay.hidden import is_hidden
from broker_filter.replay.lightcurves.copies import without_copies
from broker_filter.replay.lightcurves.file import LightCurve, read_lightcurve
from broker_filter.replay.stream import Record, Report
from broker_filter.schemas import schema_header
from broker_filter.types import IntArray, Photometry

__all__ = [
    "LIGHT_CURVE_SUFFIXES",
    "Baseline",
    "LightCurves",
    "load",
    "with_median",
]

LIGHT_CURVE_SUFFIXES: Final = frozenset(
    {".dat", ".txt", ".csv", ".tsv", ".tbl", ".pysis", ".phot", ".lc"}
)
MAX_EPOCHS_PER_MESSAGE: Final = 10_000
MAX_MEMBER_BYTES: Final = 256 << 20
EPOCH_BYTES: Final = 60
# What the reader of zip archives raises for damaged ones, and for what it does not know.
_DAMAGED: Final = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, RuntimeError, ValueError),
)

Baseline = Literal["history", "median"]


@dataclass(frozen=True, slots=True)
class LightCurves:
    """All light curves of a replay, as one stream.

    Parameters
    ----------
    parts : sequence of Photometry
        Each of one star; their times may overlap.
    start, stop : float, MJD TAI
        Only epochs with start <= time < stop.
    epochs_per_message : int
        Upper limit; epochs share a message only where no epoch of another part lies between them.
    encode : callable

    Raises
    ------
    ConfigError
        ``epochs_per_message`` is out of range.
    """

    parts: Sequence[Photometry]
    start: float = -math.inf
    stop: float = math.inf
    epochs_per_message: int = 1
    encode: Callable[[Photometry], bytes] = encode_photometry

    def __post_init__(self) -> None:
        if not 1 <= self.epochs_per_message <= MAX_EPOCHS_PER_MESSAGE:
            raise ConfigError(
                f"epochs per message must be 1 to {MAX_EPOCHS_PER_MESSAGE} (is "
                f"{self.epochs_per_message})"
            )

    @property
    def name(self) -> str:
        """What it is called."""
        return "light curves"

    @property
    def size(self) -> int:
        """Bytes of all epochs."""
        return EPOCH_BYTES * sum(map(len, self.parts))

    @property
    def in_order(self) -> bool:
        """Yes."""
        return True

    def begins(self, report: Report) -> float | None:  # noqa: ARG002  nothing can go wrong
        """See `broker_filter.replay.stream.Stream`."""
        starts = (float(part.mjd_tai.min()) for part in self.parts if len(part))
        return min(starts, default=None)

    def read(self, report: Report) -> Iterator[Record]:  # noqa: ARG002  all is read already
        """See `broker_filter.replay.stream.Stream`; strictly in order of time."""
        headers = (schema_header("photometry"),)
        done = 0
        for part, rows in self._in_order():
            done += EPOCH_BYTES * len(rows)
            yield Record(
                time=float(part.mjd_tai[rows[-1]]),
                value=self.encode(part.take(rows)),
                key=str(part.star[0]).encode(),
                headers=headers,
                epochs=len(rows),
                place=done,
            )

    def _in_order(self) -> Iterator[tuple[Photometry, IntArray]]:
        """Yield part and rows of each message, by time; epochs of one time in order of parts."""
        parts = self.parts
        if not parts:
            return
        times = np.concatenate([part.mjd_tai for part in parts])
        owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        row = np.concatenate([np.arange(len(part)) for part in parts])
        order = np.argsort(times, kind="stable")
        order = order[(times[order] >= self.start) & (times[order] < self.stop)]
        owner, row = owner[order], row[order]
        place = np.arange(len(order))
        begins = np.append(True, owner[1:] != owner[:-1])[: len(order)]
        in_run = place - np.maximum.accumulate(np.where(begins, place, 0))
        cuts = [*np.flatnonzero(in_run % self.epochs_per_message == 0).tolist(), len(order)]
        for a, b in pairwise(cuts):
            yield parts[owner[a]], row[a:b]


def load(
    files: Sequence[Path],
    read: Callable[[Path], LightCurve] = read_lightcurve,
    note: Report = lambda _: None,
) -> tuple[list[LightCurve], list[str]]:
    """Read light curves; a file that is none does not keep the others from being read.

    Parameters
    ----------
    files : sequence of Path
        Light curves, and zip archives of them.
    read : callable
    note : Report
        Takes a line on each file that was left out: copies of another, and hidden ones of a zip.

    Returns
    -------
    (list of LightCurve, list of str)
        The messages name the files that could not be read.

    Raises
    ------
    ConfigError
        Two files would be one and the same star, band and source.
    """
    curves: list[LightCurve] = []
    unreadable: list[str] = []
    for path in files:
        for curve in _read_file(path, read, note):
            if isinstance(curve, str):
                unreadable.append(curve)
            else:
                curves.append(curve)
    curves, copies = without_copies(curves)
    for line in copies:
        note(line)
    _require_apart(curves)
    return curves, unreadable


def _require_apart(curves: Sequence[LightCurve]) -> None:
    """Check that no two files are one and the same star, band and source."""
    owner: dict[tuple[object, ...], Path] = {}
    for curve in curves:
        for part in curve.parts:
            key = (part.star[0], part.band, part.source)
            if (other := owner.setdefault(key, curve.path)) != curve.path:
                raise ConfigError(
                    f"{other} and {curve.path} both are star {key[0]!r}, band {key[1]!r}, "
                    f"source {key[2]!r}: use --star-from-folder, or replay them one at a time "
                    "with --star"
                )


def _read_file(
    path: Path, read: Callable[[Path], LightCurve], note: Report
) -> Iterator[LightCurve | str]:
    """Light curves of a file, or why there is none."""
    try:
        if zipfile.is_zipfile(path):
            with _open_zip(path) as archive:
                yield from _read_zip(archive, path, read, note)
        else:
            yield read(path)
    except SchemaError as error:
        yield str(error)


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except _DAMAGED as error:
        raise SchemaError(f"{path}: not a zip archive that can be read: {error}") from None


def _read_zip(
    archive: zipfile.ZipFile, path: Path, read: Callable[[Path], LightCurve], note: Report
) -> Iterator[LightCurve | str]:
    members = [
        one
        for one in archive.infolist()
        if not one.is_dir() and Path(one.filename).suffix in LIGHT_CURVE_SUFFIXES
    ]
    if hidden := [one.filename for one in members if is_hidden(one.filename)]:
        note(f"{path}: {len(hidden)} hidden files left out, such as {hidden[0]}")
    for member in members:
        place = path / member.filename
        if is_hidden(member.filename):
            continue
        try:
            yield _read_member(archive, member, place, read)
        except (SchemaError, *_DAMAGED) as error:
            text = str(error)
            yield text if str(place) in text else f"{place}: cannot be read: {text}"


def _read_member(
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    place: Path,
    read: Callable[[Path], LightCurve],
) -> LightCurve:
    """Read one member through a file of its name, in a folder of its folder's name."""
    with archive.open(member) as content, tempfile.TemporaryDirectory() as folder:
        data = content.read(MAX_MEMBER_BYTES + 1)
        if len(data) > MAX_MEMBER_BYTES:
            raise SchemaError(f"{place}: more than {MAX_MEMBER_BYTES} bytes: split it by star")
        file = Path(folder) / (place.parent.name.lstrip(".") or "_") / place.name
        file.parent.mkdir()
        file.write_bytes(data)
        try:
            curve = read(file)
        except SchemaError as error:
            raise SchemaError(str(error).replace(str(file), str(place))) from None
    rejected = tuple(replace(one, file=place) for one in curve.rejected)
    return replace(curve, path=place, rejected=rejected)


def with_median(part: Photometry) -> Photometry:
    """Give the reference flux: median, and its error for Gaussian scatter (by the MAD)."""
    median, error = median_level(part.flux, part.flux_err)
    if part.kind == "difference" or median <= 0:
        return part
    n = len(part)
    return replace(part, ref_flux=np.full(n, median), ref_flux_err=np.full(n, error))
