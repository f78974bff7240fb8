"""Names, figures, files, links and command lines in the pages are those of the code."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.__main__ import parser
from paramgraph_kit.backend import asked, parameterized, watch
from paramgraph_kit.backend.frozen import calls
from paramgraph_kit.doctor.known import program
from paramgraph_kit.launch import launcher, stages
from paramgraph_kit.rewrite.proving import proof
from paramgraph_kit.step import reach, step
from tests.programs.reading import programs

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md", "widgets/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

_CODE = re.compile(r"```\w*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
_OURS = re.compile(r"\b(?:pgk|paramgraph_kit|torch)(?:\.[A-Za-z_]\w*)+")
_FILE = re.compile(r"(?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:md|py|toml|js|jsonl?|svg|pgtrace)")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"\b(?:python -m ([\w.]+)|python (scripts/\w+\.py)|(scripts/[\w-]+))((?: [\w.,:/|-]+)*)")
# Only in torch 2.12 and newer, or only in an environment with the library.
ELSEWHERE = re.compile(r"torch\.ops\.ao\b")
# What a run makes, what a user has, what is named only to say that it is gone or is somebody else's.
NOT_OURS = re.compile(
    r"out/|\.venv|viewer\.html|FILE|FOLDER|train\.py|~|trace\.html|snapshot\.pickle|NAME|mine\.|/"
    r"|nvidia/|allocator\.py:|multi_tensor\.py:|data/"
)
FIGURES = [
    ("launcher.md", "where one launch holds more than {} MiB more", stages.SLACK >> 20),
    ("launcher.md", "or makes more than {} tensors", stages.MANY),
    ("launcher.md", "every {}th call checks it", calls.CHECKED),
    ("launcher.md", "same code and shapes, at most {} a partition", launcher.MAX_VARIANTS),
    ("launcher.md", "called with more than {} sets of scalars or alignments", launcher.MAX_VARIANTS),
    ("launcher.md", "a Python number had more than {} values", launcher.MAX_SCALARS),
    ("launcher.md", "called in more than {} ways", parameterized.MAX_TRACES),
    ("step.md", "a Python number had more than {} values", launcher.MAX_SCALARS),
    ("step.md", "A Python number is part of the key: more than {} values", launcher.MAX_SCALARS),
    ("step.md", "more than {:,} objects", reach.MOST),
    ("step.md", "more than {} graphs, or eight in a row", step.MAX_GRAPHS),
    ("step.md", "an array of more than {} KiB", asked.LARGE >> 10),
    ("step.md", "a list of more than {:,} objects", reach.LONG),
    ("explorer.md", "each of the first {:,} launches", watch.MOST_TIMED),
    ("explorer.md", "those of a graph's first {} launches", watch.MOST_KEPT),
    ("doctor.md", "{} programs as users write them", len(programs())),
]


def code_of(page: Path) -> Iterator[str]:
    """What stands in backticks, in the line or in blocks."""
    for block, inline in _CODE.findall(page.read_text(encoding="utf-8")):
        yield block or inline


def resolves(name: str) -> bool:
    """Whether a dotted name is there, modules imported as far as they are some."""
    first, *rest = name.split(".")
    found: Any = importlib.import_module("paramgraph_kit" if first == "pgk" else first)
    path = found.__name__
    for part in rest:
        path = f"{path}.{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(path)
            except ImportError:
                return False
        found = getattr(found, part)
    return True


@EACH
def test_every_dotted_name_of_ours_and_of_torch_s_exists(page: Path) -> None:
    # GIVEN the names in a page's code WHEN looked up THEN each is there
    names = {name for code in code_of(page) for name in _OURS.findall(code) if not ELSEWHERE.match(name)}
    files = {name for name in names if re.search(r"\.(py|md)$", name)}
    assert sorted(name for name in names - files if not resolves(name)) == []


def calls_of_ours(page: Path) -> Iterator[ast.Call]:
    """Each call of a verb in a page's code, as far as it is Python."""
    for code in code_of(page):
        with contextlib.suppress(SyntaxError):
            yield from (
                node
                for node in ast.walk(ast.parse(textwrap.dedent(code)))
                if isinstance(node, ast.Call) and re.fullmatch(r"pgk(\.\w+)+|torch\.compile", ast.unparse(node.func))
            )


