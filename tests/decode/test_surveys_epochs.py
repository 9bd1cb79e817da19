"""One point a visit, parts by band, source and kind; cuts by name; magnitudes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.decode.surveys.epochs import Epochs, Star, epochs_of, make_packet
from broker_filter.decode.surveys.quality import cut
from broker_filter.errors import PoisonMessage
from broker_filter.photometry.magnitudes import add_reference, flux_error, flux_of

STAR = Star("test", 7, 10.0, 20.0)
SECOND = 1 / 86400
DAY = 61000.0


def epochs(rows: list[tuple[float, float, float]], *, forced: bool = False, **columns) -> Epochs:
    """Rows of (time, flux, error) in band r, total flux unless said otherwise."""
    time, flux, error = np.array(rows, np.float64).reshape(-1, 3).T
    band = columns.pop("band", np.full(len(time), "r"))
    columns.setdefault("total", True)
    return epochs_of(time, flux, error, band, forced=forced, **columns)


def light_curve(*parts: Epochs) -> list[tuple[float, float]]:
    [photometry] = make_packet(STAR, parts, Counter()).photometry
    return list(zip(photometry.mjd_tai.tolist(), photometry.flux.tolist(), strict=True))


@pytest.mark.parametrize(("gap", "left"), [(0.0, 1), (0.99, 1), (1.01, 2)])
def test_epochs_within_a_second_are_one(gap: float, left: int) -> None:
    rows = [(DAY, 1.0, 0.1), (DAY + gap * SECOND, 2.0, 0.2)]
    rejected: Counter[str] = Counter()
    [photometry] = make_packet(STAR, [epochs(rows)], rejected).photometry
    assert len(photometry) == left
    assert rejected["duplicate"] == 2 - left
    assert photometry.flux[0] == 1  # the smaller error


def test_of_one_visit_total_flux_is_first_then_forced_then_the_smaller_error_and_flux() -> None:
    total = epochs([(DAY, 9, 0.9)])
    forced = epochs([(DAY, 8, 0.8)], forced=True, total=False)
    detections = epochs([(DAY, 7, 0.5), (DAY, 6, 0.5), (DAY, 5, 0.6)], total=False)
    assert light_curve(detections, forced, total) == [(DAY, 9)]
    assert light_curve(detections, forced) == [(DAY, 8)]
    assert light_curve(detections) == [(DAY, 6)]


def test_visits_of_different_bands_are_different_epochs() -> None:
    both = epochs([(DAY, 1, 0.1), (DAY, 2, 0.1)], band=np.array(["r", "g"]), visit=5)
    assert len(make_packet(STAR, [both], Counter()).photometry) == 2


def test_parts_are_sorted_and_the_newest_comes_last() -> None:
    rows = [(DAY + 3, 1, 0.1), (DAY + 9, 2, 0.1), (DAY + 1, 3, 0.1), (DAY + 5, 4, 0.1)]
    mixed = epochs(
        rows,
        source=np.array([1, 1, 1, 2]),
        total=np.array([True, True, False, True]),
    )
    parts = make_packet(STAR, [mixed], Counter(), "camera {}".format).photometry
    found = [(part.source, part.kind, part.flux.tolist()) for part in parts]
    assert found == [
        ("camera 1", "difference", [3]),
        ("camera 2", "total", [4]),
        ("camera 1", "total", [1, 2]),
    ]
    assert all(part.coordinates == {7: (10.0, 20.0)} for part in parts)


@pytest.mark.parametrize("place", [(np.nan, 0.0), (0.0, np.nan), (361.0, 0.0), (0.0, -999.0)])
def test_a_place_out_of_range_is_none(place: tuple[float, float]) -> None:
    assert Star("test", 7, *place).coordinates == {}


@pytest.mark.parametrize("name", ["", 65 * "a", "ZTF\0", "\ud800"])
def test_a_name_that_no_message_can_hold_is_poison(name: str) -> None:
    with pytest.raises(PoisonMessage, match="bad_star_id"):
        make_packet(replace(STAR, name=name), [epochs([(60_000.0, 1.0, 0.1)])], Counter())


def test_a_packet_without_epochs_has_no_parts() -> None:
    assert make_packet(STAR, [epochs([])], Counter()).photometry == ()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 8).map(lambda n: DAY + n * 0.5 * SECOND) | st.just(np.nan),
            st.floats(-1e3, 1e3),
            st.sampled_from([0.1, 0.2, 0.0]),
        ),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_order_and_repetition_change_nothing_and_every_epoch_is_counted(rows, random) -> None:
    shuffled = [*rows, *rows]
    random.shuffle(shuffled)
    rejected: Counter[str] = Counter()
    once = make_packet(STAR, [epochs(rows)], Counter()).photometry
    twice = make_packet(STAR, [epochs(shuffled)], rejected).photometry
    assert [part.flux.tolist() for part in once] == [part.flux.tolist() for part in twice]
    assert rejected.total() + sum(map(len, twice)) == len(shuffled)
    for part in twice:
        assert (np.diff(part.mjd_tai) >= 0).all()
        assert np.isfinite(part.flux).all()


def test_a_row_counts_under_its_first_reason() -> None:
    rejected: Counter[str] = Counter()
    cuts = {"cloud": np.array([True, True, False]), "moon": np.array([False, True, True])}
    assert cut({"x": np.arange(3)}, cuts, rejected)["x"].tolist() == []
    assert rejected == {"cloud": 2, "moon": 1}
    kept = cut({"x": np.arange(3)}, cuts, rejected, ignored={"cloud"})
    assert kept["x"].tolist() == [0]


def test_magnitudes() -> None:
    mag = np.array([31.4, 28.9, 8.9])  # 1 nJy, 10 nJy and, within 1e-4, 1 Jy
    np.testing.assert_allclose(flux_of(mag), [1, 10, 1e9], rtol=1e-9)
    assert flux_of(mag[:1], 27.4)[0] == pytest.approx(10**-1.6)
    # A tenth of a magnitude is 9.65 % up and 8.80 % down, 9.21 % in between.
    assert flux_error(np.array([100.0]), np.array([0.1]))[0] == pytest.approx(9.2103, rel=1e-4)


def test_a_difference_is_added_to_its_reference_with_errors_in_quadrature() -> None:
    flux, error = add_reference(*(np.array([x]) for x in (-20.0, 3.0, 100.0, 4.0)))
    assert (flux.tolist(), error.tolist()) == ([80], [5])
