"""What a server keeps on the host is no constant of a graph's, where it is changed behind the launch."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk


class _Request:
    def __init__(self, first: int) -> None:
        self.tokens, self.blocks = [first], list[int]()

    @property
    def length(self) -> int:
        return len(self.tokens)


class _Engine:
    def __init__(self) -> None:
        self.emb = torch.randn(9, 4).to(pgk.device())
        self.requests = [_Request(1), _Request(2)]
        self.free = list(range(16))

    def slot(self, request: _Request) -> int:
        if request.length > 4 * len(request.blocks):
            request.blocks.append(self.free.pop())
        return request.blocks[-1] * 4 + request.length % 4

    @torch.inference_mode()
    def step(self) -> torch.Tensor:
        slots = torch.tensor([self.slot(r) for r in self.requests], device=pgk.device())
        last = torch.tensor([r.tokens[-1] for r in self.requests], device=pgk.device())
        table = torch.tensor([r.blocks + [0] * (8 - len(r.blocks)) for r in self.requests], device=pgk.device())
        logits = self.emb[last] @ self.emb.T + slots[:, None] + table.sum(1, keepdim=True)
        for request, token in zip(self.requests, logits.argmax(-1).tolist(), strict=True):
            request.tokens.append(token)
        return logits


@pytest.mark.sweep
def test_no_line_is_filled_in_the_graph_of_what_moves_behind_the_launch() -> None:
    # GIVEN a step that makes tensors of tokens, and appends to these what it has read
    engine = _Engine()

    # WHEN it is rewritten
    fix = pgk.diagnose(engine.step, fix=True).fix

    # THEN what the graph would keep is told at each of its lines, and filled in none
    assert fix is not None
    left = "\n".join(fix.instead)
    assert "torch.full((), r.tokens[-1]" not in fix.diff, fix.diff
    assert "last = torch.tensor" in left, fix.diff
    assert "slots = torch.tensor" in left, fix.diff


def test_tokens_that_a_list_of_the_hosts_gets_are_read_behind_the_launch() -> None:
    # GIVEN the same
    engine = _Engine()

    # WHEN it is diagnosed
    told = str(pgk.diagnose(engine.step))

    # THEN the list gets numbers, as now
    assert ".unbind()" not in told, told
