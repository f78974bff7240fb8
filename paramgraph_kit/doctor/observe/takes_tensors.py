"""Whether a tensor of one number does as well where what a capture reads is a number of Python's."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.captured_values import Use
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.multiplied import OF_TENSORS
from paramgraph_kit.doctor.observe.tensors_for_numbers import HOSTS

_SIZES = frozenset(
    """arange zeros ones full empty eye linspace view reshape expand repeat narrow split chunk roll topk unflatten randn
    rand randint interpolate pad tile unfold dropout normal_ uniform_ fill_ full_like""".split()  # noqa: SIM905 - shorter so
)
# What torch takes beside the tensor, by position: a rate, a slope, a bound, an order.
_RATES = frozenset(
    """dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout leaky_relu leaky_relu_ elu elu_ celu celu_
    softplus threshold threshold_ hardtanh hardtanh_ hardshrink softshrink huber_loss smooth_l1_loss layer_norm rms_norm
    group_norm normalize norm renorm logit nan_to_num cdist dist clip_grad_norm_ clip_grad_value_ rrelu
    bernoulli_ exponential_ geometric_ log_normal_ cauchy_ trunc_normal_""".split()  # noqa: SIM905 - shorter so
)
_ONLY_NUMBERS = (_SIZES | _RATES | {"range", "islice"}) - {"fill_", "full_like", "full"}
_TESTS = (ast.If, ast.IfExp, ast.While, ast.Assert)
_COMPUTES = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare)
_Parents = dict[ast.AST, ast.AST]


def takes_a_tensor(use: Use, then: Any) -> bool:
    """Whether what is read is only computed with, where a tensor of one number does as well."""
    tree = tree_of(use.code.co_filename)
    if tree is None or isinstance(then, bool):
        return False
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    node, computed = use.node, False
    while node in parents and not isinstance(node, ast.stmt):
        above: Any = parents[node]
        if isinstance(above, ast.Subscript) and node is above.slice:
            return False
        if isinstance(above, ast.Call) and node is not above.func:
            return last_name(above.func) in OF_TENSORS or (computed and not of_numbers(above.func))
        if isinstance(above, ast.keyword):
            return False
        if isinstance(above, ast.Compare) and _is_with_a_tensor(above, use):
            return True
        if isinstance(above, ast.Attribute) and isinstance(node, ast.Compare) and not hasattr(bool, above.attr):
            return True  # (p > self.threshold).float(): of two numbers it would have no such method
        computed = computed or isinstance(above, ast.BinOp)
        node = above
    return computed and not _is_asked(use, node, parents)


def is_number_elsewhere(use: Use, uses: Collection[Use]) -> bool:
    """Whether lines that no capture is known to run read what is called so where only a number can stand.

    That is a size, an index, the end of a slice, a rate.
    """
    name = last_name(use.node)
    own = {id(each.node) for each in uses}
    for file in {each.code.co_filename for each in uses}:
        nodes = [*ast.walk(tree_of(file) or ast.Module([], []))]
        parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        reads = (n for n in nodes if isinstance(n, type(use.node)) and last_name(n) == name and id(n) not in own)
        for read in (n for n in reads if isinstance(getattr(n, "ctx", None), ast.Load)):
            top: Any = read
            while isinstance(parents.get(top), (*_COMPUTES, ast.keyword, ast.Tuple)):
                top = parents[top]
            above: Any = parents.get(top)
            if isinstance(above, ast.Slice) or (isinstance(above, ast.Subscript) and above.slice is top):
                return True
            given = isinstance(above, ast.Call) and top is not above.func
            if given and last_name(above.func) in _ONLY_NUMBERS:
                return True
    return False


def _is_asked(use: Use, statement: ast.AST, parents: _Parents) -> bool:
    """Whether a name gets what is computed, and the host asks that behind it: by a branch, a size, an index.

    A capture has gone by there, so that it was no tensor, which would have failed in it.
    """
    waiting, known = [*_given(statement)], set[str]()
    names = [n for n in nodes_of(use.code) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    while waiting:
        known.add(name := waiting.pop())
        for read in (n for n in names if n.id == name and n.lineno > getattr(statement, "lineno", 0)):
            top: Any = read
            while isinstance(parents.get(top), _COMPUTES):
                top = parents[top]
            above = parents.get(top)
            if isinstance(above, _TESTS) and above.test is top:
                return True
            if isinstance(above, (ast.Slice, ast.For)) or (isinstance(above, ast.Subscript) and above.slice is top):
                return True
            if isinstance(above, ast.Call) and top in above.args and of_numbers(above.func):
                return True
            waiting += [each for each in _given(above) if each not in known]
    return False


def _given(statement: ast.AST | None) -> Iterator[str]:
    """The names that get what a statement computes."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, (ast.AugAssign, ast.AnnAssign)) else targets
    return (each.id for each in targets if isinstance(each, ast.Name))


def _is_with_a_tensor(compare: ast.Compare, use: Use) -> bool:
    """Whether a number is compared with a tensor: one that stays, or one that a call of torch's gives."""
    for each in (compare.left, *compare.comparators):
        called = each.func if isinstance(each, ast.Call) else None
        drawn = isinstance(called, ast.Attribute) and last_name(called.value) == "torch" and len(compare.ops) == 1
        if drawn or is_a(Use(use.code, each, False, use.names).value(), torch.Tensor):
            return True
    return False


def of_numbers(function: ast.expr) -> bool:
    """Whether a function takes Python's numbers only: a size, a rate, or what ``math`` has."""
    owner = last_name(function.value) if isinstance(function, ast.Attribute) else ""
    name = last_name(function)
    return owner in HOSTS or name in _SIZES | _RATES or (isinstance(function, ast.Name) and hasattr(builtins, name))
