"""A statement in which something was found, and what a rule may ask of it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import torch

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.observe.held import attribute_of
from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite.source.edits import Function, Source, heads, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.stores import written_by_call
from paramgraph_kit.trace.model import Failure

T = TypeVar("T")
NUMBER = (int, float, complex, bool)
TO_HOST = ("item", "tolist", "cpu", "numpy")  # methods by which a tensor's numbers are brought there
_OF_STREAMS = ("stream", "Stream", "current_stream", "synchronize")
_CHANGES = ("append", "extend", "insert", "pop", "clear", "fill", "sort")


class Form(NamedTuple):
    """What is known of a tensor that nothing may keep alive."""

    shape: torch.Size
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Form:
        """That of a tensor."""
        return cls(tensor.shape, tensor.dtype, tensor.device.type)


class Unseen(Exception):  # noqa: N818 - no error: it ends a rule
    """The shape of a tensor was asked for where no step has been looked at."""


@dataclass(slots=True)
class Place:
    """A statement in which something was found."""

    source: Source
    statement: ast.stmt
    failure: Failure
    device: str  # how the user, or else anybody, would write the device
    space: dict[str, Any] = field(default_factory=dict)  # global names of the function
    tensors: Mapping[str, Form] = field(default_factory=dict)  # of local names that held one as it returned
    numbers: frozenset[str] = frozenset()  # attributes that hold numbers
    attributes: Mapping[str, Any] = field(default_factory=dict)  # what attributes of the user's objects hold
    settings: Mapping[str, Any] = field(default_factory=dict)  # the same of numbers and tables, also in several objects
    hoisted: list[str] = field(default_factory=list)  # lines for before the function
    others: Sequence[str] = ()  # those of other statements
    brought: list[str] = field(default_factory=list)  # attributes that are on the device from now on
    begun: Mapping[str, Any] = field(default_factory=dict)  # what has another value than None later
    lent: Sequence[str] = ()  # expressions of the statement that are found before the launch, where they are asked for
    gone: Collection[ast.AST] = ()  # what goes behind the launch
    trains: bool = True  # gradients may go through what it computes
    called: Mapping[str, Any] = field(default_factory=dict)  # functions and modules, by local names that have one
    seen: Collection[str] = ()  # local names that held a tensor, where ``tensors`` has none
    plain: Collection[str] = ()  # local names that held a number of Python's, or None, as the function returned
    forms: Mapping[str, Form] = field(default_factory=dict)  # of ``seen``, for sizes
    exact: Collection[str] = ()  # names for what stays on the device, and is compared as Python has it
    entry: str = ""  # the name of the function that is captured
    given: Mapping[str, Any] = field(default_factory=dict)  # the step's arguments, in lines of its own
    arguments: Mapping[str, Any] = field(default_factory=dict)  # the same, in lines of its helpers too

    @property
    def cuda(self) -> str:
        """How the user calls what has the streams: ``cuda``, ``torch.cuda``, ``pgk.cuda``, or a name of his own."""
        for node in (n for n in self.source.parents if isinstance(n, ast.Call) and called(n) in _OF_STREAMS):
            owner = path_of(node.func).rpartition(".")[0]
            held = value_of(self.space, owner)
            if hasattr(held, "current_stream") and hasattr(held, "Stream"):
                return owner
        return "cuda" if "cuda" in names_in(self.source.tree) else "torch.cuda"

    @property
    def taken(self) -> set[str]:
        """Names that something has already, in the file or in the function."""
        function = self.source.function_of(self.statement)
        return names_in(self.source.tree) | (locals_of(function) if function is not None else set())

    @property
    def helper(self) -> str:
        """The function of the statement, where it is not the one that is captured; else ""."""
        function = self.source.function_of(self.statement)
        return function.name if function is not None and self.entry and function.name != self.entry else ""

    def form(self, path: str) -> Form | None:
        """What is known of a tensor; None also where no step has been looked at."""
        try:
            return self.tensors.get(path)
        except Unseen:
            return None

    def value(self, path: str) -> Any:
        """What ``a.b`` is where the function is defined; else what such an attribute of the user's objects holds."""
        found = value_of(self.space, path)
        return self.attributes.get(path.rpartition(".")[2]) if found is None and "." in path else found

    def text(self, node: ast.AST) -> str:
        """A node as it is written."""
        return self.source.text(node)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Calls of functions or methods with these names, those in the line in which something was found first."""
        every = [n for n in heads(self.statement) if isinstance(n, ast.Call) and called(n) in names]
        yield from sorted(every, key=lambda call: not self.is_its(call))

    def is_its(self, node: ast.expr) -> bool:
        """Whether a part of a statement stands in the line in which something was found: a statement has several."""
        line = self.failure.frame.line if self.failure.frame is not None else 0
        inside = self.statement.lineno <= line <= (self.statement.end_lineno or 0)
        return not inside or node.lineno <= line <= (node.end_lineno or 0)

    def computes_with(self, path: str) -> bool:
        """Whether the function has ``loss - alpha * entropy``, with a variable beside what has this path."""
        function = self.source.function_of(self.statement)
        parts = (n for part in function.body for n in within(part)) if function is not None else ()
        sides = [side for n in parts if isinstance(n, ast.BinOp) for side in ((n.left, n.right), (n.right, n.left))]
        return any(path_of(one) == path and names_in(other) for one, other in sides)

    def loops(self) -> list[ast.For | ast.While]:
        """The loops of the function that the statement is in, or is; the inner ones first."""
        if isinstance(self.statement, Function):
            return []
        every = (self.statement, *self.source.above(self.statement))
        return [node for node in every if isinstance(node, (ast.For, ast.While))]

    def local(self, node: ast.AST) -> set[str]:
        """Local names of the function that a node reads, and of a ``lambda`` that it stands in."""
        function = self.source.function_of(self.statement)
        own = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        given, above = set[str](), self.source.parents.get(node)
        while above is not None and above is not function:
            if isinstance(above, ast.Lambda):
                given |= {each.arg for each in ast.walk(above.args) if isinstance(each, ast.arg)}
            above = self.source.parents.get(above)
        return names_in(node) & (given | locals_of(function)) - own if function is not None else set()

    def is_local(self, name: str) -> bool:
        """Whether a name is one of the function's own."""
        function = self.source.function_of(self.statement)
        return function is not None and name in locals_of(function)

    def hoist(self, hint: str, text: str) -> str:
        """Evaluate an expression before the function; returns the name that stands for it."""
        lines = (line for line in (*self.hoisted, *self.others) if " = " in line)
        known = dict(line.split(" = ", 1)[::-1] for line in lines)
        if text in known:
            return known[text]
        name = fresh(hint, self.taken | set(known.values()))
        self.hoisted.append(f"{name} = {text}")
        return name


