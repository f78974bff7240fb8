"""Do the tests notice? Change one expression at a time in the launcher and run the tests that should fail.

    python -m scripts.mutate                 # 20 mutants drawn anew
    python -m scripts.mutate --count 100 --seed 7 --jobs 2 --out FILE    # goes on where FILE stopped
    python -m scripts.mutate launch/plan.py:150     # every mutant of one line
    python -m scripts.mutate capture launch --count 50     # drawn of two layers

Mutants are made and tested in a copy of the checkout, whose tests have to pass as it is. It prints each with whether a
test noticed it, and ends with 1 if fewer than ``--aim`` of 100 were. What FILE has as unnoticed is tried again: tests
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
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

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
    ),
    "launch": ("unit/test_launch_stages.py", "unit/test_launch_plan.py", "integration/test_recut_sim.py"),
    "partition": (
        "unit/test_partition_order.py",
        "unit/test_partition_rules.py",
        "unit/test_partition_split.py",
        "unit/test_partition_frames.py",
        "unit/test_partition_names.py",
        "integration/test_order_sim.py",
        "integration/test_names_sim.py",
        "integration/test_fixed_sim.py",
        "integration/test_recut_sim.py",
        "integration/test_backend_fx.py",
    ),
    "step": (
        "integration/test_step_sim_refusals.py",
        "integration/test_step_sim_use.py",
        "integration/test_step_sim.py",
        "integration/test_step_sim_loops.py",
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
    "driver/sim/allocator.py": ("unit/test_sim_allocator.py",),
    "trace/format.py": ("unit/test_trace_format.py", "unit/test_trace_damaged.py"),
}
ALWAYS = (
    "unit/test_exact.py",
    "integration/test_launch_sim.py",
    "integration/test_launch_sim_streams.py",
    "integration/test_launch_sim_metadata.py",
    "integration/test_launch_sim_stages.py",
    "integration/test_launch_sim_probation.py",
    "integration/test_launch_sim_failures.py",
    "integration/test_strict_sim.py",
)
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
    """Annotations, decorators of classes, docstrings and the text of errors: nobody computes with them."""
    roots: list[ast.AST | None] = []
    if isinstance(node, ast.ClassDef):
        roots += node.decorator_list
    if isinstance(node, ast.FunctionDef):
        roots += [node.returns, *(each.annotation for each in [*node.args.args, *node.args.kwonlyargs])]
    if isinstance(node, ast.AnnAssign):
        roots.append(node.annotation)
    if isinstance(node, (ast.JoinedStr, ast.Assert)):
        roots.append(node)
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


def noticed(path: str, text: str, checkout: Path, limit_s: float) -> bool:
    """Whether a test fails in a copy of the checkout in which a file has this text."""
    target = checkout / PACKAGE / path
    original = target.read_text()
    target.write_text(text)
    try:
        # A fork of a process that has imported torch: that is most of what a few quick tests take.
        child = multiprocessing.get_context("fork").Process(target=_tests, args=(checkout, tests_of(path)))
        child.start()
        child.join(limit_s)
        if child.is_alive():
            child.kill()
            child.join()
        return child.exitcode != 0
    finally:
        target.write_text(original)


def _tests(checkout: Path, names: Sequence[str]) -> None:
    import pytest

    os.setsid()
    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in (PACKAGE, "tests", "scripts")]:
        del sys.modules[name]  # of the checkout that this runs in
    os._exit(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *names])))


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

        def attempt(mutant: Mutant) -> bool:
            if known.get(mutant.label):
                return True
            checkout, began = free.get(), time.monotonic()
            try:
                found = noticed(mutant.path, mutant.text, checkout, given.limit)
            finally:
                free.put(checkout)
            print(f"{'noticed  ' if found else 'UNNOTICED'} {mutant.label}", flush=True)
            if given.out is not None:
                with given.out.open("a", encoding="utf-8") as out:
                    row = {"mutant": mutant.label, "noticed": found, "seconds": round(time.monotonic() - began)}
                    print(json.dumps(row, ensure_ascii=False), file=out)
            return found

        for path in {tuple(tests_of(mutant.path)): mutant.path for mutant in chosen}.values():
            checkout = free.get()
            if noticed(path, (checkout / PACKAGE / path).read_text(), checkout, 3 * given.limit):
                print(f"the tests of {path} fail, or take too long, as it is: {' '.join(tests_of(path))}")
                return 2
            free.put(checkout)
        with ThreadPoolExecutor(given.jobs) as pool:
            results = list(pool.map(attempt, chosen))
    share = 100 * sum(results) / max(len(results), 1)
    print(f"{sum(results)} of {len(results)} noticed: {share:.0f} of 100")
    return 0 if share >= given.aim else 1


def _load(path: Path | None) -> dict[str, bool]:
    """What a results file says of each mutant; the last word counts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
    return {row["mutant"]: row["noticed"] for row in map(json.loads, lines)}


if __name__ == "__main__":
    sys.exit(main())
