"""States of a program's own that are a graph's input: what is copied there ahead of a replay is read for the state."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, last_line, nodes_of, pairs_of, spans
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.callers_tensors import TITLE, argument_names
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.copied_names import cloned_at
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.places import frames_of_the_user
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref
from paramgraph_kit.trace.model import Failure, Frame

_MOST, _MOST_BYTES = 1000, 2**24  # of copies, and of one whose values are compared
_SAID = "`{}` is the graph's input itself: line {} copies something else there ahead of a replay, and it is read here"
_KEPT = "`{}` is kept as it is, and line {} copies the next input there ahead of the line that reads it"
_CAUSE = "The graph reads at the address of what it was captured with, and each replay's input is copied there."
_FIX = (
    "before  {line}\n"
    "after   {line}, and `{path}.clone()` for `{path}` where the capture is given it: the graph's input is its own then"
)


@dataclass(slots=True)
class _Over:
    """What was copied to some memory, and where."""

    storage: Any  # a weak reference, which also keeps the key from being given to somebody else
    at: Frame
    launched: bool = False


class ReboundStates:
    """Those of one examination: a name is read for what it had, and given another value, so that it is no buffer."""

    def __init__(self) -> None:
        self._over: dict[int, _Over] = {}
        self._told: dict[Frame, Failure] = {}

    def copied(self, tensors: list[torch.Tensor]) -> None:
        """Something is about to be copied to a tensor, outside of all captures."""
        key = storage_key(tensors[0]) if len(tensors) > 1 else 0
        if not key or key == storage_key(tensors[1]) or len(self._over) >= _MOST or _is_same(*tensors[:2]):
            return
        frame = next(frames_of_the_user(), None)
        if frame is not None:
            at = frame_at(frame.f_code, frame.f_lineno)
            self._over[key] = _Over(storage_ref(tensors[0].untyped_storage()), at)

    def launched(self, reads: Collection[int]) -> None:
        """A graph is replayed that reads this memory."""
        for key in self._over.keys() & {*reads}:
            self._over[key].launched = True

    def read(self, keys: Iterable[int]) -> None:
        """An operation outside of all captures reads these."""
        for key in keys:
            if (over := self._over.get(key)) is not None:
                with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                    self._tell(key, over)

    def failures(self) -> Iterator[Failure]:
        """The lines that read them."""
        yield from self._told.values()

    def _tell(self, key: int, over: _Over) -> None:
        frame, path = _read_in([*frames_of_the_user()], key, over.at)
        if frame is None or path is None or re.search(rf"(?<![\w.]){re.escape(path)}(?!\w)", over.at.text):
            return
        at = frame_at(frame.f_code, frame.f_lineno)
        named = _named_behind(frame, path, key, over.at)
        if named is not None and over.at.line < frame.f_lineno < named.lineno:
            at, value = (
                frame_at(frame.f_code, named.lineno),
                next(v for t, v in pairs_of(named) if ast.unparse(t) == path),
            )
            before, after = cloned_at(named, value)
            failure = BY_ID["output-alias"].failure(_KEPT.format(path, over.at.line), at)
            self._told[at] = replace(failure, fix=f"before  {before}\nafter   {after}")
            return
        if named is not None or not over.launched:
            return
        failure = BY_ID["output-alias"].failure(_SAID.format(path, over.at.line), at)
        self._told[at] = replace(failure, title=TITLE, cause=_CAUSE, fix=_FIX.format(line=at.text, path=path))


def _is_same(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a copy leaves what is there."""
    with suppress(Exception):  # of other kinds
        if target.shape == source.shape and target.nbytes <= _MOST_BYTES:
            return torch.equal(target, source.to(target.device, target.dtype))
    return False


def _named_behind(frame: FrameType, path: str, key: int, copied: Frame) -> ast.stmt | None:
    """The line behind the copy that names the input so, for the next call: ``last = self.frame``."""
    for node in (n for n in nodes_of(frame.f_code) if isinstance(n, ast.stmt)):
        for target, value in pairs_of(node):
            if ast.unparse(target) != path or not isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)):
                continue
            meant = path_value(value, {**frame.f_locals}, frame.f_globals)
            is_behind = frame.f_code.co_firstlineno <= copied.line < node.lineno
            if is_a(meant, torch.Tensor) and storage_key(meant) == key and is_behind:
                return node
    return None


def _read_in(frames: list[FrameType], key: int, copied: Frame) -> tuple[FrameType | None, str | None]:
    """The function that reads this memory as a state of its own, and by what path.

    An argument is a name for what the caller has: ``x = self.fc(x)`` of a layer's says nothing of that, and whoever
    calls it is asked instead, but where the function itself copies there, or nobody else runs.
    """
    for frame, outer in zip(frames, [*frames[1:], None], strict=True):
        path = _path(frame, key)
        copies = frame_at(frame.f_code, copied.line)
        own = copies is not None and copies.file == copied.file
        own = own and frame.f_code.co_firstlineno <= copied.line <= last_line(frame.f_code)
        if outer is None or own or not _is_given(frame, key, path):
            return frame, path
    return None, None


def _is_given(frame: FrameType, key: int, path: str | None) -> bool:
    """Whether a function has this memory as an argument alone."""
    names = argument_names(frame.f_code)
    if path is not None:
        return path in names
    held = [frame.f_locals.get(name) for name in names]
    parts = [*held, *(e for v in held if type(v) is tuple for e in v)]
    parts += [e for v in held if type(v) is dict for e in v.values()]
    return any(is_a(each, torch.Tensor) and storage_key(each) == key for each in parts)


def _path(frame: FrameType, key: int) -> str | None:
    """The path that the line which runs reads this memory by, if its function gives that another value behind it."""
    nodes = [*nodes_of(frame.f_code)]
    lines = [n for n in nodes if isinstance(n, ast.stmt) and spans(n, frame.f_lineno)]
    if not lines:
        return None
    line = max(lines, key=lambda n: (n.lineno, -(n.end_lineno or n.lineno)))
    stores = [n for n in nodes if isinstance(n, ast.Assign) and n.lineno >= line.lineno]
    stored = {ast.unparse(each) for n in stores for target in n.targets for each in elements_of(target)}
    for node in ast.walk(line):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            value = path_value(node, {**frame.f_locals}, frame.f_globals) if ast.unparse(node) in stored else None
            if is_a(value, torch.Tensor) and storage_key(value) == key:
                return ast.unparse(node)
    return None
