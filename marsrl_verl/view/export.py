"""The page as one file, for who has no server: all curves, and the rollouts of some problems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marsrl_verl.reporting.files import write_atomic
from marsrl_verl.view.run import Filter, ViewedRun, plain
from marsrl_verl.view.server import STATIC

_SCRIPT = re.compile(r'<script src="static/([\w/.]+)"></script>')
_STYLE = re.compile(r'<link rel="stylesheet" href="static/([\w/.]+)">')
_NOWHERE = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def export(runs: Sequence[ViewedRun], target: Path, problems: int) -> None:
    """Writes the page.

    Args:
        runs: shown.
        target: the file.
        problems: of so many of each run, evenly chosen, there are all rollouts.
    """
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    page = _STYLE.sub(lambda found: f"<style>{_text(found.group(1))}</style>", page)
    page = _SCRIPT.sub(lambda found: f"<script>{_text(found.group(1))}</script>", page)
    data = plain({"runs": [_content(run, problems) for run in runs]})
    # Nothing in a string of JSON can end the element that holds it.
    held = f'<script id="data" type="application/json">{data.replace("<", chr(92) + "u003c")}</script>'
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_NOWHERE}">'
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}', 1)
    write_atomic(target, page.replace('<div id="page"></div>', f'<div id="page"></div>\n{held}', 1))


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _content(run: ViewedRun, problems: int) -> dict[str, Any]:
    every = run.problems(Filter(), 0, 2**31)["rows"]
    names = list(dict.fromkeys(one["problem"] for one in every))
    step = max(len(names) / problems, 1.0)
    chosen = {names[int(k * step)] for k in range(min(problems, len(names)))}
    rows = [one for one in run.table().to_pylist() if one["problem"] in chosen]
    run.add_advantages(rows)
    lines = {f"{one['file']}|{one['row']}": run.line(one["file"], one["row"]) for one in rows}
    for one in rows:
        line = lines[f"{one['file']}|{one['row']}"]["line"]
        one["text"] = f"{line['prompt']}\n{line['response']}\n{line['problem']['question']}"
    return {
        "about": {"name": run.name, "path": str(run.path)},
        "overview": run.overview(),
        "metrics": run.metrics(),
        "choices": run.choices(),
        "rows": rows,
        "lines": lines,
    }
