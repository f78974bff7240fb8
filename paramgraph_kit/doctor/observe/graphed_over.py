"""Data of the program's that is the sample of a graphed callable, and used again when calls have written over it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, MAKERS, last_name, tree_of
from paramgraph_kit.doctor.observe.filled_rows import end_of
from paramgraph_kit.doctor.observe.places import Place

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SHAPE_ALONE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_")
READ = "the sample is the graph's own input: calls have copied their arguments there, and it is used again behind them"
AGAIN = (
    "the sample is one of what the program goes through again, and the graph's own input: each call copies its "
    "argument there"
)


@dataclass(frozen=True, slots=True)
class _Over:
    """Memory of a sample that has the argument of a call by now."""

    end: int
    number: int  # which argument it is
    learns: bool
    place: Place  # of the call


class OverwrittenSamples:
    """Those of one call that is examined; ``tell`` is given a call's place, the number of the sample, and the words."""

    def __init__(self, tell: Callable[[Place, int, bool, str], None]) -> None:
        self._tell = tell
        self._over: dict[int, _Over] = {}  # by where its memory begins

    def copied(self, samples: Iterable[torch.Tensor], target: torch.Tensor, given: torch.Tensor, place: Place) -> None:
        """An argument is about to be copied to a sample, by torch."""
        self.read([given])
        at = target.data_ptr()
        number = next((i for i, t in enumerate(samples) if t.data_ptr() == at), None)
        same = target.shape == given.shape and target.dtype == given.dtype and torch.equal(target, given)
        if number is not None and at and not same:
            self._over[at] = _Over(_end(target), number, target.requires_grad, place)

    def given(self, tensors: Iterable[torch.Tensor], samples: Iterable[torch.Tensor]) -> None:
        """A call has these arguments; where one is the sample itself, nothing is copied."""
        self.read(t for t, sample in zip(tensors, samples, strict=False) if t.data_ptr() == sample.data_ptr())

    def read(self, tensors: Iterable[torch.Tensor], name: str = "") -> None:
        """Numbers of tensors are read outside of torch's callables."""
        if not self._over or name.startswith(_SHAPE_ALONE):
            return
        for tensor in tensors:
            first, end = tensor.data_ptr(), _end(tensor)
            for start, over in self._over.items():
                if first < over.end and start < end:
                    self._tell(over.place, over.number, over.learns, READ)

    def wrote(self, tensors: Iterable[torch.Tensor]) -> None:
        """The program writes to tensors: what is read there now is its own."""
        for tensor in tensors if self._over else ():
            first, end = tensor.data_ptr(), _end(tensor)
            self._over = {at: each for at, each in self._over.items() if not (first < each.end and at < end)}

    def ended(self, before: bool) -> None:
        """A call is over; ``before``: its callables are of before it, and who calls it may go through data again."""
        for over in self._over.values() if before else ():
            self._tell(over.place, over.number, over.learns, AGAIN)
        self._over = {}


def _end(tensor: torch.Tensor) -> int:
    """Where its numbers end."""
    if not tensor.numel():
        return 0
    return tensor.untyped_storage().data_ptr() + end_of(tensor)


def is_gone_through_again(file: str, graphs: ast.Call, sample: ast.expr) -> bool:
    """Whether a sample is a part of something that lines of a file go through more than once, behind the first call."""
    tree = tree_of(file)
    whole = _whole_of(tree, graphs, sample)
    if tree is None or not whole:
        return False
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    makes = _function_of(graphs, parents)
    known = {(makes, whole)}  # a name in a function, or in any that has none of its own
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        known |= {(_function_of(call, parents), name) for name in _passed(call, makes, whole, parents)}
    kept = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and last_name(n.value) == whole]
    targets = (t for n in kept if _function_of(n, parents) is makes for t in n.targets)
    held = {t.attr for t in targets if isinstance(t, ast.Attribute)}
    held |= {whole} if not _is_plain(whole, graphs, sample) else set()
    inside = set(ast.walk(graphs))
    for node in (n for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.Attribute)) and n not in inside):
        there = last_name(node) in held if isinstance(node, ast.Attribute) else _means(node, known, parents)
        if there and isinstance(node.ctx, ast.Load) and _rounds(node, parents, tree) > 1:
            return True
    return False


