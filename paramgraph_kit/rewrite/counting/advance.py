"""Numbers of the host's that every step moves, kept in tensors: the graph itself counts on.

``it = 0`` becomes ``it = torch.tensor(0, device=device)``, ``self.rate = f(self.rate)`` becomes
``self.rate.fill_(f(self.rate))``, and ``it += 1`` stays as it is, for it adds in place to a tensor. So does
``state["step"] += 1`` of an optimizer, whose first step makes ``state["step"] = 0``. Only numbers are taken that
something the device computes comes from; what decides on the host stays there.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paramgraph_kit.doctor import cell
from paramgraph_kit.doctor.explain.syntax import pairs_of
from paramgraph_kit.rewrite.counting.counted import Counter, Listed, counters, last_of, pieces
from paramgraph_kit.rewrite.counting.given_rates import rates
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.source.clock import is_clock
from paramgraph_kit.rewrite.source.edits import COMPOUND, Edit, Function, Source, locals_of, within
from paramgraph_kit.rewrite.source.moving import is_kept
from paramgraph_kit.rewrite.source.place import Form, called
from paramgraph_kit.rewrite.source.widths import width
from paramgraph_kit.rewrite.source.written_after import written_after
from paramgraph_kit.trace.model import Failure

FROZEN = frozenset(
    """scalar-frozen size-frozen branch-frozen learning-rate-frozen host-counter sync-item""".split()  # noqa: SIM905
)
_COUNTED = (ast.Add, ast.Sub, ast.Mult)  # what a tensor of whole numbers does in place as a number does
_REDUCTIONS = frozenset(("mean", "sum", "min", "max", "norm", "amax", "amin", "median", "std", "var"))
_HELD = (ast.Name, ast.Attribute, ast.Subscript)
_OPERANDS = (ast.BinOp, ast.UnaryOp, ast.Compare)


@dataclass(slots=True)
class Kept:
    """Numbers that are in tensors, and the edits that bring that about."""

    source: Source
    counters: list[Counter]
    edits: list[Edit]
    failures: list[Failure]  # that this is for, beside what is frozen
    rates: bool  # a learning rate is one of what they decide
    told: str = ""  # what is to be known of it
    sizes: Sequence[int] = ()  # of what the numbers say places in


def keep(
    prover: Prover,
    source: Source,
    places: Sequence[tuple[Failure, Source, ast.stmt]],
    ran: Sequence[ast.stmt],
    device: str,
    tensors: Mapping[str, Form],
    value: Callable[[str], Any],
) -> Kept | None:
    """The numbers that a step moves and that something which is frozen comes from; None where there are none.

    ``tensors`` are the local names that hold one; ``value`` tells what a path is.
    """
    filled = (
        rates(source, ran, value) if any(failure.code == "learning-rate-frozen" for failure, _, _ in places) else []
    )
    frozen = [node for failure, _, node in places if failure.code not in ("host-counter", "sync-item")]
    frozen += [
        part
        for top in ran
        for part in within(top)
        if filled and isinstance(part, ast.stmt) and rates(source, [part], value)
    ]
    moving = _with_names(source, counters(prover))
    if not frozen:  # the steps that were watched have not shown what a graph would freeze
        frozen = [
            part
            for top in ran
            for part in within(top)
            if isinstance(part, ast.stmt) and not isinstance(part, COMPOUND) and not is_writing(part, moving)
        ]
    found = [each for each in wanted(source, moving, frozen, ran) if not _tells_time(source, each, ran)]
    scheduled = [each for each in found if _is_rate(each)]  # which are tensors once an optimizer is made with them
    found = [each for each in found if each not in scheduled]
    edits = edits_of(source, found, device, ran, tensors) if found else None
    if edits is None:
        return None
    failures = [f for f, _, node in places if f.code in ("host-counter", "sync-item") and is_writing(node, found)]
    own = [counter for counter in found if counter.made]  # what an optimizer's own count decides, the device can
    asked = ((f, node.test) for f, _, node in places if f.code == "branch-frozen" and isinstance(node, ast.If))
    failures += [f for f, test in asked if wanted(source, own, [ast.Expr(test)], ran)]
    return Kept(source, found, edits + filled, failures, bool(filled or scheduled))


def _is_rate(counter: Counter) -> bool:
    """Whether a number is the learning rate of an optimizer's group."""
    held = counter.holder.target
    return counter.key == "lr" and isinstance(held, dict) and "params" in held


