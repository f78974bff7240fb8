"""Modules, buffers of C and the interpreter."""

# mypy: ignore-errors
from __future__ import annotations

import abc
import argparse
import ctypes
import decimal
import importlib
import io
import pathlib
import sys
import tempfile
import time
import types

import numpy as np
import torch.nn.functional as F

from tests.integration.changes.base import drop, ones
from tests.integration.state_places import Place, entry, setting


def of_replaced_module() -> Place:
    def put(value: float) -> None:
        module = types.ModuleType("paramgraph_settings")
        module.scale = value
        sys.modules["paramgraph_settings"] = module

    put(1.0)

    def read() -> float:
        import paramgraph_settings  # type: ignore[import-not-found]

        return float(paramgraph_settings.scale)

    return read, put


def of_imported_name() -> Place:
    module = types.ModuleType("paramgraph_settings")
    module.scale = 1.0
    sys.modules["paramgraph_settings"] = module
    return lambda: importlib.import_module("paramgraph_" + "settings").scale, setting(module, "scale")


def of_module_getattr() -> Place:
    module, kept = types.ModuleType("paramgraph_settings"), [1.0]
    module.__getattr__ = lambda name: kept[0]
    return lambda: module.anything, entry(kept, 0)


def of_module_subclass() -> Place:
    class Settings(types.ModuleType):
        kept = 1.0

        @property
        def scale(self) -> float:
            return self.kept

    module = Settings("paramgraph_settings")
    return lambda: module.scale, setting(Settings, "kept")


def of_reloaded_module() -> Place:
    folder = tempfile.mkdtemp()
    path = pathlib.Path(folder, "paramgraph_reloaded.py")
    path.write_text("def scale(): return 1.0\n")
    sys.path.insert(0, folder)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    importlib.invalidate_caches()
    module = importlib.import_module("paramgraph_reloaded")
    sys.dont_write_bytecode = before

    def reload(value: float) -> None:
        path.write_text(f"def scale(): return {value}  # {time.time_ns()}\n")
        importlib.invalidate_caches()
        for cached in pathlib.Path(folder).rglob("*.pyc"):
            cached.unlink()
        importlib.reload(module)

    return lambda: module.scale(), reload


def of_arguments_of_the_program() -> Place:
    count = len(sys.argv)

    def change(value: float) -> None:
        sys.argv.append("more")

    return lambda: float(len(sys.argv) - count + 1), change


def of_library_setting() -> Place:
    decimal.paramgraph_test = 1.0
    return lambda: decimal.paramgraph_test, setting(decimal, "paramgraph_test")


def of_library_class_setting() -> Place:
    argparse.Namespace.paramgraph_test = 1.0
    kept = argparse.Namespace(a=1.0)
    return lambda: kept.a, setting(kept, "a")


def of_replaced_library_function() -> Place:
    F.paramgraph_test = lambda x: x * 1.0

    def put(value: float) -> None:
        F.paramgraph_test = lambda x: x * value

    return lambda: F.paramgraph_test(ones()), put


def of_string_buffer() -> Place:
    kept = io.StringIO("1.0")

    def change(value: float) -> None:
        kept.seek(0)
        kept.write(str(value))

    return lambda: float(kept.getvalue()), change


def of_c_number() -> Place:
    kept = ctypes.c_double(1.0)
    return lambda: kept.value, setting(kept, "value")


def of_c_structure() -> Place:
    class Point(ctypes.Structure):
        _fields_ = [("x", ctypes.c_double)]

    kept = Point(1.0)
    return lambda: kept.x, setting(kept, "x")


def of_memory_view() -> Place:
    inner = bytearray([1])
    kept = memoryview(inner)
    return lambda: float(kept[0]), lambda value: entry(inner, 0)(int(value))


def of_structured_array() -> Place:
    kept = np.zeros(2, dtype=[("a", "f4"), ("b", "i4")])
    kept["a"] = 1.0
    return lambda: float(kept["a"][0]), lambda value: kept["a"].fill(value)


def of_record_array() -> Place:
    kept = np.rec.array([(1.0, 2)], dtype=[("a", "f4"), ("b", "i4")])
    return lambda: float(kept.a[0]), lambda value: kept.a.fill(value)


def of_view_of_an_array() -> Place:
    base = np.ones((4, 4))
    kept = base[::2, 1]
    return lambda: float(kept[1]), lambda value: base.fill(value)


def of_read_only_array() -> Place:
    base = np.ones(2)
    kept = base.view()
    kept.flags.writeable = False
    return lambda: float(kept[0]), lambda value: base.fill(value)


def of_object_array() -> Place:
    kept = np.array([[1.0], None], dtype=object)
    return lambda: kept[0][0], entry(kept[0], 0)


def of_array_scalar() -> Place:
    kept = {"x": np.float32(1.0)}
    return lambda: kept["x"].item(), lambda value: entry(kept, "x")(np.float32(value))


def of_array_that_is_reshaped() -> Place:
    kept = np.ones((1, 6))

    def change(value: float) -> None:
        kept.shape = (6, 1) if kept.shape == (1, 6) else (1, 6)

    return lambda: float(kept.shape[0]), change


def of_decimal_context() -> Place:
    def change(value: float) -> None:
        decimal.getcontext().prec = 2 if decimal.getcontext().prec != 2 else 28

    return lambda: float(decimal.Decimal(1) / decimal.Decimal(3)), change


def of_registered_class() -> Place:
    class Kind(abc.ABC):  # noqa: B024
        pass

    class Member:
        pass

    member = Member()
    return lambda: 2.0 if isinstance(member, Kind) else 1.0, lambda value: drop(Kind.register(Member))


def of_global_that_comes_and_goes() -> Place:
    globals().pop("SOMETIMES", None)

    def read():
        try:
            return SOMETIMES
        except NameError:
            return 1.0

    def change(value):
        if globals().pop("SOMETIMES", None) is None:
            globals()["SOMETIMES"] = value

    return read, change
