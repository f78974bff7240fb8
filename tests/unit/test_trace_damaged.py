"""Files that are damaged, hostile or no trace: refused in one line that names the place, and at little cost."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paramgraph_kit import trace as t
from paramgraph_kit.trace import format as file_format
from tests.unit.trace_samples import SIMULATED, Maker, document, realistic, repack


def attempt(packed: bytes) -> t.Trace | str:
    """The trace, or the text of the only error that may come out."""
    try:
        return t.loads(packed)
    except t.TraceError as error:
        return str(error)


def test_damaged_bytes_are_refused_or_harmless() -> None:
    # GIVEN a good file, and 400 damaged copies of it
    rng = random.Random(11)
    trace = Maker(5).trace(SIMULATED)
    good = t.dumps(trace)
    expected = t.loads(good)
    refused = 0
    for case in range(400):
        if case % 4:
            bad = bytearray(good)
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        else:
            bad = bytearray(good[: rng.randrange(len(good))])
        # WHEN one is loaded
        outcome = attempt(bytes(bad))
        # THEN it is one clear line, or the trace unharmed
        if isinstance(outcome, str):
            refused += 1
            assert outcome.startswith("<bytes>: ")
            assert "\n" not in outcome
        else:
            assert outcome == expected
    assert refused > 350


def test_damaged_content_is_refused_or_well_formed() -> None:
    # GIVEN the text inside a good file, with a valid checksum around each of 400 changes
    rng = random.Random(12)
    text = gzip.decompress(t.dumps(Maker(5).trace(SIMULATED)))
    outcomes: set[type] = set()
    for _ in range(400):
        bad = bytearray(text)
        bad[rng.randrange(len(bad))] = rng.choice(b'0123456789-"[]{},:eEnull.')
        # WHEN it is loaded THEN only a TraceError may come out, or a trace that saves again
        outcome = attempt(gzip.compress(bytes(bad), mtime=0))
        if isinstance(outcome, str):
            assert "\n" not in outcome
        else:
            assert t.loads(t.dumps(outcome)) == outcome
        outcomes.add(type(outcome))
    assert outcomes == {str, t.Trace}


def _set(path: str, value: Any) -> Any:
    def change(content: Any) -> None:
        *parents, last = path.split(".")
        for key in parents:
            content = content[int(key) if isinstance(content, list) else key]
        if value is KeyError:
            del content[last]
        else:
            content[int(last) if isinstance(content, list) else last] = value

    return change


SMALL = t.Trace(
    SIMULATED,
    "small",
    [t.Partition(0, "forward 0", True, ("aten.add",), 1)],
    [
        t.Capture(
            0,
            0,
            (
                t.Node(0, t.NodeKind.KERNEL, "add", words=(t.Word(0, t.WordKind.POINTER, 0),)),
                t.Node(1, t.NodeKind.KERNEL, "mul"),
            ),
            ((0, 1),),
            (t.Allocation(0, t.Role.INPUT, 512, 0),),
        )
    ],
    [t.Launch(0, 0, 1, 1, 0, 4.5)],
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set("version", 6), "format version 6, but this paramgraph_kit reads versions 1 to 5"),
        (_set("version", True), "format version True"),
        (_set("format", "other"), "gzipped JSON, but not a trace"),
        (_set("launches", KeyError), "trace: misses launches"),
        (_set("proofs", KeyError), "trace: misses proofs"),
        (_set("proofs.largest", [10**400]), "proofs.largest[0]: expected a finite number"),
        (_set("extra", 1), "trace: unknown key 'extra'"),
        (_set("title", 5), "title: expected text"),
        (_set("strings", {}), "strings: expected a list, got {}"),
        (_set("strings.0", 5), "strings[0]: expected text"),
        (_set("source.torch", KeyError), "source: misses torch"),
        (_set("source.origin", "guessed"), "source.origin: unknown Origin 'guessed'"),
        (_set("launches.moved", ["one"]), "launches.moved[0]: expected an integer, got 'one'"),
        (_set("launches.moved", [10**400]), "launches.moved[0]: expected an integer of 64 bits"),
        (_set("captures.edges.0.0", [0, -(1 << 64)]), "expected an integer of 64 bits"),
        (_set("launches.moved", [True]), "launches.moved[0]: expected an integer, got True"),
        (_set("launches.moved", [1, 2]), "launches: columns of different lengths"),
        (_set("launches.cpu_us", ["fast"]), "launches.cpu_us[0]: expected a number, got 'fast'"),
        (_set("launches.cpu_us", [10**400]), "launches.cpu_us[0]: expected a finite number"),
        (_set("partitions.graphed", [1]), "partitions.graphed[0]: expected true or false, got 1"),
        (_set("partitions.graph", [99]), "partitions.graph[0]: 99 is no index into"),
        (_set("partitions.graph", [-1]), "partitions.graph[0]: -1 is no index into"),
        (_set("captures.nodes.rows.kind.0", "warp"), "unknown NodeKind 'warp'"),
        (_set("captures.nodes.rows.kind.0", []), "unknown NodeKind []"),
        (_set("captures.nodes.rows.frame.0", 7), "7 is no index into 0 frames"),
        (_set("captures.nodes.rows.grid.0", [1, 2]), "expected 3 integers, got [1, 2]"),
        (_set("captures.nodes.counts", [3]), "captures.nodes.counts: 3 does not fit into 2 rows"),
        (_set("captures.nodes.counts", [1]), "captures.nodes.counts: add up to 1, but there are 2 rows"),
        (_set("captures.nodes.rows.words.rows.allocation.0", 1), "word at 0: 1 is no index into 1 allocations"),
        (_set("captures.edges.0.0", [0, 2]), "edge (0, 2) names node 2, which is not there"),
        (_set("captures.allocations.rows.slot.0", -1), "allocation 0 names slot -1"),
        (_set("captures.allocations.rows.slot.0", 10**6), "allocation 0 names slot 1000000"),
    ],
)
def test_wrong_content_names_the_place(change: Any, says: str) -> None:
    # GIVEN a good file with one thing wrong
    content = document(t.dumps(SMALL))
    change(content)
    # WHEN it is loaded
    with pytest.raises(t.TraceError) as caught:
        t.loads(repack(content), name="bad.pgtrace")
    # THEN one line names the file, the place and what to do
    text = str(caught.value)
    assert text.startswith("bad.pgtrace: ")
    assert says in text
    assert "\n" not in text
    assert any(hint in text for hint in ("record it again", "record the trace again", "written by paramgraph_kit"))
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("packed", "says"),
    [
        (b"", "not a trace file (no gzip header)"),
        (b"PK\x03\x04", "not a trace file (no gzip header)"),
        (t.dumps(SMALL)[:-9], "the file is cut off"),
        (t.dumps(SMALL)[:-1] + b"\xff", "the compressed data are damaged"),
        (gzip.compress(b"{'a': 1}", mtime=0), "the content is no JSON"),
        (gzip.compress(b"\xff\xfe\xfd", mtime=0), "the content is no JSON"),
        (gzip.compress(b'{"format": NaN}', mtime=0), "the content is no JSON (NaN is no JSON number)"),
        (gzip.compress(b"[" * 100_000, mtime=0), "the content is no JSON"),
        (gzip.compress(b"[1]", mtime=0), "gzipped JSON, but not a trace"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(packed: bytes, says: str) -> None:
    # GIVEN bytes that are no trace WHEN loaded
    with pytest.raises(t.TraceError) as caught:
        t.loads(packed, name="x")
    # THEN one line says why
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a small file that unpacks to more than the limit (lowered here to spare memory)
    monkeypatch.setattr(file_format, "MAX_BYTES", 1 << 20)
    bomb = gzip.compress(b" " * (1 << 24), mtime=0)
    assert len(bomb) < 1 << 17
    # WHEN loaded THEN it is refused, with the limit in the text
    with pytest.raises(t.TraceError, match="more than 1 MiB unpacked"):
        t.loads(bomb)


LOADING = """
import glob, resource, sys, time
from paramgraph_kit import trace as t

