"""Attributes that are None until a line gives them their first tensor: only then is there one to write to."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, MAKERS, last_name, tree_of
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure

_WRITTEN = re.compile(
    r"before  (?P<line>[^\n]*)\nafter   (?P<copy>(?P<path>[\w.]+)\.copy_\([^\n]*\))(?P<where>, [^\n;)]*)?"
)
_ROWS = re.compile(
    r"before  (?P<line>[^\n]*)\n"
    r"after   (?P<copy>for \w+, new in (\[\(held, new\) for \w+, \w+ in )?zip\((?P<path>[A-Za-z_]\w*\.\w+)"
    r"(\.values\(\))?, [^\n]*\.copy_\(new\))"
)
_KEYS = re.compile(
    r"before  (?P<line>[^\n]*)\n"
    r"after   (?P<copy>for key, new in [^\n]*\.items\(\): (?P<path>[A-Za-z_]\w*\.\w+)\[key\]\.copy_\(new\))"
)
PINNED = "pinned"  # what a message calls memory of the host's
_VIEWS = frozenset(
    """as_strided chunk contiguous detach diagonal expand expand_as flatten get narrow permute pop reshape select split
    squeeze swapaxes t to transpose unbind unfold unsqueeze view view_as""".split()  # noqa: SIM905 - shorter so
)


def once_it_is_there(told: Iterable[Failure], files: Iterable[str]) -> Iterator[Failure]:
    """The same, in which words that write to such an attribute leave its first tensor to the line that gives it."""
    names = {display_name(file): file for file in files}
    for failure in told:
        found = _WRITTEN.fullmatch(failure.fix)
        tree = tree_of(names[failure.frame.file]) if found and failure.frame and failure.frame.file in names else None
        paths = _written_to(found["copy"]) if found else []
        at = failure.frame.line if failure.frame is not None else 0
        if found and tree is not None and paths and all(_is_none_first(path, at, tree) for path in paths):
            copied = f"`if {found['path']} is not None: {found['copy']}`{found['where'] or ''}"
            own = owned(next(n for n in ast.walk(tree) if isinstance(n, ast.Assign) and n.lineno == at), written=paths)
            if PINNED in failure.message:  # a plain copy of it is pageable, of which no graph holds a copy
                own = own.replace(".clone()", ".clone().pin_memory()")
            failure = replace(failure, fix=f"before  {found['line']}\nafter   {copied}, and else {own}")
        yield _once_made(failure, names)


def _written_to(copies: str) -> list[str]:
    """What words copy into, ``self.x.copy_(x); self.y.copy_(y)``; nothing where they are no such words."""
    try:
        body = ast.parse(copies).body
    except SyntaxError:
        return []
    calls = [n.value for n in body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
    into = [call.func.value for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "copy_"]
    return [ast.unparse(each) for each in into] if len(into) == len(body) else []


def _once_made(failure: Failure, names: Mapping[str, str]) -> Failure:
    """The same of a method by which the object itself is made, and which gives an attribute its first tensors."""
    found, frame = _WRITTEN.fullmatch(failure.fix), failure.frame
    rows = (_ROWS.fullmatch(failure.fix) or _KEYS.fullmatch(failure.fix)) if found is None else None
    given = found or rows
    tree = tree_of(names[frame.file]) if given and frame and frame.file in names else None
    if not given or tree is None or frame is None:
        return failure
    head, _, name = given["path"].rpartition(".")
    if _is_made_by(given["path"], frame.line, tree, alone=rows is not None):
        has = f"hasattr({head}, {name!r})"
    elif rows is not None and _is_none_first(given["path"], frame.line, tree, _is_empty):
        has = given["path"]
    else:
        return failure
    where, copied = given.groupdict().get("where") or "", given["copy"]
    words = f"where `{has}`, `{copied}`{where}, and else this line as it is"
    return replace(failure, fix=f"before  {given['line']}\nafter   {words}")


def _is_made_by(path: str, line: int, tree: ast.AST, *, alone: bool) -> bool:
    """Whether a method gives this attribute a value that has none before it is called where the object is made.

    ``alone``: also one that is called elsewhere, and that nobody else gives a value to.
    """
    head, _, name = path.rpartition(".")
    for kind in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
        methods = [n for n in kind.body if isinstance(n, FUNCTIONS[:2])]
        own = next((n for n in methods if n.lineno <= line <= (n.end_lineno or 0)), None)
        if own is None or own.name in MAKERS or not own.args.args or head != own.args.args[0].arg:
            continue
        if alone and {part.lineno for _, part, _ in _stores(tree, name)} == {line}:
            return True
        makers = [n for n in methods if n.name in MAKERS]
        calls = (n.func for m in makers for n in ast.walk(m) if isinstance(n, ast.Call))
        return any(last_name(each) == own.name for each in calls) and not any(
            first or ast.unparse(part) != path for first, part, _ in _stores(kind, name)
        )
    return False


def _is_empty(value: ast.expr | None) -> bool:
    """Whether a value has nothing in it that a loop could write to."""
    if isinstance(value, ast.Call):
        return last_name(value.func) in ("list", "dict", "tuple") and not value.args and not value.keywords
    return (
        _is_none(value)
        or (isinstance(value, (ast.List, ast.Tuple)) and not value.elts)
        or (isinstance(value, ast.Dict) and not value.keys)
    )


def _is_none(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def owned(node: Any, as_it_is: str = "this line as it is", written: Collection[str] = ()) -> str:
    """What gives a name a tensor that is its own: what is written to it later may go to no other one's memory.

    ``written``: which of several names these are.
    """
    value, target = node.value, node.targets[0]
    if isinstance(value, ast.Tuple) and isinstance(target, ast.Tuple) and written:
        pairs = [(ast.unparse(into), given) for into, given in zip(target.elts, value.elts, strict=False)]
        copies = [(path in written and _copied(given)) or ast.unparse(given) for path, given in pairs]
        return f"`{', '.join(path for path, _ in pairs)} = {', '.join(copies)}`"
    copied = _copied(value)
    return f"`{ast.unparse(target)} = {copied}`" if copied else as_it_is


def _copied(value: ast.expr) -> str:
    """A copy of what may be another one's memory; "" of what makes its own."""
    views = isinstance(value, ast.Call) and last_name(value.func) in _VIEWS
    if not views and not isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)):
        return ""
    return f"{ast.unparse(value)}.clone()"


