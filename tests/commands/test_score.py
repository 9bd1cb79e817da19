"""The command that scores files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_filter.cli import main
from broker_filter.scoring import star_scorer
from broker_filter.scoring.star_scorer import StarScorer, settings_for


@pytest.fixture(autouse=True)
def scorer(tiny_entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alert = {"log10_k": -10.0, "posterior_samples": 20, "certified": False}
    tiny = StarScorer(settings_for(tiny_entry, alert=alert, schedule={"every_days": 2.0}))
    monkeypatch.setattr(star_scorer, "scorer_of", lambda *_: tiny)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    time = np.arange(60_000.0, 60_006.0, 0.2)
    rng = np.random.default_rng(3)
    paths = []
    for name in ("a", "b"):
        rows = [f"{t:.2f},{1000 + 10 * rng.standard_normal():.3f},10" for t in time]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["mjd_tai,flux,flux_err", *rows]))
        paths.append(str(path))
    return paths


def test_a_row_for_each_star(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", *files]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "star"
    assert [row.split()[-1] for row in rows] == ["a", "b"]
    assert [row.split()[3] for row in rows] == ["30", "30"]


def test_json_alerts_and_pictures(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pandas as pd

    table, folder = tmp_path / "alerts.parquet", tmp_path / "figures"
    command = ["score", *files, "--json", "--parquet", str(table), "--plots", str(folder)]
    assert main(command) == 0
    records: list[dict[str, Any]] = [
        json.loads(line) for line in capsys.readouterr().out.splitlines()
    ]
    assert [record["star"] for record in records] == ["a", "b"]
    assert len(pd.read_parquet(table)) == sum(record["alerts"] for record in records) > 0
    assert len(list(folder.glob("*-light-curve.png"))) == 2


def test_what_cannot_be_read_is_named_and_the_rest_is_scored(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("nothing\n")
    assert main(["score", str(bad), files[0]]) == 3
    printed = capsys.readouterr()
    assert "bad.csv" in printed.err
    assert printed.out.splitlines()[-1].endswith("  a")
