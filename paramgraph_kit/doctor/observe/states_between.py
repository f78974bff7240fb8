"""States of optimizers and scalers that a capture holds: which it makes anew, and which get other memory behind it."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.places import Place, line_of
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_weak: Any = StorageWeakRef  # torch leaves it untyped
_OTHER = "the optimizer's state has other memory from here on, and the graph goes on with that of its capture"
SCALE_BEGUN = "makes its scale in its first call, which this capture holds"
_SCALE = "_scale"  # GradScaler's: None until something is scaled for the first time
_OF_ZEROS = tuple(getattr(torch.optim, n) for n in ("Adam", "AdamW", "RMSprop", "Adadelta", "Adamax", "RAdam"))
_Key = tuple[int, str]  # the memory of a parameter, and what the optimizer keeps for it


@dataclass(slots=True)
class _Kept:
    """What one optimizer had when a capture ended that steps with it."""

    optimizer: Any  # a weak reference
    step: Place
    keys: dict[_Key, int]
    held: list[Any]  # weak references, which keep a key from being given to somebody else


class StatesBetween:
    """The states that the graphs of a program hold."""

    def __init__(self) -> None:
        self._open: list[tuple[torch.optim.Optimizer, Place]] = []
        self._known: dict[int, list[_Kept]] = {}
        self._loaded: dict[int, Place] = {}  # where an optimizer was given a state last
        self._told: dict[tuple[CodeType, int], Failure] = {}

    def begin(self, graph: object) -> None:
        """A capture begins."""
        self._open = []
        self._known.pop(id(graph), None)

    def steps(self, optimizer: torch.optim.Optimizer, place: Place) -> None:
        """An optimizer is about to step in the capture that is under way."""
        if not any(each is optimizer for each, _ in self._open):
            self._open.append((optimizer, place))

    def ended(self, graph: object) -> None:
        """The capture has ended well."""
        for optimizer, place in self._open:
            keys, held = {}, []
            for key, tensor in _states(optimizer):
                keys[key] = storage_key(tensor)
                held.append(_weak(tensor.untyped_storage()))
            self._known.setdefault(id(graph), []).append(_Kept(weakref.ref(optimizer), place, keys, held))
        self._open = []

    def loads(self, optimizer: torch.optim.Optimizer, place: Place) -> None:
        """An optimizer is about to be given a state."""
        self._loaded[id(optimizer)] = place

    def launched(self, graph: object, place: Place) -> None:
        """A graph is replayed."""
        for kept in self._known.get(id(graph), ()):
            optimizer = kept.optimizer()
            if optimizer is None:
                continue
            now = {key: storage_key(tensor) for key, tensor in _states(optimizer)}
            loaded = id(optimizer) in self._loaded  # a rate that is given another tensor is told where it is
            if any(now.get(key) != then for key, then in kept.keys.items() if loaded or key[1] != "lr"):
                rates = any(isinstance(group.get("lr"), torch.Tensor) for group in optimizer.param_groups)
                self._tell(self._loaded.get(id(optimizer)), place, rates)

    def failures(self) -> Iterator[Failure]:
        """All that was seen."""
        yield from self._told.values()

    def _tell(self, loaded: Place | None, launch: Place, rates: bool) -> None:
        code, at = (loaded.user if loaded is not None else None) or (None, 0)
        for node in nodes_of(code) if code is not None else ():
            if code is None or not isinstance(node, ast.Call) or last_name(node.func) != "load_state_dict":
                continue
            if node.lineno <= line_of(code, at) <= (node.end_lineno or 0):
                failure = BY_ID["stale-input"].failure(_OTHER, frame_at(code, node.lineno))
                self._told[code, node.lineno] = replace(failure, fix=_in_place(node, rates))
                return
        if (user := launch.user) is not None:
            failure = BY_ID["stale-input"].failure(_OTHER.replace(" from here on", " by now"), launch.frame())
            after = (
                "the tensors of the state stay, and what comes next is written to them: `v.zero_()` of each in "
                "`optimizer.state.values()` where it begins anew"
            )
            before = failure.frame.text if failure.frame is not None else ""
            self._told[user[0], line_of(*user)] = replace(failure, fix=f"before  {before}\nafter   {after}")


def zeros_begin(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a state of zeros is that of an optimizer which has not stepped yet."""
    if type(optimizer) is torch.optim.SGD:  # whose first step has no dampening
        return all(not group["dampening"] for group in optimizer.param_groups)
    return type(optimizer) in _OF_ZEROS


def begins(scaler: torch.amp.GradScaler) -> bool:
    """Whether a scaler makes its scale in the call that comes: it is the first."""
    return bool(scaler.is_enabled()) and vars(scaler).get(_SCALE, scaler) is None


def scale_begun_inside(place: Place) -> Failure:
    """What is told of a scaler whose scale the capture itself makes."""
    frame = place.frame()
    line = frame.text if frame is not None else "scaler.scale(loss).backward()"
    path = line.partition(".scale(")[0].rpartition(" ")[2].rpartition("(")[2] if ".scale(" in line else "scaler"
    text = f"the scaler {SCALE_BEGUN}: each replay sets it to the first one again, whatever `update()` makes of it"
    after = (
        f"the same, and once ahead of the capture, on a tensor of the device: {path}.scale(torch.zeros((), device=...))"
    )
    return replace(BY_ID["branch-frozen"].failure(text, frame), fix=f"before  {line}\nafter   {after}")


def _states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[_Key, torch.Tensor]]:
    """The tensors that an optimizer keeps for its parameters, and rates that are tensors."""
    for number, group in enumerate(optimizer.param_groups):
        if isinstance(group.get("lr"), torch.Tensor):
            yield (-1 - number, "lr"), group["lr"]
        for parameter in group["params"]:
            for name, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    yield (storage_key(parameter), str(name)), value


def _in_place(node: ast.Call, rates: bool) -> str:
    """A call that gives an optimizer a state, and what writes the same to the tensors that it has."""
    owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else "optimizer"
    given = [*node.args, *(k.value for k in node.keywords)]
    state = ast.unparse(given[0]) if given else "state"
    parts = f"[p for group in {owner}.param_groups for p in group['params']]"
    entries = f"{state}['state'].get(n, {{}}).items() if torch.is_tensor(v)"
    after = f"for n, p in enumerate({parts}): [{owner}.state[p][k].copy_(v) for k, v in {entries}]"
    if rates:
        groups = f"zip({owner}.param_groups, {state}['param_groups'])"
        after += f"; and for group, new in {groups}: group['lr'].copy_(torch.as_tensor(new['lr']))"
    return f"before  {ast.unparse(node)}\nafter   {after}"
