"""The launch function of one variant, generated so that a call does nothing that could be done before.

    addresses of the inputs -> each stage: outputs and blocks from the caching allocator -> patch if one moved -> replay

Everything that is known at capture (sizes, strides, slots) is written into the source as a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch.autograd import forward_ad

from paramgraph_kit.capture.pair import Captured, InputSpec, Kind, Output
from paramgraph_kit.driver.api import Driver, Executable
from paramgraph_kit.driver.native.tensors import aligned_addresses, shifted
from paramgraph_kit.driver.tensors import PLAIN, Bits
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.plan import Block, Fresh, Input, Plan, Shelf, Slot, Stage

Table = tuple[int, ...]
FEW = 8  # results that are nothing, one by one


class State:
    """What one variant remembers between launches, guarded by ``lock``; one table of addresses for each stage."""

    __slots__ = ("launches", "lock", "patched", "rooms", "stream", "tables", "watch", "written")

    def __init__(self, lock: Any, plan: Plan) -> None:
        self.lock = lock
        stages = len(plan.stages)
        self.tables: list[tuple[Any, ...]] = [()] * stages  # what the last launch was told by, and
        self.written: list[Table] = [()] * stages  # the addresses that it read
        self.rooms = [block.nbytes for block in plan.blocks]  # to take for each block, as many at least
        self.stream = -1
        self.launches = 0
        self.patched = [0] * stages  # launches of each stage that had to patch
        # While somebody watches: called before each launch with its stage, the last table of addresses and the new one;
        # what it returns is called after it.
        self.watch: Callable[[int, Table, Table], Callable[[], None] | None] | None = None

    @property
    def patches(self) -> int:
        """Launches that had to patch."""
        return sum(self.patched)


@dataclass(frozen=True, slots=True)
class Form:
    """How a launch is called, where that is not with a tensor for each input and for tensors."""

    static: Mapping[int, torch.Tensor] = field(default_factory=dict)  # left out: whoever calls makes sure of them
    # Inputs that lie on a shelf, and at which byte of it: not given, but the shelf, last.
    shelved: Mapping[int, int] = field(default_factory=dict)
    unasked: frozenset[int] = frozenset()  # inputs that are given as other looks at the same memory
    together: range = range(0)  # the last inputs, given as one tuple of aligned addresses; as outputs they are None
    located: frozenset[int] = frozenset()  # outputs that are returned as None: they are on the shelf, returned last
    # Outputs that are wanted as another look at their memory: its size, its strides, and its first element in theirs.
    seen: Mapping[int, tuple[tuple[int, ...], tuple[int, ...], int]] = field(default_factory=dict)
    switched: bool = False  # libraries' switches are those of the capture: whoever calls makes sure of them
    capturing: Callable[[], bool] | None = None  # when to call ``ungraphed``, where not only in a capture
    before: Callable[[], None] | None = None  # called once it is sure that this call is a launch


ORDINARY = Form()


def launch_function(
    driver: Driver,
    captured: Captured,
    plan: Plan,
    executables: Sequence[Executable],
    state: State,
    otherwise: Callable[[list[Any]], Any],
    ungraphed: Callable[[list[Any]], Any],
    partition: PartitionCode,
    form: Form = ORDINARY,
) -> Callable[[list[Any]], Any]:
    """A function with the partition's own calling convention: a list that it empties in, a sequence out.

    ``executables`` has one for each stage. ``otherwise(inputs)`` takes calls that they were not captured for: other
    scalars, alignments, lazy bits or switches of libraries and, where ``partition`` says so, other sizes or strides.
    ``ungraphed(inputs)`` takes calls inside somebody else's capture, which wants kernels of its own, not a launch.
    """
    scope: dict[str, Any] = {
        "address": driver.address_of,
        "addresses": aligned_addresses,
        "empty": driver.empty_strided,
        "view": driver.reinterpret,
        "allocate": driver.allocate,
        "free": driver.free,
        "OutOfMemory": torch.OutOfMemoryError,
        "current_stream": driver.current_stream,
        "join": driver.join_streams,
        "keep": driver.keep_for,
        "otherwise": otherwise,
        "ungraphed": ungraphed,
        "capturing": form.capturing or driver.is_capturing,
        "tangents": forward_ad,  # no launch carries them: ungraphed code without Inductor does
        "libraries": driver.library_state,
        "libraries_then": driver.library_state(),
        "state": state,
        "tables": state.tables,
        "written": state.written,
        "this": object(),  # unlike any address, and any other form's
        "rooms": state.rooms,
        "patched": state.patched,
        "acquire": state.lock.acquire,
        "release": state.lock.release,
        "byte": torch.uint8,
        "conj": torch.ops.aten._conj.default,
        "neg": torch.ops.aten._neg_view.default,
    }
    for n, executable in enumerate(executables):
        scope[f"patch{n}"], scope[f"replay{n}"] = executable.patch, executable.launch
    scope |= {f"i{position}": tensor for position, tensor in form.static.items()}
    scope["fixed"] = tuple(map(driver.address_of, form.static.values()))
    source = "\n".join(_source(captured, plan, scope, partition, form))
    code = compile(source, "<paramgraph launch>", "exec")
    exec(code, scope)  # generated from sizes and slots only, never from user text
    launch: Callable[[list[Any]], Any] = scope["launch"]
    launch.__doc__ = source
    return launch


def _source(captured: Captured, plan: Plan, scope: dict[str, Any], partition: PartitionCode, form: Form) -> list[str]:
    names, aligned = _names(captured, form)
    lines = ["def launch(inputs):", " if capturing() or tangents._current_level >= 0: return ungraphed(inputs)"]
    lines.append(" *held, together = inputs" if form.together else " held = inputs.copy()")
    asked = [*(names[k] for k in aligned), *(["held[-1]"] if form.shelved else [])]
    if asked:  # all in one call
        rows = "held" if len(aligned) == len(names) - len(form.static) else f"[{', '.join(asked)}]"
        lines.append(f" a = addresses({rows}, {captured.aligned - 1})")
    for k in captured.input_positions:
        if k in names and k not in form.static and k not in aligned:
            lines.append(f" a{k} = address({names[k]})")
    tests = [*(["a is None"] if asked else []), *_guard(captured, scope, partition, form, names)]
    lines += [f" if {' or '.join(tests)}: return otherwise(inputs)"] if tests else []
    if form.before is not None:
        scope["before"] = form.before
        lines.append(" before()")
    lines += [" inputs.clear()", " s = current_stream()"]
    if form.shelved:
        scope |= {"shifted": shifted, "offsets": tuple(form.shelved.values())}
        lines.append(" shelved = shifted(a[-1], offsets)")
    makers, shelved, values = _outputs(captured, plan, scope, form, names)
    before, after = _around(captured, scope)
    body = before
    parts = {k: ("a", n) for n, k in enumerate(aligned)}
    parts |= {k: ("together", n) for n, k in enumerate(form.together)}
    parts |= {k: ("shelved", n) for n, k in enumerate(form.shelved)}
    parts |= {k: ("fixed", n) for n, k in enumerate(form.static)}
    spent = {k: name for k, name in names.items() if k not in form.static}
    for n, stage in enumerate(plan.stages):
        body += _stage(n, stage, plan, makers, parts, spent, captured.recording.streams)
    body += after
    if plan.blocks:
        blocks = [f"w{b}" for b in range(len(plan.blocks))]
        lines += [f" {' = '.join(blocks)} = 0", " try:", *(f" {line}" for line in body), " except BaseException:"]
        lines += [*(f"  if {w}: free({w})" for w in blocks), "  raise"]
    else:
        lines += body
    opening, closing = ("(", ")") if captured.returns_tuple else ("[", "]")
    return [*lines, *shelved, f" return {opening}{''.join(f'{v}, ' for v in _runs(values, scope))}{closing}"]


def _runs(values: Sequence[str], scope: dict[str, Any]) -> Iterator[str]:
    """The same, where many that are nothing come in one piece."""
    for value, row in groupby(values):
        each = list(row)
        if value == "None" and len(each) >= FEW:
            scope[f"none{len(each)}"] = (None,) * len(each)
            yield f"*none{len(each)}"
        else:
            yield from each


def _names(captured: Captured, form: Form) -> tuple[dict[int, str], list[int]]:
    """Expressions for the inputs that are tensors or numbers, and which of these are aligned tensors of each call."""
    apart = {*form.static, *form.shelved, *form.together}
    given = [k for k in range(len(captured.specs)) if k not in apart]
    names = {k: f"i{k}" for k in form.static} | {k: f"held[{n}]" for n, k in enumerate(given)}
    tensors = [k for k in captured.input_positions if k not in apart]
    return names, [k for k in tensors if _alignment(captured, k) == captured.aligned]


def _around(captured: Captured, scope: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Code that gives the user's own streams and events their meaning, where the captured code used any.

    To the graph a stream was a branch. Outside, what was queued on it before comes before the launch, what is queued
    later behind it, and who waits for an event that was recorded inside waits for the launch.
    """
    streams, events = captured.recording.streams, captured.recording.events
    for n, event in enumerate(events):
        scope[f"record{n}"] = event.record
    before = [f" join({stream}, s)" for stream in streams]
    after = [f" join(s, {stream})" for stream in streams]
    return before, after + [f" record{n}()" for n in range(len(events))]


