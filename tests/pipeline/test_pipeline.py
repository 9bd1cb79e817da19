"""The pure core: replays agree, however the stream is cut, and offsets never run ahead."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.build import Provenance
from broker_filter.alerts.threshold import Discovery, Rule
from broker_filter.decode.decoder import Decoder
from broker_filter.decode.selection import Packet
from broker_filter.errors import StateError
from broker_filter.inference.scorer import Scored
from broker_filter.observe.metrics import Metrics
from broker_filter.photometry.usable import Limits
from broker_filter.pipeline.assessment import Assessment, Outputs
from broker_filter.pipeline.batcher import Batcher
from broker_filter.pipeline.by_star import EachStar
from broker_filter.pipeline.core import Pipeline
from broker_filter.pipeline.intake import Intake
from broker_filter.pipeline.options import AssessmentOptions
from broker_filter.state.columns import arrays_of
from broker_filter.state.partition import PartitionState, SnapshotError, read_state, write_state
from broker_filter.types import (
    DeadLetter,
    Fit,
    KeyOf,
    Message,
    NotFitted,
    SourceFit,
    StarEpochs,
    WindowBatch,
)
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.store import WindowStore
from tests import build

THRESHOLD = 3.0
PEAK = 60_025.0


@dataclass
class PeakScorer:
    """Stands in for the network: log10 K and peak come from the most significant epoch."""

    epochs_seen: list[int] = field(default_factory=list)
    fitted_whole: list[int] = field(default_factory=list)

    def warm_up(self) -> None: ...

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

    def log10_k_lookalikes(self, scored: Scored, row: int) -> float:
        return float(scored.log10_k[row]) / 2

    def fit(
        self,
        epochs: StarEpochs,
        t_start: float,
        scored: Scored,
        row: int,
        seed: int,
        *,
        samples: int,
        whole_event: bool = False,
    ) -> Any:
        if whole_event:
            self.fitted_whole.append(len(epochs))
        drawn = self.posterior(scored, row, samples, seed)
        best = drawn.mean(0).astype(np.float64)
        sources = tuple(SourceFit(*name, 1, 0.8, 1.0, 1.0) for name in epochs.sources)
        shares = np.full((samples, len(sources)), 0.8, np.float32)
        size, log10_k = 50.0 + seed % 7, float(scored.log10_k[row]) - 0.5
        figures = (log10_k, 0.1, size, False, "a stand-in", best, 1.0, 1, 0.5, 0.0)
        return Fit(t_start, drawn, sources, shares, *figures)


def point_lens(u: Any, _: Any) -> Any:
    return (u**2 + 2) / (u * np.sqrt(u**2 + 4))


def make_pipeline(
    scorer: PeakScorer | None = None,
    every_days: float = 0.5,
    min_points: int = 5,
    *,
    metrics: Metrics | None = None,
    model_id: str = "peak-test-0.0.1",
    options: AssessmentOptions | None = None,
    key_of: KeyOf = lambda where: where,
    max_stars: int | None = None,
    surveys: dict[str, Provenance] | None = None,
    joined: bool = False,
    each_star: EachStar = map,
) -> Pipeline:
    stub: Any = scorer or PeakScorer()
    metrics = metrics or Metrics()
    intake = Intake(
        Decoder("photometry"),
        Limits(),
        Batcher(flush_windows=1_000_000, max_wait_s=2.0),
        lambda: WindowStore(max_stars=max_stars, joined=joined),
        lambda: Schedule(every_days, min_points),
        metrics,
        key_of,
    )
    options = options or AssessmentOptions(Rule(THRESHOLD), prior_odds=1e-6, samples=20)
    provenance = Provenance(model_id, "0" * 64, "0", 20.0)
    assessment = Assessment(stub, options, point_lens, provenance, metrics, surveys, each_star)
    return Pipeline(intake, assessment)


def epoch(
    offset: int,
    mjd: float,
    flux: float = 1000.0,
    star: str = "s",
    source: str = "a",
    band: str = "r",
) -> Message:
    changes = {"source": source, "band": band, "ref_flux": 1000.0, "ref_flux_err": 1.0}
    return build.message(build.photometry(mjd, star, flux=flux, **changes), offset)


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
TIMES = np.arange(PEAK - 10, PEAK + 3, 0.4).tolist()


def run(stream: Sequence[Message], cuts: Sequence[int] = (), *, flush: bool = True) -> list[Alert]:
    """Alerts of a new pipeline, the stream cut into polls before the given messages."""
    pipeline, alerts = make_pipeline(), []
    edges = [0, *sorted(cuts), len(stream)]
    for first, last in itertools.pairwise(edges):
        alerts += pipeline.step(stream[first:last], 0.0, flush=flush).alerts
    return alerts + pipeline.step([], 0.0, flush=True).alerts


def contents(alerts: Sequence[Alert]) -> list[tuple[Any, ...]]:
    """What alerts say of the sky, in the order of their ids."""
    entries = [
        (str(a.alert_id), str(a.event_id), a.state, a.log10_k, a.samples.tobytes()) for a in alerts
    ]
    assert len({entry[0] for entry in entries}) == len(entries)
    return sorted(entries)


@pytest.fixture(scope="module")
def alerts() -> list[Alert]:
    return run(STREAM)


def test_a_replay_gives_the_same_alerts(alerts: list[Alert]) -> None:
    assert contents(run(STREAM)) == contents(alerts)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=60), st.booleans())
def test_how_polls_and_flushes_cut_the_stream_changes_nothing(
    alerts: list[Alert], cuts: list[int], flush: bool
) -> None:
    assert contents(run(STREAM, cuts, flush=flush)) == contents(alerts)


def last_first(take_up: Any, stars: Iterable[Any]) -> list[Any]:
    """As `map`, of the last star first."""
    return [take_up(star) for star in reversed(list(stars))]


def test_in_which_order_stars_are_taken_up_changes_nothing(alerts: list[Alert]) -> None:
    found = make_pipeline(each_star=last_first).step(STREAM, 0.0, flush=True).alerts
    ids = [str(alert.alert_id) for alert in alerts]
    assert [str(alert.alert_id) for alert in found] == ids
    assert contents(found) == contents(alerts)


def test_a_false_discovery_rate_counts_events_in_the_order_of_their_windows() -> None:
    """In another order another event would be the first, which needs more."""
    rule = Rule(3.0, trigger=1.0, discovery=Discovery(0.1, 1000))
    options = AssessmentOptions(rule, prior_odds=1e-6, samples=20)
    forward, backward = (
        make_pipeline(options=options, each_star=each_star).step(STREAM, 0.0, flush=True).alerts
        for each_star in (map, last_first)
    )
    thresholds = [alert.log10_k_threshold for alert in forward if alert.state == "new"]
    assert thresholds[0] > thresholds[1]
    assert contents(backward) == contents(forward)
    assert [a.log10_k_threshold for a in backward] == [a.log10_k_threshold for a in forward]


def test_an_alert_names_the_model_of_its_survey_and_what_its_second_head_found() -> None:
    own = Provenance("own-test-0.0.1", "1" * 64, "0", 20.0)
    survey = build.photometry(60_000.0).survey
    for name, model_id in ((survey, "own-test-0.0.1"), ("another", "peak-test-0.0.1")):
        pipeline = make_pipeline(surveys={name.lower(): own})
        alert = pipeline.step(STREAM, 0.0, flush=True).alerts[0]
        assert alert.model_id == model_id
        assert alert.log10_k_lookalikes is not None


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
            assert contents(seen) == contents(run(STREAM[:offset]))


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
    assert contents(run(stream, range(0, len(stream), 37))) == contents(alerts)


def test_partitions_dropped_begin_anew() -> None:
    scorer = PeakScorer()
    pipeline = make_pipeline(scorer, every_days=0, min_points=1)
    pipeline.step([epoch(0, 60_000)], 0.0, flush=True)
    pipeline.intake.drop([("epochs", 0)])
    pipeline.step([epoch(1, 60_001)], 0.0, flush=True)
    assert scorer.epochs_seen == [1, 1]


# State: a partition goes on from a snapshot as if nothing had happened.

WHERE = ("epochs", 0)


def cut_up(
    pipeline: Pipeline, stream: Sequence[Message], cuts: Sequence[int] = ()
) -> tuple[list[Alert], list[DeadLetter], list[int], PartitionState]:
    """Alerts, dead letters, offsets and the last state of a pipeline that takes a stream."""
    alerts: list[Alert] = []
    dead: list[DeadLetter] = []
    offsets: list[int] = []
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for first, last in itertools.pairwise(edges):
        outputs = pipeline.step(stream[first:last], 0.0, flush=last % 2 == 0)
        alerts += outputs.alerts
        dead += outputs.dead_letters
        offsets += outputs.offsets.values()
    outputs = pipeline.step([], 0.0, capture=[WHERE])
    offsets += outputs.offsets.values()
    return alerts + outputs.alerts, dead, offsets, outputs.captured[WHERE]


def resume(pipeline: Pipeline, state: PartitionState | None, live_from: int) -> None:
    offsets = {WHERE: 0} if state is None else state.offsets
    pipeline.restore(WHERE, state, offsets, {WHERE: live_from})


def through_bytes(state: PartitionState) -> PartitionState:
    file = io.BytesIO()
    write_state(file, state)
    return read_state(io.BytesIO(file.getvalue()), len(file.getvalue()))


def held(state: PartitionState) -> dict[str, bytes]:
    """All that a state holds, bit for bit."""
    columns = {name: column.tobytes() for name, column in arrays_of(state.columns).items()}
    return columns | {"": repr((state.key, state.offsets, state.model_id)).encode()}


@pytest.fixture(scope="module")
def end_state() -> PartitionState:
    return cut_up(make_pipeline(), STREAM)[3]


moments = st.integers(1, len(STREAM))
polls = st.lists(st.integers(0, len(STREAM)), max_size=20)


@settings(max_examples=8, deadline=None)
@given(moments, polls)
def test_a_restored_partition_goes_on_as_if_nothing_had_happened(
    alerts: list[Alert], end_state: PartitionState, moment: int, cuts: list[int]
) -> None:
    before, _, _, state = cut_up(make_pipeline(), STREAM[:moment], cuts)
    pipeline = make_pipeline()
    resume(pipeline, through_bytes(state), moment)
    after, _, _, end = cut_up(pipeline, STREAM[moment:], cuts)
    assert contents(before + after) == contents(alerts)
    assert held(end) == held(end_state)


@settings(max_examples=8, deadline=None)
@given(moments, moments, polls)
def test_what_was_sent_before_is_replayed_in_silence(
    alerts: list[Alert], end_state: PartitionState, one: int, two: int, cuts: list[int]
) -> None:
    moment, committed = sorted((one, two))
    state = cut_up(make_pipeline(), STREAM[:moment])[3]
    sent_before = run(STREAM[:committed])
    pipeline = make_pipeline()
    resume(pipeline, through_bytes(state), committed)
    after, _, offsets, end = cut_up(pipeline, STREAM[moment:], cuts)
    assert contents(sent_before + after) == contents(alerts)
    assert held(end) == held(end_state)
    assert all(offset > committed for offset in offsets)


def test_a_silent_stretch_gives_nothing_at_all() -> None:
    bad = [Message("epochs", 0, m.offset, None, b"?") if m.offset % 10 == 3 else m for m in STREAM]
    state = cut_up(make_pipeline(), bad[:50])[3]
    metrics = Metrics()
    pipeline = make_pipeline(metrics=metrics)
    resume(pipeline, state, len(STREAM) - 4)
    alerts, dead, offsets, _ = cut_up(pipeline, bad[50:-4], range(0, len(bad), 7))
    assert (alerts, dead, offsets) == ([], [], [])
    assert metrics.total("records_dead_total") == 0
    assert len(run(STREAM[:-4])) > 0
    live = pipeline.step([Message("epochs", 0, len(STREAM) - 4, None, b"?")], 0.0, flush=True)
    assert [letter.message.offset for letter in live.dead_letters] == [len(STREAM) - 4]
    assert live.offsets == {WHERE: len(STREAM) - 3}


def test_a_replay_from_nothing_is_silent_up_to_the_committed_offset(alerts: list[Alert]) -> None:
    committed = 300
    pipeline = make_pipeline()
    resume(pipeline, None, committed)
    assert contents(run(STREAM[:committed]) + cut_up(pipeline, STREAM)[0]) == contents(alerts)


def test_a_restore_ends_when_the_committed_offset_is_reached() -> None:
    metrics = Metrics()
    pipeline = make_pipeline(metrics=metrics)
    pipeline.intake.restore(WHERE, None, {WHERE: 0}, {WHERE: 4}, 100.0)
    pipeline.step(STREAM[:3], 101.0)
    assert pipeline.intake.replaying() == {WHERE: 4}
    assert metrics.value("restore_seconds") == 0
    pipeline.step(STREAM[3:4], 102.0)
    assert pipeline.intake.replaying() == {}
    assert metrics.value("restore_seconds") == 1


def test_a_restore_ends_where_the_last_offsets_hold_no_message() -> None:
    pipeline = make_pipeline()
    pipeline.intake.restore(WHERE, None, {WHERE: 0}, {WHERE: 4})
    pipeline.step(STREAM[:3], 0.0)
    pipeline.intake.live(WHERE)
    assert pipeline.intake.replaying() == {}
    assert cut_up(pipeline, [])[3].offset == 4


def test_a_state_holds_what_was_due_and_not_yet_evaluated(alerts: list[Alert]) -> None:
    waiting = make_pipeline()
    assert waiting.step(STREAM[:200], 0.0).alerts == []
    outputs = waiting.step([], 0.0, capture=[WHERE])
    pipeline = make_pipeline()
    resume(pipeline, outputs.captured[WHERE], 200)
    assert contents(outputs.alerts + cut_up(pipeline, STREAM[200:])[0]) == contents(alerts)


def test_a_state_is_a_copy_that_later_messages_do_not_change() -> None:
    pipeline = make_pipeline()
    state = cut_up(pipeline, STREAM[:300])[3]
    cut_up(pipeline, STREAM[300:])
    assert held(state) == held(cut_up(make_pipeline(), STREAM[:300])[3])


def test_messages_read_again_do_not_move_a_state_back() -> None:
    pipeline = make_pipeline()
    cut_up(pipeline, STREAM[:100])
    assert cut_up(pipeline, STREAM[50:60])[3].offset == 100


def test_partitions_have_states_of_their_own(alerts: list[Alert]) -> None:
    other = [replace(message, partition=1) for message in STREAM]
    both = [message for pair in zip(STREAM, other, strict=True) for message in pair]
    pipeline = make_pipeline()
    first = pipeline.step(both[:500], 0.0, flush=True).alerts
    outputs = pipeline.step([], 0.0, capture=[("epochs", 1), ("epochs", 9)])
    assert list(outputs.captured) == [("epochs", 1)]
    pipeline.intake.drop([WHERE])
    pipeline.assessment.drop([WHERE])
    assert pipeline.intake.keys() == [("epochs", 1)]
    rest = pipeline.step(other[250:], 0.0, flush=True).alerts
    once = {str(alert.alert_id): alert for alert in first + outputs.alerts + rest}
    assert contents(list(once.values())) == contents(alerts)


def test_what_waits_of_a_partition_that_went_is_not_evaluated() -> None:
    scorer = PeakScorer()
    pipeline = make_pipeline(scorer, every_days=0, min_points=1)
    pipeline.intake.take([epoch(0, 60_000), replace(epoch(5, 60_000), partition=1)], 0.0)
    pipeline.intake.drop([WHERE])
    outputs = pipeline.step([], 0.0, flush=True)
    assert scorer.epochs_seen == [1]
    assert outputs.offsets == {("epochs", 1): 6}


def test_an_event_of_another_model_keeps_its_id(alerts: list[Alert]) -> None:
    state = cut_up(make_pipeline(), STREAM[:255])[3]
    pipeline = make_pipeline(model_id="peak-test-0.0.2")
    resume(pipeline, state, 255)
    after = cut_up(pipeline, STREAM[255:])[0]
    assert {alert.model_id for alert in after} == {"peak-test-0.0.2"}
    assert {alert.event_id for alert in after} == {alert.event_id for alert in alerts}
    assert {alert.state for alert in after} == {"update", "final"}


def test_windows_of_another_length_are_not_restored() -> None:
    state = replace(cut_up(make_pipeline(), STREAM[:50])[3], window_days=10.0)
    pipeline = make_pipeline()
    with pytest.raises(SnapshotError, match="10 days") as caught:
        resume(pipeline, state, 50)
    assert caught.value.reason == "window"
    assert pipeline.intake.keys() == []


@pytest.mark.parametrize(
    "lost",
    [
        *("window/count", "window/time", "window/star.length", "window/track.mean"),
        *("schedule/last", "event/t0", "event/star"),
    ],
)
def test_a_state_that_contradicts_itself_is_not_restored(lost: str) -> None:
    state = cut_up(make_pipeline(), STREAM[:250])[3]
    columns = arrays_of(state.columns)
    for broken in (columns[lost][:-1], np.r_[columns[lost], columns[lost][:1]], None):
        rest = {name: column for name, column in columns.items() if name != lost}
        changed = rest if broken is None else {**rest, lost: broken}
        with pytest.raises(StateError):
            resume(make_pipeline(), replace(state, columns=changed), 250)


def test_certified_k_decides_where_it_is_asked_to(alerts: list[Alert]) -> None:
    """The stand-in's certificate is half a dex below its network, and looks are charged."""
    options = AssessmentOptions(Rule(THRESHOLD, trigger=1.0), prior_odds=1e-6, samples=20)
    decided = make_pipeline(options=options).step(STREAM, 0.0, flush=True).alerts
    first, late = (min(a.mjd_tai[-1] for a in found) for found in (alerts, decided))
    assert first <= late
    new = [alert for alert in decided if alert.state == "new"]
    assert new
    for alert in new:
        assert alert.certified is not None
        look = alert.certified.look
        assert alert.certified.log10_k - np.log10(look * (look + 1)) >= THRESHOLD


