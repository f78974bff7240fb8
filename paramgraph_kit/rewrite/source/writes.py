"""What a statement reads and writes, by the names and paths in its text."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping

from paramgraph_kit.rewrite.source.edits import Function, Source, is_method, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, target_of

# Methods that read, and change nothing of what they belong to.
READS = frozenset(
    """item detach cpu numpy tolist sum mean max min eq float size numel norm any all abs argmax argmin long int std var
    state_dict get_last_lr format isfinite isnan topk flatten view memory_allocated items keys values get reshape
    permute transpose contiguous clone unsqueeze squeeze astype expand chunk gather index_select type_as square pow sqrt
    rsqrt exp sin cos tanh sigmoid softmax log_softmax logsumexp matmul mm bmm cumsum prod median amax amin""".split()  # noqa: SIM905
)
_GIVES = frozenset(("to", "cuda", "type", "double", "half", "bool"))  # another tensor; of a module it is bare
CHANGES = frozenset("append extend insert pop popleft appendleft remove clear update add setdefault discard".split())  # noqa: SIM905
# Functions that change what they are given first, and nothing else.
_CHANGES_THE_FIRST = ("shuffle", "heappush", "heappop", "heapify", "insort")
_COPIES = frozenset("clone zeros_like ones_like full_like empty_like argsort argmax argmin".split())  # noqa: SIM905
_COMPUTED = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.JoinedStr, ast.Slice)
_INSIDE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BEYOND = (*_INSIDE, ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.Try, ast.NamedExpr, ast.Delete)
_FORM = frozenset("shape device dtype ndim size dim numel requires_grad is_cuda data_ptr".split())  # noqa: SIM905
MODULES = frozenset(("torch", "np", "numpy", "math", "time", "F", "cuda", "random"))


def written(
    node: ast.stmt, quiet: Collection[str] = (), modules: Collection[str] = (), apart: Collection[ast.AST] = ()
) -> Iterator[str]:
    """Every ``a.b`` that a statement assigns, or that it calls a method of which may change it, unless ``quiet``.

    ``modules`` are paths of networks, which change themselves and nothing else of what has them: ``self.net(x)``;
    ``apart`` is what is called elsewhere.
    """
    bare = node.value if isinstance(node, ast.Expr) else None
    for part in (each for each in within(node) if each not in apart):
        targets: list[ast.expr] = []
        if isinstance(part, ast.For) and _fills(part):
            yield from paths(part.iter)
        if isinstance(part, ast.Assign):
            targets = part.targets
        elif isinstance(part, (ast.AugAssign, ast.AnnAssign, ast.For)):
            targets = [part.target]
        for target in targets:
            for each in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                yield path_of(each)
        method = part.func if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) else None
        if isinstance(part, ast.Call) and part.args and called(part) in _CHANGES_THE_FIRST:
            yield path_of(part.args[0])
        if isinstance(part, ast.Call) and method is not None and method.attr not in READS and method.attr not in quiet:
            if method.attr in _GIVES and part is not bare:
                continue
            path = path_of(method) if path_of(method) in modules else path_of(method.value)
            if path and path.split(".")[0] not in MODULES:
                yield path


def changes_nothing(source: Source) -> set[str]:
    """The names of the file's methods that give nothing of their objects another value, as far as their text tells."""
    every = [n for n in ast.walk(source.tree) if isinstance(n, Function) and is_method(source, n)]
    loud = {n.name for n in every if any(_may_change(part) for top in n.body for part in ast.walk(top))}
    return {n.name for n in every} - loud


def _may_change(node: ast.AST) -> bool:
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return path_of(node.func).startswith("self.") or node.func.attr in CHANGES
    return isinstance(node, (ast.Global, ast.Nonlocal))


def _fills(loop: ast.For) -> bool:
    """Whether a loop writes into what it goes through: ``for group in opt.param_groups: group["lr"] = rate``."""
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    every = (part for node in loop.body for part in within(node))
    stores = (n for n in every if isinstance(n, (ast.Subscript, ast.Attribute)) and isinstance(n.ctx, ast.Store))
    return any(path_of(n).partition(".")[0] in names for n in stores)


def paths(node: ast.AST) -> set[str]:
    """Every ``a.b.c`` that is read below a node, without the method that is called at its end."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load):
            found.add(path_of(part))
    longest = {p for p in found if p and not any(q != p and q.startswith(f"{p}.") for q in found)}
    return longest | {p for p in found if "." not in p and p != "self"}


def touches(a: str, b: str) -> bool:
    """Whether one of two paths is the other, or leads to it."""
    return bool(a) and (a == b or a.startswith(f"{b}.") or b.startswith(f"{a}."))


def is_read(path: str, node: ast.AST) -> bool:
    """Whether a node reads what has a path, also by a method of it, ``self.best.clone()``, but not its shape."""
    return any(p == path or (p.startswith(f"{path}.") and p[len(path) + 1 :] not in _FORM) for p in paths(node))


def reads_entry(target: ast.expr, node: ast.AST) -> bool:
    """Whether a node reads what has a target's path, and of ``state["n"]`` not only other entries of ``state``."""
    if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant):
        return is_read(path_of(target), node)
    whole, key = ast.unparse(target.value), target.slice.value
    others = {
        n.value
        for n in ast.walk(node)
        if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant) and n.slice.value != key
    }
    reads = (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)) and n not in others)
    return any(isinstance(n.ctx, ast.Load) and ast.unparse(n) == whole for n in reads)


