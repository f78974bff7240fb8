"""``python -m paramgraph_kit``: the tour, the benchmark, trace files, failures and metrics, in a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paramgraph_kit._version import __version__
from paramgraph_kit.trace import ParamgraphError
from paramgraph_kit.trace.files import written
from paramgraph_kit.trace.wording import kind_text
from paramgraph_kit.verbs import explore, load


def parser() -> argparse.ArgumentParser:
    """What the command line understands."""
    top = argparse.ArgumentParser(prog="python -m paramgraph_kit", description="CUDA graphs, parameterized.")
    top.add_argument("--version", action="version", version=f"paramgraph_kit {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    tour = commands.add_parser("tour", help="do the main job once, check every claim, write an HTML page")
    tour.add_argument("--html", type=Path, default=Path("paramgraph_tour.html"), help="the page (default %(default)s)")
    tour.add_argument("--quiet", action="store_true", help="print only where the page is")
    show = commands.add_parser("explore", help="print a trace file, or write it as an HTML page")
    show.add_argument(
        "trace",
        type=Path,
        metavar="FILE",
        help="what paramgraph_kit.save wrote (.pgtrace), or torch's memory._dump_snapshot",
    )
    show.add_argument("--html", type=Path, help="write this page instead of printing")
    viewer = commands.add_parser("viewer", help="write one HTML page that shows any trace file, with a gallery")
    viewer.add_argument(
        "--html", type=Path, default=Path("paramgraph_viewer.html"), help="the page (default %(default)s)"
    )
    diagnose = commands.add_parser(
        "diagnose", help="run a program or a function and say why its capture fails; or look at the catalogue"
    )
    which = diagnose.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "id",
        nargs="?",
        metavar="FILE.py | FILE.py:FUNCTION | ID",
        help="run this program and explain what it raises, or what its own captures do not see; find all problems of "
        "one of its functions, without arguments; or show this class with a failing and a working program",
    )
    which.add_argument("--list", action="store_true", help="one line for each class")
    diagnose.add_argument(
        "--fix", action="store_true", help="with FILE.py:FUNCTION: rewrite its lines, try them, and print the diff"
    )
    metrics = commands.add_parser("metrics", help="list the metrics of a service, or write a dashboard of them")
    what = metrics.add_mutually_exclusive_group()
    what.add_argument("--dashboard", type=Path, help="write this file for Grafana's import instead")
    what.add_argument("--cost", action="store_true", help="measure instead what they cost a call on this machine")
    commands.add_parser("bench", help="measure against no graphs and graph trees (needs a GPU)", add_help=False)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 for an error that one line explains, 2 for a wrong call."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, rest = parser().parse_known_args(given)
    if options.command is None and not rest:
        parser().print_help()
        return 0
    if options.command == "bench":
        from paramgraph_kit import bench

        return bench.main(rest)
    if rest:
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        if options.command == "tour":
            _tour(options.html, options.quiet)
        elif options.command == "diagnose":
            if options.list and options.fix:
                parser().error("--fix rewrites the lines of a function, and --list names none")
            return _diagnose(None if options.list else options.id, fix=options.fix)
        elif options.command == "viewer":
            _viewer(options.html)
        elif options.command == "metrics":
            _metrics(options.dashboard, cost=options.cost)
        else:
            _explore(options.trace, options.html)
    except ParamgraphError as error:
        print(f"paramgraph_kit: {error}", file=sys.stderr)
        return 1
    return 0


def _tour(page: Path, quiet: bool) -> None:
    from paramgraph_kit import tour

    def say(text: str) -> None:
        if not quiet:
            print(text, flush=True)

    print(f"page: {tour.run(page, say)}")


def _explore(trace: Path, page: Path | None) -> None:
    explorer = explore(load(trace))
    print(explorer.text() if page is None else f"page: {explorer.to_html(page)}")


def _viewer(page: Path) -> None:
    from paramgraph_kit.explore.viewer import write_viewer
    from paramgraph_kit.recordings import recorded

    print(f"page: {write_viewer(page, recorded.packed())}")


def _metrics(board: Path | None, *, cost: bool) -> None:
    from paramgraph_kit.metrics import dashboard
    from paramgraph_kit.metrics.table import METRICS

    if cost:
        from paramgraph_kit.metrics.cost import cost as measured

        print(measured())
        return
    if board is None:
        width = max(len(metric.prometheus) for metric in METRICS)
        print("\n".join(f"{metric.prometheus:<{width}}  {metric.text}" for metric in METRICS))
        return
    print(f"dashboard: {written(board, dashboard())}")


def _diagnose(id: str | None, *, fix: bool = False) -> int:  # noqa: A002 - what the catalogue calls it
    from paramgraph_kit.doctor import catalogue, failure_class

    if id is None:
        print("\n".join(each.line() for each in catalogue()))
        return 0
    file, _, function = id.partition(":")
    if fix and not function:
        raise ParamgraphError(f"--fix rewrites the lines of a function: name one, {file}:FUNCTION")
    if file.endswith(".py"):
        return _diagnose_file(Path(file), function, fix=fix)
    found = failure_class(id)
    print("\n\n".join([found.text(), *found.shown_programs()]))
    return 0


def _diagnose_file(file: Path, function: str, *, fix: bool) -> int:
    """Run a program, or one function of it; 1 if there is a problem."""
    import runpy

    from paramgraph_kit.verbs import diagnose
    from paramgraph_kit.verbs._own_captures import is_watched, run_once

    if not file.is_file():
        raise ParamgraphError(f"there is no file {file}: give the path of a program, or an id that --list names")
    sys.path.insert(0, str(file.resolve().parent))
    ours, sys.argv = sys.argv, [str(file)]  # its own arguments, which are none
    names, found = dict[str, Any](), None
    try:
        if not function and is_watched(file.read_text(encoding="utf-8", errors="replace")):
            found = run_once(str(file), lambda: runpy.run_path(str(file), run_name="__main__"))
        else:
            names = runpy.run_path(str(file), run_name="__paramgraph__" if function else "__main__")
    except SyntaxError as error:
        where = f"{error.filename or file}{f', line {error.lineno}' if error.lineno else ''}"
        raise ParamgraphError(f"{where}: this is no program that Python can read: {error.msg}") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        print(diagnose(error))
        return 1
    finally:
        sys.argv = ours
    if not function:
        print(f"{file} raised nothing" if found is None else found)
        return int(bool(found))
    if not callable(names.get(function)):
        what = f"{function!r} is {kind_text(names[function])}" if function in names else f"there is no {function!r}"
        raise ParamgraphError(f"{file}: {what}: name a function that is defined at its top level")
    needed = _needed(names[function])
    if needed:
        raise ParamgraphError(
            f"{file}: {function} takes arguments ({needed}): name a function without any, which makes them and calls it"
        )
    found = diagnose(names[function], fix=fix)
    print(found)
    return int(bool(found))


def _needed(function: Any) -> str:
    """The arguments that a function cannot be called without."""
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of C, which does not tell
        return ""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(p.name for p in parameters if p.default is p.empty and p.kind not in variable)


if __name__ == "__main__":
    sys.exit(main())
