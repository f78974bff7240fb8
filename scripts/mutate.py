"""Do the tests notice? Change one expression at a time in the launcher and run the tests that should fail.

    python -m scripts.mutate                 # 20 mutants drawn anew
    python -m scripts.mutate --count 100 --seed 7 --jobs 2 --out FILE    # goes on where FILE stopped
    python -m scripts.mutate launch/plan.py:150     # every mutant of one line
    python -m scripts.mutate capture launch --count 50     # drawn of two layers

Mutants are made and tested in a copy of the checkout, whose tests have to pass as it is (``--anyway`` names those that
do not and goes on without them). It prints each with whether a test noticed it, and ends with 1 if fewer than ``--aim``
of 100 were. What FILE has as unnoticed, or as open since ``--limit`` came before its tests' end, is tried again: tests
may have come. A mutant that changes nothing that anybody could see counts as unnoticed: read them.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "paramgraph_kit"
# What is changed, and the tests that are to notice, the quickest first.
TESTS: dict[str, tuple[str, ...]] = {
    "capture": (
        "unit/test_capture_words.py",
        "unit/test_capture_truth.py",
        "unit/test_capture_leftovers.py",
        "unit/test_capture_merge.py",
        "unit/test_capture_unused.py",
        "unit/test_capture_multi_tensor.py",
        "unit/test_capture_flash.py",
        "unit/test_capture_indexing.py",
        "unit/test_capture_grouped.py",
    ),
    "launch": (
        "unit/test_launch_stages.py",
        "unit/test_launch_plan.py",
        "integration/test_launch_sim_keys.py",
        "integration/test_recut_sim.py",
    ),
    "partition": (
        "unit/test_partition_order.py",
        "unit/test_partition_rules.py",
        "unit/test_partition_split.py",
        "unit/test_partition_frames.py",
        "unit/test_partition_names.py",
        "unit/test_partition_lanes.py",
        "unit/test_exact_cuts.py",
        "integration/test_order_sim.py",
        "integration/test_names_sim.py",
        "integration/test_fixed_sim.py",
        "integration/test_recut_sim.py",
        "integration/test_backend_fx.py",
        "integration/test_compiled_streams_sim.py",
    ),
    "step": (
        "integration/test_step_sim_refusals.py",
        "integration/test_step_sim_asked.py",
        "integration/test_parameterize_changes.py",
        "integration/test_step_sim_use.py",
        "integration/test_step_sim.py",
        "integration/test_step_sim_loops.py",
        "integration/test_step_sim_verify.py",
        "integration/test_step_sim_moves.py",
        "integration/test_step_sim_held.py",
        "integration/test_step_sim_memory.py",
        "integration/test_step_sim_streams.py",
        "integration/test_step_sim_wrappers.py",
        "integration/test_direct_calls.py",
    ),
    "driver/tensors.py": (),
    "driver/phantom_layout.py": ("unit/test_phantom_layout.py", "unit/test_capture_truth.py"),
    "driver/sim/graph.py": (
        "unit/test_sim_lazy_bits.py",
        "unit/test_sim_host_scalars.py",
        "unit/test_sim_driver.py",
        "unit/test_sim_capture.py",
        "unit/test_sim_capture_failures.py",
    ),
    "driver/sim/allocator.py": ("unit/test_sim_allocator.py", "unit/test_sim_counts.py"),
    "trace/format.py": ("unit/test_trace_format.py", "unit/test_trace_damaged.py"),
}
ALWAYS = (
    "unit/test_exact.py",
    "unit/test_exact_places.py",
    "unit/test_exact_plans.py",
    "unit/test_exact_gaps.py",
    "unit/test_exact_launch.py",
    "unit/test_exact_room.py",
    "unit/test_exact_probation.py",
    "integration/test_launch_sim.py",
    "integration/test_launch_sim_streams.py",
    "integration/test_launch_sim_metadata.py",
    "integration/test_launch_sim_stages.py",
    "integration/test_launch_sim_probation.py",
    "integration/test_launch_sim_failures.py",
    "integration/test_strict_sim.py",
)
FORKING = threading.Lock()  # filelock, which torch imports, refuses two forks at once
NONE_LEFT = 5  # what pytest ends with where all tests of a file are left out
LONGEST = 300  # seconds: a mutant that never ends has been noticed
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_TWINS = (("min", "max"), ("any", "all"), ("bisect_left", "bisect_right"))
_CALLED = {a: b for pair in _TWINS for a, b in (pair, pair[::-1])}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed expression: where, and the file's text with it."""

    path: str  # below the package
    line: int
    before: str
    after: str
    text: str

    @property
    def label(self) -> str:
        """One line for people."""
        return f"{self.path}:{self.line}  {self.before}  ->  {self.after}"


