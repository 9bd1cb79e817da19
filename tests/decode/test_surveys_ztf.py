"""ZTF packets: units, signs, times and the choice between total and difference flux."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_filter.config import Packets
from broker_filter.decode.surveys.ztf import mid_exposure, star_behind
from broker_filter.errors import PoisonMessage
from broker_filter.types import Photometry
from broker_filter.windows.store import WindowStore
from tests.packets import packet, points, records

JD = 2460736.6771181
STAR_BEHIND = {"magnr": 18.0, "sigmagnr": 0.02, "distnr": 0.3, "chinr": 1.0, "sharpnr": 0.0}
NO_STAR = {"magnr": 18.0, "sigmagnr": 0.02, "distnr": 8.0, "chinr": 1.0, "sharpnr": 0.0}
NONE = {"magnr": -999.0, "sigmagnr": -999.0, "distnr": -999.0, "chinr": -999.0, "sharpnr": -999.0}


def detection(**fields: Any) -> dict[str, Any]:
    """A difference of 19.4 mag: 63095.73 nJy."""
    return {
        "jd": JD, "fid": 2, "field": 410, "rcid": 28, "isdiffpos": "t", "magpsf": 19.4,
        "sigmapsf": 0.1, "nbad": 0, "rb": 0.8, "ssdistnr": -999.0, "exptime": 30.0,
        **STAR_BEHIND, **fields,
    }  # fmt: skip


def forced(**fields: Any) -> dict[str, Any]:
    """A difference of 100 DN at 26.4 mag: 10000 nJy."""
    return {
        "jd": JD - 3, "fid": 2, "field": 410, "rcid": 28, "forcediffimflux": 100.0,
        "forcediffimfluxunc": 10.0, "magzpsci": 26.4, "procstatus": "0", "exptime": 30.0,
        **STAR_BEHIND, **fields,
    }  # fmt: skip


def alert(trigger: dict[str, Any] | None = None, **lists: Any) -> dict[str, Any]:
    return {
        "objectId": "ZTF18aaaaaaa",
        "candidate": {"ra": 97.9, "dec": -2.8, **(trigger or detection())},
        "prv_candidates": None,
        **lists,
    }


def only(record: dict[str, Any], options: Packets | None = None) -> Photometry:
    [part] = packet("ztf.alert", record, options).photometry
    return part


class TestUnits:
    def test_a_magnitude_of_31_4_is_one_nanojansky(self) -> None:
        part = only(alert(detection(magpsf=31.4, **NO_STAR)))
        assert part.kind == "difference"
        assert part.flux[0] == pytest.approx(1.0)

    def test_errors_of_magnitudes_are_relative_errors_over_1_0857(self) -> None:
        part = only(alert(detection(sigmapsf=0.05, **NO_STAR)))
        assert part.flux_err[0] / part.flux[0] == pytest.approx(0.05 / 1.0857362)

    def test_forced_flux_is_scaled_by_the_zero_point_of_its_epoch(self) -> None:
        epochs = [forced(jd=JD - 3, **NO_STAR), forced(jd=JD - 2, magzpsci=25.4, **NO_STAR)]
        part = only(alert(detection(**NO_STAR), fp_hists=epochs))
        np.testing.assert_allclose(part.flux[:2], [1e4, 1e4 * 10**0.4])
        np.testing.assert_allclose(part.flux_err[:2], [1e3, 1e3 * 10**0.4])

    def test_forced_flux_of_a_star_is_the_reference_in_dn_plus_the_difference(self) -> None:
        # F [DN] = d + 10^(0.4 (zp - magnr)), in nJy at 10^(-0.4 (zp - 31.4))
        part = only(alert(detection(), fp_hists=[forced(magzpsci=26.4)]))
        in_dn = 100 + 10 ** (0.4 * (26.4 - 18.0))
        assert part.flux[0] == pytest.approx(in_dn * 100)

    # Fink's formula by hand: 3631 Jy (31.40007 mag) and 1.0857 for 2.5 / ln 10.
    @pytest.mark.parametrize(
        ("sign", "flux"),
        [("t", 292_200.1), ("1", 292_200.1), ("f", 166_001.1), ("0", 166_001.1)],
    )
    def test_total_flux_of_both_signs(self, sign: str, flux: float) -> None:
        part = only(alert(detection(isdiffpos=sign)))
        assert part.flux[0] == pytest.approx(flux, rel=1e-4)
        assert part.flux_err[0] == pytest.approx(7182.6, rel=2e-4)
        assert part.ref_flux[0] == pytest.approx(229_100.6, rel=1e-4)
        assert part.ref_flux_err[0] == pytest.approx(4220.3, rel=2e-4)

    def test_a_difference_has_its_sign(self) -> None:
        assert only(alert(detection(isdiffpos="f", **NO_STAR))).flux[0] < 0

    @pytest.mark.shared_data
    @pytest.mark.parametrize(
        ("file", "flux", "error"),
        [
            ("v4_02_ZTF17aaarzyp_2982177112815010003", 14850775.32, 176309.74),
            ("v4_02_ZTF18abudxnw_2695378462115010012", 15886448.40, 315704.58),
            ("v4_01_ZTF17aadcuwj_2475433850315015009", 7678516.71, 102967.23),
            ("v3_2_739260766315010006", 4218989.32, 145654.39),
        ],
    )
    def test_apparent_flux_of_real_alerts(
        self, shared_data: Path, file: str, flux: float, error: float
    ) -> None:
        [(name, record)] = records(shared_data / f"alerts/ztf/{file}.avro")
        made = packet(name, record, Packets(star_behind="either"))
        part = made.photometry[-1]  # holds the alert's epoch
        assert part.kind == "total"
        assert part.flux[-1] == pytest.approx(flux, rel=1e-4)
        assert part.flux_err[-1] == pytest.approx(error, rel=1e-4)


class TestTime:
    # astropy 8.0: (Time(jd, format="jd", scale="utc") + 15 s).tai.mjd
    @pytest.mark.parametrize(
        ("jd", "mjd_tai"),
        [
            (2460736.6771181, 60736.17771995208),
            (2457632.95921, 57632.45980027778),  # one leap second less
        ],
    )
    def test_start_in_utc_becomes_middle_in_tai(self, jd: float, mjd_tai: float) -> None:
        middle = mid_exposure(np.array([jd]), np.array([np.nan]))
        assert middle[0] == pytest.approx(mjd_tai, abs=1e-9)

    def test_the_exposure_time_of_the_packet_counts(self) -> None:
        part = only(alert(detection(exptime=300.0)))
        assert part.mjd_tai[0] == pytest.approx(60736.179282452074, abs=1e-9)


class TestStarBehind:
    @pytest.mark.parametrize(
        ("distance", "chi", "sharpness", "both", "either"),
        [
            (0.5, 1.0, 0.0, True, True),
            (1.5, 1.5, -0.5, True, True),
            (1.6, 1.0, 0.0, False, False),
            (0.5, 0.3, 0.0, False, True),
            (0.5, 1.0, 0.6, False, True),
            (0.5, 2.0, 0.6, False, False),
            (-999.0, 1.0, 0.0, False, False),
            (0.5, np.nan, 0.0, False, False),  # Fink takes a criterion that is not given as met
            (0.5, 1.0, -999.0, False, False),
            (np.nan, 1.0, 0.0, False, False),
        ],
    )
    def test_criteria(
        self, distance: float, chi: float, sharpness: float, both: bool, either: bool
    ) -> None:
        columns = [np.array([value]) for value in (distance, chi, sharpness)]
        assert star_behind(*columns, Packets()).tolist() == [both]
        assert star_behind(*columns, Packets(star_behind="either")).tolist() == [either]

    @pytest.mark.parametrize("reference", [NO_STAR, NONE], ids=["far", "none"])
    def test_without_a_star_there_is_no_reference(self, reference: dict[str, float]) -> None:
        part = only(alert(detection(**reference)))
        assert part.kind == "difference"
        assert np.isnan(part.ref_flux).all()

    def test_distances_of_forced_photometry_are_in_arcsec(self) -> None:
        # 1.51 arcsec are 1.495 pixels of 1.01 arcsec.
        near = only(alert(detection(), fp_hists=[forced(distnr=1.51)]))
        assert (near.kind, len(near)) == ("total", 2)
        far = packet("ztf.alert", alert(detection(), fp_hists=[forced(distnr=1.52)]))
        assert points(far) == {("r", "total"): 1, ("r", "difference"): 1}

    @pytest.mark.shared_data
    def test_the_alert_far_from_any_star_stays_difference_flux(self, shared_data: Path) -> None:
        file = shared_data / "alerts/ztf/v4_01_2475433850015015001_no_ref_star.avro"
        [(name, record)] = records(file)
        assert all(part.kind == "difference" for part in packet(name, record).photometry)


class TestCuts:
    @pytest.mark.parametrize(
        ("reason", "fields"),
        [
            ("upper_limit", {"magpsf": None, "isdiffpos": None}),
            ("not_measured", {"magpsf": -999.0}),
            ("unknown_band", {"fid": 4}),
            ("unknown_band", {"fid": None}),
            ("bad_sign", {"isdiffpos": True}),  # a boolean is no answer: Fink takes it as negative
            ("bad_sign", {"isdiffpos": ""}),
            ("solar_system", {"ssdistnr": 0.4}),
            ("nbad", {"nbad": 1}),
            ("bad_error", {"sigmapsf": -999.0, **NO_STAR}),
            ("nan_time", {"jd": float("nan")}),
            ("time_out_of_range", {"jd": 1e9}),
        ],
    )
    def test_a_detection_is_rejected(self, reason: str, fields: dict[str, Any]) -> None:
        made = packet("ztf.alert", alert(detection(), prv_candidates=[detection(**fields)]))
        assert made.rejected == {reason: 1}
        assert points(made) == {("r", "total"): 1}

    @pytest.mark.parametrize(
        ("reason", "fields"),
        [
            ("not_measured", {"forcediffimflux": -99999.0, "forcediffimfluxunc": -99999.0}),
            ("not_measured", {"forcediffimflux": None}),
            ("no_zero_point", {"magzpsci": None}),
            ("no_zero_point", {"magzpsci": -99999.0}),
            ("procstatus", {"procstatus": "61"}),
            ("unknown_band", {"fid": 0}),
        ],
    )
    def test_forced_photometry_is_rejected(self, reason: str, fields: dict[str, Any]) -> None:
        made = packet("ztf.alert", alert(detection(), fp_hists=[forced(**fields)]))
        assert made.rejected == {reason: 1}
        assert points(made) == {("r", "total"): 1}

    def test_a_low_score_is_rejected_where_one_is_asked_for(self) -> None:
        assert len(only(alert(detection(rb=0.2)))) == 1
        made = packet("ztf.alert", alert(detection(rb=0.2)), Packets(ztf_min_rb=0.3))
        assert (made.photometry, made.rejected) == ((), {"rb": 1})

    def test_a_cut_of_quality_can_be_left_out_and_one_of_meaning_cannot(self) -> None:
        options = Packets(ignored_cuts=("nbad", "unknown_band"))
        record = alert(detection(nbad=3), prv_candidates=[detection(fid=9, jd=JD - 1)])
        made = packet("ztf.alert", record, options)
        assert (points(made), made.rejected) == ({("r", "total"): 1}, {"unknown_band": 1})


class TestStar:
    def test_it_has_its_name_and_place(self) -> None:
        part = only(alert())
        assert part.star == ["ZTF18aaaaaaa"]
        assert part.coordinates == {"ZTF18aaaaaaa": (97.9, -2.8)}

    def test_without_a_place_there_are_no_coordinates(self) -> None:
        record = alert()
        record["candidate"] |= {"ra": None, "dec": -999.0}
        assert only(record).coordinates == {}

    def test_a_packet_without_a_star_is_of_no_use(self) -> None:
        assert packet("ztf.alert", alert() | {"objectId": ""}).rejected == {"no_object": 1}
        assert packet("ztf.alert", alert() | {"candidate": None}).rejected == {"no_object": 1}

    def test_a_name_beyond_all_bounds_is_poison(self) -> None:
        with pytest.raises(PoisonMessage, match="bad_star_id"):
            packet("ztf.alert", alert() | {"objectId": "Z" * 65})

    def test_fields_and_channels_have_baselines_of_their_own(self) -> None:
        other = detection(jd=JD - 1, field=411)
        parts = packet("ztf.alert", alert(prv_candidates=[other])).photometry
        assert [part.source for part in parts] == ["411-28", "410-28"]  # the newest comes last

    def test_every_band_is_a_part(self) -> None:
        record = alert(prv_candidates=[detection(jd=JD - 1, fid=1), detection(jd=JD - 2, fid=3)])
        assert [part.band for part in packet("ztf.alert", record).photometry] == ["i", "g", "r"]


class TestExposures:
    """One exposure is one epoch, whichever list tells how long it was."""

    LONG = 60.0

    def lists(self, **lists: Any) -> dict[str, Any]:
        """Three exposures of 60 s; earlier detections come without the length."""
        starts = [JD - 1, JD - 2]
        before = [{**detection(jd=jd), "exptime": None} for jd in starts]
        fluxes = [forced(jd=jd, exptime=self.LONG) for jd in (*starts, JD)]
        given = {"prv_candidates": before, "fp_hists": fluxes} | lists
        return alert(detection(exptime=self.LONG), **given)

    def test_an_exposure_in_several_lists_is_one_epoch_at_its_middle(self) -> None:
        part = only(self.lists())
        starts = np.array([JD - 2, JD - 1, JD])
        middle = mid_exposure(starts, np.full(3, self.LONG))
        np.testing.assert_allclose(part.mjd_tai, middle, rtol=0, atol=1e-9)
        assert (middle - mid_exposure(starts, np.full(3, np.nan)))[0] * 86400 == pytest.approx(15)

    def test_its_length_is_found_in_any_list_and_whatever_stands_first(self) -> None:
        whole = only(self.lists()).mjd_tai.tolist()
        shuffled = self.lists()
        for name in ("prv_candidates", "fp_hists"):
            shuffled[name] = shuffled[name][::-1]
        assert only(shuffled).mjd_tai.tolist() == whole

    def test_exposures_that_follow_one_another_stay_two(self) -> None:
        after = 40 / 86400
        record = alert(prv_candidates=[detection(jd=JD - after, exptime=None)])
        assert len(only(record)) == 2

    def test_of_packets_that_tell_and_that_do_not_the_window_holds_one(self) -> None:
        tells = [self.lists(), alert(detection(jd=JD - 1, exptime=self.LONG))]
        silent = alert(
            detection(jd=JD + 1),
            prv_candidates=[detection(jd=JD - n, exptime=None) for n in range(3)],
        )
        for sent in ([*tells, silent], [silent, *tells], [tells[1], silent, tells[0]]):
            store = WindowStore()
            for record in sent:
                store.insert(only(record))
            assert store.count.tolist() == [4]

    def test_total_flux_takes_the_place_of_difference_flux_in_any_order(self) -> None:
        total = alert(prv_candidates=[detection(jd=JD - n) for n in range(3)])
        none = alert(detection(**NO_STAR), fp_hists=[forced(jd=JD - 1, **NO_STAR)])
        contents = []
        for sent in ([total, none], [none, total]):
            store = WindowStore()
            for record in sent:
                for part in packet("ztf.alert", record).photometry:
                    store.insert(part)
            assert store.count.tolist() == [3]
            assert store.take_counts() == {"inserted": 3, "duplicate": 2}
            batch = store.read(np.array([0]))
            contents.append((batch.mjd_tai.tolist(), batch.flux.tolist(), batch.sigma.tolist()))
        assert contents[0] == contents[1]
        assert len(contents[0][0][0]) == 3
