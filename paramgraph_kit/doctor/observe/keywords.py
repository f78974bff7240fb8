"""Keywords, ``**options``, that a function hands on to what it captures: whether it copies them, and how it may."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from inspect import unwrap
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import LOOPS, last_name, nodes_of
from paramgraph_kit.doctor.observe.held import code_of, is_a
from paramgraph_kit.doctor.observe.own_managers import captures
from paramgraph_kit.doctor.observe.tensors_for_numbers import with_tensor

_COPIES = frozenset(("copy_", "tree_map", "_foreach_copy_"))
_PARTS = ("list", "tuple", "sorted", "values", "items", "chain", "tree_flatten", "tree_leaves", "flatten", "leaves")


def copies_keywords(code: CodeType, name: str) -> bool:
    """Whether a function copies each of what its keywords are, or of a list that has them."""
    nodes, known = [*nodes_of(code)], {name}
    for each in (n for n in nodes if isinstance(n, ast.Assign)):
        if _has(each.value, known) and _called_in(each.value) <= {*_PARTS}:
            known |= {n.id for t in each.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    for node in nodes:
        called = _called_in(node)
        if isinstance(node, (*LOOPS, ast.ListComp, ast.GeneratorExp, ast.DictComp)):
            over = [n.iter for n in ast.walk(node) if isinstance(n, (ast.For, ast.comprehension))]
            if any(_has(part, known) for part in over) and not called.isdisjoint(_COPIES):
                return True
        given = node.args if isinstance(node, ast.Call) and last_name(node.func) in _COPIES - {"copy_"} else []
        if any(_has(part, known) for part in given):
            return True
    return False


def in_the_graph(code: CodeType, inside: Mapping[str, Any], keywords: str, name: str, kind: str) -> str:
    """A number of the keywords in a tensor that lives with the graph; "" where what is captured takes only a number.

    Args:
        code: the function that captures and replays, and has these keywords.
        inside: its variables.
        keywords: what it calls them.
        name: the keyword.
        kind: the type of the device.
    """
    blocks, graph, launched = _launched(code)
    more = _read_there(blocks, inside, keywords, name)
    if not graph or more is None or not name.isidentifier():
        return ""
    path, held = f"{keywords}[{name!r}]", f"{graph}.{name}"
    made = f"{held} = torch.full((), float({path}), device={kind!r}); "
    made += f"{keywords} = {{**{keywords}, {name!r}: {held}}}"
    other = f"; with a tensor there {', '.join(more)}" if more else ""
    return (
        f"this line as it is; `{code.co_name}` copies none of its keywords: there, ahead of the capture at line "
        f"{blocks[0].lineno}, `{made}`, and ahead of `{launched}.replay()` `{launched}.{name}.fill_({path})`{other}"
    )


def place_in_the_graph(code: CodeType, inside: Mapping[str, Any], rest: str, at: int, kind: str) -> str:
    """The same of a number among ``*rest`` that moves on, of which a graph for each value would never be replayed."""
    blocks, graph, launched = _launched(code)
    held = f"{rest}_{at}"
    for call in _calls_in(blocks if graph else []):
        first = next((i for i, a in enumerate(call.args) if isinstance(a, ast.Starred)), None)
        if first is None or ast.unparse(call.args[first]) != f"*{rest}" or not isinstance(call.func, ast.Name):
            continue
        called = code_of(unwrap(inside.get(call.func.id)))  # type: ignore[arg-type]
        names = called.co_varnames[: called.co_argcount] if called is not None else ()
        if called is None or first + at >= len(names):
            return ""
        values = [*(inside.get(ast.unparse(each)) for each in call.args[:first]), *inside.get(rest, ())]
        tensors = [n for n, v in zip(names, values, strict=False) if is_a(v, torch.Tensor)]
        more = with_tensor([*nodes_of(called)], names[first + at], given=tensors)
        if more is None:
            return ""
        other = f"; with a tensor there {', '.join(more)}" if more else ""
        made = f"{graph}.{held} = torch.full((), float({rest}[{at}]), device={kind!r})"
        return (
            f"this line as it is; a graph for each value is none, as no value comes twice: in `{code.co_name}`, ahead "
            f"of the capture at line {blocks[0].lineno}, `{made}`, which is captured for `{rest}[{at}]`, and ahead of "
            f"`{launched}.replay()` `{launched}.{held}.fill_({rest}[{at}])`{other}"
        )
    return ""


def _launched(code: CodeType) -> tuple[list[ast.With], str, str]:
    """The captures of a function, its graph and what it replays; "" and "" where these are none, or several."""
    nodes = [*nodes_of(code)]
    blocks = [n for n in nodes if isinstance(n, ast.With) and any(captures(item) for item in n.items)]
    calls = [item.context_expr for n in blocks for item in n.items if captures(item)]
    graphs = {ast.unparse(call.args[0]) for call in calls if isinstance(call, ast.Call) and call.args}
    owners = [n.func for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == "replay"]
    replayed = {ast.unparse(each.value) for each in owners if isinstance(each, ast.Attribute)}
    if len(graphs) != 1 or len(replayed) != 1:
        return blocks, "", ""
    return blocks, graphs.pop(), replayed.pop()


def _calls_in(blocks: Iterable[ast.With]) -> Iterator[ast.Call]:
    return (n for block in blocks for s in block.body for n in ast.walk(s) if isinstance(n, ast.Call))


def _read_there(blocks: list[ast.With], inside: Mapping[str, Any], keywords: str, name: str) -> list[str] | None:
    """What else is written in what is captured, with a tensor for the keyword; None where it takes none."""
    for call in _calls_in(blocks):
        if any(k.arg is None and _has(k.value, {keywords}) for k in call.keywords) and isinstance(call.func, ast.Name):
            called: Any = inside.get(call.func.id)
            code = code_of(unwrap(type(called).forward if is_a(called, torch.nn.Module) else called))
            known = code is not None and name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            return with_tensor([*nodes_of(code)], name) if code is not None and known else None
    return None


def _has(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node))


def _called_in(node: ast.AST) -> set[str]:
    return {last_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
