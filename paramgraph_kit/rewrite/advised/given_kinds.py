"""What an argument of a function that captures is, as its lines read it, and how a copy of it is made and filled."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

import torch

from paramgraph_kit.rewrite.source.edits import Function
from paramgraph_kit.rewrite.source.place import called

_MOST_DEEP = 3  # calls that it is followed into


def made_and_filled(name: str, held: str, inside: Iterable[ast.AST], tree: ast.AST) -> tuple[str, str]:
    """What makes a copy of an argument, and what fills it ahead of a replay: one tensor, a list, or what has parts.

    Args:
        name: the argument.
        held: what keeps the copy.
        inside: what the capture holds.
        tree: the file, with the functions that it may be given to.
    """
    parts = dict.fromkeys(_parts(name, [*inside], tree, _MOST_DEEP))
    if "*" in parts:
        return f"[each.clone() for each in {name}]", f"for held, new in zip({held}, {name}): held.copy_(new)"
    keys = [each for each in parts if each.startswith("[")]
    if "**" in parts or (keys and "" in parts):
        copies = f"{{key: each.clone() for key, each in {name}.items()}}"
        return copies, f"for key, each in {name}.items(): {held}[key].copy_(each)"
    if keys:
        copies = ", ".join(f"{each[1:-1]}: {name}{each}.clone()" for each in keys)
        return f"{{{copies}}}", "; ".join(f"{held}{each}.copy_({name}{each})" for each in keys)
    if fields := [each for each in parts if each.startswith(".")]:
        return f"copy.deepcopy({name})", "; ".join(f"{held}{each}.copy_({name}{each})" for each in fields)
    return f"{name}.clone()", f"{held}.copy_({name})"


def _parts(name: str, nodes: Sequence[ast.AST], tree: ast.AST, deep: int) -> Iterable[str]:
    """``['x']``, ``.x``, ``*`` and ``**`` for how a name is read, "" for a read of all of it."""
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    for read in (n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)):
        above = parents.get(read)
        if isinstance(above, ast.Subscript) and above.value is read and _is_word(above.slice):
            yield f"[{ast.unparse(above.slice)}]"
        elif isinstance(above, ast.Attribute):
            yield f".{above.attr}" if not hasattr(torch.Tensor, above.attr) else ""
        elif isinstance(above, ast.Starred):
            yield "*"
        elif isinstance(above, ast.keyword) and above.arg is None:
            yield "**"
        elif deep and (function := _given_to(read, above, parents, tree)) is not None:
            argument, body = function
            yield from _parts(argument, body, tree, deep - 1)
        else:
            yield ""


def _is_word(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str)


def _given_to(
    read: ast.Name, above: ast.AST | None, parents: dict[ast.AST, ast.AST], tree: ast.AST
) -> tuple[str, list[ast.AST]] | None:
    """The argument of a function of the file that gets it, and what that function holds; None where it is none."""
    call = parents.get(above) if isinstance(above, ast.keyword) else above
    if not isinstance(call, ast.Call) or read is call.func or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    functions = [n for n in ast.walk(tree) if isinstance(n, Function) and n.name == called(call)]
    if len(functions) != 1:
        return None
    arguments = [each.arg for each in functions[0].args.args if each.arg != "self"]
    if isinstance(above, ast.keyword):
        name = above.arg if above.arg in arguments else None
    else:
        at = call.args.index(read)
        name = arguments[at] if at < len(arguments) else None
    return (name, [n for part in functions[0].body for n in ast.walk(part)]) if name else None
