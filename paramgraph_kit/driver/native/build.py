"""Building the checks in C++ once per machine, in the background: it takes 2 s and no more than a compiler.

What is built is kept in the user's cache folder. Without a compiler, or where anything else is in the way, nothing is
built and all is asked in Python.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.resources import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch

from paramgraph_kit.trace.errors import UnsupportedError

MODULE = "paramgraph_kit_checks"
SOURCES = ("checks.h", "checks.cpp", "interpreter.cpp", "places.cpp")
LONGEST_S = 300
_log = logging.getLogger(__name__)
_built: list[Any] = []  # the module, once it is there
_loading = threading.Lock()


def checks() -> Any | None:
    """The module, as far as it is built by now; ``prepare`` begins that."""
    return _built[0] if _built else None


def prepare(*, wait: bool = False) -> None:
    """Begin to build it, once in a process; ``wait`` until that is done."""
    thread = _begin()
    if wait:
        thread.join()


@cache
def _begin() -> threading.Thread:
    thread = threading.Thread(target=_build, name="paramgraph_kit builds its checks", daemon=True)
    # A thread that the interpreter's end finds in torch's C++ aborts the process: a compiler is left, a load is not.
    atexit.register(_loading.acquire, timeout=10)
    thread.start()
    return thread


def _build() -> None:
    try:
        path = built_at(cache_folder())
        with _loading:
            _built.append(load(path))
    except Exception as error:
        _log.info("checks stay in Python: %s", error)


def cache_folder() -> Path:
    """Where this package keeps what it builds."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paramgraph_kit"


def built_at(folder: Path) -> Path:
    """The built library in a folder, built now if it is not there.

    Raises:
        UnsupportedError: there is no compiler, or it fails.
    """
    sources = {name: files("paramgraph_kit.driver.native").joinpath(name).read_bytes() for name in SOURCES}
    torch_is = torch.__version__, torch.version.git_version, torch.compiled_with_cxx11_abi()
    known = repr((torch_is, sys.version, sysconfig.get_config_var("SOABI"), platform.machine())).encode()
    path = folder / f"{hashlib.sha256(b''.join(sources.values()) + known).hexdigest()[:24]}.so"
    if path.is_file() and path.stat().st_size:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        made = Path(beside, path.name)
        for name, source in sources.items():
            Path(beside, name).write_bytes(source)
        _compile([Path(beside, name) for name in SOURCES if name.endswith(".cpp")], made)
        os.replace(made, path)
    return path


def _compile(sources: Sequence[Path], target: Path) -> None:
    if not sys.platform.startswith("linux"):
        raise UnsupportedError("they are only built on Linux")
    named = shlex.split(os.environ.get("CXX", ""))
    found = named or [path for path in map(shutil.which, ("g++", "clang++", "c++")) if path][:1]
    if not found:
        raise UnsupportedError("no C++ compiler was found: install g++, or name one in CXX")
    home = Path(torch.__file__).parent
    command = [
        *(*found, "-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-I{folder}" for folder in (home / "include", sysconfig.get_path("include"))),
        *(*map(str, sources), f"-L{home / 'lib'}", "-lc10", "-o", str(target)),
    ]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LONGEST_S
    )
    if done.returncode:
        raise UnsupportedError(f"{found[0]} could not build them: {done.stderr.strip()[-2000:]}")


def load(path: Path) -> Any:
    """The module in a library, after it has found its way into this torch's tensors.

    Raises:
        UnsupportedError: it has not.
    """
    spec = spec_from_file_location(MODULE, path, loader=ExtensionFileLoader(MODULE, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.inference_mode(False):
        plain = [torch.empty(n, device="cpu") for n in range(1, 4)]
        tensors = [*plain, torch.nn.Parameter(plain[0]), plain[2].view(3, 1)]
    if not module.learn(tensors, [x._cdata for x in tensors]):
        raise UnsupportedError(f"torch {torch.__version__} keeps tensors where this package does not find them")
    return module
