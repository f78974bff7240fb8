"""A source text, its syntax, and edits of it that keep the formatting of everything else."""

from __future__ import annotations

import ast
import difflib
import io
import linecache
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from paramgraph_kit.doctor import cell
from paramgraph_kit.doctor.explain.syntax import children, tree_of, walk
from paramgraph_kit.doctor.explain.syntax import first_line as first_line
from paramgraph_kit.driver.files import display_name

COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
SIMPLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.Tuple, ast.List)
Function = ast.FunctionDef | ast.AsyncFunctionDef
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Text in the place of what lies between two positions: lines from 1, columns in characters."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str = field(compare=False)
    rank: int = 0  # of two at one place, which comes first
    keeps: tuple[str, ...] | None = field(default=None, compare=False)  # of the names that a ``global`` lists

    def overlaps(self, other: Edit) -> bool:
        """Whether only one of two edits can be made, and they are not the same."""
        begin, end = (self.line, self.column), (self.end_line, self.end_column)
        start, last = (other.line, other.column), (other.end_line, other.end_column)
        same = (begin, end, self.text) == (start, last, other.text)
        same = same or (self.keeps is not None and other.keeps is not None)  # both shorten it
        return not same and max(begin, start) < min(end, last)


class Source:
    """One file of the user's, or a cell of a notebook."""

    def __init__(self, file: str, tree: ast.Module) -> None:
        self.file = file
        self.tree = tree
        self.lines: list[str] = [line if line.endswith("\n") else f"{line}\n" for line in linecache.getlines(file)]
        self.parents = _parents(tree)

    @classmethod
    def of(cls, file: str) -> Source | None:
        """The source of a file, or None where it cannot be read."""
        tree = tree_of(file)
        if tree is not None and cell.is_made_of(file):
            tree = cell.parsed("".join(linecache.getlines(file)), file)
        return cls(file, tree) if tree is not None else None

    def all_of(self, lines: Iterable[str]) -> Edit:
        """Other lines in the place of all."""
        return Edit(1, 0, len(self.lines) + 1, 0, "".join(lines))

    def edited(self, edits: Iterable[Edit]) -> Source:
        """The same with edits in it, which are written nowhere."""
        lines = self.apply(edits)
        other = Source(self.file, cell.parsed("".join(lines), self.file))
        other.lines = lines
        return other

    def text(self, node: ast.AST) -> str:
        """A node as it is written; one that was made has no place, and is written out.

        What is no statement comes on one line, for it may go where no brackets are around it.
        """
        place: Any = node
        if getattr(place, "end_lineno", None) is None:
            return ast.unparse(node)
        # By itself: ast.get_source_segment splits the whole file for each node, of which there are thousands.
        lines = [line.encode() for line in self.lines[place.lineno - 1 : place.end_lineno]]
        lines[-1] = lines[-1][: place.end_col_offset]
        lines[0] = lines[0][place.col_offset :]
        text = b"".join(lines).decode() or ast.unparse(node)
        return on_one_line(text) if "\n" in text and not isinstance(node, ast.stmt) else text

    def bracketed(self, node: ast.expr) -> str:
        """The same, so that ``.attribute`` can follow."""
        text = self.text(node)
        return text if isinstance(node, SIMPLE) and not _is_number(node) else f"({text})"

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement of a line; of a compound one, only where the line is in its head."""
        best: ast.stmt | None = None
        for node in self.parents:
            if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or node.lineno):
                continue
            if isinstance(node, COMPOUND) and line >= min(part.lineno for part in node.body):
                continue
            if best is None or node.lineno >= best.lineno:
                best = node
        return best

    def function_of(self, node: ast.AST) -> Function | None:
        """The function around a node."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, Function):
            above = self.parents.get(above)
        return above

    def above(self, node: ast.AST) -> Iterator[ast.stmt]:
        """The statements around a node, up to its function."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, Function):
            if isinstance(above, ast.stmt):
                yield above
            above = self.parents.get(above)

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The statement that a node is, or is a part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def outermost(self, node: ast.AST) -> ast.stmt:
        """The statement of the module that a node is in."""
        while not isinstance(self.parents.get(node), ast.Module):
            node = self.parents[node]
        assert isinstance(node, ast.stmt)
        return node

    def indent(self, node: ast.stmt) -> str:
        """The white space before a statement."""
        line: str = self.lines[first_line(node) - 1]
        return line[: len(line) - len(line.lstrip())]

    # edits

    def replace(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        """A node written anew; what stands for an ``elif`` stays in its branch."""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        column, line = self._column(node.lineno, node.col_offset), self.lines[node.lineno - 1]
        if isinstance(node, ast.If) and line.startswith("elif", column) and not text.startswith(("elif ", "else:")):
            deeper = f"\n{self.indent(node)}    "
            text = f"else:{deeper}" + text.replace(deeper[:-4], deeper)
        return Edit(node.lineno, column, end_line, self._column(end_line, end_column), text)

    def before(self, node: ast.stmt, lines: Iterable[str], rank: int = 0) -> Edit:
        """New lines before a statement, as deep as it is; in its line, where it is not the first there."""
        at, lines = first_line(node), list(lines)
        if column := self._shared(node):
            return Edit(at, column, at, column, "".join(f"{line}; " for line in lines), rank)
        return Edit(at, 0, at, 0, "".join(f"{self.indent(node)}{line}".rstrip() + "\n" for line in lines), rank)

    def after(self, node: ast.stmt, lines: Iterable[str]) -> Edit:
        """New lines after a statement, as deep as it is; in its line, where others are around it there."""
        at, lines = (node.end_lineno or node.lineno) + 1, list(lines)
        if self._shared(node) and not self._ends_line(node):
            column = self._column(at - 1, node.end_col_offset or 0)
            return Edit(at - 1, column, at - 1, column, "".join(f"; {line}" for line in lines))
        text = "".join(f"{self.indent(node)}{line}".rstrip() + "\n" for line in lines)
        return Edit(at, 0, at, 0, text, isinstance(node, Function))

    def _shared(self, node: ast.stmt) -> int:
        """The column at which a statement begins, if others are before it in its line; else 0."""
        column = self._column(node.lineno, node.col_offset)
        decorated = first_line(node) != node.lineno
        return column if not decorated and self.lines[node.lineno - 1][:column].strip() else 0

    def _ends_line(self, node: ast.stmt) -> bool:
        """Whether a statement is the last of those in its line, of which the first begins it."""
        row = [each for each in self.block_of(node) if each.lineno == node.lineno]
        return row[-1] is node and not self._shared(row[0])

    def without(self, node: ast.stmt, gone: Sequence[ast.stmt] = ()) -> Edit:
        """A statement taken out, of its line with others too; a block that would be empty keeps ``pass``.

        ``gone``: what is taken out with it.
        """
        siblings = self.block_of(node)
        last = node.end_lineno or node.lineno
        if self.shares_lines(node):
            return self._without_part(node, siblings, gone)
        text = f"{self.indent(node)}pass\n" if len(siblings) == 1 else ""
        return Edit(first_line(node), 0, last + 1, 0, text)

    def shares_lines(self, node: ast.stmt) -> bool:
        """Whether another statement, or the head of its block, is in a line of a statement."""
        last = node.end_lineno or node.lineno
        others = [self.parents[node], *(each for each in self.block_of(node) if each is not node)]
        return any(node.lineno in (line, end) or last == line for line, end in map(_ends, others))

    def _without_part(self, node: ast.stmt, siblings: Sequence[ast.stmt], gone: Sequence[ast.stmt]) -> Edit:
        """A statement taken out of a line that has others, with the semicolon between them."""
        number, edit = siblings.index(node), self.replace(node, "pass")
        beside = [each for each in siblings[number + 1 :] if each.lineno == edit.end_line]
        if beside and not all(each in gone for each in beside):
            first = beside[0]
            return replace(edit, text="", end_column=self._column(first.lineno, first.col_offset))
        before = siblings[number - 1] if number else None
        if before is None or not before.lineno == before.end_lineno == node.lineno:
            return edit
        return replace(edit, text="", column=self._column(node.lineno, before.end_col_offset or 0))

    def without_all(self, nodes: Sequence[ast.stmt]) -> list[Edit]:
        """Statements taken out together; a block of which none is left keeps ``pass``."""
        nodes = list(dict.fromkeys(self._with_context(node, nodes) for node in nodes))
        edits = [self._without_line(node, nodes) or self.without(node, nodes) for node in nodes]
        for block in (part for each in nodes for part in self._blocks(self.parents[each]) if part and each is part[-1]):
            if len(block) > 1 and all(each in nodes for each in block):
                edits.append(self.before(block[-1], ["pass"], rank=-2))
        return edits

    def _without_line(self, node: ast.stmt, nodes: Sequence[ast.stmt]) -> Edit | None:
        """A line taken out of which all statements are; None for a statement that has its lines for itself."""
        block = next((row for row in self._blocks(self.parents[node]) if node in row), [])
        lines = {first_line(node), node.end_lineno or node.lineno}
        own = [each for each in block if lines & {first_line(each), each.end_lineno or each.lineno}]
        alone = all(first_line(each) == (each.end_lineno or each.lineno) for each in own) and len(lines) == 1
        head = self.lines[node.lineno - 1][: self._column(own[0].lineno, own[0].col_offset)] if own else "-"
        if len(own) < 2 or not alone or head.strip() or not all(each in nodes for each in own):
            return None
        return Edit(first_line(node), 0, first_line(node) + 1, 0, "")

    def _with_context(self, node: ast.stmt, nodes: Sequence[ast.stmt]) -> ast.stmt:
        """The ``with torch.no_grad()`` around a statement, where all that is in it is taken out."""
        above = self.parents[node]
        texts = [self.text(item.context_expr) for item in above.items] if isinstance(above, ast.With) else []
        if not isinstance(above, ast.With) or not all(map(about_gradients, texts)):
            return node
        return above if all(each in nodes for each in above.body) else node

    def block_of(self, node: ast.stmt) -> list[ast.stmt]:
        """The statements among which one stands."""
        return next((row for row in self._blocks(self.parents[node]) if node in row), [])

    @staticmethod
    def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
        rows = (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
        return [row for row in rows if isinstance(row, list)]

    def part(self, node: ast.stmt, lines: Sequence[str]) -> list[str]:
        """The lines of a statement, of a file's lines that were edited in it alone; without others on its line."""
        end = node.end_lineno or node.lineno
        found = list(lines[first_line(node) - 1 : end])
        if node.lineno != end or first_line(node) != end or len(found) != 1:
            return found
        left, right = self._column(end, node.col_offset), self._column(end, node.end_col_offset or 0)
        head, tail = self.lines[end - 1][:left], self.lines[end - 1][right:]
        if not head.strip() and not tail.lstrip(" \t").startswith(";"):
            return found
        depth = len(head) - len(head.lstrip())
        return [head[:depth] + found[0][left : len(found[0]) - len(tail)]]

    def apply(self, edits: Iterable[Edit]) -> list[str]:
        """The lines with edits in them; of two that overlap, the later one in the text is left out."""
        lines = list(self.lines)
        kept: list[Edit] = []
        for edit in sorted(self._shortened(list(edits))):
            if edit in kept:
                continue
            if not kept or (edit.line, edit.column) >= (kept[-1].end_line, kept[-1].end_column):
                kept.append(edit)
        for edit in reversed(kept):
            lines += [""] * max(0, edit.end_line - len(lines))
            head, tail = lines[edit.line - 1][: edit.column], lines[edit.end_line - 1][edit.end_column :]
            lines[edit.line - 1 : edit.end_line] = (head + edit.text + tail).splitlines(keepends=True)
        return lines

    def _shortened(self, edits: Sequence[Edit]) -> list[Edit]:
        """Edits of which each ``global`` has one: it lists what all that shorten it leave."""
        found = [edit for edit in edits if edit.keeps is None]
        for edit in {edit for edit in edits if edit.keeps is not None}:
            node = next(n for n in self.parents if isinstance(n, (ast.Global, ast.Nonlocal)) and self._is_at(n, edit))
            every = [other.keeps or () for other in edits if other.keeps is not None and other == edit]
            left = [name for name in node.names if all(name in keeps for keeps in every)]
            word = "global" if isinstance(node, ast.Global) else "nonlocal"
            found.append(self.replace(node, f"{word} {', '.join(left)}") if left else self.without(node))
        return found

    def _is_at(self, node: ast.stmt, edit: Edit) -> bool:
        return (node.lineno, self._column(node.lineno, node.col_offset)) == (edit.line, edit.column)

    def diff_to(self, lines: list[str]) -> str:
        """What other lines differ in, as a unified diff."""
        name = display_name(self.file)
        found = difflib.unified_diff(self.lines, lines, name, f"{name} (not written)", n=2)
        return "".join(found).rstrip("\n")

    def _column(self, line: int, offset: int) -> int:
        text: str = self.lines[line - 1]
        return len(text.encode()[:offset].decode())