def mutants(path: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a file, in order.

    >>> [mutant.after for mutant in mutants("a.py", "def f(a):\\n    return a < 1 and a\\n")]
    ['a < 1 or a', 'a <= 1', '2']
    """
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    quiet = {id(inner) for node in ast.walk(tree) for inner in _not_run(node)}
    for node in ast.walk(tree):
        if id(node) in quiet or not isinstance(node, ast.expr):
            continue
        for other in _others(node):
            start, end = _span(lines, node)
            text = "".join(lines)
            changed = text.encode()[:start] + f"({ast.unparse(other)})".encode() + text.encode()[end:]
            yield Mutant(path, node.lineno, ast.unparse(node), ast.unparse(other), changed.decode())


def _not_run(node: ast.AST) -> Iterator[ast.AST]:
    """Annotations, decorators of classes, docstrings, assertions and the text of errors: nobody computes with them."""
    roots: list[ast.AST | None] = []
    if isinstance(node, ast.ClassDef):
        roots += node.decorator_list
    if isinstance(node, ast.FunctionDef):
        roots += [node.returns, *(each.annotation for each in [*node.args.args, *node.args.kwonlyargs])]
    if isinstance(node, ast.AnnAssign):
        roots.append(node.annotation)
    if isinstance(node, (ast.JoinedStr, ast.Assert)):
        roots.append(node)
    if isinstance(node, ast.keyword) and node.arg == "strict":  # an assertion: these have one length
        roots.append(node.value)
    for root in roots:
        if root is not None:
            yield from ast.walk(root)


def _span(lines: list[str], node: ast.expr) -> tuple[int, int]:
    """Where an expression is in the file, in bytes."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    at = list(itertools.accumulate((len(line.encode()) for line in lines), initial=0))
    return at[node.lineno - 1] + node.col_offset, at[node.end_lineno - 1] + node.end_col_offset


def _others(node: ast.expr) -> Iterator[ast.expr]:
    """What might have stood there."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARED:
            changed.ops = [_COMPARED[type(operator)]()]
            yield changed
        case ast.BoolOp():
            changed.op = ast.And() if isinstance(changed.op, ast.Or) else ast.Or()
            yield changed
        case ast.UnaryOp(op=ast.Not()):
            yield changed.operand
        case ast.BinOp() if type(changed.op) in _COUNTED:
            changed.op = _COUNTED[type(changed.op)]()
            yield changed
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
            changed.func = ast.Name(_CALLED[name])
            yield changed
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp():
            yield changed.body
            yield changed.orelse
        case ast.Subscript(slice=ast.Slice(lower=ast.expr())):
            assert isinstance(changed.slice, ast.Slice)
            changed.slice.lower = None
            yield changed


def files() -> list[str]:
    """The files that are changed, below the package."""
    found = []
    for name in TESTS:
        path = ROOT / PACKAGE / name
        found += [path] if path.is_file() else sorted(path.glob("*.py"))
    return [str(path.relative_to(ROOT / PACKAGE)) for path in found]


def tests_of(path: str) -> list[str]:
    """The tests that should notice a change in a file."""
    own = next(tests for name, tests in TESTS.items() if path.startswith(name))
    return [f"tests/{each}" for each in (*own, *(() if path.startswith("trace") else ALWAYS))]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of tests in a copy of the checkout."""

    passed: bool
    ended: bool  # before its limit
    failed: tuple[str, ...]  # tests, as pytest names them
    seconds: float


def outcome(name: str, checkout: Path, limit_s: float, without: Sequence[str] | None) -> Outcome:
    """Run a file of tests in a copy of the checkout: all, or without some and up to the first that fails."""
    failed, began = checkout / "failed.txt", time.monotonic()
    failed.write_text("")
    # A fork of a process that has imported torch: that is most of what a few quick tests take.
    child = multiprocessing.get_context("fork").Process(target=_tests, args=(checkout, name, without))
    with FORKING:
        child.start()
    child.join(limit_s)
    ended = not child.is_alive()
    if not ended:
        with suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)  # with what it started
        child.kill()
        child.join()
    return Outcome(
        child.exitcode in (0, NONE_LEFT), ended, tuple(failed.read_text().splitlines()), time.monotonic() - began
    )


def tried(mutant: Mutant, checkout: Path, limit_s: float, without: Sequence[str]) -> Outcome:
    """What the tests say, one file after the other, where a file has another text."""
    target = checkout / PACKAGE / mutant.path
    original, began = target.read_text(), time.monotonic()
    target.write_text(mutant.text)
    try:
        for name in tests_of(mutant.path):
            left = limit_s - (time.monotonic() - began)
            got = outcome(name, checkout, max(left, 0.1), without) if name not in without else None
            if got is not None and not got.passed:
                break
        else:
            return Outcome(True, True, (), time.monotonic() - began)
        return Outcome(False, got.ended, got.failed or (name,), time.monotonic() - began)
    finally:
        target.write_text(original)


