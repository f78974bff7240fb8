"""What the host does in the middle of a step, wherever that is, is done after the launch, from a list.

``losses.append(loss.item())`` in a loop, in a hook, in a callback or in a method that the step calls: what it reads is
kept in ``later``. A capture fills the list once, a parameterized launch puts today's tensors there; after each of them
all of it is done, in its order, on what the graph has written. Only statements are taken that nothing in the step
reads the effects of. What reads variables of a function around its own is kept as a function itself.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType

from paramgraph_kit.rewrite.source.edits import (
    Edit,
    Function,
    Source,
    first_line,
    locals_of,
    names_in,
    path_of,
    scope_of,
    within,
)
from paramgraph_kit.rewrite.source.moving import arguments_of, body_of, cloned, is_closed, is_kept, stored
from paramgraph_kit.rewrite.source.place import called, fresh
from paramgraph_kit.rewrite.source.ungraded import off_around
from paramgraph_kit.rewrite.source.writes import only_added_to, paths, touches, written
from paramgraph_kit.rewrite.source.written_after import written_after

CODES = frozenset(
    ("sync-item", "host-counter", "print", "copy-to-cpu", "blocking-copy", "output-alias", "data-dependent-branch")
)
_KINDS = (ast.Expr, ast.Assign, ast.AugAssign, ast.If)
_CLOCKS = frozenset(("perf_counter", "perf_counter_ns", "monotonic", "time", "elapsed_time", "now"))
_LOGS = frozenset(("info", "debug", "warning", "error", "write", "add_scalar", "log", "print", "put"))


Graded = Mapping[tuple[str, str, int], Collection[str]]
More = Callable[[ast.stmt], Iterable[Edit]]


@dataclass(slots=True)
class Block:
    """Statements of one block that are done later, together, where the last of them stands."""

    function: Function
    statements: list[ast.stmt]
    numbers: frozenset[str] = frozenset()  # what it reads that is no tensor: the list would have the capture's


def only_tells(node: ast.stmt) -> bool:
    """Whether a branch does nothing but tell that it was taken."""
    parts = [*node.body, *node.orelse] if isinstance(node, ast.If) else []
    return bool(parts) and all(isinstance(part, ast.Expr) and _is_log(part) for part in parts)


def tellers(function: Function, counting: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Branches that only tell, decided by what others count: ``if step % 100 == 0: log(loss)``, in no step so far."""
    counted = stored([node for node in counting if isinstance(node, (ast.AugAssign, ast.Assign))])
    branches = (node for node in body_of(function) if isinstance(node, ast.If))
    return [node for node in branches if only_tells(node) and names_in(node.test) & counted]


def blocks(source: Source, wanted: Iterable[ast.stmt], ran: Sequence[ast.AST]) -> list[Block]:
    """The blocks whose wanted statements can all be done later; ``ran`` is the syntax of what a step runs."""
    found: list[Block] = []
    wanted = list(wanted)
    counting = [node for node in wanted if isinstance(node, ast.AugAssign)]
    for statement in wanted:
        function = source.function_of(statement)
        put_off = (part for block in found for node in block.statements for part in ast.walk(node))
        if function is None or any(part is statement for part in put_off):
            continue
        top: ast.AST | None = statement
        while isinstance(top, ast.stmt) and top is not function:  # `if isinstance(v, Tensor): v = v.item()` as a whole
            siblings = source.block_of(top)
            chosen = _with_what_needs_them([node for node in siblings if node in {*wanted, top}], siblings)
            # An object in the list would have all that it holds count as read by the graph.
            lifted = top is not statement and any("self" in names_in(node) for node in chosen)
            if any(source.shares_lines(node) for node in chosen):
                break  # `def update(self, x): self.total += x; self.n += 1`
            if chosen and not lifted and _is_alone(chosen, function, ran, counting):
                found = [block for block in found if not any(_holds(node, block) for node in chosen)]
                found.append(Block(function, chosen))
                break
            top = source.parents.get(top) if isinstance(source.parents.get(top), ast.If) else None
    return found


def steady(
    source: Source,
    found: Sequence[Block],
    tensors: Mapping[tuple[str, str, int], Collection[str]],
    others: Collection[str],
) -> list[Block]:
    """Those blocks that keep nothing but tensors: of a number the list would have the capture's for ever.

    ``tensors``: by the scope of a function its local names that hold one; ``others``: for functions that are not known.
    """
    known = [tensors.get(scope_of(source, one.function)) or others for one in found]
    for one, names in zip(found, known, strict=True):
        one.numbers = frozenset(_reads(one)) - set(names)
    return [one for one, names in zip(found, known, strict=True) if not _keeps_numbers(source, one, names)]


