"""Pinned memory that a graph copies from, and that a program gives another name between replays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
TRAINER = """
class Trainer:
    def __init__(self):
        self.x, self.out = torch.zeros(4, device=device), torch.zeros(4, device=device)
        self.host_x, self.batch = None, {}
    def step(self):
        self.x.copy_(READ, non_blocking=True)
        self.out.copy_(self.x * 2)
    def load(self, x):
        GIVEN
def batch(i):
    return torch.full((4,), float(i)).pin_memory()
def f():
    trainer = Trainer()
    trainer.load(batch(0))
    trainer.step()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        trainer.step()
    log = []
    for i in range(1, 4):
        trainer.load(batch(i))
        graph.replay()
        log.append(trainer.out.sum().item())
    return log
"""
IF_THERE = "`if self.host_x is not None: self.host_x.copy_(x)`, and else `self.host_x = x.clone().pin_memory()`"
MENDED = "if self.host_x is not None: self.host_x.copy_(x)\n        else: self.host_x = x.clone().pin_memory()"
ENTRY = "where `hasattr(self, 'batch')`, `for key, new in ({'x': x}).items(): self.batch[key].copy_(new)`"


def program(given: str, tmp_path: Path, read: str = "self.host_x") -> dict[str, object]:
    """The names of one whose trainer is given its batches so."""
    return load(PRELUDE + TRAINER.replace("GIVEN", given).replace("READ", read), tmp_path / "program.py")


def told(function: object) -> list[tuple[str, str, str]]:
    """What is told of a function: the class, the line, and what to write there."""
    found = pgk.diagnose(function).failures
    return [(f.code, f.frame.text if f.frame else "", f.fix.partition("after   ")[2]) for f in found]


def test_pinned_memory_that_an_attribute_is_given_anew_is_told(tmp_path: Path) -> None:
    # GIVEN a trainer that is handed another pinned batch between replays WHEN diagnosed
    names = program("self.host_x = x", tmp_path)
    # THEN the line that hands it over is told, with words that keep the memory of the capture, pinned
    assert told(names["f"]) == [("stale-input", "self.host_x = x", IF_THERE)]


@pytest.mark.sweep
def test_several_of_one_line_are_kept_together(tmp_path: Path) -> None:
    # GIVEN the same with two attributes that one line gives, both None at first WHEN diagnosed
    given = "self.host_x, self.host_y = x, x"
    text = TRAINER.replace("host_x, self.batch = None, {}", "host_x, self.host_y = None, None")
    text = text.replace("self.x * 2", "self.x + y").replace("READ", "self.host_x").replace("GIVEN", given)
    text = text.replace(
        "        self.out.copy_", "        y = self.host_y.to(device, non_blocking=True)\n        self.out.copy_"
    )
    names = load(PRELUDE + text, tmp_path / "program.py")
    # THEN their words leave the first of both to one line
    both = "`if self.host_x is not None: self.host_x.copy_(x); self.host_y.copy_(x)`, and else "
    both += "`self.host_x, self.host_y = x.clone().pin_memory(), x.clone().pin_memory()`"
    assert told(names["f"]) == [("stale-input", given, both)]


@pytest.mark.sweep
def test_as_its_words_say_it_gives_the_numbers_of_eager_code(tmp_path: Path) -> None:
    # GIVEN the same with these words followed WHEN THEN nothing is told, also of waits: `with graph` waits for all
    names = program(MENDED, tmp_path)
    assert names["f"]() == [8.0, 16.0, 24.0]  # type: ignore[operator]
    assert told(names["f"]) == []


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("given", "read"), [('self.batch["x"] = x', 'self.batch["x"]'), ("self.row = [x]", "self.row[0]")]
)
def test_entries_of_tables_are_told_as_well(given: str, read: str, tmp_path: Path) -> None:
    # GIVEN the same of an entry of a dictionary's, and of a list that is another one WHEN THEN it is told there
    assert [(code, line) for code, line, _ in told(program(given, tmp_path, read)["f"])] == [("stale-input", given)]


@pytest.mark.sweep
def test_a_step_alone_tells_who_gives_its_pinned_memory_anew(tmp_path: Path) -> None:
    # GIVEN the step of such a trainer, alone, beside lines that hand it another batch between replays WHEN diagnosed
    names = program("self.host_x = x", tmp_path)
    trainer = names["Trainer"]()  # type: ignore[operator]
    trainer.load(names["batch"](1))  # type: ignore[operator]
    # THEN it is told where it is read, with the line that gives it another one, as for memory of the device
    read = "self.x.copy_(self.host_x, non_blocking=True)"
    assert told(trainer.step) == [("stale-input", read, "there `self.host_x.copy_(...)` in place of another tensor")]
    # AND nothing is where that line writes it, and gives it one only where it has none
    again = program(MENDED, tmp_path)["Trainer"]()  # type: ignore[operator]
    again.load(names["batch"](1))  # type: ignore[operator]
    assert told(again.step) == []


@pytest.mark.sweep
def test_what_is_set_to_none_in_between_is_another_one_behind_that(tmp_path: Path) -> None:
    # GIVEN the same with a line that takes it away WHEN diagnosed THEN the line that gives the next one is told
    given = f"if i % 2: self.host_x = None\n        {MENDED}"
    text = TRAINER.replace("(self, x)", "(self, x, i=1)").replace("GIVEN", given).replace("READ", "self.host_x")
    names = load(PRELUDE + text, tmp_path / "program.py")
    trainer = names["Trainer"]()
    trainer.load(names["batch"](1))
    assert [code for code, _, _ in told(trainer.step)] == ["stale-input"]


INFERENCE = """
@torch.inference_mode()
def step(x):
    return x * 2
