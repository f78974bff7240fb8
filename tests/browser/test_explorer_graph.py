"""The graph view: names everywhere, layers that fold, edges of data with what they carry, links by the pointer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.explore import to_html
from paramgraph_kit.trace import Trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser


class Layer(nn.Module):
    """Two branches and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = x + self.out(torch.relu(self.query(x)) * self.key(x))
        return mixed


class Model(nn.Module):
    """Twelve layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(12)])
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            tokens = layer(tokens)
        logits: torch.Tensor = self.head(tokens)
        return logits


@pytest.fixture(scope="module")
def trained() -> Trace:
    """A few training steps of it, watched."""
    model = torch.compile(Model().to(pgk.device()), backend="paramgraph")
    with pgk.watch("twelve layers") as trace:
        for _ in range(3):
            model(torch.randn(4, 8).to(pgk.device())).sum().backward()
    return trace


@pytest.fixture(params=["light", "dark"])
def view(
    browser: Browser, request: pytest.FixtureRequest, trained: Trace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Locator]:
    """The explorer on a page, in light or dark, in which no script may fail."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000}, color_scheme=request.param)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(to_html(trained, tmp_path_factory.mktemp("graph") / "a.html").as_uri())
    view = page.locator("#paramgraph-explorer")
    view.get_by_role("tab").first.wait_for()
    page.keyboard.press("2")
    yield view
    page.close()
    assert problems == []


def boxes(view: Locator) -> str:
    """The graph as a table: what every visible box says."""
    if not view.locator(".graph .astable[open]").count():
        view.locator(".graph .astable summary").click()
        view.locator(".graph .astable table").wait_for()
    return str(view.locator(".graph .astable").inner_text())


def shot(page: Page, view: Locator, shots: Path, name: str) -> None:
    theme = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    page.wait_for_timeout(150)
    view.screenshot(path=shots / f"{name}-{'dark' if theme else 'light'}.png")


