"""What is another one at a replay than at the capture, told at the line that gives it, with what reaches the graph."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from paramgraph_kit.doctor.cell import NAME, is_made_of
from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, MAKERS, here, last_name, nodes_of, spans, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.another_data import without_data_of_others
from paramgraph_kit.doctor.observe.called_beside import (
    filled_where_given,
    found_there_too,
    leaves_ahead,
    made_for_all,
    runs_without_graph,
)
from paramgraph_kit.doctor.observe.captured_arguments import as_key, is_unread, part_of
from paramgraph_kit.doctor.observe.captured_entries import LENGTH
from paramgraph_kit.doctor.observe.captured_values import LEARNS, NOTHING, Moved, Use, path_value
from paramgraph_kit.doctor.observe.cut_behind import as_whole
from paramgraph_kit.doctor.observe.entry_words import changed_by, if_absent, is_entry, of_held, of_one, path_of
from paramgraph_kit.doctor.observe.exchanged import assigns, exchanged, with_rest
from paramgraph_kit.doctor.observe.handed_on import is_handed_on
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.host_tests import WORDS, is_in_key
from paramgraph_kit.doctor.observe.made_anew import ANEW, WHY, behind_it, by_own_names, is_anew
from paramgraph_kit.doctor.observe.made_first import (
    as_large_as_it_gets,
    kept_as_it_is,
    launches,
    made_first,
    runs_ahead_too,
)
from paramgraph_kit.doctor.observe.moved_together import (
    GRADIENTS,
    all_read,
    both,
    gives_again,
    graph_for_each,
    is_for_each,
)
from paramgraph_kit.doctor.observe.moved_words import (
    by_setattr,
    clipped,
    counted,
    moves_on,
    of_call,
    of_none,
    of_owner,
    once,
    tested,
    through,
)
from paramgraph_kit.doctor.observe.named_there import as_named_there
from paramgraph_kit.doctor.observe.names_read import stored_in
from paramgraph_kit.doctor.observe.none_first import PINNED, owned
from paramgraph_kit.doctor.observe.object_words import into_its_tensors
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.ran import has_run
from paramgraph_kit.doctor.observe.rate_words import rate_in_a_tensor, rate_where_read
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.observe.stepped_elsewhere import is_stepped_elsewhere
from paramgraph_kit.doctor.observe.switched import is_switched_back
from paramgraph_kit.doctor.observe.takes_tensors import is_number_elsewhere, takes_a_tensor
from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.trace.model import Failure, Frame

_MOST_LINES = 2  # of those that may have given it; of more nobody knows which
_FUNCTIONS = FUNCTIONS[:2]
EXCHANGES = ("half", "float", "double", "bfloat16", "to", "type", "cuda", "cpu", "to_empty")  # memory of a module's
_ALIKE = {"parameter-rebound": {"parameter-rebound", "stale-input"}}  # what is known already by another name


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the user's that gives something a value."""

    file: str
    function: str
    node: Any
    target: ast.expr | None = None
    value: ast.expr | None = None
    with_owner: bool = False  # another line exchanges what has it

    @property
    def frame(self) -> Frame:
        text = linecache.getline(self.file, self.node.lineno).strip()
        return Frame(display_name(self.file), self.node.lineno, self.function, text)


