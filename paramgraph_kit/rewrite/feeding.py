"""Work of the host that a step needs first is moved before the launch; its results come in tensors that a graph reads.

``angle = random.uniform(-1, 1)`` and ``theta = torch.tensor([angle], device=d)`` go to a function that is called
before each launch and writes ``theta_in``, which the step reads. Which expressions these are is seen, not guessed: all
that could be are watched in a few steps, and those stay where they are that always had the same value.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from paramgraph_kit.rewrite import moving
from paramgraph_kit.rewrite.advance import rates
from paramgraph_kit.rewrite.edits import Edit, Function, Source, first_line, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.place import NUMBER, Form, called, fresh

FED = frozenset(
    """tensor-literal copy-to-gpu cpu-index host-random cpu-scalar-frozen scalar-frozen size-frozen copy-to-cpu
    branch-frozen""".split()  # noqa: SIM905
)
WATCH = "_paramgraph_kit_watched"
_COPIES = ("tensor", "as_tensor", "to", "cuda", "new_tensor", "asarray")
_METADATA = ("shape", "dtype", "device", "ndim", "size", "dim", "numel", "element_size")
_MOVABLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.If, ast.Expr)


@dataclass(slots=True)
class Values:
    """What an expression had in each step that was watched."""

    forms: set[Form] = field(default_factory=set)  # of tensors
    kinds: set[type] = field(default_factory=set)
    as_tensor: bool = False  # they were arrays or lists
    seen: list[Any] = field(default_factory=list)

    def note(self, value: Any) -> Any:
        """Note one value; returns it."""
        plain = value.item() if hasattr(value, "__array__") and not getattr(value, "ndim", 1) else value
        if isinstance(value, torch.Tensor):
            plain = value.detach()
        elif hasattr(value, "__array__") or (isinstance(value, list) and value and type(value[0]) is int):
            with suppress(TypeError, ValueError, RuntimeError):
                plain = torch.as_tensor(value)
                self.as_tensor = True
        if isinstance(plain, torch.Tensor):
            self.forms.add(Form.of(plain))
        self.kinds.add(type(plain))
        known = isinstance(plain, (torch.Tensor, *NUMBER))
        self.seen.append(plain.tolist() if isinstance(plain, torch.Tensor) else plain if known else None)
        return value

    @property
    def form(self) -> Form | None:
        """That of the tensors, where they were tensors."""
        return next(iter(self.forms), None)

    @property
    def moves(self) -> bool:
        """Whether it was not always the same."""
        return any(value != self.seen[0] for value in self.seen[1:])

    def is_fed(self, device: str, above: ast.AST | None, *, copied: bool, refused: bool) -> bool:
        """Whether a graph can read it from a tensor: a number that moves, or a tensor that comes from the host.

        ``above`` is what reads it, ``refused`` says that a tensor of the CPU is a problem there.
        """
        if len(self.kinds) != 1 or len(self.forms) > 1:
            return False
        if self.form is not None:
            refused = refused or copied or bool(self.form.shape)  # a tensor of the CPU that is an index
            return copied == (self.form.device == device) and (refused or self.moves)
        if self.kinds == {int} and not isinstance(above, (ast.BinOp, ast.UnaryOp, ast.Subscript, ast.AugAssign)):
            return False  # perhaps a size
        return self.moves and (self.kinds <= {float, int} or isinstance(above, ast.If))

    def zeros(self, device: str, indexes: bool) -> str:
        """A tensor for it, as it would be written."""
        shape, dtype = (tuple(self.form.shape), self.form.dtype) if self.form else ((), torch.get_default_dtype())
        if self.kinds <= {int, bool}:
            shape, dtype = ((1,) if indexes else ()), torch.bool if self.kinds == {bool} else torch.long
        size = ", ".join(map(str, shape)) if shape else "()"
        kind = "" if dtype is torch.get_default_dtype() else f", dtype={dtype}"
        return f"torch.zeros({size}{kind}, device={device})"


@dataclass(slots=True)
class Feed:
    """The function that runs before each launch, the tensors that it writes, and the edits that bring both about."""

    source: Source
    edits: list[Edit]
    name: str
    parameters: list[str]
    hoisted: list[str]
    moved: list[ast.stmt]


def candidates(statements: Iterable[ast.stmt], is_host: Callable[[ast.expr], bool]) -> list[ast.expr]:
    """Expressions that may come from before the launch: copies to the device, and whatever is the host's alone."""
    found: list[ast.expr] = []

    def look(node: ast.AST, whole: bool = False) -> None:  # of arithmetic its names are enough, but as an index
        if isinstance(node, ast.Slice):
            return  # its ends are sizes
        if isinstance(node, ast.expr) and _names_something(node) and not isinstance(node, ast.Tuple):
            below = [n for n in ast.walk(node) if isinstance(n, ast.expr) and n is not node]
            whole = whole or isinstance(node, (ast.Name, ast.Attribute)) or any(isinstance(n, ast.Call) for n in below)
            if is_copy(node, is_host) or (
                is_host(node) and (whole or isinstance(node, ast.Call)) and not any(is_copy(n, is_host) for n in below)
            ):
                found.append(node)
                return
        for name, child in ast.iter_fields(node):
            if name == "func" and isinstance(child, ast.Attribute):
                look(child.value)
            elif name != "func":
                for part in child if isinstance(child, list) else [child]:
                    if isinstance(part, (ast.expr, ast.keyword)):
                        look(part, name == "slice")

    for statement in statements:
        if isinstance(statement, ast.If):
            found += [statement.test] if is_host(statement.test) else []
            continue
        for target in getattr(statement, "targets", []):
            if isinstance(target, ast.Subscript):
                look(target.slice, True)
        if isinstance(value := getattr(statement, "value", None), ast.expr):
            look(value)
    return found


