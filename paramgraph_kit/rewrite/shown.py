"""What a rewriting shows of its rounds: the diff, and how what goes around a launch is called."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from paramgraph_kit.rewrite.callers import take_more
from paramgraph_kit.rewrite.proving.proof import Around
from paramgraph_kit.rewrite.provisos import LED, provisos
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.rounds import Rounds
from paramgraph_kit.rewrite.source.edits import Function, is_method, path_of
from paramgraph_kit.rewrite.source.given import OfLoop, name_of, written
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.ways import Ways


def show(rounds: Rounds, found: Rewriting) -> None:
    """Write the diff of all rounds, and how what they moved is called, into what was found."""
    first = rounds.all[0][0]
    diffs = (first.sources[file].diff_to(lines) for file, lines in rounds.texts.items())
    found.diff = "\n".join(diff for diff in diffs if diff)
    found.texts = dict(rounds.texts)
    found._borrow, found.around = rounds.applied, rounds.around
    new = [line for line in found.diff.splitlines() if line.startswith("+")]
    gone = [line for line in found.diff.splitlines() if line.startswith("-")]
    found.verified += provisos(new, [line for lines in rounds.texts.values() for line in lines], gone)
    found.verified += [f"run `{line}` once, in a cell before this one, which reads it" for line in rounds.ahead]
    usage, mover = [], rounds.mover
    if mover.fed is not None and found.around.before is not None:
        fed = mover.fed
        usage.append(_call(mover, fed.name, fed.parameters, len(fed.parameters)) + " before each launch")
    if mover.moved is not None and found.around.after is not None:
        moved = mover.moved
        text = _call(mover, moved.name, moved.parameters, moved.arguments) + " after each launch"
        usage.append(text + ", which returns the result" * moved.returns)
        found.verified += take_more(mover, moved)
        found.verified += [LED] if moved.returns and mover.is_differentiable() else []
    found.usage = ", and ".join(usage)
    if taken := [
        each.name for each in (mover.fed, mover.moved) if each is not None and f"{each.name}_of[" in found.usage
    ]:
        step = name_of(mover.function, mover.space)
        lines = "; ".join(f"{name} = {name}_of[{step}]" for name in taken)
        found.verified.append(
            f"`{lines}` ahead of what gives its name to a launch, `{step} = pgk.parameterize({step})`"
        )
    found.loop = _loop(mover, found.around)


def _loop(first: Ways, around: Around) -> list[str]:
    """A step of the user's loop: what comes before a launch, the launch, and what comes after it."""
    fed = first.fed if around.before is not None else None
    moved = first.moved if around.after is not None else None
    called, texts = written(first.function, first.args, first.kwargs, name_of(first.function, first.space))
    texts = {} if isinstance(first.function, OfLoop) else texts

    def line(name: str, parameters: Sequence[str], arguments: int) -> str:
        own = _is_own(first, parameters)
        given = [texts.get(each, each) for each in parameters[own:arguments]]
        return _called(first, name, [*parameters[:own], *given, *parameters[arguments:]])

    lines = [line(fed.name, fed.parameters, len(fed.parameters))] if fed is not None else []
    given = ", ".join(moved.parameters[moved.arguments :]) if moved is not None and moved.results else ""
    lines.append(f"{given or 'out'} = launched({called})")
    if moved is not None:
        lines.append("out = " * moved.returns + line(moved.name, moved.parameters, moved.arguments))
    return lines


def _call(first: Ways, name: str, parameters: Sequence[str], arguments: int) -> str:
    """The call, in which what the caller does not give is written as its default, or as what a partial has of it."""
    _, texts = written(first.function, first.args, first.kwargs, name_of(first.function, first.space))
    texts = {} if isinstance(first.function, OfLoop) else texts
    own = _is_own(first, parameters)
    given = [texts.get(each, each) for each in parameters[own:arguments]]
    return f"call {_called(first, name, [*parameters[:own], *given, *parameters[arguments:]])}"


def _called(first: Ways, name: str, parameters: Sequence[str]) -> str:
    own, at = _is_own(first, parameters), first._definition()
    scope = first.entry.__qualname__.rpartition(".")[0] if first.entry is not None else ""
    if not own and at is not None and isinstance(at[0].parents.get(at[1]), ast.ClassDef):  # what gets no object
        kind = scope.rpartition("<locals>.")[2]
        given = [kind if n == 0 and each == _class_given(at[1]) else each for n, each in enumerate(parameters)]
        return f"{kind}.{name}({', '.join(given)})"
    made = "<locals>" in scope and not own
    by = f"_of[{name_of(first.function, first.space)}]" if made else ""
    return f"{f'{parameters[0]}.' if own else ''}{name}{by}({', '.join(parameters[own:])})"


def _class_given(function: Function) -> str:
    """What a classmethod calls its class."""
    named = any(path_of(each) == "classmethod" for each in function.decorator_list)
    return next(iter(arguments_of(function)), "") if named else ""


def _is_own(first: Ways, parameters: Sequence[str]) -> bool:
    """Whether a function beside the step is a method as that is."""
    at = first._definition()
    if at is None:
        return parameters[:1] == ["self"] and first.entry is not None and "." in first.entry.__qualname__
    return bool(parameters) and is_method(*at) and parameters[0] == arguments_of(at[1])[0]
