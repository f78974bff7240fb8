"""What lines around a step set by ways of Python's: either of two methods, by a name, through a class, in a loop."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.integration.test_diagnose_set_by_loops import HEAD
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """
class Conf: pass
cfg = Conf()
cfg.scale, cfg.shown = 1.0, 0
TABLE = {"gain": 1.0, "seen": 0}
B = 0.5
model, other = net(), net()
opt = adam(model)
def train_step(x, y):
    loss = F.cross_entropy(model(x), y) * cfg.scale * TABLE["gain"] + B
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
def pick(k): return input()
def main():
    for k, (x, y) in enumerate(rows()):
        INSIDE
        train_step(x, y)
f = train_step
"""
MODE = "model[1].training"
TOLD = {
    'globals()["B"] = 0.1 * k': "B",
    "globals().update(B=0.1 * k)": "B",
    "model.eval() if k > 2 else model.train()": MODE,
    "k > 2 and model.eval()": MODE,
    "(model.eval if k > 2 else model.train)()": MODE,
    "{True: model.eval, False: model.train}[k > 2]()": MODE,
    'getattr(model, "eval" if k > 2 else "train")()': MODE,
    'getattr(model, ("train", "eval")[k % 2])()': MODE,
    'name = "eval"; k < 2 or getattr(model, name)()': MODE,
    "nn.Module.train(model, k < 2)": MODE,
    "if k > 1: torch.nn.Module.eval(model)": MODE,
    "opt.__init__(model.parameters(), lr=0.1)": "the state of opt",
    'for n, v in {"scale": 0.1 * k, "shown": k}.items(): setattr(cfg, n, v)': "cfg.scale",
    'for n, v in (("scale", 0.1 * k), ("shown", k)): setattr(cfg, n, v)': "cfg.scale",
    'for n in ("scale", "shown"): setattr(cfg, n, 0.1 * k)': "cfg.scale",
}
NOTED = {
    "getattr(model, pick(k))()": "model",
    "setattr(cfg, pick(k), 0.1 * k)": "cfg.scale",
    "for n, v in pick(k).items(): setattr(cfg, n, v)": "cfg.scale",
    "vars(cfg).update(pick(k))": "cfg.scale",
    "cfg.__dict__[pick(k)] = 0.1 * k": "cfg.scale",
    "TABLE.update(pick(k))": "TABLE['gain']",
}
RIGHT = (
    'globals()["C"] = 0.1 * k',
    "other.eval() if k > 2 else model.train()",
    "k > 2 and model.train()",
    "(other.eval if k > 2 else other.train)()",
    "(model.train if k > 2 else model.train)()",
    "getattr(other, pick(k))()",
    'getattr(model, "train")()',
    "nn.Module.train(other, k < 2)",
    "nn.Module.eval(model); model(x); nn.Module.train(model)",
    'for n, v in {"shown": k}.items(): setattr(cfg, n, v)',
    'for n in ("shown", "seen"): setattr(cfg, n, 0.1 * k)',
    "setattr(other, pick(k), 0.1 * k)",
    'TABLE.update({"seen": k}); TABLE["seen"] = k',
)
UNKNOWN = "is not followed"


def _diagnosed(inside: str, at: Path) -> pgk.Diagnosis:
    names = load(HEAD + PROGRAM.replace("INSIDE", inside), at / "program.py")
    return pgk.diagnose(names["f"], *names["inputs"])


@pytest.mark.parametrize("inside", TOLD)
def test_what_a_loop_sets_in_other_words_is_told_at_its_line(inside: str, tmp_path: Path) -> None:
    # GIVEN a step, and a line around it that sets what it reads WHEN it is diagnosed
    diagnosis = _diagnosed(inside, tmp_path)
    # THEN what is set is told, with that line, and nothing is said not to be followed
    told = [f.message for f in diagnosis if f"{TOLD[inside]} is set between calls, at" in f.message]
    assert len({f.message for f in diagnosis}) == len(told) == 1, str(diagnosis)
    assert inside.rpartition("; ")[2] in told[0] or inside.partition(": ")[2] in told[0]
    assert not any(UNKNOWN in note for note in diagnosis.notes), str(diagnosis)


@pytest.mark.parametrize("inside", NOTED)
def test_what_no_text_tells_is_noted_at_its_line_if_the_step_reads_it(inside: str, tmp_path: Path) -> None:
    # GIVEN a line that sets something of what the step reads, by a name that only a run knows
    diagnosis = _diagnosed(inside, tmp_path)
    # WHEN it is diagnosed THEN that is noted with the line, and with what of it the step reads
    noted = [note for note in diagnosis.notes if UNKNOWN in note]
    assert not diagnosis, str(diagnosis)
    assert len(noted) == 1, str(diagnosis)
    assert f"`{NOTED[inside]}`" in noted[0], noted


@pytest.mark.parametrize("inside", RIGHT)
def test_what_a_loop_sets_in_other_words_and_no_step_reads_is_not_told(inside: str, tmp_path: Path) -> None:
    # GIVEN the same of what the step does not read, or as it is WHEN it is diagnosed THEN nothing is told nor noted
    diagnosis = _diagnosed(inside, tmp_path)
    assert not diagnosis, str(diagnosis)
    assert not any(UNKNOWN in note for note in diagnosis.notes), str(diagnosis)
