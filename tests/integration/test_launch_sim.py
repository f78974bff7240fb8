from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paramgraph_kit.capture import pair
from paramgraph_kit.driver.api import RawAllocation
from paramgraph_kit.driver.sim import cuda_twin
from paramgraph_kit.driver.sim.driver import SimDriver
from paramgraph_kit.launch.generate import Form
from paramgraph_kit.launch.launcher import MAX_SCALARS, MAX_VARIANTS, Options
from paramgraph_kit.trace.model import Reason
from tests.integration.launch_bench import (
    DEVICE,
    DRIVER,
    assert_launched_as_eager,
    assert_same,
    codes,
    host,
    launcher_of,
    launches,
    moved,
    variants,
)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

N = 16_384  # 64 KiB of floats: what is 16 times as large has an allocator's segment of its own


def reusing(x: Tensor) -> tuple[Tensor, Tensor]:
    """A temporary of 64 times the input is freed; an output takes its first quarter, temporaries what follows."""
    big = x.repeat(64)
    big.mul_(2)
    middle = big[20 * N : 24 * N] + 1
    del big
    output = middle.repeat(4)
    a = middle * 5
    b = a.sin()
    return output, a + b


def test_a_block_that_is_reused_within_a_capture_means_two_allocations() -> None:
    # GIVEN a function whose output takes the first quarter of a freed temporary WHEN it is launched at moved addresses
    assert_launched_as_eager(reusing, lambda call: [moved(N, seed=call)])  # the first keeps more alive
    launcher = assert_launched_as_eager(reusing, lambda call: [moved(N, seed=call)])
    # THEN numbers are eager's, although in the capture both had one address
    (variant,) = variants(launcher)
    memory = variant.captured.allocations
    (output, _) = variant.plan.fresh
    shared = [a for a in memory if a.address == memory[output].address]
    assert [a.size for a in shared] == [64 * N * 4, 16 * N * 4]
    assert shared[0].died is not None
    assert shared[0].died <= shared[1].born


def test_without_resolving_by_position_the_reused_block_gives_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a launcher that resolves addresses by the final state of the pool: the last owner of a byte owned it always
    def final_state(allocations: Sequence[RawAllocation]) -> list[RawAllocation]:
        return [replace(a, born=0, died=None) for a in reversed(allocations)]

    monkeypatch.setattr(pair, "merge_ambiguous", final_state)
    launcher = launcher_of(reusing)
    launcher([moved(N)])
    assert launcher.reasons == []  # nothing notices
    # WHEN the same function is launched on memory that holds nothing of it
    x = moved(N, seed=1)
    cuda_twin.empty_cache()
    torch.empty(5 << 20, device=DEVICE)  # a segment of 20 MiB for what follows: it writes past the end of an output
    found = launcher([x])
    # THEN its numbers are wrong: it has read another buffer, where a part of the temporary should be
    assert launches(launcher) == 1
    assert not torch.equal(host(found[0]), reusing(host(x))[0])


