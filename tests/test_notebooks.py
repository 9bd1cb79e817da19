"""The notebooks run from top to bottom, as they are committed: without outputs."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from broker_filter.alerts.codec import to_json_dict
from broker_filter.client.read import read_alert
from broker_filter.observe.text import json_line
from broker_filter.schemas import schema_folder, schema_id
from tests.pages import ROOT

FOLDER = ROOT / "deploy" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, resources=resources).execute()
    shown = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type != "stream" or output.name != "stdout"
    ]
    assert {output.output_type for output in shown} <= {"execute_result"}, shown
    assert (tmp_path / "mine.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert not any(cell.outputs or cell.execution_count for cell in code)


def test_the_alerts_beside_are_as_subscribe_prints_them() -> None:
    sample = read_alert(schema_folder() / schema_id("alert") / "sample.avro")
    expected = json_line(to_json_dict(sample)) + "\n"
    assert (FOLDER / "alerts.jsonl").read_text() == expected
