"""The private names of torch: every one is there, and a name that is gone is said so in one line."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paramgraph_kit.driver import torch_names
from paramgraph_kit.driver.torch_names import (
    CUDA,
    NAMES,
    NATIVE,
    PINNED_ALLOCATOR_SLOT,
    NativeName,
    TorchName,
    missing,
    native_name,
    torch_name,
    version,
)
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


PRIVATE = re.compile(r"\._(?!_)")


def private_names(tree: ast.AST) -> Iterator[str]:
    """The private names of torch that a module uses by import or by attribute, whole."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {a.asname or "torch": a.name if a.asname else "torch" for a in node.names if is_torch(a.name)}
        elif isinstance(node, ast.ImportFrom) and is_torch(node.module or ""):
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    yield from (name for name in known.values() if PRIVATE.search(name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            first, _, rest = name.partition(".")
            if (
                re.fullmatch(r"[\w.]+", name)
                and first in known
                and PRIVATE.search(f".{rest}")
                and not rest.startswith("ops.")
            ):
                yield f"{known[first]}.{rest}"


def is_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def test_no_name_is_used_that_is_not_here(repository: Path) -> None:
    # GIVEN the package's code WHEN read THEN each private name of torch in it is an entry, or lies in one
    entries = {entry.path.replace(":", ".").rstrip(".") for entry in (*NAMES.values(), *CUDA)}
    used = {
        (name, path.name)
        for path in (repository / "paramgraph_kit").rglob("*.py")
        for name in private_names(ast.parse(path.read_text(encoding="utf-8")))
        if not any(f"{name}.".startswith(f"{entry}.") or entry.startswith(f"{name}.") for entry in entries)
    }
    assert sorted(used) == []


def test_every_name_is_told_once() -> None:
    # GIVEN the module's own text WHEN its paths are read THEN none stands there twice, in whatever spelling
    text = Path(torch_names.__file__).read_text(encoding="utf-8")
    paths = [found.replace(":", ".") for found in re.findall(r'"(torch[\w.]*:[\w.]*)"', text)]
    assert [path for path in paths if paths.count(path) > 1] == []


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


@pytest.mark.skipif(sys.platform != "linux" or version() not in PINNED_ALLOCATOR_SLOT, reason="not called there")
def test_this_torch_has_every_name_of_its_cpp() -> None:
    # GIVEN a torch whose C++ has been looked at WHEN each function is looked up THEN it is there, in that version
    assert all(native_name(key) for key in NATIVE)
    assert all(entry.why and version() in entry.seen for entry in NATIVE.values())


@pytest.mark.parametrize(
    "entry",
    [
        NativeName("c10", "_ZN3c105neverEv", ("2.11", version()), "a test"),
        NativeName("c10", "_ZN3c1015GetCPUAllocatorEv", ("1.0",), "a test"),
    ],
)
def test_cpp_that_is_gone_or_of_another_version_is_not_called(
    entry: NativeName, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a symbol that no torch has, or one seen in another version only
    monkeypatch.setitem(NATIVE, "gone", entry)
    # WHEN looked up THEN it is refused, in one line
    with pytest.raises(UnsupportedError, match=rf"is not known to have {entry.symbol} \(a test\)"):
        native_name("gone")
