"""`data.filter_overlong_prompts`: removes problems from the dataset that would be skipped."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.verl_adapter.components import build_prompts, chat_tokenizer, opening_limits
from marsrl_verl.verl_adapter.trainer.problem_stream import limits_text, problems_of

_COLUMNS = ("reward_model", "data_source", "extra_info", "ability")
"""Columns of verl's rows that make a problem, beside its prompt."""


def filter_overlong_prompts(dataset: Any, config: DictConfig, tokenizer: Any, split: str = "train") -> None:
    """Takes the rows out of verl's `RLHFDataset` that would be skipped: a prompt of theirs
    (`Method.opening_prompts`) is longer than its role's `max_prompt_tokens`.

    Prompts are measured as they are sent, with instruction, chat template and what the row brings along.
    Those of a role with a frozen policy are not ours to measure. The split (`train` or `val`) is for
    messages.

    Raises:
        TypeError: a dataset class of another kind (`data.custom_cls`) has no rows to take out.
        ValueError: no row is left.
    """
    settings = typed_settings(config)
    method, prompts = method_class(settings.algo.name), build_prompts(settings)
    limits = opening_limits(settings, prompts)
    if not limits:
        return
    rows = getattr(dataset, "dataframe", None)
    if rows is None:
        raise TypeError(
            f"data.filter_overlong_prompts: {type(dataset).__name__} keeps no rows in `dataframe`, as verl's "
            "RLHFDataset does; set it to false and filter in your class (data.custom_cls)"
        )
    chat = chat_tokenizer(config, tokenizer)

    def fits(row: dict[str, Any]) -> bool:
        names = {"raw_prompt": config.data.prompt_key} | {name: name for name in _COLUMNS if name in row}
        (problem,) = problems_of({name: [row[column]] for name, column in names.items()}, 0, "")
        sent = method.opening_prompts(settings.algo, prompts, problem)
        return all(len(chat.prompt_ids(sent[role])) <= limit for role, limit in limits.items())

    kept = [number for number, row in enumerate(rows) if fits(row)]
    over = limits_text(limits)
    if not kept:
        raise ValueError(
            f"data.filter_overlong_prompts leaves none of {len(rows)} problems: all prompts have more than "
            f"{over} tokens"
        )
    print(
        f"data.filter_overlong_prompts leaves out {len(rows) - len(kept):,} of {len(rows):,} {split} "
        f"problems: over {over} tokens",
        flush=True,
    )
    if len(kept) < len(rows):
        dataset.dataframe = rows.select(kept)
