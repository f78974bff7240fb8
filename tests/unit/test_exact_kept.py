"""Gradients that are written over again, and nodes of the simulator's graphs: what is made, counted and packed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.capture.pair import InputSpec
from paramgraph_kit.driver.sim.graph import SimNode, pack_scalar
from paramgraph_kit.step import graphed
from paramgraph_kit.step.capture import Alias
from paramgraph_kit.step.graphed import Graphed
from paramgraph_kit.step.kept import Kept
from paramgraph_kit.trace.model import NodeKind
from tests.integration.launch_bench import DRIVER

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = DRIVER.device


def spec(*size: int, nbytes: int, stride: tuple[int, ...] | None = None) -> InputSpec:
    return InputSpec(size, stride or torch.empty(size).stride(), torch.float32, 256, nbytes)


class Made:
    """A driver that notes what it is asked to make."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.address_of, self.reinterpret = DRIVER.address_of, DRIVER.reinterpret

    def empty_strided(self, *how: Any) -> torch.Tensor:
        self.asked.append(how)
        return DRIVER.empty_strided(*how)


@pytest.mark.parametrize(
    ("wanted", "asked", "nbytes"),
    [
        (spec(2, 3, nbytes=24), ((2, 3), (3, 1)), 24),
        (spec(2, 3, nbytes=0), ((2, 3), (3, 1)), 24),
        (spec(2, 3, nbytes=25), ((7,), (1,)), 28),  # whole numbers
        (spec(2, 3, nbytes=512), ((128,), (1,)), 512),
        (spec(2, 3, nbytes=28, stride=(4, 1)), ((2, 3), (4, 1)), 28),
        (spec(2, 3, nbytes=29, stride=(4, 1)), ((8,), (1,)), 32),
        (spec(nbytes=4), ((), ()), 4),
        (spec(nbytes=5), ((2,), (1,)), 8),
    ],
)
def test_a_gradient_is_made_with_all_that_a_launch_writes_behind_it(
    wanted: InputSpec, asked: tuple[Any, ...], nbytes: int
) -> None:
    # GIVEN a gradient and the bytes that a launch writes WHEN made THEN on so much memory, and of its own layout
    made: Any = Made()
    found = Kept(made, [])._make(wanted)
    assert made.asked == [(*asked, torch.float32)]
    assert (tuple(found.shape), found.stride(), found.storage_offset()) == (wanted.size, wanted.stride, 0)
    assert found.untyped_storage().nbytes() == nbytes


def test_nothing_is_kept_of_nothing_and_the_largest_is_made_first() -> None:
    # GIVEN no gradients, then three WHEN asked for THEN nothing, then all, the largest made first
    made: Any = Made()
    assert Kept(made, []).free() == ((), False)
    kept = Kept(made, [spec(1, nbytes=4), spec(3, nbytes=12), spec(2, nbytes=8)])
    addresses, renewed = kept.free()
    assert renewed
    assert [size for size, *_ in made.asked] == [(3,), (2,), (1,)]
    assert [tuple(t.shape) for t in kept.tensors] == [(1,), (3,), (2,)]
    assert addresses == kept.addresses == tuple(map(DRIVER.address_of, kept.tensors))
    assert [t.untyped_storage()._cdata for t in kept.tensors] == kept._handles
    # AND nothing is left when they are forgotten, until they are asked for
    kept.forget()
    assert (kept.tensors, kept.addresses, kept._storages, kept._handles) == ([], (), [], [])
    assert kept.free()[1]
    assert len(made.asked) == 6


