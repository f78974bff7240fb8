"""Where the host needs a number: the ends of slices and ranges, and the sizes of what is made."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from paramgraph_kit.rewrite.expressions.picks.picked import sliced
from paramgraph_kit.rewrite.source.edits import names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called, width_of
from paramgraph_kit.rewrite.source.widths import may_be_negative

DRAWN = ("rand", "randn", "randint", "randperm", "normal")
SHAPES = ("expand", "repeat", "view", "reshape", "tile", "narrow", "unflatten")  # their arguments are numbers
FACTORIES = frozenset(
    """zeros ones empty full arange linspace logspace eye hann_window hamming_window blackman_window bartlett_window
    kaiser_window""".split()  # noqa: SIM905 - shorter so
)
_MAKES = (
    "new_zeros",
    "new_ones",
    "new_empty",
    "new_full",
    "view",
    "reshape",
    "expand",
    "repeat",
    "one_hot",
    "bincount",
)
_OF_ONE = ("one_hot", "bincount", "reshape")  # functions that are given a tensor first
_OPTIONS = ("minlength", "num_classes", "dim_size", "num_nodes", "num_segments", "output_size", "size")
_SEARCHES = frozenset("next min max ceil floor log2 log int round bisect bisect_left bisect_right".split())  # noqa: SIM905
_OF_HOST = (*_SEARCHES, "math", "bisect")
_ARITHMETIC = (ast.Name, ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop, ast.expr_context, ast.IfExp)


def is_size(place: Place) -> bool:
    """Whether a statement's result is where the host needs a number: the end of a slice, of a range."""
    names = numbers_of(place)
    function = place.source.function_of(place.statement)
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Slice) or (isinstance(node, ast.Call) and called(node) in (*FACTORIES, "range")):
            read = names & _sizing(node)
        else:
            read = {name for each in _sizes(node) for name in names & names_in(each)}
        if read and not _is_summed(place, node) and not _is_put(place, node):
            return True
    return False


def _sizing(node: ast.Slice | ast.Call) -> set[str]:
    """The names of a slice or a call that are sizes: of ``torch.full(n, s)`` and ``torch.linspace(a, b, n)`` ``n``."""
    if not isinstance(node, ast.Call):
        return names_in(node)
    given: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
    return {name for each in given if not _is_value(node, each) for name in names_in(each)}


def _is_value(call: ast.Call, part: ast.expr | ast.keyword) -> bool:
    """Whether what a factory is given is a value, and no size."""
    number = call.args.index(part) if isinstance(part, ast.expr) and part in call.args else None
    name = part.arg if isinstance(part, ast.keyword) else None
    if called(call) == "full":
        return number == 1 or name == "fill_value"
    return called(call) in ("linspace", "logspace") and (number in (0, 1) or name in ("start", "end", "base"))


def _is_arithmetic(node: ast.expr) -> bool:
    return all(isinstance(n, _ARITHMETIC) for n in ast.walk(node))


def is_searched(node: ast.expr) -> bool:
    """``next(b for b in SIZES if b >= n)`` and ``math.ceil(n / 8) * 8``: the host finds a number by another one."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    known = all(called(n) in _SEARCHES and path_of(n.func).partition(".")[0] in _OF_HOST for n in calls)
    parts = [n for n in ast.walk(node) if isinstance(n, (ast.Subscript, ast.Attribute))]
    return bool(calls) and known and all(any(n is call.func for call in calls) for n in parts)


def numbers_of(place: Place) -> set[str]:
    """The names that a statement gives values to, and those that others compute of these alone."""
    every = [*ast.walk(place.statement)]
    own = {n for each in every if isinstance(each, ast.comprehension) for n in ast.walk(each.target)}
    names = {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n not in own}
    function = place.source.function_of(place.statement)
    for node in ast.walk(function) if function is not None else ():
        if not isinstance(node, ast.Assign) or node.lineno <= place.statement.lineno:
            continue
        if not names & names_in(node.value) or not (is_searched(node.value) or _is_arithmetic(node.value)):
            continue
        if is_searched(node.value) or not any(_may_be_tensor(place, n) for n in names_in(node.value) - names):
            names = names | {each.id for each in node.targets if isinstance(each, ast.Name)}
    return names


def _may_be_tensor(place: Place, name: str) -> bool:
    """Whether a name is that of a tensor, or of something of the function's of which nobody has seen what it is."""
    if place.tensors or not place.is_local(name):
        return name in place.tensors
    function = place.source.function_of(place.statement)
    made = [n for n in ast.walk(function or place.statement) if isinstance(n, ast.Assign)]
    given = [n.value for n in made if any(isinstance(t, ast.Name) and t.id == name for t in n.targets)]
    return not given or not all(map(_is_number, given))


