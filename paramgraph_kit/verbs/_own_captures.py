"""A program that captures by itself: what its captures hold is diagnosed as the functions that they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paramgraph_kit.doctor.diagnosis import Diagnosis, Fix
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.verbs._several_graphed import of_several

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.own_regions import Region
    from paramgraph_kit.trace.model import Failure

GRAPHS = ("CUDAGraph", "capture_begin", "make_graphed_callables", "diagnose.capture", ".replay(")
_NOT_WATCHED = ("diagnose", ".compile(", "@torch.compile")  # it looks by itself; under a mode Dynamo gives up
_ONCE = (
    "it was run once, as it is, so what its captures hold was not looked at: name a function that captures and needs "
    "no arguments, FILE.py:FUNCTION, for that"
)
_GIVEN = re.compile(r"\bafter_\w*\(\w")  # what goes behind a launch, with what it is given
_KEPT = (
    "what goes behind a launch is given what the captured call has returned: keep that at the capture, and its object "
    "where the replay stands elsewhere"
)
_FOR_LINE = re.compile(r"(\bfor line )(\d+)")
_AROUND = "{}  [{}]: around the graph, and no line of this diff: what is said of it above"
_DIAGNOSED = "diagnose("  # where what has no line of the program's is told
_WAYS = ("branch-frozen", "host-random")
_GONE = ("autocast-cache", "stale-input")
_ENDS = ("raises", "exits", "time-limit", "empty-graph")  # of a part that is run by itself
_OF_THIS_CALL = "its pinned memory is of this call"
_ADDED = "only where several replays are to add up ahead of one step of the optimizer's: "
_NOTE = "it captures by itself: what its captures hold was run by itself, too, and what is around them is no capture's"


def is_watched(text: str) -> bool:
    """Whether a program that has this text is watched when it is run: it captures by itself."""
    return any(word in text for word in GRAPHS) and not any(word in text for word in _NOT_WATCHED)


def run_once(name: str, program: Callable[[], Any]) -> Diagnosis:
    """Run a program, and tell what goes wrong around the replays of its own captures."""
    from paramgraph_kit.doctor.observe.one_run import problems_of
    from paramgraph_kit.driver.select import driver
    from paramgraph_kit.verbs._device import device

    device()
    found, captures, doubts = problems_of(program)
    where = f"1 run on {driver().source().label()}, {captures} capture{'' if captures == 1 else 's'}"
    return Diagnosis(found, headed(name, found, where), [*([_ONCE] if captures else []), *doubts])


def headed(name: str, problems: Sequence[Failure], where: str) -> str:
    """The first line of what is found."""
    count = len(problems)
    return f"{name}: {count or 'no'} problem{'' if count == 1 else 's'} ({where})"


def is_of_captures(found: Diagnosis) -> bool:
    """Whether it is of a program that has captured something."""
    return _NOTE in found.notes


def is_launch(found: Diagnosis) -> bool:
    """Whether it is of a function that replays what it, or its file, has captured before."""
    from paramgraph_kit.doctor.observe.out_of_range import OF_ITS_OWN

    return OF_ITS_OWN in found.notes


def told_as_launch(what: Any, args: Any, kwargs: Any, failures: Sequence[Failure]) -> tuple[Failure, ...]:
    """The same, in the function's own lines where nothing has told what to write yet."""
    from paramgraph_kit.doctor.known.catalogue import BY_ID
    from paramgraph_kit.rewrite.own_lines import in_own_lines

    plain = [f for f in failures if f.fix == BY_ID[f.code].fix]
    own = dict(zip(map(id, plain), in_own_lines(what, args, kwargs, plain, plain), strict=True))
    return tuple(own.get(id(f), f) for f in failures)


