"""What is left to the user: all of it at once, each place with what to write there, where the line itself tells."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from paramgraph_kit.doctor.cell import is_made_of
from paramgraph_kit.doctor.explain.exception import explain
from paramgraph_kit.doctor.explain.gather import text_of
from paramgraph_kit.doctor.known.evidence import first_line
from paramgraph_kit.doctor.observe.fetched_anew import FETCHED, FETCHED_WITHIN
from paramgraph_kit.doctor.observe.one_call import MOVED
from paramgraph_kit.doctor.observe.other_numbers import OTHER_NUMBERS
from paramgraph_kit.driver.files import display_name, rewritten_once
from paramgraph_kit.rewrite.advised.advice import hint
from paramgraph_kit.rewrite.advised.asks.put_off import NOBODY_WAITS
from paramgraph_kit.rewrite.advised.host.from_host import BEHIND, DECIDED, LEFT
from paramgraph_kit.rewrite.advised.host.made_of_numbers import given_by_callers
from paramgraph_kit.rewrite.advised.host.trained_through import trained_through
from paramgraph_kit.rewrite.advised.otherwise import at_least
from paramgraph_kit.rewrite.advised.sizes.grown import AGAIN
from paramgraph_kit.rewrite.advised.specific import is_specific, names_of_files
from paramgraph_kit.rewrite.agreeing import named_apart
from paramgraph_kit.rewrite.planning import Attempt
from paramgraph_kit.rewrite.source.edits import Source, names_in, on_one_line, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.rewrite.source.reach import attributes_of
from paramgraph_kit.trace.model import Failure, Frame
from paramgraph_kit.trace.wording import frame_text

INDENT = " " * 11  # of what to write in a place, below it
BEHIND_A_CELL = (
    "belongs behind the launch: move it there yourself; with the cell's lines in a function it moves by itself"
)
ALONE = "belongs behind the launch: move it there yourself"
Told = dict[int, tuple[Place, str]]  # by the id of a problem
CUT = "end what is captured before line"
_ROUND = re.compile(r"what a round computes, lines? (\d+)(?: to (\d+))?, is a function of its own")
_READ_THERE = re.compile(r"is read in the graph, line \d+ `([^`]+)`")
ENDS = re.compile(r"end what is captured before (?:the loop of )?line (\d+)")
_ENDS_HERE = re.compile(r"end what is captured here, .* with all after line (\d+) behind the launch")
_ENDS_THERE = ("end what is captured", "a launch cannot end early", "nothing runs on the device")
_FILLED = re.compile(r"before each launch `(\w+\.fill_\([\w.]+\.(\w+)\))`")
ELSE = "; with that line mended, "
IN_PIECES = "stays as it is, in pieces"
_PIECES = 'backend="paramgraph")` launches what lies before and after it'
_WRITES_STATE = ("stale-input", "parameter-rebound")  # which a graph reads again, wherever it is written
_COUNT = ("numel", "len", "sum", "item", "count_nonzero")
ENDLESS = ("exits", "time-limit")  # it is not called again
_OF_OURS = re.compile(r"later(_\d+)?\.clear\(\)")
ENDED = ("raises", "exits", "time-limit")


def still(
    attempt: Attempt, found: Sequence[Failure], known: Sequence[Failure], left: Sequence[Failure]
) -> list[Failure]:
    """The problems of the rewritten function: of those that are left, which it still has, and what it has got."""
    before = {_what(failure): failure for failure in known}
    there = {_what(failure) for failure in found}
    found = [f for f in found if f.frame is None or not _OF_OURS.fullmatch(f.frame.text)]  # once the rest is put off
    more = [before.get(_what(failure)) or attempt.at_home(failure) for failure in found]
    ended = any(failure.code in ENDED for failure in found)  # it did not come to the lines behind that
    kept = [f for f in left if (ended or _cycles(f)) and _what(f) not in there]
    return kept + more


def frozen_by_it(attempt: Attempt, found: Sequence[Failure], known: Sequence[Failure]) -> list[Failure]:
    """Numbers among the arguments that only the rewritten lines would freeze: ``total += loss`` of a given total."""
    before = {_what(failure) for failure in known}
    new = [f for f in found if f.code == "scalar-frozen" and OTHER_NUMBERS in f.message and _what(f) not in before]
    return [attempt.at_home(failure) for failure in new]


def _cycles(failure: Failure) -> bool:
    """Whether a scheduler moves a number of an optimizer: where its step has moved away that is not seen again."""
    return failure.code == "scalar-frozen" and MOVED in failure.message


def _what(failure: Failure) -> tuple[str, str]:
    return failure.code, failure.frame.text if failure.frame else ""


def lines(
    attempt: Attempt,
    failures: Sequence[Failure],
    known: Sequence[Failure] | None = None,
    others: Sequence[Failure] = (),
) -> list[str]:
    """One line for each place; ``known`` are the problems of the function as it is, ``others`` what no line mends."""
    failures = [*failures, *_alike(failures, others)]
    places: dict[str, list[Failure]] = {}
    for failure in failures:
        places.setdefault(place_text(failure.frame), []).append(failure)
    told = _told(attempt, failures)
    if all(text == BEHIND for _, text in told.values()):  # no other line is left to mend
        told = {key: (place, ALONE) for key, (place, _) in told.items()}
    cut = _with_one_cut(told.values())
    return [_line(attempt, place, each, known, told, cut) for place, each in places.items()]


def _alike(failures: Sequence[Failure], known: Sequence[Failure]) -> list[Failure]:
    """Problems of the same function at other lines, which are written alike: a trial tells of one of them."""
    left = {(*_what(each), each.frame.file, each.frame.function) for each in failures if each.frame is not None}
    lines = {place_text(each.frame) for each in failures}
    more = [each for each in known if each.frame is not None and place_text(each.frame) not in lines]
    return [f for f in more if f.frame is not None and (*_what(f), f.frame.file, f.frame.function) in left]


def _told(attempt: Attempt, failures: Sequence[Failure]) -> Told:
    """What is advised at the place of each."""
    places = [(failure, _place(attempt, failure)) for failure in failures]
    ways = [place.statement for failure, place in places if place is not None and failure.code == "branch-frozen"]
    told = {id(failure): (place, _of_its_way(place, hint(place), ways)) for failure, place in places if place}
    told = {key: (place, given_by_callers(place, text, [*told.values()])) for key, (place, text) in told.items()}
    filled = {match[2]: match[1] for _, text in told.values() for match in _FILLED.finditer(text)}
    told = {key: (place, _ahead_of_it(place, text, filled)) for key, (place, text) in told.items()}
    apart = named_apart([text for _, text in told.values()])
    return {key: (place, text) for (key, (place, _)), text in zip(told.items(), apart, strict=True)}


def _ahead_of_it(place: Place, text: str, filled: Mapping[str, str]) -> str:
    """The same of a line, where a tensor is filled before each launch with the attribute that it gives a value."""
    node = place.statement
    target = node.targets[0] if isinstance(node, ast.Assign) and text == BEHIND else None
    if not isinstance(target, ast.Attribute) or target.attr not in filled:
        return text
    return f"belongs before each launch, ahead of `{filled[target.attr]}`, which reads it: take it out of the function"


def _of_its_way(place: Place, text: str, ways: Sequence[ast.stmt]) -> str:
    """The same, where only a way that the host chooses draws, counts or reads what it tells: others do not."""
    inside = any(above in ways and isinstance(above, ast.If) for above in place.source.above(place.statement))
    return text.replace("before each launch", "before each launch of this way") if inside else text


def _with_one_cut(told: Iterable[tuple[Place, str]]) -> dict[int, str]:
    """What to do where one line of a function says to end there, or to leave all in pieces: the others follow that.

    Words for one graph would be more than is needed, or contradict it: behind a cut all of the host's stays as it is.
    """
    found: dict[Any, list[tuple[Place, str]]] = {}
    told = [*told]
    if pieces := [place for place, text in told if _PIECES in text]:
        stays = f"{IN_PIECES} with line {pieces[0].statement.lineno}"
        return {id(place.failure): stays + _else(place, text) for place, text in told if _PIECES not in text}
    if again := [place for place, text in told if AGAIN in text]:  # what is left then is told by what it is then
        stays = f"stays as it is until line {again[0].statement.lineno} is written so: what is left is told then"
        return {id(place.failure): stays for place, text in told if AGAIN not in text}
    if (around := _around_rounds(told)) is not None:
        return around
    for place, text in told:
        if (function := place.source.function_of(place.statement)) is not None:
            found.setdefault(function, []).append((place, text))
    texts: dict[int, str] = {}
    for each in found.values():
        each.sort(key=lambda pair: pair[0].statement.lineno)
        whole = [pair for pair in each if pair[1].startswith((CUT, "keep all of"))]
        if len({text.startswith(CUT) for _, text in whole}) == 2:
            first = whole[0][0]
            if (text := at_least(first)).startswith(CUT):
                if counts := _counts(first):
                    text += f"; `{'`, `'.join(counts)}` too, where the lines above make a tensor of it"
                texts |= {id(place.failure): _behind(first.statement.lineno) for place, _ in whole}
                texts[id(first.failure)] = text
                each = [(place, text if place is first else told) for place, told in each]
        texts = {**_all_behind(each), **texts}
    return {**_called_behind(found), **texts}


def _around_rounds(told: Sequence[tuple[Place, str]]) -> dict[int, str] | None:
    """Where one round of a loop is what is launched, all that is not computed in it goes on as it did."""
    rounds = [(place, read) for place, text in told if (read := _ROUND.match(text)) is not None]
    if not rounds:
        return None
    inside = dict[int, str]()
    for place, read in rounds:
        function, lines = place.source.function_of(place.statement), range(int(read[1]), int(read[2] or read[1]) + 1)
        calls = [n for n in ast.walk(function or place.statement) if isinstance(n, ast.Call) and n.lineno in lines]
        names = {called(n) for n in calls} | {"forward"}
        for other, text in told:
            own = other.source.function_of(other.statement)
            if (own is function and other.statement.lineno in lines) or (
                own is not function and own and own.name in names
            ):
                inside[id(other.failure)] = text
    first = rounds[0][1]
    where = f"lines {first[1]} to {first[2]}" if first[2] else f"line {first[1]}"
    stays = f"stays as it is, around the launches of {where}"
    asks = {id(place.failure): text for place, text in told if _ROUND.match(text)}
    return {id(place.failure): stays for place, _ in told} | inside | asks


def _all_behind(told: Sequence[tuple[Place, str]]) -> dict[int, str]:
    """Lines of a function behind the first one before which it is to end: what the host does there it goes on to do."""
    cuts = [(int(found[1]), place) for place, text in told if (found := ENDS.match(text) or _ENDS_HERE.search(text))]
    if not cuts:
        return {}
    at, first = min(cuts, key=lambda cut: cut[0])
    return {
        id(place.failure): _behind(at) + _else(place, text)
        for place, text in told
        if place.statement.lineno >= at and place.statement is not first.statement
        if place.failure.code not in _WRITES_STATE
    }


def _called_behind(found: Mapping[Any, Sequence[tuple[Place, str]]]) -> dict[int, str]:
    """Lines of functions that are called only behind a line before which the captured part is to end."""
    texts = dict[int, str]()
    for function, each in found.items():
        cuts = [int(match[1]) for _, text in each if (match := ENDS.match(text)) is not None]
        for name, told in found.items() if cuts else ():
            tree = told[0][0].source.tree
            calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and called(n) == name.name]
            own = {*ast.walk(function)}
            if name is not function and calls and all(n in own and n.lineno >= min(cuts) for n in calls):
                texts |= {id(place.failure): _behind(min(cuts)) for place, _ in told}
    return texts


def behind_a_cut(statement: ast.stmt, source: Source, lines: Sequence[str]) -> str:
    """What is said of a line that no words are of, where those of a line above it in its function say to end there."""
    function = source.function_of(statement)
    for first, *rest in (each.split("\n") for each in lines):
        for found in filter(None, (ENDS.match(each.strip()) for each in rest)):
            at = int(found[1])
            there = first.startswith(f"{display_name(source.file)}:") and function is not None
            if there and function.lineno <= at < statement.lineno <= (function.end_lineno or at):  # type: ignore[union-attr]
                return _behind(at)
        for found in filter(None, map(_ENDS_HERE.search, rest)):
            at = int(found[1])
            within_it = function is not None and function.lineno <= at <= (function.end_lineno or at)
            if within_it and at < statement.lineno and first.startswith(f"{source.file}:{at} "):
                return _behind(at)
    return ""


def _else(place: Place, text: str) -> str:
    """What is said of a line alone, for who mends the one by which it would stay; not where it says no more."""
    counted = place.failure.code in DECIDED and "before each launch" in text  # of what the step has found there
    is_more = bool(text) and not counted and not text.startswith(("belongs", NOBODY_WAITS, *_ENDS_THERE))
    return f"{ELSE}{text}" if is_more else ""


def is_in_pieces(text: str) -> bool:
    """Whether words are those for what is cut or compiled, and not for a graph of all of a function."""
    return _PIECES in text or text.startswith((IN_PIECES, CUT))


def _behind(line: int) -> str:
    return f"stays as it is, behind the launch with line {line}"


def _counts(place: Place) -> list[str]:
    """Numbers that a function has found before a line in what a tensor holds, and that what stands from there reads."""
    function, line = place.source.function_of(place.statement), place.statement.lineno
    every = [n for part in (function.body if function is not None else ()) for n in ast.walk(part)]
    behind = {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.lineno >= line}
    before = [n for n in every if isinstance(n, ast.Assign) and n.lineno < line and names_in(n.value) & {*place.seen}]
    sized = [n for n in before if any(isinstance(each, ast.Call) and called(each) in _COUNT for each in ast.walk(n))]
    return sorted(stored(sized) & behind - {*place.seen})


def all_told(lines: Sequence[str], left: Sequence[Failure]) -> bool:
    """Whether each line says exactly what to write: of one graph that is only worth something where all do."""
    names = names_of_files({failure.frame.file for failure in left if failure.frame is not None})
    for first, *texts in (each.split(f"\n{INDENT}") for each in lines):
        told = [text for text in texts if not is_in_pieces(text)] if "  [" in first else [first]
        if not told or not all(is_specific(text, names) for text in told):
            return False
    return True


def is_told_there(text: str, lines: Sequence[str]) -> bool:
    """Whether the line by which a value is read in the graph has words of its own, which know what it decides."""
    read = _READ_THERE.search(text)
    places = [first for first, *rest in (each.split("\n") for each in lines) if rest]
    return read is not None and any(read[1] in place and "frozen" in place.rpartition("  [")[2] for place in places)


def place_text(frame: Frame | None) -> str:
    """``file:line  text``; a file that was rewritten again is called rewritten once."""
    return rewritten_once(frame_text(frame))


def _line(
    attempt: Attempt,
    place: str,
    failures: list[Failure],
    known: Sequence[Failure] | None,
    told: Told,
    cut: dict[int, str],
) -> str:
    later = known is not None and not any(failure is each for failure in failures for each in known)
    line = f"{place}  [{', '.join(dict.fromkeys(f.code for f in failures))}]"
    if why := next((text for f in failures if (text := attempt.unsafe.get(id(f), ""))), ""):
        line += f": a rewrite was tried and taken back, {why}"
    elif later:
        line += ": once the lines above are rewritten"
    texts = (cut.get(id(f)) or _hint(attempt, f, told, later) for f in failures)
    return f"\n{INDENT}".join([line, *dict.fromkeys(filter(None, texts))])


def _hint(attempt: Attempt, failure: Failure, told: Told, later: bool = False) -> str:
    if id(failure) not in told:
        return ""
    place, text = told[id(failure)]
    if failure.message.endswith((FETCHED, FETCHED_WITHIN)) and text in ("", BEHIND, LEFT, ALONE):
        return failure.fix.rpartition("after   ")[2]
    if later and text.startswith(NOBODY_WAITS):
        text = BEHIND  # its line is another one by then
    step = attempt._definition() if text in (BEHIND, LEFT, ALONE) else None
    if step is not None and (why := trained_through(place, step)):
        return why
    if text in (BEHIND, LEFT, ALONE) and is_made_of(place.source.file):
        return BEHIND_A_CELL
    return text or (_rebound(attempt) if failure.code == "stale-input" else "")


def hint_for(attempt: Attempt, failure: Failure) -> str:
    """What is advised at the place of one alone."""
    return _hint(attempt, failure, _told(attempt, [failure]))


def _place(attempt: Attempt, failure: Failure) -> Place | None:
    if (at := attempt.place(failure)) is None:
        return None
    held = attributes_of(attempt.prover.state)
    tensors = attempt.forms_in(*at) if failure.code in DECIDED else {}  # others tell what makes a tensor
    entry = attempt.entry_name
    known: dict[str, Any] = {
        "seen": frozenset(attempt.forms_in(*at)),
        "forms": attempt.forms_in(*at),
        "space": attempt.space_in(at[0]),
        "attributes": held,
        "tensors": tensors,
        "called": attempt.called_by(*at),
        "plain": attempt.plain_of(*at),
        "given": attempt.given if (own := attempt._definition()) and at[0].function_of(at[1]) is own[1] else {},
        "arguments": attempt.given,
    }
    return Place(*at, failure, attempt.device_in(at[0]), entry=entry, **known)


def _rebound(attempt: Attempt) -> str:
    """Tensors around the function that it gives other tensors' names: ``global x``, and ``x = batch()``."""
    at = attempt._definition()
    every = [n for part in at[1].body for n in within(part)] if at is not None else []
    outer = {name for node in every if isinstance(node, ast.Global) for name in node.names}
    held = {name for name in outer if isinstance(attempt.space.get(name), torch.Tensor)}
    for node in every:
        names = sorted(stored([node]) & held) if isinstance(node, ast.Assign) else []
        if at is not None and names and isinstance(node, ast.Assign):
            many = f"`{'`, `'.join(names)}` {'are other tensors' if len(names) > 1 else 'is another tensor'}"
            rounds = "each of its rounds" if any(isinstance(n, ast.For) for n in at[0].above(node)) else "it"
            return (
                f"{many} from line {node.lineno} on, `{on_one_line(at[0].text(node))}`, and a graph reads what was "
                f"there at its capture: have what {rounds} needs made before the launch, and written into tensors that "
                f"stay, `{names[0]}_in.copy_(...)`, which the step reads"
            )
    return ""


def unsaid(attempt: Attempt, failures: Sequence[Failure], known: Sequence[Failure] | None = None) -> list[Failure]:
    """Those for whose place no line says what to write: there the example of their class has to do.

    What the rewritten lines bring with them, or show, waits for what of ``known`` is left.
    """
    told = _told(attempt, failures)
    said = {failure.frame for failure in failures if _hint(attempt, failure, told)}
    first = [f for f in failures if known is None or any(f is each for each in known)]
    return [failure for failure in first or failures if failure.frame not in said]


def brief(error: BaseException) -> str:
    """An error in a line, with where it was raised."""
    failure = explain(error)
    where = f" at {place_text(failure.frame)}" if failure.frame else ""
    return f"{type(error).__name__}: {first_line(text_of(error))}{where}"[:200]
