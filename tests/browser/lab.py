"""A real JupyterLab on a free port, and a headless Chromium that looks at it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, sync_playwright

CONFIG = """
from jupyterlab.galata import configure_jupyter_server
configure_jupyter_server(c)
c.ServerApp.root_dir = {root!r}
c.ServerApp.port = {port}
c.ServerApp.port_retries = 0
c.ServerApp.allow_root = True
c.LabApp.user_settings_dir = {settings!r}
c.LabApp.workspaces_dir = {workspaces!r}
"""

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str | None:
    """The browser: ``$OPLAB_CHROMIUM``, or chromium or Chrome on the PATH, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("OPLAB_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@contextlib.contextmanager
def jupyterlab(root: Path, scratch: Path, *, theme: str = "JupyterLab Light") -> Iterator[str]:
    """Serves ``root``; yields the address. Its log is ``scratch/lab.log``."""
    settings = scratch / "settings"
    _setting(settings, "@jupyterlab/notebook-extension/tracker", {"windowingMode": "none"})
    _setting(settings, "@jupyterlab/apputils-extension/themes", {"theme": theme})
    _setting(settings, "@jupyterlab/apputils-extension/notification", {"fetchNews": "false", "checkForUpdates": False})
    port = _free_port()
    config = scratch / "config.py"
    config.write_text(
        CONFIG.format(root=str(root), port=port, settings=str(settings), workspaces=str(scratch / "workspaces"))
    )
    with (scratch / "lab.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", f"--config={config}"], stdout=log, stderr=log
        )
        try:
            address = f"http://localhost:{port}"
            _wait_for(f"{address}/api/status", server, scratch / "lab.log")
            yield address
        finally:
            server.terminate()
            server.wait(timeout=30)


def _setting(folder: Path, plugin: str, values: dict) -> None:
    path = folder / f"{plugin}.jupyterlab-settings"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _wait_for(address: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(240):
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab stopped at once:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return
        time.sleep(0.25)
    raise TimeoutError(f"JupyterLab did not answer within 60 s:\n{log.read_text()[-2000:]}")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)


class Notebook:
    """One notebook open in one page; collects what the browser's console complains about."""

    def __init__(self, page: Page, address: str, path: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: self._heard(message))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(f"{address}/lab/workspaces/{Path(path).stem}/tree/{path}?reset")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)
        page.wait_for_selector("text=Python 3 (ipykernel) | Idle", timeout=60_000)

    def _heard(self, message: object) -> None:
        # A missing favicon or an absent optional service is not the course's business. Nor is a model that is not
        # there yet while ipywidgets still asks the kernel for its widgets: it draws the output again once it knows,
        # and a widget that stays away says so on the page, where the tests look.
        harmless = ("Failed to load resource", "widget model not found")
        if message.type == "error" and not any(text in message.text for text in harmless):  # type: ignore[attr-defined]
            self.complaints.append(message.text)  # type: ignore[attr-defined]

    def run_all(self, timeout: float = 180.0) -> None:
        """Run every cell and wait for each one's own execution count."""
        self.page.click(".jp-Notebook .jp-CodeCell >> nth=0")
        self.page.evaluate("window.jupyterapp && window.jupyterapp.commands.execute('notebook:run-all-cells')")
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            prompts = self.page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
            if prompts and all(text.strip("[]: \n").isdigit() for text in prompts):
                return
            time.sleep(0.3)
        raise TimeoutError(f"cells did not finish: {prompts}")

    def explorer(self, name: str) -> Explorer:
        """The explorer of this experiment."""
        box = self.page.locator(f".oplab-explorer.oplab-{name}")
        box.first.scroll_into_view_if_needed()
        return Explorer(self.page, box.first)


class Explorer:
    """An explorer on the page, as a learner handles it."""

    def __init__(self, page: Page, box: Locator) -> None:
        self.page, self.box = page, box

    @property
    def headline(self) -> str:
        return self.box.locator(".oplab-headline").inner_text()

    @property
    def state(self) -> str:
        return self.box.locator(".oplab-state").inner_text()

    @property
    def picture(self) -> str:
        return self.box.locator("img.oplab-picture").first.get_attribute("src") or ""

    def key(self, label: str, key: str) -> None:
        """Press a key on the slider with this label."""
        slider = self.box.locator(f".widget-hslider:has(label:text-is('{label}'))")
        slider.locator(".noUi-handle").focus()
        self.page.keyboard.press(key)

    def choose(self, label: str, option: str) -> None:
        self.box.locator(f".widget-dropdown:has(label:text-is('{label}')) select").select_option(option)

    def wait(self, *, headline_not: str | None = None, timeout: float = 60.0) -> float:
        """Until the answer is there and (if given) the headline differs; returns the seconds it took."""
        start = time.monotonic()
        while time.monotonic() - start < timeout:
            settled = any(word in self.state for word in ("done", "failed"))
            if settled and (headline_not is None or self.headline != headline_not):
                return time.monotonic() - start
            time.sleep(0.01)
        raise TimeoutError(f"explorer: state {self.state!r}, headline {self.headline!r}")
