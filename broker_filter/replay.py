"""Publish archival light curves as if they happened now: ``broker-filter replay``.

Files are read by `broker_filter.surveys.lightcurve`; the epochs of all of them are merged by time
and go out as ``photometry`` messages, one star a message, with the star id as key. The pace is that
of the sky, times ``speed``; at infinite speed it is that of the broker.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import numpy as np
from tqdm import tqdm

from broker_filter.errors import ConfigError, SchemaError
from broker_filter.schema import schema_header
from broker_filter.sink import Sink
from broker_filter.surveys.lightcurve import AB_ZERO_POINT, LightCurve, read_lightcurve
from broker_filter.surveys.native import encode_photometry
from broker_filter.surveys.timescale import SECONDS_PER_DAY, TIME_SYSTEMS
from broker_filter.types import IntArray, Photometry

__all__ = ["OFFSET_HEADER", "ReplayReport", "add_arguments", "expand", "load", "replay", "run"]

OFFSET_HEADER: Final = "event_offset_s"
"""Message header: seconds from the first epoch of the replay to the last one of the message."""

SUFFIXES: Final = frozenset({".dat", ".txt", ".csv", ".tsv", ".tbl", ".pysis", ".phot", ".lc"})
MAX_EPOCHS_PER_MESSAGE: Final = 10_000
SHOWN_REJECTIONS: Final = 5  # a file, the rest is counted
EXIT_NOTHING: Final = 1
EXIT_UNREADABLE: Final = 3

Baseline = Literal["history", "median"]


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay published.

    Parameters
    ----------
    epochs, messages : int
    first_mjd, last_mjd : float, MJD TAI
        NaN where there was no epoch.
    seconds : float
        Wall time from the first message to the last acknowledgement.
    """

    epochs: int
    messages: int
    first_mjd: float
    last_mjd: float
    seconds: float


def expand(sources: Sequence[Path | str]) -> list[Path]:
    """List the files of sources, each once: files as named, folders by suffix, to any depth.

    Raises
    ------
    ConfigError
        A source does not exist, or a folder has no file with a light curve's suffix.
    """
    files: dict[Path, Path] = {}
    for source in map(Path, sources):
        if not source.exists():
            raise ConfigError(f"{source}: no such file or folder")
        found = [source] if not source.is_dir() else sorted(source.rglob("*"))
        if source.is_dir():
            found = [path for path in found if path.is_file() and path.suffix in SUFFIXES]
        if not found:
            raise ConfigError(f"{source}: no file with suffix {', '.join(sorted(SUFFIXES))}")
        for path in found:
            files.setdefault(path.resolve(), path)
    return list(files.values())


