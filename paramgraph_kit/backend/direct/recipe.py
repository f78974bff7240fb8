"""What the compiled code of one FX graph does, learnt from a call: one launch, of which inputs, for which outputs.

The code that Inductor writes is a straight line, so what one call handed on, every call hands on. It is learnt by the
identity of objects, never by their values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from paramgraph_kit.backend.registry import CompiledGraph
from paramgraph_kit.driver.tensors import extent
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import Launcher, pausing
from paramgraph_kit.trace.model import Reason

ATTEMPTS = 128  # calls that are watched; a graph that has not shown what it does by then is left as it is


@dataclass(frozen=True, slots=True)
class View:
    """How a tensor lies in the memory of another one; ``offset`` in elements from that one's first."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Made:
    """A value of the graph that is output ``index`` of its launcher, or a view of it."""

    index: int
    view: View | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """A value of the graph that is its input ``index``, or a view of it."""

    index: int
    view: View | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """An output of the graph that is no tensor."""

    value: int | float | bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """A tensor that the graph's code holds by itself and gives its launcher at each call."""

    tensor: torch.Tensor
    view: None = None


Origin = Made | Given | Constant
_reinterpret = torch_name("_reinterpret_tensor")
_AOTS = "torch._functorch."
_casts, _operations = torch_name("_is_any_autocast_enabled"), torch_name("_len_torch_dispatch_stack")


def view_of(base: torch.Tensor, view: View) -> torch.Tensor:
    """The view, as a tensor that shares nothing but memory with ``base``."""
    found: torch.Tensor = _reinterpret(base, view.size, view.stride, view.offset)
    return found


def assembler(origins: Sequence[Origin | Fixed]) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """A function of what was made and given that lists these values; generated, as a call has hundreds of them."""
    scope: dict[str, Any] = {"view": _reinterpret}
    values = []
    for k, origin in enumerate(origins):
        if isinstance(origin, (Constant, Fixed)):
            scope[f"c{k}"] = origin.value if isinstance(origin, Constant) else origin.tensor
            values.append(f"c{k}")
            continue
        base = f"{'made' if isinstance(origin, Made) else 'given'}[{origin.index}]"
        seen = origin.view
        values.append(base if seen is None else f"view({base}, {seen.size}, {seen.stride}, {seen.offset})")
    exec(f"def assemble(made, given): return [{', '.join(values)}]", scope)  # from numbers only, never from user text
    assemble: Callable[[Sequence[Any], Sequence[Any]], list[Any]] = scope["assemble"]
    return assemble


@dataclass(frozen=True)
class Recipe:
    """One launch in the place of a graph's code."""

    launcher: Launcher
    takes: tuple[Given | Fixed, ...]  # which of the graph's inputs each of the launcher's is
    gives: tuple[Origin, ...]  # where each of the graph's outputs comes from

    @cached_property
    def take(self) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
        """The launcher's inputs, from nothing made and what the graph is given."""
        return assembler(self.takes)

    @cached_property
    def give(self) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
        """The graph's outputs, from what the launcher has made and what the graph was given."""
        return assembler(self.gives)


