"""Lists, dictionaries and the like that a capture reads: one entry by its key, all of them, or how many there are."""

from __future__ import annotations

import ast
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.short_names import is_key
from paramgraph_kit.doctor.restore.holder import is_array

LENGTH = "len()"  # the part of a list that says how many entries it has
_ROWS = (list, tuple, deque)
_DICTS = (dict, OrderedDict, defaultdict, Counter)
_SETS = (set, frozenset)
_PARAMETERS = (torch.nn.ParameterList, torch.nn.ParameterDict)
MODULES = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict, *_PARAMETERS)
FUNCTIONS = (FunctionType, BuiltinFunctionType)
HELD = (*_ROWS, *_DICTS, *_SETS)
_MOST_ENTRIES = 256
ADDS = ("append", "appendleft", "extend", "extendleft", "insert", "add")
TAKES = ("pop", "popleft", "popitem", "remove", "discard", "clear")
TURNS = ("sort", "reverse", "rotate")
CHANGES = (*ADDS, *TAKES, *TURNS)
LEAVES = ("difference_update", "intersection_update")  # of sets
MERGES = ("update", "setdefault", "__setitem__", "subtract", "move_to_end", "symmetric_difference_update", *LEAVES)
_FILLS = (*ADDS, "update", "clear")
_WHOLE = ("values", "items")
_TELL = ("isinstance", "id", "type", "callable", "hasattr")
_MOST_DEEP = 3  # variables that each stand for the next
_TRUTH = (ast.Not, ast.BoolOp, ast.If, ast.IfExp, ast.While)


def entry_at(owner: Any, node: ast.Subscript, absent: Any) -> Any:
    """The entry of a list or a dictionary under a key that is written out."""
    key = ast.literal_eval(node.slice)
    if type(owner) in _DICTS:
        return owner.get(key, absent)
    held = _row(owner) if type(owner) in _ROWS or is_array(owner) else ()
    return held[key] if isinstance(key, int) and -len(held) <= key < len(held) else absent


def value_at(target: ast.expr, value: Callable[[ast.expr], Any]) -> Any:
    """What a target is; ``value``: that of a path. An entry's key may be numbers and words that have names: ``out[n]``.

    >>> held = {"out": {(2, "a"): 1.5}, "n": 2}
    >>> value_at(ast.parse("out[n, 'a']", mode="eval").body, lambda each: held.get(ast.unparse(each)))
    1.5
    """
    if not isinstance(target, ast.Subscript) or is_key(target.slice):
        return value(target)
    parts = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    key = tuple(each.value if isinstance(each, ast.Constant) else value(each) for each in parts)
    held = value(target.value) if all(type(each) in (*NUMBERS, str) for each in key) else None
    entries: Any = dict(enumerate(held)) if type(held) is list else held if type(held) in _DICTS else {}
    return entries.get(key if isinstance(target.slice, ast.Tuple) else key[0])


def module_at(owner: Any, node: ast.Subscript, absent: Any) -> Any:
    """The module, or parameter, of a row of them under a key that is written out: ``net[0]``, ``heads["a"]``."""
    held = vars(owner)["_parameters" if is_a(owner, _PARAMETERS) else "_modules"]
    key = ast.literal_eval(node.slice)
    if type(key) is int and -len(held) <= key < len(held):
        return [*held.values()][key]
    return held.get(key, absent) if type(key) is str else absent


def is_held(value: Any) -> bool:
    """Whether it is a list, a dictionary, an array or the like."""
    return type(value) in HELD or isinstance(value, (list, tuple)) or is_array(value)


def entries_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a list or an array, and the numbers in the lists that it has: ``tables[0][1]``."""
    for number, each in enumerate(_row(value)):
        if type(each) in (list, tuple):
            inner = ((i, part) for i, part in enumerate(_row(each)) if type(part) in NUMBERS)
            yield from ((f"[{number}][{i}]", part) for i, part in inner)
        elif not isinstance(each, (list, tuple)):
            yield f"[{number}]", each


def values_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a dictionary, where a line goes through all of them."""
    for key in [*value][:_MOST_ENTRIES]:
        if type(key) in (str, int, float, bool, tuple):
            yield f"[{key!r}]", value[key]


