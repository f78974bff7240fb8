"""A machine whose kernels can read the host's memory: its addresses count, and what cannot be proved is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.sim.device import set_coherent
from paramgraph_kit.driver.sim.machine import machine
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.launcher import Launcher
from paramgraph_kit.trace import UnsupportedError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()


@pytest.fixture
def coherent() -> Iterator[None]:
    """The simulated device is a coherent one."""
    set_coherent()
    yield
    set_coherent(False)


def on_device(table: Tensor) -> Tensor:
    """A tensor of the device over host memory: what a kernel is given that reads the host's memory where it is."""
    nbytes = table.untyped_storage().nbytes()
    return machine().tensor_at(table.data_ptr(), nbytes, table.shape, table.stride(), 0, table.dtype)


def launcher_of(look_up: Callable[[Tensor], Tensor], constants: tuple[Tensor, ...] = ()) -> Launcher:
    def run(inputs: list[Any]) -> tuple[Tensor]:
        (x,) = inputs
        inputs.clear()
        return (look_up(x),)

    return Launcher(driver(), PartitionCode("test", run, constants))


def calls(launcher: Launcher, count: int = 4) -> list[list[float]]:
    return [launcher([torch.full((4,), float(n)).to(DEVICE)])[0].tolist() for n in range(count)]


def test_elsewhere_a_host_address_is_an_illegal_one() -> None:
    # GIVEN an ordinary machine WHEN a kernel is given host memory THEN it is error 700, not a value
    table = torch.arange(4.0)
    assert not driver().reads_host
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        (torch.ones(4).to(DEVICE) + on_device(table)).tolist()


@pytest.mark.usefixtures("coherent")
def test_a_kernel_reads_host_memory_where_it_is() -> None:
    # GIVEN a coherent machine WHEN a kernel is given host memory THEN it reads what is there now
    table = torch.arange(4.0)
    twin = on_device(table)
    assert (torch.ones(4).to(DEVICE) + twin).tolist() == [1, 2, 3, 4]
    table.fill_(5)
    assert (torch.ones(4).to(DEVICE) + twin).tolist() == [6, 6, 6, 6]
    # AND memory that is nobody's is still an illegal address
    nothing = machine().tensor_at(4096, 16, (4,), (1,), 0, torch.float32)
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        nothing.tolist()


@pytest.mark.usefixtures("coherent")
def test_a_constant_on_the_host_is_read_at_every_launch() -> None:
    # GIVEN a partition that reads a constant of its model in host memory
    table = torch.arange(4.0)
    launcher = launcher_of(lambda x: x * 2 + on_device(table), (table,))
    # WHEN launched THEN it is graphed and right
    assert calls(launcher) == [[2.0 * n + k for k in range(4)] for n in range(4)]
    assert launcher.reasons == []
    (variant,) = launcher.variants.values()
    assert variant is not None
    assert variant.state.launches == 3
    # AND the host's writes are seen by the next launch, as ungraphed code sees them
    table.fill_(100)
    assert calls(launcher, 2) == [[100.0] * 4, [102.0] * 4]


@pytest.mark.usefixtures("coherent")
def test_host_memory_that_nobody_keeps_is_refused() -> None:
    # GIVEN a partition that reads host memory which is no constant, so it may be freed or moved before a launch
    table = torch.arange(4.0)
    launcher = launcher_of(lambda x: x * 2 + on_device(table))
    # WHEN called THEN results are right, nothing is graphed, and the reason names the kernel
    assert calls(launcher) == [[2.0 * n + k for k in range(4)] for n in range(4)]
    assert [(reason.code, reason.operation) for reason in launcher.reasons] == [("host-address", "add.Tensor")]


@pytest.mark.usefixtures("coherent")
def test_host_memory_made_anew_at_each_call_is_refused() -> None:
    # GIVEN a partition that makes the host memory which its kernel reads
    kept: list[Tensor] = []

    def look_up(x: Tensor) -> Tensor:
        kept.append(torch.arange(4.0) + len(kept))
        return x + on_device(kept[-1])

    launcher = launcher_of(look_up)
    # WHEN called THEN each call reads its own: a graph would go on reading the captured one
    for n in range(4):
        x = torch.zeros(4).to(DEVICE)
        made = len(kept)
        got = launcher([x])[0].tolist()
        assert got == kept[made].tolist(), n
    assert {reason.code for reason in launcher.reasons} == {"unexplained-word"}


@pytest.mark.usefixtures("coherent")
def test_ordinary_models_are_graphed_as_everywhere() -> None:
    # GIVEN a model that keeps to device memory WHEN compiled and launched THEN nothing is refused
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)).to(DEVICE)
    compiled: Any = pgk.compile(model)
    for n in range(3):
        x = torch.full((2, 8), float(n)).to(DEVICE)
        assert torch.equal(compiled(x), model(x))
    inside, everything = pgk.report(compiled).kernels
    assert inside == everything


