"""Settings with a closed set of values, apart from the tensor code that they choose in."""

from __future__ import annotations

from enum import Enum


class EntropyScope(str, Enum):
    """Whose entropy is compared with the target."""

    SEQUENCE = "sequence"
    """The mean over the sample's own tokens, as in Eq. 10."""
    BATCH = "batch"
    """The mean over all trained tokens of the step."""
    ROLE = "role"
    """The mean over the step's trained tokens of the sample's role."""


class OffPolicyMode(str, Enum):
    """What the loss takes as old log-probabilities, and whether it weights tokens."""

    POIS = "pois"
    """Those of the weights about to be updated, for all tokens."""
    SAIS = "sais"
    """Those of the weights that sampled each segment."""
    RECORDED = "recorded"
    """Token by token those of the weights that sampled it: the trainer's where they were recorded in that
    step (the first responses of a tree) or are the ones about to be updated, otherwise the engine's."""
    TIS = "tis"
    """As `pois`, with each token weighted by its truncated ratio to the weights that sampled it."""


class Overlap(str, Enum):
    """Whether generation and training take turns."""

    NONE = "none"
    """They take turns."""
    ONE_STEP = "one_step"
    """The next step's generation round runs while a step trains (one-step off-policy)."""
