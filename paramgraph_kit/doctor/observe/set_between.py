"""Numbers that code around a function sets between its calls: read from loops that also call it, as an epoch's do."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from paramgraph_kit.doctor.explain.syntax import (
    FUNCTIONS,
    elements_of,
    every,
    here,
    last_line,
    last_name,
    nodes_of,
    round_of,
    tree_of,
)
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.alike_answers import answers_alike
from paramgraph_kit.doctor.observe.captured_values import NOTHING, Use
from paramgraph_kit.doctor.observe.compare import OTHERS, differences
from paramgraph_kit.doctor.observe.further_numbers import FAR
from paramgraph_kit.doctor.observe.gradients import Scope, Search
from paramgraph_kit.doctor.observe.methods_own import class_of_method
from paramgraph_kit.doctor.observe.near_numbers import another
from paramgraph_kit.doctor.observe.other_entries import Entries
from paramgraph_kit.doctor.observe.picked_tensors import picks_by, picks_words
from paramgraph_kit.doctor.observe.rate_words import rate_in_a_tensor
from paramgraph_kit.doctor.observe.read_apart import returned
from paramgraph_kit.doctor.observe.replayed_by import graphs_of, replays_it
from paramgraph_kit.doctor.observe.short_names import first_of
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.observe.takes_tensors import takes_a_tensor
from paramgraph_kit.doctor.observe.tensors_beside import with_tensors_beside
from paramgraph_kit.doctor.observe.whose_groups import Lines, may_schedule_its, may_set_its
from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace.model import Failure, Frame

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.observer import Step
    from paramgraph_kit.doctor.observe.one_call import Call
    from paramgraph_kit.doctor.observe.own_regions import Region

_ENTRIES = {
    "stale-input": (
        "keep what `{path}` has in tensors that stay, one for each entry or one of a fixed size for all, and write "
        "into them with `copy_()` at {at}; or capture again behind {at}: the graph reads the tensors of its capture"
    ),
    "scalar-frozen": (
        "read here a tensor of the device that is made once, and fill it with `copy_()` or `fill_()` at {at} with what "
        "`{path}` has by then; or capture again behind {at}: the graph has the numbers of its capture"
    ),
    "": "capture again behind {at}{or_}: the graph runs what it had by then",
}
_OF_LENGTHS = ", or one graph for each length of `{path}`"
_FUNCTIONS = FUNCTIONS[:2]
CAPTURES = ("graph", "capture", "capture_begin", "make_graphed_callables")


SET_BETWEEN = "is set between calls, at"  # what a message has then
AND_AT = "; and at "
ONCE = "once before the capture"  # so begin words for what is kept in a tensor
COUNTED = ("scalar-frozen", "size-frozen", "branch-frozen", "learning-rate-frozen")


@dataclass(frozen=True, slots=True)
class Setting:
    """A number that a line outside of a function sets, and where the function reads it."""

    use: Use
    key: str  # of an optimizer's groups, or ""
    at: Frame  # the line that sets it
    node: ast.AST
    target: str  # as that line has it
    is_called: bool | None = None  # between two calls, as is known of a function that sets it; None of other lines
    failure: Failure | None = None  # what is told of it, where that is no number
    entries: Entries | None = None  # of a list or a dictionary that lines fill between
    note: str = ""  # what is only said, as nobody knows what is set
    mode_of: torch.nn.Module | None = None  # whose mode that line sets
    also: tuple[Setting, ...] = ()  # other lines that set it

    @property
    def said(self) -> str:
        """What is set, and where."""
        at = AND_AT.join([self.at.label(), *map(self._short, self.also)])
        return f"{self.key + ' of ' if self.key else ''}{self.use.text} {SET_BETWEEN} {at}"

    @property
    def by(self) -> str:
        """All lines that set it."""
        return " and ".join([f"{self.at.file}:{self.at.line}", *map(self._short, self.also)])

    def _short(self, other: Setting) -> str:
        return f"{other.at.file * (other.at.file != self.at.file)}:{other.at.line}"

    def told(self) -> Failure:
        """The problem that a graph of the line has with it, where it needs no other call."""
        if self.failure is not None:
            return self.failure
        code = "learning-rate-frozen" if self.key == "lr" else "branch-frozen" if self.use.decides else "scalar-frozen"
        line = step_of(self.use) if self.key else self.use.node.lineno
        failure = BY_ID[code].failure(self.said, frame_at(self.use.code, line))
        return replace(failure, fix=self._of_group(failure) if self.key else self.words(failure, self.use.value()))

    def is_known_in(self, region: Region) -> bool:
        """Whether the lines of a capture read it, and it is known to be set between."""
        if self.is_called is False or self.failure is not None or self.entries is not None:
            return False
        if getattr(self.use.node, "only_asks", False):  # told where it is set, with what is read behind the test
            return False
        uses = region.values.uses if region.values is not None else ()
        same = (u for u in uses if u.code is self.use.code and u.text == self.use.text)
        known = any(self.key or u.node.lineno == self.use.node.lineno for u in same)
        return known and not (self.use.decides and not self.key and answers_alike(self.use))

    def problems(self, base: Call, call: Callable[[], Call]) -> Iterator[Failure]:
        """What is frozen because of that: a call with another number shows it."""
        steps = base.steps
        if self.key or self.failure is not None:
            if self.mode_of is None or self._is_minded(self.mode_of, steps, call):
                yield self.told()
            return
        if self.entries is not None:
            yield from self._of_entries(self.entries, steps, call)
            return
        said = self.said
        then = self.use.value()
        picks = picks_by(self.use.text, self.use.code)
        nearby = [then - 1, 0] if picks and type(then) is int else []  # the next may lie behind the last
        far = [then + each for each in FAR] if type(then) is int else []  # `self.epoch // 10` is slow to move
        for value in (another(then), *(self._others() if self.use.decides else ()), *nearby, *far):
            self.use.write(value)
            try:
                other = call()
            finally:
                self.use.write(then)
            found = [*differences(steps, other.steps, random_drawn=False)] if other.ended is None else []
            found += returned(base, other, self.use.code) if other.ended is None else []
            told = [f for f in found if f.code in COUNTED] or [f for f in found if f.code == "stale-input"]
            told = self._of_it(told, steps, call)
            if told and self.use.decides and all(OTHERS in f.message for f in told):  # `p.grad = None` runs nothing
                yield BY_ID["branch-frozen"].failure(said, frame_at(self.use.code, self.use.node.lineno))
            yield from (replace(f, message=f"{f.message}: {said}", fix=self.words(f, then)) for f in told)
            if told:
                return

    def _is_minded(self, module: torch.nn.Module, steps: list[Step], call: Callable[[], Call]) -> bool:
        """Whether a call that begins in the other mode does otherwise: one may set it itself, by ``net.train()``."""
        then = module.training
        module.training = not then
        try:
            other = call()
        finally:
            module.training = then
        return other.ended is not None or bool(differences(steps, other.steps, random_drawn=False))

    def _of_it(self, told: list[Failure], steps: list[Step], call: Callable[[], Call]) -> list[Failure]:
        """Those without what moves from call to call anyway, as far as that leaves any: else those of its own line."""
        own = frame_at(self.use.code, self.use.node.lineno)
        here = [f for f in told if f.frame is not None and own is not None and f.frame.line == own.line]
        if len(here) == len(told):
            return told
        ever = {f.frame for f in differences(steps, call().steps, random_drawn=False)}
        return [f for f in told if f.frame not in ever] or here or told

    def _of_group(self, failure: Failure) -> str:
        """What one writes for a number of an optimizer's: a rate can be a tensor."""
        text = failure.frame.text if failure.frame is not None else ""
        if self.key != "lr":
            again = f"capture again behind {self.by}: the number is in the kernels that were captured"
            return f"before  {text}\nafter   {again}"
        made = rate_in_a_tensor(driver().device.type, self.use.value())
        there = "; ".join(f"and at {each.by} {each._filled_there()}" for each in (replace(self, also=()), *self.also))
        return f"before  {text}\nafter   this line as it is, with {made}; {there}"

    def _filled_there(self) -> str:
        """What the line that sets a rate becomes, where that is a tensor."""
        node: Any = self.node
        there = "the line stays as it is, which fills it"
        if isinstance(node, ast.Assign):
            given = (part for each in node.targets for part in elements_of(each) if isinstance(part, ast.Subscript))
            target = next((ast.unparse(e) for e in given if getattr(e.slice, "value", "") == "lr"), "")
            there = (
                f"there `{target}.fill_({ast.unparse(node.value)})`" if target else f"there `fill_()` writes `{target}`"
            )
        return there

    def _of_entries(self, entries: Entries, steps: list[Step], call: Callable[[], Call]) -> Iterator[Failure]:
        """What a round of the lines that change them makes another one in the step."""
        counted, or_ = len(entries.holds), ""
        for _ in entries.tries():
            other = call()
            entries.is_seen |= other.ended is None
            found = differences(steps, other.steps, random_drawn=False) if other.ended is None else []
            if told := [f for f in found if f.code in (*COUNTED, "stale-input")]:
                or_ = _OF_LENGTHS if len(entries.holds) != counted else ""
                break
        else:
            return
        for _ in entries.as_many() if or_ else ():  # then their number alone tells no graph
            other = call()
            if other.ended is not None or differences(steps, other.steps, random_drawn=False):
                or_ = ""
        ever = {f.frame for f in differences(steps, call().steps, random_drawn=False)}
        for f in (f for f in told if f.frame not in ever):
            line = f.frame.text if f.frame is not None else self.use.text
            by, words = self.by, _ENTRIES.get(f.code, _ENTRIES[""])
            words = words.format(path=self.use.text, at=by, or_=or_.format(path=self.use.text))
            yield replace(f, message=f"{f.message}: {self.said}", fix=f"before  {line}\nafter   {words}")

    def _others(self) -> list[float]:
        """What its tests compare it with, and a step beyond: from there they may go another way."""
        kind, tests = type(self.use.value()), [n for n in nodes_of(self.use.code) if isinstance(n, ast.Compare)]
        asked = [n for test in tests if self.use.text in ast.unparse(test) for n in ast.walk(test)]
        numbers = [n.value for n in asked if isinstance(n, ast.Constant) and isinstance(n.value, (int, float))]
        return [kind(n + more) for n in dict.fromkeys(numbers) for more in (0, 1)][:4] if kind is not bool else []

    def words(self, failure: Failure, then: float) -> str:
        """What one writes where it is set, if a tensor of one number does as well, or for the tensors that it picks."""
        if failure.code == "stale-input":
            again = f"capture again where {_lines([self, *self.also])} run"
            written = picks_words(self.use.text, self.use.code) or again
            return f"before  {failure.frame.text if failure.frame else ''}\nafter   {written}"
        if failure.code != "scalar-frozen" or not takes_a_tensor(self.use, then):
            return failure.fix
        if (beside := with_tensors_beside(self.use, then)) is None:
            return failure.fix
        outer = self.target if self.is_called is None else self.use.text  # names of a function are its own
        made = f"{outer} = torch.full((), float({outer}), device={driver().device.type!r})"
        there = "; ".join(f"line {each.at.line} {each._written_there()}" for each in (self, *self.also))
        line = failure.frame.text if failure.frame else ""
        stays = beside or "this line stays as it is"
        return f"before  {line}\nafter   {ONCE}, `{made}`; {there}; and {stays}"

    def _written_there(self) -> str:
        """What the line that sets it becomes, where that is a tensor of one number."""
        node: Any = self.node
        if isinstance(node, ast.AugAssign):  # of a tensor it writes in place
            return "stays as it is"
        if isinstance(node, ast.For):
            return (
                f"becomes `for value in {ast.unparse(node.iter)}:` with `{self.target}.fill_(value)` as its first line"
            )
        value = ast.unparse(node.value) if hasattr(node, "value") else "..."
        return f"becomes `{self.target}.fill_({value})`"


