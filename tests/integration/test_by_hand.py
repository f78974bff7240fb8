"""What a fix leaves to the user: all of it at once, each with what to write, and nothing that is mended already."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite import by_hand
from paramgraph_kit.rewrite.advised.host import from_host
from paramgraph_kit.rewrite.advised.specific import is_specific
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.model import Failure, Frame
from tests.integration.rewritten import Fixed, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")


def test_what_the_rewritten_lines_bring_with_them_is_told_at_once(fixed: Fixed) -> None:
    # GIVEN a number that is read back for a table and for a branch in another function
    found = fixed(
        "table = torch.linspace(0, 1, 10, device=device)\n"
        "one = torch.ones((), device=device)\n"
        "def look(x, t):\n"
        "    now = table[t]\n"
        "    before = table[t - 1] if t - 1 >= 0 else one\n"
        "    return x * now + before\n"
        "def f(x, step):\n"
        "    return look(x, step.item())\n"
        "args = (torch.randn(4, device=device), torch.tensor(5, device=device))\n"
    )
    # WHEN it is kept on the device THEN all that this needs is named, at the user's own lines
    assert not found.complete
    told = [line.partition("program.py:")[2] for line in found.instead]
    assert [line.partition(" ")[2].partition("  [")[0] for line in told] == [
        "before = table[t - 1] if t - 1 >= 0 else one",
    ]
    assert "(rewritten)" not in "".join(line.partition("  [")[0] for line in found.instead)
    assert "once the lines above are rewritten" in found.instead[0]
    assert "+    now = table[t.reshape(1)][0]" in found.diff.splitlines()
    # AND the story has what to write for each
    assert {failure.code for failure in found.left} <= {"tensor-bound", "data-dependent-branch", "sync-item"}


def test_what_another_line_has_mended_is_not_left(fixed: Fixed) -> None:
    # GIVEN a distribution that checks its arguments twice, told so where it is made; and a mask that stays
    found = fixed(
        "args = (torch.randn(4, 3, device=device), torch.zeros(4, dtype=torch.long, device=device))\n"
        "def f(x, i):\n"
        "    dist = torch.distributions.Categorical(logits=x)\n"
        "    chance = dist.log_prob(i)\n"
        "    for _ in range(40):\n"
        "        chance = chance[chance < 0] * 1.01\n"
        "    return chance\n"
    )
    # THEN only that mask's line is told, beside how little of the step is in the graph without it
    (told,) = found.instead
    assert "chance = chance[chance < 0] * 1.01  [dynamic-shape]" in told
    assert any(line.startswith("3 of 123 operations of a step are in the graph") for line in found.verified)


ADVICE = {
    "a size": (
        """
args = (torch.randint(1, 4, (4,), device=device),)
def f(n):
    longest = int(n.max())
    return torch.ones(4, device=device)[:longest].softmax(0)[0] + n
""",
        "capture one graph for each `longest` that comes",
    ),
    "random numbers of the CPU": (
        """
args = (torch.ones(4, device=device),)
def f(x):
    rounds = 0
    while rounds < 2:  # each with other numbers
        x = x + torch.randn(x.shape).to(x.device)
        rounds += 1
    return x
""",
        "draw on the device, `torch.randn(x.shape, device=x.device)`",
    ),
    "a mask that is no input": (
        """
args = (torch.randn(4, device=device),)
kept = torch.tensor([True, False, True, True], device=device)
def f(x):
    return x[kept].softmax(0)
""",
        "`kept_at = kept.nonzero().squeeze(-1)` before it and `[kept_at]` in it",
    ),
    "a table of the CPU, by a number of the device's": (
        """
table = torch.arange(10.0)
args = (torch.ones(4, device=device), torch.tensor(1, device=device))
def f(x, j):
    return x * table[j]
""",
        "have `table` on the device: at line",
    ),
    "a table that a call makes": (
        """
args = (torch.ones(4, device=device), torch.tensor(1, device=device))
def f(x, j):
    fades = torch.linspace(1, 0, 5)
    return x * fades[j]
