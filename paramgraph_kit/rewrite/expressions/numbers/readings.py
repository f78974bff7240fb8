"""How a number, or a tensor, comes to the host: ``x.item()``, ``x.cpu().item()``, ``float(x.cpu())``, ``x.cpu()``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from paramgraph_kit.rewrite.source.edits import Edit, heads, path_of
from paramgraph_kit.rewrite.source.place import NUMBER, Place, called
from paramgraph_kit.rewrite.source.pure import is_pure
from paramgraph_kit.rewrite.source.written_after import written_after

_ONE = re.compile(r" of \w+\[\]")
# Functions of numpy's and of math that torch has by the same name.
PERIODIC = ("cos", "sin", "tan")  # float32 has few digits of what is left of a large angle
_SAME = frozenset(
    """sqrt exp log log2 log10 log1p expm1 sin cos tan tanh abs floor ceil isnan isinf isfinite sign square""".split()  # noqa: SIM905
)
# What gives a tensor of its own, which nobody writes by another name.
_ANEW = frozenset(
    ("sort", "topk", "argsort", "softmax", "log_softmax", "cumsum", "argmax", "argmin", "sum", "mean", "max", "min")
)
_OWN = frozenset("sum mean std var norm abs sqrt exp log max min amax amin argmax argmin prod median any all".split())  # noqa: SIM905


def read_of(place: Place, node: ast.Call) -> ast.expr | None:
    """``x`` of ``x.item()``, ``float(x)``, ``x.cpu().item()`` and, of one number, ``x.tolist()``; else None."""
    if isinstance(node.func, ast.Name) and node.func.id in ("float", "int") and len(node.args) == 1:
        inner = node.args[0]
        return _behind(place, inner, read=False) or inner
    return _behind(place, node, read=True)


def only_around(place: Place, node: ast.Call) -> list[Edit]:
    """``float(np.sqrt(x.item()))``, of which only what is inside is left; nothing where it reads itself."""
    if not isinstance(node.func, ast.Name) or node.func.id != "float" or len(node.args) != 1:
        return []
    inner = node.args[0]
    calls = [n for n in ast.walk(inner) if isinstance(n, ast.Call)]
    reads = any(read_of(place, n) is not None for n in calls if n is not inner)
    if not reads or not isinstance(inner, ast.Call) or not is_computed(place, inner):
        return []
    whole, part = place.source.replace(node, ""), place.source.replace(inner, "")
    return [
        Edit(whole.line, whole.column, part.line, part.column, ""),
        Edit(part.end_line, part.end_column, whole.end_line, whole.end_column, ""),
    ]


def rounded(place: Place, node: ast.Call) -> ast.expr | None:
    """``x`` of ``round(x.item())`` and ``int(round(x.item()))``; else None. Both round to the even one of two."""
    if not isinstance(node.func, ast.Name) or len(node.args) != 1 or node.keywords:
        return None
    inner = node.args[0]
    if node.func.id == "int" and isinstance(inner, ast.Call):
        return rounded(place, inner) if called(inner) == "round" else None
    read = node.func.id == "round" and "round" not in place.space and isinstance(inner, ast.Call)
    return read_of(place, inner) if read and isinstance(inner, ast.Call) else None


def around_rounded(place: Place, node: ast.Call) -> list[Edit]:
    """``int(round(-low.item() / scale))`` and ``int(n.item() * 0.3)``, of which what is inside is rounded there."""
    name, inner = path_of(node.func), node.args[0] if len(node.args) == 1 else None
    if name == "int" and isinstance(inner, ast.Call) and path_of(inner.func) == "round":
        name, inner = "round", inner.args[0] if len(inner.args) == 1 and not inner.keywords else None
    if name not in ("int", "round") or name in place.space or node.keywords or inner is None:
        return []
    parts = list(ast.walk(inner)) if isinstance(inner, (ast.BinOp, ast.UnaryOp)) else []
    reads = [n for n in parts if isinstance(n, ast.Call) and read_of(place, n) is not None]
    known = {n for each in reads for n in ast.walk(each)}
    others = [n for n in parts if isinstance(n, ast.Call) and n not in known]
    if not reads or not all(_is_of_two(place, each) for each in others):
        return []
    whole, part = place.source.replace(node, ""), place.source.replace(inner, "")
    then = ".round().long()" if name == "round" else ".long()"
    return [
        Edit(whole.line, whole.column, part.line, part.column, "("),
        Edit(part.end_line, part.end_column, whole.end_line, whole.end_column, f"){then}"),
    ]


def _is_of_two(place: Place, call: ast.Call) -> bool:
    """Whether a call is ``max(scale, 1e-8)`` or ``min(...)`` of plain numbers, which others know where it is none."""
    name, plain = path_of(call.func), (ast.Name, ast.Attribute, ast.Constant)
    return name in ("max", "min") and name not in place.space and all(isinstance(n, plain) for n in call.args)


def _behind(place: Place, node: ast.expr, *, read: bool) -> ast.expr | None:
    """What is read by a chain of ``.cpu()``, ``.numpy()`` and ``.item()``; None where it is no such chain."""
    one, ended, inner = _ONE.search(place.failure.message) is not None, not read, node
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
        name = inner.func.attr
        if not (inner.args or inner.keywords) and (name == "item" or (one and name in ("tolist", "numpy"))):
            ended = True
        elif not (one and is_cpu(place, inner)):
            break
        inner = inner.func.value
    return inner if ended and inner is not node else None


def is_cpu(place: Place, call: ast.Call) -> bool:
    """Whether a call is ``x.cpu()`` or ``x.to("cpu")``."""
    if called(call) == "cpu":
        return not call.args
    given = call.args[0] if called(call) == "to" and len(call.args) == 1 and not call.keywords else None
    return given is not None and place.text(given) in ('"cpu"', "'cpu'", 'torch.device("cpu")', "torch.device('cpu')")


def is_computed(place: Place, call: ast.Call) -> bool:
    """Whether a call is ``math.exp(...)``, or ``np.exp(...)`` of what is read there."""
    if not isinstance(call.func, ast.Attribute):
        return False
    library = place.text(call.func.value)
    reads = (n for each in call.args for n in ast.walk(each) if isinstance(n, ast.Call))
    of_numpy = library in ("np", "numpy") and call.func.attr in _SAME and len(call.args) == 1
    of_math = library == "math" and not all(_is_constant(place, each) for each in call.args)
    return of_math or (of_numpy and any(read_of(place, n) is not None for n in reads))


def _is_constant(place: Place, node: ast.expr) -> bool:
    """Whether an expression has numbers alone, and names for such: ``2 * math.pi``, a root of the host."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - {"math", "np", "numpy"}
    return all(not place.is_local(each) and isinstance(place.space.get(each), NUMBER) for each in names)


