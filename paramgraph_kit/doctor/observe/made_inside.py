"""Random generators that a function makes anew in each call: no graph can be told of those before its capture."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure


def generators(found: Iterable[Failure], codes: Iterable[CodeType]) -> Iterator[Failure]:
    """The lines that make generators which draw unregistered: each is in a local name, and in no cache."""
    drawing = {(f.frame.function, f.frame.line) for f in found if f.code == "unregistered-generator" and f.frame}
    for code in codes:
        lines = {line for function, line in drawing if function == code.co_name}
        nodes = [*nodes_of(code)] if lines else []
        read = {n.id for n in nodes if isinstance(n, ast.Name) and n.lineno in lines}
        for node in nodes:
            if (
                isinstance(node, ast.Assign)
                and isinstance(target := node.targets[0], ast.Name)
                and _is_made(node.value)
            ):
                local = target.id in code.co_varnames and target.id not in code.co_freevars
                if local and target.id in read:
                    text = f"`{target.id}` is made anew in each call"
                    frame = frame_at(code, node.lineno)
                    line = ast.unparse(node)
                    after = f"before the capture: {line}; g.register_generator_state({target.id}), of the graph g"
                    made = BY_ID["generator-made"].failure(text, frame)
                    yield replace(made, fix=f"before  {line}\nafter   {after}")


def _is_made(value: ast.expr) -> bool:
    """Whether a value is a new generator, perhaps with a seed."""
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr == "manual_seed":
        return _is_made(value.func.value)
    return last_name(value.func) == "Generator"
