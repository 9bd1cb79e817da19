"""The alert: ids, what is computed from the posterior, and its bytes."""

from __future__ import annotations

import io
import json
import math
import shutil
import uuid
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from broker_filter.alerts.alert import UNITS as PARAMETER_UNITS
from broker_filter.alerts.alert import Alert, CertifiedK, Interval, OtherBand, mjd_to_datetime
from broker_filter.alerts.brightness import ab_magnitude
from broker_filter.alerts.build import (
    Common,
    Evaluation,
    ProcessingTimes,
    Provenance,
    alert_id,
    build_alert,
    event_id,
    event_probability,
)
from broker_filter.alerts.codec import (
    from_avro,
    from_message,
    to_avro,
    to_json_dict,
    to_message,
)
from broker_filter.alerts.curves import model_curves
from broker_filter.alerts.lifecycle import EventState
from broker_filter.alerts.record import to_record
from broker_filter.client.text import format_alert
from broker_filter.errors import PoisonMessage, SchemaError
from broker_filter.observe.text import json_line
from broker_filter.schemas import (
    CURRENT_VERSION,
    decode_strict,
    encode,
    known_versions,
    load_schema,
    schema_folder,
    schema_id,
)
from broker_filter.types import FloatArray, Message, WindowBatch

FOLDER = schema_folder() / schema_id("alert")
SAMPLE = (FOLDER / "sample.avro").read_bytes()
START, N = 61000.0, 40
ALERT_ID = "d0540af8-1466-52b5-9dcf-84f3390cdb1e"
EVENT_ID = "61be02ea-baa5-5374-b9d5-e8a9fdf2b36f"
TRUTH = np.array([8.0, 0.5, 0.3, -1.5, 0.8])


def point_source(u: FloatArray, _rho: FloatArray) -> FloatArray:
    """A of a point source: Paczynski 1986, ApJ 304, 1."""
    return np.asarray((u * u + 2) / (u * np.sqrt(u * u + 4)))


def truth_flux(days: FloatArray) -> FloatArray:
    t0, u0, log10_tE, _, f_s = TRUTH
    u = np.sqrt(u0**2 + ((days - t0) / 10**log10_tE) ** 2)
    return f_s * point_source(u, u) + 1 - f_s


def window(relative: bool = False, offset: float = 0.0) -> WindowBatch:
    """Two windows, of which the second holds the event, and the first nothing but padding."""
    days = np.linspace(1.0, 12.0, N)
    mjd, flux, sigma = np.full((2, 64), np.nan), np.full((2, 64), 9e9), np.zeros((2, 64))
    mjd[1, :N], sigma[1, :N] = START + days, 0.01
    flux[1, :N] = truth_flux(days) + offset
    return WindowBatch(
        slot=np.array([0, 1]),
        star=["other", 4611686018427387905],
        survey=["roman", "roman"],
        band=["F146", "F146"],
        coordinates=[None, (268.5, -29.25)],
        t_start=np.array([START, START]),
        mjd_tai=mjd,
        flux=flux.astype(np.float32),
        sigma=sigma.astype(np.float32),
        n=np.array([0, N]),
        baseline=np.array([1.0, 1.0 if relative else 10_000.0]),
        baseline_err=np.array([0.0, 0.001 if relative else 10.0]),
        baseline_error=np.array([0.0, 0.001]),
        relative=np.array([relative, relative]),
        source=np.zeros(mjd.shape, np.int16),
        sources=[(("F146", "wfi"),), (("F146", "wfi"),)],
        source_level=np.full((2, 1), 1.0 if relative else 10_000.0),
        source_error=np.full((2, 1), 0.001),
        source_history=np.zeros((2, 1, 6)),
    )


def posterior(size: int = 500, spread: float = 1e-3) -> NDArray[np.float32]:
    noise = np.random.default_rng(1).standard_normal((size, 5))
    return (TRUTH + spread * noise).astype(np.float32)


