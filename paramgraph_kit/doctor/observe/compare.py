"""Two calls of the same function, operation by operation: what differs is what a graph would freeze."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import CodeType

from paramgraph_kit import driver
from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe import alignment, read_apart
from paramgraph_kit.doctor.observe.alignment import Block
from paramgraph_kit.doctor.observe.counted_rounds import ends_of_rounds
from paramgraph_kit.doctor.observe.drawn_rounds import drawn_around
from paramgraph_kit.doctor.observe.left_early import rounds_on, runs_always, without_rounds_beside
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.places import Place, Position, frame_of, position_of
from paramgraph_kit.doctor.observe.refusals import FACTORIES_AND_VIEWS
from paramgraph_kit.doctor.observe.rounds_apart import without_rounds
from paramgraph_kit.doctor.observe.source_lines import branch_between, frame_at, instead_of_a_round
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Failure, Frame

ANOTHER = "read a tensor that was another one in the next call"
SIMULATED = str(Path(driver.__file__).parent / "sim")
DECIDED = "read other numbers from a tensor of the CPU in the next call, and what these decide is fixed at capture"
MORE = "operations more than the next"  # of a line that not each call runs as often
OTHERS = " tensors in one call and "  # as where a line has left some without gradients
ASKS = "it asks for "  # of a branch that both calls have taken the same way
NOWHERE: Mapping[int, tuple[Frame, str]] = {}
MOST = 4000  # differing operations that are aligned with care
_OF_GRADIENTS = ("create_graph", "requires_grad")
_SET_GRADIENTS = ("requires_grad_", "set_grad_enabled")
_RESIZES = ("resize_", "resize_as_")
_COPYING = ("_to_copy", "copy_", "scalar_tensor")  # which are told as copies
_FILLED = ("full", "new_full")  # behind their sizes is a value, and a flag may follow
RANDOM_WORDS = ("rand", "choice", "shuffle", "gauss", "normal", "sample")
_NO_DRAW = re.compile(
    r"rand(?:n|int)?_like|normali[sz]|(?:up|down|grid)_?sampl|(?:pixel|channel)_(?:un)?shuffle|operand", re.IGNORECASE
)


def may_draw(text: str) -> bool:
    """Whether a text has a word of what draws, and not within one of what computes: ``F.normalize``, ``upsample``.

    What draws like a tensor, ``torch.rand_like(x)``, does so where that is.

    >>> may_draw("np.random.normal(0, 1)"), may_draw("F.normalize(x, dim=-1)")
    (True, False)
    """
    text = _NO_DRAW.sub("", text)
    return any(word in text for word in RANDOM_WORDS)


def differences(
    first: list[Step],
    second: list[Step],
    *,
    random_drawn: bool,
    only_random: bool = False,
    guess: bool = True,
    told: Collection[int] = (),
    rebound: Collection[Frame | None] = (),
    exchanged_at: Mapping[int, tuple[Frame, str]] = NOWHERE,
) -> list[Failure]:
    """Every frozen value, size, branch and input, each at its line once.

    ``random_drawn``: random numbers were drawn on the host; ``only_random``: and nothing else there differs;
    ``guess``: a fraction may be one of them, as they were no tensors, or as nothing else has changed;
    ``told``: memory whose exchange is told already; ``rebound``: lines that exchange tensors of the user's;
    ``exchanged_at``: by memory that was given up the line that did so, and what is said of that.
    """
    first, second = ([step for step in steps if step.on_device] for steps in (first, second))
    found: dict[tuple[str, Frame | None], Failure] = {}
    exchanged: dict[tuple[int, int], list[Failure]] = {}
    sized = False
    blocks = _blocks(first, second)
    # Where the calls took other ways, one round of a loop may stand beside another round.
    times = Counter(step.key for step in first) if only_random and any(b[0] != "equal" for b in blocks) else Counter()
    for a, b in _aligned(blocks, first, second):
        if a.outside != b.outside and times[a.key] < 2:
            for pair in _exchanged(a, b, told):
                text = f"{a.name} {ANOTHER}"
                # Nothing but random numbers differs, so one of them has picked it.
                code = "host-random" if only_random else "stale-input"
                exchanged.setdefault(pair, []).append(_failure(code, text, a.place))
        for failure in _of_one(a, b, random_drawn, only_random, guess):
            if failure.code == "size-frozen" and ((sized and failure.frame is None) or _is_simulated(a)):
                continue
            sized = sized or failure.code == "size-frozen"
            found.setdefault((failure.code, failure.frame), failure)
    for pair, reads in exchanged.items():  # told once, and rather where it is written too
        failure = next((f for f in reads if f.frame in rebound), reads[0])
        at = next((exchanged_at[each] for each in pair if each in exchanged_at), None)
        if at is not None and at[0] != failure.frame:
            failure = replace(failure, message=failure.message + at[1])
        known = found.setdefault((failure.code, failure.frame), failure)
        if at is not None and at[1] in failure.message and at[1][2:] not in known.message and ANOTHER in known.message:
            sign = "," if ":" in known.message else ":"  # a line that reads several of them is told once, with all
            found[failure.code, failure.frame] = replace(known, message=f"{known.message}{sign}{at[1][1:]}")
    alike = _aligned(blocks[:1], first, second)  # behind them other numbers of operations have made the same
    if not random_drawn or len(blocks) > 1:  # of calls that draw and go the same way, `chance.picked` tells it
        for failure in read_apart.problems(alike, "host-random" if random_drawn else "stale-input"):
            found.setdefault((failure.code, failure.frame), failure)
    for failure in _branches(blocks, first, second):
        if ("size-frozen", failure.frame) not in found or is_branch(
            failure.frame
        ):  # else of that size, torch does it so
            found.setdefault((failure.code, failure.frame), failure)
    codes = (
        {code for step in first for code, _ in step.place.stack}
        if any(code == "branch-frozen" for code, _ in found)
        else ()
    )
    return without_rounds(found.values(), codes)


def of_tensors_alone(known: Iterable[Failure]) -> set[Frame | None]:
    """Lines of which no more is told than that a tensor is exchanged: a number that they freeze is another matter."""
    known = [*known]
    others = {f.frame for f in known if f.code not in ("stale-input", "parameter-rebound")}
    return {f.frame for f in known} - others


def _blocks(first: list[Step], second: list[Step]) -> list[Block]:
    """difflib's opcodes, without its cost where the calls hardly differ."""
    left, right = [step.key for step in first], [step.key for step in second]
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and left[-1 - end] == right[-1 - end]:
        end += 1
    inner = (left[start : len(left) - end], right[start : len(right) - end])
    blocks = [("equal", 0, start, 0, start)] if start else []
    if max(map(len, inner)) > MOST:
        blocks.append(("replace", start, len(left) - end, start, len(right) - end))
    elif any(inner):
        blocks += [(tag, a + start, b + start, c + start, d + start) for tag, a, b, c, d in alignment.blocks(*inner)]
    if end:
        blocks.append(("equal", len(left) - end, len(left), len(right) - end, len(right)))
    return blocks


