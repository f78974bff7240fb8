"""Which parts of a condition the host knows without asking the device: `k >= warm_up`, `not verbose`."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from paramgraph_kit.rewrite.source.edits import names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import NUMBER, Place, called, is_number

_READS = ("item", "tolist", "cpu", "numpy", "any", "all", "sum", "equal", "allclose")
_KNOWN = ("len", "size", "numel", "dim", "isinstance", "hasattr", "range", "min", "max", "abs", "round", "int", "bool")
_ASKED = ("shape", "ndim", "dtype", "device")


def is_of_the_host(place: Place, node: ast.expr) -> bool:
    """Whether an expression is one of numbers that are the host's, whenever they were seen, and never read back."""
    return _is_known(place, node, frozenset())


def is_given(place: Place, node: ast.expr) -> bool:
    """Whether an expression is a number of the host's, as far as its names tell."""
    if isinstance(node, ast.BinOp):
        return is_given(place, node.left) and is_given(place, node.right)
    if isinstance(node, ast.UnaryOp):
        return is_given(place, node.operand)
    if isinstance(node, ast.Attribute):
        return node.attr in place.numbers or path_of(node) in ("math.pi", "math.e", "np.pi")
    if isinstance(node, ast.Name):
        if place.is_local(node.id):
            return _is_argument(place, node.id) or is_of_the_host(place, node)
        return isinstance(place.space.get(node.id), NUMBER)
    if isinstance(node, ast.Subscript):
        return _is_option(place, node)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Call) and called(node) in ("len", "size", "numel"))


def _is_option(place: Place, node: ast.expr) -> bool:
    """Whether an expression is an option of an optimizer's group that no line sets: ``group["betas"][0]``."""
    while isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and type(node.slice.value) is int:
        node = node.value
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
        return False
    key, every = node.slice.value, [*place.source.parents]
    loops = [n for n in every if isinstance(n, ast.For) and path_of(n.iter).rpartition(".")[2] == "param_groups"]
    if (
        not isinstance(key, str)
        or key in ("params", "lr")
        or path_of(node.value) not in {path_of(n.target) for n in loops}
    ):
        return False  # a rate may be a tensor
    stored = (n for n in every if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
    return not any(isinstance(n.slice, ast.Constant) and n.slice.value == key for n in stored)


def asks_sizes(test: ast.expr) -> bool:
    """Whether a condition is one of sizes alone, and of numbers beside them: ``x.size(1) <= block``."""
    sizes = ("len", "size", "numel", "dim")
    calls = [n for n in ast.walk(test) if isinstance(n, ast.Call)]
    shapes = any(isinstance(n, ast.Attribute) and n.attr in ("shape", "ndim") for n in ast.walk(test))
    return all(called(n) in sizes for n in calls) and (bool(calls) or shapes)


def _is_argument(place: Place, name: str) -> bool:
    """Whether a name is a number that the function was given, and stays that."""
    function = place.source.function_of(place.statement)
    if function is None or name in place.tensors or name not in arguments_of(function):
        return False
    stores = (n for part in function.body for n in ast.walk(part) if isinstance(n, ast.Name) and n.id == name)
    return not any(isinstance(n.ctx, ast.Store) for n in stores)


def is_made_by(place: Place, node: ast.expr, names: Collection[str]) -> bool:
    """Whether arithmetic, `torch.ones(n) * i`, has no tensors but those that functions of torch make in it."""
    if isinstance(node, ast.BinOp):
        return is_made_by(place, node.left, names) and is_made_by(place, node.right, names)
    if isinstance(node, ast.UnaryOp):
        return is_made_by(place, node.operand, names)
    if isinstance(node, ast.Call):
        return names_in(node.func) == {"torch"} and called(node) in names
    return is_number(node) or is_given(place, node) or (isinstance(node, ast.Name) and node.id in place.plain)


def _is_known(place: Place, node: ast.expr, above: frozenset[str]) -> bool:
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    told = [n for n in calls if not (n.args or n.keywords or place.local(n))]  # a setting, as it was a number
    if any(called(n) in _READS or (called(n) not in _KNOWN and n not in told) for n in calls):
        return False
    inside = {part for n in told for part in ast.walk(n)}
    return all(_is_number(place, name, above) for name in _asked(place, node, calls, inside))


def _asked(place: Place, node: ast.expr, calls: list[ast.Call], told: set[ast.AST]) -> Iterator[str]:
    """The names whose values an expression needs: of `x.shape[0]` and `len(x)` none, and of functions none."""
    functions = {n.func for n in calls}
    for each in (n for n in ast.walk(node) if isinstance(n, ast.Name) and n not in told):
        outer = place.source.parents.get(each)
        sized = isinstance(outer, ast.Attribute) and outer.attr in (*_ASKED, "size", "numel", "dim")
        if not sized and each not in functions and not (isinstance(outer, ast.Call) and called(outer) == "len"):
            yield each.id if not isinstance(outer, ast.Attribute) else ""


def _is_number(place: Place, name: str, above: frozenset[str]) -> bool:
    if not name:
        return False
    if not place.is_local(name):
        return isinstance(place.space.get(name), (*NUMBER, str, type(None)))
    function = place.source.function_of(place.statement)
    if function is None or name not in place.plain or name in place.tensors or name in place.seen:
        return False
    if name in above:
        return True  # of itself, in the rounds of a loop: what else gives it its value is looked at anyway
    made = list(_values_of(function, name))
    known = name in arguments_of(function) or bool(made)
    return known and all(value is not None and _is_known(place, value, above | {name}) for value in made)


def _values_of(function: ast.AST, name: str) -> Iterator[ast.expr | None]:
    """What gives a local name its value; None where that is not told."""
    for node in (n for part in getattr(function, "body", []) for n in within(part)):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    yield node.value
                elif isinstance(target, (ast.Tuple, ast.List)) and name in stored([target]):
                    yield _one_of(target, node.value, name)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            yield node.value
        elif isinstance(node, ast.For) and name in stored([node.target]):
            counted = isinstance(node.iter, ast.Call) and called(node.iter) == "range"
            yield node.iter if counted and isinstance(node.target, ast.Name) else None
        elif isinstance(node, (ast.NamedExpr, ast.withitem, ast.ExceptHandler)) and name in _bound(node):
            yield None


def _one_of(target: ast.Tuple | ast.List, value: ast.expr, name: str) -> ast.expr | None:
    """What one of several names is given."""
    if isinstance(value, ast.Attribute) and value.attr == "shape":
        return ast.Constant(0)
    every = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else []
    found = [each for to, each in zip(target.elts, every, strict=False) if isinstance(to, ast.Name) and to.id == name]
    return found[0] if len(found) == 1 else None


def _bound(node: ast.NamedExpr | ast.withitem | ast.ExceptHandler) -> set[str]:
    if isinstance(node, ast.NamedExpr):
        return {node.target.id}
    if isinstance(node, ast.withitem):
        return stored([node.optional_vars]) if node.optional_vars is not None else set()
    return {node.name} if node.name else set()
