"""The verb ``diagnose``: from an exception, from a function, or from a compiled model."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

from paramgraph_kit.doctor.diagnosis import Diagnosis
from paramgraph_kit.trace.errors import ParamgraphError
from paramgraph_kit.trace.wording import kind_text
from paramgraph_kit.verbs._behind_failed import behind_failed
from paramgraph_kit.verbs._captured_lazily import asked_as_first
from paramgraph_kit.verbs._fixing import ENDS, fixed
from paramgraph_kit.verbs._own_captures import (
    add_frozen,
    as_after_a_call,
    headed,
    is_launch,
    leave_around,
    of_captures,
    told_as_launch,
)

if TYPE_CHECKING:
    from paramgraph_kit.doctor import FailureClass
    from paramgraph_kit.doctor.observe.examination import Examination
    from paramgraph_kit.doctor.observe.own_regions import Region
    from paramgraph_kit.doctor.restore.host_state import HostState
    from paramgraph_kit.trace.model import Failure

LIMIT_S = 30.0
CHILD_S = 60.0  # a child process needs seconds for imports alone
LEGACY = "legacy-stream"


class Diagnose:
    """Why a capture fails, at which line of yours, and what to write instead.

    Give it what a failed capture raised, or a function with its arguments, or a compiled model.
    ``diagnose.catalogue()`` lists all that it knows, ``diagnose.capture(graph)`` captures like ``torch.cuda.graph`` and
    cleans up after a failure, ``diagnose.repair()`` cleans up after one of somebody else's.

    Examples:
        >>> diagnose(RuntimeError("CUDA graphs must be captured on a non-default stream."))
        Diagnosis(default-stream: The capture was begun on the default stream)
    """

    def __call__(
        self,
        what: Any,
        /,
        *args: Any,
        limit_s: float = LIMIT_S,
        confirm: bool = False,
        fix: bool = False,
        **kwargs: Any,
    ) -> Diagnosis:
        """All that is wrong with a capture.

        Args:
            what: an exception; or a function, which is called eagerly twice or a few times more; or what
                ``torch.compile`` returned.
            limit_s: for all calls of a function together, in seconds.
            confirm: also capture the function for real, in a child process.
            fix: also rewrite its lines where that is sure, try them on moved inputs against the function as it is,
                eagerly and captured, and show them as a diff. The function is borrowed for that; no file is written.
                Where that is not enough for one graph, the function is compiled and tried as well, whose pieces are.

        Raises:
            ParamgraphError: ``what`` is none of these, or a capture is under way.

        Examples:
            >>> import torch
            >>> import paramgraph_kit as pgk
            >>> def f(x):
            ...     return x * x.sum().item()
            >>> pgk.diagnose(f, torch.ones(4, device=pgk.device())).codes
            ('sync-item',)
            >>> print(pgk.diagnose(f, torch.ones(4, device=pgk.device()), fix=True).fix)  # doctest: +SKIP
            --- model.py
            +++ model.py (not written)
            @@ -1,2 +1,2 @@
             def f(x):
            -    return x * x.sum().item()
            +    return x * x.sum().detach()
              tried  ...
        """
        if issubclass(type(what), BaseException):
            return _from_exception(what)
        from paramgraph_kit.backend.watch import aside
        from paramgraph_kit.doctor.restore.iterators import repeatable
        from paramgraph_kit.driver.collection import only_new

        try:
            with aside(), _untold(), only_new() if fix else nullcontext(), repeatable(what, args, kwargs) as given:
                args, kwargs, state = given
                found = self._of(what, args, kwargs, limit_s, confirm, fix, state)
            return _told(found)
        except (ParamgraphError, KeyboardInterrupt):
            raise
        except BaseException as error:  # what it is answers as it likes, and not only where it is called
            return _told(_ended(what, error))

    def _of(
        self,
        what: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limit_s: float,
        confirm: bool,
        fix: bool,
        state: HostState | None = None,
    ) -> Diagnosis:
        """The same; ``state`` is what it leads to, where that is known."""
        given = what
        if _is_compiled(what):
            from paramgraph_kit.doctor.observe.trees import original_of

            found = _from_compiled(what, args, kwargs, limit_s)
            if fix and found and (args or kwargs) and original_of(what) is not what:
                found.fix = self._of(original_of(what), args, kwargs, limit_s, False, True).fix
            return found
        if getattr(type(what), "_paramgraph_owner", False):  # a step made by parameterize
            what = what.__wrapped__
        if not callable(what):
            raise ParamgraphError(
                f"diagnose takes the exception that a failed capture raised, not {kind_text(what)}: "
                "catch it with 'except Exception as error' and pass error; or pass a function and its arguments"
            )
        called = _as_called(what)
        found, regions, inside = _from_function(
            called, args, kwargs, limit_s, confirm, state if called is given else None
        )
        what = called
        if regions is not None:
            failed = {r.code.co_filename for r in regions if any(not each.whole for each in regions)}
            found = of_captures(self._of, found, regions, limit_s, fix)
            if failed:
                known = {id(f) for f in found.failures}
                behind_failed(self._of, what, (args, kwargs), found, failed, limit_s)
                if found.fix is not None:
                    leave_around(found.fix, (f for f in found.failures if id(f) not in known))
            return found
        if inside:
            called = partial(as_after_a_call, what, args, kwargs, limit_s)
            add_frozen(self._of, found, inside, limit_s, fix, called)
        found = asked_as_first(self._of, found, what, args, kwargs, limit_s, fix)
        if not found or found.state:
            return found
        from paramgraph_kit.rewrite.own_lines import in_own_lines

        if is_launch(found):  # its results are those of its graph, which is wrong: nothing is tried against them
            found.failures = told_as_launch(what, args, kwargs, found.failures)
            if found.fix is None and found.fix_inside is not None and found.fix_inside.diff:
                found.fix = found.fix_inside  # the one diff that is shown
            return found
        with redirect_stdout(io.StringIO()):  # it has printed when looked at
            by_hand = fixed(found, what, args, kwargs) if fix else []
        own = tuple(in_own_lines(what, args, kwargs, found.failures, by_hand, found.fix))
        found.untried = own != found.failures and not fix
        found.failures = own
        return found

    def catalogue(self) -> tuple[FailureClass, ...]:
        """Every known class of failure, each with a program that fails so and one that does not.

        Examples:
            >>> len(diagnose.catalogue()) > 60
            True
        """
        from paramgraph_kit.doctor import catalogue

        return catalogue()

    def capture(self, graph: Any, *, lines: bool = False, **options: Any) -> AbstractContextManager[Any]:
        """Capture like ``torch.cuda.graph``; after a failure the process stays usable, and the error says why.

        Args:
            graph: a ``CUDAGraph``.
            lines: note which line of yours records which node, for ``explore(graph)``; every operation takes longer.
            options: those of ``torch.cuda.graph``.

        Raises:
            CaptureError: the capture failed; its text names your line and the fix.
            ParamgraphError: ``graph`` is none.

        Examples:
            >>> import torch
            >>> import paramgraph_kit as pgk
            >>> x, g = torch.ones(2, device=pgk.device()), pgk.cuda.CUDAGraph()
            >>> with pgk.diagnose.capture(g):
            ...     y = x * 2
            >>> g.replay()
            >>> y.tolist()
            [2.0, 2.0]
        """
        from paramgraph_kit.doctor.restore.repair import capture
        from paramgraph_kit.verbs._device import device

        if not hasattr(graph, "capture_begin"):
            raise ParamgraphError(f"diagnose.capture takes a CUDAGraph, not {kind_text(graph)}")
        device()
        return _noted(capture(graph, lines=lines, **options))

    def repair(self, error: BaseException | None = None) -> tuple[str, ...]:
        """Put stream, random generator and allocator right after failed captures; returns what was wrong.

        Args:
            error: what the failed capture raised; the last exception that was shown if left out.

        Raises:
            UnsupportedError: only a new process helps, or another capture is under way.

        Examples:
            >>> left = diagnose.repair()  # "the current stream is still the one that captured", ...
            >>> diagnose.repair()
            ()
        """
        from paramgraph_kit.doctor.restore.repair import repair

        return repair(error)

    def __repr__(self) -> str:
        return "<paramgraph_kit.diagnose: an exception, a function or a compiled model>"


diagnose = Diagnose()


@contextmanager
def _noted(capture: AbstractContextManager[Any]) -> Iterator[Any]:
    """The same, and who watches is told of a failure at once."""
    from paramgraph_kit.backend.watch import note_failure
    from paramgraph_kit.trace.errors import CaptureError

    try:
        with capture as graph:
            yield graph
    except CaptureError as error:
        note_failure(error.failure)
        raise


def _untold() -> AbstractContextManager[None]:
    """What we try ourselves warns nobody of what the simulated device does not know: notes tell of the user's calls."""
    from paramgraph_kit.driver.select import driver

    doubt = driver().doubt
    return doubt(lambda *_: None) if doubt is not None else nullcontext()


