"""Fixes of inference code as it is published: samplers, decoders and solvers, in files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

FILLED = "x[:, torch.stack([torch.full((), number, dtype=torch.long, device=x.device) for number in ids])]"
WHOLE = {
    "a chain of comparisons": (
        """
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device), torch.linspace(3, 0.1, 4, device=device))
@torch.no_grad()
def f(x, sigmas):
    for i in range(3):
        gamma = 0.3 if 0.5 <= sigmas[i] <= 2.5 else 0.0
        x = x + net(x) * sigmas[i] * (gamma + 1)
    return x
""",
        ["gamma = torch.where((0.5 <= sigmas[i]) & (sigmas[i] <= 2.5), 0.3, 0.0)"],
    ),
    "all of a tensor, asked of Python": (
        """
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)
@torch.no_grad()
def f(x):
    y = net(x)
    if all(y[:, 0] > 0):
        y = y * 2
    return y
""",
        ["y = torch.where((y[:, 0] > 0).all(), y * 2, y)"],
    ),
    "a sampler whose last step is another one": (
        """
net = nn.Linear(4, 4).to(device)
def denoise(x, sigma):
    return net(x) / (1 + sigma)
def sample(model, x, sigmas):
    t_of, old = lambda sigma: sigma.log().neg(), None
    for i in range(len(sigmas) - 1):
        new = model(x, sigmas[i])
        d = (x - new) / sigmas[i]
        if sigmas[i + 1] == 0:
            x = x + d * (sigmas[i + 1] - sigmas[i])
        else:
            mid = sigmas[i].log().lerp(sigmas[i + 1].log(), 0.5).exp()
            ahead = x + d * (mid - sigmas[i])
            again = model(ahead, mid)
            x = x + (ahead - again) / mid * (sigmas[i + 1] - sigmas[i])
        if old is None or sigmas[i + 1] == 0:
            x = x + new * 0.1
        else:
            x = x + (new - old) * t_of(sigmas[i]).tanh()
        old = new
    return x
args = (torch.randn(2, 4, device=device), torch.tensor([3.0, 1.0, 0.4, 0.0], device=device))
@torch.no_grad()
def f(x, sigmas):
    return sample(denoise, x, sigmas)
""",
        ["chosen = sigmas[i + 1] == 0", "again = model(ahead, mid)", "if old is None:"],
    ),
    "distributions of one's own": (
        """
class Choice(torch.distributions.Categorical):
    def chosen(self):
        return super().sample().unsqueeze(-1)
    def told(self, action):
        return super().log_prob(action.squeeze(-1)).unsqueeze(-1)
net = nn.Linear(4, 3).to(device)
args = (torch.randn(5, 4, device=device),)
def policy(x):
    return Choice(logits=net(x))
@torch.no_grad()
def f(x):
    choice = policy(x)
    action = choice.chosen()
    return action, choice.told(action)
""",
        ["return Choice(logits=net(x), validate_args=False)"],
    ),
    "lists of numbers as an index": (
        """
class Names:
    end = 3
    def ids(self):
        return [1, 2]
class Suppress:
    def __init__(self, ids):
        self.banned = list(ids)
        self.names = Names()
    def apply(self, x):
        ids = self.banned
        x[:, ids] = -np.inf
        x[:, self.names.ids() + [self.names.end]] = 0.5
net = nn.Linear(4, 8).to(device)
suppress = Suppress((0, 5))
args = (torch.randn(5, 4, device=device),)
@torch.no_grad()
def f(x):
    logits = net(x)
    suppress.apply(logits)
    return logits.argmax(-1), logits
