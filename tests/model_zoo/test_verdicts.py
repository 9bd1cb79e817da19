"""What free-floating planets and flare stars are called, on the service's own path."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from broker_filter.inference import zoo
from model_zoo.evaluate.measure.kept import Kept
from model_zoo.evaluate.measure.verdicts import KINDS, draw_star, measure_verdicts
from model_zoo.evaluate.report.tables import verdict_tables


def test_stars_have_the_signal_to_noise_that_they_are_measured_at() -> None:
    for signal, _ in KINDS.values():
        star = draw_star(signal, np.random.default_rng(1))
        quiet = star.flux[star.mjd_tai < star.mjd_tai[0] + 20]
        sigma = float(star.flux_err[0])
        np.testing.assert_allclose(quiet.std(), sigma, rtol=0.1)
        late = star.flux[star.mjd_tai > star.mjd_tai[0] + 22] - 1
        excess = np.square(late / sigma).sum() - len(late)  # of the squares of noise
        assert 200 < excess < 4500


def test_one_epoch_of_a_star_is_too_bright() -> None:
    for signal, _ in KINDS.values():
        star, same = (
            draw_star(signal, np.random.default_rng(2), wrong=wrong) for wrong in (True, False)
        )
        off = (star.flux - same.flux) / same.flux_err
        assert np.count_nonzero(off) == 1
        assert 15 <= off.max() <= 60


def test_planets_and_flares_are_told_apart(tmp_path: Path) -> None:
    entry = zoo.verify(zoo.find("fspl-roman-1.0.0"))
    path = tmp_path / "stars.jsonl"
    found = measure_verdicts(entry, 1, kept=Kept(path, entry.sha256), quiet=True)
    for planets in found["rows"][:2]:
        assert planets["verdicts"] == {"microlensing": 1}
    for flares in found["rows"][2:]:
        assert flares["lens"]["found"] == 0
    assert found == measure_verdicts(entry, 1, kept=Kept(path, entry.sha256), quiet=True)
    assert len(path.read_text().splitlines()) == 4
    lines = verdict_tables(found)
    assert "100.0 % of 1" in lines[2]
    assert "microlensing 1" in lines[2]
