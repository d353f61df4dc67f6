"""The trainer's update on verl's own workers, as a program: one process per rank, no Ray.

    python rank_updates.py FOLDER [--cuda] [--untied] [--case NAME]… [OVERRIDE…]

Every rank runs the trainer's hooks from the trained groups on: batch, order of rows, log-probabilities,
masked tokens, off-policy correction, update. Between trainer and worker stands `Ranks`, which cuts and
joins batches as verl's dispatch does. The model is a random Qwen3 network, the optimizer is plain SGD.
What each case gave is left in `FOLDER/ranks_<number of ranks>.pt`. With `--cuda` there is one rank, on the
first GPU, with NCCL; with `--untied` the network's head has weights of its own.
"""

from __future__ import annotations

import argparse
import functools
import os
import pickle
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

WORLDS = (1, 2)
ALL = 1000
"""More rows or tokens than there are."""
TURN_MEAN = "turn-mean-token-mean"
MEANS = ("seq-mean-token-mean", TURN_MEAN)
"""Over the sequences of a mini-batch, which are counted, and over its turns; of all means
`test_update_invariance.py`."""


@dataclass(frozen=True)
class Case:
    """How an update is cut."""

    rows: int | None = None
    """Rows of a micro-batch; None: micro-batches of at most `tokens` tokens."""
    tokens: int = ALL
    updates: int = 1
    partial: bool = True
    share: bool = False
    """Whether tokens that rows have in common are computed once."""
    attention: str = "sdpa"
    mean: str = "token-mean"
    """How the loss is averaged (`loss_agg_mode`, or `loss_mean`)."""
    own_mean: bool = False
    """The control: each micro-batch is divided by its own tokens."""
    optimizer: str = "SGD"


WHOLE = "all tokens"
"""One micro-batch."""

CASES: dict[str, Case] = {
    "one row": Case(rows=1),
    "two rows": Case(rows=2),
    "all rows": Case(rows=10),
    "few tokens": Case(tokens=40),
    WHOLE: Case(),
    "two updates, two rows": Case(rows=2, updates=2),
    "two updates, all tokens": Case(updates=2),
    "shared, few tokens": Case(tokens=40, share=True),
    "shared, all tokens": Case(share=True),
    "shared, packed": Case(share=True, attention="no_mask"),
    "two updates, shared, few tokens": Case(tokens=60, updates=2, share=True),
    "two updates, shared, all tokens": Case(updates=2, share=True),
    "complete groups": Case(partial=False),
    "complete groups, shared": Case(partial=False, share=True, attention="no_mask"),
    **{f"{mean}, all tokens": Case(mean=mean) for mean in MEANS},
    **{f"{mean}, few tokens": Case(tokens=40, mean=mean) for mean in MEANS},
    **{f"{mean}, two updates, all tokens": Case(updates=2, mean=mean) for mean in MEANS},
    **{f"{mean}, two updates, two rows": Case(rows=2, updates=2, mean=mean) for mean in MEANS},
}

CONTROLS = {
    "own mean, two rows": Case(rows=2, own_mean=True),
    "own mean, all tokens": Case(own_mean=True),
}
"""That a cut which changed the gradient would show."""
OTHERS = {"AdamW": Case(optimizer="AdamW")}
"""Run only when they are asked for."""
KNOWN = CASES | CONTROLS | OTHERS

PLACES = {
    False: ("cluster=cpu",),
    # What the processor computes, on a GPU: float32, rows with padding, no kernel of verl's.
    True: (
        "cluster=1xgpu",
        "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.actor.use_torch_compile=false",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
        "actor_rollout_ref.actor.fsdp_config.offload_policy=false",
        "actor_rollout_ref.actor.fsdp_config.param_offload=false",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=false",
        "actor_rollout_ref.actor.fsdp_config.use_no_sync_for_gradient_accumulation=false",
        "actor_rollout_ref.actor.fsdp_config.dtype=float32",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision="
        "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}",
    ),
}
"""Settings of the place, by whether it is a GPU."""
ON_PROCESSOR = ("trainer.device=cpu", "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM=cpu")
"""Lets a processor compute with the GPU's settings."""
FOUND = {
    "actor/loss": 0.120129,
    "actor/pg_loss": 0.162666,
    "actor/grad_norm": 5.17558,
    "actor/entropy": 4.25372,
}
"""What `WHOLE` gives on the processor, and is to give on a GPU."""

