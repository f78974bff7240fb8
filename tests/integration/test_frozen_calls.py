"""Calls without Dynamo's frame evaluation agree with ordinary ones whatever has changed since, or are not made."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paramgraph_kit as pgk
from paramgraph_kit.backend.direct.located import MISSED
from paramgraph_kit.backend.frozen.calls import FrozenCalls
from paramgraph_kit.backend.frozen.guards import Member, laid_out

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()
# Changes that are tried on each model; the whole proof is `PARAMGRAPH_FUZZ=10000 pytest -k fuzz` on this file.
CHANGES = int(os.environ.get("PARAMGRAPH_FUZZ", "400"))

GAIN = 2.0
TABLE = {"shift": 0.5}


def helper(x: Tensor) -> Tensor:
    """Reads globals, as helpers do."""
    return x * GAIN + TABLE["shift"]


class Inner(nn.Module):
    """A block with state of every kind that a program keeps in a module."""

    bias_of_class = 0.25

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)
        self.scale, self.sizes, self.names = 1.5, [1, 2], {"power": 2}
        self.settings = SimpleNamespace(shift=0.125)
        self.held: Tensor
        self.register_buffer("held", torch.ones(8))

    def forward(self, x: Tensor, extra: Tensor | None = None, *, times: int = 1) -> Tensor:
        """Read all of it."""
        y = self.linear(self.norm(x)) * self.scale + self.held * self.sizes[0] + self.bias_of_class
        y = y ** self.names["power"] + self.settings.shift
        if self.training:
            y = y + 1
        if extra is not None:
            y = y + extra
        return helper(y) * times


class Outer(nn.Module):
    """Two blocks in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Inner(), Inner()])

    def forward(self, x: Tensor, extra: Tensor | None = None, *, times: int = 1) -> Tensor:
        """Both blocks."""
        for block in self.blocks:
            x = block(x, extra, times=times)
        return x


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def frozen_of(compiled: Any) -> FrozenCalls:
    found: FrozenCalls = compiled if isinstance(compiled, FrozenCalls) else compiled.__dict__["_frozen_calls"]
    return found


def warmed(model: Any, guards: str, *args: Any, **named: Any) -> Any:
    """``model`` compiled and called until its calls are frozen."""
    compiled = pgk.compile(model, guards=guards)
    with torch.no_grad():
        for _ in range(5):
            compiled(*args, **named)
    assert len(frozen_of(compiled)._frozen) == 1, frozen_of(compiled).reason
    return compiled


def rows(count: int = 4) -> Tensor:
    return torch.randn(count, 8, device=DEVICE)


Undo = Callable[[], None]


def setting(owner: Any, name: str, value: Any) -> Undo:
    before = getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before)


def item(owner: Any, key: Any, value: Any) -> Undo:
    before = owner[key]
    owner[key] = value
    return lambda: owner.__setitem__(key, before)


def entered(context: Any) -> Undo:
    stack = contextlib.ExitStack()
    stack.enter_context(context)
    return stack.close


def other_data(parameter: Tensor) -> Undo:
    before = parameter.data
    with torch.inference_mode(False):
        parameter.data = torch.randn_like(before)
    return lambda: setattr(parameter, "data", before)


def in_place(parameter: Tensor) -> Undo:
    before = parameter.detach().clone()
    with torch.no_grad():
        parameter.mul_(1.25)

    def undo() -> None:
        with torch.no_grad():
            parameter.copy_(before)

    return undo


def hooked(module: nn.Module) -> Undo:
    handle = module.register_forward_hook(lambda _m, _i, output: output * 3)
    return lambda: handle.remove()


def hooked_everywhere() -> Undo:
    handle = nn.modules.module.register_module_forward_hook(lambda _m, _i, output: output * 2)
    return lambda: handle.remove()


def own_forward(module: nn.Module) -> Undo:
    module.forward = lambda x, extra=None, *, times=1: x * 7

    def undo() -> None:
        vars(module).pop("forward", None)

    return undo


def other_forward(kind: type[nn.Module]) -> Undo:
    return setting(kind, "forward", lambda self, x, extra=None, *, times=1: x * 5)


HELPER = helper  # also while another function has its name


def other_code() -> Undo:
    return setting(HELPER, "__code__", (lambda x: x * 11).__code__)


def other_defaults(function: Any) -> Undo:
    return setting(function, "__kwdefaults__", {"times": 4})


class Quiet(Inner):
    """A block of another class."""

    def forward(self, x: Tensor, extra: Tensor | None = None, *, times: int = 1) -> Tensor:
        """Half of it."""
        return super().forward(x, extra, times=times) / 2