def test_a_gradient_grows_to_the_most_that_any_graph_writes() -> None:
    # GIVEN gradients WHEN another graph writes less, as much, and more behind them THEN only the last is made anew
    kept = Kept(DRIVER, [spec(4, nbytes=16), spec(4, nbytes=16), spec(4, nbytes=16)])
    kept.free()
    parameters = [torch.nn.Parameter(torch.ones(4, device=DEVICE)) for _ in range(3)]
    for parameter, gradient in zip(parameters, kept.tensors, strict=True):
        parameter.grad = gradient
    del gradient
    kept.grow([spec(4, nbytes=15), spec(4, nbytes=16), spec(4, nbytes=17)])
    assert [each.nbytes for each in kept.specs] == [16, 16, 17]
    before = list(map(id, kept.tensors))
    assert kept.free()[1]
    assert [a == id(b) for a, b in zip(before, kept.tensors, strict=True)] == [True, True, False]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_gradient_that_somebody_holds_is_made_anew_and_no_other(
    which: int, in_python: Callable[[Callable[[], Any]], Any]
) -> None:
    # GIVEN gradients of three parameters, as a launch has left them
    kept = Kept(DRIVER, [spec(4, nbytes=16)] * 3)
    kept.free()
    parameters = [torch.nn.Parameter(torch.ones(4, device=DEVICE)) for _ in range(3)]

    def put() -> None:
        for parameter, gradient in zip(parameters, kept.tensors, strict=True):
            parameter.grad = gradient

    put()
    for asked in (lambda ask: ask(), in_python):
        for free in (lambda: kept.free(), lambda: kept.free(parameters)):
            # WHEN nobody else holds one THEN all stay
            assert asked(free) == (kept.addresses, False)
            # WHEN somebody does, or a view of it, or it lies elsewhere THEN that one is another
            for hold in (
                lambda t: [t],
                lambda t: t.detach(),
                lambda t: setattr(t, "data", torch.ones(4, device=DEVICE)),
            ):
                before = list(map(id, kept.tensors))
                held = hold(kept.tensors[which])
                assert asked(free) == (kept.addresses, True)
                stayed = [a == id(b) for a, b in zip(before, kept.tensors, strict=True)]
                assert stayed == [n != which for n in range(3)]
                assert kept.addresses == tuple(map(DRIVER.address_of, kept.tensors))
                put()
                del held
    # WHEN its parameter holds it no more THEN it stays, unless somebody else does
    parameters[which].grad = None
    assert kept.free(parameters) == (kept.addresses, False)
    other = kept.tensors[which]
    assert kept.free(parameters) == (kept.addresses, True)
    assert other is not kept.tensors[which]


# -- results in the state's own memory


@pytest.mark.parametrize(
    "alias",
    [
        lambda x: x,
        lambda x: x[1:, 2],
        lambda x: x.t()[1:],
        lambda x: torch.view_as_real(x)[1],
        lambda x: x.real[2:],
        lambda x: x.imag,
        lambda x: x.conj()[1],
        lambda x: x.conj().imag,
        lambda x: x.view(torch.uint8)[1, 3:7],
        lambda x: x.view(torch.float64)[2:, 1],
    ],
)
@pytest.mark.parametrize("conjugated", [False, True])
def test_a_result_in_the_state_s_memory_is_a_view_of_it(alias: Callable[[Any], torch.Tensor], conjugated: bool) -> None:
    # GIVEN a complex tensor of the state, and a result that lies in it
    from paramgraph_kit.driver.tensors import bits_of

    plain = torch.randn(4, 4, dtype=torch.complex64)
    result = alias(plain)
    base = plain.conj() if conjugated else plain
    size, stride, offset = tuple(result.shape), result.stride(), int(result.storage_offset())
    told = Alias(7, size, stride, offset, result.dtype, bits_of(result))
    # WHEN put together THEN it is that view, whatever lazy bits the state's tensor has
    owner: Any = SimpleNamespace(_bases={7: base})
    found = Graphed._alias(owner, told)
    assert (found.shape, found.stride(), found.dtype, bits_of(found)) == (*told_layout(told), told.bits)
    assert torch.equal(found, result)
    assert found.data_ptr() == result.data_ptr()


def told_layout(alias: Alias) -> tuple[Any, ...]:
    return torch.Size(alias.size), alias.stride, alias.dtype


def test_schedulers_are_stepped_with_what_they_were_given() -> None:
    # GIVEN calls of schedulers WHEN made again THEN in order, each with its arguments
    made: list[Any] = []
    scheduler = SimpleNamespace(step=lambda *args, **kwargs: made.append((args, kwargs)))
    graphed._schedule([(scheduler, (), {}), (scheduler, (1,), {"epoch": 2})])
    assert made == [((), {}), ((1,), {"epoch": 2})]


