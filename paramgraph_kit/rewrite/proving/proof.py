"""Runs a function over several steps with moved inputs, eagerly or from one graph, and notes all that can be seen."""

from __future__ import annotations

import copy
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.doctor.restore.keeper import RandomState, storage_key
from paramgraph_kit.doctor.restore.repair import capture
from paramgraph_kit.doctor.restore.surroundings import Surroundings
from paramgraph_kit.driver.select import twin
from paramgraph_kit.rewrite.proving.around import NOTHING as NOTHING
from paramgraph_kit.rewrite.proving.around import Arguments as Arguments
from paramgraph_kit.rewrite.proving.around import Around as Around
from paramgraph_kit.rewrite.proving.closeness import (
    BESIDE,
    GRADED,
    GRADIENTS,
    LEADS,
    OF_ARGUMENTS,
    WRITES,
    Plain,
    differences,
    farther,
    is_nesterov,
)
from paramgraph_kit.rewrite.proving.closeness import RETURNS as RETURNS
from paramgraph_kit.rewrite.proving.closeness import Seen as Seen
from paramgraph_kit.rewrite.proving.deadline import RAISES, Deadline
from paramgraph_kit.rewrite.proving.exchanged import Alike, Held, HostDraws, alike, check_alike, parts_of
from paramgraph_kit.rewrite.proving.graded import graded, graded_results
from paramgraph_kit.rewrite.proving.handed_again import handed_on, kept_entries
from paramgraph_kit.rewrite.proving.kept_results import KeptResults, moved_among
from paramgraph_kit.rewrite.proving.leading import gradients_of, kept_by_optimizers, leads_back
from paramgraph_kit.rewrite.proving.mixing import moved, rounded_otherwise
from paramgraph_kit.rewrite.proving.numbers import Numbers, codes_of, is_looked_at
from paramgraph_kit.rewrite.proving.printed import Printed, capturing, texts
from paramgraph_kit.rewrite.proving.registered import register
from paramgraph_kit.rewrite.proving.results import (
    copied,
    flat,
    held,
    known,
    numbers,
    opened,
    tensors_in,
    without_options,
)
from paramgraph_kit.rewrite.proving.written import Writes, is_small, let_go_of_gone, may_be_written

STEPS = 6
WARM_UP = 2
Look = Callable[[Any], None]
Form = Callable[[], AbstractContextManager[None]]


