"""Files of one value a line: what a killed run left unfinished costs that line alone."""

from __future__ import annotations

from pathlib import Path

from model_zoo.evaluate.measure.kept import Kept
from model_zoo.json_lines import append_line, read_lines


def test_lines_come_back_and_one_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_lines(path) == []
    append_line(path, {"step": 1})
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    append_line(path, {"step": 3})
    append_line(path, {"step": 4})
    assert read_lines(path) == [{"step": 1}, {"step": 3}, {"step": 4}]


def test_a_measurement_goes_on_twice_after_a_kill_within_a_line(tmp_path: Path) -> None:
    path = tmp_path / "stars.jsonl"
    Kept(path)("first", lambda: 1)
    path.write_text(path.read_text() + '{"star": "second", "res')
    assert Kept(path)("second", lambda: 2) == 2
    known = Kept(path)
    assert [known(star, lambda: 0) for star in ("first", "second")] == [1, 2]
