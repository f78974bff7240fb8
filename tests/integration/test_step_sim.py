"""``pgk.parameterize(step, state=...)`` on the simulator: every kind of step, bit for bit, for 20 steps."""

# mypy: disable-error-code="no-untyped-call, index, operator, union-attr"
from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.driver.native import build
from paramgraph_kit.launch import lent
from paramgraph_kit.launch.launcher import observers
from paramgraph_kit.launch.plan import Input
from paramgraph_kit.trace.model import Role
from tests.integration import steps

STEPS = 20


@pytest.fixture(autouse=True)
def _lending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "LEAST", 1)  # as large models do: gradients lend their memory to activations


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return bool(a == b)


def run(name: str, count: int = STEPS, **options: Any) -> tuple[Any, steps.Program]:
    """A program from graphs beside its twin without; both are compared after every step."""
    torch.manual_seed(7)
    ours, theirs = steps.PROGRAMS[name](), steps.PROGRAMS[name]()
    step = pgk.parameterize(ours.step, state=ours.state, **options)
    twin = steps.values_of(theirs)
    assert equal(steps.values_of(ours), twin)
    random = [pgk.cuda.get_rng_state()] * 2
    for number in range(count):
        results = []
        for n, (call, program) in enumerate(((step, ours), (theirs.step, theirs))):
            pgk.cuda.set_rng_state(random[n])
            results.append(call(*program.batch(number)))
            program.between(number)
            random[n] = pgk.cuda.get_rng_state()
        assert equal(*results), f"results of step {number} differ"
        assert torch.equal(*random), f"random positions after step {number} differ"
        assert equal(steps.values_of(ours), steps.values_of(theirs)), f"state after step {number} differs"
    return step, ours


@pytest.mark.parametrize("name", steps.PROGRAMS)
def test_twenty_steps_are_equal_bit_for_bit(name: str) -> None:
    # GIVEN a step and its twin  WHEN one runs from graphs for 20 steps
    step, _ = run(name, verify="off")

    # THEN both have the same bits after each step (above), and nearly all steps were launches
    report = pgk.report(step)
    assert report.reasons == ()
    kinds = {"several shapes": 4, "accumulation": 3, "accumulation outside": 2}.get(name, 1)
    assert sum(row.executables for row in report.rows) == kinds
    assert report.rows[0].launches >= STEPS - 1 - 2 * kinds


def test_gradients_lend_their_memory_to_what_is_over_before_they_are_made() -> None:
    # GIVEN a step that leaves gradients  WHEN captured and launched
    variants: list[Any] = []
    observers.append(lambda _, variant: variants.append(variant))
    try:
        run("adamw fused", 6)
    finally:
        observers.pop()
    # THEN some activations lie in gradients
    placements = variants[0].plan.placements
    assert any(p.role is Role.WORKSPACE and isinstance(p.slot, Input) for p in placements)


def replaced(program: steps.Program) -> None:
    for p in program.model.parameters():
        p.data = p.data.clone() * 0.5


def assigned(program: steps.Program) -> None:
    values = {k: v.clone() * 0.5 for k, v in program.model.state_dict().items()}
    program.model.load_state_dict(values, assign=True)
    optimizer = program.state[1]
    optimizer.param_groups[0]["params"][:] = list(program.model.parameters())
    optimizer.state.clear()


def loaded(program: steps.Program) -> None:
    program.model.load_state_dict({k: v.clone() * 0.5 for k, v in program.model.state_dict().items()})


def checkpointed(program: steps.Program) -> None:
    file = io.BytesIO()
    torch.save([program.model.state_dict(), program.state[1].state_dict()], file)
    file.seek(0)
    model, optimizer = torch.load(file)
    program.model.load_state_dict(model)
    program.state[1].load_state_dict(optimizer)


def moved(program: steps.Program) -> None:
    program.model.to(torch.float64).to(torch.float32)


def swapped(program: steps.Program) -> None:
    for p in list(program.model.parameters()):
        torch.utils.swap_tensors(p, nn.Parameter(p.detach().clone() * 0.5))


def exchanged(program: steps.Program) -> None:
    first = program.model[0]
    first.weight = nn.Parameter(first.weight.detach().clone() * 0.5)
    optimizer = program.state[1]
    del optimizer.state[optimizer.param_groups[0]["params"][0]]
    optimizer.param_groups[0]["params"][0] = first.weight


def frozen(program: steps.Program) -> None:
    program.model[0].weight.requires_grad_(False)
    program.model[0].weight.grad = None


def other_rate(program: steps.Program) -> None:
    program.state[1].param_groups[0]["lr"] = 0.05


def other_layer(program: steps.Program) -> None:
    program.model[1] = nn.Tanh()


def other_dropout(program: steps.Program) -> None:
    program.model[2].p = 0.5


def evaluated(program: steps.Program) -> None:
    program.model.eval()
    with torch.no_grad():
        program.model(program.batch(99)[0])
    program.model.train()


def in_eval_mode(program: steps.Program) -> None:
    program.model.eval()


def hooked(program: steps.Program) -> None:
    program.model[1].register_forward_hook(lambda module, args, out: out * 2)


def hooked_gradient(program: steps.Program) -> None:
    program.model[0].bias.register_hook(lambda g: g * 2)


def halved_gradients(program: steps.Program) -> None:
    for p in program.model.parameters():
        p.grad = None


def transposed(program: steps.Program) -> None:
    weight = program.model[0].weight
    square = nn.Parameter(torch.eye(16, 8, device=weight.device))
    weight.data = square.data


def other_forward(program: steps.Program) -> None:
    layer: Any = program.model[1]
    layer.forward = lambda x: x * 0.5


