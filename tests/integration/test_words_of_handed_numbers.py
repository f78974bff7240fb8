"""A number of the host's that a helper is given is told by its own name, beside tensors that are made anew there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
LEAPS = """
class Sampler:
    def __init__(self):
        self.eps, self.n = 0.1, 0
    def leapfrog(self, q, p, eps):
        for i in range(2):
            q = q + eps * p
            if i < 1:
                p = p - eps * q
        return q, p - 0.5 * eps * q
    def step(self, q, p):
        q, p = self.leapfrog(q, p, self.eps)
        self.n += 1
        self.eps = 0.1 / math.sqrt(self.n)
        return q, p
sampler = Sampler()
f = sampler.step
args = (torch.linspace(0, 1, 6, device=device), torch.linspace(1, 2, 6, device=device))
"""
FILLED = "once `eps_in = torch.zeros((), device=device)`, before each launch `eps_in.fill_(self.eps)`"
PLANS = """
class Plan:
    def __init__(self):
        self.h, self.sigma, self.t = 3, 0.6, 0
    def step(self, s):
        sigma = max(0.2, self.sigma * 0.97**self.t)
        noise = torch.randn(4, self.h, device=device) * sigma
        for i in range(self.h):
            s = s + noise[:, i]
        self.t += 1
        return s
f = Plan().step
args = (torch.zeros(4, device=device),)
"""


def _told(text: str, folder: Path) -> list[str]:
    names = run(text, folder)
    return [parts(each.fix)[1] for each in pgk.diagnose(names["f"], *names["args"]) if each.code == "scalar-frozen"]


def test_words_fill_a_tensor_with_the_number_that_a_helper_is_given(tmp_path: Path) -> None:
    # GIVEN a step that gives a helper a number of its object's, with which that makes its tensors anew
    # WHEN it is diagnosed
    told = _told(LEAPS, tmp_path)

    # THEN each line of the helper is told of that number, and none of a tensor
    assert len(told) == 3, told
    assert all(FILLED in text and "gives `eps_in` for `self.eps`" in text for text in told), told
    assert not any(re.search(r"`[qp]_in", text) for text in told), told


def test_words_of_a_handed_number_that_are_followed_give_eager_s_numbers(tmp_path: Path) -> None:
    # GIVEN the same step, with its lines as they are told
    before = LEAPS.replace("class Sampler", "eps_in = torch.zeros((), device=device)\nclass Sampler")
    inside = before.replace("(q, p, self.eps)", "(q, p, eps_in)").replace(
        "        self.n += 1\n        self.eps = 0.1 / math.sqrt(self.n)\n", ""
    )
    was, now = run(LEAPS, tmp_path), run(inside, tmp_path)
    q, p = now["args"]

    # WHEN it is captured, and launched with what goes around it
    graph = pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(graph):
        out = now["f"](q, p)

    # THEN each launch has eager's numbers
    for n in range(1, 5):
        now["eps_in"].fill_(now["sampler"].eps)
        graph.replay()
        wanted = was["f"](*was["args"])
        assert all(torch.allclose(one, other) for one, other in zip(out, wanted, strict=True))
        now["sampler"].eps = 0.1 / n**0.5
    assert not list(pgk.diagnose(now["f"], q, p))


def test_a_helper_with_a_number_that_stays_has_no_words(tmp_path: Path) -> None:
    # GIVEN the same helper, with a number that nothing changes
    # WHEN it is diagnosed
    # THEN nothing is told of its lines
    assert not _told(LEAPS.replace("self.eps = 0.1 / math.sqrt(self.n)", "pass"), tmp_path)


def test_a_number_beside_a_size_is_told_as_itself(tmp_path: Path) -> None:
    # GIVEN noise of a size that rounds go by as well, multiplied by a number that the host lowers
    # WHEN it is diagnosed
    told = _told(PLANS, tmp_path)

    # THEN the number goes into a tensor, and no graph for each size is told
    assert len(told) == 1
    assert "`sigma_in.fill_(" in told[0], told
    assert "graph for each" not in told[0]
