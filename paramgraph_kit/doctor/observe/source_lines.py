"""Where in the user's source something is written, or decided: read from the syntax tree of the functions that ran."""

from __future__ import annotations

import ast
import linecache
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import conditionals_of, last_name, nodes_of
from paramgraph_kit.doctor.observe.asked_through import asks_through
from paramgraph_kit.doctor.observe.bound_by_name import is_entry_of, sets_by_name
from paramgraph_kit.doctor.observe.explained import explains
from paramgraph_kit.doctor.observe.flags import flags_of
from paramgraph_kit.doctor.observe.follows_readings import follows
from paramgraph_kit.doctor.observe.held import code_of
from paramgraph_kit.doctor.observe.left_early import left_early
from paramgraph_kit.doctor.observe.places import Position
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.trace.model import Failure, Frame

MUTATORS = frozenset(
    """append appendleft extend insert add update setdefault pop popitem popleft move_to_end remove discard clear sort
    reverse put put_nowait get get_nowait""".split()  # noqa: SIM905 - shorter so
)
HOST_ONLY = MUTATORS | frozenset(
    "print item float int str len format info debug warning log write save add_scalar round tolist min max".split()  # noqa: SIM905
)
_TAKERS = frozenset(("pop", "popleft", "popitem", "remove", "discard", "clear"))
Line = tuple[str, int]  # a file, as it is shown, and a line
Branching = ast.If | ast.IfExp | ast.While | ast.For | ast.Match


class MayHaveRun(list[CodeType]):
    """Functions of the user's, with those that ran or are named by what ran."""

    def __init__(self, codes: Iterable[CodeType], named: Collection[CodeType]) -> None:
        super().__init__(codes)
        self.named = named


def frame_at(code: CodeType, line: int) -> Frame:
    """A line of a function."""
    text = linecache.getline(code.co_filename, line).strip()
    return Frame(display_name(code.co_filename), line, code.co_name, text)


def lines_of(problems: Iterable[Failure]) -> set[Line]:
    """The lines where problems are told."""
    return {(f.frame.file, f.frame.line) for f in problems if f.frame is not None}


def defined_at(function: Any) -> Frame | None:
    """The line where a function of the user's begins."""
    code = code_of(function)
    if code is None or is_library(code.co_filename):
        return None
    return frame_at(code, code.co_firstlineno)


def written_at(change: Change, codes: Iterable[CodeType]) -> Frame | None:
    """The line that made a change, or None where no line of the user's writes to that name."""
    named = codes.named if isinstance(codes, MayHaveRun) else ()
    codes = in_order(codes)
    writing = [(code, node) for code in codes for node in nodes_of(code) if _writes(node, change)]
    writing = [each for each in writing if each[0] in named] or writing
    if not writing and isinstance(change.key, str):  # the entry of a dictionary that has another name here
        writing = [(code, node) for code in codes for node in nodes_of(code) if _writes_entry(node, change.key)]
    likely = [each for each in writing if not _writes_other(each[1], change)] or writing
    likely = [each for each in likely if change.entry is None or _names_entry(each[1], change.entry)] or likely
    likely = [each for each in likely if change.key is not None and _writes_entry(each[1], change.key)] or likely
    likely = [each for each in likely if explains(each[1], change)] or likely
    if change.kind == "container" and _length(change.after) >= _length(change.before):
        likely = [each for each in likely if not takes_away(each[1])] or likely  # what it has more came elsewhere
    for code, node in likely:
        return frame_at(code, node.lineno)  # type: ignore[attr-defined]  # all that write have a line
    return _named_in(change, codes)


def in_order(codes: Iterable[CodeType]) -> list[CodeType]:
    """Functions as they stand in their files where they come as a set, whose order is another in each process."""
    if not isinstance(codes, AbstractSet):
        return list(codes)
    return sorted(codes, key=lambda code: (code.co_filename, code.co_firstlineno, code.co_qualname))


def written_in(change: Change, nodes: Iterable[tuple[CodeType, ast.AST]]) -> Frame | None:
    """The line of some that made a change, or None where none of them writes to that name."""
    writing = [(code, node) for code, node in nodes if _writes(node, change)]
    likely = [each for each in writing if not _writes_other(each[1], change)] or writing
    return next((frame_at(code, node.lineno) for code, node in likely), None)  # type: ignore[attr-defined]


