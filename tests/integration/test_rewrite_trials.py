"""What trials of a rewrite leave as it was, and what they must not take for the whole of it."""

from __future__ import annotations

import ast
import sys
import types
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe.examine import examine
from paramgraph_kit.driver.profiling import profiled
from paramgraph_kit.rewrite import rounds
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.proving.closeness import farther
from paramgraph_kit.rewrite.proving.proof import Prover, Truth
from paramgraph_kit.rewrite.source.edits import Edit, Source
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.model import Failure
from paramgraph_kit.trace.reason import Frame
from tests.integration.rewritten import Fixed, Program, lines_of
from tests.programs.running import quiet

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")


def test_a_number_that_is_given_is_not_kept_by_the_graph(fixed: Fixed) -> None:
    # GIVEN a sum among the arguments to which a step adds what it reads, WHEN that is rewritten
    found = fixed(
        """
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
args = (torch.randn(3, 4, device=device), 0)
def f(x, total):
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    total += loss.item()
    return total
"""
    )
    # THEN the sum is the host's, behind the launch: a graph would add to that of its capture for ever
    assert "total += loss.item()" in found.diff.partition("def after_f(total, loss)")[2], found.diff


def test_a_trial_leaves_the_names_of_the_module(program: Program) -> None:
    # GIVEN a loss that a function makes for itself, by the name of another one of its module
    names = program(
        """
criterion = nn.MSELoss()
net = nn.Linear(4, 1).to(device)
args = (torch.rand(4, 4, device=device), torch.ones(4, 1, device=device))
def f(x, y):
    criterion = nn.BCELoss()
    out = net(x).sigmoid()
    print(criterion(out, y).item())
    return out
"""
    )
    before = dict(names)
    # WHEN it is rewritten
    with quiet():
        found: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN that name has what it had, and no line of the rewrite gives it another
    assert names["criterion"] is before["criterion"]
    assert "global criterion" not in found.diff


def test_a_trial_does_not_end_a_generator(program: Program) -> None:
    # GIVEN a step whose batches come from a generator that copies them
    names = program(
        """
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
def forever():
    while True:
        yield torch.rand(3, 4).to(device)
batches = forever()
args = ()
def f():
    opt.zero_grad()
    loss = net(next(batches)).square().mean()
    loss.backward()
    opt.step()
    return loss
"""
    )
    # WHEN it is rewritten THEN there is a next batch, and the capture that would fail in the generator was not tried
    with quiet():
        found = pgk.diagnose(names["f"], fix=True)
    assert next(names["batches"]).shape == (3, 4)
    assert "no rewrite was tried" not in str(found)


def test_an_optimizer_is_told_by_what_it_is_and_not_by_a_parameters_name(fixed: Fixed) -> None:
    # GIVEN a function that is given an optimizer by the name of another one of the module
    found = fixed(
        """
net, other = nn.Linear(4, 1).to(device), nn.Linear(4, 1).to(device)
optimizer = torch.optim.Adam(other.parameters())
second = torch.optim.Adam(net.parameters(), lr=1e-2)
args = (second, torch.randn(3, 4, device=device))
def f(optimizer, x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
"""
    )
    # WHEN it is rewritten THEN it is that one which is made for capture
    assert found.complete, found
    assert lines_of(found) == ["second = torch.optim.Adam(net.parameters(), lr=1e-2, capturable=True)"]


def test_a_loop_that_took_other_ways_is_told_at_its_branch_alone(program: Program) -> None:
    # GIVEN a loop whose rounds go on with one of two tensors, as the host draws
    names = program(
        """
net = nn.Linear(4, 4).to(device)
args = (torch.randn(5, 3, 4, device=device),)
def f(rows):
    found = torch.zeros_like(rows)
    given = rows[0]
    for t in range(1, 5):
        out = net(given)
        found[t] = out
        forced = random.random() < 0.5
        given = rows[t] if forced else out
    return found
"""
    )
    # WHEN it is diagnosed THEN the branch is a problem, and the count of the rounds is none
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    assert {(each.code, each.frame.text) for each in found.failures if each.frame} == {
        ("branch-frozen", "given = rows[t] if forced else out")
    }


def test_a_counter_is_asked_for_in_what_may_run(program: Program) -> None:
    # GIVEN a step that counts, beside another function of its file that asks for the count
    names = program(
        """
net, done = nn.Linear(4, 4).to(device), 0
args = (torch.randn(3, 4, device=device),)
def other(x):
    if done % 4 == 0:
        return net(x).sum().item()
def f(x):
    global done
    done += 2
    return net(x)
"""
    )
    # WHEN it is diagnosed THEN nothing is told of that function
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    assert [each.code for each in found.failures] == ["host-counter"]