""",
        [f"{FILLED} = torch.full((), -np.inf, dtype=x.dtype, device=x.device)"],
    ),
    "masks that torch's transformers ask": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Transformer(8, 2, 1, 1, 16, 0.0)
    def encode(self, x, mask):
        return self.net.encoder(x, mask)
    def decode(self, y, memory, mask):
        return self.net.decoder(y, memory, mask)
model = Model().to(device).eval()
mask = torch.zeros(4, 4, device=device).masked_fill(torch.rand(4, 4, device=device) > 0.7, -1e9)
args = (torch.randn(4, 1, 8, device=device), torch.randn(4, 1, 8, device=device))
@torch.no_grad()
def f(x, y):
    return model.decode(y, model.encode(x, mask), mask)
""",
        [
            "return self.net.encoder(x, mask, is_causal=False)",
            "return self.net.decoder(y, memory, mask, tgt_is_causal=False)",
        ],
    ),
    "an actor that is given an array and returns one": (
        """
class Policy:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2), nn.Tanh()).to(device)
    def act(self, state):
        state = torch.FloatTensor(state.reshape(1, -1)).to(device)
        return self.actor(state).cpu().data.numpy().flatten()
policy = Policy()
args = (np.random.randn(3),)
f = policy.act
""",
        ["return self.actor(state).detach().flatten()"],
    ),
    "what no gradient goes through, read as it is computed": (
        """
net = nn.Sequential(*[nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU()) for _ in range(4)]).to(device)
args = (np.random.randn(2, 6, 6).astype("float32"),)
def f(image):
    net.eval()
    x = torch.from_numpy(image).unsqueeze(0).to(device=device, dtype=torch.float32)
    with torch.no_grad():
        output = net(x).cpu()
        output = F.interpolate(output, (8, 8), mode="bilinear")
        mask = output.argmax(dim=1)
    return mask[0].long().squeeze().numpy()
""",
        ["output_out = net(x)", "output = output_out.cpu()"],
    ),
    "a number of the host's beside a question of the device's": (
        """
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)
def exists(value):
    return value is not None
def sample(x, eta=0.5):
    old = None
    for _ in range(3):
        new = net(x)
        if new.sum() > 0 and eta:
            new = new * eta
        if not exists(old) or new.mean() > 0:
            x = x + new
        else:
            x = x + new - old
        old = new
    return x
@torch.no_grad()
def f(x):
    return sample(x)
""",
        ["new = torch.where((new.sum() > 0) & bool(eta), new * eta, new)", "if not exists(old):"],
    ),
    "a question that only a switch lets be asked": (
        """
net = nn.Linear(4, 4).to(device)
DEBUG = False
args = (torch.randn(2, 4, device=device),)
@torch.no_grad()
def f(x):
    y = {"a": net(x), "b": x.exp()}
    for k in y:
        if (torch.isnan(y[k]).any() or torch.isinf(y[k]).any()) and DEBUG:
            print(f"{k} contains nan or inf")
    return y["a"] + y["b"]
""",
        ["if DEBUG and (torch.isnan(y[k]).any() or torch.isinf(y[k]).any()):"],
    ),
    "a name with an annotation": (
        """
from torch import Tensor
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)
@torch.no_grad()
def f(x):
    y = net(x)
    best = y.sum(-1).argmax()
    row: list[Tensor] = [y[best]]
    return torch.tanh(row[0])
""",
        ["row: list[Tensor] = [y[best.reshape(1)][0]]"],
    ),
}


@pytest.mark.parametrize("program", WHOLE)
def test_inference_is_rewritten_whole(program: str, tmp_path: Path) -> None:
    # GIVEN a function as it is published WHEN it is rewritten THEN all of it runs from one graph, with these lines
    text, expected = WHOLE[program]
    fix = rewritten(text, tmp_path)
    assert fix.complete, fix
    assert [line for line in expected if line not in lines_of(fix)] == [], fix.diff


def test_only_the_file_that_names_the_device_is_told_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a helper in a file without a name for the device, called from one that has it WHEN it is rewritten
    (tmp_path / "picking_of_ours.py").write_text(
        "import torch\ndef picked(scores, at):\n    return scores[torch.arange(scores.shape[0]), at]\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    fix = rewritten(
        """
from picking_of_ours import picked
args = (torch.randn(3, 4, device=device), torch.tensor([1, 0, 2], device=device))
def f(scores, at):
    return picked(scores, at) * 2
""",
        tmp_path,
    )
    # THEN the line says it in its own words
    assert fix.complete, fix
    assert any("device=" in line and "device=device" not in line for line in lines_of(fix)), fix.diff


