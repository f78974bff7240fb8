"""One round of a loop as a function of its own: what of it can be a graph, what it is given, and what it returns.

A loop over a loader asks the host for something in each round, so no graph holds all of it. What the device does of one
round is the same each time.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from types import MappingProxyType

from paramgraph_kit.rewrite.loops.gradients_anew import gradients_anew
from paramgraph_kit.rewrite.loops.kept_results import kept_beyond
from paramgraph_kit.rewrite.loops.met import is_met
from paramgraph_kit.rewrite.loops.spans import KEPT, Block, ends, may_end_later, may_train_before, spans
from paramgraph_kit.rewrite.source.edits import (
    Edit,
    Function,
    Source,
    about_gradients,
    first_line,
    free_names,
    locals_of,
    names_in,
    within,
)
from paramgraph_kit.rewrite.source.hosts import draws
from paramgraph_kit.rewrite.source.moving import NAMED, STOPS, arguments_of, is_backward, stored
from paramgraph_kit.rewrite.source.place import fresh

Loop = ast.For | ast.While
Rounds = Loop | ast.If  # a branch of a loop's rounds, in which it trains, has rounds, too


@dataclass(frozen=True, slots=True)
class Round:
    """What of a loop's rounds is a function: the edits that make it one, and what they call it."""

    name: str
    loop: Block
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    edits: tuple[Edit, ...]
    trains: bool  # it runs a backward pass
    part: tuple[ast.stmt, ...]  # its statements, where they stood
    lines: tuple[str, ...] = ()  # of the file with it
    kept: frozenset[str] = frozenset()  # results that others keep, by name
    copied: tuple[str, ...] = ()  # those of them that are copied behind its call


def loops_around(source: Source, function: Function, nodes: Collection[ast.stmt]) -> list[Loop]:
    """The loops of a function that some statements are in, the inner ones first."""
    found = [n for n in within(function) if isinstance(n, Loop) and any(part in nodes for part in ast.walk(n))]
    return sorted(found, key=lambda node: -len([*source.above(node)]))


