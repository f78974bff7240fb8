"""Which operation of a line raised: from the instruction, its expression, and what the names in it mean there."""

from __future__ import annotations

import ast
import builtins
import dis
import linecache
import re
import sys
from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name

Names = Mapping[str, Any]
NO_NAMES: Names = {}

_COMPARING = ("max", "min", "any", "all", "sorted")  # the built-ins, which make true or false of tensors
# The same, of lists and heaps.
_SEARCHING = frozenset(
    """index count remove heappush heappop heapify heappushpop heapreplace bisect bisect_left bisect_right insort
    insort_left insort_right""".split()  # noqa: SIM905 - shorter so
)
_LISTING = ("range", "list", "tolist", "sorted", "sample")  # what they give is copied where it is an index
_AS_THEY_ARE = ("print", "repr", "format", "ascii")
# Functions that make Python numbers of tensors: where a value is wanted, and where a size is.
_VALUED = ("full", "full_like", "new_full", "linspace", "logspace")
_SIZED = frozenset(
    """reshape view expand zeros ones empty rand randn repeat tile new_zeros new_ones new_empty eye randint randperm
    chunk roll pad unflatten tensor_split topk select unfold narrow split""".split()  # noqa: SIM905 - shorter so
)
_NUMBERS = ("alpha", "beta", "value", "fill_value", "eps", "p", "start", "end")  # keywords that take no tensor
FROM_PINNED, TO_PINNED = "from pinned", "to pinned"  # copies, until it is known what was said of them
_OF_SHAPES = ("shape", "size", "dim", "ndim", "numel", "len", "dtype", "device", "stride")
_ASSIGNS = r"\s*(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=[^=]"


def names_at(frame: FrameType) -> Names:
    """What names mean in a frame."""
    return ChainMap(frame.f_locals, frame.f_globals, vars(builtins))