def lines_that_set(message: str) -> list[str]:
    """The files and lines that a message names as those that set something between calls."""
    at = message.partition(f"{SET_BETWEEN} ")[2]
    return [each.split()[0] for each in at.split(AND_AT) if each.strip()]


def with_others(settings: Iterable[Setting]) -> list[Setting]:
    """The same, each with the other lines that set what it sets."""
    found = dict[tuple[str, str, int], Setting]()
    for each in settings:
        key = (each.use.text, each.key, 0 if each.key else each.use.node.lineno)
        first = found.setdefault(key, each)
        if each.at not in [first.at, *(other.at for other in first.also)]:
            found[key] = replace(first, also=(*first.also, each))
    return list(found.values())


def _lines(settings: list[Setting]) -> str:
    numbers = [str(each.at.line) for each in settings]
    return f"line {numbers[0]} has" if len(numbers) == 1 else f"one of lines {', '.join(numbers)} has"


def says_what_sets(failure: Failure) -> bool:
    """Whether it tells what to write at a line around the step, which sets what it reads."""
    return SET_BETWEEN in failure.message and failure.fix != BY_ID[failure.code].fix


def again_behind(failure: Failure) -> Failure:
    """The same where no line tells more than that of the loop, with where one captures again."""
    if SET_BETWEEN not in failure.message or failure.fix != BY_ID[failure.code].fix:
        return failure
    text = failure.frame.text if failure.frame is not None else "..."
    lines = " and ".join(lines_that_set(failure.message))
    words = f"capture again behind {lines}: the graph has what it was at its capture"
    return replace(failure, fix=f"before  {text}\nafter   {words}")


