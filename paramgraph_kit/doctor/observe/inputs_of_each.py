"""Words for a graph for each value where each capture makes inputs of its own: which of them is filled then."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, MAKERS, here, last_name, tree_of
from paramgraph_kit.doctor.observe.moved_together import is_for_each
from paramgraph_kit.doctor.observe.own_managers import captures

_FUNCTIONS = FUNCTIONS[:2]
_TABLE = "a new capture goes to `graphs["


def with_inputs(fix: str, files: Iterable[str]) -> str:
    """The same, with what becomes of the inputs that a function with a capture makes, ahead of that, each time."""
    if not is_for_each(fix) or _TABLE not in fix:
        return fix
    made = [each for file in {*files} if (tree := tree_of(file)) is not None for each in _made(tree)]
    kept = list(dict.fromkeys(f"`{path}`" for path, _ in made if "." in path))
    own = list(dict.fromkeys(f"`{path}`" for path, _ in made if "." not in path))
    more = ""
    if kept:
        line = next(text for path, text in made if f"`{path}`" == kept[0])
        more = (
            f"; {', '.join(kept)}: made by the first of these captures alone, as in `{line}`, and read by all of them, "
            "so that what fills it fills it for each"
        )
    elif own:
        more = f"; {', '.join(own)} of that capture, which it reads, in the table, too: that one is filled ahead of it"
    return f"{fix}{more}"


def _made(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Tensors that a function gives a name ahead of its capture, which reads them, each with its line."""
    for function in (n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS) and n.name not in MAKERS):
        nodes = [n for s in function.body for n in here(s, FUNCTIONS)]
        for block in (n for n in nodes if isinstance(n, ast.With) and any(captures(item) for item in n.items)):
            around = _branch_around(function, block)
            if around is None and any(isinstance(n, ast.Call) and last_name(n.func) == "replay" for n in nodes):
                continue  # the function replays, too: its names stay what they are
            inside = [n for s in (around or function.body) for n in here(s, FUNCTIONS)]
            read = _read(block, tree)
            for node in inside:
                target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
                path = ast.unparse(target) if isinstance(target, (ast.Name, ast.Attribute)) else ""
                if isinstance(node, ast.Assign) and node.lineno < block.lineno and path in read and _is_new(node.value):
                    yield path, ast.unparse(node)


def _branch_around(function: ast.AST, block: ast.With) -> list[ast.stmt] | None:
    """The branch that a capture stands in, if it does."""
    tests = [n for n in ast.walk(function) if isinstance(n, ast.If)]
    held = [body for n in tests for body in (n.body, n.orelse) if any(block is e for s in body for e in ast.walk(s))]
    return held[-1] if held else None


def _read(block: ast.With, tree: ast.Module) -> set[str]:
    """What a capture reads, and the methods and functions of its file that it calls, as far as that is of an object."""
    nodes = [n for s in block.body for n in ast.walk(s)]
    called = {last_name(n.func) for n in nodes if isinstance(n, ast.Call)}
    read = {ast.unparse(n) for n in nodes if isinstance(n, (ast.Name, ast.Attribute))}
    for function in (n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS) and n.name in called):
        read |= {ast.unparse(n) for n in ast.walk(function) if isinstance(n, ast.Attribute)}
    return read


def _is_new(value: ast.expr) -> bool:
    """Whether it makes a tensor: ``x.clone()``, ``torch.zeros(...)``."""
    made = (
        "clone",
        "zeros",
        "empty",
        "ones",
        "full",
        "zeros_like",
        "empty_like",
        "ones_like",
        "randn",
        "rand",
        "tensor",
    )
    return isinstance(value, ast.Call) and (last_name(value.func) in made or last_name(value.func).startswith("new_"))
