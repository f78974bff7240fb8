"""Where gradients are off around a statement, which has to stay so where it moves out of there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from paramgraph_kit.rewrite.source.edits import Function, Source, about_gradients, within
from paramgraph_kit.rewrite.source.place import called

# What is called to tell, to count or to read: nothing of it makes a tensor that gradients could go through.
_TELLS = frozenset(
    """append extend item tolist cpu numpy clone detach print info debug warning error critical log write add_scalar
    format join get setdefault len float int bool str round abs min max sum mean std norm zip enumerate range sorted
    list tuple set dict isinstance hasattr getattr time perf_counter put""".split()  # noqa: SIM905
)


def context_of(source: Source, node: ast.stmt) -> str:
    """``torch.no_grad()`` of the ``with`` or the line before a statement that may compute or write, or ""."""
    above = source.parents[node]
    if not isinstance(node, (ast.For, ast.If)) and not computes(node):
        return ""
    texts = [source.text(item.context_expr) for item in above.items] if isinstance(above, ast.With) else []
    return ", ".join(text for text in texts if about_gradients(text)) or _turned_off(source, node)


def off_for(source: Source, function: Function, nodes: Iterable[ast.stmt]) -> str:
    """``torch.no_grad()`` that decorates a function, where one of its statements may compute, or ""."""
    texts = [text for each in function.decorator_list if about_gradients(text := source.text(each))]
    if not texts or not any(map(computes, nodes)):
        return ""
    return texts[0] if texts[0].endswith(")") else f"{texts[0]}()"


def off_around(source: Source, function: Function, nodes: Sequence[ast.stmt]) -> str:
    """The same, or that of a ``with`` block of the function that statements of one block stand in, at any depth."""
    if nodes and any(map(computes, nodes)) and (off := _turned_off(source, nodes[0])):
        return off
    above = source.parents.get(nodes[0]) if nodes else None
    while above is not None and above is not function:
        texts = [source.text(item.context_expr) for item in above.items] if isinstance(above, ast.With) else []
        if (found := next(filter(about_gradients, texts), "")) and any(map(computes, nodes)):
            return found
        above = source.parents.get(above)
    return off_for(source, function, nodes)


def _turned_off(source: Source, node: ast.stmt) -> str:
    """``torch.no_grad()`` where a line before a statement has turned gradients off, and none on again; or ""."""
    at: ast.AST | None = node
    while isinstance(at, ast.stmt) and not isinstance(at, Function):
        for line in reversed(source.block_of(at)[: source.block_of(at).index(at)]):
            call = line.value if isinstance(line, ast.Expr) else None
            if isinstance(call, ast.Call) and called(call) == "set_grad_enabled":
                return "torch.no_grad()" if about_gradients(source.text(call)) else ""
        at = source.parents.get(at)
    return ""


def computes(node: ast.stmt) -> bool:
    """Whether a statement calls a function that may compute, as one of the user's, or that writes to a tensor."""
    return any(called(n) not in _TELLS for n in within(node) if isinstance(n, ast.Call))
