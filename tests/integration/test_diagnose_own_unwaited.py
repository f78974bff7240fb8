"""Pinned memory of a step that is asked alone, where lines of its loop may wait for the device, or only seem to."""

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
SERVER = """
from dataclasses import dataclass
@dataclass
class Out:
    host: torch.Tensor
    device: torch.Tensor
class Server:
    def __init__(self):
        self.x, self.w = torch.zeros(4, 6, device=device), torch.randn(6, 3, device=device)
        self.staged, self.host = torch.zeros(4, 6).pin_memory(), torch.zeros(4, 3).pin_memory()
        self.x @ self.w
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.x @ self.w
    def infer(self, batch):
        self.staged.copy_(batch)
        self.x.copy_(self.staged, non_blocking=True)
        self.graph.replay()
        GIVE
def serve(server, requests, limit):
    answers, best = [], 0
    for step, request in enumerate(requests):
        out = server.infer(request)
        LINES
    return answers
"""
STAGED = "self.staged.copy_(batch)"
HOST = "self.host.copy_(self.y, non_blocking=True); return self.host"
BOTH = "self.host.copy_(self.y, non_blocking=True); return Out(self.host, self.y)"
DEVICE = "return self.y + 0"
NO_WAIT = {
    "print('step', step, out.sum())": (HOST, "print('step', step, out.sum())"),
    "print('step', out.host)": (BOTH, "print('step', out.host)"),
    "print(f'{step}: {out[0].sum()}')": (HOST, "print(f'{step}: {out[0].sum()}')"),
    "answers.append((int(step), out.argmax().tolist()))": (HOST, "answers.append((int(step), out.argmax().tolist()))"),
    "best = max(best, float(len(requests)))": (DEVICE, STAGED),
    "answers.append(out)\n        if step % 2 == 0:\n            print(step)": (DEVICE, STAGED),
    "pass\n    print(out.sum())": (HOST, "print(out.sum())"),
    "best = step\n    answers.append(out.tolist())": (HOST, "answers.append(out.tolist())"),
}
PERHAPS = {
    "best = int(limit)\n        answers.append(out.tolist())": HOST,
    "if limit:\n            best = step\n        answers.append(out)": DEVICE,
    "answers.append((float(requests[0].sum()), out))": DEVICE,
    "pass": HOST,
}
WAITS = {
    "print('step', out.device)\n        answers.append(out.host.sum())": BOTH,
    "print('step', out.sum())": DEVICE,
    "best += float(out.sum())": DEVICE,
    "if out.sum() > best:\n            best = step": DEVICE,
    "cuda.synchronize()\n        answers.append(out.tolist())": HOST,
    "cuda.synchronize()\n    print(out.sum())": HOST,
}


def _asked(lines: str, give: str, path: Path) -> tuple[list[str], list[str]]:
    text = SERVER.replace("GIVE", give.replace("; ", "\n        ")).replace("LINES", lines)
    found = pgk.diagnose(load(PRELUDE + text, path)["Server"]().infer, torch.ones(4, 6))
    return [f.frame.text for f in found.failures if f.frame], [n for n in found.notes if "may still" in n]


@pytest.mark.parametrize("lines", NO_WAIT)
def test_who_prints_what_the_host_has_waits_for_nothing(lines: str, tmp_path: Path) -> None:
    # GIVEN a loop that reads pinned memory, or numbers of the host's WHEN the step is asked THEN its line is told
    give, line = NO_WAIT[lines]
    told, _ = _asked(lines, give, tmp_path / "program.py")
    assert line in told
    assert set(told) <= {line, STAGED}


@pytest.mark.parametrize("lines", PERHAPS)
def test_what_may_wait_is_noted(lines: str, tmp_path: Path) -> None:
    # GIVEN a loop that asks for numbers which may be the device's, or reads nothing WHEN asked THEN it is noted
    told, notes = _asked(lines, PERHAPS[lines], tmp_path / "program.py")
    assert len(notes) == 1 or STAGED in told
    assert set(told) <= {STAGED}


@pytest.mark.parametrize("lines", WAITS)
def test_who_asks_for_numbers_of_the_device_waits(lines: str, tmp_path: Path) -> None:
    # GIVEN a loop that waits, or asks for what the device has WHEN the step is asked THEN nothing is told, or noted
    assert _asked(lines, WAITS[lines], tmp_path / "program.py") == ([], [])
