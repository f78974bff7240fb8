"""Numbers that a line computes, on the CPU, of tables and settings alone: ``t = self.alphas; a = t[3].sqrt()``."""

from __future__ import annotations

import ast
import builtins
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from inspect import CO_COROUTINE, CO_GENERATOR, getattr_static
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.operations import Names
from paramgraph_kit.doctor.explain.syntax import elements_of, nodes_of
from paramgraph_kit.doctor.observe.held import attributes_of, code_of, is_a
from paramgraph_kit.doctor.observe.places import line_of
from paramgraph_kit.driver.files import is_library

Made = frozenset[tuple[str, bool]]  # what it is made of: each name, and whether it is a variable's
_PLAIN = (bool, int, float, complex, str, type(None))
_MOVES = frozenset(
    "pop popleft append appendleft extend insert remove clear update setdefault rotate shuffle sample seed "  # noqa: SIM905
    "bernoulli multinomial normal poisson item_ copy".split()
)
_LIBRARIES = ("torch", "math", "numpy", "builtins", "itertools")
_PURE = frozenset("range len int float bool abs min max sum list tuple zip enumerate sorted reversed round".split())  # noqa: SIM905
_PARTS = (
    *(ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Starred, ast.Slice),
    ast.Subscript,
)
_SIGNS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)
_PLAINLY = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
_DEEP = 3
_DRAWS = ("rand", "normal", "bernoulli", "multinomial", "poisson", "manual_seed", "empty", "from_numpy")


def made_of(stack: Sequence[tuple[CodeType, int]], names_of: Callable[[CodeType], Names]) -> Made | None:
    """What the host's numbers of the innermost line are made of; None where some of it is not known.

    What an argument stands for is asked of the line that calls.
    """
    made: Made = frozenset()
    called: CodeType | None = None
    for code, at in reversed(stack):
        nodes = [*nodes_of(code)]
        line = line_of(code, at)
        there = [n for n in nodes if isinstance(n, _PLAINLY) and n.lineno <= line <= (n.end_lineno or n.lineno)]
        search = _Search(code, nodes, names_of(code), called)
        if len(there) != 1 or there[0].value is None or not search.is_known(there[0].value):
            return None
        made |= search.made
        if not search.arguments:
            return made
        called = code
    return None


