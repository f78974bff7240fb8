"""Other words than those that a call is given: keys of the same table, and what the function asks whether it is."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from enum import Enum
from inspect import unwrap
from itertools import islice
from types import FunctionType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.captured_entries import is_dict
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.held_objects import reachable
from paramgraph_kit.doctor.observe.one_call import Caller
from paramgraph_kit.driver.files import is_library

_MOST = 2  # words that are tried
Given = tuple[tuple[Any, ...], dict[str, Any]]


def with_other_words(caller: Caller) -> Iterator[Given]:
    """The arguments of a function, each time with another word in place of one of them."""
    try:
        bound = inspect.signature(caller.function).bind(*caller.args, **caller.kwargs)
    except (TypeError, ValueError):
        return
    for name, word in [*bound.arguments.items()]:
        if not is_a(word, (str, Enum)):
            continue
        for other in islice(dict.fromkeys(_others(caller, name, word)), _MOST):
            bound.arguments[name] = other
            yield bound.args, bound.kwargs
        bound.arguments[name] = word


def _others(caller: Caller, name: str, word: Any) -> Iterator[Any]:
    if is_a(word, Enum):
        yield from (each for each in type(word) if each is not word)
        return
    for keys in _tables(caller):
        if word in keys:
            yield from (each for each in keys if type(each) is str and each != word)
    for function in _functions(caller):
        for node in nodes_of(function.__code__):
            if isinstance(node, ast.Dict):  # which the function makes itself
                keys = [each.value for each in node.keys if isinstance(each, ast.Constant)]
                yield from (each for each in keys if word in keys and type(each) is str and each != word)
            if isinstance(node, ast.Compare) and ast.unparse(node.left).rpartition(".")[2] == name:
                asked = (n.value for side in node.comparators for n in ast.walk(side) if isinstance(n, ast.Constant))
                yield from (each for each in asked if type(each) is str and each != word)


def _tables(caller: Caller) -> Iterator[list[Any]]:
    """The keys of the dictionaries that the function can reach."""
    functions = [*_functions(caller)]
    named = [f.__globals__.get(name) for f in functions for name in f.__code__.co_names]
    objects = [*reachable([caller.function, *caller.args, *caller.kwargs.values(), *named])]
    for value in (*named, *objects, *(part for each in objects for part in attributes_of(each).values())):
        if is_dict(value):
            yield [*value]
        elif is_a(value, torch.nn.Module):
            rows = [each for each in value.modules() if is_a(each, torch.nn.ModuleDict)]
            yield from ([*each._modules] for each in rows)


def _functions(caller: Caller) -> list[FunctionType]:
    own = [f for f in map(unwrap, caller.state.functions) if isinstance(f, FunctionType)]
    return [f for f in own if not is_library(f.__code__.co_filename)]
