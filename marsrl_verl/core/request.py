"""Problems, requests for rollouts, and settings for sampling their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from marsrl_verl.core.seeding import derive_seed
from marsrl_verl.core.sequence import Plain, Sequence, plain_fields
from marsrl_verl.core.trajectory import RolloutOutput
from marsrl_verl.settings.lengths import longest_sequence

Message = dict[str, str]
"""A chat message: `{"role": "system" | "user" | "assistant" | "tool", "content": …}`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One visit of one dataset row."""

    problem_id: str
    """Unique for the whole run, so the same row visited in two epochs is two problems."""
    question: str
    """The problem's text."""
    ground_truth: str
    data_source: str = ""
    messages: tuple[Message, ...] = ()
    """The chat prompt as it stands in the dataset."""
    extra_info: dict[str, Any] = field(default_factory=dict)
    """The row's own `extra_info`, plain values only: for rewards and tools that look at it."""
    row: str = ""
    """The dataset row, the same in every epoch; empty where unknown."""
    ability: str = ""
    """Kind of problem (`math`, `qa`) according to the row; empty where it gives none."""
    has_reference: bool = True
    """False where the right answer is unknown, as with a problem that a client sends: answers are read then,
    but not graded."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings for sampling one role's tokens."""

    max_new_tokens: int
    """Most tokens of a response, all rounds together."""
    max_prompt_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    segment_tokens: int | None = None
    """Most tokens of one generation round (UloRL, arXiv 2507.19766, §3.1); None: no segments."""
    seed: int | None = None
    """Seed from which those of single requests are derived (`request_seed`); None: the engine samples all
    requests with one generator of its own, in the order in which they come."""
    max_sequence_tokens: int | None = None
    """Most tokens of prompt and response together; None: the sum of the two."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens that prompt or response have already, and multiplies negative ones
    (Keskar et al. 2019); 1: no penalty. For evaluations only: log-probabilities of such tokens are not the
    model's."""
    log_probs: bool = True
    """If true, engines return the log-probability of each token, which training needs and which costs some
    of their speed; else they are 0."""

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt and response together."""
        return longest_sequence(self.max_prompt_tokens, self.max_new_tokens, self.max_sequence_tokens)

    def response_limit(self, prompt_tokens: int) -> int:
        """Most tokens of the response to a prompt of so many."""
        together = self.max_sequence_tokens
        return self.max_new_tokens if together is None else min(self.max_new_tokens, together - prompt_tokens)

    def request_seed(self, name: str, begins_at: int) -> int | None:
        """The seed of one engine request, if there is one to derive it from: of the name of the group, or of
        the trajectory that is continued, and of how many tokens of the response are there already."""
        return None if self.seed is None else derive_seed(self.seed, "tokens", name, begins_at)


def segment_length(max_new_tokens: int, max_segments: int) -> int:
    """Tokens of a segment: the response limit in `max_segments` parts (UloRL, arXiv 2507.19766, §3.1)."""
    return -(-max_new_tokens // max_segments)


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One prompt at one stage, to become `n` trajectories; the identity of one group."""

    group_id: str
    """Unique for the whole run, and a function of the problem, the stage and the slot only."""
    problem: Problem
    stage: str
    role: str
    """The role that begins to answer."""
    messages: tuple[Message, ...]
    n: int
    """Trajectories of the finished group."""
    rollout: str = "single_call"
    """The workflow: a name of the method's or of a built-in one."""
    inputs: Mapping[str, Plain] = field(default_factory=dict)
    """Inputs of rollout and rewards beside the messages (the solution under judgement, a plan)."""
    sampling: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By role, the fields of `Sampling` that this request changes: `{"solver": {"temperature": 0.0}}`."""
    parent_id: str | None = None
    """The trajectory that this request was built from; None at a first stage."""
    created_step: int = 0
    """The training step in which it came into being (staleness of requests)."""
    prefix: Sequence | None = None
    """The beginning of a response that all `n` trajectories continue; None: they begin at the prompt."""
    resume: RolloutOutput | None = None
    """Results of earlier rounds, if some are to be continued: paused trajectories whole, ended ones without
    tokens and texts."""

    def sampling_of(self, role: str, defaults: Mapping[str, Sampling]) -> Sampling:
        """The run's settings for a role (`defaults`), as this request changes them."""
        if role not in defaults:
            raise ValueError(
                f"request {self.group_id}: sampling settings are missing for role {role!r}, found "
                f"{sorted(defaults)}"
            )
        return replace(defaults[role], **self.sampling.get(role, {}))

    @property
    def continued_tokens(self) -> int:
        """Tokens of prompts and responses that are continued, each trajectory's counted for itself: what an
        engine has to read again, unless it holds some of it in its cache."""
        if self.resume is not None:
            paused = [one for one in self.resume.trajectories if one.paused]
            return sum(len(s.prompt_ids) + len(s) for one in paused for s in one.sequences)
        return 0 if self.prefix is None else self.n * (len(self.prefix.prompt_ids) + len(self.prefix))

    def to_plain(self) -> dict[str, Plain]:
        """The request as plain data, with the id of its problem and without `resume`: trajectories are
        written once, where they belong."""
        plain = plain_fields(self)
        del plain["resume"]
        plain["problem"] = self.problem.problem_id
        plain["messages"] = [dict(message) for message in self.messages]
        plain["inputs"] = dict(self.inputs)
        plain["sampling"] = {role: dict(changed) for role, changed in self.sampling.items()}
        plain["prefix"] = None if self.prefix is None else self.prefix.to_plain()
        return plain

    @classmethod
    def from_plain(cls, data: Mapping[str, Plain], problems: Mapping[str, Problem]) -> RolloutRequest:
        """The inverse of `to_plain`, given the problems by id."""
        prefix = data["prefix"]
        return cls(
            **{
                **data,
                "problem": problems[data["problem"]],
                "messages": tuple(dict(message) for message in data["messages"]),
                "prefix": None if prefix is None else Sequence.from_plain(prefix),
            }
        )

    def resumed(self, output: RolloutOutput | None) -> RolloutRequest:
        """The request for what `output` leaves open."""
        return replace(self, resume=output)


def problem_to_plain(problem: Problem) -> dict[str, Plain]:
    """A problem as plain data."""
    return {**plain_fields(problem), "messages": [dict(message) for message in problem.messages]}


def problem_from_plain(data: Mapping[str, Plain]) -> Problem:
    """The inverse of `problem_to_plain`."""
    return Problem(**{**data, "messages": tuple(dict(message) for message in data["messages"])})
