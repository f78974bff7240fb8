"""Lessons for Colab: ``python scripts/colab.py check|write`` for the table in docs/colab.md, ``copies FOLDER``.

A copy has one cell more, its first: where the package is missing it is installed, and widgets are allowed.
The lesson's own first cell then takes the GPU, or the simulated device where there is none.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts import notebooks  # noqa: E402  # after the path

REPOSITORY = ""  # "owner/name" on GitHub; empty as long as the project has no public address
BRANCH = "colab"  # where the copies are put
PAGE = ROOT / "docs" / "colab.md"
BEGIN, END = "<!-- the table: python scripts/colab.py write -->", "<!-- its end -->"
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
OPENS = "https://colab.research.google.com/github"
FIRST = """\
# Colab has torch; the rest is installed here. With a GPU (Runtime, Change runtime type) the lesson runs on it,
# and without one on the simulated device.
import importlib.util
import subprocess
import sys

SOURCE = "{source}"
if importlib.util.find_spec("paramgraph_kit") is None:
    more = ["anywidget>=0.9", "graphviz>=0.20", "plotly>=6"]
    subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", SOURCE, *more])
if "google.colab" in sys.modules:
    from google.colab import output

    output.enable_custom_widget_manager()  # the explorer is a widget
"""


def lessons() -> list[Path]:
    """Every lesson and the puzzles, in reading order; exercises are for the workshop."""
    return [path for path in notebooks.notebooks() if "exercises" not in path.parts]


def table(repository: str = REPOSITORY) -> str:
    """A row for each lesson: its title, and its badge where there is an address."""
    rows = ["| lesson | what it is about | |", "|---|---|---|"]
    for path in lessons():
        place = path.relative_to(ROOT).as_posix()
        badge = f"[![open]({BADGE})]({OPENS}/{repository}/blob/{BRANCH}/{place})" if repository else ""
        rows.append(f"| [{path.stem}](../{place}) | {_title(path)} | {badge} |")
    return "\n".join(rows)


def note(repository: str = REPOSITORY) -> str:
    """How a lesson is opened: by its badge, or as long as there is no address by hand."""
    if repository:
        where = f"[{repository}](https://github.com/{repository})"
        return f"Each badge opens a lesson of {where}; its first cell installs the package."
    return (
        "There is no public address yet, so there are no badges: write the copies as above, from a wheel, and upload\n"
        "both. Once there is one, it is written into `scripts/colab.py` (`REPOSITORY`), the copies go to the\n"
        "branch `colab`, and each row gets its badge."
    )


def _title(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "".join(cells[0]["source"]).splitlines()[0].lstrip("# ")


def with_table(page: str, repository: str = REPOSITORY) -> str:
    """The page with the table of today between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{note(repository)}\n\n{table(repository)}\n{END}{rest.partition(END)[2]}"


def copy(path: Path, source: str) -> str:
    """A lesson with the installing cell before all others."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    text = FIRST.format(source=source).splitlines(keepends=True)
    cell: notebooks.Json = {
        "cell_type": "code",
        "id": "colab",
        "metadata": {},
        "source": text,
        "outputs": [],
        "execution_count": None,
    }
    notebook["cells"].insert(0, cell)
    return notebooks.dumps(notebook)


def main(arguments: list[str] | None = None) -> int:
    """Check the table, write it, or write the copies; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("check", "write", "copies"))
    parser.add_argument("folder", nargs="?", type=Path, help="of the copies")
    parser.add_argument("--source", help="what pip installs: an address, or a wheel that was uploaded")
    options = parser.parse_args(arguments)
    if options.do == "copies":
        source = options.source or (f"paramgraph_kit[cuda] @ git+https://github.com/{REPOSITORY}" if REPOSITORY else "")
        if options.folder is None or not source:
            parser.error("copies needs a FOLDER, and --source as long as the project has no public address")
        for path in lessons():
            target = options.folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(copy(path, source), encoding="utf-8")
        print(f"{options.folder}: {len(lessons())} notebooks that install {source}")
        return 0
    page = PAGE.read_text(encoding="utf-8")
    wanted = with_table(page)
    if options.do == "write":
        PAGE.write_text(wanted, encoding="utf-8")
    elif page != wanted:
        print("docs/colab.md: another table than that of the lessons: run python scripts/colab.py write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
