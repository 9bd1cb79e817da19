"""Save alerts to files, one alert at a time: Avro containers, a Parquet table, plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import fastavro

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import to_json_dict
from broker_filter.alerts.parts import (
    QUANTILES,
    UNITS,
    Best,
    CertifiedK,
    Draws,
    FitQuality,
    physical,
)
from broker_filter.alerts.record import to_record
from broker_filter.client.corner import plot_corner
from broker_filter.client.figure import require_matplotlib
from broker_filter.client.plot import plot_light_curve
from broker_filter.errors import ConfigError
from broker_filter.extras import named_extras
from broker_filter.schemas import load_schema

__all__ = ["ROW_GROUP", "Save", "avro_files", "figure_paths", "parquet_file", "plot_files"]

Save = Callable[[Alert], None]

ROW_GROUP = 100
"""Rows that a Parquet file under way holds in memory."""

# Arrow's type for each of the alert's plain fields, by the field's annotation.
_ARROW = {
    "uuid.UUID": "string",
    "uuid.UUID | None": "string",
    "StarId": "string",
    "AlertState": "string",
    "PosteriorFrom": "string",
    "str": "string",
    "str | None": "string",
    "bool": "bool_",
    "int": "int64",
    "int | None": "int64",
    "float": "float64",
    "float | None": "float64",
}


def _columns(kind: type) -> dict[str, str]:
    """Plain fields of an alert or of a part of it, and Arrow's types for them."""
    return {field.name: _ARROW[str(field.type)] for field in fields(kind) if field.type in _ARROW}


_COLUMNS = _columns(Alert)
_PARTS = {"certified": CertifiedK, "fit": FitQuality, "fit_best": Best}
_JSON = {
    "other_bands": "otherBands",
    "sources": "sources",
    "rivals": "rivals",
    "verdict": "verdict",
    "noise": "noise",
}
_LISTS = ("covariance", "mjd_tai", "flux", "sigma", "source")


def avro_files(folder: Path) -> Save:
    """Save each alert as ``<alertId>.avro``: a container of one record, with its schema inside."""
    folder.mkdir(parents=True, exist_ok=True)

    def save(alert: Alert) -> None:
        with (folder / f"{alert.alert_id}.avro").open("wb") as file:
            fastavro.writer(file, load_schema("alert"), [to_record(alert)], codec="deflate")

    return save


def plot_files(folder: Path) -> Save:
    """Draw each alert as ``<alertId>-light-curve.png`` and ``<alertId>-corner.png``.

    Raises
    ------
    ConfigError
        matplotlib is not installed.
    """
    require_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)

    def draw(alert: Alert) -> None:
        light_curve, corner = figure_paths(alert, folder)
        plot_light_curve(alert, light_curve)
        plot_corner(alert, corner)

    return draw


def figure_paths(alert: Alert, folder: Path) -> tuple[Path, Path]:
    """Where `plot_files` draws the light curve and the corner plot of an alert."""
    return folder / f"{alert.alert_id}-light-curve.png", folder / f"{alert.alert_id}-corner.png"


@contextmanager
def parquet_file(path: Path) -> Iterator[Save]:
    """Save alerts as rows of one table, which gets its name when it is whole.

    The columns are the alert's fields under their Python names (identifiers as strings); certified
    K, the fit and its best curve with a prefix (``certified_``, ``fit_``, ``fit_best_``); quantiles
    such as ``tE_p16``; as lists the samples (``sample_tE``), ``covariance`` row by row and the
    light curve (``mjd_tai``, ``flux``, ``sigma``, ``source``) and its rows that the fit leaves out
    (``fit_left_out``); quantiles and samples of the
    network beside the fit with the prefix ``network_``; and as JSON, under the schema's names,
    ``other_bands``, ``sources``, ``rivals``, ``verdict`` and ``noise``.

    Raises
    ------
    ConfigError
        pyarrow is not installed, or there is a folder of that name.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: a folder; name the Parquet file")
    with named_extras("Parquet files"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    schema = pa.schema(_arrow_fields(pa))
    rows: list[dict[str, Any]] = []
    with pq.ParquetWriter(part, schema) as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()

        def save(alert: Alert) -> None:
            rows.append(_row(alert))
            if len(rows) == ROW_GROUP:
                flush()

        try:
            yield save
        finally:  # what has come is worth keeping, whatever ended it
            flush()
    part.replace(path)


def _arrow_fields(pa: Any) -> list[Any]:  # noqa: ANN401  pyarrow has no types
    names = list(_COLUMNS.items())
    for prefix, kind in _PARTS.items():
        names += [(f"{prefix}_{name}", arrow) for name, arrow in _columns(kind).items()]
    lists = [*_LISTS, "fit_left_out"]
    for prefix in ("", "network_"):
        names += [(f"{prefix}{name}_{one}", "float64") for name in UNITS for one in QUANTILES]
        lists += [f"{prefix}sample_{name}" for name in UNITS]
    names += [(name, "string") for name in _JSON]
    scalars = [pa.field(name, getattr(pa, kind)()) for name, kind in names]
    return scalars + [pa.field(name, pa.list_(pa.float64())) for name in lists]


def _row(alert: Alert) -> dict[str, Any]:
    record = to_json_dict(alert, light_curve=True)
    row = _plain(alert, _COLUMNS)
    parts = {
        "certified": alert.certified,
        "fit": alert.fit,
        "fit_best": alert.fit and alert.fit.best,
    }
    for prefix, part in parts.items():
        found = _plain(part, _columns(_PARTS[prefix]))
        row |= {f"{prefix}_{name}": value for name, value in found.items()}
    row |= _quantiles(alert.draws, alert.window_start_mjd_tai, "")
    if alert.network is not None:
        row |= _quantiles(alert.network, alert.window_start_mjd_tai, "network_")
    row |= {
        name: None if record[key] is None else json.dumps(record[key], allow_nan=False)
        for name, key in _JSON.items()
    }
    row |= {
        name: None if (column := getattr(alert, name)) is None else column.ravel()
        for name in _LISTS
    }
    return row | {"fit_left_out": alert.fit and list(alert.fit.left_out)}


def _plain(part: Any, columns: Mapping[str, str]) -> dict[str, Any]:  # noqa: ANN401  or None
    """Plain fields of an alert or of a part of it; None of all where there is no such part."""
    values = {name: getattr(part, name, None) for name in columns}
    text = {name for name, kind in columns.items() if kind == "string"}
    return {
        name: str(value) if name in text and value is not None else value
        for name, value in values.items()
    }


def _quantiles(draws: Draws, start: float, prefix: str) -> dict[str, Any]:
    """Samples and their quantiles."""
    samples = physical(draws.samples, start, draws.parameters)
    return {f"{prefix}sample_{name}": samples[name] for name in UNITS} | {
        f"{prefix}{entry.name}_{one}": getattr(entry, one)
        for entry in draws.summary
        for one in QUANTILES
    }
