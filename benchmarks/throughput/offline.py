"""vLLM's own offline interface, `LLM.generate`, with the engine settings of training.

Started as `python -m benchmarks.throughput.offline`. Prompts are tokenised before the clock starts.
"""

from __future__ import annotations

import gc
import os
import time
from dataclasses import replace
from typing import Any

from benchmarks.throughput.plan import AS_STARTED, OFFLINE, Plan, Row, Workload, sampling_of, write_results
from benchmarks.throughput.processes import TAG, processor_seconds, spent
from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.rollout.generation import Decoding
from marsrl_verl.verl_adapter.components import (
    build_prompts,
    chat_tokenizer,
    sampling_settings,
)
from marsrl_verl.verl_adapter.environment import prepare_environment
from marsrl_verl.verl_adapter.rollout_server.offline_engine import engine_arguments, load_tokenizer


def main() -> None:
    plan = Plan.read()
    config = plan.config()
    prepare_environment(config)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    import torch
    from vllm import LLM

    arguments = engine_arguments(config, int(config.actor_rollout_ref.rollout.max_model_len))
    llm = LLM(**arguments)
    settings = typed_settings(config)
    chat, prompts = chat_tokenizer(config, load_tokenizer(config)), build_prompts(settings)
    rows = []
    variants = ((AS_STARTED, True, False),) if plan.own_processes else OFFLINE
    for workload in (one for one in plan.workloads if one.turns == 1):
        for number in range(plan.rounds + 1):
            for part, (variant, text, log_probs) in enumerate(variants):
                problems = plan.round_problems(workload, number, part)
                ids = [chat.prompt_ids(prompts.problem(problem)) for problem in problems]
                params = parameters(workload, config, plan.group_size, text, log_probs)
                row = measure(llm, ids, params, variant, workload, number)
                rows.append(replace(row, threads=torch.get_num_threads()))
    write_results(plan.results, rows, [], {"engine": {key: str(value) for key, value in arguments.items()}})


def parameters(workload: Workload, config: Any, n: int, text: bool, log_probs: bool) -> Any:
    """vLLM's settings, drawn from the same configuration as the plugin's; log-probabilities come as vLLM
    gives them by default."""
    from marsrl_verl.verl_adapter.rollout_server.engine_requests import sampling_params

    one = sampling_of(workload, sampling_settings(typed_settings(config))[SOLVER])
    decoding = Decoding(one.max_new_tokens, one.temperature, one.top_p, one.top_k)
    num_logprobs = 0 if log_probs else None
    changed = {"logprobs": num_logprobs, "flat_logprobs": False, "detokenize": text}
    return sampling_params(decoding, n, ignore_eos=workload.ignore_end, **changed)


def measure(
    llm: Any, ids: list[list[int]], params: Any, variant: str, workload: Workload, number: int
) -> Row:
    """One call of `LLM.generate` with a round's prompts."""
    from vllm.inputs import TokensPrompt

    requests = [TokensPrompt(prompt_token_ids=one) for one in ids]
    gc.collect()
    before = processor_seconds(os.environ[TAG], "LLM.generate")
    start = time.perf_counter()
    outputs = llm.generate(requests, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    processor = spent(before, processor_seconds(os.environ[TAG], "LLM.generate"))
    completions = [one for output in outputs for one in output.outputs]
    return Row(
        variant=variant,
        workload=workload.name,
        round=number,
        seconds=seconds,
        samples=len(completions),
        tokens=sum(len(one.token_ids) for one in completions),
        finished=sum(one.finish_reason == "stop" for one in completions),
        processor_seconds=processor,
    )


if __name__ == "__main__":
    main()