def of_captures(
    diagnose: Callable[..., Diagnosis], whole: Diagnosis, regions: Sequence[Region], limit_s: float, fix: bool
) -> Diagnosis:
    """What is wrong around the captures of a program, and in them."""
    from paramgraph_kit.doctor.observe.behind_turns import behind_turns
    from paramgraph_kit.doctor.observe.called_beside import stepped_beside
    from paramgraph_kit.doctor.observe.freed_words import without_cache
    from paramgraph_kit.doctor.observe.moved_words import unfilled
    from paramgraph_kit.doctor.observe.other_numbers import TAKES_NO_OTHERS
    from paramgraph_kit.doctor.observe.places import order_of
    from paramgraph_kit.doctor.observe.results_of_each import is_of_each

    name, _, where = head_of(whole)
    ended = [f for f in whole.failures if not _is_silent(f)]
    found, notes, fixed = [*whole.failures], [_NOTE, *whole.notes], None
    tried = set[tuple[str, tuple[str, int] | None]]()
    for region in {_what(each): each for each in regions if each.function is not None}.values():
        part = _part_of(diagnose, region, limit_s, fix)
        tried |= {(f.code, _line(f)) for f in part.failures}
        of_several(part, region, regions)
        turns = behind_turns(part.failures, region)
        inside = [f for f in part.failures if f.code not in _ENDS and (_may_be(f, region) or turns(f))]
        inside = [_named(f, region) for f in inside]
        inside = [replace(f, fix=without_cache(region) or f.fix) if f.code == "autocast-cache" else f for f in inside]
        inside = [_of_its_graph(f, region) for f in inside]
        inside = [f for f in inside if not _is_chained(f, region, regions) and not _is_around(f, region)]
        inside = [f for f in inside if not is_of_each(f, region)]
        if any(map(_is_of_the_call, inside)) and part.fix is not None:
            part.fix.instead = [each for each in part.fix.instead if _DIAGNOSED not in each]
        inside = [f for f in inside if not _is_of_the_call(f)]
        inside = [f for f in inside if not is_set_at(f, found)]
        inside = [f for f in inside if not _gets_another_at(f, found)]
        lines = {_line(f) for f in inside if not _is_silent(f)}
        again = [f for f in ended if _line(f) in lines]  # the same, told with the line's own words
        found = [f for f in found if f not in again]
        found += [f for f in inside if (f.code, _line(f)) not in {(g.code, _line(g)) for g in found}]
        # What its lines are given is the program's: what moves between replays is told where it moves.
        own = [_in_file(note, region) if region.inline and region.file else note for note in part.notes]
        notes += [note for note in own if note not in (*notes, TAKES_NO_OTHERS)]
        if part.fix is not None:
            part.fix.verified = _as_it_begins(part.fix.verified, region)
            part.fix.usage += stepped_beside(region) if part.fix.usage else ""
        if inside and fixed is None and (fixed := part.fix) is not None and fixed.pieces:
            fixed.pieces += _in_place_of(region)
    found = _told_where_forked(_in_lines_of_failed(found, ended, regions), regions)
    for region in regions:
        region.forget()
    gone = {_line(f) for f in found if f.code in _GONE}  # what is kept there is gone behind the region
    found = [f for f in found if not (f.code == "freed-input" and (_line(f) in gone or _is_renamed(f, found)))]
    if any(f.code in _WAYS for f in found):  # one way has a graph there, and another has none
        found = [f for f in found if f.code != "no-capture"]
    found.sort(key=lambda f: order_of(f.frame))
    result = Diagnosis(found, headed(name, found, where), unfilled(notes, found), whole.state)
    result.fix = fixed
    if fixed is not None:
        leave_around(fixed, [f for f in found if (f.code, _line(f)) not in tried])
    return result


def leave_around(fix: Fix, around: Iterable[Failure]) -> None:
    """Say of a diff of what a capture holds that it mends nothing around it, where that is wrong, too."""
    out = {line[1:].strip() for line in fix.diff.splitlines() if line[:1] == "-"}
    left = [f for f in around if f.frame is not None and f.frame.text.strip() not in out]
    fix.complete = fix.complete and not left
    fix.instead += [_AROUND.format(f.frame.label(), f.code) for f in left if f.frame is not None]


def _in_lines_of_failed(found: list[Failure], ended: Sequence[Failure], regions: Sequence[Region]) -> list[Failure]:
    """What has ended a capture, in the program's own lines: its function may not run again behind that."""
    failed = [region for region in regions if region.function is not None and not region.whole]
    if len({_what(region) for region in failed}) != 1:
        return found
    own = failed[-1]
    plain = [f for f in found if any(f is each for each in ended)]
    with suppress(Exception):  # nothing has been looked at there, and its text alone may not tell
        told = dict(zip(map(id, plain), told_as_launch(own.function, own.args, own.kwargs, plain), strict=True))
        return [told.get(id(f), f) for f in found]
    return found


def is_set_at(failure: Failure, told: Iterable[Failure]) -> bool:
    """Whether it is a number's reading, of which the line that sets it between replays is told already."""
    from paramgraph_kit.doctor.observe.set_between import COUNTED, lines_that_set

    lines, is_number = lines_that_set(failure.message), failure.code in COUNTED
    same = (f for f in told if f.code == failure.code or _is_of_name(f, failure) or (is_number and f.code in COUNTED))
    at = [f"{f.frame.file}:{f.frame.line}" for f in same if f.frame is not None]
    return bool(lines) and all(any(each.endswith(line) for each in at) for line in lines)


