from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.backend.registry import CompiledGraph, compiled_graphs
from paramgraph_kit.trace.errors import DeviceMismatchError, ParamgraphError, UnsupportedError
from tests.integration.launch_bench import DEVICE, host, launches, moved

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


@pytest.fixture
def before() -> Iterator[set[CompiledGraph]]:
    """The graphs that there were before; a failed compilation must leave none."""
    torch._dynamo.reset()
    yield set(compiled_graphs())
    torch._dynamo.reset()


def failure(call: Any) -> Exception:
    """Our own error as it is, not inside of one of Dynamo's, in one line, and the same at the next call."""
    texts = set()
    for _ in range(2):
        with pytest.raises(ParamgraphError) as caught:
            call()
        texts.add(str(caught.value))
    (text,) = texts
    assert "\n" not in text
    return caught.value


def double(x: Tensor) -> Tensor:
    return x.sin() * 2


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (
            {"options": {"speed": 3}},
            "unknown option 'speed' of backend='paramgraph'; known: patching, stages, select, verify, strict",
        ),
        ({"options": {"patching": "gpu"}}, "patching='gpu': choose one of 'auto', 'device', 'host'"),
        ({"options": {"stages": 0}}, "stages=0: give a whole number, 1 or more"),
        ({"options": {"verify": True}}, "verify=True: choose one of 'off', 'first', 'always'"),
        ({"options": {"select": None}}, "select=None: choose one of 'always', 'measure', 'never'"),
        (
            {"mode": "reduce-overhead"},
            "mode='reduce-overhead' is Inductor's; backend='paramgraph' takes options=... only",
        ),
    ],
    ids=["name", "patching", "stages", "verify", "select", "mode"],
)
def test_unknown_options_are_refused_in_one_line(how: dict[str, Any], text: str, before: set[CompiledGraph]) -> None:
    # GIVEN an option that there is not
    fast = torch.compile(double, backend=paramgraph, **how)
    # WHEN the function is called THEN the error names it and what there is, and nothing is registered
    error = failure(lambda: fast(moved(4)))
    assert type(error) is UnsupportedError
    assert str(error) == text
    assert set(compiled_graphs()) == before
    # AND the same function compiles without it
    assert torch.equal(host(torch.compile(double, backend=paramgraph)(moved(4))), host(double(moved(4))))


def test_a_module_that_was_never_moved_is_named_with_its_device_and_the_way_out(before: set[CompiledGraph]) -> None:
    # GIVEN a module on the CPU, and inputs there
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    # WHEN it is compiled and called THEN the error names its first parameter, where it is, and what to write
    error = failure(lambda: torch.compile(model, backend=paramgraph)(torch.randn(2, 4)))
    assert type(error) is DeviceMismatchError
    assert str(error) == (
        f"'0.0.weight' of the compiled module is on cpu, but graphs are made on {DEVICE}: "
        "move model and inputs with .to(paramgraph_kit.device()) first"
    )
    assert set(compiled_graphs()) == before
    # AND once both are moved it works
    x = torch.randn(2, 4).to(DEVICE)
    model.to(DEVICE)
    torch._dynamo.reset()
    assert torch.equal(host(torch.compile(model, backend=paramgraph)(x)), host(model(x)))


