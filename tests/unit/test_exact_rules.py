"""Each rule of a cut asked by itself: what a node reads and makes where, how that is told, and what is learned."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from paramgraph_kit.partition import host_reads
from paramgraph_kit.partition.rules import _device_reason, _free_symbols, _symbol_reason, _unbacked_reason, reason
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason
from tests.unit.test_exact_normalized import fake

aten = torch.ops.aten


def node_of(target: Any, *values: Any, val: Any = None) -> torch.fx.Node:
    """A call with inputs that hold these values."""
    graph = torch.fx.Graph()
    given = [graph.placeholder(f"x{n}") for n in range(len(values))]
    for each, value in zip(given, values, strict=True):
        each.meta["val"] = value
    node = graph.call_function(target, tuple(given))
    node.meta["val"] = val
    return node


@pytest.mark.parametrize(
    ("operation", "message"),
    [("", "bytes differ"), ("gemm_kernel", "bytes differ, in its kernel gemm_kernel")],
)
def test_a_refused_kernel_is_told_with_its_name_where_that_is_known(operation: str, message: str) -> None:
    # GIVEN a kernel that a graph refused, with its name or without WHEN code is cut at what launches it
    refusal = RefusedError(Reason("unexplained-word", "bytes differ", None, operation))
    refusal.launched_by = aten.sin.default, 0
    node = node_of(aten.sin.default, fake(4), val=fake(4))
    with host_reads.leaving_out(refusal):
        # THEN the reason says so, of the operation that launches it
        found = reason(node, "cuda")
        assert found is not None
        assert (found.code, found.message, found.operation) == ("unexplained-word", message, "aten.sin")
        # AND nothing of what launches no kernel
        assert reason(node.all_input_nodes[0], "cuda") is None
    assert reason(node, "cuda") is None


def test_two_refused_kernels_are_left_out_while_the_inner_one_lasts() -> None:
    # GIVEN refusals within one another WHEN cut THEN both count inside, the outer one alone behind
    outer, inner = (RefusedError(Reason("unexplained-word", text)) for text in ("outer", "inner"))
    outer.launched_by, inner.launched_by = (aten.sin.default, 0), (aten.cos.default, 0)
    nodes = [node_of(target, fake(4), val=fake(4)) for target in (aten.sin.default, aten.cos.default)]

    def said() -> list[str | None]:
        found = [host_reads.refused_kernel(node) for node in nodes]
        return [None if each is None else each.message for each in found]

    with host_reads.leaving_out(outer):
        with host_reads.leaving_out(inner):
            assert said() == ["outer", "inner"]
        assert said() == ["outer", None]
    assert said() == [None, None]


def learned(*lines: str, text: str = "operation not permitted when stream is capturing") -> tuple[bool, dict[str, str]]:
    """What is learned of a failure in code of these lines."""
    before = dict(host_reads._learned)
    host_reads._learned.clear()
    source = "\n".join(lines)
    linecache.cache["learned.py"] = (len(source), None, [line + "\n" for line in lines], "learned.py")
    try:
        with pytest.raises(RuntimeError) as caught:
            exec(compile(source, "learned.py", "exec"), {"fail": _fail, "text": text, "torch": _Torch()})
        found = host_reads.learn(caught.value), dict(host_reads._learned)
        assert not host_reads.learn(caught.value)  # it is known by now, or nothing is
        return found
    finally:
        host_reads._learned.clear()
        host_reads._learned.update(before)
        del linecache.cache["learned.py"]


def _fail(text: str) -> None:
    raise RuntimeError(text)


class _Torch:
    """Whose operations all fail."""

    def __getattr__(self, name: str) -> _Torch:
        return self

    def __call__(self, text: str) -> None:
        _fail(text)


def test_the_operation_in_which_a_capture_failed_is_learned() -> None:
    # GIVEN generated code that fails under capture in an operation WHEN learned THEN it is that one, with what was said
    call = "torch.ops.mine.peek.default(text)"
    said = "its capture failed: operation not permitted when stream is capturing"
    assert learned(call) == (True, {"mine.peek.default": said})
    # AND nothing where no operation is in the line, or nothing is said of a capture
    assert learned("fail(text)") == (False, {})
    assert learned(call, text="out of memory") == (False, {})
    # AND of several lines of text it is the one about the capture
    assert learned(call, text="CUDA error\nin Capture mode\nmore") == (
        True,
        {"mine.peek.default": "its capture failed: in Capture mode"},
    )


@pytest.mark.parametrize(
    ("made", "read", "expected"),
    [
        (fake(4), [fake(4)], None),
        (fake(4), [], None),
        (fake(4, device="cpu"), [fake(4, device="cpu")], ("cpu-op", "runs on cpu, not on cuda")),
        ((fake(4, device="meta"), fake(4, device="cpu")), [], ("cpu-op", "runs on cpu, meta, not on cuda")),
        (fake(4), [fake(2, 3, device="cpu")], ("cpu-op", "reads a cpu tensor of shape [2, 3] from cuda")),
        (fake(4), [fake(4), fake(3, device="cpu")], ("cpu-op", "reads a cpu tensor of shape [3] from cuda")),
        (fake(4), [fake(device="cpu")], None),  # a number is moved
        (3, [fake(4, device="cpu")], ("cpu-op", "runs on cpu, not on cuda")),  # makes no tensor
        (3, [fake(4)], None),
    ],
)
def test_what_is_made_and_read_elsewhere_is_told(made: Any, read: list[Any], expected: tuple[str, str] | None) -> None:
    # GIVEN an operation WHEN asked where it works THEN this stands in the way
    assert _device_reason(node_of(aten.add.Tensor, *read, val=made), "cuda") == expected


@pytest.mark.parametrize(
    ("made", "read", "expected"),
    [
        (fake(4, device="cpu"), [fake(4)], "a copy from cuda to cpu"),
        (fake(4), [fake(4, device="cpu")], "a copy from cpu to cuda"),
        (fake(4), [fake(4), fake(4, device="cpu")], "a copy from cpu to cuda"),  # copy_: of what is read last
        (fake(4), [fake(4)], None),
    ],
)
def test_a_copy_between_devices_is_told_by_both(made: Any, read: list[Any], expected: str | None) -> None:
    # GIVEN a copy WHEN asked THEN it is told from where to where
    found = _device_reason(node_of(aten._to_copy.default, *read, val=made), "cuda")
    assert found == (expected and ("device-copy", expected))
    # AND where torch has recorded nothing, that is told
    node = node_of(aten._to_copy.default, *read, val=made)
    del node.meta["val"]
    assert _device_reason(node, "cuda") == ("no-metadata", "torch recorded no shape or device for its result")


def test_a_value_that_the_host_waits_for_is_told() -> None:
    # GIVEN operations whose result depends on data, or binds a size WHEN asked THEN the host waits for both
    waits = "the host must wait for a value"
    assert _unbacked_reason(node_of(aten._local_scalar_dense.default, fake(), val=3)) == (
        "unbacked-op",
        f"{waits} that the device computes",
    )
    assert _unbacked_reason(node_of(aten._local_scalar_dense.default, fake(), val=fake())) is None
    assert _unbacked_reason(node_of(aten.nonzero.default, fake(), val=[])) is not None
    assert _unbacked_reason(node_of(aten.sin.default, fake(), val=3)) is None
    bound = node_of(aten.sin.default, fake(), val=fake())
    bound.meta["unbacked_bindings"] = {"u0": ()}
    assert _unbacked_reason(bound) == ("unbacked-op", f"{waits} or a size that the device computes")


def test_sizes_that_are_not_known_are_those_of_shapes_strides_and_offsets_of_all_that_is_read_and_made() -> None:
    # GIVEN sizes of the call's in what a node reads and makes WHEN asked THEN each is found wherever it stands
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        assert mode.shape_env is not None
        a, b = mode.shape_env.create_unbacked_symint(), mode.shape_env.create_unbacked_symint()
        plain = torch.empty(4)
        sized = torch.empty((a, 3))
        strided = torch.empty_strided((2, 3), (b, 1))
        offset = torch.empty(9).as_strided((2,), (1,), a)
        cases: list[tuple[torch.fx.Node, list[Any]]] = [
            (node_of(aten.sin.default, plain, val=plain), []),
            (node_of(aten.sin.default, sized, val=plain), [a]),
            (node_of(aten.sin.default, plain, val=strided), [b]),
            (node_of(aten.sin.default, offset, val=plain), [a]),
            (node_of(aten.sin.default, sized, strided, val=plain), [a, b]),
            (node_of(aten.sin.default, b, val=3), [b]),
            (node_of(aten.sin.default, plain, val=(plain, sized)), [a]),
        ]
        for node, sizes in cases:
            assert _free_symbols(node) == {size.node.expr for size in sizes}
        # AND they stand in the way only where Inductor is told so
        node = cases[1][0]
        assert _symbol_reason(node, config) is None
        with config.patch({"triton.cudagraph_skip_dynamic_graphs": True}):
            found = _symbol_reason(node, config)
            assert found is not None
            assert found[0] == "dynamic-shape"
            assert _symbol_reason(cases[0][0], config) is None
        # OR where what computes one is listed
        with node.graph.inserting_before(node):
            maker = node.graph.call_function(aten.sin.default, (node.all_input_nodes[0],))
        maker.meta = {"val": plain, "unbacked_bindings": {a.node.expr: ()}}
        for listed, code in (
            (["aten::sin"], None),
            (["aten::sin.default"], "unbacked-size"),
            (["aten::cos.default"], None),
        ):
            with config.patch(cudagraph_unsafe_unbacked_ops=listed):
                found = _symbol_reason(node, config)
            assert (found and found[0]) == (code if listed != ["aten::sin"] else "unbacked-size")
