"""Do the tests notice? Change one expression at a time in the launcher and run the tests that should fail.

    python -m scripts.mutate                 # 20 mutants drawn anew
    python -m scripts.mutate --count 100 --seed 7 --jobs 2 --out FILE    # goes on where FILE stopped
    python -m scripts.mutate launch/plan.py:150     # every mutant of one line
    python -m scripts.mutate capture launch --count 50     # drawn of two layers

Mutants are made and tested in a copy of the checkout. Asked are the tests that execute what is changed, or where
none does those that execute anything of its file (``scripts/executed.py``, which needs coverage.py and takes minutes
the first time), the nearest of all mutants first. A test that fails as it is notices nothing. It prints each mutant
with whether a test noticed it, and ends with 1 if fewer than ``--aim`` of 100 were. What FILE has as unnoticed, or as
open since ``--budget`` or ``--limit`` came before the end of the tests that execute it, is tried again: tests may have
come. A mutant that changes nothing that anybody could see counts as unnoticed: read them.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, PriorityQueue, Queue
from typing import Any

from scripts.executed import PACKAGE, ROOT, Known, candidates, forked, known, pytested

CHANGED = (
    "capture",
    "launch",
    "partition",
    "step",
    "driver/tensors.py",
    "driver/phantom_layout.py",
    "driver/sim/graph.py",
    "driver/sim/allocator.py",
    "trace/format.py",
)
# What each test imports: a fork has it at once.
IMPORTED = ("torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.lowering", "functorch.compile")
LONGEST = 300  # seconds for one mutant
LATE = (60, 3)  # a mutant whose tests take so many seconds, and so many times what they take, never ends: noticed
BATCH_S = 10  # seconds of tests for one process
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
    lines: tuple[int, ...]  # all of the expression
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
            across = tuple(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            yield Mutant(path, node.lineno, across, ast.unparse(node), ast.unparse(other), changed.decode())


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
    for name in CHANGED:
        path = ROOT / PACKAGE / name
        found += [path] if path.is_file() else sorted(path.glob("*.py"))
    return [str(path.relative_to(ROOT / PACKAGE)) for path in found]


def outcome(name: str, checkout: Path, limit_s: float, tests: Sequence[str]) -> str | None:
    """Run some tests of a file in a copy of the checkout up to the first that fails: its name, or empty."""
    failed = checkout / "failed.txt"
    failed.write_text("")
    code = forked(_tests, (checkout, tests), limit_s)
    if code is None:
        return None
    return next(iter(failed.read_text().splitlines()), name if code else "")


@dataclass
class Judged:
    """A mutant while its tests run: noticed by none yet, and how many batches of them are left."""

    mutant: Mutant
    left: int
    noticed: bool = False
    open: bool = False  # some tests did not end, or did not begin, in time
    by: str = ""
    seconds: float = 0.0
    said: bool = False

    @property
    def verdict(self) -> bool | None:
        """Whether a test notices it; None is for want of time."""
        return True if self.noticed else None if self.open else False


def notice(judged: Judged, checkout: Path, limit_s: float, tests: list[str], of: Asked) -> None:
    """Run a batch of the tests that execute what is changed, up to the first that fails because of it."""
    target = checkout / PACKAGE / judged.mutant.path
    original, left = target.read_text(), tests
    while left and not judged.noticed:
        late = LATE[0] + LATE[1] * sum(of.usual.get(test, 0) for test in left)
        target.write_text(judged.mutant.text)
        try:
            by = outcome(left[0], checkout, min(late, limit_s), left)
        finally:
            target.write_text(original)
        if by is None and late > limit_s:
            judged.open = True
            return
        if by is None:
            judged.noticed, judged.by = True, f"{left[0]} or one behind it never ends"
        # One that fails beside others may do so because of them.
        elif by and not of.fails(by, checkout) and _fails_alone(judged.mutant, checkout, limit_s, by):
            judged.noticed, judged.by = True, by
        else:
            left = left[left.index(by) + 1 :] if by in left else []


def _fails_alone(mutant: Mutant, checkout: Path, limit_s: float, test: str) -> bool:
    target = checkout / PACKAGE / mutant.path
    original = target.read_text()
    target.write_text(mutant.text)
    try:
        return outcome(test.partition("::")[0], checkout, limit_s, [test]) not in ("", None)
    finally:
        target.write_text(original)


class Asked:
    """What is known of the tests: how long each takes, and whether it fails as it is."""

    def __init__(self, of: Sequence[Known]) -> None:
        self.known = of
        self.usual: dict[str, float] = {test: seconds for each in of for test, seconds in each.seconds.items()}
        self._failing: dict[str, bool] = {}

    def fails(self, test: str, checkout: Path) -> bool:
        """In an unchanged checkout."""
        if test not in self._failing:
            self._failing[test] = outcome(test.partition("::")[0], checkout, LONGEST, [test]) != ""
        return self._failing[test]

    def batches(self, mutant: Mutant) -> list[list[str]]:
        """The tests that execute what is changed, or else all that execute any of its file."""
        lines = range(1, mutant.text.count("\n") + 2)
        found = candidates(mutant.path, mutant.lines, self.known) or candidates(mutant.path, lines, self.known)
        return [*_batches(found.values(), self.usual)]


def _batches(files: Iterable[Sequence[str]], usual: Mapping[str, float]) -> Iterator[list[str]]:
    """Tests of several files for one process: a process of its own takes longer than most."""
    batch: list[str] = []
    for tests in files:
        batch += tests
        if sum(usual.get(test, 0) for test in batch) > BATCH_S:
            yield batch
            batch = []
    if batch:
        yield batch


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


def _tests(checkout: Path, tests: Sequence[str]) -> None:
    os._exit(pytested(checkout, ["-x", *tests], _Failures(checkout / "failed.txt")))


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
    parser.add_argument("--limit", type=float, default=LONGEST, metavar="S", help="seconds for one batch of tests")
    parser.add_argument("--budget", type=float, default=1e9, metavar="S", help="begin no batch after so many seconds")
    parser.add_argument("--aim", type=float, default=95.0, help="of 100")
    given = parser.parse_args()
    until = time.monotonic() + given.budget
    chosen = drawn(given.where, given.count, given.seed)
    print(f"{len(chosen)} mutants, seed {given.seed}", flush=True)
    judged = _load(given.out)
    for name in IMPORTED:
        importlib.import_module(name)
    of = known(jobs=given.jobs)
    with tempfile.TemporaryDirectory() as folder:
        free: Queue[Path] = Queue()
        skipped = shutil.ignore_patterns("__pycache__", "node_modules")
        for number in range(given.jobs):
            checkout = Path(folder, str(number))
            for part in (PACKAGE, "tests", "scripts"):
                shutil.copytree(ROOT / part, checkout / part, ignore=skipped)
            shutil.copy(ROOT / "pyproject.toml", checkout)
            free.put(checkout)
        asked, lock = Asked(of), threading.Lock()
        cases = [Judged(mutant, 0, noticed=bool(judged.get(mutant.label))) for mutant in chosen]
        waiting: PriorityQueue[tuple[int, int, list[str]]] = PriorityQueue()
        for number, case in enumerate(cases):
            batches = [] if case.noticed else asked.batches(case.mutant)
            case.left = len(batches)
            for turn, tests in enumerate(batches):  # the nearest tests of all mutants first
                waiting.put((turn, number, tests))
            if not (batches or case.noticed):
                _say(case, given.out)  # no test executes anything of its file

        def work() -> None:
            checkout = free.get()
            while not waiting.empty():
                with suppress(Empty):
                    _, number, tests = waiting.get_nowait()
                    case, began = cases[number], time.monotonic()
                    if began > until:
                        case.open |= not case.noticed
                    elif not case.noticed:
                        notice(case, checkout, given.limit, tests, asked)
                    with lock:
                        case.left -= 1
                        case.seconds += time.monotonic() - began
                        if not case.said and (case.noticed or case.left == 0):
                            case.said = _say(case, given.out)

        with ThreadPoolExecutor(given.jobs) as pool:
            for done in [pool.submit(work) for _ in range(given.jobs)]:
                done.result()
    results = [case.verdict for case in cases]
    if still_open := results.count(None):
        print(f"{still_open} open: call again")
    count = sum(found is True for found in results)
    share = 100 * count / max(len(results), 1)
    print(f"{count} of {len(results)} noticed: {share:.0f} of 100")
    return 0 if share >= given.aim else 1


def _say(case: Judged, out: Path | None) -> bool:
    said = {True: "noticed  ", False: "UNNOTICED", None: "open     "}[case.verdict]
    print(f"{said} {case.mutant.label}", flush=True)
    if out is not None:
        row = {"mutant": case.mutant.label, "noticed": case.verdict, "seconds": round(case.seconds)}
        row |= {"by": case.by} if case.by else {}
        with out.open("a", encoding="utf-8") as file:
            print(json.dumps(row, ensure_ascii=False), file=file)
    return True


def _load(path: Path | None) -> dict[str, bool | None]:
    """What a results file says of each mutant; the last word counts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
    return {row["mutant"]: row["noticed"] for row in map(json.loads, lines)}


if __name__ == "__main__":
    sys.exit(main())
