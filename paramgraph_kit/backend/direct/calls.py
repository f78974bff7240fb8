"""What Dynamo calls in the place of a compiled graph: the ordinary way until a direct one is known, then that.

A direct call does what the wrappers did for this graph and no more; whenever something is as it was not when that was
learnt (a saved-tensor hook, another device, compiled autograd), the call goes the ordinary way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from paramgraph_kit.backend.direct.absent import Tangent
from paramgraph_kit.backend.direct.metadata import Wrapping, obstacle, wrapping
from paramgraph_kit.backend.direct.recipe import (
    Call,
    Constant,
    Given,
    GraphCode,
    Made,
    Origin,
    Place,
    Recipe,
    View,
    without_autocast,
)
from paramgraph_kit.backend.direct.training import Direct, Held, Step
from paramgraph_kit.driver.torch_names import torch_name

FORWARDS = 64  # that may lie between a forward and its backward while a step is learnt


class Codes:
    """The graphs of one compilation as they come: an inference, or a forward and later its backward."""

    def __init__(self) -> None:
        self.first: GraphCode | None = None
        self.backward: GraphCode | None = None
        self.metadata: Any = None  # AOTAutograd's, of the first
        self.obstacle: str | None = None

    def add(self, code: GraphCode) -> GraphCode:
        """Take the code of a graph that has just been compiled, within its compilation."""
        if code.backward:
            self.backward = code
            return code
        self.first = code
        self.metadata = getattr(torch_name("TracingContext").try_get(), "fw_metadata", None)
        self.obstacle = "it has no metadata" if self.metadata is None else obstacle(self.metadata)
        if self.obstacle is not None:
            code.wanted = False
        return code

    @property
    def trains(self) -> bool:
        """Whether there is a backward to it, compiled or to come."""
        return self.first is not None and self.first.graph.name.startswith("forward")


# autograd's own ``apply``, without the look for functorch's transforms, which ``as_learnt`` has taken.
_apply = super(torch.autograd.Function, Direct).apply

# Told of each direct call while somebody watches: (call, its arguments, its results).
observers: list[Callable[[Any, Sequence[Any], Sequence[Any]], None]] = []


class DirectCall:
    """Callable with the arguments that Dynamo gives a compiled graph."""

    def __init__(self, compiled: Callable[..., Any], codes: Codes, device: int | None = None) -> None:
        self.compiled, self.codes, self._device = compiled, codes, device
        self.graphs: Any = None  # what must live as long as this
        self._inference: Recipe | None = None
        self._step: Step | None = None
        self._written: tuple[int, ...] = ()  # arguments whose version moves at each call
        # Of the last watched forwards: one graph may serve many layers, whose backwards come in another order.
        self._saved: deque[tuple[Place | None, ...]] = deque(maxlen=FORWARDS)
        self._open = codes.obstacle is None and codes.first is not None

    def __repr__(self) -> str:
        return f"DirectCall({'direct' if self._inference or self._step else 'through the wrappers'})"

    def __call__(self, *args: Any) -> Any:
        """Run the graph."""
        if not self._open:
            return self.compiled(*args)
        if self._step is None and self._inference is None:
            return self._learn(args)
        if not self.as_learnt():
            return self.compiled(*args)
        results = self.run(args)
        for tell in observers:
            tell(self, args, results)
        return results

    @property
    def inference(self) -> Recipe | None:
        """What a call without gradients does, besides moving the versions of what is ``written``."""
        return self._inference

    @property
    def written(self) -> tuple[int, ...]:
        """The arguments that each call writes."""
        return self._written

    @property
    def differentiable(self) -> tuple[int, ...] | None:
        """The arguments that a direct step gives gradients of."""
        return None if self._step is None else self._step.differentiable

    def run(self, args: Sequence[Any]) -> Any:
        """A direct call, where nothing is switched on that the wrappers would have heeded."""
        if self._step is not None:
            return self._train(self._step, args)
        assert self._inference is not None
        return self._infer(self._inference, args)

    def as_learnt(self) -> bool:
        """Whether nothing is switched on that the wrappers would have heeded."""
        if self._device is not None and torch.cuda.current_device() != self._device:
            return False
        if torch_name("_are_functorch_transforms_active")():
            return False
        if self._step is not None and torch_name("_top_saved_tensors_default_hooks")(False):
            return False
        return not torch_name("compiled_autograd_module").compiled_autograd_enabled

    def elsewhere(self) -> Callable[[], bool]:
        """Whether a call without gradients is not ``as_learnt``, where no transform of functorch's is active."""
        switched, device, current = torch_name("compiled_autograd_module"), self._device, torch.cuda.current_device
        if device is None:
            return lambda: bool(switched.compiled_autograd_enabled)
        return lambda: switched.compiled_autograd_enabled or current() != device

    def _infer(self, recipe: Recipe, args: Sequence[Any]) -> Any:
        if self._written:
            torch.autograd.graph.increment_version([args[k] for k in self._written])
        return recipe.give(without_autocast(recipe.launcher, recipe.take((), args)), args)

    def _train(self, step: Step, args: Sequence[Any]) -> Any:
        if self._written:
            torch.autograd.graph.increment_version([args[k] for k in self._written])
        with torch.enable_grad():
            return without_autocast(_apply, step, args, *[args[k] for k in step.differentiable])

    def _learn(self, args: Sequence[Any]) -> Any:
        """An ordinary call; afterwards the direct one may be known."""
        first = self.codes.first
        assert first is not None
        results = self.compiled(*args)
        call, recipe = first.call, first.recipe
        if call is None or recipe is None:
            self._open = first.wanted
            return results
        first.forget()
        if not self._same_arguments(args, call) or not _same_results(results, call):
            return results
        if not self.codes.trains:
            self._written = wrapping(self.codes.metadata).written
            self._inference = recipe
            first.wanted = False
        else:
            self._learn_step(call, recipe)
        return results

    def _same_arguments(self, args: Sequence[Any], call: Call) -> bool:
        """Whether the graph's inputs are the arguments, each itself or detached."""
        if len(args) != len(call.given):
            return False
        return all(
            a is g or Place.of(a) == p is not None for a, g, p in zip(args, call.given, call.inputs, strict=True)
        )

    def _learn_step(self, call: Call, recipe: Recipe) -> None:
        """Match a watched backward with the forward before it; otherwise note this forward for the next backward."""
        backward, rest = self.codes.backward, wrapping(self.codes.metadata)
        if backward is not None and (seen := backward.call) is not None and backward.recipe is not None:
            backward.forget()
            found = (_step(recipe, backward.recipe, rest, each, seen, len(call.inputs)) for each in self._saved)
            step = next(filter(None, found), None)
            if step is not None:
                self._step, self._written = step, rest.written
                for code in (self.codes.first, backward):
                    assert code is not None
                    code.wanted = False
                self._saved.clear()
                return
        self._saved.append(call.outputs[rest.outputs :])


