"""Which lines are rewritten for what was found, and the user's function with those lines."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from paramgraph_kit.driver.files import display_name
from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.around import choosing, clocks, feeding, handed, later, parts, tails
from paramgraph_kit.rewrite.around.guards import Guard
from paramgraph_kit.rewrite.counting import advance, elsewhere, optimizers
from paramgraph_kit.rewrite.expressions import carried, rows
from paramgraph_kit.rewrite.expressions.branches import choose_by_where, choose_one
from paramgraph_kit.rewrite.lending import Lending, Plan, apart
from paramgraph_kit.rewrite.loops.ending import Ending
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.rules import edits_for
from paramgraph_kit.rewrite.source import hosts, moving
from paramgraph_kit.rewrite.source.edits import (
    Edit,
    Function,
    Source,
    free_names,
    is_text,
    locals_of,
    names_in,
    without_gradients,
)
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.rewrite.source.reach import attributes_of, numbers_of, owner_of
from paramgraph_kit.trace.model import Failure

Fed = tuple[ast.stmt, ast.expr, feeding.Values]
MOVABLE = frozenset(
    """sync-item host-counter print copy-to-cpu output-alias grad-scaler branch-frozen data-dependent-branch query
    captured-event learning-rate-frozen""".split()  # noqa: SIM905
)
READ = ("sync-item", "copy-to-cpu")
OF_STEPS = ("optimizer-not-capturable", "learning-rate-frozen")


def _below(nodes: Sequence[ast.stmt]) -> set[ast.AST]:
    return {part for node in nodes for part in ast.walk(node)}


class Attempt(Lending):
    """One function with what was found in it."""

    def __init__(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], prover: Prover | None = None
    ) -> None:
        super().__init__(function, args, kwargs, prover)
        self.moves = prover is None  # what is rewritten again leaves alone what was moved
        self.numbers = numbers_of(self.prover.state)
        self.device = self._device_text()
        self.unsafe: dict[int, str] = {}  # by failure: why a rewrite where it stands was taken back
        self.elsewhere: set[int] = set()  # those of which its move behind the launch has not been tried yet
        self.feeds = True  # work may be moved before the launch
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
        self.cut = -1  # the first statement of the function's body that runs behind the launch

    def _device_text(self) -> str:
        space = self.space
        known = space.get("device", space.get("DEVICE"))
        if isinstance(known, (str, torch.device)) and torch.device(known).type == device().type:
            return "device" if "device" in space else "DEVICE"
        return f'"{device().type}"'

    def plans(self, failures: Sequence[Failure]) -> list[Plan]:
        """How each failure is rewritten, where it can be."""
        left = [f for f in failures if id(f) not in self.unsafe or id(f) in self.elsewhere]
        self.rate, self.fed, self.watch = self.kept is not None and self.kept.rates, None, None
        self.behind, self.alone = [], []
        self.rated: list[str] = []  # optimizers of which something that is moved writes the rate
        self.ahead = self._rates_ahead(left) if self.leads and self.moves and self.feeds else []
        self.rate |= bool(self.ahead)
        opening = self._opening(left) if self.moves and self.feeds else []
        self.ahead = [*opening, *(node for node in self.ahead if node not in opening)]
        counted = self._counted() + self._graded()
        left = [f for f in left if not any(f is each for plan in counted for each in plan.failures)]
        moved = self._moved(left) if self.moves and not self.only_feeds else None
        found = [moved] if moved is not None else self._detached() if self.moves else []
        found += counted
        self.fused = self.guard.fused | {name for f in left if (name := self._left_out(f))}
        found += self._optimizers([f for f in left if self.rate or f.code != "learning-rate-frozen" or self._decays(f)])
        handled = {id(f) for plan in found for f in plan.failures}
        rest = []
        for failure in left:
            place = self.place(failure) if id(failure) not in handled | self.unsafe.keys() else None
            if place is not None and self.reads_there and failure.code in READ:
                rest.append(failure)
                continue
            if place is None:
                continue
            source, statement = place
            one = self._place_of(source, statement, failure)
            one.others = [line for plan in found for line in plan.hoisted]
            if edits := edits_for(one):
                found.append(Plan(source, edits, [failure], one.hoisted, one.brought))
            else:
                rest.append(failure)
        rest += [f for f in failures if id(f) in self.unsafe and id(f) not in handled]
        fed = self._fed(rest, [line for plan in found for line in plan.hoisted]) if self.moves and self.feeds else None
        found += [fed] if fed is not None else []
        handled = {id(f) for plan in found for f in plan.failures}
        for failure in (each for each in rest if id(each) not in handled | self.unsafe.keys()):
            if (place := self.place(failure)) is None:
                continue
            one = self._place_of(*place, failure)
            one.others = [line for plan in found for line in plan.hoisted]
            if edits := edits_for(one, late=True):
                found.append(Plan(place[0], edits, [failure], one.hoisted))
        return apart(found, [plan.edits for plan in (moved, fed) if plan is not None])

    def _rates_ahead(self, failures: Sequence[Failure]) -> list[ast.stmt]:
        """Statements by which the host gives an optimizer its rate, with what they need, for before the launch."""
        at = self._definition()
        if at is None or not any(failure.code == "learning-rate-frozen" for failure in failures):
            return []
        source, function = at
        found: list[ast.stmt] = []
        for node in moving.body_of(function):
            if not optimizers.rated([node]) or not moving.is_closed(node):
                continue
            for value in optimizers.given_rates(node):
                kept = feeding.slice_before(source, function, node, value)
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
        if not decided:
            return []
        last = max(function.body.index(node) for node in decided)
        skipped = (ast.Global, ast.Nonlocal)
        head = [node for node in function.body[: last + 1] if not isinstance(node, skipped) and not is_text(node)]
        test, arguments = self._host_test(function), set(moving.arguments_of(function))
        made, rest = moving.stored(head) & locals_of(function), function.body[last + 1 :]
        if any(names_in(node) & made for node in rest) or not rest:
            return []
        for node in head:
            if optimizers.rebinds(node):
                return []
            if not moving.is_movable(node) or not names_in(node) & locals_of(function) <= arguments | made:
                return []
            if node not in decided and not hosts.is_of_host(node, test, arguments):
                return []
        return head

    def _keeps_ahead(self, function: Function, chosen: Sequence[ast.stmt]) -> bool:
        """Whether nothing that stays reads what would be assigned before the launch."""
        made = moving.stored(self.ahead) & locals_of(function)
        stay = [node for node in moving.body_of(function) if node not in self.ahead and node not in chosen]
        behind = {name for node in chosen for name in names_in(node)} & made
        return not any(names_in(node) & made - moving.stored([node]) for node in stay) and not behind & set(self.space)

    def _fed(self, failures: Sequence[Failure], others: Sequence[str]) -> Plan | None:
        """Host work that the function needs first, moved before the launch."""
        at = self._definition()
        wanted = {place[1]: f for f in failures if f.code in feeding.FED and (place := self.place(f)) is not None}
        if at is None or not (wanted or self.watch is not None or self.ahead or self.forced):
            return None
        source, function = at
        host = self._host_test(function)
        lent = hosts.derived(function, self.forced, host) if self.forced else set[str]()
        for node in hosts.reading(function, lent, self.behind, host):
            wanted.setdefault(node, hosts.KEPT)
        in_rounds = [part for node in moving.body_of(function) for part in hosts.in_rounds(node)]
        every = [*moving.body_of(function), *in_rounds]
        statements = [node for node in every if node in wanted and node not in self.ahead]
        ways = {s: feeding.otherwise(source, s) for s in statements}
        found = [(s, node) for s in statements for node in feeding.candidates([s], host, ways[s])]
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
                copied=feeding.is_copy(node, host),
                moves=hosts.reads_any(node, lent) or feeding.draws(node),
                chosen=isinstance(statement, ast.If) and node is not statement.test,
                refused=statement in wanted and wanted[statement].code == "cpu-scalar-frozen",
            )
            and parts.slice_of(source, node) is None
        ]
        fed += parts.fitting(source, items)
        if not fed and self.watch is None and not self.ahead:
            return None

        def choose(statement: ast.stmt, node: ast.expr, condition: str) -> list[Edit]:
            given = [each for at, each, _ in fed if at is statement]
            return self._choose(self._place_of(source, statement, wanted[statement]), node, condition, given)

        head = [*(self.watch.starts if self.watch is not None else []), *self.ahead]

        def feed(some: Sequence[Fed]) -> feeding.Feed | None:
            made = feeding.feed(source, function, some, self.device, host, choose, others, head)
            counted = self.kept.counters if self.kept is not None else []  # tensors by now, which the graph reads
            parts_of = [part for each in made.moved for part in ast.walk(each)] if made is not None else []
            return made if not any(one.is_at(part) for part in parts_of for one in counted) else None

        self.fed = feed(fed)
        if self.fed is None:  # what cannot go there must not keep the others from it
            apart = [[item for item in fed if item[0] is one] for one in dict.fromkeys(item[0] for item in fed)]
            fed = [item for items in apart if feed(items) is not None for item in items]
            self.fed = feed(fed) if fed else None
        if self.fed is None:
            return None
        inside = {id(n) for top in (*head, *self.fed.moved, *(each for each, _, _ in fed)) for n in ast.walk(top)}
        handled = [f for f in failures if (place := self.place(f)) is not None and id(place[1]) in inside]
        return Plan(source, self.fed.edits, handled, self.fed.hoisted)

    def _choose(self, place: Place, node: ast.expr, condition: str, given: Sequence[ast.expr]) -> list[Edit]:
        """A branch whose test the host has found, as the device chooses; ``given``: what it asks the host for."""
        place.lent = [place.text(each) for each in given]
        above = place.source.parents.get(node)
        return (
            choose_one(place, above, condition) if isinstance(above, ast.IfExp) else choose_by_where(place, condition)
        )

    def _place_of(self, source: Source, statement: ast.stmt, failure: Failure) -> Place:
        cuda = "cuda" if "cuda" in names_in(source.tree) else "torch.cuda"
        trains = any(tensor.requires_grad for tensor in self.prover.state.tensors)
        trains = trains and not without_gradients(source, statement)
        at, space = self._definition(), self.space
        if at is not None and source.function_of(statement) is at[1] and moving.is_method(*at):
            space = space | {moving.arguments_of(at[1])[0]: owner_of(self.function)}
        known = (space, self.forms_in(source, statement), self.numbers, attributes_of(self.prover.state))
        begun = carried.begun(self.prover.from_now()) if failure.code == "stale-input" else {}
        gone = frozenset(part for node in self.behind for part in ast.walk(node))
        return Place(source, statement, failure, self.device, cuda, *known, begun=begun, trains=trains, gone=gone)

    def _left_out(self, failure: Failure) -> str:
        """The optimizer whose step is all that a branch of the device decides."""
        known = failure.code == "data-dependent-branch" and id(failure) not in self.unsafe
        place = self.place(failure) if known else None
        name = optimizers.left_out(place[1], place[0]) if place is not None else ""
        return name if name and optimizers.is_fusable(self.space, name) else ""

    def _optimizers(self, failures: Sequence[Failure]) -> list[Plan]:
        found = []
        self.steps = False
        seen: dict[str, list[Failure]] = {}
        for failure in failures:
            if failure.code in OF_STEPS and (at := self.place(failure)):
                seen.setdefault(optimizers.stepped(at[1]), []).append(failure)
        every = (node for source in self.sources.values() for node in ast.walk(source.tree))
        counted = {optimizers.stepped(node) for node in every if isinstance(node, ast.Expr)}
        counted = {name for name in counted if name and optimizers.counts_on_host(self._value(name))}
        for name in (*self.rated, *sorted(self.fused), *sorted(counted)):
            seen.setdefault(name, [])
        self.alone = [self._value(name) for name in seen if name not in self.fused and self._steps_behind(name)]
        for name, known in seen.items():
            if any(self._value(name) is one for one in self.alone):
                continue
            made = elsewhere.maker(self.sources, name, self._value(name)) if name else None
            if made is None:
                continue
            self.steps = True
            source, call = made
            # Groups that have no rate of their own would share one tensor, and be written one after the other.
            several = any(len(each["param_groups"]) > 1 for each in optimizers.found_in(self.prover.state))
            fuse = name in self.fused
            edits = optimizers.options(source, call, self.device, rate=self.rate and not several, fuse=fuse)
            edits += optimizers.apart(source, call, self.device) if self.rate and several else []
            found.append(Plan(source, edits, known))
        return found

    def _moved(self, failures: Sequence[Failure]) -> Plan | None:
        """Host work of the function itself, moved behind the launch."""
        at = self._definition()
        if at is None:
            return None
        source, function = at
        wanted: dict[ast.stmt, list[Failure]] = {}
        for failure in failures:
            if failure.code in MOVABLE:
                for top in self._statements(source, function, failure, failures):
                    wanted.setdefault(top, []).append(failure)
        schedules = [node for node in moving.body_of(function) if self._is_schedule(node)] if wanted or failures else []
        rates = choosing.rates_behind(function) if wanted or failures else []
        # A graph would freeze what these move or ask, if not in the calls that were watched.
        for node in (*schedules, *rates, *later.tellers(function, wanted)):
            wanted.setdefault(node, [])
        host = self._host_test(function)
        at_hand = set(self.tensors) | moving.stored(self.ahead) | self.late
        listed = handed.lists(source, function, self.tensors)
        for node in (each for one in listed for each in one.readers):
            wanted.setdefault(node, [])
        at_hand |= {one.name for one in listed}
        self.sharing = bool(handed.shared(source, function, list(wanted), at_hand, host))
        before = handed.shared(source, function, list(wanted), at_hand, host) if self.shares and self.feeds else []
        at_hand |= moving.stored(before)
        chosen = choosing.choose(function, wanted, at_hand, host, self.graded)
        listed = [one for one in listed if set(one.readers) <= set(chosen) and not set(one.filling) & _below(chosen)]
        self.watch = clocks.stopwatch(source, function) if wanted and self.feeds else None
        timed = self.watch.stops if self.watch is not None else []
        tail = self._tail(source, function)
        ends = tail.statements if tail is not None else []
        chosen = [node for node in moving.body_of(function) if node in chosen or node in timed or node in ends]
        parted = self.ended.gone if self.ended is not None else []  # the rest of it is read behind the launch
        chosen = [node for node in chosen if node not in [*self.ahead, *parted]]
        chosen = moving.with_their_zeros(function, chosen, self.graded)
        self.ahead = self.ahead if self._keeps_ahead(function, chosen) else []
        before = handed.shared(source, function, chosen, at_hand - moving.stored(before), host) if before else []
        self.ahead += [node for node in before if node not in self.ahead]
        blocks, deferred = self._deferred(source, failures, chosen)
        left = [n for n in moving.body_of(function) if n not in chosen and not isinstance(n, moving.NAMED)]
        if not left or not (chosen or blocks):
            return None
        hoisted: list[str] = []
        first: list[str] = []
        edits: list[Edit] = []
        if blocks:
            start = later.outermost(source, self.function, function)
            taken = names_in(source.tree)
            edits, name, first = later.defer(
                source, blocks, start, function, taken, self.graded_in, self._filled(source), self.read_numbers
            )
            hoisted.append(f"{name} = []")
        edits += [edit for one in listed for edit in one.edits]
        edits += [*self.guard.edits, *(self.ended.edits if self.ended is not None else [])]
        gone = [*(self.watch.starts if self.watch is not None else []), *self.ahead]
        gone += self.ended.gone if self.ended is not None else []
        ended = (self.ended.handed, self.ended.lines) if self.ended is not None else ({}, [])
        texts = {one.name: f"torch.stack({one.name})" for one in listed}
        read = {name for node in chosen for name in free_names(node)} - moving.stored([*chosen, *gone])
        numbers = sorted(self.read_numbers & read) if tail is None and self.ended is None else []
        back = [f"{name} = {name}.{way}()" for names, way in ((texts, "tolist"), (numbers, "item")) for name in names]
        ended = ({**ended[0], **texts, **{name: name for name in numbers}}, [*ended[1], *back])
        rated = optimizers.rated(chosen)
        rate = self.rate or bool(rated) or (bool(schedules) and set(schedules) <= set(chosen))
        more = self._filled(source, rate=rate)
        self.moved = moving.move(source, function, chosen, self.graded, first, gone, tail, more, ended)
        if self.moved is None:
            self.watch = None
            return None
        self.rated, self.rate = rated, rate
        self.moved.edits = edits + self.moved.edits
        handled = [f for node in (*chosen, *gone) for f in wanted.get(node, [])]
        filling = {node for one in listed for node in one.filling}
        handled += [f for f in failures if (place := self.place(f)) is not None and place[1] in filling]
        last = self.cut - (self.ended is not None)
        order, kept = list(moving.body_of(function)), self.guard.stays
        for f in failures if tail is not None else ():
            number = self._index(source, function, f)
            handled += [f] if number >= last and order[number] not in kept else []
        handled += [
            f
            for f in failures
            if self.watch is not None and clocks.is_timing(source, f, self.place(f), [*gone, *timed])
        ]
        self.behind = list(chosen)
        handled += [f for f in failures if f.code in OF_STEPS and f not in handled and self._is_behind(f)]
        return Plan(source, self.moved.edits, handled + [f for f in deferred if f not in handled], hoisted)

    def _filled(self, source: Source, *, rate: bool = False) -> Callable[[ast.stmt], list[Edit]]:
        kept = self.kept.counters if self.kept is not None else []

        def edits(node: ast.stmt) -> list[Edit]:
            told = advance.rates_as_numbers(source, node) if rate else ()
            return [*advance.rates(source, [node]), *advance.as_numbers(source, node, kept), *told]

        return edits

    def _index(self, source: Source, function: Function, failure: Failure) -> int:
        """Which statement of the function's body a failure is in, or is called from; -1 where that is not known."""
        order, place = list(moving.body_of(function)), self.place(failure)
        if place is None or failure.frame is None:
            return -1
        if place[0] is source and (top := moving.top_of(source, function, place[1])) is not None:
            return order.index(top)
        return next((number for number, node in enumerate(order) if self._calls(node, failure)), -1)

    def _tail(self, source: Source, function: Function) -> moving.Tail | None:
        known = self._host_test(function), self.guard.stays, self.ended.left if self.ended is not None else None
        return tails.tail(source, function, self.cut, *known, self.graded) if self.cut >= 0 else None

    def _deferred(
        self, source: Source, failures: Sequence[Failure], chosen: Sequence[ast.stmt]
    ) -> tuple[list[later.Block], list[Failure]]:
        """What the host does elsewhere in the step and can be put off, and what that is for."""
        if not self.defers:
            return [], []
        left = [self.ended.left] if self.ended is not None and self.ended.left is not None else []
        moved = {node for each in (*chosen, *left) for node in ast.walk(each)}
        # What moved lines call is done behind the launch already, when nobody goes through the list any more.
        behind = later.reached(self.sources.values(), {called(node) for node in moved if isinstance(node, ast.Call)})
        failures = [f for f in failures if f.frame is not None and f.frame.function.rpartition(".")[2] not in behind]
        at = {id(f): place[1] for f in failures if f.code in later.CODES and (place := self.place(f))}
        for f in failures:
            if f.code == "data-dependent-branch" and (place := self.place(f)) and later.only_tells(place[1]):
                at[id(f)] = place[1]
        wanted = [at[id(f)] for f in failures if id(f) in at and at[id(f)] not in moved and self._is_of(source, f)]
        shapes = [place[1] for f in failures if f.code == "dynamic-shape" and (place := self.place(f))]
        listed = moving.stored([node for node in shapes if isinstance(node, ast.Assign)])
        wanted = [node for node in wanted if not rows.counts_only(node, listed)]  # of a list that may go
        ran = [node for node in later.ran_in(source, self.ran) if node not in chosen]
        found = later.steady(source, later.blocks(source, wanted, ran), self.tensors_in, self.tensors)
        inside = {node for block in found for node in block.statements}
        return found, [f for f in failures if at.get(id(f)) in inside]

    def _is_of(self, source: Source, failure: Failure) -> bool:
        return failure.frame is not None and display_name(source.file) == failure.frame.file

    def _detached(self) -> list[Plan]:
        at = self._definition()
        edits = moving.detached(*at, self.graded) if at is not None else []
        return [Plan(at[0], edits, [])] if at is not None and edits else []

    def _statements(
        self, source: Source, function: Function, failure: Failure, failures: Sequence[Failure]
    ) -> Iterator[ast.stmt]:
        place = self.place(failure)
        if place is None or failure.frame is None:
            return
        if failure.code == "learning-rate-frozen":
            yield from (node for node in moving.body_of(function) if self._is_schedule(node))
            return
        inside = place[0] is source and source.function_of(place[1]) is function
        if inside and failure.code == "grad-scaler":
            yield from moving.unscaled_before(function, place[1])
        if inside:
            if isinstance(place[1], (ast.Return, ast.Assert)):
                return
            top = moving.top_of(source, function, place[1])
            in_place = isinstance(top, ast.If) and id(failure) not in self.unsafe
            in_place = in_place and not any(self._is_read_in(top, each) for each in failures)
            if top is not None and not (in_place and edits_for(self._place_of(*place, failure))):
                yield top
            return
        for node in moving.body_of(function):  # a call of the function in which it happens
            if isinstance(node, (ast.Expr, ast.If)) and self._calls(node, failure):
                yield node

    def _is_read_in(self, branch: ast.stmt | None, failure: Failure) -> bool:
        """Whether a number of the device's is made one of the host's, or kept there, in what a branch does."""
        place = self.place(failure) if failure.code in ("sync-item", "host-counter", "print") else None
        return (
            place is not None
            and isinstance(branch, ast.If)
            and place[1] is not branch
            and any(place[1] is node for part in (*branch.body, *branch.orelse) for node in ast.walk(part))
        )

    def take_back(self, plan: Plan, why: str) -> None:
        """A plan has changed what the function does: another way, or none, for what it was for."""
        self.feeds = self.feeds and (self.fed is None or plan.edits is not self.fed.edits)
        self.needed |= {repr(plan.edits)} if not plan.failures else set()
        was_moved = self.moved is not None and plan.edits is self.moved.edits
        if was_moved and self.defers and plan.hoisted:
            self.defers = False  # without what was put off it may do
            return
        for known in map(id, plan.failures):
            if known not in self.unsafe and not was_moved:
                self.elsewhere.add(known)
            else:
                self.elsewhere.discard(known)
            self.unsafe.setdefault(known, why)
