"""Keeps the notebooks canonical and true: ``python scripts/notebooks.py check|fix|run|execute|cells [NOTEBOOK ...]``.

check    says what is not canonical, changes nothing (part of `make test`)
fix      makes it canonical (part of `make format`)
run      runs each notebook under nbval: every stored output must come out again
execute  runs each notebook and stores its outputs, canonically: after changing a cell or what it shows
cells    runs the code cells without Jupyter: on a GPU machine that has torch and little else; each notebook in a
         process of its own with --jobs N (and all solutions, no unsolved exercises, where none is named)

Exercises are kept twice: as people get them, in exercises/, and solved, in exercises/solutions/. Their last code cell
prints "not yet: ..." or "right: ...". `run` leaves out the unsolved ones, whose task is not done: a test runs them.

Canonical means: execution counts and cell ids in order, no widget state, fixed metadata, outputs kept. That keeps
differences readable and lets a notebook be shown where no kernel runs. (nbval wants counts: without one it takes a
cell for never run. In order, they are also what a message about "cell 3" means.)
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib.util
import io
import itertools
import json
import linecache
import os
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
EXERCISES = FOLDER / "exercises"
NOT_YET = "not yet:"
SANITIZE = FOLDER / "nbval_sanitize.cfg"
MAX_CELLS = 15
WARM = "warm"  # the name of a kernel that has imported everything, see warm_kernel.py
KERNELS = "PARAMGRAPH_KERNELS"  # the folder of their sockets, see kernels_over_files.py
MAX_BYTES = 300_000

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# Output types that need a running kernel, and are shown as an error without one.
LIVE_MIMETYPES = ("application/vnd.jupyter.widget-view+json",)

STORED = 'class="paramgraph-stored"'

Json = dict[str, Any]


def notebooks() -> list[Path]:
    """Every committed notebook, in reading order."""
    return sorted(p for p in FOLDER.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)


def unsolved() -> list[Path]:
    """The exercises as people get them."""
    return [path for path in notebooks() if path.parent == EXERCISES]


def canonical(notebook: Json) -> Json:
    """The same notebook without anything that changes from run to run or from editor to editor."""
    count = itertools.count(1)
    return {
        "cells": [
            _cell(index, cell, next(count) if cell["cell_type"] == "code" else 0)
            for index, cell in enumerate(notebook["cells"])
        ],
        "metadata": METADATA,
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def dumps(notebook: Json) -> str:
    """The text of a notebook file, as Jupyter itself would write it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def problems(path: Path) -> list[str]:
    """What is wrong with a notebook file; empty if nothing is."""
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    cells = notebook["cells"]
    found = []
    if dumps(canonical(notebook)) != text:
        found.append("not canonical: run `make format`")
    if len(cells) > MAX_CELLS:
        found.append(f"{len(cells)} cells, at most {MAX_CELLS}: split the lesson")
    if len(text.encode()) > MAX_BYTES:
        found.append(f"{len(text.encode()):,} bytes, at most {MAX_BYTES:,}: smaller pictures")
    if not cells or "source:" not in _first_output(cells):
        found.append("the first code cell must print the environment with a `source:` line")
    bare = [number for number, cell in enumerate(cells) if cell["cell_type"] == "code" and _asserts_barely(cell)]
    found += [f"cell {number}: an assert says nothing where it fails: add a message" for number in bare]
    return found


def _asserts_barely(cell: Json) -> bool:
    text = "".join(line for line in _lines(cell["source"]) if not line.lstrip().startswith(("%", "!")))
    try:
        tree = ast.parse(text)
    except SyntaxError:  # of a magic with a body of its own
        return False
    return any(isinstance(node, ast.Assert) and node.msg is None for node in ast.walk(tree))


def run(paths: Sequence[Path]) -> int:
    """Run notebooks under nbval; returns 1 if one fails."""
    status, said = side_by_side(paths)
    print(said)
    return status


def side_by_side(paths: Sequence[Path], *options: str) -> tuple[int, str]:
    """Run notebooks under nbval, shared out to a process for each core; returns 1 if one fails, and all they said."""
    cores = os.cpu_count() or 1
    with warm_kernels() as environment, contextlib.ExitStack() as stack:
        runs = []
        for batch in filter(None, (paths[first::cores] for first in range(cores))):
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            runs.append((_nbval(batch, options, environment, output), output))
        waited = [run.wait() for run, _ in runs]
        for _, output in runs:
            output.seek(0)
        return int(any(waited)), "".join(output.read() for _, output in runs).rstrip()


