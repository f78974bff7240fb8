"""Coverage counts what runs: also what autograd runs eagerly between the backwards of compiled parts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace.model import EAGER, Partition, Trace

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="nobody hears of single kernels on a GPU"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # that Dynamo asks for behind a break, and hides
]
DEVICE = pgk.device()
OF_LOSSES = ("MeanBackward0", "PowBackward0", "SoftplusBackward0", "NegBackward0")


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def watched(step: Callable[[], Any], calls: int = 3) -> tuple[Trace, Counter[tuple[str, str]]]:
    """What a watch saw of some steps, and every operation of a backward pass in no graph, with its node."""
    step()
    step()
    ran: Counter[tuple[str, str]] = Counter()
    hear = driver().hear
    assert hear is not None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # or Dynamo compiles it, in frames that it leaves alone
    def tell(operation: str) -> None:
        node = torch._C._current_autograd_node()
        if node is not None:
            ran[operation, node.name()] += 1

    with hear(tell), pgk.watch() as trace:
        for _ in range(calls):
            step()
    return trace, ran


def rows(trace: Trace) -> list[Partition]:
    return [part for part in trace.partitions if part.graph == EAGER]


def said(trace: Trace) -> dict[str, str]:
    """What is said of each line that ran eager, by its text."""
    reasons = [part.reasons[0] for part in rows(trace)]
    return {reason.frame.text if reason.frame else "": reason.message for reason in reasons}


def behind(trace: Trace) -> int:
    """How many operations of backward passes are told."""
    parts = [text for reason in said(trace).values() for text in reason.split("; ") if not text.startswith("not ")]
    return sum(int(text.split()[0].replace(",", "")) for text in parts if "backward" in text or "autograd" in text)


def trained(model: nn.Module, *, compile_it: bool = True) -> Callable[[], None]:
    net = model.to(DEVICE)
    compiled: Any = torch.compile(net, backend="paramgraph") if compile_it else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(4, 5, 8, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        compiled(x).pow(2).mean().backward()
        optimizer.step()

    return step


class Between(nn.Module):
    """Two operations of its own between compiled parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def between(self, h: Tensor) -> Tensor:
        return torch.softmax(h, -1) * 2

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.between(self.first(x)))
        return out


class Picks(Between):
    """Only a view: nothing is launched for it going forward."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def between(self, h: Tensor) -> Tensor:
        return h[:, 0]


class Loops(nn.Module):
    """A frame that Dynamo leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 2), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        for n, expert in enumerate(self.experts):
            chosen = weights[..., n : n + 1]
            if chosen.sum().item() >= 0:
                x = x + expert(x) * chosen
        return x


@pytest.mark.parametrize("model", [Between, Picks, Loops])
def test_every_operation_of_the_backward_is_in_a_graph_or_at_a_line(model: type[nn.Module]) -> None:
    # GIVEN a model that runs partly eager WHEN three training steps are watched
    trace, ran = watched(trained(model()))
    # THEN what autograd ran in no graph is told, but for the loss, which is outside of the call
    inside = {key: n for key, n in ran.items() if key[1] not in OF_LOSSES and "Accumulate" not in key[1]}
    assert sum(inside.values()) > 0
    assert behind(trace) == sum(inside.values()), (said(trace), ran)


def test_it_is_told_at_the_line_of_the_forward() -> None:
    trace, _ = watched(trained(Between()))
    told = said(trace)["return torch.softmax(h, -1) * 2"]
    assert told.startswith("6 operations ran here in no graph: aten._softmax x3, aten.mul x3; ")
    assert "6 operations of its backward pass ran in no graph: " in told
    assert "aten._softmax_backward_data x3" in told
    # AND a view's at the break
    trace, _ = watched(trained(Picks()))
    (text,) = said(trace).values()
    assert text.startswith("3 operations of its backward pass ran in no graph: aten.copy_ x3; graph break: ")


def test_gradients_that_meet_between_graphs_are_counted() -> None:
    # GIVEN a critic that is called twice in one backward pass
    critic = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 1)).to(DEVICE)
    compiled: Any = torch.compile(critic, backend="paramgraph")
    x = torch.randn(4, 8, device=DEVICE)

    def step() -> None:
        critic.zero_grad()
        (F.softplus(-compiled(x)).mean() + F.softplus(compiled(x + 1)).mean()).backward()  # type: ignore[no-untyped-call]

    # WHEN watched THEN the sums of its gradients are told: four parameters, three steps
    trace, ran = watched(step)
    (row,) = rows(trace)
    assert row.reasons[0].code == "gradients-added"
    assert "12 operations of autograd's own ran in no graph" in row.reasons[0].message, ran
    assert behind(trace) == 12


def test_a_step_that_is_compiled_whole_has_no_such_line() -> None:
    trace, ran = watched(trained(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))))
    assert {node for _, node in ran} <= {*OF_LOSSES}
    assert not rows(trace)


def test_what_is_differentiated_twice_or_outside_of_the_call_is_not_blamed_on_it() -> None:
    # GIVEN a penalty on gradients, whose nodes are made in a backward pass, beside a compiled model with a break
    net, head = Between().to(DEVICE), nn.Linear(8, 1).to(DEVICE)
    compiled: Any = torch.compile(net, backend="paramgraph")
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)

    def step() -> None:
        (slope,) = torch.autograd.grad(torch.tanh(head(x)).sum(), x, create_graph=True)
        (compiled(x.detach()).mean() + slope.norm()).backward()

    # WHEN watched THEN the break's own backward is told, and, once, what is added to four gradients
    trace, _ = watched(step)
    assert behind(trace) == 6 + 12, said(trace)


def test_another_thread_of_the_users_makes_it_unknown_and_not_wrong() -> None:
    # GIVEN two threads that go forward at the same time, each with its own numbers
    step = trained(Between())

    def both() -> None:
        step()
        other = threading.Thread(target=lambda: torch.tanh(torch.ones(3, device=DEVICE, requires_grad=True)).sum())
        other.start()
        other.join()
        step()

    # WHEN watched THEN lines are right as far as they are told
    trace, _ = watched(both)
    assert set(said(trace)) >= {"return torch.softmax(h, -1) * 2"}
    assert behind(trace) <= 12
    # AND it is told that some are not counted, and which
    (text,) = [text for text in said(trace).values() if text.startswith("not counted: operations of backward passes")]
    assert "as several threads have run forwards (" in text
    assert "aten._softmax_backward_data" in text


@pytest.mark.parametrize("model", [Between, nn.Linear])
def test_gradients_that_are_added_to_those_that_parameters_have_are_counted(model: Callable[..., nn.Module]) -> None:
    # GIVEN a step whose gradients add up, compiled as a whole or with a break
    net = (model() if model is Between else model(8, 8)).to(DEVICE)
    compiled: Any = torch.compile(net, backend="paramgraph")
    other = nn.Linear(8, 8).to(DEVICE)  # beside it, and none of the call's
    x = torch.randn(4, 8, device=DEVICE)

    def step() -> None:
        (compiled(x).pow(2).mean() + other(x).pow(2).mean()).backward()

    # WHEN watched THEN what autograd adds for each of its parameters is told, and nothing of the other's
    trace, ran = watched(step)
    added = sum(n for key, n in ran.items() if "Accumulate" in key[1])
    parameters = len([*net.parameters()])
    assert added == 3 * (parameters + 2), ran
    row = next(part for part in rows(trace) if part.reasons[0].code == "gradients-added")
    assert f"{3 * parameters} operations of autograd's own ran in no graph" in row.reasons[0].message
