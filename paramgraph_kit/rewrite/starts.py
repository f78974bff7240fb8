"""Steps from other numbers than today's: what six steps from one place do not show of a count that lives in a tensor.

A cache that is cleared, a ring that comes round, a phase that begins at step 1000: where the original runs from there,
the rewritten lines have to give the same. So have replays that come to what the host asks about: ``if n % 100 == 0``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.rewrite.around.later import ran_in
from paramgraph_kit.rewrite.conditions import Lent, steady
from paramgraph_kit.rewrite.counting.advance import Kept
from paramgraph_kit.rewrite.counting.counted import Counter, counters, last_of
from paramgraph_kit.rewrite.lending import Lending
from paramgraph_kit.rewrite.proving.closeness import differences, loosely_apart
from paramgraph_kit.rewrite.proving.deadline import Deadline, unless_raises
from paramgraph_kit.rewrite.proving.proof import STEPS, WARM_UP, Seen, Truth
from paramgraph_kit.rewrite.source.edits import Source, locals_of
from paramgraph_kit.rewrite.source.lasting import Leaves
from paramgraph_kit.rewrite.source.reach import attributes_of, settings_of

MOST = 5
LIMIT_S = 5.0
TIME_UP = "line {line}, `{text}`, was not tried as its count comes to {number}: such trials had taken long enough"
UNTRIED = "line {line}, `{text}`, was not tried as its count comes there: no trial takes back what `{called}` does"
LATER = "where {} comes to {}, replays of one graph would differ ({})"
FURTHER = 96, 1000  # counts whose replays come to multiples of many numbers
RAISES_THERE = "it raises"
_MOST_ENTRIES = 64  # of a table whose entries count as asked about
_SIZES = frozenset(("shape", "size", "len", "dim", "ndim", "numel"))


def wrong_from(attempt: Lending, truth: Truth, lines: Lent) -> str:
    """What is wrong with rewritten lines where their counts begin at another number; "" where nothing is."""
    if (kept := attempt.kept) is None:
        return ""
    prover, ran = attempt.prover, ran_in(kept.source, attempt.ran)
    counters = [each for each in kept.counters if not each.made and not _is_real(each.value)]
    for start in _starts(kept, counters, ran) if counters else ():
        with _from(counters, start):
            own = prover.from_now()
            plain = unless_raises(own.eager)
            if plain is None:
                continue  # there are no steps from there
            known = {name: values for name, values in plain.items() if name in truth.seen}
            with lines.applied():
                new = unless_raises(lambda: prover.from_now().eager(lines.around))
            # What lies beyond a buffer's end is an error on the device, where slices of the host's are empty.
            past = new is None and any(start < size <= start + STEPS * STEPS for size in kept.sizes)
            if past or (new is not None and not differences(known, new)):
                continue
            if new is not None and not differences(known, new, own.rounded()):
                continue
            why = "it raises" if new is None else differences(known, new)[0]
            return f"where {_names(counters)} begins at {start}, the numbers would change ({why})"
    return ""


def wrong_later(
    attempt: Lending, truth: Truth, lines: Lent, launched: Callable[[], Seen] | None = None
) -> tuple[str, list[str]]:
    """What replays do otherwise as a count of the host's comes to a number that a step asks about; what was not tried.

    What comes then may be a checkpoint, which no trial takes back: that is told, and no step is run there. Nothing may
    tell what a step asks, as ``int(n * 0.3)``: so each count is also tried further on, where nothing of that kind runs.
    ``launched``: runs the function with a part of it from graphs, where it is not one graph itself.
    """
    run = launched or (lambda: attempt.prover.from_now().captured(lines.around))
    until, untried = worked_s() + LIMIT_S, dict[str, None]()
    asked = list(_asked_of_host(attempt))
    moved = [each for each in _all_counters(attempt) if not each.made and not each.real]
    done = set[tuple[int, frozenset[str]]]()
    for each in asked:
        ones = [n for n in moved if n.name in each.names] or (moved if each.may_be_any else [])
        ones = [n for n in ones if not n.value <= each.number < n.value + STEPS]
        key = each.number, frozenset(n.name for n in ones)
        if not ones or key in done:
            continue
        before = (n.lasting for n in asked if n.lasting and n.number < each.number + STEPS)
        if lasting := each.lasting or next(before, ""):
            untried[UNTRIED.format(line=each.line, text=each.text, called=lasting)] = None
        elif len(done) >= MOST or worked_s() >= until:
            untried[TIME_UP.format(line=each.line, text=each.text, number=each.number)] = None
        else:
            done.add(key)
            with _from(ones, each.number - WARM_UP - 2):
                why = differ(attempt, truth, lines, run)
            if why:
                return LATER.format(_names(ones), each.number, why), []
    whole = [each for each in moved if type(each.value) is int]
    for number in FURTHER if whole and not _lasts(attempt) else ():
        if worked_s() >= until:
            break
        with _from(whole, number - WARM_UP - 2):
            why = differ(attempt, truth, lines, run)
        if why and why != RAISES_THERE:  # it may lie beyond a table, which is loud
            return LATER.format(_names(whole), number, why), []
    return "", list(untried)


def _lasts(attempt: Lending) -> bool:
    """Whether anything that a step may run cannot be taken back."""
    leaves = Leaves(attempt.sources.values(), attempt.space | attributes_of(attempt.prover.state))
    return any(leaves.first(top) for source in attempt.sources.values() for top in ran_in(source, attempt.ran))


def differ(attempt: Lending, truth: Truth, lines: Lent, run: Callable[[], Seen]) -> str:
    """How replays differ from the original with the counts as they are now."""
    own = attempt.prover.from_now()
    own.deadline = Deadline(LIMIT_S)
    plain = unless_raises(own.eager)
    if plain is None:
        return ""  # it does not come there
    known = {name: values for name, values in plain.items() if name in truth.seen}
    with lines.applied():
        new = unless_raises(run)
    if new is None:
        return RAISES_THERE
    return loosely_apart(steady(own, known), new) if loosely_apart(known, new) else ""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A whole number that a step asks about."""

    number: int
    names: frozenset[str]  # of what is compared with it
    may_be_any: bool  # a name of the function's own, which any count may have been given
    line: int
    text: str
    lasting: str  # what is called where the answer is another one, and cannot be taken back


