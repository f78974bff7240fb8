"""Fixes that keep numbers in tensors leave what the code around the step does with these numbers as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, lines_of, run
from tests.programs.running import quiet, seed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

CACHE = """
class Cache:
    def __init__(self, size=40):
        self.pos = 0
        self.k = torch.zeros(2, size, 4, device=device)
    def save(self):
        return {"pos": self.pos, "k": self.k.clone()}
    def load(self, saved):
        self.pos = saved["pos"]
        self.k.copy_(saved["k"])
cache = Cache()
lengths, by_length = [], {}
args = (torch.randn(2, 4, device=device),)
@torch.no_grad()
def f(x):
    cache.k[:, cache.pos] = x
    cache.pos += 1
    k = cache.k[:, : cache.pos]
    w = torch.softmax((k @ x[:, :, None]).squeeze(-1), -1)
    return (w[..., None] * k).sum(1)
"""
OWN = """
class Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2):
        super().__init__(params, dict(lr=lr))
        self.t = 0
        self.marks = {9, 12}
    @torch.no_grad()
    def step(self):
        self.t += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] / (1 - 0.9 ** self.t))
net = nn.Linear(4, 1).to(device)
opt, lengths = Momentum(net.parameters()), []
args = (torch.randn(6, 4, device=device), torch.randn(6, 1, device=device))
def f(x, y):
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    return loss.detach()
"""
AROUND = {  # a program, and what a function around its step does
    "logged": (CACHE, "lengths.append(cache.pos)\n    by_length[cache.pos] = i"),
    "rolled back": (CACHE, "start = cache.pos\n    f(*args)\n    cache.pos = start + 1\n    lengths.append(start)"),
    "less than it was": (CACHE, "cache.pos = cache.pos - i % 2"),
    "saved and loaded": (CACHE, "lengths.append(cache.save())\n    if i == 8:\n        cache.load(lengths[2])"),
    "of several objects": (
        CACHE.replace("cache = Cache()", "cache = Cache()\nevery = [cache]"),
        "lengths.extend(c.pos for c in every)",
    ),
    "shown and compared": (CACHE, "lengths.append((len(f'{cache.pos} of 40'), cache.pos > 4))"),
    "of an optimizer": (OWN, "lengths.append(opt.t)\n    opt.t = opt.t % 7"),
}
LOOKED_UP = {  # what a step looks up by a number
    "a set": (CACHE, ("f(x):\n", "f(x):\n    x = x * 0.5 if cache.pos in {12, 20} else x\n")),
    "a key of its own": (
        CACHE,
        ("f(x):\n", "f(x):\n    n = cache.pos // 8\n    by_length[n] = by_length.get(n, 0) + 1\n"),
    ),
    "what is cached": (
        OWN.replace("class M", "import functools\n@functools.lru_cache\ndef rate(t):\n    return 1 / t\nclass M"),
        ('-group["lr"]', '-rate(self.t) * group["lr"]'),
    ),
    "a set of an object": (
        OWN,
        ("        for group in", "        more = 0.1 if self.t in self.marks else 1.0\n        for group in"),
    ),
}


def patched(text: str, diff: str) -> str:
    """A text with the lines of a diff."""
    lines, out, at = text.splitlines(), list[str](), 0
    for line in diff.splitlines()[2:]:
        if hunk := re.match(r"@@ -(\d+)", line):
            out += lines[at : int(hunk[1]) - 1]
            at = int(hunk[1]) - 1
        elif line[:1] in (" ", ""):
            out, at = [*out, line[1:]], at + 1
        elif line[0] == "-":
            at += 1
        else:
            out.append(line[1:])
    return "\n".join([*out, *lines[at:]]) + "\n"


def seen(names: dict[str, Any], steps: int = 12) -> list[Any]:
    """What a program's ``around`` leaves, and what its step gives then."""
    seed()
    with quiet():
        for i in range(steps):
            names["around"](i)
        out = names["f"](*names["args"])
    return [repr(names.get(name)) for name in ("lengths", "by_length")] + [out.cpu()]


@pytest.mark.parametrize("name", AROUND)
def test_code_around_the_step_has_the_numbers_that_it_had(name: str, tmp_path: Path) -> None:
    # GIVEN a step that counts, and a function around it which reads the count, keeps it and sets it
    text = "{}def around(i):\n    f(*args)\n    {}\n".format(*AROUND[name])
    truth = seen(run(text, tmp_path))
    names = run(text, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    pgk.diagnose.repair()
    # WHEN the count is kept in a tensor and the file has the new lines
    assert fix.complete, fix
    assert any("= torch.tensor(" in line for line in lines_of(fix)), fix
    whole = patched((tmp_path / "program.py").read_text(), fix.diff)
    new = seen(run(whole[whole.index("\nclass ") :], tmp_path))
    # THEN it keeps the same numbers, and they are Python's
    assert new[:-1] == truth[:-1], fix
    torch.testing.assert_close(new[-1], truth[-1])


@pytest.mark.parametrize("name", LOOKED_UP)
def test_a_number_that_is_looked_up_stays_the_host_s(name: str, fixed: Fixed) -> None:
    # GIVEN a step that looks something up by its count, also where it finds nothing in the steps that are tried
    text, change = LOOKED_UP[name]
    assert change[0] in text
    # WHEN rewritten THEN the count is no tensor, which is found in no set and is no key
    found = fixed(text.replace(*change))
    assert not any(re.search(r"\b(pos|t) = torch\.tensor\(", line) for line in lines_of(found)), found


def test_a_dictionary_that_is_updated_as_a_whole_stays_the_host_s(fixed: Fixed) -> None:
    # GIVEN a count in a dictionary that a function updates WHEN rewritten THEN it is no tensor
    text = CACHE.replace("cache.pos", 'state["pos"]').replace("cache = ", 'state = {"pos": 0}\ncache = ')
    found = fixed(text + "def restart():\n    state.update(pos=0)\n")
    assert not any('"pos": torch' in line for line in lines_of(found)), found


def test_what_has_to_hold_later_is_told(fixed: Fixed) -> None:
    # GIVEN a cache that is weighed, and an optimizer whose first step makes its count WHEN rewritten
    cache = fixed(CACHE.replace("cache.k[:, cache.pos] = x", "cache.k[:, cache.pos : cache.pos + 1] = x[:, None]"))
    made = OWN.replace("        self.t += 1\n", "").replace("-group", 's["n"] * -group').replace("self.t)", 's["n"])')
    own = "s = self.state[p]\n                if not s:\n                    s['n'] = 0\n                s['n'] += 1\n"
    optimizer = fixed(made.replace("p.add_(", f"{own}                p.add_("))
    # THEN it is said what is beyond the steps that were tried
    assert any("has to be finite" in line and "behind a buffer's end" in line for line in cache.verified), cache
    assert any("of a checkpoint from before is a number" in line for line in optimizer.verified), optimizer


def test_another_class_s_attribute_of_that_name_is_left_alone(fixed: Fixed) -> None:
    # GIVEN two classes with an attribute of one name, of which a step counts with one
    other = "class Reader:\n    pos = 0\n    def skip(self, n):\n        self.pos = self.pos + n\n"
    # WHEN rewritten THEN what the other one does is not written anew
    found = fixed(other + CACHE)
    assert not any("self.pos.fill_(self.pos" in line for line in lines_of(found)), found
