"""A line that computes with numbers of the host's, as it is once a tensor holds each: where no other advice tells.

Each is written as what it comes of in the step, ``10.0 * rampup(step_no)``, which is known ahead of the launch.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Collection, Mapping

from paramgraph_kit.rewrite.advised.host.from_host import assignments
from paramgraph_kit.rewrite.advised.host.known_ahead import Ahead, Known
from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import heads, names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_CODES = ("scalar-frozen", "host-random")
_TAKES = frozenset(
    "add sub mul div lerp pow true_divide maximum minimum where masked_fill ge gt le lt eq ne rsub fill".split()  # noqa: SIM905
)
_BUILTIN = ("min", "max", "int", "float", "range", "round", "bool", "print")
_OF_KEYWORDS = ("p", "size", "dim", "lr", "eps", "scale_factor", *("alpha", "value"))
_SCALES = ("alpha", "value")
_WHOLE = re.compile(r"\w+ got -?\d+ in one call and -?\d+ in the next")
_NUMBERS = (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.Call, ast.IfExp)
_HELD = re.compile(rb"(?:[^\w\])]|^)\($")  # a bracket around a number, and none of a call
_STANDS = re.compile(r"`(\w+)` for `([^`]+)`")
_FULL = ("torch.full", "torch.full_like")


def filled_ahead(place: Place) -> str:
    """What is written once, before each launch, and in the line; "" where a tensor would not do there."""
    node = place.statement
    if place.failure.code not in _CODES or not isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)):
        return ""
    ahead = Ahead(place)
    found = list[tuple[ast.expr, Known]]()
    for part in _parts(ahead, node):
        known = ahead.of(part)
        if known is None or not ahead.moves(known) or _is_kept(place, part):
            continue
        if not _takes_a_tensor(place, part):
            return ""
        found.append((part, known))
    return _told(place, ahead, found) if found else ""


def unless_it_is_asked(place: Place, said: str) -> str:
    """Words by which a tensor stands for a number, unless the host asks it there: ``rates[n]``, ``torch.full(k, n)``.

    Then the whole of what it asks is in the tensor, where that is known ahead of the launch.
    """
    told = {number for _, number in _STANDS.findall(said.rpartition("here ")[2])}
    if place.failure.code not in _CODES or not told or "so write `" in said:
        return said
    for node in heads(place.statement):
        if not isinstance(node, ast.expr) or place.text(node) not in told:
            continue
        above = place.source.parents.get(node)
        made = isinstance(above, ast.Call) and path_of(above.func) in _FULL and node in above.args[1:]
        if made or any(
            _is_the_hosts(each, above) and not _is_of_a_tensor(place, each) for each in _around(place, node)
        ):
            return filled_ahead(place) or said
    return said


def _is_of_a_tensor(place: Place, node: ast.AST) -> bool:
    """Whether an index may pick of a tensor of the device, as a tensor does, too."""
    if not isinstance(node, ast.Subscript):
        return isinstance(node, ast.Slice)
    path = path_of(node.value)
    held = place.value(path) if path else None
    made = dict(assignments(place)).get(path)
    listed = made is not None and isinstance(made.value, (ast.List, ast.ListComp, ast.Tuple))
    return not listed and not isinstance(held, (list, tuple, dict))


def _around(place: Place, part: ast.expr) -> list[ast.AST]:
    """What an expression stands in, up to its statement."""
    outer = list[ast.AST]()
    while (node := place.source.parents.get(outer[-1] if outer else part)) is not None and node is not place.statement:
        outer.append(node)
    return outer


def _told(place: Place, ahead: Ahead, found: list[tuple[ast.expr, Known]]) -> str:
    names, taken, texts = dict[str, str](), {*place.taken}, dict[ast.expr, str]()
    for part, known in found:
        text = place.text(part) if ast.dump(part) == ast.dump(known.value) else ast.unparse(known.value)
        texts[part] = text
        if text not in names:
            names[text] = fresh(_hint(part), taken)
            taken.add(names[text])
    here = _rewritten(place, {part: names[text] for part, text in texts.items()})
    if not here:
        return ""
    zeros = zeros_for(place)
    if _is_whole(place, [*texts]) and "dtype" not in zeros:
        zeros = zeros.replace("(()", "((), dtype=torch.long")
    once = "`, `".join(f"{name} = {zeros}" for name in names.values())
    filled = "`, `".join(f"{name}.fill_({text})" for text, name in names.items())
    lines = dict(pair for _, known in found for pair in known.lines)
    first, behind = _moved(ahead, lines), "behind that " * bool(lines)
    if not first:
        it = "reads it from a tensor" if len(names) == 1 else "reads them from tensors"
        first = f"the host's `{'` and `'.join(names)}` belong{'s' * (len(names) == 1)} before each launch, which {it}: "
    return f"{first}once `{once}`, before each launch {behind}`{filled}`, here `{here}`"


def _moved(ahead: Ahead, lines: Mapping[ast.stmt, str]) -> str:
    """Which lines go ahead of the launch, and which of them are done once in a step."""
    if not lines:
        return ""
    told = " and ".join(f"line {node.lineno}, `{text}`," for node, text in lines.items())
    out = [n for n in lines if isinstance(n, ast.AugAssign) or (isinstance(n, ast.Assign) and ahead.is_once(n.value))]
    if not out:
        return f"{told} {'is' if len(lines) == 1 else 'are'} done before each launch, too: "
    numbers = f" line{'s' * (len(out) > 1)} {' and '.join(str(n.lineno) for n in out)}" if len(lines) > 1 else " it"
    return f"{told} belong{'s' * (len(lines) == 1)} before each launch: take{numbers} out of the step; "


def _is_kept(place: Place, part: ast.expr) -> bool:
    """Whether a number is only kept, or handed on: ``count`` of ``mean, count = new, count``."""
    above = place.source.parents.get(part)
    return isinstance(above, ast.Tuple) or (above is place.statement and not isinstance(above, ast.AugAssign))


def _parts(ahead: Ahead, node: ast.stmt) -> list[ast.expr]:
    """The largest expressions of a statement that are numbers of the host's, and no constants."""
    found, inner = list[ast.expr](), set[ast.AST]()
    for part in heads(node):
        if part in inner or not isinstance(part, ast.expr) or isinstance(getattr(part, "ctx", None), ast.Store):
            continue
        if isinstance(part, _NUMBERS) and ahead.is_a_number(part):
            found.append(part)
            inner |= {*ast.walk(part)}
        if isinstance(part, ast.Call):
            inner |= {*ast.walk(part.func)} if isinstance(part.func, ast.Name) else set()
    return found


