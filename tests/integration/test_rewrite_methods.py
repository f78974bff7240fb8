"""Steps over several methods and files: what they fetch goes before the launch, what trains stays in the graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

LEARNER = """
from collections import namedtuple
Rows = namedtuple("Rows", "x cond")
table = np.random.RandomState(0).randn(30, 3).astype(np.float32)
class Memory:
    def draw(self, count):
        rows = np.random.randint(0, 30, count)
        x = torch.as_tensor(table[rows], device=device)
        return BUILT
class Learner:
    def __init__(self):
        self.net, self.slow = nn.Linear(3, 3).to(device), nn.Linear(3, 3).to(device)
        self.opt, self.count, self.every, self.seen = torch.optim.SGD(self.net.parameters(), lr=0.1), 4, 1, {}
    def fit(self, x, step):
        loss = F.mse_loss(self.net(x), self.slow(x).detach())
        LOG
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
    def follow(self):
        for p, q in zip(self.net.parameters(), self.slow.parameters()):
            q.data.copy_(0.9 * q.data + 0.1 * p.data)
    def learn(self, memory, step):
        TAKEN = memory.draw(self.count)
        loss = self.fit(USED, step)
        if step % self.every == 0:
            self.follow()
        return loss
learner, memory = Learner(), Memory()
net, slow, f = learner.net, learner.slow, learner.learn
args = (memory, 0)
feed = lambda i: (memory, i)
"""


def _learner(built: str, taken: str, used: str, log: str = "pass") -> str:
    return LEARNER.replace("BUILT", built).replace("TAKEN", taken).replace("USED", used).replace("LOG", log)


NESTED = {
    "taken apart into names that are pairs": ("(x, (x + 1, x[:, :1]))", "x, pair", "x + pair[0] + pair[1]"),
    "a dictionary in a named tuple": ('Rows(x, {0: x + 1, "of it": [x]})', "rows", 'rows.x + rows.cond["of it"][0]'),
    "plain": ("(x, x + 1)", "x, y", "x + y"),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_a_memory_draws_is_fetched_before_a_learner_that_goes_on_in_methods(name: str, tmp_path: Path) -> None:
    # GIVEN a step that fetches with a number of its object's, and calls methods of that in a branch later on
    fix = rewritten(_learner(*NESTED[name]), tmp_path)
    # THEN the fetch goes before the launch, whatever the batch is made of, and the training stays in the graph
    assert fix.complete, str(fix)
    before, _, step = fix.diff.partition("def learn(")
    assert "def before_learn" in before, fix.diff
    assert "= memory.draw(self.count)" in before
    assert "after_learn" not in step


def test_a_step_that_would_train_behind_its_launch_is_not_said_to_be_whole(tmp_path: Path) -> None:
    # GIVEN a learner that logs in the middle of the method that trains, with a number that it is given
    log = "self.seen[step] = loss.item()"
    fix = rewritten(_learner("x", "x", "x", log), tmp_path)
    # THEN nothing is called whole of which the graph has no more than the batch
    trains_behind = any("self.fit(" in line for line in lines_of(fix))
    assert not (fix.complete and trains_behind), str(fix)


TOLD = """
net = nn.Linear(3, 3).to(device)
class Log:
    def __init__(self): self.rows = {}
    def put(self, key, value, step):
        if step % 2 != 0: return
        if isinstance(value, torch.Tensor):
            value = value.item()
        self.rows[key] = value
class Run:
    def __init__(self):
        self.log, self.n, self.often, self.fancy = Log(), 0, 1, True
        self.slow = nn.Linear(3, 3).to(device)
    def show(self, out, step):
        self.log.put("a", out.sum(), step)
        if self.fancy:
            out = out * 2
            self.log.put("b", out.mean(), step)
            out = out + 1
        return out
    def __call__(self, x, step):
        out = self.show(net(x), step)
        if step % self.often == 0:
            out = out.clamp(max=1.0)
        if self.n % 5 == 0:
            out = self.slow(out)
        if self.n % 3 == 0:
            text = " | ".join([f"{each:8.4f}" for each in out[0]])
            self.log.rows["text"] = text
        self.n += 1
        return out
f = Run()
args = (torch.randn(4, 3, device=device), 0)
"""


def test_branches_are_told_where_they_decide_and_each_that_a_count_decides(tmp_path: Path) -> None:
    # GIVEN a log that leaves early, questions of kinds and of options, a share of one, and two branches of a count
    names = run(TOLD, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    told = {(each.code, each.frame.text) for each in found.failures if each.frame is not None}
    # THEN the early way out is told, and both branches of the count with what waits in a comprehension below one
    assert {text for code, text in told if code == "branch-frozen"} == {
        "if step % 2 != 0: return",
        "if self.n % 5 == 0:",
        "if self.n % 3 == 0:",
    }
    assert any("8.4f" in text for _, text in told), str(found)


OTHER_FILE = """
# file: cutting.py
import random
SIZE = 2
device = "sim"
def cut(x):
    at = random.randrange(x.shape[1] - SIZE)
    x = x.clone()
    x[:, at : at + SIZE] = 0.0
    return x
# file: the program
from cutting import cut
SIZE = torch.tensor(7.0, device=device)
class Layer:
    def __init__(self):
        self.layer = nn.Linear(6, 6).to(device)
    def step(self, x):
        return self.layer(x) * SIZE
