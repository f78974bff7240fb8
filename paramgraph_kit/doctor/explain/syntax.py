"""The syntax tree of a function that ran, from the source that Python has of it."""

from __future__ import annotations

import ast
import copy
import linecache
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from types import CodeType
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
ROUNDS = (*LOOPS, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)  # what runs something again and again
MAKERS = ("__init__", "__post_init__", "__new__")  # methods in which an object is made


_TREES: dict[str, tuple[list[str], ast.Module | None]] = {}  # the latest of each file


@cache
def _tree(file: str, text: str) -> ast.Module | None:
    try:
        return assigned_alike(ast.parse(text, file))
    except (SyntaxError, ValueError):
        return None


class AnnAssign(ast.Assign):
    """An assignment that also says a kind, which ``ast.unparse`` knows by the name of this class."""

    annotation: ast.expr
    simple: int

    @property
    def target(self) -> ast.expr:
        """What is given the value."""
        return self.targets[0]


def assigned_alike(tree: ast.Module) -> ast.Module:
    """A file whose names with a kind are assigned as others are, but for a class's fields; its text says the kinds.

    >>> tree = assigned_alike(ast.parse("def f(x):\\n    y: float = x.item()"))
    >>> isinstance(tree.body[0].body[0], ast.Assign)
    True
    >>> ast.unparse(tree)
    'def f(x):\\n    y: float = x.item()'
    """
    for node in ast.walk(tree):
        for _, part in ast.iter_fields(node) if not isinstance(node, (ast.expr, ast.ClassDef)) else ():
            for at, each in enumerate(part) if isinstance(part, list) else ():
                if isinstance(each, ast.AnnAssign) and each.value is not None:
                    part[at] = ast.copy_location(AnnAssign([each.target], each.value), each)
                    part[at].annotation, part[at].simple = each.annotation, each.simple
    return tree


def tree_of(file: str) -> ast.Module | None:
    """The syntax of a file, or of a notebook's cell; None where it cannot be read."""
    lines = linecache.getlines(file)  # the same list, as long as the file is the same
    known = _TREES.get(file)
    if known is None or known[0] is not lines:
        known = _TREES[file] = (lines, _tree(file, "".join(lines)))
    return known[1]


def last_name(node: ast.AST) -> str:
    """``b`` of ``a.b``, and of ``b`` itself; "" of anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def first_line(node: ast.stmt) -> int:
    """Where a statement begins, with its decorators: the line that Python calls a function's first."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def defines(node: ast.AST, code: CodeType) -> bool:
    """Whether a node is the definition that a function's code is made of."""
    named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name
    return named and first_line(node) == code.co_firstlineno  # type: ignore[arg-type]


def writes_in_place(node: ast.AST) -> bool:
    """Whether a statement leaves a tensor where it is: ``x *= 2``; ``x @= w`` gives another one.

    >>> writes_in_place(ast.parse("x *= 2").body[0]), writes_in_place(ast.parse("x @= w").body[0])
    (True, False)
    """
    return isinstance(node, ast.AugAssign) and not isinstance(node.op, ast.MatMult)


def elements_of(node: ast.expr) -> Iterator[ast.expr]:
    """What a list or a tuple has, and those in it; of anything else that itself.

    >>> [ast.unparse(each) for each in elements_of(ast.parse("(a, [b, c.d])", mode="eval").body)]
    ['a', 'b', 'c.d']
    """
    if isinstance(node, (ast.List, ast.Tuple)):
        for each in node.elts:
            yield from elements_of(each)
    else:
        yield node


