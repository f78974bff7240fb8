"""Generated programs against eager: a few here, shrunk where one fails; `scripts/sweep_programs.py` runs more."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import paramgraph_kit as pgk
from scripts.sweep_programs import main
from tests.sweep.lines import Defined
from tests.sweep.operators import ready
from tests.sweep.programs import TORCHS, generate, wrong

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

Tensor = torch.Tensor


@settings(max_examples=8, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_program_that_nobody_wrote_computes_what_eager_computes(data: st.DataObject) -> None:
    # GIVEN a program WHEN it is compiled, and parameterized, and called three times THEN it is eager's
    ready()
    program = generate(lambda n: data.draw(st.integers(0, n - 1)), wide=data.draw(st.booleans()))

    found = wrong(program)

    assert not found or found.startswith(TORCHS), f"{found}\n{program}"


def _halves(x: Tensor) -> Any:
    x.mul_(2)
    return x[::2], x.view(2, -1)


def _windows(x: Tensor) -> Any:
    x[::2].mul_(2)
    return x, x.unfold(0, 2, 1)


def _detached(x: Tensor) -> Any:
    x.add_(x)
    x.detach().zero_()
    return (x.reshape(-1),)


@pytest.mark.parametrize("function", [_halves, _windows, _detached])
def test_a_view_of_a_written_input_lies_where_the_input_lies(function: Callable[[Tensor], Any]) -> None:
    # GIVEN a parameterized function that writes to its input and returns views of it, and inputs inside of others
    def example(seed: int) -> Tensor:
        return torch.randn(9, generator=torch.Generator().manual_seed(seed)).to(pgk.device())[3:7]

    changed = pgk.parameterize(function, example(0))

    # WHEN it is called THEN results and input are eager's, and the results are views
    for seed in range(3):
        mine, twin = example(seed), example(seed)
        got, expected = changed(mine), function(twin)
        assert [y.tolist() for y in got] == [y.tolist() for y in expected]
        assert mine.tolist() == twin.tolist()
        mine.fill_(seed)
        assert all((y == seed).all() for y in got)


def _emptied_and_flat(x: Tensor) -> Any:
    x.zero_()
    return x.detach().flatten(), x.t(), x + 1


def _put_where_nothing_is(x: Tensor) -> Any:
    torch.cat([x, x], out=x[..., 1:])
    return x, x.sort(-1)[0]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (_emptied_and_flat, lambda: torch.ones(4, 13)[:, 1:12:2]),
        (_put_where_nothing_is, lambda: torch.ones(2, 9, dtype=torch.uint8)[:0, :4]),
    ],
)
def test_what_is_another_view_in_a_trace_runs_as_it_is(
    function: Callable[[Tensor], Any], arguments: Callable[[], Tensor]
) -> None:
    # GIVEN an input with gaps or with nothing in it, of which a trace takes other views than eager
    run, device = pgk.parameterize(function), pgk.device()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of results that are resized
        for value in range(4):
            (whole, twin) = (torch.zeros(4, 13, dtype=arguments().dtype, device=device) for _ in range(2))
            mine, its = (
                x.as_strided(arguments().shape, arguments().stride(), arguments().storage_offset())
                for x in (whole, twin)
            )
            mine.add_(value)
            its.add_(value)
            # WHEN it is called THEN results and input are eager's, and the reason is told
            assert [y.tolist() for y in run(mine)] == [y.tolist() for y in function(its)]
            assert whole.tolist() == twin.tolist()
    assert {reason.code for reason in pgk.report(run).reasons} & {"unknown-output", "not-traceable"}


def _written_and_viewed(x: Tensor, y: Tensor, _: Tensor) -> Any:
    x.add_(1)
    return y[None], y[0], y


def _turned(x: Tensor, y: Tensor, _: Tensor) -> Any:
    x.t_()
    return y + 1, y


def _three(x: Tensor, y: Tensor, z: Tensor) -> Any:
    x.mul_(2)
    z.add_(1)
    return y[1:], z.mT


@pytest.mark.parametrize("function", [_written_and_viewed, _turned, _three])
@pytest.mark.parametrize("beside", [False, True])
def test_a_tensor_that_is_given_twice_is_one(function: Callable[..., Any], beside: bool) -> None:
    # GIVEN a function that writes to one argument and returns views of another, both being one inside of a larger one
    def examples() -> tuple[Tensor, ...]:
        whole = torch.arange(20.0).to(pgk.device())
        x = whole[1:13].view(3, 4)
        return x, x, whole[16:].view(2, 2) if beside else torch.ones(2, 2, device=pgk.device())

    changed = pgk.parameterize(function, *examples())

    # WHEN it is called THEN results and arguments are eager's, and the results are views
    for number in range(3):
        mine, twins = examples(), examples()
        got, expected = changed(*mine), function(*twins)
        assert [y.tolist() for y in got] == [y.tolist() for y in expected]
        assert [x.tolist() for x in mine] == [x.tolist() for x in twins]
        mine[0].fill_(number)
        twins[0].fill_(number)
        assert [y.tolist() for y in got] == [y.tolist() for y in expected]


def _spread(x: Tensor, offset: int | None) -> Any:
    made = x * 2
    return x.as_strided((2, 2), (1, 2), offset) + 1, made.as_strided((2,), (2,), offset) * 3


def _spread_in_place(x: Tensor, offset: int | None) -> Any:
    x.as_strided((2,), (1,), offset).mul_(3)
    return (x + 1,)


def _spread_after_writes(x: Tensor, offset: int | None) -> Any:
    x[1:3].mul_(2)
    x[::2].neg_()
    return (x.as_strided((2, 2), (1, 2), offset) + 1,)


@pytest.mark.parametrize("function", [_spread, _spread_in_place, _spread_after_writes])
@pytest.mark.parametrize("offset", [4, None])
@pytest.mark.parametrize("way", ["compiled", "parameterized", "step"])
def test_an_offset_counts_from_where_a_storage_begins(function: Any, offset: int | None, way: str) -> None:
    # GIVEN a function that looks at its argument's storage, from an offset on or from where the argument begins
    def look(x: Tensor) -> Any:
        return [y.detach() for y in function(x, offset)]

    ready()
    torch._dynamo.reset()
    if way == "compiled":
        changed = torch.compile(look, backend="paramgraph")
    else:
        changed = pgk.parameterize(look, **({"state": torch.nn.Linear(1, 1).to(pgk.device())} if way == "step" else {}))
    for begin in (3, 3, 4, 4, 0, 0, 3):
        # WHEN it is called with arguments that begin anywhere in theirs THEN its numbers are eager's
        mine, twin = (torch.arange(12.0).to(pgk.device())[begin:] for _ in range(2))
        assert [y.tolist() for y in changed(mine)] == [y.tolist() for y in look(twin)]
        assert mine.tolist() == twin.tolist()
    # AND what it counts so is in no graph
    if function is _spread and (way, offset) != ("compiled", None):  # Dynamo writes the offset that it finds
        codes = {reason.code for reason in pgk.report(changed).reasons}
        assert codes == (set() if offset is None else {"unexplained-word" if way == "step" else "unsafe-op"})


def _all_written(x: Tensor) -> Tensor:
    x.neg_()
    return x.as_strided((2, 2), (1, 2), 1).square().sum()


def _differentiated(x: Tensor) -> Tensor:
    return x.as_strided((2, 2), (1, 2), 1).square().sum()


@pytest.mark.parametrize("function", [_all_written, _differentiated])
def test_an_offset_in_a_storage_that_a_trace_does_not_keep_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    # GIVEN a parameterized function that looks at its argument's storage after a write, or with a gradient
    changed = pgk.parameterize(function)
    for begin in (0, 3, 1, 3):
        # WHEN it is called with arguments that begin anywhere in theirs THEN numbers and gradients are eager's
        found = []
        for call in (changed, function):
            x = torch.arange(12.0).to(pgk.device())[begin:].requires_grad_(function is _differentiated)
            result = call(x)
            if x.requires_grad:
                result.backward()
            found.append((result.tolist(), x.tolist(), None if x.grad is None else x.grad.tolist()))
        assert found[0] == found[1]
    # AND the report says what to do
    assert "slice the input" in str(pgk.report(changed))


def _reshaped_by_out(x: Tensor) -> Tensor:
    y = x * 2
    torch.mul(x, 3, out=y[:1])
    return y


@pytest.mark.parametrize("verify", ["off", "always"])
def test_a_function_runs_as_it_is_where_only_its_trace_raises(verify: str) -> None:
    # GIVEN a function that gives out= a view of another shape, which no trace takes as eager does
    changed = pgk.parameterize(_reshaped_by_out, verify=verify)
    for seed in range(3):
        # WHEN it is called THEN it does what eager does, and the report says why
        torch.manual_seed(seed)
        x = torch.ones(2, 3, device=pgk.device()) * seed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch would rather not give out= another shape
            assert changed(x).tolist() == _reshaped_by_out(x).tolist()
    assert "what was traced of it raises an error" in str(pgk.report(changed))
    # AND a mistake of the user's is raised as it is, and what is right afterwards is graphed
    square = pgk.parameterize(lambda x, i: x[i] * 2)
    x, wrong, right = torch.ones(3, device=pgk.device()), *(torch.tensor([i], device=pgk.device()) for i in (7, 1))
    with pytest.raises(IndexError):
        square(x, wrong)
    for _ in range(2):
        assert square(x, right).tolist() == [2.0]
    assert pgk.report(square).kernels[0] > 0


@pytest.mark.parametrize(("end", "graphed"), [(4, True), (5, False), (8, False)])
def test_what_one_operation_writes_twice_is_written_twice(end: int, graphed: bool) -> None:
    # GIVEN a parameterized function that writes to a list of tensors, some of which overlap
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        torch._foreach_add_([x[:end], x[4:]], 1)
        torch._foreach_mul_([x, x] if end == 8 else [x], 3)
        twice = torch.cat([x, x], out=torch.empty(16, device=x.device))
        return twice * 2, x

    changed = pgk.parameterize(function)
    for seed in range(3):
        # WHEN it is called THEN its numbers are eager's
        mine, twin = (torch.full((8,), float(seed), device=pgk.device()) for _ in range(2))
        assert [y.tolist() for y in changed(mine)] == [y.tolist() for y in function(twin)]
    # AND only what writes each once is in a graph
    report = pgk.report(changed)
    assert [reason.code for reason in report.reasons] == ([] if graphed else ["not-traceable"])
    assert graphed or "overlap" in str(report)


def test_a_view_that_would_lie_elsewhere_is_refused() -> None:
    # GIVEN arguments that overlap, and another one inside of a larger tensor, which is written and returned
    def step(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x.add_(1)
        z.mul_(2)
        return z[1:]

    def examples() -> tuple[Tensor, ...]:
        whole = torch.ones(8, device=pgk.device())
        return whole[:5], whole[4:], torch.arange(9.0).to(pgk.device())[3:7]

    # WHEN it is parameterized THEN it says why not, and runs as it is
    changed = pgk.parameterize(step, *examples())
    assert changed(*examples()).tolist() == step(*examples()).tolist()
    assert "it returns a view of one" in str(pgk.report(changed))


def test_another_shape_for_an_input_is_refused_where_inputs_share_memory() -> None:
    # GIVEN arguments that share memory, of which one gets another shape, and another that is written
    def step(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        z.neg_()
        x.transpose_(0, -1)
        return x + 1

    def examples() -> tuple[Tensor, ...]:
        whole = torch.arange(24.0).reshape(4, 6).to(pgk.device())
        return whole, whole[:, 1:], torch.arange(54).to(pgk.device())[1:].as_strided((6, 4), (8, 1), 1)

    # WHEN it is parameterized THEN it says why not, and runs as it is
    changed = pgk.parameterize(step, *examples())
    for _ in range(2):
        mine, twins = examples(), examples()
        assert changed(*mine).tolist() == step(*twins).tolist()
        assert [x.tolist() for x in mine] == [x.tolist() for x in twins]
    assert "it changes the shape or strides of an input" in str(pgk.report(changed))


@pytest.mark.parametrize(
    ("write", "refused"),
    [
        (lambda x: x.as_strided((2, 2), (1, 1)).add_(1), "overlaps itself"),
        (lambda x: x.unfold(0, 2, 1).conj().mul_(2), "overlaps itself"),
        (lambda x: x.expand(2, 6).t_(), ""),  # writes nothing but a shape
        (lambda x: x[::2].add_(x[1:4]), "reads what it writes"),
        (lambda x: torch.add(x[::2], 1, out=x[:3]), "reads what it writes"),
        (lambda x: x[::2].add_(x[1::2]), ""),
        (lambda x: x[::2].add_(x[::2]), ""),
        (lambda x: x[:0].copy_(x[1:1]), ""),
    ],
)
def test_what_torch_leaves_open_is_in_no_program(write: Callable[[Tensor], Any], refused: str) -> None:
    # GIVEN a write WHEN it is tried THEN it is no line of a program where its result depends on an order
    with Defined():
        if refused:
            with pytest.raises(ValueError, match=refused):
                write(torch.arange(6.0))
        else:
            write(torch.arange(6.0))


def test_programs_are_differentiated_and_called_with_shared_and_shifted_arguments() -> None:
    # GIVEN eighty programs WHEN looked at THEN there are enough of each kind
    found = [generate(random.Random(seed).randrange) for seed in range(80)]
    kinds = Counter(each.__name__ for program in found for each in set(program.arrangements))
    assert min(kinds[name] for name in ("_twice", "_inside", "_apart", "_together", "_shifted")) >= 5, kinds
    assert sum(program.differentiated for program in found) >= 5
    # AND shared memory is shared, and what is shifted is the same numbers elsewhere
    for program in found:
        for call, arrangement in enumerate(program.arrangements):
            made, given = program.made(call), program.arguments(call)
            if arrangement.__name__ == "_twice" and len(given) > 1:
                assert given[0] is given[1]
            if arrangement.__name__ == "_shifted":
                assert [x.tolist() for x in given] == [x.tolist() for x in made]
                assert [x.storage_offset() - 1 for x in given] == [x.storage_offset() for x in made]


def test_wide_programs_take_their_arguments_in_other_ways_and_orders() -> None:
    # GIVEN forty programs of the wide kind WHEN looked at THEN there are enough of each kind
    found = [generate(random.Random(seed).randrange, wide=True) for seed in range(40)]
    assert 5 <= sum(program.packed for program in found) <= 25
    assert sum(program.arrangements[0] is not program.arrangements[2] for program in found) >= 5
    assert len({x.dtype for program in found for x in program.made(0)}) >= 7
    # AND what comes in a dict and a list is what comes by itself
    program = next(each for each in found if each.packed)
    made = program.made(0)
    assert program.given(made) == ({"first": made[0], "rest": made[1:]},)


def test_the_same_numbers_make_the_same_program() -> None:
    one, other = (generate(random.Random(5).randrange) for _ in range(2))

    assert repr(one) == repr(other)
    assert [x.tolist() for x in one.arguments(1)] == [x.tolist() for x in other.arguments(1)]


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN results of two programs
    out = tmp_path / "programs.jsonl"
    out.write_text('{"seed": 0, "wrong": ""}\n{"seed": 1, "wrong": "' + TORCHS + 'compile"}\n')

    # WHEN three are asked for THEN only the third runs
    assert main(["--out", str(out), "--count", "3"]) == 0
    assert [json.loads(line)["seed"] for line in out.read_text().splitlines()] == [0, 1, 2]
    assert capsys.readouterr().out == "3 programs: 2 equal, 1 wrong in AOTAutograd alone, 0 differ\n"
