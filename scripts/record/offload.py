"""A small network whose activations leave for pinned host memory on a second stream, and come back for the backward.

The backward is written out, so that every copy and every wait can be seen. ``streams`` runs this text as a file of
its own, and the nodes of the recorded graph name its lines.
"""

from __future__ import annotations

from typing import Any

import torch


class Offloading:
    """``layers`` times a product and a ReLU; ``offload=False`` keeps the activations on the device."""

    def __init__(self, cuda: Any, device: torch.device, layers: int, rows: int, width: int, offload: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self.cuda, self.device, self.offload = cuda, device, offload
        self.side = cuda.Stream()
        scale = (2 / width) ** 0.5
        self.weights = [(torch.randn(width, width, generator=generator) * scale).to(device) for _ in range(layers)]
        self.host = [torch.zeros(rows, width).pin_memory() for _ in range(layers)]

    def leave(self, x: torch.Tensor, host: torch.Tensor) -> Any:
        """Copy to pinned memory on the side; the event after it."""
        self.side.wait_stream(self.cuda.current_stream())  # fork: x is complete
        with self.cuda.stream(self.side):
            host.copy_(x, non_blocking=True)
            gone = self.cuda.Event()
            gone.record()
        return gone

    def fetch(self, host: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Copy back on the side; the tensor, and the event after which it is there."""
        self.side.wait_stream(self.cuda.current_stream())  # whoever had this memory before is done
        with self.cuda.stream(self.side):
            back = torch.empty_like(host, device=self.device).copy_(host, non_blocking=True)
            there = self.cuda.Event()
            there.record()
        return back, there

    def step(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The output, and the gradient of the sum of its squares for each weight, the last layer's first."""
        main, layers = self.cuda.current_stream(), len(self.weights)
        saved: list[torch.Tensor] = []  # on the device
        leaving: list[tuple[torch.Tensor, Any]] = []
        for n in range(layers):
            if self.offload:
                leaving.append((x, self.leave(x, self.host[n])))
            else:
                saved.append(x)
            x = torch.relu(x @ self.weights[n])
            if len(leaving) > 1:
                main.wait_event(leaving.pop(0)[1])  # join: now its memory may be used again
        if leaving:
            main.wait_event(leaving.pop()[1])
        output, gradient, gradients = x, 2 * x, []
        coming = self.fetch(self.host[-1]) if self.offload else None
        for n in reversed(range(layers)):
            if coming is not None:
                before, there = coming
                if n:
                    coming = self.fetch(self.host[n - 1])  # while this layer computes
                main.wait_event(there)
            else:
                before = saved.pop()
            gradient = gradient * (x > 0)
            gradients.append(before.t() @ gradient)
            gradient = gradient @ self.weights[n].t()
            x = before
        return [output, *gradients]
