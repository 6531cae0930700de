"""What every chapter keeps to. That the cells run is nbval's business (`make notebooks`)."""

import re
import statistics
from pathlib import Path

import nbformat
import pytest
from oplab.widgets import explore

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
NOTEBOOKS = {path.name: nbformat.read(path, as_version=4) for path in CHAPTERS}

pytestmark = pytest.mark.parametrize("name", list(NOTEBOOKS))


def code_cells(name):
    return [cell for cell in NOTEBOOKS[name].cells if cell.cell_type == "code"]


def prose(name):
    return "\n\n".join(cell.source for cell in NOTEBOOKS[name].cells if cell.cell_type == "markdown")


def tagged(name, tag):
    return [cell for cell in code_cells(name) if tag in cell.metadata.get("tags", [])]


def test_it_is_valid_and_has_ids(name):
    nbformat.validate(NOTEBOOKS[name])
    ids = [cell.id for cell in NOTEBOOKS[name].cells]
    assert len(set(ids)) == len(ids)


def test_one_kernelspec(name):
    assert NOTEBOOKS[name].metadata.kernelspec.name == "python3"


def test_cells_are_short(name):
    lengths = [len(cell.source.splitlines()) for cell in code_cells(name)]
    assert statistics.median(lengths) <= 5
    assert max(lengths) <= 25


def test_a_cell_whose_output_is_compared_has_one(name):
    """nbval passes a cell without comparing when its execution count is null."""
    checked = tagged(name, "nbval-check-output")
    assert checked
    for cell in checked:
        assert cell.execution_count is not None, cell.source
        assert cell.outputs, cell.source


def test_only_marked_cells_keep_outputs(name):
    for cell in code_cells(name):
        if not cell.metadata.get("tags"):
            assert not cell.outputs, cell.source
            assert cell.execution_count is None, cell.source


def test_pictures_are_there_and_no_widget_state(name):
    for cell in tagged(name, "static-picture"):
        kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
        assert kinds == {"image/png", "text/plain"}, cell.source
    assert "widgets" not in NOTEBOOKS[name].metadata


def test_every_explorer_has_its_still_picture(name):
    for cell in code_cells(name):
        if re.search(r"\bexplore\.\w+\(", cell.source):
            assert "static-picture" in cell.metadata.get("tags", []), cell.source


def test_the_sections_of_a_chapter(name):
    text = prose(name)
    for part in ("**Time:**", "**Afterwards you can**", "## Recap", "## Check yourself", "## Now your own model"):
        assert part in text, part
    assert 3 <= text.count("<details><summary>") <= 8
    assert text.count("<details>") == text.count("</details>")
    assert any("predict(" in cell.source for cell in code_cells(name))


def test_links_inside_the_repository_are_alive(name):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose(name)):
        if not target.startswith("http"):
            assert (ROOT / "chapters" / target).exists(), target


def test_no_shell_hides_in_a_cell(name):
    for cell in code_cells(name):
        assert not re.search(r"^\s*[!%]", cell.source, re.M), cell.source


def test_explorers_named_in_the_text_exist(name):
    for explorer in re.findall(r"explore\.(\w+)\(", "\n".join(cell.source for cell in code_cells(name))):
        assert callable(getattr(explore, explorer))


def test_the_readme_lists_it(name):
    assert f"chapters/{name}" in (ROOT / "README.md").read_text()
