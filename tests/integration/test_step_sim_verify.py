"""A launch of a whole step beside the ungraphed step: what is noticed, what is not, and when no more are compared."""

# mypy: disable-error-code="no-untyped-call, index, union-attr, no-any-return, unused-ignore"
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.driver.sim.driver import SimDriver, SimExecutable
from paramgraph_kit.step import verify
from tests.integration.test_step_sim import run
from tests.integration.test_step_sim_use import alike, made

MIB = 1 << 20


@pytest.mark.parametrize("how", ["first", "always"])
def test_a_wrong_launch_is_noticed(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an executable that forgets one of its bindings
    def wrong(self: Any, nodes: Any, bindings: Any, slots: int, increment: int) -> None:
        real(self, nodes, [*bindings[:-1], bindings[-1].__class__(bindings[-1].node, bindings[-1].offset, 0, 0)], slots,
             increment)  # fmt: skip

    real = SimExecutable.__init__
    monkeypatch.setattr(SimExecutable, "__init__", wrong)
    step, ours, theirs = made("adamw fused", verify=how)

    # WHEN / THEN every call has the ungraphed step's result, and the graph is given up
    for number in range(6):
        alike(step, ours, theirs, number)
    (reason,) = pgk.report(step).reasons
    assert reason.code == "wrong-result"
    assert "which this call returned" in reason.message
    assert pgk.report(step).rows[0].executables == 0


@pytest.mark.parametrize(("far", "code"), [(1.0, None), (1e3, "wrong-result")])
def test_where_a_step_differs_from_itself_a_launch_may_differ_as_much(far: float, code: str | None) -> None:
    # GIVEN a step whose ungraphed runs differ in the last bits, as sums in no fixed order do, but for its first ones
    weight = torch.nn.Parameter(torch.ones(8, device=pgk.device()))

    def step(x: torch.Tensor) -> torch.Tensor:
        return (weight.detach() * x).sum()

    graphed = pgk.parameterize(step, state=(weight,), verify="first")
    batches = [torch.full((8,), float(k), device=pgk.device()) for k in range(8)]
    for x in batches[:2]:
        graphed(x)
    ((made,),) = graphed._graphs.values()
    real, calls = verify.Comparison._left, [0]

    def unordered(self: Any, result: Any) -> Any:
        calls[0] += 1
        left = real(self, result)
        noise = {1: far, 2: 0.0, 3: 0.5}.get(calls[0], 0.0)  # the launch; an ungraphed run; another one
        left.values = [(name, x + noise * 1e-3) for name, x in left.values]
        return left

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(verify.Comparison, "_left", unordered)
        patched.setattr(verify._Bits, "same", lambda *_: False)
        result = graphed(batches[2])
    # WHEN a launch is as far from them as they are from one another THEN it stands, and farther it does not
    assert torch.equal(result, step(batches[2]))
    assert [reason.code for reason in pgk.report(graphed).reasons] == ([code] if code else [])
    assert (made.checked.verified, made.checked.unordered) == (0, 0 if code else 1)
    if code is None:
        assert "compared and alike" in str(pgk.report(graphed))


def test_every_launch_can_be_compared() -> None:
    step, _ = run("dropout", 8, verify="always")
    assert pgk.report(step).rows[0].verified == 6


def test_a_comparison_waits_for_what_is_queued_on_the_step_s_own_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step with a branch on a stream of the user's, on which the caller may still write the state
    log: list[str] = []
    side = pgk.cuda.Stream()
    model = nn.Linear(4, 4).to(pgk.device())

    def step(x: torch.Tensor) -> torch.Tensor:
        here = pgk.cuda.current_stream()
        side.wait_stream(here)
        with pgk.cuda.stream(side):
            y = model(x).detach()
        here.wait_stream(side)
        return y + 1

    join, copies = SimDriver.join_streams, verify.Memory.copies

    def joined(driver: Any, *streams: int) -> None:
        log.append("join")
        join(driver, *streams)

    def copied(memory: Any) -> Any:
        log.append("copy")
        return copies(memory)

    monkeypatch.setattr(SimDriver, "join_streams", joined)
    monkeypatch.setattr(verify.Memory, "copies", copied)
    whole = pgk.parameterize(step, state=model)
    # WHEN its first launch is compared THEN the state is copied after all that
    for seed in range(4):
        x = torch.full((2, 4), float(seed), device=pgk.device())
        assert torch.equal(whole(x), step(x))
    assert log[:2] == ["join", "copy"]
    assert log.count("join") == 1 + 2 * 2  # and each launch takes its place


def test_gradients_of_gradients_are_launched() -> None:
    # GIVEN a step of a network that knows a differential equation: backward passes make nodes, on a thread with numbers
    # of its own, so their order in the next pass is not that of a capture, whose passes run where they are seen
    device = pgk.device()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)

    def step(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x, t = x.detach().requires_grad_(True), t.detach().requires_grad_(True)
        u = net(torch.cat([x, t], 1))
        u_t = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]
        u_x = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, x, torch.ones_like(u_x), create_graph=True)[0]
        optimizer.zero_grad()
        loss = (u_t + u * u_x - 0.01 * u_xx).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [(torch.rand(32, 1).to(device), torch.rand(32, 1).to(device)) for _ in range(8)]
    before = [p.detach().clone() for p in net.parameters()]
    expected = [step(*batch).item() for batch in batches]
    with torch.no_grad():
        for p, then in zip(net.parameters(), before, strict=True):
            p.copy_(then)
    # WHEN it is parameterized
    graphed = pgk.parameterize(step, state=(net, optimizer))
    with pgk.watch() as trace:
        got = [graphed(*batch).item() for batch in batches]
    # THEN it is launched: what the order of a sum costs is no wrong number
    assert pgk.report(graphed).reasons == ()
    assert len(trace.launches) == 6
    assert got == pytest.approx(expected, rel=1e-5)
