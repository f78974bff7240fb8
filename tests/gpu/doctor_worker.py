"""Runs programs that fail, one after the other, in a process that they may ruin; writes one line of JSON for each.

``python -m tests.gpu.doctor_worker JOBS ANSWERS``: the parent begins again with the next job where a process dies.
"""

from __future__ import annotations

import gc
import io
import json
import os
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor import explain, failure_class
from paramgraph_kit.doctor.known.failure_class import FailureClass
from paramgraph_kit.doctor.known.program import Program
from paramgraph_kit.trace.model import Failure
from paramgraph_kit.trace.wording import failure_text
from tests import doctor_programs
from tests.integration.h200_cases import CASES
from tests.integration.h200_doctor import EXPECTED, names_of, text_of
from tests.integration.own_cases import OWN

Answer = tuple[bool, str]


def execute(text: str, file: Path, names: dict[str, Any]) -> BaseException | None:
    """Run a program; returns what it raised."""
    file.write_text(text)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            exec(compile(text, str(file), "exec"), names)
            torch.cuda.synchronize()
        except Exception as error:
            return error
    return None


def told(failure: Failure, code: str, begins: str, file: Path) -> Answer:
    """Whether class, line and fix are right."""
    frame = failure.frame
    if failure.code != code:
        return False, f"got {failure.code}: {failure.message}"
    if frame is None or frame.file != str(file) or not frame.text.startswith(begins):
        return False, f"at {frame.label() if frame else 'no line'}"
    return len(failure_text(failure).splitlines()) <= 12, failure.message


def program_of(name: str) -> tuple[FailureClass, Program]:
    """A program by the class and the name that it has there."""
    id_, _, own = name.partition(" ")
    each = failure_class(id_)
    return each, next(program for program in each.programs if program.name == own)


def before(name: str, file: Path) -> tuple[Answer, BaseException | None]:
    """A failing program of a class."""
    each, program = program_of(name)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            got = program.run("before", file)
            torch.cuda.synchronize()
        except Exception as error:
            if each.silent:
                return (False, f"raised {error!r}"), error
            return told(explain(error), program.recognised or each.id, "", file), error
        if not each.silent:
            return (False, "it did not fail"), None
        expected = program.run("eager", file)
    return (not all(map(same, got, expected)), f"{got[-1]} where eager gives {expected[-1]}"), None


def after(name: str, file: Path) -> tuple[Answer, BaseException | None]:
    """A program with the fix of its class applied, ten steps beside eager."""
    _, program = program_of(name)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            got, expected = program.run("after", file), program.run("eager", file)
        except Exception as error:
            return (False, f"raised {error!r}"), error
    return (all(map(same, got, expected)), f"{got[-1]} and {expected[-1]}"), None


def same(got: Any, expected: Any) -> bool:
    if isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor):
        return bool(torch.allclose(got.double(), expected.double(), rtol=1e-5, atol=1e-6))
    return bool(got == expected)


def case(name: str, file: Path) -> tuple[Answer, BaseException | None]:
    """A recorded program, again, through the doctor."""
    return explained(text_of(CASES[name], simulated=False), EXPECTED.get(name), file)


def own(name: str, file: Path) -> tuple[Answer, BaseException | None]:
    """A program of ours."""
    return explained(*OWN[name], file)


def explained(text: str, expected: tuple[str, str] | None, file: Path) -> tuple[Answer, BaseException | None]:
    """Run a program; right is the class and the line that are expected, or no error at all."""
    torch.manual_seed(0)
    error = execute(text, file, names_of(torch.cuda))
    if expected is None:
        return (error is None, "" if error is None else repr(error)), error
    if error is None:
        return (False, "it did not fail"), None
    return told(explain(error), *expected, file), error


def planted(name: str, file: Path) -> tuple[Answer, BaseException | None]:
    """A function with planted problems, or a sound one, through diagnose."""
    programs = {**doctor_programs.PLANTED, **doctor_programs.SOUND, **doctor_programs.COMPILED}
    text = {"seven": doctor_programs.SEVEN, **programs}[name]
    names = doctor_programs.program(text, file)
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pgk.diagnose(names["f"], *names["inputs"])
    got = {(f.code, f.frame.line if f.frame else 0) for f in found}
    return (got == doctor_programs.marked(text), repr(found)), None


def lost(name: str, file: Path) -> tuple[Answer, BaseException | None]:
    """A function after which the device answers no more: that is told once, and the next call says what to do."""
    names = doctor_programs.program(doctor_programs.LOSES_THE_DEVICE, file)
    found = pgk.diagnose(names["f"], *names["inputs"])
    if found.codes != ("device-assert",):
        return (False, str(found)), None
    try:
        pgk.diagnose(names["f"], *names["inputs"])
    except pgk.trace.ParamgraphError as error:
        return ("restart the kernel" in str(error) and "restart the kernel" in str(found), str(error)), None
    return (False, "the next call found nothing wrong"), None


KINDS = {"before": before, "after": after, "case": case, "own": own, "planted": planted, "lost": lost}


def settle_streams() -> None:
    """Let the next 31 streams be others than the one that captures: torch hands out 32 in turn."""
    captures = torch.cuda.graph(torch.cuda.CUDAGraph()).capture_stream
    while torch.cuda.Stream() != captures:
        pass


def main(jobs: list[list[str]], answers: Path) -> None:
    """Do all jobs, or as many as this process survives."""
    pgk.device()
    folder = Path(tempfile.mkdtemp(prefix="doctor-"))
    with answers.open("a", encoding="utf-8") as out:
        for number, (kind, name) in enumerate(jobs):
            settle_streams()
            (good, said), error = KINDS[kind](name, folder / f"{kind}_{number}.py")
            out.write(json.dumps([kind, name, good, said[:300]]) + "\n")
            out.flush()
            try:  # the next one must find all in order
                pgk.diagnose.repair(error)
                del error
                gc.collect()
                torch.cuda.empty_cache()
            except Exception:
                os._exit(3)
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
