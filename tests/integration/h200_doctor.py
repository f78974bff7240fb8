"""The recorded failures of an H200 through the doctor: class, line and fix for each.

Each program runs on the simulator, whose exceptions are those of the H200 (another test compares them). Where the
simulator cannot know, what the H200 raised is raised from its record.
"""

from __future__ import annotations

import io
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from paramgraph_kit.doctor import explain
from paramgraph_kit.trace.model import Failure
from tests.integration.h200_cases import CASES, LEFT_OUT, on_simulator

# The failing cases: the class that each must get, and the beginning of the line at which.
EXPECTED = {
    "cpu": ("copy-to-cpu", "x.cpu()"),
    "synchronize": ("synchronize", "C.synchronize()"),
    "stream_sync": ("synchronize", "C.current_stream().synchronize()"),
    "nonzero": ("dynamic-shape", "x.nonzero()"),
    "maskget": ("dynamic-shape", "x[m]"),
    "rep_int": ("dynamic-shape", "torch.repeat_interleave("),
    "bincount": ("hidden-size", "torch.bincount(i)"),
    "one_hot": ("hidden-size", "F.one_hot(i)"),
    "maskset_tensor": ("mask-assignment", "x[m]=v"),
    "idx_list": ("cpu-index", "x[[2,0,1]]"),
    "slice_t": ("tensor-bound", "x[j:]"),
    "tensor_scalar": ("tensor-literal", "torch.tensor(3.,device="),
    "tensor_list": ("tensor-literal", "torch.tensor([1,2],device="),
    "where_cpu0d": ("cpu-operand", "torch.where(m,x,c0)"),
    "allclose": ("compare-on-cpu", "torch.allclose(x,x)"),
    "isnan_any": ("data-dependent-branch", "bool(x.isnan().any())"),
    "inv": ("linalg-check", "torch.linalg.inv(x)"),
    "histc": ("hidden-size", "torch.histc(x,4)"),
    "to_sparse": ("dynamic-shape", "x.to_sparse()"),
    "opt.Adam([p])": ("optimizer-not-capturable", "o.step()"),
    "opt.Adam([p],fused=True)": ("optimizer-not-capturable", "o.step()"),
    "opt.RMSprop([p])": ("optimizer-not-capturable", "o.step()"),
    "opt.LBFGS([p])": ("optimizer-sync", "o.step(lambda:p.sum())"),
    "clip_enf": ("clip-check", "nn.utils.clip_grad_norm_([p],1.,error_if_nonfinite=True)"),
    "scaler.step": ("grad-scaler", "sc.step(o);sc.update()"),
    "strm.noentry": ("isolation", "C.current_stream().wait_stream(s)"),
    "strm.unjoined": ("unjoined-work", "with C.graph(g):"),
    "strm.legacy_wait": ("isolation", "C.current_stream().wait_stream(C.default_stream());x+1"),
    "strm.captured_event_query_after": ("captured-event", "e.query()"),
    "strm.timing_event": ("captured-event", "print(e.elapsed_time(f))"),
    "ag.tape_default": ("legacy-stream", "(x*y).sum().backward()"),
    "ag.warm_default_keep": ("legacy-stream", "(x*y).sum().backward()"),
    "ag.bwd_of_outside_loss": ("legacy-stream", "L.backward()"),
    "cold.conv": ("cold-library", "w(x)"),
    "self.global.event_query": ("query", "e.query()"),
    "self.global.h2d": ("copy-to-gpu", "c.to("),
    "self.thread_local.h2d": ("copy-to-gpu", "c.to("),
    "self.relaxed.h2d": ("copy-to-gpu", "c.to("),
    "api.default_stream": ("default-stream", "g.capture_begin()"),
    "api.nested": ("nested-capture", "with C.graph(C.CUDAGraph()): x+1"),
    "api.user_exc": ("unknown", "raise ValueError('user bug')"),
    "api.fail_rng_then_eager": ("poisoned-generator", "print(torch.rand(1,device="),
    "mgc.cpu_arg": ("mixed-devices", "f=C.make_graphed_callables(lambda a,b:a*b"),
    "mgc.shape": ("graphed-shape", "l=nn.Linear(2,2)"),
    "item": ("sync-item", "x.sum().item()"),
    "h2d_pageable": ("copy-to-gpu", "c."),
    "print": ("print", "str(x)"),
    "cold.mm": ("cold-library", "x@x"),
    "gen.unreg": ("unregistered-generator", "torch.rand(4,device="),
}


