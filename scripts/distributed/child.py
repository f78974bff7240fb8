"""One rank of one strategy in one mode; all are started at once, so that they have imported when their turn comes.

The parameters of FSDP2's blocks lie elsewhere in every step: a frozen graph would read what is there no longer.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.bench.measure import MODES, graph_facts
from paramgraph_kit.driver.torch_names import torch_name
from scripts.distributed.training import STRATEGIES, VOCAB, digest, draw, parallel

Trained = tuple[list[float], list[tuple[int, int]]]  # each step's loss, and the digest of each parameter after the last


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a row of JSON (the first rank), again when more of it is known."""
    started = time.perf_counter()
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=STRATEGIES, required=True)
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=20, help="steps compared")
    parser.add_argument("--timed", type=int, default=20, help="steps timed")
    parser.add_argument("--size", type=json.loads, default={})
    parser.add_argument("--meet", type=Path, required=True, help="folder in which the modes agree whose turn it is")
    options = parser.parse_args(arguments)
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    import_all()
    until((options.meet / f"{key(options)}.begin").exists)
    begun = time.perf_counter()
    device = torch.device(options.device, rank) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not STRATEGIES[options.strategy].alone:
        repeat_exactly()
    store = f"file://{(options.meet / key(options)).absolute().as_posix()}.store"
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks)
    for row in Rank(options, device, {"import and wait": begun - started}).rows():
        if rank == 0:
            print(json.dumps(row), flush=True)
    sys.stderr.flush()
    os._exit(0)  # ending a process group waits for work that graphs still hold


def key(options: argparse.Namespace) -> str:
    """The name of the files by which this strategy in this mode meets the others."""
    return f"{options.strategy} {options.mode}"


def import_all() -> None:
    """What the first compiled step would import, while another mode still has the GPU; nothing here touches it."""
    for name in ("torch._inductor.compile_fx", "torch._dynamo", "torch.distributed.fsdp"):
        importlib.import_module(name)


def repeat_exactly() -> None:
    """Let kernels give the same bits each time: attention's backward otherwise adds up in no fixed order, and ungraphed
    runs, which graphs are compared with, differ among themselves in nearly every parameter.

    Not ``warn_only``, with which attention says that it does not repeat, and does not.
    """
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a help for debugging


