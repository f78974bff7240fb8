"""Rows in segments whose lengths the device has found: all rows are computed for each, and a mask takes its own.

``parts = x.split(counts.tolist())`` with ``torch.cat([experts[e](p) for e, p in enumerate(parts)])`` takes of each
expert's results those of its segment; so does a loop that cuts ``x[start:end]``. ``for e in hit.nonzero()`` goes
through all experts, where one that nobody has chosen adds nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from paramgraph_kit.rewrite.source.edits import Edit, Function, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, integer, target_of
from paramgraph_kit.rewrite.source.rowwise import has_rowwise_modules, is_rowwise

_HOST = ("tolist", "cpu", "numpy")
_PUTS = ("index_add_", "index_copy_")
_PLACES = ("where", "nonzero")
_LISTS = (list, tuple, torch.nn.ModuleList)  # which take a tensor of one number for it


def through_all_experts(place: Place) -> list[Edit]:
    """``hit = (mask.sum((1, 2)) > 0).nonzero()`` and ``for e in hit``, whose rounds add to rows that chose ``e``."""
    node, function = place.statement, place.source.function_of(place.statement)
    name = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(name, ast.Name) or function is None:
        return []
    of = _nonzero(node.value)
    every = [n for part in function.body for n in within(part)]
    reads = [n for n in every if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Load)]
    loop = place.source.statement_of(reads[0]) if len(reads) == 1 else None
    if of is None or not isinstance(loop, ast.For) or loop.iter is not reads[0] or loop.orelse:
        return []
    if not isinstance(loop.target, ast.Name) or not _adds_to_rows(place, function, loop):
        return []
    uses = _as_numbers(place, loop)
    if uses is None:
        return []
    of = of.left if isinstance(of, ast.Compare) and isinstance(of.comparators[0], ast.Constant) else of
    if isinstance(of, ast.Call) and path_of(of.func) in ("torch.greater", "torch.gt"):
        of = of.args[0] if isinstance(of.args[-1], ast.Constant) else of
    counted = place.source.replace(loop.iter, f"range(len({place.text(of)}))")
    return [*place.source.without_all([node]), counted, *uses]


def _nonzero(node: ast.expr) -> ast.expr | None:
    """``x`` of ``x.nonzero()`` and ``torch.nonzero(x)``, whose rows are asked for."""
    if not isinstance(node, ast.Call) or called(node) != "nonzero" or node.keywords:
        return None
    if path_of(node.func) == "torch.nonzero":
        return node.args[0] if len(node.args) == 1 else None
    return node.func.value if isinstance(node.func, ast.Attribute) and not node.args else None


def _as_numbers(place: Place, loop: ast.For) -> list[Edit] | None:
    """``e`` for ``e.item()``, ``e[0]``, ``int(e)`` and ``mask[e]`` for ``mask[e].squeeze(0)``; None for other uses."""
    assert isinstance(loop.target, ast.Name)
    name, edits = loop.target.id, list[Edit]()
    for use in (n for part in loop.body for n in within(part) if isinstance(n, ast.Name) and n.id == name):
        above = place.source.parents[use]
        over = place.source.parents.get(above)
        whole = place.source.parents.get(over) if over is not None else None
        if isinstance(above, ast.Attribute) and above.attr == "item" and isinstance(over, ast.Call):
            edits.append(place.source.replace(over, name))
        elif (isinstance(above, ast.Call) and path_of(above.func) == "int") or (
            isinstance(above, ast.Subscript) and above.value is use and integer(above.slice) == 0
        ):
            edits.append(place.source.replace(above, name))
        elif (
            isinstance(above, ast.Subscript)
            and above.slice is use
            and isinstance(over, ast.Attribute)
            and over.attr == "squeeze"
            and isinstance(whole, ast.Call)
            and [integer(each) for each in whole.args] == [0]
        ):
            edits.append(place.source.replace(whole, place.text(above)))
        elif not (isinstance(above, ast.Subscript) and isinstance(place.value(path_of(above.value)), _LISTS)):
            return None
    return edits


def _adds_to_rows(place: Place, function: Function, loop: ast.For) -> bool:
    """Whether a loop's rounds change only rows whose places they have found, and keep nothing else."""
    names, places = set[str](), set[str]()
    for part in loop.body:
        if isinstance(part, ast.Assign) and all(_plain(target) for target in part.targets):
            own = {n.id for target in part.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            names |= own
            if isinstance(part.value, ast.Call) and called(part.value) in _PLACES:
                places |= own
            continue
        call = part.value if isinstance(part, ast.Expr) else None
        if isinstance(call, ast.Call) and called(call) in _PUTS and len(call.args) == 3:
            if path_of(call.args[1]) not in places:
                return False
            continue
        target = part.targets[0] if isinstance(part, ast.Assign) else getattr(part, "target", None)
        if not isinstance(part, (ast.Assign, ast.AugAssign)) or not isinstance(target, ast.Subscript):
            return False
        if path_of(target.slice) not in places:
            return False
    inside = set(ast.walk(loop))
    outside = (n for part in function.body for n in within(part) if n not in inside)
    return bool(places) and not names & {n.id for n in outside if isinstance(n, ast.Name)}


def _plain(target: ast.expr) -> bool:
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return all(isinstance(each, ast.Name) for each in parts)


def of_each_segment(place: Place) -> list[Edit]:
    """``x.split(counts.tolist())``, and what goes through its parts."""
    node, function = place.statement, place.source.function_of(place.statement)
    name = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(name, ast.Name) or function is None:
        return []
    call = node.value
    if not isinstance(call, ast.Call) or called(call) != "split" or not isinstance(call.func, ast.Attribute):
        return []
    of_torch = path_of(call.func.value) == "torch"
    given = [*([] if of_torch else [call.func.value]), *call.args]
    if len(given) != 2 or any(o.arg != "dim" or integer(o.value) != 0 for o in call.keywords):
        return []
    counts = _there(place, function, given[1])
    every = [n for part in function.body for n in within(part)]
    reads = [n for n in every if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Load)]
    if counts is None or not reads:
        return []
    segments = _Segments(place, function, given[0], counts)
    edits = [edit for read in reads for edit in segments.through(read)]
    if segments.fails:
        return []
    return [place.source.replace(node, segments.lines(node)), *edits]


