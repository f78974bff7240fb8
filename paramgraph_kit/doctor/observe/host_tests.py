"""Words for a number that a capture computes with and that also decides what is captured: a tensor, and two graphs."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence, Set
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import every as nodes_in
from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of, written_out
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_values import Use
from paramgraph_kit.doctor.observe.moved_together import graph_for_each
from paramgraph_kit.doctor.observe.own_tables import keys_in, keys_of
from paramgraph_kit.doctor.observe.short_names import first_of

_COMPUTES = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare)
_ANSWERS = (  # what a function that only answers is made of
    *(ast.If, ast.IfExp, ast.Return, ast.Name, ast.Attribute, ast.Constant, ast.Expr, ast.Load, ast.arguments, ast.arg),
    *(*_COMPUTES, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.FunctionDef),
)

WORDS = ("number", "word", "function")  # what a table of graphs may go by


def asked_in(node: ast.expr, parents: Mapping[ast.AST, ast.AST], paths: Collection[str]) -> ast.expr | None:
    """The test of a branch that asks a number and others of ``paths``, and nothing else; None where there is none."""
    top: Any = node
    while isinstance(parents.get(top), _COMPUTES):
        top = parents[top]
    above = parents.get(top)
    is_test = isinstance(above, (ast.If, ast.IfExp)) and above.test is top
    return top if is_test and _is_of(top, paths) else None


def _is_of(node: ast.AST, paths: Collection[str]) -> bool:
    if isinstance(node, (ast.Name, ast.Attribute)):
        return ast.unparse(node) in paths
    if isinstance(node, (*_COMPUTES, ast.Constant)):
        inside = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)]
        return all(_is_of(each, paths) for each in inside)
    return False


def is_in_key(use: Use) -> bool:
    """Whether a number decides only what the key of the program's own table of graphs decides: ``graphs[n > 3]``."""
    if not (keys := keys_of(use.code.co_filename)):
        return False
    nodes = [*nodes_of(use.code)]
    if _is_of_an_answer(nodes, use.code, keys) or _is_a_key(use, keys):
        return True
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    whole = use.node
    while isinstance(parents.get(whole), (ast.BinOp, ast.UnaryOp)):
        whole = parents[whole]  # type: ignore[assignment]
    above = parents.get(whole)
    target = above.targets[0] if isinstance(above, ast.Assign) and len(above.targets) == 1 else None
    paths = {ast.unparse(n) for n in ast.walk(whole) if isinstance(n, (ast.Name, ast.Attribute))}
    if isinstance(target, ast.Name) and _is_of(whole, paths):
        name = target.id
        reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
        tests = [asked_in(n, parents, {*paths, name}) for n in reads]
        asked = [of_the_host_alone(test, name, whole) if test is not None else None for test in tests]
    else:
        top: Any = whole
        while isinstance(parents.get(top), _COMPUTES):
            top = parents[top]
        within = {ast.unparse(n) for n in ast.walk(top) if isinstance(n, (ast.Name, ast.Attribute))}
        test = asked_in(use.node, parents, within)
        asked = [ast.unparse(test) if test is not None else None]
    return bool(asked) and all(
        test is not None and _is_decided(ast.parse(test, mode="eval").body, keys) for test in asked
    )


def _is_a_key(use: Use, keys: Set[str]) -> bool:
    """Whether the table has a graph for each value of what is read, ``graphs[cfg["rate"]]``: of the same object."""
    if not isinstance(use.node, (ast.Attribute, ast.Subscript)) or use.text not in keys:
        return False
    root = first_of(use.node)
    if root not in use.code.co_varnames:
        return True
    tree, line = tree_of(use.code.co_filename), use.node.lineno
    classes = [n for n in (nodes_in(tree) if tree else ()) if isinstance(n, ast.ClassDef)]
    own = [c for c in classes if c.lineno <= line <= (c.end_lineno or 0)]
    return root == use.code.co_varnames[0] and any(use.text in keys_in(each) for each in own)


def _is_of_an_answer(nodes: Sequence[ast.AST], code: CodeType, keys: Set[str]) -> bool:
    """Whether it is read in a function that only answers, each call of which is a part of the key: ``self.is_first()``.

    A property is read as one of its attributes is.
    """
    tree, name = tree_of(code.co_filename), code.co_name
    if tree is None or not all(isinstance(n, _ANSWERS) for n in nodes) or name in ("<lambda>", "<module>"):
        return False
    every, within = nodes_in(tree), {id(n) for n in nodes}
    called = [n for n in every if isinstance(n, ast.Call) and last_name(n.func) == name]
    read = [n for n in every if isinstance(n, ast.Attribute) and n.attr == name]
    asked = [ast.unparse(n) for n in (called or read) if id(n) not in within]
    return bool(asked) and keys >= {*asked}


def _is_decided(node: ast.AST, keys: Collection[str]) -> bool:
    """Whether a part of the key decides a test: ``self.n % 2`` decides ``self.n % 2 == 0``."""
    if isinstance(node, ast.expr) and ast.unparse(node) in keys:
        return True
    inside = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)]
    is_member = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id[:1].isupper()
    return (
        isinstance(node, ast.Constant)
        or is_member
        or (isinstance(node, _COMPUTES) and all(_is_decided(n, keys) for n in inside))
    )


def decides_alone_in_key(use: Use) -> bool:
    """The same of a use whose value nobody has asked for: that is a number, or a word."""
    value = use.value()
    return is_in_key(use) if type(value) in NUMBERS or type(value) is str else _gives_a_key(use)


def _gives_a_key(use: Use) -> bool:
    """Whether what is read, a list, gives the key of the program's own table of graphs: ``graphs[max(cache.lens)]``."""
    if not (keys := keys_of(use.code.co_filename)) or (tree := tree_of(use.code.co_filename)) is None:
        return False
    parents = {child: node for node in nodes_of(use.code) for child in ast.iter_child_nodes(node)}
    top: Any = use.node
    while (
        isinstance(above := parents.get(top), ast.Call) and isinstance(above.func, ast.Name) and above.func is not top
    ):
        top = above
    root, code = first_of(use.node), use.code
    if ast.unparse(top) not in keys or top is use.node:
        return False
    calls = [n for n in nodes_in(tree) if isinstance(n, ast.Call) and last_name(n.func) == code.co_name]
    named = all(any(isinstance(a, ast.Name) and a.id == root for a in call.args) for call in calls)
    return named or root not in code.co_varnames[: code.co_argcount] or root == "self"


def of_the_host_alone(test: ast.expr, name: str, given: ast.expr) -> str:
    """The same with what a variable is given in place of its name: another function has no such variable."""
    return ast.unparse(written_out(test, {name: given}))


def with_tests(tests: Mapping[str, str], parts: str, filled: Sequence[str]) -> str:
    """What is written for a number that is computed with and asked; "" where too much is asked.

    Args:
        tests: what is asked, and where.
        parts: the lines that make a tensor of the number, and that read it.
        filled: what is written to such tensors ahead of each replay.
    """
    if len(tests) != 1:
        return ""
    (test, at), *_ = tests.items()
    each = graph_for_each(f"({test})")
    return f"{each}; {parts} but in {at}, whose test stays as it is; and ahead of each replay {', '.join(filled)}"
