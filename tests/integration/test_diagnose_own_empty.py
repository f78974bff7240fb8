"""Captures of a program's own that hold nothing, and fixes that would leave next to nothing in them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]

TRAINED = """
def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.5)
    x, seen, mixing = torch.randn(4, 6, device=device), 0.0, torch.randn(6, 6, device=device)
    def step():
        STEP
    def behind():
        net(x).float().square().mean().backward()
        opt.step()
    with AROUND:
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(2):
                net(x).float().square().mean().backward()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            out = step()
    for i in range(4):
        x.copy_(torch.full((4, 6), 0.1 * i))
        graph.replay()
        BEHIND
    return seen, [p.detach().clone() for p in net.parameters()]
"""
CLEARS = "opt.zero_grad(set_to_none=True)"
STEP = """
nonlocal seen
opt.zero_grad(set_to_none=True)
loss = net(x).float().square().mean()
loss.backward()
norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in net.parameters()))
if norm > 0.1:
    for p in net.parameters():
        p.grad.mul_(0.1 / norm)
opt.step()
seen = 0.9 * seen + 0.1 * loss.item()
return loss
"""
MIXED = STEP.replace("loss = net(x)", "h = x\nfor _ in range(24):\n    h = torch.tanh(h @ mixing)\nloss = net(h)")
CASTS = "cuda.amp.autocast(dtype=torch.bfloat16)"


def _program(step: str, around: str, behind: str) -> str:
    lines = "\n        ".join(step.strip().splitlines())
    return "import contextlib\n" + TRAINED.replace("STEP", lines).replace("AROUND", around).replace("BEHIND", behind)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize(("step", "told"), [(CLEARS, ["empty-graph"]), ("return x.mul(2)", [])])
def test_a_capture_that_holds_nothing_is_told_at_its_line(step: str, told: list[str], tmp_path: Path) -> None:
    # GIVEN a program whose replays do nothing, with training behind each of them
    names = run(_program(step, "contextlib.nullcontext()", "behind()"), tmp_path)
    # WHEN
    found = pgk.diagnose(names["main"])
    # THEN it is told where the capture begins, and not of a capture that holds something
    assert [f.code for f in found] == told, found
    assert all(f.frame is not None and f.frame.text == "with cuda.graph(graph):" for f in found), found
    assert not told or "take this capture and its replays out" in str(found)


def test_what_torch_warns_of_at_the_end_of_an_empty_capture_is_still_heard(tmp_path: Path) -> None:
    # GIVEN the same program
    names = run(_program(CLEARS, "contextlib.nullcontext()", "behind()"), tmp_path)
    # WHEN
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        pgk.diagnose(names["main"])
    # THEN
    assert any("The CUDA Graph is empty" in str(each.message) for each in heard)


def test_a_fix_of_a_captured_step_under_autocast_keeps_the_step_in_the_graph(tmp_path: Path) -> None:
    # GIVEN a training step that is captured under autocast, which keeps casts, and that asks the host
    text = _program(STEP, CASTS, "pass")
    names = run(text, tmp_path)
    # WHEN
    found = pgk.diagnose(names["main"], fix=True)
    # THEN the cache goes around the capture, and the step stays in the graph
    assert "cache_enabled=False" in str(found)
    assert found.fix is not None
    assert found.fix.complete, found.fix
    # THEN replays of the program's own graph give eager's numbers where one follows all that is told
    followed = "\n".join(line.rstrip("\n") for lines in found.fix.texts.values() for line in lines)
    followed = followed.replace(CASTS, CASTS[:-1] + ", cache_enabled=False)")
    followed = followed.replace("graph.replay()\n        pass", "graph.replay()\n        after_step_of[step](out)")
    assert followed.count("after_step_of[step](out)") == 1
    eagerly = text.replace("graph.replay()", f"with {CASTS}: step()").replace("out = step()", "x.mul(1)")
    numbers = [load(each, tmp_path / f"{n}.py")["main"]() for n, each in enumerate((followed, PRELUDE + eagerly))]
    torch.testing.assert_close(*numbers)


@pytest.mark.parametrize("step", [STEP, MIXED], ids=["next to nothing", "a zero that is not repeated"])
def test_a_training_step_is_not_moved_behind_a_replay_that_does_not_clear_its_gradients(
    step: str, tmp_path: Path
) -> None:
    # GIVEN a captured step under an autocast whose cache no words turn off, and so lines that no graph can hold
    text = _program(step, "casts", "pass").replace("    def step", f"    casts = {CASTS}\n    def step")
    names = run(text, tmp_path)
    # WHEN
    found = pgk.diagnose(names["main"], fix=True)
    # THEN no diff moves forward and backward, and leaves zero_grad() to a graph that does not repeat it
    lines = found.fix.texts.values() if found.fix is not None else []
    after = "\n".join(line for each in lines for line in each).partition("def after_step")[2].partition("def behind")[0]
    assert "backward" not in after, found.fix
    assert "as in the diff" not in str(found) or (found.fix is not None and found.fix.diff), found