def _stage(
    n: int,
    stage: Stage,
    plan: Plan,
    makers: Mapping[int, str],
    parts: Mapping[int, tuple[str, int]],
    names: Mapping[int, str],
    streams: Sequence[int],
) -> list[str]:
    """One launch: what it needs is made, then what nobody needs any more is given back, in the stream's order."""
    lines = [makers[allocation] for allocation in stage.fresh]
    made = [f"o{allocation}" for allocation in stage.fresh]
    if n == 0 and plan.shelf_bytes:
        lines.append(f" q = empty(({plan.shelf_bytes},), (1,), byte)")
        made.append("q")
    for b, block in enumerate(plan.blocks):
        if block.first == n:
            lines += [" try:", f"  w{b} = allocate(rooms[{b}], s)"]
            lines += [" except OutOfMemory:", f"  w{b} = allocate({block.nbytes}, s)"]
    lines += [f" keep({name}, {stream})" for name in made for stream in streams]
    table = f"({''.join(f'{entry}, ' for entry in _table(stage.slots, parts))})"
    # Addresses that are always the same need no look at each launch: of a launch of this form the others tell enough.
    fixed = {Input(k) for k, (name, _) in parts.items() if name == "fixed"}
    changing = [slot for slot in stage.slots if slot not in fixed]
    short = len(changing) < len(stage.slots)
    key = f"(this, {''.join(f'{entry}, ' for entry in _table(changing, parts))})" if short else table
    lines += [
        " acquire()",
        " try:",
        f"  t = {key}",
        "  if s != state.stream:",
        "   if state.stream != -1: join(state.stream, s)",  # a patch must not overtake a launch on another stream
        "   state.stream = s",
        "  watch = state.watch",
        f"  if watch is not None: watch = watch({n}, written[{n}], {table if short else 't'})",
        f"  if t != tables[{n}]:",
        f"   tables[{n}] = written[{n}] = ()",  # if patching fails half-way, the next launch patches everything
        f"   now = {table if short else 't'}",
        f"   patch{n}(now)",
        f"   tables[{n}], written[{n}] = t, now",
        f"   patched[{n}] += 1",
        f"  replay{n}(s)",
        "  if watch is not None: watch()",
        "  state.launches += 1",
        " finally:",
        "  release()",
    ]
    # Stream-ordered: whoever gets this memory next runs after this launch.
    lines += [f" free(w{b}); w{b} = 0" for b, block in enumerate(plan.blocks) if block.last == n]
    if spent := [names[k] for k in stage.spent if k in names]:
        lines.append(f" {' = '.join(spent)} = None")
    return lines


