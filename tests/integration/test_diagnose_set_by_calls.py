"""Numbers of other objects that a step reads, and that methods or functions beside it set: a graph keeps the first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = "import torch, paramgraph_kit as pgk\ndevice = pgk.device()\n"
SCALED = """class Scale:
    def __init__(self): self.now, self.good = 8.0, 0
    def update(self):
        self.good += 1
        if self.good % 2 == 0:
            self.now = self.now * 2.0
class Trainer:
    def __init__(self):
        self.scale, self.w = Scale(), torch.ones(4, 4, device=device)
    def step(self, x):
        return x @ self.w * self.scale.now
    def _end(self):
        self.scale.update()
    LOOP
trainer = Trainer()
f, inputs = trainer.step, (torch.ones(3, 4, device=device),)
"""
RATED = """class Rate:
    def __init__(self, peak): self.peak, self.t, self.lr = peak, 0, peak
    def advance(self):
        self.t += 1
        self.lr = self.peak * (1 - self.t / 100)
rate, w = Rate(0.1), torch.ones(8, device=device)
def f(grad):
    return w * 2 - grad * rate.lr
def train(grads):
    for g in grads:
        f(g)
        rate.advance()
inputs = (torch.ones(8, device=device),)
"""
SHAPED = """from dataclasses import dataclass
@dataclass
class Curriculum:
    length: int = 4
    def grow(self, epoch): setattr(self, "length", min(16, 4 + epoch))
class Model(torch.nn.Module):
    def __init__(self, to):
        super().__init__()
        self.to_do = to
    def forward(self, x): return x[:, : self.to_do.length] * 2
f, inputs = Model(Curriculum()), (torch.ones(2, 16, device=device),)
"""
ENTRY = """from types import SimpleNamespace
cfg, state = SimpleNamespace(lr=0.1), {"temp": 1.0}
def anneal(cfg, k):
    cfg.lr = 0.1 * 0.9**k
def cool():
    state["temp"] *= 0.5
def f(g): return torch.softmax(g * cfg.lr / state["temp"], 0)
inputs = (torch.ones(8, device=device),)
"""
WORD = """MODE = "train"
def f(x): return x * 2 if MODE == "train" else x
def end_training():
    global MODE
    MODE = "eval"
MORE
inputs = (torch.ones(4, device=device),)
"""
HELD = """class Net:
    def __init__(self): self.mask, self.table = None, torch.ones(4, device=device)
    def set_mask(self, m): self.mask = m
    def load(self, t): self.table = t.clone()
    def step(self, x):
        if self.mask is not None:
            x = x * self.mask
        return x + self.table
    MORE
f, inputs = Net().step, (torch.ones(4, device=device),)
"""
PICKED = """class Sweeps:
    def __init__(self):
        self.masks, self.turn, self.kept = [torch.full((4,), float(i), device=device) for i in range(3)], START, 0
    def half(self, x, mask): return x * mask
    def step(self, x): return self.half(x, self.masks[self.turn])
    def after_step(self):
        self.turn = (self.turn + 1) % 3
        self.kept += 1
    MORE
f, inputs = Sweeps().step, (torch.ones(4, device=device),)
"""
PICKED_0 = PICKED.replace("MORE", "").replace("START", "0")
WRITTEN = PICKED_0.replace("return self.half(x, self.masks[self.turn])", "return self.masks[self.turn].add_(x)")
EITHER = """class Flip:
    def __init__(self):
        self.a, self.b, self.swapped = torch.ones(4, device=device), torch.zeros(4, device=device), False
    def step(self, x): return x + (self.b if self.swapped else self.a)
    def flip(self): self.swapped = not self.swapped
f, inputs = Flip().step, (torch.ones(4, device=device),)
"""
TURNS = "def run(self, xs):\n        for x in xs:\n            self.step(x)\n            self.after_step()"
RUN = "def run(xs):\n    for x in xs:\n        f(x)\n        end_training()"
SERVE = "def run(self, xs):\n        for x in xs:\n            self.load(x)\n            self.step(x)"
TIMED = """class Watch:
    def __init__(self): self.t, self.before = 0.5, 0.0
    def tick(self, d): self.before, self.t = self.t, self.t + d
    @property
    def dt(self): return self.t - self.before
class Filter:
    def __init__(self, watch): self.watch = watch
    def push(self, z): return z * self.watch.dt
watch = Watch()
filt = Filter(watch)
f, inputs = filt.push, (torch.ones(4, device=device),)
def run(steps):
    for k in range(steps):
        watch.tick(0.1 * k)
        filt.push(*inputs)
