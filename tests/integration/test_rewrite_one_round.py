"""A loop that no graph holds: one round of it becomes a function, and that is captured."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import TIMES, lines_of, rewritten, run, with_rounds
from tests.integration.test_journeys import applied
from tests.programs.reading import PRELUDE
from tests.programs.running import differences, eager, load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

NET = """\
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 2)).to(device)
opt = torch.optim.Adam(net.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
data = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
args = ()
"""
# what is whole, with the lines of a round and others that the diff adds
WHOLE = {
    "an epoch whose lines tell between those that train": (
        NET
        + """\
def f():
    net.train()
    total, seen = 0.0, 0
    for n, (x, y) in enumerate(data):
        x, y = x.to(device), y.to(device)
        opt.zero_grad()
        loss = F.mse_loss(net(x), y)
        total += loss.item()
        loss.backward()
        opt.step()
        seen += len(x)
        if n % 2 == 0:
            print(f"{n}: {total / seen:.3f}")
    return total / seen
""",
        ["def f_round(x, y):  # one round of a loop of f", "    return loss.detach()", "        loss = f_round(x, y)"],
    ),
    "a test under no_grad, with what it is given": (
        NET
        + """\
class Told:
    limit = 0.5
def test(options, model, loader):
    model.eval()
    right = wrong = 0
    with torch.no_grad():
        for x, y in loader:
            out = model(x.to(device))
            close = (out - y.to(device)).abs() < options.limit
            right += close.sum().item()
            wrong += (~close).sum().item()
    return right / (right + wrong)
args = (Told(), net, data)
f = test
""",
        ["@torch.no_grad()", "            right_now, wrong_now = test_round(model, options, x_there, y_there)"],
    ),
    "a state that goes from round to round, and a branch that always makes what it needs": (
        """\
rnn, head = nn.GRU(4, 5).to(device), nn.Linear(5, 2).to(device)
opt = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
data, kind, args = torch.utils.data.DataLoader(torch.randn(12, 3, 4), batch_size=3), "rnn", ()
def f():
    state, losses = torch.zeros(1, 3, 5, device=device), []
    for x in data:
        x = x.to(device)
        if kind == "rnn":
            state = state.detach()
            out, state = rnn(x, state)
        else:
            out = x
        loss = head(out).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return sum(losses)
""",
        ["    return state.detach(), loss.detach()", "        state, loss = f_round(state, x)"],
    ),
    "meters that keep what each round gives": (
        NET
        + """\
class Meter:
    def __init__(self):
        self.total, self.last = 0.0, None
    def update(self, value, n):
        self.last = value
        self.total = self.total + value * n
def train(loader, model, optimizer):
    loss_of, largest = Meter(), Meter()
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        loss = F.mse_loss(out, y)
        largest.update(out.detach().max(), len(x))
        loss_of.update(loss.item(), len(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return largest.total, loss_of.total
args = (data, net, opt)
f = train
""",
        [
            "def train_round(model, optimizer, x, y):  # one round of a loop of train",
            "    return out.detach(), loss.detach()",
        ],
    ),
    "a method of a trainer, with another step behind the launch": (
        NET
        + """\
data = torch.utils.data.DataLoader(rows, batch_size=7)  # whose last one is smaller: both add to the same gradients
class Trainer:
    def __init__(self):
        self.net, self.opt, self.scaler = net, opt, torch.amp.GradScaler(device.type)
    def fit(self, epochs):
        for _ in range(epochs):
            for x, y in data:
                x, y = x.to(device), y.to(device)
                self.opt.zero_grad()
                loss = F.mse_loss(self.net(x), y)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.opt)
                self.scaler.update()
                print(loss.item())
f, args = Trainer().fit, (2,)
""",
        ["                loss = fit_round(self, x, y)", "    self.opt.zero_grad(set_to_none=False)"],
    ),
    "gradients that are added up in rounds, of which the loss is told before it is divided": (
        NET
        + """\
data, args = torch.utils.data.DataLoader(rows, batch_size=2), (5,)
def f(every):
    total = 0.0
    opt.zero_grad()
    for n, (x, y) in enumerate(data):
        x, y = x.to(device), y.to(device)
        loss = F.mse_loss(net(x), y)
        total += loss.item()
        loss = loss / every
        loss.backward()
        if (n + 1) % every == 0 or n + 1 == len(data):
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
    return total
""",
        [
            "    loss_told = loss.detach().clone()",
            "        opt.zero_grad(set_to_none=False)",
            "        chosen_in = (n + 1) % every == 0 or n + 1 == len(data)",
            "        loss_told = f_round(every, chosen_in, x, y)",
            "        total += loss_told.item()",
        ],
    ),
    "a decay that each round has another of, whose step stays the host's": (
        NET
        + """\
def f():
    for n, (x, y) in enumerate(data):
        x, y = x.to(device), y.to(device)
        opt.param_groups[0]["weight_decay"] = 0.1 * n
        opt.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        print(loss.item())
""",
        [
            "def f_round(x, y):  # one round of a loop of f",
            "    opt.zero_grad(set_to_none=False)",
        ],
    ),
    "a rate that the loop sets, a weight from a table, and a branch that raises": (
        NET
        + """\
def set_rate(optimizer, n):
    for group in optimizer.param_groups:
        group["lr"] = 0.01 / (1 + n)
table, kind, ema = np.linspace(0.5, 0.9, 3), "mse", [p.detach().clone() for p in net.parameters()]
def f():
    for n, (x, y) in enumerate(data):
        x, y = x.to(device), y.to(device)
        set_rate(opt, n)
        out = net(x)
        if kind == "mse":
            loss = F.mse_loss(out, y)
        else:
            raise ValueError(kind)
        opt.zero_grad()
        loss.backward()
        opt.step()
        m = table[n]
        for kept, p in zip(ema, net.parameters()):
            kept.mul_(m).add_((1 - m) * p.detach())
        print(loss.item())
""",
        [
            "opt = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.01, device=device), capturable=True)",
            '        group["lr"].fill_(0.01 / (1 + n))',
            "        m_in = torch.full((), table[n], device=device)",
        ],
    ),
    "a power of the round's number, which the device would find in whole numbers": (
        NET
        + """\
def f():
    for n, (x, y) in enumerate(data):
        x, y = x.to(device), y.to(device)
        loss = F.mse_loss(net(x), y) * (1 / 2 ** n)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(loss.item())
""",
        ["        n_in = torch.full((), 1 / 2 ** n, device=device)"],
    ),
    "what the host does in the middle of a round, and what the rest builds on": (
        NET
        + """\
clip = 0.1
def freeze(model, off):
    if off:
        for p in model[0].parameters():
            p.grad.zero_()
def f(off=True):
    for x, y in data:
        x, y = x.to(device), y.to(device)
        out = net(x)
        loss = F.mse_loss(out, y)
        del out
        opt.zero_grad()
        loss.backward()
        freeze(net, off)
        opt.step()
        print(loss.item())
""",
        ["    freeze(net, off)", "    del out"],
    ),
}
OFF = (
    NET
    + """\
def train(model, amp=False):
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device.type, enabled=amp)
    losses = 0.0
    for x, y in data:
        x, y = x.to(device), y.to(device)
        with torch.autocast(device.type, enabled=amp):
            loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses += loss.item()
    return losses
f, args = train, (net,)
"""
)
# what a graph of one round would get wrong, and is left
LEFT = {
    "gradients that a round takes away by hand, of which one graph of two knows nothing": NET
    + """\
def f():
    for n, (x, y) in enumerate(data):
        x, y = x.to(device), y.to(device)
        F.mse_loss(net(x), y).backward()
        if n % 2 == 1:
            opt.step()
            for p in net.parameters():
                p.grad = None
""",
    "an attribute that something else moves so": NET
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.tau = net, 1.0
    def forward(self, x): return self.inner(x) / self.tau
    def anneal(self): self.tau *= 0.999999
whole = Net()
later = [whole.anneal]
def f():
    for x, y in data:
        x, y = x.to(device), y.to(device)
        loss = F.mse_loss(whole(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for each in later:
            each()
        print(loss.item())
""",
    "tokens that grow": """\
net, args = nn.Embedding(9, 9).to(device), (torch.zeros(1, 1, dtype=torch.long, device=device),)
@torch.no_grad()
def f(tokens):
    said = []
    for _ in range(5):
        logits = net(tokens).sum(1)
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
        said.append(tokens[0, -1].item())
    return said
""",
}


