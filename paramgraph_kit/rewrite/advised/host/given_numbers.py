"""Advice for numbers that a line is given: of arguments each value has a graph, others have their place in a tensor."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from paramgraph_kit.doctor.observe.other_numbers import OTHER_NUMBERS
from paramgraph_kit.rewrite.advised.asks.asking_rounds import given_in_rounds
from paramgraph_kit.rewrite.advised.host.from_host import assignments
from paramgraph_kit.rewrite.advised.host.several_numbers import is_a_property
from paramgraph_kit.rewrite.source.ahead_of import named_by
from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import Function, heads, is_method, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called

_CHANGED = re.compile(r"(\w+) got (\S+) in one call and (\S+) in the next")
_ARITHMETIC = ("add", "sub", "rsub", "mul", "div", "clamp")
_MODULES = ("math", "cmath", "np", "numpy")
_OF_PYTHON = ("min", "max", "abs", "float")
_GIVEN = re.compile(r"(?:argument (\d+)|\b([A-Za-z_]\w*))((?:\[[^\]]*\]|\.\w+)*) = ")
_MOST = 4  # of one container; of more it is named itself


def of_an_argument(place: Place) -> str:
    """``beta**0.5 * noise`` with ``beta = betas[t].item()``: `t` decides it, and nothing else has to be given."""
    if OTHER_NUMBERS not in place.failure.message:
        return ""
    names = _deciding(place, _named(place))
    if not names:
        return ""
    if told := _ended_within(place, names) or _filled(place, names) or given_in_rounds(place):
        return told
    kind = "numbers among the arguments, decide" if len(names) > 1 else "a number among the arguments, decides"
    keys = ", ".join(_as_key(place, name) for name in names)
    return (
        f"`{'`, `'.join(names)}`, {kind} this: the line stays as it is; keep a graph for each value that comes, "
        f"`graphs[{keys}]`, captured when it first comes; where it is always the same, do nothing"
    )


def _ended_within(place: Place, names: Sequence[str]) -> str:
    """``for _ in range(most):`` which ``if err < tol: break`` ends: how many rounds is no number of an argument's."""
    loop = place.statement
    if place.failure.code != "branch-frozen" or not isinstance(loop, ast.For) or names_in(loop.iter) & {*names}:
        return ""
    asks = [n for part in loop.body for n in within(part) if isinstance(n, ast.If)]
    ends = [n for n in asks if any(isinstance(each, ast.Break | ast.Return) for each in n.body)]
    if len(ends) != 1:
        return ""
    return (
        f"this line stays: line {ends[0].lineno}, `if {place.text(ends[0].test)}`, ends its rounds, and is mended there"
    )


def _filled(place: Place, names: Sequence[str]) -> str:
    """``x * opts["scale"]``: numbers within an argument that are only computed with, in tensors.

    Also under names of their own: ``a, b = pair``.
    """
    if place.failure.code != "scalar-frozen" or any(name == _root(name) for name in names):
        return ""
    known = {name: name for name in names} | _unpacked(place, names)
    reads = [n for n in heads(place.statement) if isinstance(n, ast.Subscript | ast.Attribute | ast.Name)]
    reads = [n for n in reads if ast.unparse(n) in known]
    above = [place.source.parents.get(n) for n in reads]
    if not above or any(not isinstance(n, ast.BinOp) or isinstance(n.op, ast.Pow | ast.Mod) for n in above):
        return ""
    read = list(dict.fromkeys(ast.unparse(n) for n in reads))
    held: dict[str, str] = {}
    for each in read:
        words = re.findall(r"\w+", each)
        held[each] = f"{words[-1] if words[-1].isidentifier() else '_'.join(words)}_in"
    if len(set(held.values())) < len(held):
        held = {each: f"{'_'.join(re.findall(r'[A-Za-z0-9]+', each))}_in" for each in read}
    told = "`, `".join(dict.fromkeys(known[each] for each in read))
    once = "`, `".join(f"{new} = {zeros_for(place)}" for new in held.values())
    filled = "`, `".join(f"{new}.fill_({known[each]})" for each, new in held.items())
    alone = len(read) == 1 and known[read[0]] == read[0]
    here = f"`{held[read[0]]}` for it" if alone else ", ".join(f"`{new}` for `{each}`" for each, new in held.items())
    what = "is another number" if len(read) == 1 else "are other numbers"
    return (
        f"`{told}` {what} in another call: once `{once}`, before each launch `{filled}`, and here {here}; where it is "
        "always the same, do nothing"
    )


