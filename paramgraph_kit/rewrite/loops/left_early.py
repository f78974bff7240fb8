"""Loops that a function leaves with a result: all rounds run, and the device keeps what it was where it was left.

``for layer in layers: ...; if c: return logits`` with ``return logits`` behind it returns
``torch.where(done, early, logits)``: whoever calls the function gets a tensor as before, and nothing is asked.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of, only_assigns
from paramgraph_kit.rewrite.loops.ending import LoopRounds, ending
from paramgraph_kit.rewrite.loops.leaving import begun_at, counted_by
from paramgraph_kit.rewrite.source.edits import SIMPLE, Edit, names_in
from paramgraph_kit.rewrite.source.more_of_a_net import minds_zeros
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.rewrite.source.pure import is_pure

_NUMBERS = frozenset("item int float bool len size tolist numel dim str list tuple dict cpu numpy".split())  # noqa: SIM905
Pair = tuple[ast.expr, ast.expr]  # what is returned in the loop, and what behind it


def keep_what_it_left_with(place: Place) -> list[Edit]:
    """The rule, for loops behind which the function only returns."""
    found = ending(place, _Left)
    return found.edits if found is not None and not found.handed else []


class _Left(LoopRounds):
    """One such loop, while it is rewritten."""

    def _leave(self, part: ast.If) -> bool:
        last = self._last_return()
        own = part.body[0]
        if last is None or last.value is None or len(part.body) != 1 or not isinstance(own, ast.Return):
            return False
        held = [*self.place.space.values(), *self.place.attributes.values()]
        pairs = _pairs(own.value, last.value)
        if not pairs or (self.place.trains and minds_zeros(held)):
            return False
        first, lines = begun_at(self.loop, counted_by(self.loop)), list[str]()
        for one, other in pairs:
            if self._stays(one, other):
                continue
            if not (self._is_tensor(one) and self._is_tensor(other)):
                return False
            kept = self._fresh(f"early_{one.id}" if isinstance(one, ast.Name) else "early")
            if not first:
                self.before.append(f"{kept} = None")
            value = self.place.text(one)
            lines.append(
                f"{kept} = {value} if {first or f'{kept} is None'} else torch.where({self.done}, {kept}, {value})"
            )
            chosen = f"torch.where({self.done}, {kept}, {self.place.text(other)})"
            self.edits.append(self.source.replace(other, chosen))
        if not lines:
            return False
        test = condition_of(self.place, part.test).replace(".item()", "")
        test = test if isinstance(part.test, SIMPLE) else f"({test})"
        self._replace(part, [*lines, f"{self.done} = {self.done} | {test}"])
        return True

    def _last_return(self) -> ast.Return | None:
        """What the function returns behind the loop, where nothing else is done there."""
        around = self.source.parents.get(self.loop)
        above: ast.AST | None = around
        while isinstance(above, ast.With):
            above = self.source.parents.get(above)
        block: Sequence[ast.stmt] = getattr(around, "body", [])
        if above is not self.function or self.loop not in block:
            return None
        *between, last = block[block.index(self.loop) + 1 :] or [self.loop]
        quiet = all(only_assigns(self.place, each) for each in between)
        return last if isinstance(last, ast.Return) and quiet else None

    def _stays(self, one: ast.expr, other: ast.expr) -> bool:
        """Whether the same is returned in both places, whichever round it is."""
        return ast.dump(one) == ast.dump(other) and not names_in(one) & stored([self.loop]) and is_pure(self.place, one)

    def _is_tensor(self, node: ast.expr) -> bool:
        """Whether what is returned is one tensor, as far as its text tells."""
        known = self.place.tensors.keys()
        if isinstance(node, ast.Name):
            return node.id in known
        counts = any(isinstance(n, ast.Call) and called(n) in _NUMBERS for n in ast.walk(node))
        computes = isinstance(node, (ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript))
        return computes and not counts and bool(names_in(node) & known) and is_pure(self.place, node)


def _pairs(one: ast.expr | None, other: ast.expr) -> list[Pair]:
    """The parts of two results that are built alike; none where they are not."""
    if one is None:
        return []
    if isinstance(one, ast.Tuple) and isinstance(other, ast.Tuple):
        return [*zip(one.elts, other.elts, strict=True)] if len(one.elts) == len(other.elts) else []
    if isinstance(one, ast.Dict) and isinstance(other, ast.Dict):
        keys = [[ast.dump(key) if key is not None else "" for key in each.keys] for each in (one, other)]
        alike = keys[0] == keys[1] and "" not in keys[0]
        return [*zip(one.values, other.values, strict=True)] if alike else []
    built = (ast.Tuple, ast.Dict, ast.List, ast.Set, ast.ListComp, ast.DictComp, ast.GeneratorExp)
    return [] if isinstance(one, built) or isinstance(other, built) else [(one, other)]
