"""Rewards of a dialogue (ReMA, arXiv 2503.09501, appendix D.2): 1 for both agents alike if the last answer of
the reasoning agent is right and the dialogue ended by `[FINISH]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from marsrl_verl.algos.rema.dialogue.config import Config, OverlongConfig
from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING
from marsrl_verl.core.request import Sampling
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.rollout.context import RolloutContext

Transcript = list[tuple[str, str]]
"""Speaker and text, message by message; the text of the reasoning agent without `[FINISH]`."""
ACCURACY, DONE, LEAK = "accuracy", "finished", "leak"
"""Entries of `RewardResult.info` beside the answer: the last answer's own reward, whether the dialogue ended
by `[FINISH]`, and whether the meta-thinking agent gave the answer away."""


async def reward_dialogues(
    ended: Sequence[tuple[Trajectory, Transcript]], context: RolloutContext, rules: Config
) -> None:
    """Sets the rewards of dialogues that have ended.

    The reasoning agent's reward class grades the last answer, whether the dialogue was finished or not; the
    meta-thinking agent's class looks at its messages, and its value is added to that agent's reward.
    """
    members = [one for one, _ in ended]
    answered = [one for one in members if one.final_text and not one.finish.failed]
    grades = await context.score([_text(one, one.final_text) for one in answered], REASONING)
    graded = dict(zip((one.trajectory_id for one in answered), grades, strict=True))
    for one in members:
        one.reward = dialogue_reward(one, graded.get(one.trajectory_id), mask=rules.mask_unfinished)
    if context.policy(META_THINKING).trained:
        held = [(one, transcript) for one, transcript in ended if not one.finish.failed]
        await _reward_meta_thinking(held, context, rules)
    if rules.overlong.enabled:
        for one in members:
            for sequence in one.sequences:
                cost = overlong_penalty(sequence, context.sampling(sequence.role), rules.overlong)
                if cost:
                    sequence.reward = (one.value if sequence.reward is None else sequence.reward) - cost


def dialogue_reward(one: Trajectory, grade: RewardResult | None, *, mask: bool) -> RewardResult:
    """Returns the reward of both agents.

    Args:
        one: the dialogue.
        grade: of its last answer; None: it has none.
        mask: whether unfinished dialogues earn nothing.

    A message that a frozen agent refused tells nothing about the other agent's: such a dialogue is not
    graded.
    """
    grade = grade or RewardResult(0.0)
    if one.finish is FinishReason.REFUSED:
        grade = replace(grade, graded=False, error="an agent refused to answer")
    info = {**grade.info, ACCURACY: grade.value, DONE: one.finished}
    return replace(grade, value=grade.value if one.finished or not mask else 0.0, info=info)


async def _reward_meta_thinking(
    held: Sequence[tuple[Trajectory, Transcript]], context: RolloutContext, rules: Config
) -> None:
    spoken = [_text(one, instructions(transcript)) for one, transcript in held]
    found = await context.score(spoken, META_THINKING)
    found = await _without_known_answers(held, found, context)
    for (one, _), own in zip(held, found, strict=True):
        reward, leak = one.scored, bool(own.info.get(LEAK, False))
        one.reward = replace(
            reward,
            info={**reward.info, LEAK: leak},
            graded=reward.graded and own.graded,
            error=reward.error or own.error,
            raised=reward.raised or own.raised,
        )
        extra = own.value - (rules.leak_penalty if leak else 0.0)
        for sequence in (each for each in one.sequences if each.role == META_THINKING and extra):
            sequence.reward = reward.value + extra


async def _without_known_answers(
    held: Sequence[tuple[Trajectory, Transcript]], results: list[RewardResult], context: RolloutContext
) -> list[RewardResult]:
    """Returns the results of the meta-thinking agent's messages, where those that leak are judged by what it
    wrote before the reasoning agent had claimed the answer itself (by the same reward): to repeat it then
    gives nothing away."""
    results = list(results)
    places = [
        (number, at)
        for number, own in enumerate(results)
        if own.info.get(LEAK)
        for at, (role, _) in enumerate(held[number][1])
        if role == REASONING
    ]
    heard = [_text(held[number][0], held[number][1][at][1]) for number, at in places]
    claimed: dict[int, int] = {}
    for (number, at), grade in zip(places, await context.score(heard, META_THINKING), strict=True):
        if not grade.graded:
            results[number] = replace(results[number], graded=False, error=grade.error, raised=grade.raised)
        elif grade.info.get(LEAK):
            claimed.setdefault(number, at)
    before = [_text(held[number][0], instructions(held[number][1][:at])) for number, at in claimed.items()]
    for number, grade in zip(claimed, await context.score(before, META_THINKING), strict=True):
        one = results[number]
        raised = grade.raised or one.raised
        results[number] = replace(grade, graded=grade.graded and one.graded, raised=raised)
    return results


def instructions(transcript: Transcript) -> str:
    """Returns the meta-thinking agent's messages, confirmations included: `[FINISH]` hides no answer."""
    return "\n\n".join(text for role, text in transcript if role == META_THINKING)


def _text(one: Trajectory, text: str) -> Trajectory:
    """Wraps a text of the dialogue for a reward class, which need not know how the dialogue ended."""
    return Trajectory(one.trajectory_id, [], FinishReason.STOP, text=text, final_text=text, events=one.events)


def overlong_penalty(sequence: TokenSequence, limits: Sampling, rules: OverlongConfig) -> float:
    """Returns the penalty on the length of a list of messages: 0 up to `tokens` before the limit, from there
    on growing linearly to `penalty` (DAPO, arXiv 2503.14476, eq. 13)."""
    over = len(sequence) - (limits.response_limit(sequence.prompt_ids.size) - rules.tokens)
    return rules.penalty * min(1.0, max(0.0, over / rules.tokens))
