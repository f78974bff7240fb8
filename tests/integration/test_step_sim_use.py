"""Whole steps as people use them: compiled models, many shapes, gradients that are looked at, comparison, memory."""

# mypy: disable-error-code="no-untyped-call, index, union-attr, no-any-return, unused-ignore"
from __future__ import annotations

import collections
import cProfile
import dataclasses
import gc
import os
import threading
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from tests.integration import steps
from tests.integration.fx_models import LlamaBlock
from tests.integration.test_step_sim import equal

MIB = 1 << 20


def made(name: str = "sgd momentum", **options: Any) -> tuple[Any, steps.Program, steps.Program]:
    ours, theirs = steps.PROGRAMS[name](), steps.PROGRAMS[name]()
    return pgk.parameterize(ours.step, state=ours.state, **options), ours, theirs


def alike(step: Any, ours: steps.Program, theirs: steps.Program, number: int) -> None:
    assert equal(step(*ours.batch(number)), theirs.step(*theirs.batch(number)))
    assert equal(steps.values_of(ours), steps.values_of(theirs))


@pytest.mark.parametrize(
    "kept", [torch.zeros(3), torch.zeros(3).numpy(), 0, [0]], ids=["tensor", "array", "number", "list"]
)
@pytest.mark.parametrize("read", [False, True], ids=["beside the step", "read by it"])
def test_what_the_host_keeps_beside_a_step_makes_no_other_graph(kept: Any, read: bool) -> None:
    # GIVEN a trainer that counts after each step, in what the step reads or does not
    class Trainer:
        def __init__(self) -> None:
            self.model = nn.Linear(4, 4).to(pgk.device())
            self.tallies: Any = None

        def step(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).detach()

        def counting(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).detach() + float(self.tallies if isinstance(self.tallies, int) else self.tallies[0])

        def count(self) -> None:
            if isinstance(self.tallies, int):
                self.tallies += 1
            else:
                self.tallies[0] += 1

    trainer = Trainer()
    trainer.tallies = kept
    function = trainer.counting if read else trainer.step
    step = pgk.parameterize(function, state=trainer.model)
    # WHEN called THEN it is launched, or what it reads counts
    with torch.no_grad(), pgk.watch() as trace:
        for number in range(6):
            x = torch.full((2, 4), float(number)).to(pgk.device())
            assert torch.equal(step(x), function(x))
            trainer.count()
    assert len(trace.launches) == (0 if read else 4)


