"""Programs as people write them, compiled and parameterized, against eager: fresh inputs, moved memory, other state."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import paramgraph_kit as pgk
from tests.sweep.checks import poison
from tests.sweep.samples import difference

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

Wrap = Callable[[Any], Any]  # what changes a function or module into the one that is looked at
Program = Callable[[Wrap], Iterator[Any]]  # gives what each call of it should give


def numbers(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(pgk.device())


def made(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make().to(pgk.device())


class Counts(nn.Module):
    """Keeps what it has seen in attributes and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen = 0, list[int]()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        y: Tensor = self.layer(x) * self.calls + len(self.seen)
        return y


def state_of_python(wrap: Wrap) -> Iterator[Any]:
    model: Any = made(Counts)
    call = wrap(model)
    for seed in range(4):
        yield call(numbers(2, 3, seed=seed)), model.calls, list(model.seen)


def checkpointed(wrap: Wrap) -> Iterator[Any]:
    def layer(x: Tensor) -> Tensor:
        return F.dropout(x.sin() * 2, 0.5)

    call = wrap(lambda x: checkpoint(layer, x, use_reentrant=False))
    for seed in range(4):
        torch.manual_seed(seed)
        x = numbers(64, seed=seed).requires_grad_()
        y = call(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        # What was dropped has no gradient, and nothing else is without.
        yield y != 0, gradient != 0


def aliases(wrap: Wrap) -> Iterator[Any]:
    def write(x: Tensor, y: Tensor) -> Any:
        x.add_(1)
        return x * y, y.sum(), x.t(), x

    call = wrap(write)
    for seed in range(6):
        whole = numbers(4, 6, seed=seed)
        x, y = (whole[:, :4], whole[:, 2:]) if seed > 2 else (whole, whole) if seed % 2 else (whole, whole.clone())
        yield call(x, y), whole


def changed_model(wrap: Wrap) -> Iterator[Any]:
    model: Any = made(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)))
    call, seeds = wrap(model), iter(range(100))

    def twice() -> list[Tensor]:
        return [call(numbers(4, 3, seed=next(seeds))) for _ in range(2)] + [b.clone() for b in model.buffers()]

    yield twice()
    model[0].weight = nn.Parameter(model[0].weight.detach() * 2)
    yield twice()
    model[0].weight.data = model[0].weight.data.t().contiguous().t()
    yield twice()
    model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()}, assign=True)
    yield twice()
    model.eval()
    yield twice()
    model[1].running_mean = torch.ones(3, device=pgk.device())
    yield twice()
    model[1].eps = 0.5
    yield twice()
    model[0].bias = None
    yield twice()
    model[2].weight = model[0].weight
    yield twice()
    model.append(nn.ReLU())
    yield twice()
    model[2].forward = lambda x: x + 1
    yield twice()


def hooks(wrap: Wrap) -> Iterator[Any]:
    model: Any = made(lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    call = wrap(model)
    yield call(numbers(4, 3))
    handle = model[0].register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,))
    yield call(numbers(4, 3))
    handle.remove()
    yield call(numbers(4, 3))


def held_results(wrap: Wrap) -> Iterator[Any]:
    call, kept = wrap(lambda x: (x.sin(), [x.cos() * k for k in range(3)], x[0])), []
    for seed in range(4):
        kept.append(call(numbers(3, 3, seed=seed)))
    yield kept
    kept[0][0].zero_()
    kept[1][1][0].zero_()
    kept.append(call(numbers(3, 3, seed=9)))
    yield kept


WAYS: dict[str, Wrap] = {
    "compiled": lambda fn: torch.compile(fn, backend="paramgraph"),
    "parameterized": pgk.parameterize,
}
# Those that torch.compile runs as eager does: it sees no hook that comes later, and stops at inputs that overlap.
COMPILED: tuple[Program, ...] = (state_of_python, changed_model, held_results)
PROGRAMS: dict[str, tuple[Program, Wrap]] = {
    f"{program.__name__} {how}": (program, wrap)
    for how, wrap in WAYS.items()
    for program in (*COMPILED, *((checkpointed, aliases, hooks) if how == "parameterized" else ()))
}


def outcome(program: Program, wrap: Wrap) -> list[Any]:
    """What each call gives, on the host, with free memory full of NaN between them."""
    torch._dynamo.reset()
    gc.collect()
    kept, found = list[Any](), list[Any]()
    for step, value in enumerate(program(wrap)):
        kept.append(poison(step)[:2])
        found.append(torch.utils._pytree.tree_map_only(Tensor, lambda x: x.detach().to("cpu", copy=True), value))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_everyday_program_computes_what_eager_computes(name: str) -> None:
    # GIVEN a program whose inputs, memory and state change between calls WHEN it runs from graphs THEN it is eager's
    program, wrap = PROGRAMS[name]
    assert difference(outcome(program, wrap), outcome(program, lambda fn: fn)) == ""


def test_a_checkpoint_draws_the_same_random_numbers_again_on_the_simulated_device() -> None:
    # GIVEN dropout under a checkpoint, eagerly WHEN its backward runs it again THEN the same numbers are dropped
    assert all(torch.equal(forward, backward) for forward, backward in outcome(checkpointed, lambda fn: fn))


def test_what_an_import_runs_is_no_code_of_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function that imports a module at its first call, which then reads much
    text = "STATE = [object() for _ in range(30_000)]\ndef read():\n    return [*STATE]\nread()\n"
    (tmp_path / "imported_late.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def late(x: Tensor) -> Tensor:
        importlib.import_module("imported_late")
        return x * 2

    call = pgk.parameterize(late)
    # WHEN it is called THEN it is a graph
    for seed in range(3):
        assert torch.equal(call(numbers(4, seed=seed)), numbers(4, seed=seed) * 2)
    assert not pgk.report(call).reasons
    assert [row.launches for row in pgk.report(call).rows] == [2]
