"""Fixes of functions that return text: a label that is picked by what the device says, a key, a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramgraph_kit.rewrite.proving.closeness import differences as apart
from paramgraph_kit.rewrite.proving.printed import RETURNED, texts
from tests.integration.rewritten import lines_of, rewritten

HEAD = """\
labels = ["cat", "dog", "bird", "fish"]
model = nn.Linear(6, 4).to(device)
args = (torch.randn(1, 6, device=device),)
def seen(out):
    one = next(iter(out)) if isinstance(out, (dict, tuple)) else out
    return labels.index(one.split()[0])
"""
PROGRAMS = {
    "a label": "return labels[idx]",
    "a label as a key": "return {labels[idx]: float(idx)}",
    "a label and its score": "return labels[idx], float(idx)",
    "a message": "return f'{labels[idx]} of {len(labels)}'",
}


@pytest.mark.parametrize("line", PROGRAMS.values(), ids=PROGRAMS)
def test_a_text_that_the_device_chooses_is_the_same_behind_each_launch(line: str, tmp_path: Path) -> None:
    # GIVEN a function whose result is text, picked from a list of Python's
    text = HEAD + f"@torch.no_grad()\ndef f(x):\n    idx = model(x).argmax(dim=-1)\n    {line}\n"
    # WHEN it is rewritten THEN what is whole gives the same texts over ten steps, and picks from the list as before
    fix = rewritten(text, tmp_path)
    assert fix.complete, fix
    assert any("labels[" in each for each in lines_of(fix)), fix
    assert "reshape(1)" not in fix.diff


def test_texts_are_compared_word_by_word_and_numbers_by_their_digits() -> None:
    # GIVEN results with texts WHEN two runs differ in a word, in a key or by more than a rounding THEN it is said
    def said(one: object, other: object) -> list[str]:
        return apart(dict(texts([one])), dict(texts([other])))

    assert said("cat", "c") == [f"{RETURNED}: cat, then c"]
    assert said({"cat": 1}, {"dog": 1}) == [f"{RETURNED}: cat, then dog"]
    assert said(("loss 0.2501",), ("loss 0.2900",)) == [f"{RETURNED}: 0.2501, then 0.2900"]
    assert said("loss 0.2501", "loss 0.2502") == []
    assert said("tensor(2., device='sim:0')", "tensor(2.)") == []
