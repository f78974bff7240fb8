"""Whether the lines of a rewritten file could run as they stand: each name is given a value above what reads it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from paramgraph_kit.rewrite.source.edits import Function, Source, within
from paramgraph_kit.rewrite.source.moving import stored


def too_early(sources: Mapping[str, Source], texts: Mapping[str, Sequence[str]]) -> str:
    """What is wrong with the order of rewritten lines, by file, or ""."""
    read = (read_too_early(sources[file].lines, lines) for file, lines in texts.items() if file in sources)
    name = next(filter(None, read), "")
    return f"the rewritten lines would read `{name}` before it is made" if name else ""


def read_too_early(old: Sequence[str], new: Sequence[str]) -> str:
    """The first new variable of a module that is read above the line that makes it, or "".

    >>> read_too_early(["x = 1"], ["y = z", "x = 1", "z = 2"])
    'z'
    >>> read_too_early(["x = 1"], ["def f():", "    return z", "z = x = [y for y in (1, 2)]"])
    ''
    """
    try:
        before, after = (ast.parse("".join(f"{line.rstrip()}\n" for line in lines)) for lines in (old, new))
    except SyntaxError:
        return ""  # a cell with lines that are IPython's
    known = {n.id for n in ast.walk(before) if isinstance(n, ast.Name)}
    made = stored(after.body) - known
    for node in after.body:
        if not isinstance(node, (Function, ast.ClassDef)):
            made -= stored([node])  # what a comprehension goes through, too
            reads = (n.id for n in within(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
            if early := next((name for name in reads if name in made), ""):
                return early
    return ""
