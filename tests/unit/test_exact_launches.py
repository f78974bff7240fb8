"""A whole step's calls, each way that they go: launched, compared, watched, refused, and how often each is counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.launch.launcher import Options
from paramgraph_kit.step import step as steps
from paramgraph_kit.step.capture import record_step
from paramgraph_kit.step.graphed import MISFIT
from paramgraph_kit.step.observe import busy, is_busy
from paramgraph_kit.step.step import Step, make_step
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Frame, Reason
from tests.unit.test_exact_steps import ones, refused, step

MANY = Reason("too-many-variants", "captured 8 times")


def graph(**how: Any) -> Any:
    """A captured step that fits, launches, and has shown what it has to."""
    parts = {
        "knows": lambda tensors: True,
        "fits": lambda: True,
        "anchored": False,
        "launch": lambda tensors: "launched",
        "deferred": [],
        "checked": SimpleNamespace(over=True, failed=None),
        "moved": lambda: False,
        "difference": lambda: None,
    }
    return SimpleNamespace(**(parts | how))


def with_graphs(*graphs: Any, args: tuple[Any, ...] = (), **how: Any) -> tuple[Any, Any]:
    """A step that has these for calls with such arguments; what it computes is a text."""
    made: Any = pgk.parameterize(lambda *given: "computed", state=(), **({"verify": "off"} | how))
    key = made._arguments.of(args, {})[0]
    made._graphs[key], made._warm = list(graphs), True
    return made, key


def test_calls_in_a_larger_step_under_a_capture_and_with_select_never_are_no_calls_of_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a step with a graph WHEN called inside of another one, in somebody's capture, where somebody hears all
    # operations, or with select="never" THEN it is as if there were no step
    made, _ = with_graphs(graph())
    assert made() == "launched"
    with busy():
        assert made() == "computed"
    for name, place in (("is_heard", steps), ("is_capturing", made._driver)):
        with monkeypatch.context() as context:
            context.setattr(place, name, lambda: True, raising=False)
            assert made() == "computed"
    never: Any = pgk.parameterize(lambda: "computed", state=(), select="never")
    assert never() == "computed"
    assert (never._warm, never._launcher.calls.ungraphed, made._launcher.calls.ungraphed) == (False, 0, 0)


@pytest.mark.parametrize(
    ("how", "launched"),
    [
        ({}, True),
        ({"knows": lambda tensors: False}, False),
        ({"fits": lambda: False}, False),
        ({"launch": lambda tensors: MISFIT}, False),
        ({"anchored": True}, True),
    ],
)
def test_a_graph_is_launched_that_knows_its_arguments_and_fits(how: dict[str, Any], launched: bool) -> None:
    # GIVEN a step with such a graph, and another one behind it WHEN called with whole tensors THEN the first that fits
    x, y = ones(4), ones(4)
    other = graph(launch=lambda tensors: "other")
    made, _ = with_graphs(graph(**how), other, args=(x, y))
    assert made(x, y) == ("launched" if launched else "other")


def test_a_graph_that_counts_from_where_storages_begin_takes_no_slices() -> None:
    # GIVEN such a graph WHEN called with whole tensors, and with one slice among them THEN the first are launched
    whole, part = ones(128), ones(256)[128:]
    for anchored, expected in ((True, "computed"), (False, "launched")):
        made, key = with_graphs(graph(anchored=anchored), args=(whole, part))
        made._refused[key] = MANY
        assert made(whole, part) == expected
        assert made(whole, ones(128)) == "launched"


@pytest.mark.parametrize(("futile", "resumes"), [(7, False), (8, True), (9, True)])
def test_a_launch_lets_captures_go_on_that_were_given_up(futile: int, resumes: bool) -> None:
    # GIVEN a step that captured so often without a launch WHEN it launches THEN that is forgotten, and it captures on
    made, key = with_graphs(graph())
    made._futile[key] = futile
    made._refused[key], made._launcher.reasons[:] = MANY, [MANY]
    assert made() == "launched"
    assert made._futile == {}
    assert (made._refused, made._launcher.reasons) == (({}, []) if resumes else ({key: MANY}, [MANY]))


def test_a_reason_goes_with_the_last_key_that_was_refused_for_it() -> None:
    # GIVEN keys that were refused for too many graphs, for the same, for something else, and one that was not
    made, other = step(), Reason("requires-grad", "text")
    made._refused = {"a": MANY, "b": MANY, "c": other}
    made._launcher.reasons[:] = [MANY, other]
    # WHEN each goes on THEN only too many graphs are forgotten, and the reason with the last of them
    for key, left, reasons in (
        ("none", ["a", "b", "c"], [MANY, other]),
        ("c", ["a", "b", "c"], [MANY, other]),
        ("a", ["b", "c"], [MANY, other]),
        ("b", ["c"], [other]),
    ):
        made._resume(key)
        assert (list(made._refused), made._launcher.reasons) == (left, reasons)


@pytest.mark.parametrize(
    ("verify", "over", "compared"),
    [("off", False, False), ("first", True, False), ("first", False, True), ("always", True, True)],
)
def test_launches_are_compared_as_often_as_was_asked(verify: str, over: bool, compared: bool) -> None:
    # GIVEN a graph with a scheduler that has shown what it has to, or not
    scheduler = SimpleNamespace(step=mock.Mock())
    real = scheduler.step

    def beside(tensors: Any, call: Any, quiet: Any) -> tuple[Any, bool]:
        with quiet():
            scheduler.step()
            return call(), is_busy()

    found = graph(compared=beside, deferred=[(scheduler, (), {})], checked=SimpleNamespace(over=over, failed=None))
    made, _ = with_graphs(found, verify=verify)
    # WHEN called THEN it is launched, or beside its code, which is part of this step and calls no scheduler
    assert made() == (("computed", True) if compared else "launched")
    assert not real.called


def test_a_graph_that_was_wrong_is_dropped_and_refused() -> None:
    # GIVEN a graph whose comparison fails WHEN called THEN the result is right, and it is launched no more
    wrong = Reason("wrong-result", "differed")
    found = graph(
        compared=lambda *parts: "right", checked=SimpleNamespace(over=False, failed=wrong), destroy=mock.Mock()
    )
    made, key = with_graphs(found, verify="always")
    assert made() == "right"
    assert (made._graphs[key], made._refused[key], made._launcher.reasons) == ([], wrong, [wrong])
    assert found.destroy.called


def test_calls_and_captures_are_counted_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step WHEN called three times THEN the first runs, the second is watched and captured, the third launched
    record = mock.Mock(side_effect=record_step)
    monkeypatch.setattr(steps, "record_step", record)
    made = step()
    counted = []
    for x in (ones(4), ones(4), ones(4), ones(5), ones(5), ones(4)):
        made(x)
        counted.append((list(made._calls.values()), made._launcher.calls.ungraphed, list(made._futile.values())))
    # AND with other arguments the first call is watched already, which may make things that stay
    assert counted == [
        ([1], 1, []),
        ([2], 2, [1]),
        ([2], 2, []),
        ([2, 1], 3, [1]),
        ([2, 1], 3, []),
        ([2, 1], 3, []),
    ]
    assert [each.kwargs["lazily"] for each in record.call_args_list] == [False, True]


def test_the_newest_graph_is_asked_first() -> None:
    # GIVEN a step whose state takes two values WHEN it has a graph for each THEN the newer one comes first
    model = torch.nn.Linear(2, 2, device=ones(1).device)
    made: Any = pgk.parameterize(lambda x: x * (2 if model.training else 3), state=(model,), verify="off")
    x = ones(4)
    for _ in range(2):
        made(x)
    ((first,),) = made._graphs.values()
    model.eval()
    made(x)
    ((newer, older),) = made._graphs.values()
    assert older is first
    assert newer is not first


def test_another_thread_s_capture_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a capture of another thread's WHEN a warm step is called THEN it runs as it is, and asks only once
    lock = mock.Mock(acquire=mock.Mock(return_value=False))
    monkeypatch.setattr(steps, "capturing", lock)
    made = step()
    for _ in range(2):
        assert made(ones(2)).tolist() == [2, 2]
    assert lock.mock_calls == [mock.call.acquire(blocking=False)]
    assert made._launcher.calls.ungraphed == 2


def test_code_that_asks_how_arguments_lie_is_captured_with_another_key() -> None:
    # GIVEN a step whose code asks for an address WHEN called THEN the first watched call shows it, the next is captured
    made: Any = pgk.parameterize(lambda x: x * 2 if x.data_ptr() else x, state=(), verify="off")
    x = ones(4)
    seen = []
    for _ in range(4):
        made(x)
        seen.append((made._arguments.asked, len(made._calls), sum(map(len, made._graphs.values()))))
    assert seen == [(False, 1, 0), (True, 1, 0), (True, 2, 1), (True, 2, 1)]


def test_a_plain_call_is_part_of_the_step_until_that_has_a_graph_or_a_refusal() -> None:
    # GIVEN a step without graphs, with one, and with a refusal WHEN it runs THEN what it calls is part of it, or not
    for graphs, refused_, inside in (({}, {}, True), ({"k": []}, {}, False), ({}, {"k": MANY}, False)):
        made: Any = pgk.parameterize(is_busy, state=(), verify="off")
        made._graphs, made._refused = graphs, refused_
        assert made._plainly((), {}) is inside
        assert made._launcher.calls.ungraphed == 1


@pytest.mark.parametrize(("code", "told"), [("legacy-stream", True), ("requires-grad", False)])
def test_a_graph_of_before_that_is_still_held_is_told_with_who_holds_it(
    code: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN captures that are refused for the third time and more, for a graph of before or for something else
    made = step()
    made(ones(2))
    monkeypatch.setattr(Step, "_stale", mock.Mock(side_effect=RefusedError(Reason(code, "refused"))))
    monkeypatch.setattr(steps, "told", lambda reason, device: Reason(reason.code, f"{reason.message}; held"))
    made._futile.update(dict.fromkeys(made._calls, 3))
    # WHEN called THEN the first is told with what holds it
    made(ones(2))
    assert [reason.message for reason in made._launcher.reasons] == ["refused; held" if told else "refused"]


def test_a_capture_that_is_made_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a graph of before in the way of the first capture
    made = step()
    made(ones(2))
    captured = mock.Mock(side_effect=[RefusedError(Reason("legacy-stream", "refused")), None])
    monkeypatch.setattr(Step, "_capture", captured)
    (key,) = made._calls
    made._futile[key] = 2  # as the two captures count
    # WHEN called THEN it is made again, and the first does not count
    made(ones(2))
    assert captured.call_count == 2
    assert (made._futile[key], made._launcher.reasons) == (1, [])


def test_only_a_graph_of_before_is_a_reason_to_capture_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN captures that succeed, or are refused for it, or for something else WHEN asked THEN that is one
    made: Any = step()
    for code, stale in ((None, False), ("legacy-stream", True), ("requires-grad", None)):
        effect = None if code is None else RefusedError(Reason(code, "text"))
        monkeypatch.setattr(Step, "_capture", mock.Mock(side_effect=effect))
        if stale is None:
            with pytest.raises(RefusedError):
                made._stale("key", [], (), {}, None)
        else:
            assert made._stale("key", [], (), {}, None) is stale


def test_an_argument_that_is_state_as_well_stays_itself_in_a_capture() -> None:
    # GIVEN a step whose code compares its argument with its state WHEN given that, or another one THEN it is right
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(ones(4), requires_grad=False)
    made: Any = pgk.parameterize(lambda x: x * (2 if x is model.w else 3), state=(model,), verify="off")
    for _ in range(4):
        assert made(model.w).tolist() == [2] * 4
    assert sum(map(len, made._graphs.values())) == 1
    for _ in range(3):
        assert made(ones(4)).tolist() == [3] * 4


SLICED = "refused (the step may count from where an argument's storage begins: "


@pytest.mark.parametrize(
    ("code", "counts", "sliced", "captures", "text"),
    [
        ("unexplained-word", True, False, [False, True], ""),
        ("unstable-capture", True, False, [False, True], ""),
        ("unknown-output", True, False, [False, True], ""),
        ("unexplained-word", False, False, [False], "refused"),
        ("requires-grad", True, False, [False], "refused"),
        (
            "unexplained-word",
            True,
            True,
            [False],
            "refused (the step may count from where an argument's storage begins: ",
        ),
    ],
)
def test_a_step_that_counts_from_where_storages_begin_is_captured_again_for_whole_tensors(
    code: str, counts: bool, sliced: bool, captures: list[bool], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a step whose code counts from there, or not, and a first capture that is refused
    asked: list[bool] = []

    def record(*parts: Any, anchored: bool = False, **how: Any) -> Any:
        asked.append(anchored)
        if not anchored:
            raise RefusedError(Reason(code, "refused"))
        return record_step(*parts, anchored=anchored, **how)

    def counting(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2,), (1,)) * y[:2]

    def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[:2] * y[:2]

    monkeypatch.setattr(steps, "record_step", record)
    made: Any = pgk.parameterize(counting if counts else plain, state=(), verify="off")
    # WHEN called with whole tensors, or with a slice among them THEN it is captured for whole ones, or refused
    for _ in range(2):
        made(ones(128), ones(256)[128:] if sliced else ones(128))
    assert asked == captures
    said = [reason.message for reason in made._launcher.reasons]
    assert [each[: len(text)] for each in said] == ([text] if text else [])
    assert [each.anchored for graphs in made._graphs.values() for each in graphs] == (
        [True] if len(captures) == 2 else []
    )


def test_numbers_among_arguments_have_an_end_for_each_layout() -> None:
    # GIVEN calls with five numbers in one layout, and with four and one in others WHEN another comes THEN it is refused
    made: Any = step()
    made._calls = {("one", (n,)): 1 for n in range(5)} | {("other", (n,)): 1 for n in range(4)} | {("third", (9,)): 1}
    said = refused(made._check_number, ("one", (9,)))
    assert said is not None
    assert said[0] == "changing-scalar"
    assert said[1].startswith("an argument is a number, which a graph has baked in")
    assert refused(made._check_number, ("other", (9,))) is None
    assert refused(made._check_number, ("third", (1,))) is None


def test_a_number_that_changes_is_told_at_its_own_line() -> None:
    # GIVEN graphs that differ in two numbers, one of which had more WHEN refused THEN that one, where code names it
    made: Any = step()
    lines = {"a": Frame("f.py", 1), "b": Frame("f.py", 2)}
    made._names = SimpleNamespace(line_of=lines.get)
    places = [SimpleNamespace(place=f"self.{key}", is_number=True, key=key, held=n) for n, key in enumerate("abbabb")]
    made._graphs["key"] = [SimpleNamespace(difference=lambda d=d: d) for d in places]
    with pytest.raises(RefusedError) as raised:
        made._check_number("key")
    assert raised.value.reason.message.startswith("self.b is a number")
    assert raised.value.reason.frame == lines["b"]
    # AND graphs that hold the same number, and differ in something else, count once
    for place in places:
        place.held = 0.5
    assert refused(made._check_number, "key") is None


def test_state_is_a_list_or_one_thing() -> None:
    # GIVEN what a step changes, in a list, in a tuple, or by itself WHEN a step is made THEN it is these
    one, other = torch.nn.Module(), torch.nn.Module()
    options = Options()
    for given, found in (([one, other], [one, other]), ((one,), [one]), (one, [one]), ({"m": one}, [{"m": one}])):
        made = make_step(lambda: None, (), given, options)
        assert [a is b or a == b for a, b in zip(made._state, found, strict=True)] == [True] * len(found)
        assert [name for name, _ in made._roots()] == ["", *(f"state[{n}]" for n in range(len(found)))]