def _unpacked(place: Place, names: Sequence[str]) -> dict[str, str]:
    """``a`` of ``a, b = pair``, as an entry of an argument, which has its own name in a helper."""
    function, roots = place.source.function_of(place.statement), {_root(name) for name in names}
    if function is None or len(roots) != 1:
        return {}
    (root,) = roots
    bound = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign)]
    found = list[tuple[ast.Tuple, str]]()
    for node in bound:
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Tuple) and isinstance(node.value, ast.Name):
            found.append((target, node.value.id))
    named = root if function.name == place.entry else _given_to(place, function, root)
    own = {
        each.id: f"{root}[{k}]"
        for target, name in found
        if name == named
        for k, each in enumerate(target.elts)
        if isinstance(each, ast.Name)
    }
    again = [name for part in function.body for n in within(part) for name in stored([n]) if isinstance(n, ast.stmt)]
    return {name: entry for name, entry in own.items() if entry in names and again.count(name) == 1}


def _given_to(place: Place, helper: Function, name: str) -> str:
    """The argument of a helper that the step gives one of its own, in each of its calls, or ""."""
    entry = next((n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == place.entry), None)
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == helper.name]
    if entry is None or len(calls) != 1 or calls[0] not in set(ast.walk(entry)):
        return ""
    own = arguments_of(helper)[is_method(place.source, helper) :]
    given = dict(zip(own, map(path_of, calls[0].args), strict=False))
    given |= {each.arg: path_of(each.value) for each in calls[0].keywords if each.arg}
    return next((each for each, path in given.items() if path == name), "")


def held_in_a_tensor(place: Place) -> str:
    """``q.clamp(self.low, self.high)`` and ``a * soft``, where the host gives these numbers others as it likes."""
    changed, function = _CHANGED.search(place.failure.message), place.source.function_of(place.statement)
    if place.failure.code != "scalar-frozen" or changed is None or function is None:
        return ""
    operation, *values = changed.groups()
    if operation.strip("_") not in _ARITHMETIC or not any(set(".e") & set(each) for each in values):
        return ""
    names = list(dict.fromkeys(path for node in heads(place.statement) if (path := _number(place, node, operation))))
    if not names:
        return ""
    names = [name for name in names if "." not in name or _is_given_later(place, name)] or names
    held = {name: f"{name.rpartition('.')[2]}_in" for name in names}
    once = "`, `".join(f"{new} = {zeros_for(place)}" for new in held.values())
    filled = "`, `".join(f"{new}.fill_({name})" for name, new in held.items())
    made = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign) and stored([n]) & set(names)]
    made = [n for n in made if n.lineno < place.statement.lineno]
    comes = " and what it comes of" * (len(made) > 1)  # given anew, it is another number than at first
    first = "".join(f", with line {n.lineno} (`{place.text(n)}`){comes} done before that" for n in made[-1:])
    here = "`, `".join(f"{new}` for `{name}" for name, new in held.items())
    rounds = [each for each in place.loops() if _sets(each, names)]  # in others it is the same in all rounds
    alone = f"make one round of the loop of line {rounds[-1].lineno} what is captured: " if rounds else ""
    several = f"; where a launch calls `{place.helper}` several times, one for each of them" if place.helper else ""
    return (
        f"{alone}the host gives `{'`, `'.join(names)}` other values: once `{once}`, before each launch `{filled}`"
        f"{first}, and here `{here}`{several}"
    )