def asked(rule: Callable[[Place], T], place: Place, otherwise: T) -> T:
    """What a rule says of a place; one that fails warns of itself, and the other rules go on."""
    try:
        return rule(place)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        at = f"{place.source.file}:{place.statement.lineno}"
        what = f"{rule.__module__}.{rule.__name__} ended with {type(error).__name__}: {error}"
        warnings.warn(f"looking for a rewrite of {at}, {what}; it is left out, please report it", stacklevel=2)
        return otherwise


def is_training(node: ast.AST) -> bool:
    """Whether a node is a backward pass, or the step of something."""
    return isinstance(node, ast.Call) and called(node) in ("backward", "step")


def lines_of(nodes: Sequence[ast.stmt]) -> str:
    """``line 5``, or ``lines 5 to 7``."""
    first, last = nodes[0].lineno, nodes[-1].end_lineno
    return f"line {first}" if first == last else f"lines {first} to {last}"


def value_of(space: Mapping[str, Any], path: str) -> Any:
    """What ``a.b`` is among names, or None."""
    first, *rest = path.split(".")
    return reduce(lambda held, name: attribute_of(held, name, None), rest, space.get(first))


def fresh(hint: str, taken: Collection[str]) -> str:
    """A name like ``hint`` that nothing has yet."""
    name, number = hint, 1
    while name in taken:
        number += 1
        name = f"{hint}_{number}"
    return name


def target_of(node: ast.AST | None) -> ast.expr | None:
    """What a statement gives a value, if it is one thing alone: ``x`` of ``x = 3``; None of ``a = b = 3``."""
    return node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None


def is_one_place(index: ast.expr) -> bool:
    """Whether an index may be one number, by its text: ``x[i]``, ``x[i + 1]``, ``x[scores.argmax()]``."""
    if isinstance(index, ast.Call):
        of_all = isinstance(index.func, ast.Attribute) and not (index.args or index.keywords)
        return of_all and called(index) in ("argmax", "argmin")
    return isinstance(index, (ast.Name, ast.Attribute, ast.BinOp))


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    return last_name(node.func)


