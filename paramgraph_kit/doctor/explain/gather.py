"""What an exception tells about a failed capture: the whole chain, the code, the user's line, the operation."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from types import TracebackType

from paramgraph_kit.doctor.explain import hints
from paramgraph_kit.doctor.explain.operations import names_at, operations_at, told_apart
from paramgraph_kit.doctor.known.evidence import ANOMALY, ASIDE, NEVER_BEGUN, PAGEABLE, Evidence
from paramgraph_kit.driver.files import OURS, display_name, is_cell, is_library, package_of
from paramgraph_kit.trace.model import Frame

# cudaGetErrorString's words, for exceptions that come without an error_code (older torch, other libraries).
CODE_OF_TEXT = {
    "operation not permitted when stream is capturing": 900,
    "operation failed due to a previous error during capture": 901,
    "operation would result in a merge of separate capture sequences": 902,
    "capture was not ended in the same stream as it began": 903,
    "capturing stream has unjoined work": 904,
    "dependency created on uncaptured work in another stream": 905,
    "operation would make the legacy stream depend on a capturing blocking stream": 906,
    "operation not permitted on an event last recorded in a capturing stream": 907,
    "attempt to terminate a thread-local capture sequence from another thread": 908,
    "an illegal memory access was encountered": 700,
    "device-side assert triggered": 710,
    "the operation cannot be performed in the present state": 401,
    "invalid argument": 1,
}


def gather(exception: BaseException) -> Evidence:
    """Look at one exception of a chain."""
    message = text_of(exception)
    number, told = cuda_code(exception), _told(message)
    entries, library = _split(exception.__traceback__)
    files = tuple(entry.tb_frame.f_code.co_filename.replace("\\", "/") for entry in library)
    packages = [entry for entry in library if _is_package(entry.tb_frame.f_code.co_filename)]
    inside = _place(packages[-1]) if packages and entries else ""
    entries = entries or packages  # nothing of the user's was running, as in another thread: a package's line is one
    if not entries:
        return Evidence(type(exception).__name__, message, number, None, told=told)
    code, line = entries[-1].tb_frame.f_code, entries[-1].tb_lineno
    operations, exact = _operations(entries[-1], message)
    frame = Frame(display_name(code.co_filename), line, code.co_name, _text(entries[-1]))
    inner: list[str] = []
    ours = [n for n, entry in enumerate(library) if entry.tb_frame.f_code.co_filename.startswith(OURS)]
    for entry in reversed(library[: ours[0] if ours else None]):  # the simulator calls what a GPU does not
        found, known = _operations(entry, message)
        inner += [*(found[:1] if known else ()), entry.tb_frame.f_code.co_name]
    around = _hints(message, number, entries)
    kind = type(exception).__name__
    return Evidence(kind, message, number, frame, operations, exact, files, tuple(inner), around, told, inside)


def _is_package(file: str) -> bool:
    """Whether a file is an installed package's, and neither torch's nor Python's nor ours."""
    return package_of(file) not in ("", "torch", "triton", "functorch") and not file.startswith(OURS)


def _place(entry: TracebackType) -> str:
    file = entry.tb_frame.f_code.co_filename.replace("\\", "/")
    return f"{'/'.join(file.split('/')[-3:])}:{entry.tb_lineno}"


def _text(entry: TracebackType) -> str:
    file = entry.tb_frame.f_code.co_filename
    return linecache.getline(file, entry.tb_lineno, entry.tb_frame.f_globals).strip()


def _operations(entry: TracebackType, message: str) -> tuple[tuple[str, ...], bool]:
    frame = entry.tb_frame
    found, exact = operations_at(frame.f_code, entry.tb_lasti, names_at(frame), _text(entry))
    return told_apart(found, PAGEABLE in message), exact


def _hints(message: str, number: int | None, entries: list[TracebackType]) -> frozenset[str]:
    found = set()
    if number == 900 and hints.is_aside(entries):
        found.add(ASIDE)
    if number == 900 and hints.looks_for_nan(entries):
        found.add(ANOMALY)
    if number == 901:
        found |= hints.spoiled_by(entries)
    if "Capture must end" in message:
        cells = [file for file in list(linecache.cache) if is_cell(file)]
        if hints.never_begins([*(entry.tb_frame.f_code.co_filename for entry in entries), *cells]):
            found.add(NEVER_BEGUN)
    return frozenset(found)


def _told(message: str) -> Frame | None:
    """The innermost line of the user's that a message quotes."""
    own = [place for place in hints.told_places(message) if not is_library(place[0])]
    if not own:
        return None
    file, line, name, text = own[-1]
    return Frame(display_name(file), line, name, text or linecache.getline(file, line).strip())


def cuda_code(exception: BaseException) -> int | None:
    """CUDA's error code, from the exception's own ``error_code`` or else from its words."""
    code = getattr(exception, "error_code", None)
    if isinstance(code, int) and not isinstance(code, bool):
        return code
    return cuda_code_in(text_of(exception))


def cuda_code_in(message: str) -> int | None:
    """The error code that torch's words for one stand for."""
    if "CUDA error" not in message and "Triton Error" not in message:
        return None
    return next((number for text, number in CODE_OF_TEXT.items() if text in message), None)


def text_of(exception: BaseException) -> str:
    """What an exception says; its name where saying it fails."""
    try:
        return str(exception)
    except Exception as error:
        return f"{type(exception).__name__}, whose text cannot be made: {type(error).__name__}"


def _walk(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _split(traceback: TracebackType | None) -> tuple[list[TracebackType], list[TracebackType]]:
    """The entries of the user's own, and those of libraries below the innermost of them, outermost first."""
    own: list[TracebackType] = []
    library: list[TracebackType] = []
    for entry in _walk(traceback):
        if is_library(entry.tb_frame.f_code.co_filename):
            library.append(entry)
        else:
            own.append(entry)
            library = []
    return own, library