def f():
    host, x, out = torch.zeros(4).pin_memory(), torch.zeros(4, device=device), []
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = step(x)
    for i in range(3):
        host.fill_(float(i))
        x.copy_(host, non_blocking=True)
        graph.replay()
        out.append(READ)
    return out
"""


LATE = pytest.param("y.to('cpu', non_blocking=True)", marks=pytest.mark.sweep)


@pytest.mark.parametrize("read", ["y.cpu()", LATE])
def test_a_copy_of_a_tensor_of_inference_mode_is_seen(read: str, tmp_path: Path) -> None:
    # GIVEN a result made in inference mode, which a loop copies to the host, and fills its buffer again
    names = load(PRELUDE + INFERENCE.replace("READ", read), tmp_path / "program.py")
    # WHEN diagnosed THEN the copy that waits is a wait, and the one that does not is none
    waits = read == "y.cpu()"
    assert [code for code, _, _ in told(names["f"])][:1] == ([] if waits else ["work-elsewhere"])


HELPED = """
class Holder:
    pass
def captured(step):
    step()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        step()
    return graph
def f():
    held, out = Holder(), torch.zeros(4, device=device)
    held.x = torch.zeros(4, device=device)
    def step():
        out.add_(READ)
    graph = captured(step)
    for i in range(3):
        held.x = torch.full((4,), float(i), device=device)
        graph.replay()
    return out.cpu()
"""


@pytest.mark.sweep
@pytest.mark.parametrize(("read", "count"), [("held.x", 1), ("held.x.numel()", 0)])
def test_what_is_given_ahead_of_a_capture_and_what_is_only_measured_is_not_told(
    read: str, count: int, tmp_path: Path
) -> None:
    # GIVEN an object that has a tensor ahead of the helper which captures, and another one ahead of each replay
    names = load(PRELUDE + HELPED.replace("READ", read), tmp_path / "program.py")
    # WHEN diagnosed THEN the line behind the capture alone is told, and none where only its size is asked
    assert [line for _, line, _ in told(names["f"])] == ["held.x = torch.full((4,), float(i), device=device)"] * count
