"""The layers import one way only: read from the source, so that no import can hide in a function."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "paramgraph_kit"
MAX_LINES = 500

# Each layer and the layers that it may import. The programs and the modules at the top level may import anything.
BELOW = {
    "trace": set[str](),
    "driver": {"trace"},
    "partition": {"trace", "driver"},
    "capture": {"trace", "driver", "partition"},
    "launch": {"trace", "driver", "capture"},
    "backend": {"trace", "driver", "partition", "capture", "launch"},
    "doctor": {"trace", "driver", "partition"},
    "rewrite": {"trace", "driver", "doctor"},
    "step": {"trace", "driver", "capture", "launch", "backend", "doctor"},
    "ledger": {"trace", "driver"},
    "explore": {"trace"},
    "recordings": {"trace", "explore"},
    "metrics": {"trace", "driver", "launch", "backend"},
    "verbs": {"trace", "driver", "backend", "doctor", "rewrite", "step", "ledger", "explore"},
}
# The folders of a layer that has some in an order of their own, each with those that it may import.
INSIDE = {
    "rewrite.source": set[str](),
    "rewrite.proving": {"source"},
    "rewrite.expressions": {"source", "proving"},
    "rewrite.counting": {"source", "proving", "expressions"},
    "rewrite.around": {"source", "proving", "expressions", "counting"},
    "rewrite.loops": {"source", "proving", "expressions", "counting", "around"},
    "rewrite.caches": {"source", "proving", "counting"},
    "rewrite.advised": {"source", "expressions", "counting"},
}
PROGRAMS = {"bench", "tour"}
# The only module that may name a driver's inside; everything else asks it for a Driver.
CHOOSES_THE_DRIVER = "driver.select"
WITHOUT_TORCH = ("trace", "explore", "recordings")
DEVICE_LIBRARIES = {"torch", "cuda"}
NOTEBOOK_LIBRARIES = {"anywidget", "ipywidgets", "IPython", "traitlets"}
# The widget and the magic; nothing else knows that notebooks exist.
KNOWS_NOTEBOOKS = ("explore.widget", "explore._widget", "verbs._magic", "verbs._magic_line")


def statements(node: ast.AST, *, typing_only: bool) -> Iterator[ast.AST]:
    """A node and all below it, with or without what only type checkers see."""
    yield node
    hidden = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    below = node.orelse if hidden and not typing_only else ast.iter_child_nodes(node)  # type: ignore[attr-defined]
    for child in below:
        yield from statements(child, typing_only=typing_only)


def imports(path: Path, module: str, *, typing_only: bool = True) -> Iterator[tuple[int, str]]:
    """Every absolute module name that a file imports, with its line; also inside functions and conditions.

    Without ``typing_only`` imports for type checkers alone are left out.
    """
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node in statements(tree, typing_only=typing_only):
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
            folder = ".".join(parts[:2])
            inside = f"{PACKAGE}.{layer}"
            if folder in INSIDE and name.startswith(f"{inside}."):
                beside = name.removeprefix(f"{inside}.").split(".")[0]
                if beside not in INSIDE[folder] | {parts[1]}:
                    found.append(f"{where}: {folder} may import only {sorted(INSIDE[folder])} of its layer")
            for hidden in ("driver.cuda", "driver.sim"):
                if (
                    within(name, f"{PACKAGE}.{hidden}")
                    and not within(inner, hidden)
                    and inner != CHOOSES_THE_DRIVER
                    and layer not in PROGRAMS
                ):
                    found.append(f"{where}: only {CHOOSES_THE_DRIVER} names the inside of a driver")
    return found


def modules_of(root: Path) -> dict[str, Path]:
    """Every module under ``root``, the folder of the package, by its whole name."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join((PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


