"""What has been compiled in this process, for the report: weakly held, so that a dropped model drops its graphs."""

from __future__ import annotations

import inspect
import itertools
import sys
import types
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from paramgraph_kit.backend.likeness import Likeness, likeness
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import Launcher
from paramgraph_kit.partition.fixed import Kept
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

_order = itertools.count()
_graphs: weakref.WeakValueDictionary[int, CompiledGraph] = weakref.WeakValueDictionary()  # by order


def original(code: types.CodeType) -> types.CodeType:
    """The user's code that Dynamo rewrote, or made a function of that resumes after a graph break."""
    resumed, rewritten = torch_name("ContinueExecutionCache").generated_code_metadata, torch_name("orig_code_map")
    while True:
        if code in resumed:
            code = resumed[code].code
        elif code in rewritten:
            code = rewritten[code]
        else:
            return code


class Codes:
    """Code objects by identity, which live no longer for being here: a cell that runs again makes others, alike."""

    def __init__(self, codes: Iterable[types.CodeType] = ()) -> None:
        self._references = {id(code): weakref.ref(code) for code in codes}

    def any_of(self, codes: Iterable[types.CodeType]) -> bool:
        """Whether one of these very objects is here."""
        return any((found := self._references.get(id(code))) is not None and found() is code for code in codes)


@dataclass(frozen=True, slots=True)
class Compilation:
    """Which of Dynamo's compilations: the frame's number, how often it was compiled before, and its code."""

    frame: int
    number: int
    code: weakref.ref[types.CodeType]


Place = tuple[int, ...]  # in a call, in order; what was cut again has one more number; () where nobody knows


def place_of(number: str) -> Place:
    """The place of a region by its number.

    >>> place_of("1.2")
    (1, 2)
    """
    return tuple(int(part) for part in number.split("."))


@dataclass(frozen=True, slots=True)
class Piece:
    """What one call of a compiled graph runs between two partitions, or before the first, or after the last."""

    place: Place
    kernels: int
    operations: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()


@dataclass(eq=False)
class CompiledGraph:
    """One compiled FX graph: the launchers of its partitions, and why the rest is not in them."""

    name: str  # "forward 0", "backward 0", "inference 1"
    callers: Codes = field(default_factory=Codes)  # the user's function that was compiled, and what was running then
    owner: weakref.ref[Any] | None = None  # ``self`` of that function, where it had one
    like: Likeness | None = None  # what that was when it was compiled
    launchers: list[Launcher] = field(default_factory=list)
    operations: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by launcher name
    kernels: dict[str, int] = field(default_factory=dict)  # by launcher name, where known without a capture
    reasons: list[Reason] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)  # made once instead of on the host at each call
    constants: list[torch.Tensor] = field(default_factory=list)  # that its code reads without being given them
    positions: dict[str, Place] = field(default_factory=dict)  # by launcher name: where in a call, in order
    pieces: list[Piece] = field(default_factory=list)  # what runs between, where that is known
    outside: int = 0  # launches of one call that belong to no partition
    strict: bool = False  # whether a reason is an error
    compilation: Compilation | None = None
    order: int = field(default_factory=lambda: next(_order))

    def __post_init__(self) -> None:
        _graphs[self.order] = self

    def position(self, place: Place | None) -> int:
        """A place counted among all of a call; -1 where nobody knows."""
        every = sorted({*self.positions.values(), *(piece.place for piece in self.pieces)} - {()})
        return every.index(place) if place else -1

    def refuse(self, reason: Reason) -> None:
        """Note once why something is not graphed; raises RefusedError where that is an error."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        if self.strict and reason.code != "no-kernels":
            raise RefusedError(reason)


def forget(graph: CompiledGraph) -> None:
    """Destroy what a graph launches, which nobody calls any more, and leave it out of reports.

    Dynamo keeps what it compiled in the globals of the function, for as long as that lives.
    """
    _graphs.pop(graph.order, None)
    for launcher in graph.launchers:
        launcher.destroy()


def compiled_graphs() -> list[CompiledGraph]:
    """Every compiled graph that is still alive, oldest first."""
    # A list made in one go: another thread may be compiling.
    alive = (reference() for reference in _graphs.valuerefs())
    return sorted((graph for graph in alive if graph is not None), key=lambda graph: graph.order)


@dataclass(frozen=True, slots=True)
class Site:
    """The user's function that is being compiled."""

    callers: Codes = field(default_factory=Codes)
    owner: weakref.ref[Any] | None = None
    like: Likeness | None = None
    compilation: Compilation | None = None


def site_being_compiled() -> Site:
    """The user's function that Dynamo is compiling now, read from Dynamo's own frame, and who called it."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_compile" and frame.f_code.co_filename.endswith("convert_frame.py"):
            code, values = frame.f_locals.get("code"), frame.f_locals.get("locals")
            codes, owner = _of(code, values if isinstance(values, dict) else {})
            while frame is not None:
                codes.append(original(frame.f_code))
                frame = frame.f_back
            if not isinstance(owner, torch.nn.Module):
                return Site(Codes(codes), compilation=_compilation(code))
            return Site(Codes(codes), weakref.ref(owner), likeness(owner), _compilation(code))
        frame = frame.f_back
    return Site()


def _of(code: Any, values: dict[str, Any]) -> tuple[list[types.CodeType], Any]:
    """The user's code behind a frame that Dynamo compiles, and whose method it is, whatever that calls itself."""
    if not isinstance(code, types.CodeType):
        return [], None
    # For what is torch's own, such as Sequential or no_grad's wrapper, Dynamo compiles a function that calls ``fn``.
    behind = inspect.unwrap(values["fn"]) if "fn" in values else None
    bound = getattr(behind, "__self__", None)  # of a method of torch's own, as the forward of a Sequential
    behind = getattr(behind, "__func__", behind)
    behind = behind if isinstance(behind, types.FunctionType) else vars(type(behind)).get("__call__")
    first = code.co_varnames[:1] if code.co_argcount else ()
    known = (*(values.get(name) for name in (*first, "self", "fn")), bound)
    owner = next((each for each in known if isinstance(each, torch.nn.Module)), None)
    return [original(code), *([behind.__code__] if isinstance(behind, types.FunctionType) else [])], owner


def _compilation(code: Any) -> Compilation | None:
    number = torch_name("CompileContext").current_compile_id()
    frame, compiled = getattr(number, "frame_id", None), getattr(number, "frame_compile_id", None)
    if frame is None or compiled is None or not isinstance(code, types.CodeType):
        return None
    return Compilation(frame, compiled, weakref.ref(code))
