"""What numpy computes of values of the device, computed there: ``np.percentile(x.cpu().numpy(), 99)``, ``a.std()``."""

from __future__ import annotations

import ast
from collections.abc import Callable

from paramgraph_kit.rewrite.expressions.numbers.readings import is_cpu
from paramgraph_kit.rewrite.source.edits import Edit, Function, heads, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, target_of

_EACH = {"absolute": "abs", "clip": "clamp"} | {
    name: name
    for name in """abs sqrt exp log log2 log10 log1p expm1 sin cos tan tanh floor ceil sign square isnan isinf isfinite
    maximum minimum""".split()  # noqa: SIM905 - shorter so
}
_OF_AXIS = frozenset("mean sum prod argmax argmin any all".split())  # noqa: SIM905
_ENDS = {"max": "amax", "min": "amin", "amax": "amax", "amin": "amin"}
_SPREAD = frozenset(("std", "var"))
_RANKS = frozenset(("median", "quantile", "percentile"))
_SIZES = ("np.size", "numpy.size")
_ARRAYS = ("np.array", "np.asarray", "numpy.array", "numpy.asarray")
Known = Callable[[ast.expr], str]


def compute_there(place: Place) -> list[Edit]:
    """``t = np.quantile(x.cpu().numpy(), .9)`` is ``torch.quantile``; ``a = x.cpu().numpy()`` stays for ``a.std()``."""
    function, target = place.source.function_of(place.statement), target_of(place.statement)
    value = getattr(place.statement, "value", None)
    base = _base(place, value) if isinstance(value, ast.Call) and isinstance(target, ast.Name) else None
    if function is not None and base is not None and isinstance(target, ast.Name) and isinstance(value, ast.Call):
        return _kept(place, function, target.id, value, base)
    found, done = list[Edit](), set[ast.AST]()
    for node in heads(place.statement):  # the outer ones first
        if node in done or not isinstance(node, ast.Call) or _base(place, node) is not None:
            continue
        text = _rewritten(place, node, lambda each: _read(place, each))
        if text and any(isinstance(n, ast.Call) and _base(place, n) is not None for n in ast.walk(node)):
            found.append(place.source.replace(node, text))
            done |= set(ast.walk(node))
    return found


def ask_its_size(place: Place) -> list[Edit]:
    """``np.size(np.array(x.cpu()))`` is ``x.numel()``, and ``x.cpu().numpy().shape`` is ``x.shape``: both are known."""
    found = []
    for node in heads(place.statement):
        if isinstance(node, ast.Call) and path_of(node.func) in _SIZES and len(node.args) == 1 and not node.keywords:
            copied, text = _copied(place, node.args[0]), "numel()"
        elif isinstance(node, ast.Attribute) and node.attr in ("shape", "size"):
            called_one = isinstance(above := place.source.parents.get(node), ast.Call) and above.func is node
            copied = _copied(place, node.value) if not called_one else None
            text = "shape" if node.attr == "shape" else "numel()"
        else:
            continue
        if copied is not None:
            found.append(place.source.replace(node, f"{place.source.bracketed(copied)}.{text}"))
    return found


def _copied(place: Place, node: ast.expr) -> ast.expr | None:
    """``x`` of ``np.array(x.cpu())`` and of ``x.detach().cpu().numpy()``; None for what is no copy to the CPU."""
    copied = False
    while isinstance(node, ast.Call):
        if path_of(node.func) in _ARRAYS and len(node.args) == 1 and not node.keywords:
            node = node.args[0]
        elif isinstance(node.func, ast.Attribute) and (is_cpu(place, node) or called(node) in ("numpy", "detach")):
            copied, node = copied or is_cpu(place, node), node.func.value
        else:
            break
    return node if copied else None


def _kept(place: Place, function: ast.AST, name: str, value: ast.Call, base: ast.expr) -> list[Edit]:
    """An array under a name, where numbers alone are made of it by what torch has."""
    assert isinstance(function, Function)
    every = [n for part in function.body for n in within(part)]
    if sum(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in every) != 1:
        return []
    reads = {n for n in every if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)}
    edits = [place.source.replace(value, _text_of(place, base))]
    done = set[ast.AST]()
    for node in sorted((n for n in every if isinstance(n, ast.Call)), key=lambda n: -len(list(ast.walk(n)))):
        inside = set(ast.walk(node))
        if node in done or not inside & reads:
            continue
        text = _rewritten(place, node, lambda each: name if isinstance(each, ast.Name) and each.id == name else "")
        if text:
            edits.append(place.source.replace(node, text))
            done |= inside
    return edits if reads and reads <= done else []


