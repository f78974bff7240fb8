"""What people do with the explorer in JupyterLab: the magic while a cell runs, a story in steps, the dark theme."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import MINUTES, Lab, store

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

MAGIC = [
    """%load_ext paramgraph_kit
import time, torch, paramgraph_kit as pgk
model = pgk.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).to(pgk.device()))
x = torch.randn(4, 8).to(pgk.device())
grad = torch.set_grad_enabled(False)""",
    """%%paramgraph watch -o trace --title magic
kept = []
for _ in range(60):
    kept.append(model(x))
    time.sleep(0.1)
print("calls:", len(kept))""",
    'print("launches:", len(trace.launches))',
]

STORY = [
    """import paramgraph_kit as pgk
names = {"no graphs": "llama-no-graphs", "graph trees": "llama-graph-trees", "parameterized": "llama-paramgraph"}
pgk.explore({stage: pgk.recorded[name] for stage, name in names.items()})"""
]


def view_of(page: Page) -> Locator:
    """The first explorer of the open notebook."""
    return page.locator(".jp-OutputArea-output").filter(has=page.get_by_role("tab", name="Partitions")).first


def test_the_magic_follows_a_running_cell(
    page: Page, lab: Lab, open_notebook: Callable[[str], None], run_all: Callable[[], None], shots: Path
) -> None:
    # GIVEN a notebook whose second cell runs for six seconds under %%paramgraph watch
    store(lab, "magic.ipynb", MAGIC)
    open_notebook("magic.ipynb")

    # WHEN it runs
    run_all()
    said = page.locator(".launched").first
    said.wait_for(timeout=2 * MINUTES, state="attached")
    prompt = page.locator(".jp-CodeCell .jp-InputPrompt").nth(1)
    seen = set()
    while prompt.inner_text().strip() == "[*]:":
        seen.add(said.inner_text())
        if len(seen) == 5:
            view_of(page).screenshot(path=shots / "lab-magic-running.png")
        page.wait_for_timeout(150)

    # THEN the view counted while the cell ran, and nothing is missing when it has ended
    assert len([text for text in seen if "launches" in text]) >= 5
    printed = page.locator(".jp-OutputArea-output").get_by_text(re.compile(r"launches: \d+"))
    printed.wait_for(timeout=MINUTES)
    count = printed.inner_text().split()[-1]
    assert int(count) > 50  # all calls but those that compiled and captured
    assert page.locator(".launched").first.inner_text().startswith(f"· {count} launches")

    # AND there is one view, above what the cell printed
    area = page.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-output:visible")
    assert page.get_by_role("tab", name="Partitions").count() == 1
    assert area.count() == 2
    assert "calls: 60" in area.nth(1).inner_text()
    page.locator(".jp-CodeCell").nth(1).screenshot(path=shots / "lab-magic.png")

    # AND each launch is on the timeline, with what it wrote; keys there run no shortcut of the notebook
    view = view_of(page)
    view.get_by_role("tab", name="Timeline").click()
    view.get_by_role("button", name="Next launch").click()
    cells = page.locator(".jp-Cell").count()
    for key in ("ArrowRight", "ArrowRight", "a", "d", "d"):
        view.locator(".timeline .surface canvas").press(key)
    page.wait_for_timeout(600)
    assert page.locator(".jp-Cell").count() == cells
    panel = view.get_by_role("complementary", name="Details")
    assert re.search(r"launch \d+: call \d+ of inference", view.locator(".timeline .bar").inner_text())
    assert re.search(r"0x[0-9a-f]+ → 0x[0-9a-f]+", panel.inner_text())
    view.screenshot(path=shots / "lab-timeline.png")


def test_a_recorded_story_in_the_dark_theme(
    page: Page, lab: Lab, open_notebook: Callable[[str], None], run_all: Callable[[], None], shots: Path
) -> None:
    # GIVEN three recordings as steps of one view, in JupyterLab's light theme
    store(lab, "story.ipynb", STORY)
    open_notebook("story.ipynb")
    run_all()
    view = view_of(page)
    view.wait_for(timeout=2 * MINUTES)
    theme = "document.querySelector('[data-lm-suppress-shortcuts][data-theme]').dataset.theme"
    assert page.evaluate(theme) == "light"
    view.screenshot(path=shots / "lab-story-light.png")

    # WHEN the theme is changed
    choose_theme(page, "JupyterLab Dark")
    try:
        # THEN the view follows without being run again
        page.wait_for_function(f"{theme} === 'dark'", timeout=MINUTES)

        # AND steps are walked: what changed is counted, numbers were equal, all of it from the recordings
        view.get_by_role("button", name="Next step", exact=True).click()
        assert view.get_by_role("button", name="2 graph trees").get_attribute("aria-current") == "step"
        copied = view.locator(".steps tr").filter(has_text="bytes copied").inner_text()
        assert "128.1 MiB" in copied
        assert "equal, 111,166,465 values" in view.locator(".steps").inner_text()
        view.get_by_role("button", name="Next step", exact=True).click()
        assert view.get_by_role("button", name="Next step", exact=True).is_disabled()

        # AND each view is there; a kernel says what its words are
        for name in ("Partitions", "Graph", "Failures", "Memory"):
            view.get_by_role("tab", name=name).click()
            page.wait_for_timeout(300)
            view.screenshot(path=shots / f"lab-dark-{name.lower()}.png")
        view.get_by_role("tab", name="Graph").click()
        view.get_by_role("searchbox").fill("triton_")
        view.get_by_role("searchbox").press("Enter")
        panel = view.get_by_role("complementary", name="Details")
        assert panel.locator("table.words tbody tr").count() > 3
        assert "pointer" in panel.inner_text()
        view.screenshot(path=shots / "lab-dark-node.png")

        # AND memory of all steps is on one scale
        view.get_by_role("tab", name="Memory").click()
        view.get_by_label("all steps side by side").check()
        page.wait_for_timeout(300)
        view.screenshot(path=shots / "lab-dark-side-by-side.png")
    finally:
        choose_theme(page, "JupyterLab Light")


def choose_theme(page: Page, name: str) -> None:
    """Settings, Theme, and a theme: a menu in a menu."""
    page.keyboard.press("Escape")
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.locator(".lm-Menu").get_by_text("Theme", exact=True).click()
    page.locator(".lm-Menu").get_by_text(name, exact=True).click()


TOLD = [
    """import torch, paramgraph_kit as pgk
