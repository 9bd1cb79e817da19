"""Reads the messages of one poll: those that are alike together, all others one by one.

Two messages of one star stay in their order, so that a window can be read between them. What is
read together therefore holds each star once: the first message of each star, then the second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

import numpy as np

from broker_filter.decode.alike import read_alike
from broker_filter.decode.decoder import Decoder, Tracked
from broker_filter.errors import BrokerFilterError, PoisonMessage
from broker_filter.observe.metrics import Metrics
from broker_filter.types import DeadLetter, IntArray, Message, Photometry, StarId

__all__ = ["MessageReader", "Piece"]

_log = logging.getLogger(__name__)
_INTERNAL = {"event": "decode_failed", "reason": "internal"}


@dataclass(frozen=True, slots=True)
class Piece:
    """What was read of one message, or of several that hold each star once."""

    messages: Sequence[Message]
    parts: Sequence[Photometry]


class MessageReader:
    """Decodes messages and counts what they hold that is not photometry of use.

    Parameters
    ----------
    decoder : Decoder
    metrics : Metrics
    """

    def __init__(self, decoder: Decoder, metrics: Metrics) -> None:
        self._decoder, self._metrics = decoder, metrics

    def read(
        self, messages: Sequence[Message], tracked: Tracked, dead: list[DeadLetter]
    ) -> list[Piece]:
        """Read messages, in their order for each star.

        Parameters
        ----------
        messages : sequence of Message
            Those without a value are counted.
        tracked : Tracked
            Known stars, of whose packets only what is new is read.
        dead : list of DeadLetter
            Those that cannot be used are added here.

        Raises
        ------
        BrokerFilterError
            What concerns more than one message, such as a registry out of reach.
        """
        pieces: list[Piece] = []
        for single_star, run in groupby(messages, self._decoder.single_star):
            together = self._together if single_star else self._one_by_one
            pieces += together(list(run), tracked, dead)
        return pieces

    def again(self, message: Message, tracked: Tracked) -> Sequence[Photometry]:
        """Read a message that `read` could use, and count nothing."""
        return self._decoder.decode(message, tracked).photometry

    def _read_one(
        self, message: Message, tracked: Tracked, dead: list[DeadLetter]
    ) -> Sequence[Photometry] | None:
        """Read one message; None where it cannot be used."""
        if message.value is None:
            self._metrics.inc("records_tombstone_total")
            return None
        try:
            packet = self._decoder.decode(message, tracked)
        except PoisonMessage as error:
            dead.append(DeadLetter(message, error.reason, error.detail))
            return None
        except BrokerFilterError:
            raise
        except Exception as error:  # noqa: BLE001  ours, but of this message alone
            where = (message.topic, message.partition, message.offset)
            _log.exception("%s[%d] offset %d cannot be decoded", *where, extra=_INTERNAL)
            dead.append(DeadLetter(message, "internal", f"{type(error).__name__}: {error}"))
            return None
        for reason, count in packet.rejected.items():
            self._metrics.inc("points_inserted_total", count, outcome=reason)
        return packet.photometry

    def _one_by_one(
        self, messages: Sequence[Message], tracked: Tracked, dead: list[DeadLetter]
    ) -> Iterator[Piece]:
        for message in messages:
            parts = self._read_one(message, tracked, dead)
            if parts is not None:
                yield Piece((message,), parts)

    def _together(
        self, messages: Sequence[Message], tracked: Tracked, dead: list[DeadLetter]
    ) -> Iterator[Piece]:
        """Read messages of one star each."""
        try:
            groups = list(read_alike([message.value or b"" for message in messages]))
        except Exception:  # noqa: BLE001  of one message perhaps: one by one that one is found
            _log.exception("messages cannot be read together", extra=_INTERNAL)
            groups = []
        left = np.ones(len(messages), bool)
        for rows, _ in groups:
            left[rows] = False
        for i in np.flatnonzero(left).tolist():
            parts = self._read_one(messages[i], tracked, dead) or ()
            groups += [(np.array([i]), part) for part in parts]
        for rows, photometry in _each_star_once(groups, len(messages)):
            yield Piece([messages[i] for i in rows.tolist()], (photometry,))


def _each_star_once(
    groups: Sequence[tuple[IntArray, Photometry]], size: int
) -> Iterator[tuple[IntArray, Photometry]]:
    """Part groups of messages into such as hold each star once, in the order of their messages."""
    names = [photometry.star[:: len(photometry) // len(rows)] for rows, photometry in groups]
    if len(set(chain.from_iterable(names))) == sum(map(len, names)):
        yield from groups
        return
    star: list[StarId | None] = [None] * size
    for (rows, _), some in zip(groups, names, strict=True):
        for row, name in zip(rows.tolist(), some, strict=True):
            star[row] = name
    turn = _turns(star)
    parts = [part for rows, photometry in groups for part in _by_turn(rows, photometry, turn)]
    for _, rows, photometry in sorted(parts, key=lambda part: part[0]):
        yield rows, photometry


def _turns(star: Sequence[StarId | None]) -> IntArray:
    """How many earlier ones are of the same star, for each."""
    seen: dict[StarId | None, int] = {}
    turn = []
    for name in star:
        before = seen.get(name, 0)
        turn.append(before)
        seen[name] = before + 1
    return np.array(turn)


def _by_turn(
    rows: IntArray, photometry: Photometry, turn: IntArray
) -> Iterator[tuple[int, IntArray, Photometry]]:
    """Part one group by the turn of its messages."""
    turns = turn[rows]
    if (turns == turns[0]).all():
        yield int(turns[0]), rows, photometry
        return
    order = np.argsort(turns, kind="stable")
    epochs = len(photometry) // len(rows)
    for part in np.split(order, np.flatnonzero(np.diff(turns[order])) + 1):
        taken = photometry.take((part[:, None] * epochs + np.arange(epochs)).reshape(-1))
        places = {
            one: photometry.coordinates[one] for one in taken.star if one in photometry.coordinates
        }
        yield int(turns[part[0]]), rows[part], replace(taken, coordinates=places)
