"""Tokens per second of vLLM's `LLM.generate` with the engine's settings of call 6.

python -m benchmarks.gpu_check.generate MODEL [--result RESULT.json | --plan]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from benchmarks.gpu_check.call_6 import GROUP, PROBLEMS, TOKENS, settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config


def main(arguments: argparse.Namespace) -> None:
    from marsrl_verl.verl_adapter.environment import prepare_environment
    from marsrl_verl.verl_adapter.rollout_server.offline_engine import engine_arguments

    config = compose_config(parse_arguments(settings(str(arguments.model)))).config
    rollout = config.actor_rollout_ref.rollout
    options = engine_arguments(config, int(rollout.max_model_len))
    options["gpu_memory_utilization"] = float(rollout.gpu_memory_utilization)
    print(options)
    if arguments.plan:
        return
    prepare_environment(config)
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(**options)
    prompts = [TokensPrompt(prompt_token_ids=[7 + n, 8, 9]) for n in range(PROBLEMS)]
    params = SamplingParams(n=GROUP, temperature=1.0, max_tokens=TOKENS, ignore_eos=True, logprobs=0)
    llm.generate(prompts[:1], SamplingParams(max_tokens=64, ignore_eos=True), use_tqdm=False)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    tokens = sum(len(one.token_ids) for output in outputs for one in output.outputs)
    arguments.result.write_text(json.dumps({"tokens_s": tokens / seconds, "tokens": tokens}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--plan", action="store_true")
    main(parser.parse_args())
