"""Without fix=True, too, a problem is told with the user's own line: before, and after or what to do about it."""

from __future__ import annotations

import linecache
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.behind_words import BEHIND
from paramgraph_kit.rewrite.own_lines import AHEAD, AS_IT_IS, BY_FIX, IN_DIFF, MORE
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
STEP = """
model = nn.Linear(4, 3).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses, calls = [], []
class Counter:
    n = 0
counter = Counter()
args = (torch.randn(8, 4, device=device), torch.rand(8, 3, device=device))
def f(x, y):
    calls.append(1)
    x = x + torch.randn(x.shape).to(x.device)
    loss = F.mse_loss(model(x), y)
    if torch.isnan(loss):
        raise ValueError("no number")
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    losses.append(loss.item())
"""
WANTED = {  # by the class of a problem: the line before, and what stands for it
    "copy-to-gpu": ("x = x + torch.randn(x.shape).to(x.device)", "torch.randn(x.shape, device=x.device)"),
    "data-dependent-branch": ("if torch.isnan(loss):", "torch._assert_async("),
    "clip-check": ("error_if_nonfinite=True", "error_if_nonfinite=False"),
    "optimizer-not-capturable": ("optimizer = torch.optim.Adam(", "lr=1e-3, capturable=True)"),
    "sync-item": ("losses.append(loss.item())", "behind each launch"),
    "host-counter": ("losses.append(loss.item())", "behind each launch"),
}


def parts(text: str) -> tuple[str, str]:
    """What stands before, and after."""
    found = re.fullmatch(r"before  (.*?)\nafter   (.*)", text, re.DOTALL)
    assert found is not None, text
    return found[1], found[2]


