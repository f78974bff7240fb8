"""Fixes of counts that begin together, ``self.a = self.b = 0``: as tensors each has one of its own in the new file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.test_rewrite_outside import patched

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

STEP = """
buf = torch.zeros(40, 3, device=device)
args = (torch.ones(3, device=device),)
def f(x):
    GLOBAL
    buf[POS] = x * TOTAL
    POS += 1
    TOTAL += 2
    return buf[:POS].sum(0) * TOTAL
"""
OF_OBJECT = "class Where:\n    def __init__(self, first=1):\n        {}\n        self.last = (self.pos, self.total)\n"
TOGETHER = {
    "attributes": OF_OBJECT.format("self.pos = self.total = 0  # both"),
    "attributes of an argument": OF_OBJECT.format("self.pos = self.total = first"),
    "with a number of the host's": OF_OBJECT.format("self.pos = more = self.total = 0\n        more += 3"),
    "beside another statement": OF_OBJECT.format("more = 2; self.pos = self.total = 0; more += 1"),
    "of what is called once": "def fresh(made=[]):\n    made.append(1)\n    return len(made)\n"
    + OF_OBJECT.format("self.pos = self.total = fresh()"),
    "fields": "import dataclasses\n@dataclasses.dataclass\nclass Where:\n    pos: int = 0\n    total: int = 0\n",
    "variables": "pos = total = 0\n",
}


@pytest.mark.parametrize("name", TOGETHER)
def test_counts_that_begin_together_have_a_tensor_each(name: str, tmp_path: Path) -> None:
    # GIVEN a step that moves two counts, each by another number, which one statement begins
    if name == "variables":
        step = STEP.replace("GLOBAL", "global pos, total").replace("POS", "pos").replace("TOTAL", "total")
    else:
        step = "at = Where()" + STEP.replace("    GLOBAL\n", "").replace("POS", "at.pos").replace("TOTAL", "at.total")
    text = TOGETHER[name] + step
    truth, names = run(text, tmp_path), run(text, tmp_path)
    expected = [truth["f"](*truth["args"]).cpu() for _ in range(5)]
    # WHEN they are kept in tensors, and the file has the new lines
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    pgk.diagnose.repair()
    assert "lives on in a tensor" in str(fix), fix
    whole = patched((tmp_path / "program.py").read_text(), fix.diff)
    new = run(whole[whole.index("pgk.device()") + len("pgk.device()") :], tmp_path)
    # THEN each goes on by its own number
    for each in expected:
        torch.testing.assert_close(new["f"](*new["args"]).cpu(), each, msg=lambda text: f"{text}\n{fix}")