def _with_names(source: Source, found: Iterable[Counter]) -> list[Counter]:
    """Numbers with what their dictionaries are called elsewhere; real ones where they are exponents, as betas' are."""
    named: dict[str, set[str]] = {}
    every = list(ast.walk(source.tree))
    for node in every:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            named.setdefault(last_of(node.value), set()).update(n.id for n in node.targets if isinstance(n, ast.Name))
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            named.setdefault(last_of(node.iter), set()).add(node.target.id)
    raised = [
        part for n in every if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow) for part in ast.walk(n.right)
    ]
    for counter in found:
        if counter.holder.kind == "container":
            counter.called = frozenset(named.get(counter.holder.name, ()))
        copies = [n for n in every if isinstance(n, ast.Assign) and counter.is_at(n.value)]
        local = {each.id for n in copies for each in n.targets if isinstance(each, ast.Name)}
        # A fraction to the power of a whole number would be of single precision.
        counter.real |= any(counter.is_at(n) or (isinstance(n, ast.Name) and n.id in local) for n in raised)
    return list(found)


def wanted(
    source: Source, found: Iterable[Counter], frozen: Iterable[ast.stmt], ran: Sequence[ast.stmt]
) -> list[Counter]:
    """Those counters that some statements come from, through whatever names; ``ran`` is what a step runs."""
    names = _with_sources({name for node in frozen for name in _names(node)}, _bodies(source, ran))
    return [each for each in found if each.name in names]


def _tells_time(source: Source, counter: Counter, ran: Sequence[ast.stmt]) -> bool:
    """Whether a number comes of a clock, which a graph would ask once."""
    bodies = _bodies(source, ran)
    values = [value for name in _with_sources({counter.name}, bodies) for value in bodies.get(name, ())]
    return any(isinstance(n, ast.Call) and is_clock(n) for value in values for n in ast.walk(value))


def _bodies(source: Source, ran: Sequence[ast.stmt]) -> dict[str, list[ast.AST]]:
    """What gives names their values in what a step runs."""
    bodies: dict[str, list[ast.AST]] = {}
    for node in (part for top in ran for part in ast.walk(top)):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for each in pieces(target):
                    bodies.setdefault(last_of(each), []).append(node.value)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            bodies.setdefault(last_of(node.target), []).append(node.value)
        elif isinstance(node, ast.For):
            for each in pieces(node.target):
                bodies.setdefault(last_of(each), []).append(node.iter)
        elif isinstance(node, ast.Return) and node.value is not None and (made := source.function_of(node)):
            bodies.setdefault(made.name, []).append(node.value)
    return bodies


def _with_sources(names: set[str], bodies: Mapping[str, Sequence[ast.AST]]) -> set[str]:
    """Some names, with those of what gives them their values, and so on."""
    while more := {new for name in names for value in bodies.get(name, ()) for new in _names(value)} - names:
        names = names | more
    return names


