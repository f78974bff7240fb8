"""The timeline and the memory view: what each launch wrote, words that turn, and whose a block of memory is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.explore import to_html
from paramgraph_kit.trace import PoolAction, Trace
from tests.browser.test_explorer import shown
from tests.browser.test_explorer_graph import Model
from tests.unit import explore_sample as sample

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser
APP = "document.querySelector('#paramgraph-explorer > div').paramgraph"
SCALE = f"{APP}.root.querySelector('.timeline .surface').picture.look.scale"
STAGE = f"{APP}.root.querySelector('.stage canvas').toDataURL()"


@pytest.fixture(scope="module")
def trained() -> Trace:
    """Five training steps, of which some results are kept: addresses move, parameters do not."""
    model = torch.compile(Model().to(pgk.device()), backend="paramgraph")
    kept = []
    with pgk.watch("twelve layers") as trace:
        for n in range(5):
            x = torch.randn(4, 8).to(pgk.device())
            y = model(x)
            kept.append((x, y) if n % 2 else None)
            y.sum().backward()
    return trace


@pytest.fixture
def view(browser: Browser, trained: Trace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locator]:
    """The explorer on a page in which no script may fail."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(to_html(trained, tmp_path_factory.mktemp("launches") / "a.html").as_uri())
    view = page.locator("#paramgraph-explorer")
    view.get_by_role("tab").first.wait_for()
    yield view
    page.close()
    assert problems == []


def shot(view: Locator, shots: Path, name: str) -> None:
    for theme in ("dark", "light"):
        view.page.emulate_media(color_scheme=theme)
        view.page.wait_for_timeout(100)
        view.screenshot(path=shots / f"{name}-{theme}.png")


def test_launches_are_walked_and_each_says_what_it_wrote(view: Locator, trained: Trace, shots: Path) -> None:
    page = view.page
    # GIVEN the timeline, by its key
    page.keyboard.press("5")
    bar, panel = view.locator(".timeline .bar"), view.get_by_role("complementary", name="Details")
    assert "simulated order" in bar.inner_text()

    # WHEN launches are walked by keyboard to one whose input had moved
    page.keyboard.press("Home")
    forward = next(c.id for c in trained.captures if any(a.name == "tokens" for a in c.allocations))
    mine = [n for n, one in enumerate(trained.launches) if one.capture == forward]
    place = mine[1]
    for _ in range(place):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(600)
    shot(view, shots, "timeline")

    # THEN bar and panel say which call it was, and the old and the new address of what moved, by name
    launch = trained.launches[place]
    assert f"launch {place}: call 1" in bar.inner_text()
    assert f"{launch.words_patched} words written" in bar.inner_text()
    capture = trained.captures[launch.capture]
    slot = next(a.slot for a in capture.allocations if a.name == "tokens")
    assert slot is not None
    before = trained.launches[mine[0]]
    said = " ".join(panel.inner_text().split())
    assert f"{before.addresses[slot]:#x} → {launch.addresses[slot]:#x}" in said

    # AND as a table: what a frozen graph would read is stale where the address has moved, and the same where it has not
    view.locator(".timeline .astable summary").click()
    table = view.locator(".timeline .astable table")
    row = table.locator("tr").filter(has_text=f"{launch.addresses[slot]:#x}").first.inner_text()
    assert f"{before.addresses[slot]:#x}, stale" in row
    assert ", the same" in table.locator("tr").filter(has_text="layers.3.out.weight").first.inner_text()

    # WHEN a tensor is followed THEN the panel tells of it, and one goes back
    panel.locator("table button").first.click()
    assert "tensor of capture" in panel.inner_text()
    panel.get_by_role("button", name="Back").click()
    assert f"launch {place}" in panel.inner_text()


