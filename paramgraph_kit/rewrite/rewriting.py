"""From what was found to a diff that was tried: which lines are rewritten, and what has to be done otherwise."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from paramgraph_kit.doctor.observe.examine import examine
from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.driver.select import driver
from paramgraph_kit.rewrite import by_hand
from paramgraph_kit.rewrite.advised.from_host import behind_for_cycles
from paramgraph_kit.rewrite.advised.kept_outside import kept_outside
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.proving.proof import NOTHING, STEPS, Around, Prover, Truth
from paramgraph_kit.rewrite.proving.worth import ENOUGH, is_mostly_inside
from paramgraph_kit.rewrite.provisos import provisos
from paramgraph_kit.rewrite.reads import frozen
from paramgraph_kit.rewrite.source.given import name_of, written
from paramgraph_kit.rewrite.source.in_order import too_early
from paramgraph_kit.rewrite.starts import wrong_from
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.errors import CaptureError
from paramgraph_kit.trace.model import Failure
from paramgraph_kit.trace.wording import frame_text

LIMIT_S = 30.0
UNSTEADY = "two runs from one state give other results"
LITTLE = "this is right, but with so little in its graph it may be no faster: what stands below brings more there"
TRIES = 4  # how often rewrites that change the numbers are taken back
AGAIN = 7  # how often what rewritten lines still have is rewritten


@dataclass(slots=True)
class Rewriting:
    """Lines of the user's, rewritten: the diff, what was tried with it, and what is left to do by hand."""

    function: str
    diff: str = ""
    verified: list[str] = field(default_factory=list)
    instead: list[str] = field(default_factory=list)  # what could not be rewritten safely, and what to do
    left: list[Failure] = field(default_factory=list)  # the same as data
    unsaid: list[Failure] = field(default_factory=list)  # those of which ``instead`` does not say what to write
    complete: bool = False  # everything found is rewritten, and one graph gives eager's numbers
    is_little: bool = False  # but most of it runs behind that, and ``instead`` says how more would be in it
    otherwise: Rewriting | None = None  # such a one, for where nothing better is known
    usage: str = ""  # how what was moved behind the launch is called
    loop: list[str] = field(default_factory=list)  # the same as a user's lines, about what `launched` is
    pieces: str = ""  # what compiling it brings where it cannot be one graph, tried as well
    around: Around = NOTHING  # what was moved, as functions of a step's inputs and result
    stale: str = ""  # what gets another value behind the launch, and a graph would keep
    _borrow: Any = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this lasts the user's own function runs the rewritten lines; nothing is written to a file."""
        if self._borrow is None:
            yield
            return
        with self._borrow():
            yield

    def __str__(self) -> str:
        parts = [self.diff] if self.diff else []
        parts += [f"  then   {self.usage}"] if self.usage else []
        parts += [f"  tried  {line}" for line in self.verified]
        parts += [f"  {'by hand' if not self.is_little else 'for more'}  {line}" for line in self.instead]
        parts += [f"  pieces   {self.pieces}"] if self.pieces else []
        return "\n".join(parts) if parts else "  nothing to rewrite"

    def __repr__(self) -> str:
        lines = sum(line.startswith("+") and not line.startswith("+++") for line in self.diff.splitlines())
        state = "verified" if self.complete else f"{len(self.instead)} by hand"
        return f"Rewriting({self.function}: {lines} new lines, {state})"


def rewrite(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], failures: Sequence[Failure]) -> Rewriting:
    """Rewrite what is sure, try it against the function as it is, and say what has to be done otherwise."""
    attempt = Ways(function, args, kwargs)
    try:
        return _first_whole(attempt, failures)
    finally:
        attempt.prover.forget()  # whoever keeps the fix keeps no tensors of the trial


