"""Rows of a Parquet file as packets: each an Avro container of one record.

Avro keeps what the table holds: float32 and 64-bit integers as they are, cutouts as bytes, nulls
apart from NaN. Every field may be null, as in the table; a nested record whose fields are all null
is how tables that came from Spark write a record that is null, and becomes one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import fastavro

from broker_filter.decode.selection import select
from broker_filter.decode.surveys.registry import event_times
from broker_filter.errors import ConfigError, PoisonMessage, SchemaError
from broker_filter.replay.event_time import selection, time_of
from broker_filter.replay.stream import SAMPLE

__all__ = ["first_row", "rows"]

RECORD: Final = "topLevelRecord"
"""Name of the schema, as Spark names that of its own Avro files."""

BATCH_ROWS: Final = 8  # a row of a deep field takes megabytes as Python objects


def rows(path: Path) -> Iterator[tuple[str, bytes, Mapping[str, Any]]]:
    """Name and bytes of each row, and the fields of it that hold the time.

    Raises
    ------
    ConfigError
        pyarrow is not installed.
    SchemaError
        The file is damaged, or has no column of the time.
    """
    with _open(path) as table:
        schema = fastavro.parse_schema(_avro_record(RECORD, table.schema_arrow))
        number = 0
        for batch in table.iter_batches(batch_size=BATCH_ROWS):
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                record = _without_empty(row) or {}
                yield f"{path}#{number}", _container(schema, record), select(record, selection())
                number += 1


def first_row(path: Path) -> float | None:
    """Earliest time of the first rows, MJD TAI; None where none has one.

    Raises
    ------
    ConfigError, SchemaError
        As `rows`.
    """
    with _open(path) as table:
        columns = [".".join(field) for field in event_times()]
        batches = table.iter_batches(batch_size=SAMPLE, columns=columns)
        times = []
        for row in next(batches).to_pylist() if table.metadata.num_rows else []:
            with suppress(PoisonMessage):
                times.append(time_of(select(row, selection())))
        return min(times, default=None)


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError(
            f"{path}: Parquet files need pyarrow: pip install 'broker-filter[parquet]'"
        ) from error
    try:
        with pq.ParquetFile(path) as table:
            _require_time(path, table.schema_arrow)
            yield table
    except pa.ArrowException as error:
        raise SchemaError(f"{path}: not readable as Parquet: {error}") from error


def _require_time(path: Path, schema: Any) -> None:  # noqa: ANN401  pyarrow has no types
    for column, *inner in event_times():
        if column in schema.names and all(
            name in [field.name for field in schema.field(column).type] for name in inner
        ):
            return
    needed = " or ".join(".".join(fields) for fields in event_times())
    found = ", ".join(schema.names[:20])
    raise SchemaError(f"{path}: no column {needed}, which holds the time; it has {found}")


def _avro_record(name: str, fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field.name, "type": ["null", _avro(f"{name}_{field.name}", field.type)]}
            for field in fields
        ],
    }


def _avro(name: str, kind: Any) -> Any:  # noqa: ANN401
    """Avro type of an Arrow type; records are named by their path, so that no two share a name."""
    import pyarrow.types as pt

    if pt.is_struct(kind):
        return _avro_record(name, kind)
    if pt.is_map(kind):
        return {"type": "map", "values": ["null", _avro(f"{name}_item", kind.item_type)]}
    if pt.is_list(kind) or pt.is_large_list(kind):
        return {"type": "array", "items": ["null", _avro(f"{name}_item", kind.value_type)]}
    for fits, avro in (
        (pt.is_boolean, "boolean"),
        (pt.is_float32, "float"),
        (pt.is_floating, "double"),
        (pt.is_integer, "long"),
        (pt.is_timestamp, {"type": "long", "logicalType": "timestamp-micros"}),
        (pt.is_date, {"type": "int", "logicalType": "date"}),
        (pt.is_binary, "bytes"),
        (pt.is_large_binary, "bytes"),
        (pt.is_string, "string"),
        (pt.is_large_string, "string"),
        (pt.is_dictionary, "string"),
    ):
        if fits(kind):
            return avro
    raise SchemaError(f"column {name.removeprefix(RECORD + '_')}: no Avro type for {kind}")


def _without_empty(value: Any) -> Any:  # noqa: ANN401
    """Turn records whose fields are all null into null."""
    if isinstance(value, Mapping):
        inner = {name: _without_empty(item) for name, item in value.items()}
        return inner if any(item is not None for item in inner.values()) else None
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value


def _container(schema: Any, row: Any) -> bytes:  # noqa: ANN401
    file = io.BytesIO()
    fastavro.writer(file, schema, [row])
    return file.getvalue()