def cut(
    source: Source,
    function: Function,
    loop: Block,
    computes: Callable[[ast.stmt], bool],
    tells: Callable[[ast.stmt], bool],
    returned: Mapping[str, str] = MappingProxyType({}),
    first: Collection[str] = (),
    *,
    closed: Collection[str] = (),
    taken: Collection[str] = (),
    only_telling: bool = False,
    begins: Callable[[ast.stmt], bool] | None = None,
    pure: Callable[[ast.stmt], bool] = lambda _: False,
    brings: Callable[[ast.stmt], bool] = lambda _: False,
    copies: Collection[str] = (),
    called: bool = False,
) -> Round | None:
    """One round of a loop cut out of a function, or None where no part of it can be.

    Args:
        computes: whether a statement does something on the device.
        tells: whether it reads something of the device for the host.
        returned: of some results how they are written where they are returned, as ``loss.detach()``.
        first: parameters that come before the others, so that they can be bound.
        closed: names of the function around it, which the round, beside all functions, is given.
        taken: what rounds of other loops are called.
        only_telling: whether what the host does in between stays, unless it tells: it may be what the rest builds on.
        begins: where only a part of the block is wanted, whether a statement is the first of that.
        pure: whether a statement gives names what it computes, and does nothing else.
        brings: whether a statement copies something of the host's to the device, which is done ahead of the round.
        copies: results that are copied behind each call if the lines around it keep them.
        called: whether another function of the user's calls this one, and may keep what it returns.
    """
    body = loop.body
    allowed = [each for each in spans(body, tells) if any(map(begins, each))] if begins is not None else [body]
    wanted = [n for n, node in enumerate(body) if computes(node) and not tells(node) and node in (*allowed, [])[0]]
    if not wanted:
        return None
    inside = body[wanted[0] : wanted[-1] + 1]
    part: list[ast.stmt] = []
    for node in reversed(inside):
        stays = only_telling and not tells(node) and not ends(node)
        waits = _may_wait(node, part, computes, tells) and not is_met(source, node, part)
        waits = waits or may_end_later(node, part, loop, function, pure)
        waits = waits or may_train_before(node, part, loop, function)
        part[:0] = [node] if stays or not waits else []
    ahead = _ahead(inside, part, brings)
    part = [node for node in part if node not in ahead]
    if not part or _shares_lines(loop, part):
        return None
    local = locals_of(function) | set(closed)
    if any(isinstance(n, (*STOPS, *NAMED, Function, ast.ClassDef)) for node in part for n in within(node)):
        return None
    outer = {name for node in ast.walk(function) if isinstance(node, ast.Nonlocal) for name in node.names}
    if outer & stored(part):
        return None
    names = _Names(part, local)
    others = [node for node in ast.walk(function) if not _is_below(source, node, part)]
    around = {n.id for n in others if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} | {
        *arguments_of(function)
    }
    # What nothing else ever assigns, and the round first does, has no value before: one of its branches makes it.
    given = [name for name in names.read if name in around or not _begins_as_store(part, name)]
    parameters, made = sorted(given, key=lambda name: name not in first), [*names.made]
    read = {n.id for n in others if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)}
    read |= {n.target.id for n in others if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
    anew = stored(body[: wanted[0]]) | stored([loop.target] if isinstance(loop, ast.For) else [])
    anew |= stored(ahead)
    carried = {name for name in parameters if name in stored(part) and name not in anew}
    results = [name for name in made if name in read or name in carried]
    name = _new_name(source, function, "round" if isinstance(loop, Rounds) else "part", taken)
    trains = any(is_backward(n) for node in part for n in within(node))
    call = f"{', '.join(results)} = " * bool(results) + f"{name}({', '.join(parameters)})"
    kept = kept_beyond(
        *(function, body, part, results), parameters if isinstance(loop, Rounds) else None, called=called
    )
    copied = tuple(each for each in results if each in kept and each in copies)
    call += "".join(f"\n{source.indent(part[0])}{each} = {each}.clone()" for each in copied)
    runs = [*_runs(body, part)]
    at = next((number for number, run in enumerate(runs) if not ahead or run[0].lineno > ahead[-1].lineno), -1)
    if at < 0:
        return None
    edits = [_block(source, run, call if number == at else "") for number, run in enumerate(runs)]
    texts = [returned.get(each, each) for each in results]
    lines = _text(source, function, loop, part, (name, parameters, texts))
    edits.append(source.before(source.outermost(function), lines))
    return Round(
        name, loop, tuple(parameters), tuple(results), tuple(edits), trains, tuple(part), (), frozenset(kept), copied
    )


def kept_for_later(
    source: Source,
    loop: Block,
    computes: Callable[[ast.stmt], bool],
    tells: Callable[[ast.stmt], bool],
    tensors: Collection[str],
) -> dict[ast.stmt, list[Edit]]:
    """Copies of tensors that a statement tells of, and that have another value further down: it can wait with those.

    ``total += loss.item()`` before ``loss = loss / steps``; by the statement, before which one is made.
    """
    body, found = loop.body, dict[ast.stmt, list[Edit]]()
    wanted = [n for n, node in enumerate(body) if computes(node) and not tells(node)]
    taken = names_in(source.tree)
    for n, node in enumerate(body[: wanted[-1]] if wanted else ()):
        later = [each for each in body[n + 1 : wanted[-1] + 1] if not tells(each)]
        other = stored(later) | {name for each in later for name in _added_to(each)}
        names = free_names(node) & other & set(tensors)
        if n < wanted[0] or not tells(node) or not names or names != free_names(node) & other:
            continue
        if (stored([node]) | _added_to(node)) & names:  # `loss = loss * weight` is what the lines below it read
            continue
        called = {name: fresh(f"{name}_told", taken) for name in sorted(names)}
        copies = source.before(node, [f"{each} = {name}.detach().clone()" for name, each in called.items()], KEPT)
        every = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in called]
        found[node] = [copies, *(source.replace(each, called[each.id]) for each in every)]
    return found


