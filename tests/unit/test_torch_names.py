"""The private names of torch: every one is there, and a name that is gone is said so in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paramgraph_kit.driver import torch_names
from paramgraph_kit.driver.torch_names import CUDA, NAMES, TorchName, missing, torch_name
from paramgraph_kit.trace.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # looking up imports much of torch


def test_this_torch_has_every_name() -> None:
    # GIVEN this torch WHEN every name is looked up THEN none is gone
    assert missing() == []


def test_the_names_of_cuda_are_declared_even_where_torch_has_no_cuda() -> None:
    # GIVEN what any build of torch ships as source or stub
    package = Path(torch.__file__).parent
    files = [*package.glob("_C/**/*.pyi"), *package.glob("cuda/*.py"), *package.glob("_inductor/**/*.py")]
    text = "".join(path.read_text() for path in files)
    # WHEN read THEN each name of driver/cuda stands there
    assert [name.path for name in CUDA if name.key not in text] == []


def test_every_name_says_what_for_and_where_it_was_seen() -> None:
    # GIVEN all entries WHEN read THEN each has a reason and at least one version
    assert all(entry.why and entry.seen for entry in (*NAMES.values(), *CUDA))


def test_a_name_that_is_gone_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an entry whose name no torch has
    entry = TorchName("torch._C:_never_there", ("2.11",), "a test")
    monkeypatch.setitem(torch_names.NAMES, "_never_there", entry)
    # WHEN looked up THEN the message names it, what for, where it was seen, and what to do
    with pytest.raises(UnsupportedError) as caught:
        torch_name("_never_there")
    text = f"torch {torch.__version__} has no torch._C:_never_there (a test); seen in torch 2.11: install one of these"
    assert str(caught.value) == text
    assert "torch._C:_never_there" in missing()