def _keeps_numbers(source: Source, block: Block, tensors: Collection[str]) -> bool:
    """Whether statements keep what a name stands for that is no tensor."""
    read = set(_reads(block)) - stored(block.statements) - set(tensors) - _rounds_of(block.function)
    return any(True for node in block.statements for _ in cloned(source, node, read))


def _rounds_of(function: Function) -> set[str]:
    """Names of what counts the rounds of loops, and nothing else: they are the same numbers in each step."""
    found, others = set[str](), list[str]()
    for node in ast.walk(function):
        call = node.iter if isinstance(node, (ast.For, ast.comprehension)) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and isinstance(node, ast.For):
            target = node.target
            if call.func.id == "enumerate" and isinstance(target, ast.Tuple):
                target = target.elts[0]
            if call.func.id in ("enumerate", "range") and isinstance(target, ast.Name):
                found.add(target.id)
        if isinstance(node, ast.Name) and _is_stored(node):
            others.append(node.id)
    return {name for name in found if others.count(name) == 1} - set(arguments_of(function))


def _holds(node: ast.stmt, block: Block) -> bool:
    return any(part is block.statements[0] for part in ast.walk(node))


def ran_in(source: Source, codes: Iterable[CodeType], entry: str = "") -> list[ast.stmt]:
    """The statements of all functions of a file that a step runs, or that what it runs calls by name.

    ``entry``: what is run; nothing in it calls what comes to it: ``opt.step()`` in a part of ``step`` is another one.
    """
    names = {name for code in codes for name in code.co_names}
    begins = {code.co_firstlineno for code in codes if code.co_filename == source.file}
    functions = [node for node in source.parents if isinstance(node, Function)]
    own = names & {node.name for node in functions} if entry else set()
    names -= {name for name in own if entry in reached([source], [name])}
    ran = [node for node in functions if node.name in names or {first_line(node), node.lineno} & begins]
    return [part for node in ran for part in node.body]


def reached(sources: Iterable[Source], names: Iterable[str], but: ast.AST | None = None) -> set[str]:
    """Some names, with those of all that the user's functions of these names call, and so on.

    ``but``: a function that none of them calls: ``opt.step()`` is no call of the step that it stands in.
    """
    every = [node for source in sources for node in source.parents if isinstance(node, Function) and node is not but]
    calls: dict[str, set[str]] = {}
    for node in every:
        calls.setdefault(node.name, set()).update(called(part) for part in ast.walk(node) if isinstance(part, ast.Call))
    found = set(names)
    while more := {new for name in found for new in calls.get(name, ())} - found:
        found |= more
    return found


def outermost(source: Source, function: object, inner: Function) -> Function:
    """What a step runs first: the function, or a decorator's of the user's own around it."""
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and code.co_filename == source.file:
        for node in source.parents:
            if isinstance(node, Function) and node.name == code.co_name and code.co_firstlineno == first_line(node):
                return node
    return inner


def defer(
    source: Source,
    found: Sequence[Block],
    first: Function,
    last: Function,
    taken: Iterable[str],
    graded: Graded,
    more: More = lambda _: (),
    numbers: Collection[str] = (),
) -> tuple[list[Edit], str, list[str]]:
    """Edits that put these statements off, the name of the list, and what is done with it behind the launch.

    Args:
        source: the file.
        found: what is put off.
        first: what a step runs first.
        last: the function behind which it is done.
        taken: names that the list must not have.
        graded: by the scope of a function its local names that hold a tensor with gradients as it returns.
        more: other edits of a statement that is put off.
        numbers: variables of ``last`` that were numbers which the host has read.
    """
    name = fresh("later", set(taken))

    def all_of(node: ast.stmt) -> Iterable[Edit]:
        return [*more(node), *_as_numbers(source, node, numbers if source.function_of(node) is last else ())]

    start = first.body[0]
    if isinstance(start, ast.Expr) and isinstance(start.value, ast.Constant) and len(first.body) > 1:
        start = first.body[1]  # behind the docstring
    edits = [source.before(start, [f"{name}.clear()"], rank=-1)]
    closed = any(_reads_around(source, block) for block in found)
    for number, block in enumerate(found):
        end = block.statements[-1]
        edits += [source.without(node) for node in block.statements[:-1]]
        indent = source.indent(end)
        known = graded.get(scope_of(source, block.function), frozenset())
        which = number if len(found) > 1 else None
        put = _work(source, block, name, all_of, known) if closed else _kept(block, name, which, known, last)
        edits.append(
            Edit(
                first_line(end), len(indent), end.end_lineno or end.lineno, _width(source, end), f"\n{indent}".join(put)
            )
        )
    return edits, name, [f"for work in {name}:", "    work()"] if closed else _done(source, found, name, last, all_of)