def test_words_turn_unless_somebody_wants_less_motion(view: Locator) -> None:
    page = view.page
    pictures = {}
    for motion in ("no-preference", "reduce"):
        # GIVEN somebody who wants motion, or none
        page.emulate_media(reduced_motion=motion)
        page.keyboard.press("5")
        page.keyboard.press("End")
        page.wait_for_timeout(600)
        # WHEN the launch before is walked to THEN its words turn on the way, or are there at once
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(60)
        first = page.evaluate(STAGE)
        page.wait_for_timeout(700)
        pictures[motion] = (first, page.evaluate(STAGE))
    assert pictures["no-preference"][0] != pictures["no-preference"][1]
    assert pictures["reduce"][0] == pictures["reduce"][1]
    assert pictures["reduce"][1] == pictures["no-preference"][1]


def test_launches_play_and_zoom(view: Locator) -> None:
    page = view.page
    # GIVEN the timeline at its beginning WHEN it is played by keyboard THEN it goes on by itself, until it is paused
    page.keyboard.press("5")
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    bar = view.locator(".timeline .bar")
    bar.get_by_text("launch 2:").wait_for(timeout=5000)
    bar.get_by_role("button", name="Pause").click()
    stopped = bar.inner_text()
    page.wait_for_timeout(1300)
    assert bar.inner_text() == stopped

    # WHEN it is zoomed THEN a launch is wider, and everything fits again
    before = page.evaluate(SCALE)
    for _ in range(4):
        page.keyboard.press("+")
    assert page.evaluate(SCALE) > 2 * before
    page.keyboard.press("0")
    assert page.evaluate(SCALE) == before


def test_nothing_covers_a_launch_in_a_narrow_pane(page: Page, trained: Trace, tmp_path: Path, shots: Path) -> None:
    # GIVEN a pane that is narrow, with the timeline WHEN looked at
    page.set_viewport_size({"width": 520, "height": 700})
    page.goto(to_html(trained, tmp_path / "a.html").as_uri())
    view = page.locator("#paramgraph-explorer")
    view.get_by_role("tab", name="Timeline").click()
    launches = view.get_by_label("Launches. Left and right walk", exact=False).bounding_box()
    # THEN no button stands on its bars
    assert launches is not None
    for name in ("Zoom in", "Zoom out", "Show everything"):
        button = view.locator(".timeline").get_by_role("button", name=name).bounding_box()
        assert button is not None
        assert button["y"] + button["height"] <= launches["y"], name
    # AND they zoom
    before = page.evaluate(SCALE)
    view.locator(".timeline").get_by_role("button", name="Zoom in").click()
    assert page.evaluate(SCALE) > before
    shot(view, shots, "timeline-narrow")


def test_times_of_a_device_are_an_axis(page: Page, tmp_path: Path, shots: Path) -> None:
    # GIVEN a trace whose launches were timed on a device, and one that has none
    launches = [replace(one, gpu_start_us=250.0 * n, gpu_us=180.5) for n, one in enumerate(sample.trace().launches)]
    steps = {"timed": replace(sample.trace(), launches=launches), "none": Trace(sample.SOURCE)}
    view = shown(page, steps, tmp_path / "a.html")
    # WHEN the timeline is looked at THEN the axis is the device's, and a launch says how long it ran, from when
    page.keyboard.press("5")
    page.keyboard.press("End")
    assert "time on the GPU" in view.locator(".timeline .bar").inner_text()
    assert "180.5 µs on the GPU" in view.locator(".timeline .bar").inner_text()
    assert "180.5 µs from 5.75 ms on the GPU's" in view.get_by_role("complementary", name="Details").inner_text()
    view.screenshot(path=shots / "timeline-gpu.png")
    # AND one without launches says so
    page.keyboard.press("]")
    assert view.get_by_text("No launch was recorded here.").is_visible()


