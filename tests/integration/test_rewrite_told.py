"""What is said of a place that no rule rewrites: how a tensor is made on the device, what belongs before a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

PLACES = """
class Schedule:
    def __init__(self):
        self.alphas = np.cumprod(np.linspace(0.9, 0.99, 10))
schedule, counted = Schedule(), {0: 0, 1: 0, 2: 0, 3: 0}
args = (torch.randn(4, 6, device=device), torch.arange(4, device=device))
def f(x, items):
    for i in items.tolist():
        counted[i] += 1
    p = torch.tensor([counted[i] / 4 for i in items.tolist()], device=device)
    mask = torch.ones(4, 6)
    mask[:, :2] = 0
    mask[x.cpu() < -9] = 0
    mask = torch.flip(mask.to(x.device), (1,))
    sums = torch.tensor([(items == e).sum() for e in range(3)], device=device)
    for i in range(2):
        x = x * torch.tensor(schedule.alphas[i] if i else 1.0, dtype=torch.float32, device=x.device)
        if (x > 9).all():
            print("large")
    return x * mask * p[:, None] + sums.sum() + x[torch.arange(4), items][:, None]
"""
# A line, and what is said of it where no rule rewrites it.
TOLD = {
    "for i in items.tolist():": "the loop belongs before each launch",
    "p = torch.tensor([counted": "before each launch `p_in.copy_(torch.tensor([counted[i] / 4 for i in items.tolist()]",
    "mask[x.cpu() < -9] = 0": "the step reads `mask`: once line",
    "mask = torch.flip(": "make it on the device, `mask = torch.ones(4, 6, device=x.device)`, what writes it",
    "sums = torch.tensor(": "`torch.stack([(items == e).sum() for e in range(3)])` puts them together where they are",
    "x = x * torch.tensor(": "`torch.full((), schedule.alphas[i] if i else 1.0, dtype=torch.float32, device=x.device)`",
    "if (x > 9).all():": "it only tells what happened: keep `(x > 9).all()` without asking for it",
    "return x * mask": "make the index where `x` is: `torch.arange(4, device=x.device)`",
}
BUFFER = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.offsets = np.arange(4) * 5
        self.embed = nn.Embedding(20, 3)
    def forward(self, x):
        x = x + torch.tensor(self.offsets, dtype=torch.long, device=x.device)
        return self.embed(x)
net, args = Net().to(device), (torch.randint(0, 5, (6, 4), device=device),)
"""
OUTSIDE = {
    "a temperature that the next step reads": (
        """
log_alpha, alpha = torch.zeros(1, device=device), 1.0
args = (torch.randn(4, device=device),)
def f(x):
    global alpha
    out = x * alpha
    log_alpha.add_(out.mean())
    alpha = log_alpha.exp().item()
    return out
""",
        "`alpha = torch.tensor(1.0, device=device)` where it begins, `alpha.copy_(log_alpha.exp().detach()",
    ),
    "a ring that is written from a counter on": (
        """
bank, at, log = torch.zeros(8, 3, device=device), 0, []
args = (torch.randn(2, 3, device=device),)
def f(x):
    global at
    bank[at : at + 2] = x
    at = (at + 2) % 8
    log.append(x.sum().item())
    return bank.sum(0)
""",
        "here `bank.index_copy_(0, at + torch.arange(x.shape[0], device=device), x)`",
    ),
    "a weight of the loss that what was read moves": (
        """
weight, log = 1.0, []
args = (torch.randn(4, device=device),)
def f(x):
    global weight
    one, other = x.square().mean(), (weight * x).square().mean()
    log.append(one.item())
    if len(log) % 2 == 0:
        weight = 0.9 * weight + 0.1 * (one.item() / (other.item() + 1e-8))
    return one + other
""",
        "once `weight_in = torch.tensor(1.0, device=device)`, before each launch `weight_in.fill_(weight)`, here `weig",
    ),
}
INSIDE = {
    "a limit that numpy computes, and that tensors are compared with": (
        """
class Net(nn.Module):
    def forward(self, x):
        error = x.square().mean(1)
        limit = np.quantile(error.cpu().numpy(), 0.9)
        flagged = error > limit
        return torch.where(flagged, error, torch.zeros_like(error)), error
net, args = Net().to(device), (torch.randn(8, 3, device=device),)
def f(x):
    return net(x)
""",
        "goes on with `limit`: compute it of tensors on the device, as `torch.quantile` does",
    ),
    "positions of numpy in a method": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 3)
    def features(self, x):
        positions = np.tile(np.arange(4), [x.shape[0], 1])
        return x + self.embed(torch.LongTensor(positions).to(x.device))
