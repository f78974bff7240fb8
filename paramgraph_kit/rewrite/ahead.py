"""What of a step the host can do before its launch: it is fed, or asked first."""

from __future__ import annotations

import ast
import dis
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.observe.other_numbers import OTHER_NUMBERS
from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.around import clocks, feeding, makers, parts, staying
from paramgraph_kit.rewrite.around.guards import Guard
from paramgraph_kit.rewrite.around.watched import Values
from paramgraph_kit.rewrite.counting import optimizers
from paramgraph_kit.rewrite.counting.given_back import GivenBack
from paramgraph_kit.rewrite.expressions.decisions.branches import choose_by_where, choose_one
from paramgraph_kit.rewrite.expressions.state import carried
from paramgraph_kit.rewrite.expressions.state.begins import MAKERS
from paramgraph_kit.rewrite.lending import Lending, Plan
from paramgraph_kit.rewrite.loops.ending import Ending
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.source import hosts, moving, writes
from paramgraph_kit.rewrite.source.edits import (
    Edit,
    Function,
    Source,
    is_method,
    is_text,
    locals_of,
    names_in,
    path_of,
    within,
    without_gradients,
)
from paramgraph_kit.rewrite.source.place import Place, called, value_of
from paramgraph_kit.rewrite.source.reach import attributes_of, numbers_of, owner_of, settings_of
from paramgraph_kit.rewrite.source.unchanging import deciders
from paramgraph_kit.trace.model import Failure

Fed = tuple[ast.stmt, ast.expr, Values]
_COPIED = ("copy-to-gpu", "tensor-literal")
_STORES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_SUBSCR", "STORE_NAME", "DELETE_", "IMPORT_", "MAKE_")
_COMPUTE = ("range", "len", "float", "int", "min", "max", "abs", "sum", "zip", "tuple", "list")  # Python's own
_LIBRARIES = ("torch", "math", "numpy")


