"""The backend on a GPU: Inductor compiles and partitions, and hands each partition to a Launcher.

Inductor calls ``compile_fx.cudagraphify`` once for each partition, looked up at call time. While one of our
compilations is under way that name leads here, otherwise to torch's own function.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial, wraps
from typing import Any
from unittest import mock

import torch
import torch.fx

from paramgraph_kit.backend.attention import host_seeds, on_memory_of_their_own
from paramgraph_kit.backend.direct.calls import Codes, DirectCall
from paramgraph_kit.backend.direct.recipe import GraphCode
from paramgraph_kit.backend.fx import returned_to_the_caller, tangents_of
from paramgraph_kit.backend.generated_code import GeneratedCode, frames_by_name
from paramgraph_kit.backend.outside import TRANSFERS, copies_in_their_place, keep_outside
from paramgraph_kit.backend.registry import CompiledGraph, Piece
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.code import PartitionCode, Run
from paramgraph_kit.launch.launcher import Launcher, Options
from paramgraph_kit.partition.fixed import keep_fixed
from paramgraph_kit.partition.host_reads import host_read, leaving_out, refused_kernel
from paramgraph_kit.partition.names import input_names, modules_by_name, value_names
from paramgraph_kit.partition.rules import reasons_for
from paramgraph_kit.trace.errors import RefusedError, UnsupportedError
from paramgraph_kit.trace.model import Reason

# Inductor orders streams between its partitions, with events that no launch of one of them would record.
_ON_STREAMS = Reason("user-stream", "its kernels run on streams of the user's, which are ordered outside of it")
_OTHER_STORAGE = Reason("unsafe-op", "it gives a tensor other memory, which each call of it has to do")
CONFIG = {"triton.cudagraphs": True, "graph_partition": True}

_active: ContextVar[_Compilation | None] = ContextVar("paramgraph_compilation", default=None)


class _Partition:
    """What Inductor gets in the place of a partition: it compiles on, and only then the launcher is complete."""

    __slots__ = ("aligned", "constants", "launcher", "placeholders")

    launcher: Launcher

    def __init__(self, aligned: _Aligned, constants: tuple[torch.Tensor, ...], placeholders: tuple[str, ...]) -> None:
        self.aligned, self.constants, self.placeholders = aligned, constants, placeholders

    def __call__(self, inputs: list[Any]) -> Any:
        return self.launcher.current(inputs)


class _Compilation:
    """One FX graph on its way through Inductor, and its partitions so far."""

    def __init__(self) -> None:
        self.partitions: list[_Partition] = []

    def cudagraphify(
        self, model: Callable[[list[Any]], Any], static_input_idxs: Sequence[int], **meta: Any
    ) -> _Partition:
        """What stands in for Inductor's function of this name."""
        aligned = _Aligned(model, tuple(static_input_idxs), tuple(meta["mutated_input_idxs"]))
        names = tuple(each.name for each in meta["placeholders"])
        self.partitions.append(_Partition(aligned, tuple(meta["constants"]), names))
        return self.partitions[-1]


class _Aligned:
    """A partition with Inductor's own care for inputs that are less aligned than its kernels assume.

    Inductor leaves that to whoever takes over cudagraphify. Which inputs to watch shows at the first call.

    Inductor also tunes a kernel again once another graph that has the same kernel is compiled, perhaps to other bits:
    here each call uses what the first, which the capture follows, was tuned to.
    """

    def __init__(self, model: Callable[[list[Any]], Any], static: tuple[int, ...], mutated: tuple[int, ...]) -> None:
        self._model, self._static, self._mutated = model, static, mutated
        self._run: Callable[[list[Any]], Any] | None = None
        self._tuned: list[tuple[Any, list[Any]]] = []  # kernels, and what each was tuned to
        self._checked: Sequence[int] = ()

    def checks(self) -> Sequence[int]:
        """Positions of the inputs that are copied where they are not aligned; none before the first call."""
        return self._checked

    def sources(self) -> dict[str, str]:
        """The text of each Triton kernel by its name."""
        return {name: text for name, kernel in kernels_in(self._model) if (text := _text_of(kernel))}

    def __call__(self, inputs: list[Any]) -> Any:
        if self._run is not None:
            for kernel, launchers in self._tuned:
                kernel.launchers = launchers
            return self._run(inputs)
        self._checked = check = torch_name("get_input_idxs_to_check")(inputs, self._static)
        ordered = torch_name("OrderedSet")(self._mutated)
        self._run = torch_name("align_inputs_from_check_idxs")(self._model, check, ordered)
        outputs = self._run(inputs)
        self._tuned = tuned_kernels(self._model)
        return outputs