def _is_none_first(path: str, line: int, tree: ast.AST, begins: Callable[[ast.expr | None], bool] = _is_none) -> bool:
    """Whether a line gives this attribute a tensor, and all others that do something to it begin it with None."""
    nodes = [*ast.walk(tree)]
    own = [n for n in nodes if isinstance(n, FUNCTIONS[:2]) and n.lineno <= line <= (n.end_lineno or 0)]
    head, _, name = path.rpartition(".")
    if not head or not own or not any(path == ast.unparse(t) for n in ast.walk(own[-1]) for t in _targets(n, line)):
        return False
    holders = [n for n in nodes if isinstance(n, ast.ClassDef) and own[-1] in n.body]
    is_its = bool(own[-1].args.args) and head == own[-1].args.args[0].arg
    within = {id(n) for n in ast.walk(own[-1])}
    others = [each for each in _stores(holders[-1] if holders and is_its else tree, name) if id(each[1]) not in within]
    return bool(others) and all(first and begins(v) for first, _, v in others)


def _targets(node: ast.AST, line: int) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign) and node.lineno == line:
        yield from (part for target in node.targets for part, _ in _pairs(target, node.value))


def _stores(tree: ast.AST, name: str) -> Iterator[tuple[bool, ast.expr, ast.expr | None]]:
    """Where an attribute is given something: whether that begins an object, the target, and the value, where known."""
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    fields = {id(n) for c in classes for n in c.body}
    begins = (f for f in ast.walk(tree) if isinstance(f, FUNCTIONS[:2]) and f.name in MAKERS)
    made = {id(n) for f in begins for n in ast.walk(f)} | fields
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for part, value in _pairs(target, node.value):
                field = isinstance(part, ast.Name) and part.id == name and id(node) in fields
                if field or (isinstance(part, ast.Attribute) and part.attr == name):
                    yield id(node) in made, part, value


def _pairs(target: Any, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    values = value.elts if isinstance(value, (ast.Tuple, ast.List)) and target is not parts[0] else []
    yield from zip(parts, values if len(values) == len(parts) else [value] * len(parts), strict=True)
