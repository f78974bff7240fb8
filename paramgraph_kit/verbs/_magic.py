"""``%paramgraph`` and ``%%paramgraph``: the public verbs, one line each, in IPython and notebooks.

Everything here is parsing and showing; what is done is done by the functions of ``paramgraph_kit``.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from itertools import takewhile
from types import CodeType
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from paramgraph_kit import verbs
from paramgraph_kit.trace import ParamgraphError, Trace, growing
from paramgraph_kit.verbs._device import instead_of_cuda
from paramgraph_kit.verbs._magic_line import INTRODUCTION, NAME, Done, help_text, parser, split
from paramgraph_kit.verbs._own_captures import GRAPHS
from paramgraph_kit.verbs._story import story

CAPTURES = (*GRAPHS, "graph(")  # the last may end a name of something else


@contextmanager
def _one_line(verb: str) -> Iterator[None]:
    """Errors that are explained already are shown without a traceback."""
    try:
        yield
    except (ParamgraphError, OSError) as error:
        raise UsageError(f"%{NAME} {verb}: {error}") from error


@magics_class
class ParamgraphMagics(Magics):  # type: ignore[misc]
    """The magic of one shell and the trace that it watched last."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.trace: Trace | None = None
        self.failed: BaseException | None = None
        self.parser, self.verbs = parser()

    @no_var_expand  # type: ignore[untyped-decorator]
    @line_cell_magic  # type: ignore[untyped-decorator]
    def paramgraph(self, line: str, cell: str | None = None) -> None:
        # The docstring is the help, set below from the parser.
        __tracebackhide__ = True  # as in all that is between the shell and the code of a cell
        if line.strip() in ("", "help") and cell is None:
            print(f"{INTRODUCTION}\n{self.parser.format_help()}")
            return
        try:
            options = self._parse(line)
            if cell is not None:
                self._cell(options, cell)
            elif options.verb == "watch":
                self._wrong(options, f"needs a cell: write %%{NAME} watch in a cell's first line, code below it")
            else:
                getattr(self, f"_{options.verb}")(options)
        except Done:
            return
        except UsageError:
            self._keep_failure()
            raise

    # What the verbs do

    def _cell(self, options: argparse.Namespace, cell: str) -> None:
        __tracebackhide__ = True
        if options.verb == "watch":
            self._watch(options, cell)
        elif options.verb == "diagnose":
            self._diagnose_cell(options, cell)
        elif options.verb == "story":
            self._story_cell(options, cell)
        else:
            self._wrong(options, f"takes no cell: write %{NAME} {options.verb}, after %%{NAME} watch")

    def _watch(self, options: argparse.Namespace, cell: str) -> None:
        __tracebackhide__ = True
        code, explorer, live = self._compiled(options, *self._source(cell)), None, None
        try:
            with ExitStack() as stack:
                with _one_line("watch"):
                    trace = stack.enter_context(verbs.watch(options.title))
                self.trace = trace  # before it runs, so that it is there whatever the cell does
                self._bind(options, trace)
                explorer = verbs.explore(trace)
                if explorer.is_live():  # a notebook shows it above the cell's own output, and it follows
                    live = explorer._show()
                self._execute(code)
        except UsageError:
            raise
        except BaseException:
            try:
                self._page(options, self.trace)
            except UsageError as error:  # what the cell raised is more important
                print(error, file=sys.stderr)
            raise
        finally:
            if live is not None and explorer is not None:
                # The picture and the text that a notebook keeps: of the end, not of the beginning.
                live.update(explorer._repr_mimebundle_())
        if live is None:
            display(explorer)
        self._page(options, trace)

    def _diagnose_cell(self, options: argparse.Namespace, cell: str) -> None:
        __tracebackhide__ = True
        if options.expression:
            self._wrong(options, "takes a cell or an expression, not both")
        source, name = self._source(cell)
        code, found = self._compiled(options, source, name), None
        try:
            self._execute(code)
        except Exception as error:
            found = verbs.diagnose(error)
            if found.failure.code in ("unknown", "not-simulated"):  # no failure of a capture: nobody must miss it
                self._bind(options, None)
                if found.failure.code == "not-simulated":
                    print(found.failure.cause, found.failure.fix, sep="\n")
                raise
            self._bind(options, found)
            display(found)
            # As if it had been shown, so that %debug and a later diagnose find it.
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
            if sys.version_info >= (3, 12):
                sys.last_exc = error
        else:
            if any(word in cell for word in CAPTURES):
                self._diagnose_program(options, source, name)
                return
            with _one_line("diagnose"):
                self._show(options, self._diagnosed(options, source, name))

    def _diagnose_program(self, options: argparse.Namespace, source: str, name: str) -> None:
        """A cell that captures by itself: what is in its captures, and around their replays."""
        from paramgraph_kit.verbs._own_captures import is_of_captures

        found = None
        if "diagnose" not in source:  # what diagnoses captures has told it
            with suppress(ParamgraphError):
                found = self._diagnosed(options, source, name)
        if found is None or (any(word in source for word in GRAPHS) and not is_of_captures(found)):
            self._bind(options, None)
            print("the cell raised nothing; it captures by itself, so it was not looked at as what a graph would hold")
        else:
            self._show(options, found)

    def _diagnosed(self, options: argparse.Namespace, source: str, name: str) -> Any:
        """What is found in a cell that has run; what its own run has left is no problem of the cell's."""
        from paramgraph_kit.doctor.cell import spent

        def look() -> Any:
            what, args, kwargs = self._function(options, source, name)
            with redirect_stdout(io.StringIO()):  # it has printed when it ran
                return verbs.diagnose(what, *args, fix=options.fix, **kwargs)

        found = look()
        names = spent(source, self.shell.user_ns) if "legacy-stream" in found.codes else []
        if not names:
            return found
        for each in names:
            self.shell.user_ns[each].detach_()  # in place: Out has it, too
        found = look()
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        text = "detached: their graph would have drawn" if names[1:] else "detached: its graph would have drawn"
        found.notes += (f"{listed} of this run {'are' if names[1:] else 'is'} {text} a capture to the default stream",)
        return found

    def _story_cell(self, options: argparse.Namespace, cell: str) -> None:
        if options.expression:
            self._wrong(options, "takes a cell or an expression, not both")
        with _one_line("story"):
            what, args, kwargs = self._function(options, *self._source(cell))
            self._show(options, story(what, *args, **kwargs))

    def _function(self, options: argparse.Namespace, source: str, name: str) -> tuple[Any, tuple[Any, ...], Any]:
        """What the cell calls, with its arguments, where it is one call; else the cell as a function without any."""
        from paramgraph_kit.doctor.cell import as_function, call_in

        try:
            return call_in(source, self.shell.user_ns) or (as_function(source, name, self.shell.user_ns), (), {})
        except SyntaxError as error:
            self._wrong(options, f"the cell cannot be looked at as a function: {error.msg}")

    def _diagnose(self, options: argparse.Namespace) -> None:
        if options.expression:
            error = self._value(options)
        else:
            self._keep_failure()
            error = self.failed
            if error is None:
                self._wrong(options, f"nothing has failed yet; %{NAME} diagnose EXPR explains an exception of yours")
        what, *arguments = error if isinstance(error, tuple) and error else (error,)
        with _one_line("diagnose"):
            self._show(options, verbs.diagnose(what, *arguments, fix=options.fix))

    def _story(self, options: argparse.Namespace) -> None:
        if not options.expression:
            self._wrong(options, f"takes a function and its arguments: %{NAME} story step, x, y; or a cell")
        value = self._value(options)
        what, *arguments = value if isinstance(value, tuple) and value else (value,)
        with _one_line("story"):
            self._show(options, story(what, *arguments))

    def _explore(self, options: argparse.Namespace) -> None:
        self._view(options, lambda explorer: explorer)

    def _partitions(self, options: argparse.Namespace) -> None:
        self._view(options, lambda explorer: explorer.partitions())

    def _graph(self, options: argparse.Namespace) -> None:
        self._view(options, lambda explorer: explorer.graph(options.capture, allocations=options.allocations))

    def _memory(self, options: argparse.Namespace) -> None:
        self._view(options, lambda explorer: explorer.memory())

    def _report(self, options: argparse.Namespace) -> None:
        model = self._value(options) if options.expression else None
        with _one_line("report"):
            found = verbs.report(model)
        self._show(options, found, found.trace)

    def _save(self, options: argparse.Namespace) -> None:
        what = self._subject(options)
        with _one_line("save"):
            path = verbs.save(what, options.file, strip_source=options.strip_source)
        self._bind(options, path)
        print(f"saved: {path}")

    # How they do it

    def _parse(self, line: str) -> argparse.Namespace:
        options, rest = self.parser.parse_known_args(split(line))
        # Words after an option belong to the expression; argparse of some versions leaves them over.
        if rest and (any(word.startswith("-") for word in rest) or not hasattr(options, "expression")):
            self.verbs[options.verb].error(f"unrecognized arguments: {' '.join(rest)}")
        if hasattr(options, "expression"):
            options.expression = " ".join([*options.expression, *rest])
        return options

    def _wrong(self, options: argparse.Namespace, says: str) -> NoReturn:
        raise UsageError(f"%{NAME} {options.verb}: {says}")

    def _keep_failure(self) -> None:
        """Remember the last exception that was shown, before a slip of the pen takes its place in ``sys``."""
        shown = getattr(sys, "last_value", None)
        if shown is not None and not isinstance(shown, UsageError):
            self.failed = shown

    def _value(self, options: argparse.Namespace) -> Any:
        try:
            return self.shell.ev(f"({options.expression})")  # so that *arguments may follow a function
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            self._wrong(options, f"{options.expression}: {type(error).__name__}: {text}")

    def _subject(self, options: argparse.Namespace) -> Any:
        if options.expression:
            return self._value(options)
        trace = self._last()
        if trace is None:
            self._wrong(options, f"nothing is watched yet: run a cell with %%{NAME} watch, or name a trace or a model")
        return trace

    def _last(self) -> Trace | None:
        """The trace that was begun last, by a cell or ``with watch() as trace``; else any that has a name here."""
        named = [each for each in self.shell.user_ns.values() if isinstance(each, Trace)]
        latest = growing.latest()
        if any(each is latest for each in named):
            return latest
        return self.trace or next(reversed(named), None)

    def point_at_device(self, result: Any) -> None:
        """After a cell that asked for a GPU where there is none, or draws after a failed capture: what runs here."""
        error = getattr(result, "error_in_exec", None)
        if error is not None and (hint := instead_of_cuda(error) or _left_behind(error)):
            print(hint, file=sys.stderr)

    def _view(self, options: argparse.Namespace, view: Callable[[Any], Any]) -> None:
        what = self._subject(options)
        with _one_line(options.verb):
            explorer = verbs.explore(what)
            found = view(explorer)
        self._show(options, found, explorer.trace)

    def _show(self, options: argparse.Namespace, found: Any, trace: Trace | None = None) -> None:
        if options.verb != "watch":
            self._bind(options, found)
        display(found)
        self._page(options, trace)

    def _bind(self, options: argparse.Namespace, value: Any) -> None:
        if options.bind:
            self.shell.push({options.bind: value})

    def _page(self, options: argparse.Namespace, trace: Trace | None) -> None:
        if getattr(options, "html", None) and trace is not None:
            with _one_line(options.verb):
                print(f"page: {verbs.explore(trace).to_html(options.html)}")

    def _source(self, cell: str) -> tuple[str, str]:
        """The cell as Python, and the name under which its lines are found."""
        shell = self.shell
        # Line numbers are those that people see: the magic's own line counts, and the blank ones that IPython drops.
        dropped = 1 + len([*takewhile(str.isspace, cell.splitlines(keepends=True))])
        source = "\n" * dropped + shell.transform_cell(cell)
        return source, shell.compile.cache(source, shell.displayhook.prompt_count, raw_code=cell)

    def _compiled(self, options: argparse.Namespace, source: str, name: str) -> list[CodeType]:
        """The cell's statements and, to be displayed, its last expression."""
        shell = self.shell
        body = shell.transform_ast(shell.compile.ast_parse(source, filename=name)).body
        last = [body.pop()] if body and isinstance(body[-1], ast.Expr) else []
        try:
            codes = [shell.compile(ast.Module(body, []), name, "exec")]
            return codes + [shell.compile(ast.Interactive([node]), name, "single") for node in last]
        except SyntaxError as error:
            if "outside async function" in str(error) or "'await' outside function" in str(error):
                self._wrong(options, "no cell magic can await: put it in an async function, and run that in a thread")
            raise

    def _execute(self, codes: list[CodeType]) -> None:
        __tracebackhide__ = "__ipython_bottom__"  # tracebacks begin below this frame, as in any other cell
        with self.shell.builtin_trap, self.shell.display_trap:
            for code in codes:
                exec(code, self.shell.user_global_ns, self.shell.user_ns)


ParamgraphMagics.paramgraph.__doc__ = help_text()


def load(shell: Any) -> None:
    """Register the magic with a shell, in place of one that is there."""
    unload(shell)
    magics = ParamgraphMagics(shell)
    shell.register_magics(magics)
    shell.events.register("post_run_cell", magics.point_at_device)


def unload(shell: Any) -> None:
    """Take the magic, and the trace and exception that it keeps, out of a shell."""
    manager = shell.magics_manager
    for kind in ("line", "cell"):
        if isinstance(getattr(manager.magics[kind].get(NAME), "__self__", None), ParamgraphMagics):
            del manager.magics[kind][NAME]
    if (magics := manager.registry.pop(ParamgraphMagics.__name__, None)) is not None:
        shell.events.unregister("post_run_cell", magics.point_at_device)
    shell.configurables[:] = [one for one in shell.configurables if not isinstance(one, ParamgraphMagics)]


def _left_behind(error: BaseException) -> str:
    """What to say of an error that is that of an earlier capture."""
    if "Offset increment outside graph capture" not in str(error):
        return ""
    return "an earlier capture failed and left the random generator behind: pgk.diagnose.repair() puts that right"
