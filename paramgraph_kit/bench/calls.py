"""``python -m paramgraph_kit bench --calls``: what a call costs around the launch, each way in turn in one process.

With ``--whole-steps`` instead, whole training steps alone.

Inference with each kind of guards, decoding, training compiled whole and block by block, and a whole training step as
one graph, beside no graphs, graph trees and, for the whole step, the frozen graph of the same step, which is the floor.
Medians of wall times until everything is launched (CPU) and until the device is done (total); gradients are set to None
outside. Each row is kept as it comes, and no workload is begun when the run's time is over.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.bench.decoding import TOKENS
from paramgraph_kit.bench.decoding import ways as decoding_ways
from paramgraph_kit.bench.plot import calls_svg
from paramgraph_kit.bench.small_models import SmallModel
from paramgraph_kit.bench.table import calls_markdown
from paramgraph_kit.bench.workloads import Llama
from paramgraph_kit.driver.native.build import prepare

ROUNDS, STEPS, WARM_UP = 5, 12, 8
COLUMNS = {
    "cpu_us": "CPU us",
    "total_us": "total us",
    "in_a_row_us": "in a row",
    "reserved_mib": "MiB at rest",
    "peak_mib": "peak MiB",
    "note": "note",
}
Row = dict[str, Any]
Step = Callable[[], Any]
Ready = tuple[Step, Callable[[], str]]  # and what is to be noted of it
More = Callable[[], bool]  # whether another workload may be begun
OVER = "left out: the run's time was over"
LLAMA = "8 Llama-like layers, 64 tokens"


def rows(more: More = lambda: True) -> Iterator[Row]:
    """Each row as it is measured, while there is ``more``; a way that fails says so, and the others go on."""
    yield from _measure(more, f"{LLAMA}, inference", _inference_ways())
    yield from _measure(more, f"{LLAMA}, forward and backward", _training_ways(_llama_model, torch.bfloat16))
    yield from _measure(
        more, f"{LLAMA}, forward and backward by block", _training_ways(_llama_model, torch.bfloat16, True)
    )
    for name, gemma in (("Gemma 2", True), ("StarCoder 2", False)):
        make_model = partial(SmallModel, gemma=gemma)
        yield from _measure(
            more, f"3 layers like {name}'s, forward and backward", _training_ways(make_model, torch.float32)
        )
    for row in _measure(
        more, f"8 layers with a static cache, {TOKENS} tokens decoded", decoding_ways(_ways_of_compiling())
    ):
        if "total_us" in row:
            row["note"] = f"{TOKENS * 1e6 / row['total_us']:,.0f} tokens/s, {row['note']}"
        yield row
    yield from _measure(more, "one kernel on 1024 numbers, which no graph makes quicker", _single_ways())
    yield from step_rows(more)


def step_rows(more: More = lambda: True) -> Iterator[Row]:
    """Those of whole training steps: compiled in bfloat16, eager in float32, and eleven sizes of images in turn."""
    models = {
        LLAMA: _llama,
        "GPT-2 small, 2 x 128 tokens": _gpt2,
        "ResNet-50, batch 8": _resnet,
    }
    for name, make_model in models.items():
        ways = step_ways(make_model, torch.bfloat16, compiled=True)
        # By themselves: in one process with a graph captured by hand, its replay read freed memory (H100).
        trees = {"graph trees": ways.pop("graph trees")}
        yield from _measure(more, f"{name}, whole step with fused AdamW, compiled, bfloat16", ways)
        yield from _measure(more, f"{name}, whole step with fused AdamW, compiled, bfloat16", trees)
        ways = step_ways(make_model, torch.float32, compiled=False)
        yield from _measure(more, f"{name}, whole step with fused AdamW, eager, float32", ways)
    yield from _measure(more, "ResNet-18, eleven sizes of images in turn, whole step with SGD, eager", _shapes_ways())


def main(out: Path, *, whole_steps_only: bool = False, limit_s: float = 300.0) -> int:
    """Print the table and keep it in ``out``; returns the exit status: 1 where a way failed.

    After ``limit_s`` seconds no workload is begun any more, and the table says so.
    """
    start = time.perf_counter()

    def more() -> bool:
        return time.perf_counter() - start < limit_s

    prepare(wait=True)  # so that no way is timed while it is built
    file = out / ("steps.json" if whole_steps_only else "calls.json")
    found: list[Row] = []
    out.mkdir(parents=True, exist_ok=True)
    source = {
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "date": time.strftime("%Y-%m-%d"),
    }
    print(f"| workload | way | {' | '.join(COLUMNS.values())} |\n|---|---{'|---' * len(COLUMNS)}|", flush=True)
    for row in step_rows(more) if whole_steps_only else rows(more):
        found.append(row)
        figures = [row.get(name, "") for name in COLUMNS]
        print(f"| {row['workload']} | {row['way']} | {' | '.join(map(str, figures))} |", flush=True)
        result = {"source": source, "rows": found}
        file.write_text(json.dumps(result, indent=1) + "\n")
        file.with_suffix(".md").write_text(calls_markdown(found))
        file.with_suffix(".svg").write_text(calls_svg(result))
    return int(any("failed" in row["note"] for row in found))


def _measure(more: More, workload: str, ways: dict[str, Callable[[], Ready]]) -> Iterator[Row]:
    """Prepare every way, then time them in turns: a machine's speed drifts by more than they differ."""
    ready: dict[str, Ready] = {}
    result = {way: Row(workload=workload, way=way, note="" if more() else OVER) for way in ways}
    if any(row["note"] for row in result.values()):
        yield from result.values()
        return
    for way, make in ways.items():
        torch._dynamo.reset()
        before = torch.cuda.memory_reserved()
        try:
            step, note = make()
            for _ in range(WARM_UP):
                step()
            torch.cuda.synchronize()
            ready[way] = step, note
        except Exception as error:
            result[way]["note"] = _failed(error)
        gc.collect()
        torch.cuda.empty_cache()
        result[way]["reserved_mib"] = torch.cuda.memory_reserved() - before >> 20
        if way in ready:
            torch.cuda.reset_peak_memory_stats()
            for _ in range(3):
                ready[way][0]()
            result[way]["peak_mib"] = torch.cuda.max_memory_reserved() - before >> 20
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ready}
    in_a_row: dict[str, list[float]] = {way: [] for way in ready}
    for _ in range(ROUNDS):
        for way, (step, _) in list(ready.items()):
            try:
                for _ in range(3):
                    step()
                times[way] += [_timed(step) for _ in range(STEPS)]
                in_a_row[way].append(_timed(lambda step=step: [step() for _ in range(STEPS)])[1] / STEPS)  # type: ignore[misc]
            except Exception as error:  # one way's failure is a row, not the end of all
                result[way]["note"] = _failed(error)
                del ready[way]
    for way, row in result.items():
        if way in ready:
            row |= {"cpu_us": round(statistics.median(cpu for cpu, _ in times[way]))}
            row |= {"in_a_row_us": round(statistics.median(in_a_row[way]))}
            row |= {"total_us": round(statistics.median(total for _, total in times[way])), "note": ready[way][1]()}
        yield row
    ready.clear()
    gc.collect()
    torch.cuda.empty_cache()


