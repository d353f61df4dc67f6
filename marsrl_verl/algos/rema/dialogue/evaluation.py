"""Evaluation of the pair of agents, by dialogues as they are trained; figures of each agent and of whole
dialogues, beside those that all methods have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marsrl_verl.algos.rema.dialogue.rewarding import ACCURACY, DONE, LEAK
from marsrl_verl.algos.rema.dialogue.rollout import PROGRAM
from marsrl_verl.algos.rema.prompts import META_THINKING, ROLES, DialoguePrompts
from marsrl_verl.core.group import Group
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.evaluation.estimators import NOT_OBSERVED, Estimate, MetricInfo, Observations, mean_estimate
from marsrl_verl.evaluation.runs import Call, Evaluation, ExampleSummary, Program, Run, Runs, tokens_of
from marsrl_verl.evaluation.single_role import pass_at_k_estimates

DIALOGUE = "dialogue"
"""The stage, and the name of its pass@k."""


class DialogueEvaluation(Evaluation):
    """Evaluation by one dialogue in each run of a problem.

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
        "finished_frac": MetricInfo("Finished", "share of dialogues that ended by [FINISH]"),
        "leak_frac": MetricInfo(
            "Dialogues that leak",
            "share of dialogues in which the meta-thinking agent gives the answer away",
            higher_is_better=False,
        ),
    }

    headline = ("accuracy", "accuracy_and_finished")

    def __init__(self, prompts: DialoguePrompts) -> None:
        self.prompts = prompts

    def program(self, run: Run) -> Program:
        messages = self.prompts.meta_thinking(run.problem)
        trajectory = yield run.request(DIALOGUE, META_THINKING, messages, rollout=PROGRAM)
        run.final_reward = _accuracy(trajectory) if trajectory.finished else 0.0
        run.answer = trajectory if trajectory.final_text else None
        run.end = end_of(trajectory)

    def observations(self, runs: Runs) -> dict[str, Observations]:
        """Returns whether the answer is right, whether the dialogue was finished, and, if the meta-thinking
        agent is trained, whether it gave the answer away."""
        measures: dict[str, Callable[[Run], bool]] = {
            "accuracy": lambda run: is_correct(_accuracy(_held(run))),
            "accuracy_and_finished": lambda run: run.solved,
            "finished_frac": lambda run: _held(run).finished,
        }
        found = {name: _of_each(runs.runs, measure) for name, measure in measures.items()}
        looked_at = [run for run in runs.runs if LEAK in _held(run).scored.info]
        found["leak_frac"] = _of_each(looked_at, lambda run: bool(_held(run).scored.info[LEAK]))
        return {name: Observations.of(pairs) for name, pairs in found.items()}

    def derived(self, observations: Mapping[str, Observations], confidence: float) -> dict[str, Estimate]:
        """Returns pass@k of right answers of finished dialogues."""
        solved = observations.get("accuracy_and_finished", NOT_OBSERVED)
        return pass_at_k_estimates(DIALOGUE, solved, confidence)

    def effort(self, runs: Runs, confidence: float) -> dict[str, Estimate]:
        """Returns turns, messages, tokens, and the lengths of each agent's messages."""
        measures: dict[str, Callable[[Run], float]] = {
            "turns": lambda run: turns(_held(run)),
            "calls": lambda run: len(messages(_held(run))),
            "tokens": tokens_of,
        }
        found = {name: _of_each(runs.runs, measure) for name, measure in measures.items()}
        for role in ROLES:
            found[f"{role}_message_length"] = [
                (event["tokens"], run.problem.problem_id)
                for run in runs.runs
                for event in messages(_held(run))
                if event["role"] == role and event["tokens"] is not None
            ]
        return {name: mean_estimate(pairs, confidence) for name, pairs in found.items()}

    def description(self) -> str:
        return (
            "The meta-thinking agent instructs the reasoning agent, turn by turn, until it writes "
            "`[FINISH]`; the last answer of the reasoning agent is graded."
        )

    def example_summary(self, run: Run) -> ExampleSummary:
        """Ranks a dialogue as an example; those of several turns that end well are the most telling."""
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
        right = "correct" if is_correct(_accuracy(_held(run))) else "incorrect"
        return f"{right} ({_words(run.end)})"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _of_each(runs: Sequence[Run], measure: Callable[[Run], float]) -> list[tuple[float, str]]:
    return [(measure(run), run.problem.problem_id) for run in runs]


def _held(run: Run) -> Trajectory:
    """The dialogue of a run that has ended."""
    return run.calls[0].trajectory


def _accuracy(one: Trajectory) -> float:
    info: Mapping[str, Any] = one.scored.info
    return float(info.get(ACCURACY, 0.0))


def dialogue_figures(groups: Sequence[Group]) -> dict[str, float]:
    """Returns figures of scored dialogues, seen by one agent or as a whole.

    Args:
        groups: those of one role, or of the stage. A group of a role has that role; one of the stage has that
            of the first agent, with the sequences of both.
    """
    members = [one for group in groups for one in group.trajectories if one.comparable]
    if not members:
        return {}
    found = {
        "accuracy": _mean(members, lambda one: float(one.scored.info.get(ACCURACY, 0.0))),
        "finished_frac": _mean(members, lambda one: bool(one.scored.info.get(DONE))),
        "turns": _mean(members, turns),
    }
    for reason in sorted({end_of(one) for one in members}):
        found[f"end/{reason}"] = _mean(members, lambda one: end_of(one) == reason)  # noqa: B023
    roles = {sequence.role for one in members for sequence in one.sequences}
    seen = roles if len(roles) == 1 else set(ROLES)
    events = [event for one in members for event in messages(one) if event["role"] in seen]
    if events:
        found |= _message_figures(events)
    leaks = [bool(one.scored.info[LEAK]) for one in members if LEAK in one.scored.info]
    if leaks and roles == {META_THINKING}:
        found["leak_frac"] = sum(leaks) / len(leaks)
    return found


def _message_figures(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    found = {
        "empty_message_frac": sum(bool(event["empty"]) for event in events) / len(events),
        "same_message_frac": sum(event["same"] > 1 for event in events) / len(events),
        "cut_message_frac": sum(bool(event["cut"]) for event in events) / len(events),
    }
    lengths = [event["tokens"] for event in events if event["tokens"] is not None]
    if lengths:
        found["message_length_mean"] = sum(lengths) / len(lengths)
    return found


def _mean(members: Sequence[Trajectory], measure: Callable[[Trajectory], float]) -> float:
    return sum(measure(one) for one in members) / len(members)


def messages(one: Trajectory) -> list[dict[str, Any]]:
    """Returns the events that are messages."""
    return [event for event in one.events if event.get("role") in ROLES]


def turns(one: Trajectory) -> int:
    """Returns the number of turns that the reasoning agent answered."""
    return next((int(event["turns"]) for event in reversed(one.events) if "turns" in event), 0)


def end_of(one: Trajectory) -> str:
    """Returns the reason why the dialogue ended."""
    return next((str(event["end"]) for event in reversed(one.events) if "end" in event), one.finish.value)
