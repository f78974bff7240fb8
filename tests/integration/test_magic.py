"""The magic in a real IPython shell: what it runs, shows, binds, refuses, and takes away again."""

from __future__ import annotations

import gc
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.backend import watch as watching
from paramgraph_kit.backend.report import Report
from paramgraph_kit.doctor.diagnosis import Diagnosis
from paramgraph_kit.explore import Picture, View
from paramgraph_kit.trace import Trace
from tests.integration.shells import CALLS, Session

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="counts nodes of the simulator")

BROKEN = "with pgk.cuda.graph(pgk.cuda.CUDAGraph()):\n    x.sum().item()\n"


# A cell


def test_watch_keeps_binds_and_shows_what_the_cell_did(session: Session, tmp_path: Path) -> None:
    # WHEN a cell is watched, whose last line is an expression
    page = tmp_path / "a page.html"
    result = session.good(f"%%paramgraph watch -o trace --title 'three calls' --html '{page}'\n{CALLS}len(kept)")
    # THEN the expression is the cell's value, names of the cell are there, and the trace has its launches
    assert result.result == len(session["kept"]) == 3
    trace = session["trace"]
    assert isinstance(trace, Trace)
    assert (trace.title, len(trace.captures), len(trace.launches)) == ("three calls", 1, 2)
    # and it is shown, and written as a page
    assert result.shown[-1]["text/plain"].startswith("three calls\nsimulated")
    assert f"page: {page}\n" in result.out
    assert "<h1>three calls</h1>" in page.read_text(encoding="utf-8")


def test_braces_and_dollars_are_left_alone(session: Session) -> None:
    # GIVEN a variable whose name IPython would put in
    session.good("name = 'expanded'")
    # WHEN THEN
    session.good("%%paramgraph watch -o trace --title '{name} $name'\npass")
    assert session["trace"].title == "{name} $name"


def test_an_exception_of_the_cell_is_shown_as_always_and_the_trace_is_kept(session: Session) -> None:
    # WHEN
    result = session.run(f"%%paramgraph watch -o trace\n{CALLS}\nmissing = trace.nothing")
    # THEN the cell has failed with its own error, at its own line, and no frame of ours is shown
    assert isinstance(result.error_in_exec, AttributeError)
    said = result.out + result.err
    assert "----> 5 missing = trace.nothing" in said
    assert "_magic.py" not in said
    # and the trace has all up to there, and the failure with this cell's number
    assert len(session["trace"].launches) == 2
    (failure,) = session["trace"].failures
    number = session.shell.execution_count - 1
    assert failure.frame.label().startswith(f"<cell {number}>:5")
    session.good("%paramgraph partitions")