# Every third at each change; `make sweeps` takes the others.
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.sweep] * (n % 3 > 0)) for n, each in enumerate(WHOLE)]
)
def test_one_round_of_a_loop_over_what_the_host_has_becomes_a_function_and_is_whole(name: str, tmp_path: Path) -> None:
    # GIVEN a loop of which each round needs something of the host's WHEN it is rewritten
    # THEN one round is a function, the loop calls it, and it is what is captured
    with_rounds(*WHOLE[name], tmp_path)


def test_a_round_with_its_model_bound_is_launched_for_the_loop(tmp_path: Path) -> None:
    # GIVEN a loop that is given its model, and the fix of it
    text = WHOLE["meters that keep what each round gives"][0]
    truth, names = eager(run(text, tmp_path), "f"), run(text, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert "capture `partial(train_round, model, optimizer)` for the loop" in str(fix)
    # WHEN what it tells is done
    with fix.applied() as made:
        model, optimizer = names["net"], names["opt"]
        launched = pgk.parameterize(partial(made, model, optimizer), state=[model, optimizer])
        names["train_round"] = lambda _, __, x, y: launched(x, y)
        seen = eager(names, "f")
    # THEN the loop does what it did, from one graph
    assert not differences(truth, seen, TIMES)
    assert pgk.report(launched).rows[0].launches


def test_rounds_with_two_graphs_say_which_is_launched(tmp_path: Path) -> None:
    # GIVEN a loop that steps in every fifth of its rounds WHEN a fix is asked for
    fix = rewritten(
        WHOLE["gradients that are added up in rounds, of which the loss is told before it is divided"][0], tmp_path
    )
    # THEN it is told that each kind has a graph, and how the loop picks one
    assert fix.loop == ["loss_told = launched[chosen_in](x, y)"]
    assert "`chosen_in` is true in some rounds and false in others: each has a graph of its own" in str(fix)
    # AND what the user's own zero_grad() around it would take away from them
    assert "whoever else zeroes them needs `set_to_none=False`, too" in str(fix)


def test_an_optimizer_that_the_function_makes_is_bound_in_each_call_and_a_scaler_that_is_off_keeps_its_place(
    tmp_path: Path,
) -> None:
    # GIVEN a function that makes its optimizer and a scaler that does nothing WHEN it is rewritten
    names = run(OFF, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN the optimizer is made for capture, and what the scaler is asked for stands in the round, in its order
    lines = lines_of(fix)
    assert "optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, capturable=True)" in lines, fix
    assert lines.index("scaler.unscale_(optimizer)") < lines.index("scaler.step(optimizer)")
    # THEN it is told when to capture, and what a graph keeps
    assert "its graph keeps `amp`: capture it anew where that changes" in str(fix)
    assert "capture it where `train` has made what it binds, for each call anew" in str(fix)


@pytest.mark.parametrize("name", LEFT)
def test_a_round_that_is_another_one_each_time_is_left(name: str, tmp_path: Path) -> None:
    # GIVEN a loop whose rounds differ in more than the numbers of tensors WHEN a fix is asked for
    fix = rewritten(LEFT[name], tmp_path)
    # THEN no round is cut out
    assert not fix.alone, fix


def test_what_needs_gradients_is_told_to_stay_in_the_graph_of_a_round(tmp_path: Path) -> None:
    # GIVEN a loop that freezes a layer after more rounds than a trial has WHEN a fix is asked for
    text = """
count = [0]
def f():
    for x, y in data:
        x, y = x.to(device), y.to(device)
        net[0].requires_grad_(count[0] < 99)
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(loss.item())
        count[0] += 1
"""
    fix = rewritten(NET + text, tmp_path)
    # THEN it is told when the graph is another one
    assert not fix.alone or "its graph keeps what needs gradients: capture it anew where that changes" in str(fix)


AROUND = """
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
rows = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
data = torch.utils.data.DataLoader(rows, batch_size=8)
norms = []
args = (net, opt)
def loss_of(model, x, y):
    out = model(x)
    {inside}
    return F.mse_loss({out}, y)
def f(model, opt):
    total = 0.0
    for x, y in data:
        x, y = x.to(device), y.to(device)
        loss = loss_of(model, x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total
"""
IN_A_ROUND = {
    "before each launch": ("pass", "out * (1 + 0.1 * random.random())", "before_loss_of()"),
    "after each launch": ("norms.append(out.norm().item())", "out", "after_f_round()"),
    "on both sides": ("norms.append(out.norm().item())", "out + random.random()", "after_f_round()"),
}


@pytest.mark.parametrize("name", IN_A_ROUND)
def test_the_loop_calls_what_goes_around_a_launch_of_its_round(name: str, tmp_path: Path) -> None:
    # GIVEN an epoch over a loader, with something of the host's inside each round
    inside, out, call = IN_A_ROUND[name]
    text = AROUND.format(inside=inside, out=out)
    truth = eager(run(text, tmp_path), "f")
    names = run(text, tmp_path)
    # WHEN its story is told THEN it comes to its end, and the loop of the diff calls it
    story = pgk.story(names["f"], *names["args"], say=None)
    assert story.complete, str(story)
    assert story.fix is not None
    assert not story.fix.usage
    assert call in lines_of(story.fix)
    assert "   loss = launched(x, y)" in str(story)
    # AND the file with the diff, as it stands, gives the original's numbers and lists
    mended = load(applied(PRELUDE + text, story.fix.diff), tmp_path / "mended.py")
    assert not differences(truth, eager(mended, "f"), TIMES)
