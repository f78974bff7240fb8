"""Programs to which a fix of the doctor's catalogue is applied: one that its class is told of, and the same mended."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor import explain
from paramgraph_kit.doctor.explain.reasons import failures_of
from paramgraph_kit.doctor.known.program import PRELUDE, STEPS

COMMON = """\
from typing import NamedTuple
import itertools, random, time
def x(n):
    return torch.arange(4.0, device=device) + n
def call(n):
    return f(x(n))
"""
# What programs set of Inductor's configuration, which is put back after each.
AS_THEY_ARE = {"custom_should_partition_ops": [], "triton.cudagraph_skip_dynamic_graphs": False}
# A model and its optimizer, as a program's setup.
MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("total", torch.zeros(4))
    def forward(self, x):
        return x * self.weight
model = Model().to(device)
opt = torch.optim.SGD(model.parameters(), 0.01)
"""
Which = Literal["before", "after"]
Made = Callable[..., Any]


@dataclass(frozen=True)
class Applied:
    """``before``, of which the doctor tells the class, and ``after``, its fix applied to the letter.

    Both make ``f`` with ``@compiled``, which is ``torch.compile(backend="paramgraph")``, or with ``@parameterized``,
    which is ``pgk.parameterize``, or with ``captured``; in eager all leave it as it is. ``call(n)`` is what step n does
    and returns: ``f(x(n))``, where nothing else is written.
    """

    code: str  # of the class
    before: str
    after: str
    setup: str = ""
    name: str = ""
    told: str = ""  # what gives the codes, where it is not the report of what was made; instead of steps of ``before``
    leaves: tuple[str, ...] = ()  # what the mended program is told of: what runs between two graphs
    eager_fixed: bool = False  # eager's numbers are the mended program's: where the fix says to compute others
    exact: bool = True  # or within rounding
    graphed: bool = True  # ``after`` is launched by us; or by itself, or not at all
    settings: dict[str, Any] = field(default_factory=dict)  # of torch._dynamo.config

    @property
    def title(self) -> str:
        """Its name among the tests."""
        return f"{self.code} {self.name}".rstrip()


@dataclass(frozen=True)
class Ran:
    """What a program has shown."""

    results: list[Any]
    codes: tuple[str, ...]
    launches: int


def run(program: Applied, which: Which, file: Path, *, eager: bool) -> Ran:
    """Ten steps, each with other inputs, and what the doctor says of them; what is raised is a code, too."""
    made: list[Made] = []
    text = PRELUDE + COMMON + textwrap.dedent(program.setup) + textwrap.dedent(getattr(program, which))
    file.write_text(text, encoding="utf-8")
    names: dict[str, Any] = {
        "__name__": "program",
        "compiled": _maker(made, eager, lambda f, **how: torch.compile(f, backend="paramgraph", **how)),
        "parameterized": _maker(made, eager, pgk.parameterize),
        "eager": eager,
        "captured": (lambda f, *given: f) if eager else _captured,
        "watched": _watched,
    }
    torch._dynamo.reset()
    torch.manual_seed(0)
    results: list[Any] = []
    codes: list[str] = []
    with (
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()),
        torch._dynamo.config.patch({"recompile_limit": torch._dynamo.config.recompile_limit} | program.settings),
        torch._inductor.config.patch(AS_THEY_ARE),
    ):
        warnings.simplefilter("ignore")
        try:
            exec(compile(text, str(file), "exec"), names)
            if eager or which == "after" or not program.told:
                results += [_kept(names["call"](n)) for n in range(STEPS)]
        except Exception as error:
            if eager:
                raise
            codes.append(explain(error).code)
        if not eager and not codes:
            reasons = [reason for f in made for reason in pgk.report(f).reasons]
            codes += eval(program.told, names) if program.told else [each.code for each in failures_of(reasons)]
    return Ran(results, tuple(codes), sum(row.launches for f in made for row in pgk.report(f).rows))


def same(got: Any, expected: Any, *, exact: bool = True) -> bool:
    """Whether two results have the same numbers, or those within rounding, whatever class their tensors are of."""
    if isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor):
        a, b = got.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor)
        return torch.equal(a, b) if exact else torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    if isinstance(got, list | tuple):
        return len(got) == len(expected) and all(same(a, b, exact=exact) for a, b in zip(got, expected, strict=True))
    return bool(got == expected)


def _maker(made: list[Made], eager: bool, wrap: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator, with options or without."""

    def decorate(f: Any = None, **how: Any) -> Any:
        if f is None:
            return lambda f: decorate(f, **how)
        if eager:
            return f
        made.append(wrap(f, **how))
        return made[-1]

    return decorate


def _captured(f: Callable[..., Any], *given: torch.Tensor) -> Callable[..., Any]:
    """``f`` in a graph of ``torch.cuda.graph``, whose inputs are written before each replay."""
    graph, inputs = pgk.cuda.CUDAGraph(), [x.clone() for x in given]
    with pgk.cuda.graph(graph):
        outputs = f(*inputs)

    def replay(*new: torch.Tensor) -> Any:
        for x, y in zip(inputs, new, strict=True):
            x.copy_(y)
        graph.replay()
        return outputs

    return replay


def _watched(call: Callable[[int], Any]) -> list[str]:
    """Codes of what a watch sees of three calls, when two have been before."""
    call(0)
    call(1)
    with pgk.watch() as trace:
        for n in range(3):
            call(n)
    told = [each for part in trace.partitions for each in failures_of(part.reasons)]
    return [each.code for each in (*trace.failures, *told)]


def _kept(value: Any) -> Any:
    """A result as it is now."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    return type(value)(map(_kept, value)) if isinstance(value, list | tuple) else value
