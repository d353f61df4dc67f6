"""The nouns of the project: problems, stage inputs, samples, groups.

A *problem* comes from the dataset. A *stage input* is one prompt at one stage of the method; the
`n` responses sampled for it are its *samples*, and together they are a *group*: what is compared
when advantages are computed (Rule: a group shares one prompt). A group's samples may become the
inputs of the next stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from marsrl_verl.core.seeding import derive_seed
from marsrl_verl.core.steps import Steps

Message = dict[str, str]
"""A chat message: `{"role": "system" | "user" | "assistant", "content": …}`."""


SOLVER = "solver"
VERIFIER = "verifier"
CORRECTOR = "corrector"
"""The roles of MarsRL, as `StageInput.role` and the configuration name them."""
ROLES = (SOLVER, VERIFIER, CORRECTOR)


def is_correct(reward: float) -> bool:
    """Whether the reward of a solution's answer says that the answer is right."""
    return reward > 0.5


class FinishReason(str, Enum):
    """Why a sample ended. A bad ending is data, never an exception."""

    STOP = "stop"
    """The model ended its answer itself (end-of-sequence token)."""
    LENGTH = "length"
    """The token limit was reached first."""
    SEGMENT = "segment"
    """Not an end: the segment is full, and the next one comes with a later generation round."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The prompt exceeds the limit of its role; nothing was generated."""
    ABORTED = "aborted"
    """The engine gave the request up."""
    REFUSED = "refused"
    """An external Solver's endpoint would not answer this request."""
    ERROR = "error"
    """The engine or a tool failed; `Sample.error` says how."""

    @property
    def failed(self) -> bool:
        """Whether the request got no answer, so that the text says nothing about the model."""
        return self in (FinishReason.ERROR, FinishReason.ABORTED)


class Verdict(str, Enum):
    """A Verifier's judgement of a solution."""

    CORRECT = "correct"
    WRONG = "wrong"
    INVALID = "invalid"
    """No verdict could be read (missing, ambiguous, or the sample was cut off)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One visit of one dataset row.

    `problem_id` is unique for the whole run (epoch and row are part of it), so the same row visited
    in two epochs is two problems.
    """

    problem_id: str
    question: str
    """The problem text that Verifier and Corrector are shown."""
    ground_truth: str
    data_source: str = ""
    messages: tuple[Message, ...] = ()
    """The chat prompt as it stands in the dataset: what the Solver is asked."""
    extra_info: dict[str, Any] = field(default_factory=dict)
    """The row's own `extra_info`, plain values only: for rewards that look at it."""


@dataclass(frozen=True, slots=True)
class StageInput:
    """One prompt at one stage, to be answered `n` times; the identity of one group."""

    group_id: str
    """Unique for the whole run, and a function of the problem, the stage and the slot only."""
    problem: Problem
    stage: str
    """The stage's name, e.g. `solver`, `verifier_1`, `corrector_1`."""
    stage_index: int
    role: str
    """The role that answers, e.g. `solver`, `verifier`, `corrector`."""
    messages: tuple[Message, ...]
    n: int
    parent_id: str | None = None
    """`sample_id` of the sample this input was built from; None at the first stage."""
    solution: str | None = None
    """The solution under judgement or repair (text after the thinking part)."""
    solution_reward: float | None = None
    """The reward of that solution's answer: 1 correct, 0 incorrect. The Verifier is scored against
    it, and fix and break rates are measured with it."""
    created_step: int = 0
    """The training step in which this input came into being (staleness of inputs)."""
    prefix: Sample | None = None
    """The beginning of a response that all `n` samples share and continue (see `Sample.beginning`); None:
    they begin at the prompt."""
    unfinished: tuple[Sample, ...] = ()
    """Samples whose next segment is asked for; empty: all `n` samples are asked for from the start."""

    @property
    def continued_tokens(self) -> int:
        """Tokens of prompts and responses so far that are continued, each sample's counted for itself: what
        an engine has to read again, unless it holds some of it in its cache."""
        if self.prefix is not None and not self.unfinished:
            return self.n * (len(self.prefix.prompt_ids) + len(self.prefix.response_ids))
        return sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in self.unfinished)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the scorer found in one sample."""

    reward: float
    answer: str | None = None
    """The extracted final answer (Solver, Corrector)."""
    verdict: Verdict | None = None
    """The parsed judgement (Verifier)."""
    report: str | None = None
    """The bug report to hand to the Corrector (Verifier); None: the Verifier's whole final text."""
    error: str | None = None
    """What went wrong in grading (time limit, unparsable answer), for the log; the reward then is 0."""
    graded: bool = True
    """False where the grader itself failed (exception, dead process), so that the reward 0 says nothing about
    the response. An answer that can't be parsed, or that takes too long, is graded: it is wrong."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What the trainer's own forward pass found in a response."""

    steps: Steps
    log_probs: tuple[float, ...]
    """Log-probability of each response token under the trainer's weights of that step, shape (T,)."""
    influence: tuple[float, ...] = ()
    """Forward Context Influence of each step; empty where it was not asked for."""
    entropies: tuple[float, ...] = ()
    """Entropy of the distribution that each token was drawn from, nats, shape (T,); empty where it was not
    asked for."""


