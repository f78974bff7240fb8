"""What captures and replays graphs of its own: what they do not see is told, with lines that bring it there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.__main__ import main
from paramgraph_kit.doctor.observe.examine import NOT_ASKED, NOT_REPLAYED
from paramgraph_kit.driver.sim.libraries import forget
from paramgraph_kit.verbs import _own_captures
from tests.integration.rewritten import run
from tests.programs.reading import Program, read
from tests.programs.running import eager, load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = [
    each
    for file in sorted((Path(__file__).parents[1] / "programs" / "own_graphs").glob("*.txt"))
    for each in read(file)
]

RUNNER = """
class Runner:
    def __init__(self, model):
        self.model, self.graph = model, None
    def __call__(self, x, scale):
        if self.graph is None:
            side = cuda.Stream()
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                for _ in range(3):
                    self.model(x) * scale
            cuda.current_stream().wait_stream(side)
            self.graph = cuda.CUDAGraph()
            KEPT
            with cuda.graph(self.graph):
                self.y = self.model(READ) * NUMBER
        AGAIN
        self.graph.replay()
        return self.y
runner, results = Runner(nn.Linear(4, 4).to(device).eval().requires_grad_(False)), []
args = (torch.randn(3, 4, device=device), 1.0)
def feed(i):
    return torch.full((3, 4), 1.0 + i, device=device), 1.0 + i
def f(x, scale):
    y = runner(x, scale)
    results.append(y)
    return y
