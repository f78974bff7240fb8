"""Numbers that functions around a capture were given, and other ones that they are given around its replays."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import LOOPS, last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_arguments import is_unread
from paramgraph_kit.doctor.observe.captured_values import Names, Use
from paramgraph_kit.doctor.observe.keywords import copies_keywords, in_the_graph, place_in_the_graph
from paramgraph_kit.doctor.observe.moved_together import graph_for_each
from paramgraph_kit.doctor.observe.own_numbers import read_in_captures
from paramgraph_kit.doctor.observe.places import frames_of_the_user
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Failure, Frame

_COPIED = "each tensor is copied as the others are"
_FILLS = frozenset(("fill_", "full", "tensor", "as_tensor", "scalar_tensor"))


@dataclass(frozen=True, slots=True)
class _Given:
    """A number among the arguments of a function that runs: ``alpha``, or the third of ``*args``."""

    code: CodeType
    name: str
    entry: Any  # of ``*args`` or ``**kwargs``; None of another
    value: Any
    line: int  # at which that function is
    caller: FrameType | None


class GivenNumbers:
    """Those of the captures of one examination."""

    def __init__(self) -> None:
        self._then: dict[int, dict[tuple[CodeType, str, Any], _Given]] = {}  # by the graph
        self.moved: dict[tuple[CodeType, str, Any], tuple[_Given, Failure]] = {}
        self._tensors: dict[tuple[CodeType, str, Any], tuple[str, str, str]] = {}  # a call, a number in it, its tensor

    def begin(self, graph: object) -> None:
        """The capture of a graph begins."""
        self._then[id(graph)] = {(g.code, g.name, g.entry): replace(g, caller=None) for g in _given()}

    def launched(self, graph: object, kind: str) -> None:
        """A graph is replayed."""
        then = self._then.get(id(graph))
        for now in _given() if then else ():
            key = (now.code, now.name, now.entry)
            first = then.get(key) if then else None
            if first is not None and first.value != now.value and key not in self.moved:
                if now.entry is None and _is_only_captured(first):
                    if _is_unread(now):
                        continue
                    kind_of = type(now.value).__name__
                    text = f"{now.name} is given to a capture of its own, whose replays keep the first {kind_of}"
                    held, kinds = {now.name: now.value}, NUMBERS
                    at = next((at for _, at in read_in_captures([now.code], held, kinds)), None)
                    at = at or frame_at(now.code, first.line)
                    self.moved[key] = now, BY_ID["scalar-frozen"].failure(text, at)
                elif now.entry is not None and not _fills(now.code):
                    self.moved[key] = now, _of_caller(now, first.value, kind)
                    if (made := _as_tensor(now, kind)) is not None and _COPIED in self.moved[key][1].fix:
                        self._tensors[key] = made

    def entries(self, told: list[Failure]) -> Iterator[Failure]:
        """Those among ``*args`` and ``**kwargs``, which have no names of their own, at lines that are not told yet."""
        known = {(f.code, f.frame) for f in told}
        yield from (f for f in self._together() if (f.code, f.frame) not in known)

    def failures(self, told: list[Failure]) -> Iterator[Failure]:
        """Numbers that no replay sees; ``told``: what is known from the lines of the capture alone."""
        said = {f.message for f in told}
        named = (failure for key, (_, failure) in self.moved.items() if key[2] is None)
        yield from (failure for failure in (*named, *self._together()) if failure.message not in said)

    def _together(self) -> Iterator[Failure]:
        """Those without names of their own, several that one call gives at once: each has its tensor there."""
        lines: dict[tuple[str, Frame | None], list[tuple[CodeType, str, Any]]] = {}
        for key, (_, failure) in self.moved.items():
            if key[2] is not None:
                lines.setdefault((failure.code, failure.frame), []).append(key)
        for keys in lines.values():
            first = self.moved[keys[0]][1]
            made = [self._tensors[key] for key in keys if key in self._tensors]
            if len(made) > 1 and len(made) == len(keys) and len({old for old, _, _ in made}) == 1:
                after = old = made[0][0]
                for _, given, tensor in made:
                    after = after.replace(given, tensor) if old.count(given) == 1 else f"{after}, and {tensor} there"
                said = "; ".join(self.moved[key][1].message for key in keys)
                first = replace(first, message=said, fix=f"before  {old}\nafter   {after}: {_COPIED}")
            yield first


def _given() -> Iterator[_Given]:
    for frame in (each for each in frames_of_the_user() if each.f_code.co_name != "<module>"):
        for name, entry, value in _arguments(frame):
            if type(value) in NUMBERS:
                yield _Given(frame.f_code, name, entry, value, frame.f_lineno, frame.f_back)


def _arguments(frame: FrameType) -> Iterator[tuple[str, Any, Any]]:
    found = inspect.getargvalues(frame)
    yield from ((name, None, found.locals.get(name)) for name in found.args)
    if found.varargs is not None:
        held = found.locals.get(found.varargs)
        yield from ((found.varargs, i, each) for i, each in enumerate(held if type(held) is tuple else ()))
    if found.keywords is not None:
        held = found.locals.get(found.keywords)
        yield from ((found.keywords, k, each) for k, each in (held if type(held) is dict else {}).items())


def _is_only_captured(then: _Given) -> bool:
    """Whether a function reads a number where it captures, and nowhere else."""
    nodes = [*nodes_of(then.code)]
    reads = [n.lineno for n in nodes if isinstance(n, ast.Name) and n.id == then.name and isinstance(n.ctx, ast.Load)]
    branches = [n for n in nodes if isinstance(n, ast.If) and n.lineno < then.line <= (n.end_lineno or 0)]
    if not branches or not reads:
        return False
    own = min(branches, key=lambda n: (n.end_lineno or 0) - n.lineno)
    return all(own.body[0].lineno <= line <= (own.end_lineno or 0) for line in reads)


def _is_unread(now: _Given) -> bool:
    """Whether a function that runs only hands a number on to who never reads it."""
    frame = next(each for each in frames_of_the_user() if each.f_code is now.code)
    names = Names(frame.f_globals, own=frozenset(frame.f_locals), known=frame.f_locals)
    nodes = (n for n in nodes_of(now.code) if isinstance(n, ast.Name) and n.id == now.name)
    reads = [Use(now.code, n, False, names) for n in nodes if isinstance(n.ctx, ast.Load)]
    return bool(reads) and all(map(is_unread, reads))


def _fills(code: CodeType) -> bool:
    """Whether a function writes numbers of its arguments into tensors."""
    return not _FILLS.isdisjoint(code.co_names)


def _copies_each(code: CodeType, keywords: str) -> bool:
    """Whether a function copies what it is given in a loop, or its keywords, as many tensors as there are."""
    if keywords:
        return copies_keywords(code, keywords)
    loops = (n for n in nodes_of(code) if isinstance(n, (*LOOPS, ast.ListComp, ast.GeneratorExp)))
    calls = (n for loop in loops for n in ast.walk(loop) if isinstance(n, ast.Call))
    names = {last_name(call.func) for call in calls}
    return not names.isdisjoint(("copy_", "tree_map", "_foreach_copy_")) or "tree_map" in code.co_names


def _of_caller(now: _Given, then: Any, kind: str) -> Failure:
    """It is told where it is given, with a tensor for it."""
    inside = next((frame.f_locals for frame in frames_of_the_user() if frame.f_code is now.code), {})
    what = f"{now.name}[{now.entry}]" if isinstance(now.entry, int) else str(now.entry)
    text = f"{what} of {now.code.co_name} is {now.value} at a replay, and the graph has the {then} of its capture"
    caller = now.caller
    is_alone = caller is None or is_library(caller.f_code.co_filename)
    if caller is None or (is_alone and not isinstance(now.value, bool)):
        alone = BY_ID["scalar-frozen"].failure(text, frame_at(now.code, now.line))
        if alone.frame is None or not _copies_each(now.code, now.name if isinstance(now.entry, str) else ""):
            return alone
        given = f"`torch.tensor(value, device={kind!r})` for a number"
        does = f"this line as it is, and each call gives {given}: {_COPIED}"
        return replace(alone, fix=f"before  {alone.frame.text}\nafter   {does}")
    at = frame_at(now.code, now.line) if is_alone else frame_at(caller.f_code, caller.f_lineno)
    failure = BY_ID["scalar-frozen"].failure(text, at)
    line = at.text if at is not None else ""
    entry = f"{now.name}.get({now.entry!r})" if isinstance(now.entry, str) else f"{now.name}[{now.entry}]"
    if isinstance(now.value, bool):  # it decides, and a tensor would have to be read
        fix = f"before  {line}\nafter   {graph_for_each(entry)}"
        return replace(BY_ID["branch-frozen"].failure(text, at), fix=fix)
    keywords = now.name if isinstance(now.entry, str) else ""
    if not _copies_each(now.code, keywords):
        if keywords and (told := in_the_graph(now.code, inside, keywords, str(now.entry), kind)):
            return replace(failure, fix=f"before  {line}\nafter   {told}")
        moves = not keywords and type(now.value) is float and _moves_on(caller, now)
        if moves and (told := place_in_the_graph(now.code, inside, now.name, now.entry, kind)):
            return replace(failure, fix=f"before  {line}\nafter   {told}")
        return replace(failure, fix=f"before  {line}\nafter   {graph_for_each(entry)}")
    if (made := _as_tensor(now, kind)) is not None:
        old, given, new = made
        after = old.replace(given, new) if old.count(given) == 1 else f"{new} there"
        return replace(failure, fix=f"before  {old}\nafter   {after}: {_COPIED}")
    return failure


def _as_tensor(now: _Given, kind: str) -> tuple[str, str, str] | None:
    """The call that gives a number, the number as it is written there, and a tensor of it."""
    caller = now.caller
    if caller is None:
        return None
    for call in (n for n in nodes_of(caller.f_code) if isinstance(n, ast.Call) and n.lineno == caller.f_lineno):
        named = [k.value for k in call.keywords if k.arg == now.entry]
        by_place = call.args[now.entry : now.entry + 1] if isinstance(now.entry, int) else []
        for given in (*named, *by_place):
            return ast.unparse(call), ast.unparse(given), f"torch.tensor({ast.unparse(given)}, device={kind!r})"
    return None


def _moves_on(caller: FrameType, now: _Given) -> bool:
    """Whether who calls has a line that goes on from what it gives: ``temperature *= 0.8``, which never comes twice."""
    nodes = [*nodes_of(caller.f_code)]
    calls = [n for n in nodes if isinstance(n, ast.Call) and n.lineno <= caller.f_lineno <= (n.end_lineno or 0)]
    given = {n.id for call in calls for n in call.args if isinstance(n, ast.Name)}
    given = {name for name in given if caller.f_locals.get(name) is now.value}
    kinds = (ast.Add, ast.Sub, ast.Mult, ast.Div)
    for node in (n for loop in nodes if isinstance(loop, LOOPS) for n in ast.walk(loop)):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, kinds):
            path = ast.unparse(node.target)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, kinds):
            path = ast.unparse(node.targets[0])
            path = path if path == ast.unparse(node.value.left) else ""
        else:
            continue
        if path in given:
            return True
    return False