@dataclass(slots=True)
class Sample:
    """One response, token in, token out: `response_ids` are exactly the ids the engine sampled."""

    sample_id: str
    """`{group_id}#{k}`, k in 0..n-1."""
    group_id: str
    prompt_ids: list[int]
    response_ids: list[int]
    rollout_log_probs: list[float]
    """Log-probability of each response token under the policy that sampled it, shape (T,)."""
    finish_reason: FinishReason
    text: str
    """The decoded response, thinking part included."""
    final_text: str
    """What other roles may see: the text after the last `</think>`, stripped."""
    response_mask: list[int] = field(default_factory=list)
    """1 where the model sampled the token, 0 where a tool or template wrote it; shape (T,)."""
    policy_version: int = 0
    """The training step whose weights sampled the last segment."""
    segments: list[tuple[int, int]] = field(default_factory=list)
    """(end, policy version) of every segment in order: tokens up to `end` (exclusive) were sampled by
    that version. Left out: one segment."""
    outcome: Outcome | None = None
    """None until scored."""
    error: str | None = None
    external: bool = False
    """True where another model answered: there is its text, but no token of ours, and nothing to train."""
    trainer_log_probs: list[float] = field(default_factory=list)
    """Log-probabilities under the trainer's weights that sampled the first tokens of the response, computed
    when these weights were the newest; NaN where they were not. Shape (up to T,)."""
    marks: Marks | None = None
    """Set by the trainer where the method asks for it (`Algorithm.marked_stages`)."""

    def __post_init__(self) -> None:
        if self.external and (self.prompt_ids or self.response_ids):
            raise ValueError(f"sample {self.sample_id}: an external Solver's answer has no token ids of ours")
        self.segments = [(int(end), int(version)) for end, version in self.segments]
        if not self.segments:
            self.segments = [(len(self.response_ids), self.policy_version)]
        ends = [end for end, _ in self.segments]
        if ends != sorted(ends) or ends[-1] != len(self.response_ids):
            raise ValueError(
                f"sample {self.sample_id}: segments end at {ends}, expected rising ends up to "
                f"{len(self.response_ids)} tokens"
            )
        if not self.response_mask:
            self.response_mask = [1] * len(self.response_ids)
        lengths = (len(self.response_ids), len(self.rollout_log_probs), len(self.response_mask))
        if len(set(lengths)) != 1:
            raise ValueError(
                f"sample {self.sample_id}: response_ids, rollout_log_probs and response_mask must have "
                f"one length, found {lengths}"
            )
        if len(self.trainer_log_probs) > len(self.response_ids):
            raise ValueError(
                f"sample {self.sample_id}: {len(self.trainer_log_probs)} log-probabilities of the trainer "
                f"for {len(self.response_ids)} tokens"
            )

    def beginning(self, tokens: int) -> Sample:
        """The first tokens of this response as an unfinished, unscored sample that can be continued."""
        if not 0 <= tokens <= len(self.response_ids):
            raise ValueError(
                f"sample {self.sample_id} of {len(self.response_ids)} tokens has no beginning of {tokens}"
            )
        kept = [(end, version) for end, version in self.segments if end < tokens]
        last = next(version for end, version in self.segments if end >= tokens)
        return Sample(
            sample_id=self.sample_id,
            group_id=self.group_id,
            prompt_ids=self.prompt_ids,
            response_ids=self.response_ids[:tokens],
            rollout_log_probs=self.rollout_log_probs[:tokens],
            finish_reason=FinishReason.SEGMENT,
            text="",
            final_text="",
            response_mask=self.response_mask[:tokens],
            policy_version=last,
            segments=[*kept, (tokens, last)],
            trainer_log_probs=self.trainer_log_probs[:tokens],
        )

    @property
    def reward(self) -> float:
        """The scorer's reward; an unscored sample has none and raises."""
        if self.outcome is None:
            raise ValueError(f"sample {self.sample_id} has not been scored yet")
        return self.outcome.reward

    @property
    def comparable(self) -> bool:
        """Whether its reward says something about its text: neither its request nor its grading failed.
        Others must not count as wrong. An unscored sample raises."""
        if self.finish_reason.failed:
            return False
        if self.outcome is None:
            raise ValueError(f"sample {self.sample_id} has not been scored yet")
        return self.outcome.graded

    @property
    def token_versions(self) -> list[int]:
        """The policy version that sampled each token, shape (T,)."""
        versions: list[int] = []
        for end, version in self.segments:
            versions += [version] * (end - len(versions))
        return versions

    @property
    def new_tokens(self) -> int:
        """Tokens of the last segment: what the last generation round added."""
        return self.segments[-1][0] - (self.segments[-2][0] if len(self.segments) > 1 else 0)

    @property
    def finished(self) -> bool:
        """True when the model ended its answer itself."""
        return self.finish_reason is FinishReason.STOP


