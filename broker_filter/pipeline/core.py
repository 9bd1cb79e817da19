"""The pure core: messages in, alerts, dead letters and committable offsets out.

No Kafka, no files, no threads, no clock: time comes in as an argument. It has two halves, so that a
service may run them in two threads, the second with a pool for the stars that alert::

    `Intake`      decode -> photometry -> window -> batch          owns the windows
    `Assessment`  evidence -> life cycle -> posterior -> alert     owns the events

`Pipeline` runs one after the other; tests and the replay of small archives use it as it is.

State is kept by partition, or for topics of one pattern by the pattern and the number, so that a
star whose messages are in several of them is one star. It is one state only together:
`Intake.flush` copies windows and schedule at the one moment when no window waits to be looked at,
the copy travels with the work, and `Assessment.assess` adds the events as they are after it. A
partition restored at an offset below the committed one is *silent* up to the latter: its messages
move windows and events on as they did, and give no alert, no dead letter and no offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from broker_filter.pipeline.assessment import Assessment, Outputs
from broker_filter.pipeline.intake import Intake
from broker_filter.state.partition import PartitionState
from broker_filter.types import Message, Partition, StateKey

__all__ = ["Pipeline"]


class Pipeline:
    """Both halves in one thread.

    Parameters
    ----------
    intake, assessment
        The two halves.
    """

    def __init__(self, intake: Intake, assessment: Assessment) -> None:
        self.intake, self.assessment = intake, assessment

    def step(
        self,
        messages: Sequence[Message],
        now: float,
        *,
        flush: bool = False,
        capture: Collection[StateKey] = (),
    ) -> Outputs:
        """Take messages and evaluate what is due, or everything with ``flush`` or ``capture``."""
        dead = self.intake.take(messages, now)
        must = flush or bool(capture) or self.intake.due(now)
        work = self.intake.flush(capture) if must else None
        if work is None:
            return Outputs(dead_letters=dead)
        return replace(self.assessment.assess(work, round(1000 * now)), dead_letters=dead)

    def restore(
        self,
        key: StateKey,
        state: PartitionState | None,
        offsets: Mapping[Partition, int],
        live_from: Mapping[Partition, int],
    ) -> None:
        """Begin partitions in both halves; see `Intake.restore`."""
        self.intake.restore(key, state, offsets, live_from)
        self.assessment.restore(key, state)