def transposed(parameter: Tensor) -> Undo:
    """The same address, size and version, and other values."""
    before = parameter.data
    parameter.data = before.t()
    return lambda: setattr(parameter, "data", before)


def exchanged(one: Any, other: Any, name: str) -> Undo:
    def swap() -> None:
        mine, theirs = getattr(one, name), getattr(other, name)
        setattr(one, name, theirs)
        setattr(other, name, mine)

    swap()
    return swap


def assigned(module: nn.Module) -> Undo:
    """A checkpoint whose tensors take the place of the parameters."""
    before = dict(module.state_dict(keep_vars=True))
    module.load_state_dict({name: torch.randn_like(value) for name, value in before.items()}, assign=True)

    def undo() -> None:
        for name, value in before.items():
            owner = module.get_submodule(name.rpartition(".")[0])
            setattr(owner, name.rpartition(".")[2], value)

    return undo


def shadowed(owner: Any, name: str, value: Any) -> Undo:
    """An attribute of the object in front of its class's."""
    setattr(owner, name, value)

    def undo() -> None:
        vars(owner).pop(name, None)  # it may have been set twice

    return undo


def appended(modules: nn.ModuleList) -> Undo:
    modules.append(Inner().to(DEVICE))
    return lambda: modules._modules.__delitem__(str(len(modules) - 1))


def reordered(modules: nn.ModuleList) -> Undo:
    def swap() -> None:
        first, second = modules[0], modules[1]
        modules[0], modules[1] = second, first

    swap()
    return swap


def frozen_parameter(parameter: Tensor) -> Undo:
    parameter.requires_grad_(False)
    return lambda: (parameter.requires_grad_(True), None)[1]


def eval_of(module: nn.Module) -> Undo:
    module.eval()

    def undo() -> None:
        module.train()

    return undo


def changes(model: Outer, pick: random.Random) -> list[Callable[[], Undo]]:
    """Ways to change what a call of ``model`` does, each with its undoing."""
    block = model.blocks[pick.randrange(2)]
    assert isinstance(block, Inner)
    number = pick.choice([0.1, 0.75, 3.0, -2.0])
    return [
        lambda: setting(block, "scale", number),
        lambda: setting(block.norm, "eps", abs(number)),
        lambda: item(block.sizes, 0, pick.randrange(5)),
        lambda: item(block.names, "power", 3),
        lambda: setting(block.settings, "shift", number),
        lambda: setting(Inner, "bias_of_class", number),
        lambda: item(TABLE, "shift", number),
        lambda: item(globals(), "GAIN", number),
        lambda: item(globals(), "helper", lambda x: x - number),
        lambda: other_code(),
        lambda: setting(block, "held", torch.randn(8, device=DEVICE)),
        lambda: setting(block.linear, "weight", nn.Parameter(torch.randn(8, 8, device=DEVICE))),
        lambda: setting(block.linear, "bias", None),
        lambda: other_data(block.linear.weight),
        lambda: other_data(block.held),
        lambda: in_place(block.linear.weight),
        lambda: in_place(block.norm.weight),
        lambda: eval_of(model),
        lambda: eval_of(block),
        lambda: setting(block, "linear", nn.Linear(8, 8).to(DEVICE)),
        lambda: item(model.blocks._modules, "1", Inner().to(DEVICE)),
        lambda: hooked(model),
        lambda: hooked(block),
        lambda: hooked(block.norm),
        lambda: hooked_everywhere(),
        lambda: own_forward(model),
        lambda: own_forward(block),
        lambda: other_forward(Outer),
        lambda: other_forward(Inner),
        lambda: other_defaults(Outer.forward),
        lambda: setting(F, "layer_norm", lambda x, *a, **k: x + number),
        lambda: entered(torch.autocast(DEVICE.type, dtype=torch.bfloat16)),
        lambda: entered(torch.enable_grad()),
        lambda: entered(torch.inference_mode()),
        lambda: transposed(block.linear.weight),
        lambda: exchanged(model.blocks[0], model.blocks[1], "linear"),
        lambda: exchanged(model.blocks[0].norm, model.blocks[1].norm, "weight"),
        lambda: assigned(block),
        lambda: shadowed(block, "bias_of_class", number),
        lambda: setting(block, "__class__", Quiet),
        lambda: setting(block, "sizes", [pick.randrange(5), 2]),
        lambda: item(globals(), "TABLE", {"shift": number}),
        lambda: appended(model.blocks),
        lambda: reordered(model.blocks),
        lambda: frozen_parameter(block.norm.weight),
        lambda: lambda: None,
    ]


