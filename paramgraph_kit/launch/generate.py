"""The launch function of one executable, generated so that a call does nothing that could be done before.

    addresses of the inputs -> outputs and workspace from the caching allocator -> patch if one moved -> replay

Everything that is known at capture (sizes, strides, slots) is written into the source as a constant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from paramgraph_kit.capture.pair import ALIGNMENT, Captured, Kind, Output
from paramgraph_kit.driver.api import Driver, Executable
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.plan import Plan


class State:
    """What one executable remembers between launches, guarded by ``lock``."""

    __slots__ = ("copied", "launches", "lock", "patches", "stream", "table", "watch")

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.table: tuple[int, ...] = ()
        self.stream = -1
        self.launches = 0
        self.patches = 0
        self.copied = 0  # bytes of inputs copied because somebody else still held what was to be used again
        # While somebody watches: called before each launch with the last table of addresses and the new one.
        self.watch: Callable[[tuple[int, ...], tuple[int, ...]], None] | None = None


def launch_function(
    driver: Driver,
    captured: Captured,
    plan: Plan,
    executable: Executable,
    state: State,
    otherwise: Callable[[list[Any]], Any],
    ungraphed: Callable[[list[Any]], Any],
    layouts: bool = False,
) -> Callable[[list[Any]], Any]:
    """A function with the partition's own calling convention: a list that it empties in, a sequence out.

    ``otherwise(inputs)`` takes calls that this executable was not captured for: other scalars or alignments and,
    with ``layouts``, other sizes or strides. ``ungraphed(inputs)`` takes calls inside somebody else's capture, which
    wants kernels of its own rather than a launch of ours.
    """
    scope: dict[str, Any] = {
        "address": driver.address_of,
        "empty": driver.empty_strided,
        "view": driver.reinterpret,
        "allocate": driver.allocate,
        "free": driver.free,
        "current_stream": driver.current_stream,
        "join": driver.join_streams,
        "patch": executable.patch,
        "replay": executable.launch,
        "otherwise": otherwise,
        "ungraphed": ungraphed,
        "capturing": driver.is_capturing,
        "state": state,
        "references": sys.getrefcount,
        "holders": storage_holders,
        "keeps_graph": torch_name("_get_current_graph_task_keep_graph"),
        "acquire": state.lock.acquire,
        "release": state.lock.release,
    }
    source = "\n".join(_source(captured, plan, scope, layouts))
    code = compile(source, "<paramgraph launch>", "exec")
    exec(code, scope)  # generated from sizes and slots only, never from user text
    launch: Callable[[list[Any]], Any] = scope["launch"]
    launch.__doc__ = source
    return launch


def _source(captured: Captured, plan: Plan, scope: dict[str, Any], layouts: bool) -> list[str]:
    count = len(captured.specs)
    tensors = captured.input_positions
    lines = ["def launch(inputs):", " if capturing(): return ungraphed(inputs)"]
    if count:
        lines.append(f" {''.join(f'i{k}, ' for k in range(count))}= inputs")
    lines += [f" a{k} = address(i{k})" for k in tensors]
    lines += _guard(captured, scope, layouts)
    lines.append(" inputs.clear()")
    lines += _donations(captured, plan)
    returned, makers = _outputs(captured, plan, scope)
    lines += makers
    table = [f"a{k}" for k in tensors] + [f"address(o{k})" for k in range(len(plan.fresh))]
    lines.append(" s = current_stream()")
    if plan.workspace_bytes:
        table.append("w")
        lines.append(f" w = allocate({plan.workspace_bytes}, s)")
    lines += [
        " acquire()",
        " try:",
        f"  t = ({''.join(f'{entry}, ' for entry in table)})",
        "  if s != state.stream:",
        "   if state.stream != -1: join(state.stream, s)",  # a patch must not overtake a launch on another stream
        "   state.stream = s",
        "  if state.watch is not None: state.watch(state.table, t)",
        "  if t != state.table:",
        "   state.table = ()",  # if patching fails half-way, the next launch patches everything
        "   patch(t)",
        "   state.table = t",
        "   state.patches += 1",
        "  replay(s)",
        "  state.launches += 1",
        " finally:",
        "  release()",
    ]
    if plan.workspace_bytes:
        lines.append("  free(w)")  # stream-ordered: whoever gets it next runs after this launch
    lines += returned
    return lines


def storage_holders(tensor: torch.Tensor) -> int:
    """How many hold a tensor's storage, the Python object that asks included."""
    storage = tensor.untyped_storage()
    count: int = torch_name("_storage_Use_Count")(storage._cdata)
    # All who hold the Python object count as one in C++.
    return count + sys.getrefcount(storage) - _own_references()


@cache
def _own_references() -> int:
    """References to a storage's Python object that nobody else holds: some versions of torch keep one themselves."""
    probe = torch.empty(1, device="cpu")
    storage = probe.untyped_storage()
    return sys.getrefcount(storage)


ALONE = 2  # what ``references`` and ``holders`` say of a tensor that only the launch function has


