"""Fixes of what published training code has: minibatches of shuffled orders, scalers' steps, buffers of the host."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, Program, lines_of
from tests.programs.running import captured, differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
MINIBATCHES = """
from types import SimpleNamespace
options = SimpleNamespace(target_kl=None, quick=False)
critic = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(critic.parameters(), lr=1e-2)
rows = []
args = (torch.randn(8, 4, device=device), torch.randn(8, device=device))
def f(states, returns):
    order = np.arange(8)
    for epoch in range(2):
        np.random.shuffle(order)
        for start in range(0, 8, 4):
            picked = order[start:start + 4]
            loss = (critic(states[picked]).view(-1) - returns[picked]).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        {option}
            break
    {rest}
"""


@pytest.mark.parametrize(
    ("option", "whole"),
    [
        ("if options.target_kl is not None and loss > options.target_kl:", True),
        ("if options.quick:", True),
        ("if options.quick and epoch:", True),
        ("if options.target_kl is None and epoch == 5:", False),
        ("if loss > 1e9:", False),
    ],
)
def test_a_loop_that_an_option_alone_might_end_is_foreseen(option: str, whole: bool, fixed: Fixed) -> None:
    # GIVEN rounds that draw an order, and a way out of them WHEN rewritten
    found = fixed(MINIBATCHES.format(option=option, rest="return loss"))
    # THEN the orders come before the launch where the way is shut
    assert ("picked = next(given)" in lines_of(found)) is whole
    assert bool(found.complete) >= whole


@pytest.mark.parametrize(
    "rest",
    [
        "rows.append(float(np.var(returns.cpu().numpy())))\n    rows.append(loss.item())",
        "spread = np.var(returns.cpu().numpy())\n    rows.append(float(spread)); rows.append(loss.item())",
    ],
)
def test_what_is_foreseen_and_what_is_behind_come_together(rest: str, fixed: Fixed) -> None:
    # GIVEN orders that are drawn round by round, and numbers for the host at the end WHEN rewritten
    found = fixed(MINIBATCHES.format(option="if options.quick:", rest=rest))
    # THEN the ones come before the launch, the others behind it
    assert found.complete, found
    assert "picked = next(given)" in lines_of(found)
    assert any(line.startswith("def after_f(") for line in lines_of(found))


def test_a_step_through_a_scaler_is_that_of_its_optimizer(program: Program) -> None:
    # GIVEN an optimizer that a method makes, and a scaler that is switched off
    text = (
        "class Net(nn.Linear):\n    def optimizers(self, rate, **options):\n"
        "        optimizer = torch.optim.AdamW(self.parameters(), lr=rate, **options)\n        return optimizer\n"
        "net = Net(4, 1).to(device)\noptimizer = net.optimizers(1e-2)\n"
        'scaler = torch.amp.GradScaler("cuda", enabled=False)\nargs = (torch.randn(4, 4, device=device),)\n'
        "def f(x):\n    loss = net(x).square().mean()\n    scaler.scale(loss).backward()\n"
        "    scaler.unscale_(optimizer)\n    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
        "    scaler.step(optimizer)\n    scaler.update()\n    optimizer.zero_grad(set_to_none=True)\n"
        "    return loss.detach()\n"
    )
    truth, names = eager(program(text), "f"), program(text)
    # WHEN diagnosed
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN it is made for capture where it is made, and all of the step is in the graph
    assert "optimizer = torch.optim.AdamW(self.parameters(), lr=rate, **options, capturable=True)" in str(found)
    assert found.fix is not None
    assert found.fix.complete, found
    assert "after_f" not in found.fix.diff
    with found.fix.applied():
        assert not differences(truth, captured(names, "f", found.fix.around), set())


BUFFER = """
class Buffer:
    def __init__(self):
        self.states = np.random.randn(50, 4).astype(np.float32)
    def sample(self, n):
        picked = np.random.randint(0, 50, size=n)
        return {made}
    def to_torch(self, array):
        return torch.tensor(array, device=device)
