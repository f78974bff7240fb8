"""What to write for each problem in the user's own line, as far as its text tells: nothing is run for it, or tried."""

from __future__ import annotations

import ast
import difflib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Never

from paramgraph_kit.doctor.diagnosis import Fix
from paramgraph_kit.doctor.observe.fetched_anew import FETCHED, FETCHED_WITHIN
from paramgraph_kit.doctor.observe.gradients import nulls_around
from paramgraph_kit.doctor.observe.other_readings import follows, is_picked
from paramgraph_kit.doctor.observe.set_between import again_behind, says_what_sets
from paramgraph_kit.doctor.observe.unordered import TAKES
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.rewrite.advised.advice import hint
from paramgraph_kit.rewrite.advised.asks.waited_for import unless_waited_for
from paramgraph_kit.rewrite.advised.host.filled_ahead import filled_ahead, unless_it_is_asked
from paramgraph_kit.rewrite.advised.sizes.rounds_given import of_each_round
from paramgraph_kit.rewrite.agreeing import agreed
from paramgraph_kit.rewrite.around.later import reached
from paramgraph_kit.rewrite.behind_words import BEHIND, pinned, with_gradients_kept
from paramgraph_kit.rewrite.by_hand import behind_a_cut, is_in_pieces, place_text
from paramgraph_kit.rewrite.new_lines import (
    chooses_sized,
    is_behind_its_head,
    leaves_gradients,
    marked,
    once_before,
    picks_by_masks,
    picks_the_same,
    still_asks,
    unmarked,
)
from paramgraph_kit.rewrite.own_blocks import (
    Block,
    blocks_of,
    head_of,
    heads_like,
    is_a_tensor_now,
    is_beside_a_round,
    is_only_around,
    is_touched,
    like_of,
    lines_of,
)
from paramgraph_kit.rewrite.own_neighbours import is_a_neighbours, told_around
from paramgraph_kit.rewrite.planning import Attempt
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.set_between_launches import again_between
from paramgraph_kit.rewrite.settled import ALREADY, is_settled
from paramgraph_kit.rewrite.source.ahead_of import named_by
from paramgraph_kit.rewrite.source.digits import with_digits
from paramgraph_kit.rewrite.source.edits import Function, Source, heads, within
from paramgraph_kit.rewrite.source.place import Form, Place, Unseen, around_launches, asked, called
from paramgraph_kit.rewrite.source.reach import attributes_of
from paramgraph_kit.trace.model import Failure

ANEW = (
    "the same, and at the end of the step written into the tensor that was read: `held.copy_(new)`. A parameterized "
    "launch reads whatever tensor is there"
)
AHEAD = "draw or count it before each launch, into a tensor that this line reads"
BY_FIX = {BEHIND: "fix=True moves it there", ANEW: "fix=True writes that", AHEAD: "fix=True writes that"}
AS_IT_IS = "stays as it is, with what the diff writes elsewhere"
LEFT_OUT = "leave it out, as in the diff"
MORE = "; fix=True looks at shapes, and may write the line itself"
IN_DIFF = "as in the diff, with what belongs to it elsewhere"
BESIDE = "stays as it is, beside the part that a graph holds"
WITHIN = "stays as it is, in `{}`, which a graph holds, as in the diff"
_REGISTERED = "unregistered-generator"
IN_PIECES = "stays as it is in pieces, `{}`, which is tried below"
MOVED = "the same {when} each launch, in `{name}`, as in the diff"
FOLLOWS = (
    "follows what is read: once that stays on the device as a tensor, `torch.where` takes both ways and a mask stands "
    "for a part; else it goes behind each launch, with the line that reads"
)
PICKED = (
    "what is read picks which tensor this line reads, and a graph has the one of its capture: compute all of them and "
    "take one by a tensor, `torch.stack([...])[k]`; else it goes behind each launch, with the line that reads"
)
FOLLOWS_AHEAD = (
    "follows what is read, and decides whether gradients are computed: it goes with the line that reads, and not "
    "behind a launch that has computed them"
)
MOST_LINES = 6  # of an example
FITS = 6  # lines before and after, where a problem is told in full
_STAYS = "stays as it is until"  # with all that was found there
_MARK = re.compile(r"# (before|after) each launch\s*$")
PLAIN = "without changing a line"  # of pieces that were proved of the lines as they are
_TRIED = re.compile(rf", (?:{PLAIN}|with these lines)")
_GIVEN = re.compile(
    r"^keep `[\w.]+` on the d|decides a size: find it before|gives \d+ numbers in one launch: once "
    r"|once `[^`]+` is a tensor, as told |^each round of|^goes behind the launch with|^the sched"
    r"|`(?:(?:self\.)?\w+_in(?:_\d+)?|\w+\[\"\w+\"\])\.(?:fill|copy)_\((?!\.\.\.)[^`]+\)`"
)
_WAITS = ("synchronize", "captured-event")  # of such a line nothing has to stay
_OF_STEPS = ("stale-input",)  # what these rules ask for is seen in several steps
_TOLD = ("host-counter", "print")
_KEPT = ("size-frozen", "scalar-frozen", "branch-frozen")
_ASKS = frozenset("sync-item copy-to-cpu data-dependent-branch dynamic-shape mask-assignment".split())  # noqa: SIM905
_OF_THE_HOST = ("host-random", "scalar-frozen")  # what the host has drawn or counted


