"""Which numbers that a launch is given meet tensors of float64, whose last digits one of float32 would lose."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from torch.utils._pytree import tree_leaves

from paramgraph_kit.rewrite.around.watched import Values
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.source.digits import all_wide, is_real, read_there
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Form
from paramgraph_kit.rewrite.source.reach import attributes_of


def note_wide(
    source: Source,
    nodes: Sequence[ast.expr],
    found: Sequence[Values],
    forms_in: Callable[[Source, ast.stmt], Mapping[str, Form]],
    prover: Prover,
) -> None:
    """Note it of expressions, as far as their statement's tensors are known; else by all that the step has."""
    attributes = attributes_of(prover.state) if found else {}
    for node, values in zip(nodes, found, strict=False):
        statement = source.statement_of(node)
        there = [each for each in read_there(statement, forms_in(source, statement), attributes) if is_real(each)]
        values.wide = all_wide(there or (*tree_leaves(prover.inputs), *prover.state.tensors))
