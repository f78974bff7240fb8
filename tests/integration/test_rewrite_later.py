"""Fixes that put off what the host does in the middle of a step, and lines that are rewritten where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, Program, lines_of
from tests.programs.running import captured, differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")


# what is put off: in a loop, a hook, a method, a decorator, a context manager, a custom Function
PUT_OFF = {
    "a loss in a loop": """\
kept = []
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)
def f(x):
    for _ in range(2):
        y = lin(x).square().mean()
        kept.append(y.item())
        x = x * 0.5
    return y.detach()
""",
    "a hook of a tensor's": """\
kept = []
lin = nn.Linear(4, 2).to(device)
def note(g):
    kept.append(g.norm().item())
lin.weight.register_hook(note)
args = (torch.randn(3, 4, device=device),)
def f(x):
    lin.zero_grad()
    lin(x).sum().backward()
    return lin.weight.grad.clone()
""",
    "two statements of a hook, one of which the other needs": """\
kept, total = [], [0.0]
lin = nn.Linear(4, 2).to(device)
def note(m, i, o):
    size = o.abs().max().item()
    kept.append(size)
    total[0] += size
lin.register_forward_hook(note)
args = (torch.randn(3, 4, device=device),)
@torch.no_grad()
def f(x):
    return lin(x)
""",
    "a meter's method": """\
class Meter:
    def __init__(self):
        self.sum, self.n = 0.0, 0
    def add(self, v):
        self.sum += float(v)
        self.n += 1
meter = Meter()
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)
@torch.no_grad()
def f(x):
    for part in x.split(2):
        y = lin(part)
        meter.add(y.mean())
    return y
""",
    "a decorator's count": """\
import functools
calls = {'n': 0}
def counted(fn):
    @functools.wraps(fn)
    def wrapper(*a):
        calls['n'] += 1
        return fn(*a)
    return wrapper
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)
@counted
@torch.no_grad()
def f(x):
    return lin(x)
""",
    "a context manager's count": """\
from contextlib import contextmanager
blocks = {'n': 0}
@contextmanager
def block():
    try:
        yield
    finally:
        blocks['n'] += 1
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)
@torch.no_grad()
def f(x):
    with block():
        y = lin(x)
    return y
""",
    "a count of a class": """\
class Twice(torch.autograd.Function):
    calls = 0
    @staticmethod
    def forward(ctx, x):
        Twice.calls += 1
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * 2
args = (torch.randn(3, 4, device=device),)
def f(x):
    return Twice.apply(x)
""",
}


@pytest.mark.parametrize("name", PUT_OFF)
def test_what_the_host_keeps_in_the_middle_of_a_step_is_kept_after_the_launch(name: str, program: Program) -> None:
    # GIVEN a step that keeps a number somewhere below WHEN it is rewritten
    truth = eager(program(PUT_OFF[name]), "f")
    names = program(PUT_OFF[name])
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN one list holds what is done after each launch, and ten replays leave what eager calls leave
    assert fix is not None
    assert fix.complete, fix
    assert "+later = []" in fix.diff
    assert "later.append(" in fix.diff
    assert "after_f() after each launch" in fix.usage
    assert any("`own = list(later)` behind its capture" in line for line in fix.verified), fix
    with fix.applied():
        assert not differences(truth, captured(names, "f", fix.around), set())


@pytest.mark.parametrize("name", ["a loss in a loop", "two statements of a hook, one of which the other needs"])
def test_what_is_kept_for_after_the_launch_is_launched(name: str, program: Program) -> None:
    # GIVEN the same steps, rewritten
    truth = eager(program(PUT_OFF[name]), "f")
    names = program(PUT_OFF[name])
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    # WHEN they are parameterized
    with fix.applied():
        step = pgk.parameterize(names["f"], state=())
        names["f"] = lambda *args: fix.around.finish((args, {}), step(*args))
        # THEN launches put the tensors of each call into the list, with the objects that were there
        assert not differences(truth, eager(names, "f"), set())
    assert pgk.report(step).rows[0].launches >= 5


# what something in the step reads, or what the step itself needs, is not put off
READ = {
    "a time": """\
times = []
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)
def timed(x):
    start = time.perf_counter()
    y = lin(x)
    times.append((y.mean().item(), time.perf_counter() - start))
    return y.detach()
def f(x):
    return timed(x)
""",
    "a count that decides": """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0
    def forward(self, x):
        self.n += 1
        return x * 2 if self.n < 100 else x
net = Net()
args = (torch.randn(3, 4, device=device),)
def f(x):
    return net(x)
""",
    "a number that another method reads": """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.peak = 1.0
    def note(self, x):
        self.peak = x.abs().max().item()
    def forward(self, x):
        self.note(x)
        return x / self.peak
net = Net()
args = (torch.randn(3, 4, device=device),)
def f(x):
    return net(x)