"""
LOOP = "def fit(self, xs):\n        for x in xs:\n            self.step(x)\n            self._end()"

GIVEN = 'if __name__ == "__main__":\n    pgk.diagnose(trainer.step, *inputs)\n    trainer.scale.update()\n'


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        (SCALED.replace("LOOP", LOOP), "self.scale.now is set between calls", "return x @ self.w * self.scale.now"),
        (TIMED, "self.before is set between calls", "def push(self, z): return z * self.watch.dt"),
        (RATED, "rate.lr is set between calls", "return w * 2 - grad * rate.lr"),
    ],
)
def test_a_number_that_a_method_moves_between_calls_is_a_problem(
    text: str, said: str, line: str, tmp_path: Path
) -> None:
    # GIVEN a step that reads a number of another object's, and a loop around it that calls what sets that
    names = load(HEAD + text, tmp_path / "program.py")
    # WHEN it is diagnosed
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    # THEN the number is told, at the line that reads it
    assert diagnosis.codes == ("scalar-frozen",), str(diagnosis)
    frame = diagnosis.failure.frame
    assert frame is not None
    assert (frame.text, said in diagnosis.failure.message) == (line, True), str(diagnosis)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (WORD.replace("MORE", RUN), "branch-frozen", 'def f(x): return x * 2 if MODE == "train" else x'),
        (HELD.replace("MORE", SERVE), "stale-input", "return x + self.table"),
        (
            PICKED.replace("START", "0").replace("MORE", TURNS),
            "stale-input",
            "def half(self, x, mask): return x * mask",
        ),
    ],
)
def test_a_word_or_a_tensor_that_is_another_one_between_calls_is_a_problem(
    text: str, code: str, line: str, tmp_path: Path
) -> None:
    # GIVEN a step that a word decides, or that reads a tensor, and a loop around it that calls what sets another
    names = load(HEAD + text, tmp_path / "program.py")
    # WHEN it is diagnosed THEN it is told at the line that reads it
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert [(f.code, f.frame.text) for f in diagnosis if f.frame] == [(code, line)], str(diagnosis)


@pytest.mark.parametrize(
    ("text", "read", "written"),
    [
        (SCALED.replace("LOOP", ""), "self.scale.now is frozen", "becomes `self.now.fill_(self.now * 2.0)`"),
        (SCALED.replace("LOOP", "") + GIVEN, "self.scale.now is frozen", "becomes `self.now.fill_(self.now * 2.0)`"),
        (SHAPED, "self.to_do.length is frozen", 'setattr(self, "length", min(16, 4 + epoch))'),
        (
            PICKED.replace("MORE", "").replace("START", "0"),
            "self.turn picks a tensor",
            "masks_in.copy_(self.masks[self.turn])",
        ),
        (
            PICKED.replace("MORE", "").replace("START", "2"),
            "self.turn picks a tensor",
            "self.turn = (self.turn + 1) % 3",
        ),
        (WRITTEN, "self.turn picks a tensor", "between launches, capture again behind it"),
        (EITHER, "self.swapped picks a tensor", "capture again behind it"),
        (ENTRY, "cfg.lr is frozen", "becomes `cfg.lr.fill_(0.1 * 0.9 ** k)`"),
        (ENTRY, "state['temp'] is frozen", 'state["temp"] *= 0.5'),
        (WORD.replace("MORE", ""), "MODE decides a branch", 'MODE = "eval"'),
        (HELD.replace("MORE", ""), "self.mask decides a branch", "self.mask = m"),
        (HELD.replace("MORE", ""), "self.table is read where it lies", "or let it write `self.table.copy_(...)`"),
    ],
)
def test_a_number_that_a_function_beside_it_sets_is_said(text: str, read: str, written: str, tmp_path: Path) -> None:
    # GIVEN the same where nobody is known to call what sets it
    names = load(HEAD + text, tmp_path / "program.py")
    # WHEN it is diagnosed THEN it is no problem yet, and a note says when it is one
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert not diagnosis, str(diagnosis)
    assert any(read in note and written in note for note in diagnosis.notes), str(diagnosis)


def test_of_a_tensor_that_a_number_picks_and_the_step_writes_no_copy_is_advised(tmp_path: Path) -> None:
    # GIVEN a step that adds to the tensor that a number picks, which a function beside it moves
    names = load(HEAD + WRITTEN, tmp_path / "program.py")
    # WHEN it is diagnosed THEN no words send what the step writes to another tensor
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert "masks_in" not in str(diagnosis), str(diagnosis)


RIGHT = {
    "nothing sets it": """from dataclasses import dataclass
