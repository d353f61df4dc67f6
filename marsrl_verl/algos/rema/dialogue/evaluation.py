"""How the pair of agents is evaluated: by dialogues as they are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from marsrl_verl.algos.rema.dialogue.metrics import end_of, messages, turns
from marsrl_verl.algos.rema.dialogue.rewarding import ACCURACY, LEAK
from marsrl_verl.algos.rema.dialogue.rollout import PROGRAM
from marsrl_verl.algos.rema.prompts import META_THINKING, ROLES, DialoguePrompts
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.evaluation.estimators import NOT_OBSERVED, Estimate, MetricInfo, Observations, mean_estimate
from marsrl_verl.evaluation.runs import Call, Evaluation, ExampleSummary, Program, Run, Runs, tokens_of
from marsrl_verl.evaluation.single_role import pass_at_k_estimates

DIALOGUE = "dialogue"
"""The stage, and what pass@k is named after."""


class DialogueEvaluation(Evaluation):
    """One dialogue to each problem, as often as asked.

    Args:
        prompts: words the problem.
    """

    roles = ROLES
    metrics: Mapping[str, MetricInfo] = {
        "accuracy": MetricInfo("Accuracy", "share of dialogues whose last answer is right"),
        "accuracy_and_finished": MetricInfo(
            "Accuracy and finished",
            "share of dialogues whose last answer is right and that ended by [FINISH]",
        ),
        "finished_share": MetricInfo("Finished", "share of dialogues that ended by [FINISH]"),
        "leak_share": MetricInfo(
            "Dialogues that leak",
            "share of dialogues in which the meta-thinking agent gives the answer away",
            higher_is_better=False,
        ),
    }

    def __init__(self, prompts: DialoguePrompts) -> None:
        self.prompts = prompts

    @property
    def headline(self) -> tuple[str, ...]:
        """The two accuracies."""
        return ("accuracy", "accuracy_and_finished")

    def program(self, run: Run) -> Program:
        """A single request."""
        messages = self.prompts.meta_thinking(run.problem)
        trajectory = yield run.request(DIALOGUE, META_THINKING, messages, rollout=PROGRAM)
        run.final_reward = _accuracy(trajectory) if trajectory.finished else 0.0
        run.answer = trajectory if trajectory.final_text else None
        run.end = end_of(trajectory)

    def observations(self, runs: Runs) -> dict[str, Observations]:
        """Whether the answer is right, whether the dialogue was finished, and, where the meta-thinking agent
        is trained, whether it gave the answer away."""
        measures: dict[str, Callable[[Run], bool]] = {
            "accuracy": lambda run: is_correct(_accuracy(_held(run))),
            "accuracy_and_finished": lambda run: run.solved,
            "finished_share": lambda run: _held(run).finished,
        }
        found = {
            name: Observations.of((measure(run), run.problem.problem_id) for run in runs.runs)
            for name, measure in measures.items()
        }
        looked_at = [run for run in runs.runs if LEAK in _held(run).scored.info]
        found["leak_share"] = Observations.of(
            (bool(_held(run).scored.info[LEAK]), run.problem.problem_id) for run in looked_at
        )
        return found

    def derived(self, observations: Mapping[str, Observations], confidence: float) -> dict[str, Estimate]:
        """pass@k of right answers of finished dialogues."""
        solved = observations.get("accuracy_and_finished", NOT_OBSERVED)
        return pass_at_k_estimates(DIALOGUE, solved, confidence)

    def effort(self, runs: Runs, confidence: float) -> dict[str, Estimate]:
        """Turns, messages, tokens, and the lengths of each agent's messages."""
        measures: dict[str, Callable[[Run], float]] = {
            "turns": lambda run: turns(_held(run)),
            "calls": lambda run: len(messages(_held(run))),
            "tokens": tokens_of,
        }
        found = {
            name: mean_estimate(
                [(float(measure(run)), run.problem.problem_id) for run in runs.runs], confidence
            )
            for name, measure in measures.items()
        }
        for role in ROLES:
            lengths = [
                (float(event["tokens"]), run.problem.problem_id)
                for run in runs.runs
                for event in messages(_held(run))
                if event["role"] == role and event["tokens"] is not None
            ]
            found[f"{role}_message_length"] = mean_estimate(lengths, confidence)
        return found

    def description(self) -> str:
        """How a dialogue goes."""
        return (
            "The meta-thinking agent instructs the reasoning agent, turn by turn, until it writes "
            "`[FINISH]`; the last answer of the reasoning agent is graded."
        )

    def example_summary(self, run: Run) -> ExampleSummary:
        """Dialogues of several turns that end well are the most telling."""
        length = turns(_held(run))
        if run.solved:
            count = f"{length} turns" if length > 1 else "one turn"
            return ExampleSummary(3 if length > 1 else 2, f"The agents solve it in {count}")
        if not _held(run).finished:
            return ExampleSummary(1, f"The dialogue ends without [FINISH] ({_words(run.end)})")
        return ExampleSummary(0, "The agents get it wrong")

    def example_call(self, call: Call) -> str:
        """The whole dialogue is one call."""
        return "Dialogue"

    def result(self, run: Run) -> str:
        """What a dialogue came to, in a few words."""
        right = "correct" if is_correct(_accuracy(_held(run))) else "incorrect"
        return f"{right} ({_words(run.end)})"


def _held(run: Run) -> Trajectory:
    """The dialogue of a run that has ended."""
    return run.calls[0].trajectory


def _accuracy(one: Trajectory) -> float:
    info: Mapping[str, Any] = one.scored.info
    return float(info.get(ACCURACY, 0.0))


def _words(name: str) -> str:
    return name.replace("_", " ")