def _all_counters(attempt: Lending) -> list[Counter]:
    """Counts of the host's, of which some live in tensors as long as rewritten lines run."""
    kept = attempt.kept.counters if attempt.kept is not None else []
    there = {(id(each.holder.target), each.name) for each in kept}
    return [*kept, *(n for n in counters(attempt.prover) if (id(n.holder.target), n.name) not in there)]


def _names(counters: Sequence[Counter]) -> str:
    return ", ".join(dict.fromkeys(f"`{each.name}`" for each in counters))


def _asked_of_host(attempt: Lending) -> Iterator[_Asked]:
    """Whole numbers beyond what some steps come to."""
    held = (each.read() for each in attempt.prover.state.holders if each.kind == "container" and not each.of_torch)
    entries = {key: value for each in held if isinstance(each, dict) for key, value in each.items()}
    settings = entries | settings_of(attempt.prover.state) | attempt.space
    leaves = Leaves(attempt.sources.values(), attempt.space | attributes_of(attempt.prover.state))
    for source in attempt.sources.values():
        for node in (part for top in ran_in(source, attempt.ran) for part in ast.walk(top)):
            sides = _sides(node)
            values = [n.value if isinstance(n, ast.Constant) else settings.get(last_of(n)) for n in sides]
            values += [each for table in _tables(node) for each in _entries(table, settings)]
            if not (numbers := [value for value in values if type(value) is int and value >= STEPS]):
                continue
            sides = [*sides, *_asking(node)]
            names = frozenset(filter(None, (last_of(n) for side in sides for n in ast.walk(side))))
            function, at = source.function_of(node), source.statement_of(node)
            own = names & locals_of(function) if function is not None else frozenset()
            text = source.lines[at.lineno - 1].strip()
            first = leaves.first(at if isinstance(at, (ast.If, ast.While)) and not _leaves(at) else function or at)
            for number in numbers:
                yield _Asked(number, names, bool(own) and not names & _SIZES, at.lineno, text, first)


def _tables(node: ast.AST) -> list[ast.expr]:
    """Where an expression looks something up: ``n in LATE``, ``RATES.get(n)``, ``RATES[n]``."""
    if isinstance(node, ast.Compare):
        pairs = zip(node.ops, node.comparators, strict=True)
        return [each for op, each in pairs if isinstance(op, (ast.In, ast.NotIn))]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return [node.func.value]
    return [node.value] if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) else []


def _asking(node: ast.AST) -> list[ast.expr]:
    """What is looked up there."""
    if isinstance(node, ast.Call):
        return node.args[:1] if isinstance(node.func, ast.Attribute) and node.func.attr == "get" else []
    return [node.slice] if isinstance(node, ast.Subscript) else []


def _entries(table: ast.expr, settings: dict[str, Any]) -> list[int]:
    """The first of the whole numbers that a table knows, or that a set or a list has."""
    if isinstance(table, (ast.Set, ast.List, ast.Tuple)):
        known: Any = [each.value for each in table.elts if isinstance(each, ast.Constant)]
    elif isinstance(table, ast.Dict):
        known = [each.value for each in table.keys if isinstance(each, ast.Constant)]
    else:
        known = settings.get(last_of(table))
    if not isinstance(known, (set, frozenset, dict, list, tuple, range)) or len(known) > _MOST_ENTRIES:
        return []
    return sorted(each for each in known if type(each) is int and each >= STEPS)[:2]


def _leaves(at: ast.If | ast.While) -> bool:
    """Whether what comes behind a branch depends on it, too."""
    ends = (ast.Return, ast.Raise, ast.Break, ast.Continue)
    return any(isinstance(n, ends) for part in (*at.body, *at.orelse) for n in ast.walk(part))


def _is_real(value: Any) -> bool:
    return value.is_floating_point() if isinstance(value, torch.Tensor) else type(value) is float


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
        sides = _sides(node)
        found += [n.value for n in sides if isinstance(n, ast.Constant) and type(n.value) is int and n.value > 2]
    return sorted(set(found))


def _sides(node: ast.AST) -> list[ast.expr]:
    """What is compared in an expression, or divided by."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv)):
        return [node.left, node.right]
    return node.args if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("min", "max") else []


def _last(node: ast.expr) -> Any:
    if isinstance(node, ast.Subscript):
        return getattr(node.slice, "value", None)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
