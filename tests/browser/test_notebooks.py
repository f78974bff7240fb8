"""Notebooks in a real JupyterLab, in a real browser: opened, run, and shown again without a kernel."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts import notebooks

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
LESSONS = [path for path in notebooks.notebooks() if path.parent == notebooks.FOLDER]


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


def stored_figures(path: Path) -> int:
    """How many plotly figures a notebook has stored."""
    return path.read_text(encoding="utf-8").count('"application/vnd.plotly.v1+json"')


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_notebook_runs_in_jupyterlab(
    page: Page, open_notebook: Callable[[str], None], run_all: Callable[[], None], path: Path, repository: Path
) -> None:
    # GIVEN the notebook as it is committed, with room for all of it so that no cell is left undrawn
    open_notebook(path.name)
    page.set_viewport_size({"width": 1280, "height": 12_000})

    # WHEN all cells are run from the menu
    run_all()
    page.wait_for_timeout(1000)
    stored = json.loads(path.read_text(encoding="utf-8"))["cells"]
    codes = sum(cell["cell_type"] == "code" for cell in stored)
    idle = page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']")
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        # Stored outputs have counts too, and cells are drawn late: so all of them, and a kernel that has nothing to do.
        states = cell_states(page)
        if len(states) == codes and all(state.strip("[]: ").isdigit() for state in states) and idle.count():
            break
        page.wait_for_timeout(500)

    # THEN every cell has run, none failed, and each picture and figure is drawn
    pictures(page, repository, path.stem)
    assert len(cell_states(page)) == codes
    assert all(state.strip("[]: ").isdigit() for state in cell_states(page)), cell_states(page)
    assert page.locator(".jp-OutputArea-output[data-mime-type*='error']").count() == 0
    assert "Error displaying widget" not in page.inner_text(".jp-Notebook")
    assert page.locator(".jp-OutputArea .js-plotly-plot:has(.main-svg)").count() == stored_figures(path)


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_notebook_shows_its_outputs_without_a_kernel(
    page: Page, open_notebook: Callable[[str], None], path: Path, repository: Path
) -> None:
    # WHEN the committed notebook is opened and nothing is run
    open_notebook(path.name)
    page.set_viewport_size({"width": 1280, "height": 12_000})
    page.wait_for_timeout(2000)

    # THEN its stored pictures are there, and no output asks for a kernel
    pictures(page, repository, path.stem + "-stored")
    loaded = page.locator(".jp-RenderedImage img").evaluate_all("all => all.map(image => image.naturalWidth)")
    figures = page.locator(".jp-OutputArea .js-plotly-plot:has(.main-svg)").count()
    assert figures == stored_figures(path)
    assert loaded or figures
    assert all(width > 0 for width in loaded)
    assert "Error displaying widget" not in page.inner_text(".jp-Notebook")
