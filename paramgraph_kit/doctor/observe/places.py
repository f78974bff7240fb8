"""Where in the user's code an operation comes from, asked while it runs: cheap to note, worked out only when needed."""

from __future__ import annotations

import ast
import dis
import linecache
import re
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.operations import NO_NAMES, Names, names_at, operations_at, told_apart
from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.known.evidence import ANOMALY, PAGEABLE, Evidence
from paramgraph_kit.driver.files import OURS, display_name, is_library, package_of
from paramgraph_kit.trace.model import Frame

Spot = tuple[CodeType, int]  # a function and the instruction that it is at
Position = tuple[int, int]  # a line and a column
Span = tuple[int | None, int | None, int | None, int | None]  # first and last line, first and last column
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "LOAD_FAST")


@dataclass(frozen=True, slots=True)
class Place:
    """Functions that were running, outermost first, without torch's and Python's own; those below them are apart."""

    stack: tuple[Spot, ...]
    below: tuple[Spot, ...] = ()  # torch's and Python's own that the innermost of the stack has called, innermost first
    ids: tuple[int, ...] = ()  # the same as the stack, quick to compare
    in_backward: bool = False  # autograd's engine has called what runs, and nothing of the user's is in between

    @property
    def files(self) -> tuple[str, ...]:
        """The files of what is below."""
        return tuple(code.co_filename.replace("\\", "/") for code, _ in self.below)

    @property
    def user(self) -> Spot | None:
        """The innermost function of the user's own; that of a library where a library alone is running."""
        own = next((spot for spot in reversed(self.stack) if not is_library(spot[0].co_filename)), None)
        return own or (self.stack[-1] if self.stack else None)

    def frame(self) -> Frame | None:
        """The user's line."""
        return frame_of(self.user)

    def frame_in(self, code: CodeType | None) -> Frame | None:
        """The line of one of the functions that were running; the user's innermost line where it was none of them."""
        return frame_of(next((spot for spot in reversed(self.stack) if spot[0] is code), self.user))

    def library(self) -> str:
        """``file:line`` of an installed package's function that the user's line went through, if it did."""
        if not self.stack or self.stack[-1] == self.user:
            return ""
        code, at = self.stack[-1]
        return f"{'/'.join(code.co_filename.replace(chr(92), '/').split('/')[-3:])}:{line_of(code, at)}"

    def evidence(
        self, kind: str, message: str, code: int | None, fallback: str, names: Names = NO_NAMES, file: str = ""
    ) -> Evidence:
        """What is looked at, as if CUDA had raised ``message`` here; ``fallback`` is the operation itself."""
        operations: tuple[str, ...] = ()
        exact = False
        if self.stack:
            inner, at = self.stack[-1]
            operations, exact = operations_at(inner, at, names, _text(inner, at))
        if fallback == "item" and operations[:1] == ("x[mask]",):
            operations = ()  # x[i], where i is a number on the GPU
        operations = told_apart((*operations, fallback), PAGEABLE in message)
        through: list[str] = []
        for spot in self.below:
            if not spot[0].co_filename.startswith(OURS):
                found, known = operations_at(*spot, NO_NAMES, _text(*spot))
                through += [*(found[:1] if known else ()), spot[0].co_name]
        files = (*self.files, file) if file else self.files
        # Autograd looks for NaN after each of its functions, if it is told to.
        looks = self.in_backward and torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
        hints = frozenset({ANOMALY} if looks else ())
        return Evidence(kind, message, code, self.frame(), operations, exact, files, (*through, fallback), hints)


def _text(code: CodeType, at: int) -> str:
    return linecache.getline(code.co_filename, line_of(code, at)).strip()


@cache
def line_of(code: CodeType, at: int) -> int:
    """The line of an instruction."""
    found = code.co_firstlineno
    for start, end, line in code.co_lines():
        if start <= at < end and line is not None:
            found = line
    return found


