"""Lines that switch something on for a capture, and off again behind it: no replay reads that."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.observe.own_regions import Region, all_blocks


def is_switched_back(region: Region, node: ast.AST) -> bool:
    """Whether a line only ends what a line ahead of the capture has switched on for it, and no replay follows there."""
    for block in all_blocks(tree_of(region.code.co_filename) or ast.Module([], [])):
        if node not in block:
            continue
        at = block.index(node)
        ahead = [each for each in block[:at] if each.lineno < region.line <= node.lineno]
        calls = (n for each in block[at:] for n in ast.walk(each) if isinstance(n, ast.Call))
        switch = _switched(node)
        is_on = switch is not None and any(_switched(each) == (switch[0], not switch[1]) for each in ahead)
        return is_on and all(last_name(call.func) != "replay" for call in calls)
    return False


def _switched(node: ast.AST) -> tuple[str, bool] | None:
    """What a statement sets to True, or to False."""
    value = node.value if isinstance(node, ast.Assign) else None
    if not (isinstance(node, ast.Assign) and isinstance(value, ast.Constant) and isinstance(value.value, bool)):
        return None
    return ast.unparse(node.targets[0]), value.value
