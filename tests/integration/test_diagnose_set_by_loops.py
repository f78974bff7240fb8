"""What the lines around a step leave otherwise at its next call: modes, rates, modules, memory, settings."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = """import contextlib, copy, math, os
import torch, paramgraph_kit as pgk
from torch import nn
from torch.nn import functional as F
device = pgk.device()
def net():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3)).to(device)
def adam(m): return torch.optim.Adam(m.parameters(), lr=1e-2, capturable=True)
def rows():
    for k in range(4):
        yield torch.randn(4, 6, device=device), torch.randint(0, 3, (4,), device=device)
inputs = (torch.ones(4, 6, device=device), torch.zeros(4, dtype=torch.long, device=device))
"""
STEP = """
    def train_step(self, x, y):
        loss = F.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
"""
# One trainer: AHEAD of its loop, INSIDE it, and a METHOD that it may call.
TRAINER = """
class Args:
    def __init__(self): self.margin, self.seen = 0.2, 0
class Trainer:
    gain = 1.0
    def __init__(self):
        self.net, self.args, self.epoch = net(), Args(), 0
        self.opt, self.slow = adam(self.net), copy.deepcopy(self.net)
        self.loss = nn.CrossEntropyLoss()
    def train_step(self, x, y):
        out = self.net(x) * self.gain
        loss = self.loss(out, y) + F.relu(out - self.args.margin).mean() + F.mse_loss(out, self.slow(x).detach())
        if self.epoch >= 5:
            loss = loss * 2
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
    METHOD
    def fit(self):
        AHEAD
        for k, (x, y) in enumerate(rows()):
            INSIDE
            self.train_step(x, y)
trainer = Trainer()
f = trainer.train_step
"""
OTHERS = (
    TRAINER.replace("INSIDE", "self.seen = k")
    .replace("METHOD", "")
    .replace("AHEAD", "pass")
    .replace(
        "trainer = Trainer()",
        """def main():
    student, teacher = Trainer(), Trainer()
    for k, (x, y) in enumerate(rows()):
        student.train_step(x, y)
        teacher.args.margin = 0.1 * k
        MORE
trainer = Trainer()""",
    )
)
HOOKED = (
    """
class Lesson:
    def __init__(self):
        self.net = net()
        self.opt = adam(self.net)
    def on_epoch(self, epoch):
        BODY
"""
    + STEP
    + """
class Fitter:
    def __init__(self, lesson): self.lesson = lesson
    def fit(self, epochs, data):
        for epoch in range(epochs):
            self.lesson.on_epoch(epoch)
            for x, y in data:
                self.lesson.train_step(x, y)
f = Lesson().train_step
"""
)
LISTED = (
    """
class Callback:
    def begin(self, trainer, k): pass
class Warmup(Callback):
    def __init__(self, opt): self.opt = opt
    def begin(self, trainer, k):
        BODY
class Log(Callback):
    def begin(self, trainer, k): self.last = k
class Trainer:
    def __init__(self):
        self.net = net()
        self.opt = adam(self.net)
        self.callbacks = [Log(), Warmup(self.opt)]
"""
    + STEP
    + """
    def fit(self):
        for k, (x, y) in enumerate(rows()):
            for callback in self.callbacks:
                callback.begin(self, k)
            self.train_step(x, y)
f = Trainer().train_step
"""
)
ENTERED = (
    """
@contextlib.contextmanager
def evaluating(model):
    was = model.training
    model.eval()
    yield
    BODY
class Trainer:
    def __init__(self):
        self.net = net()
        self.opt = adam(self.net)
"""
    + STEP
    + """
    def fit(self):
        for x, y in rows():
            self.train_step(x, y)
            with evaluating(self.net), torch.no_grad():
                self.net(x)
f = Trainer().train_step
"""
)
SCHEDULED = """
class Cosine:
    def __init__(self, opt): self.opt, self.k = opt, 0
    def advance(self):
        self.k += 1
        for group in self.opt.param_groups:
            BODY
def train_step(model, opt, x, y):
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
def main(epochs=3):
    model = net()
    opt = adam(model)
    cosine = Cosine(opt)
    for epoch in range(epochs):
        for x, y in rows():
            train_step(model, opt, x, y)
        cosine.advance()
model = net()
f, inputs = train_step, (model, adam(model), *inputs)
"""
ENCLOSED = """
def train(only=False):
    model = net()
    opt = adam(model)
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()
    if only:
        return step
    k, it = 0, iter(rows())
    while k < 4:
        x, y = next(it)
        BODY
        step(x, y)
        k += 1
f = train(True)
"""
YIELDED = """
class Trainer:
    def __init__(self):
        self.net, self.mix = net(), 0.5
        self.opt = adam(self.net)
    def train_step(self, x, y):
        loss = self.mix * F.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
    def batches(self):
        for k, (x, y) in enumerate(rows()):
            BODY
            yield x, y
    def fit(self):
        for x, y in self.batches():
            self.train_step(x, y)
f = Trainer().train_step
"""
EPOCHS = (
    """
class Trainer:
    def __init__(self):
        self.net = net()
        self.opt = adam(self.net)