def _first_whole(attempt: Ways, failures: Sequence[Failure]) -> Rewriting:
    """The first way of rewriting that leaves nothing, or else the first of all."""
    found = Rewriting(_name_of(attempt.function))
    if any(failure.code in by_hand.ENDLESS for failure in failures):
        found.left, found.instead = list(failures), by_hand.lines(attempt, failures)
        return found
    try:
        with attempt.watched():
            truth = Truth(attempt.prover)
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException as error:
        found.instead = [f"it cannot be run {STEPS} times with other inputs: {by_hand.brief(error)}"]
        found.instead += by_hand.lines(attempt, failures)
        found.left, found.unsaid = list(failures), by_hand.unsaid(attempt, failures)
        return found
    stale: list[tuple[Ways, str]] = []  # ways after which a graph would keep a number that moves behind it

    def one(other: Ways) -> Rewriting:
        made = _rewritten(other, failures, truth, Rewriting(found.function))
        stale.extend([(other, made.stale)] if made.stale else [])
        return made

    if (other := attempt.guarded(failures)) is not None and (behind := one(other)).complete:
        return behind
    first = one(attempt)
    if truth.unsteady:
        return first
    moved = attempt.prover.operations[1]
    whole_inside = first.complete and is_mostly_inside(attempt.prover)
    if not whole_inside and (other := attempt.placing(failures)) is not None:
        if (made := one(other)).complete:
            return made
        if (more := attempt.placing(failures, prefixes=True)) is not None and (whole := one(more)).complete:
            return whole
        if made.diff and not first.complete:  # what else is done comes to that
            attempt, first = other, made
            if (other := attempt.guarded(failures)) is not None and (behind := one(other)).complete:
                return behind
    if first.complete:
        both = [lambda: attempt.advancing(failures), lambda: attempt.advancing_in_place(failures)]
        return _with_more(moved, first, one, [*both, attempt.in_place_first])
    if (given := _given_places(attempt, failures, _name_of(attempt.function))) is not None:
        return given
    found_by: list[Callable[[], Ways | None]] = [
        lambda: attempt.bringing(failures),
        lambda: attempt.advancing(failures),
        lambda: attempt.leading(failures),
        lambda: attempt.reading_late(failures),
        attempt.sharing_what_is_drawn,
        lambda: attempt.foreseeing(failures),
        lambda: attempt.shortened(failures),
    ]
    foreseen: list[Ways | None] = []
    for way in found_by:
        if (other := way()) is not None and (made := one(other)).complete:
            return made
        if other is not None and other.foresees and made.diff:
            foreseen.append(other.split(made.left))
    deciding = [f for f in failures if f.code in ("branch-frozen", "data-dependent-branch")]
    apart = (attempt.parted(failures), attempt.split(first.left) or attempt.split(failures), attempt.split(deciding))
    little: list[tuple[int, Rewriting]] = []  # with how much is in the graph
    for other in (*foreseen, *apart):
        if other is not None and (made := one(other)).complete:
            if _is_worth_it(other.prover, made):
                return _with_more(other.prover.operations[1], made, one, [attempt.in_place_first])
            little.append((other.prover.operations[0], made))
    if (late := one(attempt.in_place_first())).complete:
        return late
    if (made_so := _given_in_tensors(stale, failures, truth)) is not None:
        return made_so
    if (other := attempt.reading_there(failures, first.left)) is not None:
        plain = one(other)  # numbers that stay on the device have only moved the question to other lines
        known = all(any(f is each for each in failures) for f in plain.left)
        nothing = all(map(attempt.is_returned, plain.left))  # would be in the graph
        first = plain if known and plain.left and not nothing else first
    most, least = max(little, key=lambda pair: pair[0], default=(0, first))
    if most:
        least.instead, least.is_little = first.instead, True  # what would bring more into the graph
        least.verified.append(LITTLE)
        first.otherwise = least
    return first


def _with_more(
    behind: int, best: Rewriting, one: Callable[[Ways], Rewriting], ways: Sequence[Callable[[], Ways | None]]
) -> Rewriting:
    """A whole rewriting with so much of a step behind the launch, or another one that has more in its graph."""
    for way in ways:
        if behind >= ENOUGH and (other := way()) is not None and (made := one(other)).complete:
            inside, left = other.prover.operations
            best, behind = (made, left) if left < behind and inside > left else (best, behind)
    return best


def _given_places(attempt: Ways, failures: Sequence[Failure], name: str) -> Rewriting | None:
    """A rewriting that takes the places that a function is given in tensors, which its caller has to make."""
    found = attempt.placing_arguments(failures)
    if found is None:
        return None
    other, plain, names = found
    try:
        plain.eager()
        made = _rewritten(other, failures, Truth(plain), Rewriting(name))
    except Exception:
        return None  # there are no such places any more a few steps later
    if not made.complete:
        return None
    made.complete = False
    made.left = [f for f in failures if other.kept is not None and any(f is each for each in other.kept.failures)][:1]
    for each in names:
        made.instead.append(
            f"`{each}` is a number that each call is given, of which a graph keeps the first: give it as a tensor, "
            f"`{each} = torch.zeros((), dtype=torch.long, device={attempt.device})` once and `{each}.fill_(...)` "
            "before each launch (the lines above were tried so)"
        )
    return made


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def _given_in_tensors(stale: Sequence[tuple[Ways, str]], failures: Sequence[Failure], truth: Truth) -> Rewriting | None:
    """The first of some ways that is whole where the numbers that a graph would keep are given to it in tensors."""
    for other, name in stale:
        while name and name not in other.forced and len(other.forced) < TRIES:
            other.forced.add(name)
            made = _rewritten(other, failures, truth, Rewriting(_name_of(other.function)))
            if made.complete and (other.cut < 0 or _is_worth_it(other.prover, made)):
                return made
            name = made.stale
    return None


