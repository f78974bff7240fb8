"""Results that a loop keeps around a step of an object which it makes: told where the step alone is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.servers import SERVER

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = (
    SERVER
    + """
def work():
    server, servers = Server(), {name: Server() for name in "ab"}
    kept, last = [], None
    LINES
    return kept
"""
)
IN_A_LOOP = "for x in batches():\n    y = server.answer(x)\n    "
KEEPS = {
    "a list": ("for x in batches():\n    kept.append(server.answer(x))", "kept.append(server.answer(x).clone())"),
    "a comprehension": (
        "kept = [server.answer(x) for x in batches()]",
        "kept = [server.answer(x).clone() for x in batches()]",
    ),
    "the one before": (
        f"{IN_A_LOOP}if last is not None:\n        kept.append(y - last)\n    last = y",
        "last = y.clone()",
    ),
    "a part": (f"{IN_A_LOOP}kept.append(y[:, 0])", "kept.append(y[:, 0].clone())"),
    "a list that is added": (
        "for x in batches():\n    kept += [server.answer(x)]",
        "kept += [server.answer(x).clone()]",
    ),
    "a row": (
        "for n, x in enumerate(batches()):\n    kept.append((n, server.answer(x)))",
        "kept.append((n, server.answer(x).clone()))",
    ),
    "a row with names": (
        'for n, x in enumerate(batches()):\n    kept.append({"n": n, "y": server.answer(x)})',
        "kept.append({'n': n, 'y': server.answer(x).clone()})",
    ),
}
NOT_KEPT = {
    "what is picked": f"{IN_A_LOOP}kept.append(y[torch.tensor([0], device=device)])",
    "a row of numbers": "for n, x in enumerate(batches()):\n    kept.append((n, server.answer(x).tolist()))",
    "copies": f"{IN_A_LOOP}kept.append(y.clone())",
    "what is computed of it": f"{IN_A_LOOP}kept.append(y.sum())",
    "one of each object": "for server in servers.values():\n    kept.append(server.answer(batches()[0]))",
    "one of each that is made": "for x in batches():\n    server = Server()\n    kept.append(server.answer(x))",
    "one of each key": "kept = [server.answer(torch.ones(n, 3, device=device)) for n in (1, 2)]",
    "the one before is given to the next": (
        "last = batches()[0]\nfor _ in range(3):\n    y = server.answer(last)\n    last = torch.cat([y, y[:, :1]], 1)"
    ),
}


def _asked(lines: str, path: Path, *, whole: bool = False) -> pgk.Diagnosis:
    names = run(PROGRAM.replace("LINES", lines.replace("\n", "\n    ")), path)
    if whole:
        return pgk.diagnose(names["work"])
    return pgk.diagnose(names["Server"]().answer, names["batches"]()[0])


@pytest.mark.parametrize("title", KEEPS)
def test_the_line_that_keeps_results_of_an_object_that_a_function_makes_is_told(title: str, tmp_path: Path) -> None:
    # GIVEN a function that makes an object, and keeps what its step gives WHEN the step alone is asked
    lines, after = KEEPS[title]
    found = _asked(lines, tmp_path)
    # THEN that line is told, with a copy there
    assert [(f.code, f.fix.partition("after   ")[2]) for f in found.failures] == [("output-alias", after)], found


@pytest.mark.parametrize("title", NOT_KEPT)
def test_results_that_no_other_replay_writes_over_are_none(title: str, tmp_path: Path) -> None:
    # GIVEN one that keeps none, or none that another replay writes over WHEN the step alone is asked
    found = _asked(NOT_KEPT[title], tmp_path)
    # THEN no line is told, and that a result is the graph's own memory is said
    assert not found.failures, found
    assert any(note.endswith("who keeps it needs a clone()") for note in found.notes)


def test_that_the_result_is_the_graphs_own_is_said_beside_another_problem(tmp_path: Path) -> None:
    # GIVEN a step that also keeps the first caller's tensor as its input WHEN it is asked
    text = PROGRAM.replace("held = x.clone()", "held = x").replace("LINES", "pass")
    names = run(text, tmp_path)
    found = pgk.diagnose(names["Server"]().answer, names["batches"]()[0])
    # THEN both are there
    assert [f.title for f in found.failures] == ["A graph's input is the caller's own tensor"], found
    assert any(note.endswith("who keeps it needs a clone()") for note in found.notes), found


@pytest.mark.parametrize("title", ["a list that is added", "a row", "a row with names"])
def test_the_same_words_are_said_of_a_whole_program(title: str, tmp_path: Path) -> None:
    # GIVEN a program that keeps results in a row, or in a list that it adds WHEN it is asked itself
    lines, after = KEEPS[title]
    found = _asked(lines, tmp_path, whole=True)
    # THEN the copy is of the result
    assert [f.fix.partition("after   ")[2] for f in found.failures] == [after], found


METER = """
class Meter:
    def __init__(self):
        self.values, self.low = [], None
    def update(self, value):
        UPDATE
class Trainer:
    def __init__(self):
        self.server, self.meter = Server(), Meter()
    def fit(self):
        for x in batches():
            y = self.server.answer(x)
            self.meter.update(y)
"""
UPDATES = {
    "self.values.append(value)": "self.values.append(value.clone())",
    "self.values.append({'value': value})": "self.values.append({'value': value.clone()})",
    "self.values.append(value.sum())": "",
    "self.values.append(value.clone())": "",
    "self.low = value.min().item()": "",
}


@pytest.mark.parametrize("update", UPDATES)
def test_so_are_results_that_another_object_of_the_loop_keeps(update: str, tmp_path: Path) -> None:
    # GIVEN a loop that gives each result to an object, of which one line tells the class WHEN the step alone is asked
    names = run(PROGRAM.replace("LINES", "pass") + METER.replace("UPDATE", update), tmp_path)
    found = pgk.diagnose(names["Server"]().answer, names["batches"]()[0])
    # THEN the line of its method is told where it keeps them
    after = [UPDATES[update]] if UPDATES[update] else []
    assert [f.fix.partition("after   ")[2] for f in found.failures] == after, found