def test_every_alert_of_an_event_carries_a_certificate(alerts: list[Alert]) -> None:
    assert {alert.state for alert in alerts} >= {"new", "update", "final"}
    for alert in alerts:
        # A final has the best one of its event; nothing is certified of what is taken back.
        assert (alert.certified is not None) == (alert.state != "retraction")
        assert (alert.fit is not None) == (alert.state != "retraction")


def test_without_certificates_the_alerts_are_the_same(alerts: list[Alert]) -> None:
    options = AssessmentOptions(Rule(THRESHOLD), prior_odds=1e-6, samples=20, certified=False)
    found = make_pipeline(options=options).step(STREAM, 0.0, flush=True).alerts
    assert [alert.alert_id for alert in found] == [alert.alert_id for alert in alerts]
    assert all(alert.certified is None for alert in found)


def test_alerts_name_the_deciding_band_and_what_the_others_say() -> None:
    alerts = [alert for alert in run(STREAM) if alert.star_id == "lensed"]
    assert {alert.band for alert in alerts} == {"g", "r"}
    for alert in alerts:
        (other,) = alert.other_bands
        assert {alert.band, other.band} == {"g", "r"}
        assert alert.last_epoch_mjd_tai - 0.5 < other.last_epoch_mjd_tai
        assert other.last_epoch_mjd_tai <= alert.last_epoch_mjd_tai + 0.5
    # While the event lasts both bands see it.
    assert max(alert.other_bands[0].log10_k for alert in alerts) > THRESHOLD


