"""Programs in the style of strangers' code, and the ways in which one can be run.

A program is a generator: it builds what it needs, hands its model or function to ``way`` (or its whole training step
to ``way.step``), calls it as its author would, changes what its author would change in between, and yields what each
call gave. The same program runs in every way, and what it yields is to be the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import field as _field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paramgraph_kit as pgk

FIELDS = Path(__file__).parent / "fields"


class Way:
    """How a program's models and steps are wrapped; ``wrapped`` are those that were."""

    def __init__(
        self, wrap: Callable[[Any], Any] | None = None, step: Callable[[Any, tuple[Any, ...]], Any] | None = None
    ) -> None:
        self._wrap, self._step = wrap, step
        self.device = pgk.device()
        self.wrapped: list[Any] = []

    def __call__(self, fn: Any) -> Any:
        """The model or function ``fn``, in this way."""
        return fn if self._wrap is None else self._add(self._wrap(fn))

    def step(self, fn: Any, *state: Any) -> Any:
        """The training step ``fn``, which changes ``state``, in this way."""
        return fn if self._step is None else self._add(self._step(fn, state))

    def _add(self, made: Any) -> Any:
        self.wrapped.append(made)
        return made

    def build(self, make: Callable[[], nn.Module], seed: int = 0) -> Any:
        """A model with seeded weights on the device."""
        torch.manual_seed(seed)
        return make().to(self.device)

    def randn(self, seed: int, *shape: int) -> torch.Tensor:
        """Normal numbers on the device, the same on every device."""
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.device)

    def ints(self, seed: int, high: int, *shape: int) -> torch.Tensor:
        """Whole numbers below ``high``."""
        return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed)).to(self.device)


@dataclass(frozen=True)
class Program:
    """One program: ``run(way)`` gives what its calls give."""

    name: str
    run: Callable[[Way], Iterator[Any]] = _field(repr=False)
    field: str
    notes: dict[str, Any] = _field(repr=False)


def program(**notes: Any) -> Callable[[Any], Any]:
    """Mark a generator as a program.

    ``changes_model``: it does between calls what guards="inputs" had the promise of that it would not.
    ``skip``: {way: why it is not asked}.
    """

    def mark(run: Any) -> Any:
        run.program_notes = notes
        return run

    return mark


@cache
def programs() -> dict[str, Program]:
    """Every program by its name.

    >>> "unet" in programs()
    True
    """
    found: dict[str, Program] = {}
    for path in sorted(FIELDS.glob("*.py")):
        module = import_module(f"tests.corpus.strangers.fields.{path.stem}")
        for name, run in vars(module).items():
            if inspect.isgeneratorfunction(run) and hasattr(run, "program_notes"):
                assert name not in found, name
                found[name] = Program(name, run, path.stem, run.program_notes)
    return found
