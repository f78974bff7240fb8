"""Users' models from broken to parameterized by what the tool says alone: its diff, and lines that it named.

``tests/journeys`` has them, in the format of ``tests/programs``: what the second text has otherwise is what the user
changed by hand after the first story. The rest comes from the story's diff, which is applied here as a user would.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import paramgraph_kit as pgk
from tests.programs.reading import Program, read
from tests.programs.running import load, seed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
FILES = sorted((Path(__file__).parents[1] / "journeys").glob("*.py"))
CALLS = 6
Before = Callable[[dict[str, Any]], None]
After = Callable[[dict[str, Any], list[torch.Tensor], Any], Any]  # names, inputs, what the step returned
# What each loop does before and after a launch: as the story says where lines were moved there, or the user moved them.
BEFORE: dict[str, Before] = {
    "agent": lambda names: names["agent"].before_learn(),
    "enhancement": lambda names: names["before_step"](),
    "loader": lambda names: names["before_iteration"](),
    "denoising": lambda names: names["diffusion_model"].before_training_step(),
    "gan": lambda names: names["before_train_step"](),
    "recommender": lambda names: names["before_train_batch"](names["given"][0]),
    "speech": lambda names: names["before_step"](),
    "survival": lambda names: names["before_fit"](),
    "tabular": lambda names: names["before_train_batch"](names["given"][2]),
    "translation": lambda names: names["before_train_batch"](),
    "vision": lambda names: names["trainer"].before_fit_batch(),
}
AFTER: dict[str, After] = {
    "agent": lambda names, given, out: names["agent"].after_learn(*out),
    "contrastive": lambda names, given, out: names["after_train"](given[0], *out),
    "denoising": lambda names, given, out: names["diffusion_model"].after_training_step(out),
    "diffusion": lambda names, given, out: names["after_denoise"](*given, out),
    "enhancement": lambda names, given, out: names["after_step"](*out),
    "gan": lambda names, given, out: names["after_train_step"](*out),
    "graphs": lambda names, given, out: names["after_epoch"](given[1], *out),
    "loader": lambda names, given, out: names["after_iteration"](out),
    "molecules": lambda names, given, out: names["after_train_step"](out),
    "physics": lambda names, given, out: names["after_step"](*out),
    "policy": lambda names, given, out: names["after_update"](*out),
    "recommender": lambda names, given, out: names["after_train_batch"](given[1], *out),
    "segmentation": lambda names, given, out: names["after_evaluate"](*given, *out),
    "serving": lambda names, given, out: names["server"].after_handle(),
    "speech": lambda names, given, out: names["after_step"](given[1], *out),
    "survival": lambda names, given, out: names["after_fit"](out),
    "tabular": lambda names, given, out: names["after_train_batch"](given[2], *out),
    "training": lambda names, given, out: names["after_train_step"](*out),
    "translation": lambda names, given, out: names["after_train_batch"](given[1], out),
    "vision": lambda names, given, out: names["trainer"].after_fit_batch(*out),
}
# The others take two.
ONE_ROUND = frozenset(
    "agent detector diffusion enhancement policy sampling segmentation tabular training world".split()  # noqa: SIM905
)
# Of which a part is launched, by the names of what has it.
PARTS = {"detector": "detector"}
# Drawn elsewhere now, so other numbers: these are compared with the user's own mended file run eagerly.
DRAWS = {"contrastive", "denoising", "gan", "loader", "vision"}
# What `make sweeps` runs: as long each as three of the others, whose rewrites they share.
LONG = frozenset(
    """contrastive denoising enhancement gan graphs loader molecules policy recommender speech survival tabular
    translation vision world physics""".split()  # noqa: SIM905
)


@pytest.fixture(
    params=[pytest.param(file, marks=[pytest.mark.sweep] * (file.stem in LONG), id=file.stem) for file in FILES]
)
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """One user's model."""
    yield read(request.param)[0]
    pgk.diagnose.repair()


def applied(text: str, diff: str) -> str:
    """A text with a unified diff applied, as ``patch`` does."""
    lines, out, at = text.splitlines(), [], 0
    for line in diff.splitlines():
        if head := re.match(r"@@ -(\d+)", line):
            out += lines[at : int(head[1]) - 1]
            at = int(head[1]) - 1
        elif line.startswith("+") and not line.startswith("+++"):
            out.append(line[1:])
        elif line[:1] in ("-", " ", "") and not line.startswith("---"):
            assert line[1:].rstrip() == lines[at].rstrip(), f"the diff does not fit at {lines[at]!r}"
            out += [] if line.startswith("-") else [lines[at]]
            at += 1
    return "\n".join([*out, *lines[at:]]) + "\n"


