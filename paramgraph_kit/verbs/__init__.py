"""The public verbs: each is a thin function that imports what it needs when it is called.

Importing this module imports neither torch nor CUDA. The modules beside it begin with an underscore: so
``diagnose`` is the verb and not the module that holds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramgraph_kit.explore import Explorer
from paramgraph_kit.trace import ParamgraphError, Trace, UnsupportedError, growing
from paramgraph_kit.trace import load as _load
from paramgraph_kit.trace import save as _save
from paramgraph_kit.trace.wording import kind_text

# Eager, although the verbs are lazy: the first import of a subpackage sets the attribute of that name on its parent,
# and must not do so after ``paramgraph_kit.explore`` has become the function below.
from paramgraph_kit.verbs._device import device as device
from paramgraph_kit.verbs._device import instead_of_cuda
from paramgraph_kit.verbs._diagnose import diagnose as diagnose

if TYPE_CHECKING:
    from paramgraph_kit.backend.report import Report


def compile(model: Any, *, guards: str = "full", **options: Any) -> Any:  # noqa: A001 - the verb that torch uses
    """``torch.compile`` with this backend: partitions become CUDA graphs whose addresses are patched at launch.

    Args:
        model: a function or a module on ``device()``.
        guards: what a call checks before it launches. "full": all that Dynamo does. "dynamo": Dynamo's guards without
            its frame evaluation, and that every parameter lies where it lay; "inputs": the arguments and torch's
            switches only, with your promise that the model stays as it is, which every 256th call checks. Calls that
            are more than one graph stay full.
        options: the fields of ``launch.launcher.Options``: ``patching`` ("auto", "device" or "host": who rewrites
            addresses), ``select`` ("always"; "measure" keeps only graphs that are quicker than the same code without;
            "never"), ``verify`` ("off"; "first" compares each graph's first launch with the ungraphed code bit for
            bit, "always" every launch: where they differ, the ungraphed result is returned and the graph given up),
            ``strict`` (True: what no graph may take is an error, with its reason) and ``stages``. See
            docs/launcher.md.

    Raises:
        UnsupportedError: ``model`` cannot be called, an unknown option, or a value that it does not have; at a call,
            what this torch lacks.
        DeviceMismatchError: at a call, a model or input that was never moved to the device.
        RefusedError: at a call, with ``strict=True``, where something would run ungraphed; ``reason`` says why.
        PromiseError: at a call, with ``guards="inputs"``: the model has changed.

    Examples:
        >>> double = compile(lambda x: x * 2)
        >>> never = compile(lambda x: x * 2, select="never")  # the same code without graphs, to compare with
    """
    import torch

    from paramgraph_kit.backend import make_options, paramgraph
    from paramgraph_kit.backend.frozen.calls import MODES, freeze_calls

    _check_callable("compile", model)
    make_options(options)
    if guards not in MODES:
        raise UnsupportedError(f"guards={guards!r}: choose one of {', '.join(map(repr, MODES))}")
    return freeze_calls(torch.compile(model, backend=paramgraph, options=options or None), guards)


def parameterize(fn: Any, *examples: Any, state: Any = None, **options: Any) -> Any:
    """A callable in the place of ``fn`` that is launched from graphs at any addresses, without torch.compile.

    Like ``torch.cuda.make_graphed_callables``, but inputs are not copied, outputs are ordinary tensors, and each new
    set of shapes, plain values and switches is traced and captured by itself. Forward and backward run the kernels
    that eager runs, but torch's own batch normalization where eager takes cuDNN's (other last bits); activations are
    kept even where eager checkpoints them, and a backward has no backward; a result that no backward starts from
    counts as zero, so that ``.grad`` may be zeros where eager leaves None, as with torch.compile. The first call of
    each runs ungraphed and captures. What cannot be traced (a value that the host needs, an assignment to an
    attribute) runs as it is, with the reason in ``report(callable)``. What else ``fn`` does on the host, such as
    printing, is done while tracing only.

    Args:
        fn: a function or a module on ``device()``. Its parameters and buffers, and those of modules that it names,
            are inputs: they may move. What it and its helpers read elsewhere (globals, attributes, items, closures,
            defaults, the environment) may change: it is looked at in each call. It takes and returns tensors and plain
            values, in lists, tuples and dicts.
        examples: positional arguments to trace with now, without running anything; left out, the first call traces.
        state: what a training step changes: the model, the optimizer, an average of weights, a scaler. With it ``fn``
            is a whole step (forward, loss, ``backward()``, optimizer, ``zero_grad``) that becomes one graph: its own
            Python runs under capture, so nothing is traced and its kernels are eager's or its compiled model's. The
            state is not copied and stays where it is; ``fn`` may reach more of it by its closure. The first two calls
            run ungraphed, the second is captured; ``verify`` is ``"first"`` where it is not given. In a notebook
            results of earlier cells whose backward pass is done are detached. See docs/step.md.
        options: as for ``compile``.

    Raises:
        UnsupportedError: ``fn`` cannot be called or is compiled already, or an unknown option.
        ParamgraphError: ``state`` is a text or a number, or a step was given with examples, or twice.
        DeviceMismatchError: a module that was never moved to the device.
        RefusedError: at a call, with ``strict=True``, where something would run ungraphed; ``reason`` says why.

    Examples:
        >>> import torch
        >>> x = torch.ones(2, 3, device=device())
        >>> double = parameterize(lambda x: x * 2, x)
        >>> [double(x).sum().item() for _ in range(2)]
        [12.0, 12.0]
        >>> report(double)
        Report(1 of 1 partitions graphed, 1 of 1 kernels in graphs)

        >>> model = torch.nn.Linear(3, 1).to(device())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def step(x):
        ...     optimizer.zero_grad()
        ...     loss = model(x).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss.detach()
        >>> step = parameterize(step, state=(model, optimizer))
        >>> losses = [step(x).item() for _ in range(4)]
        >>> step
        Step(step, 1 graph)
    """
    from paramgraph_kit.backend import make_options

    _check_callable("parameterize", fn)
    if state is not None:
        from paramgraph_kit.step.step import make_step
        from paramgraph_kit.verbs._left_over import let_go

        let_go()  # as the step does with what its own ungraphed calls leave
        return make_step(fn, examples, state, make_options({"verify": "first"} | options))
    from paramgraph_kit.backend.parameterized import parameterize as make

    return make(fn, examples, make_options(options))


def report(model: Any = None) -> Report:
    """What was graphed of a compiled model, what was not and why, and what it costs.

    Args:
        model: a compiled function or module, or a module with compiled parts; everything alive if None.

    Raises:
        ParamgraphError: ``model`` is nothing that can have been compiled.

    Examples:
        >>> import torch
        >>> double = compile(lambda x: x * 2)
        >>> print(str(report(double)).splitlines()[2])
        nothing is compiled yet: call the model once, compiled with backend="paramgraph"
        >>> y = double(torch.ones(2, device=device()))
        >>> report(double)
        Report(1 of 1 partitions graphed, 1 of 1 kernels in graphs)
    """
    from paramgraph_kit.backend.report import make_report

    return make_report(model)


@contextmanager
def watch(title: str = "watch") -> Iterator[Trace]:
    """Record partitions, captures, launches, failures and memory while a ``with`` block runs.

    An exception that leaves the block is explained in ``failures`` and goes on. Memory is recorded event by event
    on the simulator, and read before and after on a GPU.

    Args:
        title: what the trace is called.

    Raises:
        ParamgraphError: ``title`` is no text.

    Examples:
        >>> with watch("nothing") as trace:
        ...     pass
        >>> len(trace.launches)
        0
    """
    from paramgraph_kit.backend.watch import watching
    from paramgraph_kit.ledger.events import pool_events
    from paramgraph_kit.verbs._explained import explained

    if not isinstance(title, str):
        raise ParamgraphError(
            f"watch takes the trace's title, not {kind_text(title)}: call what you watch in the block"
        )
    trace: Trace | None = None
    try:
        with watching(title, explained) as trace, pool_events(trace.pool_events):
            growing.begin(trace)  # an explorer that is shown in the block follows
            yield trace
    except Exception as error:
        if hint := instead_of_cuda(error):
            error.add_note(hint)
        raise
    finally:
        if trace is not None:
            growing.end(trace)


def explore(what: Any) -> Explorer:
    """Look at a trace, a report, a story, a compiled model or a captured ``CUDAGraph``: live in a notebook, else text.

    Shown inside ``with watch() as trace``, it follows what happens while the block still runs.

    Args:
        what: one of these, or ``{name: one of these, ...}``: steps to walk through, with what changed between them.
            A graph that torch captured must be kept: ``torch.cuda.CUDAGraph(keep_graph=True)``.

    Raises:
        ParamgraphError: ``what`` is none of these.
        UnsupportedError: a graph that has captured nothing, or was not kept.

    Examples:
        >>> with watch("nothing") as trace:
        ...     pass
        >>> explore(trace)
        Explorer(Trace('nothing', ...: 0 partitions, 0 captures, 0 launches, 0 failures, ...))
        >>> explore({"before": trace, "after": trace})
        Explorer('before', 'after')
    """
    told = getattr(what, "traces", None)  # of a story
    if isinstance(told, dict) and told and all(isinstance(each, Trace) for each in told.values()):
        return Explorer(told)
    if isinstance(what, Mapping):
        return Explorer({str(name): _trace_of("explore", one) for name, one in what.items()})
    return Explorer(_trace_of("explore", what))


def save(what: Any, path: str | os.PathLike[str], *, strip_source: bool = False) -> Path:
    """Write a trace, or that of a report or a compiled model, to a file and return its path.

    Args:
        what: what ``watch``, ``report`` or ``load`` returned, or a compiled model.
        path: where to write, by custom ``*.pgtrace``.
        strip_source: leave out source lines and paths.

    Raises:
        TraceError: the file cannot be written.
        ParamgraphError: ``what`` is none of these, or ``path`` is no path.

    Examples:
        >>> save(report(), "model.pgtrace")  # doctest: +SKIP
        PosixPath('model.pgtrace')
    """
    return _save(_trace_of("save", what), path, strip_source=strip_source)


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace file; what was live when it was written is ``recorded`` from now on.

    Args:
        path: what ``save`` wrote, or a memory snapshot of torch's (``torch.cuda.memory._dump_snapshot``), of which
            nothing is run: plain values are read.

    Raises:
        TraceError: no such file, damaged, or neither of the two.
        ParamgraphError: ``path`` is no path.

    Examples:
        >>> load("model.pgtrace")  # doctest: +SKIP
        Trace('model', recorded: 3 partitions, 2 captures, 40 launches, 0 failures, 812 pool events)
    """
    from paramgraph_kit.ledger import is_pickled, read_snapshot

    return read_snapshot(path) if is_pickled(path) else _load(path)


def _check_callable(verb: str, fn: Any) -> None:
    if not callable(fn):
        raise UnsupportedError(f"{verb} takes a function or a module, not {kind_text(fn)}")


def _trace_of(verb: str, what: Any) -> Trace:
    if isinstance(what, Trace):
        return what
    trace = getattr(what, "trace", None)
    if isinstance(trace, Trace):  # a report; asked for by shape, so that looking at a file needs no torch
        return trace
    if hasattr(what, "capture_begin") and hasattr(what, "replay"):  # a CUDAGraph, torch's or its simulated twin
        from paramgraph_kit.backend.tracing import trace_of_graph

        return trace_of_graph(what)
    if what is None or not callable(what):
        file = isinstance(what, (str, os.PathLike))
        given = f"{what!r}; {verb} a file with {verb}(load(path))" if file else kind_text(what)
        raise ParamgraphError(f"{verb} takes a trace, a report or a compiled model, not {given}")
    if isinstance(what, AbstractContextManager):  # callable, as a decorator
        block = "with watch() as trace: ..."
        raise ParamgraphError(f"{verb} takes what watch gives to a block: {block}, then {verb}(trace)")
    return report(what).trace
