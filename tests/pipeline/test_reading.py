"""Reading the messages of a poll: which are read together, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from broker_filter.decode.decoder import Decoder
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.reading import MessageReader, Piece
from broker_filter.types import DeadLetter, Message
from tests import build


def unknown(*_: Any) -> dict[str, float]:
    return {}


def messages(*stars: int | str, **changes: Any) -> list[Message]:
    """One epoch each, a second apart."""
    return [
        build.message(
            build.photometry(60_000 + i / 86400, star, **changes), offset=i, schema="photometry"
        )
        for i, star in enumerate(stars)
    ]


def read(polled: list[Message]) -> tuple[list[Piece], list[DeadLetter]]:
    dead: list[DeadLetter] = []
    return MessageReader(Decoder(), Metrics()).read(polled, unknown, dead), dead


def stars(pieces: list[Piece]) -> list[list[int | str]]:
    return [[star for part in piece.parts for star in part.star] for piece in pieces]


def test_messages_of_many_stars_are_one_piece() -> None:
    pieces, dead = read(messages(*range(20)))
    assert stars(pieces) == [list(range(20))]
    assert [message.offset for message in pieces[0].messages] == list(range(20))
    assert dead == []


def test_no_star_comes_twice_in_a_piece_and_each_stays_in_its_order() -> None:
    rng = np.random.default_rng(3)
    polled = messages(*rng.integers(0, 9, 200).tolist())
    pieces, _ = read(polled)
    assert all(len(set(piece)) == len(piece) for piece in stars(pieces))
    for star in range(9):
        times = [
            time
            for piece in pieces
            for part in piece.parts
            for name, time in zip(part.star, part.mjd_tai.tolist(), strict=True)
            if name == star
        ]
        assert times == sorted(times)
    assert sorted(m.offset for piece in pieces for m in piece.messages) == list(range(200))


def test_one_that_is_like_no_other_keeps_its_star_s_order() -> None:
    polled = messages(*[1, 2, 3, 4, 5] * 2)
    odd = replace(messages(3, band="longer name")[0], offset=10)
    pieces, _ = read([*polled[:4], odd, *polled[4:]])
    bands = [part.band for piece in pieces for part in piece.parts if 3 in part.star]
    assert bands == ["r", "longer name", "r"]


def test_a_message_with_a_fault_is_the_only_letter() -> None:
    polled = messages(*range(20))
    bad = replace(polled[7], value=(polled[7].value or b"")[:-3] + 3 * b"\x07")
    pieces, dead = read([*polled[:7], bad, *polled[8:]])
    assert [letter.message.offset for letter in dead] == [7]
    assert sum(len(piece.messages) for piece in pieces) == 19
    assert 7 not in stars(pieces)[0]


def test_where_reading_together_fails_each_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: Any) -> Any:
        raise RecursionError("ours")

    monkeypatch.setattr("broker_filter.pipeline.reading.read_alike", failing)
    pieces, dead = read(messages(*range(5)))
    assert sorted(star for piece in stars(pieces) for star in piece) == list(range(5))
    assert dead == []


def test_other_messages_between_them_stay_where_they_are() -> None:
    polled = messages(*range(8))
    foreign = Message("epochs", 0, 99, None, b"no format")
    pieces, dead = read([*polled[:4], foreign, *polled[4:]])
    assert stars(pieces) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [letter.reason for letter in dead] == ["unknown_format"]
