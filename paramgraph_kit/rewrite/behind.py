"""What of a step the host can do behind its launch: what only tells, or is put off."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.ahead import Ahead
from paramgraph_kit.rewrite.around import choosing, clocks, handed, later, staying, tails
from paramgraph_kit.rewrite.around.crossing import Crossing
from paramgraph_kit.rewrite.around.elsewhere import Elsewhere
from paramgraph_kit.rewrite.around.overwritten import overwritten
from paramgraph_kit.rewrite.counting import advance, given_rates, optimizers
from paramgraph_kit.rewrite.expressions.picks import rows
from paramgraph_kit.rewrite.expressions.state import made_anew
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.rules import edits_for
from paramgraph_kit.rewrite.source import moving
from paramgraph_kit.rewrite.source.edits import (
    Edit,
    Function,
    Source,
    free_names,
    heads,
    locals_of,
    named_around,
    names_in,
    path_of,
    scope_of,
    within,
)
from paramgraph_kit.rewrite.source.edits_in import edits_in
from paramgraph_kit.rewrite.source.place import called, names_of
from paramgraph_kit.trace.model import Failure

MOVABLE = frozenset(
    """sync-item host-counter print copy-to-cpu output-alias grad-scaler branch-frozen data-dependent-branch query
    captured-event learning-rate-frozen blocking-copy""".split()  # noqa: SIM905
)
_PICKS = ("dynamic-shape", "hidden-size")
_READ_AGAIN = BY_ID["stale-input"].failure("a graph reads it", None)
OF_STEPS = ("optimizer-not-capturable", "learning-rate-frozen")


def _below(nodes: Sequence[ast.stmt]) -> set[ast.AST]:
    return {part for node in nodes for part in ast.walk(node)}


def _is_within(node: ast.stmt, edit: Edit) -> bool:
    """Whether an edit changes nothing but a statement."""
    begin, end = (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return begin <= (edit.line, edit.column) and (edit.end_line, edit.end_column) <= end


class Behind(Ahead):
    """One function, with what can be done behind its launch."""

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
        for node, failure in self._picks_for(source, function, failures, wanted):
            wanted.setdefault(node, []).append(failure)
        schedules = [node for node in moving.body_of(function) if self._is_schedule(node)] if wanted or failures else []
        rates = choosing.rates_behind(function) if wanted or failures else []
        # A graph would freeze what these move or ask, if not in the calls that were watched.
        for node in (*schedules, *rates, *later.tellers(function, wanted)):
            wanted.setdefault(node, [])
        host = self._host_test(function)
        at_hand = set(self.tensors) | set(self.many) | moving.stored(self.ahead) | self.late
        listed = handed.lists(source, function, self.tensors)
        for node in (each for one in listed for each in one.readers):
            wanted.setdefault(node, [])
        at_hand |= {one.name for one in listed}
        self.sharing = bool(handed.shared(source, function, list(wanted), at_hand, host))
        before = handed.shared(source, function, list(wanted), at_hand, host) if self.shares and self.feeds else []
        at_hand |= moving.stored(before)
        chosen = self._chosen(function, wanted, at_hand, host)
        listed = [one for one in listed if set(one.readers) <= set(chosen) and not set(one.filling) & _below(chosen)]
        self.watch = clocks.stopwatch(source, function, wanted) if wanted and self.feeds else None
        timed = self.watch.stops if self.watch is not None else []
        tail = self._tail(source, function)
        ends = [*self.put_off, *tail.statements] if tail is not None else []
        chosen = [node for node in moving.body_of(function) if node in chosen or node in timed or node in ends]
        parted = self.ended.gone if self.ended is not None else []  # the rest of it is read behind the launch
        chosen = [node for node in chosen if node not in [*self.ahead, *parted]]
        chosen = moving.with_their_zeros(function, chosen, self.graded)
        self.ahead = self._with_what_reads(source, function, chosen, failures)
        before = handed.shared(source, function, chosen, at_hand - moving.stored(before), host) if before else []
        if moving.stored(before) & {*self.space, *named_around(source)}:
            before = []  # others read those, and would have these
        self.ahead += [node for node in before if node not in self.ahead]
        blocks, deferred = self._deferred(source, failures, chosen)
        left = [n for n in moving.body_of(function) if n not in chosen and not isinstance(n, moving.NAMED)]
        read_there = handed.reads(source, chosen, host) if not left and not blocks else {}
        if not (left or read_there) or not (chosen or blocks):
            return None
        reach = staying.Reach(self._by_name, self._value)
        if reach.goes_on_with([*chosen, *(node for block in blocks for node in block.statements)], left):
            return None
        hoisted: list[str] = []
        first: list[str] = []
        edits: list[Edit] = []
        if blocks:
            start = later.outermost(source, self.function, function)
            taken = names_of(source.tree) | self.space_in(source).keys()
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
        held = handed.many(self.many, read) if tail is None else ({}, [])
        ended = ({**ended[0], **texts, **{name: name for name in numbers}, **held[0]}, [*ended[1], *back, *held[1]])
        if tail is not None:
            before_it = [node for node in moving.body_of(function) if node not in chosen]
            named = {name for node in chosen for name in free_names(node)} & moving.stored(before_it)
            held = handed.many(self.many, named - moving.stored(tail.again) - ended[0].keys())
            numbers_again = tails.constants(source, before_it, named - ended[0].keys())
            ended = {**ended[0], **held[0]}, [*numbers_again, *ended[1], *held[1]]
        rated = [name for name in optimizers.rated(chosen) if not self._steps_behind(name, chosen)]
        rate = self.rate or bool(rated) or (bool(schedules) and set(schedules) <= set(chosen))
        more = self._filled(source, rate=rate, moved=chosen)
        more = self._kept_there(source, failures, more) if tail is not None else more
        more = self._written_there(source, more) if tail is not None and self.forced else more
        more = self._tables_there(source, failures, more)
        if read_there:
            ended = ({**ended[0], **{name: source.bracketed(node) for name, node in read_there.items()}}, ended[1])
            more = handed.named(source, read_there, more)
        leads = self.is_differentiable()
        self.moved = moving.move(
            source, function, chosen, self.graded, first, gone, tail, more, ended, self.tensors.keys(), leads
        )
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
            lasts = f.code == "parameter-rebound" and not self._stands_in(source, f, order[number])
            handled += [f] if number >= last and order[number] not in kept and not lasts else []
        handled += [
            f
            for f in failures
            if self.watch is not None and clocks.is_timing(source, f, self.place(f), [*gone, *timed])
        ]
        self.behind = list(chosen)
        handled += [f for f in failures if f.code in OF_STEPS and f not in handled and self._is_behind(f)]
        return Plan(source, self.moved.edits, handled + [f for f in deferred if f not in handled], hoisted)

    def _stands_in(self, source: Source, failure: Failure, node: ast.stmt) -> bool:
        """Whether a problem is of a line of a statement itself, and of no function that it calls."""
        place = self.place(failure)
        return place is None or (place[0] is source and any(part is place[1] for part in ast.walk(node)))

    def is_differentiable(self) -> bool:
        """Whether gradients go back from what the function returns, or would of its loss where its inputs need any."""
        at = self._definition()
        records = at is not None and self.records_in.get(scope_of(*at), False)
        return self.prover.leads_back or (self.prover.gives_loss and records and not self.graded)

    def _filled(
        self, source: Source, *, rate: bool = False, moved: Sequence[ast.stmt] = ()
    ) -> Callable[[ast.stmt], list[Edit]]:
        kept = self.kept.counters if self.kept is not None else []

        def edits(node: ast.stmt) -> list[Edit]:
            told = advance.rates_as_numbers(source, node) if rate else ()
            # What steps behind the launch, too, has a number for a rate, as ever.
            own = (names := optimizers.rated([node])) and all(self._steps_behind(name, moved) for name in names)
            filled = [] if own else given_rates.rates(source, [node], self._value)
            there = [*filled, *advance.as_numbers(source, node, kept), *told]
            return [*there, *(each for each in self._kept_in(source, node) if each not in there)]

        return edits

    def _kept_in(self, source: Source, node: ast.stmt) -> list[Edit]:
        """What keeps numbers in tensors, of a statement that goes behind the launch: ``self.pos.fill_(0)``."""
        own = self.kept is not None and self.kept.source is source
        return edits_in(source, self.kept.edits, [node]) if own and self.kept is not None else []

    def _kept_there(
        self, source: Source, failures: Sequence[Failure], more: Callable[[ast.stmt], list[Edit]]
    ) -> Callable[[ast.stmt], list[Edit]]:
        """``more``, and edits by which tensors that a graph reads stay the same where they are written behind it."""
        found: list[tuple[ast.stmt, list[Edit]]] = []
        for failure in failures:
            is_read = failure.code in ("stale-input", "parameter-rebound") and id(failure) not in self.unsafe
            place = self.place(failure) if is_read else None
            if place is None or place[0] is not source:
                continue
            one = self._place_of(*place, failure)
            edits = edits_for(one)
            found += [(place[1], edits)] if edits and not one.hoisted and not one.brought else []

        def edits_of(node: ast.stmt) -> list[Edit]:
            below = set(ast.walk(node))
            return [*more(node), *(edit for at, edits in found if at in below for edit in edits)]

        return edits_of

    def _tables_there(
        self, source: Source, failures: Sequence[Failure], more: Callable[[ast.stmt], list[Edit]]
    ) -> Callable[[ast.stmt], list[Edit]]:
        """``more``, and tables of tensors that a graph reads, ``self.old = {...}``, written where they lie."""
        places = [place for f in failures if f.code == "stale-input" and (place := self.place(f)) is not None]
        places = [place for place in places if place[0] is source]
        read = {path_of(n) for _, node in places for n in heads(node) if isinstance(n, (ast.Name, ast.Attribute))}

        def edits_of(node: ast.stmt) -> list[Edit]:
            found = more(node)
            for part in (n for n in within(node) if isinstance(n, ast.stmt)):
                path = made_anew.given_by(part)
                if path and (path in read or path.rpartition(".")[2] in self.forced):
                    edits = made_anew.written_there(self._place_of(source, part, _READ_AGAIN), path)
                    found += [each for each in edits if _is_within(part, each) and each not in found]
            return found

        return edits_of

    def _written_there(
        self, source: Source, more: Callable[[ast.stmt], list[Edit]]
    ) -> Callable[[ast.stmt], list[Edit]]:
        """``more``, and tensors that a graph would keep, ``self.y = new`` behind it, written where they lie."""

        def is_kept_there(node: ast.AST) -> bool:
            path = path_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
            value = self._value(path) if path.rpartition(".")[2] in self.forced else None
            return isinstance(value, torch.Tensor) and value.device.type == device().type and not value.requires_grad

        def edits_of(node: ast.stmt) -> list[Edit]:
            found = more(node)
            for part in within(node):
                target = part.targets[0] if isinstance(part, ast.Assign) and len(part.targets) == 1 else None
                if isinstance(part, ast.Assign) and target is not None and is_kept_there(target):
                    path, value = source.text(target), source.bracketed(part.value)
                    found.append(source.replace(part, f"{path}.copy_({value}.view_as({path}))"))
                elif isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load):
                    leaves = isinstance(source.parents.get(part), ast.Return) or moving.is_kept(source, part)
                    copies = leaves and is_kept_there(part)
                    found += [source.replace(part, f"{source.text(part)}.clone()")] if copies else []
            return found

        return edits_of

    @cached_property
    def _by_name(self) -> dict[str, Function]:
        """The functions of the user's files, by which calls are followed: of two of a name the last."""
        every = (node for source in self.sources.values() for node in ast.walk(source.tree))
        return {node.name: node for node in every if isinstance(node, Function)}

    def _chosen(
        self,
        function: Function,
        wanted: dict[ast.stmt, list[Failure]],
        at_hand: set[str],
        host: Callable[[ast.expr], bool],
    ) -> list[ast.stmt]:
        """What moves of what is wanted, with the host's lines that come after it: what those count, it would find."""
        crossing = Crossing(self._by_name, self._value, locals_of(function))
        order, given_up = list(moving.body_of(function)), set[ast.stmt]()
        while True:
            asked = [node for node in wanted if node not in given_up]
            chosen = choosing.choose(function, asked, at_hand, host, self.graded)
            crossed = crossing.crossed(order, chosen)
            if not crossed or self.cut >= 0:
                return chosen
            along = {later for _, later in crossed if moving.is_movable(later, self.graded)} - wanted.keys()
            stays = {one for one, later in crossed if later not in along} - given_up
            if not along and not stays:
                return []
            given_up |= stays
            for node in along:
                wanted[node] = []

    def _index(self, source: Source, function: Function, failure: Failure) -> int:
        """Which statement of the function's body a failure is in, or is called from; -1 where that is not known."""
        order, place = list(moving.body_of(function)), self.place(failure)
        if place is None or failure.frame is None:
            return -1
        if place[0] is source and (top := moving.top_of(source, function, place[1])) is not None:
            return order.index(top)
        return next((number for number, node in enumerate(order) if self._calls(node, failure)), -1)

    def _picks_for(
        self, source: Source, function: Function, failures: Sequence[Failure], wanted: dict[ast.stmt, list[Failure]]
    ) -> Iterator[tuple[ast.stmt, Failure]]:
        """Picks of another size each time that only moved lines read, and that nothing makes of a fixed size."""
        order = list(moving.body_of(function))
        for failure in sorted((f for f in failures if f.code in _PICKS), key=lambda f: -f.frame.line if f.frame else 0):
            place = self.place(failure)
            if not wanted or place is None or place[0] is not source or place[1] not in order:
                continue
            node, names = place[1], moving.stored([place[1]])
            behind = order[order.index(node) + 1 :]
            readers = [each for each in behind if names_in(each) & names]
            alone = isinstance(node, ast.Assign) and all(isinstance(n, ast.Name) for n in node.targets)
            if not alone or not readers or not all(each in wanted for each in readers):
                continue
            if not edits_for(self._place_of(*place, failure)):
                wanted.setdefault(node, [])
                yield node, failure

    def _tail(self, source: Source, function: Function) -> moving.Tail | None:
        known = self._host_test(function), self.guard.stays, self.ended.left if self.ended is not None else None
        found = None
        if self.cut >= 0:
            found = tails.tail(source, function, self.cut, *known, self.graded, self._is_object)
        if found is not None:
            found.again = [node for node in found.again if node not in self.put_off]
            found.held = self.given_back.lines if self.given_back is not None else found.held
        return found

    def _is_object(self, node: ast.expr) -> bool:
        """Whether a path leads to an object of the user's: no tensor, no number and no container."""
        value = self._value(path) if isinstance(node, ast.Attribute) and (path := path_of(node)) else None
        return hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, type)) and not callable(value)

    def _deferred(
        self, source: Source, failures: Sequence[Failure], chosen: Sequence[ast.stmt]
    ) -> tuple[list[later.Block], list[Failure]]:
        """What the host does elsewhere in the step and can be put off, and what that is for."""
        if not self.defers:
            return [], []
        left = [self.ended.left] if self.ended is not None and self.ended.left is not None else []
        moved = {node for each in (*chosen, *left) for node in ast.walk(each)}
        # What moved lines call is done behind the launch already, when nobody goes through the list any more.
        own = self._definition()
        called_there = {called(node) for node in moved if isinstance(node, ast.Call)}
        behind = later.reached(self.sources.values(), called_there, own[1] if own is not None else None)
        behind |= {code.co_name for code in self.ran if self.comes_only_to(chosen, code)}
        failures = [f for f in failures if f.frame is not None and f.frame.function.rpartition(".")[2] not in behind]
        at = {id(f): place[1] for f in failures if f.code in later.CODES and (place := self.place(f))}
        wanted = [at[id(f)] for f in failures if id(f) in at and at[id(f)] not in moved and self._is_of(source, f)]
        shapes = [place[1] for f in failures if f.code == "dynamic-shape" and (place := self.place(f))]
        listed = moving.stored([node for node in shapes if isinstance(node, ast.Assign)])
        wanted = [node for node in wanted if not rows.counts_only(node, listed)]  # of a list that may go
        name = at_own[1].name if (at_own := self._definition()) is not None else ""
        ran = [node for node in later.ran_in(source, self.ran, name) if node not in chosen]
        found = later.steady(source, later.blocks(source, wanted, ran), self.tensors_in, self.tensors)
        some = next((f for f in failures if id(f) in at), None)
        found = [one for one in found if some is not None and not self._reads_again(source, one.statements, some)]
        found = self._of_steps(source, found)
        inside = {node for block in found for node in block.statements}
        return found, [f for f in failures if at.get(id(f)) in inside]

    def _of_steps(self, source: Source, found: Sequence[later.Block]) -> list[later.Block]:
        """Those blocks that nothing but the step comes to: others would wait for what is done behind its launch."""
        at = self._definition()
        if not found or at is None:
            return list(found)
        elsewhere = Elsewhere(self.sources.values(), self.ran, self.space)
        steps = [at[1], later.outermost(source, self.function, at[1])]
        return [one for one in found if not elsewhere.calls(one.function, steps)]

    def _is_of(self, source: Source, failure: Failure) -> bool:
        return failure.frame is not None and display_name(source.file) == failure.frame.file

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
            if top is not None and self._reads_again(source, [top], failure):
                return
            if top is not None and not (in_place and edits_for(self._place_of(*place, failure))):
                yield top
                yield from self._beside(source, function, top)
            return
        if self.calls_stay:
            return
        for node in moving.body_of(function):  # a call of the function in which it happens
            if isinstance(node, (ast.Expr, ast.If)) and self._calls(node, failure):
                yield node

    def _reads_again(self, source: Source, nodes: Sequence[ast.stmt], failure: Failure) -> bool:
        """Whether statements would find other numbers behind the launch than where they stand."""
        return any(overwritten(self._place_of(source, node, failure), node) for node in nodes)

    def _beside(self, source: Source, function: Function, top: ast.stmt) -> Iterator[ast.stmt]:
        """What the host does in other statements of a line, of which what was found does not say which it is."""
        is_host = self._host_test(function)
        for node in moving.body_of(function):
            if node is top or not node.lineno == node.end_lineno == top.lineno:
                continue
            calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
            reads = any(
                called(call) in ("item", "tolist", "cpu", "numpy", "float", "append", "print") for call in calls
            )
            counts = isinstance(node, (ast.Assign, ast.AugAssign)) and is_host(node.value)
            if reads or counts:
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
