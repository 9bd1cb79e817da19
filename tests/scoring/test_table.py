"""Many stars in one table: each as if it were alone, from memory or from a file in pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from broker_filter.errors import SchemaError
from broker_filter.scoring import star_scorer
from broker_filter.scoring.score import score
from broker_filter.scoring.star_scorer import StarScorer, settings_for
from broker_filter.scoring.table import score_table

TIME = np.arange(60_000.0, 60_006.0, 0.2)


@pytest.fixture(autouse=True)
def scorer(tiny_entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = StarScorer(settings_for(tiny_entry, alert={"certified": False}))
    monkeypatch.setattr(star_scorer, "scorer_of", lambda *_: tiny)


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    flux = 1000 + 10 * rng.standard_normal(3 * len(TIME))
    flux[2 * len(TIME) :] = np.nan
    star = np.repeat([7, 5, 9], len(TIME))
    return pd.DataFrame({"star": star, "time": np.tile(TIME, 3), "flux": flux, "flux_err": 10.0})


def test_each_star_is_scored_as_if_alone(frame: pd.DataFrame) -> None:
    found = score_table(frame)
    assert found["star"].tolist() == [7, 5, 9]
    assert found["epochs"].tolist() == [len(TIME)] * 3
    one = frame[frame["star"] == 5]
    alone = score(
        one["time"].to_numpy(), one["flux"].to_numpy(), one["flux_err"].to_numpy(), star=5
    )
    assert found["log10_k"][1] == alone.log10_k
    assert "nan_flux" in found["problem"][2]


def test_a_file_gives_the_same_wherever_its_row_groups_end(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "stars.parquet"
    frame.to_parquet(path, row_group_size=17)
    pd.testing.assert_frame_equal(score_table(path), score_table(frame))


def test_rows_flagged_bad_are_left_out_of_a_frame_and_of_a_file(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    frame["catflags"] = np.arange(len(frame)) % 2
    frame["mine"] = 0
    frame.to_parquet(tmp_path / "stars.parquet", row_group_size=17)
    found = score_table(frame)
    pd.testing.assert_frame_equal(score_table(tmp_path / "stars.parquet"), found)
    rest = score_table(frame[frame["catflags"] == 0].drop(columns="catflags"))
    assert found["log10_k"][:2].tolist() == rest["log10_k"][:2].tolist()
    every = score_table(frame.drop(columns="catflags"))
    assert score_table(frame, flags="mine")["log10_k"][0] == every["log10_k"][0]


def test_rows_of_a_star_that_are_apart_and_missing_columns_are_refused(frame: pd.DataFrame) -> None:
    with pytest.raises(SchemaError, match="not together"):
        score_table(pd.concat([frame, frame[:5]]))
    with pytest.raises(SchemaError, match="no column mag; there are star"):
        score_table(frame, flux="mag")