def _is_of_name(told: Failure, failure: Failure) -> bool:
    """Whether what is told of a line names what a reading is of: the module of a weight, an object of its number."""
    from paramgraph_kit.doctor.observe.set_between import SET_BETWEEN

    path = failure.message.partition(f" {SET_BETWEEN}")[0]
    name = path.rpartition(".")[2]
    return name.isidentifier() and name in re.findall(r"\w+", told.message.partition(" at ")[0])


def _told_where_forked(found: list[Failure], regions: Sequence[Region]) -> list[Failure]:
    """The same without the end of a capture that work was not joined to, where the line of that work is told."""
    ends = {(display_name(each.code.co_filename), each.line) for each in regions}
    forks = [f for f in found if f.code == "unjoined-work"]
    at_ends = [f for f in forks if f.frame is not None and (f.frame.file, f.frame.line) in ends]
    return found if len(at_ends) == len(forks) else [f for f in found if not any(f is each for each in at_ends)]


def _is_renamed(failure: Failure, found: Sequence[Failure]) -> bool:
    """Whether what is gone has lost its name at a line that is told: ``center = ...`` in what is captured."""
    lines = [f.frame.text for f in found if f.code == "stale-input" and f.frame is not None]
    given = {path for path, mark, _ in (line.partition(" = ") for line in lines) if mark and " " not in path}
    text = failure.frame.text if failure.frame is not None else ""
    return not given.isdisjoint(re.findall(r"[\w.]+", text))


def _as_it_begins(tried: list[str], region: Region) -> list[str]:
    """What was tried, where a capture began without gradients: its graph makes them anew, and adds to none.

    So torch's documentation has it. With a step of the optimizer's in it nobody wants sums over its replays.
    """
    from paramgraph_kit.doctor.observe.lines_behind import codes_of
    from paramgraph_kit.rewrite.summed import SUMMED

    sums = SUMMED.partition("{")[0]
    if not any(each.startswith(sums) for each in tried):
        return tried
    steps = any("step" in code.co_names for code in codes_of(region))
    if steps and not region.gradients:
        return [each for each in tried if not each.startswith(sums)]
    return [_ADDED + each if each.startswith(sums) and not region.gradients else each for each in tried]


def _part_of(diagnose: Callable[..., Diagnosis], region: Region, limit_s: float, fix: bool) -> Diagnosis:
    """What is wrong with what a capture holds; autocast's cache is put right around it, and not in its lines."""
    from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, spans
    from paramgraph_kit.doctor.observe.freed_words import without_cache
    from paramgraph_kit.doctor.observe.own_regions import GRAPHED
    from paramgraph_kit.rewrite.own_launches import replayed_as_it_is

    given = region.function, region.args, region.kwargs, limit_s, False
    outside = fix and without_cache(region) != ""
    calls = (n for n in nodes_of(region.code) if isinstance(n, ast.Call) and last_name(n.func) == GRAPHED)
    apart = any(spans(n, region.line) for n in calls)
    with region.as_it_was(), replayed_as_it_is(learns_apart=apart):
        part = diagnose(*given, fix and not outside)
    if outside:
        with region.as_it_was(cached=False), replayed_as_it_is(learns_apart=apart):
            rest = diagnose(*given, True)
        rest.failures = (*(f for f in part.failures if f.code == "autocast-cache"), *rest.failures)
        part = rest
    return part


def _in_place_of(region: Region) -> str:
    """What becomes of a capture whose lines are launched in pieces, which go on in place of its graph."""
    from paramgraph_kit.doctor.observe.own_regions import NAME, assigned

    text = f"; in place of the capture of line {region.line}: take that out, and its replays"
    if not region.inline or getattr(region.function, "__name__", "") != NAME:
        return text
    own = any(isinstance(n, ast.Name) and n.id == "self" for part in region.body for n in ast.walk(part))
    made = [name for name in assigned(region.body) if name.isidentifier()]
    path = f"self.{NAME}" if own else NAME
    gives = f", which returns {', '.join(made)}" if made else ""
    of_class = f", which the class has then: it is compiled as `{path}`" if own else ""
    what = f"`{NAME}` is the body of that `with`, as `def {NAME}({'self' if own else ''}):`{gives}{of_class}"
    called = f"{', '.join(made)} = {path}()" if made else f"{path}()"
    return f"{text}; {what}, and `{called}` stands where the replay stood"


