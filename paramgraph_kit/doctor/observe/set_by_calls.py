"""Numbers that methods and functions set which a step does not call: what runs between its launches may call them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from paramgraph_kit.doctor.explain.syntax import (
    FUNCTIONS,
    MAKERS,
    children,
    elements_of,
    first_line,
    here,
    last_name,
    pairs_of,
    round_of,
    tree_of,
    writes_in_place,
)
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_values import NOTHING, Use, uses_in
from paramgraph_kit.doctor.observe.given_back import is_given_back
from paramgraph_kit.doctor.observe.gradients import Scope, Search
from paramgraph_kit.doctor.observe.held import attributes_of, code_of, file_of, is_a, is_overridden, unbound
from paramgraph_kit.doctor.observe.host_tests import decides_alone_in_key
from paramgraph_kit.doctor.observe.lies import is_copied_from
from paramgraph_kit.doctor.observe.made_first import is_made_where_absent
from paramgraph_kit.doctor.observe.made_with_captures import is_made_with_capture
from paramgraph_kit.doctor.observe.picked_tensors import PICKS, picks_words
from paramgraph_kit.doctor.observe.places import line_of
from paramgraph_kit.doctor.observe.replayed_by import graphs_of, replays_it
from paramgraph_kit.doctor.observe.set_alike import changes_no_number, makes_its_own
from paramgraph_kit.doctor.observe.set_apart import SET, told_apart
from paramgraph_kit.doctor.observe.set_between import (
    CAPTURES,
    ONCE,
    SET_BETWEEN,
    Setting,
    callers_in,
    calls_it,
    says_what_sets,
    settings,
)
from paramgraph_kit.doctor.observe.set_by_loops import set_by_loops
from paramgraph_kit.doctor.observe.steps_around import StepsAround
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.trace.model import Failure, Frame

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.examination import Examination
    from paramgraph_kit.doctor.observe.one_call import Call, Caller

MOST = 8  # numbers that are tried
_UNSEEN = (
    "what a graph keeps of {text} was not seen: it is filled at {at}, and has nothing yet that a call could be tried "
    "with: ask again once it has, or capture behind that line"
)
_FUNCTIONS = FUNCTIONS[:2]
_MAKES = (*MAKERS, "__set_name__")
_Target = ast.Attribute | ast.Subscript | ast.Name
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Told = Set[tuple[str, Frame | None]]


@dataclass(frozen=True, slots=True)
class _Place:
    """A function or a method as it is written, and what it calls and sets itself."""

    node: _Function
    of: ast.ClassDef | None
    file: str
    calls: tuple[ast.Call, ...]
    sets: tuple[tuple[_Target, ast.stmt], ...]

    @property
    def own(self) -> str:
        """What its object is called in a method."""
        given = [*self.node.args.posonlyargs, *self.node.args.args]
        static = any(last_name(each) == "staticmethod" for each in self.node.decorator_list)
        return given[0].arg if self.of is not None and given and not static else ""

    @property
    def name(self) -> str:
        """As a frame has it."""
        return f"{self.of.name}.{self.node.name}" if self.of is not None else self.node.name


def all_settings(around: StepsAround, function: Any, given: dict[str, Any], ran: Iterable[CodeType]) -> list[Setting]:
    """What loops around a step set, and what functions set that it does not call."""
    scopes, ran = around.scopes, list(ran)
    function, given = unbound(function, given)
    uses = cache(lambda: [use for use in uses_in(function, given) if not decides_alone_in_key(use)])
    found = settings(scopes, function, uses, ran)
    known = {_key(each.use) for each in found}
    may_be = _may_be_set(scopes, function, ran)  # of a large model it takes long what it reads
    more = _set_by_calls(scopes, function, uses(), ran) if may_be else []
    found = [replace(each, also=(*each.also, *_beside(each, more))) for each in found]
    more = [s for s in more if _key(s.use) not in known]
    found += [each for each in more if each.is_called]
    by_loops = set_by_loops(around.bodies, given, uses, ran)
    apart = {(_key(each.use), each.key) for each in by_loops if each.failure is not None}  # where no call can be tried
    found = [each for each in found if (_key(each.use), each.key) not in apart]
    set_there = {(_key(each.use), each.key) for each in found}
    found += [each for each in by_loops if (_key(each.use), each.key) not in set_there]
    known = {_key(each.use) for each in found}
    return [*found, *(each for each in more if _key(each.use) not in known)]


def _beside(setting: Setting, more: Iterable[Setting]) -> Iterator[Setting]:
    """What methods called between set of the same, at other lines."""
    known = {setting.at, *(each.at for each in setting.also)}
    same = (s for s in more if s.is_called and not setting.key and _key(s.use) == _key(setting.use))
    yield from (one for s in same for one in (replace(s, also=()), *s.also) if one.at not in known)


def problems(
    caller: Caller, every: Iterable[Setting], base: Call, found: Examination, moves: _Told = frozenset()
) -> Iterator[Failure]:
    """The same, where one line that reads several of them tells them all; ``moves``: what differs by itself."""
    together: dict[tuple[str, Frame | None], Failure] = {}
    for failure in _problems(caller, every, base, found, moves):
        at = (failure.code, failure.frame)
        then = together.get(at)
        by = failure.message.rpartition(SET_BETWEEN)[2]
        if then is None or (by in then.message and then.message.count(SET_BETWEEN) == 1):
            together[at] = failure  # of a module's parts one is told
            continue
        if not says_what_sets(failure) or by in then.message:
            continue
        words = failure.fix.rpartition("after   ")[2]
        more = "" if words in then.fix else f"; and {words}"
        together[at] = replace(then, message=f"{then.message}; and {failure.message}", fix=then.fix + more)
    yield from together.values()


def _problems(
    caller: Caller, every: Iterable[Setting], base: Call, found: Examination, moves: _Told
) -> Iterator[Failure]:
    """What is frozen of that: told where lines are known that set it between calls, else only said."""
    own = {(code, at) for code, at in moves if code == "branch-frozen"}  # which another number does not decide
    for each in every:
        if each.note:
            found.notes.append(each.note)
            continue
        is_apart = each.is_called is not None and not each.key and each.failure is None and each.entries is None
        if is_apart and type(each.use.value()) not in NUMBERS:
            if each.is_called or not _is_made_ahead(each.use, base):
                yield from told_apart(each, found)
            continue
        if changes_no_number(each):
            continue
        frozen = each.problems(base, lambda: caller.call(caller.args, caller.kwargs, drawing=base.number))
        if each.is_called is not False:
            yield from frozen
            if each.entries is not None and not each.entries.is_seen:
                found.notes.append(_UNSEEN.format(text=each.use.text, at=each.at.label()))
            continue
        by_it = (f for f in frozen if f.frame is not None and (f.code, f.frame) not in own)
        if (first := next(by_it, None)) is not None and first.frame is not None:
            what = {"branch-frozen": "decides a branch", "stale-input": PICKS}.get(first.code, "is frozen")
            by, told = each.by, first.fix.rpartition(ONCE)[2] if ONCE in first.fix else ""
            or_ = f", or {ONCE}{told.rpartition('; and this line')[0]}" if told else ""
            if picks := picks_words(each.use.text, each.use.code) if first.code == "stale-input" else "":
                or_ = f", or {picks}"
            text = {"text": each.use.text, "what": what, "at": first.frame.label()}
            note = SET.format(**text, by=by, line=each.at.text, or_=or_)
            found.notes += [note] if note not in found.notes else []  # of each layer of a network, say


def _is_made_ahead(use: Use, call: Call) -> bool:
    """Whether the line that reads a tensor ran, and found one of the call's own there: a hook has set it."""
    if not is_a(value := use.value(), torch.Tensor) or value.device.type == "cpu":
        return False
    spots = ((step, code, at) for step in call.steps for code, at in step.place.stack[-1:] if code is use.code)
    there = [step for step, code, at in spots if line_of(code, at) == use.node.lineno]
    return bool(there) and not any(storage_key(use.value()) in step.outside for step in call.steps)