has_storage: Callable[[Any], bool] = torch_name("_has_storage")
BATCHED = Reason(
    "unknown-input",
    "a backward was given batched gradients (is_grads_batched=True, or a vmap of it), which have no address",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: the same memory seen through another object is found again."""

    address: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """The address after the last element."""
        return self.address + extent(self.size, self.stride) * self.dtype.itemsize

    @classmethod
    def of(cls, x: Any) -> Place | None:
        """The place of a plain tensor; None for anything else and for a tensor without elements, which lies nowhere."""
        if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.layout != torch.strided or x.numel() == 0:
            return None
        if x.is_conj() or x.is_neg():  # what lies there is not the value
            return None
        return cls(x.data_ptr(), tuple(x.shape), tuple(x.stride()), x.dtype)


@dataclass(frozen=True, slots=True)
class Call:
    """One watched call of a graph's code: what was given and returned."""

    given: tuple[Any, ...]  # of a backward: not kept
    inputs: tuple[Place | None, ...]
    outputs: tuple[Place | None, ...]


class GraphCode:
    """The compiled code of one FX graph; called like it, and watched until its recipe is known."""

    def __init__(
        self,
        code: Callable[[list[Any]], Any],
        graph: CompiledGraph,
        *,
        backward: bool = False,
        constants: Sequence[Any] = (),
    ) -> None:
        self.code, self.graph, self.backward = code, graph, backward
        self.kept: Any = None  # what must live as long as this
        self._constants = constants  # which its launcher is given besides inputs
        self.recipe: Recipe | None = None
        self.call: Call | None = None  # the last watched one, until ``forget``
        self._attempts = 0
        self._boxed_call = True  # how AOTAutograd knows that the list is ours to empty; wrappers copy the instance's
        self.wanted = True  # whether somebody may still need to watch

    def __repr__(self) -> str:
        return f"GraphCode({self.graph.name}, {'one launch' if self.recipe else 'not known to be one launch'})"

    def __call__(self, inputs: list[Any]) -> Any:
        """Run the graph."""
        if self.backward and not all(map(has_storage, filter(torch.is_tensor, inputs))):
            for each in self.graph.launchers:
                each.not_launched(BATCHED)
            with pausing(self.graph.launchers):
                return without_autocast(self.code, inputs)
        if self.wanted and not is_watched() and (launcher := self._only_launcher()) is not None and launcher.warm:
            return without_autocast(self._watched, inputs, launcher)
        if is_watched():
            with pausing(self.graph.launchers):
                return without_autocast(self.code, inputs)
        return without_autocast(self.code, inputs)

    def forget(self) -> None:
        """Hold nothing of the last watched call any more."""
        self.call = None

    def _only_launcher(self) -> Launcher | None:
        """The launcher of a graph that is nothing but one partition."""
        graph = self.graph
        alone = len(graph.launchers) == 1 and not graph.outside and all(r.code == "no-kernels" for r in graph.reasons)
        return graph.launchers[0] if alone else None

    def _watched(self, inputs: list[Any], launcher: Launcher) -> Any:
        self._attempts += 1
        if self._attempts >= ATTEMPTS:
            self.wanted = False
        given = tuple(inputs)
        places = tuple(map(Place.of, given))
        launches: list[tuple[list[Any], Any]] = []
        with launcher.heard(lambda taken, made: launches.append((taken, made))):
            outputs = self.code(inputs)
        if len(launches) == 1 and isinstance(outputs, (list, tuple)):
            self.recipe = _recipe(launcher, given, self._constants, *launches[0], outputs) or self.recipe
            # A backward's activations are not held: they would live for a step too long.
            self.call = Call(() if self.backward else given, places, tuple(map(Place.of, outputs)))
        return outputs


def is_watched() -> bool:
    """Whether a mode wants to hear each operation, as around ``backward()``, where a launch would be none.

    AOTAutograd has one of its own around the first call of a graph, which asks after the user's operations only.
    """
    return bool(_operations()) and not all(type(x).__module__.startswith(_AOTS) for x in torch_name("dispatch_modes")())


def without_autocast(function: Callable[..., Any], *args: Any) -> Any:
    """Call a compiled graph as AOTAutograd does, whose casts are in it; of a backward it does so only now and then."""
    if _casts():
        with torch_name("_DisableAutocast")():
            return function(*args)
    return function(*args)


def _recipe(
    launcher: Launcher,
    given: Sequence[Any],
    constants: Sequence[Any],
    taken: Sequence[Any],
    made: Any,
    outputs: Sequence[Any],
) -> Recipe | None:
    """The recipe that a call shows; None where an object cannot be told from another, or comes from elsewhere."""
    if not isinstance(made, (list, tuple)) or not all(isinstance(x, torch.Tensor) for x in given):
        return None
    if len({id(x) for x in given}) != len(given):
        return None
    fixed = {id(x): Fixed(x) for x in constants if isinstance(x, torch.Tensor)}
    takes = [fixed.get(id(x)) or _origin(x, (), given) for x in taken]
    gives = [_origin(x, made, given) for x in outputs]
    if any(type(each) not in (Given, Fixed) for each in takes) or None in gives:
        return None
    return Recipe(launcher, tuple(takes), tuple(gives))  # type: ignore[arg-type]  # checked in the line above


def _origin(x: Any, made: Sequence[Any], given: Sequence[Any]) -> Origin | None:
    """Which value this is, or of which it is a view; None where that cannot be told."""
    if not isinstance(x, torch.Tensor):
        return Constant(x) if x is None or type(x) in (int, float, bool) else None
    for kind, values in ((Given, given), (Made, made)):
        for k, value in enumerate(values):
            if value is x:
                return kind(k)
    if (place := Place.of(x)) is None:
        return None
    for kind, values in ((Given, given), (Made, made)):
        for k, value in enumerate(values):
            base = Place.of(value)
            if base is None or base.dtype != x.dtype:
                continue
            if base.address <= place.address and place.end <= base.end and _one_storage(value, x):
                offset = (place.address - base.address) // x.element_size()
                return kind(k, View(place.size, place.stride, offset))
    return None


def _one_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)
