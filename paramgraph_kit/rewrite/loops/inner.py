"""What a round of a loop that goes on does in loops and branches of its own."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterator

import torch

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.loops.early import given_to, name_of
from paramgraph_kit.rewrite.loops.lengths import Lengths
from paramgraph_kit.rewrite.source.edits import combined, locals_of, path_of, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import called, target_of
from paramgraph_kit.rewrite.source.pure import is_pure
from paramgraph_kit.rewrite.source.quiet import draws

_VIEWS = frozenset(
    """view reshape t transpose permute squeeze unsqueeze expand detach flatten narrow select to contiguous float long
    half bool view_as real diagonal unflatten movedim swapaxes""".split()  # noqa: SIM905
)


def ends_of(part: ast.stmt) -> Iterator[ast.stmt]:
    """``if c: break``, by itself or where a name has a value: ``if old is None: old = x`` ``else: if c: break``."""
    if _is_end(part):
        yield part
    elif isinstance(part, ast.If) and unset_in(part.test):
        for each in (*part.body, *part.orelse):
            yield from ends_of(each)


def _is_end(node: ast.stmt) -> bool:
    """``if c: break``, also with values that are given before it, and with such an ``elif``."""
    if not isinstance(node, ast.If) or not isinstance(node.body[-1], ast.Break):
        return False
    return all(map(_only_gives, node.body[:-1])) and (
        not node.orelse or (len(node.orelse) == 1 and _is_end(node.orelse[0]))
    )


def _only_gives(node: ast.stmt) -> bool:
    """``x = v``, and that in a branch."""
    if isinstance(node, ast.If) and not node.orelse:
        return all(map(_only_gives, node.body))
    return bool(name_of(node)) and isinstance(node, (ast.Assign, ast.AugAssign))


def unset_in(test: ast.expr) -> tuple[str, bool] | None:
    """The name of ``x is None``, and whether it is so where that is true."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.left, ast.Name):
        return None
    none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
    if not none or not isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        return None
    return test.left.id, isinstance(test.ops[0], ast.Is)


def _has_twin(name: str) -> bool:
    """Whether a method writes what another one, of the same name without its end, returns."""
    plain = name[:-1] if name.endswith("_") and not name.endswith("__") else ""
    return bool(plain) and hasattr(torch.Tensor, name) and hasattr(torch.Tensor, plain) and not draws(name)