def of_torch(place: Place, call: ast.Call) -> list[Edit]:
    """``torch.exp(...)`` for ``math.exp(...)``; what ``math`` rounds is a whole number."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    found = [place.source.replace(owner, "torch")]
    if place.text(owner) == "math" and called(call) in ("ceil", "floor", "trunc"):
        found.append(written_after(place.source, call, ".long()"))
    if called(call) in PERIODIC and (counts := [*_counts(place, call)]):
        found += [
            *(written_after(place.source, n, ".double()") for n in counts),
            written_after(place.source, call, ".float()"),
        ]
    return found


def _counts(place: Place, call: ast.Call) -> Iterator[ast.expr]:
    """Whole numbers that a rewrite keeps on the device: ``self.t`` of ``math.cos(1.2 * self.t)``.

    In float32 an angle that a count makes has fewer and fewer digits, and its cosine is another one.
    """
    for node in (n for n in ast.walk(call) if isinstance(n, (ast.Name, ast.Attribute)) and path_of(n)):
        path = path_of(node)
        made = (n.value for n in place.source.parents if isinstance(n, ast.Assign) and path_of(n.targets[0]) == path)
        calls = (n for n in made if isinstance(n, ast.Call) and path_of(n.func) == "torch.tensor" and n.args)
        if any(isinstance(n.args[0], ast.Constant) and type(n.args[0].value) is int for n in calls):
            yield node


def divided(place: Place, call: ast.Call) -> list[Edit]:
    """``divmod(i.item(), n)`` as a quotient and a rest of the device."""
    one, other = call.args
    if not isinstance(one, ast.Call) or called(one) not in ("item", "int"):
        return []
    value = one.func.value if isinstance(one.func, ast.Attribute) else one.args[0] if one.args else None
    if value is None:
        return []
    x, by = place.source.bracketed(value), place.source.bracketed(other)
    return [place.source.replace(call, f"({x} // {by}, {x} % {by})")]


def divided_by_name(place: Place, name: str, nodes: Iterable[ast.AST] | None = None) -> Iterator[Edit]:
    """The same of ``divmod(i, n)``, where ``i`` is what was read; among some nodes, or in the whole function."""
    function = place.source.function_of(place.statement)
    every = nodes if nodes is not None else ast.walk(function) if function is not None else ()
    for call in (n for n in every if isinstance(n, ast.Call) and len(n.args) == 2):
        if path_of(call.func) == "divmod" and path_of(call.args[0]) == name and is_pure(place, call.args[1]):
            by = place.source.bracketed(call.args[1])
            yield place.source.replace(call, f"({name} // {by}, {name} % {by})")


def is_given_to_torch(place: Place, call: ast.Call) -> bool:
    """Whether ``torch.tensor(0.0)`` is written where a function of torch's is given it: ``torch.where(m, x, ...)``."""
    above = place.source.parents.get(call)
    if not isinstance(above, ast.Call) or call not in above.args or len(call.args) != 1:
        return False
    return path_of(above.func) in ("torch.where", "torch.maximum", "torch.minimum", "torch.max", "torch.min")


