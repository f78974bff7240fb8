"""What the host finds in a helper that a step calls once is found before the launch, too."""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.advised.host.drawn_before import drawn_of, sized_again
from paramgraph_kit.rewrite.around import feeding, parts
from paramgraph_kit.rewrite.around.elsewhere import Elsewhere
from paramgraph_kit.rewrite.around.later import outermost
from paramgraph_kit.rewrite.around.watched import Values
from paramgraph_kit.rewrite.expressions.decisions.branches import choose_by_where
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.planning import Attempt
from paramgraph_kit.rewrite.proving.proof import STEPS
from paramgraph_kit.rewrite.source import hosts, moving
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
from paramgraph_kit.rewrite.source.owners import is_called_only_by
from paramgraph_kit.rewrite.source.place import around_launch, fresh, names_of
from paramgraph_kit.trace.model import Failure


class Helping(Attempt):
    """One function whose helpers, or methods that it calls, may ask the host for something."""

    fetches = False  # what it fetches is found first, and what methods do that it calls is left to that way
    in_methods = False  # the same where it fetches nothing: a method that asks for one thing computes others
    fetched_by: Mapping[Function, feeding.Fetched] = MappingProxyType({})  # what they fetch of the host's

    def _fed(self, failures: Sequence[Failure], others: Sequence[str]) -> Plan | None:
        plan, at = super()._fed(failures, others), self._definition()
        if at is None or self.forced or self.ahead or self.watch is not None:
            return plan
        source, function = at
        own = self.fed if plan is not None else None
        wanted: dict[Function, dict[ast.stmt, Failure]] = {}
        for failure in failures:
            place = self.place(failure) if failure.code in feeding.FED else None
            helper = source.function_of(place[1]) if place is not None and place[0] is source else None
            if place is not None and helper is not None and helper is not function and self._may_move(source, helper):
                wanted.setdefault(helper, {})[place[1]] = failure
        for helper in self.fetched_by:
            wanted.setdefault(helper, {})
        others = [*others, *(own.hoisted if own is not None else [])]
        found = self._fed_in_helpers(source, function, wanted, others)
        others += [line for each, _ in found for line in each.hoisted]
        for failure in failures if not found else ():
            if (drawn := self._drawn(source, function, failure, others)) is not None:
                wanted.setdefault(drawn[1], {})[drawn[2]] = failure
                found.append((drawn[0], drawn[3]))
                others += drawn[0].hoisted
        if not found:
            return plan
        methods = any(isinstance(source.parents.get(helper), ast.ClassDef) for helper in wanted)
        together = _together(source, function, found, own, always=methods or is_method(source, function))
        if together is None:
            return plan
        self.fed = together
        handled = [f for each in wanted.values() for at, f in each.items() if self._is_changed(source, at)]
        handled += plan.failures if plan is not None else []
        return Plan(source, self.fed.edits, handled, self.fed.hoisted)

    def _may_move(self, source: Source, helper: Function) -> bool:
        return self.fetches or self.in_methods or not isinstance(source.parents.get(helper), ast.ClassDef)

    def asks_in_methods(self, failures: Sequence[Failure]) -> bool:
        """Whether methods of the file's that it calls once ask the host for something."""
        at = self._definition()
        codes = {*feeding.FED, "host-counter"}  # whose number may be read there once other lines are mended
        places = [place for f in failures if f.code in codes and (place := self.place(f)) is not None]
        helpers = {source.function_of(node) for source, node in places if at is not None and source is at[0]} - {None}
        return at is not None and any(
            isinstance(at[0].parents.get(each), ast.ClassDef) and call_of(*at, self._value, each) is not None
            for each in helpers
            if each is not None and each is not at[1]
        )

    def _fed_in_helpers(
        self,
        source: Source,
        function: Function,
        wanted: dict[Function, dict[ast.stmt, Failure]],
        others: Sequence[str],
    ) -> list[tuple[feeding.Feed, int]]:
        """What helpers ask, in the order of their calls; with the lines of these."""
        known = source, function, self._value
        calls = [(helper, call) for helper in wanted if (call := call_of(*known, helper)) is not None]
        calls.sort(key=lambda pair: (pair[1].lineno, pair[1].col_offset))
        found, taken = list[tuple[feeding.Feed, int]](), list(others)
        for helper, call in calls:
            made = self._fed_of(source, function, helper, call, wanted[helper], taken)
            if made is not None:
                found.append((made, call.lineno))
                taken += made.hoisted
        return found

    def _drawn(
        self, source: Source, function: Function, failure: Failure, others: Sequence[str]
    ) -> tuple[feeding.Feed, Function, ast.stmt, int] | None:
        """What the CPU draws for a helper of any depth, of the size of what is computed there; where, and its call."""
        place = self.place(failure) if failure.code == "copy-to-gpu" else None
        helper = source.function_of(place[1]) if place is not None and place[0] is source else None
        if place is None or helper is None or helper is function:
            return None
        one = replace(self._place_of(*place, failure), forms=self.forms_in(*place))
        number = self._index(source, function, failure)
        drawn = drawn_of(one)
        sized = sized_again(one, drawn) if drawn is not None else None
        steps = [function, outermost(source, self.function, function)]
        if drawn is None or sized is None or number < 0:
            return None
        if Elsewhere(self.sources.values(), self.ran, self.space).calls(helper, steps):
            return None  # nothing is drawn for what comes there from elsewhere
        taken = names_of(source.tree) | self.space_in(source).keys() | {line.partition(" = ")[0] for line in others}
        name, before = fresh(f"{drawn.name}_in", taken), around_launch(source, function, "before")
        given = moving.arguments_of(function)[:1] if is_method(source, function) else []
        blank = not source.lines[first_line(function) - 2].strip()
        top = [*[""] * (not blank), f"def {before}({', '.join(given)}):  # before each launch"]
        edits = [
            source.replace(drawn.value, f"{name}{sized}.clone()"),
            source.before(function, [*top, f"    {name}.copy_({drawn.text})", ""], rank=1),
        ]
        line = list(moving.body_of(function))[number].lineno
        fed = feeding.Feed(source, edits, before, given, [f"{name} = {drawn.made}"], [], [])
        return fed, helper, place[1], line

    def _is_changed(self, source: Source, node: ast.stmt) -> bool:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return self.fed is not None and any(edit.line in lines for edit in self.fed.edits if edit.column >= 0)

    def _fed_of(
        self,
        source: Source,
        function: Function,
        helper: Function,
        call: ast.Call,
        wanted: dict[ast.stmt, Failure],
        others: Sequence[str],
    ) -> feeding.Feed | None:
        """What one helper asks."""
        host = self.host_test_of(source, helper, call)
        order, fetched = list(moving.body_of(helper)), self.fetched_by.get(helper)
        in_rounds = [part for node in order for part in hosts.in_rounds(node) if part in wanted]
        statements = [*(node for node in order if node in wanted), *in_rounds]
        tops = [moving.top_of(source, helper, node) or node for node in statements]
        tops += fetched.lines if fetched is not None else ()
        if not tops:
            return None
        before = order[: max(map(order.index, tops))]
        if any(isinstance(n, moving.STOPS) for node in before for n in within(node) if node not in statements):
            return None  # it may not come there
        picked = hosts.picks_number(self._value)
        found = [(s, node) for s in statements for node in feeding.candidates([s], host, is_picked=picked)]
        found = [(s, node) for s, node in found if s not in in_rounds or feeding.is_the_same(source, s, node)]
        seen = self._watched_values(source, [node for _, node in found])
        items = [(s, node, values) for (s, node), values in zip(found, seen, strict=False)]
        if any(len(values.seen) > STEPS for s, _, values in items if s not in in_rounds):
            return None
        fed = [
            (s, node, values)
            for s, node, values in items
            if parts.slice_of(source, node) is None
            and values.is_fed(
                device().type, source.parents.get(node), copied=feeding.is_copy(node, host), refused=False
            )
        ]
        fed += parts.fitting(source, items)
        fed += _returned_too(order, statements, fed, host)

        def choose(statement: ast.stmt, node: ast.expr, condition: str) -> list[Edit]:
            place = self._place_of(source, statement, wanted[statement])
            place.lent = [source.text(each) for at, each, _ in fed if at is statement]
            return choose_by_where(place, condition) if isinstance(statement, ast.If) else []

        value = self._value_in(helper, call)
        paths = {path_of(n.func) for n in ast.walk(helper) if isinstance(n, ast.Call)}
        modules = {path for path in paths if isinstance(value(path), torch.nn.Module)}
        more = self.device, host, choose, others, (), fetched, modules
        made = feeding.feed(source, helper, fed, *more) if fed else None
        if made is None and fetched is not None:  # what cannot go there must not keep that from it
            made = feeding.feed(source, helper, [], *more)
        return _called_with(source, function, helper, call, made) if made is not None else None

    def host_test_of(self, source: Source, helper: Function, call: ast.Call) -> Callable[[ast.expr], bool]:
        """Which expressions of a helper are the host's alone; a method's are of the object that it is called of."""
        value = self._value_in(helper, call)
        return hosts.host_test(device().type, helper, self.forms_in(source, helper.body[0]), self.space, value)

    def _value_in(self, helper: Function, call: ast.Call) -> Callable[[str], Any]:
        """What names stand for in a helper; in a method ``self`` is the object that it is called of."""
        owner = path_of(owned) if (owned := _object_of(call, helper)) is not None else ""

        def value(path: str) -> Any:
            first, dot, rest = path.partition(".")
            return self._value(f"{owner}{dot}{rest}" if owner and first == "self" else path)

        return value


