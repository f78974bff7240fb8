"""What ``pgk.parameterize(step, state=...)`` refuses: by name, with right results, as an error where it is strict."""

# mypy: disable-error-code="no-untyped-call, index, union-attr, arg-type"
from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import paramgraph_kit as pgk
from paramgraph_kit.backend.report import Report
from tests.integration import steps

Step = Callable[..., Any]


class Plain:
    """A model, an optimizer and what a step needs besides."""

    def __init__(self, optimizer: str = "sgd") -> None:
        self.model = steps.mlp()
        self.optimizer = steps.OPTIMIZERS[optimizer](self.model.parameters())
        self.count = 0
        self.log: list[Any] = []
        self.ticks = torch.zeros(1, device="cpu")
        self.array = np.zeros(2)
        self.hidden: Any = None

    def train(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss


def counter(self: Plain, x: Any, y: Any) -> Any:
    self.count += 1
    return self.train(x, y).detach()


def grows(self: Plain, x: Any, y: Any) -> Any:
    loss = self.train(x, y).detach()
    self.log.append(loss)
    return loss


def counts_on_the_host(self: Plain, x: Any, y: Any) -> Any:
    self.ticks += 1
    return self.train(x, y).detach()


def counts_in_an_array(self: Plain, x: Any, y: Any) -> Any:
    self.array += 1
    return self.train(x, y).detach()


def python_random(self: Plain, x: Any, y: Any) -> Any:
    return self.train(x * random.random(), y).detach()


def torch_random(self: Plain, x: Any, y: Any) -> Any:
    return self.train(x * torch.rand(1, device="cpu").item(), y).detach()


def numpy_random(self: Plain, x: Any, y: Any) -> Any:
    return self.train(x * float(np.random.rand()), y).detach()


def attached_result(self: Plain, x: Any, y: Any) -> Any:
    self.train(x, y)
    return self.model(x).sum()


def attached_state(self: Plain, x: Any, y: Any) -> Any:
    self.hidden = self.model(x)
    return self.train(x, y).detach()


def item(self: Plain, x: Any, y: Any) -> Any:
    return self.train(x, y).item()


def branch(self: Plain, x: Any, y: Any) -> Any:
    loss = self.train(x, y).detach()
    return loss if loss > 1e9 else loss * 2


def on_the_cpu(self: Plain, x: Any, y: Any) -> Any:
    self.train(x, y)
    return torch.ones(2, device="cpu")


def an_object(self: Plain, x: Any, y: Any) -> Any:
    return [object(), self.train(x, y).detach()]


def moves(self: Plain, x: Any, y: Any) -> Any:
    loss = self.train(x, y).detach()
    w = self.model[0].weight
    w.data = w.data.t().contiguous().t() if w.is_contiguous() else w.data.contiguous()
    return loss


def marks(self: Plain, x: Any, y: Any) -> Any:
    x.seen = True
    return self.train(x, y).detach()


def leaves_grad_mode(self: Plain, x: Any, y: Any) -> Any:
    with torch.enable_grad():
        loss = self.train(x, y).detach()
    torch.set_grad_enabled(not torch.is_grad_enabled())
    return loss


def own_graph(self: Plain, x: Any, y: Any) -> Any:
    graph = pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(graph):
        doubled = x * 2
    graph.replay()
    return self.train(doubled, y).detach()


def replays(self: Plain, x: Any, y: Any) -> Any:
    if not self.log:
        graph = pgk.cuda.CUDAGraph()
        with pgk.cuda.graph(graph):
            self.hidden = torch.ones(5, 8, device=x.device) * 2
        self.log.append(graph)
    self.log[0].replay()
    return self.train(x + self.hidden, y).detach()


def waits(self: Plain, x: Any, y: Any) -> Any:
    loss = self.train(x, y).detach()
    pgk.cuda.synchronize()
    return loss


def copies_to_the_host(self: Plain, x: Any, y: Any) -> Any:
    loss = self.train(x, y).detach()
    self.model[0].bias.detach().cpu()
    return loss


def copies_from_pinned(self: Plain, x: Any, y: Any) -> Any:
    if not self.log:
        self.log.append(torch.ones(5, 8, device="cpu").pin_memory())
    return self.train(x + self.log[0].to(x.device, non_blocking=True), y).detach()


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    f.__name__: (f, code)
    for f, code in (
        (counter, "side-effect"),
        (grows, "side-effect"),
        (moves, "side-effect"),
        (marks, "side-effect"),
        (leaves_grad_mode, "side-effect"),
        (counts_on_the_host, "host-counter"),
        (counts_in_an_array, "host-counter"),
        (python_random, "host-random"),
        (torch_random, "host-random"),
        (numpy_random, "host-random"),
        (attached_result, "requires-grad"),
        (attached_state, "requires-grad"),
        (item, "sync-item"),
        (branch, "data-dependent-branch"),
        (on_the_cpu, "host-output"),
        (an_object, "unknown-output"),
        (own_graph, "nested-capture"),
        (replays, "replay-in-capture"),
        (waits, "synchronize"),
        (copies_to_the_host, "copy-to-cpu"),
        (copies_from_pinned, "host-memcpy"),
    )
}


