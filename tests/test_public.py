"""The names that other programs import, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module, metadata

import pytest

import broker_filter

MOST_NAMES = 15
HEAVY = {"torch", "pandas", "confluent_kafka", "fastavro", "pydantic", "numpy", "scipy"}


def test_public_names_are_those_that_are_exported() -> None:
    assert len(broker_filter.__all__) <= MOST_NAMES
    assert sorted(broker_filter.__all__) == broker_filter.__all__
    assert set(broker_filter._MODULES) == set(broker_filter.__all__) - {"__version__"}
    assert set(broker_filter.__all__) <= set(dir(broker_filter))


@pytest.mark.parametrize("name", sorted(broker_filter._MODULES))
def test_a_public_name_is_that_of_its_module(name: str) -> None:
    module = import_module(f"broker_filter.{broker_filter._MODULES[name]}")
    assert getattr(broker_filter, name) is getattr(module, name)
    assert name in module.__all__


def test_no_public_name_hides_a_sub_package() -> None:
    for name in broker_filter.__all__:
        with pytest.raises(ModuleNotFoundError):
            import_module(f"broker_filter.{name}")


def test_version_is_that_of_the_package() -> None:
    assert broker_filter.__version__ == metadata.version("broker-filter")


def test_an_unknown_name_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'broker_filter' has no attribute 'sing'"):
        _ = broker_filter.sing  # type: ignore[attr-defined]


def imported_by(code: str) -> set[str]:
    """Top-level modules that a new interpreter holds after some code."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_else() -> None:
    assert not HEAVY & imported_by("import broker_filter")


def test_types_and_errors_need_no_client_and_no_network() -> None:
    got = imported_by("from broker_filter import Photometry, Alert, TransientError")
    assert not got & {"torch", "pandas", "confluent_kafka"}


def test_the_whole_face_needs_neither_torch_nor_pandas() -> None:
    assert not imported_by("from broker_filter import *") & {"torch", "pandas", "matplotlib"}