def test_an_alert_shows_and_fits_the_whole_event_in_all_bands() -> None:
    scorer = PeakScorer()
    messages: list[Message] = []
    for mjd in np.arange(60_000, 60_070, 0.5):
        flux = 1000 + 300 * np.exp(-0.5 * ((mjd - 60_030) / 9) ** 2)
        messages.append(epoch(len(messages), mjd, flux))
        messages.append(epoch(len(messages), mjd + 0.01, flux, band="g"))
    found = make_pipeline(scorer).step(messages, 0.0, flush=True).alerts
    last = [alert for alert in found if alert.band == "r"][-1]
    first = next(alert for alert in found if alert.band == "r")
    # The window has moved past the start of the event, which is in the alert all the same.
    assert last.first_epoch_mjd_tai < last.window_start_mjd_tai - 5
    assert last.mjd_tai[0] == pytest.approx(first.mjd_tai[0], abs=1)
    assert {source.band for source in last.sources} == {"g", "r"}
    assert max(scorer.fitted_whole) > 2 * 2 * 20
    assert (np.diff(last.mjd_tai) >= 0).all()


def test_where_bands_share_a_window_their_event_is_one() -> None:
    """No band alone has enough epochs; the next is of the other band, half a day later."""
    messages: list[Message] = []
    for i, mjd in enumerate(np.arange(60_000, 60_060, 0.5)):
        bump = 1 + 0.6 * np.exp(-0.5 * ((mjd - 60_030) / 3) ** 2)
        band, level = (("r", 1000.0), ("g", 1000.0))[i % 2]
        messages.append(epoch(i, mjd, level * bump, band=band))
    alerts = make_pipeline(joined=True).step(messages, 0.0, flush=True).alerts
    assert alerts
    assert {alert.band for alert in alerts} == {"all"}
    assert len({alert.event_id for alert in alerts}) == 1
    assert not any(alert.other_bands for alert in alerts)
    for alert in alerts:
        assert {one.band for one in alert.sources} == {"g", "r"}
        assert alert.magnitude_band == alert.light_curve.band.iloc[-1]
    apart = make_pipeline().step(messages, 0.0, flush=True).alerts
    assert {alert.band for alert in apart} <= {"g", "r"}


