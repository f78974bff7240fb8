"""Gradients that a replaying function sets to None although its graph writes to them, and those that nobody zeroes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_line, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.around_replays import gradients_added, gradients_nulled, keeps
from paramgraph_kit.doctor.observe.bare_steps import nulled_behind
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.gradients import sets_to_none
from paramgraph_kit.doctor.observe.held import attributes_of, code_of, unbound
from paramgraph_kit.doctor.observe.lines_behind import codes_of
from paramgraph_kit.doctor.observe.made_with_captures import is_made_with_its_capture
from paramgraph_kit.doctor.observe.nulled_and_read import nulled_and_read
from paramgraph_kit.doctor.observe.own_regions import Region, parameters_of
from paramgraph_kit.doctor.observe.read_later import statement_at
from paramgraph_kit.trace.model import Failure

_ZEROES = ("zero_", "_foreach_zero_", "fill_", "copy_", "mul_", "_foreach_mul_")


def zeroed_ahead(
    region: Region,
    function: Callable[..., Any],
    given: Mapping[str, Any],
    codes: Iterable[CodeType],
    makes: Callable[[torch.Tensor], bool],
    adds: Callable[[Region, Iterable[torch.Tensor]], bool],
) -> Iterator[Failure]:
    """Lines of a function that only replays, and of the object whose method has captured, that call ``zero_grad()``.

    ``makes`` says whether memory is a graph's: one that makes the gradients, and steps with them, needs no others;
    ``adds`` whether a graph adds to gradients that it has not made, which may be None by now.
    """
    if region.function is None:
        return
    used = {name for code in codes_of(region) for name in code.co_names}
    learning = learning_in(region, used) if "backward" in used else []
    alone = "step" in used and all(p.grad is None or makes(p.grad) for p in learning) and not adds(region, learning)
    if "zero_grad" in used or not learning or alone:
        yield from nulled_and_read(region, learning)
        return
    if (left := _left_bare(region, learning, used)) is not None:
        yield left
    mine = {id(p) for p in learning}
    own = code_of(getattr(function, "forward", None) or function)
    for code in codes:
        known = _own_names(function, code, given) if code is own else _of_object(code, region)
        if known is None or (code is region.code and not any(map(_replays, nodes_of(code)))):
            continue  # what stands around a capture alone runs once, as that does
        if _runs_ahead_alone(code, region):
            continue
        for node in nodes_of(code):
            if not isinstance(node, ast.Call) or last_name(node.func) != "zero_grad" or keeps(node):
                continue
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            theirs = {id(p) for p in parameters_of({"": path_value(owner, known, region.space)})}
            line = statement_at([*nodes_of(code)], node.lineno)
            beside = code is region.code and is_made_with_its_capture(code.co_filename, line)
            if left is not None and left.frame is not None and (code, node.lineno) == (region.code, left.frame.line):
                continue
            if theirs & mine and not beside and not _captures_there(node, code, region):
                yield gradients_nulled(node, code)


def _left_bare(region: Region, learning: Iterable[torch.Tensor], used: Collection[str]) -> Failure | None:
    """The line behind a capture that has set gradients to None, to which its graph writes: no call sees them."""
    tree, node = tree_of(region.code.co_filename), nulled_behind(region.code, region.line)
    if tree is None or node is None or "step" in used or any(p.grad is not None for p in learning):
        return None
    ahead = {*nodes_of(region.code)} if region.code.co_name != "<module>" else set()
    ahead = {n for n in ahead if getattr(n, "lineno", region.line) < region.line}
    gives = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "grad" and n not in ahead)
    return gradients_nulled(node, region.code) if all(isinstance(n.ctx, ast.Load) for n in gives) else None


def nulled_for_readers(region: Region) -> Iterator[Failure]:
    """Lines of a program that set gradients to None which its graph makes and steps with, where others read them."""
    yield from nulled_and_read(
        region, learning_in(region, {name for code in codes_of(region) for name in code.co_names})
    )


def added_to(region: Region, adds: Callable[[Region, Iterable[torch.Tensor]], bool]) -> Iterator[Failure]:
    """The backward pass of a graph that adds to gradients of before at each replay, where no line zeroes them.

    ``adds`` says whether it does. Who steps outside of the graph may add over some replays, and zero then.
    """
    codes = [*codes_of(region)]
    used = {name for code in codes for name in code.co_names}
    tree = tree_of(region.code.co_filename)
    if "backward" not in used or "zero_grad" in used or sets_to_none(codes) or tree is None:
        return
    if not adds(region, learning_in(region, used)):
        return
    nodes = [*ast.walk(tree)]
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    zeroes = [n for n in calls if last_name(n.func) == "zero_grad" and (keeps(n) or "step" not in used)]
    gradients = [n.ctx for n in nodes if isinstance(n, ast.Attribute) and n.attr == "grad"]
    reads_gradients = any(isinstance(ctx, ast.Load) for ctx in gradients)
    zeroes += [n for n in calls if reads_gradients and last_name(n.func) in _ZEROES]
    if not any(n.lineno > region.line or not _is_in(n, region.code) for n in zeroes):
        yield from gradients_added(region, codes)


def summed_up(region: Region, sums: Callable[[object], bool], told: Iterable[Failure]) -> Iterator[Failure]:
    """The backward pass of a graph whose replays were seen to add to gradients that have moved the weights already.

    Where a line sets them to None between replays, that is told, and what the graph writes to is nobody's.
    """
    if sums(region.graph) and not any(f.code == "gradients-rebound" for f in told):
        yield from gradients_added(region, codes_of(region))


def learning_in(region: Region, used: Collection[str]) -> list[torch.Tensor]:
    """The parameters of what the lines of a capture name."""
    held = {**region.names, **attributes_of(region.names.get("self"))}
    return [*parameters_of({name: value for name, value in held.items() if name in used})]


def _is_in(node: ast.Call, code: CodeType) -> bool:
    return code.co_name == "<module>" or code.co_firstlineno <= node.lineno <= last_line(code)


def _own_names(function: Any, code: CodeType, given: Mapping[str, Any]) -> dict[str, Any]:
    """What names mean in the function that is asked: what it is given, and of a method its object."""
    function, names = unbound(function, dict(given))
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    first = code.co_varnames[:1] if code.co_argcount and owner is not None else ()
    return {**dict.fromkeys(first, owner), **names}


def _of_object(code: CodeType, region: Region) -> dict[str, Any] | None:
    """What names mean in a method of the object whose method has captured."""
    own = next(iter(code.co_varnames[: code.co_argcount]), "")
    held = region.names.get(own)
    methods = [code_of(each) for kind in type(held).__mro__ for each in vars(kind).values()] if own == "self" else []
    return {own: held} if code in methods else None


def _runs_ahead_alone(code: CodeType, region: Region) -> bool:
    """Whether a function is named only ahead of the capture, in a function that captures alone: for a warm-up."""
    tree, own = tree_of(region.code.co_filename), region.code
    if tree is None or own.co_name == "<module>" or any(map(_replays, (*nodes_of(own), *nodes_of(code)))):
        return False
    nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.Attribute))]
    named = [n.lineno for n in nodes if last_name(n) == code.co_name]
    return bool(named) and all(own.co_firstlineno <= line < region.line for line in named)


def _replays(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "replay"


def _captures_there(node: ast.AST, code: CodeType, region: Region) -> bool:
    """Whether a line runs where the graph is captured, once: in a branch that has the capture, or calls what has it."""
    branches = (n for n in nodes_of(code) if isinstance(n, ast.If) and any(part is node for part in ast.walk(n)))
    for branch in branches:
        lines = range(branch.lineno, (branch.end_lineno or branch.lineno) + 1)
        if code is region.code and region.line in lines:
            return True
        calls = (n for n in ast.walk(branch) if isinstance(n, ast.Call))
        if any(last_name(call.func) == region.code.co_name for call in calls):
            return True
    return code is not region.code and code.co_name == region.code.co_name