def _counts(use: Use) -> bool:
    """Whether a graph keeps what is read: a number, a tensor of the device, a word or None that decides."""
    value = use.value()
    if isinstance(use.node, ast.Name) and type(value) in NUMBERS:
        return False  # those are tried elsewhere
    if type(value) in NUMBERS or (is_a(value, torch.Tensor) and is_copied_from(value)):
        return True
    return (type(value) is str and (use.decides or use.picks)) or (value is None and use.decides)


def _may_be_set(scopes: list[Scope], function: Any, ran: list[CodeType]) -> bool:
    """Whether a function sets what is called as something that a step reads."""
    held = [value for scope in scopes for value in scope.names.values()]
    held += [function, *attributes_of(function).values()]
    held += attributes_of(getattr(function, "__self__", None)).values()
    kinds = {kind for each in held for kind in (each if isinstance(each, type) else type(each)).__mro__}
    files = {scope.file for scope in scopes} | {file_of(kind) for kind in kinds if not _is_torchs(kind)}
    read = {name for code in ran for name in (*code.co_names, *code.co_consts) if isinstance(name, str)}
    read |= {name for kind in kinds for key, each in vars(kind).items() if key in read for name in _reads(each)}
    places = (each for file in files if file and not is_library(file) for each in _places(file))
    return any(_last(target) in read for each in places if each.node.name not in _MAKES for target, _ in each.sets)


