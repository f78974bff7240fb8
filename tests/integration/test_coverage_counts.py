"""Coverage counts what runs: what is eager in a compiled call, what was never launched, and whose graphs they are."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import driver
from paramgraph_kit.explore.steps import comparison
from paramgraph_kit.trace.model import EAGER, Trace

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="nobody hears of single kernels on a GPU")
DEVICE = pgk.device()


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """Five kernels: two products, a relu, a sum, an addition."""

    def __init__(this) -> None:  # noqa: N805 - its name is the user's affair
        super().__init__()
        this.up, this.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(this, x: Tensor) -> Tensor:  # noqa: N805
        h: Tensor = this.down(torch.relu(this.up(x)))
        return x + h


class Reads(nn.Module):
    """Reads a value behind each of two blocks: in a loop, where Dynamo cannot resume."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        largest = []
        for block in self.blocks:
            x = block(x)
            largest.append(x.abs().amax().item())
        return x * max(largest)


class Between(nn.Module):
    """Two operations in a function that is left out of compilation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def between(self, h: Tensor) -> Tensor:
        return torch.softmax(h, -1) * 2

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.second(self.between(self.first(x)))
        return h


def compiled(model: nn.Module) -> Any:
    return torch.compile(model.to(DEVICE), backend="paramgraph")


def watched(call: Callable[[Tensor], Any], calls: int = 3) -> tuple[Trace, Counter[str]]:
    """What a watch saw of some calls, and every operation that ran in no graph."""
    inputs = [torch.randn(4, 8, device=DEVICE) for _ in range(calls)]
    heard: list[str] = []
    hear = driver().hear
    assert hear is not None
    with hear(heard.append), pgk.watch() as trace, torch.no_grad():
        for each in inputs:
            call(each)
    return trace, Counter(heard)


def eager(trace: Trace) -> dict[str, str]:
    """What is said of each line that ran eager, by its text."""
    rows = [part.reasons[0] for part in trace.partitions if part.graph == EAGER]
    return {row.frame.text if row.frame else "": row.message for row in rows}


def test_what_runs_at_a_break_is_counted_line_by_line() -> None:
    # GIVEN a model with two operations between its compiled parts WHEN three calls are watched
    model = compiled(Between())
    trace, heard = watched(model)
    # THEN each operation that ran in no graph is in the first call of a partition or at its own line
    assert eager(trace)["return torch.softmax(h, -1) * 2"] == (
        "6 operations ran here in no graph: aten._softmax x3, aten.mul x3"
    )
    first_calls = sum(len(capture.nodes) for capture in trace.captures)
    assert heard.total() == first_calls + 6
    # AND the explorer puts no whole number beside it
    facts = {fact.name: fact.values for fact in comparison({"a": trace}).facts}
    assert facts["kernels in graphs"] == ("8 of 8 compiled",)
    assert facts["eager in compiled calls"] == ("at 2 lines",)
    assert "in compiled calls, at 2 lines" in pgk.explore(trace).text()


def test_a_frame_that_dynamo_leaves_alone_is_no_hundred_percent() -> None:
    # GIVEN a break in a loop, after which Dynamo compiles only what the loop calls
    model = compiled(Reads())
    trace, _ = watched(model)
    # WHEN reported THEN the report says whose lines are eager, at the function
    report = pgk.report(model)
    assert " %)" not in str(report)
    assert "4 of 4 of the compiled parts; Reads.forward itself is eager, and not counted" in str(report)
    (reason,) = [reason for reason in report.reasons if reason.code == "graph-break"]
    assert reason.frame is not None
    assert reason.frame.function == "forward"
    assert "Reads.forward itself is eager" in repr(report)
    # AND what was watched counts what ran there
    text = "largest.append(x.abs().amax().item())"
    assert eager(trace)[text].startswith("18 operations ran here in no graph: aten.abs x6, aten.amax x6")


def test_a_wrapper_of_torchs_is_no_line_of_the_users() -> None:
    # GIVEN a function under torch.no_grad() that Dynamo leaves alone
    reads = Reads().to(DEVICE)

    @torch.no_grad()
    def decode(x: Tensor) -> Tensor:
        for _ in range(2):
            x = reads.blocks[0](x) * x.mean().item()
        return x

    model = torch.compile(decode, backend="paramgraph")
    watched(model)
    # WHEN reported THEN it is called by its own name, at its own line
    reasons = pgk.report(model).reasons
    (reason,) = [reason for reason in reasons if "left" in reason.message]
    assert "decode alone" in reason.message, reasons
    assert reason.frame is not None
    assert reason.frame.file == __file__


def test_a_model_of_which_parts_are_compiled_is_no_hundred_percent() -> None:
    # GIVEN a model whose first half is compiled
    model = nn.Sequential(Block(), nn.Linear(8, 2)).to(DEVICE)
    model[0].compile(backend="paramgraph")
    watched(model)
    # WHEN / THEN
    assert "4 of 4 of the compiled parts; what runs around them is eager, and not counted" in str(pgk.report(model))
    assert " of all that is compiled (100 %)" in str(pgk.report())


def test_nothing_that_was_never_launched_counts_as_covered() -> None:
    # GIVEN a model that is called once with each of three shapes, one of them twice
    model = torch.compile(Block().to(DEVICE), backend="paramgraph", dynamic=False)
    with torch.no_grad():
        for rows in (2, 3, 4, 4):
            model(torch.ones(rows, 8, device=DEVICE))
    # WHEN reported THEN the graphs that nobody launches are no coverage, and each is named
    told = str(pgk.report(model))
    assert "12 of 12, 8 of them in graphs that were never launched" in told
    assert " %)" not in told
    assert "never launched" in told
    assert "captured once, and not called again like that" in told
    # and nothing of the kind once they are
    with torch.no_grad():
        for rows in (2, 3):
            model(torch.ones(rows, 8, device=DEVICE))
    told = str(pgk.report(model))
    assert "12 of 12 (100 %)" in told
    assert "never launched" not in told


def test_a_trace_says_what_it_has_captured_and_never_launched() -> None:
    # GIVEN a model that is watched in its first call WHEN looked at THEN its graph was for nothing so far
    model = compiled(Block())
    told = pgk.explore(watched(model, calls=1)[0]).text()
    assert "  warning     the capture above was never launched while this was recorded" in told
    # AND no longer once it is launched
    assert "warning" not in pgk.explore(watched(model)[0]).text()


def test_steps_side_by_side_say_it_too() -> None:
    # GIVEN a model that is called with two shapes, one of them once
    model = torch.compile(Block().to(DEVICE), backend="paramgraph", dynamic=False)
    inputs = iter([torch.ones(rows, 8, device=DEVICE) for rows in (2, 2, 3)])
    shapes, _ = watched(lambda _: model(next(inputs)))
    again, _ = watched(lambda x: model(x[:2]))
    # WHEN compared with a step in which each graph is launched THEN what was for nothing is no coverage
    facts = {fact.name: fact.values for fact in comparison({"shapes": shapes, "again": again}).facts}
    assert facts["kernels in graphs"] == ("8 of 8, 4 of them never launched", "4 of 4")
    assert "1 of the captures above was never launched" in pgk.explore(shapes).text()


def test_a_model_that_runs_eager_in_every_call_is_told_so() -> None:
    # GIVEN a compiled function of which Dynamo makes no graph at all
    def loses(x: Tensor) -> Tensor:
        for _ in range(2):
            x = x * x.mean().item()
        return x

    model = torch.compile(loses, backend="paramgraph")
    trace, heard = watched(model)
    # WHEN / THEN "call it once" is not all that is said, and a watch counts what ran
    assert "if it was called, each call is eager" in str(pgk.report(model))
    (said,) = eager(trace).values()
    assert said.startswith(f"{heard.total()} operations ran here in no graph")


class Callable_:  # noqa: N801 - an object that can be called
    def __call__(self, x: Tensor) -> Tensor:
        return x * 3


def forward_only() -> Any:
    model = Block().to(DEVICE)
    model.forward = torch.compile(model.forward, backend="paramgraph")  # type: ignore[method-assign]
    return model


def compiled_in_place() -> Any:
    model = Block().to(DEVICE)
    model.compile(backend="paramgraph")
    return model


def times(x: Tensor, by: float) -> Tensor:
    return x * by


def without_gradients() -> Any:
    @torch.no_grad()
    def double(x: Tensor) -> Tensor:
        return x * 2

    return torch.compile(double, backend="paramgraph")


WAYS: dict[str, Callable[[], Any]] = {
    "a module": lambda: compiled(Block()),
    "its compile()": compiled_in_place,
    "its forward": forward_only,
    "a container": lambda: compiled(nn.Sequential(Block(), Block())),
    "torch's own": lambda: compiled(nn.Linear(8, 8)),
    "a function": lambda: torch.compile(lambda x: x * 2, backend="paramgraph"),
    "a partial": lambda: functools.partial(torch.compile(times, backend="paramgraph"), by=2.0),
    "an object": lambda: torch.compile(Callable_(), backend="paramgraph"),
    "without gradients": without_gradients,
    "fewer guards": lambda: pgk.compile(Block().to(DEVICE), guards="inputs"),
    "a function, fewer guards": lambda: pgk.compile(lambda x: x * 2, guards="inputs"),
}


@pytest.mark.parametrize("way", WAYS)
def test_whoever_compiles_the_whole_is_told_of_the_whole(way: str) -> None:
    # GIVEN something compiled in one of the ways that there are, after another of its kind that is no more
    watched(WAYS[way]())
    torch._dynamo.reset()
    model = WAYS[way]()
    trace, _ = watched(model)
    # WHEN reported
    report = pgk.report(model)
    # THEN the report is of its graph alone, and launched as often as was seen
    (row,) = report.rows
    assert row.launches == len(trace.launches) == 2
    assert f"{row.kernels} of {row.kernels} (100 %)" in str(report)
    assert not eager(trace)


def test_a_step_without_a_graph_says_which_call_is_captured() -> None:
    # GIVEN a step that fails at first
    weight = torch.zeros(3, device=DEVICE)

    def train(x: Tensor) -> Tensor:
        weight.add_(x)
        return weight.sum()

    step = pgk.parameterize(train, state=weight)
    for _ in range(4):
        with pytest.raises(RuntimeError, match="must match"):
            step(torch.ones(2, device=DEVICE))
    # WHEN it is reported THEN nothing is said of other captures
    (reason,) = pgk.report(step).reasons
    assert reason.code == "not-called"
    assert "ends in an error" in reason.message
    # AND calls that come to their end are launched
    for _ in range(3):
        step(torch.ones(3, device=DEVICE))
    assert [row.launches for row in pgk.report(step).rows] > [0]
    assert not pgk.report(step).reasons


def test_a_model_that_a_whole_step_calls_is_in_the_step() -> None:
    # GIVEN a compiled model whose only calls are those of a step that is captured whole
    net = nn.Sequential(Block(), nn.Linear(8, 1)).to(DEVICE)
    model, optimizer = torch.compile(net, backend="paramgraph"), torch.optim.SGD(net.parameters(), lr=0.1)

    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss: Tensor = model(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    step = pgk.parameterize(train, state=(net, optimizer))
    with pgk.watch() as trace:
        for _ in range(4):
            step(torch.randn(4, 8, device=DEVICE))
    # WHEN both are reported THEN the model was called, and by whom; the step is whole
    assert {reason.code for reason in pgk.report(model).reasons} == {"called-elsewhere"}
    assert " (100 %)" in str(pgk.report(step))
    # AND what Dynamo makes of code of ours is no break of the user's
    assert not eager(trace)


def test_what_could_not_be_traced_has_no_count_of_nothing() -> None:
    # GIVEN a function that runs as it is
    step = pgk.parameterize(lambda x: x * x.mean().item())
    _, heard = watched(step)
    assert heard.total() > 0
    # WHEN / THEN nobody knows how much of it there is
    assert "0 of an unknown number" in str(pgk.report(step))
    assert "calls run ungraphed   each" in str(pgk.report(step))


@pytest.mark.filterwarnings("ignore")  # of what torch itself traces there
def test_an_optimizers_own_step_can_be_reported() -> None:
    # GIVEN the step of an optimizer, which is code of torch's, compiled by itself
    net = nn.Linear(8, 8).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(4, 8, device=DEVICE)).sum().backward()
    step = torch.compile(optimizer.step, backend="paramgraph")
    for _ in range(3):
        step()
    # WHEN / THEN
    (row,) = pgk.report(step).rows
    assert (row.graphed, row.launches) == (True, 2)
