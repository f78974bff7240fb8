"""Lines that use a place which is a tensor: ``cache[:, pos] = k`` and ``table[pos : pos + 1]``, written for the device.

What the host does with a number says the same with a tensor as long as it is arithmetic. An index of one element is
picked or put by a tensor of one element, a slice of a fixed width by ``pos + torch.arange(width)``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from paramgraph_kit.rewrite.caches.growths import Key
from paramgraph_kit.rewrite.caches.tracked import Index, Tracking
from paramgraph_kit.rewrite.source.edits import SIMPLE, Edit, Source, names_in, on_one_line, path_of, within
from paramgraph_kit.rewrite.source.place import called, fresh
from paramgraph_kit.rewrite.source.widths import parts_of, width, width_at

Text = Callable[[], str]
_TIGHTER = (ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Subscript)
_LONG = ("", "torch.long", "torch.int64")


class CannotError(Exception):
    """An expression that nothing can stand for; ``parts`` are those that have to stay as they are for it."""

    def __init__(self, message: str, parts: Collection[Key] = ()) -> None:
        super().__init__(message)
        self.parts = frozenset(parts)


class Texts:
    """Expressions and statements of a file with other texts, also one within another."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.new: dict[ast.AST, Text] = {}
        self.around: dict[ast.AST, list[Callable[[str], str]]] = {}
        self.falls = False  # a place may be counted down, to below 0
        self.left = frozenset[Key]()  # parts that stay as they are
        self._inside: set[ast.AST] = set()

    def text(self, node: ast.AST) -> str:
        """A node with all that is new in it."""
        if node in self.new and node not in self._inside:
            self._inside.add(node)
            try:
                found = self.new[node]()
            finally:
                self._inside.discard(node)
        else:
            found = self._assembled(node)
        for wrap in self.around.get(node, ()):
            found = wrap(found)
        return found

    def bracketed(self, node: ast.expr) -> str:
        """The same, so that ``.attribute`` can follow."""
        text = self.text(node)
        return text if isinstance(node, SIMPLE) and not isinstance(node, ast.Constant) else f"({text})"

    def edits(self) -> list[Edit]:
        """All that is new in the file, the outermost of what lies within one another."""
        known = [*self.new, *(node for node in self.around if node not in self.new)]
        return [
            self.source.replace(node, self.text(node))  # type: ignore[arg-type]
            for node in known
            if not any(above in self.new or above in self.around for above in self._above(node))
        ]

    def _above(self, node: ast.AST) -> Iterator[ast.AST]:
        above = self.source.parents.get(node)
        while above is not None:
            yield above
            above = self.source.parents.get(above)

    def _assembled(self, node: ast.AST) -> str:
        inner = list(self._new_below(node))
        if not inner:
            return self.source.text(node)
        place: Any = node
        lines = [line.encode() for line in self.source.lines[place.lineno - 1 : place.end_lineno]]
        lines[-1] = lines[-1][: place.end_col_offset]
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        text = b"".join(lines)

        def at(line: int, column: int) -> int:
            return starts[line - int(place.lineno)] + column

        for each in sorted(inner, key=lambda n: (n.lineno, n.col_offset), reverse=True):
            begin, end = at(each.lineno, each.col_offset), at(each.end_lineno, each.end_col_offset)
            text = text[:begin] + self.text(each).encode() + text[end:]
        found = text[place.col_offset :].decode()
        return on_one_line(found) if "\n" in found and not isinstance(node, ast.stmt) else found

    def _new_below(self, node: ast.AST) -> Iterator[Any]:
        for child in ast.iter_child_nodes(node):
            if child in self.new or child in self.around:
                yield child
            else:
                yield from self._new_below(child)


def numbers(texts: Texts, tracking: Tracking) -> None:
    """``min(n, size)`` of a place as ``n.clamp(max=size)``."""
    for key, limits in tracking.limits.items():
        node, known = tracking.node(key), {number for number, of in limits.items() if of & tracking.used}
        if known and isinstance(node, ast.Call) and len(node.args) == 2:
            texts.new[node] = _limited(texts, node, known)


def _limited(texts: Texts, node: ast.Call, known: set[int]) -> Text:
    def text() -> str:
        if len(known) > 1:
            return f"torch.{called(node)}imum({', '.join(map(texts.text, node.args))})"
        place = min(known)
        limit = "max" if called(node) == "min" else "min"
        return f"{texts.bracketed(node.args[place])}.clamp({limit}={texts.text(node.args[1 - place])})"

    return text


