"""Programs that are recorded as a user's own, under a name of their own: lines of this package count as nobody's."""

from __future__ import annotations

import linecache
import sys
from importlib.resources import files
from types import ModuleType
from typing import Any


def run_program(name: str, package: str = __package__) -> dict[str, Any]:
    """The names that a file of a package defines, run as the module ``recorded.NAME`` from a file called ``name``."""
    text = (files(package) / name).read_text(encoding="utf-8")
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = ModuleType(f"recorded.{name.removesuffix('.py')}")
    sys.modules[module.__name__] = module  # dataclasses and Dynamo look there
    exec(compile(text, name, "exec"), module.__dict__)
    return module.__dict__