def of_each_cut(place: Place) -> list[Edit]:
    """``for i, n in enumerate(counts.tolist()): end = start + n``, and what is computed of ``x[start:end]``."""
    function = place.source.function_of(place.statement)
    if function is None:
        return []
    for loop in (n for part in function.body for n in within(part) if isinstance(n, ast.For)):
        given = loop.iter.args[-1] if isinstance(loop.iter, ast.Call) and loop.iter.args else loop.iter
        made = _made(place, function, given)
        counts = _there(place, function, given)
        if counts is None or place.statement not in (loop, made):
            continue
        cut = _cut(place, loop, given)
        if cut is None:
            continue
        x, gone = cut
        segments = _Segments(place, function, x, counts)
        edits = segments.of_rounds(loop, given, gone)
        if segments.fails:
            continue
        before = place.source.before(loop, segments.named())
        removed = [] if made is None or _is_read_elsewhere(function, made, given) else [made]
        return [before, *edits, *place.source.without_all([*gone, *removed])]
    return []


def _is_read_elsewhere(function: Function, made: ast.Assign, given: ast.expr) -> bool:
    names = {n.id for target in made.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    every = (n for part in function.body for n in within(part) if isinstance(n, ast.Name) and n.id in names)
    return sum(isinstance(n.ctx, ast.Load) for n in every) > (path_of(given) in names)


def _made(place: Place, function: Function, node: ast.expr) -> ast.Assign | None:
    """The only line that gives a name its value."""
    every = [n for part in function.body for n in within(part)]
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == path_of(node) and isinstance(n.ctx, ast.Store)]
    found = place.source.statement_of(stores[0]) if len(stores) == 1 else None
    return found if isinstance(found, ast.Assign) and found.targets == stores else None