def choices(texts: Texts, tracking: Tracking) -> None:
    """``x[i - 1] if i > 0 else zeros`` as ``torch.where(i > 0, ...)``, where both are picked or made of numbers."""
    for key in tracking.asked:
        node = tracking.node(key)
        above = texts.source.parents.get(node) if node is not None else None
        if (
            not isinstance(above, ast.IfExp)
            or above.test is not node
            or not (_picks(above.body) and _picks(above.orelse))
        ):
            continue
        texts.new[above] = _chosen(texts, above)


def _picks(node: ast.expr) -> bool:
    """Whether an expression only picks something of a tensor, at one place, or makes one of numbers."""
    if isinstance(node, ast.Call):
        return called(node) in ("zeros", "ones", "full", "zeros_like", "ones_like", "full_like")
    ends = [part for n in ast.walk(node) if isinstance(n, ast.Slice) for part in (n.lower, n.upper) if part is not None]
    quiet = not any(isinstance(n, (ast.Call, ast.NamedExpr, ast.Await)) for n in ast.walk(node))
    return isinstance(node, (ast.Subscript, ast.Name, ast.Attribute)) and quiet and not ends


def _chosen(texts: Texts, node: ast.IfExp) -> Text:
    return lambda: f"torch.where({', '.join(map(texts.text, (node.test, node.body, node.orelse)))})"


def makers(texts: Texts, tracking: Tracking) -> None:
    """``torch.arange(p, p + t)``, ``torch.tensor([p])`` and ``torch.full((b, 1), p)`` of a place that is a tensor."""
    for key, name in tracking.makers.items():
        node = tracking.node(key)
        if not isinstance(node, ast.Call):
            continue
        if key in tracking.stacked and name in ("tensor", "as_tensor"):
            texts.new[node] = _stack(texts, node)
        elif (text := _maker(texts, node, name)) is not None:
            texts.new[node] = text


def _stack(texts: Texts, node: ast.Call) -> Text:
    """``torch.tensor(positions)`` of a list of tensors."""
    kind = next((texts.source.text(option.value) for option in node.keywords if option.arg == "dtype"), "")
    return lambda: f"torch.stack({texts.text(node.args[0])})" + (f".to({kind})" if kind not in _LONG else "")


def _maker(texts: Texts, node: ast.Call, name: str) -> Text | None:
    source, args = texts.source, node.args
    given = {option.arg: source.text(option.value) for option in node.keywords}
    if called(node) != name or None in given:
        return None
    kind = given.get("dtype", "")
    cast = f".to({kind})" if kind not in _LONG else ""
    if name == "arange" and len(args) == 2 and (wide := width(source, node, *args)):
        options = "".join(f", {source.text(option)}" for option in node.keywords)
        tight = isinstance(source.parents.get(node), _TIGHTER)
        return lambda: ("({})" if tight else "{}").format(f"{texts.text(args[0])} + torch.arange({wide}{options})")
    if name in ("tensor", "as_tensor", "new_tensor") and args:
        sizes, value = list[str](), args[0]
        while isinstance(value, ast.List) and len(value.elts) == 1:
            sizes, value = [*sizes, "1"], value.elts[0]
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) and isinstance(value.left, ast.List):
            if len(value.left.elts) != 1 or sizes:
                return None
            sizes, value = [source.text(value.right)], value.left.elts[0]
        if isinstance(value, (ast.List, ast.Tuple)):
            return None
        copy = f".repeat({', '.join(sizes)})" if sizes else ".clone()"
        return lambda: f"{texts.bracketed(value)}{copy}{cast}"
    if name in ("full", "new_full") and len(args) == 2 and isinstance(args[0], (ast.Tuple, ast.List)):
        sizes = [source.text(each) for each in args[0].elts]
        return lambda: f"{texts.bracketed(args[1])}.repeat({', '.join(sizes)}){cast}"
    if name == "full_like" and len(args) == 2:
        return lambda: f"(torch.zeros_like({texts.text(args[0])}) + {texts.bracketed(args[1])})"
    if name == "narrow" and len(args) == 3 and isinstance(node.func, ast.Attribute):
        x = texts.source.bracketed(node.func.value)
        at = _places(texts, args[1], texts.source.text(args[2]), x)
        return lambda: f"{x}.index_select({source.text(args[0])}, {at()})"
    if name == "select" and len(args) == 2 and isinstance(node.func, ast.Attribute):
        x, dim = texts.source.bracketed(node.func.value), source.text(args[0])
        return lambda: f"{x}.index_select({dim}, {texts.bracketed(args[1])}.reshape(1)).squeeze({dim})"
    return None