@dataclass(slots=True)
class Group:
    """The samples of one stage input, ordered by their number k, complete when there are `input.n`."""

    input: StageInput
    samples: list[Sample]
    trained_before: frozenset[str] = frozenset()
    """Ids of samples that entered an earlier step's loss; they only count for the group's mean."""

    @property
    def comparable(self) -> list[Sample]:
        """The samples whose reward says something about their text (`Sample.comparable`)."""
        return [sample for sample in self.samples if sample.comparable]

    @property
    def rewards(self) -> list[float]:
        """Rewards in the order of `comparable`."""
        return [sample.reward for sample in self.comparable]


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How one role's tokens are drawn."""

    max_new_tokens: int
    """Most tokens of a response, all segments together."""
    max_prompt_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    segment_tokens: int | None = None
    """Most tokens of one generation round (UloRL, arXiv 2507.19766, §3.1); None: no segments."""
    seed: int | None = None
    """What the generators of single requests are derived from (`for_request`); None: the engine draws all
    requests from one generator of its own, in the order in which they come."""

    def for_request(self, name: str, begins_at: int) -> SamplingSettings:
        """The settings of one request, with a seed of its own if there is one to derive it from.

        Args:
            name: of the group, or of the sample whose next segment is asked for.
            begins_at: tokens of the response that are there already.
        """
        if self.seed is None:
            return self
        return replace(self, seed=derive_seed(self.seed, "tokens", name, begins_at))

    def room(self, tokens_so_far: int) -> int:
        """How many tokens the next segment may have after so many."""
        rest = self.max_new_tokens - tokens_so_far
        return rest if self.segment_tokens is None else min(rest, self.segment_tokens)


def segment_length(max_new_tokens: int, max_segments: int) -> int:
    """Tokens of a segment: the response limit in `max_segments` parts (UloRL, arXiv 2507.19766, §3.1)."""
    return -(-max_new_tokens // max_segments)


class Engine(Protocol):
    """Anything that can answer stage inputs: vLLM behind Ray, or a scripted engine in tests."""

    def generate(self, inputs: list[StageInput], sampling: dict[str, SamplingSettings]) -> list[Sample]:
        """Answer every input `input.n` times, or continue its unfinished samples, and score what ended.

        Args:
            inputs: the stage inputs of one generation round.
            sampling: settings by role; every role in `inputs` must be present.

        Returns:
            `input.n` samples, or as many as are unfinished, for every input, in any order. All are scored
            but those with finish reason `SEGMENT`, which are to be continued.
        """
        ...