def _may_wait(
    node: ast.stmt, later: Sequence[ast.stmt], computes: Callable[[ast.stmt], bool], tells: Callable[[ast.stmt], bool]
) -> bool:
    """Whether what is the host's alone, or only tells, can be done behind the rest of a round, as far as names tell."""
    if computes(node) and not tells(node):
        return False
    if any(isinstance(part, (*STOPS, *NAMED, ast.Delete)) for part in within(node)):
        return False
    given, read = stored([node]), free_names(node) | _added_to(node)
    return not any((free_names(each) | _added_to(each)) & given or stored([each]) & read for each in later)


def _ahead(inside: Sequence[ast.stmt], part: Sequence[ast.stmt], brings: Callable[[ast.stmt], bool]) -> list[ast.stmt]:
    """What brings a batch in the middle of a round, with what it needs, and needs nothing of what is before it there.

    ``optimizer.zero_grad()``, then ``x, y = batch`` and ``x = x.to(device)``: all but the first line go ahead. So does
    ``if random.random() < 0.1: y = None``, as the host decides with it which graph is launched.
    """
    found, needed = list[ast.stmt](), set[str]()
    for node in reversed([node for node in inside if node in part]):
        needs = found and stored([node]) & needed and not free_names(node) & {"time"}
        plain = isinstance(node, (ast.Assign, ast.AnnAssign)) and (brings(node) or needs)
        if plain or _decides(node):
            found.insert(0, node)
            needed |= free_names(node)
    while found:
        waits = [n for n in inside[inside.index(part[0]) : inside.index(found[-1])] if n not in part]
        wrong = [n for n in found if not _is_free_of(n, [e for e in part[: part.index(n)] if e not in found])]
        if not wrong and not waits:
            return found
        found = [n for n in found if not waits and n.lineno < wrong[0].lineno]  # what comes after may need it
    return []


def _decides(node: ast.stmt) -> bool:
    """Whether the host draws whether something is left out, ``if random.random() < 0.1: y = None``."""
    if not isinstance(node, ast.If) or node.orelse or not draws(node.test):
        return False
    return all(
        isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant) and each.value.value is None
        for each in node.body
    )


def _is_free_of(node: ast.stmt, before: Iterable[ast.stmt]) -> bool:
    """Whether a statement and those before it may change their places, as far as names tell."""
    given, read = stored([node]), free_names(node)
    return not any(stored([each]) & (read | given) or (free_names(each) | _added_to(each)) & given for each in before)


def _added_to(node: ast.AST) -> set[str]:
    """Names that ``x += 1`` reads below a node."""
    return {n.target.id for n in ast.walk(node) if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}


class _Names:
    """Local names that some statements read before they are assigned there, and those that they assign, in order."""

    def __init__(self, part: Sequence[ast.stmt], local: Collection[str]) -> None:
        self._local = local
        self.read: dict[str, None] = {}
        self.made: dict[str, None] = {}
        self._all(part, frozenset())

    def _all(self, nodes: Iterable[ast.AST], given: frozenset[str]) -> frozenset[str]:
        """Note what is read of statements one after the other; what has a value for certain after them."""
        for node in nodes:
            given = self._one(node, given)
        return given

    def _one(self, node: ast.AST, given: frozenset[str]) -> frozenset[str]:
        if isinstance(node, ast.With):
            return self._all(node.body, self._all(node.items, given))
        if isinstance(node, ast.If):
            given = self._one(node.test, given)
            ways = [(part, self._all(part, given)) for part in (node.body, node.orelse)]
            behind = [after for part, after in ways if not (part and isinstance(part[-1], ast.Raise))]
            return behind[0].intersection(*behind) if behind else given
        if isinstance(node, (ast.For, ast.While)):
            given = self._one(node.iter if isinstance(node, ast.For) else node.test, given)
            inside = self._one(node.target, given) if isinstance(node, ast.For) else given
            self._all(node.body, inside)
            self._all(node.orelse, given)
            return given
        unknown = (free_names(node) | _added_to(node)) & set(self._local) - given
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in unknown]
        self.read |= dict.fromkeys(n.id for n in sorted(names, key=lambda n: (n.lineno, n.col_offset)))
        made = stored([node]) & set(self._local)
        self.made |= dict.fromkeys(sorted(made))
        return given | made if not isinstance(node, ast.Try) else given


