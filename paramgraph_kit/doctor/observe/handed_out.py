"""What a line is told to fill in place is the same tensor from then on: who is given it, and keeps it, gets a copy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, MAKERS, elements_of, every, last_name, spans, tree_of
from paramgraph_kit.trace.model import Failure

_MENDABLE = ("stale-input", "output-alias", "parameter-rebound")
_FILLED = re.compile(
    r"\nafter   (?:(?:where [^,]*, )?`(?:if [^:\n]*: )?)?(?P<path>[A-Za-z_][\w.]*(?:\[[^\]]+\])?)\.copy_\("
)
_ALSO = re.compile(r"; ([A-Za-z_][\w.]*(?:\[[^\]]+\])?)\.copy_\(")  # what the same line fills behind it
_KEEPS = ("append", "appendleft", "add", "put", "put_nowait", "setdefault", "insert", "extend")
_MOST = 3  # lines that are named


def with_clones(found: Iterable[Failure]) -> list[Failure]:
    """The same, with the lines that hand out what is filled in place from now on, and had another tensor before."""
    return [_with(each) for each in found]


def _with(failure: Failure) -> Failure:
    known = _FILLED.search(failure.fix) if failure.code in _MENDABLE else None
    tree = tree_of(failure.frame.file) if known is not None and failure.frame is not None else None
    if known is None or tree is None or failure.frame is None:
        return failure
    filled = dict.fromkeys([known["path"], *_ALSO.findall(failure.fix, known.end())])
    at = failure.frame.line
    new = [each for each in filled if f"{each}.clone()" not in failure.fix and _is_given(tree, each, at)]
    lines = dict.fromkeys(_handed_out(tree, new, at))
    words = "; ".join(f"`{text}` in line {line}" for line, text in [*lines][:_MOST])
    if not words:
        return failure
    fix = f"{failure.fix}; and {words}, as it is the same memory each time from now on"
    return replace(failure, fix=fix)


def _is_given(tree: ast.Module, path: str, line: int) -> bool:
    """Whether the line gives it another tensor now."""
    assigns = (n for n in every(tree) if isinstance(n, ast.Assign) and n.lineno == line)
    return any(ast.unparse(part) == path for n in assigns for t in n.targets for part in elements_of(t))


def _handed_out(tree: ast.Module, paths: Iterable[str], line: int) -> Iterator[tuple[int, str]]:
    """The statements that return one, yield it or add it to a container, each with copies in their places."""
    blocks = [n for n in every(tree) if isinstance(n, (ast.With, ast.AsyncWith)) and _captures(n)]
    captured = {id(inner) for n in blocks for inner in ast.walk(n)}
    found: dict[ast.stmt, set[str]] = {}
    for path in paths:
        for function in _scopes(tree, path, line):
            for statement in (n for n in ast.walk(function) if isinstance(n, (ast.Return, ast.Expr))):
                given = any(ast.unparse(part) == path for part in _given(statement, "." in path))
                if given and id(statement) not in captured:
                    found.setdefault(statement, set()).add(path)
    for keeps, given_there in found.items():
        yield keeps.lineno, ast.unparse(_Copied(given_there).visit(ast.parse(ast.unparse(keeps)).body[0]))


def _given(statement: ast.Return | ast.Expr, is_attribute: bool) -> Iterator[ast.expr]:
    value = statement.value
    if isinstance(statement, ast.Return):
        yield from _parts(value) if is_attribute else ()
    elif isinstance(value, ast.Yield):
        yield from _parts(value.value)
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and last_name(value.func) in _KEEPS:
        for each in value.args:
            yield from _parts(each)


def _parts(value: ast.expr | None) -> Iterator[ast.expr]:
    if isinstance(value, ast.Dict):
        yield from value.values
    elif value is not None:
        yield from elements_of(value)


class _Copied(ast.NodeTransformer):
    """Writes a copy where one of some paths is given as it is."""

    def __init__(self, paths: set[str]) -> None:
        self.paths = paths

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            return ast.Name(f"{text}.clone()") if (text := ast.unparse(node)) in self.paths else node
        made: ast.AST = self.generic_visit(node)
        return made


def _scopes(tree: ast.Module, path: str, line: int) -> Iterator[ast.AST]:
    """Where such a path means the same: the methods of a class, or one function."""
    around = [n for n in every(tree) if isinstance(n, (ast.ClassDef, *FUNCTIONS[:2])) and spans(n, line)]
    kinds = [n for n in around if isinstance(n, ast.ClassDef)]
    if path.startswith("self.") and kinds:
        methods = (n for n in kinds[-1].body if isinstance(n, FUNCTIONS[:2]) and n.name not in MAKERS)
        yield from (n for n in methods if spans(n, line) or not _is_written_by(tree, n.name))
    else:
        yield from [n for n in around if isinstance(n, FUNCTIONS[:2])][-1:]


def _is_written_by(tree: ast.Module, name: str) -> bool:
    """Whether lines write to what a method or a property gives back: ``r.state.zero_()``, ``r.state()[0] = x``."""
    for node in every(tree):
        of: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            of = node.func.value
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            of = node.value
        elif isinstance(node, ast.AugAssign):
            of = node.target
        if of is not None and any(last_name(each) == name for each in ast.walk(of)):
            return True
    return False


def _captures(node: ast.With | ast.AsyncWith) -> bool:
    calls = (item.context_expr for item in node.items)
    return any(isinstance(call, ast.Call) and last_name(call.func) == "graph" for call in calls)
