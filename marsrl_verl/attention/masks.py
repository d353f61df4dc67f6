"""Checks that a forward pass's own mask lets tokens see what FCI assumes."""

from __future__ import annotations

import torch

from marsrl_verl.attention.layout import StepLayout

_QUERIES = 1024
"""Rows of a mask that are compared at a time."""
_HIDDEN = -1e4
"""Entries of an added mask from here down hide their key in every number format."""


class MaskCheck:
    """Compares the masks of a pass, each once, with causal attention inside the layout's sequences."""

    def __init__(self, layout: StepLayout) -> None:
        self._layout = layout
        self._seen: list[tuple[torch.Tensor, int | None]] = []

    def __call__(self, mask: torch.Tensor, length: int, window: int | None) -> None:
        """Raises ValueError if tokens see others than the earlier ones of their sequence (in the window).

        Args:
            mask: (B or 1, H or 1, T, T): bool, true where a query sees a key, or numbers that are added to
                the scores.
            length: T, tokens of a row; the rows end to end are the layout's axis.
            window: length of a sliding window; None: every earlier token is seen.
        """
        if any(mask is one and window == its_window for one, its_window in self._seen):
            return
        for start, end in zip(self._layout.starts, self._layout.ends, strict=True):
            row, offset = divmod(start, length)
            self._compare(mask[row if mask.shape[0] > 1 else 0], offset, offset + end - start, window)
        self._seen.append((mask, window))

    def without_mask(self, length: int, window: int | None) -> None:
        """Raises ValueError if a row has several sequences, or one that is longer than the window: without a
        mask sdpa lets all earlier tokens of the row be seen."""
        spans = list(zip(self._layout.starts, self._layout.ends, strict=True))
        if any(start % length for start, _ in spans):
            raise _refused("all earlier tokens of the row", "those of its own sequence")
        if window is not None and any(end - start > window for start, end in spans):
            raise _refused("all earlier tokens of the row", f"the last {window}")

    @staticmethod
    def _compare(mask: torch.Tensor, start: int, end: int, window: int | None) -> None:
        keys = torch.arange(mask.shape[-1], device=mask.device)
        for low in range(start, end, _QUERIES):
            queries = torch.arange(low, min(low + _QUERIES, end), device=mask.device)
            distance = queries[:, None] - keys
            visible = (distance >= 0) & (keys >= start)
            if window is not None:
                visible &= distance < window
            part = mask[:, low : low + len(queries)]
            if part.dtype is torch.bool:
                agrees = part == visible
            else:
                agrees = torch.where(visible, part == 0, part <= _HIDDEN)
            if not bool(agrees.all()):
                head, query, key = torch.nonzero(~agrees)[0].tolist()
                expected = "every earlier token" if window is None else f"the last {window} tokens"
                raise _refused(
                    f"{part[head, query, key].item()} in the mask at query {low + query}, key {key}",
                    f"{expected} of its sequence, which begins at {start}, and nothing else",
                )


def _refused(actual: str, expected: str) -> ValueError:
    return ValueError(
        f"the model's attention is not the one that FCI measures: a token sees {actual}, expected "
        f"{expected}. FCI needs causal attention over a sequence or a sliding window, and no biases"
    )