def seeded() -> None:
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a.detach().cpu(), b.detach().cpu())
    if isinstance(a, list):
        return all(map(equal, a, b))
    return type(a) is type(b) and (type(a) is object or a == b)


@pytest.fixture(autouse=True)
def _gradients_wanted() -> Iterator[None]:
    with torch.enable_grad():
        yield


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name_and_runs_as_it_is(name: str) -> None:
    # GIVEN a step that a graph would get wrong, and its twin
    body, code = REFUSED[name]
    ours, theirs = Plain(), Plain()
    step = pgk.parameterize(lambda x, y: body(ours, x, y), state=ours)
    seeded()
    random_state = [random.getstate(), np.random.get_state(), torch.get_rng_state()]

    # WHEN both run, each with the same random numbers of the host
    wanted = [body(theirs, *steps.batch(n)) for n in range(5)]
    random.setstate(random_state[0])
    np.random.set_state(random_state[1])
    torch.set_rng_state(random_state[2])
    found = [step(*steps.batch(n)) for n in range(5)]

    # THEN the results are the step's own, once, and the report has the reason
    assert all(map(equal, found, wanted))
    assert equal([*ours.model.parameters()], [*theirs.model.parameters()])
    assert (ours.count, len(ours.log), ours.ticks.item()) == (theirs.count, len(theirs.log), theirs.ticks.item())
    report: Report = pgk.report(step)
    assert [reason.code for reason in report.reasons] == [code]
    assert report.rows[0].executables == 0
    assert repr(step).endswith("0 graphs)")


@pytest.mark.parametrize("name", ["counter", "python_random", "attached_result", "item"])
def test_strict_raises(name: str) -> None:
    body, code = REFUSED[name]
    plain = Plain()
    step = pgk.parameterize(lambda x, y: body(plain, x, y), state=plain, strict=True)
    seeded()
    step(*steps.batch(0))
    for _ in range(2):  # and again
        with pytest.raises(pgk.RefusedError) as caught:
            step(*steps.batch(1))
        assert caught.value.reason.code == code


def refusals_of(step: Step, *args: Any) -> list[str]:
    for _ in range(3):
        step(*args)
    return [reason.code for reason in pgk.report(step).reasons]


def test_arguments_that_need_gradients_are_refused() -> None:
    plain = Plain()
    step = pgk.parameterize(lambda x, y: plain.train(x, y).detach(), state=plain)
    x, y = steps.batch(0)

    assert refusals_of(step, x.requires_grad_(), y) == ["requires-grad"]
    assert x.grad is not None


def test_arguments_elsewhere_are_refused() -> None:
    plain = Plain()
    step = pgk.parameterize(lambda x, y, k: plain.train(x * k, y).detach(), state=plain)

    assert refusals_of(step, *steps.batch(0), torch.tensor(2.0, device="cpu")) == ["foreign-input"]


def test_objects_as_arguments_are_refused() -> None:
    plain = Plain()
    step = pgk.parameterize(lambda x, y, k: plain.train(x, y).detach(), state=plain)

    assert refusals_of(step, *steps.batch(0), object()) == ["unknown-argument"]


