"""Lists of the device's numbers that only decide, and what a loop goes through, name by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from paramgraph_kit.rewrite.expressions.numbers.number_lists import ask_there
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.gone_through import gone_through
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.trace.model import Failure

STEP = """\
def step(x):
    counts = {value}
    for {loop}:
        if {test}:
            continue
        x = x + 1
    return {result}
"""


def asked(path: Path, value: str, test: str, *, loop: str = "i in range(4)", result: str = "x") -> str:
    """What the first statement of a step gets, or ""."""
    file = path / f"step{len([*path.iterdir()])}.py"
    file.write_text(STEP.format(value=value, loop=loop, test=test, result=result))
    source = Source.of(str(file))
    assert source is not None
    function = source.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    place = Place(source, function.body[0], Failure("copy-to-cpu", "", "_to_copy of int64[4]"), "device")
    return "".join(edit.text for edit in ask_there(place))


@pytest.mark.parametrize(
    ("value", "stays"),
    [
        ("torch.bincount(x, minlength=4).tolist()", "torch.bincount(x, minlength=4)"),
        ("n.sum(0).cpu().numpy()", "n.sum(0)"),
        ("n.sum(0).detach().to('cpu').tolist()", "n.sum(0)"),
        ("n.cpu()", "n.clone()"),  # which the next lines may write into
        ("n.view(-1).cpu()", "n.view(-1).clone()"),
        ("n[0].max(-1)[0].cpu()", "n[0].max(-1)[0]"),
    ],
)
def test_numbers_that_only_decide_stay_on_the_device(value: str, stays: str, tmp_path: Path) -> None:
    # GIVEN numbers that are read for branches alone WHEN asked THEN they stay where they are
    assert asked(tmp_path, value, "counts[i] == 0") == stays
    assert asked(tmp_path, value, "not counts[i]") == stays
    # AND so do those that a loop goes through, for what it asks of each
    assert asked(tmp_path, value, "n_here < 2", loop="n_here in counts") == stays
    assert asked(tmp_path, value, "n_here < 2", loop="i, (n_here, expert) in enumerate(zip(counts, experts))") == stays


def test_numbers_that_do_more_go_to_the_host(tmp_path: Path) -> None:
    # GIVEN numbers that are given on, cut with, picked by a slice, computed with, or asked for beside something else
    value = "n.sum(0).tolist()"
    assert asked(tmp_path, value, "counts[i] == 0", result="x, counts") == ""
    assert asked(tmp_path, value, "counts[i] == 0", result="x[: counts[0]]") == ""
    assert asked(tmp_path, value, "counts[:2] == [0, 0]") == ""
    assert asked(tmp_path, value, "counts[i] / total > 1") == ""
    assert asked(tmp_path, value, "counts[i] in seen") == ""
    assert asked(tmp_path, value, "n_here == 0", loop="n_here in counts", result="n_here") == ""
    assert asked(tmp_path, value, "n_here == 0", loop="n_here in sorted(counts)") == ""
    # WHEN they were on no device THEN nothing is left out
    assert asked(tmp_path, "sum(n)", "counts[i] == 0") == ""


def test_a_number_of_python_s_is_a_double_and_one_of_numpy_s_is_none(tmp_path: Path) -> None:
    # GIVEN shares that are compared with a number that float32 has not WHEN asked THEN Python's are doubles
    assert asked(tmp_path, "n.mean(0).tolist()", "counts[i] < 0.1") == "n.mean(0).double()"
    # AND numpy's are compared in their own type, as tensors are
    assert asked(tmp_path, "n.mean(0).cpu().numpy()", "counts[i] < 0.1") == "n.mean(0)"


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        ("x in xs", {"x": "xs"}),
        ("i, x in enumerate(xs)", {"x": "xs"}),
        ("i, (a, b) in enumerate(zip(xs, ys))", {"a": "xs", "b": "ys"}),
        ("(i, a), b in zip(enumerate(xs), ys)", {"a": "xs", "b": "ys"}),
        ("a, b in pairs", {}),
        ("a, *b in zip(xs, ys)", {}),
        ("a, b in zip(*lists)", {}),
        ("x in reversed(xs)", {"x": "reversed(xs)"}),
    ],
)
def test_what_each_name_of_a_loop_goes_through(loop: str, found: dict[str, str]) -> None:
    # GIVEN a loop WHEN asked THEN each name has what its values are elements of
    node = ast.parse(f"for {loop}: pass").body[0]
    assert isinstance(node, ast.For)
    assert {name.id: ast.unparse(given) for name, given in gone_through(node.target, node.iter)} == found
