"""What ``make_graphed_callables`` moves by what it runs ahead of its captures."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes as no_modes

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.drawn_ahead import RNG_STATE, DrawnAhead
from paramgraph_kit.doctor.observe.graphed_by_torch import graphed_in_training
from paramgraph_kit.doctor.observe.held import code_of, is_a
from paramgraph_kit.doctor.observe.own_regions import GRAPHED, Region
from paramgraph_kit.doctor.observe.put_back import puts_back, sets_generators, writes_elsewhere
from paramgraph_kit.doctor.observe.warmed_up import WrittenAhead
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.files import is_library

_MOST_NAMES = 3


class GraphedAhead:
    """What was told, in one call."""

    def __init__(self) -> None:
        self._told: set[tuple[object, int]] = set()
        self._asked: list[_Asked] = []

    def begin(self) -> None:
        """A call begins."""
        self._told.clear()
        self._asked.clear()

    def seen(self, region: Region, written: WrittenAhead, drawn: DrawnAhead) -> Iterator[str]:
        """In words, what such a statement has moved that nothing has put back; its graph is launched next."""
        if (call := _statement(region)) is None or self._is_told(region):
            return
        moved = written.moved_by(region, call)
        for path, module in modules_at(region, call):
            names = [n for n, b in module.named_buffers() if storage_key(b) in moved]
            if names:
                yield _counted(path, names, call.lineno)
        if drawn.drawn_by(region.code, call):
            yield _drawn(call.lineno)

    def as_read(self, region: Region) -> Iterator[str]:
        """The same for a statement of before, as its lines and the modules tell."""
        if (call := _statement(region)) is None or self._is_told(region) or _warms_nothing(call):
            return
        known = [(path, module) for path, module in modules_at(region, call) if graphed_in_training(module)]
        for path, module in known if not puts_back(region, call) else ():
            with no_modes(), torch.no_grad():
                buffers = [(name, b, b.detach().clone()) for name, b in module.named_buffers()]
            self._asked.append(_Asked(region, call, path, module, buffers))
        draws = any(map(may_draw, (part for _, module in known for part in module.modules())))
        if draws and not sets_generators(region, call):
            yield _drawn(call.lineno)

    def leaves(self, written: Collection[int]) -> Iterator[str]:
        """Buffers are as a call leaves them: what its replays have moved was moved ahead of the captures, too.

        ``written``: memory that something else has written.
        """
        for each in self._asked:
            with no_modes(), torch.no_grad():
                moved = [n for n, b, then in each.buffers if b.shape == then.shape and not torch.equal(b, then)]
            own = {storage_key(b) for _, b, _ in each.buffers} & {*written}
            lines = [*_lines_of(each.module)]
            names = [
                name
                for name, b, _ in each.buffers
                if name in moved
                and storage_key(b) not in own
                and not writes_elsewhere(each.region, each.call, name, lines)
            ]
            if names:
                yield _counted(each.path, names, each.call.lineno)

    def _is_told(self, region: Region) -> bool:
        told = (region.code, region.line) in self._told
        self._told.add((region.code, region.line))
        return told


@dataclass(frozen=True, slots=True)
class _Asked:
    """A module whose graph a call replays, with its buffers as they were ahead of that."""

    region: Region
    call: ast.Call
    path: str
    module: torch.nn.Module
    buffers: list[tuple[str, torch.Tensor, torch.Tensor]]


def _lines_of(module: torch.nn.Module) -> Iterator[ast.AST]:
    """The lines of the methods that a module and its parts have, which its graph holds, without those that make it."""
    for kind in {kind for part in module.modules() for kind in type(part).__mro__}:
        for name, method in vars(kind).items():
            code = code_of(method) if name != "__init__" else None
            if code is not None and not is_library(code.co_filename):
                yield from nodes_of(code)


def _statement(region: Region) -> ast.Call | None:
    """The call of ``make_graphed_callables`` that has captured."""
    tree = tree_of(region.code.co_filename)
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call)) if tree is not None else ()
    found = (n for n in calls if last_name(n.func) == GRAPHED and n.args)
    return next((n for n in found if n.lineno <= region.line <= (n.end_lineno or n.lineno)), None)


def modules_at(region: Region, call: ast.Call) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules that a statement gives to be graphed, as it names them."""
    given = call.args[0]
    several = isinstance(given, (ast.Tuple, ast.List))
    for node in given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]:
        if not isinstance(node, (ast.Name, ast.Attribute)):
            continue
        values = (_value_at(region, each) for each in (node, *_named_alike(region, node, call, several=several)))
        value = next((each for each in values if each is not None), None)
        if value is not None:
            yield ast.unparse(node), value


def _value_at(region: Region, node: ast.expr) -> torch.nn.Module | None:
    """The module that a path names, or whose method it does."""
    try:
        value: Any = eval(ast.unparse(node), {**region.space, **region.names})
    except Exception:  # it may have been a variable
        return None
    value = value.__self__ if is_a(value, MethodType) else value
    return value if is_a(value, torch.nn.Module) else None


def _named_alike(region: Region, node: ast.expr, call: ast.Call, *, several: bool) -> Iterator[ast.expr]:
    """Paths of what a variable of the function's was given, or is kept as: torch graphs a module in its place."""
    assigns = [n for n in nodes_of(region.code) if isinstance(n, ast.Assign) and isinstance(node, ast.Name)]
    yield from (t for n in assigns for t in n.targets if n.value is call and not several and _is_path(t))
    alike = [n for n in assigns if any(ast.unparse(each) == ast.unparse(node) for each in n.targets)]
    yield from (each for n in alike for each in (*n.targets, n.value) if len(alike) == 1 and _is_path(each))
    yield from (t for n in assigns for t in n.targets if ast.unparse(n.value) == ast.unparse(node) and _is_path(t))


def _is_path(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute))


def _warms_nothing(call: ast.Call) -> bool:
    given = [k.value for k in call.keywords if k.arg == "num_warmup_iters"]
    return any(isinstance(n, ast.Constant) and n.value == 0 for n in given)


def has_counted(part: torch.nn.Module) -> bool:
    """Whether a part keeps statistics of its own, and has kept some."""
    count = getattr(part, "num_batches_tracked", None)
    return part.training and is_a(count, torch.Tensor) and bool(count)


def may_draw(part: torch.nn.Module) -> bool:
    """Whether a part draws from the default generator."""
    chance = getattr(part, "p", None) if "dropout" in type(part).__name__.lower() else getattr(part, "dropout", None)
    return part.training and isinstance(chance, float) and chance > 0


def _counted(path: str, names: list[str], line: int) -> str:
    listed = ", ".join(f"`{name}`" for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (
        f"`{GRAPHED}` at line {line} runs `{path}` a few times ahead of its capture, which has moved its buffers "
        f"({listed}{more}), and nothing puts them back ahead of the first replay: `kept = [b.clone() for b in "
        f"{path}.buffers()]` comes ahead of that line, and `[b.copy_(k) for b, k in zip({path}.buffers(), kept)]` "
        "behind it, if replays are to begin where eager code would"
    )


def _drawn(line: int) -> str:
    get, put = RNG_STATE
    return (
        f"`{GRAPHED}` at line {line} runs what it graphs a few times ahead of its capture, which draws from the "
        "default generator: its replays draw other numbers than eager code would. "
        f"`state = {get}()` comes ahead of that line, and `{put}(state)` behind it"
    )