def edits_of(
    source: Source, found: Sequence[Counter], device: str, ran: Sequence[ast.stmt], tensors: Mapping[str, Form]
) -> list[Edit] | None:
    """Edits that keep these numbers in tensors; None where one of them is made nowhere, or in several places."""
    edits: list[Edit] = []
    begun: dict[ast.Assign, list[Counter]] = {}
    posted: dict[ast.ClassDef, list[str]] = {}
    of_one = {(n.holder.kind, n.holder.of, n.name, repr(n.key)): n for n in found}  # of many parameters
    for counter in of_one.values():
        apart = of_other_classes(source, counter)
        fields = [] if cell.is_made_of(source.file) else [n for n in _fields(source, counter) if n not in apart]
        made = [] if cell.is_made_of(source.file) else [n for n in first_values(source, counter) if n not in apart]
        if not made and not fields and not cell.is_made_of(source.file):
            made = [n for n in _set_up(source, counter, ran) if n not in apart]
        kind = ", dtype=torch.float64" if counter.real else ""
        at = source.statement_of(made[0]) if made else None
        if len(fields) == 1 and not made:
            begins = f"self.{counter.name} = torch.tensor(self.{counter.name}{kind}, device={device})"
            posted.setdefault(fields[0], []).append(begins)
        elif len(made) != 1 or fields:
            return None
        elif isinstance(at, ast.Assign) and len(at.targets) > 1 and not isinstance(counter, Listed):
            if made[0] is not at.value:
                return None
            begun.setdefault(at, []).append(counter)
        else:
            text = f"torch.tensor({source.text(made[0])}{kind}, device={device})"
            edits.append(source.replace(made[0], f"list({text})" if isinstance(counter, Listed) else text))
        for node in (n for n in _writing_statements(source, counter) if n not in apart):
            if made and made[0] in set(ast.walk(node)) and not isinstance(node, COMPOUND):
                continue
            written = _written(source, node, counter, found)
            if written is None:
                return None
            edits += written
            if is_writing(node, [counter]) and isinstance(node, (ast.Assign, ast.AugAssign)):
                exact = counter.real and _is_compared(source, counter)
                edits += _on_device(source, node.value, tensors, exact=exact)
    for node, lines in posted.items():  # has a dataclass keep fields in tensors
        edits.append(source.after(node.body[-1], ["", "def __post_init__(self):", *(f"    {line}" for line in lines)]))
    for node, counters_there in begun.items():
        edits += _each_its_own(source, node, counters_there, device)
    others = [(counter, of_other_classes(source, counter)) for counter in found]
    for part in (n for top in ran for n in ast.walk(top)):
        edits += _kept_apart(source, part, [counter for counter, apart in others if part not in apart])
    return edits


def _each_its_own(source: Source, node: ast.Assign, found: Sequence[Counter], device: str) -> Iterator[Edit]:
    """``self.a = self.b = 0`` with a tensor for each: of one under two names, what adds to ``a`` adds to ``b``."""
    value, again = source.text(node.value), isinstance(node.value, ast.Constant)
    lines = [] if again else [source.text(node)]  # what is called is called once
    for target in node.targets:
        counter, text = next((each for each in found if each.is_at(target)), None), source.text(target)
        if counter is not None:
            kind = ", dtype=torch.float64" if counter.real else ""
            lines.append(f"{text} = torch.tensor({value if again else text}{kind}, device={device})")
        elif again:
            lines.append(f"{text} = {value}")
    yield source.replace(node, lines[0])
    yield source.after(node, lines[1:])


def of_other_classes(source: Source, counter: Counter) -> set[ast.AST]:
    """What is in the classes of a file whose objects have a number of that name of their own: the object is of none."""
    kind = counter.holder.of
    own = {each.__name__ for each in kind.__mro__} if kind is not None else set()
    classes = [n for n in source.tree.body if isinstance(n, ast.ClassDef)]
    if not any(each.name in own for each in classes):
        return set()
    heirs = {each.name: {last_of(base) for base in each.bases} for each in classes}
    while more := {name for name, bases in heirs.items() if bases & own} - own:  # their objects may run its methods
        own |= more
    return {n for each in classes if each.name not in own for n in ast.walk(each)} - _through(source, counter)


def _through(source: Source, counter: Counter) -> set[ast.AST]:
    """What names a number by the object that has it, ``self.session.pos``, with all that stands around it."""
    named = [n for n in ast.walk(source.tree) if isinstance(n, ast.Attribute) and n.attr == counter.name]
    named = [n for n in named if is_called_so(source, n.value, counter.holder.name)]
    return {each for n in named for each in (n, *source.above(n))}


