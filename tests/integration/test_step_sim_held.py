"""Whole steps that leave something with its autograd graph: a result, an attribute, what somebody else holds."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk


class _Model(nn.Module):
    last: torch.Tensor | None = None
    state: tuple[torch.Tensor, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.relu(self.first(x)))
        return y


Step = Callable[[torch.Tensor], Any]


def _loss(model: _Model, optimizer: Any, run: Any) -> Step:
    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = run(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


def _in_a_dict(model: _Model, optimizer: Any, run: Any) -> Step:
    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        logits = run(x)
        loss = logits.square().sum()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "logits": logits, "log": loss.detach()}

    return step


def _attribute(model: _Model, optimizer: Any, run: Any) -> Step:
    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        model.last = run(x).square().sum()
        model.last.backward()
        optimizer.step()
        return model.last

    return step


@pytest.fixture(autouse=True)
def _recovered() -> Iterator[None]:
    yield
    pgk.diagnose.repair()  # a generator stays in a failed capture, for the next file's tests, too


def _made(make: Any, **how: Any) -> tuple[Any, Any, _Model, _Model]:
    torch.manual_seed(0)
    ours = _Model().to(pgk.device())
    theirs = copy.deepcopy(ours)
    found = []
    for model in (ours, theirs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = torch.compile(model, **how) if how else model
        found.append((make(model, optimizer, run), (model, optimizer)))
    (step, state), (twin, _) = found
    return pgk.parameterize(step, state=state), twin, ours, theirs


def _leaves(result: Any) -> list[torch.Tensor]:
    return list(result.values()) if isinstance(result, dict) else [result]


def _alike(step: Step, twin: Step, ours: nn.Module, theirs: nn.Module, rows: int = 3) -> list[Any]:
    x = torch.randn(rows, 8).to(pgk.device())
    results = [step(x), twin(x)]
    mine, others = map(_leaves, results)
    for a, b in zip([*mine, *ours.parameters()], [*others, *theirs.parameters()], strict=True):
        assert torch.equal(a.detach(), b.detach())
        assert a.requires_grad == b.requires_grad
    return mine


def _carried(model: _Model, optimizer: Any, run: Any) -> Step:
    """Its state is detached where the next call begins, as that of an LSTM in truncated backpropagation is."""
    model.state = torch.zeros(1, device=pgk.device()), torch.zeros(1, device=pgk.device())

    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        model.state = tuple(each.detach() for each in model.state)
        y = run(x) + model.state[0].mean() * model.state[1].mean()
        model.state = y, y.square()
        loss = model.state[1].sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("make", [_loss, _in_a_dict, _attribute, _carried])
@pytest.mark.parametrize("hold", [False, True])
def test_what_a_step_returns_with_its_graph_is_no_obstacle(make: Any, hold: bool) -> None:
    # GIVEN a step that returns its loss as people do, with its graph  WHEN it is called, and every result is kept
    step, twin, ours, theirs = _made(make)
    held: list[Any] = []
    for n in range(8):
        found = _alike(step, twin, ours, theirs, rows=3 if n < 5 else 5)
        held += found if hold else []
    # THEN both shapes are launched, and all is as without a graph
    report = pgk.report(step)
    assert report.reasons == ()
    first = make is _carried  # its second call enters with what the first has left
    assert sum(row.launches for row in report.rows) >= 4 - first


def test_a_step_that_was_compiled_takes_another_shape_too() -> None:
    # GIVEN one whose model is compiled: Dynamo notes on a batch of another size which of its sizes vary
    step, twin, ours, theirs = _made(_loss, backend="paramgraph")
    for n in range(9):
        _alike(step, twin, ours, theirs, rows=3 if n < 4 else 5)
    report = pgk.report(step)
    assert report.reasons == ()
    assert sum(row.executables for row in report.rows) >= 2
    assert sum(row.launches for row in report.rows) >= 2


def test_a_graph_that_somebody_else_holds_is_named() -> None:
    # GIVEN an output that was computed outside of the step and is kept
    step, twin, ours, theirs = _made(_loss)
    kept = [ours(torch.randn(3, 8).to(pgk.device()))]
    # WHEN the step is called THEN it runs ungraphed, and the reason tells what is held, and by what
    for _ in range(5):
        _alike(step, twin, ours, theirs)
    (reason,) = pgk.report(step).reasons
    assert reason.code == "legacy-stream"
    assert (
        "a tensor of [3, 4] that was computed with gradients is still held (by list): del it, or .detach() it"
        in reason.message
    )
    assert kept


def test_a_graph_that_is_let_go_soon_is_no_obstacle() -> None:
    # GIVEN an output from outside that is kept for the first calls, and one in a circle that nobody holds
    step, twin, ours, theirs = _made(_loss)
    x = torch.randn(3, 8).to(pgk.device())
    kept: Any = [ours(x)]
    circle: list[Any] = [ours(x)]
    circle.append(circle)
    del circle
    for n in range(6):
        if n == 2:
            kept.clear()
        _alike(step, twin, ours, theirs)
    # THEN the step is graphed as soon as it can be
    report = pgk.report(step)
    assert report.reasons == ()
    assert report.rows[0].launches >= 3


def test_what_only_a_circle_holds_costs_no_launch() -> None:
    # GIVEN an output from outside in a circle that nobody holds  WHEN the step is called six times
    step, twin, ours, theirs = _made(_loss)
    circle: list[Any] = [ours(torch.randn(3, 8).to(pgk.device()))]
    circle.append(circle)
    del circle
    gc.disable()
    try:
        for _ in range(6):
            _alike(step, twin, ours, theirs)
    finally:
        gc.enable()
    # THEN it is launched from the third on, as without that circle
    report = pgk.report(step)
    assert report.reasons == ()
    assert report.rows[0].launches == 4


def test_a_backward_pass_on_the_calling_thread_goes_to_the_stream_of_what_it_meets() -> None:
    # GIVEN the loss of an earlier pass, which is kept  WHEN another one is captured, with autograd on this thread
    cuda, device = pgk.cuda, pgk.device()
    weight = torch.ones(3, device=device, requires_grad=True)
    kept = weight.square().sum()
    graph: Any = cuda.CUDAGraph()
    # THEN what accumulates the gradient is on the default stream, as it is on a thread of autograd's own
    with (
        pytest.raises(torch.AcceleratorError) as caught,
        torch.autograd.set_multithreading_enabled(False),
        cuda.graph(graph),
    ):
        weight.square().sum().backward()
    context: Any = caught.value.__context__
    assert context.error_code == 906
    assert kept.requires_grad


def test_an_argument_with_the_id_of_a_gradient_that_is_gone_is_launched() -> None:
    # GIVEN a step from its graph, and a batch to whose place in memory a gradient has left its id
    step, twin, ours, theirs = _made(_loss)
    for _ in range(4):
        _alike(step, twin, ours, theirs)
    ((graphed,),) = step._graphs.values()
    x = torch.randn(3, 8).to(pgk.device())
    graphed._guard._own[id(x)] = next(ours.parameters())
    # WHEN it is called THEN that is a launch, and no other graph is made
    launches = pgk.report(step).rows[0].launches
    assert torch.equal(step(x).detach(), twin(x).detach())
    assert pgk.report(step).rows[0].launches == launches + 1
    assert len(step._graphs) == 1


def test_what_dynamo_notes_on_a_batch_is_no_side_effect() -> None:
    # GIVEN a step that reads attributes of its batch by name, and does to it what Dynamo does  WHEN called
    model = nn.Linear(8, 4).to(pgk.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        x._dynamo_weak_dynamic_indices = {0}  # type: ignore[attr-defined]
        optimizer.zero_grad()
        loss: torch.Tensor = model(x * getattr(x, "scale", 1.0)).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    whole = pgk.parameterize(step, state=(model, optimizer))
    for _ in range(4):
        whole(torch.randn(3, 8).to(pgk.device()))
    # THEN that is no state of the step's
    assert pgk.report(whole).reasons == ()


def test_functions_that_a_step_leaves_for_later_are_told() -> None:
    # GIVEN a step that leaves functions in a list, which its loop calls behind it
    weight = torch.ones(4, device=pgk.device())
    later: list[Any] = []
    kept: list[torch.Tensor] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        later.clear()
        for i in range(2):
            x = x * weight

            def work(i: int = i, x: torch.Tensor = x) -> None:
                kept.append(x.cpu())

            later.append(work)
        return x

    launched = pgk.parameterize(step, state=weight)
    # WHEN called again and again THEN it runs as it is, and the report says why
    for i in range(4):
        launched(torch.full((4,), float(i), device=pgk.device()))
        for work in later:
            work()
    assert [float(x[0]) for x in kept] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [reason.code for reason in pgk.report(launched).reasons] == ["side-effect"]


@pytest.mark.parametrize("same", [True, False])
def test_objects_beside_tensors_in_a_list_are_put_back_if_they_are_the_same(same: bool) -> None:
    # GIVEN a step that leaves tensors in a list with a model, which is the one of before or one of its own
    model = _Model().to(pgk.device())
    later: list[Any] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        later.clear()
        for i in range(2):
            x = x * 2
            later.append((model if same else object(), i, x))
        return x

    # WHEN called again and again
    launched = pgk.parameterize(step, state=model)
    seen = []
    for i in range(5):
        launched(torch.full((4,), float(i), device=pgk.device()))
        seen += [(first is model, i, float(x[0])) for first, i, x in later]
    # THEN the list has today's tensors; from launches where nothing in it is new
    assert seen == [(same, n, i * 2.0 ** (n + 1)) for i in range(5) for n in range(2)]
    assert pgk.report(launched).rows[0].launches == (3 if same else 0)
    assert [reason.code for reason in pgk.report(launched).reasons] == ([] if same else ["side-effect"])


def _counts(x: torch.Tensor) -> torch.Tensor:
    _counts.calls += 1  # type: ignore[attr-defined]
    return x * 2


def _appends(x: torch.Tensor) -> torch.Tensor:
    _kept.append(x.sum())
    return x * 2


def _copies(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).cpu()


def _returns(x: torch.Tensor) -> Any:
    return copy.copy


_counts.calls = 0  # type: ignore[attr-defined]
_kept: list[torch.Tensor] = []
WORDS = [
    (_counts, "count behind each launch, or in a tensor on the device that the step adds to"),
    (_appends, "return what is appended, and append it behind each launch"),
    (_copies, "return the device's, and copy that behind the launch"),
    (_returns, "return these, and make the function behind the launch"),
]


@pytest.mark.parametrize(("step", "words"), WORDS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_refusal_ends_with_what_to_write(step: Step, words: str) -> None:
    # GIVEN a step that a launch would not do again WHEN parameterized THEN its reason says what to write instead
    launched = pgk.parameterize(step, state=())
    for _ in range(3):
        launched(torch.ones(3, device=pgk.device()))
    assert words in pgk.report(launched).reasons[0].message
