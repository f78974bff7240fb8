"""Runs a program eagerly and captured, on moved inputs, and compares all that can be seen of it."""

from __future__ import annotations

import importlib
import io
import linecache
import math
import random
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

import paramgraph_kit as pgk
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.rewrite.proving.proof import NOTHING, Around
from paramgraph_kit.rewrite.proving.registered import register
from tests.programs.reading import Program, modules

STEPS = 10
WARM_UP = 3  # eager steps before the capture, as torch's documentation wants
Names = dict[str, Any]
Seen = dict[str, list[Any]]


@contextmanager
def quiet() -> Iterator[None]:
    """Programs print and warn as they like."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def seed() -> None:
    """All generators at their beginning."""
    torch.manual_seed(0)
    pgk.cuda.manual_seed_all(0)
    random.seed(0)
    np.random.seed(0)


def load(text: str, file: Path) -> Names:
    """Run a program's text from a file of its own; returns its names."""
    for name, part in modules(text).items():
        path = file.with_name(name) if name else file
        path.write_text(part, encoding="utf-8")
        linecache.checkcache(str(path))
        sys.modules.pop(path.stem, None)
    module = sys.modules["program"] = types.ModuleType("program")  # dataclasses ask for it
    names: Names = vars(module)
    pgk.device()
    seed()
    torch.distributions.Distribution.set_default_validate_args(True)  # torch.compile turns it off for good
    sys.path.insert(0, str(file.parent))
    importlib.invalidate_caches()
    cached, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # two variants may agree in size and time
    try:
        with quiet():
            exec(compile(modules(text)[""], str(file), "exec"), names)
    finally:
        sys.path.remove(str(file.parent))
        sys.dont_write_bytecode = cached
    return names


def diagnosed(programs: Iterable[Program], title: str, file: Path) -> Any:
    """What is told of the first of some programs with these words in its title, as it stands broken."""
    program = next(each for each in programs if title in each.title)
    names = load(program.broken, file)
    with quiet():
        return pgk.diagnose(names[program.function], *names["args"])


def eager(names: Names, function: str) -> Seen:
    """What is seen of STEPS steps as they are."""
    feed, results = _feeder(names), []
    seed()
    with quiet():
        for i in range(STEPS):
            results.append(_step(names, names[function](*feed(i)), i))
    return _seen(names, results)


def captured(names: Names, function: str, around: Around = NOTHING) -> Seen:
    """The same after a warm-up from replays of one graph, whose inputs are copied to; ``around`` each launch."""

    def eagerly(args: tuple[Any, ...]) -> Any:
        around.prepare((args, {}))
        return around.finish((args, {}), names[function](*args))

    cuda, feed, results = pgk.cuda, _feeder(names), []
    seed()
    side, graph = cuda.Stream(), cuda.CUDAGraph()
    with quiet():
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for i in range(WARM_UP):
                results.append(_step(names, eagerly(feed(i)), i))
        cuda.current_stream().wait_stream(side)
        first = feed(WARM_UP)
        static = tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, first)
        register(graph, HostState(names[function], static, {}).generators)  # as its words want
        with pgk.diagnose.capture(graph):
            out = names[function](*static)
        for i in range(WARM_UP, STEPS):
            given = feed(i) if i > WARM_UP else first
            for held, value in zip(tree_leaves(static), tree_leaves(given), strict=True):
                if isinstance(held, torch.Tensor):
                    held.copy_(value)
            # What goes around the launch is given today's numbers, which no graph reads.
            now = tree_map(lambda held, value: held if isinstance(held, torch.Tensor) else value, static, given)
            around.prepare((now, {}))
            graph.replay()
            results.append(_step(names, around.finish((now, {}), out), i))
    return _seen(names, results)


def differences(a: Seen, b: Seen, ignore: set[str]) -> list[str]:
    """The names of what differs, with the first difference."""
    found = []
    for name in a.keys() & b.keys():
        if name in ignore:
            continue
        one, other = a[name], b[name]
        if len(one) != len(other):
            found.append(f"{name}: {len(one)} values and {len(other)}")
        else:
            wrong = [(x, y) for x, y in zip(one, other, strict=True) if not _same(x, y)]
            found += [f"{name}: {_short(*wrong[0])}"] if wrong else []
    return sorted(found)


def _step(names: Names, out: Any, i: int) -> Any:
    seen = names["seen"](out) if "seen" in names else out
    value = tree_map(lambda each: each.detach().cpu().clone() if isinstance(each, torch.Tensor) else each, seen)
    if "after" in names:
        names["after"](out, i)
    return value


def _feeder(names: Names) -> Callable[[int], tuple[Any, ...]]:
    if "feed" in names:
        found: Callable[[int], tuple[Any, ...]] = names["feed"]
        return found
    args: tuple[Any, ...] = names["args"]
    kept = tree_map(lambda each: each.detach().cpu() if isinstance(each, torch.Tensor) else each, args)

    def feed(i: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(i)

        def moved(given: Any, plain: Any) -> Any:
            if not isinstance(given, torch.Tensor):
                return given
            flat = plain.reshape(-1)
            drawn = flat[torch.randint(len(flat), (len(flat),), generator=generator)].reshape(plain.shape)
            if plain.is_floating_point():
                drawn = drawn * (1 - i / 32)  # stays within [0, 1] where it was
            return drawn.to(given.device).requires_grad_(given.requires_grad)

        return tuple(tree_map(moved, args, kept))

    return feed


def _seen(names: Names, results: list[Any]) -> Seen:
    found: Seen = {"result": _flat(results)}
    for name, value in names.items():
        if name.startswith("_") or name in ("args", "ignore"):
            continue
        if isinstance(value, torch.nn.Module):
            found[name] = _flat(list(value.state_dict().values()))
        elif isinstance(value, (torch.Tensor, int, float, list, tuple, dict, deque)):
            found[name] = _flat(value)
    return found


def _flat(value: Any) -> list[Any]:
    leaves = tree_leaves(dict(value) if isinstance(value, dict) else list(value) if isinstance(value, deque) else value)
    kept = [each for each in leaves if isinstance(each, (torch.Tensor, int, float, np.ndarray))]
    return [each.detach().cpu().double() if isinstance(each, torch.Tensor) else each for each in kept]


def _same(a: Any, b: Any) -> bool:
    x, y = torch.as_tensor(a).double(), torch.as_tensor(b).double()
    return x.shape == y.shape and torch.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True)


def _short(a: Any, b: Any) -> str:
    x, y = torch.as_tensor(a).double(), torch.as_tensor(b).double()
    if x.shape != y.shape:
        return f"shapes {tuple(x.shape)} and {tuple(y.shape)}"
    at = int((x - y).abs().nan_to_num(math.inf).argmax())
    return f"{x.flatten()[at]:.6g} and {y.flatten()[at]:.6g}"
