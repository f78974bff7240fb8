"""What CUDAGraph Trees do with a compiled function, from running a copy of it and listening."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.doctor.explain.exception import explain
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.model import Failure

CALLS = 3  # warm up, record, replay


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def listening() -> Iterator[list[str]]:
    """What Inductor says of graphs that it leaves out, and torch warns of, in the body of ``with``."""
    listener, logger = _Listener(), torch_name("cudagraphs_log")
    logger.addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield listener.said
        listener.said += [str(each.message) for each in warned]
    finally:
        logger.removeHandler(listener)


def uses_trees(model: Any) -> bool:
    """Whether ``torch.compile`` was told to use CUDA graphs, as by ``mode="reduce-overhead"``."""
    return torch.cuda.is_available() and bool(_configuration(model).get("triton.cudagraphs"))


def failures_of_trees(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Failure]:
    """Why graphs were left out or went wrong, from three calls of a copy that is compiled in the same way.

    A function is called itself: let it find everything as it is, and put that back.
    """
    found: list[Failure] = []
    with listening() as said:
        compiled: Any = torch.compile(apart(original_of(model)), options=options_of(model))
        try:
            for _ in range(CALLS):
                compiled(*copied(args), **copied(kwargs))
        except Exception as error:
            found.append(explain(error))
    return [*found, *failures_said(said)]


def failures_said(messages: list[str]) -> list[Failure]:
    """The failures behind messages of a log or of warnings, each once; messages that no rule knows are left out."""
    found = (explain(RuntimeError(message)) for message in messages)
    return list({(f.code, f.frame): f for f in found if f.code != "unknown"}.values())


def original_of(model: Any) -> Any:
    """What was compiled."""
    return getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", model)


def apart(original: Any) -> Any:
    """A copy of a module, whose graphs go when it goes; anything else, and a module that has none, is itself."""
    if isinstance(original, torch.nn.Module):
        with suppress(Exception):  # it holds a lock, a file, or what an operation has made
            return copy.deepcopy(original)
    return original


def copied(arguments: Any) -> Any:
    """Arguments with tensors of their own, for code that may write to them."""

    def twin(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return pytree.tree_map(twin, arguments)


def options_of(model: Any) -> dict[str, Any]:
    """What ``torch.compile`` was told: of all settings, those that are not as they are anyway."""
    usual = torch_name("config").get_config_copy()
    return {name: value for name, value in _configuration(model).items() if usual.get(name) != value}


def _configuration(model: Any) -> dict[str, Any]:
    get = getattr(model, "get_compiler_config", None)
    return dict((get() if get is not None else None) or {})
