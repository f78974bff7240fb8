"""Where no rewrite makes one graph of a function, it is compiled and tried: what that brings is said if proved."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.rewrite.own_lines import in_own_lines
from paramgraph_kit.rewrite.proving.worth import Worth
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.verbs._fixing import more_in_pieces
from paramgraph_kit.verbs._lasting import CALLS
from paramgraph_kit.verbs._modules import by_forward, compiled_in_place, compiling, modules_called
from paramgraph_kit.verbs._pieces import Pieces, in_pieces
from tests.integration.rewritten import rewritten, run
from tests.programs.running import differences, eager, load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.pieces,
]

ASKS = """
import bisect
limits, names = [-9.0, 0.9, 9.0], ["low", "usual", "high", "higher"]
args = (torch.randn(8, 4, device=device),)
def f(x):
    h = x * 2
    kind = names[bisect.bisect(limits, h.mean().item())]
    if kind.startswith("high"):
        h = h / 2
    h = h.relu() + 1
    kind = names[bisect.bisect(limits, h.mean().item())]
    if kind.startswith("high"):
        h = h / 3
    return h.sin() - 1
"""


def test_a_function_of_the_hosts_decisions_is_launched_in_pieces(tmp_path: Path) -> None:
    # GIVEN a function that the host decides in twice, so that no part is half of it
    # WHEN a fix is asked for
    fix = rewritten(ASKS, tmp_path)
    assert not fix.complete
    text = str(fix)
    # THEN what compiling it brings is said, with what to write, how much is launched, and where it is cut
    assert 'pieces   f = torch.compile(f, backend="paramgraph"), without changing a line: eager\'s results' in text
    assert "3 launches with 8 kernels in the last" in text
    assert "what the host does between them stays (program.py:" in text
    # AND that is true
    truth, names = eager(run(ASKS, tmp_path), "f"), run(ASKS, tmp_path)
    names["f"] = torch.compile(names["f"], backend="paramgraph")
    assert not differences(truth, eager(names, "f"), set())


EXPERTS = """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.seen = 0
    def forward(self, x):
        self.seen += x.shape[0]
        return self.infer(x.sin() + 1).relu()
    def infer(self, x):
        to = x[:, 0].argsort() % 3
        order = to.argsort()
        counts = F.one_hot(to, 3).sum(0).cpu().numpy()
        rows, begin, outs = x[order], 0, []
        for i, n in enumerate(counts):
            if n == 0:
                continue
            outs.append(self.experts[i](rows[begin:begin + n]))
            begin = begin + n
        return torch.cat(outs)
moe = Experts().to(device).eval()
args = (torch.randn(9, 4, device=device),)
@torch.no_grad()
def f(x):
    return moe(x)
