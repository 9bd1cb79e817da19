"""Memory and speed of a long replay: ``python -m tests.bench.bench_replay [--gb 50]``.

Tar files of real ZTF packets that all overlap in time, as many as it takes, are merged by time and
handed to a sink that throws them away. The files are one and the same file under many names, so
that 50 GB need no disk. Prints JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import struct
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import fastavro

from broker_filter.kafka.sink import MemorySink
from broker_filter.replay.event_time import EventTimes
from broker_filter.replay.files import PacketFile
from broker_filter.replay.publish import Archive, publish

TEST_DATA = Path(__file__).parents[3] / "shared" / "data"
PACKET = "alerts/ztf/v4_02_ZTF17aaarzyp_2982177112815010003.avro"
TAR_BYTES = 1 << 30


class Nowhere(MemorySink):
    """A sink that keeps nothing but counts bytes."""

    bytes = 0

    def produce(self, topic, key, value, headers=(), partition=None) -> None:  # noqa: ARG002
        """Count a message."""
        self.bytes += len(value)


def measure(data: Path, gigabytes: float) -> dict[str, float]:
    """Replay so many gigabytes; the highest resident memory is that of the whole process."""
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "0.tar"
        size = _write(first, (data / PACKET).read_bytes(), min(TAR_BYTES, int(gigabytes * 1e9 / 8)))
        count = max(1, round(gigabytes * 1e9 / size))
        for number in range(1, count):
            (first.parent / f"{number}.tar").symlink_to(first)
        times = EventTimes()
        streams = [PacketFile(path, times) for path in sorted(first.parent.glob("*.tar"))]
        sink, began = Nowhere(), time.monotonic()
        report = publish(Archive(streams, print), sink, "t")
        seconds = time.monotonic() - began
    return {
        "files": count,
        "gigabytes": round(sink.bytes / 1e9, 2),
        "packets": report.messages,
        "out of order": report.late,
        "seconds": round(seconds, 1),
        "packets/s": round(report.messages / seconds),
        "peak RSS (MB)": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _write(path: Path, packet: bytes, size: int) -> int:
    """Fill a tar with copies of a packet, 40 s apart."""
    [record] = fastavro.reader(io.BytesIO(packet))
    jd = record["candidate"]["jd"]
    before = struct.pack("<d", jd)
    total = 0
    with tarfile.open(path, "w") as archive:
        for number in range(max(1, size // len(packet))):
            content = packet.replace(before, struct.pack("<d", jd + number * 40 / 86400))
            info = tarfile.TarInfo(f"{number}.avro")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
            total += len(content)
    return total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=50.0)
    parser.add_argument("--data", type=Path, default=TEST_DATA)
    args = parser.parse_args()
    if not (args.data / PACKET).exists():
        sys.exit(f"no real packets at {args.data}: give --data")
    print(json.dumps(measure(args.data, args.gb), indent=1))


if __name__ == "__main__":
    main()
