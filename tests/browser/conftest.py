"""Browser tests need Chromium; CI demands it (OPLAB_REQUIRE_BROWSER), elsewhere they are skipped with the reason."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import lab

ROOT = Path(__file__).parents[2]
MISSING = "no Chromium or Chrome here: install one (Debian: apt install chromium) or set OPLAB_CHROMIUM"


def pytest_collection_modifyitems(items):
    if lab.chromium() is None and not os.environ.get("OPLAB_REQUIRE_BROWSER"):
        for item in items:
            if "browser" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="session")
def chromium():
    if lab.chromium() is None:
        pytest.fail(MISSING)
    with lab.browser() as browser:
        yield browser


@pytest.fixture(scope="module", params=["JupyterLab Light", "JupyterLab Dark"], ids=["light", "dark"])
def server(request, tmp_path_factory):
    """(address, theme) of a JupyterLab that serves a copy of the chapters."""
    scratch = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "chapters", scratch / "root" / "chapters")
    with lab.jupyterlab(scratch / "root", scratch, theme=request.param) as address:
        yield address, request.param


@pytest.fixture
def open_notebook(server, chromium, request):
    """Opens a chapter in a page of the asked size; a screenshot is kept when the test is over."""
    address, _ = server
    pages = []

    def open_(name, width=1400, height=1000):
        page = chromium.new_page(viewport={"width": width, "height": height})
        pages.append(page)
        return lab.Notebook(page, address, f"chapters/{name}")

    yield open_
    folder = Path(__file__).parent / "screenshots"
    folder.mkdir(exist_ok=True)
    for page in pages:
        page.screenshot(path=folder / f"{request.node.name.replace('/', '-')}.png")
        page.close()