"""


def test_a_module_that_counts_is_launched_in_pieces_beside_its_counter(tmp_path: Path) -> None:
    # GIVEN experts, each with as many rows as the host has read, in a module that counts in a number of its own
    # WHEN a fix is asked for
    fix = rewritten(EXPERTS, tmp_path)
    # THEN it is compiled once for all numbers, and the line that reads is not told to go behind a launch
    once = "torch._dynamo.config.allow_unspec_int_on_nn_module = True"
    assert f'pieces   {once}; f = torch.compile(f, backend="paramgraph"), without changing a line' in str(fix)
    assert "belongs behind the launch" not in str(fix)


def test_nothing_of_the_trial_stays(tmp_path: Path) -> None:
    # GIVEN what is compiled in this process
    before = {graph.order for graph in compiled_graphs()}
    # WHEN a function is tried in pieces
    names = run(ASKS, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix.pieces
    # THEN no graph is left, and a report of it knows of none
    assert {graph.order for graph in compiled_graphs()} <= before
    assert not pgk.report(names["f"]).rows


def test_a_function_that_is_compiled_anew_at_each_step_is_not_offered(tmp_path: Path) -> None:
    # GIVEN one that Dynamo compiles for each length of a list
    text = ASKS.replace("def f(x):", "past = []\ndef f(x):\n    past.append(0)\n    x = x.roll(len(past), 0)")
    # WHEN / THEN pieces of it would be captured, and never launched: nothing is promised
    fix = rewritten(text, tmp_path)
    assert not fix.complete
    assert not fix.pieces


def test_a_trial_ends_once_it_can_prove_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function that is cut, of which each call is counted
    calls: list[int] = []
    compiling = torch.compile

    def counted(function: Any, **options: Any) -> Any:
        compiled = compiling(function, **options)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[-1] += 1
            return compiled(*args, **kwargs)  # type: ignore[no-untyped-call]

        call._torchdynamo_orig_callable = function  # type: ignore[attr-defined]
        calls.append(0)
        return call

    monkeypatch.setattr(torch, "compile", counted)
    # WHEN there is time THEN it is tried for six steps, and for sixty, in which nothing more may be compiled
    assert rewritten(ASKS, tmp_path).pieces
    assert calls == [6 + CALLS]
    # AND when there is none, not for more than one, and nothing is promised
    calls.clear()
    monkeypatch.setattr("paramgraph_kit.verbs._pieces.LIMIT_S", 0.0)
    assert not rewritten(ASKS, tmp_path).pieces
    assert set(calls) == {1}


def test_a_function_that_is_one_graph_is_not_cut(tmp_path: Path) -> None:
    # GIVEN / WHEN a fix is whole
    fix = rewritten("args = (torch.ones(4, device=device),)\ndef f(x):\n    return x * x.sum().item()\n", tmp_path)
    # THEN nothing else is said
    assert fix.complete
    assert not fix.pieces


SAMPLES = """
emb, net = nn.Linear(4, 8).to(device), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
generator = torch.Generator().manual_seed(0)
args = (torch.randn(8, 4, device=device),)
def f(x):
    for scale in (0.9, 0.5, 0.1):
        clean = net(emb(x))
        noise = torch.randn(8, 4, generator=generator).to(device)
        x = clean + scale * noise
    return x
"""


def pieces_of(names: dict[str, Any]) -> str:
    """What compiling a program's ``f`` brings where no line of it is rewritten."""
    nothing: Any = SimpleNamespace(diff="")
    return in_pieces(names["f"], names["args"], {}, nothing).text


def test_modules_are_compiled_where_the_function_is_cut_in_a_loop(tmp_path: Path) -> None:
    # GIVEN a loop that copies from the host, at which Dynamo gives up the whole function, and a container of torch's
    # WHEN it is compiled and tried
    pieces = pieces_of(run(SAMPLES, tmp_path))
    # THEN what compiling the modules brings is said, with what to write
    lines = [f'{name}.forward = torch.compile({name}.forward, backend="paramgraph")' for name in ("emb", "net")]
    assert pieces.startswith(f"{'; '.join(lines)}, without changing a line of f: eager's results and state")
    assert "6 launches with 12 kernels in the last, the rest of it stays" in pieces
    # AND what a copy of such a container would do
    assert pieces.endswith("; copy.deepcopy() of emb and net would call the first: copy ahead of that")
    # AND that is true
    truth, names = eager(run(SAMPLES, tmp_path), "f"), run(SAMPLES, tmp_path)
    exec("; ".join(lines), names)
    assert not differences(truth, eager(names, "f"), set())


class Net(nn.Module):
    """A module of a class of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers."""
        found: torch.Tensor = self.second(self.first(x).relu())
        return found


def test_a_module_of_the_users_class_is_compiled_so_that_its_copies_are_their_own() -> None:
    # GIVEN a module of a class of the user's, and one of the same whose compile is another
    net, other = Net().to(pgk.device()), type("Other", (Net,), {"compile": print})()
    assert by_forward(other)
    assert compiling("net", net) == 'net.compile(backend="paramgraph")'
    held, x = set(vars(net)), torch.ones(1, 8, device=pgk.device())
    # WHEN it is compiled in place THEN it is launched, and a copy has weights of its own
    with compiled_in_place([net]):
        before = {graph.name for graph in compiled_graphs()}
        net(x)
        copied = copy.deepcopy(net)
        torch.nn.utils.vector_to_parameters(torch.zeros(108, device=x.device), copied.parameters())
        assert not copied(x).any()
        assert {graph.name for graph in compiled_graphs()} - before
    # AND nothing is left of that
    assert set(vars(net)) == held


