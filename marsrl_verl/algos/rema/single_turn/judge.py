"""Judging two answers: prompts, verdicts and the reward (ReMA, arXiv 2503.09501, §4.1, appendices D.1.2 and
G.1.3).

The meta-thinking agent sees the question alone and plans how to evaluate answers to it; the reasoning agent
sees both answers, follows the plan and ends in [[A]] or [[B]]. A row of the data has the question as its
prompt, `A` or `B` as its ground truth, and the answers in `extra_info` (`answer_a`, `answer_b`)."""

from __future__ import annotations

import re
from dataclasses import replace

from marsrl_verl.algos.rema.prompts import system_and_user
from marsrl_verl.algos.rema.single_turn.prompts import PlanPrompts, quoted
from marsrl_verl.core.prompts import PLACEHOLDER, placeholder
from marsrl_verl.core.request import Message, Problem
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.data.pairs import ANSWER_A, ANSWER_B
from marsrl_verl.rewards.base import RoleReward, ScoreRequest, UngradableError

_MAKE = "python -m studies.rema_data.judge_data, in a clone"
_OTHER = {"A": "B", "B": "A"}
_VERDICT = re.compile(r"\[\[[ \t]*(A|B|C|[Tt]ie)[ \t]*\]\]")
"""Verdicts; `C` and `tie` are what judges often write if neither is better. Other double brackets, as of
matrices and links, are no verdict."""


def parse_verdict(text: str) -> str | None:
    """Returns `A` or `B`: the last verdict in a text. None if there is none, if the last one is a tie, or if
    its line has another one too."""
    found = [(one.start(), one.group(1)) for one in _VERDICT.finditer(text)]
    if not found or found[-1][1] not in _OTHER:
        return None
    place, verdict = found[-1]
    begins = text.rfind("\n", 0, place) + 1
    return verdict if all(other == verdict for start, other in found if start >= begins) else None


class JudgeReward(RoleReward):
    """1 for the right verdict, else 0; a judgement that did not come to its end has none."""

    tells_answer = True

    def check_problem(self, problem: Problem) -> None:
        """Checks that the problem is a pair of answers, one of which is the better."""
        if problem.ground_truth.strip() not in _OTHER or _missing(problem):
            what = f"rows are no pairs: ground truth A or B, extra_info with {ANSWER_A} and {ANSWER_B}"
            raise UngradableError(what, f"make pairs with {_MAKE}")

    def score(self, request: ScoreRequest) -> RewardResult:
        """Compares the verdict with the ground truth."""
        truth = request.problem.ground_truth.strip()
        if truth not in _OTHER:
            raise ValueError(f"problem {request.problem.problem_id}: ground truth {truth!r}, expected A or B")
        ended = request.finish_reason is FinishReason.STOP
        verdict = parse_verdict(request.final_text) if ended else None
        return RewardResult(float(verdict == truth), {} if verdict is None else {"answer": verdict})


def swapped(problem: Problem) -> Problem:
    """Returns the same pair with its answers in the other order."""
    first, second = answers_of(problem)
    return replace(
        problem,
        ground_truth=_OTHER[problem.ground_truth.strip()],
        extra_info={**problem.extra_info, ANSWER_A: second, ANSWER_B: first},
    )


def answers_of(problem: Problem) -> tuple[str, str]:
    """Returns the two answers of a row; for the empty problem around which prompts are worded two empty ones,
    and for the placeholder their names."""
    if problem is PLACEHOLDER:
        return placeholder(ANSWER_A), placeholder(ANSWER_B)
    if not problem.question and not problem.extra_info:
        return "", ""
    if missing := _missing(problem):
        raise ValueError(
            f"problem {problem.problem_id}: extra_info has no {' and no '.join(missing)}; make the rows with "
            f"{_MAKE}"
        )
    return str(problem.extra_info[ANSWER_A]), str(problem.extra_info[ANSWER_B])


def _missing(problem: Problem) -> list[str]:
    return [name for name in (ANSWER_A, ANSWER_B) if name not in problem.extra_info]