def _returned_too(
    order: Sequence[ast.stmt],
    statements: Sequence[ast.stmt],
    fed: Sequence[tuple[ast.stmt, ast.expr, Values]],
    host: Callable[[ast.expr], bool],
) -> list[tuple[ast.stmt, ast.expr, Values]]:
    """``lam`` of ``return mixed, lam``, which a helper also computes with: its caller gets the tensor."""
    known = {node.id: (s, values) for s, node, values in fed if isinstance(node, ast.Name)}
    found = list[tuple[ast.stmt, ast.expr, Values]]()
    for last in (n for n in order if isinstance(n, ast.Return) and n not in statements):
        for node in feeding.candidates([last], host):
            if isinstance(node, ast.Name) and node.id in known:
                first, values = known[node.id]
                between = order[order.index(first) : order.index(last)] if first in order else [first]
                found += [(last, node, values)] if node.id not in moving.stored(between) else []
    return found


def call_of(source: Source, function: Function, value_of: Callable[[str], Any], helper: Function) -> ast.Call | None:
    """The one call of a helper, or of a method of the file's, which a function makes in each of its runs, once."""
    names: list[Any]
    if isinstance(owner := source.parents.get(helper), ast.ClassDef):
        names = [n for n in ast.walk(source.tree) if isinstance(n, ast.Attribute) and n.attr == helper.name]
        names += (modules := _called_as(source, value_of, helper))
        if len(names) != 1 or not _is_code_of(source, helper, _code(value_of(path_of(names[0])))):
            return None
        if modules and not is_called_only_by(source, owner, modules[0]):
            return None
    elif isinstance(source.parents.get(helper), ast.Module):
        names = [n for n in ast.walk(source.tree) if isinstance(n, ast.Name) and n.id == helper.name]
    else:
        return None
    call = source.parents.get(names[0]) if len(names) == 1 else None
    if not isinstance(call, ast.Call) or call.func is not names[0]:
        return None
    order = list(moving.body_of(function))
    for number, node in enumerate(order):
        if call not in set(within(node)) or not isinstance(node, (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)):
            continue
        above = source.parents.get(call)
        while above is not node and isinstance(above, (ast.Call, ast.BinOp, ast.UnaryOp, ast.Attribute, ast.keyword,
                                                       ast.Tuple, ast.Subscript)):  # fmt: skip
            above = source.parents.get(above)
        ended = any(isinstance(n, moving.STOPS) for each in order[:number] for n in within(each))
        return call if above is node and not ended else None
    return None


