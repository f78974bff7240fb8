"""What is told of one line goes with what is told of others: of a line that it follows, or that has it in its block."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace

from paramgraph_kit.doctor.explain.syntax import tree_of
from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.source.edits import Function
from paramgraph_kit.rewrite.source.place import fresh
from paramgraph_kit.trace.model import Failure, Frame

_READ_AT = re.compile(r", line (\d+)\)$")
_IN_PLACE = re.compile(r"(`for [^`]+`) in place of line (\d+)\b")
_FILLS = re.compile(r"`(\w+_in)\.(?:fill|copy)_\(([^`]+)\)`")
_MADE_ONCE = re.compile(r"^ *(?:after +)?(\w+) = (.+?)  # once, ", re.MULTILINE)
_BEHIND = re.compile(r"behind (?:each|the) launch")
_BEHIND_ALONE = "the same behind each launch"
_GOES_BEHIND = re.compile(
    r"the same behind each launch|end what is captured before line \d+, |belongs behind the launch"
)
_CLONED = ("output-alias",)  # what is kept there is still written over
_OF_BRANCHES = "goes behind each launch with line {}, of whose branches it is"
_TAKEN_OUT = re.compile(r"^line \d+, `[^`]+`, belongs behind the launch: take it out of the step")
_AHEAD = re.compile(r"\bline (\d+), `[^`]*`, belongs before each launch")
_FILLED = re.compile(r"before each launch `(?P<fill>[\w.]+\.fill_\((?P<value>[^`]*)\))`")
_KEPT_THERE = re.compile(r"^keep `(?P<path>[^`]+)` as a tensor")
_COUNTED = "belongs before each launch, as line {} reads what it gives from a tensor"
_AHEAD_OF = "belongs before each launch, ahead of `{}`, as told of line {}, which reads what it gives"
_KEPT = ("the diff", "in pieces", "stays as it is")
_WITH = "goes behind each launch, with line {}, which reads"
_GIVEN_BACK = (
    "; line {line} reads `{path}` in the graph: once `{name}_in = torch.tensor({path}, device={device})`, before each "
    "launch `{name}_in.copy_(torch.tensor({path}))`, and there `{name}_in` for `{path}`"
)


def agreed(told: Sequence[Failure], generic: Sequence[str]) -> list[Failure]:
    """The same; ``generic`` are words of a line that follows what is read, whatever becomes of that."""
    found = [_agreed(each, told, generic) for each in told]
    apart = named_apart([each.fix for each in found], [*map(_class_of, found)])
    return [replace(each, fix=fix) for each, fix in zip(found, apart, strict=True)]


def named_apart(words: Sequence[str], classes: Sequence[int] = ()) -> list[str]:
    """The same, where a tensor that holds one thing has no name of one that holds another.

    ``classes``: where the class of each line begins, whose ``self`` is another object in each.
    """
    names = dict[tuple[str, tuple[str, ...], int], str]()
    found, taken = list[str](), set(re.findall(r"\w+", " ".join(words)))
    for text, own in zip(words, classes or [0] * len(words), strict=True):
        held = dict[str, dict[str, None]]()
        for name, value in (*_FILLS.findall(text), *_MADE_ONCE.findall(text)):
            held.setdefault(name, {})[value] = None
        for name, values in held.items():
            if "..." in values:
                continue  # nobody knows what that is
            others = taken - {name} | {*names.values()}
            key = name, (*values,), own * any("self." in value for value in values)
            given = names.setdefault(key, fresh(name, others))
            if given != name:
                text = re.sub(rf"(?<![\w.]){name}\b", given, text)
        found.append(text)
    return found


def _class_of(failure: Failure) -> int:
    at, tree = failure.frame, tree_of(failure.frame.file) if failure.frame is not None else None
    every = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)) if tree is not None else ()
    return max((n.lineno for n in every if at is not None and n.lineno <= at.line <= (n.end_lineno or 0)), default=0)


def _agreed(failure: Failure, told: Sequence[Failure], generic: Sequence[str]) -> Failure:
    at = failure.frame
    head, _, said = failure.fix.partition("\nafter   ")
    if at is None or _IN_PLACE.search(said):
        return failure
    others = [each for each in told if each.frame is not None and each.frame.file == at.file and each is not failure]
    for each in others:
        named = _IN_PLACE.search(each.fix)
        if named and each.frame is not None and int(named[2]) <= at.line < each.frame.line:
            text = named[1] if at.line == int(named[2]) else "goes with that loop"
            return replace(failure, fix=f"{head}\nafter   {text}, as told of line {each.frame.line}")
        words = each.fix.partition("\nafter   ")[2]
        if _TAKEN_OUT.match(words) and _is_with(at, each.frame, said):  # all that a helper does goes with its call
            return replace(failure, fix=f"{head}\nafter   {words}")
        moves = failure.code not in _CLONED and not any(kept in said + words for kept in _KEPT)
        if moves and _is_of_its_branches(at, each.frame, said, words):
            return replace(failure, fix=f"{head}\nafter   {_OF_BRANCHES.format(each.frame.line)}")  # type: ignore[union-attr]
        if _BEHIND.search(said) and (text := _into_it(at, each.frame, words)):
            return replace(failure, fix=f"{head}\nafter   {text}")
        if failure.code == "host-counter" and said.startswith(_BEHIND_ALONE) and (fill := _reads_it(at, each)):
            return replace(failure, fix=f"{head}\nafter   {_AHEAD_OF.format(fill, each.frame.line)}")  # type: ignore[union-attr]
        before = _AHEAD.search(words) if failure.code == "host-counter" and _BEHIND.search(said) else None
        if before and int(before[1]) == at.line and each.frame is not None:
            return replace(failure, fix=f"{head}\nafter   {_COUNTED.format(each.frame.line)}")
    if said not in generic:
        return failure
    read = _READ_AT.search(failure.message)
    lines = [each for each in others if read and each.frame is not None and each.frame.line == int(read[1])]
    if read and lines and all(_BEHIND.search(each.fix) and "stays" not in each.fix for each in lines):
        return replace(failure, fix=f"{head}\nafter   {_WITH.format(read[1])}{_given_back(at, int(read[1]))}")
    return failure


def _given_back(at: Frame, asking: int) -> str:
    """What the next launch needs of ``weights = [v / total for v in values]``, where lines ahead read it.

    They compute with numbers, which no two calls of a question tell: a tensor would do as well.
    """
    function = _around(at)
    every = [*ast.walk(function)] if function is not None else []
    shared = {name for n in every if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
    for node in (n for n in every if isinstance(n, ast.Assign) and n.lineno == at.line and len(n.targets) == 1):
        target, value = node.targets[0], node.value.elt if isinstance(node.value, ast.ListComp) else node.value
        kept = isinstance(target, ast.Attribute) or (isinstance(target, ast.Name) and target.id in shared)
        if not kept or not isinstance(value, ast.BinOp):
            continue
        path = ast.unparse(target)
        heads = (n for n in every if isinstance(n, (ast.Assign, ast.AugAssign)) and n.lineno < min(asking, at.line))
        lines = [n.lineno for n in heads if any(path == ast.unparse(e) for e in ast.walk(n.value) if _is_read(e))]
        if lines:
            name = path.rpartition(".")[2]
            return _GIVEN_BACK.format(line=min(lines), path=path, name=name, device=f'"{device().type}"')
    return ""


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)


def _asked_below(tree: ast.AST, node: ast.stmt, path: str) -> str:
    """A test further down that sets what only the host has, ``if self.at == 0: self.full = True``: no graph asks."""
    own = [f for f in ast.walk(tree) if isinstance(f, Function) and node in f.body]
    for test in (n for f in own for n in f.body if isinstance(n, ast.If) and n.lineno > node.lineno):
        asks = any(isinstance(n, ast.expr) and ast.unparse(n) == path for n in ast.walk(test.test))
        sets = (n for n in test.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant))
        if asks and len([*sets]) == len(test.body) and not test.orelse:
            asked = f"; line {test.lineno}, `{ast.unparse(test.test)}`, is asked behind each launch"
            return f"{asked}: take it out of the step"
    return ""


def _reads_it(at: Frame, other: Failure) -> str:
    """What a line further down fills a tensor with, where that reads what this line counts: it is ahead of that."""
    filled, tree, below = _FILLED.search(other.fix), tree_of(at.file), other.frame
    if filled is None or tree is None or below is None or below.line <= at.line or below.function != at.function:
        return ""
    nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.Assign, ast.AugAssign)) and n.lineno == at.line]
    targets = {ast.unparse(t) for n in nodes for t in (n.targets if isinstance(n, ast.Assign) else [n.target])}
    try:
        read = {ast.unparse(n) for n in ast.walk(ast.parse(filled["value"], mode="eval")) if isinstance(n, ast.expr)}
    except SyntaxError:
        return ""
    return filled["fill"] if targets & read else ""


def _is_with(at: Frame, other: Frame | None, said: str) -> bool:
    """Whether a line that is told something else stands in the function of another one."""
    if other is None or _TAKEN_OUT.match(said) or any(each in said for each in _KEPT):
        return False
    here, there = (_around(each) for each in (at, other))
    return here is not None and here is there


def _is_of_its_branches(at: Frame, head: Frame | None, said: str, words: str) -> bool:
    """Whether a line is told otherwise that stands in an ``if`` which goes behind the launch, or in its ``elif``."""
    tree = tree_of(at.file)
    if head is None or tree is None or _BEHIND.search(said.partition(";")[0]) or not _GOES_BEHIND.match(words):
        return False
    every = (n for n in ast.walk(tree) if isinstance(n, ast.If) and n.lineno == head.line)
    return any(n.lineno < at.line <= (n.end_lineno or n.lineno) for n in every)


def _into_it(at: Frame, other: Frame | None, words: str) -> str:
    """What gives a value its next one where another line is told to keep it as a tensor: else none reads it."""
    kept, tree = _KEPT_THERE.match(words), tree_of(at.file)
    if kept is None or other is None or tree is None:
        return ""
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    here, there = (
        [n for n in classes if n.lineno <= frame.line <= (n.end_lineno or n.lineno)] for frame in (at, other)
    )
    path = kept["path"]
    if path.startswith("self.") and here[-1:] != there[-1:]:
        return ""
    for node in (n for n in ast.walk(tree) if isinstance(n, (ast.Assign, ast.AugAssign)) and n.lineno == at.line):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if [ast.unparse(each) for each in targets] != [path]:
            continue
        reads = any(isinstance(n, ast.expr) and ast.unparse(n) == path for n in ast.walk(node.value))
        if isinstance(node, ast.AugAssign):
            kept_so = (
                f"stays as it is once `{path}` is a tensor, as told of line {other.line}: it adds to that in place"
            )
            return kept_so + _asked_below(tree, node, path)
        if reads:
            new = f"{path}.copy_({ast.unparse(node.value)})"
        elif isinstance(node.value, ast.Constant) and type(node.value.value) is int:
            new = f"{path}.fill_({ast.unparse(node.value)})"
        else:
            return ""
        return (
            f"`{new}` in the graph, as `{path}` is a tensor there, as told of line {other.line}: a new one is not read"
        ) + _asked_below(tree, node, path)
    return ""


def _around(at: Frame) -> ast.AST | None:
    """The innermost function that a line stands in."""
    tree = tree_of(at.file)
    nodes = [n for n in ast.walk(tree) if isinstance(n, Function)] if tree is not None else []
    inside = [n for n in nodes if n.lineno <= at.line <= (n.end_lineno or n.lineno)]
    return max(inside, key=lambda n: n.lineno, default=None)
