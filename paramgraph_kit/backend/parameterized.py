"""``pgk.parameterize``: a function or module, traced once by AOTAutograd and launched from graphs at any addresses.

One aten operation is one kernel, the one that eager runs, forward and backward: the graphs of ``fx`` in the place of
Inductor's. (Tracing takes torch's own batch normalization where eager takes cuDNN's: the last bits may differ.)
All that a trace may depend on is in its key: arguments, torch's switches, and the state that the function reads.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.backend import call_state
from paramgraph_kit.backend.call_state import attributes_of, version_of
from paramgraph_kit.backend.direct.calls import DirectCall
from paramgraph_kit.backend.direct.located import MISSED
from paramgraph_kit.backend.direct.once import say_once
from paramgraph_kit.backend.direct.parts import Parts
from paramgraph_kit.backend.flat import Flat, discard, trace_flat, why_not
from paramgraph_kit.backend.frozen.alike import Alike
from paramgraph_kit.backend.functions import Torchs
from paramgraph_kit.backend.lies_apart import LiesApart
from paramgraph_kit.backend.plain import flatten
from paramgraph_kit.backend.reads.code import Ran
from paramgraph_kit.backend.registry import CompiledGraph
from paramgraph_kit.backend.running import Running, running
from paramgraph_kit.backend.state import State
from paramgraph_kit.driver.collection import everything
from paramgraph_kit.driver.host_random import put_back, state_of
from paramgraph_kit.driver.native.build import prepare
from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.spread import BEYOND_NUMBERS, Apart, beyond, distance
from paramgraph_kit.driver.tensors import same_bits
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import Options
from paramgraph_kit.partition.names import argument_names
from paramgraph_kit.trace.errors import DeviceMismatchError, RefusedError, UnsupportedError
from paramgraph_kit.trace.model import Reason

_one_trace = threading.RLock()  # at a time; launches do not wait for it
_tracing = threading.local()
MAX_TRACES = 16  # of one callable: a number that changes with every call must not trace for ever
_STATES = 4  # that are remembered: what changes back and forth need not be found again
_ALIKE = 8  # calls that others are compared with
_PASSES = 4  # of one trace, until no code runs that was not looked into before
torch_name("keep_dynamo_out")("paramgraph_kit.backend")  # called in compiled code, it stays outside


_FAILED = object()
_MISTAKES = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError)  # of an operation; no lack of memory


@dataclass(slots=True)
class _Traced:
    """One trace: what runs, how its results are put together, and its graphs, which the registry holds weakly."""

    run: DirectCall
    root: Flat
    graphs: list[CompiledGraph]
    writes: bool  # into an input
    parts: Parts | None  # of its backward
    calls: int = 0  # that were asked to be compared
    proved: bool = False  # has run once

    def follow(self, made: Sequence[Any]) -> None:
        """Let the backward through what a call has made be as eager's would be."""
        if self.parts is not None:
            self.parts.heed(made, self.run.differentiable)
        say_once(made)


class _Known(Alike):
    """A call whose trace is known, or that has none."""

    def __init__(self, state: State, leaves: Sequence[Any], spec: pytree.TreeSpec, traced: _Traced | None) -> None:
        super().__init__(state, leaves, spec, writes=traced is None or traced.writes)
        self.traced = traced


