"""What ``make unit`` runs each file with: a red file is red, however its process ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import each_file

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "right": "def test_one(): pass\ndef test_two(): pass",
    "complains": "import atexit\ndef test_one(): atexit.register(print, 'KeyError: so\\n' * 100)",
    "apart": "def test_one(tmp_path): assert 'pytest-of-' not in str(tmp_path)",
    "wrong": "def test_one(): pass\ndef test_two(): assert 'so' == 'not so'",
    "none": "nothing = 1",
    "left_out": "import pytest\n@pytest.mark.sweep\ndef test_one(): pass",
    "crashes": "import os, signal\ndef test_one(): os.kill(os.getpid(), signal.SIGSEGV)",
    "aborts_at_exit": "import atexit, os\ndef test_one(): atexit.register(os.abort)",
    "leaves": "import os\ndef test_one(): os._exit(0)",
    "late": "import subprocess\ndef test_one(): subprocess.run(['sleep', '1000'])",
    "deaf": "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [6])\ndef test_one(): time.sleep(1000)",
}


def run(folder: Path, names: list[str], limit_s: float) -> tuple[int, list[str]]:
    """What the script returns and prints for these of FILES; torch is not imported before."""
    options = "-q --disable-plugin-autoload -m 'not sweep'"
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {options}\nmarkers = sweep\n")
    files = [folder / f"test_{name}.py" for name in names]
    for name, file in zip(names, files, strict=True):
        file.write_text(FILES[name])
    program = f"""
import sys
from scripts import each_file
each_file.IMPORTED, each_file.GRACE_S = ("pytest",), 2
sys.exit(each_file.main({[str(file) for file in files]}, {limit_s}))"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.replace(f"{folder}/test_", "").replace(".py", "").splitlines()


def test_a_process_that_does_not_end_as_pytest_does_is_red(tmp_path: Path) -> None:
    # GIVEN files that pass, one as it has a folder of its own, that fail, and whose processes end in other ways
    names = ["right", "apart", "complains", "wrong", "none", "left_out", "crashes", "aborts_at_exit", "leaves"]

    # WHEN each runs in its process
    code, printed = run(tmp_path, names, 900)

    # THEN the last lines name the red ones and how they ended; what they printed is above
    assert code == 1
    assert sorted(printed[-6:-1]) == [
        "aborts_at_exit: killed by SIGABRT",
        "crashes: killed by SIGSEGV",
        "leaves: ended before pytest did",
        "none: failed with 5",
        "wrong: failed with 1",
    ]
    assert printed[-1].startswith("6 tests of 9 files passed, 5 files are red, ")
    assert any("assert 'so' == 'not so'" in line for line in printed)
    assert "Fatal Python error: Segmentation fault" in printed


def test_nobody_asks_for_a_gpu_before_files_have_their_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a build of torch with CUDA, which after that only says that its process is forked, and a module that asks
    asked: list[bool] = []
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: asked.append(True)))
    (tmp_path / "module_that_asks.py").write_text("import sys\nassert not sys.modules['torch'].cuda.is_available()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(each_file, "IMPORTED", ("module_that_asks",))

    # WHEN it is imported for all files THEN the build is not asked, but later is
    each_file.import_all()
    torch.cuda.is_available()
    assert asked == [True]


def test_a_file_that_is_late_is_named_and_ended(tmp_path: Path) -> None:
    # GIVEN a file that waits for a program, and one that does not hear that it is to end WHEN the limit is over
    code, printed = run(tmp_path, ["late", "deaf"], 4)

    # THEN both are ended, and both are named
    assert code == 1
    assert sorted(printed[-3:-1]) == [
        "deaf: took longer than 4 s, killed by SIGKILL",
        "late: took longer than 4 s, killed by SIGABRT",
    ]


def test_who_interrupts_it_leaves_nothing_behind(tmp_path: Path) -> None:
    # GIVEN a file that takes long
    file, begun = tmp_path / "test_long.py", tmp_path / "begun"
    file.write_text(
        f"import os, pathlib, time\npathlib.Path({str(begun)!r}).write_text(str(os.getpid()))\ntime.sleep(1000)"
    )
    program = f"""
import signal
from scripts import each_file
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background takes away
each_file.IMPORTED = ()
each_file.main([{str(file)!r}])"""
    script = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    while not begun.exists() or not begun.read_text():
        time.sleep(0.05)

    # WHEN the script is interrupted
    script.send_signal(signal.SIGINT)
    script.wait()

    # THEN the file's process ends too: nothing, or what nobody waited for, is left of it
    status, until = Path(f"/proc/{begun.read_text()}/stat"), time.monotonic() + 30
    while (
        lives := status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
    ) and time.monotonic() < until:
        time.sleep(0.05)
    assert not lives


def test_those_that_begin_first_are_files() -> None:
    # GIVEN the names WHEN they are looked up THEN each is a file's
    assert {file.stem for folder in each_file.FOLDERS for file in (ROOT / folder).glob("test_*.py")} >= set(
        each_file.LONGEST
    )
