"""Which column of a text table holds what, by the names in its header or by its bare shape."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, get_args

from broker_filter.errors import SchemaError
from broker_filter.replay.lightcurves.table import TextTable
from broker_filter.replay.lightcurves.timesystem import names_time

__all__ = ["FORMATS", "Layout", "Quantity", "find_layout"]

FORMATS: Final = "HJD mag err, KMTNet pySIS, an IPAC table, or a header with time and mag or flux"

Quantity = Literal["mag", "flux", "delta_flux"]

_ROLES: Final = {  # what a column holds: its names in lower case, with _ for all else
    "mag": r"mag(nitude)?|relative_magnitude|[ugrizyvbjhk]_?mag|mag_?[ugrizyvbjhk]",
    "mag_err": r"(e|err|sigma)_?mag|mag(nitude)?_?(err|error|uncertainty|sigma)|merr",
    "flux": r"((total|relative|sap|pdcsap)_)?flux|flux_njy",
    "flux_err": r"(e|err|sigma)_?flux|([a-z]+_)?flux_?(err|error|uncertainty|sigma)",
    "delta_flux": r"(delta|diff|difference)_?flux|dflux",
    "err": r"e|err|error|sigma|unc|uncertainty",
    "flags": r"(sap_)?(quality|flags?)",
    "band": r"band|filter|passband",
    "source": r"source|site|telescope|camera|field",
    "star": r"star|star_?id|object|object_?id",
}
_ASIDE: Final = ("flags", "band", "source", "star")


@dataclass(frozen=True, slots=True)
class Layout:
    """What was made of a header.

    Parameters
    ----------
    format : str
        One of the formats that `broker_filter.replay.lightcurves.file` names.
    quantity : "mag", "flux" or "delta_flux"
        What the column "value" holds.
    columns : dict of str to int
        Role to place: "time", "value", and perhaps "err", "flags", "band", "source", "star"; for
        pySIS files "mag" and "mag_err" besides.
    time_name, value_name : str
        Names in lower case with ``_`` for all else; empty without a header.
    """

    format: str
    quantity: Quantity
    columns: dict[str, int]
    time_name: str = ""
    value_name: str = ""


def find_layout(table: TextTable) -> Layout:
    """Tell which column holds what.

    A header counts once it names a time and something measured. Without one, 3 to 5 columns are
    time, magnitude, error, and perhaps seeing and sky, as OGLE has them.

    Raises
    ------
    SchemaError
        The table is no light curve.
    """
    for header in table.headers:
        if layout := _named_layout(header, ipac=table.ipac):
            return layout
    if table.named:
        raise SchemaError(
            f"{table.path}: not a light curve: columns {', '.join(table.headers[0])[:200]!r} name "
            "no time (JD, HJD, BJD, MJD, BTJD, BKJD, time) with a mag or flux"
        )
    widths = Counter(len(cells) for _, cells in table.rows) or Counter([3])
    width = widths.most_common(1)[0][0]
    if not 3 <= width <= 5:
        raise SchemaError(
            f"{table.path}: not a light curve: {width} columns and no header that names them. "
            f"Expected {FORMATS}"
        )
    roman = table.path.name.startswith("ulwdc1_")
    columns = {"time": 0, "value": 1, "err": 2}
    return Layout("roman-data-challenge" if roman else "ogle", "mag", columns)


def _named_layout(header: list[str], *, ipac: bool) -> Layout | None:
    names = [re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") for name in header]
    time = next((i for i, name in enumerate(names) if names_time(name)), None)
    found = {role: place for role in _ROLES if (place := _place(names, _ROLES[role])) is not None}
    measured = [role for role in get_args(Quantity) if role in found]
    if time is None or not measured:
        return None
    quantity = min(measured, key=found.__getitem__)  # where there are several, the first
    columns = {"time": time, "value": found[quantity]}
    err = found.get("mag_err" if quantity == "mag" else "flux_err", found.get("err"))
    if err is not None:
        columns["err"] = err
    columns |= {role: found[role] for role in _ASIDE if role in found}
    pysis = quantity == "delta_flux" and {"mag", "mag_err"} <= found.keys()
    if pysis:
        columns |= {"mag": found["mag"], "mag_err": found["mag_err"]}
    form = "ipac" if ipac else "kmtnet-pysis" if pysis else "named-columns"
    return Layout(form, quantity, columns, names[time], names[found[quantity]])


def _place(names: list[str], pattern: str) -> int | None:
    return next((i for i, name in enumerate(names) if re.fullmatch(pattern, name)), None)