def _base(place: Place, node: ast.expr) -> ast.expr | None:
    """``x`` of ``x.detach().cpu().numpy()``; None for what is no array of the device's."""
    inner: ast.expr = node
    if not isinstance(inner, ast.Call) or called(inner) != "numpy" or inner.args or inner.keywords:
        return None
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
        if called(inner) not in ("numpy", "detach") and not is_cpu(place, inner):
            break
        inner = inner.func.value
    return inner


def _text_of(place: Place, base: ast.expr) -> str:
    return f"{place.source.bracketed(base)}.detach()"


def _read(place: Place, node: ast.expr) -> str:
    base = _base(place, node)
    return _text_of(place, base) if base is not None else ""


def _rewritten(place: Place, node: ast.expr, known: Known) -> str:
    """An expression of numpy's as one of torch's, or "" where it is none that torch has."""
    if text := known(node):
        return text
    if isinstance(node, ast.Call) and path_of(node.func) == "float" and len(node.args) == 1 and not node.keywords:
        return _rewritten(place, node.args[0], known)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        text = _rewritten(place, node.operand, known)
        return f"(-{text})" if text else ""
    if isinstance(node, ast.BinOp):
        return _joined(place, [node.left, node.right], known)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:  # a mean of truths is one of numbers
        text = _joined(place, [node.left, node.comparators[0]], known)
        return f"{text}.double()" if text else ""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    if place.text(node.func.value) in ("np", "numpy"):
        given, rest = (node.args[0], node.args[1:]) if node.args else (None, [])
    else:
        given, rest = node.func.value, node.args
    options = {o.arg or "": o.value for o in node.keywords}
    text = _rewritten(place, given, known) if given is not None else ""
    return _of(place, called(node), text, rest, options) if text else ""


def _joined(place: Place, sides: list[ast.expr], known: Known) -> str:
    """Two sides, of which one is numpy's, and the other may be what has no call in it."""
    texts = [_rewritten(place, each, known) for each in sides]
    plain = [not any(isinstance(n, ast.Call) for n in ast.walk(each)) for each in sides]
    if not any(texts) or not all(text or is_plain for text, is_plain in zip(texts, plain, strict=True)):
        return ""
    one, other = (text or place.text(each) for text, each in zip(texts, sides, strict=True))
    first, last = (place.source.replace(each, "") for each in sides)
    lines = place.source.lines[first.end_line - 1 : last.line]
    sign = lines[0][first.end_column : last.column].strip() if len(lines) == 1 else ""
    return f"({one} {sign} {other})" if sign and not set(sign) & set("()") else ""


def _of(place: Place, name: str, text: str, rest: list[ast.expr], options: dict[str, ast.expr]) -> str:
    if name in _EACH:
        return f"{text}.{_EACH[name]}({', '.join(map(place.text, rest))})" if not options else ""
    if name in _RANKS:
        return _rank(place, name, text, rest, options)
    axis = options.pop("axis", None)
    axis, rest = (rest[0], rest[1:]) if rest and axis is None else (axis, rest)
    keeps, less = options.pop("keepdims", None), options.pop("ddof", None)
    if rest or options:
        return ""
    given = [f"dim={place.text(axis)}"] if axis is not None else []
    given += [f"keepdim={place.text(keeps)}"] if keeps is not None and axis is not None else []
    if name in _SPREAD:
        given += [f"correction={place.text(less) if less is not None else 0}"]
    elif less is not None or name not in {*_OF_AXIS, *_ENDS}:
        return ""
    if axis is None and keeps is not None:
        return ""
    name = _ENDS.get(name, name) if axis is not None else name.removeprefix("a") if name in ("amax", "amin") else name
    return f"{text}.{name}({', '.join(given)})"


def _rank(place: Place, name: str, text: str, rest: list[ast.expr], options: dict[str, ast.expr]) -> str:
    """A quantile, which torch takes one of at a time without a tensor of its ranks; numpy's median is the half one."""
    if options or len(rest) != (name != "median"):
        return ""
    flat = f"{text}.flatten()"
    if name == "median":
        return f"torch.quantile({flat}, 0.5)"
    share = " / 100" * (name == "percentile")
    if isinstance(rest[0], (ast.List, ast.Tuple)):
        return f"({', '.join(f'torch.quantile({flat}, {_share(place, each, share)})' for each in rest[0].elts)})"
    return f"torch.quantile({flat}, {_share(place, rest[0], share)})"


def _share(place: Place, rank: ast.expr, divided: str) -> str:
    known = isinstance(rank, ast.Constant) and isinstance(rank.value, (int, float))
    if isinstance(rank, ast.Constant) and known:
        return repr(rank.value / 100) if divided else repr(rank.value)  # type: ignore[operator]  # a number
    return f"{place.source.bracketed(rank)}{divided}"
