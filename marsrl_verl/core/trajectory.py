"""A trajectory is one episode, one member of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from marsrl_verl.core.sequence import Plain, Sequence, plain_fields


class FinishReason(str, Enum):
    """Why a trajectory ended. A bad ending is data, never an exception."""

    STOP = "stop"
    """The model ended its answer itself."""
    LENGTH = "length"
    """The token limit was reached first."""
    LIMIT = "limit"
    """A limit of the episode was reached (turns, tool calls, context); `Trajectory.detail` says which."""
    PAUSED = "paused"
    """Not an end: the round's tokens are used, and the trajectory goes on in a later round."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The prompt exceeds the limit of its role; nothing was generated."""
    REFUSED = "refused"
    """An endpoint would not answer this request."""
    ABORTED = "aborted"
    """The engine gave the request up."""
    ERROR = "error"
    """The request failed; `Trajectory.detail` says how. (A failed tool call is no error: its text is
    read.)"""

    @property
    def failed(self) -> bool:
        """True if the request got no answer, so that the text says nothing about the model."""
        return self in (FinishReason.ERROR, FinishReason.ABORTED)


@dataclass(frozen=True, slots=True)
class RewardResult:
    """The scorer's result for one trajectory."""

    value: float
    """The reward."""
    info: Mapping[str, Plain] = field(default_factory=dict)
    """Further findings by name: `answer` (the extracted one) and those that the role's reward adds."""
    error: str | None = None
    """Error in grading (time limit, unparsable answer), for the log; the reward then is 0."""
    graded: bool = True
    """False where the grader itself failed (exception, dead process), so that the reward 0 says nothing about
    the trajectory. An answer that can't be parsed, or that takes too long, is graded: it is wrong."""
    raised: bool = False
    """If true, a failed grade is the grader's fault: it raised, or returned no result. False where its time
    was over or a service did not answer."""


@dataclass(frozen=True, slots=True)
class Grading:
    """A grading of a trajectory, or of a text of it, by a role's reward."""

    role: str
    """The role whose reward graded."""
    error: str | None = None
    """Error with which the grading failed; None: it did not."""
    raised: bool = False
    """See `RewardResult.raised`."""

    @classmethod
    def of(cls, role: str, result: RewardResult) -> Grading:
        """The grading that a role's reward result stands for."""
        error = None if result.graded else result.error or "no error is recorded"
        return cls(role, error, result.raised)


def is_correct(reward: float) -> bool:
    """True if the reward of an answer says that it is right."""
    return reward > 0.5


@dataclass(frozen=True, slots=True)
class Fork:
    """The point at which a trajectory left another one."""

    trajectory_id: str
    """The trajectory that it left."""
    token: int
    """Response tokens of that trajectory's sequence that it begins with."""
    sequence: int = 0
    """Index of that sequence in both trajectories."""


@dataclass(slots=True, eq=False)
class Trajectory:
    """One episode, one member of a group."""

    trajectory_id: str
    """`{group_id}#{k}`."""
    sequences: list[Sequence]
    """Sequences that it trains: one for a single call, one for each agent of a dialogue; none where another
    model answered, whose tokens mean nothing to ours."""
    finish: FinishReason
    text: str = ""
    """The decoded response, thinking part included; empty while it is paused."""
    final_text: str = ""
    """Text that other roles may see: that after the last `</think>`, stripped."""
    reward: RewardResult | None = None
    """None until scored."""
    detail: str | None = None
    """Why there is no regular end."""
    failed_by: str | None = None
    """The part that failed with ERROR, if it is not the one that generates tokens: the chat template, or the
    workflow by its name."""
    events: list[dict[str, Plain]] = field(default_factory=list)
    """Events of the episode: tool calls, turns."""
    figures: dict[str, float] = field(default_factory=dict)
    """Figures of its text, by name; of several sequences each has its own."""
    fork: Fork | None = None
    gradings: list[Grading] = field(default_factory=list)
    """All gradings of it so far; for an episode, those of its texts."""
    state: Plain = None
    """State that its rollout needs to go on, beside the sequences, while it is paused."""

    @property
    def group_id(self) -> str:
        """The group that it belongs to."""
        return self.trajectory_id.rpartition("#")[0]

    @property
    def number(self) -> int:
        """Its number k inside the group.

        Raises:
            ValueError: the id has none.
        """
        digits = self.trajectory_id.rpartition("#")[2]
        if not digits.isdecimal():
            raise ValueError(f"trajectory {self.trajectory_id}: expected an id like GROUP#0")
        return int(digits)

    @property
    def sequence(self) -> Sequence:
        """Its only sequence, where its rollout is a single call of the model."""
        if len(self.sequences) != 1:
            raise ValueError(
                f"trajectory {self.trajectory_id} has {len(self.sequences)} sequences, expected 1"
            )
        return self.sequences[0]

    @property
    def external(self) -> bool:
        """True if another model answered, so that there is text and no sequence."""
        return not self.sequences

    @property
    def tokens(self) -> int:
        """Response tokens of all sequences."""
        return sum(map(len, self.sequences))

    @property
    def new_tokens(self) -> int:
        """Tokens that policies chose in the last generation round."""
        return sum(int(one.response_mask[len(one) - one.new_tokens :].sum()) for one in self.sequences)

    @property
    def paused(self) -> bool:
        """True if it goes on in a later round."""
        return self.finish is FinishReason.PAUSED

    @property
    def finished(self) -> bool:
        """True if the model ended it itself."""
        return self.finish is FinishReason.STOP

    @property
    def scored(self) -> RewardResult:
        """The reward's result; an unscored trajectory has none and raises."""
        if self.reward is None:
            raise ValueError(f"trajectory {self.trajectory_id} has not been scored yet")
        return self.reward

    @property
    def value(self) -> float:
        """The reward as a number."""
        return self.scored.value

    @property
    def comparable(self) -> bool:
        """True if its reward says something about its text: neither its request nor its grading failed.
        Others must not count as wrong."""
        return not self.finish.failed and self.scored.graded

    def to_plain(self) -> dict[str, Plain]:
        """The trajectory as plain data. Arrays are shared, not copied: a state is taken in every step."""
        plain = plain_fields(self)
        plain["sequences"] = [sequence.to_plain() for sequence in self.sequences]
        plain["finish"] = self.finish.value
        plain["reward"] = (
            None if self.reward is None else {**plain_fields(self.reward), "info": dict(self.reward.info)}
        )
        plain["gradings"] = [plain_fields(one) for one in self.gradings]
        plain["fork"] = None if self.fork is None else plain_fields(self.fork)
        return plain

    @classmethod
    def from_plain(cls, data: Mapping[str, Plain]) -> Trajectory:
        """The inverse of `to_plain`."""
        reward, fork = data["reward"], data["fork"]
        return cls(
            **{
                **data,
                "sequences": [Sequence.from_plain(one) for one in data["sequences"]],
                "finish": FinishReason(data["finish"]),
                "reward": None if reward is None else RewardResult(**reward),
                "gradings": [Grading(**one) for one in data["gradings"]],
                "fork": None if fork is None else Fork(**fork),
            }
        )


@dataclass(slots=True, eq=False)
class RolloutOutput:
    """Result of one round of a rollout."""

    group_id: str
    trajectories: list[Trajectory]
    """The members that were begun or continued in this round."""
    state: Plain = None
    """The group's own state while it is unfinished (a tree's budget). None, and no member paused: it is
    complete."""
