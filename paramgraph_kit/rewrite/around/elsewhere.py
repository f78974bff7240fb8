"""Whether code that a step does not run may call what the step calls: it would find work put off that it waits for.

What a helper leaves for behind the launch is done there alone. ``validate`` that calls the same helper would not have
its own work done, and each later launch would do it again. Names are asked, and for what is called without its name (a
``forward``, a hook, a context manager) whether code that has not run calls an object that could lead there.
"""

from __future__ import annotations

import ast
import builtins
import re
import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.rewrite.source.edits import Function, Source, first_line, locals_of, names_in, path_of
from paramgraph_kit.rewrite.source.place import called, names_of

_UNNAMED = ("forward", "backward", "setup_context")  # with all `__call__`s and their like
_OF_OTHERS = frozenset(
    name
    for kind in (
        torch.Tensor,
        torch.optim.Optimizer,
        torch.nn.Module,
        torch.Generator,
        OrderedDict,
        deque,
        set,
        str,
        Path,
    )
    for name in dir(kind)
    if not name.startswith("__")
)
LEFT = (
    "{names} leaves its work on the host to the launches of the step: code in other files or cells that comes to it, "
    "as a validation does, takes a copy of it as it was; else that work is done behind each launch of the step instead"
)
ANEW = (
    "an eager call of {names} between replays, or a capture of another shape, leaves its own work in `{held}`: keep a "
    "graph's, `own = list({held})` behind its capture, and write `{held}[:] = own` ahead of each of its replays"
)
READ = (
    "`{name}` reads what is drawn or found before each launch: code in other files or cells that comes to it, as a "
    "validation does, calls `{before}` first"
)
_OURS = re.compile(r"later(_\d+)?")  # a name that was free


class Elsewhere:
    """What of some files a step has not run."""

    def __init__(self, sources: Iterable[Source], codes: Iterable[CodeType], space: Mapping[str, Any]) -> None:
        """Note who has run.

        Args:
            sources: the user's files.
            codes: what a step runs.
            space: the names of the module of the step.
        """
        self.sources, self.space = list(sources), space
        begins = {(code.co_filename, code.co_firstlineno) for code in codes}
        self.ran: dict[ast.AST, Source] = {}
        self.others: dict[ast.AST, Source] = {}
        for source in self.sources:
            for node in ast.walk(source.tree):
                if isinstance(node, Function):
                    ran = {(source.file, first_line(node)), (source.file, node.lineno)} & begins
                    (self.ran if ran else self.others)[node] = source

    def calls(self, function: Function, steps: Sequence[Function]) -> bool:
        """Whether something may call a function that is not one of the ``steps``, and not called by them."""
        inside = {node for step in steps for node in ast.walk(step)}
        if function in inside:
            return False
        chain, unnamed = self._led_by(function, inside)
        if unnamed:
            chain |= {node.name for node in self.ran if isinstance(node, Function) and node not in inside}
            chain -= {name for name in chain if _is_unnamed(name)}
        return any(
            self._names(source, node, chain) or (unnamed and self._may_lead_to_objects(source, node))
            for source, node in self._left(inside)
        )

    def _led_by(self, function: Function, inside: Collection[ast.AST]) -> tuple[set[str], bool]:
        """Names of a function and of those by which the step comes to it; whether one of them is called without it."""
        chain, todo, unnamed = set[str](), [function], False
        while todo:
            one = todo.pop()
            source = self.ran.get(one) or self.others[one]
            giving = self._giving(source, one, inside)
            unnamed = unnamed or _is_unnamed(one.name) or bool(giving) or self._is_hook(one)
            if one.name in chain:
                continue
            chain |= {one.name, *giving}
            todo += [
                node
                for node in self.ran
                if isinstance(node, Function) and node not in inside and node is not one
                if any(last_name(part) == one.name for part in ast.walk(node))
            ]
        return chain, unnamed

    def _giving(self, source: Source, function: Function, inside: Collection[ast.AST]) -> list[str]:
        """The name of a function that gives away this one, as a decorator does: no step is in it, and none runs it."""
        around = source.function_of(function)
        if around is None or around in self.ran:
            return []
        return [around.name] if not any(isinstance(n, Function) and n in inside for n in ast.walk(around)) else []

    def _is_hook(self, function: Function) -> bool:
        calls = (node for each in self.sources for node in ast.walk(each.tree) if isinstance(node, ast.Call))
        return any(_registers(call) and any(last_name(a) == function.name for a in call.args) for call in calls)

    def _left(self, inside: Collection[ast.AST]) -> Iterator[tuple[Source, ast.AST]]:
        """All syntax of functions that have not run, and of what is in none."""
        for source in self.sources:
            for node in ast.walk(source.tree):
                function = source.function_of(node)
                if function not in self.ran and node not in inside:
                    yield source, node

    def _names(self, source: Source, node: ast.AST, names: Collection[str]) -> bool:
        """Whether this syntax names one of some functions, other than as a hook."""
        above = source.parents.get(node)
        if isinstance(node, ast.alias):
            return node.name in names and node.asname not in (None, node.name)
        if isinstance(node, ast.Constant):
            return node.value in names and isinstance(above, ast.Call) and called(above) == "getattr"
        if last_name(node) not in names or not isinstance(getattr(node, "ctx", None), ast.Load):
            return False
        around = source.function_of(node)
        own = around.body if around is not None and isinstance(above, ast.Return) else []
        if any(isinstance(n, Function) and n.name == last_name(node) for n in own):
            return False  # what a decorator gives: who uses that names it
        while isinstance(above, ast.Call) and not _registers(above):  # `register_forward_hook(watch("net"))`
            above = source.parents.get(above)
        return not isinstance(above, ast.Call)

    def _may_lead_to_objects(self, source: Source, node: ast.AST) -> bool:
        """Whether this calls an object, as far as is known: ``model(x)``, ``self.net(x)``, ``with self.timer:``."""
        if isinstance(node, ast.withitem):
            return not isinstance(node.context_expr, ast.Call)
        if not isinstance(node, ast.Call):
            return False
        root: ast.AST = node.func
        while isinstance(root, ast.Attribute):
            root = root.value
        function, direct = source.function_of(node), isinstance(node.func, ast.Name)
        if not isinstance(root, ast.Name):
            return isinstance(node.func, ast.Subscript)
        if function is not None and root.id in locals_of(function):
            inner = any(isinstance(n, Function) and n.name == root.id for n in ast.walk(function))
            return not inner and (direct or called(node) not in _OF_OTHERS) and not self._is_of_file(called(node))
        value = self.space.get(root.id, getattr(builtins, root.id, None))
        for name in _path(node.func):
            value = _held(value, name)
        return isinstance(value, torch.nn.Module) or _is_object_of_user(value, {s.file for s in self.sources})

    def _is_of_file(self, name: str) -> bool:
        """Whether a function of the files has this name: what it calls is asked by itself."""
        return any(isinstance(node, Function) and node.name == name for node in (*self.ran, *self.others))


