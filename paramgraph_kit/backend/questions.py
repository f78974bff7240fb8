"""What code asks of its inputs, or does to them, of which a trace knows nothing: refused by name.

While a function is traced, stand-ins are in the place of its inputs. They have the shapes, layouts and graph of
gradients that the real tensors have, but neither ``.grad``, nor attributes of the user's, nor a place in memory. torch
answers such a question all the same, with what is true of the stand-in, and does to it what no graph would do again.
"""

from __future__ import annotations

import concurrent.futures
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import torch

from paramgraph_kit.backend.apart import Apart
from paramgraph_kit.backend.code_names import is_foreign
from paramgraph_kit.driver.tensors import extent
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

Tensor = torch.Tensor
_READ = ("grad", "grad_fn", "is_leaf", "retains_grad", "output_nr", "_version", "_base")
# The same, where torch asks for itself while it traces.
_READ_BY_USERS = tuple(
    name for name in ("_backward_hooks", "_post_accumulate_grad_hooks", "grad_dtype") if hasattr(Tensor, name)
)
_CALLED = (
    "detach_",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "_is_view",
    "storage",
    "untyped_storage",
    "storage_offset",
)
# What fails of a stand-in, and not of a real tensor: the traced code may catch that and go on.
_FAILS = ("numpy", "tolist", "data_ptr", "__array__", "__dlpack__", "__reduce_ex__", "__deepcopy__")
_SHOWN = ("__repr__", "__format__")  # a text of its values, which str() and print ask for as well
_ONCE = "a graph would not do that again"
_TORCHS = ("aten", "prims")
_OWN = "a trace has that of torch's own operations only: give state=[], pgk.parameterize(fn, state=[])"
# What other threads wait for or take is not undone: refused before it is done.
_SIGNALS = (
    *((threading.Event, name) for name in ("set", "clear")),
    *((queue.Queue, name) for name in ("put", "get")),
    *((concurrent.futures.Future, name) for name in ("set_result", "cancel")),
    *((threading.Thread, "start"), (threading.Barrier, "wait"), (concurrent.futures.ThreadPoolExecutor, "submit")),
)
_KINDS = {"_is_param": torch.nn.Parameter, "_is_buffer": torch.nn.Buffer}  # how isinstance knows them


def _is_resized(x: Any) -> bool:
    """Whether an operation has given a stand-in another shape, of which Python and views of it do not learn."""
    inner = getattr(x, "elem", None)
    return isinstance(x, Tensor) and isinstance(inner, Tensor) and inner.shape != x.shape


