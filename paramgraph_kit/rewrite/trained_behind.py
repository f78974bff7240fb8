"""What trains now and then, behind the launch: a graph of its own can have that."""

from __future__ import annotations

import ast
import re

from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.source.moving import is_backward
from paramgraph_kit.rewrite.source.place import around_launches

AFTER = re.compile(r"\s*def (\w+)\(.*# after each launch\s*$")
OWN = (
    "what `{name}` trains under `{test}` runs as it is: for a graph of that, too, put its lines into a function of "
    "their own, `def {part}({parameters}):`, call it there, and `pgk.diagnose({owner}{part}, ..., fix=True)` with what "
    "`{name}` gives it"
)


def branch_behind(found: Rewriting) -> str:
    """What to do about a branch with a backward pass that a rewriting has put behind the launch, or ""."""
    for file, lines in found.texts.items():
        if not any(AFTER.match(line) for line in lines):
            continue
        for node in around_launches(file, lines, ast.parse("".join(lines)), "after"):
            for part in (n for n in node.body if isinstance(n, ast.If)):
                if any(map(is_backward, ast.walk(part))):
                    names = [each.arg for each in node.args.args]
                    read = {n.id for each in part.body for n in ast.walk(each) if isinstance(n, ast.Name)}
                    given = ", ".join(name for name in names if name in read)
                    test = lines[part.lineno - 1].strip()
                    own = node.name.replace("after_", "now_and_then_", 1)
                    owner = "self." * (names[:1] == ["self"])
                    return OWN.format(name=node.name, test=test, part=own, parameters=given, owner=owner)
    return ""
