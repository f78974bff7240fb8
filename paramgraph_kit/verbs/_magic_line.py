"""What a line of ``%paramgraph`` says: its words, the options of each verb, and their help."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn

from IPython.core.error import UsageError

NAME = "paramgraph"
WIDTH = 88  # of the help, wherever it is read
INTRODUCTION = """Watch a cell, find out why a capture failed, look at graphs and memory.

    %%paramgraph watch -o trace       run this cell and keep what the launcher did
    %paramgraph explore               look at what was watched last: graphs, failures, memory, launches
    %paramgraph graph                 the picture of its first graph
    %paramgraph memory model          the same verbs for a trace, a report or a compiled model
    %%paramgraph diagnose --fix       run this cell, find all that a capture of it would refuse or freeze, and mend it
    %paramgraph story step, x, y      from a broken capture to a parameterized one, compared at every step

Names that -o binds are variables like any other: unloading the extension keeps them.
"""


class Done(Exception):  # noqa: N818 - no error: the help was printed and nothing is left to do
    """The parser has printed the help."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that neither exits nor prints usage: an error is one line."""

    def __init__(self, **options: Any) -> None:
        # The width is fixed so that the help does not depend on the window in which the extension was loaded.
        options.setdefault("formatter_class", partial(argparse.HelpFormatter, width=WIDTH))
        super().__init__(allow_abbrev=False, **options)
        if sys.version_info >= (3, 14):
            self.color = False

    def error(self, message: str) -> NoReturn:
        wrong, _, known = message.partition(" (choose from ")
        close = get_close_matches(wrong.rpartition(" ")[2].strip("'"), re.findall(r"\w+", known), 1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"{self.prog}: {message} ({meant}%{NAME}? shows the help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise Done


def _name(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name for a variable")
    return text


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """What the magic understands, and the parser of each verb."""
    top = _Parser(prog=f"%{NAME}", description="Each verb has its own help: %paramgraph VERB -h.")
    commands = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    found: dict[str, argparse.ArgumentParser] = {}

    def verb(name: str, says: str, bound: str, *, expression: str = "", page: bool = True) -> argparse.ArgumentParser:
        found[name] = made = commands.add_parser(name, help=says, description=says[0].upper() + says[1:] + ".")
        if name == "save":
            made.add_argument("file", metavar="FILE", type=_unquoted, help="where to write, by custom *.pgtrace")
        if expression:
            made.add_argument("expression", metavar="EXPR", nargs="*", help=expression)
        made.add_argument("-o", dest="bind", metavar="NAME", type=_name, help=f"bind {bound} to this variable")
        if page:
            made.add_argument(
                "--html", metavar="FILE", type=_unquoted, help="also write everything as one self-contained page"
            )
        return made

    last = "a trace, a report or a compiled model; the last watched trace if left out"
    watch = verb("watch", "run the cell and record what the launcher does (cell only)", "the trace")
    watch.add_argument(
        "--title", type=_unquoted, default="watch", help="what the trace is called (default %(default)s)"
    )
    diagnose = verb(
        "diagnose",
        "explain why a capture failed, or would: run the cell and explain what it raises, or else look at all that it "
        "does as at a function; or explain the last exception",
        "the diagnosis",
        expression="an exception, a compiled model, or a function and its arguments with commas between them; "
        "the last exception that was shown if left out",
        page=False,
    )
    diagnose.add_argument(
        "--fix", action="store_true", help="also rewrite the lines where that is sure, try them, and show the diff"
    )
    verb(
        "story",
        "tell a function or the cell from a broken capture to a parameterized one, live, compared at every step",
        "the story",
        expression="a function and its arguments with commas between them",
        page=False,
    )
    everything = "look at everything: partitions, graph, failures, memory and launches"
    verb("explore", everything, "the explorer", expression=last)
    verb("partitions", "show what is graphed, what is not, and why", "the view", expression=last)
    graph = verb("graph", "draw a captured graph", "the picture", expression=last)
    graph.add_argument("--capture", type=int, default=0, metavar="N", help="which one (default %(default)s)")
    graph.add_argument("--allocations", action="store_true", help="draw the memory of the graph too")
    verb("memory", "show memory pools over time", "the view", expression=last)
    everything = "a compiled function or module; everything that is compiled if left out"
    verb("report", "show what was graphed and what it costs", "the report", expression=everything)
    save = verb("save", "write a trace to a file", "the path", expression=last, page=False)
    save.add_argument("--strip-source", action="store_true", help="leave out source lines and paths")
    return top, found


def help_text() -> str:
    """The whole help: of the magic, then of each verb."""
    top, each = parser()
    return "\n".join([INTRODUCTION, top.format_help(), *(one.format_help() for one in each.values())])


def split(line: str) -> list[str]:
    """The words of a line; quotes and brackets keep their spaces and stay, as expressions need both.

    Raises:
        UsageError: a quote or a bracket is not closed.

    Examples:
        >>> split("graph load('my run.pgtrace') --capture 1")
        ['graph', "load('my run.pgtrace')", '--capture', '1']
    """
    words, word, quote, depth, escaped = [], "", "", 0, False
    for letter in line:
        if quote:
            quote = "" if letter == quote and not escaped else quote
            escaped = letter == "\\" and not escaped
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter.isspace() and depth <= 0:
            words.append(word)
            word = ""
            continue
        word += letter
    if quote or depth > 0:
        raise UsageError(f"%{NAME}: {quote or 'a bracket'} is not closed in: {line.strip()}")
    return [found for found in (*words, word) if found]
