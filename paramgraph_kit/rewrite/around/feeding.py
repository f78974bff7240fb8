"""Work of the host that a step needs first is moved before the launch; its results come in tensors that a graph reads.

``angle = random.uniform(-1, 1)`` and ``theta = torch.tensor([angle], device=d)`` go to a function that is called
before each launch and writes ``theta_in``, which the step reads. Which expressions these are is seen, not guessed: all
that could be are watched in a few steps, and those stay where they are that always had the same value.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from paramgraph_kit.rewrite.around import full, parts
from paramgraph_kit.rewrite.around.crossing import Crossing, by_name
from paramgraph_kit.rewrite.around.makers import is_call_of
from paramgraph_kit.rewrite.around.watched import Values
from paramgraph_kit.rewrite.counting.given_rates import rates
from paramgraph_kit.rewrite.source import moving, writes
from paramgraph_kit.rewrite.source.digits import is_cut
from paramgraph_kit.rewrite.source.edits import (
    Edit,
    Function,
    Source,
    first_line,
    is_method,
    locals_of,
    names_in,
    path_of,
    within,
)
from paramgraph_kit.rewrite.source.hosts import done_again, draws, is_of_host, only_sized
from paramgraph_kit.rewrite.source.place import around_launch, called, fresh, names_of, renamed
from paramgraph_kit.rewrite.source.ungraded import computes, off_around

FED = frozenset(
    """tensor-literal copy-to-gpu cpu-index host-random cpu-scalar-frozen scalar-frozen size-frozen copy-to-cpu
    branch-frozen""".split()  # noqa: SIM905
)
WATCH = "_paramgraph_kit_watched"
_MOVES = ("to", "cuda", "type_as")
_COPIES = (*_MOVES, "tensor", "as_tensor", "new_tensor", "asarray", "full")
_MOVABLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.If, ast.Expr)


@dataclass(slots=True)
class Fetched:
    """Batches that the host fetches in a step: lines that fetch them before the launch, and the edits of the step."""

    lines: dict[ast.stmt, list[str]] = field(default_factory=dict)  # by the statement in whose place they are
    edits: list[Edit] = field(default_factory=list)
    hoisted: list[str] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)  # of variables around the function
    gone: list[ast.stmt] = field(default_factory=list)  # what is done there


@dataclass(slots=True)
class Feed:
    """The function that runs before each launch, the tensors that it writes, and the edits that bring both about."""

    source: Source
    edits: list[Edit]
    name: str
    parameters: list[str]
    hoisted: list[str]
    moved: list[ast.stmt]
    shared: list[str]  # variables that it makes around the function


def candidates(
    statements: Iterable[ast.stmt],
    is_host: Callable[[ast.expr], bool],
    otherwise: Sequence[ast.stmt] = (),
    copying: Collection[str] = (),
    is_picked: Callable[[ast.expr], bool] = lambda node: False,
) -> list[ast.expr]:
    """Expressions that may come from before the launch: copies to the device, and whatever is the host's alone.

    ``otherwise`` is what a function does where a branch of these has not left it, ``copying`` names helpers that copy,
    and ``is_picked`` tells what is one number of a list of them.
    """
    found: list[ast.expr] = []

    def look(
        node: ast.AST, whole: bool = False, given: bool = False
    ) -> None:  # of most arithmetic its names are enough
        if isinstance(node, ast.Slice):  # its ends are sizes, but where both move together
            ends = [each for each in (node.lower, node.upper) if each is not None]
            if len(ends) == 2 and all(_names_something(each) and is_host(each) for each in ends):
                found.extend(ends)
            return
        if isinstance(node, ast.expr) and _names_something(node) and not isinstance(node, ast.Tuple):
            below = [n for n in ast.walk(node) if isinstance(n, ast.expr) and n is not node]
            whole = whole or isinstance(node, (ast.Name, ast.Attribute)) or any(isinstance(n, ast.Call) for n in below)
            copied = is_copy(node, is_host, copying)
            plain = is_host(node) and (
                whole or isinstance(node, ast.Call) or is_picked(node) or is_cut(node, given=given)
            )
            if copied or (plain and not any(is_copy(n, is_host, copying) for n in below)):
                found.append(node)
                return
        for name, child in ast.iter_fields(node):
            if name == "func" and isinstance(child, ast.Attribute):
                look(child.value)
            elif name != "func":
                for part in child if isinstance(child, list) else [child]:
                    if isinstance(part, (ast.expr, ast.keyword)):
                        look(part, name == "slice", isinstance(node, (ast.Call, ast.keyword)))

    for statement in statements:
        if isinstance(statement, ast.If):
            found += [statement.test] if is_host(statement.test) else []
            ways = (*statement.body, *statement.orelse, *otherwise)
            for part in ways if found and found[-1] is statement.test else ():
                value = part.value if isinstance(part, (ast.Assign, ast.Return)) else None
                look(value) if value is not None else None
            continue
        for target in getattr(statement, "targets", []):
            if isinstance(target, ast.Subscript):
                look(target.slice, True)
        if isinstance(value := getattr(statement, "value", None), ast.expr):
            look(value)
    return found


def otherwise(source: Source, node: ast.stmt) -> list[ast.stmt]:
    """``return b`` behind ``if c: return a``, if that is all."""
    if not isinstance(node, ast.If) or node.orelse or len(node.body) != 1 or not isinstance(node.body[0], ast.Return):
        return []
    block: list[ast.stmt] = getattr(source.parents[node], "body", [])
    behind = block[block.index(node) + 1 :] if node in block else []
    return [each for each in behind if len(behind) == 1 and isinstance(each, ast.Return)]


def is_copy(node: ast.expr, is_host: Callable[[ast.expr], bool], copying: Collection[str] = ()) -> bool:
    """Whether an expression makes a tensor of the device from what is the host's; ``copying`` are helpers that do."""
    if isinstance(node, ast.Call) and is_call_of(node, copying):
        every = [node.func.value] if isinstance(node.func, ast.Attribute) else node.args
        return all(map(is_host, [*every, *(option.value for option in node.keywords)]))
    if not isinstance(node, ast.Call) or called(node) not in _COPIES or not isinstance(node.func, ast.Attribute):
        return False
    if called(node) == "to" and len(node.args) == 1 and not node.keywords and _is_a_type(node.args[0]):
        return False
    given = node.func.value if called(node) in _MOVES else node.args[0] if node.args else None
    if called(node) == "full":
        named = [o.value for o in node.keywords if o.arg == "fill_value"]
        given = next(iter([*named, *node.args[1:2]]), None)
    return given is not None and is_host(given) and _names_something(given)