def _rewritten(attempt: Ways, failures: Sequence[Failure], truth: Truth, found: Rewriting) -> Rewriting:
    """One way of rewriting it."""
    gc.collect()  # what a way before has left in circles: a loss of its own would keep the backward on its stream
    rounds = Rounds()
    plans = _safe(attempt, None, failures, truth)
    if plans:
        rounds.add(attempt, plans)
        why = wrong_from(attempt, truth, rounds) or too_early(attempt.sources, rounds.texts)
        found.verified += [why] if why else []
        plans = plans if not why else []
    handled = {id(f) for plan in plans for f in plan.failures}
    left = [f for f in failures if id(f) not in handled]
    if plans:
        problems = _again(rounds, truth)
        _show(rounds, found)
        found.verified += [attempt.kept.told] if attempt.kept is not None and attempt.kept.told else []
        found.verified.append(f"eagerly it gives the original's results and state in {STEPS} steps with moved inputs")
        failed = _capture(rounds, truth, found)
        if left or failed is not None:
            still = by_hand.still(attempt, problems, failures, left)
            # Replays may differ although nothing is found any more: then by what was found at first, and stands there.
            left = still or (left if failed is not None else [])
        if failed and not any(failed[0].frame == each.frame or failed[0].code == each.code for each in left):
            left = [*left, *failed]  # what no call has shown
        stale = found.stale = _stale(rounds)
        if stale:
            found.verified.append(
                f"`{stale}` gets another value outside the launch, and the graph keeps the one it has read"
            )
        found.complete = failed is None and not left and not truth.unsteady and not stale
        behind = attempt.alone if found.complete else []
        found.verified += list(dict.fromkeys(t for f in failures if behind and (t := behind_for_cycles(f))))
        if truth.unsteady:
            found.verified = [f"{UNSTEADY} ({truth.unsteady}), so nothing could be compared"]
    found.left, found.instead = left, by_hand.lines(attempt, left, known=failures)
    if plans and stale and (text := _instead_of(rounds, stale)):
        found.instead.append(text)
    found.unsaid = by_hand.unsaid(attempt, left)
    return found


def _instead_of(rounds: Rounds, name: str) -> str:
    """What to do about a value that the graph keeps."""
    first, mover = rounds.all[0][0], rounds.mover
    moved = {each.name for each in (mover.moved, mover.fed) if each is not None}
    lines, source = rounds.texts.get(first.file, []), first.sources[first.file]
    return kept_outside(name, lines, source.lines, moved, {code.co_name for code in first.ran}, first.device)


def _stale(rounds: Rounds) -> str:
    """What is rebound behind the launch and read in the graph, or ""."""
    first, mover = rounds.all[0][0], rounds.mover
    around = (mover.moved, rounds.around.after), (mover.fed, rounds.around.before)
    moved = {each.name for each, used in around if each is not None and used is not None}
    ran = {code.co_name for code in first.ran}
    containers = {holder.name for holder in first.prover.state.holders if holder.kind == "container"}
    lines, rates = rounds.texts.get(first.file, []), first.rate and first.steps
    tensors = {name for name, value in first.space.items() if isinstance(value, torch.Tensor)}
    return frozen(lines, moved, ran, containers, rates=bool(rates), tensors=tensors).lstrip(".") if moved else ""


def _is_worth_it(prover: Prover, found: Rewriting) -> bool:
    """Whether enough of what a step does is in the graph; notes how much."""
    (inside, behind), products = prover.operations, prover.products
    if behind:
        text = f"{inside} of {inside + behind} operations of a step are in the graph, the others run behind it"
        found.verified.append(text)
    if any(products):
        return products[0] >= products[1] and products[0] > 0
    return inside >= ENOUGH or inside >= 2 * behind


