"""Decisions that the device makes: rules for branches, assertions and comparisons of Python's."""

from __future__ import annotations

import ast
import dis
import re
from dataclasses import replace

import torch

from paramgraph_kit.rewrite.expressions.decisions.digits_kept import where_of
from paramgraph_kit.rewrite.expressions.decisions.hosted import is_given, is_of_the_host
from paramgraph_kit.rewrite.expressions.decisions.looked_up import may_look_up, text_where
from paramgraph_kit.rewrite.expressions.decisions.shared import is_written_through
from paramgraph_kit.rewrite.expressions.decisions.written import written_where
from paramgraph_kit.rewrite.expressions.numbers.exact import compared_exactly
from paramgraph_kit.rewrite.source.caught import handler_of
from paramgraph_kit.rewrite.source.clock import is_clock
from paramgraph_kit.rewrite.source.edits import SIMPLE, Edit, heads, locals_of, names_in, path_of
from paramgraph_kit.rewrite.source.more_of_a_net import brings_more, minds_zeros
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import NUMBER, Place, called, fresh
from paramgraph_kit.rewrite.source.pure import is_pure, kept_finite, may_run
from paramgraph_kit.rewrite.source.writes import paths

PATHS = (ast.Name, ast.Attribute)
_LISTS = (ast.ListComp, ast.List, ast.Tuple, ast.GeneratorExp, ast.Dict, ast.DictComp, ast.Set)  # no one tensor
_DRAWN = ("random", "np.random", "numpy.random")


def _is_of_kind(node: ast.AST) -> bool:
    """Whether it asks what kind of thing something is, which no tensor tells."""
    return isinstance(node, ast.Call) and called(node) in ("isinstance", "hasattr", "callable", "issubclass")


def _is_another_each_time(node: ast.AST) -> bool:
    """Whether it asks the host's clock, or for a random number of the host's."""
    drawn = isinstance(node, ast.Call) and path_of(node.func).rpartition(".")[0] in _DRAWN
    return isinstance(node, ast.Call) and (drawn or is_clock(node))


def choose_by_where(place: Place, condition: str = "") -> list[Edit]:
    """``if c: x = a`` becomes ``x = torch.where(c, a, x)``, and two returns become one."""
    node, found = place.statement, _by_where(place, condition)
    test = node.test if isinstance(node, ast.If) and not condition and found else None
    if test is None or not any(called(n) == "next" for n in ast.walk(test) if isinstance(n, ast.Call)):
        return found
    asked = condition_on_device(place, test)
    if sum(each.text.count(asked) for each in found) < 2:
        return found
    if len(found) > 1:
        return []
    flag = fresh("chosen", place.taken)  # what gives the next of something is asked once
    text = found[0].text.replace(asked, flag)
    return [replace(found[0], text=f"{flag} = {asked}\n{place.source.indent(node)}{text}")]


def _by_where(place: Place, condition: str) -> list[Edit]:
    node = place.statement
    if not isinstance(node, ast.If) or any(_is_of_kind(part) for part in ast.walk(node.test)):
        return []
    if is_written_through(place, node) or _counts_zeros(place, node):
        return []
    if not condition and (told := _told_first(place, node.test)) is not None:
        return _choose_after(place, node, *told)
    if not condition and any(_is_another_each_time(part) for part in ast.walk(node.test)):
        return []  # which a graph asks once
    host = bool(condition)  # the host has decided, and both ways were seen
    condition = condition or condition_on_device(place, node.test)
    if not isinstance(node.body[0], ast.Return):
        single = len(node.body) == len(node.orelse) == 1
        together = _choose_one_name(place, node, condition) if single else []
        return together or _choose_each(place, node, condition)
    if len(node.body) != 1 or len(node.orelse) > 1:
        return []
    yes, no = node.body[0], node.orelse[0] if node.orelse else None
    if isinstance(yes, ast.Return) and yes.value is not None:
        block = getattr(place.source.parents[node], "body", [])
        following = block[block.index(node) + 1 :] if node in block else []
        last = no if no is not None else following[-1] if following else None
        if not isinstance(last, ast.Return) or last.value is None:
            return []
        if isinstance(yes.value, _LISTS) or isinstance(last.value, _LISTS):
            return []
        if not may_look_up(place, yes.value, node) or not may_look_up(place, last.value, node):
            return []
        one = text_where(place, _unread(yes.value), node.test, condition, taken=True)
        other = text_where(place, _unread(last.value), node.test, condition, taken=False)
        if len(following) > 1 and no is None:  # what comes between is computed in any case, and taken or not in the end
            # Of what the host has decided both ways were seen; what the device decides may have no gradient.
            if not (host or not place.trains) or not all(only_assigns(place, part) for part in following[:-1]):
                return []
            around = place.source.function_of(node)
            taken = names_in(place.source.tree) | (locals_of(around) if around is not None else set())
            early = fresh("early", taken)
            text = f"torch.where({condition}, {early}, {other})"
            first = place.source.replace(node, f"{early} = {place.text(yes.value)}")
            return [first, place.source.replace(last.value, text)]
        text = f"return {where_of(place, condition, one, other)}"
        edits = [place.source.replace(node, text)]
        return edits if no is not None else [*edits, place.source.without(last)]
    return []


