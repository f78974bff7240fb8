"""Advice for parts of tensors whose place an object counts: ``self.k[:, : self.pos]``, ``self.k[:, self.pos] = k``."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import MAKERS, last_name
from paramgraph_kit.rewrite.advised.host.asked_whole import counting_line, is_asked
from paramgraph_kit.rewrite.source.edits import heads, path_of
from paramgraph_kit.rewrite.source.place import Place, fresh
from paramgraph_kit.rewrite.source.reached_as import class_of
from paramgraph_kit.rewrite.source.widths import picked_by, width, width_at, with_all_of


def moving_slice(place: Place) -> str:
    """``self.k[:, :, self.pos : self.pos + t] = k`` with a position that an object counts."""
    if place.failure.code not in ("size-frozen", "scalar-frozen", "host-counter"):
        return ""
    if isinstance(place.statement, ast.AugAssign) and (text := _counts(place, place.statement.target)):
        return text
    for node in heads(place.statement):
        if not isinstance(node, ast.Subscript) or _is_gone_through(place, node):
            continue
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for dim, part in enumerate(parts):
            ends = (
                [each for each in (part.lower, part.upper) if each is not None] if isinstance(part, ast.Slice) else []
            )
            at = [name for each in ends for n in ast.walk(each) if (name := _number(place, n))]
            if not at and (there := _one_place(place, node, parts, dim)):
                return there
            if not at:
                continue
            where, whole = at[0], with_all_of(place.source, node, [dim])
            if whole is None:
                return ""
            x, (along,) = whole
            keep = _kept(place, where)
            if isinstance(node.ctx, ast.Store) and isinstance(place.statement, ast.Assign):
                value, low = place.text(place.statement.value), getattr(part, "lower", None)
                if low is None or isinstance(place.statement.value, ast.Constant):
                    return ""
                wide = f"{place.source.bracketed(place.statement.value)}.shape[{along}]"
                wide = wide if x == place.text(node.value) else width_at(place.source, node, dim) or wide
                index = f"{place.text(low)} + torch.arange({wide}, device={place.device})"
                names = [name for name in picked_by(node) if type(place.value(name)) is not int]
                of_numbers = (
                    f" (`{'`, `'.join(names)}` as a number: of a tensor it would write to a copy)" if names else ""
                )
                return f"{keep}; here `{x}.index_copy_({along}, {index}, {value})`{of_numbers}"
            return (
                f"{keep}; read all of `{x}` and mask what has not been written: "
                f"`{_filled(place, part, f'torch.arange({x}.shape[{along}], device={place.device})')}`"
            )
    for call in place.calls("arange") if place.failure.code != "host-counter" else ():
        wide = width(place.source, call, *call.args) if len(call.args) == 2 else ""
        if wide and path_of(call.args[0]):
            options = "".join(f", {place.text(option)}" for option in call.keywords)
            return (
                f"`{place.text(call.args[0])}` is another number at each step: have it as a tensor that a step adds "
                f"to, `at = torch.zeros(1, dtype=torch.long, device={place.device})`, and write here "
                f"`at + torch.arange({wide}{options})`"
            )
    return ""


def _kept(place: Place, where: str) -> str:
    """The tensor that a place becomes, and the lines that begin it anew, in which a number would take its place."""
    keep = f"keep `{where}` as a tensor, `torch.zeros((), dtype=torch.long, device={place.device})`"
    name, own = where.rpartition(".")[2], place.source.function_of(place.statement)
    stores = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Attribute) and n.attr == name]
    kinds = {class_of(place.source.tree, f) for n in stores if (f := place.source.function_of(n)) is not None}
    if own is None or len(kinds - {"", class_of(place.source.tree, own)}) > 1:
        return keep  # attributes of several classes have that name
    for node in stores:
        line, function = place.source.statement_of(node), place.source.function_of(node)
        if not isinstance(line, ast.Assign) or line.targets != [node] or not isinstance(line.value, ast.Constant):
            continue
        if function is not None and function.name not in MAKERS and function is not own:
            filled = f"{place.text(node)}.fill_({place.text(line.value)})"
            keep += f"; line {line.lineno}, `{place.text(line)}`, becomes `{filled}`"
    return keep


def _is_gone_through(place: Place, node: ast.expr) -> bool:
    """Whether a loop has a round for each of what is cut: ``for layer in self.layers[: self.depth]``."""
    above = place.source.parents.get(node)
    while isinstance(above, ast.Call) and last_name(above.func) in ("enumerate", "reversed", "zip", "list"):
        node, above = above, place.source.parents.get(above)
    return isinstance(above, (ast.For, ast.comprehension)) and above.iter is node


def _number(place: Place, node: ast.AST) -> str:
    """How an object's number is written: ``self.pos``, or ``self.filled[0]`` of a list of them."""
    if not isinstance(node, ast.Attribute) or node.attr == "shape":
        return ""
    above = place.source.parents.get(node)
    is_of_list = (
        isinstance(above, ast.Subscript) and above.value is node and isinstance(above.slice, (ast.Constant, ast.Name))
    )
    return place.text(above) if is_of_list and isinstance(above, ast.Subscript) else path_of(node)


