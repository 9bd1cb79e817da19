"""Light-curve files: what is read, what is stated, what is rejected by file and line."""

from __future__ import annotations

import math
import re
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.errors import SchemaError
from broker_filter.photometry.times import TIME_SYSTEMS, tai_minus_utc, to_mjd_tai
from broker_filter.replay.lightcurves.file import (
    point_to_point_scatter,
    read_lightcurve,
    total_flux,
)
from broker_filter.replay.lightcurves.timesystem import recognise
from broker_filter.types import Photometry

OGLE = "2455260.5 18.0 0.01\n2455261.5 18.1 0.02\n2455262.5 18.2 0.03\n"


def write(folder: Path, content: str | bytes, name: str = "star_I.dat") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def only(path: Path, **options) -> Photometry:
    [part] = read_lightcurve(path, **options).parts
    return part


def magnitude(flux):
    return 31.4 - 2.5 * np.log10(flux)


class TestTimeScales:
    @pytest.mark.parametrize(
        ("mjd_utc", "seconds"),
        [  # IERS Bulletin C: steps of 1972-01-01, 1999-01-01 and 2017-01-01
            (41317.0, 10),
            (51178.999, 31),
            (51179.0, 32),
            (57753.999, 36),
            (57754.0, 37),
            (62000.0, 37),
            (40600.0, 10),
        ],
    )
    def test_leap_seconds(self, mjd_utc, seconds):
        assert tai_minus_utc(np.array([mjd_utc])) == [seconds]

    @pytest.mark.parametrize("name", ["HJD", "JD", "HJD'", "MJD"])
    def test_utc_gains_the_leap_seconds(self, name):
        system = TIME_SYSTEMS[name]
        time = np.array([2458598.5 - system.zero])  # 2019-04-25 00:00
        assert to_mjd_tai(time, system) == pytest.approx([58598 + 37 / 86400], abs=1e-9)

    @pytest.mark.parametrize("name", ["BJD", "BTJD", "BKJD"])
    def test_tdb_loses_32_184_seconds(self, name):
        system = TIME_SYSTEMS[name]
        time = np.array([2458598.5 - system.zero])
        assert to_mjd_tai(time, system) == pytest.approx([58598 - 32.184 / 86400], abs=1e-9)

    def test_tai_stays(self):
        assert to_mjd_tai(np.array([58598.25]), TIME_SYSTEMS["MJD_TAI"]) == [58598.25]

    @pytest.mark.parametrize(
        ("column", "typical", "file", "name", "scale"),
        [
            ("hjd", 2455260.0, "", "HJD", "UTC"),
            ("hjd", 8708.6, "", "HJD - 2450000", "UTC"),
            ("", 8708.6, "", "HJD - 2450000", "UTC"),
            ("jd", 2455260.0, "", "JD", "UTC"),
            ("mjd", 58000.0, "", "MJD", "UTC"),
            ("mjd_tai", 58000.0, "", "MJD", "TAI"),
            ("time", 58000.0, "", "MJD", "UTC"),
            ("hjd", 58000.0, "", "HJD - 2400000", "UTC"),
            ("bjd_tdb", 2455260.0, "", "BJD", "TDB"),
            ("bjd_utc", 2455260.0, "", "BJD", "UTC"),
            ("bjd_2457000", 1500.0, "", "BJD - 2457000", "TDB"),
            ("jd_2400000_5", 58000.0, "", "JD - 2400000.5", "UTC"),
            ("btjd", 1500.0, "", "BTJD = BJD - 2457000", "TDB"),
            ("time_bkjd", 170.0, "", "BKJD = BJD - 2454833", "TDB"),
            ("time", 1437.9, "TIC31381302_flux_only.csv", "BTJD = BJD - 2457000", "TDB"),
            ("time", 169.8, "KIC10002792.csv", "BKJD = BJD - 2454833", "TDB"),
            ("", 2458346.5, "ulwdc1_010_W149.txt", "BJD", "TDB"),
        ],
    )
    def test_recognised(self, column, typical, file, name, scale):
        system = recognise(column, typical, file)
        assert (system.name, system.scale) == (name, scale)

    def test_what_was_assumed_or_kept_is_stated(self):
        assert "assumed" in recognise("", 8708.6).statement
        assert "heliocentric correction kept" in recognise("hjd", 8708.6).statement
        assert "assumed" not in recognise("hjd", 8708.6).statement

    @pytest.mark.parametrize("typical", [-0.25, 0.0, 344.0, 25_000.0, 1e9, math.nan])
    def test_numbers_that_are_no_date(self, typical):
        with pytest.raises(SchemaError, match=r"no date.*--time-system"):
            recognise("time", typical)