def takes_away(node: ast.AST) -> bool:
    """Whether it takes something out of a container and puts nothing there: ``memory.pop(0)``, ``del memory[0]``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _TAKERS
    return isinstance(node, ast.Delete)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, dict, deque)) else 0


def _writes_other(node: ast.AST, change: Change) -> bool:
    """Whether it assigns a constant that is not what the name holds now, as where a count begins again."""
    value = node.value if isinstance(node, ast.Assign) else None
    if isinstance(node, ast.Assign) and isinstance(value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple):
        pairs = zip(node.targets[0].elts, value.elts, strict=False)  # self.sum, self.count = 0, 0
        value = next(
            (v for t, v in pairs if isinstance(t, (ast.Name, ast.Attribute)) and _called(t) == change.name), None
        )
    if not isinstance(value, ast.Constant):
        return False
    return isinstance(change.after, (int, float, str)) and value.value != change.after


def _names_entry(node: ast.AST, entry: Any) -> bool:
    """Whether it writes to what a dictionary has under a key: ``losses["D"].append(x)``, ``losses["D"] += [x]``."""
    held: Any = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    held = node.target if isinstance(node, ast.AugAssign) else held
    held = (
        node.targets[0].value if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript) else held
    )
    key = held.slice if isinstance(held, ast.Subscript) else None
    return isinstance(key, ast.Constant) and bool(key.value == entry)


def _named_in(change: Change, codes: Iterable[CodeType]) -> Frame | None:
    """The first line of a function that names it, of those whose source nobody has kept: typed, or run by exec."""
    for code in codes:
        names = {*code.co_names, *code.co_freevars} if not linecache.getlines(code.co_filename) else set()
        if code.co_filename.startswith("<") and not names.isdisjoint({change.name, change.owner}):
            return frame_at(code, code.co_firstlineno)
    return None


def _writes(node: ast.AST, change: Change) -> bool:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For)):
        targets = [node.target]
    elif isinstance(node, ast.Delete):
        targets = node.targets
    flat = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    if change.kind == "global" and any(is_entry_of(target, "globals", change.name) for target in flat):
        return True
    if change.kind in ("cell", "global"):
        return any(isinstance(target, ast.Name) and target.id == change.name for target in flat)
    if change.kind == "attribute" and sets_by_name(node, change.name):
        return True
    if change.kind == "attribute":
        return any(isinstance(target, ast.Attribute) and target.attr == change.name for target in flat)
    if change.kind == "file":  # log.write(...), print(..., file=log), json.dump(values, log)
        used = [node.func.value] if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else []
        used += [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else []
        return any(isinstance(each, (ast.Name, ast.Attribute)) and _called(each) == change.name for each in used)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        return _called(node.func.value) == change.name
    if isinstance(node, ast.AugAssign) and _called(node.target) == change.name:
        return _has_key(node.target, change)
    return any(
        isinstance(target, ast.Subscript) and _called(target) == change.name and _has_key(target, change)
        for target in flat
    )


def _writes_entry(node: ast.AST, key: Any) -> bool:
    """Whether it is ``x[key] = ...`` or ``x[key] += ...``, whatever ``x`` is."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    entries = [each for each in targets if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant)]
    return any(bool(each.slice.value == key) for each in entries if isinstance(each.slice, ast.Constant))


def gives_memory(codes: Iterable[CodeType]) -> Iterator[tuple[str, Frame]]:
    """Lines that give a tensor other memory, and its name: ``p.data = ...``, ``p.set_(...)``, ``assign=True``.

    A gradient is no parameter, also by another name: ``g = p.grad; g.data = ...``.
    """
    for code in codes:
        nodes = list(nodes_of(code))
        assigned = [node for node in nodes if isinstance(node, ast.Assign)]
        grads = {_called(to) for node in assigned if _is_gradient(node.value) for to in node.targets} | {"grad"}
        for node in nodes:
            if isinstance(node, ast.Assign):
                for each in node.targets:
                    if isinstance(each, ast.Attribute) and each.attr == "data" and _called(each.value) not in grads:
                        yield _called(each.value), frame_at(code, node.lineno)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "set_" and _called(node.func.value) not in grads:
                    yield _called(node.func.value), frame_at(code, node.lineno)
                elif any(keyword.arg == "assign" for keyword in node.keywords):
                    yield "", frame_at(code, node.lineno)


