"""What a function changes in Python is told at its line, goes on from call to call, and is put back."""

from __future__ import annotations

import argparse
import io
import json
import queue
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def test_what_the_function_changes_in_python_is_put_back() -> None:
    # GIVEN a function that counts, collects and exchanges
    names: dict[str, Any] = {"count": 0, "log": [], "table": {"a": 1}}

    def f(x: torch.Tensor) -> torch.Tensor:
        names["count"] += 1
        names["log"].append(names["count"])
        names["table"]["b"] = 2
        return x * 2

    # WHEN diagnosed THEN each is told, and afterwards all is as before
    diagnosis = pgk.diagnose(f, torch.ones(2, device=DEVICE))
    assert set(diagnosis.codes) == {"host-counter"}
    assert names == {"count": 0, "log": [], "table": {"a": 1}}


def test_what_namespaces_and_classes_hold_is_put_back() -> None:
    # GIVEN a function that counts in namespaces, and collects in what a class holds
    class Log:
        losses: ClassVar[list[int]] = []

    state, options = SimpleNamespace(count=0), argparse.Namespace(count=0)

    def f(x: torch.Tensor) -> torch.Tensor:
        state.count += 1
        options.count += 1
        Log.losses.append(3)
        return x * 2

    # WHEN diagnosed THEN that is told, and afterwards all is as before
    assert set(pgk.diagnose(f, torch.ones(2, device=DEVICE)).codes) == {"host-counter"}
    assert (state.count, options.count, Log.losses) == (0, 0, [])


def test_a_number_that_is_counted_is_not_told_as_drawn() -> None:
    # GIVEN a step that draws one number and counts another one, both of which lie between zero and one
    names: dict[str, Any] = {"step": 3}

    def f(x: torch.Tensor) -> torch.Tensor:
        lam = random.random()
        rate = 1.0 / names["step"]
        names["step"] += 1
        y = x * rate
        z: torch.Tensor = y * lam
        return z

    # WHEN diagnosed THEN each is told as what it is, at its line
    found = {
        each.code: each.frame.text for each in pgk.diagnose(f, torch.ones(2, device=DEVICE)).failures if each.frame
    }
    assert found["scalar-frozen"] == "y = x * rate"
    assert found["host-random"] == "z: torch.Tensor = y * lam"


