r"""Rewards of agents with tools.

    well-formed and right:   the grade, and a bonus where several tools were used
    well-formed, not right:  0
    otherwise:               -1

After Tool-Star (arXiv 2505.16410) and ARPO (arXiv 2507.19849, eq. 8), which pays the bonus to any grade
above 0; here from `right` on. `HierarchicalReward` looks at the policy's own words and the calls that ran,
`ReleasedReward` at the whole text, as the released code does.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

from marsrl_verl.core.request import Problem
from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rewards.base import RoleReward, ScoreRequest
from marsrl_verl.rewards.extraction import boxed_answer
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.rollout.tool_protocol.base import ToolFormat

_BY_KIND = {"target": "marsrl_verl.rewards.by_ability:RewardByAbility"}
_TAG = re.compile(r"<(/?)(think|answer|result)>")


class HierarchicalReward(RoleReward):
    """The grade of a well-formed answer, at least 0, with a bonus for tools; -1 for one that is not
    well-formed.

    A grade that failed fails the reward.

    Args:
        grader: `{target: package.module:Class, kwargs: {…}}`, the reward that grades the answer; None: by the
            kind of the problem, mathematics or a question.
        bonus: added to the grade of a right answer where all tools of `bonus_tools` ran without an error.
        bonus_tools: tools that must have run for the bonus; None: any two.
        right: least grade of an answer that gets the bonus.
        ill_formed: the reward of a response that is not well-formed, or was not ended by the model.
    """

    pays_unfinished = True

    def __init__(
        self,
        grader: Mapping[str, Any] | None = None,
        bonus: float = 0.1,
        bonus_tools: tuple[str, ...] | None = None,
        right: float = 1.0,
        ill_formed: float = -1.0,
    ) -> None:
        spec: Mapping[str, Any] = grader or _BY_KIND
        if "target" not in spec or not spec.keys() <= {"target", "kwargs"}:
            raise ClassLoadError(f"grader is {spec!r}, expected {{target: …, kwargs: {{…}}}}")
        self.grader = load_class(str(spec["target"]), spec.get("kwargs"), RoleReward)
        self.graded_ability = self.grader.graded_ability
        self.bonus, self.right, self.ill_formed = bonus, right, ill_formed
        self.bonus_tools = None if bonus_tools is None else frozenset(bonus_tools)

    def score(self, request: ScoreRequest) -> RewardResult | Awaitable[RewardResult]:
        """Grades a response that is well-formed."""
        problem = form_problem(request)
        if problem is not None:
            return RewardResult(self.ill_formed, {"well_formed": False, "form": problem})
        found = self.grader.score(request)
        return self._later(request, found) if inspect.isawaitable(found) else self._paid(request, found)

    async def _later(self, request: ScoreRequest, grade: Awaitable[RewardResult]) -> RewardResult:
        return self._paid(request, await grade)

    def _paid(self, request: ScoreRequest, grade: RewardResult) -> RewardResult:
        value = max(0.0, grade.value)
        used = tools_used(request)
        several = len(used) > 1 if self.bonus_tools is None else self.bonus_tools <= used
        bonus = self.bonus if several and 0.0 < self.right <= value else 0.0
        info: dict[str, Plain] = {**grade.info, "well_formed": True, "grade": value, "bonus": bonus}
        return replace(grade, value=value + bonus, info=info)

    def check_problem(self, problem: Problem) -> None:
        self.grader.check_problem(problem)

    def longest_s(self, calls: int) -> float | None:
        return self.grader.longest_s(calls)

    def close(self) -> None:
        self.grader.close()


def tools_used(request: ScoreRequest) -> frozenset[str]:
    """Returns the tools that ran without an error, by the log of calls, not by the text."""
    return frozenset(str(event["tool"]) for event in request.events if event.get("outcome") == "ok")


def form_problem(request: ScoreRequest) -> str | None:
    """Returns why what the policy wrote is not well-formed; None: it is.

    A well-formed response was ended by the model itself, and none of its calls was rejected, but for those
    over the limit. With tags: reasoning is enclosed, at least once, each part for itself; no result is made
    up; one answer with a box stands at the end. (A chat template may have opened the first part of the
    reasoning. The tag of a call that is not closed is no call, and not looked at; the released code wants
    each closed and answered.) With the chat template's tool calls: the answer has a box.
    """
    if request.finish_reason is not FinishReason.STOP:
        return "not ended"
    if any(event.get("outcome") == "refused" and not event.get("over_limit") for event in request.events):
        return "a call was rejected"
    text = request.own_text
    if request.inputs.get("protocol") == ToolFormat.CHAT.value:
        return None if boxed_answer(request.final_text) is not None else "no box"
    return tag_problem(text)


def tag_problem(text: str) -> str | None:
    """Returns the same for what a policy wrote in tags, without the results of its calls."""
    tags = [(found.group(1) == "", found.group(2)) for found in _TAG.finditer(text)]
    if any(name == "result" for _, name in tags):
        return "a result of its own"
    if [opened for opened, name in tags if name == "answer"] != [True, False]:
        return "not one answer"
    thinking = [opened for opened, name in tags if name == "think"]
    if thinking and not thinking[0]:
        thinking.insert(0, True)  # the template's
    if not thinking or len(thinking) % 2 or thinking != [True, False] * (len(thinking) // 2):
        return "reasoning not enclosed"
    order = [name for _, name in tags]
    if "think" in order[order.index("answer") :]:
        return "reasoning after the answer began"
    _, _, rest = text.partition("<answer>")
    inside, _, behind = rest.partition("</answer>")
    if behind.strip():
        return "text after the answer"
    return None if boxed_answer(inside) is not None else "no box"
