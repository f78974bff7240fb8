"""Inputs of graphs that are the first caller's own tensors: ``static_in = x``, to which each later call copies."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure

TITLE = "A graph's input is the caller's own tensor"
CAUSE = (
    "The graph reads at the address of what the first call was given, and each later call copies its own input there."
)
_PATHS = (ast.Name, ast.Attribute, ast.Subscript)
_PAIR = 2
# How a copy is made of what is copied to as a whole, entry by entry, or by the names of its entries.
WHOLE, ENTRIES, NAMED = (
    "{0}.clone()",
    "[t.clone() if isinstance(t, torch.Tensor) else t for t in {0}]",
    "{{k: t.clone() if isinstance(t, torch.Tensor) else t for k, t in {0}.items()}}",
)


def written_over(region: Region) -> Iterator[Failure]:
    """Lines that take an argument itself for what a capture reads, where the same function copies later ones to it.

    A function that only captures is given what is made for it: nothing is told of one that does not copy.
    """
    code, nodes = region.code, [*nodes_of(region.code)]
    given = arguments_of(code)
    within = [n for each in region.body for n in ast.walk(each)]
    read = {ast.unparse(n) for n in within if isinstance(n, _PATHS) and isinstance(n.ctx, ast.Load)}
    copied = dict(_copied(nodes))
    assigns = [n for n in nodes if isinstance(n, ast.Assign)]
    for node in (n for n in assigns if isinstance(n.value, ast.Name) and n.value.id in given):
        target, name = ast.unparse(node.targets[0]), ast.unparse(node.value)
        # A name that is given another value by itself may be a copy by then; one of several is what was kept.
        others = [n for n in assigns if n is not node and any(ast.unparse(t) == target for t in n.targets)]
        alone = not any(len([*elements_of(t)]) > 1 for t in node.targets)
        if alone and not others and (target, name) in copied and not read.isdisjoint((target, name)):
            text = f"{target} is {name} itself, of the caller: each later call writes its own input over it"
            failure = BY_ID["output-alias"].failure(text, frame_at(code, node.lineno))
            fix = f"before  {ast.unparse(node)}\nafter   {target} = {copied[target, name].format(name)}"
            also = f"; in the capture `{target}` for `{name}`" if name in read else ""
            yield replace(failure, title=TITLE, cause=CAUSE, fix=fix + also)


def arguments_of(code: CodeType) -> set[str]:
    """The arguments of a function, also ``*args`` and ``**kwargs``, that it gives no other value."""
    names = (n for n in nodes_of(code) if isinstance(n, ast.Name))
    stored = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
    return argument_names(code) - stored


def argument_names(code: CodeType) -> set[str]:
    """The same with those that it gives another value."""
    more = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    return {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + more]}


def _copied(nodes: list[ast.AST]) -> Iterator[tuple[tuple[str, str], str]]:
    """What lines copy to, and from what, with how a copy of that is made."""
    yield from (((to, value), WHOLE) for to, value in _copies(nodes))
    for loop in (n for n in nodes if isinstance(n, ast.For) and isinstance(n.iter, ast.Call)):
        call, names = loop.iter, [ast.unparse(each) for each in elements_of(loop.target)]
        inside = [*_copies([n for each in loop.body for n in ast.walk(each)])]
        if not isinstance(call, ast.Call) or len(names) != _PAIR:
            continue
        if last_name(call.func) == "zip" and len(call.args) == _PAIR:
            to, value = map(ast.unparse, call.args)
            if (names[0], names[1]) in inside:
                yield (to, value), ENTRIES
            elif (names[1], names[0]) in inside:
                yield (value, to), ENTRIES
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "items":
            over, end = ast.unparse(call.func.value), f"[{names[0]}]"
            for to, value in inside:
                if value == names[1] and to.endswith(end):
                    yield (to.removesuffix(end), over), NAMED


def _copies(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        func = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and isinstance(func, ast.Attribute) and func.attr == "copy_" and node.args:
            yield ast.unparse(func.value), ast.unparse(node.args[0])
