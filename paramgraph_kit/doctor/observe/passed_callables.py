"""Modules and functions that what captures was given, and others that it is given at a replay of the same graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.moved_together import graph_for_each
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.doctor.observe.places import frames_of_the_user
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure


@dataclass(slots=True)
class PassedCallables:
    """Those of the captures of one examination, by what tells one from another."""

    _then: dict[int, tuple[CodeType, dict[str, Any]]] = field(default_factory=dict)  # by the graph
    _moved: dict[tuple[CodeType, str], int] = field(default_factory=dict)  # with the captured line that calls it

    def begin(self, graph: object) -> None:
        """The capture of a graph begins."""
        self._then.pop(id(graph), None)
        for frame in frames_of_the_user():
            if called := {n.func.id for n in _calls(frame.f_code)}:  # type: ignore[attr-defined]
                self._then[id(graph)] = frame.f_code, _known(frame, called)
                return

    def launched(self, graph: object) -> None:
        """A graph is replayed."""
        code, then = self._then.get(id(graph), (None, {}))
        frame = next((f for f in frames_of_the_user() if f.f_code is code), None) if then else None
        if frame is None or code is None:
            return
        now = _known(frame, set(then))
        for name in (n for n in then if n in now and now[n] != then[n]):
            self._moved[code, name] = min(n.lineno for n in _calls(code) if n.func.id == name)  # type: ignore[attr-defined]

    def failures(self) -> Iterator[Failure]:
        """Each, at the captured line that calls it."""
        for (code, name), line in self._moved.items():
            at = frame_at(code, line)
            text = f"{name} is another one at a replay, and the graph has what it was at its capture"
            fix = f"before  {at.text}\nafter   {graph_for_each(name)}"
            yield replace(BY_ID["branch-frozen"].failure(text, at), fix=fix)


def _calls(code: CodeType) -> list[ast.Call]:
    """Calls by an argument's name in what a function captures."""
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    nodes = [*nodes_of(code)]
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    inside = (n for block in captured_in(code) for s in block for n in ast.walk(s))
    calls = (n for n in inside if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
    return [n for n in calls if n.func.id in given and n.func.id not in stored]  # type: ignore[attr-defined]


def _known(frame: FrameType, names: set[str]) -> dict[str, Any]:
    """What tells modules and functions apart: of functions their code, as each call may make one anew."""
    found = dict[str, Any]()
    for name in names:
        value = frame.f_locals.get(name)
        if is_a(value, torch.nn.Module):
            found[name] = id(value)
        elif is_a(value, MethodType):
            found[name] = id(value.__self__), value.__func__.__name__
        elif is_a(value, FunctionType):
            found[name] = value.__code__
    return found
