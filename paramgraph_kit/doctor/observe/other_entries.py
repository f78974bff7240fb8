"""What lines around a step add to a list that it reads, set there or take out: tried on the step, as a round does."""

from __future__ import annotations

import ast
from collections import OrderedDict, defaultdict, deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.observe.captured_entries import ADDS, TAKES, TURNS
from paramgraph_kit.doctor.observe.captured_values import NOTHING
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.other_numbers import another

HOLDS = (list, deque, dict, set, OrderedDict, defaultdict)
_FIRST = ("appendleft", "extendleft", "insert")
_ROUNDS = (1, 6)  # a length decides perhaps only later
_DEEP = 3  # lists in lists


@dataclass(frozen=True, slots=True)
class Change:
    """A line that changes the entries of a list or a dictionary, and the value that it gives, as far as it is known."""

    node: ast.AST
    value: Any

    def make(self, holds: Any) -> None:
        """Do what the line does; where its value is not known, with one like the last entry."""
        node = self.node
        if keys := _keys_written(node) if isinstance(holds, dict) else []:
            for key in keys:
                Change(ast.Pass(), NOTHING)._enter(holds, key)
        elif isinstance(node, ast.Call):
            self._call(holds, last_name(node.func), node)
        elif isinstance(node, ast.Delete):
            target = node.targets[0]
            _take(holds, _key(target) if isinstance(target, ast.Subscript) else NOTHING)
        else:
            into = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(into, ast.Subscript):
                self._enter(holds, _key(into))
            elif isinstance(node, ast.AugAssign):  # ``+=`` and ``|=``
                self._call(holds, "extend", node)
            else:
                self._enter(holds, NOTHING)

    def is_known(self, holds: Any) -> bool:
        """Whether there is anything to try it with."""
        return len(holds) > 0 or not _has_gaps(self.value)

    def _call(self, holds: Any, name: str, node: ast.AST) -> None:
        if name in TAKES:
            given = node.args if isinstance(node, ast.Call) else []
            key = given[0].value if given and isinstance(given[0], ast.Constant) else NOTHING
            if name == "clear":
                holds.clear()
            else:
                _take(holds, -1 if name == "pop" and not given else key)
        elif name in TURNS:
            _put(holds, [*holds][::-1] if not isinstance(holds, dict) else holds)
        elif name in ADDS and not isinstance(holds, dict):
            plain = name in ("extend", "extendleft")
            more = [*self.value] if plain and type(self.value) in (list, tuple) else [self.value]
            last = [*holds][-1:]
            more = [_known(each, last[0]) if last else each for each in more]
            _put(holds, [*more, *holds] if name in _FIRST else [*holds, *more])
        else:
            self._enter(holds, NOTHING)

    def _enter(self, holds: Any, key: Any) -> None:
        if isinstance(holds, set):
            return
        is_list = not isinstance(holds, dict)
        keys = [*range(len(holds))] if is_list else [*holds]
        if key is not NOTHING and not (is_list and not (type(key) is int and -len(holds) <= key < len(holds))):
            then = holds[key] if is_list or key in holds else holds[keys[-1]] if keys else NOTHING
            holds[key] = _known(self.value, then)
            return
        for each in keys:
            holds[each] = other(holds[each])


@dataclass(slots=True)
class Entries:
    """A list or a dictionary, and the lines between two calls of a step that change what it has."""

    holds: Any
    changes: tuple[Change, ...]
    is_seen: bool = False  # a call with other entries has run to its end

    def tries(self) -> Generator[None]:
        """Each time it goes on there is what some rounds leave, or one line alone; then it is as it was."""
        then = dict(self.holds) if isinstance(self.holds, dict) else [*self.holds]
        known = [each for each in self.changes if each.is_known(self.holds)]
        every = [(known, rounds) for rounds in _ROUNDS]
        every += [([each], rounds) for each in known for rounds in _ROUNDS if len(known) > 1]
        for changes, rounds in every if known else ():
            try:
                with torch.no_grad():
                    for _ in range(rounds):
                        for each in changes:
                            each.make(self.holds)
                yield
            finally:
                _put(self.holds, then)


def _put(holds: Any, entries: Any) -> None:
    entries = dict(entries) if isinstance(holds, dict) else [*entries]
    holds.clear()
    holds.update(entries) if isinstance(holds, (dict, set)) else holds.extend(entries)


def _take(holds: Any, key: Any) -> None:
    if not holds:
        return
    if isinstance(holds, (dict, set)):
        key = key if key is not NOTHING and key in holds else next(iter(holds))
        holds.pop(key) if isinstance(holds, dict) else holds.discard(key)
    else:
        del holds[key if type(key) is int and -len(holds) <= key < len(holds) else 0]


def _key(target: ast.Subscript) -> Any:
    """The key that a line has as it is written."""
    try:
        return ast.literal_eval(target.slice)
    except (ValueError, TypeError):
        return NOTHING


def _keys_written(node: ast.AST) -> list[Any]:
    """The keys of a dictionary that a line adds: ``d |= {"a": 1}``, ``d.update({"a": 1}, b=2)``; none of others."""
    is_update = isinstance(node, ast.Call) and last_name(node.func) == "update"
    given = node.args[0] if is_update and node.args else node.value if isinstance(node, ast.AugAssign) else None  # type: ignore[attr-defined]
    named = [k.arg for k in node.keywords] if isinstance(node, ast.Call) and is_update else []
    keys = [k for k in given.keys if isinstance(k, ast.Constant)] if isinstance(given, ast.Dict) else []
    whole = given is None or (isinstance(given, ast.Dict) and len(keys) == len(given.keys))
    return [*named, *(k.value for k in keys)] if whole and None not in named else []


def _has_gaps(value: Any) -> bool:
    return value is NOTHING or (type(value) in (list, tuple) and any(map(_has_gaps, value)))


def _known(value: Any, like: Any) -> Any:
    """A value, where what nobody knows of it is like another one."""
    if type(value) in (list, tuple):
        alike = like if type(like) in (list, tuple) and len(like) == len(value) else [NOTHING] * len(value)
        kind = type(like) if type(like) in (list, tuple) else type(value)
        parts = [_known(*pair) for pair in zip(value, alike, strict=True)]
        return other(like) if any(each is NOTHING for each in parts) else kind(parts)
    return other(like) if value is NOTHING else value


def other(value: Any, deep: int = _DEEP) -> Any:
    """A value like this one, with other numbers, or other memory."""
    if is_a(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if deep and type(value) in (list, tuple):
        return type(value)(other(each, deep - 1) for each in value)
    if deep and type(value) is dict:
        return {key: other(each, deep - 1) for key, each in value.items()}
    return another(value)
