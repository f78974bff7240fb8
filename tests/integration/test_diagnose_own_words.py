"""What is written for a number that a capture reads, and that moves between its replays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.sim.libraries import forget
from tests.integration.rewritten import run
from tests.programs.reading import PRELUDE, read
from tests.programs.running import diagnosed, load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fortyseventh_own.txt")
OF_A_ROUND = (
    "before the capture `t_in = torch.full((), float(t), device='sim')`, what is captured reads `t_in` for `t`, and "
    "ahead of graph.replay() `t_in.fill_(t)`; with a tensor there `torch.sqrt` for `math.sqrt`, "
    "`torch.as_tensor(t / 20).expand((x.shape[0], 1))` for `torch.full((x.shape[0], 1), t / 20, device=x.device)`"
)
OF_A_POSITION = (
    "captured is `self.k[:b].index_copy_(1, self.pos_in, wk(x).unsqueeze(1))` for `self.k[:b, self.pos] = wk(x)`, "
    "`self.k[:b]` for `self.k[:b, :self.pos + 1]`; of what is whole then only the first entries count: "
    "`valid = torch.arange(self.k.shape[1], device='sim') < self.pos_in + 1`, and `.masked_fill(~valid, -torch.inf)` "
    "ahead of a softmax, elsewhere `torch.where(valid.view(-1, 1), self.k[:b], 0)` for `self.k[:b]`"
)
OF_A_COUNT = (
    "what is captured reads `self.decay_in` for `decay`; there `add_((1 - decay) * p)` for "
    "`add_(p, alpha=1 - decay)`; and ahead of self.graph.replay() "
    "`self.decay_in.fill_(min(0.99, (1 + self.n) / (10 + self.n)))`"
)
OF_A_LIST = (
    "what is captured reads `self.epoch_in` for `self.weights[self.epoch]`; and ahead of self.graph.replay() "
    "`self.epoch_in.fill_(self.weights[self.epoch])`"
)
OF_A_FRAME = (
    ", which calls it as it is, `self.angle_in.fill_(angle)`; "
    "with a tensor there `torch.cos` for `math.cos`, `torch.sin` for `math.sin`"
)
WORDS = {
    "an angle that each frame has": OF_A_FRAME,
    "a list has for each epoch": OF_A_LIST,
    "that round's number": OF_A_ROUND,
    "at a position that is counted": OF_A_POSITION,
    "decay comes from a counter": OF_A_COUNT,
}


@pytest.mark.parametrize("title", WORDS)
def test_a_number_that_moves_gets_a_tensor_where_the_lines_that_read_it_can_take_one(
    title: str, tmp_path: Path
) -> None:
    # GIVEN a capture that reads a number of a loop, a position or a count
    # WHEN
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN the words say what each of its lines becomes, and where the tensor is filled
    assert WORDS[title] in found.failure.fix


@pytest.mark.parametrize("behind", ["pass", "acc.zero_()"])
def test_a_state_that_a_warm_up_moves_is_noted_where_nothing_puts_it_back(behind: str, tmp_path: Path) -> None:
    # GIVEN a function that captures in its first call, behind a warm-up that adds to a state
    names = run(
        f"""
x_in, acc, graph = torch.zeros(3, device=device), torch.zeros(3, device=device), None
def step():
    acc.add_(x_in)
def f(x):
    global graph
    acc.zero_()
    x_in.copy_(x)
    if graph is None:
        step()
        {behind}
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            step()
    graph.replay()
    return acc.clone()
args = (torch.ones(3, device=device),)
""",
        tmp_path,
    )
    # WHEN
    notes = pgk.diagnose(names["f"], *names["args"]).notes
    # THEN it is noted where its first call gives other numbers, and only there
    assert any("moves `acc`" in note for note in notes) == (behind == "pass")


LEARNER = """
class Learner:
    def __init__(self):
        self.net, self.graph = nn.Linear(4, 1).to(device), None
    def loss(self):
        x, y = self.batch
        return (self.net(x) - y).square().mean()
    @torch.no_grad()
    def learn(self, batch):
AGAIN
        if self.graph is None:FIRST
            side = cuda.Stream()
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                self.loss()
            cuda.current_stream().wait_stream(side)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.result = self.loss()
        BEFORE
        self.graph.replay()
        return self.result.clone()
learner = Learner()
args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))
def f(x, y):
    return learner.learn((x, y))