def _is_number(value: ast.expr) -> bool:
    calls = isinstance(value, ast.Call) and called(value) in ("int", "len")
    return calls or isinstance(value, ast.Constant) or "shape" in {n.attr for n in _attributes(value)}


def _attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    return (n for n in ast.walk(node) if isinstance(n, ast.Attribute))


def _sizes(node: ast.AST) -> Iterator[ast.expr]:
    """The sizes that a call is given."""
    if not isinstance(node, ast.Call):
        return
    yield from (option.value for option in node.keywords if option.arg in _OPTIONS)
    if called(node) in _MAKES:
        function = path_of(node.func).partition(".")[0] in ("torch", "F")
        first = 1 if called(node) in _OF_ONE and (function or isinstance(node.func, ast.Name)) else 0
        yield from node.args[first : 1 if called(node) == "new_full" else None]


def _is_summed(place: Place, node: ast.AST) -> bool:
    """Whether a slice is that of ``x[:n].sum()`` or ``x[:, :n].sum(1)``."""
    above = node
    for _ in range(3 + isinstance(place.source.parents.get(node), ast.Tuple)):
        above = place.source.parents.get(above, above)
    if not isinstance(above, ast.Call) or called(above) not in ("sum", "mean"):
        return False
    part = sliced(above)
    return part is not None and part[1] is node and not may_be_negative(place.source, above, part[1])


def _is_put(place: Place, node: ast.AST) -> bool:
    """Whether a slice has a size of its own: ``x[a : a + 4] = v``, ``x[:, a : a + 4] = v`` or ``x[i : i + 1]``."""
    above = place.source.parents.get(node)
    inside = above if isinstance(above, ast.Tuple) and all(isinstance(n, ast.Slice) for n in above.elts) else node
    above = place.source.parents.get(inside)
    put = isinstance(above, ast.Subscript) and above.slice is inside and isinstance(above.ctx, ast.Store)
    if not isinstance(node, ast.Slice):
        return False
    one = isinstance(above, ast.Subscript) and width_of(place, node) == "1"
    return (put and bool(width_of(place, node))) or one


def is_in_size(place: Place, node: ast.AST) -> bool:
    """Whether an expression is written where the host needs a number."""
    below, above = node, place.source.parents.get(node)
    while isinstance(above, (ast.expr, ast.keyword)):
        makes = isinstance(above, ast.Call) and called(above) in (*FACTORIES, *DRAWN, "range")
        valued = isinstance(above, ast.Call) and isinstance(below, (ast.expr, ast.keyword)) and _is_value(above, below)
        given = above.args if isinstance(above, ast.Call) and isinstance(above.func, ast.Attribute) else []
        shapes = isinstance(above, ast.Call) and called(above) in SHAPES and below in given
        if isinstance(above, ast.Slice) or (makes and not valued) or shapes:
            return True
        below, above = above, place.source.parents.get(above)
    return False