net, args = Net().to(device), (torch.randn(2, 4, 3, device=device),)
def f(x):
    return net.features(x).sum()
""",
        "sizes alone make `torch.LongTensor(positions)`, so it is the same in each call",
    ),
    "a loss that answers otherwise where nothing was observed": (
        """
class Loss:
    def __call__(self, x, seen):
        if seen.sum().item() == 0:
            return x.sum() * 0.0
        kept = torch.where(seen, x, 0)
        total = 0
        for power in (1, 2):
            total = total + kept.pow(power).sum()
        return total / seen.sum()
loss, args = Loss(), (torch.randn(4, device=device), torch.rand(4, device=device) > 0.5)
def f(x, seen):
    return loss(x, seen) * 2
""",
        "a launch runs both: `return torch.where(seen.sum() == 0, x.sum() * 0.0, total / seen.sum())`",
    ),
    "a rate that a method of the trainer sets": (
        """
class Trainer:
    def __init__(self):
        self.net, self.steps = nn.Linear(3, 1).to(device), 0
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def adjust(self, first=0.1):
        for group in self.opt.param_groups:
            group["lr"] = first / (1 + self.steps)
    def step(self, x):
        self.adjust()
        loss = self.net(x[torch.nonzero(x[:, 0] > 0)]).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.steps += 1
trainer, args = Trainer(), (torch.randn(4, 3, device=device),)
f = trainer.step
""",
        "so take its call, `adjust`, out of the step, and write there `group['lr'].fill_(first / (1 + self.steps))`",
    ),
    "a distribution that an object keeps": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.prior = torch.distributions.Normal(torch.zeros(3).to(device), 1.0)
    def forward(self, x):
        return self.prior.log_prob(x).sum(1)
net, args = Net().to(device), (torch.randn(2, 3, device=device),)
def f(x):
    return net(x).mean()
""",
        "at line 14, `self.prior = torch.distributions.Normal(torch.zeros(3).to(device), 1.0, validate_args=False)`",
    ),
}


def test_each_place_that_is_left_to_the_user_says_what_to_write_there(tmp_path: Path) -> None:
    # GIVEN what the host makes, counts and reads in a step WHEN it is rewritten, or not
    found = rewritten(PLACES, tmp_path)
    # THEN whatever is left is told with what to write
    for line, wanted in TOLD.items():
        said = [each for each in found.instead if f" {line}" in each]
        gone = [each for each in found.diff.splitlines() if each[:1] == "-" and each[1:].strip().startswith(line)]
        put_off = line.startswith("if ") and "later.append(" in found.diff
        assert any(wanted in each for each in said) or (not said and (gone or put_off)), (line, said)


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_value_that_the_graph_would_keep_is_told_with_where_it_belongs(name: str, tmp_path: Path) -> None:
    # GIVEN a value that moves behind the launch, and that the graph reads
    text, wanted = OUTSIDE[name]
    names = run(text, tmp_path)
    # WHEN somebody asks for its story
    story = pgk.story(names["f"], *names["args"], say=None)
    # THEN that says what to write, and not to compare traces
    assert story.fix is not None
    assert story.complete or any(wanted in line for line in story.fix.instead), story.fix
    assert story.complete or "change these lines as said" in story.stopped, str(story)


def test_what_a_cell_makes_on_the_host_is_brought_in_a_tensor_that_can_be_written(tmp_path: Path) -> None:
    # GIVEN a step that draws with numpy beside a line that no rewrite knows WHEN it is told
    text = (
        "args = (torch.randn(4, device=device),)\ndef draw(x):\n"
        "    noise = torch.from_numpy(np.random.randn(4)).float().to(device)\n    return x + noise\n"
        "def f(x):\n    return draw(x) * 2\n"
    )
    fix = rewritten(text, tmp_path)
    # THEN the tensor is one that can be written as it stands
    wanted = "Once `noise_in = torch.from_numpy(np.random.randn(4)).float().to(device)`, before each launch"
    assert (
        fix.complete or fix.alone or any(wanted in line or "noise_in = torch.zeros(4" in line for line in fix.instead)
    ), fix


@pytest.mark.parametrize("name", INSIDE)
def test_what_lies_in_another_function_is_told_in_its_names(name: str, tmp_path: Path) -> None:
    # GIVEN a problem in a method that the step calls WHEN it is rewritten THEN it is told what to write, and where
    text, wanted = INSIDE[name]
    fix = rewritten(text, tmp_path)
    assert fix.complete or fix.alone or any(wanted in line for line in fix.instead), fix.instead