def _is_given_later(place: Place, path: str) -> bool:
    """Whether something else than the making of an object gives an attribute a number, as far as the file tells."""
    every = (f for f in ast.walk(place.source.tree) if isinstance(f, Function) and f.name != "__init__")
    nodes = (n for f in every for n in ast.walk(f) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return any(n.attr == path.rpartition(".")[2] for n in nodes)


def of_a_formula(place: Place) -> str:
    """``x + 8 * np.cos(self.k)``: all that the host computes there of its own numbers, in one tensor."""
    if place.failure.code != "scalar-frozen" or place.loops():
        return ""
    found = list[ast.expr]()
    inner = set[ast.AST]()
    for node in heads(place.statement):
        if node in inner or not isinstance(node, ast.Call) or not _is_of_the_host(place, node):
            continue
        inner |= {*ast.walk(node)}
        whole: ast.expr = node
        while isinstance(above := place.source.parents.get(whole), ast.expr) and _is_of_the_host(place, above):
            whole = above
        found.append(whole)
    texts = {place.text(each) for each in found}
    if len(texts) != 1:
        return ""
    (text,), read = texts, {path_of(n) for n in ast.walk(found[0]) if isinstance(n, ast.Attribute)}
    entry = next((n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == place.entry), None)
    makes = [n for n in ast.walk(entry) if isinstance(n, ast.Assign | ast.AugAssign)] if entry is not None else []
    reads = entry is place.source.function_of(place.statement)
    until = place.statement.lineno if reads else 0
    for n in ast.walk(entry) if entry is not None and not reads else ():
        if isinstance(n, ast.Call) and called(n) == place.helper.partition("(")[0].rpartition(".")[2]:
            until = max(until, n.lineno)
    sets = [n for n in makes if {*map(path_of, n.targets if isinstance(n, ast.Assign) else [n.target])} & read]
    sets = [n for n in sets if n.lineno < until]
    names = {n.id for n in ast.walk(found[0]) if isinstance(n, ast.Name)}
    sets = [*(n for name, n in assignments(place) if name in names and n not in sets), *sets]
    if len(sets) > 1:
        return ""
    first = "".join(f", with line {n.lineno} (`{place.text(n)}`) done before that" for n in sets)
    return (
        f"the host computes `{text}`: once `number_in = {zeros_for(place)}`, before each launch "
        f"`number_in.fill_({text})`{first}, and here `number_in` for `{text}`"
    )


def of_a_moving_formula(place: Place) -> str:
    """The same where a number that it reads is given another value in the file, but where an object is made."""
    told = of_a_formula(place)
    calls = [n for n in heads(place.statement) if isinstance(n, ast.Call) and _is_of_the_host(place, n)] if told else []
    made = dict(assignments(place))
    nodes = [part for n in calls for part in ast.walk(n)]
    nodes += [part for n in nodes if isinstance(n, ast.Name) and n.id in made for part in ast.walk(made[n.id].value)]
    every = (f for f in ast.walk(place.source.tree) if isinstance(f, Function) and f.name != "__init__")
    stores = {
        n.attr for f in every for n in ast.walk(f) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    }
    read = named_by(place.source, [n for n in nodes if isinstance(n, ast.Attribute)])
    return told if stores & read else ""


def _is_of_the_host(place: Place, node: ast.expr) -> bool:
    """Whether an expression has only numbers of an object's and functions of ``math`` and numpy, and one of these."""
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float, complex)
    if isinstance(node, ast.UnaryOp):
        return _is_of_the_host(place, node.operand)
    if isinstance(node, ast.BinOp):
        return _is_of_the_host(place, node.left) and _is_of_the_host(place, node.right)
    if isinstance(node, ast.Call):
        module, _, name = path_of(node.func).partition(".")
        plain = module in _MODULES and bool(name) and "." not in name and not node.keywords
        plain = plain or (isinstance(node.func, ast.Name) and node.func.id in _OF_PYTHON and not node.keywords)
        return plain and all(_is_of_the_host(place, each) for each in node.args)
    if isinstance(node, ast.Name):
        made = dict(assignments(place)).get(node.id)
        above = made is not None and made.lineno < node.lineno  # `n = n * 2` comes of another `n`
        return made is not None and above and len(made.targets) == 1 and _is_of_the_host(place, made.value)
    path = path_of(node) if isinstance(node, ast.Attribute) else ""
    if path.partition(".")[0] in _MODULES:
        return path.endswith((".pi", ".e"))
    return path.startswith("self.") and (type(place.value(path)) in (int, float) or is_a_property(place, path))


