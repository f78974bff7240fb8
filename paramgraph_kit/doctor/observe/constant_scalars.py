"""Numbers in tensors of the CPU that nothing ever moves: a graph keeps the only one that there is."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, tree_of
from paramgraph_kit.doctor.observe.captured_values import Use, uses_in
from paramgraph_kit.doctor.observe.findings import MOST_SCALARS, SCALAR
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.driver.files import display_name, is_cell, is_library
from paramgraph_kit.trace.model import Failure

CODE = "cpu-scalar-frozen"
if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.constant_tables import Made
    from paramgraph_kit.doctor.observe.one_call import Call

_MAKES = ("__init__", "__post_init__", "setup", "build")
_TELLS = ("register_buffer", "getattr", "hasattr")  # these do not write what they are told by name


def without_constants(
    failures: Iterable[Failure],
    function: Any,
    given_of: Callable[[], dict[str, Any]],
    ran: Iterable[CodeType],
    calls: Iterable[Call] = (),
) -> list[Failure]:
    """The same without lines that read only such numbers of the CPU's."""
    failures = list(failures)
    if not any(f.code == CODE for f in failures):
        return failures
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        given = given_of()
        uses = [use for use in uses_in(function, given) if _is_number(use.value())]
        files = {code.co_filename for code in [*ran, *(use.code for use in uses)] if not is_library(code.co_filename)}
        left = [f for f in failures if f.code != CODE or not _is_constant(f, uses, set(given), files)]
        makers = [call.makers for call in calls]
        return [f for f in left if f.code != CODE or not _is_of_constants(f, makers, files)]
    return failures


def _is_number(value: Any) -> bool:
    return is_a(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0 and not value.requires_grad


def _is_constant(failure: Failure, uses: list[Use], given: set[str], files: set[str]) -> bool:
    frame = failure.frame
    if frame is None:
        return False
    there = [u for u in uses if u.node.lineno == frame.line and display_name(u.code.co_filename) == frame.file]
    roots = {n.id for u in there for n in ast.walk(u.node) if isinstance(n, ast.Name)}
    values = [part.partition(" in ")[0] for part in failure.message.split(SCALAR)[1:]]
    if not values or len(values) >= MOST_SCALARS or roots & given:
        return False
    if not {*values} <= {str(use.value().item()) for use in there}:
        return False
    return not any(_is_written(last_name(use.node), isinstance(use.node, ast.Name), files) for use in there)


def _is_of_constants(failure: Failure, makers: list[dict[tuple[Any, ...], Made | None]], files: set[str]) -> bool:
    """Whether all that its line's numbers are made of, in each call, is what no line writes."""
    key = failure.code, failure.frame and (failure.frame.file, failure.frame.line)
    there = [each[key] for each in makers if key in each]
    made = frozenset[tuple[str, bool]]().union(*(each for each in there if each is not None))
    return bool(made) and None not in there and not any(_is_written(n, variable, files) for n, variable in made)


def _is_written(name: str, is_variable: bool, files: set[str]) -> bool:
    """Whether lines give what is called so another value, or write into it, but where it is made."""
    made = 0
    for file in files:
        tree = tree_of(file)
        if tree is None or not name or is_cell(file):  # a later cell may write it
            return True
        makers = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in _MAKES]
        making = {n for each in makers for n in ast.walk(each)}
        loops = {n for each in ast.walk(tree) if isinstance(each, (ast.For, ast.While)) for n in ast.walk(each)}
        for node in ast.walk(tree):
            kind = ast.Name if is_variable else ast.Attribute  # `alphas = self.alphas` gives a variable its name alone
            targets = [t for x in node.targets for t in elements_of(x)] if isinstance(node, ast.Assign) else []
            if any(isinstance(t, kind) and last_name(t) == name for t in targets):
                made += is_variable
                if node in loops or not (is_variable or node in making) or made > 1:
                    return True
            elif _may_write(node, name):
                return True
    return False


def _is_place(node: ast.AST, name: str) -> bool:
    """Whether it is written at a place, or past what torch sees."""
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _is_named(node.value, name)
    return isinstance(node, ast.Attribute) and node.attr == "data" and _is_named(node.value, name)


def _is_named(node: ast.AST, name: str) -> bool:
    return any(last_name(each) == name for each in ast.walk(node))


def _may_write(node: ast.AST, name: str) -> bool:
    """Whether a node writes it in place, or a call takes its name to set it."""
    if isinstance(node, (ast.AugAssign, ast.For, ast.NamedExpr)):
        return _is_named(node.target, name)
    if not isinstance(node, ast.Call):
        return _is_place(node, name)
    called = last_name(node.func)
    if any(isinstance(each, ast.Constant) and each.value == name for each in node.args) and called not in _TELLS:
        return True
    if any(option.arg == "out" and _is_named(option.value, name) for option in node.keywords):
        return True
    in_place = called.endswith("_") and not called.endswith("__") and called != "requires_grad_"
    return in_place and isinstance(node.func, ast.Attribute) and _is_named(node.func.value, name)