def test_a_page_that_cannot_be_written_does_not_hide_the_cells_exception(session: Session, tmp_path: Path) -> None:
    result = session.run(f"%%paramgraph watch --html {tmp_path / 'no' / 'page.html'}\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert "%paramgraph watch: " in result.err


def test_an_interrupt_ends_the_cell_and_the_trace_is_kept(session: Session) -> None:
    # GIVEN the handler that a kernel has
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # WHEN somebody presses stop
        result = session.run(
            f"%%paramgraph watch -o trace\nimport signal\n{CALLS}signal.raise_signal(signal.SIGINT)\nafter = 1"
        )
    finally:
        signal.signal(signal.SIGINT, before)
    # THEN
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert "KeyboardInterrupt" in result.out + result.err
    assert "after" not in session
    assert len(session["trace"].launches) == 2
    assert session["trace"].failures == []
    assert not watching._active


def test_a_cell_with_a_syntax_error_is_no_watch(session: Session) -> None:
    result = session.run("%%paramgraph watch -o trace\nz = = 1")
    assert isinstance(result.error_in_exec, SyntaxError)
    assert "trace" not in session


def test_diagnose_explains_instead_of_a_traceback(session: Session) -> None:
    # WHEN a capture fails in a cell
    result = session.good(f"%%paramgraph diagnose -o why\n\n{BROKEN}")
    # THEN the explanation, with the line as the cell shows it, is all that is seen
    assert isinstance(session["why"], Diagnosis)
    (shown,) = result.shown
    assert shown["text/plain"] == str(session["why"])
    assert session["why"].failure.code == "sync-item"
    frame = session["why"].failure.frame
    assert frame is not None
    assert frame.line == 4
    assert "Traceback" not in result.out + result.err
    # and it stays the last exception
    assert session.good("%paramgraph diagnose").shown == result.shown


def test_an_error_that_is_no_failed_capture_is_raised_as_ever(session: Session) -> None:
    result = session.run("%%paramgraph diagnose -o why\nundefined_name")
    assert isinstance(result.error_in_exec, NameError)
    assert session["why"] is None
    assert result.shown == []


def test_a_cell_is_looked_at_as_a_function(session: Session) -> None:
    # GIVEN a cell that runs, and that no graph could hold
    session.good(
        "import torch\nw = torch.nn.Parameter(torch.ones(3, device=x.device))\n"
        "opt = torch.optim.AdamW([w], lr=0.1)\nlosses, steps = [], 0"
    )
    cell = """opt.zero_grad()
loss = (w * 2).sum()
loss.backward()
opt.step()
losses.append(loss.item())
steps += 1
host = w.detach().cpu().numpy()
print(loss)
"""
    # WHEN
    result = session.good(f"%%paramgraph diagnose -o why\n{cell}")
    # THEN it has run once, and all is found that a function of these lines would show
    assert len(session["losses"]) == session["steps"] == 1
    found = {(f.code, f.frame.line) for f in session["why"].failures if f.frame is not None}
    wanted = {("optimizer-not-capturable", 5), ("sync-item", 6), ("host-counter", 7), ("copy-to-cpu", 8), ("print", 9)}
    assert found >= wanted
    assert result.shown[0]["text/plain"] == str(session["why"])


def test_a_cell_is_mended_with_its_own_words(session: Session) -> None:
    # GIVEN a cell with two problems WHEN it is to be fixed
    result = session.good(
        "%%paramgraph diagnose --fix -o why\n"
        "import torch\nscale = 1 / x.abs().max().item()\nx[[1]] * scale * torch.tensor(2.0, device=x.device)"
    )
    # THEN the diff is in its lines, and one graph of it gives its numbers
    fix = session["why"].fix
    assert fix is not None
    assert "+scale = 1 / x.abs().max().detach()" in fix.diff
    assert "+x[1:2] * scale * torch.full((), 2.0, device=x.device)" in fix.diff
    assert fix.complete, str(fix)
    assert fix.diff in result.shown[0]["text/plain"]


def test_what_a_cell_reads_and_does_not_make_is_told_to_be_made_before_it(session: Session) -> None:
    # GIVEN a cell that makes a tensor of numbers each time WHEN it is to be fixed
    session.good("%%paramgraph diagnose --fix -o why\nimport torch\nx + torch.tensor([1.0, 2.0], device=x.device)[:1]")
    # THEN it reads one that stays, and the line that makes it is told, which the cell itself would run again
    fix = session["why"].fix
    assert fix is not None
    assert fix.complete, str(fix)
    made = "`constant_on_device = torch.tensor([1.0, 2.0], device="
    assert "+x + constant_on_device[:1]" in fix.diff, fix.diff
    assert any(made in line and "once, in a cell before this one" in line for line in fix.verified), fix.verified


def test_diagnose_of_a_cell_that_is_right(session: Session) -> None:
    result = session.good("%%paramgraph diagnose -o why\nx.sum()")
    assert not session["why"]
    assert result.shown[-1]["text/plain"].startswith("cell: no problems (")
    # and one that only replays is not what a graph would hold
    captured = "import paramgraph_kit as pgk\ng = pgk.cuda.CUDAGraph()\nwith pgk.cuda.graph(g):\n    y = x * 2\n"
    session.good(captured)
    again = session.good("%%paramgraph diagnose -o why\ng.replay()")
    assert session["why"] is None
    assert "the cell raised nothing; it captures by itself" in again.out
    # but one that calls what is named like a capture is looked at
    session.good("%%paramgraph diagnose -o why\ndef knn_graph(x):\n    return x.sum().item()\nknn_graph(x)")
    why: Any = session["why"]
    assert [f.code for f in why] == ["sync-item"]
    # WHEN one captures, and keeps results THEN what is around its replays is told at the cell's lines
    session.good(f"%%paramgraph diagnose -o why\n{captured}g.replay()")
    assert not session["why"]
    kept = "kept = []\nfor n in range(3):\n    x.add_(n)\n    g.replay()\n    kept.append(y)\nlen(kept)"
    session.good(f"%%paramgraph diagnose -o why\n{captured}{kept}")
    why = session["why"]
    assert [(f.code, f.frame.text) for f in why] == [("output-alias", "kept.append(y)")]
    swapped = (
        "weights = [p.detach() + 1]\nfor n in range(2):\n    weights[0], p.data = p.data, weights[0]\n    g.replay()"
    )
    made = f"import torch\np = torch.nn.Parameter(x.clone())\n{captured.replace('x * 2', 'p.detach() * 2')}"
    session.good(f"%%paramgraph diagnose -o why\n{made}{swapped}\nx = x + 1\ng.replay()")
    why = session["why"]
    told = [(f.code, f.frame.text, f.fix.splitlines()[-1].split(maxsplit=1)[1]) for f in why]
    words = "held = p.data.clone(); p.data.copy_(weights[0]); weights[0] = held"
    assert told == [("parameter-rebound", "weights[0], p.data = p.data, weights[0]", words)]


def test_the_story_of_a_cell_and_of_a_function(session: Session) -> None:
    # GIVEN WHEN a cell's story is told
    result = session.good("%%paramgraph story -o told\ny = x * 2\nif y.sum() > 100:\n    y = y / 2\ny + 1")
    # THEN it comes to its end, with the cell's own lines
    assert session["told"].complete, result.out
    assert "+y = torch.where(y.sum() > 100, y / 2, y)" in result.out
    # and a function's too
    session.good("def double(x):\n    return x * 2")
    session.good("%paramgraph story double, x -o told")
    assert session["told"].complete
    session.refused("%paramgraph story")


def test_a_cell_that_is_one_call_is_the_function_that_it_calls(session: Session) -> None:
    # GIVEN a step that counts on the host, and its arguments
    session.good("seen = []\nargs = (x,)\ndef step(x):\n    y = x * 2\n    seen.append(y.sum().item())\n    return y")
    # WHEN a cell is nothing but its call, or a line names both THEN what the host does moves behind the launch
    for told in ("%%paramgraph story -o told\nout = step(*args)", "%paramgraph story step, *args -o told"):
        session.good(told)
        assert session["told"].complete, str(session["told"])
        assert "call after_step(y) after each launch" in str(session["told"])
    session.good("%%paramgraph diagnose --fix -o found\nstep(x)")
    assert "+def after_step(y):  # after each launch" in session["found"].fix.diff


def test_a_cell_that_prints_is_a_function_with_the_prints_behind_its_launch(session: Session) -> None:
    # GIVEN a cell as notebooks begin with: a step, and what it came to printed under it
    session.good("import torch\nw = torch.nn.Parameter(torch.ones(3, device=x.device))\nlosses, steps = [], 0")
    session.good("opt = torch.optim.SGD([w], lr=0.1)")
    step = """import math

opt.zero_grad()
loss = (w * 2 - math.pi).pow(2).sum()
loss.backward()
opt.step()
losses.append(loss.item())
steps += 1
print(loss.item(), f\'\'\'a text
  of lines {steps}\'\'\')
"""
    session.good(step)
    # WHEN it is to be fixed
    shown = session.good(f"%%paramgraph diagnose --fix -o why\n{step}").shown[0]["text/plain"]
    # THEN its lines are a function, and what the host does comes behind each launch
    fix = session["why"].fix
    assert fix.alone == "step", session["why"]
    assert "the same behind each launch, in `after_step`, as in the diff" in shown
    # AND the cell as it is written there does what the cell did
    lines = next(text for file, text in fix.texts.items() if "def step():\n" in text)
    session.good("w.data.fill_(1)\nwas, losses = losses[:1], []")
    said = session.good("".join(lines)).out
    assert session["losses"] == pytest.approx(session["was"])
    assert said.endswith(f"a text\n  of lines {session['steps']}\n")
    # AND the story of such a cell goes on with the function
    session.good("%%paramgraph story -o told\ny = x * 2\nprint('sum', y.sum().item())")
    assert session["told"].complete


def test_the_story_of_a_cell_ends_with_what_its_author_can_write(session: Session) -> None:
    # GIVEN a cell that has its names in a with statement WHEN its story is told
    session.good(
        "%%paramgraph story -o told\nwith torch.no_grad():\n    h = x * 2\n    if h.sum() > 100:\n"
        "        h = h / 2\n    y = h + 1"
    )
    # THEN what it makes anew is no state, and no name is asked for that only the tool has given
    assert session["told"].complete, str(session["told"])
    said = "with the cell's lines in a function:\n   launched = pgk.parameterize(step, state=(x,))"
    assert said in str(session["told"])
    # WHEN it is a call with a name that nobody has given THEN that is said, as of any other cell
    session.good("%%paramgraph story -o told\ny = nobody(x)")
    assert "it does not run eagerly: NameError: name 'nobody' is not defined. Make it run first" in str(session["told"])


# A line


def test_diagnose_explains_the_last_exception_after_a_slip_too(session: Session) -> None:
    # GIVEN a capture that failed, then a verb that does not exist
    assert not session.run(BROKEN).success
    session.refused("%paramgraph diagnos")
    # WHEN THEN the failure is explained, not the slip
    assert "[sync-item]" in session.good("%paramgraph diagnose").shown[0]["text/plain"]
    session.good("error = RuntimeError('CUDA graphs must be captured on a non-default stream.')")
    session.good("%paramgraph diagnose error -o why")
    assert session["why"].failure.code == "default-stream"


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        ("partitions", View, "[graphed]"),
        ("graph", Picture, "capture 0"),
        ("graph --allocations", Picture, "capture 0"),
        ("memory", View, "default"),
        ("report", Report, "kernels in graphs"),  # of all that is alive in this process
        ("report model", Report, "kernels in graphs     1 of 1"),
        ("partitions model", View, "[graphed]"),
        ("graph --capture 0 trace", Picture, "capture 0"),
        ("graph [trace,  trace][-1] --capture 0", Picture, "capture 0"),
        ("memory trace if trace.launches else None", View, "default"),
    ],
)
def test_each_view_is_shown_bound_and_written(
    session: Session, tmp_path: Path, line: str, kind: type, says: str
) -> None:
    # GIVEN
    session.good(f"%%paramgraph watch -o trace\n{CALLS}")
    page = tmp_path / "page.html"
    # WHEN
    result = session.good(f"%paramgraph {line} -o found --html={page}")
    # THEN
    assert isinstance(session["found"], kind)
    (shown,) = result.shown
    assert says in shown["text/plain"]
    assert result.out == f"page: {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!")


