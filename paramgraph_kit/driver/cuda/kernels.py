"""The launcher's own kernels, built once per GPU architecture from what torch's dependencies install.

No CUDA toolkit: NVRTC compiles to relocatable code and the driver links it with libcudadevrt, which holds
cudaGraphKernelNodeSetParam; 0.2 s on an H200 machine. The linked image is kept in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver as cu
from cuda.bindings import nvrtc

from paramgraph_kit.driver.cuda.calls import call
from paramgraph_kit.trace.errors import UnsupportedError

TABLE_SIZES = (16, 64, 256, 1024, 4000)  # slots; 4000 addresses fill the 32,764 bytes that a kernel may take


@cache
def function(name: str) -> int:
    """The CUfunction of one of the kernels in kernels.cu on the current device."""
    return int(call(cu.cuModuleGetFunction, _module(torch.cuda.current_device()), name.encode()))


@cache
def _module(device: int) -> Any:
    return call(cu.cuModuleLoadData, image(torch.cuda.get_device_capability(device)))


def image(capability: tuple[int, int]) -> bytes:
    """The linked image for one compute capability, from the cache folder or built now."""
    source = files("paramgraph_kit.driver.cuda").joinpath("kernels.cu").read_bytes()
    version = f"{nvrtc.nvrtcVersion()[1:]} {call(cu.cuDriverGetVersion)} sm_{capability[0]}{capability[1]}"
    name = hashlib.sha256(source + version.encode()).hexdigest()[:24] + ".cubin"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paramgraph_kit"
    path = folder / name
    if path.is_file() and path.stat().st_size:
        return path.read_bytes()
    built = _link(_compile(source, capability))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(built)
        os.replace(file.name, path)
    except OSError:
        pass  # a cache that cannot be written costs 0.2 s a process
    return built


def _toolkit() -> Path:
    """Where torch's dependencies put NVRTC's headers and libcudadevrt: nvidia/cu13 or nvidia/cuda_runtime."""
    spec = find_spec("nvidia")
    roots = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
    home = os.environ.get("CUDA_HOME")
    candidates = [r / sub for r in roots for sub in ("cu13", "cuda_runtime")] + ([Path(home)] if home else [])
    for folder in candidates:
        if _device_runtime(folder).is_file():
            return folder
    raise UnsupportedError(
        f"libcudadevrt.a was not found under {[str(c) for c in candidates]}; install nvidia-cuda-runtime, "
        "or set CUDA_HOME to a CUDA toolkit; until then patching='host' works without it"
    )


def _device_runtime(folder: Path) -> Path:
    return next((p for p in (folder / "lib/libcudadevrt.a", folder / "lib64/libcudadevrt.a") if p.is_file()), folder)


def _compile(source: bytes, capability: tuple[int, int]) -> bytes:
    status, program = nvrtc.nvrtcCreateProgram(source, b"kernels.cu", 0, None, None)
    options = [
        b"-rdc=true",
        b"-std=c++17",
        f"--gpu-architecture=sm_{capability[0]}{capability[1]}".encode(),
        b"-I" + str(_toolkit() / "include").encode(),
    ]
    status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, log)
        raise UnsupportedError(f"NVRTC could not build the launcher's kernels: {log.decode(errors='replace').strip()}")
    cubin = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(program)
    return bytes(cubin)


def _link(cubin: bytes) -> bytes:
    state = call(cu.cuLinkCreate, 0, [], [])
    try:
        cubin_kind, library_kind = cu.CUjitInputType.CU_JIT_INPUT_CUBIN, cu.CUjitInputType.CU_JIT_INPUT_LIBRARY
        call(cu.cuLinkAddData, state, cubin_kind, cubin, len(cubin), b"kernels", 0, [], [])
        call(cu.cuLinkAddFile, state, library_kind, str(_device_runtime(_toolkit())).encode(), 0, [], [])
        address, size = call(cu.cuLinkComplete, state)
        import ctypes

        return ctypes.string_at(int(address), int(size))
    finally:
        call(cu.cuLinkDestroy, state)