def _places(texts: Texts, low: ast.expr, wide: str, x: str) -> Text:
    """The places of a slice of a fixed width."""
    if wide == "1":
        return lambda: f"{texts.bracketed(low)}.reshape(1)"
    return lambda: f"{texts.text(low)} + torch.arange({wide}, device={x}.device)"


def indexes(texts: Texts, tracking: Tracking, left: Collection[Key] = ()) -> None:
    """All subscripts that a place is in, without those that are left as they are."""
    for key, index in tracking.indexes.items():
        node = tracking.node(key) if key not in left else None
        if not isinstance(node, ast.Subscript) or index.wrong or not (path_of(node.value) or _is_call(node.value)):
            if key in tracking.growths.parts and key not in left:
                raise CannotError(f"line {key.line} takes a part of what has no name", {key})
            continue
        if isinstance(node.ctx, ast.Load):
            _read_or_written(texts, node, index)
            continue
        statement = texts.source.parents.get(node)
        if isinstance(statement, ast.Tuple):
            _store_each(texts, tracking, statement)
        if isinstance(statement, ast.AugAssign) or (isinstance(statement, ast.Assign) and statement.targets == [node]):
            put = _store(texts, node, statement, index)
            if put is not None:
                texts.new[statement if put[0] else node] = put[1]


def _read_or_written(texts: Texts, node: ast.Subscript, index: Index) -> None:
    """``x[pos]``, and ``x[pos].copy_(v)``, which is another way to write ``x[pos] = v``."""
    source = texts.source
    method = source.parents.get(node)
    call = source.parents.get(method) if isinstance(method, ast.Attribute) else None
    known = isinstance(call, ast.Call) and isinstance(method, ast.Attribute) and call.func is method
    if not known or not isinstance(method, ast.Attribute) or not method.attr.endswith("_"):
        texts.new[node] = _load(texts, node, index)
    elif not isinstance(call, ast.Call):
        return
    elif method.attr in ("copy_", "zero_", "fill_") and isinstance(source.parents.get(call), ast.Expr):
        value = call.args[0] if call.args else ast.Constant(0)
        put = Index(index.shape, index.dtype, True, widths=index.widths, placed=index.placed)
        put.given = {(0, True, True) if method.attr == "copy_" else ()}
        stored = _store(texts, node, ast.Assign([node], value), put)
        if stored is not None and stored[0]:
            texts.new[call] = stored[1]


def _store_each(texts: Texts, tracking: Tracking, target: ast.Tuple) -> None:
    """``k[pos], v[pos] = a, b`` as one such line for each, where none reads what one before it has written."""
    source = texts.source
    statement = source.parents.get(target)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or statement in texts.new:
        return
    values = statement.value.elts if isinstance(statement.value, ast.Tuple) else []
    if len(values) != len(target.elts) or not all(isinstance(each, ast.Subscript) for each in target.elts):
        return
    lines, written = list[Text](), set[str]()
    for to, value in zip(target.elts, values, strict=True):
        known = {each: index for key, index in tracking.indexes.items() if (each := tracking.node(key)) is to}
        assert isinstance(to, ast.Subscript)
        one = ast.Assign([to], value)
        put = _store(texts, to, one, known[to]) if to in known and not known[to].wrong else None
        if put is None or written & {path_of(n) for n in ast.walk(value) if isinstance(n, ast.expr)}:
            return
        lines.append(put[1] if put[0] else _assigned(texts, put[1], value))
        written.add(path_of(to.value))
    texts.new[statement] = lambda: f"\n{source.indent(statement)}".join(line() for line in lines)


def _assigned(texts: Texts, target: Text, value: ast.expr) -> Text:
    return lambda: f"{target()} = {texts.text(value)}"


def _is_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and called(node) in ("unsqueeze", "transpose", "squeeze", "view")


def _kinds(texts: Texts, node: ast.Subscript, index: Index) -> list[str]:
    """What each part of a subscript is: "one" place, "wide" as its text says, a "part" that grows, or ""."""
    found = []
    for number, part in enumerate(parts_of(node)):
        if number not in index.placed:
            found.append("")
        elif isinstance(part, ast.Slice):
            always = len(index.widths.get(number, ())) < 2
            found.append("wide" if always and width_at(texts.source, node, number) else "part")
        else:
            found.append("one")
    return found


