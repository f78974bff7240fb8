from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch import generate
from paramgraph_kit.launch.launcher import Launcher, Options
from tests.integration.launch_bench import DEVICE, assert_same, host, launcher_of, launches, moved, variants

# Inputs that die with a call may lend their memory to what is made after their last use.

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

SIZE = 1 << 16  # 256 KiB of floats


def dying(x: Tensor, y: Tensor) -> tuple[Tensor]:
    a = x * 2
    return ((a + y).sin(),)


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a backward that does not retain its graph: outside of one torch says that everything is retained."""

    def found(key: str) -> Any:
        return (lambda: False) if key == "_get_current_graph_task_keep_graph" else torch_name(key)

    monkeypatch.setattr(generate, "torch_name", found)


def ready() -> Launcher:
    """A launcher whose first input's memory is used again."""
    launcher = launcher_of(dying, options=Options(reuse=1), donatable=(0,))
    y = moved(SIZE, seed=9)
    launcher([moved(SIZE), y])
    (variant,) = variants(launcher)
    assert variant.plan.donors == (0,)
    return launcher


@pytest.mark.usefixtures("once")
def test_an_input_that_dies_lends_its_memory() -> None:
    # GIVEN a launcher that may use its first input's memory again
    launcher = ready()
    (variant,) = variants(launcher)
    for seed in range(3):
        y, expected = moved(SIZE, seed=9), dying(moved(SIZE, seed=seed), moved(SIZE, seed=9))
        inputs = [moved(SIZE, seed=seed), y]
        address = inputs[0].data_ptr()
        # WHEN nobody else holds that input THEN numbers are right, and the output lies where it was
        found = launcher(inputs)
        assert_same(found, expected)
        assert found[0].data_ptr() == address
        assert torch.equal(host(y), host(moved(SIZE, seed=9)))
    assert variant.state.copied == 0


@pytest.mark.usefixtures("once")
def test_an_input_that_somebody_still_holds_is_copied_and_stays_as_it_is() -> None:
    # GIVEN a launcher that may use its first input's memory again
    launcher = ready()
    (variant,) = variants(launcher)
    y = moved(SIZE, seed=9)
    before = [moved(SIZE, seed=seed) for seed in range(3)]
    expected = [dying(x, y) for x in before]
    # WHEN the caller still holds the tensor, a view of it, or its storage
    whole = moved(SIZE, seed=0)
    first = launcher([whole, y])
    inputs = [moved(SIZE, seed=1), y]
    view = inputs[0][8:]
    second = launcher(inputs)
    inputs = [moved(SIZE, seed=2), y]
    storage = inputs[0].untyped_storage()
    third = launcher(inputs)
    # THEN results are right, and what they hold is untouched
    for found, other in zip((first, second, third), expected, strict=True):
        assert_same(found, other)
    assert torch.equal(host(whole), host(before[0]))
    assert torch.equal(host(view), host(before[1])[8:])
    kept = torch.empty(0, device=DEVICE).set_(storage, 0, (SIZE,), (1,))
    assert torch.equal(host(kept), host(before[2]))
    # AND the copies are counted
    assert variant.state.copied == 3 * SIZE * 4


@pytest.mark.usefixtures("once")
def test_an_input_that_comes_twice_is_no_longer_alone() -> None:
    # GIVEN a launcher that may use its first input's memory again
    launcher = ready()
    inputs = [moved(SIZE, seed=1)] * 2
    expected = dying(*(moved(SIZE, seed=1) for _ in range(2)))
    # WHEN one tensor is both inputs THEN numbers are right
    assert_same(launcher(inputs), expected)
    assert launches(launcher) == 1


def test_outside_of_a_backward_nothing_is_known_to_die() -> None:
    # GIVEN a launcher that may use its first input's memory again, called outside of a backward
    launcher = ready()
    (variant,) = variants(launcher)
    inputs = [moved(SIZE, seed=1), moved(SIZE, seed=9)]
    expected = dying(*inputs)
    # WHEN it is launched THEN a copy takes the input's place
    assert_same(launcher(inputs), expected)
    assert variant.state.copied == SIZE * 4


def test_nothing_is_reused_that_saves_less_than_was_asked_for() -> None:
    # GIVEN a launcher that must save a gigabyte WHEN it captures THEN it leaves inputs alone
    launcher = launcher_of(dying, options=Options(reuse=1 << 30), donatable=(0,))
    launcher([moved(SIZE), moved(SIZE)])
    assert [v.plan.donors for v in variants(launcher)] == [()]


class Gated(nn.Module):
    """Returns what its backward has saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x).tanh()
        return torch.sigmoid(self.second(h)), h


def training(keep: bool, **options: Any) -> tuple[list[Tensor], int]:
    """Outputs after the backward, and all gradients, of three steps; and how many graphs reuse an input's memory."""
    torch._dynamo.reset()
    known = set(compiled_graphs())
    torch.manual_seed(0)
    model = Gated().to(DEVICE)
    fast = torch.compile(model, backend=paramgraph, options=options)
    found = []
    for seed in range(3):
        y, h = fast(moved(256, 256, seed=seed))
        if not keep:
            del h
        (y * y).sum().backward(retain_graph=keep)
        if keep:
            (y * y).sum().backward()
            found.append(host(h))
        found.append(host(y))
        for p in model.parameters():
            assert p.grad is not None
            found.append(host(p.grad))
            p.grad = None
    graphs = set(compiled_graphs()) - known
    reusing = sum(bool(v.plan.donors) for graph in graphs for one in graph.launchers for v in variants(one))
    torch._dynamo.reset()
    return found, reusing


@pytest.mark.parametrize("keep", [False, True], ids=["once", "retained and twice"])
def test_a_training_step_that_reuses_activations_gives_the_same_bits(keep: bool) -> None:
    # GIVEN a model that returns activations which its backward also reads, and its numbers without graphs
    expected, _ = training(keep, select="never")
    # WHEN the backward may use the memory of dying activations THEN outputs and gradients are the same
    found, reusing = training(keep, reuse=1)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    # AND it did, where they died
    assert reusing == (0 if keep else 1)
