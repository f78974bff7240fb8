"""Words for a number that a capture reads, with the names, and at the place, that their own lines have."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, nodes_of, tree_of, unpacked
from paramgraph_kit.doctor.observe.called_behind import called_behind
from paramgraph_kit.doctor.observe.captured_values import NOTHING, Use, path_value
from paramgraph_kit.doctor.observe.held import code_of
from paramgraph_kit.doctor.observe.own_regions import Region

_BEFORE = "before the capture"
_EMPTY = ("None", "{}", "dict()")
_READ = re.compile(r"((?:what is captured reads|captured is) .*?(?=, and ahead of |; and ahead of |$)|; here: .*$)")
_OWNED = re.compile(r"\bself\.")
_MADE = re.compile(r"before the capture:? `?(?P<name>self\.[\w.]+) = (?P<value>[^`;]*)")


def as_named_there(text: str, use: Use, region: Region) -> str:
    """The same where the lines that capture and replay have their own names: ``dec.pos`` for ``self.pos`` there.

    What is made ahead of a capture that a method may run anew is made once: the graphs that are there read it, too.
    """
    there = _name_there(use, region)
    if there and there != "self":
        parts = _READ.split(text)
        return "".join(p if at % 2 else _OWNED.sub(f"{there}.", p) for at, p in enumerate(parts))
    if region.code.co_varnames[:1] != ("self",) or region.code.co_name == "__init__":
        return text
    made = _MADE.search(text)
    if made is None:
        return text
    return text.replace(_BEFORE, _made_at(made["value"], region), 1)


def _made_at(value: str, region: Region) -> str:
    """Where what a capture reads is made, once: an ``__init__`` that captures itself ends too late for that."""
    if not _is_known_first(value, region):
        return "once, ahead of the first capture"
    made = "__post_init__" if "__post_init__" in dir(_kind(region)) else "__init__"  # the latter is a dataclass's own
    return f"in `{made}`, ahead of the first capture" if _captures_first(region) else f"at the end of `{made}`"


def may_read(region: Region, attribute: str) -> bool:
    """Whether what a capture calls may read an attribute of that name; what fills a tensor ahead of replays is not it.

    Only the user's files are asked: those of the capture, and of what it is known to call.
    """
    uses = region.values.uses if region.values is not None else []
    files = {region.code.co_filename, *(use.code.co_filename for use in uses)}
    trees = [tree_of(file) for file in files]
    if not region.body or None in trees:
        return True
    own = {id(n) for s in region.body for n in ast.walk(s)}
    behind = {id(n) for each in called_behind(trees, region) for n in ast.walk(each)}  # type: ignore[arg-type]
    lines = range(region.body[0].lineno, (region.body[-1].end_lineno or region.body[-1].lineno) + 1)
    for file, tree in zip(files, trees, strict=True):
        aside = {*_aside(tree, file, region), *behind} - own  # type: ignore[arg-type]
        for node in ast.walk(tree):  # type: ignore[arg-type]
            named = isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Load)
            by_text = isinstance(node, ast.Constant) and node.value == attribute
            inside = file == region.code.co_filename and getattr(node, "lineno", 0) in lines
            if (named or by_text) and (inside or id(node) not in aside):
                return True
    return False


def _aside(tree: ast.AST, file: str, region: Region) -> Iterator[int]:
    """Nodes that no capture runs: of what makes an object, of what fills a tensor, of the lines around the capture."""
    for node in ast.walk(tree):
        fills = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fill_"
        makes = isinstance(node, ast.FunctionDef) and node.name == "__init__"
        if fills or makes:
            yield from map(id, ast.walk(node))
        at = file == region.code.co_filename and isinstance(node, ast.FunctionDef) and node.name == region.code.co_name
        if at and node.lineno >= region.code.co_firstlineno:  # type: ignore[attr-defined]
            inner = (n for n in ast.walk(node) if n is not node and isinstance(n, FUNCTIONS))
            closed = {id(n) for each in inner for n in ast.walk(each)}
            yield from (id(n) for n in ast.walk(node) if id(n) not in closed)


def _name_there(use: Use, region: Region) -> str:
    """What the object that a captured line calls ``self`` is called where the capture stands; "" if nobody knows."""
    owner = use.names.get("self")
    if not use.text.startswith("self.") or owner is NOTHING:
        return ""
    if use.code is region.code:
        return "self"
    return next((path for path, value in _paths(region) if value is owner), "")


def _paths(region: Region) -> Iterator[tuple[str, Any]]:
    known = {**region.space, **region.known}
    held = [(name, value) for name, value in known.items() if name.isidentifier()]
    held.sort(key=lambda pair: (pair[0] != "self", pair[0] not in region.known))
    first = [each for each in held if each[0] == "self"]  # which has its own names where it launches, too
    yield from first
    yield from ((f"self.{part}", each) for _, value in first for part, each in _parts(value).items())
    yield from held
    for name, value in held:
        parts = _parts(value) if name in region.known and name != "self" else {}
        yield from ((f"{name}.{part}", each) for part, each in parts.items())


def _parts(value: Any) -> dict[str, Any]:
    """What an object has, modules included."""
    parts = getattr(value, "__dict__", None)
    parts = {**parts, **parts.get("_modules", {})} if type(parts) is dict else {}
    return {name: each for name, each in parts.items() if name.isidentifier()}


def _is_known_first(value: str, region: Region) -> bool:
    """Whether an expression only reads what the object's own ``__init__`` has set."""
    first = code_of(getattr(_kind(region), "__init__", None))
    try:
        nodes = [*ast.walk(ast.parse(value, mode="eval"))]
    except SyntaxError:
        return False
    names = {n.id for n in nodes if isinstance(n, ast.Name)} - {"self", "torch", "math", "np", *vars(builtins)}
    own = [n.attr for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "self"]
    return first is not None and not names and set(own) <= {*first.co_names} - _nothing_yet(first)


def _kind(region: Region) -> type:
    """The class of the object whose method captures."""
    return type(path_value(ast.Name("self"), region.known, region.space))


def _captures_first(region: Region) -> bool:
    """Whether an ``__init__`` of the object's may run what captures, as far as the names that it calls tell."""
    kinds = _kind(region).__mro__
    waiting = [code for kind in kinds if (code := code_of(vars(kind).get("__init__"))) is not None]
    known = {*waiting}
    for code in waiting:
        if code is region.code:
            return True
        names = [*code.co_names, *(["__call__"] if any(_calls_itself(n) for n in nodes_of(code)) else [])]
        held = [vars(kind).get(name) for name in names for kind in kinds]
        held += [region.space.get(name) for name in names]
        inner = [each for each in code.co_consts if isinstance(each, CodeType)]
        reached = {*inner, *(each for one in held if (each := code_of(one)) is not None)} - known
        waiting += reached
        known |= reached
    return False


def _calls_itself(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "self"


def _nothing_yet(first: CodeType) -> set[str]:
    """What an ``__init__`` sets to None, or to an empty dictionary: it has no numbers there."""
    found = set[str]()
    for node in (n for n in nodes_of(first) if isinstance(n, ast.Assign)):
        for target in node.targets:
            pairs = unpacked(node, target)
            found |= {p.attr for p, v in pairs if isinstance(p, ast.Attribute) and ast.unparse(v) in _EMPTY}
    return found
