"""One page that shows any trace file: dropped on it or chosen, and a gallery; no kernel, no server, no network."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

from paramgraph_kit.explore.bundle import PAGE_PLACE, front_end, script_hash
from paramgraph_kit.explore.journal import told_families
from paramgraph_kit.explore.names import content
from paramgraph_kit.explore.style import style_sheet
from paramgraph_kit.trace import Trace, loads
from paramgraph_kit.trace.files import written
from paramgraph_kit.trace.wording import one_line

_STYLE = """
#paramgraph-viewer { border: 1.5px dashed var(--line); border-radius: 12px; padding: 18px 20px; margin: 18px 0; }
#paramgraph-viewer.over { border-color: var(--accent); background: var(--card); }
#paramgraph-viewer label { color: var(--accent); cursor: pointer; text-decoration: underline; }
#paramgraph-viewer label:focus-within { outline: 2px solid var(--accent); outline-offset: 2px; }
#files { position: absolute; opacity: 0; width: 1px; }
#said { color: var(--bad); margin: 8px 0 0; } #said:empty { display: none; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: 10px; margin: 10px 0 0;
  padding: 0; list-style: none; }
.gallery button { width: 100%; height: 100%; text-align: left; font: inherit; color: inherit; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px; padding: 10px 12px; cursor: pointer; display: flex;
  flex-direction: column; }
.gallery button:hover, .gallery button:focus-visible { border-color: var(--accent); outline: 0; }
.gallery b, .gallery small { display: block; } .gallery small { color: var(--soft); margin-top: 3px; font-size: 12px; }
main { max-width: 1500px; }
"""
_NUMBERED = re.compile(r"-\d+-")  # story-1-broken
_WAYS = (("-no-graphs", "-graph-trees", "-paramgraph"), ("-kept", ""))


def write_viewer(path: str | os.PathLike[str], recordings: Mapping[str, bytes]) -> Path:
    """Write the page and return its path.

    Args:
        path: where to write; the file can be opened from a disk, or put on any server of static pages.
        recordings: trace files by name, for the gallery.

    Raises:
        TraceError: the file cannot be written, or a recording cannot be read.

    Examples:
        >>> write_viewer("viewer.html", recorded.packed())  # doctest: +SKIP
        PosixPath('viewer.html')
    """
    return written(path, viewer_page(recordings))


def viewer_page(recordings: Mapping[str, bytes]) -> str:
    """The page as text; the same recordings give the same text."""
    traces = {name: loads(packed, name=name) for name, packed in recordings.items()}
    scripts = " ".join(f"'{script_hash(name)}'" for name in ("paramgraph.js", "viewer.js"))
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}"
    data = {
        "families": told_families(),
        "gallery": [{"name": name, "data": base64.b64encode(packed).decode()} for name, packed in recordings.items()],
    }
    labels = list(dict.fromkeys(trace.source.label() for trace in traces.values()))
    alone = "" if len(labels) > 1 else f'<p class="lead">{escape("".join(labels))}</p>'
    gallery = "".join(_story(*story, traces) for story in _stories(traces))
    gallery += "".join(_card(name, trace, len(labels) > 1) for name, trace in traces.items())
    listed = f'<h2>Recordings</h2>{alone}<ul class="gallery">{gallery}</ul>' if gallery else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>paramgraph trace viewer</title>\n<style>\n{style_sheet()}{_STYLE}</style></head>\n<body><main>\n"
        '<header><h1>Trace viewer</h1><p class="lead">Traces of CUDA graphs, as paramgraph_kit.save writes them. '
        "Files stay on this machine: the page has no network.</p></header>\n"
        '<div id="paramgraph-viewer">Drop <code>.pgtrace</code> files here, or '
        '<label>choose them<input id="files" type="file" accept=".pgtrace" multiple></label>. '
        'Several become the steps of one view.<p id="said" role="alert"></p></div>\n'
        f'<div id="{PAGE_PLACE}" class="live" hidden></div>\n{listed}\n'
        "<footer>Made by paramgraph_kit.</footer></main>\n"
        f'<script type="application/json" id="paramgraph-gallery">{_embedded(data)}</script>\n'
        f'<script type="module">{front_end("viewer.js")}</script>\n'
        f'<script type="module">{front_end()}</script></body></html>\n'
    )


def _embedded(data: object) -> str:
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _card(name: str, trace: Trace, sourced: bool) -> str:
    says = f"{content(trace)}. {trace.source.label()}" if sourced else content(trace)
    return _button(name, name, one_line(trace.title), says)


def _stories(traces: Mapping[str, Trace]) -> list[tuple[str, list[str]]]:
    """Recordings that are steps of one view, with what they have in common: numbered ones, and one workload in ways."""
    numbered = sorted(name for name in traces if _NUMBERED.search(name))
    stories: dict[str, list[str]] = {}
    for name in numbered:
        stories.setdefault(_NUMBERED.split(name)[0], []).append(name)
    for ends in _WAYS:
        for base in (name.removesuffix(ends[0]) for name in traces if name.endswith(ends[0])):
            stories[base] = [base + end for end in ends]
    return [
        (base, names) for base, names in stories.items() if len(names) > 1 and all(name in traces for name in names)
    ]


def _story(base: str, names: list[str], traces: Mapping[str, Trace]) -> str:
    title = f"{base}, in {('two', 'three', 'four', 'five')[len(names) - 2]} steps" if len(names) < 6 else base
    return _button("+".join(names), title, one_line(traces[names[-1]].title), ", ".join(names))


def _button(opens: str, name: str, title: str, says: str) -> str:
    return (
        f'<li><button type="button" data-open="{escape(opens)}"><b>{escape(name)}</b>'
        f"<small>{escape(title)}</small><small>{escape(says)}</small></button></li>"
    )
