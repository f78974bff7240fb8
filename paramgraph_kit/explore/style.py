"""The page's style sheet: one set of variables for light, one for dark, and families' colours from ``names``."""

from __future__ import annotations

from paramgraph_kit.explore.charts import COLOURS
from paramgraph_kit.explore.names import ALL_FAMILIES

# What the light page's colours become on a dark one; line colours need more light, fills less.
_DARK_LINES = ("#7fb0f5", "#f0a06c", "#8fcf70", "#c79af0", "#5cc9bd", "#e0b04f")

_BASE = """
:root { --paper: #fbfbfa; --card: #ffffff; --ink: #1f2328; --soft: #5b6169; --line: #e3e4e1; --accent: #2563b8;
  --good: #2d6a1f; --good-back: #e6f3e0; --bad: #a03a12; --bad-back: #fdebe2; --code: #f4f4f1;
  color-scheme: light dark; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 28px 72px; }
h1 { font-size: 26px; line-height: 1.25; letter-spacing: -0.01em; margin: 0 0 10px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 44px 0 4px; letter-spacing: -0.005em; }
h3 { font-size: 14px; margin: 22px 0 8px; color: var(--soft); font-weight: 600; }
p.lead { color: var(--soft); margin: 0 0 14px; max-width: 100ch; text-wrap: pretty; }
code, pre, .mono { font-family: ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, monospace; font-size: 12.5px; }
pre { background: var(--code); border-radius: 8px; padding: 12px 14px; overflow-x: auto; margin: 8px 0;
  line-height: 1.45; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px;
  margin: 12px 0; }
.source { display: inline-flex; gap: 8px; align-items: center; font-size: 13px; color: var(--soft); }
.tag { font-size: 11px; font-weight: 700; letter-spacing: 0.04em; padding: 2px 8px; border-radius: 999px;
  white-space: nowrap; background: var(--code); color: var(--soft); text-transform: uppercase; }
.tag.yes { background: var(--good-back); color: var(--good); } .tag.no { background: var(--bad-back);
  color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(122px, 1fr)); gap: 12px; margin: 26px 0 0;
  padding: 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 12px 14px; margin: 0; }
.tile dt { font-size: 12px; color: var(--soft); } .tile dd { margin: 2px 0 0; font-size: 20px; font-weight: 600;
  white-space: nowrap;
  font-variant-numeric: tabular-nums; letter-spacing: -0.01em; }
.scroll { overflow-x: auto; } .dag { max-height: 620px; overflow: auto; text-align: center; padding: 12px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 12px; padding: 6px 14px 6px 0;
  white-space: nowrap; }
td { border-top: 1px solid var(--line); padding: 8px 14px 8px 0; vertical-align: top; overflow-wrap: anywhere; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.fix, th.fix { white-space: nowrap; width: 1%; padding-right: 22px; }
.card > h3 { margin-top: 0; }
.why { color: var(--soft); } .why code { color: var(--ink); }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }
summary:focus-visible, .dag:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 16px; font-size: 12px; color: var(--soft); margin: 8px 0 0;
  padding: 0;
  list-style: none; } .legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px;
  margin-right: 6px;
  border: 1.2px solid; vertical-align: -1px; }
.live { margin: 28px 0 0; }
footer { margin-top: 56px; color: var(--soft); font-size: 12.5px; border-top: 1px solid var(--line);
  padding-top: 14px; }
svg.chart { width: 100%; height: auto; display: block; } svg.share { display: block; margin: 4px 0 10px; }
.dag svg { max-width: 100%; height: auto; font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 10px; }
.dag svg text { fill: var(--ink); } .dag svg > g > polygon { fill: none; stroke: none; }
.dag svg .edge path { stroke: var(--soft); } .dag svg .edge polygon { fill: var(--soft); stroke: var(--soft); }
.chart .grid { stroke: var(--line); } .chart text.tick, .chart text.head { fill: var(--soft); }
.share .rest { fill: var(--line); } .share .part { fill: var(--accent); }
"""

_DARK = """
:root { --paper: #16181b; --card: #1d2024; --ink: #e7e8ea; --soft: #a2a8b0; --line: #33373d; --accent: #7fb0f5;
  --good: #a5dc8b; --good-back: #22331c; --bad: #f3a883; --bad-back: #3b241a; --code: #24282d; }
"""


def style_sheet() -> str:
    """The whole sheet as text."""
    light, dark = [_BASE.strip()], [_DARK.strip()]
    for family in ALL_FAMILIES:
        shapes = f".{family.key} > g :is(path, polygon, ellipse, polyline)"
        light.append(f".dag svg {shapes} {{ fill: {family.fill}; stroke: {family.line}; }}")
        light.append(f".legend .{family.key} {{ background: {family.fill}; border-color: {family.line}; }}")
        mix = f"color-mix(in srgb, {family.line} 34%, #1d2024)"
        edge = f"color-mix(in srgb, {family.line} 55%, #ffffff)"
        dark.append(f".dag svg {shapes} {{ fill: {mix}; stroke: {edge}; }}")
        dark.append(f".legend .{family.key} {{ background: {mix}; border-color: {edge}; }}")
    for n, (colour, bright) in enumerate(zip(COLOURS, _DARK_LINES, strict=True)):
        dark.append(f".chart .s{n}.line {{ stroke: {bright}; }} .chart .s{n}.area {{ fill: {bright}; }}")
        dark.append(f'.chart text[fill="{colour}"] {{ fill: {bright}; }}')
    return "\n".join(light) + "\n@media (prefers-color-scheme: dark) {\n" + "\n".join(dark) + "\n}"