net = nn.Linear(4, 1).to(device)
buffer, steps, args = Buffer(), 0, ()
def f():
    global steps
    {body}
"""
SAMPLED = "batch = buffer.sample(8)\n    return net(batch).sum().detach()"


def test_what_a_buffer_of_the_host_gives_comes_from_before_the_launch(fixed: Fixed) -> None:
    # GIVEN a buffer whose methods make tensors of arrays WHEN rewritten
    found = fixed(BUFFER.format(made="self.to_torch(self.states[picked])", body=SAMPLED))
    # THEN it is not taken for a list of tensors, and where it is not moved the call is named that has to be
    assert "torch.stack" not in str(found)
    assert found.complete or "all that `buffer.sample(8)` does, at line" in str(found)
    assert found.complete or "before each launch, and give `f` what comes of it, as arguments" in str(found)


def test_an_array_s_numbers_are_not_drawn_on_the_device_by_numpy(program: Program) -> None:
    # GIVEN a draw of numpy's that picks what is copied WHEN diagnosed
    names = program(BUFFER.format(made="torch.as_tensor(self.states[picked]).to(device)", body=SAMPLED))
    text = str(pgk.diagnose(names["f"], fix=True))
    # THEN nothing asks numpy for a device
    assert "size=n, device" not in text
    assert "copy-to-gpu" in text


def test_a_step_of_which_nothing_stays_is_not_rewritten(program: Program) -> None:
    # GIVEN a step of which the host decides all
    names = program(
        BUFFER.format(
            made="self.to_torch(self.states[picked])",
            body="if steps % 2 == 0:\n        print(net(buffer.sample(8)).sum().item())\n    steps += 1",
        )
    )
    # WHEN diagnosed THEN no rewriting is tried that leaves no lines
    text = str(pgk.diagnose(names["f"], fix=True))
    assert "is no Python" not in text
    assert "branch-frozen" in text


PINNED = """
class Loader:
    def __init__(self):
        self.at, self.table = 0, np.random.RandomState(0).randn(50, 8, 4).astype(np.float32)
    def batch(self):
        self.at = (self.at + 1) % 50
        return torch.from_numpy(self.table[self.at]).pin_memory().to(device, non_blocking=True)
net, loader, args = nn.Linear(4, 1).to(device), Loader(), ()
kept = torch.zeros(8, 4).pin_memory()
def f():
    x = {x}
    return net(x).sum().detach()
