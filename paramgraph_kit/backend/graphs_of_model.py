"""Which compiled graphs belong to a model, found by the code objects that Dynamo compiled."""

from __future__ import annotations

import functools
import gc
import inspect
import re
import traceback
import types
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from paramgraph_kit.backend.recompiles import is_known
from paramgraph_kit.backend.registry import CompiledGraph, original
from paramgraph_kit.driver.collection import everything
from paramgraph_kit.driver.files import OURS, display_name
from paramgraph_kit.driver.lines import frame_of_line
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import Options
from paramgraph_kit.partition.frames import user_frame
from paramgraph_kit.trace.errors import ParamgraphError
from paramgraph_kit.trace.model import Frame, Reason
from paramgraph_kit.trace.wording import kind_text

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")
_TORCH = str(Path(torch.__file__).parent)


class Model:
    """The code of a function, of a module and of everything in it.

    Raises:
        ParamgraphError: this is nothing that can be compiled.
    """

    def __init__(self, model: Any) -> None:
        self.modules: dict[int, Any] = {}  # by id; also what parameterize returned
        self._kinds: set[type] = set()  # of these, the user's own
        self._of_torch: list[torch.nn.Module] = []  # of these, compiled themselves, and of a class of its
        self.codes: set[types.CodeType] = set()
        self.root: tuple[types.CodeType, ...] = ()  # of what was compiled; empty where only parts are
        self.options: list[Options] = []  # that it was compiled with, where torch.compile's result tells
        self._add(model)
        self.root = _root(model)
        if not self.codes and not self.modules:  # code of torch's own that was compiled by itself: an optimizer's step
            self.codes |= {*self.root}
        if not self.codes and not self.modules:
            raise ParamgraphError(
                f"report takes a compiled function or module, not {kind_text(model)}: "
                "pass what torch.compile returned, or nothing for everything that is compiled"
            )
        # Dynamo's functions that resume after a graph break have the file of the original and a name made of its.
        self._names = {(code.co_filename, code.co_name) for code in self.codes}

    def _add(self, model: Any) -> None:
        if getattr(type(model), "_paramgraph_owner", False):  # what parameterize returned: its graphs name it
            self.modules[id(model)] = model
            return
        if isinstance(model, torch.nn.Module):
            for module in model.modules():
                self.modules[id(module)] = module
                if not _is_torch(type(module).forward.__code__):
                    self._kinds.add(type(module))
                else:
                    inner = getattr(module, "_orig_mod", None)  # what torch.compile returned may be a part, too
                    if inner is not None or module is model or module._compiled_call_impl is not None:
                        self._of_torch.append(module if inner is None else inner)
                self._add_function(module.forward)
                self._note_options(getattr(getattr(module, "dynamo_ctx", None), "callback", None))
                self._add_callback(getattr(module, "_compiled_call_impl", None))
            return
        self._add_function(model)
        if not self.codes and callable(model):  # an object whose class has a __call__ of its own
            call = type(model).__call__
            if isinstance(call, types.FunctionType):
                self.codes.add(call.__code__)

    def _add_function(self, function: Any) -> None:
        while function is not None:
            if isinstance(function, functools.partial):
                function = function.func
                continue
            if isinstance(function, types.MethodType):
                if isinstance(function.__self__, torch.nn.Module):
                    self.modules[id(function.__self__)] = function.__self__
                function = function.__func__
            self._add_callback(function)
            code = getattr(function, "__code__", None)
            inner = getattr(function, "_torchdynamo_orig_callable", None) or getattr(function, "__wrapped__", None)
            if isinstance(code, types.CodeType) and not _is_torch(code):
                self.codes.add(code)
            if isinstance(inner, types.MethodType) and isinstance(inner.__self__, torch.nn.Module):
                self._of_torch.append(inner.__self__)  # its forward alone was compiled
            if isinstance(inner, torch.nn.Module):
                self._add(inner)
                return
            if inner is not None and not hasattr(inner, "__code__") and not isinstance(inner, functools.partial):
                inner = vars(type(inner)).get("__call__")  # an object that can be called
            function = inner

    def _add_callback(self, function: Any) -> None:
        names = getattr(getattr(function, "__code__", None), "co_freevars", ())
        if "callback" in names:  # what torch.compile makes of a function
            self._note_options(function.__closure__[names.index("callback")].cell_contents)

    def _note_options(self, callback: Any) -> None:
        while callback is not None:
            settings = getattr(callback, "kwargs", None)
            inner = getattr(callback, "_torchdynamo_orig_backend", None)
            if inner is None and isinstance(settings, dict):
                known = {field.name for field in fields(Options)}
                given = settings.get("options") or {}
                options = Options(**given) if set(given) <= known else None
                if options is not None and options not in self.options:
                    self.options.append(options)
            callback = inner

    def has(self, graph: CompiledGraph) -> bool:
        """Whether a graph was compiled for this model: its own code, or what that code called."""
        # The same code may be compiled twice, to compare: once as it is and once with select="never".
        if self.options and graph.launchers and graph.launchers[0].options not in self.options:
            return False
        owner = graph.owner() if graph.owner is not None else None
        if owner is not None and id(owner) in self.modules:
            return True
        if graph.callers.any_of(self.codes):
            return is_known(graph) and self._may_use(graph, dead=owner is None)
        like = graph.like  # a class of torch's own: its code tells nothing, but Dynamo goes by that all the same
        alike = like is not None and any(
            type(module) is like.kind() and like.fits(module, wholly=owner is None) for module in self._of_torch
        )
        return alike and is_known(graph)

    def has_code(self, graph: CompiledGraph) -> bool:
        """Whether a graph was compiled of this model's code, be it for another module of its class."""
        return graph.callers.any_of(self.codes)

    def _may_use(self, graph: CompiledGraph, *, dead: bool) -> bool:
        """Whether a graph that was compiled for another module may be launched for one of these."""
        like = graph.like
        if like is None:
            return True
        kind = like.kind()
        alike: list[Any] = [module for module in self.modules.values() if type(module) is kind]
        return not alike or any(like.fits(module, wholly=dead) for module in alike)

    def ran(self, stack: traceback.StackSummary | list[traceback.FrameSummary]) -> bool:
        """Whether a stack goes through this model's code."""
        return any((frame.filename, _original(frame.name)) in self._names for frame in stack)

    def shared(self) -> str:
        """What is counted together with this model, because Dynamo compiles code; "" where nothing is."""
        everything()
        functions = {
            id(each)
            for code in self.codes
            for each in gc.get_referrers(code)
            if isinstance(each, types.FunctionType) and each.__code__ is code
        }
        if len(functions) > len(self.codes) and not self.modules:
            return (
                f"{len(functions)} functions have this code, as closures of one factory do: they are counted together"
            )
        alike = {id(each): type(each) for kind in self._kinds for each in gc.get_referrers(kind) if type(each) is kind}
        if others := {kind.__name__ for number, kind in alike.items() if number not in self.modules}:
            names = ", ".join(sorted(others))
            return f"other modules of the class {names} are alive: what is compiled of them is counted here too"
        return ""


