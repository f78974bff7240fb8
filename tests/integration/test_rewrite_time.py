"""A question of a fix ends in time, with the best that was found, and says what was not tried."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe import limit, one_call
from paramgraph_kit.doctor.observe.limit import TimeUp, at_most
from paramgraph_kit.driver import work
from paramgraph_kit.driver.work import unhindered_s
from paramgraph_kit.rewrite import round_loaders, round_within, truths
from paramgraph_kit.rewrite.proving.proof import STEPS, Prover
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.truths import LINES, ROUNDS, Known
from paramgraph_kit.verbs import _pieces
from tests.integration.rewritten import run
from tests.programs.running import quiet

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")

EPOCH = """
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
xs = [torch.randn(3, 4) for _ in range(3)]
losses = []
def fetch(n):
    return xs[n % 3].to(device)
def evaluate():
    total = 0.0
    for n in range(2):
        total += net(fetch(n)).mean().item()
    return total
args = (3,)
def f(rounds):
    x = fetch(0)
    for n in range(rounds):
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        x = fetch(n)
        losses.append(loss.item())
    return evaluate()
"""


@pytest.mark.sweep
def test_a_question_without_time_ends_with_words_that_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # GIVEN a loop that trains, of which one round can be a graph, and no time for anything
    for name in ("LIMIT_S", "FIRST_S", "LEAST_S"):
        monkeypatch.setattr(truths, name, -1.0)
    names = run(EPOCH, tmp_path)
    # WHEN its fix is asked for THEN nothing is said to be whole, and what was left out is told
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.codes
    fix: Any = found.fix
    assert not fix.complete
    assert any(f"left are {ROUNDS} and {LINES}" in note for note in found.notes), found.notes


def test_lines_leave_time_to_the_rounds_that_are_tried_last(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a question of which everything so far has taken all of its time
    clock = [100.0]
    monkeypatch.setattr(truths, "worked_s", lambda: clock[0])
    known = Known()
    known.begin(LINES)
    assert not known.is_late()
    clock[0] += truths.FIRST_S + 1
    assert known.is_late()
    clock[0] += 30.0
    # WHEN rounds are tried THEN they have the least that each has, in functions that are called, too, and no more
    known.begin(ROUNDS, last=True)
    assert not known.further().is_late()
    clock[0] += truths.LEAST_S + 1
    assert known.further().is_late()
    assert LINES in known.told()[0]
    assert ROUNDS in known.told()[0]


@pytest.mark.parametrize(("hindered", "worked"), [(7.6, 1.0), (0.0, 2.0)])
def test_what_others_take_of_the_machine_is_neither_work_nor_waiting(
    hindered: float, worked: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN eight seconds of which this process ran one, as others had the cores, or as it waited for a file
    then = [time.monotonic(), time.process_time()]
    monkeypatch.setattr(work, "_at", tuple(then))
    monkeypatch.setattr(work, "_hindered", {threading.get_native_id(): 3.0})
    monkeypatch.setattr(work, "hindered_s", lambda thread: 3.0 + hindered)
    clock = SimpleNamespace(monotonic=lambda: then[0] + 8.0, process_time=lambda: then[1] + 1.0)
    before = work._worked
    monkeypatch.setattr(work, "time", clock)
    # WHEN asked how long it has worked THEN what it waited for counts in part, and what others had not at all
    assert work.worked_s() - before == pytest.approx(worked)


@pytest.mark.sweep
def test_what_a_function_calls_is_looked_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # GIVEN a function with a loop, and another one that it calls, of which rounds are asked for of loaders, and others
    names = run(EPOCH, tmp_path)
    runs: list[str] = []

    def noted(plain: Any) -> Any:
        def call(*given: Any) -> Any:
            runs.append(plain.__name__)
            return plain(*given)

        return call

    for module, name in ((round_within, "_first_calls"), (round_loaders, "_held")):
        monkeypatch.setattr(module, name, noted(getattr(module, name)))
    # WHEN its fix is asked for THEN it is not run for each of these anew
    with quiet():
        pgk.diagnose(names["f"], *names["args"], fix=True)
    assert runs.count("_first_calls") == 1, runs
    assert runs.count("_held") <= 1, runs


def test_who_watches_a_function_that_trains_sees_one_run_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function that trains, of which several runs tell how far roundings lead
    device = pgk.device()
    net, x = torch.nn.Linear(2, 1, device=device), torch.ones(3, 2, device=device)
    watches, steps, step = [False], {True: 0, False: 0}, Prover._step

    def f(x: torch.Tensor) -> torch.Tensor:
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()  # type: ignore[no-any-return]

    @contextmanager
    def watched() -> Iterator[None]:
        watches[0] = True
        yield
        watches[0] = False

    def counted(prover: Prover, *given: Any) -> Any:
        steps[watches[0]] += 1
        return step(prover, *given)

    monkeypatch.setattr(Prover, "_step", counted)
    # WHEN its truth is looked for, and asked for again THEN a hook on each call is there in one run each time
    known, prover = Known(), Prover(f, (x,), {})
    known.truth_of(prover, watched)
    assert steps[True] == STEPS
    assert steps[False] >= 2 * STEPS
    known.truth_of(prover.anew(), watched)
    assert steps[True] == 2 * STEPS


def test_pieces_of_what_has_too_many_operations_are_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function that is known to do more than anybody waits for WHEN pieces are asked for THEN it is not run
    known = Known()
    known.operations = [_pieces.MOST_OPERATIONS, 1]
    calls = list[int]()
    assert not _pieces.in_pieces(lambda x: calls.append(x), (1,), {}, Rewriting("f"), known)
    assert not calls


def forever() -> None:
    while True:
        pass


def test_a_loaded_machine_ends_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a call in which others have all cores: by a clock it takes too long WHEN it has a limit THEN it is not ended
    begun = unhindered_s()
    monkeypatch.setattr(limit, "AGAIN_S", 0.01)
    monkeypatch.setattr(limit, "unhindered_s", lambda *_: begun)

    with at_most(0.005, lambda frame: True):
        for _ in range(5):
            sum(range(200_000))
    # AND it is where the time was its own
    monkeypatch.setattr(limit, "unhindered_s", unhindered_s)
    with pytest.raises(TimeUp), at_most(0.005, lambda frame: True):
        forever()


def test_a_loop_that_another_reading_never_ends_has_not_all_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a loop of the host's that ends with what is read now, and with nothing else
    monkeypatch.setattr(one_call, "LED_S", 0.05)
    monkeypatch.setattr(one_call, "TIMES", 0)

    def f(x: torch.Tensor) -> torch.Tensor:
        n = int((x > 0).sum())
        while n != 8:
            pass
        return x * n

    # WHEN it is diagnosed THEN a call that reads another value is ended soon, and what it reads is told all the same
    begun = unhindered_s()
    assert pgk.diagnose(f, torch.ones(8, device=pgk.device())).codes[0] == "sync-item"
    assert unhindered_s() - begun < 15.0