def test_a_counter_of_the_cpu_goes_on_from_call_to_call_and_is_put_back() -> None:
    # GIVEN a function whose second call does what its first does not, and counts them in a tensor of the CPU
    count = torch.zeros((), dtype=torch.long)

    def f(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x * count.to(x.device) if count > 1 else x

    # WHEN diagnosed THEN what the later calls do is told too, and the counter stands where it stood
    diagnosis = pgk.diagnose(f, torch.ones(2, device=DEVICE))
    assert set(diagnosis.codes) >= {"host-counter", "copy-to-gpu"}, str(diagnosis)
    assert count == 0


def test_what_a_slow_counter_decides_is_told() -> None:
    # GIVEN a size and a number that a counter moves once in many calls
    state = {"calls": 0}

    def size() -> int:
        return 2 + state["calls"] // 5

    def f(x: torch.Tensor) -> torch.Tensor:
        state["calls"] += 1
        y = x * (1 + state["calls"] // 6)
        return y[: size()].sum()

    # WHEN diagnosed THEN both are told, and the counter is put back
    diagnosis = pgk.diagnose(f, torch.ones(9, device=DEVICE))
    assert set(diagnosis.codes) == {"host-counter", "scalar-frozen", "size-frozen"}, str(diagnosis)
    assert state == {"calls": 0}


class Counting:
    """What functions here count in."""

    def __init__(self) -> None:
        self.count = 0


@pytest.mark.parametrize(
    "line",
    [
        "setattr(state, 'count', state.count + 1)",
        "setattr(state, name, getattr(state, name) + 1)",
        "vars(state)['count'] += 1",
        "state.__dict__['count'] += 1",
        "globals()['total'] += 1",
    ],
)
def test_a_counter_that_is_set_by_its_name_is_told_at_its_line(line: str, tmp_path: Path) -> None:
    # GIVEN a function that counts in an attribute or a global variable by its name
    file = tmp_path / "counts.py"
    file.write_text(f"def f(x):\n    {line}\n    return x * (2 if total is None else 2)\n")
    names: dict[str, Any] = {"state": Counting(), "name": "count", "total": 0}
    exec(compile(file.read_text(), str(file), "exec"), names)
    # WHEN diagnosed THEN that line is told, and the counter is put back
    found = pgk.diagnose(names["f"], torch.ones(2, device=DEVICE))
    assert found.codes == ("host-counter",), str(found)
    assert found.failure.frame is not None
    assert found.failure.frame.line == 2
    assert (names["state"].count, names["total"]) == (0, 0)


def test_what_is_written_to_files_and_queues_is_told() -> None:
    # GIVEN a log in memory, a file's writer and a queue WHEN a function writes to them
    log, metrics = io.StringIO(), queue.Queue[torch.Tensor]()

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        log.write("one step\n")
        json.dump({"step": 1}, log)
        metrics.put(y)
        return y

    found = pgk.diagnose(step, torch.ones(2, device=DEVICE))
    # THEN each is told, and put back
    assert [(f.code, f.frame.text) for f in found if f.frame] == [
        ("host-counter", 'log.write("one step\\n")'),
        ("output-alias", "metrics.put(y)"),
    ]
    assert (log.getvalue(), metrics.qsize(), metrics.unfinished_tasks) == ("", 0, 0)


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("torch.full((5,), random.randrange(100), device=x.device)", "host-random"),
        ("x.new_full((5,), random.random())", "host-random"),
        ("torch.full((5,), state.count, device=x.device)", "scalar-frozen"),
        ("torch.full((5, state.count), 2.0, device=x.device).sum(1)", "size-frozen"),
    ],
)
def test_another_value_in_a_tensor_of_the_same_size_is_no_size(made: str, code: str, tmp_path: Path) -> None:
    # GIVEN a function that counts, and fills a tensor with what it counts or draws, or makes one of that size
    text = (
        "import random, types\nimport torch\nstate = types.SimpleNamespace(count=0)\ndef f(x):\n"
        f"    state.count += 1\n    y = {made}\n    return x + y\n"
    )
    (tmp_path / "filled.py").write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(tmp_path / "filled.py"), "exec"), names)
    # WHEN diagnosed THEN it is told as what it is, at its line
    found = pgk.diagnose(names["f"], torch.ones(5, device=DEVICE))
    assert [f.code for f in found if f.frame and f.frame.line == 6] == [code]


OPTIMIZER = """
import torch
class Own(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if len(state) == 0:
                state["t"] = 0
            state["t"] += 1
            if state["t"] >= 40:
                p.mul_(0.5)
            p.sub_(p.grad / (1 + state["t"]))
def f(x):
    opt.zero_grad()
    (x * w).sum().backward()
    opt.step()
"""