def test_autocast_around_the_step_is_refused_while_it_keeps_casts() -> None:
    # GIVEN a step in an autocast that keeps casts of weights from call to call
    plain = Plain()
    step = pgk.parameterize(lambda x, y: plain.train(x, y).detach(), state=plain)
    kind = pgk.device().type

    # WHEN / THEN it is refused, and without the cache it is not
    with torch.autocast(kind, torch.bfloat16):
        assert refusals_of(step, *steps.batch(0)) == ["autocast-cache"]
    with torch.autocast(kind, torch.bfloat16, cache_enabled=False):
        refusals_of(step, *steps.batch(0))
    assert pgk.report(step).rows[0].executables == 1


def test_a_tensor_that_no_root_leads_to_is_refused() -> None:
    # GIVEN a step that reads a tensor which only an object of C holds
    plain = Plain()
    hidden = torch.ones(5, 8, device=pgk.device())

    kept = ctypes.py_object(hidden.clone())
    step = pgk.parameterize(lambda x, y: plain.train(x + kept.value, y).detach(), state=plain)

    # WHEN / THEN the refusal says what it knows of it
    assert refusals_of(step, *steps.batch(0)) == ["hidden-tensor"]
    assert "a tensor of [5, 8] (torch.float32)" in pgk.report(step).reasons[0].message


def test_a_learning_rate_as_a_number_is_refused_after_a_few_values() -> None:
    # GIVEN a step whose rate is a Python number
    plain = Plain("sgd momentum")
    twin = Plain("sgd momentum")
    step = pgk.parameterize(lambda x, y: plain.train(x, y).detach(), state=plain)

    # WHEN it changes at every call
    for n in range(12):
        for each in (plain, twin):
            each.optimizer.param_groups[0]["lr"] = 0.1 / (n + 1)
        a, b = step(*steps.batch(n)), twin.train(*steps.batch(n))
        assert equal(a, b)

    # THEN it is refused, with the remedy
    (reason,) = pgk.report(step).reasons
    assert reason.code == "changing-scalar"
    assert "keep it in a tensor on the device" in reason.message
    assert pgk.report(step).rows[0].executables <= 4
    assert equal([*plain.model.parameters()], [*twin.model.parameters()])


def test_a_scheduler_that_writes_numbers_is_refused_with_the_remedy() -> None:
    # GIVEN a scheduler inside the step, over a rate that is a Python number
    plain = Plain()
    scheduler = torch.optim.lr_scheduler.StepLR(plain.optimizer, 1)

    def body(x: Any, y: Any) -> Any:
        loss = plain.train(x, y).detach()
        scheduler.step()
        return loss

    step = pgk.parameterize(body, state=(plain, scheduler))

    # WHEN / THEN
    assert refusals_of(step, *steps.batch(0)) == ["changing-scalar"]
    assert "make it a tensor on the device" in pgk.report(step).reasons[0].message
    assert plain.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**3)


def test_a_number_among_the_arguments_is_refused_after_a_few_values() -> None:
    plain, twin = Plain(), Plain()
    step = pgk.parameterize(lambda x, y, k: plain.train(x * k, y).detach(), state=plain)
    for n in range(14):
        assert equal(step(*steps.batch(n), n / 2), twin.train(steps.batch(n)[0] * (n / 2), steps.batch(n)[1]))
    assert [reason.code for reason in pgk.report(step).reasons] == ["changing-scalar"]


def test_an_optimizer_that_counts_on_the_host_is_refused_by_name() -> None:
    plain = Plain()
    plain.optimizer = torch.optim.Adam(plain.model.parameters())
    step = pgk.parameterize(lambda x, y: plain.train(x, y).detach(), state=plain)

    assert refusals_of(step, *steps.batch(0)) == ["optimizer-not-capturable"]


