"""The public verbs: what importing them costs, what they take, and what they say to everything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.__main__ import main
from paramgraph_kit._version import __version__
from paramgraph_kit.trace import Origin, ParamgraphError, Source, Trace, TraceError
from paramgraph_kit.trace.errors import ERRORS

pgk.device()  # at import: before any test of this process runs a backward

VERBS = {"compile", "diagnose", "explore", "load", "parameterize", "report", "save", "story", "watch"}
NOUNS = {"cuda", "device", "recorded"}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)


def empty_trace() -> Trace:
    return Trace(Source(Origin.SIMULATED, "simulated device", "-", "2.13.0", "3.11", "2026-11-20"), "demo")


def message(call: Any) -> str:
    """The text of the error that a call raises: one line."""
    with pytest.raises(ParamgraphError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    return text


def test_the_surface_is_nine_verbs_and_three_nouns_at_most() -> None:
    assert set(pgk.__all__) <= VERBS | NOUNS | {error.__name__ for error in ERRORS}
    assert list(pgk.__all__) == sorted(pgk.__all__)
    for name in set(pgk.__all__) & VERBS:
        verb = getattr(pgk, name)
        assert callable(verb)
        assert verb.__doc__


def test_importing_imports_neither_torch_nor_cuda() -> None:
    # GIVEN a fresh process WHEN the package and its command line are imported
    done = python(
        "import sys, paramgraph_kit, paramgraph_kit.__main__\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'cuda', 'numpy', 'IPython'}))"
    )
    # THEN nothing heavy came with them
    assert done.stderr == ""
    assert done.stdout == "[]\n"


def test_explore_stays_a_function_when_its_subpackage_is_imported() -> None:
    done = python(
        "import paramgraph_kit as pgk\nimport paramgraph_kit.explore\nfrom paramgraph_kit.explore.page import page\n"
        "print(type(pgk.explore).__name__)"
    )
    assert (done.stdout, done.stderr) == ("function\n", "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
def test_device_tells_that_a_backward_came_too_early() -> None:
    # GIVEN a process in which autograd has counted its devices already
    done = python(
        "import torch, paramgraph_kit as pgk\n"
        "torch.ones(1, requires_grad=True).sum().backward()\n"
        "try:\n    pgk.device()\nexcept pgk.verbs.ParamgraphError as error:\n    print(type(error).__name__, error)"
    )
    # THEN it says so in one line, instead of autograd's internal assertion later
    assert done.stderr == ""
    assert done.stdout == (
        "UnsupportedError a backward() ran before the simulated device was made, and autograd has no queue for it: "
        "in a fresh process, call paramgraph_kit.device() before the first backward()\n"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
def test_device_in_time_makes_backwards_work() -> None:
    done = python(
        "import torch, paramgraph_kit as pgk\nx = torch.ones(2, device=pgk.device(), requires_grad=True)\n"
        "torch.ones(1, requires_grad=True).sum().backward()\n(x * 3).sum().backward()\nprint(x.grad.tolist())"
    )
    assert (done.stdout, done.stderr) == ("[3.0, 3.0]\n", "")


@pytest.mark.skipif(
    not hasattr(os, "SCHED_IDLE"), reason="only Linux lets a program see that a thread waits for a core"
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
def test_a_program_ends_after_the_thread_of_its_backward() -> None:
    # GIVEN a backward whose thread gets no core while the program has anything to do, so that it has not ended with it
    program = """
import os, torch, paramgraph_kit as pgk
from paramgraph_kit.driver.sim import guard

def state():
    return open(f"/proc/self/task/{engine}/stat").read().split()[2]

(torch.ones(2, device=pgk.device(), requires_grad=True) * 3).sum().backward()
core = {min(os.sched_getaffinity(0))}
for task in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(task), core)
    if open(f"/proc/self/task/{task}/comm").read().startswith("pt_autograd"):
        engine = task
        os.sched_setscheduler(int(task), os.SCHED_IDLE, os.sched_param(0))
x = torch.ones(2, device=pgk.device(), requires_grad=True)
for _ in range(50):
    (x * 3).sum().backward()
    if (before := state()) == "R":
        break