def _filled(place: Place, part: ast.expr, at: str) -> str:
    """Which places a slice has, of all."""
    lower, upper = (part.lower, part.upper) if isinstance(part, ast.Slice) else (None, None)
    tests = [f"{at} >= {place.text(lower)}"] if lower is not None and ast.unparse(lower) != "0" else []
    tests += [f"{at} < {place.text(upper)}"] if upper is not None else []
    return " & ".join(f"({test})" for test in tests) if len(tests) > 1 else "".join(tests)


def _one_place(place: Place, node: ast.Subscript, parts: list[ast.expr], dim: int) -> str:
    """``self.k[:, self.pos] = k``: an index that is a tensor would be read by the host."""
    where = path_of(parts[dim]) if isinstance(parts[dim], ast.Attribute) else ""
    whole = all(isinstance(p, ast.Slice) and not (p.lower or p.upper or p.step) for p in parts[:dim])
    selects = place.failure.code == "size-frozen" and place.failure.message.startswith("select got ")
    if not (where and whole and selects) or dim + 1 < len(parts):
        return ""
    keep = _kept(place, where)
    x, filled = place.text(node.value), _filled_ahead(place, where)
    if filled is not None:
        where, keep = filled
    if isinstance(node.ctx, ast.Store):
        if not isinstance(place.statement, ast.Assign) or isinstance(place.statement.value, ast.Constant):
            return ""
        value = place.text(place.statement.value)
        given = value if isinstance(place.statement.value, (ast.Name, ast.Attribute, ast.Call)) else f"({value})"
        written = f"{x}[{place.text(node.slice)}]"
        return (
            f"{keep}; here `{x}.index_copy_({dim}, {where}.reshape(1), "
            f"{given}.expand_as({x}.select({dim}, 0)).unsqueeze({dim}))` for `{written} = {value}`"
        )
    return f"{keep}; here `{x}.index_select({dim}, {where}.reshape(1)).squeeze({dim})` for `{place.text(node)}`"


def _filled_ahead(place: Place, path: str) -> tuple[str, str] | None:
    """A tensor for the place alone, where another line gives its number to the host's functions: it stays one."""
    line = counting_line(place, path) if is_asked(place, path) else None
    if line is None:
        return None
    name = fresh(f"{path.rpartition('.')[2]}_at", place.taken)
    when = "behind each launch" if line.lineno > place.statement.lineno else "before that"
    return name, (
        f"once `{name} = torch.zeros((), dtype=torch.long, device={place.device})`, before each launch "
        f"`{name}.fill_({path})`; line {line.lineno}, `{place.text(line)}`, belongs {when}"
    )


def _counts(place: Place, target: ast.expr) -> str:
    """``self.pos += t`` in a function that has ``self.pos`` as the end of a part."""
    function, path = place.source.function_of(place.statement), path_of(target)
    slices = (n for n in ast.walk(function) if isinstance(n, ast.Slice)) if function is not None else ()
    ends = {path_of(n) for each in slices for n in ast.walk(each) if isinstance(n, ast.Attribute)}
    picks = (n for n in ast.walk(function) if isinstance(n, ast.Subscript)) if function is not None else ()
    picks = (n for n in picks if not isinstance(place.attributes.get(last_name(n.value)), (list, tuple)))  # by numbers
    ends |= {path_of(part) for each in picks for part in getattr(each.slice, "elts", [each.slice])}
    is_of_list = isinstance(target, ast.Subscript) and isinstance(target.slice, (ast.Constant, ast.Name))
    named = place.text(target) if is_of_list else path
    if path not in ends:
        return ""
    if is_asked(place, path):
        reads = [n.lineno for n in ast.walk(function) if isinstance(n, ast.Attribute) and path_of(n) == path]  # type: ignore[arg-type]
        behind = all(line <= place.statement.lineno for line in reads)
        return f"belongs {'behind' if behind else 'before'} each launch: other lines read `{path}` from tensors there"
    return f"stays as it is once `{named}` is a tensor, to which it adds in place"