class Cut(Layer):
    def step(self, x):
        return super().step(cut(x))
f = Cut().step
args = (torch.randn(4, 6, device=device),)
"""


def test_a_line_of_another_file_is_told_with_that_files_names(tmp_path: Path) -> None:
    # GIVEN a helper of another file that draws where it cuts, with a global of which the step's file has another one
    fix = rewritten(OTHER_FILE, tmp_path)
    told = "\n".join(fix.instead)
    # THEN what is told is to draw before the launch, in that file's names, and not to give the helper its own constant
    assert "before each launch `at_in.fill_(random.randrange(x.shape[1] - SIZE))`" in told, str(fix)
    assert "device=device)" in told
    assert "give `SIZE`" not in told


DEEPER = """
import functools
table = np.random.RandomState(0).randn(30, 3).astype(np.float32)
def counted(fn):
    @functools.wraps(fn)
    def inner(self, *args):
        return fn(self, *args)
    return inner
class Memory:
    def draw(self, count):
        rows = np.random.randint(0, 30, count)
        pick = lambda held: torch.from_numpy(held[rows]).to(device)
        return pick(table), pick(table[:, 0])
class Learner:
    def __init__(self):
        self.net, self.memory = nn.Linear(3, 1).to(device), Memory()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    @counted
    def learn(self, count=4):
        FETCH
        loss = F.mse_loss(self.net(x).squeeze(1), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
class Trainer:
    def __init__(self): self.learner = Learner()
    def step(self, x):
        loss = self.learner.learn()
        return self.learner.net(x), loss
trainer = Trainer()
net, f = trainer.learner.net, trainer.step
args = (torch.randn(4, 3, device=device),)
"""
BY_METHODS = {
    "a memory's rows": ("x, y = self.memory.draw(count)", "x, y = self.learner.memory.draw(count)"),
    "rows that the method draws itself": (
        "x = torch.from_numpy(table[np.random.choice(30, count)]).to(device)\n        y = x[:, 0]",
        "x = torch.from_numpy(table[np.random.choice(30, count)]).to(device)",
    ),
}


@pytest.mark.parametrize("name", BY_METHODS)
def test_what_a_method_fetches_that_a_step_calls_is_fetched_before_the_launch(name: str, tmp_path: Path) -> None:
    # GIVEN a step that calls a method of another object, below a decorator, which fetches what it trains with
    fetch, moved = BY_METHODS[name]
    fix = rewritten(DEEPER.replace("FETCH", fetch), tmp_path)
    # THEN that is whole, and what runs before the launch asks the object by the step's own name for it
    assert fix.complete, str(fix)
    assert {moved, "count = 4", "def before_step(self):  # before each launch"} <= set(lines_of(fix)), fix.diff


SEVERAL = (
    DEEPER.replace(
        "FETCH",
        """picked = random.sample(list(self.rows), count)
        x = torch.tensor([row[:3] for row in picked]).to(self.net.weight.device)
        y = torch.tensor([row[3] for row in picked], device=device)
        y = (y - y.mean()) / (y.std() + 1e-6)""",
    )
    .replace("self.memory = nn.Linear(3, 1)", "self.rows = nn.Linear(3, 1)")
    .replace(", Memory()", ", np.random.randn(20, 4).tolist()")
)


def test_what_several_fetches_need_is_drawn_once(tmp_path: Path) -> None:
    # GIVEN a method that makes two tensors of the rows that it has picked, one of which it gives another value later on
    fix = rewritten(SEVERAL, tmp_path)
    # THEN the rows are picked once before the launch, for both
    assert fix.complete, str(fix)
    assert lines_of(fix).count("picked = random.sample(list(self.learner.rows), count)") == 1, fix.diff


HOST_DRAWS = """
class Path(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.keep, self.rows = nn.Linear(3, 3), 0.5, [[float(k)] * 3 for k in range(9)]
    def skipped(self, x):
        if self.training and random.random() > self.keep:
            return x
        return x + self.layer(x)
    def forward(self, x):
        picked = random.sample(self.rows, 4)
        x = self.skipped(x)
        return x + torch.tensor([row[0] for row in picked], device=device)[:, None]
class Steps:
    def __init__(self): self.seen = 9
    def follow(self, x):
        if self.seen % 2 == 0:
            x = x * 2
        return x
    def step(self, x):
        if self.seen < 4:
            return x
        x = self.follow(x) + 1
        self.seen += 1
        return x
model, steps = Path().to(device), Steps()
f = model.forward
args = (torch.randn(4, 3, device=device),)
"""


def test_what_is_told_of_draws_keeps_the_rest_of_the_question(tmp_path: Path) -> None:
    # GIVEN a layer that drops paths in training alone, rows that are picked, and a way out that neither call has taken
    fix = rewritten(HOST_DRAWS, tmp_path)
    told = "\n".join([*fix.instead, fix.diff])
    # THEN the draw on the device still asks for training, and rows are no number that a tensor is filled with
    assert "m.left_out.fill_(bool(m.training and random.random() > m.keep))`" in told, str(fix)
    assert "fill_(random.sample" not in told
    # AND the way out is not told
    names = run(HOST_DRAWS, tmp_path)
    found = pgk.diagnose(names["steps"].step, *names["args"])
    assert any(each.frame and "self.seen % 2" in each.frame.text for each in found.failures)
    assert not any(each.frame and "self.seen < 4" in each.frame.text for each in found.failures)