def operations_at(code: CodeType, instruction_at: int, names: Names, line: str) -> tuple[tuple[str, ...], bool]:
    """Operations of the expression at an instruction, or of the whole line where Python kept no columns."""
    # The position of "if x.any():" is that of the call; only the instruction tells that the bool failed.
    instruction = dis.opname[code.co_code[instruction_at]]
    if any(name in instruction for name in ("_IF_", "TO_BOOL", "UNARY_NOT", "CONTAINS_OP")):
        return ("bool", *calls_of(line)), True
    if instruction.startswith("FORMAT_"):
        return ("format", *calls_of(line)), True
    positions = next(islice(code.co_positions(), instruction_at // 2, None), (None,) * 4)
    start, end, left, right = positions
    if start is not None and end is not None and left is not None and right is not None:
        lines = [linecache.getline(code.co_filename, n) for n in range(start, end + 1)]
        raw = [text.encode() for text in lines]
        raw[-1] = raw[-1][:right]
        raw[0] = raw[0][left:]
        after = lines[-1].encode()[right:].decode(errors="ignore")
        if instruction.startswith("BINARY_"):
            after = ""  # x[mask] += 1 reads there first
        operation = operation_of(b"".join(raw).decode(errors="ignore"), after, names)
        if operation:
            return (operation, *(name for name in calls_of(line) if name != operation)), True
    return calls_of(line), False


def operation_of(expression: str, after: str = "", names: Names = NO_NAMES) -> str:
    """The outermost operation of an expression; ``after`` is what follows it on its line.

    >>> operation_of("x.sum().item()"), operation_of("x[mask]"), operation_of("x[mask]", " = v"), operation_of("a > 0")
    ('item', 'x[mask]', 'x[mask]=', 'bool')
    >>> operation_of("words[i]", names={"words": ["a", "b"]}), operation_of("'%.2f' % x")
    ('__index__', 'format')
    """
    tree = _parsed(expression)
    if tree is None:
        # An assignment or another statement: what is on its left is enough.
        return "x[mask]=" if re.match(r"\s*[\w.]+\[[^\]]*\]" + _ASSIGNS, expression) else ""
    if isinstance(tree, ast.Call):
        return _called(tree, names)
    if isinstance(tree, ast.Subscript):
        kind = _indexed(tree, names)
        if not re.match(_ASSIGNS, after):
            return kind
        if kind == "x[mask]" and (copy := _copied(tree.value, [_assigned(after)], names)):
            return copy
        if kind == "x[mask]" and _is_number(after, names) and (_is_index(tree, names) or _is_place(tree, names)):
            return "x[i]=number"
        return "x[?]=" if kind == "x[mask]" and _is_unknown(tree, names) else f"{kind}="
    if isinstance(tree, ast.JoinedStr):
        return "format"
    if isinstance(tree, ast.BinOp):
        of_text = isinstance(_value(tree.left, names), str) or isinstance(tree.left, ast.JoinedStr)
        return "format" if isinstance(tree.op, ast.Mod) and of_text else ""
    if isinstance(tree, (ast.Compare, ast.BoolOp, ast.Name, ast.Attribute)) or (
        isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
    ):
        return "bool"
    return ""


@lru_cache(1024)
def _parsed(expression: str) -> ast.expr | None:
    try:
        return ast.parse(f"({expression})", mode="eval").body
    except (SyntaxError, ValueError):
        return None


def told_apart(operations: tuple[str, ...], pageable: bool) -> tuple[str, ...]:
    """Operations, where the message tells copies of pageable memory from waits: a list is copied, a mask waits."""
    copied = {"x[mask]": "x[list]", "x[i:j]=": "copy_", "x[mask]=": "copy_", "x[?]=": "x[list]="}
    meant = copied if pageable else {"x[?]=": "x[mask]="}
    # Of pinned memory torch copies through a pageable tensor where layouts or types differ, and nowhere else.
    meant |= dict.fromkeys((FROM_PINNED, TO_PINNED), "strided" if pageable else "copy_")
    return tuple(meant.get(name, name) for name in operations)


def _called(call: ast.Call, names: Names) -> str:
    target = call.func
    name = last_name(target)
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    function = _value(target, names)
    if isinstance(function, BuiltinFunctionType) and _of_torch(function):
        name = function.__name__  # whatever the user calls it
    if _is_module(function):
        return type(function).__name__  # "norm" is no torch.norm then
    if isinstance(target, ast.Call) and getattr(target.func, "id", "") == "getattr" and len(target.args) > 1:
        name = str(_value(target.args[1], names))
    each: Any
    for each in ast.walk(call):
        if _is_map(each):
            return str(each.args[0].id)
    if name in ("to", "type_as", "type") and any(_is_cpu(_value(each, names)) for each in arguments):
        return "cpu"
    if name in ("copy_", "to", "cuda", "type_as") and isinstance(target, ast.Attribute):
        return _copied(target.value, arguments if name == "copy_" else [], names) or name
    if isinstance(target, ast.Name) and name in _COMPARING:
        return "bool"
    if isinstance(function, BuiltinFunctionType) and not _of_torch(function) and name not in _AS_THEY_ARE:
        if function.__module__ == "_pickle":
            return name
        # math.sqrt, time.sleep, [1, 2].index: C code that has no use for tensors takes their number.
        return "bool" if name in _SEARCHING else "float"
    if any(keyword.arg in _NUMBERS and _has_tensor(keyword.value, names) for keyword in call.keywords):
        return "float"
    if name in (*_VALUED, *_SIZED) and any(_has_tensor(each, names) for each in arguments):
        return "float" if name in _VALUED else "sized"
    return name


def _is_map(node: Any) -> bool:
    """Whether something is ``map(float, ...)``, whatever function's name it is."""
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "map" and isinstance(node.args[0], ast.Name)


def _indexed(tree: ast.Subscript, names: Names) -> str:
    """What kind of indexing it is."""
    if isinstance(_value(tree.value, names), (list, tuple, str, bytes, range)):
        return "__index__"
    index = tree.slice
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    kinds = [_kind(part, names) for part in parts]
    for kind in ("x[list]", "x[mask]", "x[i:j]"):
        if kind in kinds:
            return kind
    return "x[mask]"


def _copied(target: ast.expr, sources: Sequence[ast.expr | None], names: Names) -> str:
    """What kind of copy it is to write into ``target``, or to move it if there are no sources; "" if none is seen."""
    own = _base(target, names)
    if _is_cpu(own) and _is_tensor(own):
        if not sources:
            return "" if _is_pageable(own) else FROM_PINNED
        return "cpu" if _is_pageable(own) else TO_PINNED
    given: Any = _base(sources[0], names) if sources else None
    if not (_is_tensor(given) and _is_cpu(given) and given.ndim):
        return ""
    return "copy_" if _is_pageable(given) else FROM_PINNED


def _base(node: ast.expr | None, names: Names) -> Any:
    """The tensor that an expression is a part or a view of, as far as names tell."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
            return None
        node = node.value if isinstance(node, ast.Subscript) else node.func.value  # type: ignore[attr-defined]
    return _value(node, names) if node is not None else None


def _assigned(after: str) -> ast.expr | None:
    """What stands behind ``=``."""
    try:
        node = ast.parse(f"_ {after.strip()}").body[0]
    except (SyntaxError, ValueError):
        return None
    return node.value if isinstance(node, ast.Assign) else None


def _is_number(after: str, names: Names) -> bool:
    """Whether ``= 5.0`` assigns a number of Python's."""
    value = _assigned(after)
    return value is not None and _is_of_numbers(value, names)


def _is_of_numbers(node: ast.expr, names: Names) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_of_numbers(node.operand, names)
    if isinstance(node, ast.BinOp):
        return _is_of_numbers(node.left, names) and _is_of_numbers(node.right, names)
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") in ("int", "float", "len", "round")
    return isinstance(_value(node, names), (int, float, complex))


def _is_place(tree: ast.Subscript, names: Names) -> bool:
    """Whether an index is made of Python's numbers alone, of which it may have one for each dimension."""
    parts = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
    return all(_is_of_numbers(part, names) for part in parts)


def _is_index(tree: ast.Subscript, names: Names) -> bool:
    """Whether some part of an index is a tensor of numbers, and no mask."""
    parts = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
    values = [_value(_unsliced(part), names) for part in parts]
    return any(_is_tensor(v) and v.ndim and not str(v.dtype).endswith(("bool", "uint8")) for v in values)


def _unsliced(node: ast.expr) -> ast.expr:
    """Of a slice of a tensor there is as much to know as of the tensor: ``x[i[:2]] = 5``."""
    return node.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) else node


def _is_unknown(tree: ast.Subscript, names: Names) -> bool:
    """Whether some part of an index may be a list for all that is known."""
    parts = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
    return bool(names) and any(
        _value(part, names) is None for part in parts if not isinstance(part, (ast.Constant, ast.Slice, ast.Compare))
    )


def _kind(part: ast.expr, names: Names) -> str:
    value = _value(part, names)
    called = last_name(part.func) if isinstance(part, ast.Call) else ""
    if isinstance(part, (ast.List, ast.ListComp)) or called in _LISTING or _is_listed(value):
        return "x[list]"
    if isinstance(value, slice):
        return "x[i:j]"
    if isinstance(part, ast.Slice):
        bounds = [bound for bound in (part.lower, part.upper, part.step) if bound is not None]
        return "x[i:j]" if any(not isinstance(_value(bound, names), int) for bound in bounds) else ""
    if isinstance(part, ast.Compare):
        return "x[mask]"
    if not _is_tensor(value):
        return "x[i:j]" if _is_place_there(part, names) else ""
    if str(value.dtype).endswith(("bool", "uint8")):
        return "x[mask]" if value.device.type != "cpu" else "x[list]"  # of a mask of the CPU the places are copied
    return "x[i:j]" if not value.ndim else "x[list]" if value.device.type == "cpu" else ""


def _is_place_there(node: ast.expr, names: Names) -> bool:
    """Whether an expression is one number on the device: ``j + 1``, ``order[n]``, ``x.sum(1).argmax()``."""
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Invert):
        return _is_place_there(node.operand, names)
    if isinstance(node, ast.BinOp):
        both = (node.left, node.right)
        return any(_is_place_there(each, names) for each in both) and all(
            _is_place_there(each, names) or _is_of_numbers(each, names) for each in both
        )
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("argmax", "argmin") and not node.args and not node.keywords
    if isinstance(node, ast.Subscript):
        of, parts = _value(node.value, names), node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        numbers = all(isinstance(_value(part, names), int) for part in parts)
        return numbers and _is_tensor(of) and of.ndim == len(parts) and not str(of.dtype).endswith(("bool", "uint8"))
    value = _value(node, names)
    whole = _is_tensor(value) and not (value.ndim or value.is_floating_point() or value.is_complex())
    return whole and not str(value.dtype).endswith(("bool", "uint8"))


