"""What a notebook still holds of a step that ran in it: results whose backward pass is done, and with it their use."""

from __future__ import annotations

import pytest
import torch

from tests.integration.shells import Session

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")

STEP = """
net = torch.nn.Linear(4, 2).to(pgk.device())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.ones(3, 4, device=pgk.device()), torch.zeros(3, 2, device=pgk.device())
losses = []

def train(x, y):
    loss = (net(x) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss

"""


@pytest.mark.parametrize(
    ("call", "held"),
    [
        ("train(x, y)", "Out["),
        ("kept = train(x, y)", "kept"),
        ("(train(x, y), 1)", "Out["),
        ("losses.append(train(x, y))", "losses"),
    ],
    ids=["shown", "named", "in a tuple", "in a list"],
)
def test_a_step_that_has_run_in_the_notebook_is_told_as_if_it_had_not(session: Session, call: str, held: str) -> None:
    # GIVEN a step that was called once in a cell, as people do before they ask
    session.good(STEP + "story = pgk.story(train, x, y, say=None)")
    session.good(call)
    # WHEN its story is told THEN it comes to its end, and says what it has let go, and why
    session.good("again = pgk.story(train, x, y, say=None)")
    assert session["story"].complete, str(session["story"])
    assert session["again"].complete, str(session["again"])
    assert f"{held}" in str(session["again"])
    assert "its graph would have drawn a capture to the default stream" in str(session["again"])
    assert "legacy-stream" not in str(session["again"])
    assert not any(f.code == "legacy-stream" for trace in session["again"].traces.values() for f in trace.failures)
    # AND a diagnosis of the function agrees, whoever is asked first
    session.good(call)
    session.good("found = pgk.diagnose(train, x, y)")
    assert "legacy-stream" not in session["found"].codes
    assert any(held in note and "detached" in note for note in session["found"].notes)


def test_a_step_is_launched_although_a_cell_has_shown_its_loss(session: Session) -> None:
    # GIVEN a step that was called once in a cell
    session.good(STEP + "train(x, y)")
    # WHEN it is parameterized and called THEN it is launched
    session.good(
        "fast = pgk.parameterize(train, state=(net, opt))\n"
        "with pgk.watch() as trace:\n    results = [fast(x, y) for _ in range(4)]"
    )
    assert len(session["trace"].launches) == 2, str(session.good("pgk.report(fast)").result)


def test_what_a_backward_pass_may_still_go_through_is_left_alone(session: Session) -> None:
    # GIVEN a loss that nobody has differentiated yet
    session.good(STEP + "waiting = (net(x) - y).square().mean()")
    # WHEN asked THEN it keeps its graph, and is told of
    session.good("found = pgk.diagnose(train, x, y)")
    assert session["found"].codes == ("legacy-stream",)
    assert session["waiting"].grad_fn is not None
    session["waiting"].backward()
