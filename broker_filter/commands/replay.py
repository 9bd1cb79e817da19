"""``broker-filter replay``: from its options to what is read, and what is reported."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final, Never

from tqdm import tqdm

from broker_filter.decode.decoder import Decoder
from broker_filter.decode.framing import Unframer
from broker_filter.decode.registry import (
    Registry,
    SchemaLookup,
    chained,
    filed_schemas,
    package_folder,
)
from broker_filter.errors import ConfigError
from broker_filter.kafka.properties import read_properties
from broker_filter.kafka.sink import Sink, open_sink
from broker_filter.observe.text import printable
from broker_filter.photometry.times import TIME_SYSTEMS
from broker_filter.recovery.config import read_config
from broker_filter.recovery.injection import Injector, light_curve_injector
from broker_filter.recovery.records import RecordInjector
from broker_filter.replay.event_time import EventTimes
from broker_filter.replay.files import PACKET_SUFFIXES, PacketFile, is_packets
from broker_filter.replay.hidden import is_hidden
from broker_filter.replay.lightcurves.file import LightCurve, read_lightcurve
from broker_filter.replay.lightcurves.names import Quantity
from broker_filter.replay.lightcurves.stream import (
    LIGHT_CURVE_SUFFIXES,
    LightCurves,
    load,
    with_median,
)
from broker_filter.replay.position import Position, read_position, write_position
from broker_filter.replay.publish import (
    Archive,
    Edit,
    Pace,
    ReplayReport,
    publish,
    unchanged,
)
from broker_filter.replay.stream import EventTime, Record, Report, Stream
from broker_filter.replay.topic_range import SCHEME, parse_range, streams_of
from broker_filter.service.signals import stop_on_signals

__all__ = ["expand", "publish_archive", "run"]

SUFFIXES: Final = LIGHT_CURVE_SUFFIXES | PACKET_SUFFIXES | {".zip"}
SHOWN_REJECTIONS: Final = 5  # a file, the rest is counted
SHOWN_FAULTS: Final = 50
EXIT_NOTHING: Final = 1
EXIT_UNREADABLE: Final = 3
SHOW_S: Final = 0.5
QUANTITIES: Final[dict[str, Quantity]] = {
    "mag": "mag",
    "flux": "flux",
    "delta-flux": "delta_flux",
}


def expand(sources: Sequence[Path | str], note: Report = lambda _: None) -> list[Path]:
    """List the files of sources, each once: files as named, folders by suffix, to any depth.

    Hidden files and folders inside a folder are left out, and counted to ``note``.

    Raises
    ------
    ConfigError
        A source does not exist, or a folder has no file with a suffix that is known.
    """
    files: dict[Path, Path] = {}
    for given in sources:
        # An empty name would be the folder in which we happen to run.
        source = Path(given)
        if not str(given) or not source.exists():
            raise ConfigError(f"{str(given)!r}: no such file or folder")
        found = [source] if not source.is_dir() else sorted(source.rglob("*"))
        if source.is_dir():
            found = [path for path in found if path.is_file() and path.suffix in SUFFIXES]
            hidden = [path for path in found if is_hidden(path.relative_to(source))]
            if hidden:
                note(f"{source}: {len(hidden)} hidden files left out, such as {hidden[0]}")
            found = [path for path in found if not is_hidden(path.relative_to(source))]
        if not found:
            raise ConfigError(f"{source}: no file with suffix {', '.join(sorted(SUFFIXES))}")
        for path in found:
            files.setdefault(path.resolve(), path)
    return list(files.values())


class _Faults:
    """What was passed over: counted, and the first lines shown."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def __call__(self, line: str) -> None:
        self.count += 1
        line = printable(line)
        if self.count <= SHOWN_FAULTS:
            self.lines.append(line)
            tqdm.write(line, file=sys.stderr)
        elif self.count == SHOWN_FAULTS + 1:
            tqdm.write("further messages of this kind are counted only", file=sys.stderr)


