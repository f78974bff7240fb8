"""What is said of lines of a helper that bring to the host what a backward pass of the step goes through."""

from __future__ import annotations

import ast
from pathlib import Path

from paramgraph_kit.rewrite.advised.host.trained_through import trained_through
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.trace.model import Failure

EPISODE = """\
def prototypical(z, y):
    y_cpu = y.to("cpu")
    idx = [y_cpu.eq(c).nonzero().squeeze(1) for c in (0, 1)]
    means = torch.stack([z[each].mean(0) for each in idx])
    return -torch.cdist(z, means).log_softmax(-1).mean(), y.sum()

def f(x, y):
    opt.zero_grad()
    loss, n = prototypical(net(x), y)
    total = 0.5 * loss
    total.backward()
    opt.step()
"""
ONLY_TOLD = EPISODE.replace("(z, means)", "(z, z[:3])").replace("y.sum()", "means")


def told(text: str, folder: Path) -> str:
    """What is said of the helper's copy."""
    (folder / "program.py").write_text(text)
    source = Source.of(str(folder / "program.py"))
    assert source is not None
    helper, step = (n for n in source.tree.body if isinstance(n, ast.FunctionDef))
    return trained_through(Place(source, helper.body[0], Failure("copy-to-cpu", "", ""), "device"), (source, step))


def test_what_a_loss_is_made_of_cannot_go_behind_a_launch(tmp_path: Path) -> None:
    # GIVEN a loss of what a helper picks on the host WHEN its copy is explained
    found = told(EPISODE, tmp_path)
    # THEN the backward pass is named that goes through it, and what to do instead
    assert found.startswith("`total.backward()` (line 11) goes through what it makes, and none goes through a launch")
    assert found.endswith('`f = torch.compile(f, backend="paramgraph")` launches what lies before and after it')


def test_what_a_helper_gives_beside_the_loss_may_go_there(tmp_path: Path) -> None:
    # GIVEN a copy that only what is returned beside the loss has WHEN it is explained THEN it is none of the loss's
    assert told(ONLY_TOLD, tmp_path) == ""
