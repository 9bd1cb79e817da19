"""Looks at one window with certified K: they go on counting, and belong to that window alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.build import Provenance
from broker_filter.alerts.certifications import Certification, may_tell
from broker_filter.alerts.threshold import Discovery, Rule
from broker_filter.inference.scorer import Scored
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.assessment import Assessment
from broker_filter.pipeline.batcher import Origin, Work
from broker_filter.pipeline.options import AssessmentOptions
from broker_filter.state.partition import PartitionState
from broker_filter.types import Fit, FloatArray, NotFitted, SourceFit, StarEpochs, WindowBatch

START = 60_000.0


@dataclass
class Script:
    """Stands in for the network and the fit: K of both are given."""

    network: float = 0.0
    certified: float = 0.0
    fits: list[float] = field(default_factory=list)
    matched: float = 0.0
    t0: float = 9.0  # days after the window's start
    not_fitted: bool = False

    def score(self, batch: WindowBatch) -> Scored:
        return Scored(np.full(len(batch), self.network), batch.t_start)  # type: ignore[arg-type]

    def ceiling(self, batch: WindowBatch, _: float) -> FloatArray:
        return np.full(len(batch), self.matched)

    def posterior(self, *window: Any) -> Any:
        """``window`` is scored, row, samples and seed."""
        noise = np.random.default_rng(window[3]).normal(0, 0.01, (window[2], 5))
        return (np.array([self.t0, 0.3, 0.0, -1.0, 0.8]) + noise).astype(np.float32)

    def log10_k_lookalikes(self, *_: Any) -> None:
        """There is no second head."""

    def fit(
        self,
        epochs: StarEpochs,
        t_start: float,
        *window: Any,
        samples: int,
        whole_event: bool = False,
    ) -> Fit | NotFitted:
        if not whole_event:  # no look at a window
            self.fits.append(t_start)
        if self.not_fitted:
            return NotFitted("not fitted: 3 usable epochs, 6 are needed")
        drawn = self.posterior(*window[:2], samples, window[2])
        sources = tuple(SourceFit(*name, 1, 0.8, 1.0, 1.0) for name in epochs.sources)
        shares = np.full((samples, len(sources)), 0.8, np.float32)
        best = drawn.mean(0).astype(np.float64)
        figures = (self.certified, 0.1, 300.0, True, "", best, 1.0, 1, 0.5, 0.0)
        return Fit(t_start, drawn, sources, shares, *figures)


class Star:
    """One star whose window is evaluated again and again."""

    def __init__(self, rule: Rule) -> None:
        self.script: Any = Script()
        options = AssessmentOptions(rule, prior_odds=1e-6, samples=20)
        provenance = Provenance("script-0.0.1", "0" * 64, "0", 20.0)
        self.metrics = Metrics()
        self.assessment = Assessment(
            self.script, options, lambda u, _: 1 + 0 * u, provenance, self.metrics
        )
        self.n = 5

    def look(
        self, network: float, certified: float, start: float = START, star: str = "s"
    ) -> list[Alert]:
        self.script.network, self.script.certified = network, certified
        self.n += 1
        work = Work(window(self.n, start, star), {}, [Origin()])
        return self.assessment.assess(work, 0).alerts

    def restart(self) -> None:
        """Go on from a snapshot."""
        columns = self.assessment.state(("", 0))
        state = PartitionState(("", 0), {}, 20.0, "script-0.0.1", columns)
        self.assessment.restore(("", 0), state)

    @property
    def counts(self) -> list[int]:
        columns = self.assessment.state(("", 0))
        return np.asarray(columns["look/count"]).astype(int).tolist()


def window(n: int, start: float, star: str = "s") -> WindowBatch:
    one = np.ones(1)
    return WindowBatch(
        slot=np.zeros(1, np.int64),
        star=[star],
        survey=["test"],
        band=["r"],
        coordinates=[None],
        t_start=np.array([start]),
        mjd_tai=START + 10 + 0.1 * np.arange(n)[None],
        flux=np.ones((1, n), np.float32),
        sigma=np.full((1, n), 0.01, np.float32),
        n=np.array([n]),
        baseline=one,
        baseline_err=0.001 * one,
        baseline_error=0.001 * one,
        relative=np.zeros(1, np.bool_),
        source=np.zeros((1, n), np.int16),
        sources=[(("r", "a"),)],
        source_level=one[:, None],
        source_error=0.001 * one[:, None],
        source_history=np.zeros((len(one), 1, 6)),
    )


def test_looks_go_on_counting_where_the_networks_k_has_dipped() -> None:
    """Else noise that crosses the trigger again and again is never charged for it."""
    star = Star(Rule(6.0, trigger=1.0))
    for network in (2.0, -0.5, 2.0, -0.5, 2.0):
        star.look(network, 1.0)
    assert star.counts == [3]
    assert len(star.script.fits) == 3
    assert star.look(5.0, 6.0 + np.log10(4 * 5) - 0.01) == []
    star.look(-0.5, 0.0)
    (alert,) = star.look(5.0, 6.0 + np.log10(5 * 6) + 0.01)
    assert alert.certified is not None
    assert alert.certified.look == 5


def test_a_void_certificate_decides_nothing() -> None:
    star = Star(Rule(3.0, trigger=1.0))
    assert [a.state for a in star.look(5.0, 9.0)] == ["new"]
    star.look(-0.5, 0.0)
    assert star.look(0.5, 9.0) == []  # between void and trigger: neither old nor new certificate
    assert len(star.script.fits) == 1


def test_the_matched_filter_calls_for_looks_that_the_network_does_not() -> None:
    """An event of one night may look to the network like noise that comes with bad nights."""
    star = Star(Rule(3.0, trigger=2.0, matched=50.0))
    star.script.matched = 49.0
    assert star.look(0.5, 9.0) == []
    assert star.script.fits == []
    star.script.matched = 51.0
    assert star.look(0.5, 2.0) == []
    assert star.counts == [1]
    star.look(0.5, 9.0)  # neither K has grown, and it is a tenth of a day later
    assert star.counts == [1]
    star.n += 10
    (alert,) = star.look(0.5, 9.0)
    assert (alert.state, alert.log10_k) == ("new", 0.5)
    assert alert.certified is not None
    assert (alert.certified.log10_k, alert.certified.look) == (9.0, 2)


def test_a_certificate_counts_while_the_window_stands_out() -> None:
    star = Star(Rule(3.0, trigger=2.0, matched=50.0))
    star.script.matched = 51.0
    assert [a.state for a in star.look(2.5, 9.0)] == ["new"]
    star.look(0.5, 9.0)  # the network's K alone would make the certificate void
    assert len(star.script.fits) == 1
    star.n += 10
    star.look(0.5, 9.0)
    assert len(star.script.fits) == 2


def test_a_certificate_of_the_window_before_is_not_used() -> None:
    star = Star(Rule(3.0, trigger=1.0))
    star.look(5.0, 2.0)
    assert star.counts == [1]
    # The window has moved on; the network's K alone would not call for another look.
    star.look(0.5, 2.0, START + 5)
    assert star.script.fits == [START, START + 5]
    assert star.counts == [1]


def test_an_alert_has_k_and_samples_of_one_run() -> None:
    """An update for its age alone is fitted too, as one more look."""
    star = Star(Rule(3.0))
    assert [a.state for a in star.look(5.0, 9.0)] == ["new"]
    alerts = [a for _ in range(12) for a in star.look(5.0, 9.5)]
    assert alerts
    assert len(star.script.fits) == 1 + len(alerts)
    for look, alert in enumerate(alerts, start=2):
        assert alert.posterior_from == "fit"
        assert alert.certified is not None
        assert (alert.certified.log10_k, alert.certified.look) == (9.5, look)


def test_a_median_that_moves_gives_an_update_from_memory_and_from_a_snapshot() -> None:
    star = Star(Rule(3.0))
    assert [alert.state for alert in star.look(9.0, 9.0)] == ["new"]
    assert star.look(9.0, 9.0) == []
    star.script.t0 += 0.02  # its sigma is 0.01 d
    assert [alert.state for alert in star.look(9.0, 9.0)] == ["update"]
    star.restart()
    star.script.t0 += 0.02
    assert [alert.state for alert in star.look(9.0, 9.0)] == ["update"]


def test_a_look_without_a_fit_is_repeated_and_counts_for_nothing() -> None:
    """Nothing is lost where a window cannot be fitted: its next evaluation tries again."""
    star = Star(Rule(3.0, trigger=1.0))
    star.script.not_fitted = True
    assert star.look(5.0, 9.0) == []
    assert star.counts == []
    assert star.look(5.0, 9.0) == []  # the network's K has not grown: it is due all the same
    assert len(star.script.fits) == 2
    assert star.metrics.value("looks_without_fit_total") == 2
    star.script.not_fitted = False
    (alert,) = star.look(5.0, 9.0)
    assert alert.certified is not None
    assert alert.certified.look == 1


def test_an_event_stays_open_through_a_look_without_a_fit() -> None:
    star = Star(Rule(3.0, trigger=1.0))
    assert [a.state for a in star.look(5.0, 9.0)] == ["new"]
    star.script.not_fitted = True
    assert star.look(5.0, 9.0, START + 5) == []
    star.script.not_fitted = False
    # Still owed, though the network's K alone would not call for it.
    assert [a.state for a in star.look(1.5, 9.0, START + 5)] == ["update"]
    assert star.counts == [1]


def test_updates_of_an_open_event_do_not_charge_it_to_death() -> None:
    """Later looks open nothing, so an event that is as clear as it was stays open."""
    star = Star(Rule(3.0, trigger=1.0))
    states = [a.state for _ in range(60) for a in star.look(5.0, 3.5)]
    assert states[0] == "new"
    assert set(states[1:]) == {"update"}
    assert star.counts[0] > 5


def test_a_share_of_false_ones_lets_later_events_open_at_less() -> None:
    """By the number of those that windows with the same start opened, also after a restart."""
    charge = float(np.log10(2))
    star = Star(Rule(3.0, trigger=1.0, discovery=Discovery(0.1, 1000)))
    assert star.look(5.0, 3.9 + charge, star="a") == []
    (first,) = star.look(5.0, 4.1 + charge, star="b")
    assert first.log10_k_threshold == 4.0
    assert star.look(5.0, 3.8 + charge, START + 5, star="c") == []  # another start
    star.restart()
    (second,) = star.look(5.0, 3.8 + charge, star="d")
    assert second.log10_k_threshold < 3.7
    assert star.look(5.0, 3.4 + charge, star="e") == []
    # What is open goes on by the threshold, whatever others need to open.
    (update,) = star.look(9.0, 9.0, star="b")
    assert (update.state, update.log10_k_threshold) == ("update", 3.0)


def test_where_an_alert_fails_no_event_is_counted() -> None:
    star = Star(Rule(3.0, trigger=1.0, discovery=Discovery(0.1, 1000)))
    star.script.t0 = float("nan")
    assert star.look(5.0, 9.0, star="a") == []
    star.script.t0 = 9.0
    (alert,) = star.look(5.0, 9.0, star="b")
    assert alert.log10_k_threshold == 4.0


def test_an_open_event_is_fitted_where_that_can_lead_to_an_alert() -> None:
    """The network's K of a bright one must have grown by what an update takes."""
    star = Star(Rule(3.0, trigger=1.0))
    assert [a.state for a in star.look(100.0, 90.0)] == ["new"]
    assert star.look(140.0, 150.0) == []
    assert star.counts == [1]
    assert [a.state for a in star.look(160.0, 150.0)] == ["update"]
    assert star.counts == [2]


def test_a_fall_and_a_certificate_near_the_threshold_may_tell_something() -> None:
    bright = Certification(START, 1, 100.0, 90.0, 0.1, 300.0)
    assert [may_tell(bright, k, 3.0) for k in (79.0, 81.0, 149.0, 150.0)] == [
        True,
        False,
        False,
        True,
    ]
    assert may_tell(replace(bright, log10_k=12.0), 100.0, 3.0)


def test_an_open_event_near_its_end_is_fitted_as_often_as_before_it_opened() -> None:
    star = Star(Rule(3.0, trigger=1.0))
    assert [a.state for a in star.look(100.0, 9.0)] == ["new"]
    assert [a.state for a in star.look(126.0, 1.0)] == ["retraction"]


def test_a_bright_event_ends_with_the_first_window_that_does_not_show_it() -> None:
    star = Star(Rule(3.0, trigger=1.0))
    star.script.t0 = 3.0
    assert [a.state for a in star.look(100.0, 90.0)] == ["new"]
    assert [a.state for a in star.look(99.0, 0.0, START + 5)] == ["final"]
