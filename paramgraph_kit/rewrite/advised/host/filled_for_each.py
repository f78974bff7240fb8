"""Advice for tensors of the CPU that a step makes and fills with what the host has, and copies: a batch of requests."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.advised.host.on_cpu import named
from paramgraph_kit.rewrite.expressions.picks.sizes import FACTORIES
from paramgraph_kit.rewrite.source.edits import path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh


def filled_by_host(place: Place) -> str:
    """``ids.to(d), lengths.to(d)``, which lines of the step fill for each request: all that is done before a launch."""
    if place.failure.code != "copy-to-gpu":
        return ""
    copies = dict[str, tuple[ast.Call, ast.Assign]]()
    for call in place.calls("to", "cuda"):
        name = path_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        lines = [*named(place, name)] if name.isidentifier() else []
        if len(lines) == 1 and isinstance(lines[0].value, ast.Call) and called(lines[0].value) in FACTORIES:
            copies[name] = call, lines[0]
    if not any(_is_filled_by_host(place, name, made) for name, (_, made) in copies.items()):
        return ""
    taken, once, copied, here = set(place.taken), list[str](), list[str](), list[str]()
    for name, (call, made) in copies.items():
        taken.add(into := fresh(f"{name}_in", taken))
        once.append(f"`{into} = {place.text(made.value)}.to({place.device})`")
        copied.append(f"`{into}.copy_({name})`")
        here.append(f"`{into}` for `{place.text(call)}`")
    first = min(made.lineno for _, made in copies.values())
    many = "`, `".join(copies)
    return (
        f"`{many}` {'have' if len(copies) > 1 else 'has'} what the host knows in each step: once {', '.join(once)}; "
        f"before each launch what the host does ahead of this line, with what fills `{many}` from line {first} on, and "
        f"{', '.join(copied)}; here {', '.join(here)}"
    )


def _is_filled_by_host(place: Place, name: str, made: ast.Assign) -> bool:
    """Whether lines behind it write what the host has by then: ``ids[i, :n] = torch.tensor(row)`` of each request."""
    function = place.source.function_of(made)
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    stores = [n for n in every if isinstance(n, ast.Assign) and made.lineno < n.lineno < place.statement.lineno]
    values = [n.value for n in stores for t in n.targets if isinstance(t, ast.Subscript) and path_of(t.value) == name]
    read = {n.id for each in values for n in ast.walk(each) if isinstance(n, ast.Name)} - {"torch", "np", "len", name}
    return bool(read - {*place.seen})