""",
        "have `fades` on the device: at line",
    ),
}


@pytest.mark.parametrize(("text", "wanted"), ADVICE.values(), ids=ADVICE)
def test_what_to_write_fits_the_line(text: str, wanted: str, fixed: Fixed) -> None:
    # GIVEN a line that cannot be rewritten safely WHEN left to the user THEN it says what to write there
    assert any(wanted in line for line in fixed(text).instead)


LEFT = """
net, args = nn.Linear(3, 1).to(device), (torch.randn(4, 3, device=device),)
opt = torch.optim.SGD([{"params": [net.weight]}, {"params": [net.bias]}], lr=0.1)
it = 0
class Tuner:
    def __init__(self):
        self.p, self.rt = 0.1, 0.0
    def tune(self, out):
        self.rt = torch.sign(out).mean().item()
        self.p = min(1.0, self.p + (0.1 if self.rt > 0.6 else -0.01))
        return self.p
class Track:
    def __init__(self):
        self.mean, self.age = torch.zeros(3, device=device), 0
    def predict(self):
        self.mean = self.mean * 0.9
        self.age += 1
tuner, track = Tuner(), Track()
def f(x):
    global it
    for i, g in enumerate(opt.param_groups):
        g["lr"] = 0.1 / (1 + it) / 2.6 ** i
    track.predict()
    loss = net(x[torch.nonzero(x[:, 0] > 0)] * tuner.p + track.mean).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    tuner.tune(loss.detach())
    if it % 2 == 0:
        net(x).square().sum().backward()
        opt.step()
    it += 1
    return loss.detach()
"""
ROWS = """
args = (torch.randn(4, 3, device=device), torch.tensor([0, 1, 1, 2], device=device))
rows = torch.zeros(4, 3, device=device)
def f(x, y):
    for c in torch.unique(y):
        rows[c] = x[y == c].mean(0)
    return rows * 2
"""
PUT = {"for c in": "stays as it was, line 15 `rows[c] = torch.where(there[c], x[y == c].mean(0), rows[c])`"}
BEAMS = """
emb, proj = nn.Embedding(9, 8).to(device), nn.Linear(8, 9).to(device)
args = (torch.randint(1, 9, (2, 3), device=device),)
@torch.no_grad()
def f(ids):
    bias, ended = torch.tensor([0.0, -1.0], device=ids.device), []
    for _ in range(3):
        logp = proj(emb(ids).mean(1)).log_softmax(-1) + bias[:, None]
        best = logp.argmax(-1)
        for row, token in enumerate(best.tolist()):
            if token == 0:
                ended.append(row)
        ids = torch.cat([ids, best[:, None]], dim=1)
    return ids, bias.sum().item()