"""
# What of a runner's lines is other: before the capture, in it, before the replay.
WAYS = {
    "exchanged, and read as an attribute": ("self.x = x", "self.x", "self.x = x"),
    "exchanged, and read as an argument": ("self.x = x", "x", "self.x = x"),
    "kept once": ("self.x = x", "self.x", "pass"),
    "never kept": ("pass", "x", "pass"),
}
SAID = {
    "exchanged, and read as an attribute": "before this line comes `self.x.copy_(x)`, in place of `self.x = x` (line",
    "exchanged, and read as an argument": "is `self.x = x.clone()`, the capture reads `self.x` for `x`, and",
    "kept once": "before this line comes `self.x.copy_(x)`: the graph reads",
    "never kept": "before the capture `self.held_x = x.clone()`, the capture reads `self.held_x` for `x`, and",
}
FOLLOWED = {
    "exchanged, and read as an attribute": ("self.x = x", "self.x", "self.x.copy_(x)"),
    "exchanged, and read as an argument": ("self.x = x.clone()", "self.x", "self.x.copy_(x)"),
    "kept once": ("self.x = x", "self.x", "self.x.copy_(x)"),
    "never kept": ("self.held_x = x.clone()", "self.held_x", "self.held_x.copy_(x)"),
}


def _runner(kept: str, read: str, again: str, number: str = "scale") -> str:
    return RUNNER.replace("KEPT", kept).replace("READ", read).replace("AGAIN", again).replace("NUMBER", number)


@pytest.mark.parametrize("name", WAYS)
def test_what_a_replay_never_reads_is_told_with_the_lines_that_bring_it_there(name: str, tmp_path: Path) -> None:
    # GIVEN a step that captures in its first call
    names = run(_runner(*WAYS[name]), tmp_path)
    # WHEN
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the argument is told at the replay, the number in the capture, and the list that keeps the graph's memory
    told = {f.code: f for f in found.failures}
    assert "self.graph.replay()" in told["stale-input"].frame.text
    assert SAID[name] in told["stale-input"].fix
    assert "scale is given to a capture of its own" in told["scalar-frozen"].message
    assert "`self.held_scale = torch.full((), scale, device=device)`" in told["scalar-frozen"].fix
    assert told["output-alias"].frame.text == "results.append(y)"
    # WHEN one does what is said
    kept, read, again = FOLLOWED[name]
    kept = f"{kept}; self.held_scale = torch.full((), scale, device=device)"
    text = _runner(kept, read, f"{again}; self.held_scale.fill_(scale)", "self.held_scale")
    text = text.replace("append(y)", "append(y.clone())")
    (tmp_path / "followed").mkdir()
    mended = run(text, tmp_path / "followed")
    plain = mended["runner"].model
    # THEN each call has today's numbers
    eager(mended, "f")
    for i, result in enumerate(mended["results"]):
        x, scale = mended["feed"](i)
        assert torch.allclose(result, plain(x) * scale)


def test_numbers_that_no_capture_reads_are_not_told(tmp_path: Path) -> None:
    # GIVEN a number that scales what a replay has left
    text = _runner("self.x = x.clone()", "self.x", "self.x.copy_(x)", "2.0").replace("results.append(y)", "pass")
    names = run(text.replace("return self.y", "return self.y * scale"), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN
    assert not found.failures


@pytest.mark.parametrize("program", [pytest.param(each, id=each.title) for each in PROGRAMS])
def test_a_program_with_graphs_of_its_own_is_told_what_they_do_not_see(program: Program, tmp_path: Path) -> None:
    # GIVEN a program that captures and replays by itself, as it is and as the words say
    texts = {"broken": program.broken} | ({"mended": program.mended} if program.mended != program.broken else {})
    found = {}
    for name, text in texts.items():
        names = load(text, tmp_path / f"{name}.py")
        # WHEN
        with quiet():
            told = pgk.diagnose(names[program.function], *names["args"])
        found[name] = {(f.code, f.frame.line if f.frame else 0) for f in told}
    # THEN each problem is told at its line, and nothing else; and nothing where one has done what is said
    assert len(program.expected) <= len(found["broken"])
    for code, line in found["broken"]:
        assert any(code in each.codes and line == each.line for each in program.expected), (code, line)
    assert not found.get("mended")


def _of(title: str) -> Program:
    return next(each for each in PROGRAMS if title in each.title)


def test_what_ran_once_at_a_capture_is_rewritten_for_each_launch(tmp_path: Path) -> None:
    # GIVEN a runner whose captured method counts, and scales by that
    program = _of("whose body counts and warms up a scale")
    names = load(program.broken, tmp_path / "program.py")
    # WHEN a fix is asked for
    found: Any = pgk.diagnose(names["infer"], *names["args"], fix=True)
    # THEN it is of the method: the function has no lines for it, as it only launches
    assert found.fix is found.fix_inside
    assert found.fix_inside.complete
    assert str(found.fix_inside) in str(found)
    assert "  then   call self.before_body() before each launch" in str(found)
    assert found._repr_html_().count("<pre>") == 1
    # AND done as it says, each replay has the number of its call
    (lines,) = found.fix_inside.texts.values()
    text = "".join(lines).replace(
        "        self.graph.replay()", "        self.before_body()\n        self.graph.replay()"
    )
    mended = load(text, tmp_path / "mended.py")
    net, x = mended["run"].net, mended["args"][0]
    for call in range(1, 14):
        assert torch.allclose(mended["infer"](x), net(x) * min(1.0, call / 10))


CAPTURED_STEP = """
class Trainer:
    def __init__(self):
        self.net, self.held = nn.Linear(4, 1).to(device), {}
        self.opt = torch.optim.Adam(self.net.parameters(), lr=0.05, capturable=True)
        self.x, self.y = torch.zeros(8, 4, device=device), torch.zeros(8, 1, device=device)
    def body(self):
        self.opt.zero_grad(set_to_none=False)
        loss = F.mse_loss(self.net(self.x), self.y)
        loss.backward()
        self.opt.step()
        return loss
    def step(self, x, y):
        self.x.copy_(x)
        self.y.copy_(y)
        if not self.held:
            side = cuda.Stream()
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                self.body()
            cuda.current_stream().wait_stream(side)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                loss = self.body()
            self.held["step"] = graph, loss
        self.held["step"][0].replay()
        return self.held["step"][1].clone()
trainer = Trainer()
def feed(i):
    g = torch.Generator().manual_seed(i)
    return torch.randn(8, 4, generator=g).to(device), torch.randn(8, 1, generator=g).to(device)
args = feed(0)
def f(x, y):
    return trainer.step(x, y)
