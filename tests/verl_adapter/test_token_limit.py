"""A run that ends by generated tokens or by tool calls, with the trainer's own loop and a scripted engine."""

from __future__ import annotations

import pytest
from scripted_trainer import ScriptedTrainer

STEPS = 6


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> dict[int, int]:
    """Tokens generated up to each step of a run without a limit."""
    trainer = ScriptedTrainer(tmp_path_factory.mktemp("whole"), STEPS, save_freq=-1)
    trainer.fit()
    assert sorted(trainer.tokens_by_step) == list(range(1, STEPS + 1))
    return trainer.tokens_by_step


def limited(folder, limit, **settings) -> ScriptedTrainer:
    trainer = ScriptedTrainer(folder, STEPS, limit=limit, **settings)
    trainer.fit()
    return trainer


@pytest.mark.parametrize(
    ("step", "more", "last"), [(1, 0, 1), (1, 1, 2), (3, -1, 3), (3, 0, 3), (3, 1, 4), (STEPS, 10**6, STEPS)]
)
def test_training_ends_after_the_step_that_reaches_the_limit(tmp_path, tokens, step, more, last):
    trainer = limited(tmp_path, tokens[step] + more, save_freq=-1)
    assert trainer.global_steps == last
    # The scheduler holds nothing back in the last step, and only in it.
    assert trainer.told_last == [False] * (last - 1) + [True]


def test_the_last_step_is_saved_and_only_evaluated_as_the_last(tmp_path, tokens):
    trainer = limited(tmp_path, tokens[4], save_freq=3, every=2)
    assert trainer.saved == [3, 4]
    assert [tag for tag, _ in trainer.evaluated] == ["step_2"]


def test_a_resumed_run_counts_the_tokens_of_earlier_steps(tmp_path, tokens):
    ScriptedTrainer(tmp_path, 3, save_freq=3).fit()
    trainer = limited(tmp_path, tokens[5], save_freq=-1)
    assert (trainer.global_steps, trainer.generated_tokens) == (5, tokens[5])


def test_a_run_that_had_reached_its_limit_takes_no_further_step(tmp_path, tokens):
    ScriptedTrainer(tmp_path, 3, save_freq=3).fit()
    trainer = limited(tmp_path, tokens[3], save_freq=-1)
    assert (trainer.global_steps, trainer.told_last) == (3, [])


class CallingTrainer(ScriptedTrainer):
    """Every trajectory has called a tool once, and asked for another call that was rejected."""

    def __init__(self, folder, calls: int | None, **settings) -> None:
        super().__init__(folder, STEPS, **settings)
        self.settings.run.max_tool_calls = calls
        generate = self.async_rollout_manager.generate

        def with_calls(requests, sampling):
            outputs = generate(requests, sampling)
            for output in outputs:
                for one in output.trajectories:
                    one.events += [
                        {"kind": "tool", "call_id": f"{one.trajectory_id}/{k}", "executed": k == 0}
                        for k in (0, 1)
                    ]
            return outputs

        self.async_rollout_manager.generate = with_calls


def new_folder(parent, name):
    folder = parent / name
    folder.mkdir()
    return folder


def test_training_ends_after_the_step_that_reaches_the_limit_of_calls(tmp_path):
    whole = CallingTrainer(new_folder(tmp_path, "whole"), None, save_freq=-1)
    whole.fit()
    assert whole.tool_calls == whole.samples > 0
    half = CallingTrainer(new_folder(tmp_path, "half"), whole.tool_calls // 2, save_freq=2)
    half.fit()
    assert 1 < half.global_steps < STEPS
    assert half.metrics["rollout/executed_tool_calls_total"] == half.tool_calls >= whole.tool_calls // 2
    assert half.tool_calls - half.metrics["rollout/executed_tool_calls"] < whole.tool_calls // 2
    resumed = CallingTrainer(tmp_path / "half", whole.tool_calls, save_freq=-1)
    resumed.fit()
    assert (resumed.tool_calls, resumed.global_steps) == (whole.tool_calls, whole.global_steps)
