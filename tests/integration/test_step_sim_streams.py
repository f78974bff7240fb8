"""Streams of the user's in what is captured whole: branches of one graph, with the bits of eager."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.step_streams import PROGRAMS, WIDTH, compare

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


@pytest.mark.parametrize("name", PROGRAMS)
def test_several_streams_are_lanes_of_one_graph(name: str) -> None:
    # GIVEN a function or a step on several streams WHEN called with data that lies elsewhere each time
    report, lanes = compare(name)
    # THEN each call has eager's bits, and it is launched as one graph, drawn with a lane for each branch
    assert report.reasons == ()
    assert sum(row.launches for row in report.rows) >= 5
    assert lanes == set(range(PROGRAMS[name][1]))


def test_data_that_is_fetched_meanwhile_is_waited_for() -> None:
    # GIVEN a loop that fetches the next batch from pinned memory on a stream of its own, while a step runs
    device, cuda = pgk.device(), pgk.cuda

    def trained(launched: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Linear(WIDTH, WIDTH).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        copies, found = cuda.Stream(), []

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(x).square().mean()
            torch.autograd.backward(loss)
            optimizer.step()
            return loss.detach()

        run = pgk.parameterize(step, state=(model, optimizer)) if launched else step

        def fetch(seed: int) -> torch.Tensor:
            host = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(seed)).pin_memory()
            with cuda.stream(copies):
                fetched: torch.Tensor = host.to(device, non_blocking=True)
            return fetched

        coming = fetch(0)
        for seed in range(8):
            cuda.current_stream().wait_stream(copies)
            x = coming
            x.record_stream(cuda.current_stream())
            coming = fetch(seed + 1)
            found.append(run(x).cpu())
        if launched:
            assert sum(row.launches for row in pgk.report(run).rows) >= 5
        return found

    # WHEN trained THEN each loss is eager's
    assert all(torch.equal(a, b) for a, b in zip(trained(False), trained(True), strict=True))