def settings(
    scopes: Iterable[Scope], function: Any, uses_of: Callable[[], list[Use]], own: Iterable[CodeType]
) -> list[Setting]:
    """What is set in loops around calls of a function, each once; what it reads is asked only where there are any."""
    mine = [(code.co_filename, code.co_firstlineno, last_line(code)) for code in own]
    found: list[Setting] = []
    uses: list[tuple[Use, Any]] | None = None
    known: dict[int, dict[str, Any]] = {}  # of a body that runs now, its own names too
    for scope in scopes:
        search = Search(scope.names, function, set())
        callers = callers_in(scope.file, function)
        outer = Lines(scope.file, scope.body, known.setdefault(id(scope.body), scope.names), function=function)
        for node, body, lines in _in_loops(scope, search, callers, outer):
            file = lines.file
            if any(file == of and first <= node.lineno <= last for of, first, last in mine):
                continue
            at = Frame(display_name(file), node.lineno, body, linecache.getline(file, node.lineno).strip())
            if uses is None:
                values = ((use, use.value()) for use in uses_of())
                uses = [(use, value) for use, value in values if _may_be_set(value)]
            for use, value in uses:
                for key, target in _sets(node, scope, search, use, value, lines):
                    found.append(Setting(use, key, at, node, target))
    return with_others(found)


