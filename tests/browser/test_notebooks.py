"""Notebooks in a real JupyterLab, in a real browser: opened, run, and shown again without a kernel."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts import notebooks

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
TOKEN = "for-this-test-only"
MINUTES = 60_000


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab that serves a copy of the notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(notebooks.FOLDER, folder / "notebooks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        f"--port={port}",
        f"--IdentityProvider.token={TOKEN}",
    ]
    command += [f"--ServerApp.root_dir={folder}", "--LabApp.news_url=None", "--LabApp.extension_manager=readonly"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    home = {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "spaces")}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **home})
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(f"{address}/api/status?token={TOKEN}", server)
            yield address
        finally:
            server.terminate()
            server.wait(timeout=20)


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(120):
        assert server.poll() is None, "JupyterLab ended at once"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail("JupyterLab did not answer within a minute")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium from the distribution; Playwright's own download is not needed."""
    from playwright.sync_api import sync_playwright

    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu", *quiet]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 1600})
    yield page
    page.close()


def open_notebook(page: Page, lab: str, name: str) -> None:
    page.goto(f"{lab}/lab/tree/notebooks/{name}?token={TOKEN}&reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=MINUTES)


def cell_states(page: Page) -> list[str]:
    """The prompt of each code cell: ``[3]:`` when it has run, ``[*]:`` while it waits."""
    return [text.strip() for text in page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()]


def pictures(page: Page, repository: Path, name: str) -> None:
    """Keep what the page shows, cell by cell, for people to look at."""
    folder = repository / "out" / "browser" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for index in range(page.locator(".jp-Cell").count()):
        cell = page.locator(".jp-Cell").nth(index)
        cell.scroll_into_view_if_needed()
        cell.screenshot(path=folder / f"{index:02d}.png")


@pytest.mark.parametrize("path", notebooks.notebooks(), ids=lambda p: p.stem)
def test_notebook_runs_in_jupyterlab(page: Page, lab: str, path: Path, repository: Path) -> None:
    # GIVEN the notebook as it is committed, with room for all of it so that no cell is left undrawn
    open_notebook(page, lab, path.name)
    page.set_viewport_size({"width": 1280, "height": 12_000})
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=2 * MINUTES)

    # WHEN all cells are run from the menu
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        states = cell_states(page)
        if all(state.strip("[]: ").isdigit() for state in states):
            break
        page.wait_for_timeout(500)

    # THEN every cell has run, none failed, and each picture and figure is drawn
    pictures(page, repository, path.stem)
    assert all(state.strip("[]: ").isdigit() for state in cell_states(page)), cell_states(page)
    assert page.locator(".jp-OutputArea-output[data-mime-type*='error']").count() == 0
    assert "Error displaying widget" not in page.inner_text(".jp-Notebook")
    assert page.locator(".jp-OutputArea .js-plotly-plot .main-svg").count() > 0


@pytest.mark.parametrize("path", notebooks.notebooks(), ids=lambda p: p.stem)
def test_notebook_shows_its_outputs_without_a_kernel(page: Page, lab: str, path: Path, repository: Path) -> None:
    # WHEN the committed notebook is opened and nothing is run
    open_notebook(page, lab, path.name)
    page.set_viewport_size({"width": 1280, "height": 12_000})
    page.wait_for_timeout(2000)

    # THEN its stored pictures are there, and no output asks for a kernel
    pictures(page, repository, path.stem + "-stored")
    loaded = page.locator(".jp-RenderedImage img").evaluate_all("all => all.map(image => image.naturalWidth)")
    assert loaded
    assert min(loaded) > 0
    assert "Error displaying widget" not in page.inner_text(".jp-Notebook")
