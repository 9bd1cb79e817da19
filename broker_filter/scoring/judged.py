"""Alerts of one star whose rivals are computed where somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import overload
from uuid import UUID

from broker_filter.alerts.alert import Alert
from broker_filter.pipeline.judge import Case, Judgement

__all__ = ["JudgedAlerts"]


class JudgedAlerts(Sequence[Alert]):
    """Alerts, each with rivals and verdict as a subscriber of the service gets it.

    Parameters
    ----------
    alerts : sequence of Alert
        Without rivals and verdict, in order.
    cases : mapping of UUID to Case
        By alert; of those that can be judged.
    judge : callable
        Of a case, and of how many events of its star and band before it were established.
    with_judgement : callable
        The alert of a case with what was found of it.
    """

    def __init__(
        self,
        alerts: Sequence[Alert],
        cases: Mapping[UUID, Case],
        judge: Callable[[Case, int], Judgement],
        with_judgement: Callable[[Alert, Case, Judgement], Alert],
    ) -> None:
        self._alerts, self._judge, self._with_judgement = alerts, judge, with_judgement
        self._cases = [cases.get(alert.alert_id) for alert in alerts]
        self._found: dict[int, Judgement] = {}

    def __len__(self) -> int:
        return len(self._alerts)

    @overload
    def __getitem__(self, index: int) -> Alert: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Alert]: ...

    def __getitem__(self, index: int | slice) -> Alert | Sequence[Alert]:
        """Judge one, or a slice of them."""
        rows = range(len(self))[index]
        return self._of(rows) if isinstance(rows, int) else tuple(map(self._of, rows))

    def _of(self, row: int) -> Alert:
        alert, case = self._alerts[row], self._cases[row]
        return alert if case is None else self._with_judgement(alert, case, self._judged(row))

    def _judged(self, row: int) -> Judgement:
        case = self._cases[row]
        if case is None:
            return Judgement()
        if row not in self._found:
            self._found[row] = self._judge(case, self._established_before(row, case))
        return self._found[row]

    def _established_before(self, row: int, case: Case) -> int:
        """Events of the same star and band that an earlier alert shows to be more than noise."""
        earlier: dict[float, list[int]] = {}
        for i, other in enumerate(self._cases[:row]):
            if other is not None and other.window.key == case.window.key:
                earlier.setdefault(other.opened_mjd, []).append(i)
        earlier.pop(case.opened_mjd, None)
        return sum(any(self._judged(i).established for i in rows) for rows in earlier.values())