def _same_results(results: Any, call: Call) -> bool:
    """Whether what the caller gets is what the graph returns, one for one."""
    if not isinstance(results, (list, tuple)) or len(results) > len(call.outputs):
        return False
    return all(Place.of(r) == p for r, p in zip(results, call.outputs, strict=False) if isinstance(r, torch.Tensor))


def _step(
    forward: Recipe, backward: Recipe, wrapping: Wrapping, saved: Sequence[Place | None], call: Call, inputs: int
) -> Step | None:
    """The step that a backward's call shows, after the forward that saved what lies at ``saved``."""
    kept = forward.gives[wrapping.outputs :]
    follows = [k for k, yes in enumerate(wrapping.differentiable) if yes]
    if len(kept) + len(follows) != len(call.inputs) or len(backward.gives) != inputs:
        return None
    if None in call.inputs or tuple(saved) != call.inputs[: len(kept)]:
        return None
    results = forward.gives[: wrapping.outputs]
    origins = [origin for origin in kept if isinstance(origin, (Made, Given))]
    if len(origins) != len(kept):
        return None
    tangents = [
        Tangent(output, place.size, place.stride, place.dtype)
        for output, place in zip(follows, call.inputs[len(kept) :], strict=True)
        if place is not None
    ]
    checked = origins[: len(kept) - wrapping.unchecked]
    return Step(
        forward,
        backward,
        wrapping,
        tuple(origins),
        tuple(tangents),
        tuple(k for k, origin in enumerate(backward.gives) if not isinstance(origin, Constant)),
        tuple(_held(origins, results, call.inputs)),
        tuple(sorted({origin.index for origin in checked if isinstance(origin, Given)})),
    )


def _held(origins: Sequence[Made | Given], results: Sequence[Origin], places: Sequence[Place | None]) -> Iterator[Held]:
    """Which of the saved tensors lie in results."""
    for k, (origin, place) in enumerate(zip(origins, places, strict=False)):
        for r, result in enumerate(results):
            if type(origin) is Made and type(result) is Made and result.index == origin.index and place is not None:
                start, base = (each.view.offset if each.view else 0 for each in (origin, result))
                yield Held(k, r, View(place.size, place.stride, start - base))
                break