class _Failures:
    """Writes down which tests fail, as they do."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Of one test, or of what comes before and after it."""
        if report.failed:
            self._note(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        """Of a file that cannot be imported."""
        if report.failed:
            self._note(report.nodeid)

    def _note(self, name: str) -> None:
        with self.file.open("a", encoding="utf-8") as out:
            print(name, file=out)


def _tests(checkout: Path, file: str, without: Sequence[str] | None) -> None:
    import pytest

    os.setsid()
    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    sys.dont_write_bytecode = True
    path = os.pathsep.join([str(checkout), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    os.environ |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in (PACKAGE, "tests", "scripts")]:
        del sys.modules[name]  # of the checkout that this runs in
    options = ["-q", "-p", "no:cacheprovider", *([] if without is None else ["-x"])]
    options += [f"--deselect={each}" for each in without or () if each.startswith(f"{file}::")]
    os._exit(int(pytest.main([*options, file], plugins=[_Failures(checkout / "failed.txt")])))


def drawn(where: list[str], count: int, seed: int) -> list[Mutant]:
    """The mutants to try: all of the given lines or files, or ``count`` of the given layers or of everything."""
    found: list[Mutant] = []
    for path in files():
        found += mutants(path, (ROOT / PACKAGE / path).read_text())
    if exact := [m for m in found if any(each in (m.path, f"{m.path}:{m.line}") for each in where)]:
        return exact
    found = [m for m in found if not where or m.path.partition("/")[0] in where]
    return random.Random(seed).sample(found, min(count, len(found)))


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", nargs="*", help="FILE or FILE:LINE below the package, or layers to draw from")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="results, one line each; a file that exists is continued")
    parser.add_argument("--limit", type=float, default=LONGEST, metavar="S", help="seconds for one mutant's tests")
    parser.add_argument("--aim", type=float, default=95.0, help="of 100")
    parser.add_argument("--anyway", action="store_true", help="go on without tests that fail as it is")
    given = parser.parse_args()
    chosen = drawn(given.where, given.count, given.seed)
    print(f"{len(chosen)} mutants, seed {given.seed}", flush=True)
    known = _load(given.out)
    for name in ("torch._dynamo", "torch._functorch.aot_autograd"):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        free: Queue[Path] = Queue()
        skipped = shutil.ignore_patterns("__pycache__", "node_modules")
        for number in range(given.jobs):
            checkout = Path(folder, str(number))
            for part in (PACKAGE, "tests", "scripts"):
                shutil.copytree(ROOT / part, checkout / part, ignore=skipped)
            shutil.copy(ROOT / "pyproject.toml", checkout)
            free.put(checkout)

        with ThreadPoolExecutor(given.jobs) as pool:
            asked = sorted({name for mutant in chosen for name in tests_of(mutant.path)})

            def usually(name: str) -> Outcome:
                return _lent(free, lambda checkout: outcome(name, checkout, 3 * given.limit, None))

            usual = dict(zip(asked, pool.map(usually, asked), strict=True))
            bad = [
                each
                for name, o in usual.items()
                if not o.passed
                for each in (o.failed or (name,) if o.ended else (name,))
            ]
            if bad:
                print(f"as it is, {len(bad)} fail or take too long: {' '.join(bad)}", flush=True)
                if not given.anyway:
                    return 2

            def attempt(mutant: Mutant) -> bool | None:
                if known.get(mutant.label):
                    return True
                names = tests_of(mutant.path)
                got = _lent(free, lambda at: tried(mutant, at, given.limit, bad))
                # What never ends has been noticed; what had too little time has not been judged.
                enough = got.ended or given.limit > 3 * sum(usual[name].seconds for name in names)
                found = not got.passed if enough else None
                said = {True: "noticed  ", False: "UNNOTICED", None: "open     "}[found]
                print(f"{said} {mutant.label}", flush=True)
                if given.out is not None:
                    row = {"mutant": mutant.label, "noticed": found, "seconds": round(got.seconds)}
                    row |= {"by": got.failed[0]} if got.failed else {}
                    with given.out.open("a", encoding="utf-8") as out:
                        print(json.dumps(row, ensure_ascii=False), file=out)
                return found

            results = list(pool.map(attempt, chosen))
    if still_open := results.count(None):
        print(f"{still_open} open: call again, with a longer --limit")
    count = sum(found is True for found in results)
    share = 100 * count / max(len(results), 1)
    print(f"{count} of {len(results)} noticed: {share:.0f} of 100")
    return 0 if share >= given.aim else 1


def _lent(free: Queue[Path], use: Callable[[Path], Outcome]) -> Outcome:
    """What is done in a checkout that nobody else uses meanwhile."""
    checkout = free.get()
    try:
        return use(checkout)
    finally:
        free.put(checkout)


def _load(path: Path | None) -> dict[str, bool | None]:
    """What a results file says of each mutant; the last word counts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
    return {row["mutant"]: row["noticed"] for row in map(json.loads, lines)}


if __name__ == "__main__":
    sys.exit(main())