def _root(model: Any) -> tuple[types.CodeType, ...]:
    """The code of what ``torch.compile`` was given, and the user's behind it where that is a wrapper.

    Empty where only parts were compiled, or nobody can tell.
    """
    while isinstance(model, functools.partial):
        model = model.func
    model = getattr(model, "_compiled", model)  # whose calls are frozen
    whole = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", None)
    if whole is None and isinstance(model, torch.nn.Module):
        own = getattr(model.forward, "_torchdynamo_orig_callable", None)
        whole = model if model._compiled_call_impl is not None else own
    function = whole.forward if isinstance(whole, torch.nn.Module) else whole
    behind = inspect.unwrap(function) if callable(function) else None
    codes = (getattr(getattr(each, "__func__", each), "__code__", None) for each in (function, behind))
    return tuple(code for code in codes if isinstance(code, types.CodeType))


def _is_torch(code: types.CodeType) -> bool:
    # Code that many models share, such as Sequential.forward: there the module itself decides.
    return code.co_filename.startswith(_TORCH)


def _original(name: str) -> str:
    resumed = _RESUMED.fullmatch(name)
    return resumed[1] if resumed else name


def around(model: Model, graphs: Iterable[CompiledGraph]) -> tuple[str, Reason | None]:
    """What of a model's calls runs eager and is in no graph that was compiled, as a few words, and why; "" if nothing.

    A break in a loop, or in a ``with`` or ``try``, cannot be resumed: Dynamo leaves the whole frame alone.
    """
    if any(getattr(type(each), "_paramgraph_owner", False) for each in model.modules.values()):
        return "", None
    compiled = {original(code) for each in graphs if each.compilation and (code := each.compilation.code())}
    if not compiled:
        return "", None
    if not model.root:
        return "what runs around them is eager", None
    if compiled & {*model.root} or any(map(_is_torch, compiled)):  # a wrapper of torch's stands for a module of its own
        return "", None
    behind = model.root[-1]
    name = getattr(behind, "co_qualname", behind.co_name).rpartition("<locals>.")[2]
    text = (
        f"graph break: torch.compile left {name} alone, so it runs eager but for what it calls: "
        "a break in a loop, a with or a try cannot be resumed"
    )
    frame = Frame(display_name(behind.co_filename), behind.co_firstlineno, behind.co_name)
    return f"{name} itself is eager", Reason("graph-break", text, frame)


def broken_at(graph: CompiledGraph) -> Frame | None:
    """The line of the break behind which a graph begins; None for one that begins with its function."""
    code = graph.compilation.code() if graph.compilation is not None else None
    line = break_before(code) if code is not None else None
    return None if line is None else frame_of_line(*line)


def break_before(code: types.CodeType) -> tuple[str, int] | None:
    """The file and the line of the break behind which code of Dynamo's goes on; None for all other code."""
    resumed = _RESUMED.fullmatch(code.co_name)
    return None if resumed is None else (code.co_filename, int(resumed[2]))


def breaks_so_far() -> int:
    """How many graph breaks Dynamo has noted."""
    return len(torch_name("graph_break_reasons"))


def graph_breaks(model: Model | None, since: int = 0) -> list[Reason]:
    """Why Dynamo made several graphs of one function, each once, in order; those after the first ``since``."""
    found: dict[Reason, None] = {}
    for entry in torch_name("graph_break_reasons")[since:]:
        stack = list(entry.user_stack)
        if (stack and stack[-1].filename.startswith(OURS)) or (model is not None and not model.ran(stack)):
            continue
        said = str(entry.reason).strip().splitlines()
        frame = user_frame("".join(traceback.format_list(stack)))
        found.setdefault(Reason("graph-break", f"graph break: {said[0].strip() if said else 'no reason given'}", frame))
    return list(found)