def _is_a_type(node: ast.expr) -> bool:
    """``torch.uint8``, which moves nothing."""
    module, _, name = path_of(node).partition(".")
    return module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)


def _names_something(node: ast.expr) -> bool:
    return any(isinstance(n, (ast.Name, ast.Call)) for n in ast.walk(node))


def is_the_same(source: Source, statement: ast.stmt, node: ast.expr) -> bool:
    """Whether all rounds of the loop that a statement is in ask for one number, which was found before it."""
    inside = moving.stored([loop for loop in source.above(statement) if isinstance(loop, (ast.For, ast.While))])
    return not names_in(node) & inside and not any(isinstance(n, ast.Call) for n in ast.walk(node))


def given(statement: ast.stmt) -> list[str]:
    """The names that a statement gives a value to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def watching(source: Source, found: Iterable[ast.expr]) -> list[Edit]:
    """Edits that have expressions noted by number."""
    whole = ((node, source.text(node)) for node in found)
    given = ((node, f"({t})" if isinstance(node, ast.Tuple) and t[0] != "(" else t) for node, t in whole)
    texts = ((node, t, isinstance(_whose(source, node), ast.For)) for node, t in given)
    each = [(node, f"[{WATCH}(#, each) for each in {t}]" if loop else f"{WATCH}(#, {t})") for node, t, loop in texts]
    return [source.replace(node, text.replace("#", str(k), 1)) for k, (node, text) in enumerate(each)]


def _whose(source: Source, node: ast.expr) -> ast.AST | None:
    """What an expression stands in: a loop that goes through it, also where that counts."""
    above = source.parents.get(node)
    counts = isinstance(above, ast.Call) and isinstance(above.func, ast.Name) and above.func.id == "enumerate"
    return source.parents.get(above) if counts and above is not None else above


def slice_before(
    source: Source,
    function: Function,
    statement: ast.stmt,
    node: ast.expr,
    modules: Collection[str] = (),
    *,
    whole: bool = False,
    apart: Collection[ast.AST] = (),
) -> list[ast.stmt] | None:
    """The statements that a value is made by, in order; None where one of them cannot be taken out.

    ``whole``: the statement goes there, too, with what its loops go through; ``apart`` is what goes there by itself.
    """
    order = list(moving.body_of(function))
    local, arguments = locals_of(function), set(moving.arguments_of(function))
    loops = [n.target for n in within(statement) if isinstance(n, ast.For)] if whole else []
    own = moving.stored(loops)
    needed, quiet = {p for p in writes.paths(node) if p.partition(".")[0] not in own}, writes.changes_nothing(source)
    # `self.rate`, a property, reads what moves, too.
    crossing = Crossing(by_name(source), lambda _: None, {*local, *arguments})
    needed |= crossing.read_by_functions(node)
    sized = only_sized(source, node)
    kept: list[ast.stmt] = []
    for before in reversed(order[: order.index(statement)]):
        written = set(writes.written(before, quiet, modules, apart)) | (moving.stored([before]) - _bound(before))
        touched = {b.partition(".")[0] for a in written for b in needed if a and writes.touches(a, b)}
        if not touched or (touched <= sized and _keeps_its_size(before)):
            continue
        if not isinstance(before, _MOVABLE) or not moving.is_closed(before):
            return None
        kept.insert(0, before)
        sized = (sized | only_sized(source, before)) - (names_in(before) - only_sized(source, before))
        needed |= writes.paths(before) | crossing.read_by_functions(before)
    made = moving.stored(kept) | _bound(node)
    if {name.partition(".")[0] for name in needed} & local - arguments - made:
        return None  # of a with block, or of a function defined inside
    return kept


def _still_read(function: Function, again: Sequence[ast.stmt], gone: Sequence[ast.AST]) -> list[ast.stmt]:
    """Those statements whose variables something reads that stays, where all of ``gone``, which has them, goes."""
    local, inside = locals_of(function), {n for each in gone if each not in again for n in ast.walk(each)}
    kept: list[ast.stmt] = []
    for statement in reversed(again):  # what only another one of them has read goes with it
        stored, own = moving.stored([statement]), {*ast.walk(statement)}
        rest = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n not in inside and n not in own)
        if stored - local or any(n.id in stored and isinstance(n.ctx, ast.Load) for n in rest):
            kept.insert(0, statement)
        else:
            inside |= own
    return kept


def _data_of(source: Source, node: ast.AST, apart: Collection[str]) -> set[str]:
    """Names that an expression reads for more than what is ``apart`` of them, as their type or their device."""
    found = set()
    for each in (n for n in ast.walk(node) if isinstance(n, ast.Name)):
        above = source.parents.get(each)
        if not isinstance(above, ast.Attribute) or above.attr not in apart:
            found.add(each.id)
    return found


def _keeps_its_size(node: ast.stmt) -> bool:
    """Whether a statement gives a name the same tensor again, or a copy: ``x = x.clone()``."""
    value = node.value if isinstance(node, ast.Assign) else None
    if isinstance(node, ast.Assign) and all(isinstance(target, ast.Subscript) for target in node.targets):
        return True
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    copies = ("clone", "detach", "contiguous", "float", "half", "double", "requires_grad_", "to")
    return called(value) in copies and isinstance(value.func.value, ast.Name) and given(node) == [value.func.value.id]


def _bound(node: ast.AST) -> set[str]:
    """Names that a comprehension below a node goes through."""
    targets = [n.target for n in ast.walk(node) if isinstance(n, ast.comprehension)]
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def feed(
    source: Source,
    function: Function,
    fed: Sequence[tuple[ast.stmt, ast.expr, Values]],
    device: str,
    is_host: Callable[[ast.expr], bool],
    choose: Callable[[ast.stmt, ast.expr, str], list[Edit]],
    others: Sequence[str] = (),
    head: Sequence[ast.stmt] = (),
    fetched: Fetched | None = None,
    modules: Collection[str] = (),
    is_steady: Callable[[ast.Assign], bool] = lambda node: False,
) -> Feed | None:
    """Move what expressions need, and them, before the launch; None where others need it too.

    ``head`` are statements that go there as they are, and whose variables what goes behind the launch reads;
    ``modules`` are paths of networks; ``is_steady`` tells what is the same in each call.
    """
    fetched = fetched or Fetched()
    order = list(moving.body_of(function))
    moved: list[ast.stmt] = []
    tops = {statement: moving.top_of(source, function, statement) or statement for statement, _, _ in fed}
    drawn_there = {n for _, node, _ in fed for n in ast.walk(node)}  # in the order of the lines
    for statement, node, _ in fed:
        kept = slice_before(source, function, tops[statement], node, modules, apart=drawn_there)
        if kept is None:
            return None
        moved += [each for each in kept if each not in moved and each not in head]
    moved.sort(key=order.index)
    if any(each in moved for each in tops.values()):
        return None  # it would be asked for what it no longer is
    parts_of = {node: parts.slice_of(source, node) or node for _, node, _ in fed}
    twice = done_again(source, function, moved, is_steady)
    again = _still_read(function, twice, [*moved, *parts_of.values()])  # they stay, too
    moved = [each for each in moved if each not in again]
    together = sorted((*head, *moved, *again), key=order.index)
    inside = {n for _, node, _ in fed for n in ast.walk(parts_of[node])} | {
        n for each in together for n in ast.walk(each)
    }
    quiet = writes.changes_nothing(source)
    written = {path for each in moved for path in writes.written(each, quiet)} | moving.stored(moved)
    local, arguments = locals_of(function), moving.arguments_of(function)
    # What such a statement itself gives a name to is that from there on: ``x = torch.from_numpy(x).to(device)``.
    anew = {name: statement.end_lineno or 0 for statement, _, _ in fed for name in given(statement)}
    for other in ast.walk(function):
        if other in inside or not isinstance(other, (ast.Name, ast.Attribute)):
            continue
        path, later = path_of(other), other.lineno > anew.get(path_of(other), other.lineno)
        if isinstance(other.ctx, ast.Load) and path in written and not later:
            return None
    if any(not is_of_host(each, is_host, set(arguments)) for each in moved):
        return None
    last = max((order.index(tops[statement]) for statement, _, _ in fed), default=0)
    stays = [each for each in order[:last] if each not in moved]
    sized = {name for each in [*moved, *(node for _, node, _ in fed)] for name in only_sized(source, each)}
    sized -= {
        name for each in [*moved, *(node for _, node, _ in fed)] for name in names_in(each) - only_sized(source, each)
    }
    known_whole = full.whole(together)
    fine = {source.text(node) for _, node, _ in fed if full.cancels(source, node) or full.turns(source, node)}
    fine -= {source.text(n) for _, n, _ in fed if isinstance(source.parents.get(n), (ast.Subscript, ast.Slice))}
    own, of_arguments = local - set(arguments), set(arguments)  # what is of a size that an argument has
    for each in together:
        of_arguments.update(given(each) if _data_of(source, each, ("device", "dtype")) & of_arguments else ())
    reads = [(order.index(tops[statement]), writes.paths(node)) for statement, node, _ in fed]
    reads += [(order.index(each), writes.paths(each)) for each in moved]
    for each in stays:  # what is read behind it would be read before it; what is drawn in it goes there, too
        changed = {
            p for p in writes.written(each, quiet, modules, inside) if not (_keeps_its_size(each) and p in sized)
        }
        behind = {path for number, known in reads if number > order.index(each) for path in known}
        if any(writes.touches(a, b) for a in changed if a.partition(".")[0] not in own for b in behind):
            return None
    taken = names_of(source.tree) | local | {line.partition(" = ")[0] for line in others}
    names: dict[str, str] = {}
    asks_gradients = any("requires_grad" in line for line in source.lines)
    hoisted, edits = [], source.without_all(moved)
    hoisted, edits = [*fetched.hoisted], [*edits, *fetched.edits]
    writing = {node: [*lines] for node, lines in fetched.lines.items()}  # by the statement that reads what they write
    ends: dict[ast.Slice, dict[bool, tuple[str, Values]]] = {}
    within_branch: dict[ast.stmt, dict[str, str]] = {}  # what branches that become a choice read
    drawn: dict[ast.stmt, str] = {}  # what has been drawn for a branch that asks for more
    chosen_by: list[tuple[ast.stmt, Edit]] = []
    for statement, node, values in fed:
        text, above = source.text(node), source.parents.get(node)
        lines = writing.setdefault(tops[statement], [])
        indexes = isinstance(above, ast.Subscript)
        asked = _asked(source, statement, node, drawn)
        made = draws(node) or (isinstance(node, ast.Call) and called(node) not in _COPIES and bool(values.form))
        known = f"{text} {node.lineno} {node.col_offset}" if made or asked else text
        if isinstance(above, ast.Slice) and node is above.upper and parts.is_wide(source, above, fed):
            ends.setdefault(above, {})[False] = "", values  # as far behind the first as always
            continue
        if known not in names:
            name = names[known] = fresh(_hint(statement, node, above), taken)
            taken.add(name)
            digits = text in fine and not indexes
            begun = values.seen_one(device) if asked else values.zeros(device, indexes, cancels=digits)
            hoisted.append(f"{name} = {begun}")
            asks = draws(node) and isinstance(statement, ast.If) and node is statement.test
            if asks and any(other is statement and one is not node for other, one, _ in fed):
                drawn[statement] = fresh("chosen", taken)
                taken.add(drawn[statement])
                lines.append(f"{drawn[statement]} = {text}")
            given_text = drawn.get(statement, text) if node is getattr(statement, "test", None) else text
            whole = f"torch.as_tensor({given_text})" if values.as_tensor else given_text
            if values.form and values.form.shape and _data_of(source, node, ("device", "dtype")) & of_arguments:
                whole = f"({whole})" if isinstance(node, ast.BinOp) and not values.as_tensor else whole
                whole += f".view_as({name})"  # a last batch of one row would be spread over all
            deep = "    " * bool(asked)
            filled = (
                full.in_full(node, name, whole if values.form else given_text, values, taken, known_whole)
                if not indexes and text not in fine
                else []
            )
            filled = filled or [f"{name}.copy_({whole})" if values.form else f"{name}.fill_({given_text})"]
            lines += [*asked, *(f"{deep}{each}" for each in filled)]
        read = indexes and isinstance(getattr(above, "ctx", None), ast.Load) and not (values.form and values.form.shape)
        if isinstance(above, ast.Slice):
            ends.setdefault(above, {})[node is above.lower] = names[known], values
        elif isinstance(statement, ast.If) and node is not statement.test:
            if within_branch.setdefault(statement, {}).setdefault(text, names[known]) != names[known]:
                return None  # drawn twice
        elif isinstance(statement, ast.If) or (isinstance(above, ast.IfExp) and above.test is node):
            chosen = choose(statement, node, names[known])  # the device takes one of both ways
            if not chosen:
                return None
            chosen_by += [(statement, each) for each in chosen]
        elif read and isinstance(above, ast.Subscript):  # an index of one element keeps its dimension
            edits.append(source.replace(above, f"{source.text(above.value)}[{names[known]}][0]"))
        else:
            # What the function asks gradients of is a leaf of each call; this one must stay one that can be written.
            leaf = ".detach()" if values.form and asks_gradients else ""
            edits.append(source.replace(node, names[known] + leaf))
    for statement, edit in chosen_by:
        edits.append(replace(edit, text=renamed(edit.text, within_branch.get(statement, {}))))
    for statement in dict.fromkeys(statement for statement, node, _ in fed if isinstance(parts_of[node], ast.Slice)):
        if (sliced := _sliced(source, statement, ends)) is None:
            return None
        edits += sliced
    needed = fetched.reads | {n for node in (*(node for _, node, _ in fed), *together) for n in names_in(node)}
    owner = arguments[:1] if is_method(source, function) else []
    parameters = [name for name in arguments if name in needed or name in owner]
    name = around_launch(source, function, "before")
    blank = not source.lines[first_line(function) - 2].strip()
    off = _mode_of(source, function, [*together, *fetched.gone], head)
    top = [*[""] * (not blank), *off, f"def {name}({', '.join(parameters)}):  # before each launch"]
    gone = {n for each in (*moved, *parts_of.values()) for n in ast.walk(each)}  # they stand there by then, too
    elsewhere = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n not in gone)
    others_read = {n.id for n in elsewhere if not _below(n, head)}
    if shared_names := sorted(moving.stored(head) & local & others_read):
        top.append(f"    global {', '.join(shared_names)}")
    for word, kind in (("global", ast.Global), ("nonlocal", ast.Nonlocal)):
        outer = {n for node in ast.walk(function) if isinstance(node, kind) for n in node.names}
        outside = written | fetched.writes | {path for each in head for path in writes.written(each)}
        if named := sorted(outer & outside):
            top.append(f"    {word} {', '.join(named)}")
    for each in sorted({*together, *writing}, key=order.index):  # the host draws in its own order
        top += [f"    {line}" for line in writing.get(each, ())]
        if each not in together:
            continue
        depth = len(source.indent(each))
        lines_of = source.apply(rates(source, [each])) if each in head else source.lines
        text_lines = source.part(each, lines_of)
        top += [f"    {line[depth:].rstrip()}" for line in text_lines]
    edits += source.without_all(head)
    edits.append(source.before(function, [*top, ""], rank=1))
    edits += moving.handed_out(source, function, name)
    inside |= {n for each in fetched.gone for n in ast.walk(each)}
    stay = [n for part in function.body for n in ast.walk(part) if n not in inside]
    edits += moving.fewer_globals(source, stay)
    return Feed(source, edits, name, parameters, hoisted, [*moved, *fetched.gone], shared_names)


def _mode_of(source: Source, function: Function, moved: Sequence[ast.stmt], head: Sequence[ast.stmt]) -> list[str]:
    """The decorator by which lines run as they did where gradients are off; what the host gives optimizers is such."""
    off = next((text for each in moved if (text := off_around(source, function, [each]))), "")
    return [f"@{off or 'torch.no_grad()'}"] if off or any(map(computes, head)) else []


def _asked(source: Source, statement: ast.stmt, node: ast.expr, drawn: Mapping[ast.stmt, str]) -> list[str]:
    """The question that comes before what a branch alone asks for."""
    inside = isinstance(statement, ast.If) and node is not statement.test
    if not inside or not isinstance(statement, ast.If):
        return []
    test = drawn.get(statement) or source.bracketed(statement.test)
    if not any(part is node for other in statement.body for part in ast.walk(other)):
        return [f"if not {test}:"]
    return [f"if {drawn.get(statement) or source.text(statement.test)}:"]


def _sliced(
    source: Source, statement: ast.stmt, ends: Mapping[ast.Slice, Mapping[bool, tuple[str, Values]]]
) -> list[Edit] | None:
    """The parts of tensors in a statement whose places are in tensors; None where one cannot be taken so."""
    found: dict[ast.Subscript, dict[ast.Slice, tuple[str, str, int | None]]] = {}
    for whole in (n for n in ast.walk(statement) if isinstance(n, ast.Slice) and n in ends):
        (low, first), (high, last) = ends[whole][True], ends[whole][False]
        part = parts.subscript_of(source, whole)
        if part is not None:
            found.setdefault(part, {})[whole] = low, high, parts.width(first, last)
    writing = {part: known for part, known in found.items() if not parts.is_given(source, statement, part)}
    edits = [parts.edit(source, statement, part, known) for part, known in writing.items()]
    return None if None in edits else [each for each in edits if each is not None]


def _below(node: ast.AST, tops: Sequence[ast.stmt]) -> bool:
    return any(node is each for top in tops for each in ast.walk(top))


def _hint(statement: ast.stmt, node: ast.expr, above: ast.AST | None) -> str:
    if isinstance(above, ast.Slice) and node is above.upper and isinstance(above.lower, (ast.Name, ast.Attribute)):
        return f"{path_of(above.lower).rpartition('.')[2]}_end"
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(node, (ast.Name, ast.Attribute)):
        return f"{path_of(node).rpartition('.')[2]}_in"
    return f"{target.id}_in" if isinstance(target, ast.Name) else "given_in"
