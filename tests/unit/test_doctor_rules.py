"""Programs as users write them: what the doctor says to each comes from rules about operations, not from the program.

``g`` is a fresh graph and ``x`` a tensor of 4 x 4 on the device; ``# here`` marks the line that has to be named.
"""

from __future__ import annotations

import io
import linecache
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import device, twin
from paramgraph_kit.trace.wording import failure_text

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

# title: (code, what comes before the capture, the body of the capture)
PROGRAMS = {
    "sorted by a key": ("data-dependent-branch", "", "sorted(list(x), key=lambda r: r.sum())  # here"),
    "a helper's while": (
        "data-dependent-branch",
        "def halve(t):\n    while (t.abs() > 1e-3).any():  # here\n        t = t / 2\n    return t",
        "halve(x)",
    ),
    "a ternary": ("data-dependent-branch", "", "y = x * 2 if x.mean() > 0 else x  # here"),
    "all() over rows": ("data-dependent-branch", "", "ok = all(r.sum() > 0 for r in x)  # here"),
    "in a list": ("data-dependent-branch", "", "known = x.sum() in [1.0, 2.0]  # here"),
    "an early exit": ("data-dependent-branch", "", "for _ in range(3):\n    if not x.any():  # here\n        break"),
    "a meter": (
        "sync-item",
        "class Meter:\n    def update(self, v):\n        self.last = float(v)  # here\nmeter = Meter()",
        "meter.update(x.mean())",
    ),
    "a property": (
        "sync-item",
        "class Scale:\n    @property\n    def most(self):\n        return x.max().item()  # here\ns = Scale()",
        "y = x / s.most",
    ),
    "a decorator": (
        "sync-item",
        "def logged(f):\n    def inner(a):\n        f(a).sum().item()  # here\n    return inner\nstep = logged(F.relu)",
        "step(x)",
    ),
    "an alias": ("sync-item", "get = x.sum().item", "v = get()  # here"),
    "map": ("sync-item", "", "v = list(map(float, x[0]))  # here"),
    "getattr": ("copy-to-cpu", "", "y = getattr(x, 'cpu')()  # here"),
    "a keyword that takes a number": ("sync-item", "k = x.sum()", "torch.add(x, x, alpha=k)  # here"),
    "several lines": ("sync-item", "", "y = max(\n    1.0,\n    x.sum().item(),  # here\n)"),
    "a chain over lines": ("copy-to-cpu", "", "y = (\n    x.mul(2)\n    .cpu()  # here\n    .numpy()\n)"),
    "raised anew": (
        "sync-item",
        "",
        "try:\n    x.sum().item()  # here\nexcept RuntimeError:\n    raise ValueError('step failed') from None",
    ),
    "a timer": (
        "synchronize",
        "import contextlib\n@contextlib.contextmanager\ndef timed():\n    yield\n    cuda.synchronize()  # here",
        "with timed():\n    y = x * 2",
    ),
    "text with %": ("print", "", "s = 'loss %.3f' % x.sum()  # here"),
    "text of rows": ("print", "", "s = ', '.join(str(r) for r in x)  # here"),
    "text by format": ("print", "", "s = '{:.2f}'.format(x.sum())  # here"),
    "a list by a tensor": ("sync-item", "words = ['a', 'b', 'c', 'd']", "w = words[x[0].argmax()]  # here"),
    "a slice object": ("tensor-bound", "s = slice(0, torch.tensor(2, device=device))", "y = x[s]  # here"),
    "zeros of a size": ("tensor-bound", "n = torch.tensor(2, device=device)", "y = torch.zeros(n, 4)  # here"),
    "padding": ("tensor-bound", "n = torch.tensor(2, device=device)", "y = F.pad(x, (0, n))  # here"),
    "unique with counts": ("dynamic-shape", "", "v, c = torch.unique(x, return_counts=True)  # here"),
    "experts": ("dynamic-shape", "", "rows = torch.where(x.argmax(-1) % 2 == 1)[0]  # here"),
    "a mask that adds": ("dynamic-shape", "", "x[x > 0] += 1  # here"),
    "a mask and a scalar tensor": ("mask-assignment", "v, m = x.sum(), x > 0", "x[m] = v  # here"),
    "a row from the host": ("copy-to-gpu", "row = torch.ones(4)", "x[0] = row  # here"),
    "a batch": ("copy-to-gpu", "batch = torch.ones(4, 4)", "y = x @ batch.to(device).t()  # here"),
    "a module moves in": ("copy-to-gpu", "m = nn.Linear(4, 4)", "m.to(device)  # here"),
    "to another's place": ("copy-to-cpu", "c = torch.ones(2)", "y = x.to(c)  # here"),
    "into a buffer of the host": ("copy-to-cpu", "c = torch.ones(4, 4)", "c.copy_(x)  # here"),
    "a checkpoint": ("copy-to-cpu", "", "torch.save(x, io.BytesIO())  # here"),
    "an index on the host": ("cpu-index", "i = torch.tensor([0, 1])", "y = x[i]  # here"),
    "weights on the host": ("mixed-devices", "m = nn.Linear(4, 4)\nnn.Linear(4, 4).to(device)(x)", "m(x)  # here"),
    "an assertion of a test": ("compare-on-cpu", "", "torch.testing.assert_close(x, x.clone())  # here"),
    "a norm that is compared": (
        "data-dependent-branch",
        "p = nn.Parameter(torch.ones(3, device=device))\np.grad = p.detach().clone()",
        "n = nn.utils.clip_grad_norm_([p], 1.0)\nif n > 10:  # here\n    pass",
    ),
    "an event from before": ("isolation", "e = cuda.Event()\ne.record()", "e.wait()  # here"),
    "the default stream waits": (
        "legacy-launch",
        "",
        "y = x * 2\ncuda.default_stream().wait_stream(cuda.current_stream())  # here",
    ),
    "a graph in a helper": (
        "nested-capture",
        "def sub(t):\n    with cuda.graph(cuda.CUDAGraph()):  # here\n        return t * 2",
        "sub(x)",
    ),
    "another seed": ("rng-state", "", "cuda.manual_seed(12345)  # here"),
    "a key that is missing": ("unknown", "settings = {}", "y = x * settings['scale']  # here"),
}
SOUND = {
    "unpacking": "a, b, c, d = x",
    "a list of rows": "rows = list(x)",
    "numbers for masks": "y = torch.where(x > 0, x, 0.0)",
    "power by a tensor": "y = x.abs() ** x.sum()",
    "losses": "F.cross_entropy(x, torch.zeros(4, dtype=torch.long, device=device))",
    "clipping by value": "y = torch.nan_to_num(x).clamp(min=-1.0)",
}