TORCH_ITSELF = 30  # which of them replaces a function of torch's: parameterize takes these for what they are


def arguments(pick: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as at first, and in every other form."""
    x = rows()
    nothing: dict[str, Any] = {}
    forms: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        *[((x,), nothing)] * 6,
        ((rows(3),), {}),
        ((rows(8)[::2],), {}),
        ((x.to(torch.bfloat16).float(),), {}),
        ((x, rows()), {}),
        ((x, x), {}),
        ((x,), {"extra": rows()}),
        ((x,), {"times": 2}),
        ((torch.randn(33, device=DEVICE)[1:].view(4, 8),), {}),
    ]
    return pick.choice(forms)


def taken(
    model: Outer,
    pick: random.Random,
    call: Callable[[], Callable[..., Any]],
    ordinary: Callable[..., Any] | None = None,
    without: int | None = None,
) -> dict[bool, int]:
    """How many calls were made at once and how many not, as the model changes; what was made is what eager gives.

    ``call()`` gives today's, which takes arguments and names; ``ordinary`` is asked where eager says otherwise, and
    ``without`` is a change that is left out.
    """
    counts = {False: 0, True: 0}
    for number in range(CHANGES):
        now = call()
        ways = [each for n, each in enumerate(changes(model, pick)) if n != without]
        undos = [pick.choice(ways)() for _ in range(pick.choice([1, 1, 2]))]
        args, named = arguments(pick)
        try:
            with torch.no_grad() if pick.random() < 0.9 else contextlib.nullcontext():
                result = now(args, named)
                if result is not MISSED:
                    expected = model(*args, **named)
                    if ordinary is not None and not torch.equal(result, expected):
                        expected = ordinary(*args, **named)
        finally:
            for undo in reversed(undos):
                undo()
        counts[result is not MISSED] += 1
        if result is not MISSED:
            assert torch.equal(result, expected), number
            assert result.requires_grad == expected.requires_grad, number
    return counts


def test_a_member_that_is_laid_out_otherwise_in_its_place_is_seen() -> None:
    # GIVEN a square weight, kept twice
    weight = nn.Parameter(torch.randn(4, 4, device=DEVICE))
    owner = {"one": weight, "other": weight}
    same = laid_out([Member(owner, "one"), Member(owner, "other")])
    assert same()
    assert laid_out([])()
    # WHEN it is turned, or shortened, where it is THEN it is not what it was; and when put back, it is
    for other in (weight.data.t(), weight.data[:2]):
        before, weight.data = weight.data, other
        assert not same()
        weight.data = before
        assert same()


def test_fuzz_a_frozen_call_is_what_an_ordinary_one_is_or_is_not_made() -> None:
    # GIVEN frozen calls
    torch.manual_seed(0)
    model = Outer().to(DEVICE)
    frozen = frozen_of(compiled := warmed(model, "dynamo", rows()))._frozen[0]

    # WHEN all that the model reads is changed at random between calls, in one form or another THEN each gives what an
    # ordinary call gives (Dynamo does not guard everything: hooks on inner modules) or says that it was not made for it
    counts = taken(model, random.Random(0), lambda: frozen.call, frozen_of(compiled)._ordinary)

    # AND both happened; with everything undone it is taken again
    assert min(counts.values()) > CHANGES // 50
    with torch.no_grad():
        assert frozen.call((rows(),), {}) is not MISSED


def frozen_alike(step: Any) -> Any:
    """The call of ``step`` whose like are launched in one look, made by ordinary ones where there is none."""
    with torch.no_grad():
        while True:
            for state in step._states:
                state._rebuilds = 0  # it is not written as often in a program
            for each in step._alike:
                if each.call.__name__ == "frozen" and each.stands:
                    return each.call
            step(rows())


def test_fuzz_a_parameterized_call_is_eagers_or_is_not_launched_at_once() -> None:
    # GIVEN calls of a parameterized model that are launched in one look
    torch.manual_seed(1)
    model = Outer().to(DEVICE)
    step = pgk.parameterize(model)

    # WHEN all that the model reads is changed at random between calls THEN each gives what eager gives, hooks and all,
    # or says that it was not made for this
    counts = taken(model, random.Random(1), lambda: frozen_alike(step), without=TORCH_ITSELF)

    # AND both happened
    assert min(counts.values()) > CHANGES // 100