def moved_failures(region: Region, told: list[Failure]) -> Iterator[Failure]:
    """What the graph of a region does not see although its lines read it; ``told``: is known from the lines alone."""
    known = {(f.code, f.frame) for f in told}
    codes = {f.code for f in told}  # as it began: who asks may add to it what is told here
    seen, together = set[tuple[str, str]](), dict[tuple[str, Frame | None], Failure]()
    read = dict[tuple[str, Frame | None], list[tuple[str, Failure]]]()
    every = by_own_names(region.values.moved.values()) if region.values is not None else []
    for moved in every:
        if (moved.part.endswith(LEARNS) and not _differentiates(region)) or is_stepped_elsewhere(moved, region):
            continue
        is_part = moved.part and moved.part != LENGTH
        if not is_part and moved.then[0] in WORDS and (is_unread(moved.use, moved.part) or is_in_key(moved.use)):
            continue
        part = "" if is_entry(moved) else moved.part.rpartition(".")[2]
        code, name = _code_of(moved), part or last_name(moved.use.node) or moved.use.text
        if (code, name) in seen:
            continue  # the same, read at another line
        further = code == "parameter-rebound" and any(known == code for known, _ in seen)
        seen.add((code, name))
        lines = [*_given_at(region, moved)]
        lines = [line for line in lines if not gives_again(line.node, moved.then[1])] or lines
        done = [
            line for line in lines if line.function == "<module>" or has_run(region.ran, line.file, line.node.lineno)
        ]
        lines = [_Line(*moved.given)] if moved.given else without_data_of_others(done or lines, moved)
        lines = [line for line in lines if not leaves_ahead(region, line.node)] or lines
        lines = [line for line in lines if not runs_without_graph(line.file, line.node)] or lines
        if any(is_switched_back(region, line.node) for line in lines) or is_handed_on(region.code, name):
            continue
        lines = lines if 0 < len(lines) <= _MOST_LINES else []
        if code == "scalar-frozen" and not all(_same_path(each.target, moved.use.node) for each in lines):
            lines = [replace(each, with_owner=True) for each in lines]
        if further:  # of a module's parameters one is told, and another where lines of its own alone give it
            own = [each for each in lines if isinstance(each.target, ast.Attribute) and each.target.attr == name]
            if not own or len(own) < len(lines) or any((code, each.frame) in together for each in own):
                continue
        of_module = code == "stale-input" and not lines and any(_has_too(region, each, moved) for each in every)
        if of_module or (not lines and _ALIKE.get(code, {code}) & codes):
            continue
        for failure in once([_failure(region, moved, code, line) for line in lines if (code, line.frame) not in known]):
            at = (code, failure.frame)
            together[at] = both(together[at], failure) if at in together else failure
        if not lines:
            failure = BY_ID[code].failure(_said(moved), _read_at(moved))
            fix = _where_read(region, moved) if code == "scalar-frozen" and not moved.part else behind_it(moved)
            fix = as_named_there(fix, moved.use, region)
            if code == "learning-rate-frozen" and failure.frame:
                fix = rate_where_read(failure.frame.text, region.settings[0], moved.owner)
            if fix and failure.frame:
                failure = replace(failure, fix=f"before  {failure.frame.text}\nafter   {fix}")
            read.setdefault((code, failure.frame), []).append((moved.use.text, failure))
    yield from (all_read(each) for each in read.values())
    # A buffer is told by its own name, and once.
    yield from (f for (code, at), f in together.items() if code == "stale-input" or ("stale-input", at) not in together)


def _has_too(region: Region, other: Moved, buffer: Moved) -> bool:
    """Whether a buffer is one of a module's whose memory a call exchanges, ``load_state_dict(assign=True)``."""
    whole = other.use.value() if other.part and other.then[0] == "memory" else None
    if not isinstance(whole, torch.nn.Module) or all(each is not buffer.use.owner() for each in whole.modules()):
        return False
    calls = [line.node for line in _given_at(region, other) if isinstance(line.node, ast.Call)]
    return any(last_name(call.func) in (*EXCHANGES, "load_state_dict") for call in calls)


def _read_at(moved: Moved) -> Frame | None:
    """Where it is read; of an optimizer's numbers where its scheduler gives the next ones, or else where it steps."""
    use, node = moved.use, moved.use.node
    if isinstance(moved.owner, torch.optim.Optimizer):
        calls = [n.func for n in nodes_of(use.code) if isinstance(n, ast.Call) and last_name(n.func) == "step"]
        steps = [(Use(use.code, f.value, False, use.names).value(), f) for f in calls if isinstance(f, ast.Attribute)]
        scheduled = (f for v, f in steps if is_a(v, LRScheduler) and v.optimizer is moved.owner)
        node = next(scheduled, next((f for v, f in steps if v is moved.owner), node))
    return frame_at(use.code, node.lineno)


def _differentiates(region: Region) -> bool:
    """Whether what is captured computes gradients, by its own lines or those of what it calls."""
    return not _named_in(region).isdisjoint(("backward", "autograd"))


def _named_in(region: Region) -> set[str]:
    """Attributes that the lines of a capture have, and those that they call."""
    names = {n.attr for s in region.body for n in ast.walk(s) if isinstance(n, ast.Attribute)}
    called = (use.code for use in region.values.uses if use.code is not region.code)  # type: ignore[union-attr]
    names.update(name for code in called for name in code.co_names)
    return names


