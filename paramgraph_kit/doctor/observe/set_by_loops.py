"""What lines around a step leave otherwise at its next call, as far as it reads that: modes, modules, rates, memory."""

from __future__ import annotations

import ast
import linecache
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import CodeType, ModuleType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_arguments import part_of
from paramgraph_kit.doctor.observe.captured_entries import asked_by_name
from paramgraph_kit.doctor.observe.captured_values import NOTHING, Names, Use, has_modes
from paramgraph_kit.doctor.observe.entries_within import entries_within
from paramgraph_kit.doctor.observe.given_back import is_given_back
from paramgraph_kit.doctor.observe.held import attributes_of, has_librarys_lines, is_a
from paramgraph_kit.doctor.observe.loop_state import (
    ANY,
    ENTRIES,
    GRADIENT,
    GROUPS,
    HOOKS,
    LEARNS,
    MEMORY,
    MODE,
    PARTS,
    STATE,
    Found,
    Given,
)
from paramgraph_kit.doctor.observe.loop_values import PLAIN, attribute, entry
from paramgraph_kit.doctor.observe.made_with_captures import is_made_with_its_capture
from paramgraph_kit.doctor.observe.optimizers import ZERO
from paramgraph_kit.doctor.observe.other_entries import Change, Entries, changes_by, has_entries
from paramgraph_kit.doctor.observe.read_later import NO_VALUE
from paramgraph_kit.doctor.observe.set_between import SET_BETWEEN, Setting, step_of
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.observe.states_between import zeros_begin
from paramgraph_kit.doctor.observe.torch_settings import EVERYWHERE, backend_setting, read_at, setting_now
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace.model import Frame

_GROWS = ("append", "extend", "insert", "clear")


def set_by_loops(
    bodies: Iterable[Found], given: dict[str, Any], uses_of: Callable[[], list[Use]], ran: list[CodeType]
) -> list[Setting]:
    """Each once, at the first line that sets it otherwise."""
    found: dict[str, Setting] = {}
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        for each in bodies:
            for line, now in moved(each):
                if is_given_back(line.file, line.node, line.target):
                    continue
                for setting in _read_by(line, now, uses_of(), ran):
                    said = setting.note or (setting.failure.message if setting.failure is not None else setting.said)
                    found.setdefault(said.partition(SET_BETWEEN)[0], setting)
            told = {setting.at for setting in found.values() if not setting.note}
            for setting in (s for s in _filled(each, uses_of, given) if s.at not in told):
                found.setdefault(setting.said.partition(SET_BETWEEN)[0], setting)
    told = {setting.at for setting in found.values() if not setting.note and not _only_adds(setting)}
    return [each for each in found.values() if not each.note or each.at not in told]


def _only_adds(setting: Setting) -> bool:
    """Whether what is tried of a line are new keys alone, as nobody knows which of those that are there it sets."""
    return setting.entries is not None and all(each.adds for each in setting.entries.changes)


def moved(found: Found, *, is_ahead: bool = False) -> Iterator[tuple[Given, Any]]:
    """Lines behind a call of the step that leave something which is another one at its next, and what it is now.

    ``is_ahead``: the step's graph was captured ahead of its first call, which finds what lines ahead of that set.
    """
    for (owner_id, name), numbers in found.at_step.items():
        owner = found.owners[owner_id]
        if name in (ENTRIES, GRADIENT):  # what sets gradients to None is told elsewhere
            continue
        late = [n for n in sorted(numbers) if n > 0 and found.given[n].is_late]
        if is_ahead and not late:  # a file's own lines have run by then
            late = sorted(-n for n in numbers if n < 0 and found.given[-n].function != "<module>")
        if not late:
            continue
        now = value_of(owner, name)
        if is_a(now, torch.Tensor):  # the input of a bucket is made with its graph
            late = [n for n in late if not is_made_with_its_capture(found.given[n].file, found.given[n].node)]
            if not late:
                continue
        is_begun = 0 in numbers or all(n >= 0 for n in numbers) or is_ahead
        values = [v for n in numbers if n for v in found.values[abs(n)]] + ([now] if is_begun else [])
        if all(_is_alike(v, values[0]) for v in values):
            continue
        others = [n for n in late if not all(_is_alike(v, now) for v in found.values[n])]
        yield found.given[(others or late)[0]], now