def test_a_star_in_one_band_has_no_others() -> None:
    one_band = [epoch(i, m, 1000 + 900 * (m > PEAK), band="r") for i, m in enumerate(TIMES)]
    others = [epoch(len(TIMES), TIMES[-1], 1000.0, star="another", band="g")]
    alerts = run(one_band + others)
    assert alerts
    assert not any(alert.other_bands for alert in alerts)


def test_a_band_with_too_few_epochs_says_nothing_yet() -> None:
    messages = [epoch(i, m, 1000 + 900 * (m > PEAK), band="r") for i, m in enumerate(TIMES)]
    few = [epoch(i, PEAK - 1 + 0.1 * i, band="g") for i in range(4)]  # 5 are needed
    alerts = run(few + messages)
    assert alerts
    assert not any(alert.other_bands for alert in alerts)


# Packets


class Several:
    """Stands in for the decoder: each message is one star in two bands, and has rejected epochs."""

    def single_star(self, _: Message) -> bool:
        return False

    def decode(self, message: Message, tracked: Any) -> Packet:
        asked = tracked("test", "s")
        bands = [epoch(0, 60_000.0 + message.offset, band=band) for band in "gr"]
        parts = tuple(Decoder("photometry").decode(one).photometry[0] for one in bands)
        return Packet(parts, Counter({"nbad": 3, "known": len(asked)}))


