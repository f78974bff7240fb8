"""Branches of chance that do much, as ones that only take a value or not, which the device can choose.

``elif`` becomes a branch of its own behind the first, and what a branch draws and computes is drawn and computed in any
case, under other names; of what is drawn for nothing there is a zero.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from paramgraph_kit.rewrite.source.edits import Edit, names_in, path_of
from paramgraph_kit.rewrite.source.hosts import draws
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh
from paramgraph_kit.rewrite.source.pure import is_pure

_WHOLE = frozenset(("randint", "randrange", "integers", "choice", "getrandbits", "int", "binomial", "poisson"))
_OF_NUMBERS = frozenset(("int", "float", "min", "max", "len", "round", "abs"))


def one_after_the_other(place: Place) -> list[Edit]:
    """``if op == "a": ... elif op == "b": ...`` as two branches, where neither changes what the tests ask."""
    node = place.statement
    if not isinstance(node, ast.If) or not node.orelse:
        return []
    ways, rest = [node], node.orelse
    while len(rest) == 1 and isinstance(rest[0], ast.If):
        ways.append(rest[0])
        rest = rest[0].orelse
    bodies = [each.body for each in ways] + ([rest] if rest else [])
    tests = [each.test for each in ways]
    if set().union(*map(names_in, tests)) & set().union(*map(stored, bodies)):
        return []
    if any(isinstance(n, ast.Call) for test in tests[1:] for n in ast.walk(test)):
        return []
    if not all(isinstance(part, (ast.Assign, ast.AugAssign)) for body in bodies for part in body):
        return []
    indent, lines = place.source.indent(node), list[str]()
    texts = list(map(place.text, tests))
    if any(isinstance(n, ast.Call) for n in ast.walk(tests[0])):
        name = fresh("chosen", place.taken)
        lines.append(f"{name} = {texts[0]}")
        texts[0] = name
    for number, body in enumerate(bodies):
        asked = [f"not ({text})" for text in texts[:number]]
        asked += [f"({texts[number]})" if asked else texts[number]] if number < len(texts) else []
        lines += [f"if {' and '.join(asked)}:", *(f"    {place.text(part)}" for part in body)]
    return [place.source.replace(node, f"\n{indent}".join(lines))]


def draw_first(place: Place) -> list[Edit]:
    """``if random() < p: i = randint(0, 8); x = f(x, i)`` draws, computes ``x_then``, and takes it or not."""
    node, function = place.statement, place.source.function_of(place.statement)
    if not isinstance(node, ast.If) or node.orelse or function is None or len(node.body) < 2:
        return []
    if not all(isinstance(part, (ast.Assign, ast.AugAssign)) and part.lineno == part.end_lineno for part in node.body):
        return []
    numbers: set[str] = set()
    for part in node.body:
        if isinstance(part, ast.Assign) and _is_drawn(part.value, numbers):
            numbers |= stored([part])
    own = set(ast.walk(node))
    seen_outside = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and n not in own}
    seen_outside |= {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
    if not numbers or numbers & seen_outside or not draws(node.test):
        return []
    chosen = fresh("chosen", place.taken)
    lines, then = [f"{chosen} = {place.text(node.test)}"], dict[str, str]()
    for part in node.body:
        names = stored([part])
        if names & numbers:
            if not isinstance(part, ast.Assign) or not names <= numbers:
                return []
            if not all(isinstance(target, ast.Name) for target in part.targets):
                return []
            text = place.text(part)
            lines.append(f"{text} if {chosen} else {_zero(part.value)}" if draws(part.value) else text)
            continue
        if isinstance(part, ast.Assign) and not is_pure(place, part.value):
            return []
        targets = (
            part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AugAssign) else []
        )
        paths = {_base(target) for target in targets}
        if "" in paths:
            return []
        known = dict(then)
        for name in sorted(paths & seen_outside - then.keys()):
            then[name] = fresh(f"{name}_then", place.taken)
            if isinstance(part, ast.AugAssign) or not all(isinstance(target, ast.Name) for target in targets):
                lines.append(f"{then[name]} = {name}.clone()")
                known[name] = then[name]
        lines.append(_renamed(place, part, known, then))
    if not then:
        return []
    # A branch that only takes what is there already computes nothing, by which it could be seen that it is frozen.
    test = f"torch.tensor({chosen}, device={place.device})"
    lines += [f"{name} = torch.where({test}, {new}, {name})" for name, new in then.items()]
    return [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))]


def _renamed(place: Place, part: ast.stmt, read: Mapping[str, str], written: Mapping[str, str]) -> str:
    """A statement of one line with other names, which are others where it reads them and where it writes."""
    text = place.text(part)
    for name in sorted((n for n in ast.walk(part) if isinstance(n, ast.Name)), key=lambda n: -n.col_offset):
        new = (read if isinstance(name.ctx, ast.Load) else written).get(name.id)
        at = name.col_offset - part.col_offset
        text = text if new is None else f"{text[:at]}{new}{text[at + len(name.id) :]}"
    return text


def _is_drawn(value: ast.expr, numbers: set[str]) -> bool:
    """Whether it draws a number, or makes one of those that are drawn alone."""
    calls = [n for n in ast.walk(value) if isinstance(n, ast.Call)]
    if draws(value):  # a tensor that is drawn is none: ``torch.randn_like(x)``
        tensors = any("rand" in called(n) and path_of(n.func).startswith("torch.") for n in calls)
        read = any(called(n) in ("item", "int", "float") for n in calls)
        return (read or not tensors) and not any(k.arg == "device" for n in calls for k in n.keywords)
    plain = all(isinstance(n.func, ast.Name) and called(n) in _OF_NUMBERS for n in calls)
    return plain and bool(names_in(value)) and names_in(value) <= {*numbers, *_OF_NUMBERS}


def _zero(value: ast.expr) -> str:
    """A zero of the kind of number that is drawn."""
    whole = any(isinstance(n, ast.Call) and called(n) in _WHOLE for n in ast.walk(value))
    return "0" if whole else "0.0"


def _base(target: ast.expr) -> str:
    """``x`` of ``x[i:j]``."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return path_of(target) if isinstance(target, ast.Name) else ""