def _aligned(blocks: list[Block], first: list[Step], second: list[Step]) -> Iterator[tuple[Step, Step]]:
    for tag, a, b, c, d in blocks:
        if tag == "equal":
            yield from zip(first[a:b], second[c:d], strict=True)


def _exchanged(a: Step, b: Step, told: Collection[int]) -> Iterator[tuple[int, int]]:
    """Memory from outside that an operation read, and what it read in its place in the next call."""
    for x, y in zip(a.outside, b.outside, strict=False):
        if x and y and x != y and x not in told:
            yield x, y


def _of_one(a: Step, b: Step, random_drawn: bool, only_random: bool, guess: bool) -> Iterator[Failure]:
    """How the same operation differs between the calls."""
    if a.copied != b.copied and a.name not in _COPYING and a.shapes == b.shapes:
        yield _failure("size-frozen", f"{a.name} {DECIDED}", a.place)
    if a.values == b.values and a.from_cpu == b.from_cpu and len(a.outside) == len(b.outside) and a.shapes == b.shapes:
        return  # nearly always
    frame = a.place.frame()
    # Of other shapes, other numbers are only what follows; so are those of a backward pass.
    if not _equal(a.values, b.values) and a.shapes == b.shapes and not a.place.in_backward:
        then, now = _differing(a.values, b.values)
        text = frame.text if frame else ""
        if a.name in FACTORIES_AND_VIEWS and not only_random and not _is_filled_otherwise(a, b):
            code = "size-frozen"
        elif (only_random and "time" not in text) or (random_drawn and may_draw(text)):
            code = "host-random"
        elif any("torch/optim/" in file and "swa_utils" not in file for file in a.place.files):
            code = "learning-rate-frozen"  # a fraction, which a rate is, whatever else is drawn
        elif random_drawn and guess and _is_fraction(then):
            code = "host-random"
        else:
            code = "scalar-frozen"
        yield _failure(code, f"{a.name} got {then} in one call and {now} in the next", a.place)
    elif a.name in _RESIZES and a.shapes != b.shapes and a.outside[0] and a.outside[0] == b.outside[0]:
        sizes = f"had {list(a.shapes[0])} in one call and {list(b.shapes[0])} in the next"
        said = f"a tensor that lives on {sizes}: make it as large as it gets, once, and its place a tensor"
        yield _failure("size-frozen", said, a.place)
    if not _equal(a.from_cpu, b.from_cpu):
        then, now = _differing(a.from_cpu, b.from_cpu)
        drawn = random_drawn and frame is not None and may_draw(frame.text)
        drawn = drawn or only_random
        code = "host-random" if drawn else "cpu-scalar-frozen"
        yield _failure(code, f"{a.name} read {then} from the CPU in one call and {now} in the next", a.place)
    if len(a.outside) != len(b.outside):
        said = f"{a.name} got {len(a.outside)}{OTHERS}{len(b.outside)} in the next"
        yield _failure("size-frozen", said, a.place)


