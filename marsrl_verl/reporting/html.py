"""A report as Markdown and, beside it, as one HTML file that shows the same and loads nothing."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marsrl_verl.reporting.files import write_atomic

if TYPE_CHECKING:
    from markdown_it.token import Token

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Whatever a report holds, a browser runs no script of it and fetches nothing."""

_STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --quiet: #59636e; --back: #f6f8fa; --link: #0550ae }
@media (prefers-color-scheme: dark) {
  :root { --line: #3d444d; --quiet: #9198a1; --back: #151b23; --link: #79b8ff }
  body { background: #0d1117; color: #e6edf3 }
  img { filter: invert(.93) hue-rotate(180deg) }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem }
body { overflow-wrap: anywhere }
h1, h2 { line-height: 1.25; margin: 1.6em 0 .5em } h1 { margin-top: .5em }
a { color: var(--link) }
table { border-collapse: collapse; display: block; margin: 1rem 0; max-width: 100% }
table { overflow-x: auto; overflow-wrap: normal }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums }
td:first-child { min-width: 8rem }
thead th { color: var(--quiet); white-space: nowrap } td[style*=right] { white-space: nowrap }
pre { background: var(--back); padding: .7rem; white-space: pre-wrap; max-height: 30rem; overflow-y: auto }
img { width: 30rem; max-width: 100%; margin: .2rem; vertical-align: top } img:only-child { width: 100% }
@media (max-width: 40rem) {
  th, td { padding: .25rem .35rem; font-size: .8rem }
  td:first-child { min-width: 5rem }
}
"""


def write_report(path: Path, text: str) -> None:
    """Writes a report's Markdown, and its HTML under the same name. Pictures are those whose paths it names,
    relative to its folder."""
    write_atomic(path, text)
    write_atomic(path.with_suffix(".html"), report_html(text, path.parent))


def report_html(text: str, folder: Path) -> str:
    """The HTML of Markdown. HTML in it stays text; a PNG inside `folder` is part of the file, of any other
    image its description is shown."""
    from markdown_it import MarkdownIt

    parser: Any = MarkdownIt("commonmark", {"html": False}).enable("table")

    def plain(token: Token, options: Any) -> str:
        return html.escape(parser.renderer.renderInlineAsText(token.children or [], options, {}))

    def image(tokens: Sequence[Token], number: int, options: Any, env: Any) -> str:
        about = plain(tokens[number], options)
        found = (folder / str(tokens[number].attrs["src"])).resolve()
        if found.suffix != ".png" or not found.is_relative_to(folder.resolve()) or not found.is_file():
            return about
        return (
            f'<img alt="{about}" src="data:image/png;base64,{base64.b64encode(found.read_bytes()).decode()}">'
        )

    parser.renderer.rules["image"] = image
    tokens = parser.parse(text)
    heading = next((inline for tag, inline in pairwise(tokens) if tag.type == "heading_open"), None)
    title = "Report" if heading is None else plain(heading, parser.options)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style></head>\n"
        f"<body>\n{parser.renderer.render(tokens, parser.options, {})}</body></html>\n"
    )
