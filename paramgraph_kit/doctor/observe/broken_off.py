"""Around a capture: one that fails, and what it was to hold; a warm-up that is missing, and one that moves a state."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from paramgraph_kit.doctor.observe.captured_before import written_in
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.drawn_ahead import RNG_STATE, generators_in
from paramgraph_kit.doctor.observe.examination import Examination
from paramgraph_kit.doctor.observe.gradients import sets_to_none
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.lines_behind import codes_of
from paramgraph_kit.doctor.observe.one_call import AT, Call, Caller
from paramgraph_kit.doctor.observe.optimizers import ZERO
from paramgraph_kit.doctor.observe.own_regions import Region, optimizer_in, work_out
from paramgraph_kit.doctor.observe.own_states import counts_in_numbers, writes_a_buffer
from paramgraph_kit.doctor.observe.read_ahead import draws_by_default
from paramgraph_kit.doctor.observe.warmed_up import tensors_moved
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

COLD = "cold-library"
_DRAWS = ("rand", "bernoulli", "normal_", "uniform", "dropout", "multinomial", "exponential", "attention")


def warm_up(kind: str) -> None:
    """Let CUDA's libraries make their handles on this thread, and on that of backward passes."""
    with torch.inference_mode(False), torch.enable_grad():
        two = torch.eye(2, device=kind).requires_grad_()
        for use in (
            lambda: two @ two,
            lambda: torch.conv1d(two[None], two[None]),
            lambda: torch.linalg.solve(two, two),
            lambda: torch.fft.fft(two).abs(),
        ):
            with suppress(Exception):  # a device may lack one
                torch.autograd.grad(use().sum(), two)


def broken_off(regions: Iterable[Region]) -> list[Region]:
    """Captures that have not ended well, as functions, where their lines tell."""
    failed = [region for region in regions if not region.whole]
    for region in failed:
        region.stand_in_for_gone()
    return [region for region in failed if work_out(region) and region.function is not None]


def failed(caller: Caller, found: Examination, calls: Sequence[Call], note: str) -> Examination | None:
    """A capture that the last call ends in, to be looked at by itself; None where it is none that can be had.

    The calls ahead of it have warmed up, and hold nothing of a capture's but rates that the host computes.
    """
    *ahead, last = calls
    if last.ended is None or (ahead and last.ended.code == COLD) or any(call.captures for call in ahead):
        return None
    if not (regions := broken_off(caller.graphs.regions or ())):
        return None
    # At the step of an optimizer, which has a number; a tensor is read, and its scheduler stands where it belongs.
    rates = [f for call in ahead for f in call.found if f.code == "learning-rate-frozen" and AT in f.message]
    cause = with_warm_up(last.ended, regions, last.changes, ()) if last.ended.code == COLD else last.ended
    found.calls, found.lost, found.problems, found.notes = caller.number, caller.lost, [cause, *rates], [note]
    found.regions = regions
    return found


def with_warm_up(
    failure: Failure, regions: Iterable[Region], changes: Iterable[Change], again: Iterable[tuple[Region, set[int]]]
) -> Failure:
    """The failure with the lines of its capture, and what a run of them ahead of it would move.

    ``again``: captures that have ended well once libraries were there, and the memory that each goes on from.
    """
    changes, again = [*changes], [*again]
    for region in regions:
        if region.whole or not work_out(region):
            continue
        body = "; ".join(map(ast.unparse, region.body))
        kinds = (int, float, torch.Tensor)
        moved = {c.name: None for c in changes if isinstance(c.before, kinds) and not isinstance(c.before, bool)}
        made = {c.name for c in changes if c.before is None}  # by the run itself: there is nothing to put back
        moved |= dict.fromkeys(path for path, _ in written_in(region) if path.rpartition(".")[2] not in made)
        for other, keys in again:
            if (other.code, other.line) == (region.code, region.line) and other.whole:
                with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                    moved |= dict.fromkeys(n for n in tensors_moved(other, keys) if f"self.{n}" not in moved)
        names = [f"`{name}`" for name in moved if f"self.{name}" not in moved]
        kept = [name for name in moved if f"self.{name}" not in moved and _is_tensor(region, again, name)]
        listed = f"({', '.join(kept)}{',' if len(kept) == 1 else ''})"
        if kept:
            names = [name for name in names if name.strip("`") not in kept]
            names.append(
                f"{', '.join(f'`{n}`' for n in kept)}, `[t.detach().copy_(k) for t, k in zip({listed}, kept)]`"
            )
        copies, trained = _trained(region)
        copies = (f"kept = [t.detach().clone() for t in {listed}]; " if kept else "") + copies
        counts, counted = _counted(region)
        generators = [path for path, _ in generators_in(region)]
        states = [f"state{i if len(generators) > 1 else ''}" for i in range(len(generators))]
        counts += "".join(f"{s} = {path}.get_state(); " for s, path in zip(states, generators, strict=True))
        drawn = [f"`{path}`, `{path}.set_state({s})`" for s, path in zip(states, generators, strict=True)]
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            if draws_by_default(region):
                counts += f"rng = {RNG_STATE[0]}(); "
                drawn.append(f"the default generator, `{RNG_STATE[1]}(rng)`")
        moves = [*names, *trained, *counted, *drawn]
        back = f", then put back what that moves ({', '.join(moves)})" if moves else ""
        side = "s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())"
        run = f"with torch.cuda.stream(s): {body}"
        zero = f"; {optimizer}.zero_grad(set_to_none=True)" if (optimizer := _left_by(region)) else ""
        ends = f"torch.cuda.current_stream().wait_stream(s){zero}{back}"
        ahead = f"ahead of it  {copies}{counts}{side}; {run}; {ends}; then capture"
        return replace(failure, fix=f"before  with torch.cuda.graph(g): {body}\nafter   {ahead}")
    return failure


