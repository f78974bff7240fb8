"""Words for a graph for each value where a program keeps a table of graphs: its own key has the value, too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Set
from functools import lru_cache

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, MAKERS, last_name, tree_of
from paramgraph_kit.doctor.observe.moved_together import graph_for_each
from paramgraph_kit.doctor.observe.own_managers import captures

_EACH = re.compile(re.escape(graph_for_each("\0")).replace(re.escape("\0"), r"(?P<what>.+?)", 1).replace("\0", ".+?"))
_ASKS = ("get", "pop", "setdefault")


def in_own_table(fix: str, files: Iterable[str]) -> str:
    """The same with the keys of the program's own table, where its files have one that is asked by one name."""
    found = _EACH.search(fix)
    trees = [tree for file in {*files} if (tree := tree_of(file)) is not None]
    tables = {name for tree in trees for name in _tables(tree)}
    if found is None or len(tables) != 1 or any(map(_keeps_one, trees)):
        return fix
    (table,) = tables
    if any(_is_gone_through(tree, table) for tree in trees):
        read = {ast.unparse(n.slice) for tree in trees for n in _reads(tree, table)}
        both = graph_for_each(f"({', '.join([*read, found['what']])})")  # a table beside it, whose keys are its own
        return fix.replace(found[0], both) if len(read) == 1 else fix
    pairs = {k: v for tree in trees for k, v in wider(tree, table, found["what"])}
    known = all(_is_known(tree, table, found["what"]) for tree in trees)
    if not pairs or not known or any(found["what"] in old for old in pairs):
        return fix
    lines = ", ".join(f"`{new}` for `{old}`" for old, new in pairs.items())
    return fix.replace(found[0], f"this line as it is, and a graph for each value: it goes into the key, {lines}")


def wider(tree: ast.Module, table: str, what: str) -> Iterator[tuple[str, str]]:
    """Each place that asks a table of graphs, or one with its keys, and the same with one more in its key."""
    if named := _key_by_name(tree, table, what):
        yield from named
        return
    for each in (table, *_beside(tree, table)):
        yield from _with_key(tree, each, what)


def _key_by_name(tree: ast.Module, table: str, what: str) -> list[tuple[str, str]]:
    """The lines that make the key, where each function asks the table by one variable: ``key = n, how``."""
    found: list[tuple[str, str]] = []
    for function in (n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])):
        if not (keys := {*_keys(function, table)}):
            continue
        nodes = [n for n in ast.walk(function) if isinstance(n, ast.Assign)]
        made = [n for n in nodes if {*map(ast.unparse, n.targets)} == keys and isinstance(n.targets[0], ast.Name)]
        if len(made) != 1 or not isinstance(made[0].value, (ast.Tuple, ast.Attribute, ast.Subscript, ast.Call)):
            return []
        found.append((ast.unparse(made[0]), f"{ast.unparse(made[0].targets[0])} = {_both(made[0].value, what)}"))
    return found


def _beside(tree: ast.Module, table: str) -> list[str]:
    """Tables that a function fills by the same key as that of its graphs: ``self.inputs[key] = x``."""
    found = dict[str, None]()
    for function in (n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])):
        stores = [n for n in ast.walk(function) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
        keys = {ast.unparse(n.slice) for n in stores if ast.unparse(n.value) == table}
        found |= {ast.unparse(n.value): None for n in stores if ast.unparse(n.slice) in keys}
    return [each for each in found if each != table]


def _reads(tree: ast.AST, table: str) -> Iterator[ast.Subscript]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and ast.unparse(node.value) == table:
            yield node


def _is_gone_through(tree: ast.AST, table: str) -> bool:
    """Whether a line goes through the keys of a table, ``sorted(graphs)``: a wider one would be no such key."""
    for node in ast.walk(tree):
        given = [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else []
        if isinstance(node, (ast.For, ast.comprehension)):
            given = [node.iter]
        is_counted = isinstance(node, ast.Call) and last_name(node.func) == "len"
        named = (each for each in given if isinstance(each, (ast.Name, ast.Attribute)) and not is_counted)
        if any(ast.unparse(each) == table for each in named):
            return True
        asks = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if asks is not None and asks.attr in ("keys", "items") and ast.unparse(asks.value) == table:
            return True
    return False


def keys_of(file: str) -> Set[str]:
    """What a file looks up its graphs by in a dictionary that a function with a capture fills, each part by itself."""
    tree = tree_of(file)
    return keys_in(tree) if tree is not None else frozenset()


@lru_cache(64)
def keys_in(tree: ast.Module | ast.ClassDef) -> Set[str]:
    """The same of a file's tree, or of a class in it."""
    if not (tables := {*_tables(tree)}):
        return frozenset()
    nodes, keys = [*ast.walk(tree)], list[ast.expr]()
    for node in nodes:
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in tables:
            keys.append(node.slice)
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) in tables:
            keys.append(node.left)
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in {f"{t}.get" for t in tables}:
            keys.append(node.args[0])
    names = {key.id for key in keys if isinstance(key, ast.Name)}
    assigns = (n for n in nodes if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) in names)
    keys += [node.value for node in assigns]
    return frozenset(ast.unparse(part) for key in keys for part in getattr(key, "elts", [key]))


