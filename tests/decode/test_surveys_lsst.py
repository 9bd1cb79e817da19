"""LSST and ELAsTiCC packets: which flux is taken, and which epochs are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_filter.config import Packets
from broker_filter.decode.surveys.lsst import CUT_FLAGS, PIXEL_FLAGS
from broker_filter.types import Photometry
from tests.packets import packet, points, records

NAME = "lsst.v10_0.alert"
MJD = 61109.14520318322
STAR = 313985345528004656


OLD = {
    "midPointTai": 60674.0512, "filterName": "Y", "psFlux": 464.95, "psFluxErr": 14.79,
    "ra": 49.0, "decl": -41.0, "diaObjectId": 747, "ccdVisitId": 111111,
}  # fmt: skip


def source(**fields: Any) -> dict[str, Any]:
    return {
        "visit": 2026030900027, "detector": 107, "midpointMjdTai": MJD, "band": "g",
        "psfFlux": 500.0, "psfFluxErr": 10.0, "scienceFlux": 5500.0, "scienceFluxErr": 12.0,
        "templateFlux": 5010.0, "templateFluxErr": 3.0, "timeWithdrawnMjdTai": None,
        "ra": 149.5, "dec": 3.1, "diaObjectId": STAR, "ssObjectId": 0, **fields,
    }  # fmt: skip


def earlier(days: int, **fields: Any) -> dict[str, Any]:
    return source(midpointMjdTai=MJD - days, visit=2026030900027 - 1000 * days, **fields)


def alert(trigger: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "diaSource": trigger or source(),
        "prvDiaSources": None,
        "prvDiaForcedSources": None,
        "diaObject": {"diaObjectId": STAR, "ra": 149.6, "dec": 3.2},
        **fields,
    }


def only(record: dict[str, Any], name: str = NAME) -> Photometry:
    [part] = packet(name, record).photometry
    return part


class TestFlux:
    def test_the_total_flux_is_that_of_the_science_image(self) -> None:
        part = only(alert())
        assert (part.kind, part.flux.tolist(), part.flux_err.tolist()) == ("total", [5500], [12])
        assert part.mjd_tai.tolist() == [MJD]
        assert np.isnan(part.ref_flux).all()

    @pytest.mark.parametrize("templates", [4, 5])
    def test_without_it_the_difference_has_the_median_template_as_reference(
        self, templates: int
    ) -> None:
        bare = {"scienceFlux": None, "scienceFluxErr": None}
        values = [5000.0, 5100.0, 4900.0, 5200.0, 5000.0][:templates]
        history = [earlier(i + 1, templateFlux=flux, **bare) for i, flux in enumerate(values)]
        part = only(alert(source(templateFlux=None, **bare), prvDiaSources=history))
        assert part.kind == "difference"
        assert part.flux[-1] == 500
        if templates < 5:
            assert np.isnan(part.ref_flux).all()
        else:
            assert set(part.ref_flux.tolist()) == {5000.0}
            assert part.ref_flux_err[0] == pytest.approx(1.4826 * 100)

    def test_a_template_flux_that_is_nan_is_none(self) -> None:
        bare = {"scienceFlux": None, "templateFlux": float("nan")}
        history = [earlier(i, **bare) for i in range(1, 9)]
        part = only(alert(source(**bare), prvDiaSources=history))
        assert (part.kind, len(part)) == ("difference", 9)
        assert np.isnan(part.ref_flux).all()

    def test_references_are_of_one_band(self) -> None:
        history = [earlier(i, band="r") for i in range(1, 9)]
        made = packet(NAME, alert(source(scienceFlux=None), prvDiaSources=history))
        [alone] = [part for part in made.photometry if part.kind == "difference"]
        assert alone.band == "g"
        assert np.isnan(alone.ref_flux).all()

    def test_no_ones_flux_is_minus_one_plus_minus_one(self) -> None:
        part = only(alert(source(scienceFlux=-1.0, scienceFluxErr=1.0)))
        assert part.kind == "difference"

    def test_a_negative_difference_keeps_its_sign(self) -> None:
        part = only(alert(source(psfFlux=-70.0, scienceFlux=None)))
        assert part.flux.tolist() == [-70]


class TestOnePointAVisit:
    def test_forced_photometry_goes_before_the_detection(self) -> None:
        forced = source(scienceFlux=5480.0, scienceFluxErr=20.0)
        made = packet(NAME, alert(prvDiaForcedSources=[forced]))
        assert made.photometry[0].flux.tolist() == [5480]
        assert made.rejected == {"duplicate": 1}

    def test_the_same_visit_is_one_however_its_times_differ(self) -> None:
        forced = source(midpointMjdTai=MJD + 10 / 86400)
        assert len(only(alert(prvDiaForcedSources=[forced]))) == 1
        forced["detector"] = 108
        assert len(only(alert(prvDiaForcedSources=[forced]))) == 2

    def test_a_forced_flux_that_is_nan_does_not_take_the_detections_place(self) -> None:
        forced = source(scienceFlux=None, psfFlux=float("nan"))
        made = packet(NAME, alert(prvDiaForcedSources=[forced]))
        assert made.photometry[0].flux.tolist() == [5500]
        assert made.rejected == {"nan_flux": 1}

    def test_total_flux_goes_before_difference_flux(self) -> None:
        forced = source(scienceFlux=None)
        assert only(alert(prvDiaForcedSources=[forced])).kind == "total"


class TestCuts:
    @pytest.mark.parametrize("flag", CUT_FLAGS)
    def test_a_flagged_detection_is_counted_under_its_flag(self, flag: str) -> None:
        made = packet(NAME, alert(prvDiaSources=[earlier(1, **{flag: True})]))
        assert made.rejected == {flag: 1}
        assert points(made) == {("g", "total"): 1}

    def test_a_flag_that_is_null_is_not_set(self) -> None:
        unset = dict.fromkeys(CUT_FLAGS)
        assert packet(NAME, alert(source(**unset))).rejected == {}

    def test_several_flags_count_once(self) -> None:
        flags = dict.fromkeys(CUT_FLAGS, True)
        assert sum(packet(NAME, alert(source(**flags))).rejected.values()) == 1

    @pytest.mark.parametrize(
        ("flag", "left"), [(PIXEL_FLAGS[0], 1), ("psfFlux_flag", 2), ("centroid_flag", 2)]
    )
    def test_spoilt_pixels_spoil_the_forced_photometry_of_the_visit(
        self, flag: str, left: int
    ) -> None:
        record = alert(prvDiaSources=[earlier(1, **{flag: True})], prvDiaForcedSources=[earlier(1)])
        made = packet(NAME, record)
        assert sum(points(made).values()) == left
        assert made.rejected == {flag: 3 - left}

    def test_flags_and_scores_are_for_the_user_to_choose(self) -> None:
        record = alert(source(reliability=0.3, pixelFlags_streak=True))
        lenient = Packets(ignored_cuts=frozenset({"pixelFlags_streak"}))
        assert len(packet(NAME, record, lenient).photometry) == 1
        strict = Packets(lsst_min_reliability=0.5)
        assert packet(NAME, record, strict).rejected == {"reliability": 1}

    @pytest.mark.parametrize(
        ("reason", "fields"),
        [
            ("withdrawn", {"timeWithdrawnMjdTai": MJD}),
            ("unknown_band", {"band": "w"}),
            ("unknown_band", {"band": None}),
            ("nan_time", {"midpointMjdTai": float("nan")}),
            ("time_out_of_range", {"midpointMjdTai": 1480360995.0}),  # Unix seconds
            ("bad_error", {"scienceFlux": None, "psfFluxErr": 0.0}),
        ],
    )
    @pytest.mark.parametrize("history", ["prvDiaSources", "prvDiaForcedSources"])
    def test_an_epoch_is_rejected(self, history: str, reason: str, fields: dict[str, Any]) -> None:
        made = packet(NAME, alert(**{history: [earlier(1) | fields]}))
        assert made.rejected == {reason: 1}
        assert points(made) == {("g", "total"): 1}


class TestStar:
    @pytest.mark.parametrize("nothing", [None, 0])
    def test_its_id_is_the_objects_else_the_detections(self, nothing: int | None) -> None:
        other = alert(source(diaObjectId=nothing))
        assert only(other).star == [STAR]
        assert only(alert() | {"diaObject": None}).star == [STAR]

    def test_its_place_is_the_objects_else_the_detections(self) -> None:
        assert only(alert()).coordinates == {STAR: (149.6, 3.2)}
        assert only(alert() | {"diaObject": None}).coordinates == {STAR: (149.5, 3.1)}

    @pytest.mark.parametrize(
        ("reason", "fields"),
        [
            ("solar_system", {"diaObjectId": 0, "ssObjectId": 21163633152112203}),
            ("withdrawn", {"timeWithdrawnMjdTai": MJD}),
            ("no_object", {"diaObjectId": None, "ssObjectId": None}),
        ],
    )
    @pytest.mark.parametrize("no_object", [None, {"diaObjectId": None, "ra": None, "dec": None}])
    def test_a_packet_of_no_use_is_counted(
        self, reason: str, fields: dict[str, Any], no_object: dict[str, None] | None
    ) -> None:
        made = packet(NAME, alert(source(**fields)) | {"diaObject": no_object})
        assert (made.photometry, made.rejected) == ((), {reason: 1})

    def test_a_packet_without_a_detection_is_of_no_use(self) -> None:
        assert packet(NAME, alert() | {"diaSource": None}).rejected == {"no_object": 1}


class TestOldNames:
    """Names before 5.0, which ELAsTiCC uses."""

    def test_they_mean_what_the_new_ones_mean(self) -> None:
        part = only(alert(OLD) | {"diaObject": None}, "elasticc.v0_9.alert")
        assert (part.survey, part.band, part.kind) == ("elasticc", "y", "difference")
        assert part.mjd_tai.tolist() == [60674.0512]
        assert part.flux.tolist() == [464.95]
        assert part.coordinates == {747: (49.0, -41.0)}

    def test_total_flux_has_an_old_name_too(self) -> None:
        old = OLD | {"totFlux": 900.0, "totFluxErr": 15.0}
        part = only(alert(old) | {"diaObject": None}, "elasticc.v0_9.alert")
        assert (part.kind, part.flux.tolist()) == ("total", [900])

    @pytest.mark.shared_data
    def test_forced_photometry_without_total_flux_is_difference_flux(
        self, shared_data: Path
    ) -> None:
        file = shared_data / "alerts/elasticc/fink_elasticc_sample_seed0.parquet"
        kinds = {part.kind for _, r in records(file) for part in packet("", r).photometry}
        assert kinds == {"difference"}
