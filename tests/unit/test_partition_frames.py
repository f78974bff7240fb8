from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest
import torch

import paramgraph_kit.partition.frames as frames
from paramgraph_kit.partition.frames import user_frame

TORCH = str(Path(torch.__file__).parent)
OURS = str(Path(frames.__file__).parents[1])


def printed(*locations: tuple[str, int, str, str]) -> str:
    return "\n".join(f'  File "{file}", line {line}, in {name}\n    {text}' for file, line, name, text in locations)


@pytest.mark.parametrize(
    "library",
    [
        os.path.join(TORCH, "nn", "modules", "linear.py"),
        os.path.join(OURS, "backend", "fx.py"),
        "/usr/lib/python3/site-packages/einops/einops.py",
        "<frozen importlib>",
    ],
)
def test_the_innermost_line_of_the_user_is_found_below_a_library(library: str) -> None:
    # GIVEN a trace that goes from two lines of the user's into a library
    trace = printed(
        ("train.py", 3, "main", "step(x)"), ("train.py", 7, "step", "y = layer(x)"), (library, 9, "forward", "return 1")
    )
    # WHEN the user's line is asked for
    frame = user_frame(trace)
    # THEN it is the inner one of the two
    assert frame is not None
    assert (frame.label(), frame.function) == ("train.py:7  y = layer(x)", "step")


def test_markers_under_a_line_are_not_taken_for_code() -> None:
    # GIVEN a trace as Python 3.11 prints it, with carets, and a remark of autograd's
    trace = printed(("a.py", 1, "f", "y = x @ w\n        ^^^^^")) + "\nGradient addition node due to multiple use"
    # WHEN it is read
    frame = user_frame(trace)
    # THEN the text is the line of code
    assert frame is not None
    assert frame.text == "y = x @ w"


def test_a_trace_without_a_user_line_has_no_frame() -> None:
    # GIVEN a trace inside torch only, and an empty one
    traces = [printed((os.path.join(TORCH, "_ops.py"), 1, "f", "x")), ""]
    # WHEN they are read THEN nothing is made up
    assert [user_frame(trace) for trace in traces] == [None, None]


def test_a_notebook_cell_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a running IPython that knows a file name as cell 3
    names = {"/tmp/ipykernel_1/77.py": ("Cell", "In[3]")}
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(format_code_name=names.get))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    # WHEN lines of that cell and of a file are read
    cell = user_frame(printed(("/tmp/ipykernel_1/77.py", 2, "<module>", "y = x + 1")))
    file = user_frame(printed(("lib.py", 2, "g", "return x")))
    # THEN the cell is shown by number and the file by name
    assert cell is not None
    assert file is not None
    assert (cell.label(), file.label()) == ("<cell 3>:2  y = x + 1", "lib.py:2  return x")
    # AND once it has run again it is named by the number that it has now
    names["/tmp/ipykernel_1/77.py"] = ("Cell", "In[12]")
    again = user_frame(printed(("/tmp/ipykernel_1/77.py", 2, "<module>", "y = x + 1")))
    assert again is not None
    assert again.file == "<cell 12>"
