"""All problems of a function in one call: planted ones are found at their lines, and sound code raises no alarm."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.doctor.diagnosis import Diagnosis
from paramgraph_kit.doctor.observe.examine import examine
from paramgraph_kit.trace import ParamgraphError
from paramgraph_kit.trace.wording import failure_text
from tests.doctor_programs import PLANTED, SEVEN, SOUND, marked, program
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def found(diagnosis: Diagnosis) -> set[tuple[str, int]]:
    return {(f.code, f.frame.line if f.frame else 0) for f in diagnosis.failures}


def test_seven_planted_problems_are_found_in_one_call_with_their_lines(tmp_path: Path) -> None:
    # GIVEN a function with seven different problems WHEN it is diagnosed once
    names = program(SEVEN, tmp_path / "seven.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    # THEN all are found, at their lines, and nothing else
    assert len(marked(SEVEN)) == len({code for code, _ in marked(SEVEN)}) == 7
    assert found(diagnosis) == marked(SEVEN), str(diagnosis)
    assert {f.frame.file for f in diagnosis.failures if f.frame} == {str(tmp_path / "seven.py")}
    # and it is said in few lines each
    assert all(len(failure_text(f).splitlines()) <= 12 for f in diagnosis.failures)


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_problem_is_found_at_its_line(name: str, tmp_path: Path) -> None:
    # GIVEN one problem WHEN diagnosed THEN it is found there, and it is all that is found
    names = program(PLANTED[name], tmp_path / "planted.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert found(diagnosis) == marked(PLANTED[name]), str(diagnosis)


@pytest.mark.parametrize("name", sorted(SOUND))
def test_sound_code_raises_no_alarm(name: str, tmp_path: Path) -> None:
    # GIVEN code that captures and replays as eager runs WHEN diagnosed THEN nothing is found
    names = program(SOUND[name], tmp_path / "sound.py")
    assert list(pgk.diagnose(names["f"], *names["inputs"])) == []


def test_a_side_stream_is_never_mistaken_for_the_one_that_watches() -> None:
    # GIVEN a stream that is never forked; torch hands out 32 in turn
    side, x = pgk.cuda.Stream(), torch.ones(2, device=DEVICE)

    def f(x: torch.Tensor) -> torch.Tensor:
        with pgk.cuda.stream(side):
            return x * 2

    # WHEN diagnosed more often than that THEN its work is found each time
    assert [pgk.diagnose(f, x).codes for _ in range(34)] == [("work-elsewhere",)] * 34


def training_step() -> tuple[Callable[[torch.Tensor], torch.Tensor], nn.Module, Any]:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, capturable=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step, model, optimizer


@pytest.mark.parametrize("warm", [False, True])
def test_nothing_of_the_caller_changes(warm: bool) -> None:
    # GIVEN a training step that writes parameters, buffers, gradients and an optimizer's state
    step, model, optimizer = training_step()
    x = torch.randn(4, 4, device=DEVICE)
    if warm:
        step(x)
    tensors = [*model.parameters(), *model.buffers(), x]
    copies = [t.detach().clone() for t in tensors]  # not attached: that would keep autograd nodes of this stream
    gradients = [p.grad for p in model.parameters()]
    values = [g.clone() if g is not None else None for g in gradients]
    state = {p: dict(s) for p, s in optimizer.state.items()}
    kept = {p: {k: v.clone() for k, v in s.items()} for p, s in state.items()}
    random.seed(3)
    host, device_state, python = torch.get_rng_state(), pgk.cuda.get_rng_state(), random.getstate()
    stream = pgk.cuda.current_stream()
    # WHEN it is diagnosed
    assert list(pgk.diagnose(step, x)) == []
    # THEN parameters, buffers, inputs and the optimizer's state have the same bits
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))
    assert all(torch.equal(optimizer.state[p][k], v) for p, s in kept.items() for k, v in s.items())
    assert {p: dict(s) for p, s in optimizer.state.items()}.keys() == state.keys()
    # and gradients are the same tensors, with the same bits
    assert all(a is p.grad for a, p in zip(gradients, model.parameters(), strict=True))
    assert all(g is None or torch.equal(g, v) for g, v in zip(gradients, values, strict=True) if v is not None)
    # and so are the random numbers to come, and the stream
    assert torch.equal(torch.get_rng_state(), host)
    assert torch.equal(pgk.cuda.get_rng_state(), device_state)
    assert random.getstate() == python
    assert pgk.cuda.current_stream() == stream
    assert torch.is_grad_enabled()


def test_what_a_random_branch_makes_other_layers_read_is_not_told_again() -> None:
    # GIVEN layers of which each is left out at random
    layers = [torch.nn.Linear(3, 3).to(DEVICE) for _ in range(3)]

    def through(layer: torch.nn.Module, x: torch.Tensor) -> Any:
        if torch.rand(1).item() < 0.5:
            return x
        return layer(x)

    def f(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = through(layer, x)
        return x

    # WHEN diagnosed THEN the branch is the only problem
    with torch.no_grad():
        found = pgk.diagnose(f, torch.ones(2, 3, device=DEVICE))
    assert {failure.frame.text for failure in found.failures if failure.frame} == {"if torch.rand(1).item() < 0.5:"}


def test_numbers_that_a_variable_holds_are_candidates_for_parameters() -> None:
    # GIVEN a number in an outer variable that nothing changes
    scale = 3.0

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * scale

    # WHEN diagnosed THEN it is no problem, but it is named, with the line
    diagnosis = pgk.diagnose(f, torch.ones(2, device=DEVICE))
    assert not diagnosis
    assert len(diagnosis.notes) == 1
    assert diagnosis.notes[0].startswith("candidate for a parameter: scale would be frozen at ")
    assert diagnosis.notes[0].endswith("return x * scale")
    assert scale == 3.0


def test_an_order_that_the_host_draws_and_copies_is_not_said_to_be_the_same() -> None:
    # GIVEN an array of the host's that is shuffled, and picks rows of the device
    def f(x: torch.Tensor) -> torch.Tensor:
        order = np.arange(4)
        np.random.shuffle(order)
        return x[order] * 2

    # WHEN diagnosed THEN the line that draws is told, beside the copy
    diagnosis = pgk.diagnose(f, torch.ones(4, 2, device=DEVICE))
    assert diagnosis.codes == ("cpu-index",)
    (note,) = diagnosis.notes
    assert "np.random.shuffle(order)" in note
    assert "a graph has those of its capture for ever" in note


def test_a_number_that_a_line_does_not_name_is_no_candidate_where_that_is_told_already() -> None:
    # GIVEN a branch by what an object counts, and another number around the function, which decides nothing
    class Average:
        def __init__(self) -> None:
            self.step, self.kept = 0, torch.zeros(2, device=DEVICE)

        def update(self, x: torch.Tensor) -> None:
            if self.step < 4:
                self.kept.copy_(x)
            else:
                self.kept.mul_(0.9).add_(x)
            self.step += 1

    limit, average = 20, Average()

    def f(x: torch.Tensor) -> torch.Tensor:
        assert len(x) < limit
        average.update(x)
        return average.kept.sum()

    # WHEN diagnosed THEN the branch is told, and the number is not said to decide it
    diagnosis = pgk.diagnose(f, torch.ones(2, device=DEVICE))
    assert "branch-frozen" in diagnosis.codes
    assert not diagnosis.notes, diagnosis.notes


def test_gradients_for_somebody_outside_are_noted() -> None:
    # GIVEN a function that makes gradients and leaves them, called in a loop that nobody sees
    p: Any = nn.Parameter(torch.ones(2, device=DEVICE))

    def f(x: torch.Tensor) -> None:
        (p * x).sum().backward()

    # WHEN diagnosed THEN it is no problem, but it is said what would make it one
    diagnosis = pgk.diagnose(f, torch.ones(2, device=DEVICE))
    assert not diagnosis
    (note,) = diagnosis.notes
    assert note.startswith("it makes 1 gradients: a graph fills these very tensors at each replay")
    assert p.grad is None


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def collects(batches: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs = []
    for batch in batches:
        y = doubled(batch)
        outputs.append(y)
    return outputs + [doubled(batch).clone() for batch in batches]


def test_results_that_the_loop_around_keeps_are_noted() -> None:
    # GIVEN a function whose results are kept in one place as they are, and as clones in another
    # WHEN diagnosed THEN the first is noted with its line, and it is no problem of the function
    diagnosis = pgk.diagnose(doubled, torch.ones(2, device=DEVICE))
    assert not diagnosis
    (note,) = diagnosis.notes
    assert note.startswith("its results are kept, and each replay writes to the same memory: keep a clone() at ")
    assert note.endswith("outputs.append(y)")


def test_a_loop_that_is_running_is_seen() -> None:
    # GIVEN a loop that sets the gradient to None, and one of another function and another parameter
    p, q = (nn.Parameter(torch.ones(2, device=DEVICE)) for _ in range(2))
    x = torch.ones(2, device=DEVICE)

    def f(x: torch.Tensor) -> None:
        (p * x).sum().backward()  # type: ignore[no-untyped-call]

    def other(x: torch.Tensor) -> None:
        (q * x).sum().backward()  # type: ignore[no-untyped-call]

    for _ in range(1):
        p.grad = None
        diagnoses = [pgk.diagnose(f, x), pgk.diagnose(other, x)]
        f(x)
        other(x)
    # WHEN diagnosed inside THEN only the one whose gradient it is has a problem, at that line
    assert [d.codes for d in diagnoses] == [("gradients-rebound",), ()]
    assert diagnoses[0].failure.frame is not None
    assert diagnoses[0].failure.frame.text == "p.grad = None"
    assert diagnoses[0].notes == ()


def test_a_number_as_argument_is_frozen_and_said_so() -> None:
    def f(x: torch.Tensor, k: int, mode: str = "a", *, twice: bool = False) -> torch.Tensor:
        y = x * k
        return y * 2 if twice else y

    diagnosis = pgk.diagnose(f, torch.ones(2, device=DEVICE), 3, twice=True)
    assert set(diagnosis.codes) == {"scalar-frozen", "branch-frozen"}
    assert "mul got 3 in one call and 4 in the next (tried other numbers for argument 2 = 3" in str(diagnosis)


def test_what_was_not_looked_at_is_said() -> None:
    import threading

    def with_thread(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        return x + 1

    def generator(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x + 1

    async def coroutine(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    x = torch.ones(2, device=DEVICE)
    said = "it starts threads, and only what they do on the device was looked at"
    assert pgk.diagnose(with_thread, x).notes == (said,)
    for function in (generator, coroutine):
        found = pgk.diagnose(function, x)
        assert found.codes == ("empty-graph",)
        assert found.notes[0].endswith(f"a {function.__name__}, which nothing has run: give what runs it")


def test_a_compiled_part_is_seen_line_by_line_and_still_compiles_afterwards() -> None:
    # GIVEN a function with a compiled part that has not been called yet
    torch._dynamo.reset()

    def part(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y[y > 0]

    compiled = pgk.compile(part)
    x = torch.ones(4, device=DEVICE)
    # WHEN diagnosed THEN the line is the one inside
    failure = pgk.diagnose(lambda: compiled(x)).failure
    assert failure.code == "dynamic-shape"
    assert failure.frame is not None
    assert failure.frame.text == "return y[y > 0]"
    # and afterwards it compiles as if nothing had been
    assert pgk.report(compiled).rows == ()
    compiled(x)
    assert pgk.report(compiled).rows
    torch._dynamo.reset()


def test_where_only_a_library_runs_the_line_is_that_of_the_call() -> None:
    x = torch.ones(2, device=DEVICE)
    failure = pgk.diagnose(torch.nonzero, x).failure
    assert failure.code == "dynamic-shape"
    assert failure.frame is not None
    assert failure.frame.text == "failure = pgk.diagnose(torch.nonzero, x).failure"


def test_where_nothing_of_yours_runs_the_line_is_that_of_the_definition() -> None:
    # GIVEN a function that lacks an argument, and nobody's line around, as in a terminal
    problems = examine(doubled, (), {}, limit_s=5).problems
    # WHEN examined THEN the line is where it begins
    assert [(f.code, f.frame and f.frame.text) for f in problems] == [
        ("raises", "def doubled(x: torch.Tensor) -> torch.Tensor:")
    ]


def test_a_capture_under_way_is_refused_in_one_line() -> None:
    x = torch.ones(2, device=DEVICE)
    with pgk.cuda.graph(pgk.cuda.CUDAGraph()):
        y = x + 1
        with pytest.raises(ParamgraphError, match=r"^diagnose\(fn\) runs fn eagerly, and a capture is under way"):
            pgk.diagnose(lambda: y + 1)


def test_the_whole_text_begins_with_what_was_done() -> None:
    x = torch.ones(2, device=DEVICE)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    text = str(pgk.diagnose(f, x))
    assert text.startswith("test_the_whole_text_begins_with_what_was_done.<locals>.f: no problems (2 calls on ")
    assert repr(pgk.diagnose(f, x)) == "Diagnosis(0 problems)"


def test_every_line_that_gives_a_parameter_other_memory_is_told() -> None:
    # GIVEN weights that are merged and restored by exchanging their memory, and one that is exchanged and put back
    weight, other = nn.Parameter(torch.ones(3, device=DEVICE)), nn.Parameter(torch.ones(3, device=DEVICE))

    def merged(x: torch.Tensor) -> torch.Tensor:
        weight.data = weight.data + 1.0
        y = x * weight
        weight.data = weight.data - 1.0
        return y

    def swapped(x: torch.Tensor) -> torch.Tensor:
        before = weight.data
        weight.data = other.data
        y = x * weight
        weight.data = before
        return y

    def weighted(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        torch.autograd.backward((x * weight).sum())
        gradient = weight.grad
        assert gradient is not None
        assert weight.grad is not None
        gradient.data = gradient.data * 2.0
        weight.grad.data = weight.grad.data * 0.5
        weight.data = weight.data - weight.grad
        return x * weight

    x = torch.ones(3, device=DEVICE)
    # WHEN diagnosed THEN both lines of the first are told, once each, nothing of the second, and no gradient's
    found = pgk.diagnose(merged, x)
    assert found.codes == ("parameter-rebound",) * 2, str(found)
    lines = [f.frame.text for f in found if f.frame]
    assert lines == ["weight.data = weight.data + 1.0", "weight.data = weight.data - 1.0"]
    assert not pgk.diagnose(swapped, x), str(pgk.diagnose(swapped, x))
    told = [f.frame.text for f in pgk.diagnose(weighted, x) if f.frame and f.code == "parameter-rebound"]
    assert told == ["weight.data = weight.data - weight.grad"]


def test_a_value_computed_on_the_cpu_from_outside_is_frozen() -> None:
    # GIVEN a number in decibels that stays on the CPU, where a knob moves it, and is computed with there
    gain = torch.tensor(-20.0)

    def turn(by: float) -> None:
        gain.add_(by)

    def louder(x: torch.Tensor) -> torch.Tensor:
        target = 10 ** (gain / 20)
        return x * target

    # WHEN diagnosed THEN it is frozen where it meets the device
    turn(0.0)
    found = pgk.diagnose(louder, torch.ones(2, device=DEVICE))
    assert [(f.code, f.frame.text) for f in found if f.frame] == [("cpu-scalar-frozen", "return x * target")]
