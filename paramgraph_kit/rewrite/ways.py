"""Other ways of rewriting a step, each tried where a first one has not done all of it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.around import later
from paramgraph_kit.rewrite.around.feeding import FED
from paramgraph_kit.rewrite.around.guards import guard
from paramgraph_kit.rewrite.around.watched import Shown
from paramgraph_kit.rewrite.begun_numbers import begin_in_tensors
from paramgraph_kit.rewrite.caches import brought, placed
from paramgraph_kit.rewrite.counting import advance, optimizers, outside
from paramgraph_kit.rewrite.counting.counted import Counter
from paramgraph_kit.rewrite.counting.given_back import given_back
from paramgraph_kit.rewrite.drawing import Drawing
from paramgraph_kit.rewrite.loops import searched
from paramgraph_kit.rewrite.loops.asks import in_loop
from paramgraph_kit.rewrite.loops.ending import ending
from paramgraph_kit.rewrite.loops.read_together import together
from paramgraph_kit.rewrite.memory_owners import shared_by
from paramgraph_kit.rewrite.parted import asked_next, part
from paramgraph_kit.rewrite.planning import READ
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.reads import one_name
from paramgraph_kit.rewrite.source import hosts, moving, writes
from paramgraph_kit.rewrite.source.edits import Function, Source, locals_of, names_in, path_of
from paramgraph_kit.rewrite.source.reach import owner_of
from paramgraph_kit.trace.model import Failure

READS = frozenset(("sync-item", "copy-to-cpu", "data-dependent-branch"))
ENDS = frozenset(("sync-item", "data-dependent-branch", "compare-on-cpu"))


class Ways(Drawing):
    """One function with what was found in it, and other ways of rewriting that."""

    def _other(self) -> Ways:
        other = Ways(self.function, self.args, self.kwargs, self.prover)
        other.moves = True
        other.knows(self)
        other.steps, other.kept, other.foresees = self.steps, self.kept, self.foresees
        other.fetches, other.leads, other.in_methods = self.fetches, self.leads, self.in_methods
        other.draws, other.calls_stay = self.draws, self.calls_stay
        other.sources = self.sources  # what is kept in tensors has edits of these
        other.shown = self.shown
        return other

    def with_inputs(self, prover: Prover) -> Ways:
        """The same in steps that are given something else, in which it is seen what moves."""
        other = self._other()
        other.prover, other.kept, other.shown = prover, None, Shown()
        other.args, other.kwargs = prover.inputs
        return other

    def same_names(self) -> dict[str, str]:
        """By which of its names each list, dictionary or array is known."""
        return one_name(self.space, self.prover.state.holders)

    def has_elsewhere(self, names: Collection[str]) -> bool:
        """Whether others have what these names have, too, as far as anybody knows."""
        return shared_by(names, self.space, self.prover.state.holders)

    def kept_slots(self) -> set[str]:
        """Attributes whose numbers are in tensors, with a dot: all that writes them does so in place."""
        counters = self.kept.counters if self.kept is not None else []
        return {f".{each.name}" for each in counters if each.holder.kind == "attributes"}

    def advancing(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with the numbers that steps move, and that the device needs, in tensors; None without any."""
        other = self._other()
        places = [(f, *at) for f in failures if f.code in advance.FROZEN and (at := other.place(f)) is not None]
        told = [node for f, _, node in places if f.code == "sync-item"]
        places = [  # a branch that only tells is the host's
            (f, source, node)
            for f, source, node in places
            if f.code != "branch-frozen" or not any(part in told for part in ast.walk(node))
        ]
        frozen = {s.file: s for f, s, _ in places if f.code not in ("host-counter", "sync-item")}
        files = frozen or {s.file: s for _, s, _ in places}
        if len(files) != 1:
            return None
        source = next(iter(files.values()))
        places = [each for each in places if each[1] is source]
        named = self.device_in(source)
        ran = later.ran_in(source, self.ran)
        other.kept = self._around(advance.keep(self.prover, source, places, ran, named, self.tensors, self._value))
        return other if other.kept is not None else None

    def placing(self, failures: Sequence[Failure], *, prefixes: bool = False) -> Ways | None:
        """The same with the places that steps move on in tensors, and all lines that use them; None without any.

        ``prefixes``: with those that are computed again at each step as wholes, of which the last place is read.
        """
        other = self._other()
        found = placed.track(self.prover, other.sources, self.functions)
        if found is None:
            return None
        at = [(f, *place) for f in failures if (place := other.place(f)) is not None]
        kept = placed.keep(
            *found, at, lambda source: later.ran_in(source, self.ran), self.device, self.tensors, prefixes=prefixes
        )
        other.kept = self._around(kept)
        return other if other.kept is not None else None

    def bringing(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with tensors of the host's that steps write on the device; None without any."""
        other = self._other()
        places = [(f, *at) for f in failures if f.code in brought.CODES and (at := other.place(f)) is not None]
        for source in dict.fromkeys(source for _, source, _ in places):
            named = self.device_in(source)
            other.kept = brought.bring(self.prover, source, places, later.ran_in(source, self.ran), named)
            if other.kept is not None:
                return other
        return None

    def _around(self, kept: advance.Kept | None, given: Collection[str] = ()) -> advance.Kept | None:
        """The same with what code around the step reads of the numbers."""
        if kept is None:
            return None
        return outside.as_numbers(kept, later.ran_in(kept.source, self.ran), self.sources, given)

    def placing_arguments(self, failures: Sequence[Failure]) -> tuple[Ways, Prover, list[str]] | None:
        """The same with the places that it is given as numbers in tensors; None without any.

        With it come the steps with numbers that are one more in each, and the names of the arguments.
        """
        at, own = self._definition(), owner_of(self.function) is not None
        if at is None:
            return None
        named = [each for each in list(self.signature.parameters)[own:] if each not in moving.stored(at[1].body)]
        known = placed.numbers(self.args, self.kwargs, list(self.signature.parameters)[own:])
        known = [each for each in known if each[1] in named]
        other = self._other()
        other.kept = None
        found = placed.track(self.prover, other.sources, self.functions, known) if known else None
        known = [each for n, each in enumerate(known) if found is not None and -1 - n in found[1].used]
        if found is None or not known:
            return None
        places = [(f, *place) for f in failures if (place := other.place(f)) is not None]
        kept = placed.keep(*found, places, lambda s: later.ran_in(s, self.ran), self.device, self.tensors)
        other.kept = self._around(kept, [name for _, name in known])
        plain = placed.counting(self.prover, known, lambda value, _: value)
        other.prover = placed.counting(self.prover, known, lambda value, _: torch.tensor(value, device=device()))
        (other.args, other.kwargs), other.moves, other.shown = other.prover.inputs, True, Shown()
        return (other, plain, [name for _, name in known]) if other.kept is not None else None

    def beginning(self, found: Sequence[Counter], failures: Sequence[Failure]) -> Ways | None:
        """The same with these numbers in tensors from where they are made on; None where that is not known."""
        other, known = self._other(), self.kept
        kept = self._around(begin_in_tensors(other, found, failures))
        if kept is None or (known is not None and known.source is not kept.source):
            return None
        other.kept, other.moves = kept, self.moves
        if known is not None:
            edits = [*known.edits, *(each for each in kept.edits if each not in known.edits)]
            both = [*known.counters, *kept.counters], edits, [*known.failures, *kept.failures]
            other.kept = replace(known, counters=both[0], edits=both[1], failures=both[2])
        return other

    def advancing_in_place(self, failures: Sequence[Failure]) -> Ways | None:
        """The same as ``advancing`` where lines are rewritten where they stand before any goes around the launch."""
        other = self.advancing(failures)
        if other is not None:
            other.moves = False
        return other

    def in_place_first(self) -> Ways:
        """The same where lines are rewritten where they stand before any goes around the launch."""
        other = self._other()
        other.moves = False
        return other

    def reading_late(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with numbers that loops read of the device as tensors, read behind the launch; None without any."""
        other, at = self._other(), self._definition()
        other.late = hosts.read_in_loops(at[1]) if at is not None else set()
        places = [(place, f) for f in failures if f.code in ENDS and (place := other.place(f)) is not None]
        for (source, node), failure in places if at is not None else ():
            if searched.look_at_all(other._place_of(source, node, failure)) and (helper := source.function_of(node)):
                other.late |= searched.given_by(at[1], helper.name) if at is not None else set()
        other.read_numbers = self.read_numbers | other.late
        return other if other.late else None

    def sharing_what_is_drawn(self) -> Ways | None:
        """The same with numbers that the host finds first as variables around it; None without any read behind it."""
        other = self._other()
        other.shares = True
        return other if self.sharing else None

    def drawing(self) -> Ways | None:
        """The same with all that the host draws in what a step calls drawn before the launch; None without any."""
        other = self._other()
        other.draws = True
        return other if self.draws_within() else None

    def telling_in_helpers(self, failures: Sequence[Failure]) -> Ways | None:
        """The same where helpers that a step's statements are both compute and tell: these tell behind the launch.

        From the first branch on that the host decides, or a last line that returns what is told, all goes there.
        """
        other, at = self._other(), self._definition()
        other.calls_stay = True
        order = list(moving.body_of(at[1])) if at is not None else []
        calls = [n for n in order if isinstance(n, ast.Expr) and any(other._calls(n, f) for f in failures)]
        if at is None or not calls:
            return None
        decided = [n for f in failures if f.code == "branch-frozen" and (n := self._index(*at, f)) >= 0]
        last = len(order) - 1
        ends = isinstance(order[last], ast.Return) and not names_in(order[last]) & self.tensors.keys()
        other.cut = min([*decided, *([last] if ends else [])], default=-1)
        counts = [
            order[n] for f in failures if f.code == "host-counter" and 0 <= (n := self._index(*at, f)) < other.cut
        ]
        other.put_off = [n for n in counts if isinstance(n, ast.AugAssign) and not self._is_read(n, order[: other.cut])]
        return other if other.cut < 0 or (other.cut > 0 and other._tail(*at) is not None) else None

    @staticmethod
    def _is_read(count: ast.AugAssign, order: Sequence[ast.stmt]) -> bool:
        """Whether other statements read what one counts, as far as their text tells."""
        every = (part for node in order if node is not count for part in ast.walk(node))
        return any(isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) == path_of(count.target) for n in every)

    def foreseeing(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with what loops ask the host for, round by round, found before the launch; None without any."""
        other, at = self._other(), self._definition()
        other.foresees = True
        places = [place for f in failures if f.code in FED and (place := self.place(f)) is not None]
        looped = [s for s, node in places if at is not None and s is at[0] and in_loop(s, node)]
        return other if looped else None

    def fetching(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with the batches that the host fetches in the step fetched before the launch; None without any."""
        other = self._other()
        other.fetches = True
        known = other.fetched_in(failures) or other.fetches_in_methods(failures) or other.asks_in_methods(failures)
        if not known:
            return None
        other.leads = bool(other._rates_ahead(failures))
        return other

    def asking_in_methods(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with what methods ask the host for found before the launch, and all else that they do left there."""
        other = self._other()
        other.in_methods = True
        fetches = other.fetched_in(failures) or other.fetches_in_methods(failures)
        return other if fetches and other.asks_in_methods(failures) else None

    def leading(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with the rates that the host gives to optimizers written before the launch; None without any."""
        other = self._other()
        other.leads = True
        return other if other._rates_ahead(failures) else None

    def reading_there(self, failures: Sequence[Failure], left: Sequence[Failure]) -> Ways | None:
        """The same with what the host reads left where it is; None where that has brought no new problems."""
        other = self._other()
        other.reads_there = True
        read = [f for f in failures if f.code in READ and not any(f is each for each in left)]
        new = [f for f in left if f.code in ENDS and not any(f is each for each in failures)]
        return other if read and new else None

    def split(self, left: Sequence[Failure]) -> Ways | None:
        """The same with all from the first place on that is left behind the launch; None where nothing is before it."""
        other = self._other()
        at = other._definition()
        if at is None or not left:
            return None
        other.cut = min(other._first_of(*at, failure) for failure in left)
        computed = [n for n in list(moving.body_of(at[1]))[: max(other.cut, 0)] if not isinstance(n, moving.NAMED)]
        return other if computed and other._tail(*at) is not None else None

    def _first_of(self, source: Source, function: Function, failure: Failure) -> int:
        """Which statement of the function's body goes behind the launch first for what is told: ``unscale_``, too."""
        number, order = self._index(source, function, failure), list(moving.body_of(function))
        before = (
            moving.unscaled_before(function, order[number]) if failure.code == "grad-scaler" and number >= 0 else []
        )
        return order.index(before[0]) if before else number

    def stepping_behind(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with an optimizer's step, all after it and the numbers that it gets behind the launch; or None.

        There it takes each of them as it is: a graph would keep its weight decay, its momentum and its betas.
        """
        at = self._definition()
        if at is None:
            return None
        other = self.split([f for f in failures if f.code == "learning-rate-frozen"])
        if other is None:
            return None
        other.put_off = self._rates_behind(failures, other.cut)
        return other if other.put_off else None

    def _rates_behind(self, failures: Sequence[Failure], cut: int) -> list[ast.stmt]:
        """Statements before a cut that give optimizers their numbers, where they can do so behind the launch."""
        at = self._definition()
        if at is None:
            return []
        order = list(moving.body_of(at[1]))[:cut]
        found = self._rates_ahead(failures, partial(optimizers.has_renumbered, at[0]))
        found = [node for node in found if node in order]
        stay = [node for node in order if node not in found]
        made, asked = moving.stored(found), {path for node in found for path in writes.paths(node)}
        if not found or any(names_in(node) & made & locals_of(at[1]) for node in stay):
            return []
        later = [node for node in stay if node.lineno > found[0].lineno]
        known = ("zero_grad",), self._modules_called(at[1])
        changed = {path for node in later for path in writes.written(node, *known)}
        return found if not any(writes.touches(a, b) for a in changed for b in asked) else []

    def giving_back(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with a step, ahead of which lines take gradients away at times, behind the launch; or None."""
        at = self._definition()
        found = given_back(self.sources.values(), *at) if at is not None and self.kept is None else None
        if at is None or found is None:
            return None
        other = self._other()
        other.cut, other.given_back = found.cut, found
        other.put_off = self._rates_behind(failures, other.cut)
        return other if other._tail(*at) is not None else None

    def split_where_made(self, left: Sequence[Failure]) -> Ways | None:
        """The same from where an object is made that the rest writes into, as each launch has to make it anew."""
        other, at = self.split(left), self._definition()
        if other is None or at is None:
            return None
        order = list(moving.body_of(at[1]))
        read = {name for node in order[other.cut :] for name in names_in(node)}
        made = [n for n, node in enumerate(order[: other.cut]) if self._makes_an_object(node) & read]
        other.cut = min(made, default=-1)
        computed = [n for n in order[: max(other.cut, 0)] if not isinstance(n, moving.NAMED)]
        return other if computed and other._tail(*at) is not None else None

    def _makes_an_object(self, node: ast.stmt) -> set[str]:
        """The name that a statement gives an object of a class of the user's."""
        call = node.value if isinstance(node, ast.Assign) else None
        kind = self.space.get(path_of(call.func)) if isinstance(call, ast.Call) else None
        own = isinstance(kind, type) and not issubclass(kind, (torch.Tensor, torch.nn.Module))
        return (
            moving.stored([node])
            if own and getattr(kind, "__module__", "torch").partition(".")[0] != "torch"
            else set()
        )

    def is_returned(self, failure: Failure) -> bool:
        """Whether something was found in what a function returns at its end."""
        place = self.place(failure)
        return place is not None and isinstance(place[1], ast.Return)

    def shortened(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with a loop that goes on, and all that comes after it behind the launch; None without any."""
        for other, at, place, order in self._endings(failures):
            found = ending(other._place_of(*place))
            if found is not None and found.handed and found.loop in order[:-1]:
                other.ended, other.cut = found, order.index(found.loop) + 1
                return other if other._tail(*at) is not None else None
        return None

    def parted(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with the reading of what a statement computes, and all after it behind the launch; None without."""
        for other, at, place, order in self._endings(failures, READS):
            found = part(other._place_of(*place)) if place[1] in order[:-1] else None
            if found is not None:
                other.ended, other.cut = found, order.index(place[1]) + 1
                return other if other._tail(*at) is not None else None
        return None

    def reading_together(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with what a loop reads in each round read behind the launch, of all rounds at once; None without."""
        for other, at, place, order in self._endings(failures, READS):
            found = together(other._place_of(*place))
            if found is not None and found.loop in order:
                other.ended, other.cut = found, order.index(found.loop) + 1
                return other if other._tail(*at) is not None else None
        return None

    def guarded(self, failures: Sequence[Failure]) -> Ways | None:
        """The same with a branch that leaves the step behind the launch; None without any."""
        for other, at, place, order in self._endings(failures):
            asked = asked_next(place[0], place[1], order)
            node = place[1] if asked is None else asked[0]
            found = guard(other._place_of(place[0], node, place[2]), order)
            if found is not None:
                other.guard, other.cut, other.ended = found, order.index(node), asked[1] if asked is not None else None
                return other if other._tail(*at) is not None else None
        return None

    def _endings(self, failures: Sequence[Failure], codes: frozenset[str] = ENDS) -> Iterator[Ended]:
        """Places of the function where a value of the device may end something, each with another attempt."""
        other = self._other()
        at = other._definition()
        for failure in failures if at is not None else ():
            place = other.place(failure) if failure.code in codes else None
            if at is not None and place is not None and place[0] is at[0] and at[0].function_of(place[1]) is at[1]:
                yield other, at, (*place, failure), list(moving.body_of(at[1]))


Ended = tuple[Ways, tuple[Source, Function], tuple[Source, ast.stmt, Failure], list[ast.stmt]]
