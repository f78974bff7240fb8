"""What a card did otherwise on first sight of programs that nobody had run: each with its neighbours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paramgraph_kit.driver.sim.libraries import forget
from tests.unit.test_sim_capture import captured

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")


@pytest.mark.parametrize(("rows", "sides", "library"), [(3, 1, "cublas"), (80, 80, "cublas"), (80, 2, "cusolver")])
def test_few_rows_are_solved_by_cublas(rows: int, sides: int, library: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN factors of a matrix, and a thread without a handle
    factors, pivots = torch.linalg.lu_factor(torch.eye(rows, device=sim))
    right = torch.ones(rows, sides, device=sim)
    forget()
    # WHEN they are solved with in a capture THEN what fails is that library's handle
    with pytest.raises(torch.AcceleratorError) as caught:
        captured(cuda, lambda: torch.linalg.lu_solve(factors, pivots, right))
    assert library in str(caught.value.__context__).lower()


def test_wrong_right_sides_are_refused_before_a_handle_is_asked_for(sim: torch.device, cuda: Any) -> None:
    # GIVEN right sides of another type WHEN they are solved for in a capture THEN torch's own words refuse them
    factors, pivots = torch.linalg.lu_factor(torch.eye(3, device=sim))
    forget()
    with pytest.raises(RuntimeError, match="same dtype"):
        captured(cuda, lambda: torch.linalg.lu_solve(factors, pivots, torch.ones(3, 1, device=sim).double()))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_weights_that_stayed_on_the_host_have_made_no_handle(kind: Any, sim: torch.device, cuda: Any) -> None:
    # GIVEN a layer that was not moved, and an input of the device
    layer, x = kind(3, 4).requires_grad_(False), torch.ones(2, 1, 3, device=sim)
    forget()
    # WHEN it is captured THEN cuDNN's handle is what fails, and devices are looked at eagerly
    with pytest.raises(torch.AcceleratorError) as caught:
        captured(cuda, lambda: layer(x))
    assert "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED" in str(caught.value.__context__)
    cuda.recover()
    with pytest.raises(RuntimeError, match="Input and parameter tensors are not at the same device"):
        layer(x)
    # and one of the host is the host's
    assert layer(torch.ones(2, 1, 3))[0].device.type == "cpu"


def test_a_number_that_vmap_assigns_is_copied_as_without_it(sim: torch.device, cuda: Any) -> None:
    # GIVEN assignments of a number to one place and to a row, under vmap
    def place(row: torch.Tensor) -> torch.Tensor:
        row = row.clone()
        row[0] = 7.0
        return row

    def rows(table: torch.Tensor) -> torch.Tensor:
        table = table.clone()
        table[0] = 7.0
        return table

    x = torch.zeros(2, 3, device=sim)
    # WHEN they are captured THEN the one place is refused as CUDA refuses it, and the row is filled
    with pytest.raises(RuntimeError, match="Cannot copy between CPU and CUDA tensors during CUDA graph capture"):
        captured(cuda, lambda: torch.vmap(place)(x))
    cuda.recover()
    graph, made = captured(cuda, lambda: torch.vmap(rows)(x.view(1, 2, 3)))
    graph.replay()
    assert made.tolist() == [[[7.0] * 3, [0.0] * 3]]


def test_a_region_of_any_type_is_one_and_products_refuse_it(sim: torch.device) -> None:
    # GIVEN a region of whole numbers, which CUDA accepts WHEN something is computed in it THEN what casts is refused
    x = torch.ones(2, 2, device=sim)
    with torch.autocast("cuda", dtype=torch.int32):
        assert (x + x).dtype == torch.float32
        with pytest.raises(NotImplementedError, match="\"addmm_cuda\" not implemented for 'Int'"):
            x @ x


def test_a_new_device_has_no_memory(repository: Path) -> None:
    # GIVEN a fresh process WHEN it makes the device THEN nothing is reserved, and no peak is left of what was tried
    program = (
        "import paramgraph_kit as pgk\n"
        "pgk.device()\n"
        "print(pgk.cuda.memory_reserved(), pgk.cuda.max_memory_allocated(), pgk.cuda.max_memory_reserved())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=repository, check=True)
    assert done.stdout.split() == ["0", "0", "0"]