STOPS = {
    "an optimizer that counts on the host": (
        """
lin = nn.Linear(3, 1).to(device)
opt = torch.optim.Adagrad(lin.parameters(), lr=0.1)
args = (torch.randn(4, 3, device=device),)
def f(x):
    opt.zero_grad()
    loss = lin(x).square().mean()
    loss.backward()
    opt.step()
    print(loss.item())
    return loss
""",
        "has to be one that takes capturable=True",
    ),
    "the same, with another line that no rewrite knows": (
        """
lin = nn.Linear(3, 1).to(device)
opt = torch.optim.Adagrad(lin.parameters(), lr=0.1)
args = (torch.randn(4, 3, device=device),)
def f(x):
    opt.zero_grad()
    loss = lin(x + torch.randn(4, 3).to(x.device)).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()
""",
        "by hand  Adagrad: that tensor is the host's",
    ),
}


@pytest.mark.parametrize("name", STOPS)
def test_a_story_that_cannot_go_on_says_what_would_let_it(name: str, tmp_path: Path) -> None:
    # GIVEN a function for which a fix is known, that is no launch yet WHEN told
    text, wanted = STOPS[name]
    names = run(text, tmp_path)
    story = pgk.story(names["f"], *names["args"], say=None)
    # THEN it says what to change
    assert story.complete or wanted in str(story), str(story)


GOES_ON = {
    "work of a loop that is kept for later": """
history = []
args = (torch.randn(4, device=device),)
def f(x):
    for i in range(2):
        x = x * 2
        history.append(x.cpu())
    return x
""",
    "a state that each call carries to the next": """
net = nn.Linear(3, 3).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
state, total = (torch.zeros(2, 3, device=device), torch.zeros(2, 3, device=device)), 0.0
args = (torch.randn(2, 3, device=device),)
def detached(state):
    return tuple(each.detach() for each in state)
def f(x):
    global state, total
    opt.zero_grad()
    h, c = detached(state)
    h = torch.tanh(net(x + h))
    state = h, h * c + h
    loss = state[1].square().mean()
    loss.backward()
    opt.step()
    total += loss.item()
""",
}


@pytest.mark.parametrize("name", GOES_ON)
def test_what_only_a_graph_captured_by_hand_would_keep_is_launched(name: str, tmp_path: Path) -> None:
    # GIVEN a function that leaves tensors of each call in places of its own WHEN told
    names = run(GOES_ON[name], tmp_path)
    story = pgk.story(names["f"], *names["args"], say=None)
    # THEN launches put today's there
    assert story.complete, str(story)
    assert len(story.traces["parameterized"].launches) >= 3


def test_an_array_of_a_module_becomes_a_buffer_that_can_be_one(tmp_path: Path) -> None:
    # GIVEN an array of numpy's that a module makes a tensor of at each step WHEN it is diagnosed
    names = run(BUFFER, tmp_path)
    fix: Any = pgk.diagnose(names["net"], *names["args"], fix=True).fix
    # THEN what is said for both lines can be written as it stands
    buffer = 'self.register_buffer("offsets", torch.as_tensor(np.arange(4) * 5, dtype=torch.long))'
    here = "x = x + self.offsets"
    if not fix.complete:
        assert f"`{buffer}`" in "".join(fix.instead)
        assert f"here `{here}`" in "".join(fix.instead)
    text = BUFFER.replace("self.offsets = np.arange(4) * 5", buffer)
    text = text.replace("x = x + torch.tensor(self.offsets, dtype=torch.long, device=x.device)", here)
    mended = run(text, tmp_path)
    assert not pgk.diagnose(mended["net"], *mended["args"])


def test_layers_that_are_dropped_by_chance_are_told_at_the_test_that_drops_them(tmp_path: Path) -> None:
    # GIVEN layers that a host's draw leaves out, and a scale that a module makes as of old WHEN it is diagnosed
    names = run(
        """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.scale = torch.sqrt(torch.FloatTensor([6]))
    def through(self, x):
        for layer in self.layers:
            if self.training and random.uniform(0, 1) < 0.3:
                continue
            x = x + layer(x).relu()
        return x
    def forward(self, x):
        return self.through(x) / self.scale.to(x.device)
net, args = Encoder().to(device), (torch.randn(2, 6, device=device),)
""",
        tmp_path,
    )
    fix: Any = pgk.diagnose(names["net"], *names["args"], fix=True).fix
    # THEN the branch is named, not its loop, with what is to be written, and the scale is on the device from then on
    left = [each.frame.text for each in fix.left if each.frame is not None]
    assert left == ["if self.training and random.uniform(0, 1) < 0.3:"]
    told = "\n".join(fix.instead)
    assert (
        "`x_before = x`, then line 20 in each round, and behind it `x = torch.where(left_out[n], x_before, x)`" in told
    )
    assert "self.scale.to(x.device)" not in "\n".join(fix.instead)


