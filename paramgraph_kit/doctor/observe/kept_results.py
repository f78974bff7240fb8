"""Results that a program keeps from replay to replay, found where they are: memory of a graph's twice in one list."""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.added_to_lists import KEEPS, added_to, is_computed
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.copied_names import clone_of, cloned_at, copied_at, copy_of, grouped, with_copies
from paramgraph_kit.doctor.observe.given_away import GivenAway
from paramgraph_kit.doctor.observe.given_results import comprehended, may_call, of_empty, of_future, of_object
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.held_in_line import HeldInLines
from paramgraph_kit.doctor.observe.held_over import HeldOver
from paramgraph_kit.doctor.observe.kept_at_once import AtOnce, LinesOfReplays
from paramgraph_kit.doctor.observe.kept_if_better import kept_now, may_be, of_round_before, taken_by
from paramgraph_kit.doctor.observe.kept_rows import lists_in, may_be_kept, result_in_row, row_of, row_with_clones
from paramgraph_kit.doctor.observe.named_lists import MOST, HostsThatWait, bound_at, named_in, taken_of
from paramgraph_kit.doctor.observe.places import Place, frames_of_all, frames_of_the_user
from paramgraph_kit.doctor.observe.read_later import is_read_later, statement_at
from paramgraph_kit.doctor.observe.results_by_name import result_of
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure, Frame

_MOST_LOOKS = 64  # replays behind which all objects are looked at
_SAID = "it is kept as it is, and each further replay writes to the same memory"
SAID_OF_HOST = "it is kept as it is, and each further copy from the device writes to the same memory of the host"
_WAIT = "torch.cuda.synchronize()"
_SAID_OF_INPUTS = "a static input is kept as it is, and what is written to it for a further replay changes it"
_OURS_ALONE = 2  # who holds a list that nobody else does: the entry, and who asks
_JOINS = ("cat", "stack", "concat", "hstack", "vstack", "dstack", "list", "tuple", "sorted", "reversed", "zip", "sum")
_LOOKS = ("flatten", "view", "reshape", "squeeze", "unsqueeze", "detach", "t", "transpose", "permute", "ravel")
_COPIES = ("clone", "deepcopy", "item", "tolist")
_PATHS = (ast.Name, ast.Attribute)
_RESULTS = (torch.Tensor, dict, list, tuple)
_ROWS = (dict, list, tuple)
_HAVE_WORDS = (*_RESULTS, str, int, float, type(None))
_Key = tuple[int, torch.Size]
Owns = Callable[[torch.Tensor], bool]


def _is_none(_: torch.Tensor) -> bool:
    return False


def _is_any(_: torch.Tensor) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Kept:
    """A list, or a dictionary, that a function of the user's names."""

    held: Any
    code: CodeType
    name: str
    named: frozenset[tuple[CodeType, str]] = frozenset()  # by which functions, and how, also those that are over