"""


def test_a_batch_that_a_captured_method_unpacks_is_written_before_each_replay(tmp_path: Path) -> None:
    # GIVEN an object that keeps each call's batch, of which its captured method reads the first
    broken = LEARNER.replace("AGAIN", "        self.batch = batch").replace("FIRST", "").replace("BEFORE", "pass")
    names = run(broken, tmp_path)
    # WHEN it is asked what to write
    (told,) = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the first call keeps copies, and each writes there ahead of the replay
    first, before = (
        "self.batch = [each.clone() for each in batch]",
        "for held, new in zip(self.batch, batch): held.copy_(new)",
    )
    assert f"goes into the branch of line 20, as `{first}`" in str(told.fix), told.fix
    assert f"before this line comes `{before}`" in str(told.fix)
    # AND followed, each call has today's numbers, and nothing more is told
    mended = LEARNER.replace("AGAIN", "").replace("FIRST", f"\n            {first}").replace("BEFORE", before)
    names = load(PRELUDE + mended, tmp_path / "mended.py")
    assert not pgk.diagnose(names["f"], *names["args"])
    net = names["learner"].net
    for _ in range(3):
        x, y = torch.randn(8, 4, device=pgk.device()), torch.randn(8, 1, device=pgk.device())
        assert torch.allclose(names["f"](x, y), (net(x) - y).square().mean())


TRAINER = """
class Trainer:
    def __init__(self):
        self.net, self.graph = nn.Linear(4, 1).to(device), None
        self.opt = OPTIMIZER
    def step(self):
        self.opt.zero_grad(set_to_none=True)
        loss = self.net(self.x).square().mean()
        loss.backward()
        if WITH:
            self.opt.step()
        return loss.detach()
    def __call__(self, x):
        if self.graph is None:
            self.x = x.clone()
            side = cuda.Stream()
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                self.warm = True
                self.step()
            cuda.current_stream().wait_stream(side)
            self.warm = False
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.loss = self.step()
        self.x.copy_(x)
        self.graph.replay()
        return self.loss.clone()
trainer = Trainer()
args = (torch.randn(8, 4, device=device),)
def f(x):
    return trainer(x)
"""


@pytest.mark.parametrize(
    ("optimizer", "stepped", "told"),
    [
        ("torch.optim.SGD(self.net.parameters(), 0.1, momentum=0.9)", "not self.warm", "SGD makes its state"),
        ("torch.optim.Adam(self.net.parameters(), 0.1, capturable=True)", "not self.warm", "Adam makes its state"),
        ("torch.optim.SGD(self.net.parameters(), 0.1, momentum=0.9)", "True", ""),
        ("torch.optim.SGD(self.net.parameters(), 0.1)", "not self.warm", ""),
    ],
)
def test_an_optimizer_whose_first_step_is_in_a_capture_is_told(
    optimizer: str, stepped: str, told: str, tmp_path: Path
) -> None:
    # GIVEN a training step that is captured behind a warm-up with or without the optimizer
    names = run(TRAINER.replace("OPTIMIZER", optimizer).replace("WITH", stepped), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN a state that each replay would make anew is told at the step, and how it is made before
    assert [f.code for f in found] == ["branch-frozen"] * bool(told), found
    assert told in str(found)
    assert not told or "for state in self.opt.state.values()" in str(found)
    assert not told or "right before the capture `self.opt.zero_grad(set_to_none=True)`" in str(found)


DROPPING = """
class Block(nn.Module):
    def __init__(self, chance):
        super().__init__()
        self.one, self.two, self.chance = nn.Linear(4, 8), nn.Linear(8, 4), chance
    def forward(self, x):
        if random.random() < self.chance:
            return x
        return x + self.two(F.gelu(self.one(x)))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(0.4 * i) for i in range(3))
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sum()
random.seed(5)
net, sample = Net().to(device), torch.randn(8, 4, device=device)
graphed = cuda.make_graphed_callables(net, (sample,), allow_unused_input=True)
args = (torch.randn(8, 4, device=device),)
def f(x):
    return graphed(x) * 2