def _code_of(moved: Moved) -> str:
    if moved.then[0] == "memory":
        parameter = (moved.part or isinstance(moved.owner, torch.nn.Parameter)) and not is_entry(moved)
        return "parameter-rebound" if parameter else "stale-input"
    if isinstance(moved.owner, torch.optim.Optimizer) and not is_anew(moved):
        return "learning-rate-frozen" if moved.part.endswith(".lr") else "scalar-frozen"
    decides = moved.part.endswith((".training", LEARNS)) if moved.part and not is_entry(moved) else moved.use.decides
    return "branch-frozen" if decides or moved.then[0] in ("none", "word", "itself", "function") else "scalar-frozen"


def _said(moved: Moved) -> str:
    path, part = if_absent(moved) or moved.use.text, moved.part
    if is_anew(moved):
        return f"{path} {ANEW}"
    if is_entry(moved):
        path, part = path_of(moved), ""
    if moved.then[0] == "memory":
        what = f"{part} of {path}" if part else path
        kind = f"{PINNED} memory" if moved.then[1].pinned else "memory"
        return f"{what} has other {kind} from here on, and the graph reads that of its capture"
    what = f"{part.rpartition('.')[2]} of {path}" if isinstance(moved.owner, torch.optim.Optimizer) else ""
    what = what or (part_of(path, part, moved.owner) if part else path)
    now = "a tensor" if moved.now[0] == "memory" else "another one" if moved.given else moved.now[1]
    return f"{what} is {now} at a replay, and the graph has the {moved.then[1]} of its capture"


def _failure(region: Region, moved: Moved, code: str, line: _Line) -> Failure:
    failure = BY_ID[code].failure(_said(moved), line.frame)
    fix = _fix(region, moved, code, line)
    if moved.then[0] != "memory":  # which is written at the line itself, and as that calls it
        fix = as_named_there(fix, moved.use, region)
    if line.file == region.code.co_filename:
        target = ast.unparse(line.target) if line.target is not None else ""
        fix = filled_where_given(fix, region, line.node, target, moved.use.code.co_name)
        fix = made_for_all(fix, region, line.node, target)
        fix = found_there_too(fix, region, line.node.lineno, moved.use.code.co_name)
    if is_for_each(fix) and _differentiates(region) and "step" not in _named_in(region):
        fix += GRADIENTS
    fix = fix.replace(", ahead of g.replay()", "") if _stands_behind(line) else fix  # its next one reads it
    after = with_rest(fix, line.node, line.target, {m.use.text for m in region.values.moved.values()})  # type: ignore[union-attr]
    return replace(failure, fix=f"before  {ast.unparse(line.node)}\nafter   {after}") if fix else failure


def _stands_behind(line: _Line) -> bool:
    """Whether a line stands behind the replays of its function: moved ahead of them, the first would read it, too."""
    functions = [f for f in _functions_in(tree_of(line.file) or ast.Module([], [])) if f.name == line.function]
    own = [f for f in functions if spans(f, line.node.lineno)]
    calls = [n for f in own for n in ast.walk(f) if isinstance(n, ast.Call) and last_name(n.func) == "replay"]
    return bool(calls) and all(call.lineno < line.node.lineno for call in calls)