def build(batch: WindowBatch | None = None, **changes: Any) -> Alert:
    arguments: dict[str, Any] = {
        "event": EventState(START + 9.0, "fspl-roman-0.0.9", START + 12, 6.5, START + 12),
        "state": "update",
        "log10_k": 6.5,
        "provenance": Provenance("fspl-roman-0.1.0", "ab" * 32, "0.1.0", 20.0),
        "threshold": 3.0,
        "prior_odds": 1e-6,
        "magnification": point_source,
        "samples": posterior(),
        "times": ProcessingTimes(1_700_000_000_000, 1_700_000_000_100, 1_700_000_000_150),
    } | changes
    samples, times = arguments.pop("samples"), arguments.pop("times")
    common = {field.name: arguments.pop(field.name) for field in fields(Common)}
    found = Evaluation(**arguments)
    return build_alert(batch or window(), 1, found, samples, times, Common(**common))


# Ids


def test_ids_are_those_of_the_first_release() -> None:
    # Subscribers keep them: a change of the recipe would double every alert of a replay.
    assert str(alert_id("roman", 7, "F146", 61000.25, "fspl-roman-0.1.0")) == ALERT_ID
    assert str(event_id("roman", 7, "F146", 61000.25, "fspl-roman-0.1.0")) == EVENT_ID


@pytest.mark.parametrize(
    "other",
    [
        ("lsst", 7, "F146", 61000.25, "m"),
        ("roman", "7", "F146", 61000.25, "m"),
        ("roman", 7, "F087", 61000.25, "m"),
        ("roman", 7, "F146", 61000.25 + 2e-8, "m"),
        ("roman", 7, "F146", 61000.25, "n"),
    ],
    ids=["survey", "type of star id", "band", "epoch", "model"],
)
def test_every_part_counts_in_the_id(other: Any) -> None:
    assert alert_id(*other) != alert_id("roman", 7, "F146", 61000.25, "m")


def test_ids_ignore_rounding_of_the_last_bits_of_a_date() -> None:
    mjd = 61000.123456789
    assert alert_id("s", 1, "b", mjd, "m") == alert_id("s", 1, "b", np.nextafter(mjd, 0), "m")


def test_names_cannot_be_made_to_collide() -> None:
    assert alert_id("a", 'b", "c', "d", 1, "m") != alert_id("a", "b", 'c", "d', 1, "m")


# Building


def test_summary_sums_up_the_samples() -> None:
    samples = posterior(spread=0.05)
    alert = build(samples=samples)
    column = samples.astype(np.float64)
    assert [entry.name for entry in alert.summary] == list(PARAMETER_UNITS)
    assert alert.interval("t0").median == pytest.approx(START + np.median(column[:, 0]), abs=1e-9)
    assert alert.interval("tE").p84 == pytest.approx(np.quantile(10 ** column[:, 2], 0.84))
    assert alert.interval("rho").p2_5 == pytest.approx(np.quantile(10 ** column[:, 3], 0.025))
    assert alert.interval("f_s").p97_5 == pytest.approx(np.quantile(column[:, 4], 0.975))
    physical = np.stack([column[:, 0], column[:, 1], 10 ** column[:, 2]])
    np.testing.assert_allclose(alert.covariance, np.cov(physical), rtol=1e-6)


def test_t0_is_given_as_mjd_and_jd_to_better_than_a_second() -> None:
    alert = build()
    assert alert.t0_mjd_tai == pytest.approx(START + 8.0, abs=2e-4)
    assert alert.t0_jd_tai - alert.t0_mjd_tai == pytest.approx(2400000.5, abs=1e-9)
    # J2000.0 is JD 2451545.0, noon of 1 January 2000.
    assert mjd_to_datetime(2451545.0 - 2400000.5).isoformat() == "2000-01-01T12:00:00"
    spread = build(samples=posterior(spread=0.0)).posterior["t0"] - (START + 8.0)
    assert spread.abs().max() * 86400 < 0.1


def test_posterior_is_a_table_of_physical_parameters() -> None:
    table = build().posterior
    assert list(table) == ["t0", "u0", "tE", "rho", "f_s", "log10_tE", "log10_rho"]
    assert len(table) == 500
    assert set(map(str, table.dtypes)) == {"float64"}
    np.testing.assert_allclose(np.log10(table["tE"]), table["log10_tE"])


def test_magnitudes_follow_from_the_baseline_and_the_model() -> None:
    # AB: 0 mag is 3631 Jy, so 10,000 nJy is 21.4 mag.
    alert = build(samples=posterior(spread=0.0))
    now = truth_flux(np.array([12.0]))[0]
    assert alert.baseline_magnitude == pytest.approx(21.40, abs=1e-9)
    assert alert.source_magnitude == pytest.approx(21.40 - 2.5 * math.log10(0.8), abs=1e-6)
    assert alert.blend_magnitude == pytest.approx(21.40 - 2.5 * math.log10(0.2), abs=1e-6)
    assert alert.magnitude_now == pytest.approx(21.40 - 2.5 * math.log10(now), abs=1e-6)
    assert ab_magnitude(3631e9) == pytest.approx(0.0, abs=1e-4)