def tuned_kernels(partition: Any) -> list[tuple[Any, list[Any]]]:
    """The Triton kernels that a partition's generated code launches and that have been tuned, with their launchers."""
    return [(kernel, kernel.launchers) for _, kernel in kernels_in(partition) if len(kernel.launchers) == 1]


def kernels_in(partition: Any) -> list[tuple[str, Any]]:
    """The Triton kernels that a partition's generated code launches, by the names that it has for them."""
    code, names = getattr(partition, "__code__", None), getattr(partition, "__globals__", {})
    kind = torch_name("CachingAutotuner")
    return [(n, names[n]) for n in code.co_names if isinstance(names.get(n), kind)] if code else []


def _text_of(kernel: Any) -> str:
    """What was compiled; "" where this version of Triton keeps it elsewhere."""
    text = getattr(getattr(kernel, "fn", None), "src", "")
    return text if isinstance(text, str) else ""


def compile_with_inductor(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    new_graph: Callable[[str], CompiledGraph],
    driver: Driver,
    options: Options,
) -> Callable[..., Any]:
    """Compile a Dynamo graph with Inductor, its partitions launched by us; ``new_graph(phase)`` registers each."""
    _install()
    compile_inner, codes = torch_name("compile_fx_inner"), Codes()
    called = input_names(gm)
    before: dict[str, str] = {}  # names of the forward's values, for the backward

    def inner(graph_module: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        phase = "backward" if kwargs.get("is_backward") else "inference" if kwargs.get("is_inference") else "forward"
        graph = new_graph(phase)
        as_it_was = _copy(graph_module.graph)
        graph.kept = keep_fixed(graph_module, driver.device.type, numbers=False)
        again = _Again()
        try:
            output = compile_graph(graph_module, graph, phase, inputs, kwargs, again)
        except RefusedError:
            raise
        except Exception:  # should this Inductor not take the constants: the graph as it was, or its own error
            if not graph.kept:
                raise
            graph.kept, graph_module.graph = [], as_it_was
            output = compile_graph(graph_module, graph, phase, inputs, kwargs, again)
        has_code = hasattr(output, "current_callable")  # without an operation Inductor gives back a plain function
        code = codes.add(
            GraphCode(output.current_callable if has_code else output, graph, backward=phase == "backward")
        )
        if not has_code:
            return code
        output.current_callable = code
        # A backward relies on how its forward lays out what it saves, and sizes that change have guards.
        if phase == "inference" and all(isinstance(x, torch.Tensor) for x in inputs):
            again.ready(
                code, partial(compile_again, graph_module, _copy(as_it_was), weakref.ref(graph), list(inputs), kwargs)
            )
        return output

    def compile_again(
        module: torch.fx.GraphModule,
        as_it_was: torch.fx.Graph,
        graph: weakref.ref[CompiledGraph],
        inputs: Sequence[Any],
        how: dict[str, Any],
        again: _Again,
    ) -> Any:
        module, registered = torch.fx.GraphModule(module, _copy(as_it_was)), graph()
        if registered is None or not any(host_read(node) or refused_kernel(node) for node in module.graph.nodes):
            return None
        return compile_graph(module, registered, "inference", inputs, how, again)

    def compile_graph(
        graph_module: torch.fx.GraphModule,
        graph: CompiledGraph,
        phase: str,
        inputs: Sequence[Any],
        how: dict[str, Any],
        again: _Again,
    ) -> Any:
        for reason in reasons_for(graph_module, driver.device.type):
            graph.refuse(reason)
        # Asked before Inductor, which may change the graph.
        frames, seeds, apart = (
            frames_by_name(graph_module),
            host_seeds(graph_module),
            on_memory_of_their_own(graph_module),
        )
        modules, values = modules_by_name(graph_module), value_names(graph_module, called, before)
        before.update(values)
        names = [node.name for node in graph_module.graph.find_nodes(op="placeholder")]
        keep_outside(graph_module)
        compilation = _Compilation()
        token = _active.set(compilation)
        try:
            with _real_constants(inputs) if graph.kept else nullcontext(), copies_in_their_place(graph_module):
                output = compile_inner(graph_module, inputs, **how)
        finally:
            _active.reset(token)
        if not hasattr(output, "current_callable"):
            return output
        _note_skips(graph, output)
        source = GeneratedCode(getattr(output, "source_code", "") or "")
        graph.outside = source.launches_outside()
        alone = dict.fromkeys(source.changing_storages(), _OTHER_STORAGE) | dict.fromkeys(
            source.on_streams(), _ON_STREAMS
        )
        lines, paths = source.by_launch(frames), source.by_launch(modules)
        saved = source.saved(returned_to_the_caller(), apart) if phase == "forward" else {}
        for number, partition in enumerate(compilation.partitions):
            code = PartitionCode(
                f"{graph.name} partition {number}",
                partition.aligned,
                partition.constants,
                recut=partial(again, partition.aligned),
                host_seeds=tuple(k for k, name in enumerate(partition.placeholders) if name in seeds),
                unguarded=tangents_of(partition.placeholders),
                together=saved.get(number, frozenset()),
                aligned=partition.aligned.checks,
                lines=lines.get(number, {}),
                modules=paths.get(number, {}),
                names=tuple(values.get(name, "") for name in partition.placeholders),
                sources=partition.aligned.sources,
                refused=alone.get(number),
            )
            partition.launcher = Launcher(driver, code, options)
            graph.launchers.append(partition.launcher)
        for position, (what, number) in enumerate(source.order()):
            if what == "outside":
                graph.pieces.append(Piece((position,), number))
            elif number < len(graph.launchers):
                graph.positions[graph.launchers[number].name] = (position,)
        if seeds and (graph.outside or not graph.launchers):
            _give_seeds_on_the_host(output, names, seeds)
        output._paramgraph = graph  # the registry holds it weakly: it lives as long as the compiled code
        return output

    # AOTAutograd's own cache would return finished callables without passing here; the FX cache stays on.
    with torch_name("functorch_config").patch(enable_autograd_cache=False):
        compiled: Callable[..., Any] = torch_name("compile_fx")(
            gm, list(example_inputs), inner_compile=inner, config_patches=_config()
        )
    return DirectCall(compiled, codes, driver.device.index)


def _config() -> dict[str, Any]:
    """Inductor's settings for this compilation, the user's list of operations to cut at among them."""
    cut_at = torch_name("config").custom_should_partition_ops
    # The last names no operation: it keeps code apart that was cached when results were still moved (``_install``).
    return CONFIG | {
        "custom_should_partition_ops": [*cut_at, *(f"ao::{name}" for name in TRANSFERS), "pgk::results_stay"]
    }


def _copy(graph: torch.fx.Graph) -> torch.fx.Graph:
    copy = torch.fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


class _Again:
    """Compiles a graph once more, without what its capture failed in or what no graph may take.

    It holds what it compiles weakly, whose launchers hold it.
    """

    def __init__(self) -> None:
        self._code: weakref.ref[GraphCode] | None = None
        self._compile: Callable[[_Again], Any] | None = None

    def ready(self, code: GraphCode, compile_: Callable[[_Again], Any]) -> None:
        """Know what is called, and how to compile; which gives None where nothing is left out."""
        self._code, self._compile = weakref.ref(code), compile_

    def __call__(self, run: Run, error: BaseException) -> Run | None:
        """Asked by a launcher: from the next call on other code runs; in this one its partition goes on as ``run``."""
        with leaving_out(error, alike=True) as known:
            code = self._code() if known and self._code is not None else None
            if code is None or self._compile is None:  # what is compiled stays; the next compilation leaves it out
                return None
            replaced: bool = torch.compiler.disable(self._replace)(code, self._compile)  # type: ignore[no-untyped-call]
        return run if replaced else None

    def _replace(self, code: GraphCode, compile_: Callable[[_Again], Any]) -> bool:
        graph = code.graph
        before = {name: getattr(graph, name) for name in _OF_CODE}
        for name, value in before.items():
            setattr(graph, name, type(value)())
        try:
            with torch_name("config").patch(_config()):
                output = compile_(self)
            code.code, code.kept = output.current_callable, output  # which empties its code when it goes
        except Exception:  # what is compiled goes on, and its reason is told
            for name, value in before.items():
                setattr(graph, name, value)
            return False
        for launcher in before["launchers"]:  # in the rest of this call
            launcher.pause()
        return True


_OF_CODE = ("launchers", "reasons", "kept", "constants", "pieces", "positions", "outside")  # of a CompiledGraph


@contextmanager
def _real_constants(inputs: Sequence[Any]) -> Iterator[None]:
    """Let Inductor trace a graph with tensors that are kept beside it, which are real and not fake as the others."""
    mode = torch_name("detect_fake_mode")(inputs)
    if mode is None:
        yield
        return
    with mock.patch.object(mode, "allow_non_fake_inputs", True):
        yield


def _give_seeds_on_the_host(output: Any, names: list[str], seeds: frozenset[str]) -> None:
    """Let the compiled code itself, where it has launches outside of graphs, see what it sees without graphs."""
    code, positions = output.current_callable, [k for k, name in enumerate(names) if name in seeds]

    def call(inputs: list[Any]) -> Any:
        for k in positions:
            inputs[k] = inputs[k].cpu()
        return code(inputs)

    output.current_callable = call


def _note_skips(graph: CompiledGraph, output: Any) -> None:
    reasons = [getattr(output, "disabled_cudagraphs_reason", None)]
    reasons += getattr(getattr(output, "cudagraph_info", None), "cudagraph_fail_reasons", None) or []
    for text in filter(None, reasons):
        graph.refuse(Reason("inductor-skip", f"Inductor gave up graphs for all of {graph.name}: {text}"))


_KEYWORDS = ("constants", "placeholders", "mutated_input_idxs")  # of cudagraphify, that tell what we must know


def check_keywords(cudagraphify: Callable[..., Any]) -> None:
    """Whether Inductor's function still takes what is read here.

    Raises:
        UnsupportedError: it does not, in this version of torch.
    """
    known = inspect.signature(cudagraphify).parameters
    gone = [name for name in ("static_input_idxs", *_KEYWORDS) if name not in known]
    if gone:
        raise UnsupportedError(
            f"torch {torch.__version__}: Inductor's cudagraphify takes no {', '.join(gone)} any more, "
            "and without that no partition can be launched from a graph: install torch 2.11 to 2.13"
        )


@cache
def _install() -> None:
    """Make the two names that Inductor looks up at call time lead here while a compilation of ours is under way."""
    compile_fx, output_code = torch_name("compile_fx_module"), torch_name("output_code_module")
    theirs, their_generation = compile_fx.cudagraphify, output_code.maybe_handle_backward_generation
    check_keywords(theirs)

    @wraps(theirs)  # whoever asks for its keywords is told torch's
    def cudagraphify(model: Any, static_input_idxs: Sequence[int] = (), **meta: Any) -> Any:
        ours = _active.get()
        return (
            theirs(model, static_input_idxs, **meta)
            if ours is None
            else ours.cudagraphify(model, static_input_idxs, **meta)
        )

    def maybe_handle_backward_generation(*args: Any) -> None:
        if _active.get() is None:  # it looks for the tree manager, which only torch's own cudagraphify makes
            their_generation(*args)

    # Numbers on the host that become tensors of the device there are results of a forward, too, whose backward was
    # traced for the host: its code for the CPU then reads device memory, and the process is gone (pytorch #177563).
    mover = torch_name("ConstructorMoverPass")
    their_init = mover.__init__

    @wraps(their_init)
    def init(self: Any, *args: Any, **named: Any) -> None:
        their_init(self, *args, **named)
        if _active.get() is not None:
            self.allow_outputs = False

    mover.__init__ = init
    compile_fx.cudagraphify = cudagraphify
    output_code.maybe_handle_backward_generation = maybe_handle_backward_generation
