"""What a function asks of its tensors, or does to them, beyond their numbers: parameterized as eager."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from tests.sweep.samples import difference

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated"),
    pytest.mark.filterwarnings("ignore:An output with one or more elements was resized"),
]

Wrap = Callable[[Any], Any]
Program = Callable[[Wrap], Iterator[Any]]
PROGRAMS: dict[str, Program] = {}


def numbers(seed: int, *size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(pgk.device())


def linear() -> Any:
    torch.manual_seed(0)
    return nn.Linear(3, 3).to(pgk.device())


def program(run: Program) -> Program:
    PROGRAMS[run.__name__] = run
    return run


def _into_another(x: Tensor) -> Tensor:
    made = x.detach() * 2
    seen = made.view(-1)
    torch.sum(x.detach() + 1, 0, out=made)
    return torch.cat([seen, made.view(-1), x * (1 if made.dim() else 3)])


def _in_bytes(x: Tensor) -> Any:
    call = pgk.parameterize(lambda a, b: (a + 1, b.view(torch.uint8)))
    return torch.cat([part.float().cpu() for part in call(x[:2], x[1:])]).to(x.device)


def on_input(name: str, fn: Callable[[Tensor], Any], **kinds: Any) -> None:
    """A program that calls ``fn`` with fresh inputs and looks at these afterwards."""

    def run(wrap: Wrap) -> Iterator[Any]:
        call = wrap(fn)
        for k in range(4):
            x = numbers(k, 3).requires_grad_(kinds.get("grad", False))
            x = x * 1 if kinds.get("inner") else x
            y = call(x)
            yield y, x, x.requires_grad, vars(x)
            if y.requires_grad:
                y.sum().backward()
                yield x.grad if x.is_leaf or x.retains_grad else None

    PROGRAMS[name] = run


def _with(change: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def fn(x: Tensor) -> Tensor:
        change(x)
        return x * 2

    return fn


def _set(name: str, value: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
    return lambda x: setattr(x, name, value(x))


def _twice_or_thrice(test: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: x * (2 if test(x) else 3)


on_input("assigns .data", _with(_set("data", lambda x: x.data * 2)))
on_input("assigns .grad", _with(_set("grad", torch.zeros_like)))
on_input("assigns an attribute", _with(_set("seen", lambda _: 1)))
on_input("requires_grad_", _with(lambda x: x.requires_grad_()))
on_input("retain_grad", _with(lambda x: x.retain_grad()), grad=True, inner=True)
on_input("retain_grad of a leaf", _with(lambda x: x.retain_grad()), grad=True)
on_input("register_hook", _with(lambda x: cast("Any", x).register_hook(lambda g: g * 5)), grad=True)
on_input("detach_", _with(lambda x: x.detach_()), grad=True, inner=True)
on_input("is_leaf", _twice_or_thrice(lambda x: x.is_leaf), grad=True)
on_input("grad_fn", _twice_or_thrice(lambda x: x.grad_fn is None), grad=True, inner=True)
on_input("_version", _twice_or_thrice(lambda x: x.add_(1)._version == 1))
on_input("isinstance", _twice_or_thrice(lambda x: isinstance(x, nn.Parameter)))
on_input("type is", _twice_or_thrice(lambda x: type(x) is Tensor))
on_input("class is", _twice_or_thrice(lambda x: x.__class__ in (Tensor, nn.Parameter)))
on_input("is_inference", _twice_or_thrice(lambda x: x.is_inference()))
on_input("out= of another shape", _into_another)
on_input("a view of an input in another shape", lambda x: (x.unsqueeze_(0), x.view(torch.uint8))[1])
on_input("views of two types that share memory", _in_bytes)
on_input("seeds", lambda x: torch.manual_seed(4) is not None and x + torch.rand(3, device=x.device))


@program
def steps_by_hand(wrap: Wrap) -> Iterator[Any]:
    model = linear()

    def step() -> None:
        for p in model.parameters():
            if p.grad is not None:
                p.data.add_(p.grad, alpha=-0.1)

    call = wrap(step)
    for k in range(4):
        model(numbers(k, 2, 3)).sum().backward()
        call()
        yield model.weight.detach().clone()


@program
def zeroes_gradients(wrap: Wrap) -> Iterator[Any]:
    model = linear()

    def fn(x: Tensor) -> Any:
        model.zero_grad()
        return model(x)

    call = wrap(fn)
    for k in range(4):
        call(numbers(k, 2, 3)).sum().backward()
        yield model.weight.grad.clone()


@program
def a_teacher_that_follows(wrap: Wrap) -> Iterator[Any]:
    student, teacher = linear(), linear()

    def fn(x: Tensor) -> Any:
        with torch.no_grad():
            for p, q in zip(student.parameters(), teacher.parameters(), strict=True):
                q.data = q.data * 0.9 + p.data * 0.1
        return student(x) - teacher(x)

    call = wrap(fn)
    for k in range(4):
        yield call(numbers(k, 2, 3)).detach(), teacher.weight.detach().clone()
        student.weight.data.mul_(1.5)


@program
def parameters_from_a_vector(wrap: Wrap) -> Iterator[Any]:
    model = linear()

    def fn(v: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(v, model.parameters())
        return nn.utils.parameters_to_vector(model.parameters()) * 2

    call = wrap(fn)
    for k in range(3):
        yield call(numbers(k, 12)).detach(), model.weight.detach().clone()


@program
def an_attribute_of_a_parameter(wrap: Wrap) -> Iterator[Any]:
    model = linear()
    model.weight.scale = 2.0
    call = wrap(lambda x: model(x) * getattr(model.weight, "scale", 1.0))
    for k in range(4):
        model.weight.scale += k // 2
        yield call(numbers(k, 2, 3)).detach()


@program
def a_parameter_is_one(wrap: Wrap) -> Iterator[Any]:
    model = linear()
    call = wrap(lambda x: x * (2 if isinstance(model.weight, nn.Parameter) else 3))
    for k in range(3):
        yield call(numbers(k, 3))


@program
def where_it_lies(wrap: Wrap) -> Iterator[Any]:
    call = wrap(lambda x: x * 2 + x.storage_offset())
    for k in range(4):
        yield call(numbers(k, 9)[k:5])


@program
def swapped(wrap: Wrap) -> Iterator[Any]:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        cast("Any", torch.utils).swap_tensors(x, y)
        return x + 1

    call = wrap(fn)
    for k in range(3):
        x, y = numbers(k, 3), numbers(k, 4)
        yield call(x, y), x, y


def _packed(keep: torch.dtype) -> Any:
    """Hooks that keep saved tensors in another type."""
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    return hooks(lambda x: x.to(keep), lambda x: x.float())


@program
def opens_hooks_for_saved_tensors(wrap: Wrap) -> Iterator[Any]:
    model = linear()

    def packing(x: Tensor) -> Any:
        with _packed(torch.bfloat16):
            return model(x).tanh()

    call = wrap(packing)
    for k in range(4):
        x = numbers(k, 2, 3).requires_grad_()
        call(x).square().sum().backward()
        yield x.grad


@program
def opens_hooks_of_torchs(wrap: Wrap) -> Iterator[Any]:
    model = linear()

    def elsewhere(x: Tensor) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return model(x).tanh()

    call = wrap(elsewhere)
    for k in range(4):
        x = numbers(k, 2, 3).requires_grad_()
        call(x).square().sum().backward()
        yield x.grad


@program
def writes_a_leaf(wrap: Wrap) -> Iterator[Any]:
    call = wrap(lambda x: x.add_(1) * 2)
    for k in range(6):
        x = numbers(k, 3).requires_grad_(k % 2 == 0)
        try:
            y = call(x)
        except RuntimeError as error:
            y = str(error)
        yield y, x.detach()
        with torch.no_grad():
            yield call(x), x.detach()


BY_TYPE: dict[type, float] = {Tensor: 2.0, nn.Parameter: 3.0}


class _Table:
    factors: dict[type, float]


def _by_type(factors: dict[type, float]) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factors.get(type(x), 1.0)


def _by_default(x: Tensor, factors: dict[type, float] = BY_TYPE) -> Tensor:
    return x * factors.get(type(x), 1.0)


TABLE = _Table()
TABLE.factors = {Tensor: 2.0}
on_input("looks a type up", lambda x: x * BY_TYPE.get(type(x), 1.0))
on_input("looks a type up of an object", lambda x: x * TABLE.factors.get(x.__class__, 1.0))
on_input("looks a type up in a default", _by_default)
on_input("looks a type up in a cell", _by_type({Tensor: 2.0}))
on_input("looks a type up here", lambda x: x * {Tensor: 2.0}.get(type(x), 1.0))
on_input("asks for a type in a table", lambda x: x * (2 if type(x) in BY_TYPE else 3))
on_input("makes a text of the type", lambda x: x * len(str(type(x))))
on_input("asks for the type's name", lambda x: x * len(type(x).__name__))
on_input("asks for the class's name", lambda x: x * len(f"{x.__class__}"))
on_input("counts bases", lambda x: x * len(type(x).__mro__))
on_input("looks for what a stand-in has", lambda x: x * (2 if hasattr(x, "elem") else 3))
on_input("counts attributes", lambda x: x * len(dir(x)))


@program
def looks_for_hooks(wrap: Wrap) -> Iterator[Any]:
    call = wrap(_twice_or_thrice(lambda x: x._backward_hooks is None))
    for k in range(6):
        x = numbers(k, 3).requires_grad_()
        if k % 2:
            x.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
        y = call(x)
        y.sum().backward()
        yield y, x.grad


@program
def takes_the_next(wrap: Wrap) -> Iterator[Any]:
    scales = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    call = wrap(lambda x: x * next(scales))
    for k in range(5):
        yield call(numbers(k, 3))


@program
def dropout_between_recurrent_layers(wrap: Wrap) -> Iterator[Any]:
    torch.manual_seed(0)
    model = nn.LSTM(3, 3, 2, dropout=0.9).to(pgk.device())
    call = wrap(model)
    for k in range(3):
        torch.manual_seed(k)
        yield call(numbers(k, 8, 2, 3))[0].detach()


def outcome(run: Program, wrap: Wrap) -> list[Any]:
    torch.manual_seed(0)
    return [
        torch.utils._pytree.tree_map_only(Tensor, lambda x: x.detach().to("cpu", copy=True), value)
        for value in run(wrap)
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_trace_cannot_know_is_asked_of_the_real_tensor(name: str) -> None:
    # GIVEN a function that looks at more of a tensor than numbers WHEN parameterized THEN it does what eager does
    assert difference(outcome(PROGRAMS[name], pgk.parameterize), outcome(PROGRAMS[name], lambda fn: fn)) == ""


def test_a_refusal_says_what_was_asked_and_where() -> None:
    # GIVEN functions that ask what no trace knows, one of which catches what is raised in it
    def caught(x: Tensor) -> Tensor:
        try:
            x.seen = True  # type: ignore[attr-defined]
        except Exception:
            return x
        return x * 2

    texts = {
        caught: "not-traceable: it assigns .seen of an input: a graph would not do that again",
        _twice_or_thrice(lambda x: x.grad is None): "it reads .grad of an input: a trace knows nothing of that",
        _twice_or_thrice(
            lambda x: type(x) is Tensor
        ): "it compares the type of a tensor, and traced ones are of another",
    }
    for fn, text in texts.items():
        # WHEN parameterized THEN the reason names it
        call = pgk.parameterize(fn)
        call(numbers(0, 3))
        reasons = [each for each in pgk.report(call).reasons if each.code != "not-called"]
        assert len(reasons) == 1, reasons
        (reason,) = reasons
        assert text in f"{reason.code}: {reason.message}"
        assert reason.code == "not-traceable"


def test_modules_whose_parameters_are_swapped_go_on() -> None:
    # GIVEN a parameterized model WHEN torch swaps its parameters instead of giving them other data THEN nothing refers
    # to them that hinders it, and the next call reads what they are now
    model = linear()
    call = pgk.parameterize(model)
    for k in range(3):
        call(numbers(k, 2, 3))
    gc.collect()
    assert weakref.getweakrefs(model.weight) == []
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double()
        model.weight.data.mul_(2)
        model.float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert all(torch.equal(call(x), model(x)) for x in (numbers(k, 2, 3) for k in range(3)))


@pytest.mark.parametrize("grad", [True, False])
def test_what_draws_is_compared_with_the_same_numbers(grad: bool) -> None:
    # GIVEN dropout WHEN each call is compared with the function itself THEN both draw the same, once
    model = nn.Sequential(linear(), nn.Dropout(0.5))
    call = pgk.parameterize(model, verify="always")
    found = []
    with torch.set_grad_enabled(grad):
        for each in (call, model):
            torch.manual_seed(3)
            found.append([each(numbers(k, 4, 3)).detach() for k in range(4)] + [torch.rand(2, device=pgk.device())])
    assert difference(*found) == ""
    assert "verify-mismatch" not in {reason.code for reason in pgk.report(call).reasons}


def test_what_draws_from_an_own_generator_is_compared_with_the_same_numbers() -> None:
    # GIVEN noise from a generator of one's own WHEN each call is compared THEN both draw the same, once
    found = []
    for verify in ("always", "off"):
        generator = torch.Generator(pgk.device()).manual_seed(3)
        call = pgk.parameterize(lambda x: x + torch.rand(4, device=x.device, generator=generator), verify=verify)  # noqa: B023
        found.append([call(numbers(k, 3, 4)) for k in range(3)])
    assert difference(*found) == ""
    assert "verify-mismatch" not in {reason.code for reason in pgk.report(call).reasons}


def test_what_draws_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function that draws otherwise than what was traced of it
    call = pgk.parameterize(lambda x: nn.functional.dropout(x, 0.5), verify="always")
    x = numbers(0, 64)
    call(x)
    monkeypatch.setattr(call, "_fn", lambda x: nn.functional.dropout(x, 0.25))
    # WHEN it is compared THEN the function has the last word
    assert (call(x) != 0).float().mean() > 0.6
    assert "verify-mismatch" in {reason.code for reason in pgk.report(call).reasons}
