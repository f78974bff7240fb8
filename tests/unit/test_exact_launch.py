"""The code of a launch, line by line: for each call as it comes, and for one that gives less and wants less."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.capture.pair import Captured, InputSpec, Kind, Output
from paramgraph_kit.driver.api import RawAllocation, RawNode, Recording
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.generate import Form, _outputs, _runs, _source
from paramgraph_kit.launch.plan import make_plan
from paramgraph_kit.trace.model import NodeKind, Word, WordKind

MIB = 1 << 20
FLOAT, COMPLEX, INT = torch.float32, torch.complex64, torch.int64


def captured(last_kernel: str = "ampere_sgemm") -> Captured:
    """Inputs, numbers and outputs of all kinds, two buffers inside, and a stream of the user's with an event."""
    specs = [
        InputSpec((64,), (1,), FLOAT, 256, 256),
        None,
        InputSpec((3,), (1,), COMPLEX, 8, 24, (True, False)),
        InputSpec((5,), (1,), INT, 256, 40),
        InputSpec((2, 2), (2, 1), FLOAT, 16, 16, (False, True)),
        InputSpec((4,), (1,), FLOAT, 256, 16),
    ]
    inputs, output, shelf, inner = [256, 24, 99 * MIB, 16, 16], 99 * MIB, [512, 100, 24], [4096, 1024]
    sizes = [*inputs, output, *shelf, *inner]
    uses = [[0, 3], [1], [0, 1], [2], [3], [2, 3], [2], [2], [3], [0, 1], [0, 3]]
    words: list[list[Word]] = [[] for _ in range(4)]
    for allocation, nodes in enumerate(uses):
        for n in nodes:
            words[n].append(Word(8 * len(words[n]), WordKind.POINTER, allocation, 4 * allocation))
    names = ["triton_poi", "pgk_copy", "triton_red", last_kernel]
    recorded = [RawNode(NodeKind.KERNEL, name, b"", (n - 1,) if n else (), position=n) for n, name in enumerate(names)]
    died = {9: 2, 10: 4}
    allocations = [RawAllocation(4096 * k, size, 0, died.get(k)) for k, size in enumerate(sizes)]
    outputs = [
        Output(Kind.FRESH, 5, 0, (output // 4,), (1,), FLOAT),
        Output(Kind.FRESH, 5, 64, (4,), (2,), FLOAT),
        Output(Kind.FRESH, 5, 16, (2,), (1,), torch.int32),
        Output(Kind.FRESH, 6, 0, (128,), (1,), FLOAT),
        Output(Kind.FRESH, 7, 0, (25,), (1,), FLOAT, bits=(False, True)),
        Output(Kind.FRESH, 8, 8, (2,), (1,), INT),
        Output(Kind.INPUT, 0, 8, (3,), (2,), FLOAT),
        Output(Kind.INPUT, 2, 4, (5,), (1,), FLOAT),
        Output(Kind.INPUT, 2, 8, (2,), (1,), COMPLEX),
        Output(Kind.ARGUMENT, 5),
        Output(Kind.FIXED, value=7),
        Output(Kind.FRESH, -1, 0, (0, 3), (3, 1), FLOAT),
        Output(Kind.ARGUMENT, 0),
    ]
    recording = Recording(recorded, [], None, None)
    recording.streams = (71,)
    recording.events = (SimpleNamespace(record=None),)
    positions = [0, 2, 3, 4, 5]
    return Captured(recording, [tuple(w) for w in words], allocations, positions, outputs, (2.5,), specs)


def source(found: Captured, code: PartitionCode, form: Form, **planned: Any) -> tuple[list[str], dict[str, Any]]:
    scope: dict[str, Any] = {}
    return _source(found, make_plan(found, **planned), scope, code, form), scope


def code(**said: Any) -> PartitionCode:
    return PartitionCode("forward 0", lambda inputs: inputs, **said)


ORDINARY = """\
def launch(inputs):
 if capturing() or tangents._current_level >= 0: return ungraphed(inputs)
 held = inputs.copy()
 a = addresses([held[0], held[3], held[5]], 255)
 a2 = address(held[2])
 a4 = address(held[4])
 if a is None or a2 & 15 != 8 or a4 & 31 != 16 or held[0].is_cpu or held[3].is_cpu or libraries() != libraries_then \
or held[0].shape != (64,) or held[0].stride() != (1,) or held[0].is_neg() is True or type(held[1]) is not c1_type or \
held[1] != c1 or held[2].shape != (3,) or held[2].stride() != (1,) or held[2].is_conj() is False or held[2].is_neg() \
is True or held[3].shape != (5,) or held[3].stride() != (1,) or held[3].is_neg() is True or held[4].shape != (2, 2) \
or held[4].stride() != (2, 1) or held[4].is_neg() is False or held[5].shape != (4,) or held[5].stride() != (1,) or \
held[5].is_neg() is True: return otherwise(inputs)
 inputs.clear()
 s = current_stream()
 w0 = w1 = 0
 try:
  join(71, s)
  q = empty((1536,), (1,), byte)
  try:
   w0 = allocate(rooms[0], s)
  except OutOfMemory:
   w0 = allocate(4096, s)
  try:
   w1 = allocate(rooms[1], s)
  except OutOfMemory:
   w1 = allocate(1024, s)
  keep(q, 71)
  acquire()
  try:
   t = (*a[0:1], a2, *a[1:2], w0, w1, )
   if s != state.stream:
    if state.stream != -1: join(state.stream, s)
    state.stream = s
   watch = state.watch
   if watch is not None: watch = watch(0, written[0], t)
   if t != tables[0]:
    tables[0] = written[0] = ()
    now = t
    patch0(now)
    tables[0], written[0] = t, now
    patched[0] += 1
   replay0(s)
   if watch is not None: watch()
   state.launches += 1
  finally:
   release()
  free(w0); w0 = 0
  held[3] = None
  o5 = empty((103809024,), (1,), t5)
  keep(o5, 71)
  acquire()
  try:
   t = (*a[0:1], a4, *a[2:3], address(o5), address(q), w1, )
   if s != state.stream:
    if state.stream != -1: join(state.stream, s)
    state.stream = s
   watch = state.watch
   if watch is not None: watch = watch(1, written[1], t)
   if t != tables[1]:
    tables[1] = written[1] = ()
    now = t
    patch1(now)
    tables[1], written[1] = t, now
    patched[1] += 1
   replay1(s)
   if watch is not None: watch()
   state.launches += 1
  finally:
   release()
  free(w1); w1 = 0
  join(s, 71)
  record0()
 except BaseException:
  if w0: free(w0)
  if w1: free(w1)
  raise
 q0 = q.view(q0_type)
 q1 = q.view(q1_type)
 return (view(o5.view(r0), (25952256,), (1,), 0), view(o5.view(r1), (4,), (2,), 16), view(o5.view(r2), (2,), (1,), \
4), view(q0, (128,), (1,), 0), neg(view(q0, (25,), (1,), 128)), view(q1, (2,), (1,), 129), view(held[0], (3,), (2,), \
2), view(view(conj(held[2]), (3,), (1,), 0).view(r7), (5,), (1,), 1), conj(view(held[2], (2,), (1,), 1)), held[5], \
f10, empty((0, 3), (3, 1), e11), held[0], )
"""

SHORT = """\
def launch(inputs):
 if capturing() or tangents._current_level >= 0: return ungraphed(inputs)
 *held, together = inputs
 a = addresses([held[-1]], 255)
 a2 = address(held[1])
 a4 = address(held[2])
 if a is None or a2 & 15 != 8 or a4 & 31 != 16 or type(held[0]) is not c1_type or held[0] != c1 or held[2].is_neg() \
is False: return otherwise(inputs)
 before()
 inputs.clear()
 s = current_stream()
 shelved = shifted(a[-1], offsets)
 w0 = w1 = 0
 try:
  join(71, s)
  q = empty((1536,), (1,), byte)
  try:
   w0 = allocate(rooms[0], s)
  except OutOfMemory:
   w0 = allocate(4096, s)
  try:
   w1 = allocate(rooms[1], s)
  except OutOfMemory:
   w1 = allocate(1024, s)
  keep(q, 71)
  acquire()
  try:
   t = (this, a2, *shelved[0:1], w0, w1, )
   if s != state.stream:
    if state.stream != -1: join(state.stream, s)
    state.stream = s
   watch = state.watch
   if watch is not None: watch = watch(0, written[0], (*fixed[0:1], a2, *shelved[0:1], w0, w1, ))
   if t != tables[0]:
    tables[0] = written[0] = ()
    now = (*fixed[0:1], a2, *shelved[0:1], w0, w1, )
    patch0(now)
    tables[0], written[0] = t, now
    patched[0] += 1
   replay0(s)
   if watch is not None: watch()
   state.launches += 1
  finally:
   release()
  free(w0); w0 = 0
  o5 = empty((103809024,), (1,), t5)
  keep(o5, 71)
  acquire()
  try:
   t = (this, a4, *together[0:1], address(o5), address(q), w1, )
   if s != state.stream:
    if state.stream != -1: join(state.stream, s)
    state.stream = s
   watch = state.watch
   if watch is not None: watch = watch(1, written[1], (*fixed[0:1], a4, *together[0:1], address(o5), address(q), w1, \
))
   if t != tables[1]:
    tables[1] = written[1] = ()
    now = (*fixed[0:1], a4, *together[0:1], address(o5), address(q), w1, )
    patch1(now)
    tables[1], written[1] = t, now
    patched[1] += 1
   replay1(s)
   if watch is not None: watch()
   state.launches += 1
  finally:
   release()
  free(w1); w1 = 0
  join(s, 71)
  record0()
 except BaseException:
  if w0: free(w0)
  if w1: free(w1)
  raise
 return (view(o5.view(r0), (2, 2), (4, 1), 8), view(o5.view(r1), (4,), (2,), 16), view(o5.view(r2), (2,), (1,), 4), \
None, None, None, view(i0, (3,), (2,), 2), view(view(conj(held[1]), (3,), (1,), 0).view(r7), (5,), (1,), 1), \
conj(view(held[1], (2,), (1,), 1)), None, f10, empty((0, 3), (3, 1), e11), i0, q, )
"""

SMALL = """\
def launch(inputs):
 if capturing() or tangents._current_level >= 0: return ungraphed(inputs)
 held = inputs.copy()
 a = addresses(held, 255)
 if a is None: return otherwise(inputs)
 inputs.clear()
 s = current_stream()
 o1 = empty((4,), (1,), t1)
 acquire()
 try:
  t = (*a[0:1], address(o1), )
  if s != state.stream:
   if state.stream != -1: join(state.stream, s)
   state.stream = s
  watch = state.watch
  if watch is not None: watch = watch(0, written[0], t)
  if t != tables[0]:
   tables[0] = written[0] = ()
   now = t
   patch0(now)
   tables[0], written[0] = t, now
   patched[0] += 1
  replay0(s)
  if watch is not None: watch()
  state.launches += 1
 finally:
  release()
 return [o1, ]
"""

IN_TWO: dict[str, Any] = {"dying": (2, 3), "together": frozenset({3, 4, 5}), "most_stages": 2}
LESS = Form(
    static={0: torch.empty(0)},
    shelved={3: 512},
    together=range(5, 6),
    unasked=frozenset({2}),
    located=frozenset({3, 4, 5}),
    seen={0: ((2, 2), (4, 1), 8)},
    switched=True,
    before=lambda: None,
)


def test_an_ordinary_launch_is_this_code() -> None:
    # GIVEN code whose layouts may change and that has seeds on the host WHEN its launch is written
    lines, scope = source(captured(), code(layouts=True, host_seeds=(0, 3)), Form(), **IN_TWO)
    # THEN it is this, with these constants
    assert lines == ORDINARY.splitlines()
    del scope["record0"]
    types = {"t5": torch.uint8, "r0": FLOAT, "r1": FLOAT, "r2": torch.int32, "r7": FLOAT, "e11": FLOAT}
    assert scope == types | {"q0_type": FLOAT, "q1_type": INT, "c1": 2.5, "c1_type": float, "f10": 7}


def test_a_launch_that_is_given_less_and_wants_less_is_this_code() -> None:
    # GIVEN inputs that stay, lie on a shelf or come as addresses, outputs that are wanted in other ways
    lines, scope = source(captured(), code(unguarded=(4, 5), host_seeds=(0, 3)), LESS, **IN_TWO)
    # WHEN its launch is written THEN it is this
    assert lines == SHORT.splitlines()
    assert scope["offsets"] == (512,)
    assert scope["before"] is LESS.before


@pytest.mark.parametrize(("kernel", "asks"), [("ampere_sgemm", True), ("triton_red", False), ("pgk_copy", False)])
def test_only_a_library_s_kernels_are_chosen_by_switches(kernel: str, asks: bool) -> None:
    # GIVEN a graph with or without a library's kernel WHEN its launch is written THEN it asks for switches, or not
    for form, again in ((Form(), asks), (Form(switched=True), False)):
        lines, _ = source(captured(kernel), code(), form)
        assert any("libraries() != libraries_then" in line for line in lines) is again


def test_a_launch_with_nothing_inside_takes_nothing_and_returns_a_list_where_the_code_does() -> None:
    # GIVEN one input, one output, and nothing else
    f = captured()
    f.words = [(Word(0, WordKind.POINTER, 0, 0), Word(8, WordKind.POINTER, 1, 4))]
    f.recording.nodes[1:] = []
    f.recording.streams, f.recording.events = (), ()
    f.allocations, f.input_positions, f.scalars = [RawAllocation(0, 256, 0), RawAllocation(4096, 16, 0)], [0], ()
    f.specs, f.outputs, f.returns_tuple = f.specs[:1], [Output(Kind.FRESH, 1, 0, (4,), (1,), FLOAT)], False
    # WHEN its launch is written THEN it is this
    assert source(f, code(), Form())[0] == SMALL.splitlines()


def test_a_launch_without_inputs_returns_the_memory_that_it_has_made() -> None:
    # GIVEN one output on the first allocation of all, one on none at all, and no inputs
    f = captured()
    f.words, f.recording.nodes[1:] = [(Word(0, WordKind.POINTER, 0, 0),)], []
    f.recording.streams, f.recording.events = (), ()
    f.allocations, f.input_positions, f.scalars, f.specs = [RawAllocation(0, 16, 0)], [], (), []
    f.outputs = [Output(Kind.FRESH, 0, 0, (4,), (1,), FLOAT), Output(Kind.FRESH, -1, 0, (0,), (1,), FLOAT)]
    # WHEN its launch is written THEN the first is what the kernel has written to
    lines, _ = source(f, code(), Form())
    assert " o0 = empty((4,), (1,), t0)" in lines
    assert lines[-1] == " return (o0, empty((0,), (1,), e1), )"


@pytest.mark.parametrize(("count", "written"), [(7, ["None"] * 7), (8, ["*none8"]), (9, ["*none9"])])
def test_eight_results_that_are_nothing_come_in_one_piece(count: int, written: list[str]) -> None:
    # GIVEN results, some of them nothing WHEN written THEN many in a row are one
    scope: dict[str, Any] = {}
    assert list(_runs(["a", "a", *["None"] * count, "b", "None"], scope)) == ["a", "a", *written, "b", "None"]
    assert scope == ({f"none{count}": (None,) * count} if count > 7 else {})


@pytest.mark.parametrize(
    ("form", "given_back"),
    [
        (Form(), [" held[3] = None"]),
        (Form(static={0: torch.empty(0)}), [" held[2] = None"]),
        (Form(static={3: torch.empty(0)}), []),
    ],
)
def test_what_is_there_at_each_launch_is_not_given_back_between_two(form: Form, given_back: list[str]) -> None:
    # GIVEN a launch in two stages, of which the second needs input 3 no more WHEN written THEN that is given back where
    # it came with the call
    lines, _ = source(captured(), code(), form, **IN_TWO)
    assert [line.removeprefix(" ") for line in lines if line.endswith(" = None")] == given_back


@pytest.mark.parametrize(
    ("static", "last", "asked"),
    [
        ((), 256, "held"),
        ((1,), 256, "held"),
        ((0, 2), 256, "held"),
        ((), 16, "[held[0], held[1]]"),
        ((0,), 16, "[held[0]]"),
        ((2,), 16, "held"),
    ],
)
def test_inputs_of_a_call_are_asked_for_at_once_where_all_are_aligned(
    static: tuple[int, ...], last: int, asked: str
) -> None:
    # GIVEN three inputs, the last of which may be aligned less, some of which are there at each launch
    f = captured()
    f.words, f.recording.nodes[:] = (
        [tuple(Word(8 * n, WordKind.POINTER, n, 0) for n in range(4))],
        f.recording.nodes[:1],
    )
    f.recording.streams, f.recording.events, f.scalars = (), (), ()
    f.specs = [InputSpec((64,), (1,), FLOAT, alignment, 256) for alignment in (256, 256, last)]
    f.allocations = [RawAllocation(4096 * n, 256, 0) for n in range(4)]
    f.input_positions, f.outputs = [0, 1, 2], [Output(Kind.FRESH, 3, 0, (64,), (1,), FLOAT)]
    # WHEN written THEN the list is looked at as it is, or what is aligned of it
    lines, _ = source(f, code(), Form(static={n: torch.empty(0) for n in static}))
    assert f" a = addresses({asked}, 255)" in lines


@pytest.mark.parametrize(
    ("tenants", "made", "values"),
    [
        ([(0, 8, FLOAT)], "o9 = empty((8,), (1,), t9)", ["o9"]),
        ([(0, (2, 4), FLOAT)], "o9 = empty((2, 4), (4, 1), t9)", ["o9"]),
        ([(0, (2, 4), FLOAT), (4, 1, FLOAT)], "o9 = empty((2, 4), (4, 1), t9)", ["o9", "view(o9, (1,), (1,), 1)"]),
        ([(4, 2, FLOAT), (0, (2, 4), FLOAT)], "o9 = empty((2, 4), (4, 1), t9)", ["view(o9, (2,), (1,), 1)", "o9"]),
        ([(0, 8, FLOAT), (8, 2, FLOAT)], "o9 = empty((8,), (1,), t9)", ["o9", "view(o9, (2,), (1,), 2)"]),
        ([(8, 2, FLOAT), (0, 8, FLOAT)], "o9 = empty((8,), (1,), t9)", ["view(o9, (2,), (1,), 2)", "o9"]),
        ([(0, 4, FLOAT)], "o9 = empty((8,), (1,), t9)", ["view(o9, (4,), (1,), 0)"]),
        ([(16, 8, FLOAT)], "o9 = empty((8,), (1,), t9)", ["view(o9, (8,), (1,), 4)"]),
        (
            [(0, 8, FLOAT), (16, 2, torch.int32)],
            "o9 = empty((32,), (1,), t9)",
            ["view(o9.view(r0), (8,), (1,), 0)", "view(o9.view(r1), (2,), (1,), 4)"],
        ),
    ],
)
def test_an_output_that_fills_its_memory_is_that_memory_and_others_are_looks_at_it(
    tenants: list[tuple[int, Any, torch.dtype]], made: str, values: list[str]
) -> None:
    # GIVEN outputs on one allocation of 32 bytes: where each begins, of how many elements, and of what type
    outputs = []
    for at, n, dtype in tenants:
        size, stride = (n, (4, 1)) if isinstance(n, tuple) else ((n,), (1,))
        outputs.append(Output(Kind.FRESH, 9, at, size, stride, dtype))
    found: Any = SimpleNamespace(outputs=outputs, allocations=[RawAllocation(0, 32, 0)] * 10)
    plan: Any = SimpleNamespace(fresh=(9,))
    # WHEN they are made THEN the first that fills it is it, unless there is one of another type
    scope: dict[str, Any] = {}
    makers, views, returned = _outputs(found, plan, scope, Form(), {})
    assert makers == {9: f" {made}"}
    assert (views, returned) == ([], values)
    types = {dtype for _, _, dtype in tenants}
    assert scope["t9"] == (FLOAT if types == {FLOAT} else torch.uint8)
