"""Calls that no kernel takes: the simulated device refuses them where the CPU does, eagerly and in a capture."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.multiprocessing import reductions
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from paramgraph_kit.driver.select import device, twin
from paramgraph_kit.driver.sim.libraries import forget

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

Tensor = torch.Tensor
Call = Callable[[Tensor], Any]


def new(x: Tensor, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of ones where ``x`` is."""
    return torch.ones(size, dtype=dtype, device=x.device)


WRONG: dict[str, Call] = {
    "a float into an integer": lambda x: new(x, dtype=torch.int32).addcmul_(new(x), new(x)),
    "a loss of another type": lambda x: F.binary_cross_entropy(x.double(), x > 0),
    "an out= of another type": lambda x: torch.any(x, 0, out=new(x, 4, dtype=torch.int64)),
    "an out= of another float": lambda x: torch.index_add(
        x, 0, new(x, 3, dtype=torch.int64) * 0, x, out=x.double() + 1
    ),
    "nothing to take a median of": lambda x: x[:, :0].nanmedian(1),
    "nothing to take a maximum of": lambda x: x[:0].max(),
    "several numbers for a mask": lambda x: x.masked_fill(x > 2, new(x, 1)),
    "several numbers for rows": lambda x: x.index_fill_(0, new(x, 1, dtype=torch.int64), new(x, 1, 1)),
    "a result larger than nothing": lambda x: x[:0].logical_xor_(new(x, 5, 0, 4)),
    "a result larger than a whole": lambda x: x.gt_(new(x, 5, 3, 4)),
    "a result larger than a column": lambda x: x[:, :1].gt_(x),
    "a result larger than what it replaces": lambda x: x.logical_xor_(new(x, 5, 3, 4)),
}
OVERLAPPING: dict[str, Call] = {
    "out= one element further": lambda x: torch.add(x[:-1], 1, out=x[1:]),
    "a sum into its own operand": lambda x: torch.cumsum(x[:-1], 0, out=x[1:]),
    "out= of another shape": lambda x: torch.sin(x.view(-1), out=x),
    "a list's own memory": lambda x: torch.cat([x[:1], x[:2]], out=x),
}


def outcome(call: Call, place: Any) -> tuple[str, str]:
    """What a call raises or returns."""
    x = torch.arange(12.0).view(3, 4).to(place)
    try:
        found = call(x)
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0].replace("sim:0", "cpu")
    return "returns", str(found.tolist())


def captured(call: Callable[[], Any]) -> None:
    """Capture what is called."""
    with twin().graph(twin().CUDAGraph()):
        call()


@pytest.mark.parametrize("name", [*WRONG, *OVERLAPPING])
def test_a_wrong_call_is_refused_as_by_the_cpu(name: str) -> None:
    # GIVEN a call that the CPU refuses
    call = (WRONG | OVERLAPPING)[name]
    expected = outcome(call, "cpu")
    assert expected[0] != "returns"
    # WHEN the simulated device is asked THEN its words are the same
    assert outcome(call, device()) == expected


@pytest.mark.parametrize("name", WRONG)
def test_a_capture_refuses_it_at_the_call_and_not_as_an_assertion_of_the_device(name: str) -> None:
    # GIVEN the same WHEN it is captured THEN it is refused at once, in the same words
    x = torch.arange(12.0).view(3, 4).to(device())
    kind, text = outcome(WRONG[name], "cpu")
    try:
        with pytest.raises(Exception) as error:  # noqa: PT011 - its kind is compared
            captured(lambda: (x + 1, WRONG[name](x)))  # not empty, of which torch would warn
    finally:
        twin().recover()
    assert (type(error.value).__name__, str(error.value).splitlines()[0]) == (kind, text)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.add(x, x, out=x),
        lambda x: torch.sort(x, out=(x, new(x, 3, 4, dtype=torch.int64)))[0],
        lambda x: torch.mm(x[:2, :2], x[1:, 2:], out=x[:2, 2:]),
        lambda x: torch.add(x, 1, out=new(x, 0)),
    ],
)
def test_an_out_that_is_an_operand_gets_what_the_cpu_gives_it(call: Call) -> None:
    # GIVEN out= in the memory of an operand, or to be resized THEN numbers are the CPU's
    assert outcome(call, device()) == outcome(call, "cpu")


def test_a_type_that_only_cuda_computes_keeps_its_indices() -> None:
    # GIVEN integers, of which the CPU unpools none, with indices of the same type
    indices = torch.arange(4).view(1, 1, 2, 2) * 5
    expected = F.max_unpool2d(torch.ones(1, 1, 2, 2), indices, [2, 2])
    # WHEN the device does THEN the result is that of floats
    found = F.max_unpool2d(torch.ones(1, 1, 2, 2, dtype=torch.int64, device=device()), indices.to(device()), [2, 2])
    assert found.dtype is torch.int64
    assert found.cpu().float().equal(expected)