def callers_in(file: str, function: Any) -> set[str]:
    """Names of functions of a file that call a function, or call one that does."""
    names = {getattr(function, "__name__", "")} - {"", "forward", "__call__", "step", "<lambda>"}
    tree = tree_of(file)
    called = _called_by(tree) if tree is not None else {}
    found = {
        name for name, calls in called.items() if "replay" in calls and _replays(tree, name, graphs_of(file, function))
    }
    while more := {name for name, calls in called.items() if calls & (names | found)} - found - names:
        found |= more
    return found


def _replays(tree: ast.Module | None, name: str, graphs: frozenset[str]) -> bool:
    """Whether a function of that name replays one of these graphs."""
    bodies = [n for n in every(tree) if isinstance(n, _FUNCTIONS) and n.name == name] if tree and graphs else []
    return any(isinstance(n, ast.Call) and replays_it(n, graphs) for body in bodies for n in ast.walk(body))


@lru_cache(maxsize=64)
def _called_by(tree: ast.Module) -> dict[str, set[str]]:
    """Names of what each function of a file calls; the same file is asked for each function and scope."""
    bodies = [n for n in every(tree) if isinstance(n, _FUNCTIONS)]
    return {b.name: {last_name(n.func) for n in ast.walk(b) if isinstance(n, ast.Call)} for b in bodies}


