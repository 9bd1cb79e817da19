"""Adapters against stubs of the brokers' objects: what is scored, and what comes back."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from broker_filter.adapters import (
    alerce,
    ampel,
    antares,
    babamul,
    evidence,
    fink,
    fink_filter,
    lasair,
    pittgoogle,
)
from broker_filter.adapters.evidence import Evidence
from broker_filter.types import Photometry

N = 40
MJD = np.arange(60_000, 60_000 + N / 2, 0.5)
FLUX = 1000 + 300 * np.exp(-0.5 * (MJD - 60_012) ** 2)
ERROR = np.full(N, 10.0)
FOUND = Evidence(log10_k=9.0, alerted=True, verdict="microlensing", t0=60_012.0, tE=1.0, f_s=0.5)


@dataclass
class Asked:
    """What the last light curve was that somebody wanted scored."""

    star: Any = None
    time: Any = None
    flux: Any = None
    error: Any = None
    band: Any = None
    more: dict[str, Any] = field(default_factory=dict)
    answer: Evidence = FOUND

    def __call__(
        self, star: Any, time: Any, flux: Any, error: Any, band: Any, **more: Any
    ) -> Evidence:
        self.star, self.band, self.more = star, list(band), more
        self.time, self.flux, self.error = map(np.asarray, (time, flux, error))
        return self.answer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Every adapter's call for K ends here."""
    asked = Asked()
    for module in (alerce, ampel, antares, fink, lasair, pittgoogle):
        monkeypatch.setattr(module, "evidence", asked)
    return asked


def lsst(i: int, **changes: Any) -> dict[str, Any]:
    row = {"midpointMjdTai": MJD[i], "band": "r", "visit": i, "diaObjectId": 7}
    row |= {"psfFlux": FLUX[i] - 1000, "psfFluxErr": 10.0, "templateFlux": 1000.0}
    return row | {"scienceFlux": FLUX[i], "scienceFluxErr": 10.0} | changes


LSST = [lsst(i) for i in range(N)]


def same(asked: Asked) -> None:
    """That the light curve came through whole."""
    np.testing.assert_allclose(asked.time, MJD)
    np.testing.assert_allclose(asked.flux, FLUX)
    np.testing.assert_allclose(asked.error, ERROR)
    assert asked.band == ["r"] * N


# K


def test_an_event_is_found_and_has_numbers() -> None:
    found = evidence.evidence(1, MJD, FLUX, ERROR, "r", survey="lsst")
    assert found.alerted
    assert found.log10_k > 5
    assert abs(found.t0 - 60_012) < 1
    assert found.reason == ""
    assert {"log10_k", "t0", "tE"} <= found.known().keys()
    assert not [v for v in found.known().values() if isinstance(v, float) and math.isnan(v)]


def test_a_constant_star_has_a_small_k() -> None:
    flux = 1000 + 10 * np.random.default_rng(1).standard_normal(N)
    found = evidence.evidence("a", MJD, flux, ERROR, "r", survey="lsst")
    assert found.log10_k < 2
    assert not found.alerted


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (([], [], []), "fewer than 10"),
        ((MJD[:9], FLUX[:9], ERROR[:9]), "fewer than 10"),
        ((MJD, FLUX * np.nan, ERROR), "none of the 40"),
        ((MJD, FLUX, -ERROR), "none of the 40"),
        ((MJD, FLUX[:-1], ERROR), "must agree"),
        ((MJD, np.full(N, 18.0), np.full(N, 0.02)), "magnitude"),
    ],
    ids=range(6),
)
def test_what_cannot_be_scored_ends_nothing(columns: Any, reason: str) -> None:
    found = evidence.evidence(1, *columns, "r", survey="lsst")
    assert math.isnan(found.log10_k)
    assert reason in found.reason


