"""What a program does around the replays of its captures: read from its lines, with what their names meant.

A graph keeps the memory, and the numbers, that were there at its capture. What gives a name other memory behind that,
and ahead of a replay, does not reach it; what is kept from replay to replay is one memory.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from paramgraph_kit.doctor.cell import is_whole
from paramgraph_kit.doctor.explain.syntax import (
    FUNCTIONS,
    LOOPS,
    defines,
    elements_of,
    here,
    last_name,
    nodes_of,
    pairs_of,
    tree_of,
)
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.added_to_lists import KEEPS
from paramgraph_kit.doctor.observe.captured_values import has_modes
from paramgraph_kit.doctor.observe.copied_names import cloned_at
from paramgraph_kit.doctor.observe.counted_inside import counts_itself
from paramgraph_kit.doctor.observe.exchanged_by_methods import exchanged_by_methods
from paramgraph_kit.doctor.observe.freed_words import is_of
from paramgraph_kit.doctor.observe.given_back import is_given_back
from paramgraph_kit.doctor.observe.gradients import sets_to_none
from paramgraph_kit.doctor.observe.graphed_by_torch import minds_its_mode
from paramgraph_kit.doctor.observe.held import addresses_of, is_a
from paramgraph_kit.doctor.observe.kept_results import kept_by, with_clone
from paramgraph_kit.doctor.observe.lines_behind import APART, LinesBehind, codes_of
from paramgraph_kit.doctor.observe.moved_values import (
    EXCHANGES,
    in_place,
    moved_failures,
)
from paramgraph_kit.doctor.observe.moved_words import at_its_replay, clipped, through
from paramgraph_kit.doctor.observe.named_anew import named_anew
from paramgraph_kit.doctor.observe.named_there import may_read
from paramgraph_kit.doctor.observe.own_regions import Region, optimizer_in
from paramgraph_kit.doctor.observe.rate_words import rate_in_a_tensor
from paramgraph_kit.doctor.observe.read_later import is_read_later
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.observe.switched import is_switched_back
from paramgraph_kit.doctor.observe.takes_tensors import takes_a_tensor
from paramgraph_kit.doctor.observe.zeroed_between import ADDED, without_added
from paramgraph_kit.trace.model import Failure, Frame

_VIEWS = ("detach", "view", "reshape", "squeeze", "unsqueeze", "flatten", "t", "transpose", "permute", "expand")
_FLOATS = ("clip_grad_norm_", "clip_grad_value_")  # they ask a tensor for its number
_ANOTHER = " is another number"
_ZEROES = ("zero_grad", "zero_", "_foreach_zero_")


def problems(region: Region, others: Collection[Region] = ()) -> list[Failure]:
    """Lines behind a capture that its replays do not see, or that keep what they write over, of all regions."""
    body = _body_around(region)
    if body is None:
        return []
    around = _Around(region, body, [r for r in others if (r.code, r.line) == (region.code, region.line)])
    found = [*around.exchanged(), *around.kept(), *around.gradients(), *around.modules(), *around.samples()]
    found += [*around.rates(), *exchanged_by_methods(region)]
    seen = {f.frame for f in found}
    found += [f for f in around.named_anew() if f.frame not in seen]
    found += moved_failures(region, found)
    told = {f.frame for f in found}  # seen with what it was at a replay
    found += [f for f in around.in_objects() if f.frame not in told]
    found = [at_its_replay(f, region) for f in found]
    decides = {f.frame for f in found if f.code == "branch-frozen"}  # what a test asks has a graph for each value
    found = [f for f in found if not (f.code == "scalar-frozen" and f.frame in decides and _ANOTHER in f.message)]
    return list({(f.code, f.frame): f for f in found}.values())


def without_freed(problems: list[Failure]) -> list[Failure]:
    """What is gone because its name means something else now needs no words of its own."""
    codes = ("stale-input", "graphed-closure", "parameter-rebound")
    names = {part.split()[0] for f in problems if f.code in codes for part in f.message.split("; ") if part.split()}
    # An argument may have the name that its caller's attribute has.
    names |= {name.rpartition(".")[2] for name in names if name.startswith("self.")}

    def renamed(failure: Failure) -> bool:
        frame = failure.frame
        paths = [each.split(".") for each in re.findall(r"[\w.]+", frame.text)] if frame is not None else []
        read = {".".join(path[:n]) for path in paths for n in range(1, len(path) + 1)}  # and what is called of it
        if frame is not None and any(name in frame.text.replace('"', "'") for name in names if name.endswith("]")):
            return True
        of_names = is_of(failure, names, names & read)  # else something beside it is gone, too
        return frame is not None and (moved or (not names.isdisjoint(read) if of_names is None else of_names))

    moved = any(f.code == "parameter-rebound" for f in problems)  # what a parameter had is gone
    told = {(at.file, at.line) for f in problems if f.code == "stale-input" and (at := f.frame) is not None}

    def is_told(at: Frame | None) -> bool:  # nobody may know the function of a line of before
        return at is not None and (at.file, at.line) in told

    left = [f for f in problems if not (f.code == "freed-input" and (is_told(f.frame) or renamed(f)))]
    return without_added(left)


def _body_around(region: Region) -> ast.AST | None:
    """The function, or the file, in which a capture stands."""
    tree = tree_of(region.code.co_filename)
    if tree is None or region.code.co_name == "<module>" or is_whole(region.code.co_filename, region.code.co_name):
        return tree
    return next((node for node in ast.walk(tree) if defines(node, region.code)), None)


@dataclass(slots=True)
class _Around(LinesBehind):
    same: list[Region]  # captures of the same line

    def exchanged(self) -> Iterator[Failure]:
        """Names that the capture reads, and that are given something else behind it and ahead of a replay."""
        read = self.read()
        for node in (*self.behind(), *(inner := [*self.inner()])):
            for name, value in _given(node):
                then = self.region.names.get(name)
                launches = node in inner or self.launches_after(node)
                if name not in read or not launches or self.is_kept(name, node):
                    continue
                if is_a(then, torch.Tensor) and any(each.names.get(name) is not then for each in self.same):
                    continue  # a graph for each of them
                if is_a(then, torch.Tensor):
                    code = "graphed-closure" if self.is_graphed() else "stale-input"
                    text = f"{name} is another tensor from here on, and the graph reads the one of its capture"
                    lines = self.written_in_place(name, value)
                    yield _told(code, text, self.region.code, node.lineno, lines)
                elif is_a(then, NUMBERS) and name not in self.of_loops():
                    text = f"{name}{_ANOTHER} from here on, and the graph has the {then} of its capture"
                    number = self.in_a_tensor(name, then, value)
                    yield _told("scalar-frozen", text, self.region.code, node.lineno, number)

    def named_anew(self) -> Iterator[Failure]:
        """Names of what the capture reads that are given what comes next, and that nothing reads ahead of a replay."""
        names = {name for name in self.read() if self.tensors(name)}
        last = max(getattr(n, "end_lineno", 0) or 0 for n in self.region.body)
        for name, node in named_anew(self.body, names, last):
            text = f"{name} is another tensor from here on, and the graph reads the one of its capture"
            given, then = ast.unparse(node.value), self.tensors(name)
            one = f"{name}.copy_({given})" if is_a(self.region.names[name], torch.Tensor) else ""
            lines = (ast.unparse(node), one or f"for old, new in zip({name}, {given}): old.copy_(new)")
            if not any(part.requires_grad for part in then):
                yield _told("stale-input", text, self.region.code, node.lineno, lines)

    def tensors(self, name: str) -> list[torch.Tensor]:
        """The tensor that a name meant at the capture, or those of its tuple."""
        value: Any = self.region.names.get(name)
        parts: list[Any] = [*value] if type(value) in (list, tuple) else [value]
        return parts if all(is_a(part, torch.Tensor) for part in parts) else []

    def inner(self) -> Iterator[ast.stmt]:
        """Lines of functions defined there that replay, and that give a variable of the outer one something else."""
        for function in (n for n in ast.walk(self.body) if isinstance(n, FUNCTIONS[:2]) and n is not self.body):
            names = {name for n in ast.walk(function) if isinstance(n, ast.Nonlocal) for name in n.names}
            assigns = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and names]
            replays = [n.lineno for n in ast.walk(function) if isinstance(n, ast.Call) and self.launches(n)]
            for node in assigns:
                if any(name in names for name, _ in _given(node)) and any(line > node.lineno for line in replays):
                    yield node

    def written_in_place(self, name: str, value: ast.expr | None) -> tuple[str, str]:
        """A line that gives a name something else, and one that writes it where the graph reads."""
        then = self.region.names[name]
        if value is None:
            return f"{name} = ...", f"before g.replay(): {name}.copy_(what comes next), and `{name}` stays the tensor"
        given = ast.unparse(value)
        into = "copy_" if not then.requires_grad else "data.copy_"
        return f"{name} = {given}", f"{name}.{into}({given})"

    def is_kept(self, name: str, again: ast.AST) -> bool:
        """Whether something else holds what a name means, such as a table of graphs, from where it may come back.

        ``again``: the statement that gives it something, perhaps out of a tuple of the function's own.
        """
        if is_given_back(self.region.code.co_filename, again, name):
            return True
        places = [n for n in ast.walk(self.body) if isinstance(n, ast.Assign) and n is not again]
        given = again.value if isinstance(again, ast.Assign) else None
        picked = given.value if isinstance(given, ast.Subscript) else given
        from_names = {picked.id} if isinstance(picked, ast.Name) else set()
        held = [value for n in places for to, value in pairs_of(n) if _may_give_back(to, from_names)]
        held += [
            n.args[-1] for n in ast.walk(self.body) if isinstance(n, ast.Call) and last_name(n.func) in KEEPS and n.args
        ]
        return any(isinstance(part, ast.Name) and part.id == name for value in held for part in self.parts(value))

    def parts(self, value: ast.expr) -> Iterator[ast.expr | None]:
        """What a value holds as it is: the parts of a tuple, a dictionary, or an object that is made of them."""
        if isinstance(value, ast.Dict):
            yield from value.values
        elif isinstance(value, ast.Call) and (last_name(value.func) == "dict" or is_a(self.value(value.func), type)):
            yield from (*value.args, *(each.value for each in value.keywords))
        else:
            yield from elements_of(value)

    def in_objects(self) -> Iterator[Failure]:
        """Numbers and modes of objects that the capture reads, and that are others behind it."""
        read = self.read()
        for node in self.behind():
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Name):
                continue
            owner, then = target.value.id, self.value(target)
            is_number = owner in read and is_a(then, NUMBERS) and may_read(self.region, target.attr)
            is_number = is_number and not counts_itself(self.region, self.value(target.value), target.attr)
            if is_number and self.launches_after(node) and not is_switched_back(self.region, node):
                text = f"{owner}.{target.attr} is another number from here on, and the graph has that of its capture"
                yield _told("scalar-frozen", text, self.region.code, node.lineno)
        modes = [n for n in self.behind() if isinstance(n, ast.Call) and last_name(n.func) in ("eval", "train")]
        for node in modes if len(modes) == 1 else []:
            module = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
            other = is_a(module, torch.nn.Module) and any(map(has_modes, module.modules()))
            graphs = (self.region.graph, *self.region.of_torch)
            if other and self.launches_after(node) and not minds_its_mode(module, graphs):
                text = "its modules take another way from here on, and the graph has that of its capture"
                lines = (ast.unparse(node), f"before the capture: {ast.unparse(node)}; one graph for each mode")
                yield _told("branch-frozen", text, self.region.code, node.lineno, lines)

    def in_a_tensor(self, name: str, then: float, value: ast.expr | None) -> tuple[str, str] | None:
        """Lines that keep a number in a tensor which the graph reads; a whole number may be a size, which is none."""
        calls = (n for n in ast.walk(self.body) if isinstance(n, ast.Call) and last_name(n.func) in _FLOATS)
        given = [part for n in calls for part in (*n.args, *(k.value for k in n.keywords))]
        read = any(isinstance(part, ast.Name) and part.id == name for part in given)
        uses = self.region.values.uses if self.region.values is not None else []
        told = (clipped(use, self.region.settings[0]) for use in uses if use.text == name)
        if value is not None and (whole := next(filter(None, told), "")):
            return f"{name} = {ast.unparse(value)}", f"this line as it is; {whole}"
        needs = self.with_a_tensor(name, then)
        if read or needs is None or not is_a(then, float):  # perhaps a size, or an index
            graphs = f"graphs[{name}]"
            each = f"one graph for each {name}: captured into {graphs} where it is not there yet, and {graphs}.replay()"
            return (f"for {name} in ..." if value is None else f"{name} = {ast.unparse(value)}"), each
        made = f"before the capture: {name} = torch.full((), {then}, device={self.region.settings[0]!r})"
        made += f"; with a tensor there {', '.join(needs)}" if needs else ""
        if value is None:
            return f"for {name} in ...", f"{made}; and `for value in ...: {name}.fill_(value)`, ahead of g.replay()"
        return f"{name} = {ast.unparse(value)}", f"{made}; here: {name}.fill_({ast.unparse(value)})"

    def with_a_tensor(self, name: str, then: Any) -> list[str] | None:
        """What else is written where a function that is given a number gets a tensor; None where it takes none."""
        uses = self.region.values.uses if self.region.values is not None else []
        given = [through(use, uses) for use in uses if use.text == name and not takes_a_tensor(use, then)]
        known = [each for each in given if each is not None]
        return list(dict.fromkeys(text for each in known for text in each)) if len(known) == len(given) else None

    def kept(self) -> Iterator[Failure]:
        """Results that are kept as they are while further replays write to the same memory."""
        made = self.made()
        text = "it is kept as it is, and each further replay writes to the same memory"
        for node in self.behind():
            inside = [*here(node, APART)] if isinstance(node, LOOPS) else []
            if any(map(self.launches, inside)):
                for n in inside:
                    if (what := kept_by(n)) is not None and self.is_result(what, made) and not self.is_written(n):
                        yield _told("output-alias", text, self.region.code, _number(n), with_clone(n, what))
            if isinstance(node, (ast.ListComp, ast.SetComp)) and self.is_graphed() and self.launches(node.elt):
                yield _told("output-alias", text, self.region.code, node.lineno, with_clone(node, node.elt))
            held = node.targets[0] if isinstance(node, ast.Assign) and self.is_result(node.value, made) else None
            if isinstance(held, ast.Name) and held.id not in made and self.is_held(node, held.id):
                yield _told("output-alias", text, self.region.code, node.lineno, with_clone(node, node.value))
            elif isinstance(node, ast.Assign) and (what := self.kept_beside(node, made)) is not None:
                yield _told("output-alias", text, self.region.code, node.lineno, cloned_at(node, what))

    def kept_beside(self, node: ast.Assign, made: set[str]) -> ast.expr | None:
        """A result that a line keeps beside what is none, ``best, score = y, s`` or ``best = (y, i)``; else None.

        Who names results alone chooses among them.
        """
        target, given = node.targets[0], [*elements_of(node.value)]
        if not isinstance(node.value, (ast.Tuple, ast.List)) or all(self.is_result(each, made) for each in given):
            return None
        names = [target] * len(given) if isinstance(target, ast.Name) else [*elements_of(target)]
        for name, each in zip(names, given, strict=False):
            held = isinstance(name, ast.Name) and name.id not in made and self.is_held(node, name.id)
            if held and self.is_result(each, made):
                return each
        return None

    def is_written(self, node: ast.AST) -> bool:
        """Whether an assignment writes to a tensor, which has numbers of its own then."""
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        while isinstance(target, ast.Subscript):
            target = target.value
        if target is None or is_a(self.value(target), torch.Tensor):
            return target is not None
        name = ast.unparse(target)
        made = [n for n in ast.walk(self.body) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name]
        calls = [n.value.func for n in made if isinstance(n.value, ast.Call)]
        return any(last_name(getattr(f, "value", f)) == "torch" or last_name(f).endswith("_like") for f in calls)

    def is_held(self, node: ast.Assign, name: str) -> bool:
        """Whether a name that has a result is read behind a further replay."""
        nodes = [*ast.walk(self.body)]
        again = [n.lineno for n in self.behind() if self.launches(n) and self.comes_after(n.lineno, node)]
        return self.launches_before(node) and any(is_read_later(nodes, name, line) for line in again)

    def gradients(self) -> Iterator[Failure]:
        """Gradients that the graph writes, and that are set to None behind its capture."""
        codes = [*codes_of(self.region)]
        used = {name for code in codes for name in code.co_names}
        if "backward" not in used or "zero_grad" in used:
            return
        if self.region.gradients and not self.region.adds_on and "zero_" not in used and not sets_to_none(codes):
            yield from self.added(codes)
        if "step" in used and not self.region.gradients:
            return  # it makes them, and steps with them: those outside are nobody's
        for node in (n for n in self.behind() if isinstance(n, ast.Call) and self.launches_after(n)):
            if last_name(node.func) == "zero_grad" and not keeps(node):
                yield gradients_nulled(node, self.region.code)

    def added(self, codes: list[CodeType]) -> Iterator[Failure]:
        """Gradients that are there when the capture begins, to which each replay adds, and that nobody zeroes."""
        tree = tree_of(self.region.code.co_filename) or ast.Module([], [])
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
        last = max(getattr(n, "end_lineno", 0) or 0 for n in self.region.body)
        outside = (n for n in calls if n.lineno > last or self.region.code.co_name != "<module>")
        if any(last_name(n.func) in _ZEROES and (keeps(n) or last_name(n.func) != "zero_grad") for n in outside):
            return
        if any(last_name(n.func) == "zero_grad" for n in self.behind() if isinstance(n, ast.Call)):
            return
        yield from gradients_added(self.region, codes)

    def modules(self) -> Iterator[Failure]:
        """Modules whose parameters are given other memory behind the capture."""
        for node in self.behind():
            if not isinstance(node, (ast.Call, ast.Assign)) or not self.launches_after(node):
                continue
            call = node if isinstance(node, ast.Call) else None
            name = last_name(call.func) if call is not None else ""
            owner = call.func.value if call is not None and isinstance(call.func, ast.Attribute) else None
            text = "its parameters get other memory here, and the graph reads the one of its capture"
            if call is not None and is_a(self.value(owner), torch.nn.Module):
                assigns = any(k.arg == "assign" and not _is_false(k.value) for k in call.keywords)
                if (name == "load_state_dict" and assigns) or (name in EXCHANGES and self.moved(self.value(owner))):
                    lines = (ast.unparse(call), in_place(call))
                    yield _told("parameter-rebound", text, self.region.code, call.lineno, lines)
            assigned = node if isinstance(node, ast.Assign) else None
            for target in assigned.targets if assigned is not None else []:
                held = target.value if isinstance(target, ast.Attribute) and target.attr == "data" else None
                if assigned is not None and is_a(self.value(held), torch.Tensor):
                    lines = (ast.unparse(node), f"{ast.unparse(target)}.copy_({ast.unparse(assigned.value)})")
                    yield _told("parameter-rebound", text, self.region.code, node.lineno, lines)

    def rates(self) -> Iterator[Failure]:
        """Rates that a scheduler, or a line, gives an optimizer as numbers, of which the graph has the first."""
        if not any("step" in code.co_names for code in codes_of(self.region)):
            return
        text = "the next rate is a number of Python's, and the graph has that of its capture"
        for node in self.behind():
            owner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
            scheduler = self.value(owner) if owner is not None and node.func.attr == "step" else None
            lines = None
            if is_a(scheduler, LRScheduler) and not _has_tensors(scheduler.optimizer):
                made = rate_in_a_tensor(self.region.settings[0], scheduler.optimizer)
                lines = (ast.unparse(node), f"{ast.unparse(node)}, behind g.replay(), with {made}")
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            key = target.slice if isinstance(target, ast.Subscript) else None
            if isinstance(node, ast.Assign) and isinstance(key, ast.Constant) and key.value == "lr":
                filled = f"{ast.unparse(node.targets[0])}.fill_({ast.unparse(node.value)})"
                made = rate_in_a_tensor(self.region.settings[0])
                lines = (ast.unparse(node), f"{filled}, ahead of g.replay(), with {made}")
            if lines is not None and self.launches_after(node):
                yield _told("learning-rate-frozen", text, self.region.code, node.lineno, lines)

    def samples(self) -> Iterator[Failure]:
        """Sample arguments that are used once more: each call of what is graphed writes to them."""
        call = self.region.body[0].value if isinstance(self.region.body[0], ast.Expr) else None
        if not self.is_graphed() or not isinstance(call, ast.Call) or len(call.args) < 2:
            return
        calls = [n for n in self.behind() if self.launches(n)]
        first = min((n.lineno for n in calls), default=None)
        given = call.args[1].elts if isinstance(call.args[1], (ast.Tuple, ast.List)) else [call.args[1]]
        names = {n.id for each in given for n in [each] if isinstance(n, ast.Name)}
        for node in self.behind():
            later = isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
            if later and first is not None and node.lineno >= first and not any(_only(node, c) for c in calls):
                names.discard(node.id)
                text = f"{node.id} is the graph's own input: each call copies its argument there"
                line = ast.unparse(call)
                lines = (line, _cloned(call, node.id))
                yield _told("graphed-sample-overwritten", text, self.region.code, call.lineno, lines)

    def moved(self, module: torch.nn.Module) -> bool:
        """Whether a module's parameters lie elsewhere than at the capture, as at the end of the program they do."""
        before = self.region.memory.get(id(module))
        return before is not None and before != addresses_of(module)

    def is_result(self, what: ast.expr, made: set[str]) -> bool:
        if self.is_graphed():
            return self.launches(what)
        while True:  # a view of it is the same memory
            if isinstance(what, ast.Call) and isinstance(what.func, ast.Attribute) and what.func.attr in _VIEWS:
                what = what.func.value
            elif isinstance(what, ast.Attribute) and what.attr in ("data", "T"):
                what = what.value
            else:
                return isinstance(what, ast.Name) and what.id in made


