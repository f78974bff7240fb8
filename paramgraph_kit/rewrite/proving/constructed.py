"""New lines where objects are made: the trial's object was there already, so that another one is made by them.

Its numbers have to be those that the lines of before give it, of the same arguments.
"""

from __future__ import annotations

import ast
import inspect
import io
import math
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paramgraph_kit.doctor.observe.held import attributes_of
from paramgraph_kit.doctor.restore.keeper import RandomState
from paramgraph_kit.doctor.restore.surroundings import all_kept
from paramgraph_kit.rewrite.proving.deadline import RAISES
from paramgraph_kit.rewrite.source.edits import Function, Source
from paramgraph_kit.rewrite.source.lasting import Leaves

NOT_RUN = "the new lines of `{name}.__init__` were not run, as the trial's object was made before: look at them once"
_MAKES = ("__init__", "__post_init__")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_MOST = 1 << 22  # elements of what is made for that


def wrongly_made(
    sources: Mapping[str, Source], texts: Mapping[str, list[str]], space: Mapping[str, Any], owner: Any = None
) -> tuple[str, list[str]]:
    """What new lines of constructors do otherwise than those of before, or ""; and what was not run.

    ``owner``: the object of the step, which often has the arguments that it was made with, by their names.
    """
    not_run = list[str]()
    for file, source in sources.items():
        tree = ast.parse("".join(texts[file])) if file in texts else source.tree
        after = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
        for before in (each for each in source.tree.body if isinstance(each, ast.ClassDef)):
            new, kind, why = after.get(before.name), space.get(before.name), None
            if new is None or _makers(before) == _makers(new):
                continue
            if isinstance(kind, type) and not _leaves(before, sources.values(), space):
                why = _differs(kind, new, source, tree, {**attributes_of(owner), **space})
            if why:
                return f"the new lines of `{before.name}.__init__` make another object ({why})", []
            not_run += [NOT_RUN.format(name=before.name)] if why is None else []
    return "", not_run


def _makers(node: ast.ClassDef) -> list[str]:
    return [ast.dump(each) for each in node.body if isinstance(each, Function) and each.name in _MAKES]


def _leaves(node: ast.ClassDef, sources: Iterable[Source], space: Mapping[str, Any]) -> bool:
    """Whether making an object may do what nobody takes back, as far as its text tells."""
    leaves = Leaves(sources, space)
    kept = (n for n in ast.walk(node) if isinstance(n, (ast.Global, ast.Nonlocal)))
    others = [each for each in node.decorator_list if "dataclass" not in ast.dump(each)]
    makers = [each for each in node.body if isinstance(each, Function) and each.name in _MAKES]
    return bool(others or any(kept) or any(map(leaves.first, makers)))


def _differs(kind: type, new: ast.ClassDef, source: Source, tree: ast.Module, space: Mapping[str, Any]) -> str | None:
    """How an object that new lines make differs, of the arguments of some call; None where none can be made."""
    state, names = RandomState(), {**space, "__name__": kind.__module__}
    known = set(map(ast.dump, source.tree.body))
    named = {node.name for node in source.tree.body if isinstance(node, (ast.ClassDef, Function))}
    new_ones = [n for n in tree.body if isinstance(n, (ast.ClassDef, Function)) and n.name not in named]
    hoisted: list[ast.stmt] = [n for n in tree.body if isinstance(n, ast.Assign) and ast.dump(n) not in known]
    hoisted = [n for n in tree.body if n in hoisted or n in new_ones]
    for call in _calls(source.tree, kind):
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                args = [_given(each, space) for each in call.args]
                options = {each.arg or "": _given(each.value, space) for each in call.keywords}
                with _kept(kind, args, options), _Zeros():  # type: ignore[no-untyped-call]  # torch leaves it untyped
                    old = kind(*args, **options)
        except RAISES:
            continue  # it takes what only the program has
        finally:
            state.put_back()
        if sum(t.numel() for t in _tensors(old)) > _MOST:
            return None
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                body: list[ast.stmt] = [*hoisted, new]
                exec(compile(ast.Module(body, []), source.file, "exec"), names)
                with _kept(kind, args, options), _Zeros():  # type: ignore[no-untyped-call]  # torch leaves it untyped
                    made = names[kind.__name__](*args, **options)
        except RAISES as error:
            return f"{type(error).__name__}: {error}"
        finally:
            state.put_back()
        return next(_apart(attributes_of(old), attributes_of(made)), "")
    return None


class _Zeros(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Memory that nothing has written holds zeros while this lasts: of whatever it holds no two objects are alike."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if func.overloadpacket.__name__ in _UNWRITTEN else made


@contextmanager
def _kept(kind: type, args: list[Any], options: dict[str, Any]) -> Iterator[None]:
    """What its constructors move around them, and of what they are given, is as it was behind this."""
    with ExitStack() as stack:
        for maker in (each for name in _MAKES if isinstance(each := getattr(kind, name, None), types.FunctionType)):
            stack.enter_context(all_kept(maker, (None, *args), options))
        yield


def _calls(tree: ast.Module, kind: type) -> Iterator[ast.Call]:
    """Calls of a class, and one with arguments by their own names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == kind.__name__:
            yield node
    with suppress(TypeError, ValueError):
        given = inspect.signature(kind).parameters.values()
        needed = [each.name for each in given if each.default is each.empty and each.kind in _NAMED]
        yield ast.Call(ast.Name(kind.__name__), [], [ast.keyword(name, ast.Name(name)) for name in needed])


def _given(node: ast.expr, space: Mapping[str, Any]) -> Any:
    """What an argument is where its text alone tells, or a name of the file's."""
    if isinstance(node, ast.Name):
        return space[node.id]
    return ast.literal_eval(node)


def _tensors(value: Any) -> list[torch.Tensor]:
    held = attributes_of(value)
    inside = [*held.values(), *(held.get("_parameters") or {}).values(), *(held.get("_buffers") or {}).values()]
    return [each for each in inside if isinstance(each, torch.Tensor)]


def _apart(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Numbers and tensors of before that are others now; a tensor is as good as the number in it."""
    for name, then in old.items():
        if isinstance(then, dict) and name in ("_buffers", "_parameters"):
            inside = {**new, **(new.get("_buffers") or {}), **(new.get("_parameters") or {})}
            yield from _apart(then, inside)
        now = new.get(name, (new.get("_buffers") or {}).get(name))
        if type(then) in (bool, int, float):
            value = now.item() if isinstance(now, torch.Tensor) and now.numel() == 1 else now
            if type(value) in (bool, int, float) and not math.isclose(value, then, rel_tol=1e-6) and value == value:
                yield f"{name}: {then}, then {value}"
        elif _are_alike(then, now) and not torch.equal(_plain(then), _plain(now)):
            yield f"{name}: other values"


def _plain(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu().to(torch.float64 if value.is_floating_point() else value.dtype).nan_to_num()


def _are_alike(then: Any, now: Any) -> bool:
    both = isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor)
    same = both and then.dtype == now.dtype and then.shape == now.shape
    return same and then.layout is now.layout is torch.strided
