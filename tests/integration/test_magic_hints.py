"""What the magic says to whoever looks for the last trace, mistypes a verb, or asks for a GPU that is not there."""

from __future__ import annotations

import pytest
import torch

from tests.integration.shells import CALLS, Session

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")


def test_cuda_without_a_gpu_points_at_the_device_that_is_there(session: Session) -> None:
    result = session.run("%%paramgraph diagnose\nimport torch\ntorch.zeros(3, device='cuda')")
    assert not result.success
    assert "device=pgk.device() and pgk.cuda run here too" in result.out
    session.good("def f():\n    return torch.zeros(3, device='cuda')")
    session.good("%paramgraph story f -o told")
    assert "Make it run first: device=pgk.device() and pgk.cuda run here too" in session["told"].stopped
    # AND so does any other cell, once the extension is loaded, and an error that leaves what is watched
    hint = "no GPU here: device=pgk.device() and pgk.cuda are the simulated ones"
    for cell in (
        "torch.zeros(3, device='cuda')",
        "torch.zeros(3).cuda()",
        "torch.cuda.CUDAGraph()",
        "torch.cuda.Stream()",
        "torch.cuda.Event().record()",
        "torch.Generator(device='cuda')",
        "torch.nn.Linear(2, 2, device='cuda:0')",
        "torch.cuda.synchronize()",
    ):
        assert hint in session.run(cell).err
    assert hint not in session.run("1 / 0").err
    watched = session.run("with pgk.watch():\n    torch.zeros(3, device='cuda')")
    assert watched.result is None
    assert hint in "".join(watched.error_in_exec.__notes__)
    session.good("%unload_ext paramgraph_kit")
    assert hint not in session.run("torch.zeros(3).cuda()").err


def test_whoever_draws_after_a_failed_capture_is_told_what_puts_it_right(session: Session) -> None:
    # GIVEN a capture by hand that failed, which somebody caught
    session.good(
        "import torch, paramgraph_kit as pgk\nx = torch.randn(8, device=pgk.device())\n"
        "try:\n    with pgk.cuda.graph(pgk.cuda.CUDAGraph()):\n        x[x > 0].sum()\n"
        "except Exception:\n    pass"
    )
    # WHEN a later cell draws THEN it is told what puts that right, and that does
    assert "pgk.diagnose.repair() puts that right" in session.run("torch.randn(3, device=x.device)").err
    session.good("pgk.diagnose.repair()")
    session.good("torch.randn(3, device=x.device)")


def test_a_slip_of_the_pen_is_told_what_was_meant(session: Session) -> None:
    assert "(did you mean explore? %paramgraph? shows the help)" in session.refused("%paramgraph exlore")
    assert "mean" not in session.refused("%paramgraph x")
    assert session.good("%paramgraph help").out == session.good("%paramgraph").out


def test_what_was_watched_without_the_magic_is_the_last_trace_too(session: Session) -> None:
    # GIVEN a cell that the magic watched, and one that watched by itself after it
    session.good("%%paramgraph watch --title first\n" + CALLS)
    session.good("with pgk.watch('second') as mine:\n    model(x)")
    # WHEN a view is asked for without a name THEN it is of the one that was begun last
    session.good("%paramgraph explore -o view")
    assert session["view"].trace is session["mine"]
    # AND where that has gone, of the magic's own
    session.good("del mine, view")
    session.good("%paramgraph explore -o view")
    assert session["view"].trace.title == "first"