# -- nodes


def node(random_delta: int | None = None) -> SimNode:
    layouts: Any = [((2, 3), (3, 1), torch.float32, (False, False)), ((), (), torch.float32, (False, False))]
    return SimNode(
        NodeKind.KERNEL, "k", [4096, 8192], layouts, b"scalars!", lambda *_: None, (0, 2), random_delta, 1 << 20
    )


def test_parameters_are_pointers_then_shapes_then_numbers() -> None:
    # GIVEN nodes with and without random numbers WHEN packed THEN to the byte
    shapes = struct.pack("<4q", 2, 3, 3, 1)
    plain, random = node(), node(5)
    assert bytes(plain.parameters) == struct.pack("<2Q", 4096, 8192) + shapes + b"scalars!"
    state = struct.pack("<4Q", 4096, 8192, 1 << 20, (1 << 20) + 8)
    assert bytes(random.parameters) == state + shapes + struct.pack("<Q", 5) + b"scalars!"
    assert (plain.addressed, random.addressed) == (16, 32)
    # AND a copy has parameters of its own, and looks again
    twin = random.copy()
    twin.parameters[0] = 1
    assert random.parameters[0] == 0
    assert (twin._pointers, twin._views, twin._epoch) == (None, [], -1)
    assert (random._pointers, random._views, random._epoch) == (None, [], -1)
    names = ("kind", "name", "layouts", "work", "deps", "random_delta", "origin")
    assert [getattr(twin, name) for name in names] == [getattr(random, name) for name in names]


def test_a_replay_reads_addresses_seed_and_offset_and_looks_again_where_memory_may_have_gone() -> None:
    # GIVEN a node with random numbers, and memory that notes what is asked
    asked: list[Any] = []
    seen: list[Any] = []
    found = node(5)
    found.work = lambda views, state: seen.append((len(views), state))

    def view(address: int, *layout: Any) -> torch.Tensor:
        asked.append(address)
        return torch.ones(1)

    def read(address: int, count: int) -> bytes:
        return struct.pack("<Q", address - (1 << 20) + 100)[:count]

    arena: Any = SimpleNamespace(view=view, read=read, epoch=0, coherent=False)
    # WHEN run again and again THEN views are made once
    found.run(arena)
    found.run(arena)
    assert seen == [(2, (100, 108 + 5))] * 2
    assert asked == [4096, 8192]
    # AND anew where an address is another one, memory was unmapped, or the host's memory counts too
    struct.pack_into("<Q", found.parameters, 8, 512)
    found.run(arena)
    arena.epoch = 1
    found.run(arena)
    found.run(arena)
    assert asked == [4096, 8192, 4096, 512, 4096, 512]
    arena.coherent = True
    found.run(arena)
    found.run(arena)
    assert len(asked) == 10
    # AND without random numbers there is no seed
    plain = node()
    plain.work = found.work
    plain.run(arena)
    assert seen[-1] == (2, None)


def test_numbers_are_packed_in_eight_bytes_each() -> None:
    # GIVEN values of all kinds WHEN packed THEN each as C has it
    assert pack_scalar(True) == struct.pack("<q", 1)
    assert pack_scalar(3) == struct.pack("<Q", 3)
    assert pack_scalar(-1) == b"\xff" * 8
    assert pack_scalar(1 << 64) == bytes(8)
    assert pack_scalar((1 << 64) - 1) == b"\xff" * 8
    assert pack_scalar(2.5) == struct.pack("<d", 2.5)
    assert pack_scalar(1 + 2j) == struct.pack("<2d", 1, 2)
    assert pack_scalar([1, (2.5, None)]) == struct.pack("<Qd", 1, 2.5)
    assert pack_scalar(torch.tensor(7)) == struct.pack("<Q", 7)
    assert [pack_scalar(x) for x in (None, "text", torch.float32)] == [b""] * 3


def test_kept_specs_are_a_list_of_its_own() -> None:
    # GIVEN specs WHEN one of the kept ones grows THEN the others' do not
    given = [spec(4, nbytes=16)]
    Kept(DRIVER, given).grow([replace(given[0], nbytes=32)])
    assert given[0].nbytes == 16
