"""Lists of numbers that the device has found: what is gone through, looked up with, or made a tensor of stays there."""

from __future__ import annotations

import ast

from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite.expressions.numbers.exact import each_as_python_has_it
from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called


def list_on_device(place: Place) -> list[Edit]:
    """``x.tolist()`` that is gone through or looked up with stays on the device, as ``x.unbind()`` or ``x``."""
    node = place.statement
    for call in place.calls("tolist"):
        above = place.source.parents.get(call)
        if not isinstance(call.func, ast.Attribute) or call.args:
            continue
        if isinstance(above, ast.Call) and called(above) not in ("zip", "enumerate", "reversed", "list", "tuple"):
            continue  # a set knows tensors apart that are equal numbers
        text = place.source.bracketed(call.func.value)
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.For):
            more = each_as_python_has_it(place, node, call.func.value)
            return [place.source.replace(call, f"{text}{more}.unbind()")]
        if isinstance(target, ast.Tuple):
            return [place.source.replace(call, f"{text}.unbind()")]
        if isinstance(target, ast.Name) and only_indexes(place, target):
            return [place.source.replace(call, text)]
    return []


def only_indexes(place: Place, name: ast.Name) -> bool:
    """Whether a local name is read as an index alone."""
    function = place.source.function_of(place.statement)
    reads = [n for n in ast.walk(function or place.statement) if isinstance(n, ast.Name) and n.id == name.id]
    reads = [n for n in reads if isinstance(n.ctx, ast.Load)]
    return bool(reads) and all(is_index(place, n) for n in reads)


def is_index(place: Place, name: ast.Name) -> bool:
    """Whether a name is all that something is picked by."""
    above = place.source.parents.get(name)
    return isinstance(above, ast.Subscript) and above.slice is name and isinstance(name.ctx, ast.Load)


def stack_the_list(place: Place) -> list[Edit]:
    """``torch.tensor(numbers, device=d)`` of a list that has tensors now becomes ``torch.stack(numbers)``."""
    for call in place.calls("tensor", "as_tensor"):
        if len(call.args) == 1 and isinstance(call.args[0], ast.Name) and _is_listed(place, call.args[0].id):
            kinds = [place.text(option.value) for option in call.keywords if option.arg == "dtype"]
            kind = f".to({kinds[0]})" if kinds else ""
            return [place.source.replace(call, f"torch.stack({call.args[0].id}){kind}")]
        listed = call.args[0] if len(call.args) == 1 and place.source.file.endswith(REWRITTEN) else None
        if isinstance(listed, ast.ListComp) and not {o.arg for o in call.keywords} - {"device"}:
            return [place.source.replace(call, f"torch.stack({place.text(listed)})")]
        if isinstance(listed, ast.List) and listed.elts and all(isinstance(n, ast.Name) for n in listed.elts):
            return [place.source.replace(call, f"torch.stack({place.text(listed)})")]  # numbers, before they were kept
    return []


def _is_listed(place: Place, name: str) -> bool:
    """Whether a name of the function's own is a list, and no array that a call has given."""
    function = place.source.function_of(place.statement)
    every = [n for part in (function.body if function is not None else ()) for n in ast.walk(part)]
    made = [n for n in every if isinstance(n, ast.Assign) and name in _stored(n) and n is not place.statement]
    arrays = [n for n in made if isinstance(n.value, ast.Call) and called(n.value) not in ("list", "sorted")]
    given = function is None or (name in arguments_of(function) and not made)
    return place.is_local(name) and not given and not arrays


def _stored(node: ast.Assign) -> set[str]:
    """Names that an assignment gives a value, alone or several at once."""
    return {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
