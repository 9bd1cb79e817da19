"""Spark: K of every star of an archive, such as a folder of Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker_filter.scoring.table import score_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "score_group", "score_stars"]

COLUMNS: Final = {
    "epochs": "bigint",
    "log10_k": "double",
    "log10_k_now": "double",
    "certified": "double",
    "certified_error": "double",
    "alerts": "bigint",
    "verdict": "string",
    "words": "string",
    "problem": "string",
}
"""What there is of each star beside its name, and its type in Spark."""


def score_stars(
    frame: Any,  # noqa: ANN401  a DataFrame of Spark's
    *,
    star: str = "star",
    **options: Any,  # noqa: ANN401  those of `score_table`
) -> Any:  # noqa: ANN401
    """K of each star of a table, computed by the workers.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        One row an epoch, in any order; the epochs of one star are in memory at a time.
    star : str
        Column of the star's name.
    **options
        As of `broker_filter.score_table`; with ``now=True`` a star takes one look. Each worker
        loads the model once, and needs this package with the extra ``filter``.

    Returns
    -------
    pyspark.sql.DataFrame
        One row a star: star, and `COLUMNS`.
    """
    kind = frame.schema[star].dataType.simpleString()
    schema = ", ".join(f"{name} {type_}" for name, type_ in {"star": kind, **COLUMNS}.items())

    def one(rows: pd.DataFrame) -> pd.DataFrame:
        return score_group(rows, star=star, **options)

    return frame.groupBy(star).applyInPandas(one, schema)


def score_group(rows: pd.DataFrame, *, star: str = "star", **options: Any) -> pd.DataFrame:  # noqa: ANN401
    """One row of `COLUMNS` for the rows of one star; what it has no value of is null."""
    found = score_table(rows, star=star, **options).reindex(columns=["star", *COLUMNS])
    # Text as objects: Spark cannot read the strings that pandas keeps in Arrow's memory.
    kinds = {"bigint": "Int64", "double": "float64", "string": "object"}
    return found.astype({"star": "object", **{key: kinds[of] for key, of in COLUMNS.items()}})
