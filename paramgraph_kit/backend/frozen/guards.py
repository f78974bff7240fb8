"""What must hold for a frozen call, as functions that take microseconds.

Dynamo's guards say whether its graph fits. They do not say that parameters lie where they lay: they pass for another
parameter of the same kind, and for ``parameter.data = ...``. So identity and address of every member is looked at too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paramgraph_kit.backend.asked import GLOBAL_HOOKS
from paramgraph_kit.backend.plain import PLAIN
from paramgraph_kit.driver.dict_versions import Versions
from paramgraph_kit.driver.native.tensors import aligned_addresses
from paramgraph_kit.driver.torch_names import torch_name

REWRITTEN = 8  # times that guards of dictionaries are made anew; what is written more often is looked at each time
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True)
class Member:
    """Where a tensor of a module, or of a function's globals, is kept."""

    owner: dict[str, Any]
    key: str
    seldom: bool = False  # whether ``owner`` is a dictionary that is seldom written


def members_of(modules: Sequence[nn.Module], scopes: Sequence[dict[str, Any]]) -> dict[int, list[Member]]:
    """Where each tensor is kept, by its identity: parameters, buffers, attributes, globals."""
    found: dict[int, list[Member]] = {}
    owners = [(scope, False) for scope in scopes]
    for each in (each for root in modules for each in root.modules()):
        owners += [(each._parameters, True), (each._buffers, True), (vars(each), False)]
    for owner, seldom in owners:
        for key, value in owner.items():
            if isinstance(value, torch.Tensor):
                found.setdefault(id(value), []).append(Member(owner, key, seldom))
    return found


def children_of(modules: Sequence[nn.Module]) -> list[Member]:
    """Where each module that can be reached from these is kept by another."""
    return [Member(each._modules, key, True) for root in modules for each in root.modules() for key in each._modules]


def unmoved(members: Sequence[Member], children: Sequence[Member]) -> Callable[[], bool]:
    """Whether every member is the tensor that it is now, where it is now, on the same modules."""
    kept = [(each, each.owner[each.key]) for each in (*members, *children)]
    seldom = {id(each.owner): each.owner for each, _ in kept if each.seldom}
    unwritten = Unwritten(list(seldom.values()), _all_kept([pair for pair in kept if pair[0].seldom]))
    others = _all_kept([pair for pair in kept if not pair[0].seldom])
    tensors = [each.owner[each.key] for each in members]
    lie = lying(tensors)
    return lambda: unwritten() and others() and lie()


def lying(tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
    """Whether tensors lie where they lie now. To be asked before what looks at them closer: it has them fetched."""
    held = list(tensors)
    addresses = aligned_addresses(held, 0)
    return lambda: aligned_addresses(held, 0) == addresses


def laid_out(members: Sequence[Member]) -> Callable[[], bool]:
    """Whether members have today's sizes, strides and kinds.

    That is Dynamo's to ask, but torch 2.11's guards passed, at times, for a parameter that
    ``parameter.data = parameter.data.t()`` had laid out otherwise in the same place.
    """
    held = list({id(tensor): tensor for each in members for tensor in [each.owner[each.key]]}.values())
    if not held:
        return lambda: True
    check = torch_name("TensorGuards")(*held, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return lambda: check(*held)


def _all_kept(kept: Sequence[tuple[Member, Any]]) -> Callable[[], bool]:
    """Whether every place holds what it held, in one expression."""
    scope: dict[str, Any] = {f"o{k}": each.owner for k, (each, _) in enumerate(kept)}
    scope |= {f"v{k}": value for k, (_, value) in enumerate(kept)}
    tests = [f"o{k}.get({each.key!r}) is v{k}" for k, (each, _) in enumerate(kept)]
    exec(f"def kept(): return {' and '.join(tests) or 'True'}", scope)  # keys as literals
    check: Callable[[], bool] = scope["kept"]
    return check


class Unwritten:
    """Whether nothing was put into some dictionaries, or the same again: one call of C++ where nothing was."""

    def __init__(self, dicts: Sequence[dict[Any, Any]], same: Callable[[], bool]) -> None:
        self._dicts, self._same = list(dicts), same
        self._check = Versions(self._dicts)
        self._rewritten = 0

    def __call__(self) -> bool:
        """Whether that is so."""
        if self._check():
            return True
        if self._rewritten >= REWRITTEN or not self._same():
            return self._same()
        fresh = Versions(self._dicts)
        if not self._same():  # what another thread has written before that, no version tells
            return False
        self._check = fresh
        self._rewritten += 1
        return True


def without_hooks(module: nn.Module) -> Callable[[], bool]:
    """Whether calling a module is calling its ``forward``: no hooks on it, and none on all modules."""
    tests = [f"m.{name}" for name in HOOKS] + [f"everywhere.{name}" for name in GLOBAL_HOOKS]
    scope: dict[str, Any] = {"m": module, "everywhere": torch.nn.modules.module}
    exec(f"def check(): return not ({' or '.join(tests)})", scope)  # from the names above only
    check: Callable[[], bool] = scope["check"]
    return check


class Inputs:
    """The arguments of one call, to be found the same again: tensors by their kind and layout, others by value."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        first: dict[int, str] = {}
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        self.same = [(name, other) for name, x in tensors.items() if (other := first.setdefault(id(x), name)) != name]
        self.tensors = list(first.values())
        self.values = {name: value for name, value in given.items() if not isinstance(value, torch.Tensor)}
        distinct = [tensors[name] for name in self.tensors]
        guards = torch_name("TensorGuards")  # they hold for tensors that are all different ones
        self._guards = guards(*distinct, dynamic_dims_sizes=None, dynamic_dims_strides=None) if distinct else None
        self._state = torch_name("GlobalStateGuard")()

    def test(self) -> tuple[str, dict[str, Any]] | None:
        """An expression over the arguments' names that holds for such calls only, and what it refers to.

        None where an argument may change and still be the same object, as a list may.
        """
        scope: dict[str, Any] = {"same_state": self._state.check}
        if (equal := equal_tests(self.values, scope)) is None:
            return None
        tests = ["same_state()", *(f"{name} is {other}" for name, other in self.same)]
        if self._guards is not None:
            scope["same_tensors"] = self._guards.check
            tests.append(f"same_tensors({', '.join(self.tensors)})")
        return " and ".join([*tests, *equal]), scope


def equal_tests(values: Mapping[str, Any], scope: dict[str, Any]) -> list[str] | None:
    """Expressions that hold while plain values, named so, are these; None where one is of a kind that may change."""
    tests = []
    for name, value in values.items():
        if type(value) is tuple:
            inner = equal_tests({f"{name}[{k}]": each for k, each in enumerate(value)}, scope)
            if inner is None:
                return None
            tests += [f"type({name}) is tuple and len({name}) == {len(value)}", *inner]
        elif not isinstance(value, PLAIN):
            return None
        elif type(value) in (int, bool, str, bytes, float):  # of floats the bits count
            known = f"then{len(scope)}"
            scope |= {known: value.hex() if type(value) is float else value, f"{known}_type": type(value)}
            tests.append(f"type({name}) is {known}_type and {name}{'.hex()' * (type(value) is float)} == {known}")
        else:
            scope[known := f"then{len(scope)}"] = value
            tests.append(f"{name} is {known}")
    return tests