@cache
def position_of(code: CodeType, at: int) -> Position:
    """The line and the column of an instruction."""
    line, _, column, _ = next(islice(code.co_positions(), at // 2, None), (None,) * 4)
    return (line_of(code, at) if line is None else line, column or 0)


def frame_of(spot: Spot | None) -> Frame | None:
    """A function and an instruction as a line of source."""
    if spot is None:
        return None
    code, at = spot
    line = line_of(code, at)
    return Frame(display_name(code.co_filename), line, code.co_name, linecache.getline(code.co_filename, line).strip())


def order_of(frame: Frame | None) -> tuple[list[str | int], int]:
    """A key to sort by: the ninth cell of a notebook comes before the tenth."""
    if frame is None:
        return ["~"], 0
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", frame.file)], frame.line


class _Kinds(dict[str, str]):
    """By file: the user's "own", a "package", or a "library": torch's, Python's and ours, nobody's business."""

    def __missing__(self, file: str) -> str:
        normal = file.replace("\\", "/")
        named = package_of(file) not in ("", "torch") and not _is_ours(normal)
        kind = self[file] = "own" if not is_library(file) else "package" if named else "library"
        return kind


_KINDS = _Kinds()


def _is_ours(file: str) -> bool:
    return file.startswith(__file__.replace("\\", "/").rpartition("/doctor/")[0] + "/")


_SPOTS: dict[tuple[int, int], tuple[CodeType, tuple[int, int]]] = {}  # with the function, whose id stays its own so
_PLACES: dict[tuple[int, ...], tuple[Place, list[CodeType]]] = {}  # with all functions, for the same reason
_MOST_PLACES = 8192
_CODES: dict[tuple[str, CodeType], CodeType] = {}  # the first of each: a text that is compiled at each call has many


def _ids(code: CodeType, at: int) -> tuple[int, int]:
    """Where an expression is: its function, and its first instruction.

    Once a function is hot, Python stops at others of them.
    """
    known = _SPOTS.get((id(code), at))
    if known is None:
        positions = list(code.co_positions())
        own = positions[at // 2] if 0 <= at // 2 < len(positions) else (None,) * 4
        first = at if own[2] is None else 2 * positions.index(own)
        known = _SPOTS[id(code), at] = (code, (id(_CODES.setdefault((code.co_filename, code), code)), first))
    return known[1]


def is_call(code: CodeType, at: int, node: ast.Call) -> bool:
    """Whether a function is at one of its calls, and at none inside of that."""
    _, line, _, column = next(islice(code.co_positions(), at // 2, None), (None,) * 4)
    return (line, column) == (node.end_lineno, node.end_col_offset)  # where it begins depends on how it is broken


def call_at(code: CodeType, at: int) -> ast.Call | None:
    """The call that a function is at."""
    position = next(islice(code.co_positions(), at // 2, None), None)
    return next((n for n in nodes_of(code) if isinstance(n, ast.Call) and span_of(n) == position), None)


def span_of(node: Any) -> Span:
    """Where a node of a source begins and ends, as a position of a function says it."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


class Places:
    """Answers for one thread; ``bottom`` is the function of ours that called the user's."""

    def __init__(self, bottom: CodeType) -> None:
        self.bottom = bottom
        self.thread = threading.get_ident()

    def here(self) -> Place:
        """What runs now: in this thread, or, asked from autograd's, in the thread that waits for it."""
        if threading.get_ident() == self.thread:
            return self.of(sys._getframe(1))
        waiting, own = self.of(sys._current_frames().get(self.thread)), self.of(sys._getframe(1))
        if not any(not is_library(code.co_filename) for code, _ in own.stack):
            return replace(waiting, in_backward=True)
        return Place(waiting.stack + own.stack, own.below, own.ids + waiting.ids)

    def names(self, place: Place) -> Names:
        """What names mean in the innermost function of a place that is running now."""
        return self.names_in(place.stack[-1][0]) if place.stack else NO_NAMES

    def names_in(self, code: CodeType) -> Names:
        """The same of one of its functions."""
        for thread in (threading.get_ident(), self.thread):
            frame = sys._current_frames().get(thread)
            while frame is not None:
                if frame.f_code is code:
                    return names_at(frame)
                frame = frame.f_back
        return NO_NAMES

    def is_inside(self, frame: FrameType | None) -> bool:
        """Whether a frame is ours, torch's or Python's own: something may be half done there."""
        return frame is not None and _KINDS[frame.f_code.co_filename] == "library"

    def of(self, frame: FrameType | None) -> Place:
        """What runs at a frame of the thread: the same object for the same functions at the same instructions."""
        bottom, first = self.bottom, frame  # asked at every operation, for every frame
        key: list[int] = []
        add = key.append
        while frame is not None and (code := frame.f_code) is not bottom:
            add(id(code))
            add(frame.f_lasti)
            frame = frame.f_back
        known = _PLACES.get(whole := tuple(key))
        if known is None:
            codes: list[CodeType] = []
            while first is not None and (code := first.f_code) is not bottom:
                codes.append(code)
                first = first.f_back
            if len(_PLACES) >= _MOST_PLACES:
                _PLACES.clear()
            known = _PLACES[whole] = (_place_of(codes, key[1::2]), codes)
        return known[0]


def _place_of(codes: list[CodeType], at: list[int]) -> Place:
    """What runs, from functions and their instructions, innermost first."""
    stack: list[Spot] = []
    ids: list[int] = []
    below: list[Spot] = []
    own = engine = False
    for spot in zip(codes, at, strict=True):
        kind = _KINDS[spot[0].co_filename]
        if kind != "library":
            stack.append(spot)
            ids += _ids(*spot)
            own = own or kind == "own"
        elif not own:
            below.append(spot)
            engine = engine or spot[0].co_name == "_engine_run_backward"
    stack.reverse()
    return Place(tuple(stack), tuple(below), tuple(ids), engine)


def outside() -> Frame | None:
    """The innermost line of the user's own that is running now, in this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame_of((frame.f_code, frame.f_lasti)) if frame is not None else None


def frames_of_the_user() -> Iterator[FrameType]:
    """The functions of the user's that run now, innermost first, up to the call that is examined."""
    yield from _up_to_call(sys._getframe(1))[0]


def frames_of_all() -> Iterator[FrameType]:
    """The same, and behind those of a thread of the user's those of the one that is examined, which may wait for it."""
    own, is_examined = _up_to_call(sys._getframe(1))
    yield from own
    if not is_examined:
        for frame in [*sys._current_frames().values()]:
            others, is_examined = _up_to_call(frame)
            yield from others if is_examined else ()


def _up_to_call(frame: FrameType | None) -> tuple[list[FrameType], bool]:
    """Functions of the user's from a frame on, and whether there is a call that is examined."""
    found: list[FrameType] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(OURS) and code.co_name == "run" and not code.co_filename.endswith("threads.py"):
            return found, True
        if not is_library(code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found, False


def codes_in(stacks: Iterable[tuple[Spot, ...]]) -> set[CodeType]:
    """Every function of the user's that stacks went through."""
    codes = {id(code): code for stack in _each_once(stacks) for code, _ in stack}
    return {code for code in codes.values() if not is_library(code.co_filename)}


def lines_in(stacks: Iterable[tuple[Spot, ...]]) -> set[tuple[str, int]]:
    """The file, as it is shown, and the line of everything that stacks went through."""
    spots = {(id(code), at): (code, at) for stack in _each_once(stacks) for code, at in stack}
    return {(display_name(code.co_filename), line_of(code, at)) for code, at in spots.values()}


def _each_once(stacks: Iterable[tuple[Spot, ...]]) -> Iterable[tuple[Spot, ...]]:
    """Many operations stand at the same lines, and have the same stack."""
    return {id(stack): stack for stack in stacks}.values()


def reached(ran: Collection[CodeType], codes: Sequence[CodeType]) -> list[CodeType]:
    """Those functions that ran, and that these may call in another call, as far as the names tell that they use."""
    if not ran:
        return list(codes)
    found = [code for code in codes if code in ran]
    for code in found:  # which grows
        called, attributes = _names_used(code)
        for other in codes:
            method = "." in other.co_qualname
            names = called | attributes if method else called
            unnamed = method and (other.co_name == "forward" or other.co_name.startswith("__"))
            if other not in found and (unnamed or other.co_name in names or other in code.co_consts):
                found.append(other)
    return [code for code in codes if code in found]


def _names_used(code: CodeType) -> tuple[set[str], set[str]]:
    """Variables that a function reads, and attributes."""
    read, attributes = set[str](), set[str]()
    for step in dis.get_instructions(code):
        if isinstance(step.argval, str):
            (read if step.opname in _READS else attributes).add(step.argval)
    return read, attributes
