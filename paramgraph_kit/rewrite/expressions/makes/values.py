"""Values that stay on the device, or are there before the function runs: rules for what would be copied."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import replace

import torch

from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite.expressions.decisions.branches import assert_on_device, choose_by_where
from paramgraph_kit.rewrite.expressions.decisions.chains import choose_among
from paramgraph_kit.rewrite.expressions.decisions.gates import run_the_rest
from paramgraph_kit.rewrite.expressions.makes.made import is_a_tensor
from paramgraph_kit.rewrite.expressions.makes.quantized import quantized
from paramgraph_kit.rewrite.expressions.numbers.exact import as_python_has_it, is_exact, where_it_decides
from paramgraph_kit.rewrite.expressions.numbers.filled import default_for, taken_as_it_is
from paramgraph_kit.rewrite.expressions.numbers.readings import (
    around_rounded,
    divided,
    divided_by_name,
    is_computed,
    is_given_to_torch,
    of_torch,
    only_around,
    read_of,
    rounded,
)
from paramgraph_kit.rewrite.expressions.picks.sizes import FACTORIES, has_dimensions, is_in_size, is_size
from paramgraph_kit.rewrite.source.edits import Edit, heads, locals_of, names_in, path_of
from paramgraph_kit.rewrite.source.fixed import is_fixed
from paramgraph_kit.rewrite.source.place import NUMBER, Form, Place, array_type, called, integer, is_number, target_of
from paramgraph_kit.rewrite.source.unchanging import is_drawn, stays_around

COPIES = ("to", "cuda", "tensor", "as_tensor", "view", "reshape", "float", "long", "tolist")
MADE = ("torch.tensor", "torch.as_tensor")
_SHAPED = ("unsqueeze", "view", "reshape", "expand", "repeat", "t", "long", "flatten", "flip", "type")
WRITERS = ("print", "append", "info", "debug", "warning", "write", "add_scalar")  # what they are given is read


def keep_on_device(place: Place, *, alone: bool = False) -> list[Edit]:
    """``x.item()`` and ``float(x)`` stay a tensor; ``math.exp(x)`` becomes torch's."""
    found: list[Edit] = []
    if isinstance(place.statement, (ast.If, ast.While, ast.For, ast.Expr, ast.AugAssign)) and not _adds_up(place):
        return found  # what is decided or kept on the CPU needs the number
    if is_size(place) or (any(place.calls(*WRITERS)) and not _adds_up(place)) or _keeps_a_number(place):
        return found
    within = set[ast.AST]()  # another that is read as a whole
    exact = set[ast.AST]()  # what is rounded of numbers of Python's, which are finer
    for node in heads(place.statement):
        if not isinstance(node, ast.Call) or node in within:
            continue
        if around := around_rounded(place, node):
            found += around
            within.update(node.args)
            exact |= set(ast.walk(node))
            continue
        if around := only_around(place, node):
            found += around
            continue
        if (number := rounded(place, node)) is not None:
            text = f"{place.source.bracketed(number)}.detach().round().long()"
            found.append(place.source.replace(node, text))
            within |= set(ast.walk(node))
            continue
        value = read_of(place, node)
        within |= set(ast.walk(node)) if value is not None else set()
        if value is not None:
            if called(node) == "int" and place.source.file.endswith(REWRITTEN) and not is_exact(place, value):
                return []  # which number it is cut to may hang on a rounding, and Python's are finer
        elif isinstance(node.func, ast.Name) and node.func.id == "divmod" and len(node.args) == 2:
            if edits := divided(place, node):
                return edits
        elif isinstance(node.func, ast.Attribute) and is_computed(place, node):
            found += of_torch(place, node)
        if value is not None and is_in_size(place, node):
            return []
        if value is not None:
            text = place.source.bracketed(value)
            text = text if text.endswith(".detach()") else f"{text}.detach()"
            if _is_written_behind(place, value):
                text = text if place.trains else text.removesuffix(".detach()")
                text = f"{text}.clone()"  # a number does not change when its tensor does
            if has_dimensions(place, value) or _was_no_scalar(place):
                text += ".squeeze()"  # as a number has none
            more = ".double()" if node in exact else as_python_has_it(place, node, value)
            if more == ".double()" and (there := where_it_decides(place, node)):
                more, simple = "", [n for n in there if isinstance(place.source.statement_of(n), ast.Assign)]
                found += [place.source.replace(n, f"{n.id}.double()") for n in simple]
                place.exact = {n.id for n in there if n not in simple}
            text += more
            if called(node) == "int" and (_ends_a_part(place) or "_dense of float" in place.failure.message):
                text += ".long()"
            whole = place.source.parents.get(node)
            if isinstance(whole, ast.Call) and whole.args == [node] and path_of(whole.func) in MADE:
                # Of a tensor, torch makes a copy there and warns at each call.
                text = text if isinstance(value, ast.Call) or ".clone()" in text else f"{text}.clone()"
                moved = ", ".join(place.source.text(each) for each in whole.keywords)
                if not any(each.arg == "dtype" for each in whole.keywords) and (kind := default_for(place, node)):
                    moved = ", ".join([*([moved] if moved else []), f"dtype={kind}"])
                found.append(place.source.replace(whole, f"{text}.to({moved})" if moved else text))
            else:
                found.append(place.source.replace(node, text))
            found += [*quantized(place, node), *_from_the_beginning(place)]
    found += _made_of_it(place) if found else []
    if alone or not found:
        return found
    decided = _decided(place)
    return [*found, *decided] if decided is not None else []


