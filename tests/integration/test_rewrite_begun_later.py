"""Gradients that a branch of the host's lets come later than others, as of a head that counts from some epoch on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.advised.advice import hint
from paramgraph_kit.rewrite.counting.begun_later import begun, gradients_begin_later, momenta
from paramgraph_kit.rewrite.expressions.decisions.branches import choose_by_where
from paramgraph_kit.rewrite.result import ANEW
from paramgraph_kit.rewrite.round_shown import _filled_anew
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.more_of_a_net import brings_more, minds_zeros
from paramgraph_kit.rewrite.source.place import Form, Place
from paramgraph_kit.trace.model import Failure
from tests.integration.rewritten import launched, lines_of

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.aux = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)
    def forward(self, x):
        h = self.body(x).relu()
        return self.head(h), self.aux(h)
net = Net().to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
"""
STEP = """
def f(epoch, x, y):
    out, aux = net(x)
    loss = F.cross_entropy(out, y)
    if epoch >= 2:
        MORE
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
FORMS = {
    "a result that nothing else reads": ("loss = loss + 0.4 * F.cross_entropy(aux, y)", True),
    "in place": ("loss += F.cross_entropy(aux, y)", True),
    "a module of its own": ("loss = loss + net.critic(out).mean()", False),
    "a function of the user's": ("loss = loss + penalty(net)", True),
    "more of what is there": ("loss = loss + 0.1 * out.square().mean()", False),
    "another weight": ("loss = loss * 0.5", False),
    "no loss": ("seen = aux.mean()", False),
}
FORMS["a module of its own"] = (FORMS["a module of its own"][0].replace("net.critic", "critic"), True)


def _step(text: str) -> tuple[ast.FunctionDef, ast.If]:
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    return function, next(n for n in ast.walk(function) if isinstance(n, ast.If))


@pytest.mark.parametrize("name", FORMS)
def test_a_branch_brings_more_of_a_net_into_a_loss_where_nothing_else_reads_it(name: str) -> None:
    # GIVEN a branch on a number WHEN asked whether parameters have gradients by it alone THEN only of what is its own
    more, brings = FORMS[name]
    assert brings_more(*_step(STEP.replace("MORE", more))) is brings


@pytest.mark.parametrize("test", ["self.training", "mask is not None", "self.count > 10"])
def test_a_forward_with_a_mode_or_what_may_be_none_is_another_function(test: str, tmp_path: Path) -> None:
    # GIVEN a module that runs a layer in a branch WHEN its gradients may begin later THEN by what changes alone
    file = tmp_path / "net.py"
    file.write_text(f"def forward(self, x, mask):\n    if {test}:\n        x = self.late(x)\n    return x\n")
    source = Source.of(str(file))
    assert source is not None
    assert gradients_begin_later([source]) is ("count" in test)


UNFROZEN = {
    "parameters": ("if epoch == 2:", "for p in net.body.parameters():\n            p.requires_grad_(True)", True),
    "an attribute": ("if epoch == 2:", "for n, p in net.named_parameters():\n            p.requires_grad = True", True),
    "frozen": ("if epoch == 2:", "for p in net.body.parameters():\n            p.requires_grad_(False)", False),
    "in each call": (
        "with torch.enable_grad():",
        "for p in net.parameters():\n            p.requires_grad_(True)",
        False,
    ),
    "an input": ("if epoch == 2:", "x = x.detach().requires_grad_(True)", False),
}


@pytest.mark.parametrize("name", UNFROZEN)
def test_gradients_begin_later_where_a_branch_lets_parameters_train(name: str, tmp_path: Path) -> None:
    # GIVEN a branch on the epoch WHEN asked whether gradients begin later THEN where it lets parameters train
    test, line, later = UNFROZEN[name]
    file = tmp_path / "program.py"
    file.write_text(f"def f(epoch, x):\n    {test}\n        {line}\n    net(x).sum().backward()\n")
    source = Source.of(str(file))
    assert source is not None
    assert gradients_begin_later([source]) is later


def test_momenta_of_zeros_give_what_sgd_gives_with_gradients_that_come_later() -> None:
    # GIVEN two parameters, of which one has gradients from the third step on
    def train(**more: bool) -> list[torch.Tensor]:
        ps = [torch.ones(3, requires_grad=True) for _ in range(2)]
        opt = torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01, **more)
        with begun([vars(opt)]):
            for n in range(5):
                ps[0].grad = torch.full((3,), 1.0 + n)
                ps[1].grad = torch.full((3,), 0.5 + n) if n >= 2 else None
                opt.step()
        return [p.detach() for p in ps]

    # WHEN the kernels are fused, and momenta begin as zeros THEN they do the same
    torch.testing.assert_close(train(fused=True), train())


def test_lines_and_words_begin_all_momenta_at_once(tmp_path: Path) -> None:
    # GIVEN the same step WHEN its optimizer is made fused
    file = tmp_path / "program.py"
    file.write_text(NET + STEP.replace("MORE", FORMS["in place"][0]))
    source = Source.of(str(file))
    assert source is not None
    call = next(n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and ast.unparse(n.func).endswith("SGD"))
    # THEN lines behind that begin its momenta, and words for its branch say one graph for each answer
    assert 'opt.state[p]["momentum_buffer"] = torch.zeros_like(p)' in momenta(source, call)[0].text
    branch = next(n for n in ast.walk(source.tree) if isinstance(n, ast.If))
    space = {"torch": torch, "epoch": 0}
    said = hint(Place(source, branch, Failure("branch-frozen", "", ""), "device", space))
    assert "which parameters have gradients" in said
    assert "`graphs[" in said
    assert said.count("`") % 2 == 0


LOOP = """
loader = [torch.randn(5, 4, generator=torch.Generator().manual_seed(n)) for n in range(2)]
def f(epoch):
    for group in opt.param_groups:
        group["lr"] = 0.1 * 0.7**epoch
    for x in loader:
        x = x.to(device)
        out, aux = net(x)
        loss = out.square().mean()
        if epoch >= 2:
            loss = loss + aux.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
