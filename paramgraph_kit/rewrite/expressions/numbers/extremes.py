"""``max`` and ``min`` of Python's over what the device has found."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.hosted import is_given
from paramgraph_kit.rewrite.expressions.numbers.filled import READ
from paramgraph_kit.rewrite.expressions.numbers.rounded_later import round_there
from paramgraph_kit.rewrite.source.edits import Edit, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, target_of

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
_AT_TIMES = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NO_NUMBER = ("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "pow", "acos", "asin", "atanh", "acosh", "div")
_WHOLE = ("int", "round", "len", "math.ceil", "math.floor", "math.trunc")


def _of_all(place: Place, call: ast.Call) -> str:
    """``max(norm(r) for r in x)``, whose numbers the host compares, as one of all that are stacked."""
    given = call.args[0] if len(call.args) == 1 and not call.keywords else None
    if not isinstance(given, (ast.GeneratorExp, ast.ListComp)) or any(each.ifs for each in given.generators):
        return ""
    text = place.text(given)
    text = text[1:-1] if text[0] in "([" else text
    return f"torch.stack([{text}]).{call.func.id}()" if isinstance(call.func, ast.Name) else ""


def _is_whole(place: Place, there: list[ast.expr]) -> bool:
    """Whether what the device has found are whole numbers, of which none is nan."""
    read = READ.search(place.failure.message)
    forms = [place.tensors.get(each.id) if isinstance(each, ast.Name) else None for each in there]
    whole = [form is not None and not form.dtype.is_floating_point for form in forms]
    if len(there) == 1 and any(isinstance(n, ast.Compare) for n in ast.walk(there[0])):
        return True  # how many there are
    if all(isinstance(each, ast.Call) and path_of(each.func) in _WHOLE and len(each.args) == 1 for each in there):
        return True
    if all(_is_cut(place, each) for each in there):
        return True
    return all(whole) or (len(there) == 1 and read is not None and "int" in read["dtype"])


def _is_cut(place: Place, node: ast.expr) -> bool:
    """Whether all that gave a name a value before is cut to whole numbers, as of ``zero = (...).round().long()``."""
    while isinstance(node, ast.Call) and called(node) in ("clamp", "min", "max"):  # which leave them whole
        tensor = node.func.value if isinstance(node.func, ast.Attribute) else None
        parts = [tensor] if tensor is not None else [each for each in node.args if isinstance(each, ast.Name)]
        if len(parts) != 1:
            return False
        node = parts[0]
    name = node.id if isinstance(node, ast.Name) else ""
    function, line = place.source.function_of(place.statement), place.statement.lineno
    every = [n for part in function.body for n in within(part)] if function is not None else []
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
    before = [place.source.parents.get(n) for n in stores if n.lineno < line]
    made = [n.value if isinstance(n, ast.Assign) and len(n.targets) == 1 else None for n in before]
    in_loop = any(isinstance(above, (ast.For, ast.While)) for above in place.source.above(place.statement))
    return bool(made) and not in_loop and all(isinstance(n, ast.Call) and called(n) in ("long", "int") for n in made)


def _of_two(place: Place, name: str, one: str, other: str) -> str:
    """The larger or the smaller of two; Python's keeps the first one where the second is nan."""
    sign = ">" if name == "max" else "<"
    if one.isidentifier() and other.isidentifier():
        return f"torch.where({other} {sign} {one}, {other}, {one})"
    return f"torch.{name}imum({one}, {other})"


def _named(place: Place, call: ast.Call, there: list[ast.expr]) -> tuple[list[str], list[str]]:
    """The texts of what is compared, and lines that name those which may be nan, and what they are compared with."""
    texts = [place.text(_read_of(each)) for each in there]
    if len(there) < 2 or not any(map(_may_be_nan, there)) or not _stands_alone(place, call):
        return texts, []
    lines, taken = list[str](), set(place.taken)
    for at, text in enumerate(texts):
        if not text.isidentifier():
            texts[at] = fresh("other", taken)
            taken.add(texts[at])
            lines.append(f"{texts[at]} = {text}")
    return texts, lines


def _may_be_nan(node: ast.expr) -> bool:
    """Whether an expression divides, or takes a root or a logarithm: ``(a**2 - b**2) ** 0.5``."""
    parts = [*ast.walk(node)]
    broken = (n.right for n in parts if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow))
    divides = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div) for n in parts)
    calls = any(isinstance(n, ast.Call) and called(n) in _NO_NUMBER for n in parts)
    return divides or calls or any(not isinstance(getattr(n, "value", None), int) for n in broken)


def _stands_alone(place: Place, call: ast.Call) -> bool:
    """Whether what a call is given may be found ahead of its statement: it is always asked for, and nothing draws."""
    if not isinstance(place.statement, _SIMPLE) or "rand" in place.text(place.statement):
        return False
    inside = {*ast.walk(place.statement)}
    return not any(above in inside and isinstance(above, _AT_TIMES) for above in place.source.above(call))


def _is_kept(place: Place, known: ast.expr) -> bool:
    """``self.low`` of ``self.low = min(self.low, x.min().item())``."""
    target = target_of(place.statement)
    return isinstance(known, ast.Attribute) and target is not None and place.text(target) == place.text(known)


def _read_of(node: ast.expr) -> ast.expr:
    """The tensor of ``float(x.min())``, whose number the host would have."""
    reads = isinstance(node, ast.Call) and path_of(node.func) == "float" and len(node.args) == 1
    return node.args[0] if reads and isinstance(node, ast.Call) else node


def larger_on_device(place: Place) -> list[Edit]:
    """``max(x, 1.0)`` becomes ``x.clamp(min=1.0)``, and ``max(x, y)`` becomes ``torch.maximum(x, y)``."""
    found = []
    for call in place.calls("max", "min"):
        if isinstance(call.func, ast.Name) and call.func.id not in place.space and (text := _of_all(place, call)):
            found.append(place.source.replace(call, text))
            continue
        several = not call.keywords and len(call.args) > 1 and not any(isinstance(n, ast.Starred) for n in call.args)
        if not isinstance(call.func, ast.Name) or not several:
            continue
        known = [each for each in call.args if is_given(place, each)]
        there = [each for each in call.args if each not in known]
        if not there or len(known) > 1:
            continue
        name = "min" if called(call) == "max" else "max"
        texts, lines = _named(place, call, there) if not known else ([place.text(_read_of(n)) for n in there], [])
        found += [place.source.before(place.statement, lines)] if lines else []
        text = texts[0]
        for other in texts[1:]:
            text = _of_two(place, called(call), text, other)
        if known:
            x = place.source.bracketed(_read_of(there[0])).replace(".item()", "") if len(there) == 1 else text
            text = f"{x}.clamp({name}={place.text(known[0])})"
            if len(there) == 1 and _is_kept(place, known[0]) and call.args[0] is known[0]:
                held, sign = (
                    place.text(known[0]),
                    ">" if called(call) == "max" else "<",
                )  # a tensor from the next one on
                text = f"torch.where({x} {sign} {held}, {x}, {held})"
            elif call.args[0] is known[0] and not _is_whole(place, there):  # Python's keeps its first if it meets nan
                infinite = 'posinf=float("inf")' if name == "min" else 'neginf=-float("inf")'
                text += f".nan_to_num({place.text(known[0])}, {infinite})"
        found.append(place.source.replace(call, text))
    return [*found, *round_there(place)] if found else []
