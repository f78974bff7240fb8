"""Inputs of graphs that are the first caller's own tensors: ``static_in = x``, to which each later call copies."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from paramgraph_kit.doctor.explain.syntax import elements_of, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure

_TITLE = "A graph's input is the caller's own tensor"
_CAUSE = (
    "The graph reads at the address of what the first call was given, and each later call copies its own input there."
)


def written_over(region: Region) -> Iterator[Failure]:
    """Lines that take an argument itself for what a capture reads, where the same function copies later ones to it.

    A function that only captures is given what is made for it: nothing is told of one that does not copy.
    """
    code, nodes = region.code, [*nodes_of(region.code)]
    given = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
    given -= {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    within = [n for each in region.body for n in ast.walk(each)]
    read = {ast.unparse(n) for n in within if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Load)}
    copied = [(ast.unparse(n.func.value), ast.unparse(n.args[0])) for n in nodes if _is_copy(n)]  # type: ignore[attr-defined]
    assigns = [n for n in nodes if isinstance(n, ast.Assign)]
    for node in (n for n in assigns if isinstance(n.value, ast.Name) and n.value.id in given):
        target, name = ast.unparse(node.targets[0]), ast.unparse(node.value)
        # A name that is given another value by itself may be a copy by then; one of several is what was kept.
        others = [n for n in assigns if n is not node and any(ast.unparse(t) == target for t in n.targets)]
        alone = not any(len([*elements_of(t)]) > 1 for t in node.targets)
        if target in read and alone and not others and (target, name) in copied:
            text = f"{target} is {name} itself, the tensor of the caller: each later call writes its own input over it"
            failure = BY_ID["output-alias"].failure(text, frame_at(code, node.lineno))
            fix = f"before  {ast.unparse(node)}\nafter   {target} = {name}.clone()"
            yield replace(failure, title=_TITLE, cause=_CAUSE, fix=fix)


def _is_copy(node: ast.AST) -> bool:
    func = node.func if isinstance(node, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr == "copy_" and bool(node.args)  # type: ignore[attr-defined]
