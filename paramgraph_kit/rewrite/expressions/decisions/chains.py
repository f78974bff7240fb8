"""Decisions after decisions: ``elif``, branches inside of branches, and one return after another.

What ends in one value, a result or a name, is one choice inside of another; what does more runs line by line, each
where all that it hangs on holds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paramgraph_kit.rewrite.expressions.decisions.branches import (
    changed_where,
    condition_on_device,
    given,
    known_before,
    only_assigns,
)
from paramgraph_kit.rewrite.expressions.decisions.digits_kept import where_of
from paramgraph_kit.rewrite.expressions.decisions.hosted import is_of_the_host
from paramgraph_kit.rewrite.expressions.decisions.shared import is_written_through
from paramgraph_kit.rewrite.source.edits import Edit, locals_of, names_in
from paramgraph_kit.rewrite.source.place import NUMBER, Place, fresh
from paramgraph_kit.rewrite.source.pure import kept_finite, may_run


def choose_among(place: Place) -> list[Edit]:
    """``if a: y = 1`` with ``elif b: y = 2`` and ``else: y = 3`` as ``torch.where(a, 1, torch.where(b, 2, 3))``."""
    node = _outermost(place)
    if node is None or any(_is_of_kind(part) for test in _tests(node) for part in ast.walk(test)):
        return []
    if any(is_of_the_host(place, test) for test in _tests(node)):
        return []  # the host goes on with that
    if is_written_through(place, node) or _moves_a_number(place, node):
        return []
    return (
        _one_return(place, node)
        or _early_returns(place, node)
        or (_one_name(place, node) or _each_line(place, node)) * (_depth(node) > 1)
    )


def _moves_a_number(place: Place, node: ast.If) -> bool:
    """Whether a way gives another number to what is around the function: a graph would keep what it was at capture."""
    changed = [n for n in ast.walk(node) if isinstance(n, ast.AugAssign)]
    names = {n.target.id for n in changed if isinstance(n.target, ast.Name)}
    return any(isinstance(place.space.get(name), NUMBER) and not place.is_local(name) for name in names)


@dataclass(frozen=True, slots=True)
class Way:
    """How a line is come to: the tests that were asked, and all of that as one condition."""

    tests: tuple[ast.expr, ...] = ()
    condition: str = ""

    def further(self, test: ast.expr, condition: str) -> Way:
        """With one more."""
        joined = f"{self.condition} & {condition}" if self.condition else condition
        return replace(self, tests=(*self.tests, test), condition=joined)


def _outermost(place: Place) -> ast.If | None:
    """The branch that holds the one in which something was found, as far as only the device decides."""
    node = place.statement
    if not isinstance(node, ast.If):
        return None
    while isinstance(above := place.source.parents.get(node), ast.If) and not is_of_the_host(place, above.test):
        node = above
    return node if isinstance(node, ast.If) else None


def _tests(node: ast.If) -> Iterator[ast.expr]:
    yield from (part.test for part in ast.walk(node) if isinstance(part, ast.If))


def _depth(node: ast.If) -> int:
    return 1 + max((_depth(n) for n in (*node.body, *node.orelse) if isinstance(n, ast.If)), default=0)


def _is_of_kind(node: ast.AST) -> bool:
    """What no tensor tells: its kind, whether it is there, the clock, or what Python draws."""
    return isinstance(node, (ast.Is, ast.IsNot, ast.In, ast.NotIn, ast.Call)) and (
        not isinstance(node, ast.Call) or _is_asked_of_host(node)
    )


def _is_asked_of_host(node: ast.Call) -> bool:
    names = ("isinstance", "hasattr", "callable", "issubclass", "random", "time", "perf_counter", "monotonic")
    return any(isinstance(n, (ast.Name, ast.Attribute)) and _last(n) in names for n in ast.walk(node.func))


def _last(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _one_return(place: Place, node: ast.If) -> list[Edit]:
    """All of it ends in results, and so does what comes after it."""
    block = place.source.block_of(node)
    following = list(block[block.index(node) + 1 :])
    values = _results(place, node, [node, *following], Way())
    several = _depth(node) > 1 or any(isinstance(each, ast.If) for each in following)
    if values is None or not (several or len(values) > 1):
        return []
    edits = [place.source.replace(node, f"return {', '.join(values)}")]
    return [*edits, *(place.source.without(each) for each in following)]


def _early_returns(place: Place, node: ast.If) -> list[Edit]:
    """``if a: return x``, other lines, ``if b: return y`` and a last one: all lines run, and the last one chooses.

    Only where no gradients go through it: of what is left out they may be none.
    """
    function, block = place.source.function_of(node), place.source.block_of(node)
    following = block[block.index(node) :]
    last = following[-1]
    if place.trains or function is None or not isinstance(last, ast.Return) or last.value is None or len(following) < 3:
        return []
    ends = [each for each in following[:-1] if isinstance(each, ast.If)]
    if not all(each in ends or only_assigns(place, each) for each in following[:-1]):
        return []
    taken, edits, chosen = place.taken, list[Edit](), list[tuple[str, str]]()
    for each in ends:
        values = _results(place, node, each.body, Way()) if not each.orelse else None
        if values is None or len(values) != 1:
            return []
        test, early = fresh("chosen", taken), fresh("early", taken)
        taken |= {test, early}
        lines = [f"{test} = {condition_on_device(place, each.test)}", f"{early} = {values[0]}"]
        edits.append(place.source.replace(each, f"\n{place.source.indent(each)}".join(lines)))
        chosen.append((test, early))
    values = _results(place, node, [last], Way())
    if values is None or len(values) != 1:
        return []
    text = values[0]
    for test, early in reversed(chosen):
        text = f"torch.where({test}, {early}, {text})"
    return [*edits, place.source.replace(last.value, text)]


def _results(place: Place, outer: ast.If, block: list[ast.stmt], way: Way) -> list[str] | None:
    """What a block returns, one text for each of a tuple; None where it does anything else."""
    if not block:
        return None
    first = block[0]
    if isinstance(first, ast.Return) and first.value is not None:
        pieces = first.value.elts if isinstance(first.value, ast.Tuple) else [first.value]
        return _finite(place, outer, pieces, way)
    if not isinstance(first, ast.If):
        return None
    rest = block[1:]  # where a way does not return, it goes on
    condition = f"({condition_on_device(place, first.test)})"
    yes = _results(place, outer, [*first.body, *rest], way.further(first.test, condition))
    other = way.further(first.test, f"torch.logical_not({condition[1:-1]})")
    no = _results(place, outer, [*first.orelse, *rest], other)
    if yes is None or no is None or len(yes) != len(no):
        return None
    found = [_chosen(condition[1:-1], a, b) for a, b in zip(yes, no, strict=True)]
    return None if any(not each for each in found) else found


def _chosen(condition: str, one: str, other: str) -> str:
    """A choice, or what both ways agree on; "" of two that are no tensors, which a caller may ask for."""
    plain = all(_is_plain(each) for each in (one, other))
    return one if one == other else "" if plain else f"torch.where({condition}, {one}, {other})"


def _is_plain(text: str) -> bool:
    return isinstance(ast.parse(text, mode="eval").body, (ast.Constant, ast.Dict, ast.List, ast.Tuple))


def _finite(place: Place, outer: ast.If, pieces: list[ast.expr], way: Way) -> list[str] | None:
    if not all(may_run(place, each, outer) for each in pieces):
        return None
    if any(isinstance(each, (ast.Tuple, ast.List, ast.Dict, ast.Starred)) or _is_text(each) for each in pieces):
        return None
    if not way.tests:
        return [place.text(each) for each in pieces]
    test = ast.BoolOp(ast.And(), list(way.tests))
    return [kept_finite(place, each, test, way.condition, taken=True) for each in pieces]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str))


def _one_name(place: Place, node: ast.If) -> list[Edit]:
    """All of it gives one name of the function's own a value, and nothing else happens."""
    names = {t.id for n in ast.walk(node) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    function = place.source.function_of(node)
    if len(names) != 1 or function is None or not names <= locals_of(function):
        return []
    name = names.pop()
    value = _value(place, node, [node], name, Way(), known=name in known_before(function, node))
    return [place.source.replace(node, f"{name} = {value}")] if value else []


def _value(place: Place, outer: ast.If, block: list[ast.stmt], name: str, way: Way, *, known: bool) -> str:
    """What a block gives a name, which stays what it is where nothing does; "" where it does anything else."""
    if not block:
        return name if known else ""
    first = block[0]
    if len(block) > 1:
        return ""
    if isinstance(first, ast.Assign) and len(first.targets) == 1 and place.text(first.targets[0]) == name:
        return next(iter(_finite(place, outer, [first.value], way) or []), "")
    if not isinstance(first, ast.If):
        return ""
    condition = condition_on_device(place, first.test)
    yes = _value(place, outer, first.body, name, way.further(first.test, f"({condition})"), known=known)
    other = way.further(first.test, f"torch.logical_not({condition})")
    no = _value(place, outer, first.orelse, name, other, known=known)
    return where_of(place, condition, yes, no) if yes and no else ""


def _each_line(place: Place, node: ast.If) -> list[Edit]:
    """All lines of it, each where what it hangs on holds, under names for that."""
    function = place.source.function_of(node)
    local = locals_of(function) if function is not None else set[str]()
    inside = set(ast.walk(node))
    outside = {n.id for n in ast.walk(function or node) if isinstance(n, ast.Name) and n not in inside}
    taken = names_in(place.source.tree) | local
    new = _everywhere([node]) - known_before(function, node)
    lines: list[str] = []

    def name_for(hint: str, text: str) -> str:
        name = fresh(hint, taken)
        taken.add(name)
        lines.append(f"{name} = {text}")
        return name

    def block(statements: list[ast.stmt], above: ast.If, way: str) -> bool:
        for part in statements:
            if isinstance(part, ast.If):
                if not branch(part, way):
                    return False
                continue
            made = changed_where(place, part, above, way, local, outside)
            first = given([part]) & new
            if made and first and isinstance(part, ast.Assign) and may_run(place, part.value, node):
                made = [place.text(part)]  # each of the others has its own
                new.difference_update(first)
            if not made:
                return False
            lines.extend(made)
        return True

    def branch(part: ast.If, way: str) -> bool:
        test = condition_on_device(place, part.test)
        chosen = name_for("chosen", f"{way} & ({test})" if way else test)
        other = f"{way} & torch.logical_not({chosen})" if way else f"torch.logical_not({chosen})"
        if not block(part.body, part, chosen):
            return False
        return not part.orelse or block(part.orelse, part, name_for("other", other))

    if not branch(node, ""):
        return []
    return [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))]


def _everywhere(block: list[ast.stmt]) -> set[str]:
    """Names that a block gives a value, whichever way it goes."""
    found = given(block)
    for part in block:
        if isinstance(part, ast.If) and part.orelse:
            found |= _everywhere(part.body) & _everywhere(part.orelse)
    return found