NOT_TAKEN = """
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
best, waited = 0.0, 0
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device), "test")
@torch.no_grad()
def f(x, y, phase):
    global best, waited
    right = (net(x).argmax(-1) == y).sum().item() / len(y)
    if phase == "val":
        if right > best:
            best = max(right, best)
            waited = 0
        else:
            waited += 1
    return right
"""


def test_a_way_that_no_step_takes_is_not_rewritten_as_if_its_numbers_were_tensors(tmp_path: Path) -> None:
    # GIVEN an evaluation that keeps the best number in a phase in which it is not called WHEN it is rewritten
    fix = rewritten(NOT_TAKEN, tmp_path)
    # THEN what is verified says nothing that would fail there
    assert fix.complete, fix
    assert not [line for line in lines_of(fix) if "copy_" in line], fix.diff


ADVISED = {
    "numbers read of an argument": (
        """
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device), torch.linspace(3, 0.1, 4, device=device))
def weight(known, i):
    return float(np.tanh(known[i] - known[i + 1]))
@torch.no_grad()
def f(x, sigmas):
    known = sigmas.detach().cpu().numpy()
    for i in range(3):
        rates = [weight(known, i) for _ in range(2)]
        x = x + sum(rate * net(x) for rate in rates)
    return x
""",
        ["give `known` to `f`", "another `sigmas` has a graph of its own"],
        "belongs behind",
    ),
    "times that a solver asks for": (
        """
net = nn.Linear(3, 3).to(device)
args = (torch.randn(4, 3, device=device), torch.linspace(0, 1, 5, device=device))
def feed(i):
    return args[0] + i, args[1]
@torch.no_grad()
def f(y, t):
    assert (t[1:] > t[:-1]).all(), "in their order"
    found, j, grid = [y], 1, torch.linspace(float(t[0]), float(t[-1]), 9)
    for t0, t1 in zip(grid[:-1], grid[1:]):
        new = y + (t1 - t0) * torch.tanh(net(y))
        while j < len(t) and t1 >= t[j]:
            found.append(new if t[j] == t1 else y + (t[j] - t0) / (t1 - t0) * (new - y))
            j += 1
        y = new
    return torch.stack(found)
""",
        ["`t` decides all of this, and is small: give it on the CPU, `t.cpu()`"],
        "`y.cpu()`",
    ),
    "tokens up to the first that is refused": (
        """
net = nn.Linear(4, 4).to(device)
args = (torch.randint(0, 9, (5,), device=device), torch.rand(5, device=device) / 2)
@torch.no_grad()
def f(draft, p):
    refused = (torch.rand_like(p) > p).nonzero()
    if refused.shape[0] == 0:
        return torch.cat([draft, draft[:1]])
    n = refused[0].item()
    return torch.cat([draft[:n], draft[-1:]])
""",
        ["`there = torch.rand_like(p) > p`: its first place is `there.long().argmax()`", "with `n`; pick `[:n]`"],
        "inside =",
    ),
    "noise levels read in each round": (
        """
net = nn.Linear(4, 4).to(device)
args = (2,)
@torch.no_grad()
def f(batch_size):
    x, levels = torch.randn(batch_size, 4, device=device), torch.linspace(3, 0, 4, device=device)
    for level, following in zip(levels[:-1], levels[1:]):
        level, following = map(lambda t: t.item(), (level, following))
        moved = x + math.sqrt(level) * net(x)
        if following != 0:
            moved = moved + following * net(moved)
        x = moved
    return x
""",
        [
            "moved = f_round(chosen_in, x, sqrt_in, following_in)",
            "in some rounds and false in others: each has a graph",
        ],
        "where the host decides it",
    ),
    "rounds that a module's method computes": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(9, 8), nn.GRUCell(8, 8), nn.Linear(8, 9)
    def go(self, token, hidden):
        return self.rnn(self.words(token), hidden)
model = Model().to(device)
args = (torch.randn(1, 8, device=device),)
def told(model, hidden):
    tokens = [2]
    for _ in range(4):
        token = torch.LongTensor([tokens[-1]]).to(device)
        hidden = model.go(token, hidden)
        best = model.out(hidden).argmax(-1).item()
        tokens.append(best)
        if best == 3:
            break
    return tokens
@torch.no_grad()
def f(hidden):
    return told(model, hidden)
""",
        ["+        hidden, best_now = told_round(model, hidden, token)", "with rounds from graphs, gives"],
        "end what is captured before the loop",
    ),
    "a rate that a helper returns, and compares in another phase": (
        """
net = nn.Linear(4, 3).to(device)
best = 0.0
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))
def rate(x, y, phase):
    global best
    right = (net(x).argmax(-1) == y).sum().item() / len(y)
    if phase == "val":
        if right > best:
            best = max(right, best)
    return right