def test_a_packet_of_several_bands_fills_their_windows_and_its_rejected_epochs_are_counted() -> (
    None
):
    metrics = Metrics()
    pipeline = make_pipeline(metrics=metrics)
    stub: Any = Several()
    pipeline.intake._reader._decoder = stub
    pipeline.step([epoch(n, 0.0) for n in range(3)], 0.0)
    pipeline.step([epoch(n, 0.0) for n in range(3, 5)], 0.0)
    outcomes = {
        outcome: metrics.value("points_inserted_total", outcome=outcome)
        for outcome in ("inserted", "nbad", "known")
    }
    # Five epochs in each band; from the second poll on, both bands are known when it decodes.
    assert outcomes == {"inserted": 10, "nbad": 15, "known": 4}


# Faults of one star or message


class FaultyScorer(PeakScorer):
    """Fails in one stage, for the windows of one star alone."""

    def __init__(self, stage: str, star: str = "lensed") -> None:
        super().__init__()
        self.stage, self.star, self.failing = stage, star, True

    def score(self, batch: WindowBatch) -> Scored:
        scored = super().score(batch)
        if self.stage == "score" and self.failing:
            scored.log10_k[[star == self.star for star in batch.star]] = np.nan
        return scored

    def fit(self, *window: Any, whole_event: bool = False, **options: Any) -> Any:
        if self.failing and self.stage == "event" and whole_event:
            raise RuntimeError("too long an event")
        if self.failing and self.stage == "certified" and not whole_event:
            raise RuntimeError("invalid multinomial distribution")
        if self.failing and self.stage == "unfit":
            return NotFitted("not fitted: 1 usable epochs, 6 are needed")
        found = super().fit(*window, whole_event=whole_event, **options)
        return replace(found, log10_k=np.nan) if self.failing and self.stage == "weights" else found

    def posterior(self, scored: Scored, row: int, samples: int, seed: int) -> Any:
        if self.stage == "posterior" and self.failing:
            raise RuntimeError("no samples")
        return super().posterior(scored, row, samples, seed)


