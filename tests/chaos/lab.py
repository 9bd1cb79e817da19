"""What all faults share: brokers, the archive, and the way from a disturbed run to a verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from broker_filter.types import Message
from tests.integration.harness import Archive, Filter, Trial, make_archive, settings_of, trial
from tests.integration.outcome import Outcome, Verdict

__all__ = ["EXIT_ERROR", "Case", "Lab", "Result", "Stream", "live", "season", "with_poison"]

Result = tuple[Verdict, str]
"""What was lost, doubled or changed, and what happened."""

Case = Callable[["Lab"], Result]
"""Disturbs one run; raises AssertionError where it does not end as it should."""

SEASON = {"stars": 10, "injected": 9, "seed": 385, "days": 30.0, "every": 4}
"""Nine events; four of them end once their window has moved on."""
BAD_SHARE = 0.01

STREAM_S, SLICE_S = 8.0, 0.1
PATIENCE_S = 600.0
"""For the whole archive to be committed. A machine that is busy with other work takes long, which
is no fault; a filter whose main loop hangs says so after half a minute, and ends.
"""
EXIT_ERROR = 2
POISON = b"\x01\x02\x03 no Avro"


@dataclass
class Lab:
    """One disturbed run: what it streams, where, and the moments at which it is disturbed.

    Parameters
    ----------
    servers : str
        A broker that other runs use too; faults that break brokers start their own.
    archive : Archive
    expected : Outcome
        Of the undisturbed run.
    folder : Path
        For settings, logs and snapshots.
    rng : Random
    """

    servers: str
    archive: Archive
    expected: Outcome
    folder: Path
    rng: random.Random

    @contextmanager
    def trial(
        self, servers: str = "", archive: Archive | None = None, **sections: Any
    ) -> Iterator[tuple[Trial, Stream]]:
        """Topics and group of this run, and its stream."""
        fits = {"certified": self.archive.settings.alert.certified}
        sections = {"dead_letters": {"max_ratio": 10 * BAD_SHARE}, "alert": fits, **sections}
        with trial(
            servers or self.servers,
            archive or self.archive,
            self.folder,
            forks=True,
            **sections,
        ) as run:
            yield run, Stream(run)

    def moments(self, count: int) -> list[float]:
        """Shares of the archive at which to disturb, in order."""
        return sorted(self.rng.uniform(0.05, 0.95) for _ in range(count))

    def dawdle(self) -> None:
        """Wait a little, so that what follows meets the filter at any step of its loop."""
        time.sleep(self.rng.uniform(0, 0.7))

    def end(self, run: Trial, stream: Stream, *filters: Filter) -> Verdict:
        """Stream the rest, wait until all of it is committed, stop in order and compare."""
        stream.to(1)
        run.until_done(PATIENCE_S)
        for filter_ in filters:
            assert filter_.stop() == 0, run.logs()
        return run.verdict(self.expected)

    def end_supervised(self, run: Trial, stream: Stream, member: str) -> tuple[Verdict, int]:
        """Like `end`, for the newest filter, which is started again if it ends with a reason."""
        stream.to(1)
        before = len(run.filters)

        def done() -> bool:
            status = run.filters[-1].process.poll()
            assert status in (None, EXIT_ERROR), f"status {status}: {run.logs()}"
            if status is not None:
                run.start(member)
            return run.committed() == run.archive.ends

        run.until(done, PATIENCE_S)
        return self.end(run, stream, run.filters[-1]), len(run.filters) - before


class Stream:
    """Publishes the archive of a trial at an even pace, piece by piece."""

    def __init__(self, run: Trial) -> None:
        self._run, self._place = run, 0

    @cached_property
    def _step(self) -> int:
        return max(1, round(len(self._run.archive.messages) * SLICE_S / STREAM_S))

    def to(self, share: float, *, at_once: bool = False) -> None:
        """Go on to a share of the archive."""
        last = round(share * len(self._run.archive.messages))
        while self._place < last:
            following = last if at_once else min(last, self._place + self._step)
            self._run.publish(self._place, following)
            self._place = following
            time.sleep(SLICE_S)

    def settled(self) -> None:
        """Wait until the group has committed all that was published."""
        self._run.until(lambda: sum(self._run.committed().values()) == self._place)


def live(run: Trial, filter_: Filter) -> None:
    """Wait until a filter has begun with a partition."""
    run.until(lambda: filter_.logged("restored"))


def season(*, fits: bool = True) -> Archive:
    """Thirty days of which a window sees twenty; one message in a hundred cannot be used."""
    archive = with_poison(make_archive(**SEASON), BAD_SHARE, 0)
    alert = {**archive.settings.alert.model_dump(), "certified": fits}
    return replace(archive, settings=settings_of({"alert": alert}))


def with_poison(archive: Archive, share: float, rows: int) -> Archive:
    """Put unusable messages into the archive: a share of it all through, or rows in its middle."""
    rng, messages = random.Random(1), []  # noqa: S311
    for n, message in enumerate(archive.messages):
        if rows and n == len(archive.messages) // 2:
            bad = [replace(message, value=POISON, partition=i % 4) for i in range(rows)]
            messages += bad
        if rng.random() < share:
            messages.append(replace(message, value=POISON))
        messages.append(message)
    return replace(archive, messages=tuple(numbered(messages)))


def numbered(messages: list[Message]) -> Iterator[Message]:
    """Give messages the offsets that the broker will give them."""
    ends: dict[int, int] = {}
    for message in messages:
        offset = ends.get(message.partition, 0)
        ends[message.partition] = offset + 1
        yield replace(message, offset=offset)