def _is_gradient(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "grad"


def _called(node: ast.expr) -> str:
    """The last name of ``a.b[c]``: what the container is called."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def branch_between(
    code: CodeType,
    near: Iterable[Position],
    ran: Iterable[Position],
    elsewhere: Iterable[Position],
    *,
    once: bool = False,
) -> Frame | None:
    """The branch or loop of a function that decides between positions: it holds one of them and not all.

    ``ran`` is where one call was, ``elsewhere`` all places of the other. Of an if and what is in it, the if has
    decided where the other call did nothing at all in there; otherwise it is the innermost. ``once``: a call of the
    user's runs the function once, so that the other call has left it nowhere before the last of its places.
    """
    near, ran, elsewhere = list(near), list(ran), list(elsewhere)
    found: list[Branching] = []
    nodes = list(nodes_of(code))
    # Of rounds that were aligned with others, a choice in them is asked elsewhere too.
    in_rounds = {part for node in nodes if isinstance(node, (ast.For, ast.While)) for part in ast.walk(node)}
    for node in nodes:
        if isinstance(node, Branching):
            inside = [_span(part, near) for part in _parts(node)]
            asked = node in in_rounds or (_may_decide(node, ran, elsewhere) and not _holds_both(node, near, elsewhere))
            if len(set(inside)) >= 2 and any(map(any, inside)) and asked and not _is_of_one_length(node):
                found.append(node)
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    for node in found:
        if isinstance(node, (ast.For, ast.While)):
            continue
        for part in _parts(node):
            if any(_span(part, ran)) and not any(_span(part, elsewhere)):
                # Of what kind something is, is no other question in the next call: what has left before it has decided.
                early = left_early(code, node.lineno) if not elsewhere and _asks_for_kind(node) else None
                return frame_at(code, early or node.lineno)
    loop = found[0] if found and isinstance(found[0], ast.For) else None
    last = max(elsewhere, default=(0, 0))[0] if once else 0
    start = min(ran if once and ran else near, default=(0, 0))[0]
    early = left_early(code, loop.lineno if loop is not None else start, last)
    # A loop that the other call has not come to, nor to anything before it, is one that it has left before.
    if early and (not found or (loop is not None and not any(early < at[0] for at in elsewhere))):
        return frame_at(code, early)
    if found and isinstance(found[-1], ast.For) and (early := _drawn_to_leave(found[-1], min(ran, default=(0, 0))[0])):
        return frame_at(code, early)
    return frame_at(code, found[-1].lineno) if found else None


def _may_decide(node: Branching, ran: list[Position], elsewhere: list[Position]) -> bool:
    """Whether a choice can be what kept one call from where the other was: it holds that, or only one of them."""
    parts = _parts(node)
    return any(any(_span(part, ran)) for part in parts) or not any(any(_span(part, elsewhere)) for part in parts)


def _holds_both(node: Branching, near: list[Position], elsewhere: list[Position]) -> bool:
    """Whether both calls were in the same part of a choice, around all that differs."""
    return any(all(_span(part, near)) and any(_span(part, elsewhere)) for part in _parts(node))


def _is_of_one_length(node: ast.AST) -> bool:
    """Whether a loop goes the same rounds in each call: ``for _ in range(3)``, where nothing in it leaves it."""
    if not isinstance(node, ast.For):
        return False
    counted = isinstance(node.iter, ast.Call) and path_of(node.iter.func) == "range" and not node.iter.keywords
    listed = node.iter.args if isinstance(node.iter, ast.Call) and counted else [node.iter]
    written = (ast.Constant, ast.Tuple, ast.List, ast.UnaryOp, ast.USub, ast.Load)
    leaves = any(isinstance(n, (ast.Break, ast.Return)) for part in node.body for n in ast.walk(part))
    return not leaves and all(isinstance(n, written) for each in listed for n in ast.walk(each))


def _asks_for_kind(node: Branching) -> bool:
    """Whether a choice asks what kind something is: ``isinstance(x, T)``, ``type(x) == T``, ``hasattr(x, "n")``."""
    test = getattr(node, "test", None)
    while isinstance(test, ast.UnaryOp):
        test = test.operand
    calls = [test] if isinstance(test, ast.Call) else [test.left] if isinstance(test, ast.Compare) else []
    kinds = ("isinstance", "type", "hasattr", "callable", "is_tensor")
    return any(isinstance(each, ast.Call) and _called(each.func) in kinds for each in calls)


def _drawn_to_leave(loop: ast.For, line: int) -> int | None:
    """The line of an ``if random() < p: continue`` of a loop before one of its lines."""
    for node in loop.body:
        if isinstance(node, ast.If) and isinstance(node.body[-1], (ast.Continue, ast.Break)) and node.lineno < line:
            calls = (path_of(part.func) for part in ast.walk(node.test) if isinstance(part, ast.Call))
            if any("rand" in path for path in calls):
                return node.lineno
    return None


def instead_of_a_round(code: CodeType, line: int) -> Frame | None:
    """The one branch of a loop that may decide, where that of a line asks for the number of the round: ``if i == 2``.

    It is answered alike in each call.
    """
    nodes = list(nodes_of(code))
    loops = [n for n in nodes if isinstance(n, ast.For) and n.lineno < line <= (n.end_lineno or 0)]
    rounds = {n.id for loop in loops for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    inside = {n for loop in loops for n in ast.walk(loop)}
    branches = [n for n in nodes if isinstance(n, (ast.If, ast.IfExp)) and n in inside]
    of_rounds = [n for n in branches if _asks_for(n.test, rounds)]
    others = [n for n in branches if n not in of_rounds]
    own = any(n.test.lineno == line for n in of_rounds) and all(n.test.lineno != line for n in others)
    return frame_at(code, others[0].test.lineno) if own and len(others) == 1 else None


def _asks_for(test: ast.expr, names: set[str]) -> bool:
    parts = list(ast.walk(test))
    read = {n.id for n in parts if isinstance(n, ast.Name)}
    return bool(read) and read <= names and not any(isinstance(n, (ast.Call, ast.Attribute)) for n in parts)


def _parts(node: Branching) -> list[list[ast.AST]]:
    if isinstance(node, ast.IfExp):
        return [[node.body], [node.orelse]]
    if isinstance(node, ast.Match):
        return [list(case.body) for case in node.cases]
    return [list(node.body), list(node.orelse)]


def _span(part: list[ast.AST], positions: list[Position]) -> tuple[bool, ...]:
    """For each position, whether a part of a branch holds it."""
    spans = [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in part]  # type: ignore[attr-defined]
    return tuple(any(start <= at <= end for start, end in spans) for at in positions)


def tests_of(code: CodeType, change: Change, told: set[int], waited: Iterable[Frame | None]) -> Iterator[Frame]:
    """Branches of a function that ask for a number which a call has changed; ``told`` are lines with a problem.

    ``waited``: where the first call has read from the device, by whatever call: ``float(loss)``.
    """
    reads = {at.line for at in waited if at is not None and at.file == code.co_filename}
    nodes = list(nodes_of(code))
    entries = [n for n in nodes if isinstance(n, ast.Assign) and _holds_entry(n.value, change)]
    called = {path_of(t) for n in entries if _called(n.value) == change.name for t in n.targets} - {""}
    changes = [change, *(replace(change, name=name) for name in sorted(called - {change.name}))]
    derived = {name for each in changes for name in _derived(nodes, each, code.co_filename)}

    def reads_it(part: ast.AST) -> bool:
        return any(_reads(part, each) for each in changes)

    def asks(asked: ast.expr) -> bool:
        named = any(path_of(n) in derived or reads_it(n) for n in ast.walk(asked))
        return named or asks_through(asked, code.co_filename, reads_it)

    for node in nodes:
        if isinstance(node, ast.Call) and node.lineno not in told and any(map(asks, flags_of(node))):
            yield frame_at(code, node.lineno)
        if not isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Match)):
            continue
        untold = [part for part in _parts(node) if not _lines(part) & told]
        if not any(_waits(part) or _lines(part) & reads for part in untold) and not any(map(_works, _parts(node))):
            continue
        if asks(node.subject if isinstance(node, ast.Match) else node.test):
            yield frame_at(code, node.lineno)


def _derived(nodes: list[ast.AST], change: Change, file: str) -> set[str]:
    """Names that are assigned a truth, a text or a number which a changed number decides: ``hot = calls > 3``."""
    found: set[str] = set()
    while True:
        more = {
            path_of(target)
            for node in nodes
            if isinstance(node, ast.Assign) and _of_numbers(node.value) and not _holds_entry(node.value, change)
            if any(_reads(n, change) or path_of(n) in found for n in ast.walk(node.value))
            or asks_through(node.value, file, lambda part: _reads(part, change))
            for target in node.targets
        } - {"", change.name}
        if more <= found:
            return found
        found |= more


def _holds_entry(value: ast.expr, change: Change) -> bool:
    """Whether it is the dictionary of an entry, ``state`` of ``state = self.states[p]``, and no number."""
    named = isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant)
    return isinstance(value, ast.Subscript) and not named and isinstance(change.key, str)


def _of_numbers(value: ast.expr) -> bool:
    """Whether an expression is decided on the host, as far as its form tells: no call may make a tensor of it."""
    return not any(isinstance(n, ast.Call) and _called(n.func) not in HOST_ONLY for n in ast.walk(value))


def path_of(node: ast.AST) -> str:
    """``a.b`` for ``a.b``, or ""."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *parts]) if isinstance(node, ast.Name) else ""


def _works(part: list[ast.AST]) -> bool:
    """Whether a part of a branch does more than keep numbers and write them somewhere."""
    return bool(_calls(part) - HOST_ONLY)


def _waits(part: list[ast.AST]) -> bool:
    """Whether a part of a branch reads numbers back, as where every tenth step is logged."""
    return bool(_calls(part) & {"item", "tolist"})


def _calls(part: list[ast.AST]) -> set[str]:
    return {_called(n.func) for node in part for n in ast.walk(node) if isinstance(n, ast.Call)}


def _lines(part: list[ast.AST]) -> set[int]:
    return {line for node in part for line in range(node.lineno, node.end_lineno + 1)}  # type: ignore[attr-defined]


def _reads(node: ast.AST, change: Change) -> bool:
    if change.kind in ("cell", "global"):
        return isinstance(node, ast.Name) and node.id == change.name
    if change.kind == "attribute":
        return isinstance(node, ast.Attribute) and node.attr == change.name
    return isinstance(node, ast.Subscript) and _called(node) == change.name and _has_key(node, change)


def _has_key(node: ast.expr, change: Change) -> bool:
    """Whether ``a[key]`` may be the entry that has changed."""
    if change.key is None or not isinstance(node, ast.Subscript):
        return True
    if isinstance(node.slice, ast.Constant):
        return bool(node.slice.value == change.key)
    inner, names = node.value, list[object]()  # a["k"][i] is in another entry than a["n"]
    while isinstance(inner, ast.Subscript):
        names += [inner.slice.value] if isinstance(inner.slice, ast.Constant) else []
        inner = inner.value
    return not isinstance(change.key, str) or not names or change.key in names


def entered_after(code: CodeType, line: int) -> Iterator[int]:
    """The lines of the tests that decide whether a line of a function runs, also by returning before it."""
    tests = conditionals_of(code)
    around = [node for node in tests if node.body[0].lineno <= line <= (node.end_lineno or 0)]
    ends = [node for node in tests if isinstance(node.body[-1], ast.Return) and (node.end_lineno or line) < line]
    for node in around or ends:  # what has a test of its own may be made once
        yield from range(node.lineno, (node.test.end_lineno or node.lineno) + 1)


def called_at(codes: Iterable[CodeType], name: str) -> Iterator[tuple[CodeType, int]]:
    """The lines of some functions at which one is called, by its name."""
    for code in codes:
        for node in nodes_of(code):
            if isinstance(node, ast.Call) and last_name(node.func) == name:
                yield code, node.lineno


def depends(frame: Frame, asked: Collection[tuple[str, int]], codes: Collection[CodeType]) -> bool:
    """Whether a line runs or not for a reason that is asked about, also one where its function is called."""
    todo = [(code, frame.line) for code in codes if code.co_name == frame.function or _comprehends(code, frame)]
    seen = set[tuple[CodeType, int]]()
    while todo:
        code, line = at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        file = display_name(code.co_filename)
        if any((file, test) in asked for test in entered_after(code, line)):
            return True
        if follows(code, line, {told for where, told in asked if where == file}):
            return True
        todo += called_at(codes, code.co_name)
    return False


def _comprehends(code: CodeType, frame: Frame) -> bool:
    """Whether a line is one of a comprehension, or another nameless function, of a function's."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType) and each.co_name.startswith("<"))
    named = (each for each in inner if each.co_name == frame.function)
    return any(line == frame.line for each in named for _, _, line in each.co_lines())
