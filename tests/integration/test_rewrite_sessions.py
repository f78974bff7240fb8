"""Fixes of decoders whose position is a session's, is begun anew behind a step, and is read by lines beside it."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

CACHE = """
from dataclasses import dataclass, field
emb, out = nn.Embedding(9, 6).to(device), nn.Linear(6, 9).to(device)
k, v = torch.zeros(2, 12, 6, device=device), torch.zeros(2, 12, 6, device=device)
def attend(x, pos):
    k[:, pos] = x
    v[:, pos] = x * 2
    return F.scaled_dot_product_attention(x[:, None], k[:, : pos + 1], v[:, : pos + 1])[:, 0]
"""
OF_SESSION = """
@dataclass
class Session:
    pos: int = 0
    last: int = 1
    said: list = field(default_factory=list)
"""
ANEW = """
class Decoder:
    def __init__(self):
        self.pos, self.said = 0, []
    @torch.no_grad()
    def step(self, token):
        token = out(attend(emb(token), self.pos)).argmax(-1)
        self.pos += 1
        if self.pos >= 7: self.pos = 0
        self.said.append(token.tolist())
        return token
decoder = Decoder()
f, args = decoder.step, (torch.tensor([1, 2], device=device),)
"""
SESSION = (
    OF_SESSION
    + """
s = Session()
args = (torch.tensor([1, 2], device=device),)
@torch.no_grad()
def f(token):
    token = out(attend(emb(token), s.pos)).argmax(-1)
    s.pos += 1
    s.last = token[0].item()
    s.said.append(s.last)
    return token
"""
)
WITHIN = (
    OF_SESSION
    + """
class Engine:
    def __init__(self):
        self.session, self.scale = Session(), 0.5
    @torch.no_grad()
    def step(self, noise):
        token = torch.full((2,), self.session.last, dtype=torch.long, device=device)
        token = (out(attend(emb(token), self.session.pos)) * self.scale + noise).argmax(-1)
        self.session.pos += 1
        self.session.last = int(token[0])
        self.session.said.append(self.session.last)
        if self.session.last == 3 or self.session.pos >= 7:
            self.session.pos = 0
        return token
engine = Engine()
f, args = engine.step, (torch.randn(2, 9, device=device),)
"""
)
SPECULATING = (
    OF_SESSION
    + """
class Target(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos, self.out = nn.Embedding(9, 6), nn.Embedding(64, 6), nn.Linear(6, 9)
        self.k = torch.zeros(64, 6, device=device)
    def put(self, pos, k):
        n = k.shape[0]
        self.k[pos : pos + n] = k
        return self.k[: pos + n]
    def forward(self, tokens, pos):
        n = tokens.shape[0]
        h = self.emb(tokens) + self.pos(torch.arange(pos, pos + n, device=tokens.device))
        k = self.put(pos, h)
        seen = torch.arange(pos + n, device=tokens.device)[None] <= torch.arange(pos, pos + n, device=device)[:, None]
        weights = (h @ k.T).masked_fill(~seen, float("-inf")).softmax(-1)
        return self.out(h + weights @ k)
class Verifier:
    def __init__(self):
        self.model, self.session = Target().to(device), Session()
    @torch.no_grad()
    def verify(self, draft):
        s = self.session
        first = torch.tensor([s.last], device=device)
        logits = self.model(torch.cat([first, draft]), s.pos)
        told = logits.argmax(-1)
        n = int((told[:-1] == draft).long().cumprod(0).sum())
        new = torch.cat([draft[:n], told[n : n + 1]]).tolist()
        s.said += new
        s.pos += n + 1
        s.last = new[-1]
        return logits[n]
verifier = Verifier()
f, args = verifier.verify, (torch.tensor([1, 2, 5], device=device),)
"""
)
TOLD = {
    "of speculative decoding, whose acceptance the host reads": (
        SPECULATING,
        [
            "there = torch.arange(self.k.shape[0], device=self.k.device) < pos + n",
            "seen = torch.arange(k.shape[-2], device=tokens.device)[None] <= (pos + torch.arange(n, device=device))",
            "s.last.fill_(new[-1])",
            "return logits[n]",
        ],
    ),
    "begun anew": (ANEW, ["if self.pos >= 7: self.pos.fill_(0)"]),
    "of a dataclass": (SESSION, ["self.pos = torch.tensor(self.pos, device="]),
    "of an object's session": (
        WITHIN,
        [
            "token = self.session.last.repeat(2)",
            "self.session.last.fill_(int(token[0]))",
            "self.session.said.append(self.session.last.item())",
            "self.session.pos.fill_(0)",
        ],
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_a_position_is_in_a_tensor_wherever_it_is_kept(name: str, fixed: Fixed) -> None:
    # GIVEN a decoder with a position that lines behind the device's work read, count and begin anew
    text, lines = TOLD[name]
    # WHEN it is rewritten
    found = fixed(CACHE + text)
    # THEN all of it is in one graph, with eager's numbers over ten steps, and those lines write the tensor
    assert found.complete, str(found)
    for line in lines:
        assert any(line in each for each in lines_of(found)), found


OTHERS = (
    OF_SESSION
    + """
class Meter:
    def __init__(self):
        self.pos = 0
    def update(self, x):
        self.pos = self.pos + 3
class Owner:
    def __init__(self):
        self.session, self.meter = Session(), Meter()
    @torch.no_grad()
    def step(self, token):
        token = out(attend(emb(token), self.session.pos)).argmax(-1)
        self.session.pos += 1
        self.meter.update(token)
        return token
owner = Owner()
f, args = owner.step, (torch.tensor([1, 2], device=device),)
"""
)


def test_a_number_of_that_name_of_another_object_stays_as_it_is(fixed: Fixed) -> None:
    # GIVEN another object whose number has the same name WHEN rewritten
    found = fixed(CACHE + OTHERS)
    # THEN that one's lines are as they were
    assert not any("self.pos.fill_" in line for line in lines_of(found)), found