def test_an_unblended_source_has_no_blend_magnitude() -> None:
    samples = posterior(spread=0.0)
    samples[:, 4] = 1.0
    assert build(samples=samples).blend_magnitude is None


def test_relative_photometry_has_no_magnitudes() -> None:
    alert = build(window(relative=True))
    magnitudes = (alert.source_magnitude, alert.blend_magnitude, alert.baseline_magnitude)
    assert (*magnitudes, alert.magnitude_now, alert.baseline_flux) == (None,) * 5
    assert alert.baseline_relative_error == pytest.approx(0.001)


def test_reduced_chi2_counts_five_parameters() -> None:
    exact = build(samples=posterior(spread=0.0))
    assert exact.reduced_chi2 == pytest.approx(0.0, abs=1e-4)
    shifted = build(window(offset=0.02), samples=posterior(spread=0.0))  # 2 sigma everywhere
    assert shifted.reduced_chi2 == pytest.approx(4 * N / (N - 5), rel=1e-3)


def test_five_epochs_leave_no_freedom_for_chi2() -> None:
    assert build(replace(window(), n=np.array([0, 5]))).reduced_chi2 is None


def test_only_the_windows_own_epochs_count() -> None:
    alert = build()
    assert (alert.n_epochs, len(alert.light_curve)) == (N, N)
    assert (alert.first_epoch_mjd_tai, alert.last_epoch_mjd_tai) == (START + 1, START + 12)
    columns = alert.light_curve[["mjd_tai", "flux", "sigma"]]
    assert np.isfinite(columns.to_numpy()).all()
    assert set(alert.light_curve["source"]) == {"wfi"}


def test_ids_come_from_the_last_epoch_and_the_event() -> None:
    alert = build()
    star = 4611686018427387905
    assert alert.alert_id == alert_id("roman", star, "F146", START + 12, "fspl-roman-0.1.0")
    assert alert.event_id == event_id("roman", star, "F146", START + 9, "fspl-roman-0.0.9")


def test_model_curves_take_evenly_spaced_samples() -> None:
    samples = np.tile(TRUTH, (1001, 1))
    samples[:, 0] = np.linspace(0, 20, 1001)
    curves = model_curves(samples, np.linspace(0, 20, 11), point_source, curves=11)
    np.testing.assert_array_equal(curves.argmax(axis=1), np.arange(11))


@pytest.mark.parametrize(
    "samples",
    [
        np.zeros((1, 5)),
        np.zeros((10, 4)),
        np.zeros(5),
        np.where(np.eye(5) == 1, np.nan, 0.5),
    ],
    ids=["one sample", "four parameters", "one dimension", "NaN"],
)
def test_samples_that_cannot_be_summed_up_are_refused(samples: FloatArray) -> None:
    with pytest.raises(ValueError, match="samples"):
        build(samples=samples)


# Probability


@pytest.mark.parametrize(
    ("log10_k", "odds", "expected"),
    [
        (6.0, 1e-6, 0.5),
        (0.0, 1e-6, 1e-6 / (1 + 1e-6)),
        (8.0, 1e-6, 100 / 101),
        (1e6, 1e-9, 1.0),
        (-1e6, 1e-9, 0.0),
    ],
)
def test_probability_of_an_event(log10_k: float, odds: float, expected: float) -> None:
    assert event_probability(log10_k, odds) == pytest.approx(expected, rel=1e-12)


@given(st.floats(-1e5, 1e5), st.floats(1e-12, 1e3))
def test_probability_stays_between_0_and_1_and_mirrors(log10_k: float, odds: float) -> None:
    p = event_probability(log10_k, odds)
    assert 0 <= p <= 1
    assert p + event_probability(-log10_k, 1 / odds) == pytest.approx(1)


# Bytes