def value_of(owner: Any, name: str) -> Any:
    """What is there now."""
    if (setting := setting_now(owner, name)) is not NOTHING:
        return setting
    if name == "":
        return owner.cell_contents
    if name.startswith("["):
        return entry(owner, ast.literal_eval(name[1:-1])) if type(owner) is dict else NOTHING
    if name in (MODE, LEARNS) and is_a(owner, (torch.nn.Module, torch.Tensor)):
        return getattr(owner, name)
    return attribute(owner, name)


def _is_alike(a: Any, b: Any) -> bool:
    if a is NOTHING or b is NOTHING:
        return False
    return a is b or (type(a) in PLAIN and type(a) is type(b) and a == b)


def _filled(found: Found, uses_of: Callable[[], list[Use]], given: dict[str, Any]) -> Iterator[Setting]:
    """Lists and dictionaries that get other entries behind a call of the step, where it reads them as a whole."""
    for (owner_id, name), numbers in found.at_step.items():
        holds = found.owners[owner_id]
        late = [found.given[n] for n in sorted(numbers) if n > 0 and found.given[n].is_late]
        if name != ENTRIES or not late or any(each is holds for each in given.values()):  # each call is given its own
            continue
        if not len(holds) and all(isinstance(e.node, ast.Call) and last_name(e.node.func) == "clear" for e in late):
            continue
        every = (part for use in uses_of() for part in (use, *_of_entries(use)))
        read = [u for u in every if u.value() is holds]
        use = next((u for u in read if not _only_grows(u)), None)
        use = use or (entries_within(uses_of(), holds) if not read else None)
        if use is None:
            continue
        values = [found.values[n][-1] for n in sorted(numbers) if n > 0 and found.given[n].is_late]
        pairs = zip(late, values, strict=True)
        made = Entries(holds, tuple(each for line, value in pairs for each in changes_by(line, holds, value)))
        yield Setting(use, "", _at(late[0]), late[0].node, late[0].target, is_called=True, entries=made)


# What a step reads of it


def _read_by(line: Given, now: Any, uses: list[Use], ran: list[CodeType]) -> Iterator[Setting]:
    at = _at(line)
    if line.name == ANY:
        yield from _not_followed(line, uses, at)
        return
    every = [part for use in [*uses, *_asked_by_name(uses)] for part in _with_owners(use)]
    direct = [use for use in every if _is_read(use, line)]
    if direct:
        counted = [use for use in direct if _counts(use.value()) and not _only_grows(use) and not _only_measures(use)]
        for use in counted[:1]:
            yield _direct(use, line, at)
        if not counted and is_a(direct[0].value(), torch.optim.Optimizer):
            made = _other(direct[0], f"{direct[0].text} {SET_BETWEEN} {at.label()}", "branch-frozen", direct[0], at)
            words = f"before  {at.text}\nafter   the same; behind it a call, which makes its states, and a new capture"
            yield replace(made, failure=replace(made.failure, fix=words) if made.failure is not None else None)
        elif not counted and (longer := _longer(direct, every)) is not None:
            code = "stale-input" if is_a(longer.value(), torch.Tensor) else "branch-frozen"
            yield _other(direct[0], f"{direct[0].text} {SET_BETWEEN} {at.label()}", code, longer, at)
        elif not counted and has_entries(holds := direct[0].value()) and not _only_grows(direct[0]):
            entries = Entries(holds, (Change(line.node, NOTHING),))  # another one with other entries
            yield Setting(direct[0], "", at, line.node, line.target, is_called=True, entries=entries)
        return
    if type(line.owner) is dict and line.name.startswith("["):
        key = str(ast.literal_eval(line.name[1:-1]))
        for use in (u for u in uses if is_a(u.value(), torch.optim.Optimizer) and step_of(u)):
            if any(group is line.owner for group in use.value().param_groups) and _is_rate(now):
                yield _of_group(use, key, line, at, now)
                return
    stepped = (use for use in uses if is_a(use.value(), torch.optim.Optimizer) and step_of(use))
    if line.name == STATE and (is_a(line.owner, torch.optim.Optimizer) or type(line.owner) is defaultdict):
        yield from (
            _of_state(u, line, at) for u in stepped if any(line.owner is o for o in (u.value(), u.value().state))
        )
        return
    if line.name == GROUPS:
        yield from (
            _of_groups(u, at) for u in stepped if any(line.owner is o for o in (u.value(), u.value().param_groups))
        )
        return
    if said := line.name if line.owner is EVERYWHERE else backend_setting(line.owner, line.name):
        yield from _of_torch(said, uses, ran, at)
        return
    yield from _of_part(line, uses, ran, at)
    if line.owner is os.environ:
        yield from _of_environment(line, ran, at)