def _is_tensor(region: Region, again: Iterable[tuple[Region, set[int]]], name: str) -> bool:
    """Whether a name means a tensor where a capture stands, also one that it has let go since."""
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        if is_a(path_value(ast.parse(name, mode="eval").body, region.names, region.space), torch.Tensor):
            return True
    return any(name in other.called.values() for other, _ in again if other.code is region.code)


def _trained(region: Region) -> tuple[str, list[str]]:
    """Copies of the weights that a run of a capture's lines trains, and how all that its optimizer moves comes back."""
    if not any("step" in code.co_names for code in codes_of(region)) or not (path := optimizer_in(region)):
        return "", []
    known = path_value(ast.parse(path, mode="eval").body, region.names, region.space)
    copies = f"params = [p for group in {path}.param_groups for p in group['params']]"
    copies = f"{copies}; before = [p.detach().clone() for p in params]; "
    back = ["the weights, `with torch.no_grad(): [p.copy_(b) for p, b in zip(params, before)]`"]
    if getattr(known, "state", None):
        back.append(f"the state of `{path}`, in place, of which a copy is made ahead of it, too")
    elif not isinstance(known, torch.optim.SGD) or any(group.get("momentum") for group in known.param_groups):
        back.append(f"the state of `{path}`, which that makes, in place: `{ZERO.format(path)}`")
    return copies, back


def _counted(region: Region) -> tuple[str, list[str]]:
    """Copies of the statistics and buffers that modules write as they run, and how these, and numbers, come back."""
    used = {name for code in codes_of(region) for name in (*code.co_names, *code.co_freevars)}
    used |= {n.id for s in region.body for n in ast.walk(s) if isinstance(n, ast.Name)}
    held = {name: value for name, value in region.names.items() if name in used}
    held |= {f"self.{n}": value for n, value in attributes_of(region.names.get("self")).items() if n in used}
    known = {id(v): path for path, v in held.items() if is_a(v, torch.nn.Module)}
    moving = {path: v for path, v in held.items() if id(v) in known and known[id(v)] == path}
    counts = (n for path, module in moving.items() for n in counts_in_numbers(path, module))
    numbers = [f"`{n}`, in place where it is a tensor by then" for n in counts]
    own = [path for path, v in moving.items() if any(map(writes_a_buffer, v.modules()))]
    modules = [path for path, v in moving.items() if path in own or any(map(_counts, v.modules()))]
    if not modules:
        return "", numbers
    each = ", ".join(f"*{path}.buffers()" for path in modules)
    what = "buffers" if own else "statistics"
    copies = f"buffers = [{each}]; statistics = [b.clone() for b in buffers]; "
    return copies, [f"the {what}, `[b.copy_(s) for b, s in zip(buffers, statistics)]`", *numbers]


def _counts(module: torch.nn.Module) -> bool:
    return module.training and is_a(getattr(module, "running_mean", None), torch.Tensor)


def _left_by(region: Region) -> str:
    """The optimizer whose gradients a run of a capture's lines leaves, to which the capture would add; "" for none."""
    codes = [*codes_of(region)]
    used = {name for code in codes for name in code.co_names}
    leaves = "backward" in used and "zero_grad" not in used and not sets_to_none(codes) and not region.gradients
    return optimizer_in(region) if leaves else ""


def moved_ahead(first: Call, later: Call, regions: Iterable[Region], written: Collection[int]) -> Iterator[str]:
    """What to know where the call that captures gives other numbers than one that only replays, from the same state.

    What runs ahead of a capture, or behind it, moves a state then that its lines write. Weights that an optimizer
    steps are left out: a warm-up trains them, as torch's own documentation has it. So is what replays alone write,
    which no call finds as the one before it has found it.

    Args:
        first: the call that captures.
        later: one that only replays.
        regions: what it has captured.
        written: memory that operations outside of captures have written.
    """
    drawn = any(word in step.name for call in (first, later) for step in call.steps for word in _DRAWS)
    counted = any(isinstance(c.after, (int, float)) for c in later.changes)
    pairs = [*zip(first.numbers, later.numbers, strict=False)]
    if not first.captures or drawn or counted or first.left.stepped or first.numbers_drawn or not pairs:
        return
    if all(a.shape == b.shape and torch.allclose(a.double(), b.double(), 1e-4, 1e-5, equal_nan=True) for a, b in pairs):
        return
    seen = {*written, *(key for step in first.steps for key in step.outside)}
    names = {path: None for region in regions for path, t in written_in(region) if storage_key(t) in seen}
    if names:
        listed = ", ".join(f"`{name}`" for name in names)
        what = "its first call, which captures, gives other numbers than the next one from the same state"
        yield f"{what}: what runs ahead of the capture moves {listed}; put these back there, ahead of the first replay"
