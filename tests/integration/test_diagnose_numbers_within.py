"""Numbers within the dictionaries, lists and objects that a step is given: a graph keeps those of its capture."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = """import numpy as np
import torch, paramgraph_kit as pgk
device = pgk.device()
x = torch.ones(3, 40, device=device)
given = {}
"""
REQUEST = """from dataclasses import dataclass
@dataclass(frozen=True)
class Request:
    temp: float
    top_k: int
def f(logits, *, req):
    best, at = logits.topk(req.top_k, -1)
    return (best / req.temp).softmax(-1), at
args, given = (x,), {"req": Request(0.7, 5)}
"""
SEVERAL = """def serve():
    for t in (0.7, 1.0):
        f(x, req=Request(t, 5))
"""
WRONG = {
    "a dictionary": (
        (
            'def f(x, opts):\n    y = x * opts["scale"]\n    if opts["relu"]:\n        y = y.relu()\n    return y\n'
            'args = (x, {"scale": 2.0, "relu": True, "name": "a"})\n'
        ),
        {("scalar-frozen", 'y = x * opts["scale"]'), ("branch-frozen", 'if opts["relu"]:')},
    ),
    "a list": (
        "def f(xs, weights):\n    return sum(w * x for w, x in zip(weights, xs))\nargs = ([x, x + 1], [0.5, 0.2])\n",
        {("scalar-frozen", "return sum(w * x for w, x in zip(weights, xs))")},
    ),
    "a number of numpy's": (
        "def f(x, t):\n    return x + t\nargs = (x, np.float64(0.5))\n",
        {("scalar-frozen", "return x + t")},
    ),
    "a batch beside its tensor": (
        'def f(batch):\n    return batch["x"] * batch["by"][0]\nargs = ({"x": x, "by": (0.5, 2)},)\n',
        {("scalar-frozen", 'return batch["x"] * batch["by"][0]')},
    ),
    "an object whose class has the way of another to be made": (
        (
            "class Base:\n    def __init__(self, scale):\n        self.scale = scale\nclass Sampling(Base):\n    pass\n"
            "def f(x, s):\n    return x * s.scale\ndef serve():\n    for t in (0.7, 1.0):\n        f(x, Sampling(t))\n"
            "args = (x, Sampling(0.5))\n"
        ),
        {("scalar-frozen", "return x * s.scale")},
    ),
    "a size that no other call takes beside one that does": (
        (
            "def f(x, opts):\n    return x.view(3, opts['heads'], -1) * opts['scale']\n"
            "args = (x, {'heads': 8, 'scale': 2.0})\n"
        ),
        {("scalar-frozen", "return x.view(3, opts['heads'], -1) * opts['scale']")},
    ),
    "an object of which there are several": (
        REQUEST + SEVERAL,
        {
            ("size-frozen", "best, at = logits.topk(req.top_k, -1)"),
            ("scalar-frozen", "return (best / req.temp).softmax(-1), at"),
        },
    ),
}
RIGHT = {
    "numbers that decide nothing there": (
        "def f(x, meta):\n    if meta['epoch'] < 0:\n        raise ValueError\n    return x * 2\n"
        "args = (x, {'epoch': 3, 'name': 'a'})\n"
    ),
    "words": "def f(x, how):\n    return x.sum() if how['red'] == 'sum' else x\nargs = (x, {'red': 'sum'})\n",
    "lists of tensors": "def f(xs):\n    return sum(xs)\nargs = ([x, x],)\n",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_number_within_an_argument_decides_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a step that reads numbers within its arguments
    text, told = WRONG[name]
    names = load(HEAD + text, tmp_path / "program.py")
    # WHEN it is diagnosed THEN what they decide is frozen, at its lines
    diagnosis = pgk.diagnose(names["f"], *names["args"], **names["given"])
    assert {(f.code, f.frame.text) for f in diagnosis if f.frame} == told, str(diagnosis)


def test_a_single_object_is_only_said_to_have_them(tmp_path: Path) -> None:
    # GIVEN an object among the arguments of which the file makes one, as a configuration is
    names = load(HEAD + REQUEST, tmp_path / "program.py")
    # WHEN it is diagnosed THEN a note says what another one would need
    diagnosis = pgk.diagnose(names["f"], *names["args"], **names["given"])
    assert not diagnosis, str(diagnosis)
    assert any("numbers of the Request among its arguments are frozen" in note for note in diagnosis.notes)


@pytest.mark.parametrize("name", RIGHT)
def test_arguments_that_decide_nothing_raise_no_alarm(name: str, tmp_path: Path) -> None:
    # GIVEN arguments whose numbers reach no kernel WHEN it is diagnosed THEN nothing is found
    names = load(HEAD + RIGHT[name], tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["args"], **names["given"])
    assert not diagnosis, str(diagnosis)


def test_the_words_for_an_entry_keep_it_in_a_tensor(tmp_path: Path) -> None:
    # GIVEN an entry that a line computes with WHEN a fix is asked for
    text = "def f(x, opts):\n    return x * opts['scale']\nargs = (x, {'scale': 2.0})\n"
    names = load(HEAD + text, tmp_path / "program.py")
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN it is a tensor that is filled before each launch
    assert "`scale_in.fill_(opts['scale'])`" in str(fix), str(fix)