def _not_followed(line: Given, uses: list[Use], at: Frame) -> Iterator[Setting]:
    """A line that sets something of what the step reads, by a name that only a run knows."""
    every = [part for use in [*uses, *_asked_by_name(uses)] for part in _with_owners(use)]
    read = next((use for use in every if use.owner() is line.owner and _counts(use.value())), None)
    if read is None and is_a(line.owner, torch.nn.Module):
        modules = (use for use in every if is_a(use.value(), torch.nn.Module))
        read = next((use for use in modules if any(m is line.owner for m in use.value().modules())), None)
    if read is not None:
        said = f"what `{at.text}` sets (at {at.label()}) is not followed, by a name that only a run knows: if that is"
        note = f"{said} `{read.text}`, or something of it, capture again behind that line"
        yield Setting(read, ANY, at, line.node, line.target, note=note)


def _at(line: Given) -> Frame:
    number: int = line.node.lineno  # type: ignore[attr-defined]
    return Frame(display_name(line.file), number, line.function, linecache.getline(line.file, number).strip())


def _asked_by_name(uses: list[Use]) -> Iterator[Use]:
    """What is read through a call: ``cfg.get("scale")``, ``getattr(self, "scale")``."""
    for code, names in {use.code: use.names for use in uses}.items():
        tests = {id(n) for t in nodes_of(code) if isinstance(t, (ast.If, ast.IfExp)) for n in ast.walk(t.test)}
        for node in nodes_of(code):
            if (made := asked_by_name(node)) is None:
                continue
            use = Use(code, made, id(node) in tests, names)
            if use.value() is not NOTHING:
                yield use


def _with_owners(use: Use) -> Iterator[Use]:
    """What is read, and what has that: ``self.cfg`` of ``self.cfg.scale``."""
    yield use
    node = use.node
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        yield Use(use.code, node, use.decides, use.names)


def _of_entries(use: Use) -> Iterator[Use]:
    """The lists of which entries are read, which are others where one is added, or they are sorted."""
    for part in _with_owners(use):
        if isinstance(part.node, ast.Subscript):
            yield Use(part.code, part.node.value, part.decides, part.names)


def _is_read(use: Use, line: Given) -> bool:
    node, owner = use.node, line.owner
    if line.name == "":
        return isinstance(node, ast.Name) and use.names.cells.get(node.id) is owner
    if line.name.startswith("["):
        if isinstance(node, ast.Name):
            is_global = node.id not in use.names.own and node.id not in use.names.cells
            return is_global and use.names.space is owner and line.name == f"[{node.id!r}]"
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return use.owner() is owner and line.name == f"[{node.slice.value!r}]"
        return False
    if not isinstance(node, ast.Attribute) or node.attr != line.name:
        return False
    has = use.owner()
    if isinstance(owner, type) and has is not NOTHING and not isinstance(has, type):
        return issubclass(type(has), owner) and node.attr not in attributes_of(has)
    return has is owner


def _counts(value: Any) -> bool:
    """Whether a graph keeps what is read there: a number, a tensor, what is called; a name may only be told."""
    if type(value) in NUMBERS or callable(value) or value is None or type(value) is str:
        return not isinstance(value, ModuleType)
    if type(value) in (list, tuple):
        return bool(value) and all(type(each) in NUMBERS for each in value)
    return is_a(value, torch.Tensor) and value.device.type == driver().device.type