def one_and_itself(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x + 1


def views_of_input(x: Tensor) -> tuple[Tensor, ...]:
    return x[1:], x.t(), x.view(-1)[3:7], x.expand(2, *x.shape), x.sin()


def several_in_one(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y[1:], y, y.t(), y[:, ::2], (x + 1)[2:], y[0, 0]


def strides(x: Tensor) -> tuple[Tensor, ...]:
    spread = torch.empty_strided((3, 4), (1, 5), device=x.device)
    spread.copy_(x[:3, :4])
    return x.sum().expand(3, 4), x[0].clone().expand(5, -1), spread, x.t().contiguous().t()


def empties(x: Tensor, nothing: Tensor) -> tuple[Tensor, ...]:
    return x[:0], nothing + 1, torch.empty(0, 3, device=x.device), (x * 2)[4:4], nothing, x + 1


def nothing_and_numbers(x: Tensor) -> tuple[Any, ...]:
    return None, x * 2, 7, 2.5, True


def a_list(x: Tensor) -> list[Tensor]:
    return [x + 1]


def retyped(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return torch.view_as_complex(y.view(-1, 2))[:3], y, (x + 1).view(torch.int32), y.view(torch.uint8)[:, 4:8]


def mutating(x: Tensor, y: Tensor) -> tuple[Tensor]:
    x.mul_(2)
    y[1:3] = x[0, 0]
    return (x.sum() + y.sum(),)


def drawing(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.nn.functional.dropout(x, 0.5), torch.rand_like(x) + x


@pytest.mark.parametrize(
    "function", [one_and_itself, views_of_input, several_in_one, strides, nothing_and_numbers, a_list, retyped]
)
def test_outputs_of_every_kind_are_eager_s(function: Any) -> None:
    # GIVEN a function with outputs of some kind WHEN it is launched THEN they are eager's, and earlier ones stay
    assert_launched_as_eager(function, lambda call: [moved(6, 8, seed=call)])


def test_outputs_alias_as_in_eager() -> None:
    # GIVEN functions that return their input, views of it, or several views of one result
    x = moved(6, 8)
    for function in (one_and_itself, views_of_input, several_in_one, retyped):
        launcher = launcher_of(function)
        launcher([moved(6, 8)])
        # WHEN they are launched THEN what shares memory is what shares it in eager, and an input is itself
        found, expected = launcher([x]), function(x)
        assert launches(launcher) == 1
        for i, a in enumerate(found):
            assert (a is x) == (expected[i] is x)
            for k, b in enumerate([*found[:i], x]):
                other = [*expected[:i], x][k]
                assert (storage(a) == storage(b)) == (storage(expected[i]) == storage(other))


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_empty_tensors_go_in_and_out() -> None:
    # GIVEN a function of empty tensors WHEN it is launched THEN they are eager's
    assert_launched_as_eager(empties, lambda call: [moved(6, 8, seed=call), torch.empty(0, 4, device=DEVICE)])


def test_what_a_launch_writes_into_its_inputs_is_in_the_caller_s_tensors() -> None:
    # GIVEN a function that writes into both inputs WHEN it is launched THEN the caller's tensors have the new numbers
    assert_launched_as_eager(mutating, lambda call: [moved(4, 4, seed=call), moved(5, seed=call)])


def test_inputs_may_share_a_storage_or_be_one_tensor_whatever_they_were_in_the_capture() -> None:
    # GIVEN inputs that are apart, halves of one storage in either order, overlapping halves, or one tensor twice
    def arranged(call: int) -> list[Tensor]:
        base = moved(256, seed=call)
        low, high = base[:128], base[128:]
        ways = [(low, moved(128, seed=9)), (low, high), (high, low), (base[64:192], low), (low, low)]
        return list(ways[call])

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1)
        return x * y, y - x

    # WHEN it is launched THEN numbers are eager's, though one writes what the other reads
    assert_launched_as_eager(function, arranged, calls=5)


def test_random_numbers_are_fresh_at_every_launch_and_eager_s_from_one_seed() -> None:
    # GIVEN a function that draws, and the numbers that eager draws from a seed
    x = moved(64)
    torch.manual_seed(3)
    expected = [drawing(x) for _ in range(3)]
    launcher = launcher_of(drawing)
    # WHEN it is called as often from the same seed, the last times from a graph
    torch.manual_seed(3)
    found = [launcher([x.clone()]) for _ in range(3)]
    # THEN the numbers are the same, call by call
    assert launches(launcher) == 2
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b)
    assert not torch.equal(host(found[1][1]), host(found[2][1]))


def test_constants_stay_where_they_are_and_come_back_as_themselves() -> None:
    # GIVEN a function that reads and returns a tensor of its own
    constant = moved(4)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * constant, constant

    # WHEN the launcher knows of it THEN it is read where it is, and its numbers are today's
    launcher = launcher_of(function, (constant,))
    launcher([moved(4)])
    constant.add_(1)
    x = moved(4, seed=2)
    found = launcher([x])
    assert launches(launcher) == 1
    assert found[1] is constant
    assert_same(found, function(x))
    # WHEN it does not THEN nobody may say that the address stays: refused, with the kernel and the bytes
    unaware = launcher_of(function)
    unaware([moved(4)])
    assert_same(unaware([x]), function(x))
    (reason,) = unaware.reasons
    assert reason.code == "unowned-address"
    assert reason.message == (
        "a kernel reads device memory that is no input and no constant of the model (bytes 8..16 of its parameters)"
    )
    assert reason.operation == "mul.Tensor"


def test_another_alignment_gets_an_executable_of_its_own() -> None:
    # GIVEN a function, and inputs that start at a block or 16 bytes into one
    def function(x: Tensor) -> tuple[Tensor]:
        return (x * 2,)

    launcher = launcher_of(function)
    for call in range(6):
        x = moved(68, seed=call)[4 * (call % 2) :][:64]
        # WHEN they come in turn THEN numbers are right
        assert_same(launcher([x]), function(x))
    # AND there is one executable for each, used whenever its alignment comes
    assert [v.captured.specs[0].alignment for v in variants(launcher) if v.captured.specs[0]] == [256, 16]
    assert [v.state.launches for v in variants(launcher)] == [2, 2]
    assert launcher.reasons == []


def test_alignments_without_end_are_too_many() -> None:
    # GIVEN a function of three inputs, and more combinations of alignments than the launcher keeps
    def function(*tensors: Tensor) -> tuple[Tensor]:
        return (sum(t.double() for t in tensors),)  # type: ignore[return-value]

    launcher = launcher_of(function)
    for call in range(MAX_VARIANTS + 2):
        starts = (call % 3, call // 3 % 3, call // 9 % 3)
        inputs = [moved(16, seed=call, dtype=torch.uint8)[(0, 1, 2)[s] :][:8] for s in starts]
        # WHEN they come THEN numbers are right, and the last ones run ungraphed with the reason
        assert_same(launcher(list(inputs)), function(*inputs))
    assert len(variants(launcher)) == MAX_VARIANTS
    (reason,) = launcher.reasons
    assert reason.label() == f"called with more than {MAX_VARIANTS} sets of scalars or alignments"


def test_a_number_that_changes_is_graphed_for_few_values_only() -> None:
    # GIVEN a function of a tensor and two numbers, one of which changes at every call
    def function(x: Tensor, fixed: int, changing: float) -> tuple[Tensor]:
        return (x * fixed + changing,)

    launcher = launcher_of(function)
    for call in range(8):
        x = moved(8, seed=call)
        # WHEN it is called THEN numbers are right
        assert_same(launcher([x, 3, call / 2]), function(x, 3, call / 2))
    # AND after a few values it runs ungraphed, with the reason, while values that were captured still launch
    assert len(launcher.variants) == len(variants(launcher)) == MAX_SCALARS
    assert launches(launcher) == 0
    (reason,) = launcher.reasons
    assert reason.code == "changing-scalar"
    assert reason.message == (
        f"input 2 is a number, which a graph has baked in, and it had more than {MAX_SCALARS} values: "
        "keep it in a tensor on the device"
    )
    launcher([moved(8), 3, 0.5])
    assert launches(launcher) == 1


def test_numbers_are_counted_each_by_itself() -> None:
    # GIVEN a function of two numbers
    def function(x: Tensor, scale: int, bias: int) -> tuple[Tensor]:
        return (x * scale + bias,)

    launcher = launcher_of(function)
    # WHEN each has few values, and both together many
    for call in range(18):
        x = moved(8, seed=call)
        assert_same(launcher([x, call % 3, call // 3 % 3]), function(x, call % 3, call // 3 % 3))
    # THEN all are launched, and nothing is said of numbers without end
    assert launches(launcher) == 9
    assert launcher.reasons == []


def test_switches_of_libraries_are_no_changing_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function without numbers, and one with a number that stays
    state = [0]
    monkeypatch.setattr(DRIVER, "library_state", lambda: tuple(state))
    for numbers in ((), (3,)):
        launcher = launcher_of(lambda x, *numbers: (x * 2 + sum(numbers),))
        for call in range(MAX_SCALARS + 3):
            # WHEN switches that libraries choose kernels by change more often than a number may
            state[0] = call
            for _ in range(2):
                x = moved(4, seed=call)
                assert_same(launcher([x, *numbers]), (x * 2 + sum(numbers),))
        # THEN each setting has its executable, up to their own limit, and nothing is refused
        assert launcher.reasons == []
        assert launches(launcher) == len(variants(launcher)) == MAX_SCALARS + 3


@pytest.mark.parametrize("values", [(0.0, -0.0), (float("nan"), float("nan"), 1.0), (1, True, 1.0), (None, 2)], ids=str)
def test_numbers_that_compare_equal_are_told_apart_by_their_bits(values: tuple[Any, ...]) -> None:
    # GIVEN a function whose result depends on a number's sign, type or presence
    def function(x: Tensor, number: Any) -> tuple[Tensor]:
        return (x if number is None else torch.copysign(x, x * number) + isinstance(number, bool),)

    launcher = launcher_of(function)
    for _ in range(2):
        for value in values:
            x = moved(8)
            # WHEN each comes twice THEN numbers are eager's
            found, expected = launcher([x, value]), function(x, value)
            assert torch.equal(host(found[0]).view(torch.int32), host(expected[0]).view(torch.int32))
    # AND each has one executable
    assert len(variants(launcher)) == len({str(value) for value in values})
    assert launcher.reasons == []


def test_with_layouts_other_sizes_and_strides_get_executables_of_their_own() -> None:
    # GIVEN a function, and inputs of two sizes and two layouts in turn
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x.sum(0)

    launcher = launcher_of(function, layouts=True)
    for call in range(9):
        x = (moved(4, 6, seed=call), moved(5, 6, seed=call), moved(6, 4, seed=call).t())[call % 3]
        # WHEN they come THEN numbers are right, from three executables
        assert_same(launcher([x]), function(x))
    assert [v.state.launches for v in variants(launcher)] == [2, 2, 2]


def test_a_tensor_of_another_device_runs_ungraphed_with_the_reason() -> None:
    # GIVEN a function of a device tensor and a number in a CPU tensor
    def function(x: Tensor, scale: Tensor) -> tuple[Tensor]:
        return (x * scale,)

    launcher = launcher_of(function)
    for call in range(3):
        x, scale = moved(4), torch.tensor(float(call))
        # WHEN it is called THEN today's number counts, and the reason says why nothing is graphed
        assert_same(launcher([x, scale]), function(x, scale))
    assert launches(launcher) == 0
    (reason,) = launcher.reasons
    assert reason.label() == f"input 1 is on cpu, the graph on {DEVICE}: its value would be baked"


def test_select_never_runs_everything_ungraphed() -> None:
    # GIVEN a launcher that is told to select nothing WHEN it is called THEN it runs the code, and says so
    launcher = launcher_of(a_list, options=Options(select="never"))
    x = moved(4)
    assert_same([launcher([x])[0] for _ in range(2)], [x + 1, x + 1])
    assert (launcher.ungraphed_calls, codes(launcher)) == (2, ["not-selected"])


@pytest.mark.parametrize("again", [False, True])
def test_what_is_refused_beforehand_is_never_captured(again: bool) -> None:
    # GIVEN code of which is known that no graph may take it
    reason = Reason("user-stream", "on streams of the user's")
    launcher = launcher_of(one_and_itself, refused=reason)
    if again:  # WHEN somebody has compared it, or not
        launcher.pause()
        launcher.resume()
    # THEN it runs as it is, with the reason
    for _ in range(3):
        x = moved(8)
        assert_same(launcher([x]), one_and_itself(x))
    assert (launches(launcher), launcher.reasons, launcher.ungraphed_calls) == (0, [reason], 3)


def test_destroy_frees_the_executables_and_calls_go_on_ungraphed() -> None:
    # GIVEN a launcher with an executable
    launcher = launcher_of(reusing)
    x = moved(N)
    expected = reusing(x)
    launcher([x])
    (variant,) = variants(launcher)
    direct = launcher.launch_as(Form(), variant, launcher)
    assert_same(direct([x]), expected)
    # WHEN it is destroyed
    launcher.destroy()
    # THEN nothing of the executable is left, and calls are right, those too that went to the launch itself
    assert (variant.device_bytes, launcher.variants) == (0, {})
    assert_same(launcher([x]), expected)
    assert_same(direct([x]), expected)
    assert (launches(launcher), variant.state.launches) == (0, 1)


def test_a_launch_leaves_only_its_outputs_allocated() -> None:
    # GIVEN a launcher whose workspace is four times its outputs
    launcher = launcher_of(reusing)
    launcher([moved(N)])
    x = moved(N, seed=1)
    before = DRIVER.memory()[0]
    # WHEN it is launched THEN the workspace is free again at once, and the outputs when they are dropped
    found = launcher([x])
    assert DRIVER.memory()[0] - before == sum(t.untyped_storage().nbytes() for t in found)
    del found
    assert DRIVER.memory()[0] == before


def test_what_libraries_choose_kernels_by_is_part_of_the_key() -> None:
    # GIVEN a driver with a switch that Dynamo does not guard, and a function launched with it off
    class Switched(SimDriver):
        state = (False,)

        def __init__(self) -> None:
            super().__init__()
            self.library_state = lambda: self.state

    switched = Switched()
    launcher = launcher_of(lambda x: (x * 2,), driver=switched)
    for _ in range(3):
        launcher([moved(8)])
    assert len(variants(launcher)) == 1
    # WHEN it is switched on THEN the old graph is not launched: the call runs ungraphed and captures another
    switched.state = (True,)
    calls = launcher.ungraphed_calls
    for _ in range(2):
        assert_same(launcher([moved(8, seed=1)]), (moved(8, seed=1) * 2,))
    assert launcher.ungraphed_calls == calls + 1
    assert [v.state.launches for v in variants(launcher)] == [2, 1]
    # AND switched back, the first is
    switched.state = (False,)
    launcher([moved(8)])
    assert [v.state.launches for v in variants(launcher)] == [3, 1]