def is_copy(node: ast.expr, is_host: Callable[[ast.expr], bool]) -> bool:
    """Whether an expression makes a tensor of the device from what is the host's."""
    if not isinstance(node, ast.Call) or called(node) not in _COPIES or not isinstance(node.func, ast.Attribute):
        return False
    given = node.func.value if called(node) in ("to", "cuda") else node.args[0] if node.args else None
    return given is not None and is_host(given) and _names_something(given)


def _names_something(node: ast.expr) -> bool:
    return any(isinstance(n, (ast.Name, ast.Call)) for n in ast.walk(node))


def watching(source: Source, found: Iterable[ast.expr]) -> list[Edit]:
    """Edits that have expressions noted by number."""
    return [source.replace(node, f"{WATCH}({k}, {source.text(node)})") for k, node in enumerate(found)]


def slice_before(source: Source, function: Function, statement: ast.stmt, node: ast.expr) -> list[ast.stmt] | None:
    """The statements that a value is made by, in order; None where one of them cannot be taken out."""
    order = list(moving.body_of(function))
    local, arguments = locals_of(function), set(moving.arguments_of(function))
    needed = set(moving.paths(node))
    kept: list[ast.stmt] = []
    for before in reversed(order[: order.index(statement)]):
        written = set(moving.written(before)) | (moving.stored([before]) - _bound(before))
        if not any(moving.touches(a, b) for a in written for b in needed if a):
            continue
        if not isinstance(before, _MOVABLE) or not moving.is_closed(before):
            return None
        kept.insert(0, before)
        needed |= moving.paths(before)
    made = moving.stored(kept) | _bound(node)
    if {name.partition(".")[0] for name in needed} & local - arguments - made:
        return None  # of a with block, or of a function defined inside
    return kept


