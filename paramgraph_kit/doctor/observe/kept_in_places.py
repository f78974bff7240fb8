"""Results of graphs that some calls keep, and those that a call gives to an object of its caller's, as they are."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import LOOPS, elements_of, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_before import written_in
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.held import code_of, is_a
from paramgraph_kit.doctor.observe.kept_choices import is_choice
from paramgraph_kit.doctor.observe.one_call import Caller
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

OF_SOME_CALLS = "{} keeps the result of some calls, as it is: each further replay writes to the same memory"
OF_CALLERS = "{} is given the graph's own memory, as it is: each further replay writes to it"
_VIEWS = ("detach", "view", "reshape", "squeeze", "flatten", "unsqueeze")
_PLACES = (ast.Attribute, ast.Subscript)
Owns = Callable[[torch.Tensor], bool]


def problems(
    caller: Caller, codes: Iterable[CodeType], regions: Collection[Region], writes: Owns, makes: Owns
) -> Iterator[Failure]:
    """What lines of a function that replays keep of its graphs.

    ``writes``: whether a tensor is memory that graphs write; ``makes``: and was not there before them, as a state was.
    """
    function, given = caller.function, caller.given()
    own = code_of(getattr(function, "forward", None) or function)
    space = next((region.space for region in regions), {})
    owners = [getattr(function, "__self__", None), *(each for r in regions for each in r.names.values())]
    for code in dict.fromkeys(codes):
        arguments = {**given} if code is own else {}
        held = next((each for each in owners if code in _methods(each)), None)
        first = {next(iter(code.co_varnames[: code.co_argcount]), ""): held} if held is not None else {}
        lines = _Lines(code, {**arguments, **first}, {**space, **getattr(function, "__globals__", {})}, held)
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            yield from lines.chosen(writes)
            for node, target, value in lines.pairs():
                result = lines.value_of(value) if _is_path(value) else None
                around = [b for b in lines.branches if any(part is node for part in ast.walk(b))]
                spans = [(b.lineno, b.end_lineno or 0) for b in around]
                with_capture = any(r.code is code and a <= r.line <= b for r in regions for a, b in spans)
                if with_capture or not any(map(writes, _tensors(result))):
                    continue
                if isinstance(target, _PLACES) and _root(target) in arguments:
                    if any(map(makes, _tensors(result))):
                        yield _told(code, node, target, value, OF_CALLERS)
                elif _some_calls(target, around, lines) and (
                    isinstance(target, _PLACES) or lines.is_read_behind_a_loop(node, target)
                ):
                    yield _told(code, node, target, value, OF_SOME_CALLS)


class _Lines:
    """The lines of one function, and what its names mean, as far as they mean the same in all of its calls."""

    def __init__(self, code: CodeType, names: dict[str, Any], space: dict[str, Any], held: Any) -> None:
        self.code, self.names, self.space, self.held = code, names, space, held
        self.nodes = [*nodes_of(code)]
        self.assigns = [n for n in self.nodes if isinstance(n, ast.Assign) and len(n.targets) == 1]
        self.branches = [n for n in self.nodes if isinstance(n, ast.If)]

    def pairs(self) -> Iterator[tuple[ast.Assign, ast.expr, ast.expr]]:
        """What is given what: by each line, and by each part of ``a, b = c, d``."""
        for node in self.assigns:
            several = [isinstance(each, ast.Tuple) for each in (node.targets[0], node.value)]
            targets, values = ([*elements_of(each)] for each in (node.targets[0], node.value))
            if all(several) and len(targets) == len(values):
                yield from ((node, target, value) for target, value in zip(targets, values, strict=True))
            elif not any(several):
                yield node, node.targets[0], node.value

    def chosen(self, writes: Owns) -> Iterator[Failure]:
        """Lines that keep a result, or what was kept before, by one expression: ``best = y if ok else best``."""
        for node in (n for n in self.assigns if isinstance(n.value, ast.IfExp)):
            target, value = node.targets[0], node.value
            old = [each for each in (value.body, value.orelse) if ast.unparse(each) == ast.unparse(target)]  # type: ignore[attr-defined]
            new = value.orelse if old and old[0] is value.body else value.body  # type: ignore[attr-defined]
            stays = isinstance(target, _PLACES) or self.is_read_behind_a_loop(node, target)
            varies = old and stays and is_choice(value.test, self.assigns, node, self.code)  # type: ignore[attr-defined]
            if varies and _is_path(new) and any(map(writes, _tensors(self.value_of(new)))):
                yield _told(self.code, node, target, new, OF_SOME_CALLS)

    def is_read_behind_a_loop(self, node: ast.Assign, target: ast.expr) -> bool:
        """Whether a name that a round gives a value is read when all rounds are over."""
        loops = [n for n in self.nodes if isinstance(n, LOOPS) and n.lineno < node.lineno <= (n.end_lineno or 0)]
        last = min((n.end_lineno or 0 for n in loops), default=0)
        reads = [n for n in self.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        return bool(last) and any(n.lineno > last and n.id == ast.unparse(target) for n in reads)

    def value_of(self, node: ast.expr, most: int = 4) -> Any:
        """What an expression is now, or some of what it may be: a table of results; None where that is not known."""
        node = _looked_at(node)
        if isinstance(node, ast.Name) and node.id not in self.names:
            lines = [n for n in self.assigns if ast.unparse(n.targets[0]) == node.id]
            names = [n for n in self.nodes if isinstance(n, ast.Name) and n.id == node.id]
            if stores := [n for n in names if isinstance(n.ctx, ast.Store)]:
                return self.value_of(lines[0].value, most - 1) if len(lines) == len(stores) == 1 and most else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self._given_by(node.func)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
            table = path_value(node.value, self.names, self.space)
            return [*table.values()] if type(table) is dict else None
        return path_value(node, self.names, self.space) if isinstance(node, (ast.Name, *_PLACES)) else None

    def _given_by(self, func: ast.Attribute) -> Any:
        """What a method of the same object gives, where that is one of its attributes."""
        if self.held is None or path_value(func.value, self.names, self.space) is not self.held:
            return None
        code = code_of(getattr(type(self.held), func.attr, None))
        results = [n.value for n in nodes_of(code) if isinstance(n, ast.Return)] if code is not None else []
        result = _looked_at(results[0]) if len(results) == 1 and results[0] is not None else None
        first = next(iter(code.co_varnames[: code.co_argcount]), "") if code is not None else ""
        is_own = isinstance(result, ast.Attribute) and first and _root(result) == first
        return path_value(result, {first: self.held}, self.space) if is_own else None


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in (value if type(value) is list else [value]) if is_a(each, torch.Tensor)]


def _methods(held: Any) -> list[CodeType]:
    kinds = type(held).__mro__ if held is not None else ()
    return [code for kind in kinds for each in vars(kind).values() if (code := code_of(each)) is not None]


def _root(node: ast.AST) -> str:
    while isinstance(node, _PLACES):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _looked_at(node: ast.expr) -> ast.expr:
    """What an expression is only another look at: ``y`` for ``y[:n].detach()``."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
            node = node.func.value
        elif isinstance(node, ast.Subscript) and any(isinstance(n, ast.Slice) for n in _parts(node.slice)):
            if not all(isinstance(n, (ast.Slice, ast.Constant)) for n in _parts(node.slice)):
                return node  # a tensor that picks makes another one
            node = node.value
        else:
            return node