"""


@pytest.mark.parametrize("calls", [0, 2])
def test_a_captured_training_step_goes_on_as_if_nobody_had_looked(calls: int, tmp_path: Path) -> None:
    # GIVEN a trainer that has made some steps, of which all but the first are replays
    names, others = run(CAPTURED_STEP, tmp_path), run(CAPTURED_STEP, tmp_path)
    for i in range(calls):
        assert torch.equal(names["f"](*names["feed"](i)), others["f"](*others["feed"](i)))
    # WHEN its step is diagnosed, which calls it a few times
    assert not pgk.diagnose(names["f"], *names["args"])
    # THEN the weights and what the optimizer holds are as they were, and it goes on with the same losses
    for i in range(calls, 6):
        assert torch.equal(names["f"](*names["feed"](i)), others["f"](*others["feed"](i)))


def test_a_capture_without_a_warm_up_is_told_with_what_else_is_wrong(tmp_path: Path) -> None:
    # GIVEN a process that has used no library yet, and a runner that captures at once
    forget()
    names = load(_of("a detector without a warm-up").broken, tmp_path / "program.py")
    # WHEN
    found = pgk.diagnose(names["push"], *names["args"])
    # THEN it is told with a warm-up of its lines, and so is what the graph does not see
    told = {f.code: f.fix for f in found.failures}
    assert told.keys() == {"cold-library", "stale-input"}
    assert "with torch.cuda.stream(s): self._run()" in told["cold-library"]
    kept = "`[t.detach().copy_(k) for t, k in zip((self.level, self.h), kept)]`"
    assert f"put back what that moves (`self.level`, `self.h`, {kept}); then capture" in told["cold-library"]


def test_a_number_that_picks_is_an_index_on_the_device_as_the_words_say(tmp_path: Path) -> None:
    # GIVEN a captured step that reads and writes at a place that the host knows
    program = _of("whose captured step picks a rate")
    names = load(program.broken, tmp_path / "program.py")
    (told,) = pgk.diagnose(names["sample"], *names["args"]).failures
    # WHEN one does what is said
    made, *words, filled = re.findall(r"`(.*?)`", told.fix)
    text = program.broken.replace("        with torch.no_grad():", f"        {made}\n        with torch.no_grad():")
    for new, old in zip(words[::2], words[1::2], strict=True):
        text = text.replace(old, new)
    text = text.replace("            self.g.replay()", f"            {filled}\n            self.g.replay()")
    mended = load(text, tmp_path / "mended.py")
    # THEN each round has its own
    assert not pgk.diagnose(mended["sample"], *mended["args"])
    one, noise = mended["sampler"], mended["args"][0]
    x, trace, net = noise.clone(), torch.zeros(2, 5, 4, device=noise.device), one.net
    for i in reversed(range(5)):
        x = (x - one.betas[i] * net(x)) / (1 - one.betas[i]).sqrt()
        trace[:, i] = x
    assert torch.allclose(mended["sample"](noise)[1], trace)


def test_what_was_found_stays_told_where_what_is_captured_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a program of which only the captured step cannot be looked at
    names = load(_of("whose captured step picks a rate").broken, tmp_path / "program.py")
    found_inside = _own_captures._what

    def raises(region: Any) -> Any:
        monkeypatch.setattr(type(region), "as_it_was", lambda region: 1 / 0)
        return found_inside(region)

    monkeypatch.setattr(_own_captures, "_what", raises)
    # WHEN
    found = pgk.diagnose(names["sample"], *names["args"])
    # THEN
    assert found.codes == ("scalar-frozen",)
    assert NOT_ASKED in found.notes


def test_a_capture_that_fails_is_rewritten_as_what_it_is_of(tmp_path: Path) -> None:
    # GIVEN a module that torch graphs at the first call, and that asks the device for a value
    program = _of("graphed by torch at its first call, which asks for a value")
    names = load(program.broken, tmp_path / "program.py")
    # WHEN
    found: Any = pgk.diagnose(names["classify"], *names["args"], fix=True)
    # THEN its lines are, and with these in place its replays were seen
    assert "+        pts = torch.where(radius > 1.0, pts / radius, pts)" in found.fix.diff
    assert NOT_REPLAYED not in found.notes
    # AND without a fix it is said that none was
    assert NOT_REPLAYED in pgk.diagnose(names["classify"], *names["args"]).notes


def test_a_state_that_is_returned_as_it_is_is_noted(tmp_path: Path) -> None:
    # GIVEN a captured step of a function of the file, which writes a tensor in place
    names = run(
        """
