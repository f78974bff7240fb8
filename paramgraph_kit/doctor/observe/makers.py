"""Functions that make an object of a class, and return it; what a new object keeps of what it is given."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache

from paramgraph_kit.doctor.explain.syntax import every, here, last_name, pairs_of, tree_of
from paramgraph_kit.doctor.observe.loop_state import Function


def makers_of(kinds: Collection[str], functions: Iterable[Function]) -> set[str]:
    """Names of those that return an object of one of these classes and nothing else, also by each other."""
    functions, found = list(functions), set[str]()
    while more := {f.name for f in functions if _returns(f, {*kinds, *found})} - found:
        found |= more
    return found


def makers_beside(makes: Collection[str], functions: Iterable[Function]) -> set[str]:
    """Names of those that return such an object beside others: ``return model, Step(model)``."""
    return {f.name for f in functions if _returns(f, {*makes}, beside=True)}


def _returns(function: Function, makes: set[str], *, beside: bool = False) -> bool:
    assigns, returns = _assigns_and_returns(function)

    def is_made(value: ast.expr | None) -> bool:
        if isinstance(value, ast.Tuple):
            return beside and any(map(is_made, value.elts))
        if isinstance(value, ast.Name):
            given = [n.value for n in assigns for t in n.targets if isinstance(t, ast.Name) and t.id == value.id]
            return bool(given) and all(isinstance(each, ast.Call) and is_made(each) for each in given)
        return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in makes

    return bool(returns) and all(is_made(n.value) for n in returns)


def kept_by(init: Function | ast.ClassDef, call: ast.Call) -> Iterator[tuple[ast.expr, str]]:
    """What a call of a class is given that ``__init__`` keeps as it is, and the name of the attribute that has it.

    Of a class without one its fields keep what it is given, as those of a dataclass.
    """
    if isinstance(init, ast.ClassDef):
        fields = [n.target.id for n in init.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
        yield from ((value, name) for value, name in zip(call.args, fields, strict=False))
        yield from ((k.value, k.arg) for k in call.keywords if k.arg in fields)
        return
    names = [a.arg for a in (*init.args.posonlyargs, *init.args.args)]
    given = dict(zip(names[1:], call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
    pairs = [pair for statement in init.body for node in here(statement) for pair in pairs_of(node)]
    set_anew = {t.id for t, _ in pairs if isinstance(t, ast.Name)}
    for target, value in pairs:
        if not isinstance(target, ast.Attribute) or ast.unparse(target.value) != names[0]:
            continue
        if isinstance(value, ast.Name) and value.id in given.keys() - set_anew:
            yield given[value.id], target.attr


@lru_cache(1024)  # it is asked again for all that the functions of a file return
def _assigns_and_returns(function: Function) -> tuple[list[ast.Assign], list[ast.Return]]:
    nodes = [n for statement in function.body for n in here(statement)]
    return [n for n in nodes if isinstance(n, ast.Assign)], [n for n in nodes if isinstance(n, ast.Return)]


def makes_once(call: ast.Call, function: Function, file: str, is_own: bool) -> bool:
    """Whether what a function returns has one name: it returns at one line, for one call in a file, or what is own."""
    returns = [n for n in ast.walk(function) if isinstance(n, ast.Return)]
    tree = tree_of(file)
    asks_once = tree is None or _asked_in(tree)[function.name] == 1
    return len(returns) == 1 and (is_own or asks_once)


@lru_cache(maxsize=64)
def _asked_in(tree: ast.Module) -> Counter[str]:
    """How many calls of a file name what they call so."""
    return Counter(last_name(n.func) for n in every(tree) if isinstance(n, ast.Call))
