"""What lines around a step set between its calls, and a captured part or round keeps: told beside its diff."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress

from paramgraph_kit.doctor.diagnosis import Fix
from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.observe.set_between import ONCE, SET_BETWEEN, lines_that_set
from paramgraph_kit.rewrite.kept_numbers import AGAIN
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.source.edits import Function, path_of
from paramgraph_kit.trace.model import Failure

KEPT = "`{path}` {set}: a graph of `{name}` keeps what it has at the capture: capture again behind that line{or_}"
AGAIN_BEHIND = "stays as it is: `{name}` runs it, and is captured again behind {at}, which sets what it reads"
WARM = ", with one call ahead of that capture, in which the optimizer makes the states of what learns anew"


def tell_set_between(fix: Rewriting, failures: Iterable[Failure]) -> None:
    """Say of each what the captured lines still read, and what to write where it is set."""
    if not fix.alone:
        return  # of a whole step it is told by what its lines read
    for each in (fix, *fix.more):
        for text in filter(None, (_told(each, failure) for failure in failures)):
            again = AGAIN.format(path=text.split("`")[1], line="").partition(" (")[0]
            known = [line for line in fix.verified if "; or " not in text or again not in line]
            fix.verified = [*known, *([text] if text not in known else [])]


def again_between(fix: Fix, failure: Failure) -> str:
    """What to do for a line that the captured part runs, and that reads what is set between calls; else ""."""
    if not isinstance(fix, Rewriting) or not fix.alone or not _told(fix, failure):
        return ""
    return AGAIN_BEHIND.format(name=fix.alone, at=" and ".join(lines_that_set(failure.message)))


def _told(fix: Rewriting, failure: Failure) -> str:
    before, between, at = failure.message.partition(SET_BETWEEN)
    path = before.strip().rpartition(": ")[2].rpartition(" ")[2]
    if not between or not _is_kept(fix, path, failure):
        return ""
    words = failure.fix.rpartition("after   ")[2]
    or_ = words.partition("; and this line")[0] if ONCE in words else words if ".copy_(" in words else ""
    if path.endswith(".requires_grad"):
        return KEPT.format(path=path, set=f"{between}{at}", name=fix.alone, or_=WARM)
    where = f"{between}{at}"
    return KEPT.format(path=path, set=where, name=fix.alone, or_=f"; or {or_}" if or_ else "")


def _is_kept(fix: Rewriting, path: str, failure: Failure) -> bool:
    """Whether the captured function reads it, or what it calls does, as the line is where it was."""
    text = failure.frame.text if failure.frame else ""
    stays = bool(text) and not any(line[:1] == "-" and line[1:].strip() == text for line in fix.diff.splitlines())
    if stays and not (failure.code == "learning-rate-frozen" and _is_beside(fix, text)):
        return True
    own, called = _captured(fix)
    with suppress(SyntaxError):  # words for what is no path
        paths = {path, *_owners_of(path)}
        ends = {each.rpartition(".")[2] for each in paths if "." in each}  # objects have other names there
        inner = (n for each in called for n in ast.walk(each) if isinstance(n, ast.Attribute))
        named = (n for n in ast.walk(own) if isinstance(n, (ast.Name, ast.Attribute)))
        return any(path_of(n) in paths for n in named) or any(n.attr in ends for n in inner)
    return False


def _is_beside(fix: Rewriting, text: str) -> bool:
    """Whether a line is of the function that launches the captured one, and not of that."""
    for lines in fix.texts.values():
        for node in (n for n in ast.walk(ast.parse("".join(lines))) if isinstance(n, Function) and n.name != fix.alone):
            calls = (last_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call))
            if fix.alone in calls and text in map(str.strip, lines[node.lineno - 1 : node.end_lineno]):
                return True
    return False


def _captured(fix: Rewriting) -> tuple[ast.AST, list[ast.AST]]:
    """The captured function, and those that it may call, by their names."""
    trees = [ast.parse("".join(lines)) for lines in fix.texts.values()]
    named: dict[str, list[ast.AST]] = {}
    for node in (n for tree in trees for n in ast.walk(tree) if isinstance(n, Function)):
        named.setdefault(node.name, []).append(node)
    waiting = named.pop(fix.alone, [])
    own = ast.Module([*waiting], [])  # type: ignore[list-item]
    called: list[ast.AST] = []
    while waiting:
        calls = [last_name(n.func) for n in ast.walk(waiting.pop()) if isinstance(n, ast.Call)]
        found = [each for name in calls for each in named.pop(name, ())]
        called += found
        waiting += found
    return own, called


def _owners_of(path: str) -> list[str]:
    """What has a part of a module that is set: ``self.net[1]`` and ``self.net`` of ``self.net[1].training``."""
    node: ast.expr = ast.parse(path, mode="eval").body
    found = list[str]()
    is_of_module = path.endswith((".training", ".requires_grad", ".data"))
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        is_of_module |= isinstance(node, ast.Subscript)
        node = node.value
        if is_of_module or isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
    return [each for each in found if each != "self"]