pos, force, g = torch.randn(5, 2, device=device), torch.zeros(5, 2, device=device), cuda.CUDAGraph()
def step():
    pos.add_(0.1 * (force - pos))
step()
with cuda.graph(g):
    step()
def advance(f):
    force.copy_(f)
    g.replay()
    return pos
def copied(f):
    return advance(f).clone()
args = (torch.randn(5, 2, device=device),)
""",
        tmp_path,
    )
    # WHEN THEN
    assert any("is a state that each replay" in note for note in pgk.diagnose(names["advance"], *names["args"]).notes)
    assert not any("is a state that each" in note for note in pgk.diagnose(names["copied"], *names["args"]).notes)


def test_weights_that_only_the_graph_names_are_as_before_all_calls(tmp_path: Path) -> None:
    # GIVEN a training step that the file has captured, and a function that names its inputs alone
    names = load(_of("last batch of an epoch is smaller").broken, tmp_path / "program.py")
    before = names["net"].weight.detach().clone()
    # WHEN
    pgk.diagnose(names["train"], *names["args"])
    # THEN
    assert torch.equal(names["net"].weight, before)


def test_what_goes_behind_a_replay_is_given_what_the_capture_has_made(tmp_path: Path) -> None:
    # GIVEN a captured method that counts, and flips its result by that WHEN a fix is asked for
    names = load(_of("flips every second frame").broken, tmp_path / "program.py")
    found: Any = pgk.diagnose(names["process"], *names["args"], fix=True)
    # THEN what goes behind is given names of that method, and it is said what these are where the replay stands
    assert "call self.after_step(y)" in found.fix_inside.usage
    assert any("keep that at the capture" in note for note in found.notes)
    # AND it is not said where nothing is given
    names = load(_of("whose body counts and warms up a scale").broken, tmp_path / "other.py")
    counted: Any = pgk.diagnose(names["infer"], *names["args"], fix=True)
    assert not any("keep that at the capture" in note for note in counted.notes)


def test_what_a_function_that_has_ended_has_captured_is_not_asked_and_that_is_said(tmp_path: Path) -> None:
    # GIVEN a graph whose capture read variables of a function that is over, and one of torch's own
    names = run(
        """
def made(net):
    x, g = torch.zeros(2, 4, device=device), cuda.CUDAGraph()
    with torch.no_grad():
        net(x)
        with cuda.graph(g):
            y = net(x) * random.random()
    def run(value):
        x.copy_(value)
        g.replay()
        return y.clone()
    return run
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)
f = [made(net), made(net)][0]
by_torch = None
def h(x):
    global by_torch
    if by_torch is None:
        by_torch = cuda.make_graphed_callables(nn.Linear(4, 4).to(device), (torch.zeros_like(x),))
    return by_torch(x)