@lru_cache(16)  # each way of rewriting begins with the sources
def _parents(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    """What each node is in, the outer ones first."""
    return {child: node for node in walk(tree) for child in children(node)}


def scope_of(source: Source, function: Function) -> tuple[str, str, int]:
    """What tells a function's code from that of all others: its file, name and first line."""
    return source.file, function.name, first_line(function)


def functions_of(tree: ast.AST, names: Collection[str], outer: str = "") -> list[Function]:
    """The functions of a file that have these qualified names, as ``co_qualname`` has them."""
    found: list[Function] = []
    for node in ast.iter_child_nodes(tree):
        inner = outer
        if isinstance(node, (Function, ast.ClassDef)):
            own = f"{outer}{node.name}"
            found += [node] if isinstance(node, Function) and own in names else []
            inner = f"{own}.<locals>." if isinstance(node, Function) else f"{own}."
        found += functions_of(node, names, inner)
    return found


def is_method(source: Source, function: Function) -> bool:
    """Whether a function gets its owner first."""
    names = {path_of(each) for each in function.decorator_list}
    return isinstance(source.parents.get(function), ast.ClassDef) and not names & {"staticmethod", "classmethod"}


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def without_gradients(source: Source, statement: ast.stmt) -> bool:
    """Whether a statement computes none: its function is decorated so, or a ``with`` around it says so."""
    function = source.function_of(statement)
    told: list[ast.expr] = list(function.decorator_list) if function is not None else []
    above = (node for node in source.above(statement) if isinstance(node, ast.With))
    told += [item.context_expr for node in above for item in node.items]
    return any(about_gradients(source.text(each)) for each in told)


def about_gradients(context: str) -> bool:
    """Whether it is ``torch.no_grad()``, ``torch.inference_mode()`` or ``torch.set_grad_enabled(False)``."""
    return re.search(r"no_grad|inference_mode|set_grad_enabled\((mode=)?False", context) is not None


def _ends(node: ast.AST) -> tuple[int, int]:
    """The lines that a statement, or the head of a compound one, begins and ends on."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return first, last if not getattr(node, "body", None) or isinstance(node, ast.Module) else first


_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def within(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, without the bodies of functions defined in it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        below = [n for n in children(node) if not isinstance(n, _APART)]
        waiting += reversed(below)


def heads(node: ast.stmt) -> Iterator[ast.AST]:
    """A statement and all below it; of a compound one only what its head evaluates."""
    if isinstance(node, (ast.If, ast.While)):
        yield from within(node.test)
    elif isinstance(node, ast.For):
        yield from within(node.iter)
    elif isinstance(node, ast.With):
        for item in node.items:
            yield from within(item.context_expr)
    elif isinstance(node, ast.AnnAssign):  # what a name is said to be is not evaluated for it
        yield node
        yield from within(node.target)
        yield from within(node.value) if node.value is not None else ()
    elif not isinstance(node, COMPOUND):
        yield from within(node)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            yield from within(node.value.body)


def locals_of(function: Function) -> set[str]:
    """Names that are local to a function."""
    return {*_locals_of(function)}


@lru_cache(maxsize=256)  # rules ask it of one function hundreds of times
def _locals_of(function: Function) -> frozenset[str]:
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    found = {argument.arg for argument in every if argument is not None}
    outer: set[str] = set()
    for part in function.body:
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(part.name)  # what is local in there is its own, and so is what it takes from here
            continue
        for node in within(part):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                outer |= set(node.names)
            elif isinstance(node, Function):
                found.add(node.name)
    return frozenset(found - outer)


def combined(node: ast.AugAssign, old: str, value: str) -> str:
    """``x += a`` as ``x + a``, of texts of both; "" where its operator is another one."""
    sign = _SIGNS.get(type(node.op))
    return f"{old} {sign} {value if isinstance(node.value, SIMPLE) else f'({value})'}" if sign else ""


def names_in(node: ast.AST) -> set[str]:
    """Names that are read below a node."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def free_names(node: ast.AST) -> set[str]:
    """Names that are read below a node, without those that its own loops and comprehensions have given a value."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        own = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        inside = set[str]().union(*map(free_names, [*node.body, *node.orelse]))
        return free_names(node.iter) | free_names(node.target) | inside - own
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        first, found = node.generators[0], set[str]().union(*map(free_names, ast.iter_child_nodes(node)))
        own = {n.id for each in node.generators for n in ast.walk(each.target) if isinstance(n, ast.Name)}
        return found - own | free_names(first.iter)
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    return set[str]().union(*map(free_names, ast.iter_child_nodes(node)))


def named_around(source: Source) -> set[str]:
    """Names that a file's functions share: of what stands outside of all, and of what they call ``global``."""
    parts = [part for part in source.tree.body if not isinstance(part, (Function, ast.ClassDef))]
    outside = {n.id for part in parts for n in within(part) if isinstance(n, ast.Name) and _is_given(n)}
    return outside | {name for n in ast.walk(source.tree) if isinstance(n, ast.Global) for name in n.names}


def _is_given(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


@lru_cache(maxsize=4096)
def on_one_line(text: str) -> str:
    """An expression without line breaks and comments; texts of its parts are parts of its text.

    >>> on_one_line("(net(x)  # of all\\n    .cpu() +\\n    1)")
    '(net(x).cpu() + 1)'
    """
    starts = [0, *(n + 1 for n, letter in enumerate(text) if letter == "\n")]
    parts, end, last = [text], 0, ""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(f"({text}\n)").readline))[1:]
    except (tokenize.TokenError, SyntaxError):
        return text
    parts.clear()
    for token in tokens:
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE):
            continue
        (line, column), (end_line, end_column) = token.start, token.end
        if line > len(starts):
            break  # the bracket around it
        start = starts[line - 1] + column - (line == 1)
        between = text[end:start]
        if "\n" in between:
            between = "" if last in (*"([{", ".") or token.string in (*")]}", ".") else " "
        end, last = starts[end_line - 1] + end_column - (end_line == 1), token.string
        parts += [between, text[start:end]]
    return "".join(parts)


def path_of(node: ast.expr) -> str:
    """``a.b`` for ``a.b`` and ``a.b[c]``, or ""."""
    while isinstance(node, ast.Subscript):
        node = node.value
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *parts]) if isinstance(node, ast.Name) else ""


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float, complex))


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment with what it is given, where the line tells: ``x, y = a, b`` are two."""
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value