def _begins_as_store(part: Sequence[ast.stmt], name: str) -> bool:
    """Whether the first place where some statements have a name assigns it."""
    every = (n for node in part for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name)
    # ``x = f(x)`` reads it first, and so does ``x += 1``
    first = min(every, key=lambda n: (n.lineno, not isinstance(n.ctx, ast.Load), n.col_offset), default=None)
    added = {id(n.target) for node in part for n in ast.walk(node) if isinstance(n, ast.AugAssign)}
    return first is not None and isinstance(first.ctx, ast.Store) and id(first) not in added


def _shares_lines(loop: Block, part: Collection[ast.stmt]) -> bool:
    """Whether a statement of a part stands on a line with one that is none, or beside its loop."""
    if first_line(loop.body[0]) == loop.lineno:
        return True
    together = ((a, b) for a, b in pairwise(loop.body) if first_line(b) <= (a.end_lineno or a.lineno))
    return any((a in part) != (b in part) for a, b in together)


def _is_below(source: Source, node: ast.AST, part: Collection[ast.stmt]) -> bool:
    above: ast.AST | None = node
    while above is not None and above not in part:
        above = source.parents.get(above)
    return above is not None


def _runs(body: Sequence[ast.stmt], part: Collection[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """The statements of a part, those together that stand one after the other."""
    run: list[ast.stmt] = []
    for node in body:
        if node in part:
            run.append(node)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _block(source: Source, run: Sequence[ast.stmt], call: str) -> Edit:
    """The lines of some statements, and what stands between them, gone; a call in their place."""
    text = f"{source.indent(run[0])}{call}\n" if call else ""
    return Edit(first_line(run[0]), 0, (run[-1].end_lineno or run[-1].lineno) + 1, 0, text)


def _text(
    source: Source, function: Function, loop: Block, part: Sequence[ast.stmt], called: tuple[str, list[str], list[str]]
) -> list[str]:
    name, parameters, results = called
    what = "one round of a loop" if isinstance(loop, Rounds) else "a part"
    lines = [f"def {name}({', '.join(parameters)}):  # {what} of {function.name}"]
    above = (node for node in (loop, *source.above(loop)) if isinstance(node, ast.With))
    contexts = [source.text(item.context_expr) for node in above for item in reversed(node.items)]
    contexts += [source.text(each) for each in function.decorator_list]
    nearest = next((text for text in contexts if about_gradients(text) or "grad" in text), "")  # it may turn them on
    lines[:0] = [f"@{nearest}"] if about_gradients(nearest) else []
    assigned = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    if outer := sorted(assigned & stored(part)):
        lines.append(f"    global {', '.join(outer)}")
    lines += [f"    {each}.grad = None" for each in gradients_anew(loop, part, parameters)]
    for run in _runs(loop.body, part):
        depth = len(source.indent(run[0]))
        rows = source.lines[first_line(run[0]) - 1 : run[-1].end_lineno]
        lines += [f"    {row[depth:].rstrip()}" if row[:depth].isspace() or not depth else row.rstrip() for row in rows]
    lines += [f"    return {', '.join(results)}"] if results else []
    return [*lines, "", ""]


def _new_name(source: Source, function: Function, kind: str, others: Collection[str]) -> str:
    taken = {*others} | names_in(source.tree) | {n.name for n in ast.walk(source.tree) if isinstance(n, Function)}
    name = f"{function.name.strip('_')}_{kind}"
    return name if name not in taken else next(more for n in count(2) if (more := f"{name}_{n}") not in taken)
