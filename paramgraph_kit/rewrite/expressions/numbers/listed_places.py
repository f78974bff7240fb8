"""Lists of places that a loop finds one after the other, as farthest point sampling has them: tensors in a list."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.expressions.numbers.readings import read_of
from paramgraph_kit.rewrite.source.edits import Edit, heads, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called, integer, is_number

_MADE = ("torch.tensor", "torch.as_tensor")


def keep_places(place: Place) -> list[Edit]:
    """``picked.append(d.argmax().item())`` keeps the tensor, which ``x[picked[-1]]`` and ``x[picked]`` pick by."""
    function = place.source.function_of(place.statement)
    names = dict.fromkeys(_lists(place)) if function is not None else ()
    given = arguments_of(function) if function is not None else ()
    return next((edits for name in names if name not in given and (edits := _kept(place, name))), [])


def _lists(place: Place) -> Iterator[str]:
    """Names of lists that a statement begins, adds to, picks by, or makes a tensor of."""
    node, parents = place.statement, place.source.parents
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and called(call) == "append" and isinstance(call.func, ast.Attribute):
        yield path_of(call.func.value)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.List) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id
    for name in (n for n in heads(node) if isinstance(n, ast.Name)):
        above = parents.get(name)
        if (isinstance(above, ast.Subscript) and above.slice is name) or _makes_a_tensor(above):
            yield name.id


def _kept(place: Place, name: str) -> list[Edit]:
    """What keeps the tensors in a list, if all that is done with it goes on with them."""
    function, source = place.source.function_of(place.statement), place.source
    body = function.body if function is not None else ()
    edits, begun, reads = list[Edit](), 0, 0
    for each in (n for part in body for n in within(part) if isinstance(n, ast.Name) and n.id == name):
        above = source.parents.get(each)
        outer = source.parents.get(above) if above is not None else None
        if isinstance(each.ctx, ast.Store):
            listed = above.value if isinstance(above, ast.Assign) and above.targets == [each] else None
            texts = [_placed(place, n, name) for n in listed.elts] if isinstance(listed, ast.List) else [""]
            if not isinstance(listed, ast.List) or not all(texts):
                return []
            begun += 1
            edits += [source.replace(n, text) for n, text in zip(listed.elts, texts, strict=True)]
            reads += sum(isinstance(n, ast.Call) for n in listed.elts)
        elif isinstance(above, ast.Attribute) and isinstance(outer, ast.Call) and outer.func is above:
            if above.attr == "append" and len(outer.args) == 1 and (text := _placed(place, outer.args[0], name)):
                edits.append(source.replace(outer.args[0], text))
                reads += isinstance(outer.args[0], ast.Call)
            elif above.attr != "reverse":
                return []
        elif isinstance(above, ast.Subscript) and above.slice is each:
            edits += [source.replace(each, f"torch.stack({name})"), *_filled(place, above)]
        elif isinstance(above, ast.Subscript) and above.value is each and integer(above.slice) is not None:
            if not isinstance(outer, ast.Subscript) or outer.slice is not above or not isinstance(outer.ctx, ast.Load):
                return []
            edits.append(source.replace(outer, _picked(place, outer, above)))
        elif isinstance(above, ast.Subscript) and isinstance(above.slice, ast.Slice) and _makes_a_tensor(outer):
            assert isinstance(outer, ast.Call)
            edits.append(source.replace(outer, f"torch.stack({place.text(above)})"))
        elif _makes_a_tensor(above):
            assert isinstance(above, ast.Call)
            edits.append(source.replace(above, f"torch.stack({name})"))
        elif not _is_asked(above, each):
            return []
    whole = [e for e in edits if not any(e is not one and e != one and _is_in(e, one) for one in edits)]
    return whole if begun == 1 and reads else []


def _placed(place: Place, node: ast.expr, name: str) -> str:
    """A place as one of the device: a number, what is read there, and what the last place has in a table."""
    if (number := integer(node)) is not None and number >= 0:
        return f"torch.full((), {place.text(node)}, dtype=torch.long, device={place.device})"
    read = read_of(place, node) if isinstance(node, ast.Call) else None
    if isinstance(read, ast.Call) and called(read) in ("argmax", "argmin") and not read.keywords:
        return place.text(read)  # never below zero, and an index by its type
    inner = read.slice if isinstance(read, ast.Subscript) else None
    if isinstance(inner, ast.Subscript) and path_of(inner.value) == name and integer(inner.slice) is not None:
        return _picked(place, read, inner)  # a place again, as the next round picks by it
    return ""


def _picked(place: Place, outer: ast.expr | None, at: ast.Subscript) -> str:
    assert isinstance(outer, ast.Subscript)
    return f"{place.text(outer.value)}[{place.text(at)}.reshape(1)][0]"


def _filled(place: Place, target: ast.Subscript) -> list[Edit]:
    """The number of ``x[picked] = -1e9``, which through an index of the device would come from the CPU."""
    node, x = place.source.parents.get(target), place.text(target.value)
    if not isinstance(node, ast.Assign) or not is_number(node.value):
        return []
    number = f"torch.full((), {place.text(node.value)}, dtype={x}.dtype, device={x}.device)"
    return [place.source.replace(node.value, number)]


def _makes_a_tensor(node: ast.AST | None) -> bool:
    """``torch.tensor(picked, device=d)``, of the type that an index has."""
    if not isinstance(node, ast.Call) or path_of(node.func) not in _MADE or len(node.args) != 1:
        return False
    kinds = {o.arg: ast.unparse(o.value) for o in node.keywords if o.arg != "device"}
    return kinds in ({}, {"dtype": "torch.long"}, {"dtype": "torch.int64"})


def _is_asked(above: ast.AST | None, name: ast.Name) -> bool:
    """Whether only how many there are, or whether there are any, is asked of a list."""
    negated = isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.Not)
    tested = isinstance(above, (ast.If, ast.While, ast.IfExp)) and above.test is name
    return negated or tested or (isinstance(above, ast.Call) and called(above) == "len")


def _is_in(edit: Edit, other: Edit) -> bool:
    begins = (other.line, other.column) <= (edit.line, edit.column)
    return begins and (edit.end_line, edit.end_column) <= (other.end_line, other.end_column)
