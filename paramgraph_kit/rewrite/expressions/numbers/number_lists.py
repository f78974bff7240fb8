"""Lists of numbers that the device has found: what is gone through, looked up with, or made a tensor of stays there."""

from __future__ import annotations

import ast

from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite.expressions.numbers.exact import each_as_python_has_it, picks_as_python_has_them
from paramgraph_kit.rewrite.source.edits import Edit, names_in, path_of
from paramgraph_kit.rewrite.source.gone_through import gone_through
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called

_HOSTED = ("tolist", "cpu", "numpy", "detach", "to")
_VIEWS = (
    "view",
    "reshape",
    "flatten",
    "squeeze",
    "unsqueeze",
    "transpose",
    "permute",
    "t",
    "expand",
    "detach",
    "diagonal",
)
_READS = ("item", "tolist", "int", "float", "bool", "cpu", "numpy")
_DEEP = 3
_ORDERS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


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
        if isinstance(node, ast.For) and _is_kept_by_host(place, node):
            continue  # a table of the host's, or a list that it keeps, has no use for tensors
        if isinstance(node, ast.For):
            more = each_as_python_has_it(place, node, call.func.value)
            return [place.source.replace(call, f"{text}{more}.unbind()")]
        if isinstance(target, ast.Tuple):
            return [place.source.replace(call, f"{text}.unbind()")]
        if isinstance(target, ast.Name) and only_indexes(place, target):
            return [place.source.replace(call, text)]
    return []


def _is_kept_by_host(place: Place, loop: ast.For) -> bool:
    """``for c in row.tolist(): s += ALPHABET[c]``, and ``for s, t in zip(seqs, new.tolist()): s.tokens.append(t)``."""
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    nodes = [n for part in loop.body for n in ast.walk(part)]
    tables = [n.value for n in nodes if isinstance(n, ast.Subscript) and names_in(n.slice) & names]
    kept = [
        n.func.value
        for n in nodes
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "append"
        if any(isinstance(each, ast.Name) and each.id in names for each in n.args)
    ]
    attributes = any(isinstance(each, ast.Attribute) for each in kept)
    return attributes or any(isinstance(place.value(path_of(each)), (str, list, tuple, dict)) for each in tables)


def ask_there(place: Place) -> list[Edit]:
    """``counts = n.cpu().tolist()`` that only decides, ``if counts[i] == 0: continue``, stays on the device.

    Each such branch is the device's then, as any other that asks for a number of it.
    """
    node = place.statement
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name):
        return []
    value, numbers = node.value, False
    while isinstance(value, ast.Call) and called(value) in _HOSTED and isinstance(value.func, ast.Attribute):
        if value.keywords or [ast.unparse(each) for each in value.args] != ["'cpu'"] * (called(value) == "to"):
            break
        numbers |= called(value) == "tolist"
        value = value.func.value
    if value is node.value:
        return []
    function = place.source.function_of(node)
    every = [n for n in ast.walk(function or node) if isinstance(n, ast.Name) and n.id == target.id and n is not target]
    asked = [each for n in every for each in _asked_of(place, n)]
    if function is None or not asked or not all(each is not None and _decides_a_branch(place, each) for each in asked):
        return []
    text = place.source.bracketed(value)
    reads = [each for each in asked if each is not None]
    more = picks_as_python_has_them(place, value, reads) if numbers else ""  # numpy compares in the tensor's type
    copied = not isinstance(whole := _whole(value), ast.Call) or called(whole) in _VIEWS  # the next lines may write it
    return [place.source.replace(node.value, f"{text}{more}" + ".clone()" * (copied and not more))]


def _asked_of(place: Place, name: ast.Name) -> list[ast.expr | None]:
    """Where a read of a list has numbers of it: ``counts[i]``, or the name that a loop gives them; None: elsewhere."""
    above = place.source.parents.get(name)
    if isinstance(above, ast.Subscript) and above.value is name and isinstance(above.ctx, ast.Load):
        return [above if isinstance(above.slice, (ast.Name, ast.Constant)) else None]
    while isinstance(above, ast.Call):
        above = place.source.parents.get(above)
    function = place.source.function_of(name)
    if not isinstance(above, ast.For) or function is None:
        return [None]
    target = next((each for each, given in gone_through(above.target, above.iter) if given is name), None)
    if target is None:
        return [None]
    every = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == target.id and n is not target]
    return [n if isinstance(n.ctx, ast.Load) else None for n in every]


def _whole(value: ast.expr) -> ast.expr:
    """What is picked from."""
    while isinstance(value, ast.Subscript):
        value = value.value
    return value


def _decides_a_branch(place: Place, node: ast.expr) -> bool:
    """Whether a number is all that an ``if`` asks for, compared with another one or by itself."""
    above = place.source.parents.get(node)
    if isinstance(above, ast.Compare):
        others = [each for each in (above.left, *above.comparators) if each is not node]
        if len(others) != 1 or not isinstance(above.ops[0], _ORDERS):
            return False
        if not isinstance(others[0], (ast.Constant, ast.Name, ast.Attribute)):
            return False
        node, above = above, place.source.parents.get(above)
    if isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.Not):
        node, above = above, place.source.parents.get(above)
    return isinstance(above, ast.If) and above.test is node


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
        name = call.args[0].id if len(call.args) == 1 and isinstance(call.args[0], ast.Name) else ""
        if name and _is_listed(place, name) and _may_have_tensors(place, name):
            kinds = [place.text(option.value) for option in call.keywords if option.arg == "dtype"]
            kind = f".to({kinds[0]})" if kinds else ""
            return [place.source.replace(call, f"torch.stack({name}){kind}")]
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


def _may_have_tensors(place: Place, name: str) -> bool:
    """Whether anything that a list is made of is read of the device; what only the host makes stays numbers."""
    if place.source.file.endswith(REWRITTEN):
        return True
    function = place.source.function_of(place.statement)
    every = [n for part in (function.body if function is not None else ()) for n in ast.walk(part)]
    read = {n.id for n in every if isinstance(n, ast.Name) and place.is_local(n.id) and n.id in place.tensors}
    for _ in range(_DEEP):  # what is computed of what was read
        for node in every:
            if isinstance(node, ast.Assign) and _reads(node.value, read):
                read |= _stored(node)
            elif isinstance(node, ast.AugAssign) and _reads(node.value, read):
                read.add(path_of(node.target).partition(".")[0])
            elif isinstance(node, (ast.For, ast.comprehension)) and _reads(node.iter, read):
                read |= names_in(node.target)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                read |= {path_of(node.func.value)} if any(_reads(each, read) for each in node.args) else set()
    return name in read


def _reads(node: ast.expr, read: set[str]) -> bool:
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    return bool(names_in(node) & read) or any(called(n) in _READS for n in calls)


def _stored(node: ast.Assign) -> set[str]:
    """Names that an assignment gives a value, alone or several at once."""
    return {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