class Ahead(Lending):
    """One function, with what can be done before its launch."""

    def __init__(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], prover: Prover | None = None
    ) -> None:
        super().__init__(function, args, kwargs, prover)
        self.moves = prover is None  # what is rewritten again leaves alone what was moved
        self.numbers = numbers_of(self.prover.state)
        self.device = self._device_text(self.space)
        self.unsafe: dict[int, str] = {}  # by failure: why a rewrite where it stands was taken back
        self.elsewhere: set[int] = set()  # those of which its move behind the launch has not been tried yet
        self.feeds = True  # work may be moved before the launch
        self.calls_stay = False  # what calls helpers that tell computes, too: only what tells there is put off
        self.defers = True  # and, from wherever it is done, behind it
        self.sharing = False  # there is something of that
        self.watch: clocks.Stopwatch | None = None
        self.shares = False  # what the host finds first is known behind the launch, too
        self.leads = False  # rates of optimizers are written before the launch
        self.ended: Ending | None = None  # a loop whose end the device decides
        self.guard = Guard()  # a branch that leaves the step
        self.late: set[str] = set()  # numbers that loops read of the device, for what is behind the launch
        self.reads_there = False  # what the host reads in the middle of a step stays as it is
        self.forced: set[str] = set()  # numbers that move behind the launch, and that a graph would keep
        self.put_off: list[ast.stmt] = []  # what gives optimizers their numbers, where they step behind the launch
        self.given_back: GivenBack | None = None  # gradients that lines behind the launch take away at times
        self.ahead: list[ast.stmt] = []  # what is done before the launch, as it stands
        self.fetched: feeding.Fetched | None = None  # batches that it fetches, which are fetched there
        self.rated: list[str] = []  # optimizers of which something that is moved writes the rate
        self.cut = -1  # the first statement of the function's body that runs behind the launch

    def _device_text(self, space: Mapping[str, Any]) -> str:
        known = space.get("device", space.get("DEVICE"))
        if isinstance(known, (str, torch.device)) and torch.device(known).type == device().type:
            return "device" if "device" in space else "DEVICE"
        return f'"{device().type}"'

    def device_in(self, source: Source) -> str:
        """How a file writes the device: a name of the function's own file says nothing in another one."""
        return self.device if source.file == self.file else self._device_text(self.space_in(source))

    def space_in(self, source: Source) -> dict[str, Any]:
        """The names that a file's functions read around them: another file may have others of the same names."""
        own = (f.__globals__ for f in self.functions if f.__code__.co_filename == source.file)
        return self.space if source.file == self.file else {**next(own, {})}

    def _rates_ahead(
        self, failures: Sequence[Failure], gives: Callable[[ast.stmt], object] = lambda node: optimizers.rated([node])
    ) -> list[ast.stmt]:
        """Statements by which the host gives an optimizer its rate, with what they need, for before the launch."""
        at = self._definition()
        if at is None or not any(failure.code == "learning-rate-frozen" for failure in failures):
            return []
        source, function = at
        found: list[ast.stmt] = []
        for node in moving.body_of(function):
            if not gives(node) or not moving.is_closed(node):
                continue
            call = getattr(node, "value", None)
            for value in [*optimizers.given_rates(node), *([call] if isinstance(call, ast.Call) else [])]:
                kept = feeding.slice_before(source, function, node, value, whole=True)
                if kept is None:
                    return []
                found += [each for each in kept if each not in found]
            found.append(node)
        test = self._host_test(function)
        if any(not hosts.is_of_host(node, test, set(moving.arguments_of(function))) for node in found):
            return []
        return [node for node in moving.body_of(function) if node in found]

    def _opening(self, failures: Sequence[Failure]) -> list[ast.stmt]:
        """What a function begins with, where the host decides whether it is done: it is done before the launch."""
        at = self._definition()
        if at is None:
            return []
        source, function = at
        decided = set[ast.stmt]()
        for failure in failures:
            known = failure.code == "branch-frozen" and id(failure) not in self.unsafe
            place = self.place(failure) if known else None
            inside = place is not None and place[0] is source and place[1] in function.body
            if place is None or not inside or not isinstance(place[1], ast.If):
                continue
            if not choose_by_where(self._place_of(*place, failure), "chosen_in"):
                decided.add(place[1])
        for last in sorted(map(function.body.index, decided), reverse=True):  # those at its end may go behind it
            some = {node for node in decided if function.body.index(node) <= last}
            if head := self._opening_until(function, last, some):
                return head
        return []

    def _opening_until(self, function: Function, last: int, decided: set[ast.stmt]) -> list[ast.stmt]:
        """What a function begins with, as far as its last branch that the host decides; nothing where that stays."""
        skipped = (ast.Global, ast.Nonlocal)
        head = [node for node in function.body[: last + 1] if not isinstance(node, skipped) and not is_text(node)]
        test, arguments = self._host_test(function), set(moving.arguments_of(function))
        rest = [*self._staying(function, head, decided), *function.body[last + 1 :]]
        head = [node for node in head if node not in rest]
        made = moving.stored(head) & locals_of(function)
        if any(names_in(node) & made for node in rest) or not self._launches(function, rest):
            return []
        for node in head:
            if optimizers.rebinds(node):
                return []
            if not moving.is_movable(node) or not names_in(node) & locals_of(function) <= arguments | made:
                return []
            if node not in decided and not hosts.is_of_host(node, test, arguments):
                return []
        return head

    def _launches(self, function: Function, rest: Sequence[ast.stmt]) -> bool:
        """Whether a launch has something to do of what is not done before it, nor behind it."""
        behind = list(moving.body_of(function))[self.cut :] if self.cut >= 0 else []
        behind += [node for node in rest if isinstance(node, ast.AugAssign) and self._is_number(node.target)]
        inside = (part for node in rest if node not in behind for part in ast.walk(node))
        return any(isinstance(part, (ast.Call, ast.BinOp, ast.AugAssign)) for part in inside)

    def _is_number(self, node: ast.expr) -> bool:
        return type(self._value(path_of(node))) in (bool, int, float)

    def _staying(self, function: Function, head: Sequence[ast.stmt], decided: set[ast.stmt]) -> list[ast.stmt]:
        """What a launch may do behind the host's decisions before which it stands, as neither writes what both read."""
        test, found = self._host_test(function), list[ast.stmt]()
        local = {*locals_of(function), *moving.arguments_of(function)} - {"self"}
        for number, node in reversed([*enumerate(head)]):
            if node in decided or not isinstance(node, ast.Assign):
                continue
            later = [each for each in head[number + 1 :] if each not in found]
            if self._is_of_a_setting(node) and not any(moving.stored([node]) & names_in(each) for each in later):
                found.insert(0, node)
            if node in found or test(node.value):
                continue
            theirs = {path for each in later for path in writes.written(each)}
            own, asked = moving.stored([node]), {path for each in later for path in writes.paths(each)}
            if any(writes.touches(a, b) for a in theirs for b in writes.paths(node)):
                continue
            if not own & asked and staying.stays(node, later, self._value, local):
                found.insert(0, node)
        return found

    def _is_of_a_setting(self, node: ast.Assign) -> bool:
        """``dt = self.dt``, a number that only ``__init__`` gives: it is the same before the launch and in it."""
        path, target = path_of(node.value), node.targets[0]
        if "." not in path or len(node.targets) != 1 or not isinstance(target, ast.Name):
            return False
        name = path.rpartition(".")[2]
        every = ((s, n) for s in self.sources.values() for n in s.parents if isinstance(n, ast.Attribute))
        set_in = [s.function_of(n) for s, n in every if n.attr == name and not isinstance(n.ctx, ast.Load)]
        known = all(getattr(function, "name", "") in MAKERS for function in set_in)
        return known and self._is_number(target)

    def _with_what_reads(
        self, source: Source, function: Function, chosen: Sequence[ast.stmt], failures: Sequence[Failure]
    ) -> list[ast.stmt]:
        """What goes before the launch, with the host's lines that read what it assigns; nothing where others read that.

        ``m = momentum_of(it)`` goes with ``it``. A line that reads ``m``, and was told, stays and gets ``m_in``.
        """
        made = moving.stored(self.ahead) & locals_of(function)
        stay = [node for node in moving.body_of(function) if node not in self.ahead and node not in chosen]
        if {name for node in chosen for name in names_in(node)} & made & set(self.space):
            return []
        if not any(names_in(node) & made - moving.stored([node]) for node in stay):
            return self.ahead
        test, arguments = self._host_test(function), set(moving.arguments_of(function))
        along = list[ast.stmt]()
        for node in stay:
            plain = isinstance(node, ast.Assign) and all(isinstance(each, ast.Name) for each in node.targets)
            if plain and names_in(node) & made and hosts.is_of_host(node, test, arguments):
                along.append(node)
                made |= moving.stored([node])
        places = [place for f in failures if f.code in feeding.FED and (place := self.place(f)) is not None]
        told = [moving.top_of(source, function, node) or node for file, node in places if file is source]
        readers = [node for node in stay if node not in along and names_in(node) & made - moving.stored([node])]
        if any(node not in told for node in readers) or any(moving.stored([node]) & made for node in readers):
            return []
        wanted = {name for node in readers for name in names_in(node)}
        for node in reversed(along):  # the others are moved with the tensors that they fill
            wanted |= names_in(node) if moving.stored([node]) & wanted else set()
        behind = {name for node in chosen for name in names_in(node)}
        first = {
            name
            for node in along
            if not moving.stored([node]) & wanted or moving.stored([node]) & behind
            for name in moving.stored([node])
        }
        for node in reversed(along):
            first |= names_in(node) if moving.stored([node]) & first else set()
        ahead = [*self.ahead, *(node for node in along if moving.stored([node]) & first)]
        return [node for node in moving.body_of(function) if node in ahead]

    def _fed(self, failures: Sequence[Failure], others: Sequence[str]) -> Plan | None:
        """Host work that the function needs first, moved before the launch."""
        at = self._definition()
        places = [(f, *place) for f in failures if f.code in feeding.FED and (place := self.place(f)) is not None]
        wanted = {node: f for f, _, node in places}
        if at is None or not (wanted or self.watch is not None or self.ahead or self.forced or self.fetched):
            return None
        source, function = at
        host = self._host_test(function)
        lent = hosts.derived(function, self.forced, host) if self.forced else set[str]()
        numbers = hosts.derived(function, self._given_numbers(source, function, failures, places), host)
        for node in hosts.reading(function, lent, self.behind, host):
            wanted.setdefault(node, hosts.KEPT)
        in_rounds = [part for node in moving.body_of(function) for part in hosts.in_rounds(node)]
        every = [*moving.body_of(function), *in_rounds]
        there = {s.function_of(node): f for f, s, node in places if f.code in _COPIED}
        copying = makers.makers(self.sources, there, self.space, self._helper_test) - {function.name}
        copying |= makers.types_of_device(self.space)
        given = _given_to_helpers(function, every, places)
        wanted = {**{node: failures[0] for node, failures in given.items()}, **wanted}
        known = set(wanted)
        for node in every if copying and there else ():
            if isinstance(node, (ast.Assign, ast.Expr)) and makers.calls_one(node, copying):
                wanted.setdefault(node, next(iter(there.values())))
        statements = [node for node in every if node in wanted and node not in self.ahead]
        ways, picked = {s: feeding.otherwise(source, s) for s in statements}, hosts.picks_number(self._value)
        found = [(s, node) for s in statements for node in feeding.candidates([s], host, ways[s], copying, picked)]
        found = [(s, node) for s, node in found if s in known or makers.is_call_of(node, copying)]
        # Each key of a dictionary keeps a tensor of its own, and not one that each launch writes.
        found = [(s, node) for s, node in found if not _is_kept_by_key(source.parents.get(node))]
        # What each round asks for anew is foreseen, if at all.
        found = [(s, node) for s, node in found if s not in in_rounds or feeding.is_the_same(source, s, node)]
        seen = self._watched_values(source, [node for _, node in found])
        items = [(statement, node, values) for (statement, node), values in zip(found, seen, strict=False)]
        fed = [
            (statement, node, values)
            for statement, node, values in items
            if values.is_fed(
                device().type,
                source.parents.get(node),
                copied=feeding.is_copy(node, host, copying),
                moves=hosts.reads_any(node, lent)
                or hosts.draws(node)
                or (values.kinds == {float} and hosts.reads_any(node, numbers)),
                chosen=isinstance(statement, ast.If) and node is not statement.test,
                refused=statement in wanted and wanted[statement].code == "cpu-scalar-frozen",
            )
            and parts.slice_of(source, node) is None
        ]
        fed += parts.fitting(source, items)
        if not fed and self.watch is None and not self.ahead and self.fetched is None:
            return None

        def choose(statement: ast.stmt, node: ast.expr, condition: str) -> list[Edit]:
            given = [each for at, each, _ in fed if at is statement]
            return self._choose(self._place_of(source, statement, wanted[statement]), node, condition, given)

        head = [*(self.watch.starts if self.watch is not None else []), *self.ahead]
        modules = self._modules_called(function)

        def feed(some: Sequence[Fed]) -> feeding.Feed | None:
            known = others, head, self.fetched, modules, partial(self._is_steady, source)
            made = feeding.feed(source, function, some, self.device, host, choose, *known)
            counted = self.kept.counters if self.kept is not None else []  # tensors by now, which the graph reads
            parts_of = [part for each in made.moved for part in ast.walk(each)] if made is not None else []
            return made if not any(one.is_at(part) for part in parts_of for one in counted) else None

        self.fed = feed(fed)
        plain = [item for item in fed if not makers.is_call_of(item[1], copying)]
        if self.fed is None and plain and len(plain) < len(fed) and (own := feed(plain)) is not None:
            self.fed, fed = own, plain  # what a helper copies may come of what is fed itself
        if self.fed is None:  # what cannot go there must not keep the others from it
            apart = [[item for item in fed if item[0] is one] for one in dict.fromkeys(item[0] for item in fed)]
            fed = [item for items in apart if feed(items) is not None for item in items]
            self.fed = feed(fed) if fed or self.fetched is not None else None
        if self.fed is None:
            return None
        inside = {id(n) for top in (*head, *self.fed.moved, *(each for each, _, _ in fed)) for n in ast.walk(top)}
        handled = [f for f in failures if (place := self.place(f)) is not None and id(place[1]) in inside]
        handled += [f for at in {at for at, _, _ in fed} for f in given.get(at, []) if f not in handled]
        brought = any(makers.is_call_of(node, copying) for _, node, _ in fed)
        handled += [f for helper, f in there.items() if brought and getattr(helper, "name", "") in copying]
        return Plan(source, self.fed.edits, handled, self.fed.hoisted)

    def _is_steady(self, source: Source, node: ast.Assign) -> bool:
        """Whether the host finds the same number in each call: ``decay = math.exp(-self.gamma * self.dt)``."""
        place = self._place_of(source, node, hosts.KEPT)
        return all(isinstance(each, ast.Name) for each in node.targets) and deciders(place, node.value) is not None

    def _given_numbers(
        self,
        source: Source,
        function: Function,
        failures: Sequence[Failure],
        places: Sequence[tuple[Failure, Source, ast.stmt]],
    ) -> set[str]:
        """Arguments by which a call with other numbers did something else, where that froze numbers and no more."""
        told = [f for f in failures if OTHER_NUMBERS in f.message]
        if not told or any(f.code != "scalar-frozen" for f in told) or not self.says_numbers_before(source, function):
            return set()
        read = {name for f, _, node in places if any(f is each for each in told) for name in names_in(node)}
        made = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign)]
        for _ in made:  # `rest = 1 - alpha` is of what it reads
            read |= {name for node in made if moving.stored([node]) & read for name in names_in(node.value)}
        return {*moving.arguments_of(function)} & read - moving.stored(moving.body_of(function)) - {"self"}

    def says_numbers_before(self, source: Source, function: Function) -> bool:
        """Whether whoever launches a function can say its numbers before, in tensors.

        Not where the file calls it at several places, which would all have to, or where tensors are of float64, whose
        last digits a tensor for such a number would lose.
        """
        calls = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
        every = (*tree_leaves(self.prover.inputs), *self.prover.state.tensors)
        wide = any(isinstance(each, torch.Tensor) and each.dtype is torch.float64 for each in every)
        return len(calls) <= 1 and not wide

    def _modules_called(self, function: Function) -> set[str]:
        """The paths of networks that a function calls, and of plain functions that an object has."""
        paths = {path_of(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)}
        return {path for path in paths if _changes_only_itself(self._value(path))}

    @staticmethod
    def _helper_test(helper: Function, space: Mapping[str, Any]) -> Callable[[ast.expr], bool]:
        """Which expressions of a helper are the host's alone."""

        return hosts.host_test(device().type, helper, {}, space, partial(value_of, space))

    def _choose(self, place: Place, node: ast.expr, condition: str, given: Sequence[ast.expr]) -> list[Edit]:
        """A branch whose test the host has found, as the device chooses; ``given``: what it asks the host for."""
        place.lent = [place.text(each) for each in given]
        above = place.source.parents.get(node)
        return (
            choose_one(place, above, condition) if isinstance(above, ast.IfExp) else choose_by_where(place, condition)
        )

    def _begun(self) -> dict[str, Any]:
        """What the first step makes, looked for once in the same lines."""
        prover = self.prover
        if self.shown.begun is None:
            self.shown.begun = carried.begun(prover.from_now()), [*prover.operations], [*prover.products]
        found, prover.operations[:], prover.products[:] = self.shown.begun
        return found

    def _place_of(self, source: Source, statement: ast.stmt, failure: Failure) -> Place:
        trains = any(tensor.requires_grad for tensor in self.prover.state.tensors)
        trains = trains and self.records(source, statement) and not without_gradients(source, statement)
        at, space = self._definition(), self.space_in(source)
        if at is not None and source.function_of(statement) is at[1] and is_method(*at):
            space = space | {moving.arguments_of(at[1])[0]: owner_of(self.function)}
        known = (space, self.forms_in(source, statement), self.numbers, attributes_of(self.prover.state))
        begun = self._begun() if failure.code == "stale-input" else {}
        gone = frozenset(part for node in self.behind for part in ast.walk(node))
        where = self.device_in(source)
        by = self.called_by(source, statement)
        settings = settings_of(self.prover.state)
        more: dict[str, Any] = {
            "settings": settings,
            "begun": begun,
            "gone": gone,
            "called": by,
            "plain": self.plain_of(source, statement),
            "given": self.given if at is not None and source.function_of(statement) is at[1] else {},
        }
        return Place(source, statement, failure, where, *known, trains=trains, **more)


