"""What a reader of committed messages sees of a filter, and how it differs from what it should.

`undisturbed` computes the right outcome of an archive in this process, without Kafka; `compare`
says what another outcome lacks, has twice or has changed: alerts by id, event, state, K, certified
K, posterior samples and light curve, dead letters by message and reason.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from broker_filter.alerts.alert import Alert, CertifiedK
from broker_filter.config import Settings
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.core import Pipeline
from broker_filter.service.assembly import make_assessment, make_intake, open_entry
from broker_filter.state.partition import PartitionState
from broker_filter.types import DeadLetter, Message, Partition

if TYPE_CHECKING:
    from tests.integration.harness import Archive

__all__ = ["Letter", "Outcome", "Verdict", "compare", "one_after_the_other", "undisturbed"]

STEP = 500
"""Messages of one step of the undisturbed run."""

LOG10_K_ERROR = 1e-6
CERTIFIED_ERROR = 1e-3
SAMPLE_ERROR = 1e-3
"""A window's batch mates move its numbers in the last digits, and a restart has other batches."""

Letter = tuple[int, int, str]
"""Partition and offset of a message that could not be used, and the reason."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that came out, in order, each as often as it came."""

    alerts: tuple[Alert, ...] = ()
    letters: tuple[Letter, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.alerts + other.alerts, self.letters + other.letters)

    def __len__(self) -> int:
        return len(self.alerts)

    def events(self, model_id: str | None = None) -> set[uuid.UUID]:
        """Ids of the events of all alerts, or of those of one model."""
        return {a.event_id for a in self.alerts if model_id in (None, a.model_id)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Alerts and dead letters lost, doubled, made up, or other than in the undisturbed run.

    What has changed is named with the fields that differ.
    """

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not (self.lost or self.doubled or self.unknown or self.changed)


def undisturbed(archive: Archive, settings: Settings | None = None) -> Outcome:
    """The outcome of an archive under its settings, or others."""
    return _Run(settings or archive.settings).take(archive.messages)


def one_after_the_other(archive: Archive, stages: Sequence[tuple[int, Settings]]) -> Outcome:
    """The outcome where filters of other settings go on, each up to a place in the archive."""
    outcome, first = Outcome(), 0
    states: dict[Partition, PartitionState] = {}
    for last, settings in stages:
        run = _Run(settings)
        run.restore(states)
        outcome += run.take(archive.messages[first:last])
        first, states = last, run.states()
    return outcome


class _Run:
    """A pipeline and what it gives."""

    def __init__(self, settings: Settings) -> None:
        entry, metrics = open_entry(settings), Metrics()
        self._pipeline = Pipeline(
            make_intake(settings, entry, metrics), make_assessment(settings, entry, metrics)
        )

    def take(self, messages: Sequence[Message]) -> Outcome:
        alerts: list[Alert] = []
        letters: list[DeadLetter] = []
        for first in range(0, len(messages), STEP):
            step = self._pipeline.step(messages[first : first + STEP], first, flush=True)
            alerts += step.alerts
            letters += step.dead_letters
        return Outcome(tuple(alerts), tuple(map(_letter, letters)))

    def states(self) -> dict[Partition, PartitionState]:
        """Copies of all partitions."""
        return self._pipeline.step([], 0, capture=self._pipeline.intake.keys()).captured

    def restore(self, states: dict[Partition, PartitionState]) -> None:
        for key, state in states.items():
            self._pipeline.restore(key, state, state.offsets, state.offsets)


def _letter(letter: DeadLetter) -> Letter:
    return letter.message.partition, letter.message.offset, letter.reason


def compare(expected: Outcome, seen: Outcome) -> Verdict:
    """Compare what was seen with the undisturbed run."""
    wanted, found = _counted(expected), _counted(seen)
    return Verdict(
        lost=sorted(wanted.keys() - found.keys()),
        doubled=sorted(name for name, count in found.items() if count > 1),
        unknown=sorted(found.keys() - wanted.keys()),
        changed=_changed(expected.alerts, seen.alerts),
    )


def _counted(outcome: Outcome) -> Counter[str]:
    names = [str(alert.alert_id) for alert in outcome.alerts]
    return Counter(names + [f"letter {n}[{at}] {why}" for n, at, why in outcome.letters])


def _changed(expected: Iterable[Alert], seen: Iterable[Alert]) -> list[str]:
    wanted = {alert.alert_id: alert for alert in expected}
    return sorted(
        f"{alert.alert_id}: {', '.join(fields)}"
        for alert in seen
        if alert.alert_id in wanted and (fields := differences(wanted[alert.alert_id], alert))
    )


def differences(one: Alert, other: Alert) -> list[str]:
    """Names of the fields in which two alerts of one id differ, beyond rounding."""
    names = ("event_id", "state", "survey", "star_id", "band", "model_id", "model_sha256")
    names += ("n_epochs", "first_epoch_mjd_tai", "last_epoch_mjd_tai", "window_start_mjd_tai")
    differing = [name for name in names if getattr(one, name) != getattr(other, name)]
    checks = {
        "log10_k": abs(one.log10_k - other.log10_k) <= LOG10_K_ERROR,
        "certified": _same_claim(one.certified, other.certified),
        "samples": _close(one.samples, other.samples, SAMPLE_ERROR),
        "light curve": all(
            _close(getattr(one, name), getattr(other, name), 0)
            for name in ("mjd_tai", "flux", "sigma")
        ),
    }
    return differing + [name for name, same in checks.items() if not same]


def _same_claim(one: CertifiedK | None, other: CertifiedK | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.look == other.look and abs(one.log10_k - other.log10_k) <= CERTIFIED_ERROR


def _close(one: np.ndarray, other: np.ndarray, error: float) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, error, error))
