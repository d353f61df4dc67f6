"""The HTML page of a response: steps coloured by influence, branch points marked."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marsrl_verl.core.inert_text import printable
from marsrl_verl.core.steps import Steps


@dataclass(frozen=True, slots=True)
class ShownResponse:
    """A response with what was found in it."""

    texts: tuple[str, ...]
    """Text of every step."""
    steps: Steps
    influence: tuple[float, ...]
    """By step; empty where it was not measured."""
    branches: Mapping[int, str]
    """What to say of a branch point, by the tokens that come before it."""
    prompt_tokens: int
    log_probs: tuple[float, ...] = ()
    """By token; empty where they are not known."""
    advantages: tuple[tuple[int, float], ...] = ()
    """(end, advantage) of consecutive parts, in tokens; empty where the response was not trained."""
    note: str = ""
    """A sentence about the response."""


def step_texts(tokenizer: Any, response_ids: Sequence[int], steps: Steps) -> tuple[str, ...]:
    """The text of every step."""
    return tuple(
        str(tokenizer.decode(list(response_ids[steps.start(step) : steps.ends[step]])))
        for step in range(len(steps))
    )


_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
.step { border-left: 4px solid #ddd; margin: 2px 0; padding: 2px 10px; white-space: pre-wrap }
.branch { border-left-color: #c0392b }
.point { color: #c0392b; font-size: 75%; display: block }
.figures { color: #777; font-size: 80%; font-variant-numeric: tabular-nums }
"""


def page(shown: ShownResponse, title: str) -> str:
    """The HTML page. The darker a step, the larger its influence; grey steps are not measured."""
    largest = max(shown.influence, default=0.0) or 1.0
    parts = []
    for step, text in enumerate(shown.texts):
        start, end = shown.steps.start(step), shown.steps.ends[step]
        points = [label for token, label in sorted(shown.branches.items()) if start <= token < end]
        measured = bool(shown.influence) and 0 < step < shown.steps.thinking
        share = shown.influence[step] / largest if measured else 0.0
        colour = f"rgba(41, 128, 185, {0.75 * share:.3f})" if measured else "#f4f4f4"
        labels = "".join(f'<span class="point">{_shown(label)}</span>' for label in points)
        name = "step branch" if points else "step"
        parts.append(
            f'<div class="{name}" style="background: {colour}">{labels}<span class="figures">'
            f"{_figures(shown, step)}</span>\n{_shown(text)}</div>"
        )
    head = f"<title>{_shown(title)}</title><meta charset=utf-8><style>{_STYLE}</style>"
    summary = (
        f"<h1>{_shown(title)}</h1><p>{_shown(shown.note)} {len(shown.steps)} steps, "
        f"{shown.steps.ends[-1]} tokens after a prompt of {shown.prompt_tokens}. Influence: the largest mean "
        "attention that later steps pay to a step, over layers and heads. Grey: not measured.</p>"
    )
    return f"<!doctype html><html><head>{head}</head><body>{summary}{''.join(parts)}</body></html>\n"


def _shown(text: str) -> str:
    return html.escape(printable(text))


def _figures(shown: ShownResponse, step: int) -> str:
    start, end = shown.steps.start(step), shown.steps.ends[step]
    figures = [f"step {step}", f"tokens {start} to {end}"]
    if shown.influence:
        figures.append(f"influence {shown.influence[step]:.4f}")
    if shown.log_probs:
        figures.append(f"-log p {-sum(shown.log_probs[start:end]) / (end - start):.3f}")
    advantage = next((value for end, value in shown.advantages if start < end), None)
    if advantage is not None:
        figures.append(f"advantage {advantage:+.3f}")
    return ", ".join(figures)
