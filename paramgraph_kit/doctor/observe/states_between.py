"""States of optimizers and scalers that a capture holds: which it makes anew, and which get other memory behind it."""

from __future__ import annotations

import ast
import gc
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.cleared import clearing
from paramgraph_kit.doctor.observe.held import attributes_of
from paramgraph_kit.doctor.observe.places import Place, frames_of_the_user, line_of
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

_OTHER = "the optimizer's state has other memory from here on, and the graph goes on with that of its capture"
SCALE_BEGUN = "makes its scale in its first call, which this capture holds"
_NEAR = 3  # innermost functions that are asked: where these name it, there is nothing to collect, which takes 0.2 s
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

    def is_moved(self, optimizer: torch.optim.Optimizer, *, with_rates: bool) -> bool:
        """Whether something of it has other memory by now."""
        now = {key: storage_key(tensor) for key, tensor in _states(optimizer)}
        return any(now.get(key) != then for key, then in self.keys.items() if with_rates or key[1] != "lr")


class StatesBetween:
    """The states that the graphs of a program hold."""

    def __init__(self) -> None:
        self._open: list[tuple[weakref.ref[torch.optim.Optimizer], Place]] = []
        self._known: dict[int, list[_Kept]] = {}
        self._owned: dict[int, list[_Kept]] = {}  # of every graph, also of those that are not compared
        self._loaded: dict[int, Place] = {}  # where an optimizer was given a state last
        self._told: dict[tuple[Frame | None, str], Failure] = {}
        self._adopted: dict[int, Place | None] = {}  # graphs of before, and where the call has replayed them last
        self._begun: dict[int, list[Failure]] = {}
        self._collected = set[int]()  # graphs behind whose captures cycles were looked for

    def begin(self, graph: object) -> None:
        """A capture begins."""
        self._open = []
        self._known.pop(id(graph), None)
        self._owned.pop(id(graph), None)

    def steps(self, optimizer: torch.optim.Optimizer, place: Place) -> None:
        """An optimizer is about to step in the capture that is under way."""
        if not any(each() is optimizer for each, _ in self._open):
            self._open.append((weakref.ref(optimizer), place))  # its states go with it, which a graph may read

    def ended(self, graph: object, *, compared: bool) -> None:
        """The capture has ended well; ``compared``: what its optimizers have by then is what they are to go on with."""
        there = [(optimizer, place) for each, place in self._open if (optimizer := each()) is not None]
        self._owned[id(graph)] = [_kept(optimizer, place) for optimizer, place in there]
        if compared:
            self._known[id(graph)] = self._owned[id(graph)]
        self._open = []

    def unowned(self, graph: object) -> set[int]:
        """Memory of the states that a graph steps with, of optimizers that nobody has any more."""
        owned = self._owned.get(id(graph), ())
        if id(graph) not in self._collected and any(kept.optimizer() is not None for kept in owned):
            self._collected.add(id(graph))
            if not all(map(_is_named, owned)):
                gc.collect()  # a schedule and its optimizer refer to each other: they go when Python looks for such
        return {key for kept in owned if kept.optimizer() is None for key in kept.keys.values()}

    def adopt(self, graph: object, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """A graph of before steps with these, and is replayed by each call that is examined."""
        self._known[id(graph)] = [_kept(optimizer, Place(())) for optimizer in optimizers]
        self._adopted[id(graph)] = None

    def begun(self, graph: object, failure: Failure) -> None:
        """A graph of before has made a state itself: this is told where it is replayed."""
        self._begun.setdefault(id(graph), []).append(failure)

    def returned(self) -> None:
        """A call that is examined has come to its end: the next one replays with the states that it has left."""
        for graph, launch in self._adopted.items():
            for kept in self._known.get(graph, ()) if launch is not None else ():
                if (optimizer := kept.optimizer()) is not None and launch is not None:
                    loaded = self._loaded.pop(id(optimizer), None)
                    if kept.is_moved(optimizer, with_rates=loaded is not None):
                        self._tell(optimizer, loaded, launch)
        self._adopted = dict.fromkeys(self._adopted)

    def loads(self, optimizer: torch.optim.Optimizer, place: Place) -> None:
        """An optimizer is about to be given a state."""
        self._loaded[id(optimizer)] = place

    def launched(self, graph: object, place: Place) -> None:
        """A graph is replayed."""
        if id(graph) in self._adopted:
            self._adopted[id(graph)] = place
        self._told |= {(f.frame, f.code): f for f in self._begun.get(id(graph), ())}
        for kept in self._known.get(id(graph), ()):
            optimizer = kept.optimizer()
            if optimizer is None:
                continue
            # A rate that is given another tensor is told where it is.
            if kept.is_moved(optimizer, with_rates=id(optimizer) in self._loaded):
                self._tell(optimizer, self._loaded.get(id(optimizer)), place)

    def failures(self) -> Iterator[Failure]:
        """All that was seen."""
        yield from self._told.values()

    def _tell(self, optimizer: torch.optim.Optimizer, loaded: Place | None, launch: Place) -> None:
        code, at = (loaded.user if loaded is not None else None) or (None, 0)
        for node in nodes_of(code) if code is not None else ():
            if code is None or not isinstance(node, ast.Call) or last_name(node.func) != "load_state_dict":
                continue
            if node.lineno <= line_of(code, at) <= (node.end_lineno or 0):
                self._add(BY_ID["stale-input"].failure(_OTHER, frame_at(code, node.lineno)), _in_place(node, optimizer))
                return
        user = launch.user
        cleared = [*clearing(user[0].co_filename)] if user is not None and zeros_begin(optimizer) else []
        if user is not None and len(cleared) == 1:
            line, function, before, after = cleared[0]
            frame = Frame(display_name(user[0].co_filename), line, function, before)
            self._add(BY_ID["stale-input"].failure(_OTHER, frame), f"before  {before}\nafter   {after}")
        elif user is not None:
            failure = BY_ID["stale-input"].failure(_OTHER.replace(" from here on", " by now"), launch.frame())
            after = (
                "the tensors of the state stay, and what comes next is written to them: `v.zero_()` of each in "
                "`optimizer.state.values()` where it begins anew"
            )
            before = failure.frame.text if failure.frame is not None else ""
            self._add(failure, f"before  {before}\nafter   {after}")

    def _add(self, failure: Failure, fix: str) -> None:
        self._told[failure.frame, failure.code] = replace(failure, fix=fix)


def _is_named(kept: _Kept) -> bool:
    """Whether a function that runs has the optimizer in a variable, its own or a global one, or in an object's."""
    frames = [*frames_of_the_user()]
    value = kept.optimizer()
    for frame in [*frames[:_NEAR], *frames[-1:]]:
        own = [*frame.f_locals.values()]
        held = [*own, *frame.f_globals.values(), *(each for one in own for each in attributes_of(one).values())]
        if any(each is value for each in held):
            return True
    return value is None


def _kept(optimizer: torch.optim.Optimizer, place: Place) -> _Kept:
    """What an optimizer has now."""
    keys, held = {}, []
    for key, tensor in _states(optimizer):
        keys[key] = storage_key(tensor)
        held.append(storage_ref(tensor.untyped_storage()))
    return _Kept(weakref.ref(optimizer), place, keys, held)


def has_rates(optimizer: torch.optim.Optimizer) -> bool:
    """Whether rates of it are tensors."""
    return any(isinstance(group.get("lr"), torch.Tensor) for group in optimizer.param_groups)


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


def _in_place(node: ast.Call, optimizer: torch.optim.Optimizer) -> str:
    """A call that gives an optimizer a state, and what writes the same to the tensors that it has."""
    owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else "optimizer"
    given = [*node.args, *(k.value for k in node.keywords)]
    state = ast.unparse(given[0]) if given else "state"
    parts = f"[p for group in {owner}.param_groups for p in group['params']]"
    entries = f"{state}['state'].get(n, {{}}).items() if torch.is_tensor(v)"
    after = f"for n, p in enumerate({parts}): [{owner}.state[p][k].copy_(v) for k, v in {entries}]"
    if has_rates(optimizer):
        groups = f"zip({owner}.param_groups, {state}['param_groups'])"
        after += f"; and for group, new in {groups}: group['lr'].copy_(torch.as_tensor(new['lr']))"
    return f"before  {ast.unparse(node)}\nafter   {after}"