def test_total_flux_of_lsst_is_never_the_difference_alone() -> None:
    bare = {"scienceFlux": None, "scienceFluxErr": None}
    records = [lsst(2), lsst(1, **bare), lsst(0, **bare, templateFlux=None), {"band": "r"}]
    time, flux, _, _ = evidence.lsst_columns(records)
    assert time == [MJD[1], MJD[2]]
    np.testing.assert_allclose(flux, FLUX[1:3])


# Fink


def test_fink_gets_a_row_an_alert(asked: Asked) -> None:
    index = [5, 9]
    columns = [pd.Series([value, other], index=index, dtype=object) for value, other in (
        (7, 8), (MJD.tolist(), None), (FLUX.tolist(), []), (ERROR.tolist(), []),
        (["r"] * N, []),
    )]  # fmt: skip
    rows = fink.microlensing_rubin(*columns)
    same(asked)
    assert asked.star == 7
    assert rows.index.tolist() == index
    assert rows["log10_k"].tolist()[0] == 9
    assert math.isnan(rows["log10_k"].tolist()[1])
    assert rows.columns.tolist() == [part.split()[0] for part in fink.SCHEMA.split(", ")]


def test_finks_epochs_that_lack_something_are_left_out(asked: Asked) -> None:
    flux: list[float | None] = FLUX.tolist()
    flux[3] = None
    fink.microlensing_rubin(*(pd.Series([one]) for one in (7, MJD, flux, ERROR, ["r"] * N)))
    assert len(asked.time) == N - 1


def test_finks_filter_takes_what_is_likely_and_no_flare() -> None:
    k = pd.Series([9.0, 9.0, 4.0, math.nan, 9.0])
    verdict = pd.Series(["microlensing", "flare", "microlensing", "", ""])
    sso = pd.Series([False, False, False, False, True])
    chosen = fink_filter.microlensing_evidence(k, verdict, sso)
    assert chosen.tolist() == [True, False, False, False, False]
    assert chosen.dtype == bool


# ALeRCE


def detection(i: int, **changes: Any) -> dict[str, Any]:
    magnitude = 31.4 - 2.5 * np.log10(FLUX[i])
    row = {"mjd": MJD[i], "fid": "r", "mag": 20.0, "e_mag": 0.1, "mag_corr": magnitude}
    return row | {"e_mag_corr": 0.01, "corrected": True, "dubious": False} | changes


def test_alerces_step_uses_the_corrected_magnitudes(asked: Asked) -> None:
    bad = [{"mag_corr": None}, {"dubious": True}, {"corrected": False}]
    detections = [detection(i) for i in range(N)] + [detection(0, **one) for one in bad]
    messages = [{"oid": "ZTF1", "detections": detections}, {"oid": "ZTF2", "detections": []}]
    step = alerce.MicrolensingStep()
    (output,) = step.execute(step.pre_execute(messages))
    assert len(asked.time) == N
    np.testing.assert_allclose(10 ** (-0.4 * (asked.flux - 31.4)), FLUX)
    assert asked.more["time_system"] == "mjd"
    assert output["oid"] == "ZTF1"
    assert output["features"]["microlensing_log10_k"] == 9
    assert output["lc_classification"]["class"] == "microlensing"
    assert sum(output["lc_classification"]["probabilities"].values()) == 1


def test_alerces_step_fits_apf(monkeypatch: pytest.MonkeyPatch) -> None:
    class GenericStep:
        def pre_execute(self, messages: Any) -> Any:
            raise AssertionError(messages)

        def start(self, messages: Any) -> Any:
            return self.execute(self.pre_execute(messages))  # type: ignore[attr-defined]

    module = SimpleNamespace(GenericStep=GenericStep)
    monkeypatch.setitem(importlib.import_module("sys").modules, "apf.core.step", module)
    assert alerce.step_class()().start([{"oid": "a"}]) == []


# AMPEL, Pitt-Google, Lasair