def _reads(kept: Any) -> tuple[str, ...]:
    """The names in a property, which runs nothing of torch's."""
    code = code_of(kept.fget) if isinstance(kept, property) else None
    return code.co_names if code is not None else ()


def _last(target: _Target) -> str:
    if isinstance(target, ast.Name):
        return target.id
    entry = target.slice if isinstance(target, ast.Subscript) else None
    return target.attr if isinstance(target, ast.Attribute) else str(getattr(entry, "value", ""))


def _is_torchs(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "builtins", "numpy")


def _key(use: Use) -> tuple[int, str]:
    return id(use.owner()), last_name(use.node) or ast.unparse(use.node).rpartition("[")[2]


def _set_by_calls(scopes: list[Scope], function: Any, uses: list[Use], ran: list[CodeType]) -> list[Setting]:
    """Each number once, at the function that is known to be called between, else at the first that sets it."""
    found: dict[tuple[int, str], Setting] = {}
    for use in uses:
        owner, key = use.owner(), _key(use)
        if (owner is NOTHING and not isinstance(use.node, ast.Name)) or not _counts(use):
            continue
        for place, target, statement in _setters(use, owner, scopes):
            search = _Calls(place, use, owner, scopes)
            is_tensor = is_a(use.value(), torch.Tensor)
            is_first = is_made_where_absent(tree_of(place.file), statement) or writes_in_place(statement)
            if is_tensor and (is_first or is_made_with_capture(place.node, statement)):
                continue
            if is_given_back(place.file, statement, ast.unparse(target)) or _is_run(place, ran, search):
                continue
            between = search.between(function)
            if not between and (key in found or search.only_sets_up(function)):
                continue
            line = linecache.getline(place.file, statement.lineno).strip()
            at = Frame(display_name(place.file), statement.lineno, place.name, line)
            one = Setting(use, "", at, statement, ast.unparse(target), between)
            first = found.get(key)
            if first is None or not first.is_called:
                found[key] = one
            elif between and first.use is use and at not in [first.at, *(each.at for each in first.also)]:
                found[key] = replace(first, also=(*first.also, one))
    return sorted(found.values(), key=lambda each: not each.is_called)[:MOST]


def _setters(use: Use, owner: Any, scopes: list[Scope]) -> Iterator[tuple[_Place, _Target, ast.stmt]]:
    """The functions that set it, but for those in which its object is made."""
    kinds = [] if isinstance(owner, dict) else [kind for kind in type(owner).__mro__ if file_of(kind)]
    files = dict.fromkeys([use.code.co_filename, *(scope.file for scope in scopes), *map(file_of, kinds)])
    names = {scope.file: scope.names for scope in reversed(scopes) if isinstance(scope.body, ast.Module)}
    for place in (each for file in files if not is_library(file) for each in _places(file)):
        if place.node.name in _MAKES:
            continue
        known = [k for k in kinds if place.of is not None and k.__name__ == place.of.name and file_of(k) == place.file]
        mine = bool(known) and not is_overridden(place.node.name, known[0], type(owner))
        for target, statement in place.sets:
            if not _is_same(target, use.node):
                continue
            if isinstance(target, ast.Name):
                own = use.code.co_filename == place.file and target.id not in use.names.own
            else:
                own = _is_owner(target.value, place, mine, use, owner, names.get(place.file, {}))
            if own:
                yield place, target, statement


def _is_same(target: _Target, read: ast.AST) -> bool:
    """Whether both name the same variable, or the same attribute or entry of whatever has it."""
    if isinstance(target, ast.Name):
        return isinstance(read, ast.Name) and target.id == read.id
    if isinstance(target, ast.Attribute):
        return isinstance(read, ast.Attribute) and target.attr == read.attr
    return isinstance(read, ast.Subscript) and ast.dump(target.slice) == ast.dump(read.slice)


