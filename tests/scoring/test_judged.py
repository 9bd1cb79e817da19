"""Rivals of a star's alerts are computed where they are looked at, and are the service's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from broker_filter.alerts.alert import Alert
from broker_filter.pipeline.judge import Judgement
from broker_filter.scoring.judged import JudgedAlerts
from tests.build import alert


def unchanged(alert: Alert, *_: Any) -> Alert:
    return alert


def judged(*opened: float, judge: Any) -> tuple[list[Alert], JudgedAlerts]:
    """One alert for each event, by when that opened."""
    alerts = [alert(alert_id=UUID(int=i), log10_k=float(i)) for i in range(len(opened))]
    window = SimpleNamespace(key=("own", "star", "r"))
    cases = {
        one.alert_id: SimpleNamespace(window=window, opened_mjd=at)
        for one, at in zip(alerts, opened, strict=True)
    }
    return alerts, JudgedAlerts(alerts, cases, judge, unchanged)  # type: ignore[arg-type]


def test_only_what_is_looked_at_is_judged_and_once() -> None:
    seen = []

    def judge(case: Any, earlier: int) -> Judgement:
        seen.append((case.opened_mjd, earlier))
        return Judgement(established=True)

    _, found = judged(1.0, 1.0, 1.0, judge=judge)
    assert len(found) == 3
    assert seen == []
    assert found[-1].log10_k == found[-1].log10_k == 2.0
    assert seen == [(1.0, 0)]
    assert [one.log10_k for one in found] == [0.0, 1.0, 2.0]
    assert len(seen) == 3


def test_events_before_count_where_an_alert_of_them_was_established() -> None:
    counted = []

    def judge(case: Any, earlier: int) -> Judgement:
        counted.append((case.opened_mjd, earlier))
        return Judgement(established=case.opened_mjd != 2.0)

    _, found = judged(1.0, 1.0, 2.0, 3.0, 3.0, judge=judge)
    _ = found[-1]
    assert counted[-1] == (3.0, 1)


def test_an_alert_without_a_case_stays_as_it_is() -> None:
    alerts = [alert()]
    found = JudgedAlerts(alerts, {}, lambda *_: Judgement(established=True), unchanged)
    assert found[0] is alerts[0]
    assert found[:1] == (alerts[0],)
