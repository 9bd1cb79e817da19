"""What is written beside a snapshot: what it holds, and how to know that it is whole."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from broker_filter.schemas import software_version
from broker_filter.state.partition import SCHEMA, PartitionState, SnapshotError
from broker_filter.types import Partition

__all__ = [
    "FORMAT",
    "MAX_MANIFEST_BYTES",
    "Manifest",
    "describe",
    "manifest_from_json",
    "manifest_to_json",
]

FORMAT: Final = 2
"""Version of the manifest and of how objects are named."""
ONE_TOPIC: Final = 1
"""Its version before topics could share a state; read as well."""

MAX_MANIFEST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a snapshot holds, and how to know that it is whole.

    Parameters
    ----------
    topic, partition
        Of its state; in place of the topic the pattern of several.
    offsets : mapping of str to int
        Next input offset of the state, by topic.
    committed : mapping of str to int
        The group's offsets when it was written; not below ``offsets``.
    schema : int
        Version of the state's columns.
    model_id, software : str
        What made it.
    window_days : float, days
    created : float, seconds
        Unix time.
    newest_mjd_tai : float or None
        Newest epoch of any window, MJD TAI.
    windows, points : int
        How many it holds.
    bytes : int
    sha256 : str
        Length and hash of the state's object.
    """

    topic: str
    partition: int
    offsets: Mapping[str, int]
    committed: Mapping[str, int]
    schema: int
    model_id: str
    software: str
    window_days: float
    created: float
    newest_mjd_tai: float | None
    windows: int
    points: int
    bytes: int
    sha256: str

    @property
    def offset(self) -> int:
        """How far the state has come: the sum of its offsets."""
        return sum(self.offsets.values())


def describe(
    state: PartitionState,
    committed: Mapping[Partition, int],
    created: float,
    size: int,
    sha256: str,
) -> Manifest:
    """The manifest of a state that was written as ``size`` bytes of that hash."""
    newest = state.newest_mjd
    return Manifest(
        *state.key,
        offsets=_by_topic(state.offsets),
        committed=_by_topic(committed),
        schema=SCHEMA,
        model_id=state.model_id,
        software=software_version(),
        window_days=state.window_days,
        created=created,
        newest_mjd_tai=newest if math.isfinite(newest) else None,
        windows=len(state),
        points=state.points,
        bytes=size,
        sha256=sha256,
    )


def manifest_to_json(manifest: Manifest) -> bytes:
    """JSON that holds the hash of its own content, so that it cannot change unnoticed."""
    content = {"format": FORMAT, **asdict(manifest)}
    return json.dumps({**content, "seal": _seal(content)}, indent=1).encode()


def manifest_from_json(text: bytes) -> Manifest:
    """Read what `manifest_to_json` wrote.

    Raises
    ------
    SnapshotError
        ``damaged``, or ``version`` where it is of another format.
    """
    if len(text) > MAX_MANIFEST_BYTES:
        raise SnapshotError("damaged", f"longer than {MAX_MANIFEST_BYTES} bytes")
    try:
        content = json.loads(text)
        seal = content.pop("seal")
        if seal != _seal(content):
            raise SnapshotError("damaged", "not as it was written")
        written_as = content.pop("format")
        if written_as == ONE_TOPIC:
            content["offsets"] = {content["topic"]: content.pop("offset")}
            content["committed"] = {content["topic"]: content["committed"]}
        elif written_as != FORMAT:
            raise SnapshotError("version", f"its format is {written_as}, ours {FORMAT}")
        return Manifest(**content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError("damaged", repr(error)) from error


def _by_topic(offsets: Mapping[Partition, int]) -> dict[str, int]:
    return {topic: offset for (topic, _), offset in offsets.items()}


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