def asked_by_name(node: ast.AST) -> ast.expr | None:
    """What a call reads: ``cfg["scale"]`` of ``cfg.get("scale")``, ``self.scale`` of ``getattr(self, "scale")``."""
    made: ast.expr | None = None
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[held, ast.Constant(value=str(name)), *instead]):
            made = ast.Attribute(held, name, ast.Load())
        case ast.Call(func=ast.Attribute(value=held, attr="get"), args=[ast.expr() as key, *instead]):
            made = ast.Subscript(held, key, ast.Load())
        case ast.Compare(left=ast.Constant() as key, ops=[ast.In() | ast.NotIn()], comparators=[held]):
            made, instead = ast.Subscript(held, key, ast.Load()), []
        case ast.Call(func=ast.Name(id="hasattr"), args=[held, ast.Constant(value=str(name))]):
            made, instead = ast.Attribute(held, name, ast.Load()), []
    if made is None:
        return None
    default = instead[0] if instead else None
    asks = not isinstance(node, ast.Call) or last_name(node.func) == "hasattr"
    absent = default.value if isinstance(default, ast.Constant) else None
    written = f"({ast.unparse(node)})" if isinstance(node, ast.Compare) else ast.unparse(node)
    vars(made).update(absent=False if asks else absent, only_asks=asks, written=written)
    return ast.copy_location(made, node)


def instead_of(node: ast.AST, found: Any, nothing: Any) -> Any:
    """What a path means whose last part is not there: as ``cfg.get("scale", 1.0)`` says, if it was read so."""
    if found is nothing:
        return getattr(node, "absent", nothing)
    return getattr(node, "only_asks", False) or found


def is_dict(value: Any) -> bool:
    """Whether it is a dictionary that runs nothing of the user's."""
    return type(value) in _DICTS


def above_of(code: CodeType, node: ast.AST) -> ast.AST | None:
    """What a part of a function's source stands in."""
    tree = tree_of(code.co_filename)
    return _parents(tree).get(id(node)) if tree is not None else None


def picked_by(code: CodeType, node: ast.expr) -> ast.expr | None:
    """The key by which a line reads one entry: ``self.name`` of ``self.rates[self.name]``."""
    above = above_of(code, node)
    if isinstance(above, ast.Attribute) and above.attr == "get":
        call = above_of(code, above)
        return call.args[0] if isinstance(call, ast.Call) and call.func is above and call.args else None
    return above.slice if isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Load) else None


def keys_of(code: CodeType, key: ast.expr, value: Any, nothing: Any) -> list[Any]:
    """What a variable by which an entry is read may be, as its function says; nothing where that is not sure.

    ``value`` says what a path means: ``key = "a"``, ``for key in ("a", "b")``, ``key = self.name``.
    """
    if isinstance(key, ast.Constant):
        return [key.value]
    if (known := value(key)) is not nothing:
        return [known]
    if not isinstance(key, ast.Name):
        return []
    found: list[Any] = []
    stored = 0
    for node in (each for n in nodes_of(code) for each in (n, *getattr(n, "generators", ()))):
        stored += isinstance(node, ast.Name) and node.id == key.id and not isinstance(node.ctx, ast.Load)
        given: list[Any] = []
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name == key.id:
                ways = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
                given = [each.value if isinstance(each, ast.Constant) else value(each) for each in ways]
            case ast.For(target=ast.Name(id=name)) | ast.comprehension(target=ast.Name(id=name)) if name == key.id:
                given = _rounds(node.iter, value, nothing)
            case _:
                continue
        if not given or any(each is nothing for each in given):
            return []
        found, stored = found + given, stored - 1
    return found if not stored else []


