"""A page that shows where later reasoning looks back: steps coloured by influence, branch points marked.

    python -m marsrl_verl.algos.attnrl.show --model Qwen/Qwen3-0.6B --question "…" --text response.txt

`--text` is a file with a response, or the response itself; `--question` is put into the model's chat template
before it. Writes an HTML file and prints the branch points. Unless told otherwise they are chosen as in
training with `algo=attnrl`.

    python -m marsrl_verl.algos.attnrl.show --run outputs/default --sample train-3-1/initial/0#2

shows a response of a run as its trainer saw it: its influence, the branch points that were chosen with
what their continuations earned, and its advantages. It needs no model, only the tokenizer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marsrl_verl.algos.attnrl.branch_points import (
    BranchCriterion,
    BranchRule,
    FciAggregation,
    ResponseFeatures,
    aggregated_influence,
    choose_branch_points,
)
from marsrl_verl.algos.attnrl.method import DELTA
from marsrl_verl.algos.attnrl.page import ShownResponse, page, step_texts
from marsrl_verl.algos.attnrl.step_cutter import StepEnds, step_cutter
from marsrl_verl.attention.choices import FciBackend
from marsrl_verl.attention.collector import collect_influence
from marsrl_verl.attention.layout import build_layout
from marsrl_verl.core.inert_text import printable
from marsrl_verl.core.steps import Steps
from marsrl_verl.core.trajectory import is_correct
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.settings.reading import read

_LOGITS_AT_ONCE = 1024
"""Tokens."""
_ENDS = ("right", "wrong", "failed")
_STEP = re.compile(r"step_(\d+)\.jsonl?")


def measure_response(
    model: Any, prompt_ids: list[int], response_ids: list[int], steps: Steps, delta: int, backend: str
) -> tuple[list[float], list[float], list[float]]:
    """FCI of each step, and of each token its log-probability and the entropy of what it was drawn from, from
    one forward pass.

    Args:
        model: a transformers model whose attention comes from the registry.
        prompt_ids: what the response answers; at least one token.
        response_ids: at least one token.
        steps: the response's steps.
        delta: least distance in steps from which attention counts.
        backend: see `FciBackend`.
    """
    ids = torch.tensor([prompt_ids + response_ids], device=model.device)
    step_ids = torch.tensor([0] * len(prompt_ids) + [step + 1 for step in steps.step_ids()])
    measured = (step_ids > 1) & (step_ids <= steps.thinking)
    layout = build_layout(step_ids, measured, delta=delta).to(model.device)
    with torch.no_grad(), collect_influence(model, layout, backend) as collector:
        logits = model(ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1]
    chosen = torch.tensor(response_ids, device=logits.device)[:, None]
    # In pieces: in float32 a large vocabulary takes more memory than the model.
    pieces = zip(logits.split(_LOGITS_AT_ONCE), chosen.split(_LOGITS_AT_ONCE), strict=True)
    log_probs, entropies = [], []
    for rows, drawn in pieces:
        every = rows.float().log_softmax(-1)
        log_probs += every.gather(1, drawn)[:, 0].tolist()
        entropies += (-(every.exp() * every).sum(-1)).tolist()
    return collector.by_step()[1:].tolist(), log_probs, entropies  # the prompt is step 0


def _look_at(
    model: Any, tokenizer: Any, response: str, rule: BranchRule, one: argparse.Namespace
) -> ShownResponse:
    """Tokenises, measures and chooses branch points, as training does."""
    prompt = one.question or ""
    if one.question is not None and tokenizer.chat_template:
        chat = [{"role": "user", "content": one.question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    if not prompt_ids:
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        prompt_ids = [start]
    response_ids = tokenizer.encode(response, add_special_tokens=False)
    if not response_ids:
        raise ValueError("the response is empty: --text needs at least one token")

    cutter = step_cutter(tokenizer, StepEnds(one.step_ends))
    steps = cutter.cut(response_ids)
    sums, log_probs, entropies = measure_response(
        model, prompt_ids, response_ids, steps, one.delta, one.backend
    )
    influence = aggregated_influence(sums, one.delta, FciAggregation(one.fci_aggregation))
    features = ResponseFeatures(
        steps,
        len(prompt_ids),
        influence,
        entropies if rule.criterion is BranchCriterion.ENTROPY else [-value for value in log_probs],
        answer_token=cutter.first_final_word(response_ids),
    )
    points = choose_branch_points(features, rule, np.random.default_rng(0))
    return ShownResponse(
        step_texts(tokenizer, response_ids, steps),
        steps,
        influence,
        {point.token: "branch point" for point in points},
        len(prompt_ids),
        log_probs=tuple(log_probs),
    )


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
    # Imported late: --help and errors need no transformers.
    from transformers import AutoTokenizer

    source = str(_setting(run, "actor_rollout_ref.model.path")) if model is None else model
    tokenizer = AutoTokenizer.from_pretrained(source)
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
    from omegaconf import OmegaConf

    return OmegaConf.select(OmegaConf.load(run / "config.yaml"), key)


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = _parser()
    one = parser.parse_args(arguments)
    if (one.run is None) != (one.sample is None):
        parser.error("--run and --sample belong together")
    if one.run is None and (one.model is None or one.text is None):
        parser.error("--model and --text are needed, or --run and --sample")
    if one.run is not None and one.text is not None:
        parser.error("--text is another response than that of --run")
    try:
        if one.run is None:
            shown, title = _measured(one), f"Influence of steps, {one.model}"
        else:
            shown = recorded_response(one.run, one.sample, one.model)
            title = f"{one.sample} of {one.run}"
    except (OSError, ValueError, ConfigError) as error:
        print(f"attnrl.show: {printable(error)}", file=sys.stderr)
        return 2
    one.output.write_text(page(shown, title), encoding="utf-8")
    points = ", ".join(str(token) for token in sorted(shown.branches)) or "none"
    print(f"{len(shown.steps)} steps, {shown.steps.ends[-1]} tokens; branch points after tokens: {points}")
    print(f"wrote {one.output}")
    return 0


def _measured(one: argparse.Namespace) -> ShownResponse:
    if "/" not in one.model and not Path(one.model).is_dir():
        raise ValueError(f"{one.model} is no folder here; give a model's, or a hub id organisation/name")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # os.path takes a text that is too long for a name for no file; pathlib raises.
    text = Path(one.text).read_text(encoding="utf-8") if os.path.isfile(one.text) else one.text
    named = ("criterion", "num_branch_points", "top_share", "min_token_distance", "shortfall")
    rule = read(BranchRule, {name: getattr(one, name) for name in named}, "rule")
    try:
        tokenizer = AutoTokenizer.from_pretrained(one.model)
        model = AutoModelForCausalLM.from_pretrained(one.model, attn_implementation="sdpa", dtype="auto")
    except Exception as error:  # of each library in its own way
        raise ValueError(f"the model {one.model} can't be loaded: {error}") from error
    return _look_at(model.to(one.device).eval(), tokenizer, text, rule, one)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m marsrl_verl.algos.attnrl.show",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = BranchRule()
    add = parser.add_argument

    def add_choice(name: str, default: Choice, help_text: str | None = None) -> None:
        add(name, choices=[one.value for one in type(default)], default=default.value, help=help_text)

    add("--model", help="folder or name of a transformers model; with --run the one whose tokenizer it had")
    add("--text", help="the response, or a file that holds it")
    add("--run", type=Path, help="folder of a run")
    add("--sample", help="id of a response of it, as in rollouts/step_N.jsonl")
    add("--question", help="what it answers")
    add("--output", type=Path, default=Path("attention.html"))
    add("--delta", type=int, default=DELTA, help="least distance in steps from which attention counts")
    add_choice("--criterion", BranchCriterion(defaults.criterion))
    add_choice("--fci-aggregation", FciAggregation.SUM)
    add_choice("--step-ends", StepEnds.BREAKS)
    add("--branch-points", dest="num_branch_points", type=int, default=defaults.num_branch_points)
    add("--top-share", type=float, default=defaults.top_share)
    add("--min-token-distance", type=int, default=defaults.min_token_distance)
    add_choice(
        "--shortfall", defaults.shortfall, "where too few steps qualify: %(default)s unless told otherwise"
    )
    add_choice("--backend", FciBackend.AUTO)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


if __name__ == "__main__":
    sys.exit(main())
