"""What a module's ``state_dict`` leaves out, which whoever loads it has to copy beside it."""

from __future__ import annotations

import torch

from paramgraph_kit.doctor.observe.held import is_a


def load(path: str, other: str, module: torch.nn.Module) -> list[str]:
    """The lines that give a module what another one of its kind has, where it has it."""
    lines = [f"{path}.load_state_dict({other}.state_dict())"]
    return [*lines, *(f"{path}{each}.copy_({other}{each})" for each in _unsaved(module))]


def _unsaved(module: torch.nn.Module) -> list[str]:
    """The tensors of a module that its ``state_dict`` leaves out, as they are reached from it: ``.body[0].scale``."""
    found = list[str]()
    for name, part in module.named_modules():
        plain = [key for key, each in vars(part).items() if is_a(each, torch.Tensor)]
        plain += sorted(key for key in part._non_persistent_buffers_set if part._buffers.get(key) is not None)
        found += [f"{_written(module, name)}.{key}" for key in plain]
    return found


def _written(module: torch.nn.Module, name: str) -> str:
    """A part of a module as it is written: by a number in what is a list of modules."""
    names = [*filter(None, name.split("."))]
    owners = [module.get_submodule(".".join(names[:n])) for n in range(len(names))]
    by_number = (is_a(owner, (torch.nn.Sequential, torch.nn.ModuleList)) for owner in owners)
    return "".join(f"[{each}]" if number else f".{each}" for each, number in zip(names, by_number, strict=True))
