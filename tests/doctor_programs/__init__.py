"""Functions with planted problems, each marked at its line, and sound ones: for the simulator and for a GPU alike.

A program defines ``f`` and ``inputs``; ``# problem: CODE`` stands at the line that the doctor has to name.
"""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import torch

from tests.doctor_programs.planted import PLANTED as WITHOUT_TRAINING
from tests.doctor_programs.planted_training import TRAINING
from tests.doctor_programs.sound import SOUND as SOUND

HEAD = """\
import random
import time
import torch
from torch import nn
from torch.nn import functional as F
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()
x = torch.randn(4, 4, device=device)
inputs = (x,)
"""


def program(text: str, file: Path) -> dict[str, Any]:
    """Run a program from a file of its own; returns its names."""
    file.write_text(HEAD + text)
    linecache.checkcache(str(file))
    names: dict[str, Any] = {"__name__": "planted"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return names


def marked(text: str) -> set[tuple[str, int]]:
    """(code, line) of every planted problem."""
    lines = (HEAD + text).splitlines()
    return {
        (code, n)
        for n, line in enumerate(lines, 1)
        if (mark := re.search(r"# problem: (.+)$", line))
        for code in mark[1].split()
    }


SEVEN = """
side = cuda.Stream()
kept = []

def f(x):
    mean = x.mean().item()  # problem: sync-item
    y = x * mean
    y = y[y > 0]  # problem: dynamic-shape
    table = torch.tensor([1.0, 2.0], device=device)  # problem: tensor-literal
    cuda.synchronize()  # problem: synchronize
    y = y * random.random()  # problem: host-random
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        z = x * 2  # problem: unjoined-work
    kept.append(y)  # problem: output-alias
    return y.sum() * table
"""

PLANTED = {**WITHOUT_TRAINING, **TRAINING}
if torch.__version__ >= "2.15":  # it fills the number in on the device
    del PLANTED["a number through an index"]

# Compiled with mode="reduce-overhead", whose reasons Inductor swallows: for a GPU only.
COMPILED = {
    "an argument that a compiled function writes to": """
@torch.compile(mode="reduce-overhead")
def f(x):
    x.add_(1)  # problem: mutated-input
    return x * 2
""",
    "a compiled function that branches on the device": """
@torch.compile(mode="reduce-overhead")
def f(x):
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))  # problem: control-flow
""",
}
LOSES_THE_DEVICE = """
places = torch.full((4,), 99, device=device)
def f(x):
    return x[places] * 2
"""
