"""The shell of every page: one file that needs nothing else, light and dark, on a phone and on paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

_STYLE = """
:root { --paper: #fdfdfc; --ink: #1d2125; --soft: #5a626b; --line: #dcdfe3; --panel: #f4f5f6; --accent: #1f5fa8;
  --danger: #9d1c1c; --danger-paper: #fbeaea; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181b; --ink: #e8eaec; --soft: #a3abb4; --line: #343a40;
  --panel: #1d2125; --accent: #82b4ee; --danger: #ffb3ad; --danger-paper: #3a1716; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 3rem 0 .6rem; padding-top: 1.1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p, li, dd { max-width: 44rem; }
.soft { color: var(--soft); }
.facts { display: flex; flex-wrap: wrap; gap: 1rem 2.4rem; margin: 1.6rem 0 0; padding: 0; list-style: none; }
.facts li { min-width: 6rem; }
.facts b { display: block; font-size: 1.7rem; line-height: 1.2; font-weight: 600; font-variant-numeric: tabular-nums; }
.facts span { color: var(--soft); font-size: .9rem; }
.banner { border-left: .35rem solid var(--danger); background: var(--danger-paper); color: var(--danger);
  padding: .8rem 1rem; margin: 0 0 1.8rem; font-weight: 600; }
.scroll { overflow-x: auto; }
sup { line-height: 0; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; font-size: .94rem; }
th, td { text-align: right; padding: .35rem .8rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { color: var(--soft); font-weight: 500; }
.even { width: 100%; table-layout: fixed; }
.even th, .even td { white-space: normal; overflow-wrap: anywhere; }
.even th:first-child { width: 10rem; }
.sheet { width: 100%; table-layout: fixed; margin: .3rem 0; }
.sheet th, .sheet td { border: 0; padding: .2rem; text-align: center; white-space: normal; overflow-wrap: anywhere; }
.sheet th:first-child { width: 3rem; }
.sheet img { image-rendering: auto; }
img { max-width: 100%; height: auto; vertical-align: middle; image-rendering: pixelated; border-radius: 2px; }
figure { margin: 1rem 0; }
figcaption { color: var(--soft); font-size: .9rem; }
figcaption:first-child { margin-bottom: .4rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 2rem; }
.chart svg { width: 100%; height: auto; display: block; }
.chart text { fill: var(--soft); font-size: 12px; font-family: inherit; font-variant-numeric: tabular-nums; }
.chart .grid { stroke: var(--line); }
.chart .level { stroke: var(--soft); stroke-dasharray: 5 4; }
.curve polyline { fill: none; stroke-width: 2; }
.curve { stroke: color-mix(in srgb, var(--accent) var(--w), var(--line)); }
.curve circle { fill: color-mix(in srgb, var(--accent) var(--w), var(--line)); stroke: none; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; padding: 0; margin: .3rem 0 0; }
.swatch { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .35rem;
  background: color-mix(in srgb, var(--accent) var(--w), var(--line)); vertical-align: -.05rem; }
.strips { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .45rem .9rem; align-items: center; }
.strips .name { color: var(--soft); font-size: .9rem; max-width: 9rem; overflow-wrap: anywhere; }
.slider { display: none; align-items: center; gap: .9rem; margin: .8rem 0; }
.js .slider { display: flex; flex-wrap: wrap; }
@media (max-width: 30rem) { .chart text { font-size: 17px; } .facts { gap: 1rem 1.6rem; } }
.slider input { width: min(24rem, 60vw); accent-color: var(--accent); }
.js .generation[hidden], .js .slider ~ .generation figcaption { display: none; }
pre { background: var(--panel); padding: 1rem; overflow-x: auto; font-size: .85rem; line-height: 1.45;
  border-radius: 4px; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
dt { font-weight: 600; margin-top: .7rem; }
dd { margin: 0; }
details summary { cursor: pointer; color: var(--accent); }
a { color: var(--accent); }
@media print { body { font-size: 11pt; background: white; } .slider { display: none !important; }
  .generation[hidden], .generation figcaption { display: block !important; }
  h2 { break-after: avoid; } figure, tr { break-inside: avoid; }
  details > * { display: block; } }
"""

_SCRIPT = """
document.documentElement.classList.add("js");
const slider = document.getElementById("iteration");
if (slider) {
  const shown = document.getElementById("shown");
  const generations = [...document.querySelectorAll(".generation")];
  const show = () => {
    generations.forEach((one, i) => { one.hidden = i !== Number(slider.value); });
    shown.textContent = generations[Number(slider.value)].dataset.name;
    slider.setAttribute("aria-valuetext", shown.textContent);
  };
  slider.addEventListener("input", show);
  slider.value = slider.max;
  show();
}
"""


def page(title: str, body: str, banner: str = "") -> str:
    """A whole HTML page; `body` and `banner` are HTML and plain text."""
    warning = f'<p class="banner" role="alert">{escape(banner)}</p>' if banner else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n'
        f"<main>\n{warning}{body}\n</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A section of a page; `parts` are HTML."""
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(part for part in parts if part) + "\n</section>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{_inline(text)}</p>' if kind else f"<p>{_inline(text)}</p>"


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Large numbers with their names: (number, name)."""
    items = "".join(f"<li><b>{escape(number)}</b><span>{escape(name)}</span></li>" for number, name in pairs)
    return f'<ul class="facts">{items}</ul>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, even: bool = False) -> str:
    """A table of plain text; an even one has columns of one width, in which long cells are broken."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    kind = f' class="even" style="min-width: {5 + 5 * len(head)}rem"' if even else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def listed(sentences: Sequence[str]) -> str:
    """A list of plain sentences."""
    return "<ul>" + "".join(f"<li>{_inline(sentence)}</li>" for sentence in sentences) + "</ul>"


def meanings(pairs: Sequence[tuple[str, str]]) -> str:
    """Words and what they mean."""
    return "<dl>" + "".join(f"<dt>{escape(word)}</dt><dd>{_inline(text)}</dd>" for word, text in pairs) + "</dl>"


def _inline(text: str) -> str:
    """Plain text as HTML, in which `…` is code and e^ε a power."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text)).replace("e^ε", "e<sup>ε</sup>")
