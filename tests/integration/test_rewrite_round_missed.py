"""A loop of which no round was cut out is told by hand, beside the rounds of others that were."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Program

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

TWO_LOOPS = """\
from torch.utils.data import DataLoader, TensorDataset
def rows(n):
    return DataLoader(TensorDataset(torch.randn(n, 4), torch.randn(n, 2)), 4)
class Trainer:
    def __init__(self):
        self.half, self.history = False, []
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
        self.train, self.test = rows(16), rows(8)
    def validate(self, loader):
        seen = []
        with torch.no_grad():
            for rows in loader:
                for n in range(2):
                    rows[n] = rows[n].to(device)
                x, y = rows
                loss = F.mse_loss(self.net(x), y)
                seen.append(loss.item())
        return sum(seen) / len(seen)
    def fit(self):
        opt = torch.optim.Adam(self.net.parameters())
        seen = []
        for a, b in self.train:
            a, b = a.to(device), b.to(device)
            if self.half:
                with torch.autocast(device.type):
                    loss = F.mse_loss(self.net(a), b)
                    seen.append(loss.item())
            else:
                loss = F.mse_loss(self.net(a), b)
                seen.append(loss.item())
            if seen[-1] > 1e9:
                continue
            loss.backward()
            opt.step()
            opt.zero_grad()
        self.history.append((sum(seen) / len(seen), self.validate(self.test)))
trainer = Trainer()
args, f = (), trainer.fit
"""


def test_a_loop_without_a_round_is_not_said_to_be_in_the_diff(program: Program) -> None:
    # GIVEN a function with a loop that trains, of which no round is cut out, and one of another method's
    names = program(TWO_LOOPS)
    # WHEN it is diagnosed
    found: Any = pgk.diagnose(names["f"], fix=True)
    # THEN the diff has the other's round, and what to do in this one is told for each of its lines
    assert found.fix.alone == "validate_round"
    told = "\n".join(found.fix.instead)
    of_loop = [each for each in found.failures if each.frame.function == "fit" and "history" not in each.frame.text]
    assert {each.code for each in of_loop} == {"copy-to-gpu", "sync-item", "optimizer-not-capturable"}
    for each in of_loop:
        assert each.frame.text in told
        assert "as in the diff" not in each.fix
    # AND nothing of the loop that has its round
    assert "rows[n].to(device)" not in told
    assert len(found.fix.left) == len(of_loop)


COUNTED = """\
def f(pred, target):
    kept = target != 9
    pred, target = pred[kept], target[kept]
    found = []
    for c in range(3):
        here, there = pred == c, target == c
        both = (here & there).sum().item()
        either = (here | there).sum().item()
        if either == 0:
            found.append(float("nan"))
        else:
            found.append(both / either)
    return np.nanmean(found)
args = (torch.randint(0, 3, (20,), device=device), torch.tensor([0, 1, 9, 2], device=device).repeat(5))
"""


def test_what_a_function_picks_before_its_loop_is_said_to_stay_and_to_decide_sizes(program: Program) -> None:
    # GIVEN a function that picks by a mask, and then goes over what it has picked in a loop
    names = program(COUNTED)
    # WHEN a round of that loop is cut out
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    assert found.fix.alone
    # THEN the pick is not said to be in the diff, and who captures the round is told of its sizes
    told = {failure.code: failure.fix for failure in found}
    assert told["dynamic-shape"].endswith("stays as it is, beside the part that a graph holds")
    assert "decides the size of `pred`, `target`" in str(found.fix)


CALLED = """\
keys, found, counts = torch.zeros(8, 6, device=device), torch.zeros(8, 3, dtype=torch.long, device=device), {"new": 0}
rows, at = torch.randn(40, 6, device=device), 0
def search(q):
    score = rows @ q
    top = score.topk(12).indices
    near = rows[top]
    chosen = [0]
    same = (near @ near[0]).clone()
    for _ in range(2):
        left = 0.7 * score[top] - 0.3 * same
        for c in chosen:
            left[c] = -1e9
        best = int(left.argmax())
        chosen.append(best)
        same = torch.maximum(same, near @ near[best])
    return top[chosen]
@torch.no_grad()
def f(q):
    global at
    near, where = (keys @ q).max(0)
    if near > 1e3:
        return found[where]
    counts["new"] += 1
    ids = search(q)
    keys[at] = q
    found[at] = ids
    at = (at + 1) % 8
    return ids
args = (torch.randn(6, device=device),)
"""


def test_what_calls_the_function_of_a_round_is_said_to_stay(program: Program) -> None:
    # GIVEN a function that calls another one, with a loop in it
    names = program(CALLED)
    # WHEN a round of that loop is cut out, and nothing of the first is changed
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix.alone == "search_round"
    # THEN none of its lines is said to be in the diff
    own = [each for each in found.failures if each.frame.function == "f"]
    assert {each.code for each in own} >= {"data-dependent-branch", "host-counter", "size-frozen"}
    for each in own:
        assert each.fix.endswith("stays as it is, beside the part that a graph holds"), each
