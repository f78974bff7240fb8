"""Gradients that a graph makes and an optimizer outside of it steps with: seen while a program runs.

A graph writes to the gradients of its capture. Where they are set to None, or are others, a step finds none of what the
replays have computed; and where the capture has made them, each replay writes over the one before.
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.around_replays import gradients_nulled, keeps
from paramgraph_kit.doctor.observe.bare_steps import BareSteps
from paramgraph_kit.doctor.observe.cleared import gradients_given
from paramgraph_kit.doctor.observe.held import parameters_at
from paramgraph_kit.doctor.observe.learning import ZEROS, learning
from paramgraph_kit.doctor.observe.own_regions import Region, graphs_at
from paramgraph_kit.doctor.observe.places import Place, line_of
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Failure

_TITLE = "Gradients that are to add up are written over"
_GIVES = "it gives gradients other tensors, and the graph goes on stepping with those of its capture"
_NULLS = "it sets gradients to None that the graph goes on writing to"
_OVER = "a step uses what {} replays are to add up, and each of them writes over the one before"


@dataclass(slots=True)
class _Learned:
    """The gradients that one graph writes, and what has become of them since its latest replay."""

    region: Region
    codes: list[CodeType]
    made: frozenset[int]  # those that it makes anew
    keys: dict[int, int]  # the memory of gradients, by that of the parameters
    parameters: list[Any]  # weak references to these
    held: list[Any]  # the same to memory, which keep a key from being given to somebody else
    pending: dict[int, int] = field(default_factory=dict)  # by parameter: its gradient's memory at the replay, or 0
    replays: int = 0  # since somebody has used, or cleared, what they make
    over: int = 0  # uses of what several replays were to add up
    once: int = 0  # uses of what one has made
    most: int = 0
    begun: int = 0  # calls of zero_grad() ahead of its capture
    nulled: bool = False  # a line is told that sets them to None
    put_back: bool = False  # gradients are as before its capture: a later call found them so
    stepped: dict[int, Place] = field(default_factory=dict)  # parameters that a step of this call moves, and where


class GradientsBetween:
    """What becomes of the gradients of graphs between their replays and the steps of optimizers."""

    def __init__(self) -> None:
        self.has_learned = False  # there was a backward pass, or an optimizer's step
        self.may_learn: Callable[[], bool] = lambda: True  # where there was none
        self._known: dict[int, _Learned] = {}
        self._latest: dict[int, _Learned] = {}  # by the memory of a parameter
        self._zeroed: dict[int, tuple[int, Place]] = {}  # the same, which zero_grad() was called last, and where
        self._zeroes = self._begun = 0  # calls of zero_grad(), and those ahead of the latest capture
        self._captured: list[_Learned] = []  # in this call
        self._left_there: list[Any] = []  # weak references to parameters whose gradients of before these write
        self._stepped: set[int] = set()  # parameters whose step the capture has that is under way
        self._read: dict[int, list[tuple[Any, int, Any]]] = {}  # parameters, and the gradients that a graph steps with
        self._nulled: dict[tuple[CodeType, int], Failure] = {}
        self.bare = BareSteps()

    def begin(self) -> None:
        """A capture begins."""
        self._stepped, self._begun = set(), self._zeroes

    def ended(
        self,
        graph: object,
        region: Region,
        codes: list[CodeType],
        made: Collection[int],
        added: set[int],
        asked: Collection[int] = (),
        writes: Collection[int] = (),
    ) -> None:
        """A capture has ended well; it has made these tensors, and added to these gradients of before.

        ``asked``: memory of before that it reads as others have left it, as an optimizer alone reads gradients.
        ``writes``: memory of before that it writes, to add to it or not.
        """
        written: dict[torch.Tensor, torch.Tensor] = {}
        read: dict[torch.Tensor, torch.Tensor] = {}
        learn = learning() if self.has_learned or self.may_learn() else ()
        for parameter, grad in ((p, p.grad) for p in learn if p.grad is not None):
            key, gradient = storage_key(parameter), storage_key(grad)
            if gradient in writes:
                self._left_there.append(weakref.ref(parameter))
            if key not in self._stepped and (gradient in made or gradient in added):
                written[parameter] = grad
            elif key in self._stepped and gradient in asked and gradient not in added:
                read[parameter] = grad
        self.adopt(graph, region, codes, written, read, made)
        self._stepped = set()
        if (own := self._known.get(id(graph))) is not None:
            own.begun = self._begun
            self._captured.append(own)

    def adopt(
        self,
        graph: object,
        region: Region,
        codes: list[CodeType],
        written: Mapping[torch.Tensor, torch.Tensor],
        read: Mapping[torch.Tensor, torch.Tensor],
        made: Collection[int],
    ) -> None:
        """A graph writes these gradients, or reads what others write there; ``made``: memory of its own."""
        own = _Learned(region, codes, frozenset(made), {}, [], [])
        for parameter, grad in written.items():
            own.keys[storage_key(parameter)] = storage_key(grad)
            own.parameters.append(weakref.ref(parameter))
            own.held += [storage_ref(t.untyped_storage()) for t in (parameter, grad)]
        if own.keys:
            self._known[id(graph)] = own
        self._read.pop(id(graph), None)
        if read:
            self._read[id(graph)] = [
                (weakref.ref(p), storage_key(g), storage_ref(g.untyped_storage())) for p, g in read.items()
            ]

    def launched(self, graph: object, anew: bool, place: Place, ran: Collection[CodeType] = ()) -> None:
        """A graph is replayed; ``anew``: with other inputs than at its latest replay; ``ran``: functions that have."""
        self._steps_with(graph, place, ran)
        self.bare.launched(graph)
        if (own := self._known.get(id(graph))) is None:
            return
        own.replays += 1 if anew or not own.replays else 0
        for parameter in (p for ref in own.parameters if (p := ref()) is not None):
            key = storage_key(parameter)
            own.pending[key] = storage_key(parameter.grad) if parameter.grad is not None else 0
            self._latest[key] = own

    def used(self, keys: Collection[int]) -> None:
        """Something outside of all captures reads this memory."""
        for own in self._known.values():
            if own.replays and not own.made.isdisjoint(keys) and not {*own.keys.values()}.isdisjoint(keys):
                self._use(own)

    def wrote(self, key: int) -> None:
        """Something outside of all captures writes to this memory."""
        for own in self._known.values():
            if own.replays and key in own.keys.values():
                own.replays = 0
            for parameter, gradient in [*own.pending.items()]:
                if key == gradient and key != own.keys[parameter]:
                    del own.pending[parameter]  # another one has its numbers now

    def zeroes(self, owner: Any, place: Place) -> None:
        """zero_grad() of an optimizer, or of a module, is about to run outside of all captures."""
        self._zeroes += 1
        for parameter in parameters_at(owner):
            key = storage_key(parameter)
            self._zeroed[key] = self._zeroes, place
            if (own := self._latest.get(key)) is not None:
                own.pending.pop(key, None)
                own.replays = 0

    def steps(self, optimizer: torch.optim.Optimizer, place: Place, captured: bool) -> None:
        """step() is about to run."""
        if captured:
            self._stepped |= {storage_key(p) for p in parameters_at(optimizer)}
            return
        self.bare.steps(optimizer, place)
        used = {}
        for parameter in parameters_at(optimizer):
            key = storage_key(parameter)
            own = self._latest.get(key)
            if own is None or (then := own.pending.pop(key, None)) is None:
                continue
            now = storage_key(parameter.grad) if parameter.grad is not None else 0
            if now == own.keys[key]:
                used[id(own)] = own
                own.stepped[key] = place
            elif not now or now == then:
                others = any(now in each.keys.values() for each in self._known.values() if each is not own)
                zeroed = self._zeroed_behind(own, key)
                if own.put_back and (zeroed is None or _nulling(zeroed) is None):
                    continue
                used[id(own)] = own
                self._tell(own, zeroed if not (now and others) else None, place)
        for own in used.values():
            self._use(own)

    def leaves(self) -> None:
        """A call has ended, and gradients are still as it leaves them."""
        for own in self._known.values():
            if not own.put_back and not any(own is each for each in self._captured):
                self._left(own)

    def breaks_off(self) -> None:
        """A call has raised: often as gradients are None that a graph of it went on writing to, ahead of any step."""
        for own in self._known.values():
            for key in (key for key, held in own.pending.items() if not held):
                zeroed = self._zeroed_behind(own, key)
                if zeroed is not None and (found := _nulling(zeroed)) is not None:
                    self._nulled[found[0], found[1].lineno] = gradients_nulled(found[1], found[0])
                    break

    def captured(self) -> list[torch.Tensor]:
        """Parameters whose gradients graphs write that were captured in this call."""
        every = [*(ref for own in self._captured for ref in own.parameters), *self._left_there]
        return [*{id(p): p for p in (ref() for ref in every) if p is not None}.values()]

    def returned(self, stay: Collection[int]) -> None:
        """A call is over, and the next one finds gradients as they were; ``stay``: those of these parameters stay."""
        for own in self._known.values():
            own.stepped.clear()
            own.pending.clear()
            own.replays = 0
        for own in self._captured:
            own.put_back = any(p is not None and id(p) not in stay for p in (ref() for ref in own.parameters))
        self._captured, self._left_there = [], []
        self.bare.returned()

    def _left(self, own: _Learned) -> None:
        """What a call leaves of the gradients that a graph of before writes, and that it has stepped with itself."""
        for parameter in (p for ref in own.parameters if (p := ref()) is not None and p.grad is None):
            if (place := own.stepped.get(storage_key(parameter))) is None or (user := place.user) is None:
                continue
            zeroed = self._zeroed_behind(own, storage_key(parameter))
            if not any(not after.endswith(".zero_()") for _, after in gradients_given(user[0])):
                if zeroed is not None and (found := _nulling(zeroed)) is not None:
                    self._nulled[found[0], found[1].lineno] = gradients_nulled(found[1], found[0])
                else:
                    self._tell_given((user[0],), _NULLS)
                return

    def _zeroed_behind(self, own: _Learned, parameter: int) -> Place | None:
        """Where zero_grad() was called last behind its capture, if so."""
        number, place = self._zeroed.get(parameter, (0, None))
        return place if number > own.begun else None

    def failures(self) -> Iterator[Failure]:
        """All that was seen."""
        yield from {**self.bare.told, **self._nulled}.values()
        for own in self._known.values():
            if own.over and not own.once and not own.made.isdisjoint(own.keys.values()):
                yield from _written_over(own)

    def _use(self, own: _Learned) -> None:
        if own.replays > 1:
            own.over += 1
            own.most = max(own.most, own.replays)
        else:
            own.once += own.replays
        own.replays = 0

    def _steps_with(self, graph: object, place: Place, ran: Collection[CodeType]) -> None:
        """A graph is replayed that steps with gradients which others make: are they where it reads them?"""
        for ref, then, _ in self._read.get(id(graph), ()):
            parameter = ref()
            now = storage_key(parameter.grad) if parameter is not None and parameter.grad is not None else 0
            by_graphs = any(then in each.keys.values() for each in self._known.values())  # which goes on writing there
            if parameter is not None and now != then and not by_graphs:
                self._tell_read(self._zeroed.get(storage_key(parameter), (0, None))[1], place)
                return
            if now and now != then and self._given_behind(storage_key(parameter), then, now):
                self._tell_read(None, place, ran)
                return

    def _given_behind(self, parameter: int, then: int, now: int) -> bool:
        """Whether a parameter was given another gradient behind the replay that makes its own, ahead of the step."""
        own = self._latest.get(parameter)
        if own is None or own.keys.get(parameter) != then or own.pending.get(parameter, now) == now:
            return False
        return not any(now in each.keys.values() for each in self._known.values())

    def _tell_read(self, zeroed: Place | None, launch: Place, ran: Collection[CodeType] = ()) -> None:
        text = "it sets gradients to None, and the graph goes on stepping with the tensors of its capture"
        if zeroed is not None and (found := _nulling(zeroed)) is not None:
            code, node = found
            self._nulled[code, node.lineno] = replace(gradients_nulled(node, code), message=text)
        elif (user := launch.user) is not None and not self._tell_given((user[0], *ran), text, _GIVES):
            frame = launch.frame()
            text = "parameters have other gradients by now, and this graph steps with the tensors of its capture"
            before = frame.text if frame is not None else "g.replay()"
            after = (
                "the gradients stay the tensors that were there at the capture: where one is set to None, or is given "
                "another tensor, it is `p.grad.zero_()`, or `p.grad.copy_(...)`, in its place"
            )
            told = BY_ID["gradients-rebound"].failure(text, frame)
            self._nulled[user[0], line_of(*user)] = replace(told, fix=f"before  {before}\nafter   {after}")

    def _tell_given(self, codes: Iterable[CodeType], nulls: str, others: str = "") -> bool:
        """Tell of the one line of functions that sets gradients to None, or gives them other tensors, if so."""
        own = (code for code in dict.fromkeys(codes) if not is_library(code.co_filename))
        given = [(code, *each) for code in own for each in gradients_given(code)]
        if len(given) != 1 or not (text := nulls if given[0][2].endswith(".zero_()") else others):
            return False
        code, node, after = given[0]
        told = BY_ID["gradients-rebound"].failure(text, frame_at(code, node.lineno))
        self._nulled[code, node.lineno] = replace(told, fix=f"before  {ast.unparse(node)}\nafter   {after}")
        return True

    def _tell(self, own: _Learned, zeroed: Place | None, step: Place) -> None:
        if zeroed is not None and (found := _nulling(zeroed)) is not None:
            code, node = found
            self._nulled[code, node.lineno] = gradients_nulled(node, code)
            own.nulled = True
            return
        if own.nulled or (user := step.user) is None or self._tell_given((user[0],), _NULLS):
            return  # no later step finds any, either
        line = line_of(*user)
        frame = step.frame()
        text = "this step finds other gradients than those that the graph writes, or none"
        told = BY_ID["gradients-rebound"].failure(text, frame)
        shown = frame.text if frame is not None else ""
        self._nulled[user[0], line] = replace(told, fix=f"before  {shown}\nafter   {_given_back(own, shown)}")


def _nulling(zeroed: Place) -> tuple[CodeType, ast.Call] | None:
    """The user's call that sets gradients to None there."""
    code, at = zeroed.user or (None, 0)
    for node in nodes_of(code) if code is not None else ():
        if code is None or not isinstance(node, ast.Call) or last_name(node.func) != "zero_grad" or keeps(node):
            continue
        if node.lineno <= line_of(code, at) <= (node.end_lineno or 0):
            return code, node
    return None