def load(
    files: Sequence[Path], read: Callable[[Path], LightCurve] = read_lightcurve
) -> tuple[list[LightCurve], list[str]]:
    """Read light curves; a file that is none does not keep the others from being read.

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
    owner: dict[tuple[object, ...], Path] = {}
    for path in files:
        try:
            curve = read(path)
        except SchemaError as error:
            unreadable.append(str(error))
            continue
        for part in curve.parts:
            key = (part.star[0], part.band, part.source)
            if (other := owner.setdefault(key, path)) != path:
                raise ConfigError(
                    f"{other} and {path} both are star {key[0]!r}, band {key[1]!r}, source "
                    f"{key[2]!r}: use --star-from-folder, or replay them one at a time with --star"
                )
        curves.append(curve)
    return curves, unreadable


def replay(
    parts: Sequence[Photometry],
    sink: Sink,
    topic: str,
    *,
    speed: float = math.inf,
    start: float = -math.inf,
    stop: float = math.inf,
    epochs_per_message: int = 1,
    baseline: Baseline = "history",
    encode: Callable[[Photometry], bytes] = encode_photometry,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    progress: Callable[[int], object] | None = None,
) -> ReplayReport:
    """Publish epochs in the order in which they happened.

    Parameters
    ----------
    parts : sequence of Photometry
        Each of one star; their times may overlap.
    sink : Sink
        Told to flush before each pause of more than a second, and at the end; stays open.
    topic : str
    speed : float
        Event seconds per second of the clock; infinite for no pacing. A message is due when its
        last epoch is.
    start, stop : float, MJD TAI
        Only epochs with start <= time < stop.
    epochs_per_message : int
        Upper limit; epochs share a message only where no epoch of another part lies between them.
    baseline : "history" or "median"
        Whether messages leave the reference flux open, or give the median of the part with its
        error. The median looks ahead: it spares a short file the time to build a history.
    encode, clock, sleep, progress : callable
        ``progress`` gets the number of epochs of each message sent.

    Raises
    ------
    ConfigError
        ``speed`` or ``epochs_per_message`` is out of range, or a message is too large.
    TransientError
        As from the sink.
    """
    if not speed > 0 or not 1 <= epochs_per_message <= MAX_EPOCHS_PER_MESSAGE:
        raise ConfigError(
            f"speed must be larger than 0 (is {speed:g}) and epochs per message 1 to "
            f"{MAX_EPOCHS_PER_MESSAGE} (is {epochs_per_message})"
        )
    if baseline == "median":
        parts = [_with_median(part) for part in parts]
    began, epochs, messages, first, last = clock(), 0, 0, math.nan, math.nan
    for part, rows in _in_order(parts, start, stop, epochs_per_message):
        first = part.mjd_tai[rows[0]] if not messages else first
        last = part.mjd_tai[rows[-1]]
        offset_s = float(last - first) * SECONDS_PER_DAY
        _wait(began + offset_s / speed, sink, clock, sleep)
        message = _take(part, rows)
        headers = (schema_header("photometry"), (OFFSET_HEADER, f"{offset_s:.3f}".encode()))
        sink.produce(topic, str(part.star[0]).encode(), encode(message), headers)
        messages, epochs = messages + 1, epochs + len(rows)
        if progress:
            progress(len(rows))
    sink.flush()
    return ReplayReport(epochs, messages, float(first), float(last), clock() - began)


def _in_order(
    parts: Sequence[Photometry], start: float, stop: float, limit: int
) -> Iterator[tuple[Photometry, IntArray]]:
    """Yield part and rows of each message, by time; epochs of one time in the order of parts."""
    if not parts:
        return
    times = np.concatenate([part.mjd_tai for part in parts])
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    row = np.concatenate([np.arange(len(part)) for part in parts])
    order = np.argsort(times, kind="stable")
    order = order[(times[order] >= start) & (times[order] < stop)]
    owner, row = owner[order], row[order]
    place = np.arange(len(order))
    begins = np.append(True, owner[1:] != owner[:-1])[: len(order)]
    in_run = place - np.maximum.accumulate(np.where(begins, place, 0))
    cuts = [*np.flatnonzero(in_run % limit == 0).tolist(), len(order)]
    for a, b in pairwise(cuts):
        yield parts[owner[a]], row[a:b]


def _take(part: Photometry, rows: IntArray) -> Photometry:
    return replace(
        part,
        star=[part.star[row] for row in rows],
        mjd_tai=part.mjd_tai[rows],
        flux=part.flux[rows],
        flux_err=part.flux_err[rows],
        flags=part.flags[rows],
        ref_flux=part.ref_flux[rows],
        ref_flux_err=part.ref_flux_err[rows],
    )


def _with_median(part: Photometry) -> Photometry:
    """Give the reference flux: median, and its error for Gaussian scatter (by the MAD)."""
    median = float(np.median(part.flux))
    if part.kind == "difference" or median <= 0:
        return part
    scatter = 1.4826 * np.median(np.abs(part.flux - median))
    error = math.sqrt(math.pi / 2 / len(part)) * max(scatter, float(np.median(part.flux_err)))
    n = len(part)
    return replace(part, ref_flux=np.full(n, median), ref_flux_err=np.full(n, error))


def _wait(
    due: float, sink: Sink, clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    if due - clock() > 1.0:
        sink.flush()  # what is sent must not linger, nor its failure stay unnoticed
    if (rest := due - clock()) > 0:
        sleep(rest)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter replay`` that are its own (none for the broker)."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Publish light-curve files to a topic, in the order in which their epochs happened.\n"
        "Read are OGLE phot.dat, KMTNet pySIS, NASA Exoplanet Archive tables, the Roman data\n"
        "challenge, and tables with named columns; what was recognised is stated for each file."
    )
    parser.epilog = (
        "example:\n"
        "  broker-filter replay kmt_2019_blg_2073/ --star KMT-2019-BLG-2073 --topic photometry\n"
        "\n"
        "It exits 0; 1 where there was nothing to publish; 2 for wrong settings or an unreachable\n"
        "broker; 3 where a file could not be read (the others are published)."
    )
    files = parser.add_argument_group("what to read")
    files.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="files, folders")
    star = files.add_mutually_exclusive_group()
    star.add_argument("--star", help="star id of all files (default: as in the file, or its name)")
    star.add_argument(
        "--star-from-folder", action="store_true", help="star id = name of the folder"
    )
    files.add_argument("--band", help="band of all files (default: as in the file, or its name)")
    files.add_argument("--survey", default="archive", help="default: %(default)s")
    files.add_argument("--time-system", choices=TIME_SYSTEMS, help="default: recognised")
    files.add_argument(
        "--zero-point",
        type=float,
        default=AB_ZERO_POINT,
        metavar="MAG",
        help="magnitude of 1 nJy (default: %(default)s, AB)",
    )
    pace = parser.add_argument_group("what to publish, and how fast")
    pace.add_argument("--topic", required=True)
    pace.add_argument(
        "--speed",
        type=_speed,
        default=math.inf,
        metavar="X",
        help="times real time, or max (default: max)",
    )
    pace.add_argument(
        "--start", type=float, default=-math.inf, metavar="MJD", help="TAI, inclusive"
    )
    pace.add_argument("--stop", type=float, default=math.inf, metavar="MJD", help="TAI, exclusive")
    pace.add_argument("--epochs-per-message", type=int, default=1, metavar="N", help="at most")
    pace.add_argument(
        "--baseline",
        choices=("history", "median"),
        default="history",
        help="leave the reference flux open, or give the file's median (looks ahead)",
    )
    pace.add_argument("--json", action="store_true", help="print the report as JSON")


def _speed(text: str) -> float:
    value = math.inf if text == "max" else float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not larger than 0, nor max")
    return value


def run(args: argparse.Namespace, sink: Sink) -> int:
    """Carry out ``broker-filter replay``; report on stdout, per-file notes on stderr.

    Returns
    -------
    int
        Exit status: 0, 1 where there was nothing to publish, 3 where a file could not be read.

    Raises
    ------
    ConfigError, TransientError
        As `expand`, `load` and `replay`.
    """

    def read(path: Path) -> LightCurve:
        return read_lightcurve(
            path,
            star=path.resolve().parent.name if args.star_from_folder else args.star,
            band=args.band,
            survey=args.survey,
            zero_point=args.zero_point,
            time_system=TIME_SYSTEMS.get(args.time_system),
        )

    curves, unreadable = load(expand(args.sources), read)
    for line in (*(line for curve in curves for line in _statement(curve)), *unreadable):
        sys.stderr.write(f"{line}\n")
    parts = [part for curve in curves for part in curve.parts]
    with tqdm(total=sum(map(len, parts)), unit=" epochs", disable=None) as bar:
        report = replay(
            parts,
            sink,
            args.topic,
            speed=args.speed,
            start=args.start,
            stop=args.stop,
            epochs_per_message=args.epochs_per_message,
            baseline=args.baseline,
            progress=bar.update,
        )
    rejected = Counter[str](rejection.reason for curve in curves for rejection in curve.rejected)
    sys.stdout.write(_summary(report, curves, unreadable, rejected, as_json=args.json) + "\n")
    if unreadable:
        return EXIT_UNREADABLE
    return 0 if report.messages else EXIT_NOTHING


def _statement(curve: LightCurve) -> Iterator[str]:
    """Say what was made of one file, and name the rows that were not used."""
    stars = {(part.star[0], part.band) for part in curve.parts}
    names = ", ".join(f"{star} {band}" for star, band in sorted(stars, key=str)[:3])
    more = f" and {len(stars) - 3} more" if len(stars) > 3 else ""
    notes = "; ".join(curve.notes)
    yield f"{curve.path}: {curve.format}, {len(curve)} epochs of {names}{more}; {notes}"
    yield from map(str, curve.rejected[:SHOWN_REJECTIONS])
    if len(curve.rejected) > SHOWN_REJECTIONS:
        counts = Counter(rejection.reason for rejection in curve.rejected)
        each = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in counts.items())
        yield f"{curve.path}: {len(curve.rejected)} rows rejected in all: {each}"


def _summary(
    report: ReplayReport,
    curves: Sequence[LightCurve],
    unreadable: Sequence[str],
    rejected: Counter[str],
    *,
    as_json: bool,
) -> str:
    if as_json:
        known = {key: None if value != value else value for key, value in asdict(report).items()}
        files = {"files": len(curves), "unreadable": list(unreadable), "rejected": dict(rejected)}
        return json.dumps(known | files, allow_nan=False)
    span = f"MJD {report.first_mjd:.4f} to {report.last_mjd:.4f} (TAI)" if report.messages else "-"
    return (
        f"{report.epochs} epochs in {report.messages} messages from {len(curves)} files, {span}, "
        f"in {report.seconds:.1f} s; {rejected.total()} rows rejected, "
        f"{len(unreadable)} files unreadable"
    )
