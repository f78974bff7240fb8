"""The viewer's page in chromium, opened from the disk: files dropped on it, chosen, refused, and its gallery."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paramgraph_kit.explore.viewer import write_viewer
from paramgraph_kit.recordings import recorded
from paramgraph_kit.trace import save
from tests.unit import explore_sample as sample

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

DROP = """([name, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  document.querySelector("main").dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true }));
}"""


@pytest.fixture(params=["light", "dark"])
def viewer(browser: Browser, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Page]:
    """The page, without a network, in which no script may fail."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000}, color_scheme=request.param)
    problems: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    path = write_viewer(tmp_path / "viewer.html", recorded.packed())
    page.goto(path.as_uri())
    yield page
    page.close()
    assert problems == []
    assert [url for url in asked if url != path.as_uri() and not url.startswith("blob:")] == []


def drop(page: Page, path: Path) -> None:
    page.evaluate(DROP, [path.name, base64.b64encode(path.read_bytes()).decode()])


def test_a_file_is_dropped_and_explored(viewer: Page, tmp_path: Path, shots: Path) -> None:
    # GIVEN the page with a trace file dropped on it
    drop(viewer, save(sample.trace(), tmp_path / "mine.pgtrace"))
    view = viewer.locator("#paramgraph-explorer")
    view.get_by_role("tab").first.wait_for()
    # THEN the explorer shows it, on what it has to say, with its source
    assert view.get_by_role("tab", selected=True).inner_text().startswith("Failures")
    assert "simulated device" in view.locator(".source").inner_text()
    viewer.keyboard.press("2")
    assert view.locator("canvas:visible").count() == 1
    theme = viewer.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    viewer.screenshot(path=shots / f"viewer-{'dark' if theme else 'light'}.png")
    # AND another file takes its place
    drop(viewer, save(recorded["gpt2"], tmp_path / "gpt2.pgtrace"))
    view.get_by_text("recorded: NVIDIA").first.wait_for()
    assert viewer.locator("#paramgraph-explorer > div").count() == 1


def test_files_are_chosen_as_steps_and_bad_ones_refused(viewer: Page, tmp_path: Path) -> None:
    # GIVEN two files WHEN they are chosen together THEN they are steps
    paths = [save(recorded[name], tmp_path / f"{name}.pgtrace") for name in ("failures", "gpt2")]
    viewer.locator("#files").set_input_files(paths)
    view = viewer.locator("#paramgraph-explorer")
    view.get_by_role("button", name="2 gpt2").click()
    assert view.get_by_role("button", name="2 gpt2").get_attribute("aria-current") == "step"
    # WHEN something else is chosen THEN a line says what is wrong, and what was seen stays
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    viewer.locator("#files").set_input_files(other)
    viewer.get_by_text("notes.txt: this is no trace file").wait_for()
    other = tmp_path / "snapshot.pickle"
    other.write_bytes(pickle.dumps({"segments": []}))
    viewer.locator("#files").set_input_files(other)
    viewer.get_by_text("snapshot.pickle: a memory snapshot of torch's? paramgraph_kit.load reads it").wait_for()
    assert view.get_by_role("button", name="2 gpt2").is_visible()


def test_the_gallery_opens_recordings_and_the_address_keeps_them(viewer: Page, shots: Path) -> None:
    # GIVEN the gallery WHEN a recording is opened THEN it is seen, and the page's address leads back to it
    viewer.get_by_role("button", name="resnet50").click()
    view = viewer.locator("#paramgraph-explorer")
    view.get_by_role("tab").first.wait_for()
    assert viewer.url.endswith("#resnet50")
    # AND keys are meant for it at once
    viewer.keyboard.press("4")
    assert view.get_by_role("tab", selected=True).inner_text().startswith("Memory")
    # WHEN a story is opened THEN it has its steps, in order, without a page between
    viewer.get_by_role("button", name="llama-blocks, in three steps").click()
    view.get_by_role("button", name="3 llama-blocks-paramgraph").wait_for()
    viewer.reload()
    view.get_by_role("button", name="3 llama-blocks-paramgraph").wait_for()
    viewer.screenshot(path=shots / "viewer-story.png", full_page=True)
