"""Trace files (``.pgtrace``): gzip, JSON, columns; the same trace always gives the same bytes.

>>> import tempfile, pathlib
>>> from paramgraph_kit.trace import Origin, Source, Trace, load, save
>>> trace = Trace(Source(Origin.SIMULATED, "simulated device", "-", "2.13.0", "3.11", "2026-11-20"), "demo")
>>> path = save(trace, pathlib.Path(tempfile.mkdtemp()) / "demo.pgtrace")
>>> load(path)
Trace('demo', simulated: 0 partitions, 0 captures, 0 launches, 0 failures, 0 pool events)
>>> load(path).source.label()
'simulated: simulated device, torch 2.13.0, 2026-11-20 (loaded from a recording)'
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import struct
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from paramgraph_kit.trace import model
from paramgraph_kit.trace.columns import (
    VERSION,
    BadValueError,
    Tables,
    decode_rows,
    encode_rows,
    expect_dict,
    expect_index,
    expect_list,
)
from paramgraph_kit.trace.errors import TraceError
from paramgraph_kit.trace.files import path_of, unreadable, unwritable, written

# Together they bound what a file may cost: 200 MB and two seconds. A capture of 2,000 nodes needs about one megabyte.
MAX_BYTES = 24 * 1024 * 1024  # of JSON text
MAX_VALUES = 1_500_000  # in it: an empty list has two letters, and takes 64 bytes
MAX_SLOTS = 65_536
STRIPPED = "<stripped>"

_TABLES: dict[str, type] = {
    "partitions": model.Partition,
    "captures": model.Capture,
    "launches": model.Launch,
    "failures": model.Failure,
    "pool_events": model.PoolEvent,
    "proofs": model.Proof,
}
_SINCE = {"proofs": 2}  # tables that older versions lack
_SOURCE = ("origin", "device", "driver", "torch", "python", "date")
_KEYS = ("format", "version", "title", "source", "strings", "frames")
# An absolute path (posix, home, drive) or the name of a Python file or notebook.
_PATH = re.compile(r"(?<![\w.)\]>])(?:~|[A-Za-z]:)?[/\\][^\s\"',:;()<>|]+|[^\s\"'(<,:]+\.(?:py|ipynb)\b")


def save(trace: model.Trace, path: str | os.PathLike[str], *, strip_source: bool = False) -> Path:
    """Write ``trace`` to a file, whole or not at all, and return its path.

    Args:
        trace: what to write; a trace that ``load`` would refuse is refused here.
        path: usually ends in ``.pgtrace``; its folder must exist.
        strip_source: leave out file names, function names and lines of the user's code, here and
            inside messages. Line numbers and kernel names stay.

    Raises:
        TraceError: the trace holds a value that cannot be stored, or the file cannot be written.

    Examples:
        >>> save(trace, "llama.pgtrace", strip_source=True)  # doctest: +SKIP
        PosixPath('llama.pgtrace')
    """
    target = path_of(path)
    data = dumps(trace, strip_source=strip_source)
    if os.path.exists(target) and not os.path.isfile(target):
        return written(target, data)  # /dev/null, a pipe: it is written to, and stays what it is
    place = Path(os.path.realpath(target))  # a link stays one, too
    try:
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=place.name[:64], suffix=".part")
    except OSError as error:
        raise unwritable(target, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, place)
    except OSError as error:
        os.unlink(temporary)
        raise unwritable(target, error) from None
    return target


def load(path: str | os.PathLike[str]) -> model.Trace:
    """Read a trace file; what was live when it was written is ``recorded`` from now on.

    Raises:
        TraceError: no such file, damaged, not a trace, of an unknown version, or larger than 24 MiB unpacked.

    Examples:
        >>> load("llama.pgtrace")  # doctest: +SKIP
        Trace('llama', recorded: 3 partitions, 2 captures, 40 launches, 0 failures, 812 pool events)
    """
    source = path_of(path)
    try:
        packed = source.read_bytes()
    except OSError as error:
        raise unreadable(source, error) from None
    return loads(packed, name=str(path))


def dumps(trace: model.Trace, *, strip_source: bool = False) -> bytes:
    """The bytes of a trace file; see ``save``."""
    tables = Tables()
    if strip_source:
        _strip_into(tables, trace)
    try:
        for capture in trace.captures:
            _check_capture(capture)
        columns = {key: encode_rows(cls, getattr(trace, key), tables) for key, cls in _TABLES.items()}
        title = tables.clean(trace.title)
        tables.clean = str  # the frames are clean already, and their "<file 1>" must stay
        frames = encode_rows(model.Frame, tables.frames, tables)
        document: dict[str, Any] = {
            "format": "pgtrace",
            "version": VERSION,
            "title": title,
            "source": {key: str(getattr(trace.source, key)) for key in _SOURCE},
            **columns,
            "frames": frames,
            "strings": tables.strings,
        }
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except BadValueError as error:
        raise TraceError(f"this trace cannot be saved: {error}; correct that value") from None
    buffer = io.BytesIO()
    # GzipFile and not gzip.compress: its header has no platform and, with these arguments, no name or time.
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0, compresslevel=9) as packer:
        packer.write(text.encode("ascii"))
    return buffer.getvalue()


def loads(packed: bytes, *, name: str = "<bytes>") -> model.Trace:
    """A trace from the bytes of a file; ``name`` is what errors call it. See ``load``."""
    try:
        return _decode(_parse(packed))
    except BadValueError as error:
        raise TraceError(f"{name}: {error}") from None


def _parse(packed: bytes) -> dict[str, Any]:
    if packed[:2] != b"\x1f\x8b":
        raise BadValueError("not a trace file (no gzip header); pass a file written by paramgraph_kit.save")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as unpacker:
            text = unpacker.read(MAX_BYTES + 1)
    except EOFError:
        raise BadValueError("the file is cut off; copy or download it again") from None
    except (OSError, zlib.error, struct.error) as error:
        raise BadValueError(f"the compressed data are damaged ({error}); copy or download it again") from None
    if len(text) > MAX_BYTES:
        raise BadValueError(f"more than {MAX_BYTES >> 20} MiB unpacked; record fewer calls into one trace")
    if not text.isascii():
        raise BadValueError("the content is no JSON in ASCII; record the trace again")
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_VALUES:
        raise BadValueError(f"more than {MAX_VALUES:,} values; record fewer calls into one trace")
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadValueError(f"the content is no JSON ({_one_line(error)}); record the trace again") from None
    if not isinstance(document, dict) or document.get("format") != "pgtrace":
        raise BadValueError("gzipped JSON, but not a trace; pass a file written by paramgraph_kit.save")
    version = document.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise BadValueError(
            f"format version {_one_line(version)}, but this paramgraph_kit reads versions 1 to {VERSION}; "
            "install the paramgraph_kit that wrote it, or record the trace again"
        )
    return document


def _decode(document: dict[str, Any]) -> model.Trace:
    try:
        tables_of = {key: cls for key, cls in _TABLES.items() if _SINCE.get(key, 1) <= document["version"]}
        expect_dict(document, "trace", (*_KEYS, *tables_of))
        source = _decode_source(document["source"])
        title = document["title"]
        if not isinstance(title, str):
            raise BadValueError("title: expected text")
        tables = Tables(strings=expect_list(document["strings"], "strings"), version=document["version"])
        for row, text in enumerate(tables.strings):
            if not isinstance(text, str):
                raise BadValueError(f"strings[{row}]: expected text")
        tables.frames = decode_rows(model.Frame, document["frames"], tables, "frames")
        rows = {key: decode_rows(cls, document[key], tables, key) for key, cls in tables_of.items()}
        for capture in rows["captures"]:
            _check_capture(capture)
    except BadValueError as error:
        raise BadValueError(f"{error}; the file was changed or written by something else, record it again") from None
    return model.Trace(source, title, **rows)


def _decode_source(data: Any) -> model.Source:
    data = expect_dict(data, "source", _SOURCE)
    for key in _SOURCE:
        if not isinstance(data[key], str):
            raise BadValueError(f"source.{key}: expected text")
    try:
        origin = model.Origin(data["origin"])
    except ValueError:
        raise BadValueError(f"source.origin: unknown Origin {data['origin'][:40]!r}") from None
    return recorded(model.Source(**{**data, "origin": origin}))


def _check_capture(capture: model.Capture) -> None:
    """Every index inside a capture points at something that is there."""
    where = f"capture {capture.id}"
    indices = {node.index for node in capture.nodes}
    for before, after in capture.edges:
        for end in (before, after):
            if end not in indices:
                raise BadValueError(f"{where}: edge ({before}, {after}) names node {end}, which is not there")
    for allocation in capture.allocations:
        if allocation.slot is not None and not 0 <= allocation.slot < MAX_SLOTS:
            raise BadValueError(f"{where}: allocation {allocation.index} names slot {allocation.slot}")
    count = len(capture.allocations)
    for node in capture.nodes:
        for word in node.words:
            if word.allocation is not None:
                try:
                    expect_index(word.allocation, count, "allocations")
                except BadValueError as error:
                    raise BadValueError(f"{where}: node {node.index}, word at {word.offset}: {error}") from None


def _strip_into(tables: Tables, trace: model.Trace) -> None:
    """Make ``tables`` drop source text and paths from all that is put into them."""
    frames = _frames_of(trace)
    files = {file: f"<file {n}>" for n, file in enumerate(dict.fromkeys(frame.file for frame in frames), 1)}
    # Longest first, so that a line inside a longer line does not break it up. Short lines ("x") would hit anything.
    secrets = {frame.text.strip() for frame in frames} | set(files)
    ordered = sorted((s for s in secrets if len(s) > 2), key=lambda s: (-len(s), s))
    functions = _functions(frame.function for frame in frames)

    def clean(text: str) -> str:
        for secret in ordered:
            text = text.replace(secret, STRIPPED)
        return functions.sub(STRIPPED, _PATH.sub(STRIPPED, text))

    tables.clean = clean
    tables.clean_frame = lambda frame: model.Frame(files[frame.file], frame.line)


def _functions(names: Iterable[str]) -> re.Pattern[str]:
    """Names of the user's functions in a text; one that is a common word only where it stands as a name."""
    parts = {part for name in names for part in name.split(".") if part.isidentifier() and len(part) > 2}
    if not parts:
        return re.compile(r"(?!)")  # which is nowhere
    every = "|".join(map(re.escape, sorted(parts, key=lambda s: (-len(s), s))))
    own = "|".join(map(re.escape, sorted((p for p in parts if "_" in p), key=lambda s: (-len(s), s)))) or "(?!)"
    return re.compile(rf"\b(?:{own})\b|\b(?:{every})(?=\()|(?<=\bin )(?:{every})\b|(?<=['\"`])(?:{every})(?=['\"`])")


def _frames_of(trace: model.Trace) -> list[model.Frame]:
    nodes = (node for capture in trace.captures for node in capture.nodes)
    reasons = (reason for partition in trace.partitions for reason in partition.reasons)
    memory = (allocation for capture in trace.captures for allocation in capture.allocations)
    every = (nodes, reasons, trace.failures, memory, trace.pool_events)
    return [item.frame for items in every for item in items if item.frame is not None]


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _one_line(value: object) -> str:
    return " ".join(str(value).split())[:120]


def recorded(source: model.Source) -> model.Source:
    """What ``load`` makes of a source: live becomes recorded, and it says that it comes from a file."""
    origin = model.Origin.RECORDED if source.origin is model.Origin.LIVE else source.origin
    return replace(source, origin=origin, from_file=True)
