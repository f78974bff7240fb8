"""Words that fit how a program launches: behind which replay a line goes, in which table of its own graphs are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, children, every, last_name, tree_of
from paramgraph_kit.doctor.observe.own_managers import captures
from paramgraph_kit.doctor.observe.own_tables import wider
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure

ANEW = "this line as it is, and a new capture behind it: no copy makes the tensor of this one as large"
_AFTER = "\nafter   "
_UNSEEN = "ahead of its first replay a graph has computed nothing"
_EACH = re.compile(
    r"ahead of (?P<graph>\S+)\.replay\(\) `if (?P<what>.+?) not in graphs:` a new capture goes to `graphs\[(?P=what)\]`"
)
_Parents = dict[ast.AST, ast.AST]


def as_launched(found: Sequence[Failure], files: Iterable[str]) -> list[Failure]:
    """The same, where the words were those for a capture that stands ahead of its replays."""
    trees = {display_name(file): tree for file in {*files} if (tree := tree_of(file)) is not None}
    return [_as_launched(f, trees[f.frame.file]) if f.frame is not None and f.frame.file in trees else f for f in found]


def _as_launched(failure: Failure, tree: ast.Module) -> Failure:
    before, mark, after = failure.fix.partition(_AFTER)
    if not mark or failure.frame is None:
        return failure
    parents = {child: node for node in every(tree) for child in children(node)}
    found = [n for n in parents if isinstance(n, ast.stmt) and n.lineno == failure.frame.line]
    if len(found) == 1:
        after = _behind(failure.code, found[0], after, parents) or _let_go(found[0], after, parents) or after
    return replace(failure, fix=f"{before}{mark}{_in_own_table(after, found, parents)}")


def _behind(code: str, node: ast.stmt, after: str, parents: _Parents) -> str:
    """Words for a line of a loop that hands on, ahead of the loop's replay, what that has computed; "" for others."""
    if code not in ("stale-input", "not-executed"):
        return ""
    given = _handed_on(node)
    loop = parents[node]
    if given is None or not isinstance(loop, LOOPS) or not _made_in_captures(parents) & given:
        return ""
    later = [n for s in loop.body if s.lineno > node.lineno for n in ast.walk(s)]
    replay = next((n for n in later if isinstance(n, ast.Call) and is_replay(n)), None)
    function = _function(node, parents)
    calls = (n for n in parents if isinstance(n, ast.Call) and is_replay(n))
    ahead = (n for n in calls if n.lineno < loop.lineno and _function(n, parents) is function)
    if replay is None or any(ahead):
        return ""
    line = ast.unparse(node) if code == "not-executed" else after.partition(", ")[0]
    where = f"{ast.unparse(replay)} in line {replay.lineno}"
    return f"{line}, moved behind {where}: {_UNSEEN}"


def _handed_on(node: ast.stmt) -> set[str] | None:
    """The names in what a statement writes to something: ``x.copy_(y)``, ``x = y``."""
    value: ast.expr | None = None
    if isinstance(node, ast.Assign):
        value = node.value
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and last_name(node.value.func) == "copy_":
        value = node.value.args[0] if node.value.args else None
    return {ast.unparse(n) for n in ast.walk(value) if isinstance(n, (ast.Name, ast.Attribute))} if value else None


def _made_in_captures(parents: _Parents) -> set[str]:
    blocks = (n for n in parents if isinstance(n, ast.With) and any(map(captures, n.items)))
    assigns = (n for block in blocks for s in block.body for n in ast.walk(s) if isinstance(n, ast.Assign))
    return {ast.unparse(t) for n in assigns for each in n.targets for t in getattr(each, "elts", [each])}


def is_replay(node: ast.AST) -> bool:
    """Whether it is a call that replays a graph."""
    return isinstance(node, ast.Call) and last_name(node.func) == "replay"


def _function(node: ast.AST, parents: _Parents) -> ast.AST | None:
    above = parents.get(node)
    while above is not None and not isinstance(above, FUNCTIONS):
        above = parents.get(above)
    return above


def _let_go(node: ast.stmt, after: str, parents: _Parents) -> str:
    """Words for a line behind which an object captures again once its graph is let go; "" where it is not known."""
    if not after.startswith(ANEW):
        return ""
    paths = dict.fromkeys(_asked_for_none(parents))
    if len(paths) != 1:
        return ""
    path, captures_in = next(iter(paths))
    owner, _, name = path.rpartition(".")
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    own = _class_of(node, parents)
    if owner != "self" or not isinstance(target, ast.Attribute) or (own is captures_in) != (_is_self(target)):
        return ""
    given = f"{ast.unparse(target.value)}.{name}"
    return f"this line as it is, and behind it `{given} = None`, so that the next call captures again"