""",
}


@pytest.mark.parametrize("name", READ)
def test_what_the_step_reads_is_not_put_off(name: str, program: Program) -> None:
    # GIVEN a step that reads what it keeps WHEN it is rewritten
    names = program(READ[name])
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN that is not done later
    assert fix is not None
    assert "later" not in fix.diff


def test_what_is_put_off_is_no_problem_once_it_is_written(program: Program, tmp_path: Path) -> None:
    # GIVEN a program with the list that a fix wrote
    text = """\
kept, later = [], []
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)
def f(x):
    later.clear()
    y = lin(x).detach()
    later.append((lin, 1, y))
    return y
"""
    names = program(text)
    # WHEN diagnosed THEN the list that is filled again is none, and one that keeps what it had is one
    assert pgk.diagnose(names["f"], *names["args"]).codes == ()
    names = program(text.replace("later.clear()", "del later[:-1]"))
    assert pgk.diagnose(names["f"], *names["args"]).codes == ("output-alias",)


def test_a_choice_of_the_host_is_not_made_in_any_case(program: Program) -> None:
    # GIVEN the best loss so far in a global name, with losses that go up and down
    text = """\
best = float('inf')
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)
def feed(i):
    return (args[0] * (1 + (i * 7) % 5),)
@torch.no_grad()
def f(x):
    global best
    y = lin(x).square().mean()
    if y.item() < best:
        best = y.item()
    return y
"""
    truth = eager(program(text), "f")
    names = program(text)
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    # WHEN the rewritten lines are replayed THEN it is the best one, and a number
    with fix.applied():
        assert not differences(truth, captured(names, "f", fix.around), set())
    assert isinstance(names["best"], float)
    assert fix.complete


def test_two_attributes_of_one_object_are_moved_once_each(program: Program) -> None:
    # GIVEN a state whose fields are counted one after the other
    text = """\
from dataclasses import dataclass
@dataclass
class State:
    step: int = 0
    mean: float = 0.0
state = State()
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)
def f(x):
    y = lin(x).mean()
    state.step += 1
    state.mean = 0.9 * state.mean + y.item()
    return y.detach()
"""
    names = program(text)
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # WHEN rewritten THEN the dataclass is looked at, and each line stands in the other function once
    assert "host-counter" in found.codes
    assert found.fix is not None
    assert found.fix.complete
    assert found.fix.diff.count("state.step += 1") == 1


IN_PLACE = {
    "a masked sum into a mask": ("x[keep] += v[keep]", "x.copy_(torch.where(keep, x + v, x))"),
    "what is computed of a mask's rows": ("x[keep] = v[keep].abs() * 2", "x.copy_(torch.where(keep, v.abs() * 2, x))"),
    "an index of the device": ("x.add_(v[at])", "x.add_(v[at.reshape(1)][0])"),
    "an inverse of torch's": ("x[:2].copy_(torch.inverse(m)[0])", "x[:2].copy_(torch.linalg.inv_ex(m).inverse[0])"),
    "any of a list": (
        "if any(t.isnan().any() for t in (x, v)):\n        x = x * 0",
        "x = torch.where(torch.stack([t.isnan().any() for t in (x, v)]).any(), x * 0, x)",
    ),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_line_is_rewritten_where_it_stands(name: str, program: Program) -> None:
    # GIVEN one line that a capture refuses WHEN rewritten
    line, new = IN_PLACE[name]
    text = (
        "keep = torch.tensor([True, False, True, True]).to(device)\nat = torch.tensor(1).to(device)\n"
        "m = torch.eye(2).to(device) * 3\nargs = (torch.randn(4, device=device), torch.randn(4, device=device))\n"
        f"def f(x, v):\n    x = x.clone()\n    {line}\n    return x\n"
    )
    names = program(text)
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN it is this line
    assert fix is not None
    assert f"+    {new}" in fix.diff.splitlines()
    assert fix.complete, fix


def test_sums_and_lists_of_the_functions_own_stay_on_the_device(program: Program) -> None:
    # GIVEN the loop over batches that adds up its loss
    text = """\
lin = nn.Linear(4, 2).to(device)
batches = [torch.randn(2, 4).to(device) for _ in range(3)]
args = ()
def f():
    total, parts = 0.0, []
    for x in batches:
        y = lin(x).mean()
        total += y.item() * len(x)
        parts.append(y.item())
    return total / 6, sum(parts)
"""
    names = program(text)
    fix = pgk.diagnose(names["f"], fix=True).fix
    # WHEN rewritten THEN the sums are tensors
    assert fix is not None
    assert "+        total += y.detach() * len(x)" in fix.diff.splitlines()
    assert "+        parts.append(y.detach())" in fix.diff.splitlines()
    assert fix.complete, fix


def test_a_loop_that_ends_early_goes_on_and_changes_nothing(program: Program) -> None:
    # GIVEN Newton's steps until they are small, which takes another number of rounds for other inputs
    text = """\
