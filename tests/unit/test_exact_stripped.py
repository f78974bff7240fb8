"""Which of the user's names a trace without sources hides, by their length and by where they stand."""

from __future__ import annotations

import pytest

from paramgraph_kit.trace.format import _functions


@pytest.mark.parametrize(
    ("names", "text", "left"),
    [
        (["fit"], "failed in fit", "failed in X"),
        (["fit"], "fit(x) at 3", "X(x) at 3"),
        (["fit"], "called 'fit' and `fit`", "called 'X' and `X`"),
        (["fit"], "a fit of data", "a fit of data"),  # a common word, which stands for itself
        (["fit"], "outfit(x)", "outfit(x)"),
        (["my_fit"], "a my_fit of data", "a X of data"),
        (["f1"], "failed in f1, f1(x)", "failed in f1, f1(x)"),  # two letters would hit anything
        (["Net.forward", "Net.my_fit"], "in Net, forward(x), my_fit", "in X, X(x), X"),
        (["<lambda>"], "in <lambda>", "in <lambda>"),
        (["step", "step_two"], "step_two(x), step(x)", "X(x), X(x)"),
        ([], "fit(x)", "fit(x)"),
    ],
)
def test_names_of_three_letters_are_hidden_where_they_stand_as_names(names: list[str], text: str, left: str) -> None:
    # GIVEN a text with names of functions WHEN hidden THEN where they stand as names, or could be nothing else
    assert _functions(names).sub("X", text) == left
