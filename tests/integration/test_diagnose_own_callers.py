"""Graphs whose input is the tensor of the call that captured: each later call writes over what its caller has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
RUNNER = """
import torch
import paramgraph_kit as pgk

class Runner:
    def __init__(self):
        self.net, self.graphs, self.graph = torch.nn.Linear(4, 2).to(pgk.device()).eval(), {}, None

    @torch.no_grad()
    def by_shape(self, x):
        key = tuple(x.shape)
        if key not in self.graphs:
            static_in = LINE
            self.net(static_in)
            g = pgk.cuda.CUDAGraph()
            with pgk.cuda.graph(g):
                static_out = self.net(static_in)
            self.graphs[key] = (g, static_in, static_out)
        g, static_in, static_out = self.graphs[key]
        static_in.copy_(x)
        g.replay()
        return static_out.clone()

    @torch.no_grad()
    def one(self, x):
        if self.graph is None:
            self.static_in = LINE
            self.net(self.static_in)
            self.graph = pgk.cuda.CUDAGraph()
            with pgk.cuda.graph(self.graph):
                self.static_out = self.net(self.static_in)
        else:
            self.static_in.copy_(x)
        self.graph.replay()
        return self.static_out.clone()

    @torch.no_grad()
    def prepared(self, buffer):
        self.static_in = buffer
        self.net(self.static_in)
        self.graph = pgk.cuda.CUDAGraph()
        with pgk.cuda.graph(self.graph):
            self.static_out = self.net(self.static_in)

runner = Runner()
inputs = [torch.rand(3, 4).to(pgk.device()) for _ in range(3)]
"""


@pytest.mark.parametrize("method", ["by_shape", "one"])
@pytest.mark.parametrize("asked", ["first", "later"])
def test_the_line_that_takes_the_callers_tensor_is_told(method: str, asked: str, tmp_path: Path) -> None:
    # GIVEN a call that captures what it is given, and copies the input of later calls there
    names = load(RUNNER.replace("LINE", "x"), tmp_path / "program.py")
    run = getattr(names["runner"], method)
    if asked == "later":
        run(names["inputs"][0])
    # WHEN it is diagnosed, before its capture or behind it
    found = pgk.diagnose(run, names["inputs"][1])
    # THEN its one problem is that line, and a copy is what is said
    assert [f.title for f in found.failures] == ["A graph's input is the caller's own tensor"], found
    assert "static_in = x.clone()" in found.failures[0].fix
    assert "static_in = x" in found.failures[0].frame.text  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["by_shape", "one"])
@pytest.mark.parametrize("asked", ["first", "later"])
def test_a_copy_of_the_input_is_no_problem(method: str, asked: str, tmp_path: Path) -> None:
    # GIVEN the same with a tensor of its own
    names = load(RUNNER.replace("LINE", "x.clone()"), tmp_path / "program.py")
    run = getattr(names["runner"], method)
    if asked == "later":
        run(names["inputs"][0])
    # WHEN it is diagnosed
    found = pgk.diagnose(run, names["inputs"][1])
    # THEN nothing is told
    assert not found.failures, found


def test_a_buffer_that_is_given_to_a_function_which_only_captures_is_no_problem(tmp_path: Path) -> None:
    # GIVEN a method that is given the buffer which its graph is to read, and one that copies each input there
    names = load(RUNNER.replace("LINE", "x.clone()"), tmp_path / "program.py")
    names["runner"].prepared(torch.zeros(3, 4).to(pgk.device()))
    # WHEN the latter is diagnosed
    found = pgk.diagnose(names["runner"].one, names["inputs"][1])
    # THEN nothing is told
    assert not found.failures, found


CALLABLE = """
import functools
import torch
import paramgraph_kit as pgk

class Runner:
    def __init__(self):
        self.net, self.graph = torch.nn.Linear(4, 2).to(pgk.device()).eval(), None

    @torch.no_grad()
    def __call__(self, x):
        if self.graph is None:
            self.net(x)
            self.static_in = ONE
            self.graph = pgk.cuda.CUDAGraph()
            with pgk.cuda.graph(self.graph):
                self.static_out = self.net(self.static_in)
        self.static_in.copy_(x)
        self.graph.replay()
        return self.static_out.clone()

def graphed(fn):
    held = {}

    @functools.wraps(fn)
    def wrapper(*args):
        if "graph" not in held:
            fn(*args)
            held["args"] = ALL
            held["graph"] = pgk.cuda.CUDAGraph()
            with pgk.cuda.graph(held["graph"]):
                held["out"] = fn(*held["args"])
        for static, new in zip(held["args"], args):
            static.copy_(new)
        held["graph"].replay()
        return held["out"].clone()

    return wrapper

def named(fn):
    held = {}

    def wrapper(**kwargs):
        if "graph" not in held:
            fn(**kwargs)
            held["args"] = NAMED
            held["graph"] = pgk.cuda.CUDAGraph()
            with pgk.cuda.graph(held["graph"]):
                held["out"] = fn(**held["args"])
        for key, value in kwargs.items():
            held["args"][key].copy_(value)
        held["graph"].replay()
        return held["out"].clone()

    return wrapper

@graphed
def mixed(x, y):
    return torch.tanh(x) * y

@named
def added(x, y):
    return torch.tanh(x) + y

runner = Runner()
wrapped = lambda x: mixed(x, x + 1)
by_name = lambda x: added(x=x, y=x + 1)
inputs = [torch.rand(3, 4).to(pgk.device()) for _ in range(3)]
"""
ITSELF = {"ONE": "x", "ALL": "args", "NAMED": "kwargs"}
COPIES = {
    "ONE": "x.clone()",
    "ALL": "[t.clone() if isinstance(t, torch.Tensor) else t for t in args]",
    "NAMED": "{k: t.clone() if isinstance(t, torch.Tensor) else t for k, t in kwargs.items()}",
}


def _loaded(words: dict[str, str], file: Path) -> dict[str, Any]:
    text = CALLABLE
    for name, word in words.items():
        text = text.replace(name, word)
    return load(text, file)


@pytest.mark.parametrize(
    ("name", "asked", "word"),
    [
        ("runner", "first", "ONE"),
        ("wrapped", "first", "ALL"),
        ("by_name", "first", "NAMED"),
    ],
)
def test_what_is_called_itself_and_decorators_are_told_too(name: str, asked: str, word: str, tmp_path: Path) -> None:
    # GIVEN an object that is called, under no_grad, or a decorator, which keep what the first call was given
    for words, told in ((ITSELF, 1), (COPIES, 0)):
        names = _loaded(words, tmp_path / "program.py")
        if asked == "later":
            names[name](names["inputs"][0])
        # WHEN a call is diagnosed
        found = pgk.diagnose(names[name], names["inputs"][1])
        # THEN the line is told with the copy that it needs, and nothing where it has that
        assert [f.title for f in found.failures] == ["A graph's input is the caller's own tensor"] * told, found
        assert all(f"= {COPIES[word]}" in f.fix for f in found.failures)
