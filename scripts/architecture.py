"""Draws which room of the package imports which into docs/architecture.md: ``python -m scripts.architecture``.

Read from the imports themselves, those inside of functions included. An arrow is left out where others lead there.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.unit.test_layers import PACKAGE, imports

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by `python -m scripts.architecture` from the imports -->", "<!-- end of the drawing -->"
TOP = ""  # the modules at the top level: what users import and type


def needs() -> dict[str, set[str]]:
    """For each room, those that it imports."""
    found: dict[str, set[str]] = {TOP: set()}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        inside = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        room = inside[0] if len(inside) > 1 else TOP
        module = ".".join((PACKAGE, *(inside[:-1] if inside[-1] == "__init__" else inside)))
        for _, name in imports(path, module, typing_only=False):
            parts = name.split(".")
            if parts[0] == PACKAGE and len(parts) > 1 and (ROOT / PACKAGE / parts[1]).is_dir():
                found.setdefault(room, set()).add(parts[1])
        found.setdefault(room, set())
    return {room: others - {room} for room, others in found.items()}


def without_shortcuts(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Only the arrows that no way over other rooms replaces.

    >>> without_shortcuts({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
    True
    """

    def below(room: str) -> set[str]:
        return graph[room].union(*(below(other) for other in graph[room]))

    return {room: {o for o in others if not any(o in below(x) for x in others)} for room, others in graph.items()}


def purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    file = ROOT / PACKAGE / (room) / "__init__.py"
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def drawing() -> str:
    """The picture, as Mermaid, and a table of the rooms, users' calls first."""
    graph = needs()
    arrows = without_shortcuts(graph)
    order = sorted(graph, key=lambda room: (-_height(room, graph), room))
    lines = [f"  {room} --> {other}" for room in order for other in sorted(arrows[room]) if room]
    rows = [f"| {'the top level' if room == TOP else f'`{room}`'} | {purpose(room)} |" for room in order]
    return "\n".join(["```mermaid", "graph TD", *lines, "```", "", "| room | what it is |", "|---|---|", *rows])


def _height(room: str, graph: dict[str, set[str]]) -> int:
    return 1 + max((_height(other, graph) for other in graph[room]), default=0)


def page(text: str) -> str:
    """The page with today's drawing."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{drawing()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
