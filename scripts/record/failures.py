"""A gallery of captures that fail: programs of the catalogue, each in a process of its own, explained by the doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paramgraph_kit.doctor import explain, failure_class
from paramgraph_kit.doctor.known.program import Program
from paramgraph_kit.driver.select import device, driver, twin
from paramgraph_kit.trace.model import Failure, Frame, Proof, Trace

CLASSES = (
    "sync-item",
    "data-dependent-branch",
    "copy-to-gpu",
    "dynamic-shape",
    "synchronize",
    "default-stream",
    "unjoined-work",
    "captured-event",
    "unregistered-generator",
    "optimizer-not-capturable",
)
LIMIT_S = 60
MODULE = "scripts.record.failures"
_KEPT: list[Exception] = []  # until this process ends


def gallery() -> Trace:
    """The failure of each class, and of each fix the numbers of a replay against eager's."""
    names = [name for name in CLASSES if device().type == "cuda" or not _program(name).simulator_cannot]
    trace = Trace(driver().source(), f"{len(names)} captures that fail, from the doctor's catalogue")
    with ThreadPoolExecutor(len(names) if (os.cpu_count() or 1) > 4 else 2) as pool:
        for failure, proof in pool.map(_in_child, names):
            trace.failures.append(failure)
            trace.proofs.append(proof)
    return trace


def _in_child(name: str) -> tuple[Failure, Proof]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", MODULE, name, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        answer = Path(folder) / "answer.json"
        if not answer.exists():
            said = done.stderr.strip()  # of an abort the beginning says why
            raise RuntimeError(f"{name}: exit status {done.returncode}: {said[:2000]} ... {said[-500:]}")
        found = json.loads(answer.read_text())
    frame = found["failure"].pop("frame")
    failure = Failure(**found["failure"], frame=Frame(**frame) if frame else None)
    return failure, Proof(**found["proof"])


def _fail(name: str, folder: Path) -> dict[str, Any]:
    """Run both programs of a class, the one that works first: after the other this process may be of no use."""
    program = _program(name)
    trace = Trace(driver().source())
    file = folder / f"{name}.py"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got, expected = (program.run(which, folder / f"{name} {which}.py") for which in ("after", "eager"))
    proof = trace.compare(f"{name}, fixed: ten replays against eager", got, expected)
    try:
        program.run("before", file)
        twin().synchronize()
    except Exception as error:
        failure = explain(error)
        _KEPT.append(error)  # with its frames goes a graph, and torch aborts where its generator went first
    else:
        raise RuntimeError(f"{name}: its failing program did not fail on {driver().source().label()}")
    frame = failure.frame
    if frame is not None:
        frame = replace(frame, file=frame.file.replace(f"{folder}{os.sep}", ""))
    message = failure.message.replace(f"{folder}{os.sep}", "")
    return {"failure": asdict(replace(failure, frame=frame, message=message)), "proof": asdict(proof)}


def _program(name: str) -> Program:
    """The first program of a class."""
    return failure_class(name).programs[0]


if __name__ == "__main__":
    device()
    (Path(sys.argv[2]) / "answer.json").write_text(json.dumps(_fail(sys.argv[1], Path(sys.argv[2]))))
    sys.stdout.flush()
    os._exit(0)  # after a failed capture torch may abort while it cleans up
