"""The command line: quick help, and one clear message with status 2 where something is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import broker_filter
from broker_filter import read_alert
from broker_filter.cli import main
from broker_filter.client.save import avro_files
from broker_filter.commands import demo, replay
from broker_filter.config import Model
from broker_filter.inference import zoo
from broker_filter.kafka import reader, sink
from broker_filter.kafka.sink import MemorySink
from broker_filter.observe import logs
from broker_filter.schemas import schema_folder, schema_id

COMMANDS = [
    ["run"],
    ["score"],
    ["replay"],
    ["recovery"],
    ["subscribe"],
    ["plot"],
    ["page"],
    ["dead-letters"],
    ["demo"],
    ["check-config"],
    ["zoo", "list"],
    ["zoo", "show"],
    ["zoo", "verify"],
]


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the loggers of the test process alone, and the variables that its caller set."""
    for name in [name for name in os.environ if name.startswith("BROKER_FILTER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(logs, "configure_logging", lambda *_: None)


def config(folder: Path, **sections: object) -> str:
    tree = {
        "kafka": {
            "bootstrap_servers": "127.0.0.1:1",
            "input_topics": ["epochs"],
            "connect_timeout_s": 0.5,
        },
        "metrics": {"enabled": False},
        **sections,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    return str(path)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    assert f"broker-filter {' '.join(command)}" in capsys.readouterr().out.split("example")[1]


def test_help_and_check_config_do_not_wait_for_the_network_library(tmp_path: Path) -> None:
    code = (
        "import sys; from broker_filter.cli import main\n"
        "assert main(['check-config', sys.argv[1]]) == 0\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'matplotlib', 'zuko'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, config(tmp_path)], check=True, timeout=60)


def test_no_command_is_an_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_version_is_printed_with_the_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    shown = f"broker-filter {broker_filter.__version__} (default model: {Model().id})\n"
    assert capsys.readouterr().out == shown
    assert Model().id in zoo.model_ids()


@pytest.mark.parametrize(
    "command",
    [
        ["replay", "star.csv", "--topic", "epochs"],
        ["recovery", "truth.jsonl", "kafka://127.0.0.1:1/alerts"],
        ["subscribe"],
        ["dead-letters"],
    ],
    ids=lambda command: command[0],
)
def test_client_properties_reach_the_client(
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("star.csv").write_text("mjd,flux,flux_err\n60000.0,1.0,0.1\n")
    run = {"kind": "run", "untouched_windows": 1, "window_days": 1, "detectable_snr": 1}
    Path("truth.jsonl").write_text(json.dumps(run))
    Path("login").write_text("security.protocol=sasl_ssl\nsasl.mechanism=NONESUCH\n")
    assert main([*command, "--client-config", "login"]) == 2
    assert "NONESUCH" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "replay star.csv --topic t --zero-point inf",
        "replay star.csv --topic t --start nan",
        "score star.csv --zero-point nan",
        "subscribe --min-log10-k nan",
        "subscribe --timeout nan",
        "subscribe --timeout -1",
        "page --keep-days nan",
        "page --port 65536",
        "recovery truth.jsonl alerts.jsonl --log10-k nan",
        "forward --to webhook --patience nan",
        "forward --to webhook --target-timeout 0",
        "demo --stars 0",
        "demo --injected -1",
        "demo --seed -1",
    ],
)
def test_numbers_beyond_their_bounds_are_refused(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(line.split())
    assert end.value.code == 2
    assert f"argument {line.split()[-2]}: {line.split()[-1]} is not" in capsys.readouterr().err


def test_a_large_bound_is_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--stars", "2000000"])
    assert "2000000 is not 1 to 1000000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("replay star.csv --topic t --start 2 --stop 1", "--start 2 is not before --stop 1"),
        ("demo --stars 3 --injected 4", "--injected 4 is more than --stars 3"),
        ("demo --out star.csv/demo", "star.csv/demo"),
        ("score star.csv --plots star.csv/plots", "star.csv/plots"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    line: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    memory = MemorySink()
    monkeypatch.setattr(memory, "require", lambda _: None, raising=False)  # as KafkaSink has it
    monkeypatch.setattr(replay, "open_sink", lambda *_: memory)
    monkeypatch.setattr(replay, "stop_on_signals", lambda _: None)
    monkeypatch.setattr(demo, "stop_on_signals", lambda _: None)
    Path("star.csv").write_text("mjd,flux,flux_err\n60000.0,1.0,0.1\n")
    assert main(line.split()) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_check_config_shows_what_the_service_will_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_FILTER_BATCH__QUEUE_DEPTH", "7")
    assert main(["check-config", config(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kafka"]["input_topics"] == ["epochs"]
    assert shown["batch"]["queue_depth"] == 7
    assert main(["check-config", config(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out) == shown
    assert captured.err.startswith(f"{tmp_path / 'config.yaml'}: all is well: model {Model().id}, ")
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("model", "named"),
    [({"id": "fspl-roman-9.9.9"}, "fspl-roman-9.9.9"), ({"path": "no/such/folder"}, "no/such")],
)
def test_check_config_refuses_a_model_that_is_not_there(
    model: dict[str, str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-config", config(tmp_path, model=model)]) == 2
    errors = capsys.readouterr().err
    assert named in errors
    assert "all is well" not in errors


@pytest.mark.parametrize(
    ("section", "keys", "named"),
    [
        ("alert", {"known_variables": "no/table.csv"}, "no/table.csv cannot be read"),
        ("input", {"schema_folder": "no/schemas"}, "no folder of schemas no/schemas"),
        ("input", {"topic_schemas": {"epochs": "no/schemas"}}, "no/schemas"),
        ("input", {"packets": {"ignored_cuts": ["nbda"]}}, "'nbda': no survey has such a cut"),
        ("input", {"schema_registry": "https://r", "schema_registry_login_file": "no/f"}, "no/f"),
        ("kafka", {"options": {"no.such": 1}}, 'No such configuration property: "no.such"'),
        ("kafka", {"security": {"protocol": "ssl", "ca_location": "no/ca.pem"}}, "ca.location"),
    ],
)
def test_check_config_refuses_what_a_start_would(
    section: str,
    keys: dict[str, object],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kafka = {"bootstrap_servers": "127.0.0.1:1", "input_topics": ["epochs"]}
    sections = {section: keys if section != "kafka" else kafka | keys}
    assert main(["check-config", config(tmp_path, **sections)]) == 2
    errors = capsys.readouterr().err
    assert named in errors
    assert "all is well" not in errors


def test_check_config_refuses_a_negative_threshold_unless_it_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, alert={"log10_k": -0.5})
    assert main(["check-config", path]) == 2
    errors = capsys.readouterr().err
    assert "alert.log10_k" in errors
    assert "--allow-negative-threshold" in errors
    assert main(["check-config", path, "--allow-negative-threshold"]) == 0
    assert "all is well" in capsys.readouterr().err
    assert main(["check-config", config(tmp_path, alert={"log10_k": 0})]) == 0


def test_check_config_warns_of_variables_that_nobody_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_FILTER_LOG_LEVEL", "debug")
    monkeypatch.setenv("BROKER_FILTER_LOG__LEVEL", "error")
    monkeypatch.setenv("BROKER_FILTER_SERVICE_PORT_METRICS", "9464")  # as Kubernetes does
    assert main(["check-config", config(tmp_path)]) == 0
    warning, well = capsys.readouterr().err.splitlines()
    assert warning == (
        "broker-filter: warning: BROKER_FILTER_LOG_LEVEL is not read:"
        " did you mean BROKER_FILTER_LOG__LEVEL?"
    )
    assert "all is well" in well


def test_check_config_warns_of_a_survey_that_may_be_misspelt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"surveys": {"Ztf": "fspl-paper-1.0.0", "lsts": "fspl-paper-1.0.0"}}
    alert = {"noise": {"surveys": {"roman": {}, "ogle": {}}}}
    assert main(["check-config", config(tmp_path, model=model, alert=alert)]) == 0
    lsts, ogle, well = capsys.readouterr().err.splitlines()
    assert lsts.startswith("broker-filter: warning: model.surveys: 'lsts' is none of the surveys")
    assert "babamul-lsst, babamul-ztf, elasticc, lsst, roman, ztf" in lsts
    assert "(is lsst meant?)" in lsts
    assert "alert.noise.surveys: 'ogle' is none" in ogle
    assert "meant" not in ogle
    assert "all is well" in well


def test_check_config_names_a_misspelt_key_and_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-config", config(tmp_path, alert={"log10k": 3})]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("broker-filter: ")
    assert "alert.log10k" in captured.err
    assert "log10_k" in captured.err


def test_check_config_names_a_file_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_run_says_that_no_broker_can_be_reached(
    tmp_path: Path, tiny_entry: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, model={"path": str(tiny_entry)})
    began = time.monotonic()
    assert main(["run", "--config", path]) == 2
    assert time.monotonic() - began < 10
    said = capsys.readouterr().err
    assert "no broker reached at 127.0.0.1:1 " in said
    assert "kafka.bootstrap_servers" in said


def test_run_names_the_models_that_exist_where_one_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, model={"id": "fspl-roman-9.9.9"})
    assert main(["run", "--config", path]) == 2
    message = capsys.readouterr().err
    assert "fspl-roman-9.9.9" in message
    for name in zoo.model_ids():
        assert name in message


def test_replay_says_that_no_broker_can_be_reached(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink, "CONNECT_S", 0.5)
    curve = tmp_path / "star.csv"
    curve.write_text("mjd,flux,flux_err\n60000.0,1.0,0.1\n")
    servers = ["--bootstrap-servers", "127.0.0.1:1"]
    assert main(["replay", str(curve), "--topic", "epochs", *servers]) == 2
    said = capsys.readouterr().err
    assert "no broker reached at 127.0.0.1:1 " in said
    assert "--bootstrap-servers" in said
    assert caplog.records == []


@pytest.mark.parametrize("group", [[], ["--group-id", "me"]], ids=["alone", "group"])
def test_subscribe_says_in_one_line_that_no_broker_can_be_reached(
    group: list[str],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "CONNECT_S", 0.5)
    assert main(["subscribe", "--bootstrap-servers", "127.0.0.1:1", *group]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("broker-filter: no Kafka broker answers at 127.0.0.1:1 ")
    assert "--bootstrap-servers" in line
    assert caplog.records == []


def test_plot_draws_a_saved_alert_and_names_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = read_alert(schema_folder() / schema_id("alert") / "sample.avro")
    avro_files(tmp_path / "alerts")(sample)
    (saved,) = (tmp_path / "alerts").iterdir()
    assert main(["plot", str(saved), "--out", str(tmp_path / "figures")]) == 0
    figures = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(figures) == sorted((tmp_path / "figures").iterdir())
    assert [path.read_bytes()[:4] for path in figures] == [b"\x89PNG"] * 2
    assert main(["plot", str(saved)]) == 0
    assert {path.parent for path in map(Path, capsys.readouterr().out.splitlines())} == {
        saved.parent
    }


def test_plot_names_a_file_that_is_no_alert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.avro"
    wrong.write_text("no alert")
    for path in (wrong, tmp_path / "absent.avro"):
        assert main(["plot", str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(f"broker-filter: {path}: ")
        assert captured.out == ""


def test_zoo_list_names_every_model_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == zoo.model_ids()
    assert all(line.split("  ", 1)[1].strip() for line in lines)


def test_zoo_show_prints_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "show", zoo.model_ids()[0]]) == 0
    assert json.loads(capsys.readouterr().out)["model_id"] == zoo.model_ids()[0]


def test_zoo_verify_accepts_what_came_with_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "verify", zoo.model_ids()[0]]) == 0
    assert "good" in capsys.readouterr().out


def test_zoo_verify_names_the_damaged_file_of_a_folder(
    tmp_path: Path, tiny_entry: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_entry, copy)
    assert main(["zoo", "verify", str(copy)]) == 0
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    capsys.readouterr()
    assert main(["zoo", "verify", str(copy)]) == 2
    assert str(weights) in capsys.readouterr().err


def test_zoo_verify_of_an_unknown_name_or_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["zoo", "verify", "nothing"]) == 2
    assert zoo.model_ids()[0] in capsys.readouterr().err
    assert main(["zoo", "verify", str(tmp_path / "nothing")]) == 2
    assert str(tmp_path / "nothing") in capsys.readouterr().err
