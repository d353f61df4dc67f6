"""What a step's rollouts bring back, as numpy arrays in a folder: of no version of the project.

A group has one prompt and 8 to 16 rows. Its kind says what this step does with it:

    COMPLETE     asked in this step and answered whole
    CONTINUED    half of its rows ended in an earlier step, the others have their last segment in this one
    UNFINISHED   asked in this step; half of its rows end, the others wait for their next segment

Rows of the first two kinds are trained; the third is in the pools that a checkpoint holds.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

STAGES = ("solver", "verifier_1", "corrector_1", "verifier_2", "corrector_2")
COMPLETE, CONTINUED, UNFINISHED = range(3)
ENDED_BEFORE, ENDS, PAUSES = range(3)
"""Of a row: see the kinds of its group."""

_VOCABULARY = 151_000
_WORDS = 5_000
_REFLECTION = (" wait", " however", " check", " actually")
_STAGE_SHARES = (0.25, 0.25, 0.2, 0.15, 0.15)
_SHORTEST = {"solver": 1 / 60, "verifier": 1 / 15, "corrector": 1 / 10}
"""Shortest prompt by role, as a share of the longest one; the logarithm is uniform in between. The Solver's
longest is a fifteenth of the others'."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the step is."""

    rows: int = 2_304
    """About so many are trained (the last group is whole)."""
    tokens: int = 12_000
    """Mean length of a response."""
    spread: float = 0.7
    """Standard deviation of the logarithm of a response's length before it is cut at the limit; half of the
    variance is the group's."""
    longest: int = 32_768
    """Limit of a response."""
    longest_prompt: int = 30_000
    """Limit of a Verifier's and a Corrector's prompt."""
    continued: float = 0.125
    """Share of the trained groups that are CONTINUED."""
    unfinished: float = 0.125
    """UNFINISHED rows for each trained one."""
    seed: int = 1