@pytest.mark.parametrize(
    "change",
    [
        "emb, net = nn.Linear(4, 8).to(device), nn.Linear(8, 4).to(device)",
        "net.forward = net.forward",
        "net = torch.jit.trace(net, torch.zeros(1, 8, device=device))",
        "net.compile(backend='eager')",
    ],
    ids=["is a kernel each", "is changed", "is traced", "is compiled"],
)
def test_modules_are_not_offered_where_that_is_not_all_of_it(tmp_path: Path, change: str) -> None:
    # GIVEN the same with a module that no line can compile, or nothing that a launch would save
    # WHEN / THEN nothing is promised
    assert not pieces_of(run(SAMPLES.replace("args =", f"{change}\nargs ="), tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(net, "forward", net.forward),
        lambda net: net.compile(backend="eager"),
    ],
    ids=["has a forward of its own", "is compiled"],
)
def test_a_module_that_the_user_has_changed_is_left_as_it_is(change: Callable[[nn.Module], None]) -> None:
    # GIVEN a module whose calls are not those of its class: what compiles it in place would undo that
    net = nn.Linear(2, 2)
    assert modules_called(lambda: net.requires_grad_(False), {"net": net}, None) == {}
    assert modules_called(lambda: net(torch.ones(2)), {"net": net}, None) == {"net": net}
    # WHEN it is changed THEN it is not offered
    change(net)
    assert modules_called(lambda: net(torch.ones(2)), {"net": net}, None) == {}


def test_modules_are_named_as_the_user_does(tmp_path: Path) -> None:
    # GIVEN modules of an object, of a dictionary, of a list, and of one whose method is the function
    space: dict[str, Any] = {"held": SimpleNamespace(net=nn.Linear(2, 2)), "__own": nn.Linear(2, 2)}
    space |= {
        "by_name": {object(): nn.Linear(2, 2), "a": nn.Linear(2, 2)},
        "many": [nn.Linear(2, 2)],
        "whole": nn.Sequential(nn.Linear(2, 2)),
    }
    x = torch.ones(2)
    named = {
        "held.net": space["held"].net,
        "by_name['a']": space["by_name"]["a"],
        "many[0]": space["many"][0],
        "whole": space["whole"],
    }
    # WHEN they are called THEN each has the shortest way to it as its name, and what the owner itself is counts not
    assert modules_called(lambda: [module(x) for module in named.values()], space, None) == named
    assert modules_called(lambda: space["whole"](x), {"me": space["held"]}, space["whole"]) == {}
    assert not modules_called(lambda: space["__own"](x), space, None)
    assert not modules_called(lambda: next(iter(space["by_name"].values()))(x), space, None)  # no text is its key


def test_a_module_of_the_owner_is_found_beside_it() -> None:
    # GIVEN a module whose method is diagnosed, which calls another of its own
    whole = nn.Sequential()
    whole.add_module("first", nn.Linear(2, 2))
    # WHEN / THEN
    assert modules_called(lambda: whole(torch.ones(2)), {"whole": whole}, whole) == {"whole.first": whole[0]}


def test_a_story_that_stops_says_what_can_be_launched_till_then(tmp_path: Path) -> None:
    # GIVEN the same function
    names = run(ASKS, tmp_path)
    # WHEN / THEN
    story = pgk.story(names["f"], *names["args"], say=None)
    assert story.stopped.endswith("; till then it can be launched in pieces, as said")
    assert 'torch.compile(f, backend="paramgraph")' in str(story)