def _takes_a_tensor(place: Place, part: ast.expr) -> bool:
    """Whether what stands around a number does the same with a tensor of one."""
    above = place.source.parents.get(part)
    if any(_is_the_hosts(each, above) for each in _around(place, part)):
        return False
    if isinstance(above, ast.keyword):
        call = place.source.parents.get(above)
        scales = isinstance(call, ast.Call) and len(call.keywords) == 1 and bool(call.args) and above.arg in _SCALES
        return scales or above.arg == "weight"
    if isinstance(above, ast.BinOp):
        return isinstance(above.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow))
    if isinstance(above, ast.AugAssign):
        return above.value is part and isinstance(above.op, (ast.Add, ast.Sub, ast.Mult, ast.Div))
    if isinstance(above, ast.Compare):
        return len(above.ops) == 1 and not isinstance(above.ops[0], (ast.In, ast.NotIn, ast.Is, ast.IsNot))
    if not isinstance(above, ast.Call) or part not in above.args:
        return False
    if path_of(above.func) in _FULL:
        return len(above.args) == 2 and above.args[1] is part
    return called(above).removesuffix("_") in _TAKES


def _is_the_hosts(node: ast.AST, above: ast.AST | None) -> bool:
    """Whether something around a number is the host's, which would ask a tensor: ``math.exp(-b * e)``, ``x[n - 1]``."""
    if isinstance(node, ast.Call):
        own = isinstance(node.func, ast.Name) and node.func.id in _BUILTIN
        return own or path_of(node.func).partition(".")[0] in ("math", "np", "numpy", "random")
    if isinstance(node, ast.keyword):
        return node is not above and node.arg in _OF_KEYWORDS
    return isinstance(node, (ast.Subscript, ast.Slice))