def test_an_alert_survives_its_bytes() -> None:
    alert = build(certified=CertifiedK(5.9, 0.04, 321.0, 2))
    back = from_avro(to_avro(alert))
    for field in fields(Alert):
        np.testing.assert_array_equal(getattr(back, field.name), getattr(alert, field.name))
    assert to_avro(back) == to_avro(alert)
    assert back.samples.dtype == back.flux.dtype == np.float32
    assert isinstance(back.alert_id, uuid.UUID)


@pytest.mark.parametrize("star", ["KMT-2019-BLG-2073", "7", 7, -(2**63), 2**63 - 1])
def test_star_ids_keep_their_type(star: str | int) -> None:
    back = from_avro(to_avro(replace(build(), star_id=star)))
    assert back.star_id == star
    assert type(back.star_id) is type(star)


def test_sample_is_the_same_as_json_and_as_avro() -> None:
    line = io.StringIO(json.dumps(json.loads((FOLDER / "sample.json").read_text())))
    (record,) = fastavro.json_reader(line, load_schema("alert"))
    assert decode_strict("alert", SAMPLE) == record
    assert encode("alert", record) == SAMPLE
    assert to_avro(from_avro(SAMPLE)) == SAMPLE


def documented(schema: Any) -> list[dict[str, Any]]:
    """All fields of a schema, those of nested records too."""
    if isinstance(schema, dict):
        return list(schema.get("fields", ())) + documented(list(schema.values()))
    if isinstance(schema, list):
        return [field for entry in schema for field in documented(entry)]
    return []


UNITS = (
    "days", "degrees", "dimensionless", "without unit", "AB magnitude", "nJy", "milliseconds",
    "units", "given unit", "same unit",
)  # fmt: skip
FIELDS = {
    field["name"]: field for field in documented(json.loads((FOLDER / "alert.avsc").read_text()))
}


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_the_schema_says_what_it_holds_and_in_which_unit(name: str) -> None:
    field = FIELDS[name]
    assert len(field["doc"]) > 10
    is_number = any(f'"{kind}"' in json.dumps(field["type"]) for kind in ("double", "int", "bytes"))
    if is_number and '"fields"' not in json.dumps(field["type"]):
        assert any(unit in field["doc"] for unit in UNITS)


