"""Work on the host whose result is the same at each call: done once, and kept on the device.

PyGraph's first transformation (arXiv:2503.19779): tensors written in the code, masks and position tables that are made
on the CPU and copied at each call. What comes from no input and draws no random numbers is worked out while compiling.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.partition.frames import frame_of
from paramgraph_kit.partition.nodes import (
    ALLOCATIONS,
    attribute,
    is_random,
    storage_keys,
    tensors_in,
    value_of,
    written,
)
from paramgraph_kit.trace.model import Frame

MOST = 1 << 24  # elements of one such tensor
_VARY = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_MOVES = frozenset({"aten::_to_copy", "prims::device_put"})
_INDEXES = frozenset({"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::_unsafe_index_put"})


@dataclass(frozen=True, slots=True)
class Kept:
    """One tensor that is made once and kept on the device, and the user's line that makes it."""

    nbytes: int
    frame: Frame | None = None


def keep_fixed(
    module: torch.fx.GraphModule, device_type: str, *, compute: bool = True, numbers: bool = True
) -> list[Kept]:
    """Put constants on the device in the place of copies of fixed host tensors, and of those as indices; in place.

    Without ``compute`` the constants are placeholders: enough for looking at the graph. Without ``numbers`` what works
    out single numbers on the host stays there.
    """
    if device_type == "cpu":
        return []
    fixed = _fixed(module)
    returned = {key for result in _results(module) for key in storage_keys(result)}
    keeper = _Keeper(module, fixed, returned, compute)
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node in fixed or not _is_on(node, device_type):
            continue
        sources = [each for each in node.all_input_nodes if each in fixed]
        if _name(node) in _MOVES and len(sources) == len(node.all_input_nodes) == 1:
            keeper.keep(node, node)
        for source in sources:
            if source.op == "get_attr" and _name(node) not in _INDEXES:
                continue
            value = source.meta["val"]
            if _name(node) in _INDEXES and value.dtype not in (torch.bool, torch.uint8) and value.dim():
                keeper.keep(source, node, next(tensors_in(node.meta["val"])).device)
            elif numbers and source.op != "get_attr" and not value.dim():
                keeper.keep(source, node, value.device)  # a number, which a kernel takes as it is
    for node in reversed(list(module.graph.nodes)):
        if node in fixed and not node.users:
            module.graph.erase_node(node)
    if keeper.kept:
        module.recompile()
    return keeper.kept


def again_in_backward(joint: torch.fx.GraphModule, device_type: str) -> None:
    """Let the backward make its own fixed indices, as the forward does: saved ones are fixed for neither."""
    fixed = _fixed(joint)
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(joint.graph.nodes) if fixed else ():
        if node in fixed or not _in_backward(node) or _name(node) not in _INDEXES or not _is_on(node, device_type):
            continue
        for source in node.all_input_nodes:
            if source in fixed and not _in_backward(source):
                with joint.graph.inserting_before(node):
                    node.replace_input_with(source, _made_again(source, made))


