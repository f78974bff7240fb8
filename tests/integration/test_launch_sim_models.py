from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.backend.registry import CompiledGraph, compiled_graphs
from paramgraph_kit.bench.workloads import Llama
from paramgraph_kit.launch.launcher import Launcher
from tests.integration.fx_models import Cache, SmallResNet
from tests.integration.launch_bench import DEVICE, host, launches, moved, variants

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

CALLS = 4


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5
        later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        weight = F.dropout(score.masked_fill(later, float("-inf")).softmax(-1), 0.1, self.training)
        mixed: Tensor = self.out((weight @ v).transpose(1, 2).reshape(b, t, d))
        return mixed


class GPT2(nn.Module):
    """LayerNorm before attention and before a GELU network, dropout after each, the head tied to the embedding."""

    def __init__(self, layers: int = 2, dim: int = 32, heads: int = 4, vocabulary: int = 48, tokens: int = 8) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, dim), nn.Embedding(tokens, dim)
        residual = []
        for _ in range(layers):
            residual.append(nn.Sequential(nn.LayerNorm(dim), Attention(dim, heads), nn.Dropout(0.1)))
            wide = (nn.Linear(dim, 4 * dim), nn.GELU("tanh"), nn.Linear(4 * dim, dim))
            residual.append(nn.Sequential(nn.LayerNorm(dim), *wide, nn.Dropout(0.1)))
        self.residual = nn.ModuleList(residual)
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        x = F.dropout(x, 0.1, self.training)
        for part in self.residual:
            x = x + part(x)
        return F.linear(self.norm(x), self.token.weight)


