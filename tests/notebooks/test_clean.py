"""clean.py keeps what is the same everywhere and drops the rest."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook, new_output

SCRIPT = Path(__file__).with_name("clean.py")
spec = importlib.util.spec_from_file_location("clean", SCRIPT)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

WIDGET = "application/vnd.jupyter.widget-view+json"


def cell(tags, *outputs):
    return new_code_cell("1", metadata={"tags": tags}, outputs=list(outputs), execution_count=3)


def result(**data):
    return new_output("execute_result", {k.replace("_", "/"): v for k, v in data.items()}, execution_count=3)


def test_what_is_kept():
    out = new_output("display_data", {"text/plain": "p", "image/png": "cG5n", WIDGET: {"model_id": "1"}})
    stream = new_output("stream", name="stdout", text="said")
    notebook = new_notebook(
        cells=[
            cell([], stream),
            cell(["nbval-check-output"], stream, new_output("stream", name="stderr", text="warned")),
            cell(["static-picture"], out),
        ],
        metadata={"widgets": {"state": {}}, "kernelspec": {"name": "my-env", "display_name": "x"}},
    )
    kept = module.clean(notebook)
    assert kept.metadata.kernelspec.name == "python3"
    assert "widgets" not in kept.metadata
    assert (kept.cells[0].outputs, kept.cells[0].execution_count) == ([], None)
    assert [o.get("text") for o in kept.cells[1].outputs] == ["said"]
    assert kept.cells[1].execution_count == 3
    assert set(kept.cells[2].outputs[0].data) == {"image/png", "text/plain"}


def test_check_changes_nothing_and_fails_then_writing_makes_it_pass(tmp_path):
    path = tmp_path / "n.ipynb"
    notebook = new_notebook(cells=[cell([], new_output("stream", name="stdout", text="x"))])
    path.write_text(nbformat.writes(notebook))
    before = path.read_text()
    run = [sys.executable, str(SCRIPT)]
    assert subprocess.run([*run, "--check", str(path)], capture_output=True, check=False).returncode == 1
    assert path.read_text() == before
    assert subprocess.run([*run, str(path)], capture_output=True, check=False).returncode == 0
    assert subprocess.run([*run, "--check", str(path)], capture_output=True, check=False).returncode == 0
    assert json.loads(path.read_text())["cells"][0]["outputs"] == []