def _made_again(node: torch.fx.Node, made: dict[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
    """A copy of ``node`` and of what it is made of, where the graph inserts now; without recursion."""
    stack = [node]
    while stack:
        each = stack[-1]
        missing = [source for source in each.all_input_nodes if source not in made]
        if each in made or not missing:
            stack.pop()
            if each not in made:
                made[each] = each.graph.node_copy(each, made.__getitem__)
                made[each].meta = {**each.meta, "partitioner_tag": "is_backward"}
        else:
            stack += missing
    return made[node]


def _in_backward(node: torch.fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


class _Keeper:
    def __init__(
        self, module: torch.fx.GraphModule, fixed: set[torch.fx.Node], returned: set[int], compute: bool
    ) -> None:
        self._module, self._fixed, self._returned, self._compute = module, fixed, returned, compute
        self._values: dict[torch.fx.Node, Any] = {}
        self._made: dict[tuple[torch.fx.Node, torch.device], torch.fx.Node] = {}
        self.kept: list[Kept] = []

    def keep(self, node: torch.fx.Node, user: torch.fx.Node, device: torch.device | None = None) -> None:
        """Put a constant in the place of ``node``, or of ``node`` as an argument of ``user``, there on ``device``."""
        traced: torch.Tensor = node.meta["val"]
        if device is not None and traced.device != device:
            traced = _another(traced, device)
        made = self._made.get((node, traced.device)) or self._constant(node, user, traced)
        self._made[node, traced.device] = made
        if node is user:
            node.replace_all_uses_with(made)
            self._module.graph.erase_node(node)
        else:
            user.replace_input_with(node, made)

    def _constant(self, node: torch.fx.Node, user: torch.fx.Node, traced: torch.Tensor) -> torch.fx.Node:
        graph, name = self._module.graph, f"_kept_{node.name}_{traced.device.type}"
        with _plainly():
            if self._compute:
                value = self._value(node).to(traced.device)
            else:
                value = torch.empty(traced.shape, dtype=traced.dtype, device="meta")
        self._module.register_buffer(name, value)
        with graph.inserting_before(user):
            made = graph.get_attr(name)
            made.meta = {"val": traced, "stack_trace": node.meta.get("stack_trace")}
            if storage_keys(node) & self._returned:  # the caller may write to it
                made = graph.call_function(torch.ops.aten.clone.default, (made,))
                # Memory of its own: what shares it with a constant would pass for a view, which launches nothing.
                made.meta = {"val": _another(traced, traced.device), "stack_trace": node.meta.get("stack_trace")}
        if traced.device.type != "cpu":
            self.kept.append(Kept(traced.numel() * traced.element_size(), frame_of(node)))
        return made

    def _value(self, node: torch.fx.Node) -> Any:
        """What ``node`` comes to, and all that it is made of: without recursion, as graphs are long."""
        stack = [node]
        while stack:
            each = stack[-1]
            missing = [source for source in each.all_input_nodes if source not in self._values]
            if each in self._values or not missing:
                stack.pop()
                if each not in self._values:
                    self._values[each] = self._run(each)
            else:
                stack += missing
        return self._values[node]

    def _run(self, node: torch.fx.Node) -> Any:
        if node.op == "get_attr":
            return attribute(node)
        assert callable(node.target)
        target: Callable[..., Any] = node.target
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        return target(*args, **kwargs)


def _another(traced: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A traced tensor like this one, in memory of its own, there."""
    with traced.fake_mode:  # type: ignore[attr-defined]  # traced values are fake
        return torch.empty_strided(traced.shape, traced.stride(), dtype=traced.dtype, device=device)


@contextmanager
def _plainly() -> Iterator[None]:
    """Real work, as it is written: no fake tensors, autocast, inference mode or gradients."""
    with ExitStack() as stack:
        stack.enter_context(torch_name("unset_fake_temporarily")())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        yield


def _fixed(module: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """Nodes on the host that are the same at each call."""
    nodes = list(module.graph.nodes)
    changed = {key for node in nodes for target in written(node) for key in storage_keys(target)}
    found: set[torch.fx.Node] = set()
    for node in nodes:
        values = list(tensors_in(value_of(node)))
        if not values or not all(map(_is_small_on_the_host, values)) or storage_keys(node) & changed:
            continue
        if (node.op == "get_attr" and not isinstance(attribute(node), FakeTensor)) or (
            _repeats(node) and found.issuperset(node.all_input_nodes)
        ):
            found.add(node)
    return found if any(node.op == "call_function" for node in found) else set()


def _repeats(node: torch.fx.Node) -> bool:
    """Whether an operation gives the same for the same, each time."""
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or is_random(node):
        return False
    return not any(tag in target.tags for tag in _VARY) and target._schema.name not in ALLOCATIONS


def _is_small_on_the_host(tensor: torch.Tensor) -> bool:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return False
    sizes: list[Any] = [*tensor.shape, *tensor.stride(), tensor.storage_offset()]
    return all(type(size) is int for size in sizes) and tensor.numel() <= MOST


def _is_on(node: torch.fx.Node, device_type: str) -> bool:
    made = list(tensors_in(value_of(node)))
    return bool(made) and all(tensor.device.type == device_type for tensor in made)


def _results(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    output = next(iter(reversed(module.graph.nodes)))
    return list(output.all_input_nodes)


def _name(node: torch.fx.Node) -> str:
    return str(node.target._schema.name) if isinstance(node.target, torch._ops.OpOverload) else ""
