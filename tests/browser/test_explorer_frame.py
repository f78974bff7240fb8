"""What stands around the views: scrolling, keys everywhere, the panel's width, small windows, the whole screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paramgraph_kit.explore import to_html
from paramgraph_kit.trace import Failure, Frame, Partition, Reason, Trace
from tests.browser.conftest import MINUTES, Lab, store
from tests.unit import explore_sample as sample
from tests.unit.test_explore_steps import story

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser


def many() -> Trace:
    """More partitions and failures than any window is high."""
    reason = (Reason("cpu-op", "runs on the CPU", Frame("train.py", 3, "step", "x.cpu()"), "aten._to_copy"),)
    partitions = [Partition(n, f"forward {n // 10}", False, ("aten._to_copy",), 1, reason) for n in range(60)]
    failures = [replace(sample.trace().failures[0], title=f"failure {n}") for n in range(20)]
    return replace(sample.trace(), partitions=partitions, failures=failures)


@pytest.fixture(params=[(1600, 1000), (1000, 700)], ids=lambda size: "x".join(map(str, size)))
def sized(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of one of two sizes, in which no script may fail."""
    width, height = request.param
    page = browser.new_page(viewport={"width": width, "height": height})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    page.close()
    assert problems == []


def shown(page: Page, traces: Trace | dict[str, Trace], path: Path) -> Locator:
    to_html(traces, path)
    page.goto(path.as_uri())
    view = page.locator("#paramgraph-explorer")
    view.get_by_role("tab").first.wait_for()
    return view


def height_in_window(view: Locator) -> float:
    """How much of the window the four views and the panel take."""
    box = view.locator(".body").bounding_box()
    size = view.page.viewport_size
    assert box is not None
    assert size is not None
    return float(box["height"] / size["height"])


@pytest.mark.parametrize("name", ["Partitions", "Failures"])
def test_long_lists_scroll_inside_the_view(sized: Page, tmp_path: Path, name: str) -> None:
    # GIVEN a trace with more rows than the view is high
    view = shown(sized, many(), tmp_path / "a.html")
    view.get_by_role("tab", name=name).click()
    rows = view.locator(".list:visible [data-at]")

    # WHEN the list is scrolled to its end
    view.locator(".list:visible").evaluate("list => list.scrollTo(0, list.scrollHeight)")

    # THEN the last row is inside the frame, which is no higher than the window
    frame, last = view.locator(".body").bounding_box(), rows.last.bounding_box()
    assert frame is not None
    assert last is not None
    assert frame["y"] <= last["y"]
    assert last["y"] + last["height"] <= frame["y"] + frame["height"]
    assert height_in_window(view) < 0.85


@pytest.mark.parametrize(
    ("trace", "opens"),
    [
        (sample.trace(), "Failures"),
        (replace(sample.trace(), failures=[]), "Partitions"),
        (replace(sample.trace(), failures=[], partitions=sample.trace().partitions[:1]), "Graph"),
        (Trace(sample.SOURCE, pool_events=sample.pool_events()), "Memory"),
        (Trace(sample.SOURCE), "Partitions"),
    ],
    ids=["failed", "refused", "captured", "memory", "nothing"],
)
def test_it_opens_on_the_view_that_has_something_to_say(page: Page, tmp_path: Path, trace: Trace, opens: str) -> None:
    # GIVEN a trace WHEN its page opens THEN the view that says most is seen
    view = shown(page, trace, tmp_path / "a.html")
    assert view.get_by_role("tab", selected=True).inner_text().startswith(opens)


def test_each_step_opens_where_it_has_something_to_say_until_somebody_chooses(page: Page, tmp_path: Path) -> None:
    # GIVEN a story whose first step failed, and whose last has a refused partition
    view = shown(page, story(), tmp_path / "a.html")
    chosen = view.get_by_role("tab", selected=True)
    assert chosen.inner_text().startswith("Failures")

    # WHEN a key walks on THEN the view does, too
    page.keyboard.press("]")
    page.keyboard.press("]")
    assert not chosen.inner_text().startswith("Failures")

    # WHEN a view was chosen THEN it stays
    page.keyboard.press("4")
    page.keyboard.press("[")
    assert chosen.inner_text().startswith("Memory")