def is_called_so(source: Source, node: ast.expr, name: str) -> bool:
    """Whether an expression is an object as it is called where it was found, or a variable that is given that."""
    if not isinstance(node, ast.Name) or (function := source.function_of(node)) is None:
        return last_of(node) == name
    pairs = (pair for part in function.body for n in within(part) for pair in pairs_of(n))
    given = [value for target, value in pairs if isinstance(target, ast.Name) and target.id == node.id]
    return bool(given) and all(isinstance(each, ast.Attribute) and each.attr == name for each in given)


def is_writing(node: ast.stmt, found: Sequence[Counter]) -> bool:
    """Whether a statement gives one of these numbers another value."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
    return any(counter.is_at(each) for target in targets for each in pieces(target) for counter in found)


def _names(node: ast.AST) -> set[str]:
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    found |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return found | {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def _writing_statements(source: Source, counter: Counter) -> Iterator[ast.stmt]:
    """The statements of all functions but those that make objects, and what a file itself does with an object's."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.stmt):
            continue
        function = source.function_of(node)
        if function is None:
            held = counter.holder.kind in ("attributes", "container") and is_writing(node, [counter])
            if held and not any(isinstance(above, ast.ClassDef) for above in source.above(node)):
                yield node
        elif function.name != "__init__":
            yield node


def first_values(source: Source, counter: Counter) -> Iterator[ast.expr]:
    """Where a number gets its first value."""
    for node in ast.walk(source.tree):
        if isinstance(counter, Listed):
            if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant):
                named = any(
                    last_of(target) == counter.name and not isinstance(target, ast.Subscript) for target in node.targets
                )
                if named and isinstance(node.value, (ast.List, ast.BinOp, ast.ListComp, ast.Call)):
                    yield node.value
            continue
        if counter.holder.kind == "container":
            if isinstance(node, ast.Assign):
                named = any(last_of(each) == counter.holder.name for target in node.targets for each in pieces(target))
                yield from (value for key, value in _entries(node.value) if named and key == counter.key)
            for target, value in pairs_of(node):  # ``state["step"] = 0``
                if counter.is_at(target) and isinstance(value, ast.Constant):
                    yield value
            continue
        for target, value in pairs_of(node):
            if not counter.is_at(target) or not isinstance(node, ast.stmt):
                continue
            function = source.function_of(node)
            if counter.holder.kind == "attributes":
                own = isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self"
                if (own and function is not None and function.name == "__init__") or (
                    counter.owner and function is None
                ):
                    yield value
            elif counter.holder.kind == "global" and function is None:
                if not isinstance(source.parents.get(node), ast.ClassDef):
                    yield value
            elif counter.holder.kind == "cell" and function is not None and not _is_outer(function, counter.name):
                yield value


