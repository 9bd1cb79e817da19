"""A light install: what works without the extras, and what the rest says of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from broker_filter.cli import COMMANDS
from broker_filter.errors import ConfigError
from broker_filter.extras import EXTRA_OF, named_extras, require
from broker_filter.schemas import schema_folder, schema_id

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SAMPLE = schema_folder() / schema_id("alert") / "sample.avro"

# Stands for an install without extras: none of their packages can be found.
LIGHT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {set(EXTRA_OF)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
program, *arguments = sys.argv[1:]
if program == "model-zoo":
    from model_zoo.__main__ import main
else:
    from broker_filter.cli import main
sys.exit(main(arguments))
"""


def light(*command: object) -> subprocess.CompletedProcess[str]:
    """Run a command as where no extra is installed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", LIGHT, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )


def names(requirements: list[str]) -> set[str]:
    """Names of packages as they are imported."""
    bare = {text.partition(">")[0].partition("[")[0].strip() for text in requirements}
    return {name.replace("-", "_") for name in bare}


def test_every_extra_brings_the_packages_that_are_asked_for() -> None:
    extras = PROJECT["optional-dependencies"]
    for package, extra in EXTRA_OF.items():
        assert package in names(extras[extra]), package


def test_the_base_install_holds_no_package_of_an_extra() -> None:
    assert not names(PROJECT["dependencies"]) & set(EXTRA_OF)


def test_help_works_without_extras() -> None:
    for command in COMMANDS:
        done = light("broker-filter", command, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"broker-filter {command}" in done.stdout


def test_models_are_listed_and_shown_without_the_filter() -> None:
    done = light("broker-filter", "zoo", "list")
    assert (done.returncode, done.stderr) == (0, "")
    assert "fspl-roman-1.0.0" in done.stdout


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["broker-filter", "run", "--config", "config.yaml"], "broker-filter run: "),
        (["broker-filter", "demo"], "broker-filter demo: "),
        (["broker-filter", "zoo", "verify", "fspl-roman-1.0.0"], "broker-filter zoo: "),
    ],
    ids=["run", "demo", "verify"],
)
def test_a_command_of_the_filter_names_its_extra(
    command: list[str], message: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("kafka: {bootstrap_servers: '127.0.0.1:1', input_topics: [epochs]}\n")
    done = light(*[config if word == "config.yaml" else word for word in command])
    assert done.returncode == 2
    assert message in done.stderr
    assert "pip install 'broker-filter[filter]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_trainer_names_its_extra() -> None:
    done = light("model-zoo", "--help")
    assert done.returncode == 2
    assert done.stderr.startswith("model-zoo: ")
    assert "pip install 'broker-filter[train]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_package_of_no_extra_stays_what_it_is() -> None:
    with pytest.raises(ModuleNotFoundError), named_extras("all"):
        import no_such_package  # noqa: F401


def test_require_is_silent_where_the_package_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    require("pyarrow", "Parquet files")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"^Parquet files: .*pip install 'broker-filter\[parquet"):
        require("pyarrow", "Parquet files")