class TestUnits:
    def test_magnitudes_become_njy(self, tmp_path):
        part = only(write(tmp_path, "2455260.5 31.4 0.1\n2455261.5 28.9 0.01\n"))
        assert part.flux == pytest.approx([1.0, 10.0])
        # d(flux)/flux = ln 10 / 2.5 dm = 0.921 dm
        assert part.flux_err == pytest.approx([0.0921034, 0.0921034])

    def test_zero_point(self, tmp_path):
        part = only(write(tmp_path, "2455260.5 28.0 0.1\n"), zero_point=28.0)
        assert part.flux == pytest.approx([1.0])

    def test_fluxes_stay_as_they_are_and_that_is_said(self, tmp_path):
        path = write(tmp_path, "mjd,flux,flux_err\n58000.0,-3.5,1.5\n58001.0,4,2\n58002,9,1\n")
        curve = read_lightcurve(path)
        assert curve.parts[0].flux.tolist() == [-3.5, 4.0, 9.0]
        assert curve.parts[0].kind == "difference"  # below zero at a third of the epochs
        assert any("unit of the file" in note for note in curve.notes)

    def test_missing_errors_are_estimated_from_neighbours(self, tmp_path):
        rng = np.random.default_rng(3)
        flux = 1000 + 50 * np.sin(np.arange(4000) / 300) + rng.normal(0, 2.0, 4000)
        flux[::100] += 500
        rows = "".join(f"{58000 + i / 100},{value}\n" for i, value in enumerate(flux))
        curve = read_lightcurve(write(tmp_path, "mjd,flux\n" + rows))
        assert curve.parts[0].flux_err == pytest.approx(2.0, rel=0.1)
        assert any("estimated" in note for note in curve.notes)

    def test_no_error_column_and_no_scatter(self, tmp_path):
        with pytest.raises(SchemaError, match="no error column"):
            read_lightcurve(write(tmp_path, "mjd,flux\n58000,5\n58001,5\n58002,5\n"))

    def test_scatter_of_too_few_points_is_unknown(self):
        assert math.isnan(point_to_point_scatter(np.array([1.0, 2.0])))


class TestPysis:
    def rows(self, n=40, scale=-20.0, reference=1e5, zero_point=31.4):
        """Epochs as pySIS writes them, with one that is brighter by far and one below zero."""
        rng = np.random.default_rng(1)
        delta = rng.normal(0, 200, n)
        delta[3], delta[7] = 6000 * np.sign(scale), -9000 * np.sign(scale)
        flux = reference + scale * delta
        mag = zero_point - 2.5 * np.log10(np.where(flux > 0, flux, np.nan))
        return delta, np.round(mag, 4), flux

    @pytest.mark.parametrize("scale", [-20.0, 20.0])
    def test_difference_flux_becomes_total_flux_with_gaussian_errors(self, tmp_path, scale):
        delta, mag, flux = self.rows(scale=scale)
        lines = [
            f"{8600 + i} {delta[i]:.4f} 150.0 {mag[i]} 0.02 4.5 900 1.5\n"
            for i in range(len(delta))
        ]
        text = "# HJD  \\Delta_flux flux_err  mag  mag_err  fwhm  sky  secz\n" + "".join(lines)
        curve = read_lightcurve(write(tmp_path, text, "KMTA02_I.pysis"))
        [part] = curve.parts
        assert curve.format == "kmtnet-pysis"
        assert not curve.rejected  # the epoch without a magnitude is read all the same
        assert part.flux.min() < 0 < part.flux.max()
        assert part.flux == pytest.approx(flux, rel=2e-3, abs=100)
        assert part.flux_err == pytest.approx(150 * 20.0, rel=2e-3)
        assert part.kind == "total"

    def test_a_quarter_of_wild_magnitudes_does_not_move_the_line(self):
        delta, mag, _ = self.rows(n=400)
        mag[::5] = 25.0
        reference, scale = total_flux(delta, mag, 31.4)
        assert scale == pytest.approx(-20.0, rel=0.01)
        assert reference == pytest.approx(1e5, rel=1e-3)

    def test_unrelated_columns_have_no_line(self):
        rng = np.random.default_rng(2)
        assert total_flux(rng.normal(0, 200, 100), rng.normal(18, 0.1, 100), 31.4) is None

    def test_too_few_epochs_fall_back_to_magnitudes_and_say_so(self, tmp_path):
        text = (
            "# HJD \\Delta_flux flux_err mag mag_err\n8600.0 10 5 18.0 0.02\n8601.0 1 5 18.1 0.02\n"
        )
        curve = read_lightcurve(write(tmp_path, text))
        assert magnitude(curve.parts[0].flux) == pytest.approx([18.0, 18.1])
        assert any("magnitudes read" in note for note in curve.notes)

    def test_difference_flux_alone_is_difference_flux(self, tmp_path):
        part = only(write(tmp_path, "# HJD delta_flux flux_err\n8600.0 10 5\n8601.0 1 5\n"))
        assert part.kind == "difference"
        assert part.flux.tolist() == [10.0, 1.0]