@EACH
def test_every_call_of_a_verb_is_one_that_it_takes(page: Path) -> None:
    # GIVEN calls of verbs, with their keywords and options WHEN looked up THEN each is there
    options = {field.name for field in dataclasses.fields(launcher.Options)}
    for call in calls_of_ours(page):
        name = ast.unparse(call.func)
        verb: Any = functools.reduce(getattr, name.split(".")[1:], pgk if name.startswith("pgk") else torch)
        known = set(inspect.signature(verb).parameters) | (options if name == "pgk.compile" else set())
        assert [k.arg for k in call.keywords if k.arg is not None and k.arg not in known] == [], ast.unparse(call)
        for keyword in call.keywords:
            if keyword.arg == "options" and isinstance(keyword.value, ast.Dict):
                keys = {ast.literal_eval(key) for key in keyword.value.keys if key is not None}
                assert {key for key in keys if key is not ...} <= options, ast.unparse(call)


@EACH
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    # GIVEN what looks like a file of the repository WHEN looked for from its top and beside the page THEN it is there
    named = {code for code in code_of(page) if _FILE.fullmatch(code) and not NOT_OURS.match(code)}
    package = ROOT / "paramgraph_kit"
    there = [ROOT, page.parent, page.parent / "src", package, package / "doctor", ROOT / "tests"]
    assert sorted(name for name in named if not any((folder / name).exists() for folder in there)) == []


@EACH
def test_every_link_leads_somewhere(page: Path) -> None:
    # GIVEN a page's links within the repository WHEN followed THEN the file is there, and so is the heading
    broken = []
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """What headings may be linked as."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EACH
def test_every_command_line_is_one_that_its_program_takes(page: Path) -> None:
    # GIVEN the commands in a page's code WHEN their programs are read THEN each has the options that it is given
    for code in code_of(page):
        for module, script, shell, rest in _COMMAND.findall(code):
            options = re.findall(r"(?<!\S)--[\w-]+", rest)
            if module == "pytest":
                continue
            where = ROOT / (module.replace(".", "/") if module else script or shell)
            place = where if where.exists() else where.with_suffix(".py")
            assert place.exists(), code
            words = rest.split()
            if module == "paramgraph_kit" and words and re.fullmatch("[a-z]+", words[0]) and words[0] != "corpus":
                commands = next(a for a in parser()._actions if a.dest == "command").choices or {}
                assert words[0] in commands, code
            files = [place] if place.is_file() else sorted(place.glob("*.py"))
            if module == "paramgraph_kit" and words and (ROOT / module / words[0]).is_dir():
                files += sorted((ROOT / module / words[0]).glob("*.py"))
            text = "".join(file.read_text(encoding="utf-8") for file in files)
            missing = [o for o in options if f'"{o}"' not in text and f'"{o[2:]}":' not in text]  # of a table of parts
            assert missing == [], code


@EACH
def test_every_target_of_make_exists(page: Path) -> None:
    # GIVEN the targets that a page names WHEN looked up THEN the Makefile has them
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {t for code in code_of(page) for t in re.findall(r"^make (\w+)", code, re.MULTILINE)}
    assert named <= targets


@pytest.mark.parametrize(("page", "text", "figure"), FIGURES, ids=[f"{p}: {t}" for p, t, _ in FIGURES])
def test_figures_are_those_of_the_code(page: str, text: str, figure: int) -> None:
    # GIVEN a sentence with a figure WHEN written with the code's own THEN the page has it
    told = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    assert text.format(figure) in told


def test_figures_in_words_are_those_of_the_code() -> None:
    # GIVEN figures that the pages spell out WHEN compared THEN they are the code's
    assert (step.MAX_FUTILE, parameterized._ALIKE, calls.FORMS) == (8, 8, 8)  # "eight in a row", "eight kinds of calls"
    assert (program.STEPS, proof.STEPS) == (10, 6)  # "ten replays", "six steps"


def test_every_reason_of_a_whole_step_is_explained() -> None:
    # GIVEN the codes in the source of whole steps, and those that both pages explain
    given = {
        code
        for path in (ROOT / "paramgraph_kit" / "step").rglob("*.py")
        for code in re.findall(r'(?:Reason\(\s*|code=)"([a-z]+(?:-[a-z]+)+)"', path.read_text())
    }
    theirs, launchers = (
        {
            code
            for line in (ROOT / "docs" / page).read_text().splitlines()
            if line.startswith("| `")
            for code in re.findall(r"`([a-z]+(?:-[a-z]+)+)`", line.split("|")[1])
        }
        for page in ("step.md", "launcher.md")
    )
    # WHEN compared THEN each code has its row, and each row of the page about steps is of a code that they can give
    assert given <= theirs | launchers
    assert theirs - given <= {
        "unknown-argument",
        "outside-state",
    }  # which come from what steps share with traced functions