class KeptResults:
    """What is kept over the replays of one call."""

    def __init__(self) -> None:
        self._lists: dict[int, _Kept] = {}
        self._names: dict[tuple[CodeType, str], Failure] = {}
        self._before: dict[int, set[_Key]] = {}  # what a list had twice before the first replay
        self._first: dict[int, dict[int, set[_Key]]] = {}  # what it had of each graph when it was seen first
        self._looks = 0
        self._replays, self._held, self._over = LinesOfReplays(), HeldInLines(), HeldOver()
        self._away, self._hosts = GivenAway(), HostsThatWait()
        self._at_end: list[Failure] = []
        self._then: dict[int, dict[tuple[CodeType, str], Failure]] = {}  # what lists had twice at a replay
        self._sizes: dict[int, int] = {}  # how many entries a list had when it was seen last
        self.late = False  # one has got what another graph had written over by then
        self._overwritten: set[int] = set()  # lists that have got something else since, and a replay writes to that

    def look(
        self,
        graph: int,
        owns: Owns,
        is_first: bool,
        spoiled: Owns = _is_none,
        reads: Owns = _is_none,
        moved: Collection[int] = (),
        times: Callable[[torch.Tensor], int] = torch.numel,
    ) -> None:
        """A graph is replayed now; ``owns``: whether a tensor is memory that it writes; ``is_first``: not before.

        ``spoiled``: whether another graph has written over it; ``reads``: whether this one reads it; ``moved``: memory
        of before that it writes in any way; ``times``: how often copies have filled what is the host's.
        """
        self._settle(owns)
        self._looks += 1
        self._replays.replayed(graph, frames_of_the_user(), is_first)
        if not is_first:
            self._away.replayed(frames_of_the_user())
        read_on = {(frame, name) for frame, name in self._held.replayed(graph, [*frames_of_the_user()], owns)}
        if self._looks <= _MOST_LOOKS:
            for code, line, target, part in kept_now(list(frames_of_the_user()), lambda v: any(map(owns, _tensors(v)))):
                self._names[code, target] = _cloned(code, line, part)
        for number, frame in enumerate(frames_of_all()):
            for line in of_round_before(frame.f_code, frame.f_lineno):
                value = path_value(line.targets[0], frame.f_locals, frame.f_globals)
                if is_a(value, torch.Tensor) and owns(value):
                    name, taken = ast.unparse(line.targets[0]), taken_by(line) or [line.value]
                    self._names[frame.f_code, name] = _cloned(frame.f_code, line, taken[0])
            for name, value in named_in(frame):
                kind = type(value)
                self._over.look(frame, name, value, owns, moved)
                if issubclass(kind, (list, dict, deque)):
                    before, now = self._lists.get(id(value)), (frame.f_code, name)
                    named = before.named if before is not None else frozenset()
                    self._lists[id(value)] = _Kept(value, *now, named | {now})
                    if issubclass(kind, list):
                        new = value[self._sizes.get(id(value), len(value)) :]
                        self.late |= any(spoiled(t) for part in new for t in _tensors(part))
                        self._sizes[id(value)] = len(value)
                    there = {key for each in _owned(value, owns) for key in each}
                    first = self._first.setdefault(id(value), {})
                    if is_first or graph not in first:  # what it has is not got, also where it is written later
                        first[graph] = {key for each in _owned(value, _is_any) for key in each}
                    # An entry of a dictionary, as of the last result, may be read ahead of the next replay alone.
                    old = there - first[graph] if not is_first and not issubclass(kind, dict) else set()
                    inside = (t for part in _parts(value) for t in _tensors(part))
                    old -= self._hosts.untouched(value, inside, times)
                    if old:
                        self._overwritten.add(id(value))
                    if not is_first and (wrong := _twice(value, owns) or taken_of(old, frame.f_code, name)):
                        self._told_then(self._lists[id(value)], wrong, owns)
                    if is_first:
                        # several names of one result, as of a graph for several sizes
                        self._before.setdefault(id(value), set()).update(_twice(value, owns) | _twice(value, reads))
                row = result_in_row(frame, name, value, owns) if issubclass(kind, (tuple, list, dict)) else None
                if row is not None and is_read_later([*nodes_of(frame.f_code)], name, frame.f_lineno):
                    self._names[frame.f_code, name] = _failure(frame.f_code, row.node, row.node.value, row.held)
                is_result = number and (issubclass(kind, _RESULTS) or is_dataclass(kind))
                if is_result and (frame.f_code, name) not in self._names:
                    found = self._result_of(graph, frame, name) if any(map(owns, _tensors(value))) else None
                    is_read = (frame, name) in read_on or is_read_later([*nodes_of(frame.f_code)], name, frame.f_lineno)
                    if found is not None and is_read:
                        node, part = found
                        told = _of_name(frame.f_code, node, name, value)
                        self._names[frame.f_code, name] = told if part is None else _cloned(frame.f_code, node, part)

    def _told_then(self, kept: _Kept, wrong: set[_Key], owns: Owns) -> None:
        """What has a result now that is written over may be empty by the end: a queue, or a list of what waits."""
        if id(kept.held) not in self._then and wrong - self._before.get(id(kept.held), set()):
            own, lines = _told_inside(kept, owns)
            self._then[id(kept.held)] = {(own.code, f"{own.name}[{n}]"): f for n, f in enumerate(lines)}

    def _result_of(self, graph: int, frame: FrameType, name: str) -> tuple[Any, Any] | None:
        now = next(frames_of_the_user())
        return result_of(frame, name, self._replays.lines_of(frame.f_code, (graph, now.f_code, now.f_lineno)))

    def _settle(self, owns: Owns) -> None:
        """What the program has let go is looked at for the last time, so that nothing is kept alive here."""
        for key in list(self._lists):
            if sys.getrefcount(self._lists[key].held) <= _OURS_ALONE:
                kept = self._lists.pop(key)
                self._names |= self._then.pop(key, {})
                self._names |= {
                    (kept.code, f"{kept.name}[]{n}"): f for n, f in enumerate(self._over.of_list(kept.held))
                }
                if self._is_wrong(kept, owns, self._before.pop(key, set())):
                    kept, lines = _told_inside(kept, owns)
                    self._names |= {(kept.code, f"{kept.name}[{n}]"): f for n, f in enumerate(lines)}

    def read(
        self, operation: str, tensors: list[torch.Tensor], owns: Callable[[], Owns], makes: Owns, place: Place
    ) -> None:
        """An operation reads tensors, or puts them into one; ``owns()`` tells whether one is memory that graphs write.

        ``makes``: and was not there before.
        """
        frames = [*frames_of_the_user()] if self._held.waiting else []
        for held in self._held.read(frames, tensors, owns()) if frames else ():
            self._names[held.code, ast.unparse(held.what)] = _cloned(held.code, held.line, held.what)
        self._names |= {(code, at): told for code, at, told in self._over.against_itself(tensors)}
        if operation in ("cat", "stack"):
            self._joined(tensors, owns(), makes, place)
        elif self._replays.waits and any(map(is_own := owns(), tensors)):
            for kept in self._replays.read(frames_of_the_user(), lambda held: bool(_twice(held, is_own))):
                self._names[kept.code, kept.name] = _of_line(kept)

    def _joined(self, tensors: list[torch.Tensor], owns: Owns, makes: Owns, place: Place) -> None:
        """Tensors are put into one; what a comprehension has kept has no name before. ``makes``: and was there not."""
        if _twice(tensors, owns) and (user := place.user) is not None:
            wrong = [k for k in self._lists.values() if _twice(k.held, owns) - self._before.get(id(k.held), set())]
            for own, lines in (_told_inside(kept, owns) for kept in wrong):  # now, as it may be emptied behind that
                self._names |= {(own.code, f"{own.name}[{n}]"): f for n, f in enumerate(lines)}
            nodes = [*nodes_of(user[0])]
            given = {id(n) for call in nodes if isinstance(call, ast.Call) for n in _given_to_others(call)}
            comprehensions = [n for n in nodes if isinstance(n, (ast.ListComp, ast.GeneratorExp))]
            awaited = [n for n in comprehensions if isinstance(n.elt, ast.Await)]
            calls = [n for n in comprehensions if isinstance(n.elt, ast.Call) and id(n) not in given] + awaited
            calls = [n for n in calls if not (wrong and _is_look(n)) and not _copies(n.elt)]
            aside = _not_joined(nodes, place)
            calls = [n for n in calls if id(n) not in aside]
            joined = set(map(id, tensors))
            lists = [kept for kept in self._lists.values() if any(_kept_at(kept))]
            if any(joined <= {id(t) for part in _parts(kept.held) for t in _tensors(part)} for kept in lists):
                return  # they are those of a list, at whose lines it is told
            by_name = last_name(calls[0].elt.func) if len(calls) == 1 and isinstance(calls[0].elt, ast.Call) else ""
            if (gives := self._away.of_coroutine(by_name) if by_name or not calls else None) is not None:
                self._names[user[0], "[]"] = _cloned(*gives)
            elif len(calls) == 1:
                failure, held = _failure(user[0], calls[0], calls[0].elt), _kept_there(user[0], calls[0])
                self._names[user[0], "[]"] = _of_entries(failure, calls[0].elt, held)
            elif not any(_twice(kept.held, owns) for kept in self._lists.values()):  # as what a generator gives
                yields = [*_given_by_generators(user[0], place, self._away.ran)]
                at = [_failure(user[0], each, each.value) for each in yields if each.value is not None]
                if not at and _twice(tensors, makes):
                    for where, call, text in self._away.lines(user[0], self._replays.by_function()):
                        self._names[where, ast.unparse(call)] = _written(where, call, text)
                    if any(key[0] is user[0] for key in self._names):
                        return
                if at or _twice(tensors, makes):  # a state beside itself, which is no result, is joined on purpose
                    self._names[user[0], "[]"] = at[0] if at else BY_ID["output-alias"].failure(_SAID, place.frame())

    def failures(self, owns: Owns, given: Owns = _is_none) -> Iterator[Failure]:
        """All that is kept twice, at the lines that keep it; ``given``: whether a tensor is an input that changes."""
        yield from [*self._failures(owns, given)] or self._at_end

    def ended(self, result: Any, owns: Owns) -> None:
        """A call gives this back: a list that it has made at once has no name by then."""
        self._at_end = [_of_line(kept) for kept in self._replays.ended(result, lambda held: bool(_twice(held, owns)))]

    def _failures(self, owns: Owns, given: Owns) -> Iterator[Failure]:
        yield from {**self._over.beside, **self._names}.values()
        for kept in self._lists.values():
            before = self._before.get(id(kept.held), set())
            yield from self._over.of_list(kept.held)
            if then := self._then.get(id(kept.held)):
                yield from then.values()
            elif self._is_wrong(kept, owns, before):
                yield from _told_inside(kept, owns)[1]
            elif type(kept.held) is list and _twice(kept.held, given) - before:
                yield from (replace(each, message=_SAID_OF_INPUTS) for each in _kept_at(kept))

    def _is_wrong(self, kept: _Kept, owns: Owns, before: set[_Key]) -> bool:
        key = id(kept.held)
        self._first.pop(key, None)
        overwritten = key in self._overwritten
        self._overwritten.discard(key)
        return bool(_twice(kept.held, owns) - before) or (overwritten and any(_owned(kept.held, owns)))


