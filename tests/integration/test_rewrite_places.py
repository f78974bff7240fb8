"""Fixes of loops that decode: a position in a tensor, buffers read as a whole with a mask of what is written."""

from __future__ import annotations

import pytest
import torch

from tests.integration.place_cases import CACHE, WHOLE
from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")


@pytest.mark.parametrize("name", WHOLE)
def test_what_grows_is_read_as_a_whole(name: str, fixed: Fixed) -> None:
    # GIVEN a step whose cache is written at a position of the host's, and read up to there
    text, expected = WHOLE[name]
    # WHEN it is rewritten
    found = fixed(text)
    # THEN all of it is in one graph, whose replays give eager's numbers and state
    assert found.complete, found
    assert not found.is_little, found
    assert not found.usage or "return None" in text, found
    for line in expected:
        assert any(line in each for each in lines_of(found)), found


PREFIX = """
ids, n = torch.arange(24, device=device).repeat(2, 1) % 7, 3
emb = nn.Embedding(7, 4).to(device)
def model(tokens):
    x = emb(tokens)
    att = x @ x.mT
    t = tokens.shape[1]
    att = att.masked_fill(~torch.ones(t, t, dtype=torch.bool, device=device).tril(), -1e9)
    return att.softmax(-1) @ x @ emb.weight.T
args = (torch.rand(2, 7, device=device),)
@torch.no_grad()
def f(noise):
    global n
    logits = model(ids[:, :n])
    ids[:, n] = (logits[:, -1] + noise).argmax(-1)
    n += 1
    return logits[:, -1, :]
"""


def test_a_prefix_whose_last_place_is_read_is_computed_whole_where_it_is_causal(fixed: Fixed) -> None:
    # GIVEN a causal model that computes all that is there again for each token WHEN it is rewritten
    found = fixed(PREFIX)
    # THEN it computes all of the buffer, and what is read is where the last token is
    assert found.complete, found
    assert "logits = model(ids)" in lines_of(found), found
    assert "last = (n - 1).reshape(1)" in lines_of(found)
    assert "return logits[:, last].squeeze(1)" in lines_of(found)  # n has moved on by then
    # WHEN the model is none of these THEN nothing is said to be whole
    other = PREFIX.replace(".tril()", "").replace("att.masked_fill(~", "att.masked_fill(torch.isnan(att) | ~")
    assert not fixed(other).complete


def test_a_part_that_may_be_empty_is_told(fixed: Fixed) -> None:
    # GIVEN a step that attends to what was there before it writes, with something there by now
    text = """
cache.pos = 2
@torch.no_grad()
def f(x):
    old = cache.k[:, :, : cache.pos]
    out = F.scaled_dot_product_attention(x, old, old)
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    return out
"""
    # WHEN it is rewritten THEN it is said that a softmax over nothing would be no number
    found = fixed(CACHE + text)
    assert found.complete, found
    assert "needs one place before it is read" in found.verified[0]
    # AND nothing of that where each step reads what it has written
    found = fixed(WHOLE["attention over what is written"][0])
    assert "needs one place" not in found.verified[0]


GIVEN = """
args = (torch.randn(2, 2, 1, 4, device=device), 3)
@torch.no_grad()
def f(x, pos):
    cache.k[:, :, pos : pos + 1] = lin(x)
    k = cache.k[:, :, : pos + 1]
    return F.scaled_dot_product_attention(x + table[pos], k, k)
"""


def test_a_place_that_is_given_as_a_number_has_to_come_in_a_tensor(fixed: Fixed) -> None:
    # GIVEN a step that is given its position as a number WHEN it is rewritten
    found = fixed(CACHE + GIVEN)
    # THEN its lines take a tensor, as was tried with other positions, and the caller is told to give one
    lines = lines_of(found)
    assert "cache.k.index_copy_(2, pos.reshape(1), lin(x))" in lines, found
    assert "return F.scaled_dot_product_attention(x + table[pos.reshape(1)][0], k, k, attn_mask=there[None])" in lines
    assert any("replays of one graph give eager's results" in line for line in found.verified)
    assert not found.complete
    assert "`pos.fill_(...)` before each launch" in found.instead[-1]