def test_ampels_unit_sees_the_points_of_the_state(asked: Asked) -> None:
    unit = ampel.T2MicrolensingEvidence()
    found = unit.process({"stock": 7}, [{"body": row} for row in reversed(LSST)])
    same(asked)
    assert found == FOUND.known()
    assert all(isinstance(value, str | float | bool) for value in found.values())


PACKET = {"diaSource": LSST[-1], "prvDiaSources": LSST[:-1], "prvDiaForcedSources": None}


def test_a_packet_of_lsst_counts_a_visit_once(asked: Asked) -> None:
    forced = [lsst(i, psfFluxErr=1.0) for i in range(N)]
    pittgoogle.alert_evidence({**PACKET, "prvDiaForcedSources": forced})
    same(asked)
    assert asked.star == 7


def response(ack: bool, result: Any) -> tuple[bool, Any]:
    return ack, result


def test_pittgoogle_acknowledges_what_was_published(asked: Asked) -> None:
    published: list[Any] = []
    callback = pittgoogle.make_callback(response, lambda *both: published.append(both))
    assert callback(SimpleNamespace(dict=PACKET)) == (True, FOUND.known())
    assert len(published) == 1
    asked.answer = Evidence(log10_k=1.0)
    assert callback(SimpleNamespace(dict=PACKET)) == (True, None)
    asked.answer = Evidence(reason="empty")
    assert callback(SimpleNamespace(dict={})) == (True, None)
    assert len(published) == 1


@pytest.mark.usefixtures("asked")
def test_pittgoogle_gets_again_what_was_not_published() -> None:
    def publish(*_: Any) -> None:
        raise OSError("away")

    callback = pittgoogle.make_callback(response, publish)
    assert callback(SimpleNamespace(dict=PACKET)) == (False, None)


class LasairClient:
    def __init__(self) -> None:
        self.batches: list[list[dict[str, Any]]] = []

    def object(self, objectId: int, lite: bool, lasair_added: bool) -> dict[str, Any]:
        assert (lite, lasair_added) == (False, False)
        forced = LSST[:10]
        return {"diaObjectId": objectId, "diaSourcesList": LSST, "diaForcedSourcesList": forced}

    def annotate_list(self, annotations_input: list[dict[str, Any]]) -> None:
        self.batches.append(list(annotations_input))


def test_lasairs_annotator_sends_batches(asked: Asked) -> None:
    client = LasairClient()
    assert lasair.annotate(client, "topic", range(51)) == 51
    same(asked)
    assert [len(batch) for batch in client.batches] == [50, 1]
    row = client.batches[1][0]
    assert (row["objectId"], row["topic"], row["classification"]) == (50, "topic", "microlensing")
    assert len(row["version"]) <= 16
    assert "'" not in row["explanation"]
    asked.answer = Evidence(log10_k=0.0)
    assert lasair.annotate(client, "topic", [1]) == 0


def test_an_object_that_lasair_does_not_give_has_a_reason() -> None:
    assert "no such" in lasair.object_evidence({"error": "no such object"}).reason


# ANTARES


@dataclass
class Locus:
    id: str
    alerts: list[Any]
    series: dict[str, Any] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    properties: dict[str, Any] = field(default_factory=dict)

    def timeseries(self, survey: str) -> dict[str, Any]:
        assert survey == "ztf"
        return self.series

    def tag(self, name: str) -> None:
        self.tags.add(name)

    def set_property(self, name: str, value: str | float) -> None:
        assert isinstance(value, str | float)
        self.properties[name] = value


def ztf_locus() -> Locus:
    magnitude = np.ma.masked_invalid(np.append(31.4 - 2.5 * np.log10(FLUX), np.nan))
    series = {
        "ant_mjd": np.append(MJD, 60_030.0),
        "ant_passband": np.array(["R"] * (N + 1)),
        "ant_mag": np.full(N + 1, 21.0),
        "ant_mag_corrected": magnitude,
        "ant_magerr_corrected": np.ma.masked_invalid(np.full(N + 1, 0.01)),
    }
    return Locus("ANT1", [SimpleNamespace(properties={"ant_survey": 1})], series)


