"""Are regions cut where Inductor cuts? Its scheduler decides without a GPU once it is told that CPU work counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config

from paramgraph_kit.backend.fx import compile_fx_graph
from paramgraph_kit.backend.outside import keep_outside

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # on importing Inductor


class DecidedError(Exception):
    """Stops Inductor once the partitions are known: no code is generated, so no C++ compiler is needed."""


@pytest.fixture
def inductor_partitions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[bool]]]:
    from torch._inductor import scheduler, utils

    found: list[list[bool]] = []
    decide = scheduler.Scheduler.graph_partition

    def note(self: Any) -> Any:
        _, signatures = decide(self)
        found.append([not signature.skip_cudagraph for signature in signatures])
        raise DecidedError

    monkeypatch.setattr(scheduler.Scheduler, "graph_partition", note)
    monkeypatch.setattr(scheduler.BaseSchedulerNode, "is_gpu", lambda self: True)
    monkeypatch.setattr(utils._unstable_customized_partition_wrapper, "wrapper", lambda function, metadata: function)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def plain(x: Tensor) -> Any:
    return (x @ x).relu() @ x


def masked_select(x: Tensor) -> Any:
    y = x.sin()
    return (x[y > 0] * 2).sum(), (y @ x).cos()


def masked_fill(x: Tensor) -> Any:
    y = (x @ x).relu()
    y[x > 0] = 1.0
    return y @ x


def masked_rows(x: Tensor) -> Any:
    y = (x @ x).relu()
    return torch.index_put(y, (x.sum(1) > 0,), x[0]) @ x


def two_obstacles(x: Tensor) -> Any:
    a = torch.nonzero(x @ x).sum()
    b = torch.nonzero(x @ x.t()).sum()
    return a + b, x @ x @ x


def obstacle_first(x: Tensor) -> Any:
    y = torch.nonzero(x)
    return x[y[:, 0]].relu().sum(), x.masked_select(x > 0.5).sum()


def branch(x: Tensor) -> Any:
    return torch.cond((x @ x).sum() > 0, lambda x: (x @ x).sin(), lambda x: (x @ x).cos(), (x,)) @ x


def ranges(x: Tensor) -> Any:
    return torch.histc(x @ x, 8) @ torch.ones(8), torch.histc(x @ x, 4, 0, 1).relu()


@torch.library.custom_op("pgk_parity::experts", mutates_args=())
def groups(x: Tensor, ends: Tensor) -> Tensor:
    return x.clone() if ends.tolist() else x + 1


@groups.register_fake
def _(x: Tensor, ends: Tensor) -> Tensor:
    return torch.empty_like(x)


def experts(x: Tensor) -> Any:
    return torch.ops.pgk_parity.experts((x @ x).relu(), x.argmax(0)).relu() @ x


@pytest.mark.parametrize(
    "function", [plain, masked_select, masked_fill, masked_rows, two_obstacles, obstacle_first, branch, ranges, experts]
)
def test_regions_are_cut_where_inductor_cuts(
    function: Callable[[Tensor], Any], inductor_partitions: list[list[bool]]
) -> None:
    # GIVEN a function with or without obstacles
    x = torch.randn(4, 4)
    ours: list[list[bool]] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return compile_fx_graph(
            gm,
            inputs,
            lambda graph, region, code: code.run,
            device_type="cpu",
            observe=lambda name, cut, _: ours.append([region.graphed for region in cut.regions]),
        )

    def inductor(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        def inner(module: torch.fx.GraphModule, examples: Any, **how: Any) -> Any:
            keep_outside(module)  # what torch does not know to be unsafe
            return compile_fx.compile_fx_inner(module, examples, **how)

        from torch._inductor import compile_fx

        made: Any = compile_fx.compile_fx(gm, inputs, inner)
        return made  # type: ignore[no-any-return]

    # WHEN Inductor and this backend partition it
    with config.patch(capture_dynamic_output_shape_ops=True), torch._inductor.config.patch(fx_graph_cache=False):
        with pytest.raises(Exception, match="DecidedError"):
            torch.compile(function, backend=inductor)(x)
        torch._dynamo.reset()
        torch.compile(function, backend=backend)(x)
    # THEN graphed and ungraphed regions alternate in the same way
    assert ours == inductor_partitions
    assert ours