def test_keys_work_at_once_and_in_every_view(page: Page, tmp_path: Path) -> None:
    # GIVEN a page that nobody has clicked
    view = shown(page, many(), tmp_path / "a.html")
    panel = view.get_by_role("complementary", name="Details")

    # WHEN arrows are pressed THEN rows are walked, in the failures and in the partitions
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert "failure 1" in panel.inner_text()
    page.keyboard.press("1")
    page.keyboard.press("End")
    assert "partition 59" in panel.inner_text()
    assert view.locator('[data-at="59"]').is_visible()

    # AND boxes of the graph are, also when the focus is on a tab, and blocks of memory
    page.keyboard.press("2")
    page.keyboard.press("ArrowUp")
    assert "partition 58" in panel.inner_text()
    view.get_by_role("tab", name="Memory").click()
    page.keyboard.press("Shift")
    view.get_by_role("tab", name="Memory").evaluate("tab => tab.blur()")
    page.keyboard.press("ArrowRight")
    assert "block in pool" in panel.inner_text()

    # AND a click between the rows is enough for keys to be meant for the view
    page.keyboard.press("3")
    page.keyboard.press("Escape")
    view.locator(".list:visible").click(position={"x": 3, "y": 3})
    page.keyboard.press("ArrowDown")
    assert "failure 0" in panel.inner_text()


def test_a_view_whose_tab_was_clicked_has_the_keys(page: Page, tmp_path: Path) -> None:
    # GIVEN a page WHEN a tab is clicked THEN arrows are for its view
    view = shown(page, sample.trace(), tmp_path / "a.html")
    chosen, panel = view.get_by_role("tab", selected=True), view.get_by_role("complementary", name="Details")
    for name, key, says in (("Timeline", "ArrowRight", "launch"), ("Memory", "ArrowRight", "block in pool")):
        view.get_by_role("tab", name=name).click()
        page.keyboard.press(key)
        assert chosen.inner_text().startswith(name)
        assert says in panel.inner_text()
    # AND whoever is at the tabs by keyboard stays there
    chosen.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    assert chosen.inner_text().startswith("Timeline")


def test_in_a_narrow_pane_every_tab_is_seen(page: Page, tmp_path: Path, shots: Path) -> None:
    # GIVEN a pane as narrow as a notebook beside another WHEN the timeline is looked at THEN no tab is cut off
    page.set_viewport_size({"width": 420, "height": 800})
    view = shown(page, sample.trace(), tmp_path / "a.html")
    page.keyboard.press("5")
    whole = view.bounding_box()
    assert whole is not None
    for tab in view.get_by_role("tab").all():
        box = tab.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= whole["x"] + whole["width"]
    page.wait_for_timeout(300)
    view.screenshot(path=shots / "narrow-timeline.png")


def test_the_panel_is_resized_hidden_and_shown(sized: Page, tmp_path: Path) -> None:
    # GIVEN a page
    view = shown(sized, sample.trace(), tmp_path / "a.html")
    panel = view.get_by_role("complementary", name="Details")

    def width() -> float:
        box = panel.bounding_box()
        return box["width"] if box else 0

    # WHEN its edge is dragged, and moved by keyboard THEN the panel follows, and the views keep some room
    before = width()
    edge = view.get_by_role("separator")
    box = edge.bounding_box()
    assert box is not None
    sized.mouse.move(box["x"] + 2, box["y"] + 50)
    sized.mouse.down()
    sized.mouse.move(box["x"] - 78, box["y"] + 50)
    sized.mouse.up()
    assert width() == pytest.approx(before + 80, abs=6)
    edge.focus()
    sized.keyboard.press("ArrowRight")
    assert width() == pytest.approx(before + 56, abs=6)
    for _ in range(60):
        sized.keyboard.press("ArrowLeft")
    views = view.locator(".views").bounding_box()
    assert views is not None
    assert views["width"] >= 200

    # WHEN it is hidden THEN the views have the whole width, and a second press brings it back
    sized.keyboard.press("p")
    assert not panel.is_visible()
    views, frame = view.locator(".views").bounding_box(), view.locator(".body").bounding_box()
    assert views is not None
    assert frame is not None
    assert views["width"] == pytest.approx(frame["width"], abs=2)
    view.get_by_role("button", name="Details panel").click()
    assert panel.is_visible()


def test_the_whole_screen(sized: Page, tmp_path: Path) -> None:
    # GIVEN a page WHEN f is pressed THEN the explorer fills the window, and gives it back
    view = shown(sized, sample.trace(), tmp_path / "a.html")
    sized.keyboard.press("f")
    sized.wait_for_function("document.fullscreenElement !== null")
    sized.wait_for_timeout(200)
    app = view.locator(".app").bounding_box()
    size = sized.evaluate("[innerWidth, innerHeight]")
    assert app is not None
    assert [round(app["width"]), round(app["height"])] == size
    sized.keyboard.press("f")
    sized.wait_for_function("document.fullscreenElement === null")