def _sets(loop: ast.AST, names: Sequence[str]) -> bool:
    """Whether a loop gives one of them other values."""
    paths = (n for n in ast.walk(loop) if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Store))
    return not {*names, *(name.partition(".")[0] for name in names)}.isdisjoint(map(path_of, paths))


def _number(place: Place, node: ast.AST, operation: str) -> str:
    """The path of a number of the host's that a line computes with, or ""."""
    above = place.source.parents.get(node)
    path = path_of(node) if isinstance(node, ast.Name | ast.Attribute) else ""
    own = place.is_local(path) and path in place.plain
    if path.partition(".")[0] in _MODULES or _is_asked_by_the_host(place, node):
        return ""
    if not path or not (own or ("." in path and type(place.value(path)) in (int, float))):
        return ""
    if isinstance(above, ast.Call):
        numbers = all(isinstance(each, ast.Name | ast.Attribute) for each in above.args)
        return path if called(above) == operation == "clamp" and numbers and not above.keywords else ""
    if not isinstance(above, ast.BinOp) or isinstance(above.op, ast.Pow | ast.Mod):
        return ""
    return path if operation != "clamp" else ""


def _is_asked_by_the_host(place: Place, node: ast.AST) -> bool:
    """Whether a line computes with a number in ``math.exp(-rate * tau)``, which would ask a tensor."""
    above: ast.AST | None = place.source.parents.get(node)
    while isinstance(above, ast.expr):
        if isinstance(above, ast.Call) and path_of(above.func).partition(".")[0] in (*_MODULES, "int", "float"):
            return True
        above = place.source.parents.get(above)
    return False


def _named(place: Place) -> list[str]:
    """The names, in the function that is captured, of the numbers of which others were tried."""
    entry = next(
        (n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == place.entry and place.entry),
        None,
    )
    given = place.failure.message.rpartition(OTHER_NUMBERS)[2]
    positional = arguments_of(entry)[is_method(place.source, entry) :] if entry is not None else []
    names = []
    for at, keyword, path in _GIVEN.findall(given):
        if keyword:
            names.append(f"{keyword}{path}")
        elif int(at) <= len(positional):
            names.append(f"{positional[int(at) - 1]}{path}")
    roots = [_root(name) for name in names]
    many = {root for root in roots if roots.count(root) > _MOST}
    return list(dict.fromkeys(root if root in many else name for root, name in zip(roots, names, strict=True)))


def _as_key(place: Place, name: str) -> str:
    """What a table of graphs goes by: a list of numbers is no key of one, and what it holds is."""
    given = place.failure.message.rpartition(OTHER_NUMBERS)[2]
    whole = name == _root(name)
    entry = next((n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == place.entry), None)
    own = arguments_of(entry)[is_method(place.source, entry) :] if whole and entry is not None else []
    at = f"argument {own.index(name) + 1}" if name in own else name
    # The keys of a dictionary alone would tell too little.
    return f"str({name})" if whole and (f"{at} = others" in given or f"{at}[" in given) else name


def _root(name: str) -> str:
    return re.split(r"[.\[]", name)[0]


def _deciding(place: Place, names: list[str]) -> list[str]:
    """Those of which something that the line reads is made, where its function tells; else all."""
    function = place.source.function_of(place.statement)
    if function is None or function.name != place.entry or len(names) < 2:
        return names
    read = names_in(place.statement)
    makes = (ast.Assign, ast.AugAssign, ast.AnnAssign)
    made = [n for part in function.body for n in within(part) if isinstance(n, makes) and n.value is not None]
    for _ in made:  # back to what the line's numbers are made of
        read |= {name for n in made if stored([n]) & read and n.value is not None for name in names_in(n.value)}
    text = ast.unparse(function)
    named = [name for name in names if name == _root(name) or name in text] or names  # as entries of a list are not
    return [name for name in named if _root(name) in read] or names