def _only_grows(use: Use) -> bool:
    """Whether its line adds to a list, or empties it, and reads none of its numbers."""
    calls = (n.func for n in nodes_of(use.code) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    return any(f.attr in _GROWS and f.lineno == use.node.lineno and ast.unparse(f.value) == use.text for f in calls)


def _only_measures(use: Use) -> bool:
    """Whether its line asks a tensor how large it is, or of what kind, and reads none of its numbers."""
    asked = (n for n in nodes_of(use.code) if isinstance(n, ast.Attribute) and n.value is use.node)
    return is_a(use.value(), torch.Tensor) and any(n.attr in NO_VALUE for n in asked)


def _longer(direct: list[Use], every: list[Use]) -> Use | None:
    """What is read of an object that another one takes the place of."""
    begins = {(use.code, use.text) for use in direct}
    for use in every:
        is_kept = type(use.value()) in NUMBERS or is_a(use.value(), (torch.Tensor, torch.nn.Module))
        own = (text for code, text in begins if code is use.code)
        if is_kept and any(use.text.startswith((f"{text}.", f"{text}[")) for text in own):
            return use
    return None


def _is_rate(now: Any) -> bool:
    return type(now) in (int, float, tuple) or is_a(now, torch.Tensor)


def _direct(use: Use, line: Given, at: Frame) -> Setting:
    """A number, a word, a tensor, or what is called."""
    value, node = use.value(), line.node
    made = Setting(use, "", at, node, line.target, is_called=True)
    if isinstance(line.owner, type) and type(value) in NUMBERS:  # which no call can be tried with
        return _other(use, made.said, "branch-frozen" if use.decides else "scalar-frozen", use, at)
    if type(value) in NUMBERS or is_a(value, torch.Tensor) or value is None or type(value) is str:
        return made
    code = "scalar-frozen" if type(value) in (list, tuple) else "branch-frozen"
    return _other(use, made.said, code, use, at)


def _of_group(use: Use, key: str, line: Given, at: Frame, now: Any) -> Setting:
    made = Setting(use, key, at, line.node, line.target, is_called=True)
    if not is_a(now, torch.Tensor):
        return made
    failure = BY_ID["learning-rate-frozen"].failure(made.said, frame_at(use.code, step_of(use)))
    given = ast.unparse(line.node.value) if isinstance(line.node, ast.Assign) else "..."
    words = f"before  {at.text}\nafter   {line.target}.fill_({given}): in place, as the graph reads this tensor"
    return replace(made, failure=replace(failure, fix=words))


def _of_groups(use: Use, at: Frame) -> Setting:
    """An optimizer that gets more parameters."""
    frame = frame_at(use.code, step_of(use))
    does = (
        f"capture again behind {at.file}:{at.line}, with one call ahead of that capture, in which the optimizer makes "
        "the states of what is added: the graph steps with what the groups had at its capture; or add them all once, "
        "ahead of the capture"
    )
    failure = BY_ID["branch-frozen"].failure(f"{use.text}.{GROUPS} {SET_BETWEEN} {at.label()}", frame)
    failure = replace(failure, fix=f"before  {frame.text if frame is not None else use.text}\nafter   {does}")
    return Setting(use, GROUPS, at, ast.Pass(), "", is_called=True, failure=failure)


def _of_state(use: Use, line: Given, at: Frame) -> Setting:
    """An optimizer that gets other tensors for its state."""
    by, given = f"{at.file}:{at.line}", ast.unparse(line.node.args[0]) if getattr(line.node, "args", ()) else "state"  # type: ignore[attr-defined]
    frame = frame_at(use.code, step_of(use))
    does = (
        f"capture again behind {by}; or there, in place of it, `for s, new in zip({use.text}.state.values(), "
        f"{given}['state'].values()):` with `for k in s: s[k].copy_(new[k])`: the graph reads and writes those of its "
        "capture"
    )
    if last_name(getattr(line.node, "func", line.node)) == "__init__":
        does = f"capture again behind {by}, with one call ahead of that, in which it makes its states and rates anew"
    if type(line.owner) is defaultdict:
        zeroed = f"there, in place of it, `{ZERO.format(use.text)}`, in the memory that the graph reads; or "
        does = f"{zeroed if zeros_begin(use.value()) else ''}capture again behind {by}, with one call ahead of that"
    failure = BY_ID["stale-input"].failure(f"the state of {use.text} {SET_BETWEEN} {at.label()}", frame)
    text = frame.text if frame is not None else use.text
    return Setting(
        use, STATE, at, ast.Pass(), "", is_called=True, failure=replace(failure, fix=f"before  {text}\nafter   {does}")
    )


def _other(use: Use, said: str, code: str, read: Use, at: Frame) -> Setting:
    """A module, a function or an object that another one takes the place of."""
    frame = frame_at(read.code, read.node.lineno)
    by, text = f"{at.file}:{at.line}", frame.text if frame is not None else read.text
    does = f"capture again behind {by}, or one graph for each that is there: the graph runs what it was at its capture"
    if is_a(use.value(), torch.nn.Module):
        does = (
            f"there `{use.text}.load_state_dict(other.state_dict())` in place of another module: it copies into the "
            f"memory that the graph reads; or capture again behind {by}"
        )
    if is_a(read.value(), torch.Tensor):
        does = f"there `{read.text}.copy_(...)` in place of another one; or capture again behind {by}"
    failure = replace(BY_ID[code].failure(said, frame), fix=f"before  {text}\nafter   {does}")
    return Setting(use, "", at, ast.Pass(), "", is_called=True, failure=failure)


def _of_part(line: Given, uses: list[Use], ran: list[CodeType], at: Frame) -> Iterator[Setting]:
    """What is set of a module, or of a parameter, that the step uses."""
    best: tuple[int, Use, str] | None = None
    for use in uses:
        value = use.value()
        if line.name == MEMORY and value is line.owner:
            best = (0, use, "")
        if not is_a(value, torch.nn.Module):
            continue
        if is_a(line.owner, RemovableHandle):
            hooks = line.owner.hooks_dict_ref()
            named = next((n for n, m in value.named_modules() if any(h is hooks for h in vars(m).values())), None)
        elif line.name in (MEMORY, LEARNS, HOOKS) and is_a(line.owner, torch.Tensor):
            named = next((n for n, p in value.named_parameters() if p is line.owner), None)
        else:
            named = next((n for n, m in value.named_modules() if m is line.owner and _minds(m, line.name)), None)
        size = sum(1 for _ in value.modules())
        if named is not None and (best is None or size < best[0]):
            best = (size, use, named)
    if best is None or (line.name in (LEARNS, HOOKS) and not _differentiates(ran)):
        return
    _, use, path = best
    named = part_of(use.text, f"{path}.{line.name}" if path else line.name, use.value())
    yield _part(use, named, line, at)


def _part(use: Use, named: str, line: Given, at: Frame) -> Setting:
    frame, by = frame_at(use.code, use.node.lineno), f"{at.file}:{at.line}"
    if line.name in (PARTS, HOOKS):
        named = f"{'what' if line.name == PARTS else 'a hook of'} {named.removesuffix(f'.{line.name}')}"
        named += " runs" if line.name == PARTS else ""
    said = f"{named} {SET_BETWEEN} {at.label()}"
    code, does = "scalar-frozen", f"capture again behind {by}: the number is in the kernels that were captured"
    if line.name == MODE:
        code = "branch-frozen"
        does = f"one graph for each mode, by `{named}` at the call; or capture again behind {by}"
    elif line.name == LEARNS:
        code = "branch-frozen"
        does = (
            f"capture again behind {by}, with one call ahead of that capture, in which the optimizer makes the states "
            "of what learns anew: the graph has the backward pass of what was learned at its capture"
        )
    elif line.name == MEMORY:
        code, target = "parameter-rebound", line.target.removesuffix(f".{MEMORY}")
        does = f"there `{target}.data.copy_(...)`, in place: the graph reads, and writes, the memory of its capture"
        if isinstance(line.node, ast.Call) and last_name(line.node.func) == "load_state_dict":
            kept = [k for k in line.node.keywords if k.arg != "assign"]
            call = ast.unparse(ast.Call(line.node.func, line.node.args, kept))
            does = f"there `{call}`, which copies into the memory that the graph reads; or capture again behind {by}"
        elif isinstance(line.node, ast.Call) and not _moves_away(line.node):
            does = (
                f"do that once, ahead of the capture and of making the optimizer; or capture again behind {by}: the "
                "graph reads the memory of its capture, and computes in its types"
            )
        elif isinstance(line.node, ast.Call):
            does = f"capture again behind {by}, or leave the parameters where they are, and copy them with `clone()`"
    elif line.name in (PARTS, HOOKS):
        code = "branch-frozen"
        does = f"capture again behind {by}: the graph runs what was there at its capture; or do that once, ahead of it"
    elif not isinstance(line.owner, torch.nn.Module) or type(value_of(line.owner, line.name)) not in NUMBERS:
        code = "branch-frozen"
        does = f"capture again behind {by}: the graph runs what was there at its capture"
    text = frame.text if frame is not None else use.text
    failure = replace(BY_ID[code].failure(said, frame), fix=f"before  {text}\nafter   {does}")
    of = line.owner if line.name == MODE and is_a(line.owner, torch.nn.Module) else None
    return Setting(use, "", at, ast.Pass(), "", is_called=True, failure=failure, mode_of=of)


def _moves_away(call: ast.Call) -> bool:
    """Whether a call that gives parameters other memory is no change of their types: ``net.cpu()``, one long vector."""
    words = [each.value for each in ast.walk(call) if isinstance(each, ast.Constant)]
    return last_name(call.func) in ("cpu", "to_empty", "vector_to_parameters") or "cpu" in words


def _minds(module: torch.nn.Module, name: str) -> bool:
    """Whether what a module does depends on it, where its lines are torch's: those of others tell what they read."""
    if name == MODE:
        return has_modes(module)
    if name in (PARTS, HOOKS):
        return True
    if not has_librarys_lines(module):
        return False
    held = [vars(module).get(each, {}) for each in ("_modules", "_parameters", "_buffers")]
    return any(name in each for each in held) or type(vars(module).get(name)) in NUMBERS


def _differentiates(ran: list[CodeType]) -> bool:
    return any(name in code.co_names for code in ran for name in ("backward", "grad", "autograd"))


def _of_torch(said: str, uses: list[Use], ran: list[CodeType], at: Frame) -> Iterator[Setting]:
    """A setting that holds for every line, as far as one of the step's depends on it."""
    run = ((use.code, use.node.lineno) for use in uses if is_a(use.value(), torch.nn.Module))
    if (found := read_at(said, ran, run)) is None:
        return
    code, line = found
    frame = frame_at(code, line)
    failure = BY_ID["branch-frozen"].failure(f"{said} {SET_BETWEEN} {at.label()}", frame)
    does = f"one graph for each, by `{said}` at the call; or capture again behind {at.file}:{at.line}"
    words = f"before  {frame.text if frame else said}\nafter   {does}: the graph has what it was at its capture"
    use = Use(code, ast.Name(said, ast.Load()), False, Names({}))
    yield Setting(use, "", at, ast.Pass(), "", is_called=True, failure=replace(failure, fix=words))


def _of_environment(line: Given, ran: list[CodeType], at: Frame) -> Iterator[Setting]:
    """What a step asks of the environment by that name."""
    key = ast.literal_eval(line.name[1:-1])
    for code in ran:
        for node in nodes_of(code):
            asks = isinstance(node, ast.Call) and last_name(node.func) in ("get", "getenv") and node.args
            asked = node.args[0] if asks else node.slice if isinstance(node, ast.Subscript) else None  # type: ignore[attr-defined]
            if not isinstance(asked, ast.Constant) or asked.value != key:
                continue
            frame = frame_at(code, node.lineno)  # type: ignore[attr-defined]
            said = f"{key} {SET_BETWEEN} {at.label()}"
            does = f"capture again behind {at.file}:{at.line}: the graph has what it was at its capture"
            failure = BY_ID["branch-frozen"].failure(said, frame)
            words = f"before  {frame.text if frame else key}\nafter   {does}"
            use = Use(code, ast.Name(str(key), ast.Load()), False, Names({}))
            yield Setting(use, "", at, ast.Pass(), "", is_called=True, failure=replace(failure, fix=words))
            return