args = (torch.rand(4, device=device) + 1,)
def feed(i):
    return (args[0] * (1 + 50 * (i % 3)),)
def f(a):
    x, rounds = a.clone(), 0
    for _ in range(12):
        new = 0.5 * (x + a / x)
        small = (new - x).abs().max() < 1e-3
        x = new
        rounds += 1
        if small:
            break
    return x, rounds
"""
    truth = eager(program(text), "f")
    assert len({float(value) for value in truth["result"][1::2]}) > 1
    names = program(text)
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # WHEN rewritten THEN every replay gives what the loop gave where it ended
    assert fix is not None
    assert "+        done = done | small" in fix.diff.splitlines()
    assert fix.complete, fix
    with fix.applied():
        assert not differences(truth, captured(names, "f", fix.around), set())


def test_a_loop_that_does_more_than_give_values_is_left(program: Program) -> None:
    # GIVEN optimizer's steps until the loss is small WHEN rewritten THEN no step is made that was not
    text = """\
lin = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(lin.parameters(), lr=0.1)
args = (torch.randn(3, 4, device=device),)
def f(x):
    for _ in range(4):
        loss = lin(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if loss < 1e-9:
            break
    return loss.detach()
"""
    names = program(text)
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert "done" not in fix.diff
    assert not fix.complete


def test_a_method_inside_of_what_torch_has_made_of_it_is_known_with_its_object(program: Program) -> None:
    # GIVEN a step that is a bound method without gradients, and that keeps a count of the device in its object
    text = """\
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.clipped = nn.Parameter(torch.randn(4, 4)), 0
    def forward(self, x):
        q = x.clamp(-1, 1)
        self.clipped += (q.abs() == 1).sum().item()
        return q @ self.w
layer = Layer().to(device)
f = torch.no_grad()(layer.forward)
args = (torch.randn(3, 4, device=device) * 2,)
"""
    truth = eager(program(text), "f")
    names = program(text)
    # WHEN rewritten
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN the count moves behind the launch, with its object
    assert fix is not None
    assert fix.complete, fix
    assert "call self.after_forward(" in fix.usage
    with fix.applied():
        assert not differences(truth, captured(names, "f", fix.around), set())


def test_what_moved_lines_call_through_others_is_not_put_off(fixed: Fixed) -> None:
    # GIVEN meters that are made when they are needed first, which a helper of a helper counts in, WHEN rewritten
    found = fixed("""
class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0
    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
meters = {}
def log(name, value):
    if name not in meters:
        meters[name] = Meter()
    meters[name].update(value.item())
lin = nn.Linear(4, 1).to(device)
args = (torch.randn(6, 4, device=device),)
def f(x):
    loss = lin(x).square().mean()
    lin.zero_grad()
    loss.backward()
    log("loss", loss)
    return loss.detach()
""")
    # THEN the call goes behind the launch, and what it does is done there and then, each time once
    assert found.complete, found
    assert not any("later" in line for line in lines_of(found)), found


def test_what_a_decorator_counts_is_done_behind_the_launch_alone(fixed: Fixed) -> None:
    # GIVEN a decorator that counts calls, and prints now and then
    text = """
calls, args = {"n": 0}, (torch.randn(5, device=device),)
import functools
def logged(fn):
    @functools.wraps(fn)
    def inner(x):
        calls["n"] += 1
        out = fn(x)
        if calls["n"] % 3 == 0:
            print(fn.__name__, out.mean().item())
        return out
    return inner
@logged
def f(x):
    return x.exp() / (1 + x.exp())
"""
    # WHEN a fix is asked for
    fix = fixed(text)
    # THEN the work that is put off is no reader of the graph's
    assert fix.complete, fix
    assert "later.append(work)" in fix.diff


CHECK = "def check(y):\n    n = y.norm().item()\n    if n > 300:\n        log.append(n)\n    return y * 2\n"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("if x.norm() > 300:\n        print('far')", "asked = x.norm() > 300"),
        ("x_2 = check(x)", "then = y.norm()"),
    ],
    ids=["a branch", "a helper"],
)
def test_what_is_written_again_is_asked_where_the_line_stands(line: str, kept: str, fixed: Fixed) -> None:
    # GIVEN a question to a tensor that the step writes once more, with the same answer in all steps WHEN rewritten
    found = fixed(f"""
x, log = torch.zeros(4, device=device), []
args = (torch.randn(4, device=device),)
{CHECK}def f(z):
    x.add_(z)
    {line}
    x.mul_(0.5)
    return x + 1
""")
    # THEN the graph keeps the answer of that moment
    assert found.complete, found
    assert kept in lines_of(found), found
