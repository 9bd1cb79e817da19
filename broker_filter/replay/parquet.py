"""Rows of a Parquet file as packets: each an Avro container of one record.

Avro keeps what the table holds: float32 and 64-bit integers as they are, cutouts as bytes, nulls
apart from NaN. Every field may be null, as in the table; a nested record whose fields are all null
is how tables that came from Spark write a record that is null, and becomes one. Decimals become
doubles, times and durations whole numbers of their unit; a column without any Avro type, or with a
name that Avro does not allow, is left out and reported.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import fastavro

from broker_filter.decode.selection import select
from broker_filter.decode.surveys.registry import event_times
from broker_filter.errors import ConfigError, PoisonMessage, SchemaError
from broker_filter.replay.event_time import selection, time_of
from broker_filter.replay.stream import SAMPLE, Report

__all__ = ["first_row", "rows"]

RECORD: Final = "topLevelRecord"
"""Name of the schema, as Spark names that of its own Avro files."""

_AVRO_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
BATCH_ROWS: Final = 8  # a row of a deep field takes megabytes as Python objects


def rows(
    path: Path, report: Report = lambda _: None
) -> Iterator[tuple[str, bytes, Mapping[str, Any]]]:
    """Name and bytes of each row, and the fields of it that hold the time.

    Parameters
    ----------
    path : Path
    report : Report
        Takes one line on the columns that were left out, if any.

    Raises
    ------
    ConfigError
        pyarrow is not installed.
    SchemaError
        The file is damaged, or has no column of the time.
    """
    with _open(path) as table:
        record, left_out = _schema(table.schema_arrow)
        if left_out:
            report(f"{path}: left out, as Avro has no place for them: {', '.join(left_out)}")
        schema = fastavro.parse_schema(record)
        columns = [field["name"] for field in record["fields"]]
        number = 0
        for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=columns):
            for row in _plain_batch(batch).to_pylist(maps_as_pydicts="lossy"):
                content = _without_empty(row) or {}
                yield f"{path}#{number}", _container(schema, content), select(content, selection())
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
        for row in _plain_batch(next(batches)).to_pylist() if table.metadata.num_rows else []:
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
    except (pa.ArrowException, OSError, ValueError) as error:  # damage is any of them to Arrow
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


def _schema(arrow: Any) -> tuple[dict[str, Any], list[str]]:  # noqa: ANN401
    """Avro schema of a row, and the names of the columns and inner fields that it leaves out."""
    left_out: list[str] = []
    return _avro_record(RECORD, arrow, left_out), left_out


def _avro_record(name: str, fields: Any, left_out: list[str]) -> dict[str, Any]:  # noqa: ANN401
    found = []
    for field in fields:
        inner = f"{name}_{field.name}"
        kind = _avro(inner, field.type, left_out) if _AVRO_NAME.fullmatch(field.name) else None
        if kind is None:
            left_out.append(f"{inner.removeprefix(RECORD + '_')} ({field.type})")
        else:
            found.append({"name": field.name, "type": ["null", kind]})
    return {"type": "record", "name": name, "fields": found}


def _avro(name: str, kind: Any, left_out: list[str]) -> Any:  # noqa: ANN401
    """Avro type of an Arrow type, None where it has none.

    Records are named by their path, so that no two share a name.
    """
    import pyarrow.types as pt

    kind = _plain(kind)
    if pt.is_struct(kind):
        record = _avro_record(name, kind, left_out)
        return record if record["fields"] else None
    if pt.is_map(kind):
        values = _avro(f"{name}_item", kind.item_type, left_out)
        return {"type": "map", "values": ["null", values]} if values else None
    if pt.is_list(kind) or pt.is_large_list(kind):
        items = _avro(f"{name}_item", kind.value_type, left_out)
        return {"type": "array", "items": ["null", items]} if items else None
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
    ):
        if fits(kind):
            return avro
    return None


def _plain(kind: Any) -> Any:  # noqa: ANN401
    """The Arrow type with an Avro counterpart to which values of a type are cast, or the type."""
    import pyarrow as pa
    import pyarrow.types as pt

    if pt.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(kind.key_type, _plain(kind.item_type))
    if pt.is_list(kind) or pt.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pt.is_dictionary(kind):
        return _plain(kind.value_type)
    for fits, plain in (
        (pt.is_null, pa.string()),
        (pt.is_decimal, pa.float64()),
        (pt.is_float16, pa.float32()),
        (pt.is_time32, pa.int32()),
        (pt.is_time64, pa.int64()),
        (pt.is_duration, pa.int64()),
        (pt.is_date64, pa.date32()),
        (pt.is_fixed_size_binary, pa.binary()),
    ):
        if fits(kind):
            return plain
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return kind


def _plain_batch(batch: Any) -> Any:  # noqa: ANN401
    import pyarrow as pa

    plain = pa.schema([field.with_type(_plain(field.type)) for field in batch.schema])
    if plain.equals(batch.schema):
        return batch
    return pa.Table.from_batches([batch]).cast(plain, safe=False)


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
