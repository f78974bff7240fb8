"""Lines that a diff has moved, or does not touch, are told so; pieces that change no line come first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.own_lines import PLAIN, in_own_lines
from paramgraph_kit.rewrite.result import Rewriting
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

GATHERED = """
net = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
class Count:
    n, total = 0, 0.0
count = Count()
args = (torch.randn(6, 4, device=device),)
def f(x):
    loss = net(x).pow(2).mean()
    loss.backward()
    count.total += loss.item()
    count.n += 1
    if count.n % 4 == 0:
        opt.step()
        opt.zero_grad()
    return loss.detach()
"""


def test_a_branch_that_moved_is_told_to_have_moved_though_a_line_in_it_is_another(tmp_path: Path) -> None:
    # GIVEN gradients that gather, and a branch behind the launch in which they are zeroed in place
    names = run(GATHERED, tmp_path)
    # WHEN a fix is asked for
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the branch is told where it is, as the lines around it
    assert found.fix is not None
    assert "opt.zero_grad(set_to_none=False)" in found.fix.diff
    told = {parts(failure.fix)[0]: parts(failure.fix)[1] for failure in found}
    assert told["if count.n % 4 == 0:"] == "the same behind each launch, in `after_f`, as in the diff"


def test_lines_of_a_diff_are_told_beside_pieces_that_change_no_line(tmp_path: Path) -> None:
    # GIVEN a diff that is not all of it, and pieces that were proved of the lines as they are
    names = run(GATHERED, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    pieces = f'net.compile(backend="paramgraph"), {PLAIN} of f: 6 steps'
    whole: Any = found.fix
    fix = replace(whole, complete=False, pieces=pieces)
    # WHEN
    told = in_own_lines(names["f"], names["args"], {}, list(found), fix=fix)
    # THEN what is proved comes first at each line, and the diff's words are of one graph
    assert all(parts(each.fix)[1].startswith("stays as it is in pieces, ") for each in told)


RATED = """
net = nn.Linear(8, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
class Trainer:
    it, total = 0, 0.0
    def rate(self):
        return 1.0 - 0.5 * min(1.0, self.it / 4)
    def step(self, x):
        per = net(x).pow(2).squeeze(1)
        kept = int(self.rate() * per.numel())
        loss = per[torch.argsort(per.detach())[:kept]].mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        self.it += 1
        self.total += loss.item()
        return loss.detach()
f = Trainer().step
args = (torch.randn(16, 8, device=device),)
"""


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any]:
    """A size that the host computes, and what was found of it with a fix."""
    names = run(RATED, tmp_path_factory.mktemp("rated"))
    return names, pgk.diagnose(names["f"], *names["args"], fix=True)


@pytest.mark.parametrize("has_pieces", [True, False])
def test_a_line_that_a_diff_leaves_as_it_is_and_does_not_mend_is_not_told_as_in_the_diff(
    has_pieces: bool, rated: tuple[dict[str, Any], Any]
) -> None:
    # GIVEN a diff that mends the counters around a size of the host's, with pieces, or without them
    names, found = rated
    size = next(each for each in found if each.code == "size-frozen")
    assert "[:kept]" not in found.fix.diff
    assert not found.fix.complete
    fix = found.fix if has_pieces else replace(found.fix, pieces="")
    # WHEN its lines are told
    told = in_own_lines(names["f"], names["args"], {}, list(found), by_hand=found.fix.left, fix=fix)
    line, said = parts(next(each.fix for each in told if each.frame == size.frame))
    # THEN the size is not said to be in the diff, but to stay in the pieces where there are some
    assert "as in the diff" not in said, (line, said)
    assert said.startswith("stays as it is in pieces, ") == has_pieces
    # AND what the diff has moved is told to be there
    assert parts(next(each.fix for each in told if "item()" in str(each.frame)))[1].endswith("as in the diff")


CHECKED = """
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(8, 2)
    def forward(self, x):
        normal = torch.distributions.Normal(self.mean(x), 1.0)
        drawn = normal.sample()
        return normal.log_prob(drawn).sum(1)
policy = Policy().to(device)
seen = []
def update(x):
    loss = policy(x).pow(2).mean()
    return loss
def f(x):
    loss = update(x)
    seen.append(loss.item())
    return loss.detach()
args = (torch.randn(16, 8, device=device),)
"""


@pytest.mark.parametrize("written", [True, False])
def test_a_line_that_a_diff_writes_otherwise_is_not_told_to_stay_beside_a_part(written: bool, tmp_path: Path) -> None:
    # GIVEN a part that was cut out of a step, and a line elsewhere that the diff writes otherwise, or leaves
    names = run(CHECKED, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    asked = next(each for each in found if "Normal(" in str(each.frame))
    file, lines = str(tmp_path / "program.py"), (tmp_path / "program.py").read_text().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if "Normal(" in line)
    old, call = lines[number], next(n for n, line in enumerate(lines) if "loss = update(x)" in line)
    lines[call] = "    loss = update_part(x)\n"
    diff = f"--- {file}\n+++ {file} (not written)\n"
    if written:
        lines[number] = old.replace("1.0)", "1.0, validate_args=False)")
        diff += f"@@ -{number + 1},1 +{number + 1},1 @@\n-{old}+{lines[number]}"
    diff += f"@@ -{call + 1},1 +{call + 1},1 @@\n-    loss = update(x)\n+{lines[call]}"
    fix: Any = Rewriting("f", diff, alone="update_part", is_of_loop=False, texts={file: lines})
    # WHEN its line is told
    said = parts(str(in_own_lines(names["f"], names["args"], {}, [asked], fix=fix)[0].fix))
    # THEN it is what the diff has, or it stays beside the part
    assert said[1] == (lines[number].strip() if written else "stays as it is, beside the part that a graph holds")
