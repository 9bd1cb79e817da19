"""Which survey a packet comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_filter.decode.surveys.registry import adapter_for
from tests.packets import records

ZTF = frozenset({"schemavsn", "objectId", "candid", "candidate", "prv_candidates"})
LSST = frozenset({"diaSourceId", "diaSource", "prvDiaSources", "prvDiaForcedSources", "diaObject"})


@pytest.mark.parametrize(
    ("name", "survey"),
    [
        ("ztf.alert", "ztf"),
        ("lsst.v7_1.alert", "lsst"),
        ("lsst.v11_1.alert", "lsst"),
        ("lsst.v12_0.alert", "lsst"),
        ("rapid.v01_00.alert", "roman"),
        ("elasticc.v0_9.alert", "elasticc"),
        ("elasticc.v0_9_1.alert", "elasticc"),
        ("EnrichedZtfAlert", "babamul-ztf"),
        ("boom.EnrichedLsstAlert", "babamul-lsst"),
        ("winter.alert", None),
        ("lsst.v10_0.diaSource", None),
    ],
)
def test_the_name_of_the_schema_decides(name: str, survey: str | None) -> None:
    found = adapter_for(name, ZTF)
    assert (found and found.name) == survey


@pytest.mark.parametrize(
    ("fields", "survey"),
    [
        (ZTF, "ztf"),
        (ZTF | {"cdsxmatch", "rfscore"}, "ztf"),
        (ZTF | {"prv_nondetections", "properties"}, "babamul-ztf"),
        (ZTF | {"properties", "fp_hists"}, "babamul-lsst"),
        (LSST, "lsst"),
        ({"objectid", "candidate", "prv_candidates"}, None),  # WINTER's spelling
        ({"starId", "mjdTai"}, None),
        (frozenset(), None),
    ],
)
@pytest.mark.parametrize("name", ["", "topLevelRecord", "topLevelRecord.value", "schema"])
def test_else_the_fields_do(name: str, fields: frozenset[str], survey: str | None) -> None:
    found = adapter_for(name, fields)
    assert (found and found.name) == survey


@pytest.mark.shared_data
def test_an_unknown_survey_with_the_names_of_a_known_one_is_unknown(shared_data: Path) -> None:
    [(name, record)] = records(shared_data / "alerts/other/winter_alert.avro")
    assert adapter_for(name, frozenset(record)) is None
    assert adapter_for("", frozenset(record)) is None
