"""Which tests execute a line of the package, and how long they take: asked of coverage.py, once for each file of tests.

``python -m scripts.mutate`` asks this. What is known lies in ``build/executed``, one file for each file of tests, and
is found out again where a file of tests is another than it was. Each runs in a process of its own; of one that does
not end in time, what its tests executed until then is known.
"""

from __future__ import annotations

import ast
import hashlib
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "paramgraph_kit"
FOLDER = ROOT / "build" / "executed"
FOLDERS = ("tests/unit", "tests/integration")
AT_IMPORT = ""  # whose lines no test executes: those of modules and classes, and arguments' defaults
LONGEST = 150  # seconds for one file of tests
KEPT_S = 20  # what is known is written after so many seconds
FORKING = threading.Lock()  # filelock, which torch imports, refuses two forks at once


class Known(NamedTuple):
    """What is known of a file of tests: for each test seconds, and the lines of each of the package's files."""

    file: str
    seconds: dict[str, float]
    lines: dict[str, dict[str, set[int]]]
    texts: dict[str, str]  # the digests of the package's files then

    def executing(self, path: str, lines: Sequence[int]) -> list[str]:
        """The tests that execute one of a file's lines, or, where its text is another now, any."""
        same = self.texts.get(path) == digest(ROOT / PACKAGE / path)
        asked = set(lines)
        return [
            test
            for test, executed in self.lines.items()
            if test != AT_IMPORT and (asked & (found := executed.get(path, set())) or (found and not same))
        ]

    def imports(self, path: str, lines: Sequence[int]) -> bool:
        """Whether a line was executed while modules were imported."""
        return not set(lines).isdisjoint(self.lines.get(AT_IMPORT, {}).get(path, ()))


def digest(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def known(folder: Path = FOLDER, *, jobs: int = 1) -> list[Known]:
    """What is known of all files of tests; those that have changed are run first, ``jobs`` of them at once."""
    files = [str(each.relative_to(ROOT)) for part in FOLDERS for each in sorted((ROOT / part).glob("test_*.py"))]
    kept = {file: folder / f"{Path(file).stem}.json" for file in files}
    asked = [file for file in files if not _is_known(file, kept[file])]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(_find_out, asked, map(kept.__getitem__, asked)))
    found = []
    for file in files:
        if kept[file].exists():
            row = json.loads(kept[file].read_text())
            lines = {test: {path: set(each) for path, each in by.items()} for test, by in row["tests"].items()}
            found.append(Known(file, row["seconds"], lines, row["texts"]))
    return found


def _is_known(file: str, kept: Path) -> bool:
    return kept.exists() and json.loads(kept.read_text())["stamp"] == digest(ROOT / file)


def candidates(path: str, lines: Sequence[int], of: Sequence[Known]) -> dict[str, list[str]]:
    """The tests that may notice a change in lines of the package, by file: of its name, who imports it, the quickest.

    Of lines that importing a module executes: the tests that execute any line of that module, or of one that names it,
    and all of a file that imports it, which may read a constant and execute nothing.
    """
    asked: list[tuple[str, Sequence[int]]] = [(path, lines)]
    module = f"{PACKAGE}.{path.removesuffix('.py').replace('/', '.')}"
    importers = {each.file for each in of if module in _imported(ROOT / each.file)}
    if at_import := any(each.imports(path, lines) for each in of):
        word = re.compile(rf"\b{Path(path).stem}\b")
        users = [file for file in (ROOT / PACKAGE).rglob("*.py") if word.search(file.read_text(encoding="utf-8"))]
        asked += [(str(file.relative_to(ROOT / PACKAGE)), range(10_000)) for file in users]
        asked.append((path, range(10_000)))
    found: list[tuple[int, float, str, list[str]]] = []
    words = path.removesuffix(".py").split("/")
    for each in of:
        imports = each.file in importers
        read = each.seconds if at_import and imports else ()
        tests = sorted({*read, *(test for place in asked for test in each.executing(*place))})
        if tests:
            near = imports + sum(word in each.file for word in words)  # test_capture_words.py of capture/words.py
            found.append((-near, sum(each.seconds.get(test, 0.0) for test in tests), each.file, tests))
    return {file: tests for _, _, file, tests in sorted(found)}


@cache
def _imported(file: Path) -> frozenset[str]:
    """The modules that a file of tests imports, and names of theirs as if these were some."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return frozenset(f"{node.module}{end}" for node in found for end in ("", *(f".{each.name}" for each in node.names)))


def forked(run: Callable[..., None], arguments: Sequence[object], limit_s: float) -> int | None:
    """Call a function in a fork, where torch is imported already; its exit code, None where it did not end in time."""
    child = multiprocessing.get_context("fork").Process(target=_alone, args=(run, arguments))
    with FORKING:
        child.start()
    child.join(limit_s)
    if not child.is_alive():
        return child.exitcode
    with suppress(ProcessLookupError):
        os.killpg(child.pid or 0, signal.SIGKILL)  # with what it started
    child.kill()
    child.join()
    return None


def _alone(run: Callable[..., None], arguments: Sequence[object]) -> None:
    os.setsid()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    run(*arguments)


def pytested(checkout: Path, arguments: Sequence[str], plugin: object, before: Callable[[], None] | None = None) -> int:
    """Run pytest in a checkout, whichever this module is of."""
    import pytest

    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    sys.dont_write_bytecode = True
    path = os.pathsep.join([str(checkout), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    os.environ |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    for name in [name for name in sys.modules if name.partition(".")[0] in (PACKAGE, "tests", "scripts")]:
        del sys.modules[name]  # of the checkout that this runs in
    if before is not None:
        before()
    return int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[plugin]))


class _Lines:
    """Tells coverage which test is under way, and writes down what each executed."""

    def __init__(self, measured: Any, kept: Path, stamp: str) -> None:
        self.measured, self.kept, self.stamp = measured, kept, stamp
        self.seconds: dict[str, float] = defaultdict(float)
        self.written = time.monotonic()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """What comes before a test, it, or what comes after it has ended."""
        self.seconds[report.nodeid] += report.duration

    def pytest_runtest_logfinish(self) -> None:
        """A test has ended."""
        self.measured.switch_context(AT_IMPORT)
        if time.monotonic() - self.written > KEPT_S:
            self.write()

    def write(self) -> None:
        """What is known by now."""
        self.measured.stop()
        data = self.measured.get_data()
        tests: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        texts = {}
        for file in map(Path, data.measured_files()):
            path = str(file.relative_to(ROOT / PACKAGE))
            texts[path] = digest(file)
            for line, contexts in data.contexts_by_lineno(str(file)).items():
                for context in contexts:
                    tests[context][path].append(line)
        row = {"stamp": self.stamp, "seconds": self.seconds, "tests": tests, "texts": texts}
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        part = self.kept.with_suffix(".part")
        part.write_text(json.dumps(row), encoding="utf-8")
        part.replace(self.kept)
        self.written = time.monotonic()
        self.measured.start()


def _find_out(file: str, kept: Path) -> None:
    began = time.monotonic()
    ended = forked(_measured, (file, kept), LONGEST) is not None
    print(f"{file}: {time.monotonic() - began:.0f} s{'' if ended else ', not to its end'}", flush=True)


def _measured(file: str, kept: Path) -> None:
    import coverage

    measured = coverage.Coverage(data_file=None, config_file=False, include=[f"{ROOT / PACKAGE}/*"])
    lines = _Lines(measured, kept, digest(ROOT / file))
    pytested(ROOT, [file], lines, measured.start)
    lines.write()
    os._exit(0)
