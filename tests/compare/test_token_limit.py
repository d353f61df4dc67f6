"""A run that ends by generated tokens, with the trainer's own loop and fakes below it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.verl_adapter.trainer import RayMarsRLTrainer

TOKENS = 40
"""Generated in every step."""


class FakeScheduler:
    """One round with one sample per step; notes whether a step was told to be the last."""

    def __init__(self) -> None:
        self.told: list[bool] = []
        self.rounds = 0

    def next_round(self) -> list[str]:
        self.rounds += 1
        return ["input"] if self.rounds % 2 else []

    def absorb(self, samples: list[object]) -> None:
        pass

    def finish_step(self, *, last: bool) -> object:
        self.told.append(last)
        return object()


class Trainer(RayMarsRLTrainer):
    """The loop alone: no workers, engine, data or files."""

    def __init__(
        self, limit: int | None, most_steps: int, save_freq: int, every: int, after: int = 0
    ) -> None:
        self.settings = MarsRLConfig()
        self.settings.run.max_generated_tokens = limit
        self.settings.evaluation.every = every
        self.config = SimpleNamespace(
            trainer=SimpleNamespace(save_freq=save_freq, logger=[]),
            actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(free_cache_engine=False)),
        )
        self.total_training_steps = most_steps
        self.scheduler = FakeScheduler()
        sample = SimpleNamespace(new_tokens=TOKENS)
        self.async_rollout_manager = SimpleNamespace(generate=lambda inputs, sampling: [sample])
        self.sampling = {}
        self.observer = SimpleNamespace(rollouts=lambda *_: None, evaluated=lambda tag: False)
        self.global_steps, self.generated_tokens = after, after * TOKENS
        self.metrics, self.timing = {}, {}
        self.saved: list[int] = []
        self.evaluated: list[str] = []
        self.ended = False

    def _fit_begin(self):
        pass

    def _fit_end(self):
        self.ended = True

    def _fit_get_batch(self):
        pass

    def _fit_build_batch(self, result):
        return None

    def _fit_describe(self, result, batch):
        pass

    def _fit_update_weights(self):
        pass

    def _fit_record(self):
        pass

    def _save_checkpoint(self):
        self.saved.append(self.global_steps)

    def _evaluate(self, tag):
        self.evaluated.append(tag)
        return {}


@pytest.mark.parametrize(
    ("limit", "steps"), [(1, 1), (TOKENS, 1), (TOKENS + 1, 2), (100, 3), (120, 3), (10**6, 9), (None, 9)]
)
def test_training_ends_after_the_step_that_reaches_the_limit(limit, steps):
    trainer = Trainer(limit, most_steps=9, save_freq=-1, every=0)
    trainer.fit()
    assert (trainer.global_steps, trainer.ended) == (steps, True)
    # The scheduler holds nothing back in the last step, and only in it.
    assert trainer.scheduler.told == [False] * (steps - 1) + [True]


def test_the_last_step_is_saved_and_only_evaluated_as_the_last():
    trainer = Trainer(160, most_steps=9, save_freq=3, every=2)
    trainer.fit()
    assert trainer.saved == [3, 4]
    assert trainer.evaluated == ["step_2"]


def test_a_resumed_run_counts_the_tokens_of_earlier_steps():
    trainer = Trainer(200, most_steps=9, save_freq=-1, every=0, after=3)
    trainer.fit()
    assert trainer.global_steps == 5


def test_a_run_that_had_reached_its_limit_takes_no_further_step():
    trainer = Trainer(100, most_steps=9, save_freq=-1, every=0, after=3)
    trainer.fit()
    assert (trainer.global_steps, trainer.scheduler.told, trainer.ended) == (3, [], True)
