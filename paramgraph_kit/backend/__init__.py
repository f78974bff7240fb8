"""The torch.compile backend: partition, capture and launch, and the report of what came of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch

from paramgraph_kit.backend.devices import check_devices
from paramgraph_kit.backend.registry import CompiledGraph, site_being_compiled
from paramgraph_kit.driver.select import driver, teach_dynamo
from paramgraph_kit.driver.torch_names import carries_streams, torch_name
from paramgraph_kit.launch.launcher import Launcher, Options
from paramgraph_kit.partition.lanes import on_lanes
from paramgraph_kit.trace.errors import ParamgraphError, UnsupportedError

CHOICES = {
    "patching": ("auto", "device", "host"),
    "select": ("always", "measure", "never"),
    "verify": ("off", "first", "always"),
}
_numbers = itertools.count()
# Where a frame is not compiled Dynamo looks at what it calls, and on the simulator that includes kernels in Python.
torch_name("keep_dynamo_out")("paramgraph_kit.driver")
teach_dynamo()


def paramgraph(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Any:
    """``torch.compile(model, backend="paramgraph", options={...})``; options are the fields of ``Options``.

    Our own errors come when the result is called: Dynamo would wrap what is raised here in errors of its own.
    """
    try:
        return _compiled(gm, example_inputs, settings)
    except Exception as error:
        if (ours := _own_error(error)) is None:
            raise
        return _raising(ours)


def _compiled(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], settings: dict[str, Any]) -> Any:
    options = make_options(settings.get("options"))
    if settings.get("mode"):
        raise UnsupportedError(f"mode={settings['mode']!r} is Inductor's; backend='paramgraph' takes options=... only")
    target = driver()
    check_devices(gm, example_inputs, target.device)
    number, site = next(_numbers), site_being_compiled()

    def new_graph(phase: str) -> CompiledGraph:
        return CompiledGraph(
            f"{phase} {number}",
            site.callers,
            site.owner,
            site.like,
            strict=options.strict,
            compilation=site.compilation,
        )

    if target.name == "cuda" and not (carries_streams() and on_lanes(gm)):
        from paramgraph_kit.backend.inductor import compile_with_inductor

        return compile_with_inductor(gm, example_inputs, new_graph, target, options)
    # Inductor gives what one stream still reads to another: with streams each kernel is eager's, on its stream.
    from paramgraph_kit.backend.eager_kernels import compile_with_eager_kernels

    return compile_with_eager_kernels(gm, example_inputs, new_graph, target, options, number)


def _own_error(error: BaseException | None) -> ParamgraphError | None:
    """Our own error, also inside of what Inductor and AOTAutograd make of it."""
    while error is not None and not isinstance(error, ParamgraphError):
        error = getattr(error, "inner_exception", None)
    return error


def _raising(error: ParamgraphError) -> Callable[..., Any]:
    def raise_it(*_: Any) -> Any:
        raise error.with_traceback(None) from error.__cause__  # each call raises it anew

    return raise_it


def new_number() -> int:
    """The next number of a compiled function, which names its graphs."""
    return next(_numbers)


def make_options(given: dict[str, Any] | None) -> Options:
    """``Options`` from a dictionary; raises UnsupportedError for a name or a value that there is not."""
    names = [f.name for f in fields(Options)]
    unknown = sorted(set(given or ()) - set(names))
    if unknown:
        raise UnsupportedError(f"unknown option {unknown[0]!r} of backend='paramgraph'; known: {', '.join(names)}")
    options = Options(**(given or {}))
    for name, choices in CHOICES.items():
        if (value := getattr(options, name)) not in choices:
            raise UnsupportedError(f"{name}={value!r}: choose one of {', '.join(map(repr, choices))}")
    if type(options.stages) is not int or options.stages < 1:
        raise UnsupportedError(f"stages={options.stages!r}: give a whole number, 1 or more")
    if type(options.strict) is not bool:
        raise UnsupportedError(f"strict={options.strict!r}: give True or False")
    return options


__all__ = ["Launcher", "paramgraph"]