def _failed(error: Exception) -> str:
    return f"failed: {type(error).__name__}: {str(error).splitlines()[0][:120]}"


def _timed(step: Step) -> tuple[float, float]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    launched = time.perf_counter()
    torch.cuda.synchronize()
    return (launched - start) * 1e6, (time.perf_counter() - start) * 1e6


def _ways_of_compiling() -> dict[str, Callable[[Any], Any]]:
    return {
        "no graphs": lambda model: pgk.compile(model, select="never"),
        "graph trees": lambda model: torch.compile(model, mode="reduce-overhead"),
        "paramgraph": lambda model: pgk.compile(model),
        'paramgraph, guards="dynamo"': lambda model: pgk.compile(model, guards="dynamo"),
        'paramgraph, guards="inputs"': lambda model: pgk.compile(model, guards="inputs"),
        "parameterize(model)": lambda model: pgk.parameterize(model),
    }


def _inference_ways() -> dict[str, Any]:
    def way(compiling: Callable[[Any], Any]) -> Any:
        def make() -> Ready:
            model, (ids, _) = _llama_model().to(torch.bfloat16), _tokens(1)
            compiled = compiling(model)

            def step() -> None:
                with torch.no_grad():
                    compiled(ids)

            return step, lambda: ""

        return make

    return {name: way(compiling) for name, compiling in _ways_of_compiling().items()}


def _single_ways() -> dict[str, Any]:
    """What a graph may not pay for, and what is told of it where graphs are measured."""

    def way(**options: Any) -> Any:
        def make() -> Ready:
            x, compiled = torch.randn(1024, device="cuda"), pgk.compile(lambda x: x.sin() * 2 + 1, **options)

            def step() -> None:
                with torch.no_grad():
                    compiled(x)

            def note() -> str:
                return "; ".join(f"{reason.code}: {reason.message}" for reason in pgk.report(compiled).reasons)

            return step, note

        return make

    return {
        "no graphs": way(select="never"),
        "paramgraph": way(),
        'paramgraph, select="measure"': way(select="measure"),
    }


def _training_ways(make_model: Callable[[], Any], dtype: torch.dtype, by_block: bool = False) -> dict[str, Any]:
    def way(name: str, compiling: Callable[[Any], Any]) -> Any:
        def make() -> Ready:
            torch.manual_seed(0)
            model, (ids, _) = make_model().to("cuda", dtype), _tokens(1, vocabulary=1024)
            if by_block:
                for k, block in enumerate(model.layers):
                    model.layers[k] = compiling(block)
            run = model if by_block else compiling(model)
            parameters = list(model.parameters())

            def step() -> None:
                if name == "graph trees":
                    torch.compiler.cudagraph_mark_step_begin()
                for parameter in parameters:
                    parameter.grad = None
                run(ids).float().square().mean().backward()

            return step, lambda: ""

        return make

    ways = _ways_of_compiling()
    return {name: way(name, ways[name]) for name in ("no graphs", "graph trees", "paramgraph")}