class Prover:
    """Runs a function again and again from the state that everything was in when this was made."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function = function
        self.state = HostState(function, args, kwargs)
        self._random = RandomState()
        self._given: Arguments = (args, kwargs)
        self._states: set[int] = set()  # dictionaries and lists of its arguments that a step hands on to the next
        self._draw("all")
        # What a step makes of an argument's gradient is its own: the caller's tensor needs none.
        given = (each for each in tree_leaves(self._given) if isinstance(each, torch.Tensor))
        self._without = {id(each) for each in given if not each.requires_grad}
        self.kept = ""  # what stays of its arguments, as it does not run with others
        self.moves = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(self._given))  # whether values do
        self._written: dict[int, torch.Tensor] = {}  # memory that any run so far has written
        self.operations = [0, 0]  # of the longest step of the last eager run: in the function, and around it
        self.products = [0, 0]  # those of them that are products, convolutions or recurrent layers
        self._count = [0, 0]
        self.leads: list[Any] = []  # whether gradients go back from what the last eager run has returned, each
        self._graded: list[list[Any]] = []  # whether it leads or takes gradients, of each of its steps
        # Whether they do from anything that the function as it is returns, or would of a loss where inputs need them.
        self.leads_back = self.gives_loss = False
        self.is_part = False  # of a function whose own results are compared
        self.goes_back = False  # a backward pass of its own has used up what a result was made by
        self.adding: list[torch.Tensor] = []  # those with gradients that the last graph adds to, or writes again
        self.let_go: list[torch.Tensor] = []  # of these: what is around its launches gives them others, or none
        self.deadline = Deadline()
        self._replaced: set[int] = set()  # tensors in whose places others are, as an optimizer's counts on the device
        self._known: frozenset[str] = frozenset()
        self._alike: Alike = {}  # what shares memory after the first run
        self._numbers: Numbers | None = None
        self._around = NOTHING
        self._results: KeptResults | None = None  # of an eager run that is under way
        self.overwritten: dict[int, bool] = {}  # results of the last eager run that later steps have written over

    def _draw(self, how: str) -> None:
        self._how = how
        self._inputs = handed_on([self._given, *(moved(self._given, i, how) for i in range(1, STEPS))], self._states)
        drawn = (leaf for leaf in tree_leaves(self._inputs[1:]) if isinstance(leaf, torch.Tensor))
        self._surroundings = Surroundings([*self.state.tensors, *drawn])

    def first(self, around: Around = NOTHING) -> Seen:
        """The first run. Where the function does not take what is drawn for it, what it was given stays."""
        seen = self._first(around)
        if not self._states:
            return seen
        self._draw(self._how)
        return self._first(around)

    def _first(self, around: Around) -> Seen:
        for how, kept in (("floats", "the integers"), ("nothing", "the values")):
            try:
                return self.eager(around)
            except RAISES as error:
                if not self.moves:
                    raise
                self.kept = f"{kept} of its arguments stay, as with others it raises {type(error).__name__}"
                self.moves = how != "nothing"
                self._draw(how)
        return self.eager(around)

    def forget(self) -> None:
        """Let go of all tensors that runs were given, or have made; there are no further runs, of a copy neither."""
        self._written.clear()
        self._inputs.clear()
        self._surroundings = Surroundings(())

    def from_now(self) -> Prover:
        """The same, but back to what everything holds now, also what rewritten lines no longer name."""
        other = copy.copy(self)
        other.state = self.state.from_now()
        other._numbers = None
        now = {id(tensor) for tensor in tensors_in(other.state.kept)}
        other._replaced = self._replaced | {id(tensor) for tensor in tensors_in(self.state.kept)} - now
        return other

    def anew(self) -> Prover:
        """The same as it was made, with what the function as it is has shown."""
        other = copy.copy(self)
        other._inputs, other._written, other.leads, other.adding, other.let_go = [*self._inputs], {}, [], [], []
        other.operations, other.products, other._count = [0, 0], [0, 0], [0, 0]
        return other

    inputs = property(lambda self: self._inputs[0])  # the arguments of its first step
    counted = property(lambda self: self._count)

    def given(self, change: Callable[[int, Arguments], Arguments], steps: int = STEPS) -> Prover:
        """The same with other arguments in each of its steps, in the first of them, or in more than it has."""
        other = copy.copy(self)
        drawn = [moved(self._given, i, self._how) for i in range(len(self._inputs), steps)]
        other._inputs = [change(i, inputs) for i, inputs in enumerate([*self._inputs, *drawn][:steps])]
        other.operations, other.products, other._numbers, other._around = [0, 0], [0, 0], None, NOTHING
        return other

    def eager(self, around: Around = NOTHING, *, noting: bool = False) -> Seen:
        """What is seen of some steps as they are; ``noting``: also what numbers they move, for those who ask later."""
        with self._run() as keeper:
            self.leads, self._graded, leaves, self._results = [], [], self._given_leaves(), KeptResults()
            results = self._noted() if noting else [self._step(inputs, around) for inputs in self._inputs]
            self.overwritten, self._results = self._results.overwritten(), None
            self._alike = self._alike or alike(self.state.holders)
            # A number may have become a tensor, and is compared as one.
            given = [n for n in tree_leaves(self._inputs) if not isinstance(n, torch.Tensor) or is_small(n)]
            found = {f"{WRITES}, which it is given": flat(given), **self._seen(results, keeper)}
            kept = graded_results(self._graded)
            return {LEADS: [*self.leads], f"{GRADED} {RETURNS}": kept, OF_ARGUMENTS: gradients_of(leaves), **found}

    @contextmanager
    def with_around(self, around: Around) -> Iterator[None]:
        """While this lasts these are what its steps need, for those who only look at them."""
        self._around, known = around, self._around
        try:
            yield
        finally:
            self._around = known

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """While this lasts what comes before a launch has been done once."""
        with self._run():
            self._around.prepare(self.inputs)
            yield

    def numbers(self) -> Numbers:
        """The numbers that steps move, looked for once in the same code."""
        if self._numbers is None or self._numbers.codes != codes_of(self.state):
            with self._run():
                self._noted()
        assert self._numbers is not None
        return self._numbers

    def _noted(self) -> list[Any]:
        """What the steps return, while it is noted what numbers they move."""
        numbers, results = Numbers(self.state), []
        for inputs in self._inputs:
            results.append(self._step(inputs, NOTHING))
            numbers.note()
        self._numbers = numbers.done()
        return results

    def watched(self, *, lists: bool = False) -> list[tuple[Holder, list[Any]]]:
        """What variables, objects and dictionaries of the user's, or lists, hold before all steps and after each."""
        with self._run():
            seen = [self.state.read()]
            for inputs in self._inputs:
                self._step(inputs, self._around)
                seen.append(self.state.read())
        columns = zip(self.state.holders, zip(*seen, strict=True), strict=True)
        return [
            (holder, list(values))
            for holder, values in columns
            if is_looked_at(holder) and not any(isinstance(v, () if lists else (list, set, deque)) for v in values)
        ]

    def launched(self, function: Any, around: Around = NOTHING) -> Seen:
        """The same of another callable in the function's place, which is launched only where no mode is on."""
        with self._run(watched=False) as keeper:
            results = [self._step(inputs, around, function) for inputs in self._inputs]
            keeper.said.in_capture |= function is not self.function  # who knows when such a one prints
            return self._seen(results, keeper)

    def rounded(self, around: Around = NOTHING, *, others: bool = False) -> Seen:
        """The same with inputs and parameters that are rounded otherwise, up or down: how far that alone can lead."""
        change = partial(rounded_otherwise, up=1 if others else 0)
        with self._run() as keeper, torch.random.fork_rng(devices=[]):
            with torch.no_grad():
                for parameter in self.state.tensors:
                    if parameter.is_leaf and parameter.requires_grad:
                        parameter.copy_(change(parameter))
            inputs = tree_map(change, self._inputs, is_leaf=lambda each: id(each) in self._states)
            return self._seen([self._step(each, around) for each in inputs], keeper)

    def captured(
        self, around: Around = NOTHING, *, look: Look | None = None, told: bool = True, without: bool = False
    ) -> Seen:
        """The same from replays of one graph after a warm-up.

        Args:
            around: what runs before and after each step.
            look: is shown the graph, which is kept for that, with the lines that recorded its nodes.
            told: whether the graph's inputs are written before each replay.
            without: whether those have no gradients as it is captured that the last graph has added to.

        Raises:
            CaptureError: the capture fails.
            ExchangedError: a graph would read what a step exchanges, or write what steps keep, or draw only once.
        """
        cuda = twin()
        with self._run() as keeper:
            side, graph = cuda.Stream(), cuda.CUDAGraph(keep_graph=True) if look is not None else cuda.CUDAGraph()
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                results = [self._step(inputs, around) for inputs in self._inputs[: WARM_UP - 1]]
                before, read = Held(self.state.holders), keeper.reading(self.function)
                results.append(self._step(self._inputs[WARM_UP - 1], around, read))
                before.check(keeper.read)
            cuda.current_stream().wait_stream(side)
            static = tree_map(held, self._inputs[WARM_UP], is_leaf=lambda each: id(each) in self._states)
            for tensor in self.adding if without else ():
                tensor.grad = None
            begun = [(tensor, tensor.grad) for tensor in self._leaves()]
            versions = {id(grad): grad._version for _, grad in begun if grad is not None}
            drawn, held_there = HostDraws(self.state.holders), Held(self.state.holders)
            register(graph, self.state.generators)
            with keeper.captured(self.state.tensors), capturing(), capture(graph, lines=look is not None):
                out = self.function(*static[0], **static[1])
            drawn.check()
            # Those that are there still, and that it wrote: others it has not met, or the host puts them there.
            begun = [(t, g) for t, g in begun if g is not None and t.grad is g and g._version != versions[id(g)]]
            self.adding[:] = [tensor for tensor, _ in begun]
            if look is not None:
                look(graph)
            for inputs in self._inputs[WARM_UP:]:
                with torch.no_grad():
                    for there, value in zip(tree_leaves(static), tree_leaves(inputs), strict=True):
                        if told and isinstance(there, torch.Tensor):
                            there.copy_(value)
                around.prepare(given := around.given(inputs, static))
                graph.replay()
                results.append(copied(opened(around.finish(given, out))))
                self.let_go += [tensor for tensor, grad in begun if tensor.grad is not grad]
                held_there.check_still(before, keeper.read)
            check_alike(self._alike, alike(self.state.holders))
            seen = self._seen(results, keeper)
        graph.reset()
        return seen

    def _step(self, inputs: Arguments, around: Around, function: Any = None) -> Any:
        with self.deadline.step():
            around.prepare(inputs)
            begun, products = self._count
            out = (function or self.function)(*inputs[0], **inputs[1])
            inside, of_them = self._count
            finished = around.finish(inputs, out)
        now = [inside - begun, self._count[0] - inside], [of_them - products, self._count[1] - of_them]
        if sum(now[0]) >= sum(self.operations):  # others may have ended early
            self.operations[:], self.products[:] = now
        found = opened(finished)
        self._graded.append(graded(found))
        led = [(value, leads_back(value)) for value in known(found)]
        self.leads += [torch.tensor(leads, device="cpu") for _, leads in led]
        self.goes_back |= any(getattr(value, "grad_fn", None) is not None and not leads for value, leads in led)
        result = copied(found)
        if self._results is not None:
            self._results.note(finished, found, result)
        return result

    @contextmanager
    def _run(self, *, watched: bool = True) -> Iterator[Writes]:
        self.operations[:], self.products[:], self._results = (0, 0), (0, 0), None
        gradients, current = torch.is_grad_enabled(), twin().current_stream()
        keeper = Writes(self.state.tensors, self._count, self.deadline)
        # A replay writes unseen what its warm-up may have left.
        for tensor in (*self._written.values(), *(() if watched else may_be_written(self.state.tensors))):
            keeper.keeper.before_write(tensor)
        try:
            self._random.put_back()
            mode: AbstractContextManager[Any] = keeper if watched else nullcontext()
            said = warnings.catch_warnings(), redirect_stdout(keeper.said), redirect_stderr(Printed())
            with said[0], said[1], said[2], kept_entries(self._inputs, self._states), mode:
                warnings.simplefilter("ignore")
                yield keeper
        finally:
            twin().set_stream(current)
            torch.set_grad_enabled(gradients)
            twin().synchronize()
            self._written |= keeper.keeper.written()
            keeper.keeper.put_back()
            for leaf in self._given_leaves():
                leaf.grad = None  # the next run would add to it
            self.state.put_back()
            self._random.put_back()
            self._surroundings.put_back()
            let_go_of_gone(self._written)

    def _seen(self, results: list[Any], keeper: Writes) -> Seen:
        twin().synchronize()
        found: Seen = {RETURNS: flat(results), **texts(results), **keeper.seen()}
        gone = self._replaced | self._let_go()
        for number, tensor in enumerate(self.state.tensors):
            # Also what this run has not written: lines may leave what the original writes, and write what it leaves.
            looked = is_small(tensor) or keeper.keeper.is_written(tensor) or storage_key(tensor) in self._written
            if (looked or (tensor.is_leaf and tensor.requires_grad)) and id(tensor) not in gone:
                found[f"{WRITES}{self._called(number)}#{number}"] = flat(tensor)
                found[f"{GRADED} {WRITES}{self._called(number)}#{number}"] = graded(tensor)
        found |= {**kept_by_optimizers(self.state.holders), GRADIENTS: gradients_of(self._leaves())}
        for number, holder in enumerate(self.state.holders):
            if holder.of_torch or holder.kind == "generator" or id(holder.target) in gone:
                continue
            value = holder.read()
            if holder.kind in ("attributes", "class") and isinstance(value, dict):
                value = {name: each for name, each in value.items() if name in self._attributes()}
            found[f"{GRADED} {holder.name}#{number}"] = graded(value := without_options(value))
            found[f"{holder.name}#{number}"] = flat(value)  # also where it is empty: another's is not
        for number, holder in enumerate(self.state.grown().holders):  # what steps have made, as a meter for each loss
            if values := numbers(without_options(holder.read())):
                found[f"{holder.name}#made {holder.kind} {number}"] = values
        return found

    def _given_leaves(self) -> list[torch.Tensor]:
        """Leaves with gradients that the steps are given, and that nothing but them has."""
        known = {id(t) for t in self.state.tensors} | self._without
        every = (t for t in tree_leaves(self._inputs) if isinstance(t, torch.Tensor) and id(t) not in known)
        return [t for t in every if t.is_leaf and t.requires_grad]

    def _leaves(self) -> list[torch.Tensor]:
        return [t for t in self.state.tensors if t.is_leaf and t.requires_grad and id(t) not in self._without]

    def _let_go(self) -> set[int]:
        """Tensors and lists that something held as these steps began, and nothing, or another one, holds now."""
        begun = parts_of(self.state.kept)
        now, gone = [(id(each.target), each.read()) for each in self.state.holders], set[int]()
        while True:  # a list that was let go holds its tensors still
            found = begun - parts_of(value for target, value in now if target not in gone)
            if found == gone:
                return gone | moved_among(self.state.kept, [value for _, value in now])
            gone = found

    def _attributes(self) -> frozenset[str]:
        """What attributes are called after the first run, which is the original's: a rewrite may give objects more."""
        if not self._known:
            read = (holder.read() for holder in self.state.holders if holder.kind in ("attributes", "class"))
            self._known = frozenset(name for each in read if isinstance(each, dict) for name in each)
        return self._known

    def _called(self, number: int) -> str:
        """What a tensor is called, and whether it lies where no replay writes."""
        name, tensor = self.state.names[number], self.state.tensors[number]
        return f" (`{name}`)" * bool(name) + " on the CPU, which no replay writes" * (tensor.device.type == "cpu")


