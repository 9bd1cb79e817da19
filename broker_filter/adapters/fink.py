"""Fink, science module for Rubin: a column of K for every alert.

It takes total flux, so the columns ``scienceFlux`` and ``scienceFluxErr`` are to be expanded beside
``midpointMjdTai`` and ``band``. Its history is what the packet carries (a year of diaSources).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from broker_filter.adapters.evidence import Evidence, evidence

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SCHEMA", "microlensing_rubin", "pandas_udf_of"]

_TYPES: Final = {"float": "double", "bool": "boolean", "str": "string"}
SCHEMA: Final = ", ".join(f"{one.name} {_TYPES[str(one.type)]}" for one in fields(Evidence))
"""The column's type, as Spark writes it."""


def microlensing_rubin(
    diaObjectId: pd.Series[Any],
    cmidpointMjdTai: pd.Series[Any],
    cscienceFlux: pd.Series[Any],
    cscienceFluxErr: pd.Series[Any],
    cband: pd.Series[Any],
) -> pd.DataFrame:
    """K of each alert, one row an alert, columns as of `Evidence`.

    Parameters
    ----------
    diaObjectId : Series of int
    cmidpointMjdTai : Series of lists of float, MJD TAI
        History and the alert's own epoch, as are the others.
    cscienceFlux, cscienceFluxErr : Series of lists of float, nJy
    cband : Series of lists of str
    """
    import pandas as pd

    columns = (diaObjectId, cmidpointMjdTai, cscienceFlux, cscienceFluxErr, cband)
    rows = [_row(*row) for row in zip(*columns, strict=True)]
    names = [one.name for one in fields(Evidence)]
    return pd.DataFrame([asdict(row) for row in rows], index=diaObjectId.index, columns=names)


def _row(
    star: int,
    time: Iterable[float | None] | None,
    flux: Iterable[float | None] | None,
    error: Iterable[float | None] | None,
    band: Iterable[str | None] | None,
) -> Evidence:
    """K of one alert; epochs that lack something are left out."""
    columns = [() if column is None else column for column in (time, flux, error, band)]
    whole = [epoch for epoch in zip(*columns, strict=False) if None not in epoch]
    if not whole:
        return Evidence(reason="no epoch with a total flux")
    epochs = [list(column) for column in zip(*whole, strict=True)]
    return evidence(int(star), *epochs, survey="lsst")


def pandas_udf_of() -> Any:  # noqa: ANN401  pyspark has no types here
    """`microlensing_rubin` as a function of Spark's columns; needs pyspark."""
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def microlensing(*columns: Any) -> Any:  # noqa: ANN401
        return microlensing_rubin(*columns)

    # Spark looks at these, and knows no pd.Series[...].
    microlensing.__annotations__ = {"columns": pd.Series, "return": pd.DataFrame}
    return pandas_udf(SCHEMA)(microlensing)