def _entries(node: ast.expr) -> Iterator[tuple[Any, ast.expr]]:
    """What ``{"n": 0}`` and ``dict(n=0)`` hold."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield from ((key.value, value) for key, value in pairs if isinstance(key, ast.Constant))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        yield from ((option.arg, option.value) for option in node.keywords)


def _set_up(source: Source, counter: Counter, ran: Sequence[ast.stmt]) -> Iterator[ast.expr]:
    """Where a method that no step runs gives an attribute its first number: ``def setup(self): self.pos = 0``."""
    inside = {part for top in ran for part in ast.walk(top)}
    for node in ast.walk(source.tree) if counter.holder.kind == "attributes" else ():
        if node in inside or not isinstance(node, ast.stmt) or source.function_of(node) is None:
            continue
        yield from (v for t, v in pairs_of(node) if counter.is_at(t) and isinstance(v, ast.Constant))


def _fields(source: Source, counter: Counter) -> Iterator[ast.ClassDef]:
    """Dataclasses that have a number as a field, and nothing yet that they do once they are made."""
    for node in ast.walk(source.tree) if counter.holder.kind == "attributes" else ():
        if not isinstance(node, ast.ClassDef) or not any("dataclass" in ast.dump(each) for each in node.decorator_list):
            continue
        named = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
        after = any(isinstance(part, Function) and part.name == "__post_init__" for part in node.body)
        frozen = any("frozen" in ast.dump(each) for each in node.decorator_list)
        if any(isinstance(each, ast.Name) and each.id == counter.name for each in named) and not (after or frozen):
            yield node


def _is_outer(function: Function, name: str) -> bool:
    return name not in locals_of(function)


def _written(source: Source, node: ast.stmt, counter: Counter, found: Sequence[Counter]) -> list[Edit] | None:
    """Edits of a statement that gives a number another value; None where it does so in another way."""
    if isinstance(node, ast.AugAssign) and counter.is_at(node.target):
        return [] if isinstance(node.op, _COUNTED) and _is_variable(source, node, counter) else None
    if isinstance(node, (ast.For, ast.AnnAssign)) and counter.is_at(node.target):
        return None
    if not isinstance(node, ast.Assign) or not is_writing(node, [counter]) or not _is_variable(source, node, counter):
        return []
    if len(node.targets) != 1:
        return None
    target = node.targets[0]
    if not isinstance(target, ast.Tuple):
        return _filled(source, target, node.value)
    pairs = pairs_of(node)
    if len(pairs) != len(target.elts) or next(c for c in found if any(c.is_at(t) for t in target.elts)) is not counter:
        return None if len(pairs) != len(target.elts) else []  # with the first of them
    for number, (one, _) in enumerate(pairs):
        if any(ast.dump(n) == ast.dump(_loaded(one)) for _, value in pairs[number + 1 :] for n in ast.walk(value)):
            return None  # what comes later reads it
    lines = [
        f"{source.text(one)}.fill_({source.text(value)})"
        if any(c.is_at(one) for c in found)
        else f"{source.text(one)} = {source.text(value)}"
        for one, value in pairs
    ]
    return [source.replace(node, f"\n{source.indent(node)}".join(lines))]


def _is_compared(source: Source, counter: Counter) -> bool:
    """Whether the file compares a number, which then is the one that Python has, to its last digit."""
    compared = (n for n in ast.walk(source.tree) if isinstance(n, ast.Compare))
    return any(counter.is_at(part) for n in compared for part in ast.walk(n) if isinstance(part, _HELD))


def _on_device(source: Source, value: ast.expr, tensors: Mapping[str, Form], *, exact: bool) -> Iterator[Edit]:
    """``x.item()`` without the copy to the host; ``exact``: what is computed with it is, as Python does."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
            inner = source.replace(node.func.value, "")
            whole = source.replace(node, "")
            text = ".detach()" if is_one_number(node.func.value, tensors) else ".detach().squeeze()"
            text += ".double()" * (exact and isinstance(source.parents.get(node), ast.BinOp))
            yield Edit(inner.end_line, inner.end_column, whole.end_line, whole.end_column, text)


def is_one_number(value: ast.expr, tensors: Mapping[str, Form]) -> bool:
    """Whether a tensor has no dimensions, as far as its text tells."""
    if isinstance(value, ast.Name):
        return value.id not in tensors or not tensors[value.id].shape
    return isinstance(value, ast.Call) and not value.args and called(value) in _REDUCTIONS


def as_numbers(source: Source, node: ast.stmt, found: Sequence[Counter]) -> Iterator[Edit]:
    """``history.append(self.alpha)`` keeps the number that it kept, where ``self.alpha`` is a tensor now."""
    for part in ast.walk(node):
        if not isinstance(part, _HELD) or not isinstance(part.ctx, ast.Load):
            continue
        known = any(counter.is_at(part) and _is_variable(source, node, counter) for counter in found)
        if known and is_kept(source, part):
            yield written_after(source, part, ".item()")


