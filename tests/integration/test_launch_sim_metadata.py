"""What an address does not tell: lazy bits, shapes without elements, tensors of other kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import paramgraph_kit as pgk
from paramgraph_kit.driver.tensors import not_carried, same_bits
from paramgraph_kit.launch.launcher import Options
from tests.integration.launch_bench import (
    DEVICE,
    DRIVER,
    assert_launched_as_eager,
    assert_same,
    codes,
    launcher_of,
    launches,
    moved,
    variants,
)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

Function = Callable[..., Any]


def complex_(call: int) -> Tensor:
    return moved(6, 4, seed=call, dtype=torch.complex64)


def conjugated(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.conj(x * 2),)


def imaginary(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.conj(x * 2).imag,)


def several(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y, y.conj(), y.conj()[1:, ::2], y.conj().imag, y.real, torch._neg_view(y.conj())


def product(x: Tensor) -> tuple[Tensor, ...]:
    return x * 2, x.conj_physical()


def its_own_view(x: Tensor) -> tuple[Tensor, ...]:
    return x + 1, x, x.conj(), x[2:], torch._neg_view(x)


def written(x: Tensor) -> tuple[Tensor, ...]:
    x.mul_(2j)
    x.conj()[0].fill_(3j)
    return (x + 1,)


@pytest.mark.parametrize("function", [conjugated, imaginary, several, product, its_own_view, written])
@pytest.mark.parametrize("lazy", [lambda x: x, torch.conj, torch._neg_view, lambda x: torch._neg_view(x.conj())])
def test_lazy_bits_go_in_and_out(function: Function, lazy: Callable[[Tensor], Tensor]) -> None:
    # GIVEN inputs with lazy bits, or without WHEN launched THEN numbers and bits are eager's
    assert_launched_as_eager(function, lambda call: [lazy(complex_(call))])


def test_real_transforms_come_back_as_eager_s() -> None:
    # GIVEN transforms whose results are lazily conjugated WHEN launched THEN they are eager's
    assert_launched_as_eager(lambda x: (torch.fft.ihfft(x), torch.fft.rfft(x)), lambda call: [moved(4, 8, seed=call)])


def test_small_outputs_saved_together_keep_their_bits() -> None:
    # GIVEN small results, some of them lazily conjugated or negated, that share one allocation
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2, torch.conj(x * 3), (x * 4).conj().imag, torch._neg_view(x * 5)[2:]

    launcher = launcher_of(function, together=frozenset(range(4)))
    for call in range(3):
        # WHEN they come from a graph THEN each is eager's
        assert_same(launcher([complex_(call)]), function(complex_(call)))
    assert variants(launcher)[0].plan.shelf_bytes > 0
    assert launches(launcher) == 2


def test_a_call_with_other_bits_is_another_executable() -> None:
    # GIVEN a launched function of one input
    launcher = launcher_of(product)
    ways: list[Function] = [lambda x: x, torch.conj, lambda x: x, torch.conj, torch._neg_view, lambda x: x]
    # WHEN bits change from call to call
    for call, way in enumerate(ways):
        assert_same(launcher([way(complex_(call))]), product(way(complex_(call))))
    # THEN each way has its own graph
    assert len(variants(launcher)) == 3
    assert launches(launcher) == 3


def test_a_negated_real_input_is_never_taken_for_what_lies_in_its_memory() -> None:
    # GIVEN a launched function of real numbers WHEN given a negative view THEN the result is eager's
    launcher = launcher_of(lambda x: (x + 1,), layouts=True)
    for call in range(4):
        x = moved(5, seed=call)
        given = torch._neg_view(x) if call > 1 else x
        assert_same(launcher([given]), (given + 1,))


@pytest.mark.parametrize("verify", ["first", "always"])
def test_verification_takes_lazy_inputs_and_outputs(verify: str) -> None:
    # GIVEN a graph that is compared with ungraphed code
    launcher = launcher_of(several, options=Options(verify=verify))
    for call in range(3):
        # WHEN its input is lazily conjugated THEN nothing is found to differ
        assert_same(launcher([complex_(call).conj()]), several(complex_(call).conj()))
    assert launcher.reasons == []
    assert variants(launcher)[0].probation.verified == (1 if verify == "first" else 2)


class Filter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=16)
        return result


def test_gradients_through_a_filter_in_the_frequency_domain_are_eager_s() -> None:
    # GIVEN a filter whose saved activations are lazily conjugated, and its twin
    torch._dynamo.reset()
    model, twin = Filter().to(DEVICE), Filter().to(DEVICE)
    twin.load_state_dict(model.state_dict())
    fast = pgk.compile(model)
    for call in range(4):
        x = moved(3, 16, seed=call)
        gradients = []
        for run, owner in ((fast, model), (twin, twin)):
            owner.zero_grad()
            given = x.clone().requires_grad_()
            run(given).square().sum().backward()
            gradients += [owner.weight.grad, given.grad]
        # WHEN both are trained THEN parameters and inputs have the same gradients, forward and backward from graphs
        assert all(same_bits(a, b) for a, b in zip(gradients[:2], gradients[2:], strict=True))
    assert sum(row.launches for row in pgk.report(model).rows) == 2 * 3


def test_a_lazily_conjugated_tangent_gives_eager_s_gradient() -> None:
    # GIVEN a compiled complex function called with ordinary tangents first
    torch._dynamo.reset()
    fast = pgk.compile(lambda x, w: x * w * 2)
    for call in range(6):
        tangent = complex_(call + 10)
        tangent = tangent.conj() if call % 2 else torch._neg_view(tangent) if call == 4 else tangent
        found = []
        for run in (fast, lambda x, w: x * w * 2):
            x, w = complex_(call).requires_grad_(), complex_(99).requires_grad_()
            run(x, w).backward(tangent)
            found.append((x.grad, w.grad))
        # WHEN tangents come conjugated or negated THEN gradients are eager's
        assert all(same_bits(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 2)])
def test_results_without_elements_keep_their_shape(shape: tuple[int, ...]) -> None:
    # GIVEN results without elements: made so, a part of a result, a part of an input, conjugated
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        made = x.new_empty(shape)
        return y, made, y[2:2], y[:, 4:].t(), x[6:], made.t() if made.dim() == 2 else made

    # WHEN launched THEN shapes, strides and types are eager's
    assert_launched_as_eager(function, lambda call: [moved(6, 4, seed=call)])


@pytest.mark.parametrize(
    "captured",
    [lambda x: x[:3], lambda x: x.t(), lambda x: x.to(torch.complex64), lambda x: torch._neg_view(x), lambda x: x],
)
def test_a_capture_whose_results_look_unlike_the_call_s_is_refused(captured: Function) -> None:
    # GIVEN code whose result under capture has another shape, strides, type or lazy bits, or not
    launcher = launcher_of(lambda x: (captured(x * 2) if DRIVER.is_capturing() else x * 2,))
    for call in range(3):
        x = moved(4, 4, seed=call)
        # WHEN called THEN every result is what the code gives where nothing is captured
        assert_same(launcher([x]), (x * 2,))
    # AND where they differ nothing is launched
    alike = captured(x).shape == x.shape and same_bits(captured(x), x, layout=True)
    assert codes(launcher) == ([] if alike else ["unstable-capture"])
    assert launches(launcher) == (2 if alike else 0)


def test_a_result_that_is_on_the_device_in_a_capture_only_is_refused() -> None:
    # GIVEN code whose result is on the host, but on the device under capture
    launcher = launcher_of(lambda x: (x * 2 if DRIVER.is_capturing() else (x * 2).cpu(),))
    for call in range(3):
        # WHEN called THEN every result is where the code has it
        assert_same(launcher([moved(4, seed=call)]), (moved(4, seed=call).cpu() * 2,))
    assert (codes(launcher), launches(launcher)) == (["unstable-capture"], 0)


class Wrapped(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


STRANGE: dict[str, Callable[[], Any]] = {
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "a NestedTensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "a quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8),
    "a tensor of zeros without memory": lambda: torch._efficientzerotensor(3, device="cpu"),
    "a Wrapped": lambda: torch.Tensor._make_subclass(Wrapped, torch.ones(3)),
    "a tensor of layout torch._mkldnn": lambda: torch.ones(3).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", STRANGE)
def test_tensors_of_other_kinds_are_told_in_words(words: str) -> None:
    # GIVEN a tensor that its address, sizes, strides and type do not make WHEN asked THEN it is said what it is
    assert not_carried(STRANGE[words]()) == words


@pytest.mark.parametrize("make", [torch.ones(2).conj, lambda: nn.Parameter(torch.ones(2)), lambda: torch.ones(2)[:0]])
def test_ordinary_tensors_are_carried(make: Callable[[], Tensor]) -> None:
    # GIVEN an ordinary tensor, in inference mode and outside WHEN asked THEN nothing is in the way
    assert not_carried(make()) is None
    with torch.inference_mode():
        assert not_carried(make()) is None


def test_a_sparse_input_is_refused_with_what_it_is() -> None:
    # GIVEN a function of a sparse tensor WHEN called THEN it runs ungraphed, and the reason names it
    launcher = launcher_of(lambda x: (x.to_dense() * 2,) if x.is_sparse else (x * 2,))
    sparse = torch.eye(3).to_sparse()
    assert_same(launcher([sparse]), (torch.eye(3) * 2,))
    assert codes(launcher) == ["foreign-input"]


@pytest.mark.parametrize("way", ["step", "function", "compiled"])
@pytest.mark.parametrize("offset", [None, 0])
def test_code_that_counts_from_the_start_of_an_input_s_storage_is_right_wherever_the_input_begins(
    way: str, offset: int | None
) -> None:
    # GIVEN a view of an input that counts from where its storage starts, or from where the input does
    def windows(x: Tensor) -> Tensor:
        return torch.as_strided(x, (2,), (1,), offset) * 1

    torch._dynamo.reset()
    made: dict[str, Callable[[], Any]] = {
        "step": lambda: pgk.parameterize(windows, state=(), verify="off"),
        "function": lambda: pgk.parameterize(windows),
        "compiled": lambda: torch.compile(windows, backend="paramgraph"),
    }
    called, kept = made[way](), []
    for call in range(15):
        # WHEN its inputs are whole tensors, later begin later and later, then are whole again, always somewhere else
        whole = torch.arange(16.0, device=DEVICE) + 100 * call
        x = whole[0:4] if call < 5 else whole[4 * (1 + call % 3) :][:4] if call < 10 else whole[:4].clone()
        kept += [x, moved(77 + call)]
        # THEN every call is eager's
        assert_same([called(x)], [windows(x)])
    # AND it is launched where it counts from where the input begins
    launched = sum(row.launches for row in pgk.report(called).rows)
    assert launched >= 8 or offset is not None


RETYPED: dict[str, tuple[Function, Function]] = {  # views of an input as another type, and the input of a call
    "parts of numbers": (lambda x: (x.real, x.imag[1:, ::2], x.conj().imag, x.sum()), complex_),
    "parts of conjugates": (lambda x: (x.real, x.imag, x.resolve_conj() + 1), lambda n: complex_(n).conj()),
    "parts of a slice": (lambda x: (x.imag, torch.view_as_real(x)[1:], x + 1), lambda n: complex_(n)[1 + n % 3 :][:3]),
    "bytes": (
        lambda x: (x.view(torch.uint8)[:, 3:], x.view(torch.int16)[1:, 3::2], x + 1),
        lambda n: moved(4, 6, seed=n),
    ),
    "made of bytes": (
        lambda x: (x.view(torch.float32), x.view(torch.int64)[1], x + 1),
        lambda n: moved(4, 16, seed=n).view(torch.int8)[:, 16:48],
    ),
    "numbers of pairs": (
        lambda x: (torch.view_as_complex(x), torch.view_as_complex(x).conj().imag, x + 1),
        lambda n: moved(4, 6, 2, seed=n),
    ),
}


@pytest.mark.parametrize("name", RETYPED)
def test_a_view_of_an_input_as_another_type_is_one_of_todays_input(name: str) -> None:
    # GIVEN a step that returns such views
    function, argument = RETYPED[name]
    step = pgk.parameterize(function, state=())

    for n in range(6):
        x = argument(n)
        # WHEN it is called
        results = step(x)

        # THEN they are what eager's are, lie where the input lies, and see what is written to it
        assert_same(results, function(x))
        assert all(r.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for r in results[:-1])
        x.zero_()
        assert not results[0].any()
    assert not pgk.report(step).reasons
    assert sum(row.launches or 0 for row in pgk.report(step).rows) >= 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # torch's own, where tangents are first used
@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: torch.compile(f, backend="paramgraph"),
        lambda f: pgk.compile(f, guards="inputs"),
        pgk.parameterize,
        lambda f: pgk.parameterize(f, state=()),
    ],
)
def test_tangents_of_an_input_lead_to_tangents_of_results(wrap: Callable[[Function], Function]) -> None:
    # GIVEN a function whose calls are launched
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ w).tanh(), x.sum()

    torch.compiler.reset()  # of the other ways
    call, w = wrap(function), moved(4, 4)
    for n in range(4):
        assert_same(call(moved(3, 4, seed=n), w), function(moved(3, 4, seed=n), w))
    launched = sum(row.launches or 0 for row in pgk.report(call).rows)
    assert launched >= 2

    # WHEN an input has a tangent, which no address tells of THEN the call is none of them, and its results have theirs
    x, tangent = moved(3, 4, seed=5), moved(3, 4, seed=6)
    with forward_ad.dual_level():
        levels: Any = forward_ad
        dual = levels.make_dual(x, tangent)
        for found, expected in zip(call(dual, w), function(dual, w), strict=True):
            assert_same(tuple(levels.unpack_dual(found)), tuple(levels.unpack_dual(expected)))
    assert_same(call(x, w), function(x, w))


OF_STATE: dict[str, tuple[Function, Function]] = {  # views of a step's state, and the state
    "parts of numbers": (lambda w: (w.real, w.imag[1:, ::2], w[:1].real, w.real.view(torch.int32)), complex_),
    "parts of conjugates": (lambda w: (w.real, w.imag, w.conj(), w.conj()[1:, 2:]), lambda n: complex_(n).conj()),
    "parts of a slice": (lambda w: (w.imag, torch.view_as_real(w)[1:]), lambda n: complex_(n).t()[1:]),
    "lazy ones": (lambda w: (w.conj(), w.conj().imag[1:], torch._neg_view(w)), complex_),
    "of negated": (lambda w: (w[1:], w.t(), torch._neg_view(w)), lambda n: torch._neg_view(moved(4, 6, seed=n))),
    "bytes": (lambda w: (w.view(torch.uint8)[:, 3:], w.view(torch.complex64)), lambda n: moved(4, 6, seed=n)),
    "wider": (lambda w: (w.view(torch.int64)[1:], w[2:].view(torch.int32)), lambda n: moved(4, 8, seed=n).half()),
}


@pytest.mark.parametrize("name", OF_STATE)
def test_a_view_of_state_as_another_type_or_lazily_is_one_of_that_state(name: str) -> None:
    # GIVEN a step that returns such views of its state
    function, made = OF_STATE[name]
    state = made(0)
    step = pgk.parameterize(lambda x: (*function(state), x * 2), state=[state], verify="off")

    for n in range(6):
        # WHEN it is called
        x = moved(3, seed=n)
        results = step(x)

        # THEN they are what eager's are, lie in the state's memory, and see what is written to it
        expected = (*function(state), x * 2)
        assert_same(results, expected)
        for found, other in zip(results[:-1], expected, strict=False):
            assert found.untyped_storage().data_ptr() == state.untyped_storage().data_ptr()
            assert found.storage_offset() == other.storage_offset()
        state.mul_(2)
        assert_same(results, (*function(state), x * 2))
    assert not pgk.report(step).reasons
    assert sum(row.launches or 0 for row in pgk.report(step).rows) >= 3
