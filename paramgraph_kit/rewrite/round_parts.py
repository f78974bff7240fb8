"""Which statements of a loop compute on the device, which only tell, and which belong to a round beside them."""

from __future__ import annotations

import ast
import sys
import types
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.observe.refusals import operation
from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.counting.optimizers import stepped
from paramgraph_kit.rewrite.loops.spans import Block, spans
from paramgraph_kit.rewrite.proving.worth import Worth
from paramgraph_kit.rewrite.proving.written import FREE, PRODUCTS
from paramgraph_kit.rewrite.source.edits import Function, Source, heads, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import is_backward, reads_number, stored
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.ways import Ways

TELLS = frozenset("sync-item print host-counter copy-to-cpu data-dependent-branch branch-frozen".split())  # noqa: SIM905
READS = frozenset(("sync-item", "copy-to-cpu"))
Test = Callable[[ast.stmt], bool]
Asked = tuple[Test, ...]  # of a statement: whether it computes, only tells, and copies to the device
_GRADS = ("torch.autograd.grad", "autograd.grad", "grad")
_CLIPS = ("clip_grad_norm_", "clip_grad_value_")
_OPTIMIZING = (Optimizer, torch.amp.GradScaler)
_WORKING = (torch.nn.Module, LRScheduler, *_OPTIMIZING)


def bodies(loop: Block, works: Test, tells: Test) -> list[Block]:
    """Where a round may be: a loop, or ``if step > begin: if step % every == 0: train()`` where it trains there only.

    Such a branch comes first where it also tells something, as then it is in no round of the loop.
    """
    found, body = list[ast.If](), loop.body
    while True:
        computing = [node for node in body if works(node)]
        trained = [node for node in computing if any(map(is_backward, ast.walk(node)))] or computing
        if len(trained) != 1 or not isinstance(trained[0], ast.If) or trained[0].orelse:
            break
        found.insert(0, trained[0])
        body = trained[0].body
    return [*found, loop] if found and tells(found[-1]) else [loop, *found]


def behind(loops: Sequence[Block], inner: Block, works: Test) -> list[tuple[Block, ast.stmt]]:
    """What an outer loop trains behind one of its own: a generator, after so many rounds of its critic."""
    for outer in (each for each in loops if inner in each.body):
        rest = outer.body[outer.body.index(inner) + 1 :]
        computing = [node for node in rest if works(node)]
        if any(is_backward(n) for node in computing for n in ast.walk(node)):
            return [(outer, computing[0])]
    return []


def is_done(loop: Block, begin: ast.stmt | None, inner: Block) -> bool:
    """Whether a loop, or a part of it that begins somewhere, has to do with one that has its round already."""
    if begin is None:
        return holds(loop, inner) or holds(inner, loop)
    return holds(loop, inner) and not (inner in loop.body and loop.body.index(inner) < loop.body.index(begin))


def from_step(loop: Block) -> list[ast.stmt]:
    """The statements of a block from the first one on in which an optimizer steps, if it is trained before that."""
    for number, node in enumerate(loop.body):
        if any(isinstance(n, ast.stmt) and stepped(n) for n in ast.walk(node)):
            before = (n for each in loop.body[:number] for n in within(each))
            return loop.body[number:] if any(map(is_backward, before)) else []
    return []


def ended(asked: Asked, behind: Collection[ast.stmt]) -> Asked:
    """What is asked of statements where those behind a round compute for the host alone."""
    works, tells, *others = asked
    return (lambda node: works(node) and node not in behind, lambda node: tells(node) or node in behind, *others)


def asks_what_was_read(loop: Block, reading: Sequence[ast.stmt], tells: Test) -> Test | None:
    """Tells, or asks an ``err`` that the same round has read: ``if err < rtol: y = y + h * k`` is done behind it."""
    names = stored([n for n in reading if n in loop.body and isinstance(n, ast.Assign)])
    asking = [n for n in loop.body if isinstance(n, ast.If) and names_in(n.test) & names]
    return (lambda node: node in asking or tells(node)) if asking else None


def keeps(whole: Ways, definition: Function, node: ast.stmt, working: set[str]) -> bool:
    """``meter.update(loss)``: what an object that the function makes, or is given, does with results.

    ``working``: names of modules, optimizers and their like, which belong to a round.
    """
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    first = path_of(call.func).partition(".")[0]
    return first in locals_of(definition) - whole.tensors.keys() - working - {"self"}


def computes(node: ast.stmt, lines: Container[int]) -> bool:
    """Whether the device did something as a statement ran, or has gradients taken away, which is part of a round."""
    if any(line in lines for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)):
        return True
    return any(isinstance(n, ast.Call) and (called(n) == "zero_grad" or is_backward(n)) for n in within(node))


def trains(part: Sequence[ast.stmt], functions: Sequence[Function]) -> bool:
    """Whether what some statements call has a backward pass, as an object that scales losses."""
    names = {called(n) for node in part for n in ast.walk(node) if isinstance(n, ast.Call)} | {"__call__"}
    helpers = [each for each in functions if each.name in names]
    return any(map(is_backward, (n for each in helpers for node in each.body for n in within(node))))