def _loaded(node: ast.expr) -> ast.expr:
    """The same expression where it is read."""
    return ast.parse(ast.unparse(node), mode="eval").body


def _is_variable(source: Source, node: ast.stmt, counter: Counter) -> bool:
    """Whether a name in a function is the number, and not a local of the same name."""
    function = source.function_of(node)
    return counter.holder.kind not in ("global", "cell") or function is None or counter.name not in locals_of(function)


def _filled(source: Source, target: ast.expr, value: ast.expr) -> list[Edit]:
    """``x = value`` as ``x.fill_(value)``, in two edits, so that others can be inside the value."""
    left, right = source.replace(target, ""), source.replace(value, "")
    return [
        Edit(left.end_line, left.end_column, right.line, right.column, ".fill_("),
        Edit(right.end_line, right.end_column, right.end_line, right.end_column, ")"),
    ]


def _kept_apart(source: Source, node: ast.AST, found: Sequence[Counter]) -> Iterator[Edit]:
    """``n = self.count`` and ``f(self.count)`` take a copy: a number does not change when its variable does."""
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) or not isinstance(node.ctx, ast.Load):
        return
    if not any(counter.is_at(node) for counter in found):
        return
    above = source.parents.get(node)
    statement: ast.AST | None = node
    while statement is not None and not isinstance(statement, ast.stmt):
        statement = source.parents.get(statement)
    if isinstance(statement, ast.stmt) and not all(
        _is_variable(source, statement, counter) for counter in found if counter.is_at(node)
    ):
        return
    if isinstance(above, _OPERANDS) or (isinstance(above, ast.Attribute) and above.value is node):
        return
    if isinstance(above, ast.Slice) or (isinstance(above, ast.Subscript) and above.slice is node):
        return  # what is picked is picked at once
    if isinstance(above, ast.Tuple) and getattr(source.parents.get(above), "slice", None) is above:
        return
    if isinstance(above, ast.Call) and node in above.args and _is_arithmetic(above.func):
        return
    if (made := _ranged(source, above, node)) is not None:
        yield made
        return
    yield written_after(source, node, ".clone()")


def _ranged(source: Source, range_: ast.AST | None, low: ast.expr) -> Edit | None:
    """``torch.tensor(range(n, n + 4), device=d)`` as ``n + torch.arange(4, device=d)``: no range takes a tensor."""
    if (
        not isinstance(range_, ast.Call)
        or called(range_) != "range"
        or len(range_.args) != 2
        or range_.args[0] is not low
    ):
        return None
    above = source.parents.get(range_)
    while isinstance(above, ast.Call) and called(above) in ("list", "tuple") and len(above.args) == 1:
        above = source.parents.get(above)
    if not isinstance(above, ast.Call) or ast.unparse(above.func) not in ("torch.tensor", "torch.as_tensor"):
        return None
    wide = width(source, range_, *range_.args)
    options = "".join(f", {source.text(option)}" for option in above.keywords)
    text = f"{source.text(low)} + torch.arange({wide}{options})"
    beside = source.parents.get(above)
    tight = isinstance(beside, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Attribute, ast.Subscript))
    return source.replace(above, f"({text})" if tight else text) if wide else None


def _is_arithmetic(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ("min", "max", "abs")
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("math", "torch")


def rates_as_numbers(source: Source, node: ast.stmt) -> Iterator[Edit]:
    """``lrs.append(group["lr"])`` and ``rate = scheduler.get_last_lr()[0]`` keep numbers where rates are tensors."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Subscript) or not isinstance(part.ctx, ast.Load) or not is_kept(source, part):
            continue
        entry = isinstance(part.slice, ast.Constant) and part.slice.value == "lr"
        if entry or (isinstance(part.value, ast.Call) and called(part.value) == "get_last_lr"):
            yield source.replace(part, f"float({source.text(part)})")
