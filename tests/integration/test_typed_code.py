"""Code that no file has: typed at a prompt, given by ``python -c``, piped in, run by exec. It is the user's, too."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.files import is_library_code

PROGRAM = """
import collections, dataclasses
import torch
import paramgraph_kit as pgk

device = pgk.device()
scale, settings, table = 1.0, {"scale": 1.0}, [1.0]
Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Config:
    scale: float = 1.0


class Model:
    factor = 1.0

    def __init__(self):
        self.own = 1.0

    def __call__(self, x):
        return x * self.own * self.factor


def made():
    inside = 1.0

    def change(value):
        nonlocal inside
        inside = value

    return change, lambda x: x * inside


model, config, total = Model(), Config(), torch.zeros((), device=device)
change, closed = made()


def helper(x):
    return closed(model(x)) * scale * settings["scale"] * table[0] * config.scale * Pair(1.0, 2.0).a


def step(x):
    total.add_(helper(x).sum())
    return total


def to_two(n):
    global scale
    if n == 0: scale = 2.0
    if n == 1: settings["scale"] = 2.0
    if n == 2: table[0] = 2.0
    if n == 3: model.own = 2.0
    if n == 4: Model.factor = 2.0
    if n == 5: change(2.0)
    if n == 6: config.scale = 2.0
"""
NAMES = ["<stdin>", "<string>", "<python-input-3>", "<doctest a[0]>", "<command-7>", "my_code"]


@pytest.mark.parametrize("named", [True, False], ids=["main", "nameless"])
@pytest.mark.parametrize("file", NAMES)
def test_a_step_from_no_file_is_launched_with_what_its_names_hold_now(file: str, named: bool) -> None:
    # GIVEN a program that exec has run, under a name and under none
    names: dict[str, Any] = {"__name__": "__main__"} if named else {}
    exec(compile(PROGRAM, file, "exec"), names)
    step = pgk.parameterize(names["step"], state=(names["total"],))
    x, expected = torch.ones(4, device=names["device"]), 0.0
    with torch.no_grad():
        for n in range(-1, 7):
            # WHEN one value after the other becomes two between steps
            names["to_two"](n)
            for _ in range(4):
                expected += 4 * 2.0 ** (n + 1)
                # THEN each step counts with it
                assert float(step(x)) == expected, f"{n}: {pgk.report(step)}"
    assert pgk.report(step).rows[0].launches > 8


def test_what_dynamo_asks_before_a_call_is_no_code_of_the_users() -> None:
    # GIVEN a function whose code depends on a size, which Dynamo asks about in a function that it makes by exec
    compiled = torch.compile(lambda x: x + 1 if x.shape[0] > 3 else x - 1, backend="eager", dynamic=True)
    compiled(torch.zeros(5))
    found: dict[str, bool] = {}

    def hook(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == "<string>":
            found[frame.f_code.co_name] = is_library_code(frame.f_code, frame.f_globals)

    # WHEN it is called
    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        compiled(torch.zeros(6))
    finally:
        sys.setprofile(before)

    # THEN that function, which has all global names of the module in a dict, says nothing of what a step reads
    assert all(found.values())


def test_a_function_of_the_users_called_guard_is_theirs() -> None:
    # GIVEN functions like those of Dynamo, but for one thing
    for text, space in (
        ("def guard(L): return L * G", {"G": 2.0}),
        ("def guard(L): return L * G['a']", {"G": {"a": 2.0}}),
        ("def other(L): return G", {"G": {"__builtins__": {}}}),
        ("def guard(L): return G", {"G": {"__builtins__": {}}, "H": 1}),
    ):
        names: dict[str, Any] = dict(space)
        # WHEN exec has run them
        exec(text, names, made := dict[str, Any]())
        # THEN they are the user's
        function = next(iter(made.values()))
        assert not is_library_code(function.__code__, names), text


@pytest.mark.parametrize("way", ["-c", "-"])
def test_the_doctor_knows_a_program_given_on_the_command_line(way: str) -> None:
    # GIVEN a function that counts on the host, in a program that is no file
    text = (
        "import torch, paramgraph_kit as pgk\n"
        "count = {'n': 0}\n"
        "def f(x):\n"
        "    count['n'] += 1\n"
        "    return x * 2\n"
        "found = pgk.diagnose(f, torch.ones(4, device=pgk.device()))\n"
        "print(found.codes, found.failures[0].frame.line if found else None, count)\n"
    )
    # WHEN it runs
    done = subprocess.run(
        [sys.executable, "-c", text] if way == "-c" else [sys.executable, "-"],
        input=text if way == "-" else None,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    # THEN the count is found, where Python has kept no text in the function's first line, and put back
    said = {f"('host-counter',) {line} {{'n': 0}}" for line in (3, 4)}
    assert done.stdout.strip() in said, done.stdout + done.stderr
