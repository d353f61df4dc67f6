"""The trainer's look at responses on verl's own workers, as a program: one process per rank, no Ray.

    python rank_attnrl_influence.py FOLDER

Every rank runs the trainer's hook between two rounds: steps, batch, the workers' forward pass in verl's
micro-batches, FCI and log-probabilities back onto the sequences. The model is a random Qwen2 network that is
left in `FOLDER/model`; what each case gave is left in `FOLDER/ranks_<number of ranks>.pt`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rank_updates import SMALL, Ranks, compose, run_ranks, save, trainer_and_worker

DELTA = 2
ALL = 2000
"""More rows or tokens than there are."""


@dataclass(frozen=True)
class Case:
    """How a forward pass is cut."""

    packed: bool
    rows: int | None = None
    """Rows of a micro-batch; None: micro-batches of at most `tokens` tokens."""
    tokens: int = ALL
    bucket: int = 0
    """Packed rows are filled up to a multiple of it; 0: not."""
    influence: bool = True


CASES: dict[str, Case] = {
    "padded, three rows": Case(False, rows=3),
    "padded, few tokens": Case(False, tokens=100),
    "padded, all tokens": Case(False),
    "packed, three rows": Case(True, rows=3),
    "packed, few tokens": Case(True, tokens=100),
    "packed, all tokens": Case(True),
    "packed, few tokens, filled up": Case(True, tokens=100, bucket=64),
    "padded, few tokens, no influence": Case(False, tokens=100, influence=False),
    "packed, all tokens, no influence": Case(True, influence=False),
}

OVERRIDES = (
    "cluster=cpu",
    "algo=attnrl",
    f"marsrl.algo.delta={DELTA}",
    *SMALL,
)


@dataclass(frozen=True)
class Response:
    """A prompt and a response of known steps."""

    name: str
    prompt: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    thinking: int
    """Steps before the one that closes the thinking part."""

    @property
    def ids(self) -> list[int]:
        return [token for step in self.steps for token in step]


def responses() -> list[Response]:
    """Rows of uneven length, steps of uneven length: long ones, one without a second step, one that closes
    its thinking part, one of a single token."""
    from studies.tiny.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    (line_break,) = tokenizer.encode("\n", add_special_tokens=False)
    closing = tokenizer.encode("</think>", add_special_tokens=False)
    letters = tokenizer.encode("abcdefgh=0123456789", add_special_tokens=False)
    generator = torch.Generator().manual_seed(11)

    def text(count: int) -> tuple[int, ...]:
        return tuple(letters[at] for at in torch.randint(len(letters), (count,), generator=generator))

    def response(name: str, prompt: int, lengths: tuple[int, ...], closes: int | None = None) -> Response:
        steps = []
        for at, length in enumerate(lengths):
            inside = (*text(length), *(closing if at == closes else ()))
            steps.append((*inside, line_break) if at < len(lengths) - 1 else inside)
        return Response(name, text(prompt), tuple(steps), len(lengths) if closes is None else closes)

    return [
        response("a", 9, (4, 1, 7, 3, 2, 9, 5)),
        response("b", 3, (6, 2, 5)),
        response("c", 12, (2, 3, 3, 4, 1, 1, 8, 2, 6, 4, 3, 2)),
        response("d", 5, (1,)),
        response("e", 7, (3, 5, 2, 4, 6, 1, 3), closes=4),
        response("f", 4, (5, 3)),
        response("g", 1, (2, 6, 1, 4, 7)),
    ]


def groups(found: list[Response]) -> list[Any]:
    """Two groups of first responses, one of which holds a response without a token."""
    from marsrl_verl.core.group import Group
    from marsrl_verl.core.request import Problem, RolloutRequest
    from marsrl_verl.core.sequence import Sequence
    from marsrl_verl.core.trajectory import FinishReason, Trajectory

    def trajectory(one: Response) -> Any:
        sequence = Sequence(
            "solver", one.prompt, one.ids, [-1.0] * len(one.ids), versions=((len(one.ids), 2),)
        )
        return Trajectory(one.name, [sequence], FinishReason.STOP)

    def group(name: str, members: list[Response]) -> Any:
        request = RolloutRequest(name, Problem(name, "?", "1"), "initial", "solver", (), n=len(members))
        return Group(request, [trajectory(one) for one in members])

    return [group("p0", found[:4]), group("p1", [*found[4:], Response("empty", (5, 6), (), 0)])]


class CutRanks(Ranks):
    """Ranks whose batches say whether padding is removed, as verl's own worker does from its model."""

    packed = False

    def compute_log_prob(self, data: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        tu.assign_non_tensor(data, use_remove_padding=self.packed)
        return super().compute_log_prob(data)


class Bench:
    """A trainer and this rank's worker."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.trainer, self.worker = trainer_and_worker(config)
        self.worker.init_model()
        self.ranks = self.trainer.actor_rollout_wg = CutRanks(self.worker)
        self.trainer.policies.updated(self.trainer.policies.trained, 2)

    def run(self, case: Case) -> dict[str, Any]:
        """Annotations by the response's name."""
        self._cut(case)
        trainer, waiting = self.trainer, groups(responses())
        trainer.timing, trainer.global_steps = {}, 3
        trainer.scheduler = SimpleNamespace(completed_stages=lambda: waiting)
        probes = type(trainer.method).probes(trainer.method, "initial")
        if not case.influence:
            probes = tuple(replace(one, measure=None, inputs=None, outputs=()) for one in probes)
        trainer.method.probes = lambda stage: probes if stage == "initial" else ()
        trainer._fit_run_probes()
        return {
            one.trajectory_id: one.sequence.annotations for group in waiting for one in group.trajectories
        }

    def _cut(self, case: Case) -> None:
        dynamic, rows = case.rows is None, case.rows or 1
        engine, actor = self.worker.actor.engine_config, self.config.actor_rollout_ref.actor
        engine.use_dynamic_bsz = actor.use_dynamic_bsz = dynamic
        engine.infer_max_token_len_per_gpu = case.tokens
        engine.infer_micro_batch_size_per_gpu = actor.ppo_micro_batch_size_per_gpu = rows
        self.worker.actor.engine.pad_to_length = bool(case.bucket)
        self.worker.actor.engine.pad_to_length_bucket = case.bucket
        self.ranks.packed = case.packed


def network() -> Any:
    """A Qwen2 network whose attention is far from uniform."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from studies.tiny.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    torch.manual_seed(5)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen2ForCausalLM(config)


def main(folder: Path) -> None:
    config = compose(*OVERRIDES, save(network(), folder / "model"))

    def find(rank: int, world: int) -> dict[str, Any]:
        bench = Bench(config)
        return {name: bench.run(case) for name, case in CASES.items()}

    run_ranks(config, folder, find)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