def _decided(place: Place) -> list[Edit] | None:
    """What the host decided by a number, the device decides, with other numbers that are read for it as well."""
    beside = list(_read_beside(place))
    others = [edit for each in beside for edit in keep_on_device(replace(place, statement=each), alone=True)]
    chosen = list[Edit]()
    branches = [each for one in (place.statement, *beside) for each in branches_on(replace(place, statement=one))]
    if not branches:  # nothing asks what has been seen, which a text alone does not tell
        return others
    there = replace(place, tensors={**place.tensors, **_stay(place)})
    for branch in sorted(dict.fromkeys(branches), key=lambda each: each.lineno):
        if any(edit.line <= branch.lineno < max(edit.end_line, edit.line + 1) for edit in chosen):
            continue  # it went with one before it
        one = replace(there, statement=branch)
        edits = choose_by_where(one) or choose_among(one) or run_the_rest(one) or assert_on_device(one)
        if not edits:
            return None
        chosen += edits
    return [*others, *chosen]


def _read_beside(place: Place) -> Iterator[ast.stmt]:
    """Other statements that read a number, for a branch that a statement decides: all are tensors, or none."""
    function = place.source.function_of(place.statement)
    asked = {name for branch in branches_on(place) for name in names_in(getattr(branch, "test", branch))}
    for node in ast.walk(function) if function is not None and asked else ():
        if not isinstance(node, ast.Assign) or node is place.statement or node in place.gone or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        item = isinstance(value, ast.Call) and called(value) == "item" and not value.args
        if item and isinstance(target, ast.Name) and target.id in asked:
            yield node