"""


@pytest.mark.parametrize(
    ("x", "found"),
    [
        ("loader.batch()", True),
        ("torch.rand(8, 4).pin_memory().to(device, non_blocking=True)", True),
        ("torch.zeros(8, 4, device=device).copy_(torch.ones(8, 4).pin_memory(), non_blocking=True)", True),
        ("kept.to(device, non_blocking=True)", False),  # it stays, and whoever writes it in between is read
    ],
)
def test_pinned_memory_that_a_step_makes_is_gone_by_a_replay(
    x: str, found: bool, fixed: Fixed, program: Program
) -> None:
    # GIVEN a copy from pinned memory, which CUDA allows in a capture WHEN diagnosed
    names = program(PINNED.format(x=x))
    codes = [each.code for each in pgk.diagnose(names["f"]).failures]
    # THEN it is told where the memory is made anew in each call, and nothing that is wrong is called whole
    assert ("copy-to-gpu" in codes) is found
    if found:
        fixed(PINNED.format(x=x))


def test_lines_are_defined_above_what_reads_them(fixed: Fixed) -> None:
    # GIVEN a table of the host's that a helper picks from WHEN rewritten in two rounds
    found = fixed(
        "table = torch.linspace(0, 1, 10)\ndef extract(a, t):\n    return a[t.cpu()].to(t.device)\n"
        "net = nn.Linear(4, 4).to(device)\nargs, losses = (torch.randn(4, 4, device=device),), []\n"
        "def f(x):\n    t = torch.randint(0, 10, (4,)).to(device)\n    loss = (net(x) * extract(table, t)).mean()\n"
        "    losses.append(loss.item())\n    return loss.detach()\n"
    )
    # THEN no line of the file stands above one that it needs
    assert found.complete, found
    added = lines_of(found)
    made = [line.partition(" = ")[0] for line in added if "_in = " in line]
    assert not [line for line in added if "_on_device = " in line and any(name in line for name in made)]


def test_a_function_of_the_user_s_keeps_its_name(fixed: Fixed) -> None:
    # GIVEN a program that has a function of the name that ours would have WHEN rewritten
    found = fixed(
        "net, rows = nn.Linear(4, 1).to(device), []\nargs = (torch.randn(4, 4, device=device),)\n"
        "def f(x):\n    y = net(x).sum()\n    rows.append(y.item())\n    return y.detach()\n"
        'def after_f(kind):\n    print("mine", kind)\n'
    )
    # THEN ours has another one
    assert found.complete, found
    assert "def after_f_2(y):  # after each launch" in lines_of(found)
    assert "after_f_2(" in found.usage


def test_what_tells_by_a_count_goes_where_it_is_counted(fixed: Fixed) -> None:
    # GIVEN a branch that tells every hundredth step, which the calls that are watched do not reach
    found = fixed(
        "net, rows, steps = nn.Linear(4, 1).to(device), [], 7\nargs = (torch.randn(4, 4, device=device),)\n"
        "class Writer:\n    def add_scalar(self, name, value, step):\n        rows.append((name, value, step))\n"
        "writer = Writer()\n"
        "def f(x):\n    global steps\n    y = net(x).sum()\n    if steps % 100 == 0:\n"
        '        writer.add_scalar("y", y.item(), steps)\n    steps += 1\n    return y.detach()\n'
    )
    # WHEN rewritten THEN it is behind the launch, beside the count
    assert found.complete, found
    behind = found.diff.partition("# after each launch")[2]
    assert "if steps % 100 == 0:" in behind


def test_a_helper_that_trains_is_not_taken_for_the_host_s(program: Program) -> None:
    # GIVEN a helper that makes a tensor of numbers, and takes a step
    names = program(
        "net, rewards = nn.Linear(4, 1).to(device), [1.0, 2.0]\nopt = torch.optim.SGD(net.parameters(), lr=1e-2)\n"
        "args = (torch.randn(2, 4, device=device),)\n"
        "def finish(x):\n    total, returns = 0.0, []\n    for r in rewards:\n        total = r + 0.9 * total\n"
        "        returns.append(total)\n    returns = torch.tensor(returns).to(device)\n"
        "    loss = (net(x).view(-1) * returns).sum()\n    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
        "def f(x):\n    rewards[0] += 1.0\n    done = finish(x)\n    return net(x).detach()\n"
    )
    # WHEN diagnosed THEN nobody is told to call it before the launch
    assert "all that `finish(x)` does" not in str(pgk.diagnose(names["f"], *names["args"], fix=True))


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("h = lin(x)", "`n = x.shape[0]`"),
        ("h = torch.relu(lin(x))", "`n = x.shape[0]`"),
        ("h = torch.zeros(n, 3, device=x.device)", "decides a size"),
    ],
)
def test_a_size_is_not_told_to_come_of_what_has_it(made: str, told: str, program: Program) -> None:
    # GIVEN a size that is read of an index, and tensors that are made of it, or have it anyway
    names = program(
        "lin = nn.Linear(3, 4).to(device)\n"
        "args = (torch.randn(6, 3, device=device), torch.tensor([[0, 1, 5], [5, 2, 5]], device=device))\n"
        f"def f(x, edges):\n    n = int(edges.max()) + 1\n    src, dst = edges\n    {made}\n"
        "    total = torch.zeros(n, device=x.device)\n    total = total.index_add(0, dst, h[src].sum(-1))\n"
        "    return (h[src] / (total[dst].unsqueeze(-1) + 2)).detach()\n"
    )
    # WHEN diagnosed THEN it comes of what is there before, or is given; or what comes before is a graph
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    text = str(fix)
    assert fix is not None
    assert told in text or fix.alone
    assert "total.shape" not in text
    assert "h.shape" not in text