def is_number(node: ast.expr) -> bool:
    """Whether an expression is a Python number as far as the text shows."""
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, NUMBER)
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, ast.Attribute):
        return path_of(node.value) in ("math", "np", "numpy", "torch") and node.attr in ("inf", "nan", "pi", "e")
    if isinstance(node, ast.Call) and called(node) == "float" and len(node.args) == 1:
        return isinstance(node.args[0], ast.Constant)
    return isinstance(node, ast.Call) and called(node) in ("len", "size", "sqrt", "numel")


def around_launch(source: Source, function: Function, when: str) -> str:
    """``before_step`` or ``after_step``, unless the user has such a function; those that are written here say when."""
    ours = {each.name for each in around_launches(source.file, source.lines, source.tree, when)}
    return fresh(f"{when}_{function.name.strip('_')}", names_of(source.tree) - ours)


def around_launches(file: str, lines: Sequence[str], tree: ast.AST, when: str) -> list[Function]:
    """The functions that one rewriting of a file has written so far; by their lines, for they say when they run.

    None that the user's own file has: there a fix that was taken before has left such lines.
    """
    found = [n for n in ast.walk(tree) if isinstance(n, Function)]
    found = [n for n in found if lines[n.lineno - 1].rstrip().endswith(f"# {when} each launch")]
    user = Source.of(file.replace(REWRITTEN, "")) if found else None
    taken = names_of(user.tree) if user is not None else set[str]()
    return [each for each in found if each.name not in taken]


def names_of(tree: ast.AST) -> set[str]:
    """Names that a file gives something or reads: of what is written beside its lines none may have one of them."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, Function | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.partition(".")[0])
    return found


def renamed(text: str, new: Mapping[str, str]) -> str:
    """A text with other expressions in the places of some, each as a whole and none within another one.

    >>> renamed("x * alpha + a.a(a=a)", {"a": "a_in", "alpha": "alpha_in"})
    'x * alpha_in + a_in.a(a=a_in)'
    """
    longest = sorted(new, key=len, reverse=True)
    found = "|".join(map(re.escape, longest))
    return re.sub(rf"(?<![\w.])(?:{found})(?!\w|\s*=[^=])", lambda match: new[match[0]], text) if new else text


def integer(node: ast.expr) -> int | None:
    """The whole number that an expression is, or None."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if type(value) is int else None


def binds_tighter(source: Source, node: ast.expr) -> bool:
    """Whether what is around an expression would take a part of a sum or a quotient in its place."""
    return isinstance(source.parents.get(node), (ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Subscript))


def width_of(place: Place, part: ast.Slice) -> str:
    """``4`` for ``a : a + 4``."""
    low, high = part.lower, part.upper
    if part.step is not None or low is None or not isinstance(high, ast.BinOp) or not isinstance(high.op, ast.Add):
        return ""
    for one, other in ((high.left, high.right), (high.right, high.left)):
        if ast.dump(one) == ast.dump(low):
            return place.text(other)
    return ""


def array_type(place: Place, node: ast.expr) -> str | None:
    """The type of the array that a number is picked from by numbers of the host, "" for a list; None where it is not.

    The array is one of around the function, which the file never writes; its index is no tensor.
    """
    if not isinstance(node, ast.Subscript) or not (path := path_of(node.value)):
        return None
    if isinstance(node.slice, (ast.Slice, ast.Tuple)):
        return None  # which is no number
    held = place.space.get(path) if "." not in path else place.attributes.get(path.rpartition(".")[2])
    plain = isinstance(held, (list, tuple)) and all(type(each) in NUMBER for each in held)
    flat = type(held).__module__ == "numpy" and getattr(held, "ndim", 0) == 1
    array = str(getattr(held, "dtype", "")) if flat else ""
    last = path.rpartition(".")[2]
    for each in place.source.parents:
        changed = each.value if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) else None
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _CHANGES:
            changed = each.func.value
        elif isinstance(each, ast.Call) and (given := written_by_call(each)):
            changed = given[0]  # `random.shuffle(table)`
        if changed is not None and path_of(changed).rpartition(".")[2] == last:
            return None
    root = path.partition(".")[0]
    if not (plain or array in ("float64", "float32", "int64", "int32")) or (root != "self" and place.is_local(root)):
        return None
    return None if names_in(node.slice) & place.tensors.keys() else array