def run(args: argparse.Namespace) -> int:
    """Connect, and `publish_archive`.

    Returns
    -------
    int
        Its exit status.

    Raises
    ------
    ConfigError, TransientError
        As `open_sink`, `KafkaSink.require` and `publish_archive`.
    """
    stop_on_signals(_interrupt)  # so that SIGTERM, too, leaves a position to go on from
    properties = read_properties(args.client_config)
    with closing(open_sink(args.bootstrap_servers, args.topic, properties)) as sink:
        sink.require({args.topic: "--topic"})
        return publish_archive(args, sink)


def _interrupt() -> None:
    raise KeyboardInterrupt


def publish_archive(args: argparse.Namespace, sink: Sink) -> int:
    """Carry out ``broker-filter replay``; report on stdout, notes on stderr.

    Returns
    -------
    int
        Exit status: 0, 1 where there was nothing to publish, 3 where something could not be read.

    Raises
    ------
    ConfigError, TransientError
        As `expand`, `load` and `publish`; or no time lies between start and stop.
    """
    if args.start >= args.stop:
        raise ConfigError(f"--start {args.start:g} is not before --stop {args.stop:g}")
    faults = _Faults()
    schemas = _schemas(args)
    event_time = EventTimes(schemas)
    ranges = [source for source in args.sources if source.startswith(SCHEME)]
    files = expand([one for one in args.sources if not one.startswith(SCHEME)], _note)
    curves, packets = _read_files(args, files, event_time, faults)
    streams: list[Stream] = [
        *_light_curves(args, curves),
        *packets,
        *_topics(args, ranges, event_time),
    ]
    fingerprint = _fingerprint(args, streams)
    position = read_position(args.resume, fingerprint) if args.resume else Position()
    archive = Archive(streams, faults, args.start, args.stop, args.loop, position)
    with (
        tqdm(total=_total(args, streams), unit="B", unit_scale=True, disable=None) as bar,
        _injection(args, curves, schemas) as injection,
    ):
        report = publish(
            archive,
            sink,
            args.topic,
            Pace(args.speed, args.rate),
            edit=injection.edit,
            save=partial(write_position, args.resume, fingerprint) if args.resume else None,
            progress=_Shown(bar, archive),
        )
    if args.resume:
        args.resume.unlink(missing_ok=True)
    sys.stdout.write(
        _summary(report, curves, len(files) + len(ranges), faults, injection, as_json=args.json)
        + "\n"
    )
    if faults.count:
        return EXIT_UNREADABLE
    return 0 if report.messages else EXIT_NOTHING


def _read_files(
    args: argparse.Namespace, files: Sequence[Path], event_time: EventTime, faults: _Faults
) -> tuple[list[LightCurve], list[PacketFile]]:
    """Read the light curves among the files; packets are read as they are replayed."""
    packets = [PacketFile(path, event_time) for path in files if is_packets(path)]
    others = {stream.path for stream in packets}

    def read(path: Path) -> LightCurve:
        return read_lightcurve(
            path,
            star=path.resolve().parent.name if args.star_from_folder else args.star,
            band=args.band,
            survey=args.survey,
            zero_point=args.zero_point,
            time_system=TIME_SYSTEMS.get(args.time_system),
            quantity=QUANTITIES.get(args.quantity),
            ignore=args.ignore_column,
        )

    curves, unreadable = load([path for path in files if path not in others], read, _note)
    for line in (line for curve in curves for line in _statement(curve)):
        _note(line)
    for line in unreadable:
        faults(line)
    return curves, packets


def _note(line: str) -> None:
    """Say something that people should know, though nothing is wrong."""
    tqdm.write(printable(line), file=sys.stderr)


def _light_curves(args: argparse.Namespace, curves: Sequence[LightCurve]) -> list[Stream]:
    parts = [part for curve in curves for part in curve.parts]
    if args.baseline == "median":
        parts = [with_median(part) for part in parts]
    return [LightCurves(parts, args.start, args.stop, args.epochs_per_message)] if parts else []


@dataclass(frozen=True, slots=True)
class _Injection:
    """What magnifies records; without an injector they stay as they are."""

    edit: Edit
    injector: Injector | None = None