def _table(slots: Sequence[Slot], parts: Mapping[int, tuple[str, int]]) -> list[str]:
    """Expressions of a table's entries; what stands beside one another in a tuple of addresses comes in one piece.

    ``parts`` says of inputs which tuple, and where in it.
    """
    found = [parts.get(slot.position) if isinstance(slot, Input) else None for slot in slots]
    table: list[str] = []
    for run, rows in groupby(enumerate(found), lambda at: at[1] and (at[1][0], at[1][1] - at[0])):
        row = [n for n, _ in rows]
        if run is None:
            table += [_address(slots[n]) for n in row]
        else:
            tuple_, before = run
            table.append(f"*{tuple_}[{row[0] + before}:{row[-1] + before + 1}]")
    return table


def _address(slot: Slot) -> str:
    match slot:
        case Input(position):
            return f"a{position}"
        case Fresh(allocation):
            return f"address(o{allocation})"
        case Shelf():
            return "address(q)"
        case Block(number):
            return f"w{number}"


def _guard(
    captured: Captured,
    scope: dict[str, Any],
    partition: PartitionCode,
    form: Form,
    names: Mapping[int, str],
) -> list[str]:
    """Expressions that hold for calls that it was not captured for, besides what is aligned worse."""
    tests = []
    for k in captured.input_positions:
        alignment = _alignment(captured, k)
        if alignment != captured.aligned and k in names and k not in form.static:
            tests.append(f"a{k} & {2 * alignment - 1} != {alignment}")
    # What made these may have run ungraphed this time: then they are on the host.
    tests += [f"{names[k]}.is_cpu" for k in partition.host_seeds if k in names and k not in form.static]
    # Triton's kernels and our own are what they are; a library chose its kernels by these.
    if not form.switched and any(not n.name.startswith(("triton_", "pgk_")) for n in captured.recording.nodes):
        tests.append("libraries() != libraries_then")
    rest = iter(captured.scalars)
    for k, spec in enumerate(captured.specs):
        if spec is None:
            tests.append(_differs(names[k], f"c{k}", next(rest), scope))
            continue
        if k in form.shelved or k in form.together or k in form.static or k in form.unasked:
            continue
        conjugated, negated = spec.bits
        if partition.layouts:
            tests.append(f"{names[k]}.shape != {spec.size} or {names[k]}.stride() != {spec.stride}")
        if spec.dtype.is_complex:
            tests.append(f"{names[k]}.is_conj() is {not conjugated}")
        if partition.layouts or k in partition.unguarded:
            tests.append(f"{names[k]}.is_neg() is {not negated}")
    return tests


