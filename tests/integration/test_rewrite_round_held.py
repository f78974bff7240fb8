"""Rounds of loops that read what an object, or a dictionary, has from round to round: it is given to the round."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.loops.states import numbers_held
from paramgraph_kit.rewrite.source.edits import Source
from tests.integration.rewritten import Fixed, lines_of, with_rounds

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

ADAPTIVE = """
class Solver:
    def __init__(self, y):
        self.y, self.t, self.h, self.taken = y, 0.0, 0.2, 0
    def f(self, t, y, k):
        return torch.stack([y[1], t - k * y[0]])
    def step(self, k):
        while True:
            k1 = self.f(self.t, self.y, k)
            k2 = self.f(self.t + self.h, self.y + self.h * k1, k)
            new = self.y + self.h / 2 * (k1 + k2)
            err = (self.h / 2 * (k2 - k1)).abs().max().item()
            if err <= 1e-3:
                self.t += self.h
                self.y = new
                self.taken += 1
                self.h *= min(3.0, 0.9 * (1e-3 / max(err, 1e-9)) ** 0.5)
                return self.y
            self.h *= max(0.2, 0.9 * (1e-3 / err) ** 0.5)
solver = Solver(torch.tensor([1.0, 0.0], {kind}device=device))
args = (torch.tensor(2.0, {kind}device=device),)
def f(k):
    return solver.step(k)
"""
ANNEALED = """
class Run:
    beta = 0.0
run = Run()
net = nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
data = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(3)]
args = ()
def f():
    for x, y in data:
        x, y = x.to(device), y.to(device)
        loss = F.mse_loss(net(x), y) * (1 + run.beta)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.beta = min(1.0, run.beta + 1e-6)
        print(loss.item())
"""


def test_a_solver_that_keeps_its_state_and_its_step_has_a_round(tmp_path: Path) -> None:
    # GIVEN a step that is taken or made smaller by the host, with all that it moves in attributes WHEN rewritten
    lines = ["y_in = self.y", "h_in_2 = torch.full((), self.h / 2, device=device)"]
    # THEN the round is given the state, and what is computed of the numbers, in tensors
    assert with_rounds(ADAPTIVE.format(kind=""), lines, tmp_path).alone == "step_round"


@pytest.mark.parametrize(("at", "found"), [(0, {"run.beta": 0.5}), (1, {}), (3, {"run.beta": 0.5})])
def test_a_number_that_is_set_in_the_middle_of_a_round_is_not_found_before_it(
    at: int, found: dict[str, float], tmp_path: Path
) -> None:
    # GIVEN a loop whose round reads a number in its last line, and that sets it before, within or behind the round
    lines = ["loss = net(x)", "y = loss * 2", "y = y * run.beta"]
    lines.insert(at, "run.beta += 1")
    (path := tmp_path / "program.py").write_text("".join(["for x in data:\n", *(f"    {line}\n" for line in lines)]))
    source = Source(str(path), ast.parse(path.read_text()))
    loop = source.tree.body[0]
    assert isinstance(loop, ast.For)
    # WHEN it is asked what can be found before the round THEN it is that where nothing sets it within
    part = [node for node in loop.body if isinstance(node, ast.Assign)]
    assert numbers_held(source, loop, part, {"run.beta": 0.5}.get) == found


def test_numbers_beside_tensors_of_64_bits_keep_their_digits(fixed: Fixed) -> None:
    # GIVEN the same in double precision WHEN rewritten THEN the numbers have it, too
    lines = lines_of(fixed(ADAPTIVE.format(kind="dtype=torch.float64, ")))
    assert "h_in_2 = torch.full((), self.h / 2, dtype=torch.float64, device=device)" in lines, lines


def test_an_attribute_that_moves_by_little_is_found_before_each_round(fixed: Fixed) -> None:
    # GIVEN a loop that moves an attribute by so little that no trial shows it WHEN rewritten
    fix = fixed(ANNEALED)
    # THEN no graph keeps it
    assert fix.alone == "f_round", fix
    assert "beta_in = torch.full((), 1 + run.beta, device=device)" in lines_of(fix), fix