_FAIR = """\
Judge what the answers say: their order, their length and the names of their authors must make no \
difference to you."""

PLAN_SYSTEM = f"""\
You are an expert in judging the quality of answers. Another expert is going to compare two answers of AI \
assistants to the question of a user. You see the question alone. Write down an evaluation plan for this \
very question: what a good answer has to contain, what is to be checked, and in which order; you may add \
a reference answer. The plan must not presume which of the answers is better. {_FAIR}"""

ACTION_SYSTEM = f"""\
You are an expert in judging the quality of answers. Another expert is going to compare two answers to a \
question. Before that, choose one of three ways to help: DECOMPOSE (which checks to make, one after the \
other), REWRITE (what the question asks for, in clearer words) or EMPTY (nothing; the output is then \
empty). {_FAIR} Reply with one JSON object and nothing before or after it:

{{"action": "DECOMPOSE", "output": "…"}}"""

_VERDICT_SYSTEM = """\
End with your final verdict in exactly this form: [[A]] if assistant A's answer is better, [[B]] if \
assistant B's answer is better."""

SOLUTION_SYSTEM = f"""\
You are an impartial judge of two answers of AI assistants to the question of a user. Follow the \
evaluation plan that you are given step by step. {_FAIR} {_VERDICT_SYSTEM}"""

DIRECT_SYSTEM = f"""\
You are an impartial judge of two answers of AI assistants to the question of a user. Compare how well \
they follow the question, and how helpful, correct, deep and detailed they are, and explain your \
comparison. {_FAIR} {_VERDICT_SYSTEM}"""

PLANNED_SYSTEM = f"""\
You are an impartial judge of two answers of AI assistants to the question of a user. First write an \
evaluation plan for this question, between [Start of Evaluation Plan] and [End of Evaluation Plan]; then \
carry it out step by step. {_FAIR} {_VERDICT_SYSTEM}"""

ANSWERS = """\
[User Question]
{question}
[End of User Question]

[The Start of Assistant A's Answer]
{answer_a}
[The End of Assistant A's Answer]

[The Start of Assistant B's Answer]
{answer_b}
[The End of Assistant B's Answer]"""

PLAN = """

[The Start of Evaluation Plan]
{plan}
[The End of Evaluation Plan]"""


class JudgePrompts(PlanPrompts):
    """Prompts for pairs of answers; what others wrote stands between tags that it can't repeat."""

    def row_texts(self, problem: Problem) -> dict[str, str]:
        """Returns both answers, which the judging agent is shown."""
        return {"answers": "\n".join(answers_of(problem))}

    def plan(self, problem: Problem) -> tuple[Message, ...]:
        """The question alone."""
        return system_and_user(PLAN_SYSTEM, _question(problem))

    def action(self, problem: Problem) -> tuple[Message, ...]:
        """The question alone."""
        return system_and_user(ACTION_SYSTEM, _question(problem))

    def solution(self, problem: Problem, plan: str) -> tuple[Message, ...]:
        """Question, answers and plan."""
        if not plan.strip():
            return self.direct(problem)
        return system_and_user(SOLUTION_SYSTEM, _pair(problem) + PLAN.format(plan=quoted(plan)))

    def direct(self, problem: Problem) -> tuple[Message, ...]:
        """Question and answers."""
        return system_and_user(DIRECT_SYSTEM, _pair(problem))

    def planned(self, problem: Problem) -> tuple[Message, ...]:
        """Question and answers."""
        return system_and_user(PLANNED_SYSTEM, _pair(problem))

    def has_answer(self, text: str) -> bool:
        """True if there is a verdict."""
        return parse_verdict(text) is not None


def _question(problem: Problem) -> str:
    return f"[User Question]\n{quoted(problem.question)}\n[End of User Question]"


def _pair(problem: Problem) -> str:
    first, second = answers_of(problem)
    return ANSWERS.format(question=quoted(problem.question), answer_a=quoted(first), answer_b=quoted(second))