def in_own_lines(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    failures: Sequence[Failure],
    by_hand: Sequence[Failure] = (),
    fix: Fix | None = None,
) -> list[Failure]:
    """The same, each with its own line before and after, where that line tells what to write.

    ``by_hand`` are those of which a rewrite has been tried, ``fix``, and that are left: of these only what to do is
    told. Of the others its diff, if there is one, has the lines, and nothing else is said.
    """
    try:
        attempt = _Unrun(function, args, kwargs, _Still(function, args, kwargs))
    except Exception:  # it answers as it likes; the example of the class has to do
        return [*failures]
    attempt.unsafe = {id(each): "left" for each in by_hand}
    written = {(each.code, each.frame.text) for each in by_hand if each.frame is not None}
    for each in failures:  # of lines that are written alike one is left for all
        alike = each.frame is not None and (each.code, each.frame.text) in written
        if alike and fix is not None and _said_by_hand(each, fix.instead, first=False):
            attempt.unsafe[id(each)] = "left"
    blocks = list(blocks_of(fix.diff if fix is not None else ""))
    found, tensors = (
        agreed([_own(attempt, each, blocks, fix) for each in failures], (FOLLOWS,)),
        attempt.prover.state.tensors,
    )
    return [replace(each, fix=with_digits(each.fix, tensors)) for each in found]


class _Unknown(Mapping[str, Form]):
    """What nobody has seen: a rule that asks for a tensor's shape finds nothing without it."""

    def __getitem__(self, name: str) -> Never:
        raise Unseen

    def __iter__(self) -> Iterator[str]:
        raise Unseen

    def __len__(self) -> int:
        raise Unseen


class _Still(Prover):
    """Holds what a function can reach, and never runs it."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.state = function, HostState(function, args, kwargs)


class _Unrun(Attempt):
    """One function of whose steps nothing is known; lines are rewritten where they stand."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], prover: Prover) -> None:
        super().__init__(function, args, kwargs, prover)
        self.moves = self.feeds = False

    def forms_in(self, *_: object) -> Any:
        """Nobody has seen them."""
        return _Unknown()


