"""The layers import one way only: read from the source, so that no import can hide in a function."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "paramgraph_kit"
MAX_LINES = 500

# Each layer and the layers that it may import. `bench` and the modules at the top level may import anything.
BELOW = {
    "trace": set[str](),
    "driver": {"trace"},
    "partition": {"trace", "driver"},
    "capture": {"trace", "driver", "partition"},
    "launch": {"trace", "driver", "capture"},
    "backend": {"trace", "driver", "partition", "capture", "launch"},
    "doctor": {"trace", "driver", "partition"},
    "ledger": {"trace", "driver"},
    "explore": {"trace"},
}
# The only module that may name a driver's inside; everything else asks it for a Driver.
CHOOSES_THE_DRIVER = "driver.select"
WITHOUT_TORCH = ("trace", "explore")
DEVICE_LIBRARIES = {"torch", "cuda"}
NOTEBOOK_LIBRARIES = {"anywidget", "ipywidgets", "IPython", "traitlets"}
# The widget and the magic; nothing else knows that notebooks exist.
KNOWS_NOTEBOOKS = ("explore.widget", "explore._widget", "magic", "_magic")


def imports(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Every absolute module name that a file imports, with its line; also inside functions and conditions."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func)
            if called in ("importlib.import_module", "import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def violations(root: Path) -> list[str]:
    """Every broken rule under ``root``, the folder of the package."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        inner = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)  # "driver.sim.arena", "" for the root
        layer = parts[0] if len(parts) > 1 else ""
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            found.append(f"{inner or PACKAGE}: {lines} lines, at most {MAX_LINES}")
        for line, name in imports(path, f"{PACKAGE}.{inner}".rstrip(".")):
            where = f"{inner or PACKAGE}:{line} imports {name}"
            top = name.split(".")[0]
            if top in NOTEBOOK_LIBRARIES and not any(within(inner, known) for known in KNOWS_NOTEBOOKS):
                found.append(f"{where}: only the widget and the magic may")
            if layer in WITHOUT_TORCH and top in DEVICE_LIBRARIES:
                found.append(f"{where}: {layer} works without it")
            if top != PACKAGE:
                continue
            target = name.split(".")[1] if "." in name else ""
            if layer in BELOW and target not in BELOW[layer] | {layer, "_version"}:
                found.append(f"{where}: {layer} may import only {sorted(BELOW[layer])}")
            for inside in ("driver.cuda", "driver.sim"):
                if (
                    within(name, f"{PACKAGE}.{inside}")
                    and not within(inner, inside)
                    and inner != CHOOSES_THE_DRIVER
                    and layer != "bench"
                ):
                    found.append(f"{where}: only {CHOOSES_THE_DRIVER} names the inside of a driver")
    return found


def test_layers_import_one_way_only(repository: Path) -> None:
    assert violations(repository / PACKAGE) == []


def test_every_layer_exists_and_has_rules(repository: Path) -> None:
    folders = {p.parent.name for p in (repository / PACKAGE).glob("*/__init__.py")}

    assert folders == {*BELOW, "bench"}


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("trace/model.py", "import torch", "trace.model:1 imports torch: trace works without it"),
        ("explore/text.py", "def f():\n    from cuda.bindings import driver", "explore.text:2 imports cuda.bindings"),
        ("explore/text.py", "from paramgraph_kit.ledger import pools", "explore may import only ['trace']"),
        ("driver/api.py", "from ..launch import plan", "driver may import only ['trace']"),
        ("driver/api.py", "import paramgraph_kit", "driver may import only ['trace']"),
        ("launch/plan.py", "from paramgraph_kit.driver.sim import arena", "only driver.select names the inside"),
        ("launch/plan.py", "from paramgraph_kit.driver import cuda", "only driver.select names the inside"),
        ("driver/cuda/a.py", "from ..sim import arena", "only driver.select names the inside"),
        ("_tour.py", "import importlib\nimportlib.import_module('paramgraph_kit.driver.sim')", "only driver.select"),
        ("backend/report.py", "if True:\n    import IPython.display", "only the widget and the magic may"),
        ("trace/long.py", "pass\n" * 501, "trace.long: 501 lines, at most 500"),
    ],
)
def test_planted_violation_is_found(tmp_path: Path, file: str, source: str, expected: str) -> None:
    # GIVEN a package with one broken rule
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)

    # WHEN
    found = violations(tmp_path)

    # THEN it is the one thing that is reported
    assert len(found) == 1
    assert expected in found[0]


def test_what_is_allowed_is_not_reported(tmp_path: Path) -> None:
    for file, source in {
        "driver/select.py": "from paramgraph_kit.driver.sim import driver\nfrom paramgraph_kit.driver import cuda",
        "driver/sim/arena.py": "import torch\nfrom . import events\nfrom paramgraph_kit.trace import model",
        "_magic.py": "from IPython.core.magic import Magics",
        "explore/widget.py": "import anywidget\nfrom paramgraph_kit.trace import model",
        "bench/run.py": "from paramgraph_kit.backend import report",
        "__init__.py": "from paramgraph_kit.launch import plan",
    }.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    assert violations(tmp_path) == []


BLOCKED = """
import importlib, importlib.abc, pkgutil, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked in this test")

sys.meta_path.insert(0, Blocked())
for name in {modules!r}:
    importlib.import_module(name)
print("imported")
"""


def run_blocked(*modules: str, blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    code = BLOCKED.format(modules=modules, blocked=blocked)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


def test_trace_and_explore_import_where_there_is_no_torch(repository: Path) -> None:
    # GIVEN every module of these layers, except the widget, which needs anywidget
    package = repository / PACKAGE
    modules = [
        ".".join(path.relative_to(repository).with_suffix("").parts).removesuffix(".__init__")
        for layer in WITHOUT_TORCH
        for path in sorted((package / layer).rglob("*.py"))
        if not any(within(f"{layer}.{path.stem}", known) for known in KNOWS_NOTEBOOKS)
    ]
    assert len(modules) >= 3

    # WHEN they are imported where torch, CUDA and the notebook libraries are not to be had
    result = run_blocked(*modules, blocked=("torch", "cuda", "anywidget", "ipywidgets", "IPython"))

    # THEN
    assert result.stderr == ""
    assert result.stdout == "imported\n"


def test_blocking_torch_does_block(repository: Path) -> None:
    result = run_blocked("paramgraph_kit.driver.api", blocked=("torch",))

    assert result.returncode == 1
    assert "torch is blocked in this test" in result.stderr
