"""Whether a program puts back what a warm-up has moved, as its lines tell: where they may, nothing is said."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, last_name, pairs_of, tree_of
from paramgraph_kit.doctor.observe.loop_elements import rounds_of
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.warmed_up import MOVES

_LOADS = ("load_state_dict", "reset_running_stats", "_foreach_copy_", "set_model_state_dict", "reset_parameters")
_LISTS = (ast.Tuple, ast.List, ast.Dict, ast.Call, ast.Attribute)
_COPIES = ("copy_", "set_", "zero_", "fill_")
SETS = frozenset(
    """set_state set_offset manual_seed manual_seed_all seed seed_all graphsafe_set_state set_rng_state
    set_rng_state_all fork_rng seed_everything set_seed""".split()  # noqa: SIM905 - shorter so
)


def puts_back(region: Region, ahead: ast.AST) -> bool:
    """Whether lines behind a warm-up may put back what a module or an optimizer holds."""
    return any(_puts(n) for n in _behind(region, ahead))


def sets_generators(region: Region, ahead: ast.AST) -> bool:
    """Whether lines behind a warm-up may set a generator."""
    tree, line = tree_of(region.code.co_filename), ahead.lineno  # type: ignore[attr-defined]
    around = [n for n in ast.walk(tree) if isinstance(n, ast.With)] if tree is not None else []
    held = [n for n in around if n.lineno <= line <= (n.end_lineno or n.lineno)]
    items = [c for n in held for i in n.items for c in ast.walk(i) if isinstance(c, ast.Call)]
    calls = (n for n in [*items, *_behind(region, ahead)] if isinstance(n, ast.Call))
    return any(last_name(n.func) in SETS for n in calls)


def goes_on_from(node: ast.AST, path: str, body: Collection[ast.AST]) -> bool:
    """Whether a line writes to a tensor what it, or a line ahead of it in its function, computes from that."""
    if isinstance(node, ast.Call) and last_name(node.func) == "copy_" and isinstance(node.func, ast.Attribute):
        fills = (n.func for n in body if isinstance(n, ast.Call) and last_name(n.func) in ("copy_", "fill_", "zero_"))
        own = {n for func in fills if isinstance(func, ast.Attribute) for n in ast.walk(func.value)}  # x[0].copy_(y)
        reads = (n for n in body if isinstance(n, (ast.Name, ast.Attribute)) and n not in own)
        return any(n.lineno <= node.lineno and ast.unparse(n) == path for n in reads)
    return isinstance(node, ast.AugAssign) or (isinstance(node, ast.Call) and last_name(node.func) in MOVES)


def writes_elsewhere(region: Region, ahead: ast.AST, path: str, inside: Collection[ast.AST]) -> bool:
    """Whether a line that is not captured may write to a tensor in place, behind a warm-up or in another function."""
    tree, name = tree_of(region.code.co_filename), path.rpartition(".")[2]
    last = ahead.end_lineno or ahead.lineno  # type: ignore[attr-defined]
    nodes = [n for n in ast.walk(tree) if n not in inside] if tree is not None else []
    makes = [n for n in nodes if isinstance(n, FUNCTIONS[:2]) and n.name not in ("__init__", region.code.co_name)]
    others = {n for each in makes for n in ast.walk(each)}
    for node in nodes:
        if isinstance(node, ast.Assign):
            target: ast.AST | None = next((t.value for t in node.targets if isinstance(t, ast.Subscript)), None)
        else:
            func = node.func if isinstance(node, ast.Call) else None
            in_place = isinstance(func, ast.Attribute) and func.attr.endswith("_") and not func.attr.startswith("_")
            target = func.value if in_place else None  # type: ignore[union-attr]
        named = target is not None and name in {last_name(n) for n in ast.walk(target)}
        several = tree is not None and target is None and name in _written_one_by_one(node, tree)
        if (named or several) and (node in others or getattr(node, "lineno", 0) > last):
            return True
    return False


def _written_one_by_one(node: ast.AST, tree: ast.Module) -> set[str]:
    """Names of what a loop writes to in place, one by one: ``for t, old in zip((x, v), kept): t.copy_(old)``."""
    if isinstance(node, ast.Call) and last_name(node.func).startswith("_foreach_"):
        return _names_in(node.args[0], tree) if last_name(node.func).endswith("_") and node.args else set()
    if isinstance(node, ast.For):
        loops, body = [(node.target, node.iter)], [*ast.walk(node)]
    elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        loops, body = [(each.target, each.iter) for each in node.generators], [*ast.walk(node.elt)]
    else:
        return set()
    found = set[str]()
    for target, over in (pair for loop in loops for pair in rounds_of(*loop)):
        own = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        if any(isinstance(n, ast.Call) and _copies(n, own) for n in body):
            found |= _names_in(over, tree)
    return found


def _names_in(value: ast.expr, tree: ast.Module) -> set[str]:
    """The names in an expression, and in what its own names are given, or its functions return."""
    names = {last_name(n) for n in ast.walk(value)} - {""}
    pairs = [pair for n in ast.walk(tree) if isinstance(n, (ast.Assign, ast.AnnAssign)) for pair in pairs_of(n)]
    # What a comprehension makes may be copies.
    given: list[ast.expr] = [made for target, made in pairs if last_name(target) in names and isinstance(made, _LISTS)]
    made = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2]) and n.name in names]
    given += [n.value for each in made for n in ast.walk(each) if isinstance(n, ast.Return) and n.value is not None]
    return names | {last_name(n) for each in given for n in ast.walk(each)}


def _behind(region: Region, ahead: ast.AST) -> Iterator[ast.AST]:
    """All lines behind one of the file's, without those of the capture, and the functions that they call."""
    tree, line = tree_of(region.code.co_filename), ahead.lineno  # type: ignore[attr-defined]
    if tree is None:
        return
    captured = {n for s in region.body for n in ast.walk(s)}
    last = ahead.end_lineno or line  # type: ignore[attr-defined]
    behind = [n for n in ast.walk(tree) if n not in captured and getattr(n, "lineno", 0) > last]
    yield from behind
    # A context manager around the warm-up may put back what it has kept.
    around = [n for n in ast.walk(tree) if isinstance(n, ast.With) and n.lineno <= line <= (n.end_lineno or 0)]
    items = [c for n in around for i in n.items for c in ast.walk(i)]
    called = {last_name(n.func) for n in [*behind, *items] if isinstance(n, ast.Call)}
    for each in (n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])):
        if each.name in called and each.lineno <= line and not each.lineno <= line <= (each.end_lineno or 0):
            yield from ast.walk(each)


def _puts(node: ast.AST) -> bool:
    """Whether a line gives modules or optimizers a state: all of it, or each tensor in a loop."""
    if isinstance(node, (ast.For, ast.comprehension)):
        own = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        # What a comprehension computes stands beside it.
        return isinstance(node, ast.For) and any(_copies(n, own) for n in ast.walk(node))
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        own = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        return any(_copies(n, own) for n in ast.walk(node.elt))
    return isinstance(node, ast.Call) and last_name(node.func) in _LOADS


def _copies(node: ast.AST, names: set[str]) -> bool:
    """Whether it writes to what a loop names, or to a part of that, and no gradient."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _COPIES:
        target: ast.expr = node.func.value
    elif isinstance(node, ast.Assign):
        target = node.targets[0]
    else:
        return False
    if any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(target)):
        return False
    if any(isinstance(n, ast.Constant) and n.value == "lr" for n in ast.walk(target)):
        return False
    is_part = isinstance(target, (ast.Attribute, ast.Subscript)) or not isinstance(node, ast.Assign)
    return is_part and any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(target))