class Parameterized:
    """Callable in the place of a function or module, which is ``__wrapped__``; made by ``pgk.parameterize``.

    Copying or pickling it copies what it wraps; the copy traces anew. Two threads may call it.
    """

    _paramgraph_owner = True  # its graphs name it as their owner: how a report finds them

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        self._fn = fn
        self._options = options
        prepare()
        self._late: list[Any] = []  # functions that ran, though no name led to them
        self._ran: set[types.CodeType] | None = None
        self._torchs = Torchs()  # of torch's what ran
        self._states: list[State] = []  # the last ones
        self._modules: tuple[int, ...] | None = None
        self._specs: list[pytree.TreeSpec] = []
        self._traces: dict[Any, _Traced | None] = {}
        self._alike: list[_Known] = []  # calls that others may be like, the last found first
        self._absent: set[str] = set()  # attributes that no input had when it was asked for them
        self._refused: list[CompiledGraph] = []
        self._never: RefusedError | None = None  # why it must not even be traced
        functools.update_wrapper(self, fn, updated=())

    def __repr__(self) -> str:
        name = getattr(self._fn, "__name__", type(self._fn).__name__)
        return f"Parameterized({name}, {sum(t is not None for t in self._traces.values())} traces)"

    def __reduce__(self) -> Any:
        return Parameterized, (self._fn, self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, from graphs where there are any."""
        if getattr(_tracing, "now", False) or call_state.is_heard():  # in another trace it is a part of that
            return self._fn(*args, **kwargs)
        for alike in self._alike:
            result = alike.call(args, kwargs)
            if result is not MISSED:
                return result
        traced, tensors, known = self._find(args, kwargs)
        if traced is None:
            for state in self._states[:1]:
                state.members.wait()
            return self._fn(*args, **kwargs)
        if self._options.verify != "off" and not traced.writes and not driver().is_capturing():
            return self._compared(traced, tensors, args, kwargs)
        made = traced.run(*tensors) if traced.proved else self._proved(traced, tensors)
        if made is _FAILED:
            return self._instead(traced, args, kwargs)
        traced.follow(made)
        result = traced.root.results(made)
        if known is not None and self._options.verify == "off":
            known.freeze(traced.run, args, kwargs, made, result)
        return result

    def _compared(
        self, traced: _Traced, tensors: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The same, beside the function as it is: its own Python has the last word, not what was traced of it."""
        target, traced.calls = driver(), traced.calls + 1
        if self._options.verify == "first" and traced.calls > 2:
            made = traced.run(*tensors)
            traced.follow(made)
            return traced.root.results(made)
        state, position = target.random_state(), target.random_position()
        own = [(generator, generator.get_state()) for each in self._states[:1] for generator in each.on_device]

        def same_numbers() -> None:
            if target.random_position() != position:
                target.set_random_state(state)
            for generator, then in own:
                generator.set_state(then)

        made = traced.run(*tensors) if traced.proved else self._proved(traced, tensors)
        if made is _FAILED:
            return self._instead(traced, args, kwargs)
        traced.follow(made)
        found = traced.root.results(made)
        same_numbers()
        expected = self._fn(*args, **kwargs)
        ours, theirs = pytree.tree_leaves(found), pytree.tree_leaves(expected)
        away = _apart(ours, theirs)
        if not away:
            return found

        def again() -> dict[int, Apart]:
            same_numbers()
            return _apart(pytree.tree_leaves(self._fn(*args, **kwargs)), theirs)

        after = target.random_state()
        sure = beyond(away, again)
        if target.random_position() != position:
            target.set_random_state(after)
        if not sure:  # sums in no fixed order
            return expected
        self._give_up(traced)
        text = (
            "a call gave other bits than the function itself, whose result was returned: it runs as it is from now on"
        )
        self._note(Reason("verify-mismatch", text))
        return expected

    def _proved(self, traced: _Traced, tensors: Sequence[torch.Tensor]) -> Any:
        """What a trace makes in its first run, or _FAILED where it raises and has written nothing."""
        target, versions = driver(), [_writes(x) for x in tensors]
        state, position = target.random_state(), target.random_position()
        try:
            made = traced.run(*tensors)
        except _MISTAKES as error:
            of_the_device = isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError))
            if of_the_device or versions != [_writes(x) for x in tensors]:
                raise
            if target.random_position() != position:
                target.set_random_state(state)
            return _FAILED
        traced.proved = True
        return made

    def _instead(self, traced: _Traced, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function as it is: it raises the user's own mistakes, and where it has none the trace was wrong."""
        result = self._fn(*args, **kwargs)
        self._give_up(traced)
        self._note(Reason("not-traceable", "what was traced of it raises an error, and the function itself does not"))
        return result

    def _give_up(self, traced: _Traced) -> None:
        self._traces = {key: None if known is traced else known for key, known in self._traces.items()}
        self._alike = []

    def trace(self, *args: Any, **kwargs: Any) -> None:
        """Trace for these inputs, running nothing on the device; what cannot be traced is in the report."""
        self._find(args, kwargs)

    def _find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_Traced | None, list[torch.Tensor], _Known | None]:
        """The trace for these arguments, made where there is none, the tensors that it takes, and an earlier call."""
        for known in self._alike:
            if (tensors := known.tensors(args, kwargs)) is not None:
                return known.traced, tensors, known
        leaves, spec = flatten((args, kwargs))
        try:
            if self._never is not None:
                raise self._never
            state = self._state() if self._ran is not None else None
            key = self._key(state, leaves, spec) if state is not None else None
            if state is None or key not in self._traces:
                with _one_trace:
                    state, traced = self._traced_now(leaves, spec)
            else:
                traced = self._traces[key]
        except RefusedError as refusal:
            if self._ran is None and refusal.reason.code == "unknown-state":
                self._never = RefusedError(refusal.reason)  # whose traceback holds nothing
            self._note(refusal.reason)
            if self._options.strict:
                raise
            return None, [], None
        known = _Known(state, leaves, spec, traced)
        tensors = [*state.tensors, *(x for x in leaves if isinstance(x, torch.Tensor))]
        if self._absent:
            known.attributes_of, known.attributes = self._attributes, self._attributes(tensors)
        if state.holds():  # nothing was written between the look and the guard
            # Of the others those that may come again: what the rest refers to would live for ever.
            self._alike = [known, *[each for each in self._alike if each.stands][: _ALIKE - 1]]
        return traced, tensors, None

    def _state(self) -> State:
        """Today's state of what the function reads: one that is known, or found by a new walk."""
        for state in self._states:
            if state.holds():
                state.settle()
                return state
        return self._keep(State([self._fn, *self._late], self._ran, self._torchs))

    def _keep(self, state: State) -> State:
        if self._modules not in (None, state.modules):  # what was traced goes with its modules
            self._traces.clear()
            self._states.clear()
            self._alike = []
        self._modules = state.modules
        self._states = [state, *self._states[: _STATES - 1]]
        state.settle()
        return state

    def _key(self, state: State, leaves: Sequence[Any], spec: pytree.TreeSpec) -> Any:
        number = next((n for n, known in enumerate(self._specs) if known == spec), -1)
        if number < 0:
            number = len(self._specs)
            self._specs.append(spec)  # which not every torch can hash
        values = tuple([call_state.value_key(x) for x in leaves if not isinstance(x, torch.Tensor)])
        if not state.hidden_ids.isdisjoint(map(id, leaves)):
            text = "an argument is a tensor that it may also know by another name: pass it under that one, too"
            raise RefusedError(Reason("hidden-tensor", text))
        given = [x for x in leaves if isinstance(x, torch.Tensor)]
        tensors = [*state.tensors, *given]
        kinds = tuple(map(call_state.tensor_key, tensors))
        if not LiesApart(state.tensors)(given):
            text = "two of its inputs lie in one memory and do not share a storage (DLPack?): give views of one tensor"
            raise RefusedError(Reason("hidden-tensor", text))
        more = call_state.sharing(tensors), self._attributes(tensors)
        return number, values, call_state.switches(), kinds, *more, state.key

    def _attributes(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Which inputs have by now what was looked for in vain."""
        if not self._absent:
            return ()
        own = [(n, sorted(attributes_of(x))) for n, x in enumerate(tensors) if vars(x)]
        return tuple([(n, *(k for k in names if k in self._absent)) for n, names in own])

    def _traced_now(self, leaves: Sequence[Any], spec: pytree.TreeSpec) -> tuple[State, _Traced | None]:
        """Trace, again and again until no code ran whose state was not looked at before."""
        for _ in range(_PASSES):
            state = self._state() if self._ran is not None else State([self._fn], None)
            key = self._key(state, leaves, spec)
            if key in self._traces:  # by another thread, while this one waited for its turn
                return state, self._traces[key]
            if len(self._traces) >= MAX_TRACES:
                text = f"called with more than {MAX_TRACES} sets of shapes and values: keep changing numbers in tensors"
                raise RefusedError(Reason("too-many-traces", text))
            tensors = [*state.tensors, *(x for x in leaves if isinstance(x, torch.Tensor))]
            self._check_devices(tensors, state)
            traced, refusal = None, None
            drawing = [(generator, state_of(generator)) for _, generator in state.generators]
            with running() as ran:
                try:
                    # A call may come from compiled code, where Dynamo would follow us into the compiler.
                    traced = torch.compiler.disable(self._trace)(state, leaves, spec, tensors)  # type: ignore[no-untyped-call]
                except RefusedError as error:
                    refusal = error
                except Exception as error:  # eager has the last word: it raises the user's own mistakes as they are
                    refusal = RefusedError(why_not(error))
                    refusal.__cause__ = error
            known = self._learn(ran)
            drew = _drawn(drawing, known)  # puts back, whatever else there is to say
            refusal = (None if ran.compiled else refusal) or ran.refusal or drew
            if traced is not None and not state.covers(known):
                discard(traced.graphs)
                continue
            self._keep(known)
            if refusal is None or not self._options.strict:
                self._traces[self._key(known, leaves, spec)] = None if refusal is not None else traced
            if refusal is not None:
                discard(traced.graphs if traced is not None else ())
                raise refusal
            return known, traced
        text = "other code runs each time that it is traced"
        raise RefusedError(Reason("not-traceable", text))

    def _learn(self, running: Running) -> State:
        """The state that the code which ran may have read."""
        codes = running.codes
        ran = {*(self._ran or ()), *codes}
        for module in (sys.modules.get(name) for name in sorted(running.imported)):
            if module is not None and not any(each is module for each in self._late):
                self._late.append(module)
        self._torchs.ran |= running.torchs
        if self._ran != ran:  # what is known looked into less
            self._ran = ran
            self._states.clear()
        state = State([self._fn, *self._late], self._ran, self._torchs)
        missed = codes.keys() - state.codes
        if missed:
            functions = _functions_of(missed)
            gone = missed - {each.__code__ for each in functions}
            self._late += [*functions, *(Ran(code, codes[code]) for code in gone)]
            state = State([self._fn, *self._late], self._ran, self._torchs)
        return state

    def _trace(
        self, state: State, leaves: Sequence[Any], spec: pytree.TreeSpec, tensors: Sequence[torch.Tensor]
    ) -> _Traced:
        from paramgraph_kit.backend import new_number

        graphs: list[CompiledGraph] = []
        number, owner = new_number(), weakref.ref(self)

        def new_graph(phase: str) -> CompiledGraph:
            graphs.append(CompiledGraph(f"{phase} {number}", owner=owner, strict=self._options.strict))
            return graphs[-1]

        root = Flat(self._fn, state, leaves, spec)
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        names = [*state.members.unique_names(), *argument_names(self._fn, args, kwargs)]
        # Code that has not run before may write where what ran before does not look.
        wide = state if self._ran is None else State([self._fn, *self._late], None)
        _tracing.now = True
        try:
            with wide.unwritten(), state.unwritten():  # by the backward, too
                run, writes, parts = trace_flat(root, tensors, new_graph, graphs, self._options, number, names)
        finally:
            _tracing.now = False
        root.forget()
        if root.absent:  # calls that are launched at one look do not look for these
            self._absent |= root.absent
            self._alike = []
        return _Traced(run, root, graphs, writes, parts)

    def _check_devices(self, tensors: Sequence[torch.Tensor], state: State) -> None:
        device = driver().device
        if state.tensors and not any(t.device.type == device.type for t in tensors):
            name = state.members.names[0]
            raise DeviceMismatchError(
                f"{name!r} of the parameterized module is on {tensors[0].device}, but graphs are made on {device}: "
                "move model and inputs with .to(paramgraph_kit.device()) first"
            )

    def _note(self, reason: Reason) -> None:
        if not any(reason in graph.reasons for graph in self._refused):
            name = f"parameterized {len(self._refused)}"
            self._refused.append(CompiledGraph(name, owner=weakref.ref(self), reasons=[reason]))


def _writes(x: torch.Tensor) -> Any:
    """How often a tensor was written; AOTAutograd counts one up that has nothing to write to as well."""
    return version_of(x) if x.numel() else x.shape


def _apart(ours: Sequence[Any], theirs: Sequence[Any]) -> dict[int, Apart]:
    """Which of two functions' results differ in any bit, and how far."""
    if len(ours) != len(theirs):
        return {-1: BEYOND_NUMBERS}
    pairs = enumerate(zip(ours, theirs, strict=True))
    return {n: distance(a, b) for n, (a, b) in pairs if not same_bits(a, b)}


def _drawn(drawing: Sequence[tuple[Any, Any]], known: State) -> RefusedError | None:
    """Why not, where tracing has drawn from generators of the user's, which are put back; ``known`` has their names."""
    moved = [(generator, then) for generator, then in drawing if state_of(generator) != then]
    for generator, then in moved:
        put_back(generator, then)
    names = {id(generator): name for name, generator in known.generators}
    name = next((names[id(generator)] for generator, _ in moved if id(generator) in names), None)
    if name is None:
        return None
    text = f"it draws random numbers on the host, from {name}, which a graph would not draw again: draw on the device"
    return RefusedError(Reason("host-random", text))


def _functions_of(codes: Set[types.CodeType]) -> list[types.FunctionType]:
    """The functions that have such code, found among all objects."""
    everything()
    return [each for each in gc.get_objects() if type(each) is types.FunctionType and each.__code__ in codes]


def parameterize(fn: Any, examples: Sequence[Any], options: Options) -> Parameterized:
    """See ``paramgraph_kit.parameterize``."""
    if isinstance(fn, Parameterized) or hasattr(fn, "_torchdynamo_orig_callable") or hasattr(fn, "_orig_mod"):
        name = "parameterize" if isinstance(fn, Parameterized) else "torch.compile"
        raise UnsupportedError(f"parameterize was given what {name} returned: pass the function or module itself")
    made = Parameterized(fn, options)
    if examples:
        made.trace(*examples)
    return made