def _reads_around(source: Source, block: Block) -> bool:
    """Whether statements read or write variables of a function around their own."""
    around, names = source.function_of(block.function), {n for node in block.statements for n in names_in(node)}
    names |= {path for node in block.statements for path in written(node)}
    while around is not None:
        if names & locals_of(around) - locals_of(block.function):
            return True
        around = source.function_of(around)
    return False


def _reads(block: Block, last: Function | None = None) -> list[str]:
    """Local names that statements read; behind the function itself its owner is there, and so are today's arguments."""
    read = {n for node in block.statements for n in names_in(node)} & locals_of(block.function)
    own = {"self", *_as_called(block)} if block.function is last else set[str]()
    inside = {part for node in block.statements for part in ast.walk(node)}
    there = {n.id for n in ast.walk(block.function) if isinstance(n, ast.Name) and n not in inside and _is_stored(n)}
    return sorted(read - (stored(block.statements) - there - {*arguments_of(block.function)}) - own)


def _as_called(block: Block) -> set[str]:
    """What is no tensor, and a function is called with and never changes: ``epoch`` is another one at each launch."""
    anew = {n.id for n in ast.walk(block.function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return (set(arguments_of(block.function)) - anew) & block.numbers


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _kept(block: Block, name: str, number: int | None, graded: Collection[str], last: Function) -> list[str]:
    """What puts into the list what the statements read."""
    anew = stored(block.statements)  # what such a name held before that is not seen as the function returns
    given = [
        f"{each}.detach() if isinstance({each}, torch.Tensor) else {each}"
        if each in anew
        else f"{each}.detach()"
        if each in graded
        else each
        for each in _reads(block, last)
    ]
    if number is not None:
        given.insert(0, str(number))
    return [f"{name}.append(({', '.join(given)}{',' * (len(given) == 1)}))"]


def _done(source: Source, found: Sequence[Block], name: str, last: Function, more: More) -> list[str]:
    """The statements, as they are done with what the list has."""
    works = [f"work_{number}" if number else "work" for number in range(len(found))]
    lines: list[str] = []
    for work, block in zip(works, found, strict=True):
        lines += [f"def {work}({', '.join(_reads(block, last))}):", *_body(source, block, more)]
    if len(found) == 1:
        return [*lines, f"for given in {name}:", "    work(*given)"]
    return [*lines, f"for number, *given in {name}:", f"    ({', '.join(works)})[number](*given)"]


def _as_numbers(source: Source, node: ast.stmt, numbers: Collection[str]) -> Iterator[Edit]:
    """``norms.append(norm)`` keeps the number that it kept, where ``norm`` is a tensor by now."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in numbers and is_kept(source, part):
            yield written_after(source, part, ".item()")


def _width(source: Source, node: ast.stmt) -> int:
    return len(source.lines[(node.end_lineno or node.lineno) - 1].rstrip("\n"))


def _work(source: Source, block: Block, name: str, more: More, graded: Collection[str]) -> list[str]:
    """The statements as a function of what they read, which is put into the list, and keeps no graph of gradients."""
    given = ", ".join(f"{each}={each}{'.detach()' * (each in graded)}" for each in _reads(block))
    return [f"def work({given}):", *_body(source, block, more), f"{name}.append(work)"]


def _body(source: Source, block: Block, more: More) -> list[str]:
    """The statements as those of a function of what they read."""
    lines = []
    for word, kind in (("global", ast.Global), ("nonlocal", ast.Nonlocal)):
        outer = {n for node in ast.walk(block.function) if isinstance(node, kind) for n in node.names}
        if here := sorted(outer & {path for node in block.statements for path in written(node)}):
            lines.append(f"    {word} {', '.join(here)}")
    off = off_around(source, block.function, block.statements)
    lines += [f"    with {off}:"] * bool(off)
    deep = "    " * (1 + bool(off))
    for node in block.statements:
        depth = len(source.indent(node))
        handed = [each for each in _reads(block) if each not in stored(block.statements)]
        handed = [each for each in handed if each not in _rounds_of(block.function)]
        others = list(more(node))
        kept = [edit for edit in cloned(source, node, handed) if not any(_is_at(edit, each) for each in others)]
        whole = source.apply([*kept, *others])
        for line in source.part(node, whole):
            lines.append(f"{deep}{line[depth:].rstrip()}")
    return lines


def _is_at(one: Edit, other: Edit) -> bool:
    """Whether two edits put something in at one place."""
    return (one.line, one.column, one.end_column) == (other.line, other.column, other.end_column)


def _with_what_needs_them(chosen: list[ast.stmt], siblings: list[ast.stmt]) -> list[ast.stmt]:
    """The same with all that reads what they keep; nothing where one of these cannot be put off."""
    while True:
        more = [
            node
            for node in siblings
            if node not in chosen and any(siblings.index(one) < siblings.index(node) for one in chosen)
            if stored(chosen) & names_in(node)
            or any(touches(a, b) for one in chosen for a in _effects(one) for b in paths(node))
        ]
        if not all(isinstance(node, _KINDS) and is_closed(node) for node in [*chosen, *more]):
            return []
        if not more:
            return chosen
        chosen = [node for node in siblings if node in chosen or node in more]


def _is_alone(chosen: list[ast.stmt], function: Function, ran: Sequence[ast.AST], counting: Sequence[ast.stmt]) -> bool:
    """Whether these statements do something beyond the function, and nothing that stays reads it.

    ``counting`` are others that are put off, if they can be: they only add to what they name.
    """
    inside = {part for node in chosen for part in ast.walk(node)}
    own, local = stored(chosen), locals_of(function)
    if any(isinstance(n, ast.Name) and n.id in own & local and n not in inside for n in ast.walk(function)):
        return False
    read = {n for node in chosen for n in names_in(node)} & local - own
    made = [n for n in ast.walk(function) if isinstance(n, (ast.Assign, ast.AugAssign)) and stored([n]) & read]
    if any(_asks_a_clock(node) for node in [*chosen, *made]):
        return False  # a time of the capture's, which no comparison of two runs would show
    if _asks_what_changes(chosen, local, ran, counting):
        return False
    effects = {path for node in chosen for path in _effects(node) if path.partition(".")[0] not in own & local}
    if not effects and not any(_is_log(node) for node in chosen):
        return False
    if {path.partition(".")[0] for path in effects if "." not in path} & local:
        return False  # a list of the function's own, which it reads or returns
    inside |= {part for node in counting for part in ast.walk(node)} | only_added_to(ran)
    stay = (part for top in ran for part in ast.walk(top) if part not in inside)
    reads = (n for n in stay if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Load))
    last = {path.rpartition(".")[2] for path in effects}
    plain = {path for path in effects if "." not in path}  # a name reads no attribute: `rounds` beside `self.rounds`
    return not any(
        node.id in plain if isinstance(node, ast.Name) else path_of(node).rpartition(".")[2] in last for node in reads
    )


def _asks_what_changes(
    chosen: list[ast.stmt], local: Collection[str], ran: Sequence[ast.AST], counting: Sequence[ast.stmt]
) -> bool:
    """Whether statements read from an object what a step sets there: behind it ``trainer.loss`` is the last round's."""
    inside = {part for node in (*chosen, *counting) for part in ast.walk(node)}
    read = {
        part.attr
        for node in chosen
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load) and names_in(part) & set(local)
    }
    stay = (part for top in ran for part in ast.walk(top) if part not in inside)
    return any(isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and n.attr in read for n in stay)


def _asks_a_clock(node: ast.stmt) -> bool:
    calls = [part.func for part in within(node) if isinstance(part, ast.Call)]
    names = {path_of(each) for each in calls}
    return any(name.partition(".")[0] in ("time", "datetime") or name.rpartition(".")[2] in _CLOCKS for name in names)


def _effects(node: ast.stmt) -> set[str]:
    """What a statement writes, besides lines of a log."""
    logs = {
        path_of(part.func.value)
        for part in within(node)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in _LOGS
    }
    return {path for path in written(node) if path and path not in logs}


def _is_log(node: ast.stmt) -> bool:
    return any(isinstance(part, ast.Call) and called(part) in _LOGS for part in within(node))