def file_circles(root: Path) -> list[tuple[str, ...]]:
    """Files that need one another, in groups: each reaches all others of its group through imports."""
    modules = modules_of(root)
    reached: dict[str, set[str]] = {}
    for module, path in modules.items():
        named = set()
        for _, name in imports(path, module, typing_only=False):
            while name and name not in modules:  # "package.module.attribute" needs package.module
                name = name.rpartition(".")[0]
            named.add(name)
        reached[module] = named - {"", module, PACKAGE}  # the root exports everything: it is no layer
    for through in modules:
        for module in modules:
            if through in reached[module]:
                reached[module] |= reached[through]
    groups = {tuple(sorted(m for m in reached[module] if module in reached[m])) for module in modules}
    return sorted(group for group in groups if group)


def test_no_two_files_import_each_other(repository: Path) -> None:
    assert file_circles(repository / PACKAGE) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.py": "from paramgraph_kit import b", "b.py": "import paramgraph_kit.a"}, [("a", "b")]),
        ({"a.py": "from .b import f", "b.py": "def g():\n    from paramgraph_kit.a import f"}, [("a", "b")]),
        ({"x/a.py": "from . import b", "x/b.py": "from .c import f", "x/c.py": "from .a import f"}, ["abc"]),
        ({"x/__init__.py": "from .a import f", "x/a.py": "from paramgraph_kit.x import g"}, [("x", "x.a")]),
        ({"a.py": "from .b import f", "b.py": "if TYPE_CHECKING:\n    from .a import f"}, []),
        ({"a.py": "from .b import f", "b.py": "if typing.TYPE_CHECKING:\n    pass\nelse:\n    import a.b\n"}, []),
        ({"a.py": "from .b import f", "b.py": "try:\n    pass\nfinally:\n    from .a import f"}, [("a", "b")]),
        ({"a.py": "from .b import f", "c.py": "from .b import f", "b.py": ""}, []),
    ],
)
def test_circles_of_files_are_found(tmp_path: Path, files: dict[str, str], expected: list[Any]) -> None:
    # GIVEN a package WHEN its files import one another THEN a circle is found wherever the imports stand
    for file, source in {"__init__.py": "from paramgraph_kit import a", **files}.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    wanted = [tuple(f"x.{m}" for m in group) if isinstance(group, str) else group for group in expected]
    assert file_circles(tmp_path) == [tuple(f"{PACKAGE}.{module}" for module in group) for group in wanted]


def test_files_of_tests_and_scripts_are_short_as_well(repository: Path) -> None:
    paths = [path for folder in ("tests", "scripts") for path in (repository / folder).rglob("*.py")]
    lines = {str(p.relative_to(repository)): len(p.read_text(encoding="utf-8").splitlines()) for p in paths}
    assert len(lines) > 100
    assert {file: n for file, n in lines.items() if n > MAX_LINES} == {}


def test_layers_import_one_way_only(repository: Path) -> None:
    assert violations(repository / PACKAGE) == []


def test_every_layer_exists_and_has_rules(repository: Path) -> None:
    folders = {p.parent.name for p in (repository / PACKAGE).glob("*/__init__.py")}

    assert folders == {*BELOW, *PROGRAMS}


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("trace/model.py", "import torch", "trace.model:1 imports torch: trace works without it"),
        ("explore/text.py", "def f():\n    from cuda.bindings import driver", "explore.text:2 imports cuda.bindings"),
        ("explore/text.py", "from paramgraph_kit.ledger import pools", "explore may import only ['trace']"),
        ("driver/api.py", "from ..launch import plan", "driver may import only ['trace']"),
        ("driver/api.py", "import paramgraph_kit", "driver may import only ['trace']"),
        ("rewrite/proving/a.py", "from ..loops import asks", "rewrite.proving may import only ['source'] of its layer"),
        ("rewrite/source/a.py", "from ..planning import plan", "rewrite.source may import only [] of its layer"),
        ("launch/plan.py", "from paramgraph_kit.driver.sim import arena", "only driver.select names the inside"),
        ("launch/plan.py", "from paramgraph_kit.driver import cuda", "only driver.select names the inside"),
        ("driver/cuda/a.py", "from ..sim import arena", "only driver.select names the inside"),
        ("__main__.py", "import importlib\nimportlib.import_module('paramgraph_kit.driver.sim')", "only driver.select"),
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
        "verbs/_magic.py": "from IPython.core.magic import Magics",
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
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)


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