def test_a_module_with_buffers_only_is_found_too(before: set[CompiledGraph]) -> None:
    # GIVEN a module on the CPU whose only state is a buffer
    class Shift(nn.Module):
        by: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("by", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.by

    # WHEN it is compiled and called THEN the error names it
    error = failure(lambda: torch.compile(Shift(), backend=paramgraph)(torch.randn(4)))
    assert str(error).startswith("'by' of the compiled module is on cpu")


def test_a_tensor_of_the_cpu_that_the_graph_holds_is_no_module_left_behind() -> None:
    # GIVEN a tensor that Dynamo puts into the graph itself, as it does with an optimizer's step
    step = torch.ones(())
    torch._dynamo.mark_static_address(step, guard=True)
    # WHEN a function of it is compiled THEN it runs ungraphed, as eager does
    assert float(torch.compile(lambda x: x + 1, backend=paramgraph)(step)) == 2.0


def test_work_on_the_host_without_a_module_runs_ungraphed_with_the_reason(before: set[CompiledGraph]) -> None:
    # GIVEN a function of CPU tensors, as preparing a batch is
    x = torch.randn(4)
    # WHEN it is compiled and called THEN it just runs, and the reason is at the user's line
    assert torch.equal(torch.compile(double, backend=paramgraph)(x), double(x))
    (graph,) = set(compiled_graphs()) - before
    assert graph.launchers == []
    assert {(r.code, r.message) for r in graph.reasons} == {("cpu-op", f"runs on cpu, not on {DEVICE.type}")}
    assert {r.frame.text for r in graph.reasons if r.frame} == {"return x.sin() * 2"}


def test_a_module_partly_elsewhere_runs_what_it_can_from_graphs(before: set[CompiledGraph]) -> None:
    # GIVEN a module whose first layer stays on the CPU on purpose
    class Offloaded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.near, self.far = nn.Linear(4, 4), nn.Linear(4, 4).to(DEVICE)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.far(self.near(x).to(DEVICE)).sin()
            return y

    model = Offloaded().eval()
    x = torch.randn(2, 4)
    # WHEN it is compiled and called THEN numbers are right, and the part on the device is graphed
    with torch.no_grad():
        fast = torch.compile(model, backend=paramgraph)
        for _ in range(3):
            assert torch.equal(host(fast(x)), host(model(x)))
    (graph,) = set(compiled_graphs()) - before
    assert [launches(launcher) for launcher in graph.launchers] == [2]
    assert {r.code for r in graph.reasons} == {"cpu-op", "device-copy"}


def test_a_model_that_breaks_its_graph_works_and_both_halves_are_graphed(
    before: set[CompiledGraph], capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a function with a print in the middle, which ends Dynamo's graph
    def talks(x: Tensor) -> Tensor:
        y = x.sin() + 1
        print("half way")
        return y.cos() * 2

    fast = torch.compile(talks, backend=paramgraph)
    for call in range(3):
        x = moved(8, seed=call)
        # WHEN it is called THEN numbers are eager's and the print happens
        assert torch.equal(host(fast(x)), host(talks(x)))
    assert capsys.readouterr().out == "half way\n" * 6
    # AND there are two graphs, launched at every call but the first
    graphs = [graph for graph in compiled_graphs() if graph not in before]
    assert [launches(launcher) for graph in graphs for launcher in graph.launchers] == [2, 2]
    # AND both are of that function
    assert [graph.callers.any_of([talks.__code__]) for graph in graphs] == [True, True]


def in_fresh_process(prepare: str, repository: Path) -> list[str]:
    """Break something, then compile for the simulator in a process of its own; what it prints, line by line."""
    script = f"""
        import torch
        {prepare}
        from paramgraph_kit.backend import paramgraph
        from paramgraph_kit.backend.registry import compiled_graphs
        from paramgraph_kit.driver.select import device, driver
        for call in (device, driver, lambda: torch.compile(torch.sin, backend=paramgraph)(torch.randn(3))):
            try:
                call()
                print("no error")
            except Exception as error:
                print(type(error).__name__, error)
        from paramgraph_kit.driver.sim.device import registered
        print(registered(), compiled_graphs(), torch._C._get_privateuse1_backend_name())
        print(torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.zeros(1)).item())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=repository, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


SLOT_TAKEN = (
    "the simulated device needs torch's PrivateUse1 slot, which 'other' has taken: start a fresh process without that "
    "backend"
)
NO_WAY_IN = (
    f"torch {torch.__version__} has no torch.utils.backend_registration:_setup_privateuseone_for_python_backend "
    "(a device in Python); seen in torch 2.11, 2.13: install one of these"
)


@pytest.mark.parametrize(
    ("prepare", "text", "slot"),
    [
        (
            "torch.__version__ = '2.10.1+cpu'",
            "paramgraph_kit needs torch 2.11 or newer, this is 2.10.1+cpu: upgrade torch",
            "privateuseone",
        ),
        (
            "import torch.utils.backend_registration as b; b._setup_privateuseone_for_python_backend('other')",
            SLOT_TAKEN,
            "other",
        ),
        (
            "import torch.utils.backend_registration as b; del b._setup_privateuseone_for_python_backend",
            NO_WAY_IN,
            "privateuseone",
        ),
    ],
    ids=["old torch", "slot taken", "torch without the way in"],
)
def test_without_gpu_and_simulator_every_way_in_says_why_in_one_line(
    prepare: str, text: str, slot: str, repository: Path
) -> None:
    # GIVEN a process in which there can be neither GPU nor simulator WHEN device, driver and backend are asked for
    lines = in_fresh_process(prepare, repository)
    # THEN each says the same in one line, nothing is half registered, and torch goes on without us
    assert lines == [*[f"UnsupportedError {text}"] * 3, f"False [] {slot}", "1.0"]
