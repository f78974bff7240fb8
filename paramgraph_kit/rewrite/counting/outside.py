"""Numbers that are tensors now, in code that no step runs: there they are read as numbers, as ever.

``lengths.append(cache.pos)`` and ``start = cache.pos`` of a function around the step would keep the tensor itself,
which the next step moves; with ``.item()`` they keep what they kept. Where a number's value is looked up, as a key of a
dictionary or in a set, nothing stands for it: a tensor is found in none.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from paramgraph_kit.rewrite.counting.advance import Kept, is_called_so, is_writing, of_other_classes
from paramgraph_kit.rewrite.counting.counted import Counter, Listed
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, locals_of
from paramgraph_kit.rewrite.source.written_after import written_after

# What looks a value up, or keeps it, by what it is equal to.
_LOOKS_UP = frozenset("get setdefault pop discard index count __contains__ __getitem__".split())  # noqa: SIM905
# What reads or writes a dictionary as a whole.
_WHOLE = frozenset("update clear pop popitem setdefault copy items values __setitem__".split())  # noqa: SIM905
_CACHED = ("lru_cache", "cache", "memoize")


def as_numbers(
    kept: Kept, ran: Sequence[ast.stmt], others: Mapping[str, Source], given: Collection[str] = ()
) -> Kept | None:
    """The same with what code around the step reads; None where some line could get another number.

    Args:
        kept: the numbers that are kept in tensors.
        ran: what a step runs.
        others: all files of the program's.
        given: arguments of the step that are tensors now.
    """
    source, found = kept.source, kept.counters
    functions = list(dict.fromkeys(f for part in ran if (f := source.function_of(part)) is not None))
    if any(_is_looked_up(source, each, found, given) for each in functions):
        return None
    if any(_is_of_several(source, each) or _is_taken_whole(source, each) for each in found):
        return None
    fields = [each for each in found if each.holder.kind == "attributes"]
    elsewhere = (n for other in others.values() if other is not source for n in ast.walk(other.tree))
    if any(isinstance(n, ast.stmt) and is_writing(n, fields) for n in elsewhere):
        return None
    inside = {part for top in ran for part in ast.walk(top)}
    inside |= {part for each in found for part in of_other_classes(source, each)}
    edits = [_as_number(source, node, found) for node in _reads(source, inside, found)]
    names = ", ".join(dict.fromkeys(f"`{each.name}`" for each in found if each.made))
    loaded = f"{names} of a checkpoint from before is a number: make it a tensor once it is loaded" if names else ""
    return replace(kept, edits=[*kept.edits, *edits], told="; ".join(filter(None, [kept.told, loaded])))


def _reads(source: Source, inside: set[ast.AST], found: Sequence[Counter]) -> Iterator[ast.expr]:
    for node in ast.walk(source.tree):
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) or node in inside:
            continue
        above = source.parents.get(node)
        called = isinstance(above, ast.Call) and above.func is node
        if (
            isinstance(node.ctx, ast.Load)
            and not called
            and not _is_shown(source, node)
            and _is_one(source, node, found)
        ):
            yield node


def _is_shown(source: Source, node: ast.AST) -> bool:
    """Whether it is in an f-string, which shows the same, and does not say where its parts are."""
    above = source.parents.get(node)
    while isinstance(above, (ast.expr, ast.comprehension, ast.keyword)):
        if isinstance(above, ast.JoinedStr):
            return True
        above = source.parents.get(above)
    return False


def _is_one(source: Source, node: ast.expr, found: Sequence[Counter]) -> bool:
    function = source.function_of(node)
    for each in found:
        own = each.holder.kind in ("global", "cell") and function is not None and each.name in locals_of(function)
        if each.is_at(node) and not own:
            return True
    return False


def _as_number(source: Source, node: ast.expr, found: Sequence[Counter]) -> Edit:
    whole = all(type(each.value) is not float for each in found if each.is_at(node))
    text = ".long().item()" if whole and any(each.real for each in found if each.is_at(node)) else ".item()"
    return written_after(source, node, text, rank=-1)


def _is_looked_up(source: Source, function: Function, found: Sequence[Counter], given: Collection[str]) -> bool:
    """Whether what comes of a number is looked up by its value in a function that a step runs."""
    names = set(given)
    nodes = [part for top in function.body for part in ast.walk(top)]

    def comes(node: ast.AST | None) -> bool:
        for part in ast.walk(node) if node is not None else ():
            if isinstance(part, ast.Name) and part.id in names:
                return True
            if isinstance(part, (ast.Name, ast.Attribute, ast.Subscript)) and _is_one(source, part, found):
                return True
        return False

    for _ in range(3):  # through names of names
        for part in nodes:
            if isinstance(part, ast.Assign) and not isinstance(part.value, ast.Call) and comes(part.value):
                names |= {n.id for target in part.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return any(comes(key) for part in nodes for key in _keys(source, part))


def _keys(source: Source, part: ast.AST) -> Sequence[ast.expr | None]:
    """The expressions that something looks up by their values."""
    if isinstance(part, ast.Compare):
        return [part.left] if any(isinstance(op, (ast.In, ast.NotIn)) for op in part.ops) else []
    if isinstance(part, ast.Subscript):
        return [part.slice] if _is_mapping(source, part.value) else []
    if isinstance(part, ast.Call):
        return part.args if _looks_up(source, part) else []
    if isinstance(part, ast.Match):
        return [part.subject]
    return part.keys if isinstance(part, ast.Dict) else part.elts if isinstance(part, ast.Set) else []


def _looks_up(source: Source, call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if isinstance(call.func, ast.Attribute) and name in _LOOKS_UP:
        return True
    known = (n for n in ast.walk(source.tree) if isinstance(n, Function) and n.name == name)
    texts = [source.text(each) for n in known for each in n.decorator_list]
    return any(word in text for text in texts for word in _CACHED) or name in ("hash", "set", "frozenset")


def _is_mapping(source: Source, node: ast.expr) -> bool:
    """Whether a name is given a dictionary somewhere in the file."""
    last = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    kinds = ("dict", "defaultdict", "OrderedDict", "Counter", "WeakValueDictionary")
    for each in ast.walk(source.tree) if last else ():
        if not isinstance(each, (ast.Assign, ast.AnnAssign)) or each.value is None:
            continue
        targets = each.targets if isinstance(each, ast.Assign) else [each.target]
        if not any(last == (t.attr if isinstance(t, ast.Attribute) else getattr(t, "id", "")) for t in targets):
            continue
        value = each.value
        name = getattr(value.func, "attr", getattr(value.func, "id", "")) if isinstance(value, ast.Call) else ""
        if isinstance(value, (ast.Dict, ast.DictComp)) or name in kinds:
            return True
    return False


def _is_of_several(source: Source, counter: Counter) -> bool:
    """Whether classes that have nothing to do with each other have an attribute of its name."""
    if counter.holder.kind != "attributes":
        return False
    attributes = [n for n in ast.walk(source.tree) if isinstance(n, ast.Attribute) and n.attr == counter.name]
    own, held = [n for n in attributes if getattr(n.value, "id", "") == "self"], counter.holder.name
    others = [n for n in attributes if n not in own]
    if all(is_called_so(source, n.value, held) for n in others) and of_other_classes(source, counter):
        return False  # each object's is named in its own class alone, or by the object
    classes = [n for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef)]
    having = [each for each in classes if _has(source, each, counter.name)]
    related = {each.name: {getattr(b, "id", getattr(b, "attr", "")) for b in each.bases} for each in classes}

    def family(name: str) -> set[str]:
        seen, todo = set[str](), {name}
        while todo:
            seen |= todo
            up = {base for each in todo for base in related.get(each, ())}
            down = {each for each, bases in related.items() if bases & todo}
            todo = ((up & related.keys()) | down) - seen
        return seen

    return bool(having) and any(each.name not in family(having[0].name) for each in having)


def _has(source: Source, node: ast.ClassDef, name: str) -> bool:
    for part in node.body:
        if isinstance(part, Function) and part.name == name:
            return True
        targets = part.targets if isinstance(part, ast.Assign) else [getattr(part, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            return True
    stores = (n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return any(n.attr == name and getattr(n.value, "id", "") == "self" for n in stores)


def _is_taken_whole(source: Source, counter: Counter) -> bool:
    """Whether what holds a number is read or written other than by its name: ``state.update(pos=0)``."""
    name = counter.holder.name if counter.holder.kind == "container" and counter.key is not None else counter.name
    lists = isinstance(counter, Listed)
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        func = node.func
        word = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if word == "setattr" and len(node.args) == 3 and getattr(node.args[1], "value", counter.name) == counter.name:
            return True
        if counter.holder.kind != "container":
            continue
        owner = func.value if isinstance(func, ast.Attribute) else None
        if word in _WHOLE and not lists and owner is not None and _last(owner) in {name, *counter.called}:
            return True
        if word in ("dict", "copy", "deepcopy") and any(_last(each) == name for each in node.args):
            return True
    return False


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