def _is_plain(whole: str, graphs: ast.Call, sample: ast.expr) -> bool:
    """Whether the whole is a name, not what an object has."""
    return not any(isinstance(n, ast.Attribute) and n.attr == whole for n in (*ast.walk(sample), *ast.walk(graphs)))


def _function_of(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST | None:
    above = parents.get(node)
    while above is not None and not isinstance(above, FUNCTIONS[:2]):
        above = parents.get(above)
    return above


def _means(node: ast.Name, known: set[tuple[ast.AST | None, str]], parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a name is one of those: of its function, or of the module."""
    own = _function_of(node, parents)
    if (own, node.id) in known:
        return True
    if (None, node.id) not in known or not isinstance(own, FUNCTIONS[:2]):
        return False
    stored = {n.id for n in ast.walk(own) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return node.id not in stored | {a.arg for a in (*own.args.posonlyargs, *own.args.args, *own.args.kwonlyargs)}


def _passed(call: ast.Call, makes: ast.AST | None, whole: str, parents: dict[ast.AST, ast.AST]) -> Iterator[str]:
    """The name that a caller of the function which has torch graph has for what it gives there."""
    if not isinstance(makes, FUNCTIONS[:2]):
        return
    kind = parents.get(makes)
    name, names = makes.name, [a.arg for a in (*makes.args.posonlyargs, *makes.args.args)]
    if isinstance(kind, ast.ClassDef):
        name, names = kind.name if name in MAKERS else name, names[1:]
    if last_name(call.func) == name:
        given = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        yield from (value.id for arg, value in given if arg == whole and isinstance(value, ast.Name))


def _whole_of(tree: ast.Module | None, graphs: ast.Call, sample: ast.expr) -> str:
    """What a sample is taken out of; "" for one of its own."""
    if isinstance(sample, ast.Name):  # ``x, y = batches[0]`` ahead of it
        given = []
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Assign) and node.lineno < graphs.lineno:
                stored = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
                given += [node.value] if sample.id in stored else []
        if len(given) != 1:
            return ""
        sample = given[0]
    if isinstance(sample, ast.Call) and last_name(sample.func) == "next" and sample.args:
        begun = sample.args[0]
        if isinstance(begun, ast.Call) and last_name(begun.func) == "iter" and len(begun.args) == 1:
            return last_name(begun.args[0])
    if not isinstance(sample, ast.Subscript):
        return ""
    while isinstance(sample, ast.Subscript):
        sample = sample.value
    return last_name(sample)


def _rounds(node: ast.AST, parents: dict[ast.AST, ast.AST], tree: ast.Module, deep: int = 3) -> int:
    """How many loops a line is in, one within the other, with those of who calls its function: as far as 2."""
    rounds, below = 0, node
    while (above := parents.get(below)) is not None and rounds < 2:
        if isinstance(above, LOOPS):
            rounds += 1
        elif isinstance(above, _COMPREHENSIONS):
            loops = above.generators
            rounds += loops.index(below) + 1 if isinstance(below, ast.comprehension) else len(loops)
        elif isinstance(above, ast.Subscript) and any(isinstance(n, ast.Mod) for n in ast.walk(above.slice)):
            rounds += 1
        elif isinstance(above, ast.Call) and last_name(above.func) == "cycle":
            return 2
        elif isinstance(above, FUNCTIONS[:2]) and deep:
            calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_name(n.func) == above.name)
            return rounds + max(
                (_rounds(call, parents, tree, deep - 1) for call in calls if call is not node), default=0
            )
        below = above
    return rounds
