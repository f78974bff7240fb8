"""Names as the user has them, on every tensor and node that is launched, and what a launch was given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import driver
from paramgraph_kit.partition.names import user_name
from paramgraph_kit.trace import Capture, Role, Trace


class Block(nn.Module):
    """A layer with parameters, a buffer and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.relu(self.up(x))) * self.scale
        return out


class Model(nn.Module):
    """Layers in a list, and arguments of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(8, 8, bias=False)

    def forward(self, tokens: torch.Tensor, extra: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        for block in self.blocks:
            tokens = block(tokens)
        if extra is not None:
            tokens = tokens * extra["mask"]
        out: torch.Tensor = self.head(tokens)
        return out


def x() -> torch.Tensor:
    return torch.randn(4, 8).to(pgk.device())


def watched(fn: Any, *args: Any, calls: int = 3, backward: bool = False) -> Trace:
    with pgk.watch() as trace:
        for _ in range(calls):
            result = fn(*args)
            if backward:
                result.sum().backward()
    return trace


def called(capture: Capture, role: Role) -> dict[str, tuple[tuple[int, ...] | None, str]]:
    return {a.name: (a.shape, a.dtype) for a in capture.allocations if a.role is role}


PARAMETERS = {
    "blocks.2.up.weight": ((16, 8), "f32"),
    "blocks.0.down.bias": ((8,), "f32"),
    "head.weight": ((8, 8), "f32"),
}


@pytest.mark.parametrize("how", ["compile", "parameterize"])
def test_tensors_are_called_as_the_user_calls_them(how: str) -> None:
    # GIVEN a model, compiled or parameterized
    model = Model().to(pgk.device())
    extra = {"mask": torch.ones(8).to(pgk.device())}
    fn = torch.compile(model, backend="paramgraph") if how == "compile" else pgk.parameterize(model)
    # WHEN its launches are watched
    with torch.no_grad():
        (capture,) = watched(fn, x(), extra).captures
    # THEN parameters, buffers and arguments have their names, shapes and types
    inputs = called(capture, Role.INPUT)
    assert PARAMETERS.items() <= inputs.items()
    assert inputs["blocks.1.scale"] == ((8,), "f32")
    assert inputs["tokens"] == ((4, 8), "f32")
    assert inputs["extra['mask']"] == ((8,), "f32")
    # AND the result does, and each node that has a parameter's address knows its module
    assert called(capture, Role.OUTPUT) == {"output 0": ((4, 8), "f32")}
    by_name = {a.name: a.index for a in capture.allocations}
    for path in ("blocks.0.up", "blocks.2.down", "head"):
        mine = [n for n in capture.nodes if any(w.allocation == by_name[f"{path}.weight"] for w in n.words)]
        assert {n.module for n in mine} == {path}


@pytest.mark.parametrize("backward", [False, True])
def test_parameterize_tells_the_lines_and_modules_that_compile_tells(*, backward: bool) -> None:
    # GIVEN a function that calls a model and goes on, some of it in a library's module
    model = Model().to(pgk.device())

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        made = model(tokens)
        made = nn.functional.gelu(made) * 2
        return made.square().mean()

    def told(fn: Any) -> list[list[tuple[str, int, str]]]:
        with torch.set_grad_enabled(backward):
            captures = watched(fn, x(), backward=backward).captures
        assert len(captures) == 1 + backward
        return [[(n.name, n.frame.line if n.frame else 0, n.module) for n in c.nodes] for c in captures]

    # WHEN it is parameterized, and when it is compiled
    ours, theirs = told(pgk.parameterize(forward)), told(torch.compile(forward, backend="paramgraph"))
    # THEN each node has its line and the module that ran it, as after compiling
    assert ours[0] == theirs[0]
    # AND so has the backward, though what is saved for it is chosen otherwise
    products = [[each for each in nodes[-1] if each[0] in ("mm", "addmm")] for nodes in (ours, theirs)]
    assert {each for each in products[1] if each[0] == "mm"} <= set(products[0]) or not backward
    assert all(line for nodes in ours for _, line, _ in nodes)
    assert {module for *_, module in ours[-1]} >= {"model.blocks.2", "model.blocks.0.up", "model.head"}


def test_what_is_not_graphed_by_parameterize_is_told_with_its_line() -> None:
    # GIVEN a function that takes a detour over the CPU
    def forward(tokens: torch.Tensor) -> torch.Tensor:
        h = tokens.relu()
        k = h.cpu() + 1
        return k.to(tokens.device) * h

    # WHEN it is parameterized and called
    fn = pgk.parameterize(forward)
    watched(fn, x())
    # THEN each reason has the line
    texts = [reason.frame.text if reason.frame else "" for reason in pgk.report(fn).reasons]
    assert texts == ["k = h.cpu() + 1", "k = h.cpu() + 1", "return k.to(tokens.device) * h"]


def test_a_whole_step_has_names_for_what_it_is_given_and_for_its_state() -> None:
    # GIVEN a training step, with an average that it makes anew
    device = pgk.device()
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8)).to(device)
    opt = torch.optim.Adam(net.parameters(), capturable=True)
    ema = {"w": torch.zeros(4, 8).to(device)}

    def step(tokens: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = nn.functional.mse_loss(net(tokens), batch["y"])
        opt.zero_grad()
        torch.autograd.backward(loss)
        opt.step()
        ema["w"] = ema["w"] * 0.9 + net.get_parameter("0.weight").detach() * 0.1
        return loss.detach()

    # WHEN its launches are watched
    (capture,) = watched(pgk.parameterize(step, state=(net, opt)), x(), {"y": x()}, calls=4).captures
    # THEN arguments, gradients and what it keeps have their names, shapes and types
    gradients = {f"net.{n}.grad": (tuple(p.shape), "f32") for n, p in net.named_parameters()}
    given = {"tokens": ((4, 8), "f32"), "batch['y']": ((4, 8), "f32"), "ema['w']": ((4, 8), "f32")}
    assert called(capture, Role.INPUT) == given | gradients
    # AND words that have an address of the state say whose it is
    told = {w.evidence.partition(": ")[2] for n in capture.nodes for w in n.words if "stays where it is" in w.evidence}
    for name in ("net.0.weight [4x8] f32", "exp_avg of net.2.bias [8] f32", "step of net.0.bias [] f32"):
        assert f"{name}, which stays where it is" in told
    assert capture.nodes[0].module == "net.0"


def test_what_operations_make_is_called_by_their_modules() -> None:
    # GIVEN a compiled model WHEN its launches are watched
    model = Model().to(pgk.device())
    with torch.no_grad():
        (capture,) = watched(torch.compile(model, backend="paramgraph"), x()).captures
    # THEN the workspace is called by module and operation, at the user's line, with shapes
    made = [a for a in capture.allocations if a.role is Role.WORKSPACE]
    assert ("blocks.1.up: addmm", (4, 16), "f32") in [(a.name, a.shape, a.dtype) for a in made]
    relu = next(a for a in made if a.name == "blocks.2: relu")
    assert relu.frame is not None
    assert "torch.relu(self.up(x))" in relu.frame.text
    # AND every node has its module, and what it runs
    assert {n.module for n in capture.nodes} >= {"blocks.0", "blocks.0.up", "blocks.2.down", "head"}
    assert capture.nodes[0].source.startswith("addmm = aten.addmm.default(")


def test_a_backward_knows_what_its_gradients_are_of() -> None:
    # GIVEN a compiled model that is trained WHEN its launches are watched
    model = Model().to(pgk.device())
    backward = watched(torch.compile(model, backend="paramgraph"), x(), backward=True).captures[1]
    # THEN its results are gradients of parameters, its inputs are called as in the forward
    made = called(backward, Role.OUTPUT)
    assert made["gradient of blocks.2.up.weight"] == ((16, 8), "f32")
    assert "gradient of head.weight" in made
    given = called(backward, Role.INPUT)
    assert {"blocks.0: relu", "head.weight", "gradient of output 0"} <= set(given)
    # AND its nodes belong to the modules of the forward
    assert {n.module for n in backward.nodes} >= {"head", "blocks.1.down", "blocks.0"}


def test_a_launch_keeps_the_addresses_that_it_was_given() -> None:
    # GIVEN a compiled model
    model = torch.compile(Model().to(pgk.device()), backend="paramgraph")
    inputs = [x() for _ in range(3)]
    with torch.no_grad():
        warm = [model(x()) for _ in range(3)]
        # WHEN it is called with new tensors, and with the same ones again
        with pgk.watch() as trace:
            results = [model(each) for each in [*inputs, inputs[-1]]]
    # THEN each launch that patched names the address of every slot, and today's input is among them
    (capture,) = trace.captures
    slot = next(a.slot for a in capture.allocations if a.name == "tokens")
    assert slot is not None
    slots = {a.slot for a in capture.allocations if a.slot is not None}
    patched = [launch for launch in trace.launches if launch.words_patched]
    assert len(patched) >= 3
    assert all(len(launch.addresses) == len(slots) for launch in patched)
    assert [launch.addresses[slot] for launch in patched[:3]] == [driver().address_of(each) for each in inputs]
    assert all(launch.addresses == () for launch in trace.launches if not launch.words_patched)
    # AND the simulated device's time is not taken for time
    assert {launch.start_us for launch in trace.launches} == {None}
    assert len(warm + results) == 7


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['self']._modules['odd']._parameters['a-b']", "odd.a-b"),
        ("L['self'].extra", "extra"),
        ("L['self']", "self"),
        ("L['params'][1]['k']", "params[1]['k']"),
        ("G['model']._modules['0']._buffers['scale']", "model.0.scale"),
        ("something else", "something else"),
    ],
)
def test_sources_of_dynamo_read_as_code(source: str, name: str) -> None:
    # GIVEN a source WHEN it is named THEN it reads as its user wrote it
    assert user_name(source) == name


def test_the_nodes_of_a_whole_step_have_the_lines_that_recorded_them() -> None:
    # GIVEN a training step, launched as one graph
    model = torch.nn.Linear(4, 1).to(pgk.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    launched = pgk.parameterize(step, state=(model, optimizer))
    with pgk.watch() as trace:
        for _ in range(4):
            launched(torch.randn(3, 4, device=pgk.device()))
    # THEN each node names the line of the user's that was running, the backward's and the optimizer's too
    lines = dict.fromkeys(node.frame.text if node.frame else "" for node in trace.captures[0].nodes)
    assert list(lines) == [
        "loss: torch.Tensor = model(x).square().mean()",
        "torch.autograd.backward(loss)",
        "optimizer.step()",
    ]