def told(sources: Mapping[str, Source], texts: Mapping[str, Sequence[str]]) -> list[str]:
    """What goes for code in other files that calls functions which put work off, by what files are rewritten to.

    So it does for what reads what comes from before a launch: a test loop would have what the last one was given.
    """
    names, steps, held, read = set[str](), set[str](), set[str](), set[tuple[str, str]]()
    for file, lines in texts.items():
        if file in sources:
            of_file = _leaving(sources[file], lines)
            names, steps, held = names | of_file[0], steps | of_file[1], held | of_file[2]
            read |= {*_reading(sources[file], lines)}
    found = [LEFT.format(names=_listed(names))] if names else []
    found += [ANEW.format(names=_listed(steps), held=name) for name in sorted(held)]
    return [*found, *(READ.format(name=name, before=before) for name, before in sorted(read))]


def _reading(known: Source, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Functions outside of the step that read tensors which a new function writes before each launch, and its name."""
    new = Source(known.file, ast.parse("".join(lines)))
    own = {node.name for node in ast.walk(known.tree) if isinstance(node, Function)}
    every = [node for node in ast.walk(new.tree) if isinstance(node, Function)]
    for before in (node for node in every if node.name.startswith("before_") and node.name not in own):
        calls = [node.func for node in ast.walk(before) if isinstance(node, ast.Call)]
        filled = {path_of(f.value) for f in calls if isinstance(f, ast.Attribute) and f.attr in ("copy_", "fill_")}
        steps = {before.name.removeprefix("before_"), *(node.name for node in every if node.name not in own)}
        inside = {part for node in every if node.name.strip("_") in steps for part in ast.walk(node)}
        for node in every:
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and new.function_of(n) is node}
            if node not in inside and names & filled - names_in(known.tree):
                yield node.name, before.name


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _leaving(source: Source, lines: Sequence[str]) -> tuple[set[str], set[str], set[str]]:
    """Names of functions, outside of the step, whose new lines fill the list that the step empties; the step's; it."""
    new, known = Source(source.file, ast.parse("".join(lines))), names_of(source.tree)
    found: dict[str, set[Function]] = {"append": set(), "clear": set()}
    held = set[str]()
    for node in ast.walk(new.tree):
        func, function = node.func if isinstance(node, ast.Call) else None, new.function_of(node)
        if function is None or not isinstance(func, ast.Attribute) or func.attr not in found:
            continue
        path = path_of(func.value)
        if _OURS.fullmatch(path) and path not in known:
            found[func.attr].add(function)
            held |= {path} if func.attr == "clear" else set()
    steps = {part for step in found["clear"] for part in ast.walk(step)}
    leaving = {node.name for node in found["append"] if node not in steps}
    return leaving, {node.name for node in found["clear"]}, held


def _is_unnamed(name: str) -> bool:
    return name in _UNNAMED or (name.startswith("__") and name.endswith("__"))


def _is_object_of_user(value: Any, files: Collection[str]) -> bool:
    call = next((vars(kind)["__call__"] for kind in type(value).__mro__ if "__call__" in vars(kind)), None)
    return isinstance(call, types.FunctionType) and call.__code__.co_filename in files


def _held(value: Any, name: str) -> Any:
    """What an object has under a name, without asking a property of the user's."""
    held = value._modules if isinstance(value, torch.nn.Module) else getattr(value, "__dict__", {})
    return held.get(name)


def _path(node: ast.expr) -> list[str]:
    return [*_path(node.value), node.attr] if isinstance(node, ast.Attribute) else []


def _registers(call: ast.Call) -> bool:
    return called(call).startswith("register_") and called(call).endswith("_hook")
