"""How many digits numbers need that tensors are given in place of Python's, which have those of float64."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from paramgraph_kit.rewrite.source.edits import names_in, path_of
from paramgraph_kit.rewrite.source.place import Form, Place

_WIDE = (torch.float64, torch.complex128)
_CUTS = (ast.Mod, ast.FloorDiv, ast.Pow, ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor)
_CHANGED = re.compile(r"\w+ got (\S+) in one call and (\S+) in the next")
_HELD = 2**24  # whole numbers up to here are exact in float32
_DIVIDES = (ast.Div, *_CUTS)
_WHOLE = ("floor", "ceil", "comb", "gcd", "isqrt", "factorial")  # of ``math``
_MADE = re.compile(
    r"(?<!lr = )(?<!lr_in = )\b(torch\.(?:zeros\(\(\)|full\(\(\), float\((?:[^()`]|\([^()`]*\))*\)))"
    r"(?=, device=[^,()`]+\))"
)  # a tensor of one number in words, but for rates, which kernels of optimizers have in float32


def all_wide(tensors: Iterable[Any]) -> bool:
    """Whether tensors, or what is known of them, are of float64: one of float32 would lose digits of theirs."""
    real = {each.dtype for each in tensors if is_real(each)}
    return bool(real) and real <= {*_WIDE}


def is_real(value: Any) -> bool:
    """Whether it is a tensor, or what is known of one, of numbers with a fraction."""
    known = isinstance(value, (torch.Tensor, Form))
    return known and (value.dtype.is_floating_point or value.dtype.is_complex)


def read_there(node: ast.AST, forms: Mapping[str, Form], attributes: Mapping[str, Any]) -> list[Any]:
    """What is known of the tensors that a statement reads, by local names and attributes."""
    paths = {path_of(each) for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute))}
    known = [forms.get(path) for path in paths]
    known += [attributes.get(path.rpartition(".")[2]) for path in paths if "." in path]
    return [each for each in known if isinstance(each, (torch.Tensor, Form))]


def is_cut(node: ast.expr, *, given: bool) -> bool:
    """``self.power % 65521`` and ``2 ** k``: arithmetic that Python does with as many digits as it takes.

    ``given``: a call has it as an argument, where a whole number may be a size; its names stand for it there.
    """
    if given and not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        return False
    return isinstance(node, ast.BinOp) and any(
        isinstance(each, ast.BinOp) and isinstance(each.op, _DIVIDES) for each in ast.walk(node)
    )


def with_digits(words: str, tensors: Iterable[Any]) -> str:
    """Words by which numbers are kept in tensors: in a program of float64 with its digits."""
    parts = words.split("`")
    if not any(map(_MADE.search, parts[1::2])) or not all_wide(tensors):
        return words
    parts[1::2] = [_MADE.sub(r"\1, dtype=torch.float64", each) for each in parts[1::2]]
    return "`".join(parts)


def is_fraction(node: ast.AST, within: ast.AST, deep: int = 2) -> bool:
    """Whether an expression is surely no whole number, by its constants and what gives its names their values."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float)
    if isinstance(node, ast.BinOp):
        each = (is_fraction(side, within, deep) for side in (node.left, node.right))
        return isinstance(node.op, ast.Div) or (not isinstance(node.op, ast.FloorDiv) and any(each))
    if isinstance(node, ast.UnaryOp):
        return not isinstance(node.op, ast.Not) and is_fraction(node.operand, within, deep)
    if isinstance(node, ast.IfExp):
        return is_fraction(node.body, within, deep) or is_fraction(node.orelse, within, deep)
    if isinstance(node, ast.Call):
        module, _, name = path_of(node.func).rpartition(".")
        return name == "float" or (module == "math" and name not in _WHOLE)
    if not isinstance(node, ast.Name) or not deep:
        return False
    every = [n for n in ast.walk(within) if isinstance(n, (ast.Assign, ast.AugAssign))]
    own = [
        n for n in every if node.id in (path_of(t) for t in (n.targets if isinstance(n, ast.Assign) else [n.target]))
    ]
    return any(is_fraction(n.value, within, deep - 1) for n in own)


def is_wide(place: Place) -> bool:
    """Whether the tensors that a statement reads are of float64, as far as is known."""
    return all_wide(_met(place))


def zeros_for(place: Place) -> str:
    """A tensor for a number that a statement is given, as it would be written: with the digits that it has there."""
    met, given = _met(place), _CHANGED.search(place.failure.message)
    values = [each for each in given.groups() if each] if given is not None else []
    whole = bool(values) and all(re.fullmatch(r"-?\d+", each) for each in values)
    counts = bool(met) and not any(map(is_real, met))  # float32 holds no count beyond 2 ** 24, and no rest of one
    if whole and (counts or any(abs(int(each)) >= _HELD for each in values)):
        kind = "torch.long"
    elif any(each.endswith(("j", "j)")) for each in values):
        kind = "torch.complex128" if all_wide(met) else "torch.complex64"
    else:
        kind = "torch.float64" if all_wide(met) else ""
    return f"torch.zeros((){', dtype=' * bool(kind)}{kind}, device={place.device})"


def _met(place: Place) -> list[Any]:
    """What is known of the tensors that a statement reads."""
    names = names_in(place.statement)
    known = {name: form for name in names if (form := place.form(name)) is not None}
    given = [place.given[name] for name in names if isinstance(place.given.get(name), torch.Tensor)]
    return [*read_there(place.statement, known, place.attributes), *given]
