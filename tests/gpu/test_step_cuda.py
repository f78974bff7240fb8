"""``pgk.parameterize(step, state=...)`` on a GPU: the bits of the ungraphed step, from one launch at any addresses."""

# mypy: disable-error-code="no-untyped-call, index, no-any-return"
from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import paramgraph_kit as pgk
from paramgraph_kit.launch import lent
from tests.integration import steps
from tests.integration.test_step_sim import equal

pytestmark = pytest.mark.gpu

Maker = Callable[[], steps.Program]
MIB = 1 << 20


def rate() -> torch.Tensor:
    return torch.tensor(1e-3, device="cuda")


def fused(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=rate(), fused=True, capturable=True)


class Block(nn.Module):
    """Attention and a gated MLP, as in Llama."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False)
        self.down, self.dropout = nn.Linear(4 * width, width, bias=False), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, 8, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.dropout(self.out(attended.reshape(batch, length, width)))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@pytest.fixture(autouse=True)
def fixed_order() -> Iterator[None]:
    """Attention whose backward adds up in a fixed order: without it ungraphed steps differ from one another."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def language(
    make: Callable[[Any], Any] = fused, *, dropout: float = 0.0, how: str = "", compiled: bool = False
) -> Maker:
    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        x = model["in"](x)
        for block in model["blocks"]:
            x = checkpoint(block, x, use_reentrant=False) if how == "checkpoint" else block(x)
        return model["out"](x)

    # One compilation for twins: two of them may be tuned to kernels with other last bits.
    run = torch.compile(forward) if compiled else forward

    def build() -> steps.Program:
        torch.manual_seed(0)
        blocks = nn.ModuleList(Block(256, dropout) for _ in range(2))
        model = nn.ModuleDict({"in": nn.Embedding(500, 256), "blocks": blocks, "out": nn.Linear(256, 500)}).cuda()
        optimizer = make(model.parameters())
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16, enabled=how == "scaled"):
                loss = F.cross_entropy(run(model, x).flatten(0, 1), y.flatten())
            if how == "scaled":
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                if how == "clipped":
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            return loss.detach()

        def batch(number: int) -> tuple[torch.Tensor, ...]:
            # No token three times: Inductor adds up an embedding's gradient by atomics, in no fixed order.
            generator = torch.Generator().manual_seed(number)
            return tuple((torch.randperm(1000, generator=generator)[:64] % 500).view(2, 32).cuda() for _ in range(2))

        return steps.Program(step, (model, optimizer, scaler), model, batch)

    return build