def _load(texts: Texts, node: ast.Subscript, index: Index) -> Text:
    kinds, parts = _kinds(texts, node, index), parts_of(node)
    x = texts.source.bracketed(node.value)
    if index.listed:
        return _beside_lists(texts, node, index)

    def text() -> str:
        shown, squeezed = list[str](), list[int]()
        for number, (kind, each) in enumerate(zip(kinds, parts, strict=True)):
            if kind == "one":
                shown.append(f"{texts.bracketed(each)}.reshape(1)")
                squeezed.append(_dim(parts, number))
            elif kind == "wide" and isinstance(each, ast.Slice) and each.lower is not None:
                shown.append(_places(texts, each.lower, width_at(texts.source, node, number), x)())
            else:
                shown.append(":" if kind == "part" else texts.text(each))
        if len(squeezed) > 1 and kinds.count("wide"):
            raise CannotError("places of two dimensions")
        whole = texts.bracketed(node.value) + _listed(shown)
        if not squeezed:
            return whole
        return f"{whole}[0]" if squeezed[0] == 0 else f"{whole}.squeeze({squeezed[0]})"

    return text


def _beside_lists(texts: Texts, node: ast.Subscript, index: Index) -> Text:
    """``x[rows, pos]``: a place that is a tensor of one element is spread over what lies beside it."""
    kinds, parts = _kinds(texts, node, index), parts_of(node)
    every = sorted({*index.listed, *(n for n, kind in enumerate(kinds) if kind)})
    if (
        {*kinds} - {"", "one"} or index.listed & index.placed or every != [*range(every[0], every[0] + len(every))]
    ):  # apart they go to the front
        raise CannotError("a list of places beside one that is not next to it")
    shown = {n for n, kind in enumerate(kinds) if kind}

    def text() -> str:
        each = (
            f"{texts.bracketed(part)}.reshape(1)" if n in shown else texts.text(part) for n, part in enumerate(parts)
        )
        return texts.bracketed(node.value) + _listed([*each])

    return text


def _listed(shown: Sequence[str]) -> str:
    shown = [] if set(shown) <= {":", "..."} else list(shown)
    while shown and shown[-1] == ":" and "..." not in shown:
        shown.pop()
    return f"[{', '.join(shown)}]" if shown else ""


def _dim(parts: Sequence[ast.expr], number: int) -> int:
    """The dimension of what is picked that a part is about, where it keeps its dimension."""

    def kept(part: ast.expr) -> bool:
        return isinstance(part, ast.Slice) or (isinstance(part, ast.Constant) and part.value is None)

    if any(isinstance(part, ast.Constant) and part.value is ... for part in parts[:number]):
        return -1 - sum(map(kept, parts[number + 1 :]))
    return sum(map(kept, parts[:number]))


def _store(
    texts: Texts, node: ast.Subscript, statement: ast.Assign | ast.AugAssign, index: Index
) -> tuple[bool, Text] | None:
    """What is put at a place: a text for the statement, or else for the subscript alone; None where there is none."""
    kinds, parts = _kinds(texts, node, index), parts_of(node)
    x, value = texts.source.bracketed(node.value), statement.value
    moved = [n for n, kind in enumerate(kinds) if kind]
    given = next(iter(index.given)) if len(index.given) == 1 else None
    if kinds.count("part") == len(moved) == 1 and given == () and isinstance(statement, ast.Assign):
        return True, _filled(texts, node, statement, index, moved[0])
    if isinstance(statement, ast.Assign) and moved and given and (many := _first_of(texts, node, statement, index)):
        return True, many
    if "part" in kinds or not moved or given is None:
        return None
    if index.listed:
        return False, _beside_lists(texts, node, index)
    subtracted = texts.falls or any(_may_be_negative(parts[n]) for n in moved)
    at, single = moved[0], kinds[moved[0]] == "one"
    dim = _dim(parts, at)
    rest = [":" if n == at else texts.source.text(each) for n, each in enumerate(parts)]
    view = x + _listed(rest)

    def places(number: int) -> str:
        part = parts[number]
        if not isinstance(part, ast.Slice):
            return f"{texts.bracketed(part)}.reshape(1)"
        assert part.lower is not None
        return _places(texts, part.lower, width_at(texts.source, node, number), x)()

    if isinstance(statement, ast.Assign) and len(moved) == 1 and not subtracted:
        if given == ():
            return True, lambda: f"{view}.index_fill_({dim}, {places(at)}, {texts.text(value)})"
        if given[1] and given[2]:
            more = f".unsqueeze({dim})" if single else ""
            put = texts.bracketed if more else texts.text
            return True, lambda: f"{view}.index_copy_({dim}, {places(at)}, {put(value)}{more})"
    spread = f".unsqueeze({dim})" if single and len(moved) == 1 and given and given[1] and dim != 0 else ""

    def text() -> str:
        return x + _listed([places(n) if n in moved else texts.text(each) for n, each in enumerate(parts)])

    if not spread:
        return False, text
    sign = "=" if isinstance(statement, ast.Assign) else f"{_sign(statement)}="
    return True, lambda: f"{text()} {sign} {texts.bracketed(value)}{spread}"


