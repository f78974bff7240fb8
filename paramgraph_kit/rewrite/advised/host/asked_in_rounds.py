"""Advice for what the host asks of a loop's variable, which no line before the launch has: ``if p.grad is None``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import names_in
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, fresh

_LEAVES = (ast.Break, ast.Continue, ast.Return)


def asked_in_rounds(place: Place, node: ast.If, instead: str, flag: str) -> str:
    """What to write where rounds of a loop ask, each of its own: one flag for each, or a graph for all answers."""
    loops = [each for each in reversed(place.loops()) if isinstance(each, ast.For)]
    given = [{n.id for n in ast.walk(each.target) if isinstance(n, ast.Name)} for each in loops]
    asked = [(loop, names & names_in(node.test)) for loop, names in zip(loops, given, strict=True)]
    asked = [(loop, names) for loop, names in asked if names]
    if not asked:
        return ""
    function, test, (loop, names) = place.source.function_of(node), place.text(node.test), asked[-1]
    name = min(names)
    known = set[str]().union({"self"}, *given)
    known |= set(arguments_of(function)) if function is not None and not place.helper else set()
    read = set[str]().union(*(place.local(each) for each in (node.test, *(each.iter for each in loops))))
    if ".grad" in test or not read <= known or len(place.loops()) != len(loops):
        return (
            f"each round of line {loop.lineno} asks it of another `{name}`, which no line before the launch has: "
            "capture one graph for each set of answers, kept by what decides them, and launch that of the call"
        )
    leaves = [n for part in (*node.body, *node.orelse) for n in ast.walk(part) if isinstance(n, _LEAVES)]
    if leaves and (keys := _asked_of_others(node.test, set().union(*given))):
        does = "ends the rounds" if not isinstance(leaves[0], ast.Continue) else "leaves the rest of a round out"
        key = f"({', '.join(keys)})" if len(keys) > 1 else keys[0]
        return (
            f"`{test}` {does}, and gives nothing that a tensor could choose: capture one graph for each value of "
            f"{' and '.join(f'`{each}`' for each in keys)}, kept as `graphs[{key}]`, and launch that of the call"
        )
    rounds = " ".join(f"for {place.text(each.target)} in {place.text(each.iter)}" for each in loops)
    one = fresh("chosen", place.taken)
    return (
        f"each round asks it of its own `{name}`: once `{flag} = torch.zeros(len([0 {rounds}]), dtype=torch.bool, "
        f"device={place.device})`, before each launch `{flag}.copy_(torch.tensor([bool({test}) {rounds}]))`, ahead of "
        f"line {loops[0].lineno} `each_in = iter({flag})`, here `{one} = next(each_in)`, and in place of the branch "
        f"{instead.replace(flag, one)}"
    )


def _asked_of_others(test: ast.expr, given: set[str]) -> list[str]:
    """The variables and attributes that a test reads, but for those of the loops: ``self.depth``."""
    inside = {id(part) for n in ast.walk(test) if isinstance(n, ast.Attribute) for part in ast.walk(n.value)}
    called = {id(n.func) for n in ast.walk(test) if isinstance(n, ast.Call)}
    read = [n for n in ast.walk(test) if isinstance(n, (ast.Name, ast.Attribute)) and id(n) not in inside | called]
    return [*dict.fromkeys(ast.unparse(n) for n in read if given.isdisjoint(names_in(n)))]
