"""Tracing a function of anything as one of flat tensors, by AOTAutograd, forward and backward."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any
from unittest import mock

import torch
import torch.fx
from torch import nn
from torch.utils import _pytree as pytree

from paramgraph_kit.backend.casts import cast_to, refuse_casts, without_casts
from paramgraph_kit.backend.direct.calls import DirectCall
from paramgraph_kit.backend.direct.parts import Parts, made_of
from paramgraph_kit.backend.eager_kernels import compile_with_eager_kernels
from paramgraph_kit.backend.fakes import fake_mode
from paramgraph_kit.backend.members import side_effect
from paramgraph_kit.backend.plain import PLAIN, flatten
from paramgraph_kit.backend.questions import Questions
from paramgraph_kit.backend.registry import CompiledGraph
from paramgraph_kit.backend.state import State
from paramgraph_kit.backend.traced_lines import lines_noted, refuse_replaced
from paramgraph_kit.backend.undisturbed import note_whose, others_undisturbed
from paramgraph_kit.backend.whole import kept_whole
from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import Options
from paramgraph_kit.partition.fixed import again_in_backward
from paramgraph_kit.partition.nodes import is_random
from paramgraph_kit.trace.errors import RefusedError, cause_chain
from paramgraph_kit.trace.model import Reason
from paramgraph_kit.trace.wording import one_line

_HIDDEN = (  # in torch's words
    ("uses", "reads", "convert all Tensors to FakeTensors"),
    ("writes to", "writes", "mutating a non-functional tensor"),
    ("trains", "trains", "backprop through mirrored meta"),
)
_TENSOR = object()  # where a tensor stands among the results


class Flat(nn.Module):
    """A function of flat tensors, members first, that returns the flat tensors among the results."""

    def __init__(self, fn: Callable[..., Any], state: State, leaves: Sequence[Any], spec: pytree.TreeSpec) -> None:
        super().__init__()
        # Hidden from torch: what it finds in this module it would take for constants.
        self.__dict__["_call"] = fn
        self.__dict__["_state"] = state
        self._spec, self._own = spec, len(state.tensors)
        self._values = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        self._holes = [n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        # Code can tell whether two arguments, or an argument and a member, are one.
        inputs = [*state.tensors, *(leaves[n] for n in self._holes)]
        self.__dict__["_inputs"] = inputs
        first: dict[int, int] = {}
        self._same = [first.setdefault(id(x), k) for k, x in enumerate(inputs)]
        self._template: list[Any] = []
        self.types: list[torch.dtype] = []  # of the results
        self.absent: set[str] = set()  # attributes that were looked for in inputs
        self._out_spec: pytree.TreeSpec | None = None

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs while it is traced only."""
        note_whose()
        tensors = tuple(tensors[k] for k in self._same)
        leaves = list(self._values)
        for n, tensor in zip(self._holes, tensors[self._own :], strict=True):
            leaves[n] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        state = self.__dict__["_state"]
        questions = Questions(tensors, self.__dict__["_inputs"], state.looks_at_all)
        noted = lines_noted(state.members.paths, outermost=__file__)
        with state.traced(tensors[: self._own]), questions.heard(), noted:
            results = self.__dict__["_call"](*args, **kwargs)
        _refuse_written((args, kwargs), leaves, self._spec)
        self.absent |= questions.absent
        flat, self._out_spec = flatten(results)
        questions.returned((flat,))
        self._template = [_TENSOR if isinstance(x, torch.Tensor) else x for x in flat]
        strange = next((x for x in flat if not isinstance(x, (torch.Tensor, *PLAIN))), None)
        if strange is not None:
            text = f"it returns a {type(strange).__name__}, and a graph returns tensors and plain values only"
            raise RefusedError(Reason("unknown-output", text))
        tensors = tuple(x for x in flat if isinstance(x, torch.Tensor))
        self.types = [x.dtype for x in tensors]
        return tensors

    def forget(self) -> None:
        """Let go of what only tracing needs: the function must not live as long as its graphs."""
        del self.__dict__["_call"], self.__dict__["_state"], self.__dict__["_inputs"]

    def results(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the function returns, from the tensors in it."""
        assert self._out_spec is not None
        if self._out_spec.is_leaf() and tensors:
            return tensors[0]
        rest = iter(tensors)
        return pytree.tree_unflatten([next(rest) if x is _TENSOR else x for x in self._template], self._out_spec)


def _refuse_written(given: Any, leaves: Sequence[Any], spec: pytree.TreeSpec) -> None:
    """Raise RefusedError where a list or dict among the arguments holds something else than it was given."""
    now, shape = flatten(given)
    if shape != spec or not all(map(is_, now, leaves)):
        raise side_effect("an item of an argument")


def discard(graphs: Sequence[CompiledGraph]) -> None:
    """Leave nothing of a trace in the report, however long it lives."""
    for graph in graphs:
        graph.launchers.clear()
        graph.reasons.clear()
        graph.outside = 0


def trace_flat(
    root: Flat,
    tensors: Sequence[torch.Tensor],
    new_graph: Callable[[str], CompiledGraph],
    graphs: Sequence[CompiledGraph],
    options: Options,
    number: int,
    names: Sequence[str],
) -> tuple[DirectCall, bool, Parts | None]:
    """What runs in the function's place, whether it writes into an input, and what its backward may leave out."""
    refuse_replaced()
    apart = list({id(x): x for x in tensors}.values())  # one that is given twice is one in the trace
    overlapping = _overlapping(apart)
    # The backward is compiled with the forward, and gives back nothing that a second backward would want.
    config = {
        "enable_autograd_cache": False,
        "force_non_lazy_backward_lowering": True,
        "donated_buffer": False,
        # A view, in the results, of an input that is written is replayed or, since that is wrong where inputs overlap,
        # made with the layout of a copy.
        "view_replay_for_aliased_outputs": not overlapping,
        **without_casts(),
    }
    mode, needs = fake_mode(), list[frozenset[int]]()
    context = torch_name("TracingContext")(mode)
    try:
        with (
            torch_name("functorch_config").patch(config),
            torch_name("tracing")(context),
            _without_streams(),
            _without_packing(),
            _as_eager_asks(),
            kept_whole(),
            others_undisturbed(),
        ):
            run = compile_with_eager_kernels(
                root,  # type: ignore[arg-type]  # AOTAutograd wants a module of flat tensors, no more
                tensors,
                new_graph,
                driver(),
                options,
                number,
                partition_fn=partial(_partition, needs, cast_to()),
                names=names,
            )
    except BaseException:
        discard(graphs)  # which the error's traceback may keep alive
        raise
    finally:  # what it remembers of tensors refers weakly to them, and torch swaps no such tensor
        mode.fake_tensor_converter = type(mode.fake_tensor_converter)()
        failed, mode.failed = mode.failed, None  # torch may keep the mode, and an error holds what was given
    if failed is not None:  # and the user's code caught it: eager would not have failed there
        discard(graphs)
        raise RefusedError(why_not(failed)) from failed
    metadata = context.fw_metadata
    if metadata is None:
        return run, True, None
    _refuse_written_leaves(metadata)
    _refuse_views_of_other_types(metadata, apart, root.types, replayed=not overlapping)
    if overlapping:
        _refuse_misplaced_views(metadata, apart, overlapping)
    else:
        _refuse_views_of_gaps(metadata, apart)
    metadata.bw_donated_idxs = []  # "none" for the check at each backward, where None is "not known"
    writes = any(info.mutates_data or info.mutates_metadata for info in metadata.input_info)
    return run, writes, Parts.of(needs, metadata)


@contextmanager
def _without_streams() -> Iterator[None]:
    """Refuse what orders streams, each fork and join included: a trace keeps the operations and nothing of that."""

    def refuse(*_: Any) -> None:
        text = "it works on several streams or records events, which a trace does not keep; a capture does"
        raise RefusedError(Reason("user-stream", f"{text}: pgk.parameterize(fn, state=...)"))

    with mock.patch.object(driver().event_type, "record", refuse):
        yield


@contextmanager
def _without_packing() -> Iterator[None]:
    """Refuse hooks of the user's for saved tensors, which a trace does not call; torch's own bring the same back."""
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    plain, thread = hooks.__enter__, threading.get_ident()

    def enter(self: Any) -> Any:
        own = type(self) is not hooks and type(self).__module__.startswith("torch.")
        if not own and threading.get_ident() == thread:
            text = "it opens hooks for saved tensors, which a trace does not call: open them around the call"
            raise RefusedError(Reason("not-traceable", f"{text}, or pgk.parameterize(fn, state=...)"))
        return plain(self)

    with mock.patch.object(hooks, "__enter__", enter):
        yield


@contextmanager
def _as_eager_asks() -> Iterator[None]:
    """Let attention choose the kernel that it has without a trace.

    torch's modules take none of their fused kernels in a trace, nor where a mode hears the calls, as one of torch's own
    does in a trace.
    """
    plain, modes, thread = torch.overrides.has_torch_function, torch_name("function_modes"), threading.get_ident()
    traced = torch_name("_is_make_fx_tracing")

    def has_torch_function(arguments: Iterable[Any]) -> bool:
        arguments = tuple(arguments)
        if threading.get_ident() != thread or not all(_of_a_trace(mode) for mode in modes()):
            return plain(arguments)
        found = (getattr(type(x), "__torch_function__", None) for x in arguments if type(x) is not torch.Tensor)
        return any(each not in (None, torch.nn.Parameter.__torch_function__) for each in found)

    def is_traced() -> bool:
        return bool(threading.get_ident() != thread and traced())

    def left_aligned(*arguments: Any) -> bool:
        if threading.get_ident() != thread:
            return bool(masks(*arguments))
        text = "whether a padding mask leaves out ends alone decides which kernels attention takes"
        raise RefusedError(Reason("data-dependent", f"the host needs a value that is on the device: {text}"))

    masks = torch_name("_nested_tensor_from_mask_left_aligned")
    with (
        mock.patch.object(torch, masks.__name__, left_aligned),
        mock.patch.object(torch.overrides, "has_torch_function", has_torch_function),
        mock.patch.object(sys.modules[traced.__module__], traced.__name__, is_traced),
    ):
        yield


def _of_a_trace(mode: Any) -> bool:
    return type(mode).__module__.startswith("torch.fx.experimental.")


def _overlapping(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Which of them, from the first to the last byte, reach into another."""
    spans = []
    for n, x in enumerate(tensors):
        if x.numel():
            last = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
            start = x.storage_offset() * x.itemsize
            spans.append((x.untyped_storage()._cdata, int(start), int(start + (last + 1) * x.itemsize), n))
    found: set[int] = set()
    storage, reached, furthest = 0, 0, -1
    for where, start, end, n in sorted(spans):
        if where == storage and start < reached:
            found |= {n, furthest}
        if where != storage or end > reached:
            storage, reached, furthest = where, end, n
    return found


def _refuse_views_of_other_types(
    metadata: Any, tensors: Sequence[torch.Tensor], types: Sequence[torch.dtype], *, replayed: bool
) -> None:
    """Raise RefusedError where a result is a view of an input, of another type or of one that gets another shape.

    Where AOTAutograd does not replay views it makes them by sizes and strides, in elements of the input.
    """
    if replayed and not any(info.mutates_metadata for info in metadata.input_info):
        return
    for info, dtype in zip(metadata.output_info, types, strict=False):
        if info.output_type.name == "alias_of_input" and any(x.itemsize != dtype.itemsize for x in tensors):
            text = "it returns a view of another type, of an input that shares memory or changes its shape: copy it"
            raise RefusedError(Reason("unknown-output", text))


def _refuse_written_leaves(metadata: Any) -> None:
    """Raise RefusedError where a leaf that needs gradients is written with gradients on: in eager that is an error."""
    for info in metadata.input_info if torch.is_grad_enabled() else ():
        seen = not (info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode)
        if info.mutates_data and info.requires_grad and info.is_leaf and seen:
            text = "it writes a leaf that needs gradients, which is an error without a graph: write under no_grad()"
            raise RefusedError(Reason("not-traceable", text))


def _refuse_views_of_gaps(metadata: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Raise RefusedError where a result is a view of an input that is written and has gaps.

    In the trace it has none, once it is written: what flattens it is a view there, and a copy of the real one.
    """
    for info in metadata.output_info:
        if info.output_type.name != "alias_of_input" or not metadata.input_info[info.base_idx].mutates_data:
            continue
        if (x := tensors[info.base_idx]).stride() != torch.empty_like(x, device="meta").stride():
            text = "it writes an input that has gaps between its elements, and returns a view of it"
            raise RefusedError(Reason("unknown-output", f"{text}: return a copy, or give it whole"))


def _refuse_misplaced_views(metadata: Any, tensors: Sequence[torch.Tensor], overlapping: set[int]) -> None:
    """Raise RefusedError where a result may be a view of an input that is written and lies otherwise than its copy.

    And where an input gets another shape: AOTAutograd, which makes one of inputs that share memory, mistakes it.
    """
    if any(info.mutates_metadata for info in metadata.input_info):
        text = "it changes the shape or strides of an input, and inputs share memory: return a view instead"
        raise RefusedError(Reason("unknown-output", text))
    # AOTAutograd makes one of what overlaps, and then knows where it lies. It looks closer: gaps may fit together.
    made_one = overlapping if all(tensors[n].is_contiguous() for n in overlapping) else set()
    odd = any((x.storage_offset() or not x.is_contiguous()) and n not in made_one for n, x in enumerate(tensors))
    kinds = {info.output_type.name for info in metadata.output_info}
    # Inputs that share memory were traced as one, and torch 2.11 gives that one back where an input is returned.
    merged = len(metadata.input_info) < len(tensors) and "is_input" in kinds
    if merged or (odd and "alias_of_input" in kinds and any(info.mutates_data for info in metadata.input_info)):
        text = "it writes to inputs, some share memory, and it returns a view of one: return a copy, or nothing"
        raise RefusedError(Reason("unknown-output", text))


def _partition(
    needs: list[frozenset[int]], lower: torch.dtype | None, joint: torch.fx.GraphModule, *args: Any, **kwargs: Any
) -> Any:
    """Save what eager saves: without Inductor nothing is fused, and computing an activation again costs a kernel.

    ``needs`` gets, for each gradient, the tangents that it is made of.

    Checkpointing puts the generator back before it computes again, which leaves no trace in a graph.
    """
    if any(is_random(node) and node.meta.get("partitioner_tag") == "is_backward" for node in joint.graph.nodes):
        text = "its backward draws random numbers (dropout under checkpointing?), which a graph would not repeat"
        raise RefusedError(Reason("random-backward", text))
    refuse_casts(joint, lower)
    again_in_backward(joint, driver().device.type)
    needs[:] = made_of(joint.graph, kwargs["num_fwd_outputs"])
    return torch_name("default_partition")(joint, *args, **kwargs)


def why_not(error: BaseException) -> Reason:
    """Why a function could not be traced."""
    for each in cause_chain(error):  # AOTAutograd may have wrapped it
        if isinstance(each, RefusedError):
            return each.reason
    text = one_line(str(error)) or type(error).__name__
    for verb, how, said in _HIDDEN:
        if said in text:
            text = f"it {verb} a tensor that is no argument and no member of a module: pass it as one, or give state=[]"
            return Reason(
                "hidden-tensor", f"{text} for what the code {how} where it lies: pgk.parameterize(fn, state=[])"
            )
    if type(error).__name__ in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return Reason("data-dependent", f"the host needs a value that is on the device: {text}")
    return Reason("not-traceable", f"tracing stopped: {type(error).__name__}: {text}")
