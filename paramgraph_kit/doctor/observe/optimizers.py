"""What the optimizers and schedulers of one call do: which take a step, where, and what a replay would not repeat."""

from __future__ import annotations

import ast
import copy
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.beginnings import Beginnings
from paramgraph_kit.doctor.observe.findings import Findings, through_torch
from paramgraph_kit.doctor.observe.gradients_between import GradientsBetween
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.observe.states_between import (
    SCALE_BEGUN,
    StatesBetween,
    begins,
    scale_begun_inside,
    zeros_begin,
)
from paramgraph_kit.doctor.restore.keeper import Keeper
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace.model import Failure, Frame

BEGUN = "makes its state in its first step, which this capture holds: each replay makes it anew"
ZERO = "for state in {}.state.values(): [v.zero_() for v in state.values() if torch.is_tensor(v)]"


class Optimizers:
    """Told of every step() and zero_grad() before it runs."""

    def __init__(self, findings: Findings, keeper: Keeper, beginnings: Beginnings | None = None) -> None:
        self.findings, self.keeper = findings, keeper
        self.beginnings = Beginnings() if beginnings is None else beginnings  # of all calls; this one is of one call
        self.steps = 0  # of parameters with gradients
        self.counting = set[str]()  # optimizers whose count of steps is on the CPU, and which torch lets be captured
        # Weak references: the state of an optimizer that nobody has goes, as ever, also where a graph reads it.
        self._stepped: list[tuple[weakref.ref[torch.optim.Optimizer], Place]] = []  # that took a step, and where
        self.scheduled: list[tuple[Any, Place]] = []  # schedulers that took a step, and where
        self.between, self.states = GradientsBetween(), StatesBetween()
        self.zeroed = False  # gradients were set to None, or to zero, by zero_grad()

    @property
    def stepped(self) -> list[tuple[torch.optim.Optimizer, Place]]:
        """Those that took a step and are still there, and where."""
        return [(optimizer, at) for ref, at in self._stepped if (optimizer := ref()) is not None]

    def step_of(self, optimizer: torch.optim.Optimizer) -> None:
        """step() is about to run."""
        self.note_optimizer(optimizer)
        place = self.findings.places.here()
        self._stepped.append((weakref.ref(optimizer), place))
        self.between.steps(optimizer, place, captured := driver().is_capturing())
        if captured:
            self.states.steps(optimizer, place)
        if self.beginnings.note(optimizer, _begun_by(optimizer), self, captured=captured):
            self.findings.add(state_begun_inside(optimizer, place.frame()))
        if not all(group.get("capturable", True) for group in optimizer.param_groups):
            name = type(optimizer).__name__
            text = f"Attempting CUDA graph capture of step() for {name} but param_groups' capturable is False."
            self.findings.refused(text, None, "step", place)
        if any(group.get("lr_decay") and "capturable" not in group for group in optimizer.param_groups):
            name = type(optimizer).__name__
            text = f"{name} divides its rate by a number of steps that it counts on the CPU"
            self.findings.add(BY_ID["learning-rate-frozen"].failure(text, place.frame(), (name,)))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any("capturable" not in group for group in optimizer.param_groups):
            counts = (
                optimizer.state.get(p, {}).get("step") for p in parameters if p.device.type == self.findings.device
            )
            if any(isinstance(count, torch.Tensor) and count.device.type == "cpu" for count in counts):
                self.counting.add(type(optimizer).__name__)
        outside: list[torch.Tensor] = []
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None or gradient.device.type != self.findings.device:
                continue
            self.steps += 1
            before = self.keeper.gradient_of(parameter)
            if before is not None and before is gradient and self.keeper.is_outside(before):
                outside.append(before)
        if outside and not any(self.keeper.is_written(gradient) for gradient in outside):
            self.findings.silent(
                "gradients-rebound", f"step() reads {len(outside)} gradients made before the call", place
            )

    def loads(self, optimizer: torch.optim.Optimizer) -> None:
        """load_state_dict() is about to run."""
        self.states.loads(optimizer, self.findings.places.here())

    def scales(self, scaler: torch.amp.GradScaler) -> None:
        """scale() is about to run."""
        parts = [0] if begins(scaler) else []
        if self.beginnings.note(scaler, parts, self, captured=driver().is_capturing()):
            self.findings.add(scale_begun_inside(self.findings.places.here()))

    def schedules(self, scheduler: Any) -> None:
        """A scheduler's step() is about to run, which no replay repeats, also where the rate is a tensor."""
        place = self.findings.places.here()
        if not through_torch(place):  # a schedule of schedules is told once
            self.scheduled.append((scheduler, place))

    def zeroes(self, what: torch.optim.Optimizer | torch.nn.Module) -> None:
        """zero_grad() is about to run."""
        self.zeroed = True
        if not driver().is_capturing():
            self.between.zeroes(what, self.findings.places.here())
        if isinstance(what, torch.nn.Module):
            self.note_module(what)
        else:
            self.note_optimizer(what)

    def note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember the gradients of its parameters."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.keeper.note_leaf(parameter)

    def note_module(self, module: torch.nn.Module) -> None:
        """Remember the gradients of its parameters."""
        for parameter in module.parameters():
            self.keeper.note_leaf(parameter)