guard.rest()
print(before, state())
"""
    # WHEN the program ends THEN it has waited for the thread, and nothing aborts it
    done = python(program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("R S\n", "S S\n" if torch.__version__ < "2.12" else "R S\n")  # it had let go by then


def test_cuda_is_the_twin_of_the_device_and_nothing_else_is_there() -> None:
    assert pgk.cuda.CUDAGraph is not None
    with pytest.raises(AttributeError, match="no attribute 'cudo'"):
        _ = pgk.cudo


def test_compile_takes_its_own_options_only() -> None:
    # GIVEN wrong names and values WHEN compile is called THEN it fails at once and in one line, not inside Dynamo
    said = message(lambda: pgk.compile(lambda x: x, patchin="host"))
    assert said.startswith("unknown option 'patchin' of backend='paramgraph'; known: patching, ")
    said = message(lambda: pgk.compile(lambda x: x, select="some"))
    assert said == "select='some': choose one of 'always', 'measure', 'never'"


def test_compiled_code_without_graphs_has_the_same_bits() -> None:
    # GIVEN one function compiled with graphs and without
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ x) - 0.5

    graphed, plain = pgk.compile(f), pgk.compile(f, select="never")
    x = torch.randn(8, 8).to(pgk.device())
    # WHEN both run twice
    results = [call(x) for _ in range(2) for call in (graphed, plain)]
    # THEN all agree, and only one of them made a graph
    assert all(torch.equal(results[0], other) for other in results)
    assert pgk.report(graphed).kernels[0] > 0
    assert pgk.report(plain).kernels[0] == 0


def test_diagnose_shows_the_cause_in_full_and_itself_in_one_line() -> None:
    # WHEN
    found = pgk.diagnose(RuntimeError("CUDA graphs must be captured on a non-default stream."))
    # THEN
    assert found.failure.code == "default-stream"
    assert str(found).splitlines()[1] == "  said   CUDA graphs must be captured on a non-default stream."
    assert repr(found) == "Diagnosis(default-stream: The capture was begun on the default stream)"
    bundle = found._repr_mimebundle_()
    assert bundle["text/plain"] == str(found)
    assert "The capture was begun on the default stream" in bundle["text/html"]


def test_diagnose_says_what_it_takes() -> None:
    wrong: Any = "CUDA error"
    assert message(lambda: pgk.diagnose(wrong)) == (
        "diagnose takes the exception that a failed capture raised, not a str: "
        "catch it with 'except Exception as error' and pass error; or pass a function and its arguments"
    )


TAKES = "explore takes a trace, a report or a compiled model, not "


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, f"{TAKES}None"),
        ("a.pgtrace", f"{TAKES}'a.pgtrace'; explore a file with explore(load(path))"),
        (3, f"{TAKES}an int"),
    ],
)
def test_explore_says_what_it_takes(value: Any, text: str) -> None:
    assert message(lambda: pgk.explore(value)) == text


def test_explore_takes_what_watch_gives_and_not_watch_itself() -> None:
    assert message(lambda: pgk.explore(pgk.watch())) == (
        "explore takes what watch gives to a block: with watch() as trace: ..., then explore(trace)"
    )


def test_save_and_load_take_traces_and_reports(tmp_path: Path) -> None:
    # GIVEN a trace and a report WHEN they are saved and loaded
    for what in (empty_trace(), pgk.report(lambda x: x)):
        trace = what if isinstance(what, Trace) else what.trace
        loaded = pgk.load(pgk.save(what, tmp_path / "demo.pgtrace"))
        # THEN it is the same trace, labelled as coming from a file
        assert loaded.title == trace.title
        assert loaded.source.label().endswith(
            "(loaded from a recording)" if not torch.cuda.is_available() else "recorded)"
        )
        assert repr(pgk.explore(loaded)) == f"Explorer({loaded!r})"


def test_load_names_the_file_that_is_not_there() -> None:
    with pytest.raises(TraceError, match=r"^no-such\.pgtrace: cannot be read"):
        pgk.load("no-such.pgtrace")


# The command line


def test_version_and_help_list_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["--help"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"paramgraph_kit {__version__}\n")
    for command in ("tour", "explore", "bench"):
        assert f"    {command} " in out


def test_no_command_shows_what_can_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN nothing asked for WHEN run THEN it is no error: the help
    assert main([]) == 0
    alone = capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["--help"])
    assert alone == capsys.readouterr()


@pytest.mark.parametrize("arguments", [["--fast"], ["turn"], ["tour", "--fast"]])
def test_a_wrong_call_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: python -m paramgraph_kit" in capsys.readouterr().err


def test_explore_prints_a_file_or_makes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a trace file
    path = pgk.save(empty_trace(), tmp_path / "demo.pgtrace")
    # WHEN it is explored twice
    assert main(["explore", str(path)]) == 0
    assert main(["explore", str(path), "--html", str(tmp_path / "demo.html")]) == 0
    # THEN
    out = capsys.readouterr().out
    assert out.startswith("demo\nsimulated: simulated device")
    assert out.endswith(f"page: {tmp_path / 'demo.html'}\n")
    assert "<h1>demo</h1>" in (tmp_path / "demo.html").read_text()


def test_an_error_is_one_line_and_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "no-such.pgtrace"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("paramgraph_kit: no-such.pgtrace: cannot be read")
    assert captured.err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it measures")
def test_bench_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "no GPU here" in capsys.readouterr().err
