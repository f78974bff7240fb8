"""How a line is rewritten where it stands, for each class of problem: what is sure, or nothing."""

from __future__ import annotations

from collections.abc import Callable

from paramgraph_kit.rewrite.advised.host import tables
from paramgraph_kit.rewrite.around.overwritten import keep_the_answer
from paramgraph_kit.rewrite.counting import optimizers
from paramgraph_kit.rewrite.expressions import calls, each_alone, spectra
from paramgraph_kit.rewrite.expressions.decisions import (
    both_ways,
    branches,
    chains,
    common_ends,
    counted_apart,
    gates,
    unfolded,
    written,
)
from paramgraph_kit.rewrite.expressions.makes import fields, literals, made, once, typed, values
from paramgraph_kit.rewrite.expressions.numbers import (
    extremes,
    filled,
    indexed,
    listed_places,
    nested,
    noted,
    number_lists,
    number_only,
    of_numpy,
    ranked,
    readings,
    scalars,
    truth,
)
from paramgraph_kit.rewrite.expressions.numbers.asked import asks_for_itself
from paramgraph_kit.rewrite.expressions.picks import (
    all_ahead,
    clipped,
    corners,
    counts,
    distinct,
    edges,
    either,
    labelled,
    last_of_each,
    lengthwise,
    listed,
    longest,
    masks,
    pairs,
    penalized,
    picked,
    rows,
    scattered,
    segments,
    shapes,
    widened,
)
from paramgraph_kit.rewrite.expressions.state import carried, let_go, on_modules, shifted
from paramgraph_kit.rewrite.loops import at_places, early, ending, lists, searched, some_rounds
from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.place import Place, asked
from paramgraph_kit.rewrite.source.set_later import is_of_settings, is_set_later