class Rounds:
    """Rewritten once, and what that has shown rewritten again, each on the lines of the one before."""

    def __init__(self) -> None:
        self.all: list[tuple[Ways, Any]] = []  # with the context in which its lines run
        self.texts: dict[str, list[str]] = {}  # the lines of each file, as the last has left them
        self.around = NOTHING
        self.mover: Ways  # the one whose lines go around the launch

    @property
    def moves(self) -> bool:
        """Whether something goes around the launch."""
        return self.around.before is not None or self.around.after is not None

    def add(self, attempt: Ways, plans: Sequence[Plan]) -> None:
        """One more."""
        if not self.moves:
            self.mover, self.around = attempt, attempt.around(plans)
        elif attempt.only_feeds:
            self.mover.fed, self.around = attempt.fed, _joined(self.around, attempt.around(plans))
        self.all.append((attempt, attempt.borrow(plans)))
        texts = attempt.texts(plans)
        self.texts |= {file.removesuffix(REWRITTEN * (len(self.all) - 1)): lines for file, lines in texts.items()}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this lasts the user's functions run the lines of the last."""
        with ExitStack() as stack:
            for _, lent in self.all:
                stack.enter_context(lent())
            yield


def _safe(attempt: Ways, around: Around | None, failures: Sequence[Failure], truth: Truth) -> list[Plan]:
    """Plans for what was found, without those that change what the function does."""
    for _ in range(TRIES):
        plans = attempt.plans(failures)
        wrong = _changed(attempt, around, plans, truth)
        if not wrong:
            return plans
        for plan, why in wrong:
            attempt.take_back(plan, why)
    return []


def _again(rounds: Rounds, truth: Truth) -> list[Failure]:
    """Rewrite what is still found in rewritten lines, as far as that goes; returns what is left in the end."""
    first, tries = rounds.all[0][0], AGAIN
    while True:
        with rounds.applied():
            problems = examine(first.function, first.args, first.kwargs, limit_s=LIMIT_S).problems
            attempt = _once_more(first)
            if any(failure.code == "data-dependent-branch" for failure in problems) and tries:
                with attempt.watched():  # what is a tensor by now
                    first.prover.from_now().eager(rounds.around)
            attempt.tensors = first.tensors
            plans = _safe(attempt, rounds.around, problems, truth) if problems and tries else []
            if not plans and problems and tries and not rounds.moves:  # by now it may go around the launch
                attempt = _once_more(first)
                attempt.moves = True
                with attempt.watched():
                    first.prover.from_now().eager()
                plans = _safe(attempt, None, problems, truth)
                if not plans and all(attempt.is_returned(each) for each in problems):
                    attempt = attempt.split(problems) or attempt  # what is picked of the results is behind the launch
                    plans = _safe(attempt, None, problems, truth)
                    inside, behind = attempt.prover.operations
                    plans = plans if inside >= behind else []
            elif not plans and problems and tries and rounds.around.before is None:  # what only a rewrite has shown
                attempt = _once_more(first)
                attempt.moves = attempt.only_feeds = True
                with attempt.watched():
                    first.prover.from_now().eager(rounds.around)
                plans = _safe(attempt, rounds.around, problems, truth)
        if not plans:
            return problems
        rounds.add(attempt, plans)
        tries -= 1


def _once_more(first: Ways) -> Ways:
    """The same function, on the lines that it has by now."""
    again = Ways(first.function, first.args, first.kwargs, first.prover)
    again.steps, again.read_numbers, again.reads_there = first.steps, first.read_numbers, first.reads_there
    return again


def _joined(first: Around, more: Around) -> Around:
    """What goes around a launch already, with what it does not have yet."""
    return Around(first.before or more.before, first.after or more.after)


def _changed(attempt: Ways, around: Around | None, plans: Sequence[Plan], truth: Truth) -> list[tuple[Plan, str]]:
    """The plans that change what the function does, each tried alone where all together do."""
    if not plans or not (why := _tried(attempt, around, plans, truth)):
        return []
    if len(plans) == 1:
        return [(plans[0], why)]
    alone = [(plan, _tried(attempt, around, [plan], truth)) for plan in plans]
    wrong = [(plan, text) for plan, text in alone if text]
    return wrong or [(plan, why) for plan in plans]


