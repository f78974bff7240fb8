"""What is a tensor or None by a number of the host's is chosen by no tensor."""

from __future__ import annotations

from pathlib import Path

import torch

from paramgraph_kit.rewrite.advised.host.from_host import decided
from paramgraph_kit.rewrite.agreeing import named_apart
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.trace.model import Failure

TEXT = """
def denoise(x, cond=None):
    cond = cond if cond is not None else torch.zeros_like(x)
    return net(torch.cat((cond, x), dim=1))

def step(x):
    cond = None
    if random() < 0.5:
        cond = denoise(x).clamp(-1, 1)
    return denoise(x, cond).mean()
"""


def _told(text: str, line: int, folder: Path) -> str:
    file = folder / "program.py"
    file.write_text(text)
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(line)
    assert statement is not None
    space = {"torch": torch}
    return decided(Place(source, statement, Failure("branch-frozen", "", ""), "device", space, entry="step"))


def test_a_tensor_or_none_has_a_graph_for_each_answer(tmp_path: Path) -> None:
    # GIVEN a step that hands on what is None in half of its calls
    # WHEN both lines that ask are told what to write
    deciding, asking = _told(TEXT, 8, tmp_path), _told(TEXT, 3, tmp_path)
    # THEN the number decides about a graph, and no tensor is filled with what is not there before a launch
    assert "whether `cond` is a tensor or None: ask `train_9 = random() < 0.5` before each launch" in deciding, deciding
    assert "stays as it is" in asking, asking


def test_a_tensor_or_another_one_is_chosen_by_a_tensor(tmp_path: Path) -> None:
    # GIVEN the same where it is a tensor else, too
    # WHEN / THEN
    assert "torch.where(chosen_in" in _told(TEXT.replace("    cond = None", "    cond = x * 0"), 8, tmp_path)


def test_flags_for_two_questions_have_two_names() -> None:
    # GIVEN words for two branches, and those of a line that goes by the first of them
    first, other = (f"once `chosen_in = x`, `chosen_in.fill_({asked})`, here `chosen_in`" for asked in ("a < 1", "b"))
    # WHEN they are told together THEN only what is another flag has another name
    assert named_apart([first, other, first]) == [first, other.replace("chosen_in", "chosen_in_2"), first]
