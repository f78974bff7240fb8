"""Fixes of loops that generate, sample and solve, as people write them for one model or another."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

WHOLE = {
    "tokens of a model whose attention goes through a generator expression": (
        """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (each.view(b, t, 2, 4).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
emb, att, head = nn.Embedding(9, 8).to(device), Attention().to(device), nn.Linear(8, 9).to(device)
args = (torch.randint(0, 9, (1, 3), device=device),)
@torch.no_grad()
def f(ids):
    for _ in range(4):
        token = head(att(emb(ids)))[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, token], dim=1)
        if token.item() == 4:
            break
    return ids
""",
        ["done = done | (token == 4)", "ids = ids.narrow(1, 0, ids.shape[1] - int(left))"],
    ),
    "a penalty for each token of a set, by its sign": (
        """
emb, head = nn.Embedding(9, 8).to(device), nn.Linear(8, 9).to(device)
args = (torch.randint(0, 9, (2, 3), device=device),)
@torch.no_grad()
def f(ids):
    scores = head(emb(ids).mean(1))
    for row in range(ids.shape[0]):
        for token in set(ids[row].tolist()):
            if scores[row, token] > 0:
                scores[row, token] /= 1.2
            else:
                scores[row, token] *= 1.2
    return scores.argmax(-1)
""",
        ["there = there.index_fill(0, ids[row].flatten(), True)"],
    ),
    "tokens that are there, each once, by unique": (
        """
head = nn.Linear(4, 9).to(device)
args = (torch.randn(4, device=device), torch.randint(0, 9, (5,), device=device))
@torch.no_grad()
def f(x, ids):
    scores = head(x)
    for token in torch.unique(ids):
        scores[token] -= 0.5 * scores[token].abs()
    return scores.softmax(-1)
""",
        ["scores.copy_(torch.where(there, scores - (0.5 * scores.abs()), scores))"],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_it_is_rewritten_whole_with_its_rounds_in_the_graph(name: str, fixed: Fixed) -> None:
    # GIVEN a loop that generates or solves WHEN rewritten THEN one graph has its rounds, with these lines
    text, wanted = WHOLE[name]
    found = fixed(text)
    assert found.complete, found
    assert [line for line in wanted if line not in lines_of(found)] == [], found


LEFT = {
    "a list that may have a token twice": "for token in ids.tolist():\n        scores[token] /= 1.2",
    "what is done with the number itself": "for token in set(ids.tolist()):\n        scores[token] /= 1 + token",
}


@pytest.mark.parametrize("name", LEFT)
def test_a_set_of_tokens_is_no_mask_where_the_rounds_are_not_alike(name: str, fixed: Fixed) -> None:
    # GIVEN rounds that do more than change one of a row WHEN rewritten THEN no mask stands for them
    found = fixed(f"""
head = nn.Linear(4, 9).to(device)
args = (torch.randn(4, device=device), torch.tensor([1, 1, 3], device=device))
@torch.no_grad()
def f(x, ids):
    scores = head(x)
    {LEFT[name]}
    return scores
""")
    assert "index_fill" not in found.diff