from torch import nn
import torch.nn.functional as F
dev = pgk.device()
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(dev)
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
seen = []
def train(x, y):
    opt.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    seen.append(loss.item())
    return loss.detach()
def pick(x):
    y = x[x > 0]
    for _ in range(3):
        y = y * 1.01
    return y
x, y = torch.randn(8, 6).to(dev), torch.randint(0, 3, (8,)).to(dev)""",
    "pgk.story(train, x, y)",
    "pgk.story(pick, x)",
]


def test_a_story_and_its_view_are_on_one_screen(
    page: Page, lab: Lab, open_notebook: Callable[[str], None], run_all: Callable[[], None], shots: Path
) -> None:
    # GIVEN two stories, one of which stops WHEN they are told in a notebook
    store(lab, "told.ipynb", TOLD)
    open_notebook("told.ipynb")
    run_all()
    finished(page)
    for size, cell, chapters, is_open in (
        ((1600, 1000), 1, 7, []),
        ((1000, 700), 1, 7, []),
        ((1600, 1000), 2, 4, ["4. The fix, in your own words"]),
        ((1000, 700), 2, 4, ["4. The fix, in your own words"]),
    ):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        out = page.locator(".jp-CodeCell").nth(cell).locator(".jp-OutputArea-output:visible")
        text, view = out.nth(0), out.nth(1)
        page.evaluate("one => one.scrollIntoView({block: 'start'})", text.element_handle())
        page.wait_for_timeout(400)
        # THEN the steps of the view are seen with all of the text above them
        tabs = view.get_by_role("button", name="1 eager", exact=True)
        top, below = text.bounding_box(), tabs.bounding_box()
        notebook = page.locator(".jp-WindowedPanel-outer:visible").first.bounding_box()
        assert top is not None
        assert below is not None
        assert notebook is not None
        assert top["y"] >= notebook["y"] - 1
        assert below["y"] + below["height"] < notebook["y"] + notebook["height"], (size, cell)
        page.screenshot(path=shots / f"told-{cell}-{size[0]}.png")
        # AND each chapter is a line that opens; where there is something to do, the last one is open
        lines = text.locator("summary")
        assert lines.count() == chapters
        opened = [one.locator("summary b").inner_text() for one in text.locator("details[open]").all()]
        assert opened == is_open
        assert ("change these lines as said" in text.inner_text()) == bool(is_open)
    # AND nothing is lost: the diff is there, and what to do
    first = page.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-output:visible").first
    first.locator("summary").nth(3).click()
    assert "+def after_train(loss):  # after each launch" in first.inner_text()
    assert "launched = pgk.parameterize(train, state=(net, opt))" in first.inner_text()


def finished(page: Page) -> None:
    """Wait until every cell has run."""
    every = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].every"
    page.wait_for_function(f"() => {every}(one => /\\[\\d+\\]:/.test(one.innerText))", timeout=3 * MINUTES)