def images() -> steps.Program:
    torch.manual_seed(0)

    def unit(inside: int, outside: int) -> list[nn.Module]:
        return [nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]

    model = nn.Sequential(
        *unit(3, 32), nn.MaxPool2d(2), *unit(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(number: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(number)
        size = 32 + 8 * (number % 3)
        images = torch.randn(4, 3, size, size, generator=generator).cuda()
        return images, torch.randint(10, (4,), generator=generator).cuda()

    return steps.Program(step, (model, optimizer), model, batch)


KINDS: dict[str, Maker] = {
    "fused": language(),
    "foreach, clipped": language(
        lambda p: torch.optim.AdamW(p, lr=rate(), foreach=True, capturable=True), how="clipped"
    ),
    "one by one": language(lambda p: torch.optim.Adam(p, lr=rate(), foreach=False, capturable=True)),
    "momentum": language(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "fused momentum": language(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True)),
    "dropout": language(dropout=0.2),
    "scaled": language(how="scaled"),
    "checkpointed": language(how="checkpoint"),
    "checkpointed with dropout": language(dropout=0.2, how="checkpoint"),
    "compiled": language(compiled=True),
    "images of three sizes": images,
}


def who_differs(third: steps.Program, began: torch.Tensor, number: int, mine: Any, other: Any) -> str:
    """What differs after a step, and which of the two a third program sides with, which runs ungraphed."""
    torch.cuda.set_rng_state(began)
    for earlier in range(number + 1):
        result = third.step(*third.batch(earlier))
    again = result, steps.values_of(third)
    found = [
        f"{n}: {int((a != b).sum())} of {a.numel()}, by {float((a.double() - b.double()).abs().max()):.2g}"
        for n, (a, b) in enumerate(zip(mine[1], other[1], strict=True))
        if isinstance(a, torch.Tensor) and not equal(a, b)
    ]
    sides = {"ours": equal(again, mine), "the ungraphed twin": equal(again, other)}
    alike = [name for name, same in sides.items() if same] or ["neither"]
    return f"after step {number} values differ ({'; '.join(found)}); a third, ungraphed run is like {alike[0]}"


@pytest.mark.parametrize("name", KINDS)
def test_twenty_steps_are_equal_bit_for_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step and its twin; sums in a fixed order, so that ungraphed code equals itself
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(lent, "LEAST", 1 << 12)  # small gradients lend their memory as well
    ours, theirs = KINDS[name](), KINDS[name]()
    step = pgk.parameterize(ours.step, state=ours.state)

    # WHEN both run 20 steps, the arguments at other addresses each time (the captured ranges are unmapped)
    random = [began := torch.cuda.get_rng_state()] * 2
    kept = []
    for number in range(20):
        results = []
        for n, (call, program) in enumerate(((step, ours), (theirs.step, theirs))):
            torch.cuda.set_rng_state(random[n])
            arguments = program.batch(number)
            kept.append(arguments)
            results.append(call(*arguments))
            random[n] = torch.cuda.get_rng_state()

        # THEN each has the same bits: the result, all of the state and the gradients, the random position
        assert torch.equal(*random), f"random positions after step {number} differ"
        mine, other = ((result, steps.values_of(each)) for result, each in zip(results, (ours, theirs), strict=True))
        assert equal(mine, other), who_differs(KINDS[name](), began, number, mine, other)
    report = pgk.report(step)
    assert report.reasons == ()
    graphs = 3 if name == "images of three sizes" else 1
    assert (report.rows[0].executables, report.rows[0].verified) == (graphs, graphs)
    assert report.rows[0].launches >= 20 - 1 - 2 * graphs


@pytest.mark.parametrize("patching", ["device", "host"])
def test_kernels_whose_shared_memory_others_have_changed_take_addresses(
    patching: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a step with batch normalization, and one of another size between steps: cuDNN's last launch decides
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    program = images()
    step = pgk.parameterize(program.step, state=program.state, patching=patching, verify="always")
    other = nn.BatchNorm2d(8).cuda()

    # WHEN it is launched at other addresses each time
    kept = []
    for number in range(16):
        kept.append(program.batch(number))
        step(*kept[-1])
        other(torch.randn(3, 8, 7, 7, device="cuda"))

    # THEN every launch has the bits of the step without it
    report = pgk.report(step)
    assert report.reasons == ()
    assert report.rows[0].verified == report.rows[0].launches >= 16 - 1 - 2 * 3


def test_it_holds_little_more_than_no_graphs() -> None:
    # GIVEN the same steps with and without graphs
    peaks, rest = [], []
    for graphed in (False, True):
        program = language()()
        call = pgk.parameterize(program.step, state=program.state, verify="off") if graphed else program.step
        for number in range(4):
            call(*program.batch(number))
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        rest.append(torch.cuda.memory_allocated())
        for number in range(3):
            call(*program.batch(number))
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated())
        del call, program
        gc.collect()

    # THEN at rest there is hardly more, and while stepping not much more
    assert rest[1] <= rest[0] + 64 * MIB
    assert peaks[1] <= 1.15 * peaks[0] + 64 * MIB


def test_gradients_that_lie_where_workspace_lay_are_kept_by_graphs_of_all_sizes() -> None:
    # GIVEN a compiled step of convolutions, whose gradients lie where cuDNN's workspace was, for images of three sizes
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 256, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(256, 512, 3, padding=1, bias=False)),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = torch.compile(model, dynamic=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = pgk.parameterize(step, state=(model, optimizer))
    # WHEN they come in turn
    for number in range(18):
        size = 16 + 16 * (number % 3)
        call(torch.randn(8, 3, size, size, device="cuda"), torch.randint(10, (8,), device="cuda"))
    # THEN each size has a graph, and all write the same gradients, of every parameter
    graphs = [graphed for found in call._graphs.values() for graphed in found]
    assert pgk.report(call).reasons == ()
    assert len(graphs) == 3
    (kept,) = {id(graphed._kept): graphed._kept for graphed in graphs}.values()
    assert {id(p.grad) for p in model.parameters()} == set(map(id, kept.tensors))


def test_state_that_moves_is_captured_again() -> None:
    ours, theirs = language()(), language()()
    step = pgk.parameterize(ours.step, state=ours.state)
    for number in range(8):
        if number == 4:
            for program in (ours, theirs):
                for p in program.model.parameters():
                    p.data = p.data.clone()
        assert equal(step(*ours.batch(number)), theirs.step(*theirs.batch(number)))
    assert equal(steps.values_of(ours), steps.values_of(theirs))
    assert pgk.report(step).rows[0].launches >= 3


class Branches(nn.Module):
    """Two branches, one on a stream of the user's, who waits for its event outside."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(256, 256), nn.Linear(256, 256)
        self.side, self.done = torch.cuda.Stream(), torch.cuda.Event()
        self.offset: torch.Tensor
        self.register_buffer("offset", torch.zeros(256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: (rows, 256)."""
        here = torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            left = torch.relu(self.left(x) + self.offset)
            self.done.record()
        right = torch.sigmoid(self.right(x))
        here.wait_stream(self.side)
        return left * right


@pytest.mark.parametrize("training", [False, True])
def test_streams_of_the_user_s_are_branches_and_keep_their_meaning_outside(training: bool) -> None:
    # GIVEN a step on two streams; before each call the caller queues a write, behind a pause, on the step's own stream
    torch.manual_seed(0)
    ours, theirs = Branches().cuda(), Branches().cuda()
    theirs.load_state_dict(ours.state_dict())

    def step_of(model: Branches) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            if not training:
                with torch.no_grad():
                    return model(x)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return pgk.parameterize(step, state=(model, optimizer)) if model is ours else step

    mine, plain = step_of(ours), step_of(theirs)
    host = torch.empty(() if training else (64, 256)).pin_memory()
    for number in range(8):
        x = torch.randn(64, 256, device="cuda")
        found = []
        for model, step in ((theirs, plain), (ours, mine)):
            torch.cuda.synchronize()
            with torch.cuda.stream(model.side):
                torch.cuda._sleep(5_000_000)
                model.offset.fill_(number + 1.0)
            result = step(x)
            # WHEN what the step has read is written again on that stream, and the result is fetched there. Nothing is
            # allocated there: gradients lie in that stream's memory, and the optimizer reads them on the other one.
            with torch.cuda.stream(model.side):
                model.offset.fill_(1e6)
                model.side.wait_stream(torch.cuda.default_stream())
                host.copy_(result, non_blocking=True)
            # THEN who waits for that stream and for its event has what eager's streams give
            model.side.synchronize()
            model.done.synchronize()
            torch.cuda.synchronize()
            found.append((result.clone(), host.clone(), [p.detach().clone() for p in model.parameters()]))
        assert equal(found[0], found[1]), f"call {number}"
        assert torch.equal(found[1][0].cpu(), found[1][1])
    report = pgk.report(mine)
    assert report.reasons == ()
    assert (report.rows[0].verified, report.rows[0].launches >= 4) == (1, True)