def _first_of(texts: Texts, node: ast.Subscript, statement: ast.Assign, index: Index) -> Text | None:
    """``x[p : p + n] = v[:n]`` of as many as a name says, which the device may find: all of ``x``, where they lie."""
    wide, parts, value = width_at(texts.source, node, 0), parts_of(node), statement.value
    cut = value.slice if isinstance(value, ast.Subscript) and path_of(value.value) else None
    if len(parts) > 1 or not isinstance(parts[0], ast.Slice) or not isinstance(cut, ast.Slice) or cut.step is not None:
        return None
    if texts.falls or _may_be_negative(parts[0]):
        return None  # the host counts those from the end
    if not path_of(node.value) or not _is_found_there(texts.source, node, wide):
        return None
    if cut.upper is None or not (cut.lower is None or _is_zero(cut.lower)) or texts.source.text(cut.upper) != wide:
        return None
    lower, first = parts[0].lower, value.value if isinstance(value, ast.Subscript) else value
    assert lower is not None
    x, v, function = path_of(node.value), path_of(first), texts.source.function_of(node)
    taken = names_in(function) | {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)} if function else set()

    def text() -> str:
        at = fresh("at", taken)
        begin = f"{at} = torch.arange({x}.shape[0], device={x}.device) - {texts.bracketed(lower)}"
        there = f"({at} >= 0) & ({at} < {wide})"
        rows = f"({there})[:{', None' * (len(index.shape) - 1)}]" if len(index.shape) > 1 else there
        put = f"{x}.copy_(torch.where({rows}, {v}[{at}.clamp(0, {v}.shape[0] - 1)], {x}))"
        return f"{begin}\n{texts.source.indent(texts.source.statement_of(node))}{put}"

    return text


def _is_found_there(source: Source, node: ast.Subscript, wide: str) -> bool:
    """Whether a width has a number that the function reads of the device."""
    function, names = source.function_of(node), names_in(ast.parse(wide))
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    made = [n.value for n in every if isinstance(n, ast.Assign) and any(path_of(t) in names for t in n.targets)]
    return any(isinstance(n, ast.Call) and called(n) in ("int", "item") for each in made for n in ast.walk(each))


def _may_be_negative(part: ast.expr) -> bool:
    """Whether something is taken off a place; ``k.shape[-2]`` takes nothing off."""
    begin = part.lower if isinstance(part, ast.Slice) else part
    every = list(ast.walk(begin)) if begin is not None else []
    shapes = [n for n in every if isinstance(n, ast.Subscript) and path_of(n.value).endswith(".shape")]
    sizes = [*shapes, *(n for n in every if isinstance(n, ast.Call) and called(n) in ("size", "len"))]
    inside = {n for each in sizes for n in ast.walk(each)}
    return any(isinstance(n, (ast.Sub, ast.USub)) for n in every if n not in inside)


def _sign(statement: ast.AugAssign) -> str:
    return {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}.get(type(statement.op), "+")


def _filled(texts: Texts, node: ast.Subscript, statement: ast.Assign, index: Index, at: int) -> Text:
    """``mask[:, :n] = 0`` as a filled mask of all that lies there."""
    parts, x = parts_of(node), texts.source.bracketed(node.value)
    part, dim = parts[at], _dim(parts, at)
    picked = sum(not isinstance(each, (ast.Slice, ast.Constant)) or _is_int(each) for each in parts)
    added = sum(isinstance(each, ast.Constant) and each.value is None for each in parts)
    behind = len(index.shape) - picked + added - 1 - dim if dim >= 0 else -1 - dim
    view = x + _listed([":" if n == at else texts.source.text(each) for n, each in enumerate(parts)])
    more = f"[:, {', '.join(['None'] * behind)}]" if behind else ""

    def text() -> str:
        assert isinstance(part, ast.Slice)
        places = f"torch.arange({view}.shape[{dim}], device={x}.device)"
        ends = [(">=", part.lower), ("<", part.upper)]
        tests = [f"{places} {sign} {texts.text(end)}" for sign, end in ends if end is not None and not _is_zero(end)]
        mask = " & ".join(f"({each})" for each in tests) if len(tests) > 1 else tests[0]
        return f"{view}.masked_fill_({f'({mask}){more}' if more else mask}, {texts.text(statement.value)})"

    return text


def _is_int(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0
