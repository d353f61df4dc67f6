"""Settings with a closed set of values, apart from the code that they choose in."""

from __future__ import annotations

from enum import Enum


class Choice(str, Enum):
    """A closed set of values; a member equals its text, and prints as it."""

    def __str__(self) -> str:
        return str(self.value)


class OffPolicyMode(Choice):
    """Old log-probabilities of the loss, and whether it weights tokens."""

    POIS = "pois"
    """Log-probabilities under the weights about to be updated, for all tokens."""
    SAIS = "sais"
    """Log-probabilities under the weights that sampled each segment."""
    RECORDED = "recorded"
    """Token by token, those of the weights that sampled it: the trainer's where they were recorded in that
    step (the first responses of a tree) or are the ones about to be updated, otherwise the engine's."""
    TIS = "tis"
    """Like `pois`, with each token weighted by its truncated ratio to the weights that sampled it."""


class LossMean(Choice):
    """Mean of the token losses where responses have turns."""

    TURN = "turn-mean-token-mean"
    """Mean over all turns of the mean over a turn's tokens."""
    SEQUENCE = "seq-mean-turn-mean-token-mean"
    """Mean over sequences of the mean over a sequence's turns of the mean over a turn's tokens."""


class TurnRatio(Choice):
    """Importance ratio of a token in a policy loss over turns."""

    ARITHMETIC = "arithmetic"
    """Its turn's: the mean of the tokens' ratios."""
    GEOMETRIC = "geometric"
    """Its turn's: the exponential of the mean of the tokens' log-ratios."""
    TOKEN = "token"
    """Its own."""


class Overlap(Choice):
    """Overlap of generation and training."""

    NONE = "none"
    """They take turns."""
    ONE_STEP = "one_step"
    """The next step's generation round runs while a step trains (one-step off-policy)."""


class DefaultPolicy(Choice):
    """The policy of roles that name none."""

    SHARED = "shared"
    """The model's own, which they share."""
    LORA_PER_ROLE = "lora_per_role"
    """A LoRA adapter for each of them, named as the role."""
    MODEL_PER_ROLE = "model_per_role"
    """A model for each of them, named as the role."""
    ENDPOINT = "endpoint"
    """The one named `endpoint` in `marsrl.policies`: evaluated, not trained."""


class SeededTokens(Choice):
    """Responses that have a random generator of their own."""

    NONE = "none"
    EVALUATION = "evaluation"
    ALL = "all"