def test_inside_a_capture_or_a_mode_a_step_runs_as_it_is() -> None:
    # GIVEN a step that has a graph
    program = steps.lion()
    step = pgk.parameterize(program.step, state=program.state)
    for n in range(3):
        step(*program.batch(n))
    launches = pgk.report(step).rows[0].launches
    seen: list[str] = []

    class See(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    # WHEN somebody looks at all operations  THEN they see them
    with See():
        step(*program.batch(3))
    assert any("addmm" in name for name in seen)
    assert pgk.report(step).rows[0].launches == launches


def test_mistakes_are_errors() -> None:
    program = steps.lion()
    with pytest.raises(pgk.ParamgraphError, match="takes a function or a module"):
        pgk.parameterize(3, state=program.state)
    with pytest.raises(pgk.ParamgraphError, match="takes no example inputs"):
        pgk.parameterize(program.step, 1, state=program.state)
    step = pgk.parameterize(program.step, state=program.state)
    with pytest.raises(pgk.ParamgraphError, match="pass the step itself"):
        pgk.parameterize(step, state=program.state)
    with pytest.raises(TypeError, match="missing"):  # the step's own mistakes stay its own
        step()


@pytest.mark.parametrize("how", ["with", "set_stream", "before its fork", "waits for another's event"])
def test_work_on_a_stream_that_never_waited_for_the_step_s_own_is_done_once_a_call(how: str) -> None:
    # GIVEN a step that counts on a stream of the user's, which no capture of the step's stream takes in
    model: Any = nn.Linear(4, 4).to(pgk.device())
    model.register_buffer("count", torch.zeros(1, device=pgk.device()))
    side, other = pgk.cuda.Stream(), pgk.cuda.Event()
    other.record(side)

    def step(x: torch.Tensor) -> Any:
        here = pgk.cuda.current_stream()
        if how == "set_stream":
            pgk.cuda.set_stream(side)
            model.count += 1
            pgk.cuda.set_stream(here)
        else:
            with pgk.cuda.stream(side):
                if how == "waits for another's event":
                    side.wait_event(other)
                model.count.add_(1)
                if how == "before its fork":
                    side.wait_stream(here)
        here.wait_stream(side)
        return model(x).detach()

    whole = pgk.parameterize(step, state=model)
    for number in range(5):
        # WHEN it is called THEN it counts each call once, and the report says why it is not launched
        x = torch.full((2, 4), float(number), device=pgk.device())
        assert torch.equal(whole(x), model(x))
        assert model.count.item() == number + 1
    (reason,) = pgk.report(whole).reasons
    assert reason.code == "user-stream"
    assert "stream.wait_stream(torch.cuda.current_stream())" in reason.message


@pytest.mark.parametrize("entered", ["before", "after"])
def test_a_fork_may_be_written_inside_its_stream(entered: str) -> None:
    # GIVEN a step whose second stream waits for its own, before it is entered or as the first thing there
    model, side = nn.Linear(4, 4).to(pgk.device()), pgk.cuda.Stream()

    def step(x: torch.Tensor) -> Any:
        here = pgk.cuda.current_stream()
        if entered == "after":
            side.wait_stream(here)
        with pgk.cuda.stream(side):
            if entered == "before":
                here.record_event().wait(side)
            left = model(x).detach()
        here.wait_stream(side)
        return left + 1

    # WHEN it is called THEN it is launched, with the bits of the step
    whole = pgk.parameterize(step, state=model)
    for number in range(4):
        x = torch.full((2, 4), float(number), device=pgk.device())
        assert torch.equal(whole(x), step(x))
    assert pgk.report(whole).reasons == ()
    assert pgk.report(whole).rows[0].launches == 2


def test_a_failed_capture_leaves_nothing_that_spoils_the_next_shape() -> None:
    # GIVEN a step whose optimizer reads its rate, so that each capture fails after the backward pass
    model = steps.mlp()
    rate = torch.tensor(0.01, device=pgk.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = pgk.parameterize(train, state=(model, optimizer))
    # WHEN shapes take turns
    for n in range(6):
        step(*(each[: 2 + n % 2] for each in steps.batch(n)))
    # THEN each is refused for that alone: no node of a failed capture's backward is left on its stream
    assert [reason.code for reason in pgk.report(step).reasons] == ["optimizer-sync"]


@pytest.mark.parametrize(("indexed", "code"), [("list", "sync-item"), ("mask", "dynamic-shape")])
def test_a_failed_capture_is_explained_by_what_its_local_variables_are(indexed: str, code: str) -> None:
    # GIVEN two steps with the same line, which reads back a value or makes a size of values
    total = torch.zeros((), device=pgk.device())

    def add(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        found, at = ([1.0, 2.0, 3.0], place) if indexed == "list" else (x, x > 0)
        chosen = found[at]
        total.add_((x * chosen).sum())
        return total.clone()

    step = pgk.parameterize(add, state=(total,))
    # WHEN captured
    for _ in range(3):
        step(torch.ones(4, device=pgk.device()), torch.tensor(1, device=pgk.device()))
    # THEN each is told as what it is
    assert [reason.code for reason in pgk.report(step).reasons] == [code]