EPOCH = """
import torch
import paramgraph_kit as pgk
device = pgk.device()
model = torch.nn.Linear(8, 4).to(device)
opt = torch.optim.Adam(model.parameters())
data = torch.utils.data.DataLoader([(torch.randn(8), i % 4) for i in range(12)], batch_size=4)
running = 0.0
args = ()
def epoch():
    global running
    for x, y in data:
        x, y = x.to(device), y.to(device)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
    print("mine")
"""


def test_what_the_function_prints_is_seen_once_and_not_between_the_lines_of_a_story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a function that prints, of which one round can be launched
    names = load(EPOCH, tmp_path / "program.py")
    # WHEN it is diagnosed, which tries more than one thing THEN its own words are there once
    found = pgk.diagnose(names["epoch"], fix=True)
    assert found.fix is not None
    assert found.fix.alone
    assert capsys.readouterr().out == "mine\n"
    # AND a story has its own lines alone
    pgk.story(names["epoch"], say=None)
    assert capsys.readouterr().out == ""


GROUPED = """
class Precision:
    def __init__(self):
        self.total, self.count = torch.zeros((), device=device), 0
    def of_one(self, preds, target):
        target = target[torch.argsort(preds, descending=True)]
        if not target.sum():
            return torch.tensor(0.0, device=preds.device)
        at = torch.arange(1, len(target) + 1, device=target.device, dtype=torch.float32)[target > 0]
        return torch.div(torch.arange(len(at), device=at.device, dtype=torch.float32) + 1, at).mean()
    def update(self, preds, target, indexes):
        res = []
        for group in torch.unique(indexes):
            mask = indexes == group
            res.append(self.of_one(preds[mask], target[mask]))
        self.total += torch.stack(res).sum()
        self.count += len(res)
        return self.total / self.count
metric = Precision()
f = metric.update
args = (torch.rand(20).to(device), (torch.rand(20) > 0.6).long().to(device), torch.arange(20).to(device) % 4)
"""


def test_what_is_proved_in_pieces_is_said_first_of_each_line_that_is_left(tmp_path: Path) -> None:
    # GIVEN a metric of which no line can be one graph's while the others stay
    names = run(GROUPED, tmp_path)
    # WHEN it is diagnosed
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    fix: Any = found.fix
    assert fix.pieces
    # THEN each line that is left says so, and nothing that goes before a launch though the step computes it
    left = [str(failure.fix) for failure in found if any(failure.frame == each.frame for each in fix.left)]
    assert len(left) > 3
    assert all("stays as it is in pieces, `metric.update = torch.compile(metric.update" in text for text in left)
    # AND nothing of what one graph would need, as not all of it is told in the user's names
    assert not any("for one graph" in text for text in left)
    assert "by hand" not in str(fix)


GATED = """
class Gated:
    def __init__(self):
        self.x, self.hits = torch.zeros(4, device=device), 0
    def update(self, z):
        new = self.x.sin() + z
        d = (new - self.x).square().sum().sqrt().exp().log()
        if d > 1e9:
            return self.x
        self.x = self.x + d
        self.hits += 1
        return self.x
gated = Gated()
f = gated.update
args = (torch.randn(4, device=device),)
"""


def test_a_counter_behind_an_early_end_is_not_told_to_count_each_launch(tmp_path: Path) -> None:
    # GIVEN a step that counts only where it comes to its end
    names = run(GATED, tmp_path)
    # WHEN / THEN nothing says that each launch counts
    found = pgk.diagnose(names["f"], *names["args"])
    assert "host-counter" in found.codes
    assert "after each launch do `self.hits += 1`" not in str(found)


NEAREST = """
net, args = nn.Linear(6, 6).to(device), (torch.rand(3, 6, device=device),)
def f(x):
    close = x < 0.5
    k = max(1, min(4, int(close.sum(-1).max())))
    near = x.topk(k, dim=-1, largest=False).indices
    return net(x).gather(-1, near).tanh().mean()
"""


