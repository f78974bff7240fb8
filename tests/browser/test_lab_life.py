"""The life of a notebook with an explorer in it: shown twice, run twice, restarted, opened again, interrupted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import MINUTES, Lab, store
from tests.browser.test_notebooks import cell_states

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

CELLS = [
    """import time, torch, paramgraph_kit as pgk
class Модель_mit_einem_sehr_langen_Namen_der_niemals_in_eine_Zeile_passt_und_doch_gültig_ist(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.слой_очень_длинным_именем_которое_не_помещается = torch.nn.Linear(8, 8)
    def forward(self, x):
        return torch.relu(self.слой_очень_длинным_именем_которое_не_помещается(x))
kind = Модель_mit_einem_sehr_langen_Namen_der_niemals_in_eine_Zeile_passt_und_doch_gültig_ist
model = pgk.compile(kind().to(pgk.device()))
with pgk.watch("schöne Grüße, 世界 " + "x" * 80) as trace, torch.no_grad():
    for _ in range(4):
        model(torch.randn(4, 8, device=pgk.device()))
explorer = pgk.explore(trace)
explorer""",
    "explorer",
    'print("launches:", len(trace.launches), str(pgk.report(model)).splitlines()[2].split()[0])',
]

INTERRUPTED = [
    """%load_ext paramgraph_kit
import time, torch, paramgraph_kit as pgk
w = torch.ones(8, 8, device=pgk.device())
count = {"n": 0}
def f(x):
    return torch.relu(x @ w)
print("before", pgk.story(f, torch.ones(4, 8, device=pgk.device()), say=None).complete)""",
    """%%paramgraph story
count["n"] += 1
time.sleep(0.5 if count["n"] > 1 else 0.0)
y = w @ w
""",
    """print("count", count["n"], pgk.story(f, torch.ones(4, 8, device=pgk.device()), say=None).complete)""",
]


def explorers(page: Page) -> Locator:
    """Every explorer that is drawn."""
    return page.locator(".jp-OutputArea-output").filter(has=page.get_by_role("tab", name="Partitions"))


def finished(page: Page, cells: int) -> None:
    """Wait until every cell has run and the kernel has nothing to do."""
    page.wait_for_function(
        "n => { const drawn = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];"
        "const all = drawn.map(prompt => prompt.innerText.trim());"
        "return all.length === n && all.every(text => /^\\[\\d+\\]:$/.test(text)) }",
        arg=cells,
        timeout=2 * MINUTES,
    )


def test_one_explorer_lives_through_what_people_do_with_a_notebook(
    page: Page,
    lab: Lab,
    open_notebook: Callable[[str], None],
    run_all: Callable[[], None],
    choose: Callable[[str, str], None],
    shots: Path,
) -> None:
    # GIVEN a notebook that shows one explorer in two outputs, of a model with long names of other alphabets
    page.set_viewport_size({"width": 1600, "height": 2400})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    store(lab, "life.ipynb", CELLS)
    open_notebook("life.ipynb")
    run_all()
    finished(page, 3)
    views = explorers(page)
    views.nth(1).wait_for(timeout=MINUTES)
    assert views.count() == 2

    # WHEN one of the two is used THEN the other stays where it is, or follows, and keys go to the one that has them
    views.nth(0).get_by_role("tab", name="Memory").click()
    page.wait_for_timeout(500)
    views.nth(0).screenshot(path=shots / "life-first.png")
    views.nth(1).screenshot(path=shots / "life-second.png")
    chosen = [views.nth(n).get_by_role("tab", selected=True).inner_text() for n in (0, 1)]
    assert chosen[0].startswith("Memory")
    views.nth(1).get_by_role("tab", name="Graph").click()
    assert views.nth(1).get_by_role("tab", selected=True).inner_text().startswith("Graph")

    # WHEN all is run again, which defines the class again THEN it says the same
    said = page.locator(".jp-OutputArea-output").get_by_text(re.compile(r"launches: \d+"))
    first = said.inner_text()
    run_all()
    page.wait_for_timeout(1500)
    finished(page, 3)
    assert said.inner_text() == first
    assert explorers(page).count() == 2

    # WHEN the kernel is restarted while they are shown THEN they still answer, from what they have
    choose("Kernel", "Restart Kernel…")
    page.locator(".jp-Dialog button.jp-mod-accept").click()
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=2 * MINUTES)
    page.wait_for_timeout(1500)
    view = explorers(page).first
    for name in ("Memory", "Graph", "Timeline", "Partitions"):
        view.get_by_role("tab", name=name).click()
        assert view.get_by_role("tab", selected=True).inner_text().startswith(name)
    view.screenshot(path=shots / "life-restarted.png")

    # AND all runs again in the new kernel
    run_all()
    page.wait_for_timeout(1500)
    finished(page, 3)
    assert said.inner_text() == first

    # WHEN it is saved and opened again, without a kernel's widgets THEN each output has its picture or its text
    page.keyboard.press("Escape")
    choose("File", "Save Notebook")
    page.wait_for_timeout(2000)
    saved = json.loads((lab.folder / "life.ipynb").read_text(encoding="utf-8"))
    stored = [output["data"] for cell in saved["cells"] for output in cell["outputs"] if "data" in output]
    stored = [data for data in stored if "text/html" not in data]
    assert [sorted({"image/png", "text/plain"} & data.keys()) for data in stored] == [["image/png", "text/plain"]] * 2
    assert "schöne Grüße, 世界" in "".join(stored[0]["text/plain"])
    choose("Kernel", "Shut Down Kernel")
    page.wait_for_timeout(1000)
    open_notebook("life.ipynb")
    page.locator(".paramgraph-stored img:visible").nth(1).wait_for(timeout=MINUTES)
    assert not page.get_by_text("model not found").first.is_visible()
    page.screenshot(path=shots / "life-reopened.png")
    assert errors == []


def test_a_story_that_is_interrupted_leaves_everything_as_it_was(
    page: Page,
    lab: Lab,
    open_notebook: Callable[[str], None],
    run_all: Callable[[], None],
    choose: Callable[[str, str], None],
    shots: Path,
) -> None:
    # GIVEN a story of a cell that takes long
    store(lab, "interrupted.ipynb", INTERRUPTED)
    open_notebook("interrupted.ipynb")
    run_all()
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt")
    page.get_by_text("cell as it is, on simulated").wait_for(timeout=2 * MINUTES)
    page.wait_for_timeout(1500)

    # WHEN it is interrupted
    choose("Kernel", "Interrupt Kernel")
    page.get_by_text("KeyboardInterrupt").first.wait_for(timeout=MINUTES)
    page.screenshot(path=shots / "interrupted.png")

    # THEN the cells after it run, in a kernel where everything is as it was (what is sent before it rests is dropped)
    page.get_by_text("| Idle").first.wait_for(timeout=MINUTES)
    page.locator(".jp-CodeCell").nth(2).click()
    page.keyboard.press("Control+Enter")
    page.get_by_text("count 0 True").wait_for(timeout=2 * MINUTES)
    assert "[*]:" not in [text.strip() for text in prompts.all_inner_texts()]
    assert len(cell_states(page)) == 3
