"""Real LSST 10.0 packets in wire format, made of the rows of Fink's data transfer."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import fastavro

from broker_filter.decode.avro.schema import AvroType, WriterSchema, load_folder

__all__ = ["DEEP", "rows", "schema", "wire"]

DEEP = "v10_0_real_fink_part-1-0-354849523.parquet"
"""One packet of 1,172 detections and 1,032 forced measurements."""


@cache
def schema(alerts: Path) -> WriterSchema:
    """LSST 10.0, of the folder of alerts."""
    return load_folder(alerts / "avsc/lsst/10/0")


def rows(alerts: Path, file: str = DEEP) -> Iterator[dict[str, Any]]:
    """The packets of a file as they were before Fink added its columns."""
    import pyarrow.parquet as pq

    written = schema(alerts)
    for row in pq.read_table(alerts / "lsst" / file).to_pylist():
        yield _cut(row, written.root, written)


def wire(record: dict[str, Any], alerts: Path) -> bytes:
    """A packet in Confluent's wire format."""
    stream = io.BytesIO()
    stream.write(b"\0" + (1000).to_bytes(4, "big"))
    fastavro.schemaless_writer(stream, schema(alerts).root, record)
    return stream.getvalue()


def _cut(value: Any, avro_type: AvroType, written: WriterSchema) -> Any:
    """Only what the schema has; a struct of nulls alone was null."""
    kind, definition = written.resolve(avro_type)
    if value is None:
        return None
    if isinstance(definition, list):
        (other,) = (branch for branch in definition if branch != "null")
        whole = _cut(value, other, written)
        empty = isinstance(value, dict) and all(item is None for item in value.values())
        return None if empty else whole
    if kind == "record" and not isinstance(definition, str):
        fields = definition["fields"]
        return {f["name"]: _cut(value.get(f["name"]), f["type"], written) for f in fields}
    if kind == "array" and not isinstance(definition, str):
        return [_cut(item, definition["items"], written) for item in value]
    return value
