"""Tables of known variables: by id, by place, and what is no such table."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker_filter.alerts.known_variables import KnownVariables, read_known_variables
from broker_filter.errors import ConfigError

ROWS = "id,ra,dec,label\n17,270.0,-28.5,RR Lyrae\n,10.0,89.99999,Cepheid\nb,,,LPV\nx,1,1,\n"


@pytest.fixture
def known(tmp_path: Path) -> KnownVariables:
    path = tmp_path / "known.csv"
    path.write_text(ROWS)
    return read_known_variables(path)


def test_a_star_is_known_by_its_id_or_its_place(known: KnownVariables) -> None:
    assert known.label(17, None) == "RR Lyrae"
    assert known.label("b", (3.0, 3.0)) == "LPV"
    assert known.label("other", (270.0, -28.5 + 0.9 / 3600)) == "RR Lyrae"
    assert known.label("other", (270.0 - 360, -28.5)) == "RR Lyrae"
    assert known.label("other", (270.0, -28.5 + 1.1 / 3600)) is None
    assert known.label("x", None) is None


def test_places_near_a_pole_are_near(known: KnownVariables) -> None:
    assert known.label("other", (190.0, 90.0)) == "Cepheid"


def test_nothing_is_known_without_a_table() -> None:
    assert KnownVariables().label(1, (0.0, 0.0)) is None


def test_parquet_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "known.parquet"
    pq.write_table(pa.table({"id": [1, 2], "label": ["EB", None]}), path)
    known = read_known_variables(path)
    assert known.label(1, None) == "EB"
    assert known.label(2, None) is None


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([7.0, None]),
        pa.array([7.0, math.nan]),
        pa.array([b"7", b""]),
        pa.array([" 7 ", " "]),
    ],
)
def test_ids_are_the_same_however_a_table_holds_them(tmp_path: Path, ids: pa.Array) -> None:
    path = tmp_path / "known.PARQUET"
    no_place = pa.array([math.nan, None])
    table = {"id": ids, "label": ["EB", "RR"], "ra": no_place, "dec": no_place}
    pq.write_table(pa.table(table), path)
    known = read_known_variables(path)
    assert known.label(7, None) == known.label("7", None) == "EB"
    assert known.by_id == {"7": "EB"}
    assert not known.by_cell


def test_a_place_that_is_no_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "known.parquet"
    pq.write_table(pa.table({"label": ["RR"], "ra": [[1.0]], "dec": [2.0]}), path)
    with pytest.raises(ConfigError, match="row 1: could not convert"):
        read_known_variables(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,kind\n1,RR\n", "label"),
        ("label,ra\nRR,1\n", "ra and dec"),
        ("", "label"),
        ("label,ra,dec\nRR,x,2\n", "row 1: could not convert"),
        ("label,ra,dec\nRR,1\n", "no row has a label and an id or a place"),
        ("label,id\n,1\n,2\n", "no row has a label and an id or a place"),
        ("label,ra,dec\nRR,1,95\n", "no such place"),
        ("label,ra,dec\nRR,nan,5\n", "no such place"),
        ("\x00\xff", "known.csv"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "known.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=says):
        read_known_variables(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known_variables"):
        read_known_variables(tmp_path / "none.csv")


def test_labels_are_short_lines(tmp_path: Path) -> None:
    path = tmp_path / "known.csv"
    path.write_text('id,label\n1,"a\n\tb' + "c" * 500 + '"\n')
    label = read_known_variables(path).label(1, None)
    assert label is not None
    assert label.startswith("a bc")
    assert len(label) == 60
