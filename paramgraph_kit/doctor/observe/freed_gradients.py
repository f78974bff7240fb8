"""Where a branch lets gradients go, which the optimizer's step shows at its own line by passing tensors over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Failure

_PASSED_OVER = re.compile(r"^\w+ got \d+ tensors in one call and \d+ in the next")
_TRIED = "(tried other"
_STEPS = re.compile(r"\bstep\(")
_SAID = "one call let gradients go here, and the next did not: {}"


def problems(seen: Sequence[Failure], caller: Caller, base: Call) -> list[Failure]:
    """The branch that has decided how many tensors a step of the optimizer met, where only one can have."""
    met = [f for f in seen if f.code == "size-frozen" and _PASSED_OVER.match(f.message)]
    met = [f for f in met if f.frame is not None and _STEPS.search(f.frame.text)]
    told = {f.message.partition(_TRIED)[2] for f in seen if f.code == "branch-frozen"}
    met = [f for f in met if f.message.partition(_TRIED)[2] not in told]  # else that branch decides what has gradients
    if not met:
        return []
    deciding = [(code, node) for code in _called(caller, base) for node in _deciding(code)]
    lines = {(code.co_filename, node.lineno): (code, node) for code, node in deciding}
    if len(lines) != 1:
        return []
    code, node = next(iter(lines.values()))
    failure = BY_ID["branch-frozen"].failure("", frame_at(code, node.lineno))
    return [replace(failure, message=_SAID.format(met[0].message))]


def _called(caller: Caller, base: Call) -> set[CodeType]:
    """The user's functions that ran, with those that they name: what lets gradients go runs nothing on the device."""
    found = base.ran()
    known = {function.__code__ for function in caller.state.functions}
    while more := {code for code in known - found if any(code.co_name in each.co_names for each in found)}:
        found |= more
    return {code for code in found if not is_library(code.co_filename)}


def _deciding(code: CodeType) -> Iterator[ast.If]:
    """Branches that let gradients go, or leave before that, and ask for more than for the parameter of a round."""
    nodes = list(nodes_of(code))
    loops = [n for n in nodes if isinstance(n, (ast.For, ast.comprehension))]
    rounds = {n.id for loop in loops for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for node in nodes:
        names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)} if isinstance(node, ast.If) else set()
        if not isinstance(node, ast.If) or not names - rounds:
            continue
        ends = all(isinstance(part, ast.Return) for part in node.body)
        behind = (n for n in nodes if getattr(n, "lineno", 0) > (node.end_lineno or node.lineno))
        decided = behind if ends else (n for part in node.body for n in ast.walk(part))
        if any(map(lets_gradients_go, decided)):
            yield node


def lets_gradients_go(node: ast.AST) -> bool:
    """``p.grad = None`` and ``p.requires_grad = False``, by which an optimizer passes parameters over."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_"
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = {target.attr for target in targets if isinstance(target, ast.Attribute)}
    none = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None
    return "requires_grad" in names or ("grad" in names and none)
