"""The built wheel by itself: everything that it needs at work is inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SUMMARY_KEYS = {
    "stars",
    "epochs",
    "injected",
    "detectable",
    "detectable_alerted",
    "false_alert_stars",
    "alerts",
    "dead_letters",
    "seconds",
    "peak_rss_mb",
    "model_id",
    "log10_k_threshold",
}
WHERE = (
    "from broker_filter import schemas; from broker_filter.inference import zoo; import model_zoo; "
    "print(*zoo.model_ids(), schemas.schema_folder(), zoo.WEIGHTS, model_zoo.__file__, sep='\\n')"
)


def attempt(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with nothing in its environment that leads to the checkout."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and not name.startswith("BROKER_FILTER_")
    }
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def run(*command: object, cwd: Path) -> str:
    """What a command prints, which must succeed."""
    done = attempt(*command, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (BIN / "uv").exists():
        pytest.fail(f"no uv in {BIN}: set the environment up with make test")
    out = tmp_path_factory.mktemp("wheel")
    constraints = ("--build-constraints", REPOSITORY / "constraints.txt")
    run(BIN / "uv", "build", "--quiet", "--wheel", *constraints, "--out-dir", out, cwd=REPOSITORY)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that holds the wheel and what it depends on."""
    home = tmp_path_factory.mktemp("installed")
    environment = home / "venv"
    run(BIN / "uv", "venv", "--quiet", "--python", sys.executable, environment, cwd=home)
    # Links into the cache, since torch by itself is several GB.
    run(
        *(BIN / "uv", "pip", "install", "--quiet", "--link-mode", "hardlink"),
        *("--python", environment / "bin" / "python"),
        *("--constraint", REPOSITORY / "constraints.txt", f"{wheel}[filter,plot]"),
        cwd=home,
    )
    return environment / "bin"


def tracked(folder: str, *, keep: str = "*") -> set[str]:
    return {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / folder).rglob(keep)
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_code_models_schemas_and_tables(wheel: Path) -> None:
    held = set(ZipFile(wheel).namelist())
    schemas = {f"broker_filter/_{name}" for name in tracked("schemas")}
    needed = tracked("broker_filter") | tracked("model_zoo") | schemas
    kinds = {Path(name).suffix for name in needed}
    assert {".py", ".yaml", ".json", ".safetensors", ".npy", ".avsc", ".avro"} <= kinds
    assert needed <= held
    assert not [name for name in held if name.startswith(("tests/", "deploy/"))]


def test_it_works_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    model_id, *_, schemas, weights, code = run(
        installed / "python", "-c", WHERE, cwd=tmp_path
    ).splitlines()
    (site_packages,) = (installed.parent / "lib").glob("python*/site-packages")
    for place in (schemas, weights, code):
        assert Path(place).is_relative_to(site_packages)
    verified = run(installed / "broker-filter", "zoo", "verify", model_id, cwd=tmp_path)
    assert verified.startswith(f"{model_id}: sums, weights and self-test are good")


def test_the_demo_runs_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    small = ("--stars", 10, "--injected", 1, "--no-plots", "--json", "--out", tmp_path / "out")
    done = attempt(installed / "broker-filter", "demo", *small, cwd=tmp_path)
    assert done.returncode in {0, 1}, done.stderr[-3000:]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert json.loads(done.stdout) == summary
    assert set(summary) >= SUMMARY_KEYS
    assert (summary["stars"], summary["injected"]) == (10, 1)
    assert summary["epochs"] > 10 * 1000
    assert summary["dead_letters"] == 0
    assert done.returncode == (0 if summary["passed"] else 1)
    assert "% filtered" in done.stderr
