"""Simulated stars on the service's own path: what is drawn, looked at, and said of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from broker_filter.inference import zoo
from model_zoo.evaluate.measure import corners, efficiency
from model_zoo.evaluate.measure.corners import CORNERS, corner_star, measure_corners
from model_zoo.evaluate.measure.efficiency import SKIES, draw_event
from model_zoo.evaluate.measure.kept import Kept
from model_zoo.evaluate.measure.service_path import START, ServicePath, one_star
from model_zoo.evaluate.report.tables import corner_tables, efficiency_tables


@pytest.fixture(scope="module")
def entry() -> zoo.Entry:
    return zoo.verify(zoo.find("fspl-roman-1.0.0"))


def test_there_are_eight_corners_and_their_noise_is_as_said() -> None:
    assert len({corner.name for corner in CORNERS}) == 8
    rng = np.random.default_rng(1)
    for corner in CORNERS:
        parts = [part for _ in range(40) for part in corner_star(corner, rng) if len(part) > 9]
        assert {part.source for part in parts} == {"0", "1", "2"}
        off = [np.abs(part.flux - 1) / part.flux_err for part in parts]
        typical = float(np.median(np.concatenate(off))) / 0.6745
        assert typical == pytest.approx(np.hypot(corner.scale, corner.red_noise), rel=0.15)
        assert (float(max(map(np.max, off))) > 12) == corner.wrong


@pytest.mark.parametrize("name", SKIES)
def test_events_lie_in_the_last_window_and_are_as_bright_as_asked(name: str) -> None:
    sky, rng = SKIES[name], np.random.default_rng(2)
    star, outside = draw_event(sky, rng)
    t = star.mjd_tai - START
    assert sky.history + efficiency.WINDOW - 5 < t.max() < sky.history + efficiency.WINDOW
    inside = star.take(np.flatnonzero(t >= sky.history))
    snr = float(np.sqrt(np.square((inside.flux - 1) / inside.flux_err).sum() - len(inside)))
    assert snr > 15
    assert 0 <= outside < 60


def test_a_clear_event_is_looked_at_and_a_quiet_star_is_not(entry: zoo.Entry) -> None:
    path, rng = ServicePath(entry), np.random.default_rng(3)
    t = np.arange(0, 12, 0.05)
    noise, sigma = 0.01 * rng.standard_normal(len(t)), np.full(len(t), 0.01)
    quiet = one_star(t, 1 + noise, sigma, (1.0, 1e-3), survey="roman")
    assert path([quiet]) == []
    bump = 0.5 * np.exp(-0.5 * np.square((t - 7) / 0.4))
    event = one_star(t, 1 + bump + noise, sigma, (1.0, 1e-3), survey="roman")
    looks = path([event])
    assert max(look.family for look in looks) > 6.6
    assert all(look.white >= look.family - 1 for look in looks)


def test_the_corners_table_says_how_many_streams_reached_k(
    entry: zoo.Entry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(corners, "CORNERS", CORNERS[:1])
    part = measure_corners(entry, 4, kept=Kept(tmp_path / "stars.jsonl"), quiet=True)
    monkeypatch.setattr(corners, "corner_star", None)  # nothing is drawn that is known
    assert measure_corners(entry, 4, kept=Kept(tmp_path / "stars.jsonl"), quiet=True) == part
    (row,) = part["rows"]
    assert (row["stars"], row["streams"]) == (1, 4)
    assert part["holds"] == all(reached["holds"] for reached in row["tail"])
    lines = corner_tables(part)
    assert CORNERS[0].name in lines[2]
    assert "bound 1 / k" in lines[3]


def test_the_efficiency_table_shows_shares() -> None:
    found = {"found": 9, "n": 10, "share": 0.9, "low68": 0.77, "high68": 0.96}
    row = {"name": "white", "looked_at": 10, "cost_dex": [1.0, 2.0, 3.0]}
    row |= dict.fromkeys(("found_3", "found_6_6"), found)
    none = {"found": 0, "n": 0, "share": None, "low68": None, "high68": None}
    spread = {"found_3": found | {"share": 1.0}, "found_6_6": none}
    lines = efficiency_tables({"rows": [row | {"lost_6_6": none, "spread": spread}]})
    assert "90.0 % of 10" in lines[2]
    assert "100.0 % of 10" in lines[2]


def test_results_of_other_weights_and_broken_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "stars.jsonl"
    assert Kept(path, "weights")("star", lambda: [1.0]) == [1.0]
    with path.open("a") as file:
        file.write('{"star": "other", "of"')
    assert Kept(path, "weights")("star", lambda: [2.0]) == [1.0]
    assert Kept(path, "others")("star", lambda: [2.0]) == [2.0]