def _fix(region: Region, moved: Moved, code: str, line: _Line) -> str:
    """What one writes so that it reaches the graph."""
    if is_anew(moved):
        return f"{ast.unparse(line.node)} and, behind it, a new capture: {WHY}"
    kind = region.settings[0]
    target, given = (ast.unparse(n) if n is not None else e for n, e in ((line.target, ""), (line.value, "...")))
    augmented = isinstance(line.node, ast.AugAssign)
    if code == "learning-rate-frozen":
        here_ = f"{target}.fill_({given})" if target and not augmented else ast.unparse(line.node)
        return f"{here_}, ahead of g.replay(), with {rate_in_a_tensor(kind, moved.owner)}"
    if code in ("stale-input", "parameter-rebound") and (written := by_setattr(line.node, code)):
        return written
    if code == "parameter-rebound" and isinstance(line.node, ast.Call):
        return in_place(line.node)
    if asked := if_absent(moved, as_key=True):
        return graph_for_each(asked)
    if moved.then[0] == "none":
        return of_none(moved.use.text)
    if told := of_held(moved, kind):
        return told
    if isinstance(line.node, ast.Call) and changed_by(line.node, moved) and (told := of_one(moved, kind)):
        return told
    if is_entry(moved) and not isinstance(line.target, ast.Subscript) and not augmented:
        return f"for old, new in zip({target}, {given}): old.copy_(new)"
    if code == "stale-input" or (code == "parameter-rebound" and target):
        own = target.endswith(f".{moved.part.rpartition('.')[2]}")
        if isinstance(moved.owner, torch.nn.Module) and not target.endswith(".data") and not own:
            load = f"{target}.load_state_dict({given}.state_dict())"
            if not _swaps(line.node):
                return load
            held = f"held = {{k: v.clone() for k, v in {target}.state_dict().items()}}"
            return f"{held}; {load}; {given}.load_state_dict(held)"
        if whole := into_its_tensors(line.node, target, given, moved.use, region.values.uses if region.values else ()):
            return whole
        if whole := exchanged(line.node, lambda each: _is_read(region, each)):
            return whole
        if line.function == region.code.co_name and is_at_each_call(region, line.node):
            first = (
                owned(line.node, f"{target} = {given}") if isinstance(line.node, ast.Assign) else f"{target} = {given}"
            )
            return f"{first} only where the capture follows, and else {target}.copy_({given})"
        data = "" if target.endswith(".data") or code == "stale-input" else ".data"
        # What the graph has made goes there once it has: ahead of its first replay that is nothing yet.
        made_there = given in map(ast.unparse, region.targets())
        shapes = [getattr(each[1], "shape", ()) for each in (moved.then, moved.now)]
        if larger := as_large_as_it_gets(target, line.value, *shapes) if not target.endswith(".data") else "":
            return larger
        where = "behind the replay that makes it" if made_there else "ahead of g.replay()"
        tree = tree_of(line.file) or ast.Module([], [])
        around = [f for f in _functions_in(tree) if spans(f, line.node.lineno)]
        copied = f"{target}{data}.copy_({given})"
        if first := "" if made_there or launches(around) else made_first(line.node, around, line.target, tree, copied):
            return first
        where = f", {where}" if made_there or launches(around) else ""
        return f"{copied}{where}{kept_as_it_is(line.file, line.node) if target.endswith('.data') else ''}"
    if code == "scalar-frozen" and not moved.part and _all_take_a_tensor(region, moved):
        # What has it is exchanged, or elsewhere only a number can stand in its place, as at the end of a slice.
        of_another = line.with_owner or not _same_path(line.target, moved.use.node)
        if of_another or is_number_elsewhere(moved.use, region.values.uses):  # type: ignore[union-attr]
            return of_owner(moved.use.text, kind)
        path = moved.use.text
        made = f"{path} = torch.full((), float({path}), device={kind!r})"
        here_ = (
            "this line as it is, which writes there" if augmented else f"{target}.fill_({given}), ahead of g.replay()"
        )
        if not augmented and runs_ahead_too(line.node.lineno, tree_of(line.file), region.code.co_name):  # a number yet
            here_ = f"`if torch.is_tensor({target}): {target}.fill_({given})`, and else this line as it is"
        return f"before the capture: {made}; here: {here_}"
    is_count = code == "scalar-frozen" and not moved.part and type(moved.then[1]) is int
    if is_count and (told := as_whole(moved.use.text, region, kind)):
        return told
    is_number = code == "scalar-frozen" and not moved.part and type(moved.then[1]) in (int, float)
    if is_number and (told := counted(moved.use, region.values.uses, kind)):  # type: ignore[union-attr]
        return told
    if is_number and isinstance(moved.use.node, ast.Name) and not clipped(moved.use, kind):
        return _where_read(region, moved)
    if code in ("scalar-frozen", "branch-frozen"):
        if is_number and (told := clipped(moved.use, kind) or of_call(moved.use, region.values.uses, kind)):  # type: ignore[union-attr]
            return told
        if not moved.part and _same_path(line.target, moved.use.node):
            test = tested(moved.use) if code == "branch-frozen" and target == moved.use.text else ""
            # What has it may have another name where it is read, which an object's own gets from who launches.
            path = moved.use.text if moved.use.text.startswith("self.") else target
            if is_number and augmented and isinstance(line.node.op, (ast.Add, ast.Sub)):
                return moves_on(path, kind, moved.then[1])
            return graph_for_each(f"({test})" if " " in test else test or path)
        return graph_for_each(as_key(moved.use.text, moved.part, moved.owner))
    return ""