def _counts_zeros(place: Place, node: ast.If) -> bool:
    """Whether parameters would have gradients of zeros by it, which an optimizer does not take for none."""
    function = place.source.function_of(node)
    held = [*place.space.values(), *place.attributes.values()]
    return function is not None and brings_more(function, node) and minds_zeros(held)


def ask_the_host_first(place: Place) -> list[Edit]:
    """``if bad.any() and DEBUG:`` asks the device for nothing where ``DEBUG`` is off, once that stands first."""
    test = getattr(place.statement, "test", None)
    if not isinstance(place.statement, ast.If) or not isinstance(test, ast.BoolOp):
        return []
    known = [n for n in test.values if isinstance(n, ast.Name) and isinstance(place.space.get(n.id), NUMBER)]
    known = [n for n in known if isinstance(n, ast.Name) and not place.is_local(n.id)]
    rest = [n for n in test.values if n not in known]
    ends = any(bool(place.space[n.id]) is isinstance(test.op, ast.Or) for n in known)
    if not ends or test.values[: len(known)] == known or not all(is_pure(place, n) for n in rest):
        return []
    sign = " or " if isinstance(test.op, ast.Or) else " and "
    return [place.source.replace(test, sign.join(place.source.bracketed(n) for n in (*known, *rest)))]


