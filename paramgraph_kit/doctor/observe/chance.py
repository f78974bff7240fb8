"""Branches on what the host has drawn, which a few calls may all take the same way: ``if random.random() < 0.9``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.compare import ANOTHER, differences, may_draw
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.source_lines import frame_at, lines_of, path_of
from paramgraph_kit.trace.model import Failure, Frame

MOST_LINES = 4  # that a note names
MOST_CALLS = 64  # of a function that branches on what is drawn, where some way was taken in none
CALLS_S = 2.0  # how long these may take
_DRAWS = re.compile(r"(random|np\.random|numpy\.random)\.(?!seed|[gs]et_?state|default_rng|[A-Z])\w+$")
_OF_GENERATORS = ("uniform", "integers", "permutation", "exponential", "poisson", "gamma", "beta", "random_sample")
_OF_TORCH = frozenset("rand randn randint randperm normal bernoulli multinomial uniform_ normal_ random_".split())  # noqa: SIM905
DRAWN = "it is drawn on the host, and replays keep the first numbers"  # in a message
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
FROZEN_NUMBERS = ("scalar-frozen", "cpu-scalar-frozen")
_COPIED = ("cpu-index", "copy-to-gpu", "tensor-literal")


def tests(codes: Iterable[CodeType]) -> Iterator[Frame]:
    """The lines of such branches, as far as the names tell that they read."""
    for code in codes:
        nodes = list(nodes_of(code))
        drawn = _drawn(nodes)
        for node in nodes:
            if isinstance(node, (ast.If, ast.IfExp, ast.While)) and _asks(node.test, drawn):
                yield frame_at(code, node.lineno)


def _drawn(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that a draw is given to."""
    return {
        name.id
        for node in nodes
        if isinstance(node, (ast.Assign, ast.NamedExpr)) and _draws(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }


def reads(codes: Iterable[CodeType], lists: Collection[str]) -> Iterator[Frame]:
    """Lines that read, of a list by one of some names, what a draw picks: ``self.images[k].clone()``."""
    for code in codes:
        nodes = list(nodes_of(code))
        drawn = _drawn(nodes)
        for node in nodes:
            if not isinstance(node, ast.Subscript) or last_name(node.value) not in lists:
                continue
            if isinstance(node.ctx, ast.Store):
                continue
            if any(isinstance(n, ast.Name) and n.id in drawn for n in ast.walk(node.slice)):
                yield frame_at(code, node.lineno)


def noted(call: Call, codes: Iterable[CodeType], calls: int) -> str:
    """What to know of numbers that are drawn where all calls do the same: copies of the host's may be of others."""
    text = f"it draws random numbers on the CPU; its operations were the same in {calls} calls"
    if not any(f.code in _COPIED for f in call.found):
        return text
    every = [(code, n) for code in codes for n in nodes_of(code) if isinstance(n, ast.expr) and _draws(n)]
    every.sort(key=lambda pair: not _is_of_a_module(pair[1]))  # `probs.sample()` may draw on the device, or not run
    where = f" at {frame_at(every[0][0], every[0][1].lineno).label()}" if every else ""
    return (
        f"it draws random numbers on the CPU{where}; where they are copied to the device, a graph has those of its "
        "capture for ever: draw before each launch, into a tensor that stays"
    )


def _is_of_a_module(node: ast.expr) -> bool:
    """Whether an expression asks ``random``, or NumPy's: whose names say that the host draws."""
    return any(isinstance(n, ast.Call) and _DRAWS.match(ast.unparse(n.func)) for n in ast.walk(node))


def named(codes: Iterable[CodeType], problems: Collection[Failure], steps: Iterable[Step] = ()) -> list[str]:
    """A note on the lines that draw on the host where no problem says so, as what they draw shows elsewhere.

    ``steps``: what ran, as torch draws on the host or on the device by the same names.
    """
    lines = dict.fromkeys(
        frame_at(code, n.lineno)
        for code in codes
        for n in nodes_of(code)
        if isinstance(n, ast.Call) and _DRAWS.match(ast.unparse(n.func))
    )
    drawn = (s.place.frame() for s in steps if s.name in _OF_TORCH and not s.on_device)
    lines |= dict.fromkeys(at for at in drawn if at is not None)
    told = lines_of(problems)
    if all((at.file, at.line) in told for at in lines):
        return []
    told = lines_of(f for f in problems if f.code == "host-random" or f.message.endswith(DRAWN))
    labels = [at.label() for at in lines if (at.file, at.line) not in told]
    text = "the host draws at {}: no replay does, so draw outside, and before a launch into what stays"
    return [text.format(", ".join(labels[:MOST_LINES]))]


def picked(first: Call, second: Call, codes: Iterable[CodeType], told: Collection[Frame | None]) -> Iterator[Failure]:
    """What was drawn has picked one of several tensors: of ``y = a if random.random() < 0.5 else b`` both are made.

    Two calls that run the same operations differ in which of them has made what others read, or what is returned.
    """
    steps = [[step for step in call.steps if step.on_device] for call in (first, second)]
    if [step.key for step in steps[0]] != [step.key for step in steps[1]]:
        return  # they went different ways, which is told
    pairs = [(a, b) for a, b in zip(*steps, strict=True) if a.made != b.made]
    if not pairs and first.made == second.made:
        return
    where = pairs[0][0].place.frame() if pairs else None
    what = pairs[0][0].name if pairs else "what it returns"
    lines = list(tests(codes))
    near = [at for at in lines if where is None or (at.file, at.function) == (where.file, where.function)]
    near = [at for at in near if where is None or at.line <= where.line][-1:] or near or lines
    frame = near[-1] if near else where
    if frame not in told:
        text = f"{what} read what one operation made in one call, and what another one made in the next"
        text = text if pairs else f"{what} was made by one operation in one call, and by another one in the next"
        yield BY_ID["branch-frozen" if near else "host-random"].failure(text, frame)


def without_counted(
    caller: Caller, base: Call, drew: Call | None, seen: list[Failure], rebound: Callable[[Call], set[Frame | None]]
) -> list[Failure]:
    """The same, where a number that moves although the same ones are drawn again is none that is drawn.

    And what is read as ever where the same ones are drawn again, and from elsewhere where others are, they pick.
    ``drew``: a call that drew others, and may have gone where ``base`` did not; ``rebound``: lines at which one has
    given names something else.
    """
    drawn = {f.frame for f in seen if f.code == "host-random" and ANOTHER not in f.message}
    read = {f.frame for f in seen if f.code == "stale-input" and ANOTHER in f.message and base.random_drawn}
    if not (drawn or read) or not base.changes:
        return seen
    came = {step.place.frame() for step in base.steps}
    found: list[Failure] = []
    for call in (base, drew) if drew is not None and not drawn <= came else (base,):
        other = caller.call(caller.args, caller.kwargs, drawing=call.number)
        if other.ended is not None:
            return seen
        found += differences(call.steps, other.steps, random_drawn=False, rebound=rebound(other))
    return picks_what_is_read(counted_instead(seen, found), read - {f.frame for f in found})


def counted_instead(seen: Sequence[Failure], same: Sequence[Failure]) -> list[Failure]:
    """What moves in ``same``, between calls that draw the same, is told as the number that it is, and as none drawn."""
    moved: dict[Frame | None, Failure] = {f.frame: f for f in same if f.code in FROZEN_NUMBERS}
    moved = {at: f for at, f in moved.items() if at is not None and not may_draw(at.text)}
    return [moved.get(f.frame, f) if f.code == "host-random" and ANOTHER not in f.message else f for f in seen]


def picks_what_is_read(found: list[Failure], frames: Collection[Frame | None]) -> list[Failure]:
    """The same, where what some lines read is another tensor by what was drawn: ``batch = random.sample(kept, 8)``."""
    picked = [f.code == "stale-input" and f.message.endswith(ANOTHER) and f.frame in frames for f in found]
    return [BY_ID["host-random"].failure(f.message, f.frame) if p else f for f, p in zip(found, picked, strict=True)]


def draws_in(code: CodeType) -> bool:
    """Whether the source of a function draws, on no device that it names."""
    calls = [n for n in nodes_of(code) if isinstance(n, ast.Call)]
    return any(_draws(n) or last_name(n.func) in _OF_GENERATORS for n in calls)


def is_decided(test: ast.expr, code: CodeType, numbers: Mapping[str, Collection[float]]) -> bool:
    """Whether no draw can answer it otherwise: ``random.random() < self.p``, of a ``p`` that is 0 or 1.

    ``numbers``: by the last part of their names those that it may compare with.
    """
    for each in ast.walk(test):
        if not isinstance(each, ast.Compare) or not all(isinstance(op, _ORDERS) for op in each.ops):
            continue
        for drawn, other in ((each.left, each.comparators[0]), (each.comparators[0], each.left)):
            held = [other.value] if isinstance(other, ast.Constant) else numbers.get(last_name(other), ())
            limits = [n for n in held if isinstance(n, (int, float))]
            if limits and _is_fraction(drawn, code) and all(n <= 0 or n >= 1 for n in limits):
                return True
    return False


def _is_fraction(node: ast.expr, code: CodeType) -> bool:
    """Whether it is drawn from 0 to 1, as far as the name of what draws tells."""
    if isinstance(node, ast.Name):
        given = [n.value for n in nodes_of(code) if isinstance(n, ast.Assign) and path_of(n.targets[0]) == node.id]
        return bool(given) and all(not isinstance(each, ast.Name) and _is_fraction(each, code) for each in given)
    nodes = [*ast.walk(node)]
    plain = not any(isinstance(n, ast.BinOp) for n in nodes)
    return plain and any(isinstance(n, ast.Call) and last_name(n.func) in ("random", "rand") for n in nodes)


def _asks(test: ast.expr, drawn: set[str]) -> bool:
    return _draws(test) or any(isinstance(n, ast.Name) and n.id in drawn for n in ast.walk(test))


def _draws(node: ast.expr) -> bool:
    """Whether it calls what draws, and not on a device that it names: that would be asked for there."""
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    named = [(call, last_name(call.func)) for call in calls]
    draws = (call for call, name in named if may_draw(name) or name in _OF_GENERATORS[:2])
    return any(all(k.arg != "device" for k in call.keywords) for call in draws)