def _where_read(region: Region, moved: Moved) -> str:
    """What one writes where it is read: a loop gives it, or too many lines do."""
    use, kind = moved.use, region.settings[0]
    own = isinstance(use.node, ast.Name) and use.node.id in use.names.own and use.code.co_varnames[:1] == ("self",)
    made = of_owner(use.text, kind, "self" if own else "")
    if takes_a_tensor(use, moved.then[1]):
        return made
    if told := clipped(use, kind):
        return told
    more = through(use, region.values.uses) if region.values is not None and type(moved.then[1]) is not bool else None
    if more is not None:
        return f"{made}; with a tensor there {', '.join(more)}" if more else made
    return graph_for_each(use.text)


def _is_read(region: Region, target: ast.expr) -> bool:
    """Whether the graph reads a tensor of another name's, or object's, that a line gives a value."""
    moved = region.values.moved.values() if region.values is not None else ()
    return any(m.then[0] == "memory" and not m.part and _same_path(target, m.use.node) for m in moved)


def in_place(call: ast.Call) -> str:
    """What one writes for a call that gives a module's parameters other memory."""
    if last_name(call.func) != "load_state_dict":
        return f"{ast.unparse(call)}, ahead of the capture, or capture again behind it"
    kept = [k for k in call.keywords if k.arg != "assign"]
    return ast.unparse(ast.Call(call.func, call.args, kept))


def _all_take_a_tensor(region: Region, moved: Moved) -> bool:
    uses = [u for u in region.values.uses if u.text == moved.use.text] if region.values is not None else []
    return all(takes_a_tensor(use, moved.then[1]) for use in uses or [moved.use])


def _given_at(region: Region, moved: Moved) -> Iterator[_Line]:
    """Lines of the user's that may have given it the value that it has at a replay."""
    use = moved.use
    own = use.names.own - use.names.cells.keys()
    local = use.code.co_name if isinstance(use.node, ast.Name) and use.node.id in own else ""
    files = {region.code.co_filename, *(use.code.co_filename for use in region.values.uses)}  # type: ignore[union-attr]
    for file in sorted(each for each in files if not is_library(each)):
        tree = tree_of(file)
        top = NAME if is_made_of(file) else "<module>"
        for line in _lines(file, tree, top) if tree is not None else ():
            is_its = not local or (file, line.function) == (use.code.co_filename, local)
            # What a module has is exchanged anywhere; only its name is one of the function's own.
            is_its = is_its or (moved.part != "" and not isinstance(line.target, ast.Name))
            is_its = is_its and not _is_anothers(line, moved, region)
            if is_its and _gives(line, moved) and _comes_behind(line, region, file):
                yield line


def _is_anothers(line: _Line, moved: Moved, region: Region) -> bool:
    """Whether the attribute that a line gives a value is known to be one of another object."""
    target, owner = line.target, moved.use.owner()
    same = isinstance(target, ast.Attribute) and _same_path(target, moved.use.node)
    if moved.part or owner is NOTHING or not isinstance(target, ast.Attribute) or not same:
        return False
    functions = [f for f in _functions_in(tree_of(line.file) or ast.Module([], [])) if f.name == line.function]
    inside = [n for f in functions for n in ast.walk(f)]
    own = {n.arg for n in inside if isinstance(n, ast.arg)} | stored_in(inside)
    known = path_value(target.value, dict.fromkeys(own, NOTHING), region.space)
    return known is not NOTHING and known is not owner and line.file == region.code.co_filename


def _lines(file: str, owner: ast.AST, name: str) -> Iterator[_Line]:
    for node in (n for part in ast.iter_child_nodes(owner) for n in here(part, _FUNCTIONS)):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) and target is not parts[0] else []
                given = (
                    values if len(values) == len(parts) else [node.value if target is parts[0] else None] * len(parts)
                )
                yield from (_Line(file, name, node, *pair) for pair in zip(parts, given, strict=True))
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            yield _Line(file, name, node, node.target, node.value)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield _Line(file, name, node.value)
    for function in _functions_in(owner):
        if function.name not in MAKERS:
            yield from _lines(file, function, function.name)