def test_lines_that_only_move_a_question_are_not_shown_where_pieces_need_none(tmp_path: Path) -> None:
    # GIVEN a number of the device's that decides a size, which on the device would be asked for a line later
    names = run(NEAREST, tmp_path)
    # WHEN it is diagnosed
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    fix: Any = found.fix
    # THEN what is proved without a changed line is all that is said, also of the line that could be written otherwise
    assert "without changing a line" in fix.pieces, fix
    assert not fix.diff
    assert all("after   stays as it is in pieces" in str(failure.fix) for failure in found), found


COOLED = """
net, heat = nn.Linear(4, 4).to(device), 2.0
args = (torch.randn(6, 4, device=device),)
def f(x):
    global heat
    heat = max(0.9 * heat, 0.5)
    return (net(x) / heat).mean().detach()
"""


@pytest.mark.parametrize(
    "how",
    ["without changing a line", "with these lines"],
)
def test_a_line_of_which_a_diff_has_nothing_stays_in_pieces(how: str, tmp_path: Path) -> None:
    # GIVEN a number that moves, a diff with other lines, and pieces that were proved with them or without
    names = run(COOLED, tmp_path)
    f, args = names["f"], names["args"]
    failures = pgk.diagnose(f, *args).failures
    file = str(tmp_path / "program.py")
    fix: Any = Rewriting("f", f"--- {file}\n+++ {file}\n@@ -1,1 +1,1 @@\n-import x\n+import y\n")
    fix.pieces = f'f = torch.compile(f, backend="paramgraph"), {how}: as it says'
    fix.texts = {file: Path(file).read_text().splitlines(keepends=True)}
    # WHEN its lines are told THEN they stay in the pieces
    told = [str(failure.fix) for failure in in_own_lines(f, args, {}, failures, fix=fix)]
    assert len(told) == 2, told
    assert all("after   stays as it is in pieces" in text for text in told), told


def test_pieces_are_the_fix_where_a_graph_has_less_of_a_step_than_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN pieces that are proved, with launches of eight kernels
    told = Pieces("f = torch.compile(f)", kernels=8, operations=27, is_plain=True)
    monkeypatch.setattr("paramgraph_kit.verbs._pieces.in_pieces", lambda *_: told)
    # WHEN a graph of the step, most of which runs behind it, has fewer operations, or as many
    # THEN they are the fix in its place, or they are not
    assert more_in_pieces(Rewriting("f", worth=Worth(7, 20)), None, (), {}) == told
    assert not more_in_pieces(Rewriting("f", worth=Worth(8, 20)), None, (), {})
    # AND pieces of lines that were rewritten are not, as a graph of these is
    monkeypatch.setattr("paramgraph_kit.verbs._pieces.in_pieces", lambda *_: replace(told, is_plain=False))
    assert not more_in_pieces(Rewriting("f", worth=Worth(7, 20)), None, (), {})


TWICE = """
first, second = torch.rand(20, 4, device=device), torch.rand(20, 4, device=device)
args = (torch.rand(20, device=device),)
def f(x):
    idx = torch.where(first[:, 3] < 0.8)[0]
    s = x[idx]
    y = first[idx[s.topk(min(3, len(idx))).indices]].mean(0)
    far = torch.where(second[:, 3] < 0.8)[0]
    s = x[far]
    return y + second[far[s.topk(min(3, len(far))).indices]].mean(0)
"""


@pytest.mark.parametrize(("kernels", "stays"), [(7, False), (6, True)])
def test_words_for_several_places_give_way_to_pieces_of_most_of_a_step(
    kernels: int, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN two places of which is said what to write, and pieces that are proved with much of a step, or less
    proved = Pieces("f = torch.compile(f)", kernels=kernels, operations=19, is_plain=True)
    monkeypatch.setattr("paramgraph_kit.verbs._pieces.in_pieces", lambda *_: proved)
    # WHEN a fix is asked for
    fix = rewritten(TWICE, tmp_path)
    # THEN nobody is told to write untried lines where what is tried brings most
    assert fix.pieces == proved.text
    assert ["once before the function" in line for line in fix.instead] == [True, True] * stays