"""
AROUND = {
    "for row, token": "what a round computes, lines 17 to 18, is a function of its own",
    "return ids": "stays as it is, around the launches of lines 17 to 18",
}
SAID = {
    "opt.step()": '`for group in opt.param_groups: group["lr"] = torch.tensor(group["lr"], device=device)`',
    "self.rt = ": "`tuner.tune(loss.detach())`, belongs behind the launch: take it out of the step, and return "
    "`loss.detach()`; `tuner.p`, which it moves, is read from line 33 on: once `p_in = torch.zeros((), device=device)`",
    "self.age += 1": "belongs behind the launch: leave it",
    "it += 1": "belongs behind the launches, also that of lines 39 to 40, which is asked for by it",
}


@pytest.mark.parametrize(
    ("text", "said"), [(LEFT, SAID), (ROWS, PUT), (BEAMS, AROUND)], ids=["numbers", "rows", "rounds"]
)
def test_what_a_step_reads_of_what_is_left_has_words_that_give_its_numbers(
    text: str, said: dict[str, str], tmp_path: Path
) -> None:
    # GIVEN a step that cannot be rewritten, with rates, a counter and a number that it tunes for the next one
    names = run(text, tmp_path)
    failures = pgk.diagnose(names["f"], *names["args"]).failures
    # WHEN nothing of it is rewritten
    lines = by_hand.lines(Ways(names["f"], names["args"], {}), failures)
    # THEN groups have a tensor each, only the host's own line leaves a method, and what is tuned is so afterwards
    for line, wanted in said.items():
        told = [each for each in lines if line in each.split("  [")[0]]
        assert any(wanted in each for each in told), (line, lines)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("keep it there: `total.add_(loss.detach())`", True),
        ("once `n_in = torch.zeros(())`, here `n_in` for `n`, and `for i in range(9):`", True),
        ("mask it, `torch.where(n > 0, x[..., 0], 0)`", True),
        ("take `torch.where(n > 0, values, 0)` of what comes of it", False),
        ("written there, `n_in.copy_(...)`", False),
        ("give what the host decides here to the function", False),
    ],
)
def test_words_are_exact_where_all_their_names_are_those_of_the_user(text: str, wanted: bool) -> None:
    # GIVEN words, and the names of a file WHEN / THEN they are exact if nothing in them is left to the reader
    assert is_specific(text, {"total", "loss", "n", "x"}) is wanted


@pytest.mark.parametrize(("line", "wanted"), [("if n % 3 == 0:", True), ("loss = out * n", False)])
def test_a_line_that_has_words_of_its_own_is_not_told_two_things(line: str, wanted: bool) -> None:
    # GIVEN words for a line of the graph that reads a counter, and what is said of another or of the same line
    text = "`n` is read in the graph, line 9 `if n % 3 == 0:`: do that before each launch too"
    lines = [f"model.py:9 {line}  [branch-frozen]\n           make `train_9` an argument of `f`", "`m` is read"]
    # WHEN / THEN the second is left out where the line has words
    assert by_hand.is_told_there(text, lines) is wanted


def test_a_table_of_the_cpu_is_placed_by_a_line(tmp_path: Path) -> None:
    # GIVEN a table of the CPU that numbers of the device's are to pick from, which fails without a capture too
    names = run(
        "table = torch.arange(10.0)\n"
        "args = (torch.ones(2, device=device), torch.tensor([0, 2], device=device))\n"
        "def f(x, i):\n    return x * table[i].to(device)\n",
        tmp_path,
    )
    # WHEN diagnosed THEN that is told once, and the line that makes the table with what it is to say
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.codes == ("mixed-devices",)
    assert found.fix is not None
    (told,) = [line for line in found.fix.instead if "is on the CPU" in line]
    assert "make it on the device once, at line" in told
    assert "`table = torch.arange(10.0, device=" in told


def test_a_generator_of_the_devices_is_none_of_the_cpus(tmp_path: Path) -> None:
    # GIVEN an order that is drawn on the CPU with a generator of the device's
    names = run(
        "g = torch.Generator(device)\nargs = (torch.ones(4, device=device),)\n"
        "def f(x):\n    return x[torch.randperm(4, generator=g)]\n",
        tmp_path,
    )
    # WHEN diagnosed THEN it is told as what it is: torch refuses it without a capture too
    assert pgk.diagnose(names["f"], *names["args"]).codes == ("mixed-devices",)


def test_the_size_of_what_is_written_at_a_counted_place_is_that_of_all_of_it(tmp_path: Path) -> None:
    # GIVEN a sum that is written from a counted place on WHEN it is asked for words alone
    names = run(
        "class Cache:\n    pos, k = 0, torch.zeros(2, 24, 4, device=device)\n"
        "cache = Cache()\nargs = (torch.randn(2, 1, 4, device=device),)\n"
        "def f(x):\n    cache.k[:, cache.pos : cache.pos + 1] = x + 1\n    cache.pos += 1\n    return cache.k.sum()\n",
        tmp_path,
    )
    # THEN they are lines of Python
    assert "torch.arange((x + 1).shape[1], device=device), x + 1)`" in str(pgk.diagnose(names["f"], *names["args"]))


def test_a_number_that_is_counted_on_the_host_is_no_random_one(tmp_path: Path) -> None:
    # GIVEN a weight that grows with a counter, beside random numbers of the CPU
    names = run(
        "class Warm:\n"
        "    now = 0\n"
        "    def weight(self):\n        self.now += 1\n        return min(1.0, self.now / 20)\n"
        "warm = Warm()\n"
        "args = (torch.ones(4, device=device),)\n"
        "def f(x):\n    noise = torch.randn(4).to(device)\n    return x + noise + warm.weight() * x.sum()\n",
        tmp_path,
    )
    # THEN
    found = pgk.diagnose(names["f"], *names["args"])
    assert "scalar-frozen" in found.codes
    assert "host-random" not in found.codes


def test_a_loop_of_the_host_moves_behind_the_launch(fixed: Fixed) -> None:
    # GIVEN a step that fills a table on the CPU
    found = fixed(
        "model = nn.Linear(4, 3).to(device)\n"
        "table = torch.zeros(3, 3)\n"
        "args = (torch.randn(5, 4, device=device), torch.randint(0, 3, (5,), device=device))\n"
        "def f(x, y):\n"
        "    out = model(x)\n"
        "    for truth, guess in zip(y.cpu(), out.argmax(-1).cpu()):\n"
        "        table[truth, guess] += 1\n"
        "    return out\n"
    )
    # THEN
    assert found.complete, str(found)
    assert found.usage == "call after_f(y, out) after each launch"
    assert "+def after_f(y, out):  # after each launch" in found.diff


@pytest.mark.parametrize("logged", [True, False], ids=["with host work", "as it is"])
def test_a_training_step_returns_its_loss_without_gradients(logged: bool, tmp_path: Path) -> None:
    # GIVEN the plainest training step, which returns what has been differentiated
    names = run(
        "model = nn.Linear(4, 1).to(device)\n"
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "losses = []\n"
        "args = (torch.randn(8, 4, device=device),)\n"
        "def f(x):\n"
        "    opt.zero_grad()\n"
        "    loss = model(x).square().mean()\n"
        "    loss.backward()\n"
        "    opt.step()\n" + "    losses.append(loss.item())\n" * logged + "    return loss\n",
        tmp_path,
    )
    # WHEN told as a story THEN one diff brings it to its end: no backward goes through a launch
    with torch.enable_grad():
        story = pgk.story(names["f"], *names["args"], say=None)
    assert story.complete, str(story)
    assert story.fix is not None
    assert "+    return loss.detach()" in story.fix.diff
    assert "call story again" not in str(story)


def test_a_table_that_an_object_may_change_is_copied_before_each_launch(fixed: Fixed) -> None:
    # GIVEN a table of the CPU that an object has, and may change, looked up with a number of the device
    found = fixed(
        "class Tables:\n"
        "    def __init__(self):\n        self.rates = torch.as_tensor(np.linspace(0, 1, 10))\n"
        "    def at(self, t):\n        return self.rates.to(t.device)[t]\n"
        "    def warm(self):\n        self.rates = self.rates * 2\n"
        "tables = Tables()\n"
        "args = (torch.randn(4, device=device), torch.tensor(5, device=device))\n"
        "def f(x, t):\n    print(x.sum().item())\n    return x * tables.at(t)\n"
    )
    # THEN the copy is made there, whatever the object has by then
    assert found.complete, found
    assert "+    given_in.copy_(tables.rates.to(t.device).view_as(given_in))" in found.diff


def test_what_moved_lines_call_is_not_put_off(fixed: Fixed) -> None:
    # GIVEN a logger that is called by what moves behind the launch alone
    found = fixed(
        "class Log:\n"
        "    def __init__(self):\n        self.kept = {}\n"
        "    def add(self, tag, value, step):\n        self.kept.setdefault(tag, []).append((step, float(value)))\n"
        "log, count = Log(), 0\n"
        "args = (torch.randn(4, device=device),)\n"
        "def f(x):\n    global count\n    loss = x.square().mean()\n"
        "    log.add('loss', loss, count)\n    count += 1\n    return loss\n"
    )
    # THEN it is done there, at once
    assert found.complete, str(found)
    assert "later" not in found.diff


HEAD = """
args = (torch.randn(8, 4, device=device).abs(), torch.randn(8, device=device), torch.rand(8, device=device))
def ratio(x):
    return x.min(-1)[0] / x.max(-1)[0]