@pytest.mark.parametrize("called", ["state", "mine"])
def test_what_an_optimizer_of_your_own_counts_is_told_with_what_it_decides(called: str, tmp_path: Path) -> None:
    # GIVEN an optimizer that makes its state in its first step, counts there, and does more from the 40th step on
    file = tmp_path / "own.py"
    file.write_text(OPTIMIZER.replace("state[", f"{called}[").replace(f"self.{called}", "self.state"))
    file.write_text(file.read_text().replace("state = self", f"{called} = self").replace("len(state", f"len({called}"))
    names: dict[str, Any] = {"__name__": "own"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    names["w"] = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    names["opt"] = names["Own"]([names["w"]], {"lr": 0.1})
    # WHEN diagnosed THEN the count is told, the branch and the number too, and its state is as before
    found = pgk.diagnose(names["f"], torch.ones(2, device=DEVICE))
    told = [(f.code, f.frame.line) for f in found if f.frame]
    assert told == [("host-counter", 10), ("branch-frozen", 11), ("scalar-frozen", 13)], str(found)
    assert not names["opt"].state


def test_an_early_return_is_told_rather_than_what_comes_after_the_call(tmp_path: Path) -> None:
    # GIVEN an average that is left as it is every other time, and a choice in the line behind its call
    file = tmp_path / "average.py"
    file.write_text(
        "def update():\n"
        "    count['n'] += 1\n"
        "    if count['n'] % 2:\n"
        "        return\n"
        "    for p in params:\n"
        "        p.mul_(0.5)\n"
        "def f(x):\n"
        "    y = x * 2\n"
        "    update()\n"
        "    return y.sum() if last is None else y.mean()\n"
    )
    names: dict[str, Any] = {"count": {"n": 0}, "last": None, "params": [torch.ones(2, device=DEVICE)]}
    exec(compile(file.read_text(), str(file), "exec"), names)
    # WHEN diagnosed THEN the test that leaves is what has decided
    found = pgk.diagnose(names["f"], torch.ones(2, device=DEVICE))
    assert [(f.code, f.frame.line) for f in found if f.frame] == [("host-counter", 2), ("branch-frozen", 3)], str(found)


def test_what_a_flag_on_the_device_decides_in_later_calls_is_told_too_and_put_back() -> None:
    # GIVEN an average that begins with a copy, asks the device whether it has begun, and counts there what comes later
    net = torch.nn.Linear(2, 2).to(DEVICE)
    average = torch.nn.Linear(2, 2).to(DEVICE)
    steps = torch.tensor(0, device=DEVICE)
    with torch.no_grad():
        average.weight.zero_()

    @torch.no_grad()
    def f() -> None:
        if steps == 0:
            average.weight.copy_(net.weight)
        elif steps % 2 == 0:
            average.weight.lerp_(net.weight, 1 / float(steps + 1))
        steps.add_(1)

    # WHEN diagnosed THEN what each call asks is told, also that which no first call comes to
    found = [each.frame.text for each in pgk.diagnose(f).failures if each.frame]
    assert found == [
        "if steps == 0:",
        "elif steps % 2 == 0:",
        "average.weight.lerp_(net.weight, 1 / float(steps + 1))",
    ]
    # and afterwards nothing has been counted, and the average is what it was
    assert steps.item() == 0
    assert not average.weight.any()


@pytest.mark.parametrize(
    ("calls", "told"),
    [(0, ("branch-frozen", "rate = 0.1 if calls < 5 else 1.0")), (9, ("scalar-frozen", "return x * rate"))],
)
def test_a_number_that_is_given_decides_once_it_has_come_to_another(calls: int, told: tuple[str, str]) -> None:
    # GIVEN a step that is given its number, begins something at the fifth, and refuses a thousandth
    def f(x: torch.Tensor, calls: int) -> torch.Tensor:
        if calls > 1000:
            raise ValueError
        rate = 0.1 if calls < 5 else 1.0
        return x * rate

    # WHEN diagnosed THEN the branch is told before that, and what it decides behind, as it may be given a lower one;
    # the refusal never
    found = [each for each in pgk.diagnose(f, torch.ones(2, device=DEVICE), calls).failures if each.frame]
    assert [(each.code, each.frame.text) for each in found if each.frame] == [told]


def test_a_branch_that_reads_back_now_and_then_is_told_however_it_reads() -> None:
    # GIVEN a report in every fourth call, as in the first, by `float()`, and one of the host's count alone
    state: dict[str, Any] = {"n": 0, "total": torch.zeros((), device=DEVICE)}

    def f(x: torch.Tensor) -> torch.Tensor:
        state["total"].add_(x.mean())
        if state["n"] % 4 == 0:
            print("loss", float(state["total"]))
        if state["n"] % 5 == 0:
            print("count", state["n"])
        state["n"] += 1
        return x * 2

    # WHEN diagnosed THEN the branch and what it reads back are told, and nothing of the other
    found = pgk.diagnose(f, torch.ones(2, device=DEVICE))
    lines = {(failure.code, failure.frame.text) for failure in found if failure.frame}
    assert ("branch-frozen", 'if state["n"] % 4 == 0:') in lines, found
    assert ("sync-item", 'print("loss", float(state["total"]))') in lines, found
    assert not any("% 5" in text or "count" in text for _, text in lines), found


def test_what_only_the_first_call_draws_and_counts_as_the_device_has_it_is_told() -> None:
    # GIVEN a state that is drawn anew where it has run out, which a helper does, as in the first call alone; one other
    # thing is made by the first call once, for no reason of the device's
    class Filter:
        def __init__(self) -> None:
            self.left, self.drawn, self.made = torch.zeros(4, device=DEVICE), 0, 0
            self.table: Any = None

        def again(self) -> None:
            self.left = torch.full_like(self.left, 9) + random.random()
            self.drawn += 1

        def step(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.ones(4, device=DEVICE)
                self.made += 1
            if self.left.sum() < 1:
                self.again()
            self.left = self.left - 0.1 * self.table
            return x * self.left

    # WHEN diagnosed THEN what the branch draws and counts is told beside it, and not what is made once
    found = pgk.diagnose(Filter().step, torch.ones(4, device=DEVICE))
    lines = {(failure.code, failure.frame.text) for failure in found if failure.frame}
    assert ("host-random", "self.left = torch.full_like(self.left, 9) + random.random()") in lines, found
    assert ("host-counter", "self.drawn += 1") in lines, found
    assert not any("self.made" in text for _, text in lines), found


def test_a_loop_of_as_many_rounds_is_not_told_where_a_branch_in_it_took_other_ways() -> None:
    # GIVEN rounds that a value of the device decides in, and one more that it ends, both by a number that moves
    class Ring:
        def __init__(self) -> None:
            self.spins, self.rate = torch.ones(6, device=DEVICE), 2.0

        def sweep(self, x: torch.Tensor) -> torch.Tensor:
            for i in range(6):
                flipped = self.spins.clone()
                flipped[i] = -flipped[i]
                delta = (flipped * x).sum() - (self.spins * x).sum()
                if delta < 0 or x[i].abs() < torch.exp(-delta / self.rate):
                    self.spins = flipped
            self.rate *= 0.5
            return self.spins * 1

    def ended(x: torch.Tensor, rate: float) -> torch.Tensor:
        for _ in range(9):
            x = x * rate
            if x.sum() < 1:
                break
        return x

    # WHEN diagnosed THEN the branches are told, and none of the loops
    x = torch.tensor([0.5, -0.4, 0.3, 0.2, -0.6, 0.1], device=DEVICE)
    for f, args in ((Ring().sweep, (x,)), (ended, (x.abs() * 4, 0.7))):
        found = pgk.diagnose(f, *args)
        texts = {failure.frame.text for failure in found if failure.frame}
        assert any(text.startswith("if ") for text in texts), found
        assert not any(text.startswith("for ") for text in texts), found


def test_a_number_that_decides_whether_gradients_have_a_graph_is_told_where_it_is_given() -> None:
    # GIVEN a step of meta learning that takes second derivatives from its third call on
    w, calls = torch.ones(2, device=DEVICE, requires_grad=True), [0]

    def f(x: torch.Tensor) -> torch.Tensor:
        second, fast = calls[0] >= 2, w
        for _ in range(2):
            (grad,) = torch.autograd.grad((x * fast.sin()).sum(), fast, create_graph=second)
            fast = fast - 0.1 * grad
        (x * fast).sum().backward()  # type: ignore[no-untyped-call]
        calls[0] += 1
        return fast.detach()

    # WHEN diagnosed THEN the line is the one that is given it, and no loop, whose rounds are as many as ever
    diagnosis = pgk.diagnose(f, torch.ones(2, device=DEVICE))
    told = [failure.frame.text for failure in diagnosis if failure.code == "branch-frozen" and failure.frame]
    assert len(told) == 1, told
    assert "create_graph=second" in told[0]
