"""Bring notebooks into the form in which they are kept; ``--check`` only says which are not.

    python tests/notebooks/clean.py [--execute] [--check] chapters/*.ipynb

A cell that is the same everywhere keeps its output: text where it is tagged ``nbval-check-output``
(nbval compares it), a still picture where it is tagged ``static-picture``. Every other cell depends
on the machine and keeps none. Widget state is never kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
KEPT = {"nbval-check-output": ("text/plain",), "static-picture": ("image/png", "text/plain")}


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with canonical metadata and only the outputs that belong in it (changed in place)."""
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        if cell.cell_type != "code":
            continue
        kinds = next((KEPT[tag] for tag in tags if tag in KEPT), None)
        if kinds is None:
            cell.outputs, cell.execution_count = [], None
            continue
        cell.outputs = [kept for output in cell.outputs if (kept := _kept(output, kinds)) is not None]
    return notebook


def _kept(output: nbformat.NotebookNode, kinds: tuple[str, ...]) -> nbformat.NotebookNode | None:
    if output.output_type == "stream":
        return output if output.name == "stdout" and "text/plain" in kinds else None
    if output.output_type == "error":
        return None
    data = {kind: output.data[kind] for kind in kinds if kind in output.data}
    output.data, output.metadata = nbformat.from_dict(data), nbformat.from_dict({})
    return output if data else None


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run all cells; raises on the first that fails."""
    from nbclient import NotebookClient

    NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(folder)}}).execute()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--execute", action="store_true", help="run the notebook first")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something would change")
    options = parser.parse_args()
    untidy = []
    for path in options.notebooks:
        before = path.read_text()
        notebook = nbformat.reads(before, as_version=4)
        if options.execute:
            execute(notebook, path.parent)
        after = nbformat.writes(clean(notebook)) + "\n"
        if after != before:
            untidy.append(path)
            if not options.check:
                path.write_text(after)
    for path in untidy:
        print(f"{path}: {'not in its kept form; run tests/notebooks/clean.py' if options.check else 'rewritten'}")
    return 1 if options.check and untidy else 0


if __name__ == "__main__":
    sys.exit(main())
