"""What a story calls a function with: values of its own, and those of the user where it takes no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.mixing import in_another_order
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="an index beyond a table would end the context")
Program = Callable[[str], dict[str, Any]]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Runs a program from a file of its own; returns its names."""
    yield lambda text: load(PRELUDE + text, tmp_path / "program.py")
    pgk.diagnose.repair()


def test_each_column_of_categories_stays_within_its_table(program: Program) -> None:
    # GIVEN a table for each column, of which one is small
    names = program("""
tables = nn.ModuleList([nn.Embedding(n, 2) for n in (50, 7, 3)]).to(device)
args = (torch.stack([torch.arange(12) * k % n for k, n in ((11, 50), (5, 7), (1, 3))], 1).to(device),)
seen = []
def f(category):
    seen.append(category.max().item())
    return sum(table(category[:, i]) for i, table in enumerate(tables)).detach()
""")
    # WHEN its story is told
    story = pgk.story(names["f"], *names["args"], say=None)
    # THEN it ran with columns in another order, none beyond its table
    assert story.complete, str(story)
    assert "stay" not in str(story)


@pytest.mark.parametrize("shape", [(12, 3), (3, 12), (4, 3, 5)], ids=str)
def test_integers_are_shuffled_where_their_ranges_are_alike(shape: tuple[int, ...]) -> None:
    # GIVEN integers of one range, and the same with one slice of a range of its own
    plain = torch.arange(torch.Size(shape).numel()).mul(7).remainder(10).reshape(shape)
    other = plain.clone()
    other.select(shape.index(3), 0).add_(100)
    for value in (plain, other):
        # WHEN they are put into another order
        mixed = in_another_order(value, torch.Generator().manual_seed(0))
        # THEN they are the same, elsewhere
        assert mixed.shape == value.shape
        assert mixed.flatten().sort().values.equal(value.flatten().sort().values)
        assert not mixed.equal(value)
    # AND what has a range of its own stays in its slice
    assert mixed.select(shape.index(3), 0).min() >= 100


@pytest.mark.parametrize(
    ("refuses", "kept", "chapter"),
    [
        ("rank.tolist() != sorted(rank.tolist())", "the integers of its arguments stay", True),
        ("abs(x.sum().item() - total) > 1e-3", "the values of its arguments stay", False),
    ],
    ids=["integers", "all"],
)
def test_what_a_function_does_not_take_is_not_given_to_it(
    refuses: str, kept: str, chapter: bool, program: Program
) -> None:
    # GIVEN a function that raises where its arguments are not as its user's are
    names = program(f"""
args = (torch.randn(8, device=device), torch.arange(8, device=device))
total = args[0].sum().item()
def f(x, rank):
    if {refuses}:
        raise ValueError("not so")
    return (x * rank).sum()
""")
    # WHEN its story is told
    story = pgk.story(names["f"], *names["args"], say=None)
    # THEN it does not say that the function does not run, but what it was called with
    assert "it does not run eagerly" not in str(story)
    assert f"{kept}, as with others it raises ValueError: less is proved so" in str(story)
    # AND where no value moves, nothing is said of a graph that nobody told of new ones
    assert ("reads the memory that it was captured with" in str(story)) <= chapter


@pytest.mark.parametrize("lengths", ["cpu", "device"])
@pytest.mark.parametrize("targets", ["cpu", "device"])
def test_lengths_of_ctc_loss_may_be_of_either_device(lengths: str, targets: str, program: Program) -> None:
    # GIVEN a loss as torch's documentation has it, lengths on the CPU or not
    names = program(f"""
cpu = "cpu"
net = nn.Linear(4, 5).to(device)
said = torch.tensor([[1, 2], [3, 1]], device={targets})
n, m = torch.tensor([6, 6], device={lengths}), torch.tensor([2, 2], device={targets})
args = (torch.randn(6, 2, 4, device=device), n, m)
def f(x, n, m):
    loss = F.ctc_loss(net(x).log_softmax(-1), said, n, m)
    loss.backward()
    return loss.detach()
""")
    expected = names["f"](*names["args"]).item()
    # WHEN it is looked at
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN it runs as ever, and its one problem is what it is
    assert set(found.codes) == {"ctc-loss"}
    story = pgk.story(names["f"], *names["args"], say=None)
    assert "it does not run eagerly" not in str(story)
    assert names["f"](*names["args"]).item() == expected
