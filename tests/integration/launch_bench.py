"""What the launcher's tests on the simulator share: launching a plain function and holding it against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.tensors import bits_of, same_bits
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.launcher import Launcher, Options, Variant

DRIVER = driver()
DEVICE = DRIVER.device

Function = Callable[..., Any]


def boxed(function: Function) -> Callable[[list[Any]], Any]:
    """A partition's calling convention over a function: one list, which it empties."""

    def run(inputs: list[Any]) -> Any:
        arguments = list(inputs)
        inputs.clear()
        return function(*arguments)

    return run


def launcher_of(function: Function, constants: Sequence[Tensor] = (), **how: Any) -> Launcher:
    target, options = how.pop("driver", DRIVER), how.pop("options", Options())
    code = PartitionCode(function.__name__, boxed(function), tuple(constants), **how)
    return Launcher(target, code, options)


def variants(launcher: Launcher) -> list[Variant]:
    return [v for v in launcher.variants.values() if v is not None]


def launches(launcher: Launcher) -> int:
    return sum(v.state.launches for v in variants(launcher))


def codes(launcher: Launcher) -> list[str]:
    return [reason.code for reason in launcher.reasons]


def moved(*size: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same numbers for the same seed, at an address that nothing had before: nobody frees it in between."""
    generator = torch.Generator().manual_seed(seed)
    _KEPT.append(torch.empty(129 * (len(_KEPT) % 7 + 1), device=DEVICE))
    return torch.randn(*size, generator=generator).to(dtype).to(DEVICE)


_KEPT: list[Tensor] = []


def host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


def assert_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Equal bit for bit, with equal types and layouts."""
    assert type(found) is type(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if isinstance(b, Tensor):
            assert (a.shape, a.stride(), a.dtype, bits_of(a)) == (b.shape, b.stride(), b.dtype, bits_of(b))
        assert same_bits(a, b, layout=True)


def assert_launched_as_eager(function: Function, inputs: Callable[[int], Sequence[Any]], calls: int = 4) -> Launcher:
    """Call with inputs that move, against eager on twins; all but the first call come from one graph."""
    launcher = launcher_of(function)
    kept = []
    for call in range(calls):
        mine, twins = list(inputs(call)), list(inputs(call))
        expected = function(*twins)
        given = list(mine)
        found = launcher(given)
        assert given == []
        assert_same(found, expected)
        assert_same(mine, twins)  # what the function wrote into its inputs
        kept.append((found, [host(value) for value in found]))
    for found, then in kept:  # no later call has touched an earlier result
        for a, b in zip(found, then, strict=True):
            assert not isinstance(b, Tensor) or torch.equal(host(a), b)
    assert launcher.reasons == []
    assert launches(launcher) == calls - 1
    assert launcher.ungraphed_calls == 1
    return launcher
