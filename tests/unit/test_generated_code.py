"""Lines of the user's behind Inductor's kernels: names as torch traces them, comments as Inductor writes them."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx.traceback import annotate

from paramgraph_kit.backend.attention import on_memory_of_their_own
from paramgraph_kit.backend.fx import returned_to_the_caller
from paramgraph_kit.backend.generated_code import GeneratedCode, frames_by_name, of_nodes
from paramgraph_kit.backend.inductor import CONFIG, check_keywords
from paramgraph_kit.trace.errors import UnsupportedError

# The shape of what Inductor 2.11 writes for a GPU, shortened.
SOURCE = """
# Topologically Sorted Source Nodes: [z], Original ATen: [aten.mul]
triton_poi_fused_mul_0 = async_compile.triton('triton_poi_fused_mul_0', '''
triton_poi_fused_mul_0.run(not, a, launch)
''')
def partition_0(args):
    # Topologically Sorted Source Nodes: [input_1], Original ATen: [aten.t, aten.addmm]
    extern_kernels.addmm(primals_2, primals_3, out=buf0)
    # Topologically Sorted Source Nodes: [input_2, z], Original ATen: [aten.gelu, aten.mul]
    stream0 = get_raw_stream(0)
    triton_poi_fused_gelu_mul_0.run(buf0, buf1, 32, stream=stream0)
    triton_poi_fused_1.run(buf1, 32, stream=stream0)
    # Topologically Sorted Source Nodes: [mul], Original ATen: [aten.mul]
    triton_poi_fused_gelu_mul_0.run(buf2, buf3, 32, stream=stream0)
def partition_1(args):
    # Topologically Sorted Source Nodes: [sin, elsewhere], Original ATen: [aten.sin]
    triton_poi_fused_sin_2.run(buf4, 32, stream=stream0)
"""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        z = torch.softmax(y, -1)
        return z * x.sin()


class WrittenError(Exception):
    """Stops Inductor once the source is written: neither Triton nor a compiler is needed to write it."""


def written_by_inductor(function: Callable[..., Any], *inputs: Tensor) -> tuple[str, torch.fx.GraphModule, int]:
    """The source that the installed torch writes for a GPU's forward, the graph behind it, how many results it has."""
    from torch._inductor import codecache, compile_fx, config, scheduler
    from torch.utils import _triton

    sources: list[str] = []
    graphs: list[tuple[torch.fx.GraphModule, int]] = []

    def keep(source: str, *_: Any, **__: Any) -> Any:
        sources.append(source)
        raise WrittenError

    def inner(module: torch.fx.GraphModule, examples: Sequence[Any], **how: Any) -> Any:
        graphs.append((copy.deepcopy(module), returned_to_the_caller()))
        return compile_fx.compile_fx_inner(module, examples, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecache.PyCodeCache, "write", keep)
        patch.setattr(scheduler.BaseSchedulerNode, "is_gpu", lambda self: True)
        patch.setattr(_triton, "triton_hash_with_backend", lambda *_: "none")
        settings = {"cpu_backend": "triton", "fx_graph_cache": False, **CONFIG}
        torch._dynamo.reset()
        with (
            config.patch(settings),
            torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
            pytest.raises(Exception, match="WrittenError"),
        ):
            torch.compile(function, backend=lambda module, examples: compile_fx.compile_fx(module, examples, inner))(
                *inputs
            )
    torch._dynamo.reset()
    return sources[-1], *graphs[-1]


