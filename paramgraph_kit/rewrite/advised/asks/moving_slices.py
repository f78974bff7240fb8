"""Advice for what the host finds before a launch, and for parts of tensors that it bounds with numbers that move."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.advised.asks.cut_here import decided_here
from paramgraph_kit.rewrite.source.edits import names_in
from paramgraph_kit.rewrite.source.place import Place


def moving_slice(place: Place, ends: ast.Slice, made: dict[str, ast.Assign]) -> str:
    """``x[:, a : a + 4] = v`` and ``x[:, a : a + 4]`` where ``a`` is the host's."""
    above = place.source.parents.get(ends)
    whole = place.source.parents.get(above) if isinstance(above, ast.Tuple) else above
    if not isinstance(whole, ast.Subscript):
        return ""
    x, lines, tests = place.text(whole.value), list[str](), list[str]()
    for dim, part in enumerate(above.elts if isinstance(above, ast.Tuple) else [ends]):
        if not isinstance(part, ast.Slice) or not names_in(part) & made.keys():
            continue
        low, high = (place.text(end) if end is not None else "" for end in (part.lower, part.upper))
        for name in made:
            low, high = (_renamed(text, name, f"{name}_in") for text in (low, high))
        at = f"at_{len(lines) + 1}" if lines else "at"
        places = f"torch.arange({x}.shape[{dim}], device={x}.device).view(-1, *[1] * ({x}.dim() - {dim + 1}))"
        lines.append(f"`{at} = {places}`")
        tests += [f"({at} {sign} {end})" for sign, end in ((">=", low), ("<", high)) if end]
    node, all_of, test = place.statement, ", ".join(lines), " & ".join(tests)
    if isinstance(node, ast.Assign) and whole in node.targets:
        here = f"here {all_of} and `{x} = torch.where({test}, {place.text(node.value)}, {x})`"
    else:
        here = f"here {all_of}, and all of `{x}` with `torch.where({test}, {x}, 0)`"
    *others, (name, last) = made.items()
    first = "".join(
        f"once `{other}_in = torch.zeros((), dtype=torch.long, device={place.device})`, before each launch "
        f"`{other}_in.fill_({other})` with `{other} = {_own(place, one, other)}` of line {one.lineno}; "
        for other, one in others
    )
    together = isinstance(last.targets[0], ast.Tuple) and not isinstance(last.value, ast.Tuple)
    text = name if together else _own(place, last, name)  # `a, b = draw()` stays as it is, there
    return first + found_before(f"{name}_in", text, "torch.long", place, here, last.lineno)


def with_those_beside(place: Place, ends: ast.Slice, made: dict[str, ast.Assign], names: list[str]) -> list[str]:
    """These names, and those by which other slices of the same part are bounded."""
    above = place.source.parents.get(ends)
    beside = [each for each in above.elts if isinstance(each, ast.Slice)] if isinstance(above, ast.Tuple) else []
    return [name for name in made if name in names or any(name in names_in(each) for each in beside)]


def _own(place: Place, node: ast.Assign, name: str) -> str:
    """What ``y`` is of ``y, x = a, b``."""
    target = node.targets[0]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        names = [place.text(each) for each in target.elts]
        if name in names and len(names) == len(node.value.elts):
            return place.text(node.value.elts[names.index(name)])
    return place.text(node.value)


def _renamed(text: str, name: str, new: str) -> str:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            node.id = new
    return ast.unparse(tree)


def found_before(name: str, text: str, dtype: str, place: Place, here: str, line: int = 0) -> str:
    """That what the host has in a line is written into a tensor before each launch, and what stands ``here`` for it."""
    kind = f", dtype={dtype}" if dtype else ""
    where = f" (line {line})" if line else ""
    if decided_here(place, text):
        return ""  # before the launch it is what the last step left
    return (
        f"the host's `{text}`{where} belongs before each launch, which reads it from a tensor: once "
        f"`{name} = torch.zeros((){kind}, device={place.device})`, before each launch `{name}.fill_({text})`, {here}"
    )
