"""Decoders as the settings say, and names in them that nothing bears."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

from broker_filter.config import Input, Packets, Settings
from broker_filter.decode.selection import select
from broker_filter.decode.surveys import babamul, lsst, quality, roman, ztf
from broker_filter.decode.surveys.quality import Cuts, Table
from broker_filter.decode.surveys.registry import surveys
from broker_filter.errors import ConfigError
from broker_filter.inference.zoo import Entry
from broker_filter.service import assembly
from broker_filter.service.decoding import make_decoder, unknown_surveys
from tests import build

# One epoch of use in each of a survey's tables.
POINT = {"jd": 2460000.5, "psfFlux": 1e4, "psfFluxErr": 1e2, "band": "r"}
ZTF = {"jd": 2460000.5, "fid": 2, "magpsf": 18.0, "sigmapsf": 0.1, "isdiffpos": "t", "rb": 0.9}
FORCED = {"jd": 2460001.5, "fid": 2, "forcediffimflux": 9.0, "forcediffimfluxunc": 1.0}
LSST = {"midpointMjdTai": 61000.5, "band": "r", "psfFlux": 1e4, "psfFluxErr": 1e2, "diaObjectId": 7}
LSST |= {"visit": 1, "detector": 1} | dict.fromkeys(lsst.PIXEL_FLAGS, True)
PACKETS: dict[str, dict[str, Any]] = {
    "ztf": {"objectId": "Z", "candidate": ZTF, "fp_hists": [FORCED | {"magzpsci": 26.0}]},
    "lsst": {"diaSource": LSST, "prvDiaForcedSources": [LSST]},
    "elasticc": {"diaSource": LSST, "prvDiaForcedSources": [LSST]},
    "roman": {"diaSource": LSST | {"band": "F146"}},
    "babamul-ztf": {"objectId": "Z", "candidate": POINT | ZTF},
    "babamul-lsst": {"candidate": LSST},
}


@pytest.mark.parametrize("survey", surveys(), ids=lambda survey: survey.name)
def test_the_cuts_of_a_survey_are_those_that_can_be_ignored(
    survey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: set[str] = set()

    def cut(
        table: Table, cuts: Cuts, rejected: Counter[str], ignored: Collection[str] | None = None
    ) -> Table:
        if ignored is None:
            return quality.cut(table, cuts, rejected)
        assert ignored == ("nbad",)
        applied.update(cuts)
        return table

    for module in (babamul, lsst, roman, ztf):
        monkeypatch.setattr(module, "cut", cut)
    options = Packets(ignored_cuts=("nbad",), roman_zero_points={"F146": 26.4})
    survey.read(select(PACKETS[survey.name], survey.selection), options)
    assert applied
    assert applied <= survey.cuts
    if survey.schema_name:  # else it stands for two of the others
        assert applied == survey.cuts


@pytest.mark.parametrize("name", ["nbda", "NBAD", "unknown_band", "pixelFlags_streaks"])
def test_a_cut_that_no_survey_has_stops_the_start(name: str) -> None:
    with pytest.raises(ConfigError, match=f"ignored_cuts: '{name}': .*there are .*nbad, .*rb"):
        make_decoder(Input(packets=Packets(ignored_cuts=("nbad", name))))
    make_decoder(Input(packets=Packets(ignored_cuts=("nbad", "pixelFlags_streak", "npixfit"))))


def test_a_survey_that_no_packet_is_of_is_named_once_and_its_nearest() -> None:
    model = {"surveys": {"ZTF": "fspl-paper-1.0.0", "zft": "fspl-paper-1.0.0"}}
    (line,) = unknown_surveys(build.settings(model=model))
    assert "model.surveys: 'zft' is none of" in line
    assert "is ztf meant?" in line
    assert list(unknown_surveys(build.settings(alert={"noise": "white"}))) == []


def test_a_start_logs_a_survey_that_may_be_misspelt(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: Settings) -> Entry:
        raise ConfigError("far enough")

    monkeypatch.setattr(assembly, "open_entry", stop)
    with pytest.raises(ConfigError, match="far enough"):
        assembly.run(build.settings(model={"surveys": {"zft": "fspl-paper-1.0.0"}}))
    (record,) = (one for one in caplog.records if one.levelname == "WARNING")
    assert "'zft' is none of the surveys" in record.getMessage()