def _given_back(own: _Learned, step: str) -> str:
    """Words for a step that finds other gradients than those of the latest replay."""
    if own.made.isdisjoint(own.keys.values()):
        return (
            "the gradients stay the tensors that the graph adds to: once there are some, `p.grad.zero_()` where one is "
            "set to None"
        )
    graph = (graphs_at(own.region) or ["g"])[-1]
    path = step.partition(".step(")[0] if step.endswith(".step()") and "scaler" not in step else "opt"
    each = f"for group in {path}.param_groups for p in group['params']"
    return (
        f"each graph writes to the gradients of its own capture: right behind that `{graph}.grads = [p.grad {each}]`, "
        f"and behind its replay, ahead of this line, `for p, grad in zip([p {each}], {graph}.grads): p.grad = grad`, "
        "by the names that the graph and the optimizer have there"
    )


def _written_over(own: _Learned) -> Iterator[Failure]:
    """What is told at the backward pass of a graph that makes its gradients anew."""
    region = own.region
    nodes = [(region.code, n) for s in region.body for n in ast.walk(s)]
    for code, node in (*nodes, *((c, n) for c in own.codes for n in nodes_of(c))):
        if isinstance(node, ast.Call) and last_name(node.func) == "backward":
            line, count = ast.unparse(node), len(own.keys)
            after = (
                f"the same, and right before the capture the {count} parameters that it reaches have gradients, to "
                f"which it adds then: `p.grad = {ZEROS}` for each; each `zero_grad()` behind that is "
                "`zero_grad(set_to_none=False)`"
            )
            failure = BY_ID["gradients-accumulate"].failure(_OVER.format(own.most), frame_at(code, node.lineno))
            yield replace(failure, title=_TITLE, fix=f"before  {line}\nafter   {after}")
            return


def is_put_back(place: Place) -> bool:
    """Whether it is gradients, or what optimizers keep, which are as before each call: the next one has others."""
    return place.in_backward or any("/torch/optim/" in file for file in place.files)