def _functions_in(owner: ast.AST) -> Iterator[Any]:
    for child in ast.iter_child_nodes(owner):
        if isinstance(child, _FUNCTIONS):
            yield child
        elif not isinstance(child, ast.Lambda):
            yield from _functions_in(child)


def _gives(line: _Line, moved: Moved) -> bool:
    target = line.target
    if isinstance(line.node, ast.AugAssign) and moved.then[0] == moved.now[0] == "memory":
        return False  # it writes to the tensor that is there
    if isinstance(line.node, ast.Call):
        name = last_name(line.node.func)
        if changed_by(line.node, moved):
            return True
        if moved.part.endswith(".training"):
            return name in ("eval", "train")
        if moved.part.endswith(LEARNS):
            return name == "requires_grad_"
        if name == "setattr" and len(line.node.args) == 3:
            given = line.node.args[1]
            by_name = not isinstance(given, ast.Constant)
            return given.value == last_name(moved.use.node) if not by_name else bool(moved.part)  # type: ignore[attr-defined]
        return bool(moved.part) and moved.then[0] == "memory" and (name in EXCHANGES or assigns(line.node))
    if is_entry(moved):
        held = target.value if isinstance(target, ast.Subscript) else target
        return _same_path(held, moved.use.node)
    if moved.part:
        *owners, last = moved.part.split(".")
        of_memory = moved.then[0] == "memory"
        if isinstance(target, ast.Subscript):
            named = isinstance(target.slice, ast.Constant) and target.slice.value == last
            return named or (of_memory and last_name(target.value) in owners)
        if isinstance(target, ast.Attribute) and target.attr in ("data", last, *(owners if of_memory else ())):
            return True
        return moved.then[0] == "memory" and _same_path(target, moved.use.node)
    if isinstance(target, ast.Attribute) and target.attr == "data":
        return isinstance(moved.owner, torch.Tensor)
    path: Any = moved.use.node
    while isinstance(path, (ast.Attribute, ast.Subscript)):  # also where what has it is exchanged
        if _same_path(target, path) and (path is moved.use.node or isinstance(path, ast.Attribute)):
            return True
        path = path.value
    return _same_path(target, moved.use.node)


def _same_path(target: ast.expr | None, path: ast.expr) -> bool:
    """Whether a target is a path's last part: of whatever object, that has a name of its own there."""
    if isinstance(target, ast.Name) and isinstance(path, ast.Name):
        return target.id == path.id
    if isinstance(target, ast.Attribute) and isinstance(path, ast.Attribute):
        return target.attr == path.attr
    if isinstance(target, ast.Subscript) and isinstance(path, ast.Subscript):
        return ast.dump(target.slice) == ast.dump(path.slice)
    return False


def _swaps(node: Any) -> bool:
    """Whether a statement is ``a, b = b, a``."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == 2):
        return False
    return [ast.unparse(each) for each in target.elts] == [ast.unparse(each) for each in reversed(node.value.elts)]


def _comes_behind(line: _Line, region: Region, file: str) -> bool:
    """Whether a line may run between the capture and a replay."""
    number = line.node.lineno
    if file == region.code.co_filename:
        first, last = region.body[0].lineno, max(s.end_lineno or s.lineno for s in region.body)
        if first <= number <= last:
            return False
        if line.function == region.code.co_name:
            return number > last or _in_common_loop(file, number, region.line) or is_at_each_call(region, line.node)
    return line.function != "<module>" or _in_common_loop(file, number, number)


def is_at_each_call(region: Region, node: Any) -> bool:
    """Whether a line ahead of a capture also runs where that does not: ``if graph is None:`` holds it alone."""
    code = region.code
    branches = [n for n in nodes_of(code) if isinstance(n, ast.If) and spans(n, region.line)]
    return node.lineno >= code.co_firstlineno and any(node.lineno < n.lineno for n in branches)


def _in_common_loop(file: str, first: int, second: int) -> bool:
    loops = (n for n in ast.walk(tree_of(file) or ast.Module([], [])) if isinstance(n, LOOPS))
    return any(spans(n, first) and spans(n, second) for n in loops)
