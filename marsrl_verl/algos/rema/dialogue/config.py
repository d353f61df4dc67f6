"""The settings of the dialogue, `marsrl.algo` with `name: rema`, and the rules between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from pydantic import Field

from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING, ROLES
from marsrl_verl.core.alternation import AlternatingConfig, Alternation
from marsrl_verl.core.credit import Estimator, EstimatorConfig
from marsrl_verl.core.credit.turn_ratio import TurnLossConfig, turn_loss_checks
from marsrl_verl.core.policy import PolicyKind
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import Needs, Settings, Switched, limits
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.run_view import RunView


class FinishStops(Choice):
    """Agents whose messages end at `[FINISH]` (`Config.finish_stops`)."""

    META_THINKING = "meta_thinking"
    BOTH = "both"


class GuardConfig(Settings):
    """Messages that end a dialogue because it has collapsed. They are counted in any case."""

    empty_messages: int | None = limits(None, ge=1, why="null ends no dialogue")
    """The n-th empty message of a dialogue ends it; null: none does."""
    same_messages: int | None = limits(None, ge=2, why="a message is always the same as itself")
    """An agent's n-th message in a row with the same text ends it; null: none does."""
    repeated_frac: float | None = limits(
        None, gt=0.0, lt=1.0, fix="0.5 is a message half of which came before."
    )
    """Share of a message's 20-grams of tokens that stood in it before, above which it ends the dialogue
    (`repetition_frac` of docs/reference/metrics.md); null: none does."""


class OverlongConfig(Switched):
    """A soft penalty on a list of messages that comes near to its limit (DAPO, arXiv 2503.14476, eq. 13)."""

    enabled: bool = False
    """If true, it is taken from the reward of the agent whose list it is."""
    tokens: int = limits(1024, ge=1, why="the penalty grows over them")
    """Tokens before the list's limit (`marsrl.roles.<role>.max_new_tokens` without the first prompt,
    `marsrl.roles.<role>.max_sequence_tokens` with it) over which it grows from 0."""
    penalty: float = limits(1.0, gt=0.0, why="0 is none")
    """Penalty of a list of the full length."""


class Config(AlternatingConfig, EstimatorConfig):
    """A dialogue of two agents (ReMA, arXiv 2503.09501, §3.2.2)."""

    resumable: ClassVar[frozenset[str]] = frozenset(
        {"gamma_turn", "alternate", "loss", "guards", "overlong", "leak_penalty"}
    )

    name: str = "rema"
    """The method."""
    group_size: int = limits(16, ge=2, why="advantages compare the responses of a group")
    """Dialogues about a problem (G)."""
    max_turns: int = limits(30, ge=1, why="a dialogue has a turn")
    """Most turns of a dialogue: a message of the meta-thinking agent and the answer of the reasoning one."""
    message_tokens: int = limits(512, ge=1, why="a message has a token")
    """Most tokens of a message. An agent begins a message only if its list of messages leaves room for so
    many (`marsrl.roles.<role>.max_new_tokens` without the first prompt,
    `marsrl.roles.<role>.max_sequence_tokens` with it)."""
    finish_stops: FinishStops = FinishStops.META_THINKING
    """Agents whose messages end at `[FINISH]`: the one that decides (`meta_thinking`), or also the other
    (`both`, released code), where it means nothing and is not passed on."""
    stop_when_truncated: bool = True
    """If true, a message that reaches `message_tokens` ends the dialogue, with reward 0; if false, it is
    passed on as it is."""
    mask_unfinished: bool = True
    """If true, a right answer is worth nothing if the dialogue did not end by `[FINISH]` (paper). Both
    accuracies are logged."""
    gamma_turn: float = limits(
        1.0, gt=0.0, le=1.0, why="a later reward counts", needs=Needs("estimator", Estimator.REINFORCE_PP)
    )
    """Discount of a reward for each turn before it, in place of `gamma` between two turns
    (`reinforce_pp`)."""
    loss: TurnLossConfig = Field(default_factory=TurnLossConfig)
    """The importance ratio of the loss."""
    leak_penalty: float = limits(0.0, ge=0.0, why="0 is no penalty")
    """Taken from the meta-thinking agent's reward if it gives the answer away: if it claims it, as judged by
    `marsrl.reward.meta_thinking`, before the reasoning agent has claimed it."""
    guards: GuardConfig = Field(default_factory=GuardConfig)
    """Messages that end a dialogue that has collapsed."""
    overlong: OverlongConfig = Field(default_factory=OverlongConfig)
    """A penalty on long lists of messages."""

    def checks(self, run: RunView) -> Iterable[ConfigIssue]:
        """Checks these settings and those of the run against each other."""
        return [
            *turn_loss_checks(run, self.loss, f"{_ALGO}.loss"),
            *super().checks(run),
            *_message_budgets(run, self),
            *_frozen(run),
        ]

    def plan_lines(self, run: RunView) -> list[str]:
        """Describes the length of dialogues, and the agents' turns in training."""
        full = full_turns(run)
        lines = [
            f"  dialogues: up to {self.max_turns} turns of two messages of up to {self.message_tokens:,} "
            "tokens; each agent's list of messages is a row",
            f"  messages of full length after a prompt of the limit: room in the lists for {full} "
            f"turn{'' if full == 1 else 's'} of them",
        ]
        trained = {role: run.settings.policy_of(role) for role in ROLES if role not in run.frozen_roles}
        alternation = Alternation.of(self.alternate, ROLES, trained)
        if alternation is not None:
            begins = ", then ".join(alternation.order)
            lines.append(f"  trained in turn: {begins}, {alternation.interval} steps each")
        return lines


