"""K of many stars in one table, star by star."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_filter.errors import SchemaError
from broker_filter.extras import named_extras
from broker_filter.scoring.flags import flag_columns, flags_of
from broker_filter.scoring.result import Result
from broker_filter.scoring.score import score

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["score_table"]


def score_table(
    table: pd.DataFrame | Path | str,
    *,
    star: str = "star",
    time: str = "time",
    flux: str = "flux",
    error: str = "flux_err",
    band: str | None = None,
    source: str | None = None,
    flags: str | None = None,
    **options: Any,  # noqa: ANN401  those of `score`
) -> pd.DataFrame:
    """K of each star of a table.

    Parameters
    ----------
    table : DataFrame or path of a Parquet file
        One row an epoch, the rows of each star together. Of a file, one row group is in memory, and
        one star.
    star, time, flux, error, band, source : str
        Names of the columns.
    flags : str, optional
        Column that is 0 where a row is good; by default all columns of flags and limits whose names
        `replay` knows.
    **options
        As of `score`: ``baseline``, ``time_system``, ``zero_point``, ``model``, ``cascade``,
        ``now``, ``survey``.

    Returns
    -------
    DataFrame
        One row a star: star, epochs, log10_k, log10_k_now, certified, certified_error, alerts,
        verdict, words, and problem, which says why a star could not be scored.

    Raises
    ------
    SchemaError
        A column is missing, or the rows of a star are not together.
    ConfigError
        pyarrow is not installed.
    """
    import pandas as pd

    columns = [name for name in (star, time, flux, error, band, source) if name is not None]
    rows: dict[Any, dict[str, Any]] = {}
    for name, part in _stars(_pieces(table, columns, flags), star):
        if name in rows:
            raise SchemaError(f"the rows of star {name!r} are not together: sort by {star!r}")
        times, fluxes, errors = (part[column].to_numpy() for column in (time, flux, error))
        rows[name] = {"star": name, "epochs": len(part)}
        try:
            others = [str(name) for name in part if name not in columns]
            marks = flags_of(part, [flags] if flags else flag_columns(others))
            result = score(
                times, fluxes, errors, star=name, flags=marks,
                band=_labels(part, band), source=_labels(part, source), **options,
            )  # fmt: skip
            rows[name] |= _row(result)
        except SchemaError as problem:
            rows[name]["problem"] = str(problem)
    return pd.DataFrame(list(rows.values()))


def _labels(rows: pd.DataFrame, column: str | None) -> list[str] | None:
    return None if column is None else rows[column].astype(str).tolist()


def _pieces(
    table: pd.DataFrame | Path | str, columns: list[str], flags: str | None
) -> Iterator[pd.DataFrame]:
    """The table in pieces that fit in memory: these columns, and flags."""

    def wanted(known: list[str]) -> list[str]:
        _require([*columns, *([flags] if flags else [])], known)
        return list(dict.fromkeys([*columns, *([flags] if flags else flag_columns(known))]))

    if not isinstance(table, str | Path):
        yield table[wanted(list(table.columns))]
        return
    with named_extras("Parquet files"):
        import pyarrow.parquet as pq
    with pq.ParquetFile(table) as file:
        read = wanted(file.schema_arrow.names)
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=read).to_pandas()


def _require(columns: list[str], known: list[str]) -> None:
    if missing := [name for name in columns if name not in known]:
        raise SchemaError(f"no column {', '.join(missing)}; there are {', '.join(known)}")


def _stars(pieces: Iterator[pd.DataFrame], star: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Each run of rows of one star, also across pieces."""
    import pandas as pd

    rest: list[pd.DataFrame] = []
    for piece in pieces:
        runs = (piece[star] != piece[star].shift()).cumsum()
        for _, run in piece.groupby(runs, sort=False):
            if rest and rest[0][star].iloc[0] != run[star].iloc[0]:
                yield _named(pd.concat(rest), star)
                rest = []
            rest.append(run)
    if rest:
        yield _named(pd.concat(rest), star)


def _named(rows: pd.DataFrame, star: str) -> tuple[Any, pd.DataFrame]:
    name = rows[star].iloc[0]
    return name.item() if hasattr(name, "item") else name, rows


def _row(result: Result) -> dict[str, Any]:
    certified, verdict = result.certified, result.verdict
    return {
        "log10_k": result.log10_k,
        "log10_k_now": result.log10_k_now,
        "certified": None if certified is None else certified.log10_k,
        "certified_error": None if certified is None else certified.log10_k_error,
        "alerts": len(result.alerts),
        "verdict": None if verdict is None else verdict.verdict,
        "words": result.words,
        "problem": "",
    }
