"""Sample arguments of ``make_graphed_callables``: what they ask of gradients, and whose memory they share.

Each call copies its arguments there. A backward pass gives no gradient to an argument whose sample asks for none, and
reads what the call after its own has copied, where two callables have the same sample.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from types import FrameType

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.graphed_by_torch import is_of_graphs
from paramgraph_kit.doctor.observe.graphed_over import AGAIN, OverwrittenSamples, is_gone_through_again
from paramgraph_kit.doctor.observe.held import cells_of, is_a
from paramgraph_kit.doctor.observe.own_regions import GRAPHED
from paramgraph_kit.doctor.observe.places import Place, frames_of_the_user
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace.model import Failure, Frame

_NO_GRADIENT = "A graphed callable gives its argument no gradient"
_WRITTEN = "What a graphed callable saves for its backward pass is written over"
_OVER = (
    "A replay of the backward pass reads the memory that the forward pass has read, and nobody keeps what was there. "
    "Eagerly autograd would refuse."
)
_BOTH = 2  # a sample, and what is copied there
_MOST = 256  # writes between a call and its backward pass
_WHY = (
    "torch captures the backward pass for the sample arguments: where a sample does not require gradients, what the "
    "callable is given gets none, and nothing that has computed that learns."
)


@dataclass(frozen=True, slots=True)
class _Sample:
    """What is known of a sample; itself would live on here."""

    key: int
    address: int
    learns: bool


@dataclass(frozen=True, slots=True)
class _Call:
    """The latest call of a callable."""

    samples: tuple[_Sample, ...]
    given: tuple[int, ...]  # memory of its arguments
    unlearned: tuple[int, ...]  # arguments that require gradients, with samples that do not
    place: Place
    names: dict[str, int]  # what who calls names them, each with its memory


class GraphedSamples:
    """Those of one program."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}  # by the graph of the backward pass
        self._later: dict[int, list[_Call]] = {}  # calls of others since
        self._writes: dict[int, list[tuple[int, Place]]] = {}  # memory that is written since
        self._told: dict[tuple[str, Frame | None], Failure] = {}
        self._over = OverwrittenSamples(self._tell_used)
        self._before = False  # a callable of before the call is called

    def launched(self, graph: object, place: Place, before: bool = False) -> None:
        """A graph of torch's is replayed; ``before``: captured ahead of what is examined."""
        frame = _torchs()
        if frame is None:
            return
        known = frame.f_locals
        if frame.f_code.co_name == "forward" and {"inputs", "static_input_surface", "ctx"} <= known.keys():
            count = known.get("len_user_args", 0)
            samples, given = known["static_input_surface"][:count], known["inputs"][:count]
            self._over.given(given, samples)
            self._before |= before
            pairs = enumerate(zip(samples, given, strict=False))
            unlearned = tuple(i for i, (a, b) in pairs if b.requires_grad and not a.requires_grad)
            noted = tuple(_Sample(storage_key(t), t.data_ptr(), t.requires_grad) for t in samples)
            call = _Call(noted, tuple(map(storage_key, given)), unlearned, place, _names_of(noted))
            for later in self._later.values():
                later.append(call)
            backward = inspect.unwrap(type(known["ctx"])._forward_cls.backward)
            key = id(getattr(cells_of(backward).get("bwd_graph"), "cell_contents", None))
            self._calls[key], self._later[key], self._writes[key] = call, [], []
        elif frame.f_code.co_name == "backward" and (ran := self._calls.get(id(graph))) is not None:
            if ran.unlearned:
                self._tell(_unlearned(ran))
            if _is_overwritten(graph, ran, self._later.get(id(graph), [])):
                self._tell(_shared(ran))
            touched = driver().touched(graph)
            for place in (place for at, place in self._writes.get(id(graph), []) if at in touched):
                self._tell(_written_over(place))

    def saw(self, name: str, tensors: list[torch.Tensor], written: Collection[int], place: Place) -> None:
        """An operation outside of all captures reads and writes; what torch copies to samples is known by its calls."""
        wrote = [tensor for tensor in tensors if id(tensor) in written]
        if not any(map(is_of_graphs, place.files)):
            self._over.read((t for t in tensors if id(t) not in written), name)
            self._over.wrote(wrote)
            if self._writes and not place.in_backward:
                new = [(tensor.untyped_storage().data_ptr(), place) for tensor in wrote if storage_key(tensor)]
                for known in self._writes.values():
                    known += new[: _MOST - len(known)]
        elif name == "copy_" and len(tensors) == _BOTH and (frame := _torchs()) is not None:
            names = frame.f_locals
            if frame.f_code.co_name == "forward" and "static_input_surface" in names:
                samples = names["static_input_surface"][: names.get("len_user_args", 0)]
                self._over.copied(samples, tensors[0], tensors[1], place)

    def ended(self) -> Iterator[Failure]:
        """A call that is examined is over; what is used again is told with the others."""
        self._over.ended(self._before)
        self._before = False
        yield from ()

    def failures(self) -> Iterator[Failure]:
        """All that was seen."""
        yield from self._told.values()

    def _tell(self, failure: Failure) -> None:
        self._told.setdefault((failure.code, failure.frame), failure)

    def _tell_used(self, place: Place, number: int, learns: bool, text: str) -> None:
        """A sample that is the program's data, too, has what a call has copied there."""
        node, frame = _graphed_at(place)
        sample = _sample_in(node, number)
        if text == AGAIN:
            files = (f for f in dict.fromkeys(code.co_filename for code, _ in place.stack) if not is_of_graphs(f))
            if node is None or sample is None or not any(is_gone_through_again(f, node, sample) for f in files):
                return
        own = ".detach().clone().requires_grad_()" if learns else ".clone()"
        after = f"the same, with a sample of its own: `sample{own}` in place of each `sample`"
        if node is not None and sample is not None:
            after = ast.unparse(node).replace(ast.unparse(sample), f"{ast.unparse(sample)}{own}", 1)
            if ast.unparse(node).count(ast.unparse(sample)) != 1:
                after = f"the same, with `{ast.unparse(sample)}{own}` for its sample `{ast.unparse(sample)}`"
        failure = BY_ID["graphed-sample-overwritten"].failure(text, frame)
        line = ast.unparse(node) if node is not None else (frame.text if frame is not None else "")
        self._tell(replace(failure, fix=f"before  {line}\nafter   {after}"))


