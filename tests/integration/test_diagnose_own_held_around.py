"""Results that lines around a step hold over a further call of it: told where the step alone is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.servers import BY_SHAPE

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
ONE = """
    def answer(self, x):
        if self.graph is None:
            self.x = x.clone()
            self.net(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.net(self.x)
        self.x.copy_(x)
        self.graph.replay()
        return GIVE
"""
PROGRAM = """
from dataclasses import dataclass
@dataclass
class Out:
    y: torch.Tensor
class Server:
    def __init__(self):
        self.net, self.made, self.graph = torch.nn.Linear(3, 3).to(device).requires_grad_(False), {}, None
ANSWER
def batches():
    return [torch.ones(2, 3, device=device) * n for n in range(3)]
def stream(server, xs):
    for x in xs:
        yield server.answer(x)
def ask(server, x):
    return server.answer(x)
def score(server, x):
    return server.answer(x).sum().item()
def gap(one, other):
    return one - other
GUIDEdef work():
    server, other, kept = Server(), Server(), []
    x, z = batches()[1:]
    LINES
    return kept
"""
HELD = {
    "a = server.answer(x)\nb = server.answer(z)\nkept = a - b": "a = server.answer(x).clone()",
    "a, b = server.answer(x), server.answer(z)\nkept = a - b": "a, b = (server.answer(x).clone(), server.answer(z))",
    "kept = server.answer(x) - server.answer(z)": "kept = server.answer(x).clone() - server.answer(z)",
    "kept = gap(server.answer(x), server.answer(z))": "kept = gap(server.answer(x).clone(), server.answer(z))",
    "kept = server.answer(x).add(server.answer(z))": "kept = server.answer(x).clone().add(server.answer(z))",
    "a = server.answer(x)\nkept = a + server.answer(z)": "a = server.answer(x).clone()",
    "a = server.answer(x)\na += server.answer(z)\nkept = a": "a = server.answer(x).clone()",
    "a = server.answer(x)[0]\nb = server.answer(z)\nkept = [a, b]": "a = server.answer(x)[0].clone()",
    "d = {'a': server.answer(x), 'b': server.answer(z)}\nkept = d['a'] - d['b']": (
        "d = {'a': server.answer(x).clone(), 'b': server.answer(z)}"
    ),
    "a = ask(server, x)\nb = ask(server, z)\nkept = a - b": "a = ask(server, x).clone()",
    "a = server.answer(x)\nn = score(server, z)\nkept = a * n": "a = server.answer(x).clone()",
    "a = server.answer(x)\nfor x in batches():\n    kept.append(server.answer(x).sum() - a.sum())": (
        "a = server.answer(x).clone()"
    ),
    "if (a := server.answer(x)) is not None:\n    kept = a - server.answer(z)": "(a := server.answer(x).clone())",
    "if server.answer(x).equal(server.answer(z)):\n    kept = x": ("server.answer(x).clone().equal(server.answer(z))"),
    "best, low = None, 9e9\nfor x in batches():\n    y = server.answer(x)\n    if (v := y.sum().item()) < low:\n"
    "        best, low = y, v\nkept = best": "best, low = (y.clone(), v)",
    "kept.append(server.answer(x))\nkept.append(server.answer(z))\nkept = torch.stack(kept)": (
        "kept.append(server.answer(x).clone())"
    ),
    "for y in stream(server, batches()):\n    kept.append(y)": "kept.append(y.clone())",
    "for n, y in enumerate(stream(server, batches())):\n    kept.append(y)": "kept.append(y.clone())",
    "kept = list(stream(server, batches()))": "kept = [y.clone() for y in stream(server, batches())]",
    "for y in list(stream(server, batches())):\n    kept.append(y.sum().item())": (
        "[y.clone() for y in stream(server, batches())]"
    ),
    "kept = [y for y in stream(server, batches())]": "kept = [y.clone() for y in stream(server, batches())]",
    "kept = torch.stack([*stream(server, batches())])": (
        "kept = torch.stack([*[y.clone() for y in stream(server, batches())]])"
    ),
    "kept = list(map(server.answer, batches()))": "kept = [y.clone() for y in map(server.answer, batches())]",
    "kept = Guide(server).both(x)": "self.cond = self.server.answer(x).clone()",
}
RIGHT = (
    "a = server.answer(x).sum()\nb = server.answer(z)\nkept = a - b",
    "a = server.answer(x).clone()\nb = server.answer(z)\nkept = a - b",
    "a = server.answer(x)\nkept = a * 2\nb = server.answer(z)\nkept = kept - b",
    "a = server.answer(x)\nb = other.answer(z)\nkept = a - b",
    "a = ask(server, x)\nb = ask(other, z)\nkept = a - b",
    "kept = server.answer(x) - other.answer(z)",
    "kept = server.answer(x) * 2 - server.answer(z)",
    "kept = server.answer(server.answer(x))",
    "y = server.answer(x)\nfor _ in range(3):\n    y = server.answer(y)\nkept = y",
    "y = x\nfor _ in range(3):\n    y = server.answer(y)\n    y = y - y.mean()\nkept = y",
    "a = server.answer(x)\na = a.mean()\nb = server.answer(z)\nkept = a - b",
    "a = server.answer(x)\nprint(a.shape)\nb = server.answer(z)\nkept = b if a.shape == b.shape else 0",
    "if x is None:\n    a = server.answer(x)\nelse:\n    a = server.answer(z)\nkept = a + 1",
    "a, b = server.answer(x), server.answer(z)\nkept = b.sum()",
    "d = {'a': server.answer(x), 'b': server.answer(z)}\nkept = d['b'] * 2",
    "for y in stream(server, batches()):\n    kept.append(y.sum())",
    "kept = [y.clone() for y in stream(server, batches())]",
    "kept = list(stream(server, batches()))[-1]",
    "kept = sum(stream(server, batches()))",
    "kept = [y.sum() for y in map(server.answer, batches())]",
    "for server in (server, other):\n    y = server.answer(x)\n    kept.append(y.sum())",
    "server.answer(x)\nkept = server.answer(z)",
    "a = server.answer(x)\nserver = Server()\nb = server.answer(z)\nkept = a - b",
)
OF_OTHER_SIZES = (
    "a, b = (server.answer(torch.ones(n, 3, device=device)) for n in (1, 2))\nkept = a.sum() - b.sum()",
    "a = server.answer(torch.ones(2, 3).to(device))\nb = server.answer(torch.ones(5, 3).to(device))\nkept = a, b",
    "y, w = torch.ones(1, 3).to(device), torch.ones(2, 3).to(device)\nkept = server.answer(y), server.answer(w)",
    "a = server.answer(x[:1])\nb = server.answer(x[:2])\nkept = a - b",
)
GUIDE = """
class Guide:
    def __init__(self, server):
        self.server = server
    def both(self, x):
        self.cond = self.server.answer(x)
        self.free = self.server.answer(-x)
        return self.cond - self.free
"""
FORMS = {"one graph": (ONE, "self.y"), "a graph for each shape": (BY_SHAPE, "out")}


def _asked(lines: str, path: Path, answer: str, give: str, *, whole: bool = False) -> pgk.Diagnosis:
    text = PROGRAM.replace("ANSWER", answer.replace("GIVE", give)).replace("GUIDE", GUIDE if "Guide" in lines else "")
    text = text.replace("LINES", lines.replace("\n", "\n    "))
    space = run(text, path)
    return pgk.diagnose(space["work"]) if whole else pgk.diagnose(space["Server"]().answer, space["batches"]()[0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lines", HELD)
def test_what_is_held_over_a_further_call_is_told_with_a_copy(lines: str, form: str, tmp_path: Path) -> None:
    # GIVEN lines that hold a step's result over a further call of it, and read it behind that WHEN it alone is asked
    told = _asked(lines, tmp_path, *FORMS[form])
    # THEN the line is told, with a copy
    lines_of = [(each.code, each.fix.rpartition("\nafter   ")[2]) for each in told.failures]
    assert lines_of in ([("output-alias", HELD[lines])], [("output-alias", f"kept = {HELD[lines]}")]), lines_of


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lines", RIGHT)
def test_what_is_read_ahead_of_it_or_of_another_object_is_right(lines: str, form: str, tmp_path: Path) -> None:
    # GIVEN lines that read each result ahead of the next, or copy it, or ask another object WHEN it alone is asked
    # THEN nothing is told
    assert not _asked(lines, tmp_path, *FORMS[form]).failures


@pytest.mark.parametrize("lines", OF_OTHER_SIZES)
def test_so_are_results_of_graphs_of_other_sizes(lines: str, tmp_path: Path) -> None:
    # GIVEN lines that hold results of two sizes, of which each has its graph WHEN it is asked THEN nothing is told
    assert not _asked(lines, tmp_path, *FORMS["a graph for each shape"]).failures


@pytest.mark.parametrize("lines", HELD)
def test_results_of_their_own_are_none(lines: str, tmp_path: Path) -> None:
    # GIVEN a step that gives copies WHEN it is asked THEN nothing is told
    assert not _asked(lines, tmp_path, ONE, "self.y.clone()").failures


PARTS = {
    "(self.y, 0)": (
        "a = server.answer(x)[0]\nb = server.answer(z)[0]\nkept = a - b",
        "a = server.answer(x)[0].clone()",
    ),
    "Out(self.y)": ("a = server.answer(x).y\nb = server.answer(z).y\nkept = a - b", "a = server.answer(x).y.clone()"),
    "Out(y=self.y)": (
        "a = server.answer(x)\nb = server.answer(z)\nkept = a.y - b.y",
        "a = copy.deepcopy(server.answer(x))",
    ),
    "{'y': self.y, 'n': 3}": (
        "kept = server.answer(x)['y'] * (1 - server.answer(z)['y'])",
        "kept = server.answer(x)['y'].clone() * (1 - server.answer(z)['y'])",
    ),
    "(self.y, self.y.sum())": (
        "a, n = server.answer(x)\nb, m = server.answer(z)\nkept = a - b",
        "a, n = tuple(v.clone() for v in server.answer(x))",
    ),
}


@pytest.mark.parametrize("give", PARTS)
def test_so_is_what_a_result_is_made_of(give: str, tmp_path: Path) -> None:
    # GIVEN lines that hold a part of a result WHEN the step alone is asked THEN the line is told, with a copy
    lines, after = PARTS[give]
    told = _asked(lines, tmp_path, ONE, give)
    assert [(each.code, each.fix.rpartition("\nafter   ")[2]) for each in told.failures] == [("output-alias", after)]


def test_the_parts_that_are_numbers_are_right(tmp_path: Path) -> None:
    # GIVEN lines that hold what is computed anew in each call WHEN the step alone is asked THEN nothing is told
    lines = "a, n = server.answer(x)\nb, m = server.answer(z)\nkept = n - m"
    assert not _asked(lines, tmp_path, ONE, "(self.y, self.y.sum())").failures