class _Search:
    """Looks at the expressions that a number comes from."""

    def __init__(self, code: CodeType, nodes: list[ast.AST], names: Names, called: CodeType | None = None) -> None:
        self.nodes, self.names, self.called = nodes, names, called
        self.arguments: set[str] = set()  # what it is made of, too
        count = code.co_argcount + code.co_kwonlyargcount
        self.given = {*code.co_varnames[:count]}
        self.own = {*code.co_varnames, *code.co_cellvars}
        self.made: set[tuple[str, bool]] = set()
        self.asked: dict[str, bool] = {}
        self.known: frozenset[str] = frozenset()  # arguments of a function that is called here
        self.deep = 0
        self.is_method = "." in code.co_qualname.rpartition("<locals>.")[2] and count > 0
        self.owner = code.co_varnames[0] if self.is_method else ""

    def is_known(self, node: ast.AST) -> bool:
        """Whether it lies on the device, or is the same in each call."""
        if isinstance(node, (ast.Constant, *_SIGNS)):
            return True
        if isinstance(node, ast.Call):
            return self._is_known_call(node)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._is_known_path(node)
        return isinstance(node, _PARTS) and all(self.is_known(each) for each in ast.iter_child_nodes(node))

    def _is_known_call(self, node: ast.Call) -> bool:
        arguments = [*node.args, *(each.value for each in node.keywords)]
        if not all(self.is_known(each) for each in arguments):
            return False
        function = self._value(node.func)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if is_a(function, torch.nn.Module) or (self.called is not None and code_of(function) is self.called):
            return True
        if isinstance(node.func, ast.Name) and node.func.id in self.own:
            return self._is_known_lambda(node.func.id)
        if is_a(function, FunctionType) and not is_library(function.__code__.co_filename):
            return self._is_known_function(node, function)
        if isinstance(node.func, ast.Name):  # no lambda of its own
            library = str(getattr(function, "__module__", "")).partition(".")[0] in _LIBRARIES
            return node.func.id in _PURE or (library and not _draws(node.func.id))
        if name.endswith("_") or name in _MOVES or _draws(name):
            return False
        if isinstance(node.func, ast.Attribute) and is_a(self._value(node.func.value), ModuleType):
            module = self._value(node.func.value)
            return module.__name__.partition(".")[0] in _LIBRARIES and "random" not in module.__name__
        held = function is None or isinstance(function, BuiltinFunctionType) or _is_torchs(function)
        return isinstance(node.func, ast.Attribute) and held and self.is_known(node.func.value)

    def _is_known_lambda(self, name: str) -> bool:
        """Whether a function's own ``t_of = lambda sigma: sigma.log()`` gives the same for the same."""
        given = [*self._given_to(name)]
        if len(given) != 1 or not isinstance(given[0], ast.Lambda):
            return False
        before, self.known = (
            self.known,
            self.known | {each.arg for each in ast.walk(given[0]) if isinstance(each, ast.arg)},
        )
        try:
            return self.is_known(given[0].body)
        finally:
            self.known = before

    def _is_known_function(self, call: ast.Call, function: FunctionType) -> bool:
        """Whether a function of the user's gives the same for the same arguments."""
        code, owner = function.__code__, call.func.value if isinstance(call.func, ast.Attribute) else None
        if self.deep > _DEEP or code.co_flags & (CO_GENERATOR | CO_COROUTINE):
            return False
        bound = {code.co_varnames[0]: self._value(owner)} if owner is not None and code.co_argcount else {}
        nodes = [*nodes_of(code)]
        inner = _Search(code, nodes, ChainMap(bound, function.__globals__, vars(builtins)))
        inner.deep, inner.known = self.deep + 1, frozenset(inner.given)
        returned = [n.value for n in nodes if isinstance(n, ast.Return)]
        if not returned or not all(n is not None and inner.is_known(n) for n in returned):
            return False
        self.made |= inner.made
        return True

    def _is_known_path(self, node: ast.Name | ast.Attribute) -> bool:
        value = self._value(node)
        if isinstance(node, ast.Name) and node.id in self.known:
            return True
        if is_a(value, torch.Tensor) and value.device.type != "cpu":
            return True
        if isinstance(node, ast.Name) and node.id in self.own:
            if node.id in self.given and node.id != self.owner and not any(True for _ in self._given_to(node.id)):
                self.arguments.add(node.id)
                return True
            return node.id not in self.given and self._is_known_variable(node.id)
        if isinstance(node, ast.Attribute) and value is None:  # of what is computed: `t.shape`
            return node.attr in ("T", "mT", "shape", "real", "imag") and self.is_known(node.value)
        if not (is_a(value, torch.Tensor) or _is_plain(value)) or (is_a(value, torch.Tensor) and value.requires_grad):
            return False
        if isinstance(node, ast.Name):
            self.made.add((node.id, True))
            return True
        first: ast.expr = node
        while isinstance(first, ast.Attribute):
            owner = self._value(first.value)
            module = sys.modules.get(type(owner).__module__)
            if is_library(getattr(module, "__file__", None) or ""):  # its lines are not looked at
                return False
            self.made.add((first.attr, False))
            first = first.value
        return isinstance(first, ast.Name) and (first.id == self.owner or first.id not in self.own)

    def _is_known_variable(self, name: str) -> bool:
        """Whether all that a variable of the function is given is the same in each call."""
        if name not in self.asked:
            self.asked[name] = True  # what it is made of itself adds nothing
            given = [*self._given_to(name)]
            self.asked[name] = bool(given) and all(n is not None and self.is_known(n) for n in given)
        return self.asked[name]

    def _given_to(self, name: str) -> Iterator[ast.AST | None]:
        for node in self.nodes:
            if _writes(node, name):  # perhaps the table, by another name
                yield None
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in (each for one in targets for each in elements_of(one)):
                    if isinstance(target, ast.Name) and target.id == name:
                        yield node.value
                    elif name in _names(target):  # `t[3] = ...`
                        yield None
            elif isinstance(node, (ast.For, ast.comprehension)) and name in _names(node.target):
                yield node.iter
            elif isinstance(node, (ast.With, ast.ExceptHandler, ast.Global, ast.Nonlocal, ast.Import)):
                said = [
                    each for item in getattr(node, "items", ()) if item.optional_vars for each in [item.optional_vars]
                ]
                if any(name in _names(each) for each in said) or name in getattr(node, "names", ()):
                    yield None

    def _value(self, node: ast.AST) -> Any:
        """What a path means, without running anything of the user's; None where nobody knows."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        owner = self._value(node.value)
        if owner is None or is_a(owner, torch.Tensor):
            return None
        if is_a(owner, ModuleType):
            return vars(owner).get(node.attr)
        for held in ("_parameters", "_buffers", "_modules") if is_a(owner, torch.nn.Module) else ():
            if node.attr in vars(owner).get(held, {}):
                return vars(owner)[held][node.attr]
        found = attributes_of(owner).get(node.attr)
        return found if found is not None else getattr_static(owner, node.attr, None)


def _is_plain(value: Any) -> bool:
    kinds = {type(value)} if not isinstance(value, (list, tuple)) else {type(each) for each in value}
    return kinds <= {*_PLAIN} or type(value) is range


def _is_torchs(function: Any) -> bool:
    return str(getattr(function, "__module__", "") or "").partition(".")[0] in _LIBRARIES


def _draws(name: str) -> bool:
    return name.startswith(
        ("rand", "normal", "bernoulli", "multinomial", "poisson", "manual_seed", "empty", "from_numpy")
    )


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _writes(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr.endswith("_") and not node.func.attr.endswith("__") and name in _names(node.func.value)
    return isinstance(node, ast.AugAssign) and name in _names(node.target)