def _bound(node: ast.AST) -> set[str]:
    """Names that a comprehension below a node goes through."""
    targets = [n.target for n in ast.walk(node) if isinstance(n, ast.comprehension)]
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def feed(
    source: Source,
    function: Function,
    fed: Sequence[tuple[ast.stmt, ast.expr, Values]],
    device: str,
    is_host: Callable[[ast.expr], bool],
    choose: Callable[[ast.stmt, str], list[Edit]],
    others: Sequence[str] = (),
    head: Sequence[ast.stmt] = (),
) -> Feed | None:
    """Move what expressions need, and them, before the launch; None where others need it too.

    ``head`` are statements that go there as they are, and whose variables what goes behind the launch reads.
    """
    order = list(moving.body_of(function))
    moved: list[ast.stmt] = []
    for statement, node, _ in fed:
        kept = slice_before(source, function, statement, node)
        if kept is None:
            return None
        moved += [each for each in kept if each not in moved and each not in head]
    moved.sort(key=order.index)
    together = sorted((*head, *moved), key=order.index)
    inside = {n for _, node, _ in fed for n in ast.walk(node)} | {n for each in together for n in ast.walk(each)}
    written = {path for each in moved for path in moving.written(each)} | moving.stored(moved)
    local, arguments = locals_of(function), moving.arguments_of(function)
    # What such a statement itself gives a name to is that from there on: ``x = torch.from_numpy(x).to(device)``.
    anew = {name: statement.end_lineno or 0 for statement, _, _ in fed for name in _given(statement)}
    for other in ast.walk(function):
        if other in inside or not isinstance(other, (ast.Name, ast.Attribute)):
            continue
        path, later = path_of(other), other.lineno > anew.get(path_of(other), other.lineno)
        if isinstance(other.ctx, ast.Load) and path in written and not later:
            return None
    if any(not is_of_host(each, is_host, set(arguments)) for each in moved):
        return None
    first = min((order.index(statement) for statement, _, _ in fed), default=0)
    changed = {path for each in order[:first] if each not in moved for path in moving.written(each)}
    reads = {path for _, node, _ in fed for path in moving.paths(node)} | {p for m in moved for p in moving.paths(m)}
    own = local - set(arguments)
    if any(moving.touches(a, b) for a in changed if a.partition(".")[0] not in own for b in reads):
        return None
    taken = names_in(source.tree) | local | {line.partition(" = ")[0] for line in others}
    names: dict[str, str] = {}
    asks_gradients = any("requires_grad" in line for line in source.lines)
    hoisted, lines, edits = [], [], [source.without(each) for each in moved]
    for statement, node, values in fed:
        text = source.text(node)
        indexes = isinstance(source.parents.get(node), ast.Subscript)
        if text not in names:
            name = names[text] = fresh(_hint(statement, node), taken)
            taken.add(name)
            hoisted.append(f"{name} = {values.zeros(device, indexes)}")
            whole = f"torch.as_tensor({text})" if values.as_tensor else text
            lines.append(f"{name}.copy_({whole})" if values.form else f"{name}.fill_({text})")
        above = source.parents.get(node)
        read = indexes and isinstance(getattr(above, "ctx", None), ast.Load) and not (values.form and values.form.shape)
        if isinstance(statement, ast.If):  # the device takes one of both ways
            chosen = choose(statement, names[text])
            if not chosen:
                return None
            edits += chosen
        elif read and isinstance(above, ast.Subscript):  # an index of one element keeps its dimension
            edits.append(source.replace(above, f"{source.text(above.value)}[{names[text]}][0]"))
        else:
            # What the function asks gradients of is a leaf of each call; this one must stay one that can be written.
            leaf = ".detach()" if values.form and asks_gradients else ""
            edits.append(source.replace(node, names[text] + leaf))
    needed = {n for _, node, _ in fed for n in names_in(node)}
    needed |= {n for each in together for n in names_in(each)}
    owner = arguments[:1] if moving.is_method(source, function) else []
    parameters = [name for name in arguments if name in needed or name in owner]
    name = f"before_{function.name.strip('_')}"
    blank = not source.lines[first_line(function) - 2].strip()
    top = [*[""] * (not blank), f"def {name}({', '.join(parameters)}):  # before each launch"]
    others_read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and not _below(n, head)}
    if shared := sorted(moving.stored(head) & local & others_read):
        top.append(f"    global {', '.join(shared)}")
    for word, kind in (("global", ast.Global), ("nonlocal", ast.Nonlocal)):
        outer = {n for node in ast.walk(function) if isinstance(node, kind) for n in node.names}
        if here := sorted(outer & (written | {path for each in head for path in moving.written(each)})):
            top.append(f"    {word} {', '.join(here)}")
    for each in together:
        depth = len(source.indent(each))
        lines_of = source.apply(rates(source, [each])) if each in head else source.lines
        text_lines = lines_of[first_line(each) - 1 : each.end_lineno or each.lineno]
        top += [f"    {line[depth:].rstrip()}" for line in text_lines]
    edits += [source.without(each) for each in head]
    edits.append(source.before(function, [*top, *(f"    {line}" for line in lines), ""], rank=1))
    stay = [n for part in function.body for n in ast.walk(part) if n not in inside]
    edits += moving.fewer_globals(source, stay)
    return Feed(source, edits, name, parameters, hoisted, moved)