def _in_loops(scope: Scope, search: Search, callers: set[str], outer: Lines) -> Iterator[tuple[Any, str, Lines]]:
    """Statements of loops that also call the function, and of the functions that these call."""
    name = getattr(scope.body, "name", "<module>")
    for loop in (n for statement in scope.body.body for n in here(statement, _FUNCTIONS)):
        inside = [n for part in round_of(loop) for n in here(part, _FUNCTIONS)]
        calls = [n for n in inside if isinstance(n, ast.Call)]
        if any(last_name(n.func) in CAPTURES for n in calls):
            continue
        graphs = graphs_of(scope.file, search.function)
        if not any(calls_it(n, search) or last_name(n.func) in callers or replays_it(n, graphs) for n in calls):
            continue
        for node in (loop, *inside):
            if isinstance(node, (ast.stmt, ast.Call)):
                yield node, name, outer
        for call in calls:
            helper = scope.names.get(call.func.id) if isinstance(call.func, ast.Name) else None
            if isinstance(helper, FunctionType) and not is_library(helper.__code__.co_filename):
                code = helper.__code__
                lines = outer.called(call, helper)
                yield from ((n, code.co_name, lines) for n in nodes_of(code) if isinstance(n, ast.stmt))


def calls_it(call: ast.Call, search: Search) -> bool:
    """Whether it calls the function, also where only its name tells: in a method of its object, or beside it."""
    if search.calls(call):
        return True
    owned = hasattr(search.function, "__self__")
    owner = call.func.value if owned and isinstance(call.func, ast.Attribute) else None if owned else call.func
    named = isinstance(owner, ast.Name) and search._value(owner) is None
    return named and last_name(call.func) == getattr(search.function, "__name__", "")


def _may_be_set(value: Any) -> bool:
    """Whether what a function reads is looked for: numbers, and optimizers for theirs."""
    return type(value) in NUMBERS or isinstance(value, torch.optim.Optimizer)


def _sets(node: Any, scope: Scope, search: Search, use: Use, value: Any, lines: Lines) -> Iterator[tuple[str, str]]:
    """What a statement sets of what a function reads: "" for the number itself, else an optimizer's entry; and how."""
    is_number = type(value) in NUMBERS
    if isinstance(node, ast.Call):
        if isinstance(value, torch.optim.Optimizer) and _schedules(node, search, value, lines) and step_of(use):
            yield "lr", ""
        return
    if not isinstance(node, (ast.Assign, ast.AugAssign, ast.For)):
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in (part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])):
        if _is_of_another(target, scope, search.function):
            continue
        if is_number and _is_same(target, scope, search, use):
            yield "", ast.unparse(target)
        entry = target.slice if isinstance(target, ast.Subscript) else None
        key = str(entry.value) if isinstance(entry, ast.Constant) else ""
        groups = value.param_groups if isinstance(value, torch.optim.Optimizer) and step_of(use) else ()
        has_number = any(isinstance(group.get(key), (int, float)) for group in groups)
        if has_number and may_set_its(target, lines, value):
            yield key, ""