def unpacked(node: ast.Assign, target: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What an assignment gives to the parts of one of its targets; nothing where it does not tell.

    >>> statement = ast.parse("a, b.c = 1, x").body[0]
    >>> [(ast.unparse(to), ast.unparse(value)) for to, value in unpacked(statement, statement.targets[0])]
    [('a', '1'), ('b.c', 'x')]
    """
    targets = [*elements_of(target)]
    values = [*elements_of(node.value)] if len(targets) > 1 else [node.value]
    yield from zip(targets, values, strict=True) if len(targets) == len(values) else ()


def last_line(code: CodeType) -> int:
    """The last line of a function."""
    return _last_of(code, code.co_linetable)  # codes may be equal that lie on other lines


@lru_cache(512)  # it is asked for each operation of a call
def _last_of(code: CodeType, _: bytes) -> int:
    return max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)


def children(node: ast.AST) -> list[ast.AST]:
    """As ``ast.iter_child_nodes``, in a third of the time: trees are gone through thousands of times."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """As ``ast.walk``."""
    found = [node]
    for each in found:  # which grows
        found += children(each)
        yield each


@lru_cache(64)
def every(tree: ast.Module) -> tuple[ast.AST, ...]:
    """The nodes of a file, of which many ask."""
    return tuple(walk(tree))


def innermost(tree: ast.Module | None, line: int, kinds: tuple[type[ast.AST], ...]) -> Any:
    """The innermost function, or class, in which a line stands; None where none does.

    >>> tree = ast.parse("class A:\\n    def f(self):\\n        pass")
    >>> innermost(tree, 3, FUNCTIONS).name, innermost(tree, 3, (ast.ClassDef,)).name, innermost(tree, 1, FUNCTIONS)
    ('f', 'A', None)
    """
    around = [n for n in every(tree) if isinstance(n, kinds) and spans(n, line)] if tree is not None else []
    return around[-1] if around else None  # those inside come later


def spans(node: Any, line: int) -> bool:
    """Whether a line is one of those of a node."""
    return bool(node.lineno <= line <= (node.end_lineno or node.lineno))


def written_out(node: ast.expr, given: Mapping[str, ast.expr]) -> ast.expr:
    """A copy of an expression with others in the places of some of its names."""

    class Given(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return copy.deepcopy(given[name.id]) if name.id in given else name

    return Given().visit(copy.deepcopy(node))  # type: ignore[no-any-return]


def here(node: ast.AST, apart: tuple[type[ast.AST], ...] = FUNCTIONS) -> Iterator[ast.AST]:
    """A node and what is in it, without functions that are only defined there; ``apart``: or what else is."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, apart):
            yield node
            waiting += reversed(children(node))


def round_of(node: ast.AST) -> Sequence[ast.AST]:
    """What each round of a loop, or of a comprehension, runs; nothing of anything else."""
    if isinstance(node, LOOPS):
        return node.body
    if isinstance(node, ast.DictComp):
        return node.key, node.value
    return (node.elt,) if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)) else ()


def nodes_of(code: CodeType) -> Iterator[ast.AST]:
    """The syntax of a function, as far as its source can be read."""
    tree = tree_of(code.co_filename)
    return iter(_between(tree, code.co_firstlineno, last_line(code)) if tree is not None else ())


def conditionals_of(code: CodeType) -> tuple[ast.If | ast.While, ...]:
    """The conditional statements of a function, as far as its source can be read."""
    tree = tree_of(code.co_filename)
    return _tests_between(tree, code.co_firstlineno, last_line(code)) if tree is not None else ()


@lru_cache(256)
def _tests_between(tree: ast.Module, first: int, last: int) -> tuple[ast.If | ast.While, ...]:
    return tuple(node for node in _between(tree, first, last) if isinstance(node, (ast.If, ast.While)))


@lru_cache(256)  # of a long file it takes milliseconds, and is asked again for each thing that was found
def _between(tree: ast.Module, first: int, last: int) -> tuple[ast.AST, ...]:
    return tuple(node for node in every(tree) if first <= getattr(node, "lineno", -1) <= last)


def pairs_of(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Targets with what each gets, of ``a = b = 0`` and of ``a, b = 0, 1``."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(node.target, node.value)]
    if not isinstance(node, ast.Assign):
        return []
    found: list[tuple[ast.expr, ast.expr]] = []
    for target in node.targets:
        to, given = ([*getattr(each, "elts", [])] for each in (target, node.value))
        found += zip(to, given, strict=True) if to and len(to) == len(given) else [(target, node.value)]
    return found
