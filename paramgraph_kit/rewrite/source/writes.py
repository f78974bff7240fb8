"""What a statement reads and writes, by the names and paths in its text."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator

from paramgraph_kit.rewrite.source.edits import Function, Source, is_method, path_of, within
from paramgraph_kit.rewrite.source.place import called

# Methods that read, and change nothing of what they belong to.
READS = frozenset(
    """item detach cpu numpy tolist sum mean max min eq float size numel norm any all abs argmax argmin long int std var
    state_dict get_last_lr format isfinite isnan topk flatten view memory_allocated items keys values get reshape
    permute transpose contiguous clone unsqueeze squeeze astype expand chunk gather index_select type_as""".split()  # noqa: SIM905
)
_GIVES = frozenset(("to", "cuda", "type", "double", "half", "bool"))  # another tensor; of a module it is bare
CHANGES = frozenset("append extend insert pop popleft appendleft remove clear update add setdefault discard".split())  # noqa: SIM905
# Functions that change what they are given first, and nothing else.
_CHANGES_THE_FIRST = ("shuffle", "heappush", "heappop", "heapify", "insort")
MODULES = frozenset(("torch", "np", "numpy", "math", "time", "F", "cuda", "random"))


def written(node: ast.stmt, quiet: Collection[str] = (), modules: Collection[str] = ()) -> Iterator[str]:
    """Every ``a.b`` that a statement assigns, or that it calls a method of which may change it, unless ``quiet``.

    ``modules`` are paths of networks, which change themselves and nothing else of what has them: ``self.net(x)``.
    """
    bare = node.value if isinstance(node, ast.Expr) else None
    for part in within(node):
        targets: list[ast.expr] = []
        if isinstance(part, ast.For) and _fills(part):
            yield from paths(part.iter)
        if isinstance(part, ast.Assign):
            targets = part.targets
        elif isinstance(part, (ast.AugAssign, ast.AnnAssign, ast.For)):
            targets = [part.target]
        for target in targets:
            for each in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                yield path_of(each)
        method = part.func if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) else None
        if isinstance(part, ast.Call) and part.args and called(part) in _CHANGES_THE_FIRST:
            yield path_of(part.args[0])
        if isinstance(part, ast.Call) and method is not None and method.attr not in READS and method.attr not in quiet:
            if method.attr in _GIVES and part is not bare:
                continue
            path = path_of(method) if path_of(method) in modules else path_of(method.value)
            if path and path.split(".")[0] not in MODULES:
                yield path


def changes_nothing(source: Source) -> set[str]:
    """The names of the file's methods that give nothing of their objects another value, as far as their text tells."""
    every = [n for n in ast.walk(source.tree) if isinstance(n, Function) and is_method(source, n)]
    loud = {n.name for n in every if any(_may_change(part) for top in n.body for part in ast.walk(top))}
    return {n.name for n in every} - loud


def _may_change(node: ast.AST) -> bool:
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return path_of(node.func).startswith("self.") or node.func.attr in CHANGES
    return isinstance(node, (ast.Global, ast.Nonlocal))


def _fills(loop: ast.For) -> bool:
    """Whether a loop writes into what it goes through: ``for group in opt.param_groups: group["lr"] = rate``."""
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    every = (part for node in loop.body for part in within(node))
    stores = (n for n in every if isinstance(n, (ast.Subscript, ast.Attribute)) and isinstance(n.ctx, ast.Store))
    return any(path_of(n).partition(".")[0] in names for n in stores)


def paths(node: ast.AST) -> set[str]:
    """Every ``a.b.c`` that is read below a node, without the method that is called at its end."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load):
            found.add(path_of(part))
    longest = {p for p in found if p and not any(q != p and q.startswith(f"{p}.") for q in found)}
    return longest | {p for p in found if "." not in p and p != "self"}


def touches(a: str, b: str) -> bool:
    """Whether one of two paths is the other, or leads to it."""
    return bool(a) and (a == b or a.startswith(f"{b}.") or b.startswith(f"{a}."))


def written_in_place(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names by which a tensor is written in place."""
    for node in nodes:
        target: ast.expr | None = None
        if isinstance(node, ast.AugAssign):
            target = node.target
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            target = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            target = node.func.value
        if target is not None and (name := path_of(target).partition(".")[0].partition("[")[0]):
            yield name
