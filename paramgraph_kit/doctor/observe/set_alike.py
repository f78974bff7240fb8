"""Lines that set nothing of a step's: a number that each of them gives, or an entry of what they have made."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, elements_of, every, innermost, last_name, pairs_of, tree_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.held import file_of
from paramgraph_kit.doctor.observe.set_between import Setting
from paramgraph_kit.driver.files import display_name

_DISPLAYS = (ast.Dict, ast.List, ast.DictComp, ast.ListComp, ast.Constant)
_TENSORS = ("full", "tensor", "as_tensor", "scalar_tensor", "full_like", "zeros", "ones")


def changes_no_number(each: Setting) -> bool:
    """Whether each line of its file that sets it sets the number that is there, or a tensor that is made of it."""
    use, file = each.use, each.use.code.co_filename
    if type(use.value()) not in NUMBERS or any(one.at.file != display_name(file) for one in (each, *each.also)):
        return False
    if all(_is_a_tensor_by_then(file, one.target, one.at.line) for one in (each, *each.also)):
        return True
    is_its = isinstance(use.node, ast.Name) or file_of(type(use.owner())) == file
    return is_its and _always_sets(file, last_name(use.node), use.value())


def _always_sets(file: str, name: str, value: float) -> bool:
    """Whether all lines of a file that set a variable, or an attribute, of that name give it this number."""
    given = _given(file, name)
    constants = [each.value for each in given if isinstance(each, ast.Constant)]
    return len(constants) == len(given) > 1 and all(type(c) is type(value) and c == value for c in constants)


def makes_its_own(function: ast.AST, name: str) -> bool:
    """Whether a variable of a function has what stands there, ``mb = {"obs": x}``, and nothing of anybody else's."""
    given = [value for node in ast.walk(function) for target, value in pairs_of(node) if last_name(target) == name]
    return bool(given) and all(isinstance(value, _DISPLAYS) for value in given)


def _is_a_tensor_by_then(file: str, target: str, line: int) -> bool:
    """Whether a function makes a tensor of a number ahead of its line that counts it: ``rate = torch.full((), rate)``.

    What is put back behind a call that is examined is the number of before.
    """
    around = innermost(tree_of(file), line, FUNCTIONS[:2])
    pairs = [pair for n in (ast.walk(around) if around is not None else ()) for pair in pairs_of(n)]
    given = [value for to, value in pairs if to.lineno < line and ast.unparse(to) == target]
    return bool(given) and isinstance(given[-1], ast.Call) and last_name(given[-1].func) in _TENSORS


def _given(file: str, name: str) -> tuple[ast.expr, ...]:
    tree = tree_of(file)
    found: list[ast.expr] = []
    for node in every(tree) if tree is not None else ():
        found += [value for target, value in pairs_of(node) if last_name(target) == name]
        target = getattr(node, "target", None)  # of a loop or a count, which give it another one each time
        if isinstance(node, (ast.AugAssign, ast.For, ast.comprehension, ast.NamedExpr)) and target is not None:
            found += [target for each in elements_of(target) if last_name(each) == name]
        if isinstance(node, ast.Call) and any(isinstance(n, ast.Constant) and n.value == name for n in node.args):
            found.append(node)  # ``setattr(self, "rate", rate)``
        if isinstance(node, (ast.arg, ast.keyword)) and node.arg == name:
            found.append(ast.Name(name))
    return tuple(found)
