"""Lessons for Colab and Binder: ``python scripts/colab.py check|write`` for docs/colab.md, ``copies FOLDER``.

``write`` gives each lesson its badges for the address on GitHub from which this clone came, or for ``--repository``;
``check`` takes the page's own address, so that it says the same in every clone.

A copy for Colab has one cell more, its first: where the package is missing it is installed, and widgets are allowed.
The lesson's own first cell then takes the GPU, or the simulated device where there is none.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts import notebooks  # noqa: E402  # after the path

BRANCH = "colab"  # where the copies are put
PAGE = ROOT / "docs" / "colab.md"
BEGIN, END = "<!-- the table: python scripts/colab.py write -->", "<!-- its end -->"
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
OPENS = "https://colab.research.google.com/github"
BINDER = "https://mybinder.org/badge_logo.svg"
STARTS = "https://mybinder.org/v2/gh"
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


def origin(folder: Path = ROOT) -> str:
    """``owner/name`` on GitHub, where this clone came from there."""
    command = ["git", "-C", str(folder), "config", "--get", "remote.origin.url"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return of_address(found.stdout.strip())


def of_address(address: str) -> str:
    """``owner/name`` of an address on GitHub, "" for any other.

    >>> of_address("git@github.com:ada/kit.git"), of_address("https://github.com/ada/kit"), of_address("/srv/kit")
    ('ada/kit', 'ada/kit', '')
    """
    found = re.fullmatch(r"(?:https://|ssh://git@|git@)github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?", address)
    return found[1] if found else ""


def of_page(page: str) -> str:
    """The repository whose badges the page has, "" for none."""
    found = re.search(re.escape(STARTS) + r"/([\w.-]+/[\w.-]+)/", page)
    return found[1] if found else ""


def table(repository: str) -> str:
    """A row for each lesson: its title, and its badges where there is an address."""
    rows = ["| lesson | what it is about | |", "|---|---|---|"]
    for path in lessons():
        place = path.relative_to(ROOT).as_posix()
        colab = f"[![in Colab]({BADGE})]({OPENS}/{repository}/blob/{BRANCH}/{place})"
        binder = f"[![in Binder]({BINDER})]({STARTS}/{repository}/HEAD?urlpath=lab/tree/{place})"
        rows.append(f"| [{path.stem}](../{place}) | {_title(path)} | {f'{colab} {binder}' if repository else ''} |")
    return "\n".join(rows)


def note(repository: str) -> str:
    """How a lesson is opened: by its badges, or as long as there is no address by hand."""
    if repository:
        where = f"[{repository}](https://github.com/{repository})"
        return (
            f"Each badge opens a lesson of {where}. Colab's copies lie on the branch `{BRANCH}`, and their first cell\n"
            "installs the package; Binder makes the environment of `binder/`, without a GPU."
        )
    return (
        "There is no public address yet, so there are no badges: write the copies as above, from a wheel, and upload\n"
        "both. In a clone from GitHub `python scripts/colab.py write` gives each lesson its badges for Colab and\n"
        f"Binder; the copies go to the branch `{BRANCH}`."
    )


def _title(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "".join(cells[0]["source"]).splitlines()[0].lstrip("# ")


def with_table(page: str, repository: str) -> str:
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
    parser.add_argument("--repository", help="OWNER/NAME on GitHub; by default what this clone came from")
    options = parser.parse_args(arguments)
    repository = origin() if options.repository is None else options.repository
    if options.do == "copies":
        source = options.source or (f"paramgraph_kit[cuda] @ git+https://github.com/{repository}" if repository else "")
        if options.folder is None or not source:
            parser.error("copies needs a FOLDER, and --source where this clone came from no public address")
        for path in lessons():
            target = options.folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(copy(path, source), encoding="utf-8")
        print(f"{options.folder}: {len(lessons())} notebooks that install {source}")
        return 0
    page = PAGE.read_text(encoding="utf-8")
    if options.do == "write":
        PAGE.write_text(with_table(page, repository), encoding="utf-8")
    elif page != with_table(page, of_page(page)):
        print("docs/colab.md: another table than that of the lessons: run python scripts/colab.py write")
        return 1
    elif repository and not of_page(page):
        print(f"docs/colab.md: no badges; python scripts/colab.py write makes those of {repository}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
