"""A filter that ends or freezes at a named point: ``python -m tests.chaos.crash POINT N run ...``.

It is the filter as it is, with one function replaced by one that kills the process the N-th time
that it gets there. What goes wrong between two calls is hit every time this way, where a kill at a
random moment hits it once in a thousand. `SABOTAGE` breaks a guarantee instead, so that what looks
for lost, doubled or changed alerts can be seen to find them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from broker_filter import cli
from broker_filter.kafka.consumer import KafkaSource
from broker_filter.kafka.delivery import AtLeastOnce, Parcel
from broker_filter.kafka.progress import GroupProgress
from broker_filter.kafka.transaction import KafkaTransactions
from broker_filter.schemas import schema_header
from broker_filter.state import store
from broker_filter.state.store import SnapshotStore
from broker_filter.types import Partition

__all__ = ["FLUSHED", "FROZEN", "POINTS", "SABOTAGE"]

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

ALERT = schema_header("alert")
IN_FLIGHT_S = 0.002
"""From the call of a commit to the kill: about the time that a broker takes to answer."""


class _Trap:
    """Ends the process at the n-th passage."""

    def __init__(self, point: str, count: int) -> None:
        self._point, self._left = point, count
        self.alerts = 0
        """How many are in the parcel under way."""

    def passed(self) -> bool:
        """Count a passage; whether it is the one."""
        self._left -= 1
        return self._left == 0

    def spring(self) -> None:
        """Say so in the log, and end or freeze at once."""
        line = {"event": "crash", "point": self._point, "alerts": self.alerts}
        os.write(2, (json.dumps(line) + "\n").encode())
        frozen = self._point == FROZEN
        os.kill(os.getpid(), signal.SIGSTOP if frozen else signal.SIGKILL)

    def with_alerts(self) -> None:
        """Spring where the parcel under way has alerts and its turn has come."""
        if self.alerts and self.passed():
            self.spring()

    def note_parcels(self) -> None:
        """Keep count of the alerts in the parcel under way."""

        def noting(deliver: Callable[..., Any]) -> Callable[..., Any]:
            def delivered(self_: Any, parcel: Parcel, *args: Any, **keys: Any) -> None:
                self.alerts = _alerts_in(parcel)
                deliver(self_, parcel, *args, **keys)

            return delivered

        for kind in (KafkaTransactions, AtLeastOnce):
            _replace(kind, "deliver", noting)


def _alerts_in(parcel: Parcel) -> int:
    return sum(ALERT in message.headers for message in parcel.messages)


def _replace(owner: Any, name: str, wrap: Wrap) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


def _before(call: Callable[[], None]) -> Wrap:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(*args: Any, **keys: Any) -> Any:
            call()
            return function(*args, **keys)

        return replaced

    return wrap


def _after(call: Callable[[], None]) -> Wrap:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(*args: Any, **keys: Any) -> Any:
            result = function(*args, **keys)
            call()
            return result

        return replaced

    return wrap


def flushed(trap: _Trap) -> None:
    """The messages are on the broker, nothing is committed."""
    _replace(KafkaTransactions, "_flush", _after(trap.with_alerts))
    _replace(KafkaSource, "commit", _before(trap.with_alerts))


def committing(trap: _Trap) -> None:
    """The commit is on its way, and its answer not here."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(self: Any, call: Callable[..., Any], *args: Any) -> Any:
            if call.__name__ == "commit_transaction" and trap.alerts and trap.passed():
                threading.Thread(target=function, args=(self, call, *args), daemon=True).start()
                time.sleep(IN_FLIGHT_S)
                trap.spring()
            return function(self, call, *args)

        return replaced

    _replace(KafkaTransactions, "_call", wrap)


def committed(trap: _Trap) -> None:
    """Committed on the broker, and the loop does not know it."""
    _replace(KafkaSource, "confirm", _before(trap.with_alerts))


def unsaved(trap: _Trap) -> None:
    """Committed, and no snapshot of it begun."""
    _replace(SnapshotStore, "write", _before(lambda: trap.spring() if trap.passed() else None))


def half_saved(trap: _Trap) -> None:
    """A snapshot's state is half written."""

    def wrap(write: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(file: Any, state: Any) -> Any:
            if trap.passed():
                _replace(type(file), "write", _after(trap.spring))
            return write(file, state)

        return replaced

    _replace(store, "write_state", wrap)


def unlisted(trap: _Trap) -> None:
    """A snapshot's state is written, its manifest not."""
    spring = _before(lambda: trap.spring() if trap.passed() else None)
    _replace(SnapshotStore, "_write_manifest", spring)


def offsets_first(trap: _Trap) -> None:
    """Sabotage: the offsets are committed, and then the messages are not sent."""

    def deliver(_: AtLeastOnce, parcel: Parcel, source: KafkaSource, *, last: bool = False) -> None:
        trap.alerts = _alerts_in(parcel)
        if parcel.offsets:
            source.commit(parcel.offsets, wait=last or bool(parcel.messages))
        trap.with_alerts()

    AtLeastOnce.deliver = deliver  # type: ignore[method-assign]


def forgetful(_: _Trap) -> None:
    """Sabotage: the topic is not read back, so that the windows are empty after a restart."""

    def before(_: GroupProgress, offsets: Mapping[Partition, int], __: float) -> Any:
        return dict(offsets)

    GroupProgress.before = before  # type: ignore[method-assign]


FLUSHED, FROZEN = "between flush and commit", "frozen between flush and commit"

POINTS: dict[str, Callable[[_Trap], None]] = {
    FLUSHED: flushed,
    "while the commit is under way": committing,
    "between commit and its confirmation": committed,
    "between commit and snapshot": unsaved,
    "in the middle of a snapshot": half_saved,
    "between a snapshot and its manifest": unlisted,
}
SABOTAGE: dict[str, Callable[[_Trap], None]] = {
    "offsets before messages": offsets_first,
    "windows forgotten": forgetful,
}


def main() -> int:
    """Set the trap, and be the filter."""
    point, count, *command = sys.argv[1:]
    trap = _Trap(point, int(count))
    trap.note_parcels()
    ({FROZEN: flushed} | POINTS | SABOTAGE)[point](trap)
    return cli.main(command)


if __name__ == "__main__":
    sys.exit(main())
