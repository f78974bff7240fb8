"""Whole steps with tensors that are wrappers of others, as quantized weights and DTensors are: on the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()


class Silent(Tensor):
    """A tensor in two parts that computes as their product; without memory of its own, it does not tell its parts."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype, device=codes.device)

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self.codes, self.scale = codes, scale

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if function is torch.ops.aten.detach.default:
            return type(args[0])(args[0].codes, args[0].scale)
        plain = lambda x: x.codes * x.scale  # noqa: E731
        return function(*tree_map_only(Silent, plain, args), **tree_map_only(Silent, plain, kwargs or {}))


class Scaled(Silent):
    """One that tells."""

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: Any, size: Any, stride: Any) -> Scaled:
        return Scaled(inner["codes"], inner["scale"])


class Hidden(Scaled):
    """The same in slots, where no dictionary shows its parts."""

    __slots__ = ("codes", "scale")


class Sharded(Scaled):
    """One that is here in part, as a DTensor is."""

    class device_mesh:  # noqa: N801 - DTensor's attribute
        """Of two devices."""

        size = staticmethod(lambda: 2)


class Net(nn.Module):
    w: Any

    def __init__(self, kind: type[Silent] = Scaled) -> None:
        super().__init__()
        torch.manual_seed(0)
        codes = torch.randint(-8, 8, (4, 4)).float()
        self.w = nn.Parameter(kind(codes.to(DEVICE), torch.rand(4, 1).to(DEVICE)), requires_grad=False)
        self.v = nn.Linear(4, 4).to(DEVICE)

    def forward(self, x: Tensor) -> Any:
        return self.v(x) @ self.w


def _beside(
    make: Callable[[], Net], step_of: Callable[[Net], Any], between: Callable[[Net, int], None] = lambda net, n: None
) -> Any:
    """Eight calls of a step and of eager code, all equal; the step's report."""
    ours, theirs = make(), make()
    launched, eager = pgk.parameterize(step_of(ours), state=ours), step_of(theirs)
    for n in range(8):
        between(ours, n)
        between(theirs, n)
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(n)).to(DEVICE)
        assert torch.equal(torch.as_tensor(launched(x)), torch.as_tensor(eager(x.clone())))
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
            assert torch.equal(a + 0, b + 0)
    return pgk.report(launched)


def _inference(net: Net) -> Any:
    return torch.no_grad()(lambda x: net(x))


def _training(net: Net) -> Any:
    optimizer = torch.optim.SGD(net.v.parameters(), lr=0.1)

    def step(x: Tensor) -> Any:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("kind", [Scaled, Hidden])
@pytest.mark.parametrize("step_of", [_inference, _training])
def test_a_step_reads_what_is_inside(kind: type[Silent], step_of: Any) -> None:
    # GIVEN a frozen weight that is a wrapper WHEN a step computes with it THEN it is launched, equal to eager code
    report = _beside(lambda: Net(kind), step_of)
    assert report.reasons == ()
    assert sum(row.launches for row in report.rows) >= 4


@pytest.mark.parametrize("kind", [Scaled, Hidden])
def test_what_changes_inside_is_todays(kind: type[Silent]) -> None:
    # GIVEN a weight whose parts are written, replaced, exchanged, and that is replaced itself, between calls
    def between(net: Net, n: int) -> None:
        if n == 3:
            net.w.scale.mul_(2)
        if n == 4:
            net.w.codes = net.w.codes + 1
        if n == 6:
            net.w = nn.Parameter(kind(net.w.codes.clone(), net.w.scale.clone()), requires_grad=False)

    # WHEN stepped THEN each call computes with what is there, and later ones are launched again
    report = _beside(lambda: Net(kind), _inference, between)
    assert sum(row.launches for row in report.rows) >= 3


def test_what_a_step_writes_inside_is_written_by_launches() -> None:
    # GIVEN a step that writes a part in place
    def step_of(net: Net) -> Any:
        def step(x: Tensor) -> Any:
            net.w.scale.mul_(0.9)
            return net(x)

        return torch.no_grad()(step)

    # WHEN stepped THEN it is launched
    report = _beside(Net, step_of)
    assert report.reasons == ()
    assert sum(row.launches for row in report.rows) >= 4


def _replacing(net: Net) -> Any:
    def step(x: Tensor) -> Any:
        net.w.scale = net.w.scale * 0.9
        return net(x)

    return torch.no_grad()(step)


def _making(net: Net) -> Any:
    def step(x: Tensor) -> Any:
        net.w = nn.Parameter(Scaled(net.w.codes, net.w.scale * 0.9), requires_grad=False)
        return net(x)

    return torch.no_grad()(step)


def _returning(net: Net) -> Any:
    return torch.no_grad()(lambda x: Scaled(x, net.w.scale[:3]))


@pytest.mark.parametrize(
    ("kind", "step_of", "reason"),
    [
        (Scaled, _replacing, "side-effect: fn.w is a Scaled with other tensors inside after the call"),
        (Scaled, _making, "unknown-output: net['w'] holds a Scaled, which no launch can put together"),
        (Scaled, _returning, "unknown-output: the step returns a Scaled, and a graph returns plain tensors"),
        (Silent, _inference, "hidden-tensor: net.w is a Silent, which does not tell what tensors it has inside"),
        (Sharded, _inference, "user-stream: net.w is a Sharded on 2 devices, and collectives work on streams of their"),
    ],
)
def test_what_no_launch_can_do_has_its_reason(kind: type[Silent], step_of: Any, reason: str) -> None:
    # GIVEN a step that puts a wrapper together, or one that nobody can look into WHEN stepped THEN the reason says so
    report = _beside(lambda: Net(kind), step_of)
    said = [f"{found.code}: {found.message}" for found in report.reasons]
    assert [text.startswith(reason.replace("fn.w", "net.w")) for text in said] == [True], said


def test_a_function_that_is_traced_says_who_takes_such_a_member() -> None:
    # GIVEN a model with such a weight WHEN parameterized without state= THEN the reason says what takes it
    net = Net()
    launched = pgk.parameterize(net)
    with torch.no_grad():
        launched(torch.randn(3, 4).to(DEVICE))
    (reason,) = pgk.report(launched).reasons
    assert reason.code == "unknown-argument"
    assert reason.message.endswith("As a member, parameterize(fn, state=model) and torch.compile take it")