def test_save_writes_the_last_trace_or_another(session: Session, tmp_path: Path) -> None:
    # GIVEN two watched cells
    session.good(f"%%paramgraph watch -o first --title first\n{CALLS}")
    session.good("%%paramgraph watch --title second\npass")
    # WHEN
    result = session.good(f"%paramgraph save '{tmp_path}/a b.pgtrace' -o path")
    session.good(f"%paramgraph save --strip-source {tmp_path}/first.pgtrace first")
    # THEN
    assert result.out == f"saved: {tmp_path}/a b.pgtrace\n"
    assert pgk.load(session["path"]).title == "second"
    assert pgk.load(tmp_path / "first.pgtrace").launches == session["first"].launches
    # and a file is an expression as well
    session.good(f"%paramgraph partitions pgk.load('{tmp_path}/a b.pgtrace') -o found")
    assert isinstance(session["found"], View)


# Help and errors


def test_help_is_the_docstring_and_names_every_verb(session: Session) -> None:
    # WHEN
    doc = session.shell.find_line_magic("paramgraph").__doc__
    asked = session.good("%paramgraph -h")
    # THEN all verbs and options are in it, from the parser that reads them
    assert asked.out in doc
    for verb in ("watch", "diagnose", "story", "explore", "partitions", "graph", "memory", "report", "save"):
        said = session.good(f"%paramgraph {verb} --help").out
        assert said.startswith(f"usage: %paramgraph {verb} [-h]")
        assert said in doc
    assert session.shell.object_inspect("%paramgraph")["docstring"] == doc.rstrip()
    assert "usage: %paramgraph save" in session.shell.object_inspect_mime("%paramgraph")["text/plain"]