@dataclass
class Config:
    scale: float = 2.0
    def describe(self): return f"{self.scale}"
class Net:
    def __init__(self, cfg): self.cfg = cfg
    def __call__(self, x): return x * self.cfg.scale
f = Net(Config())
""",
    "only what makes it sets it": """class Gate:
    def __init__(self): self._build(0.5)
    def _build(self, p): self.gain = 1 / p
class Net:
    def __init__(self): self.gate = Gate()
    def run(self, x): return x * self.gate.gain
f = Net().run
""",
    "it is set up ahead, and another class sets one of that name": """class Other:
    def __init__(self): self.gain = 1.0
    def bump(self): self.gain *= 2
class Gate:
    def __init__(self): self.gain, self.seen = 1.0, 0
    def configure(self, g): self.gain = g
    def note(self, n): self.seen = n
class Net:
    def __init__(self): self.gate = Gate()
    def run(self, x):
        if self.gate.seen > 10:
            print("late")
        return x * self.gate.gain
net, other = Net(), Other()
net.gate.configure(0.5)
f = net.run
for k in range(3):
    net.run(torch.ones(3, 4, device=device))
    other.bump()
    net.gate.note(k)
""",
    "it picks the same one always": """class Sweeps:
    def __init__(self):
        self.masks, self.turn = [torch.ones(4, device=device), torch.zeros(4, device=device)], 0
        self.mask = self.masks[0].clone()
    def before_step(self): self.mask.copy_(self.masks[self.turn])
    def step(self, x): return x * self.mask + self.masks[self.turn % 1]
    def after_step(self): self.turn ^= 1
f = Sweeps().step
""",
    "it is a tensor that is filled": """class Scale:
    def __init__(self): self.now = torch.ones((), device=device)
    def update(self, v): self.now.fill_(v)
class Net:
    def __init__(self): self.scale = Scale()
    def run(self, x): return x * self.scale.now
f = Net().run
""",
    "it is a tensor that is written in place": """class Sampler:
    def __init__(self): self.eps, self.parts = torch.ones((), device=device), [torch.ones((), device=device)]
    def run(self, x): return x * self.eps * self.parts[0]
    def adapt(self, rate):
        self.eps *= 1.02 if rate > 0.6 else 0.98
        self.parts[0] += rate
def main(sampler):
    for k in range(4):
        sampler.run(torch.ones(3, 4, device=device))
        sampler.adapt(0.1 * k)
f = Sampler().run
""",
    "the step sets it where it has to": """class Rope:
    def __init__(self, n): self._grow(n)
    def _grow(self, n): self.n, self.scale = n, 1.0 / n
    def __call__(self, x):
        if x.shape[0] > self.n:
            self._grow(x.shape[0])
        return x * self.scale
f = Rope(8)
""",
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_number_that_stays_is_not_mentioned(name: str, tmp_path: Path) -> None:
    # GIVEN a step whose numbers stay WHEN it is diagnosed THEN nothing is said of them
    names = load(HEAD + RIGHT[name], tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], torch.ones(3, 4, device=pgk.device()))
    assert not diagnosis, str(diagnosis)
    assert not any("sets it" in note for note in diagnosis.notes), str(diagnosis)


TAP = """class Tap:
    def __init__(self, module):
        self.value = torch.ones(4, device=device)
        module.register_forward_hook(self.save)
    def save(self, module, inputs, output): self.value = output
class Trainer:
    def __init__(self):
        self.a, self.b = torch.nn.Linear(4, 4).to(device), torch.nn.Linear(4, 4).to(device)
        self.tap = Tap(self.PART)
    @torch.no_grad()
    def step(self, x): return self.a(x) + self.tap.value
f = Trainer().step
inputs = (torch.randn(3, 4, device=device),)
"""


@pytest.mark.parametrize(("part", "said"), [("a", False), ("b", True)])
def test_what_a_hook_sets_in_the_step_that_reads_it_is_not_said_to_lie_there(
    part: str, said: bool, tmp_path: Path
) -> None:
    # GIVEN a hook of what the step runs ahead of the line that reads it, or of what others run
    names = load(HEAD + TAP.replace("PART", part), tmp_path / "program.py")
    # WHEN it is diagnosed THEN a note says it of what others run alone
    notes = pgk.diagnose(names["f"], *names["inputs"]).notes
    assert any("self.tap.value is read where it lies" in note for note in notes) is said, notes
