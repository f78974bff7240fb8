"""Arguments that a capture reads as they are: a later call has others, and the words copy these to ones that stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
MIXER = """
class Mixer:
    def __init__(self):
        torch.manual_seed(0)
        self.w = torch.randn(4, 4, device=device)
        self.graphs = {}
    def mix(self, x, c, o):
        return torch.tanh(x @ self.w + c) - o
    def __call__(self, x, cond, offset):
        key = tuple(x.shape)
        if key not in self.graphs:
            held = x.clone()
            self.mix(held, cond, offset)
            g = cuda.CUDAGraph()
            # ahead
            with cuda.graph(g):
                out = self.mix(held, cond, offset)
            self.graphs[key] = g, held, out
        g, held, out = self.graphs[key]
        held.copy_(x)
        g.replay()
        return out.clone()
    def plain(self, x, cond, offset):
        return self.mix(x, cond, offset)
def requests():
    torch.manual_seed(1)
    for i in range(6):
        yield torch.randn(2 + i % 2, 4).to(device), torch.randn(4).to(device)
def main(graphed=True):
    mixer, zero, results = Mixer(), torch.zeros(4, device=device), []
    for x, cond in REQUESTS:
        offset = OFFSET
        results.append((mixer if graphed else mixer.plain)(x, cond, offset))
    return results
"""


@pytest.mark.parametrize("requests", ["requests()", "list(requests())"])
@pytest.mark.parametrize("offset", ["zero", "cond.mean().expand(4).clone()"])
def test_what_a_capture_reads_of_its_arguments_is_filled_in_each_call(
    requests: str, offset: str, tmp_path: Path
) -> None:
    # GIVEN a table of graphs whose captures read arguments that are gone by then, or that the program keeps
    text = MIXER.replace("REQUESTS", requests).replace("OFFSET", offset)
    main = run(text, tmp_path)["main"]
    # WHEN it is diagnosed, and the words are followed
    (told,) = pgk.diagnose(main).failures
    assert told.code == "stale-input"
    line, _, ahead = told.fix.partition("\nafter   ")[2].partition(", and ahead of the capture at line ")
    made = ahead.split("`")[1::2]
    assert len(made) == 1 + (offset != "zero")  # what is one tensor in all calls is none of it
    text = text.replace("            # ahead\n", "".join(f"            {each}\n" for each in made))
    (tmp_path / "mended").mkdir()
    mended = run(text.replace("        g.replay()\n", f"        {line}\n"), tmp_path / "mended")["main"]
    # THEN its replays give what it gives without graphs, and nothing is told any more
    for ours, eager in zip(mended(), main(graphed=False), strict=True):
        assert torch.equal(ours, eager)
    assert not pgk.diagnose(mended).failures


def test_an_argument_that_is_copied_to_what_has_its_name_is_no_problem(tmp_path: Path) -> None:
    # GIVEN a capture that reads copies, which have the names of the arguments there
    text = (
        MIXER.replace("REQUESTS", "requests()")
        .replace("OFFSET", "zero")
        .replace(
            "cond, offset)\n            g = ",
            "cond, offset)\n            given, cond = cond, cond.clone()\n            g = ",
        )
    )
    text = text.replace("= g, held, out\n", "= g, held, cond, out\n            cond = given\n").replace(
        "g, held, out = self.graphs[key]\n", "g, held, there, out = self.graphs[key]\n        there.copy_(cond)\n"
    )
    # WHEN it is diagnosed THEN nothing is told
    main = run(text, tmp_path)["main"]
    assert not pgk.diagnose(main).failures
    for ours, eager in zip(main(), main(graphed=False), strict=True):
        assert torch.equal(ours, eager)


APART = """
class Model:
    def __init__(self):
        torch.manual_seed(0)
        self.w, self.cache = torch.randn(4, 4, device=device), {}
    def forward(self, x, c):
        return torch.tanh(x @ self.w + c)
    def capture(self, x, context):
        held = torch.zeros_like(x)
        self.forward(held, context)
        g = cuda.CUDAGraph()
        # ahead
        with cuda.graph(g):
            out = self.forward(held, context)
        return g, held, out
    def __call__(self, x, cond, graphed=True):
        scale = SCALE
        if not graphed:
            return self.forward(x, cond) * scale
        size = len(x)
        if size not in self.cache:
            self.cache[size] = self.capture(x, cond)
        g, held, out = self.cache[size]
        held.copy_(x)
        g.replay()
        return out * scale
def requests():
    torch.manual_seed(1)
    for i in range(6):
        yield torch.randn(2 + i % 2, 4).to(device), torch.randn(4).to(device)
def main(graphed=True):
    model = Model()
    return [model(x, cond, graphed) for x, cond in REQUESTS]
model, args = Model(), next(requests())
"""


@pytest.mark.parametrize("requests", ["requests()", "list(requests())"])
@pytest.mark.parametrize("scale", ["cond.norm()", "1.0"])
def test_what_another_function_captures_of_an_argument_is_told_also_where_that_is_read(
    requests: str, scale: str, tmp_path: Path
) -> None:
    # GIVEN a method that captures with an argument of its caller's, which reads it in each call, or does not
    text = APART.replace("REQUESTS", requests).replace("SCALE", scale)
    main = run(text, tmp_path)["main"]
    # WHEN it is diagnosed, and the words are followed
    (told,) = pgk.diagnose(main).failures
    line, _, ahead = told.fix.partition("\nafter   ")[2].partition(", and ahead of the capture at line ")
    (made,) = ahead.split("`")[1::2]
    text = text.replace("        # ahead\n", f"        {made}\n").replace("        g.replay()\n", f"        {line}\n")
    (tmp_path / "mended").mkdir()
    mended = run(text, tmp_path / "mended")["main"]
    # THEN its replays give what it gives without graphs, and nothing is told any more
    for ours, eager in zip(mended(), main(graphed=False), strict=True):
        assert torch.allclose(ours, eager)
    assert not pgk.diagnose(mended).failures
