"""The text views: exact, stable, and safe for any name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paramgraph_kit.doctor.diagnosis import Diagnosis
from paramgraph_kit.explore import explore, names, pools, text
from paramgraph_kit.trace import (
    Capture,
    Failure,
    Frame,
    Launch,
    Node,
    NodeKind,
    PoolAction,
    PoolEvent,
    Trace,
    TraceError,
)
from paramgraph_kit.trace.cards import failure_card
from paramgraph_kit.trace.wording import failure_text
from tests.unit import explore_sample as sample


def test_the_whole_trace_as_text() -> None:
    # GIVEN the sample WHEN written as text twice
    first, second = explore(sample.trace()).text(), explore(sample.trace()).text()
    # THEN it is the same, says that it is simulated, and every view is in it
    assert first == second
    lines = first.splitlines()
    assert lines[1] == "simulated: simulated device, torch 2.13.0, 2026-11-20"
    assert "  partitions  3 of 4 graphed, 43 of 44 kernels" in lines
    assert "  launches    24, 22 of them patched nothing, 0 B copied, median 8.5 us on the CPU" in lines
    assert "      1-18  3 times 6 nodes:" in lines
    assert any(line.startswith("graph trees  ▂▂") for line in lines)


def test_partitions_say_why_not() -> None:
    # GIVEN partitions with a reason WHEN written THEN state is a word and the reason names the user's line
    written = text.partitions(sample.trace().partitions)
    assert (
        "      because reads a value back to the CPU (aten._local_scalar_dense) "
        "at train.py:31 if loss.item() > 10: scale *= 0.5"
    ) in written
    assert written.count("[graphed]") == 3
    assert written.count("[ungraphed]") == 1
    assert text.partitions([]) == "no partitions"


def test_words_of_a_node_show_class_target_and_evidence() -> None:
    # GIVEN a node with pointers and scalars WHEN its words are asked for
    view = explore(sample.trace()).words(3)
    # THEN each word has its line
    lines = str(view).splitlines()
    assert lines[0] == "node 3  flash_fprop_sm90_bf16_kernel  40 parameter bytes"
    assert lines[2] == "      8  pointer  workspace4 + 256, workspace, 320.0 KiB  (in phantom memory of both captures)"
    assert lines[5] == "     32  scalar   4096  (the same in both captures)"


def test_what_is_not_there_is_refused_in_one_line() -> None:
    # GIVEN a trace with one capture, and one with none WHEN others are asked for THEN the error says what there is
    with pytest.raises(TraceError, match=r"^graph\(3\): no such capture; use 0 to 0$"):
        explore(sample.trace()).graph(3)
    wrong: Any = "forward"
    with pytest.raises(TraceError, match=r"^graph\('forward'\): no such capture; use 0 to 0$"):
        explore(sample.trace()).graph(wrong)
    with pytest.raises(TraceError, match=r"^words: capture 0 has no node 99; its nodes are 0 to 20$"):
        explore(sample.trace()).words(99)
    with pytest.raises(TraceError, match=r"no captures, see \.partitions\(\)"):
        explore(Trace(sample.SOURCE)).graph()


def test_a_failure_never_needs_more_than_twelve_lines() -> None:
    # GIVEN a failure with far too much text WHEN written
    failure = Failure("c", "t", "m " * 500, Frame("a.py", 1, "", "x\ny"), "c " * 500, "\n".join("f" * 20))
    lines = failure_text(failure).splitlines()
    # THEN it stays short and says that it was cut
    assert len(lines) == 12
    assert lines[-1] == "         ..."
    assert "  where  a.py:1 x y" in lines


def test_a_failure_without_a_line_says_so() -> None:
    # GIVEN unjoined work, which CUDA reports only at the end WHEN written THEN no line is invented
    assert "no line of yours: it shows only when the capture ends" in failure_text(Failure("unjoined", "t", "m"))


def test_a_long_graph_is_cut_and_counted() -> None:
    # GIVEN 200 different nodes WHEN written THEN 60 lines and the number of the rest
    capture = Capture(0, 0, tuple(Node(n, NodeKind.KERNEL, f"k{n * n}") for n in range(200)), (), ())
    lines = text.graph(capture).splitlines()
    assert len(lines) == 62
    assert lines[-1] == "  ... and 140 more lines"


@pytest.mark.parametrize("seed", range(5))
def test_runs_cover_everything_once_in_order(seed: int) -> None:
    # GIVEN any sequence WHEN split into runs THEN expanding them gives it back
    import random

    rng = random.Random(seed)
    keys = [k for _ in range(30) for k in rng.choice(["a", "ab", "abc", "d"]) * rng.randrange(1, 4)]
    out: list[str] = []
    for run in names.runs_of(keys):
        assert run.start == len(out)
        out += keys[run.start : run.start + run.period] * run.repeats
    assert out == keys


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "matmul"),
        ("triton_poi_fused_addmm_silu_1", "fused"),
        ("triton_red_fused_mean_2", "reduction"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma", "attention"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "fill"),
        ("addmm", "matmul"),
        ("bmm", "matmul"),
        ("mm", "matmul"),
        ("add.Tensor", "pointwise"),
        ("sigmoid", "pointwise"),
        ("where.self", "pointwise"),
        ("max", "reduction"),
        ("maximum", "pointwise"),
        ("mystery", "kernel"),
    ],
)
def test_families(name: str, word: str) -> None:
    # GIVEN a kernel's name WHEN its family is looked up THEN it is the expected one
    assert names.family_of(Node(0, NodeKind.KERNEL, name)).word == word


def test_lowered_nodes_keep_the_family_of_what_they_were() -> None:
    # GIVEN a kernel of ours that replaces a copy WHEN its family is looked up THEN it is still a copy
    node = Node(0, NodeKind.KERNEL, "paramgraph_kernel", lowered_from=NodeKind.MEMCPY)
    assert names.family_of(node).word == "copy"


def test_pools_share_one_time_axis_and_never_go_below_zero() -> None:
    # GIVEN two pools, and a block freed that was allocated before the recording began
    events = [
        PoolEvent(2, "private", PoolAction.SEGMENT_ALLOC, 9, 2048),
        PoolEvent(0, "default", PoolAction.FREE, 5, 512),
        PoolEvent(1, "default", PoolAction.ALLOC, 7, 256),
    ]
    # WHEN made into series
    default, private = pools.pool_series(events)
    # THEN both have all events in order
    assert default.times == private.times == [0, 1, 2]
    assert default.live == [0, 256, 256]
    assert private.reserved == [0, 0, 2048]
    assert repr(private) == "PoolSeries('private', 3 events, peak 2048 bytes reserved)"


def test_launches_without_times_claim_none() -> None:
    # GIVEN launches that nobody timed WHEN written THEN there is no time
    assert text.launches_line([Launch(0, 0, 1, 5, 2048)]) == "1, 0 of them patched nothing, 2.0 KiB copied"


def test_reprs_are_one_line() -> None:
    # GIVEN the objects that a notebook shows WHEN repr is taken THEN one line without addresses
    explorer = explore(sample.trace())
    for item in (explorer, explorer.graph(), explorer.memory(), explorer.partitions()):
        assert "\n" not in repr(item)
        assert " at 0x" not in repr(item)


def test_failures_are_cards_whose_text_stays_text() -> None:
    # GIVEN a failure with markup everywhere, and a fix in two parts
    failure = replace(
        sample.trace().failures[0],
        title=sample.HOSTILE,
        cause=sample.HOSTILE,
        message=sample.HOSTILE,
        frame=Frame(sample.HOSTILE, 3, "step", sample.HOSTILE),
        fix=f"before  {sample.HOSTILE}\nafter   torch.where(x)",
    )
    # WHEN it is shown as HTML, alone and in a diagnosis
    diagnosis = Diagnosis([failure], sample.HOSTILE, [sample.HOSTILE], sample.HOSTILE)
    for shown in (failure_card(failure), diagnosis._repr_mimebundle_()["text/html"]):
        # THEN nothing of it is markup, and both parts of the fix are marked
        assert "<script" not in shown
        assert shown.count("<pre") == 2
        for part in ("where", "said", "why", "fix", "before", "torch.where(x)"):
            assert part in shown
    # AND where no line is known, it says so
    assert "no line of yours" in failure_card(replace(failure, frame=None))
    assert diagnosis._repr_mimebundle_()["text/plain"] == str(diagnosis)


def test_an_explorer_opens_on_a_view_that_there_is() -> None:
    # GIVEN an explorer WHEN it is to open on a view THEN it is itself, and one that is not there is named
    view = explore(sample.trace())
    assert view.open("timeline") is view
    with pytest.raises(TraceError, match=r"open\('timelines'\): no such view; there are partitions, graph, failures"):
        view.open("timelines")
