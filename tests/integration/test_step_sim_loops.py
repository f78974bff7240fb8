"""Training loops around ``pgk.parameterize(step, state=...)``: evaluation between steps, names, what never rests."""

# mypy: disable-error-code="no-untyped-call, index, union-attr, operator, import-not-found, no-any-return"
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from tests.integration import steps
from tests.integration.test_step_sim import equal

scale = 0.0  # named like an attribute of the model below


@pytest.mark.parametrize("strict", [False, True])
def test_a_step_may_bring_its_model_back_to_training(strict: bool) -> None:
    # GIVEN a step that begins with model.train(), and a loop that evaluates now and then
    def made() -> steps.Program:
        program = steps.simple(steps.OPTIMIZERS["sgd momentum"], dropout=0.2)
        inner = program.step

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            program.model.train()
            loss: torch.Tensor = inner(x, y)
            return loss

        return steps.Program(step, program.state, program.model, steps.batch)

    ours, theirs = made(), made()
    step = pgk.parameterize(ours.step, state=ours.state, strict=strict)
    random = [pgk.cuda.get_rng_state()] * 2
    for number in range(16):
        results = []
        for n, (call, program) in enumerate(((step, ours), (theirs.step, theirs))):
            pgk.cuda.set_rng_state(random[n])
            results.append(call(*program.batch(number)))
            random[n] = pgk.cuda.get_rng_state()
            if number % 4 == 3:
                program.model.eval()
                with torch.no_grad():
                    program.model(steps.batch(99)[0])

        # THEN results and state are equal, dropout's numbers included
        assert equal(*results), f"results of step {number} differ"
        assert equal(steps.values_of(ours), steps.values_of(theirs))

    # AND all steps but those after an evaluation are launched, and nothing is refused
    report = pgk.report(step)
    assert report.reasons == ()
    assert (report.rows[0].executables, report.rows[0].launches) == (1, 16 - 2 - 3)


def test_a_loop_may_use_a_global_name_that_is_an_attribute_in_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step that reads an attribute, and a global variable of that name, which every call finds changed
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = steps.mlp(), 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x) * self.scale
            return out

    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = pgk.parameterize(steps.basic(model, optimizer), state=(model, optimizer))

    # WHEN it is called  THEN that variable does not count, and the attribute does
    for number in range(6):
        monkeypatch.setitem(globals(), "scale", number)
        step(*steps.batch(number))
    assert pgk.report(step).rows[0].launches == 4
    model.scale = 0.25
    step(*steps.batch(6))
    assert pgk.report(step).rows[0].launches == 4