def reduce_there(place: Place) -> list[Edit]:
    """``sum(x.tolist())`` becomes ``x.sum()``, and ``np.mean(x.cpu().numpy())`` becomes ``x.mean()``."""
    found = [*_of_array(place)]
    for call in place.calls("sum", "max", "min"):
        given = call.args[0] if len(call.args) == 1 and not call.keywords else None
        if not isinstance(call.func, ast.Name) or call.func.id in place.space or not isinstance(given, ast.Call):
            continue
        row = re.search(r" of \w+\[\d+\]", place.failure.message) is not None
        if called(given) == "tolist" and isinstance(given.func, ast.Attribute) and row:
            inner: ast.expr = given.func.value
            while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and is_cpu(place, inner):
                inner = inner.func.value
            found.append(place.source.replace(call, f"{place.source.bracketed(inner)}.{called(call)}().detach()"))
    return found


def _of_array(place: Place) -> Iterator[Edit]:
    """What numpy makes one number of: ``np.max(x.cpu().numpy())``, ``x.cpu().numpy().max()``."""
    for call in place.calls("mean", "sum", "max", "min"):
        if not isinstance(call.func, ast.Attribute) or call.keywords:
            continue
        of_numpy = place.text(call.func.value) in ("np", "numpy")
        inner = call.args[0] if of_numpy and len(call.args) == 1 else call.func.value
        if bool(call.args) is not of_numpy or not isinstance(inner, ast.Call) or called(inner) != "numpy":
            continue
        while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            if called(inner) not in ("numpy", "detach") and not is_cpu(place, inner):
                break
            inner = inner.func.value
        yield place.source.replace(call, f"{place.source.bracketed(inner)}.{called(call)}().detach()")


def count_there(place: Place) -> list[Edit]:
    """``len(m.nonzero())`` and ``len(x[x > 0])`` become ``torch.count_nonzero(...)``, without a list of the places."""
    node, found = place.statement, []
    for call in (n for n in heads(node) if isinstance(n, (ast.Call, ast.Subscript))):
        if (of := _counted(place, call)) is not None:
            found.append(place.source.replace(call, f"torch.count_nonzero({place.text(of)})"))
    if found or not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return found
    of, name = _listed(place, node.value), node.targets[0].id
    function = place.source.function_of(node)
    every = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name] if function is not None else []
    asked = [place.source.parents.get(n) for n in every if isinstance(n.ctx, ast.Load)]
    lengths = [n for n in asked if isinstance(n, ast.Call) and called(n) == "len" and isinstance(n.func, ast.Name)]
    if of is None or not asked or len(lengths) != len(asked) or len(asked) != len(every) - 1:
        return []
    return [
        place.source.replace(node.value, f"torch.count_nonzero({place.text(of)})"),
        *(place.source.replace(each, name) for each in lengths),
    ]


def _counted(place: Place, node: ast.Call | ast.Subscript) -> ast.expr | None:
    """What is counted by the length of a list of its places."""
    if isinstance(node, ast.Subscript):
        shape = node.value
        if not isinstance(shape, ast.Attribute) or shape.attr != "shape" or place.text(node.slice) != "0":
            return None
        return _listed(place, shape.value)
    if isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
        return _listed(place, node.args[0])
    of_first = called(node) == "size" and len(node.args) == 1 and place.text(node.args[0]) == "0"
    return _listed(place, node.func.value) if of_first and isinstance(node.func, ast.Attribute) else None


def _listed(place: Place, node: ast.expr) -> ast.expr | None:
    """``m`` of ``m.nonzero()``, ``torch.nonzero(m)`` and of ``x[m]`` where ``m`` is a comparison."""
    if isinstance(node, ast.Subscript):
        return node.slice if isinstance(node.slice, ast.Compare) and len(node.slice.ops) == 1 else None
    if not isinstance(node, ast.Call) or called(node) != "nonzero" or node.keywords:
        return None
    if path_of(node.func) == "torch.nonzero":
        return node.args[0] if len(node.args) == 1 else None
    return node.func.value if isinstance(node.func, ast.Attribute) and not node.args else None


def stay_there(place: Place) -> list[Edit]:
    """``y = x.cpu()`` stays on the device, where what comes after it can do without the host; a copy stays one."""
    node = place.statement
    value = node.value if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    while isinstance(value, ast.Call) and called(value) in _ANEW and isinstance(value.func, ast.Attribute):
        value = value.func.value  # of `x.cpu().sort()`, whose result is another tensor anyway
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or not is_cpu(place, value):
        return []
    if not all(isinstance(each, ast.Name) and place.is_local(each.id) for each in names):
        return []
    inner = value.func.value
    text = place.source.bracketed(inner)
    own = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and called(inner) in _OWN
    own |= isinstance(node, ast.Assign) and value is not node.value
    return [place.source.replace(value, text if own else f"{text}.clone()")]