def _told_inside(kept: _Kept, owns: Owns) -> tuple[_Kept, list[Failure]]:
    """Who keeps results, with the lines: of an object in a list, as a request that is done, what it has itself."""
    inner = (each for part in _parts(kept.held) for each in lists_in(part))
    for name, held in {id(each): (name, each) for name, each in inner if name and _twice(each, owns)}.values():
        if lines := [*_kept_at(own := _Kept(held, kept.code, name))]:
            return own, lines
    lines = [*_kept_at(kept)] or [BY_ID["output-alias"].failure(_SAID, at) for at in bound_at(kept.code, kept.name)]
    if all(t.device.type == "cpu" for part in _parts(kept.held) for t in _tensors(part) if owns(t)):
        lines = [of_host(replace(each, message=SAID_OF_HOST)) for each in lines]
    return kept, lines


def _is_look(comprehension: Any) -> bool:
    """Whether each entry is only another look at what its loop gives: ``[v.flatten() for v in kept]``."""
    func, targets = comprehension.elt.func, {ast.unparse(each.target) for each in comprehension.generators}
    return isinstance(func, ast.Attribute) and func.attr in _LOOKS and ast.unparse(func.value) in targets


def _copies(value: ast.expr) -> bool:
    """Whether what an entry is has memory of its own, or is a number."""
    return any(isinstance(n, ast.Call) and last_name(n.func) in _COPIES for n in ast.walk(value))


