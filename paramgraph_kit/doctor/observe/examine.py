"""From a function to all problems that its capture would have: it is run eagerly, watched, and its runs compared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.number_kinds import OF_NUMPY
from paramgraph_kit.doctor.observe import (
    argument_gradients,
    around_replays,
    begun_states,
    between_steps,
    chance,
    drawn_copies,
    host_results,
    kept_arguments,
    kept_in_places,
    left_by_loops,
    made_in_first_call,
    made_inside,
    memory_given,
    now_and_then,
    on_users_stream,
    other_host_tensors,
    other_numbers,
    other_readings,
    other_ways,
    own_draws,
    set_by_calls,
    taken_before,
    turned_late,
    unwaited,
    used_up,
)
from paramgraph_kit.doctor.observe.adopted import adopt
from paramgraph_kit.doctor.observe.begun_inside import begun_in_capture, begun_inside
from paramgraph_kit.doctor.observe.broken_off import COLD, failed, moved_ahead, warm_up, with_warm_up
from paramgraph_kit.doctor.observe.captured_again import without_captured_again
from paramgraph_kit.doctor.observe.captured_arguments import forget_unread
from paramgraph_kit.doctor.observe.captured_before import carried_on, given_in_vain, rates
from paramgraph_kit.doctor.observe.causes_elsewhere import exchanged_at, rebound_at, with_what_sets_it
from paramgraph_kit.doctor.observe.compare import ANOTHER, ASKS, differences
from paramgraph_kit.doctor.observe.constant_scalars import without_constants
from paramgraph_kit.doctor.observe.counted_by_libraries import counted_by_libraries
from paramgraph_kit.doctor.observe.echoes import without_echoes, without_what_follows
from paramgraph_kit.doctor.observe.effects import changed, effect
from paramgraph_kit.doctor.observe.empty import empty
from paramgraph_kit.doctor.observe.ended_ahead import FUNCTION, without_around
from paramgraph_kit.doctor.observe.ended_behind import ended_in, without_nulled
from paramgraph_kit.doctor.observe.examination import Examination
from paramgraph_kit.doctor.observe.exchanged_on_modules import exchanged
from paramgraph_kit.doctor.observe.exchanged_rarely import as_led, exchanged_rarely
from paramgraph_kit.doctor.observe.freed_words import is_gone, kept_by_name
from paramgraph_kit.doctor.observe.graphs_memory import owned, states
from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.kept import kept
from paramgraph_kit.doctor.observe.kept_results import KeptResults, kept_at
from paramgraph_kit.doctor.observe.late_captures import behind_both, captures_late, replays_alone, settled
from paramgraph_kit.doctor.observe.may_have_run import may_have_run
from paramgraph_kit.doctor.observe.moved_along import moved_along
from paramgraph_kit.doctor.observe.moved_by_others import moved_by_others
from paramgraph_kit.doctor.observe.moved_values import moved_failures
from paramgraph_kit.doctor.observe.moved_words import as_its_line_has_it, as_replayed
from paramgraph_kit.doctor.observe.notes import doubts_of, notes_of
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.one_call import Call, Caller, check_free, synchronize
from paramgraph_kit.doctor.observe.optimizers import is_begun
from paramgraph_kit.doctor.observe.out_of_range import OF_ITS_OWN, with_cause
from paramgraph_kit.doctor.observe.own_numbers import of_the_same_lines, read_in_captures
from paramgraph_kit.doctor.observe.own_regions import work_out
from paramgraph_kit.doctor.observe.own_tables import keys_of
from paramgraph_kit.doctor.observe.places import codes_in, order_of, reached
from paramgraph_kit.doctor.observe.read_ahead import moved_as_read
from paramgraph_kit.doctor.observe.results_around import held_around
from paramgraph_kit.doctor.observe.returned_inputs import note_of_kept
from paramgraph_kit.doctor.observe.set_between import Setting
from paramgraph_kit.doctor.observe.source_lines import defined_at, depends, lines_of, tests_of, written_at
from paramgraph_kit.doctor.observe.steps_around import StepsAround, steps_around
from paramgraph_kit.doctor.observe.taken_at_once import without_taken
from paramgraph_kit.doctor.observe.tried_tails import tried, tried_in_program
from paramgraph_kit.doctor.observe.turned_numbers import turned_arguments
from paramgraph_kit.doctor.observe.unordered import Unordered
from paramgraph_kit.doctor.observe.unread_rounds import given_one_of_each
from paramgraph_kit.doctor.observe.zeroed_ahead import added_to, nulled_for_readers, summed_up, zeroed_ahead
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.driver.select import twin
from paramgraph_kit.driver.work import unhindered_s, worked_s
from paramgraph_kit.trace.errors import ParamgraphError
from paramgraph_kit.trace.model import Failure, Frame

MOST_DRAWS = 4  # further calls of a function that draws random numbers on the host
CALLS_ON = 4  # with what the device counts
MANY_CALLS = 7  # that counters are moved on by, to see what they decide
NOT_ASKED = "what Python did at its capture was not run again: diagnose what is captured there by itself"
NOT_REPLAYED = "its capture fails, so what its replays do not see was not looked at: ask again once that is mended"
_ASKED = ("sync-item", "copy-to-cpu", "data-dependent-branch")
_DRAWN = ("host-random", "branch-frozen", "size-frozen")


def examine(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    limit_s: float,
    caller: Frame | None = None,
    others: bool = False,
    state: HostState | None = None,
) -> Examination:
    """Call ``function`` a few times and find all that a capture would refuse or freeze.

    ``caller`` is the line that stands for problems where no line of the user's was running; with ``others`` a few
    calls are led into branches that none has taken. ``state`` is what it leads to, where that is known.
    Tensors, gradients, generators, optimizers, the current stream and what the function changes in Python are put back.

    Raises:
        ParamgraphError: a capture is under way, or the device refuses every call.
    """
    check_free("diagnose(fn)")
    if lost := synchronize(twin()):
        raise ParamgraphError(f"the device answers only '{lost.message}': restart the kernel, nothing else helps")
    examiner = _Examiner(function, args, kwargs, limit_s, state.apart() if state is not None else None)
    examiner.others = others
    try:
        found = examiner.examine()
        captures = examiner.first is not None and examiner.first.captures and not examiner.lost
        until = examiner.until or 0.0
        place = caller or defined_at(function)
        found.problems = [as_its_line_has_it(f if f.frame else replace(f, frame=place)) for f in found.problems]
    finally:
        examiner.put_back()
    del examiner  # what its calls have returned would keep what accumulates gradients on a stream of ours
    if captures and found.regions is None:
        # Of the limit for all calls, and a part of it in any case: this one says what no other does.
        left_s = max(until - unhindered_s(), limit_s / 6)
        found.problems[:0] = on_users_stream.problems(function, args, kwargs, left_s)
    return found


class _Examiner(Caller):
    """One examination: its calls, and what differs among them."""

    first: Call | None = None
    others = False
    _around: tuple[Call, StepsAround] | None = None
    _drew: Call | None = None  # the last that drew others

    def examine(self) -> Examination:
        adopt(self.graphs, self.function, [*self.args, *self.kwargs.values()])
        first = self.first = self.call(self.args, self.kwargs)
        if not first.captures or first.ended is None or first.ended.code != COLD:
            return self.examine_from(first)
        failed = [*(self.graphs.regions or ())]
        self.state.put_back()  # with what it has made for its capture
        warm_up(self.graphs.device)
        self.first = self.call(self.args, self.kwargs)
        found = self.examine_from(self.first)
        again = [(r, self.graphs.flow.moved(r.graph)) for r in [*(found.regions or ()), *(self.graphs.regions or ())]]
        found.problems.insert(0, with_warm_up(first.ended, failed, self.first.changes, again))
        return found

    def examine_from(self, first: Call) -> Examination:
        """All of it, behind the first call."""
        found = Examination(operations=first.on_device, result=first.result)
        if first.ended is not None:
            if self.is_program(first):
                self.state.put_back()  # with the graph that its capture has left, which holds nothing
                return self.program(found, first)
            causes = with_cause(first.ended, self.graphs, found.notes)
            return failed(self, found, [first], NOT_REPLAYED) or self.finish(found, [first], causes)
        self.state.grow()
        second = self.call(self.args, self.kwargs)
        further = None if self.is_program(second) else behind_both(self, first, second)
        if self.is_program(second) or (further is not None and not replays_alone(further)):
            return self.program(found, *filter(None, (first, second, further)))
        if second.captures and (by_itself := failed(self, found, [first, second], NOT_REPLAYED)) is not None:
            return by_itself
        if (late := captures_late(self, [*self.codes(second)], (first, second))) is not None:
            self.first = late  # those ahead of it have warmed up
            return self.examine_from(late)
        pair = calls = [first, second]
        silent = self.compare(*pair)
        if second.ended is None and (silent or second.changes or first.captures):
            # Perhaps only the first call was different, as where something is made when it is needed first.
            third = settled(self, second, further or self.call(self.args, self.kwargs))
            if third.ended is None:
                pair, calls = [second, third], [first, second, third]
                silent = self.compare(*pair)
        if second.ended is None:
            own = own_draws.problems(self, pair[1], silent, self.codes(pair[1]))
            ways = self.random_ways(pair[1], own_draws.told_once(silent, own), found)
            silent = own_draws.told_once(
                chance.without_counted(self, pair[1], self._drew, silent + ways, self.rebound), own
            )
        if ended := used_up.ended(self, first, pair):
            silent = []  # the calls differ because one of them stopped
            ended = without_nulled(ended, [*self.graphs.between.failures()], found.notes)
        elif replays_alone(pair[1]):
            other_numbers.call_with_others(self)
            left = left_by_loops.call_as_left(self, pair[1], (self.first or pair[1]).ran())
            silent = self.own_graphs(pair[1], found, left)  # what is around its launches runs as ever
        else:
            silent += self.later(pair[1], silent) + turned_late.problems(self, pair, silent)
            silent += moved_along(pair[1], silent, lambda: self.call(self.args, self.kwargs))
            silent += counted_by_libraries(self.state, pair[1], silent, lambda: self.call(self.args, self.kwargs))
            silent += other_numbers.frozen_arguments(self, pair[1], silent, found)
            silent += other_host_tensors.problems(self, pair[1], silent)
            silent += now_and_then.problems(self.function, self.args, self.kwargs, [*pair[1].found, *silent])
            silent += turned_arguments(self, pair[1], silent)
            codes, notes = self.codes(pair[1]), found.notes
            silent += between_steps.problems(self.around(pair[1]), self.function, pair[1], codes, notes)
            silent += argument_gradients.problems(pair[1].left.made, self.args, self.kwargs, codes)
            known = {(f.code, f.frame) for f in [*pair[1].found, *silent]}
            between = set_by_calls.problems(self, self.settings(pair[1]), pair[1], found, known)
            silent += [f for f in between if (f.code, f.frame) not in known]
            other_numbers.frozen_names(self, found, pair[1], {(f.code, f.frame) for f in [*pair[1].found, *silent]})
            silent += [*self.moved_on(pair[1]), *self.graphs.unordered.of_memory()]
            silent += begun_states.problems(self, pair[1], self.codes(pair[1]), silent)
            silent += host_results.problems(self.function, (pair[0], pair[1]), [*pair[1].found, *silent])
            if self.first is not None:
                told = [*pair[1].found, *silent]
                silent += kept_arguments.problems(self, self.first, pair[1], self.codes(self.first), told)
            silent += taken_before.problems(self, calls[:-1], pair[1], silent, self.codes, self.compare)
            if self.others:
                silent += other_readings.problems(self, pair[1], [*silent, *first.found])
                silent += other_ways.problems(self, pair[1], [*silent, *first.found], codes)
        return self.finish(found, pair, [*silent, *ended])

    def is_program(self, call: Call) -> bool:
        """Whether it captures, and is given nothing: what is given something may be a step that is to be captured."""
        return call.captures and not self.args and not self.kwargs

    def program(self, found: Examination, *calls: Call) -> Examination:
        """A function that captures in each of its calls: what it puts there is looked at by itself."""
        for call in calls:  # its graph of autograd's would keep what accumulates gradients on a stream of ours
            call.result = found.result = None
        self.graphs.misread.clear()
        self.graphs.regions = None
        last = self.call(self.args, self.kwargs, plainly=True)
        if last.ended is not None:
            self.state.put_back()
        self.graphs.regions, self.graphs.keeps, self.graphs.unordered = [], True, Unordered()
        # What its names mean is kept in this one, and so are tensors that would be gone.
        self.graphs.tails.watches = True
        self.graphs.warmed.forget()
        watched = self.call(self.args, self.kwargs, plainly=True)
        self.graphs.tails.watches = False
        found.regions = [region for region in self.graphs.regions if work_out(region)]
        found.notes += [*self.graphs.warmed.program_notes(found.regions), *self.graphs.behind.callers.notes()]
        found.calls, found.lost = self.number, self.lost
        told = kept_by_name(last.found, found.regions, is_begun) + self.graphs.misread
        told += [f for region in found.regions for f in around_replays.problems(region, found.regions)]
        around = [*self.graphs.around()]
        for region in found.regions:
            sums = summed_up(region, self.graphs.flow.sums_up, [*told, *around])
            told += [*begun_in_capture(region, self.graphs.flow), *sums, *given_one_of_each(region)]
            told += [] if any(f.code == "gradients-rebound" for f in [*told, *around]) else nulled_for_readers(region)
        forget_unread(found.regions, self.graphs.passed.moved, self.graphs.numbers.moved)
        told = self.graphs.with_held([*told, *around])
        told += self.graphs.numbers.entries(told)
        told += tried_in_program(self, told, found.notes)
        told += ended_in(last.ended or watched.ended, told, found.notes, found.regions)
        self.graphs.kept = KeptResults()  # which holds lists of the program's
        fails = last.ended is not None and BY_ID[last.ended.code].category != FUNCTION
        found.notes += [*self.once, *([NOT_REPLAYED] if fails else [])]
        told = as_replayed(told, (region.code.co_filename for region in found.regions))
        found.problems = around_replays.without_freed(list({(f.code, f.frame): f for f in told}.values()))
        return found

    def random_ways(self, base: Call, seen: list[Failure], found: Examination) -> list[Failure]:
        """Where numbers are drawn on the host, what they decide shows only in calls that draw others."""
        if not (base.random_drawn or base.own_drawn):
            return []
        known = {(f.code, f.frame) for f in [*seen, *base.found]}
        more: dict[tuple[str, Frame | None], Failure] = {}
        last, begun, rare = base, worked_s(), set(chance.tests(self.codes(base)))
        others = list[list[Step]]()
        for number in range(chance.MOST_CALLS):
            told = [*seen, *more.values()]
            picked = any(ANOTHER in f.message and f.code == "host-random" for f in told)
            branches, lines = any(f.code == "branch-frozen" for f in told), lines_of(told)
            waits = any((at.file, at.line) not in lines for at in rare) and worked_s() - begun < chance.CALLS_S
            if number >= 2 * MOST_DRAWS and not waits:
                break
            if number >= MOST_DRAWS and (not picked or branches) and not waits:
                break  # else perhaps a branch decides what is read, which calls that take as many ways do not show
            other = self.call(self.args, self.kwargs)
            if other.ended is not None:
                break
            # What is drawn inside a branch shows between two calls that took it.
            for earlier in (base, last) if last is not base else (base,):
                drawn = {(f.code, f.frame): f for f in self.compare(earlier, other) if f.code in _DRAWN}
                more = {**{at: f for at, f in drawn.items() if at not in known}, **more}
            # A way that no call before has taken has waits and copies of its own.
            more = {**{(f.code, f.frame): f for f in other.found if (f.code, f.frame) not in known}, **more}
            self._drew = last = other
            others.append(other.steps)
        drawn_copies.tell(self, base, others)
        if not any(
            f.code in (*_DRAWN, *chance.FROZEN_NUMBERS[: not base.random_drawn]) for f in [*seen, *more.values()]
        ):
            found.notes.append(chance.noted(base, self.codes(base), self.number))
        return list(more.values())

    def rebound(self, call: Call) -> set[Frame | None]:
        """The lines at which a call has given names other numbers and tensors."""
        return rebound_at(call.changes, self.codes(call))

    def later(self, base: Call, seen: list[Failure]) -> list[Failure]:
        """What numbers decide that move with the calls shows only many calls later, where they move slowly."""
        held = self.state.read()
        if (base.random_drawn and base.own_drawn) or not self.state.advance(base.before, MANY_CALLS):
            return []
        other = self.call(self.args, self.kwargs, drawing=base.number if base.random_drawn else 0)
        if other.ended is not None:
            self.state.set_to(held)  # a place that a ring never has: no call takes that
        return turned_late.counted(base, other, seen) if other.ended is None else []

    def moved_on(self, base: Call) -> list[Failure]:
        """What comes later where the host asks for what the device counts, as whether a table was filled already.

        Each call finds these as they were before all calls; only here they stay as the call before has left them.
        """
        if not base.counters or not any(f.code in _ASKED for f in base.found):
            return []
        more = []
        for _ in range(CALLS_ON):
            other = self.call(self.args, self.kwargs, counting=True)
            if other.ended is not None:
                break
            more += other.found
        return more

    def finish(self, found: Examination, calls: list[Call], more: list[Failure]) -> Examination:
        first, last = self.first or calls[0], calls[-1]
        launches, codes = replays_alone(last), self.codes(first)
        told = (f for call in calls for f in call.found if not launches or is_gone(f))
        problems = {(f.code, f.frame): f for f in told}
        if not launches and self.first is not None and all(self.first is not call for call in calls):
            # It made what is made once; but not all is that.
            asked = lines_of([*problems.values(), *more])
            cached = found.operations and not any(call.on_device for call in calls)  # its results, as by lru_cache
            for f in self.first.found:
                if cached or (f.frame and depends(f.frame, asked, codes)):
                    problems.setdefault((f.code, f.frame), f)
        problems |= {(f.code, f.frame): f for f in more if (f.code, f.frame) not in problems}
        problems |= {(f.code, f.frame): f for f in made_inside.generators(problems.values(), codes, last.ran())}
        problems = without_around(problems, calls, codes, found.notes)
        found.calls, found.lost = self.number, self.lost
        moved = without_constants(problems.values(), self.function, self.given, codes, [first, *calls])
        told_once = without_what_follows(without_echoes(with_what_sets_it(moved, codes)), codes)
        found.problems = around_replays.without_freed([*told_once, *of_the_same_lines(told_once, more)])
        if not found.operations and not found.problems:
            found.problems.append(empty(self.function, found.result, self.args, self.kwargs))
        found.problems.sort(key=lambda f: (f.code in ("raises", "exits", "time-limit"), *order_of(f.frame)))
        questions, steps = {**last.asked, **first.asked}, [*first.steps, *last.steps]
        result = None if launches else found.result  # what is around a launch is done each time
        found.notes += notes_of(result, found.operations, steps, self.state.functions, questions)
        found.notes += doubts_of({**last.doubted, **first.doubted})
        for name in last.counting:
            found.notes.append(f"{name} counts its steps on the CPU, and no replay does: the count in its state stays")
        if first.random_drawn and not any(" at " in note for note in found.notes if "random numbers" in note):
            ran = reached(codes_in(step.place.stack for step in steps), codes)
            found.notes += chance.named(ran, found.problems, steps)
        found.notes += [] if launches else made_in_first_call.notes(first.ran(), self.given)
        if any(call.threads for call in calls):
            found.notes.append("it starts threads, and only what they do on the device was looked at")
        if self.state.lazy:
            text = "it makes the parameters of a lazy module at its first call, and they stay"
            found.notes.append(f"{text}: call it before a capture")
        return found

    def compare(self, a: Call, b: Call) -> list[Failure]:
        """What differs between two calls, and what both left behind in Python."""
        drawn = a.random_drawn or b.random_drawn
        codes = self.codes(b)
        moved = memory_given.problems(b, codes, self.state.names)
        told, only = a.moved if moved else (), drawn and not b.changes
        guess = a.numbers_drawn or b.numbers_drawn or not b.changes
        named = exchanged_at(b.changes, codes)
        found = differences(
            a.steps,
            b.steps,
            random_drawn=drawn,
            only_random=only,
            guess=guess,
            told=told,
            rebound=self.rebound(b),
            exchanged_at=named,
        )
        found += moved
        known = [*found, *a.found, *b.found]
        if drawn:
            asked = any(f.code in _ASKED for f in known)  # what the device holds may decide, too
            picked = chance.picked(a, b, codes, [f.frame for f in known])
            found += [f for f in picked if not asked or f.code == "branch-frozen"]
        for change in changed(a.changes, b.changes, codes):
            if failure := effect(change, written_at(change, codes)):
                found.append(failure)
                known = [*found, *a.found, *b.found]
                found += self.tests(change, codes, known) if failure.code == "host-counter" else []
        return [*found, *exchanged(b.rebound, b.steps, codes, found, b.made_by)]

    def tests(self, change: Change, codes: list[CodeType], known: list[Failure]) -> list[Failure]:
        """Branches on a number that moves from call to call, also where no two of these calls took other ways."""
        if not isinstance(change.after, (int, float)) and type(change.after) not in OF_NUMPY:
            return []
        said = f"{ASKS}{change.name}, which went from {change.before} to {change.after} in one call"
        lines = {f.frame.line for f in known if f.frame}
        told = {f.frame for f in known if f.code == "branch-frozen"}
        waited = [f.frame for f in self.first.found if f.code in _ASKED] if self.first is not None else []
        may_run = reached(self.first.ran() if self.first else (), codes)
        tests = [at for code in may_run for at in tests_of(code, change, lines, waited) if at not in told]
        return [BY_ID["branch-frozen"].failure(said, at) for at in tests]

    def codes(self, call: Call) -> list[CodeType]:
        """The user's functions that ran, and those that could have."""
        return may_have_run(call.ran(), self.state.functions)

    def around(self, call: Call) -> StepsAround:
        """What lines around the function do, which is followed once for a call that shows what it runs."""
        if self._around is None or self._around[0] is not call:
            self._around = call, steps_around(self.function, self.given(), call.ran())
        return self._around[1]

    def settings(self, base: Call) -> list[Setting]:
        """What code around the function sets, as far as the function reads it."""
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            return set_by_calls.all_settings(self.around(base), self.function, self.given(), base.ran())
        return []

    def own_graphs(self, call: Call, found: Examination, left: left_by_loops.Left) -> list[Failure]:
        """What goes wrong around a graph that the function has captured in its first call, and replays now."""
        if self.graphs.lies_elsewhere():
            self.call(self.args, self.kwargs)  # it gives that other memory now and then, or captures again, or neither
        text = "its result is its graph's own memory, which the next replay overwrites"
        written = (written_at(each, self.codes(call)) for each in owned(call.changes, self.graphs))
        lines = {at: frozenset[str]() for at in written if at is not None}
        there, hosts = left.around, self.graphs.unordered.hosts
        if is_result := self.graphs.owns([call.result, self.first.result if self.first is not None else None]):
            asked = there.scopes, self.function, self.codes(call), call.result, self.graphs.owns, there.calls
            by_key = any(keys_of(r.code.co_filename) for r in self.graphs.launched_regions())
            lines |= kept(*asked, by_key=by_key)
        problems = [kept_at(text, *each, (self.function, call.result)) for each in lines.items()]
        if is_result:
            problems += held_around(text, there, *asked[1:5], lines, by_key=by_key)
        problems += unwaited.problems(there, self.function, call.result, hosts, found.notes)
        seen, filled = [*self.graphs.around()], [*self.graphs.filled_in_part()]
        problems += [f for f in seen if f not in filled] + self.graphs.misread + tried(self, call, filled, found.notes)
        problems = without_taken(problems, there, self.function, self.codes(call), call.changes, self.graphs.owns)
        problems += [*self.graphs.early.failures(), *self.graphs.flow.copied_over(tensors_in((self.args, self.kwargs)))]
        if is_result and not any(f.title == BY_ID["output-alias"].title for f in problems):
            found.notes.append(f"{text}: who keeps it needs a clone()")
        elif said := note_of_kept(call.result, states(self.graphs), self.graphs):
            found.notes.append(said)
        found.notes.append(OF_ITS_OWN)
        launched = self.graphs.launched_regions()
        vain, given = forget_unread(launched, self.graphs.passed.moved, self.graphs.numbers.moved), self.given()
        read = [r for r in read_in_captures(self.codes(self.first or call), given) if r[0] not in vain]
        keys = {name for name in dict.fromkeys(name for name, _ in read) if other_numbers.is_key(self, name)}
        for name, frame in (each for each in read if each[0] not in keys):
            said = f"{name} is given to a capture of its own, whose replays keep the first {type(given[name]).__name__}"
            problems.append(BY_ID["scalar-frozen"].failure(said, frame))
        problems += [*self.graphs.numbers.failures(problems), *filter(is_begun, (self.first or call).found)]
        ahead = [*moved_as_read(launched, self.graphs.of)]
        settings = self.settings(self.first or call) if launched else []
        for region in launched:
            known = [each for each in settings if each.is_known_in(region)]
            set_at = {(each.at.file, each.at.line) for each in known}
            others = [*moved_failures(region, problems)]
            problems += [f for f in others if f.frame is None or (f.frame.file, f.frame.line) not in set_at]
            problems += [each.told() for each in known if (each.at.file, each.at.line) not in left.anew]
            problems += rates(region, call.found)
            problems += given_in_vain(region, self.function, self.given(), call.steps, problems)
            problems += carried_on(region)
            region.stand_in_for_gone()
            if not work_out(region):
                region.forget()
            about, adds = (self.function, self.given(), self.codes(call), self.graphs.writes), self.graphs.adds_to
            problems += [*zeroed_ahead(region, *about, adds)] or added_to(region, adds)
            problems += [*begun_inside(region, self.graphs.writes)] or begun_in_capture(region, self.graphs.flow)
            problems += given_one_of_each(region)
        found.inside = [region for region in launched if region.function is not None]
        if self.graphs.has_others(region.graph for region in found.inside):
            found.notes.append(NOT_ASKED)
        first, later = ({key for step in each.steps for key in step.outside} for each in (self.first or call, call))
        problems = self.graphs.with_held(kept_in_places.with_kept(self, problems, self.codes(call), launched))
        problems += self.graphs.never_read((self.args, self.kwargs), given, first, later, call.replays[-1], problems)
        problems = without_captured_again(self, problems, launched)
        problems = as_led(problems, left.turned)
        problems += exchanged_rarely(left.turns, launched, problems)
        moved = [] if problems or ahead else moved_ahead(self.first or call, call, launched, self.graphs.written)
        found.notes += [*ahead, *self.graphs.warmed.notes(moved), *moved_by_others(launched, problems)]
        return as_replayed(problems, (region.code.co_filename for region in launched))