Made = tuple[nn.Module, Callable[[Any], Tensor], tuple[Tensor, ...]]
Whole = tuple[Callable[..., Tensor], tuple[Any, ...], list[tuple[Tensor, ...]]]  # a step, its state, its batches


def step_ways(make_model: Callable[[], Made], dtype: torch.dtype, *, compiled: bool) -> dict[str, Any]:
    """Ways of a whole training step: forward, loss, backward, fused AdamW."""

    def make(**how: Any) -> Whole:
        model, loss_of, data = make_model()
        model = model.to(dtype)
        data = tuple(t.to(dtype) if t.is_floating_point() else t for t in data)
        rate = torch.tensor(1e-4, device=data[0].device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True, capturable=True)
        run = torch.compile(model, **how) if compiled else model

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(loss_of(run(x)), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        # Arguments lie elsewhere at each call, as those of a loader do.
        return step, (model, optimizer), [tuple(t.clone() for t in data) for _ in range(3)]

    def trees() -> Ready:
        step, _, batches = make(mode="reduce-overhead")

        def marked() -> None:
            torch.compiler.cudagraph_mark_step_begin()
            step(*batches[0])

        return marked, lambda: ""

    ways = _ways_of_whole(make)
    return ways | {"graph trees": trees} if compiled else ways


def _shapes_ways() -> dict[str, Any]:
    """Images of eleven sizes, one after the other; a call is one pass through all of them."""

    def make() -> Whole:
        import torchvision

        torch.manual_seed(0)
        model = torchvision.models.resnet18().to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.01, device="cuda"), momentum=0.9)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        labels = torch.randint(0, 1000, (16,), device="cuda")
        sizes = range(128, 128 + 16 * 11, 16)
        return step, (model, optimizer), [(torch.randn(16, 3, n, n, device="cuda"), labels) for n in sizes]

    return _ways_of_whole(make, all_of_them=True)


def _ways_of_whole(make: Callable[[], Whole], *, all_of_them: bool = False) -> dict[str, Any]:
    """As it is, from our graphs, and frozen by hand: one graph for each batch, all in one pool."""

    def calls(call: Callable[..., Any], batches: list[tuple[Tensor, ...]]) -> Step:
        numbers = iter(range(sys.maxsize))
        if not all_of_them:
            return lambda: call(*batches[next(numbers) % len(batches)])

        def each() -> None:
            for batch in batches:
                call(*batch)

        return each

    def plain() -> Ready:
        step, _, batches = make()
        return calls(step, batches), lambda: ""

    def ours() -> Ready:
        step, state, batches = make()
        graphed = pgk.parameterize(step, state=state)
        return calls(graphed, batches), lambda: "; ".join(r.code for r in pgk.report(graphed).reasons)

    def frozen() -> Ready:
        step, state, batches = make()
        batches = batches if all_of_them else batches[:1]
        stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        with torch.cuda.stream(stream):
            for _ in range(3):
                for batch in batches:
                    step(*batch)
        torch.cuda.synchronize()
        graphs = [torch.cuda.CUDAGraph() for _ in batches]
        for graph, batch in zip(graphs, batches, strict=True):
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                step(*batch)
        held = graphs, state, batches  # a frozen graph holds nothing of what it reads

        def replay() -> None:
            for graph in held[0]:
                graph.replay()

        return replay, lambda: ""

    return {"no graphs": plain, "parameterize(step, state=...)": ours, "frozen graph": frozen}


def _llama_model() -> Llama:
    torch.manual_seed(0)
    return Llama().to("cuda")


def _tokens(batch: int, length: int = 64, vocabulary: int = 4096) -> tuple[Tensor, Tensor]:
    found = (torch.randint(0, vocabulary, (batch, length), device="cuda") for _ in range(2))
    return next(found), next(found)


def _llama() -> Made:
    ids, targets = _tokens(1)
    return _llama_model(), lambda logits: logits.flatten(0, 1), (ids, targets.flatten())


def _resnet() -> Made:
    import torchvision

    torch.manual_seed(0)
    images, labels = torch.randn(8, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (8,), device="cuda")
    return torchvision.models.resnet50().to("cuda"), lambda logits: logits, (images, labels)


def _gpt2() -> Made:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    ids, targets = _tokens(2, 128, 50257)
    model = transformers.GPT2LMHeadModel(config).to("cuda")
    return model, lambda output: output.logits.flatten(0, 1), (ids, targets.flatten())
