"""Call 3: vLLM alone with the tiny model, and one weight sync."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.checks import Bench, Call, Check, expect
from benchmarks.gpu_check.training import overrides
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config

PROMPTS = tuple(f"Compute {a}+{b}-{c}" for a in range(2, 10) for b in range(1, 9) for c in (1, 2))
MODEL_LENGTH, TOKENS = 128, 48
LARGEST_GAP, MEAN_GAP = 0.5, 0.05
"""Nats between engine and transformers, both in bfloat16."""
_PRESENT = "VERL_RAY_JOB_ID"


def arguments_of(bench: Bench, *own: str) -> tuple[Any, dict[str, Any]]:
    """The configuration of `cluster=1xgpu model=tiny`, and vLLM's arguments that follow from it."""
    from marsrl_verl.verl_adapter.environment import prepare_environment
    from marsrl_verl.verl_adapter.rollout_server.offline_engine import engine_arguments

    config = compose_config(parse_arguments(overrides("model=tiny", *own))).config
    arguments = {
        **engine_arguments(config, MODEL_LENGTH),
        "gpu_memory_utilization": 0.3,
        "enable_sleep_mode": True,
        # As vLLM starts it behind a server: CUDA IPC needs two processes.
        "distributed_executor_backend": "mp",
    }
    bench.figures |= {name: arguments[name] for name in ("dtype", "enforce_eager")}
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    prepare_environment(config)
    return config, arguments


def prompt_ids(config: Any) -> list[list[int]]:
    from marsrl_verl.verl_adapter.rollout_server.offline_engine import load_tokenizer

    tokenizer = load_tokenizer(config)
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
        )
        for text in PROMPTS
    ]


def sampled(llm: Any, ids: list[list[int]], temperature: float) -> list[Any]:
    """One completion of each prompt, with the log-probabilities of its tokens."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    params = SamplingParams(temperature=temperature, max_tokens=TOKENS, logprobs=0, seed=1)
    done = llm.generate([TokensPrompt(prompt_token_ids=one) for one in ids], params, use_tqdm=False)
    return [one.outputs[0] for one in done]


def texts(outputs: list[Any]) -> list[list[int]]:
    return [list(one.token_ids) for one in outputs]


def trainer_log_probs(path: str, ids: list[int], response: list[int]) -> Any:
    """(T,) of a response's tokens after its prompt, from transformers' forward pass."""
    import torch

    model = _loaded(path)
    row = torch.tensor([[*ids, *response]], device="cuda")
    with torch.no_grad():
        logs = model(input_ids=row).logits[0].float().log_softmax(-1)
    return logs[len(ids) - 1 : -1].gather(1, row[0, len(ids) :, None])[:, 0].cpu()


_MODELS: dict[str, Any] = {}


def _loaded(path: str) -> Any:
    if path not in _MODELS:
        import torch
        from transformers import AutoModelForCausalLM

        _MODELS[path] = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).cuda().eval()
    return _MODELS[path]


def engine(bench: Bench) -> None:
    """Starts, decodes, sleeps, wakes; log-probabilities beside transformers'."""
    config, arguments = arguments_of(bench)
    ids = prompt_ids(config)
    bench.cuda()
    import torch
    from vllm import LLM

    start = time.perf_counter()
    llm = LLM(**arguments)
    bench.figures["start_s"] = time.perf_counter() - start
    sampled(llm, ids, 1.0)
    start = time.perf_counter()
    outputs = sampled(llm, ids, 1.0)
    bench.figures["tokens_s"] = sum(map(len, texts(outputs))) / (time.perf_counter() - start)
    gaps = []
    for one, prompt in zip(outputs, ids, strict=True):
        places = zip(one.logprobs, one.token_ids, strict=True)
        theirs = torch.tensor([place[token].logprob for place, token in places])
        gaps.append((trainer_log_probs(arguments["model"], prompt, list(one.token_ids)) - theirs).abs())
    gap = torch.cat(gaps)
    bench.figures |= {"gap_mean": float(gap.mean()), "gap_max": float(gap.max())}
    greedy = texts(sampled(llm, ids, 0.0))
    free = torch.cuda.mem_get_info()[0]
    start = time.perf_counter()
    llm.sleep(level=1)
    asleep = time.perf_counter()
    bench.figures |= {
        "sleep_s": asleep - start,
        "freed_GiB": (torch.cuda.mem_get_info()[0] - free) / 2**30,
    }
    llm.wake_up()
    bench.figures["wake_s"] = time.perf_counter() - asleep
    same = sum(a == b for a, b in zip(texts(sampled(llm, ids, 0.0)), greedy, strict=True))
    bench.figures["same_after_sleep"] = f"{same}/{len(ids)}"
    expect(float(gap.mean()) < MEAN_GAP, f"mean gap {float(gap.mean()):.4f}, expected below {MEAN_GAP}")
    expect(
        float(gap.max()) < LARGEST_GAP, f"largest gap {float(gap.max()):.3f}, expected below {LARGEST_GAP}"
    )
    expect(same >= 0.95 * len(ids), f"{len(ids) - same} of {len(ids)} greedy answers changed over a sleep")


