"""A sequence: one row of the training batch, token in, token out."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from marsrl_verl.core.policy import SHARED

TokenIds = NDArray[np.int32]
LogProbs = NDArray[np.float32]
Mask = NDArray[np.uint8]
Plain = Any
"""Dictionaries, lists, strings, numbers, None and numpy arrays: what a checkpoint can hold."""

PLAIN_SCALARS = (str, int, float, bool, bytes, type(None))
"""Types themselves, not classes derived from them."""

TURN = "turn"
"""Annotation: the turn, of a dialogue or between tool calls, in which a token was sampled; -1 for others."""
LABEL = "label"
"""Annotation: a number by which a loss tells its shares apart (whose token it is)."""
TRAINER_LOG_PROBS = "trainer_log_probs"
"""Annotation: log-probabilities under the trainer's weights when a probe measured the sequence."""
RECORDED_LOG_PROBS = "recorded_log_probs"
"""Annotation: those log-probabilities of tokens that the very same weights sampled; NaN for the others."""
RECORDED_ENTROPIES = "recorded_entropies"
"""Annotation: entropies of the distributions that those weights gave, nats; NaN where unknown."""


def token_ids(ids: ArrayLike) -> TokenIds:
    """Token ids as an int32 array; such an array is returned itself."""
    # `np.asarray` gives an array out of a checkpoint another object, so that the next checkpoint would hold a
    # prompt as often as its group has members.
    return ids if isinstance(ids, np.ndarray) and ids.dtype == np.int32 else np.asarray(ids, dtype=np.int32)


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens that one policy reads and writes in an episode: T after a prompt of P.

    The ids in `response_ids` are exactly those that the engine sampled, and those that a tool or the chat
    template wrote between them (`response_mask` 0).
    """

    role: str
    prompt_ids: TokenIds
    """(P,) one array object where the sequences of a group share it."""
    response_ids: TokenIds
    """(T,)"""
    rollout_log_probs: LogProbs
    """(T,) log-probability of each token under the policy that sampled it; 0 where `response_mask` is 0."""
    response_mask: Mask = field(default=None)  # type: ignore[arg-type]
    """(T,) 1 where the policy chose the token; 0 for tools, templates and what a grammar forced. Left out: 1
    everywhere."""
    versions: tuple[tuple[int, int], ...] = ()
    """(end, policy version) of consecutive parts: tokens up to `end` (exclusive) come from that version. The
    last end is T. A round that added no token is a part of length 0. Left out: version 0."""
    policy: str = SHARED
    """The name of the weights that sampled it and that it trains."""
    annotations: dict[str, NDArray[Any]] = field(default_factory=dict)
    """(T,) each, by name: what else is known of every token (turn, entropy, Forward Context Influence)."""
    reward: float | None = None
    """The sequence's own reward; None: its trajectory's."""
    prompt_text: str | None = None
    """Its prompt as text, where the trajectory has several sequences or no text; None: the request has it."""
    text: str | None = None
    """Its response as text, in the same cases; None: the trajectory has it."""
    figures: dict[str, float] = field(default_factory=dict)
    """Figures of what it sampled, where the trajectory has several sequences (`Trajectory.figures`)."""

    def __post_init__(self) -> None:
        self.prompt_ids, self.response_ids = token_ids(self.prompt_ids), token_ids(self.response_ids)
        self.rollout_log_probs = np.asarray(self.rollout_log_probs, dtype=np.float32)
        length = len(self.response_ids)
        if self.response_mask is None:
            self.response_mask = np.ones(length, dtype=np.uint8)
        self.response_mask = np.asarray(self.response_mask, dtype=np.uint8)
        self.versions = tuple((int(end), int(version)) for end, version in self.versions) or ((length, 0),)
        found = {
            "rollout_log_probs": len(self.rollout_log_probs),
            "response_mask": len(self.response_mask),
            **{name: len(values) for name, values in self.annotations.items()},
        }
        if wrong := {name: count for name, count in found.items() if count != length}:
            raise ValueError(f"a sequence of {length} response tokens has columns of other lengths: {wrong}")
        ends = [end for end, _ in self.versions]
        if ends != sorted(ends) or ends[0] < 0 or ends[-1] != length:
            raise ValueError(f"version parts end at {ends}, expected rising ends up to {length} tokens")

    def __len__(self) -> int:
        """Response tokens."""
        return len(self.response_ids)

    @property
    def trained_tokens(self) -> int:
        """Tokens that the policy chose."""
        return int(self.response_mask.sum())

    @property
    def version(self) -> int:
        """The version that sampled the last part."""
        return self.versions[-1][1]

    @property
    def new_tokens(self) -> int:
        """Tokens of the last part: what the last generation round added."""
        return len(self) - (self.versions[-2][0] if len(self.versions) > 1 else 0)

    def token_versions(self) -> NDArray[np.int32]:
        """(T,) the version that sampled each token."""
        ends = np.array([end for end, _ in self.versions])
        numbers = np.array([version for _, version in self.versions], dtype=np.int32)
        return np.repeat(numbers, np.diff(ends, prepend=0))

    def input_ids(self) -> TokenIds:
        """(P + T,) prompt and response."""
        return np.concatenate([self.prompt_ids, self.response_ids])

    def truncate(self, tokens: int) -> Sequence:
        """The first `tokens` of the response, with their columns; nothing is copied."""
        if not 0 <= tokens <= len(self):
            raise ValueError(f"a sequence of {len(self)} response tokens cannot be truncated to {tokens}")
        kept = [(end, version) for end, version in self.versions if end < tokens]
        last = next(version for end, version in self.versions if end >= tokens)
        return replace(
            self,
            response_ids=self.response_ids[:tokens],
            rollout_log_probs=self.rollout_log_probs[:tokens],
            response_mask=self.response_mask[:tokens],
            versions=(*kept, (tokens, last)),
            annotations={name: values[:tokens] for name, values in self.annotations.items()},
            reward=None,
            text=None,
            figures={},
        )

    def extend(
        self, ids: ArrayLike, log_probs: ArrayLike, version: int, mask: ArrayLike | None = None
    ) -> Sequence:
        """The sequence with further tokens of one version, as a part of its own. Annotations of tokens that
        were there stay; the new ones have 0, in columns of floats NaN."""
        added = token_ids(ids)
        ones = np.ones(len(added), dtype=np.uint8) if mask is None else np.asarray(mask, dtype=np.uint8)
        earlier = self.versions if len(self) else ()
        return replace(
            self,
            response_ids=np.concatenate([self.response_ids, added]),
            rollout_log_probs=np.concatenate(
                [self.rollout_log_probs, np.asarray(log_probs, dtype=np.float32)]
            ),
            response_mask=np.concatenate([self.response_mask, ones]),
            versions=(*earlier, (len(self) + len(added), version)),
            annotations={name: _padded(values, len(added)) for name, values in self.annotations.items()},
            text=None,
            figures={},
        )

    def keeping(self, *names: str) -> Sequence:
        """The sequence with only these of its annotations, as far as it has them."""
        return replace(
            self, annotations={name: self.annotations[name] for name in names if name in self.annotations}
        )

    def to_plain(self) -> dict[str, Plain]:
        """Its fields as dictionaries, tuples and arrays, which are shared and never changed in place."""
        return {**plain_fields(self), "annotations": dict(self.annotations)}

    @classmethod
    def from_plain(cls, data: dict[str, Plain]) -> Sequence:
        """The inverse of `to_plain`."""
        return cls(**{**data, "versions": tuple(tuple(part) for part in data["versions"])})


def _padded(values: NDArray[Any], count: int) -> NDArray[Any]:
    filler = np.nan if np.issubdtype(values.dtype, np.floating) else 0
    return np.concatenate([values, np.full(count, filler, dtype=values.dtype)])


def plain_fields(item: Any) -> dict[str, Plain]:
    """A dataclass's fields by name, as they are."""
    return {one.name: getattr(item, one.name) for one in fields(item)}


def check_plain(value: Any, place: str) -> None:
    """Checks that a checkpoint can hold a value.

    Args:
        value: anything.
        place: where it is, for the message.

    Raises:
        TypeError: it, or something in it, is not plain.
    """
    if type(value) is dict:
        for key, item in value.items():
            check_plain(key, f"{place}: the key {key!r}")
            check_plain(item, f"{place}.{key}")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            check_plain(item, f"{place}[{index}]")
    elif type(value) is np.ndarray and value.dtype.kind in "biuf":
        return
    elif type(value) not in PLAIN_SCALARS and not isinstance(value, np.generic):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if type(value) is np.ndarray:
            kind += f" of {value.dtype}"
        raise TypeError(
            f"{place} is a {kind}, expected plain values (dictionaries, lists, strings, numbers, None, "
            "arrays of numbers), which a checkpoint can hold"
        )
