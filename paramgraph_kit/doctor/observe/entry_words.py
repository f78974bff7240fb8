"""Words for lists and dictionaries that a capture reads, and that have other entries, or more of them, at a replay."""

from __future__ import annotations

import ast
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_entries import CHANGES, LENGTH, is_dict, is_held
from paramgraph_kit.doctor.observe.captured_values import Moved, Use
from paramgraph_kit.doctor.observe.moved_together import graph_for_each
from paramgraph_kit.doctor.observe.moved_words import OF_LISTS, held_for, of_entries, of_the_host
from paramgraph_kit.doctor.observe.takes_tensors import takes_a_tensor

_MORE = (*CHANGES, "update", "setdefault")


def is_entry(moved: Moved) -> bool:
    """Whether it is a tensor, or a number, in a list or an array, or how many there are."""
    return is_held(moved.owner)


def path_of(moved: Moved) -> str:
    """An entry as one writes it, or the number of them."""
    return f"len({moved.use.text})" if moved.part == LENGTH else f"{moved.use.text}{moved.part}"


def changed_by(call: ast.Call, moved: Moved) -> bool:
    """Whether a call may give the list, or the one in which it is, other entries: ``self.bias.append(0.1)``."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in _MORE:
        return False
    node: Any = moved.use.node if is_entry(moved) else None
    if isinstance(moved.use.node, ast.Subscript) and not moved.part:
        node = moved.use.node.value
    if isinstance(node, ast.Subscript):
        return isinstance(func.value, ast.Subscript) and ast.dump(node.slice) == ast.dump(func.value.slice)
    return node is not None and bool(last_name(node)) and last_name(func.value) == last_name(node)


def of_held(moved: Moved, kind: str) -> str:
    """What one writes where a capture reads such entries as a whole; "" where one entry, or a tensor, has moved."""
    use, path = moved.use, moved.use.text
    if not is_entry(moved) or moved.then[0] != "number":
        return ""
    if isinstance(made := _made_of_all(use), ast.Call) and (moved.part == LENGTH or is_dict(moved.owner)):
        whole = ast.unparse(made)
        if takes_a_tensor(Use(use.code, made, use.decides, use.names), 0.0):
            return _filled(held_for(path), whole, kind)
        return graph_for_each(whole)
    if is_dict(moved.owner):
        held = held_for(path)
        each = f"{{k: torch.full((), float(v), device={kind!r}) for k, v in {path}.items()}}"
        more = "; another key needs a new capture" if moved.part == LENGTH else ""
        return (
            f"before the capture `{held} = {each}`, what is captured reads `{held}` for `{path}`, and ahead of "
            f"g.replay() `for k, v in {path}.items(): {held}[k].fill_(v)`{more}"
        )
    if moved.part == LENGTH:
        if moved.use.decides and moved.then[1] in (True, False) and type(moved.then[1]) is bool:
            return graph_for_each(f"bool({path})")
        numbers = all(type(each) in NUMBERS for each in moved.owner)
        return graph_for_each(of_the_host(use) or (f"tuple({path})" if numbers else f"len({path})"))
    whole = of_the_host(use)
    return graph_for_each(whole) if whole else of_entries(path, kind)


def if_absent(moved: Moved, *, as_key: bool = False) -> str:
    """What asks for an entry that was not there at the capture, as it is written; "" for others.

    ``cfg.get("bias", 1.0)``, ``"bias" in cfg``; ``as_key``: so that it tells apart what is read behind such a test.
    """
    node: Any = moved.use.node
    is_absent = hasattr(node, "written") and not moved.part and moved.then[1] == node.absent
    asked = node.written if is_absent and moved.now[0] != "memory" else ""
    if as_key and asked and node.only_asks and any(ast.unparse(n) == moved.use.text for n in nodes_of(moved.use.code)):
        owner = ast.unparse(node.value)
        if isinstance(node, ast.Attribute):
            return f"getattr({owner}, {node.attr!r}, None)"
        return f"{owner}.get({ast.unparse(node.slice)})" if hasattr(moved.use.owner(), "get") else asked
    return asked


def of_one(moved: Moved, kind: str) -> str:
    """What one writes where a line gives a list another entry at the key that a capture reads: ``self.bias[-1]``."""
    path = moved.use.text
    if not isinstance(moved.use.node, ast.Subscript) or moved.part:
        return ""
    if moved.then[0] == "memory":
        held = held_for(path)
        return (
            f"before the capture `{held} = {path}.clone()`, what is captured reads `{held}` for `{path}`, and ahead of "
            f"g.replay() `{held}.copy_({path})`"
        )
    return _filled(held_for(path), path, kind) if takes_a_tensor(moved.use, moved.then[1]) else graph_for_each(path)


def _filled(held: str, path: str, kind: str) -> str:
    made = f"before the capture `{held} = torch.full((), float({path}), device={kind!r})`"
    return f"{made}, what is captured reads `{held}` for `{path}`, and ahead of g.replay() `{held}.fill_({path})`"


def _made_of_all(use: Use) -> ast.Call | None:
    """The call that makes one number of all entries: ``sum(self.bias)``, ``max(self.rates.values())``."""
    nodes = [*nodes_of(use.code)]
    parents = {id(child): node for node in nodes for child in ast.iter_child_nodes(node)}
    above: Any = parents.get(id(use.node))
    if isinstance(above, ast.Attribute) and above.attr == "values":
        above = parents.get(id(parents.get(id(above))))
    if not isinstance(above, ast.Call) or len(above.args) != 1 or above.keywords:
        return None
    return above if ast.unparse(above.func) in OF_LISTS else None