def test_a_block_says_whose_it_is_and_a_tensor_where_it_lies(view: Locator, trained: Trace, shots: Path) -> None:
    page = view.page
    panel = view.get_by_role("complementary", name="Details")
    # GIVEN a parameter WHEN it is selected THEN its block in the allocator's pool is, too
    view.get_by_role("searchbox").fill("layers.3.out.weight")
    view.get_by_role("searchbox").press("Enter")
    alike = page.evaluate(f"{APP}.alike")
    (block,) = [one for one in alike if one["is"] == "block"]
    view.get_by_role("tab", name="Memory").click()
    shot(view, shots, "memory-tensor")

    # WHEN that block is selected THEN it says who holds it, and the parameter is marked in the graph
    page.evaluate(f"{APP}.select({block})".replace("'", '"'))
    assert "layers.3.out.weight [8x8] f32" in panel.inner_text()
    assert "who holds it" in panel.inner_text()
    view.get_by_role("tab", name="Graph").click()
    assert page.evaluate(f"{APP}.views.graph.marks.found.size") > 0

    # WHEN one that came while somebody watched is selected THEN it has the line that asked for it
    view.get_by_role("tab", name="Memory").click()
    view.locator(".memory canvas").focus()
    page.keyboard.press("ArrowRight")
    allocated = [event for event in trained.pool_events if event.action is PoolAction.ALLOC]
    place = next(n for n, event in enumerate(allocated) if event.frame is not None)
    page.evaluate(f"{APP}.select({{ is: 'block', step: 0, pool: 'default', at: {place} }})")
    assert "allocated at" in panel.inner_text()
    assert "test_explorer_" in panel.inner_text()


def test_a_block_is_of_who_lay_there_while_it_was_there(view: Locator, trained: Trace, shots: Path) -> None:
    page = view.page
    panel = view.get_by_role("complementary", name="Details")
    # GIVEN an input that came and went at addresses which others have had as well
    forward = next(c for c in trained.captures if any(a.name == "tokens" for a in c.allocations))
    slot = next(a.slot for a in forward.allocations if a.name == "tokens")
    assert slot is not None
    given = [(one.addresses[slot], one.event) for one in trained.launches if one.capture == forward.id]
    born: dict[int, int] = {}
    blocks: list[tuple[int, int, int | None, int]] = []  # as the pool has them: born, address, died, size
    for event in trained.pool_events:
        if event.action is PoolAction.ALLOC:
            born[event.address] = len(blocks)
            blocks.append((event.time, event.address, None, event.size))
        elif event.action is PoolAction.FREE:
            at = born.pop(event.address)
            blocks[at] = (*blocks[at][:2], event.time, event.size)
    own = {
        n
        for n, (came, low, died, size) in enumerate(blocks)
        for address, event in given
        if event is not None and low <= address < low + size and came <= event and (died is None or event < died)
    }
    ever = {n for n, (_, low, _, size) in enumerate(blocks) if any(low <= address < low + size for address, _ in given)}
    assert own < ever

    # WHEN it is selected THEN only its own blocks are marked, and none of those that had the address before or after
    view.get_by_role("searchbox").fill("tokens")
    view.get_by_role("searchbox").press("Enter")
    alike = page.evaluate(f"{APP}.alike")
    assert {one["at"] for one in alike if one["is"] == "block"} == own
    # AND the other way round
    for at, holds in ((min(own), True), (min(ever - own), False)):
        page.evaluate(f"{APP}.select({{ is: 'block', step: 0, pool: 'default', at: {at} }})")
        assert ("tokens [4x8] f32 at a launch" in panel.inner_text()) == holds

    # AND on the timeline its slot is outlined
    view.get_by_role("tab", name="Timeline").click()
    page.wait_for_timeout(600)
    before = page.evaluate(STAGE)
    weight = next(n for n, (_, low, _, _) in enumerate(blocks) if low == trained.launches[0].addresses[0])
    page.evaluate(f"{APP}.select({{ is: 'block', step: 0, pool: 'default', at: {weight} }})")
    assert page.evaluate(STAGE) != before
    shot(view, shots, "timeline-block")

    # AND a pool names who holds its largest blocks
    page.evaluate(f"{APP}.select({{ is: 'pool', step: 0, pool: 'default' }})")
    assert "layers.3.out.weight [8x8] f32" in panel.locator("ul.links").inner_text()