TYPES: dict[str, tuple[Call, str]] = {
    "a gelu of whole numbers": (lambda x: F.gelu(x.long()), "\"GeluCUDAKernelImpl\" not implemented for 'Long'"),
    "bits of halves": (lambda x: x.half() & 1, "\"bitwise_and_cuda\" not implemented for 'Half'"),
    "halves shifted": (lambda x: x.half() << 1, "\"lshift_cuda\" not implemented for 'Half'"),
    "whole numbers between two": (lambda x: x.long().lerp(x.long(), 0.5), "\"lerp_cuda\" not implemented for 'Long'"),
    "bits of a float": (lambda x: x & 1, "\"bitwise_and_cuda\" not implemented for 'Float'"),
    "a pool of whole numbers": (
        lambda x: F.max_pool2d(x.long()[None], 2),
        "\"max_pool2d_with_indices_out_cuda_frame\" not implemented for 'Long'",
    ),
    "bytes of an image": (
        lambda x: F.interpolate(x.byte()[None, None], scale_factor=2.0, mode="bilinear"),
        "\"upsample_bilinear2d_out_frame\" not implemented for 'Byte'",
    ),
    "bounds of complex numbers": (lambda x: (x * 1j).clamp(0), "clamp is not supported for complex types"),
    "factors of halves": (
        lambda x: torch.linalg.lu_solve(x[:, :3].half(), new(x, 3, dtype=torch.int32), x[:, :3].half()),
        "not implemented for 'Half'",
    ),
    "a special function of halves": (lambda x: torch.special.bessel_j0(x.half()), "not implemented for 'Half'"),
    "a histogram of halves": (lambda x: x.bfloat16().histc(4, 0, 8), "\"histc\" not implemented for 'BFloat16'"),
    "a triangle of halves": (
        lambda x: torch.linalg.solve_triangular(x[:, :3].half(), x[:, :3].half(), upper=True),
        "not implemented for 'Half'",
    ),
    "a mean of whole numbers' places": (lambda x: F.layer_norm(x.int(), (4,)), "not implemented for 'Int'"),
}


@pytest.mark.parametrize(("call", "words"), TYPES.values(), ids=TYPES)
def test_types_that_cuda_has_no_kernel_for_are_refused_though_the_cpu_could(call: Call, words: str) -> None:
    # GIVEN a call with numbers of a type that CUDA's kernel does not take
    x = torch.arange(12.0).view(3, 4).to(device())
    # WHEN it runs THEN it is refused in words of CUDA's
    with pytest.raises(NotImplementedError, match=re.escape(words)) as eager:
        call(x)
    # and so it is in a capture, where nothing runs
    with pytest.raises(NotImplementedError) as refused:
        captured(lambda: (x + 1, call(x)))
    assert str(refused.value) == str(eager.value)


@pytest.mark.parametrize(
    ("scale", "zero", "words"),
    [
        (torch.float64, torch.int32, "expected scalar type Float but found Double"),
        (torch.float32, torch.int64, "expected scalar type Int but found Long"),
    ],
)
def test_a_scale_and_a_zero_point_of_other_types_are_refused(scale: torch.dtype, zero: torch.dtype, words: str) -> None:
    # GIVEN a scale and a zero point as tensors, of which the CPU takes any type
    x = torch.arange(4.0).to(device())
    given = new(x, dtype=scale), new(x, dtype=zero)
    # WHEN numbers are quantized by them THEN it is refused in words of CUDA's
    with pytest.raises(RuntimeError, match=words):
        torch.fake_quantize_per_tensor_affine(x, *given, 0, 255)


NORMS: dict[str, tuple[Call, str]] = {
    "doubles in a batch": (
        lambda x: F.batch_norm(x.double(), x[0], x[0]),
        "expected scalar type Double but found Float",
    ),
    "halves that scale a batch": (
        lambda x: F.batch_norm(x, None, None, x[0].half(), x[0].half(), training=True),
        "expected scalar type Float but found Half",
    ),
    "doubles in groups": (
        lambda x: F.group_norm(x.double(), 2, x[0], x[0]),
        "mixed dtype (CPU): all inputs must share same datatype.",
    ),
    "halves in groups": (
        lambda x: F.group_norm(x.half(), 2, x[0], x[0]),
        "expected scalar type Half but found Float",
    ),
    "doubles in a layer": (
        lambda x: F.layer_norm(x.double(), (4,), x[0], x[0]),
        "expected scalar type Double but found Float",
    ),
    "whole numbers in a layer": (
        lambda x: F.layer_norm(x.long(), (4,), x[0], x[0]),
        "\"LayerNormKernelImpl\" not implemented for 'Long'",
    ),
    "whole numbers in a batch": (
        lambda x: F.batch_norm(x.long(), None, None, x[0], x[0], training=True),
        "\"batch_norm_stats_cuda\" not implemented for 'Long'",
    ),
}


