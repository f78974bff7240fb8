"""What a walk over a step's objects finds, by what name, and where it ends."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import pytest
import torch

from paramgraph_kit.step.names import Names
from paramgraph_kit.step.reach import Reach


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "told"), [("net", "net"), ("", "the step")])
def test_the_first_module_that_torch_jit_has_compiled_is_told(name: str, told: str) -> None:
    # GIVEN such modules WHEN walked, one of them without a name THEN the first is told, by some name
    modules = [torch.jit.script(torch.nn.Linear(2, 2)) for _ in range(2)]
    assert Reach([(name, modules[0]), ("other", modules[1])], [], Names()).scripted == told
    assert Reach([(name, torch.nn.Linear(2, 2))], [], Names()).scripted == ""
