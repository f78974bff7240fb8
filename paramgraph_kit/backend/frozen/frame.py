"""The one function that Dynamo evaluates at a call of a compiled model, and what its code may do there.

Private names of Dynamo, seen in torch 2.11 and 2.13: ``innermost_fn`` and ``_debug_get_cache_entry_list``.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from paramgraph_kit.driver.torch_names import torch_name

# What Dynamo's code for a frame may do besides calling its one graph: read, take apart, put together, return. Names of
# CPython 3.11 to 3.14.
PLAIN_READS = frozenset(
    (
        "RESUME", "NOP", "CACHE", "EXTENDED_ARG", "PUSH_NULL", "PRECALL", "KW_NAMES", "NOT_TAKEN", "LOAD_CONST",
        "LOAD_SMALL_INT", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "LOAD_METHOD", "LOAD_CLOSURE",
        "COPY_FREE_VARS", "MAKE_CELL", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR",
        "LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST",
        "STORE_FAST_STORE_FAST", "STORE_FAST_LOAD_FAST", "DELETE_FAST", "BINARY_SUBSCR", "BINARY_SLICE",
        "UNPACK_SEQUENCE", "BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "LIST_EXTEND",
        "LIST_APPEND", "LIST_TO_TUPLE", "CALL_INTRINSIC_1", "SWAP", "COPY", "POP_TOP", "RETURN_VALUE",
        "RETURN_CONST", "IS_OP", "TO_BOOL",
    )
)  # fmt: skip
CALLS = frozenset(("CALL", "CALL_FUNCTION_EX", "CALL_KW"))
GRAPH = "__compiled_fn"  # what Dynamo names its graphs
# What it calls besides: marks for the profiler and, from torch 2.12 on, noting the current stream.
PROFILED = ("record_pregraph_bytecode_enter", "record_pregraph_bytecode_exit")
MARKS = (
    *PROFILED,
    "store_user_object_weakrefs",
    "get_current_stream",
    "device",
)


@dataclass(frozen=True, slots=True)
class Frame:
    """A function as Dynamo sees it evaluated, with the expressions of its local variables at a call."""

    function: types.FunctionType
    module: nn.Module | None  # whose ``forward`` it is
    wrapped: bool  # whether the module is one of torch's own, which Dynamo calls through a function of its own

    def names(self, given: Sequence[Any], named: Sequence[str]) -> dict[str, str] | None:
        """The local variables at a call of this form, as source over ``a0, a1, ...``, ``n0, n1, ...`` and ``f``.

        ``a0`` is the first argument given, ``n0`` the first that is given by name, ``f`` the function and ``m`` the
        module. None where arguments and parameters do not fit.
        """
        positional = [f"a{k}" for k in range(len(given))]
        by_name = {name: f"n{k}" for k, name in enumerate(named)}
        free = dict(_free(self.function))
        if self.wrapped:
            return {"args": _tuple(positional), "kwargs": _dict(by_name)} | free
        values = (["m"] if self.module is not None else []) + positional
        parameters = _parameters(self.function)
        places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        more = {p.kind: p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        found = {p.name: value for p, value in zip(places, values, strict=False)}
        rest = values[len(places) :]
        own = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        others = {name: value for name, value in by_name.items() if name not in own}
        if (rest and inspect.Parameter.VAR_POSITIONAL not in more) or any(name in found for name in by_name):
            return None
        if others and inspect.Parameter.VAR_KEYWORD not in more:
            return None
        found |= {name: value for name, value in by_name.items() if name in own}
        defaults = self.function.__defaults__ or ()
        for k, p in enumerate(places[len(places) - len(defaults) :]):
            found.setdefault(p.name, f"f.__defaults__[{k}]")
        for p in parameters:
            if p.kind is p.KEYWORD_ONLY and p.name not in found:
                found[p.name] = f"f.__kwdefaults__[{p.name!r}]"
        for kind, name in more.items():
            found[name] = _tuple(rest) if kind is inspect.Parameter.VAR_POSITIONAL else _dict(others)
        if len(found) != len(parameters):
            return None
        return found | free

    def entry(self) -> Any:
        """Dynamo's last used cache entry for this function; None if there is none."""
        entries = torch_name("_debug_get_cache_entry_list")(self.function.__code__)
        return entries[0] if entries else None


def _parameters(function: types.FunctionType) -> list[inspect.Parameter]:
    """Its own, whatever function it wraps."""
    own = types.FunctionType(function.__code__, {}, argdefs=function.__defaults__, closure=function.__closure__)
    own.__kwdefaults__ = function.__kwdefaults__
    return list(inspect.signature(own).parameters.values())


def _tuple(values: Sequence[str]) -> str:
    return f"({''.join(f'{each}, ' for each in values)})"


def _dict(values: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{name!r}: {value}' for name, value in values.items())}}}"


def _free(function: types.FunctionType) -> Iterator[tuple[str, str]]:
    for k, name in enumerate(function.__code__.co_freevars):
        yield name, f"f.__closure__[{k}].cell_contents"


def frame_of(compiled: Any) -> Frame | None:
    """The function that Dynamo evaluates first at a call of ``compiled``; None where that cannot be told."""
    module = getattr(compiled, "_orig_mod", None)
    inner = torch_name("innermost_fn")(compiled.forward if module is not None else compiled)
    if module is None:
        return Frame(inner, None, wrapped=False) if isinstance(inner, types.FunctionType) else None
    if isinstance(inner, types.FunctionType):  # what stands around a module of torch's own
        return Frame(inner, module, wrapped=True)
    forward = inspect.getattr_static(type(module), "forward", None)
    plain = isinstance(forward, types.FunctionType) and "forward" not in vars(module)
    return Frame(forward, module, wrapped=False) if plain else None


def obstacle_in(code: types.CodeType) -> str | None:
    """Why what Dynamo made of a function must be run as it is; None where it only reads and calls one graph."""
    called = graphs = marks = 0
    instructions = list(dis.get_instructions(code))
    for n, instruction in enumerate(instructions):
        if instruction.opname in CALLS:
            called += 1
        elif instruction.opname not in PLAIN_READS and not _goes_around_marks(instructions[n:]):
            return f"besides its graph the function does {instruction.opname}"
        elif instruction.opname == "LOAD_GLOBAL" and str(instruction.argval).startswith(GRAPH):
            graphs += 1
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval in MARKS:
            marks += 1
    if graphs != 1 or called != 1 + marks:
        return f"it calls {graphs} graphs and {called - marks - graphs} other functions"
    return None


def _goes_around_marks(instructions: Sequence[dis.Instruction]) -> bool:
    """Whether the first is a jump over marks for the profiler, or over a constant: torch 2.15 asks before it marks."""
    jump, *rest = instructions
    if "JUMP" not in jump.opname or "BACKWARD" in jump.opname:
        return False
    over = [each for each in rest if each.offset < jump.argval]
    read = {each.argval for each in over if each.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL"))}
    constants = all(each.opname in ("LOAD_CONST", "NOP", "NOT_TAKEN") for each in over)
    return constants or (bool(read) and read.issubset(PROFILED) and not any("RETURN" in each.opname for each in over))