def _nbval(
    paths: Iterable[Path], options: Iterable[str], environment: dict[str, str], output: IO[str]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", "--disable-plugin-autoload", "-p", "nbval", "-p", "no:cacheprovider"]
    command += ["-p", "scripts.kernels_over_files"]
    command += ["--nbval", "--nbval-sanitize-with", str(SANITIZE), "--nbval-kernel-name", WARM, "-q", *options]
    command += ["--nbval-kernel-startup-timeout", "600"]  # beside other work
    # The marker and warning settings of the project are for its test modules, not for notebook cells.
    command += ["-o", "addopts=", "-o", "filterwarnings=default", *map(str, paths)]
    environment = {**environment, "PYTEST_ADDOPTS": ""}  # nor are those that a run of them was given
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)


@contextlib.contextmanager
def warm_kernels() -> Iterator[dict[str, str]]:
    """The environment in which Jupyter finds the kernel ``WARM``, for as long as the block runs."""
    program = str(ROOT / "scripts" / "warm_kernel.py")
    with tempfile.TemporaryDirectory() as folder:
        kernel = Path(folder) / "kernels" / WARM
        kernel.mkdir(parents=True)
        start = [sys.executable, "-S", program, "start", folder, "{connection_file}"]
        spec = {"argv": start, "display_name": WARM, "language": "python"}
        (kernel / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        server = subprocess.Popen([sys.executable, program, "serve", folder])
        try:
            path = os.pathsep.join([folder, os.environ.get("JUPYTER_PATH", "")])
            yield {**os.environ, "JUPYTER_PATH": path, KERNELS: folder}
        finally:
            server.terminate()
            server.wait()


def execute(path: Path) -> None:
    """Run a notebook from its first cell and store its outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=600, store_widget_state=False, resources={"metadata": {"path": FOLDER}})
    client.execute()
    path.write_text(dumps(canonical(json.loads(nbformat.writes(notebook)))), encoding="utf-8")


def cells(path: Path, turns: int = 1) -> None:
    """Run a notebook's code cells one after the other in one namespace, all of them again for each further turn.

    A claim that fails raises.

    So does the check of an exercise that was right when its output was stored.
    """
    import torch
    from torch._dynamo.backends.registry import list_backends, register_backend

    if "paramgraph" not in list_backends():  # run from a checkout that is not installed: no entry point names it
        from paramgraph_kit.backend import paramgraph

        register_backend(paramgraph, name="paramgraph")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    print(path.name)
    gc.collect()  # what the notebook before has left: in a kernel of its own there is nothing of it
    program, main_module = types.ModuleType("__main__"), sys.modules["__main__"]
    sys.modules["__main__"] = program  # as in a kernel: Dynamo looks names of ``__main__`` up there
    absent: set[str] = set()
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    try:
        with torch.enable_grad():  # a notebook may switch gradients off; the next one finds them on
            for number, cell in list(enumerate(code, 1)) * turns:
                # Named as IPython names a cell: diagnoses then take it for the user's code, and quote its lines.
                source, name = "".join(cell["source"]), f"<ipython-input-{number}-{path.stem}>"
                linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
                printed = io.StringIO()
                try:
                    with contextlib.redirect_stdout(printed):
                        _run_cell(source, name, vars(program), absent)
                finally:
                    print(printed.getvalue(), end="")
                stored = "".join("".join(output.get("text", "")) for output in cell["outputs"])
                if NOT_YET in printed.getvalue() and NOT_YET not in stored:
                    text = f"{path.name}, cell {number}: this was right when it was stored, and no longer is"
                    raise AssertionError(text)
                print(f"cell {number} ok", flush=True)
    finally:
        sys.modules["__main__"] = main_module


def cells_of_all(paths: Sequence[Path], jobs: int, limit_s: float) -> int:
    """Run notebooks' cells in ``jobs`` processes; returns how many failed, or took longer than ``limit_s``."""

    def one(path: Path) -> bool:
        command, began = [sys.executable, __file__, "cells", str(path)], time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
            said, good = done.stdout + done.stderr, done.returncode == 0
        except subprocess.TimeoutExpired as late:
            said, good = f"{(late.stdout or b'').decode()}\nmore than {limit_s:.0f} s", False
        shown = "" if good else "\n" + "\n".join(said.splitlines()[-60:])
        name = path.relative_to(FOLDER)
        print(f"{'ok    ' if good else 'FAILED'} {name} {time.monotonic() - began:.0f} s{shown}", flush=True)
        return good

    with ThreadPoolExecutor(jobs) as pool:
        return sum(not good for good in pool.map(one, paths))


def _run_cell(source: str, name: str, scope: dict[str, Any], absent: set[str]) -> None:
    """Run a cell as a program; a figure that it would show needs plotly, its claims do not.

    ``absent`` has the names that stand for plotly where there is none; a cell that uses one is left out.
    """
    from paramgraph_kit.trace.errors import UnsupportedError

    tree = ast.parse(source, name)
    if importlib.util.find_spec("plotly") is None:
        imports = [node for node in tree.body if isinstance(node, ast.Import) and "plotly" in ast.unparse(node)]
        absent.update(alias.asname or alias.name for node in imports for alias in node.names)
        tree.body = [node for node in tree.body if node not in imports]
        if any(isinstance(node, ast.Name) and node.id in absent for node in ast.walk(tree)):
            print("a figure is left out: it needs plotly")
            return
    shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    try:
        exec(compile(tree, name, "exec"), scope)
    except AssertionError as error:
        _tell_values(error, tree, name, scope)
        raise
    if isinstance(shown, ast.Expr):
        try:
            eval(compile(ast.Expression(shown.value), name, "eval"), scope)
        except UnsupportedError as error:
            if "plotly" not in str(error) or importlib.util.find_spec("plotly") is not None:
                raise
            print(f"a figure is left out: {error}")


def _tell_values(error: AssertionError, tree: ast.Module, name: str, scope: dict[str, Any]) -> None:
    """Print the claim that failed, and what the names in it stand for: a traceback shows neither."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == name]
    claims = [node for node in ast.walk(tree) if isinstance(node, ast.Assert) and node.lineno in lines]
    for claim in claims:
        print(f"not so: {ast.unparse(claim)}")
        names = {node.id for node in ast.walk(claim) if isinstance(node, ast.Name)} & scope.keys()
        for each in sorted(names):
            print(f"  {each} = {str(scope[each])[:2000]}")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["check", "fix", "run", "execute", "cells"])
    parser.add_argument("notebook", nargs="*", type=Path, help="default: all (run: all that are solved)")
    parser.add_argument("--jobs", type=int, default=0, help="cells: so many notebooks at once, each in a process")
    parser.add_argument("--limit", type=float, default=300, metavar="S", help="cells --jobs: seconds for a notebook")
    parser.add_argument("--twice", action="store_true", help="cells: run all, and all again, as people do")
    options = parser.parse_intermixed_args(arguments)
    paths = [p.resolve() for p in options.notebook] or notebooks()

    if options.verb == "run":
        return run(paths if options.notebook else [path for path in paths if path not in unsolved()])
    if options.verb == "cells" and options.jobs:
        chosen = paths if options.notebook else [path for path in paths if path not in unsolved()]
        return int(cells_of_all(chosen, options.jobs, options.limit) > 0)
    if options.verb == "check":
        found = [f"{path.name}: {problem}" for path in paths for problem in problems(path)]
        print("\n".join(found) or f"{len(paths)} notebooks are canonical")
        return bool(found)
    for path in paths:
        if options.verb == "execute":
            execute(path)
        elif options.verb == "cells":
            cells(path, 2 if options.twice else 1)
        else:
            path.write_text(dumps(canonical(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    return 0


def _cell(index: int, cell: Json, count: int) -> Json:
    tags = cell["metadata"].get("tags")
    kept: Json = {
        "cell_type": cell["cell_type"],
        "id": f"cell-{index:02d}",
        "metadata": {"tags": tags} if tags else {},
        "source": _lines(cell["source"]),
    }
    if cell["cell_type"] == "code":
        kept["execution_count"] = count
        kept["outputs"] = []
        for output in (_output(one, count) for one in cell["outputs"] if not _stands_in(one)):
            last = kept["outputs"][-1] if kept["outputs"] else {}
            if output["output_type"] == "stream" and output["name"] == last.get("name"):
                last["text"] += output["text"]  # where a kernel cuts what is printed depends on its speed
            else:
                kept["outputs"].append(output)
    return kept


def _output(output: Json, count: int) -> Json:
    kept = dict(output)
    if "data" in kept:
        kept["data"] = {
            mime: _lines(data) if isinstance(data, str | list) and not mime.endswith("json") else data
            for mime, data in kept["data"].items()
            if mime not in LIVE_MIMETYPES
        }
        kept["metadata"] = {}
    if "text" in kept:
        kept["text"] = _lines(kept["text"])
    if kept["output_type"] == "execute_result":
        kept["execution_count"] = count
    return kept


def _stands_in(output: Json) -> bool:
    """Whether an output is the picture beside a live view, of which the view's own output has another."""
    return STORED in "".join(output.get("data", {}).get("text/html", ""))


def _lines(text: str | list[str]) -> list[str]:
    return "".join(text).splitlines(keepends=True)


def _first_output(cells: list[Json]) -> str:
    first: Json = next((cell for cell in cells if cell["cell_type"] == "code"), {"outputs": []})
    return "".join("".join(output.get("text", "")) for output in first["outputs"])


if __name__ == "__main__":
    sys.exit(main())