def test_a_global_that_the_step_reads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    program, twin = (steps.simple(steps.OPTIMIZERS["sgd"]) for _ in range(2))
    step = pgk.parameterize(lambda x, y: program.step(x * scale, y), state=program.state)
    for number in range(9):
        monkeypatch.setitem(globals(), "scale", 1.0 + number // 3)
        x, y = steps.batch(number)
        assert equal(step(x, y), twin.step(x * scale, y))
    assert pgk.report(step).rows[0].executables == 3


def test_a_module_that_the_step_imports_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step that imports its settings as it runs
    (tmp_path / "settings_of_a_step.py").write_text("scale = 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    program, twin = (steps.simple(steps.OPTIMIZERS["sgd"]) for _ in range(2))

    def scaled(inner: Any) -> Any:
        def call(x: torch.Tensor, y: torch.Tensor) -> Any:
            import settings_of_a_step as settings

            return inner(x * settings.scale, y)

        return call

    step, plain = pgk.parameterize(scaled(program.step), state=program.state), scaled(twin.step)

    # WHEN they change between calls  THEN the bits are right
    for number in range(9):
        assert equal(step(*steps.batch(number)), plain(*steps.batch(number)))
        if number in (3, 6):
            monkeypatch.setattr("settings_of_a_step.scale", 1.0 + number)
    assert pgk.report(step).rows[0].executables == 3


def halved(program: steps.Program) -> None:
    for p in program.model.parameters():
        p.data = p.data * 0.5


def renamed(program: steps.Program) -> None:
    program.model[1] = nn.Tanh()


def counted(program: steps.Program) -> None:
    if not hasattr(program.model, "seen"):  # as AveragedModel counts
        program.model.register_buffer("seen", torch.zeros(()))
    program.model.seen.add_(1)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (halved, "its state lies elsewhere"),
        (renamed, "holds something else"),
        (counted, "seen, on the CPU, holds something else"),
    ],
)
def test_what_never_fits_is_not_captured_for_ever(change: Any, where: str) -> None:
    # GIVEN a loop that moves or exchanges something before every call
    ours, theirs = (steps.simple(steps.OPTIMIZERS["sgd momentum"]) for _ in range(2))
    step = pgk.parameterize(ours.step, state=ours.state)

    # WHEN it runs  THEN the bits are right, and after a few graphs it is refused with the reason
    for number in range(14):
        for program in (ours, theirs):
            change(program)
        assert equal(step(*ours.batch(number)), theirs.step(*theirs.batch(number)))
    (reason,) = pgk.report(step).reasons
    assert reason.code == "too-many-variants"
    assert "captured 8 times" in reason.message
    assert where in reason.message
    assert equal(steps.values_of(ours), steps.values_of(theirs))


