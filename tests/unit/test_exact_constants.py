"""The figures of the launcher, each as its comment and the documentation tell it, and what is so unless it is said."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch.fx

import paramgraph_kit
from paramgraph_kit.capture import pair, words
from paramgraph_kit.driver import phantom_layout, tensors
from paramgraph_kit.driver.sim import allocator
from paramgraph_kit.launch import generate, launcher, lent, plan, probation, room, stages
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.partition import fixed, frames, host_reads, lanes, normalize
from paramgraph_kit.partition.region import Region
from paramgraph_kit.partition.split import Split
from paramgraph_kit.step import arguments, holders, observe, reach, release, spent, step, verify
from paramgraph_kit.step.capture import record_step
from paramgraph_kit.step.guard import Difference
from paramgraph_kit.step.names import Names
from paramgraph_kit.trace import format as trace_format
from paramgraph_kit.trace.model import Role

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("where", "figures"),
    [
        (launcher, {"MAX_VARIANTS": 16, "MAX_SCALARS": 4, "PATIENCE_S": 60.0}),
        (generate, {"FEW": 8}),
        (lent, {"LEAST": MIB}),
        (plan, {"GRAIN": 512, "SMALL": MIB, "MOST_BLOCK": 512 * MIB, "FEW": 3}),
        (probation, {"SAMPLES": 4, "MOST": 12, "CLEAR": 1.25, "EVEN": 1.03}),
        (room, {"ALIKE": 8}),
        (stages, {"SLACK": 16 * MIB, "MANY": 64}),
        (fixed, {"MOST": 16 * MIB}),
        (lanes, {"MAIN": 0}),
        (arguments, {"LOOKS": 4}),
        (observe, {"SMALL": 4 * KIB}),
        (reach, {"MOST": 100_000, "LONG": 4 * KIB}),
        (release, {"MOST": 16}),
        (spent, {"MOST": 10_000}),
        (step, {"MAX_GRAPHS": 64, "MAX_FUTILE": 8, "MAX_STALE": 3, "MAX_LOOKS": 4}),
        (verify, {"LARGE": 16 * MIB, "ENOUGH": 2}),
        (holders, {"_IMMUTABLE": 256, "_HEAP": 512}),
        (phantom_layout, {"GRAIN": 2 * MIB, "GAP": 4 * MIB, "ROUND": 512, "_SHIFT": 0x5A5A00, "_MODULUS": 1 << 24}),
        (tensors, {"_PIECE": 512 * KIB, "_TURN": 0x5851F42D4C957F2D}),
        (
            trace_format,
            {"MAX_BYTES": 24 * MIB, "MAX_VALUES": 1_500_000, "MAX_SLOTS": 64 * KIB, "_SINCE": {"proofs": 2}},
        ),
        (pair, {"ALIGNMENT": 256, "TRITONS": 16}),
        (
            words,
            {"SMALL": 32, "REACH": 2 * MIB, "_FIRST_ADDRESS": 64 * KIB, "_END": 1 << 57, "_LOWER_HALF": (1 << 32) - 1},
        ),
    ],
)
def test_the_figures_are_these(where: Any, figures: dict[str, float]) -> None:
    # GIVEN a module WHEN asked for what it counts with THEN it is what is written about it
    assert {name: getattr(where, name) for name in figures} == figures


def defaults(kind: Any) -> dict[str, Any]:
    return {each.name: each.default for each in dataclasses.fields(kind) if each.default is not dataclasses.MISSING}


def test_what_is_so_unless_it_is_said() -> None:
    # GIVEN / WHEN / THEN
    assert launcher.Options() == launcher.Options("auto", 8, "always", "off", False)
    assert launcher.Calls().ungraphed == 0
    code = PartitionCode("forward 0 partition 0", list)
    assert (code.constants, code.layouts, code.host_seeds, code.unguarded) == ((), False, (), ())
    assert (code.names, code.results, code.refused) == ((), (), None)
    form = generate.Form()
    assert (form.together, form.switched, form.capturing, form.before) == (range(0), False, None, None)
    assert defaults(plan.Placement) == {"offset": 0}
    assert plan.Placement(Role.INPUT, None).offset == 0
    assert {name: defaults(launcher.Launcher)[name] for name in ("paused", "differs", "aligned", "_widened")} == {
        "paused": False,
        "differs": "",
        "aligned": 256,
        "_widened": False,
    }
    assert (Names().dynamic, Names().compiled, Names().own) == (False, False, set())
    assert defaults(Difference) == {"key": None, "is_number": False, "held": None}
    assert defaults(holders.Holder) == {"key": "", "whole": False, "ask": None, "owner": None}
    assert verify.Checked() == verify.Checked(verified=0, unordered=0, failed=None)
    assert step.Step._paramgraph_owner is True
    assert plan.make_plan.__defaults__ == ((), frozenset(), 1, ())
    assert set(get_args(plan.Slot)) == {plan.Input, plan.Fresh, plan.Shelf, plan.Block}
    assert (record_step.__kwdefaults__, reach.Reach.__init__.__defaults__) == ({"anchored": False}, (False,))
    assert fixed.keep_fixed.__kwdefaults__ == {"compute": True, "numbers": True}
    assert host_reads.leaving_out.__wrapped__.__kwdefaults__ == {"alike": False}  # type: ignore[attr-defined]
    assert normalize.normalized.__kwdefaults__ == {"constants": True}
    assert Split.partitions.__defaults__ == (0,)
    assert defaults(pair.Output)["source"] == -1
    assert (pair.Output(pair.Kind.FRESH).offset, words.Host(bool).read, words.Host(bool).owned) == (0, False, ())
    found = defaults(pair.Captured)
    assert (found["returns_tuple"], found["capture_s"], found["aligned"]) == (True, 0.0, 256)
    assert pair.capture_pair.__kwdefaults__ is None or pair.capture_pair.__kwdefaults__ == {
        "eager": False,
        "anchored": 0,
    }
    assert trace_format._SINCE == {"proofs": 2}
    assert allocator.Stats() == allocator.Stats(0, 0, 0, 0, 0)
    assert allocator.DEFAULT_POOL == (0, 0)
    assert tensors.PLAIN == (False, False)
    assert tensors.same_bits.__kwdefaults__ == {"layout": False}
    assert trace_format.save.__kwdefaults__ == trace_format.dumps.__kwdefaults__ == {"strip_source": False}
    assert phantom_layout.Layout.place.__defaults__ == (0,)


def test_a_state_has_launched_nothing_on_no_stream() -> None:
    # GIVEN a plan of two stages WHEN its state is made THEN nothing has been launched, told or patched
    planned: Any = SimpleNamespace(stages=[None, None], blocks=[SimpleNamespace(nbytes=7)])
    state = generate.State(threading.Lock(), planned)
    assert (state.stream, state.launches, state.patched, state.patches) == (-1, 0, [0, 0], 0)
    assert (state.tables, state.written, state.rooms, state.watch) == ([(), ()], [(), ()], [7], None)


def test_regions_are_told_and_compared_without_their_code() -> None:
    # GIVEN two regions that differ in their code alone
    def region() -> Region:
        module = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
        return Region(0, True, module, lambda boxed: (), ("a",), ("b",), ("aten.sin",), 1)

    # WHEN compared and told THEN they are one, and no code is shown
    first, second = region(), region()
    assert first == second
    text = "Region(index=0, graphed=True, inputs=('a',), outputs=('b',), operations=('aten.sin',), kernels=1, "
    assert repr(first) == f"{text}reasons=())"


def test_our_own_lines_are_those_below_the_package_and_many_traces_are_remembered() -> None:
    # GIVEN / WHEN / THEN
    assert str(Path(paramgraph_kit.__file__).parent) == frames._OURS
    assert frames._innermost.cache_parameters()["maxsize"] == 4096
