"""Lazily conjugated and negated tensors on the simulated device: right eagerly, right in a graph, and no address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paramgraph_kit.driver.api import Binding
from paramgraph_kit.driver.select import device, driver, twin

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU"),
    pytest.mark.usefixtures("one_thread"),
]

Tensor = torch.Tensor


def plain(value: Tensor) -> Tensor:
    """On the CPU with no lazy bit, and real, so that it can be compared."""
    value = value.cpu().resolve_conj().resolve_neg()
    return torch.view_as_real(value) if value.is_complex() else value


def assign(change: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """The operand after ``change`` has written to it through a view."""

    def call(x: Tensor) -> Tensor:
        copy = x.clone()
        change(copy)
        return copy

    return call


COMPLEX: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: getattr(torch.fft, name) for name in ("ifft", "ifft2", "ifftn", "hfft", "hfft2", "irfft")},
    "conj": lambda x: x.conj(),
    "conj of a result": lambda x: torch.conj(x * 2),
    "imag of a conjugate": lambda x: torch.conj(x * 2).imag,
    "conj as an input": lambda x: x.conj() * 2,
    "conj_physical of a conjugate": lambda x: torch.conj_physical(x.conj()),
    "a slice of a conjugate": lambda x: x.conj()[1:, ::2] + 1,
    "a conjugate as a matrix": lambda x: x.conj() @ x.mH,
    "clone of a conjugate": lambda x: x.conj().clone(),
    "a conjugate in a list": lambda x: torch.cat([x, x.conj()]),
    "written through a conjugate": assign(lambda x: x.conj().mul_(2j)),
    "copied from its own conjugate": assign(lambda x: x.copy_(x.conj())),
    "filled through a conjugate": assign(lambda x: x.conj()[0].fill_(2j)),
    "filled through the imaginary part of a conjugate": assign(lambda x: x.conj().imag.fill_(2)),
    "foreach over conjugates": lambda x: torch._foreach_add([x.conj(), x], 1)[0],
}
REAL: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: getattr(torch.fft, name) for name in ("ihfft", "ihfft2")},
    "negative view": lambda x: torch._neg_view(x),
    "negative view as an input": lambda x: torch._neg_view(x) + 1,
}
PROGRAMS = [pytest.param(call, dtype, id=name) for calls, dtype in ((COMPLEX, torch.complex64), (REAL, torch.float32))
            for name, call in calls.items()]  # fmt: skip


@pytest.mark.parametrize(("call", "dtype"), PROGRAMS)
def test_the_device_computes_what_the_cpu_computes(call: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    # GIVEN a tensor of the host
    x = torch.randn(8, 6, dtype=dtype, generator=torch.Generator().manual_seed(0))

    # WHEN a program runs on a copy of it on the device
    expected, got = call(x), call(x.to(device()))

    # THEN value and lazy bits are the CPU's
    assert torch.equal(plain(got), plain(expected))
    assert (got.is_conj(), got.is_neg()) == (expected.is_conj(), expected.is_neg())


@pytest.mark.parametrize(("call", "dtype"), PROGRAMS)
def test_a_replay_computes_what_the_cpu_computes(call: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    # GIVEN the program captured on one value
    cuda = twin()
    x = torch.zeros(8, 6, dtype=dtype, device=device())
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        got = call(x * 1)

    # WHEN it is replayed on another
    values = torch.randn(8, 6, dtype=dtype, generator=torch.Generator().manual_seed(1))
    x.copy_(values)
    graph.replay()

    # THEN
    assert torch.equal(plain(got), plain(call(values)))


def test_a_conjugate_copied_from_the_host_into_a_graph_is_conjugated() -> None:
    # GIVEN a copy of a pinned conjugate, captured
    cuda = twin()
    host = torch.randn(4, dtype=torch.complex64).pin_memory()
    target = torch.zeros(4, dtype=torch.complex64, device=device())
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        target.conj().copy_(host, non_blocking=True)

    # WHEN
    graph.replay()

    # THEN
    assert torch.equal(plain(target), plain(host.conj()))


def test_an_address_does_not_carry_the_bits() -> None:
    # GIVEN a graph recorded with a plain input
    d = driver()
    value = torch.randn(4, dtype=torch.complex64).to(device())
    out = torch.empty_like(value)
    with d.phantom(0) as phantom:
        mirror = d.tensor_at(phantom.reserve(32), 32, (4,), (1,), 0, torch.complex64)
        result = d.tensor_at(phantom.reserve(32), 32, (4,), (1,), 0, torch.complex64)
        recording = d.record(lambda: torch.mul(mirror, 2, out=result), phantom, survey=True)
    executable = d.instantiate(
        recording, range(1), [Binding(0, 0, 0, 0), Binding(0, 8, 1, 0)], 2, patching="auto"
    )  # fmt: skip

    # WHEN it gets the address of a conjugate
    conjugate = value.conj()
    executable.patch([conjugate.data_ptr(), out.data_ptr()])
    executable.launch(0)

    # THEN the number is wrong, as on a GPU: whoever launches has to look at more than addresses
    assert torch.equal(plain(out), plain(value * 2))
    assert not torch.equal(plain(out), plain(conjugate * 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.linalg.qr(x)[0],  # of columns
        lambda x: torch.sin(x.mT),
        lambda x: torch._efficientzerotensor(x.shape, device=x.device) * x,  # without memory
        lambda x: torch.sum(x[:0], 0),
        lambda x: x[:0] * 2,
        lambda x: torch.fft.ifft(x).conj() * 2,
    ],
    ids=["columns", "transposed", "zeros without memory", "of nothing", "nothing", "lazy bits"],
)
def test_a_result_of_any_layout_holds_what_the_cpus_kernel_gave(make: Callable[[Tensor], Tensor]) -> None:
    # GIVEN a kernel of the CPU whose result is not plainly one row after the other WHEN it runs for the device
    x = torch.arange(12.0).reshape(4, 3) + torch.eye(4, 3)
    found, expected = make(x.to(device())), make(x)
    # THEN numbers and strides are the same
    assert torch.equal(plain(found), plain(expected))
    assert found.stride() == expected.stride()


@pytest.mark.parametrize(
    ("lazy", "at_once", "copied"),
    [
        (lambda x: torch._neg_view(x), -5 - 5j, 1 + 2j),
        (lambda x: x.conj(), 5 - 5j, 1 + 2j),
        (lambda x: torch._neg_view(x.conj()), -5 + 5j, 1 + 2j),
    ],
    ids=["negated", "conjugated", "both"],
)
def test_a_captured_copy_to_the_host_changes_what_is_there_then(
    lazy: Callable[[Tensor], Tensor], at_once: complex, copied: complex, cuda: Any
) -> None:
    # GIVEN pinned memory, and a capture that copies there what is lazily another number
    x, host = torch.full((2,), 1 + 2j, device=device()), torch.full((2,), 5 + 5j).pin_memory()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        host.copy_(lazy(x), non_blocking=True)
    # THEN torch has made that of the numbers of the host, on the host [H200]
    assert host.tolist() == [at_once] * 2
    # WHEN it is replayed THEN the numbers come as they lie
    graph.replay()
    cuda.synchronize()
    assert host.tolist() == [copied] * 2