def _not_joined(nodes: list[ast.AST], place: Place) -> set[int]:
    """Comprehensions of the statement that joins tensors which are no arguments of the join: they stand beside it."""
    frame = place.frame()
    now = statement_at(nodes, frame.line) if frame is not None else None
    inside = [*ast.walk(now)] if now is not None else []
    joins = [n for n in inside if isinstance(n, ast.Call) and last_name(n.func) in _JOINS]
    given = {id(n) for call in joins for part in call.args for n in ast.walk(part)}
    return {id(n) for n in inside if isinstance(n, (ast.ListComp, ast.GeneratorExp)) and id(n) not in given and joins}


def _kept_there(code: CodeType, comprehension: ast.expr) -> Any:
    """The list that a comprehension has made, by the name that it was given; None for none."""
    line = ast.unparse(comprehension)
    for frame in (each for each in frames_of_the_user() if each.f_code is code):
        for node in (n for n in nodes_of(code) if isinstance(n, ast.Assign) and ast.unparse(n.value) == line):
            return path_value(node.targets[0], frame.f_locals, frame.f_globals)
    return None


def _given_to_others(call: ast.Call) -> list[ast.expr]:
    """What a call is given that joins no tensors and makes no list: what it returns is something else."""
    return [] if last_name(call.func) in _JOINS else [*call.args, *(each.value for each in call.keywords)]