def weight_sync(bench: Bench) -> None:
    """The tiny model's weights into an engine that holds others, as a run sends them."""
    from marsrl_verl.verl_adapter.rollout_server.weight_sockets import EXTENSION, own_socket, socket_folder

    config, arguments = arguments_of(bench, "actor_rollout_ref.rollout.enforce_eager=true")
    ids = prompt_ids(config)
    other = other_model(bench.folder / "other", Path(arguments["model"]))
    bench.cuda()
    os.environ[_PRESENT] = "check"
    with socket_folder({}):
        from vllm import LLM

        wanted = trainer_greedy(arguments["model"], ids)
        llm = LLM(**{**arguments, "model": str(other), "worker_extension_cls": EXTENSION})
        before = texts(sampled(llm, ids, 0.0))
        address = own_socket(f"ipc:///tmp/rl-colocate-zmq-{os.environ[_PRESENT]}-replica-0-rank-0.sock")
        start = time.perf_counter()
        send(llm, address, arguments["model"])
        bench.figures["sync_s"] = time.perf_counter() - start
        llm.reset_prefix_cache()
        after = texts(sampled(llm, ids, 0.0))
    agreed = [sum(a[0] == b for a, b in zip(found, wanted, strict=True)) for found in (before, after)]
    bench.figures |= {"first_tokens_before": agreed[0], "first_tokens_after": agreed[1], "of": len(ids)}
    expect(after != before, "the engine answers as before: no weight arrived")
    expect(agreed[1] >= 0.95 * len(ids), f"{agreed[1]} of {len(ids)} first tokens are the sent model's")


def other_model(folder: Path, like: Path) -> Path:
    """A model of the same shape, with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(like)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(like).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == config.hidden_size
    return folder


def trainer_greedy(path: str, ids: list[list[int]]) -> list[int]:
    """The likeliest first token after each prompt."""
    import torch

    model = _loaded(path)
    with torch.no_grad():
        return [
            int(model(input_ids=torch.tensor([one], device="cuda")).logits[0, -1].argmax()) for one in ids
        ]


def send(llm: Any, address: str, path: str) -> None:
    """Has the engine receive while this process sends."""
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    weights = dict(_loaded(path).state_dict())
    errors: list[BaseException] = []

    def sending() -> None:
        try:
            asyncio.run(BucketedWeightSender(address, 64).async_send_weights(iter(weights.items())))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=sending, daemon=True)
    thread.start()
    llm.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": False})
    thread.join(30)
    if errors:
        raise errors[0]


CALL = Call(
    3,
    "vLLM alone, one weight sync",
    4,
    "the engine (kernels, CUDA graphs, sleep mode) or the weight sync",
    (Check("engine", 120, engine), Check("weight sync", 100, weight_sync)),
)
