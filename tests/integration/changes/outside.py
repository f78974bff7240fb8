"""What answers otherwise each time: iterators, random numbers, the world outside."""

# mypy: ignore-errors
from __future__ import annotations

import inspect
import itertools
import json
import os
import random
import threading
import time
import types

import numpy as np
import torch

from tests.integration.changes.base import FILE, drop
from tests.integration.state_places import Place


def of_generator() -> Place:
    def count():
        value = 0.0
        while True:
            yield value
            value += 1

    numbers = count()
    return lambda: next(numbers), lambda value: drop(next(numbers))


def of_counting() -> Place:
    numbers = itertools.count(1.0)
    return lambda: next(numbers), lambda value: drop(next(numbers))


def of_iterator_of_a_list() -> Place:
    numbers = iter([float(n) for n in range(100)])
    return lambda: next(numbers), lambda value: drop(next(numbers))


def of_iterator_in_an_object() -> Place:
    holder = types.SimpleNamespace(batches=zip(range(100), range(100)))  # noqa: B905
    return lambda: float(sum(next(holder.batches))), lambda value: drop(next(holder.batches))


def of_own_random_numbers() -> Place:
    source = random.Random(0)
    return source.random, lambda value: source.seed(value)


def of_own_numpy_numbers() -> Place:
    holder = types.SimpleNamespace(rng=np.random.default_rng(0))
    return lambda: float(holder.rng.random()), lambda value: drop(holder.rng.random())


def of_old_numpy_numbers() -> Place:
    source = np.random.RandomState(0)
    return lambda: float(source.rand()), lambda value: source.seed(int(value))


def of_own_generator() -> Place:
    source = torch.Generator().manual_seed(0)
    return lambda: torch.rand(1, generator=source).item(), lambda value: drop(source.manual_seed(int(value)))


def of_time() -> Place:
    return lambda: float(time.perf_counter_ns() % 1000), lambda value: None


def of_file() -> Place:
    FILE.write_text("1.0")
    return lambda: float(FILE.read_text()), lambda value: drop(FILE.write_text(str(value)))


def of_opened_file() -> Place:
    FILE.write_text("1.0")

    def read() -> float:
        with open(FILE) as file:
            return json.load(file)

    return read, lambda value: drop(FILE.write_text(str(value)))


def of_file_that_is_there() -> Place:
    FILE.write_text("1.0")
    return (
        lambda: 1.0 if os.path.exists(FILE) else 2.0,
        lambda value: FILE.unlink() if FILE.exists() else drop(FILE.write_text(str(value))),
    )


def of_array_in_a_file() -> Place:
    path = FILE.with_suffix(".npy")
    np.save(path, np.ones(1))
    return lambda: float(np.load(path)[0]), lambda value: np.save(path, np.full(1, value))


def of_tensor_in_a_file() -> Place:
    path = FILE.with_suffix(".pt")
    torch.save(1.0, path)
    return lambda: torch.load(path), lambda value: torch.save(value, path)


def of_caller() -> Place:
    return lambda: float(len(inspect.currentframe().f_back.f_locals)), lambda value: None


def of_thread() -> Place:
    def change(value: float) -> None:
        threading.current_thread().name = "short" if len(threading.current_thread().name) != 5 else "MainThread"

    return lambda: float(len(threading.current_thread().name)), change


def of_random_bytes() -> Place:
    return lambda: float(os.urandom(1)[0]), lambda value: None