def _is_same(target: ast.expr | None, scope: Scope, search: Search, use: Use) -> bool:
    """Whether a target is what a function reads."""
    node = use.node
    if isinstance(target, ast.Name) and isinstance(node, ast.Name) and target.id == node.id:
        if node.id in use.names.cells:
            return _has_variable(scope, use.code, node.id)
        is_global = isinstance(scope.body, ast.Module) or node.id in _globals_of(scope.body)
        return is_global and node.id not in use.names.own
    if isinstance(target, ast.Attribute) and isinstance(node, ast.Attribute) and target.attr == node.attr:
        owner = search._value(target.value)
        return owner is use.owner() if owner is not None else _may_be_made(target.value, scope, search, use.owner())
    if isinstance(target, ast.Subscript) and isinstance(node, ast.Subscript):
        same = ast.dump(target.slice) == ast.dump(node.slice)
        return same and search._value(target.value) is use.owner() is not NOTHING
    return False


def _has_variable(scope: Scope, code: CodeType, name: str) -> bool:
    """Whether a variable of an outer function is one of this body's: the function stands in it, or it says so."""
    if any(isinstance(n, ast.Nonlocal) and name in n.names for n in ast.walk(scope.body)):
        return True
    if isinstance(scope.body, ast.Module) or scope.file != code.co_filename:
        return False
    return scope.body.lineno < code.co_firstlineno <= (scope.body.end_lineno or 0)


def _may_be_made(node: ast.expr, scope: Scope, search: Search, owner: Any) -> bool:
    """Whether a variable of a function may be an object: not where each line that gives it one makes another class.

    Nor where it is a method's own object, of a class which that object is none of.
    """
    name, kind = ast.unparse(node), class_of_method(tree_of(scope.file), scope.body, ast.unparse(node))
    if kind and kind not in [each.__name__ for each in (owner if isinstance(owner, type) else type(owner)).__mro__]:
        return False
    assigns = [n for n in ast.walk(scope.body) if isinstance(n, ast.Assign)]
    values = [n.value for n in assigns if any(ast.unparse(t) == name for t in n.targets)]
    made = [search._value(v.func) if isinstance(v, ast.Call) else None for v in values]
    return not made or not all(isinstance(kind, type) and not issubclass(type(owner), kind) for kind in made)


def _is_of_another(target: ast.expr, scope: Scope, function: Any) -> bool:
    """Whether it is of a variable that has another object of the class than that whose step a body calls."""
    calls = (n.func for n in ast.walk(scope.body) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    stepped = {first_of(f.value) for f in calls if f.attr == getattr(function, "__name__", "")} - {""}
    made: dict[str, str] = {}
    for node in (n for n in ast.walk(scope.body) if isinstance(n, ast.Assign)):
        for each in node.targets:
            pairs = zip(elements_of(each), elements_of(node.value), strict=False)
            made |= {t.id: last_name(v.func) for t, v in pairs if isinstance(t, ast.Name) and isinstance(v, ast.Call)}
    root = first_of(target)
    return root in made and root not in stepped and any(made.get(each) == made[root] for each in stepped)


def _globals_of(body: ast.AST) -> set[str]:
    return {name for n in ast.walk(body) if isinstance(n, ast.Global) for name in n.names}


def _schedules(call: ast.Call, search: Search, optimizer: torch.optim.Optimizer, lines: Lines) -> bool:
    """Whether a call is the step of an optimizer's scheduler, which sets the next rate as a number."""
    if last_name(call.func) != "step" or not isinstance(call.func, ast.Attribute):
        return False
    if not any(isinstance(group.get("lr"), float) for group in optimizer.param_groups):
        return False
    scheduler = search._value(call.func.value)
    if isinstance(scheduler, LRScheduler):
        return scheduler.optimizer is optimizer
    is_named = scheduler is None and "sched" in last_name(call.func.value).lower()
    return is_named and may_schedule_its(call.func.value, lines, optimizer)


def step_of(use: Use) -> int:
    """The line at which an optimizer takes its step; 0 where that is not here."""
    for node in nodes_of(use.code):
        steps = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step"
        if steps and use.text in map(ast.unparse, (node.func.value, *node.args[:1])):  # type: ignore[attr-defined]
            return int(node.lineno)  # type: ignore[attr-defined]
    return 0
