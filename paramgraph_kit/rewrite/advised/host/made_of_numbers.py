"""Advice for tensors that a helper makes of a number, where words give that helper a tensor for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from paramgraph_kit.rewrite.expressions.decisions.written import scaled_by
from paramgraph_kit.rewrite.source.edits import Function, heads, names_in, path_of
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called

ANSWERED = "as a number among its arguments, of which each has a graph"
_HERE = re.compile(r"`(\w+)` for `([\w.]+)`")
_MAKES = ("torch.tensor", "torch.as_tensor")


def of_what_is_given(place: Place, names: Sequence[str]) -> str:
    """``torch.tensor(2 * t, device=device)`` asks a tensor `t` for its number: what is written for it then."""
    found = list[tuple[str, str]]()
    for node in ast.walk(place.statement):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in _MAKES or len(node.args) != 1:
            continue
        keywords = [place.text(k) for k in node.keywords if k.arg in ("dtype", "device")]
        if not names_in(node.args[0]) & {*names} or len(keywords) < len(node.keywords):
            continue
        listed = isinstance(node.args[0], ast.List | ast.Tuple)
        each = node.args[0].elts if isinstance(node.args[0], ast.List | ast.Tuple) else [node.args[0]]
        if any(isinstance(part, ast.List | ast.Tuple | ast.Starred | ast.comprehension) for part in each):
            return ""  # of several dimensions
        made = [f"torch.as_tensor({', '.join([place.text(part), *keywords])})" for part in each]
        found.append((f"torch.stack([{', '.join(made)}])" if listed else made[0], place.text(node)))
    return "".join(f", and here `{new}` for `{old}`, which takes a number and a tensor alike" for new, old in found)


def given_by_callers(place: Place, text: str, told: Sequence[tuple[Place, str]]) -> str:
    """The same of a number that a helper is given, where other words give its caller a tensor for that number."""
    function = place.source.function_of(place.statement)
    if not text.endswith(ANSWERED) or function is None or function.name == place.entry:
        return text
    names = {*arguments_of(function)} & names_in(place.statement)
    for other, words in told:
        if other is place or other.source is not place.source:
            continue
        held = {number: tensor for tensor, number in _HERE.findall(words)}
        for call in (n for n in ast.walk(other.statement) if isinstance(n, ast.Call) and called(n) == function.name):
            given = _given(function, call)
            takes = sorted(name for name in names if name in given and names_in(given[name]) & held.keys())
            if takes and (made := of_what_is_given(place, takes)):
                tensors = sorted({held[n] for name in takes for n in names_in(given[name]) & held.keys()})
                return f"line {call.lineno} gives `{'`, `'.join(tensors)}` to `{function.name}` then{made}"
    return text


def scaled_by_tensors(place: Place, text: str) -> str:
    """``v.add_(m, alpha=1 - d)`` asks a tensor for its number, where words put one there: what is written then."""
    held = {number: tensor for tensor, number in _HERE.findall(text)}
    for call in (n for n in heads(place.statement) if isinstance(n, ast.Call)):
        by = next((each.value for each in call.keywords if each.arg in ("alpha", "value")), None)
        parts = [n for n in ast.walk(by) if isinstance(n, ast.expr)] if by is not None else []
        read = {path: held[path] for path in map(path_of, parts) if path in held}
        if by is not None and read and (given := scaled_by(place, call, by)):
            new = f"{place.text(call.func)}({given})"
            for number, tensor in read.items():
                new = re.sub(rf"(?<![\w.]){re.escape(number)}(?!\w)", tensor, new)
            return f"{text}: a tensor is no `{call.keywords[0].arg}`, so write `{new}`"
    return text


def _given(function: Function, call: ast.Call) -> dict[str, ast.expr]:
    """What a call gives to each argument of a function, where its text tells."""
    own = arguments_of(function)
    own = own[1:] if own[:1] == ["self"] and isinstance(call.func, ast.Attribute) else own
    return {
        **dict(zip(own, call.args, strict=False)),
        **{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg},
    }