def _stay(place: Place) -> dict[str, Form]:
    """The names that a statement gives what stays a tensor, which the branches that it decides read."""
    seen = re.search(r"of (\w+)\[", place.failure.message)
    kind = getattr(torch, seen[1], None) if seen is not None else None
    names = {n.id for n in ast.walk(place.statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    read = isinstance(place.statement, ast.Assign) and isinstance(place.statement.value, ast.Call)
    one = read and len(names) == 1 and isinstance(kind, torch.dtype)
    return {name: Form(torch.Size(()), kind, place.device) for name in names} if one and kind is not None else {}


def _made_of_it(place: Place) -> list[Edit]:
    """``torch.tensor(s)`` and ``divmod(s, n)`` of the names that a statement gives what stays a tensor."""
    node, pairs = place.statement, list[tuple[ast.expr, ast.expr]]()
    for target in node.targets if isinstance(node, ast.Assign) else []:
        if isinstance(target, ast.Tuple) and isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            pairs += zip(target.elts, node.value.elts, strict=False)
        elif isinstance(node, ast.Assign):
            pairs.append((target, node.value))
    named = [(to.id, value) for to, value in pairs if isinstance(to, ast.Name)]
    return [e for name, value in named for e in (*taken_as_it_is(place, value, name), *divided_by_name(place, name))]


def _was_no_scalar(place: Place) -> bool:
    """Whether a number that a statement reads was seen to lie in a tensor with dimensions, as all may."""
    reads = [*place.calls("item"), *place.calls("float", "int")]
    return bool(reads) and re.search(r"_local_scalar_dense of \w+\[\d", place.failure.message) is not None


def _from_the_beginning(place: Place) -> Iterator[Edit]:
    """``at = 0`` before a loop that gives ``at`` what the device has found is a tensor, too."""
    function, loop = place.source.function_of(place.statement), place.source.parents.get(place.statement)
    name = place.statement.targets[0] if isinstance(place.statement, ast.Assign) else None
    if not isinstance(loop, (ast.For, ast.While)) or not isinstance(name, ast.Name) or function is None:
        return
    made = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and n is not place.statement]
    made = [n for n in made if any(isinstance(t, ast.Name) and t.id == name.id for t in n.targets)]
    if len(made) == 1 and made[0].lineno < loop.lineno and is_number(made[0].value) and len(made[0].targets) == 1:
        text = f"torch.full((), {place.text(made[0].value)}, device={place.device})"
        yield place.source.replace(made[0].value, text)


def _is_written_behind(place: Place, value: ast.expr) -> bool:
    """Whether the function writes a tensor that an expression is, behind the statement."""
    function = place.source.function_of(place.statement)
    if not (path := path_of(value)) or function is None:
        return False
    behind = [n for n in ast.walk(function) if getattr(n, "lineno", 0) > place.statement.lineno]
    added = [n.target for n in behind if isinstance(n, ast.AugAssign)]  # ``loss /= n`` writes a tensor in place
    filled = [n.func for n in behind if isinstance(n, ast.Call) and called(n).endswith("_")]
    stores: list[ast.expr] = [n for n in behind if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
    stores += [*added, *(each.value for each in filled if isinstance(each, ast.Attribute))]
    return any(path_of(n) == path for n in stores)


def _adds_up(place: Place) -> bool:
    """Whether a statement adds to a number or to a list of the function's own, which may be tensors as well."""
    node = place.statement
    if isinstance(node, ast.AugAssign):
        return isinstance(node.target, ast.Name) and place.is_local(node.target.id)
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or called(call) != "append" or not isinstance(call.func, ast.Attribute):
        return False
    return isinstance(call.func.value, ast.Name) and place.is_local(call.func.value.id)


def _keeps_a_number(place: Place) -> bool:
    """Whether a statement gives another number to a variable around the function, for which a tensor is no number."""
    targets = place.statement.targets if isinstance(place.statement, ast.Assign) else []
    if any(isinstance(target, ast.Attribute) and target.attr in place.numbers for target in targets):
        return True  # a graph would read what it was
    names = [target.id for target in targets if isinstance(target, ast.Name) and not place.is_local(target.id)]
    return any(isinstance(place.space.get(name), NUMBER) for name in names)


def branches_on(place: Place) -> Iterator[ast.stmt]:
    """Branches and assertions of the function that read what a statement assigns."""
    names = {n.id for n in ast.walk(place.statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    function = place.source.function_of(place.statement)
    for node in ast.walk(function) if function is not None else ():
        if not isinstance(node, (ast.If, ast.While, ast.Assert)) or node in place.gone:
            continue
        if names & names_in(node.test):
            yield node


def _ends_a_part(place: Place) -> bool:
    """Whether what a statement assigns is where a part of a tensor ends."""
    names = {n.id for n in ast.walk(place.statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    function = place.source.function_of(place.statement)
    every = ast.walk(function) if function is not None else ()
    return any(isinstance(node, ast.Slice) and names & names_in(node) for node in every)


def return_the_tensor(place: Place) -> list[Edit]:
    """``return x.cpu().numpy()`` is the tensor; of ``x.cpu().data.numpy().flatten()``, ``x.detach().flatten()`` is."""
    if not isinstance(place.statement, ast.Return):
        return []
    value = place.statement.value
    inner, rest, read, apart = value, "", False, ""
    while True:
        if isinstance(inner, ast.Attribute) and inner.attr == "data":
            inner, apart = inner.value, ".detach()"
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and not inner.args:
            name = inner.func.attr
            if name in ("flatten", "squeeze", "ravel") and not inner.keywords and not read:
                rest = f".{name}(){rest}"  # of the array, as of the tensor
            elif name == "detach":
                apart = ".detach()"  # nothing goes back from the array, and nothing is to from the tensor
            elif name in ("cpu", "numpy", "tolist"):
                read = True
            else:
                break
            inner = inner.func.value
        else:
            break
    if value is None or inner is None or not read:
        return []
    rest = apart + rest
    return [place.source.replace(value, f"{place.source.bracketed(inner) if rest else place.text(inner)}{rest}")]


def number_in_full(place: Place) -> list[Edit]:
    """``torch.tensor(3.0, device=d)`` becomes ``torch.full((), 3.0, device=d)``."""
    found = []
    for call in place.calls("tensor", "new_tensor"):
        options = {option.arg: option for option in call.keywords}
        own = called(call) == "new_tensor" and isinstance(call.func, ast.Attribute) and not options
        if own and len(call.args) == 1 and is_number(call.args[0]) and isinstance(call.func, ast.Attribute):
            like = place.source.bracketed(call.func.value)
            text = f"torch.full((), {place.text(call.args[0])}, dtype={like}.dtype, device={like}.device)"
            found.append(place.source.replace(call, text))
        beside = "device" not in options and is_given_to_torch(place, call) and is_number(call.args[0])
        if beside:
            rest = "".join(f", {place.text(option)}" for option in call.keywords)
            text = f"torch.full((), {place.text(call.args[0])}{rest}, device={place.device})"
            found.append(place.source.replace(call, text))
        if len(call.args) != 1 or "device" not in options or called(call) == "new_tensor":
            continue
        text, kind = place.text(call.args[0]), ""
        if not is_number(call.args[0]):
            array = array_type(place, call.args[0])
            if not isinstance(array, str):
                continue
            text = f"float({text})" if "float" in array else f"int({text})" if "int" in array else text
            kind = f", dtype=torch.{array}" if array and "dtype" not in options else ""
        rest = "".join(f", {place.text(option)}" for option in call.keywords)
        found.append(place.source.replace(call, f"torch.full((), {text}{kind}{rest})"))
    return found


def number_there(place: Place) -> list[Edit]:
    """``torch.tensor(2.0**i).to(x)`` in a loop over ``i`` is filled on the device, and ``torch.tensor([s]).log()``."""
    found = []
    for call in place.calls("to", "cuda"):
        made = call.func.value if isinstance(call.func, ast.Attribute) else None
        whole = made
        while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and not (made.args or made.keywords):
            made = made.func.value  # what is done with it on the CPU is done there
        if not isinstance(made, ast.Call) or path_of(made.func) != "torch.tensor" or len(made.args) != 1:
            continue
        value, shape = made.args[0], "()"
        if isinstance(value, ast.List) and len(value.elts) == 1:
            value, shape = value.elts[0], "(1,)"
        if made.keywords or len(call.args) > 1 or call.keywords or not is_fixed(place, value):
            continue
        target = place.text(call.args[0]) if call.args else place.device
        like = bool(call.args) and is_a_tensor(place, call.args[0])
        text = f"torch.full({shape}, {place.text(value)}, device={target}{'.device' * like})"
        text = place.text(whole or made).replace(place.text(made), text, 1)
        found.append(place.source.replace(call, f"{text}.to({target})" if like else text))
    return found


def look_up_there(place: Place) -> list[Edit]:
    """``table[i.cpu()].to(d)`` becomes ``table_on_device[i]``, of a table that was copied before the function."""
    found = []
    for node in heads(place.statement):
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or place.local(node.value):
            continue
        index = node.slice
        held = place.space.get(node.value.id)
        if not isinstance(held, torch.Tensor) or not isinstance(index, ast.Call):
            continue
        if called(index) != "cpu" or not isinstance(index.func, ast.Attribute):
            continue
        attribute = place.source.parents.get(node)
        outer = place.source.parents.get(attribute) if isinstance(attribute, ast.Attribute) else None
        whole = outer if isinstance(outer, ast.Call) and called(outer) in ("to", "cuda") else node
        name = node.value.id
        there = held.device.type != "cpu"
        table = name if there else place.hoist(f"{name}_on_device", f"{name}.to({place.device})")
        found.append(place.source.replace(whole, f"{table}[{place.text(index.func.value)}]"))
    return found


def make_it_before(place: Place) -> list[Edit]:
    """A copy whose values do not come from the function's own variables is made before the function."""
    found, inside_of = [], set[ast.AST]()
    for call in place.calls("tensor", "as_tensor", "to", "cuda"):
        source = call.func.value if isinstance(call.func, ast.Attribute) and called(call) in ("to", "cuda") else None
        values = [source] if source is not None else call.args[:1]
        if not values or any(place.local(value) for value in values if value is not None):
            continue
        if any(isinstance(node, ast.Call) and not _is_constant(node) for node in ast.walk(call)):
            continue  # other numbers each time
        if not stays_around(place, call):
            continue  # `random.shuffle(order)` elsewhere, or a loop around that gives `order`
        if _is_closed_over(place, call) or call in inside_of:
            continue  # before the function, nobody knows it; with what is around it, it is made before already
        text, rest = place.text(call), []
        for part in call.args[1 if source is None else 0 :]:
            if place.local(part):
                text = text.replace(place.text(part), place.device)
        for option in call.keywords:
            if option.arg == "device" and place.local(option.value):
                text = text.replace(place.text(option.value), place.device)
            elif place.local(option.value):
                rest.append(place.text(option))
                text = re.sub(rf",?\s*{re.escape(place.text(option))}", "", text)
        if source is None and place.failure.code == "copy-to-gpu" and "device" not in {o.arg for o in call.keywords}:
            text = f"{text.rstrip()[:-1]}, device={place.device})"  # what is made of it is copied behind that
        inside = place.source.parents.get(call)
        target = target_of(inside)
        if isinstance(target, ast.Name) and inside is place.statement and not rest:
            place.hoisted.append(f"{target.id} = {text}")
            return [place.source.without(place.statement)]
        hint = source.id if isinstance(source, ast.Name) else "constant"
        cast = f".to({', '.join(rest)})" if rest else ""
        found.append(place.source.replace(call, place.hoist(f"{hint}_on_device", text) + cast))
        inside_of |= set(ast.walk(call))
    return found


def _is_closed_over(place: Place, node: ast.AST) -> bool:
    """Whether an expression names what the function around its own has made."""
    function = place.source.function_of(place.statement)
    outer = place.source.function_of(function) if function is not None else None
    while outer is not None:
        if names_in(node) & locals_of(outer):
            return True
        outer = place.source.function_of(outer)
    return False


def index_on_device(place: Place) -> list[Edit]:
    """``x[:, [-1]]`` becomes a slice, a ``range`` an ``arange``; another list an index made before the function."""
    found = []
    for node in heads(place.statement):
        if not isinstance(node, ast.Subscript):
            continue
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        lists = [part for part in parts if isinstance(part, ast.List)]
        for listed in lists:
            number = integer(listed.elts[0]) if len(listed.elts) == 1 else None
            if number is not None and len(lists) == 1:
                end = "" if number == -1 else str(number + 1)
                found.append(place.source.replace(listed, f"{number}:{end}"))
            elif all(integer(each) is not None for each in listed.elts):
                text = f"torch.tensor({place.text(listed)}, device={place.device})"
                found.append(place.source.replace(listed, place.hoist("index", text)))
        for part in parts:
            if isinstance(part, ast.Call) and path_of(part.func) == "range" and "range" not in place.space:
                given = ", ".join(map(place.text, part.args))
                found.append(place.source.replace(part, f"torch.arange({given}, device={place.device})"))
                continue
            if (made := made_in(part)) is not None:
                if any(place.tensors[name].device == "cpu" for name in names_in(node.slice) & place.tensors.keys()):
                    return []  # what is beside it comes from the host
                if not any(option.arg == "device" for option in made.keywords):
                    text = f"{place.text(made)[:-1]}, device={place.device})"
                    found.append(place.source.replace(made, text))
                continue
            known = place.space.get(part.id) if isinstance(part, ast.Name) and not place.local(part) else None
            there = isinstance(known, torch.Tensor) and known.device.type != "cpu"
            if isinstance(part, ast.Name) and isinstance(known, (list, torch.Tensor)) and not there:
                text = f"torch.as_tensor({part.id}, device={place.device})"
                found.append(place.source.replace(part, place.hoist(f"{part.id}_on_device", text)))
    return found


def made_in(node: ast.expr) -> ast.Call | None:
    """``torch.arange(n)`` of ``torch.arange(n)[:, None]`` and ``torch.arange(n).view(-1, 1)``."""
    while True:
        if isinstance(node, ast.Call) and called(node) in FACTORIES and names_in(node.func) == {"torch"}:
            return node
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in _SHAPED:
            node = node.func.value
        else:
            return None


def fill_by_index(place: Place) -> list[Edit]:
    """``x[index] = 3.0`` assigns a tensor of the device; a list as the index is made before the function."""
    node = place.statement
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
        return []
    if len({place.text(getattr(each, "value", each)) for each in node.targets}) > 1:
        return []  # one number, and two types
    told = place.failure.code == "scalar-assignment" and not names_in(node.value) & place.tensors.keys()
    if not is_number(node.value) and not (told and not _is_read_back(place, node.value)):
        return []
    if place.failure.code != "scalar-assignment" and _is_mask(place, node.targets[0].slice):
        return index_on_device(place)  # a number is filled in through a mask, and a tensor is not
    base = place.source.bracketed(node.targets[0].value)
    number = f"torch.full((), {place.text(node.value)}, dtype={base}.dtype, device={base}.device)"
    index = index_on_device(place)
    if place.failure.code == "cpu-index" and not index:
        return []  # the list is what has to come there, once or before each launch
    return [*index, place.source.replace(node.value, number)]


def _is_mask(place: Place, index: ast.expr) -> bool:
    """Whether an index is a condition, as far as its text and what was seen tell."""
    form = place.tensors.get(index.id) if isinstance(index, ast.Name) else None
    return isinstance(index, ast.Compare) or (form is not None and form.dtype is torch.bool)


def _is_read_back(place: Place, value: ast.expr) -> bool:
    """Whether an expression names what the device has found, which stays there."""
    function, names = place.source.function_of(place.statement), names_in(value)
    made = [n for n in ast.walk(function or place.statement) if isinstance(n, ast.Assign)]
    given = [n.value for n in made if any(isinstance(t, ast.Name) and t.id in names for t in n.targets)]
    return any(
        isinstance(n, ast.Call) and called(n) in ("item", "int", "float") for one in given for n in ast.walk(one)
    )


def _is_constant(node: ast.Call) -> bool:
    """Whether a call gives the same each time, as far as its name tells."""
    root = path_of(node.func).partition(".")[0] if isinstance(node.func, ast.Attribute) else ""
    own = isinstance(node.func, ast.Name) and not hasattr(builtins, node.func.id)
    return not own and not is_drawn(node) and (root in ("torch", "np", "math") or called(node) in COPIES)