def test_the_bare_magic_shows_what_can_be_done(session: Session) -> None:
    said = session.good("%paramgraph").out
    assert said.startswith("Watch a cell, find out why a capture failed")
    assert all(f"\n    {verb} " in said for verb in ("watch", "diagnose", "story", "explore", "save"))


CELLS = {
    "a loop": "for i in range(3):\n    y = x * i\n    kept.append(y.sum().item())",
    "a function of the cell": "def inner(a):\n    if a.sum() > 0:\n        return a * 2\n    return a\ny = inner(x)",
    "a comprehension": "values = [float(row.sum()) for row in x]",
    "a walrus": "a, *rest = x.unbind(0)\nif (s := a.sum().item()) > 100:\n    a = a * s\nout = torch.stack([a, *rest])",
    "attributes": "box.n += 1\nbox.state = box.state * 0.9 + x\nprint(box.n)",
    "a class of the cell": "class M:\n    def forward(self, a):\n        return a.nonzero()\ny = M().forward(x)",
    "try": "try:\n    k = int((x > 0).sum())\nexcept ValueError:\n    k = 0\ny = x[:k]",
    "with": "with torch.no_grad():\n    y = x @ host.to(x.device)\n    z = y[y > 0]",
}


def test_a_cell_and_a_function_of_its_lines_get_one_answer(session: Session, tmp_path: Path) -> None:
    session.good(
        "import torch\nfrom types import SimpleNamespace\nx = torch.randn(4, 4, device=x.device)\nkept = []\n"
        "host = torch.ones(4, 4)\nbox = SimpleNamespace(n=0, state=torch.zeros_like(x))"
    )
    for number, (name, cell) in enumerate(CELLS.items()):
        # GIVEN lines that are no straight program WHEN looked at as a cell, and as a function in a file
        session.good(f"%%paramgraph diagnose -o why\n{cell}")
        file = tmp_path / f"lines{number}.py"
        file.write_text("def lines():\n" + "".join(f"    {line}\n" for line in cell.splitlines()))
        exec(compile(file.read_text(), str(file), "exec"), session.shell.user_ns)
        found = pgk.diagnose(session["lines"])
        # THEN the same is found
        of_cell, of_function = (
            [(f.code, f.frame and f.frame.text) for f in d.failures] for d in (session["why"], found)
        )
        assert of_cell, name
        assert sorted(map(str, of_cell)) == sorted(map(str, of_function)), name


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%paramgraph wach", "%paramgraph: argument VERB: invalid choice: 'wach'"),
        ("%paramgraph graph --captur 1", "%paramgraph graph: unrecognized arguments: --captur"),
        ("%paramgraph graph --capture one", "%paramgraph graph: argument --capture: invalid int value: 'one'"),
        ("%paramgraph graph -o 3x", "%paramgraph graph: argument -o: '3x' is no name for a variable"),
        ("%paramgraph graph -o class", "%paramgraph graph: argument -o: 'class' is no name for a variable"),
        ("%paramgraph graph", "%paramgraph graph: nothing is watched yet: run a cell with %%paramgraph watch"),
        ("%paramgraph graph missing", "%paramgraph graph: missing: NameError: name 'missing' is not defined"),
        ("%paramgraph graph x +", "%paramgraph graph: x +: SyntaxError: invalid syntax"),
        ("%paramgraph graph f(x", "%paramgraph: a bracket is not closed in: graph f(x"),
        ("%paramgraph graph 'x", "%paramgraph: ' is not closed in: graph 'x"),
        ("%paramgraph graph 3", "%paramgraph graph: explore takes a trace, a report or a compiled model, not an int"),
        ("%paramgraph graph 'a.pgtrace'", "%paramgraph graph: explore takes a trace, a report or a compiled model"),
        (
            "%paramgraph graph pgk.report(pgk.compile(lambda x: x))",
            "%paramgraph graph: graph(0): no such capture; this trace has no captures",
        ),
        ("%paramgraph report 3", "%paramgraph report: report takes a compiled function or module, not an int"),
        ("%paramgraph save", "%paramgraph save: the following arguments are required: FILE"),
        ("%paramgraph save /no/such/folder/a.pgtrace pgk.report()", "%paramgraph save: /no/such/folder/a.pgtrace"),
        ("%paramgraph diagnose", "%paramgraph diagnose: nothing has failed yet"),
        ("%paramgraph diagnose 3", "%paramgraph diagnose: diagnose takes the exception that a failed capture raised"),
        ("%paramgraph watch", "%paramgraph watch: needs a cell: write %%paramgraph watch in a cell's first line"),
        ("%%paramgraph watch model\npass", "%paramgraph watch: unrecognized arguments: model"),
        ("%%paramgraph graph\npass", "%paramgraph graph: takes no cell: write %paramgraph graph"),
        ("%%paramgraph diagnose x\npass", "%paramgraph diagnose: takes a cell or an expression, not both"),
    ],
)
def test_a_wrong_line_gets_one_line(session: Session, cell: str, says: str) -> None:
    assert session.refused(cell).startswith(says)


