"""Operations that wait for the device, or copy to it, inside of themselves: no capture survives them.

What torch itself knows of is in ``is_cudagraph_unsafe_fx_node``. These are those that it does not list, each with where
it was seen (some wait in some calls only, which their arguments tell); custom operations whose Python reads a tensor on
the host; and what a capture in this process has failed in.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Any

import torch
import torch.fx

from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.partition.nodes import operands, tensors_in, value_of
from paramgraph_kit.trace.errors import RefusedError, cause_chain
from paramgraph_kit.trace.model import Reason
from paramgraph_kit.trace.wording import one_line


def host_read(node: torch.fx.Node) -> str | None:
    """Why ``node`` cannot be captured although torch does not say so, in words; None if nothing is known."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return None
    entry = _KNOWN.get(target._schema.name)
    if entry is not None and entry[0](node):
        return entry[1]
    return _learned.get(str(target)) or _read_by_its_python(target._schema.name)


_learned: dict[str, str] = {}  # by name with overload, what a capture failed in
_OPERATION = re.compile(r"\btorch\.ops\.(\w+)\.(\w+)\.(\w+)\(")
_READS = frozenset({"tolist", "item", "cpu", "numpy", "nonzero", "synchronize"})


# Operations with a kernel that a graph refused, while the code that held them is cut again: by name, which of them
# (None: all) and why.
_refused: ContextVar[Mapping[str, tuple[int | None, Reason]]] = ContextVar(
    "paramgraph_refused", default=MappingProxyType({})
)


@contextmanager
def leaving_out(error: BaseException, *, alike: bool = False) -> Iterator[bool]:
    """Cut at what a capture failed in from now on, or while the block runs at what launches a refused kernel.

    Tells whether that is known. A failure as such is learned; a kernel may be refused for what this call of it was
    given, and others ``alike`` be none the worse.
    """
    found = error.launched_by if isinstance(error, RefusedError) else None
    if not isinstance(error, RefusedError) or found is None or not isinstance(found[0], torch._ops.OpOverload):
        yield not isinstance(error, RefusedError) and learn(error)
        return
    operation, number = found
    entry = None if alike else number, error.reason
    token = _refused.set({**_refused.get(), operation._schema.name: entry})
    try:
        yield True
    finally:
        _refused.reset(token)


def refused_kernel(node: torch.fx.Node) -> Reason | None:
    """Why a kernel of this operation was refused, while what held it is cut again."""
    target, entries = node.target, _refused.get()
    if not entries or not isinstance(target, torch._ops.OpOverload) or target._schema.name not in entries:
        return None
    number, reason = entries[target._schema.name]
    if number is None:
        return reason
    alike = (n for n in node.graph.nodes if _name(n) == target._schema.name)
    return reason if node is next(islice(alike, number, None), None) else None


def _name(node: torch.fx.Node) -> str:
    return node.target._schema.name if isinstance(node.target, torch._ops.OpOverload) else ""


def learn(error: BaseException) -> bool:
    """Note the operation in which generated code failed under capture, so that no graph holds it any more.

    True where one was found that was not known; other failures, such as running out of memory, say nothing of it.
    """
    said, found = "", None
    for each in cause_chain(error):
        said = said or next((line for line in str(each).splitlines() if "captur" in line.lower()), "")
        for entry in traceback.extract_tb(each.__traceback__):
            match = _OPERATION.search(entry.line or "")
            found = match[0].removeprefix("torch.ops.").removesuffix("(") if match else found
    if not said or found is None or found in _learned:
        return False
    _learned[found] = f"its capture failed: {one_line(said)}"
    return True


@cache
def _read_by_its_python(name: str) -> str | None:
    """What a custom operation written in Python does on the host, one implementation for all devices."""
    definition = torch_name("OPDEFS").get(name)
    if definition is None or name.startswith(("aten::", "prims::")) or set(definition._backend_fns) != {None}:
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(definition._init_fn)))
    except (OSError, TypeError, SyntaxError):
        return None
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    reads = next((call for call in calls if isinstance(call, ast.Attribute) and call.attr in _READS), None)
    return f"its Python reads a tensor on the host: {ast.unparse(reads)}()" if reads is not None else None


def _always(_: torch.fx.Node) -> bool:
    return True


def _is_slow_grouped_mm(node: torch.fx.Node) -> bool:
    """Its one kernel is for bfloat16 on devices of capability 9 and 10; else it loops over offsets read on the host."""
    tensors = [*operands(node), *tensors_in(value_of(node))]
    if any(t.dtype not in (torch.bfloat16, torch.int32) for t in tensors):
        return True
    on_gpu = tensors[0].device.type == "cuda" and torch.cuda.is_available()
    return on_gpu and torch.cuda.get_device_capability()[0] not in (9, 10)


def _finds_its_range(node: torch.fx.Node) -> bool:
    return bool(_argument(node, "min", 0) == _argument(node, "max", 0))


def _is_batched(node: torch.fx.Node) -> bool:
    return any(t.dim() > 2 for t in operands(node))


def _argument(node: torch.fx.Node, name: str, otherwise: Any) -> Any:
    assert isinstance(node.target, torch._ops.OpOverload)
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            return node.args[position] if position < len(node.args) else node.kwargs.get(name, otherwise)
    return otherwise


_KNOWN: dict[str, tuple[Callable[[torch.fx.Node], bool], str]] = {
    # ATen/native/GroupedMMUtils.h, _grouped_mm_fallback: the experts of a mixture, in float32.
    "aten::_grouped_mm": (_is_slow_grouped_mm, "reads the groups' offsets on the host: only bfloat16 has one kernel"),
    # ATen/native/cuda/SummaryOps.cu
    "aten::histc": (_finds_its_range, "reads the least and the largest value on the host: give min and max"),
    # ATen/native/DistributionTemplates.h, CHECK_NORMAL_TENSOR_STD
    "aten::normal": (lambda node: _is_tensor(node, "std"), "reads on the host whether any deviation is negative"),
    # ATen/native/cuda/LossCTC.cu
    "aten::_ctc_loss": (_always, "copies lengths between host and device"),
    # Failed under capture on an H100, torch 2.11: cuSOLVER's eigensolver, and MAGMA's solver for several matrices.
    "aten::_linalg_eigh": (_always, "cuSOLVER's eigensolver cannot be captured"),
    "aten::_cholesky_solve_helper": (_is_batched, "MAGMA's batched solver copies from the host"),
    "aten::cholesky_solve": (_is_batched, "MAGMA's batched solver copies from the host"),
}


def _is_tensor(node: torch.fx.Node, name: str) -> bool:
    return isinstance(_argument(node, name, None), torch.fx.Node)