def test_a_bar_of_progress_is_the_hosts(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a bar of tqdm's, which a step moves on
    module = types.ModuleType("tqdm.std")

    class tqdm:  # noqa: N801  # its name
        def update(self, n: int = 1) -> None:
            pass

    module.tqdm = tqdm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tqdm.std", module)
    names = program(
        """
import ast
import sys
bar = sys.modules["tqdm.std"].tqdm()
args = (torch.randn(3, 4, device=device),)
def f(x):
    bar.update(len(x))
    return x * 2
"""
    )
    # WHEN it is diagnosed THEN that is found where it stands: no replay moves it
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    assert [(each.code, each.frame.text) for each in found.failures if each.frame] == [
        ("host-counter", "bar.update(len(x))")
    ]


def test_targets_of_one_stay_probabilities_in_a_trial(fixed: Fixed) -> None:
    # GIVEN a loss that refuses what lies beyond 1, of targets that are 1 exactly, WHEN it is rewritten
    found = fixed(
        """
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
args = (torch.rand(4, 4, device=device), torch.ones(4, 1, device=device))
def f(x, y):
    opt.zero_grad()
    loss = nn.BCELoss()(net(x).sigmoid(), y)
    loss.backward()
    opt.step()
    return loss.item()
"""
    )
    # THEN it could be tried: no rounding has moved them past it
    assert found.complete, found


def test_of_two_roundings_the_farther_one_counts() -> None:
    # GIVEN a run and two that began with other roundings, of which each has moved another element
    run, one, other = ({"weight": [torch.tensor(row)]} for row in ([1.0, 2.0], [1.0, 2.5], [1.25, 2.0]))
    # WHEN they are joined THEN both elements may move
    assert farther(run, one, other)["weight"][0].tolist() == [1.25, 2.5]


def test_the_same_lines_are_looked_at_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step, one way of rewriting it, and another that comes to the same lines
    names = program("def f(x):\n    y = x * 2\n    return y.sum().item()\nargs = (torch.ones(2, device=device),)\n")
    found = pgk.diagnose(names["f"], *names["args"]).failures
    first = Ways(names["f"], names["args"], {})
    truth, ways = Truth(first.prover), [first, rounds.once_more(first)]
    runs: list[str] = []
    eager = Prover.eager

    def examined(*given: Any, **how: Any) -> Any:
        runs.append("examined")
        return examine(*given, **how)

    def watched(*given: Any) -> Any:
        runs.append("watched")
        return eager(*given)

    monkeypatch.setattr(rounds, "examine", examined)
    monkeypatch.setattr(Prover, "eager", watched)
    seen = []
    for way in ways:
        begun = rounds.Rounds()
        way.moves = True
        begun.add(way, way.plans(found))
        assert begun.texts
        runs.clear()
        # WHEN both are looked at
        with begun.applied():
            other = rounds.once_more(first)
            problems = rounds._problems(begun, truth)
            rounds._look(other, begun, truth)
        seen.append((problems, other.tensors, first.prover.operations[:], runs[:]))
    # THEN lines have run for the first of them alone, and both know the same
    assert [each[-1] for each in seen] == [["examined", "watched"], []]
    assert seen[0][:-1] == seen[1][:-1]
    assert "y" in seen[0][1]


def test_what_lines_show_is_asked_once_in_all_ways(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step that makes a tensor in its first call, two ways of rewriting it, and one that came to other lines
    names = program(
        "total = None\n"
        "def f(x):\n"
        "    global total\n"
        "    total = x if total is None else total + x\n"
        "    return (total * 2).sum().item()\n"
        "args = (torch.ones(2, device=device),)\n"
    )
    found = pgk.diagnose(names["f"], *names["args"]).failures
    first = Ways(names["f"], names["args"], {})
    truth, begun = Truth(first.prover), rounds.Rounds()
    begun.add(first, [plan for plan in first.plans(found) if any(f.code == "sync-item" for f in plan.failures)])
    runs: list[str] = []
    eager, watched = Prover.eager, Prover.watched

    def noted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*given: Any) -> Any:
            runs.append(name)
            return run(*given)

        return noting

    monkeypatch.setattr(Prover, "eager", noted("eager", eager))
    monkeypatch.setattr(Prover, "watched", noted("watched", watched))

    def shown(way: Ways) -> tuple[Any, ...]:
        runs.clear()
        (source,) = way.sources.values()
        made, node = way._begun(), next(n for n in ast.walk(source.tree) if isinstance(n, ast.BinOp))
        values = way._watched_values(source, [node])
        return [*made], values[0].seen, way.prover.operations[:], runs[:]

    # WHEN each is asked what lines show
    one, other = shown(first), shown(first._other())
    with begun.applied():
        later, again = (shown(rounds.again_on(begun, truth)) for _ in range(2))
    # THEN the same lines have run for the first of them alone, which had made plans, and others for themselves
    assert one[:-1] == other[:-1]
    assert later[:-1] == again[:-1]
    assert [each[-1] for each in (one, other, later, again)] == [["eager"], [], ["watched", "eager"], []]
    assert one[0] == ["total"]


def test_a_hook_is_told_of_the_users_own_operations_and_not_of_what_torchs_do() -> None:
    # GIVEN an operation of torch's, and one of the user's that is made of it, and a hook on calls
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.library.custom_op("trials::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def ran(function: Any) -> set[str]:
        prover, found = Prover(function, (torch.ones(2, device=pgk.device()),), {}), set[str]()
        with profiled(lambda frame, event, _: found.add(frame.f_code.co_qualname.rpartition("<locals>.")[2])):
            prover.eager()
        return found

    # WHEN each runs some steps THEN the hook has seen both, and of torch's nothing of what it does
    own = {"Writes.__torch_dispatch__"}
    assert ran(plain) & {"plain", *own} == {"plain"}
    assert ran(lambda x: doubled(x)) & {"doubled", *own} == {"doubled", *own}


def _plan(text: str, hoisted: list[str]) -> Plan:
    failure = Failure("sync-item", "", "", Frame("f.py", 1, "f", text))
    return Plan(Source("f.py", ast.parse("")), [Edit(1, 0, 1, 1, text)], [failure], hoisted)


def _asked(monkeypatch: pytest.MonkeyPatch, is_wrong: Callable[[set[str], set[str]], str]) -> list[set[str]]:
    """The trials from now on, each by what its plans write; they are wrong by that, and by what stands before."""
    asked = list[set[str]]()

    def tried(_attempt: Any, _around: Any, plans: Sequence[Plan], _truth: Any) -> str:
        texts = {edit.text for plan in plans for edit in plan.edits}
        asked.append(texts)
        return is_wrong(texts, {line for plan in plans for line in plan.hoisted})

    monkeypatch.setattr(rounds, "tried", tried)
    return asked


def test_what_is_wrong_among_many_rewrites_is_found_in_few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN sixteen rewrites of which one is wrong
    asked = _asked(monkeypatch, lambda texts, _: "other numbers" if "at_11" in texts else "")
    plans = [_plan(f"at_{number}", []) for number in range(16)]
    attempt, truth = cast("Ways", None), cast("Truth", SimpleNamespace(suspected=Counter(), is_late=lambda: False))
    # WHEN they are tried THEN it is found, with half as many trials as there are rewrites
    assert rounds._changed(attempt, None, plans, truth) == [(plans[11], "other numbers")]
    assert len(asked) <= 9
    # AND in another way of rewriting it is asked for at once, in a third not any more
    for trials in (3, 2):
        asked.clear()
        assert [plan for plan, _ in rounds._changed(attempt, None, plans, truth)] == [plans[11]]
        assert len(asked) == trials


def test_a_rewrite_is_not_wrong_for_a_line_that_it_shares_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN two rewrites that name what one of them makes before the function, and a third one, which is wrong
    def is_wrong(texts: set[str], before: set[str]) -> str:
        shared = any("table" in each for each in texts) and "table = {}" not in before
        return "NameError" if shared else "other" if "wrong" in texts else ""

    _asked(monkeypatch, is_wrong)
    plans = [_plan("table[0]", ["table = {}"]), _plan("table[1]", []), _plan("wrong", [])]
    attempt, truth = cast("Ways", None), cast("Truth", SimpleNamespace(suspected=Counter(), is_late=lambda: False))
    # WHEN they are tried THEN it is that one alone
    assert rounds._changed(attempt, None, plans, truth) == [(plans[2], "other")]


def test_lines_of_a_way_run_again_after_others_were_tried(fixed: Fixed) -> None:
    # GIVEN a closure whose number only lines behind the launch name, of several ways
    found = fixed(
        """
def make():
    n, window, w = 0, [], torch.zeros(4, device=device)
    def step(x):
        nonlocal n
        n += 1
        w.add_(x)
        window.append(w.abs().max().item())
        if len(window) > 8:
            w.mul_(1.0 / (1.0 + sum(window) / len(window)))
            window.clear()
        return w * 1
    return step
f = make()
args = (torch.randn(4, device=device),)
"""
    )
    # WHEN rewritten THEN each way runs its own lines, also where it is gone back to
    assert found.complete, found