def add_frozen(
    diagnose: Callable[..., Diagnosis],
    found: Diagnosis,
    regions: Sequence[Region],
    limit_s: float,
    fix: bool,
    called: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """What Python did at the capture of a graph that a function only replays now: no replay does it again.

    ``called`` gives what Python holds behind a call of the function: what is captured may read what it has made.
    """
    from paramgraph_kit.doctor.observe.examine import NOT_ASKED
    from paramgraph_kit.rewrite.own_launches import replayed_as_it_is

    told = {_line(f) for f in found.failures}
    for region in {_what(each): each for each in regions}.values():
        try:
            with region.as_it_was(), replayed_as_it_is():
                part = diagnose(region.function, region.args, region.kwargs, limit_s, False, fix)
            if any(f.code in _ENDS for f in part.failures):
                with called(), region.as_it_was(), replayed_as_it_is():
                    part = diagnose(region.function, region.args, region.kwargs, limit_s, False, fix)
        except Exception:  # what was found around it stays told
            found.notes = (*found.notes, *([NOT_ASKED] if NOT_ASKED not in found.notes else []))
            continue
        if any(f.code in _ENDS for f in part.failures) and NOT_ASKED not in found.notes:
            found.notes = (*found.notes, NOT_ASKED)
        of_several(part, region, regions)
        inside = [_named(f, region) for f in part.failures if _is_frozen(f, region) and _may_be(f, region)]
        inside = [f for f in inside if not is_set_at(f, found.failures)]
        if inside := [f for f in inside if _line(f) not in told and not _is_around(f, region)]:
            found.failures = (*found.failures, *inside)
            if part.fix is not None and part.fix.pieces:  # which the graph that is there would go on to replay
                part.fix.pieces += _in_place_of(region)
            if part.fix is not None:
                part.fix.verified = _as_it_begins(part.fix.verified, region)
            found.fix_inside = found.fix_inside or part.fix
            if part.fix is not None and _GIVEN.search(part.fix.usage) and _KEPT not in found.notes:
                found.notes = (*found.notes, _KEPT)
            found.heading = headed(*head_of(found))
    for region in regions:
        region.forget()


@contextmanager
def as_after_a_call(what: Any, args: tuple[Any, ...], kwargs: dict[str, Any], limit_s: float) -> Iterator[None]:
    """While this lasts Python holds what a call of a function leaves."""
    from paramgraph_kit.doctor.observe.one_call import Caller

    caller = Caller(what, args, kwargs, limit_s)
    try:
        caller.call(args, kwargs)
        yield
    finally:
        caller.put_back()


def _is_frozen(failure: Failure, region: Region) -> bool:
    """Whether a line of Python's did once what it does at each call; results are kept by a capture's own lines."""
    from paramgraph_kit.rewrite.advised.host.from_host import DECIDED

    own = region.inline and failure.frame is not None and failure.frame.file == region.file
    return failure.code in DECIDED or (failure.code == "output-alias" and not own)


def head_of(found: Diagnosis) -> tuple[str, Sequence[Failure], str]:
    """What the first line of what is found is made of."""
    name, _, where = found.heading.partition(": ")
    return name, found.failures, where.partition("(")[2].removesuffix(")")


def _what(region: Region) -> tuple[object, ...]:
    """What is captured: a helper may capture one function after the other at the same line."""
    own = None if region.inline else getattr(region.function, "__code__", id(region.function))
    return region.code, region.line, own


def _line(failure: Failure) -> tuple[str, int] | None:
    return (failure.frame.file, failure.frame.line) if failure.frame is not None else None


def _is_silent(failure: Failure) -> bool:
    from paramgraph_kit.doctor.known.catalogue import BY_ID

    return failure.code in BY_ID and BY_ID[failure.code].silent


def _may_be(failure: Failure, region: Region) -> bool:
    """Whether a capture can have it: one that has ended well had nothing that CUDA refuses."""
    from paramgraph_kit.doctor.observe.other_host_tensors import OTHER_VALUES
    from paramgraph_kit.doctor.observe.other_numbers import OTHER_NUMBERS

    if OTHER_NUMBERS in failure.message or OTHER_VALUES in failure.message:
        return False  # its lines give what they give; what moves between replays is told where it moves
    if not region.whole or failure.message.startswith(_OF_THIS_CALL):
        return True
    return _is_silent(failure) and not _tells_of_the_capture(failure)


def _is_around(failure: Failure, region: Region) -> bool:
    """Whether it stands in the function that captures, beside what is captured: that decides anew at each call."""
    frame, code = failure.frame, region.code
    if frame is None or not region.body or frame.file != display_name(code.co_filename):
        return False
    if code.co_name == "<module>" or frame.function != code.co_name:
        return False
    lines = {line for _, _, line in code.co_lines() if line is not None}
    captured = any(s.lineno <= frame.line <= (s.end_lineno or s.lineno) for s in region.body)
    return frame.line in lines and not captured


def _is_of_the_call(failure: Failure) -> bool:
    """Whether it is told where `diagnose` is called: a module of torch's own has done it."""
    return failure.frame is not None and _DIAGNOSED in failure.frame.text


def _of_its_graph(failure: Failure, region: Region) -> Failure:
    """The same with the graph's own name, and with that of the generator in the object that has both."""
    from paramgraph_kit.doctor.explain.syntax import innermost, tree_of
    from paramgraph_kit.doctor.observe.own_regions import graphs_at

    names = graphs_at(region)
    if not names or "`g.register_generator_state(" not in failure.fix:
        return failure
    file, frame = region.code.co_filename, failure.frame
    given = re.search(r"generator=(self\.[\w.]+)", frame.text) if frame is not None else None
    kinds = [innermost(tree_of(file), at, (ast.ClassDef,)) for at in (region.line, frame.line if frame else 0)]
    if given is not None and kinds[0] is kinds[1] is not None and names[-1].startswith("self."):
        said = re.sub(r"(`g\.register_generator_state)\([\w.]+\)", rf"\1({given[1]})", failure.fix)
        failure = replace(failure, fix=said)
    own = failure.fix.replace("`g.register", f"`{names[-1]}.register").replace("graph `g`", f"graph `{names[-1]}`")
    return replace(failure, fix=own)


def _is_chained(failure: Failure, region: Region, others: Sequence[Region]) -> bool:
    """Whether a line gives a name to what the next graph reads: each round of a loop has captured one."""
    alike = [r for r in others if (r.code, r.line) == (region.code, region.line)]
    if failure.code != "stale-input" or failure.frame is None or len(alike) == 1:
        return False
    names = (n for s in region.body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    chained = {n.id for n in names if len({id(r.names.get(n.id)) for r in alike}) == len(alike)}
    return not chained.isdisjoint(re.findall(r"\w+", failure.frame.text))


def _tells_of_the_capture(failure: Failure) -> bool:
    """Whether it prints text, and shapes, which are those of the capture at each replay."""
    if failure.frame is None or not failure.message.startswith("print("):
        return False
    try:
        call = ast.parse(failure.frame.text.strip()).body[0]
    except SyntaxError:  # it goes over several lines
        return False
    shapes = {
        n.value for n in ast.walk(call) if isinstance(n, ast.Attribute) and n.attr in ("shape", "dtype", "device")
    }
    read = [n for n in ast.walk(call) if isinstance(n, ast.Name) and n not in shapes and n.id not in ("print", "len")]
    return not read and not any(isinstance(n, ast.Attribute) and n.value not in shapes for n in ast.walk(call))


def _named(failure: Failure, region: Region) -> Failure:
    """The same, at the program's own line."""
    frame, moved = failure.frame, failure
    if region.inline and region.file:
        said = _in_file(failure.message, region)
        words = failure.fix if said == failure.message else _FOR_LINE.sub(lambda m: _later(m, region), failure.fix)
        moved = replace(failure, message=said, fix=words)
    if not region.inline or frame is None or frame.file != region.file:
        return moved
    own = replace(frame, file=display_name(region.code.co_filename), line=frame.line + region.ahead)
    return replace(moved, frame=replace(own, function=region.code.co_name))


def _in_file(text: str, region: Region) -> str:
    """The same with the program's own lines for those of the function that several statements were made."""
    label = re.compile(rf"({re.escape(display_name(region.file))}:)(\d+)")
    return label.sub(lambda m: f"{display_name(region.code.co_filename)}:{int(m[2]) + region.ahead}", text)


def _later(line: re.Match[str], region: Region) -> str:
    return f"{line[1]}{int(line[2]) + region.ahead}"


def _gets_another_at(failure: Failure, told: Iterable[Failure]) -> bool:
    """Whether it is the reading of what a line gives another tensor, and that line is told already."""
    given = re.findall(r" gets another at ([^\n]+?:\d+)(?=\D|$)", failure.message)
    at = [f"{f.frame.file}:{f.frame.line}" for f in told if f.frame is not None and f.code == failure.code]
    return bool(given) and all(any(each.endswith(line) for each in at) for line in given)
