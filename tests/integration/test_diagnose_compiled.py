"""What was compiled, and never called, is diagnosed like the function itself, and is as it was afterwards."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = APART
DEVICE = pgk.device()
Given = tuple[Callable[..., Any], tuple[Any, ...], list[Any]]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    pgk.diagnose.repair()


def of(*holders: Any) -> dict[str, Any]:
    """All that can be seen of modules, optimizers, lists and tensors, with the identity of what they hold."""
    seen: dict[str, Any] = {"CPU": torch.get_rng_state(), "Python": random.getstate(), "GPU": pgk.cuda.get_rng_state()}
    for i, holder in enumerate(holders):
        if isinstance(holder, nn.Module):
            for name, tensor in [*holder.named_parameters(), *holder.named_buffers()]:
                seen |= {
                    f"{name}": tensor,
                    f"{name}.grad": tensor.grad,
                    f"{name}: which": (id(tensor), id(tensor.grad)),
                }
        elif isinstance(holder, torch.optim.Optimizer):
            for group in holder.param_groups:
                seen |= {name: value for name, value in group.items() if name != "params"}
            for n, state in enumerate(holder.state.values()):
                seen |= {f"state {n} {name}": value for name, value in state.items()}
                seen |= {f"state {n} {name}: which": id(value) for name, value in state.items()}
        else:
            seen[f"given {i}"] = holder if torch.is_tensor(holder) else repr(holder)
    return {n: v.detach().clone() if torch.is_tensor(v) else v for n, v in seen.items()}


def moved(before: dict[str, Any], *holders: Any) -> list[str]:
    """What is not as it was."""
    now = of(*holders)

    def same(a: Any, b: Any) -> bool:
        if torch.is_tensor(a) and torch.is_tensor(b):
            return a.device == b.device and torch.equal(a.cpu(), b.cpu())
        return bool(a == b)

    return [name for name in {**before, **now} if not same(before.get(name), now.get(name))]


def closure(kind: type[torch.optim.Optimizer], warm: bool, **options: Any) -> Given:
    """A training step whose model and optimizer are variables of the function around it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).to(DEVICE)
    optimizer, losses = kind(model.parameters(), lr=0.1, **options), list[float]()  # type: ignore[call-arg]

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return loss.detach()

    x = torch.randn(8, 4, device=DEVICE)
    if warm:
        step(x)
    return step, (x,), [model, optimizer, losses]


def accumulating() -> Given:
    """Gradients of before are added to, and a list of tensors is longer."""
    model, kept = nn.Linear(4, 1).to(DEVICE), list[torch.Tensor]()
    model(torch.ones(2, 4, device=DEVICE)).sum().backward()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        kept.append(loss.detach())
        return loss.detach() * random.random()

    return step, (torch.randn(8, 4, device=DEVICE),), [model, kept]