def _is_simulated(step: Step) -> bool:
    """Whether the simulated device makes it of the shapes of what it is given, as attention makes its mask."""
    return any(file.startswith(SIMULATED) for file in step.place.files)


def _is_filled_otherwise(a: Step, b: Step) -> bool:
    """Whether a tensor of the same size has another value."""
    sizes = len(a.values) - (2 if isinstance(a.values[-1], bool) else 1)
    return a.name in _FILLED and _equal(a.values[:sizes], b.values[:sizes])


def _equal(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    """Whether numbers are the same ones; one that is not a number is itself."""
    return a == b or (len(a) == len(b) and all(x == y or (x != x and y != y) for x, y in zip(a, b, strict=True)))


def _is_fraction(value: object) -> bool:
    return isinstance(value, float) and value % 1 != 0 and abs(value) < 1


def _differing(a: tuple[object, ...], b: tuple[object, ...]) -> tuple[object, object]:
    for x, y in zip(a, b, strict=False):
        if x != y:
            return _short(x), _short(y)
    return f"{len(a)} numbers", f"{len(b)}"


def _short(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _failure(code: str, said: str, place: Place) -> Failure:
    return BY_ID[code].failure(said, place.frame())


def _branches(blocks: list[Block], first: list[Step], second: list[Step]) -> list[Failure]:
    """Where the calls took different ways, at the line that decided."""
    ways = list(_ways(blocks, first, second))
    # What autograd alone runs otherwise follows from another way ahead, or from a flag that its caller has given it.
    found = [(failure, ran) for failure, ran, follows in ways if not follows]
    found = found or [(failure, ran) for failure, ran, _ in ways]
    # Where the same operations come again and again, their alignment also names lines that call what has decided.
    called = {frame_of(spot) for failure, ran in found if is_branch(failure.frame) for spot in ran.stack[:-1]}
    return [failure for failure, _ in found if is_branch(failure.frame) or failure.frame not in called]


def _ways(blocks: list[Block], first: list[Step], second: list[Step]) -> Iterator[tuple[Failure, Place, bool]]:
    """Each such place, with what ran in one of the calls alone, and whether that is only what autograd made of it."""
    # Autograd's order is not always the same: nodes that a backward pass has made may be of one number.
    of_backward = [Counter((s.name, s.shapes) for s in steps if s.place.in_backward) for steps in (first, second)]
    for tag, a, b, c, d in _without_more_rounds(blocks, first, second):
        if tag == "equal":
            continue
        if of_backward[0] == of_backward[1] and all(s.place.in_backward for s in (*first[a:b], *second[c:d])):
            continue
        one = first[a].place if a < b else None
        other = second[c].place if c < d else None
        # Beside a pure insertion stands what both went on with.
        after = first[b].place if b < len(first) else None
        before = first[a - 1].place if a else None
        names = [step.name for step in (first[a:b] or second[c:d])[:3]]
        more = abs((b - a) - (d - c))
        said = f"one call ran {', '.join(names)} here and the next did not"
        if a < b and c < d:
            said = f"one call ran {first[a].name} here and the next {second[c].name}"
        elif more > 3:
            said = f"one call ran {more} {MORE}: {', '.join(names)} ..."
        ran = [p for p in (one, other) if p]
        others = second if one else first
        parted = _parted(ran, others) if len(ran) > 1 else None
        frame = parted or _deciding(ran, [p for p in (*ran, after, before) if p], others)
        frame = _within_its_rounds(frame, ran[0], first, second) or _otherwise(frame, ran[0])
        if len(ran) == 1 and not is_branch(frame):
            frame = drawn_around(ran[0]) or frame
        follows = all(s.place.in_backward for s in (*first[a:b], *second[c:d]))
        if follows and (flag := _graphed(ran[0])) is not None:
            frame, follows = flag, False
        # torch leaves out a slice of all: no branch has decided that, also where its line is in a loop.
        own = ran[0].frame()
        if not (a < b and c < d) and more <= 3 and {*names} == {"slice"} and own is not None and "[" in own.text:
            frame = own
        sized = set(names) <= FACTORIES_AND_VIEWS and frame == own and not is_branch(frame)
        yield BY_ID["size-frozen" if sized else "branch-frozen"].failure(said, frame), ran[0], follows
        if not follows and (loop := _of_other_length(frame, ran[0], first, second)) is not None:
            yield (
                BY_ID["branch-frozen"].failure(f"one call ran more rounds of it than the next: {names[0]} ...", loop),
                ran[0],
                follows,
            )


def _without_more_rounds(blocks: list[Block], first: list[Step], second: list[Step]) -> Iterator[Block]:
    """The same, but of calls that differ where a loop ends: its further rounds apart from what follows in each."""
    for tag, a, b, c, d in blocks:
        if tag == "replace" and a:
            before, one, other = first[a - 1].place, first[a].place, second[c].place
            code = _shared([one, other])
            at = [_positions(code, [place])[:1] for place in (before, one, other)] if code is not None else []
            if code is not None and all(at):
                more = rounds_on(code, at[0][0], at[1][0], [_positions(code, [s.place])[:1] for s in second[c:d]])
                less = rounds_on(code, at[0][0], at[2][0], [_positions(code, [s.place])[:1] for s in first[a:b]])
                if 0 < more < d - c:
                    yield "insert", a, a, c, c + more
                    yield "replace", a, b, c + more, d
                    continue
                if 0 < less < b - a:
                    yield "delete", a, a + less, c, c
                    yield "replace", a + less, b, c, d
                    continue
        yield tag, a, b, c, d


def _within_its_rounds(frame: Frame | None, ran: Place, first: list[Step], second: list[Step]) -> Frame | None:
    """The branch in a loop that has decided, where what the loop goes through was of one length in both calls."""
    named = (code for code, _ in ran.stack if frame is not None and code.co_name == frame.function)
    code = next(named, None)
    loops = [n for n in nodes_of(code) if isinstance(n, ast.For) and frame and n.lineno == frame.line] if code else []
    if code is None or not loops:
        return None
    counts = [Counter(at[0] for step in steps for at in _positions(code, [step.place])) for steps in (first, second)]

    def ran_in(node: ast.stmt | ast.expr) -> list[int]:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return [sum(each[line] for line in lines) for each in counts]

    plain = [ran_in(each) for each in loops[0].body if isinstance(each, (ast.Assign, ast.AugAssign, ast.Expr))]
    asked = sorted((n for n in ast.walk(loops[0]) if isinstance(n, ast.If)), key=lambda n: n.lineno)
    if any(one == other > 0 for one, other in plain):
        decides = [n for n in asked if len({*ran_in(n.test)}) > 1 or len({*ran_in(n)}) > 1]
    else:  # of as many as ever one of them leaves it
        given = {n.id for n in ast.walk(loops[0].iter) if isinstance(n, ast.Name)} & {*code.co_varnames} - {"self"}
        decides = [n for n in asked if not given and any(isinstance(part, ast.Break) for part in n.body)]
        decides = decides or [n for n in _ends_around(loops[0], code) if _as_often(ran_in(n.test), plain)]
    return frame_at(code, decides[0].lineno) if decides else None


def _ends_around(loop: ast.For, code: CodeType) -> Iterator[ast.If]:
    """The branches behind a loop that end one around it."""
    for outer in (n for n in nodes_of(code) if isinstance(n, ast.For | ast.While) and loop in n.body):
        behind = outer.body[outer.body.index(loop) :]
        yield from (n for n in behind if isinstance(n, ast.If) and any(isinstance(e, ast.Break) for e in n.body))


def _as_often(asked: list[int], within: list[list[int]]) -> bool:
    """Whether each time that something was asked as many rounds of a loop had run, in both calls."""
    return asked[0] != asked[1] and any(one * asked[1] == other * asked[0] > 0 for one, other in within)


def _of_other_length(frame: Frame | None, ran: Place, first: list[Step], second: list[Step]) -> Frame | None:
    """The loop around a choice, where one call ran more of its rounds, and nothing in it leaves it or a round."""
    named = (code for code, _ in ran.stack if frame is not None and code.co_name == frame.function)
    code = next(named, None)
    if code is None or frame is None:
        return None
    choices = [n for n in nodes_of(code) if isinstance(n, ast.If) and n.lineno == frame.line]
    kinds = (ast.For, ast.While)
    loops = [n for n in nodes_of(code) if isinstance(n, kinds) and any(part in choices for part in ast.walk(n))]
    leaves = (ast.Break, ast.Continue, ast.Return, ast.Raise)
    if not loops or any(isinstance(part, leaves) for part in ast.walk(loops[0])):
        return None
    counts = [Counter(at[0] for step in steps for at in _positions(code, [step.place])) for steps in (first, second)]
    inside = range(loops[0].lineno, (loops[0].end_lineno or loops[0].lineno) + 1)
    plain = (each for each in loops[0].body if isinstance(each, (ast.Assign, ast.AugAssign, ast.Expr)))
    rounds = {line for each in plain for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)}
    longer = [line for line in rounds if counts[0][line] and counts[1][line] and counts[0][line] != counts[1][line]]
    # Called as often in both calls, what is around the loop ran as often.
    around = {line for each in counts for line in each if line not in inside}
    alike = bool(around) and all(counts[0][line] == counts[1][line] for line in around)
    return frame_at(code, loops[0].lineno) if longer and alike else None


def _graphed(place: Place) -> Frame | None:
    """The line that gives a value for whether there is a graph to go back through: no branch is around it."""
    for code, _ in reversed(place.stack):
        if is_library(code.co_filename):
            continue
        calls = (node for node in nodes_of(code) if isinstance(node, ast.Call))
        for call in sorted(calls, key=lambda n: n.lineno):
            given = [each.value for each in call.keywords if each.arg in _OF_GRADIENTS]
            given += call.args if last_name(call.func) in _SET_GRADIENTS else []
            if any(not isinstance(value, ast.Constant) for value in given):
                return frame_at(code, given[0].lineno)
    return None


def is_branch(frame: Frame | None) -> bool:
    """Whether a line decides what runs."""
    words = re.findall(r"\w+", frame.text) if frame else ()
    return any(word in ("if", "elif", "else", "for", "while", "match", "case", "and", "or") for word in words)


def _parted(ran: list[Place], others: list[Step]) -> Frame | None:
    """The choice between two places, each of one call alone, in the function in which their ways part."""
    code = _shared(ran)
    if code is None or is_library(code.co_filename):
        return None
    at = [_positions(code, [place]) for place in ran]
    found = branch_between(code, [*at[0], *at[1]], at[0], _elsewhere(code, others))
    return found if is_branch(found) else None


def _deciding(ran: list[Place], near: list[Place], others: list[Step]) -> Frame | None:
    """The branch or loop, in the innermost function that all these places share; ``others`` ran in the other call."""
    code = _shared(near)
    if code is None:
        return _chosen(ran[0], others)
    first = next((spot[0] for spot in ran[0].stack if not is_library(spot[0].co_filename)), None)
    at, of_one = _positions(code, near), _positions(code, ran[:1])
    at = without_rounds_beside(code, at, of_one) if len(ran) == 1 else at
    places = at, of_one, _elsewhere(code, others)
    between = branch_between(code, *places, once=code is first)
    return between or _chosen(ran[0], others)


def _shared(near: list[Place]) -> CodeType | None:
    """The innermost function that all these places share."""
    code = None
    for spots in zip(*(place.stack for place in near), strict=False):
        codes = [spot[0] for spot in spots]
        if any(one is not codes[0] for one in codes):
            break
        code = codes[0]
        if len({spot[1] for spot in spots}) > 1:
            break
    return code


def _otherwise(frame: Frame | None, place: Place) -> Frame | None:
    """Where rounds run the same but for one of them, their alignment may name what asks for the round's number."""
    codes = [code for code, _ in place.stack if frame is not None and code.co_name == frame.function]
    ends = ((code, ends_of_rounds(code, frame.line)) for code in codes if frame is not None)
    if (end := next(((code, line) for code, line in ends if line is not None), None)) is not None:
        return frame_at(*end)
    found = (instead_of_a_round(code, frame.line) for code in codes if frame is not None)
    return next(filter(None, found), frame)


def _positions(code: CodeType, places: Iterable[Place]) -> list[Position]:
    return [position_of(c, at) for place in places for c, at in place.stack if c is code]


def _elsewhere(code: CodeType, others: list[Step]) -> list[Position]:
    return _positions(code, {step.place.ids: step.place for step in others}.values())


def _called_from(place: Place) -> Iterator[tuple[int, ...]]:
    """For each function of a place, outermost first, where it is called: a helper is called ahead of a branch too."""
    for depth, (code, _) in enumerate(place.stack):
        yield (id(code), *place.ids[len(place.ids) - 2 * depth :])


def _chosen(place: Place, others: list[Step]) -> Frame | None:
    """The branch around a place, or its line; where nothing in that function decides, the call that has chosen it."""
    spots = [spot for spot in place.stack if not is_library(spot[0].co_filename)]
    entered = {ids for step in others for ids in _called_from(step.place)}
    own = dict(zip(place.stack, _called_from(place), strict=False))
    while len(spots) > 1 and own.get(spots[-1]) not in entered and runs_always(spots[-1][0], position_of(*spots[-1])):
        spots.pop()
    if not spots:
        return place.frame()
    code, at = spots[-1]
    here = [position_of(code, at)]
    return branch_between(code, here, here, _elsewhere(code, others)) or frame_of(spots[-1])