@pytest.mark.parametrize("backend", ["paramgraph", "eager", "aot_eager"])
def test_compiled_models_are_part_of_the_step(backend: str) -> None:
    # GIVEN a step around a compiled model, and its twin whose partitions run ungraphed
    def build(**options: Any) -> steps.Program:
        torch.manual_seed(0)
        model = LlamaBlock().to(pgk.device())
        optimizer = torch.optim.AdamW(model.parameters(), lr=steps.rate(), capturable=True)
        compiled = torch.compile(model, backend=backend, **options)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = compiled(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def batch(number: int) -> tuple[torch.Tensor]:
            generator = torch.Generator().manual_seed(number)
            return (torch.randn(1, 8, 32, generator=generator).to(pgk.device()),)

        return steps.Program(step, (model, optimizer), model, batch)

    ours, theirs = build(), build(**({"options": {"select": "never"}} if backend == "paramgraph" else {}))
    step = pgk.parameterize(ours.step, state=ours.state)

    # WHEN / THEN each step is equal, and one graph holds all of it: the model's own partitions made none
    for number in range(6):
        alike(step, ours, theirs, number)
    report = pgk.report(step)
    assert report.reasons == ()
    assert report.rows[0].launches >= 3
    assert all(row.executables == 0 for row in pgk.report(ours.model).rows)
    torch._dynamo.reset()


COLLECTED: dict[str, int] = {"times": 0}


def count_collections(_phase: str, _information: object) -> None:
    COLLECTED["times"] += 1


def test_what_the_garbage_collector_runs_is_no_part_of_a_step() -> None:
    # GIVEN a collection in the midst of a step, a callback of somebody's that writes a global, and batches of two sizes
    def build() -> steps.Program:
        program = steps.PROGRAMS["sgd momentum"]()
        plain, batches = program.step, program.batch

        def step(*batch: Any) -> Any:
            gc.collect()
            return plain(*batch)

        def batch(number: int) -> Any:
            return tuple(x[: 4 - number % 2] for x in batches(number))

        return dataclasses.replace(program, step=step, batch=batch)

    ours, theirs = build(), build()
    step = pgk.parameterize(ours.step, state=ours.state)
    gc.callbacks.append(count_collections)
    # WHEN called THEN it is launched
    try:
        for number in range(6):
            alike(step, ours, theirs, number)
    finally:
        gc.callbacks.remove(count_collections)
    assert COLLECTED["times"] > 0
    assert pgk.report(step).reasons == ()
    assert pgk.report(step).rows[0].launches >= 2


def test_many_shapes_share_one_workspace() -> None:
    # GIVEN images of eleven sizes in turn
    def build() -> steps.Program:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ).to(pgk.device())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def batch(number: int) -> tuple[torch.Tensor]:
            side = 32 + 8 * (number % 11)
            return (torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(number)).to(pgk.device()),)

        return steps.Program(step, (model, optimizer), model, batch)

    theirs = build()
    reserved: list[int] = []
    for count, program in ((44, theirs), (44, build())):
        pgk.cuda.empty_cache()
        before = pgk.cuda.memory_reserved()
        call = program.step if program is theirs else pgk.parameterize(program.step, state=program.state, verify="off")
        for number in range(count):
            call(*program.batch(number))
        pgk.cuda.empty_cache()
        pgk.cuda.reset_peak_memory_stats()
        for number in range(11):
            call(*program.batch(number))
        reserved.append(pgk.cuda.max_memory_reserved() - before)
        ours = call

    # THEN all run from graphs, and no more memory is held than without, but for a few MiB
    row = pgk.report(ours).rows[0]
    assert row.executables == 11
    assert row.launches == 33 + 11 - 1
    assert reserved[1] <= reserved[0] + 8 * MIB


def test_a_gradient_that_somebody_holds_is_not_written_over() -> None:
    # GIVEN a step that runs from a graph
    step, ours, theirs = made()
    for number in range(4):
        alike(step, ours, theirs, number)
    held: list[Any] = []

    # WHEN gradients are kept in many ways between steps
    for number in range(4, 12):
        weight, twin = ours.model[0].weight, theirs.model[0].weight
        kinds = (lambda g: g, lambda g: g.view(-1), lambda g: g.detach(), lambda g: g[2:], lambda g: [g])
        keep = kinds[number % len(kinds)]
        held.append((keep(weight.grad), equal_copy(keep(twin.grad))))
        alike(step, ours, theirs, number)

    # THEN none of them has changed since
    for kept, then in held:
        assert equal(kept, then)
    assert pgk.report(step).rows[0].launches == 10


def equal_copy(value: Any) -> Any:
    return [v.clone() for v in value] if isinstance(value, list) else value.clone()


def test_gradients_are_written_over_while_nobody_holds_them() -> None:
    step, ours, theirs = made()
    for number in range(4):
        alike(step, ours, theirs, number)
    before = [p.grad.data_ptr() for p in ours.model.parameters()]
    alike(step, ours, theirs, 4)
    assert [p.grad.data_ptr() for p in ours.model.parameters()] == before


def test_gradients_may_be_moved_or_replaced_between_steps() -> None:
    step, ours, theirs = made("zeros kept")
    for number in range(16):
        for program in (ours, theirs):
            weight, bias = program.model[0].weight, program.model[0].bias
            if number % 4 == 3:
                weight.grad.data = weight.grad.data.clone() * 2
                bias.grad = bias.grad.clone() + 1
        alike(step, ours, theirs, number)
    assert pgk.report(step).reasons == ()