def _is_whole(place: Place, parts: Collection[ast.expr]) -> bool:
    """Whether a count stands there: what compares with it, or is made of it, is of whole numbers then."""
    inside = [place.source.parents.get(part) for part in parts]
    compared = any(isinstance(n, ast.Compare) or (isinstance(n, ast.Call) and path_of(n.func) in _FULL) for n in inside)
    return len(parts) == 1 and compared and _WHOLE.search(place.failure.message) is not None


def _rewritten(place: Place, new: Mapping[ast.expr, str]) -> str:
    """The statement with tensors for its numbers; of several lines what stands for each."""
    node = place.statement
    calls = [n for n in heads(node) if isinstance(n, ast.Call)]
    scales = [k.value for call in calls for k in call.keywords if k.arg in _SCALES]
    scaled = any(part in {*ast.walk(by)} for by in scales for part in new)
    full = any(path_of(n.func) in _FULL and part in n.args for n in calls for part in new)
    if scaled or full:
        tensors = {id(part): ast.Name(name, ast.Load()) for part, name in new.items()}
        return ast.unparse(_Given(place, new).visit(copy.deepcopy(node, tensors)))
    if node.lineno != node.end_lineno:
        return "`, `".join(dict.fromkeys(f"{name}` for `{place.text(part)}" for part, name in new.items()))
    line = place.source.lines[node.lineno - 1].encode()
    for part in sorted(new, key=lambda each: each.col_offset, reverse=True):
        begin, end = part.col_offset, part.end_col_offset or 0
        if _HELD.search(line[:begin]) and line[end : end + 1] == b")":
            begin, end = begin - 1, end + 1  # `w` for `(1 - m)`
        line = line[:begin] + new[part].encode() + line[end:]
    behind = len(place.source.lines[node.lineno - 1].encode()) - (node.end_col_offset or 0)
    return line[node.col_offset : len(line) - behind].decode()


class _Given(ast.NodeTransformer):
    """``x.add_(v * d)`` for ``x.add_(v, alpha=d)``, and ``torch.empty(n).fill_(t)`` for ``torch.full(n, t)``."""

    def __init__(self, place: Place, new: Mapping[ast.expr, str]) -> None:
        self.names = {*new.values()}
        self.whole = _WHOLE.search(place.failure.message) is not None

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        by = next((each for each in node.keywords if each.arg in _SCALES), None)
        if by is not None and names_in(by.value) & self.names:
            scaled = ast.BinOp(node.args[0], ast.Mult(), by.value)
            return ast.Call(node.func, [scaled, *node.args[1:]], [])
        if path_of(node.func) in _FULL and len(node.args) == 2 and names_in(node.args[1]) & self.names:
            name = path_of(node.func).replace("full", "empty")
            kinds = [*node.keywords]
            if self.whole and name == "torch.empty" and not any(each.arg == "dtype" for each in kinds):
                kinds.append(ast.keyword("dtype", ast.parse("torch.long", mode="eval").body))
            made = ast.Call(ast.parse(name, mode="eval").body, [node.args[0]], kinds)
            return ast.Call(ast.Attribute(made, "fill_", ast.Load()), [node.args[1]], [])
        return node


def _hint(node: ast.expr) -> str:
    """A name for a number: ``beta_in`` for ``beta``, ``self.beta`` and ``sim["beta"]``."""
    entry = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
    if isinstance(entry, str) and entry.isidentifier():
        return f"{entry}_in"
    if isinstance(node, ast.Subscript):
        node = node.value
    while isinstance(node, ast.Call) and called(node) == "float" and node.args:
        node = node.args[0]
    if isinstance(node, ast.Call) and called(node).isidentifier() and path_of(node.func).partition(".")[0] not in (
        "random", "np", "numpy", "math", "min", "max", "float", "torch", "abs", "int",
    ):  # fmt: skip
        return f"{called(node).strip('_')}_in"
    path = path_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
    return f"{path.rpartition('.')[2].strip('_')}_in" if path else "number_in"
