"""Which class a method is one of, as the text of its file tells."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, every, last_name


def class_of_method(tree: ast.Module | None, method: ast.AST, name: str) -> str:
    """The class whose object a name is in a method, as its first argument; "" for any other name, or no method."""
    if tree is None or not isinstance(method, FUNCTIONS[:2]):
        return ""
    given = [*method.args.posonlyargs, *method.args.args]
    static = any(last_name(each) == "staticmethod" for each in method.decorator_list)
    if static or not given or given[0].arg != name:
        return ""
    kinds = (n for n in every(tree) if isinstance(n, ast.ClassDef))
    return next((kind.name for kind in kinds if method in kind.body), "")
