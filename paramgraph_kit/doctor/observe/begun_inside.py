"""A state that a captured call begins where there is none yet: each replay begins it anew, and none goes on with it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_flow import CapturedFlow
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.lines_behind import codes_of
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure

_MADE_OF_NUMBERS = ("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones")


def begun_inside(region: Region, makes: Callable[[torch.Tensor], bool]) -> Iterator[Failure]:
    """Lines ``if self.mean is None: self.mean = ...`` with another way, of which a capture has taken the first.

    ``makes`` says whether memory is a graph's: what lies there was made by the captured call.
    """
    held = attributes_of(region.names.get("self"))
    for code in codes_of(region):
        for node in (n for n in nodes_of(code) if isinstance(n, ast.If)):
            name = _begun(node)
            value = held.get(name)
            if name and is_a(value, torch.Tensor) and makes(value):
                text = f"self.{name} was None at the capture: each replay begins it anew, and never takes the other way"
                line = f"if {ast.unparse(node.test)}:"
                after = (
                    f"`self.{name}` is a tensor from the start, `self.begun = torch.zeros((), dtype=torch.bool, ...)` "
                    "beside it, and `torch.where(self.begun, ..., ...)` chooses between both ways"
                )
                failure = BY_ID["branch-frozen"].failure(text, frame_at(code, node.lineno))
                yield replace(failure, fix=f"before  {line}\nafter   {after}")


def begun_in_capture(region: Region, flow: CapturedFlow) -> Iterator[Failure]:
    """Branches ``if self.mean is None: self.mean = ...`` that a capture has taken, of a state that goes on from there.

    What is only a constant, or written anew before anybody reads it, may be made by each replay.
    """
    for code in flow.codes(region.graph, region.code):
        nodes = [*nodes_of(code)] if code is not region.code else [n for s in region.body for n in ast.walk(s)]
        for node in (n for n in nodes if isinstance(n, ast.If)):
            for path, store in _first_time(node):
                lines = range(node.body[0].lineno, (node.body[-1].end_lineno or node.lineno) + 1)
                made = [*flow.made_at(region.graph, code, lines)]
                given = any(n not in ast.walk(node) and _stores(n, path) for n in nodes) or _other_way(node, path)
                if any(goes_on or given for _, goes_on in made):
                    yield _told(code, node, path, store)
                    break


def _first_time(node: ast.If) -> Iterator[tuple[str, ast.stmt]]:
    """What a branch asks for and gives itself, so that it is taken once, with the line that gives it."""
    asked = {ast.unparse(n) for n in ast.walk(node.test) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))}
    for call in (n for n in ast.walk(node.test) if isinstance(n, ast.Call)):
        if last_name(call.func) in ("hasattr", "getattr") and len(call.args) > 1:
            name = call.args[1]
            asked |= {f"{ast.unparse(call.args[0])}.{name.value!s}"} if isinstance(name, ast.Constant) else set()
    for statement in node.body:
        for each in (n for n in ast.walk(statement) if isinstance(n, (ast.Assign, ast.AnnAssign))):
            for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
                for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                    held = part.value if isinstance(part, ast.Subscript) else None
                    paths = [ast.unparse(p) for p in (part, held) if p is not None]
                    if not isinstance(part, ast.Name) and not asked.isdisjoint(paths):
                        yield ast.unparse(part), each


def _stores(node: ast.AST, path: str) -> bool:
    """Whether a node gives a path another value."""
    kinds = isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store)
    return kinds and ast.unparse(node) == path


def _other_way(node: ast.If, path: str) -> bool:
    return any(_stores(n, path) for part in node.orelse for n in ast.walk(part))


def _told(code: CodeType, node: ast.If, path: str, store: ast.stmt) -> Failure:
    text = f"{path} was not there at the capture, which makes it: each replay begins it anew, and none goes on with it"
    value = getattr(store, "value", None)
    test, line = ast.unparse(node.test), ast.unparse(store)
    if isinstance(value, ast.Call) and last_name(value.func) in _MADE_OF_NUMBERS and len(node.body) == 1:
        words = f"ahead of the capture, once: `{line}`, by the names that this has there; the capture then finds it"
    else:
        words = (
            "the first step runs as it is, right ahead of the capture, and no replay makes it again: "
            f"it gives `{path}` its tensor, which the capture then finds"
        )
    failure = BY_ID["branch-frozen"].failure(text, frame_at(code, node.lineno))
    return replace(failure, fix=f"before  if {test}:\nafter   {words}")


def _begun(node: ast.If) -> str:
    """The attribute that a branch begins where it is None, or ""."""
    if not node.orelse or not isinstance(node.test, ast.Compare):
        return ""
    asked, (is_, *_), (none, *_) = node.test.left, node.test.ops, node.test.comparators
    nothing = isinstance(is_, ast.Is) and isinstance(none, ast.Constant) and none.value is None
    if not nothing or not isinstance(asked, ast.Attribute) or ast.unparse(asked.value) != "self":
        return ""
    stores = (n for part in node.body for n in ast.walk(part) if isinstance(n, ast.Attribute))
    begun = any(isinstance(n.ctx, ast.Store) and ast.unparse(n) == ast.unparse(asked) for n in stores)
    return asked.attr if begun else ""