def _own(attempt: _Unrun, failure: Failure, blocks: Sequence[Block], fix: Fix | None) -> Failure:
    try:
        at = attempt.place(failure)
        in_diff = bool(blocks) and id(failure) not in attempt.unsafe
        if nulls_around(failure) or TAKES in failure.message:
            return failure
        if says_what_sets(failure):
            shown = _shown(failure, blocks, at) if in_diff else None
            if shown is None or shown[1] == [IN_DIFF]:
                return failure  # the line around the step is what one changes
        if fix is not None and is_settled(fix) and at is not None:
            function = at[0].function_of(at[1])
            inside = function is not None and function.name in {fix.alone, *reached([at[0]], [fix.alone])}
            stays = ALREADY.format(fix.alone) if inside else BESIDE
            return replace(failure, fix=_text(([failure.frame.text if failure.frame is not None else ""], [stays])))
        if in_diff and fix is not None and at is not None and _stays(failure, at, fix, blocks):
            stays = WITHIN.format(fix.alone) if _is_within(at, fix) else again_between(fix, failure) or BESIDE
            return replace(failure, fix=_text(([failure.frame.text if failure.frame is not None else ""], [stays])))
        pair = _shown(failure, blocks, at) if in_diff else None
        if pair and failure.frame is not None and any(line.lstrip().startswith("def ") for line in pair[0]):
            pair = [failure.frame.text], [IN_DIFF]  # the head of a function moves: the diff shows where the line is
        if pair is None:
            pair = _pair(attempt, failure, *at, tried=fix is not None) if at else None
            if follows(failure) and failure.frame is not None:
                ahead = at is not None and leaves_gradients(*at)
                words = PICKED if is_picked(failure) else FOLLOWS_AHEAD if ahead else FOLLOWS
                pair = [failure.frame.text], [words]
            pair = _moved(failure, at, fix) if in_diff and not (pair and _is_in(pair[1], blocks)) else pair
        elif pair[1] == [IN_DIFF] or (at is not None and is_a_neighbours(at[1], pair)):
            moved = _moved(failure, at, fix)
            pair = pair if pair[1] != [IN_DIFF] and moved[1] == [IN_DIFF] else moved
        elif failure.code == "scalar-frozen" and at is not None and fix is not None and is_only_around(at, fix):
            pair = told_around(pair)
        if pair and pair[1] == [IN_DIFF] and fix is not None and failure.code in _KEPT and (kept := _kept(fix, at)):
            pair = pair[0], [kept]
    except Exception:  # an object of the user's may raise whatever it likes where it is looked at
        return failure
    if pair and pair[1] == [IN_DIFF] and fix is not None and PLAIN in fix.pieces:
        return replace(failure, fix=_text(_in_pieces(failure, (pair[0], []), fix)))  # the diff has nothing of it
    if pair and pair[1] == [IN_DIFF] and fix is not None and not is_touched(failure, at, blocks):
        tensor = is_a_tensor_now(at, blocks) and not fix.pieces
        pair = (pair[0], [AS_IT_IS]) if tensor else _untouched(attempt, failure, at, fix, pair)
    left = fix is not None and id(failure) in attempt.unsafe
    said = _said_by_hand(failure, fix.instead, first=pair is None) if left and fix is not None else ""
    pair = (pair[0] if pair else [failure.frame.text if failure.frame is not None else ""], [said]) if said else pair
    if left and not said and failure.code in _KEPT and fix is not None and at is not None and _reads_stale(at, fix):
        kept = _kept(fix, at)
        pair = ([failure.frame.text if failure.frame is not None else ""], [kept]) if kept else pair
    if at is not None and fix is not None and not fix.alone and (cut := behind_a_cut(at[1], at[0], fix.instead)):
        pair = [failure.frame.text if failure.frame is not None else ""], [cut]
    if fix is not None and fix.pieces and (id(failure) in attempt.unsafe or (PLAIN in fix.pieces and follows(failure))):
        pair = _in_pieces(failure, pair, fix)
    elif pair and in_diff and fix is not None and PLAIN in fix.pieces and not (fix.complete or fix.alone):
        told = pair[1] if len(pair[1]) == 1 and "as in the diff" in pair[1][0] else ["as in the diff"]
        pair = _in_pieces(failure, ([failure.frame.text if failure.frame is not None else ""], told), fix)
    behind = again_behind(failure)
    if not pair or (behind is not failure and any(AHEAD in line for line in pair[1])):
        return behind
    return replace(failure, fix=_text(pair))


def _kept(fix: Fix, place: tuple[Source, ast.stmt] | None) -> str:
    """What is said of a value that a graph would keep, though it moves: of the lines that read it the diff has none.

    Nothing of a line that no graph runs by that diff.
    """
    if place is not None and is_only_around(place, fix):
        return ""
    return next((line for line in fix.instead if fix.stale and re.match(rf"`[\w.]*\b{fix.stale}`", line)), "")


def _reads_stale(place: tuple[Source, ast.stmt], fix: Fix) -> bool:
    """Whether a statement reads what gets another value outside the launch, or what it asks for by name does."""
    return bool(fix.stale) and fix.stale in named_by(place[0], heads(place[1]))


def _in_pieces(failure: Failure, pair: tuple[list[str], list[str]] | None, fix: Fix) -> tuple[list[str], list[str]]:
    """What is proved comes first: in pieces a line is as it is; what one graph needs is more, if it stays for that."""
    line, told = pair or ([failure.frame.text if failure.frame is not None else ""], [])
    written = _TRIED.split(fix.pieces)[0]
    if failure.code == _REGISTERED and told and not is_in_pieces(told[0]):
        return line, [f"{told[0]}; or it {IN_PIECES.format(written)}"]
    more = [each for each in told[:1] if fix.instead and not is_in_pieces(each)]
    return line, [IN_PIECES.format(written) + "".join(f"; for one graph {each}" for each in more)]


