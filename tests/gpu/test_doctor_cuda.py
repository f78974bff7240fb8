"""The doctor on a GPU: every class of the catalogue, every recorded case, planted problems, real models, recovery.

All of it runs in child processes at once, because a failed capture may ruin a process; ``table`` shows what is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor import catalogue
from tests import doctor_programs
from tests.integration.h200_cases import CASES
from tests.integration.own_cases import OWN

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
Job = tuple[str, str]
WORKERS = 4
AT_ONCE = 14  # processes
SILENCE_S = 120  # of a worker, after which its job counts as hanging: other processes may have the machine too
FILE_S = 300  # for a file of tests
MOST_OVERHEAD = 30
PROGRAMS = {f"{each.id} {p.name}".rstrip(): each.category for each in catalogue() for p in each.programs}

# These need a process in which nothing has run before them, or much memory, or long.
ALONE: list[list[Job]] = [
    [("before", "cold-library")],
    [("before", "cold-compile")],
    [("case", "cold.mm")],
    [("case", "cold.conv")],
    [("before", "out-of-memory"), ("after", "out-of-memory")],
    [("lost", "an index out of range")],
    # A block of that stream that is in the cache already needs no cudaMalloc, and then nothing fails.
    *([("own", name)] for name, (_, expected) in OWN.items() if expected is not None and expected[0] == "not-forked"),
    *([("planted", name)] for name in doctor_programs.COMPILED),
    # CUDAGraph Trees remember what ran in a process before.
    *([(kind, name)] for name, category in PROGRAMS.items() if category == "compile" for kind in ("before", "after")),
]
FILES = tuple(f"test_diagnose_{part}.py" for part in ("function", "counters", "hostile", "aftermath", "confirm"))


def all_jobs() -> list[Job]:
    alone = {job for group in ALONE for job in group}
    jobs: list[Job] = [(kind, name) for name in PROGRAMS for kind in ("before", "after")]
    jobs += [("case", name) for name in CASES] + [("own", name) for name in OWN]
    jobs += [("planted", name) for name in ("seven", *doctor_programs.PLANTED, *doctor_programs.SOUND)]
    return [job for job in jobs if job not in alone]


def work(jobs: list[Job], folder: Path) -> list[list[Any]]:
    """Do jobs in one worker after the other: whoever dies or hangs is followed by one for the rest."""
    done: list[list[Any]] = []
    folder.mkdir()
    given, answers = folder / "jobs.json", folder / "answers"
    # What another process has compiled is read from its cache, and then nothing is cold.
    cold = any(name.startswith("cold") for _, name in jobs) and jobs in ALONE
    caches = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    own = {name: str(folder / name.lower()) for name in caches} if cold else {}
    answers.touch()
    while len(done) < len(jobs):
        given.write_text(json.dumps(jobs[len(done) :]))
        command = [sys.executable, "-m", "tests.gpu.doctor_worker", str(given), str(answers)]
        with (folder / "errors").open("w") as errors:
            child = subprocess.Popen(command, cwd=ROOT, stdout=errors, stderr=errors, env={**environment(), **own})
            seen, since = len(done), time.monotonic()
            while child.poll() is None and time.monotonic() - since < SILENCE_S:
                time.sleep(0.2)
                now = len(answers.read_text().splitlines())
                seen, since = (now, time.monotonic()) if now != seen else (seen, since)
            hangs = child.poll() is None
            child.kill()
            child.wait()
        before = len(done)
        done = [json.loads(line) for line in answers.read_text().splitlines()]
        if len(done) == before:  # it died of the first job
            last = (folder / "errors").read_text().strip().splitlines()[-1:]
            how = f"it hangs for {SILENCE_S} s" if hangs else f"the process ended with {child.returncode}: {last}"
            with answers.open("a") as out:
                out.write(json.dumps([*jobs[before], False, how]) + "\n")
            done = [json.loads(line) for line in answers.read_text().splitlines()]
    return done


def environment() -> dict[str, str]:
    # One thread compiles in each process: there are enough of them.
    return {**os.environ, "DOCTOR_ON_GPU": "1", "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def run_file(name: str) -> list[Any]:
    """A file of tests in a process of its own."""
    options = ["-o", "minversion=0", "-o", "filterwarnings=default", "-p", "no:cacheprovider", "--tb=short"]
    command = [sys.executable, "-m", "pytest", f"tests/integration/{name}", *options]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=FILE_S, env=environment()
        )
    except subprocess.TimeoutExpired as error:
        return ["tests", name, False, f"more than {FILE_S} s: {str(error.stdout)[-400:]}"]
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return ["tests", name, done.returncode == 0, "\n".join([*failed, *lines[-1:], done.stderr[-300:]])]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[Job, tuple[bool, str]]:
    """(right or not, what was said) of every job."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    folder = tmp_path_factory.mktemp("doctor")
    jobs = all_jobs()
    groups = [jobs[n::WORKERS] for n in range(WORKERS)] + ALONE
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        files = [pool.submit(run_file, name) for name in FILES]
        answers = [answer for found in pool.map(work, groups, (folder / str(n) for n in range(99))) for answer in found]
        answers += [future.result() for future in files]
    print(f"{len(answers)} jobs in {time.monotonic() - began:.0f} s")
    return {(kind, name): (good, said) for kind, name, good, said in answers}


