"""A number that a function of the host's takes in a capture: a tensor has what that gives, as it takes no tensor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
FLUID = """
import math
import numpy as np
class Fluid:
    def __init__(self):
        self.v = torch.linspace(1, 2, 4, device=device)
        self.w, self.kT, self.dt = self.v * 0.5, 0.9, 0.1
    def step(self):
        WORK
def main(graphed=True):
    s, graph = Fluid(), cuda.CUDAGraph()
    if graphed:
        with cuda.graph(graph):
            s.step()
    kept = []
    for kT in (0.9, 0.5, 0.3):
        s.kT = kT
        graph.replay() if graphed else s.step()
        kept.append(s.v.clone())
    return torch.stack(kept)
"""
EACH, PAIR = re.compile(r"`([^`]*)`"), re.compile(r"`([^`]*)` for `([^`]*)`")


@pytest.mark.parametrize(
    "work",
    [
        "c = float(np.exp(-0.1)); self.v.mul_(c).add_(np.sqrt(self.kT * (1 - c * c)) * self.w)",
        pytest.param(
            "c = self.kT * self.dt; s = math.exp(-c); self.v.mul_(s).add_(math.sqrt(1 - s * s) * self.w)",
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            "self.v.mul_(math.sqrt(self.kT * 0.1)).add_(math.sqrt(self.kT * 0.2) * self.w)", marks=pytest.mark.sweep
        ),
    ],
)
def test_what_a_function_of_the_host_takes_is_in_the_tensor_whole(work: str, tmp_path: Path) -> None:
    # GIVEN a program whose captured lines have a function of the host's compute with a number that moves
    text = FLUID.replace("WORK", work.replace("; ", "\n        "))
    main = run(text, tmp_path)["main"]
    # WHEN it is diagnosed
    (told,) = [f for f in pgk.diagnose(main).failures if f.code == "scalar-frozen"]
    # THEN a tensor has what the host gives, and with that each replay gives what there is without a graph
    made, _, rest = told.fix.partition(", what is captured reads ")
    read, _, filled = rest.partition("ahead of graph.replay()")
    body = mended = text[text.index("    def step") : text.index("def main")]
    for new, old in sorted(PAIR.findall(read), key=lambda pair: -len(pair[1])):
        assert old in mended, (old, mended)
        mended = re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w.]|( =[^=]))", new, mended)
    lines = text.replace(body, mended)
    lines = lines.replace("    if graphed:\n", f"    if graphed:\n        {'; '.join(EACH.findall(made))}\n")
    fills = "\n        ".join(f"if graphed: {each}" for each in EACH.findall(filled))
    lines = lines.replace("        graph.replay()", f"        {fills}\n        graph.replay()")
    (tmp_path / "mended").mkdir()
    torch.testing.assert_close(run(lines, tmp_path / "mended")["main"](), main(False))


@pytest.mark.sweep
def test_sums_with_such_a_number_take_a_tensor_of_it(tmp_path: Path) -> None:
    # GIVEN the same, where a product alone is computed of it
    text = FLUID.replace("WORK", "c = self.kT * self.dt\n        self.v.mul_(1 - c).add_(c * self.w)")
    # WHEN it is diagnosed
    (told,) = pgk.diagnose(run(text, tmp_path)["main"]).failures
    # THEN the number itself is a tensor
    assert "s.kT.fill_(kT), ahead of graph.replay()" in told.fix, told.fix


@pytest.mark.parametrize(
    "kept",
    [
        "self.v.remainder_(2.5)",
        pytest.param("self.v.clamp_(0, 9)", marks=pytest.mark.sweep),
        pytest.param("", marks=pytest.mark.sweep),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
def test_what_a_warm_up_has_moved_within_a_box_is_noted(kept: str, begun: bool, tmp_path: Path) -> None:
    # GIVEN a state that is added to, and put within its box
    text = FLUID.replace("WORK", f"{'self.v.zero_(); ' * begun}self.v.add_(self.w); {kept}")
    text = text.replace("        with cuda", "        for _ in range(3):\n            s.step()\n        with cuda")
    # WHEN the program is diagnosed
    notes = str(pgk.diagnose(run(text, tmp_path)["main"]))
    # THEN it is noted, where each step does not begin it anew
    assert ("has moved `s.v`" in notes) is not begun, notes