def _value(node: ast.expr, names: Names) -> Any:
    """What an expression means, without running anything: names, constants, attributes of modules and classes."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, names)
        if isinstance(owner, (ModuleType, type)):
            return vars(owner).get(node.attr)
        # Methods of lists, dictionaries and text, which have no code of the user's to run.
        if isinstance(owner, (list, dict, str, tuple, set)):
            return getattr(owner, node.attr, None)
        return _held(owner, node.attr)
    return None


def _held(owner: object, name: str) -> Any:
    """An attribute that an object keeps itself, a buffer or a part of a module's too."""
    try:
        held = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    for each in (held, held.get("_buffers"), held.get("_parameters"), held.get("_modules")):
        if isinstance(each, dict) and name in each:
            return each[name]
    return None


def _has_tensor(node: ast.expr, names: Names) -> bool:
    """Whether an argument may be a tensor, or hold one; shapes of tensors are none."""
    if isinstance(node, ast.Attribute) and node.attr in _OF_SHAPES:
        return False
    if isinstance(node, ast.Call) and last_name(node.func) in _OF_SHAPES:
        return False
    if isinstance(node, ast.Name):
        return _is_tensor(names.get(node.id))
    return any(_has_tensor(child, names) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def _is_tensor(value: Any) -> bool:
    # Other objects may answer anything to a question about their attributes.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_listed(value: Any) -> bool:
    """Whether something is a list, a range or an array of numpy's, which are copied where they are indices."""
    numpy = sys.modules.get("numpy")
    return isinstance(value, (list, range)) or (numpy is not None and isinstance(value, numpy.ndarray))


def _is_cpu(value: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.device):
        return bool(value.type == "cpu")
    if _is_tensor(value):
        return bool(value.device.type == "cpu")
    if type(value).__name__ == "tensortype":  # torch.FloatTensor, and not torch.cuda's
        return bool(value.__module__ == "torch")
    return isinstance(value, str) and (value == "cpu" or re.fullmatch(r"torch\.\w+Tensor", value) is not None)


def _is_pageable(value: Any) -> bool:
    """Whether something is a tensor of the CPU whose memory no graph can hold."""
    if not _is_tensor(value) or value.device.type != "cpu":
        return False
    try:
        return not value.is_pinned()
    except RuntimeError:  # the device answers nothing any more
        return True


def _of_torch(function: BuiltinFunctionType) -> bool:
    owner: Any = function.__self__
    module = function.__module__ or type(owner).__module__
    return str(module).startswith("torch") or _is_tensor(owner)


def calls_of(line: str) -> tuple[str, ...]:
    """Every name that is called on a line, last first: in a chain of calls the last is the likeliest."""
    return tuple(dict.fromkeys(reversed(re.findall(r"(\w+)\s*\(", line))))