@pytest.mark.parametrize("stage", ["certified", "weights"])
def test_without_a_certificate_the_alert_goes_without(alerts: list[Alert], stage: str) -> None:
    metrics = Metrics()
    pipeline = make_pipeline(FaultyScorer(stage), metrics=metrics)
    found = pipeline.step(STREAM, 0.0, flush=True).alerts
    assert [alert.alert_id for alert in found] == [alert.alert_id for alert in alerts]
    assert all(alert.certified is None for alert in found)
    assert metrics.value("evaluations_lost_total", stage="certified") > 0


def test_where_the_fit_of_the_event_fails_the_alert_has_that_of_its_window() -> None:
    metrics = Metrics()
    found = make_pipeline(FaultyScorer("event"), metrics=metrics).step(STREAM, 0.0, flush=True)
    assert found.alerts
    assert all(alert.fit is not None for alert in found.alerts if alert.state != "final")
    assert metrics.value("evaluations_lost_total", stage="event") > 0


def test_epochs_that_cannot_be_fitted_claim_nothing(alerts: list[Alert]) -> None:
    metrics = Metrics()
    pipeline = make_pipeline(FaultyScorer("unfit"), metrics=metrics)
    found = pipeline.step(STREAM, 0.0, flush=True).alerts
    assert [alert.alert_id for alert in found] == [alert.alert_id for alert in alerts]
    assert all(alert.certified is None for alert in found)
    assert metrics.value("evaluations_lost_total", stage="certified") == 0
    options = AssessmentOptions(Rule(THRESHOLD, trigger=1.0), prior_odds=1e-6, samples=20)
    assert (
        make_pipeline(FaultyScorer("unfit"), options=options).step(STREAM, 0.0, flush=True).alerts
        == []
    )


