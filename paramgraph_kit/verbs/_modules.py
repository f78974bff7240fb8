"""What a function calls, compiled each for itself: graphs where the function is cut in a loop, or anew at each call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.jit import ScriptModule
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from paramgraph_kit.backend import paramgraph

MOST_MODULES = 6


def modules_called(run: Any, space: dict[str, Any], owner: Any) -> dict[str, nn.Module]:
    """Modules with parameters that ``run()`` calls, the outermost of each call, by what the user calls them.

    Nothing where one of them has no name, is compiled already, or where there are very many.
    """
    called: dict[int, nn.Module] = {}
    inside: list[nn.Module] = []

    def enter(module: nn.Module, _: Any) -> None:
        if module is not owner:
            if not inside and next(module.parameters(), None) is not None:
                called[id(module)] = module
            inside.append(module)

    def leave(module: nn.Module, *_: Any) -> None:
        if inside and inside[-1] is module:
            inside.pop()

    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    named = {name: module for module in called.values() if (name := _name_of(module, space))}
    usual = not any(_is_changed(module) for module in named.values())
    return named if usual and len(named) == len(called) <= MOST_MODULES else {}


def _is_changed(module: nn.Module) -> bool:
    """Whether a call of it is not that of its class's ``forward``."""
    return module._compiled_call_impl is not None or "forward" in vars(module) or isinstance(module, ScriptModule)


def _name_of(module: nn.Module, space: dict[str, Any]) -> str:
    """The shortest way to a module from what the user's function can name: ``net``, ``agent.actor``, ``nets['a']``."""
    public = {name: value for name, value in space.items() if not name.startswith("__")}
    for name, value in public.items():
        if value is module:
            return name
    return next((way for name, value in public.items() if (way := _way(module, name, value))), "")


def _way(module: nn.Module, name: str, value: Any) -> str:
    if isinstance(value, dict):
        keys = (key for key, each in value.items() if each is module and type(key) in (str, int))  # others have no text
        return next((f"{name}[{key!r}]" for key in keys), "")
    if isinstance(value, (list, tuple)):
        return next((f"{name}[{n}]" for n, each in enumerate(value) if each is module), "")
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return ""
    held = {**vars(value), **vars(value).get("_modules", {})}
    return next((f"{name}.{key}" for key, each in held.items() if each is module and key.isidentifier()), "")


def by_forward(module: nn.Module) -> bool:
    """Whether only its ``forward`` can be compiled: ``Module.compile`` leaves a container of torch's own as it is.

    A deep copy of such a module calls the first one, where one that is compiled by ``Module.compile`` is as before.
    """
    kind = type(module)
    return kind.forward.__module__.partition(".")[0] == "torch" or kind.compile is not nn.Module.compile


def compiling(name: str, module: nn.Module) -> str:
    """What compiles a module in place.

    >>> compiling("net", nn.Sequential())
    'net.forward = torch.compile(net.forward, backend="paramgraph")'
    """
    if by_forward(module):
        return f'{name}.forward = torch.compile({name}.forward, backend="paramgraph")'
    return f'{name}.compile(backend="paramgraph")'


@contextmanager
def compiled_in_place(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Modules are compiled in the body of ``with``, and are as they were after it."""
    compiled: list[nn.Module] = []
    try:
        for module in modules:
            compiled.append(module)
            if by_forward(module):
                module.forward = torch.compile(module.forward, backend=paramgraph)
            else:
                module.compile(backend=paramgraph)
        yield
    finally:
        for module in compiled:
            vars(module).pop("forward" if by_forward(module) else "_compiled_call_impl", None)