def _is_kept_by_key(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setdefault"


def _given_to_helpers(
    function: Function, statements: Iterable[ast.stmt], places: Iterable[tuple[Failure, Source, ast.stmt]]
) -> dict[ast.stmt, list[Failure]]:
    """Statements that call a helper with a number that it reads where one was found frozen: ``elbo(x, beta)``."""
    found: dict[ast.stmt, list[Failure]] = {}
    for failure, source, node in places:
        helper = source.function_of(node) if failure.code == "scalar-frozen" else None
        if helper is None or helper is function or not names_in(node) & set(moving.arguments_of(helper)):
            continue
        for each in statements:
            if any(isinstance(part, ast.Call) and called(part) == helper.name for part in within(each)):
                found.setdefault(each, []).append(failure)
    return found


def _changes_only_itself(value: Any, deep: int = 3) -> bool:
    """Whether a call changes nothing but what is called: of a network, or of a function that only computes."""
    if isinstance(value, torch.nn.Module):
        return True
    if not isinstance(value, types.FunctionType) or value.__closure__ or not deep:
        return False
    for step in dis.get_instructions(value):
        name = step.argval if isinstance(step.argval, str) else ""
        changes = name in writes.CHANGES or (name.endswith("_") and not name.endswith("__"))
        if step.opname.startswith(_STORES) or (step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")) and changes):
            return False
        read = value.__globals__.get(name, name) if step.opname == "LOAD_GLOBAL" else None
        known = read is None or isinstance(read, (torch.Tensor, int, float))
        known = known or (isinstance(read, str) and read in _COMPUTE)
        known = known or (isinstance(read, types.ModuleType) and read.__name__.partition(".")[0] in _LIBRARIES)
        if not known and not _changes_only_itself(read, deep - 1):
            return False
    return True