class Inputs:
    """A folder that `generate` has filled. Arrays are mapped, not read.

    Token arrays are flat: those of row i are at `begins[i]:begins[i + 1]`, prompts of group g at
    `prompt_begins[g]:prompt_begins[g + 1]`, texts (UTF-8) alike at `text_begins` and `prompt_text_begins`.
    """

    def __init__(self, folder: Path) -> None:
        def mapped(name: str) -> np.ndarray:
            return np.load(folder / f"{name}.npy", mmap_mode="r")

        self.folder = folder
        self.tokens, self.log_probs = mapped("tokens"), mapped("log_probs")
        self.prompt_tokens = mapped("prompt_tokens")
        self.text_bytes, self.prompt_text_bytes = mapped("text"), mapped("prompt_text")
        with np.load(folder / "tables.npz") as tables:
            self.begins, self.text_begins = tables["begins"], tables["text_begins"]
            self.prompt_begins, self.prompt_text_begins = (
                tables["prompt_begins"],
                tables["prompt_text_begins"],
            )
            self.group_of, self.number, self.fate = tables["group_of"], tables["number"], tables["fate"]
            self.reward, self.paused_at = tables["reward"], tables["paused_at"]
            self.stage_of, self.kind, self.size = tables["stage_of"], tables["kind"], tables["size"]

    @cached_property
    def sizes(self) -> Sizes:
        """What the folder was generated for."""
        return Sizes(**json.loads((self.folder / "sizes.json").read_text()))

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each response."""
        return np.diff(self.begins)

    @cached_property
    def trained(self) -> np.ndarray:
        """Which rows are trained."""
        return self.kind[self.group_of] != UNFINISHED

    def rows_of(self, group: int) -> np.ndarray:
        """The rows of a group in order."""
        return np.flatnonzero(self.group_of == group)

    def row(self, row: int) -> slice:
        """Where its tokens are."""
        return slice(int(self.begins[row]), int(self.begins[row + 1]))

    def text(self, row: int) -> str:
        """The decoded response."""
        return bytes(self.text_bytes[self.text_begins[row] : self.text_begins[row + 1]]).decode()

    def prompt(self, group: int) -> np.ndarray:
        """Token ids."""
        return self.prompt_tokens[self.prompt_begins[group] : self.prompt_begins[group + 1]]

    def prompt_text(self, group: int) -> str:
        """Its text."""
        begin, end = self.prompt_text_begins[group], self.prompt_text_begins[group + 1]
        return bytes(self.prompt_text_bytes[begin:end]).decode()

    def facts(self) -> dict[str, float]:
        """What there is, for the record."""
        trained, prompts = self.trained, np.diff(self.prompt_begins)
        of_rows = prompts[self.group_of]
        return {
            "trained_rows": int(trained.sum()),
            "groups": len(self.kind),
            "response_tokens": int(self.lengths[trained].sum()),
            "prompt_tokens_of_rows": int(of_rows[trained].sum()),
            "longest_prompt": int(of_rows[trained].max()),
            "longest_response": int(self.lengths[trained].max()),
            "unfinished_rows": int((~trained).sum()),
            "response_text_megabytes": round(len(self.text_bytes) / 1e6, 1),
        }


def trainer_values() -> np.ndarray:
    """(vocabulary,) float32: in place of a model's forward pass, -log p of a sampled token, which also serves
    as the entropy where it was sampled, is a function of the token."""
    return np.random.default_rng(0).exponential(0.3, _VOCABULARY).astype(np.float32)


def generate(folder: Path, sizes: Sizes) -> Inputs:
    """Fills a folder; the same arrays for the same sizes."""
    draw = np.random.default_rng(sizes.seed)
    size, kind = _groups(sizes, draw)
    group_of = np.repeat(np.arange(len(size)), size)
    number = np.concatenate([np.arange(n) for n in size])
    stage_of = draw.choice(len(STAGES), len(size), p=_STAGE_SHARES)
    lengths = _lengths(sizes, draw, group_of, len(size))
    reward = (draw.random(len(group_of)) < 0.5).astype(np.float32)
    reward[number == 0], reward[number == 1] = 1.0, 0.0  # no group with equal rewards
    fate = np.full(len(group_of), ENDS, dtype=np.int8)
    fate[(kind[group_of] == CONTINUED) & (number % 2 == 0)] = ENDED_BEFORE
    fate[(kind[group_of] == UNFINISHED) & (number % 2 == 1)] = PAUSES
    prompt_lengths = np.array([_prompt_length(STAGES[stage], sizes, draw) for stage in stage_of])
    words = _words(draw)

    def flat(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Offsets and ids of sequences, offsets and bytes of their texts."""
        begins = np.concatenate([[0], np.cumsum(counts)])
        # Frequent and rare tokens, about as in a language.
        ids = (_VOCABULARY * draw.random(begins[-1], dtype=np.float32) ** 3).astype(np.int32)
        texts = [
            "".join([words[one] for one in (ids[begin:end] % _WORDS).tolist()]).encode()
            for begin, end in pairwise(begins)
        ]
        text_begins = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
        return begins, ids, text_begins, np.frombuffer(b"".join(texts), dtype=np.uint8)

    begins, tokens, text_begins, text = flat(lengths)
    prompt_begins, prompt_tokens, prompt_text_begins, prompt_text = flat(prompt_lengths)
    log_probs = -draw.exponential(0.3, len(tokens)).astype(np.float32)
    arrays = {
        "tokens": tokens, "log_probs": log_probs, "prompt_tokens": prompt_tokens, "text": text,
        "prompt_text": prompt_text,
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(
        folder / "tables.npz", begins=begins, text_begins=text_begins, prompt_begins=prompt_begins,
        prompt_text_begins=prompt_text_begins, group_of=group_of, number=number, fate=fate, reward=reward,
        paused_at=lengths // 2, stage_of=stage_of, kind=kind, size=size,
    )  # fmt: skip
    (folder / "sizes.json").write_text(json.dumps(asdict(sizes)))
    return Inputs(folder)


def _groups(sizes: Sizes, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Size and kind of each group."""
    found: list[tuple[int, int]] = []
    for target_rows, unfinished in ((sizes.rows, False), (round(sizes.rows * sizes.unfinished), True)):
        rows = 0
        while rows < target_rows:
            n = max(2, min(int(draw.integers(8, 17)), target_rows - rows))
            kind = CONTINUED if draw.random() < sizes.continued else COMPLETE
            found.append((n, UNFINISHED if unfinished else kind))
            rows += n
    both = np.array(found, dtype=np.int64)
    return both[:, 0], both[:, 1]


def _lengths(sizes: Sizes, draw: np.random.Generator, group_of: np.ndarray, groups: int) -> np.ndarray:
    """Log-normal, cut at the limit, scaled until the mean is the wanted one."""
    noise = np.sqrt(0.5) * (draw.standard_normal(groups)[group_of] + draw.standard_normal(len(group_of)))
    shape = np.exp(sizes.spread * noise)
    scale = sizes.tokens / shape.mean()
    for _ in range(50):
        scale *= sizes.tokens / np.minimum(shape * scale, sizes.longest).mean()
    return np.maximum(np.minimum(shape * scale, sizes.longest).astype(np.int64), 2)


def _prompt_length(stage: str, sizes: Sizes, draw: np.random.Generator) -> int:
    role = stage.partition("_")[0]
    longest = sizes.longest_prompt / 15 if role == "solver" else sizes.longest_prompt
    low = sizes.longest_prompt * _SHORTEST[role]
    return max(1, int(np.exp(draw.uniform(np.log(low), np.log(longest)))))


def _words(draw: np.random.Generator) -> list[str]:
    letters = draw.integers(ord("a"), ord("z") + 1, (_WORDS, 6), dtype=np.uint8)
    lengths = draw.integers(1, 6, _WORDS)
    words = [" " + bytes(row[:n]).decode() for row, n in zip(letters, lengths, strict=True)]
    for place, word in enumerate(_REFLECTION):
        words[-1 - place] = word
    return words
