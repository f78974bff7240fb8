"""Memory of parameters that lines around a step keep, and put back."""

from __future__ import annotations

import ast
from typing import Any

from paramgraph_kit.doctor.observe.captured_values import NOTHING
from paramgraph_kit.doctor.observe.loop_names import Meanings
from paramgraph_kit.doctor.observe.loop_state import MEMORY, Run
from paramgraph_kit.doctor.observe.loop_values import all_of


class Kept(Meanings):
    """Knows what had set memory that is kept."""

    def _keep(self, holds: ast.expr, node: ast.AST, run: Run) -> None:
        """An entry keeps the memory of parameters, ``backup[k] = p.data``: what had set it is known then."""
        value, at = getattr(node, "value", None), self._kept_in(holds, run)
        if not isinstance(value, ast.Attribute) or value.attr != MEMORY:
            self.kept.pop(at, None)
            return
        by, known = self.kept.get(at, (run, {}))
        known = known if by is run else {}
        for owner in all_of(self._value(value.value, run)):
            known.setdefault(id(owner), self.state.last.get((id(owner), MEMORY)))
        self.kept[at] = run, known

    def _is_put_back(self, owner: Any, node: ast.AST, run: Run) -> bool:
        """Whether a parameter gets the memory again that an entry has kept of it: ``p.data = backup[k]``."""
        value = getattr(node, "value", None)
        at = self._kept_in(value.value, run) if isinstance(value, ast.Subscript) else None
        _, known = self.kept.get(at, (run, {}))
        if id(owner) not in known:
            return False
        self.state.last.pop((id(owner), MEMORY), None)
        then = known[id(owner)]
        self.state.last |= {(id(owner), MEMORY): then} if then is not None else {}
        return True

    def _kept_in(self, holds: ast.expr, run: Run) -> tuple[int, str]:
        value = self._value(holds, run)
        return (id(run.owner), ast.unparse(holds)) if value is NOTHING else (id(value), "")