"""
    + STEP
    + """
    def validate(self):
        self.net.eval()
        with torch.no_grad():
            for x, y in rows(): self.net(x)
    def epoch(self):
        BODY
        for x, y in rows(): self.train_step(x, y)
    def fit(self):
        for k in range(3):
            self.epoch()
            self.validate()
f = Trainer().train_step
"""
)
ENVIRONED = """
model = net()
opt = adam(model)
def step(x, y):
    loss = F.cross_entropy(model(x), y) * float(os.environ.get("SCALE", "1.0")) * CFG.get("gain", 1.0)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
CFG = {"gain": 2.0}
def main():
    for k, (x, y) in enumerate(rows()):
        BODY
        step(x, y)
f = step
"""
FILLED = """
model = net()
opt = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2, device=device), capturable=True)
def step(x, y):
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
def set_rate(value):
    for group in opt.param_groups:
        BODY
def main():
    for k, (x, y) in enumerate(rows()):
        set_rate(1e-2 / (k + 1))
        step(x, y)
f = step
"""


def _trained(inside: str, method: str = "", ahead: str = "pass") -> str:
    return TRAINER.replace("INSIDE", inside).replace("METHOD", method).replace("AHEAD", ahead)


RATE = 'def set_lr(self, v):\n        for g in self.opt.param_groups: g["lr"] = v'
FREEZE = (
    "def freeze(self):\n        for m in self.net.modules():\n            if isinstance(m, nn.BatchNorm1d): m.eval()"
)
GIVEN = (
    "def follow(self):\n        for s, p in zip(self.slow.parameters(), self.net.parameters()): s.data = p.data * 0.9"
)
IN_PLACE = GIVEN.replace("s.data = p.data * 0.9", "s.data.copy_(p.data)")
WRONG = [
    (_trained("self.set_lr(0.01 / (k + 1))", RATE), "lr of self.opt", 'g["lr"] = v', "learning-rate-frozen"),
    (_trained("if k > 2: self.freeze()", FREEZE), "self.net[1].training", "m.eval()", "branch-frozen"),
    (_trained("self.follow()", GIVEN), "self.slow[4].bias.data", "s.data = p.data * 0.9", "parameter-rebound"),
    (_trained("self.slow = copy.deepcopy(self.net)"), "self.slow", "copy.deepcopy(self.net)", "branch-frozen"),
    (_trained("self.loss = nn.CrossEntropyLoss(label_smoothing=k / 9)"), "self.loss", "k / 9", "branch-frozen"),
    (_trained("self.loss.label_smoothing = k / 9"), "self.loss.label_smoothing", "k / 9", "scalar-frozen"),
    (_trained("self.net[0].requires_grad_(k > 1)"), "self.net[0].bias.requires_grad", "k > 1", "branch-frozen"),
    (_trained("self.net.cpu(); self.net.to(device)"), "self.net[4].bias.data", "self.net.cpu()", "parameter-rebound"),
    (_trained('vars(self.args)["margin"] = 0.1 * k'), "self.args.margin", "0.1 * k", "scalar-frozen"),
    (_trained("self.args.__dict__.update(margin=0.1 * k)"), "self.args.margin", "0.1 * k", "scalar-frozen"),
    (_trained('setattr(self.args, "margin", 0.1 * k)'), "self.args.margin", "0.1 * k", "scalar-frozen"),
    (
        _trained("self.slow.load_state_dict(copy.deepcopy(self.net.state_dict()), assign=True)"),
        "self.slow[4].bias.data",
        "assign=True",
        "parameter-rebound",
    ),
    (_trained("self.slow.half().float()"), "self.slow[4].bias.data", "self.slow.half()", "parameter-rebound"),
    (_trained("self.slow.to(torch.float64)"), "self.slow[4].bias.data", "torch.float64", "parameter-rebound"),
    (_trained("self.opt.load_state_dict(kept)"), "the state of self.opt", "load_state_dict(kept)", "stale-input"),
    (_trained("self.opt = adam(self.net)"), "self.opt", "adam(self.net)", "branch-frozen"),
    (
        OTHERS.replace("MORE", "pass").replace(
            "student.train_step(x, y)", "student.train_step(x, y); teacher.train_step(x, y)"
        ),
        "self.args.margin",
        "teacher.args.margin = 0.1 * k",
        "scalar-frozen",
    ),
    (_trained("self.args = Args()"), "self.args", "Args()", "branch-frozen"),
    (_trained("type(self).gain *= 0.5"), "self.gain", "type(self).gain *= 0.5", "scalar-frozen"),
    (_trained("self.epoch = k"), "self.epoch", "self.epoch = k", "branch-frozen"),
    (
        HOOKED.replace("BODY", "self.net[0].requires_grad_(epoch < 2)"),
        "self.net[0].bias.requires_grad",
        "epoch < 2",
        "branch-frozen",
    ),
    (
        LISTED.replace("BODY", 'self.opt.param_groups[0]["lr"] = 1e-3 * k'),
        "lr of self.opt",
        "1e-3 * k",
        "learning-rate-frozen",
    ),
    (ENTERED.replace("BODY", "pass"), "self.net[1].training", "model.eval()", "branch-frozen"),
    (
        SCHEDULED.replace("BODY", 'group["lr"] = 1e-2 * math.cos(self.k)'),
        "lr of opt",
        "math.cos(self.k)",
        "learning-rate-frozen",
    ),
    (ENCLOSED.replace("BODY", "if k > 2: model[1].eval()"), "model[1].training", "model[1].eval()", "branch-frozen"),
    (YIELDED.replace("BODY", "self.mix = 1.0 / (k + 1)"), "self.mix", "1.0 / (k + 1)", "scalar-frozen"),
    (EPOCHS.replace("BODY", "pass"), "self.net[1].training", "self.net.eval()", "branch-frozen"),
    (ENVIRONED.replace("BODY", 'os.environ["SCALE"] = str(k)'), "SCALE", "str(k)", "branch-frozen"),
    (ENVIRONED.replace("BODY", "CFG.update(gain=0.5 * k)"), "CFG['gain']", "0.5 * k", "scalar-frozen"),
    (
        FILLED.replace("BODY", 'group["lr"] = torch.tensor(value, device=device)'),
        "lr of opt",
        "torch.tensor(value",
        "learning-rate-frozen",
    ),
]
RIGHT = {
    "a type that it has": _trained("self.slow.float().to(device); self.slow.to(dtype=torch.float32)"),
    "a copy of another type": _trained("self.saved = copy.deepcopy(self.net).half()"),
    "another of its class": OTHERS.replace(
        "MORE", "teacher.opt.param_groups[0]['lr'] = 0.1 * k; teacher.slow = student.net"
    ),
    "a rate that is set once": _trained("pass", RATE, "self.set_lr(0.02); self.net[0].requires_grad_(False)"),
    "the same each time": _trained("self.set_lr(0.01); self.net.train(); self.net.requires_grad_(True)", RATE),
    "another object": _trained("other.eval(); other[0].p = k; other.requires_grad_(False)", "", "other = net()"),
    "in place": _trained("self.follow()", IN_PLACE),
    "a state that is loaded": _trained("self.slow.load_state_dict(self.net.state_dict())"),
    "an entry that nothing reads": _trained('vars(self.args)["seen"] = k; setattr(self.args, "seen", k)'),
    "an object of another name": _trained("self.other = Args()"),
    "a class that nothing reads": _trained("type(self.args).gain = 0.5"),
    "a mode that is back": _trained("self.net.eval(); self.net(x); self.net.train()"),
    "a copy of the state": _trained("self.saved = {k: v.cpu() for k, v in self.net.state_dict().items()}"),
    "a hook that trains": HOOKED.replace("BODY", "self.net.train()"),
    "a callback that reads": LISTED.replace("BODY", 'self.seen = self.opt.param_groups[0]["lr"]'),
    "a mode that its context puts back": ENTERED.replace("BODY", "model.train(was)"),
    "a schedule that reads": SCHEDULED.replace("BODY", 'self.rate = group["lr"]'),
    "a loop that puts the mode back": ENCLOSED.replace("BODY", "model.eval(); model(x); model.train()"),
    "a generator that gives the same": YIELDED.replace("BODY", "self.mix = 0.5"),
    "an epoch that begins with train()": EPOCHS.replace("BODY", "self.net.train()"),
    "a step that begins with train()": EPOCHS.replace("BODY", "pass").replace(
        "def train_step(self, x, y):", "def train_step(self, x, y):\n        self.net.train()"
    ),
    "another variable of the environment": ENVIRONED.replace("BODY", 'os.environ["RUN"] = str(k); CFG["k"] = k'),
    "a rate that is filled": FILLED.replace("BODY", 'group["lr"].fill_(value)'),
    "a scheduler of a rate in a tensor": FILLED.replace("BODY", "decay.step()").replace(
        "def step(", "decay = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)\ndef step("
    ),
}


@pytest.mark.parametrize(("text", "what", "line", "code"), WRONG)
def test_what_a_loop_leaves_otherwise_is_told_with_the_line_that_sets_it(
    text: str, what: str, line: str, code: str, tmp_path: Path
) -> None:
    # GIVEN a step, and lines around it that leave something which it reads otherwise at its next call
    names = load(HEAD + text, tmp_path / "program.py")
    # WHEN it is diagnosed
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    # THEN what is set is told, with the line that sets it
    told = [f for f in diagnosis if f"{what} is set between calls, at" in f.message]
    assert told, str(diagnosis)
    assert (told[0].code, line in told[0].message) == (code, True), str(diagnosis)
    assert told[0].frame is not None
    assert len({f.message.partition(": ")[2] or f.message for f in diagnosis}) == 1, str(diagnosis)


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_loop_leaves_as_it_is_is_not_told(name: str, tmp_path: Path) -> None:
    # GIVEN the same with lines that leave what the step reads WHEN it is diagnosed THEN there is no problem
    names = load(HEAD + RIGHT[name], tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert not diagnosis, str(diagnosis)
