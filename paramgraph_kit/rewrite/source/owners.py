"""Whether a module of the file's can be reached by other names than the one that a step calls it by."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.source.edits import Function, Source, locals_of
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import called

# What gives the same module, or only looks at it.
_ITSELF = frozenset("to cuda cpu train eval half float double bfloat16 requires_grad_ share_memory".split())  # noqa: SIM905
_LOOKS = frozenset("print id type repr str isinstance hasattr".split())  # noqa: SIM905
_PARTS = frozenset("children modules named_children named_modules".split())  # noqa: SIM905
_ROUNDS = (ast.Lambda, ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
Alias = tuple[ast.AST | None, str]  # the function whose name it is, or the file; an attribute begins with a dot


def is_called_only_by(source: Source, owner: ast.ClassDef, call: ast.expr) -> bool:
    """Whether there is one object of a class, as far as the file tells, and all that calls it is ``call``.

    ``def evaluate(model): return model(x)``, ``nn.Sequential(net, head)`` and other objects run the same ``forward``.
    """
    if any(map(_reaches_any, ast.walk(source.tree))):
        return False
    inside = set(ast.walk(owner))
    makes = [n for n in ast.walk(source.tree) if _is_named(n, owner.name) and n not in inside]
    made = source.parents.get(makes[0]) if len(makes) == 1 else None
    if not isinstance(made, ast.Call) or made.func is not makes[0] or any(_is_repeated(source, made)):
        return False
    if not (todo := _taken(source, made)):
        return False
    for alias in todo:
        for node in _mentions(source, alias):
            more = _taken(source, node) if node is not call else []
            if more is None:
                return False
            todo += [each for each in more if each not in todo]
    return True


def _reaches_any(node: ast.AST) -> bool:
    """``for child in model.children(): x = child(x)``, and copies of whatever has modules in it."""
    if isinstance(node, ast.Call) and called(node) == "deepcopy":
        return True
    if not isinstance(node, (ast.For, ast.comprehension)):
        return False
    through = any(isinstance(n, ast.Call) and called(n) in _PARTS for n in ast.walk(node.iter))
    return through or (isinstance(node.iter, ast.Attribute) and isinstance(node, ast.For) and _calls_target(node))


def _calls_target(loop: ast.For) -> bool:
    """Whether a loop calls what it goes through: ``for layer in self.layers: x = layer(x)``."""
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    calls = (n.func for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Call))
    return any(isinstance(each, ast.Name) and each.id in names for each in calls)


def _is_named(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)


def _is_repeated(source: Source, node: ast.AST) -> Iterator[bool]:
    """Whether what is above a line runs it more than once: a loop, or a function with several callers."""
    while (above := source.parents.get(node)) is not None:
        yield isinstance(above, _ROUNDS) or (isinstance(above, Function) and _has_callers(source, above))
        node = above


def _has_callers(source: Source, function: Function) -> bool:
    return function.name != "__init__" and sum(_is_named(n, function.name) for n in ast.walk(source.tree)) > 1


def _mentions(source: Source, alias: Alias) -> list[ast.expr]:
    scope, name = alias
    if name.startswith("."):
        every: list[ast.expr] = [n for n in ast.walk(source.tree) if isinstance(n, ast.Attribute)]
        return [n for n in every if _is_named(n, name[1:]) and isinstance(getattr(n, "ctx", None), ast.Load)]
    named = [n for n in ast.walk(scope or source.tree) if isinstance(n, ast.Name) and n.id == name]
    loads = [n for n in named if isinstance(n.ctx, ast.Load)]
    return [n for n in loads if scope is not None or _scope(source, n, name) is None]


def _scope(source: Source, node: ast.AST, name: str) -> ast.AST | None:
    """The function whose name this is; None for one of the file."""
    function = source.function_of(node)
    while function is not None and name not in locals_of(function) and name not in arguments_of(function):
        function = source.function_of(source.parents[function])
    return function


def _taken(source: Source, node: ast.expr) -> list[Alias] | None:
    """The names that a module gets where it is mentioned; None where that is not known, or it is called."""
    above = source.parents.get(node)
    if isinstance(above, ast.Attribute):
        call = source.parents.get(above)
        same = above.attr in _ITSELF and isinstance(call, ast.Call) and call.func is above
        return _taken(source, call) if same and isinstance(call, ast.Call) else []
    if isinstance(above, ast.Assign):
        return _given(source, above.targets)
    if isinstance(above, (ast.Expr, ast.Compare)):
        return []
    call = source.parents.get(above) if isinstance(above, ast.keyword) else above
    if not isinstance(call, ast.Call) or call.func is node:
        return None
    if isinstance(call.func, ast.Name) and call.func.id in _LOOKS:
        return []
    return _handed(source, call, above if isinstance(above, ast.keyword) else node)


def _given(source: Source, targets: list[ast.expr]) -> list[Alias] | None:
    found = list[Alias]()
    for target in targets:
        if isinstance(target, ast.Name):
            found.append((_scope(source, target, target.id), target.id))
        elif isinstance(target, ast.Attribute):
            found.append((None, f".{target.attr}"))
        else:
            return None
    return found


def _handed(source: Source, call: ast.Call, given: ast.expr | ast.keyword) -> list[Alias] | None:
    """What a function of the file's, or a class, calls what it is given."""
    helpers = [n for n in ast.walk(source.tree) if isinstance(n, Function) and n.name == called(call)]
    kinds = [n for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef) and n.name == called(call)]
    helpers += [n for kind in kinds for n in kind.body if isinstance(n, Function) and n.name == "__init__"]
    if len(helpers) != 1 or not isinstance(call.func, ast.Name) or any(isinstance(n, ast.Starred) for n in call.args):
        return None
    names = arguments_of(helpers[0])
    at = given.arg if isinstance(given, ast.keyword) else ""
    if isinstance(given, ast.expr):
        number = call.args.index(given) + bool(kinds)
        at = names[number] if number < len(names) else ""
    return [(helpers[0], at)] if at in names else None
