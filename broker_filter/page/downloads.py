"""An alert as a file: Avro, JSON, CSV of its photometry, VOEvent."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from typing import Final

import fastavro

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import to_json_dict
from broker_filter.alerts.record import to_record
from broker_filter.client.voevent import voevent
from broker_filter.observe.text import printable
from broker_filter.schemas import load_schema

__all__ = ["DOWNLOADS"]


def _avro(alert: Alert) -> bytes:
    """A container of one record, with its schema inside."""
    file = io.BytesIO()
    fastavro.writer(file, load_schema("alert"), [to_record(alert)], codec="deflate")
    return file.getvalue()


def _json(alert: Alert) -> bytes:
    """All of it, under the schema's names."""
    return json.dumps(to_json_dict(alert, light_curve=True, samples=True)).encode()


def _csv(alert: Alert) -> bytes:
    """The photometry, in units of the baseline."""
    table = alert.light_curve
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(table.columns)
    for *numbers, band, source in table.itertuples(index=False):
        writer.writerow([*map(repr, map(float, numbers)), _cell(band), _cell(source)])
    return text.getvalue().encode()


def _cell(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    shown = printable(name)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


DOWNLOADS: Final[Mapping[str, tuple[str, Callable[[Alert], bytes]]]] = {
    "avro": ("application/octet-stream", _avro),
    "json": ("application/json", _json),
    "csv": ("text/csv; charset=utf-8", _csv),
    "xml": ("application/xml", voevent),
}
"""Ending of a file to its type and what writes it; ``xml`` is VOEvent."""
