"""The pure core: replays agree, however the stream is cut, and offsets never run ahead."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.alert import Alert, Provenance
from broker_filter.batcher import Batcher
from broker_filter.decode import Decoder
from broker_filter.observe import Metrics
from broker_filter.photometry import Limits
from broker_filter.pipeline import Assessment, AssessmentOptions, Intake, Outputs, Pipeline
from broker_filter.schedule import Schedule
from broker_filter.scorer import Scored
from broker_filter.surveys.native import encode_photometry
from broker_filter.types import Message, Photometry, WindowBatch
from broker_filter.window import WindowStore

THRESHOLD = 3.0
PEAK = 60_025.0


@dataclass
class PeakScorer:
    """Stands in for the network: log10 K and peak come from the most significant epoch."""

    epochs_seen: list[int] = field(default_factory=list)

    def score(self, batch: WindowBatch) -> Scored:
        self.epochs_seen += batch.n.tolist()
        with np.errstate(divide="ignore", invalid="ignore"):
            excess = np.where(batch.valid, (batch.flux - 1) / batch.sigma, -np.inf)
        t0 = batch.mjd_tai[np.arange(len(batch)), excess.argmax(1)] - batch.t_start
        summary: Any = t0
        return Scored(excess.max(1).astype(float) / 2 - 2, summary)

    def posterior(self, scored: Scored, row: int, samples: int, seed: int) -> Any:
        middle = np.array([float(scored.summary[row]), 0.3, 0.0, -1.0, 0.8])
        noise = np.random.default_rng(seed).normal(0, 0.01, (samples, 5))
        return (middle + noise).astype(np.float32)


def point_lens(u: Any, _: Any) -> Any:
    return (u**2 + 2) / (u * np.sqrt(u**2 + 4))


def make_pipeline(
    scorer: PeakScorer | None = None, every_days: float = 0.5, min_points: int = 5
) -> Pipeline:
    stub: Any = scorer or PeakScorer()
    metrics = Metrics()
    intake = Intake(
        Decoder("photometry"),
        Limits(),
        Batcher(flush_windows=1_000_000, max_wait_s=2.0),
        WindowStore,
        lambda: Schedule(every_days, min_points),
        metrics,
    )
    options = AssessmentOptions(THRESHOLD, prior_odds=1e-6, samples=20)
    provenance = Provenance("peak-test-0.0.1", "0" * 64, "0", 20.0)
    return Pipeline(intake, Assessment(stub, options, point_lens, provenance, metrics))


def epoch(
    offset: int,
    mjd: float,
    flux: float = 1000.0,
    star: str = "s",
    source: str = "a",
    band: str = "r",
) -> Message:
    one = np.ones(1)
    photometry = Photometry(
        survey="test",
        band=band,
        source=source,
        star=[star],
        mjd_tai=mjd * one,
        flux=flux * one,
        flux_err=10 * one,
        flags=np.zeros(1, np.uint32),
        ref_flux=1000 * one,
        ref_flux_err=one,
    )
    return Message("epochs", 0, offset, None, encode_photometry(photometry))


def make_stream(days: float = 55.0) -> list[Message]:
    """Two stars, one of them lensed and seen by two sources and in two bands."""
    rng = np.random.default_rng(1)
    messages: list[Message] = []
    for mjd in np.arange(60_000, 60_000 + days, 0.4):
        bump = 600 * np.exp(-0.5 * (mjd - PEAK) ** 2)
        for star, source, band, signal in (
            ("lensed", "a", "r", bump),
            ("quiet", "a", "r", 0.0),
            ("lensed", "b", "r", bump),
            ("lensed", "a", "g", bump),
        ):
            flux = 1000 + signal + 10 * rng.standard_normal()
            mjd += 0.001
            messages.append(epoch(len(messages), mjd, flux, star, source, band))
    return messages


STREAM = make_stream()


def run(stream: Sequence[Message], cuts: Sequence[int] = (), *, flush: bool = True) -> list[Alert]:
    """Alerts of a new pipeline, the stream cut into polls before the given messages."""
    pipeline, alerts = make_pipeline(), []
    edges = [0, *sorted(cuts), len(stream)]
    for first, last in itertools.pairwise(edges):
        alerts += pipeline.step(stream[first:last], 0.0, flush=flush).alerts
    return alerts + pipeline.step([], 0.0, flush=True).alerts


def told(alerts: Sequence[Alert]) -> list[tuple[Any, ...]]:
    """What an alert says of the sky; in the order of its ids."""
    said = [
        (str(a.alert_id), str(a.event_id), a.state, a.log10_k, a.samples.tobytes()) for a in alerts
    ]
    assert len({entry[0] for entry in said}) == len(said)
    return sorted(said)


@pytest.fixture(scope="module")
def alerts() -> list[Alert]:
    return run(STREAM)


def test_a_replay_gives_the_same_alerts(alerts: list[Alert]) -> None:
    assert told(run(STREAM)) == told(alerts)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=60), st.booleans())
def test_how_polls_and_flushes_cut_the_stream_changes_nothing(
    alerts: list[Alert], cuts: list[int], flush: bool
) -> None:
    assert told(run(STREAM, cuts, flush=flush)) == told(alerts)


def test_an_event_opens_grows_and_ends_in_each_band(alerts: list[Alert]) -> None:
    assert {alert.star_id for alert in alerts} == {"lensed"}
    for band in "rg":
        life = [alert for alert in alerts if alert.band == band]
        states = [alert.state for alert in life]
        assert states[0] == "new"
        assert states[-1] == "final"
        assert set(states[1:-1]) == {"update"}
        assert len({alert.event_id for alert in life}) == 1
        assert life[0].last_epoch_mjd_tai < PEAK
        assert life[-2].t0_mjd_tai == pytest.approx(PEAK, abs=1.0)
        # The final comes once the peak lies in the oldest quarter of the window or before it.
        assert life[-1].last_epoch_mjd_tai > PEAK + 10


def test_epochs_of_one_star_in_one_poll_are_looked_at_in_turn() -> None:
    scorer = PeakScorer()
    pipeline = make_pipeline(scorer, every_days=0, min_points=3)
    pipeline.step([epoch(i, 60_000 + i) for i in range(6)], 0.0, flush=True)
    assert scorer.epochs_seen == [3, 4, 5, 6]


def test_a_flash_within_one_poll_is_not_missed() -> None:
    flux = [1000.0] * 5 + [1500.0] + [1000.0] * 5
    stream = [epoch(i, 60_000 + i, f) for i, f in enumerate(flux)]
    pipeline = make_pipeline(every_days=0)
    first = pipeline.step(stream, 0.0, flush=True).alerts[0]
    assert (first.state, first.last_epoch_mjd_tai) == ("new", 60_005.0)


def test_an_offset_comes_out_with_all_alerts_of_the_messages_before_it() -> None:
    rng = np.random.default_rng(3)
    pipeline, seen, first = make_pipeline(), [], 0
    while first < len(STREAM):
        last = first + int(rng.integers(1, 60))
        outputs = pipeline.step(STREAM[first:last], 0.0, flush=bool(rng.random() < 0.2))
        seen += outputs.alerts
        first = last
        for offset in outputs.offsets.values():
            assert told(seen) == told(run(STREAM[:offset]))


def test_no_offset_comes_out_before_its_windows_are_evaluated() -> None:
    pipeline = make_pipeline()
    waiting = pipeline.step(STREAM[:40], 10.0)
    assert (waiting.alerts, waiting.offsets) == ([], {})
    assert pipeline.step([], 11.9).offsets == {}
    assert pipeline.step([], 12.0).offsets == {("epochs", 0): 40}


def test_offsets_of_each_partition_are_told() -> None:
    messages = [Message("epochs", 7 - p, 5, None, STREAM[p].value) for p in range(3)]
    outputs = make_pipeline().step(messages, 0.0, flush=True)
    assert outputs.offsets == {("epochs", 7): 6, ("epochs", 6): 6, ("epochs", 5): 6}


def test_a_poll_without_anything_usable_moves_offsets_too() -> None:
    pipeline = make_pipeline()
    outputs: Outputs = pipeline.step([Message("epochs", 0, i, None, b"?") for i in range(3)], 0.0)
    assert [letter.message.offset for letter in outputs.dead_letters] == [0, 1, 2]
    assert outputs.offsets == {}
    assert pipeline.step([], 2.0).offsets == {("epochs", 0): 3}


def test_bad_messages_do_not_disturb_the_good_ones(alerts: list[Alert]) -> None:
    stream = [Message("epochs", 0, i, None, b"?") for i in range(5)]
    for message in STREAM:
        stream += [message, Message("epochs", 0, message.offset, None, message.value[:-1] or b"")]  # type: ignore[index]
    assert told(run(stream, range(0, len(stream), 37))) == told(alerts)


def test_partitions_dropped_begin_anew() -> None:
    scorer = PeakScorer()
    pipeline = make_pipeline(scorer, every_days=0, min_points=1)
    pipeline.step([epoch(0, 60_000)], 0.0, flush=True)
    pipeline.intake.drop([("epochs", 0)])
    pipeline.step([epoch(1, 60_001)], 0.0, flush=True)
    assert scorer.epochs_seen == [1, 1]
