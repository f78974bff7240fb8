"""Whether a function or a module does nothing but compute, as far as its code tells.

Code is followed through what it calls by name: globals, methods of its owner, modules that the owner has. What is
called and nobody can name is quiet only where a tensor or a plain container has a method of that name.
"""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Iterator
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import attribute_of

DRAWS = ("rand", "drop", "normal_", "sample", "bernoulli", "multinomial", "shuffle", "choice", "poisson")
DEEP = 4
READS = frozenset(
    """parameters named_parameters buffers named_buffers modules children items values keys get index count
    format""".split()  # noqa: SIM905
)
_STORES = frozenset(("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_DEREF", "DELETE_SUBSCR", "YIELD_VALUE"))
_NOISY = (
    torch.nn.modules.dropout._DropoutNd,
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.RNNBase,
    torch.nn.MultiheadAttention,
    torch.nn.RReLU,
)
_NOT_QUIET = (print, open, input, exec, eval, next, setattr, delattr)
_UNKNOWN = object()
Own = tuple[str, Any]  # how a method calls its owner, and that
_OWN_LIST: list[Any] = []  # stands for one that code makes itself


def draws(name: str) -> bool:
    """Whether something of this name draws random numbers."""
    return any(word in name for word in DRAWS)


def is_quiet(value: Any, deep: int = DEEP, *, fills: bool = False) -> bool:
    """Whether a function, a method or a module does nothing but compute.

    ``fills``: it may write into tensors by places and methods, which its text tells of.
    """
    if isinstance(value, torch.nn.Module):
        return all(_is_quiet_module(module, deep) for module in value.modules())
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    if not isinstance(code, types.CodeType) or deep == 0:
        return False
    space = getattr(getattr(value, "__func__", value), "__globals__", {})
    own = (code.co_varnames[:1] or ("",))[0], getattr(value, "__self__", None)
    return _is_quiet_code(code, space, own, deep, fills)


def _is_quiet_module(module: torch.nn.Module, deep: int) -> bool:
    if isinstance(module, _NOISY) and module.training:
        return False
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    return type(module).__module__.startswith("torch.nn") or is_quiet(module.forward, deep - 1)


def _is_quiet_code(code: types.CodeType, space: dict[str, Any], own: Own, deep: int, fills: bool = False) -> bool:
    stores = _STORES - {"STORE_SUBSCR"} if fills else _STORES
    if any(each.opname in stores and not _is_its_own(code, each) for each in dis.get_instructions(code)):
        return False
    if any((name.endswith("_") and not name.endswith("__") and not fills) or draws(name) for name in code.co_names):
        return False
    if not all(_may_be_named(name, value, deep) for name, value in _named(code, space, own)):
        return False
    if not fills and _calls_for_nothing(code):
        return False
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return all(_is_quiet_code(each, space, own, deep) for each in inner)


def _is_its_own(code: types.CodeType, each: dis.Instruction) -> bool:
    """Whether code keeps something for a function that it defines itself, or gives it to code that goes through it."""
    if each.opname == "STORE_DEREF":
        return each.argval in code.co_cellvars
    return each.opname == "YIELD_VALUE" and code.co_name == "<genexpr>"


def _may_be_named(name: str, value: Any, deep: int) -> bool:
    """Whether code that names something does nothing but compute by that."""
    if value is _UNKNOWN:
        return hasattr(torch.Tensor, name) or name in READS
    if isinstance(value, types.FunctionType | types.MethodType):
        module = getattr(value, "__module__", "") or ""
        return module.partition(".")[0] in ("torch", "math", "numpy", "einops") or is_quiet(value, deep - 1)
    if isinstance(value, torch.nn.Module):
        return all(_is_quiet_module(each, deep) for each in value.modules())
    if isinstance(value, types.BuiltinFunctionType):
        held = getattr(value, "__self__", None)
        own = held is _OWN_LIST or isinstance(held, str | bytes | torch.Tensor | types.ModuleType)
        return value not in _NOT_QUIET and (held is None or own or name in READS)
    return True


def _named(code: types.CodeType, space: dict[str, Any], own: Own) -> Iterator[tuple[str, Any]]:
    """What code names, by ``self.a.b`` and globals, with what that is; of methods also those of nobody knows what."""
    found: Any = _UNKNOWN
    lists = _own_lists(code)
    for each in dis.get_instructions(code):
        name = str(each.argval)
        if each.opname.startswith("LOAD_FAST") and name in lists:
            found = _OWN_LIST
        elif each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found = space.get(name, getattr(builtins, name, _UNKNOWN))
            if isinstance(found, types.FunctionType | types.BuiltinFunctionType | torch.nn.Module):
                yield name, found
        elif each.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and name == own[0] and own[1] is not None:
            found = own[1]
        elif each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            found = attribute_of(found, name, _UNKNOWN) if found is not _UNKNOWN else _UNKNOWN
            calls = each.opname == "LOAD_METHOD" or "NULL|self" in each.argrepr
            if calls or isinstance(found, torch.nn.Module | types.FunctionType | types.MethodType):
                yield name, found
        elif each.opname not in ("PUSH_NULL", "CACHE", "EXTENDED_ARG", "PRECALL"):
            found = _UNKNOWN


def _calls_for_nothing(code: types.CodeType) -> bool:
    """Whether a call's result is let go, as nobody does who only computes; but for lists that the code itself makes."""
    lists, dropped, kept, before, loaded = _own_lists(code), 0, 0, "", ""
    for each in dis.get_instructions(code):
        dropped += each.opname == "POP_TOP" and before.startswith("CALL")
        kept += str(each.argval) in ("append", "extend") and loaded in lists
        before = each.opname
        loaded = str(each.argval) if each.opname.startswith("LOAD_FAST") else ""
    return dropped > kept


def _own_lists(code: types.CodeType) -> set[str]:
    """Local names that only ever hold a list which the code itself makes: nobody else sees what is put there."""
    made, others, before = set[str](), set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]), ""
    for each in dis.get_instructions(code):
        if each.opname == "STORE_FAST":
            (made if before == "BUILD_LIST" else others).add(str(each.argval))
        before = each.opname
    return made - others