def test_antares_takes_the_stars_magnitude(asked: Asked) -> None:
    locus = ztf_locus()
    antares.MicrolensingEvidence()._run(locus)
    assert len(asked.time) == N
    np.testing.assert_allclose(10 ** (-0.4 * (asked.flux - 31.4)), FLUX)
    assert locus.tags == {"microlensing_candidate"}
    announced = {one["name"] for one in antares.MicrolensingEvidence.OUTPUT_LOCUS_PROPERTIES}
    assert locus.properties.keys() <= announced
    assert locus.properties["feature_microlensing_evidence_Fs"] == 0.5
    assert all(name.startswith("feature_microlensing_") for name in announced)


def test_antares_reads_lsst(asked: Asked) -> None:
    prefixed = [{f"lsst_diaSource_{name}": value for name, value in row.items()} for row in LSST]
    locus = Locus("ANT2", [SimpleNamespace(properties=one) for one in prefixed])
    antares.MicrolensingEvidence()._run(locus)
    same(asked)


@pytest.mark.parametrize(
    "answer", [Evidence(log10_k=1.0), Evidence(log10_k=9.0, alerted=True, verdict="flare")]
)
def test_antares_tags_no_other(asked: Asked, answer: Evidence) -> None:
    asked.answer = answer
    locus = ztf_locus()
    antares.MicrolensingEvidence()._run(locus)
    assert not locus.tags
    assert locus.properties["feature_microlensing_evidence_log10_k"] == answer.log10_k


# Babamul


def babamul_alert(**candidate: Any) -> Any:
    plain = {"ra": 1.0, "dec": 2.0, "band": "r"}
    points = [
        SimpleNamespace(jd=2_460_000.5 + i, psfFlux=5e6, psfFluxErr=1e6, band="r") for i in range(3)
    ]
    points += [SimpleNamespace(jd=2_460_000.5, psfFlux=1e6, psfFluxErr=1e6, band="g")]
    points += [SimpleNamespace(jd=2_460_009.5, psfFlux=None, psfFluxErr=1e6, band="r")]
    return SimpleNamespace(
        objectId="ZTF1",
        candidate=SimpleNamespace(**plain | candidate),
        get_photometry=lambda: points,
    )


def by_band(alert: Any) -> dict[str, Photometry]:
    return {one.band: one for one in babamul.photometry_of(alert)}


def test_babamuls_ztf_has_its_true_unit_and_a_reference_in_its_band() -> None:
    parts = by_band(babamul_alert(magnr=21.4, sigmagnr=0.1))
    red, green = parts["r"], parts["g"]
    np.testing.assert_allclose(red.flux, 5.0)
    np.testing.assert_allclose(red.ref_flux, 1e4)
    np.testing.assert_allclose(red.ref_flux_err, 1e4 * 0.1 * np.log(10) / 2.5)
    assert np.isnan(green.ref_flux).all()
    assert red.kind == "difference"
    assert red.mjd_tai[0] == pytest.approx(60_000 + 37 / 86_400)
    assert red.coordinates == {"ZTF1": (1.0, 2.0)}


def test_babamuls_lsst_is_in_njy_and_tai() -> None:
    red = by_band(babamul_alert())["r"]
    np.testing.assert_allclose(red.flux, 5e6)
    assert red.mjd_tai.tolist() == [60_000, 60_001, 60_002]
    assert np.isnan(red.ref_flux).all()


def test_babamuls_alerts_are_passed_on() -> None:
    sent: list[Photometry] = []

    def send(parts: Any) -> int:
        sent.extend(parts)
        return len(parts)

    assert babamul.relay([babamul_alert(), babamul_alert()], send) == 4
    assert [one.band for one in sent] == ["g", "r", "g", "r"]


def test_every_field_has_a_type_of_spark() -> None:
    assert len(fink.SCHEMA.split(", ")) == len(fields(Evidence))
