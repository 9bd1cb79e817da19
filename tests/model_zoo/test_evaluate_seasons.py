"""Events in two seasons of a survey, and when the service finds them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from broker_filter.inference import zoo
from broker_filter.types import Photometry
from model_zoo.evaluate.measure import seasons
from model_zoo.evaluate.measure.kept import Kept
from model_zoo.evaluate.measure.seasons import SEASON, YEAR, draw_event, measure_seasons
from model_zoo.evaluate.measure.service_path import START
from model_zoo.evaluate.measure.surveys import SURVEYS
from model_zoo.evaluate.report.tables import season_tables
from model_zoo.evaluate.suite import config_of, simulator_of
from model_zoo.simulate.curves import Simulator
from model_zoo.simulate.pattern import PatternConfig


@pytest.fixture(scope="module")
def entry() -> zoo.Entry:
    return zoo.verify(zoo.find("fspl-sparse-1.0.0"))


@pytest.fixture(scope="module")
def simulator(entry: zoo.Entry) -> Simulator:
    return simulator_of(config_of(entry))


@pytest.mark.parametrize("survey", SURVEYS)
def test_events_peak_in_the_second_season_of_stars_seen_in_two(
    survey: str, simulator: Simulator
) -> None:
    rng, bands, catalogue = np.random.default_rng(1), set(), []
    for _ in range(20):
        event = draw_event(simulator, SURVEYS[survey], rng)
        t, flux, sigma = (
            np.concatenate([getattr(part, name) for part in event.bands])
            for name in ("mjd_tai", "flux", "flux_err")
        )
        t -= START
        assert ((t < SEASON) | ((t > YEAR) & (t < YEAR + SEASON))).all()
        assert t[t > YEAR].min() < event.t0 < t.max()
        assert 10 <= event.t_einstein <= 60
        near = np.abs(t - event.t0) < event.t_einstein / 2
        quiet = np.median(flux[t < SEASON])
        assert np.square((flux - quiet) / sigma)[near].sum() > 100
        bands |= {part.band for part in event.bands}
        catalogue += [float((p.ref_flux[0] - 1) / p.ref_flux_err[0]) for p in event.bands]
    assert len(bands) == (3 if survey == "ZTF" else 5)
    assert 0.7 < np.std(catalogue) < 2.5


class Says:
    """In place of the service: it alerts at given times from the peak on, in days."""

    def __init__(self, *alerts: list[tuple[float, str | None]]) -> None:
        self.left = list(alerts)
        self.alerts: list[SimpleNamespace] = []

    def __call__(self, _: list[Photometry]) -> None:
        self.alerts = [
            SimpleNamespace(
                last_epoch_mjd_tai=START + 400 + day,
                verdict=None if verdict is None else SimpleNamespace(verdict=verdict),
            )
            for day, verdict in self.left.pop(0)
        ]


def test_first_alerts_and_last_verdicts_count(
    entry: zoo.Entry, simulator: Simulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = Says(
        [(-12.0, "unclear"), (3.0, "microlensing")],
        [(2.0, "anomalous-lens"), (30.0, None)],
        [(-101.0, "artefact")],
        [(-150.0, "artefact"), (-4.0, "unclear")],
        [],
    )
    monkeypatch.setattr(seasons, "SURVEYS", {"ZTF": SURVEYS["ZTF"]})
    monkeypatch.setattr(seasons, "ServicePath", lambda *_, **__: service)
    monkeypatch.setattr(seasons, "draw_event", lambda *_: seasons.Event([], 400.0, 20.0))
    kept = Kept(tmp_path / "stars.jsonl")
    part = measure_seasons(entry, simulator, 5, kept=kept, quiet=True)
    (row,) = part["rows"]
    assert (row["before_peak"]["found"], row["at_all"]["found"]) == (2, 3)
    assert row["lens"]["found"] == 2
    assert row["lens"]["n"] == row["at_all"]["n"] == 5
    assert row["verdicts"] == {"microlensing": 1, "anomalous-lens": 1, "unclear": 1}
    assert row["lead_days"] == [6.0, 8.0, 10.0]
    assert row["too_early"] == 2
    again = measure_seasons(entry, simulator, 5, kept=Kept(tmp_path / "stars.jsonl"), quiet=True)
    assert again == part
    lines = season_tables(part)
    assert "40.0 % of 5" in lines[2]
    assert "60.0 % of 5" in lines[2]


def test_the_service_finds_an_event_and_calls_it_a_lens(
    entry: zoo.Entry, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seasons, "SURVEYS", {"ZTF": SURVEYS["ZTF"]})
    monkeypatch.setattr(seasons, "SEED", 3)
    (row,) = measure_seasons(entry, simulator, 1, quiet=True)["rows"]
    assert row["at_all"]["found"] == row["lens"]["found"] == 1


def test_a_simulator_without_visits_has_no_rows(entry: zoo.Entry, simulator: Simulator) -> None:
    dense = replace(simulator, pattern=PatternConfig())
    assert measure_seasons(entry, dense, 1)["rows"] == []