def _is_owner(base: ast.expr, place: _Place, mine: bool, use: Use, owner: Any, names: dict[str, Any]) -> bool:
    """Whether an object of another function is the one that the step reads, as far as its text tells."""
    if isinstance(base, ast.Name) and base.id == place.own:
        return mine
    given = {each.arg: each.annotation for each in (*place.node.args.args, *place.node.args.kwonlyargs)}
    if isinstance(base, ast.Name) and (kind := given.get(base.id)) is not None:
        return last_name(kind) == type(owner).__name__
    stored = {n.id for n in ast.walk(place.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    root = next((n.id for n in ast.walk(base) if isinstance(n, ast.Name)), "")
    if root not in stored | given.keys() and root != place.own:
        known = Search(names, None, set())._value(base)
        if known is not None or isinstance(base, ast.Name):
            return known is owner
    if makes_its_own(place.node, root):
        return False
    return last_name(base) == last_name(use.node.value) != ""  # type: ignore[attr-defined]


class _Calls:
    """Where a function is called that sets a number of an object."""

    def __init__(self, place: _Place, use: Use, owner: Any, scopes: list[Scope]) -> None:
        self.place, self.use, self.owner, self.scopes = place, use, owner, scopes
        files = dict.fromkeys([place.file, *(scope.file for scope in scopes)])
        self.places = [each for file in files if not is_library(file) for each in _places(file)]
        self.callers = [p for p in self.places if p.node is not place.node and any(self.may_be(c, p) for c in p.calls)]

    @cached_property
    def held_as(self) -> set[str]:
        """What the object is called in the lines around the step, and in the objects that they name."""
        spaces = [scope.names for scope in self.scopes]
        named = {id(each): each for names in spaces for each in names.values() if file_of(type(each))}
        held = [*spaces, *map(attributes_of, named.values())]
        return {name for names in held for name, each in names.items() if each is self.owner}

    def may_be(self, call: ast.Call, within: _Place | None, names: dict[str, Any] | None = None) -> bool:
        """Whether a call may be one of it: of its object, as far as the text tells."""
        if last_name(call.func) != self.place.node.name:
            return False
        if isinstance(call.func, ast.Name):
            return self.place.of is None
        base = call.func.value  # type: ignore[attr-defined]
        if self.place.of is None:
            return isinstance(base, ast.Name)  # of a module's
        if within is not None and isinstance(base, ast.Name) and base.id == within.own:
            kinds = {kind.__name__ for kind in type(self.owner).__mro__} | {self.place.of.name}
            return within.of is not None and within.of.name in kinds
        known = Search(names, None, set())._value(base) if names is not None else None
        if known is not None:
            own = [kind.__name__ for kind in type(known).__mro__]
            return known is self.owner or (self.place.own != "" and self.place.of.name in own and not self.is_its())
        called = {last_name(self.use.node.value), "self"} | self.held_as  # type: ignore[attr-defined]
        return not self.is_its() or last_name(base) in called or (within is not None and self._makes(within, base))

    def _makes(self, within: _Place, base: ast.expr) -> bool:
        """Whether a variable of a function has an object of the class, which it makes."""
        kinds = {kind.__name__ for kind in type(self.owner).__mro__} - {"object"}
        pairs = (pair for node in ast.walk(within.node) for pair in pairs_of(node))
        given = [value for to, value in pairs if isinstance(base, ast.Name) and ast.unparse(to) == base.id]
        return any(isinstance(value, ast.Call) and last_name(value.func) in kinds for value in given)

    def is_its(self) -> bool:
        """Whether it is a method of the object itself, and not of another that has it."""
        return self.place.of is not None and self.place.of.name in [k.__name__ for k in type(self.owner).__mro__]

    def names_that_lead(self) -> set[str]:
        """Names of functions that call it, or call one that does."""
        found = {p.node.name for p in self.callers if p.node.name not in _MAKES}
        while more := {
            p.node.name
            for p in self.places
            if p.node.name not in (*found, *_MAKES) and any(last_name(c.func) in found for c in p.calls)
        }:
            found |= more
        return found

    def between(self, function: Any) -> bool:
        """Whether a loop that calls the step also calls it, or lines do between two calls of the step."""
        leads = self.names_that_lead() - {getattr(function, "__name__", "")}
        for scope in self.scopes:
            search, callers = Search(scope.names, function, set()), callers_in(scope.file, function)
            graphs = graphs_of(scope.file, function)
            within = next((p for p in self.places if p.node is scope.body), None)
            local = scope.names if within is None else None

            def runs(
                node: ast.AST, search: Search = search, callers: set[str] = callers, graphs: frozenset[str] = graphs
            ) -> bool:
                return isinstance(node, ast.Call) and (
                    calls_it(node, search) or last_name(node.func) in callers or replays_it(node, graphs)
                )

            def moves(node: ast.AST, within: _Place | None = within, local: dict[str, Any] | None = local) -> bool:
                return isinstance(node, ast.Call) and (
                    self.may_be(node, within, local) or last_name(node.func) in leads
                )

            for node in (n for statement in scope.body.body for n in here(statement, _FUNCTIONS)):
                if again := round_of(node):
                    calls = [n for s in again for n in here(s, _FUNCTIONS) if isinstance(n, ast.Call)]
                    captures = any(last_name(n.func) in CAPTURES for n in calls)
                    if not captures and any(map(runs, calls)) and any(map(moves, calls)):
                        return True
            lines = [[n for n in here(s, _FUNCTIONS) if isinstance(n, ast.Call)] for s in scope.body.body]
            ran = [at for at, calls in enumerate(lines) if any(map(runs, calls))]
            if ran and any(ran[0] < at < ran[-1] and any(map(moves, calls)) for at, calls in enumerate(lines)):
                return True
        return False

    def only_sets_up(self, function: Any) -> bool:
        """Whether all its calls that are known stand where objects are made, or ahead of the step at a file's level."""
        makers, waiting, seen = False, [self.place], list[_Place]()
        while waiting:
            place = waiting.pop()
            seen.append(place)
            own = self.callers if place is self.place else [p for p in self.places if self._is_called(place, p)]
            for caller in (each for each in own if each not in seen):
                if caller.node.name not in _MAKES and not (caller.node.name.startswith("_") and caller is not place):
                    return False
                if caller.node.name in _MAKES:
                    makers = True
                else:
                    waiting.append(caller)
        for scope in (s for s in self.scopes if isinstance(s.body, ast.Module)):
            for node in ast.walk(scope.body):
                if any(self._at_top(n, scope) for s in round_of(node) for n in here(s)):
                    return False
            search, callers = Search(scope.names, function, set()), callers_in(scope.file, function)
            for statement in scope.body.body:
                nodes = [n for n in here(statement) if isinstance(n, ast.Call)]
                if any(calls_it(n, search) or last_name(n.func) in callers or _is_given_on(n, search) for n in nodes):
                    break
                makers = makers or any(self._at_top(n, scope) for n in nodes)
        return makers

    def _at_top(self, node: ast.AST, scope: Scope) -> bool:
        return isinstance(node, ast.Call) and self.may_be(node, None, scope.names)

    def _is_called(self, place: _Place, by: _Place) -> bool:
        return any(last_name(call.func) == place.node.name for call in by.calls)


def _is_given_on(call: ast.Call, search: Search) -> bool:
    """Whether a call is given the function: ``diagnose(net.step, x)``."""
    owner, name = getattr(search.function, "__self__", None), getattr(search.function, "__name__", "")
    if owner is None:
        return any(search._value(each) is search.function for each in call.args)
    methods = [each for each in call.args if isinstance(each, ast.Attribute) and each.attr == name]
    return any(search._value(each.value) is owner for each in methods)


def _is_run(place: _Place, ran: list[CodeType], search: _Calls) -> bool:
    """Whether a step calls it itself, also where it has not yet: what that moves is seen, or told, otherwise."""
    line = first_line(place.node)
    if any(code.co_filename == place.file and code.co_firstlineno == line for code in ran):
        return True
    lines = {(code.co_filename, code.co_firstlineno) for code in ran}
    waiting = [each for each in search.places if (each.file, first_line(each.node)) in lines]
    return any(search.may_be(call, each) for each in waiting for call in each.calls)


@lru_cache(maxsize=64)
def _places_in(tree: ast.Module, file: str) -> tuple[_Place, ...]:
    found: list[_Place] = []

    def look(node: ast.AST, of: ast.ClassDef | None) -> None:
        for child in children(node):
            if isinstance(child, _FUNCTIONS):
                inside = [n for s in child.body for n in here(s, _FUNCTIONS)]
                calls = tuple(n for n in inside if isinstance(n, ast.Call))
                found.append(_Place(child, of, file, calls, tuple(_sets(inside))))
            look(child, child if isinstance(child, ast.ClassDef) else None if isinstance(child, _FUNCTIONS) else of)

    look(tree, None)
    return tuple(found)


def _places(file: str) -> tuple[_Place, ...]:
    tree = tree_of(file)
    return _places_in(tree, file) if tree is not None else ()


def _sets(nodes: list[ast.AST]) -> Iterator[tuple[_Target, ast.stmt]]:
    """What lines set: attributes and entries, ``setattr(self, "now", 1)`` too."""
    outer = {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    for node in nodes:
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and last_name(call.func) == "setattr" and len(call.args) == 3:
            name = call.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield ast.Attribute(call.args[0], name.value, ast.Store()), node  # type: ignore[misc]
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else targets
        for target in (part for each in targets for part in elements_of(each)):
            if isinstance(target, (ast.Attribute, ast.Subscript)) or (
                isinstance(target, ast.Name) and target.id in outer
            ):
                yield target, node  # type: ignore[misc]
