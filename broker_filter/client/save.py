"""Save alerts to files, one alert at a time: Avro containers, a Parquet table, plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import fastavro

from broker_filter.alerts.alert import QUANTILES, UNITS, Alert
from broker_filter.alerts.record import to_record
from broker_filter.client.plot import plot_corner, plot_light_curve, require_matplotlib
from broker_filter.extras import named_extras
from broker_filter.schemas import load_schema

__all__ = ["ROW_GROUP", "Save", "avro_files", "figure_paths", "parquet_file", "plot_files"]

Save = Callable[[Alert], None]

ROW_GROUP = 100
"""Rows that a Parquet file under way holds in memory."""

# Arrow's type for each of the alert's plain fields, by the field's annotation.
_ARROW = {
    "uuid.UUID": "string",
    "StarId": "string",
    "AlertState": "string",
    "str": "string",
    "int": "int64",
    "int | None": "int64",
    "float": "float64",
    "float | None": "float64",
}
_COLUMNS = {field.name: _ARROW[str(field.type)] for field in fields(Alert) if field.type in _ARROW}
_CERTIFIED = ("log10_k", "log10_k_error", "effective_sample_size", "look")


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

    The columns are the alert's fields under their Python names (identifiers as strings), certified
    K with the prefix ``certified_``, quantiles such as ``tE_p16``, and as lists the samples
    (``sample_tE``) and the light curve (``mjd_tai``, ``flux``, ``sigma``).

    Raises
    ------
    ConfigError
        pyarrow is not installed.
    """
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
    names += [(f"certified_{name}", "float64") for name in _CERTIFIED]
    names += [(f"{name}_{quantile}", "float64") for name in UNITS for quantile in QUANTILES]
    lists = [f"sample_{name}" for name in UNITS] + ["mjd_tai", "flux", "sigma"]
    scalars = [pa.field(name, getattr(pa, kind)()) for name, kind in names]
    return scalars + [pa.field(name, pa.list_(pa.float64())) for name in lists]


def _row(alert: Alert) -> dict[str, Any]:
    posterior = alert.posterior
    return {
        name: str(getattr(alert, name)) if kind == "string" else getattr(alert, name)
        for name, kind in _COLUMNS.items()
    } | {
        **{f"certified_{name}": getattr(alert.certified, name, None) for name in _CERTIFIED},
        **{
            f"{entry.name}_{quantile}": getattr(entry, quantile)
            for entry in alert.summary
            for quantile in QUANTILES
        },
        **{f"sample_{name}": posterior[name].to_numpy() for name in UNITS},
        "mjd_tai": alert.mjd_tai,
        "flux": alert.flux,
        "sigma": alert.sigma,
    }