def test_parts_that_cannot_be_a_whole_leave_the_others_rewritten(fixed: Fixed) -> None:
    # GIVEN a step that writes at its position, and joins what is before it with something
    text = """
def f(x):
    k = torch.cat([x, cache.k[:, :, : cache.pos]], 2)
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    return (x @ k.mT).softmax(-1) @ k
"""
    # WHEN it is rewritten
    found = fixed(CACHE + text)
    # THEN what can be written is, and the other line is told with what a mask of it is
    assert "cache.k.index_copy_(2, cache.pos.reshape(1), x[:, :, 0].unsqueeze(2))" in lines_of(found), found
    assert not found.complete
    assert any("torch.cat([x, cache.k" in line and "inside = (at < cache.pos)" in line for line in found.instead), found


NOT_SURE = {
    "what was never written is no number": """
cache.k[:, :, 8:] = math.nan
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    k = cache.k[:, :, : cache.pos]
    return (x @ k.mT).softmax(-1) @ k
""",
    "a part that is joined to others": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    return torch.cat([x, cache.k[:, :, : cache.pos]], 2).softmax(2).sum()
""",
    "the first and the last place of a part": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    return cache.k[:, :, : cache.pos][:, :, -1] + x[:, :, 0]
""",
    "places that are laid together": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    return cache.k[:, :, : cache.pos].reshape(4, -1).softmax(-1).amax(-1)
""",
    "how many there are": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    k = cache.k[:, :, : cache.pos]
    return (x @ k.mT).softmax(-1) @ k * k.shape[2]
""",
    "a part that is written into": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    k = cache.k[:, :, : cache.pos].mul_(0.9)
    return (x @ k.mT).softmax(-1) @ k
""",
    "parts with two ends": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    old = cache.k[:, :, : cache.pos]
    cache.pos += 1
    new = cache.k[:, :, : cache.pos]
    return (x @ old.mT).softmax(-1) @ old + (x @ new.mT).softmax(-1) @ new
""",
}


@pytest.mark.parametrize("name", NOT_SURE)
def test_what_depends_on_the_size_is_not_read_as_a_whole(name: str, fixed: Fixed) -> None:
    # GIVEN a part of a cache with which something is done that all of the cache would not give
    # WHEN it is rewritten THEN whatever is said to be whole gives eager's numbers (which the fixture compares)
    found = fixed(CACHE + NOT_SURE[name])
    # AND the mask stands for no part that it does not stand for
    assert not any("there" in line for line in lines_of(found)) or name == "parts with two ends", found


def test_a_part_that_moves_is_said_to_end_within_its_tensor(fixed: Fixed) -> None:
    # GIVEN a step that reads four rows at a place that moves
    found = fixed(
        "rows, at = torch.randn(64, 3, device=device), 0\n"
        "args = (torch.randn(4, 3, device=device),)\n"
        "def f(x):\n    global at\n    y = (rows[at : at + 4] * x).sum()\n    at += 1\n    return y\n"
    )
    # WHEN it is rewritten THEN what eager would cut off beyond the end is said
    assert found.complete, found
    assert any("where `a : a + n` ends within its tensor" in line for line in found.verified), found


RING = """
class Ring:
    def __init__(self, n):
        self.x, self.pos, self.size, self.n = torch.zeros(n, 4, device=device), 0, 0, n
    def push(self, x):
        b = len(x)
        self.x[self.pos : self.pos + b] = x
        self.pos = (self.pos + b) % self.n
        self.size = min(self.size + b, self.n)
ring = Ring(16)
args = (torch.randn(4, 4, device=device),)
def f(x):
    ring.push(x)
    return ring.x.sum(0)
"""


def test_a_number_that_says_no_place_is_limited_on_the_host(fixed: Fixed) -> None:
    # GIVEN a ring whose place is a tensor from now on, beside a count that ends at a limit WHEN it is rewritten
    found = fixed(RING)
    # THEN the place begins as one, and the count is as it was, behind the launch
    assert found.complete, found
    lines = [line.strip() for line in lines_of(found)]
    assert any(line.endswith("torch.tensor(0, device=device), 0, n") for line in lines), found
    assert "self.size = min(self.size + b, self.n)" in lines, found