def _told(found: Diagnosis) -> Diagnosis:
    """The same, and who watches keeps it."""
    from paramgraph_kit.backend.watch import note_failure

    for failure in found.failures:
        note_failure(failure)
    return found


def _from_exception(error: BaseException) -> Diagnosis:
    from paramgraph_kit.doctor.restore.repair import process_state
    from paramgraph_kit.verbs._explained import explained

    return Diagnosis([explained(error)], state=process_state(error))


def _ended(what: Any, error: BaseException) -> Diagnosis:
    """What is told where what was given raised before or after its calls."""
    from paramgraph_kit.doctor.observe.one_call import raised

    return Diagnosis([raised(error, 1)], f"{_name_of(what)}: it could not be examined to the end")


def _name_of(what: Any) -> str:
    """What is given is called so."""
    from paramgraph_kit.doctor.explain.naming import name_of

    return name_of(what)


def _as_called(what: Any) -> Any:
    """What is called; of an object that has an answer to whatever it is asked for, its method, which has none."""
    try:
        answers = "__wrapped__" not in vars(what) and what.__wrapped__ is not None
    except (AttributeError, TypeError):  # a function, or an object without such answers or attributes
        return what
    except Exception:
        answers = True
    return MethodType(type(what).__call__, what) if answers else what


