"""Where what is captured is told to end, all is told that comes behind the launch and was found before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.advised.advice import hint
from paramgraph_kit.rewrite.advised.asks.cut_here import cut_where_it_is_read
from paramgraph_kit.rewrite.advised.asks.needs import decides, steps_behind_an_end
from paramgraph_kit.rewrite.advised.host.from_host import BEHIND, LEFT, decided
from paramgraph_kit.rewrite.advised.host.put_behind import behind
from paramgraph_kit.rewrite.advised.otherwise import at_least
from paramgraph_kit.rewrite.advised.sizes.growing import bad_loss
from paramgraph_kit.rewrite.advised.state.carried_numbers import moved_by_what_is_read
from paramgraph_kit.rewrite.advised.state.kept_outside import kept_outside
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Form, Place
from paramgraph_kit.trace.model import Failure
from tests.integration.rewritten import Fixed

STEP = """
def f(pos, vel, wind):
    acc = torch.tanh(pos) + wind
    unused = acc * 2
    speed = vel.norm().item()
    dt = min(0.02, 0.05 / speed)
    if speed > 3:
        return vel
    vel = vel + dt * acc
    return vel
"""
TOLD = {
    "before a line": (6, "data-dependent-branch", at_least, "before line 6, return `acc`, `speed`, and do that line"),
    "at a line": (
        5,
        "sync-item",
        cut_where_it_is_read,
        "end what is captured here, return `vel.norm()`, with `acc`, and",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_all_that_comes_behind_a_cut_and_was_found_before_it_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a number that decides what a step does, with a tensor that is read behind it, and one that is not
    line, code, advice, wanted = TOLD[name]
    told_by: Callable[[Place], str] = advice
    file = tmp_path / "program.py"
    file.write_text(STEP)
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(line)
    assert statement is not None
    held = {each: Form.of(torch.zeros(2)) for each in ("acc", "unused")}
    # WHEN it is told that what is captured ends there THEN the tensor is returned, too
    told = told_by(Place(source, statement, Failure(code, "", ""), "device", {"torch": torch}, tensors=held))
    assert wanted in told, told


LEFT_OUT = """
def f(real, z):
    fake = G(z)
    d_loss = D(fake.detach()).mean() - D(real).mean()
    if d_loss.item() > 0.5:
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
    opt_g.zero_grad()
    (-D(fake).mean()).backward()
    opt_g.step()
"""
ENDED = """
def f(x, old):
    for i in range(4):
        opt.zero_grad()
        loss, kl = loss_of(x, old)
        if kl > limit:
            break
        loss.backward()
        clip(1.0)
        opt.step()
"""
DROPPED = """
def f(x, y=None):
    if y is not None:
        x = x + emb(y)
    return net(x)
"""
LAST = """
def f(real, z):
    state.n += 1
    fake = G(z)
    D(fake.detach()).mean().backward()
    opt_d.step()
    if state.n % 2 == 0:
        opt_g.zero_grad()
        (-D(fake).mean()).backward()
        opt_g.step()
    return fake
"""
ITSELF = LAST.replace("(-D(fake).mean()).backward()", "loss = -D(G(z)).mean(); loss.backward()")
FREED = """
def f(x):
    loss_of(x).backward()
    if n < 3:
        for p in head.parameters():
            p.grad = None
    opt.step()
"""
HELPED = """
def free(n):
    if n >= 3:
        return
    for p in head.parameters():
        p.grad = None
"""
KEPT = """
def f(self, x):
    loss = (net(x) - self.alpha * x).mean()
    self.alpha = loss.exp().item()
