"""Attributes that a capture reads, and that another method of the object exchanges ahead of a replay."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure


def exchanged_by_methods(region: Region) -> Iterator[Failure]:
    """The lines that do, each with one that writes in place."""
    own = next(iter(region.code.co_varnames[: region.code.co_argcount]), "")
    held = attributes_of(region.names.get(own))
    nodes = [n for s in region.body for n in ast.walk(s)]
    read = {n.attr for n in nodes if _is_of(n, own) and isinstance(n.ctx, ast.Load)}  # type: ignore[attr-defined]
    read = {name for name in read if is_a(held.get(name), torch.Tensor)}
    methods = vars(type(region.names.get(own))).values() if read else ()
    for code in (each.__code__ for each in methods if hasattr(each, "__code__")):
        lines = [n for n in nodes_of(code) if isinstance(n, (ast.Assign, ast.Call))]
        replays = [n.lineno for n in lines if isinstance(n, ast.Call) and last_name(n.func) == "replay"]
        for node in (n for n in lines if isinstance(n, ast.Assign)):
            target = node.targets[0]
            if code is region.code or not isinstance(target, ast.Attribute) or target.attr not in read:
                continue
            if code.co_varnames[:1] and _is_of(target, code.co_varnames[0]) and any(n > node.lineno for n in replays):
                path = ast.unparse(target)
                text = f"{path} is another tensor from here on, and the graph reads the one of its capture"
                failure = BY_ID["stale-input"].failure(text, frame_at(code, node.lineno))
                fix = f"before  {ast.unparse(node)}\nafter   {path}.copy_({ast.unparse(node.value)})"
                yield replace(failure, fix=fix)


def _is_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
