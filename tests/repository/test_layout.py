"""What a reader of the repository relies on: links that lead somewhere, modules of a readable size."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_are_alive(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_modules_stay_readable():
    for module in (ROOT / "utils").rglob("*.py"):
        lines = len(module.read_text().splitlines())
        assert lines <= 450, f"{module.relative_to(ROOT)} has {lines} lines"


def test_no_pyplot_in_the_package():
    for module in (ROOT / "utils").rglob("*.py"):
        assert "import matplotlib.pyplot" not in module.read_text(), module
        assert "from matplotlib import pyplot" not in module.read_text(), module


def test_the_readme_names_commands_that_exist():
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z]+)", text)):
        assert re.search(rf"^{target}:", makefile, re.M), f"README mentions make {target}"


def test_ci_runs_the_readmes_test_command():
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("make test")


def test_make_says_what_is_missing_without_a_python(tmp_path):
    done = subprocess.run(
        ["make", "-n", "-f", str(ROOT / "Makefile"), "lab", "PYTHON=", f"VENV={tmp_path}/venv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "needs Python 3.11" in done.stdout