SMALL = (
    "marsrl.run.progress=false",
    "data.train_batch_size=4",
    "data.train_max_samples=4",
    "data.val_max_samples=4",
)
OVERRIDES = (
    *SMALL,
    "marsrl.off_policy.mode=tis",
    "marsrl.algo.mastered_tokens.enabled=true",
    # Thresholds that some tokens of the random network meet, and some of its responses.
    "marsrl.algo.mastered_tokens.probability=0.002",
    "marsrl.algo.mastered_tokens.target_entropy=4.3",
    "actor_rollout_ref.actor.entropy_coeff=0.01",
    "actor_rollout_ref.actor.optim.optimizer=SGD",
    "actor_rollout_ref.actor.optim.lr=0.5",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
    "actor_rollout_ref.actor.optim.clip_grad=1000.0",
)


def trained_groups(*, partial: bool) -> list[Any]:
    """Groups of uneven size over two roles; with `partial`, some members were trained before."""
    from marsrl_verl.core.group import Group
    from marsrl_verl.core.request import Problem, RolloutRequest
    from marsrl_verl.core.sequence import Sequence
    from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory

    generator = torch.Generator().manual_seed(3)

    def numbers(low: int, high: int, count: int = 1) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    def trajectory(group_id: str, k: int, role: str, prompt: list[int], reward: float) -> Any:
        length = numbers(1, 25)[0]
        first = numbers(0, length)[0]
        sequence = Sequence(
            role,
            prompt,
            numbers(7, 220, length),
            (-5 - 2 * torch.rand(length, generator=generator)).numpy(),
            # A tool wrote every fifth token.
            [int(i % 5 != 4) for i in range(length)],
            ((first, 1), (length, 2)),
            annotations={"turn": np.array([i // 5 if i % 5 != 4 else -1 for i in range(length)], np.int16)},
        )
        return Trajectory(f"{group_id}#{k}", [sequence], FinishReason.STOP, reward=RewardResult(reward))

    def group(name: str, role: str, rewards: tuple[float, ...], before: tuple[int, ...] = ()) -> Any:
        stage = role if role == "solver" else f"{role}_1"
        request = RolloutRequest(name, Problem(name, "?", "1"), stage, role, (), n=len(rewards))
        prompt = numbers(7, 220, numbers(3, 12)[0])
        members = [trajectory(name, k, role, prompt, reward) for k, reward in enumerate(rewards)]
        return Group(request, members, frozenset(f"{name}#{k}" for k in before if partial))

    branched = group("p4/solver/0", "solver", (0.0, 1.0, 1.0, 0.0))
    sequences = [one.sequence for one in branched.trajectories]
    trunk = max(sequences, key=len).response_ids
    for one in sequences:  # continuations of one response
        kept = min(len(trunk), len(one)) * 2 // 3
        one.response_ids = np.concatenate([trunk[:kept], one.response_ids[kept:]])
    return [
        branched,
        group("p0/solver/0", "solver", (1.0, 0.0, 0.0, 1.0)),
        group("p1/solver/0", "solver", (1.0, 0.0), before=(0,)),
        group("p2/verifier_1/0", "verifier", (0.0, 1.0, 0.0), before=(1,)),
        group("p3/verifier_1/0", "verifier", (0.0, 1.0, 1.0, 1.0), before=(0, 3)),
    ]


def attention_without_masks(*_: Any, **__: Any) -> Any:
    """Stands for flash attention, which takes no mask of a tree."""
    raise AssertionError("it was called, and flex attention should have been")


class Ranks:
    """This rank's worker, called as the trainer calls a worker group: in every rank at once."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._dispatch_info = {"actor": list(range(torch.distributed.get_world_size()))}

    def hold_rows(self, data: Any) -> Any:
        return self._everywhere(self._worker.hold_rows, data)

    def compute_log_prob(self, data: Any) -> Any:
        return self._everywhere(self._worker.compute_log_prob, data)

    def compute_ref_log_prob(self, data: Any) -> Any:
        return self._everywhere(self._worker.compute_ref_log_prob, data)

    def update_actor(self, data: Any) -> Any:
        return self._everywhere(self._worker.update_actor, data)

    @staticmethod
    def _everywhere(method: Callable[[Any], Any], data: Any) -> Any:
        from verl.protocol import BatchData

        world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        # As it arrives from Ray: a copy of its own, which may be changed.
        share = pickle.loads(pickle.dumps(BatchData(data).chunk(world)[rank]))
        outputs: list[Any] = [None] * world
        torch.distributed.all_gather_object(outputs, method(share))
        return BatchData(outputs).concat()


def own_mean(loss: Callable[..., Any], parts: int, *, model_output: Any, data: Any, dp_group: Any) -> Any:
    """verl's loss divided by the micro-batch's own tokens, so that all micro-batches count alike."""
    from verl.utils import tensordict_utils as tu

    tokens = int(data["loss_mask"].sum())
    tu.assign_non_tensor(data, batch_num_tokens=max(tokens, 1) * parts, dp_size=1)
    return loss(model_output=model_output, data=data, dp_group=dp_group)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, in main memory, of a tensor whose parts may lie with several ranks."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu().clone()


def trainer_and_worker(config: Any, role: str = "actor") -> tuple[Any, Any]:
    """A trainer and this rank's worker, whose models are not built yet."""
    from marsrl_verl.verl_adapter.engine.workers import MarsRLActorRolloutRefWorker
    from marsrl_verl.verl_adapter.run.task_runner import MarsRLTaskRunner

    trainer: Any = MarsRLTaskRunner().build_trainer(config)
    trainer.metrics, trainer.timing = {}, {}
    return trainer, MarsRLActorRolloutRefWorker(config.actor_rollout_ref, role=role)


class Bench:
    """A trainer and this rank's worker."""

    def __init__(self, config: Any) -> None:
        sys.path.append(str(Path(__file__).resolve().parents[1]))
        from flash_functions import written_out_flex_attention
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        self.config = config
        self.trainer, self.worker = trainer_and_worker(config)
        self.worker.init_model()
        self.loss = self.worker.actor.loss_fn
        self.trainer.actor_rollout_wg = Ranks(self.worker)
        self.trainer.policies.updated(self.trainer.policies.trained, 2)
        self.module = self.worker.actor.engine.module
        self.start = {name: one.detach().clone() for name, one in self.module.named_parameters()}
        self.gradients: list[dict[str, torch.Tensor]] = []
        ALL_ATTENTION_FUNCTIONS["no_mask"] = attention_without_masks
        if not torch.cuda.is_available():
            ALL_ATTENTION_FUNCTIONS["flex_attention"] = written_out_flex_attention
        # verl's worker drops them when its update is over.
        self.worker.actor.engine.optimizer.register_step_pre_hook(lambda *_: self._keep_gradients())

    def run(self, case: Case) -> dict[str, Any]:
        """One training step from the same weights: the gradient of each update, the
        log-probabilities before them, the weights after the last, and the metrics."""
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(self.start[name])
        self._cut(case)
        self.gradients = []
        trainer = self.trainer
        trainer.metrics, trainer.timing, trainer.global_steps = {}, {}, 3
        result = SimpleNamespace(trained=trained_groups(partial=case.partial), ended=[], deferred=0)
        batch = trainer._fit_build_batch(result)
        trainer._fit_compute_log_prob(batch)
        trainer._fit_compute_advantages(batch)
        rows_of_rank = len(batch.parts[0]) // torch.distributed.get_world_size()
        parts = 1 if case.rows is None else rows_of_rank // case.rows
        self.worker.set_loss_fn(functools.partial(own_mean, self.loss, parts) if case.own_mean else self.loss)
        trainer._fit_update_actor(batch)
        return {
            "start": {name: whole(one) for name, one in self.start.items()},
            "gradients": self.gradients,
            "log_probs": torch.from_numpy(batch.rows.columns["old_log_probs"].copy()),
            "weights": {name: whole(one) for name, one in self.module.named_parameters()},
            "metrics": dict(trainer.metrics),
        }

    def _keep_gradients(self) -> None:
        self.gradients.append({name: whole(one.grad) for name, one in self.module.named_parameters()})

    def _cut(self, case: Case) -> None:
        self.trainer.settings.pipeline.updates_per_step = case.updates
        self.trainer.settings.training.share_prefixes = case.share
        self.module.config._attn_implementation = case.attention
        turns = case.mean == TURN_MEAN
        self.trainer.settings.training.loss_mean = case.mean if turns else None
        mode = "token-mean" if turns else case.mean
        object.__setattr__(self.loss.args[0].keywords["config"], "loss_agg_mode", mode)  # verl freezes it
        dynamic, rows = case.rows is None, case.rows or 1
        engine, actor = self.worker.actor.engine_config, self.config.actor_rollout_ref.actor
        engine.use_dynamic_bsz = actor.use_dynamic_bsz = dynamic
        engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = case.tokens
        engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = rows
        actor.ppo_micro_batch_size_per_gpu = rows


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def fork_ranks(world: int, run: Callable[[int, int], None]) -> None:
    """`run(rank, port)` in a fork of this process for every rank; ends the program if one of them fails."""
    port, children = free_port(), []
    for rank in range(world):
        if (child := os.fork()) == 0:
            try:
                run(rank, port)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        children.append(child)
    if failed := [rank for rank, child in enumerate(children) if os.waitpid(child, 0)[1]]:
        sys.exit(f"with {world} ranks, rank {failed} failed")


def join_ranks(rank: int, world: int, port: int) -> None:
    """The variables by which verl's workers find one another."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["DIST_INIT_METHOD"] = f"tcp://127.0.0.1:{port}"


def import_trainer(config: Any) -> None:
    """It takes the time; the ranks are forks of this process."""
    from marsrl_verl.verl_adapter.environment import prepare_environment

    prepare_environment(config)
    import marsrl_verl.verl_adapter.run.task_runner  # noqa: F401


def run_ranks(config: Any, folder: Path, find: Callable[[int, int], Any], worlds: tuple = WORLDS) -> None:
    """Leaves in `folder/ranks_<world>.pt` what `find(rank, world)` gives the first of several ranks."""
    import_trainer(config)
    for world in worlds:
        fork_ranks(world, functools.partial(run_rank, config, folder, find, world))


def run_rank(
    config: Any, folder: Path, find: Callable[[int, int], Any], world: int, rank: int, port: int
) -> None:
    join_ranks(rank, world, port)
    config.marsrl.run.output_dir = str(folder / f"run_{world}_{rank}")
    found = find(rank, world)
    if rank == 0:
        torch.save(found, folder / f"ranks_{world}.pt")
    torch.distributed.destroy_process_group()


def compose(*words: str) -> Any:
    """The configuration of a command line."""
    from marsrl_verl.config.command_line import parse_arguments
    from marsrl_verl.config.compose import compose_config

    return compose_config(parse_arguments(list(words))).config


def save(network: Any, folder: Path) -> str:
    """The setting that names a network in a folder, with the tiny task's tokenizer."""
    from studies.tiny.tokenizer import build_tokenizer

    network.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return f"actor_rollout_ref.model.path={folder}"


def composed(folder: Path, *overrides: str, cuda: bool = False, untied: bool = False) -> Any:
    """The configuration, with a fresh network in the folder."""
    from transformers import Qwen3ForCausalLM

    from studies.tiny.model import build_model

    network = build_model(seed=5, layers=2)
    if untied:
        network.config.tie_word_embeddings = False
        network = Qwen3ForCausalLM(network.config).float()
    network.model.norm.weight.data *= 2  # surer of its tokens than a fresh network is
    return compose(*PLACES[cuda], *OVERRIDES, save(network, folder / "model"), *overrides)


def main(arguments: argparse.Namespace) -> None:
    folder = arguments.folder
    cases = {name: KNOWN[name] for name in arguments.case or (*CASES, *CONTROLS)}
    own = [*(ON_PROCESSOR if arguments.on_processor else ()), *arguments.overrides]
    kind = {"cuda": arguments.cuda, "untied": arguments.untied}
    configs = {
        name: composed(folder, f"actor_rollout_ref.actor.optim.optimizer={name}", *own, **kind)
        for name in dict.fromkeys(case.optimizer for case in cases.values())
    }
    if arguments.cuda and not (arguments.on_processor or torch.cuda.is_available()):
        sys.exit("no CUDA device")

    def find(rank: int, world: int) -> dict[str, Any]:
        found = {}
        for optimizer, config in configs.items():
            config.marsrl.run.output_dir = str(folder / f"{optimizer}_{world}_{rank}")
            bench = Bench(config)
            found |= {name: bench.run(case) for name, case in cases.items() if case.optimizer == optimizer}
        return found

    config = next(iter(configs.values()))
    if arguments.cuda:  # CUDA does not survive a fork
        import_trainer(config)
        run_rank(config, folder, find, 1, 0, free_port())
    else:
        run_ranks(config, folder, find)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--cuda", action="store_true", help="with a GPU's settings")
    parser.add_argument("--on-processor", action="store_true", help="without one")
    parser.add_argument("--untied", action="store_true")
    parser.add_argument("--case", action="append", choices=list(KNOWN))
    main(parser.parse_intermixed_args())