_ALGO = "marsrl.algo"


def _message_budgets(run: RunView, config: Config) -> Iterator[ConfigIssue]:
    """Checks that a list of messages has room for one, and for the penalty's zone."""
    for role in (one for one in ROLES if one not in run.frozen_roles):
        limits = run.settings.roles[role]
        most, together = limits.max_new_tokens, limits.max_sequence_tokens
        if config.message_tokens > most:
            what = f"The {role} agent's whole list of messages has {most} tokens: it could begin none."
            fix = (
                f"Lower it, or raise marsrl.roles.{role}.max_new_tokens: n turns of such messages take up to "
                f"{2 * config.message_tokens} n tokens of each agent's list."
            )
            yield ConfigIssue(f"{_ALGO}.message_tokens", what, fix, config.message_tokens)
        elif together is not None and config.message_tokens > (room := together - limits.max_prompt_tokens):
            what = (
                f"Behind a first prompt of {limits.max_prompt_tokens} tokens the {role} agent's list has "
                f"room for {room} (max_sequence_tokens {together}): it could begin no message."
            )
            fix = f"Lower it, raise marsrl.roles.{role}.max_sequence_tokens, or lower max_prompt_tokens."
            yield ConfigIssue(f"{_ALGO}.message_tokens", what, fix, config.message_tokens)
        if config.overlong.enabled and config.overlong.tokens > most:
            what = f"The {role} agent's whole list of messages has {most} tokens."
            fix = f"Lower it, or raise marsrl.roles.{role}.max_new_tokens."
            yield ConfigIssue(f"{_ALGO}.overlong.tokens", what, fix, config.overlong.tokens)


def full_turns(run: RunView) -> int:
    """Returns the turns for which the lists have room if all messages have their full length."""
    config: Config = run.settings.algo
    rooms = []
    for role in ROLES:
        limits = run.settings.roles[role]
        most = limits.max_new_tokens
        if limits.max_sequence_tokens is not None:
            most = min(most, limits.max_sequence_tokens - limits.max_prompt_tokens)
        # Before the last message the list has two of each earlier turn.
        rooms.append((most // config.message_tokens - 1) // 2 + 1)
    return min(config.max_turns, *rooms)


def _frozen(run: RunView) -> Iterator[ConfigIssue]:
    """Checks that a frozen agent can take part, and that some agent is trained."""
    frozen = run.frozen_roles
    for name in frozen.values():
        if (kind := run.settings.policies[name].kind) is PolicyKind.JSONL:
            what = "Its file answers problems, and in a dialogue each message answers another one."
            fix = f"Use a policy of kind {PolicyKind.ENDPOINT}."
            yield ConfigIssue(f"marsrl.policies.{name}.kind", what, fix, kind)
    if set(frozen) == {META_THINKING, REASONING} and run.trains:
        what = "The policies of both agents are frozen: nothing is trained."
        fix = "Leave the policy of one of them out."
        yield ConfigIssue(f"marsrl.roles.{META_THINKING}.policy", what, fix, frozen[META_THINKING])
