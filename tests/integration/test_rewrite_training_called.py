"""A branch of the host's that calls what trains, or draws, is told as one that does so itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.advised.host.from_host import decided
from paramgraph_kit.rewrite.advised.host.put_behind import behind
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.trace.model import Failure

TRAINER = """
class Trainer:
    def train_critic(self, x):
        self.d_opt.zero_grad()
        (self.d(self.g(x).detach()) - self.d(x)).mean().backward()
        self.d_opt.step()

    def train_generator(self, x):
        self._go_back(x)
        self.g_opt.step()

    def _go_back(self, x):
        (-self.d(self.g(x)).mean()).backward()

    def step(self, x):
        self.n += 1
        self.train_critic(x)
        if self.n % 3 == 0:
            self.train_generator(x)
        if self.n % 5 == 0:
            print(self.n)
"""
DRAWN = TRAINER.replace(
    "        self._go_back(x)\n        self.g_opt.step()", "        self.noise.normal_()\n        pass"
)
SOUND = TRAINER.replace(
    "        self._go_back(x)\n        self.g_opt.step()", "        self.seen = x.abs()\n        pass"
)
KEPT = TRAINER.replace("            self.train_generator(x)", "            self.last = self.train_generator(x)")
ANSWERS = (
    "ask `train_19 = self.n % 3 == 0` before each launch, behind line 16, which goes there with it; make `train_19` an "
    "argument of `step`, and write `if train_19:` here; each of the two answers has a graph of all of the step"
)


def _place(text: str, line: int, code: str, folder: Path) -> Place:
    file = folder / "program.py"
    file.write_text(text)
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(line)
    assert statement is not None
    return Place(source, statement, Failure(code, "", ""), "device", {"torch": torch}, entry="step")


@pytest.mark.parametrize(("text", "does"), [(TRAINER, "trains"), (KEPT, "trains"), (DRAWN, "draws")])
def test_a_branch_that_calls_what_trains_has_a_graph_for_each_answer(text: str, does: str, tmp_path: Path) -> None:
    # GIVEN a method that is called in each third step, and goes backward or draws
    # WHEN its branch is told what to write
    told = decided(_place(text, 18, "branch-frozen", tmp_path))
    # THEN that is no choice between values, of which there are none
    assert f"whether line 19 {does}: {ANSWERS}" in told, told
    # AND what it counts goes with it
    assert "by it the host decides" in behind(_place(text, 16, "host-counter", tmp_path))


def test_a_branch_that_calls_what_only_computes_is_told_as_before(tmp_path: Path) -> None:
    # GIVEN the same where the method trains nothing, and draws nothing
    # WHEN / THEN
    told = decided(_place(SOUND, 18, "branch-frozen", tmp_path))
    assert "chosen_in" in told
    assert "each of the two answers" not in told