def _is_self(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id == "self"


def _asked_for_none(parents: _Parents) -> Iterator[tuple[str, ast.AST | None]]:
    """What `if` asks whether it is there yet around each capture, with the class of that."""
    for block in (n for n in parents if isinstance(n, ast.With) and any(map(captures, n.items))):
        tests = [parents[n] for n in _and_above(block, parents) if isinstance(parents.get(n), ast.If)]
        own = [path for each in tests if isinstance(each, ast.If) and (path := _missing(each.test))]
        if not own:  # or around the only call of the function that it stands in
            function = _function(block, parents)
            name = getattr(function, "name", "")
            calls = [n for n in parents if isinstance(n, ast.Call) and name and last_name(n.func) == name]
            above = [parents.get(n) for c in calls for n in _and_above(c, parents)] if len(calls) == 1 else []
            own = [path for each in above if isinstance(each, ast.If) and (path := _missing(each.test))]
        yield (own[-1] if own else ""), _class_of(block, parents)


def _missing(test: ast.expr) -> str:
    """``self.graph`` of ``self.graph is None``, and of ``not self.graph``."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and len(test.ops) == 1:
        none = test.comparators[0]
        return ast.unparse(test.left) if isinstance(none, ast.Constant) and none.value is None else ""
    is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    return ast.unparse(test.operand) if is_not and isinstance(test.operand, ast.Attribute) else ""  # type: ignore[attr-defined]


def _and_above(node: ast.AST, parents: _Parents) -> Iterator[ast.AST]:
    """A node and what it stands in, as far as its function."""
    while not isinstance(node, FUNCTIONS):
        yield node
        if node not in parents:
            return
        node = parents[node]


def _class_of(node: ast.AST, parents: _Parents) -> ast.AST | None:
    above: ast.AST | None = node
    while above is not None and not isinstance(above, ast.ClassDef):
        above = parents.get(above)
    return above


def _in_own_table(after: str, at: list[ast.stmt], parents: _Parents) -> str:
    """The same, where the program has a table of its graphs: what decides belongs into its key."""
    found = _EACH.search(after)
    words = same_table(found["what"], at[0] if at else None, parents) if found is not None else ""
    if found is None or not words:
        return _in_table_of_each(after, found, ast.unparse(at[0]) if at else "")
    start, last = found.start(), ", and that one is replayed"
    end = after.find(last, found.end())
    return f"{after[:start]}{words}{after[end + len(last) if end >= 0 else len(after) :]}"


def _in_table_of_each(after: str, found: re.Match[str] | None, line: str) -> str:
    """The same, where an object has the graph, as each bucket has one: then each has a table of its own."""
    owner = found["graph"].rpartition(".")[0] if found is not None else ""
    if found is None or owner in ("", "self") or not owner.replace(".", "").isidentifier():
        return after
    own = found[0].replace("not in graphs", f"not in {owner}.graphs").replace("`graphs[", f"`{owner}.graphs[")
    if f"{owner}." in line:  # which gives that object another value: `self` is what its own lines call it
        own = own.replace("self.", f"{owner}.")
    return after.replace(found[0], own, 1)


def same_table(what: str, at: ast.AST | None, parents: _Parents) -> str:
    """Words for one more part of the key by which a program looks up its graphs; "" where it has no table, or several.

    ``at``: where ``what`` means what it says.
    """
    tables = [*_tables(parents)]
    if len(tables) != 1:
        return ""
    test = tables[0]
    if at is not None and (own := _class_of(at, parents)) is not _class_of(test, parents) and _has_captures(own):
        return ""  # a class beside that with the table, whose graphs are kept in another way
    key, table, function = test.left, ast.unparse(test.comparators[0]), _function(test, parents)
    names = {n.id for n in ast.walk(ast.parse(what)) if isinstance(n, ast.Name)}
    known = {a.arg for a in function.args.args} if isinstance(function, FUNCTIONS) else set()
    same = at is not None and function in (at, _function(at, parents))
    if not (names <= {"self"} or (same and names <= known)):
        return ""
    made = [n for n in ast.walk(function) if isinstance(n, ast.Assign)] if function is not None else []
    lines = [n for n in made if isinstance(key, ast.Name) and ast.unparse(n.targets[0]) == key.id]
    if isinstance(key, ast.Name) and len(lines) == 1:
        return f"in {table}, `{key.id} = {_wider(lines[0].value, what)}` in line {lines[0].lineno}"
    if isinstance(key, ast.Name) and key.id not in known:
        return ""
    tree = next((n for n in parents.values() if isinstance(n, ast.Module)), ast.Module([], []))
    pairs = {} if isinstance(key, ast.Name) or not names <= {"self"} else dict(wider(tree, table, what))
    if len(pairs) > 1:
        return f"it goes into the key, {', '.join(f'`{new}` for `{old}`' for old, new in pairs.items())}"
    return f"in {table}, `{_wider(key, what)}` for its key `{ast.unparse(key)}`"


def _has_captures(kind: ast.AST | None) -> bool:
    nodes = ast.walk(kind) if kind is not None else ()
    return any(isinstance(n, ast.With) and any(map(captures, n.items)) for n in nodes)


def _wider(key: ast.expr, what: str) -> str:
    return (
        f"({', '.join([*map(ast.unparse, key.elts), what])})"
        if isinstance(key, ast.Tuple)
        else f"({ast.unparse(key)}, {what})"
    )


def _tables(parents: _Parents) -> Iterator[ast.Compare]:
    """``key not in self.graphs``, ahead of a capture, or of a call of the function that it stands in."""
    blocks = [n for n in parents if isinstance(n, ast.With) and any(map(captures, n.items))]
    capturing = {getattr(_function(n, parents), "name", "") for n in blocks} - {""}
    for node in (n for n in parents if isinstance(n, ast.If) and isinstance(n.test, ast.Compare)):
        test: ast.Compare = node.test  # type: ignore[assignment]
        inside = [n for s in node.body for n in ast.walk(s)]
        calls = (last_name(n.func) for n in inside if isinstance(n, ast.Call))
        if isinstance(test.ops[0], ast.NotIn) and (any(n in blocks for n in inside) or not capturing.isdisjoint(calls)):
            yield test
