"""What rounds of a loop were given, and gave, while the function ran with one of them cut out."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import torch

from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.driver.profiling import profiled
from paramgraph_kit.rewrite.loops.one_round import Round
from paramgraph_kit.rewrite.proving.launches import Kind, Layout, kind_of

Node = TypeVar("Node", bound=ast.AST)
_NONE = (id(None),)  # in the place of a tensor: a round without that has a graph of its own
MOST_KINDS = 4  # of rounds, by what is true or false in them: each has a graph


@dataclass(slots=True)
class Run:
    """A function whose loop calls one round, run eagerly."""

    made: types.FunctionType  # the round
    texts: list[str]
    applied: Callable[[], AbstractContextManager[Callable[[Any], None]]]  # while it lasts the loop calls what is given
    given: tuple[Any, ...] = ()  # the first time
    bound: tuple[str, ...] = ()  # parameters that are given no tensors
    calls: list[list[Kind]] = field(default_factory=list)  # of each run of the function, what its rounds were given
    graded: dict[str, str] = field(default_factory=dict)  # results with gradients, as they are returned without
    tensors: set[str] = field(default_factory=set)  # results that are tensors in all rounds
    others: set[str] = field(default_factory=set)  # results that are something else in some
    context: str = ""  # in which it is called without gradients
    varying: set[str] = field(default_factory=set)  # parameters that are another number in some rounds
    arrays: set[str] = field(default_factory=set)  # those that are numpy's arrays
    began: dict[str, list[Any]] = field(default_factory=dict)  # what each parameter was given, as its kind tells
    has_now: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)  # what objects among these had then
    ran: set[str] = field(default_factory=set)  # the qualified names of the user's functions that ran in rounds

    def gives(self, found: Round, returned: Sequence[Any]) -> None:
        """Note which results lead to a backward pass, and which are tensors in all rounds."""
        self.graded |= graded(found, returned)
        pairs = [*zip(found.results, returned, strict=False)]
        self.others |= {name for name, each in pairs if not isinstance(each, torch.Tensor)}
        self.tensors = (self.tensors | {name for name, _ in pairs}) - self.others

    def note(self, name: str, value: Any) -> None:
        """Note what a parameter is given: a number 0, a tensor of one number by its type, or something else."""
        is_zero = isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0
        is_one = isinstance(value, torch.Tensor) and value.dim() == 0
        kinds = self.began.setdefault(name, [])
        kind = 0 if is_zero else value.dtype if is_one else None
        kinds += [kind] if kind not in kinds else []

    @property
    def sums(self) -> dict[str, torch.dtype]:
        """Parameters that are the number 0 in a first round, and a tensor in the others, with its type."""
        pairs = {name: [x for x in kinds if x != 0] for name, kinds in self.began.items() if len(kinds) == 2}
        return {name: each[0] for name, each in pairs.items() if len(each) == 1 and each[0] is not None}

    @contextmanager
    def watched(self, files: Collection[str]) -> Iterator[None]:
        """Note what of the user's files runs in a round."""

        def look(frame: types.FrameType, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_filename.removesuffix(REWRITTEN) in files:
                self.ran.add(frame.f_code.co_qualname)

        with profiled(look):
            yield

    @contextmanager
    def as_it_was(self, names: Collection[str]) -> Iterator[None]:
        """While this lasts attributes of what is bound are those of the first round: the function makes them anew."""
        before = [(each, name, vars(each)[name]) for each, _ in self.has_now for name in names if name in vars(each)]
        try:
            for each, held in self.has_now:
                vars(each).update({name: held[name] for name in names if name in held})
            yield
        finally:
            for each, name, value in before:
                vars(each)[name] = value

    def has(self, name: str) -> bool:
        """Whether a name, as ``.optimizer``, is an attribute of what the round binds."""
        bound = self.given[: len(self.bound)]
        return name.startswith(".") and any(hasattr(each, name[1:]) for each in bound)

    def is_steady(self) -> bool:
        """Whether rounds are given the same but for the numbers in tensors, and a last one that is smaller.

        Objects may be others in each call of the function, which makes them; what is true in some rounds alone has two
        graphs.
        """
        numbers: dict[Layout, set[tuple[Any, ...]]] = {}
        for known, plain in (kind for one in self.calls for kind in one):
            numbers.setdefault(known, set()).add(tuple(x for x in plain if not isinstance(x, (tuple, bool))))
        if not numbers or any(len(each) > 1 for each in numbers.values()) or len(self.decided()) > MOST_KINDS:
            return False
        for one in self.calls:
            layouts = [known for known, _ in one]
            several = len({*layouts[:-1]}) > 1 and 2 * len({*layouts}) > len(layouts)
            others = {tuple(x for x in plain if isinstance(x, tuple) and x != _NONE) for _, plain in one}
            alone = 1 < len(layouts) == len({*layouts}) and len({*numbers[layouts[0]], *numbers[layouts[-1]]}) > 1
            if several or len(others) > 1 or alone:  # each round would have a graph that no other one launches
                return False
        return True

    def leaves_out(self) -> bool:
        """Whether some rounds have None in the place of a tensor that others have."""
        return len({sum(x == _NONE for x in plain) for one in self.calls for _, plain in one}) > 1

    def decided(self) -> set[tuple[bool, ...]]:
        """What was true or false in each kind of round."""
        return {tuple(x for x in plain if isinstance(x, bool)) for one in self.calls for _, plain in one}


class Given:
    """A round that notes which numbers and texts it gives back, of which a replay gives the first again."""

    def __init__(self, made: Callable[..., Any]) -> None:
        self._made = made
        self._seen: dict[Kind, set[tuple[Any, ...]]] = {}

    def __call__(self, *values: Any) -> Any:
        """Run the round."""
        kind, results = kind_of(values), self._made(*values)
        plain = (x for x in kind_of(results)[1] if not isinstance(x, tuple))
        self._seen.setdefault(kind, set()).add(tuple(plain))
        return results

    @property
    def moves(self) -> bool:
        """Whether any of them is another one in some rounds of one kind."""
        return any(len(each) > 1 for each in self._seen.values())


class Taken:
    """A round that notes which numbers it is given in each call of a function."""

    def __init__(self, made: Callable[..., Any]) -> None:
        self._made = made
        self._seen: list[dict[Layout, set[tuple[Any, ...]]]] = []

    def begin(self) -> None:
        """The function is called once more."""
        self._seen.append({})

    def __call__(self, *values: Any) -> Any:
        """Run the round."""
        known, plain = kind_of(values)
        numbers = tuple(x for x in plain if isinstance(x, (int, float)) and not isinstance(x, bool))
        self._seen[-1].setdefault(known, set()).add(numbers)
        return self._made(*values)

    @property
    def moves(self) -> bool:
        """Whether any of them is another one in a later call: a graph of it would be launched in one call alone."""
        both = ((a[known], b[known]) for a, b in pairwise(self._seen) for known in a.keys() & b.keys())
        return any(one.isdisjoint(other) for one, other in both)

    @property
    def sizes(self) -> int:
        """How many layouts of tensors it was given: each has a graph."""
        return len({known for one in self._seen for known in one})

    @property
    def grows(self) -> bool:
        """Whether each call had sizes of its own."""
        return len(self._seen) > 1 and all(a.keys().isdisjoint(b.keys()) for a, b in pairwise(self._seen))


def context_now() -> str:
    """In which gradients are off, as it is written, or ""."""
    if torch.is_inference_mode_enabled():
        return "torch.inference_mode()"
    return "" if torch.is_grad_enabled() else "torch.no_grad()"


def graded(found: Round, returned: Sequence[Any]) -> dict[str, str]:
    """Results that lead to the backward pass of a round, as they are returned without; they themselves are let go."""
    texts = {}
    for name, value in zip(found.results, returned, strict=False):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            texts[name] = f"{name}.detach()"
        elif isinstance(value, (tuple, list)) and all(isinstance(x, torch.Tensor) for x in value):
            each = f"each.detach() for each in {name}"
            texts[name] = f"tuple({each})" if isinstance(value, tuple) else f"[{each}]"
    return texts


def written_anywhere(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the loop's inference mode as one that may be moved outside of it."""
    return value.clone() if value.is_inference() else value


def does(values: Sequence[Any]) -> int:
    """How many of some values are true: of what a round may do, so much it does."""
    return sum(value is True for value in values)


def same(tree: ast.AST, other: ast.AST, node: Node) -> Node:
    """The node of another tree that stands where one does among its kind."""
    rows = ([n for n in ast.walk(each) if isinstance(n, type(node))] for each in (tree, other))
    found: Node = next(b for a, b in zip(*rows, strict=True) if a is node)
    return found
