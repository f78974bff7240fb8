"""What a launch may do behind the host's decisions before which it stands: what shares no memory with what they write.

Names do not tell: ``head(x)`` may have weights of ``self.target``, and a function may write what it likes. So both are
statements of which all memory is known, by the modules and tensors that their paths lead to.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.rewrite.source import quiet, writes
from paramgraph_kit.rewrite.source.edits import Function, path_of
from paramgraph_kit.rewrite.source.place import called

Memory = frozenset[int]
Value = Callable[[str], Any]
_DEEP = 3  # functions that others call
_NUMBERS = (int, float, str)
_PLAIN = (*_NUMBERS, bool, type(None))
_GOES_THROUGH = ("zip", "enumerate", "range", "len", "int", "float", "parameters", "named_parameters", "buffers")
_CONTEXTS = ("no_grad", "inference_mode", "enable_grad")


def memory_of(value: Any, *, told: bool = True) -> Memory | None:
    """What names all memory that lies in a value, or None where something of it is not known.

    ``told``: a module that reads what is around its class is not known.
    """
    if isinstance(value, torch.nn.Module):
        own = [each for module in value.modules() for name, each in vars(module).items() if name[0] != "_"]
        if not told:
            return memory_of((*value.parameters(), *value.buffers()))
        if not all(map(_computes_alone, value.modules())):
            return None
        return memory_of((*value.parameters(), *value.buffers(), *(each for each in own if type(each) not in _PLAIN)))
    if isinstance(owner := getattr(value, "__self__", None), (torch.nn.Module, torch.Tensor)):
        return memory_of(owner)
    if isinstance(value, (list, tuple, dict)):
        parts = [memory_of(each) for each in tree_leaves(value)]
        known = [part for part in parts if part is not None]
        itself = set[int]() if type(value) is tuple else {id(value)}  # a tuple nobody writes
        return frozenset(itself.union(*known)) if len(known) == len(parts) else None
    if isinstance(value, torch.Tensor):
        return frozenset({storage_key(value)})
    return frozenset() if isinstance(value, _PLAIN) else None


def _computes_alone(module: torch.nn.Module) -> bool:
    """Whether what a module computes comes of what it has, and of nothing around its class."""
    if type(module).__module__.startswith("torch.nn"):
        return True
    code, space = getattr(module.forward, "__code__", None), getattr(module.forward, "__globals__", {})
    around = [space[name] for name in code.co_names if name in space] if code is not None else [None]
    return not getattr(code, "co_freevars", ()) and all(
        isinstance(each, (types.ModuleType, *_NUMBERS)) for each in around
    )


def read_by(node: ast.Assign, value: Value, local: Collection[str]) -> Memory | None:
    """What a statement reads of what lives on, where it writes and draws nothing; None where that is not known."""
    functions = set[str]()
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        path, name = path_of(call.func), called(call)
        held = value(path) if path.partition(".")[0] not in local else None
        if isinstance(held, torch.nn.Module):
            if not quiet.is_quiet(held) or any(True for _ in held.buffers()):
                return None
            continue
        of_torch = path.partition(".")[0] in writes.MODULES
        of_tensor = isinstance(call.func, ast.Attribute) and hasattr(torch.Tensor, name)
        named = any(option.arg == "out" for option in call.keywords)
        if not (of_torch or of_tensor) or name.endswith("_") or quiet.draws(name) or named:
            return None
        functions |= {path} if of_torch else set()
    return _memory_at(writes.paths(node) - functions, value, {*local, *writes.MODULES})


def written_by(nodes: Iterable[ast.stmt], value: Value, local: Collection[str]) -> Memory | None:
    """What statements may write of what lives on, or None where that is not known."""
    whole: Memory = frozenset()
    for node in nodes:
        every = [*ast.walk(node)]
        loops = [n for n in every if isinstance(n, ast.For)]
        through = {name for loop in loops for name in _given(loop)}
        if not all(_is_known(n, value, local, through) for n in every):
            return None
        theirs = {*writes.written(node), *(path for loop in loops for path in writes.paths(loop.iter))}
        theirs |= {_path(n) for n in every if isinstance(getattr(n, "ctx", None), ast.Store)}
        methods = [n.func for n in every if isinstance(n, ast.Call) and called(n) not in writes.READS]
        theirs |= {_path(n.value) for n in methods if isinstance(n, ast.Attribute)}
        memory = _memory_at(theirs, value, {*local, *through, *_GOES_THROUGH})
        if memory is None:
            return None
        whole |= memory
    return whole


def _is_known(node: ast.AST, value: Value, local: Collection[str], through: Collection[str]) -> bool:
    """Whether what a node writes is all that it names: a module, a tensor, or what a loop goes through of them."""
    if isinstance(node, (ast.AugAssign, ast.Subscript)):
        target = node.target if isinstance(node, ast.AugAssign) else node
        stores = isinstance(getattr(target, "ctx", None), ast.Store)
        return not stores or _root(target) not in {*local} - {*through}
    if not isinstance(node, ast.Call):
        return True
    name = called(node)
    if name in writes.READS or name in _GOES_THROUGH:
        return True
    if not isinstance(node.func, ast.Attribute):
        return False
    root = _root(node.func)
    if root in writes.MODULES:
        return name in _CONTEXTS
    if root in {*local} - {*through}:
        return False
    owner = value(_path(node.func.value)) if root not in through else None
    return root in through or isinstance(owner, (torch.nn.Module, torch.Tensor, list, dict))


def _path(node: ast.AST) -> str:
    """``self.parts`` of ``self.parts[0].data``."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)) and not path_of(node):
        node = node.func if isinstance(node, ast.Call) else node.value
    return path_of(node) if isinstance(node, ast.expr) else ""