def _rounds(node: ast.expr, value: Any, nothing: Any) -> list[Any]:
    """What a loop goes through."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return [each.value if isinstance(each, ast.Constant) else value(each) for each in node.elts]
    if isinstance(node, ast.Call) and last_name(node.func) == "range" and len(node.args) == 1:
        end = node.args[0].value if isinstance(node.args[0], ast.Constant) else value(node.args[0])
        return [*range(min(end, _MOST_ENTRIES))] if type(end) is int else []
    held = value(node)
    return [*held][:_MOST_ENTRIES] if held is not nothing and (type(held) in _ROWS or is_dict(held)) else []


def how_read(code: CodeType, node: ast.expr, value: Any) -> str:
    """ "whole" where a line reads all entries, "truth" where it asks whether there are any, "filled", or ""."""
    tree = tree_of(code.co_filename)
    if tree is None or type(value) not in HELD:
        return ""
    return _how(code, node, _parents(tree), value, _MOST_DEEP)


def _how(code: CodeType, node: ast.expr, parents: dict[int, ast.AST], value: Any, deep: int) -> str:
    above: Any = parents.get(id(node))
    if isinstance(above, ast.Attribute):
        is_called = isinstance(call := parents.get(id(above)), ast.Call) and call.func is above
        if is_called and above.attr in _FILLS:
            return "filled"
        return "whole" if is_called and is_dict(value) and above.attr in _WHOLE else ""
    if isinstance(above, ast.Assign) and above.value is node and isinstance(above.targets[0], ast.Name) and deep:
        name = above.targets[0].id
        reads = (n for n in nodes_of(code) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load))
        ways = {_how(code, n, parents, value, deep - 1) for n in reads}
        return next((way for way in ("whole", "truth", "filled") if way in ways), "")
    if isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.Not):
        return "truth"
    if isinstance(above, _TRUTH):
        return "truth" if isinstance(above, ast.BoolOp) or getattr(above, "test", None) is node else ""
    if isinstance(above, ast.keyword) and above.arg is None:
        return "whole"
    if isinstance(above, ast.Call) and (name := last_name(above.func)) not in _TELL:
        return "whole" if not is_dict(value) or name == "len" else ""
    if is_dict(value):
        return ""
    if isinstance(above, ast.Subscript):
        return "whole" if isinstance(above.slice, ast.Slice) and not _is_of_the_first(above.slice, value) else ""
    if isinstance(above, (ast.For, ast.comprehension)):
        return "whole" if above.iter is node else ""
    if isinstance(above, ast.Compare):
        return "whole" if not any(isinstance(op, (ast.Is, ast.IsNot)) for op in above.ops) else ""
    return "whole" if isinstance(above, (ast.Starred, ast.BinOp, ast.keyword)) else ""


def _is_of_the_first(cut: ast.Slice, value: Any) -> bool:
    """Whether what is added behind changes nothing: ``self.bias[:2]``, where there are two."""
    if not isinstance(cut.upper, ast.Constant) or not isinstance(cut.upper.value, int):
        return False
    return (cut.lower is None or isinstance(cut.lower, ast.Constant)) and cut.upper.value <= len(value)


def _row(value: Any) -> Any:
    """The entries of a list, as far as they are looked at, or of a small array."""
    if type(value) in (list, tuple):
        return value[:_MOST_ENTRIES]
    if type(value) is deque:
        return [*value][:_MOST_ENTRIES]
    return value.tolist() if getattr(value, "ndim", 0) and value.size <= _MOST_ENTRIES else []


@lru_cache(16)
def _parents(tree: ast.AST) -> dict[int, ast.AST]:
    return {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def keeps(owner: Any, node: ast.AST) -> bool:
    """Whether an object has what is read as an attribute, which may be another one: no module, and no class."""
    return not is_a(owner, (ModuleType, type)) and getattr(node, "attr", "") in attributes_of(owner)


def called_as(function: Any) -> str:
    """What a function is called in a message, and who is the same."""
    name = f"{function.__name__}()"
    return f"{name} of line {code.co_firstlineno}" if (code := getattr(function, "__code__", None)) else name


def is_number(value: Any) -> bool:
    """Whether a setting of an optimizer is one, or some side by side."""
    parts = value if type(value) is tuple else (value,)  # betas are two
    return all(type(part) in (int, float) for part in parts)
