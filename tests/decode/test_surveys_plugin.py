"""A survey of another package is found by its entry point, and a broken one is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_filter.decode.decoder import Decoder
from broker_filter.decode.surveys.registry import GROUP, adapter_for, event_times, surveys
from broker_filter.errors import ConfigError
from broker_filter.replay import event_time
from broker_filter.types import Message
from tests import build

EXAMPLE = Path(__file__).parent / "example_survey/example_survey.py"
POINT = {"hjd": 2461000.5, "mag": 16.4, "mag_err": 0.01, "quality": "A"}
PACKET = {
    "star": "BLG501.1",
    "ra": 268.0,
    "dec": -29.0,
    "newest": POINT,
    "earlier": [{**POINT, "hjd": 2460999.5}, {**POINT, "hjd": 2460998.5, "quality": "C"}],
}

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one module, with one entry point, in a folder of its own."""
    caches = (surveys, event_times, event_time.selection)

    def clear() -> None:
        for function in caches:
            function.cache_clear()

    def package(value: str, text: str = EXAMPLE.read_text()) -> None:
        module = value.partition(":")[0]
        (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\nexample = {value}\n")
        clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield package
    monkeypatch.undo()
    shutil.rmtree(tmp_path)
    clear()


def message(packet: object) -> Message:
    return build.message(json.dumps(packet).encode(), topic="alerts")


def test_packets_of_an_installed_survey_are_read(install: Install) -> None:
    install("survey_one:SURVEY")
    got = Decoder().decode(message(PACKET))
    [part] = got.photometry
    assert (part.survey, part.band, part.star) == ("example", "I", ["BLG501.1"] * 2)
    assert part.flux.tolist() == pytest.approx([1e6, 1e6])  # 16.4 mag, 31.4 of 1 nJy
    assert got.rejected == {"quality": 1}


def test_a_replay_finds_the_time_of_its_packets(install: Install) -> None:
    install("survey_two:SURVEY")
    # 37 s from UTC to TAI
    assert event_time.EventTimes()(message(PACKET)) == pytest.approx(61000.0 + 37 / 86400)


def test_the_schema_s_name_finds_it_and_ours_stay_what_they_are(install: Install) -> None:
    before = surveys()
    install("survey_three:SURVEY")
    assert surveys()[:-1] == before
    found = adapter_for("example.packet", ())
    assert found is not None
    assert found.name == "example"
    ztf = adapter_for("ztf.alert", ())
    assert ztf is not None
    assert ztf.name == "ztf"


def test_without_it_such_packets_are_unknown() -> None:
    assert adapter_for("", PACKET.keys()) is None


@pytest.mark.parametrize(
    ("value", "text", "said"),
    [
        ("broken_a:SURVEY", "import no_such_module", "no_such_module"),
        ("broken_b:SURVEY", "1 / 0", "ZeroDivisionError"),
        ("broken_c:SURVEY", "OTHER = 1", "SURVEY"),
        ("broken_d:SURVEY", "SURVEY = {'name': 'x'}", "is a dict, not a"),
        ("broken_e:SURVEY", EXAMPLE.read_text().replace('"example",', '"ztf",'), "taken"),
        ("broken_f:SURVEY", EXAMPLE.read_text().replace(r"example\.packet", "("), "schema_name"),
        (
            "broken_g:SURVEY",
            EXAMPLE.read_text().replace('("newest", "hjd")', '("candidate", "jd")'),
            "candidate.jd in HJD, babamul-ztf in JD",
        ),
    ],
    ids=lambda text: text if ":" in text and len(text) < 20 else "",
)
def test_one_that_cannot_be_used_is_named_at_the_start(
    install: Install, value: str, text: str, said: str
) -> None:
    install(value, text)
    with pytest.raises(ConfigError) as caught:
        Decoder()
    package = value.partition(":")[0]
    assert f"the survey example = {value} of the package {package} 1.2" in str(caught.value)
    assert said in str(caught.value)
