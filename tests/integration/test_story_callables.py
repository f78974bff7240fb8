"""Stories of what users hand over: partials, lambdas, functions made by functions, and code of another file.

The lines that a story ends with are run here as they are, beside its diff.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.test_journeys import applied
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
STEPS = 5
RUN = """
import functools
net = nn.Linear(4, 4).to(device)
seen = []
def run(bias, model, x, *, scale=1.0, digits=3):
    y = model(x) * scale + bias
    seen.append(round(y.max().item() * scale, digits))
    return y
args = (torch.randn(2, 4, device=device),)
"""
FACTORY = """
seen = []
net = nn.Linear(4, 4).to(device)
def make(n):
    k = 0
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    total = {"loss": 0.0}
    def step(x):
        nonlocal k
        loss = net(x).square().mean() * n
        opt.zero_grad()
        loss.backward()
        opt.step()
        k += 1
        total["loss"] += loss.item()
        seen.append(round(total["loss"], 4) + k)
        return loss
    return step
step = make(3)
args = (torch.randn(2, 4, device=device),)
"""


@pytest.fixture
def ended(tmp_path: Path) -> Iterator[Callable[[str, str], tuple[list[str], list[float]]]]:
    """Tells a story of a name of a program, and runs what it ends with; returns its lines and what was seen."""

    def tell(text: str, name: str) -> tuple[list[str], list[float]]:
        text = PRELUDE + text
        names = load(text, tmp_path / "program.py")
        story = pgk.story(names[name], *names["args"], say=None)
        assert story.complete, str(story)
        lines = [line.strip() for line in story.lines]
        lines = lines[next(i for i, line in enumerate(lines) if line.startswith("launched = ")) :]
        final = load(applied(text, story.fix.diff) if story.fix is not None else text, tmp_path / "final.py")
        with pgk.watch() as trace:
            exec(lines[0], final)
            for i in range(STEPS):
                final["x"] = names["args"][0] * (1 + i)
                exec("\n".join(lines[1:]), final)
        assert len(trace.launches) >= STEPS - 2, lines
        return lines, final["seen"]

    yield tell
    pgk.diagnose.repair()


def expected(text: str, name: str, file: Path) -> list[float]:
    names = load(PRELUDE + text, file)
    for i in range(STEPS):
        names[name](names["args"][0] * (1 + i))
    seen: list[float] = names["seen"]
    return seen


@pytest.mark.parametrize(
    ("made", "call"),
    [
        ("step = functools.partial(run, 3.0, net, scale=0.5)", "after_run(0.5, 3, y)"),
        ("step = lambda x: run(2.0, net, x, scale=0.25, digits=2)", "after_run(0.25, 2, y)"),
        ("def step(x):\n    return run(1.0, net, x)", "after_run(1.0, 3, y)"),
    ],
    ids=["partial", "lambda", "call"],
)
def test_what_only_calls_another_function_is_told_as_that(
    made: str, call: str, ended: Callable[[str, str], tuple[list[str], list[float]]], tmp_path: Path
) -> None:
    # GIVEN a callable that binds some of another one's parameters WHEN its story is told
    lines, seen = ended(RUN + made + "\n", "step")
    # THEN the lines for the user's loop name only what is there, and what was bound is written as it was
    assert lines[1:] == ["y = launched(x)", call]
    assert lines[0].startswith("launched = pgk.parameterize(step")
    assert seen == pytest.approx(expected(RUN + made + "\n", "step", tmp_path / "eager.py"), rel=1e-3)


def test_a_function_made_by_a_function_is_launched_with_what_comes_after_it(
    ended: Callable[[str, str], tuple[list[str], list[float]]], tmp_path: Path
) -> None:
    # GIVEN a step that lives in a closure, with its optimizer and counts WHEN its story is told
    lines, seen = ended(FACTORY, "step")
    # THEN what was moved can be called from outside, no name of the inside is asked for, and numbers are eager's
    assert lines == [
        "launched = pgk.parameterize(step, state=(net,))",
        "loss = launched(x)",
        "after_step_of[step](loss)",
    ]
    assert seen == pytest.approx(expected(FACTORY, "step", tmp_path / "eager.py"), rel=1e-3)


def test_what_belongs_to_a_made_function_is_taken_before_a_launch_gets_its_name(tmp_path: Path) -> None:
    # GIVEN the same WHEN it is rewritten
    names = load(PRELUDE + FACTORY, tmp_path / "program.py")
    fix = pgk.diagnose(names["step"], *names["args"], fix=True).fix
    # THEN it is said when what is called around a launch is found by the function
    assert "`after_step = after_step_of[step]` ahead of what gives its name to a launch" in str(fix)


def test_of_an_imported_step_the_story_names_what_the_caller_has(tmp_path: Path) -> None:
    # GIVEN a step of another file, with its model there
    text = (
        PRELUDE + "model = nn.Linear(4, 4).to(device)\ndef step(x):\n    loss = model(x).sum()\n    loss.backward()\n"
    )
    module = load(text + "args = (torch.randn(2, 4, device=device),)\n", tmp_path / "training.py")
    # WHEN somebody who has imported nothing else has its story told
    space = {"pgk": pgk, "step": module["step"], "x": module["args"][0], "__name__": "user"}
    exec("story = pgk.story(step, x, say=None)", space)
    # THEN no name of that file is asked for
    assert "launched = pgk.parameterize(step, state=[])" in str(space["story"])
    # AND who has it is told to give it
    space["model"] = module["model"]
    exec("story = pgk.story(step, x, say=None)", space)
    assert "launched = pgk.parameterize(step, state=(model,))" in str(space["story"])
    assert "user" not in sys.modules


BESIDE = """
model = nn.Linear(4, 4).to(device)
opt = torch.optim.AdamW(model.parameters())
args = (torch.randn(2, 4, device=device),)
def learn(loss):
    loss.backward()
    opt.step()
def train(x):
    loss = model(x).square().mean()
    opt.zero_grad()
    learn(loss)
    return loss.item()
def predict(x):
    h = model(x)
    return h * h.max().item()
"""


@pytest.mark.parametrize(("name", "state"), [("train", True), ("predict", False)])
def test_an_optimizer_beside_a_function_does_not_make_it_train(name: str, state: bool, tmp_path: Path) -> None:
    # GIVEN a notebook with a training step, through a helper, and a prediction WHEN the story of one of them is told
    names = load(PRELUDE + BESIDE, tmp_path / "model.py")
    story = pgk.story(names[name], *names["args"], say=None)
    # THEN it comes to its end, with state only where something is trained
    assert story.complete, str(story)
    assert ("state=(model, opt)" in str(story)) == state