def test_a_page_that_cannot_be_written_is_one_line_after_the_view(session: Session, tmp_path: Path) -> None:
    result = session.run(f"%paramgraph report -o found --html {tmp_path / 'no' / 'page.html'}")
    assert len(result.shown) == 1
    assert isinstance(session["found"], Report)
    assert type(result.error_in_exec).__name__ == "UsageError"
    assert (result.out + result.err).startswith("UsageError: %paramgraph report: ")


# Loading and unloading


def test_unload_leaves_nothing(session: Session) -> None:
    # GIVEN a shell without the extension, then one in which it was used
    shell = session.shell
    session.good("%unload_ext paramgraph_kit")
    names, known = set(shell.user_ns), len(shell.configurables)
    registry = set(shell.magics_manager.registry)
    session.good("%load_ext paramgraph_kit")
    assert session.magics() == ["line", "cell"]
    session.good("%%paramgraph watch\npass")
    session.good("%paramgraph partitions")
    magics = weakref.ref(shell.magics_manager.registry["ParamgraphMagics"])
    # WHEN
    session.good("%unload_ext paramgraph_kit")
    # THEN neither magic nor name nor object is left
    assert session.magics() == []
    assert {name for name in set(shell.user_ns) - names if not name.startswith("_")} == set()
    assert set(shell.magics_manager.registry) == registry
    assert len(shell.configurables) == known
    gc.collect()
    assert magics() is None
    assert "not found" in session.run("%paramgraph report").err


def test_load_twice_and_reload_keep_one_magic(session: Session) -> None:
    # GIVEN WHEN
    known = len(session.shell.configurables)
    pgk.load_ipython_extension(session.shell)
    session.good("%reload_ext paramgraph_kit")
    # THEN it works, once, and what the package exports is what it was
    assert len(session.shell.configurables) == known
    session.good("%%paramgraph watch -o trace\npass")
    assert callable(pgk.explore)
    assert isinstance(session["trace"], Trace)


def test_unload_leaves_another_magic_of_that_name(session: Session) -> None:
    # GIVEN a user's own magic that took the name
    def paramgraph(line: str) -> str:
        return line

    session.shell.register_magic_function(paramgraph, "line")
    # WHEN
    session.good("%unload_ext paramgraph_kit")
    # THEN
    assert session.magics() == ["line"]
    assert session.good("%paramgraph mine").result == "mine"
