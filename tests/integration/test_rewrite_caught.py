"""What the user's own lines catch is not made an assertion of the device's, and behind a launch that is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
HEAD = """
class Overflow(ArithmeticError): pass
net = nn.Linear(4, 4).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device),)
"""
CHECKED = """
def check(y):
    if y.abs().max() > 100:
        raise Overflow("too large")
    return y

def f(x):
    {begin}
        y = check(net(x))
    {handler}
        y = torch.zeros_like(x)
    return y
"""


@pytest.mark.parametrize("handler", ["except Overflow:", "except ArithmeticError:", "except Exception:", "except:"])
def test_what_is_caught_is_not_asserted_on_the_device(handler: str, tmp_path: Path) -> None:
    # GIVEN a function that goes on with something else where a value of the device is too large
    fix = rewritten(HEAD + CHECKED.format(begin="try:", handler=handler), tmp_path)
    # WHEN a fix is asked for THEN none ends the process there, and the branch is left with its line
    assert "_assert_async" not in fix.diff
    assert not fix.complete
    assert [each.code for each in fix.left] == ["data-dependent-branch"]


@pytest.mark.parametrize("handler", ["except KeyError:", "finally:"])
def test_what_nobody_catches_is_asserted(handler: str, tmp_path: Path) -> None:
    # GIVEN the same with a handler of something else, or none WHEN a fix is asked for THEN the device checks it
    fix = rewritten(
        HEAD + CHECKED.format(begin="try:", handler=handler).replace("y = torch.zeros", "_ = torch.zeros"), tmp_path
    )
    assert fix.complete
    assert any("_assert_async" in line for line in lines_of(fix))


def test_what_a_decorator_catches_is_said_where_it_is_raised_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN a step whose decorator tries again where its loss is not finite
    fix = rewritten(
        HEAD
        + """
import functools
def again(step):
    @functools.wraps(step)
    def tried(x):
        try:
            return step(x)
        except ValueError:
            return step(x)
    return tried

@again
def f(x):
    loss = net(x).pow(2).mean()
    if not math.isfinite(loss.item()):
        raise ValueError("loss")
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
""",
        tmp_path,
    )
    # WHEN it is rewritten THEN the raise is behind the launch, and that nothing catches it there is told
    assert "after_f" in fix.diff
    assert any("`except ValueError:` (line 22) does not catch it" in each for each in fix.verified)


TRIES_AGAIN = """
args = (torch.randn(4, 4, device=device),)
def f(x):
    k = x @ x.T
    jitter = 1e-6
    while True:
        try:
            return torch.linalg.cholesky(k + jitter * torch.eye(4, device=x.device))
        except {error}:
            jitter *= 10
"""


@pytest.mark.parametrize("error", ["RuntimeError", "torch.linalg.LinAlgError", "Exception"])
def test_another_try_is_not_lost_and_has_an_end_where_inputs_bring_none(error: str, tmp_path: Path) -> None:
    # GIVEN a factorization that is tried with more and more on its diagonal, without end where its input is infinite
    fix = rewritten(TRIES_AGAIN.format(error=error), tmp_path)
    # WHEN a fix is asked for THEN it ends, and no line leaves the error out that the handler waits for
    assert "cholesky_ex" not in fix.diff


def test_words_for_another_try_keep_the_function_for_it(tmp_path: Path) -> None:
    # GIVEN the same in one try WHEN it is advised THEN the first try is captured, and what comes after it is not
    text = TRIES_AGAIN.format(error="RuntimeError").replace("while True", "for _ in range(3)")
    fix = rewritten(text + "    return k\n", tmp_path)
    said = " ".join(fix.instead)
    assert "waits for its error, which no graph can raise" in said or "cholesky_ex" not in fix.diff