def _text(pair: tuple[list[str], list[str]]) -> str:
    before, after = (textwrap.indent("\n".join(lines), " " * 8).strip() for lines in pair)
    return f"before  {before}\nafter   {after}"


def _stays(failure: Failure, place: tuple[Source, ast.stmt], fix: Fix, blocks: Sequence[Block]) -> bool:
    """Whether a line is none of the part that was cut out of its function, and goes on as it did before or behind."""
    at = failure.frame
    if not fix.alone or at is None:
        return False
    own = [each for each in blocks if each.file == at.file and 0 <= at.line - each.first < len(each.gone)]
    if fix.is_of_loop:  # what the round comes to is part of it, also where its lines are as they were
        return not own and _is_around(place, fix)
    calls = re.compile(rf"(?<!def )\b{fix.alone}\(")
    new = "".join(line for each in blocks for line in each.new)
    if own and at.text.strip() not in map(str.strip, new.splitlines()):
        return False  # the diff writes another one in its place
    behind = any(_MARK.search(line.rstrip()) for each in blocks for line in each.new) and at.text.strip() in new
    return not behind and not any(calls.search(line) for each in own for line in each.new)


def _is_within(place: tuple[Source, ast.stmt], fix: Fix) -> bool:
    """Whether a statement is in the part as it was, and nowhere else."""
    source, wanted = place[0], ast.dump(place[1])

    def count(node: ast.AST) -> int:
        return sum(isinstance(n, ast.stmt) and ast.dump(n) == wanted for n in ast.walk(node))

    tree = ast.parse("".join(fix.texts.get(source.file, [])))
    parts = [n for n in ast.walk(tree) if isinstance(n, Function) and n.name == fix.alone]
    return count(source.tree) == sum(map(count, parts))


def _is_around(place: tuple[Source, ast.stmt], fix: Fix) -> bool:
    """Whether a statement is of the function whose loop calls the round that was cut out of it, or of what calls that.

    Or of what a function calls beside the round: ``self.exchange(field)`` behind ``self.sweep(field)``.
    What the round itself comes to is in the graph, and so may be what only has the name of that.
    """
    source, statement = place
    function = source.function_of(statement)
    if function is None or function.name == fix.alone:
        return False
    trees = {file: ast.parse("".join(lines)) for file, lines in fix.texts.items()}
    new = [Source(file, tree) for file, tree in ({source.file: source.tree} | trees).items()]
    callers = [n for each in new for n in ast.walk(each.tree) if isinstance(n, Function) and n.name == function.name]
    if any(called(n) == fix.alone for each in callers for n in within(each) if isinstance(n, ast.Call)):
        return True
    if function.name in reached(new, [fix.alone]):
        return False
    every = {n.name for each in new for n in ast.walk(each.tree) if isinstance(n, Function)}
    return any({fix.alone, function.name} <= reached(new, [name]) for name in every)


def _said_by_hand(failure: Failure, lines: Sequence[str], *, first: bool) -> str:
    """The one line that is said of a place that is left, which knows the steps that were tried.

    ``first``: also where a place has other problems behind this one.
    """
    place = place_text(failure.frame)
    for each in lines:
        head, *rest = each.split("\n")
        codes = head.removeprefix(f"{place}  [").partition("]")[0].split(", ") if head.startswith(f"{place}  [") else []
        is_its = codes == [failure.code] or (first and codes[:1] == [failure.code])
        if len(rest) == 1 and (is_its or (failure.code in codes and _STAYS in rest[0])):
            return rest[0].strip()
    return ""


def _shown(
    failure: Failure, blocks: Sequence[Block], place: tuple[Source, ast.stmt] | None
) -> tuple[list[str], list[str]] | None:
    """What a diff puts where a problem is; of a statement of several lines all of it, before and after."""
    at = failure.frame
    for block in blocks if at is not None else ():
        if at is None or block.file != at.file or not 0 <= at.line - block.first < len(block.gone) or not block.new:
            continue
        gone, new = block.gone, _of_its_block(block.gone, block.new)
        if place is not None:
            source, (first, last) = place[0], lines_of(place[1])
            if first <= block.first and block.first + len(gone) - 1 <= last:
                inside = [each for each in blocks if each.file == at.file and first <= each.first <= last]
                gone = source.lines[first - 1 : last]
                new = [*gone]
                for each in sorted(inside, key=lambda one: one.first, reverse=True):
                    begin = each.first - first
                    new[begin : begin + len(each.gone)] = _of_its_block(each.gone, each.new)
        if len(gone) + len(new) <= FITS or (gone is not block.gone and max(len(gone), len(new)) <= MOST_LINES):
            return _dedented(gone), _dedented(new)
        if like := like_of(at.text.strip(), _dedented(new)):  # of many lines its own
            return [at.text], [like]
        return [at.text], [IN_DIFF]  # what is advised where nothing was tried may be less
    return None