def test_columns_are_little_endian() -> None:
    record = to_record(build(samples=posterior(spread=0.0)))
    assert record["posterior"]["samples"][:4] == b"\x00\x00\x00\x41"  # 8.0
    assert record["lightCurve"]["mjdTai"][:8] == b"\x00\x00\x00\x00\x20\xc9\xed\x40"  # 61001.0


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: r.update(nEpochs=41), "41"),
        (lambda r: r.update(nEpochs=-1), "-1"),
        (lambda r: r["posterior"].update(shape=[500, 4]), "samples"),
        (lambda r: r["posterior"].update(shape=[2500]), "samples"),
        (lambda r: r["posterior"].update(shape=[-500, -5]), "samples"),
        (lambda r: r["posterior"].update(shape=[]), "samples"),
        (lambda r: r["posterior"].update(samples=b"\0" * 9999), "9999"),
        (lambda r: r["posterior"].update(covariance=[0.0] * 8), "reshape"),
        (lambda r: r["posterior"].update(parameters=["t0", "u0", "tE", "rho", "f_s"]), "log10_tE"),
        (lambda r: r["posterior"].update(summary=[]), "summary"),
        (lambda r: r["lightCurve"].update(flux=b""), "flux"),
        (lambda r: r.update(alertId="7"), "'7'"),
    ],
)
def test_columns_that_contradict_their_numbers_are_poison(
    spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    record = to_record(build())
    spoil(record)
    with pytest.raises(PoisonMessage, match=message):
        from_avro(encode("alert", record))


def _first(column: bytes, dtype: str) -> bytes:
    """The same column, its first number NaN."""
    numbers = np.frombuffer(column, dtype).copy()
    numbers[0] = math.nan
    return numbers.tobytes()


def _logs(draws: dict[str, Any], log10_rho: float) -> bytes:
    """The samples, all with one size of the source."""
    samples = np.frombuffer(draws["samples"], "<f4").reshape(draws["shape"]).copy()
    samples[:, draws["parameters"].index("log10_rho")] = log10_rho
    return samples.tobytes()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: r.update(log10K=math.nan), "log10_k is not finite"),
        (lambda r: r.update(pEvent=math.inf), "p_event is not finite"),
        (lambda r: r.update(lastEpochMjdTai=2_461_000.5e3), "last_epoch_mjd_tai is no date"),
        (lambda r: r.update(windowDays=1e8), "the window's end is no date"),
        (lambda r: r.update(createdMs=2**62), "created_ms is no date"),
        (lambda r: r["posterior"]["summary"][0].update(median=math.nan), "summary of t0"),
        (lambda r: r["posterior"].update(samples=_first(r["posterior"]["samples"], "<f4")), "lens"),
        (lambda r: r["posterior"].update(samples=_logs(r["posterior"], -31.0)), "no lens"),
        (lambda r: r["posterior"].update(samples=_logs(r["posterior"], 1.1)), "sources of which"),
        (lambda r: r["network"].update(samples=_first(r["network"]["samples"], "<f4")), "no lens"),
        (lambda r: r["lightCurve"].update(mjdTai=_first(r["lightCurve"]["mjdTai"], "<f8")), "mjd_"),
        (lambda r: r["lightCurve"].update(flux=_first(r["lightCurve"]["flux"], "<f4")), "flux is"),
        (
            lambda r: r["lightCurve"].update(sigma=bytes(len(r["lightCurve"]["sigma"]))),
            "sigma is not above 0",
        ),
        (lambda r: r["sources"][0].update(baselineFlux=0.0), "baselineFlux"),
        (lambda r: r["fit"]["best"].update(rho=math.nan), "best is no lens"),
        (lambda r: r["fit"]["best"].update(tE=0.0), "best is no lens"),
    ],
)
def test_what_no_reader_could_use_is_poison(
    spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    record = to_record(from_avro(SAMPLE))
    spoil(record)
    with pytest.raises(PoisonMessage, match=message):
        from_avro(encode("alert", record))


def test_what_may_be_unknown_may_be_no_number_and_is_null_in_json() -> None:
    record = to_record(from_avro(SAMPLE))
    record["reducedChi2"] = record["sources"][0]["chi2"] = record["fit"]["chi2"] = math.nan
    record["log10KCertifiedError"], record["ra"] = math.inf, -math.inf
    alert = from_avro(encode("alert", record))
    shown = json.loads(json_line(to_json_dict(alert, light_curve=True, samples=True)))
    assert shown["reducedChi2"] is shown["log10KCertifiedError"] is shown["ra"] is None
    assert shown["sources"][0]["chi2"] is shown["fit"]["chi2"] is None
    assert shown["log10K"] == alert.log10_k
    assert "log10 K" in format_alert(alert)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_poison_and_nothing_worse(value: bytes) -> None:
    with pytest.raises(PoisonMessage):
        from_avro(value)


@given(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255))
def test_a_flipped_byte_gives_an_alert_or_poison(index: int, byte: int) -> None:
    raw = bytearray(SAMPLE)
    raw[index] = byte
    try:
        alert = from_avro(bytes(raw))
    except PoisonMessage:
        return
    assert repr(from_avro(to_avro(alert))) == repr(alert)
    assert format_alert(alert)
    assert json_line(to_json_dict(alert, light_curve=True, samples=True))


def test_an_alert_that_does_not_fit_the_schema_is_not_written() -> None:
    with pytest.raises(SchemaError):
        to_avro(replace(build(), star_id=2**70))


# Messages and JSON


def test_message_is_keyed_by_star_and_tells_what_filters_need() -> None:
    alert = build()
    message = to_message(alert, "alerts")
    headers = dict(message.headers)
    assert (message.topic, message.key) == ("alerts", b"4611686018427387905")
    assert headers["schema"].decode() == schema_id("alert")
    assert headers["alertId"].decode() == str(alert.alert_id)
    assert headers["state"] == b"update"
    assert float(headers["log10K"]) == alert.log10_k
    assert headers["modelId"] == b"fspl-roman-0.1.0"
    assert to_avro(from_avro(message.value)) == message.value


def test_json_leaves_columns_out_unless_asked() -> None:
    alert = build()
    short = json.loads(json.dumps(to_json_dict(alert), allow_nan=False))
    full = json.loads(
        json.dumps(to_json_dict(alert, light_curve=True, samples=True), allow_nan=False)
    )
    assert "lightCurve" not in short
    assert "samples" not in short["posterior"]
    assert short["log10KCertified"] is None
    np.testing.assert_array_equal(np.float32(full["posterior"]["samples"]), alert.samples)
    assert full["lightCurve"]["mjdTai"] == alert.mjd_tai.tolist()


