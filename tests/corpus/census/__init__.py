"""The census: every architecture of transformers, timm and torchvision that a small configuration makes, compared.

Nobody here wrote a line of them. ``python -m tests.corpus.census`` trains and runs each, compiled, and compares bit for
bit as the corpus does; what a library itself refuses of the small configuration, in eager, is skipped.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
from torch import Tensor, nn

from tests.corpus.case import Case, adamw_fused, finish, inference, tensors
from tests.corpus.census.libraries import LIBRARIES, Made

PHASES = ("inference", "training")


def names() -> list[str]:
    """``library/architecture phase`` of all that is installed."""
    there = [library for library in LIBRARIES if importlib.util.find_spec(library)]
    found = [f"{library}/{each}" for library in there for each in LIBRARIES[library][0]()]
    return [f"{name} {phase}" for name in found for phase in PHASES]


def case(name: str) -> Case:
    """The workload of that name."""
    whose, _, phase = name.rpartition(" ")
    library, _, architecture = whose.partition("/")
    train = phase == "training"

    def made() -> Made:
        torch.manual_seed(0)
        return LIBRARIES[library][1](architecture)

    @cache
    def example() -> dict[str, Tensor]:
        return made()[1]

    def inputs(seed: int, device: torch.device) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [_alike(x, generator).to(device) for x in example().values()]

    def step(model: nn.Module, given: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
        if not train:
            return inference(tuple(example()))(model, given, optimizer)
        output = model(**dict(zip(example(), given, strict=True)))
        parts = [t.float().square().mean() for t in tensors(output) if t.requires_grad]
        return finish(model, torch.stack(parts).sum(), optimizer)

    return Case(
        name,
        lambda device: made()[0].to(device).train(train),
        inputs,
        step,
        training=train,
        optimizer=adamw_fused if train else None,
        family="census",
        needs=(library,),
    )


def _alike(x: Tensor, generator: torch.Generator) -> Tensor:
    if x.is_floating_point():
        return torch.randn(x.shape, generator=generator)
    return torch.randint(5, int(x.max()) + 1, x.shape, generator=generator)
