"""From what was found to a diff that was tried: which lines are rewritten, and what has to be done otherwise."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from paramgraph_kit.doctor.explain.naming import name_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.driver.select import driver
from paramgraph_kit.rewrite import (
    by_hand,
    exchanged_states,
    kept_numbers,
    kept_tensors,
    kinds,
    known_on_host,
    raised_behind,
    registered,
    summed,
    wider_results,
)
from paramgraph_kit.rewrite.advised.host.from_host import behind_for_cycles
from paramgraph_kit.rewrite.advised.state.kept_outside import kept_outside
from paramgraph_kit.rewrite.around import elsewhere
from paramgraph_kit.rewrite.begun_numbers import begun_inside, in_words, is_written_at
from paramgraph_kit.rewrite.behind import OF_STEPS
from paramgraph_kit.rewrite.conditions import unlike
from paramgraph_kit.rewrite.filled_anew import WHY, frozen_fills
from paramgraph_kit.rewrite.little import is_worth_it, tell_share, told_of_little, with_more
from paramgraph_kit.rewrite.memory_owners import MEMORY, OTHER_MEMORY, tensor_slots
from paramgraph_kit.rewrite.moving_numbers import for_each_number, kept_by, with_numbers_moving, wrong_given
from paramgraph_kit.rewrite.own_launches import is_replayed_as_it_is, is_wrong_there
from paramgraph_kit.rewrite.proving.constructed import wrongly_made
from paramgraph_kit.rewrite.proving.exchanged import ExchangedError
from paramgraph_kit.rewrite.proving.proof import STEPS, Truth
from paramgraph_kit.rewrite.proving.results import flat_tensors
from paramgraph_kit.rewrite.proving.worth import Ahead, Worth, is_mostly_inside
from paramgraph_kit.rewrite.reads import called_by, frozen, mode_set
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.returned import copy_what_is_kept, written_by
from paramgraph_kit.rewrite.rounds import TRIES, Rounds, again, safe
from paramgraph_kit.rewrite.shared_states import told_shared
from paramgraph_kit.rewrite.shown import show
from paramgraph_kit.rewrite.source import modes
from paramgraph_kit.rewrite.source.edits import Function, within
from paramgraph_kit.rewrite.source.in_order import too_early
from paramgraph_kit.rewrite.source.reach import owner_of
from paramgraph_kit.rewrite.starts import wrong_from, wrong_later
from paramgraph_kit.rewrite.trained_behind import branch_behind
from paramgraph_kit.rewrite.truths import Known, truth_of, without_gradients
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.errors import CaptureError
from paramgraph_kit.trace.model import Failure

REPLAYED = "replays of one graph give eager's results and state {how} ({where})"
UNSTEADY = "two runs from one state give other results"


def rewrite(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    failures: Sequence[Failure],
    *,
    part: bool = False,
    known: Known | None = None,
) -> Rewriting:
    """Rewrite what is sure, try it against the function as it is, and say what has to be done otherwise.

    ``part``: what it returns goes on in a function that is compared as a whole, with the gradients of its state.
    ``known``: what others have seen of it.
    """
    known = known or Known()
    attempt = Ways(function, args, kwargs, known.prover())
    attempt.prover.is_part = part
    try:
        found = _first_whole(attempt, failures, known)
        tell_share(found)
        if found.complete and (text := branch_behind(found)):
            found.verified.append(text)
        return found
    finally:
        attempt.prover.forget()  # whoever keeps the fix keeps no tensors of the trial


def _first_whole(attempt: Ways, failures: Sequence[Failure], known: Known) -> Rewriting:
    """The first way of rewriting that leaves nothing, or else the first of all."""
    found = Rewriting(name_of(attempt.function))
    if any(failure.code in by_hand.ENDLESS for failure in failures):
        found.left, found.instead = list(failures), by_hand.lines(attempt, failures)
        return found
    try:
        truth = known.truth_of(attempt.prover, attempt.watched)
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException as error:
        found.instead = [f"it cannot be run {STEPS} times with other inputs: {by_hand.brief(error)}"]
        found.instead += by_hand.lines(attempt, [f for f in failures if f.code != "raises"])  # which says the same
        found.left, found.unsaid = list(failures), by_hand.unsaid(attempt, failures)
        return found
    stale: list[tuple[Ways, str]] = []  # ways after which a graph would keep a number that moves behind it

    def one(other: Ways) -> Rewriting:
        own = truth if other.given_back is None else without_gradients(truth)
        made = _rewritten(other, failures, own, Rewriting(found.function))
        if made.complete and is_wrong_there(made, other.ran):
            made = Rewriting(found.function, left=list(failures), instead=by_hand.lines(other, failures))
            made.unsaid = by_hand.unsaid(other, failures)
        if made.begins:
            made = _begun_in_tensors(other, made, failures, truth)
        stale.extend([(other, made.stale)] if made.stale and len(made.left) <= TRIES else [])  # one number mends few
        return made

    def plainly(other: Ways, known: Sequence[Failure], own: Truth) -> Rewriting:
        return _rewritten(other, known, own, Rewriting(found.function))

    if (other := attempt.guarded(failures)) is not None and (behind := one(other)).complete:
        return behind
    back = one(other) if (other := attempt.giving_back(failures)) is not None else None
    if back is not None and back.complete:
        return back
    first = one(attempt)
    if truth.unsteady:
        return first
    if not first.complete and (made_so := with_numbers_moving(attempt, failures, plainly)) is not None:
        return made_so
    if not first.complete and known.is_late():
        return first
    little: list[tuple[int, Rewriting]] = []  # with how much is in the graph
    drawn = attempt.drawing() if not first.complete else None
    for ahead in (lambda: drawn, partial(drawn.telling_in_helpers, failures)) if drawn is not None else ():
        if not known.is_late() and (other := ahead()) is not None and (made := one(other)).complete:
            if is_mostly_inside(other.prover):
                return made
            little.append((other.prover.operations[0], made))
    if back is not None and back.diff and len(back.left) < len(first.left):
        # Others would step with gradients that no launch makes.
        return for_each_number(attempt, without_gradients(truth), back)
    moved = first.worth.behind if first.complete else attempt.prover.operations[1]
    whole_inside, plain_lines = first.complete and first.worth.share >= 0.5, attempt
    if not whole_inside and (other := attempt.placing(failures)) is not None:
        if (made := one(other)).complete:
            return made
        if (more := attempt.placing(failures, prefixes=True)) is not None and (whole := one(more)).complete:
            return whole
        if (
            made.diff and not first.complete and not _is_cut_by_tensors(made, failures)
        ):  # what else is done comes to that
            attempt, first = other, made
            if (other := attempt.guarded(failures)) is not None and (behind := one(other)).complete:
                return behind
    if first.complete:
        both = [lambda: attempt.advancing(failures), lambda: attempt.advancing_in_place(failures)]
        both.append(lambda: attempt.reading_together(failures))
        return with_more(moved, first, one, [*both, attempt.in_place_first], known.is_late)
    if known.is_late():
        return first
    if (other := attempt.fetching(failures)) is not None:
        if (made := one(other)).complete:
            if other.cut < 0 and is_mostly_inside(other.prover):
                return made
            little.append((other.prover.operations[0], made))
        elif made.diff and len(made.left) < len(first.left):
            attempt, first = other, made
    other = plain_lines.fetching(failures) if attempt is not plain_lines else None
    if other is not None and (made := one(other)).complete:  # what picks of a list of the host's stays a number
        return made
    if not known.is_late() and (other := attempt.asking_in_methods(failures)) is not None:
        if (made := one(other)).complete:
            if other.cut < 0 and is_mostly_inside(other.prover):
                return made
            little.append((other.prover.operations[0], made))
        elif made.diff and len(made.left) < len(first.left):
            attempt, first = other, made
    name = name_of(attempt.function)
    if not known.is_late() and (given := _given_places(attempt, failures, name)) is not None:
        return given
    found_by: list[Callable[[], Ways | None]] = [
        lambda: attempt.bringing(failures),
        lambda: attempt.advancing(failures),
        lambda: attempt.leading(failures),
        lambda: attempt.reading_late(failures),
        attempt.sharing_what_is_drawn,
        lambda: attempt.telling_in_helpers(failures),
        lambda: attempt.foreseeing(failures),
        lambda: attempt.shortened(failures),
    ]
    foreseen, counted = list[Ways | None](), list[Ways | None]()
    for way in found_by:
        if known.is_late():
            break
        if (other := way()) is not None and (made := one(other)).complete:
            return made
        if other is not None and other.foresees and made.diff:
            foreseen.append(other.split(made.left))
        elif other is not None and other.kept is not None and made.diff:  # what it counts is in tensors by then
            counted.append(other.split([f for f in made.left if any(f is each for each in failures)]))
    deciding = [f for f in failures if f.code in ("branch-frozen", "data-dependent-branch")]
    earlier = attempt.split(failures)  # of what is left some may need what only lines before it know
    apart = [
        attempt.stepping_behind(failures),
        attempt.reading_together(failures),
        attempt.parted(failures),
        attempt.split(first.left) or earlier,
    ]
    apart += [attempt.split(deciding), attempt.split_where_made(first.left)]
    apart += [earlier] if earlier is not None and earlier.cut not in [each.cut for each in apart if each] else []
    for other in (*foreseen, *apart, *counted):
        if other is None or known.is_late():
            continue
        if (made := one(other)).complete:
            if is_worth_it(other.prover, made):
                return with_more(other.prover.operations[1], made, one, [attempt.in_place_first], known.is_late)
            little.append((other.prover.operations[0], made))
    if not known.is_late() and (late := one(attempt.in_place_first())).complete:
        return late
    if (made_so := _given_in_tensors(stale, failures, truth)) is not None:
        return made_so
    if not known.is_late() and (other := attempt.reading_there(failures, first.left)) is not None:
        plain = one(other)  # numbers that stay on the device have only moved the question to other lines
        same = all(any(f is each for each in failures) for f in plain.left)
        nothing = all(map(attempt.is_returned, plain.left))  # would be in the graph
        first = plain if same and plain.left and not nothing else first
    most, least = max(little, key=lambda pair: pair[0], default=(0, first))
    if most:
        least.instead, least.is_little = first.instead, True  # what would bring more into the graph
        least.verified.append(told_of_little(least))
        first.otherwise = least
    if not known.is_late():
        first.known = least.known = known_on_host.told(attempt, failures)
    return first


def _begun_in_tensors(attempt: Ways, made: Rewriting, failures: Sequence[Failure], truth: Truth) -> Rewriting:
    """A whole rewriting of which a capture in the first call would make tensors of numbers, with these made before."""
    if (other := attempt.beginning(made.begins, failures)) is not None:
        again = _rewritten(other, failures, truth, Rewriting(made.function))
        if again.complete and not again.begins:
            return again
    moved = [f for f in failures if f.code == "host-counter"]
    own = [f for f in moved if is_written_at(attempt, f, made.begins)]
    made.complete, made.left = False, own or moved or [*failures]
    made.instead = [*made.instead, *in_words(attempt, made.begins)]
    return made


def _is_cut_by_tensors(made: Rewriting, failures: Sequence[Failure]) -> bool:
    """Whether lengths of what trains are tensors only now, at which each launch would wait: numbers have graphs."""
    cut = any(f.code == "tensor-bound" for f in made.left) and all(f.code != "tensor-bound" for f in failures)
    return cut and any(f.code in OF_STEPS for f in failures)


def _given_places(attempt: Ways, failures: Sequence[Failure], name: str) -> Rewriting | None:
    """A rewriting that takes the places that a function is given in tensors, which its caller has to make."""
    found = attempt.placing_arguments(failures)
    if found is None:
        return None
    other, plain, names = found
    try:
        plain.eager()
        made = _rewritten(other, failures, truth_of(plain), Rewriting(name))
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


def _given_in_tensors(stale: Sequence[tuple[Ways, str]], failures: Sequence[Failure], truth: Truth) -> Rewriting | None:
    """The first of some ways that is whole where the numbers that a graph would keep are given to it in tensors."""
    for other, name in stale:
        while name and name not in other.forced and len(other.forced) < TRIES and not truth.is_late():
            other.forced.add(name)
            made = _rewritten(other, failures, truth, Rewriting(name_of(other.function)))
            if made.complete and (other.cut < 0 or is_worth_it(other.prover, made)):
                return made
            name = made.stale
    return None


def _rewritten(attempt: Ways, failures: Sequence[Failure], truth: Truth, found: Rewriting) -> Rewriting:
    """One way of rewriting it; lines that are wrong with inputs of other kinds are taken back."""
    for _ in range(TRIES):
        made, rounds = _in_rounds(attempt, failures, truth, Rewriting(found.function))
        if not made.complete:
            return made
        if not (why := unlike(attempt.prover, truth, rounds, attempt.sources.values())):
            why, untried = wrong_later(attempt, truth, rounds)
            why = why or wrong_given(attempt, truth, rounds, failures)
            wrong, not_run = wrongly_made(attempt.sources, rounds.texts, attempt.space, owner_of(attempt.function))
            why, untried = why or wrong, [*untried, *not_run]
            if why:
                found.verified, found.left, found.stale = [why], list(failures), kept_by(why)
                break
            if truth.conditions.prover is attempt.prover:
                made.verified += [*truth.conditions.provided(rounds), *truth.conditions.untried()]
            made.verified += [*untried, *kinds.told(attempt, rounds), *kept_numbers.told(attempt, rounds)]
            made.verified += kept_tensors.told(attempt, rounds)
            made.begins = begun_inside(attempt, rounds) if is_replayed_as_it_is() else []
            made.verified += [*summed.told(attempt, rounds, truth), *wider_results.told(attempt, rounds, truth)]
            made.verified += [*elsewhere.told(attempt.sources, rounds.texts)]
            return made
        truth.tried.clear()
        found.verified, found.left = [why], list(failures)
    found.instead, found.unsaid = by_hand.lines(attempt, failures), by_hand.unsaid(attempt, failures)
    return found


def _in_rounds(attempt: Ways, failures: Sequence[Failure], truth: Truth, found: Rewriting) -> tuple[Rewriting, Rounds]:
    """The same as far as six steps show."""
    gc.collect()  # what a way before has left in circles: a loss of its own would keep the backward on its stream
    rounds = Rounds()
    plans = safe(attempt, None, failures, truth)
    for _ in range(2 if plans else 0):  # another way, or none
        trial = Rounds()
        trial.add(attempt, plans)
        if not (fills := frozen_fills(attempt, plans, stale := _stale(trial))):
            break
        for plan in fills:
            attempt.take_back(plan, WHY.format(stale))
        if not (plans := safe(attempt, None, failures, truth)):
            break
    if plans:
        rounds.add(attempt, plans)
        why = wrong_from(attempt, truth, rounds) or too_early(attempt.sources, rounds.texts)
        found.verified += [why] if why else []
        plans = plans if not why else []
    handled = {id(f) for plan in plans for f in plan.failures}
    left = others = [f for f in failures if id(f) not in handled]
    if plans:
        problems = again(rounds, truth)
        kept = copy_what_is_kept(rounds, truth)
        kept += told_shared(written_by(rounds), attempt.prover.state.holders, attempt.space)
        show(rounds, found)
        found.verified += [attempt.kept.told] if attempt.kept is not None and attempt.kept.told else []
        found.verified.append(f"eagerly it gives the original's results and state in {STEPS} steps with moved inputs")
        failed = _in_generator(attempt, problems, found) or _capture(rounds, truth, found)
        found.verified += kept if failed is None else []
        if left or failed is not None:
            still = by_hand.still(attempt, problems, failures, left)
            # Replays may differ although nothing is found any more: then by what was found at first, and stands there.
            left = still or (left if failed is not None else [])
        elif frozen_now := by_hand.frozen_by_it(attempt, problems, failures):
            left = frozen_now  # replays with the numbers of today do not show it
        if failed == []:  # what the others froze there may be what it is by: none of the lines above mends that
            left = [*left, *_as_they_were(rounds, [f for f in failures if f not in left])]
        if failed and not any(failed[0].frame == each.frame or failed[0].code == each.code for each in left):
            left = [*left, *failed]  # what no call has shown
        if failed is None:
            left, known = registered.told(attempt, left)
            found.verified += known
        stale = found.stale = _stale(rounds)
        if stale:
            told = f"`{stale}` gets another value outside the launch, and the graph keeps the one it has read"
            found.verified.append(OTHER_MEMORY if stale == MEMORY else told)
        found.complete = failed is None and not left and not truth.unsteady and not stale
        behind = attempt.alone if found.complete else []
        found.verified += raised_behind.told(attempt) if rounds.moves else []
        found.verified += list(dict.fromkeys(t for f in failures if behind and (t := behind_for_cycles(f))))
        if truth.unsteady:
            found.verified = [f"{UNSTEADY} ({truth.unsteady}), so nothing could be compared"]
    found.left, found.instead = left, by_hand.lines(attempt, left, known=failures, others=others)
    if plans and stale and stale != MEMORY and (text := _instead_of(rounds, stale)):
        rest = [each for each in found.instead if f"`{stale}` is one tensor then" not in each]  # it stays a list
        found.instead = rest if by_hand.is_told_there(text, rest) else [*rest, text]
    if plans and not found.complete:
        found.instead = [*found.instead, *_exchanged(rounds, found)]
    found.unsaid = by_hand.unsaid(attempt, left, failures)
    return found, rounds


def _exchanged(rounds: Rounds, found: Rewriting) -> list[str]:
    """What lines of the rewritten program write, that still give tensors of objects other ones."""
    attempt = rounds.all[0][0]
    return exchanged_states.told(
        attempt, rounds, found.exchanged, found.instead, lambda name: {*map(str, _shapes_of(rounds, name))}
    )


def _instead_of(rounds: Rounds, name: str) -> str:
    """What to do about a value that the graph keeps."""
    first, mover = rounds.all[0][0], rounds.mover
    moved = {each.name for each in (mover.moved, mover.fed) if each is not None}
    lines, source = rounds.texts.get(first.file, []), first.sources[first.file]
    if name in modes.NAMES:
        return mode_set(lines, moved, {code.co_qualname for code in first.ran})
    moved = called_by(lines, moved)
    qualified, shapes = {code.co_qualname for code in first.ran}, _shapes_of(rounds, name)
    return kept_outside(name, lines, source.lines, moved, qualified, first.device, shapes=shapes)


def _shapes_of(rounds: Rounds, name: str) -> list[tuple[int, ...] | list[tuple[int, ...]]]:
    """Those of the tensors that a variable, or an attribute, has meant before all steps and after each."""
    try:
        with rounds.applied():
            columns = rounds.all[0][0].prover.from_now().watched()
    except Exception:
        return []
    found: list[Any] = []
    for holder, values in columns:
        named = holder.name == name and holder.kind != "attributes"
        if named or (holder.kind == "attributes" and any(isinstance(v, dict) and name in v for v in values)):
            found = values if named else [v.get(name) for v in values if isinstance(v, dict)]
            break
    return [tuple(v.shape) if isinstance(v, torch.Tensor) else [tuple(t.shape) for t in flat_tensors(v)] for v in found]


def _as_they_were(rounds: Rounds, failures: Sequence[Failure]) -> list[Failure]:
    """Branches and numbers that are frozen and whose lines the rewritten ones have as they were, in the graph."""
    moved = {each.name for each in (rounds.mover.moved, rounds.mover.fed) if each is not None}
    kept = set[str]()
    for lines in rounds.texts.values():
        around = called_by(lines, moved) - {"forward", "__call__"}  # which may be any object's
        functions = (n for n in ast.walk(ast.parse("".join(lines))) if isinstance(n, Function) and n.name not in around)
        kept |= {line.strip() for n in functions for line in lines[n.lineno : n.end_lineno]}
    frozen = ("branch-frozen", "scalar-frozen", "size-frozen")
    return [f for f in failures if f.code in frozen and f.frame is not None and f.frame.text.strip() in kept]


def _stale(rounds: Rounds) -> str:
    """What is rebound behind the launch and read in the graph, or ""."""
    first, mover = rounds.all[0][0], rounds.mover
    around = (mover.moved, rounds.around.after), (mover.fed, rounds.around.before)
    moved = {each.name for each, used in around if each is not None and used is not None}
    ran = {code.co_qualname for code in first.ran if not mover.comes_only_to(mover.behind, code)}
    held = [holder for holder in first.prover.state.holders if holder.kind == "container"]
    containers = {holder.name for holder in held}
    lists = containers - {holder.name for holder in held if not isinstance(holder.target, list)}
    lines, rates = rounds.texts.get(first.file, []), first.rate and first.steps
    tensors = {name for name, value in first.space.items() if isinstance(value, torch.Tensor)}
    tensors |= tensor_slots(first.prover.state.holders) | first.kept_slots()
    more = containers, bool(rates), tensors, first.same_names(), first.has_elsewhere, lists
    return frozen(lines, moved, ran, *more).lstrip(".") if moved else ""


def _in_generator(attempt: Ways, problems: Sequence[Failure], found: Rewriting) -> list[Failure]:
    """What a capture would raise in a generator, which would end there for good: that is not tried."""
    for failure in (f for f in problems if f.code not in BY_ID or not BY_ID[f.code].silent):  # others raise nothing
        at = attempt.place(attempt.at_home(failure))
        function = at[0].function_of(at[1]) if at is not None else None
        if function is not None and any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in within(function)):
            found.verified.append("no capture was tried: it would end the generator of the line that is left")
            return [attempt.at_home(failure)]
    return []


def _capture(rounds: Rounds, truth: Truth, found: Rewriting) -> list[Failure] | None:
    """Capture the rewritten function and compare what its replays do.

    Returns None where that is what the function does, else the failure of the capture, if that is known.
    """
    where, attempt = driver().source().label(), rounds.all[0][0]
    try:
        with rounds.applied():
            seen = attempt.prover.from_now().captured((ahead := Ahead(rounds.around)).around)
            worth = Worth.of(attempt.prover, ahead)  # before others run it
    except CaptureError as error:
        place = by_hand.place_text(error.failure.frame)
        found.verified.append(f"its capture still fails: {error.failure.title} [{error.failure.code}] at {place}")
        return [attempt.at_home(error.failure)]
    except ExchangedError as error:
        found.verified.append(f"replays of one graph would be wrong: {error}")
        found.exchanged = error.paths
        return []
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException as error:
        found.verified.append(f"its capture still fails: {by_hand.brief(error)}")
        return []
    wrong = [f"replays of one graph differ from eager: {each}" for each in truth.wrong(seen)[:1]]
    if wrong := wrong or [why for why in [wrong_from(attempt, truth, rounds)] if why and len(rounds.all) > 1]:
        found.verified += wrong
        return []
    found.worth = worth
    bits = "bit for bit" if truth.is_bitwise(seen) else truth.closeness()
    found.verified.append(REPLAYED.format(how=bits, where=where))
    return None
