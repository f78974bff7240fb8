"""What graphs of many shapes hold while they are launched, on the simulated device's allocator."""

# mypy: disable-error-code="no-untyped-call, no-any-return"
from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.driver import tensors
from paramgraph_kit.step import verify as comparison
from tests.integration import step_parts
from tests.integration.launch_bench import assert_same, launcher_of, launches, moved, variants
from tests.integration.test_launch_sim_failures import everything_but, hungry

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

MIB = 1 << 20


def test_many_shapes_in_turn_hold_the_workspace_of_the_largest() -> None:
    # GIVEN batches of many sizes, each a little larger than the one before
    scale = nn.Parameter(torch.ones(1 << 16, device=pgk.device()))
    optimizer = torch.optim.SGD([scale], lr=0.01)

    def train(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (x * scale).tanh().sigmoid().tanh().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = pgk.parameterize(train, state=optimizer, verify="off")
    batches = [torch.ones(n, 1, device=pgk.device()) for n in range(40, 80, 8)]
    for _ in range(2):
        list(map(step, batches))
    # WHEN they take turns
    gc.collect()
    pgk.cuda.empty_cache()
    before = pgk.cuda.memory_reserved()
    pgk.cuda.reset_peak_memory_stats()
    for _ in range(2):
        list(map(step, batches))
    # THEN the allocator keeps no piece for each size: all graphs take alike ones
    (row,) = pgk.report(step).rows
    assert row.executables == len(batches)
    assert pgk.cuda.max_memory_reserved() - before <= row.workspace_bytes + 4 * MIB


def test_a_graph_is_launched_where_there_is_room_for_its_own_workspace_alone() -> None:
    # GIVEN two graphs that take turns on alike pieces of workspace, and a device with room for the smaller one's
    launcher = launcher_of(hungry, layouts=True)
    x = moved(MIB // 2)
    for each in (x, moved(MIB)):
        launcher([each])
    small, large = variants(launcher)
    assert small.state.rooms == large.state.rooms
    pgk.cuda.empty_cache()
    spare = torch.empty(small.plan.workspace_bytes + 12 * MIB, dtype=torch.uint8, device=x.device)
    hog = everything_but(4 * MIB)
    del spare
    # WHEN that is launched THEN it is right
    assert_same(launcher([x]), hungry(x))
    assert launches(launcher) == 1
    hog.clear()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(x.cumsum(1))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Tied(nn.Module):
    """A small language model with many words: its logits and its embedding's gradient are what is large in it."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(words, width), nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.words(x)
        for block in self.blocks:
            y = block(y)
        return y @ self.words.weight.T


def convolutions(width: int, layers: int) -> nn.Module:
    found: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(layers):
        found += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*found, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def words_step(words: int, width: int, layers: int, rows: int) -> step_parts.Program:
    torch.manual_seed(0)
    model = Tied(words, width, layers).to(pgk.device())

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randint(words, (rows, 32), generator=torch.Generator().manual_seed(number)).to(pgk.device())
        return x, x.flatten().flip(0)

    return _stepped(model, lambda x, y: nn.functional.cross_entropy(model(x).flatten(0, 1), y), batch)


def images_step() -> step_parts.Program:
    torch.manual_seed(0)
    model = convolutions(96, 6).to(pgk.device())

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(4, 3, 24, 24, generator=generator).to(pgk.device())
        return x, torch.randint(96, (4,), generator=generator).to(pgk.device())

    return _stepped(model, lambda x, y: nn.functional.cross_entropy(model(x), y), batch)


def _stepped(model: nn.Module, loss_of: Any, batch: Any) -> step_parts.Program:
    rate = torch.tensor(1e-3, device=pgk.device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True, capturable=True)
    return step_parts.Program(step_parts.basic(model, optimizer, loss_of), (model, optimizer), model, batch)


MODELS = {
    "many words": lambda: words_step(8000, 128, 2, 4),
    "many layers": lambda: words_step(512, 192, 8, 2),
    "many activations": lambda: words_step(256, 96, 6, 48),
    "images": images_step,
}


def held_by(call: Any, program: step_parts.Program) -> dict[str, int]:
    """Bytes: allocated at the most of all calls, allocated and reserved at the most of later ones, reserved at rest."""
    cuda = pgk.cuda
    allocated, reserved = cuda.memory_allocated(), cuda.memory_reserved()
    cuda.reset_peak_memory_stats()
    for number in range(5):
        call(*program.batch(number))
    found = {"first calls": cuda.max_memory_allocated() - allocated}
    gc.collect()
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    for number in range(3):
        call(*program.batch(number))
    found |= {"peak": cuda.max_memory_allocated() - allocated, "reserved": cuda.max_memory_reserved() - reserved}
    gc.collect()
    cuda.empty_cache()
    return found | {"rest": cuda.memory_reserved() - reserved}


@pytest.mark.parametrize("verify", ["first", "off"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_holds_what_it_holds_without_a_graph(name: str, verify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step that leaves gradients, without a graph and then with one, from its first call on
    monkeypatch.setattr(comparison, "LARGE", 0)  # as with large models
    monkeypatch.setattr(tensors, "_PIECE", 1 << 14)
    held = []
    for options in (None, {"verify": verify}):
        gc.collect()
        pgk.cuda.empty_cache()
        program = MODELS[name]()
        call = program.step if options is None else pgk.parameterize(program.step, state=program.state, **options)
        held.append(held_by(call, program))
        if options is not None:
            assert pgk.report(call).rows[0].launches >= 5
        del call, program
    plain, graphed = held
    # THEN at rest it holds no more but for a segment or two, and at its peak little more, the first calls included:
    # neither what is watched nor what is compared needs a second set of gradients or of the state
    assert graphed["rest"] <= plain["rest"] + 4 * MIB
    assert graphed["peak"] <= 1.15 * plain["peak"]
    assert graphed["first calls"] <= 1.15 * plain["first calls"] + 4 * MIB
    assert graphed["reserved"] <= 1.15 * plain["reserved"] + 20 * MIB  # less is not reserved for a workspace at once


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.select_scatter(x, x[0] * 2, 0, 1),
        lambda x: torch.slice_scatter(x, x[:1] * 2, 0, 1, 2),
        lambda x: torch.diagonal_scatter(x, x[:, 0] * 2),
        lambda x: torch.as_strided_scatter(x, x[0, :2] * 2, (2,), (1,), 1),
        lambda x: x.as_strided((2, 2), (4, 1), 1) * 2,
        lambda x: x.as_strided((2, 2), (4, 1), 1),
        lambda x: x + x.storage_offset(),
        lambda x: torch.empty(0, device=x.device).set_(x.untyped_storage(), 1, (5,), (1,)) * 2,
    ],
    ids=["select", "slice", "diagonal", "as_strided", "offset", "view", "asked", "set"],
)
def test_what_counts_from_where_a_storage_begins(function: Any) -> None:
    # GIVEN a step that counts from where its argument's storage begins, or copies all of that
    step = pgk.parameterize(function, state=[])
    generator = torch.Generator().manual_seed(0)
    # WHEN arguments are whole storages THEN it is launched
    for _ in range(5):
        x = torch.randn(3, 4, generator=generator).to(pgk.device())
        assert torch.equal(step(x), function(x))
    assert launches_of(step) >= 2, pgk.report(step).reasons
    # WHEN they are slices, at one place or another THEN each call gives what its own slice does
    for rows in (1, 2, 1, 3, 1, 1):
        x = torch.randn(8, 4, generator=generator).to(pgk.device())[rows : rows + 3]
        assert torch.equal(step(x), function(x)), rows
    # AND whole ones are launched on
    before = launches_of(step)
    x = torch.randn(3, 4, generator=generator).to(pgk.device())
    assert torch.equal(step(x), function(x))
    assert launches_of(step) == before + 1


def launches_of(step: Any) -> int:
    return sum(row.launches for row in pgk.report(step).rows)


class _Padded(torch.autograd.Function):
    """Multiplication by a weight whose gradient is made in a larger matrix, as Inductor makes those of odd sizes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows, width = weight.shape
        whole = torch.empty(rows + rows // 32, width, device=x.device)
        whole.fill_(7.0)  # behind the gradient, too
        torch.mm(gradient.t(), x, out=whole[:rows])
        return gradient @ weight, whole[:rows]


@pytest.mark.parametrize("verify", ["off", "first"])
def test_a_gradient_at_the_beginning_of_its_allocation_is_written_over_by_each_launch(verify: str) -> None:
    # GIVEN a step with such a gradient, its twin, and tensors that lie around it
    def made() -> tuple[Any, Any, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 501, bias=False)).to(pgk.device())
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1, device=pgk.device()), capturable=True)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = _Padded.apply(model[0](x), model[1].weight).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    model, optimizer, plain = made()
    twin, _, expected = made()
    step = pgk.parameterize(plain, state=(model, optimizer), verify=verify)
    around: list[torch.Tensor] = []
    for n in range(12):
        x = torch.randn(8, 64, device=pgk.device())
        if n == 6:  # somebody holds it: the next launch makes another
            held = model[1].weight.grad
            bits = held.clone()
        if n in (4, 7):  # others lie around them, all of which stay as they are
            around += [torch.full((501 * 64,), 3.0, device=pgk.device()) for _ in range(4)]
        # WHEN stepped THEN all is as without graphs
        assert torch.equal(step(x), expected(x))
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(mine, other)
            assert torch.equal(mine.grad, other.grad)
        assert all(bool((each == 3).all()) for each in around)
    assert torch.equal(held, bits)
    assert held.untyped_storage().nbytes() >= (501 + 15) * 64 * 4
    # AND the gradient is kept from launch to launch
    (graphed,) = (each for graphs in step._graphs.values() for each in graphs)
    assert len(graphed._again) == 3
    assert not graphed._others
    assert pgk.report(step).rows[0].launches >= 8