"""


@pytest.mark.pieces
def test_pieces_of_what_is_captured_are_told_to_take_its_place(tmp_path: Path) -> None:
    # GIVEN a module that torch has graphed, which drops blocks by chance of the host's
    names = run(DROPPING, tmp_path)
    # WHEN a fix is asked for
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN what is proved without the graph says that it goes: left there, it would be replayed for ever
    assert found.fix_inside is not None, found
    assert 'torch.compile(net.forward, backend="paramgraph")' in found.fix_inside.pieces
    line = next(n for n, each in enumerate((PRELUDE + DROPPING).splitlines(), 1) if each.startswith("graphed = "))
    assert found.fix_inside.pieces.endswith(
        f"; in place of the capture of line {line}: take that out, and its replays"
    ), found.fix_inside.pieces


SERVED = """
class Server:
    def __init__(self):
        self.x, self.h, self.graph = torch.zeros(4, device=device), torch.zeros(4, device=device), None
    def capture(self):
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.scores, self.h = self.x * self.h, self.h.tanh() + self.x
    def __call__(self, x):
        if self.graph is None:
            self.capture()
        self.x.copy_(x)
        self.graph.replay()
        return self.scores.argmax()
f, args = Server(), (torch.rand(4, device=device),)
"""


def test_what_a_capture_makes_first_is_named_of_it_beside_what_it_carries_on(tmp_path: Path) -> None:
    # GIVEN a statement of a capture that makes a result, and goes on with a state
    names = run(SERVED, tmp_path)
    # WHEN its state is told to be written in place
    found = pgk.diagnose(names["f"], *names["args"])
    (told,) = (each.fix for each in found.failures if each.code == "stale-input")
    # THEN the result, which nobody has made before, is not
    assert "self.scores, new_h = (self.x * self.h, self.h.tanh() + self.x); self.h.copy_(new_h)" in told


COLD = """
net, x, graph = nn.Linear(4, 2).to(device), torch.zeros(3, 4, device=device), None
opt = torch.optim.SGD(net.parameters(), 0.1)
def f(new):
    global graph
    x.copy_(new)
    if graph is None:
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            net(x).pow(2).mean().backward(); opt.step()
    graph.replay()
args = (torch.randn(3, 4, device=device),)
"""


def test_a_warm_up_that_is_told_leaves_no_gradients_that_the_capture_adds_to(tmp_path: Path) -> None:
    # GIVEN a process that has used no library yet, and a step with a backward pass that is captured at once
    forget()
    names = load(PRELUDE + COLD, tmp_path / "program.py")
    # WHEN
    told = next(f for f in pgk.diagnose(names["f"], *names["args"]) if f.code == "cold-library")
    # THEN the warm-up of its lines ends without gradients
    assert "opt.step(); torch.cuda.current_stream().wait_stream(s); opt.zero_grad(set_to_none=True)" in told.fix


PADDED = """
MOST, PAD = 6, 5
class Pooled:
    def __init__(self):
        self.table, self.graph = torch.randn(6, 3, device=device), None
        self.ids = MADE
    def __call__(self, ids):
        n = len(ids)
        self.ids[:n].copy_(ids)
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.table[self.ids].sum(0)
        self.graph.replay()
        return self.out.clone()
pooled = Pooled()
def f(batches):
    return torch.stack([pooled(each) for each in batches])
args = ([torch.tensor([1, 2, 3, 4], device=device), torch.tensor([3, 1], device=device)],)
"""
FILLED = {
    "torch.full((MOST,), PAD, device=device)": ("; self.ids[n:].fill_(PAD), as it was made", False),
    "torch.zeros(MOST, dtype=torch.long).to(device)": (
        "; self.ids[n:].fill_(pad), with a `pad` that counts for nothing",
        True,
    ),
    "torch.arange(MOST, device=device)": ("; self.ids[n:].fill_(pad), with a `pad` that counts for nothing", True),
    "torch.zeros(MOST, device=device).long()": ("of indices that of one more row", True),
}


@pytest.mark.parametrize("made", FILLED)
def test_what_a_shorter_input_leaves_is_filled_as_it_was_made(made: str, tmp_path: Path) -> None:
    # GIVEN a buffer whose first entries each call fills
    names = run(PADDED.replace("MADE", made), tmp_path)
    # WHEN
    told = next(f for f in pgk.diagnose(names["f"], *names["args"]) if f.code == "size-frozen")
    # THEN the rest gets what it had first, where that is seen; zeros, and what nobody knows, are indices, too
    words, counts = FILLED[made]
    assert words in told.fix
    assert ("only batches" in told.fix) == counts


SCHEDULED = """
def graphed(fn):
    state = {}
    def wrapper(*inputs):
        if not state:
            state["in"] = [t.clone() for t in inputs]
            stream = cuda.Stream()
            stream.wait_stream(cuda.current_stream())
            with cuda.stream(stream):
                fn(*state["in"])
            cuda.current_stream().wait_stream(stream)
            state["graph"] = cuda.CUDAGraph()
            with cuda.graph(state["graph"]):
                state["out"] = fn(*state["in"])
        for static, new in zip(state["in"], inputs):
            static.copy_(new)
        state["graph"].replay()
        return state["out"].clone()
    return wrapper