def _there(place: Place, function: Function, node: ast.expr) -> ast.expr | None:
    """``counts`` of ``counts.tolist()``, and of a name that stands for ``counts.cpu().numpy()``."""
    made = _made(place, function, node) if isinstance(node, ast.Name) else None
    value, read = made.value if made is not None else node, False
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and called(value) in _HOST:
        value, read = value.func.value, True
    return value if read and isinstance(value, (ast.Name, ast.Attribute)) else None


def _cut(place: Place, loop: ast.For, given: ast.expr) -> tuple[ast.expr, list[ast.stmt]] | None:
    """What a loop cuts into segments, and the lines that count them."""
    number = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
    if not isinstance(number, ast.Name) or loop.orelse:
        return None
    gone, ends, starts = list[ast.stmt](), set[str](), set[str]()
    for part in loop.body:
        if isinstance(part, ast.If) and number.id in names_in(part.test):
            if len(part.body) != 1 or not isinstance(part.body[0], ast.Continue) or part.orelse:
                return None
            gone.append(part)  # what has no rows gives none
        elif isinstance(part, ast.Assign) and isinstance(part.value, ast.BinOp) and isinstance(part.value.op, ast.Add):
            both = {path_of(part.value.left), path_of(part.value.right)}
            if number.id in both and isinstance(part.targets[0], ast.Name):
                gone.append(part)
                ends.add(part.targets[0].id)
                starts |= both - {number.id}
        elif isinstance(part, ast.Assign) and path_of(part.value) in ends and path_of(part.targets[0]) in starts:
            gone.append(part)
        elif isinstance(part, ast.AugAssign) and path_of(part.value) == number.id:
            gone.append(part)
            starts.add(path_of(part.target))
    cuts = []
    for node in (n for part in loop.body if part not in gone for n in within(part)):
        if isinstance(node, ast.Slice):
            above = place.source.parents[node]
            low, high = node.lower, node.upper
            whole = high is not None and (path_of(high) in ends or place.text(high) in _sums(starts, number.id))
            if not isinstance(above, ast.Subscript) or low is None or path_of(low) not in starts or not whole:
                return None
            cuts.append(above)
    texts = {place.text(each.value) for each in cuts}
    left = [n for each in loop.body if each not in gone for n in within(each) if isinstance(n, ast.Name)]
    inside = {n for each in cuts for n in ast.walk(each.slice)}
    if len(texts) != 1 or any(n.id in {*ends, *starts, number.id} and n not in inside for n in left):
        return None
    return (cuts[0].value, gone) if len(starts) == 1 else None


def _sums(starts: set[str], number: str) -> set[str]:
    return {f"{each} + {number}" for each in starts} | {f"{number} + {each}" for each in starts}