def _given_by_generators(code: CodeType, place: Place, ran: Collection[CodeType]) -> Iterator[ast.Yield]:
    """What generators give whose names a line reads; ``ran``: those within which a graph was replayed."""
    frame, tree = place.frame(), tree_of(code.co_filename)
    line = frame.line if frame is not None else 0
    names = {last_name(n.func) for n in nodes_of(code) if isinstance(n, ast.Call) and n.lineno <= line}
    for function in ast.walk(tree) if tree is not None else ():
        replays = any(each.co_name == getattr(function, "name", "") for each in ran)
        if isinstance(function, ast.FunctionDef) and function.name in names and replays:
            yield from (n for n in ast.walk(function) if isinstance(n, ast.Yield))


def kept_by(node: ast.AST) -> ast.expr | None:
    """What a statement puts into a list, a set or a dictionary."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        adds = node.func.attr in KEEPS or (node.func.attr == "extend" and isinstance(node.args[-1], ast.List))
        return node.args[-1] if adds else None
    if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List):
        return node.value
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return node.value
    return None


def with_clone(node: ast.AST, what: ast.expr, held: Any = None) -> tuple[str, str]:
    """A line, and the same with a copy of what it keeps; of a tuple's parts where it keeps one.

    ``held``: what has such tuples already, and shows which of their parts are tensors.
    """
    cloned = row_with_clones(what, held) or clone_of(node, what)
    if not any(each is what for each in ast.walk(node)):
        return ast.unparse(node), cloned
    before, after = with_copies(node, {what: cloned})
    in_brackets = isinstance(node, ast.Yield)
    return (before[1:-1], after[1:-1]) if in_brackets else (before, after)


def of_host(failure: Failure) -> Failure:
    """The same of memory of the host's, which a copy may still write when the line has come."""
    return replace(failure, fix=f"{failure.fix}; where nothing has waited for that copy by then, {_WAIT} ahead of it")


def kept_at(text: str, frame: Frame, parts: Collection[str] = (), gives: tuple[Any, Any] = (None, None)) -> Failure:
    """What is told of a line that keeps a result, with the same line and a copy of it.

    ``parts``: those of a row; ``gives``: what is called, and what that has returned.
    """
    failure = BY_ID["output-alias"].failure(text, frame)
    with suppress(SyntaxError):  # it goes over several lines
        line = ast.parse(frame.text.strip()).body[0]
        node = line.value if isinstance(line, ast.Expr) else line
        made = comprehended(line, gives[0])
        named = node.value if isinstance(node, ast.Assign) and isinstance(node.value, _PATHS) else None
        if (what := made[0].elt if len(made) == 1 else kept_by(node) or named) is not None:
            before, after = with_clone(node, what, row_of(what, parts))
            if isinstance(what, ast.Call) and may_call(what, gives[0]) and type(gives[1]) in _ROWS:
                after = after.replace(f"{ast.unparse(what)}.clone()", copy_of(ast.unparse(what), gives[1]))
            return replace(failure, fix=f"before  {before}\nafter   {after}")
    return failure


def _twice(held: Any, owns: Owns) -> set[_Key]:
    seen, twice = set[_Key](), set[_Key]()
    for keys in _owned(held, owns):
        twice |= seen & keys
        seen |= keys
    return twice


def _owned(held: Any, owns: Owns) -> Iterator[set[_Key]]:
    """What of each entry a graph writes."""
    for part in _parts(held):
        yield {(t.data_ptr(), t.shape) for t in _tensors(part) if owns(t)}


def _parts(held: Any) -> Iterator[Any]:
    # A class of the user's may go through its entries in a way of its own.
    entries = dict.values(held) if is_a(held, dict) else next(k for k in (list, deque) if is_a(held, k)).__iter__(held)
    return islice(entries, MOST)


def _tensors(part: Any) -> list[torch.Tensor]:
    with suppress(Exception):
        if not isinstance(part, (torch.Tensor, tuple, list, dict)) and not isinstance(part, torch.nn.Module):
            part = dict(vars(part)) if hasattr(part, "__dict__") else part
        leaves = tree_leaves(part)
        has_graph = any(hasattr(type(each), "replay") for each in leaves)  # what is replayed later, and no result
        return [each for each in leaves if is_a(each, torch.Tensor)] if not has_graph else []
    return []