def around_an_obstacle(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = (x @ w).relu()
    z = torch.nonzero(y).sum()
    return y.sin() + z, (y @ w).cos().sum()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # on importing Inductor
def test_what_is_read_is_what_the_installed_torch_writes() -> None:
    # GIVEN a function that Inductor cuts in two around one operation, compiled for training
    leaves = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    source, module, returned = written_by_inductor(around_an_obstacle, *leaves)
    code = GeneratedCode(source)
    first = inspect.getsourcelines(around_an_obstacle)[1]
    # WHEN its source is read THEN one launch is outside of the partitions
    assert code.launches_outside() == 1
    # AND each Triton kernel of either partition has its line, wherever this torch has cut and fused
    lines = {n: [f and (f.file, f.line - first) for k in kernels.values() for f in k]
             for n, kernels in code.by_launch(frames_by_name(module)).items()}  # fmt: skip
    assert lines.keys() == {0, 1}
    assert {line for found in lines.values() for line in found} == {(__file__, n) for n in (1, 2, 3)}
    assert (__file__, 2) not in lines[0]
    # AND what is only saved for the backward is told from what the caller gets
    assert returned == 2
    saved = code.saved(returned)
    counts = {0: 4, 1: 1} if torch.__version__ >= "2.12" else {0: 3, 1: 3}
    assert {number: len(outputs) for number, outputs in saved.items()} == counts


def attending(x: Tensor, w: Tensor, o: Tensor) -> Tensor:
    q, k, v = (x @ w).tanh().view(2, 4, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
    k = k * 1.0  # which the compiler may leave out
    y = torch.ops.aten._scaled_dot_product_efficient_attention(q + k.sin(), k, v, None, True)[0]
    z: Tensor = y.transpose(1, 2).reshape(2, 4, 16) @ o
    return z.tanh().exp()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # on importing Inductor
def test_what_attention_asks_about_shares_no_allocation_and_the_rest_may() -> None:
    # GIVEN a function with memory-efficient attention, compiled for training
    leaves = [torch.randn(*size, requires_grad=True) for size in ((2, 4, 16), (16, 48), (16, 16))]
    source, module, returned = written_by_inductor(attending, *leaves)
    outputs: Any = module.graph.output_node().args[0]
    results = [each.name for each in outputs]

    # WHEN what may not share is asked for
    apart = on_memory_of_their_own(module)

    # THEN it is the queries, keys and values, and what they may be the same memory as
    names = {results[k] for k in apart}
    attention = next(node for node in module.graph.nodes if "efficient_attention" in node.name)
    assert {str(each) for each in attention.args[:3]} & set(results) <= names
    assert not set(results[:returned]) & names

    # AND what else is saved may lie on one allocation: attention's results, and what comes after it
    code = GeneratedCode(source)
    everything, some = code.saved(returned)[0], code.saved(returned, apart)[0]
    of_one_product = "mul" not in results  # where the compiler leaves it out, keys and values are views of one tensor
    assert len(everything) - len(some) == len(apart) - of_one_product
    assert len(some) >= 5


def on_two_streams(x: Tensor, w: Tensor) -> Tensor:
    h = x @ w
    torch.ops.streams.wait_stream(1, 0)
    with annotate({"stream": 1}):  # as Dynamo notes "with torch.cuda.stream(side)"
        left = h.relu().sum(0)
    right = h.sigmoid().sum(1)
    torch.ops.streams.wait_stream(0, 1)
    return left * right


@pytest.mark.skipif(torch.__version__ < "2.12", reason="Inductor of this torch has no streams")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_the_streams_of_the_user_s_are_found_as_the_installed_torch_writes_them() -> None:
    # GIVEN a function on two streams, and one on one, compiled
    inputs = [torch.randn(8, 8) for _ in range(2)]
    theirs, plain = (written_by_inductor(each, *inputs)[0] for each in (on_two_streams, around_an_obstacle))
    # WHEN its source is read THEN the partition that enters the second is known, and no other
    assert GeneratedCode(theirs).on_streams() == {0}
    assert GeneratedCode(plain).on_streams() == frozenset()


def reading_beside(x: Tensor, w: Tensor) -> Tensor:
    h = x @ w
    torch.ops.streams.record_event(2, 0)
    torch.ops.streams.wait_event(2, 1)
    with annotate({"stream": 1}):
        left = h @ w
        torch.ops.streams.record_event(3, 1)
    right = (h @ w) @ w
    torch.ops.streams.wait_event(3, 0)
    return left @ right


@pytest.mark.skipif(torch.__version__ < "2.12", reason="Inductor of this torch has no streams")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_inductor_still_writes_over_what_another_stream_reads() -> None:
    # GIVEN a function of which one stream reads what another has made, and is waited for at the end
    source, _, _ = written_by_inductor(reading_beside, *[torch.randn(8, 8) for _ in range(2)])
    # WHEN its source is read from the second stream on, up to where the first waits for it
    body = source.partition("with stream1:")[2].partition("wait_event.default(3, 0)")[0]
    (read,) = re.findall(r"extern_kernels\.mm\((\w+), \w+, out=", body.partition("with default_stream:")[0])
    # THEN its memory has another owner by then: what compiled code computes on streams is no measure for a graph of it
    # (where this fails, Inductor has learnt to wait: docs/launcher.md, threads and streams)
    (owner,) = re.findall(rf"(\w+) = {read}; del {read}  # reuse", body)
    assert f"out={owner})" in body


def given_other_memory(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    w.data = (w * 0.9).relu()
    return y + (x @ w)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_a_partition_that_gives_a_tensor_other_memory_is_found() -> None:
    # GIVEN a function that assigns the data of an input, and one that does not, compiled
    inputs = [torch.randn(8, 8) for _ in range(2)]
    theirs, plain = (written_by_inductor(each, *inputs)[0] for each in (given_other_memory, around_an_obstacle))
    # WHEN its source is read THEN the partition that does so is known: captured, it would leave memory of the capture
    assert GeneratedCode(theirs).changing_storages() == {0}
    assert GeneratedCode(plain).changing_storages() == frozenset()


def test_what_nobody_wrote_is_not_read() -> None:
    # GIVEN a source that is no Python WHEN it is read THEN there is nothing in it
    code = GeneratedCode("def call(args:")
    assert (code.launches_outside(), code.saved(1), code.by_launch({})) == (0, {}, {})


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_keywords_that_a_new_torch_drops_are_missed_at_once() -> None:
    # GIVEN Inductor's function of the installed torch, and one without what must be known
    from torch._inductor.compile_fx import cudagraphify

    def other(model: Any, static_input_idxs: Any = (), *, constants: Any = (), placeholders: Any = ()) -> None: ...

    # WHEN their keywords are checked THEN the first has all of them, the second is refused by what it lacks
    check_keywords(cudagraphify)
    with pytest.raises(UnsupportedError, match="cudagraphify takes no mutated_input_idxs any more"):
        check_keywords(other)


def test_kernels_have_the_lines_of_what_is_fused_in_them() -> None:
    # GIVEN a graph as AOTAutograd hands it to Inductor
    graphs: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        graphs.append(module)
        return module

    torch._dynamo.reset()
    torch.compile(Model(), backend=aot_autograd(fw_compiler=keep))(torch.randn(4, 8))
    torch._dynamo.reset()
    frames = frames_by_name(graphs[0])
    line = inspect.getsourcelines(Model.forward)[1]
    # WHEN Inductor's comments name what each kernel was made of
    found = GeneratedCode(SOURCE).by_launch(frames)
    # THEN each launch has the line of its last operation, and what no comment speaks of has none
    lines = {name: [f and (f.file, f.line) for f in each] for name, each in found[0].items()}
    assert lines == {
        "triton_poi_fused_gelu_mul_0": [(__file__, line + 2), (__file__, line + 3)],
        "triton_poi_fused_1": [None],
    }
    assert [f and f.line for f in found[1]["triton_poi_fused_sin_2"]] == [line + 3]
    # AND recorded nodes find theirs in order, unless a kernel was launched more often or less
    names = ["triton_poi_fused_gelu_mul_0", "gemm", "triton_poi_fused_gelu_mul_0"]
    assert [f and f.line for f in of_nodes(names, found[0])] == [line + 2, None, line + 3]
    assert list(of_nodes(names[:1], found[0])) == [None]
