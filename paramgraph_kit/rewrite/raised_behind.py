"""What ends a step behind its launch: nobody may catch it there, and the rest of the step is done by then."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.around.guards import is_exit
from paramgraph_kit.rewrite.source import moving
from paramgraph_kit.rewrite.source.caught import handler_of
from paramgraph_kit.rewrite.source.edits import Source, within
from paramgraph_kit.rewrite.ways import Ways


def told(attempt: Ways) -> list[str]:
    """The same in words, for each such line."""
    if (at := attempt._definition()) is None:
        return []
    (source, function), found = at, list[str]()
    for node in attempt.behind:
        handler = handler_of(source, node, attempt.space)
        if handler is not None:
            head = source.lines[handler.lineno - 1].strip()
            found.append(
                f"line {node.lineno} raises behind the launch, where `{head}` (line {handler.lineno}) does not catch "
                "it, and what the step does after it may be done by then: catch it around the call after the launch"
            )
        elif not attempt.guard.stays and (line := _ends_at(node, source)):
            after = (n for n in moving.body_of(function) if n not in attempt.behind and _lasts(n))
            late = [n.lineno for n in after if n.lineno > node.lineno]
            if late:
                what = f"line {late[0]} does" if len(late) == 1 else f"lines {late[0]} to {late[-1]} do"
                found.append(
                    f"line {line} ends the step behind the launch: what {what} is done by then, which it leaves out as "
                    "it is; where that counts, as for weights that are saved there, ask it in a graph of its own before"
                )
    return found


def _ends_at(node: ast.stmt, source: Source) -> int:
    """Where a statement raises or ends the program, 0 if nowhere."""
    inside = (n for n in within(node) if isinstance(n, ast.stmt) and n is not node)
    return next((n.lineno for n in inside if is_exit(n, source)), 0)


def _lasts(node: ast.stmt) -> bool:
    """Whether a statement may change what stays, as an optimizer's step does."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    return isinstance(node, (ast.Expr, ast.For)) or any(not isinstance(target, ast.Name) for target in targets)
