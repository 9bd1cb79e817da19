"""Stars of an archive in Spark: rows that its types take, and what `score_table` finds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from broker_filter.adapters import spark
from broker_filter.adapters.spark import COLUMNS, score_group, score_stars
from broker_filter.scoring.table import score_table

TIME = np.arange(60_000.0, 60_010.0, 0.25)
NOISE = np.random.default_rng(3).standard_normal((2, len(TIME)))
OPTIONS: dict[str, Any] = {"error": "err", "now": True, "baseline": 1000.0}


def archive() -> pd.DataFrame:
    """Two stars of forty epochs and one whose only epoch has no flux, rows of all mixed."""
    stars = [
        pd.DataFrame({"object": name, "time": TIME, "flux": 1000 + 10 * noise, "err": 10.0})
        for name, noise in zip(("<b>", "b"), NOISE, strict=True)
    ]
    stars.append(pd.DataFrame({"object": "c", "time": [60_000.0], "flux": [np.nan], "err": [1.0]}))
    rows: pd.DataFrame = pd.concat(stars, ignore_index=True)
    return rows.sample(frac=1, random_state=1)


class Grouped:
    """A data frame as far as `score_stars` needs Spark's: its groups, made by pandas."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows, self.schema_text = rows, ""
        kind = SimpleNamespace(simpleString=lambda: "string")
        self.schema = {"object": SimpleNamespace(dataType=kind)}

    def groupBy(self, column: str) -> Grouped:  # noqa: N802  Spark's name
        self.column = column
        return self

    def applyInPandas(  # noqa: N802
        self, function: Callable[[pd.DataFrame], pd.DataFrame], schema: str
    ) -> pd.DataFrame:
        self.schema_text = schema
        return pd.concat([function(rows) for _, rows in self.rows.groupby(self.column)])


def test_each_star_is_scored_as_in_a_table() -> None:
    frame = Grouped(archive())
    found = score_stars(frame, star="object", **OPTIONS)
    expected = score_table(archive().sort_values("object"), star="object", **OPTIONS)
    assert found.star.tolist() == expected.star.tolist() == ["<b>", "b", "c"]
    assert found.log10_k_now.tolist()[:2] == expected.log10_k_now.tolist()[:2]
    assert found.problem.tolist() == ["", "", "none of the 1 epochs can be used: 1 nan_flux"]
    names = [column.split(" ")[0] for column in frame.schema_text.split(", ")]
    assert names == list(found.columns) == ["star", *COLUMNS]


@pytest.mark.parametrize("name", ["b", "c"])
def test_columns_have_the_types_that_are_declared(name: str) -> None:
    rows = archive()
    found = score_group(rows[rows.object == name], star="object", **OPTIONS)
    types = {"bigint": pa.int64(), "double": pa.float64(), "string": pa.string()}
    wanted = pa.schema([("star", pa.string()), *((n, types[t]) for n, t in COLUMNS.items())])
    table = pa.Table.from_pandas(found, schema=wanted, preserve_index=False)  # raises otherwise
    assert table.num_rows == 1
    assert {str(kind) for kind in found.dtypes} <= {"object", "Int64", "float64"}


@pytest.mark.filterwarnings("ignore")  # Spark's own
def test_real_spark() -> None:
    pyspark = pytest.importorskip("pyspark.sql")
    local = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    session = pyspark.SparkSession.builder.master("local[1]").config(map=local).getOrCreate()
    try:
        frame = session.createDataFrame(archive())
        found = score_stars(frame, star="object", **OPTIONS).toPandas()
    finally:
        session.stop()
    expected = score_table(archive().sort_values("object"), star="object", **OPTIONS)
    found = found.sort_values("star", ignore_index=True)
    assert found.log10_k_now.equals(expected.log10_k_now)
    assert found.problem.tolist() == expected.problem.tolist()
    assert spark.COLUMNS.keys() <= set(found.columns)