"""
GIVEN = "ask `train_8 = state.n % 2 == 0` before each launch, behind line 3, which goes there with it; make"
ALONE = "whether lines 8 to 10 train: make a function of them, with a graph of its own, and launch it behind this one"
THREE = (
    "a launch cannot leave out lines 6 to 8, and line 10 trains behind that: make three functions, each with a graph "
    "of its own, of what comes before line 5, of lines 6 to 8, and of what comes from line 9 on; launch the second or "
    "not"
)
ANSWERS = (
    "the host decides whether lines 6 to 8 train: ask `train_6 = n % 2 == 0` before each launch; make `train_6` an "
    "argument of `f`, and write `if train_6:` here; each of the two answers has a graph of all of the step"
)
ROUND = "make a function of lines 4 to 9 without `if kl > limit`"
ALWAYS = LEFT_OUT.replace("d_loss.item() > 0.5", "n % 2 == 0")
OPTIMIZER = torch.optim.Adam([torch.zeros(2)])
WORDS = {
    "a device's decision before more that trains": (LEFT_OUT, 5, "sync-item", decides, THREE),
    "a host's decision before more that trains": (ALWAYS, 5, "branch-frozen", decided, ANSWERS),
    "a host's decision to train what is there": (LAST, 7, "branch-frozen", decided, GIVEN),
    "a host's decision to let gradients go": (
        FREED,
        4,
        "branch-frozen",
        decided,
        "whether lines 5 to 6 let gradients go",
    ),
    "the same of a helper that ends early": (HELPED, 3, "branch-frozen", decided, "lines 5 to 6 let gradients go: ask"),
    "a host's decision to train what it computes itself": (ITSELF, 7, "branch-frozen", decided, ALONE),
    "a count by which it is decided": (LAST, 3, "host-counter", behind, "by it the host decides whether lines 8 to 10"),
    "a number that a line behind it reads there": (KEPT, 3, "scalar-frozen", decided, "once line 4 keeps it on"),
    "an end before a backward pass": (ENDED, 10, "optimizer-not-capturable", steps_behind_an_end, ROUND),
    "a tensor or None": (DROPPED, 3, "branch-frozen", decided, "capture a graph for each, `graphs[y is None]`"),
}


@pytest.mark.parametrize("name", WORDS)
def test_what_trains_at_times_is_told_to_be_apart_in_its_order(name: str, tmp_path: Path) -> None:
    # GIVEN a part of a step that is not always done, and does not come last
    text, line, code, advice, wanted = WORDS[name]
    told_by: Callable[[Place], str] = advice
    file = tmp_path / "program.py"
    file.write_text(text)
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(line)
    assert statement is not None
    # WHEN it is told what to write THEN that does not move it behind what comes after it
    space = {"torch": torch, "opt_d": OPTIMIZER}
    told = told_by(Place(source, statement, Failure(code, "", ""), "device", space, seen={"fake", "d_loss"}))
    assert wanted in told, told
    assert ("`opt_d` is made with `capturable=True`" in told) == (wanted in (THREE, ANSWERS))


def test_one_of_two_branches_that_train_gets_no_graph_for_each_of_its_answers(tmp_path: Path) -> None:
    # GIVEN a step with two branches of the host's that train: there are four ways through it
    file = tmp_path / "program.py"
    file.write_text(
        LAST.replace("    return fake\n", "    if state.n % 3 == 0:\n        G(z).sum().backward()\n    return fake\n")
    )
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(7)
    assert statement is not None
    # WHEN / THEN
    place = Place(source, statement, Failure("branch-frozen", "", ""), "device", {"torch": torch}, seen={"fake"})
    assert "each of the two answers" not in decided(place)


CARRIED = """
def f(x):
    global alpha, best
    loss = (net(x) - alpha * x).mean()
    alpha = CARRIED
    best = loss.item()
    return loss.detach()