PACKED = """
rnn = nn.{network}(3, 4, batch_first=True{options}).to(device)
args = (torch.randn(3, 6, 3, device=device), torch.tensor([6, 2, 4], device=device))
def f(x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    h, _ = nn.utils.rnn.pad_packed_sequence(rnn(packed)[0], batch_first=True)
    return h
"""


# Each network once at each change; `make sweeps` has each both ways.
@pytest.mark.parametrize(
    ("network", "options"),
    [
        ("LSTM", ""),
        ("GRU", ", bidirectional=True"),
        ("RNN", ""),
        pytest.param("LSTM", ", bidirectional=True", marks=pytest.mark.sweep),
        pytest.param("GRU", "", marks=pytest.mark.sweep),
        pytest.param("RNN", ", bidirectional=True", marks=pytest.mark.sweep),
    ],
)
def test_what_is_said_of_packed_rows_gives_the_same_numbers(network: str, options: str, tmp_path: Path) -> None:
    # GIVEN a network over rows of different lengths, which reads forwards, or both ways
    names = run(PACKED.format(network=network, options=options), tmp_path)
    expected = names["f"](*names["args"]).detach().cpu()
    # WHEN told what to write
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    said = "\n".join(found.fix.instead)
    assert "goes with the packing of line" in said
    assert "belongs behind the launch" not in said
    # THEN what is said, as it is written, gives what packing gave
    names |= dict(zip(("x", "lengths"), names["args"], strict=True))
    written = [part for part in said.split("`")[1::2] if " = " in part]
    exec("\n".join(dict.fromkeys(written)), names)
    zero = next(part for part in said.split("`") if part.startswith("out * "))
    assert torch.allclose(eval(zero, names).detach().cpu(), expected, atol=1e-6)
    assert ("reads backwards" in said) == bool(options)


def test_layers_that_read_both_ways_are_not_told_to_be_padded(tmp_path: Path) -> None:
    names = run(PACKED.format(network="LSTM", options=", bidirectional=True, num_layers=2"), tmp_path)
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    assert "capture what comes behind it" in "\n".join(found.fix.instead)


RESAMPLED = """
class Filter:
    def __init__(self):
        self.particles, self.weights = torch.randn(8, 2, device=device), torch.rand(8, device=device)
        self.resampled = 0
    def resample(self, at):
        self.particles = self.particles[at]
        self.weights = torch.full((8,), 0.125, device=device)
        self.resampled += 1
    @torch.no_grad()
    def observe(self, at):
        if (self.weights**2).sum() > 2:
            self.resample(at)
        return (self.weights[:, None] * self.particles).sum(0)
pf = Filter()
f = pf.observe
args = (torch.arange(8, device=device).flip(0),)
"""


def test_a_method_that_the_device_decides_about_is_told_to_keep_what_was(tmp_path: Path) -> None:
    # GIVEN a branch on the device that calls a method, which gives tensors of the object other values
    names = run(RESAMPLED, tmp_path)
    # WHEN told THEN the method is called always, and what it gives each, in the names of the object
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    said = "\n".join(found.fix.instead)
    assert "`chosen = (self.weights**2).sum() > 2`" in said
    assert "`self.particles.copy_(torch.where(chosen, new, self.particles))`" in said
    assert "`self.resampled` counts behind the launch: return `chosen`" in said


ANSWERS = """
last, args = 0, (torch.randn(4, device=device), torch.rand(4, device=device) > 0.5)
def f(x, seen):
    {outer}
    if seen.sum().item() == 0:
        return x.sum() * 0.0
    total = 0
    for power in (1, 2):
        total = total + torch.where(seen, x, 0).pow(power).sum()
    last = total / seen.sum()
    return last
"""


@pytest.mark.parametrize(("outer", "both"), [("pass", True), ("global last", False)])
def test_both_ways_are_told_to_run_only_where_neither_changes_what_lives_on(
    outer: str, both: bool, tmp_path: Path
) -> None:
    # GIVEN a function that answers otherwise, and leaves what lives on as it is then WHEN diagnosed
    names = run(ANSWERS.format(outer=outer), tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN it is not told to do both
    assert ("a launch runs both" in str(found)) is both, found