def test_where_certified_k_decides_a_failed_certificate_decides_nothing() -> None:
    options = AssessmentOptions(Rule(THRESHOLD, trigger=1.0), prior_odds=1e-6, samples=20)
    pipeline = make_pipeline(FaultyScorer("certified"), options=options)
    assert pipeline.step(STREAM, 0.0, flush=True).alerts == []


@pytest.mark.parametrize("stage", ["score", "posterior"])
def test_an_evaluation_that_fails_is_counted_and_the_next_one_tries_again(
    alerts: list[Alert], stage: str
) -> None:
    metrics, scorer = Metrics(), FaultyScorer(stage)
    pipeline = make_pipeline(scorer, metrics=metrics)
    half = next(i for i, m in enumerate(STREAM) if i > 280)
    first = pipeline.step(STREAM[:half], 0.0, flush=True)
    assert first.alerts == []
    assert first.offsets == {("epochs", 0): half}
    if stage == "posterior":
        assert metrics.value("evaluations_lost_total", stage="decision") > 0
    scorer.failing = False
    later = pipeline.step(STREAM[half:], 0.0, flush=True).alerts
    assert {alert.star_id for alert in later} <= {alert.star_id for alert in alerts}


def test_a_k_that_is_not_a_number_loses_that_star_alone(alerts: list[Alert]) -> None:
    pipeline = make_pipeline(FaultyScorer("score", star="quiet"))
    assert contents(pipeline.step(STREAM, 0.0, flush=True).alerts) == contents(alerts)


def test_where_every_evaluation_fails_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_filter.pipeline.lost_evaluations.MAX_LOST_IN_A_ROW", 2)
    pipeline = make_pipeline(FaultyScorer("posterior"))
    with pytest.raises(RuntimeError, match="no samples"):
        pipeline.step(STREAM, 0.0, flush=True)
    options = AssessmentOptions(Rule(THRESHOLD, trigger=1.0), prior_odds=1e-6, samples=20)
    pipeline = make_pipeline(FaultyScorer("certified"), options=options)
    with pytest.raises(RuntimeError, match="invalid multinomial"):
        pipeline.step(STREAM, 0.0, flush=True)


def test_a_message_on_which_the_decoder_fails_becomes_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = Metrics()
    pipeline = make_pipeline(metrics=metrics)
    decode = pipeline.intake._reader._decoder.decode

    def failing(message: Message, tracked: Any) -> Packet:
        if message.offset == 1:
            raise RecursionError("too deep")
        return decode(message, tracked)

    monkeypatch.setattr(pipeline.intake._reader._decoder, "decode", failing)
    outputs = pipeline.step(STREAM[:3], 0.0, flush=True)
    (letter,) = outputs.dead_letters
    assert (letter.message.offset, letter.reason) == (1, "internal")
    assert "RecursionError: too deep" in letter.detail
    assert metrics.value("records_dead_total", reason="internal") == 1
    assert outputs.offsets == {("epochs", 0): 3}


# Topics that share their stars: a star is one star, whatever topics its messages are in.

NIGHT = 150  # messages
SHARED = ("^night", 0)


def by_night(stream: Sequence[Message]) -> list[Message]:
    """A stream as nightly topics, each with offsets of its own."""
    return [replace(m, topic=f"night-{i // NIGHT}", offset=i % NIGHT) for i, m in enumerate(stream)]


def sharing() -> Pipeline:
    return make_pipeline(key_of=lambda where: (SHARED[0], where[1]))


