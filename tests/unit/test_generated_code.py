"""Lines of the user's behind Inductor's kernels: names as torch traces them, comments as Inductor writes them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from paramgraph_kit.backend.generated_code import GeneratedCode, frames_by_name, of_nodes

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