def _given(loop: ast.For) -> set[str]:
    return {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _memory_at(paths: Collection[str], value: Value, local: Collection[str]) -> Memory | None:
    found: Memory = frozenset()
    for path in {*paths} - {"", "self"}:
        if path.partition(".")[0] in local or any(each.startswith(f"{path}.") for each in paths):
            continue
        memory = memory_of(value(path))
        if memory is None:
            return None
        found |= memory
    return found


def stays(node: ast.Assign, later: Sequence[ast.stmt], value: Value, local: Collection[str]) -> bool:
    """Whether a statement may be done behind others that come after it."""
    reads, theirs = read_by(node, value, local), written_by(later, value, local)
    return reads is not None and theirs is not None and not reads & theirs


class Reach:
    """What statements write and read of what lives on, as far as it is told: also in functions that they call."""

    def __init__(self, functions: Mapping[str, Function], value: Value) -> None:
        self.functions, self.value = functions, value

    def goes_on_with(self, moved: Sequence[ast.stmt], rest: Sequence[ast.stmt]) -> bool:
        """Whether what comes behind reads what some statements write in place."""
        wrote = [self.writes(node) for node in moved]
        return any(
            each.end_lineno < node.lineno and self.reads(node) & one  # type: ignore[operator]
            for each, one in zip(moved, wrote, strict=True)
            if one
            for node in rest
        )

    def writes(self, node: ast.AST, deep: int = _DEEP) -> Memory:
        """What a node writes in place: by methods, by torch's functions, and by what a loop goes through."""
        every, whole = [*ast.walk(node)], set[int]()
        through = {name: loop.iter for loop in every if isinstance(loop, ast.For) for name in _given(loop)}
        for call in (n for n in every if isinstance(n, ast.Call)):
            name = called(call)
            if name in self.functions and deep:
                whole |= self.writes(self.functions[name], deep - 1)
            if not isinstance(call.func, ast.Attribute) or not (name.endswith("_") or name == "load_state_dict"):
                continue
            of_module = isinstance(self.value(_root(call.func)), types.ModuleType)
            for given in call.args if of_module else [call.func.value]:
                at = through.get(_root(given))
                whole |= self._memory(writes.paths(at) if at is not None else {_path(given)})
        return frozenset(whole)

    def reads(self, node: ast.AST, deep: int = _DEEP) -> Memory:
        """What a node reads."""
        names = {called(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
        whole = {*self._memory(writes.paths(node))}
        for name in names & self.functions.keys() if deep else ():
            whole |= self.reads(self.functions[name], deep - 1)
        return frozenset(whole)

    def _memory(self, paths: Iterable[str]) -> Memory:
        held = [memory_of(self.value(path), told=False) for path in paths if path not in ("", "self")]
        return frozenset().union(*(each for each in held if each is not None))
