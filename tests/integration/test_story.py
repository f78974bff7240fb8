"""One function from a broken capture to a parameterized one: live, compared at every step, and nothing of it stays."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact figures are those of the simulated device")
Program = Callable[[str], dict[str, Any]]
TRAINING = """
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
args = (torch.randn(4, 4, device=device), torch.randn(4, 1, device=device))
def train_step(x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    if loss > 1e6:
        loss = loss * 0
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Runs a program from a file of its own; returns its names."""
    yield lambda text: load(PRELUDE + text, tmp_path / "program.py")
    pgk.diagnose.repair()


def test_a_broken_training_step_is_told_to_its_parameterized_end(program: Program) -> None:
    # GIVEN a step with three problems
    names = program(TRAINING)
    before = {name: value.clone() for name, value in names["model"].state_dict().items()}
    # WHEN its story is told
    said: list[str] = []
    story = pgk.story(names["train_step"], *names["args"], say=said.append)
    # THEN every step is there, live, and the end is what eager computes
    assert story.complete, str(story)
    assert list(story.traces) == ["eager", "captured as it is", "captured", "frozen", "parameterized"]
    assert "\n".join(said) == str(story)
    assert story.diagnosis is not None
    assert set(story.diagnosis.codes) >= {"data-dependent-branch", "optimizer-not-capturable", "sync-item"}
    for text in (
        "+opt = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)",
        "+    loss = torch.where(loss > 1e6, loss * 0, loss)",
        "+def after_train_step(loss):  # after each launch",
        "it reads the memory that it was captured with, so it is wrong",
        "4 launches, 4 at new addresses",
        "0 bytes copied",
    ):
        assert text in str(story)
    # AND each column has something to say
    broken, captured, frozen, end = (story.traces[n] for n in list(story.traces)[1:])
    assert {failure.code for failure in broken.failures} >= {"data-dependent-branch", "sync-item"}
    assert captured.captures[0].nodes
    assert (captured.proofs[0].largest or 0) < 1e-5  # a capturable step rounds otherwise
    assert captured.title.endswith("; values that differ: all within 1e-4: the lines round otherwise"), captured.title
    assert end.title.endswith(": the lines round otherwise")
    assert "round" not in frozen.title
    # AND what each replay of a graph with static inputs costs is counted: a copy of all that is given
    given = sum(value.nbytes for value in names["args"])
    assert {launch.bytes_copied for launch in captured.launches} == {given}
    assert {launch.bytes_copied for launch in (*frozen.launches, *end.launches)} == {0}
    assert f"replays after a copy into its inputs, {given} B each" in str(story)
    assert (frozen.proofs[0].largest or 0) > 0.01
    assert len(end.launches) == 4
    assert (end.proofs[0].largest or 0) < 1e-5
    # AND nothing of it stays
    assert names["losses"] == []
    assert all(torch.equal(before[name], value) for name, value in names["model"].state_dict().items())
    assert repr(story) == (
        "Story(train_step: eager, captured as it is, captured, frozen, parameterized; parameterized, equal to eager)"
    )


@pytest.mark.pieces
def test_where_no_rewrite_is_safe_it_stops_and_goes_on_with_the_changed_function(program: Program) -> None:
    names = program(
        "args = (torch.arange(8.0, device=device) - 3.5,)\n"
        "def f(x):\n    y = x[x > 0]\n    for _ in range(9):\n        y = y * 1.01\n    return y\n"
        "def g(x):\n    y = torch.where(x > 0, x, 0)\n    return (y * y).sum()\n"
    )
    # WHEN told THEN it stops at what only the user can decide, and says what to write
    story = pgk.story(names["f"], *names["args"], say=None)
    assert not story.complete
    assert list(story.traces) == ["eager", "captured as it is"]
    assert story.stopped == (
        "no safe rewrite is known for all of it (1 place): change these lines as said, and call story again; "
        "till then it can be launched in pieces, as said"
    )
    assert "`y = torch.where(x > 0, x, 0)`" in str(story)
    # AND the changed function is told to its end
    again = pgk.story(names["g"], *names["args"], say=None)
    assert again.complete
    assert again.fix is None


def test_a_sound_function_has_a_short_story(program: Program) -> None:
    names = program("args = (torch.randn(4, 4, device=device),)\ndef f(x):\n    return x.relu() + 1\n")
    story = pgk.story(names["f"], *names["args"], say=None)
    assert story.complete
    assert "it captures, and replays give eager's numbers" in str(story)
    assert "What is wrong" not in str(story)
    explorer = story.explore()
    assert list(explorer.steps) == list(pgk.explore(story).steps) == list(story.traces)
    assert explorer.steps["parameterized"].launches


def test_silent_problems_are_told_although_the_capture_works(program: Program) -> None:
    names = program(
        "calls = 0\nargs = (torch.randn(4, device=device),)\n"
        "def f(x):\n    global calls\n    calls += 1\n    return x * 2\n"
    )
    story = pgk.story(names["f"], *names["args"], say=None)
    assert story.complete, str(story)
    assert "it captures, but replays go wrong: calls: 6, then 3" in str(story)
    assert "+def after_f():  # after each launch" in str(story)
    assert names["calls"] == 0


def test_what_does_not_run_has_no_story(program: Program) -> None:
    names = program("args = (torch.randn(4, device=device),)\ndef f(x):\n    return missing + x\n")
    story = pgk.story(names["f"], *names["args"], say=None)
    assert not story.complete
    assert story.stopped == ("it does not run eagerly: NameError: name 'missing' is not defined. Make it run first")
    with pytest.raises(pgk.ParamgraphError, match="story takes a function and its arguments, not an int"):
        pgk.story(3)
    wrong: Any = "quietly"
    with pytest.raises(pgk.ParamgraphError, match="say= takes a function that gets each line, or None, not a str"):
        pgk.story(names["f"], *names["args"], say=wrong)


def test_a_story_that_is_kept_holds_no_tensors_of_its_trials(program: Program) -> None:
    # GIVEN a step whose trials have drawn inputs and kept what was written
    names = program(TRAINING)
    pgk.story(names["train_step"], *names["args"], say=None)  # what torch keeps of a first one
    gc.collect()
    before = pgk.cuda.memory_allocated()
    # WHEN a story and its fix are kept and shown, as a notebook does
    story = pgk.story(names["train_step"], *names["args"], say=None)
    shown = story._repr_mimebundle_()
    gc.collect()
    # THEN the device holds what it held
    assert shown
    assert pgk.cuda.memory_allocated() == before
    # AND the fix can be lent as before
    assert story.fix is not None
    with story.fix.applied():
        assert isinstance(names["train_step"](*names["args"]), torch.Tensor)


def test_the_story_of_an_epoch_goes_on_with_one_round_of_it(program: Program) -> None:
    # GIVEN an epoch over batches of the host's
    names = program(
        """net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
rows = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
loader = torch.utils.data.DataLoader(rows, batch_size=8)
def train(model, optimizer):
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total
args = (net, opt)
"""
    )
    # WHEN its story is told
    story = pgk.story(names["train"], *names["args"], say=None)
    # THEN it goes on with the function of one round, to its end
    text = str(story)
    assert story.complete, text
    assert "One round of its loop, train_round: from here on the story is about that" in text
    assert "train_round is parameterized, and gives eager's results at every step. In your own loop:" in text
    assert "launched = pgk.parameterize(partial(train_round, optimizer, model), state=(" in text
    assert "loss = launched(x, y)" in text
    assert list(story.traces)[-1] == "parameterized"