class _Segments:
    """Rows, how many of them are in each segment, and edits of what is computed of each."""

    def __init__(self, place: Place, function: Function, x: ast.expr, counts: ast.expr) -> None:
        self.place, self.function, self.x = place, function, x
        taken = names_in(place.source.tree)
        self.rows = place.text(x) if isinstance(x, ast.Name) else fresh("rows", taken)
        self.counts, self.inside, self.one = place.text(counts), fresh("inside", taken), fresh("own", taken)
        self.fails = False

    def named(self) -> list[str]:
        """The lines that say which row is in which segment."""
        first = [] if self.place.text(self.x) == self.rows else [f"{self.rows} = {self.place.text(self.x)}"]
        x, counts = self.rows, self.counts
        at = f"torch.searchsorted({counts}.cumsum(0), torch.arange(len({x}), device={x}.device), right=True)"
        return [*first, f"{self.inside} = {at} == torch.arange(len({counts}), device={x}.device)[:, None]"]

    def lines(self, node: ast.stmt) -> str:
        return f"\n{self.place.source.indent(node)}".join(self.named())

    def through(self, read: ast.Name) -> list[Edit]:
        """Edits where parts are gone through."""
        source = self.place.source
        above = source.parents[read]
        if isinstance(above, ast.Call) and called(above) in ("enumerate", "zip") and above.args[-1] is read:
            above = source.parents[above]
        if isinstance(above, ast.comprehension):
            comp = source.parents[above]
            plain = isinstance(comp, (ast.ListComp, ast.GeneratorExp)) and len(comp.generators) == 1 and not above.ifs
            target = above.target.elts[-1] if isinstance(above.target, ast.Tuple) else above.target
            if plain and isinstance(comp, (ast.ListComp, ast.GeneratorExp)) and isinstance(target, ast.Name):
                uses = [n for n in ast.walk(comp.elt) if isinstance(n, ast.Name) and n.id == target.id]
                over = _renamed(self.place.text(above.iter), read.id, self.inside)
                each = f"for {_renamed(self.place.text(above.target), target.id, self.one)} in {over}"
                if self._is_rowwise([comp.elt], uses, _pairs(above)):
                    return self._joined(comp, f"[{self._chosen(comp.elt, uses)} {each}]")
                return [source.replace(comp, f"[{self._picked(comp.elt, target.id)} {each}]")]
        elif isinstance(above, ast.For):
            target = above.target.elts[-1] if isinstance(above.target, ast.Tuple) else above.target
            if isinstance(target, ast.Name):
                edits = self._appended(above, target.id)
                return [source.replace(read, self.inside), source.replace(target, self.one), *edits]
        self.fails = True
        return []

    def of_rounds(self, loop: ast.For, given: ast.expr, gone: Sequence[ast.stmt]) -> list[Edit]:
        """Edits of a loop that cuts the segments itself."""
        source = self.place.source
        target = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
        named = [source.replace(given, self.inside), source.replace(target, self.one)]
        return [*named, *self._appended(loop, "", gone)]

    def _appended(self, loop: ast.For, name: str, gone: Sequence[ast.stmt] = ()) -> list[Edit]:
        """``outs.append(expert(part))`` takes of all rows the segment's, and ``torch.cat(outs)`` adds them up."""
        source, edits = self.place.source, list[Edit]()
        body = [part for part in loop.body if part not in gone]
        known = _pairs(loop)
        rows, uses, values, lists = {name} - {""}, list[ast.expr](), list[ast.expr](), list[str]()

        def is_row(node: ast.AST) -> bool:
            cut = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
            return cut or (isinstance(node, ast.Name) and node.id in rows and isinstance(node.ctx, ast.Load))

        for part in body:
            own = target_of(part)
            call = part.value if isinstance(part, ast.Expr) else None
            if isinstance(part, ast.Assign) and isinstance(own, ast.Name):
                if isinstance(part.value, ast.Subscript) and not is_row(part.value):
                    known[own.id] = path_of(part.value.value)
                if any(map(is_row, ast.walk(part.value))):
                    values.append(part.value)
                    rows.add(own.id)
            elif isinstance(call, ast.Call) and called(call) == "append" and isinstance(call.func, ast.Attribute):
                values.append(call.args[0])
                lists.append(path_of(call.func.value))
                text = self._chosen(call.args[0], [n for n in ast.walk(call.args[0]) if self._is_part(n, name)])
                edits.append(source.replace(call.args[0], text))
            else:
                self.fails = True
        uses = [n for value in values for n in ast.walk(value) if isinstance(n, ast.expr) and is_row(n)]
        self.fails |= len(lists) != 1 or not self._is_rowwise(values, uses, known)
        for part in body:
            if isinstance(part, ast.Assign):
                parts = [n for n in ast.walk(part.value) if isinstance(n, ast.expr) and self._is_part(n, name)]
                edits += [source.replace(n, self.rows) for n in parts]
        every = [n for each in self.function.body for n in within(each)]
        joins = [n for n in every if isinstance(n, ast.Call) and self._joins(n, lists)]
        self.fails |= len(joins) != 1
        return [*edits, *(source.replace(n, f"torch.stack({lists[0]}).sum(0)") for n in joins)]

    def _is_part(self, node: ast.AST, name: str) -> bool:
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            return True
        return bool(name) and isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)

    def _joins(self, node: ast.AST, lists: Sequence[str]) -> bool:
        joins = isinstance(node, ast.Call) and path_of(node.func) in ("torch.cat", "torch.concat")
        return joins and isinstance(node, ast.Call) and path_of(node.args[0]) in lists and _along_rows(node)

    def _picked(self, node: ast.expr, name: str) -> str:
        return _renamed(self.place.text(node), name, f"{self.rows}[{self.one}]")

    def _joined(self, comp: ast.expr, text: str) -> list[Edit]:
        """``torch.cat`` of a list, where it is made or by its name."""
        source = self.place.source
        above = source.parents[comp]
        if isinstance(above, ast.Call) and self._joins_all(above):
            return [source.replace(above, f"torch.stack({text}).sum(0)")]
        name = path_of(above.targets[0]) if isinstance(above, ast.Assign) else ""
        every = [n for each in self.function.body for n in within(each)]
        joins = [n for n in every if isinstance(n, ast.Call) and self._joins(n, [name])]
        reads = [n for n in every if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
        self.fails |= len(joins) != 1 or len(reads) != 1 or not name
        return [source.replace(comp, text), *(source.replace(n, f"torch.stack({name}).sum(0)") for n in joins)]

    def _joins_all(self, call: ast.Call) -> bool:
        return path_of(call.func) in ("torch.cat", "torch.concat") and len(call.args) == 1 and not call.keywords

    def _chosen(self, node: ast.expr, uses: Sequence[ast.AST]) -> str:
        """A segment's results among those of all rows, and zeros elsewhere."""
        text = self.place.text(node)
        for each in sorted({self.place.text(use) for use in uses}, key=len, reverse=True):
            text = _renamed(text, each, self.rows)
        form = self.place.tensors.get(self.rows)
        flat = form is not None and len(form.shape) == 2
        mask = f"{self.one}[:, None]" if flat else f"{self.one}.view(-1, *[1] * ({self.rows}.dim() - 1))"
        return f"torch.where({mask}, {text}, 0)"

    def _is_rowwise(self, values: Sequence[ast.expr], uses: Sequence[ast.AST], known: dict[str, str]) -> bool:
        """Whether each row of a segment's results is that of its own row alone."""
        for value in values:
            for call in (n for n in ast.walk(value) if isinstance(n, ast.Call)):
                path = path_of(call.func.value) if isinstance(call.func, ast.Subscript) else ""
                path = path or known.get(path_of(call.func), "")
                if path and has_rowwise_modules(self.place, path) and len(call.args) == 1:
                    continue
                if not is_rowwise(self.place, call, uses.__contains__):
                    return False
        return True


def _renamed(text: str, old: str, new: str) -> str:
    tree = ast.parse(text, mode="eval")
    places = [n for n in ast.walk(tree) if isinstance(n, ast.expr) and ast.unparse(n) == ast.unparse(ast.parse(old))]
    for node in sorted(places, key=lambda n: -n.col_offset):
        text = text[: node.col_offset] + new + text[node.end_col_offset :]
    return text


def _along_rows(call: ast.Call) -> bool:
    given = [*call.args[1:], *(o.value for o in call.keywords if o.arg == "dim")]
    return all(integer(each) == 0 for each in given)


def _pairs(loop: ast.For | ast.comprehension) -> dict[str, str]:
    """``{"expert": "experts"}`` of ``for expert, part in zip(experts, parts)``."""
    over, target = loop.iter, loop.target
    if not isinstance(over, ast.Call) or called(over) != "zip" or not isinstance(target, ast.Tuple):
        return {}
    pairs = zip(target.elts, over.args, strict=False)
    return {path_of(one): path_of(other) for one, other in pairs if path_of(one) and path_of(other)}