class Trainer:
    """All in one object, its step a method."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 1).to(DEVICE)
        self.ema = [p.detach().clone() for p in self.model.parameters()]
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.noise = torch.Generator(DEVICE)
        self.count = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=False)
        out = self.model(x + torch.randn(x.shape, device=DEVICE, generator=self.noise))
        loss: torch.Tensor = out.square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        for ema, p in zip(self.ema, self.model.parameters(), strict=True):
            ema.lerp_(p.detach(), 0.1)
        self.count += 1
        print("loss", loss.item())
        return loss.detach()


def method() -> Given:
    trainer = Trainer()
    trainer.step(torch.ones(2, 4, device=DEVICE))
    held = [trainer.model, trainer.optimizer, trainer.scheduler.last_epoch, trainer.noise.get_state(), *trainer.ema]
    return trainer.step, (torch.randn(8, 4, device=DEVICE),), [*held, trainer.count]


def given_as_arguments() -> Given:
    """Model and optimizer are arguments."""
    model = nn.Linear(4, 1).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss * loss.item()

    return step, (model, optimizer, torch.randn(8, 4, device=DEVICE)), [model, optimizer]


STEPS: dict[str, Callable[[], Given]] = {
    "Adam": lambda: closure(torch.optim.Adam, warm=False),
    "Adam, warm": lambda: closure(torch.optim.Adam, warm=True),
    "accumulating": accumulating,
    "a method": method,
    "all as arguments": given_as_arguments,
}


@pytest.mark.parametrize("made", STEPS.values(), ids=STEPS)
def test_a_compiled_step_does_not_train_and_gets_the_answer_of_the_step(
    made: Callable[[], Given], capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a training step, and the same compiled, which nobody has called
    step, args, held = made()
    before = of(*held)
    known = pgk.diagnose(step, *args)
    assert not moved(before, *held), "by the function itself"
    capsys.readouterr()
    # WHEN the compiled one is diagnosed
    asked = pgk.diagnose(torch.compile(step, backend="paramgraph"), *args)
    # THEN nothing has moved
    assert not moved(before, *held)
    # AND what a capture would refuse is told with the same classes, at the same lines
    catalogue = {each.id: each for each in pgk.diagnose.catalogue()}
    refused = [(f.code, f.frame) for f in known if not catalogue[f.code].silent]
    assert [(f.code, f.frame) for f in asked][: len(refused)] == refused, f"{known}\n{asked}"
    assert "raises" not in asked.codes
    assert capsys.readouterr().out.count("loss") <= 1


def test_a_module_that_has_no_copy_is_looked_at_itself() -> None:
    # GIVEN a module that holds what nobody can copy
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.ready = (x for x in range(3))  # a generator
            self.latest = self.inner.weight * 2  # made by an operation

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.inner(x)
            return y * y.sum().item()

    model, x = Net().to(DEVICE), torch.randn(2, 4, device=DEVICE)
    before = of(model)
    # WHEN diagnosed THEN its own line is told, and it is as it was
    found = pgk.diagnose(torch.compile(model, backend="paramgraph"), x)
    assert [(f.code, f.frame.text) for f in found if f.frame] == [("sync-item", "return y * y.sum().item()")]
    assert not moved(before, model)


def test_a_parameterized_step_is_the_step() -> None:
    # GIVEN a parameterized step that nobody has called, and whose optimizer has no state yet
    step, args, held = closure(torch.optim.Adam, warm=False)
    before = of(*held)
    # WHEN diagnosed THEN the optimizer has none, and the answer is that of the function
    found = pgk.diagnose(pgk.parameterize(step, state=tuple(held[:2])), *args)
    assert not moved(before, *held)
    assert found.codes == pgk.diagnose(step, *args).codes == ("optimizer-not-capturable", "sync-item", "host-counter")
    # AND the same where another function calls it, or a method that was compiled
    inner = pgk.parameterize(step, state=tuple(held[:2]))
    pgk.diagnose(lambda x: inner(x) * 2, *args)
    assert not moved(before, *held)
    trainer = Trainer()
    compiled, before = torch.compile(trainer.step, backend="eager"), of(trainer.model, trainer.optimizer, trainer.ema)
    pgk.diagnose(lambda x: compiled(x) * 2, *args)
    assert not moved(before, trainer.model, trainer.optimizer, trainer.ema)


def test_other_verbs_do_not_train_either() -> None:
    # GIVEN a compiled step that nobody has called
    step, args, held = closure(torch.optim.Adam, warm=True)
    before = of(*held)
    compiled = torch.compile(step, backend="paramgraph")
    # WHEN reported, or diagnosed with fixes THEN nothing has moved
    pgk.report(compiled)
    assert not moved(before, *held)
    pgk.diagnose(step, *args, fix=True)
    assert not moved(before, *held)


def test_a_branch_that_is_compiled_too_is_told_once() -> None:
    # GIVEN a compiled function with torch.cond, which asks the host in eager only
    @torch.compile(backend="paramgraph")
    def step(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))

    # WHEN diagnosed THEN it is what no graph takes, and no wait
    assert pgk.diagnose(step, torch.ones(4, device=pgk.device())).codes == ("control-flow",)
