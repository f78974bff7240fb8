"""Modules that compute each row of what they are given alone, as far as the text of their classes tells."""

from __future__ import annotations

import ast
from itertools import pairwise

import torch

from paramgraph_kit.doctor.known.elementwise import ELEMENTWISE
from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, integer

# Of each element alone, whatever they are called on.
ELEMENTS = ELEMENTWISE | frozenset(
    """acos asin atan ceil clip cosh deg2rad elu expm1 fmod hardswish hardtanh lerp log10 log2 logit logsigmoid mish
    ones_like reciprocal relu6 remainder selu sinh trunc zeros_like""".split()  # noqa: SIM905
)
# Of each row alone where they go along another dimension, which is their first argument or ``dim=``.
ALONG = frozenset(
    """all amax amin any argmax argmin cumprod cumsum flatten gather log_softmax logsumexp max mean min norm prod
    softmax squeeze std sum topk unsqueeze var""".split()  # noqa: SIM905
)
_WIDENING = (torch.nn.Linear, torch.nn.LayerNorm, torch.nn.Embedding)  # whose rows have a dimension of their own
_ROWWISE = (
    *_WIDENING,
    torch.nn.Identity,
    torch.nn.Flatten,
    torch.nn.Sequential,
    torch.nn.ModuleList,
    torch.nn.ModuleDict,
)


def is_rowwise_module(place: Place, module: torch.nn.Module, *, wide: bool = False) -> bool:
    """Whether a module, and each in it, computes each row alone; ``wide``: what it is given has more dimensions."""
    narrow = set[torch.nn.Module]() if wide else {module}
    while True:  # who is given rows of one element each is known once all that call it were looked at
        before = len(narrow)
        if not all(_is_rowwise(place, each, narrow) for each in module.modules()):
            return False
        if len(narrow) == before:
            return True


def _is_rowwise(place: Place, module: torch.nn.Module, narrow: set[torch.nn.Module]) -> bool:
    if type(module) is torch.nn.Sequential and module in narrow:
        narrow.update(list(module.children())[:1])
    if type(module) is torch.nn.Sequential:  # what a class of the user's makes of its rows is not known
        children = list(module.children())
        narrow.update(b for a, b in pairwise(children) if not _keeps_wide(a, narrow))
    elif isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        narrow.update(module.children())
    own = _is_activation(module) or type(module) in _ROWWISE or _Forward(place, module, narrow).computes_rows()
    return own and not module._forward_hooks and not module._forward_pre_hooks


def _is_activation(module: torch.nn.Module) -> bool:
    mixes = (torch.nn.MultiheadAttention, torch.nn.RReLU, torch.nn.Softmax, torch.nn.LogSoftmax)
    return type(module).__module__.startswith("torch.nn.modules.activation") and not isinstance(module, mixes)


def _keeps_wide(module: torch.nn.Module, narrow: set[torch.nn.Module]) -> bool:
    """Whether what a module gives has a dimension behind its rows.

    A linear layer would take the rows themselves for what it has weights of, and of these there are as many each time.
    """
    if type(module) is torch.nn.Sequential:
        wide = module not in narrow
        for each in module.children():
            wide = type(each) in _WIDENING or (wide and _is_activation(each))
        return wide
    return type(module) in _WIDENING or (_is_activation(module) and module not in narrow)


class _Forward:
    """The ``forward`` of a class in the same file, gone through line by line."""

    def __init__(self, place: Place, module: torch.nn.Module, narrow: set[torch.nn.Module]) -> None:
        self.place, self.module, self.narrow = place, module, narrow
        self.wide = set[str]()  # names of what has a dimension behind its rows

    def computes_rows(self) -> bool:
        """Whether it calls other modules and what computes each row alone."""
        kind = type(self.module)
        classes = (
            n for n in ast.walk(self.place.source.tree) if isinstance(n, ast.ClassDef) and n.name == kind.__name__
        )
        parts = [n for each in classes for n in each.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
        if len(parts) != 1 or kind.__module__.startswith("torch."):
            return False
        self.wide = set(arguments_of(parts[0])[1:]) if self.module not in self.narrow else set()
        return all(map(self._line, parts[0].body))

    def _line(self, part: ast.stmt) -> bool:
        if not all(map(self._keeps_rows, ast.walk(part))):
            return False
        wide = isinstance(part, ast.Assign) and all(isinstance(n, ast.Name) for n in part.targets)
        if isinstance(part, ast.Assign) and wide and self._is_wide(part.value):
            self.wide |= stored([part])
        elif not isinstance(part, ast.AugAssign):  # which keeps its dimensions, or gets those of what is added
            self.wide -= stored([part])
        return True

    def _keeps_rows(self, node: ast.AST) -> bool:
        if isinstance(node, (ast.For, ast.While, ast.If, ast.Subscript)):
            return False
        if isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "H"):
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return False
        if not isinstance(node, ast.Call):
            return True
        if (inner := self._inner(node)) is not None:
            if not all(map(self._is_wide, (*node.args, *(option.value for option in node.keywords)))):
                self.narrow.add(inner)
            return True
        if called(node) in ELEMENTS:
            return True
        name, dim = called(node), dim_of(node)
        if name in ("cat", "concat") and is_function(node) and node.args:
            return dim > 0 or (dim == -1 and self._is_wide(node))
        if name not in ALONG:
            return False
        given = given_to(node)
        return dim > 0 or (dim == -1 and (name == "unsqueeze" or (given is not None and self._is_wide(given))))

    def _inner(self, call: ast.Call) -> torch.nn.Module | None:
        """The module of ``self.head(x)``."""
        own = path_of(call.func).split(".")
        return self.module._modules.get(own[1]) if own[0] == "self" and len(own) == 2 else None

    def _is_wide(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self.wide
        if isinstance(node, ast.BinOp):
            return self._is_wide(node.left) or self._is_wide(node.right)
        if isinstance(node, ast.UnaryOp):
            return self._is_wide(node.operand)
        if not isinstance(node, ast.Call):
            return False
        if (inner := self._inner(node)) is not None:
            return _keeps_wide(inner, self.narrow)
        if called(node) in ("cat", "concat") and is_function(node):
            many = node.args[0] if node.args else None
            return isinstance(many, (ast.List, ast.Tuple)) and all(map(self._is_wide, many.elts))
        if called(node) in ELEMENTS:
            given = given_to(node)
            return given is not None and self._is_wide(given)
        return called(node) == "unsqueeze" and dim_of(node) == -1


def dim_of(call: ast.Call, at: int = 0) -> int:
    """The dimension along which something goes; 0 where that is not told. ``at``: which argument of a method it is."""
    given = [option.value for option in call.keywords if option.arg == "dim"] or call.args[at : at + 1]
    if not at and is_function(call):
        given = [option.value for option in call.keywords if option.arg == "dim"] or call.args[1:2]
    return (integer(given[0]) or 0) if given else 0


def is_function(call: ast.Call) -> bool:
    """Whether a call is that of a function of torch's, and not of a method."""
    return isinstance(call.func, ast.Attribute) and path_of(call.func.value) in ("torch", "F", "torch.nn.functional")


def given_to(call: ast.Call) -> ast.AST | None:
    """What a function of torch's, or a method, goes along."""
    if is_function(call):
        return call.args[0] if call.args else None
    return call.func.value if isinstance(call.func, ast.Attribute) else None