def _is_compiled(what: Any) -> bool:
    if type(what).__name__ in ("OptimizedModule", "Parameterized"):
        return True
    try:
        return "_torchdynamo_orig_callable" in object.__getattribute__(what, "__dict__")
    except AttributeError:
        return False


def _from_compiled(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], limit_s: float) -> Diagnosis:
    from paramgraph_kit.backend.report import make_report, shared_with
    from paramgraph_kit.doctor.explain.reasons import each_once, failures_of
    from paramgraph_kit.doctor.observe.trees import original_of

    report, notes, failed = make_report(model), [], None
    failures: list[Failure] = []
    if not report.rows and (args or kwargs):
        failures, copy, failed = _of_copies(model, args, kwargs)
        report = make_report(copy)
        notes = ["a copy was compiled with backend='paramgraph', whose partitions are those of Inductor"]
        if failures:
            notes.insert(0, "what keeps CUDAGraph Trees from graphs was seen in three calls of a copy")
    if not report.rows and not report.reasons and not failures and failed is None:
        raise ParamgraphError(
            "nothing of this model is compiled with backend='paramgraph' yet: call it once, or pass its arguments, "
            "diagnose(model, *args)"
        )
    failures = each_once([*failures, *failures_of(report.reasons)])
    if (args or kwargs) and original_of(model) is not model:
        failures = _as_a_function(model, args, kwargs, limit_s, failures)
    if failed is not None:
        failures += _not_compiled(failed, failures)
    notes += [note] if (note := shared_with(model)) else []
    if (most := max((row.executables for row in report.rows), default=0)) > 1:
        notes.append(
            f"up to {most} graphs of one partition, one for each set of shapes and plain numbers: a call with another "
            "set runs ungraphed once and is captured then"
        )
    graphed = sum(row.graphed for row in report.rows)
    count = len(failures)
    heading = (
        f"{graphed} of {len(report.rows)} partitions are graphs; {count or 'no'} reason{'' if count == 1 else 's'} "
        f"against more ({report.trace.source.label()})"
    )
    return Diagnosis(failures, heading, notes)


def _as_a_function(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], limit_s: float, failures: list[Failure]
) -> list[Failure]:
    """The same, where what a capture of the function would refuse is told as for the function itself.

    What such a capture would freeze is no problem of a compiled model, which is guarded, and traced again.
    """
    from paramgraph_kit.doctor.known.catalogue import BY_ID
    from paramgraph_kit.doctor.observe.source_lines import lines_of
    from paramgraph_kit.doctor.observe.trees import original_of
    from paramgraph_kit.rewrite.own_lines import in_own_lines
    from paramgraph_kit.verbs._device import device

    device()
    original = original_of(model)
    found = _examined(original, args, kwargs, limit_s).problems
    refused = [f for f in found if (not BY_ID[f.code].silent or f.code in ENDS) and not _is_compiled_too(f)]
    lines = lines_of(refused)
    if any(f.code == "optimizer-not-capturable" for f in refused):  # of its counts on the CPU nothing else is to say
        failures = [f for f in failures if f.frame or f.code not in ("cpu-op", "device-copy")]
    own = in_own_lines(original, args, kwargs, refused)
    return [*own, *(f for f in failures if f.frame is None or (f.frame.file, f.frame.line) not in lines)]