""",
        tmp_path,
    )
    # WHEN / THEN
    assert NOT_ASKED in pgk.diagnose(names["f"], *names["args"]).notes
    assert NOT_ASKED not in pgk.diagnose(names["h"], *names["args"]).notes


FILES = ("a side stream that nobody waits", "unfrozen behind", "cast to bfloat16", "local to it, so that it is freed")


@pytest.mark.parametrize("program", [p for p in PROGRAMS if any(f in p.title for f in FILES)], ids=lambda p: p.title)
def test_a_program_that_the_terminal_runs_once_is_told_what_its_graphs_do_not_see(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a file that captures, replays and says that it has run
    file = tmp_path / "program.py"
    call = f"{program.function}(*args)\nwith open({str(tmp_path / 'runs')!r}, 'a') as runs: runs.write('run ')\n"
    file.write_text(program.broken + call)
    # WHEN the terminal runs it
    status = main(["diagnose", str(file)])
    # THEN each problem is told at its line, and it has run once
    said = capsys.readouterr().out
    assert status == 1
    assert len(re.findall(r"(?m)^  where  ", said)) == len(program.expected)
    for each in program.expected:
        assert f"program.py:{each.line} " in said
    assert (tmp_path / "runs").read_text() == "run "


def test_a_program_that_the_terminal_runs_ends_as_it_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a program whose graph is sound, and that ends by sys.exit(0), and one that gives a status
    text = """
    import sys
    import torch
    import paramgraph_kit as pgk
    x, g = torch.ones(2, device=pgk.device()), pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(g):
        y = x * 2
    for i in range(3):
        x.fill_(i)
        g.replay()
        print(y.sum().item())
    sys.exit(STATUS)
    """
    file = tmp_path / "program.py"
    for status in (0, 3):
        file.write_text(textwrap.dedent(text).replace("STATUS", str(status)))
        # WHEN THEN
        if status:
            with pytest.raises(SystemExit, match="3"):
                main(["diagnose", str(file)])
        else:
            assert main(["diagnose", str(file)]) == 0
            said = capsys.readouterr().out
            assert said.startswith("0.0\n4.0\n8.0\n")
            assert "program.py: no problems (1 run on" in said
            assert "1 capture)" in said


SWAPPED = """
student, teacher = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
student.requires_grad_(False); teacher.requires_grad_(False)
x_in = torch.zeros(3, 4, device=device)
g = cuda.CUDAGraph()
teacher(x_in)
with cuda.graph(g):
    target = teacher(x_in)
args = (torch.ones(3, 4, device=device),)
def f(x):
    global teacher, student
    x_in.copy_(x)
    g.replay()
    out = target.clone()
    teacher, student = student, teacher
    return out
"""


def test_two_modules_that_change_places_exchange_their_weights_in_the_words(tmp_path: Path) -> None:
    # GIVEN a graph of the file's, whose module and another one change places in each call
    names = run(SWAPPED, tmp_path)
    expected = [names["student"](names["args"][0]), names["teacher"](names["args"][0])]
    # WHEN
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN no rewrite is tried against what the graph gives
    assert found.codes == ("parameter-rebound",)
    assert found.fix is None
    # WHEN one does what is said
    after = found.failure.fix.rpartition("after ")[2].strip()
    (tmp_path / "followed").mkdir()
    mended = run(SWAPPED.replace("teacher, student = student, teacher", after), tmp_path / "followed")
    for name in ("student", "teacher"):
        mended[name].load_state_dict(names[name].state_dict())
    # THEN the calls take turns
    results = [mended["f"](*mended["args"]) for _ in range(4)]
    for i, result in enumerate(results):
        assert torch.allclose(result, expected[1 - i % 2])


HANDED_ON = """
class Stream:
    def __init__(self):
        self.cell, self.h = nn.GRUCell(4, 4).to(device), torch.ones(1, 4, device=device)
        self.x = torch.zeros(1, 4, device=device)
        self.cell(self.x, self.h)
        self.graph = cuda.CUDAGraph()
        with torch.no_grad(), cuda.graph(self.graph):
            self.h_next = self.cell(self.x, self.h)
    def push(self, x):
        self.x.copy_(x)
        self.graph.replay()
        self.h = self.h_next
        return self.h.clone()
stream, args = Stream(), (torch.ones(1, 4, device=device),)
def f(x):
    return stream.push(x)
"""


def test_what_a_graph_hands_to_its_next_replay_is_written_behind_the_one_that_makes_it(tmp_path: Path) -> None:
    # GIVEN a state that is given the name of a graph's result WHEN diagnosed
    names = run(HANDED_ON, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN it is written there, and not ahead of the first replay, which would begin with nothing
    assert found.codes == ("stale-input",)
    assert found.failure.fix.endswith("after   self.h.copy_(self.h_next), behind the replay that makes it")
