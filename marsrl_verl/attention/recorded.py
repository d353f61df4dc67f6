"""A first response of a run, with what its trainer found in it, read from the run's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marsrl_verl.algos.step_cutter import step_cutter
from marsrl_verl.attention.page import ShownResponse, step_texts
from marsrl_verl.core.types import is_correct

_STEP = re.compile(r"step_(\d+)\.jsonl?")


def recorded_response(run: Path, sample: str, model: str | None = None) -> ShownResponse:
    """Read a response, its influence, its continuations and its advantages.

    Args:
        run: the run's folder.
        sample: the response's id.
        model: folder or name of a model with the run's tokenizer; None: what the run's configuration names.

    Raises:
        ValueError: there is no such response, or the trainer did not look at its influence.
    """
    line = next((one for one in _lines(run) if one["sample"] == sample), None)
    if line is None:
        raise ValueError(f"{run} has no sample {sample!r} in rollouts/step_N.jsonl (key `sample`)")
    if not line.get("influence"):
        continues = f" (it continues {line['parent']})" if line.get("prefix_tokens") else ""
        raise ValueError(
            f"sample {sample}{continues} has no influence: the trainer computes that of AttnRL's first "
            "responses, where criterion or filter need it"
        )
    tokenizer = _tokenizer(run, model)
    ids = line["token_ids"]
    steps = step_cutter(tokenizer).cut(ids)
    if list(steps.ends) != line["steps"]:
        raise ValueError(
            f"sample {sample}: its steps end at {line['steps'][:5]}…, with this tokenizer at "
            f"{list(steps.ends[:5])}…; name the run's model with --model"
        )
    step, parts = _trained(run, sample)
    trained = f"trained in step {step}" if step else "not trained"
    return ShownResponse(
        step_texts(tokenizer, ids, steps),
        steps,
        tuple(line["influence"]),
        _branches(run, sample),
        line["prompt_tokens"],
        advantages=parts,
        note=f"Reward {line['reward']:g}, sampled in step {line['step']}, {trained}.",
    )


def _files(folder: Path) -> list[tuple[int, Path]]:
    found = ((_STEP.fullmatch(path.name), path) for path in folder.glob("step_*"))
    return sorted((int(match.group(1)), path) for match, path in found if match)


def _lines(run: Path) -> Iterator[dict[str, Any]]:
    for _, path in _files(run / "rollouts"):
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


def _branches(run: Path, sample: str) -> dict[int, str]:
    """What was continued, by the tokens that were kept."""
    rewards: dict[int, list[float]] = {}
    for line in _lines(run):
        if line["parent"] == sample and line.get("prefix_tokens"):
            rewards.setdefault(line["prefix_tokens"], []).append(line["reward"])
    return {
        token: f"branch point: {len(found)} continuations, {sum(map(is_correct, found))} right"
        for token, found in rewards.items()
    }


def _trained(run: Path, sample: str) -> tuple[int | None, tuple[tuple[int, float], ...]]:
    for step, path in _files(run / "trained"):
        parts = json.loads(path.read_text(encoding="utf-8")).get(sample)
        if parts is not None:
            return step, tuple((int(end), float(value)) for end, value in parts)
    return None, ()


def _tokenizer(run: Path, model: str | None) -> Any:
    # `attention` is importable with torch alone.
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    if model is None:
        config = OmegaConf.load(run / "config.yaml")
        model = str(OmegaConf.select(config, "actor_rollout_ref.model.path"))
    return AutoTokenizer.from_pretrained(model)
