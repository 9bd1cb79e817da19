"""Tables in the forms of many archives: what each row is of, and what must not be read silently."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.errors import SchemaError
from broker_filter.replay.lightcurves.file import LightCurve, read_lightcurve
from broker_filter.replay.lightcurves.names import is_error, quantity_of, role_of, snake


def table(folder: Path, header: str, rows: list[str], name: str = "made_up.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def read(folder: Path, header: str, rows: list[str], **options) -> LightCurve:
    return read_lightcurve(table(folder, header, rows), **options)


def magnitude(flux):
    return 31.4 - 2.5 * np.log10(flux)


def series(curve: LightCurve) -> list[tuple[str, str, int]]:
    return [(part.star[0], part.band, len(part)) for part in curve.parts]


class TestIrsaZtf:
    HEADER = "oid,expid,hjd,mjd,mag,magerr,catflags,filtercode,ra,dec"

    def rows(self, n=24, **changes):
        values = {"oid": "686103400034440", "flag": "0", "band": "zg", "ra": 270.1} | changes
        return [
            f"{values['oid']},{6_000 + i},{2458600.6 + i},{58600.1 + i},19.0{i % 7},0.02,"
            f"{values['flag']},{values['band']},{values['ra']},-29.5"
            for i in range(n)
        ]

    def test_filters_stay_apart_and_flags_are_kept(self, tmp_path):
        red = self.rows(oid="686203400034441", band="zr")
        flagged = self.rows(5, flag="32768")
        curve = read(tmp_path, self.HEADER, [*self.rows(), *red, *flagged])
        assert series(curve) == [("made_up", "zg", 29), ("made_up", "zr", 24)]
        assert np.count_nonzero(curve.parts[0].flags == 32768) == 5
        assert any("flags from catflags (5 rows)" in note for note in curve.notes)

    def test_series_of_one_star_in_two_fields_have_baselines_of_their_own(self, tmp_path):
        other = self.rows(oid="1686103400034440")
        curve = read(tmp_path, self.HEADER, [*self.rows(), *other])
        assert {part.star[0] for part in curve.parts} == {"made_up"}
        assert len({part.source for part in curve.parts}) == 2

    def test_stars_of_one_quadrant_are_two_stars(self, tmp_path):
        other = self.rows(oid="686103400099999", ra=270.2)
        curve = read(tmp_path, self.HEADER, [*self.rows(), *other])
        places = {star: place for part in curve.parts for star, place in part.coordinates.items()}
        assert places == {"686103400034440": (270.1, -29.5), "686103400099999": (270.2, -29.5)}

    def test_without_places_the_number_tells_stars_from_fields(self, tmp_path):
        def read_oids(*oids: str) -> set[str]:
            rows = [f"{oid},{58600 + i},19,0.02" for oid in oids for i in range(3)]
            curve = read(tmp_path, "oid,mjd,mag,magerr", rows)
            return {part.star[0] for part in curve.parts}

        assert read_oids("686103400034440", "686103400034441") == {
            "686103400034440",
            "686103400034441",
        }
        assert read_oids("686103400034440", "686203400034440") == {"made_up"}


class TestAlerce:
    HEADER = "candid,mjd,fid,isdiffpos,magpsf,sigmapsf,magpsf_corr,sigmapsf_corr,ra,dec,dubious"

    def test_corrected_magnitudes_are_total_and_filters_have_names(self, tmp_path):
        rows = [
            f"{i},{58600 + i},{1 + i % 2},-1,19.5,0.1,16.2,0.02,234.6,21.6,False" for i in range(8)
        ]
        rows.append("8,58608,1,1,19.5,0.1,,,234.6,21.6,False")
        rows.append("9,58609,1,1,19.5,0.1,16.2,0.02,234.6,21.6,True")
        curve = read(tmp_path, self.HEADER, rows)
        assert series(curve) == [("made_up", "g", 5), ("made_up", "r", 4)]
        assert {part.kind for part in curve.parts} == {"total"}
        assert magnitude(curve.parts[0].flux) == pytest.approx(16.2)
        assert curve.parts[0].flags.tolist() == [0, 0, 0, 0, 1]
        assert Counter(one.reason for one in curve.rejected) == {"missing": 1}

    def test_uncorrected_differences_have_a_sign(self, tmp_path):
        rows = [f"{i},{58600 + i},1,{s},21.4,0.1,,,10,20,false" for i, s in enumerate("t1f-tf")]
        rows = [row.replace(",-,", ",-1,") for row in rows]
        curve = read(tmp_path, self.HEADER, rows)
        [part] = curve.parts
        assert part.kind == "difference"
        assert np.sign(part.flux).tolist() == [1, 1, -1, -1, 1, -1]
        assert np.abs(part.flux) == pytest.approx(1e4)

    def test_an_error_of_100_is_no_error(self, tmp_path):
        rows = [f"{i},{58600 + i},1,1,19.5,0.1,16.2,{e},1,2,f" for i, e in enumerate((0.02, 100))]
        curve = read(tmp_path, self.HEADER, rows)
        assert [(one.line, one.reason) for one in curve.rejected] == [(3, "bad_error")]


class TestAsasSn:
    def test_sky_patrol_1(self, tmp_path):
        header = "HJD,UT Date,Camera,FWHM,Limit,mag,mag_err,flux(mJy),flux_err,Filter"
        rows = [
            "2458000.5,2017-09-04.1,ba,1.5,17.1,14.10,0.02,8.9,0.2,V",
            "2458001.5,2017-09-05.1,be,1.5,17.0,14.20,0.02,8.1,0.2,g",
            "2458002.5,2017-09-06.1,be,1.5,16.5,>16.5,99.99,0.1,0.2,g",
            "2458003.5,2017-09-07.1,be,1.5,16.5,99.990,99.99,0.1,0.2,g",
        ]
        curve = read(tmp_path, header, rows)
        assert [(p.band, p.source, len(p)) for p in curve.parts] == [("V", "ba", 1), ("g", "be", 1)]
        assert [one.reason for one in curve.rejected] == ["limit", "out_of_range"]

    def test_sky_patrol_2_grades_are_flags(self, tmp_path):
        header = "JD,Flux,Flux Error,Mag,Mag Error,Limit,FWHM,Filter,Quality,Camera"
        rows = [f"{2458000.5 + i},8.9,0.2,14.1,0.02,17.1,1.5,g,G,bA" for i in range(5)]
        rows.append("2458009.5,8.9,0.2,14.1,0.02,17.1,1.5,g,B,bA")
        [part] = read(tmp_path, header, rows).parts
        assert part.flags.tolist() == [0, 0, 0, 0, 0, 1]
        assert (part.band, part.source) == ("g", "bA")


def test_atlas_forced_photometry_is_microjansky_by_filter_and_flag(tmp_path):
    header = "###MJD m dm uJy duJy F err chi/N RA Dec x y maj min phi apfit mag5sig Sky Obs"
    tail = "1.0 270.1 -29.5 1.0 2.0 3.1 2.9 10 -0.4 19.4 20.9 01a58"
    rows = [f"{58000.2 + i} -19.1 0.3 -2.5 1.5 {'oc'[i % 2]} {i // 6} {tail}{i}" for i in range(8)]
    curve = read(tmp_path, header, rows)
    assert series(curve) == [("made_up", "o", 4), ("made_up", "c", 4)]
    part = curve.parts[0]
    assert (part.flux.tolist(), part.flux_err.tolist()) == ([-2500.0] * 4, [1500.0] * 4)
    assert part.flags.tolist() == [0, 0, 0, 1]
    assert part.coordinates == {"made_up": (270.1, -29.5)}


def test_gaia_epochs_have_their_own_clock_and_rejections(tmp_path):
    header = (
        "source_id,transit_id,band,time,mag,flux,flux_error,flux_over_error,"
        "rejected_by_photometry,rejected_by_variability,other_flags,solution_id"
    )
    rows = [
        f"40{i % 2},{i},{'G' if i < 4 else 'BP'},{1700.0 + i},17.1,3500.5,2.5,1400,"
        f"{'true' if i == 2 else 'false'},false,4097,7"
        for i in range(6)
    ]
    curve = read(tmp_path, header, rows)
    assert {part.star[0] for part in curve.parts} == {"400", "401"}
    assert {part.band for part in curve.parts} == {"G", "BP"}
    first = curve.parts[0]
    assert (first.flux[0], first.flux_err[0]) == (3500.5, 2.5)
    assert first.flags.tolist() == [0, 1]
    # BJD - 2455197.5, on the barycentric clock: MJD = 1700 + 55197, less 32.184 s
    assert first.mjd_tai[0] == pytest.approx(56897 - 32.184 / 86400, abs=1e-9)


def test_skyportal_rows_are_numbered_and_instruments_stay_apart(tmp_path):
    """Forced photometry and alerts of one instrument are of the same exposures: one source."""
    header = "id,obj_id,mjd,mag,magerr,magsys,limiting_mag,filter,instrument_name,origin,ra,dec"
    rows = [
        f"{i},{'AB'[i // 4]},{60000 + i},18.1,0.1,ab,20.1,ztfg,{('ZTF', 'SEDM')[i % 2]},"
        f"{('fp', '')[i % 3 % 2]},{10 + i // 4},20"
        for i in range(8)
    ]
    rows.append("8,A,60009,,,ab,20.1,ztfg,ZTF,fp,10,20")
    curve = read(tmp_path, header, rows)
    assert [(p.star[0], p.source) for p in curve.parts] == [
        ("A", "ZTF"),
        ("A", "SEDM"),
        ("B", "ZTF"),
        ("B", "SEDM"),
    ]
    assert [one.reason for one in curve.rejected] == ["missing"]


def test_skyportal_fluxes_are_scaled_by_the_zero_point_of_each_row(tmp_path):
    rows = ["60000,100,2,23.9", "60001,100,2,25.4", "60002,100,2,"]
    [part] = read(tmp_path, "mjd,flux,fluxerr,zp", rows).parts
    assert part.flux == pytest.approx([1e5, 1e5 * 10**-0.6], rel=1e-9)
    assert part.flux_err == pytest.approx(part.flux / 50)


class TestSpacecraft:
    def test_lightkurve(self, tmp_path):
        header = "time,flux,flux_err,timecorr,cadenceno,centroid_col,sap_flux,quality"
        rows = [f"{1500 + i / 720},100.5,0.2,0.001,{i},3.2,99.1,{8 * (i == 2)}" for i in range(5)]
        with pytest.raises(SchemaError, match="BTJD or BKJD"):
            read(tmp_path, header, rows)
        [part] = read(tmp_path, header.replace("time,", "btjd,", 1), rows).parts
        assert part.flags.tolist() == [0, 0, 8, 0, 0]
        assert part.flux_err.tolist() == [0.2] * 5

    def test_short_names(self, tmp_path):
        rows = [f"{1500 + i},65838.3,29.6,0" for i in range(3)]
        [part] = read(tmp_path, "btjd,pdcsap,err,quality", rows).parts
        assert part.flux_err.tolist() == [29.6] * 3


class TestVizier:
    def test_telescopes_limits_and_notes(self, tmp_path):
        header = "HJD;Vmag;e_Vmag;l_Vmag;u_Vmag;Tel"
        rows = [f"{2455000 + i};14.2;0.02;;;{('KPNO', 'CTIO')[i % 2]}" for i in range(4)]
        rows += ["2455005;18.0;0.02;>;;KPNO", "2455006;14.2;0.02;;:;KPNO"]
        curve = read(tmp_path, header, rows)
        assert [(p.band, p.source, len(p)) for p in curve.parts] == [
            ("V", "KPNO", 3),
            ("V", "CTIO", 2),
        ]
        assert curve.parts[0].flags.tolist() == [0, 0, 1]
        assert [one.reason for one in curve.rejected] == ["limit"]


def test_aavso_observers_are_sources_and_fainter_than_is_a_limit(tmp_path):
    header = (
        "JD,Magnitude,Uncertainty,HQuncertainty,Band,Observer Code,Comment Code(s),Comp Star 1,"
        "Airmass,Validation Flag,Star Name"
    )
    rows = [
        f"{2459000.5 + i},{m},0.02,,V,{('ABC', 'XYZ')[i % 2]},,98,1.1,{v},NSV 1"
        for i, (m, v) in enumerate([("12.1", "Z"), ("12.2", "V"), ("<13.0", "V"), ("12.1", "T")])
    ]
    curve = read(tmp_path, header, rows)
    assert [(p.star[0], p.band, p.source) for p in curve.parts] == [
        ("NSV 1", "V", "ABC"),
        ("NSV 1", "V", "XYZ"),
    ]
    assert curve.parts[1].flags.tolist() == [0, 1]
    assert [one.reason for one in curve.rejected] == ["limit"]


def test_ztf_forced_photometry_is_scaled_by_the_zero_point_of_each_image(tmp_path):
    header = (
        "index, field, ccdid, qid, filter, pid, infobitssci, zpdiff, jd, forcediffimflux, "
        "forcediffimfluxunc, procstatus"
    )
    rows = [
        f"{i} 781 5 {1 + i // 3} ZTF_g 27{i} {16 * (i == 1)} {26.0 + i % 2} {2458270.9 + i} "
        f"-71.3 20.5 0"
        for i in range(6)
    ]
    rows.append("6 781 5 2 ZTF_g 277 0 26.0 2458279.9 null null 56")
    curve = read(tmp_path, header, rows)
    assert [(p.band, p.source, p.kind) for p in curve.parts] == [
        ("ZTF_g", "781/5/1", "difference"),
        ("ZTF_g", "781/5/2", "difference"),
    ]
    assert curve.parts[0].flux[:2] == pytest.approx(
        [-71.3 * 10 ** (0.4 * 5.4), -71.3 * 10 ** (0.4 * 4.4)]
    )
    assert curve.parts[0].flags.tolist() == [0, 16, 0]


def test_lsst_sources_have_microlensing_units_and_objects(tmp_path):
    header = "diaObjectId,midpointMjdTai,band,psfFlux,psfFluxErr"
    rows = [f"{7 + i // 3},{60000.5 + i},{'gr'[i % 2]},1500.5,20.5" for i in range(6)]
    curve = read(tmp_path, header, rows)
    assert {part.star[0] for part in curve.parts} == {"7", "8"}
    assert {part.kind for part in curve.parts} == {"difference"}
    assert (curve.time_system.name, curve.time_system.scale) == ("MJD", "TAI")


def test_differences_of_two_bands_are_not_put_on_one_reference(tmp_path):
    """A quarter of the rows is of another star in the reference image: its line is another one."""
    rng = np.random.default_rng(4)
    rows = []
    for i, delta in enumerate(rng.normal(0, 200, 80)):
        total = (1e5 if i % 4 else 4e4) + delta
        rows.append(f"{58000 + i},{delta:.3f},20,{magnitude(total):.5f},0.02,{'rrrg'[i % 4 - 1]}")
    curve = read(tmp_path, "mjd,delta_flux,flux_err,mag,mag_err,band", rows)
    medians = {part.band: np.median(part.flux) for part in curve.parts}
    assert medians == {
        "r": pytest.approx(1e5, rel=0.01),
        "g": pytest.approx(4e4, rel=0.01),
    }


class TestStars:
    def test_id_ra_and_dec_make_many_stars_with_places(self, tmp_path):
        rows = [f"{i // 3},{270 + i // 3},-29,{58000 + i},18,0.1" for i in range(9)]
        curve = read(tmp_path, "id,ra,dec,mjd,mag,err", rows)
        assert [(p.star[0], p.coordinates) for p in curve.parts] == [
            (name, {name: (270.0 + number, -29.0)}) for number, name in enumerate("012")
        ]

    def test_one_epoch_of_many_stars(self, tmp_path):
        rows = [f"{i},{270 + i},-29,58000.0,18,0.1" for i in range(5)]
        assert len(read(tmp_path, "id,ra,dec,mjd,mag,err", rows).parts) == 5

    def test_numbered_rows_are_one_star(self, tmp_path):
        rows = [f"{i},270,-29,{58000 + i},18,0.1" for i in range(5)]
        assert series(read(tmp_path, "id,ra,dec,mjd,mag,err", rows)) == [("made_up", "unknown", 5)]

    def test_places_that_lie_apart_without_an_id_are_refused(self, tmp_path):
        rows = [f"{270 + i % 2 / 100},-29,{58000 + i},18,0.1" for i in range(6)]
        with pytest.raises(SchemaError, match=r"15\.7 arcsec from their middle: several stars"):
            read(tmp_path, "ra,dec,mjd,mag,err", rows)
        curve = read(tmp_path, "ra,dec,mjd,mag,err", rows, ignore=["RA"])
        assert series(curve) == [("made_up", "unknown", 6)]

    def test_sexagesimal_places(self, tmp_path):
        [part] = read(
            tmp_path, "RAJ2000,DEJ2000,mjd,mag,err", ["18:00:00.0,-29:30:00,58000,18,0.1"]
        ).parts
        assert part.coordinates == {"made_up": (270.0, -29.5)}

    def test_one_name_for_the_rows_of_several_stars_is_refused(self, tmp_path):
        rows = [f"{'AB'[i % 2]},{58000 + i},18,0.1" for i in range(4)]
        with pytest.raises(SchemaError, match="--star X for rows of several: A, B"):
            read(tmp_path, "star,mjd,mag,err", rows, star="X")
        with pytest.raises(SchemaError, match="--band g for rows of several"):
            read(tmp_path, "band,mjd,mag,err", rows, band="g")


class TestLimits:
    @pytest.mark.parametrize(
        ("name", "yes", "no"),
        [
            ("upperlimit", "T", "F"),
            ("upper_limit", "1", "0"),
            ("ul", "True", "False"),
            ("limit", ">", ""),
            ("detected", "False", "True"),
            ("nondetection", "y", "n"),
        ],
    )
    def test_rows_that_are_limits_are_named(self, tmp_path, name, yes, no):
        rows = [f"{58000 + i},20.5,0.1,{yes if i == 2 else no}" for i in range(5)]
        curve = read(tmp_path, f"mjd,mag,err,{name}", rows)
        assert [(one.line, one.reason) for one in curve.rejected] == [(4, "limit")]

    def test_a_depth_is_no_limit(self, tmp_path):
        rows = [f"{58000 + i},18.5,0.1,{20 + i / 10}" for i in range(5)]
        assert len(read(tmp_path, "mjd,mag,err,limit", rows)) == 5

    def test_words_that_are_not_known_are_refused(self, tmp_path):
        rows = [f"{58000 + i},18.5,0.1,{w}" for i, w in enumerate(("maybe", "no"))]
        with pytest.raises(SchemaError, match=r"column upperlimit holds 'maybe'"):
            read(tmp_path, "mjd,mag,err,upperlimit", rows)


class TestFlags:
    def test_words_and_numbers(self, tmp_path):
        rows = [f"{58000 + i},18,0.1,{w}" for i, w in enumerate(("good", "BAD", "", "0", "4"))]
        [part] = read(tmp_path, "mjd,mag,err,flag", rows).parts
        assert part.flags.tolist() == [0, 1, 0, 0, 4]

    def test_a_column_of_good_rows_is_read_in_its_sense(self, tmp_path):
        rows = [f"{58000 + i},18,0.1,{w}" for i, w in enumerate((1, 0, 1))]
        [part] = read(tmp_path, "mjd,mag,err,is_good", rows).parts
        assert part.flags.tolist() == [0, 1, 0]

    def test_all_columns_of_flags_count(self, tmp_path):
        rows = ["58000,18,0.1,0,true", "58001,18,0.1,2,false", "58002,18,0.1,0,false"]
        [part] = read(tmp_path, "mjd,mag,err,flags,saturated", rows).parts
        assert part.flags.tolist() == [1, 2, 0]

    def test_a_bit_beyond_the_32nd_is_a_flag(self, tmp_path):
        rows = [f"58000,18,0.1,{2**40}", "58001,18,0.1,0"]
        [part] = read(tmp_path, "mjd,mag,err,flags", rows).parts
        assert (part.flags != 0).tolist() == [True, False]

    @pytest.mark.parametrize("cell", ["C", "0.7"])
    def test_what_is_not_understood_is_refused(self, tmp_path, cell):
        rows = ["58000,18,0.1,0", f"58001,18,0.1,{cell}"]
        with pytest.raises(SchemaError, match=f"column quality holds '{cell}'.*--ignore-column"):
            read(tmp_path, "mjd,mag,err,quality", rows)
        assert len(read(tmp_path, "mjd,mag,err,quality", rows, ignore=["Quality"])) == 2

    def test_a_flag_in_every_row_is_refused(self, tmp_path):
        rows = [f"{58000 + i},18,0.1,1" for i in range(30)]
        with pytest.raises(SchemaError, match="flags every row"):
            read(tmp_path, "mjd,mag,err,quality", rows)


class TestErrors:
    @pytest.mark.parametrize(
        ("value", "error"),
        [
            ("mag", "e_mag"),
            ("mag", "magerr"),
            ("mag", "mage"),
            ("mag", "Mag_Uncertainty"),
            ("magnitude", "e_magnitude"),
            ("magpsf", "sigmapsf"),
            ("psfMag", "psfMagErr"),
            ("psfmag", "psfmagerr"),
            ("m", "dm"),
            ("flux", "flux_err"),
            ("flux", "dFlux"),
            ("uJy", "duJy"),
            ("pdcsap_flux", "PDCSAP_FLUX_ERR"),
            ("forcediffimflux", "forcediffimfluxunc"),
            ("flux_ujy", "flux_err_ujy"),
            ("Vmag", "e_Vmag"),
            ("RELATIVE_MAGNITUDE", "MAGNITUDE_UNCERTAINTY"),
        ],
    )
    def test_the_error_of_a_value_is_known_by_its_name(self, value, error):
        assert quantity_of(snake(value))
        assert is_error(snake(error), snake(value)) > 1

    @pytest.mark.parametrize(
        ("value", "other"),
        [("mag", "u_mag"), ("flux", "flux_over_error"), ("mag", "dec"), ("mag", "exptime")],
    )
    def test_what_is_no_error(self, value, other):
        assert not is_error(other, value)

    def test_errors_that_are_none_reject_their_rows(self, tmp_path):
        errors = ["-99", "0", "9.999", "0.02", "99.99", "-1"]
        rows = [f"{58000 + i},18,{e},g" for i, e in enumerate(errors)]
        curve = read(tmp_path, "time,magnitude,e_magnitude,band", rows)
        assert [one.line for one in curve.rejected] == [2, 3, 6, 7]
        part = curve.parts[0]
        assert part.flux_err / part.flux == pytest.approx([9.2094, 0.018421], rel=1e-4)

    def test_a_column_that_may_hold_errors_is_not_passed_over(self, tmp_path):
        rows = [f"{58000 + i},18.{i},0.{i + 1}" for i in range(5)]
        with pytest.raises(SchemaError, match="column mag_total_err may hold the error"):
            read(tmp_path, "mjd,mag,mag_total_err", rows)


class TestUnread:
    def test_columns_that_were_not_read_are_named(self, tmp_path):
        curve = read(tmp_path, "mjd,mag,err,airmass,seeing", ["58000,18,0.1,1.2,0.9"])
        assert "columns not read: airmass, seeing" in curve.notes

    @pytest.mark.parametrize("name", ["target_name", "lc_id", "filter2_id", "bandpass"])
    def test_a_second_column_that_parts_rows_is_refused(self, tmp_path, name):
        rows = [f"A,g,{58000 + i},18,0.1,{'xy'[i % 2]}" for i in range(6)]
        with pytest.raises(SchemaError, match=f"column {name} may hold the .*: x, y"):
            read(tmp_path, f"star,band,mjd,mag,err,{name}", rows)
        same = [row[:-1] + "x" for row in rows]
        assert len(read(tmp_path, f"star,band,mjd,mag,err,{name}", same)) == 6

    @pytest.mark.parametrize(
        "name", ["Instrument/Telescope", "filter used", "CCD chip", "is rejected or not"]
    )
    def test_a_name_of_several_words_that_may_part_rows_is_refused(self, tmp_path, name):
        rows = [f"{58000 + i},18,0.1,{'xy'[i % 2]}" for i in range(12)]
        with pytest.raises(SchemaError, match=r"may hold .*, is not read"):
            read(tmp_path, f"mjd,mag,err,{name}", rows)
        assert len(read(tmp_path, f"mjd,mag,err,{name}", rows, ignore=[name])) == 12

    @pytest.mark.parametrize("name", ["ccd_temperature", "telescope altitude", "limiting mag"])
    def test_what_varies_with_time_parts_no_rows(self, tmp_path, name):
        rows = [f"{58000 + i},18,0.1,{20 + i / 7:.3f}" for i in range(12)]
        assert len(read(tmp_path, f"mjd,mag,err,{name}", rows)) == 12

    def test_bands_side_by_side_are_refused(self, tmp_path):
        with pytest.raises(SchemaError, match="several bands side by side"):
            read(tmp_path, "mjd,g_mag,g_mag_err,r_mag,r_mag_err", ["58000,18,0.1,17,0.1"])

    def test_the_band_in_the_name_of_a_magnitude(self, tmp_path):
        assert read(tmp_path, "mjd,Vmag,e_Vmag", ["58000,18,0.1"]).parts[0].band == "V"
        assert read(tmp_path, "hjd,I,err", ["2458000,18,0.1"]).parts[0].band == "I"

    def test_names_with_blanks_in_a_table_parted_by_blanks(self, tmp_path):
        with pytest.raises(SchemaError, match="are more than the 4 of a row"):
            read(tmp_path, "HJD UT Date mag err", ["2458000.5 2017-09-04 18.0 0.1"])


class TestWithoutHeader:
    TIMES = 2458000.5 + np.arange(60)

    def rows(self, values, error=0.002):
        return [f"{t:.4f} {v:.4f} {error}" for t, v in zip(self.TIMES, values, strict=True)]

    @pytest.mark.parametrize(
        ("values", "error"),
        [
            (1 - 0.1 * np.exp(-np.square(np.arange(60) - 30) / 50), 0.002),  # normalised flux
            (np.linspace(-75, 1100, 60), 20.0),  # difference flux
            (np.linspace(15, 25, 60), 5.0),  # counts, as the errors say
            (np.linspace(900, 1100, 60), 3.0),
        ],
    )
    def test_what_is_hardly_a_magnitude_is_asked_for(self, tmp_path, values, error):
        first, *rest = self.rows(values, error)
        with pytest.raises(SchemaError, match=r"--quantity mag, flux or delta-flux"):
            read(tmp_path, first, rest)
        curve = read(tmp_path, first, rest, quantity="flux")
        assert curve.parts[0].flux.tolist() == pytest.approx(values.tolist(), abs=1e-4)
        difference = read(tmp_path, first, rest, quantity="delta_flux")
        assert difference.parts[0].kind == "difference"

    def test_magnitudes_are_read_and_may_be_said(self, tmp_path):
        first, *rest = self.rows(np.full(60, 17.5), 0.01)
        for options in ({}, {"quantity": "mag"}):
            curve = read(tmp_path, first, rest, **options)
            assert magnitude(curve.parts[0].flux) == pytest.approx(17.5)

    def test_magnitudes_of_an_instrument_are_read_where_it_is_said(self, tmp_path):
        first, *rest = self.rows(np.full(60, -6.1), 0.1)
        with pytest.raises(SchemaError, match="--quantity"):
            read(tmp_path, first, rest)
        assert len(read(tmp_path, first, rest, quantity="mag")) == 60


def test_a_header_that_calls_fluxes_magnitudes_is_not_believed(tmp_path):
    rows = [f"{58000 + i},{500 + i},3" for i in range(10)]
    with pytest.raises(SchemaError, match="10 of 10 values of mag are no magnitudes"):
        read(tmp_path, "mjd,mag,err", rows)


def test_the_caller_chooses_between_magnitude_and_flux(tmp_path):
    header, rows = "mjd,mag,magerr,flux,fluxerr", ["58000,18,0.1,250,5"]
    assert read(tmp_path, header, rows).parts[0].flux == pytest.approx(10 ** (0.4 * 13.4))
    assert read(tmp_path, header, rows, quantity="flux").parts[0].flux_err.tolist() == [5.0]


@pytest.mark.parametrize(
    ("unit", "njy"), [("nJy", 1), ("uJy", 1e3), ("µJy", 1e3), ("mJy", 1e6), ("Jy", 1e9)]
)
def test_units_of_flux(tmp_path, unit, njy):
    curve = read(tmp_path, f"mjd,flux ({unit}),flux_err ({unit})", ["58000,3,0.5"])
    assert (curve.parts[0].flux[0], curve.parts[0].flux_err[0]) == (3 * njy, 0.5 * njy)


def test_a_time_that_names_its_frame_comes_first(tmp_path):
    curve = read(tmp_path, "date,time,hjd,mag,err", ["2017-09-04,12.5,2458000.5,18,0.1"])
    assert curve.time_system.name == "HJD"


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("filtercode", "band"),
        ("Tel", "source"),
        ("obj_id", "star"),
        ("MasterID", "star"),
        ("rejected_by_photometry", "flags"),
        ("infobitssci", "flags"),
        ("limiting_mag", None),
        ("diffmaglim", None),
        ("airmass", None),
        ("_RAJ2000", "ra"),
        ("DE_ICRS", "dec"),
    ],
)
def test_names_of_archives(name, role):
    assert role_of(snake(name)) == role


NAMES = [
    *("mjd", "hjd", "time", "date", "mag", "magerr", "flux", "flux_err", "ujy", "dujy", "m", "dm"),
    *("f", "err", "band", "fid", "filter", "star", "id", "oid", "object_id", "tel", "field"),
    *("flags", "quality", "good", "limit", "upperlimit", "ra", "dec", "isdiffpos", "magpsf"),
    *("magpsf_corr", "sigmapsf_corr", "delta_flux", "zp", "transit_id", "source_id", "Vmag"),
    *("e_Vmag", "l_Vmag", "I", "other"),
]
CELLS = [
    *("", "58000.5", "2458000.5", "18.1", "0.1", "1", "0", "-1", "g", "nan", ">17", "T"),
    *("x\x1b[", "270"),
]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_table_of_known_names_is_read_or_refused_by_name(tmp_path_factory, data):
    header = data.draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=9))
    row = st.lists(st.sampled_from(CELLS), min_size=0, max_size=len(header) + 1)
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    path = table(tmp_path_factory.mktemp("any"), ",".join(header), [",".join(r) for r in rows])
    parts, refused = (), str(path)
    try:
        parts = read_lightcurve(path).parts
    except SchemaError as error:
        refused = str(error)
    assert str(path) in refused
    assert "\x1b" not in refused
    for part in parts:
        assert np.isfinite(part.flux).all()
        assert (part.flux_err > 0).all()