def _of_its_block(gone: Sequence[str], new: Sequence[str]) -> list[str]:
    """What a diff puts there, without what it goes on with outside of the block in which the lines stand."""
    widths = [len(line) - len(line.lstrip()) for line in new]
    own = len(gone[0]) - len(gone[0].lstrip()) if gone else 0
    ends = (line.strip()[:1] not in ("", *")]}") and width < own for line, width in zip(new, widths, strict=True))
    left = (i for i, is_left in enumerate(ends) if is_left)
    kept = [*new[: next(left, len(new))]]
    while kept and not kept[-1].strip():
        kept.pop()
    if len(gone) == 1 and len(kept) < len(new) and (like := like_of(gone[0].strip(), _dedented(kept))):
        return [f"{' ' * own}{like}\n"]
    return kept or [*new]


def _is_in(lines: Sequence[str], blocks: Sequence[Block]) -> bool:
    """Whether a diff puts these lines somewhere: where an optimizer is made, say."""
    new = {line.strip() for block in blocks for line in block.new}
    return all(unmarked(line.strip()) in new for line in lines)


def _moved(failure: Failure, place: tuple[Source, ast.stmt] | None, fix: Fix | None) -> tuple[list[str], list[str]]:
    """Where a diff has a line that it leaves as it is."""
    line = [failure.frame.text if failure.frame is not None else ""]
    if place is None or fix is None:
        return line, [IN_DIFF]
    source, statement = place
    lines, wanted, head = fix.texts.get(source.file, []), ast.dump(statement), head_of(statement)
    tree = ast.parse("".join(lines))
    found, headed = list[str](), list[str]()
    for mark, when in (("before", "before"), ("after", "behind")):
        for function in around_launches(source.file, lines, tree, mark):
            every, text = [*ast.walk(function)], MOVED.format(when=when, name=function.name)
            found += [text] if any(isinstance(n, ast.stmt) and ast.dump(n) == wanted for n in every) else []
            headed += [text] if head and any(head_of(n) == head for n in every) else []
    if found:  # of two that are written alike, as a wait around a time, the first goes before and the last behind
        around = source.function_of(statement)
        alike = [n for n in ast.walk(around or source.tree) if isinstance(n, ast.stmt) and ast.dump(n) == wanted]
        is_last = len(alike) > 1 and statement is max(alike, key=lambda n: n.lineno)
        return line, [found[-1 if is_last else 0]]
    # What a branch or a loop has inside may be another thing by then, and the rest of it may have stayed.
    if headed and heads_like(tree, head) == heads_like(source.tree, head):
        return line, headed[:1]
    stays = failure.code not in _WAITS or ast.unparse(statement) in ast.unparse(ast.parse("".join(lines)))
    return line, [IN_DIFF if stays else LEFT_OUT]


def _untouched(
    attempt: _Unrun,
    failure: Failure,
    place: tuple[Source, ast.stmt] | None,
    fix: Fix,
    pair: tuple[list[str], list[str]],
) -> tuple[list[str], list[str]] | None:
    """What is said of a line that a diff leaves as it is, where it is: a diff that is not all of it mends it by none.

    What only runs around the launch by that diff is right there.
    """
    if fix.complete or (not fix.alone and place is not None and is_only_around(place, fix)):
        return pair[0], [AS_IT_IS]
    if fix.alone:
        return pair[0], [BESIDE if is_beside_a_round(place, fix, attempt.entry_name) else AS_IT_IS]
    if fix.pieces:
        return _in_pieces(failure, (pair[0], []), fix)
    try:
        return _pair(attempt, failure, *place, tried=True) if place is not None else pair
    except Unseen:
        return None