def not_named(program: Program, said: list[str], diff: str) -> set[str]:
    """Lines that the user took out although nothing that was said concerns them, nor the diff takes them out."""
    tree, told = ast.parse(program.broken), set[int]()
    numbers = {int(n) for line in said for n in re.findall(r"(?:\.py:|line )(\d+)", line)}
    places = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno in numbers]
    words = set[str]()
    for node in places:
        told |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        words |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id != "self"}
        words |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    kept = program.mended.splitlines() + [line[1:] for line in diff.splitlines() if line.startswith("-")]
    called = (f"def {program.function}(", "args = ")  # what it is given is the user's
    gone = {n: line for n, line in enumerate(program.broken.splitlines(), 1) if line not in kept}
    gone = {n: line for n, line in gone.items() if not line.startswith(called)}
    for branch in (node for node in ast.walk(tree) if isinstance(node, ast.If)):  # it goes with what it asks
        if words & {n.id for n in ast.walk(branch.test) if isinstance(n, ast.Name)}:
            told |= set(range(branch.lineno, (branch.end_lineno or branch.lineno) + 1))
    return {line for n, line in gone.items() if n not in told and not words & set(re.findall(r"\w+", line))}


def shuffled(args: tuple[torch.Tensor, ...], i: int) -> list[torch.Tensor]:
    """The inputs of step i: the same elements in another order, alike for all of one length."""
    made = []
    for each in args:
        dim = 1 if each.dim() == 2 and len(each) == 2 else 0  # the ends of edges stay together
        order = torch.randperm(each.shape[dim], generator=torch.Generator().manual_seed(i)) if each.dim() else None
        made.append(each.cpu().index_select(dim, order).to(each.device) if order is not None else each.clone())
    return made


def run(names: dict[str, Any], function: Any, before: Before, after: After) -> list[list[torch.Tensor]]:
    """What each step of a loop over moved inputs gives."""
    seed()
    results = []
    for i in range(CALLS):
        given = names["given"] = shuffled(names["args"], i)
        before(names)
        out = function(*given)
        results.append([torch.as_tensor(v).detach().cpu().clone() for v in tree_leaves(out)])
        if (result := after(names, given, out)) is not None:  # what is moved behind a launch may return its result
            results[-1] = [torch.as_tensor(v).detach().cpu().clone() for v in tree_leaves(result)]
    return results


def flat(steps: list[list[torch.Tensor]], most: int) -> torch.Tensor:
    return torch.cat([v.double().flatten() for step in steps for v in step[:most]])


def test_a_user_s_model_comes_to_its_end_in_two_rounds(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a model with three problems or more
    broken = load(program.broken, tmp_path / "model.py")
    story = pgk.story(broken[program.function], *broken["args"], say=None)
    assert story.diagnosis is not None
    assert len(story.diagnosis) >= 3
    text, rounds = program.broken, 1
    # WHEN the user does what is said
    if not story.complete:
        assert story.fix is not None
        assert not_named(program, story.fix.instead, story.fix.diff) == set()
        text, rounds = program.mended, 2
        names = load(text, tmp_path / "model.py")
        story = pgk.story(names[program.function], *names["args"], say=None)
    # THEN it is parameterized, after one round or two
    assert story.complete, str(story)
    assert rounds == (1 if program.field in ONE_ROUND else 2)
    # AND the user's file with the diff, run by a loop of the user's, gives the original's numbers from launches
    final = load(applied(text, story.fix.diff) if story.fix is not None else text, tmp_path / "model.py")
    draws = program.field in DRAWS
    broken = load(program.mended if draws else program.broken, tmp_path / "broken.py")
    nothing = (lambda names: None), (lambda names, given, out: None)
    before = BEFORE.get(program.field, nothing[0])
    as_it_was = before if draws and "def before_" in program.mended else nothing[0]
    expected = run(broken, broken[program.function], as_it_was, nothing[1])
    call = re.search(r"launched = (pgk.parameterize\(.*\))", str(story))
    assert call is not None, str(story)
    with torch.set_grad_enabled("under torch.no_grad()" not in str(story)), pgk.watch() as trace:
        owner = final.get(PARTS.get(program.field, ""))
        fast = eval(call[1], {**final, "partial": functools.partial, "self": owner})  # as the story says
        if owner is not None:  # a part is launched where it stands
            ends = final["after_detect_part"]
            final["detect_part"] = lambda self, image: ends(self, *fast(image))
        got = run(final, fast if owner is None else owner.detect, before, AFTER.get(program.field, nothing[1]))
    capsys.readouterr()
    most = len(expected[0])  # a step may return more now, for what was moved behind it
    values, truth = flat(got, most), flat(expected, most)
    if program.field == "training":
        assert torch.allclose(torch.tensor(final["history"]), torch.tensor(broken["history"]), rtol=1e-3)
    assert torch.allclose(values, truth, rtol=1e-3), pgk.report(fast)
    assert len(trace.launches) >= CALLS - 2, pgk.report(fast)
    assert sum(launch.bytes_copied for launch in trace.launches) == 0