def _kept_at(kept: _Kept) -> Iterator[Failure]:
    """The lines that add to a list of this name."""
    tree = tree_of(kept.code.co_filename)
    whole = [*ast.walk(tree)] if tree is not None else []
    name = kept.name.rpartition(".")[2]  # of a dictionary's entry also where a loop gives the key
    names = [name, name.partition("[")[0]] if name.endswith("]") else [name]
    others = [(code, n.rpartition(".")[2], [*nodes_of(code)]) for code, n in kept.named if code is not kept.code]
    places = [(kept.code, each, nodes) for each in names for nodes in ([*nodes_of(kept.code)], whole)]
    for code, last, nodes in [*places[:1], *others, *places[1:]]:  # those of its name in the file may be of other lists
        found = [(node, what) for node in nodes for what in [added_to(node, last)] if may_be_kept(what)]
        found = [pair for pair in found if not is_computed(pair[1])] or found
        for node, what in found:
            if filled := of_empty(kept.code, kept.held, what, _tensors):
                yield from filled
                continue
            own = of_object(kept.code, kept.held, _tensors) or of_future(kept.code, kept.held)
            yield own or _of_entries(_failure(code, node, what, kept.held), what, kept.held)
        if found:
            return
    if own := of_object(kept.code, kept.held, _tensors) or of_future(kept.code, kept.held):
        yield own  # the list itself is made beside others, ``server, requests = Server(), [...]``


def _of_entries(failure: Failure, what: ast.expr, held: Any) -> Failure:
    """The same, where a list's entries are dictionaries, which have no clone()."""
    entries = [*islice(held, MOST)] if type(held) in (list, deque) else []  # one of the user's goes its own way
    whole = bool(entries) and all(type(each) is dict for each in entries)
    name = "y" if f"[y.clone() for y in {ast.unparse(what)}]" in failure.fix else ast.unparse(what)
    cloned = f"{grouped(what) if name != 'y' else name}.clone()"
    if entries and all(isinstance(each, tuple) for each in entries):  # also those whose parts have names
        return replace(failure, fix=failure.fix.replace(cloned, f"copy.deepcopy({name})"))
    if entries and not any(is_a(each, _HAVE_WORDS) or hasattr(type(each), "clone") for each in entries):
        return replace(failure, fix=failure.fix.replace(cloned, f"copy.deepcopy({name})"))
    each = f"{{k: v.clone() if torch.is_tensor(v) else v for k, v in {name}.items()}}"
    return replace(failure, fix=failure.fix.replace(cloned, each)) if whole else failure


def _failure(code: CodeType, node: Any, what: ast.expr, held: Any = None) -> Failure:
    before, after = with_clone(node, what, held)
    frame = frame_at(code, node.lineno)
    return replace(BY_ID["output-alias"].failure(_SAID, frame), fix=f"before  {before}\nafter   {after}")


def _of_line(kept: AtOnce) -> Failure:
    """What is told of a line that keeps results of several replays."""
    if kept.what is not None:
        return _of_entries(_failure(kept.code, kept.line, kept.what, kept.held), kept.what, kept.held)
    before = ast.unparse(kept.line)
    is_map = isinstance(kept.line, ast.Call) and last_name(kept.line.func) == "map"
    inner = ast.unparse(kept.line.args[0]) if isinstance(kept.line, ast.Call) and not is_map else before
    failure = BY_ID["output-alias"].failure(_SAID, frame_at(kept.code, getattr(kept.line, "lineno", 0)))
    failure = replace(failure, fix=f"before  {before}\nafter   [y.clone() for y in {inner}]")
    return _of_entries(failure, ast.Name("y"), kept.held)


def _written(code: CodeType, what: ast.expr, new: str) -> Failure:
    failure = BY_ID["output-alias"].failure(_SAID, frame_at(code, what.lineno))
    return replace(failure, fix=f"before  {ast.unparse(what)}\nafter   {new}")


def _cloned(code: CodeType, node: Any, what: ast.expr) -> Failure:
    sides = may_be(node.value) if isinstance(node, ast.Assign) else ()  # of a choice
    alike = [each for each in sides if ast.unparse(each) == ast.unparse(what)]
    before, after = cloned_at(node, what, *alike)
    failure = BY_ID["output-alias"].failure(_SAID, frame_at(code, node.lineno))
    return replace(failure, fix=f"before  {before}\nafter   {after}")


def _of_name(code: CodeType, node: Any, name: str, value: Any) -> Failure:
    """What is told of a line that gives a variable a result, as which it is read behind a further replay."""
    before, after = copied_at(node, name, value)
    failure = BY_ID["output-alias"].failure(_SAID, frame_at(code, node.lineno))
    return replace(failure, fix=f"before  {before}\nafter   {after}")
