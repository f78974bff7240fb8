"""Runs test files, each in a process of its own: ``python -m scripts.each_file [FILE|FOLDER ...]``.

Importing torch, its compiler and pytest takes longer than the tests of most files. It is done once, here: children are
forked from this process, so that each has it at once, and nothing that another file left behind. Nothing named means
all that need no GPU. A file is red when its tests fail, and when its process ends in any other way (a signal, an abort
at exit) or not in time; then all that it printed is shown. The longest begin first, as many at once as there are cores.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pkgutil
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tests/notebooks", "tests/integration", "tests/unit")
LONGEST = ("test_lessons", "test_rewrite", "test_sim_h200_cases", "test_programs", "test_journeys")
# Files that leave nothing to end: an interpreter takes longer to end than most of them to run.
AT_ONCE = ("tests/unit/", "tests/integration/test_diagnose_", "tests/integration/test_rewrite_")
LIMIT_S = 900.0
GRACE_S = 10.0
# A fork takes along the thread that calls it and no other, whose locks would stay closed. Linux tells how many there
# are; elsewhere (on macOS, whose frameworks do not survive a fork at all) each child imports for itself.
THREADS = Path("/proc/self/task")
IMPORTED = (
    "pytest",
    "torch",
    "torch._inductor.lowering",
    "functorch.compile",
    "paramgraph_kit",
)
# Nor does what brings libraries that tests may be without, what asks for a GPU, and what is a program.
NOT_SHARED = re.compile(r"\.(_widget|for_\w+|cuda|__main__)$")
# Pytest's last line; objects that go later may still complain below it.
SUMMARY = re.compile(r"^(?:\d+ \w+, )*?(?:(\d+) passed|\d+ (?:skipped|xfailed))(?:, \d+ \w+)* in [\d.]+s", re.MULTILINE)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # there is a process for each core: further threads would only wait


class Child(NamedTuple):
    """A file's process: its id, what it prints, its folder for what tests write, when it began."""

    file: str
    pid: int
    output: BinaryIO
    folder: str
    began: float


def main(files: Sequence[str], limit_s: float = LIMIT_S) -> int:
    """Run the files; returns 1 if one is red. Seconds are the processor's, those of a file's own children included."""
    os.chdir(ROOT)
    files = found(files or FOLDERS)
    if THREADS.exists():
        import_all()
        make_device()
    gc.freeze()  # what children need not look at stays in memory that they share
    cores = len(os.sched_getaffinity(0)) if THREADS.exists() else os.cpu_count() or 1
    waiting = sorted(files, key=lambda file: Path(file).stem not in LONGEST)
    running: dict[int, Child] = {}
    red, tests, seconds = [], 0, 0.0
    try:
        while waiting or running:
            while waiting and len(running) < cores:
                child = fork(waiting.pop(0))
                running[child.pid] = child
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            now = time.monotonic()
            if not pid:
                for late in (child for child in running.values() if now > child.began + limit_s):
                    # Asked to abort, pytest prints where each thread is.
                    os.killpg(late.pid, signal.SIGABRT if now < late.began + limit_s + GRACE_S else signal.SIGKILL)
                time.sleep(0.05)
                continue
            child = running.pop(pid)
            shutil.rmtree(child.folder, ignore_errors=True)
            child.output.seek(0)
            printed = child.output.read().decode(errors="replace")
            how = ended(os.waitstatus_to_exitcode(status), printed)
            how = f"took longer than {limit_s:g} s, {how}" if now > child.began + limit_s else how
            used = usage.ru_utime + usage.ru_stime
            print(f"{child.file}: {how or 'ok'}, {used:.1f} s", *([printed] if how else []), sep="\n", flush=True)
            red += [f"{child.file}: {how}"] if how else []
            tests += sum(int(passed or 0) for passed in SUMMARY.findall(printed))
            seconds += used
    except KeyboardInterrupt:
        for child in running.values():  # which do not hear the terminal's Ctrl-C
            os.killpg(child.pid, signal.SIGKILL)
            shutil.rmtree(child.folder, ignore_errors=True)
        raise
    print(
        *red, f"{tests} tests of {len(files)} files passed, {len(red)} files are red, {seconds:.0f} s of CPU", sep="\n"
    )
    return int(bool(red))


def import_all() -> None:
    """Import what children share. Inductor asks for a GPU meanwhile; once asked, CUDA is of no use to those forked."""
    for module in IMPORTED:
        torch = sys.modules.get("torch")
        with mock.patch.object(torch.cuda, "is_available", return_value=False) if torch else nullcontext():
            import_whole(module)


def make_device() -> None:
    """Make the simulated device, which takes 0.2 s; where torch may have a GPU each child asks for its own."""
    torch = sys.modules.get("torch")
    if torch is not None and not torch.backends.cuda.is_built():
        importlib.import_module("paramgraph_kit.driver.select").device()
    importlib.import_module("paramgraph_kit.driver.files").modules_of_users()  # tells which are none: 0.07 s


def import_whole(name: str) -> None:
    """Import a module, and where it is our package all that is in it."""
    module = importlib.import_module(name)
    for each in pkgutil.iter_modules(getattr(module, "__path__", ())) if name.startswith("paramgraph_kit") else ():
        if not NOT_SHARED.search(within := f"{name}.{each.name}"):
            import_whole(within)


def found(names: Sequence[str]) -> list[str]:
    """The files that are meant: those named, and the tests in folders that are named."""
    return [
        str(file) for path in map(Path, names) for file in (sorted(path.glob("test_*.py")) if path.is_dir() else [path])
    ]


def fork(file: str) -> Child:
    """Begin a file's process."""
    if THREADS.exists() and len(list(THREADS.iterdir())) > 1:
        raise SystemExit(f"{', '.join(IMPORTED)}: importing these has started a thread, so nothing can be forked")
    output = tempfile.TemporaryFile()  # noqa: SIM115 (main reads it when the process has ended)
    folder = tempfile.mkdtemp()  # pytest's own is numbered, and cleared by whoever comes: two at once meet in it
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(file, pid, output, folder, time.monotonic())
    os.setpgid(0, 0)  # a file that is late goes with its own children
    nothing = os.open(os.devnull, os.O_RDONLY)
    for own, standard in ((nothing, 0), (output.fileno(), 1), (output.fileno(), 2)):
        os.dup2(own, standard)
    import pytest

    code = pytest.main([file, "-p", "no:cacheprovider", f"--basetemp={folder}"])  # which reads all that ever failed
    if file.startswith(AT_ONCE):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)  # the interpreter ends as after `python -m pytest`, so that an abort at exit is seen


def ended(code: int, printed: str) -> str:
    """How a process ended, if not well. Where all tests of a file are left out pytest returns 5."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    if code == 0 and not SUMMARY.search(printed):
        return "ended before pytest did"
    return "" if code == 0 or (code == 5 and " deselected" in printed) else f"failed with {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
