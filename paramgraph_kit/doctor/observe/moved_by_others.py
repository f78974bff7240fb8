"""Methods that no examined call has run, and that give what a graph reads another tensor or number: a note each."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import MAKERS, elements_of, last_name, nodes_of
from paramgraph_kit.doctor.number_kinds import AMOUNTS
from paramgraph_kit.doctor.observe.captured_values import NOTHING, Use
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.host_tests import decides_alone_in_key
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Failure

_MOST = 3


def moved_by_others(regions: Collection[Region], told: Collection[Failure]) -> list[str]:
    """What is said of each; ``told``: what is known to move."""
    found: dict[str, None] = {}
    known = [each.message for each in told]
    for region in regions:
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            found |= dict.fromkeys(_of(region, known))
    return [*found][:_MOST]


def _of(region: Region, told: Collection[str]) -> Iterator[str]:
    for use in _parts(region):
        value, owner = use.value(), use.owner() if isinstance(use.node, ast.Attribute) else NOTHING
        is_tensor = is_a(value, torch.Tensor) and not is_a(value, torch.nn.Parameter)
        if owner is NOTHING or not (is_tensor or type(value) in AMOUNTS) or any(use.text in each for each in told):
            continue
        if decides_alone_in_key(use):
            continue
        name = last_name(use.node)
        methods = _methods(type(owner)) if not is_a(owner, torch.Tensor) else {}
        asked = {n for code in methods.values() for n in _asked_ahead(code, methods)}
        begun = {n for code in methods.values() if code.co_name in MAKERS for n in code.co_names}
        begun |= _captured(region, methods)
        for method, code in methods.items():
            lines = [*_gives(code, name, is_tensor)]
            other = code is not region.code and code not in region.ran and method not in (*MAKERS, *begun)
            if not lines or not other or captured_in(code) or not asked.isdisjoint(_stored(code)):
                continue
            if any(captured_in(methods[n]) for n in code.co_names if n in methods):
                continue
            what = "other memory" if is_tensor else "another value"
            does = (
                f"write it in place there, `self.{name}.copy_(...)`"
                if is_tensor
                else (f"let what is captured read a tensor for it, which `fill_` gives the value of self.{name} there")
            )
            given = f"gives self.{name} {what} (line {lines[0]})"
            kept = "the graph keeps what it had at its capture, so where that is called between launches"
            yield f"no call ran `{method}`, which {given}: {kept} {does}"


def _captured(region: Region, methods: Mapping[str, CodeType]) -> set[str]:
    """The methods that what is captured calls: they ran at the capture."""
    called = {n.attr for s in region.body for n in ast.walk(s) if isinstance(n, ast.Attribute)} & methods.keys()
    while more := {n for name in called for n in methods[name].co_names if n in methods} - called:
        called |= more
    return called


def _parts(region: Region) -> Iterator[Use]:
    """What a capture reads, and what has that: ``self.m`` of ``self.m.T``."""
    seen = set[tuple[CodeType, str]]()
    for use in region.values.uses if region.values is not None else ():
        node = use.node
        while isinstance(node, ast.Attribute):
            part = Use(use.code, node, False, use.names)
            if (part.code, part.text) not in seen:
                seen.add((part.code, part.text))
                yield part
            node = node.value


def _methods(kind: type) -> dict[str, CodeType]:
    found: dict[str, CodeType] = {}
    for each in reversed(kind.__mro__):
        own = {n: f.__code__ for n, f in vars(each).items() if isinstance(f, FunctionType)}
        found |= {name: code for name, code in own.items() if not is_library(code.co_filename)}
    return found


def _asked_ahead(code: CodeType, methods: dict[str, CodeType]) -> Iterator[str]:
    """Attributes that decide whether a method captures: who sets one of these may ask for a new capture."""
    if captured_in(code) or any(captured_in(methods[n]) for n in code.co_names if n in methods):
        for node in nodes_of(code):
            if isinstance(node, (ast.If, ast.IfExp, ast.While)):
                yield from (n.attr for n in ast.walk(node.test) if isinstance(n, ast.Attribute))


def _stored(code: CodeType) -> set[str]:
    return {n.attr for n in nodes_of(code) if isinstance(n, ast.Attribute) and isinstance(n.ctx, (ast.Store, ast.Del))}


def _gives(code: CodeType, name: str, is_tensor: bool) -> Iterator[int]:
    """The lines of a method that give an attribute of its object another value, and do not begin it."""
    nodes = [*nodes_of(code)]
    tests = [n for n in nodes if isinstance(n, ast.If) and any(last_name(t) == name for t in ast.walk(n.test))]
    first = {id(n) for test in tests for n in ast.walk(test)}
    kinds: Any = (ast.Assign, ast.AnnAssign) if is_tensor else (ast.Assign, ast.AnnAssign, ast.AugAssign)
    for node in (n for n in nodes if isinstance(n, kinds) and id(n) not in first):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in (each for t in targets for each in elements_of(t)):
            if isinstance(target, ast.Attribute) and target.attr == name and last_name(target.value) == "self":
                yield node.lineno