@contextmanager
def _injection(
    args: argparse.Namespace, curves: Sequence[LightCurve], schemas: SchemaLookup
) -> Iterator[_Injection]:
    """Give what magnifies, and write the truth at the end, whatever ends it."""
    if args.inject is None:
        yield _Injection(unchanged)
        return
    if args.loop != 1 or args.resume:
        raise ConfigError(
            "--inject goes with neither --loop nor --resume: the truth would be wrong"
        )
    parts = [part for curve in curves for part in curve.parts]
    config = read_config(args.inject)
    injector = light_curve_injector(config, parts, args.start, args.stop)
    decoder = Decoder(unframer=Unframer(schemas), options=config.packets)
    truth = args.truth or args.inject.with_suffix(".truth.jsonl")
    try:
        yield _Injection(RecordInjector(injector, decoder), injector)
    finally:
        injector.write(truth)
    _note(f"{truth}: {injector.lensed} of {injector.stars} stars were lensed")


def _schemas(args: argparse.Namespace) -> SchemaLookup:
    """Where the schemas are of packets that carry only a number."""
    filed = filed_schemas(args.schema_folder or package_folder())
    sources: list[SchemaLookup] = [lambda number: filed.get(number)]
    if args.schema_registry:
        login = args.schema_registry_login_file
        sources.append(Registry(args.schema_registry, login_file=login))
    return chained(*sources)


def _topics(
    args: argparse.Namespace, ranges: Sequence[str], event_time: EventTime
) -> Iterator[Stream]:
    config = read_properties(args.source_config)
    for text in ranges:
        part = parse_range(text)
        if part.topic == args.topic:
            raise ConfigError(f"{text}: a topic cannot be replayed into itself: mend --topic")
        yield from streams_of(part, event_time, config)


def _fingerprint(args: argparse.Namespace, streams: Sequence[Stream]) -> str:
    """Sum over all that decides which messages come, and in which order."""
    names = ("start", "stop", "epochs_per_message", "baseline", "star", "star_from_folder", "band")
    options = {name: getattr(args, name) for name in names}
    what = [options, args.topic, args.survey, args.zero_point, args.time_system]
    what += [args.quantity, args.ignore_column]
    sources = [(stream.name, stream.size) for stream in streams]
    return hashlib.sha256(json.dumps([what, sources]).encode()).hexdigest()


def _total(args: argparse.Namespace, streams: Sequence[Stream]) -> int | None:
    turns: int | None = args.loop
    return turns and turns * sum(stream.size for stream in streams)


class _Shown:
    """The bar of progress: bytes read and the time left, messages and their rate."""

    def __init__(self, bar: tqdm[Never], archive: Archive) -> None:
        self._bar, self._archive = bar, archive
        self._began = self._shown = time.monotonic()
        self._messages = self._before = 0

    def __call__(self, _: Record) -> None:
        self._messages += 1
        now = time.monotonic()
        if now - self._shown < SHOW_S:
            return
        self._shown = now
        done = self._archive.done
        if done < self._before:  # the next pass has begun
            self._before = 0
        rate = self._messages / (now - self._began)
        self._bar.set_postfix_str(f"{self._messages:,} messages, {rate:,.0f}/s", refresh=False)
        self._bar.update(done - self._before)
        self._before = done


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
    files: int,
    faults: _Faults,
    injection: _Injection,
    *,
    as_json: bool,
) -> str:
    rejected = Counter[str](rejection.reason for curve in curves for rejection in curve.rejected)
    if as_json:
        known = {key: None if value != value else value for key, value in asdict(report).items()}
        extra = {"files": files, "unreadable": faults.lines, "faults": faults.count}
        if injection.injector:
            extra |= {"lensed": injection.injector.lensed, "stars": injection.injector.stars}
        return json.dumps(known | extra | {"rejected": dict(rejected)}, allow_nan=False)
    span = f"MJD {report.first_mjd:.4f} to {report.last_mjd:.4f} (TAI)" if report.messages else "-"
    late = f"{report.late} out of order, " if report.late else ""
    return (
        f"{report.epochs} epochs in {report.messages} messages from {files} files, {span}, "
        f"in {report.seconds:.1f} s; {late}{rejected.total()} rows rejected, "
        f"{faults.count} files or parts of them unreadable"
    )