def _torchs() -> FrameType | None:
    """The function of torch's that replays now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        if is_of_graphs(frame.f_code.co_filename) and frame.f_code.co_name in ("forward", "backward"):
            return frame
        frame = frame.f_back
    return None


def _is_overwritten(graph: object, ran: _Call, later: list[_Call]) -> bool:
    """Whether another callable has been given something else where the backward pass reads what this one was given."""
    touched = driver().touched(graph)
    for number, sample in enumerate(ran.samples):
        key, given = sample.key, ran.given[number]
        reads = not touched or sample.address in touched
        for call in later:
            others = (g for s, g in zip(call.samples, call.given, strict=True) if s.key == key)
            if key and reads and any(other != given for other in others):
                return True
    return False


def _unlearned(call: _Call) -> Failure:
    count = call.unlearned[0]
    node, frame = _graphed_at(call.place)
    text = f"argument {count + 1} requires gradients where it is called, and the sample does not: it gets no gradient"
    name = _name_of(node, call, call.samples[count])
    sample = f"`{name}.requires_grad_()` ahead of this line" if name else _made_there(node, count)
    after = f"the same, with samples that require gradients as what the callable is given does: {sample}"
    return replace(_told("graphed-arguments", text, frame, after), title=_NO_GRADIENT, cause=_WHY)


def _shared(call: _Call) -> Failure:
    node, frame = _graphed_at(call.place)
    sample = call.samples[0]
    name = _name_of(node, call, sample)
    learns = sample.learns or bool(call.unlearned)
    own = f"{name or 'sample'}.detach().clone().requires_grad_()" if learns else f"{name or 'sample'}.clone()"
    text = "callables share the memory of a sample: the backward pass of one reads what another was given after it"
    after = f"a sample of its own for each callable: `{own}` in place of `{name or 'sample'}`"
    return _told("graphed-sample-overwritten", text, frame, after)


def _written_over(place: Place) -> Failure:
    text = "the backward pass of a graphed callable reads this memory, and was to read what its call has"
    after = (
        "the same into a tensor that each callable has of its own: the backward pass of one that is called ahead of "
        "this line reads what the line writes over"
    )
    return replace(_told("graphed-sample-overwritten", text, place.frame(), after), title=_WRITTEN, cause=_OVER)


def _told(code: str, text: str, frame: Frame | None, after: str) -> Failure:
    failure = BY_ID[code].failure(text, frame)
    line = frame.text if frame is not None else ""
    return replace(failure, fix=f"before  {line}\nafter   {after}")


def _graphed_at(place: Place) -> tuple[ast.Call | None, Frame | None]:
    """The one line of the files around a call that has torch graph something; else that of the call."""
    found = []
    for file in dict.fromkeys(code.co_filename for code, _ in place.stack):
        tree = tree_of(file)
        if tree is None or is_of_graphs(file):
            continue
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_name(n.func) == GRAPHED]
        found += [(file, tree, n) for n in calls]
    if len(found) != 1:
        return None, place.frame()
    file, tree, node = found[0]
    inside = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and node in ast.walk(n)]
    name = max(inside, key=lambda n: n.lineno).name if inside else "<module>"
    return node, Frame(display_name(file), node.lineno, name, linecache.getline(file, node.lineno).strip())


def _sample_in(node: ast.Call | None, number: int) -> ast.expr | None:
    """What the line gives as one sample of one callable."""
    given = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "sample_args")] if node is not None else []
    elements = given[0].elts if given and isinstance(given[0], ast.Tuple) else []
    if number >= len(elements) or any(isinstance(each, (ast.Tuple, ast.Starred)) for each in elements):
        return None
    return elements[number]


def _made_there(node: ast.Call | None, number: int) -> str:
    """What becomes of a sample that is made in the line itself."""
    given = node.args[1] if node is not None and len(node.args) > 1 else None
    made = given.elts[number] if isinstance(given, ast.Tuple) and number < len(given.elts) else None
    if not isinstance(made, ast.Call):  # as of several callables, of which nobody knows here which it is
        return "`.requires_grad_()` of each sample of such an argument"
    return f"`{ast.unparse(made)}.requires_grad_()` for `{ast.unparse(made)}`"


def _names_of(samples: tuple[_Sample, ...]) -> dict[str, int]:
    users, keys = next(frames_of_the_user(), None), {sample.key for sample in samples} - {0}
    held = {} if users is None else {**users.f_globals, **users.f_locals}
    tensors = ((name, storage_key(value)) for name, value in held.items() if is_a(value, torch.Tensor))
    return {name: key for name, key in tensors if key in keys}


def _name_of(node: ast.Call | None, call: _Call, sample: _Sample) -> str:
    """What the line calls a sample; "" where that is not known."""
    given = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "sample_args")] if node is not None else []
    names = [n.id for each in given for n in ast.walk(each) if isinstance(n, ast.Name)]
    return next((name for name in names if call.names.get(name) == sample.key), "")
