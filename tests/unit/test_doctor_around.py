"""Where a function may be called from: read from its file, however long that is."""

from __future__ import annotations

import linecache
import time
from pathlib import Path
from typing import Any

from paramgraph_kit.doctor.observe.gradients import around


def loaded(text: str, file: Path) -> dict[str, Any]:
    """The names of a program, run from a file of its own."""
    file.write_text(text)
    linecache.checkcache(str(file))
    names: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), names)
    return names


def test_names_mean_something_else_inside_of_a_function_that_has_its_own(tmp_path: Path) -> None:
    # GIVEN two functions beside the one that is looked at, one of which has a variable of its own called like a global
    text = "n, m = 1, 2\ndef one(): n = 3\ndef other(m): global n; n = 4\ndef f(): pass\n"
    names = loaded(text, tmp_path / "program.py")
    # WHEN the pieces around it are collected THEN what each leaves of the globals is what the name means there
    scopes = {getattr(s.body, "name", ""): s.names for s in around(names["f"]) if s.file.startswith(str(tmp_path))}
    assert {name: ("n" in found, "m" in found) for name, found in scopes.items()} == {
        "": (True, True),
        "one": (False, True),
        "other": (True, False),
        "f": (True, True),
    }


def test_a_long_file_is_read_in_no_time(tmp_path: Path) -> None:
    # GIVEN a file of 300 functions and as many variables
    text = "\n".join(f"v{n} = {n}\ndef f{n}(x):\n    for i in range(x):\n        x += i * v{n}\n" for n in range(300))
    names = loaded(text, tmp_path / "program.py")
    # WHEN what is around one of them is collected THEN that takes no longer than reading it once or twice
    begun = time.process_time()
    assert len(around(names["f7"])) > 300
    assert time.process_time() - begun < 1.5