def text_of(case: dict[str, Any], *, simulated: bool = True) -> str:
    """A case as one program, as somebody would have written it."""
    adapt: Callable[[str], str] = on_simulator if simulated else str
    if case.get("program") is not None:
        return adapt(case["program"])
    indented = "\n".join("    " + line for line in case["body"].split("\n"))
    options = "".join(f", {name}={value!r}" for name, value in case["capture_kwargs"].items())
    lines = [
        "g = C.CUDAGraph()",
        case["setup"],
        "side = C.Stream()",
        "side.wait_stream(C.current_stream())",
        *(["with C.stream(side):\n" + indented] * case["warmups"]),
        "C.current_stream().wait_stream(side)",
        f"with C.graph(g{options}):\n{indented}",
        "g.replay()",
        "C.synchronize()",
        case["post"] or "",
    ]
    return adapt("\n".join(lines)) + "\n"


def raised_by(name: str, cuda: Any, file: Path) -> BaseException | None:
    """What a case raises on the simulator, with the lines of ``file``."""
    if name in LEFT_OUT:
        return _recorded(CASES[name], file, names_of(cuda))
    return raised_in(text_of(CASES[name]), file, names_of(cuda))


def names_of(cuda: Any) -> dict[str, Any]:
    """The names that programs use."""
    return {
        "torch": torch,
        "nn": nn,
        "F": F,
        "C": cuda,
        "threading": threading,
        "io": io,
        "time": time,
        "g": None,
    }


def raised_in(text: str, file: Path, names: dict[str, Any]) -> BaseException | None:
    """What a program raises that is run from a file of its own."""
    file.write_text(text)
    torch.manual_seed(0)
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(compile(text, str(file), "exec"), names)
        except Exception as error:
            return error
    return None


# What stands in for torch where only the record is known; compiled under the name of a file of torch's.
_STAND_IN = """
class Device:
    def __getattr__(self, name):
        return self
    def __call__(self, *args, **kwargs):
        raise make(chain[-1])
    __matmul__ = __call__

class Capture:
    def __enter__(self):
        pass
    def __exit__(self, *args):
        if len(chain) > 1:
            raise make(chain[0])
"""


def _recorded(case: dict[str, Any], file: Path, names: dict[str, Any]) -> BaseException | None:
    """The exceptions of the record, raised at the body's line."""
    chain = case["h200"]["exceptions"]
    if not chain:
        return None

    def make(entry: dict[str, Any]) -> BaseException:
        return (torch.AcceleratorError if entry["type"] == "AcceleratorError" else RuntimeError)(entry["message"])

    library: dict[str, Any] = {"make": make, "chain": chain}
    exec(compile(_STAND_IN, str(Path(torch.__file__).with_name("recorded.py")), "exec"), library)
    device = library["Device"]()
    file.write_text("with C.graph(g):\n    " + case["body"] + "\n")
    names |= dict.fromkeys("xwg", device) | {"torch": device, "g2": None}
    names["C"] = SimpleNamespace(graph=lambda g: library["Capture"]())
    try:
        exec(compile(file.read_text(), str(file), "exec"), names)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def function_of(name: str, cuda: Any, file: Path) -> dict[str, Any]:
    """The names of a program in which ``f`` does what the body of a case does."""
    case = CASES[name]
    body = "\n".join("    " + line for line in case["body"].split("\n"))
    file.write_text(on_simulator(f"g = C.CUDAGraph()\n{case['setup']}\ndef f():\n    global y, e\n{body}\n"))
    names = names_of(cuda)
    torch.manual_seed(0)
    exec(compile(file.read_text(), str(file), "exec"), names)
    return names


def diagnosis(name: str, cuda: Any, file: Path) -> Failure | None:
    """What the doctor says to a case, or None where it succeeds."""
    try:
        error = raised_by(name, cuda, file)
        return explain(error) if error is not None else None
    finally:
        cuda.recover()


def failure_of(text: str, cuda: Any, file: Path) -> Failure | None:
    """What the doctor says to a program for the simulated device, or None where it succeeds."""
    try:
        error = raised_in(text, file, names_of(cuda))
        return explain(error) if error is not None else None
    finally:
        cuda.recover()