def _called_as(source: Source, value_of: Callable[[str], Any], helper: Function) -> list[ast.expr]:
    """Where objects with a ``forward``, or a ``__call__``, of the file's are called: ``net`` of ``net(x)``."""
    if helper.name not in ("forward", "__call__"):
        return []
    moves = any(isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) for n in ast.walk(helper))
    if helper.name == "__call__" and moves:  # the graph counts on: asked ahead of a launch it would be read
        return []
    calls = [n.func for n in ast.walk(source.tree) if isinstance(n, ast.Call) and path_of(n.func)]
    return [each for each in calls if _is_code_of(source, helper, _code(value_of(path_of(each))))]


def _code(value: Any) -> Any:
    """What runs where something is called."""
    if isinstance(value, torch.nn.Module):
        return value.forward
    made = getattr(type(value), "__call__", None)  # noqa: B004 - what its class has written is wanted
    return made if isinstance(made, types.FunctionType) else value


def _object_of(call: ast.Call, helper: Function) -> ast.expr | None:
    """The object whose method a call runs: ``net`` of ``net.update(x)``, and of ``net(x)`` for its own call."""
    if path_of(call.func).rpartition(".")[2] != helper.name:
        return call.func
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _is_code_of(source: Source, helper: Function, method: Any) -> bool:
    """Whether a method of an object is a function of the file's, also below decorators that say what they wrap."""
    code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None) if callable(method) else None
    lines = (first_line(helper), helper.lineno)
    return code is not None and code.co_filename == source.file and code.co_firstlineno in lines


