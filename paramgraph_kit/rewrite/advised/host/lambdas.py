"""Advice for lambdas that torch calls, as hooks: what the host does in one is done behind the launch, from a list."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.advised.host.from_host import READS
from paramgraph_kit.rewrite.source.edits import names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_KEEPS = ("append", "add", "update", "extend", "put", "print", "info", "debug", "write", "add_scalar", "__setitem__")
_READS = ("item", "cpu", "tolist", "numpy")
_NUMBERS = ("float", "int", "bool")
_VIEWS = ("detach", "view", "reshape", "flatten", "squeeze", "unsqueeze", "t", "mT")


def kept_by_a_lambda(place: Place) -> str:
    """``w.register_hook(lambda g: norms.append(g.norm().item()))``: the norm is kept, and read behind each launch."""
    if place.failure.code not in (*READS, "host-counter", "print"):
        return ""
    line = place.failure.frame.line if place.failure.frame is not None else 0
    for made in (n for n in ast.walk(place.statement) if isinstance(n, ast.Lambda)):
        body = made.body
        if not isinstance(body, ast.Call) or called(body) not in _KEEPS or not made.lineno <= line:
            continue
        read = next(_read(body), None)
        if read is None or (made.end_lineno or 0) < line:
            continue
        return _told(place, made, body, read)
    return ""


def _read(body: ast.Call) -> Iterator[ast.expr]:
    """What the device has made of which the host reads the numbers; the inner ones first."""
    for node in reversed([n for each in (*body.args, *(k.value for k in body.keywords)) for n in ast.walk(each)]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _READS:
            yield node.func.value
        elif isinstance(node, ast.Call) and path_of(node.func) in _NUMBERS and len(node.args) == 1:
            yield node.args[0]


def _told(place: Place, made: ast.Lambda, body: ast.Call, read: ast.expr) -> str:
    given = [a.arg for a in (*made.args.posonlyargs, *made.args.args)]
    taken = names_in(place.source.tree)
    later, kept = fresh("hooked", taken), fresh("kept", taken)
    text, inner = place.text(body), place.text(read)
    rest = text.replace(inner, kept)
    others = sorted(names_in(ast.parse(rest, mode="eval")) & set(given))
    detached = inner if inner.endswith(".detach()") else f"{place.source.bracketed(read)}.detach()"
    own = f"{detached}.clone()" if _is_view(read) else detached  # what is written in place later is another's
    put = f"({', '.join([*others, own])})" if others else own
    names = ", ".join([*others, kept])
    return (
        f"a lambda is run at the capture alone: once before `{later} = []`; here "
        f"`lambda {place.text(made.args)}: {later}.append({put})`; what is captured begins with `{later}.clear()`; and "
        f"behind each launch `for {names} in {later}: {rest}`"
    )


def _is_view(node: ast.expr) -> bool:
    """Whether an expression is a tensor that others have too, as far as its text tells."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
        node = node.func.value
    return not any(isinstance(n, (ast.Call, ast.BinOp)) for n in ast.walk(node))