def f(x, y, c):
    at = (c > 0.3).nonzero().reshape(-1)
    n = max(at.numel(), 1.0)
    total = x.sum() / n
    px = x[at]
    py = y[at]
    py = py.sort().values
    return (ratio(px) * py).sum() / n + total
"""


def test_rows_that_a_mask_picks_are_no_zeros_where_they_are_divided(fixed: Fixed) -> None:
    # GIVEN rows of a mask that ratios are made of WHEN they are left to the user
    told = fixed(HEAD).instead
    # THEN what fills them is no zero that is divided, and the sums leave them out
    (line,) = [each for each in told if "px = x[at]" in each]
    assert "ones elsewhere, as zeros would be divided" in line
    assert "before each sum" in line


RANKS = """
args = (torch.rand(8, device=device),)
def f(scores):
    kept = scores[scores > 0.4]
    return ((torch.arange(len(kept), device=device) + 1) / kept).mean()
"""


def test_what_numbers_those_that_a_mask_keeps_is_told_with_the_mask(fixed: Fixed) -> None:
    # GIVEN ranks of what a mask keeps WHEN that is left to the user THEN it is told what counts only those
    (line,) = [each for each in fixed(RANKS).instead if "kept = scores[scores > 0.4]" in each]
    assert "which numbers those that are kept, `((scores > 0.4).cumsum(0) - 1)`" in line


def test_one_cut_is_told_for_all_that_a_mask_picks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN rows that a mask picks, and below them a line of which only a cut is told
    file = tmp_path / "program.py"
    file.write_text(HEAD)
    source = Source.of(str(file))
    assert source is not None
    places = {}
    for line, code in ((9, "dynamic-shape"), (10, "dynamic-shape"), (11, "sync-item")):
        statement = source.statement(line)
        assert statement is not None
        failure = Failure(code, "", "", frame=Frame(str(file), line, "f", ""))
        places[id(failure)] = Place(source, statement, failure, "device", {}, seen=("at", "px", "py", "total"))
    monkeypatch.setattr(by_hand, "_place", lambda _, failure: places[id(failure)])
    cut = "end what is captured before line 11"
    monkeypatch.setattr(by_hand, "hint", lambda place: cut if place.statement.lineno == 11 else "keep all of it")
    # WHEN they are told together THEN the cut is before the first of them, and the others stay as they are
    attempt: Any = SimpleNamespace(unsafe={})
    first, *others = by_hand.lines(attempt, [place.failure for place in places.values()])
    assert "end what is captured before line 9, return `at`, `total`, `x`, and do that line" in first, first
    assert "; `n` too, where the lines above make a tensor of it" in first, first
    assert all("stays as it is, behind the launch with line 9" in each for each in others), others


def test_an_attribute_that_fills_a_tensor_before_each_launch_is_set_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a line that sets an attribute, a line by which a tensor is filled with it, and one that sets another
    file = tmp_path / "program.py"
    file.write_text("def f(x):\n    net.p = rate(n)\n    net.q = n\n    return F.dropout(x, net.p)\n")
    source = Source.of(str(file))
    assert source is not None
    places = {}
    for line, code in ((2, "host-counter"), (3, "host-counter"), (4, "scalar-frozen")):
        statement = source.statement(line)
        assert statement is not None
        failure = Failure(code, "", "", frame=Frame(str(file), line, "f", ""))
        places[id(failure)] = Place(source, statement, failure, "device", {})
    fills = (
        "belongs before each launch: once `p_in = torch.zeros(())`, before each launch `p_in.fill_(net.p)`, and so on"
    )
    monkeypatch.setattr(by_hand, "_place", lambda _, failure: places[id(failure)])
    monkeypatch.setattr(by_hand, "hint", lambda place: fills if place.statement.lineno == 4 else from_host.BEHIND)
    # WHEN they are told together
    attempt: Any = SimpleNamespace(unsafe={}, _definition=lambda: None)
    first, second, _ = by_hand.lines(attempt, [place.failure for place in places.values()])
    # THEN the first goes ahead of what reads it, and the other one behind the launch as ever
    assert "belongs before each launch, ahead of `p_in.fill_(net.p)`, which reads it: take it out" in first, first
    assert "belongs behind the launch" in second, second
