"""What the names of arguments say: which are no input of a graph, and which are one that a wrapper forgets."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import pytest
import torch

from paramgraph_kit.doctor.observe.given_names import is_apart, is_of_the_next

FILE = "def predict(): return net(x)\ndef train(): return loss.backward()\ndef fit(): out = train()\n"
BATCH = ["batch['input_ids']", "batch['labels']", "batch['noise']"]
STATIC = ["self.static['input_ids']", "self.static['token_type_ids']"]


@pytest.fixture
def codes(tmp_path: Path) -> dict[str, CodeType]:
    """A function that captures what predicts, and one that captures what learns."""
    path = tmp_path / "program.py"
    path.write_text(FILE)
    code = compile(FILE, str(path), "exec")
    return {each.co_name: each for each in code.co_consts if isinstance(each, CodeType)}


@pytest.mark.parametrize(
    ("given", "path", "held", "code", "apart"),
    [
        ("labels", "self.mask", torch.zeros(4), "predict", True),
        ("labels", "self.static_y", torch.zeros(4), "train", False),
        ("labels", "self.static_y", torch.zeros(4), "fit", False),
        ("labels", "self.labels", torch.zeros(4), "predict", False),
        ("args[1]", "self.static[1]", torch.zeros(4), "predict", False),
        ("done", "self.batch.mask", torch.zeros(4), "predict", False),
        ("scores", "positions", torch.arange(4)[None], "predict", True),
        ("pos", "self.pos", torch.arange(4), "predict", False),
        ("scores", "self.x", torch.arange(4.0), "predict", False),
        ("batch['noise']", STATIC[1], torch.zeros(4), "predict", True),
        ("batch['noise']", "self.noise", torch.zeros(4), "predict", False),
        ("noise", STATIC[1], torch.zeros(4), "predict", False),
    ],
)
def test_an_argument_is_apart_from_what_its_name_cannot_mean(
    given: str, path: str, held: torch.Tensor, code: str, apart: bool, codes: dict[str, CodeType]
) -> None:
    # GIVEN an argument that nothing reads, and a tensor that a graph reads and nobody fills
    # WHEN their names, and those beside them, are asked whether one is for the other
    # THEN labels are not for what only predicts, positions for nothing else, and entries known by their keys for these
    assert is_apart(given, path, held, codes[code], BATCH, [*STATIC, path]) is apart


@pytest.mark.parametrize(
    ("name", "told"), [("next_batch", True), ("upcoming", True), ("batch['prefetched']", True), ("x", False)]
)
def test_an_argument_may_be_named_for_the_next_call(name: str, told: bool) -> None:
    # GIVEN the name of an argument that is copied behind a replay
    # WHEN / THEN
    assert is_of_the_next(name) is told