def _donations(captured: Captured, plan: Plan) -> list[str]:
    """Inputs whose memory the graph uses again must be nobody else's by now; where one is, a copy takes its place."""
    if not plan.donors:
        return []
    lines = [" keep = keeps_graph()"]
    for k in plan.donors:
        spec = captured.specs[k]
        lines += [
            f" if keep or references(i{k}) > {ALONE} or holders(i{k}) > {ALONE}:",
            f"  i{k} = i{k}.clone(); a{k} = address(i{k}); state.copied += {spec.nbytes if spec else 0}",
        ]
    return lines


def _guard(captured: Captured, scope: dict[str, Any], layouts: bool) -> list[str]:
    aligned = [f"a{k}" for k in captured.input_positions if _alignment(captured, k) == ALIGNMENT]
    tests = [f"({' | '.join(aligned)}) & {ALIGNMENT - 1}"] if aligned else []
    for k in captured.input_positions:
        if (alignment := _alignment(captured, k)) != ALIGNMENT:
            tests.append(f"a{k} & {2 * alignment - 1} != {alignment}")
    rest = iter(captured.scalars)
    for k, spec in enumerate(captured.specs):
        if spec is None:
            tests.append(_differs(f"i{k}", f"c{k}", next(rest), scope))
        elif layouts:
            tests.append(f"i{k}.shape != {spec.size} or i{k}.stride() != {spec.stride}")
    return [f" if {' or '.join(tests)}: return otherwise(inputs)"] if tests else []


def _differs(name: str, constant: str, value: Any, scope: dict[str, Any]) -> str:
    """A test for another number than was captured; of floats the bits count: NaN is itself, and -0.0 is not 0.0."""
    exact = isinstance(value, float) and (value != value or value == 0)
    scope[constant] = value.hex() if exact else value
    scope[f"{constant}_type"] = type(value)
    return f"type({name}) is not {constant}_type or {name}{'.hex()' if exact else ''} != {constant}"


def _alignment(captured: Captured, position: int) -> int:
    spec = captured.specs[position]
    return spec.alignment if spec else ALIGNMENT


def _outputs(captured: Captured, plan: Plan, scope: dict[str, Any]) -> tuple[list[str], list[str]]:
    makers: list[str] = []
    values: list[str] = []
    by_allocation: dict[int, list[Output]] = {}
    for output in captured.outputs:
        if output.kind is Kind.FRESH and output.source not in plan.inherited:
            by_allocation.setdefault(output.source, []).append(output)
    for slot, allocation in enumerate(plan.fresh):
        size = captured.allocations[allocation].size
        # The first output that fills its allocation is the allocation; others are views of it.
        tenants = by_allocation[allocation]
        whole = next((o for o in tenants if o.offset == 0 and _nbytes(o) == size), None)
        if whole is None or any(o.dtype != whole.dtype for o in tenants):
            whole = _flat(tenants, size)
        scope[f"t{slot}"] = whole.dtype
        makers.append(f" o{slot} = empty({whole.size}, {whole.stride}, t{slot})")
        by_allocation[allocation].insert(0, whole)
    for k, output in enumerate(captured.outputs):
        if output.kind is Kind.FIXED:
            scope[f"f{k}"] = getattr(output.value, "tensor", output.value)
            values.append(f"f{k}")
        elif output.kind is Kind.ARGUMENT:
            values.append(f"i{output.source}")
        elif output.kind is Kind.INPUT:
            itemsize = output.dtype.itemsize if output.dtype else 1
            values.append(f"view(i{output.source}, {output.size}, {output.stride}, {output.offset // itemsize})")
        elif output.source in plan.inherited:
            values.append(f"view(i{plan.inherited[output.source]}, {output.size}, {output.stride}, 0)")
        elif output.source < 0:
            scope[f"e{k}"] = output.dtype
            values.append(f"empty({output.size}, {output.stride}, e{k})")
        else:
            values.append(_fresh(output, by_allocation[output.source][0], plan.fresh.index(output.source), k, scope))
    opening, closing = ("(", ")") if captured.returns_tuple else ("[", "]")
    return [f" return {opening}{''.join(f'{v}, ' for v in values)}{closing}"], makers


def _fresh(output: Output, whole: Output, slot: int, k: int, scope: dict[str, Any]) -> str:
    if output == whole:
        return f"o{slot}"
    assert output.dtype is not None
    assert whole.dtype is not None
    base = f"o{slot}"
    if output.dtype != whole.dtype:
        scope[f"r{k}"] = output.dtype
        base += f".view(r{k})"
    return f"view({base}, {output.size}, {output.stride}, {output.offset // output.dtype.itemsize})"


def _nbytes(output: Output) -> int:
    assert output.dtype is not None
    if 0 in output.size:
        return 0
    return output.dtype.itemsize * (1 + sum((n - 1) * s for n, s in zip(output.size, output.stride, strict=True)))


def _flat(tenants: list[Output], nbytes: int) -> Output:
    """A one-dimensional stand-in that covers a whole allocation, viewable as the dtype of each of its outputs."""
    dtypes = {o.dtype for o in tenants}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8
    assert dtype is not None
    length = -(-nbytes // 16) * 16 // dtype.itemsize
    return Output(Kind.FRESH, tenants[0].source, 0, (length,), (1,), dtype)
