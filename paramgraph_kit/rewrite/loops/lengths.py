"""What grows by one piece in each round of a loop that goes on is cut behind the launch."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.loops.early import given_to
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source
from paramgraph_kit.rewrite.source.place import Place, called, fresh, integer, is_number


class Lengths:
    """The lists and tensors of one loop that grow."""

    place: Place
    source: Source
    function: Function
    taken: set[str]
    done: str  # the name of what says that the loop has come to its end
    edits: list[Edit]
    before: list[str]  # lines for before the loop
    handed: dict[str, str]  # what leaves the graph for that, and how
    lines: list[str]  # what is done behind the launch
    numbers: set[str]  # names that were numbers of the host's, and are tensors now

    def _fresh(self, hint: str) -> str:
        name = fresh(hint, self.taken)
        self.taken = self.taken | {name}
        return name

    def _append(self, part: ast.Expr, value: ast.expr, name: str) -> bool:
        made = [value for _, value in given_to(self.function, name)]
        begun = made[0] if len(made) == 1 else None
        if not isinstance(begun, ast.List) or name in self.handed or any(is_number(each) for each in begun.elts):
            return False
        kept = isinstance(value, ast.Name) and value.id in self.numbers
        number = (
            isinstance(value, ast.Call) and called(value) in ("item", "int") and not isinstance(value.func, ast.Name)
        )
        left = self._count(part)
        if number:
            assert isinstance(value, ast.Call)
            assert isinstance(value.func, ast.Attribute)
            self.edits.append(
                self.source.replace(value, f"{self.source.bracketed(value.func.value)}.detach().squeeze()")
            )
        self.handed[name] = f"torch.stack({name})"
        listed = f"{name}.tolist()" if number or kept else f"list({name})"
        self.lines.append(f"{name} = {listed}[: len({name}) - int({left})]")
        return True

    def _count(self, part: ast.stmt) -> str:
        """A tensor that counts the rounds in which a statement would not have run any more."""
        left = self._fresh("left")
        self.before.append(f"{left} = torch.zeros((), dtype=torch.long, device={self.place.device})")
        self.edits.append(self.source.before(part, [f"{left} = {left} + {self.done}"]))
        self.handed[left] = left
        return left

    def _grows(self, part: ast.stmt, name: str) -> int | None:
        """The dimension in which ``x = torch.cat([x, y], dim)`` grows by one."""
        value = part.value if isinstance(part, ast.Assign) else None
        if not isinstance(value, ast.Call) or called(value) not in ("cat", "concat", "concatenate") or not value.args:
            return None
        given = value.args[0]
        dims = [*value.args[1:], *(o.value for o in value.keywords if o.arg in ("dim", "axis"))]
        dim = integer(dims[0]) if dims else 0
        if not isinstance(given, (ast.List, ast.Tuple)) or len(given.elts) != 2 or dim is None:
            return None
        one, new = given.elts
        if not self._is_one(new, dim):
            return None
        if _is_reordered(one, name):  # as beams are: what has ended stays as it is
            self.edits.append(self.source.replace(one, f"torch.where({self.done}, {name}, {self.place.text(one)})"))
            return dim
        return dim if isinstance(one, ast.Name) and one.id == name else None

    def _is_one(self, new: ast.expr, dim: int) -> bool:
        if isinstance(new, ast.Name):
            form = self.place.tensors.get(new.id)
            return form is not None and -len(form.shape) <= dim < len(form.shape) and form.shape[dim] == 1
        if isinstance(new, ast.Call) and called(new) == "unsqueeze" and len(new.args) == 1:
            return integer(new.args[0]) == dim
        if isinstance(new, ast.Subscript) and isinstance(new.slice, ast.Tuple):
            parts = new.slice.elts
            at = parts[dim] if -len(parts) <= dim < len(parts) else None
            return isinstance(at, ast.Constant) and at.value is None
        return False


def _is_reordered(node: ast.expr, name: str) -> bool:
    """Whether an expression is ``x[order]`` or ``x.index_select(0, order)``, with as many of ``x`` as there are."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Name) and node.value.id == name and isinstance(node.slice, ast.Name)
    owner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    picks = isinstance(node, ast.Call) and called(node) == "index_select" and len(node.args) == 2
    return picks and isinstance(owner, ast.Name) and owner.id == name