def _differs(name: str, constant: str, value: Any, scope: dict[str, Any]) -> str:
    """A test for another number than was captured; of floats the bits count: NaN is itself, and -0.0 is not 0.0."""
    exact = isinstance(value, float) and (value != value or value == 0)
    scope[constant] = value.hex() if exact else value
    scope[f"{constant}_type"] = type(value)
    return f"type({name}) is not {constant}_type or {name}{'.hex()' if exact else ''} != {constant}"


def _alignment(captured: Captured, position: int) -> int:
    spec = captured.specs[position]
    assert spec is not None
    return spec.alignment


def _outputs(
    captured: Captured, plan: Plan, scope: dict[str, Any], form: Form, names: Mapping[int, str]
) -> tuple[dict[int, str], list[str], list[str]]:
    """Code that makes each fresh allocation, code that makes the shelf's views, and the values that are returned."""
    makers: dict[int, str] = {}
    values: list[str] = []
    by_allocation: dict[int, list[Output]] = {}
    outputs = [_seen(output, *form.seen[k]) if k in form.seen else output for k, output in enumerate(captured.outputs)]
    for output in outputs:
        if output.kind is Kind.FRESH:
            by_allocation.setdefault(output.source, []).append(output)
    for allocation in plan.fresh:
        size = captured.allocations[allocation].size
        # The first output that fills its allocation is the allocation; others are views of it.
        tenants = by_allocation[allocation]
        whole = next((o for o in tenants if o.offset == 0 and o.nbytes == size), None)
        if whole is None or any(o.dtype != whole.dtype for o in tenants):
            whole = _flat(tenants, size)
        scope[f"t{allocation}"] = whole.dtype
        makers[allocation] = f" o{allocation} = empty({whole.size}, {whole.stride}, t{allocation})"
        by_allocation[allocation].insert(0, replace(whole, bits=PLAIN))
    shelved: dict[torch.dtype, str] = {}
    for k, output in enumerate(outputs):
        if output.kind is Kind.FIXED:
            scope[f"f{k}"] = getattr(output.value, "tensor", output.value)
            values.append(f"f{k}")
        elif output.kind is Kind.ARGUMENT:
            values.append("None" if output.source in form.together else names[output.source])
        elif output.kind is Kind.INPUT:
            spec = captured.specs[output.source]
            assert spec is not None
            if spec.dtype == output.dtype:
                start = output.offset // spec.dtype.itemsize
                view = f"view({names[output.source]}, {output.size}, {output.stride}, {start})"
                values.append(_lazy(view, output.bits, spec.bits))
            else:
                values.append(_retyped(output, spec, names[output.source], k, scope))
        elif output.source < 0:
            scope[f"e{k}"] = output.dtype
            values.append(_lazy(f"empty({output.size}, {output.stride}, e{k})", output.bits))
        elif output.source in makers:
            values.append(_lazy(_fresh(output, by_allocation[output.source][0], k, scope), output.bits))
        elif k in form.located:
            values.append("None")
        else:
            assert output.dtype is not None
            name = shelved.setdefault(output.dtype, f"q{len(shelved)}")
            at = (plan.placements[output.source].offset + output.offset) // output.dtype.itemsize
            values.append(_lazy(f"view({name}, {output.size}, {output.stride}, {at})", output.bits))
    scope |= {f"{name}_type": dtype for dtype, name in shelved.items()}
    if form.located:
        values.append("q")
    views = [f" {name} = q.view({name}_type)" for name in shelved.values()]
    return makers, views, values