@settings(max_examples=8, deadline=None)
@given(polls)
def test_nightly_topics_that_share_are_as_one_topic(alerts: list[Alert], cuts: list[int]) -> None:
    pipeline, found = sharing(), []
    nights = by_night(STREAM)
    for first, last in itertools.pairwise([0, *sorted(cuts), len(nights)]):
        found += pipeline.step(nights[first:last], 0.0, flush=True).alerts
    assert contents(found) == contents(alerts)
    assert pipeline.intake.keys() == [SHARED]


def test_nightly_topics_that_do_not_share_part_the_star(alerts: list[Alert]) -> None:
    """Without the sharing the test above would have nothing to find."""
    assert contents(run(by_night(STREAM))) != contents(alerts)


@settings(max_examples=8, deadline=None)
@given(moments, moments)
def test_a_state_of_several_topics_goes_on_as_if_nothing_had_happened(
    alerts: list[Alert], one: int, two: int
) -> None:
    moment, committed = sorted((one, two))
    nights = by_night(STREAM)
    before = sharing()
    before.step(nights[:moment], 0.0, flush=True)
    state = through_bytes(before.step([], 0.0, capture=[SHARED]).captured[SHARED])
    known = {(f"night-{n}", 0): min(NIGHT, moment - n * NIGHT) for n in range(-(-moment // NIGHT))}
    assert (state.key, state.offsets, state.offset) == (SHARED, known, moment)

    after = sharing()
    ends = {(f"night-{n}", 0): min(NIGHT, committed - n * NIGHT) for n in range(4)}
    after.restore(SHARED, state, dict.fromkeys(ends, 0) | known, ends)
    found = after.step(nights[moment:], 0.0, flush=True)
    assert contents(run(STREAM[:committed]) + found.alerts) == contents(alerts)
    assert all(offset > ends.get(where, 0) for where, offset in found.offsets.items())


def test_a_topic_that_goes_leaves_its_stars_to_the_others(alerts: list[Alert]) -> None:
    nights, pipeline = by_night(STREAM), sharing()
    # The last messages of the night wait to be looked at when its topic goes.
    found = pipeline.step(nights[: 2 * NIGHT - 10], 0.0, flush=True).alerts
    found += pipeline.step(nights[2 * NIGHT - 10 : 2 * NIGHT], 0.0).alerts
    pipeline.step(nights[2 * NIGHT : 2 * NIGHT + 1], 0.0)
    pipeline.intake.drop([("night-0", 0), ("night-1", 0)])
    outputs = pipeline.step(nights[2 * NIGHT + 1 :], 0.0, capture=[SHARED])
    assert contents(found + outputs.alerts) == contents(alerts)
    assert {topic for topic, _ in outputs.offsets} == {"night-2", "night-3"}
    assert {topic for topic, _ in outputs.captured[SHARED].offsets} == {"night-2", "night-3"}
    pipeline.intake.drop([("night-2", 0), ("night-3", 0)])
    assert pipeline.intake.keys() == []


class CascadedScorer(PeakScorer):
    """Settles windows whose K is low, and gives K of the windows that it is asked for alone."""

    def ceiling(self, batch: WindowBatch, _: float) -> Any:
        return super().score(batch).log10_k + 1

    def score(self, batch: WindowBatch, chosen: Any = None) -> Scored:
        scored = super().score(batch)
        if chosen is not None:
            scored.log10_k[~chosen] = np.nan
        return scored

    def add(self, scored: Scored, batch: WindowBatch, chosen: Any) -> None:
        scored.log10_k[chosen] = super().score(batch).log10_k[chosen]


CASCADE = AssessmentOptions(Rule(THRESHOLD), prior_odds=1e-6, samples=20, cascade=True)


@pytest.mark.parametrize("poll", [1, 50, len(STREAM)])
def test_a_cascade_gives_the_same_alerts(alerts: list[Alert], poll: int) -> None:
    metrics = Metrics()
    pipeline = make_pipeline(CascadedScorer(), metrics=metrics, options=CASCADE)
    found: list[Alert] = []
    for first in range(0, len(STREAM), poll):
        found += pipeline.step(STREAM[first : first + poll], 0.0, flush=True).alerts
    assert contents(found) == contents(alerts)
    settled, seen = (metrics.value(n) for n in ("windows_settled_total", "log_bayes_factor"))
    without = Metrics()
    make_pipeline(metrics=without).step(STREAM, 0.0, flush=True)
    assert settled + seen == without.value("log_bayes_factor")
    assert settled > 100
    assert without.value("windows_settled_total") == 0
