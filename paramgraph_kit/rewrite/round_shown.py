"""What is shown of a round that was cut out: one diff from the user's own lines, and how its loop launches it."""

from __future__ import annotations

import ast
import types
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name
from paramgraph_kit.doctor.observe.added_to_lists import KEEPS
from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite.loops.one_round import Round, Rounds
from paramgraph_kit.rewrite.loops.spans import Block
from paramgraph_kit.rewrite.proving.launches import plainly
from paramgraph_kit.rewrite.proving.proof import STEPS, Truth
from paramgraph_kit.rewrite.result import ANEW, Rewriting
from paramgraph_kit.rewrite.round_calls import called, named, unpacks_otherwise, with_calls
from paramgraph_kit.rewrite.round_left import diff_of
from paramgraph_kit.rewrite.round_run import Run
from paramgraph_kit.rewrite.source.borrow import at_any_depth, borrowed, codes_in, compiled
from paramgraph_kit.rewrite.source.edits import Source, names_in, path_of, without_gradients
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.ways import Ways

_EMPTY = types.CellType()


def shown_of(
    whole: Ways, source: Source, found: Round, fix: Rewriting, run: Run, truth: Truth, loop: Block
) -> Rewriting | None:
    """What is shown of it: one diff from the user's own lines; None where that is not what was tried."""
    whole_loop = calls_itself(whole, found, fix, run, truth) if fix.usage else []
    texts = {file.removesuffix(REWRITTEN): lines for file, lines in fix.texts.items()}
    texts.setdefault(source.file, run.texts)
    shown = {**texts, source.file: whole_loop or texts[source.file]}
    if unpacks_otherwise(shown, found.name):
        return None  # its caller calls what goes around a launch only where that was tried
    kinds = {layouts for one in run.calls for layouts, _ in one}
    name_of_it = whole.entry_name
    given, run.given, run.has_now = run.given, (), []  # whoever keeps the fix may let go of them
    captured = f"partial({', '.join([found.name, *run.bound])})" if run.bound else found.name
    of_loop = isinstance(loop, Rounds)
    where = "branch" if isinstance(loop, ast.If) else "loop"
    rounds = "rounds" if of_loop else "that part"
    what = f"one round of the {where} of line {loop.lineno}" if of_loop else f"a part of `{name_of_it}`"
    # A decorator would also hold for callers that train it.
    own = without_gradients(source, loop.body[0])
    mode = f" in `{run.context}`, as it is called here" if run.context and not own else ""
    told = [
        f"{what} is what a graph holds: capture `{captured}`" + " for the loop" * of_loop + mode,
        f"`{name_of_it}`, with {rounds} from graphs, gives the original's results and state in {STEPS} steps",
    ]
    if len({tuple(x for x in plain if not isinstance(x, bool)) for one in run.calls for _, plain in one}) > 1:
        told.append(f"capture it where `{name_of_it}` has made what it binds, for each call anew")
    if kept := [n for n, value in zip(run.bound, given, strict=False) if _is_kept(value)]:
        told.append(f"its graph keeps `{'`, `'.join(kept)}`: {ANEW}")
        told += _filled_anew(run.texts, found.name, kept)
    outer = source.function_of(loop) or loop
    if any(isinstance(n, ast.Attribute) and n.attr in ("requires_grad", "requires_grad_") for n in ast.walk(outer)):
        told.append(f"its graph keeps what needs gradients: {ANEW}")
    chosen = [n for n, value in zip(run.bound, given, strict=False) if isinstance(value, bool)]
    chosen = chosen if len(run.decided()) > 1 else []
    graph = f"launched[{', '.join(chosen)}]" if chosen else "launched"
    if chosen:
        told.append(
            f"`{'`, `'.join(chosen)}` is true in some rounds and false in others: each has a graph of its own, "
            "captured once such rounds have run as they are"
        )
    if "set_to_none=False" in "".join(run.texts) and chosen:
        told.append("all graphs add to the same gradients: whoever else zeroes them needs `set_to_none=False`, too")
    elif "set_to_none=False" in "".join(run.texts):
        told.append(
            "its gradients keep their memory: capture it once a round has run as it is, and whoever else zeroes them "
            "needs `set_to_none=False`, too"
        )
    if len(kinds) > 1:
        told.append(f"its rounds have tensors of {len(kinds)} sizes: each has a graph of its own")
    if none := _none_at_times(outer, found):
        told.append(f"`{'`, `'.join(none)}` may be None: capture a graph of its own for that, whatever this trial had")
    if kept := _kept_by(loop, found):
        told.append(
            f"each replay writes to the same `{'`, `'.join(kept)}`: where the loop keeps it, keep `{kept[0]}.clone()`"
        )
    told += [f"{found.name}: {line}" for line in fix.verified]

    @contextmanager
    def both() -> Iterator[Any]:
        with run.applied() as call, with_its_lines(whole, fix):
            call(plainly(run.made, fix.around, len(run.bound)))  # its function calls it by name, and nothing else
            yield run.made

    return replace(
        fix,
        function=name_of_it,
        alone=found.name,
        is_of_loop=of_loop,
        bound=len(run.bound),
        usage=fix.usage if not whole_loop else "",
        loop=[named(line, found).replace("launched(", f"{graph}(") for line in fix.loop]
        if fix.usage
        else [called(found, len(run.bound), graph)],
        given=given,
        capture=captured,
        complete=False,  # of the function itself
        texts=shown,
        run=texts,
        diff=diff_of(shown),
        verified=[line.replace(REWRITTEN, "") for line in told],
        _borrow=both,
    )