def test_a_pool_names_blocks_of_tensors_before_others_of_their_size(page: Page, tmp_path: Path) -> None:
    # GIVEN a pool with more blocks of nobody than its list has room for, of the size of parameters, which came later
    with pgk.watch("crowded") as trace:
        nobody = [torch.ones(64, device=pgk.device()) for _ in range(300)]
        model = torch.compile(Model().to(pgk.device()), backend="paramgraph")
        for _ in range(3):
            model(torch.randn(4, 8).to(pgk.device())).sum().backward()
    assert len(nobody) == 300
    view = shown(page, trace, tmp_path / "a.html")
    # WHEN the pool is selected THEN its list has those that a launch was given
    page.evaluate(f"{APP}.select({{ is: 'pool', step: 0, pool: 'default' }})")
    said = view.get_by_role("complementary", name="Details").locator("ul.links").inner_text()
    assert "layers.3.out.weight [8x8] f32" in said


def test_pools_are_summed_at_their_peak_and_at_rest(page: Page, tmp_path: Path, shots: Path) -> None:
    # GIVEN two traces with memory, side by side
    view = shown(page, {"one": sample.trace(), "two": replace(sample.trace(), title="two")}, tmp_path / "a.html")
    page.keyboard.press("4")
    view.get_by_label("all steps side by side").check()
    # WHEN they are read as a table THEN every pool has its peak and what is left at rest, and so have all together
    view.locator(".memory .astable summary").click()
    said = view.locator(".memory .astable table").inner_text()
    rows = [row.split("\t") for row in said.splitlines()]
    assert rows[0][1:5] == ["reserved at the peak", "at rest", "live at the peak", "at rest"]
    assert ["one: all pools", "164.0 MiB", "164.0 MiB"] in [row[:3] for row in rows]
    assert ["two: all pools", "164.0 MiB", "164.0 MiB"] in [row[:3] for row in rows]
    view.screenshot(path=shots / "memory-side-by-side.png")


def test_a_replay_that_wrote_nothing_is_not_said_to_have_lost_its_addresses(page: Page, tmp_path: Path) -> None:
    # GIVEN a graph captured by hand, which nobody tells of an address, and one whose addresses were not kept
    first = sample.trace().launches[0]
    by_hand = replace(first, words_patched=0, moved=0, addresses=())
    steps = {
        "by hand": replace(sample.trace(), launches=[by_hand]),
        "long ago": replace(sample.trace(), launches=[replace(by_hand, words_patched=3)]),
    }
    view = shown(page, steps, tmp_path / "a.html")
    panel = view.get_by_role("complementary", name="Details")
    # WHEN each is looked at THEN it says what is so
    for key, says, table in (
        ("[", "It wrote no address.", "nothing written"),
        ("]", "first 256 launches only", "3 words"),
    ):
        page.keyboard.press(key)
        page.keyboard.press("5")
        page.keyboard.press("Home")
        assert says in panel.inner_text()
        assert table in view.locator(".timeline .bar").inner_text()
        view.locator(".timeline .astable summary").click()
        view.locator(".timeline .astable p").get_by_text(says).wait_for()
        view.locator(".timeline .astable summary").click()


def test_a_graph_that_was_for_nothing_is_told_beside_its_partition(page: Page, tmp_path: Path) -> None:
    # GIVEN a trace whose graph was never launched, one whose graph was, and a report's, which has no events
    used = sample.trace()
    steps = {
        "idle": replace(used, launches=[]),
        "used": used,
        "report": replace(used, launches=[], pool_events=[]),
    }
    view = shown(page, steps, tmp_path / "a.html")
    # WHEN the partitions of each are looked at THEN the first alone says so
    for step, says in (("1 idle", 1), ("2 used", 0), ("3 report", 0)):
        view.get_by_role("button", name=step, exact=True).click()
        view.get_by_role("tab", name="Partitions").click()
        view.locator(".list:visible .row").first.wait_for()
        told = view.locator(".list:visible").get_by_text("never launched while this was recorded")
        assert (told.count() > 0) == bool(says), step