def _parts(key: ast.expr) -> list[ast.expr]:
    return key.elts if isinstance(key, ast.Tuple) else [key]


def _some_calls(target: ast.expr, around: list[ast.If], lines: _Lines) -> bool:
    """Whether a branch on a score, or on a count, decides that it is kept, and no line gives the place another one."""
    path = ast.unparse(target)
    others = [value for _, each, value in lines.pairs() if each is not target and ast.unparse(each) == path]
    if any(_is_path(value) for value in others):
        return False  # a choice among results
    return any(is_choice(branch.test, lines.assigns, branch, lines.code) for branch in around)


def _is_path(value: ast.expr) -> bool:
    return isinstance(_looked_at(value), (ast.Name, *_PLACES))


def _told(code: CodeType, node: ast.Assign, target: ast.expr, value: ast.expr, text: str) -> Failure:
    before, kept = ast.unparse(node), ast.unparse(value)
    at = before.find(f" = {kept} if ") + 3 if isinstance(node.value, ast.IfExp) and node.value.body is value else -1
    at = before.rfind(kept) if at < len(" = ") else at
    after = f"{before[:at]}{kept}.clone(){before[at + len(kept) :]}"
    failure = BY_ID["output-alias"].failure(text.format(ast.unparse(target)), frame_at(code, node.lineno))
    return replace(failure, fix=f"before  {before}\nafter   {after}")


def with_kept(
    caller: Caller, told: list[Failure], codes: Iterable[CodeType], regions: Collection[Region]
) -> list[Failure]:
    """The same, and what lines keep at which nothing is told yet."""
    lines, filled = {f.frame for f in told}, caller.graphs.filled_by_all()
    states = set[int]()
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        states |= {storage_key(t) for region in regions for _, t in written_in(region)}

    def writes(tensor: torch.Tensor) -> bool:
        return filled(tensor) or (storage_key(tensor) in states and not is_a(tensor, torch.nn.Parameter))

    more = problems(caller, codes, regions, writes, caller.graphs.writes)
    return [*told, *(f for f in more if f.frame not in lines)]
