"""The recorder on the simulator: the same code as on a GPU, small, and labelled for what it is."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.trace import Origin, UnsupportedError
from scripts.record import command
from scripts.record.check import check, missing

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


# Each is made in a process of its own, which imports torch for as long as many tests run: `make sweeps` has the others.
FEW = ("story-1-broken", "story-3-parameterized")
MORE = ("offload", "story-2-captured", "llama-blocks-paramgraph")


def recorded(names: Sequence[str], out: Path) -> Path:
    """What the command leaves behind for some of the recordings."""
    said = io.StringIO()
    with redirect_stdout(said):
        status = command.main(["--out", str(out), "--only", ",".join(names)])
    (out / "said").write_text(said.getvalue())
    assert status == 0, said.getvalue()
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first and the last of a story."""
    return recorded(FEW, tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of each kind."""
    return recorded((*FEW, *MORE), tmp_path_factory.mktemp("recorded"))


def test_one_line_tells_of_each_recording(folder: Path) -> None:
    # GIVEN what was printed WHEN read THEN each file has its line, and all are small
    *lines, last = (folder / "said").read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(p.stem for p in folder.glob("*.pgtrace"))
    assert all("[simulated: " in line and " bytes " in line for line in lines)
    assert last.startswith(f"{len(lines)} recordings, ")


def test_nothing_simulated_can_be_taken_for_a_recording(folder: Path) -> None:
    for path in folder.glob("*.pgtrace"):
        assert pgk.load(path).source.origin is Origin.SIMULATED


@pytest.mark.sweep
def test_a_training_step_is_recorded_with_its_memory_and_its_numbers(larger: Path) -> None:
    # GIVEN a step block by block
    trace = pgk.load(larger / "llama-blocks-paramgraph.pgtrace")
    # THEN all layers share one graph forward and one backward, nothing is copied, numbers are those without graphs
    assert len(trace.captures) == 2
    assert all(partition.graphed for partition in trace.partitions)
    assert trace.launches
    assert sum(launch.bytes_copied for launch in trace.launches) == 0
    (proof,) = trace.proofs
    assert proof.equal
    assert proof.values > 10_000
    # AND memory was seen before, three times in each of six steps, and at rest
    assert {event.time for event in trace.pool_events} == set(range(20))
    assert {event.call for event in trace.pool_events} == {None, *range(7)}


@pytest.mark.sweep
def test_offloading_forks_and_joins_with_a_line_for_each_node(larger: Path) -> None:
    # GIVEN the step with its activations in pinned memory, and the same that keeps them
    offloaded, kept = (pgk.load(larger / f"{name}.pgtrace") for name in ("offload", "offload-kept"))
    (one,), (other,) = offloaded.captures, kept.captures
    # THEN the copies are beside the kernels, two for each of 8 layers; without them it is one lane
    copies = [node for node in one.nodes if node.kind == "memcpy"]
    assert len(copies) == 16
    assert len(one.nodes) - len(copies) == len(other.nodes)
    assert {node.lane for node in one.nodes} == {0, 1}
    assert {node.lane for node in other.nodes} == {0}
    # AND every node names the line of the program that recorded it
    lines = [node.frame.text for node in one.nodes if node.frame is not None and node.frame.file == "offload.py"]
    assert len(lines) == len(one.nodes)
    assert {node.frame.text for node in copies if node.frame} == {
        "host.copy_(x, non_blocking=True)",
        "back = torch.empty_like(host, device=self.device).copy_(host, non_blocking=True)",
    }
    # AND both have eager's numbers
    assert all(proof.equal for proof in (*offloaded.proofs, *kept.proofs))


def test_the_story_fails_at_its_line_and_ends_well(folder: Path) -> None:
    # GIVEN the first and the last stage of one model
    broken, parameterized = (pgk.load(folder / f"{name}.pgtrace") for name in FEW)
    # THEN the first fails at its line
    (failure,) = broken.failures
    assert failure.code == "sync-item"
    assert failure.frame is not None
    assert failure.frame.text == "if h.max().item() > 1:"
    # AND the parameterized one is right for a new tensor, and copies nothing
    assert [proof.equal for proof in parameterized.proofs] == [True] * len(parameterized.proofs) != []
    assert sum(launch.bytes_copied for launch in parameterized.launches) == 0


@pytest.mark.sweep
def test_the_story_says_where_a_graph_is_wrong(larger: Path) -> None:
    # GIVEN the stage between, where the model is captured and no more
    captured, last = (pgk.load(larger / f"story-{name}.pgtrace") for name in ("2-captured", "3-parameterized"))
    # THEN the graph is wrong for a new tensor, as to which the last is right, and right after a copy, which is counted
    stale, *copied = captured.proofs
    assert not stale.equal
    assert all(proof.equal for proof in copied)
    assert sum(launch.bytes_copied for launch in captured.launches) > 0
    assert {proof.label for proof in last.proofs} == {stale.label}


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed here")
def test_a_missing_library_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--out", str(tmp_path), "--only", "resnet50"]) == 1
    said = capfd.readouterr()
    assert "FAILED" in said.out
    assert "this recording needs torchvision: pip install torchvision" in said.out
    assert said.err == ""


def test_a_graph_captured_by_hand_can_be_looked_at() -> None:
    # GIVEN a graph of two branches
    cuda, x = pgk.cuda, torch.ones(4, 4, device=pgk.device())
    x @ x  # cuBLAS is loaded outside of the capture
    graph, side = cuda.CUDAGraph(keep_graph=True), cuda.Stream()
    with pgk.diagnose.capture(graph, lines=True):
        y = x * 2
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            z = y + 1
        w = y @ y
        cuda.current_stream().wait_stream(side)
        result = w + z
    # WHEN explored THEN nodes, edges, branches and lines are there
    (capture,) = pgk.explore(graph).trace.captures
    assert [node.name for node in capture.nodes] == ["mul.Tensor", "add.Tensor", "mm", "add.Tensor"]
    assert set(capture.edges) == {(0, 1), (0, 2), (1, 3), (2, 3)}
    assert sorted(node.lane for node in capture.nodes) == [0, 0, 0, 1]
    texts = [node.frame.text if node.frame else "" for node in capture.nodes]
    assert texts == ["y = x * 2", "z = y + 1", "w = y @ y", "result = w + z"]
    # AND watching changed nothing: the graph computes
    graph.replay()
    assert result.tolist() == [[19.0] * 4] * 4


def test_lines_are_noted_only_when_asked_for() -> None:
    # GIVEN a capture without lines WHEN explored THEN the nodes have none
    cuda, x = pgk.cuda, torch.ones(4, device=pgk.device())
    graph = cuda.CUDAGraph(keep_graph=True)
    with pgk.diagnose.capture(graph):
        _ = x * 2
    assert [node.frame for node in pgk.explore(graph).trace.captures[0].nodes] == [None]


def test_a_graph_without_a_capture_is_said_in_one_line() -> None:
    with pytest.raises(UnsupportedError) as caught:
        pgk.explore(pgk.cuda.CUDAGraph())
    assert "\n" not in str(caught.value)


def test_what_a_recording_lacks_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN what was recorded WHEN it is checked THEN nothing is missing
    assert check(folder, FEW) == 0
    assert capsys.readouterr().out.count("complete") == 2
    # WHEN a file is not there, a graph is, or times and lines of what calls itself a GPU's THEN that is said
    trace = pgk.load(folder / "story-3-parameterized.pgtrace")
    assert check(folder, ["gpt2"]) == 1
    assert "cannot be read" in capsys.readouterr().out
    assert missing("story-3-parameterized", replace(trace, captures=[], launches=[])) == ["graphs", "launches"]
    real = replace(trace, source=replace(trace.source, origin=Origin.RECORDED))
    assert missing("story-3-parameterized", real) == ["times on the GPU", "lines of memory"]
    assert missing("story-2-captured", trace) == ["0 comparisons differ"]


@pytest.mark.sweep
def test_nothing_is_missing_in_recordings_of_each_kind(larger: Path) -> None:
    assert check(larger, ["offload", *FEW, "llama-blocks-paramgraph"]) == 0
