"""A number that each call is given is filled into a tensor before the launch, where nothing else calls the function."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

ANNEALED = """
net = nn.Linear(8, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
def f(x, y, alpha):
    rest = 1 - alpha
    opt.zero_grad()
    out = net(x)
    loss = rest * F.cross_entropy(out, y) + alpha * out.pow(2).mean()
    loss.backward()
    opt.step()
    losses.append(loss.item())
args = (torch.randn(4, 8, device=device), torch.randint(0, 2, (4,), device=device), 0.1)
def feed(i):
    drawn = torch.Generator().manual_seed(i)
    x, y = torch.randn(4, 8, generator=drawn), torch.randint(0, 2, (4,), generator=drawn)
    return x.to(device), y.to(device), 0.1 * 0.9**i
"""


def test_a_number_among_the_arguments_is_filled_in_before_the_launch(tmp_path: Path) -> None:
    # GIVEN a weight that the loop anneals, and gives each call; ten steps have ten of them
    # WHEN it is mended
    fix = rewritten(ANNEALED, tmp_path)
    # THEN one graph is for all of them, which has been compared in those steps too
    assert fix.complete
    assert {"rest_in.fill_(rest)", "alpha_in.fill_(alpha)", "rest = 1 - alpha"} <= {*lines_of(fix)}


@pytest.mark.parametrize(
    "change",
    [
        ("args =", "def both(x, y):\n    f(x, y, 0.0)\n    f(x, y, 1.0)\nargs ="),
        ("nn.Linear(8, 2)", "nn.Linear(8, 2, dtype=torch.float64)"),
    ],
)
def test_a_number_stays_where_others_call_it_or_digits_would_be_lost(change: tuple[str, str], tmp_path: Path) -> None:
    # GIVEN the same where a function of the file calls it twice, or where all is of float64
    text = ANNEALED.replace(*change)
    if "float64" in change[1]:
        text = text.replace("torch.randn(4, 8", "torch.randn(4, 8, dtype=torch.float64")
    names = run(text, tmp_path)
    # WHEN it is diagnosed THEN no tensor stands for the number
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert "alpha_in" not in str(found.fix)


UNPACKED = """
net = nn.Linear(4, 4).to(device)
def scaled(x, both):
    a, b = both
    return net(x) * a + b
def raised(x, both):
    a, b = both
    return (net(x) * a).clamp(max=b)
def outer(x, pair):
    return scaled(x, pair).relu()
def other(x, pair):
    return raised(x, pair).relu()
def direct(x, pair):
    return net(x) * pair[0] + pair[1]
"""


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("outer", ("`a_in.fill_(pair[0])`, `b_in.fill_(pair[1])`, and here `a_in` for `a`, `b_in` for `b`",)),
        ("direct", ("`pair_0_in.fill_(pair[0])`, `pair_1_in.fill_(pair[1])`",)),
        ("other", ("graphs[pair[0], pair[1]]",)),
    ],
)
def test_numbers_of_a_tuple_are_told_a_tensor_each(name: str, wanted: tuple[str, ...], tmp_path: Path) -> None:
    # GIVEN numbers that come in a tuple, and are computed with in a helper under names of their own, or as its entries
    names = run(UNPACKED, tmp_path)
    # WHEN it is told what to do
    found = pgk.diagnose(names[name], torch.ones(3, 4, device=names["device"]), (1.5, 0.5), fix=True)
    # THEN each has a tensor; where something takes none for it each value has its graph
    assert [failure.code for failure in found.failures] == ["scalar-frozen"]
    for each in wanted:
        assert each in found.failures[0].fix
