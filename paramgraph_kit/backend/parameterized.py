"""``pgk.parameterize``: a function or module, traced once by AOTAutograd and launched from graphs at any addresses.

One aten operation is one kernel, the one that eager runs, forward and backward: the graphs of ``fx`` in the place of
Inductor's. (Tracing takes torch's own batch normalization where eager takes cuDNN's: the last bits may differ.)
Nothing guards a traced function, so everything that its trace may depend on is in the key of the trace.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.utils import _pytree as pytree

from paramgraph_kit.backend.eager_kernels import compile_with_eager_kernels
from paramgraph_kit.backend.members import PLAIN, Members, members_of, swapped
from paramgraph_kit.backend.registry import CompiledGraph
from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import Options
from paramgraph_kit.partition.names import argument_names
from paramgraph_kit.partition.nodes import is_random
from paramgraph_kit.trace.errors import DeviceMismatchError, RefusedError, UnsupportedError, cause_chain
from paramgraph_kit.trace.model import Reason
from paramgraph_kit.trace.wording import one_line

_tracing = threading.RLock()  # while it is held modules may have traced tensors in the place of their own
MAX_TRACES = 16  # of one callable: a number that changes with every call must not trace for ever
torch_name("keep_dynamo_out")("paramgraph_kit.backend")  # called in compiled code, it stays outside


@dataclass(slots=True)
class _Traced:
    """One trace: what runs, how its results are put together, and its graphs, which the registry holds weakly."""

    run: Callable[..., Any]
    root: _Flat
    graphs: list[CompiledGraph]


class Parameterized:
    """Callable in the place of a function or module, which is ``__wrapped__``; made by ``pgk.parameterize``.

    Copying or pickling it copies what it wraps; the copy traces anew. Two threads may call it.
    """

    _paramgraph_owner = True  # its graphs name it as their owner: how a report finds them

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        self._fn = fn
        self._options = options
        self._members = members_of(fn)
        self._specs: list[pytree.TreeSpec] = []
        self._traces: dict[Any, _Traced | None] = {}
        self._last: tuple[list[Any], Any, _Traced | None] = [], None, None
        self._refused: list[CompiledGraph] = []
        functools.update_wrapper(self, fn, updated=())

    def __repr__(self) -> str:
        name = getattr(self._fn, "__name__", type(self._fn).__name__)
        return f"Parameterized({name}, {sum(t is not None for t in self._traces.values())} traces)"

    def __reduce__(self) -> Any:
        return Parameterized, (self._fn, self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, from graphs where there are any."""
        traced, tensors = self._find(args, kwargs)
        if traced is None:
            return self._fn(*args, **kwargs)
        return traced.root.results(traced.run(*tensors))

    def trace(self, *args: Any, **kwargs: Any) -> None:
        """Trace for these inputs, running nothing on the device; what cannot be traced is in the report."""
        self._find(args, kwargs)

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Traced | None, list[torch.Tensor]]:
        """The trace for these arguments, made where there is none, and the tensors that it takes."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        key = None
        with _tracing:
            tensors = self._members.tensors()
            if tensors is None:  # a part of a module was added, replaced or taken away
                self._members = members_of(self._fn)
                self._traces.clear()
                self._last = [], None, None
                tensors = self._members.tensors() or []
            own = len(tensors)
            tensors += [x for x in leaves if isinstance(x, torch.Tensor)]
            try:
                values = [x for x in leaves if not isinstance(x, torch.Tensor)] + self._members.values()
                state = (_global_state(), list(map(_tensor_key, tensors)), _sharing(tensors), spec)
                # As in the last call? Equal is not enough for values (0.0 and -0.0), and hashing all takes long.
                last_values, last_state, traced = self._last
                if len(values) == len(last_values) and all(map(is_, values, last_values)) and state == last_state:
                    return traced, tensors
                key = self._key(values, *state)
                traced = self._traces[key] if key in self._traces else self._trace(key, leaves, spec, tensors, own)
                self._last = values, state, traced
            except RefusedError as refusal:
                self._note(refusal.reason)
                if self._options.strict:
                    self._traces.pop(key, None)  # so that the next such call fails too
                    raise
                traced = None
        return traced, tensors

    def _key(self, values: list[Any], switches: Any, tensors: list[Any], sharing: Any, spec: pytree.TreeSpec) -> Any:
        number = next((n for n, known in enumerate(self._specs) if known == spec), -1)
        if number < 0:
            number = len(self._specs)
            self._specs.append(spec)  # which not every torch can hash
        return number, tuple(map(_value_key, values)), switches, tuple(tensors), sharing

    def _trace(
        self, key: Any, leaves: Sequence[Any], spec: pytree.TreeSpec, tensors: Sequence[torch.Tensor], own: int
    ) -> _Traced | None:
        if len(self._traces) >= MAX_TRACES:
            text = f"called with more than {MAX_TRACES} sets of shapes and values: keep changing numbers in tensors"
            raise RefusedError(Reason("too-many-traces", text))
        self._check_devices(tensors, own)
        self._traces[key] = None
        try:
            # A call may come from compiled code, where Dynamo would follow us into the compiler.
            self._traces[key] = torch.compiler.disable(self._traced)(leaves, spec, tensors, own)  # type: ignore[no-untyped-call]
        except RefusedError:
            raise
        except Exception as error:  # eager has the last word: it raises the user's own mistakes as they are
            raise RefusedError(_why(error)) from error
        return self._traces[key]

    def _traced(
        self, leaves: Sequence[Any], spec: pytree.TreeSpec, tensors: Sequence[torch.Tensor], own: int
    ) -> _Traced:
        from paramgraph_kit.backend import new_number

        graphs: list[CompiledGraph] = []
        number, owner = new_number(), weakref.ref(self)

        def new_graph(phase: str) -> CompiledGraph:
            graphs.append(CompiledGraph(f"{phase} {number}", None, owner=owner, strict=self._options.strict))
            return graphs[-1]

        root = _Flat(self._fn, self._members, leaves, spec, own)
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        # The backward is compiled with the forward, and gives back nothing that a second backward would want.
        config = {
            "enable_autograd_cache": False,
            "force_non_lazy_backward_lowering": True,
            "donated_buffer": False,
            "view_replay_for_aliased_outputs": False,  # wrong where inputs that are written share a storage
        }
        context = torch_name("TracingContext")(torch_name("FakeTensorMode")())
        try:
            with torch_name("functorch_config").patch(config), torch_name("tracing")(context):
                run = compile_with_eager_kernels(
                    root,  # type: ignore[arg-type]  # AOTAutograd wants a module of flat tensors, no more
                    tensors,
                    new_graph,
                    driver(),
                    self._options,
                    number,
                    partition_fn=_partition,
                    names=[*self._members.unique_names(), *argument_names(self._fn, args, kwargs)],
                )
        except BaseException:
            for graph in graphs:  # which the error's traceback may keep alive
                graph.launchers.clear()
                graph.reasons.clear()
                graph.outside = 0
            raise
        if context.fw_metadata is not None:  # "none" for the check at each backward, where None is "not known"
            context.fw_metadata.bw_donated_idxs = []
        return _Traced(run, root, graphs)

    def _check_devices(self, tensors: Sequence[torch.Tensor], own: int) -> None:
        device = driver().device
        if own and not any(t.device.type == device.type for t in tensors):
            name = self._members.names[0]
            raise DeviceMismatchError(
                f"{name!r} of the parameterized module is on {tensors[0].device}, but graphs are made on {device}: "
                "move model and inputs with .to(paramgraph_kit.device()) first"
            )

    def _note(self, reason: Reason) -> None:
        if not any(reason in graph.reasons for graph in self._refused):
            name = f"parameterized {len(self._refused)}"
            self._refused.append(CompiledGraph(name, None, owner=weakref.ref(self), reasons=[reason]))


class _Flat(nn.Module):
    """A function of flat tensors, members first, that returns the flat tensors among the results."""

    def __init__(
        self, fn: Callable[..., Any], members: Members, leaves: Sequence[Any], spec: pytree.TreeSpec, own: int
    ) -> None:
        super().__init__()
        # Hidden from torch: what it finds in this module it would take for constants.
        self.__dict__["_call"] = fn
        self._spec, self._own = spec, own
        self._members = members
        self._values = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        self._holes = [n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self._template: list[Any] = []
        self._out_spec: pytree.TreeSpec | None = None

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs while it is traced only."""
        leaves = list(self._values)
        for n, tensor in zip(self._holes, tensors[self._own :], strict=True):
            leaves[n] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        with swapped(self._members, tensors[: self._own]):
            results = self.__dict__["_call"](*args, **kwargs)
        flat, self._out_spec = pytree.tree_flatten(results)
        self._template = [_TENSOR if isinstance(x, torch.Tensor) else x for x in flat]
        strange = next((x for x in flat if not isinstance(x, (torch.Tensor, *PLAIN))), None)
        if strange is not None:
            text = f"it returns a {type(strange).__name__}, and a graph returns tensors and plain values only"
            raise RefusedError(Reason("unknown-output", text))
        return tuple(x for x in flat if isinstance(x, torch.Tensor))

    def results(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the function returns, from the tensors in it."""
        assert self._out_spec is not None
        rest = iter(tensors)
        return pytree.tree_unflatten([next(rest) if x is _TENSOR else x for x in self._template], self._out_spec)


_TENSOR = object()  # where a tensor stands among the results


def _value_key(x: Any) -> Any:
    if not isinstance(x, PLAIN):
        text = f"an argument is a {type(x).__name__}: give tensors and plain values, in lists, tuples and dicts"
        raise RefusedError(Reason("unknown-argument", text))
    return type(x), x.hex() if isinstance(x, float) else repr(x) if isinstance(x, complex) else x  # 0.0 is not -0.0


def _tensor_key(x: torch.Tensor) -> Any:
    if type(x) not in (torch.Tensor, nn.Parameter, nn.Buffer) or x.layout != torch.strided:
        what = type(x).__name__ if x.layout == torch.strided else f"tensor of layout {x.layout}"
        raise RefusedError(Reason("unknown-argument", f"an argument or member is a {what}: only plain ones are traced"))
    return x.shape, x.stride(), x.dtype, x.device, x.requires_grad, x.is_conj(), x.is_neg(), x.is_inference()


def _sharing(tensors: Sequence[torch.Tensor]) -> Any:
    """Which inputs share a storage and where they lie in it: writes to one are seen in another."""
    storages = [x.untyped_storage()._cdata for x in tensors]
    if len(set(storages)) == len(storages):
        return ()
    first: dict[int, int] = {}
    groups = [first.setdefault(storage, n) for n, storage in enumerate(storages)]
    objects: dict[int, int] = {}
    same = [objects.setdefault(id(x), n) for n, x in enumerate(tensors)]
    return tuple(zip(groups, same, [x.storage_offset() for x in tensors], strict=True))


def _global_state() -> Any:
    """The switches of torch that a trace, or the kernels in it, depend on."""
    kinds = (driver().device.type, "cpu")
    cuda: Any = torch.backends.cuda  # in part untyped
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple([torch.is_autocast_enabled(k) and torch.get_autocast_dtype(k) for k in kinds]),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cuda.matmul.fp32_precision,
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        driver().library_state(),
    )


def _partition(joint: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Save what eager saves: without Inductor nothing is fused, and computing an activation again costs a kernel.

    Checkpointing puts the generator back before it computes again, which leaves no trace in a graph.
    """
    if any(is_random(node) and node.meta.get("partitioner_tag") == "is_backward" for node in joint.graph.nodes):
        text = "its backward draws random numbers (dropout under checkpointing?), which a graph would not repeat"
        raise RefusedError(Reason("random-backward", text))
    return torch_name("default_partition")(joint, *args, **kwargs)


def _why(error: BaseException) -> Reason:
    for each in cause_chain(error):  # AOTAutograd may have wrapped it
        if isinstance(each, RefusedError):
            return each.reason
    text = one_line(str(error)) or type(error).__name__
    if "convert all Tensors to FakeTensors" in text:
        return Reason("hidden-tensor", "it uses a tensor that is no argument and no member of a module: pass it as one")
    if type(error).__name__ in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return Reason("data-dependent", f"the host needs a value that is on the device: {text}")
    return Reason("not-traceable", f"tracing stopped: {type(error).__name__}: {text}")


def parameterize(fn: Any, examples: Sequence[Any], options: Options) -> Parameterized:
    """See ``paramgraph_kit.parameterize``."""
    if not callable(fn):
        raise UnsupportedError(f"parameterize takes a function or a module, not a {type(fn).__name__}")
    if isinstance(fn, Parameterized) or hasattr(fn, "_torchdynamo_orig_callable") or hasattr(fn, "_orig_mod"):
        name = "parameterize" if isinstance(fn, Parameterized) else "torch.compile"
        raise UnsupportedError(f"parameterize was given what {name} returned: pass the function or module itself")
    made = Parameterized(fn, options)
    if examples:
        made.trace(*examples)
    return made