def _told_first(place: Place, test: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """What the host knows of ``old is None or err > tol``, and the rest, which it asks only then."""
    first = test.values[0] if isinstance(test, ast.BoolOp) else None
    if not isinstance(test, ast.BoolOp) or first is None or not _asks_for_none(place, first):
        return None
    rest = test.values[1:]
    return first, rest[0] if len(rest) == 1 else ast.BoolOp(test.op, rest)


def _asks_for_none(place: Place, node: ast.expr) -> bool:
    """``old is None``, or ``not exists(old)`` where that asks nothing else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node = node.operand
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        code = getattr(place.space.get(node.func.id), "__code__", None)
        done = [each.opname for each in dis.get_instructions(code)] if code is not None else []
        return "IS_OP" in done and not any(name.startswith("CALL") for name in done)
    return isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Is, ast.IsNot))


def _choose_after(place: Place, node: ast.If, first: ast.expr, rest: ast.expr) -> list[Edit]:
    """A branch that goes on as it did where the host knows already, and is chosen by the device otherwise."""
    chosen = _by_where(place, _on_device(place, condition_of(place, rest)))
    if len(chosen) != 1 or isinstance(node.body[0], ast.Return):
        return []
    taken = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or)
    indent = place.source.indent(node)
    known = [f"    {place.text(part)}" for part in (node.body if taken else node.orelse)]
    asked = [f"    {line.removeprefix(indent)}" for line in chosen[0].text.split("\n")]
    blocks = (known, asked) if taken else (asked, known)
    lines = [f"if {place.text(first)}:", *blocks[0], *(["else:", *blocks[1]] if blocks[1] else [])]
    return [place.source.replace(node, f"\n{indent}".join(lines))]


def _choose_one_name(place: Place, node: ast.If, condition: str) -> list[Edit]:
    """``if c: x = a`` with ``else: x = b`` becomes ``x = torch.where(c, a, b)``."""
    yes, no = node.body[0], node.orelse[0]
    if isinstance(yes, ast.Assign) and len(yes.targets) == 1 and isinstance(yes.targets[0], ast.Name):
        name = yes.targets[0].id
        if not isinstance(no, ast.Assign) or place.text(no.targets[0]) != name:
            return []
        if _counts_on_host(place, yes) or _counts_on_host(place, no):
            return []
        if isinstance(yes.value, _LISTS) or isinstance(no.value, _LISTS):
            return []
        if not may_look_up(place, yes.value, node) or not may_look_up(place, no.value, node):
            return []
        one = text_where(place, _unread(yes.value), node.test, condition, taken=True)
        other = text_where(place, _unread(no.value), node.test, condition, taken=False)
        return [place.source.replace(node, f"{name} = {where_of(place, condition, one, other)}")]
    return []


def _unread(value: ast.expr) -> ast.expr:
    """``x`` of ``x.item()``: what is chosen stays a tensor."""
    read = isinstance(value, ast.Call) and called(value) == "item" and not value.args
    return value.func.value if read and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else value


def only_assigns(place: Place, node: ast.stmt) -> bool:
    """Whether a statement changes nothing but what a local name stands for."""
    function = place.source.function_of(node)
    targets = node.targets if isinstance(node, ast.Assign) else []
    pieces = [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
    names = {path_of(each).partition(".")[0] for each in pieces}
    quiet = isinstance(node, ast.Assign) and is_pure(place, node.value)
    return quiet and bool(names) and function is not None and names <= locals_of(function)


def condition_of(place: Place, test: ast.expr) -> str:
    """A test as an expression of tensors, without ``not``, ``and`` and ``or``; a number has no dimensions of it."""
    text, around = _condition(place, test), next(iter(place.loops()), place.statement)
    given = stored([n for n in ast.walk(around) if isinstance(n, (ast.Assign, ast.AugAssign))])
    if given & {*place.plain} and re.search(r"_local_scalar_dense of \w+\[\d", place.failure.message):
        return f"({text}).squeeze()"  # of one element, whose shape the numbers that it decides would get
    return text


def _condition(place: Place, test: ast.expr) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        if is_of_the_host(place, test.operand):
            return place.text(test)
        return f"torch.logical_not({_condition(place, test.operand)})"
    if isinstance(test, ast.BoolOp):
        sign = " & " if isinstance(test.op, ast.And) else " | "
        parts = [_part_of(place, each) for each in test.values]
        # A number of the host's is taken for true or not as Python does.
        return sign.join(f"bool({text})" if of_host else f"({text})" for text, of_host in parts)
    text = compared_exactly(place, test)
    if isinstance(test, ast.Compare) and len(test.ops) > 1 and all(_between(test)):  # it asks for the truth of each
        every = [compared_exactly(place, each) for each in (test.left, *test.comparators)]
        texts = zip(every, _between(test), every[1:], strict=False)
        return " & ".join(f"({one} {sign} {other})" for one, sign, other in texts)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.In, ast.NotIn)):
        one, many = place.text(test.left), place.text(test.comparators[0])
        known = isinstance(test.comparators[0], (ast.Tuple, ast.List, ast.Set))
        held = place.space.get(many)
        if known or (isinstance(held, (list, tuple, set, frozenset)) and all(type(each) in NUMBER for each in held)):
            text = f"torch.stack([{one} == each for each in {many}]).any()"
            return text if isinstance(test.ops[0], ast.In) else f"torch.logical_not({text})"
    if isinstance(test, ast.Call) and path_of(test.func) == "bool" and len(test.args) == 1:
        return _condition(place, test.args[0])
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and called(test) in ("any", "all"):
        each = test.args[0] if len(test.args) == 1 else None
        if isinstance(each, (ast.GeneratorExp, ast.ListComp)):
            inner = place.text(each)
            inner = inner[1:-1] if inner[0] in "([" and isinstance(each, (ast.ListComp, ast.GeneratorExp)) else inner
            inner = inner.replace(place.text(each.elt), _condition(place, each.elt), 1)  # without ``not``
            return f"torch.stack([{inner}]).{called(test)}()"
        if each is not None and not isinstance(each, (ast.List, ast.Tuple)):
            return f"{place.source.bracketed(each)}.{called(test)}()"
    if isinstance(test, ast.Call) and called(test) == "allclose":
        text = text.replace("allclose", "isclose", 1) + ".all()"
    if isinstance(test, ast.Call) and path_of(test.func) == "torch.equal" and len(test.args) == 2:
        text = f"({place.text(test.args[0])} == {place.text(test.args[1])}).all()"
    return f"{text}.bool()" if _is_count(place, test) else text


def _part_of(place: Place, part: ast.expr) -> tuple[str, bool]:
    """A part of a condition, and whether the host knows it."""
    if is_of_the_host(place, part):
        return place.text(part), True
    return _condition(place, part), isinstance(part, PATHS) and is_given(place, part)


_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def _between(test: ast.Compare) -> list[str]:
    """How a chain of comparisons compares."""
    return [_SIGNS.get(type(each), "") for each in test.ops]


def condition_on_device(place: Place, test: ast.expr) -> str:
    """A test as an expression of tensors, without what reads them."""
    return _of_torch(place, _on_device(place, condition_of(place, test)))


def _on_device(place: Place, text: str) -> str:
    """A condition without ``.item()``, ``float(x)`` and ``int(x.sum())``."""
    text = text.replace(".item()", "")
    calls = [node for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: -node.col_offset) if "\n" not in text else ():
        given = call.args[0] if len(call.args) == 1 and isinstance(call.func, ast.Name) else None
        end = call.end_col_offset or 0
        if given is None or not names_in(given):
            continue  # ``float("inf")``
        if called(call) == "float" or (called(call) == "int" and _is_count(place, given)):
            inner = text[given.col_offset : given.end_col_offset]
            inner = inner if isinstance(given, SIMPLE) else f"({inner})"
            text = f"{text[: call.col_offset]}{inner}{text[end:]}"
    return text


def _is_count(place: Place, test: ast.expr) -> bool:
    """Whether a test is a number of the device's, which ``torch.where`` does not take for a condition."""
    if isinstance(test, ast.Call) and called(test) in ("item", "clone") and isinstance(test.func, ast.Attribute):
        return _is_count(place, test.func.value)
    if isinstance(test, ast.Attribute):  # ``self.pos``, of which only the question tells what it is
        read = re.search(r"_local_scalar_dense of (\w+)\[", place.failure.message)
        return read is not None and read[1] != "bool"
    if isinstance(test, ast.Name):
        form = place.tensors.get(test.id)
        return form is not None and form.dtype is not torch.bool
    return isinstance(test, ast.Call) and called(test) in ("sum", "count_nonzero")


_NEUTRAL = {ast.Add: "0", ast.Sub: "0", ast.Mult: "1", ast.Div: "1"}


def _choose_each(place: Place, node: ast.If, condition: str) -> list[Edit]:
    """``if c: x = a; y[i] += b`` as assignments that always run, each of what was there where ``c`` is false."""
    lines, test = [], condition
    function = place.source.function_of(node)
    kept = condition.isidentifier() and condition not in stored([*node.body, *node.orelse])
    if len(node.body) + len(node.orelse) > 1 and not kept:  # what it asks may be changed by its body
        test = fresh("chosen", place.taken)
        lines.append(f"{test} = {condition}")
    local = locals_of(function) if function is not None else set()
    inside = set(ast.walk(node))
    outside = {n.id for n in ast.walk(function or node) if isinstance(n, ast.Name) and n not in inside}
    ways = [(part, test) for part in node.body] + [(part, f"torch.logical_not({test})") for part in node.orelse]
    twice = given(node.body) & given(node.orelse) & local - known_before(function, node)
    for part, way in ways:
        made = changed_where(place, part, node, way, local, outside)
        if part in node.body and given([part]) and given([part]) <= twice and isinstance(part, ast.Assign) and made:
            # The other way has its own.
            made = [f"{place.text(part.targets[0])} = {_of_torch(place, place.text(part.value))}"]
        if not made:
            return []
        lines += made
    return [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))]


