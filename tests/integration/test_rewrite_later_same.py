"""What is put off until after the launch is done with what it would have had: today's arguments, a round's values."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.around import later
from paramgraph_kit.rewrite.source.edits import Source
from tests.integration.rewritten import Program

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

OF_CALLS = {
    "a function's": """\
lines, lin = [], nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device), 0)
def f(x, epoch):
    total = 0.0
    for i in range(4):
        total = total + lin(x * (i + 1)).square().mean().item()
        if i % 2 == 1:
            lines.append(f"{epoch}.{i} {total:.3f}")
            total = 0.0
    return lin(x).detach()
""",
    "a method's": """\
lines = []
class Trainer:
    def __init__(self):
        self.lin = nn.Linear(4, 2).to(device)
    def epoch(self, x, epoch, tag="a"):
        for i in range(4):
            loss = self.lin(x * (i + 1)).square().mean()
            lines.append(f"{tag}{epoch}.{i} {loss.item():.3f}")
        return loss.detach()
trainer = Trainer()
args = (torch.randn(3, 4, device=device), 0)
f = trainer.epoch
""",
}


@pytest.mark.parametrize("name", OF_CALLS)
def test_a_number_that_the_function_is_called_with_is_todays_in_what_is_put_off(name: str, program: Program) -> None:
    # GIVEN a loop that tells its losses with a number that the caller gives
    names = program(OF_CALLS[name])
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix.complete, fix
    x = names["args"][0]
    told = [_lines(names, partial(names["f"], x, k)) for k in range(4)]
    # WHEN one graph of the rewritten function is replayed for other such numbers
    with fix.applied():
        names["f"](x, 0)
        graph = pgk.cuda.CUDAGraph()
        with pgk.diagnose.capture(graph):
            result = names["f"](x, 0)

        def launch(k: int) -> None:
            graph.replay()
            fix.around.finish(((x, k), {}), result)

        seen = [_lines(names, partial(launch, k)) for k in range(4)]
    # THEN each launch tells its own
    assert seen == told, fix
    assert "code in other files" not in str(fix)  # it is the step itself that fills the list


def _lines(names: dict[str, Any], call: Any) -> list[str]:
    names["lines"].clear()
    call()
    return list(names["lines"])


CALLBACK = """\
class Trainer:
    def run(self, x):
        for i in range(6):
            self.loss = self.model(x)
            for call in self.calls:
                call(self)
            self.n += 1
def told(trainer):
    print(f"{trainer.name} {WHAT}")
def noted(trainer): trainer.total += 1; print("noted", trainer.bias.item())
"""


@pytest.mark.parametrize(
    ("what", "put_off"), [("trainer.n", False), ("trainer.loss.item():.3f", False), ("trainer.bias.item():.3f", True)]
)
def test_what_changes_in_the_step_is_not_asked_of_its_object_behind_it(
    what: str, put_off: bool, tmp_path: Path
) -> None:
    # GIVEN a callback that is handed the trainer, and prints what each round sets, or what none sets
    file = tmp_path / "callback.py"
    file.write_text(CALLBACK.replace("WHAT", what))
    source = Source.of(str(file))
    assert source is not None
    told = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Expr) and "print" in ast.unparse(node))
    # WHEN it is asked what can be put off THEN only what is the same behind the step: not three times the last round's
    assert bool(later.blocks(source, [told], list(ast.walk(source.tree)))) is put_off
    # AND nothing that is in the line of a function's head, of which the line would be taken
    noted = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Expr) and "noted" in ast.unparse(node))
    assert not later.blocks(source, [noted], list(ast.walk(source.tree)))


# what a helper keeps on the host, and code that no step runs, which comes to it too: what is put off would not be done
# then, and done again behind each later launch
NOTED = {
    "a function": (
        """\
def loss_of(x):
    y = lin(x).square().mean()
    kept.append(y.item())
    return y
def f(x):
    return loss_of(x).detach()
""",
        """\
def validate(xs):
    return [loss_of(x) for x in xs]
""",
    ),
    "what that calls": (
        """\
def note(y):
    kept.append(y.item())
def loss_of(x):
    y = lin(x).square().mean()
    for _ in range(2):
        note(y)
    return y
def f(x):
    return loss_of(x).detach()
""",
        """\
class Trainer:
    def validate(self, xs):
        self.loss = max(map(loss_of, xs))
""",
    ),
    "a method": (
        """\
class Meter:
    def __init__(self):
        self.sum = 0.0
    def add(self, v):
        self.sum += v.item()
meter, val_meter = Meter(), Meter()
def f(x):
    for part in x.split(2):
        y = lin(part)
        meter.add(y.mean())
    return y.detach()
""",
        """\
def validate(x):
    val_meter.add(lin(x).mean())
""",
    ),
    "a hook": (
        """\
def note(module, given, y):
    kept.append(y.mean().item())
lin.register_forward_hook(note)
def f(x):
    return lin(x).detach()
""",
        """\
def validate(model, xs):
    return [model(x) for x in xs]
""",
    ),
    "a module": (
        """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = lin
    def forward(self, x):
        y = self.lin(x)
        kept.append(y.mean().item())
        return y
net = Net()
def f(x):
    return net(x).detach()
""",
        """\
def validate(xs):
    with torch.no_grad():
        return [net(x) for x in xs]
""",
    ),
    "a decorator": (
        """\
def noted(fn):
    def inner(x):
        y = fn(x)
        kept.append(y.mean().item())
        return y
    return inner
@noted
def head(x):
    return lin(x)
def f(x):
    return head(x).detach()
""",
        """\
@noted
def validate(x):
    return lin(x).abs()
""",
    ),
}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["the step alone", "others too"])
@pytest.mark.parametrize("name", NOTED)
def test_what_others_wait_for_is_not_put_off(name: str, elsewhere: bool, program: Program) -> None:
    # GIVEN a helper that keeps a number, of the step alone or of a validation too, beside code that calls neither
    step, other = NOTED[name]
    text = f"""\
kept, lin = [], nn.Linear(4, 2).to(device)
args = (torch.randn(4, 4, device=device),)
def shown(rows):
    print(torch.stack(rows).mean().item(), max(len(row) for row in rows))
{step}{other * elsewhere}"""
    names = program(text)
    # WHEN it is rewritten THEN its work is put off where all of it is the step's, and it is told what others would meet
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert ("later" in fix.diff) is not elsewhere, fix
    assert elsewhere or fix.complete, fix
    assert any("code in other files or cells that comes to it" in line for line in fix.verified) is not elsewhere, fix
