"""How fast real survey packets are read: ``python -m tests.bench.bench_packets``.

Each is compared with fastavro on the same bytes, in the same run; ``measure`` returns the figures
for the table of ``make bench``, and none where the folder of real packets is absent.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fastavro

from broker_filter.config import Input
from broker_filter.decode.avro.reader import RecordReader
from broker_filter.decode.framing import Framed, Unframer
from broker_filter.decode.surveys.registry import adapter_for
from broker_filter.decode.surveys.survey import Survey
from broker_filter.photometry.usable import Limits, accept
from broker_filter.service.decoding import make_decoder
from broker_filter.types import Message, Photometry
from broker_filter.windows.store import WindowStore
from tests.bench.figures import Figure, show
from tests.lsst_packets import rows, schema, wire

DATA = Path(os.environ.get("BROKER_FILTER_TEST_DATA", "../shared/data"))
ZTF = "ztf/v4_01_ZTF17aadcuwj_2475433850315015009.avro"
WIRE_BYTES = 5


def seconds(call: Callable[[], object], runs: int = 7) -> float:
    """Least processor time of several calls: a busy machine disturbs it little."""
    best = float("inf")
    for _ in range(runs):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def measure(*, quick: bool = False) -> list[Figure]:
    """Milliseconds a packet, beside fastavro's."""
    alerts = DATA / "alerts"
    if not alerts.is_dir():
        print(f"packets: no real data at {alerts} (set BROKER_FILTER_TEST_DATA)", file=sys.stderr)
        return []
    runs = 1 if quick else 15
    return [*deep(alerts, runs), ztf(alerts, runs), *whole(alerts, runs)]


def deep(alerts: Path, runs: int) -> list[Figure]:
    """The deepest LSST packet, at first sight and of a star that is tracked."""
    (record,) = rows(alerts)
    value, written = wire(record, alerts)[WIRE_BYTES:], schema(alerts)
    reader = RecordReader(written, survey_of(written.name).selection)
    newest = dict.fromkeys("ugrizy", record["diaSource"]["midpointMjdTai"])
    window = {band: mjd - 20.0 for band, mjd in newest.items()}
    general = seconds(
        lambda: fastavro.schemaless_reader(io.BytesIO(value), written.root), min(runs, 5)
    )
    cases = {
        "first": ("star not seen before", None),
        "20_days": ("20 days of it new", window),
        "tracked": ("one visit of it new", newest),
    }
    figures = []
    for name, (words, oldest) in cases.items():
        known = None if oldest is None else (lambda _, oldest=oldest: oldest)
        spent = seconds(lambda known=known: reader.read(value, known), runs)  # type: ignore[misc]
        label = f"Time to read a deep LSST packet, {words}"
        row = Figure(f"lsst_deep_{name}", label, 1e3 * spent, "ms", "fastavro", 1e3 * general)
        figures.append(row)
    return figures


def ztf(alerts: Path, runs: int) -> Figure:
    """A ZTF packet as delivered: a container with its schema and three cutouts."""
    value = (alerts / ZTF).read_bytes()
    unframer = Unframer()
    first = unframer.unframe(Message("ztf", 0, 0, None, value))
    assert isinstance(first, Framed)
    reader = RecordReader(first.schema, survey_of(first.schema.name).selection)

    def read() -> None:
        framed = unframer.unframe(Message("ztf", 0, 0, None, value))
        assert isinstance(framed, Framed)
        for _, data in framed.blocks:
            reader.read(data)

    # It is short: the least of many calls is that of an undisturbed one.
    general = seconds(lambda: list(fastavro.reader(io.BytesIO(value))), 20 * runs)
    spent = seconds(read, 20 * runs)
    label = "Time to read a ZTF packet as delivered, with cutouts"
    return Figure("ztf_packet", label, 1e3 * spent, "ms", "fastavro", 1e3 * general)


def whole(alerts: Path, runs: int) -> list[Figure]:
    """From message to windows: every packet file here, once each, their stars known or not."""
    decoder = make_decoder(Input(schema_folder=alerts / "avsc"))
    values = packets(alerts)
    store = WindowStore(20.0)

    def take() -> None:
        for value in values:
            packet = decoder.decode(Message("alerts", 0, 0, None, value), store.wanted_from)
            for part in packet.photometry:
                insert(store, part)

    first = time.process_time()
    take()
    first = time.process_time() - first
    again = len(values) / seconds(take, runs)
    return [
        Figure(
            "packets_first",
            "LSST and ZTF packets per second to windows, first pass, schemas parsed",
            len(values) / first,
            "packets/s",
        ),
        Figure(
            "packets_tracked",
            "LSST and ZTF packets per second to windows, stars known",
            again,
            "packets/s",
        ),
    ]


def packets(alerts: Path) -> list[bytes]:
    """The real packets of ZTF and LSST, but for the one that is damaged."""
    files = [path for path in sorted(alerts.rglob("*.avro")) if path.parent.name in ("ztf", "lsst")]
    values = [path.read_bytes() for path in files if "135009" not in path.name]
    for path in sorted((alerts / "lsst").glob("*.parquet")):
        values += [wire(record, alerts) for record in rows(alerts, path.name)]
    return values


def insert(store: WindowStore, photometry: Photometry) -> None:
    store.insert(accept(photometry, Limits()).photometry)


def survey_of(name: str) -> Survey:
    survey = adapter_for(name, ())
    assert survey is not None
    return survey


if __name__ == "__main__":
    show(measure())