def _may_give_back(target: ast.expr, names: set[str]) -> bool:
    """Whether a statement reads what is kept there: a table, an object, or one of these names."""
    return isinstance(target, (ast.Subscript, ast.Attribute)) or (isinstance(target, ast.Name) and target.id in names)


def _told(code: str, text: str, at: CodeType, line: int, lines: tuple[str, str] | None = None) -> Failure:
    failure = BY_ID[code].failure(text, frame_at(at, line))
    return failure if lines is None else replace(failure, fix=f"before  {lines[0]}\nafter   {lines[1]}")


def _has_tensors(optimizer: torch.optim.Optimizer) -> bool:
    return any(isinstance(group.get("lr"), torch.Tensor) for group in optimizer.param_groups)


def _number(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _only(name: ast.Name, call: ast.Call) -> bool:
    """Whether a name is just an argument of a call, which copies it onto itself."""
    return any(name is each for each in call.args)


def _cloned(call: ast.Call, name: str) -> str:
    """A call with a copy of an argument."""
    whole = copy.deepcopy(call)
    for node in ast.walk(whole.args[1]):
        if isinstance(node, ast.Name) and node.id == name:
            node.id = f"{name}.clone()"
    return ast.unparse(whole)


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Names that a statement gives something else, with what, where one line tells."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, (ast.Tuple, ast.List)):
                yield from ((n.id, None) for n in target.elts if isinstance(n, ast.Name))
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        yield from ((n.id, None) for n in ast.walk(node.target) if isinstance(n, ast.Name))


def gradients_nulled(call: ast.Call, code: CodeType) -> Failure:
    """What is told of ``zero_grad()`` around the replays of a graph with a backward pass."""
    text = "it sets gradients to None that the graph goes on writing to"
    lines = (ast.unparse(call), f"{ast.unparse(call.func)}(set_to_none=False)")
    return _told("gradients-rebound", text, code, call.lineno, lines)


def gradients_added(region: Region, codes: Iterable[CodeType]) -> Iterator[Failure]:
    """What is told of a backward pass in a graph that adds to gradients of before its capture."""
    zero = f"{optimizer_in(region) or 'optimizer'}.zero_grad(set_to_none=True)"
    own = [(region.code, n) for s in region.body for n in ast.walk(s)]
    for code, node in (*own, *((c, n) for c in codes for n in nodes_of(c))):
        if isinstance(node, ast.Call) and last_name(node.func) == "backward":
            line = ast.unparse(node)
            lines = (line, f"{zero} right before the capture, which then makes them anew; {line} stays")
            yield _told("gradients-accumulate", ADDED, code, node.lineno, lines)
            return


def keeps(call: ast.Call) -> bool:
    """``zero_grad(set_to_none=False)``."""
    given = [*call.args, *(k.value for k in call.keywords if k.arg == "set_to_none")]
    return bool(given) and _is_false(given[0])


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
