"""A compiled model whose calls skip what ordinary ones do around the launch; the ordinary way stays for all others."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paramgraph_kit.backend.call_state import is_heard
from paramgraph_kit.backend.direct import calls as direct
from paramgraph_kit.backend.direct.calls import DirectCall
from paramgraph_kit.backend.direct.located import MISSED
from paramgraph_kit.backend.frozen.frame import Frame, frame_of, obstacle_in
from paramgraph_kit.backend.frozen.guards import (
    Inputs,
    Member,
    children_of,
    laid_out,
    members_of,
    unmoved,
    without_hooks,
)
from paramgraph_kit.backend.frozen.source import HEEDED, call_of, launch_lines, returned
from paramgraph_kit.driver.native.build import prepare
from paramgraph_kit.trace.errors import PromiseError

MODES = ("full", "dynamo", "inputs")
ATTEMPTS = 16  # ordinary calls that are watched; a model that has shown nothing to freeze by then is left as it is
FORMS = 8  # kinds of calls that are kept
CHECKED = 256  # with guards="inputs", every so many calls what was promised is checked


@dataclass(frozen=True, slots=True)
class _Watched:
    """An ordinary call and the one direct call that it made."""

    call: DirectCall
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Frozen:
    """One kind of calls."""

    call: Callable[[tuple[Any, ...], dict[str, Any]], Any]  # MISSED for a call of another kind
    unmoved: Callable[[], bool]  # whether the members that it was made with are where they were
    code: weakref.ref[Any]  # Dynamo's for such calls, until that is discarded


class FrozenCalls:
    """Calls of one compiled model; ``reason`` says why they stay ordinary, once that is known."""

    def __init__(self, ordinary: Callable[..., Any], compiled: Any, mode: str) -> None:
        self._ordinary, self._compiled, self.mode = ordinary, compiled, mode
        self._frozen: list[_Frozen] = []
        self._attempts = 0
        prepare()
        self.reason: str | None = None

    def __repr__(self) -> str:
        return f"FrozenCalls({len(self._frozen)} kinds of calls, guards={self.mode!r})"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """One call of the model."""
        for frozen in self._frozen:
            result = frozen.call(args, named)
            if result is not MISSED:
                return result
        if self._attempts >= ATTEMPTS:
            return self._ordinary(*args, **named)
        return self._learn(args, named)

    def _learn(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._attempts += 1
        with _watching() as heard:
            result = self._ordinary(*args, **named)
        if len(heard) == 1:
            found = self._freeze(heard[0], args, named, result)
            if isinstance(found, str):
                self.reason = found
            else:
                # The newest first; those whose members have moved would hold the old ones for ever.
                self._frozen = [found, *[each for each in self._frozen if each.unmoved()][: FORMS - 1]]
                self.reason = None
        return result

    def _freeze(self, watched: _Watched, args: Sequence[Any], named: Mapping[str, Any], result: Any) -> _Frozen | str:
        """A function for calls like this one, or why there is none."""
        frame = frame_of(self._compiled)
        if frame is None:
            return "what Dynamo evaluates at a call cannot be told"
        names = frame.names(args, list(named))
        if names is None:
            return "the function takes its arguments in a way that is not followed"
        scope: dict[str, Any] = {"f": frame.function, "m": frame.module, "args": args, "named": named}
        given = {f"a{k}": value for k, value in enumerate(args)}
        given |= {f"n{k}": value for k, value in enumerate(named.values())}
        entry = frame.entry()
        local = f"{{{', '.join(f'{name!r}: {value}' for name, value in names.items())}}}"
        if entry is None or not entry.guard_manager.check(eval(local, scope | given)):  # from parameters' names only
            return "the guards of Dynamo's code are not found"
        if (why := obstacle_in(entry.code)) is not None:
            return why
        modules = _modules(frame)
        values, members = _places(watched.arguments, given, modules, frame.function.__globals__)
        if values is None:
            return "a tensor that the graph takes is neither an argument nor a member of the module"
        given_back = returned(result, watched.results, scope)
        if given_back is None:
            return "what the function returns is not what its graph returns"
        scope |= {"check": entry.guard_manager.root.check, "MISSED": MISSED}
        scope |= {"unmoved": unmoved(members, children_of(modules)), "laid_out": laid_out(members)}
        tests = self._tests(frame, given, local, scope)
        if tests is None:
            return "an argument is of a kind that may change while it is the same object, such as a list"
        body = _body(watched, values, scope)
        if body is None:
            return "the graph is not launched at each call"
        call = call_of(args, named, tests, body, given_back, scope)
        return _Frozen(call, scope["unmoved"], weakref.ref(entry.code, self._discarded))

    def _discarded(self, code: weakref.ref[Any]) -> None:
        """Dynamo has let its code go, as ``torch._dynamo.reset()`` does: the guards go with it, so learn anew."""
        self._frozen = [each for each in self._frozen if each.code is not code]
        self._attempts = 0

    def _tests(self, frame: Frame, given: Mapping[str, Any], local: str, scope: dict[str, Any]) -> list[str] | None:
        """Expressions over the arguments' names that must hold."""
        tests = []
        scope["is_heard"] = is_heard
        if frame.module is not None:
            scope["without_hooks"] = without_hooks(frame.module)
            tests.append("without_hooks()")
            if not frame.wrapped:
                scope |= {"kind": type(frame.module), "own": vars(frame.module)}
                tests.append("m.__class__ is kind and kind.forward is f and 'forward' not in own")
        scope["code"] = frame.function.__code__
        tests.append("f.__code__ is code")
        full = [*tests, "unmoved()", "laid_out()", f"check({local})"]
        if self.mode == "dynamo":
            return ["not is_heard()", *full]
        if (found := Inputs(given).test()) is None:
            return None
        inputs, more = found
        scope |= more
        names = ", ".join(given)
        exec(f"def kept({names}): return {' and '.join(full)}", scope)  # from parameters' names only
        kept, numbers = scope["kept"], itertools.count(1)

        def promised(*values: Any) -> bool:
            if next(numbers) % CHECKED == 0 and not kept(*values):
                raise PromiseError(
                    f"guards='inputs' promises that the model stays as it is, and since at most {CHECKED} calls it is "
                    "not: a parameter was replaced or moved, or something else that Dynamo guards has changed; "
                    "results since then may be wrong. Compile it again after such a change, or use guards='dynamo'"
                )
            return True

        scope["promised"] = promised
        return ["not is_heard()", inputs, f"promised({names})"]


