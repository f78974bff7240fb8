"""Results of a trainer's method, and entries of results, that the loop around it keeps as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.integration.learners import HERE, PLACES, program
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
NOTE = "its results are kept, and each replay writes to the same memory: keep a clone() at "


def diagnosis_of(text: str, path: Path) -> pgk.Diagnosis:
    """What is said of the learner's step."""
    names = load(text, path)
    return pgk.diagnose(names["learner"].step, names["rows"]())


KEPT = [
    ("kept.append(one.step(rows()))", "loss"),
    ("out = one.step(rows())\nkept.append(out)", "loss"),
    ('out = one.step(rows())\nkept.append(out["loss"])', '{"loss": loss, "k": 3}'),
    ('out = one.step(rows())\nkept.append((k, out["loss"].detach()))', '{"loss": loss, "k": 3}'),
    ('loss = one.step(rows())["loss"]\nkept.append(loss)', '{"loss": loss, "k": 3}'),
    ("for name, v in one.step(rows()).items(): kept.append(v)", '{"loss": loss}'),
    ("out = one.step(rows())\nkept.append(out.loss)", "Out(loss, 3)"),
    ("out = one.step(rows())\nkept.append(out.loss)", "Pair(loss, 3)"),
    ("loss, n = one.step(rows())\nkept.append(loss)", "Pair(loss, 3)"),
    ("out = one.step(rows())\nkept.append(out[0])", "(loss, 3)"),
    ('out = one.step(rows())\nif best is None or out["loss"] < best: best = out["loss"]', '{"loss": loss}'),
    ("out = one.step(rows())\nbest = out if best is None or out < best else best", "loss"),
    ("out = one.step(rows())\nif k == 3: best = out", "loss"),
    ("out = one.step(rows())\nbest = out if best is None else 0.9 * best + 0.1 * out", "loss"),
    ("out = one.step(rows())\nif best is not None: best = 0.9 * best + 0.1 * out\nelse: best = out", "loss"),
]
LEFT = [
    ("out = one.step(rows())\nkept.append(out.clone())", "loss"),
    ("out = one.step(rows())\nkept.append(out.item())", "loss"),
    ('out = one.step(rows())\nkept.append(out["loss"].item())', '{"loss": loss, "k": 3}'),
    ('out = one.step(rows())\nkept.append(out["k"])', '{"loss": loss, "k": 3}'),
    ('out = one.step(rows())\nout = {n: float(v) for n, v in out.items()}\nkept.append(out["loss"])', '{"loss": loss}'),
    ("out = one.step(rows())\nkept.append(out.seen)", "Out(loss, 3)"),
    ("out = one.step(rows())\nkept.append(out.seen)", "Pair(loss, 3)"),
    ("out = one.step(rows())\nkept.append(out[1])", "(loss, 3)"),
    ("out = one.step(rows())\nkept.append(out.shape)", "loss"),
    ("out = one.step(rows())\nif best is None or out < best: best = out.clone()", "loss"),
    ("out = one.step(rows())\nbest = out", "loss"),
    ("best = one.step(rows() if best is None else best)", "self.net.weight * loss"),
    ("out = one.step(rows())\nbest = out.clone() if best is None else 0.9 * best + 0.1 * out", "loss"),
    ("out = one.step(rows())\nif k % 3 == 0:\n    shown = out\n    print(shown)", "loss"),
    ("out = one.step(rows())\nif out < 0.1:\n    best = out\n    break", "loss"),
    ("out = one.step(rows())\nif k > 3: best = out\nelse: best = out * 2", "loss"),
]


@pytest.mark.parametrize(("around", "made"), PLACES)
def test_results_of_a_method_are_known_by_what_its_object_is(around: str, made: str, tmp_path: Path) -> None:
    # GIVEN a loop in a function, whose trainer is made there, by functions, or given to it WHEN the method is diagnosed
    text = program("out = one.step(rows())\nkept.append(out)", around=around, made=made)
    diagnosis = diagnosis_of(text, tmp_path / "program.py")
    # THEN what keeps the results is noted
    assert [n for n in diagnosis.notes if n.startswith(NOTE) and n.endswith("kept.append(out)")], str(diagnosis)


def test_another_object_with_such_a_method_is_not_meant(tmp_path: Path) -> None:
    # GIVEN a loop around the step of another class WHEN diagnosed THEN nothing is noted
    other = "class Walk:\n    def step(self, x): return x * 2\n" + HERE
    text = program("out = one.step(rows())\nkept.append(out)", around=other, made="Walk()")
    assert not diagnosis_of(text, tmp_path / "program.py").notes


@pytest.mark.parametrize(("lines", "result"), KEPT)
def test_parts_of_results_that_are_kept_are_noted(lines: str, result: str, tmp_path: Path) -> None:
    # GIVEN a loop that keeps an entry, an attribute or the best of what a step returns WHEN it is diagnosed
    diagnosis = diagnosis_of(program(lines, result), tmp_path / "program.py")
    # THEN a note says so, at that line
    last = lines.splitlines()[-1].strip()
    assert any(n.startswith(NOTE) and n.endswith(last) for n in diagnosis.notes), str(diagnosis)


@pytest.mark.parametrize(("lines", "result"), LEFT)
def test_copies_numbers_and_what_each_round_has_anew_are_not_noted(lines: str, result: str, tmp_path: Path) -> None:
    # GIVEN copies, what no replay writes, or what ends with its round WHEN diagnosed THEN nothing is said of it
    diagnosis = diagnosis_of(program(lines, result), tmp_path / "program.py")
    assert not any(n.startswith(NOTE) for n in diagnosis.notes), str(diagnosis)
