"""Which lines are rewritten for what was found, and the user's function with those lines."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from paramgraph_kit.driver.files import REWRITTEN, display_name
from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.around import later
from paramgraph_kit.rewrite.behind import OF_STEPS, Behind
from paramgraph_kit.rewrite.counting import begun_later, elsewhere, optimizers, wrapped
from paramgraph_kit.rewrite.lending import Plan, apart
from paramgraph_kit.rewrite.rules import edits_for
from paramgraph_kit.rewrite.source import loaded_copies, moving
from paramgraph_kit.rewrite.source.cancelled import takes_gradients_at_times
from paramgraph_kit.rewrite.source.edits import Edit, Source, within
from paramgraph_kit.rewrite.source.edits_in import edits_in
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.source.reach import owner_of
from paramgraph_kit.trace.model import Failure

READ = ("sync-item", "copy-to-cpu")
BETWEEN = "another one in a later round: "  # what begins the message of a rate that the loop around a round sets


def between_rounds(failure: Failure, source: Source, lines: Sequence[str]) -> Failure:
    """A learning rate that is another one in a later round, at the line of the round that takes a step with it."""
    frame = failure.frame
    at = [n for n, line in enumerate(lines, 1) if frame is not None and line.strip() == frame.text.strip()]
    if frame is not None and len(at) == 1 and frame.file == display_name(source.file):
        frame = replace(frame, file=frame.file + REWRITTEN, line=at[0])
    return replace(failure, message=BETWEEN + failure.message, frame=frame)


class Attempt(Behind):
    """One function with what was found in it."""

    def plans(self, failures: Sequence[Failure]) -> list[Plan]:
        """How each failure is rewritten, where it can be."""
        left = [f for f in failures if id(f) not in self.unsafe or id(f) in self.elsewhere]
        self.rate, self.fed, self.watch = self.kept is not None and self.kept.rates, None, None
        self.behind, self.alone, self.rated = [], [], []
        if (taken := takes_gradients_at_times(self.sources.values())) and self.given_back is None:
            self.moves = False  # a step behind the launch would miss gradients for ever that a capture has not made
        if loads := self._loads(failures):
            return loads  # the others are asked again on these lines, which may go behind the launch
        self.ahead = self._rates_ahead(left) if self.leads and self.moves and self.feeds else []
        self.rate |= bool(self.ahead) or any(_is_between(failure) for failure in failures)
        self.later = begun_later.gradients_begin_later(self.sources.values())
        late = self.later and begun_later.dampened(optimizers.found_in(self.prover.state))
        self.rate = self.rate and not taken and not late
        opening = self._opening(left) if self.moves and self.feeds else []
        self.ahead = [*opening, *(node for node in self.ahead if node not in opening)]
        kept = self._counted()
        counted = kept + self._graded()
        left = [f for f in left if not any(f is each for plan in counted for each in plan.failures)]
        moved = self._moved(left) if self.moves and not self.only_feeds else None
        for plan in kept if moved is not None else ():  # what goes behind the launch has them there
            is_there = moved is not None and moved.source is plan.source
            there = edits_in(plan.source, plan.edits, self.behind if is_there else ())
            plan.edits = [each for each in plan.edits if not any(each is one for one in there)]
        found = [moved] if moved is not None else self._detached() if self.moves else []
        found += counted
        fused = (self._left_out(f) or self._scaled(f) or self._asks_its_rate(f) for f in left)
        self.fused = self.guard.fused | {name for name in fused if name and not taken}
        steps = [f for f in left if self.rate or f.code != "learning-rate-frozen" or (self._decays(f) and not taken)]
        found += self._optimizers(steps)
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
        plans = apart(found, [plan.edits for plan in (moved, fed) if plan is not None])
        return plans if all(plan in plans for plan in kept) else []  # what keeps a number in a tensor makes it one

    def _loads(self, failures: Sequence[Failure]) -> list[Plan]:
        """Copies of modules that a step puts in the places of others, which it reads."""
        found = list[Plan]()
        for source in self.sources.values():
            every = [node for statement in later.ran_in(source, self.ran) for node in within(statement)]
            for node in (n for n in every if isinstance(n, ast.Assign)):
                lines = loaded_copies.loaded(source, node, self._value, every)
                alone = not source.lines[node.lineno - 1][: node.col_offset].strip()
                text = (f"\n{source.indent(node)}" if alone else "; ").join(lines)
                own = [f for f in failures if (at := self.place(f)) is not None and at[1] is node]
                plan = Plan(source, [source.replace(node, text)], own) if text else None
                taken_back = any(id(f) in self.unsafe for f in own)
                if plan is not None and not taken_back and repr(plan.edits) not in self.needed:
                    found.append(plan)
        return found

    def _left_out(self, failure: Failure) -> str:
        """The optimizer whose step is all that a branch of the device decides."""
        known = failure.code == "data-dependent-branch" and id(failure) not in self.unsafe
        place = self.place(failure) if known else None
        name = optimizers.left_out(place[1], place[0]) if place is not None else ""
        return name if name and optimizers.is_fusable(self.space, name) else ""

    def _scaled(self, failure: Failure) -> str:
        """The optimizer that a scaler steps in a function that the step calls: fused, it asks nothing on the host."""
        place = self.place(failure) if failure.code == "grad-scaler" and id(failure) not in self.unsafe else None
        at = self._definition()
        if place is None or at is None or place[0].function_of(place[1]) is at[1]:
            return ""  # there it goes behind the launch, and leaves the optimizer as it is
        name = self._stepped(*place) if optimizers.is_scaled_inside(place[1], place[0]) else ""
        value = self._value(name) if name else None
        momentum = type(value) is torch.optim.SGD and any(group["momentum"] for group in value.param_groups)
        return name if name and optimizers.is_fusable(self.space, name) and not momentum else ""

    def _asks_its_rate(self, failure: Failure) -> str:
        """The optimizer that makes a number of its rate, a tensor, on the host: fused, its kernels read the tensor."""
        place = self.place(failure) if failure.code == "optimizer-sync" and id(failure) not in self.unsafe else None
        name = self._stepped(*place) if place is not None else ""
        return name if name and optimizers.asks_its_rate(self._value(name)) else ""

    def _stepped(self, source: Source, statement: ast.stmt) -> str:
        """The name of the optimizer that a statement steps: of one that a helper is given, where it is called."""
        name, function = optimizers.stepped(statement), source.function_of(statement)
        if function is None or name not in moving.arguments_of(function) or self._value(name) is not None:
            return name
        owner = owner_of(self.function)
        known = self.space | {f"self.{each}": value for each, value in getattr(owner, "__dict__", {}).items()}
        known = {each: value for each, value in known.items() if isinstance(value, torch.optim.Optimizer)}
        return next(iter(known)) if len({id(value) for value in known.values()}) == 1 else name

    def _optimizers(self, failures: Sequence[Failure]) -> list[Plan]:
        found = []
        self.steps = False
        self.is_called = False  # by another function of the user's, which may keep what it returns
        seen: dict[str, list[Failure]] = {}
        for failure in failures:
            steps = failure.code in OF_STEPS or self._scaled(failure) or self._asks_its_rate(failure)
            if steps and (at := self.place(failure)):
                name = self._stepped(*at)
                for each in self._each_of(at[0], at[1], name) or [name]:
                    seen.setdefault(each, []).append(failure)
        every = (node for source in self.sources.values() for node in source.parents)
        counted = {optimizers.stepped(node) for node in every if isinstance(node, ast.Expr)}
        counted = {name for name in counted if name and optimizers.counts_on_host(self._value(name))}
        for name in (*self.rated, *sorted(self.fused), *sorted(counted)):
            seen.setdefault(name, [])
        behind = [self._value(name) for name in seen if name not in self.fused and self._steps_behind(name)]
        self.alone = [each for each in behind if each is not None]
        nameless: list[Failure] = []
        given: list[ast.Call] = []
        for name, known in seen.items():
            if any(self._value(name) is one for one in self.alone):
                continue
            around = self.entry.__globals__ if self.entry is not None else {}
            owner = self._value(name.rpartition(".")[0])
            made = elsewhere.maker(self.sources, name, self._value(name), around, owner) if name else None
            if made is None:
                inner = self._wrapped(name, known)
                found += inner
                nameless += known if not inner and not isinstance(self._value(name), torch.optim.Optimizer) else []
                continue
            given.append(made[1])
            found.append(Plan(made[0], self._options(*made, fuse=name in self.fused), known))
        return found + self._of_kinds(nameless, given)

    def _options(self, source: Source, call: ast.Call, *, fuse: bool = False) -> list[Edit]:
        """The options that a capture needs, where an optimizer is made."""
        self.steps = True
        # Groups that have no rate of their own would share one tensor, and be written one after the other.
        several = any(len(each["param_groups"]) > 1 for each in optimizers.found_in(self.prover.state))
        named = self._named(source)
        edits = optimizers.options(source, call, named, rate=self.rate and not several, fuse=fuse)
        edits += optimizers.apart(source, call, named) if self.rate and several else []
        return edits + (begun_later.momenta(source, call) if self.later else [])

    def _of_kinds(self, failures: Sequence[Failure], given: Sequence[ast.Call]) -> list[Plan]:
        """Optimizers that no name leads to, as of ``g, d = self.optimizers()``: all that there are of a kind."""
        found: list[Plan] = []
        for kind in dict.fromkeys(optimizers.refused_kind(failure.message) for failure in failures):
            known = [failure for failure in failures if optimizers.refused_kind(failure.message) == kind]
            alive = sum(type(each).__name__ == kind for each in optimizers.living(self.prover.state)) if kind else 0
            alive -= sum(called(each) == kind for each in given)
            made = optimizers.makers_of(self.sources.values(), kind, alive, given) if kind else []
            for n, (source, call) in enumerate(made):
                found.append(Plan(source, self._options(source, call), known if n == 0 else []))
        return found

    def _named(self, source: Source) -> str:
        """The device as a file's names have it: of another file's none is known."""
        return self.device if source.file == self.file else f'"{device().type}"'

    def _wrapped(self, name: str, known: list[Failure]) -> list[Plan]:
        """The options of an optimizer that one of the user's own makes, and the rate of one that is the user's own."""
        inner = self._value(name) if name else None
        every = [*self.sources.values()]
        at = wrapped.made_at(every, inner, self._value)
        at = wrapped.own_made_at(every, inner, self._value) if at is None and self.rate else at
        if at is None or (self.later and type(inner) is torch.optim.SGD):
            return []
        self.steps = True
        source, made, outer = at
        of = source, made, outer, inner, self._named(source)
        return [Plan(source, wrapped.options(*of, rate=self.rate, fuse=name in self.fused), known)]

    def _each_of(self, source: Source, statement: ast.stmt, name: str) -> list[str]:
        """The names of optimizers that a loop steps, one after the other, if the graph can count for all of them."""
        path = optimizers.gone_through(source, statement, name)
        held: Any = self._value(path) if path else None
        if not isinstance(held, (list, tuple)):
            return []
        own = [one for one in held if type(one).__module__.startswith("torch.optim")]
        named = {id(value): each for each, value in self.space.items() if isinstance(value, torch.optim.Optimizer)}
        return [named[id(one)] for one in own] if all(id(one) in named for one in own) else []

    def _detached(self) -> list[Plan]:
        at = self._definition()
        edits = moving.detached(*at, self.graded) if at is not None else []
        return [Plan(at[0], edits, [])] if at is not None and edits else []

    def take_back(self, plan: Plan, why: str) -> None:
        """A plan has changed what the function does: another way, or none, for what it was for."""
        self.feeds = self.feeds and (self.fed is None or plan.edits is not self.fed.edits)
        self.needed |= {repr(plan.edits)} if not plan.failures else set()
        was_moved = self.moved is not None and plan.edits is self.moved.edits
        if was_moved and self.defers and plan.hoisted:
            self.defers = False  # without what was put off it may do
            return
        if was_moved and not plan.failures:
            self.moves = False  # or it would be planned again
        for known in map(id, plan.failures):
            if known not in self.unsafe and not was_moved:
                self.elsewhere.add(known)
            else:
                self.elsewhere.discard(known)
            self.unsafe.setdefault(known, why)


def _is_between(failure: Failure) -> bool:
    return failure.code == "learning-rate-frozen" and failure.message.startswith(BETWEEN)