class Inner(Lengths):
    """The loops and branches in one loop."""

    loop: ast.For | ast.While
    breaks: list[ast.stmt]
    known: set[str]  # names that have a value before the loop
    counters: set[str]
    behind: set[str]  # names that are read behind the loop
    given = ""  # a name that a branch asks for, and that has a value where it is not None
    below = 0  # in how many loops and branches of the round a statement is

    @abstractmethod
    def _step(self, part: ast.stmt) -> bool: ...

    @abstractmethod
    def _end(self, test: ast.expr) -> list[str]: ...

    def _ends(self, part: ast.stmt) -> bool:
        """``if c: break`` as a value of the device, with what is given a value where it ends, once."""
        lines, node = list[str](), part
        while isinstance(node, ast.If):
            if not is_pure(self.place, node.test):
                return False
            if len(node.body) > 1:
                hit = self._fresh("hit")
                lines.append(f"{hit} = torch.logical_not({self.done}) & ({condition_of(self.place, node.test)})")
                for each in node.body[:-1]:
                    if not (given := self._given_at(each, hit)):
                        return False
                    lines += given
            lines += self._end(node.test)
            if not node.orelse:
                break
            node = node.orelse[0]
        self.edits.append(self.source.replace(part, f"\n{self.source.indent(part)}".join(lines)))
        return True

    def _given_at(self, part: ast.stmt, hit: str) -> list[str]:
        """What is given a value where a loop ends; nothing where that cannot be chosen."""
        if isinstance(part, ast.If):
            free = {n.id for n in ast.walk(part.test) if isinstance(n, ast.Name)}
            inner = [self._given_at(each, hit) for each in part.body]
            if not free or not free <= self.counters or not all(inner):
                return []
            return [f"if {self.place.text(part.test)}:", *(f"    {line}" for each in inner for line in each)]
        name = name_of(part)
        if not isinstance(part, (ast.Assign, ast.AugAssign)) or not is_pure(self.place, part.value):
            return []
        value = self.place.text(part.value)
        value = combined(part, name, value) if isinstance(part, ast.AugAssign) else value
        known = name in self.known and name in locals_of(self.function)
        return [f"{name} = torch.where({hit}, {value}, {name})"] if known and value else []

    def _written(self, part: ast.Expr, call: ast.Call) -> bool:
        """``x.addcmul_(a, p)`` and ``p.mul_(b).sub_(r)`` of a name whose tensor the function has made."""
        steps = list[ast.Call]()
        node: ast.expr = call
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            steps.insert(0, node)
            node = node.func.value
        names = [each.func.attr for each in steps if isinstance(each.func, ast.Attribute)]
        given = [n for each in steps for n in (*each.args, *(o.value for o in each.keywords))]
        if (
            not isinstance(node, ast.Name)
            or node.id not in locals_of(self.function)
            or not self._is_fresh(node.id, part)
        ):
            return False
        if not all(map(_has_twin, names)) or not all(is_pure(self.place, n) for n in given):
            return False
        if node.id in self.behind:
            text = self.place.text(call)
            for name in names:
                text = text.replace(f".{name}(", f".{name[:-1]}(")
            new = f"{node.id}.copy_(torch.where({self.done}, {node.id}, {text}))"
            self.edits.append(self.source.replace(part, new))
        return True

    def _begins_as_none(self, name: str) -> bool:
        """Whether a name is None before the loop, and has its first value there."""
        starts = [value for made, value in given_to(self.function, name) if made.lineno < self.loop.lineno]
        return (
            name != self.given and len(starts) == 1 and isinstance(starts[0], ast.Constant) and starts[0].value is None
        )

    def _is_of_round(self, part: ast.stmt) -> bool:
        """Whether only the round itself reads what a statement does."""
        return all(self._is_inner(n) for n in within(part) if isinstance(n, ast.stmt) and n is not part)

    def _inside(self, part: ast.For | ast.If) -> bool:
        """What is read behind the loop is kept where a round gives it a value: ``for c in range(k): x[c] = v``."""
        head = part.iter if isinstance(part, ast.For) else part.test
        if not is_pure(self.place, head) or (isinstance(part, ast.For) and part.orelse):
            return False
        if isinstance(part, ast.For) and stored([ast.Expr(part.target)]) & self.behind:
            return False
        unset = unset_in(part.test) if isinstance(part, ast.If) else None
        if unset is not None and any(each.lineno < part.lineno for each in self.breaks):
            return False  # it may have ended before there was a value
        self.below += 1
        self.given = unset[0] if unset is not None else self.given
        done = [self._under(part, each, unset) for each in (*part.body, *part.orelse)]
        self.below, self.given = self.below - 1, ""
        return all(done)

    def _under(self, part: ast.For | ast.If, each: ast.stmt, unset: tuple[str, bool] | None) -> bool:
        if each in self.breaks:
            return self._ends(each)
        if unset is not None and (each in part.body) is unset[1] and name_of(each) == unset[0]:
            return isinstance(each, ast.Assign) and is_pure(self.place, each.value)  # its first value
        if isinstance(each, (ast.For, ast.If)):
            return self._is_of_round(each) or self._inside(each)
        return self._is_inner(each) or self._step(each)

    def _is_inner(self, part: ast.stmt) -> bool:
        if isinstance(part, (ast.For, ast.If, ast.Pass)):
            return True
        if not isinstance(part, (ast.Assign, ast.AugAssign)) or not self._is_pure(part, part.value):
            return False
        target = target_of(part)
        into = path_of(target.value) if isinstance(target, ast.Subscript) else ""
        name = name_of(part) or (into if into and self._is_fresh(into, part) else "")
        return bool(name) and self._is_own(name) and name not in self.behind

    def _is_pure(self, part: ast.stmt, value: ast.expr) -> bool:
        """Whether a round may compute something after the end: it writes at most into what it has made itself."""
        asked = {n.id for n in ast.walk(value) if isinstance(n, ast.Name) and self._is_own(n.id)}
        return is_pure(self.place, value, {name for name in asked if self._is_made_here(name, part)})

    def _is_made_here(self, name: str, part: ast.stmt) -> bool:
        """Whether each round makes what a name stands for at a statement, and nothing behind the loop reads it."""
        made = [(node, value) for node, value in given_to(self.function, name) if node.lineno < part.lineno]
        made = [each for each in made if each[0] in self.loop.body]
        bare = any(isinstance(n, ast.Assign) and path_of(n.value) == name for n in ast.walk(self.loop))
        if not made or bare or name in self.behind:
            return False
        return all(self._is_made(value, node) for node, value in made)

    def _is_made(self, value: ast.expr, node: ast.stmt) -> bool:
        while isinstance(value, (ast.Subscript, ast.Attribute)) or (_is_view(value) and isinstance(value, ast.Call)):
            value = value.value if not isinstance(value, ast.Call) else value.func
        return self._is_made_here(value.id, node) if isinstance(value, ast.Name) else not _is_view(value)

    def _is_own(self, name: str) -> bool:
        return name in locals_of(self.function)

    def _is_fresh(self, name: str, part: ast.stmt) -> bool:
        """Whether the function itself has made what a name stands for at a statement."""
        made = [(node, value) for node, value in given_to(self.function, name) if node.lineno < part.lineno]
        made = [each for each in made if each[0] in self.loop.body] or made
        return bool(made) and not any(_is_view(value) for _, value in made)


def _is_view(value: ast.expr) -> bool:
    """Whether what an expression gives may be memory that something else names, too."""
    if isinstance(value, ast.Call):
        return called(value) in _VIEWS
    return isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.IfExp, ast.BoolOp))
