"""The study with one seed: sample responses, hide a step of each kind in the right ones, sample on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.disruption.cuts import KINDS, Cut, draw_cuts, eligible_steps, mean_surprise, steps_by_kind
from benchmarks.disruption.problems import AnswerCheck
from benchmarks.disruption.sampling import Beginning, Decoding, sample_rest
from marsrl_verl.algos.attnrl.step_cutter import StepCutter, step_cutter
from marsrl_verl.algos.marsrl.prompts import RolePrompts
from marsrl_verl.attention.choices import FciBackend
from marsrl_verl.core.request import Problem
from marsrl_verl.core.seeding import derive_generator, derive_seed
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from studies.tiny.influence import measure_response


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of the study."""

    samples: int
    """Responses to each problem."""
    max_new_tokens: int
    """Of a response; one that is sampled on from a hidden step may become as long."""
    delta: int
    """Least distance in steps from which attention counts for FCI."""
    top_frac: float
    """Share of the steps that is on top, by FCI and by -log p."""
    decoding: Decoding

    def __post_init__(self) -> None:
        for name in ("samples", "max_new_tokens", "delta"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 or more")
        if not 0 < self.top_frac < 1:
            raise ValueError(f"top_frac is {self.top_frac}, expected above 0 and below 1")


@dataclass(frozen=True, slots=True)
class Response:
    """A response to one of the problems."""

    problem: Problem
    sample: int
    prompt: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A step of a right response that is to be hidden."""

    response: Response
    cut: Cut
    steps: int
    """Of the response."""
    influence: float
    surprise: float

    def beginning(self, hide: bool, max_new_tokens: int, seed: int) -> Beginning:
        """Prompt and response up to the end of the step, which is hidden or not. Both have the same random
        numbers."""
        response, (start, stop) = self.response, self.cut.hidden
        before = len(response.prompt)
        return Beginning(
            ids=response.prompt + response.ids[: self.cut.kept],
            most=max_new_tokens - self.cut.kept,
            seed=derive_seed(seed, "rest", response.problem.problem_id, response.sample, self.cut.kind),
            hidden=(before + start, before + stop) if hide else (0, 0),
        )

    def outcome(self, seed: int, nothing_hidden: bool | None, step_hidden: bool | None) -> Disrupted:
        """With the grades of both rests."""
        return Disrupted(
            seed=seed,
            problem=self.response.problem.problem_id,
            sample=self.response.sample,
            kind=self.cut.kind,
            first_half=self.cut.first_half,
            step=self.cut.step,
            steps=self.steps,
            tokens=len(self.response.ids),
            hidden_tokens=self.cut.hidden[1] - self.cut.hidden[0],
            influence=self.influence,
            surprise=self.surprise,
            right_with_nothing_hidden=nothing_hidden,
            right_with_step_hidden=step_hidden,
        )


@dataclass(frozen=True, slots=True)
class Disrupted:
    """What came of sampling on from one step."""

    seed: int
    problem: str
    sample: int
    kind: str
    first_half: bool
    step: int
    steps: int
    tokens: int
    """Of the original response."""
    hidden_tokens: int
    influence: float
    surprise: float
    right_with_nothing_hidden: bool | None
    right_with_step_hidden: bool | None
    """None where the grader failed."""


@dataclass(slots=True)
class Found:
    """What one seed gave."""

    disrupted: list[Disrupted] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Responses: `sampled`, `right`, `taking part`; `not graded`, rests included."""

    def __iadd__(self, other: Found) -> Found:
        self.disrupted += other.disrupted
        self.counts.update(other.counts)  # += would lose what is 0
        return self


@dataclass(frozen=True, slots=True)
class Study:
    """A model with all that the study needs around it."""

    model: Any
    chat: ChatTokenizer
    """With all of the model's end tokens in `end_ids`."""
    prompts: RolePrompts
    check: AnswerCheck
    plan: Plan
    say: Callable[[str], None]
    """Told how far the study is."""

    def run(self, problems: Sequence[Problem], seed: int) -> Found:
        """Samples, chooses, hides and compares.

        Raises:
            ValueError: a prompt leaves no room in the model for `max_new_tokens`.
        """
        responses = self._responses(problems, seed)
        grades = self.check.right([(one.problem, one.prompt, one.ids) for one in responses])
        right = [one for one, good in zip(responses, grades, strict=True) if good]
        self.say(f"seed {seed}: {len(right)} of {len(responses)} responses are right")
        cutter = step_cutter(self.chat.tokenizer)
        chosen = [one for response in right for one in self._chosen(response, cutter, seed)]
        nothing, hidden = (self._sampled_on(chosen, hide, seed) for hide in (False, True))
        return Found(
            [one.outcome(seed, *two) for one, *two in zip(chosen, nothing, hidden, strict=True)],
            Counter(
                {
                    "sampled": len(responses),
                    "right": len(right),
                    "taking part": len(chosen) // len(KINDS),
                    "not graded": (grades + nothing + hidden).count(None),
                }
            ),
        )

    def _responses(self, problems: Sequence[Problem], seed: int) -> list[Response]:
        plan, prompted = self.plan, []
        for problem in problems:
            prompt = tuple(self.chat.prompt_ids(self.prompts.solver(problem)))
            self._check_room(problem, len(prompt))
            prompted += [(problem, sample, prompt) for sample in range(plan.samples)]
        beginnings = [
            Beginning(prompt, plan.max_new_tokens, derive_seed(seed, "response", problem.problem_id, sample))
            for problem, sample, prompt in prompted
        ]
        sampled = self._sample(beginnings, f"seed {seed}: responses")
        return [Response(*one, tuple(ids)) for one, ids in zip(prompted, sampled, strict=True)]

    def _check_room(self, problem: Problem, prompt_tokens: int) -> None:
        positions = getattr(self.model.config, "max_position_embeddings", None)
        if positions is not None and prompt_tokens + self.plan.max_new_tokens > positions:
            raise ValueError(
                f"--max-new-tokens is {self.plan.max_new_tokens}, but the model has {positions} positions, "
                f"and the prompt of problem {problem.problem_id!r} has {prompt_tokens} tokens; lower it, or "
                "leave the problem out"
            )

    def _chosen(self, response: Response, cutter: StepCutter, seed: int) -> list[Chosen]:
        """One step of each kind; none where a kind has no step."""
        plan, steps = self.plan, cutter.cut(response.ids)
        eligible = eligible_steps(steps, plan.delta)
        if len(eligible) < len(KINDS):
            return []
        influence, log_probs, _ = measure_response(
            self.model,
            list(response.prompt),
            list(response.ids),
            steps,
            plan.delta,
            FciBackend.AUTO.value,
        )
        surprise = mean_surprise(steps, log_probs)
        by_kind = steps_by_kind(eligible, influence, surprise, plan.top_frac)
        rng = derive_generator(seed, "cuts", response.problem.problem_id, response.sample)
        return [
            Chosen(response, cut, len(steps), influence[cut.step], surprise[cut.step])
            for cut in draw_cuts(steps, by_kind, rng)
        ]

    def _sampled_on(self, chosen: Sequence[Chosen], hide: bool, seed: int) -> list[bool | None]:
        """Whether the response is right whose rest is sampled anew."""
        rests = self._sample(
            [one.beginning(hide, self.plan.max_new_tokens, seed) for one in chosen],
            f"seed {seed}: {'a step' if hide else 'nothing'} hidden",
        )
        return self.check.right(
            [
                (one.response.problem, one.response.prompt, [*one.response.ids[: one.cut.kept], *rest])
                for one, rest in zip(chosen, rests, strict=True)
            ]
        )

    def _sample(self, beginnings: Sequence[Beginning], what: str) -> list[list[int]]:
        return sample_rest(
            self.model,
            beginnings,
            self.plan.decoding,
            self.chat.end_ids,
            lambda done: self.say(f"{what}: {done} of {len(beginnings)}"),
        )