net = nn.Linear(4, 1).to(device)
sgd = torch.optim.AdamW(net.parameters(), lr=0.1CAPTURABLE)
scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1)
@graphed
def f(x):
    sgd.zero_grad(set_to_none=True)
    loss = net(x).sum()
    loss.backward()
    sgd.step()
    scheduler.step()
    return loss.detach()
args = (torch.randn(3, 4, device=device),)
"""


def test_an_optimizer_that_is_not_made_for_capture_is_told_with_its_own_line(tmp_path: Path) -> None:
    # GIVEN a capture of a step of an optimizer that counts on the CPU
    names = run(SCHEDULED.replace("CAPTURABLE", ""), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN the line that makes it is named
    told = next(f for f in found if f.code == "optimizer-not-capturable")
    assert "after   sgd = torch.optim.AdamW(net.parameters(), lr=0.1, capturable=True)" in told.fix


def test_a_rate_that_a_captured_scheduler_gives_is_told_at_its_step(tmp_path: Path) -> None:
    # GIVEN a captured step with that of a scheduler
    names = run(SCHEDULED.replace("CAPTURABLE", ", capturable=True"), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN the rate is told there, and not where the optimizer is named first
    assert [f.frame.text for f in found if f.code == "learning-rate-frozen" and f.frame] == ["scheduler.step()"]


BROUGHT = """
class Ranker:
    prior = [0.1 * i for i in range(4)]
    def score(self, x):
        y = x * 2
        y = y + torch.tensor(self.prior).to(device)
        return SCORED
ranker = Ranker()
def later():
    ranker.prior = [3.0] * 4
f, args = ranker.score, (torch.randn(3, 4, device=device),)
"""


@pytest.mark.parametrize(("scored", "alone"), [("y.topk(2, dim=1)", True), ("y * (self.prior.reverse() or 1)", False)])
def test_what_the_host_brings_beside_what_a_step_has_made_is_told_alone(
    scored: str, alone: bool, tmp_path: Path
) -> None:
    # GIVEN a step that adds a list of the host's, which other lines exchange, to what it has computed
    names = run(BROUGHT.replace("SCORED", scored), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN what comes before each launch is the list's, and nothing that the step makes
    said = str(found)
    assert ("before each launch `prior_in.copy_(torch.tensor(self.prior).to(device))`" in said) == alone
    assert "copy_(y + " not in said


WARMED = """
def main():
    net, x = nn.Linear(4, 2).to(device), torch.zeros(3, 4, device=device)
    opt, graph = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), cuda.CUDAGraph()
    s = cuda.Stream()
    with cuda.stream(s):
        for _ in range(2):
            opt.zero_grad(set_to_none=True)
            net(x).pow(2).mean().backward(){first}
    cuda.current_stream().wait_stream(s)
    opt.zero_grad(set_to_none=True)
    with cuda.graph(graph):
        loss = net(x).pow(2).mean()
        loss.backward()
        opt.step()
    for i in range(3):
        x.copy_(torch.full((3, 4), 1.0 + i))
        graph.replay()
    return loss.clone()
"""


@pytest.mark.parametrize("first", ["", "\n            opt.step()"])
def test_a_program_whose_capture_holds_the_first_step_of_an_optimizer_is_told_so(first: str, tmp_path: Path) -> None:
    # GIVEN a program that warms up forward and backward, and perhaps the step, and captures all three
    names = load(PRELUDE + WARMED.format(first=first), tmp_path / "program.py")
    # WHEN it is diagnosed THEN the step that makes its state in the capture is told, and one that has it is not
    told = [f.message for f in pgk.diagnose(names["main"]) if f.frame and f.frame.text == "opt.step()"]
    assert ["makes its state in its first step" in text for text in told] == [True][: not first]