class Truth:
    """What a function does in some steps, which other runs are compared with; without what differs from run to run.

    An optimizer makes steps of full size of gradients that are roundings alone, as those of an attention's key bias
    are. So a state may differ by what it differs by where the parameters were rounded otherwise; results may not. Where
    such steps reach results, what counts is the function as it is with its optimizers in the forms that captures have.

    Args:
        around: what comes before and after each step, where the function is no whole one without.
        forms: contexts in which its optimizers have these, of which each rounds in its own way.
        watched: a context for the first run: with a hook on each call all of them would take a fifth longer.
    """

    def __init__(
        self, prover: Prover, around: Around = NOTHING, forms: Iterable[Form] = (), watched: Form = nullcontext
    ) -> None:
        with watched():
            first = prover.first(around)
        again = prover.eager(around, noting=around is NOTHING)
        self.is_late: Callable[[], bool] = lambda: False  # whether no further trials are to be begun
        self.overwritten, self.operations = prover.overwritten, [*prover.operations]
        self.seen = {n: v for n, v in first.items() if not differences({n: v}, {n: again.get(n, [])})}
        if any(is_nesterov(holder.target) for holder in prover.state.holders):
            # Its step adds the momentum to the gradients themselves, where it is not fused; what comes of them counts.
            self.seen.pop(GRADIENTS, None)
        own = prover.is_part or prover.goes_back
        if own:  # what it returns where it is left before its backward pass is for nobody else's
            self.seen.pop(LEADS, None)
            self.seen.pop(f"{GRADED} {RETURNS}", None)
        # What nobody can compare although it is what the function is for, or "".
        prover.leads_back = any(first[LEADS]) and not own
        tensors = (value for value in first[RETURNS] if not isinstance(value, Plain))
        prover.gives_loss = any(not value.dim() and value.is_floating_point() for value in tensors)
        self.unsteady = "; ".join(differences({RETURNS: first[RETURNS]}, {RETURNS: again[RETURNS]}))
        trains = any(t.is_leaf and t.requires_grad for t in prover.state.tensors)
        self._near = prover.rounded(around) if trains else {}
        if self._near and differences(self.seen, self._near):  # roundings count: how far one leads is chance
            self._near = farther(self.seen, self._near, prover.rounded(around, others=True))
        self.in_forms = self._in_other_forms(prover, around, forms) if trains else []
        self._begin()

    def anew(self) -> Truth:
        """The same, which nothing was compared with yet."""
        (other := copy.copy(self))._begin()
        return other

    def _begin(self) -> None:
        self.tried: dict[tuple[str, Around | None], str] = {}  # what was wrong with lines that have run already
        self.suspected: Counter[Any] = Counter()  # what was wrong alone, in so many ways of rewriting
        self.examined: dict[Any, list[Any]] = {}  # and what was found in such lines,
        self.looked: dict[Any, Any] = {}  # and who has seen what names hold there
        self.shown: dict[Any, Any] = {}  # and what else they have shown
        self.conditions: Any = None  # what it does with inputs of other kinds, where that was asked
        self.drifted = False  # whether any comparison so far has needed that
        self.reformed = False  # or what the optimizers' other forms give

    def wrong(self, seen: Seen) -> list[str]:
        """What differs, each in a few words."""
        strict = differences(self.seen, seen)
        found = differences(self.seen, seen, self._near) if strict and self._near else strict
        self.drifted |= len(found) < len(strict)
        if found and any(not differences(other, seen) for other in self.in_forms):
            self.reformed = True
            return []
        return found

    def measured(self) -> Seen:
        """What was seen but for what it prints, and where gradients go."""
        return {name: values for name, values in self.seen.items() if not name.startswith(BESIDE)}

    def _in_other_forms(self, prover: Prover, around: Around, forms: Iterable[Form]) -> list[Seen]:
        """What the function as it is does with its optimizers in forms for a capture, if the first is not the same.

        That has to be seen before any of its lines is another one.
        """
        found: list[Seen] = []
        for form in forms:
            try:
                with form():
                    other = prover.from_now().eager(around)
            except Exception:  # not every optimizer has each
                continue
            seen = {name: other.get(name, values) for name, values in self.seen.items()}
            if not found and not differences(self.seen, seen):
                return []
            found.append(seen)
        return found

    def is_bitwise(self, seen: Seen) -> bool:
        """Whether a run that is not wrong agrees to the last bit."""
        return all(
            torch.equal(torch.as_tensor(x), torch.as_tensor(y))
            for name in self.measured().keys() & seen.keys()
            for x, y in zip(self.seen[name], seen[name], strict=False)
        )

    def closeness(self) -> str:
        """How near runs are that are not wrong."""
        if self.reformed:
            return "within 1e-4, as they are with the optimizer's own form for a capture, which rounds otherwise"
        return "within 1e-4" + (", a state within what one rounding of the parameters changes" * self.drifted)
