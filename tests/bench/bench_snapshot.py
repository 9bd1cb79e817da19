"""What a snapshot costs: ``python -m tests.bench.bench_snapshot [--quick]``.

The main loop waits for the copy to be noted; then it keeps what its messages overwrite, which shows
in the first block after it. Writing happens beside it. A restore is the time from the files to a
partition that takes messages again.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np

from broker_filter.decode.decoder import Decoder
from broker_filter.decode.native import encode_block
from broker_filter.observe.metrics import Metrics
from broker_filter.photometry.usable import Limits
from broker_filter.pipeline.batcher import Batcher
from broker_filter.pipeline.intake import Intake
from broker_filter.state.store import SnapshotStore
from broker_filter.types import Message
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.store import WindowStore
from tests.bench.bench_window import CADENCE, START, exposure, names
from tests.bench.figures import Figure, show

TOPIC = "photometry"


def make_intake() -> Intake:
    """A first half that flushes when told to only."""
    return Intake(
        Decoder("photometry_block", max_bytes=1 << 30),
        Limits(),
        Batcher(flush_windows=1 << 60, max_wait_s=1e9),
        WindowStore,
        lambda: Schedule(0.25, 5),
        Metrics(),
    )


def block(stars: int, i: int) -> Message:
    """The ``i``-th epoch of all stars."""
    rng = np.random.default_rng(i)
    value = encode_block(exposure(names(stars), START + i * CADENCE, rng))
    return Message(TOPIC, 0, i, None, value)


def filled(stars: int, epochs: int) -> Intake:
    """A partition of so many stars, each with so many epochs."""
    intake = make_intake()
    for i in range(epochs):
        intake.take([block(stars, i)], 0.0)
        intake.flush()
    return intake


def seconds_to_take(intake: Intake, message: Message) -> float:
    """How long a message takes."""
    began = time.perf_counter()
    intake.take([message], 0.0)
    return time.perf_counter() - began


def measure(*, quick: bool) -> list[Figure]:
    """Seconds and bytes of one snapshot of one partition in a local folder."""
    stars, epochs = (2_000, 50) if quick else (100_000, 500)
    intake, more = filled(stars, epochs), [block(stars, epochs + i) for i in range(2)]
    usual = seconds_to_take(intake, more[0])
    began = time.perf_counter()
    work = intake.flush(capture=[(TOPIC, 0)])
    copied = time.perf_counter() - began
    assert work is not None
    first = seconds_to_take(intake, more[1]) - usual
    with tempfile.TemporaryDirectory() as folder:
        store = SnapshotStore(folder)
        began = time.perf_counter()
        manifest = store.write(work.captured[TOPIC, 0], committed={(TOPIC, 0): epochs + 1})
        written = time.perf_counter() - began
        del intake, work
        began = time.perf_counter()
        _, state = store.load((TOPIC, 0), window_days=20.0, at_most={(TOPIC, 0): epochs + 1})
        loaded = time.perf_counter() - began
    intake = make_intake()
    intake.restore((TOPIC, 0), state, state.offsets, {(TOPIC, 0): epochs + 1})
    restored = time.perf_counter() - began
    case = f"Snapshot of {stars:,} stars with {epochs} points each"
    return [
        Figure("snapshot_blocked", f"{case}: main loop waits", copied, "s"),
        Figure("snapshot_first", f"{case}: first block after it takes longer by", first, "s"),
        Figure("snapshot_written", f"{case}: written", written, "s"),
        Figure("snapshot_read", f"{case}: read", loaded, "s"),
        Figure("snapshot_restored", f"{case}: read and restored", restored, "s"),
        Figure("snapshot_size", f"{case}: size", manifest.bytes / 1e6, "MB"),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small size, a second")
    show(measure(quick=parser.parse_args().quick))


if __name__ == "__main__":
    main()