def given(statements: list[ast.stmt]) -> set[str]:
    """Names that plain assignments give a value to."""
    single = [part.targets[0] for part in statements if isinstance(part, ast.Assign) and len(part.targets) == 1]
    every = [each for target in single for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return {each.id for each in every if isinstance(each, ast.Name)}


def known_before(function: ast.AST | None, node: ast.stmt) -> set[str]:
    """Names that may have a value before a statement."""
    every = list(ast.walk(function)) if function is not None else []
    found = {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.lineno < node.lineno}
    return found | {n.arg for n in every if isinstance(n, ast.arg)}


def changed_where(
    place: Place, part: ast.stmt, node: ast.If, test: str, local: set[str], outside: set[str]
) -> list[str]:
    """One statement of a branch, which changes something only where its condition holds; nothing where it cannot."""
    value = getattr(part, "value", None)
    if isinstance(part, ast.Expr):
        written = written_where(place, part, node, test)
        return [written] if written else []
    if isinstance(part, ast.For) and not part.orelse and may_run(place, part.iter, node):
        inner = [changed_where(place, each, node, test, local, outside) for each in part.body]
        head = f"for {place.text(part.target)} in {place.text(part.iter)}:"
        return [head, *(f"    {line}" for each in inner for line in each)] if all(inner) else []
    to = place.text(part.targets[0]) if isinstance(part, ast.Assign) and len(part.targets) == 1 else ""
    if not isinstance(value, ast.expr) or not may_run(place, value, node, to):
        return []
    by_host = re.fullmatch(r"\w+_in(?:_\d+)?", test) is not None  # what it asks stays a number
    taken = _of_torch(place, kept_finite(place, value, node.test, test, taken=True), None if by_host else node.test)
    if isinstance(part, ast.Assign) and len(part.targets) == 1:
        target = part.targets[0]
        name = place.text(target)
        own = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        if isinstance(target, (ast.Name, ast.Tuple)) and own <= local - outside and not _has_attributes(target):
            return [f"{name} = {taken}"]
        if isinstance(target, ast.Tuple) and own <= local:
            return _each_where(place, target, value, node, test)
        if isinstance(value, _LISTS):
            return _of_each(value, name, taken, test)
        if isinstance(target, ast.Attribute) or (isinstance(target, ast.Name) and name not in local):
            number = _stays_on_host(place, target, local)  # a way that no step took would show nothing of it
            return [f"{name}.copy_(torch.where({test}, {taken}, {name}))"] if not number else []
        if isinstance(target, (ast.Name, ast.Subscript)) and not _stays_on_host(place, target, local):
            return [f"{name} = torch.where({test}, {taken}, {name})"]
    if isinstance(part, ast.AugAssign) and type(part.op) in _NEUTRAL:
        head = place.text(part)[: -len(place.text(part.value))]
        return [f"{head}torch.where({test}, {taken}, {_NEUTRAL[type(part.op)]})"]
    return []


def _of_torch(place: Place, text: str, test: ast.expr | None = None) -> str:
    """``math.sqrt(x)`` of a tensor as ``torch.sqrt(x)``: it may be computed of what Python's refuses.

    What the branch asks is one by then, too, where nothing else is in its test: a number that was read.
    """
    found = ast.walk(ast.parse(text, mode="eval")) if "math." in text and "\n" not in text else ()
    calls = (node for node in found if isinstance(node, ast.Call) and path_of(node.func).startswith("math."))
    asked = names_in(test) - place.space.keys() if test is not None else set()
    given = [n for n in calls if (len(asked) == 1 and asked <= names_in(n)) or names_in(n) & place.tensors.keys()]
    for call in sorted(given, key=lambda node: -node.col_offset):
        text = f"{text[: call.col_offset]}torch{text[call.col_offset + len('math') :]}"
    return text


def _each_where(place: Place, target: ast.Tuple, value: ast.expr, node: ast.If, test: str) -> list[str]:
    """``x, y = x / n, y / n`` of local names: all of the right side is computed before any of them is another one."""
    values = value.elts if isinstance(value, ast.Tuple) else []
    if len(values) != len(target.elts) or not all(isinstance(each, ast.Name) for each in target.elts):
        return []
    chosen = [
        f"torch.where({test}, {kept_finite(place, new, node.test, test, taken=True)}, {place.text(name)})"
        for name, new in zip(target.elts, values, strict=True)
    ]
    return [f"{place.text(target)} = {', '.join(chosen)}"]


def _of_each(value: ast.expr, name: str, taken: str, test: str) -> list[str]:
    """``losses = [2 * loss for loss in losses]``: of a list each tensor is chosen, where both have as many."""
    loops = value.generators if isinstance(value, ast.ListComp) else []
    through = loops[0].iter if len(loops) == 1 and not loops[0].ifs else None
    if isinstance(through, ast.Call) and path_of(through.func) == "enumerate" and len(through.args) == 1:
        through = through.args[0]
    if through is None or path_of(through) != name:
        return []
    return [f"{name} = [torch.where({test}, new, old) for new, old in zip({taken}, {name})]"]


def _stays_on_host(place: Place, target: ast.expr, local: set[str]) -> bool:
    """Whether a target outlives its function and is no tensor: replays would begin with the capture's number anew.

    What is added in place, ``count += ...``, is another thing: by the capture an eager step has made a tensor of it.
    """
    while isinstance(target, ast.Subscript):
        target = target.value
    first, *rest = path_of(target).split(".")
    if not rest and first in local:
        return False
    return not isinstance(place.value(path_of(target)), torch.Tensor)


def _counts_on_host(place: Place, node: ast.stmt) -> bool:
    """Whether a statement makes a number that the host keeps of what it has been, and not in place."""
    function = place.source.function_of(node)
    local = locals_of(function) if function is not None else set[str]()
    if not isinstance(node, ast.Assign):
        return False
    kept = [each for each in node.targets if not isinstance(each, ast.Tuple) and _stays_on_host(place, each, local)]
    return any(place.text(each).partition("[")[0] in paths(node.value) for each in kept)


def _has_attributes(node: ast.AST) -> bool:
    return any(isinstance(n, (ast.Attribute, ast.Subscript)) for n in ast.walk(node))


def choose_one(place: Place, only: ast.IfExp | None = None, given: str = "") -> list[Edit]:
    """``a if c else b`` becomes ``torch.where(c, a, b)``, where neither of them does anything but compute.

    ``only`` is the one that is meant, and ``given`` what stands for its condition.
    """
    found = []
    if _counts_on_host(place, place.statement):
        return []
    for node in heads(place.statement):
        if (
            not isinstance(node, ast.IfExp)
            or only not in (None, node)
            or not (may_look_up(place, node.body, node) and may_look_up(place, node.orelse, node))
        ):
            continue
        if isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], (ast.Is, ast.IsNot)):
            continue
        condition = given or condition_of(place, node.test)
        yes, no = (
            text_where(place, each, node.test, condition, taken=each is node.body) for each in (node.body, node.orelse)
        )
        found.append(place.source.replace(node, where_of(place, condition, yes, no)))
    return found


def assert_on_device(place: Place) -> list[Edit]:
    """``assert c`` becomes ``torch._assert_async(c)``, which the device checks."""
    node = place.statement
    if isinstance(node, ast.If) and not node.orelse and len(node.body) == 1 and isinstance(node.body[0], ast.Raise):
        test, wanted = node.test, False
    elif isinstance(node, ast.Assert):
        test, wanted = node.test, True
    else:
        return []
    if handler_of(place.source, node, place.space) is not None:
        return []  # the user's own lines go on with it, and a failed assertion of the device's ends its context
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, wanted = test.operand, not wanted
    text = condition_on_device(place, test)
    condition = text if wanted else f"torch.logical_not({text})"
    told = node.msg if isinstance(node, ast.Assert) else getattr(getattr(node.body[0], "exc", None), "args", [None])[:1]
    said = told[0] if isinstance(told, list) and told else told
    message = f", {place.text(said)}" if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""
    return [place.source.replace(node, f"torch._assert_async({condition}{message})")]