def is_begun(failure: Failure) -> bool:
    """Whether it tells of a state that a capture makes, and that each replay makes anew."""
    return BEGUN in failure.message or SCALE_BEGUN in failure.message


def at_its_line(refused: Failure, stepped: Sequence[tuple[torch.optim.Optimizer, Place]]) -> Failure:
    """The same with the program's own line that makes the optimizer which torch refuses to capture, where one does."""
    user = stepped[-1][1].user if stepped and refused.code == "optimizer-not-capturable" else None
    tree = tree_of(user[0].co_filename) if user is not None else None
    assigns = [n for n in ast.walk(tree) if isinstance(n, ast.Assign)] if tree is not None else []
    name = type(stepped[-1][0]).__name__ if stepped else ""
    made = [n for n in assigns if isinstance(n.value, ast.Call) and last_name(n.value.func) == name]
    if len(made) != 1:
        return refused
    new: Any = copy.deepcopy(made[0])
    new.value.keywords = [k for k in new.value.keywords if k.arg != "capturable"]
    new.value.keywords.append(ast.keyword("capturable", ast.Constant(True)))
    fix = f"before  {ast.unparse(made[0])}\nafter   {ast.unparse(new)}"
    return replace(refused, fix=fix)


def _begun_by(optimizer: torch.optim.Optimizer) -> list[int]:
    """The parameters for which an optimizer of torch's makes what it keeps in the step that comes: it is the first."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        return []
    groups = [g for g in optimizer.param_groups if not isinstance(optimizer, torch.optim.SGD) or g["momentum"]]
    parameters = (p for group in groups for p in group["params"])
    return [id(p) for p in parameters if p.grad is not None and not optimizer.state.get(p)]


def state_begun_inside(optimizer: torch.optim.Optimizer, frame: Frame | None) -> Failure:
    """What is told of an optimizer whose state the capture itself makes."""
    name = type(optimizer).__name__
    text = f"{name} {BEGUN}"
    line = frame.text if frame is not None else "optimizer.step()"
    path = line.partition(".step(")[0] if line.endswith(".step()") else "optimizer"
    if not zeros_begin(optimizer):
        after = (
            "the same, and no first step: the first batch runs as it is, ahead of the capture and on a side stream, "
            "with this step, and no replay computes it again; right before the capture "
            f"`{path}.zero_grad(set_to_none=True)`: else each replay adds to these gradients"
        )
        return replace(BY_ID["branch-frozen"].failure(text, frame), fix=f"before  {line}\nafter   {after}")
    zeros = f"for group in {path}.param_groups: [setattr(p, 'grad', torch.zeros_like(p)) for p in group['params']]"
    after = (
        "the same, and no first step: ahead of the capture this step runs once alone, as what else is captured may "
        f"move more: `{zeros}`, `{line}`, its parameters put back in place (`copy_`), as a decay moves them, its state "
        f"zeroed in place, `{ZERO.format(path)}`, and right before the capture `{path}.zero_grad(set_to_none=True)`: "
        "else each replay adds to these gradients"
    )
    return replace(BY_ID["branch-frozen"].failure(text, frame), fix=f"before  {line}\nafter   {after}")