def test_many_states_that_take_turns_all_come_to_graphs() -> None:
    # GIVEN a step with a head for each of twelve tasks, more than are captured in a row without a launch
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.task, self.body = "0", nn.Linear(8, 8)
            self.heads = nn.ModuleDict({str(n): nn.Linear(8, 4) for n in range(12)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.heads[self.task](torch.relu(self.body(x)))
            return out

    models = [Heads().to(pgk.device()) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    ours, theirs = map(steps.basic, models, optimizers)
    step = pgk.parameterize(ours, state=(models[0], optimizers[0]))

    # WHEN they take turns  THEN the bits are right
    for number in range(60):
        for model in models:
            model.task = str(number % 12)
        assert equal(step(*steps.batch(number)), theirs(*steps.batch(number)))
        if number == 11:  # AND capturing pauses with the reason
            assert "captured 8 times" in pgk.report(step).reasons[0].message

    # AND goes on when the first of them returns, until each has its graph
    report = pgk.report(step)
    assert report.reasons == ()
    assert report.rows[0].executables == 12
    assert equal(list(models[0].parameters()), list(models[1].parameters()))


def test_a_variable_of_a_closure_that_is_gone_is_missed_as_without_a_graph() -> None:
    # GIVEN a step that is launched and reads a variable of the function around it
    model = nn.Linear(4, 4).to(pgk.device())
    factor = 2.0

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.mul(model(x), factor).detach()

    graphed = pgk.parameterize(step, state=model)
    x = torch.ones(2, 4, device=pgk.device())
    for _ in range(4):
        graphed(x)
    assert pgk.report(graphed).rows[0].launches > 0

    def forget() -> None:
        nonlocal factor
        del factor

    # WHEN the variable is deleted THEN the step says so
    forget()
    for call in (step, graphed):
        with pytest.raises(NameError, match="factor"):
            call(x)


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * (_scaled.factor if "on" in _switches else 1.0)  # type: ignore[attr-defined]


_scaled.factor = 2.0  # type: ignore[attr-defined]
_switches = {"on"}


def test_what_functions_and_sets_hold_counts_at_each_call() -> None:
    # GIVEN a step whose helper reads an attribute of its own, and a set
    model = nn.Linear(4, 4).to(pgk.device())

    def step(x: torch.Tensor) -> torch.Tensor:
        return _scaled(model(x)).detach()

    graphed = pgk.parameterize(step, state=model)
    x = torch.ones(2, 4, device=pgk.device())
    for number in range(12):
        # WHEN the attribute or the set changes THEN the next call computes with what they hold then
        if number == 5:
            _scaled.factor = 3.0  # type: ignore[attr-defined]
        if number == 8:
            _switches.remove("on")
        if number == 10:
            _switches.add("on")
        assert torch.equal(graphed(x), step(x))
    # AND what stays the same is launched
    assert pgk.report(graphed).rows[0].launches > 0


@pytest.mark.parametrize("lazily", [torch.conj, torch._neg_view, torch.Tensor.requires_grad_])
def test_a_carried_state_that_becomes_lazy_is_read_as_what_it_is(lazily: Any) -> None:
    # GIVEN a step that carries a complex state from call to call
    model = nn.Linear(4, 4).to(pgk.device())
    carried = {"hidden": torch.zeros(4, dtype=torch.complex64, device=pgk.device())}

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            carried["hidden"] = carried["hidden"] * 0.5 + torch.complex(model(x), x)
            return carried["hidden"].clone()

    graphed = pgk.parameterize(step, state=(model, carried))
    x, found = torch.arange(4.0).to(pgk.device()), []
    for call in (graphed, step):
        carried["hidden"] = torch.zeros(4, dtype=torch.complex64, device=pgk.device())
        for number in range(9):
            # WHEN somebody puts a lazy one in its place THEN the next call reads its numbers
            if number in (5, 7):
                carried["hidden"] = lazily(carried["hidden"].detach())
            found.append(call(x + number))
    assert all(torch.equal(a.detach().cpu(), b.detach().cpu()) for a, b in zip(found[:9], found[9:], strict=True))
    assert pgk.report(graphed).rows[0].launches > 0


class Instances(OrderedDict[str, Any]):
    """As a table of activations in a library: each reading makes another object."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.written = getattr(self, "written", 0) + 1


class Counted(list[Any]):
    """A list that counts who looks at it."""

    looked = 0

    def __iter__(self) -> Iterator[Any]:
        self.looked += 1
        return super().__iter__()


ACTIVATIONS = Instances(relu=nn.ReLU, tanh=nn.Tanh)
SCALES = Counted([2.0, 3.0])


def test_containers_that_compute_what_they_hold_are_looked_at_as_they_are() -> None:
    # GIVEN a step whose code names containers that do something when they are read
    weight = nn.Parameter(torch.ones(4, device=pgk.device()))

    def step(x: torch.Tensor) -> torch.Tensor:
        return ACTIVATIONS["tanh"](weight.detach() * x) * SCALES[1]

    whole = pgk.parameterize(step, state=weight)
    written, looked = ACTIVATIONS.written, SCALES.looked
    # WHEN called THEN it is launched, and nothing was made or counted by looking
    for number in range(5):
        x = torch.full((4,), float(number), device=pgk.device())
        assert torch.equal(whole(x), step(x))
    assert pgk.report(whole).reasons == ()
    assert pgk.report(whole).rows[0].launches == 3
    assert (ACTIVATIONS.written, SCALES.looked) == (written, looked)
    # AND what is put into them counts
    ACTIVATIONS["tanh"] = nn.ReLU
    SCALES[1] = 5.0
    assert torch.equal(whole(x), step(x))


def test_a_set_that_a_step_reads_keeps_its_order() -> None:
    # GIVEN a set whose order says in which order it was filled, and a step that goes through it
    names = {f"name {n}" for n in range(40)} | {f"{n} more" for n in range(40)}
    for n in range(30):
        names.discard(f"name {n}")
    order = list(names)

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * float(list(names).index(order[0]) + len(names))

    graphed = pgk.parameterize(step, state=[])
    # WHEN captured and launched THEN it is as it was, and one graph serves all calls
    for number in range(6):
        x = torch.full((3,), float(number)).to(pgk.device())
        assert torch.equal(graphed(x), step(x))
        assert list(names) == order
    assert pgk.report(graphed).rows[0].executables == 1
    assert pgk.report(graphed).rows[0].launches >= 4