@torch.no_grad()
def f(x, y):
    return rate(x, y, "test")
""",
        ["`right = (net(x).argmax(-1) == y).sum()`", "make `right = right.item() / len(y)` of it behind the launch"],
        "leave it out",
    ),
    "the best of some beams, as long as it is": (
        """
net = nn.Embedding(9, 9).to(device)
args = (torch.randint(0, 9, (3, 6), device=device),)
def best(beams, lengths):
    at = 0
    for step in range(2, 6):
        scores = net(beams[:, step - 1]).max(-1).values
        if (scores > 1.5).sum().item() == 3:
            at = scores.argmax().item()
            break
    return beams[at][: lengths[at]].tolist()
@torch.no_grad()
def f(beams):
    return best(beams, (beams > 2).sum(-1))
""",
        ["+        scores, value_now = best_round(beams, step_in)", "with rounds from graphs, gives"],
        "inside =",
    ),
    "a long list of an object as an index": (
        """
class Suppress:
    def __init__(self, ids):
        self.banned = list(ids)
    def apply(self, logits):
        return logits.index_fill(1, torch.zeros_like(logits[0, :1]).long(), 0.0)[:, self.banned]
net = nn.Linear(4, 40).to(device)
suppress = Suppress(range(20))
args = (torch.randn(5, 4, device=device),)
@torch.no_grad()
def f(x):
    return suppress.apply(net(x))
""",
        ['key = "self.banned", str(self.banned)', "[:, made_once[key]]"],
        "before each launch",
    ),
    "prompts that a loop fills in, and rows that the host cuts": (
        """
net = nn.Embedding(9, 9).to(device)
args = ([[1, 2], [3, 4, 5]],)
@torch.no_grad()
def f(prompts):
    tokens = torch.full((2, 6), 0, device=device)
    for k, prompt in enumerate(prompts):
        tokens[k, : len(prompt)] = torch.tensor(prompt, device=device)
    ended = torch.zeros(2, dtype=torch.bool, device=device)
    for at in range(2, 6):
        new = net(tokens[:, :at].sum(1) % 9).argmax(-1)
        tokens[:, at] = new
        ended |= new == 7
        if all(ended) or tokens.shape[1] < at:
            break
    cut = []
    for k, row in enumerate(tokens.tolist()):
        row = row[len(prompts[k]) :]
        cut.append(row)
    return cut
""",
        ["only fills `tokens`", "`if tokens.shape[1] < at:` may stay", "torch.where(ended.all(), old, new)"],
        "inside =",
    ),
}


@pytest.mark.parametrize("program", ADVISED)
def test_inference_is_advised_in_its_own_words(program: str, tmp_path: Path) -> None:
    # GIVEN a function of which not all is rewritten WHEN it is asked for fixes
    text, said, unsaid = ADVISED[program]
    fix = rewritten(text, tmp_path)
    told = str(fix)
    # THEN each line has what to do about it, or a part is a graph, and nothing is said that does not belong to it
    assert fix.alone or [part for part in said if part not in told] == [], told
    assert unsaid not in told


def test_a_default_device_keeps_nothing_from_being_tried(tmp_path: Path) -> None:
    # GIVEN a program that has made the device torch's default WHEN it is rewritten
    torch.set_default_device(pgk.device())
    try:
        names = run(WHOLE["a chain of comparisons"][0], tmp_path)
        found = pgk.diagnose(names["f"], *names["args"], fix=True)
    finally:
        torch.set_default_device(None)
    # THEN it is whole as without that
    assert found.fix is not None, found
    assert found.fix.complete, found