@pytest.fixture(autouse=True)
def recovered() -> Iterator[None]:
    device()
    yield
    twin().recover()


def run(before: str, body: str, file: Path) -> BaseException | None:
    """Capture a body; returns what was raised."""
    head = "x = torch.randn(4, 4, device=device)\ng = cuda.CUDAGraph()\n"
    file.write_text(f"{head}{before}\nwith cuda.graph(g):\n{textwrap.indent(body, '    ')}\n")
    linecache.checkcache(str(file))
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "io": io, "cuda": twin(), "device": device()}
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(compile(file.read_text(), str(file), "exec"), names)
        except Exception as error:
            return error
    return None


@pytest.mark.parametrize("title", PROGRAMS)
def test_a_failing_program_is_told_by_its_class_at_its_line(title: str, tmp_path: Path) -> None:
    # GIVEN a program that no capture takes WHEN what it raised is diagnosed
    code, before, body = PROGRAMS[title]
    file = tmp_path / "train.py"
    error = run(before, body, file)
    assert error is not None
    failure = pgk.diagnose(error).failure
    # THEN class and line are right, in few lines
    assert failure.code == code, failure_text(failure)
    assert failure.frame is not None
    assert failure.frame.file == str(file)
    assert failure.frame.text.endswith("# here"), failure_text(failure)
    assert len(failure_text(failure).splitlines()) <= 12


@pytest.mark.parametrize("title", SOUND)
def test_a_sound_program_is_captured(title: str, tmp_path: Path) -> None:
    # GIVEN a program that a GPU captures WHEN captured here THEN nothing is raised
    assert run("", SOUND[title], tmp_path / "train.py") is None
