"""Landing buffers that a stream of copies fills again, while the replay's stream may still copy from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
LOADER = """
side, landed, free = cuda.Stream(), cuda.Event(), [cuda.Event(), cuda.Event()]
landing, middle, x = (torch.zeros(4, 8, device=device) for _ in range(3))
ring, columns = torch.zeros(2, 4, 8, device=device), torch.zeros(4, 2, 8, device=device)
w = torch.randn(8, device=device)
pair, turn = [torch.zeros(4, 8, device=device) for _ in range(2)], [0, None]
g = cuda.CUDAGraph()
with cuda.graph(g):
    y = x * w
def prefetch(batch):
    turn[0] += 1
    AHEAD
    with cuda.stream(side):
        WRITE
        landed.record()
def step(batch):
    cuda.current_stream().wait_event(landed)
    READ
    g.replay()
    out = y.clone()
    BEHIND
    prefetch(batch)
    return out
prefetch(torch.randn(4, 8, device=device))
args = (torch.randn(4, 8, device=device),)
"""
WRITE, READ = "landing.copy_(batch, non_blocking=True)", "x.copy_(landing)"
EACH = "torch._foreach_copy_([x, middle], pair)"
THIS = "[turn[0] % 2]"
WAITS = f"if turn[0] > 2: side.wait_event(free{THIS})"


def told(tmp_path: Path, *, write: str = WRITE, read: str = READ, ahead: str = "", behind: str = "") -> list[list[str]]:
    """What is told of a loader: the class, its line and its words."""
    text = PRELUDE + LOADER.replace("WRITE", write).replace("READ", read)
    text = text.replace("AHEAD", ahead or "pass").replace("BEHIND", behind or "pass")
    names = load(text, tmp_path / "program.py")
    found = pgk.diagnose(names["step"], *names["args"]).failures
    return [[f.code, f.frame.text if f.frame else "", f.fix.partition("after   ")[2]] for f in found]


@pytest.mark.parametrize(
    ("write", "read"),
    [
        pytest.param("ring[0].copy_(batch)", "middle.copy_(ring[0]); x.copy_(middle)", id="two copies of a part"),
        pytest.param(WRITE, READ, id="one copy", marks=pytest.mark.sweep),
        pytest.param(WRITE, "x.copy_(landing.float() / 2)", id="computed", marks=pytest.mark.sweep),
        pytest.param("pair[0].copy_(batch)", EACH, id="several at once", marks=pytest.mark.sweep),
        pytest.param(
            "torch._foreach_copy_(pair[:1], [batch])", "x.copy_(pair[0])", id="lists", marks=pytest.mark.sweep
        ),
    ],
)
def test_a_landing_buffer_that_is_filled_again_while_it_may_still_be_read_is_told(
    write: str, read: str, tmp_path: Path
) -> None:
    # GIVEN a stream of copies that never waits for the copy to the input WHEN diagnosed
    found = told(tmp_path, write=write, read=read)
    # THEN the line that fills the buffer is told, and what its stream has to wait for
    assert found == [["work-elsewhere", write, "ahead of the `with`: side.wait_stream(cuda.current_stream())"]]


@pytest.mark.sweep
def test_record_stream_is_no_wait(tmp_path: Path) -> None:
    # GIVEN a buffer whose allocator knows of the other stream WHEN THEN that orders nothing
    assert [code for code, *_ in told(tmp_path, behind="landing.record_stream(side)")] == ["work-elsewhere"]


SOUND = {
    "two parts in turn": {
        "write": "columns[:, turn[0] % 2].copy_(batch)",
        "read": f"x.copy_(columns[:, turn[0] % 2]); free{THIS}.record()",
        "ahead": WAITS,
    },
    "a stream": {"ahead": "side.wait_stream(cuda.current_stream())"},
    "an event": {"read": f"{READ}; free[0].record()", "ahead": "side.wait_event(free[0])"},
    "the host for an event": {"read": f"{READ}; free[0].record()", "ahead": "free[0].synchronize()"},
    "the host for a stream": {"behind": "cuda.current_stream().synchronize()"},
    "the host for all": {"behind": "cuda.synchronize()"},
    "a number that is read": {"behind": "out.sum().item()"},
    "two in turn": {
        "write": f"pair{THIS}.copy_(batch)",
        "read": f"x.copy_(pair{THIS}); free{THIS}.record()",
        "ahead": WAITS,
    },
    "a fresh one": {"write": "turn[1] = batch.clone()", "read": "x.copy_(turn[1])"},
    "another one": {"read": "x.copy_(middle)"},
}


@pytest.mark.parametrize("title", [pytest.param(t, marks=[pytest.mark.sweep] * (n > 1)) for n, t in enumerate(SOUND)])
def test_where_the_copies_wait_nothing_is_told(title: str, tmp_path: Path) -> None:
    # GIVEN copies that wait, or go elsewhere WHEN diagnosed THEN
    assert told(tmp_path, **SOUND[title]) == []