@pytest.mark.parametrize(
    ("median", "p16", "p84", "expected"),
    [
        (61008.123456, 61008.1, 61008.15, ("61008.123", "0.027", "0.023")),
        (12.3456, 10.0, 15.0, ("12.3", "2.7", "2.3")),
        (1234.0, 1000.0, 1500.0, ("1234", "266", "234")),
        (0.5, 0.5, 0.5, ("0.500000", "0.000000", "0.000000")),
    ],
)
def test_intervals_are_rounded_to_two_digits(
    median: float, p16: float, p84: float, expected: tuple[str, str, str]
) -> None:
    assert Interval("t0", "d", median, p16, p84, p16, p84).rounded() == expected


def sample_message(version: str) -> Message:
    value = (schema_folder() / version / "sample.avro").read_bytes()
    return Message("alerts", 0, 0, None, value, headers=(("schema", version.encode()),))


@pytest.mark.parametrize("version", known_versions("alert"))
def test_samples_of_every_version_are_read_by_their_header(version: str) -> None:
    message = sample_message(f"alert/{version}")
    alert = from_message(message)
    written = json.loads((schema_folder() / "alert" / version / "sample.json").read_text())
    assert str(alert.alert_id) == written["alertId"]
    assert alert.log10_k == written["log10K"]
    assert [other.band for other in alert.other_bands] == [
        other["band"] for other in written.get("otherBands", [])
    ]
    assert to_avro(from_avro(to_avro(alert))) == to_avro(alert)


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A version of tomorrow, filed beside today's: one more field, which may be left out."""
    version = f"1/{int(known_versions('alert')[-1].split('/')[1]) + 1}"
    shutil.copytree(schema_folder(), tmp_path, dirs_exist_ok=True)
    schema = json.loads((schema_folder() / schema_id("alert") / "alert.avsc").read_text())
    added = {"name": "omen", "type": ["null", "string"], "default": None, "doc": "What it is."}
    schema["fields"].insert(3, added)
    schema["namespace"] = "broker_filter.v" + version.replace("/", "_")
    folder = tmp_path / "alert" / version
    folder.mkdir(parents=True)
    (folder / "alert.avsc").write_text(json.dumps(schema))
    monkeypatch.setattr("broker_filter.schemas.schema_folder", lambda: tmp_path)
    load_schema.cache_clear()
    return version


def test_alerts_of_the_next_version_are_read_without_what_is_new(next_version: str) -> None:
    assert known_versions("alert")[-1] == next_version
    alert = build()
    value = encode("alert", to_record(alert) | {"omen": "lens"}, next_version)
    header = (("schema", f"alert/{next_version}".encode()),)
    assert to_avro(from_message(Message("alerts", 0, 0, None, value, headers=header))) == to_avro(
        alert
    )


def test_todays_alerts_are_read_once_the_next_version_is_written(
    next_version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    today, alert = schema_id("alert"), build()
    value = to_avro(alert)
    monkeypatch.setitem(CURRENT_VERSION, "alert", next_version)
    assert from_message(
        Message("alerts", 0, 0, None, value, headers=(("schema", today.encode()),))
    ).alert_id == (alert.alert_id)
    assert (
        decode_strict("alert", value, today.removeprefix("alert/"), read_as=next_version)["omen"]
        is None
    )
    assert dict(to_message(alert, "alerts").headers)["schema"].decode() == f"alert/{next_version}"


@pytest.mark.parametrize("version", [b"alert/9/9", b"alert/../../photometry", b"photometry/1/0"])
def test_a_version_that_is_not_known_is_poison(version: bytes) -> None:
    value = SAMPLE
    with pytest.raises(PoisonMessage, match="known: alert/1/0, alert/1/1, alert/1/2"):
        from_message(Message("alerts", 0, 0, None, value, headers=(("schema", version),)))


def test_other_bands_travel() -> None:
    others = (OtherBand("g", -1.5, 12, 61000.25), OtherBand("z", 4.0, 300, 61001.5))
    alert = replace(build(), other_bands=others)
    assert from_avro(to_avro(alert)).other_bands == others
    assert json.loads(json.dumps(to_json_dict(alert)))["otherBands"][1] == {
        "band": "z",
        "log10K": 4.0,
        "nEpochs": 300,
        "lastEpochMjdTai": 61001.5,
    }
