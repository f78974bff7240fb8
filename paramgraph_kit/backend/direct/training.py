"""A forward and its backward as one autograd function of ours: two launches and the list of what goes between them.

AOTAutograd makes a tensor object of each saved activation and gives autograd every one of them. Here they go from
launch to launch in a list; autograd keeps only what the user could write before the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from paramgraph_kit.backend.direct.absent import Tangent, Zeros
from paramgraph_kit.backend.direct.located import MISSED, Assemble, Flow, Located, Locating
from paramgraph_kit.backend.direct.metadata import Wrapping
from paramgraph_kit.backend.direct.once import only_once
from paramgraph_kit.backend.direct.recipe import (
    BATCHED,
    Given,
    Made,
    Recipe,
    View,
    assembler,
    has_storage,
    is_watched,
    view_of,
    without_autocast,
)
from paramgraph_kit.driver.native.tensors import versions_of
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import pausing

_runs_again = torch_name("_get_current_graph_task_keep_graph")

TWICE = (
    "Trying to backward through the graph a second time: what the forward saved was freed by the first backward. "
    "Say retain_graph=True there"
)
DONATED = (
    "this backward writes into what its forward has saved and can run only once: call it without retain_graph and "
    "create_graph, or set torch._functorch.config.donated_buffer=False before compiling"
)


@dataclass(frozen=True, slots=True)
class Held:
    """What is saved and the caller's result too: autograd holds the result, and sees where the user writes it."""

    place: int  # in ``Step.saved``
    result: int
    view: View  # of the result

    def of(self, result: torch.Tensor) -> torch.Tensor:
        """What is saved, from the result."""
        return view_of(result, self.view)


@dataclass(frozen=True)
class Step:
    """A forward and its backward."""

    forward: Recipe
    backward: Recipe
    wrapping: Wrapping
    saved: tuple[Made | Given, ...]  # of the forward, for each of the backward's inputs before the tangents
    tangents: tuple[Tangent, ...]
    differentiable: tuple[int, ...]  # the forward's inputs that get a gradient
    held: tuple[Held, ...]
    checked: tuple[int, ...]  # inputs of the forward that must not be written before the backward

    located: list[Located] = field(default_factory=list)  # one or none: what launches now, once it has settled

    def launch_forward(self, inputs: Sequence[torch.Tensor]) -> tuple[Any, Located | None]:
        """What the forward's launch makes, and how that is to be read; followed by the shelf where there is one."""
        taken = self.forward.take((), inputs)
        if not self.located:
            found = self._locating.of(self.forward, self.backward)
            self.located[:] = [found] if found else []
        if self.located:
            located = self.located[0]
            made = located.forward(taken)
            if made is not MISSED:
                return made, located
            self.located.clear()
        return self.forward.launcher(taken), None

    def launch_backward(self, inputs: list[Any], located: Located | None, shelf: Any) -> tuple[Any, ...]:
        """Gradients of the differentiable inputs; empties ``inputs``: what dies in the launch is freed in it."""
        keeps = self.passed_on
        given = [x if k in keeps else None for k, x in enumerate(inputs)] if keeps else ()
        taken = (located or self.backward).take((), inputs)
        watched, launcher = is_watched(), self.backward.launcher
        if not all(map(has_storage, inputs[len(self.saved) :])):
            watched = True
            launcher.not_launched(BATCHED)
        inputs.clear()
        if located is not None:
            if located.views:
                taken.append(shelf)
            made: Any = MISSED if watched else located.backward(taken)
            if made is not MISSED:
                return tuple(located.gradients(made, given))
            taken = located.restored(taken)
            self.located.clear()
        with pausing([launcher]) if watched else nullcontext():
            made = without_autocast(launcher, taken)
        return tuple(self.gradients(made, given))

    def tangents_of(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """What the backward takes for the gradients of the results, None for those of results that nobody used."""
        found = []
        for k, tangent in enumerate(self.tangents):
            gradient = gradients[tangent.output]
            found.append(self._zeros(k) if gradient is None else tangent.fit(gradient))
        return found

    @cached_property
    def _zeros(self) -> Zeros:
        first = len(self.saved)
        returned = {k - first for k in self.passed_on if k >= first}
        return Zeros(self.backward.launcher.driver, self.tangents, returned)

    @cached_property
    def _locating(self) -> Locating:
        results = self.forward.gives[: self.wrapping.outputs]
        gradients = tuple(self.backward.gives[k] for k in self.differentiable)
        return Locating(Flow(self.forward, self.backward, results, self.saved, gradients, self.passed_on).located)

    @cached_property
    def results(self) -> Assemble:
        """The caller's results."""
        return assembler(self.forward.gives[: self.wrapping.outputs])

    @cached_property
    def save(self) -> Assemble:
        """What the backward reads."""
        return assembler(self.saved)

    @cached_property
    def gradients(self) -> Assemble:
        """The gradients of the differentiable inputs."""
        return assembler([self.backward.gives[k] for k in self.differentiable])

    @cached_property
    def passed_on(self) -> frozenset[int]:
        """The backward's inputs that are gradients, or have them as views."""
        gives = [self.backward.gives[k] for k in self.differentiable]
        return frozenset(origin.index for origin in gives if isinstance(origin, Given))


class Direct(torch.autograd.Function):
    """``Direct.apply(step, inputs, *differentiable)`` returns the caller's results as a tuple."""

    @staticmethod
    def forward(ctx: Any, step: Step, inputs: Sequence[torch.Tensor], *_: torch.Tensor) -> tuple[Any, ...]:
        """Launch the forward and keep what the backward reads."""
        made, located = step.launch_forward(inputs)
        how = located or step
        saved = how.save(made, inputs)
        results = how.results(made, inputs)
        if step.held:
            ctx.save_for_backward(*[results[each.result] for each in step.held])
            for each in step.held:
                saved[each.place] = None
        ctx.step, ctx.saved = step, saved
        ctx.located, ctx.shelf = located, made[-1] if located is not None and located.views else None
        ctx.checked = [inputs[k] for k in step.checked]
        ctx.versions = versions_of(ctx.checked)
        plain = [r for r, follows in zip(results, step.wrapping.differentiable, strict=True) if not follows]
        ctx.mark_non_differentiable(*(r for r in plain if isinstance(r, torch.Tensor)))
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        """Launch the backward."""
        step: Step = ctx.step
        if ctx.saved is None:
            raise RuntimeError(TWICE)
        again = _runs_again()
        if again and step.wrapping.donates:
            raise RuntimeError(DONATED)
        if versions_of(ctx.checked) != ctx.versions:
            raise RuntimeError(_written(ctx.checked, ctx.versions))
        inputs, shelf = list(ctx.saved) if again else ctx.saved, ctx.shelf
        for each, result in zip(step.held, ctx.saved_tensors if step.held else (), strict=True):
            inputs[each.place] = each.of(result)
        if not again:
            ctx.saved = ctx.checked = ctx.shelf = None
        inputs += step.tangents_of(gradients)
        del gradients
        if torch.is_grad_enabled():
            with torch.no_grad():
                found = step.launch_backward(inputs, ctx.located, shelf)
            return None, None, *only_once(found, ctx)
        return None, None, *step.launch_backward(inputs, ctx.located, shelf)


def _written(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> str:
    tensor, version = next((t, v) for t, v in zip(tensors, versions, strict=True) if t._version != v)
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} instead"
    )
