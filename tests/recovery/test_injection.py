"""Injection: which stars, what flux, what errors, and what the truth says of them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from broker_filter.config import Packets
from broker_filter.decode.decoder import Decoder
from broker_filter.decode.native import encode_block, encode_photometry
from broker_filter.errors import ConfigError
from broker_filter.recovery.config import InjectionConfig, Range, read_config
from broker_filter.recovery.injection import Injector, light_curve_injector, running_snr
from broker_filter.recovery.records import RecordInjector
from broker_filter.replay.publish import native_photometry
from broker_filter.replay.stream import Record
from broker_filter.schemas import schema_header
from broker_filter.types import Message, Photometry
from broker_filter.windows.store import WindowStore
from tests import build

T0 = 60_000.0
FIXED = {
    "share": 1.0,
    "t0": Range(low=T0, high=T0),
    "u0": Range(low=0.5, high=0.5),
    "tE": Range(low=2.0, high=2.0),
    "rho": Range(low=0.001, high=0.001),
    "f_s": Range(low=0.4, high=0.4),
}


def config(**changes) -> InjectionConfig:
    return InjectionConfig(**FIXED | changes)


def photometry(times, star="A", flux=1000.0, error=1.0, ref=1000.0, **changes) -> Photometry:
    plain = {"survey": "s", "band": "I", "source": "x", "flux": flux, "flux_err": error}
    plain |= {"ref_flux": ref, "ref_flux_err": 1.0}
    return build.photometry(times, star, **plain | changes)


def paczynski(u: float) -> float:
    return (u * u + 2) / (u * math.sqrt(u * u + 4))


class TestWhich:
    def test_the_share_of_the_stars_is_the_stated_one(self):
        injector = Injector(config(share=0.2))
        n = 20_000
        chosen = sum(injector.lens(f"star-{i}") is not None for i in range(n))
        assert abs(chosen - 0.2 * n) < 5 * math.sqrt(n * 0.2 * 0.8)

    def test_star_and_seed_alone_decide(self):
        wide = {"t0": Range(low=T0, high=T0 + 100), "share": 0.5}
        one, two = Injector(config(**wide)), Injector(config(**wide))
        other = Injector(config(seed=2, **wide))
        stars = [f"s{i}" for i in range(200)]
        lenses = [one.lens(star) for star in stars]
        assert lenses == [two.lens(star) for star in reversed(stars)][::-1]
        assert lenses != [other.lens(star) for star in stars]

    def test_an_id_is_the_same_as_number_and_as_text(self):
        injector = Injector(config(share=0.5))
        assert [injector.lens(n) for n in range(50)] == [injector.lens(str(n)) for n in range(50)]

    def test_a_larger_share_keeps_the_stars_of_a_smaller_one(self):
        few, many = Injector(config(share=0.1)), Injector(config(share=0.3))
        stars = [f"s{i}" for i in range(500)]
        assert all(many.lens(star) == few.lens(star) for star in stars if few.lens(star))

    def test_ranges_are_kept(self):
        spread = {"tE": Range(low=0.1, high=10, log=True), "u0": Range(low=0.2, high=0.9)}
        injector = Injector(config(**spread))
        lenses = [injector.lens(f"s{i}") for i in range(2000)]
        assert all(0.1 <= lens.tE <= 10 and 0.2 <= lens.u0 <= 0.9 for lens in lenses)
        assert np.median([lens.tE for lens in lenses]) == pytest.approx(1.0, rel=0.15)


class TestFlux:
    def test_the_peak_is_that_of_a_blended_point_source(self):
        changed = Injector(config()).magnify(photometry([T0], error=1e-6))
        expected = 1000.0 * (0.4 * paczynski(0.5) + 0.6)
        assert changed.flux[0] == pytest.approx(expected, rel=1e-4)

    def test_one_einstein_time_off_the_peak(self):
        changed = Injector(config()).magnify(photometry([T0 + 2.0], error=1e-6))
        u = math.hypot(0.5, 1.0)
        assert changed.flux[0] == pytest.approx(1000.0 * (0.4 * paczynski(u) + 0.6), rel=1e-4)

    def test_errors_grow_as_the_root_of_the_photons(self):
        changed = Injector(config()).magnify(photometry([T0, T0 + 1000.0], error=3.0))
        growth = 0.4 * paczynski(0.5) + 0.6
        assert changed.flux_err == pytest.approx([3.0 * math.sqrt(growth), 3.0], rel=1e-4)

    def test_the_added_photons_bring_their_noise(self):
        times = T0 + np.linspace(-0.01, 0.01, 5000)
        quiet = np.random.default_rng(1).normal(1000.0, 3.0, 5000)
        part = photometry(times, flux=quiet, error=3.0)
        changed = Injector(config()).magnify(part)
        model = 1000.0 * (0.4 * paczynski(0.5) + 0.6)
        residual = (changed.flux - model) / changed.flux_err
        assert residual.std() == pytest.approx(1.0, abs=0.05)
        assert residual.mean() == pytest.approx(0.0, abs=0.07)

    def test_how_epochs_are_cut_into_messages_changes_nothing(self):
        part = photometry([T0 - 1, T0, T0 + 1], error=5.0)
        whole = Injector(config()).magnify(part)
        injector = Injector(config())
        single = [injector.magnify(photometry([t], error=5.0)).flux[0] for t in part.mjd_tai]
        assert whole.flux.tolist() == single

    def test_a_difference_flux_is_magnified_by_its_reference(self):
        changed = Injector(config()).magnify(
            photometry([T0], flux=0.0, error=1e-6, kind="difference")
        )
        assert changed.flux[0] == pytest.approx(400.0 * (paczynski(0.5) - 1), rel=1e-4)

    def test_a_star_without_baseline_stays_as_it_is_and_is_counted(self):
        injector = Injector(config())
        part = photometry([T0], ref=np.nan, kind="difference")
        assert injector.magnify(part).flux.tolist() == part.flux.tolist()
        assert injector.truth()[0]["epochs_without_baseline"] == 1
        assert len(injector.truth()) == 1

    def test_an_untouched_star_keeps_its_very_object(self):
        injector = Injector(config(share=1e-9))
        part = photometry([T0])
        assert injector.magnify(part) is part

    def test_the_baseline_of_a_light_curve_is_its_median(self):
        part = photometry([T0 - 300, T0 - 200, T0], ref=np.nan)
        injector = light_curve_injector(config(), [part])
        assert injector.magnify(part).flux[2] > 1400

    def test_total_flux_without_reference_has_the_median_of_what_came_first(self):
        injector = Injector(config())
        first = photometry([T0 - 300, T0 - 200], flux=np.array([900.0, 1100.0]), ref=np.nan)
        later = photometry([T0], flux=3000.0, error=1e-6, ref=np.nan)
        injector.magnify(first)
        added = 400.0 * (paczynski(0.5) - 1)
        assert injector.magnify(later).flux[0] == pytest.approx(3000.0 + added, rel=1e-4)

    def test_an_epoch_that_comes_again_is_magnified_alike_whatever_comes_with_it(self):
        injector = Injector(config())
        first = photometry([T0], kind="difference", flux=0.0, ref=1000.0)
        again = photometry([T0, T0 + 1], kind="difference", flux=0.0, ref=1300.0)
        one = injector.magnify(first, history=True).flux[0]
        assert injector.magnify(again, history=True).flux[0] == one
        total = photometry([T0], flux=500.0, ref=np.nan)
        assert injector.magnify(total).flux[0] < 1000.0

    def test_what_is_no_measurement_tells_no_baseline(self):
        injector = Injector(config())
        flags = np.array([0, 1], np.uint32)
        part = photometry([T0 - 2, T0 - 1], flux=np.array([np.nan, -5.0]), ref=np.nan, flags=flags)
        assert injector.magnify(part).flux[1] == -5.0
        assert injector.magnify(photometry([T0], flux=1000.0, ref=np.nan)).flux[0] > 1400

    def test_a_light_curve_gets_its_event_within_its_span(self):
        early, late = photometry([T0, T0 + 10.0]), photometry([T0 + 900.0, T0 + 950.0], star="B")
        injector = light_curve_injector(config(t0=None), [early, late])
        assert T0 <= injector.lens("A").t0 <= T0 + 10.0
        assert T0 + 900.0 <= injector.lens("B").t0 <= T0 + 950.0
        assert injector.lens("unknown") is None


def edited(record: Record, injector: Injector) -> list[Record]:
    return RecordInjector(injector, Decoder())(record)


class TestRecords:
    def test_a_message_and_a_block_are_rewritten(self):
        injector = Injector(config())
        part = photometry([T0])
        message = Record(T0, encode_photometry(part), b"A", (schema_header("photometry"),))
        (out,) = edited(message, injector)
        assert native_photometry(out).flux[0] > 1400
        assert out.headers == message.headers
        many = photometry([T0, T0], star=["A", "B"])
        block = Record(T0, encode_block(many), None, (schema_header("photometry_block"),))
        (out,) = edited(block, injector)
        assert (native_photometry(out).flux > 1400).all()

    def test_what_holds_no_chosen_star_is_the_very_record(self):
        injector = Injector(config(share=1e-9))
        part = photometry([T0])
        message = Record(T0, encode_photometry(part), b"A", (schema_header("photometry"),))
        for record in (message, ztf_packet([T0])):
            (out,) = edited(record, injector)
            assert out is record

    def test_what_cannot_be_read_passes(self):
        damaged = Record(T0, b"Obj\x01...")
        assert edited(damaged, Injector(config())) == [damaged]

    @pytest.mark.parametrize("star", ["ZTF\0", "\ud800"])
    @pytest.mark.parametrize("share", [1.0, 1e-9])
    def test_a_star_that_no_message_can_name_passes(self, star, share):
        packet, injector = ztf_packet([T0], star), Injector(config(share=share))
        assert edited(packet, injector) == [packet]
        assert len(injector.truth()) == 1


def ztf_packet(times: list[float], star: str = "ZTF18a") -> Record:
    """A packet as JSON, of a star of 15 mag that was 0.01 mJy brighter; its last epoch is new."""
    rows = [
        {
            "jd": mjd + 2_400_000.5 - (37 + 15) / 86_400,
            "fid": 1,
            "field": 500,
            "rcid": 7,
            "magpsf": 21.4,
            "sigmapsf": 0.1,
            "isdiffpos": "t",
            "magnr": 15.0,
            "sigmagnr": 0.01,
            "distnr": 0.2,
            "chinr": 1.0,
            "sharpnr": 0.0,
            "nbad": 0,
            "rb": 0.9,
        }
        for mjd in times
    ]
    packet = {
        "objectId": star,
        "candidate": rows[-1] | {"ra": 268.1, "dec": -29.2},
        "prv_candidates": rows[:-1],
    }
    return Record(times[-1], json.dumps(packet).encode(), b"key", (("x", b"y"),))


def read(record: Record) -> Photometry:
    message = Message("t", 0, 0, None, record.value, headers=record.headers)
    (part,) = Decoder().decode(message).photometry
    return part


class TestPackets:
    TIMES = (T0 - 2.0, T0 - 1.0, T0)

    def test_goes_out_as_photometry_of_the_same_epochs(self):
        before = ztf_packet(self.TIMES)
        (out,) = edited(before, Injector(config()))
        one, other = read(before), read(out)
        for name in ("survey", "band", "source", "star", "kind", "coordinates"):
            assert getattr(one, name) == getattr(other, name)
        for name in ("mjd_tai", "flags", "ref_flux", "ref_flux_err"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist()
        assert (out.time, out.epochs) == (T0, 1)

    def test_is_magnified_by_the_flux_in_its_reference_image(self):
        packet = ztf_packet([T0])
        (out,) = edited(packet, Injector(config()))
        reference = 10 ** (-0.4 * (15.0 - 31.4))
        added = (read(out).flux - read(packet).flux)[0]
        sigma = read(packet).flux_err[0]
        g = 0.4 * (paczynski(0.5) - 1)
        assert added == pytest.approx(reference * g, abs=5 * sigma * math.sqrt(g))
        assert added > 20 * sigma

    def test_an_event_elsewhere_leaves_the_windows_as_they_are(self):
        packet = ztf_packet(self.TIMES)
        far = Range(low=T0 + 5e4, high=T0 + 5e4)
        (out,) = edited(packet, Injector(config(t0=far, tE=Range(low=1e-3, high=1e-3))))
        for one, other in zip(*(windows(record) for record in (packet, out)), strict=True):
            assert one == pytest.approx(other, rel=1e-6)

    def test_history_that_comes_again_is_the_same_and_counts_once(self):
        injector = Injector(config())
        first = edited(ztf_packet(self.TIMES[:2]), injector)[0]
        second = edited(ztf_packet(self.TIMES), injector)[0]
        assert read(first).flux.tolist() == read(second).flux[:2].tolist()
        assert injector.truth()[1]["epochs"] == 3

    def test_it_is_read_as_the_filter_reads_it(self):
        decoder = Decoder(options=Packets(ztf_min_rb=0.95))
        packet, injector = ztf_packet([T0]), Injector(config())
        assert RecordInjector(injector, decoder)(packet) == [packet]

    def test_history_is_no_test_of_an_untouched_star(self):
        injector = Injector(config(share=1e-9))
        edited(ztf_packet([T0 - 25.0, T0 - 15.0, T0]), injector)
        edited(ztf_packet([T0 - 25.0, T0 - 15.0, T0, T0 + 0.5]), injector)
        assert injector.truth()[0]["untouched_windows"] == 1


def windows(record: Record) -> list[list[float]]:
    store = WindowStore(20.0)
    batch = store.read(store.insert(read(record)))
    return [batch.mjd_tai[0].tolist(), batch.flux[0].tolist(), batch.sigma[0].tolist()]


class TestTruth:
    def test_one_line_for_each_star_and_band(self, tmp_path):
        injector = Injector(config())
        times = T0 + np.arange(-40, 41) / 4
        injector.magnify(photometry(times, error=10.0))
        injector.magnify(photometry(times, error=10.0, band="V"))
        injector.write(tmp_path / "truth.jsonl")
        run, *events = map(json.loads, (tmp_path / "truth.jsonl").read_text().splitlines())
        assert run["kind"] == "run"
        assert [(event["star"], event["band"]) for event in events] == [("A", "I"), ("A", "V")]
        assert {event["t0"] for event in events} == {T0}
        assert events[0]["epochs"] == len(times)

    def test_signal_to_noise_and_first_detectable_epoch(self):
        injector = Injector(config(detectable_snr=10.0))
        times = T0 + np.arange(-400, 401) / 40
        injector.magnify(photometry(times, error=10.0))
        event = injector.truth()[1]
        g = np.array([0.4 * (paczynski(math.hypot(0.5, (t - T0) / 2)) - 1) for t in times])
        squares = (1000.0 * g) ** 2 / (100.0 * (1 + g))
        assert event["snr"] == pytest.approx(math.sqrt(squares.sum()), rel=1e-3)
        first = times[np.flatnonzero(np.cumsum(squares) >= 100.0)[0]]
        assert event["first_detectable_mjd"] == pytest.approx(first)

    def test_an_event_that_never_shows_has_no_detectable_epoch(self):
        injector = Injector(config())
        injector.magnify(photometry([T0], error=1e6))
        assert injector.truth()[1]["first_detectable_mjd"] is None

    def test_windows_of_untouched_stars_are_counted_once(self):
        injector = Injector(config(share=1e-9, window_days=20.0))  # a grid of 5 days
        for times in ([60_000.0, 60_001.0], [60_004.9], [60_005.0, 60_011.0], [60_500.0]):
            injector.magnify(photometry(times))
            injector.magnify(photometry(times, band="V"))
        run = injector.truth()[0]
        assert run["untouched_windows"] == 8
        assert run["untouched_star_days"] == 40.0
        assert run["untouched_stars"] == 1

    def test_the_signal_is_summed_over_the_window_that_ends_with_an_epoch(self):
        snr = running_snr(np.array([3.0, 0.0, 1.0, 30.0]), np.array([4.0, 1.0, 4.0, 9.0]), 2.5)
        assert snr == pytest.approx(np.sqrt([1.0, 5.0, 8.0, 9.0]))


class TestConfig:
    def write(self, tmp_path, text: str):
        path = tmp_path / "inject.yaml"
        path.write_text(text)
        return path

    def test_a_good_file(self, tmp_path):
        path = self.write(tmp_path, "share: 0.1\ntE: {low: 0.5, high: 5, log: true}\n")
        read = read_config(path)
        assert (read.share, read.tE.high, read.seed) == (0.1, 5, 1)

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("share: 2", ":1: share = 2: should be less"),
            ("seed: 1", r"share: is needed \(of the stars\)"),
            ("share: 0.1\nseed: -1", ":2: seed = -1: "),
            ("share: 0.1\nteff: 3", "teff: unknown key; allowed are share"),
            (
                "share: 0.1\nu0: {low: 0, high: 1, flat: true}",
                r":2: u0.flat: unknown key; allowed are low",
            ),
            ("share: 0.1\nu0: {low: 2, high: 1}", "u0: low .2. must not exceed high"),
            ("share: 0.1\nrho: {low: 0.1, high: 50}", "rho must lie between"),
            ("share: 0.1\ntE: {low: 0, high: 5, log: true}", "larger than 0 for a logarithm"),
            ("share: 0.1\nt0: {lwo: 1}", r":2: t0.lwo: unknown key; did you mean t0.low\?"),
            ("share: 0.1\npackets: {ignored_cuts: [nbda]}", "packets.ignored_cuts: 'nbda': no su"),
            ("share: [", "not YAML"),
            ("share: 0.1\nshare: 0.2", ":2: share is given twice"),
        ],
    )
    def test_a_wrong_key_is_named(self, tmp_path, text, problem):
        path = self.write(tmp_path, text)
        with pytest.raises(ConfigError, match=problem) as caught:
            read_config(path)
        assert str(path) in str(caught.value)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_config(tmp_path / "none.yaml")

    def test_without_light_curves_the_time_must_be_given(self):
        with pytest.raises(ConfigError, match="t0 is needed"):
            light_curve_injector(config(t0=None), [])
