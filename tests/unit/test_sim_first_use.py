"""The simulated device before its first use: torch initialises CUDA late, and programs can tell."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

BEGIN = "import torch\nfrom paramgraph_kit.driver.select import device, twin\nsim, cuda = device(), twin()\n"
TELLS = "print(cuda.is_initialized(), len(cuda.default_generators), len(cuda.memory_stats()) > 0)"

NO_USE = {
    "nothing": "pass",
    "questions": "cuda.is_available(), cuda.device_count(), cuda.is_current_stream_capturing()",
    "memory": "cuda.memory_allocated(), cuda.memory_reserved(), cuda.max_memory_allocated(), cuda.empty_cache()",
    "stream": "cuda.Stream().query()",
    "event": "cuda.Event().query()",
    "graph": "cuda.CUDAGraph().reset()",
    "pool": "cuda.graph_pool_handle()",
    "generator": "torch.Generator(device=sim).manual_seed(3)",
    "pinned": "torch.ones(2).pin_memory()",
    "seeds": "torch.manual_seed(1), cuda.manual_seed(2), cuda.manual_seed_all(3), cuda.seed()",
    "state": "cuda.set_rng_state(torch.zeros(16, dtype=torch.uint8))",
    "no device": "cuda.device(-1).__enter__()",
}
USE = {
    "tensor": "torch.ones(1, device=sim)",
    "empty tensor": "torch.empty(0, device=sim)",
    "copy": "torch.ones(1).to(sim)",
    "init": "cuda.init()",
    "synchronize": "cuda.synchronize()",
    "current": "cuda.current_device()",
    "current stream": "cuda.current_stream()",
    "record": "cuda.Event().record()",
    "with stream": "cuda.stream(cuda.Stream())",
    "graph context": "cuda.graph(cuda.CUDAGraph())",
    "device": "cuda.device(0).__enter__()",
    "state": "cuda.get_rng_state()",
    "seed in use": "cuda.initial_seed()",
    "peak": "cuda.reset_peak_memory_stats()",
    "properties": "cuda.get_device_properties(0)",
    "free": "cuda.mem_get_info()",
}


def fresh(*lines: str) -> str:
    """What a process of its own prints."""
    program = BEGIN + "\n".join(lines)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def each_alone(statements: dict[str, str]) -> dict[str, str]:
    """What each prints of the device, in a child that begins where the import has ended."""
    children = [
        f"if os.fork() == 0:\n    {statement}\n    print({name!r}, end=': ')\n    {TELLS}\n    sys.stdout.flush()\n"
        "    os._exit(0)\nos.wait()"
        for name, statement in statements.items()
    ]
    return dict(line.split(": ") for line in fresh("import os, sys", *children).splitlines())


def test_what_torch_does_without_the_device_is_no_use() -> None:
    # GIVEN what an H200 was not initialised by WHEN each runs first THEN the device is as before
    assert each_alone(NO_USE) == dict.fromkeys(NO_USE, "False 0 False")


def test_what_needs_the_device_is_its_first_use() -> None:
    # GIVEN what initialises an H200 WHEN each runs first THEN the device is in use
    assert each_alone(USE) == dict.fromkeys(USE, "True 1 True")


def test_a_seed_of_before_counts_more_than_a_state_of_before() -> None:
    # GIVEN a state and, before or after it, a seed, set before the first use
    state = "s = torch.zeros(16, dtype=torch.uint8); s[0] = 5; cuda.set_rng_state(s)"
    # WHEN the device is used THEN what it draws from is the seed, as on an H200, or without one the state
    assert fresh("torch.manual_seed(7)", state, "print(cuda.initial_seed())") == "7"
    assert fresh(state, "cuda.manual_seed(8)", "print(cuda.initial_seed())") == "8"
    assert fresh(state, "print(cuda.initial_seed())") == "5"
    # and a seed of before counts, but a state that is set afterwards more
    assert fresh("torch.manual_seed(7)", "cuda.init()", state, "print(cuda.initial_seed())") == "5"