def _is_kept(value: Any) -> bool:
    """Whether it is or has numbers, or values of the call in which it was made: ``lambda v: jacobian(u, v)``."""
    cells = getattr(value, "__closure__", None) or ()
    own = (cell.cell_contents for cell in cells if cell != _EMPTY)
    if isinstance(value, (list, tuple, dict, set)):
        inside = [*value.values()] if isinstance(value, dict) else [*value]
        return any(isinstance(each, (int, float, str, list, tuple, dict)) for each in inside)
    return isinstance(value, (int, float, str)) or any(isinstance(each, (int, float, torch.Tensor)) for each in own)


def with_anew(shown: Rewriting, anew: tuple[str, ...], name: str, *, own_gradients: bool) -> Rewriting:
    """The same, with what the function makes in each call, and what its graphs do not share, told."""
    made = "`, `".join(f".{each}" for each in anew)
    told = [f"capture it where `{name}` has set `{made}`, for each call anew"] if anew else []
    if own_gradients:
        told.append("each graph has gradients of its own, which it steps with: `p.grad` shows those of one of them")
    return replace(shown, anew=anew, verified=[*shown.verified, *told])


def _kept_by(loop: ast.AST, found: Round) -> list[str]:
    """Results of a round that what stays in the loop keeps as they are: in a list, or by a name over later rounds."""
    inside = {n for part in found.part for n in ast.walk(part)}
    outside = [n for n in ast.walk(loop) if n not in inside and isinstance(n, ast.Call)]
    given = [(last_name(n.func), arg) for n in outside for arg in n.args]
    names = {arg.id for into, arg in given if into in KEEPS and isinstance(arg, ast.Name)}
    nodes = ast.walk(loop) if isinstance(loop, Rounds) else ()
    for node in (n for n in nodes if n not in inside and isinstance(n, ast.Assign)):
        at_times = node not in loop.body  # type: ignore[attr-defined]
        for target, value in zip(elements_of(node.targets[0]), elements_of(node.value), strict=False):
            # What the next round is given has been copied before it writes; a round that leaves it would write there.
            if isinstance(value, ast.Name) and (at_times or path_of(target) not in found.parameters):
                names.add(value.id)
    return [name for name in found.results if name in names and name not in found.copied]


def _filled_anew(lines: Iterable[str], name: str, kept: Collection[str]) -> list[str]:
    """What to do about tensors of as many elements as rounds that an argument gives, which is kept in the graph."""
    every = [n for n in ast.walk(ast.parse("".join(lines))) if isinstance(n, ast.FunctionDef)]
    fills = next((n for n in every if n.name == f"before_{name}"), None)
    if fills is None:
        return []
    ranges = [n.iter for n in ast.walk(fills) if isinstance(n, ast.For) and last_name(n.iter) != "zip"]
    asked = sorted({*kept} & {name for each in ranges for name in names_in(each)})
    zips = [n for n in ast.walk(fills) if isinstance(n, ast.Call) and last_name(n.func) == "zip" and n.args]
    held = sorted({n.args[0].id for n in zips if isinstance(n.args[0], ast.Name) and n.keywords})
    if not asked or not held:
        return []
    tensors, numbers = "`, `".join(held), "`, `".join(asked)
    told = (
        f"`{tensors}` has an element for each round that `{numbers}` gives here: where that changes, make it anew with"
    )
    return [f"{told} as many, ahead of `{fills.name}`"]


def _none_at_times(function: ast.AST, found: Round) -> list[str]:
    """What a round is given that its function sets to None at times, as a label that is dropped by chance."""
    every = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)]
    none = stored([n for n in every if n.value.value is None])  # type: ignore[attr-defined]
    return [name for name in found.parameters if name in none]


@contextmanager
def with_its_lines(whole: Ways, fix: Rewriting) -> Iterator[None]:
    """While this lasts the round runs its rewritten lines, and so does the function, which may make what it binds."""
    file = whole.file + REWRITTEN
    codes = {file: compiled(file, fix.texts[file])} if file in fix.texts else {}
    with fix.applied(), borrowed([whole.entry] if whole.entry is not None else [], codes, {}):
        yield


def calls_itself(whole: Ways, found: Round, fix: Rewriting, run: Run, truth: Truth) -> list[str]:
    """The lines of the file with these calls, where the function gives what it gave as they stand; else none."""
    file = whole.file + REWRITTEN
    space = whole.entry.__globals__ if whole.entry is not None else {}
    try:
        lines = with_calls(found, fix, fix.texts[file]) if fix.loop else fix.texts[file]
        code = compiled(file, lines)
        called_there = {line.rpartition(" = ")[2].partition("(")[0] for line in fix.loop} - {"launched"}
        made = {c.co_name: types.FunctionType(c, space, c.co_name) for c in codes_in(code) if c.co_name in called_there}
        if made.keys() != called_there or made.keys() & space.keys():
            return []
        with run.applied(), fix.applied():
            space.update(made)
            try:
                own = [whole.entry] if whole.entry is not None else []
                # Where the round comes to it, its lines are lent already, and once more for each way behind another.
                with borrowed(own, at_any_depth(own, {file: code}), {}):
                    wrong = truth.wrong(whole.prover.from_now().eager())
            finally:
                for name in made:
                    del space[name]
    except KeyboardInterrupt:
        raise  # it is the user's
    except Exception:  # then what to call is told beside the diff
        return []
    return lines if not wrong else []