def tokens(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    moved(1)  # so that the next address is another one
    return torch.randint(0, 48, (2, 8), generator=generator).to(DEVICE)


def image(seed: int) -> Tensor:
    return moved(2, 3, 16, 16, seed=seed)


def llama() -> nn.Module:
    return Llama(layers=3, dim=32, heads=4, hidden=64, vocab=48)


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    example: Callable[[int], Tensor]
    by_block: bool = False

    def model(self, training: bool, **options: Any) -> nn.Module:
        """The same weights every time, compiled whole or its layers one by one."""
        torch.manual_seed(0)
        model = self.build().to(DEVICE).train(training)
        how: dict[str, Any] = {"backend": paramgraph, "options": options}
        if not self.by_block:
            return torch.compile(model, **how)  # type: ignore[return-value]
        layers = model.get_submodule("layers")
        assert isinstance(layers, nn.ModuleList)
        for i, layer in enumerate(layers):
            layers[i] = torch.compile(layer, **how)  # type: ignore[assignment]
        return model

    def step(self, model: nn.Module, seed: int) -> list[Tensor]:
        """Outputs; in training also the loss, all gradients, and the buffers after the step."""
        x = self.example(seed)
        torch.manual_seed(seed)
        if not model.training:
            with torch.no_grad():
                return [model(x)]
        y = model(x)
        loss = (y.float() * torch.linspace(-1, 1, y.numel(), device=DEVICE).view_as(y)).sum()
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert len(gradients) == len(list(model.parameters()))
        for p in model.parameters():
            p.grad = None
        return [y.detach(), loss.detach(), *gradients, *(b.clone() for b in model.buffers())]


CASES = {
    "llama": Case(llama, tokens),
    "llama by block": Case(llama, tokens, by_block=True),
    "gpt2": Case(GPT2, tokens),
    "resnet": Case(SmallResNet, image),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    gc.collect()
    yield
    torch._dynamo.reset()


def graphs_since(known: set[CompiledGraph]) -> list[CompiledGraph]:
    return [graph for graph in compiled_graphs() if graph not in known]


def launchers_of(graphs: list[CompiledGraph]) -> list[Launcher]:
    return [launcher for graph in graphs for launcher in graph.launchers]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo asks, block by block
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CASES)
def test_models_give_the_bits_of_the_same_code_without_graphs(name: str, training: bool) -> None:
    # GIVEN a model whose compiled code runs without graphs, and its numbers for some inputs
    case = CASES[name]
    plain = case.model(training, select="never")
    expected = [[host(t) for t in case.step(plain, seed)] for seed in range(CALLS)]
    del plain
    torch._dynamo.reset()
    known = set(compiled_graphs())
    # WHEN the same model is compiled with graphs and called with the same inputs at other addresses
    model = case.model(training)
    found = [case.step(model, seed) for seed in range(CALLS)]
    # THEN every output, gradient and buffer is equal bit for bit, looked at after all calls: none touched another's
    for a, b in zip(found, expected, strict=True):
        assert len(a) == len(b)
        assert all(torch.equal(host(x), y) for x, y in zip(a, b, strict=True))
    # AND all of it came from graphs, with no reason against, and no input was copied
    graphs = graphs_since(known)
    assert [reason for graph in graphs for reason in graph.reasons] == []
    assert sum(graph.outside for graph in graphs) == 0
    launchers = launchers_of(graphs)
    assert [reason for launcher in launchers for reason in launcher.reasons] == []
    phases = 2 if training else 1
    layers = 3 if case.by_block else 1
    # AND there is one executable for each phase: the layers of a model compiled block by block share it
    assert [len(variants(launcher)) for launcher in launchers] == [1] * phases
    assert [launches(launcher) for launcher in launchers] == [layers * CALLS - 1] * phases
    for launcher in launchers:
        (variant,) = variants(launcher)
        assert 0 < variant.state.patches <= variant.state.launches
        assert variant.plan.words > len(variant.captured.recording.nodes)


def test_a_cache_that_the_model_writes_is_written_in_place() -> None:
    # GIVEN a model that writes rows into a buffer, compiled, and its twin in eager
    model, twin = Cache().to(DEVICE), Cache().to(DEVICE)
    fast = torch.compile(model, backend=paramgraph)
    known = model.kept.data_ptr()
    for call in range(5):
        x, position = moved(1, 4, seed=call), torch.tensor([call]).to(DEVICE)
        # WHEN both are called THEN results and buffers are equal, and the buffer is where it was
        assert torch.equal(host(fast(x, position)), host(twin(x, position)))
        assert torch.equal(host(model.kept), host(twin.kept))
    assert model.kept.data_ptr() == known


def test_dynamic_shapes_are_right_at_every_size() -> None:
    # GIVEN a function compiled for sizes that change, whose kernels take no size along
    known = set(compiled_graphs())

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin() * 2
        return y, y.sum(1)

    fast = torch.compile(function, backend=paramgraph, dynamic=True)
    for size in (4, 6, 4, 6, 9, 4):
        x = moved(size, 5, seed=size)
        # WHEN sizes come in turn THEN shapes and numbers are eager's
        for a, b in zip(fast(x), function(x), strict=True):
            assert torch.equal(host(a), host(b))
    # AND each size has an executable, which is used when it comes again
    (launcher,) = launchers_of(graphs_since(known))
    assert [v.state.launches for v in variants(launcher)] == [2, 1, 0]


def test_a_number_read_from_the_device_ends_a_graph_and_the_rest_is_graphed() -> None:
    # GIVEN a function that reads a number in the middle, and uses it: every call has another one
    known = set(compiled_graphs())

    def function(x: Tensor) -> Tensor:
        y = x * 2
        return (y * int(y.sum().item())).cos()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        fast = torch.compile(function, backend=paramgraph)
        for call in range(8):
            x = torch.full((4, 4), float(call), device=DEVICE)
            # WHEN it is called THEN numbers are eager's
            assert torch.equal(host(fast(x)), host(function(x)))
    # AND what comes before is launched from a graph; what takes the number is so for few values only, with the reason
    first, second = launchers_of(graphs_since(known))
    assert (launches(first), first.reasons) == (7, [])
    assert (launches(second), [r.code for r in second.reasons]) == (0, ["changing-scalar"])


def test_outputs_alias_their_inputs_through_the_compiler_too() -> None:
    # GIVEN a compiled function that returns its input, a view of it, and two views of one result
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return x, x[1:], y, y.t()

    fast = torch.compile(function, backend=paramgraph)
    for call in range(3):
        x = moved(3, 4, seed=call)
        # WHEN it is called
        found = fast(x)
        # THEN memory is shared as in eager
        assert found[0] is x
        assert found[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert found[2].untyped_storage().data_ptr() == found[3].untyped_storage().data_ptr()
        for a, b in zip(found, function(x), strict=True):
            assert torch.equal(host(a), host(b))