def test_each_problem_has_the_user_s_own_line(tmp_path: Path) -> None:
    # GIVEN a step with six problems WHEN it is diagnosed
    names = run(STEP, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN each is told with its own line, and what stands for it
    told = {failure.code: parts(failure.fix) for failure in found if failure.code in WANTED}
    assert told.keys() == WANTED.keys()
    for code, (before, after) in WANTED.items():
        assert before in told[code][0], told[code]
        assert after in told[code][1], told[code]
    # AND in the cards of a notebook, where it is said that nobody has tried them
    html = unescape(found._repr_html_())
    assert all(before in html and after in html for before, after in WANTED.values())
    assert "not tried: diagnose(fn, ..., fix=True) tries them" in html
    assert "not tried: diagnose(fn, ..., fix=True) tries them" in str(found)


def test_nothing_is_run_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN how often a function is called without them
    names = run(STEP.replace("calls.append(1)", "global_calls(1)").replace("losses, calls", "losses, _"), tmp_path)
    calls: list[int] = []
    names["f"].__globals__["global_calls"] = calls.append
    with monkeypatch.context() as patch:
        patch.setattr("paramgraph_kit.rewrite.own_lines.in_own_lines", lambda *given: given[3])
        plain = pgk.diagnose(names["f"], *names["args"])
    count = len(calls)
    assert not plain.untried
    # WHEN diagnosed with them THEN as often
    assert pgk.diagnose(names["f"], *names["args"]).untried
    assert len(calls) == 2 * count


def test_a_rewrite_that_depends_on_shapes_is_not_guessed(tmp_path: Path) -> None:
    # GIVEN rows that a mask picks, of which nobody has seen how many dimensions there are
    text = (
        "args = (torch.randn(8, 3, device=device),)\ndef f(x):\n    bad = x[:, 0] > 1\n    x[bad] = 0.0\n    return x\n"
    )
    names = run(text, tmp_path)
    # WHEN diagnosed THEN no line is made up that would spread the mask the wrong way
    for failure in pgk.diagnose(names["f"], *names["args"]):
        assert "torch.where(bad, 0.0" not in failure.fix


def in_diff(after: str, diff: str) -> bool:
    """Whether a card says what a diff has: lines of it, or where a line has moved."""
    new = {line[1:].strip() for line in diff.splitlines() if line.startswith("+")}
    moved = re.fullmatch(r"the same (?:before|behind) each launch, in `(\w+)`, as in the diff", after)
    if moved is not None:
        return any(line.startswith(f"def {moved[1]}(") for line in new)
    return after in (IN_DIFF, AS_IT_IS) or all(line.strip() in new for line in after.splitlines())


def test_with_fix_and_in_a_story_cards_say_what_the_diff_has(tmp_path: Path) -> None:
    # GIVEN the same WHEN its fix is tried
    names = run(STEP, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert not found.untried
    assert found.fix is not None
    # THEN each card has the user's line, and nothing that is not in the diff
    for failure in found:
        assert in_diff(parts(failure.fix)[1], found.fix.diff), failure.fix
    told = {failure.code: parts(failure.fix)[1] for failure in found}
    assert told["sync-item"] == "the same behind each launch, in `after_f`, as in the diff"
    assert told["optimizer-not-capturable"].endswith("lr=1e-3, capturable=True)")
    assert WANTED["clip-check"][1] in unescape(found._repr_html_())
    # WHEN its story is told THEN the explorer's failures are the same
    story = pgk.story(names["f"], *names["args"], say=None)
    shown = {failure.code: failure.fix for failure in story.traces["captured as it is"].failures}
    for code, (before, _) in WANTED.items():
        assert before in shown[code], shown[code]
        assert story.fix is not None
        assert in_diff(parts(shown[code])[1], story.fix.diff), shown[code]


def test_what_was_tried_and_is_left_is_not_promised_again(tmp_path: Path) -> None:
    # GIVEN a branch that no rewrite takes out, and what belongs behind the launch
    text = """
log = []
args = (torch.randn(8, 4, device=device),)
def f(x):
    y = x * 2
    if y.sum() > 0:
        y = torch.linalg.eigvals(y[:4]).abs()
    log.append(y.max().item())
    return y
"""
    found = pgk.diagnose(run(text, tmp_path)["f"], torch.randn(8, 4).to(pgk.device()), fix=True)
    # WHEN a fix was tried THEN no card says what a trial would do
    assert found.fix is not None
    assert not found.fix.complete
    assert not [failure.fix for failure in found if "fix=True" in failure.fix]


def test_a_number_that_a_branch_of_the_step_may_change_keeps_the_user_s_words(tmp_path: Path) -> None:
    # GIVEN a number that the step goes on with, and below it a branch, of whose tensors nobody has seen the shape
    text = (
        "args = (torch.randn(8, 3, device=device),)\ndef f(x):\n    h = x * 2\n    scale = h.abs().max().item()\n"
        "    h = h / scale\n    if h.sum() > 0:\n        h = h * 2\n    return h\n"
    )
    names = run(text, tmp_path)
    # WHEN it is diagnosed, as a function and compiled THEN both say it in the user's words
    for what in (names["f"], torch.compile(names["f"], backend="paramgraph")):
        told = {f.code: parts(f.fix) for f in pgk.diagnose(what, *names["args"])}
        assert told["sync-item"][0] == "scale = h.abs().max().item()"
        assert told["sync-item"][1].startswith("line 14 goes on with `scale`: compute it of tensors on the device, ")
        assert "`scale = h.abs().max().detach()`" in told["sync-item"][1]
        assert told["data-dependent-branch"][1].startswith("h = torch.where(h.sum() > 0, h * 2, h)")
    # AND the compiled one, with fix=True, shows the diff of what was compiled
    fix = pgk.diagnose(torch.compile(names["f"], backend="paramgraph"), *names["args"], fix=True).fix
    assert fix is not None
    assert fix.complete, fix


ROWS = """
args = (torch.randn(8, 4, device=device),)
def f(x):
    h = x * 2
    noise = h * random.random()
    h = h + torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)
    return noise, h[h > 0].sum()
"""


def test_what_no_text_tells_keeps_the_example_and_what_was_tried_is_shown_as_in_the_diff(tmp_path: Path) -> None:
    # GIVEN a pick that only shapes tell how to write, a number of the host's, and a constant
    names = run(ROWS, tmp_path)
    # WHEN diagnosed without a trial
    told = {f.code: parts(f.fix) for f in pgk.diagnose(names["f"], *names["args"])}
    # THEN the pick has what to do about its own line, the number is made before the launch, lines stand at the margin
    after = "return all of `h`, with `h > 0`; pick `[h > 0]` and ask for lengths behind the launch"
    assert told["dynamic-shape"] == ("return noise, h[h > 0].sum()", after + MORE)
    assert told["host-random"] == ("noise = h * random.random()", f"{AHEAD}; {BY_FIX[AHEAD]}")
    constant = told["tensor-literal"][1].splitlines()
    assert [len(line) - len(line.lstrip()) for line in constant] == [0, 8]
    assert constant[1].strip() == "h = h + constant_on_device"
    # WHEN its fix is tried THEN each is told with what the diff has in its place
    told = {f.code: parts(f.fix) for f in pgk.diagnose(names["f"], *names["args"], fix=True)}
    new = ("noise = h * noise_in", "h = h + constant_on_device", "return noise, torch.where(h > 0, h, 0).sum()")
    for code in ("dynamic-shape", "host-random", "tensor-literal"):
        assert [line.strip() for line in told[code][1].splitlines()] == [*new]


USED = """
args = (torch.randn(8, 4, device=device),)
def f(x):
    y = x * 2
    if y.max().item() > 1.0:
        y = y * 0.5
    scale = 1.0 / y.abs().mean().item()
    total = y.sum().item()
    print("scale", scale, total)
    return y * scale
"""


def test_what_the_step_goes_on_with_is_not_told_to_go_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN numbers that decide what is returned, one that is given a name, and what is printed
    names = run(USED, tmp_path)
    # WHEN diagnosed THEN they stay on the device, and only the print goes
    told = [parts(f.fix) for f in pgk.diagnose(names["f"], *names["args"])]
    assert [after for _, after in told] == [
        "y = torch.where(y.max() > 1.0, y * 0.5, y)",
        "scale = 1.0 / y.abs().mean().detach()",
        "total = y.sum().detach()",
        f"{BEHIND}; {BY_FIX[BEHIND]}",
    ]
    # WHEN its fix is tried THEN what is printed is still a number
    fixed = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fixed is not None
    assert fixed.complete
    assert "+    scale = scale.item()\n" in fixed.diff


def test_a_line_is_looked_for_in_the_cell_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN functions of cells that have one name, because nobody counts them, each with something in its third line
    cells = [
        "def helper(x):\n    y = x * 2\n    len(y)\n    return y\n",
        "def other(x):\n    y = x * 3\n    len(x)\n    return y\n",
        "def f(x):\n    y = helper(other(x))\n    if y.max().item() > 1.0:\n        y = y * 0.5\n    return y\n",
    ]
    for first in "abcdef":  # by another name another may come first
        names: dict[str, Any] = {"torch": torch}
        for n, text in enumerate(cells):
            file = f"<ipython-input-1-{first}{n}abcdef>"
            monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file))
            exec(compile(text, file, "exec"), names)
        # WHEN the one with a problem is diagnosed THEN its own line is told
        found = pgk.diagnose(names["f"], torch.randn(8, device=pgk.device()))
        assert parts(found.failure.fix)[1] == "y = torch.where(y.max() > 1.0, y * 0.5, y)"