"""


@pytest.mark.parametrize(
    ("carried", "line", "wanted"),
    [
        (
            "loss.exp().item()",
            5,
            (
                "`alpha = torch.tensor(0.2, dtype=torch.float64, device=device)` where it begins, here "
                "`alpha.fill_(loss.exp().detach().squeeze())`"
            ),
        ),
        ("table[int(loss.item())]", 5, LEFT),
        ("loss.exp().item()", 6, BEHIND),  # nothing is computed with it
    ],
)
def test_a_number_that_the_device_goes_on_with_is_not_to_be_moved_by_hand(
    carried: str, line: int, wanted: str, tmp_path: Path
) -> None:
    # GIVEN a number that is read of the device, and that the next step computes with
    file = tmp_path / "program.py"
    file.write_text(CARRIED.replace("CARRIED", carried))
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(line)
    assert statement is not None
    place = Place(source, statement, Failure("sync-item", "", ""), "device", {"alpha": 0.2, "best": 0.0}, entry="f")
    # WHEN it is told what to do THEN it stays on the device, or is left; moved alone the graph would keep today's
    told = moved_by_what_is_read(place) or behind(place)
    assert told.endswith(wanted), told
    assert (BEHIND in told) == (wanted == BEHIND)


RATED = """
class Own(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])
def f(x):
    for g in opt.param_groups:
        g["lr"] = base * min(1.0, it / 8)
    net(x).sum().backward()
    opt.step()
"""


def test_one_rate_is_told_in_the_same_words_wherever_it_is_found(tmp_path: Path) -> None:
    # GIVEN a rate that a step sets and an optimizer of the file's own reads, found in three lines
    file = tmp_path / "program.py"
    file.write_text(RATED)
    source = Source.of(str(file))
    assert source is not None
    told = set()
    # WHEN it is told what to do there
    for line, code in ((6, "scalar-frozen"), (9, "host-counter"), (11, "learning-rate-frozen")):
        statement = source.statement(line)
        assert statement is not None
        told.add(hint(Place(source, statement, Failure(code, "", ""), "device", {"torch": torch})).partition("be")[2])
    # THEN it is the same everywhere, and makes the tensors behind what makes the optimizer
    (words,) = told
    assert 'once, where `opt` has been made, `for group in opt.param_groups: group["lr"] = ' in words


BOUNDED = {
    "F.one_hot(y)": "F.one_hot(y, num_classes=n)",
    "torch.bincount(y)": (
        "torch.zeros(n, dtype=torch.long, device=y.device)"
        ".scatter_add_(0, y.long(), torch.ones_like(y, dtype=torch.long))"
    ),
    "torch.histc(x, bins=4)": (
        "torch.zeros(4, dtype=x.dtype, device=x.device)"
        ".scatter_add_(0, ((x - low) * 4 / (high - low)).long().clamp(max=3).flatten(), "
        "torch.ones_like(x).flatten())"
    ),
}


@pytest.mark.parametrize("call", BOUNDED)
def test_what_looks_for_its_own_bounds_is_told_how_it_is_given_them(fixed: Fixed, call: str) -> None:
    # GIVEN an operation whose size, or limits, the device finds WHEN a fix is asked for
    given = "args = (torch.randn(5, device=device), torch.tensor([0, 2, 1, 3, 2], device=device))\n"
    fix = fixed(f"{given}def f(x, y):\n    x = x * 2\n    return x.sum() + {call}.sum()\n")
    # THEN what to write is told, and gives the same numbers on the CPU
    assert f"`{BOUNDED[call]}`" in str(fix), fix
    x, y = torch.randn(50), torch.tensor([0, 2, 1, 3, 2])
    names = {"x": x, "y": y, "F": torch.nn.functional, "torch": torch, "n": 4, "low": x.min(), "high": x.max()}
    torch.testing.assert_close(eval(BOUNDED[call], names), eval(call, names))


FREEZES = {
    "a name": "    frozen = n < 3\n    for p in net.parameters():\n        p.requires_grad = not frozen\n",
    "a branch by a name": "    frozen = n < 3\n    if frozen:\n        net.requires_grad_(False)\n",
    "a branch": "    if n < 3:\n        net.weight.grad = None\n",
    "an early end": "    if n < 3:\n        return\n    net.weight.grad = None\n",
}


@pytest.mark.parametrize("lines", FREEZES.values(), ids=FREEZES.keys())
def test_a_count_that_decides_which_parameters_get_gradients_is_no_tensor(lines: str) -> None:
    # GIVEN a count that moves behind the launch, and by which a step freezes parameters
    step = ["def f(x):\n", *lines.splitlines(keepends=True)]
    behind = ["def after_f():\n", "    global n\n", "    n += 1\n"]
    # WHEN it is told what to do about it THEN each answer has a graph
    text = kept_outside("n", [*step, *behind], [*step, "    n += 1\n"], {"after_f"}, {"f"}, "device")
    assert "ask `n < 3` before each launch, and give it to the step as an argument" in text, text
    assert "in a tensor" not in text


@pytest.mark.parametrize(
    ("step", "told"), [("        opt.step()", True), ("    opt.step()", False)], ids=["round", "all"]
)
def test_only_a_round_that_steps_itself_is_left_out_with_its_step(step: str, told: bool, tmp_path: Path) -> None:
    # GIVEN a loop that leaves out rounds with a bad loss, whose step is in the round, or behind them all
    lines = ["def f(xs):", "    for x in xs:", "        loss = net(x).sum()", "        if torch.isnan(loss):"]
    file = tmp_path / "program.py"
    file.write_text("\n".join([*lines, "            continue", "        loss.backward()", f"{step}\n"]))
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(4)
    assert statement is not None
    space = {"torch": torch, "opt": torch.optim.Adam([torch.zeros(2, requires_grad=True)])}
    # WHEN it is told what to write THEN no step of the others is left out with one of them
    place = Place(source, statement, Failure("data-dependent-branch", "", ""), "device", space)
    assert ("opt.found_inf" in bad_loss(place)) is told


def test_a_call_that_is_left_out_of_several_whose_gradients_add_up_is_asked_between_passes(tmp_path: Path) -> None:
    # GIVEN a micro-batch that is left early for its loss, and a step after every second
    lines = ["def f(x):", "    loss = net(x).sum()", "    if torch.isnan(loss):", "        return loss"]
    lines += ["    loss.backward()", "    seen.n += 1", "    if seen.n % 2 == 0:", "        opt.step()", ""]
    file = tmp_path / "program.py"
    file.write_text("\n".join(lines))
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(3)
    assert statement is not None
    net = torch.nn.Linear(2, 1)
    space = {"torch": torch, "net": net, "opt": torch.optim.Adam(net.parameters())}
    # WHEN it is told what to write THEN nothing says that a step by itself leaves it out: the count would move
    told = bad_loss(Place(source, statement, Failure("data-dependent-branch", "", ""), "device", space))
    assert told.startswith(
        "leave it as it is, with all lines behind it, and graph the passes alone: "
        '`net = torch.compile(net, backend="paramgraph")`; the host asks between them.'
    )


AVERAGED = """
def f(x):
    loss = net(x).mean()
    loss.backward()
    if norm.item() < 5.0:
        opt.step()
    LATER