def _tables(tree: ast.AST) -> Iterator[str]:
    """Dictionaries that a function fills by a key that is no constant, with a graph, or with what captures one."""
    making = {*_capturing(tree)}
    for function in (n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])):
        nodes = [*ast.walk(function)]
        graphs = _graphs_in(nodes)
        places = [(n, t) for n in nodes if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Subscript)]
        made = (n for n in nodes if isinstance(n, ast.Assign) and _is_made(n.value, making))
        given = {ast.unparse(t) for n in made for t in n.targets if isinstance(t, ast.Name)}
        for node, target in places:  # also ``entry = self.graphs[key] = ...``
            named = [n for each in (*node.targets, node.value) for n in ast.walk(each)]  # `graphs[key] = g = ...`, too
            own = ast.unparse(target) in graphs or any(
                isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n) in graphs for n in named
            )
            own = own or _is_made(node.value, making) or ast.unparse(node.value) in given
            if own and not isinstance(target.slice, (ast.Constant, ast.Slice)):
                yield ast.unparse(target.value)


def _keeps_one(tree: ast.Module) -> bool:
    """Whether a class with captures has no table of them, beside one that has."""
    kinds = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    nodes = [n for kind in kinds for n in ast.walk(kind) if isinstance(n, ast.With) and any(map(captures, n.items))]
    alone = [k for k in kinds if any(n in nodes for n in ast.walk(k)) and not any(True for _ in _tables(k))]
    return bool(alone) and len(alone) < len([k for k in kinds if any(n in nodes for n in ast.walk(k))])


def _graphs_in(nodes: Iterable[ast.AST]) -> set[str]:
    """What lines that capture call their graphs."""
    nodes = [*nodes]
    withs = (n for n in nodes if isinstance(n, ast.With))
    calls = (i.context_expr for n in withs for i in n.items if captures(i))
    graphs = {ast.unparse(c.args[0]) for c in calls if isinstance(c, ast.Call) and c.args}
    begun = (n.func for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == "capture_begin")
    return graphs | {ast.unparse(f.value) for f in begun if isinstance(f, ast.Attribute)}


def _capturing(tree: ast.AST) -> Iterator[str]:
    """The functions that capture and launch nothing, and the classes of which each object does when it is made."""
    for node in ast.walk(tree):
        parts = [n for n in node.body if isinstance(n, FUNCTIONS[:2])] if isinstance(node, ast.ClassDef) else []
        makers = [n for n in parts if n.name in MAKERS]
        for function in makers if parts else [node] if isinstance(node, FUNCTIONS[:2]) else []:
            inside = [*ast.walk(function)]
            replays = any(isinstance(n, ast.Call) and last_name(n.func) == "replay" for n in inside)
            if _graphs_in(inside) and not replays:
                yield node.name  # type: ignore[attr-defined]


def _is_made(value: ast.expr, making: Set[str]) -> bool:
    return isinstance(value, ast.Call) and last_name(value.func) in making


def _is_known(tree: ast.Module, table: str, what: str) -> bool:
    """Whether each function that asks the table has what is to go into its key."""
    read = {n.id for n in ast.walk(ast.parse(what)) if isinstance(n, ast.Name)}
    top = {n.id for s in tree.body if isinstance(s, ast.Assign) for n in ast.walk(s) if isinstance(n, ast.Name)}
    for function in (n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])):
        nodes = [*ast.walk(function)]
        own = {n.arg for n in nodes if isinstance(n, ast.arg)} | {n.id for n in nodes if isinstance(n, ast.Name)}
        if any(True for _ in _with_key(function, table, what)) and not read <= own | top | {"tuple", "self"}:
            return False
    return True


def _keys(tree: ast.AST, table: str) -> Iterator[str]:
    """What the table is asked by."""
    asks = [f"{table}.{name}" for name in _ASKS]
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == table:
            yield ast.unparse(node.slice)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and ast.unparse(node.comparators[0]) == table:
            yield ast.unparse(node.left)
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in asks:
            yield ast.unparse(node.args[0])


def _with_key(tree: ast.AST, table: str, what: str) -> Iterator[tuple[str, str]]:
    """Each place that asks the table, and the same with one more in its key."""
    asks = [f"{table}.{name}" for name in _ASKS]
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == table:
            key = node.slice
            parts = [*key.elts] if isinstance(key, ast.Tuple) else [key]
            yield ast.unparse(node), f"{table}[{', '.join([*map(ast.unparse, parts), what])}]"
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and ast.unparse(node.comparators[0]) == table:
            if isinstance(node.ops[0], (ast.In, ast.NotIn)):
                word = "in" if isinstance(node.ops[0], ast.In) else "not in"
                yield ast.unparse(node), f"{_both(node.left, what)} {word} {table}"
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in asks:
            rest = "".join(f", {ast.unparse(each)}" for each in node.args[1:])
            yield ast.unparse(node), f"{ast.unparse(node.func)}({_both(node.args[0], what)}{rest})"


def _both(key: ast.expr, what: str) -> str:
    parts = [*key.elts] if isinstance(key, ast.Tuple) else [key]
    return f"({', '.join([*map(ast.unparse, parts), what])})"