def _is_written_twice(function: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    """Whether tensors of a list that an operation writes have memory in common."""
    alias = function._schema.arguments[0].alias_info
    if alias is None or not alias.is_write or not args or not isinstance(args[0], (list, tuple)):
        return False
    spans = sorted(
        (Tensor.untyped_storage(x)._cdata, start, start + extent(x.shape, x.stride()))
        for x in args[0]
        if isinstance(x, Tensor) and x.numel()
        for start in [Tensor.storage_offset(x)]
    )
    return any(one[0] == other[0] and other[1] < one[2] for one, other in pairwise(spans))


@contextmanager
def _named_as_tensors(kind: type) -> Iterator[None]:
    """Let a kind of stand-ins have the name of what it stands for: ``str(type(x))`` is asked of no instance."""
    names = ("__name__", "__qualname__", "__module__")
    before = [getattr(kind, name) for name in names]
    for name in names:
        setattr(kind, name, getattr(Tensor, name))
    try:
        yield
    finally:
        for name, own in zip(names, before, strict=True):
            setattr(kind, name, own)


class Questions:
    """The inputs of one trace beside their stand-ins, and the first question that had no answer."""

    def __init__(self, stand_ins: Sequence[Tensor], inputs: Sequence[Tensor], looks_at_all: bool = False) -> None:
        self._stand_ins = stand_ins  # ids stay their own while these live
        self._inputs = {id(x): y for x, y in zip(stand_ins, inputs, strict=True)}
        self._looks_at_all = looks_at_all  # attributes of some objects
        self._refused: RefusedError | None = None
        self._thread = threading.get_ident()
        self._apart = Apart(stand_ins)
        self._redrawn = 0  # checkpoints under way that draw other random numbers in the backward
        self.absent: set[str] = set()  # attributes that the user's code looked for in an input, and that it has not

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear what the block asks.

        Raises:
            RefusedError: it asked what no trace knows.
        """
        kinds = {type(x) for x in self._stand_ins} - {Tensor, torch.nn.Parameter}
        with ExitStack() as stack:
            for kind in kinds:
                if kind is torch_name("FunctionalTensor"):
                    stack.enter_context(_named_as_tensors(kind))
                    stack.enter_context(mock.patch.object(kind, "elem", self._inner, create=True))
                for name, answer in self._answers().items():
                    stack.enter_context(mock.patch.object(kind, name, answer, create=True))
                for name in _FAILS:
                    failing = self._failing(name, getattr(kind, name))
                    stack.enter_context(mock.patch.object(kind, name, failing, create=True))
                for name in _SHOWN:
                    stack.enter_context(mock.patch.object(kind, name, self._showing(getattr(kind, name)), create=True))
            modes = torch_name("FunctionalTensorMode")
            stack.enter_context(mock.patch.object(modes, "__torch_dispatch__", self._resizing(modes)))
            again = torch_name("_checkpoint_without_reentrant_generator")
            module = sys.modules[again.__module__]
            stack.enter_context(mock.patch.object(module, again.__name__, self._checkpointing(again)))
            for kind, name in _SIGNALS:
                stack.enter_context(mock.patch.object(kind, name, self._signalling(kind, name)))
            stack.enter_context(mock.patch.object(torch_name("decompositions"), "_rnn_helper", self._recurrent()))
            yield
        if self._refused is not None:  # the block caught what was raised in it
            raise self._refused

    def returned(self, results: Sequence[Any]) -> None:
        """Raise RefusedError where a result is not what it is in eager."""
        if (wrong := self._apart.stale(results)) is not None:
            raise self._refuse(*wrong)

    def _answers(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: property(self._reading(name)) for name in _READ}
        found |= {name: property(self._reading(name, users=True)) for name in _READ_BY_USERS}
        found |= {name: self._calling(name) for name in _CALLED}
        if self._looks_at_all:
            found["__getattribute__"] = self._looking
        return found | {
            "requires_grad_": self._requiring(),
            "retain_grad": self._retaining(),
            "is_inference": self._inference(),
            "__dir__": self._listing,
            "__getattr__": self._missing,
            "__setattr__": self._setting,
        }

    def _refuse(self, what: str, why: str = "a trace knows nothing of that") -> RefusedError:
        self._refused = self._refused or RefusedError(Reason("not-traceable", f"it {what}: {why}"))
        return self._refused

    def _mine(self) -> bool:
        """Whether it is this trace that asks: what is answered here is answered to every thread."""
        return threading.get_ident() == self._thread

    def _reading(self, name: str, *, users: bool = False) -> Callable[[Tensor], Any]:
        plain: Any = getattr(Tensor, name)

        def read(x: Tensor) -> Any:
            if id(x) in self._inputs and not (users and is_foreign(sys._getframe(1).f_code.co_filename)):
                raise self._refuse(f"reads .{name} of an input")
            return plain.__get__(x)

        return read

    def _calling(self, name: str) -> Callable[..., Any]:
        plain: Any = getattr(Tensor, name)

        def call(x: Tensor, *args: Any, **named: Any) -> Any:
            if id(x) in self._inputs:
                raise self._refuse(f"calls .{name}() of an input")
            return plain(x, *args, **named)

        return call

    def _failing(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: Tensor, *args: Any, **named: Any) -> Any:
            try:
                return plain(x, *args, **named)
            except Exception as error:
                if not self._mine():
                    raise
                raise self._refuse(f"calls .{name}() of a tensor", "a trace has no values") from error

        return call

    def _showing(self, plain: Callable[..., str]) -> Callable[..., str]:
        def show(x: Tensor, *args: Any, **named: Any) -> str:
            if self._mine() and not is_foreign(sys._getframe(1).f_code.co_filename):
                raise self._refuse("makes a text of a tensor", "a trace has no values")
            return plain(x, *args, **named)

        return show

    def _signalling(self, kind: type, name: str) -> Callable[..., Any]:
        plain = getattr(kind, name)

        def signal(thing: Any, *args: Any, **named: Any) -> Any:
            if self._mine() and not is_foreign(sys._getframe(1).f_code.co_filename):
                text = f"the call uses {kind.__name__}.{name}, which a graph would not do again"
                self._refused = self._refused or RefusedError(Reason("side-effect", text))
                raise self._refused
            return plain(thing, *args, **named)

        return signal

    def _resizing(self, modes: type) -> Callable[..., Any]:
        plain: Callable[..., Any] = modes.__torch_dispatch__  # type: ignore[attr-defined]  # torch's

        def dispatch(mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self._redrawn and torch.Tag.nondeterministic_seeded in function.tags and self._mine():
                text = "draws random numbers in a checkpoint with preserve_rng_state=False"
                raise self._refuse(text, "its backward draws others, a trace the same")
            try:
                result = plain(mode, function, types, args, kwargs)
            except (NotImplementedError, RefusedError) as error:
                if function._schema.is_mutable and function.namespace not in _TORCHS and self._mine():
                    self._refused = None  # what torch asked of the argument meanwhile is not the user's
                    raise self._refuse(f"calls {function._schema.name}, which writes its arguments", _OWN) from error
                raise
            named = (kwargs or {}).values() if function._schema.is_mutable and self._mine() else ()
            if any(_is_resized(x) for x in named):
                raise self._refuse("gives out= a tensor of another shape", "a trace goes on with the old one")
            if function._schema.is_mutable and self._mine() and _is_written_twice(function, args):
                raise self._refuse("writes to tensors that overlap with one operation", "a trace writes each by itself")
            if self._mine() and (wrong := self._apart.wrong(function, args, kwargs or {}, result)) is not None:
                raise self._refuse(*wrong)
            return result

        return dispatch

    def _checkpointing(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def checkpoint(function: Any, preserve: bool = True, *args: Any, **named: Any) -> Iterator[None]:
            counts = not preserve and torch.is_grad_enabled() and self._mine()
            self._redrawn += counts
            try:
                yield from plain(function, preserve, *args, **named)
            finally:
                self._redrawn -= counts

        return checkpoint

    def _requiring(self) -> Callable[..., Any]:
        def requires_grad_(x: Tensor, requires_grad: bool = True) -> Tensor:
            known = self._inputs.get(id(x))
            if known is not None and known.requires_grad != requires_grad:
                raise self._refuse("changes .requires_grad of an input", _ONCE)
            return Tensor.requires_grad_(x, requires_grad)

        return requires_grad_

    def _retaining(self) -> Callable[..., Any]:
        def retain_grad(x: Tensor) -> None:
            known = self._inputs.get(id(x))
            if known is not None and not known.is_leaf:
                raise self._refuse("calls .retain_grad() of an input", _ONCE)
            Tensor.retain_grad(x)

        return retain_grad

    def _inference(self) -> Callable[[Tensor], bool]:
        def is_inference(x: Tensor) -> bool:
            known = self._inputs.get(id(x))
            return Tensor.is_inference(x if known is None else known)

        return is_inference

    @property
    def _listing(self) -> Callable[[Tensor], Any]:
        def listing(x: Tensor) -> Any:
            if self._mine() and not is_foreign(sys._getframe(1).f_code.co_filename):
                raise self._refuse("lists the attributes of a tensor")
            return Tensor.__dir__(x)  # type: ignore[no-untyped-call]

        return listing

    @property
    def _inner(self) -> property:
        """What a stand-in has inside, which no tensor of the user's has."""

        def read(x: Tensor) -> Any:
            if "elem" not in vars(x) or (self._mine() and not is_foreign(sys._getframe(1).f_code.co_filename)):
                raise AttributeError("elem")
            return vars(x)["elem"]

        def write(x: Tensor, inner: Tensor) -> None:
            vars(x)["elem"] = inner

        return property(read, write)

    @property
    def _missing(self) -> Callable[[Tensor, str], Any]:
        def missing(x: Tensor, name: str) -> Any:
            known = self._inputs.get(id(x))
            if known is not None and name in _KINDS:
                return isinstance(known, _KINDS[name])
            if known is not None and name in vars(known) and not name.startswith("_dynamo_"):
                raise self._refuse(f"reads .{name}, an attribute that somebody has given an input")
            if known is not None and not is_foreign(sys._getframe(1).f_code.co_filename):
                self.absent.add(name)
            raise AttributeError(f"'{type(x).__name__}' object has no attribute {name!r}")

        return missing

    @property
    def _looking(self) -> Callable[[Tensor, str], Any]:
        def look(x: Tensor, name: str) -> Any:
            if name == "__dict__" and id(x) in self._inputs and not is_foreign(sys._getframe(1).f_code.co_filename):
                raise self._refuse("looks at all attributes of an input")
            return object.__getattribute__(x, name)

        return look

    @property
    def _setting(self) -> Callable[[Tensor, str, Any], None]:
        def set_it(x: Tensor, name: str, value: Any) -> None:
            if id(x) in self._inputs and name != "_backward_hooks":  # which torch does where an input is written
                raise self._refuse(f"assigns .{name} of an input", _ONCE)
            if name == "data" and self._mine():
                raise self._refuse("assigns .data of a tensor", _ONCE)
            if name in (*_READ, *_READ_BY_USERS):
                getattr(Tensor, name).__set__(x, value)
            else:
                object.__setattr__(x, name, value)

        return set_it

    def _recurrent(self) -> Callable[..., Any]:
        plain: Callable[..., Any] = torch_name("decompositions")._rnn_helper

        def run(
            x: Any, hidden: Any, params: Any, biases: Any, layers: int, dropout: float, train: bool, *rest: Any
        ) -> Any:
            if dropout and train and layers > 1 and self._mine():
                raise self._refuse("drops between layers of one recurrent module", "torch's tracing leaves that out")
            return plain(x, hidden, params, biases, layers, dropout, train, *rest)

        return run