class _Roomy(torch.autograd.Function):
    """A product whose gradient lies at the beginning of memory that was workspace, the more the larger the batch is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        room = torch.full((3 + len(x), *weight.shape), 0.5, device=x.device)
        torch.mul(gradient.t() @ x, room[1], out=room[0])
        return gradient @ weight, room[0]


def test_graphs_that_write_unlike_amounts_behind_a_gradient_share_it() -> None:
    # GIVEN a step that is called with batches of three sizes, and its twin
    def made() -> tuple[Any, Any, Any]:
        torch.manual_seed(0)
        model = nn.Linear(48, 40, bias=False).to(pgk.device())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = _Roomy.apply(x, model.weight).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    model, optimizer, plain = made()
    twin, _, expected = made()
    step = pgk.parameterize(plain, state=(model, optimizer))
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    for n in range(24):
        x = torch.randn((4, 16, 8)[n % 3], 48, device=pgk.device())
        # WHEN stepped in turn THEN all is as without graphs, and what somebody holds stays
        assert torch.equal(step(x), expected(x)), n
        assert torch.equal(model.weight, twin.weight), n
        assert torch.equal(model.weight.grad, twin.weight.grad), n
        if n in (13, 20):
            held.append((model.weight.grad, model.weight.grad.clone()))
    assert all(torch.equal(*each) for each in held)
    # AND all three graphs write one gradient, on memory for the largest
    graphs = [graphed for found in step._graphs.values() for graphed in found]
    (kept,) = {id(graphed._kept): graphed._kept for graphed in graphs}.values()
    assert len(graphs) == 3
    assert [t.untyped_storage().nbytes() for t in kept.tensors] == [(3 + 16) * 40 * 48 * 4]
    assert kept.tensors[0] is model.weight.grad
    assert all(graphed.variant.state.launches >= 5 for graphed in graphs)


@pytest.mark.parametrize("held", [lambda p: p.grad, lambda p: p.grad.untyped_storage(), lambda p: p.grad.view(-1)])
def test_what_somebody_keeps_of_a_gradient_stays_as_it_was(held: Any) -> None:
    # GIVEN a step that leaves gradients, launched
    linear: Any = nn.Linear(4, 4, bias=False).to(pgk.device())

    def plain(x: torch.Tensor) -> None:
        linear.zero_grad()
        linear(x).square().sum().backward()

    step = pgk.parameterize(plain, state=linear)
    for k in range(1, 4):
        step(torch.full((2, 4), float(k), device=pgk.device()))
    # WHEN its caller keeps a gradient, a view of one, or its memory alone, and goes on
    expected, kept = linear.weight.grad.tolist(), held(linear.weight)
    step(torch.full((2, 4), 9.0, device=pgk.device()))
    # THEN that has the numbers that it had
    found = torch.empty(0, device=pgk.device()).set_(
        kept if isinstance(kept, torch.UntypedStorage) else kept.view(4, 4)
    )
    assert found.as_strided((4, 4), (4, 1)).tolist() == expected
    assert linear.weight.grad.tolist() != expected
    # AND the next launches are launches
    assert pgk.report(step).rows[0].launches >= 2