def shape_for(place: Place) -> str:
    """What to take for a size that is read of data: the rows that an index picks, or what a helper may be given."""
    node, function = place.statement, place.source.function_of(place.statement)
    names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    if not isinstance(node, ast.Assign) or function is None or len(names) != 1:
        return ""
    if names[0] in arguments_of(function):
        calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
        at = f", line {calls[0].lineno}, `{place.text(calls[0])}`" if len(calls) == 1 else ""
        return (
            f"it decides a size: give `{function.name}` its `{names[0]}`{at}, from a shape, or from a number among the "
            "arguments, of which each has a graph"
        )
    largest = [n for n in ast.walk(node.value) if isinstance(n, ast.Call) and called(n) in ("max", "amax")]
    plus = isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add)
    if len(largest) != 1 or not plus:
        return ""
    index = names_in(largest[0]) - {"torch"}
    for each in (n for part in function.body for n in within(part) if isinstance(n, ast.Assign)):
        parts = {n.id for t in each.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        if (names_in(each.value) & index or parts & index) and isinstance(each.value, (ast.Name, ast.Subscript)):
            index = index | parts | names_in(each.value)  # `src, dst = edges`
    for pick in (n for part in function.body for n in within(part) if isinstance(n, ast.Subscript)):
        if not names_in(pick.slice) & index or not isinstance(pick.ctx, ast.Load):
            continue
        rows = pick.value
        while isinstance(rows, ast.Call) and len(rows.args) == 1:
            rows = rows.args[0]  # a layer keeps the rows
        known = rows.id if isinstance(rows, ast.Name) and rows.id not in index and place.is_local(rows.id) else ""
        if known and (known := _known_rows(place, known, names[0])):
            return (
                f"it decides a size: `{names[0]} = {known}.shape[0]` has a row for each that `{place.text(pick)}` "
                f"may pick, also for the last ones, which nothing may name today; or give `{names[0]}` as a "
                "number among the arguments, of which each has a graph"
            )
    return ""


def _known_rows(place: Place, name: str, size: str) -> str:
    """What has as many rows as a name, and is there where a size is read; "" for what is made of that size."""
    function = place.source.function_of(place.statement)
    every = [n for part in function.body for n in within(part)] if function is not None else []
    assigns = [n for n in every if isinstance(n, ast.Assign)]
    for _ in assigns:
        made = [n for n in assigns if name in {x.id for t in n.targets for x in ast.walk(t) if isinstance(x, ast.Name)}]
        if len(made) > 1 or (made and size in names_in(made[0].value)):
            return ""
        if not made or made[0].lineno < place.statement.lineno:
            return name
        value = made[0].value
        while isinstance(value, ast.Call) and len(value.args) == 1 and called(value) not in (*FACTORIES, *DRAWN):
            value = value.args[0]  # a layer keeps the rows
        if not isinstance(value, ast.Name):
            return ""
        name = value.id
    return ""


_EACH = frozenset(
    "abs sqrt exp log neg float double half long int detach clamp clamp_min t square pow sigmoid relu".split()  # noqa: SIM905
)


def has_dimensions(place: Place, node: ast.expr) -> bool:
    """Whether a tensor of one number is evidently no scalar: ``y.T @ y``, or what keeps a dimension."""
    if isinstance(node, ast.BinOp):
        product = isinstance(node.op, ast.MatMult) and not any(map(_is_vector_of(place), (node.left, node.right)))
        return product or has_dimensions(place, node.left) or has_dimensions(place, node.right)
    if isinstance(node, ast.UnaryOp):
        return has_dimensions(place, node.operand)
    if isinstance(node, ast.Name):
        form = place.tensors.get(node.id)
        return form is not None and len(form.shape) > 0
    if not isinstance(node, ast.Call):
        return False
    if any(each.arg == "keepdim" and getattr(each.value, "value", False) is True for each in node.keywords):
        return True
    own = isinstance(node.func, ast.Attribute) and called(node) in _EACH
    return own and isinstance(node.func, ast.Attribute) and has_dimensions(place, node.func.value)


def _is_vector_of(place: Place) -> Callable[[ast.expr], bool]:
    """Whether an expression may be a tensor of one dimension, as far as its name tells."""

    def of(node: ast.expr) -> bool:
        form = place.tensors.get(node.id) if isinstance(node, ast.Name) else None
        return isinstance(node, ast.Name) and (form is None or len(form.shape) < 2)

    return of