def _tried(attempt: Ways, around: Around | None, plans: Sequence[Plan], truth: Truth) -> str:
    """What is wrong with the rewritten function, run eagerly; "" where nothing is. Asked once for the same lines."""
    lines = {file: "".join(text) for file, text in attempt.texts(plans).items()}
    more = [(*plan.hoisted, *plan.brought) for plan in plans]
    known = (lines, more, attempt.rate, sorted(attempt.fused), attempt.steps, attempt.kept is None)
    key = repr(known), around  # itself: an id would be that of another one once it is gone
    if key not in truth.tried:
        truth.tried[key] = _tries(attempt, around, plans, truth)
    return truth.tried[key]


def _tries(attempt: Ways, around: Around | None, plans: Sequence[Plan], truth: Truth) -> str:
    try:
        with attempt.borrow(plans)():
            wrong = truth.wrong(attempt.prover.from_now().eager(_joined(around or NOTHING, attempt.around(plans))))
        return f"the numbers would change ({wrong[0]})" if wrong else ""
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException as error:
        said = by_hand.brief(error)
    gc.collect()  # its frames hold a loss, which would keep the backward pass on the stream of this trial
    return said


def _show(rounds: Rounds, found: Rewriting) -> None:
    first = rounds.all[0][0]
    diffs = (first.sources[file].diff_to(lines) for file, lines in rounds.texts.items())
    found.diff = "\n".join(diff for diff in diffs if diff)
    found._borrow, found.around = rounds.applied, rounds.around
    found.verified += provisos([line for line in found.diff.splitlines() if line.startswith("+")])
    usage, mover = [], rounds.mover
    if mover.fed is not None and found.around.before is not None:
        usage.append(_call(mover, mover.fed.name, mover.fed.parameters) + " before each launch")
    if mover.moved is not None and found.around.after is not None:
        text = _call(mover, mover.moved.name, mover.moved.parameters) + " after each launch"
        usage.append(text + ", which returns the result" * mover.moved.returns)
    found.usage = ", and ".join(usage)
    found.loop = _loop(mover, found.around)


def _loop(first: Ways, around: Around) -> list[str]:
    """A step of the user's loop: what comes before a launch, the launch, and what comes after it."""
    fed = first.fed if around.before is not None else None
    moved = first.moved if around.after is not None else None
    called, texts = written(first.function, first.args, first.kwargs, name_of(first.function, first.space))

    def line(name: str, parameters: Sequence[str], arguments: int) -> str:
        own = parameters[:1] == ["self"]
        given = [texts.get(each, each) for each in parameters[own:arguments]]
        return _called(first, name, [*parameters[:own], *given, *parameters[arguments:]])

    lines = [line(fed.name, fed.parameters, len(fed.parameters))] if fed is not None else []
    given = ", ".join(moved.parameters[moved.arguments :]) if moved is not None and moved.results else ""
    lines.append(f"{given or 'out'} = launched({called})")
    if moved is not None:
        lines.append("out = " * moved.returns + line(moved.name, moved.parameters, moved.arguments))
    return lines


def _call(first: Ways, name: str, parameters: Sequence[str]) -> str:
    return f"call {_called(first, name, parameters)}"


def _called(first: Ways, name: str, parameters: Sequence[str]) -> str:
    own = parameters[:1] == ["self"]
    made = first.entry is not None and "<locals>" in first.entry.__qualname__ and not own
    by = f"_of[{name_of(first.function, first.space)}]" if made else ""
    return f"{'self.' * own}{name}{by}({', '.join(parameters[own:])})"


def _capture(rounds: Rounds, truth: Truth, found: Rewriting) -> list[Failure] | None:
    """Capture the rewritten function and compare what its replays do.

    Returns None where that is what the function does, else the failure of the capture, if that is known.
    """
    where, attempt = driver().source().label(), rounds.all[0][0]
    try:
        with rounds.applied():
            seen = attempt.prover.from_now().captured(rounds.around)
    except CaptureError as error:
        place = frame_text(error.failure.frame)
        found.verified.append(f"its capture still fails: {error.failure.title} [{error.failure.code}] at {place}")
        return [attempt.at_home(error.failure)]
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException as error:
        found.verified.append(f"its capture still fails: {by_hand.brief(error)}")
        return []
    wrong = [f"replays of one graph differ from eager: {each}" for each in truth.wrong(seen)[:1]]
    if wrong := wrong or [why for why in [wrong_from(attempt, truth, rounds)] if why and len(rounds.all) > 1]:
        found.verified += wrong
        return []
    bits = "bit for bit" if truth.is_bitwise(seen) else truth.closeness()
    found.verified.append(f"replays of one graph give eager's results and state {bits} ({where})")
    return None