class TestLayouts:
    @pytest.mark.parametrize(
        "text",
        [
            "hjd,mag,mag_err\n2455260.5,18.0,0.01\n",
            '"HJD","Mag","e_mag"\n"2455260.5","18.0","0.01"\n',
            "HJD;mag;err\n2455260.5;18.0;0.01\n",
            "HJD\tairmass\tmag\terr\n2455260.5\t\t18.0\t0.01\n",
            "# HJD mag err\n2455260.5 18.0 0.01\n",
            "% photometry\n# time magnitude error\n# days mag mag\n2455260.5\t18.0\t\t0.01\n",
            "err,MAG,HJD-2450000\n0.01,18.0,5260.5\n",
            "// made by hand\n\n! twice\n 2455260.5   18.0 0.01 1.2 700.0\n",
            "\ufeff2455260.5 18.0 0.01\r\n",
            "|      HJD |  MAG |  ERR |\n| double   | real | real |\n 2455260.5   18.0   0.01\n",
            "|      HJD | FLUX |  MAG |  MAG_ERR |\n 2455260.5          18.0     0.01\n",
        ],
    )
    def test_one_epoch_in_many_spellings(self, tmp_path, text):
        if "FLUX" in text:  # the first of the two, and its cell is blank
            with pytest.raises(SchemaError, match=r":2: missing"):
                read_lightcurve(write(tmp_path, text))
            return
        part = only(write(tmp_path, text))
        assert part.mjd_tai == pytest.approx([55260 + 34 / 86400], abs=1e-8)
        assert magnitude(part.flux) == pytest.approx([18.0])
        assert part.flux_err / part.flux == pytest.approx([0.01 * 0.921034])

    def test_names_come_from_the_file_name(self, tmp_path):
        part = only(write(tmp_path, OGLE, "ulwdc1_012_W149.txt"))
        assert (part.star[0], part.band, part.source) == ("ulwdc1_012_W149", "W149", part.star[0])

    def test_names_come_from_the_caller_first(self, tmp_path):
        text = "star,filter,mjd,mag,err\nA,g,58000,18,0.1\n"
        part = only(write(tmp_path, text), star="B", band="r", survey="roman")
        assert (part.star, part.band, part.survey) == (["B"], "r", "roman")

    def test_columns_split_a_file_by_star_band_and_source(self, tmp_path):
        text = (
            "star,band,site,mjd,mag,err,quality\nA,g,x,58001,18,0.1,0\nA,g,x,58000,19,0.1,4\n"
            "A,r,x,58000,18,0.1,0\nB,r,y,58000,18,0.1,0\nA,r,y,58000,18,0.1,0\n"
        )
        parts = read_lightcurve(write(tmp_path, text)).parts
        names = [(part.star[0], part.band, part.source) for part in parts]
        assert names == [("A", "g", "x"), ("A", "r", "x"), ("B", "r", "y"), ("A", "r", "y")]
        assert magnitude(parts[0].flux) == pytest.approx([19, 18])  # by time
        assert parts[0].flags.tolist() == [4, 0]

    def test_ipac_keywords_name_star_band_place_and_clock(self, tmp_path):
        text = (
            '\\STAR_ID = "OGLE 2003-BLG-235L"\n\\RA = "18h01m16.35s"\n\\DEC = "-28d53m42.00s"\n'
            '\\TIME_REFERENCE_FRAME = "Heliocentric JD"\n'
            '\\TIME_SERIES_DATA_FILTER = "I (Johnson)"\n'
            "|        JD |  MAG |  ERR |\n  2455260.5   18.0   0.01\n"
        )
        curve = read_lightcurve(write(tmp_path, text, "x.tbl"))
        [part] = curve.parts
        assert (part.star, part.band, part.source) == (["OGLE 2003-BLG-235L"], "I", "x")
        assert curve.time_system.name == "HJD"
        ra, dec = part.coordinates["OGLE 2003-BLG-235L"]
        assert ra == pytest.approx(15 * (18 + 1 / 60 + 16.35 / 3600))
        assert dec == pytest.approx(-(28 + 53 / 60 + 42 / 3600))

    def test_pipeline_flux_with_an_unnamed_clock_is_refused(self, tmp_path):
        text = "time,pdcsap_flux\n1437.9,100\n1438.0,101\n1438.1,99\n"
        with pytest.raises(SchemaError, match="BTJD or BKJD"):
            read_lightcurve(write(tmp_path, text, "mine.csv"))
        curve = read_lightcurve(write(tmp_path, text, "mine.csv"), time_system=TIME_SYSTEMS["BTJD"])
        assert curve.parts[0].mjd_tai[0] == pytest.approx(58437.4, abs=1e-3)

    def test_star_id_that_is_too_long(self, tmp_path):
        with pytest.raises(SchemaError, match="--star"):
            read_lightcurve(write(tmp_path, OGLE), star="é" * 33)


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ("2455261.5 garbage 0.02", "not_a_number"),
            ("2455261.5 1_8.1 0.02", "not_a_number"),
            ("\x01\x02\xff\xfe", "too_few_columns"),
            ("2455261.5 18.1", "too_few_columns"),
            ("2455261.5 nan 0.02", "missing"),
            ("NA 18.1 0.02", "missing"),
            ("2455261.5 18.1 NaN", "missing"),
            ("2455261.5 18.1 0.0", "bad_error"),
            ("2455261.5 18.1 -0.02", "bad_error"),
            ("2455261.5 18.1 inf", "bad_error"),
            ("2455261.5 99.999 0.02", "out_of_range"),
            ("1e300 18.1 0.02", "out_of_range"),
            ("3455261.5 18.1 0.02", "out_of_range"),
            ("12.5 18.1 0.02", "out_of_range"),
            ("2455261.5 18.1 0.02" + " " * 5000 + "1", "too_long"),
        ],
    )
    def test_a_broken_row_is_named_and_the_rest_is_read(self, tmp_path, row, reason):
        first, _, third = OGLE.splitlines()
        path = write(tmp_path, f"# a comment\n{first}\n{row}\n{third}\n")
        curve = read_lightcurve(path)
        [rejection] = curve.rejected
        assert (rejection.line, rejection.reason, rejection.file) == (3, reason, path)
        assert str(rejection).startswith(f"{path}:3: ")
        assert len(rejection.text) <= 80
        assert rejection.text.isprintable()
        assert magnitude(curve.parts[0].flux) == pytest.approx([18.0, 18.2])

    @pytest.mark.parametrize("row", ["2455261.5", "1 2 3 4 5 6 7", "2455261.5,18,0.1"])
    def test_a_broken_first_row_does_not_spoil_the_file(self, tmp_path, row):
        curve = read_lightcurve(write(tmp_path, f"{row}\n{OGLE}"))
        assert [rejection.line for rejection in curve.rejected] == [1]
        assert len(curve) == 3

    @pytest.mark.parametrize("text", ["", "\n\r\n  \n", "# HJD mag err\n", "hjd,mag,err\n"])
    def test_empty_body(self, tmp_path, text):
        path = write(tmp_path, text)
        with pytest.raises(SchemaError, match="empty body") as error:
            read_lightcurve(path)
        assert str(path) in str(error.value)

    def test_no_readable_row_names_the_first(self, tmp_path):
        path = write(tmp_path, "2455261.5 18.1 0\n2455262.5 18.1 -1\n")
        with pytest.raises(SchemaError, match=r"no readable row.*star_I\.dat:1: bad error"):
            read_lightcurve(path)

    @pytest.mark.parametrize(
        "content",
        [
            b"PK\x03\x04\x00\x00rubbish",
            "2455261.5 18.1 0.1\n".encode("utf-16"),
            bytes(range(256)) * 40,
            bytes(range(128, 256)) * 4,
        ],
    )
    def test_binary_rubbish(self, tmp_path, content):
        with pytest.raises(SchemaError, match=r"star_I\.dat"):
            read_lightcurve(write(tmp_path, content))

    def test_missing_file_and_folder(self, tmp_path):
        with pytest.raises(SchemaError, match=r"none\.dat: cannot be read"):
            read_lightcurve(tmp_path / "none.dat")
        with pytest.raises(SchemaError, match="expected a file"):
            read_lightcurve(tmp_path)

    def test_a_line_of_100_mb_takes_no_memory_and_spares_the_rest(self, tmp_path):
        path = tmp_path / "long_I.dat"
        with path.open("wb") as file:
            file.write(OGLE.encode())
            for _ in range(100):
                file.write(b"7" * 1_000_000)
            file.write(b"\n2455263.5 18.3 0.03\n")
        tracemalloc.start()
        curve = read_lightcurve(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(curve) == 4
        assert [(r.line, r.reason) for r in curve.rejected] == [(4, "too_long")]
        assert peak < 5_000_000

    def test_too_large_a_file(self, tmp_path):
        path = tmp_path / "huge.dat"
        with path.open("wb") as file:
            file.truncate(300 * 1024 * 1024)
        with pytest.raises(SchemaError, match="split it"):
            read_lightcurve(path)

    @pytest.mark.parametrize(
        "header", ["phase,mag,err", "mjd,redshift", "Mp,alpha,t0,tE,u0", "t0,mag,err"]
    )
    def test_headers_without_a_light_curve(self, tmp_path, header):
        row = ",".join(["58000"] * (header.count(",") + 1))
        with pytest.raises(SchemaError, match="not a light curve"):
            read_lightcurve(write(tmp_path, f"{header}\n{row}\n"))

    @settings(max_examples=200, deadline=None)
    @given(content=st.binary(max_size=300))
    def test_any_bytes_are_read_or_refused(self, tmp_path_factory, content):
        path = write(tmp_path_factory.mktemp("any"), OGLE.encode() + content)
        try:
            curve = read_lightcurve(path)
        except SchemaError:
            return
        for part in curve.parts:
            assert np.isfinite(part.mjd_tai).all()
            assert np.isfinite(part.flux).all()
            assert (part.flux_err > 0).all()
            assert (np.diff(part.mjd_tai) >= 0).all()


NO_LIGHT_CURVES = {
    "README.md",
    "FSPL_test.dat",
    "ogle2_events_shared.zip",
    "ogle2_variables_shared.zip",
    "ffp_published_parameters.csv",
    "dccv_parameters.csv",
    "dcnormffp_parameters.csv",
    "ulwdc1_additional_columns.txt",
    "ulwdc1_column_numbers.txt",
    "ulwdc1_master_file.txt",
}


@pytest.mark.shared_data
class TestRealFiles:
    @pytest.fixture
    def photometry(self, shared_data):
        return shared_data / "photometry"

    def test_every_file_is_read_or_refused_by_name(self, photometry):
        """Bounds that hold for any of these archives: 1995 to 2026, magnitudes 5 to 26."""
        for path in sorted(path for path in photometry.rglob("*") if path.is_file()):
            if path.name in NO_LIGHT_CURVES:
                with pytest.raises(SchemaError, match=re.escape(str(path))):
                    read_lightcurve(path)
                continue
            curve = read_lightcurve(path)
            [part] = curve.parts
            lines = [line for line in path.read_text().splitlines() if line.strip()]
            body = [line for line in lines if line.strip().strip('"')[0] in "-0123456789"]
            assert len(part) + len(curve.rejected) == len(body), path
            assert 49_700 < part.mjd_tai[0] < part.mjd_tai[-1] < 61_500, path
            if curve.notes[1].startswith("nJy"):
                assert 5 < magnitude(np.median(part.flux)) < 26, path
            if path.name != "OB03235_MOA.tbl.txt":
                assert part.kind == "total"
                assert 5e-5 < np.median(part.flux_err / part.flux) < 0.3, path

    @pytest.mark.parametrize(
        ("name", "form", "n", "rejected", "system", "band"),
        [  # epochs as the files' own headers or line counts say
            ("mulensmodel/MB08310/MOA_0300089_PLC_007.tbl", "ipac", 2862, {}, "HJD", "I"),
            ("mulensmodel/OB03235/OB03235_MOA.tbl.txt", "ipac", 1250, {}, "HJD", "R"),
            ("mulensmodel/OB03235/OB03235_OGLE.tbl.txt", "ipac", 285, {}, "JD", "I"),
            ("mulensmodel/OB05390/OGLE_I.dat", "ogle", 342, {}, "HJD", "I"),
            (
                "ogle_dwarf_novae/OGLE-BLG-DN-0001.dat",
                "ogle", 9776, {}, "HJD - 2450000", "unknown",
            ),
            ("roman_sim/ulwdc1_012_Z087.txt", "roman-data-challenge", 870, {}, "BJD", "Z087"),
            (
                "tess_flares/TIC31381302_flux_only.csv",
                "named-columns", 17033, {"missing": 686}, "BTJD = BJD - 2457000", "unknown",
            ),
            (
                "kepler_flares/EPIC211117077_c04_llc.csv",
                "named-columns", 3282, {}, "BKJD = BJD - 2454833", "unknown",
            ),
        ],
    )  # fmt: skip
    def test_formats(self, photometry, name, form, n, rejected, system, band):
        curve = read_lightcurve(photometry / name)
        counts = Counter(rejection.reason for rejection in curve.rejected)
        assert (curve.format, len(curve), counts) == (form, n, rejected)
        assert (curve.time_system.name, curve.parts[0].band) == (system, band)

    def peak(self, part: Photometry, centre: float, half_width: float) -> float:
        """Flux-weighted centre of the excess near a published peak, days MJD TAI."""
        base = np.median(part.flux)
        near = np.abs(part.mjd_tai - centre) < half_width
        excess = np.clip(part.flux[near] - base, 0, None)
        top = excess > 0.7 * excess.max()
        return float(np.average(part.mjd_tai[near][top], weights=excess[top]))

    def test_kmt_2019_blg_2073_peaks_at_its_published_time(self, photometry):
        """HJD' 8708.598 (Kim et al. 2021, AJ 162, 15), seen by the site that covers it."""
        t0 = 58708.098 + 37 / 86400
        parts = [only(path) for path in sorted((photometry / "kmt_2019_blg_2073").glob("*.pysis"))]
        assert len(parts) == 6
        near = [part for part in parts if (np.abs(part.mjd_tai - t0) < 0.2).any()]
        assert near
        mjd = np.concatenate([part.mjd_tai for part in near])
        ratio = np.concatenate([part.flux / np.median(part.flux) for part in near])
        error = np.concatenate([part.flux_err / np.median(part.flux) for part in near])
        precise = (error < 0.05) & (np.abs(mjd - t0) < 3)
        brightest = mjd[precise][np.argsort(ratio[precise])[-10:]]
        assert np.median(brightest) == pytest.approx(t0, abs=0.1)

    def test_kmt_flux_agrees_with_its_magnitudes(self, photometry):
        path = photometry / "kmt_2019_blg_2073" / "KMTC02_I.pysis"
        part = only(path)
        mag = np.loadtxt(path, usecols=3)
        assert np.median(np.abs(magnitude(part.flux) - mag)) < 1e-3

    def test_ogle_2005_blg_390_peaks_at_its_published_time(self, photometry):
        """HJD' 3582.731 (Beaulieu et al. 2006, Nature 439, 437)."""
        t0 = 53582.231 + 32 / 86400
        part = only(photometry / "mulensmodel" / "OB05390" / "OGLE_I.dat")
        assert self.peak(part, t0, 15) == pytest.approx(t0, abs=1.0)

    def test_roman_012_rises_towards_its_true_time(self, photometry):
        """t0, u0 and tE of the data challenge's master file; the season ends 0.36 d before t0."""
        t0 = 2458234 + 364.603549 - 2400000.5 - 32.184 / 86400
        part = only(photometry / "roman_sim" / "ulwdc1_012_W149.txt")
        assert np.abs(part.mjd_tai - t0).min() == pytest.approx(0.355, abs=0.001)
        rising = (part.mjd_tai > t0 - 20) & (part.mjd_tai < t0)
        mjd, flux = part.mjd_tai[rising], part.flux[rising] / np.median(part.flux)

        def misfit(t):
            u2 = 0.0472834**2 + ((mjd - t) / 16.1921) ** 2
            design = np.stack([(u2 + 2) / np.sqrt(u2 * (u2 + 4)), np.ones(len(u2))], axis=1)
            return np.linalg.lstsq(design, flux)[1][0]

        grid = t0 + np.linspace(-0.5, 0.5, 101)
        assert grid[np.argmin([misfit(t) for t in grid])] == pytest.approx(t0, abs=0.05)
