"""Rates that another method of a step's object gives its optimizer: ``group["lr"] = rate`` in ``trainer.set_lr()``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, MAKERS, every, here, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.held import attributes_of, is_a, methods_of
from paramgraph_kit.doctor.observe.rate_words import rate_in_a_tensor
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace.model import Failure

_SAID = "the next rate is a number of Python's, and a graph has that of its capture"
_NOTE = "the rate of {path} is a number that a graph keeps, and {at} sets it: where that runs between launches, {words}"


def rates_by_methods(function: Callable[..., Any], codes: Collection[CodeType], notes: list[str]) -> Iterator[Failure]:
    """Lines that do so in a loop with replays; ``notes`` gets those of which no loop is known."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if owner is None or is_a(owner, type):
        return
    calls = [n.func for code in codes for n in nodes_of(code) if isinstance(n, ast.Call)]
    stepped = {last_name(f.value) for f in calls if isinstance(f, ast.Attribute) and f.attr == "step"}
    held = {n: v for n, v in attributes_of(owner).items() if n in stepped and is_a(v, torch.optim.Optimizer)}
    held = {n: v for n, v in held.items() if any(type(group.get("lr")) is float for group in v.param_groups)}
    methods = methods_of(type(owner)).items() if held else ()
    for method, code in methods:
        own = method in MAKERS or code in codes or method in map(last_name, calls)  # perhaps on another day
        if own or is_library(code.co_filename) or not code.co_argcount:
            continue
        for path, node in _given(code, held):
            made = rate_in_a_tensor(driver().device.type, held[path.partition(".")[2]])
            words = f"{ast.unparse(node.targets[0])}.fill_({ast.unparse(node.value)})"
            frame = frame_at(code, node.lineno)
            if _runs_between(code.co_filename, method, name):
                fix = f"before  {ast.unparse(node)}\nafter   {words}, ahead of g.replay(), with {made}"
                yield replace(BY_ID["learning-rate-frozen"].failure(_SAID, frame), fix=fix)
            else:
                notes.append(_NOTE.format(path=path, at=frame.label(), words=f"`{words}` there, with {made}"))


def _given(code: CodeType, held: Collection[str]) -> Iterator[tuple[str, ast.Assign]]:
    """Assignments to the rate of a group of one of these, with the optimizer as the method calls it."""
    nodes, own = [*nodes_of(code)], code.co_varnames[0]
    paths = [f"{own}.{name}" for name in held]
    loops = [n for n in nodes if isinstance(n, ast.For)]
    for node in (n for n in nodes if isinstance(n, ast.Assign)):
        target = node.targets[0]
        key = target.slice if isinstance(target, ast.Subscript) else None
        if not isinstance(target, ast.Subscript) or not isinstance(key, ast.Constant) or key.value != "lr":
            continue
        group = last_name(target.value)
        of = [n.iter for n in loops if group in {last_name(part) for part in ast.walk(n.target)} and group]
        said = [ast.unparse(part) for each in [target.value, *of] for part in ast.walk(each)]
        yield from ((path, node) for path in paths if f"{path}.param_groups" in said)


def _runs_between(file: str, method: str, step: str) -> bool:
    """Whether a loop that replays calls a method of the step's object, with what is another one in each round."""
    tree = tree_of(file)
    functions = [n for n in every(tree) if isinstance(n, FUNCTIONS[:2])] if tree is not None else []
    if tree is None or sum(n.name == method for n in functions) != 1:
        return False
    for body in (*functions, tree):
        nodes = [n for statement in body.body for n in here(statement, FUNCTIONS)]
        stepped = {ast.unparse(func.value) for func, _ in _called(nodes, step)}
        for loop in (n for n in nodes if isinstance(n, LOOPS)):
            inside = [n for n in ast.walk(loop) if not isinstance(n, FUNCTIONS)]
            moved = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            given = [call for func, call in _called(inside, method) if ast.unparse(func.value) in stepped]
            read = {n.id for call in given for n in ast.walk(call) if isinstance(n, ast.Name)}
            if not read.isdisjoint(moved) and any(_called(inside, "replay")):
                return True
    return False


def _called(nodes: list[ast.AST], method: str) -> Iterator[tuple[ast.Attribute, ast.Call]]:
    """The calls of a method."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node.func, node