class Hostile:
    """Raises wherever it is looked at."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_an_object_that_raises_where_it_is_looked_at_keeps_the_example(tmp_path: Path) -> None:
    names = run(
        "args = (torch.randn(4, device=device),)\nodd = None\ndef f(x):\n    odd\n    return x * x.sum().item()\n",
        tmp_path,
    )
    names["f"].__globals__["odd"] = Hostile()
    found = pgk.diagnose(names["f"], *names["args"])
    assert found.codes == ("sync-item",)
    assert found.failure.fix.startswith("before")


SCHEDULED = {
    "synchronize": (
        (
            "args = (torch.randn(4, device=device),)\ntimes = []\n"
            "def f(x):\n    t0 = time.time()\n    y = x * 2\n    cuda.synchronize()\n"
            "    times.append(time.time() - t0)\n    return y\n"
        ),
        "leave `cuda.synchronize()` out, with the clock: time the launch itself, around it in your loop",
    ),
    "captured-event": (
        (
            "args = (torch.randn(4, device=device),)\nms = []\n"
            "start, end = (cuda.Event(enable_timing=True) for _ in 'ab')\n"
            "def f(x):\n    start.record()\n    y = x * 2\n    end.record()\n    ms.append(start.elapsed_time(end))\n"
            "    return y\n"
        ),
        "take `start.record()`; `end.record()` out of the function, record around the launch",
    ),
    "work-elsewhere": (
        (
            "args = (torch.randn(4, device=device),)\nside = cuda.Stream()\n"
            "def f(x):\n    with cuda.stream(side):\n        y = x * 2\n    return y\n"
        ),
        (
            "`side.wait_stream(cuda.current_stream())` before the `with` of `side`, and "
            "`cuda.current_stream().wait_stream(side)` after it"
        ),
    ),
    "isolation": (
        (
            "args = (torch.randn(4, device=device),)\nready = cuda.Event()\nready.record()\n"
            "def f(x):\n    cuda.current_stream().wait_event(ready)\n    return x * 2\n"
        ),
        "`cuda.current_stream().wait_event(ready)` waits for what was begun outside: do it before each launch",
    ),
    "unjoined-work": (
        (
            "args = (torch.randn(4, device=device),)\nside, held = cuda.Stream(), torch.zeros(4, device=device)\n"
            "def f(x):\n    side.wait_stream(cuda.current_stream())\n    with cuda.stream(side):\n"
            "        held.copy_(x * 2)\n    return x + 1\n"
        ),
        "`cuda.current_stream().wait_stream(side)` after the `with` of `side`",
    ),
    "reseeded": (
        "args = (torch.randn(4, device=device),)\ndef f(x):\n    torch.manual_seed(42)\n    return F.dropout(x, 0.5)\n",
        "take `torch.manual_seed(42)` out of the function: once before the capture",
    ),
    "unregistered-generator": (
        (
            "args = (torch.randn(4, device=device),)\ngen = torch.Generator(device=device)\n"
            "def f(x):\n    return x + torch.randn(4, device=device, generator=gen)\n"
        ),
        "`g.register_generator_state(gen)` of the graph `g`, once before the capture; this line stays",
    ),
    "optimizer-sync": (
        (
            "model = nn.Linear(4, 1).to(device)\nopt = torch.optim.LBFGS(model.parameters(), max_iter=3)\n"
            "args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))\n"
            "def f(x, y):\n    def closure():\n        opt.zero_grad()\n        loss = F.mse_loss(model(x), y)\n"
            "        loss.backward()\n        return loss\n    return opt.step(closure).detach()\n"
        ),
        (
            "take it out of `f` as `def closure(x, y)` that returns the loss detached, once "
            "`run = pgk.parameterize(closure, state=[model])`, and here `opt.step(lambda: run(x, y))`"
        ),
    ),
    "grad-scaler": (
        (
            "model = nn.Linear(4, 1).to(device)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "scaler = torch.amp.GradScaler(device.type)\nargs = (torch.randn(8, 4, device=device),)\n"
            "def f(x):\n    opt.zero_grad()\n    loss = model(x).square().mean()\n    scaler.scale(loss).backward()\n"
            "    scaler.step(opt)\n    scaler.update()\n    return loss.detach()\n"
        ),
        "`scaler.step(opt)` and `scaler.update()` behind each launch",
    ),
    "grad-scaler of gradients that are unscaled": (
        (
            "model = nn.Linear(4, 1).to(device)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "scaler = torch.amp.GradScaler(device.type)\nargs = (torch.randn(8, 4, device=device),)\n"
            "def f(x):\n    opt.zero_grad()\n    loss = model(x).square().mean()\n    scaler.scale(loss).backward()\n"
            "    scaler.unscale_(opt)\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
            "    scaler.step(opt)\n    scaler.update()\n    return loss.detach()\n"
        ),
        (
            "`scaler.unscale_(opt)`, `nn.utils.clip_grad_norm_(model.parameters(), 1.0)`, `scaler.step(opt)` and "
            "`scaler.update()` together behind each launch"
        ),
    ),
    "linalg-host": (
        (
            "args = (torch.randn(8, 4, device=device),)\n"
            "def f(x):\n    values, vectors = torch.linalg.eigh(torch.cov(x.T))\n    return vectors @ values\n"
        ),
        "end what is captured with `made = torch.cov(x.T)`, return `made`",
    ),
}


@pytest.mark.parametrize("code", SCHEDULED)
def test_streams_events_seeds_and_solvers_are_told_in_the_user_s_names(code: str, tmp_path: Path) -> None:
    # GIVEN a line that asks the runtime for what is no node WHEN diagnosed THEN what to do has its names
    text, wanted = SCHEDULED[code]
    names = run(text, tmp_path)
    told = {f.code: f for f in pgk.diagnose(names["f"], *names["args"])}
    found = told[code.partition(" ")[0]]
    before, after = parts(found.fix)
    assert found.frame is not None
    assert before == found.frame.text
    assert wanted in after


def test_what_is_said_of_lbfgs_gives_its_numbers(tmp_path: Path) -> None:
    # GIVEN what the words for LBFGS ask for WHEN it is done, at new inputs
    text, _ = SCHEDULED["optimizer-sync"]
    eager = run(text, tmp_path)
    names = run(text, tmp_path)
    names["model"].load_state_dict(eager["model"].state_dict())
    exec(
        "def closure(x, y):\n    opt.zero_grad()\n    loss = F.mse_loss(model(x), y)\n    loss.backward()\n"
        "    return loss.detach()\nlaunched = pgk.parameterize(closure, state=[model])\n"
        "def f(x, y):\n    return opt.step(lambda: launched(x, y)).detach()\n",
        names,
    )
    # THEN each step is eager's, and the rounds were launched
    for _ in range(6):
        x, y = torch.randn(8, 4).to(pgk.device()), torch.randn(8, 1).to(pgk.device())
        assert torch.equal(names["f"](x, y), eager["f"](x, y))
    assert "graphed" in str(pgk.report(names["launched"]))


MANY = """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
        self.seen = torch.zeros(30, device=device)
        self.steps = 0
    def step(self, x, items):
        self.steps += 1
        self.seen[items] = self.steps
        shift = torch.from_numpy(np.random.randn(12, 4).astype("float32")).to(device)
        keep = self.model(x + shift)[x[:, 0] > 0.2]
        others = self.model(x - shift)[x[:, 0] > 0.2]
        loss = F.softplus(others - keep).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