def _called_with(
    source: Source, function: Function, helper: Function, call: ast.Call, fed: feeding.Feed
) -> feeding.Feed | None:
    """The same where what runs before the launch knows what the helper will be called with."""
    parameters = moving.arguments_of(helper)
    plain = helper.args
    if plain.vararg or plain.kwarg or any(isinstance(n, ast.Starred) for n in call.args):
        return None
    given: dict[str, ast.expr] = dict(zip(reversed(parameters), reversed(plain.defaults), strict=False))
    if plain.kwonlyargs:
        given = {}
    if not all(isinstance(each, ast.Constant) for each in given.values()):
        given = {name: each for name, each in given.items() if isinstance(each, ast.Constant)}
    owned = _object_of(call, helper) if is_method(source, helper) else None
    owner = parameters[0] if owned is not None else ""
    if owned is not None:
        given[owner] = owned
    given |= dict(zip(parameters[bool(owner) :], call.args, strict=False))
    given |= {option.arg: option.value for option in call.keywords if option.arg}
    own = moving.arguments_of(function)
    order = list(moving.body_of(function))
    again = moving.stored(order[: next((k for k, each in enumerate(order) if call in set(within(each))), len(order))])
    lines, needed, named = list[str](), set[str](), owner
    for name in fed.parameters:
        value = given.get(name)
        if value is None or any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in ast.walk(value)):
            return None
        read = names_in(value) & locals_of(function)
        if read - set(own) or read & again:
            return None
        needed |= read
        text = source.text(value)
        if name == owner:
            named = text
        else:
            lines += [f"    {name} = {text}"] if text != name else []
    arguments = [name for name in own if name in needed]
    if _reads_hidden(lines):
        return None  # one would hide the other
    head = re.compile(rf"( *)def {re.escape(fed.name)}\(.*\):  # before each launch")
    begins = [f"def {fed.name}({', '.join(arguments)}):  # before each launch", *lines]
    edits = []
    for each in fed.edits:
        if head.search(each.text) and named != owner:  # its object has another name where it is called
            if re.search(rf"\b{owner}\b(?!\.)", head.sub("", each.text)):
                return None
            each = replace(each, text=re.sub(rf"\b{owner}\.", lambda _: f"{named}.", each.text))
        edits.append(replace(each, text=head.sub(lambda at: "\n".join(at[1] + line for line in begins), each.text)))
    return replace(fed, edits=edits, parameters=arguments)


def _reads_hidden(lines: Sequence[str]) -> bool:
    """Whether one of some lines reads a name that one before it has given another meaning."""
    hidden = set[str]()
    for line in lines:
        name, _, text = line.strip().partition(" = ")
        if names_in(ast.parse(text, mode="eval")) & hidden:
            return True
        hidden.add(name)
    return False


def _together(
    source: Source,
    function: Function,
    found: Sequence[tuple[feeding.Feed, int]],
    own: feeding.Feed | None,
    *,
    always: bool = False,
) -> feeding.Feed | None:
    """One function that runs before each launch for several, in the order in which the step has asked.

    ``always``: also for one, as it is written beside a method.
    """
    if own is None and len(found) == 1 and not always:
        return found[0][0]
    every = list(found)
    if own is not None:
        lines = [edit.line for edit in own.edits if function.lineno < edit.line <= (function.end_lineno or 0)]
        at = [line for _, line in found]
        if not lines or not (max(at) < min(lines) or min(at) >= max(lines)):
            return None  # the host would draw in another order
        every = [(own, min(lines)), *found] if max(lines) <= min(at) else [*found, (own, min(lines))]
    name = around_launch(source, function, "before")
    own_arguments = moving.arguments_of(function)
    needed = {parameter for fed, _ in every for parameter in fed.parameters}
    needed |= {*own_arguments[:1]} if is_method(source, function) else set()  # it stands beside the method
    arguments = [each for each in own_arguments if each in needed]
    body, edits = list[str](), list[Edit]()
    for fed, _ in every:
        inside = next((each for each in fed.edits if f"def {fed.name}(" in each.text), None)
        if inside is None or "@" in inside.text or "global " in inside.text or "nonlocal " in inside.text:
            return None
        head, _, text = inside.text.partition("# before each launch\n")
        indent = len(head.rpartition("\n")[2]) - len(head.rpartition("\n")[2].lstrip())
        body += [line[indent:] for line in text.rstrip().splitlines()]
        edits += [each for each in fed.edits if each is not inside]
    names = {match[1] for line in body if (match := re.match(r"    (\w+) = ", line))}
    if len(every) > 1 and names & set(arguments):
        return None  # one would hide the other
    blank = not source.lines[first_line(function) - 2].strip()
    top = [*[""] * (not blank), f"def {name}({', '.join(arguments)}):  # before each launch", *body, ""]
    edits.append(source.before(function, top, rank=1))
    hoisted = [line for fed, _ in every for line in fed.hoisted]
    moved = [node for fed, _ in every for node in fed.moved]
    return feeding.Feed(source, edits, name, arguments, hoisted, moved, [n for fed, _ in every for n in fed.shared])
