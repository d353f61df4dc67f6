"""`data.filter_overlong_prompts`: problems that would not be asked leave the dataset."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.verl_adapter.components import build_prompts, chat_tokenizer
from marsrl_verl.verl_adapter.trainer.problem_stream import problems_of


def filter_overlong_prompts(dataset: Any, config: DictConfig, tokenizer: Any, split: str = "train") -> None:
    """Take the rows out whose prompt is longer than `max_prompt_tokens` of the method's first role.

    The prompt is the one that this role gets, its instruction and the chat template included. Nothing is
    done where that role has a frozen policy, whose prompts are not ours to measure.

    Args:
        dataset: verl's `RLHFDataset`; changed in place.
        config: the resolved configuration.
        tokenizer: the model's.
        split: for messages: `train` or `val`.

    Raises:
        TypeError: a dataset class of another kind (`data.custom_cls`) has no rows to take out.
        ValueError: no row is left.
    """
    settings = typed_settings(config)
    role = method_class(settings.algo.name).first_role(settings.algo)
    if role in settings.frozen_roles:
        return
    rows = getattr(dataset, "dataframe", None)
    if rows is None:
        raise TypeError(
            f"data.filter_overlong_prompts: {type(dataset).__name__} keeps no rows in `dataframe`, as verl's "
            "RLHFDataset does; set it to false and filter in your class (data.custom_cls)"
        )
    prompts, chat = build_prompts(settings), chat_tokenizer(config, tokenizer)
    limit = settings.roles[role].max_prompt_tokens

    def fits(row: dict[str, Any]) -> bool:
        columns = {"raw_prompt": [row[config.data.prompt_key]], "reward_model": [row["reward_model"]]}
        (problem,) = problems_of({**columns, "data_source": [row["data_source"]]}, 0, "")
        return len(chat.prompt_ids(prompts.problem(problem))) <= limit

    kept = [number for number, row in enumerate(rows) if fits(row)]
    if not kept:
        raise ValueError(
            f"data.filter_overlong_prompts leaves none of {len(rows)} problems: all prompts have more than "
            f"marsrl.roles.{role}.max_prompt_tokens = {limit} tokens"
        )
    print(
        f"data.filter_overlong_prompts leaves out {len(rows) - len(kept):,} of {len(rows):,} {split} "
        f"problems: over marsrl.roles.{role}.max_prompt_tokens = {limit} tokens",
        flush=True,
    )
    if len(kept) < len(rows):
        dataset.dataframe = rows.select(kept)
