"""Steps from other numbers than today's: what six steps from one place do not show of a count that lives in a tensor.

A cache that is cleared, a ring that comes round, a phase that begins at step 1000: where the original runs from there,
the rewritten lines have to give the same.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from paramgraph_kit.rewrite.around.later import ran_in
from paramgraph_kit.rewrite.counting.advance import Kept
from paramgraph_kit.rewrite.counting.counted import Counter
from paramgraph_kit.rewrite.lending import Lending
from paramgraph_kit.rewrite.proving.closeness import differences
from paramgraph_kit.rewrite.proving.proof import STEPS, Around, Seen, Truth
from paramgraph_kit.rewrite.source.edits import Source

MOST = 5


class Lent(Protocol):
    """Rewritten lines, and what goes around their launch."""

    around: Around

    def applied(self) -> AbstractContextManager[None]:
        """While this lasts the user's functions run them."""


def wrong_from(attempt: Lending, truth: Truth, lines: Lent) -> str:
    """What is wrong with rewritten lines where their counts begin at another number; "" where nothing is."""
    if (kept := attempt.kept) is None:
        return ""
    prover, ran = attempt.prover, ran_in(kept.source, attempt.ran)
    counters = [each for each in kept.counters if not each.made and not _is_real(each.value)]
    for start in _starts(kept, counters, ran) if counters else ():
        with _from(counters, start):
            own = prover.from_now()
            plain = _seen(own.eager)
            if plain is None:
                continue  # there are no steps from there
            known = {name: values for name, values in plain.items() if name in truth.seen}
            with lines.applied():
                new = _seen(lambda: prover.from_now().eager(lines.around))
            # What lies beyond a buffer's end is an error on the device, where slices of the host's are empty.
            past = new is None and any(start < size <= start + STEPS * STEPS for size in kept.sizes)
            if past or (new is not None and not differences(known, new)):
                continue
            if new is not None and not differences(known, new, own.rounded()):
                continue
            why = "it raises" if new is None else differences(known, new)[0]
            names = ", ".join(dict.fromkeys(f"`{each.name}`" for each in counters))
            return f"where {names} begins at {start}, the numbers would change ({why})"
    return ""


def _is_real(value: Any) -> bool:
    return value.is_floating_point() if isinstance(value, torch.Tensor) else type(value) is float


def _seen(run: Callable[[], Seen]) -> Seen | None:
    try:
        return run()
    except Exception:
        return None


@contextmanager
def _from(counters: Sequence[Counter], start: int) -> Iterator[None]:
    before = [each.value for each in counters]
    for each in counters:
        each.value = each.begun(start)
        each.put(each.value)
    try:
        yield
    finally:
        for each, value in zip(counters, before, strict=True):
            each.value = value
            each.put(value)


def _starts(kept: Kept, counters: Sequence[Counter], ran: Sequence[ast.stmt]) -> list[int]:
    """Numbers that the file gives to the counts, those that a step asks about, and where buffers end."""
    now = [each.value for each in counters if not isinstance(each.value, torch.Tensor)]
    names = {each.name for each in counters} | {each.key for each in counters}
    given = list(_given(kept.source, names, {part for top in ran for part in ast.walk(top)}))
    asked = [number - 2 for number in _asked_about(ran)]
    ends = [size - left for size in kept.sizes for left in (STEPS, STEPS // 2) if size > STEPS]
    known = [*given[:2], *asked[:2], *ends[:2], *asked[2:], *given[2:], *ends[2:]]
    return [each for each in dict.fromkeys(known) if each not in now and each >= 0][:MOST]


def _given(source: Source, names: Collection[Any], inside: Collection[ast.AST]) -> Iterator[int]:
    for node in ast.walk(source.tree):
        pairs: list[tuple[Any, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [(_last(target), node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            pairs = [(_last(node.target), node.value)]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Sub) and _last(node.target) in names:
            yield STEPS // 2  # counted down, to below 0
        elif isinstance(node, ast.Dict):
            pairs = [(getattr(key, "value", None), each) for key, each in zip(node.keys, node.values, strict=True)]
        for name, value in pairs:
            if name in names and isinstance(value, ast.Constant) and type(value.value) is int:
                yield value.value
            elif name in names and value is not None and node not in inside:
                yield 0  # whatever else it may be


def _asked_about(ran: Sequence[ast.stmt]) -> list[int]:
    """Whole numbers that something is compared with, or divided by; a number's multiples are as good."""
    found: list[int] = []
    for node in (part for top in ran for part in ast.walk(top)):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv)):
            sides = [node.right]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("min", "max"):
            sides = node.args
        found += [n.value for n in sides if isinstance(n, ast.Constant) and type(n.value) is int and n.value > 2]
    return sorted(set(found))


def _last(node: ast.expr) -> Any:
    if isinstance(node, ast.Subscript):
        return getattr(node.slice, "value", None)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