def table(outcomes: dict[Job, tuple[bool, str]], *kinds: str) -> str:
    """What went wrong, one line each."""
    chosen = {job: outcome for job, outcome in outcomes.items() if job[0] in kinds}
    wrong = [f"{kind:<8} {name:<36} {said}" for (kind, name), (good, said) in chosen.items() if not good]
    return "\n".join([f"{len(chosen) - len(wrong)} of {len(chosen)} are right", *wrong])


@pytest.mark.parametrize("kind", ["before", "after", "case", "own", "planted", "lost", "tests"])
def test_all_of_a_kind_are_right(kind: str, outcomes: dict[Job, tuple[bool, str]]) -> None:
    # GIVEN the programs of one kind, run on this GPU WHEN looked at THEN none is wrong
    said = table(outcomes, kind)
    print(f"\n{kind}: {said}")
    assert "\n" not in said, said


def test_our_own_programs_are_recorded(tmp_path: Path) -> None:
    # GIVEN the script of the repository WHEN it runs here THEN its file has each program with what this GPU did
    file = tmp_path / "own_cases.json"
    command = [sys.executable, "scripts/record_cases.py", str(file), "--jobs", "12"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=FILE_S)
    assert done.returncode == 0, done.stderr
    print(f"\n{file.name}\n{file.read_text()}")
    found = json.loads(file.read_text())["cases"]
    outcomes = {name: next(value for key, value in case.items() if key != "program") for name, case in found.items()}
    # and each fails, or does not, as the class says that it was written for
    wanted = {name: "ran" if expected is None else "fails" for name, (_, expected) in OWN.items()}
    assert {name: outcome["outcome"] for name, outcome in outcomes.items()} == wanted


def best_us(call: Callable[[], Any], times: int) -> float:
    """The fastest of some calls with the wait for the device, after one that warms up: others may use both."""
    call()
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return min(taken) * 1e6


def gpt2() -> tuple[Any, torch.Tensor]:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).cuda()
    return model, torch.randint(0, 50257, (2, 128), device="cuda")


def test_gpt2s_training_step_raises_no_alarm() -> None:
    # GIVEN GPT-2 small and an optimizer made for capture WHEN its step is diagnosed THEN there is nothing
    model, ids = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    before = [p.detach().clone() for p in model.parameters()]
    found = pgk.diagnose(step)
    assert not found, str(found)
    # and the model is as it was
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


@torch.no_grad()
def test_the_overhead_for_gpt2s_forward_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN GPT-2 small's forward WHEN it is diagnosed THEN that takes less than 30 calls
    model, ids = gpt2()
    model.eval()
    eager = best_us(lambda: model(ids), 10)
    diagnosed = best_us(lambda: pgk.diagnose(model, ids), 5)
    with capsys.disabled():
        print(f"\ndiagnose(GPT-2 small, 2 x 128): {diagnosed:.0f} us, one eager call {eager:.0f} us, "
              f"{diagnosed / eager:.1f} times")  # fmt: skip
    assert not pgk.diagnose(model, ids), str(pgk.diagnose(model, ids))
    assert diagnosed < MOST_OVERHEAD * eager


@torch.no_grad()
def test_a_resnets_inference_raises_no_alarm() -> None:
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.resnet50(weights=None).cuda().eval()
    found = pgk.diagnose(model, torch.randn(2, 3, 224, 224, device="cuda"))
    assert not found, str(found)
