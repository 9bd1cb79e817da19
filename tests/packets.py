"""Records of packet files, read without any of our own decoding, and packets made of them."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import load_schema

from broker_filter.config import Packets
from broker_filter.decode.selection import Packet, select
from broker_filter.decode.surveys.registry import adapter_for

Record = dict[str, Any]


def records(file: Path) -> Iterator[tuple[str, Record]]:
    """Name of the schema, empty where there is none, and each record of a file."""
    content = file.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    if content.startswith(b"PAR1"):
        import pyarrow.parquet as pq

        yield from (("", row) for row in pq.read_table(io.BytesIO(content)).to_pylist())
    elif content.startswith(b"Obj"):
        reader = fastavro.reader(io.BytesIO(content))
        yield from ((reader.writer_schema["name"], record) for record in reader)
    elif content.startswith(b"{"):
        yield "", json.loads(content)
    else:
        folder, name = _wire_schema(file, struct.unpack(">xI", content[:5])[0])
        schema = load_schema(str(folder / f"{name}.avsc"))
        yield name, fastavro.schemaless_reader(io.BytesIO(content[5:]), schema, None)


def _wire_schema(file: Path, number: int) -> tuple[Path, str]:
    major, minor = divmod(number, 100)
    folder = file.parents[1] / "avsc"
    if major < 7:
        return folder / f"rapid/{major:02}/{minor:02}", f"rapid.v{major:02}_{minor:02}.alert"
    return folder / f"lsst/{major}/{minor}", f"lsst.v{major}_{minor}.alert"


def packet(name: str, record: Record, options: Packets | None = None) -> Packet:
    """What the survey's adapter makes of a record."""
    survey = adapter_for(name, frozenset(record))
    assert survey is not None
    return survey.read(select(record, survey.selection), options or Packets())


def points(packet: Packet) -> dict[tuple[str, str], int]:
    """Number of epochs by band and kind."""
    counts: dict[tuple[str, str], int] = {}
    for part in packet.photometry:
        key = (part.band, part.kind)
        counts[key] = counts.get(key, 0) + len(part)
    return counts