def _seen(output: Output, size: tuple[int, ...], stride: tuple[int, ...], start: int) -> Output:
    assert output.dtype is not None
    return replace(output, size=size, stride=stride, offset=output.offset + start * output.dtype.itemsize)


def _lazy(value: str, bits: Bits, has: Bits = PLAIN) -> str:
    """``value`` with these bits, where what it is made from ``has`` those."""
    for change, operation in zip((a != b for a, b in zip(bits, has, strict=True)), ("conj", "neg"), strict=True):
        value = f"{operation}({value})" if change else value
    return value


def _fresh(output: Output, whole: Output, k: int, scope: dict[str, Any]) -> str:
    base = f"o{output.source}"
    if replace(output, bits=PLAIN) == whole:
        return base
    assert output.dtype is not None
    assert whole.dtype is not None
    if output.dtype != whole.dtype:
        scope[f"r{k}"] = output.dtype
        base += f".view(r{k})"
    return f"view({base}, {output.size}, {output.stride}, {output.offset // output.dtype.itemsize})"


def _retyped(output: Output, spec: InputSpec, name: str, k: int, scope: dict[str, Any]) -> str:
    """A view of an input as another type: the real part of complex numbers, their bytes, what bytes stand for."""
    assert output.dtype is not None
    scope[f"r{k}"] = output.dtype
    first, before = divmod(output.offset, spec.dtype.itemsize)
    length = -(-(before + output.nbytes) // spec.dtype.itemsize)
    flat = f"view({_lazy(name, PLAIN, spec.bits)}, ({length},), (1,), {first}).view(r{k})"
    view = f"view({flat}, {output.size}, {output.stride}, {before // output.dtype.itemsize})"
    return _lazy(view, output.bits)


def _flat(tenants: list[Output], nbytes: int) -> Output:
    """A one-dimensional stand-in that covers a whole allocation, viewable as the dtype of each of its outputs."""
    dtypes = {o.dtype for o in tenants}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8
    assert dtype is not None
    length = -(-nbytes // 16) * 16 // dtype.itemsize
    return Output(Kind.FRESH, tenants[0].source, 0, (length,), (1,), dtype)
