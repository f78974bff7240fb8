"""Fixes in the user's own words: rewritten lines as a diff, tried eagerly and captured, and nothing of it stays."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.__main__ import main
from paramgraph_kit.rewrite.proving.proof import Prover, Truth
from paramgraph_kit.rewrite.truths import truth_of
from tests.integration.rewritten import Program, changed
from tests.programs.reading import PRELUDE

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")


ONE_LINE = {
    "a value": (
        "def f(x):\n    scale = 1.0 / (x.abs().max().item() + 1e-6)\n    return x * scale\n",
        [
            "-    scale = 1.0 / (x.abs().max().item() + 1e-6)",
            "+    scale = 1.0 / (x.abs().max().detach() + 1e-6)",
        ],
    ),
    "a value that decides": (
        "def f(x):\n    top = x.max().item()\n    if top > 1:\n        x = x / top\n    return x\n",
        [
            "-    top = x.max().item()",
            "-    if top > 1:",
            "-        x = x / top",
            "+    top = x.max().detach()",
            "+    x = torch.where(top > 1, x / top, x)",
        ],
    ),
    "a copy of what is made of constants": (
        "def f(x):\n    n = len(x)\n    return x + torch.tensor([0.0] + [-1.0]).repeat(n // 2).to(x.device)\n",
        [
            "+constant_on_device = torch.tensor([0.0] + [-1.0], device=device)",
            "-    return x + torch.tensor([0.0] + [-1.0]).repeat(n // 2).to(x.device)",
            "+    return x + constant_on_device.repeat(n // 2).to(x.device)",
        ],
    ),
    "a branch": (
        "def f(x):\n    if x.sum() > 1:\n        x = x * 2  # twice\n    return x + 1\n",
        ["-    if x.sum() > 1:", "-        x = x * 2  # twice", "+    x = torch.where(x.sum() > 1, x * 2, x)  # twice"],
    ),
    "two ways out": (
        "def f(x):\n    if x.max() > 1:\n        return x\n    return -x\n",
        [
            "-    if x.max() > 1:",
            "-        return x",
            "-    return -x",
            "+    return torch.where(x.max() > 1, x, -x)",
        ],
    ),
    "an assertion": (
        'def f(x):\n    assert x.isfinite().all(), "bad"\n    return x * 2\n',
        ['-    assert x.isfinite().all(), "bad"', '+    torch._assert_async(x.isfinite().all(), "bad")'],
    ),
    "a number": (
        "def f(x):\n    k = torch.tensor(3.0, device=x.device)\n    return x * k\n",
        ["-    k = torch.tensor(3.0, device=x.device)", "+    k = torch.full((), 3.0, device=x.device)"],
    ),
    "a list of numbers": (
        "def f(x):\n    return x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)\n",
        [
            "+constant_on_device = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)",
            "-    return x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)",
            "+    return x * constant_on_device",
        ],
    ),
    "a tensor of the CPU": (
        "scale = torch.rand(4)\ndef f(x):\n    return x * scale.to(device)\n",
        ["+scale_on_device = scale.to(device)", "-    return x * scale.to(device)", "+    return x * scale_on_device"],
    ),
    "made on the CPU": (
        "def f(x):\n    return x + torch.arange(4).to(x.device)\n",
        ["-    return x + torch.arange(4).to(x.device)", "+    return x + torch.arange(4, device=x.device)"],
    ),
    "made on the CPU, and changed there": (
        "def f(x):\n    mask = torch.tril(torch.ones(4, 4)).to(x.device)\n    return x.masked_fill(mask == 0, -9.0)\n",
        [
            "-    mask = torch.tril(torch.ones(4, 4)).to(x.device)",
            "+    mask = torch.tril(torch.ones(4, 4, device=x.device))",
        ],
    ),
    "a table of the CPU": (
        "table = torch.rand(4)\ndef f(x):\n    i = x.argmax(1)\n    return x * table[i.cpu()].to(x.device)\n",
        [
            "+table_on_device = table.to(device)",
            "-    return x * table[i.cpu()].to(x.device)",
            "+    return x * table_on_device[i]",
        ],
    ),
    "a list of one index": (
        "def f(x):\n    return x - x[:, [-1]]\n",
        ["-    return x - x[:, [-1]]", "+    return x - x[:, -1:]"],
    ),
    "a list of indices": (
        "order = [3, 1, 0, 2]\ndef f(x):\n    return x[order] + 1\n",
        [
            "+order_on_device = torch.as_tensor(order, device=device)",
            "-    return x[order] + 1",
            "+    return x[order_on_device] + 1",
        ],
    ),
    "a mask that is reduced": (
        "def f(x):\n    return x[x > 0].mean()\n",
        [
            "-    return x[x > 0].mean()",
            "+    return (torch.where(x > 0, x, 0).sum(dtype=torch.float32) / (x > 0).sum()).type_as(x)",
        ],
    ),
    "a mask that is assigned": (
        "def f(x):\n    y = x.clone()\n    y[y > 0] = x.mean()\n    return y\n",
        ["-    y[y > 0] = x.mean()", "+    y.copy_(torch.where(y > 0, x.mean(), y))"],
    ),
    "linear algebra": (
        "def f(x):\n    return torch.linalg.inv(x @ x.t() + torch.eye(4, device=x.device))\n",
        [
            "-    return torch.linalg.inv(x @ x.t() + torch.eye(4, device=x.device))",
            "+    return torch.linalg.inv_ex(x @ x.t() + torch.eye(4, device=x.device)).inverse",
        ],
    ),
    "a wait": ("def f(x):\n    y = x * 2\n    cuda.synchronize()\n    return y\n", ["-    cuda.synchronize()"]),
    "a stream that is not joined": (
        (
            "side = cuda.Stream()\ndef f(x):\n    side.wait_stream(cuda.current_stream())\n"
            "    with cuda.stream(side):\n        y = x * 2\n    return y\n"
        ),
        ["+    cuda.current_stream().wait_stream(side)"],
    ),
    "streams of a module that the user calls otherwise": (
        (
            "gpu = cuda\nsides = [gpu.Stream() for _ in range(2)]\ndef f(x):\n    outs = []\n    for s in sides:\n"
            "        with gpu.stream(s):\n            outs.append(x * 2)\n    gpu.synchronize()\n"
            "    return torch.stack(outs)\n"
        ),
        [
            "+        s.wait_stream(gpu.current_stream())",
            "-    gpu.synchronize()",
            "+        gpu.current_stream().wait_stream(s)",
        ],
    ),
    "what is returned": (
        "def f(x):\n    return x.relu().cpu().numpy()\n",
        ["-    return x.relu().cpu().numpy()", "+    return x.relu()"],
    ),
    "state that is exchanged": (
        (
            "state = torch.zeros(4, 4, device=device)\n"
            "def f(x):\n    global state\n    state = 0.9 * state + x\n    return state * 2\n"
        ),
        ["-    state = 0.9 * state + x", "+    state.copy_(0.9 * state + x)"],
    ),
}


@pytest.mark.parametrize("name", ONE_LINE)
def test_a_line_is_rewritten_in_the_words_of_the_user_and_verified(name: str, program: Program) -> None:
    # GIVEN a function with one problem WHEN it is to be fixed
    text, wanted = ONE_LINE[name]
    names = program(f"args = (torch.randn(4, 4, device=device),)\n{text}")
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN its own lines are rewritten, and one graph of them gives eager's numbers
    assert found.fix is not None
    assert changed(found.fix.diff) == wanted, str(found)
    assert found.fix.complete, str(found)
    assert found.fix.instead == []
    assert "tried  replays of one graph give eager's results and state" in str(found)


def test_work_of_the_host_moves_behind_the_launch_in_the_user_s_own_lines(program: Program) -> None:
    # GIVEN a step that logs, counts and schedules
    names = program(
        "model = nn.Linear(4, 1).to(device)\n"
        "opt = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"
        "sched = torch.optim.lr_scheduler.StepLR(opt, 2)\n"
        "losses, steps = [], 0\n"
        "args = (torch.randn(4, 4, device=device),)\n"
        "def f(x):\n"
        "    global steps\n"
        "    opt.zero_grad()\n"
        "    loss = model(x).square().mean()\n"
        "    loss.backward()\n"
        "    opt.step()\n"
        "    sched.step()\n"
        "    steps += 1\n"
        "    losses.append(loss.item())  # for the plot\n"
    )
    before = {name: value.clone() for name, value in names["model"].state_dict().items()}
    code = names["f"].__code__
    # WHEN fixed
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the step keeps what a graph can hold, and what it cannot is called after each launch
    assert found.fix is not None
    assert changed(found.fix.diff) == [
        "-opt = torch.optim.AdamW(model.parameters(), lr=1e-2)",
        "+opt = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2, device=device), capturable=True)",
        "-    global steps",
        "+    return loss.detach()",
        "+",
        "+def after_f(loss):  # after each launch",
        "+    global steps",
    ]  # the lines themselves only change their place
    assert found.fix.usage == "call after_f(loss) after each launch"
    assert found.fix.complete, str(found)
    # and nothing of the trial stays: neither state, nor counters, nor code, nor options
    assert (names["steps"], names["losses"]) == (0, [])
    assert names["f"].__code__ is code
    assert names["opt"].param_groups[0]["lr"] == 1e-2
    assert not names["opt"].param_groups[0]["capturable"]
    assert "after_f" not in names
    assert all(torch.equal(before[name], value) for name, value in names["model"].state_dict().items())


def test_what_only_rounds_otherwise_is_no_change_of_the_numbers(program: Program) -> None:
    # GIVEN an attention, whose key bias has a gradient of roundings alone, of which AdamW makes full steps
    names = program(
        "model = nn.MultiheadAttention(8, 2, batch_first=True).to(device)\n"
        "opt = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"
        "args = (torch.randn(2, 4, 8, device=device),)\n"
        "def f(x):\n"
        "    opt.zero_grad()\n"
        "    loss = model(x, x, x, need_weights=False)[0].square().mean()\n"
        "    loss.backward()\n"
        "    opt.step()\n"
        "    return loss.detach()\n"
    )
    # WHEN fixed THEN a capturable optimizer is known for the same
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    assert found.fix.complete, str(found)
    # AND other numbers are still noticed
    prover = Prover(names["f"], names["args"], {})
    truth = Truth(prover)
    names["opt"].param_groups[0]["lr"] = 0.0101
    assert any("a tensor that it writes" in each for each in truth.wrong(prover.from_now().eager()))


def test_an_optimizers_own_form_for_a_capture_may_round_otherwise_also_where_results_show_it(program: Program) -> None:
    # GIVEN a bias that the loss does not depend on, whose gradient is roundings alone, and that the step returns
    names = program(
        "net, b = nn.Linear(6, 4).to(device), nn.Parameter(torch.tensor(-5.0, device=device))\n"
        "opt = torch.optim.Adam([*net.parameters(), b], lr=1e-2)\n"
        "args = (torch.randn(4, 6, device=device), torch.arange(4, device=device))\n"
        "def f(x, y):\n"
        "    z = F.normalize(net(x), dim=1)\n"
        "    logits = z @ z.t() * 10 + b\n"
        "    loss = F.cross_entropy(logits, y)\n"
        "    opt.zero_grad()\n"
        "    loss.backward()\n"
        "    opt.step()\n"
        "    return logits.mean().item()\n"
    )
    # WHEN fixed THEN it is held against the function as it is with ``capturable=True``, and that is said
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    assert found.fix.complete, str(found)
    assert "with the optimizer's own form for a capture" in str(found)
    # AND other numbers are still noticed, also where another function has taken its place by then
    prover = Prover(names["f"], names["args"], {})
    truth = truth_of(prover)
    names["opt"].param_groups[0]["lr"] = 0.0101
    assert truth.wrong(prover.from_now().eager())


def test_options_of_an_optimizer_in_another_are_no_state_of_the_users(program: Program) -> None:
    # GIVEN an optimizer of the user's around torch's, whose groups are its own
    names = program(
        "class Slow(torch.optim.Optimizer):\n"
        "    def __init__(self, params, base):\n"
        "        super().__init__(params, {})\n"
        "        self.base = base(self.param_groups, lr=0.1)\n"
        "        self.param_groups = self.base.param_groups\n"
        "    def step(self):\n"
        "        self.base.step()\n"
        "net = nn.Linear(4, 2).to(device)\n"
        "opt = Slow(net.parameters(), torch.optim.SGD)\n"
        "args = (torch.randn(4, 4, device=device),)\n"
        "def f(x):\n"
        "    opt.zero_grad()\n"
        "    net(x).square().mean().backward()\n"
        "    opt.step()\n"
    )
    prover = Prover(names["f"], names["args"], {})
    truth = Truth(prover)
    # WHEN torch's is told to step by its fused kernels THEN nothing that counts is another one
    names["opt"].param_groups[0].update(fused=True, foreach=False)
    assert not truth.wrong(prover.from_now().eager())


def test_what_changes_the_numbers_is_taken_back_and_said(program: Program) -> None:
    # GIVEN a mask assignment whose values are as many as the mask has places, so that where() is another thing
    names = program(
        "args = (torch.randn(4, 4, device=device),)\n"
        "def f(x):\n    y = x.clone()\n    y[y > 0] = torch.ones(int((x > 0).sum()), device=device) * 3\n    return y\n"
    )
    # WHEN fixed THEN it is not rewritten, and the reason is told
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    assert not found.fix.complete
    assert any("mask-assignment" in line for line in found.fix.instead), str(found.fix)
    assert "by hand" in str(found)


def test_a_fix_that_is_not_known_says_so_and_leaves_the_lines(program: Program) -> None:
    names = program("args = (torch.randn(4, 4, device=device),)\ndef f(x):\n    return x[x > 0]\n")
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    assert (found.fix.diff, found.fix.complete) == ("", False)
    assert len(found.fix.instead) == 1
    assert "return x[x > 0]  [dynamic-shape]" in found.fix.instead[0]
    assert repr(found.fix) == "Rewriting(f: 0 new lines, 1 by hand)"


def test_a_size_that_the_host_reads_is_left_to_the_user(program: Program) -> None:
    names = program(
        "args = (torch.randint(1, 4, (4,), device=device),)\n"
        "def f(n):\n    longest = int(n.max())\n    return torch.ones(4, device=device)[:longest].softmax(0)[0] + n\n"
    )
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    assert found.fix.diff == ""  # a tensor there would be read in the next line
    assert "longest = int(n.max())  [sync-item]" in str(found.fix)


def test_applied_lends_the_rewritten_lines_and_gives_them_back(program: Program) -> None:
    names = program("args = (torch.ones(4, 4, device=device),)\ndef f(x):\n    return x * x.sum().item()\n")
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    code, graph = names["f"].__code__, pgk.cuda.CUDAGraph()
    with fix.applied(), pgk.cuda.graph(graph):
        y = names["f"](*names["args"])
    graph.replay()
    assert y[0, 0].item() == 16.0
    assert names["f"].__code__ is code


def test_sound_functions_and_failed_ones_have_nothing_to_rewrite(program: Program) -> None:
    names = program(
        "args = (torch.ones(4, device=device),)\ndef f(x):\n    return x * 2\ndef g(x):\n    return x + 1 / 0\n"
    )
    assert pgk.diagnose(names["f"], *names["args"], fix=True).fix is None
    raises = pgk.diagnose(names["g"], *names["args"], fix=True)
    assert raises.codes == ("raises",)
    assert raises.fix is not None
    assert raises.fix.instead[0].startswith("it cannot be run 6 times with other inputs: ZeroDivisionError")


def test_the_command_prints_the_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.py"
    text = f"{PRELUDE}x = torch.ones(4, device=device)\ndef step():\n    return x * x.sum().item()\n"
    file.write_text(text)
    linecache.checkcache(str(file))
    sys.modules.pop("model", None)
    assert main(["diagnose", f"{file}:step", "--fix"]) == 1
    out = capsys.readouterr().out
    assert "+    return x * x.sum().detach()" in out
    assert file.read_text() == text
    assert main(["diagnose", str(file), "--fix"]) == 1
    assert f"--fix rewrites the lines of a function: name one, {file}:FUNCTION" in capsys.readouterr().err
