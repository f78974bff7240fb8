"""A real JupyterLab and a real browser, shared by the tests of this folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripts import notebooks

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOKEN = "for-this-test-only"
MINUTES = 60_000


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab and the folder that it serves."""

    address: str
    folder: Path


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab that serves a copy of the notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    for name in ("notebooks", "results"):  # a lesson reads what was measured
        shutil.copytree(notebooks.ROOT / name, folder / name)
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
            yield Lab(address, folder / "notebooks")
        finally:
            server.terminate()
            server.wait(timeout=20)


def store(lab: Lab, name: str, cells: list[str]) -> None:
    """Write a notebook of code cells without outputs into the served folder."""
    nodes: list[dict[str, Any]] = [
        {"cell_type": "code", "id": f"c{n}", "metadata": {}, "source": text, "outputs": [], "execution_count": None}
        for n, text in enumerate(cells)
    ]
    notebook = {"cells": nodes, "metadata": notebooks.METADATA, "nbformat": 4, "nbformat_minor": 5}
    (lab.folder / name).write_text(json.dumps(notebook))


@pytest.fixture
def shots(repository: Path) -> Path:
    """Where screenshots are kept, for people to look at."""
    folder = repository / "out" / "browser" / "explorer"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(120):
        assert server.poll() is None, "JupyterLab ended at once"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail("JupyterLab did not answer within a minute")


@pytest.fixture(scope="session")
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


@pytest.fixture
def open_notebook(page: Page, lab: Lab) -> Callable[[str], None]:
    """Open a notebook of the served folder by its name."""

    def open_it(name: str) -> None:
        page.goto(f"{lab.address}/lab/tree/notebooks/{name}?token={TOKEN}&reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=MINUTES)

    return open_it


@pytest.fixture
def choose(page: Page) -> Callable[[str, str], None]:
    """Choose an entry of a menu; a menu that JupyterLab closes while it still starts is opened again."""

    def choose_it(menu: str, entry: str) -> None:
        for _ in range(6):
            try:
                page.get_by_role("menuitem", name=menu, exact=True).click(timeout=5000)
                page.locator(".lm-Menu").get_by_text(entry, exact=True).click(timeout=5000)
            except playwright_errors().TimeoutError:
                page.keyboard.press("Escape")
                continue
            return
        pytest.fail(f"the menu {menu} did not offer {entry}")

    return choose_it


@pytest.fixture
def run_all(page: Page, choose: Callable[[str, str], None]) -> Callable[[], None]:
    """Run all cells of the open notebook from the menu; returns when the first one has begun."""

    def run() -> None:
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=2 * MINUTES)
        begun = page.locator(".jp-CodeCell .jp-InputPrompt").filter(has_text=re.compile(r"\[[\d*]+\]"))
        for _ in range(10):
            choose("Run", "Run All Cells")
            try:
                begun.first.wait_for(timeout=5000)
            except playwright_errors().TimeoutError:  # the kernel was not connected yet, and nothing says so
                continue
            return
        pytest.fail("no cell began to run")

    return run


def playwright_errors() -> Any:
    """Playwright is only in the environment of these tests."""
    from playwright import sync_api

    return sync_api
