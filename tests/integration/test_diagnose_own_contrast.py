"""Two encoders that a draw exchanges the inputs of, and a queue: what is told fits together, line by line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.sim.libraries import forget
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
FLIP = "if random.random() < 0.5:\n            a, b = b, a"
PUT, ON = "self.queue[self.ptr : self.ptr + 2] = k", "self.ptr = (self.ptr + 2) % 8"
CONTRAST = f"""
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
        self.register_buffer("queue", torch.randn(8, 3))
        self.ptr = 0
    def enqueue(self, k):
        {PUT}
        {ON}
    def forward(self, a, b):
        {FLIP}
        q = self.query(a)
        k = self.key(b).detach()
        loss = (q @ self.queue.clone().t()).square().mean() + (q - k).square().mean()
        self.enqueue(k)
        return loss
class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        random.seed(0)
        self.model = Pair().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.a, self.b = torch.zeros(2, 3, device=device), torch.zeros(2, 3, device=device)
        self.graph = None
    def train(self):
        loss = self.model(self.a, self.b)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
    def step(self, a, b, graphed):
        self.a.copy_(a)
        self.b.copy_(b)
        if graphed and self.graph is None:
            WARM
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.loss = self.train()
        LAUNCH
        if graphed:
            self.graph.replay()
        else:
            self.loss = self.train()
        return self.loss.clone()
def main(graphed=True):
    trainer, gen = Trainer(), torch.Generator().manual_seed(3)
    data = [torch.randn(2, 2, 3, generator=gen) for _ in range(8)]
    return torch.stack([trainer.step(*pair.to(device), graphed) for pair in data]).cpu()
"""


def plain(text: str) -> str:
    return text.replace("            WARM\n", "").replace("        LAUNCH\n", "")


@pytest.mark.sweep
def test_a_draw_that_exchanges_inputs_goes_into_a_tensor_that_chooses(tmp_path: Path) -> None:
    # GIVEN a step that exchanges its inputs by a draw, and that counts where its queue is written
    text = plain(CONTRAST)
    main = run(text, tmp_path)["main"]
    forget()
    # WHEN it is diagnosed, and all that is told is written
    told = {(f.code, f.frame.text): f.fix.partition("\nafter   ")[2] for f in pgk.diagnose(main).failures if f.frame}
    flip = told["branch-frozen", FLIP.partition("\n")[0]]
    made, drawn, chosen = re.findall(
        r"`self\.model\.(chosen_in = [^`]*)`.*`(self\.model\.chosen_in\.fill_[^`]*)`.*`(a, b = [^`]*)`", flip
    )[0]
    at = re.search(r"as a tensor, `([^`]*)`; here `([^`]*)`", told["size-frozen", PUT])
    on = re.match(r"`([^`]*)` in the graph", told["host-counter", ON])
    assert at is not None, told
    assert on is not None, told
    mended = CONTRAST.replace(FLIP, chosen).replace(
        "        self.ptr = 0\n", f"        self.ptr = {at[1]}\n        self.{made}\n"
    )
    mended = mended.replace(PUT, at[2]).replace(ON, on[1]).replace("LAUNCH", drawn)
    cold = next(fix for (code, _), fix in told.items() if code == "cold-library")
    copies, back = (
        cold.partition("ahead of it  ")[2].split("; s = ")[0],
        re.findall(r"`([^`]*)`", cold.rpartition("put back")[2]),
    )
    assert "self.model.ptr" in back, cold
    ptr, lines = back.pop(), [*copies.split("; "), "ptr = self.model.ptr.clone()"]
    lines += ["self.train()", *back, f"{ptr}.copy_(ptr)"]
    mended = mended.replace("            WARM\n", "".join(f"            {line}\n" for line in lines))
    (tmp_path / "mended").mkdir()
    # THEN the graph gives what the step gives without one
    assert torch.allclose(run(mended, tmp_path / "mended")["main"](), main(graphed=False), atol=1e-6)


@pytest.mark.sweep
def test_a_module_that_writes_no_buffer_has_none_put_back(tmp_path: Path) -> None:
    # GIVEN the same without a queue that is written, and without a draw
    text = plain(CONTRAST).replace(FLIP, "a, b = b, a").replace("self.enqueue(k)", "pass")
    text = text.replace(f"    def enqueue(self, k):\n        {PUT}\n        {ON}\n", "")
    main = run(text, tmp_path)["main"]
    # WHEN it is diagnosed, with libraries that are there and without
    assert not pgk.diagnose(main).failures
    forget()
    (told,) = pgk.diagnose(main).failures
    # THEN the missing warm-up is told alone, and puts the weights back
    assert told.code == "cold-library"
    assert "buffers" not in told.fix
    assert "ptr" not in told.fix