def test_each_view_in_a_small_and_in_a_large_window(sized: Page, tmp_path: Path, shots: Path) -> None:
    # GIVEN a story WHEN each view is opened THEN nothing is cut off sideways
    view = shown(sized, {"one": sample.trace(), "two": many()}, tmp_path / "a.html")
    view.scroll_into_view_if_needed()
    size = sized.viewport_size
    assert size is not None
    for name in ("Partitions", "Graph", "Failures", "Memory"):
        view.get_by_role("tab", name=name).click()
        sized.wait_for_timeout(150)
        view.screenshot(path=shots / f"{size['width']}-{name.lower()}.png")
        for part in (".head", ".body", ".views", ".panel"):
            wide, holds = view.locator(part).evaluate("one => [one.scrollWidth, one.clientWidth]")
            assert wide <= holds + 1, part
    # AND what changed between the steps is open where it leaves room for the views
    assert view.locator(".steps details").evaluate("one => one.open") == (size["height"] > 800)


def test_it_is_usable_in_a_small_window_of_jupyterlab(
    page: Page, lab: Lab, open_notebook: Callable[[str], None], run_all: Callable[[], None], shots: Path
) -> None:
    # GIVEN a small window of JupyterLab, with its file browser open
    store(lab, "small.ipynb", ['import paramgraph_kit as pgk\npgk.explore(pgk.recorded["llama-blocks-paramgraph"])'])
    open_notebook("small.ipynb")
    page.set_viewport_size({"width": 1000, "height": 700})

    # WHEN a trace is explored
    run_all()
    view = page.locator(".jp-OutputArea-output").filter(has=page.get_by_role("tab", name="Partitions")).first
    view.wait_for(timeout=2 * MINUTES)
    view.get_by_role("tab", name="Graph").click()
    page.wait_for_timeout(500)
    page.screenshot(path=shots / "lab-1000x700.png")

    # THEN it fits into what is seen of the notebook, and keys walk at once and run no shortcut of the notebook
    frame, notebook = view.locator(".body").bounding_box(), page.locator(".jp-WindowedPanel-outer").bounding_box()
    assert frame is not None
    assert notebook is not None
    assert frame["height"] < notebook["height"]
    assert frame["width"] < notebook["width"]
    cells = page.locator(".jp-Cell").count()
    for key in ("ArrowDown", "a", "d", "d"):
        page.keyboard.press(key)
    assert page.locator(".jp-Cell").count() == cells
    assert "trace" not in view.get_by_role("complementary", name="Details").inner_text().splitlines()[0]

    # AND more than three rows of a launch are seen below the timeline, the panel beside them
    view.get_by_role("tab", name="Timeline").click()
    view.get_by_role("button", name="Next launch").click()
    page.wait_for_timeout(500)
    page.screenshot(path=shots / "lab-1000x700-launch.png")
    stage = view.locator(".stage").bounding_box()
    assert stage is not None
    assert stage["height"] > 130


def test_a_failure_that_says_much_is_read_to_its_end(page: Page, tmp_path: Path) -> None:
    # GIVEN a failure with a long fix WHEN it is shown THEN the end of it can be reached
    fix = "before  x\nafter   " + "\n        ".join(f"line {n}" for n in range(120))
    failure = Failure("sync-item", "A value was read back", "", None, "It waits.", fix)
    view = shown(page, Trace(sample.SOURCE, failures=[failure]), tmp_path / "a.html")
    page.keyboard.press("ArrowDown")
    view.locator(".list:visible").evaluate("list => list.scrollTo(0, list.scrollHeight)")
    shown_text = view.locator("pre.after")
    box, frame = shown_text.bounding_box(), view.locator(".body").bounding_box()
    assert box is not None
    assert frame is not None
    assert box["y"] + box["height"] <= frame["y"] + frame["height"]


def test_keys_still_work_where_the_view_that_had_the_focus_has_nothing_to_show(sized: Page, tmp_path: Path) -> None:
    # GIVEN the graph of a step whose neighbour has none, with the focus on it
    view = shown(sized, {"captured": sample.trace(), "eager": Trace(sample.SOURCE)}, tmp_path / "trace.html")
    view.get_by_role("tab", name="Failures").click()
    sized.keyboard.press("2")
    # WHEN somebody walks to that neighbour
    sized.keyboard.press("]")
    # THEN it says so, without an empty picture, and the panel names the step
    view.get_by_text("No graph was captured in this trace.").wait_for()
    assert view.locator(".graph canvas:visible").count() == 0
    assert view.locator(".panel").get_by_text("step 2 · eager").count() == 1
    # AND keys work there, and in a timeline without launches
    for key, name in (("5", "Timeline"), ("4", "Memory"), ("1", "Partitions"), ("2", "Graph")):
        sized.keyboard.press(key)
        assert view.get_by_role("tab", name=name).get_attribute("aria-selected") == "true", name
