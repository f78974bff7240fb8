"""Carries a function and its arguments into another process, also functions and classes of a notebook.

Pickle alone refuses what cannot be imported. Here the user's own functions and classes travel as code, with the global
names that they use; installed packages travel by name; tensors of the device travel through host memory.
"""

from __future__ import annotations

import importlib
import io
import linecache
import marshal
import pickle
import types
from pathlib import Path
from typing import Any

import torch

from paramgraph_kit.doctor.restore.classes import global_names, of_library
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.select import device, twin

_spaces: dict[str, dict[str, Any]] = {}  # in the other process: the global names of each module that came as code


def pack(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Everything as bytes.

    Raises:
        pickle.PicklingError, TypeError, AttributeError: something in it can not travel.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump((function, args, kwargs))
    # The source of notebook cells, for the lines of the answer.
    sources = {name: linecache.getlines(name) for name in pickler.files if not Path(name).exists()}
    return pickle.dumps((sources, file.getvalue()))


def unpack(data: bytes) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function and its arguments, made again in this process."""
    sources, inner = pickle.loads(data)
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    found: tuple[Any, tuple[Any, ...], dict[str, Any]] = pickle.loads(inner)
    return found


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.files: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter):
            return self._tensor(value)
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, types.FunctionType) and not is_library(value.__code__.co_filename):
            return self._function(value)
        if isinstance(value, types.CellType):
            return _make_cell, ()
        if isinstance(value, type) and value.__module__ != "builtins" and not of_library(value):
            return self._class(value)
        for kind in ("Stream", "Event"):
            if isinstance(value, getattr(twin(), kind)):
                return _make_of_device, (kind,)
        return NotImplemented

    def _tensor(self, value: torch.Tensor) -> Any:
        is_parameter = isinstance(value, torch.nn.Parameter)
        on_device = value.device.type == device().type
        pinned = not on_device and value.is_pinned()
        if not (is_parameter or on_device or pinned):
            return NotImplemented
        plain = value.detach().cpu() if on_device else value.detach().clone()
        wanted = value.requires_grad and value.is_leaf
        gradient = value.grad if wanted else None
        made = (plain, on_device, pinned, wanted, is_parameter)
        return _make_tensor, made, gradient, None, None, _set_gradient

    def _function(self, value: types.FunctionType) -> Any:
        code = value.__code__
        self.files.add(code.co_filename)
        names = {name: value.__globals__[name] for name in global_names(code) if name in value.__globals__}
        contents = [cell.cell_contents if _is_filled(cell) else _EMPTY for cell in value.__closure__ or ()]
        state = (names, contents, value.__defaults__, value.__kwdefaults__, dict(value.__dict__))
        made = (marshal.dumps(code), value.__name__, value.__qualname__, value.__module__, value.__closure__)
        return _make_function, made, state, None, None, _fill_function

    def _class(self, value: type) -> Any:
        leave = ("__dict__", "__weakref__", "__doc__", "__module__")
        members = {name: member for name, member in vars(value).items() if name not in leave}
        return _make_class, (type(value), value.__name__, value.__bases__, value.__module__), members, None, None, _fill


_EMPTY = "<empty cell>"


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the only way to ask
    except ValueError:
        return False
    return True


def _make_tensor(
    plain: torch.Tensor, on_device: bool, pinned: bool, requires_grad: bool, is_parameter: bool
) -> torch.Tensor:
    found = plain.to(device()) if on_device else plain.pin_memory() if pinned else plain
    if is_parameter:
        return torch.nn.Parameter(found, requires_grad)
    return found.requires_grad_(requires_grad) if requires_grad else found


def _set_gradient(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    tensor.grad = gradient


def _make_of_device(kind: str) -> Any:
    return getattr(twin(), kind)()


def _make_cell() -> types.CellType:
    return types.CellType()


def _make_function(code: bytes, name: str, qualname: str, module: str, closure: Any) -> types.FunctionType:
    space = _spaces.setdefault(module, {"__name__": module, "__builtins__": __builtins__})
    found = types.FunctionType(marshal.loads(code), space, name, None, closure)
    found.__qualname__, found.__module__ = qualname, module
    return found


def _fill_function(function: types.FunctionType, state: Any) -> None:
    names, contents, defaults, keyword_defaults, attributes = state
    function.__globals__.update(names)
    for cell, value in zip(function.__closure__ or (), contents, strict=True):
        if not isinstance(value, str) or value != _EMPTY:
            cell.cell_contents = value
    function.__defaults__, function.__kwdefaults__ = defaults, keyword_defaults
    function.__dict__.update(attributes)


def _make_class(meta: Any, name: str, bases: tuple[type, ...], module: str) -> type:
    found: type = types.new_class(name, bases, {"metaclass": meta})
    found.__module__ = module
    return found


def _fill(kind: type, members: dict[str, Any]) -> None:
    for name, member in members.items():
        setattr(kind, name, member)
