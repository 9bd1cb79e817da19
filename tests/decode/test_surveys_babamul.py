"""Babamul's packets, made after the schemas that BOOM derives; no real one was at hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.packets import packet, points

JD = 2460736.6771181


def ztf_point(magnitude: float, sign: float = 1.0, **fields: Any) -> dict[str, Any]:
    """A point of known magnitude, as BOOM writes it: +-10^(-0.4 (m - 23.9)) 1e9, called nJy."""
    flux = sign * 10 ** (-0.4 * (magnitude - 23.9)) * 1e9
    return {"jd": JD, "psfFlux": flux, "psfFluxErr": 0.1 * abs(flux), "band": "r", **fields}


def ztf_alert(**fields: Any) -> dict[str, Any]:
    candidate = {
        **ztf_point(19.4), "magpsf": 19.4, "isdiffpos": True, "magnr": 18.0, "sigmagnr": 0.02,
        "distnr": 0.3, "chinr": 1.0, "sharpnr": 0.0, "exptime": 30.0, "nbad": 0, "rb": 0.9,
        "ssdistnr": -999.0, "ra": 97.9, "dec": -2.8, "fid": 2,
    }  # fmt: skip
    lists: dict[str, Any] = {"prv_candidates": [], "prv_nondetections": [], "fp_hists": []}
    return {"objectId": "ZTF18aaaaaaa", "candidate": candidate, **lists, **fields}


class TestZtf:
    def test_its_unit_is_a_millionth_of_what_it_says(self) -> None:
        record = ztf_alert(prv_candidates=[ztf_point(31.4, jd=JD - 1)])
        [part] = packet("EnrichedZtfAlert", record).photometry
        assert part.flux.tolist() == pytest.approx([1.0, 63095.734])  # 31.4 and 19.4 mag
        assert part.flux_err.tolist() == pytest.approx([0.1, 6309.5734])

    def test_fluxes_have_their_sign(self) -> None:
        record = ztf_alert(fp_hists=[ztf_point(20.0, sign=-1, jd=JD - 1)])
        [part] = packet("EnrichedZtfAlert", record).photometry
        assert (np.sign(part.flux) == [-1, 1]).all()

    def test_the_band_of_the_alert_has_a_reference(self) -> None:
        record = ztf_alert(prv_candidates=[ztf_point(19, jd=JD - 1, band="g")])
        parts = {part.band: part for part in packet("EnrichedZtfAlert", record).photometry}
        assert {part.kind for part in parts.values()} == {"difference"}
        assert parts["r"].ref_flux.tolist() == pytest.approx([229086.77])  # 18.0 mag
        assert np.isnan(parts["g"].ref_flux).all()

    def test_times_are_starts_in_utc(self) -> None:
        [part] = packet("EnrichedZtfAlert", ztf_alert()).photometry
        assert part.mjd_tai[0] == pytest.approx(60736.17771995208, abs=1e-9)

    def test_an_exposure_of_60_s_is_one_epoch_in_all_lists(self) -> None:
        record = ztf_alert(prv_candidates=[ztf_point(19.4)], fp_hists=[ztf_point(19.5)])
        record["candidate"]["exptime"] = 60.0
        [part] = packet("EnrichedZtfAlert", record).photometry
        assert part.mjd_tai.tolist() == pytest.approx([60736.17771995208 + 15 / 86400], abs=1e-9)

    def test_the_alert_is_also_in_the_history_and_forced_photometry_goes_first(self) -> None:
        record = ztf_alert(
            prv_candidates=[ztf_point(19.4)],
            fp_hists=[ztf_point(19.5)],
            prv_nondetections=[{"jd": JD - 2, "psfFluxErr": 1e8, "band": "r"}],
        )
        made = packet("EnrichedZtfAlert", record)
        assert made.photometry[0].flux.tolist() == pytest.approx([10 ** (-0.4 * (19.5 - 31.4))])
        assert made.rejected == {"duplicate": 2, "upper_limit": 1}

    def test_an_alert_of_bad_pixels_is_rejected(self) -> None:
        record = ztf_alert()
        record["candidate"]["nbad"] = 2
        assert packet("EnrichedZtfAlert", record).rejected == {"nbad": 1}

    def test_a_packet_without_a_star_is_of_no_use(self) -> None:
        record = ztf_alert(objectId=None)
        assert packet("EnrichedZtfAlert", record).rejected == {"no_object": 1}


class TestLsst:
    def alert(self, **fields: Any) -> dict[str, Any]:
        candidate = {
            "visit": 1, "detector": 2, "midpointMjdTai": 61000.5, "jd": 2461001.0, "band": "i",
            "psfFlux": 500.0, "psfFluxErr": 10.0, "scienceFlux": 5500.0, "scienceFluxErr": 12.0,
            "templateFlux": 5000.0, "templateFluxErr": 3.0, "diaObjectId": 77, "ssObjectId": None,
            "ra": 10.0, "dec": -5.0, **fields,
        }  # fmt: skip
        history = [{"jd": 2461000.0, "psfFlux": 400.0, "psfFluxErr": 9.0, "band": "i"}]
        return {
            "objectId": "77",
            "candidate": candidate,
            "prv_candidates": history,
            "fp_hists": history,
            "properties": {},
        }

    def test_only_the_alert_has_a_total_flux(self) -> None:
        made = packet("EnrichedLsstAlert", self.alert())
        history, alert = made.photometry
        assert (history.kind, history.flux.tolist()) == ("difference", [400])  # true nJy
        assert np.isnan(history.ref_flux).all()  # one template flux is no reference
        assert (alert.kind, alert.flux.tolist()) == ("total", [5500])
        assert (alert.survey, alert.star) == ("babamul-lsst", [77])
        assert made.rejected == {"duplicate": 1}

    def test_julian_dates_are_middles_in_tai(self) -> None:
        history, alert = packet("EnrichedLsstAlert", self.alert()).photometry
        assert history.mjd_tai.tolist() == [60999.5]
        assert alert.mjd_tai.tolist() == [61000.5]

    def test_the_rules_are_those_of_lsst(self) -> None:
        flagged = packet("EnrichedLsstAlert", self.alert(psfFlux_flag=True))
        assert flagged.rejected["psfFlux_flag"] == 1
        rock = packet("EnrichedLsstAlert", self.alert(diaObjectId=None, ssObjectId=5))
        assert rock.rejected == {"solar_system": 1}

    def test_without_a_name_of_its_schema_it_is_known_by_its_fields(self) -> None:
        assert points(packet("", self.alert())) == {("i", "difference"): 1, ("i", "total"): 1}
