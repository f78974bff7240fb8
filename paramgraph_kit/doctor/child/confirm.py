"""Confirms what was found by a real capture, in a child process that may die of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paramgraph_kit.doctor.child.carry import pack
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.trace.model import Failure, Frame


def confirm(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    problems: Sequence[Failure],
    *,
    limit_s: float,
) -> tuple[list[Failure], str]:
    """Capture ``function`` in a child process; returns the problems, with what is confirmed marked, and a note."""
    try:
        data = pack(function, args, kwargs)
    except Exception as error:
        return list(problems), f"not confirmed by a capture: it cannot travel to a child process, {_brief(error)}"
    found = _run(data, limit_s)
    if found["outcome"] == "cannot":
        return list(problems), f"not confirmed by a capture: {found['why']}"
    where = found["where"]
    loud = [failure for failure in problems if not BY_ID[failure.code].silent]
    if found["outcome"] == "captured":
        if not loud:
            return list(problems), f"a child process captured and replayed it ({where})"
        codes = ", ".join(dict.fromkeys(failure.code for failure in loud))
        return list(problems), f"a child process could capture it all the same ({where}): {codes} did not fail there"
    failure = _failure(found["failure"])
    marked = []
    hit = False
    for one in problems:
        if not hit and _line(one) == _line(failure) and (one.code == failure.code or one in loud):
            one = replace(one, message=f"{one.message}; confirmed by a capture")
            hit = True
        marked.append(one)
    if not hit and any(one.code == failure.code for one in loud):
        return marked, f"a capture in a child process fails with {failure.code} ({where})"
    if not hit:
        marked.append(replace(failure, message=f"{failure.message}; seen only in a capture"))
    return marked, f"a capture in a child process fails at the first of them only ({where})"


def _run(data: bytes, limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="paramgraph_kit-") as folder:
        given, answer = Path(folder) / "function", Path(folder) / "answer.json"
        given.write_bytes(data)
        command = [sys.executable, "-m", "paramgraph_kit.doctor.child.attempt", str(given), str(answer)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part or os.getcwd() for part in sys.path)}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=limit_s, env=environment
            )
        except subprocess.TimeoutExpired:
            return {"outcome": "cannot", "why": f"the child process took more than {limit_s:g} s"}
        if not answer.exists():
            said = done.stderr.strip().splitlines()
            return {"outcome": "cannot", "why": f"the child process ended with {_status(done.returncode)}: {said[-1:]}"}
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def _status(code: int) -> str:
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _failure(data: dict[str, Any]) -> Failure:
    frame = data.pop("frame")
    return Failure(**data, frame=Frame(**frame) if frame else None)


def _line(failure: Failure) -> tuple[str, int] | None:
    # A notebook's cells have names of their own in another process, so the text stands for the file.
    return (failure.frame.text, failure.frame.line) if failure.frame else None


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
