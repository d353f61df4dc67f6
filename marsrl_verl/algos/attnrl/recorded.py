"""A response of a run, with what its trainer found in it, read from the run's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marsrl_verl.algos.attnrl.page import ShownResponse, step_texts
from marsrl_verl.algos.attnrl.step_cutter import StepEnds, step_cutter
from marsrl_verl.core.trajectory import is_correct

_ENDS = ("right", "wrong", "failed")
_STEP = re.compile(r"step_(\d+)\.jsonl?")


def recorded_response(run: Path, trajectory: str, model: str | None = None) -> ShownResponse:
    """Read a response, its influence, its continuations and its advantages.

    Args:
        run: the run's folder.
        trajectory: the response's id; of several sequences the first is shown.
        model: folder or name of a model with the run's tokenizer; None: what the run's configuration names.

    Raises:
        ValueError: there is no such response, it has no tokens, or files or tokenizer do not fit it.
    """
    if not (run / "rollouts").is_dir():
        raise ValueError(f"{run} holds no rollouts/: give the folder of a run, e.g. outputs/NAME")
    found = (one for one in _lines(run) if one["trajectory"] == trajectory and one["sequence"] == 0)
    if (line := next(found, None)) is None:
        raise ValueError(
            f"{run} has no trajectory {trajectory!r} in rollouts/step_N.jsonl (key `trajectory`)"
        )
    if not line["token_ids"]:
        raise ValueError(f"trajectory {trajectory} has no tokens: {line['error'] or line['finish_reason']}")
    tokenizer = _tokenizer(run, model)
    ids = line["token_ids"]
    ends = StepEnds(_setting(run, "marsrl.algo.step_ends") or StepEnds.BREAKS)
    steps = step_cutter(tokenizer, ends).cut(ids)
    if line.get("steps") and list(steps.ends) != line["steps"]:
        raise ValueError(
            f"trajectory {trajectory}: its steps end at {line['steps'][:5]}…, with this tokenizer at "
            f"{list(steps.ends[:5])}…; name the run's model with --model"
        )
    trained_in, advantages = _trained(run, trajectory)
    return ShownResponse(
        step_texts(tokenizer, ids, steps),
        steps,
        tuple(line.get("influence") or ()),
        _branches(run, trajectory),
        line["prompt_tokens"],
        advantages=advantages,
        note=_note(line, trained_in),
    )


def _note(line: dict[str, Any], trained_in: int | None) -> str:
    reward = f"Failed ({line['error']})" if line["error"] else f"Reward {line['reward']:g}"
    prefix = line.get("prefix_tokens")
    begins = f", the first {prefix} tokens are those of {line['parent']}" if prefix else ""
    trained = f"trained in step {trained_in}" if trained_in else "not trained"
    return f"{reward}, sampled in step {line['step']}{begins}, {trained}."


def _files(folder: Path) -> list[tuple[int, Path]]:
    found = ((_STEP.fullmatch(path.name), path) for path in folder.glob("step_*"))
    return sorted((int(match.group(1)), path) for match, path in found if match)


def _lines(run: Path) -> Iterator[dict[str, Any]]:
    for _, path in _files(run / "rollouts"):
        with path.open(encoding="utf-8") as file:
            for text in file:
                line = json.loads(text)
                if "trajectory" not in line:
                    what = "is of an earlier version of this program: lines have no `trajectory`"
                    raise ValueError(f"{path} {what}")
                yield line


def _branches(run: Path, trajectory: str) -> dict[int, str]:
    """What was continued, by the tokens that were kept."""
    ends: dict[int, list[str]] = {}
    for line in _lines(run):
        if line["parent"] == trajectory and line.get("prefix_tokens"):
            end = "failed" if line["error"] else "right" if is_correct(line["reward"]) else "wrong"
            ends.setdefault(line["prefix_tokens"], []).append(end)
    labels = {}
    for token, found in ends.items():
        parts = ", ".join(f"{found.count(end)} {end}" for end in _ENDS if end in found)
        labels[token] = f"branch point: {len(found)} continuations, {parts}"
    return labels


def _trained(run: Path, trajectory: str) -> tuple[int | None, tuple[tuple[int, float], ...]]:
    for step, path in _files(run / "trained"):
        sequences = json.loads(path.read_text(encoding="utf-8")).get(trajectory)
        if sequences is not None:
            return step, tuple((int(end), float(value)) for end, value in sequences[0])
    return None, ()


def _setting(run: Path, key: str) -> Any:
    # this module is importable with torch alone.
    from omegaconf import OmegaConf

    return OmegaConf.select(OmegaConf.load(run / "config.yaml"), key)


def _tokenizer(run: Path, model: str | None) -> Any:
    # this module is importable with torch alone.
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model or str(_setting(run, "actor_rollout_ref.model.path")))