def _examined(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], limit_s: float, state: HostState | None = None
) -> Examination:
    """What calls of a function show, without what a notebook still holds of its own calls."""
    from paramgraph_kit.doctor.observe.examine import examine
    from paramgraph_kit.doctor.observe.places import outside
    from paramgraph_kit.driver.collection import circles
    from paramgraph_kit.verbs._left_over import let_go

    caller = outside()
    found = examine(function, args, kwargs, limit_s=limit_s, caller=caller, others=True, state=state)
    if any(failure.code == LEGACY for failure in found.problems) and (gone := let_go()):
        del found  # with what its calls returned
        circles()
        with redirect_stdout(io.StringIO()):  # as the first time
            found = examine(function, args, kwargs, limit_s=limit_s, caller=caller, others=True)
        found.notes = [gone, *found.notes]
    return found


def _is_compiled_too(failure: Failure) -> bool:
    """Whether a compiled function has it otherwise: torch.cond and while_loop ask the host in eager only."""
    asked = re.search(r"\b(cond|while_loop)\(", failure.frame.text) if failure.frame is not None else None
    return failure.code == "data-dependent-branch" and asked is not None


def _of_copies(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Failure], Any, BaseException | None]:
    """What goes wrong in a copy compiled alike, one compiled with our backend, and what its call raised.

    Nothing of the caller's changes, also where a whole step was compiled, which has no copy: its call trains, and
    Dynamo moves what its optimizer counts.
    """
    import torch

    from paramgraph_kit.backend import paramgraph
    from paramgraph_kit.doctor.observe.trees import apart, copied, failures_of_trees, original_of, uses_trees
    from paramgraph_kit.doctor.restore.surroundings import all_kept
    from paramgraph_kit.verbs._device import device

    device()
    original = original_of(model)
    failures: list[Failure] = []
    if uses_trees(model):
        with all_kept(original, args, kwargs), redirect_stdout(io.StringIO()):
            failures = failures_of_trees(model, args, kwargs)
    compiled: Any = torch.compile(apart(original), backend=paramgraph)
    try:
        with all_kept(original, args, kwargs), redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where they are errors, Dynamo fails at its own
            compiled(*copied(args), **copied(kwargs))
    except (ParamgraphError, KeyboardInterrupt):
        raise
    except BaseException as error:
        return failures, compiled, error
    return failures, compiled, None


def _not_compiled(error: BaseException, told: list[Failure]) -> list[Failure]:
    """What the call of a compiled copy raised, where nothing that is told says so already."""
    from paramgraph_kit.doctor.explain.exception import explain
    from paramgraph_kit.doctor.known.catalogue import BY_ID
    from paramgraph_kit.doctor.known.evidence import first_line

    found = explain(error)
    if any(f.code in ENDS or (f.code == found.code and f.frame == found.frame) for f in told):
        return []
    text = f"{type(error).__name__}: {first_line(str(error))}"
    return [found if found.code != "unknown" else BY_ID["not-traceable"].failure(text, found.frame)]


def _from_function(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    limit_s: float,
    confirm: bool,
    walked: HostState | None,
) -> tuple[Diagnosis, list[Region] | None, list[Region]]:
    """What was found; what the function captures itself where it does so in each call; and what it replays only."""
    from paramgraph_kit.driver.select import driver
    from paramgraph_kit.verbs._device import device

    device()
    found = _examined(function, args, kwargs, limit_s, walked)
    problems, notes = found.problems, found.notes
    state = "the device refuses every further call: restart the kernel" if found.lost else ""
    if confirm and not found.lost and found.regions is None:
        from paramgraph_kit.doctor.child.confirm import confirm as capture_in_child

        problems, note = capture_in_child(function, args, kwargs, problems, limit_s=max(limit_s, CHILD_S))
        notes = [note, *notes]
    calls = f"{found.calls} call{'' if found.calls == 1 else 's'}"
    where = f"{calls} on {driver().source().label()}, {found.operations} operations in one"
    heading = headed(_name_of(function), problems, where)
    return Diagnosis(problems, heading, notes, state), found.regions, found.inside
