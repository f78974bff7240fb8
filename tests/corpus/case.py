"""What a workload of the corpus is, beyond what the benchmark knows of one, and the steps that most of them take."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paramgraph_kit.bench.workloads import Workload

Step = Callable[[nn.Module, list[Tensor], torch.optim.Optimizer | None], list[Tensor]]
Inputs = Callable[[int, torch.device], list[Tensor]]
DISTRIBUTIONS = {"cuda": "cuda-bindings"}  # where a module's distribution is called otherwise


@dataclass(frozen=True)
class Case(Workload):
    """One workload of the corpus.

    ``needs`` names what must be importable ("timm", "transformers>=4.51") or there ("cuda": a GPU); where it is not,
    the case is skipped with that as the reason. ``expect`` lists codes of reasons ("a|b": either) that must be in the
    report: the case has something that no graph may take. With ``graphed``, no kernel may be outside of graphs.
    """

    family: str = ""
    needs: tuple[str, ...] = ()
    dynamic: bool | None = None  # as torch.compile's argument
    compiled_optimizer: bool = False  # optimizer.step is compiled too
    expect: tuple[str, ...] = ()
    graphed: bool = False
    needs_no_gpu: bool = False  # the simulated device runs it, too, where what it needs is installed
    unsimulated: str = ""  # why the simulated device cannot run it, though it needs nothing
    ranks: int = 1  # processes, each with a GPU of its own, that torchrun starts
    timed: bool = True  # whether graph trees can be timed on it: one that misuses the device cannot

    @property
    def simulated(self) -> bool:
        """Whether the simulated device runs it too."""
        return (not self.needs or self.needs_no_gpu) and not self.unsimulated and self.ranks == 1


def missing(case: Case, device: torch.device) -> str:
    """Why ``case`` cannot run here, or "".

    >>> missing(Case("a", *[None] * 3, needs=("no_such_package",)), torch.device("cpu"))
    'needs no_such_package, which is not installed'
    """
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if case.ranks > max(count, 1) and device.type != "cpu":
        return f"needs {case.ranks} CUDA devices, there are {count}"
    for need in case.needs:
        if need == "cuda":
            if not count:
                return "needs a CUDA device"
            continue
        name, _, least = need.partition(">=")
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"needs {name}, which is not installed"
        if least:
            version = importlib.metadata.version(DISTRIBUTIONS.get(name, name))
            if _parts(version) < _parts(least):
                return f"needs {name} {least} or newer, this is {version}"
    return ""


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit())


def seeded(seed: int) -> torch.Generator:
    """A generator on the CPU, so that inputs are the same on every device."""
    return torch.Generator().manual_seed(seed)


def normal(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Inputs:
    """Normally distributed inputs of these shapes."""

    def inputs(seed: int, device: torch.device) -> list[Tensor]:
        generator = seeded(seed)
        return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]

    return inputs


def integers(high: int, *shapes: tuple[int, ...], low: int = 0) -> Inputs:
    """Uniform integers from ``low`` to ``high - 1``."""

    def inputs(seed: int, device: torch.device) -> list[Tensor]:
        generator = seeded(seed)
        return [torch.randint(low, high, shape, generator=generator).to(device) for shape in shapes]

    return inputs


def joined(*parts: Inputs) -> Inputs:
    """The inputs of several makers in a row."""
    return lambda seed, device: [x for part in parts for x in part(seed, device)]


def in_turn(*choices: Inputs) -> Inputs:
    """Another maker for each seed."""
    return lambda seed, device: choices[seed % len(choices)](seed, device)


def tensors(value: Any) -> list[Tensor]:
    """Every tensor in nested results, in order.

    >>> len(tensors({"a": torch.ones(1), "b": (torch.ones(1), None, 3)}))
    2
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [t for each in value for t in tensors(each)] if isinstance(value, (list, tuple)) else []


def buffers(model: nn.Module) -> list[Tensor]:
    """Copies of a model's buffers."""
    return [b.detach().clone() for b in model.buffers()]


def inference(names: tuple[str, ...] = ()) -> Step:
    """One call without gradients; inputs are passed by position, or by ``names``. Buffers are compared too."""

    def step(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
        with torch.no_grad():
            output = model(**dict(zip(names, inputs, strict=True))) if names else model(*inputs)
        return tensors(output) + buffers(model)

    return step


def training(names: tuple[str, ...] = (), loss: Callable[[Any, list[Tensor]], Tensor] | None = None) -> Step:
    """Forward, backward and, with an optimizer, its step; ``loss(output, inputs)`` is the mean square if None."""
    loss_of = loss or mean_square

    def step(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
        output = model(**dict(zip(names, inputs, strict=True))) if names else model(*inputs)
        return finish(model, loss_of(output, inputs), optimizer)

    return step


def mean_square(output: Any, _: list[Tensor]) -> Tensor:
    """The mean square of the first tensor of an output: a loss that needs no labels."""
    first: Tensor = tensors(output)[0]
    return first.float().square().mean()


def finish(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    """Backward, and the optimizer's step; returns the loss, all gradients, all buffers and new parameters."""
    loss.backward()
    found = [loss.detach()] + [p.grad for p in model.parameters() if p.grad is not None] + buffers(model)
    if optimizer is not None:
        optimizer.step()
        found += [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    return found


def built(make: Callable[[], nn.Module], *, train: bool = False, dtype: torch.dtype | None = None) -> Any:
    """A builder with seeded weights."""

    def build(device: torch.device) -> nn.Module:
        torch.manual_seed(0)
        return make().to(device=device, dtype=dtype).train(train)

    return build


def adamw_fused(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW in one kernel for many parameters."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def adam_capturable(model: nn.Module) -> torch.optim.Optimizer:
    """Adam whose step count lives on the device."""
    on_gpu = next(model.parameters()).device.type == "cuda"
    return torch.optim.Adam(model.parameters(), lr=1e-3, capturable=on_gpu)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
