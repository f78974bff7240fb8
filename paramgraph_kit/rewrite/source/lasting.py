"""Calls that no trial takes back: a file that is saved, a line that is sent to a log, an iterator that goes on.

Memory, containers and objects are put back after each trial, so what only writes these may run in one. A call is that
where it is by its name: torch's own, a method of tensors, modules, optimizers and containers, or of the user's own
functions which do nothing else.
"""

from __future__ import annotations

import ast
import builtins
import types
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from paramgraph_kit.rewrite.source.edits import Function, Source, path_of
from paramgraph_kit.rewrite.source.place import called

_MODULES = ("torch", "math", "numpy", "random", "copy", "itertools", "functools", "collections", "operator")
_KINDS: tuple[type, ...] = (
    *(torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler),
    *(torch.amp.GradScaler, list, dict, set, str, deque),
)
_METHODS = frozenset(name for kind in _KINDS for name in dir(kind))
_BUILTINS = frozenset(("open", "input", "exec", "eval", "compile", "next", "exit", "quit", "breakpoint", "__import__"))
_LASTING = frozenset(
    """save savez savez_compressed savetxt dump tofile load init_process_group all_reduce barrier broadcast all_gather
    export""".split()  # noqa: SIM905
)


class Leaves:
    """What some files' code leaves behind; ``space``: what names and attributes hold."""

    def __init__(self, sources: Iterable[Source], space: Mapping[str, Any]) -> None:
        self._space = space
        self._own: dict[str, list[ast.AST]] = {}
        self._unnamed: list[ast.AST] = []  # lambdas, any of which a name of nobody's may be
        for source in sources:
            for node in ast.walk(source.tree):
                self._unnamed += [node] if isinstance(node, ast.Lambda) else []
                if isinstance(node, (Function, ast.ClassDef)):
                    self._own.setdefault(node.name, []).append(node)

    def first(self, node: ast.AST) -> str:
        """The first call in some code that no trial takes back, as it is written, or ""."""
        return self._first(node, set())

    def _first(self, node: ast.AST, known: set[str]) -> str:
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            name = called(call)
            if name in self._own and name not in _METHODS:
                found = self._first_of(self._own[name] if name not in known else [], known | {name})
            elif self._is_undone(call, name):
                continue
            elif isinstance(call.func, ast.Name) and not hasattr(builtins, name) and name not in self._space:
                any_own = [each for name in self._own.keys() - known for each in self._own[name]]
                found = (
                    self._first_of([*any_own, *self._unnamed], known | {*self._own, name}) if name not in known else ""
                )
            else:
                found = path_of(call.func) or name
            if found:
                return found
        return ""

    def _first_of(self, nodes: Iterable[ast.AST], known: set[str]) -> str:
        return next(filter(None, (self._first(each, known) for each in nodes)), "")

    def _is_undone(self, call: ast.Call, name: str) -> bool:
        root = self._space.get(path_of(call.func).partition(".")[0])
        if name in _LASTING or (name == "log" and call.args and not isinstance(root, types.ModuleType)):
            return False
        if isinstance(root, types.ModuleType):
            return root.__name__.partition(".")[0] in _MODULES
        if isinstance(self._space.get(name), torch.nn.Module):
            return True
        if isinstance(call.func, ast.Attribute):
            return name in _METHODS
        module = getattr(self._space.get(name), "__module__", None) or ""
        return (hasattr(builtins, name) and name not in _BUILTINS) or module.partition(".")[0] in _MODULES