def written_in_place(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names by which a tensor is written in place."""
    yield from (path.partition(".")[0].partition("[")[0] for path in paths_in_place(nodes))


def paths_in_place(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What is written in place: ``self.keys`` of ``self.keys[i] = k``, ``w`` of ``w.mul_(2)``, ``n`` of ``n += 1``."""
    for node in nodes:
        target: ast.expr | None = None
        if isinstance(node, ast.AugAssign):
            target = node.target
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            target = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            target = node.func.value
        if target is not None and (path := path_of(target)):
            yield path


def writes_through(place: Place) -> bool:
    """Whether ``row = table[i]`` names a part that is written, of a tensor that is read again: no copy is that part."""
    node, function = place.statement, place.source.function_of(place.statement)
    target, value = target_of(node), getattr(node, "value", None)
    if function is None or not isinstance(target, ast.Name) or not isinstance(value, ast.Subscript):
        return False
    every = [n for part in function.body for n in within(part)]
    of = path_of(value.value).partition(".")[0]
    again = any(isinstance(n, ast.Name) and n.id == of and n.lineno > node.lineno for n in every)
    return (again or not place.is_local(of)) and target.id in written_in_place(every)


def filled(function: Function) -> set[str] | None:
    """Parameters whose tensors a function may write into; None where it may write to what nobody has given it.

    What a call returns may be memory of what it is given: a view.
    """
    every = [n for part in function.body for n in ast.walk(part)]
    given = {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    if any(isinstance(n, _BEYOND) or (isinstance(n, ast.keyword) and n.arg in ("out", "inplace")) for n in every):
        return None
    pairs = [pair for n in every for pair in _bindings(n)]
    holds: dict[str, set[str]] = {name: {name} for name in given}
    own = {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for target, _ in pairs:
        holds.setdefault(target, set() if target in own else {target})
    for _ in range(len(pairs)):  # a name may have what a later line gives another one, in a loop
        for target, value in pairs:
            holds[target] |= memory_of(value, holds)
    found = set[str]()
    for node in every:
        into = _filled_by(node)
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            return None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _filled_by(node.value) is None:
            return None
        found |= memory_of(into, holds) if into is not None else set()
    return found if found <= given else None


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that a part of a function gives a value, or something to hold, with that."""
    value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if isinstance(node, (ast.For, ast.comprehension)):
        value = node.iter
    elif isinstance(node, ast.withitem):
        value, targets = node.context_expr, [node.optional_vars]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        value, targets = ast.Tuple(node.args), [node.func.value]  # a list has what is appended
    if value is not None:
        names = (n for each in targets if each is not None for n in ast.walk(each) if isinstance(n, ast.Name))
        yield from ((n.id, value) for n in names)


def _filled_by(node: ast.AST) -> ast.expr | None:
    """What a part of a function writes into."""
    if isinstance(node, ast.AugAssign):
        return node.target.value if isinstance(node.target, ast.Subscript) else node.target
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return node.value
    method = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    if method is not None and (method.attr in CHANGES or (method.attr.endswith("_") and method.attr[-2:] != "__")):
        return method.value
    return None


def memory_of(value: ast.expr, holds: Mapping[str, Collection[str]]) -> set[str]:
    """Whose memory the value of an expression may be, of names as ``holds`` tells; names that it lacks are others'."""
    if isinstance(value, ast.Name):
        return {*holds.get(value.id, {value.id})}
    if isinstance(value, _COMPUTED):
        return set()
    if isinstance(value, (ast.Subscript, ast.Attribute, ast.Starred)):
        return memory_of(value.value, holds)
    if isinstance(value, ast.Call):
        if called(value) in _COPIES:
            return set()
        own = [value.func.value] if isinstance(value.func, ast.Attribute) else []
        own = [each for each in own if path_of(each).partition(".")[0] not in MODULES]
        parts = [*own, *value.args, *(option.value for option in value.keywords)]
    else:
        parts = [n for n in ast.iter_child_nodes(value) if isinstance(n, ast.expr)]
    return {name for part in parts for name in memory_of(part, holds)}


def only_added_to(body: Iterable[ast.AST]) -> set[ast.expr]:
    """``self.losses`` of ``self.losses["d"].append(loss.item())``, of which nothing is read."""
    found = set[ast.expr]()
    for call in (n.value for top in body for n in ast.walk(top) if isinstance(n, ast.Expr)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append":
            inner = call.func.value
            while isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Constant):
                inner = inner.value
            found.add(inner)
    return found