@pytest.mark.parametrize(("call", "words"), NORMS.values(), ids=NORMS)
def test_norms_tell_of_types_that_do_not_fit_as_an_h200_does(call: Call, words: str) -> None:
    # GIVEN numbers of another type than what scales them WHEN they are normalized THEN CUDA's words tell of it
    x = torch.arange(12.0).view(3, 4).to(device())
    with pytest.raises(RuntimeError, match=re.escape(words)):
        call(x)
    with pytest.raises(RuntimeError, match=re.escape(words)):
        captured(lambda: (x + 1, call(x)))


def test_halves_in_a_batch_are_scaled_by_numbers_of_float32() -> None:
    # GIVEN halves WHEN a batch of them is normalized THEN what scales them may be exact
    x = torch.arange(12.0).view(3, 4).to(device())
    assert F.batch_norm(x.half(), None, None, x[0], x[0] + 1, training=True).dtype is torch.float16


def test_types_that_cuda_has_a_kernel_for_are_computed_though_the_cpu_has_none() -> None:
    # GIVEN whole numbers and halves
    x = torch.arange(16.0).to(device())
    # WHEN they are counted and pooled THEN that is computed in another type
    assert x.long().histc(4, 0, 16).tolist() == [4, 4, 4, 4]
    assert F.avg_pool3d(x.half().view(1, 2, 2, 4), 2).flatten().tolist() == [6.5, 8.5]


def test_a_pool_has_one_number(cuda: Any) -> None:
    # GIVEN two numbers for a pool WHEN a graph is captured there THEN what torch asserts, or says of its arguments
    x = torch.ones(3, device=device())
    asserted = pytest.raises(RuntimeError, match=r"!\(pool\.first && pool\.second\) INTERNAL ASSERT FAILED")
    with asserted, cuda.graph(cuda.CUDAGraph(), pool=(7, 7)):
        x * 2
    cuda.recover()
    refused = pytest.raises(TypeError, match="incompatible function arguments")
    with refused, cuda.graph(cuda.CUDAGraph(), pool=(-1, 0)):
        x * 2
    cuda.recover()
    # and either number alone is a pool
    for pool in ((0, 77), (77, 0)):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=pool):
            y = x * 2
        graph.replay()
        assert y.tolist() == [2.0] * 3


def test_no_other_process_shares_the_memory(cuda: Any) -> None:
    # GIVEN a tensor of the device WHEN it is to be sent to another process THEN that says so
    x, graph = torch.ones(3, device=device()), cuda.CUDAGraph()
    share: Any = reductions.reduce_tensor
    with pytest.raises(NotImplementedError, match="no other process shares"):
        share(x)
    # and in a capture, where CUDA forbids it, that is the error
    with pytest.raises(torch.AcceleratorError, match="operation failed due to a previous error"), cuda.graph(graph):
        share(x)
    cuda.recover()


def test_a_tensor_of_the_host_is_told_of_before_a_handle_is_asked_for(cuda: Any) -> None:
    # GIVEN a process without a handle WHEN it captures a product with a host's matrix THEN that is what is wrong
    x = torch.ones(2, 3, device=device())
    forget()
    with (
        pytest.raises(RuntimeError, match="on the same device, but got mat2 is on cpu"),
        cuda.graph(cuda.CUDAGraph()),
    ):
        (x + 1) @ torch.ones(3, 2, device="cpu")


def test_names_that_no_stream_has_are_no_names_of_a_gpu_s(cuda: Any) -> None:
    # GIVEN a stream and an event WHEN asked for a name that torch.cuda's have not either THEN Python's own answer
    stream, event = cuda.Stream(), cuda.Event()
    for each, kind in ((stream, "Stream"), (event, "Event")):
        with pytest.raises(AttributeError, match=f"'{kind}' object has no attribute 'nothing'"):
            _ = each.nothing
        assert not hasattr(each, "nothing")
    assert stream._as_parameter_.value == stream.cuda_stream


def test_raw_memory_and_states_of_no_device(cuda: Any) -> None:
    # GIVEN raw memory WHEN none is asked for, or what is none is freed THEN as torch.cuda answers
    assert cuda.caching_allocator_alloc(0) == 0
    cuda.caching_allocator_delete(0)
    with pytest.raises(RuntimeError, match="invalid device pointer: 0x7"):
        cuda.caching_allocator_delete(7)
    with pytest.raises(TypeError, match="Invalid type for stream argument"):
        cuda.caching_allocator_alloc(8, stream="a")
    # WHEN a device of another kind is named for the generator's state THEN only its number counts
    assert cuda.get_rng_state("cpu").equal(cuda.get_rng_state(0))


def test_a_mode_of_the_user_sees_no_stream_of_a_capture(cuda: Any) -> None:
    # GIVEN a mode that sees each function of torch WHEN a capture begins within it THEN it sees the user's alone
    seen: list[str] = []

    class Sees(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    x, graph = torch.ones(3, device=device()), cuda.CUDAGraph()
    with Sees(), cuda.graph(graph):
        y = x + x
    graph.replay()
    assert (seen, y.tolist()) == (["add"], [2, 2, 2])
