"""What ``make lab`` opens, as somebody meets it who copies the address that it prints."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.notebooks import ROOT
from tests.browser.conftest import MINUTES

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


@pytest.fixture
def printed(tmp_path: Path) -> Iterator[str]:
    """The address that ``scripts/lab`` prints in a copy of the repository whose environment is this one."""
    (tmp_path / "scripts").mkdir()
    for name in ("lab", "quiet_lab.py"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    for name in ("system", "environment"):  # all is there
        (tmp_path / "scripts" / name).write_text("#!/bin/sh\n")
        (tmp_path / "scripts" / name).chmod(0o755)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = {name: str(tmp_path / "home") for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTERLAB_WORKSPACES_DIR")}
    env = {name: value for name, value in os.environ.items() if "DISPLAY" not in name} | home
    log = tmp_path / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            ["sh", tmp_path / "scripts" / "lab", f"--port={port}"], stdout=file, stderr=file, env=env
        )
    try:
        found: list[str] = []
        for _ in range(240):
            assert server.poll() is None, log.read_text()
            if found := re.findall(r"http://127\S+", log.read_text()):
                break
            time.sleep(0.5)
        yield found[0]
    finally:
        server.terminate()
        server.wait(timeout=20)


def test_the_printed_address_opens_the_first_lesson_and_nothing_asks(page: Page, printed: str, shots: Path) -> None:
    # GIVEN a window as small as laptops have WHEN the address is opened
    page.set_viewport_size({"width": 1000, "height": 700})
    page.goto(printed)
    # THEN the first lesson is there, with a kernel, and no question about news or anything else
    page.locator(".jp-Notebook").get_by_role("heading", name="Start here").wait_for(timeout=MINUTES)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=2 * MINUTES)
    page.wait_for_timeout(3000)
    page.screenshot(path=shots / "make-lab.png")
    assert page.locator(".jp-Dialog, .Toastify__toast").count() == 0