class Rank:
    """A model of Llama-like blocks that this rank trains with the others."""

    def __init__(self, options: argparse.Namespace, device: torch.device, seconds: dict[str, float]) -> None:
        self.options, self.device, self._seconds, self._since = options, device, seconds, time.perf_counter()
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
        strategy = replace(STRATEGIES[options.strategy], **options.size)
        self.strategy = strategy.fitted(self._least(free), dist.get_world_size())
        self.model = parallel(self.strategy, how(options.mode, device), device)
        self.optimizer = self._adamw()

    def _least(self, free: int) -> int:
        """The least of all ranks: they must have as many layers as each other."""
        return int(min(self._everywhere(free)))

    def _adamw(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=self.device.type == "cuda")

    def step(self, seed: int) -> Tensor:
        """The loss of one step on data of this rank's own."""
        if self.options.mode == "graph trees":
            torch.compiler.cudagraph_mark_step_begin()
        shape = (self.strategy.batch, self.strategy.tokens)
        generator = torch.Generator().manual_seed(1000 * dist.get_rank() + seed)
        tokens = torch.randint(0, VOCAB, shape, generator=generator).to(self.device)
        loss = F.cross_entropy(self.model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Times and memory, and for this backend whether every loss and parameter has the bits of ungraphed runs.

        What fills a GPU is timed first, as users run it, and compared then, with kernels that repeat: its row is there
        early, and comes again with its bits.
        """
        for seed in range(4):
            self.step(seed)
        self._wait()
        if self.device.type == "cuda":
            torch_name("shutdown_compile_workers")()  # they hold CUDA contexts of their own
        row = {"strategy": self.options.strategy, "mode": self.options.mode, "ranks": dist.get_world_size()}
        row |= {"what": self.strategy.text(), "seconds": self._seconds}
        self._took("compile and capture")
        if not self._comparing:
            yield row | self.measured()
        elif self.strategy.alone:
            row |= self.measured()
            yield row | {"bits": "not compared in time"}
            repeat_exactly()
            for seed in range(4):  # compiled and captured again: it is another switch of torch's
                self.step(seed)
            yield row | self.compare()
        else:
            row |= self.compare()
            yield row | self.measured()

    @property
    def _comparing(self) -> bool:
        return bool(self.options.mode == "paramgraph")

    def measured(self) -> dict[str, Any]:
        """Times and memory, alone on this machine."""
        _turn = meet(self.options)  # ours as long as this is alive
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        for seed in range(3):
            self.step(seed)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = [self._timed(seed) for seed in range(self.options.timed)]
        row = {
            "cpu_us": round(statistics.median(cpu for cpu, _ in times), 1),
            "total_us": round(statistics.median(total for _, total in times), 1),
        }
        if self.device.type == "cuda":
            row |= self._memory()
        self._took("time")
        return row

    def _took(self, what: str) -> None:
        """Note how long a part of this took, for whoever must make all of it quicker."""
        now = time.perf_counter()
        self._seconds[what] = round(now - self._since, 1)
        self._since = now

    def compare(self) -> dict[str, Any]:
        """The same compiled code from the same state: ungraphed, ungraphed again, and from graphs."""
        reference, again, ours = self._trained(False), self._trained(False), self._trained(True)
        launches = [n for fact in graph_facts() for n in fact["launches"]]
        self._took("compare")
        return {
            "losses": self._everywhere(reference[0]),
            "compared": sum(self._everywhere(len(reference[0]) + len(reference[1]))),
            "different": sum(self._everywhere(_differing(reference, ours, again))),
            "baseline_differs_from_itself": sum(self._everywhere(_differing(reference, again))),
            "executables": len(launches),
            "launches": sum(launches),
            "patched_launches": sum(n for fact in graph_facts() for n in fact["patched_launches"]),
            "nodes": [n for fact in graph_facts() for n in fact["nodes"]],
            "reasons": sorted({reason for fact in graph_facts() for reason in fact["reasons"]}),
        }

    def _trained(self, graphs: bool) -> Trained:
        """From the start: what becomes of the losses and of this rank's parameters."""
        for launcher in [launcher for graph in compiled_graphs() for launcher in graph.launchers]:
            (launcher.resume if graphs else launcher.pause)()
        draw(self.model)
        del self.optimizer  # before the next one makes its moments
        self.optimizer = self._adamw()
        losses = [self.step(seed).item() for seed in range(self.options.steps)]
        return losses, [digest(p) for p in self.model.parameters()]

    def _everywhere(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, value)
        return found

    def _timed(self, seed: int) -> tuple[float, float]:
        self._wait()
        start = time.perf_counter()
        self.step(seed)
        launched = time.perf_counter()
        self._wait()
        return (launched - start) * 1e6, (time.perf_counter() - start) * 1e6

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _memory(self) -> dict[str, Any]:
        from paramgraph_kit.driver.cuda.held import held_bytes

        found = {
            "stepping_bytes": held_bytes(self.device.index),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        }
        gc.collect()
        torch.cuda.empty_cache()
        return found | {"rest_bytes": held_bytes(self.device.index)}


def how(mode: str, device: torch.device) -> dict[str, Any]:
    """Arguments of torch.compile; without a GPU, only the machinery is exercised."""
    return MODES[mode] if device.type == "cuda" else {"backend": "eager"}


def meet(options: argparse.Namespace) -> IO[str] | None:
    """Be timed alone: when all modes are warm, one after the other, while the rest sleep; no rank waits on its GPU."""
    mine = options.meet / f"{key(options)}.go"
    if dist.get_rank() != 0:
        until(mine.exists)
        return None
    (options.meet / f"{key(options)}.ready").touch()
    until((options.meet / "start").exists)
    turn: IO[str] = (options.meet / "turn").open("w")
    fcntl.flock(turn, fcntl.LOCK_EX)
    mine.touch()
    return turn


def until(there: Callable[[], bool], poll_s: float = 0.02) -> None:
    """Sleep until it is there, or whoever started this is gone."""
    parent = os.getppid()
    while not there():
        if os.getppid() != parent:
            sys.exit("distributed: the command that started this rank has ended")
        time.sleep(poll_s)


def _differing(reference: Trained, other: Trained, again: Trained | None = None) -> int:
    """Losses and parameters that differ in any bit, of those that are the same in ``reference`` and ``again``."""
    first, second, third = (_values(each) for each in (reference, other, again or reference))
    return sum(a != b for a, b, c in zip(first, second, third, strict=True) if a == c)


def _values(trained: Trained) -> list[Any]:
    return [*(loss.hex() for loss in trained[0]), *trained[1]]


if __name__ == "__main__":
    sys.exit(main())