MUTATIONS = {
    f.__name__: f
    for f in (
        *(replaced, assigned, loaded, checkpointed, moved, swapped, exchanged, frozen, other_rate, other_layer),
        *(other_dropout, evaluated, in_eval_mode, hooked, hooked_gradient, halved_gradients, transposed, other_forward),
    )
}


@pytest.fixture(params=["C++", "Python"])
def checked_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launch depends on is asked in C++, or in Python alone."""
    build.prepare(wait=True)
    if request.param == "Python":
        monkeypatch.setattr(build, "_built", [])


@pytest.mark.usefixtures("checked_in")
@pytest.mark.parametrize("change", MUTATIONS)
def test_after_a_change_outside_the_bits_are_right(change: str) -> None:
    # GIVEN a step that runs from a graph
    def make() -> steps.Program:
        return steps.simple(steps.OPTIMIZERS["sgd momentum"], dropout=0.2)

    ours, theirs = make(), make()
    step = pgk.parameterize(ours.step, state=ours.state)
    mutate = MUTATIONS[change]

    # WHEN something changes between two calls, twice
    random = [pgk.cuda.get_rng_state()] * 2
    for number in range(14):
        if number in (5, 9):
            for program in (ours, theirs):
                mutate(program)
        results = []
        for n, (call, program) in enumerate(((step, ours), (theirs.step, theirs))):
            pgk.cuda.set_rng_state(random[n])
            results.append(call(*program.batch(number)))
            random[n] = pgk.cuda.get_rng_state()

        # THEN results and state are equal bit for bit, and the last calls run from a graph again
        assert equal(*results), f"results of step {number} differ"
        assert equal(steps.values_of(ours), steps.values_of(theirs)), f"state after step {number} differs"
    report = pgk.report(step)
    assert report.reasons == ()
    before = report.rows[0].launches
    step(*ours.batch(0))
    assert pgk.report(step).rows[0].launches == before + 1


@pytest.mark.usefixtures("checked_in")
def test_a_table_that_is_turned_where_it_lies_is_another_one() -> None:
    # GIVEN a step that reads a table which is no parameter
    tables = [torch.arange(64.0).view(8, 8).to(steps.device()) for _ in range(2)]
    models = [nn.Linear(8, 4).to(steps.device()) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())

    def made(model: nn.Module, table: torch.Tensor) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            loss = model(x @ table).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    ours, theirs = (made(m, t) for m, t in zip(models, tables, strict=True))
    graphed = pgk.parameterize(ours, state=(models[0], tables[0]))
    x = steps.batch(0)[0]
    for _ in range(4):
        assert equal(graphed(x), theirs(x))

    # WHEN it is turned at the same address THEN results are those of the turned one
    for table in tables:
        table.t_()
    for _ in range(4):
        assert equal(graphed(x), theirs(x))


@pytest.mark.usefixtures("checked_in")
@pytest.mark.parametrize(
    "change",
    [
        lambda p: setattr(p, "grad", p.grad.clone()),
        lambda p: setattr(p, "grad", torch.full_like(p, 3.0)),
        lambda p: setattr(p, "grad", None),
        lambda p: setattr(p.grad, "data", p.grad.data.clone() * 2),
        lambda p: setattr(p, "grad", torch.ones_like(p.t()).t() if p.dim() == 2 else torch.ones_like(p)),
        lambda p: p.grad.mul_(0.5),
    ],
)
def test_gradients_that_add_up_may_be_changed_between_steps(change: Any) -> None:
    # GIVEN a step that leaves its gradients to add up
    models = [steps.mlp(), steps.mlp()]

    def made(model: nn.Module) -> Any:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss.detach()

        return step

    ours, theirs = map(made, models)
    graphed = pgk.parameterize(ours, state=(models[0],))
    for number in range(16):
        # WHEN one or all of them are changed between two steps
        if number in (7, 8, 12):
            for model in models:
                parameters = list(model.parameters())
                for p in parameters if number == 12 else parameters[:1]:
                    change(p)
        results = [call(*steps.batch(number)) for call in (graphed, theirs)]

        # THEN results and gradients are those of the step as it is
        assert equal(*results)
        for p, q in zip(*(model.parameters() for model in models), strict=True):
            assert equal(p.grad, q.grad)
            assert p.grad is not None
            assert q.grad is not None
            assert p.grad.stride() == q.grad.stride()
    assert pgk.report(graphed).reasons == ()
    assert pgk.report(graphed).rows[0].launches >= 8


def test_a_new_optimizer_is_another_step() -> None:
    # GIVEN a step whose optimizer is a global variable of its own
    program = steps.simple(steps.OPTIMIZERS["sgd"])
    twin = steps.simple(steps.OPTIMIZERS["sgd"])
    holders = [{"optimizer": p.state[1]} for p in (program, twin)]

    def made(p: steps.Program, held: dict[str, Any]) -> Any:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            held["optimizer"].zero_grad()
            loss = nn.functional.mse_loss(p.model(x), y)
            loss.backward()
            held["optimizer"].step()
            return loss.detach()

        return step

    plain = made(twin, holders[1])
    step = pgk.parameterize(made(program, holders[0]), state=(program.model, holders[0]))
    for number in range(12):
        if number == 6:  # WHEN the optimizer is another one
            for p, held in zip((program, twin), holders, strict=True):
                held["optimizer"] = torch.optim.SGD(p.model.parameters(), lr=0.01, momentum=0.5)

        # THEN the bits stay right
        assert equal(step(*steps.batch(number)), plain(*steps.batch(number)))
        assert equal(steps.values_of(program), steps.values_of(twin))
    assert pgk.report(step).reasons == ()
