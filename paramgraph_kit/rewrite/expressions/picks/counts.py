"""Counts of what a mask picks, and the largest of it: all is counted and sorted, and the mask says what of it counts.

``torch.bincount(n * y[keep] + p[keep], minlength=n * n)`` adds zeros for the others, and of
``x[keep].sort(descending=True)[0][:k].sum()`` the others stand at the end, where none of them is added.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.expressions.numbers.filled import on_device
from paramgraph_kit.rewrite.expressions.picks.shapes import MASKS, form_of
from paramgraph_kit.rewrite.source.edits import Edit, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, binds_tighter, called, integer
from paramgraph_kit.rewrite.source.rowwise import is_rowwise


def count_those_kept(place: Place) -> list[Edit]:
    """``torch.bincount(x[mask], minlength=n)`` counts all of ``x``, and adds 0 where the mask has nothing."""
    found = []
    for call in place.calls("bincount"):
        given = {option.arg: place.text(option.value) for option in call.keywords}
        if len(call.args) != 1 or given.keys() != {"minlength"}:
            continue
        picked = [n for n in ast.walk(call.args[0]) if isinstance(n, ast.Subscript)]
        masks = {place.text(each.slice) for each in picked}
        if len(masks) != 1 or not all(isinstance(each.slice, MASKS) for each in picked):
            continue
        one = form_of(place, picked[0].slice)
        forms = [form_of(place, each.value) for each in picked]
        if one is None or any(form is None or form.shape != one.shape for form in forms):
            continue
        if not is_rowwise(place, call.args[0], picked.__contains__):
            continue
        mask, text, flat = masks.pop(), place.text(call.args[0]), ".flatten()" * (len(one.shape) > 1)
        for each in picked:
            text = text.replace(place.text(each), place.source.bracketed(each.value))
        kept = place.source.bracketed(picked[0].slice)
        device = f"{place.source.bracketed(picked[0].value)}.device"
        zeros = f"torch.zeros({given['minlength']}, dtype=torch.long, device={device})"
        index = f"torch.where({mask}, {text}, 0){flat}.long()"
        found.append(place.source.replace(call, f"{zeros}.scatter_add_(0, {index}, {kept}{flat}.long())"))
    return found


def add_up_the_largest(place: Place) -> list[Edit]:
    """``x[mask].sort(descending=True)[0][:k].sum()`` and ``x[mask].topk(k)[0].mean()``, also in several lines."""
    return next((edits for lines, _, edits in _chains(place) if place.statement in lines), [])


def add_up_as_many(place: Place) -> list[Edit]:
    """The same of the line that reads ``k`` from the device: it stays there."""
    node = place.statement
    targets = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for _, numbers, edits in _chains(place):
        if any(isinstance(n, (ast.USub, ast.Sub)) for n in ast.walk(node)):
            continue  # below zero it would count from the end
        there = on_device(place, node.value) if targets & numbers and isinstance(node, ast.Assign) else None
        if there is not None and isinstance(node, ast.Assign):
            return [place.source.replace(node.value, there[0]), *edits]
    return []


def _chains(place: Place) -> Iterator[tuple[list[ast.stmt], set[str], list[Edit]]]:
    """The lines of each such sum, the names that say how many it adds, and what is written for it."""
    function = place.source.function_of(place.statement)
    for call in (n for part in (function.body if function is not None else ()) for n in within(part)):
        if not isinstance(call, ast.Call) or called(call) not in ("sum", "mean") or call.args or call.keywords:
            continue
        if not isinstance(call.func, ast.Attribute):
            continue
        chain = _Chain(place, place.source.statement_of(call))
        found = chain.of(call.func.value)
        if found is None:
            continue
        x, mask, falls, most = found
        bracketed, kept = place.source.bracketed(x), place.source.bracketed(mask)
        others = f"~{kept}"
        if isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
            others = place.text(mask.operand)
        last = "-torch.inf" if falls else "torch.nan"  # which is behind all others, and infinite ones are not
        ranked = f"{bracketed}.masked_fill({others}, {last}).sort(descending={falls}).values"
        number = _fewer(place, most, f"{kept}.sum()")
        at = f"torch.arange(len({place.text(x)}), device={bracketed}.device)"
        text = f"torch.where({at} < {number}, {ranked}, 0).sum()"
        if called(call) == "mean":
            text += f" / {number}"
            text = f"({text})" if binds_tighter(place.source, call) else text
        edits = [place.source.replace(call, text), *place.source.without_all(chain.gone)]
        yield [*chain.gone, chain.end], {name for each in most for name in names_in(each)}, edits


def _fewer(place: Place, most: list[ast.expr], count: str) -> str:
    """How many are added, which are no more than there are."""
    for each in most:
        count = f"{count}.clamp(max={place.text(each)})"  # a number, or a tensor with one
    return count


class _Chain:
    """What a sum is of, through names that stand for one step of it each."""

    def __init__(self, place: Place, end: ast.stmt) -> None:
        self.place, self.end = place, end
        self.gone: list[ast.stmt] = []  # the lines of those names
        self.firsts: set[ast.expr] = set()  # of what comes with something else: the values of a sort

    def of(self, node: ast.expr) -> tuple[ast.expr, ast.expr, bool, list[ast.expr]] | None:
        """The tensor, its mask, whether it is sorted downwards, and numbers of which each cuts it."""
        most: list[ast.expr] = []
        node = self._through(node)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            if node.slice.lower is not None or node.slice.step is not None or node.slice.upper is None:
                return None
            most.append(node.slice.upper)
            node = self._through(node.value)
        call = self._first(node)
        if call is None:
            return None
        of_torch = path_of(call.func) in ("torch.sort", "torch.topk")
        given = call.args[1:] if of_torch else call.args
        options = {str(o.arg): o.value for o in call.keywords}
        if called(call) == "topk":
            if options.keys() - {"k", "sorted"} or len(given) + ("k" in options) != 1:
                return None
            most.append(options["k"] if "k" in options else given[0])
        elif given or options.keys() - {"descending"} or not most:
            return None
        descending = options.get("descending")
        falls = called(call) == "topk" or (isinstance(descending, ast.Constant) and descending.value is True)
        inner = call.args[0] if of_torch else call.func.value if isinstance(call.func, ast.Attribute) else None
        part = self._through(inner) if inner is not None else None
        if not isinstance(part, ast.Subscript) or not isinstance(part.slice, MASKS):
            return None
        if any(isinstance(n, (ast.USub, ast.Sub)) for each in most for n in ast.walk(each)):
            return None  # below zero it would count from the end
        forms = form_of(self.place, part.value), form_of(self.place, part.slice)
        if forms[0] is None or forms[1] is None or len(forms[0].shape) != 1 or forms[0].shape != forms[1].shape:
            return None
        return part.value, part.slice, falls, most

    def _first(self, node: ast.expr) -> ast.Call | None:
        """``x.sort()`` of ``x.sort()[0]`` and ``x.sort().values``, and of a name that is the first of its results."""
        picks = isinstance(node, ast.Subscript) and integer(node.slice) == 0
        if isinstance(node, (ast.Subscript, ast.Attribute)) and (picks or getattr(node, "attr", "") == "values"):
            node = self._through(node.value)
            if node in self.firsts:
                return None
        elif node not in self.firsts:
            return None
        return node if isinstance(node, ast.Call) and called(node) in ("sort", "topk") else None

    def _through(self, node: ast.expr) -> ast.expr:
        """What a name stands for that only the next step of the chain reads."""
        made = self._made(node) if isinstance(node, ast.Name) else None
        if made is None:
            return node
        self.gone.append(made)
        if isinstance(made.targets[0], ast.Tuple):
            self.firsts.add(made.value)
        return self._through(made.value)

    def _made(self, name: ast.Name) -> ast.Assign | None:
        """The line of the same block that gives a name its value, where nobody else reads it."""
        last = self.gone[-1] if self.gone else self.end
        block = self.place.source.block_of(last)
        for node in reversed(block[: block.index(last)]):
            stored = [n.id for n in within(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            if name.id not in stored:
                continue
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                return None
            target = node.targets[0]
            first = target.elts[0] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else target
            if not isinstance(first, ast.Name) or first.id != name.id or not self._reads(set(stored), node, name):
                return None
            return node
        return None

    def _reads(self, names: set[str], made: ast.stmt, name: ast.Name) -> bool:
        """Whether one name alone reads what a statement gives some, until they have another value."""
        function = self.place.source.function_of(made)
        every = [n for n in ast.walk(function or made) if isinstance(n, ast.Name) and n.id in names]
        behind = [n for n in every if n.lineno > made.lineno]
        again = [n.lineno for n in behind if isinstance(n.ctx, ast.Store) and n.id == name.id]
        end = min(again, default=behind[-1].lineno if behind else 0)
        loaded = [n for n in behind if isinstance(n.ctx, ast.Load) and n.lineno <= max(end, name.lineno)]
        if not again:
            loaded = [n for n in behind if isinstance(n.ctx, ast.Load)]
        return loaded == [name]