def trains_behind(
    function: Function, loop: Block, part: Sequence[ast.stmt], graded: Collection[str], sources: Iterable[Source]
) -> bool:
    """Whether a backward pass outside of a part goes through results of its own: no launch leads gradients back.

    Also where no call came to it, as behind a test that ended each of them.
    """
    inside, end = {id(n) for node in part for n in ast.walk(node)}, max((n.lineno for n in part), default=0)
    rest = [n for n in within(function) if isinstance(n, ast.stmt) and id(n) not in inside and n is not function]
    behind = sorted((n for n in rest if n.lineno > end), key=lambda n: n.lineno)
    again = sorted((n for n in rest if loop.lineno < n.lineno < end), key=lambda n: n.lineno)  # in a later round
    functions = [n for each in sources for n in ast.walk(each.tree) if isinstance(n, Function)]
    led = {*graded}
    for node in [*behind, *(again if isinstance(loop, (ast.For, ast.While)) else ())]:
        for call in (n for n in heads(node) if isinstance(n, ast.Call) and _leading(n) & led):
            if is_backward(call) or path_of(call.func) in _GRADS or trains([ast.Expr(call)], functions):
                return True
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            leads = bool(_leading(node.value) & led)
            led = led | stored([node]) if leads else led - stored([node])
    return False


def _leading(node: ast.AST) -> set[str]:
    """Names in an expression that gradients may go back through: ``y`` of ``log(x.item(), y)``."""
    if reads_number(node):
        return set()
    own = {node.id} if isinstance(node, ast.Name) else set()
    return own.union(*map(_leading, ast.iter_child_nodes(node)))


def has_own_gradients(part: Sequence[ast.stmt], sources: Collection[Source]) -> bool:
    """Whether a round makes its gradients anew and steps with them, and nobody else in the user's files reads any."""
    calls = {
        called(each.value): n
        for n, each in enumerate(part)
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) and not stepped(each)
    }
    steps = [n for n, each in enumerate(part) if isinstance(each, ast.Expr) and stepped(each)]
    inside = {id(n) for each in part for n in ast.walk(each)}
    others = (n for source in sources for n in ast.walk(source.tree) if id(n) not in inside)
    read = any(isinstance(n, ast.Attribute) and (n.attr == "grad" or n.attr in _CLIPS) for n in others)
    return not read and calls.get("zero_grad", len(part)) < calls.get("backward", -1) < max(steps, default=-1)


def optimizes(whole: Ways, node: ast.stmt, names: set[str]) -> bool:
    """``scaler.unscale_(optimizer)``, also where the scaler is off: it has its place among what computes."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    path = path_of(call.func.value)
    return path in names or isinstance(whole._value(path), _OPTIMIZING)


def holds(node: ast.stmt, inner: ast.AST) -> bool:
    """Whether a node is a statement, or below it."""
    return any(part is inner for part in ast.walk(node))


class Lines(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes at which lines of a function the device computes."""

    def __init__(self, code: types.CodeType) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._code = code
        self.computing: Counter[int] = Counter()  # how many operations each has done
        self.products: Counter[int] = Counter()  # those of them that are products
        self._back: Counter[int] = Counter()  # what backward passes do that a line has begun, in threads of their own
        self._back_products: Counter[int] = Counter()
        self.arrays: set[str] = set()  # local names of numpy's
        self.working: set[str] = set()  # local names of modules, optimizers and their like
        self.optimizing: set[str] = set()  # those of optimizers and scalers

    def worth(self, part: Sequence[ast.stmt]) -> Worth:
        """How much of what the function has done some of its statements have."""
        own = {n for node in part for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        (inside, behind), (products, others) = (
            [sum(n for line, n in each.items() if (line in own) is within) for within in (True, False)]
            for each in (self.computing + self._back, self.products + self._back_products)
        )
        return Worth(inside, behind, products, others)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = device().type
        if operation(func).name not in FREE and any(
            isinstance(x, torch.Tensor) and x.device.type == kind for x in tree_leaves(result)
        ):
            frame = self._within(sys._getframe())
            if frame is None:
                waiting = next(filter(None, map(self._within, sys._current_frames().values())), None)
                if waiting is not None:
                    self._back[waiting.f_lineno] += 1
                    self._back_products[waiting.f_lineno] += operation(func).name in PRODUCTS
            else:
                self.computing[frame.f_lineno] += 1
                self.products[frame.f_lineno] += operation(func).name in PRODUCTS
                held = frame.f_locals
                self.working |= {name for name, value in held.items() if isinstance(value, _WORKING)}
                self.arrays |= {name for name, value in held.items() if isinstance(value, np.ndarray)}
                self.optimizing |= {n for n in self.working if isinstance(held.get(n), _OPTIMIZING)}
        return result

    def _within(self, frame: types.FrameType | None) -> types.FrameType | None:
        """The frame of the function below another one."""
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return frame


def parts(
    definition: Function, loops: Sequence[Block], works: Test, tells: Test, lines: Lines
) -> Iterator[tuple[Block, ast.stmt]]:
    """Parts of a loop's rounds, and of the function, of which each does at least half of what the device does."""
    blocks = [*loops, *(n for n in definition.body if isinstance(n, ast.With)), definition]
    for block in blocks:
        for part in spans(block.body, tells):
            if any(map(works, part)) and lines.worth(part).share >= 0.5:
                yield block, part[0]