def _below(node: ast.AST, tops: Sequence[ast.stmt]) -> bool:
    return any(node is each for top in tops for each in ast.walk(top))


def _given(statement: ast.stmt) -> list[str]:
    """The names that a statement gives a value to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _hint(statement: ast.stmt, node: ast.expr) -> str:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(node, (ast.Name, ast.Attribute)):
        return f"{path_of(node).rpartition('.')[2]}_in"
    return f"{target.id}_in" if isinstance(target, ast.Name) else "given_in"


def is_of_host(statement: ast.stmt, is_host: Callable[[ast.expr], bool], arguments: set[str]) -> bool:
    """Whether a statement reads nothing of the device but the function's arguments."""
    return all(
        is_host(node) or node.id in arguments
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )


def host_test(
    device: str, function: Function, forms: Mapping[str, Form], space: Mapping[str, Any], value_of: Callable[[str], Any]
) -> Callable[[ast.expr], bool]:
    """Whether an expression is one of the host's alone, as far as its names tell."""
    local = locals_of(function)

    def of_path(path: str, node: ast.expr) -> bool:
        first = path.partition(".")[0]
        if first in local:
            known = first not in forms or forms[first].device != device or _was_of_host(first, node)
            return first != "self" and known
        if first not in space:
            return hasattr(builtins, first)
        value = value_of(path)
        if isinstance(value, torch.Tensor):
            return value.device.type != device
        return not isinstance(value, torch.nn.Module) or isinstance(value, ModuleType)

    def _was_of_host(name: str, node: ast.expr) -> bool:
        """Whether a name that is a tensor of the device in the end was something of the host's at a place."""
        every = [n for part in function.body for n in within(part)]
        loops = [n for n in every if isinstance(n, (ast.For, ast.While)) and node in set(ast.walk(n))]
        if any(name in moving.stored([loop]) for loop in loops):
            return False
        before = [n for n in every if isinstance(n, ast.stmt) and (n.end_lineno or n.lineno) < node.lineno]
        giving = [n for n in before if isinstance(n, (ast.Assign, ast.AugAssign)) and name in moving.stored([n])]
        return bool(giving) and all(is_host(n.value) for n in giving)

    def is_host(node: ast.expr) -> bool:
        if isinstance(node, ast.Attribute) and node.attr in _METADATA:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METADATA:
            return True
        if isinstance(node, (ast.Name, ast.Attribute)) and (path := path_of(node)):
            if path.partition(".")[0] == "self":
                value = value_of(path)
                if isinstance(value, torch.Tensor):
                    return value.device.type != device
                return isinstance(value, NUMBER) or hasattr(value, "__array__")
            return of_path(path, node)
        parts: list[ast.expr] = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                parts += [child.iter, *child.ifs]
            elif isinstance(child, ast.keyword):
                parts.append(child.value)
            elif isinstance(child, ast.expr) and not (isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)):
                parts.append(child)
        return not isinstance(node, ast.Lambda) and all(map(is_host, parts))

    return is_host