before, slowest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0.0
for path in sorted(glob.glob(sys.argv[1] + "/*.pgtrace")):
    start = time.process_time()
    try:
        t.load(path)
    except t.TraceError as error:
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 500, str(error)[:500]
    slowest = max(slowest, time.process_time() - start)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, slowest)
"""


def _with(**parts: str) -> str:
    known = {"format": '"pgtrace"', "version": "2", "title": '"x"', "source": "{}", "strings": "[]", "frames": "{}"}
    return "{" + ",".join(f'"{key}":{value}' for key, value in {**known, **parts}.items()) + "}"


def test_hostile_files_cost_little_and_get_one_line(tmp_path: Path) -> None:
    # GIVEN bombs of empty lists, wide letters, long numbers and depth, and traces with random letters in them
    files = [
        _with(strings="[" + "[]," * 8_000_000 + "[]]"),
        _with(strings="[" + "{}," * 400_000 + "{}]"),
        _with(strings="[" + "[]," * 700_000 + "[]]"),
        _with(strings="[" + '"",' * 1_400_000 + '""]'),
        _with(title='"' + "a" * 20_000_000 + "\\ud83d\\ude00" + '"'),
        _with(title="[" * 1_000_000),
        *(_with(title=number) for number in ("9" * 4_000, "9" * 5_000, "1e999999")),
        '{"format":"pgtrace","version":' + "1" * 3_000 + "}",
        " " * 100_000_000,
    ]
    text, source = gzip.decompress(t.dumps(realistic(3))).decode(), random.Random(0)
    for _ in range(200):
        letters = list(text)
        for _ in range(source.randrange(1, 6)):
            letters[source.randrange(len(letters))] = source.choice('[]{},:"0123456789-eE.ntf\\ ')
        files.append("".join(letters))
    for n, each in enumerate(files):
        (tmp_path / f"{n}.pgtrace").write_bytes(gzip.compress(each.encode(), 1))
    # WHEN each is loaded, in a process of its own
    command = [sys.executable, "-c", LOADING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    # THEN it is refused in one line, at no more than 200 MB and two seconds
    assert done.stderr == ""
    megabytes, seconds = map(float, done.stdout.split())
    assert megabytes <= 200
    assert seconds <= 2


def test_files_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    # GIVEN a missing file, a folder, and a missing folder WHEN used THEN TraceError names them
    with pytest.raises(t.TraceError, match=r"no\.pgtrace: cannot be read \(No such file.*\); check the path"):
        t.load(tmp_path / "no.pgtrace")
    with pytest.raises(t.TraceError, match="cannot be read"):
        t.load(tmp_path)
    with pytest.raises(t.TraceError, match=r"x\.pgtrace: cannot be written"):
        t.save(SMALL, tmp_path / "none" / "x.pgtrace")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (t.Trace(SIMULATED, launches=[t.Launch(0, 0, 0, 0, 0, float("nan"))]), "Launch.cpu_us: expected a finite"),
        (t.Trace(SIMULATED, launches=[t.Launch(0, 0, "x", 0)]), "Launch.moved: "),  # type: ignore[arg-type]
        (t.Trace(SIMULATED, captures=[t.Capture(4, 0, (), ((0, 1),), ())]), "capture 4: edge (0, 1) names node 0"),
    ],
)
def test_what_load_would_refuse_is_not_saved(tmp_path: Path, bad: t.Trace, says: str) -> None:
    # GIVEN a trace with a wrong value WHEN saved
    with pytest.raises(t.TraceError) as caught:
        t.save(bad, tmp_path / "x.pgtrace")
    # THEN it is refused and no file is left
    assert says in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_file_may_have_so_much_and_no_more() -> None:
    # What a file costs at most follows from these, and they are part of the format.
    assert (file_format.MAX_BYTES, file_format.MAX_VALUES, file_format.MAX_SLOTS) == (25_165_824, 1_500_000, 65_536)


@pytest.mark.parametrize("sign", "[{,")
def test_every_sign_that_makes_values_is_counted(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a file of brackets, braces or commas alone WHEN it has more than it may THEN it is refused before it is read
    monkeypatch.setattr(file_format, "MAX_VALUES", 10)
    with pytest.raises(t.TraceError, match="more than 10 values"):
        file_format.loads(gzip.compress(sign.encode() * 11))
    with pytest.raises(t.TraceError, match="is no JSON"):
        file_format.loads(gzip.compress(sign.encode() * 10))


def test_a_message_quotes_so_much_of_another_and_no_more() -> None:
    assert file_format._one_line("x\n" * 300) == ("x " * 300)[:120]