"""
READS_THEM = (
    "a launch cannot leave out line 6, and line 7 reads what they write behind that: make three functions, each with a "
    "graph of its own, of what comes before line 5, of line 6, and of what comes from line 7 on; launch the second or "
    "not between the others, by `norm.item() < 5.0`"
)
BESIDE = "make a function of them, with a graph of its own, and call it or not behind this launch"


@pytest.mark.parametrize(
    ("later", "wanted"),
    [
        ("for p, q in zip(ema.parameters(), net.parameters()): p.lerp_(q, 0.1)", READS_THEM),
        ("return net(x).detach()", READS_THEM),
        ("return loss.detach()", BESIDE),
    ],
)
def test_a_step_that_is_left_out_comes_between_where_its_weights_are_read_behind_it(
    later: str, wanted: str, tmp_path: Path
) -> None:
    # GIVEN a step that the host leaves out at times, ahead of lines that read its weights, or read none
    file = tmp_path / "program.py"
    file.write_text(AVERAGED.replace("LATER", later))
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(5)
    assert statement is not None
    space = {"torch": torch, "net": torch.nn.Linear(2, 2), "ema": torch.nn.Linear(2, 2)}
    # WHEN it is told THEN it is called behind the launch only where nothing needs it there
    told = decides(Place(source, statement, Failure("sync-item", "", ""), "device", space, seen={"loss"}))
    assert wanted in told
    assert not told.endswith("goes back through")