def _modules(frame: Frame) -> list[nn.Module]:
    """The modules that a function names: its own, those in its closure and among its globals."""
    function = frame.function
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    reached = [frame.module, *cells, *(function.__globals__.get(name) for name in function.__code__.co_names)]
    return [each for each in reached if isinstance(each, nn.Module)]


def _places(
    arguments: Sequence[Any], given: Mapping[str, Any], modules: Sequence[nn.Module], scope: dict[str, Any]
) -> tuple[list[str | Member] | None, list[Member]]:
    """Where each of the graph's inputs comes from: an argument's name, or a member of a module or of globals."""
    by_identity = {id(value): name for name, value in given.items() if isinstance(value, torch.Tensor)}
    known = members_of(modules, [scope])
    places: list[str | Member] = []
    members: list[Member] = []
    for tensor in arguments:
        if id(tensor) in by_identity:
            places.append(by_identity[id(tensor)])
        elif id(tensor) in known:
            places.append(known[id(tensor)][0])
            members += known[id(tensor)]  # one tensor may be kept in several places, tied weights for one
        else:
            return None, []
    return places, members


def _body(watched: _Watched, values: Sequence[str | Member], scope: dict[str, Any]) -> list[str] | None:
    """Source that runs the graph: a launch with static members left out, or the direct call."""
    recipe = watched.call.inference
    if recipe is not None and all(each.view is None for each in recipe.takes):
        names = [value if isinstance(value, str) else None for value in values]
        return launch_lines(watched.call, watched.arguments, names, scope)
    scope["direct"] = watched.call
    if any(isinstance(value, Member) for value in values):
        scope["o"], scope["k"] = ([getattr(value, name, None) for value in values] for name in ("owner", "key"))
    taken = [value if isinstance(value, str) else f"o[{n}][k[{n}]]" for n, value in enumerate(values)]
    return [HEEDED, f" made = direct.run(({''.join(f'{each}, ' for each in taken)}))"]


@contextmanager
def _watching() -> Iterator[list[_Watched]]:
    """The direct calls of this thread while the block runs."""
    heard: list[_Watched] = []
    thread = threading.get_ident()

    def tell(call: DirectCall, args: Sequence[Any], results: Sequence[Any]) -> None:
        if threading.get_ident() == thread:
            heard.append(_Watched(call, tuple(args), tuple(results)))

    direct.observers.append(tell)
    try:
        yield heard
    finally:
        direct.observers.remove(tell)


class _FrozenModule(torch._dynamo.OptimizedModule):
    """What ``torch.compile`` returns for a module, with frozen calls."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        """One call of the model."""
        return self.__dict__["_frozen_calls"](*args, **named)

    def __reduce__(self) -> Any:
        return _again, (self._orig_mod, self.dynamo_ctx, self.__dict__["_frozen_calls"].mode)


def _again(model: nn.Module, context: Any, mode: str) -> Any:
    """A copy: it shares nothing with what it was copied from, and freezes calls of its own."""
    return freeze_calls(torch._dynamo.OptimizedModule(model, context), mode)


def freeze_calls(compiled: Any, mode: str) -> Any:
    """``compiled``, what ``torch.compile`` returned, with frozen calls; with ``mode="full"`` as it is."""
    if mode == "full":
        return compiled
    if not isinstance(compiled, torch._dynamo.OptimizedModule):
        return FrozenCalls(compiled, compiled, mode)
    plain = type(compiled).__call__
    compiled.__dict__["_frozen_calls"] = FrozenCalls(lambda *a, **k: plain(compiled, *a, **k), compiled, mode)
    compiled.__class__ = _FrozenModule
    return compiled