trainer = Trainer(nn.Linear(4, 3).to(device))
f, args = trainer.step, (torch.rand(12, 4, device=device), torch.arange(12, device=device))
"""


def test_of_many_rewritten_lines_a_problem_is_told_with_its_own(tmp_path: Path) -> None:
    # GIVEN a step of which a diff rewrites lines that follow each other
    names = run(MANY, tmp_path)
    # WHEN a fix is asked for
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN each line is told with what takes its place, not with those around it
    told = {failure.code: parts(failure.fix) for failure in found if failure.code != "dynamic-shape"}
    assert told["copy-to-gpu"][1] == "shift = shift_in"
    # AND so with all
    assert all("\n" not in before for before, _ in told.values())


COUNTS = """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
        self.seen, self.steps, self.losses = torch.zeros(30, device=device), 0, []
    def step(self, x):
        self.steps += 1
        gap = self.steps - self.seen
        loss = self.model(x).pow(2).mean() + 1e-3 * gap.mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
trainer = Trainer(nn.Linear(4, 3).to(device))
f, args = trainer.step, (torch.rand(12, 4, device=device),)
"""


def test_a_counter_is_not_told_with_an_optimizer_that_comes_with_each_plan(tmp_path: Path) -> None:
    # GIVEN a step that counts, beside an optimizer that is rewritten for another reason
    names = run(COUNTS, tmp_path)
    # WHEN a fix is asked for
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN
    assert found.fix is not None
    assert "fused=True" in found.fix.diff
    both = "self.steps += 1\n        gap = self.steps - self.seen"
    counts = "self.steps += 1", "the same before each launch, in `before_step`, as in the diff"
    assert [parts(failure.fix) for failure in found] == [counts, (both, "gap = steps_in - self.seen")]