def test_layers_fold_and_tensors_have_their_names(view: Locator, shots: Path) -> None:
    page = view.page
    # GIVEN a trained model WHEN its graph is seen THEN twelve layers are one box, forward and backward
    assert boxes(view).count("layers \u00d7 12") == 2
    shot(page, view, shots, "graph-folded")

    # WHEN the layers are opened by keyboard, and the first of them
    for key in ("2", "ArrowDown", "Enter", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    said = boxes(view)
    # THEN each is called by its module, and what is inside by its own
    assert "layers.11" in said
    assert "layers.0.query" in said
    shot(page, view, shots, "graph-layer")

    # WHEN a node is selected THEN its words name parameters, with shape and type, and what it runs is there
    page.keyboard.press("2")
    page.keyboard.press("ArrowDown")
    panel = view.get_by_role("complementary", name="Details")
    words = panel.locator("table.words").inner_text()
    for name in ("layers.0.query.weight [8x8] f32", "tokens [4x8] f32", "layers.0.query: addmm [4x8] f32"):
        assert name in words
    panel.get_by_text("what it runs").click()
    assert "addmm = aten.addmm.default(" in panel.inner_text()


def test_a_tensor_leads_to_its_nodes_and_to_its_bytes(view: Locator, shots: Path) -> None:
    page = view.page
    # GIVEN a parameter that was searched for by the name that its user gave it
    view.get_by_role("searchbox").fill("layers.3.out.weight")
    view.get_by_role("searchbox").press("Enter")
    panel = view.get_by_role("complementary", name="Details")
    assert "layers.3.out.weight [8x8] f32" in panel.inner_text()
    assert "node" in panel.locator("h4").first.inner_text()

    # WHEN the pointer is on one of its nodes THEN the graph marks that node
    app = "document.querySelector('#paramgraph-explorer > div').paramgraph"
    panel.locator("ul.links button").first.hover()
    assert page.evaluate(f"{app}.pointed.length") == 1
    assert page.evaluate(f"{app}.views.graph.marks.found.size") == 1
    page.mouse.move(5, 5)
    assert page.evaluate(f"{app}.pointed.length") == 0

    # WHEN its memory is asked for THEN its block is outlined in the plan
    panel.get_by_role("button", name="show in the plan").click()
    assert view.get_by_role("tab", name="Memory").get_attribute("aria-selected") == "true"
    shot(page, view, shots, "graph-tensor-bytes")


def test_edges_carry_tensors_or_the_order_of_launching(view: Locator, shots: Path) -> None:
    page = view.page
    app = "document.querySelector('#paramgraph-explorer > div').paramgraph"
    scene = f"{app}.views.graph.scene"
    # GIVEN everything open WHEN data is chosen THEN there is a residual: an edge over more than one rank
    page.keyboard.press("e")
    assert page.evaluate(f"{scene}.carried.size") > 20
    data = page.evaluate(f"{scene}.links.length")
    residuals = page.evaluate(
        f"""(() => {{ const s = {scene}; let n = 0;
        for (let k = 0; k < s.links.length; k += 2) if (s.boxes[s.links[k + 1]].a - s.boxes[s.links[k]].a > 4) n++;
        return n; }})()"""
    )
    assert residuals >= 12
    shot(page, view, shots, "graph-data")

    # WHEN the order of launching is chosen THEN edges are other ones, and carry nothing
    view.get_by_label("Which edges").select_option("order")
    assert page.evaluate(f"{scene}.carried.size") == 0
    assert page.evaluate(f"{scene}.links.length") != data
    shot(page, view, shots, "graph-order")


@pytest.mark.parametrize("name", ["gpt2", "llama-paramgraph", "resnet50"])
def test_what_an_edge_carries_is_written_where_nothing_else_stands(browser: Browser, tmp_path: Path, name: str) -> None:
    # GIVEN a recording, whose edges pass behind boxes and beside one another
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    to_html(pgk.recorded[name], tmp_path / "a.html")
    page.goto((tmp_path / "a.html").as_uri())
    page.locator("#paramgraph-explorer").get_by_role("tab", name="Graph").click()
    # WHEN shown THEN no label lies on a box or on another label, or is cut off at the side
    scene = "document.querySelector('#paramgraph-explorer > div').paramgraph.views.graph.scene"
    page.wait_for_function(f"{scene}.labels?.size > 0")
    found = page.evaluate(
        f"""(() => {{
        const labels = [...{scene}.labels.values()].filter(Boolean);
        const boxes = {scene}.boxes.filter((b) => !b.open);
        const apart = (a, b) => a.x > b.x + b.w || a.x + a.w < b.x || a.y > b.y + b.h || a.y + a.h < b.y;
        const all = [...boxes, ...labels];
        const free = labels.filter((one) => all.every((other) => other === one || apart(one, other)));
        const outside = labels.filter((one) => one.x + one.w > {scene}.width + 28); // what is shown of it
        return [labels.length, labels.length - free.length, outside.length];
        }})()"""
    )
    page.close()
    assert found[0] >= 4
    assert found[1:] == [0, 0]


def test_a_story_opens_where_something_fails(browser: Browser, tmp_path: Path) -> None:
    # GIVEN steps of which the second has failed WHEN opened THEN it is the one that is seen
    names = {"before": "llama-no-graphs", "broken": "story-1-broken", "launched": "story-3-parameterized"}
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    to_html({step: pgk.recorded[name] for step, name in names.items()}, tmp_path / "a.html")
    page.goto((tmp_path / "a.html").as_uri())
    view = page.locator("#paramgraph-explorer")
    assert view.locator(".walk .now").inner_text() == "2broken"
    assert view.get_by_role("tab", name="Failures").get_attribute("aria-selected") == "true"
    # AND what a trace does not say is a dash, whose title says that
    assert view.locator("td span[title='not recorded']").first.text_content() == "\u2013"
    page.close()


@pytest.mark.parametrize(("width", "height"), [(1000, 700), (1600, 1000)])
def test_forty_open_nodes_can_be_read(browser: Browser, tmp_path: Path, width: int, height: int) -> None:
    # GIVEN a whole training step of fifty nodes, in a window of a small or of a large screen
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)) for _ in range(5)))
    model = model.to(pgk.device())

    def step(x: torch.Tensor) -> torch.Tensor:
        for parameter in model.parameters():
            parameter.grad = None
        loss: torch.Tensor = model(x).square().mean()
        torch.autograd.backward(loss)
        return loss.detach()

    launched = pgk.parameterize(step, state=model)
    with pgk.watch("a step") as trace:
        for _ in range(4):
            launched(torch.randn(4, 8).to(pgk.device()))
    assert len(trace.captures[0].nodes) >= 40
    page = browser.new_page(viewport={"width": width, "height": height})
    page.add_init_script(
        "window.written = []; const of = CanvasRenderingContext2D.prototype, fill = of.fillText;"
        "of.fillText = function (words, ...rest) {"
        " window.written.push([words, parseFloat(this.font.match(/[0-9.]+px/)[0]) * this.getTransform().a]);"
        " return fill.call(this, words, ...rest); }"
    )
    page.goto(to_html(trace, tmp_path / "step.html").as_uri())
    page.keyboard.press("2")
    # WHEN every box is opened
    page.evaluate("window.written.length = 0")
    page.get_by_role("button", name="Open all").click()
    page.wait_for_timeout(300)
    # THEN each node has its name, in letters that can be read
    written = page.evaluate("window.written")
    names = {node.name[:9] for node in trace.captures[0].nodes}
    read = [words for words, pixels in written if pixels >= 7.5 and words[:9] in names]
    page.close()
    assert len(read) >= len(trace.captures[0].nodes), (len(read), written[:20])
