"""Graphs that a function captures and replays itself: what they read has to live, what it is given has to arrive."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.beginnings import Beginnings
from paramgraph_kit.doctor.observe.captured_flow import CapturedFlow
from paramgraph_kit.doctor.observe.empty_captures import holding_nothing
from paramgraph_kit.doctor.observe.fed_behind import FedBehind
from paramgraph_kit.doctor.observe.fed_elsewhere import note_fed_elsewhere, without_given_anew
from paramgraph_kit.doctor.observe.fed_inputs import FedInputs
from paramgraph_kit.doctor.observe.filled_rows import FilledRows, end_of
from paramgraph_kit.doctor.observe.freed_words import gone_at
from paramgraph_kit.doctor.observe.given_captured import captured_alone, not_read
from paramgraph_kit.doctor.observe.given_numbers import GivenNumbers
from paramgraph_kit.doctor.observe.given_unread import unread
from paramgraph_kit.doctor.observe.gradients_between import GradientsBetween, is_put_back
from paramgraph_kit.doctor.observe.graphed_by_torch import is_of_graphs
from paramgraph_kit.doctor.observe.graphed_gradients import GraphedGradients
from paramgraph_kit.doctor.observe.graphed_results import READ, GraphedResults
from paramgraph_kit.doctor.observe.graphed_samples import GraphedSamples
from paramgraph_kit.doctor.observe.held import is_a, results_in, tensors_in
from paramgraph_kit.doctor.observe.held_inputs import HeldInputs
from paramgraph_kit.doctor.observe.host_copies import copied_hosts
from paramgraph_kit.doctor.observe.kept_once import told_where_kept
from paramgraph_kit.doctor.observe.kept_results import KeptResults
from paramgraph_kit.doctor.observe.named_anew import told_in_loops
from paramgraph_kit.doctor.observe.one_graph import Memory, OneGraph, OpenCaptures, among
from paramgraph_kit.doctor.observe.own_regions import Region, assigned, begun_in, by_torch, exchanged_in, region_here
from paramgraph_kit.doctor.observe.passed_callables import PassedCallables
from paramgraph_kit.doctor.observe.passed_numbers import PassedNumbers
from paramgraph_kit.doctor.observe.passed_words import passed_on, without_given
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.observe.pool_words import with_pools_of_their_own
from paramgraph_kit.doctor.observe.refusals import Operation
from paramgraph_kit.doctor.observe.replay_order import ReplayOrder
from paramgraph_kit.doctor.observe.results_of_each import results_at
from paramgraph_kit.doctor.observe.returned_early import ReturnedEarly
from paramgraph_kit.doctor.observe.stale_tails import StaleTails
from paramgraph_kit.doctor.observe.states_between import StatesBetween
from paramgraph_kit.doctor.observe.unexecuted import Unexecuted
from paramgraph_kit.doctor.observe.unordered import Unordered
from paramgraph_kit.doctor.observe.warm_ups import WarmUps
from paramgraph_kit.doctor.restore.keeper import Keeper, storage_key, storage_ref
from paramgraph_kit.driver.select import driver, twin
from paramgraph_kit.trace.model import Failure

# What gives another look at a tensor, and reads nothing.
VIEWS = frozenset(
    """alias as_strided chunk detach diagonal expand lift_fresh narrow permute select slice split squeeze t transpose
    unbind unfold unsqueeze view view_as _reshape_alias _unsafe_view""".split()  # noqa: SIM905 - shorter so
)
_BOTH = 2  # graphs of a callable: forward and backward


class OwnGraphs:
    """All of them that were captured in one examination."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.known: dict[int, OneGraph] = {}
        self._opens = OpenCaptures()
        self.regions: list[Region] | None = None  # of the captures of one call, where they are asked for
        self.keeps = self.stands_in = False  # what their names hold, and with something else for the tensors among it
        self._stand_ins: Any = WeakTensorKeyDictionary()
        self.kept, self.filled, self.tails = KeptResults(), FilledRows(), StaleTails()
        self.unexecuted, self.early, self.held = Unexecuted(), ReturnedEarly(), HeldInputs()
        self.numbers, self.graphed, self.samples = GivenNumbers(), GraphedResults(), GraphedSamples()
        self.between, self.states, self.learned = GradientsBetween(), StatesBetween(), GraphedGradients()
        self.passed, self.called, self.flow = PassedNumbers(), PassedCallables(), CapturedFlow()
        self.warmed = WarmUps(self.flow)
        self.order, self.behind, self.fed = ReplayOrder(), FedBehind(), FedInputs()
        self.beginnings = Beginnings()  # of states that are put back between calls
        self.carried = set[int]()  # memory that captures of before write themselves, or that calls give back
        self.writes_seen, self.written = 0, dict[int, int]()  # memory, and which of those has written it last
        self.unordered = Unordered()  # goes on from call to call, as a loop around them does
        self.ran = set[CodeType]()  # functions that have run behind the first call with a capture
        self.misread: list[Failure] = []  # results that were read when they were not there, or not any more

    def __bool__(self) -> bool:
        return bool(self.known)

    def __contains__(self, graph: object) -> bool:
        return id(graph) in self.known

    def begin(self, graph: object) -> None:
        """The capture of a graph begins; what is captured from now on is its own."""
        pairs = by_torch()
        own = self.known[id(graph)] = OneGraph(graph, begun=begun_in(), by_torch=pairs is not None)
        self._opens.begin(own)
        for pair in pairs or ():
            self.graphed.belong(*pair)
        self.flow.begin(graph)
        self.numbers.begin(graph)
        self.passed.begin(graph)
        self.called.begin(graph)
        self.held.begin(graph)
        self.behind.begin(graph)
        self.early.begin(graph)
        self.between.begin()
        self.states.begin(graph)
        if self.regions is not None and (region := region_here(graph, self.device)) is not None:
            self.regions.append(region)
            if self.stands_in:
                region.stand_in(self._stand_ins)
            elif not self.keeps:
                region.let_go()

    def adopt(self, graph: object) -> None:
        """A graph that nobody has seen captured is replayed."""
        if graph not in self:
            own = self.known[id(graph)] = OneGraph(graph, before=True, replayed=True)
            with suppress(Exception):  # it may hold none any more
                segments = twin().memory_snapshot(graph.pool())  # type: ignore[attr-defined]
                own.pool = [(each["address"], each["total_size"]) for each in segments]
                own.touched, own.pooled = driver().touched(graph), driver().pooled(graph)
            own.lose(driver().freed(graph))
            self.held.adopt(id(graph), own.touched)

    def captured_before(self, regions: Iterable[Region], roots: Iterable[Any] = ()) -> None:
        """Captures of before: what their lines name now is what they read, and write; ``roots``: other names."""
        self.regions = [*regions]
        self.held.note_ahead(self.device, [*(n for r in self.regions for n in (r.space, r.names)), *roots])
        for region in self.regions:
            region.ran = self.ran
            self.adopt(region.graph)
            self.passed.captured_before(region.graph, region.code, region.names)
            for graph in filter(None, region.of_torch):
                self.adopt(graph)
                self.known[id(graph)].by_torch = True
            if len(region.of_torch) == _BOTH and region.of_torch[1] is not None:
                self.graphed.belong(*region.of_torch)
            own = self.known[id(region.graph)]
            own.filled = region.filled
            for tensor in (t for value in results_at(region, own) for t in tensors_in(value) if storage_key(t)):
                storage = tensor.untyped_storage()
                own.memory[storage_key(tensor)] = Memory(storage_ref(storage), storage.data_ptr(), storage.nbytes())
            own.made |= own.memory.keys()
            read = region.values.read() if region.values is not None else ()
            for tensor in read:
                if tensor.device.type == self.device and (key := storage_key(tensor)) and key not in own.made:
                    own.reads[key] = (storage_ref(tensor.untyped_storage()), Place(()), tensor.data_ptr())
        for line in {(r.code, r.line) for r in self.regions}:
            alike = [r for r in self.regions if (r.code, r.line) == line and r.values is not None]
            touched = [self.known[id(r.graph)].touched for r in alike]
            known = [r.values for r in alike if r.values is not None]
            anew = without_given_anew(known, touched) if len(alike) > 1 else ()
            for region, values in zip(alike, anew, strict=False):
                region.values = values

    def of(self, graph: object) -> OneGraph | None:
        """What is known of one."""
        return self.known.get(id(graph))

    def _waiting(self) -> dict[int, Collection[int]]:
        """Memory that graphs read which were captured and not replayed yet."""
        chosen = (each for each in self.known.values() if not each.by_torch and each not in self._opens)
        return {id(each.graph): each.sources() for each in chosen if not each.before and not each.launched}

    def ended(self, graph: object, *, empty: bool = False) -> None:
        """The capture of a graph has ended well; ``empty``: and holds nothing."""
        if graph in self:
            self.known[id(graph)].empty = empty
            self.flow.ended(graph)
        for region in self.regions or ():
            if region.graph is graph:
                region.ended()
                region.adds_on = self.flow.is_begun_elsewhere(graph)
                region.ran = self.ran
                region.reads_of_given(self.flow.uses(graph))
                if not self.known[id(graph)].by_torch:
                    self.between.ended(graph, region, *self.flow.learned(graph, region.code), self.flow.filled(graph))
        if graph in self and not self.known[id(graph)].by_torch:
            self.states.ended(graph, compared=self.regions is not None and (self.keeps or self.stands_in))
        self._opens.ended(graph)
        self.held.note(self._waiting(), self.device)

    def saw(self, name: str, given: list[torch.Tensor], result: Any, place: Place) -> None:
        """An operation was captured."""
        device = self.device
        self.between.has_learned |= place.in_backward
        if (own := self._opens.here()) is None:
            return
        own.hosts |= {key: (storage, fills) for key, storage, fills in copied_hosts(name, given)}
        keys = set[int]()
        for tensor in given:
            keys.add(key := storage_key(tensor))
            if tensor.device.type == device and key and key not in own.made and key not in own.reads:
                own.reads[key] = (storage_ref(tensor.untyped_storage()), place, tensor.data_ptr())
                if any(key in other.memory for other in self.known.values()):
                    own.of_others.add(key)
            if key in own.reads and name not in VIEWS:
                own.ends[key] = max(own.ends.get(key, 0), end_of(tensor))
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(tensor, torch.Tensor) and (key := storage_key(tensor)) not in keys:
                own.made.add(key)
                if tensor.device.type == device and key:
                    storage = tensor.untyped_storage()
                    # A weak reference also keeps the key from being given to somebody else.
                    own.memory[key] = Memory(storage_ref(storage), storage.data_ptr(), storage.nbytes())

    def follow(self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, place: Place) -> None:
        """The same, with what is written, and in which order."""
        if (own := self._opens.here()) is not None and op.name not in VIEWS and not own.by_torch:
            self.flow.saw(own.graph, op, args, kwargs, result, place)
            self.warmed.captures(own.graph, op, args, kwargs, place)

    def read(self, tensors: list[torch.Tensor], place: Place) -> list[Failure]:
        """An operation outside of all captures reads these; what is told where somebody sees what it computes."""
        self.misread += self.graphed.read(tensors)
        self.held.note(self._waiting(), self.device)
        keys = [storage_key(tensor) for tensor in tensors]
        self.between.used(keys)
        self.behind.read(keys)
        pending = self.unexecuted.read(tensors)
        for own in self.known.values():
            there = own.memory.keys() & set(keys)
            if own.by_torch or not there or (not own.replayed and self._is_filled(there)):
                continue
            if not own.replayed:
                text = "the capture has run nothing yet, and its result is read here"
                failure = BY_ID["not-executed"].failure(text, place.frame_in(own.begun))
                line = failure.frame.text if failure.frame is not None else ""
                fix = f"before  {line}\nafter   g.replay() ahead of this line: a capture runs nothing"
                pending.append(replace(failure, fix=fix))
            elif (spoiled := own.spoiled or self.order.written_over(own)) is not None:
                self.misread.append(self.order.read_late(own, spoiled, self.regions or ()))
        unnamed = [t for t in tensors if not any(storage_key(t) in own.memory for own in self.known.values())]
        self.misread += self.order.read_unnamed(unnamed, self.known.values(), self.written, self.regions or ())
        return pending

    def computed(self, pending: list[Failure], result: Any, written: list[torch.Tensor]) -> None:
        """It has computed this, and has written to tensors of before the call."""
        made = result if isinstance(result, (list, tuple)) else (result,)
        kept = [t for t in written if not any(storage_key(t) in own.memory for own in self.known.values())]
        if kept or any(not isinstance(each, torch.Tensor) or each.device.type != self.device for each in made):
            self.misread += pending
        else:
            self.unexecuted.computed(pending, made)

    def wrote(self, tensors: Iterable[torch.Tensor], place: Place) -> None:
        """An operation outside of all captures writes to these."""
        for tensor in tensors:
            self.held.wrote(storage_key(tensor))
            self.between.wrote(storage_key(tensor))
            self.order.wrote(storage_key(tensor))
            self.behind.wrote(storage_key(tensor), place)
            self.writes_seen += 1
            self.written[storage_key(tensor)] = self.writes_seen
            for own in self.known.values():
                own.wrote(tensor, storage_key(tensor))

    def around(self) -> Iterator[Failure]:
        """What was seen between replays: streams without order, results that are kept, batches that fill a part."""
        yield from [*self.unordered.problems, *self.unordered.hosts.problems]
        given = {key for own in self.known.values() for key in own.reads if not own.by_torch} & self.written.keys()
        yield from self.kept.failures(self.filled_by_all(), among(given))
        yield from self.behind.failures()
        yield from self.filled_in_part()
        yield from self.between.failures()
        yield from [*self.states.failures(), *self.learned.failures()]
        yield from self.samples.failures()

    def with_held(self, told: list[Failure]) -> list[Failure]:
        """The same, and places of the program's that held what graphs read, and hold something else at a replay."""
        told = without_given(self.passed, told)
        told = [*told, *passed_on(self.passed, self.device, told), *self.called.failures()]
        files = {region.code.co_filename for region in self.launched_regions()}
        told = told_where_kept(told, READ, files)
        in_loops = [f for file in files for f in told_in_loops(file, self.ran)]
        more = [*self.held.failures(self.ran, told), *in_loops]
        if any(f.code == "output-alias" for f in told) and not self.kept.late:
            told = self.order.without_kept(told)
        frames, places = {f.frame for f in more}, [f.message.partition(" has other")[0] for f in more]
        tables = {word for place in places if "[" in place for word in re.findall(r"\w+", place.partition("[")[0])}
        kept = []
        for f in told:
            of_table = f.frame is not None and not tables.isdisjoint(re.findall(r"\w+", f.frame.text))
            same = f.frame in frames and f.code in ("stale-input", "output-alias")
            if not same and not (of_table and f.code in ("freed-input", "output-alias")):
                kept.append(f)
        return [*kept, *more, *self.fed.failures([*kept, *more])]

    def filled_in_part(self) -> Iterator[Failure]:
        """Batches of which a replay computes more rows than they have."""
        read = {use.text for region in self.regions or () if region.values for use in region.values.uses}
        return self.filled.failures({name for region in self.regions or () for name in assigned(region.body)}, read)

    def returned(self, result: Any, stay: Collection[int] = ()) -> None:
        """A call that is examined gives this back; ``stay``: parameters whose gradients are not put back."""
        self.states.returned()
        self.between.returned(stay)
        self.unordered.hosts.returned(result, self.unordered.order)
        exchanged_in([r for r in self.launched_regions() if self.known[id(r.graph)].before])  # others may come anew
        self.misread += [*self.graphed.read(tensors_in(result)), *self.unexecuted.ended(), *self.samples.ended()]
        waiting = (own for own in self.known.values() if not own.replayed and not own.by_torch)
        made = {id(own.graph): own.memory.keys() - self.written.keys() for own in waiting}
        self.early.returned(tensors_in(result), made, self.regions or ())
        self.fed.returned(result, self.memory(), self.device)
        self.carried.update(map(storage_key, tensors_in(result)))
        self.kept.ended(result, self.filled_by_all())

    def viewed(self, name: str, tensors: list[torch.Tensor], result: Any, place: Place) -> None:
        """An operation gives another look at a tensor."""
        self.graphed.saw(name, tensors, result, any(map(is_of_graphs, place.files)))

    def copied(self, tensors: list[torch.Tensor], place: Place) -> None:
        """An argument is copied to the sample of what torch has graphed, which takes it also where it is smaller."""
        self.behind.callers.copied(tensors)
        if len(tensors) == 2 and tensors[0].shape != tensors[1].shape and any(map(is_of_graphs, place.files)):
            given, sample = (str([*t.shape]) for t in reversed(tensors))
            text = f"an argument of shape {given} is spread over the sample of shape {sample}, and so is the result"
            self.misread.append(BY_ID["graphed-shape"].failure(text, place.frame()))

    def launched(self, graph: object, place: Place, stream: int) -> None:
        """A graph is replayed, on a stream."""
        if (one := self.known.get(id(graph))) is None:
            return
        if one.by_torch:
            self.misread += self.graphed.launched(graph, place)
            self.warmed.graphed(graph, self.regions or (), one.before)
            if self.keeps or self.stands_in:
                self.learned.launched(graph, one.writes, place)
        else:
            self.between.launched(graph, self.flow.is_fed(graph), place, self.ran)
            self.states.launched(graph, place)
            self.flow.launched(graph)
            self.warmed.launched(graph, self.regions or (), one.before)
            self.unordered.launched(stream, one.inputs(), one.memory, place)
            self.behind.launched(graph, one.reads, {*one.memory, *self.flow.filled(graph)}, place)
            self.unordered.hosts.launched(one.hosts, self.unordered.order.latest(stream), place)
            takes = one.of_others - self.flow.overwritten(graph) - self.written.keys()
            self.misread += self.order.ahead(one, self.known.values(), takes, place)
            made = [own for own in self.known.values() if own.before and not own.launched and own is not one]
            makers = [(own.graph, own.reads) for own in made if not own.memory.keys().isdisjoint(one.reads)]
            self.misread += self.order.launched(graph, one.begun, makers, place)
            lost = self.order.lost(one, self.known.values(), self.flow.overwritten(graph), self.written, place)
            self.misread += [with_pools_of_their_own(each, self.regions or (), one.begun) for each in lost]
            self.misread += holding_nothing(graph, self.regions or ()) if one.empty else []
            with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                self.held.launched(graph, None if one.before else one.sources(), self.device, place)
                self.fed.launched(one, self.regions or (), self.flow.written(graph), place)
        self.looked_at(graph)
        if self.regions is not None:
            self.samples.launched(graph, place, one.before)
            self.filled.launched({key: one.ends.get(key, 0) for key in one.reads}, one.memory.keys())
        self.order.over(one, self.known.values(), place)

    def _is_filled(self, keys: Collection[int]) -> bool:
        """Whether graphs that were replayed write all of some memory."""
        return set(keys) <= set[int]().union(*(self.flow.written(g.graph) for g in self.known.values() if g.launched))

    def _is_spoiled(self, tensor: torch.Tensor) -> bool:
        """Whether another graph of its pool was replayed since, and has written over a result."""
        return any(own.spoiled is not None and storage_key(tensor) in own.memory for own in self.known.values())

    def read_and_written(self, graph: object, keeper: Keeper | None = None) -> tuple[Collection[int], Collection[int]]:
        """Memory from outside that a graph reads, and what it writes of all memory, of which states are kept."""
        self.flow.keep(graph, keeper)
        return getattr(self.known.get(id(graph)), "reads", ()), self.flow.written(graph)

    def looked_at(self, graph: object) -> None:
        """The same, as far as it is known what it reads, and what was kept of it."""
        if (one := self.known.get(id(graph))) is None:
            return
        if self.regions is not None:
            with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                self.numbers.launched(graph, self.device)
                self.passed.launched(graph)
                self.called.launched(graph)
                self._look(graph)
                owns, reads, hosts = self._filled_by(one), among(one.reads), self.unordered.hosts
                moved = self.flow.written(graph).union(*(r.writes for r in self.regions if r.graph is graph))
                self.kept.look(id(graph), owns, not one.replayed, self._is_spoiled, reads, moved, hosts.times)
        one.replayed, one.launched, one.spoiled = True, True, None
        one.at = self.writes_seen

    def _look(self, graph: object) -> None:
        """Whether what the lines of its capture read is still the same."""
        known = [(r, r.values) for r in self.regions or () if r.values is not None]
        for region, values in known:
            if region.graph is graph:
                same_line = ((r.code, r.line) == (region.code, region.line) for r, _ in known)
                others = [v for (_, v), same in zip(known, same_line, strict=True) if same and v is not values]
                with region.as_now():
                    values.look(others)
                    own = self.known[id(graph)]
                    note_fed_elsewhere(values, own.reads, {k for k, at in self.written.items() if at > own.at})

    def lost(self, graph: object) -> Iterator[Failure]:
        """Lines of a graph that is replayed now whose tensors are gone."""
        own, unowned = self.known.get(id(graph)), self.states.unowned(graph)
        reads = own.reads if own is not None and not (own.by_torch or own.before) else {}
        kept = set(own.of_others) if own is not None else set()
        if not self.stands_in:  # gradients are as before each call: the next one has others
            kept.update(key for r in self.regions or () if r.graph is graph for key in r.gradients)
        gone = [(at, place, key) for key, (ref, place, at) in reads.items() if ref.expired() and key not in kept]
        gone = [each for each in gone if self.stands_in or each[2] in unowned or not is_put_back(each[1])]
        moved = [m for r in self.regions or () if r.values and r.graph is graph for m in r.values.moved.values()]
        told = {each.then[1] for each in moved if each.then[0] == "memory"} | self.held.gone  # another has its name now
        lines = [(place.frame(), key) for at, place, key in gone if at not in told]
        if own is not None and not own.by_torch:  # torch keeps what it is given to graph
            lines += [(frame, -at) for at, frame in own.freed if at not in told]
        region = next((region for region in self.regions or () if region.graph is graph), None)
        yield from gone_at(lines, region, own.called if own is not None else {})

    def never_read(
        self,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        by_name: Mapping[str, Any],
        first: set[int],
        later: set[int],
        at: Place,
        told: Iterable[Failure],
    ) -> list[Failure]:
        """Arguments that the call with the capture has read, and that later calls, which only replay, have not.

        Where as many are told already, at the lines that give them another name, nothing is left to say.
        """
        args, kwargs = given
        captured = [own.reads for own in self.known.values() if not own.before]
        taken = first.union(*captured) if captured else set[int]()  # what no call captures is no graph's
        named = [(f"argument {i + 1}", value) for i, value in enumerate(args)] + list(kwargs.items())
        ignored = [
            name
            for name, value in named
            if any(storage_key(tensor) in taken - later - {0} for tensor in tensors_in(value))
        ]
        if not ignored and not any(f.code == "stale-input" for f in told):
            before = [r for r in self.launched_regions() if self.known[id(r.graph)].before and not r.of_torch]
            seen = first | later | self.carried | self.written.keys()
            old = [own for own in self.known.values() if own.before and own.launched]
            lies = {at for own in old for at in own.touched}, {at for own in old for at, _ in own.freed}
            return [*unread(before, by_name, seen, self.device, at)] or captured_alone(named, seen, *lies, at, before)
        if sum(f.code == "stale-input" for f in told) >= len(ignored):
            return []
        gone = (f for own in self.known.values() if own.launched for f in self.lost(own.graph))
        called = {said: name for said, value in named for name, each in by_name.items() if each is value}
        return [not_read(ignored, at, self.launched_regions(), gone, called)]

    def launched_regions(self) -> list[Region]:
        """The captures whose graphs were replayed: those of other objects of the file are nobody's here."""
        return [region for region in self.regions or () if self.known[id(region.graph)].launched]

    def memory(self) -> set[int]:
        """What the graphs read, and what they make."""
        return set[int]().union(*(own.reads.keys() | own.made for own in self.known.values()))

    def lies_elsewhere(self) -> bool:
        """Whether what they read has other memory behind the last replay, which none has shown therefore."""
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            return any(r.values.lies_elsewhere() for r in self.launched_regions() if r.values is not None)
        return False

    def has_others(self, graphs: Iterable[object]) -> bool:
        """Whether a graph was replayed that is none of these, nor of a region that torch has captured."""
        known = {id(graph) for graph in (*graphs, *(g for r in self.regions or () for g in r.of_torch))}
        rest = (own for key, own in self.known.items() if key not in known and own.launched)
        return any(own.before or not own.by_torch for own in rest)

    def writes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is memory that one of them writes."""
        return any(own.writes(tensor) for own in self.known.values())

    def _filled_by(self, *graphs: OneGraph) -> Callable[[torch.Tensor], bool]:
        """Whether a tensor is memory that graphs write: what they have made, or a buffer that was there before."""
        filled = set[int]().union(*(self.flow.filled(own.graph) | own.filled for own in graphs if not own.by_torch))

        def is_filled(tensor: torch.Tensor) -> bool:
            is_buffer = storage_key(tensor) in filled and not is_a(tensor, torch.nn.Parameter)
            return is_buffer or any(own.writes(tensor) for own in graphs) or self.unordered.hosts.fills(tensor)

        return is_filled

    def filled_by_all(self) -> Callable[[torch.Tensor], bool]:
        """Whether a tensor is memory that any of them writes."""
        return self._filled_by(*self.known.values())

    def adds_to(self, region: Region, learning: Iterable[torch.Tensor]) -> bool:
        """Whether the graph of a capture adds to gradients that were there before: it has not made them."""
        own = self.known[id(region.graph)]
        if own.before:
            there = own.loses or any(p.grad is not None and not self.writes(p.grad) for p in learning)
            return there and not own.by_torch
        return not own.by_torch and not region.gradients.isdisjoint(own.reads)

    def owns(self, result: Any) -> bool:
        """Whether something in a result is memory that a graph writes."""
        made = set[int]().union(*(own.made for own in self.known.values()))
        return any(storage_key(each) in made or self.writes(each) for each in results_in(result))