def test_without_a_list_of_the_process_s_memory_it_cannot_be_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a system that does not tell WHEN asked for a coherent machine THEN that is said
    from paramgraph_kit.driver import host_memory

    monkeypatch.setattr(host_memory, "_MAPS", host_memory._MAPS.parent / "no_maps")
    with pytest.raises(UnsupportedError, match="on Linux only"):
        set_coherent()
    assert not driver().reads_host


@pytest.mark.usefixtures("coherent")
def test_pinned_memory_is_host_memory_like_any_other() -> None:
    # GIVEN a partition that reads pinned memory in place: once a constant of its model's, once nobody's
    table = torch.arange(4.0).pin_memory()
    constant, loose = launcher_of(lambda x: x + on_device(table), (table,)), launcher_of(lambda x: x + on_device(table))
    # WHEN called THEN only the constant is read by launches, which see the host's later writes
    assert calls(constant) == calls(loose) == [[float(n + k) for k in range(4)] for n in range(4)]
    assert constant.reasons == []
    assert [reason.code for reason in loose.reasons] == ["host-address"]
    table.fill_(7)
    assert calls(constant, 2) == [[7.0] * 4, [8.0] * 4]


@pytest.mark.usefixtures("coherent")
@pytest.mark.parametrize("way", ["up", "down"])
def test_copies_from_and_to_pinned_memory_run_ungraphed_as_everywhere(way: str) -> None:
    # GIVEN a step that copies from pinned memory, or to it, though a kernel could read it where it is
    host, staged = torch.zeros(4).pin_memory(), torch.zeros(4).to(DEVICE)

    def step(x: Tensor) -> Tensor:
        if way == "up":
            staged.copy_(host, non_blocking=True)
            return x + staged
        host.copy_(x * 2, non_blocking=True)
        return x + 1

    run = pgk.parameterize(step, state=[host, staged])
    # WHEN called while the host writes THEN results are right, with the reason
    for n in range(5):
        if way == "up":
            host.fill_(float(n))
        x = torch.full((4,), float(n)).to(DEVICE)
        assert run(x).tolist() == [2.0 * n if way == "up" else n + 1.0] * 4
        pgk.cuda.synchronize()
        assert host.tolist() == [float(n) if way == "up" else 2.0 * n] * 4
    (reason,) = pgk.report(run).reasons
    assert reason.code == ("host-memcpy" if way == "up" else "host-counter")


@pytest.mark.usefixtures("coherent")
def test_an_input_on_the_host_is_refused_though_a_kernel_could_read_it() -> None:
    # GIVEN a compiled function and a step that are given a tensor of the host
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 + y.to(x.device)

    torch._dynamo.reset()
    compiled: Any = torch.compile(function, backend="paramgraph")
    step = pgk.parameterize(function, state=())
    for n in range(4):
        x, y = torch.full((4,), float(n)).to(DEVICE), torch.arange(4.0) * n
        # WHEN called THEN each call reads its own, and what reads it is in no graph
        for call in (compiled, step):
            assert call(x, y).tolist() == [2.0 * n + n * k for k in range(4)]
    assert {reason.code for reason in pgk.report(compiled).reasons} & {"foreign-input", "device-copy", "cpu-op"}
    assert {reason.code for reason in pgk.report(step).reasons} <= {"foreign-input", "copy-to-gpu"}
    assert sum(row.launches for row in pgk.report(step).rows) == 0


@pytest.mark.usefixtures("coherent")
@pytest.mark.parametrize("anew", [False, True])
def test_a_step_whose_kernel_reads_host_memory_runs_as_it_is(anew: bool) -> None:
    # GIVEN a step whose kernel reads host memory in place: of a tensor in its state, or of one made at each call
    table, kept = torch.arange(4.0), []

    def function(x: Tensor) -> Tensor:
        kept.append(torch.arange(4.0) * float(x.shape[0]) if anew else table)
        return x + on_device(kept[-1])

    step = pgk.parameterize(function, state=[table])
    # WHEN called while the host writes, or makes another THEN no call reads what was
    for n in range(6):
        table.copy_(torch.arange(4.0) + n)
        x = torch.full((2, 4), float(n)).to(DEVICE)
        assert step(x).tolist() == function(x).tolist()
    report = pgk.report(step)
    assert sum(row.launches for row in report.rows) == 0
    assert {reason.code for reason in report.reasons} <= {"host-address", "unexplained-word", "side-effect"}
    assert report.reasons