def test_launches_are_seen_by_autograd_as_writes() -> None:
    # GIVEN a graph of autograd's that has saved a parameter which the step will write
    step, ours, _ = made("lion by hand")
    for number in range(3):
        step(*ours.batch(number))
    out = ours.model(ours.batch(0)[0]).sum()

    # WHEN the step is launched  THEN a backward through the old value is an error, as it is ungraphed
    step(*ours.batch(3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_results_are_ordinary_tensors() -> None:
    step, ours, theirs = made()
    for number in range(3):
        alike(step, ours, theirs, number)
    losses = [step(*ours.batch(number)) for number in range(3, 8)]
    assert equal(losses, [theirs.step(*theirs.batch(number)) for number in range(3, 8)])
    assert len({loss.data_ptr() for loss in losses}) == 5


def unaligned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def first_scheduled() -> steps.Program:
    """A step whose scheduler moves first, and which carries a state that somebody else may put elsewhere."""
    model = steps.mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=steps.rate(), capturable=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n))
    carried = {"hidden": torch.zeros(5, 8, device=pgk.device())}

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings(action="ignore"):  # torch's about this very order
            scheduler.step()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x + carried["hidden"]), y)
        loss.backward()
        optimizer.step()
        carried["hidden"] = 0.5 * x
        return loss.detach()

    return steps.Program(step, (model, optimizer, scheduler, carried), model, steps.batch, extra=[carried])


@pytest.mark.parametrize("verify", ["off", "first", "always"])
def test_a_carried_state_at_another_alignment_is_another_graph(verify: str) -> None:
    # GIVEN a step that runs from a graph
    ours, theirs = first_scheduled(), first_scheduled()
    step = pgk.parameterize(ours.step, state=ours.state, verify=verify)

    # WHEN what it carries lies at an address that its kernels were not captured for, in every second call
    for number in range(12):
        for program in (ours, theirs):
            carried = program.state[3]
            if number > 4 and number % 2:
                carried["hidden"] = unaligned(carried["hidden"])
        alike(step, ours, theirs, number)

        # THEN the scheduler has moved once a call, and both kinds are launched
        assert ours.state[2].last_epoch == theirs.state[2].last_epoch == number + 1
    report = pgk.report(step)
    assert report.reasons == ()
    assert report.rows[0].executables == 2
    assert report.rows[0].launches >= 8


def test_a_launch_that_does_not_fit_moves_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step that runs from a graph, whose guard does not notice a switch that its kernels were chosen by
    ours, theirs = first_scheduled(), first_scheduled()
    step = pgk.parameterize(ours.step, state=ours.state)
    for number in range(4):
        alike(step, ours, theirs, number)
    monkeypatch.setattr("paramgraph_kit.step.graphed.Graphed.fits", lambda self: self._cells_fit())
    carried = ours.state[3]

    # WHEN a launch finds it out by itself
    carried["hidden"] = unaligned(carried["hidden"])
    alike(step, ours, theirs, 4)

    # THEN the call has run ungraphed, once
    assert ours.state[2].last_epoch == theirs.state[2].last_epoch == 5


def test_a_dropped_step_gives_everything_back() -> None:
    # GIVEN a step with a graph
    step, ours, _ = made()
    for number in range(4):
        step(*ours.batch(number))
    gone = weakref.ref(step)

    # WHEN it is dropped
    del step
    gc.collect()

    # THEN nothing keeps it, and its twin can be made and run
    assert gone() is None
    again = pgk.parameterize(ours.step, state=ours.state)
    for number in range(4):
        again(*ours.batch(number))
    assert pgk.report(again).rows[0].launches == 2