Rule = Callable[[Place], list[Edit]]
RULES: dict[str, tuple[Rule, ...]] = {  # tried in this order
    "sync-item": (
        common_ends.do_it_behind,
        either.pick_by_either_mask,
        counts.add_up_as_many,
        scattered.put_as_many,
        written.scaled,
        filled.fill_from_device,
        filled.spread_from_device,
        scalars.take_a_tensor,
        number_only.write_it_out,
        indexed.look_up_there,
        indexed.fill_there,
        picked.take_by_rank,
        calls.fill_with_a_tensor,
        lists.stack_the_elements,
        lists.reduce_on_device,
        ranked.order_on_device,
        listed_places.keep_places,
        values.keep_on_device,
        noted.go_on_with_the_tensor,
        longest.as_wide_as_masked,
        lengthwise.mask_the_part,
        searched.look_at_all,
        early.go_on,
        early.leave_round_out,
        early.count_up,
        ending.end_all,
        branches.choose_by_where,
        chains.choose_among,
        counted_apart.count_behind_it,
        gates.run_the_rest,
        extremes.larger_on_device,
        branches.choose_one,
        branches.assert_on_device,
        calls.do_not_validate,
        shapes.put_by_index,
        shapes.pick_by_index,
        keep_the_answer,
    ),
    "data-dependent-branch": (
        common_ends.do_it_behind,
        listed.ask_of_each,
        either.pick_by_either_mask,
        calls.tell_that_masks_are_given,
        branches.ask_the_host_first,
        optimizers.leave_the_step_out,
        rows.drop_the_guard,
        searched.look_at_all,
        early.go_on,
        early.leave_round_out,
        lists.average_those_kept,
        some_rounds.keep_which,
        early.count_up,
        ending.end_all,
        both_ways.choose_what_is_given,
        both_ways.add_nothing_instead,
        branches.choose_by_where,
        chains.choose_among,
        counted_apart.count_behind_it,
        gates.run_the_rest,
        branches.choose_one,
        extremes.larger_on_device,
        truth.keep_the_truth,
        branches.assert_on_device,
        calls.do_not_validate,
        keep_the_answer,
    ),
    "compare-on-cpu": (
        spectra.add_the_frames,
        searched.look_at_all,
        early.go_on,
        early.leave_round_out,
        ending.end_all,
        branches.choose_by_where,
        chains.choose_among,
        counted_apart.count_behind_it,
        gates.run_the_rest,
        branches.assert_on_device,
    ),
    "argument-check": (spectra.add_the_frames, calls.do_not_validate, calls.draw_by_hand),
    "copy-to-cpu": (
        last_of_each.pick_in_each_row,
        segments.of_each_segment,
        segments.of_each_cut,
        typed.keep_it_there,
        distinct.go_through_all,
        penalized.change_those_there,
        values.return_the_tensor,
        values.look_up_there,
        tables.gather_there,
        lists.stack_the_elements,
        lists.join_on_device,
        lists.keep_those_that_go_back,
        lists.go_through_tensors,
        number_lists.list_on_device,
        number_lists.ask_there,
        ending.end_all,
        readings.reduce_there,
        of_numpy.ask_its_size,
        of_numpy.compute_there,
        values.keep_on_device,
        readings.stay_there,
        keep_the_answer,
    ),
    "copy-to-gpu": (
        listed_places.keep_places,
        typed.keep_it_there,
        nested.stack_the_numbers,
        values.number_in_full,
        values.number_there,
        made.make_it_there,
        values.look_up_there,
        values.make_it_before,
        tables.pick_from_a_copy,
        tables.make_it_on_device,
        made.made_of_it,
        made.made_in_a_helper,
    ),
    "tensor-literal": (
        listed_places.keep_places,
        nested.stack_the_numbers,
        values.number_in_full,
        values.make_it_before,
        number_lists.stack_the_list,
    ),
    "cpu-index": (listed_places.keep_places, values.fill_by_index, values.index_on_device, tables.make_it_on_device),
    "cpu-scalar-frozen": (tables.pick_from_a_copy, tables.make_it_on_device),
    "scalar-assignment": (listed.fill_unless_a_mask,),
    "dynamic-shape": (
        each_alone.in_its_own_line,
        readings.count_there,
        segments.through_all_experts,
        at_places.ask_in_each_round,
        distinct.compute_each,
        labelled.label_each,
        distinct.go_through_all,
        penalized.change_those_there,
        picked.mask_by_rank,
        counts.count_those_kept,
        counts.add_up_the_largest,
        shapes.reduce_the_whole,
        shapes.reduce_the_selected,
        each_alone.masked_select_as_index,
        shapes.weigh_the_whole,
        shapes.assign_by_where,
        shapes.assign_each_by_where,
        all_ahead.assign_all_by_where,
        rows.compute_all_rows,
        widened.pick_rows,
        clipped.keep_on_clipping,
        masks.leave_out,
        edges.leave_edges_out,
        pairs.pick_among_all,
        picked.beside_the_diagonal,
        corners.first_and_last,
        listed.keep_the_mask,
        listed.keep_the_mask_of_pairs,
        scalars.take_a_tensor,
        number_only.write_it_out,
    ),
    "tensor-bound": (
        scattered.put_in_order,
        counts.add_up_the_largest,
        indexed.look_up_there,
        indexed.fill_there,
        picked.take_by_rank,
        picked.reduce_the_part,
        shapes.put_by_index,
        shapes.cut_by_index,
        shapes.pick_by_index,
        lengthwise.mask_the_part,
    ),
    "mask-assignment": (
        scattered.put_in_order,
        indexed.fill_there,
        picked.mask_by_rank,
        shapes.assign_by_where,
        shapes.assign_each_by_where,
        all_ahead.assign_all_by_where,
        shapes.put_by_index,
    ),
    "hidden-size": (counts.count_those_kept, shapes.count_by_scatter),
    "synchronize": (calls.do_not_wait,),
    "linalg-check": (calls.unchecked,),
    "clip-check": (calls.clip_unchecked, number_only.write_it_out),
    "unjoined-work": (calls.join,),
    "work-elsewhere": (calls.fork,),
    "isolation": (calls.fork,),
    "not-forked": (calls.fork,),
    "stale-input": (
        let_go.keep_its_place,
        shifted.move_the_numbers,
        carried.hand_on,
        calls.write_in_place,
        carried.fill_the_entry,
        carried.fill_each_entry,
        on_modules.fill_what_it_has,
    ),
    "parameter-rebound": (carried.fill_the_data, on_modules.fill_what_it_has),
}

_KEEP = (values.keep_on_device, truth.keep_the_truth, readings.count_there, noted.go_on_with_the_tensor)
LATE: dict[str, tuple[Rule, ...]] = {  # where nothing has gone before the launch
    "branch-frozen": (unfolded.one_after_the_other, unfolded.draw_first),
    "tensor-literal": (literals.fill_with_numbers, once.make_once),
    "cpu-index": (literals.index_with_numbers, once.make_once),
    "copy-to-gpu": (literals.copy_before_the_helper, literals.fill_with_numbers, once.make_once),
    "dynamic-shape": (once.make_once,),
    "mask-assignment": (once.make_once,),
    "hidden-size": (once.make_once,),
    "sync-item": (once.make_once, fields.name_each_field),
    "copy-to-cpu": (once.make_once, fields.name_each_field),
}


def edits_for(place: Place, *, late: bool = False) -> list[Edit]:
    """What the first rule that knows the statement makes of it; ``late``: of those that come last."""
    for rule in (LATE if late else RULES).get(place.failure.code, ()):
        if rule in _KEEP and asks_for_itself(place):
            continue
        before, brought = len(place.hoisted), len(place.brought)
        edits = asked(rule, place, list[Edit]())
        if not edits:
            del place.hoisted[before:], place.brought[brought:]
            continue
        made = [line.partition(" = ")[2] for line in place.hoisted[before:]]
        later = any(is_set_later(place.source, place.statement, text, place.space) for text in made)
        if not later and not any(is_of_settings(text, place.space) for text in made):
            return edits
        del place.hoisted[before:]  # made once it would stay what it was
    return []