def _pair(
    attempt: _Unrun, failure: Failure, source: Source, statement: Any, *, tried: bool
) -> tuple[list[str], list[str]] | None:
    """Lines before and after, or the line and what to do about it."""
    held, entry = attributes_of(attempt.prover.state), attempt.entry_name
    own, space, where = attempt._definition(), attempt.space_in(source), attempt.device_in(source)
    given = attempt.given if own is not None and source.function_of(statement) is own[1] else {}
    known: Any = {"space": space, "attributes": held, "entry": entry, "given": given, "arguments": attempt.given}
    at = Place(source, statement, failure, where, **known)
    said = unless_waited_for(at, hint(at))
    first, last = lines_of(statement)
    whole = _dedented(source.lines[first - 1 : last])  # the frame has one line of it
    line = whole if 1 < len(whole) <= MOST_LINES else [failure.frame.text if failure.frame is not None else ""]
    belongs_behind = said.startswith("belongs behind the launch")
    # Of what such a statement does nothing else in the step can come.
    ahead = "both belong before" in said or said.startswith("belongs before each launch: ")
    elsewhere = ahead or (bool(said) and any(isinstance(n, ast.Lambda) for n in ast.walk(statement)))
    elsewhere = elsewhere and not belongs_behind
    tells = isinstance(statement, ast.Expr) and not elsewhere and (belongs_behind or failure.code in _TOLD)
    more = ""
    if not tells and failure.code not in _OF_STEPS and id(failure) not in attempt.unsafe:
        try:
            changed = _changed(attempt, failure, source, statement)
        except Unseen:  # what is advised where nothing was tried may be less than what a trial would write
            changed, more = None, "" if tried else MORE
        if changed is not None:
            return changed
        if failure.code in _OF_THE_HOST and not isinstance(statement, (ast.If, ast.For, ast.While)):
            known = _GIVEN.search(said) or of_each_round(said)
            asks = unless_it_is_asked(at, said) if known else asked(filled_ahead, at, "")
            return line, [asks or _by_fix(AHEAD, tried=tried)]
    if belongs_behind or tells:
        moved = pinned(source, statement) if failure.code == "copy-to-cpu" else BEHIND
        return line, [with_gradients_kept(source, statement, _by_fix(moved, tried=tried))]
    if not said and failure.message.endswith((FETCHED, FETCHED_WITHIN)):
        said = failure.fix.rpartition("after   ")[2]  # what is fetched is another one, and no state of the step's
    said = said or (_by_fix(ANEW, tried=tried) if failure.code in _OF_STEPS else "")
    return (line, [said.replace(", so it was not rewritten", "") + more]) if said else None


def _by_fix(text: str, *, tried: bool) -> str:
    """The same, and what a trial would do about it, unless there was one."""
    done = "" if tried else BY_FIX.get(text, "")
    return f"{text}; {done}" if done else text


def _changed(
    attempt: _Unrun, failure: Failure, source: Source, statement: ast.stmt
) -> tuple[list[str], list[str]] | None:
    """The lines that a rewrite of one problem takes out and puts in; of a statement of several lines all of it."""
    # Of an optimizer there may be another plan, which comes with each.
    plans = [plan for plan in attempt.plans([failure]) if any(each is failure for each in plan.failures)]
    gone, new = list[str](), list[str]()
    first, last = lines_of(statement)
    for file, lines in attempt.texts(plans).items():
        old = attempt.sources[file].lines
        changes = [
            part[1:] for part in difflib.SequenceMatcher(None, old, lines, False).get_opcodes() if part[0] != "equal"
        ]
        inside = [part for part in changes if file == source.file and first - 1 <= part[0] < part[1] <= last]
        if file == source.file and is_behind_its_head(statement, changes):
            return None
        for begin, end, to_begin, to_end in changes:
            before, behind = (begin - first + 1, last - end) if inside == [(begin, end, to_begin, to_end)] else (0, 0)
            gone += _dedented(old[begin - before : end + behind])
            put = _dedented(lines[to_begin - before : to_end + behind])
            new += marked(put, once_before(source, statement, begin)) if file == source.file and begin == end else put
    again = failure.message.startswith("index of") and picks_the_same(gone, new)
    if again or picks_by_masks(new) > picks_by_masks(gone) or still_asks(gone, new):
        raise Unseen  # a count instead of a bound: the rest of it takes shapes; or half of what a trial writes
    if chooses_sized(new) or [*map(str.strip, gone)] == ["else:"]:
        return None  # of both ways only where the second one begins
    return (gone, new) if gone and new and max(len(gone), len(new)) <= MOST_LINES else None


def _dedented(lines: Sequence[str]) -> list[str]:
    return [line for line in textwrap.dedent("".join(lines)).splitlines() if line.strip()]