def test_threads_may_call_steps_of_their_own() -> None:
    programs = [made(name) for name in ("sgd", "adamw fused")]
    errors: list[BaseException] = []
    for step, ours, _ in programs:  # captures are one thread's at a time
        for number in range(2):
            step(*ours.batch(number))

    def work(step: Any, ours: steps.Program, theirs: steps.Program) -> None:
        try:
            for number in range(2, 10):
                step(*ours.batch(number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=p) for p in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for _, ours, theirs in programs:
        for number in range(10):
            theirs.step(*theirs.batch(number))
        assert equal(steps.values_of(ours), steps.values_of(theirs))


def test_a_step_in_a_step_is_part_of_it() -> None:
    inner, ours, theirs = made("lion by hand")

    def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = inner(x, y) * 2
        return loss

    step = pgk.parameterize(outer, state=ours.state)
    for number in range(5):
        assert equal(step(*ours.batch(number)), theirs.step(*theirs.batch(number)) * 2)
    assert pgk.report(step).rows[0].launches == 3
    assert pgk.report(inner).rows[0].executables == 0


def test_watching_sees_the_launches() -> None:
    step, ours, _ = made()
    for number in range(3):
        step(*ours.batch(number))
    with pgk.watch() as trace:
        step(*ours.batch(3))
    assert len(trace.launches) == 1


def test_a_state_that_is_not_named_is_found_by_the_closure() -> None:
    ours, theirs = steps.PROGRAMS["sgd"](), steps.PROGRAMS["sgd"]()
    step = pgk.parameterize(ours.step, state=())
    for number in range(5):
        alike(step, ours, theirs, number)
    assert pgk.report(step).rows[0].launches == 3


def test_never_runs_without_graphs() -> None:
    step, ours, theirs = made(select="never")
    for number in range(4):
        alike(step, ours, theirs, number)
    assert pgk.report(step).rows[0].executables == 0


def test_memory_at_rest_is_that_of_no_graphs() -> None:
    # GIVEN a step whose gradients are gone at its end
    held = []
    for graphed in (False, True):
        program = steps.PROGRAMS["zero_grad last"]()
        call = pgk.parameterize(program.step, state=program.state) if graphed else program.step
        for number in range(5):
            call(*program.batch(number))
        gc.collect()
        before = pgk.cuda.memory_allocated()
        del call, program
        gc.collect()
        held.append(before - pgk.cuda.memory_allocated())

    # THEN a graph holds nothing more between steps
    assert held[1] <= held[0]


def test_a_profiler_may_watch_every_call() -> None:
    # GIVEN a profiler that runs through the watched call, the capture and the launches
    step, ours, theirs = made("lambda inside")
    profiler = cProfile.Profile()
    profiler.enable()
    for number in range(5):
        alike(step, ours, theirs, number)
    profiler.disable()

    # THEN steps are launched, and the profiler has seen what came after the capture too
    assert pgk.report(step).rows[0].launches == 3
    assert any(
        "'launch'" in str(entry.code) or getattr(entry.code, "co_name", "") == "launch" for entry in profiler.getstats()
    )


_READ, _WRITTEN = os.pipe()  # what goes out is no state


class _Makes(collections.OrderedDict[str, Any]):
    """As transformers' table of activations: an item is a class, and whoever asks for it gets a new object."""

    def __getitem__(self, key: str) -> Any:
        os.write(_WRITTEN, b"1")
        return super().__getitem__(key)()


class _Counts(dict[str, Any]):
    """A table that keeps count of who reads it, and is not to be written item by item."""

    def __getitem__(self, key: str) -> Any:
        os.write(_WRITTEN, b"1")
        return super().__getitem__(key)

    def items(self) -> Any:
        raise RuntimeError("not like this")

    def __setitem__(self, key: str, value: Any) -> None:
        raise RuntimeError("use replace()")

    def replace(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)


class _Backwards(list[Any]):
    def __iter__(self) -> Any:
        return reversed(list(range(len(self))))


@pytest.mark.parametrize("kind", [_Makes, _Counts])
def test_a_table_that_does_things_when_it_is_read_is_read_by_the_step_alone(kind: Any) -> None:
    # GIVEN a step that looks its function up in somebody's table, and a list that is iterated otherwise than it holds
    table = kind([("act", nn.Tanh if kind is _Makes else torch.tanh)])
    scales = _Backwards([2.0])

    def step(x: torch.Tensor) -> torch.Tensor:
        return table["act"](x) * scales[0]

    graphed, x = pgk.parameterize(step, state=(table, scales)), torch.ones(3).to(pgk.device())
    os.write(_WRITTEN, b"0")
    # WHEN called THEN it is launched, and nobody else has asked the table
    for _ in range(5):
        assert torch.equal(graphed(x), torch.tanh(x) * 2)
    calls = os.read(_READ, 1000).rpartition(b"0")[2].count(b"1")
    assert pgk.report(graphed).rows[0].launches == 3
    assert calls <= 5 + 2  # the ungraphed calls, the comparison, and two captures
    # AND what the table really holds counts
    if kind is _Counts:
        table.replace("act", torch.exp)
    else:
        collections.OrderedDict.__setitem__(table, "act", nn.ReLU)
    list.__setitem__(scales, 0, 3.0)
    for _ in range(4):
        assert torch.equal(graphed(x), (x.exp() if kind is _Counts else x) * 3)
