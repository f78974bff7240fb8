"""Pinned memory that a step hands out, as an array or kept somewhere, while the copy that fills it is under way."""

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
WORKER = """
import queue
import numpy as np
class Worker:
    def __init__(self):
        self.obs, self.w = torch.zeros(4, 6, device=device), torch.randn(6, 3, device=device)
        self.host = torch.zeros(4, 3).pin_memory()
        self.look, self.latest, self.results = self.host.numpy(), {}, queue.Queue()
        self.twin, self.done = torch.from_numpy(self.look), cuda.Event()
        self.obs @ self.w
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.action = self.obs @ self.w
    def copied(self, obs):
        self.obs.copy_(obs)
        self.graph.replay()
        self.host.copy_(self.action, non_blocking=True)
    def step(self, obs):
        GIVE
"""
COPIES = "self.host.copy_(self.action, non_blocking=True)"
HANDED = {
    "self.copied(obs); return self.host.numpy(), self.obs.clone()": "",
    "self.copied(obs); return self.look": COPIES,
    "self.copied(obs); return self.twin.tolist()": "",
    "self.copied(obs); return self.action.to('cpu', non_blocking=True).sum()": "",
}
ALSO_HANDED = {
    "self.copied(obs); return {'action': np.asarray(self.host)[1:]}": "",
    "self.copied(obs); return memoryview(self.host.numpy())": "",
    "self.copied(obs); return np.from_dlpack(self.host)": COPIES,
    "self.copied(obs); return self.action.to('cpu', non_blocking=True).numpy()": "",
}
KEPT = (
    "self.copied(obs); self.latest['action'] = self.host.numpy()",
    "self.copied(obs); self.done.record(); return self.look, self.done",
)
ALSO_KEPT = (
    "self.copied(obs); self.results.put(self.host)",
    "self.copied(obs); return torch.from_numpy(self.host.numpy())",
    "self.copied(obs); self.last = self.action.to('cpu', non_blocking=True)",
)
WAITED = (
    "self.copied(obs); cuda.current_stream().synchronize(); return self.host.numpy()",
    "self.done.synchronize(); last = self.look.copy(); self.copied(obs); self.done.record(); return last",
    "self.copied(obs); self.done.record(); self.done.synchronize(); self.latest['action'] = self.look",
)
ALSO_WAITED = (
    "self.copied(obs); self.host.copy_(self.action); return self.host.numpy()",
    "self.copied(obs); last = self.action.to('cpu', non_blocking=True); cuda.synchronize(); return last.numpy()",
)


def _asked(give: str, path: Path) -> tuple[list[str], list[str]]:
    lines = give.replace("; ", "\n        ")
    step = load(PRELUDE + WORKER.replace("GIVE", lines), path)["Worker"]().step
    found = pgk.diagnose(step, torch.ones(4, 6))
    return [f.frame.text for f in found.failures if f.frame], [n for n in found.notes if "may still" in n]


@pytest.mark.parametrize("give", [*HANDED, *(pytest.param(each, marks=pytest.mark.sweep) for each in ALSO_HANDED)])
def test_an_array_that_is_handed_out_ahead_of_a_wait_is_told(give: str, tmp_path: Path) -> None:
    # GIVEN a step that hands numbers of the host's out while a copy fills them WHEN asked THEN its line is told
    line = {**HANDED, **ALSO_HANDED}[give] or give.rpartition("; ")[2]
    assert _asked(give, tmp_path / "program.py")[0] == [line]


@pytest.mark.parametrize("give", [*KEPT, *(pytest.param(each, marks=pytest.mark.sweep) for each in ALSO_KEPT)])
def test_what_its_caller_may_wait_for_is_noted(give: str, tmp_path: Path) -> None:
    # GIVEN a step that keeps such memory, or gives an event with it WHEN asked THEN a note says who has to wait
    told, notes = _asked(give, tmp_path / "program.py")
    assert told == [each for each in (give.rpartition("; ")[2],) if ".put(" in each]  # which no line takes in time
    assert len(notes) == 1


@pytest.mark.parametrize("give", [*WAITED, *(pytest.param(each, marks=pytest.mark.sweep) for each in ALSO_WAITED)])
def test_an_array_behind_a_wait_is_right(give: str, tmp_path: Path) -> None:
    # GIVEN a step that waits ahead of what it hands out, or in its next call WHEN asked THEN nothing is told, or noted
    assert _asked(give, tmp_path / "program.py") == ([], [])