args = (0,)
def feed(i):
    return (i,)
"""


@pytest.mark.sweep
@pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
def test_a_verified_round_with_a_head_that_counts_later_trains_it_too(tmp_path: Path) -> None:
    # GIVEN a loop of a trainer, by whose epoch a head begins to train
    # WHEN its round is a graph with a fused SGD
    fix = launched(NET + LOOP, tmp_path)
    # THEN its momenta begin together, and it is captured anew behind a round as it is
    assert any("fused=True" in line for line in lines_of(fix)), fix
    assert 'opt.state[p]["momentum_buffer"] = torch.zeros_like(p)' in lines_of(fix)
    assert ANEW in str(fix)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "none"])
def test_no_where_is_written_where_an_optimizer_would_count_zeros(name: str, tmp_path: Path) -> None:
    # GIVEN a branch on the device's values that brings a head into a loss
    step = STEP.replace("MORE", FORMS["in place"][0].replace("+=", "= loss +")).replace("epoch >= 2", "out.sum() > 0")
    file = tmp_path / "program.py"
    file.write_text(step)
    source = Source.of(str(file))
    assert source is not None
    node = next(n for n in ast.walk(source.tree) if isinstance(n, ast.If))
    make = getattr(torch.optim, name, None)
    space = {"opt": make([torch.ones(3, requires_grad=True)], lr=0.1)} if make else {}
    # WHEN it is written by where THEN not for an optimizer that takes zeros for gradients: eager has None there
    assert minds_zeros(space.values()) is (name == "AdamW")
    edits = choose_by_where(Place(source, node, Failure("data-dependent-branch", "", ""), "device", space))
    assert bool(edits) is (name != "AdamW")


LEAVING = """
def f(x, quiet):
    opt.zero_grad()
    loss = net(x).mean()
    if not torch.isfinite(loss):
        return None
    if quiet:
        return None
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    OTHER
    opt.step()
    return loss
"""


@pytest.mark.parametrize("other", [True, False], ids=["two", "one"])
def test_words_for_branches_that_leave_one_step_out_tell_the_optimizer_of_all(other: bool, tmp_path: Path) -> None:
    # GIVEN a step that is left out where its loss is no number, and, or not, where its gradients are too large
    file = tmp_path / "program.py"
    file.write_text(LEAVING.replace("    OTHER\n", "    if norm > 100:\n        return None\n" * other))
    source = Source.of(str(file))
    assert source is not None
    opt = torch.optim.AdamW([torch.ones(3, requires_grad=True)])
    forms = dict.fromkeys(["loss", "norm"], Form(torch.Size(()), torch.float32, "cuda"))
    ifs = [n for n in ast.walk(source.tree) if isinstance(n, ast.If) and ast.unparse(n.test) != "quiet"]
    # WHEN words are given at each THEN one line has both: a second one would take the place of the first
    for node in ifs:
        failure = Failure("data-dependent-branch", "", "")
        said = hint(Place(source, node, failure, "device", {"torch": torch, "opt": opt}, forms))
        finite = "torch.logical_not(torch.isfinite(loss))"
        test = f"({finite}) | (norm > 100)" if other else finite
        assert f"`opt.found_inf = ({test}).float()`" in said, said


FILLS = """
def before_f_part(T, w):  # before each launch
    asked = []
    for t in range(1, T):
        asked.append(torch.as_tensor(random.random() < 0.5))
    for held, value in zip(given_in, asked, strict=True):
        held.copy_(value)
"""


@pytest.mark.parametrize("kept", ["T", "w"])
def test_a_number_that_a_graph_keeps_and_that_gives_rounds_is_told_with_what_is_filled_for_each(kept: str) -> None:
    # GIVEN a tensor with an element for each round WHEN its graph keeps a number THEN of the one that gives rounds
    told = _filled_anew(FILLS.splitlines(keepends=True), "f_part", [kept])
    assert ["given_in" in each and "`T` gives here" in each for each in told] == [True] * (kept == "T")
